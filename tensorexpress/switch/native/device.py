"""The switch with packets in native code. What that cannot do is done by Python, packet by packet and in order.

Native code stops where a packet asks for something unusual (a clone, a digest, ...), goes to the controller, or finds
no memory left. Python finishes that one event as `device.Switch` does, on the same queues, and native code goes on.
"""

from __future__ import annotations

import ctypes
from array import array
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tensorexpress.switch.configuration import Configuration
from tensorexpress.switch.copies import replica_of
from tensorexpress.switch.counted import CountedPort
from tensorexpress.switch.device import NOWHERE, PLAIN, PS_PER_NS, PS_PER_US, Switch
from tensorexpress.switch.emulated_cable import CableSettings
from tensorexpress.switch.native.allowances import SharedAllowances
from tensorexpress.switch.native.arena import Arena
from tensorexpress.switch.native.build import functions
from tensorexpress.switch.native.port import NativePort, told_packet
from tensorexpress.switch.native.trays import TakeRecords, Trays
from tensorexpress.switch.native.words import *
from tensorexpress.switch.packed import PackedFrames, PortFrame
from tensorexpress.switch.packet import REPLICATED, SwitchPacket
from tensorexpress.switch.ports import LONGEST_FRAME_BYTES, DatagramPort, FramePort, InterfacePort
from tensorexpress.switch.program.budgets import PLAIN_MEMORY, SwitchMemory
from tensorexpress.switch.program.native.layout import SLOT_NAMES
from tensorexpress.switch.program.native.memory import Block
from tensorexpress.switch.program.native.pipeline import NativePipeline
from tensorexpress.switch.traffic import PortSettings

#: How far native code counts from its epoch, in whole microseconds: 26 days.
FARTHEST_PS = 2**61 // PS_PER_US * PS_PER_US

#: Controllers and sockets do not wait for longer than this.
MOST_REST_NS = 10**6


