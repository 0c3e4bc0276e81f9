"""Routes that follow what others send: ports' counters are read, routes planned again, and the difference written.

While routes change, a packet may go by old entries at one switch and by new ones at the next. So a change has three
steps, each on all switches before the next begins: what is new is added, what differs is changed, and when whatever was
under way has arrived, what nobody wants any more is taken away. `replan` sees to it that all of these go together.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TypeVar

from tensorexpress.cluster import Cluster
from tensorexpress.control.client import Connection, RemoteSwitch
from tensorexpress.control.deploy import Event, PlannedDeployment, check_room, prepare
from tensorexpress.control.intent import Options
from tensorexpress.control.mark import PortBytes, read_ports
from tensorexpress.control.messages import ProgramSchema
from tensorexpress.control.reconcile import Changes, difference, reconcile, write_changes
from tensorexpress.framing import FRAME_OVERHEAD_BYTES
from tensorexpress.p4 import P4Program
from tensorexpress.plan import Plan
from tensorexpress.replan import WORTH_IT, Replanned, places_of, replan
from tensorexpress.slots import round_trip_ps
from tensorexpress.units import PS_PER_SECOND

#: Loads are means over so many looks at counters: a burst between two of them is none of our business.
_LOOKS = 2

#: What is under way arrives within so many round trips, and in this time in any case.
_ROUND_TRIPS = 4
_LEAST_GRACE_S = 0.5

_Result = TypeVar("_Result")

#: By name of a switch.
Readings = Mapping[str, Mapping[int, PortBytes]]


@dataclass(frozen=True)
class WatchSettings:
    """When routes are planned again."""

    #: Seconds between two looks at counters.
    every_s: float = 1.0
    #: Part of a link's rate by which the load of others has to change.
    threshold: float = 0.1
    #: Part of the smallest rate that other routes have to gain.
    worth: float = WORTH_IT


@dataclass(frozen=True)
class Rerouting:
    """What was made of others' loads that had changed."""

    #: The directed link whose load changed most, what others send over it, and which part of its rate that is.
    link: int
    others_bps: float
    share: float
    found: Replanned
    #: Entries that were inserted, modified and deleted, on how many switches, and how long that took.
    written: tuple[int, int, int]
    switches: int
    seconds: float


def watch(
    plan: Plan,
    targets: Sequence[RemoteSwitch],
    options: Options,
    program: P4Program,
    settings: WatchSettings,
    report: Callable[[Event | Rerouting], None],
    stopping: threading.Event,
) -> Plan:
    """Deploy a plan, and give it other routes when others' loads change, until `stopping` is set; return the last one.

    A switch that cannot be reached, or has another primary, ends it: NetworkError.
    """
    replan(plan, {})  # says what cannot be planned again before anything is written
    names = [target.name for target in targets]
    deployment = prepare(plan, names, options, program)
    with ExitStack() as cleanup:
        connections = [cleanup.enter_context(Connection(target)) for target in targets]
        for connection in connections:
            connection.become_primary()

        def bring(connection: Connection) -> Changes:
            return reconcile(connection, program, deployment.schema, deployment.wanted[connection.target.name])

        for target, changes in zip(targets, _on_all(connections, bring), strict=True):
            report(Event(target, "primary", changes=changes))
        planned_for: dict[int, float] = {}
        places = places_of(plan)
        looks = deque([(time.monotonic(), _read(connections, plan, deployment.schema))], maxlen=_LOOKS + 1)
        while not stopping.wait(settings.every_s):
            looks.append((time.monotonic(), _read(connections, plan, deployment.schema)))
            if len(looks) <= _LOOKS:
                continue
            (first_s, first), (last_s, last) = looks[0], looks[-1]
            loads = others_bps(plan.scenario.cluster, first, last, last_s - first_s)
            link, share = most_changed(plan, planned_for, loads)
            if share <= settings.threshold:
                continue
            found = replan(plan, loads, worth=settings.worth, places=places)
            planned_for = dict(loads)
            places |= places_of(found.plan)
            started, written = time.monotonic(), dict[str, Changes]()
            if found.moved:
                after = prepare(found.plan, names, options, program)
                written = reroute(connections, deployment, after, grace_s(plan), stopping)
                plan, deployment = found.plan, after
                looks.clear()
            rate_bps = plan.scenario.directed().rate_bps[link]
            counts = _counts(written.values())
            seconds = time.monotonic() - started
            others = loads.get(link, 0.0)
            report(Rerouting(link, others, others / rate_bps, found, counts, len(written), seconds))
    return plan


