"""The whole switch on a clock that its caller moves: pipeline, replication, queues and links as in simple_switch.

A packet passes the ingress pipeline when it arrives and the egress pipeline when its turn on the link comes. Its frame
is handed to `transmit` when the last bit has left. Nothing here reads a clock: the same calls give the same frames at
the same picoseconds.
"""

from __future__ import annotations

import heapq
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from tensorexpress.errors import InputError
from tensorexpress.p4.define import CPU_PORT
from tensorexpress.program_engines import PYTHON
from tensorexpress.switch.configuration import Configuration, LoadedProgram
from tensorexpress.switch.copies import clone_of, next_pass, replica_of
from tensorexpress.switch.counted import (
    ALLOWANCE,
    BUFFER_FULL,
    EGRESS_DROP,
    FAILED,
    INGRESS_DROP,
    LOOP,
    NO_GROUP,
    NO_MEMORY,
    NO_PORT,
    NO_PROGRAM,
    NO_QUEUE,
    NO_SESSION,
    RELOADED,
    TOO_MANY_ROUNDS,
    CountedPort,
    Statistics,
)
from tensorexpress.switch.emulated_cable import CableSettings
from tensorexpress.switch.operations import (
    CpuFrame,
    Digest,
    Entry,
    IdleEntry,
    Notice,
    Operation,
    Query,
    SetCloneSession,
)
from tensorexpress.switch.packed import PortFrame
from tensorexpress.switch.packet import (
    DROP_PORT,
    EGRESS_CLONE,
    INGRESS_CLONE,
    NORMAL,
    RECIRCULATED,
    REPLICATED,
    RESUBMITTED,
    EndlessLoop,
    SwitchPacket,
)
from tensorexpress.switch.ports import FramePort
from tensorexpress.switch.program.budgets import (
    COPIES_AT_ONCE,
    COPIES_IN_TURN,
    LARGEST_PORT,
    MOST_PASSES,
    MOST_PORTS,
    MOST_WAITING,
    PLAIN_MEMORY,
    TURN_PS,
    SwitchMemory,
)
from tensorexpress.switch.program.compiled import CompiledProgram, compile_program
from tensorexpress.switch.program.engines import make_pipeline
from tensorexpress.switch.traffic import PortSettings
from tensorexpress.switch.waiting import WaitingMemory

logger = logging.getLogger(__name__)

PS_PER_NS, PS_PER_US = 10**3, 10**6

#: How often entries are looked at for idle timeouts, and at how many without a break.
IDLE_CHECK_PS = 10**11
_IDLE_CHECKS = 128

#: What ports are that nobody says anything of.
PLAIN = PortSettings()

#: The number of the one port that stands for all numbers that no port has; packets that go round leave there.
NOWHERE = -1

#: Where copies of a packet go: ports and replication ids.
Replicas = tuple[tuple[int, int], ...]