class NativeSwitch(Switch):
    """A switch whose ports are all in the memory of native code, but those of the controller and of nobody."""

    def __init__(self, transmit: Callable[[int, bytes, int], None], *arguments: Any, **options: Any):
        self._functions = functions()
        self._arena = Arena(native_packets_bytes(options.get("memory", PLAIN_MEMORY)))
        #: What frames that native code has copied may still cause.
        self._allowances = SharedAllowances()
        self._cells = self._arena.cells
        self._memory = self._arena.head
        #: The program, where it is native.
        self._native: NativePipeline | None = None
        #: What native code knows of multicast groups, and how often groups had been set then.
        self._known_groups: dict[int, Block] = {}
        self._known_changes = 0
        self._saved = Block(0)
        #: What native code counts time from.
        self._epoch_ps = 0
        #: When that was first, on the system's clock; None where time is not that of the system.
        self._started_ns: int | None = None
        #: Ports on cables with a delay, where native code keeps what is under way.
        self._delayed: dict[int, NativePort] = {}
        #: Where native code captures frames, if it does, and the clock of captures.
        self._trays: Trays | None = None
        self._capture_ns: Callable[[], int] = lambda: 0
        #: What words of the head point at.
        self._kept: dict[int, Block] = {}
        #: Sends what has left; Python does, frame by frame, until somebody else is given that.
        self._send_sent: Callable[[], object] = self._transmit_sent
        super().__init__(transmit, *arguments, **options)
        self._go_on_with: dict[int, Callable[[int], None]] = {
            FULL: lambda time_ps: None,
            NOT_BEGUN: self._begin,
            AFTER_INGRESS: self._after_ingress,
            AFTER_EGRESS: self._after_egress,
            SERVED: self._after_egress,
            TO_COPY: self._copy_rest,
            TO_SERVE: lambda time_ps: self._serve(self._port_of_event, time_ps),
            TO_DEPART: self._depart_at,
        }
        #: The port at which turns of packets that go round are departures.
        self._turns = self._attach(NOWHERE, PLAIN)
        self._turns.in_flight = b""

    @property
    def _python_packets_bytes(self) -> int:
        """Bytes of packets that Python may keep, of those for which native code has no room or no way."""
        return self._budget.packets_bytes - native_packets_bytes(self._budget)

    def _attach(self, number: int, settings: PortSettings) -> NativePort:
        port = NativePort(number, settings, self._arena, self._functions, self._allowances)
        cells, count = self._cells, self._arena[PORT_COUNT]
        if 0 <= number < PORTS:
            cells[self._arena.index(self._arena[PORT_AT]) + number] = port.address
        cells[self._arena.index(self._arena[PORT_LIST]) + count] = port.address
        self._arena[PORT_COUNT] = count + 1
        port.state_bytes = self._arena[STATE_BYTES]
        return port

    # Sockets.

    def send_directly(self, descriptors: Mapping[int, int]) -> None:
        """Let native code send what leaves: port -> the socket that takes its frames."""
        for number, descriptor in descriptors.items():
            self._cells[self._native_port(number).at + P_DESCRIPTOR] = descriptor
        self._send_sent = self._send_all

    def _native_port(self, number: int) -> NativePort:
        port = self._ports[number]
        assert isinstance(port, NativePort)  # all are that somebody is connected to
        return port

    def _send_all(self) -> None:
        while not self._functions.send_all(self._memory, self._capture_ns()):
            self.empty_captures()

    def capture_directly(self, take: TakeRecords, clock_ns: Callable[[], int]) -> bool:
        """Have native code write down what it takes from sockets and sends to them, as records of capture files."""
        try:
            self._trays = Trays((port for port in self._ports.values() if isinstance(port, NativePort)), take)
        except OSError:  # the process may not have so much memory
            return False
        self._capture_ns = clock_ns
        return True

    @property
    def captures_are_full(self) -> bool:
        """Whether so many records wait to be taken that it is time for `empty_captures`."""
        return self._cells[CAPTURED] >= MOST_CAPTURED

    def empty_captures(self) -> None:
        """Have all records taken that were written down."""
        if self._trays is not None and self._cells[CAPTURED]:
            self._trays.empty()
            self._cells[CAPTURED] = 0

    def end_captures(self) -> None:
        """Write nothing down any more; what was not taken is forgotten."""
        if self._trays is not None:
            self._trays.abandon()
        self._trays, self._capture_ns, self._cells[CAPTURED] = None, lambda: 0, 0

    def _record_arrivals(self) -> None:
        """Write down what a port has taken before the switch has it."""
        time_ns = self._capture_ns()
        while not self._functions.record_arrivals(self._memory, time_ns):
            self.empty_captures()

    def watch(self, ports: Mapping[int, FramePort], descriptor: int) -> bool:
        """Know what `forward` is to wait for; False where it cannot take the frames of all ports."""
        if not _are_direct(ports):
            return False
        for number, port in ports.items():
            if isinstance(port, InterfacePort):
                self._with_ring(number, port)
        numbers = sorted(ports, key=lambda number: not self._is_delayed(number))
        self._keep_words(WATCHED, [*(ports[number].fileno() for number in numbers), descriptor])
        self._keep_words(WATCHED_PORTS, numbers)
        self._arena[WATCHED_COUNT] = len(numbers) + 1
        self._arena[WATCHED_DELAYED] = sum(map(self._is_delayed, numbers))
        return True

    def _with_ring(self, number: int, port: InterfacePort) -> int:
        """Return the address of a port that knows where its frames come."""
        native, ring = self._native_port(number), port.ring
        cells, at = self._cells, native.at
        cells[at + P_RING], cells[at + P_RING_POSITION] = ring.address, ring.position_address
        cells[at + P_SLOT_BYTES], cells[at + P_RING_BYTES] = ring.slot_bytes, ring.ring_bytes
        return native.address

    def _keep_words(self, name: int, numbers: Sequence[int]) -> None:
        """Let a word of the head point at some more of them."""
        self._kept[name] = block = Block(WORD * len(numbers))
        memoryview(block.data).cast("q")[: len(numbers)] = array("q", numbers)
        self._arena[name] = block.address

    def forward(self, until_ns: int, clock_ns: int) -> None:
        """Take frames and send them on time until a time, or until there is word on the descriptor of `watch`."""
        if self._native is None:
            return
        self._know_groups()
        cells = self._cells
        cells[ARRIVED] = cells[ARRIVAL_COUNT] = cells[RECORDED] = 0
        cells[WATCHED_NEXT], cells[IS_FOR_PYTHON] = cells[WATCHED_COUNT], 0
        while (why := self._functions.forward(self._memory, until_ns, clock_ns)) != DONE:
            if cells[SENT_COUNT]:
                self._send_sent()
            if why == TO_EMPTY:
                self.empty_captures()
            else:
                self._go_on(why)
        self._now_ps = self._epoch_ps + cells[REACHED]

    def take_from(self, number: int, port: FramePort, now_ps: int) -> bool:
        """Let a batch of the frames arrive that a port has; False where they are to be handed over one by one."""
        if self._native is None:
            return False

        def arrive() -> None:
            if self._trays is not None:
                self._record_arrivals()
            self.run(now_ps)

        return self._take(number, port, self._since_epoch(now_ps), arrive)

    def _take(self, number: int, port: FramePort, since_epoch_ps: int, do: Callable[[], None]) -> bool:
        """Take a batch of the frames that a port has, and do something with them; False where native code cannot."""
        if isinstance(port, InterfacePort):
            taken = self._functions.take_slots(self._memory, self._with_ring(number, port), since_epoch_ps)
            if taken:
                do()
                self._functions.release_slots(self._memory)
            return taken > 0
        if not isinstance(port, DatagramPort):  # faults strike every frame
            return False
        if self._functions.take_datagrams(self._memory, number, port.fileno(), since_epoch_ps) > 0:
            do()
        return True

    # Cables.

    def count_from(self, started_ns: int) -> None:
        """Know at which time of the system's monotonic clock all times are zero."""
        self._started_ns = started_ns
        self._know_start()

    def _know_start(self) -> None:
        if self._started_ns is not None:
            self._arena[STARTED_NS] = self._started_ns + self._epoch_ps // PS_PER_NS

    def lay_cables(self, cables: Mapping[int, CableSettings], ports: Mapping[int, FramePort]) -> bool:
        """Keep what is under way on cables; False where native code cannot, and for no cable does."""
        if any(cable.leaving_loss for cable in cables.values()) or not _are_direct(ports):
            return False
        self._delayed = {number: self._native_port(number) for number in cables}
        for number, cable in cables.items():
            at = self._delayed[number].at
            for line, delay_ps, is_stamped in (
                (P_ARRIVING, cable.arriving_ps, cable.arriving_stamped),
                (P_LEAVING, cable.leaving_ps, cable.leaving_stamped),
            ):
                self._cells[at + line + LINE_PS] = delay_ps
                self._cells[at + line + LINE_STAMP_BYTES] = STAMP_BYTES if is_stamped else 0
        self._keep_words(DELAYED, [port.address for port in self._delayed.values()])
        self._arena[DELAYED_COUNT] = len(self._delayed)
        # All happens in ideal time, so the switch need not wake up for it before somebody outside can see it, nor for
        # frames that say when they were sent: half of that time, and a quarter, leave enough for being late.
        given = [cables.get(number, CableSettings()) for number in ports]
        self._arena[SLACK] = slack_ps = min(map(_unseen_ps, given)) // 2
        if all(cable.arriving_stamped for cable in given):
            self._arena[REST_NS] = min(slack_ps // 2 // PS_PER_NS, MOST_REST_NS)
        return True

    def _is_delayed(self, number: int) -> bool:
        """Whether frames are under way to a port for some time."""
        return number in self._delayed and self._cells[self._delayed[number].at + P_ARRIVING + LINE_PS] > 0

    def hold_from(self, number: int, port: FramePort, now_ns: int) -> bool:
        """Let a batch of the frames that a port has set out on their way to it; False where they are not kept here.

        Those that do not say when they were sent set out now, by the system's monotonic clock.
        """
        if not self._is_delayed(number):
            return False
        address = self._delayed[number].address

        def hold() -> None:
            self._functions.stamps_of(self._memory, address, now_ns)
            if self._trays is not None:
                self._record_arrivals()
            self._functions.hold_arrivals(self._memory, address)

        return self._take(number, port, 0, hold)

    def hold_leaving(self, number: int, frame: bytes, time_ps: int) -> bool:
        """Let a frame set out from a port that left it at a time; False where such frames are not kept here."""
        if number not in self._delayed:
            return False
        sent_ps = self._since_epoch(time_ps)
        content = ctypes.create_string_buffer(frame, len(frame))
        self._functions.hold_leaving(
            self._memory, self._delayed[number].address, ctypes.addressof(content), len(frame), sent_ps
        )
        return True

    # The program.

    def _use(self, configuration: Configuration) -> None:
        super()._use(configuration)
        self._forget_groups()
        program = configuration.program
        self._native = program if isinstance(program, NativePipeline) else None
        if self._native is None:  # packets pass it in Python, but leave from native queues
            self._saved = Block(WORD * len(SLOT_NAMES))
            self._arena[CONTEXT] = self._saved.address
            self._arena[LONGEST] = NONE_FITS
            return
        self._native.have_room(LONGEST_FRAME_BYTES)
        layout, context = self._native.layout, self._native.context
        state_bytes = layout.state[1] - layout.state[0]
        self._saved = Block(state_bytes)
        self._use_code()
        for name, value in (
            (CONTEXT, context.address),
            (STATE, context.address + layout.state[0]),
            (STATE_BYTES, state_bytes),
            (SAVED, self._saved.address),
            (MARGIN, layout.header_bytes + STAMP_BYTES),
            (LONGEST, LONGEST_FRAME_BYTES),
        ):
            self._arena[name] = value
        for port in self._ports.values():
            if isinstance(port, NativePort):
                port.state_bytes = state_bytes

    def _use_code(self) -> None:
        if self._native is not None:
            self._arena[INGRESS], self._arena[EGRESS] = self._native.stages

    def _forget_groups(self) -> None:
        table = self._arena.index(self._arena[GROUP_AT])
        for group in self._known_groups:
            self._cells[table + group] = 0
        self._known_groups.clear()
        self._known_changes = self.configuration.group_changes

    def _learn_group(self, group: int) -> None:
        """Let native code copy packets to a group, if it has all of its ports."""
        replicas = self._groups.get(group, ())
        ports = [self._ports.get(number) for number, _ in replicas]
        if not 0 < len(ports) <= MOST_REPLICAS or group >= GROUPS:
            return
        words = [len(ports)]
        for port, (_, replication_id) in zip(ports, replicas, strict=True):
            if not isinstance(port, NativePort):
                return
            words += port.address, replication_id
        block = self._known_groups[group] = Block(WORD * len(words))
        memoryview(block.data).cast("q")[: len(words)] = array("q", words)
        self._cells[self._arena.index(self._arena[GROUP_AT]) + group] = block.address

    # Arrivals and departures.

    def receive(self, port: int, frame: bytes, now_ps: int) -> None:
        """Let a frame arrive whose last bit is there at `now_ps`, after everything that leaves until then."""
        since_epoch_ps = self._since_epoch(now_ps)
        if self._arena[DUE] <= since_epoch_ps:
            self.advance(now_ps)
        if self._native is None or len(frame) > LONGEST_FRAME_BYTES:
            super().receive(port, frame, now_ps)
            return
        cells, at = self._cells, self._arena.index(self._arena[ARRIVALS])
        start = self._arena.frames - self._arena.base
        self._arena.region[start : start + len(frame)] = frame
        cells[at + A_PORT], cells[at + A_TIME] = port, since_epoch_ps
        cells[at + A_FRAME], cells[at + A_LENGTH] = self._arena.frames, len(frame)
        cells[ARRIVED], cells[ARRIVAL_COUNT] = 0, 1
        self.run(now_ps)

    def receive_many(self, arrivals: Sequence[PortFrame]) -> None:
        """Let frames arrive, in order of time; packed ones pass from where they are."""
        if arrivals and arrivals[-1][2] >= NEVER:  # arrays may have no room for these times
            super().receive_many(arrivals)
            return
        for start in range(0, len(arrivals), MOST_ARRIVALS):
            self._receive_packed(PackedFrames.of(arrivals[start : start + MOST_ARRIVALS]))

    def _receive_packed(self, frames: PackedFrames) -> None:
        start = 0
        while start < len(frames):
            now_ps = int(frames.times_ps[start])
            if now_ps >= self._idle_check_ps or self.is_checking:
                self.advance(now_ps)
            if self._native is None or self.is_checking or frames.lengths[start] > LONGEST_FRAME_BYTES:
                self._let_leave(now_ps)
                self.receive(*frames[start])
                start += 1
            else:
                start += self._receive_batch(frames, start)

    def _receive_batch(self, frames: PackedFrames, start: int) -> int:
        """Let frames from one on arrive, up to one that is for Python; return how many these are."""
        # Entries are looked at again then.
        end = bisect_left(frames.times_ps, self._idle_check_ps, start)
        self._since_epoch(int(frames.times_ps[start]))
        too_long = np.flatnonzero(frames.lengths[start:end] > LONGEST_FRAME_BYTES)
        if too_long.size:
            end = start + int(too_long[0])
        batch, count = slice(start, end), end - start
        rows = self._arena.rows(ARRIVALS, ARRIVAL_WORDS, count)
        rows[:, A_PORT], rows[:, A_TIME] = frames.ports[batch], frames.times_ps[batch] - self._epoch_ps
        rows[:, A_FRAME], rows[:, A_LENGTH] = frames.addresses[batch], frames.lengths[batch]
        self._cells[ARRIVED], self._cells[ARRIVAL_COUNT] = 0, count
        self._run(int(frames.times_ps[end - 1]) - self._epoch_ps)
        return count

    def _let_leave(self, now_ps: int) -> None:
        self.run(now_ps)

    def next_event_ps(self) -> int | None:
        """Return when the next frame leaves, or is at the end of a cable; None while none is on its way."""
        due_ps = self._functions.due(self._memory)
        return self._epoch_ps + due_ps if due_ps < NEVER else None

    def _put_on_wire(self, port: CountedPort, frame: bytes, now_ps: int) -> None:
        assert isinstance(port, NativePort)  # others have no rate
        port.in_flight = frame
        departs_ps = now_ps - self._epoch_ps + port.wire_ps(len(frame))
        self._functions.depart_at(self._memory, port.address, departs_ps)

    def _plan_turn(self, time_ps: int) -> None:
        self._functions.depart_at(self._memory, self._turns.address, time_ps - self._epoch_ps)

    def run(self, now_ps: int) -> None:
        """Let native code handle its arrivals and what leaves until now, and do what it leaves to Python."""
        self._run(self._since_epoch(now_ps))

    def _since_epoch(self, now_ps: int) -> int:
        """Return a time as native code has it, whose epoch moves on before 64 bits are too few."""
        while (ahead_ps := now_ps - self._epoch_ps) >= FARTHEST_PS:
            self._run(FARTHEST_PS)
            # With frames on their way, only as far as they are known to be there.
            by_us = (FARTHEST_PS if self.next_event_ps() is not None else ahead_ps) // PS_PER_US
            self._epoch_ps += by_us * PS_PER_US
            self._arena[EPOCH_US] += by_us
            self._know_start()
            self._functions.move_times(self._memory, by_us * PS_PER_US)
        return ahead_ps

    def _run(self, until_ps: int) -> None:
        self._know_groups()
        run, memory, cells = self._functions.run, self._memory, self._cells
        while True:
            why = run(memory, until_ps)
            if cells[SENT_COUNT]:
                self._send_sent()
            if why == DONE:
                self._now_ps = self._epoch_ps + until_ps
                return
            self._go_on(why)

    def _know_groups(self) -> None:
        if self.configuration.group_changes != self._known_changes:
            self._forget_groups()

    def _go_on(self, why: int) -> None:
        """Do what native code leaves to Python, after all has been sent that left before it."""
        self._now_ps = time_ps = self._epoch_ps + self._cells[AT_TIME]
        self._go_on_with[why](time_ps)
        if self._again:
            self._go_round(time_ps)

    def transmit_many(self, take: Callable[[Sequence[PortFrame]], None]) -> None:
        """Have frames handed over together from now on, in order; those of native code where they are."""
        super().transmit_many(take)

        def hand_over() -> None:
            try:
                take(self._sent_frames(self._epoch_ps))
            finally:
                self._functions.free_sent(self._memory)

        self._send_sent = hand_over

    def _transmit_sent(self) -> None:
        """Hand all frames that have left to whoever transmits them."""
        frames = list(self._sent_frames(0))
        self._functions.free_sent(self._memory)
        transmit, epoch_ps = self._transmit, self._epoch_ps
        for port, frame, time_ps in frames:
            transmit(port, frame, epoch_ps + time_ps)

    def _sent_frames(self, epoch_ps: int) -> PackedFrames:
        """Return all frames that have left, in the memory that they have until they are freed."""
        rows = self._arena.rows(SENT, SENT_WORDS, self._cells[SENT_COUNT])
        starts = rows[:, S_RECORD] + (RECORD_BYTES - self._arena.base)
        return PackedFrames(self._arena.region, starts, rows[:, S_LENGTH], rows[:, S_PORT], rows[:, S_TIME] + epoch_ps)

    # What native code leaves to Python.

    @property
    def _port_of_event(self) -> CountedPort:
        return self._ports[self._cells[AT_PORT]]

    def _depart_at(self, time_ps: int) -> None:
        if self._cells[AT_PORT] == NOWHERE:
            self._take_turn(time_ps)
        else:
            self._depart(self._port_of_event, time_ps)

    def _arrival(self) -> tuple[int, bytes]:
        """Return port and frame of the arrival that is being handled; the kernel may have put it elsewhere."""
        cells = self._cells
        return cells[ARRIVAL_PORT], ctypes.string_at(cells[ARRIVAL_FRAME], cells[ARRIVAL_BYTES])

    def _begin(self, time_ps: int) -> None:
        port, frame = self._arrival()
        super().receive(port, frame, time_ps)

    def _after_ingress(self, time_ps: int) -> None:
        program, result = self._native, self._cells[RESULT]
        assert program is not None
        port, frame = self._arrival()
        packet = SwitchPacket(frame, port, time_ps // PS_PER_US)
        self._pass_ingress(program, packet, time_ps, lambda packet: program.note_ingress(packet, result))
        if packet.mcast_grp:
            self._learn_group(packet.mcast_grp)

    def _after_egress(self, time_ps: int) -> None:
        """Finish a packet that egress has decided something unusual for, on its way to a link or on none."""
        program, cells, port = self._native, self._cells, self._port_of_event
        assert program is not None
        record, result, output_at = cells[RECORD], cells[RESULT], cells[OUTPUT]
        copied = cells[COPIED] if cells[GROUP] else 0
        if record:
            at = self._arena.index(record)
            frame, copied = self._arena.read(record + RECORD_BYTES, cells[at + R_LENGTH]), cells[at + R_COPIED]
            self._functions.free_record(self._memory, record)
        else:
            _, frame = self._arrival()
        output = self._arena.read(output_at + RECORD_BYTES, max(0, result >> 1))
        self._functions.free_record(self._memory, output_at)
        told = memoryview(program.context.data)[WORD * C_TOLD :][: WORD * TOLD_WORDS].cast("q")
        packet = told_packet(frame, told)
        packet.allowance = self._allowances.of_copy(copied, len(frame))
        group, done = cells[GROUP], cells[COPIES_DONE]
        left = self._pass_egress(program, port, packet, lambda packet: program.note_egress(packet, result, output))
        if left is None:
            if not port.unlimited:
                self._serve(port, time_ps)
        elif port.unlimited:
            self._send(port, left, time_ps)
        else:
            self._put_on_wire(port, left, time_ps)
        if group:
            self._copy_from(group, done, time_ps)

    def _copy_rest(self, time_ps: int) -> None:
        self._copy_from(self._cells[GROUP], self._cells[COPIES_DONE], time_ps)

    def _copy_from(self, group: int, first: int, time_ps: int) -> None:
        """Make the copies of the arrival that native code has not made."""
        cells = self._cells
        cells[GROUP] = 0
        port, frame = self._arrival()
        packet = SwitchPacket(frame, port, time_ps // PS_PER_US)
        packet.instance_type = REPLICATED
        packet.allowance = self._allowances.of_copy(cells[COPIED], len(frame))
        packet.length, packet.priority = cells[COPY_LENGTH], cells[COPY_PRIORITY]
        packet.state = (b"", bytes(self._saved.data[: cells[STATE_BYTES]]))
        for number, replication_id in self._groups[group][first:]:
            self._forward(replica_of(packet, replication_id), number, time_ps)


def native_packets_bytes(memory: SwitchMemory) -> int:
    """Return how many bytes of packets native code may keep: seven eighths of all that wait."""
    return memory.packets_bytes // 8 * 7


def _are_direct(ports: Mapping[int, FramePort]) -> bool:
    """Whether native code can take the frames of all ports; where faults strike, Python takes each."""
    return all(isinstance(port, DatagramPort | InterfacePort) for port in ports.values())


def _unseen_ps(cable: CableSettings) -> int:
    """Return how long after a frame has left by a cable nobody can tell whether it has.

    A stamp tells the switch at the other end when a frame was sent, which is kept back there as long as here.
    """
    return cable.arriving_ps if cable.leaving_stamped else cable.leaving_ps
