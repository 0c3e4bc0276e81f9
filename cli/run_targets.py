"""What a plan can be run on, by the name that a command line gives it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tensorexpress.errors import InputError
from tensorexpress.program_engines import AUTO

if TYPE_CHECKING:
    from tensorexpress.target import Target

TARGETS = ("embedded", "bmv2", "linux")

wires_option = click.option(
    "--wires/--veth",
    default=None,
    help="embedded: UDP wires to hosts, or veth to namespaces.  [default: veth as root, else wires]",
)


def make_target(name: str, faults: str = "", wires: bool | None = None, engine: str = AUTO) -> Target:
    """Return the target that the command line names; what is only for another one is refused."""
    from tensorexpress.switch.faults import parse_faults

    injected = parse_faults(faults)
    if name == "embedded":
        from tensorexpress.target.embedded import EmbeddedTarget

        return EmbeddedTarget(wires=wires, faults=injected, engine=engine)
    if not injected.are_none or wires is not None:
        raise InputError(f"--faults, --wires and --veth are for the target embedded; found: {name}")
    if engine != AUTO:
        raise InputError(f"--engine is for the target embedded; found: {name}")
    if name == "bmv2":
        from tensorexpress.target.bmv2 import Bmv2Target

        return Bmv2Target()
    from tensorexpress.target.linux import LinuxTarget

    return LinuxTarget()
