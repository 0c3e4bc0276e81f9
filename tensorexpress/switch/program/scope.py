"""The names of generated code: which variable holds what, which stage uses it, and how headers are cut into variables.

Generated code is executed, and a program may come from anyone. So its text holds no word of the program: every name in
it is a letter and a number, counted here, and whatever text the code needs reaches it as an object under such a name.

A program is generated several times. Each time records which variables the stages read and write; the next time leaves
out what nobody reads, until nothing changes. So a field that is never looked at is never extracted, and a header that
is never written to leaves as the bytes it came in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tensorexpress.errors import ProgramError
from tensorexpress.switch.program.bmv2 import Field, Header, HeaderType, Program
from tensorexpress.switch.program.budgets import LONGEST_SOURCE, Work

#: struct's codes for a number of that many bytes; where there are two, the first holds the higher bytes.
_CODES = {1: "B", 2: "H", 3: "BH", 4: "I", 5: "BI", 6: "HI", 8: "Q", 9: "BQ", 10: "HQ", 12: "IQ", 16: "QQ"}
_CODE_BITS = {"B": 8, "H": 16, "I": 32, "Q": 64}

#: What an identifier names, by its first letter: no other names of generated code are a letter and a number.
_LETTERS = {
    "variable": "f",
    "table": "t",
    "register": "r",
    "counter": "c",
    "meter": "m",
    "value set": "s",
    "hash": "h",
    "text": "x",
    "constant": "k",
    "unit": "u",
    "value": "e",
}

#: A part of a header: the name of a field, or a tuple, which no name can be.
Part = str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Var:
    """A variable of generated code: a field of a header, or one of the parts below."""

    header: str
    part: Part


VALID, BYTES, NEXT = ("valid",), ("bytes",), ("next",)


class Lines:
    """Source text that grows line by line, and which variables are sure to have a value where it ends."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.depth = self.deepest = self._size = 0
        self._settled: list[set[Var]] = [set()]

    def add(self, line: str) -> None:
        """Append one line at the present depth."""
        self.text.append("    " * self.depth + line)
        self._size += len(self.text[-1])
        if self._size > LONGEST_SOURCE:
            raise ProgramError(
                f"the program becomes more than {LONGEST_SOURCE} characters of code; make it smaller: fewer tables "
                "that share long actions, smaller header stacks"
            )

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Append a line that ends in a colon; what is added inside stands below it."""
        self.add(head)
        self.depth += 1
        self.deepest = max(self.depth, self.deepest)
        self._settled.append(set())
        start = len(self.text)
        yield
        if len(self.text) == start:
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
    def unit(self) -> Part:
        """The part that names the group as one number."""
        return ("unit", self.fields[0].name)

    @property
    def opaque(self) -> Part:
        """The part that names the group as bytes."""
        return ("raw", self.fields[0].name)


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

    def parts(self) -> tuple[Part, ...]:
        """Return the parts of the header that are variables of this slot."""
        group = self.groups[0]
        if self.mode in ("fields", "varbit"):
            return tuple(item.name for item in group.fields)
        return (group.unit if self.mode == "unit" else group.opaque,)


class Scope:
    """What the writers of generated code share in one generation of a program."""

    def __init__(self, program: Program, previous: Usage | None, work: Work):
        self.program = program
        self.work = work
        self.previous = previous
        self.usage = Usage()
        self.stage = "ingress"
        self.lines = Lines()
        self.preamble: dict[str, str] = {}
        self.objects: dict[tuple[str, str], str] = {}
        #: Identifier -> what it names, in the program's own words.
        self.labels: dict[str, str] = {}
        self._names: dict[Var | tuple[str, str | Var], str] = {}
        self._counts: Counter[str] = Counter()
        #: Characters of code that one step of a loop runs at most, by stage; only stages with loops are there.
        self.loop_costs: dict[str, int] = {}
        self._slots: dict[str, tuple[Slot, ...]] = {}
        self._rebuilt: dict[str, bool] = {}
        self._used = None if previous is None else previous.wanted | previous.changed
        self.union_of = {header: union for union in program.unions.values() for header in union.headers}
        self._peers: dict[str, list[str]] = {}
        for header in program.headers.values():
            self._peers.setdefault(header.type.name, []).append(header.name)

    def name(self, var: Var) -> str:
        """Return the identifier of a variable."""
        self.work.spend()
        known = self._names.get(var)
        if known is None:
            part = var.part if isinstance(var.part, str) else " ".join(var.part)
            known = self._names[var] = self.fresh("variable", f"{var.header}.{part}")
        return known

    def fresh(self, kind: str, label: str) -> str:
        """Return an identifier that nothing has yet; the label says what it is to people, never to Python."""
        letter = _LETTERS[kind]
        self._counts[letter] += 1
        name = f"{letter}{self._counts[letter]}"
        self.labels[name] = label
        return name

    def once(self, kind: str, label: str, key: Var | None = None) -> str:
        """Return the identifier of something that is asked for by the same kind and label, or key, every time."""
        found = (kind, key or label)
        if found not in self._names:
            self._names[found] = self.fresh(kind, label)
        return self._names[found]

    def constant(self, definition: str) -> str:
        """Return the identifier of a constant of the generated module."""
        name = self.once("constant", definition)
        self.preamble[name] = definition
        return name

    def object(self, kind: str, name: str) -> str:
        """Return the identifier under which the generated code finds a table, register, counter, meter, text, ..."""
        self.objects[kind, name] = self.once(kind, name)
        return self.objects[kind, name]

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
        self.work.spend()
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
        kind = self.header(header).type
        if kind.name not in self._rebuilt:
            self._rebuilt[kind.name] = self.previous is None or any(
                Var(peer, item.name) in self.previous.changed for peer in self._peers[kind.name] for item in kind.fields
            )
        return self._rebuilt[kind.name]

    def slots(self, header: str) -> tuple[Slot, ...]:
        """Return the slots of a header's type, those that nobody looks into merged."""
        kind = self.header(header).type
        if kind.name not in self._slots:
            self.work.spend(len(kind.fields) * len(self._peers[kind.name]))
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

    def _is_used(self, kind: HeaderType, parts: Sequence[Part]) -> bool:
        if self._used is None:
            return True
        return any(Var(peer, part) in self._used for peer in self._peers[kind.name] for part in parts)

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
                    return self.constant(f"bytes({slot.size})")
                return 'b""' if slot.mode == "varbit" else "0"
        found = self.header(var.header).type.field(var.part) if isinstance(var.part, str) else None
        return 'b""' if found is not None and found.varbit else "0"


def code_bits(code: str) -> int | None:
    """Return the width of one struct code, None for bytes."""
    return _CODE_BITS.get(code)
