"""The names of generated code: which variable holds what, which stage uses it, and how headers are cut into variables.

A program is generated several times. Each time records which variables the stages read and write; the next time leaves
out what nobody reads, until nothing changes. So a field that is never looked at is never extracted, and a header that
is never written to leaves as the bytes it came in.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tensorexpress.errors import ProgramError
from tensorexpress.switch.program.bmv2 import Field, Header, HeaderType, Program

#: struct's codes for a number of that many bytes; where there are two, the first holds the higher bytes.
_CODES = {1: "B", 2: "H", 3: "BH", 4: "I", 5: "BI", 6: "HI", 8: "Q", 9: "BQ", 10: "HQ", 12: "IQ", 16: "QQ"}
_CODE_BITS = {"B": 8, "H": 16, "I": 32, "Q": 64}

#: Names that generated code uses for itself.
_RESERVED = frozenset(
    re.findall(
        r"\w+",
        """
        packet frame length at step jump parser_error checksum_error size_bits varbit_size
        row picked members action key index data total kept clone
        Struct ingress egress reparse malformed nothing randint pack_bits word_sum broken_claim log_message
        """,
    )
).union(keyword.kwlist, dir(builtins))

#: What is appended to the name of an object to name a part of it.
_SUFFIXES = {"table": ("", "_known"), "counter": ("_packets", "_bytes")}


@dataclass(frozen=True, slots=True)
class Var:
    """A variable of generated code: a field of a header, or one of the parts below."""

    header: str
    part: str


VALID, BYTES, NEXT = "$valid$", "$bytes$", "$next$"


class Lines:
    """Source text that grows line by line, and which variables are sure to have a value where it ends."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.depth = self.deepest = 0
        self._settled: list[set[Var]] = [set()]

    def add(self, line: str) -> None:
        """Append one line at the present depth."""
        self.text.append("    " * self.depth + line)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Append a line that ends in a colon; what is added inside stands below it."""
        self.add(head)
        self.depth += 1
        self.deepest = max(self.depth, self.deepest)
        self._settled.append(set())
        start = len(self.text)
        yield
        if all(line.lstrip().startswith("#") for line in self.text[start:]):
            self.add("pass")
        self._settled.pop()
        self.depth -= 1
        if head == "else:":
            self._tidy_else(start)

    def _tidy_else(self, start: int) -> None:
        """Drop an `else` that does nothing; make one that holds nothing but another `if` an `elif`."""
        if [line.strip() for line in self.text[start:]] == ["pass"]:
            del self.text[start - 1 :]
            return
        inner = "    " * (self.depth + 1)
        heads = [line for line in self.text[start:] if line.startswith(inner) and line[len(inner)] != " "]
        if heads[0].startswith(f"{inner}if ") and all(line.startswith(f"{inner}el") for line in heads[1:]):
            self.text[start - 1 :] = [line[4:] for line in self.text[start:]]
            self.text[start - 1] = "    " * self.depth + "el" + self.text[start - 1].lstrip()

    def settle(self, var: Var) -> None:
        """Note that the last line gave a variable a value; what is below a block may not be reached."""
        self._settled[-1].add(var)

    def is_settled(self, var: Var) -> bool:
        """Whether a variable has a value here, on whatever path this point is reached."""
        return any(var in known for known in self._settled)


@dataclass
class Usage:
    """Which variables the stages use. Stages are "ingress" (with the parser) and "egress" (with the deparser)."""

    #: Read or carried along, by stage.
    live: dict[str, set[Var]] = field(default_factory=lambda: {"ingress": set(), "egress": set()})
    #: Read where no value is sure to be, by stage: these start with one.
    exposed: dict[str, set[Var]] = field(default_factory=lambda: {"ingress": set(), "egress": set()})
    #: Given a value, by stage.
    written: dict[str, set[Var]] = field(default_factory=lambda: {"ingress": set(), "egress": set()})
    #: Read by the program itself, not only carried along.
    wanted: set[Var] = field(default_factory=set)
    #: Written by the program itself, not only extracted.
    changed: set[Var] = field(default_factory=set)
    #: Headers that may lose their validity.
    invalidated: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Group:
    """Fields that together fill whole bytes; `shifts` are the distances of the fields from the group's low end."""

    fields: tuple[Field, ...]
    shifts: tuple[int, ...]
    size: int

    @property
    def unit(self) -> str:
        """The part that names the group as one number."""
        return f"$unit {self.fields[0].name}$"

    @property
    def opaque(self) -> str:
        """The part that names the group as bytes."""
        return f"$raw {self.fields[0].name}$"


