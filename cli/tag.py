"""tensorexpress tag: mark packets of programs that know nothing of it, by port, process or cgroup."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tensorexpress.cli.options import check_outputs, write_json
from tensorexpress.errors import InputError
from tensorexpress.units import counted

if TYPE_CHECKING:
    from tensorexpress.target.tag_program import TagRule

#: "5000", "5000-5010", "5000-5010=40", "5000=q1".
_PORT = re.compile(r"(?P<low>[0-9]{1,5})(-(?P<high>[0-9]{1,5}))?(=(?P<queue>q?)(?P<number>[0-9]{1,2}))?")

_ALL_PORTS = "1-65535"


@click.command(short_help="Mark packets of programs that know nothing of it, by port, process or cgroup.")
@click.option("--dev", "device", metavar="NAME", help="Tag what leaves by this interface, such as eth0.")
@click.option("--cgroup", metavar="PATH", help="Of that, only what processes of this cgroup, or below it, send.")
@click.option("--pid", type=click.IntRange(min=1), help="Tag the sockets that this process has open now.")
@click.option(
    "--port",
    "ports",
    metavar="LOW[-HIGH][=DSCP|=qN]",
    multiple=True,
    help="From or to these ports alone, with a DSCP or queue of their own; repeated, the first that fits counts.",
)
@click.option("--dscp", type=click.IntRange(0, 63), help="The DSCP of all that has none of its own.")
@click.option("--queue", type=click.IntRange(min=0), help="The same by a queue of --plan; 0 is the most urgent.")
@click.option("--plan", "plan_path", metavar="FILE", help="The plan whose queues have DSCPs.")
@click.option("--remove", is_flag=True, help="Tag no more: what --dev had, or the sockets of --pid.")
@click.option("--json", "json_path", metavar="FILE", help="Write what was done as JSON; - prints it instead.")
def tag(
    device: str | None,
    cgroup: str | None,
    pid: int | None,
    ports: tuple[str, ...],
    dscp: int | None,
    queue: int | None,
    plan_path: str | None,
    remove: bool,
    json_path: str | None,
) -> None:
    """Mark the packets of a program that is there already with the DSCP of a queue.

    At an interface (--dev) a small program in the kernel writes the DSCP into packets, by port and by the sender's
    cgroup, before the interface's queues see them; it stays until --remove. Of a process (--pid) the sockets that are
    open get the DSCP as an option. NCCL over InfiniBand or RoCE passes by both: there NCCL_IB_TC is what counts.

    \b
      tensorexpress tag --dev eth0 --port 29400-29500 --dscp 40
      tensorexpress tag --dev eth0 --cgroup /training.slice --plan plan.json --queue 0
      tensorexpress tag --dev eth0 --plan plan.json --port 5001=q0 --port 5002-5009=q3
      tensorexpress tag --pid 4711 --dscp 40
      tensorexpress tag --dev eth0 --remove
    """
    check_outputs(json_path)
    if (device is None) == (pid is None):
        raise InputError("tag needs --dev NAME or --pid PID, and not both")
    if cgroup is not None and device is None:
        raise InputError("--cgroup goes with --dev: packets are told apart where they leave; give --dev NAME, too")
    if remove and (dscp is not None or queue is not None or plan_path is not None or cgroup is not None):
        raise InputError("--remove takes tags away; leave out --dscp, --queue, --plan and --cgroup")
    if remove and device is not None and ports:
        raise InputError("--remove takes all tags of an interface away; leave out --port")
    rules = _rules(ports, 0 if remove else _default_dscp(dscp, queue, plan_path), plan_path, named=cgroup or pid)
    if device is not None:
        said, document = _at_interface(device, rules, cgroup, remove=remove)
    else:
        assert pid is not None, "one of the two is given"
        said, document = _at_process(pid, rules, remove=remove)
    if json_path is not None:
        write_json(json_path, document)
    if json_path != "-":
        click.echo(said)


def _at_interface(device: str, rules: Sequence[TagRule], cgroup: str | None, *, remove: bool) -> tuple[str, object]:
    from tensorexpress.target.tag_program import find_cgroup, tag_interface, untag_interface

    if remove:
        was_there = untag_interface(device)
        said = "tags removed" if was_there else "has no tags of tensorexpress; nothing to remove"
        return f"{device}: {said}", {"device": device, "removed": was_there}
    tag_interface(device, rules, find_cgroup(cgroup) if cgroup is not None else None)
    of_whom = f" of {cgroup}" if cgroup is not None else ""
    rows = [{"low": rule.low, "high": rule.high, "dscp": rule.dscp} for rule in rules]
    return f"{device}: tags packets{of_whom} with {_in_words(rules)}", {
        "device": device,
        "cgroup": cgroup,
        "rules": rows,
    }


def _at_process(pid: int, rules: Sequence[TagRule], *, remove: bool) -> tuple[str, object]:
    from tensorexpress.target.tagged_sockets import tag_process, untag_process

    done = (untag_process if remove else tag_process)(pid, rules)
    words = counted(len(done), "socket")
    said = f"{words} made best effort" if remove else f"{words} tagged with {_in_words(rules)}"
    return f"process {pid}: {said}", {"pid": pid, "sockets": [vars(each) for each in done]}


def _in_words(rules: Sequence[TagRule]) -> str:
    def ports(rule: TagRule) -> str:
        if (rule.low, rule.high) == (1, 65535):
            return "all ports"
        return f"port {rule.low}" if rule.low == rule.high else f"ports {rule.low}-{rule.high}"

    return ", ".join(f"DSCP {rule.dscp} for {ports(rule)}" for rule in rules)


def _default_dscp(dscp: int | None, queue: int | None, plan_path: str | None) -> int | None:
    """Return the DSCP of what has none of its own, None if it must have one."""
    if dscp is not None and queue is not None:
        raise InputError("--dscp and --queue both say how urgent it is; accepted: one of the two")
    return dscp if queue is None else _dscp_of(queue, plan_path, "--queue")


def _dscp_of(queue: int, plan_path: str | None, option: str) -> int:
    from tensorexpress.plan_file import read_plan
    from tensorexpress.tc import dscps_of

    if plan_path is None:
        raise InputError(f"{option}: a queue is that of a plan; give --plan FILE, or a DSCP")
    dscps = dscps_of(read_plan(plan_path))
    if queue >= len(dscps):
        raise InputError(f"{option}: found queue {queue}; accepted: 0 to {len(dscps) - 1}, which {plan_path} has")
    return dscps[queue]


def _rules(ports: Sequence[str], default: int | None, plan_path: str | None, *, named: object) -> list[TagRule]:
    from tensorexpress.target.tag_program import TagRule

    rules = []
    for text in ports or ([_ALL_PORTS] if named or default == 0 else []):
        option, found = f"--port {text}", _PORT.fullmatch(text)
        if found is None:
            raise InputError(f"{option}: accepted: LOW[-HIGH], with =DSCP or =qQUEUE behind it, such as 29400-29500=40")
        dscp = default
        if found["number"] is not None:
            number = int(found["number"])
            dscp = _dscp_of(number, plan_path, option) if found["queue"] else number
        if dscp is None:
            raise InputError(
                f"{option if ports else 'tag'}: how urgent is not said; give --dscp, or --plan and --queue"
            )
        try:
            rules.append(TagRule(int(found["low"]), int(found["high"] or found["low"]), dscp))
        except InputError as error:
            raise InputError(f"{option}: {error}") from None
    if not rules:
        raise InputError("tag: an interface has packets of everybody; say which with --port, --cgroup or both")
    return rules
