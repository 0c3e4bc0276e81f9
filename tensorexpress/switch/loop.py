"""The forwarding process: ports, a switch and the link to the controlling process in one loop on the real clock.

Departures are kept in ideal time: a loop that wakes up late sends everything that was due, and the next frame
starts where the last one ended, so that the rate over time is exact. Frames on a cable with a delay arrive in ideal
time as well: as long as a loop is late by less than that delay, nobody sees it.
"""

from __future__ import annotations

import gc
import logging
import os
import pickle
import select
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from tensorexpress import tied
from tensorexpress.files import make_directory
from tensorexpress.p4.define import CPU_PORT
from tensorexpress.program_engines import PYTHON
from tensorexpress.switch.configuration import Configuration
from tensorexpress.switch.confinement import confine
from tensorexpress.switch.counted import LOST_ON_CABLE, NOT_TAKEN, REFUSED, PortStatistics, Statistics
from tensorexpress.switch.emulated_cable import CableSettings, EmulatedCable, arrivals
from tensorexpress.switch.engines import make_switch, prepare_engine
from tensorexpress.switch.faults import Faults, FaultyPort
from tensorexpress.switch.link import LinkClosedError, SwitchEnd
from tensorexpress.switch.operations import Operation, Query
from tensorexpress.switch.pcap import PcapWriter, TimedFrame, capture_name, record
from tensorexpress.switch.ports import FramePort, PortSpec, open_port
from tensorexpress.switch.program.budgets import PLAIN_MEMORY, SwitchMemory
from tensorexpress.switch.reports import encode_pairs, encode_statistics
from tensorexpress.switch.traffic import PortSettings
from tensorexpress.wire.udp import inherited_socket, stamped, unstamped

_PS_PER_NS = 1000
_PS_PER_SECOND = 10**12

#: Frames taken from a port before others, and the controlling process, have their turn.
BATCH = 64

#: The longest sleep: idle entries are looked for this often.
_LONGEST_SLEEP_S, _LONGEST_SLEEP_NS = 0.1, 10**8

#: Requests are worked on for so long before packets have their turn, and answered in parts of so many cells.
_SLICE_NS = 10**6
_CELLS = 512

#: Work in small steps; where it yields something, that is part of an answer.
_Work = Iterator[object]

_STANDARD_ERROR = 2

#: Captures are handed to the operating system this often.
_FLUSH_NS = 10**8

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """What the forwarding process opens."""

    ports: Mapping[int, tuple[PortSpec, PortSettings]]
    cpu_port: int | None = CPU_PORT
    #: Directory for one capture per port and direction; None for none.
    pcap: str | None = None
    #: What goes wrong on purpose with frames that arrive.
    faults: Faults = field(default_factory=Faults)
    #: What programs run in: `program_engines.ENGINES`.
    engine: str = PYTHON
    #: The memory that the switch may take.
    memory: SwitchMemory = PLAIN_MEMORY
    #: What is emulated of the cables of ports, where that is anything.
    cables: Mapping[int, CableSettings] = field(default_factory=dict)


