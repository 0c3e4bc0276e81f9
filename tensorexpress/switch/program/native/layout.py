"""The context of a packet: one block of memory, which native code and Python share.

    slots      numbers of 64 bits: what the switch tells the program, what the program decides
    state      where the payload starts, stacks, headers as they are on the wire, metadata that egress needs
    metadata   the rest of it: first what starts as 0
    areas      copies of the state, preserved fields, digests, arguments of calls to Python
    pointers   where registers, counters and tables are

A header's block has its validity, the size of its varbit and its bytes, the varbit at its greatest length.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tensorexpress.switch.program.bmv2.values import Bmv2Program, FieldInfo, FieldList, FieldRef, HeaderInfo
from tensorexpress.switch.program.codegen.generate import Generated
from tensorexpress.switch.program.codegen.layout import groups_of
from tensorexpress.switch.program.codegen.variables import Var
from tensorexpress.switch.program.native.regions import Regions
from tensorexpress.switch.program.native.unsupported import Unsupported

#: Bytes of a context at most.
LARGEST_CONTEXT = 2**18

#: What a packet tells egress, in the order of slots.
TOLD = (
    "ingress_port",
    "ingress_us",
    "instance_type",
    "egress_port",
    "egress_rid",
    "egress_us",
    "enq_us",
    "enq_qdepth",
    "deq_timedelta",
    "deq_qdepth",
    "length",
    "priority",
)

#: What stands in the slots, in this order. Python fills in those up to "priority", reads those from "length" to
#: "mcast_grp" after a stage, and those that decide something unusual where a stage says that it did.
SLOT_NAMES = (
    "preserved",
    "truncate_bytes",
    "recirculate_fields",
    *TOLD,
    "egress_spec",
    "mcast_grp",
    "clone_session",
    "clone_fields",
    "resubmit_fields",
    "digest",
    "kept",
    "frame",
    "frame_length",
    "parser_error",
    "steps",
    "malformed",
    "output",
    "scratch",
    "upcall",
    "round_robin",
    "failed",
)
SLOTS = {name: 8 * index for index, name in enumerate(SLOT_NAMES)}

#: Words of a table's descriptor.
DESCRIPTOR = ("rows", "row_bytes", "index", "index_mask", "groups", "group_count", "words", "ranges", "range_count")

#: Cells of an array of meters that are in memory, and the bytes of each; larger arrays are left to Python.
MOST_METERS, METER_BYTES = 2**16, 96

VALID_AT, VARBIT_SIZE_AT, BYTES_AT = 0, 8, 16


def words_of(bits: int) -> int:
    """Return how many words of 64 bits hold so many bits; at least one."""
    return max(-(-bits // 64), 1)


@dataclass(frozen=True, slots=True)
class WordCell:
    """A number in memory: an offset, whole words, and how it is read."""

    offset: int
    words: int
    signed: bool = False


@dataclass(frozen=True, slots=True)
class VarbitPlace:
    """Where a varbit is in the context: how many bytes it has, the bytes, and how many they may be."""

    size_at: int
    offset: int
    most_bytes: int


@dataclass(frozen=True, slots=True)
class HeaderPlace:
    """Where a header is in the context. Fields are at bits behind the first of its bytes."""

    offset: int
    size: int
    bits: dict[str, int]
    varbit: FieldInfo | None
    #: Byte at which the varbit starts, and how many it may have.
    varbit_at: int
    varbit_bytes: int

    @property
    def fixed_bytes(self) -> int:
        """Bytes on the wire, the varbit not counted."""
        return self.size - self.varbit_bytes

    @property
    def shape(self) -> tuple[int, int, int]:
        """Bytes, start and size of the varbit: headers of one shape may take each other's bytes."""
        return self.size, self.varbit_at, self.varbit_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of the whole block."""
        return _aligned(BYTES_AT + self.size)


class Layout:
    """Where everything is in the context of a program."""

    def __init__(self, program: Bmv2Program, generated: Generated):
        self._program = program
        live = {var for stage in generated.usage.live.values() for var in stage}
        #: The pieces that the context consists of.
        self.regions = Regions()
        self._end = 0
        self._take(8 * len(SLOT_NAMES), "slots")
        self.state = self.at = self._take(8, "start of the payload")
        stacks = (*program.stacks, *program.union_stacks)
        self.next = {name: self._take(8, f"elements of stack {name!r}") for name in stacks}
        self.headers = {header.name: self._header(header) for header in program.headers.values() if not header.metadata}
        self.state_metadata = self._end
        self.fields: dict[Var, WordCell] = {}
        self._varbits: dict[Var, VarbitPlace] = {}
        carried = [var for var in generated.carried if self._is_metadata(var)]
        self._place_fields(carried)
        self.state_end = self.exposed = self._end
        exposed = generated.usage.exposed["ingress"] | generated.usage.exposed["egress"]
        self._place_fields(var for var in live & exposed if self._is_metadata(var))
        self.exposed_end = self._end
        written = generated.usage.written["ingress"] | generated.usage.written["egress"]
        self._place_fields(var for var in live | written if self._is_metadata(var))
        self.clone = self._take(self.state_end - self.state, "state of a clone")
        self.preserved = self._end
        self.kept = {number: self._cells(number, fields) for number, fields in program.field_lists.items()}
        self.kept_end = self._end
        arrays = program.arrays
        self.registers = {name: self._take(8, f"address of register {name!r}") for name in arrays["register"]}
        self.counters = {name: self._take(16, f"addresses of counter {name!r}") for name in arrays["counter"]}
        #: Those that are small enough to have memory for every cell.
        self.meters = {
            name: self._take(8, f"address of meter {name!r}")
            for name, info in arrays["meter"].items()
            if info.table is None and 0 < info.size <= MOST_METERS
        }
        self.tables = {
            name: self._take(8 * len(DESCRIPTOR), f"descriptor of table {name!r}") for name in program.tables
        }
        #: Pointers to members and to groups; a group is a pointer to numbers of members, and how many there are.
        self.profiles = {name: self._take(16, f"addresses of profile {name!r}") for name in program.profiles}
        #: Arguments of calls to Python, and the values of a digest, stand at the end.
        self.arguments = self._end

    @property
    def size(self) -> int:
        """Bytes of the context."""
        return self._end

    def varbit(self, field: FieldRef) -> VarbitPlace:
        """Return where a varbit of a header or of metadata is."""
        header = self.headers.get(field.header)
        if header is None:
            return self._varbits[Var(field.header, field.field)]
        offset = header.offset + BYTES_AT + header.varbit_at
        return VarbitPlace(header.offset + VARBIT_SIZE_AT, offset, header.varbit_bytes)

    def _take(self, size: int, name: str) -> int:
        start = self._end
        self._advance(start + _aligned(size))
        self.regions.add(name, start, _aligned(size))
        return start

    def _advance(self, end: int) -> None:
        self._end = end
        if end > LARGEST_CONTEXT:
            raise Unsupported(f"its headers, metadata and tables take more than {LARGEST_CONTEXT} bytes for a packet")

    def _is_metadata(self, var: Var) -> bool:
        header = self._program.headers.get(var.header)
        return header is not None and header.metadata and isinstance(var.part, str)

    def _place_fields(self, variables: Iterable[Var]) -> None:
        for var in sorted(variables, key=lambda var: (var.header, var.part)):
            if var in self.fields or var in self._varbits:
                continue
            assert isinstance(var.part, str)
            info = self._program.field(FieldRef(var.header, var.part))
            if info.varbit:
                name = f"{var.header}.{var.part}"
                size_at, offset = self._take(8, f"size of {name!r}"), self._take(info.bits // 8, f"varbit {name!r}")
                self._varbits[var] = VarbitPlace(size_at, offset, info.bits // 8)
            else:
                words = words_of(info.bits)
                at = self._take(8 * words, f"field '{var.header}.{var.part}'")
                self.fields[var] = WordCell(at, words, info.signed)

    def _header(self, header: HeaderInfo) -> HeaderPlace:
        bits: dict[str, int] = {}
        at = varbit_at = varbit_bytes = 0
        varbit = None
        for group in groups_of(header.type):
            first = group.fields[0]
            if first.varbit:
                if varbit is not None:
                    raise Unsupported(f"header {header.name!r} has two varbits")
                varbit, varbit_at, varbit_bytes = first, at // 8, first.bits // 8
                at += 8 * varbit_bytes
                continue
            for item in group.fields:
                bits[item.name] = at
                at += item.bits
        size = at // 8
        at = self._take(BYTES_AT + size, f"header {header.name!r}")
        return HeaderPlace(at, size, bits, varbit, varbit_at, varbit_bytes)

    def _cells(self, number: int, fields: FieldList) -> dict[FieldRef, WordCell]:
        """Return where the fields of a list are kept; only fields can be given back."""
        cells = {}
        for item in fields.fields:
            if isinstance(item, FieldRef):
                info = self._program.field(item)
                if info.varbit:
                    raise Unsupported(f"{item.header}.{item.field}, a varbit, is preserved")
                words = words_of(info.bits)
                at = self._take(8 * words, f"'{item.header}.{item.field}', kept in list {number}")
                cells[item] = WordCell(at, words, info.signed)
        return cells

    def argument_cells(self, widths: Iterable[tuple[int, bool]]) -> tuple[WordCell, ...]:
        """Return where numbers of these bits, signed or not, are handed to Python."""
        cells, at = [], self.arguments
        for bits, signed in widths:
            cells.append(WordCell(at, words_of(bits), signed))
            at += 8 * words_of(bits)
        if at > self._end:
            self._advance(_aligned(at))
            self.regions.grow("arguments of calls", self._end)
        return tuple(cells)


def _aligned(size: int) -> int:
    return -(-size // 8) * 8
