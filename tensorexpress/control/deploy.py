"""Deploying a plan: what every switch is to hold, several switches at once, and a controller that stays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tensorexpress.control import classify, forward, guard, mark
from tensorexpress.control.client import Connection, PacketIn, Standing, Target
from tensorexpress.control.entries import Entity
from tensorexpress.control.intent import Intent, Options
from tensorexpress.control.limits import check_plan, check_room
from tensorexpress.control.messages import Schema, parse_p4info
from tensorexpress.control.reconcile import Changes, reconcile
from tensorexpress.errors import NetworkError, PlanError, TensorExpressError, unknown
from tensorexpress.p4 import Program
from tensorexpress.plan import Plan

#: One module for each control of the P4 program, by the same name.
CONTROLS = (guard, forward, classify, mark)

#: Waiting times of a controller that lost its switch: the first, and the longest.
FIRST_RETRY_S = 0.5
LONGEST_RETRY_S = 10.0

#: A switch that says nothing for so long is asked whether it is still there.
HEARTBEAT_S = 5.0


@dataclass(frozen=True)
class Deployment:
    """What a plan puts on its switches, checked against the program before any switch is asked."""

    program: Program
    schema: Schema
    #: Name of a switch -> what it is to hold.
    wanted: dict[str, list[Entity]]


@dataclass(frozen=True)
class Outcome:
    """What became of one switch: what was changed, or why it could not be."""

    target: Target
    changes: Changes | None = None
    error: TensorExpressError | None = None


def prepare(plan: Plan, switches: Sequence[str], options: Options, program: Program) -> Deployment:
    """Return what some switches of a plan are to hold; PlanError when the program has no room or name for it."""
    known = plan.scenario.cluster.switches
    for switch in switches:
        if switch not in known:
            raise PlanError(unknown("switch", switch, known) if known else "the plan's cluster has no switch")
    schema = Schema(parse_p4info(program.p4info))
    check_plan(plan, options, schema)
    wanted = {switch: entries(Intent(plan, switch, options)) for switch in switches}
    for switch, entities in wanted.items():
        check_room(switch, entities, schema)
        for entity in entities:
            schema.to_message(entity)
    return Deployment(program, schema, wanted)


def entries(intent: Intent) -> list[Entity]:
    """Return all that one switch is to hold."""
    return [entity for control in CONTROLS for entity in control.entries(intent)]


def deploy(deployment: Deployment, targets: Sequence[Target], *, dry_run: bool = False) -> list[Outcome]:
    """Bring all switches to what they are to hold, at once; a switch that fails does not keep the others from it."""
    with ThreadPoolExecutor(max_workers=len(targets)) as pool:
        return list(pool.map(lambda target: _deploy_one(deployment, target, dry_run), targets))


def _deploy_one(deployment: Deployment, target: Target, dry_run: bool) -> Outcome:
    try:
        with Connection(target) as connection:
            if not dry_run:
                connection.become_primary()
            return Outcome(target, changes=_reconcile(deployment, connection, dry_run))
    except TensorExpressError as error:
        return Outcome(target, error=error)


def _reconcile(deployment: Deployment, connection: Connection, dry_run: bool = False) -> Changes:
    wanted = deployment.wanted[connection.target.name]
    return reconcile(connection, deployment.program, deployment.schema, wanted, dry_run=dry_run)


@dataclass(frozen=True)
class Event:
    """What happened to one switch of a controller that stays."""

    target: Target
    #: "primary" (with what was changed), "backup" (with who is primary), "lost" (with why) or "packet".
    kind: str
    changes: Changes | None = None
    standing: Standing | None = None
    error: TensorExpressError | None = None
    packet: PacketIn | None = None


class Keeper:
    """Keeps one switch as it is to be: as primary, or as the backup that takes over; over restarts of the switch."""

    def __init__(self, deployment: Deployment, target: Target, report: Callable[[Event], None]):
        self._deployment = deployment
        self.target = target
        self._report = report
        self._stopping = threading.Event()
        self._connection: Connection | None = None
        self._lock = threading.Lock()
        self._retry_s = FIRST_RETRY_S

    def run(self) -> None:
        """Keep the switch until `stop` is called."""
        while not self._stopping.is_set():
            try:
                with Connection(self.target) as connection:
                    self._use(connection)
                    self._keep(connection)
            except TensorExpressError as error:
                self._report(Event(self.target, "lost", error=error))
                self._stopping.wait(self._retry_s)
                self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_S)
            finally:
                self._use(None)

    def stop(self) -> None:
        """Let `run` return, from another thread."""
        self._stopping.set()
        with self._lock:
            if self._connection is not None:
                self._connection.wake()

    def _use(self, connection: Connection | None) -> None:
        """Say which connection `stop` has to wake."""
        with self._lock:
            self._connection = connection

    def _keep(self, connection: Connection) -> None:
        self._take(connection, connection.arbitrate())
        while not self._stopping.is_set():
            match connection.listen(HEARTBEAT_S):
                case Standing() as standing:
                    self._take(connection, connection.arbitrate() if standing.is_vacant else standing)
                case PacketIn() as packet:
                    self._report(Event(self.target, "packet", packet=packet))
                case None:
                    connection.check_alive()

    def _take(self, connection: Connection, standing: Standing) -> None:
        """Act on the part that the switch gave us."""
        changes = _reconcile(self._deployment, connection) if standing.is_primary else None
        self._retry_s = FIRST_RETRY_S
        self._report(Event(self.target, "primary" if changes else "backup", changes=changes, standing=standing))


def keep(
    deployment: Deployment, targets: Sequence[Target], report: Callable[[Event], None], stopping: threading.Event
) -> None:
    """Keep all switches as they are to be until `stopping` is set."""
    keepers = [Keeper(deployment, target, report) for target in targets]
    threads = [threading.Thread(target=keeper.run, name=f"keeper of {keeper.target}") for keeper in keepers]
    for thread in threads:
        thread.start()
    try:
        stopping.wait()
    finally:
        for keeper in keepers:
            keeper.stop()
        for thread in threads:
            thread.join()


def failures(outcomes: Sequence[Outcome]) -> TensorExpressError | None:
    """Return one error for all switches that failed, or None."""
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    if len(errors) <= 1:
        return errors[0] if errors else None
    return NetworkError(f"{len(errors)} of {len(outcomes)} switches failed: {'; '.join(map(str, errors))}")
