"""One loaded program that packets pass in native code; its control plane is that of every pipeline."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from operator import attrgetter
from struct import Struct
from typing import Any

from tensorexpress.errors import ProgramError
from tensorexpress.machine_code import load
from tensorexpress.switch.packet import DROP_PORT, EGRESS_CLONE, SwitchPacket
from tensorexpress.switch.program.bmv2.values import ArrayInfo, TableInfo
from tensorexpress.switch.program.compiled import CompiledProgram
from tensorexpress.switch.program.externs import ARRAYS
from tensorexpress.switch.program.native.checking import CHECKED_SYMBOLS, AccessChecks, OutsideAccess
from tensorexpress.switch.program.native.generate import NativeLayout
from tensorexpress.switch.program.native.layout import SLOT_NAMES, SLOTS, TOLD, WordCell
from tensorexpress.switch.program.native.memory import (
    Block,
    NativeCounters,
    NativeMeters,
    NativeProfile,
    NativeRegisters,
    NativeTable,
    take_no_note,
)
from tensorexpress.switch.program.native.unit import Upcall
from tensorexpress.switch.program.pipeline import Pipeline, endless, log_message
from tensorexpress.switch.program.tables import ActionProfile, MatchTable

_WORD = Struct("<Q")

_told = attrgetter(*TOLD)

#: Slots that are filled in before a stage, and those that are read afterwards: always, and where it decided more.
_BEFORE_INGRESS = Struct("<6q56xq")
_BEFORE_EGRESS = Struct("<15q")
_USUAL = Struct("<q3Q")
_UNUSUAL = Struct("<8x2q112x5q")
_USUAL_AT = SLOTS["length"]
assert SLOT_NAMES[3:15] == TOLD
assert SLOT_NAMES[17:22] == ("clone_session", "clone_fields", "resubmit_fields", "digest", "kept")

#: Frames that there is room for from the start.
_USUAL_FRAME = 2**14


class NativePipeline(Pipeline):
    """A pipeline whose stages are machine code. What they read and write is one block of memory, the context."""

    def __init__(self, program: CompiledProgram, seed: int = 0):
        assert program.native is not None
        self._layout = program.native.layout
        self._context = Block(self._layout.size)
        self._view = memoryview(self._context.data)
        checks = self._layout.checks
        #: What a checked build tests its accesses by.
        self.checks = AccessChecks(checks, self._context.address) if checks is not None else None
        self._note = take_no_note if self.checks is None else self.checks.note
        self._use(program.native.code)
        self._state = slice(*self._layout.state)
        self._state_bytes = self._state.stop - self._state.start
        self._kept_start = min((start for start, _ in self._layout.kept.values()), default=0)
        self._kept_end = max((end for _, end in self._layout.kept.values()), default=0)
        self._room = 0
        self._make_room(_USUAL_FRAME)
        self._error: BaseException | None = None
        super().__init__(program, seed)
        self._calls = [self._callee(call) for call in self._layout.calls]
        self._callback = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(self._called)
        self._point("upcall", ctypes.c_void_p.from_buffer(self._callback).value or 0)  # cast would refer to itself

    def _use(self, code: bytes) -> None:
        functions = ("ingress", "egress", "fill_index")
        symbols = CHECKED_SYMBOLS if self.checks is not None else ()
        self._library, (ingress, egress, fill_index, *places) = load(code, (*functions, *symbols))
        if self.checks is not None:
            self.checks.use(dict(zip(symbols, places, strict=True)))
        #: Where the machine code of both stages is.
        self.stages = ingress, egress
        stage = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64)
        self._run_ingress, self._run_egress = stage(ingress), stage(egress)
        filler = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        self._fill_index: Callable[[int, int, int], None] = filler(fill_index)

    def swap(self, program: CompiledProgram) -> None:
        """Run the same program as other machine code from now on, on the memory that is there."""
        if program.native is None or program.native.layout != self._layout:
            raise ProgramError("this machine code is of another program; compile it again")
        self._use(program.native.code)
        for table in self._tables.values():
            assert isinstance(table, NativeTable)
            table.fill_index = self._fill_index

    def _functions(self) -> dict[str, Any]:
        """Return the stages of this class: nothing of the Python code is loaded."""
        return {"ingress": self._ingress, "egress": self._egress}

    @property
    def state_bytes(self) -> int:
        """Bytes that a packet carries from ingress to egress."""
        return self._state_bytes

    @property
    def malformed(self) -> int:
        """Frames that ended the parser with an error."""
        count: int = _WORD.unpack_from(self._context.data, SLOTS["malformed"])[0]
        return count

    # Memory.

    def _point(self, slot: str, address: int) -> None:
        _WORD.pack_into(self._context.data, SLOTS[slot], address)

    def _make_room(self, frame_bytes: int) -> None:
        """Have room for what leaves, and what hashes are computed of, for frames of that many bytes."""
        self._room = frame_bytes
        self._output = Block(frame_bytes + self._layout.header_bytes)
        self._output_view = memoryview(self._output.data)
        self._scratch = Block(frame_bytes + self._layout.scratch_bytes + 8)
        self._point("output", self._output.address)
        self._point("scratch", self._scratch.address)

    @property
    def context(self) -> Block:
        """What the stages read and write; `layout` says where."""
        return self._context

    @property
    def layout(self) -> NativeLayout:
        """Where everything is in the context."""
        return self._layout

    def have_room(self, frame_bytes: int) -> None:
        """Have room for frames of that many bytes."""
        if frame_bytes > self._room:
            self._make_room(frame_bytes)

    def _make_profile(self, name: str) -> ActionProfile:
        place, member_bytes = self._layout.profiles[name]
        return NativeProfile(name, self._context, place, member_bytes, self._layout.parameters, self._note)

    def _make_table(self, info: TableInfo) -> MatchTable:
        offset, layout = self._layout.tables[info.name]
        profile = self._profiles[info.profile] if info.profile is not None else None
        parameters, context = self._layout.parameters, self._context
        return NativeTable(info, profile, layout, parameters, context, offset, self._fill_index, self._note)

    def _make_array(self, kind: str, info: ArrayInfo) -> Any:
        match kind:
            case "register":
                registers = NativeRegisters(info.size, info.bits)
                _WORD.pack_into(self._context.data, self._layout.registers[info.name], registers.block.address)
                self._note(f"register {info.name!r}", registers.block)
                return registers
            case "counter":
                counters = NativeCounters(info.size)
                offset = self._layout.counters[info.name]
                _WORD.pack_into(self._context.data, offset, counters.packets.address)
                _WORD.pack_into(self._context.data, offset + 8, counters.bytes.address)
                self._note(f"packets of counter {info.name!r}", counters.packets)
                self._note(f"bytes of counter {info.name!r}", counters.bytes)
                return counters
        if info.name not in self._layout.meters:
            return ARRAYS[kind](info.size)
        meters = NativeMeters(info.size)
        _WORD.pack_into(self._context.data, self._layout.meters[info.name], meters.block.address)
        self._note(f"meter {info.name!r}", meters.block)
        return meters

    # Packets.

    def _ingress(self, packet: SwitchPacket) -> None:
        frame, data = packet.frame, self._context.data
        length = len(frame)
        self.have_room(length)
        cut, preserved = packet.truncate_bytes, packet.preserved
        _BEFORE_INGRESS.pack_into(
            data,
            0,
            self._preserved(preserved) if preserved else -1,
            -1 if cut is None else cut,
            -1,
            packet.ingress_port,
            packet.ingress_us,
            packet.instance_type,
            packet.length,
        )
        self.note_ingress(packet, self._run_ingress(self._context.address, frame, length))

    def note_ingress(self, packet: SwitchPacket, ended: int) -> None:
        """Let a packet have what ingress, which has just returned, decided."""
        data = self._context.data
        if ended < 0 or self._error is not None:
            self._fail()
        packet.length, packet.priority, packet.egress_spec, packet.mcast_grp = _USUAL.unpack_from(data, _USUAL_AT)
        kept = self._note_unusual(packet) if ended else b""
        if packet.egress_spec != DROP_PORT or packet.mcast_grp or kept:
            packet.state = (kept, data[self._state])

    def _egress(self, packet: SwitchPacket) -> None:
        frame, data, state = packet.frame, self._context.data, packet.state
        length = len(frame)
        self.have_room(length)
        if state:  # a clone that ingress asked for has none
            data[self._state] = state[2] if packet.instance_type == EGRESS_CLONE else state[1]
        cut, preserved = packet.truncate_bytes, packet.preserved
        _BEFORE_EGRESS.pack_into(
            data,
            0,
            self._preserved(preserved) if preserved else -1,
            -1 if cut is None else cut,
            packet.recirculate_fields,
            *_told(packet),
        )
        ended = self._run_egress(self._context.address, frame, length)
        self.note_egress(packet, ended, self._output_view)

    def note_egress(self, packet: SwitchPacket, ended: int, output: memoryview | bytes) -> None:
        """Let a packet have what egress, which has just returned, decided, and the bytes that leave."""
        data, again = self._context.data, packet.recirculate_fields
        if ended < 0 or self._error is not None:
            self._fail()
        packet.length, _, packet.egress_spec, _ = _USUAL.unpack_from(data, _USUAL_AT)
        packet.clone_session = -1
        kept = self._note_unusual(packet) if ended & 1 or again >= 0 else b""
        clone = data[self._layout.clone :][: self._state_bytes] if packet.clone_session >= 0 else b""
        packet.state = (kept, bytes(output[: ended >> 1]), clone)

    def _note_unusual(self, packet: SwitchPacket) -> bytes:
        """Let a packet have what a stage decided beside the usual; return what it keeps for a next pass."""
        (
            cut,
            packet.recirculate_fields,
            packet.clone_session,
            packet.clone_fields,
            packet.resubmit_fields,
            digest,
            is_kept,
        ) = _UNUSUAL.unpack_from(self._context.data, 0)
        if cut >= 0:
            packet.truncate_bytes = cut
        if digest in self._layout.digests:
            name, cells = self._layout.digests[digest]
            packet.digests = [(name, tuple(map(self._cell, cells)))]
        return self._kept() if is_kept else b""

    def _kept(self) -> bytes:
        return bytes(self._view[self._kept_start : self._kept_end])

    def _fail(self) -> None:
        """Raise what went wrong in Python, an access outside, or that the loops of the program were endless."""
        error, self._error = self._error, None
        self._point("failed", 0)
        if error is not None:
            raise error
        outside = self.checks.found() if self.checks is not None else None
        if outside is not None:
            raise OutsideAccess(outside)
        endless()

    def _preserved(self, preserved: tuple[Any, ...]) -> int:
        """Hand over the fields that the pass before preserved, and return the number of their list."""
        number, data = preserved
        start, end = self._layout.kept[number]
        self._view[start:end] = data
        return int(number)

    def preserve(self, packet: SwitchPacket, field_list: int) -> tuple[Any, ...]:
        """Return what the next pass of a packet takes as its `preserved`, for a list that this pass asked for."""
        start, end = self._layout.kept.get(field_list, (0, 0))
        kept: bytes = packet.state[0] if packet.state else b""
        if start == end or not kept:
            return ()
        return field_list, kept[start - self._kept_start : end - self._kept_start]

    # Calls from native code.

    def _cell(self, cell: WordCell) -> int:
        data = self._view[cell.offset : cell.offset + 8 * cell.words]
        return int.from_bytes(data, "little", signed=cell.signed)

    def _called(self, number: int, context: int) -> int:
        """Do what native code asks for; an error is raised when its stage has ended."""
        try:
            return self._calls[number]() or 0
        except BaseException as error:
            self._error = error
            self._point("failed", 1)
            return 0

    def _callee(self, call: Upcall) -> Callable[[], int | None]:
        """Return what a call runs, arguments included."""
        function = self._function(call)
        return lambda: function(*map(self._cell, call.arguments))

    def _function(self, call: Upcall) -> Callable[..., int | None]:
        match call.kind:
            case "meter":
                execute: Callable[..., int] = self._arrays["meter"][call.name].execute
                return execute
            case "direct meter":
                return lambda *given: self._direct_meter(call.name, *given)
            case "value set":
                return self._value_sets[call.name].holds
            case "randint":
                return self._random.randint
            case "random":
                return lambda: _signed(self._random.getrandbits(64))
            case "claim":
                return lambda: self._broken_claim(call.name)
            case "log":
                return lambda *values: log_message(call.name, *values)
        raise TypeError(call.kind)

    def _direct_meter(self, table: str, distance: int, units: int, now_us: int) -> int:
        found = self._tables[table]
        assert isinstance(found, NativeTable)
        meter = found.by_number[distance // found.layout.size].meter
        return meter.execute(units, now_us) if meter is not None else 0

    def dismantle(self) -> Iterator[None]:
        """Give all memory back, a little at every step."""
        yield from super().dismantle()
        # What refers to itself is taken apart.
        for table in self._tables.values():
            assert isinstance(table, NativeTable)
            table.let_go()
        for profile in self._profiles.values():
            profile.members.clear()
            profile.groups.clear()
        self._point("upcall", 0)
        del self._callback, self._calls, self.ingress, self.egress


def _signed(word: int) -> int:
    return word - 2**64 if word >> 63 else word
