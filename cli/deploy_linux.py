"""tensorexpress deploy --target linux: the queues of a plan on an interface of this machine."""

from __future__ import annotations

import shlex

import click

from tensorexpress.cli.linux_options import host_rate
from tensorexpress.cli.options import check_outputs, write_json
from tensorexpress.errors import InputError

#: Options of deploy that say something to an interface; all others are for P4 switches.
_ACCEPTED = {"plan_path", "target", "device", "rate", "remove", "dry_run", "json_path"}
#: Options that say nothing to a P4 switch.
_LINUX_ALONE = {"device", "rate", "remove"}


def check_options(context: click.Context, target: str) -> None:
    """Refuse options that belong to the other target: ignored, they would seem to have been heard."""
    for option in context.command.params:
        given = context.get_parameter_source(option.name or "") is click.core.ParameterSource.COMMANDLINE
        other = "linux" if target == "p4" else "p4"
        misplaced = option.name in _LINUX_ALONE if target == "p4" else option.name not in _ACCEPTED
        if given and misplaced:
            raise InputError(f"{option.opts[0]} goes with --target {other}, and this is {target}; leave it out")


def deploy_linux(
    plan_path: str, device: str | None, rate: str | None, *, remove: bool, dry_run: bool, json_path: str | None
) -> None:
    """Set up or take away the queues of an interface, and show the commands for it."""
    from tensorexpress import tc
    from tensorexpress.plan_file import read_plan
    from tensorexpress.target.linux_device import set_up, take_away

    if device is None:
        raise InputError("--target linux needs an interface; give --dev NAME, such as --dev eth0")
    check_outputs(json_path)
    plan = read_plan(plan_path)
    egress = tc.egress_of(plan, host_rate(plan, rate))
    commands = tc.remove(device) if remove else tc.setup(device, egress)
    done = True
    if not dry_run:
        done = take_away(device) if remove else set_up(device, egress)
    if json_path is not None:
        write_json(json_path, {"device": device, "dry_run": dry_run, "done": done, "commands": commands})
    if json_path == "-":
        return
    if dry_run:
        click.echo("\n".join(map(shlex.join, commands)))
    elif not done and remove:
        click.echo(f"{device}: has no queues of tensorexpress; nothing to remove")
    elif not done:
        click.echo(f"{device}: unchanged; {tc.summary(egress)}")
    else:
        click.echo(f"{device}: queues removed" if remove else f"{device}: {tc.summary(egress)}")
