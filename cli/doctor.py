"""tensorexpress doctor: what this machine and switches can do, and what to do about what they cannot."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tensorexpress.cli.options import check_outputs, write_json
from tensorexpress.cli.targets import read_targets, target_options
from tensorexpress.doctor import Finding, as_json, check_machine, report

if TYPE_CHECKING:
    from tensorexpress.control.client import RemoteSwitch


@click.command(short_help="Say what this machine and switches can do, and what to do about problems.")
@target_options
@click.option("--take-over", is_flag=True, help="Probe queues even if that takes the switch from its controller.")
@click.option("--json", "json_path", metavar="FILE", help="Write findings as JSON; - prints it instead of the tables.")
def doctor(
    switches: tuple[str, ...],
    device_ids: tuple[str, ...],
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    take_over: bool,
    json_path: str | None,
) -> None:
    """Look at this machine, and at every switch named, without changing either.

    The exit status is 1 when a switch has a problem. What this machine lacks may not be needed, and is status 0.

    \b
      tensorexpress doctor
      tensorexpress doctor --switch s0
    """
    check_outputs(json_path)
    targets = read_targets(switches, device_ids, tls_ca, tls_cert, tls_key) if switches else []
    machine = check_machine()
    found = _check_switches(targets, take_over)
    if json_path is not None:
        write_json(json_path, as_json(machine, {target.name: findings for target, findings in found.items()}))
    if json_path != "-":
        tables = [report("this machine", machine), *(report(str(target), each) for target, each in found.items())]
        click.echo("\n\n".join(tables))
    if any(finding.state == "problem" for findings in found.values() for finding in findings):
        sys.exit(1)


def _check_switches(targets: Sequence[RemoteSwitch], take_over: bool) -> dict[RemoteSwitch, list[Finding]]:
    if not targets:
        return {}
    from tensorexpress import p4
    from tensorexpress.control.probe import check_switch

    program = p4.load()
    return {target: check_switch(target, program, take_over=take_over) for target in targets}
