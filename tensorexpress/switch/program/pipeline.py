"""One loaded program: the functions made from it, its tables and its other state."""

from __future__ import annotations

import logging
import marshal
import re
from collections.abc import Callable, Iterable, Iterator
from random import Random
from struct import Struct
from typing import Any

from tensorexpress.switch.operations import (
    DeleteEntry,
    DeleteGroup,
    DeleteMember,
    Entry,
    MeterRates,
    Operation,
    Query,
    ReadCounter,
    ReadIdleTime,
    ReadRegister,
    SetDefault,
    SetEntry,
    SetGroup,
    SetMember,
    SetMeter,
    SetValueSet,
    WriteCounter,
    WriteRegister,
)
from tensorexpress.switch.packet import EndlessLoop, SwitchPacket
from tensorexpress.switch.program.bmv2.document import CONTRADICTIONS, contradiction
from tensorexpress.switch.program.bmv2.values import ArrayInfo, TableInfo
from tensorexpress.switch.program.budgets import MOST_REMEMBERED
from tensorexpress.switch.program.compiled import CompiledProgram, compile_program
from tensorexpress.switch.program.externs import ARRAYS, ValueSet
from tensorexpress.switch.program.hashes import hash_function
from tensorexpress.switch.program.tables import NOTHING, ActionProfile, MatchTable, TableRow, make_table

_log = logging.getLogger(__name__)

#: All of Python that generated code can call.
_BUILTINS = {function.__name__: function for function in (bytes, int, iter, len, max, min, range)}

#: Broken claims of a program that are logged; the others are only counted.
_CLAIMS_LOGGED = 10

#: Cells of an array that are freed in one step.
_CELLS_AT_ONCE = 4096