def groups_of(header_type: HeaderType) -> tuple[Group, ...]:
    """Cut a header into its smallest groups of whole bytes; a varbit field is a group of its own."""
    groups: list[Group] = []
    open_fields: list[Field] = []
    bits = 0
    for item in header_type.fields:
        if item.varbit:
            if bits:
                raise ProgramError(f"header type {header_type.name!r}: {item.name!r} does not start at a whole byte")
            groups.append(Group((item,), (0,), 0))
            continue
        open_fields.append(item)
        bits += item.bits
        if bits % 8 == 0:
            groups.append(_group(open_fields, bits))
            open_fields, bits = [], 0
    if bits:
        raise ProgramError(f"header type {header_type.name!r} does not end at a whole byte")
    return tuple(groups)


def _group(fields: list[Field], bits: int) -> Group:
    shifts, left = [], bits
    for item in fields:
        left -= item.bits
        shifts.append(left)
    return Group(tuple(fields), tuple(shifts), bits // 8)


@dataclass(frozen=True, slots=True)
class Slot:
    """One or more groups as one item of a header's struct: `mode` is fields, unit, raw or varbit."""

    groups: tuple[Group, ...]
    mode: str

    @property
    def size(self) -> int:
        """Bytes of the slot; 0 for a varbit."""
        return sum(group.size for group in self.groups)

    def codes(self) -> tuple[str, ...]:
        """Return struct's codes: one, or two where no single one fits."""
        if self.mode == "raw":
            return (f"{self.size}s",)
        return tuple(_CODES.get(self.size, "")) or (f"{self.size}s",)

    def parts(self) -> tuple[str, ...]:
        """Return the parts of the header that are variables of this slot."""
        group = self.groups[0]
        if self.mode in ("fields", "varbit"):
            return tuple(item.name for item in group.fields)
        return (group.unit if self.mode == "unit" else group.opaque,)


class Scope:
    """What the writers of generated code share in one generation of a program."""

    def __init__(self, program: Program, previous: Usage | None):
        self.program = program
        self.previous = previous
        self.usage = Usage()
        self.stage = "ingress"
        self.lines = Lines()
        self.preamble: dict[str, str] = {}
        self.objects: dict[tuple[str, str], str] = {}
        self._names: dict[Var | str, str] = {}
        self._taken = set(_RESERVED)
        self._slots: dict[str, tuple[Slot, ...]] = {}
        self.union_of = {header: union for union in program.unions.values() for header in union.headers}
        self._peers: dict[str, list[str]] = {}
        for header in program.headers.values():
            self._peers.setdefault(header.type.name, []).append(header.name)

    def name(self, var: Var) -> str:
        """Return the identifier of a variable."""
        if var not in self._names:
            part = {VALID: "valid", BYTES: "wire", NEXT: "next"}.get(var.part, var.part)
            known = self.program.headers.get(var.header)
            words = part if known is not None and var.header == "scalars" else f"{var.header}_{part}"
            self._names[var] = self.fresh(words)
        return self._names[var]

    def fresh(self, words: str, suffixes: tuple[str, ...] = ("",)) -> str:
        """Return an identifier made of some words that nothing has yet, not even with one of the suffixes."""
        base = re.sub(r"[\W_]+", "_", words).strip("_") or "value"
        base = f"_{base}" if base[0].isdigit() else base
        name, count = base, 1
        while any(name + suffix in self._taken for suffix in suffixes):
            count += 1
            name = f"{base}_{count}"
        self._taken.update(name + suffix for suffix in suffixes)
        return name

    def once(self, key: str, words: str, suffixes: tuple[str, ...] = ("",)) -> str:
        """Return the identifier of something that is asked for by the same key every time."""
        if key not in self._names:
            self._names[key] = self.fresh(words, suffixes)
        return self._names[key]

    def constant(self, words: str, definition: str) -> str:
        """Return the identifier of a constant of the generated module."""
        name = self.once(f"{words} = {definition}", words)
        self.preamble[name] = definition
        return name

    def object(self, kind: str, name: str) -> str:
        """Return the identifier under which the generated code finds a table, register, counter, meter, ..."""
        words = f"hash_{name}" if kind == "hash" else name
        identifier = self.once(f"{kind} {name}", words, _SUFFIXES.get(kind, ("",)))
        self.objects[kind, name] = identifier
        return identifier

    def read(self, var: Var) -> str:
        """Return the identifier of a variable whose value the program uses."""
        self.usage.wanted.add(var)
        return self.carry(var)

    def carry(self, var: Var) -> str:
        """Return the identifier of a variable that has to be there, though the program does not look at it."""
        self.usage.live[self.stage].add(var)
        if not self.lines.is_settled(var):
            self.usage.exposed[self.stage].add(var)
        return self.name(var)

    def is_live(self, var: Var) -> bool:
        """Whether anything needs the value of a variable."""
        return self.previous is None or any(var in live for live in self.previous.live.values())

    def write(self, var: Var) -> str | None:
        """Return the identifier of a variable that the program sets, None when nobody needs it."""
        self.usage.changed.add(var)
        return self.fill(var)

    def fill(self, var: Var) -> str | None:
        """Return the identifier of a variable that is set from outside, None when nobody needs it."""
        if not self.is_live(var):
            return None
        self.usage.written[self.stage].add(var)
        return self.name(var)

    def header(self, name: str) -> Header:
        """Return what is known of a header."""
        return self.program.headers[name]

    def is_rebuilt(self, header: str) -> bool:
        """Whether headers of this one's type are put together from variables, not copied from the frame."""
        if self.previous is None:
            return True
        fields = self.header(header).type.fields
        return any(
            Var(peer, item.name) in self.previous.changed
            for peer in self._peers[self.header(header).type.name]
            for item in fields
        )

    def slots(self, header: str) -> tuple[Slot, ...]:
        """Return the slots of a header's type, those that nobody looks into merged."""
        kind = self.header(header).type
        if kind.name not in self._slots:
            self._slots[kind.name] = self._merged([self._mode(kind, group) for group in groups_of(kind)])
        return self._slots[kind.name]

    def _mode(self, kind: HeaderType, group: Group) -> Slot:
        if group.fields[0].varbit:
            return Slot((group,), "varbit")
        if self._is_used(kind, [item.name for item in group.fields]):
            return Slot((group,), "fields")
        if self._is_used(kind, [group.unit]):
            return Slot((group,), "fields" if len(group.fields) == 1 else "unit")
        return Slot((group,), "raw")

    def _is_used(self, kind: HeaderType, parts: list[str]) -> bool:
        if self.previous is None:
            return True
        used = self.previous.wanted | self.previous.changed
        return any(Var(peer, part) in used for peer in self._peers[kind.name] for part in parts)

    @staticmethod
    def _merged(slots: list[Slot]) -> tuple[Slot, ...]:
        merged: list[Slot] = []
        for slot in slots:
            if merged and slot.mode == "raw" == merged[-1].mode:
                merged[-1] = Slot(merged[-1].groups + slot.groups, "raw")
            else:
                merged.append(slot)
        return tuple(merged)

    def variables(self, header: str) -> list[Var]:
        """Return all variables that make up a header's content, validity aside."""
        if self.header(header).metadata:
            return [Var(header, item.name) for item in self.header(header).type.fields]
        parts = [Var(header, part) for slot in self.slots(header) for part in slot.parts()]
        return parts if self.is_rebuilt(header) else [*parts, Var(header, BYTES)]

    def nothing(self, var: Var) -> str:
        """Return the text of a variable's value before anything was stored in it."""
        if var.part == BYTES:
            return 'b""'
        if var.part in (VALID, NEXT) or var.header not in self.program.headers:
            return "0"
        for slot in self.slots(var.header) if not self.header(var.header).metadata else ():
            if var.part in slot.parts():
                if slot.mode == "raw":
                    return self.constant(f"zero_{slot.size}", f"bytes({slot.size})")
                return 'b""' if slot.mode == "varbit" else "0"
        found = self.header(var.header).type.field(var.part)
        return 'b""' if found is not None and found.varbit else "0"


def code_bits(code: str) -> int | None:
    """Return the width of one struct code, None for bytes."""
    return _CODE_BITS.get(code)
