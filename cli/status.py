"""tensorexpress status: what switches hold and what they did."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tensorexpress.cli.options import NumberRange, check_outputs, write_json
from tensorexpress.cli.targets import read_targets, target_options
from tensorexpress.errors import InputError, NetworkError

if TYPE_CHECKING:
    from tensorexpress.control.client import RemoteSwitch
    from tensorexpress.control.status import Status


@click.command(short_help="Show what switches hold, and their packets by job and queue.")
@target_options
@click.option(
    "--dev", "device", metavar="NAME", help="Show an interface with queues of `deploy --target linux` instead."
)
@click.option("--plan", "plan_path", metavar="PLAN.json", help="The plan, for the names of its jobs.")
@click.option("--watch", type=NumberRange(min=0.1, max=86_400), metavar="SECONDS", help="Show it again and again.")
@click.option("--json", "json_path", metavar="FILE", help="Write it as JSON; - prints it instead of the tables.")
def status(
    switches: tuple[str, ...],
    device_ids: tuple[str, ...],
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    device: str | None,
    plan_path: str | None,
    watch: float | None,
    json_path: str | None,
) -> None:
    """Show the tables of switches, packets offered and served by job and queue, exceptions, and longest queues.

    \b
      tensorexpress status --switch s0 --plan plan.json --watch 1
      tensorexpress status --dev eth0

    With --dev: DSCPs, packets, drops and waiting packets of every queue of a Linux interface.
    """
    if watch is not None and json_path is not None:
        raise InputError("--watch does not go with --json; leave one of them out")
    check_outputs(json_path)
    if device is not None:
        beside = (("--switch", switches), ("--device-id", device_ids), ("--plan", plan_path), ("--tls-ca", tls_ca))
        for option, given in (*beside, ("--tls-cert", tls_cert), ("--tls-key", tls_key)):
            if given:
                raise InputError(
                    f"{option}: found with --dev, which shows an interface of Linux; leave one of them out"
                )
        _show_interface(device, watch, json_path)
        return
    targets = read_targets(switches, device_ids, tls_ca, tls_cert, tls_key)
    jobs = _job_names(plan_path)
    while True:
        found = _read_all(targets, jobs)
        if json_path is not None:
            from tensorexpress.control.report import status_json

            write_json(json_path, status_json(found))
        if json_path != "-":
            _show(found, clear=watch is not None and sys.stdout.isatty())
        if watch is None:
            break
        time.sleep(watch)
    errors = [one for one in found.values() if isinstance(one, str)]
    if errors:
        raise NetworkError("; ".join(errors))


def _show_interface(device: str, watch: float | None, json_path: str | None) -> None:
    """Show the queues of an interface, once or again and again."""
    from tensorexpress.cli.status_linux import interface_json, interface_table
    from tensorexpress.target.linux_device import read_state

    while True:
        state = read_state(device)
        if json_path is not None:
            write_json(json_path, interface_json(device, state))
        if json_path != "-":
            if watch is not None and sys.stdout.isatty():
                click.clear()
            click.echo(interface_table(device, state))
        if watch is None:
            return
        time.sleep(watch)


def _job_names(plan_path: str | None) -> list[str]:
    from tensorexpress.plan_file import read_plan

    return [job.job.name for job in read_plan(plan_path).jobs] if plan_path is not None else []


def _read_all(targets: Sequence[RemoteSwitch], jobs: Sequence[str]) -> dict[RemoteSwitch, Status | str]:
    """Return the status of every switch, or why there is none."""
    from tensorexpress import p4
    from tensorexpress.control.client import Connection
    from tensorexpress.control.messages import ProgramSchema
    from tensorexpress.control.status import read_status

    program = p4.load()
    schema = ProgramSchema.of(program)
    found: dict[RemoteSwitch, Status | str] = {}
    for target in targets:
        try:
            with Connection(target) as connection:
                found[target] = read_status(connection, program, schema, jobs)
        except NetworkError as error:
            found[target] = str(error)
    return found


def _show(found: dict[RemoteSwitch, Status | str], *, clear: bool) -> None:
    from tensorexpress.control.report import status_table

    if clear:
        click.clear()
    blocks = [f"{target}\n{status_table(one)}" for target, one in found.items() if not isinstance(one, str)]
    if blocks:
        click.echo("\n\n".join(blocks))
