"""A program over captures, in virtual time: the same frames in, the same frames out, to the picosecond.

from tensorexpress.switch.replay import VirtualSwitch
switch = VirtualSwitch("router.json", "router.p4info.txtpb", "entries.txtpb")
assert switch.run({0: [frame]}) == {1: [forwarded]}
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from tensorexpress.errors import MachineError, ProgramError
from tensorexpress.files import make_directory, read_within
from tensorexpress.p4.define import CPU_PORT
from tensorexpress.program_engines import PYTHON
from tensorexpress.switch.counted import Statistics
from tensorexpress.switch.engines import make_switch
from tensorexpress.switch.operations import Notice, Operation
from tensorexpress.switch.pcap import TimedFrame, capture_name, read_pcap, write_pcap
from tensorexpress.switch.program.budgets import LARGEST_DOCUMENT
from tensorexpress.switch.traffic import PortSettings

#: Longest text in protobuf's format that is read; 100,000 entries are shorter.
_LARGEST_TEXT_BYTES = 2**26

_PS_PER_NS = 1000

_Path = str | os.PathLike[str]


class VirtualSwitch:
    """A switch without ports and without a clock, for tests of any P4 program.

    `program` is p4c's BMv2 JSON, as a file or as bytes. `p4info`, its P4Info, and `entries`, a P4Runtime WriteRequest,
    are files in text form and need the extra `p4`. Without `settings` every port sends at once; with a rate, frames
    queue as they would in time. `engine`, one of `program_engines.ENGINES`, is what the program runs in. State
    (registers, counters, meters) stays from one run to the next.
    """

    def __init__(
        self,
        program: _Path | bytes,
        p4info: _Path | None = None,
        entries: _Path | None = None,
        *,
        settings: PortSettings | None = None,
        cpu_port: int | None = CPU_PORT,
        engine: str = PYTHON,
    ):
        #: What the controller would have been told: packets to the CPU port, digests, idle entries.
        self.notices: list[Notice] = []
        self._sent: dict[int, list[tuple[int, bytes]]] = {}
        self._now_ps = 0
        self._switch = make_switch(
            self._keep, self.notices.append, default=settings or PortSettings(), cpu_port=cpu_port, engine=engine
        )
        document = program if isinstance(program, bytes) else read_program(program)
        name = "" if isinstance(program, bytes) else f"{os.fspath(program)}: "
        try:
            self._switch.load(document)
        except ProgramError as error:
            raise ProgramError(f"{name}{error}") from None
        if entries is not None:
            self.apply(read_operations(document, p4info, entries, cpu_port))

    def apply(self, operations: Iterable[Operation]) -> None:
        """Change tables, groups and the like between two packets."""
        self._switch.apply(list(operations))

    def run(self, frames: Mapping[int, Iterable[bytes]]) -> dict[int, list[bytes]]:
        """Let frames arrive, port by port, each as soon as it can; return what leaves, by port and in order."""
        arrivals = {port: [TimedFrame(0, frame) for frame in given] for port, given in frames.items()}
        return {port: [frame.data for frame in sent] for port, sent in self.run_timed(arrivals).items()}

    def run_timed(self, frames: Mapping[int, Iterable[TimedFrame]]) -> dict[int, list[TimedFrame]]:
        """Let frames arrive when their time stamps say; return what leaves, with the time its last bit does.

        Frames of one instant arrive in order of their ports. The switch's clock is at 0 when the first frame arrives;
        in a later run it goes on from where it was.
        """
        merged = [(frame.time_ns * _PS_PER_NS, port, frame.data) for port, given in frames.items() for frame in given]
        merged.sort(key=lambda arrival: arrival[:2])
        self._sent.clear()
        if not merged:
            return {}
        offset_ps = self._now_ps - merged[0][0]
        self._switch.receive_many([(port, data, time_ps + offset_ps) for time_ps, port, data in merged])
        self._now_ps = merged[-1][0] + offset_ps
        while (due_ps := self._switch.next_event_ps()) is not None:
            self._advance(due_ps)
        return {
            port: [TimedFrame((time_ps - offset_ps) // _PS_PER_NS, data) for time_ps, data in sent]
            for port, sent in sorted(self._sent.items())
        }

    def _advance(self, now_ps: int) -> None:
        self._now_ps = now_ps
        self._switch.advance(now_ps)

    def statistics(self) -> Statistics:
        """Return the counters of every port that saw a packet."""
        return self._switch.statistics()

    def _keep(self, port: int, frame: bytes, time_ps: int) -> None:
        self._sent.setdefault(port, []).append((time_ps, frame))


def replay(switch: VirtualSwitch, captures: Mapping[int, _Path], directory: _Path) -> dict[int, Path]:
    """Run captures, one per port, through a switch; write one per port at which frames left and return their names."""
    arrivals = {port: read_pcap(path) for port, path in captures.items()}
    make_directory(directory)
    sent = switch.run_timed(arrivals)
    written = {}
    for port, frames in sent.items():
        written[port] = Path(directory) / capture_name(port, "out")
        write_pcap(written[port], frames)
    return written


def read_program(path: _Path) -> bytes:
    """Return the bytes of a program."""
    return _read(path, LARGEST_DOCUMENT)


def _read(path: _Path, most_bytes: int) -> bytes:
    try:
        return read_within(path, most_bytes)
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        reason = error.strerror if isinstance(error, OSError) else error
        raise ProgramError(f"cannot read {os.fspath(path)!r}: {reason}") from None


def read_operations(
    program: bytes, p4info: _Path | None, entries: _Path, cpu_port: int | None = CPU_PORT
) -> list[Operation]:
    """Return what a P4Runtime WriteRequest in a text file asks for, checked against a program and its P4Info."""
    if p4info is None:
        raise ProgramError(
            f"{os.fspath(entries)}: entries need the P4Info that p4c wrote beside the program; give it too"
        )
    try:
        from tensorexpress.switch.p4runtime.entities import read_entries
    except ImportError as error:
        raise MachineError(f"entries need {error.name}; pip install 'tensorexpress[p4]'") from None
    try:
        return read_entries(read_text(p4info), read_text(entries), program, cpu_port=cpu_port)
    except ProgramError as error:
        raise ProgramError(f"{os.fspath(entries)}: {error}") from None


def read_text(path: _Path) -> str:
    """Return a file in protobuf's text format."""
    try:
        return _read(path, _LARGEST_TEXT_BYTES).decode()
    except UnicodeDecodeError:
        raise ProgramError(f"{os.fspath(path)}: not text; give protobuf text format") from None
