"""Deploying a plan: what every switch is to hold, several switches at once, and a controller that stays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tensorexpress.control.client import Connection, ReceivedPacket, RemoteSwitch, Standing
from tensorexpress.control.controls import controls
from tensorexpress.control.entities import Entity, initial_entities
from tensorexpress.control.intent import Intent, Options
from tensorexpress.control.messages import ProgramSchema
from tensorexpress.control.reconcile import Changes, reconcile, rooms
from tensorexpress.errors import NetworkError, PlanError, TensorExpressError, unknown
from tensorexpress.p4 import P4Program
from tensorexpress.plan import Plan

#: Waiting times of a controller that lost its switch: the first, and the longest.
FIRST_RETRY_S = 0.5
LONGEST_RETRY_S = 10.0

#: A switch that says nothing for so long is asked whether it is still there.
HEARTBEAT_S = 5.0


@dataclass(frozen=True)
class PlannedDeployment:
    """What a plan puts on its switches, checked against the program before any switch is asked."""

    program: P4Program
    schema: ProgramSchema
    #: Name of a switch -> what it is to hold.
    wanted: dict[str, list[Entity]]


@dataclass(frozen=True)
class SwitchOutcome:
    """What became of one switch: what was changed, or why it could not be."""

    target: RemoteSwitch
    changes: Changes | None = None
    error: TensorExpressError | None = None


def prepare(plan: Plan, switches: Sequence[str], options: Options, program: P4Program) -> PlannedDeployment:
    """Return what some switches of a plan are to hold; PlanError when the program has no room or name for it."""
    known = plan.scenario.cluster.switches
    for switch in switches:
        if switch not in known:
            raise PlanError(unknown("switch", switch, known) if known else "the plan's cluster has no switch")
    schema = ProgramSchema.of(program)
    for control in controls():
        control.check(plan, options, schema)
    wanted = {switch: _completed(entries(Intent(plan, switch, options)), schema) for switch in switches}
    for switch, entities in wanted.items():
        check_room(switch, entities, schema)
        for entity in entities:
            entity.content(schema)
    return PlannedDeployment(program, schema, wanted)


def entries(intent: Intent) -> list[Entity]:
    """Return all that the controls want on one switch."""
    return [entity for control in controls() for entity in control.entries(intent)]


def _completed(entities: Sequence[Entity], schema: ProgramSchema) -> list[Entity]:
    """Add what the program itself begins with, such as default actions, where controls want nothing else."""
    chosen = {entity.identity for entity in entities}
    return [*(entity for entity in initial_entities(schema) if entity.identity not in chosen), *entities]


def check_room(switch: str, wanted: Sequence[Entity], schema: ProgramSchema) -> None:
    """Refuse more entries than a table holds."""
    for place, needed, room in rooms(wanted, schema):
        if needed > room:
            raise PlanError(
                f"{switch}: the plan needs {needed} entries in {place}; accepted: at most {room}, its size in the "
                "program; plan for fewer hosts, jobs or tensors"
            )


def deploy(
    deployment: PlannedDeployment, targets: Sequence[RemoteSwitch], *, dry_run: bool = False
) -> list[SwitchOutcome]:
    """Bring all switches to what they are to hold, at once; a switch that fails does not keep the others from it."""
    with ThreadPoolExecutor(max_workers=len(targets)) as pool:
        return list(pool.map(lambda target: _deploy_one(deployment, target, dry_run), targets))


def _deploy_one(deployment: PlannedDeployment, target: RemoteSwitch, dry_run: bool) -> SwitchOutcome:
    try:
        with Connection(target) as connection:
            if not dry_run:
                connection.become_primary()
            return SwitchOutcome(target, changes=_reconcile(deployment, connection, dry_run))
    except TensorExpressError as error:
        return SwitchOutcome(target, error=error)


def _reconcile(deployment: PlannedDeployment, connection: Connection, dry_run: bool = False) -> Changes:
    wanted = deployment.wanted[connection.target.name]
    return reconcile(connection, deployment.program, deployment.schema, wanted, dry_run=dry_run)


@dataclass(frozen=True)
class Event:
    """What happened to one switch of a controller that stays."""

    target: RemoteSwitch
    #: "primary" (with what was changed), "backup" (with who is primary), "lost" (with why) or "packet".
    kind: str
    changes: Changes | None = None
    standing: Standing | None = None
    error: TensorExpressError | None = None
    packet: ReceivedPacket | None = None


class Keeper:
    """Keeps one switch as it is to be: as primary, or as the backup that takes over; over restarts of the switch."""

    def __init__(self, deployment: PlannedDeployment, target: RemoteSwitch, report: Callable[[Event], None]):
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
                case ReceivedPacket() as packet:
                    self._report(Event(self.target, "packet", packet=packet))
                case None:
                    connection.check_alive()

    def _take(self, connection: Connection, standing: Standing) -> None:
        """Act on the part that the switch gave us."""
        changes = _reconcile(self._deployment, connection) if standing.is_primary else None
        self._retry_s = FIRST_RETRY_S
        self._report(Event(self.target, "primary" if changes else "backup", changes=changes, standing=standing))


def keep(
    deployment: PlannedDeployment,
    targets: Sequence[RemoteSwitch],
    report: Callable[[Event], None],
    stopping: threading.Event,
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


def failures(outcomes: Sequence[SwitchOutcome]) -> TensorExpressError | None:
    """Return one error for all switches that failed, or None."""
    errors = [outcome.error for outcome in outcomes if outcome.error is not None]
    if len(errors) <= 1:
        return errors[0] if errors else None
    return NetworkError(f"{len(errors)} of {len(outcomes)} switches failed: {'; '.join(map(str, errors))}")