def _on_all(connections: Sequence[Connection], act: Callable[[Connection], _Result]) -> list[_Result]:
    """Do the same on all switches at once."""
    with ThreadPoolExecutor(max_workers=len(connections)) as pool:
        return list(pool.map(act, connections))


def _read(connections: Sequence[Connection], plan: Plan, schema: ProgramSchema) -> Readings:
    def read(connection: Connection) -> Mapping[int, PortBytes]:
        return read_ports(connection, schema, plan.scenario.cluster.ports(connection.target.name))

    names = [connection.target.name for connection in connections]
    return dict(zip(names, _on_all(connections, read), strict=True))


def others_bps(cluster: Cluster, before: Readings, after: Readings, seconds: float) -> dict[int, float]:
    """Return what others have sent over directed links between two readings, in bit/s on the wire.

    Links of hosts to switches are not among them: no switch sends over these.
    """
    nothing, found = PortBytes(0, 0, 0, 0, 0), {}
    for switch, ports in after.items():
        for port, link in cluster.ports(switch).items():
            new, old = ports.get(port, nothing), before[switch].get(port, nothing)
            packets, octets = new.other_packets - old.other_packets, new.other_octets - old.other_octets
            if packets > 0:
                found[link] = 8 * (octets + FRAME_OVERHEAD_BYTES * packets) / seconds
    return found


def most_changed(plan: Plan, before: Mapping[int, float], after: Mapping[int, float]) -> tuple[int, float]:
    """Return the directed link whose load has changed by the largest part of its rate, and that part."""
    rates = plan.scenario.directed().rate_bps
    changed = {link: abs(after.get(link, 0.0) - before.get(link, 0.0)) / rates[link] for link in {*before, *after}}
    return max(changed.items(), key=lambda item: (item[1], -item[0]), default=(0, 0.0))


def grace_s(plan: Plan) -> float:
    """Return how long what is under way may take to arrive."""
    directed = plan.scenario.directed()
    trips = [round_trip_ps(tree, directed) / PS_PER_SECOND for job in plan.jobs for tree in job.sums]
    return max((_LEAST_GRACE_S, *(_ROUND_TRIPS * trip for trip in trips)))


def reroute(
    connections: Sequence[Connection],
    before: PlannedDeployment,
    after: PlannedDeployment,
    wait_s: float,
    stopping: threading.Event,
) -> dict[str, Changes]:
    """Bring switches from one deployment to another, no packet without a way; return what was written where.

    Whoever is asked to stop meanwhile still ends what was begun, without waiting.
    """
    schema, changes = after.schema, dict[str, Changes]()
    for connection in connections:
        name = connection.target.name
        changes[name] = difference(after.wanted[name], before.wanted[name])
        check_room(name, [*after.wanted[name], *changes[name].deleted], schema)
    for kind in ("inserted", "modified", "deleted"):
        if kind == "deleted":
            stopping.wait(wait_s)

        def write(connection: Connection, kind: str = kind) -> None:
            own = changes[connection.target.name]
            write_changes(connection, schema, replace(_NOTHING, **{kind: getattr(own, kind)}))

        _on_all(connections, write)
    return {name: own for name, own in changes.items() if not own.is_empty}


_NOTHING = Changes((), (), (), ())


def _counts(written: Iterable[Changes]) -> tuple[int, int, int]:
    each = [(len(changes.inserted), len(changes.modified), len(changes.deleted)) for changes in written]
    inserted, modified, deleted = map(sum, zip(*each, strict=True)) if each else (0, 0, 0)
    return inserted, modified, deleted
