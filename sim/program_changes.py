"""What changes while a program is executed: rates of links, paces of workers, and the ways of flows and sums.

A change gives a value to one field of one thing at a time; whatever has begun ends as it began.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tensorexpress.paths import Paths
from tensorexpress.plan import Plan
from tensorexpress.sim.flows import Flows, Links, rows

#: Plans whose trees and paths hold from some times on, in order.
LaterPlans = Sequence[tuple[int, Plan]]

#: What changes: the rate of a link, the pace of a worker; the link of an adder to the one above, and which that is; the
#: link to a child of an adder, and which adder that is, by row of all children; the links of a flow, there and back.
RATE, PACE, UP, PARENT, CHILD_LINK, CHILD_BELOW, PATH, BACK = range(8)


class ProgramChange(NamedTuple):
    """From a time on, something of a thing has another value; the way of a flow is a row of all later ways."""

    time_ps: int
    what: int
    thing: int
    value: int


def later_ways(flows: Flows, first: int, later: Iterable[tuple[int, Paths]]) -> tuple[list[ProgramChange], list[Links]]:
    """Return when flows, from one on, get other ways, by the paths that hosts have from some times on."""
    changes, ways = list[ProgramChange](), list[Links]()
    current = list(flows.ways)
    for time_ps, paths in later:
        for flow in range(first, len(flows.ends)):
            _, src, dst = flows.ends[flow]
            there_and_back = paths.between(src, dst), paths.between(dst, src)
            for what, way, before in zip((PATH, BACK), there_and_back, current[flow], strict=True):
                if way != before:
                    changes.append(ProgramChange(time_ps, what, flow, len(ways)))
                    ways.append(way)
            current[flow] = there_and_back
    return changes, ways


def change_columns(changes: Sequence[ProgramChange], ways: Sequence[Links]) -> dict[str, Any]:
    """Return changes as columns of a program."""
    time_ps, what, thing, value = np.array(changes, dtype=np.int64).reshape(-1, 4).T
    way_start, way = rows(ways)
    return {
        "change_ps": time_ps,
        "change_what": what,
        "change_thing": thing,
        "change_value": value,
        "later_way_start": way_start,
        "later_way": way,
    }
