"""How fast links of a run may be: on every target faster and faster ones, until packets are lost or predictions off.

Run by hand, as root for veth and linux: `python benchmarks/run.py`. What is run is examples/loop.toml with tensors that
grow with the rate, so that an iteration takes as long at every rate. The error is that of the predicted gain, what
tensorexpress takes off the blocking under fifo, with --calibrate for a target that is calibrated at every rate first.
The last line of a target is what `tensorexpress run` accepts there. Nothing is asserted about speed.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tensorexpress.calibration import Calibration, calibrate_plan, fit, probe_plan
from tensorexpress.errors import TensorExpressError
from tensorexpress.host.cost import measure_host_cost
from tensorexpress.plan import Plan, make_plan
from tensorexpress.policy import POLICIES
from tensorexpress.scenario import Scenario, read_scenario
from tensorexpress.sim import simulate
from tensorexpress.target import Target
from tensorexpress.target.embedded import EmbeddedTarget
from tensorexpress.target.linux import LinuxTarget
from tensorexpress.target.runner import Run, run_calmly, run_plan
from tensorexpress.target.speed import Load, fastest_under, said
from tensorexpress.trace import Trace, measure_job
from tensorexpress.units import PS_PER_MS, format_rate

LOOP = Path(__file__).parents[1] / "examples" / "loop.toml"
LOOP_MBPS = 20
MBPS = 10**6

TARGETS: dict[str, Target] = {
    "wires": EmbeddedTarget(wires=True),
    "python": EmbeddedTarget(wires=True, engine="python"),
    "veth": EmbeddedTarget(),
    "linux": LinuxTarget(),
}

#: What an error of the predicted gain may be.
ACCEPTED = 0.10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=TARGETS, action="append", help="one of them (default: wires, veth, linux)")
    parser.add_argument("--rates", default="20,50,100,150,200,300,500,700,1000", help="Mbps (default: %(default)s)")
    parser.add_argument("--mtu", type=int, default=9000, help="(default: %(default)s)")
    parser.add_argument("--iterations", type=int, default=3, help="measured ones of a run (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=1, help="runs at every rate (default: %(default)s)")
    parser.add_argument("--attempts", type=int, default=3, help="to find the machine calm (default: %(default)s)")
    parser.add_argument("--set", action="append", default=[], help="a key of the scenario, as for tensorexpress run")
    parser.add_argument("--calibrate", action="store_true", help="predict for the target, calibrated at every rate")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # so that namespaces are taken down
    for name in arguments.target or ("wires", "veth", "linux"):
        target = TARGETS[name]
        try:
            target.check()
            climb(name, target, arguments)
        except TensorExpressError as error:
            print(f"{name}: {error}")


def climb(name: str, target: Target, arguments: argparse.Namespace) -> None:
    """Print what comes of every rate of a target, up to the first at which it does not keep up."""
    print(f"{name}, MTU {arguments.mtu}: blocking in ms, measured and predicted")
    print("      rate      fifo           tensorexpress  gain           error  lost  resent  busy  stood still")
    highest_bps = 0
    for rate_bps in (int(float(rate) * MBPS) for rate in arguments.rates.split(",")):
        scenario = loop_at(rate_bps, arguments.mtu, arguments.iterations, arguments.set)
        plans = [make_plan(scenario, POLICIES[policy]) for policy in ("fifo", "tensorexpress")]
        calibration = calibrated(target, rate_bps, arguments) if arguments.calibrate else None
        rows = [row(rate_bps, plans, target, calibration, arguments.attempts) for _ in range(arguments.repeats)]
        if not all(rows):
            break
        highest_bps = rate_bps
    accepted_bps = fastest_under(Load(arguments.mtu, links=1, sums=False), target)
    print(f"{name} keeps up with {format_rate(highest_bps)}; run accepts {said(accepted_bps)} here\n", flush=True)


def row(rate_bps: int, plans: list[Plan], target: Target, calibration: Calibration | None, attempts: int) -> bool:
    """Run all plans once and print what came of it; return whether nothing was lost and the gain as predicted."""
    runs = [run_calmly(lambda _, plan=plan: run_plan(plan, target), attempts) for plan in plans]
    predicted = [simulate(plan if calibration is None else calibrate_plan(plan, calibration)) for plan in plans]
    measured_ms, predicted_ms = (
        [blocking_ms(trace) for trace in traces] for traces in ([r.trace for r in runs], predicted)
    )
    for blocking in (measured_ms, predicted_ms):
        blocking.append(blocking[0] - blocking[1])
    error = predicted_ms[-1] / measured_ms[-1] - 1
    lost = sum(map(lost_packets, runs))
    cells = "".join(
        f"{found:6.0f} {expected:6.0f}  " for found, expected in zip(measured_ms, predicted_ms, strict=True)
    )
    resent = sum(run.trace.retransmissions for run in runs)
    busy, stalled = (max(getattr(run.machine, what) for run in runs) for what in ("busy", "stalled"))
    print(
        f"{format_rate(rate_bps):>10}  {cells} {error:+6.1%}  {lost:4}  {resent:6}  {busy:4.0%}  {stalled:11.1%}",
        flush=True,
    )
    return lost == resent == 0 and abs(error) < ACCEPTED


def loop_at(rate_bps: int, mtu: int, iterations: int, overrides: Iterable[str] = ()) -> Scenario:
    """Return the example on links of another rate, with tensors that take as long on them."""
    overrides = [
        f"cluster.bandwidth={rate_bps} bps", f"cluster.mtu={mtu}", f"iterations={iterations}", *overrides
    ]  # fmt: skip
    scenario = read_scenario(LOOP, overrides=overrides)
    [job] = scenario.jobs
    layers = tuple(
        replace(layer, params=layer.params * rate_bps // (LOOP_MBPS * MBPS)) for layer in job.workload.layers
    )
    return replace(scenario, jobs=(replace(job, workload=replace(job.workload, layers=layers)),))


def calibrated(target: Target, rate_bps: int, arguments: argparse.Namespace) -> Calibration:
    """Return what `tensorexpress calibrate` would measure at this rate."""
    plan = probe_plan(rate_bps, arguments.mtu)
    wires = isinstance(target, EmbeddedTarget) and not target.in_namespaces
    run = run_calmly(lambda _: run_plan(plan, target), arguments.attempts)
    return fit(target.name, plan, run.trace, simulate(plan), measure_host_cost(arguments.mtu, wires))


def blocking_ms(trace: Trace) -> float:
    """Return how long workers wait in an iteration, in the mean."""
    return measure_job(trace.jobs[0], trace.warmup).blocking_ps / PS_PER_MS


def lost_packets(run: Run) -> int:
    """Return how many packets switches dropped."""
    return sum(sum(report.drops.values()) for report in run.ports)


if __name__ == "__main__":
    main()