class Loop:
    """A switch on real ports and the real clock."""

    def __init__(self, settings: LoopSettings, control: SwitchEnd):
        self._control = control
        self._resources = ExitStack()
        self._ports: dict[int, FramePort] = {}
        self._captures: dict[tuple[int, str], PcapWriter] = {}
        self._struck: dict[int, Counter[str]] = {}
        self._cables = {number: EmulatedCable(cable, number) for number, cable in settings.cables.items()}
        try:
            for number, (spec, _) in settings.ports.items():
                port = open_port(spec)
                self._resources.callback(port.close)
                if settings.faults.are_none:
                    self._ports[number] = port
                else:
                    struck = self._struck[number] = Counter()
                    self._ports[number] = FaultyPort(port, settings.faults, number, struck)
            if settings.pcap is not None:
                self._open_captures(Path(settings.pcap))
        except BaseException:
            self._resources.close()
            raise
        self._started_ns = time.monotonic_ns()
        #: Up to when the switch has done all: nothing can arrive before.
        self._reached_ps = 0
        self._epoch_ns = time.time_ns() - self._started_ns
        self._flush_at_ns = 0
        self.switch = make_switch(
            self._transmit,
            control.notify,
            ports={number: queues for number, (_, queues) in settings.ports.items()},
            cpu_port=settings.cpu_port,
            engine=settings.engine,
            memory=settings.memory,
        )
        #: Whether native code writes down what it takes and sends; what passes Python is written by that.
        self._captured_directly = bool(self._captures) and self.switch.capture_directly(
            self._write_records, lambda: self._epoch_ns + time.monotonic_ns()
        )
        self._resources.callback(self.switch.empty_captures)
        self.switch.count_from(self._started_ns)
        #: Whether native code can wait for frames and send them on time.
        self._forwards = False
        if (self._captured_directly or not self._captures) and (
            not self._cables or self.switch.lay_cables(settings.cables, self._ports)
        ):
            self.switch.send_directly({number: port.sending_fileno() for number, port in self._ports.items()})
            self._forwards = self.switch.watch(self._ports, control.fileno())
        #: A program that operations are done for before packets pass it, and operations to be done all at once.
        self._next = Configuration()
        self._gathered: list[Operation] = []
        self._at_once: dict[str, Callable[..., object]] = {
            "switch_over": self._switch_over,
            "swap": lambda program: self.switch.swap(pickle.loads(program)),
            "gather": self._gather,
            "apply_gathered": self._apply_gathered,
            "packet_out": self.switch.packet_out,
            "set_rate": self.switch.set_rate,
            "statistics": lambda: encode_statistics(self._statistics()),
            "lost": lambda: encode_pairs(self._lost()),
            "stop": lambda: encode_statistics(self._statistics()),
        }
        self._in_slices: dict[str, Callable[..., _Work]] = {
            "prepare": self._prepare,
            "apply": lambda operations: _apply(self.switch.configuration, operations),
            "set_up": lambda operations: _apply(self._next, operations),
            "ask": lambda queries: _ask(self.switch.configuration, queries),
        }
        #: The ports that descriptors are of, and all descriptors that say when there is something to do.
        self._numbers = {port.fileno(): number for number, port in self._ports.items()}
        self._waiting_for = [*self._numbers, control.fileno()]
        #: The request that is being worked on, and what nobody waits for.
        self._request: _Work | None = None
        self._chores: deque[_Work] = deque()

    def run(self) -> None:
        """Forward packets until the controlling process says stop or is gone."""
        with self._resources:
            while self.take_turn():
                if self._forwards and not self._is_busy:
                    # Native code takes turns of its own, which need no Python.
                    self.switch.forward(time.monotonic_ns() + _LONGEST_SLEEP_NS, self._epoch_ns)

    def take_turn(self) -> bool:
        """Wait until there is something to do, and do it; False when the controlling process is gone or wants that."""
        answering = self._control.has_answer
        readable, _, _ = select.select(
            self._waiting_for, [self._control] if answering else (), (), self._sleep_s(answering)
        )
        arrived = [self._numbers[descriptor] for descriptor in readable if descriptor in self._numbers]
        # Before anything is done that is due: they may have to arrive first.
        for number in filter(self._is_delayed, arrived):
            self._hold_frames(number)
        self._advance()
        if answering:
            self._control.send_rest()
        for number in arrived:
            if not self._is_delayed(number):
                self._take_frames(number)
        if self._control.fileno() in readable and not self._take_request():
            return False
        if self._request is not None:
            self._work_on_request(self._request)
        elif self._chores:
            self._work_on_chore()
        if self._captures:
            self._flush_captures()
        return True

    def _advance(self) -> None:
        """Let all arrive and leave that is due, in the order in which it was."""
        now_ps = self._now_ps()
        arrived = arrivals(self._cables, self._reached_ps, now_ps)
        if arrived:
            self.switch.receive_many(arrived)
        self.switch.advance(now_ps)
        self._reached_ps = now_ps
        for number, cable in self._cables.items():
            for _, frame in cable.leaving.take(now_ps):
                self._put_out(number, frame)

    def _now_ps(self) -> int:
        return (time.monotonic_ns() - self._started_ns) * _PS_PER_NS

    @property
    def _is_busy(self) -> bool:
        """Whether there is more to do than frames."""
        working = self._request is not None or bool(self._chores)
        return working or self.switch.is_checking or self._control.has_answer

    def _sleep_s(self, answering: bool) -> float:
        if self._chores or self.switch.is_checking or (self._request is not None and not answering):
            return 0.0
        due_ps = self.switch.next_event_ps()
        if self._cables:
            times = (due_ps, *(cable.next_ps for cable in self._cables.values()))
            due_ps = min((time_ps for time_ps in times if time_ps is not None), default=None)
        if due_ps is None:
            return _LONGEST_SLEEP_S
        return min(max(0.0, (due_ps - self._now_ps()) / _PS_PER_SECOND), _LONGEST_SLEEP_S)

    def _is_delayed(self, number: int) -> bool:
        """Whether frames are under way to a port for some time."""
        return number in self._cables and self._cables[number].arriving.delay_ps > 0

    def _hold_frames(self, number: int) -> None:
        """Let frames set out on their way to a port."""
        if self.switch.hold_from(number, self._ports[number], time.monotonic_ns()):
            return
        cable = self._cables[number]
        for frame in self._ports[number].receive(BATCH):
            now_ns = sent_ns = time.monotonic_ns()
            if cable.settings.arriving_stamped:
                frame, stamp_ns = unstamped(frame)
                # It says what can be, unless it was damaged.
                sent_ns = min(max(stamp_ns, self._started_ns), now_ns)
            if self._captures:
                self._capture(number, "in", frame, now_ns)
            cable.arriving.put(frame, (sent_ns - self._started_ns) * _PS_PER_NS)

    def _take_frames(self, number: int) -> None:
        if self._captures:
            self._advance()  # what has left by now is written down before what comes now
        now_ps = self._reached_ps if self._captures else self._now_ps()
        by_python = bool(self._captures) and not self._captured_directly
        if by_python or not self.switch.take_from(number, self._ports[number], now_ps):
            self._take_frames_one_by_one(number)
        self._reached_ps = self._now_ps()

    def _take_frames_one_by_one(self, number: int) -> None:
        receive, clock_ns, started_ns = self.switch.receive, time.monotonic_ns, self._started_ns
        for frame in self._ports[number].receive(BATCH):
            if self._captures:
                self._advance()
                self._capture(number, "in", frame, clock_ns())
                receive(number, frame, self._reached_ps)
            else:
                receive(number, frame, (clock_ns() - started_ns) * _PS_PER_NS)

    def _transmit(self, number: int, frame: bytes, time_ps: int) -> None:
        cable = self._cables.get(number)
        if cable is not None and cable.loses():
            self.switch.count_drop(number, LOST_ON_CABLE)
        elif cable is not None and cable.settings.leaving_stamped:
            self._put_out(number, frame, self._started_ns + time_ps // _PS_PER_NS)
        elif cable is not None and cable.leaving.delay_ps:
            if not self.switch.hold_leaving(number, frame, time_ps):
                cable.leaving.put(frame, time_ps)
        else:
            self._put_out(number, frame)

    def _put_out(self, number: int, frame: bytes, stamp_ns: int | None = None) -> None:
        if not self._ports[number].send(frame if stamp_ns is None else stamped(frame, stamp_ns)):
            self.switch.count_drop(number, REFUSED)
        elif self._captures:
            self._capture(number, "out", frame, time.monotonic_ns())

    def _capture(self, number: int, direction: str, frame: bytes, now_ns: int) -> None:
        self.switch.empty_captures()  # what native code has written down was before
        self._write_records(number, direction, record(TimedFrame(self._epoch_ns + now_ns, frame)))

    def _write_records(self, number: int, direction: str, records: bytes | memoryview) -> None:
        if self._captures:
            try:
                self._captures[number, direction].write_records(records)
            except OSError as error:
                self._end_captures(error)

    def _take_request(self) -> bool:
        """Do what the controlling process asks for; False when it wants an end, or is gone."""
        try:
            request = self._control.next_request()
        except LinkClosedError:
            return False
        if request is None:
            return True
        what, arguments = request
        try:
            if what in self._in_slices:
                self._request = self._in_slices[what](*arguments)
            else:
                self._control.answer(self._at_once[what](*arguments))
        except Exception as error:  # it goes to whoever asked
            self._control.refuse(error)
        return what != "stop"

    def _work_on_request(self, work: _Work) -> None:
        """Go on with a request, for a slice of time, and answer it when it is done."""
        until_ns = time.monotonic_ns() + _SLICE_NS
        try:
            while not self._control.has_answer:
                part = next(work)
                if part is not None:
                    self._control.part(part)
                if time.monotonic_ns() >= until_ns:
                    return
        except StopIteration:
            self._request = None
            self._control.answer(None)
        except Exception as error:  # it goes to whoever asked
            self._request = None
            self._control.refuse(error)

    def _work_on_chore(self) -> None:
        """Go on with what nobody waits for, for a slice of time."""
        until_ns = time.monotonic_ns() + _SLICE_NS
        for _ in self._chores[0]:
            if time.monotonic_ns() >= until_ns:
                return
        self._chores.popleft()

    def _prepare(self, program: bytes) -> _Work:
        """Make a program, after all that were replaced have given back their memory: there are two at most."""
        self._discard(self._next)  # one that was never completed
        self._next = Configuration()
        while self._chores:
            for _ in self._chores[0]:
                yield None
            self._chores.popleft()
        self._next = self.switch.prepare(pickle.loads(program))

    def _switch_over(self) -> None:
        self._discard(self.switch.switch_over(self._next))
        self._next = Configuration()

    def _discard(self, configuration: Configuration) -> None:
        if configuration.program is not None:
            self._chores.append(iter(configuration.program.dismantle()))

    def _gather(self, operations: list[Operation]) -> None:
        self._gathered += operations

    def _apply_gathered(self) -> None:
        operations, self._gathered = self._gathered, []
        self.switch.apply(operations)

    def _statistics(self) -> Statistics:
        counted = self.switch.statistics()
        return replace(
            counted,
            ports=_with_lost(counted.ports, self._lost()),
            dropped_notices=self._control.dropped_notices,
            faults=self._struck,
        )

    def _lost(self) -> dict[int, int]:
        return {number: port.lost() for number, port in self._ports.items()}

    def _open_captures(self, directory: Path) -> None:
        make_directory(directory)
        for number in self._ports:
            for direction in ("in", "out"):
                capture = PcapWriter(directory / capture_name(number, direction))
                self._captures[number, direction] = capture
                self._resources.callback(_close, capture)

    def _flush_captures(self) -> None:
        now_ns = time.monotonic_ns()
        is_due = now_ns >= self._flush_at_ns
        if is_due or self.switch.captures_are_full:
            self.switch.empty_captures()
        if not is_due:
            return
        self._flush_at_ns = now_ns + _FLUSH_NS
        try:
            for capture in self._captures.values():
                capture.flush()
        except OSError as error:
            self._end_captures(error)

    def _end_captures(self, error: OSError) -> None:
        """Go on without captures: a full disk must not stop packets."""
        logger.error("captures end here: %s", error.strerror)
        self._captures.clear()
        self.switch.end_captures()


def _with_lost(ports: Mapping[int, PortStatistics], lost: Mapping[int, int]) -> dict[int, PortStatistics]:
    """Return what ports have seen, with what they lost among their drops."""
    return {
        number: replace(port, drops={**port.drops, NOT_TAKEN: lost[number]}) if lost.get(number) else port
        for number, port in ports.items()
    }


def _apply(configuration: Configuration, operations: Iterable[Operation]) -> _Work:
    """Do operations, one at each step."""
    for operation in operations:
        configuration.apply(operation)
        yield None


def _ask(configuration: Configuration, queries: Iterable[Query]) -> _Work:
    """Yield the cells that queries ask for, each with the number of its query, in parts of a bounded size."""
    cells = ((number, cell) for number, query in enumerate(queries) for cell in configuration.ask(query))
    while part := list(islice(cells, _CELLS)):
        yield part


def _close(capture: PcapWriter) -> None:
    try:
        capture.close()
    except OSError as error:
        logger.error("a capture is not complete: %s", error.strerror)


class _UnblockedHandler(logging.Handler):
    """Writes to standard error what can be written without waiting: who does not read it must not stop packets."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record, or the beginning of it."""
        text = f"{self.format(record)}\n".encode(errors="replace")
        for first in range(0, len(text), select.PIPE_BUF):  # so much fits a pipe that is said to have room
            try:
                if not select.select((), [_STANDARD_ERROR], (), 0)[1]:
                    return
                os.write(_STANDARD_ERROR, text[first : first + select.PIPE_BUF])
            except OSError:  # nobody is there to read it
                return


def main(parent: int, requests: int, notices: int) -> None:
    """Run the forwarding process on the descriptors of its link, until the parent at the other end is gone."""
    tied.end_with_parent(parent)  # a program that loops for ever never looks at the link
    for number in (signal.SIGINT, signal.SIGTERM):  # the controlling process decides when this one ends
        signal.signal(number, signal.SIG_IGN)
    # To look through large tables for garbage takes longer than packets can wait. There is none: nothing that packets
    # or operations make refers to itself, and a program that is replaced is taken apart.
    gc.disable()
    logging.basicConfig(format="tensorexpress: %(message)s", handlers=[_UnblockedHandler()])
    with inherited_socket(requests) as request_socket, inherited_socket(notices) as notice_socket:
        control = SwitchEnd(request_socket, notice_socket)
        loop = _opened(control, parent)
        if loop is not None:
            loop.run()


def _opened(control: SwitchEnd, parent: int) -> Loop | None:
    """Return the loop of the first request, its ports open and its process confined; None when that cannot be."""
    while True:
        select.select([control], (), ())
        try:
            request = control.next_request()
        except LinkClosedError:
            return None
        if request is None:
            continue
        _, (settings,) = request
        try:
            prepare_engine(settings.engine)
            loop = Loop(settings, control)
            refused = confine(parent, grows_files=settings.pcap is not None)
        except Exception as error:  # it goes to whoever asked
            control.refuse(error)
            return None
        if refused:
            logger.warning(
                "the process that forwards packets keeps rights: this machine refused %s", ", ".join(refused)
            )
        control.answer(None)
        return loop