class Pipeline:
    """A BMv2 program, compiled when it is loaded, with the state that it keeps between packets.

    `source` is the Python text that packets run through. Nothing here looks at a clock: packets bring their times.
    """

    def __init__(self, program: bytes | CompiledProgram, seed: int = 0):
        """Make a pipeline from BMv2 JSON, or from a compiled program; const entries of that are left to the caller."""
        self.program = compile_program(program) if isinstance(program, bytes) else program
        self._random = Random(seed)
        try:
            self._load()
            if isinstance(program, bytes):
                for entry in self.program.entries:
                    self.apply(entry)
        except CONTRADICTIONS as error:
            raise contradiction(error) from None

    def _load(self) -> None:
        self._profiles = {name: self._make_profile(name) for name in self.program.profiles}
        self._tables = {name: self._make_table(info) for name, info in self.program.tables.items()}
        found = [table for table in self._tables.values() if table.info.key and not table.info.is_exact]
        for table in found:
            table.most_remembered = min(table.most_remembered, max(1, MOST_REMEMBERED // len(found)))
        #: By kind, then by name; a direct array has its cells in the rows of its table.
        self._arrays: dict[str, dict[str, Any]] = {
            kind: {name: self._make_array(kind, info) for name, info in arrays.items() if info.table is None}
            for kind, arrays in self.program.arrays.items()
        }
        self._value_sets = {name: ValueSet() for name in self.program.value_sets}
        self._malformed = [0]
        self._now_us = 0
        #: Conditions of `assert` and `assume` that did not hold.
        self.broken_claims = 0
        self.source = self.program.source
        #: What the identifiers of `source` stand for, in the program's words.
        self.names = self.program.labels
        self._namespace = functions = self._functions()
        #: Parser, checksum verification and ingress control of one packet.
        self.ingress: Callable[[SwitchPacket], None] = functions["ingress"]
        #: Egress control, checksum update and, unless the packet is dropped, deparser. A clone that ingress asked for
        #: comes with no state, one that egress asked for with the state that egress left on its original.
        self.egress: Callable[[SwitchPacket], None] = functions["egress"]

    def _make_profile(self, name: str) -> ActionProfile:
        return ActionProfile()

    def _make_table(self, info: TableInfo) -> MatchTable:
        return make_table(info, self._profiles[info.profile] if info.profile is not None else None)

    def _make_array(self, kind: str, info: ArrayInfo) -> Any:
        return ARRAYS[kind](info.size)

    @property
    def state_bytes(self) -> int:
        """Bytes that a packet carries from ingress to egress."""
        return self.program.state_bytes

    @property
    def malformed(self) -> int:
        """Frames that ended the parser with an error."""
        return self._malformed[0]

    def _functions(self) -> dict[str, Any]:
        """Return the program's functions, with the objects that they use beside them."""
        namespace: dict[str, Any] = {
            "__builtins__": _BUILTINS,
            "Struct": Struct,
            "malformed": self._malformed,
            "nothing": NOTHING,
            "randint": self._random.randint,
            "pack_bits": pack_bits,
            "word_sum": word_sum,
            "broken_claim": self._broken_claim,
            "log_message": log_message,
            "endless": endless,
        }
        for (kind, what), name in self.program.objects.items():
            match kind:
                case "table":
                    namespace[name] = self._tables[what]
                    namespace[f"{name}_known"] = self._tables[what].known.get
                case "value set":
                    namespace[name] = self._value_sets[what]
                case "hash":
                    namespace[name] = hash_function(what, self._random)
                case "text":
                    namespace[name] = what
                case _:
                    namespace.update(self._arrays[kind][what].bindings(name))
        exec(marshal.loads(self.program.code), namespace)
        return namespace

    def swap(self, program: CompiledProgram) -> None:
        """Run the same program as other machine code from now on, with all state as it is; in Python there is none."""

    def deparse(self, packet: SwitchPacket) -> bytes:
        """Return the bytes of a packet that has been through egress and is not dropped."""
        data: bytes = packet.state[1]
        return data[: packet.truncate_bytes]

    def preserve(self, packet: SwitchPacket, field_list: int) -> tuple[Any, ...]:
        """Return what the next pass of a packet takes as its `preserved`, for a list that this pass asked for."""
        kept = packet.state[0]
        return (field_list, kept[field_list]) if kept and kept.get(field_list) else ()

    def _broken_claim(self, what: str) -> None:
        self.broken_claims += 1
        if self.broken_claims <= _CLAIMS_LOGGED:  # every packet may break one
            _log.warning("%s", what)

    def apply(self, operation: Operation) -> None:
        """Change a table, a profile, a register, a counter, a meter or a value set."""
        match operation:
            case SetEntry(entry):
                self._tables[entry.table].set_entry(operation, self._now_us)
            case DeleteEntry(entry):
                self._tables[entry.table].delete_entry(entry)
            case SetDefault(table, action):
                self._tables[table].set_default(action)
            case SetMember(profile):
                self._profiles[profile].set_member(operation, self._profile_actions(profile))
            case DeleteMember(profile):
                self._profiles[profile].delete_member(operation)
            case SetGroup(profile):
                self._profiles[profile].set_group(operation)
            case DeleteGroup(profile):
                self._profiles[profile].delete_group(operation)
            case WriteRegister(register, index, value):
                self._arrays["register"][register].write(index, value)
            case WriteCounter(counter, index, packets, size_bytes):
                self._write_counter(counter, index, packets, size_bytes)
            case SetMeter(meter, index, rates):
                self._set_meter(meter, index, rates)
            case SetValueSet(value_set, members):
                self._value_sets[value_set].set(members)
            case _:
                raise TypeError(f"{type(operation).__name__} is not for the pipeline")

    def _profile_actions(self, profile: str) -> dict[str, int]:
        """Return the actions of the tables that share a profile, by name."""
        tables = [info for info in self.program.tables.values() if info.profile == profile]
        return {name: number for info in tables for name, number in info.actions.items()}

    def _rows(self, kind: str, array: str, index: int | Entry | None) -> list[TableRow]:
        """Return the rows whose cells of a direct array are meant."""
        if isinstance(index, Entry):
            row = self._tables[index.table].row(index)
            return [] if row is None else [row]
        info = self.program.arrays[kind].get(array)
        if info is None or info.table is None or index is not None:
            raise KeyError(f"{array} has no cell {index}")
        return list(self._tables[info.table].rows.values())

    def _write_counter(self, counter: str, index: int | Entry | None, packets: int, size_bytes: int) -> None:
        if counter in self._arrays["counter"] and not isinstance(index, Entry):
            self._arrays["counter"][counter].write(index, packets, size_bytes)
            return
        for row in self._rows("counter", counter, index):
            row.packets, row.bytes = packets, size_bytes

    def _set_meter(self, meter: str, index: int | Entry | None, rates: MeterRates | None) -> None:
        if meter in self._arrays["meter"] and not isinstance(index, Entry):
            self._arrays["meter"][meter].configure(index, rates)
            return
        for row in self._rows("meter", meter, index):
            if row.meter is not None:
                row.meter.configure(rates)

    def ask(self, query: Query) -> Iterable[Any]:
        """Return what a register, a counter or an entry's idle time is now; making the items may take longer."""
        match query:
            case ReadRegister(register, index):
                cells: list[int] = self._arrays["register"][register].read(index)
                return cells
            case ReadCounter(counter, index):
                if counter in self._arrays["counter"] and not isinstance(index, Entry):
                    counts: Iterable[Any] = self._arrays["counter"][counter].read(index)
                    return counts
                rows = self._rows("counter", counter, index)
                if len(rows) > 1:
                    return ((row.packets, row.bytes) for row in rows)
                return [(row.packets, row.bytes) for row in rows] or [(0, 0)]
            case ReadIdleTime(entry):
                row = self._tables[entry.table].row(entry)
                return [max(0, self._now_us - row.hit_us) * 1000 if row else 0]
        raise TypeError(f"{type(query).__name__} is no query")

    def idle_entries(self, now_us: int) -> Iterator[Entry | None]:
        """Yield the entries whose idle timeout has passed since they were hit or reported last.

        There is a None for every other one, so that whoever takes the items decides how many are looked at.
        """
        self._now_us = now_us
        return self._idle_entries(now_us)

    def _idle_entries(self, now_us: int) -> Iterator[Entry | None]:
        for table in self._tables.values():
            if table.info.ages:
                for row in list(table.rows.values()):
                    if row.timeout_us and now_us - row.hit_us >= row.timeout_us:
                        row.hit_us = now_us
                        yield row.entry
                    else:
                        yield None

    def dismantle(self) -> Iterator[None]:
        """Give all memory back, a little at every step: a large table takes longer to free than packets can wait.

        Functions and what they use refer to each other; taking that apart leaves nothing to a garbage collector.
        """
        self._namespace.clear()
        for table in self._tables.values():
            for row in list(table.rows.values()):
                assert row.entry is not None
                table.delete_entry(row.entry)
                yield
        for arrays in self._arrays.values():
            for cells in (cells for array in arrays.values() for cells in array.lists()):
                while cells:
                    del cells[-_CELLS_AT_ONCE:]
                    yield


def pack_bits(*pairs: tuple[int, int]) -> bytes:
    """Return numbers of so many bits each, packed one after the other and filled up to whole bytes.

    >>> pack_bits((0xA, 4), (0xBC, 8))
    b'\\xab\\xc0'
    """
    number = size = 0
    for value, bits in pairs:
        number = number << bits | value
        size += bits
    whole = -(-size // 8)
    return (number << whole * 8 - size).to_bytes(whole, "big")


def word_sum(data: bytes) -> int:
    """Return a number that has the same rest modulo 65535 as the sum of the 16-bit words, and is 0 only if it is.

    >>> word_sum(b"\\0\\1\\2") % 65535
    513
    """
    return int.from_bytes(data, "big") << 8 * (len(data) & 1)


def endless() -> None:
    """Raise that a packet was caught in a loop."""
    raise EndlessLoop("a packet used up the steps that loops of its program may take")


def log_message(text: str, *values: int) -> None:
    """Log a text with numbers in the place of its braces."""
    numbers = iter(values)
    _log.info("%s", re.sub(r"\{\}", lambda match: str(next(numbers, match.group())), text))
