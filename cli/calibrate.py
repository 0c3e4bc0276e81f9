"""tensorexpress calibrate: measure what a target on this machine adds to the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

from tensorexpress.calibration import ITERATIONS
from tensorexpress.cli.options import check_file, progress, read_inputs, set_option, with_option
from tensorexpress.cli.run_targets import make_target, wires_option
from tensorexpress.errors import InputError

if TYPE_CHECKING:
    from tensorexpress.baseline import FittedBaseline
    from tensorexpress.calibration import Calibration
    from tensorexpress.target import Network, Target
    from tensorexpress.target.runner import Run

#: Targets whose links have a rate; BMv2's queues do not share one.
TARGETS = ("embedded", "linux")

#: A packet then occupies a link for less than the probe's gaps.
_SLOWEST_BPS = 10**7

#: How often it is tried to find the machine calm.
_ATTEMPTS = 3

#: What is said of targets that pace none, one or both of the links from host to host.
_PACED = ("nowhere", "where hosts send", "where hosts and switches send")


@click.command(short_help="Measure what a target adds, so that predictions are for this machine.")
@click.argument("scenario", required=False, metavar="[SCENARIO.toml]")
@set_option
@click.option(
    "--baseline",
    metavar="POLICY=SPEED",
    help='Fit the copy rate of hosts to a measured speed, such as "fifo=142 samples/s" or "fifo=350 ms".',
)
@click.option("--target", "name", type=click.Choice(TARGETS), default="embedded", show_default=True)
@wires_option
@click.option(
    "--rate",
    metavar="RATE",
    help="Rate of the links to predict for.  [default: the fastest that the target keeps up with, which is measured]",
)
@click.option(
    "--mtu", type=click.IntRange(576, 9000), default=9000, show_default=True, help="MTU of the probe's links."
)
@click.option(
    "--iterations", type=click.IntRange(1), default=ITERATIONS, show_default=True, help="Measured rounds of the probe."
)
@click.option("-o", "--output", metavar="FILE", help="Write it for --calibration of `predict` and `compare`.")
def calibrate(
    scenario: str | None,
    overrides: tuple[str, ...],
    baseline: str | None,
    name: str,
    wires: bool | None,
    rate: str | None,
    mtu: int,
    iterations: int,
    output: str | None,
) -> None:
    """Run a probe of one worker and one server on a target, and show by how much it differs from the model.

    It takes some seconds, and is done again, up to three times, where this machine stood still meanwhile; close what
    else keeps it busy, as for a run.

    With --baseline nothing is run: SCENARIO.toml and --set describe a cluster on which somebody has measured, and the
    rate is found at which its hosts copy messages.

    \b
      tensorexpress calibrate --target embedded -o calibration.json
      tensorexpress compare runs/fifo.trace --calibration calibration.json
      tensorexpress calibrate mine.toml --baseline "fifo=142 samples/s" -o mine.json
      tensorexpress predict mine.toml --calibration mine.json
    """
    from tensorexpress.calibration import write_calibration

    check_file("--output", output)
    if baseline is not None:
        fitted, rows = _fit(scenario, overrides, baseline)
        if output is not None:
            write_calibration(output, fitted)
        click.echo("\n".join(rows))
        return
    if scenario is not None or overrides:
        raise InputError("SCENARIO.toml and --set are for --baseline; without it a probe of its own is run")
    calibration = _measure(make_target(name, wires=wires), rate, mtu, iterations)
    if output is not None:
        write_calibration(output, calibration)
    click.echo("\n".join(_rows(calibration)))


def _fit(path: str | None, overrides: Sequence[str], baseline: str) -> tuple[FittedBaseline, list[str]]:
    """Return what a measured baseline shows of the hosts of a scenario, and that in words."""
    from tensorexpress.baseline import FittedBaseline, fit_copy_rate, parse_baseline
    from tensorexpress.calibration import calibrate_scenario
    from tensorexpress.plan import make_plan
    from tensorexpress.sim.run import simulate
    from tensorexpress.text import grid
    from tensorexpress.trace import measure_job
    from tensorexpress.units import format_rate, format_time

    inputs = read_inputs(path, overrides).scenario
    policy, measured_ps = with_option("--baseline", lambda text: parse_baseline(text, inputs), baseline)

    def simulated_ps(copy_rate_bps: int) -> float:
        fitted = FittedBaseline(policy.name, measured_ps, copy_rate_bps)
        trace = simulate(make_plan(calibrate_scenario(inputs, fitted), policy))
        return measure_job(trace.jobs[0], trace.warmup).iteration_ps

    rate_bps = with_option("--baseline", lambda _: fit_copy_rate(simulated_ps, measured_ps), baseline)
    rows = [
        ["measured", format_time(measured_ps)],
        ["simulated, copies at once", format_time(round(simulated_ps(0)))],
        ["simulated, with this copy rate", format_time(round(simulated_ps(rate_bps)))],
        ["copy rate", format_rate(rate_bps) if rate_bps else "at once"],
    ]
    title = f"{inputs.name}: an iteration under {policy.name}, and the rate at which hosts copy messages:"
    return FittedBaseline(policy.name, measured_ps, rate_bps), [title, *grid(rows)]


def _measure(target: Target, rate: str | None, mtu: int, iterations: int) -> Calibration:
    from tensorexpress.calibration import fit, probe_plan
    from tensorexpress.host.cost import measure_host_cost
    from tensorexpress.sim.run import simulate
    from tensorexpress.target import WireAccess
    from tensorexpress.target.runner import run_calmly, run_plan
    from tensorexpress.target.speed import Load, fastest_under, known_bps, said
    from tensorexpress.units import format_rate, parse_rate

    load = Load(mtu, links=1, sums=False)
    if rate is None:
        # What was kept is measured again here, and only here.
        fastest_bps = fastest_under(load, target, measure=partial(known_bps, again=True))
        rate_bps = max(_SLOWEST_BPS, parse_rate(said(fastest_bps)))
    else:
        rate_bps = with_option("--rate", parse_rate, rate)
        fastest_bps = fastest_under(load, target, rate_bps)
        if not _SLOWEST_BPS <= rate_bps <= fastest_bps:
            raise InputError(
                f"--rate {rate!r}; accepted: from {format_rate(_SLOWEST_BPS)} to the {said(fastest_bps)} that the "
                f"target {target.name} keeps up with on this machine"
            )
    plan = probe_plan(rate_bps, mtu, iterations)
    wires: list[bool] = []

    def look_at_hosts(network: Network, _: Mapping[str, int]) -> None:
        wires.extend(isinstance(host, WireAccess) for host in network.hosts.values())

    def run_once(attempt: str) -> Run:
        with progress(plan.scenario.rounds, f"measuring{attempt}") as advance:
            return run_plan(plan, target, progress=advance, started=look_at_hosts)

    run = run_calmly(run_once, _ATTEMPTS)
    if not run.machine.is_calm:
        click.echo(f"Warning: {run.machine.stalls}; what was measured is partly that.", err=True)
    return fit(target.name, plan, run.trace, simulate(plan), measure_host_cost(mtu, wires=any(wires)))


def _rows(calibration: Calibration) -> list[str]:
    from tensorexpress.text import grid
    from tensorexpress.units import format_rate, format_time

    rate = format_rate(round(calibration.rate_bps * calibration.rate_share))
    rows = [
        ["links", f"{rate} of {format_rate(calibration.rate_bps)} ({calibration.rate_share:.2%})"],
        ["packets pass at once", _PACED[calibration.paced_links]],
        ["hosts, per packet", format_time(calibration.host_packet_ps)],
        ["hosts, per 1000 bytes", format_time(1000 * calibration.host_byte_ps)],
        ["switch, per packet", format_time(calibration.switch_packet_ps)],
        ["switch, per 1000 bytes", format_time(1000 * calibration.switch_byte_ps)],
        ["timers come late by", format_time(calibration.timer_ps)],
    ]
    return [f"target {calibration.target} on this machine, beyond the model:", *grid(rows)]
