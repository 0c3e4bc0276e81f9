"""tensorexpress deploy --target p4: a plan on switches that speak P4Runtime."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from tensorexpress.cli.options import with_option, write_json
from tensorexpress.errors import InputError, PlanError
from tensorexpress.files import make_directory, write_atomic
from tensorexpress.units import parse_rate

if TYPE_CHECKING:
    from tensorexpress.control.client import RemoteSwitch
    from tensorexpress.control.deploy import Event, PlannedDeployment
    from tensorexpress.control.intent import Options
    from tensorexpress.control.watch import WatchSettings
    from tensorexpress.plan import Plan

#: Options of deploy that say how to talk to switches, and what to tell of it.
_OF_SWITCHES = {
    *("switches", "device_ids", "tls_ca", "tls_cert", "tls_key", "election_id"),
    *("partial", "dry_run", "stay", "replan", "every", "json_path"),
}


def deploy_p4(
    plan_path: str,
    targets: Sequence[RemoteSwitch],
    hosts_path: str | None,
    limits: Sequence[str],
    *,
    partial: bool,
    dry_run: bool,
    stay: bool,
    replan: WatchSettings | None,
    json_path: str | None,
    **choices: Any,
) -> None:
    """Bring switches to what a plan says, once or until told to end, and show what was changed.

    `choices` are further fields of `control.intent.Options`.
    """
    from tensorexpress import p4
    from tensorexpress.plan_file import read_plan

    plan = read_plan(plan_path)
    _check_switches(plan, [target.name for target in targets], partial)

    from tensorexpress.control import deploy as control
    from tensorexpress.control.report import changes_json, changes_table

    options = _options(plan, hosts_path, limits, choices)
    if replan is not None:
        _reroute(plan, targets, options, replan)
        return
    deployment = control.prepare(plan, [target.name for target in targets], options, p4.load())
    if stay:
        _stay(deployment, targets)
        return
    outcomes = control.deploy(deployment, targets, dry_run=dry_run)
    if json_path is not None:
        write_json(json_path, changes_json(outcomes, deployment.schema, dry_run=dry_run))
    if json_path != "-" and any(outcome.changes for outcome in outcomes):
        click.echo(changes_table(outcomes, deployment.schema, dry_run=dry_run))
    error = control.failures(outcomes)
    if error is not None:
        raise error


def watch_settings(percent: float, every_s: float) -> WatchSettings:
    """Return when routes are planned again: a load changes by so many percent of a link, seen so often."""
    from tensorexpress.target.controlled import check_p4runtime

    check_p4runtime()
    from tensorexpress.control.watch import WatchSettings

    return WatchSettings(every_s, percent / 100)


def check_no_switches(context: click.Context) -> None:
    """Refuse options that say how to talk to switches, where none is asked."""
    for option in context.command.params:
        given = context.get_parameter_source(option.name or "") is click.core.ParameterSource.COMMANDLINE
        if given and option.name in _OF_SWITCHES:
            raise InputError(f"{option.opts[0]} goes with switches, and --entries asks none; leave one of them out")


def write_entries(
    plan_path: str, directory: str, hosts_path: str | None, limits: Sequence[str], **choices: Any
) -> None:
    """Write the program and what every switch of a plan is to hold as files, and print their names."""
    from tensorexpress import p4
    from tensorexpress.plan_file import read_plan
    from tensorexpress.target.controlled import check_p4runtime

    check_p4runtime()
    from tensorexpress.control.deploy import prepare
    from tensorexpress.control.entries_file import entries_text

    plan, program = read_plan(plan_path), p4.load()
    deployment = prepare(plan, plan.scenario.cluster.switches, _options(plan, hosts_path, limits, choices), program)
    files = {f"{p4.NAME}.json": program.document.decode(), f"{p4.NAME}.p4info.txtpb": program.p4info}
    files |= {f"{switch}.entries.txtpb": entries_text(deployment, switch) for switch in deployment.wanted}
    make_directory(directory)
    for name, text in files.items():
        write_atomic(Path(directory, name), text)
        click.echo(Path(directory, name))


def _options(plan: Plan, hosts_path: str | None, limits: Sequence[str], choices: Mapping[str, Any]) -> Options:
    from tensorexpress.addresses import read_addresses
    from tensorexpress.control.intent import Options

    return Options(
        addresses=read_addresses(hosts_path, plan.scenario.cluster) if hosts_path else None,
        limits=dict(map(_limit, limits)),
        **choices,
    )


def _check_switches(plan: Plan, named: Sequence[str], partial: bool) -> None:
    missing = [switch for switch in plan.scenario.cluster.switches if switch not in named]
    unknown_ones = set(named) - set(plan.scenario.cluster.switches)
    if missing and not partial and not unknown_ones:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise PlanError(
            f"the plan has a switch {missing[0]}{more} that no --switch names; give --switch {missing[0]}=ADDRESS, "
            "or --partial to leave it as it is"
        )


def _limit(text: str) -> tuple[str, int]:
    job, equals, rate = text.rpartition("=")
    if not (job and equals):
        raise InputError(f'--limit {text!r}; accepted: JOB=RATE, such as job0="5 Gbps"')
    rate_bps = with_option("--limit", parse_rate, rate)
    if rate_bps < 8:
        raise InputError(f"--limit {text!r}: no packet would pass; accepted: more than 8 bps")
    return job, rate_bps


@contextmanager
def _until_told_to_end() -> Iterator[threading.Event]:
    """Yield what Ctrl-C and SIGTERM set."""
    stopping = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stay(deployment: PlannedDeployment, targets: Sequence[RemoteSwitch]) -> None:
    """Keep the switches until Ctrl-C or SIGTERM."""
    from tensorexpress.control.deploy import keep
    from tensorexpress.control.report import event_line

    with _until_told_to_end() as stopping:
        keep(deployment, targets, lambda event: click.echo(event_line(event, deployment.schema)), stopping)


def _reroute(plan: Plan, targets: Sequence[RemoteSwitch], options: Options, settings: WatchSettings) -> None:
    """Keep routes as good as others' traffic lets them be, until Ctrl-C or SIGTERM."""
    from tensorexpress import p4
    from tensorexpress.control.deploy import Event
    from tensorexpress.control.messages import ProgramSchema
    from tensorexpress.control.report import event_line, rerouting_line
    from tensorexpress.control.watch import Rerouting, watch

    program = p4.load()
    schema = ProgramSchema.of(program)

    def report(happened: Event | Rerouting) -> None:
        click.echo(event_line(happened, schema) if isinstance(happened, Event) else rerouting_line(happened, plan))

    with _until_told_to_end() as stopping:
        watch(plan, targets, options, program, settings, report, stopping)