class Switch:
    """A switch without a clock and without sockets; implements `operations.DataPath`, and does everything at once.

    `transmit(port, frame, time_ps)` is called for every frame whose last bit leaves, `notify(notice)` for whatever the
    controller is to know. `ports` gives the settings of every port there is; None makes any port exist with the
    `default` settings, up to `MOST_PORTS` of them. The CPU port is always there, with as many queues as the others and
    no rate.
    """

    def __init__(
        self,
        transmit: Callable[[int, bytes, int], None],
        notify: Callable[[Notice], None] = lambda notice: None,
        *,
        ports: Mapping[int, PortSettings] | None = None,
        default: PortSettings = PLAIN,
        cpu_port: int | None = CPU_PORT,
        program: LoadedProgram | None = None,
        engine: str = PYTHON,
        memory: SwitchMemory = PLAIN_MEMORY,
    ):
        self._transmit = transmit
        self._notify = notify
        self._cpu_port = cpu_port
        self._engine = engine
        self._budget = memory
        #: Packets that Python keeps.
        self._waiting = WaitingMemory(self._python_packets_bytes)
        self._default = default
        self._any_port = ports is None
        #: Packets may choose any number, so one counter is kept for all that no port has.
        self._nowhere = CountedPort(NOWHERE, PLAIN, attached=False)
        self._ports = {number: self._attach(number, settings) for number, settings in (ports or {}).items()}
        if cpu_port is not None:
            # Like the other ports, so that a controller can find out with a packet of its own which queues there are.
            fewest = min((ports or {0: default}).values(), key=lambda settings: settings.queues, default=default)
            self._ports[cpu_port] = CountedPort(cpu_port, replace(fewest, rate_bps=None, lowest_share=0), attached=True)
        self._use(Configuration(program))
        self._departures: list[tuple[int, int]] = []
        #: Packets that egress made, with where they go; an empty tuple sends one through ingress again.
        self._again: deque[tuple[SwitchPacket, Replicas]] = deque()
        #: Whether they are being handled, and whether the next turn of those that are left is a departure to come.
        self._is_going_round = self._has_turn = False
        self._failures: Counter[str] = Counter()
        self._now_ps = 0
        self._idle_check_ps = IDLE_CHECK_PS
        self._idle_check: Iterator[Entry | None] = iter(())

    @property
    def _python_packets_bytes(self) -> int:
        """Bytes of packets that Python may keep."""
        return self._budget.packets_bytes

    def _attach(self, number: int, settings: PortSettings) -> CountedPort:
        """Return a port that something is connected to."""
        return CountedPort(number, settings, attached=True)

    def set_rate(self, port: int, rate_bps: int) -> None:
        """Give the link of a port that has a rate another one; a frame under way ends at the rate it started with."""
        if port not in self._ports or self._ports[port].unlimited:
            raise InputError(f"port {port} has no rate that could change; accepted: a port that was given one")
        self._ports[port].set_rate(rate_bps)

    # The data path.

    def receive(self, port: int, frame: bytes, now_ps: int) -> None:
        """Let a frame arrive whose last bit is there at `now_ps`, after everything that leaves until then."""
        departures = self._departures
        if departures and departures[0][0] <= now_ps:
            self.advance(now_ps)
        arrival = self._ports.get(port) or self._new_port(port)
        arrival.rx_frames += 1
        arrival.rx_bytes += len(frame)
        self._now_ps = now_ps
        self._enter(SwitchPacket(frame, port, now_ps // PS_PER_US), now_ps)
        if self._again:
            self._go_round(now_ps)

    def receive_many(self, arrivals: Sequence[PortFrame]) -> None:
        """Let frames arrive, in order of time; native code takes `PackedFrames` as they are, without copying any."""
        for port, frame, now_ps in arrivals:
            self.advance(now_ps)
            self.receive(port, frame, now_ps)

    def transmit_many(self, take: Callable[[Sequence[PortFrame]], None]) -> None:
        """Have frames handed over together from now on, in order, instead of one by one to `transmit`.

        Those of native code are `PackedFrames` in memory that others get when `take` returns. It must not let frames
        arrive here.
        """
        self._transmit = lambda port, frame, time_ps: take([(port, frame, time_ps)])

    def send_directly(self, descriptors: Mapping[int, int]) -> None:
        """Know the sockets that take the frames of ports, for who can do without `transmit`: native code."""

    def capture_directly(self, take: Callable[[int, str, memoryview], object], clock_ns: Callable[[], int]) -> bool:
        """Have native code write down what it takes from sockets and sends to them, as records of capture files.

        `take(port, direction, records)` gets them whenever `empty_captures` is called, and when there is no room for
        more; `clock_ns` tells the time of records. False where nobody can do so.
        """
        return False

    @property
    def captures_are_full(self) -> bool:
        """Whether so many records wait to be taken that it is time for `empty_captures`."""
        return False

    def empty_captures(self) -> None:
        """Have all records taken that were written down."""

    def end_captures(self) -> None:
        """Write nothing down any more; what was not taken is forgotten."""

    def watch(self, ports: Mapping[int, FramePort], descriptor: int) -> bool:
        """Know what `forward` is to wait for, after `send_directly`; False where it cannot take frames of all ports."""
        return False

    def count_from(self, started_ns: int) -> None:
        """Know at which time of the system's monotonic clock all times are zero."""

    def lay_cables(self, cables: Mapping[int, CableSettings], ports: Mapping[int, FramePort]) -> bool:
        """Keep what is under way on cables; False where somebody else has to."""
        return False

    def hold_from(self, number: int, port: FramePort, now_ns: int) -> bool:
        """Let a batch of the frames that a port has set out on their way to it; False where they are not kept here.

        Those that do not say when they were sent set out now, by the system's monotonic clock.
        """
        return False

    def hold_leaving(self, number: int, frame: bytes, time_ps: int) -> bool:
        """Let a frame set out from a port that left it at a time; False where such frames are not kept here."""
        return False

    def forward(self, until_ns: int, clock_ns: int) -> None:
        """Take frames and send them on time until a time, or until there is word on the descriptor of `watch`.

        Times are those of the system's monotonic clock; that of captures is ahead of it by `clock_ns`.
        """

    def take_from(self, number: int, port: FramePort, now_ps: int) -> bool:
        """Let a batch of the frames arrive that a port has; False where they are to be handed over one by one."""
        return False

    def advance(self, now_ps: int) -> None:
        """Let everything leave that is due until `now_ps`, each frame at its own time."""
        self._let_leave(now_ps)
        self._now_ps = now_ps
        if now_ps >= self._idle_check_ps or self.is_checking:
            self._report_idle_entries(now_ps)

    def _let_leave(self, now_ps: int) -> None:
        departures = self._departures
        while departures and departures[0][0] <= now_ps:
            time_ps, number = heapq.heappop(departures)
            if number == NOWHERE:
                self._take_turn(time_ps)
            else:
                self._depart(self._ports[number], time_ps)

    def _depart(self, port: CountedPort, time_ps: int) -> None:
        """Let the frame on a link leave, and the next one start."""
        frame = port.in_flight
        port.in_flight = None
        self._now_ps = time_ps
        if frame is not None:
            self._send(port, frame, time_ps)
        self._serve(port, time_ps)
        if self._again:
            self._go_round(time_ps)

    def next_event_ps(self) -> int | None:
        """Return when the next frame leaves; None while nothing is on a link."""
        return self._departures[0][0] if self._departures else None

    def statistics(self) -> Statistics:
        """Return the counters of every port, as they are now."""
        ports = {number: port.statistics() for number, port in sorted(self._ports.items())}
        return Statistics(ports, dict(self._nowhere.drops), dict(self._failures))

    def count_drop(self, number: int, reason: str) -> None:
        """Count a packet that was dropped at a port."""
        self._drop(number, reason, 1)

    def _drop(self, number: int, reason: str, count: int) -> None:
        port = self._ports.get(number) or self._new_port(number)
        port.drops[reason] += count

    # What the controller asks for.

    def load(self, document: bytes, operations: Sequence[Operation] = ()) -> None:
        """Replace the program and all of its state; ProgramError, with nothing changed, if it cannot run."""
        configuration = self.prepare(document)
        for operation in operations:
            configuration.apply(operation)
        self.switch_over(configuration)

    def prepare(self, program: bytes | CompiledProgram) -> Configuration:
        """Return a program that packets do not pass yet, for operations to be done before they do."""
        compiled = compile_program(program, self._engine) if isinstance(program, bytes) else program
        if compiled.not_native:
            logger.warning("the program runs in Python, not in native code: %s", compiled.not_native)
        self._budget.check_program(compiled.arrays)
        pipeline = make_pipeline(compiled)
        if isinstance(program, bytes):
            for entry in compiled.entries:
                pipeline.apply(entry)
        pipeline.idle_entries(self._now_ps // PS_PER_US)  # no entry is there yet, but its clock is set
        return Configuration(pipeline)

    def switch_over(self, configuration: Configuration) -> Configuration:
        """Let packets pass another program from now on and return the old one; packets in queues are dropped."""
        self._empty_queues()
        replaced = self.configuration
        self._use(configuration)
        return replaced

    def swap(self, program: CompiledProgram) -> None:
        """Let packets pass other machine code of the program that is there from now on; all else stays as it is."""
        if self._program is not None:
            self._program.swap(program)
            self._use_code()

    def _use_code(self) -> None:
        """Know where the machine code of the program is, for who calls it without Python."""

    def _empty_queues(self) -> None:
        """Drop the packets that a program which is replaced has made."""
        for packet, replicas in self._again:
            self._waiting.give_back(packet)
            self._drop(packet.ingress_port, RELOADED, len(replicas) or 1)
        self._again.clear()
        for port in self._ports.values():
            while (waited := port.dequeue(0)) is not None:
                self._waiting.give_back(waited)
                port.drops[RELOADED] += 1

    def _use(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self._program = configuration.program
        self._groups = configuration.groups
        self._sessions = configuration.sessions
        self._waiting.state_bytes = self._program.state_bytes if self._program is not None else 0
        self.is_checking = False

    def apply(self, operations: Sequence[Operation], *, atomic: bool = False) -> None:
        """Do all of them between two packets."""
        for operation in operations:
            self.configuration.apply(operation)

    def ask(self, queries: Sequence[Query]) -> list[list[Any]]:
        """Return the answer to every query, all of one instant."""
        return [list(self.configuration.ask(query)) for query in queries]

    def packet_out(self, frame: bytes) -> None:
        """Let a frame, header of the controller included, enter at the CPU port now."""
        if self._cpu_port is not None:
            self.receive(self._cpu_port, frame, self._now_ps)

    # From arrival to queue.

    def _enter(self, packet: SwitchPacket, now_ps: int) -> None:
        """Take a packet through ingress, again as long as it is resubmitted, and on to where ingress sends it."""
        program = self._program
        if program is None:
            self.count_drop(packet.ingress_port, NO_PROGRAM)
            return
        self._pass_ingress(program, packet, now_ps, program.ingress)

    def _pass_ingress(
        self, program: LoadedProgram, packet: SwitchPacket, now_ps: int, ingress: Callable[[SwitchPacket], None]
    ) -> None:
        arrival = packet.ingress_port
        try:
            ingress(packet)
            while packet.resubmit_fields >= 0 or packet.clone_session >= 0 or packet.digests:
                self._clone_and_digest(program, packet, now_ps)
                if packet.resubmit_fields < 0:
                    break
                if packet.passes >= MOST_PASSES:
                    self.count_drop(arrival, LOOP)
                    return
                if not packet.take_copies(1, len(packet.frame)):
                    self.count_drop(arrival, ALLOWANCE)
                    return
                packet = next_pass(program, packet, packet.frame, packet.resubmit_fields, RESUBMITTED)
                program.ingress(packet)
        except Exception as error:  # whatever it is, the next packet must pass
            self._fail(arrival, error)
            return
        if packet.mcast_grp:
            packet.instance_type = REPLICATED
            replicas = self._groups.get(packet.mcast_grp)
            if not replicas:
                self.count_drop(arrival, NO_GROUP)
                return
            granted = self._granted(packet, replicas, arrival)
            if not self._is_going_round:
                self._copy(packet, granted, now_ps)
            elif granted:  # they are the next to be made, as many as there is time for
                self._waiting.take(packet)
                self._again.appendleft((packet, granted))
        elif packet.egress_spec == DROP_PORT:
            self.count_drop(arrival, INGRESS_DROP)
        else:
            packet.instance_type = NORMAL
            self._forward(packet, packet.egress_spec, now_ps)

    def _forward(self, packet: SwitchPacket, number: int, now_ps: int) -> None:
        """Put a packet into the queue of its port, or through egress at once where the link has no rate."""
        port = self._ports.get(number) or self._new_port(number)
        if number > LARGEST_PORT:  # egress would be given a number that it has no room for
            port.drops[NO_PORT] += 1
            return
        packet.egress_port = number
        if packet.priority > port.top_priority:
            port.drops[NO_QUEUE] += 1
        elif port.unlimited:
            packet.enq_us = now_ps // PS_PER_US
            frame = self._leave(port, packet, now_ps)
            if frame is not None:
                self._send(port, frame, now_ps)
        elif not self._waiting.take(packet):
            port.drops[NO_MEMORY] += 1
        elif not port.enqueue(packet, now_ps // PS_PER_US):
            self._waiting.give_back(packet)
            port.drops[BUFFER_FULL] += 1
        elif port.in_flight is None:
            self._serve(port, now_ps)

    def _granted(self, packet: SwitchPacket, replicas: Replicas, number: int) -> Replicas:
        """Return the copies that a packet's frame is allowed; the others are counted as dropped at a port."""
        granted = packet.take_copies(len(replicas), len(packet.frame))
        if granted < len(replicas):
            self._drop(number, ALLOWANCE, len(replicas) - granted)
        return replicas[:granted]

    def _copy(self, packet: SwitchPacket, replicas: Replicas, now_ps: int) -> None:
        for number, replication_id in replicas:
            self._forward(replica_of(packet, replication_id), number, now_ps)

    # From queue to wire.

    def _serve(self, port: CountedPort, now_ps: int) -> None:
        """Put the next packet that survives egress on the idle link."""
        now_us = now_ps // PS_PER_US
        while (packet := port.dequeue(now_us)) is not None:
            self._waiting.give_back(packet)
            frame = self._leave(port, packet, now_ps)
            if frame is not None:
                self._put_on_wire(port, frame, now_ps)
                return

    def _put_on_wire(self, port: CountedPort, frame: bytes, now_ps: int) -> None:
        port.in_flight = frame
        heapq.heappush(self._departures, (now_ps + port.wire_ps(len(frame)), port.number))

    def _leave(self, port: CountedPort, packet: SwitchPacket, now_ps: int) -> bytes | None:
        """Take a packet through egress and return its frame; None when none goes on the wire."""
        program = self._program
        assert program is not None  # only a program fills queues, and a new one empties them
        packet.egress_us = now_ps // PS_PER_US
        return self._pass_egress(program, port, packet, program.egress)

    def _pass_egress(
        self, program: LoadedProgram, port: CountedPort, packet: SwitchPacket, egress: Callable[[SwitchPacket], None]
    ) -> bytes | None:
        try:
            egress(packet)
            if packet.clone_session >= 0:
                self._clone_at_egress(program, packet)
            if packet.egress_spec == DROP_PORT:
                port.drops[EGRESS_DROP] += 1
                return None
            frame = program.deparse(packet)
        except Exception as error:  # whatever it is, the next packet must pass
            self._fail(port.number, error)
            return None
        if packet.recirculate_fields < 0:
            return frame
        if packet.passes >= MOST_PASSES:
            port.drops[LOOP] += 1
        elif not packet.take_copies(1, len(frame)):
            port.drops[ALLOWANCE] += 1
        else:
            again = next_pass(program, packet, frame, packet.recirculate_fields, RECIRCULATED)
            self._wait_again(again, (), port.number)
        return None

    def _send(self, port: CountedPort, frame: bytes, time_ps: int) -> None:
        if not port.attached:
            port.drops[NO_PORT] += 1
            return
        port.tx_frames += 1
        port.tx_bytes += len(frame)
        if port.number == self._cpu_port:
            self._notify(CpuFrame(frame))
        else:
            self._transmit(port.number, frame, time_ps)

    # Clones and packets that go round.

    def _clone_and_digest(self, program: LoadedProgram, packet: SwitchPacket, now_ps: int) -> None:
        """Send clones of the frame as it arrived on to egress, and digests to the controller."""
        if packet.clone_session >= 0:
            session = self._session_of(packet, packet.ingress_port)
            if session is not None:
                granted = self._granted(packet, session.replicas, packet.ingress_port)
                self._copy(clone_of(program, packet, session, INGRESS_CLONE), granted, now_ps)
            packet.clone_session = -1
        for name, values in packet.digests:
            self._notify(Digest(name, values))

    def _clone_at_egress(self, program: LoadedProgram, packet: SwitchPacket) -> None:
        """Have clones of the packet as egress left it pass egress after the packet itself has."""
        session = self._session_of(packet, packet.egress_port)
        if session is None:
            return
        granted = self._granted(packet, session.replicas, packet.egress_port)
        if granted:
            clone = clone_of(program, packet, session, EGRESS_CLONE)
            clone.state = packet.state
            clone.length = packet.length
            clone.ingress_port = 0  # as simple_switch resets it
            self._wait_again(clone, granted, packet.egress_port)

    def _session_of(self, packet: SwitchPacket, port: int) -> SetCloneSession | None:
        """Return the session that a packet is cloned to; None, and counted, when that cannot be."""
        session = self._sessions.get(packet.clone_session)
        if session is None or not session.replicas:
            self.count_drop(port, NO_SESSION)
            return None
        if packet.passes >= MOST_PASSES:
            self.count_drop(port, LOOP)
            return None
        return session

    def _wait_again(self, packet: SwitchPacket, replicas: Replicas, number: int) -> None:
        """Let a packet wait to pass the program again, or its copies to be made; else count it as dropped at a port."""
        if len(self._again) >= MOST_WAITING:
            self._drop(number, TOO_MANY_ROUNDS, len(replicas) or 1)
        elif not self._waiting.take(packet):
            self._drop(number, NO_MEMORY, len(replicas) or 1)
        else:
            self._again.append((packet, replicas))

    def _go_round(self, now_ps: int) -> None:
        """Take packets that wait through the program again, unless these have turns of their own already."""
        if not self._has_turn:
            self._go_round_for(COPIES_AT_ONCE, now_ps)

    def _take_turn(self, now_ps: int) -> None:
        """Go on with packets that go round, between those of other frames."""
        self._has_turn = False
        self._go_round_for(COPIES_IN_TURN, now_ps)

    def _go_round_for(self, copies: int, now_ps: int) -> None:
        """Take packets through ingress and copies to their queues, so many at most; the others have the next turn."""
        self._is_going_round = True
        try:
            while self._again and copies > 0:
                packet, replicas = self._again.popleft()
                if len(replicas) <= copies:
                    self._waiting.give_back(packet)
                if replicas:
                    self._copy(packet, replicas[:copies], now_ps)
                    if len(replicas) > copies:
                        self._again.appendleft((packet, replicas[copies:]))
                    copies -= len(replicas)
                else:
                    copies -= 1
                    self._enter(packet, now_ps)
        finally:
            self._is_going_round = False
        if self._again:
            self._has_turn = True
            self._plan_turn(now_ps + TURN_PS)

    def _plan_turn(self, time_ps: int) -> None:
        """Have `_take_turn` called at a time."""
        heapq.heappush(self._departures, (time_ps, NOWHERE))

    # Side effects.

    def _report_idle_entries(self, now_ps: int) -> None:
        """Begin to look at all entries, or go on; with many of them it takes several calls, so that none takes long."""
        if not self.is_checking:
            self._idle_check_ps = now_ps + IDLE_CHECK_PS
            self._idle_check = iter(self._program.idle_entries(now_ps // PS_PER_US) if self._program else ())
        looked_at = 0
        for entry in islice(self._idle_check, _IDLE_CHECKS):
            looked_at += 1
            if entry is not None:
                self._notify(IdleEntry(entry))
        self.is_checking = looked_at == _IDLE_CHECKS

    def _new_port(self, number: int) -> CountedPort:
        """Attach a port where any number is one and return it; else return the port of all other numbers."""
        if not self._any_port or not 0 <= number <= LARGEST_PORT or len(self._ports) >= MOST_PORTS:
            return self._nowhere
        port = self._ports[number] = self._attach(number, self._default)
        return port

    def _fail(self, number: int, error: Exception) -> None:
        """Count an exception that no packet should cause; log the first of its kind with its traceback."""
        if isinstance(error, EndlessLoop):
            self.count_drop(number, LOOP)
            return
        self.count_drop(number, FAILED)
        kind = type(error).__name__
        self._failures[kind] += 1
        if self._failures[kind] == 1:
            logger.error("a packet was dropped because processing it failed", exc_info=error)
