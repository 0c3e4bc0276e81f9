"""What P4Info declares, by kind, name and id."""

from __future__ import annotations

import enum
from typing import Any


class P4Type(enum.Enum):
    """What a program may declare, and the field of P4Info that lists it."""

    table = "tables"
    action = "actions"
    action_profile = "action_profiles"
    counter = "counters"
    direct_counter = "direct_counters"
    meter = "meters"
    direct_meter = "direct_meters"
    register = "registers"
    controller_packet_metadata = "controller_packet_metadata"
    digest = "digests"


class Declarations:
    """All that a P4Info declares."""

    def __init__(self, p4info: Any):
        self._p4info = p4info
        #: Id -> what has it.
        self.by_id = {one.preamble.id: one for kind in P4Type for one in self.of_kind(kind)}
        self._by_name = {(kind, short(one.preamble.name)): one for kind in P4Type for one in self.of_kind(kind)}

    def of_kind(self, kind: P4Type) -> Any:
        """Return all of a kind, in the order of the program."""
        return getattr(self._p4info, kind.value)

    def find(self, kind: P4Type, name: str) -> Any | None:
        """Return what has this name, which lacks the outermost control."""
        return self._by_name.get((kind, name))


def short(name: str) -> str:
    """Return a name without the outermost control.

    >>> short("TensorIngress.forward.l2"), short("NoAction")
    ('forward.l2', 'NoAction')
    """
    return name.partition(".")[2] or name
