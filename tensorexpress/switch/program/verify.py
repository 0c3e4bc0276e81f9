"""Checks a program that was read from BMv2 JSON, before any code is made of it: one set of rules for both engines.

Every reference has the kind and the type that its place needs. So the code generators (codegen/, native/) may rely on
this: both sides of a copy have one layout, all elements of a stack have one type. Rules about the form of the JSON
itself (a list where a list must be, ids that are not there) are in bmv2/, which has the place in the file at hand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from tensorexpress.errors import ProgramError, shown, unknown
from tensorexpress.switch.program.bmv2.document import wrong
from tensorexpress.switch.program.bmv2.values import (
    VALIDITY,
    ActionInfo,
    Bmv2Program,
    Condition,
    Const,
    Control,
    Expression,
    FieldInfo,
    FieldRef,
    HeaderInfo,
    LastField,
    Lookahead,
    Named,
    Operator,
    Parameter,
    Primitive,
    RegisterCell,
    Several,
    TableInfo,
    Text,
)
from tensorexpress.switch.program.budgets import LARGEST_EMITTED, beyond
from tensorexpress.switch.program.codegen.layout import groups_of
from tensorexpress.switch.program.codegen.standard import ALIASED, V1MODEL_BITS
from tensorexpress.switch.program.hashes import ALGORITHMS
from tensorexpress.switch.program.match_kinds import BMV2_KINDS, LPM


@dataclass(frozen=True, slots=True)
class OperandKind:
    """The kind of an expression. Two that are equal may be copied to each other: `type` decides the layout."""

    word: str
    type: Hashable = None

    def __str__(self) -> str:
        match self.word, self.type:
            case "varbit", bits:
                return f"a varbit of {bits} bits"
            case ("header stack" | "header union stack") as word, (kind, size):
                return f"a {word} of {size} elements of type {kind!r}"
            case word, None:
                return f"a {word}"
            case word, kind:
                return f"a {word} of type {kind!r}"


#: Numbers have no width while they are computed, and a condition is a number that is 0 or 1.
NUMBER = OperandKind("number")

_DATA = ("number", "varbit")
_HEADERS = ("header", "struct")
_STACKS = ("header stack", "header union stack")

#: Kinds that an operand or a parameter may have, by the word of a signature.
_ACCEPTED: dict[str, tuple[str, ...]] = {
    "number": ("number",),
    "data": _DATA,
    "header": _HEADERS,
    "union": ("header union",),
    "stack": _STACKS,
    "listed": (*_DATA, *_HEADERS),
    "listed number": ("number", *_HEADERS),
    "text": ("text",),
    "list": ("list",),
    "comparable": (*_DATA, *_HEADERS, "header union"),
    "counter": ("counter array",),
    "meter": ("meter array",),
    "register": ("register array",),
    "calculation": ("calculation",),
}

#: Names that an error lists at most.
_MOST_LISTED = 8

#: Bits of a field that stands for one of the standard metadata, at most.
_WIDEST_STANDARD = 63

#: The parameters of a primitive; those after "?" may be left out. "field" and "place" are data that may be assigned
#: to; "constant", "count", "jump" and "digest" are numbers that are known when the program is loaded.
PRIMITIVES: dict[str, str] = {
    **dict.fromkeys(("assign", "modify_field", "set", "assign_VL"), "place data"),
    **dict.fromkeys(("assign_header", "copy_header"), "header header"),
    "assign_union": "union union",
    **dict.fromkeys(("assign_header_stack", "assign_union_stack"), "stack stack"),
    **dict.fromkeys(("push", "pop"), "stack count"),
    **dict.fromkeys(("add_header", "remove_header"), "header"),
    **dict.fromkeys(("add_to_field", "subtract_from_field"), "field number"),
    **dict.fromkeys(
        ("add", "subtract", "bit_xor", "bit_or", "bit_and", "shift_left", "shift_right"), "field number number"
    ),
    "count": "counter number",
    "execute_meter": "meter number field",
    "register_read": "field register number",
    "register_write": "register number number",
    "modify_field_with_hash_based_offset": "field number calculation number",
    "modify_field_rng_uniform": "field number number",
    **dict.fromkeys(("assert", "assume"), "number"),
    "log_msg": "text list",
    **dict.fromkeys(("drop", "mark_to_drop"), "? header"),
    "generate_digest": "number digest",
    **dict.fromkeys(("clone_ingress_pkt_to_egress", "clone_egress_pkt_to_egress"), "number number"),
    **dict.fromkeys(("resubmit", "recirculate", "truncate"), "number"),
    **dict.fromkeys(("exit", "no_op"), ""),
    "_jump": "jump",
    "_jump_if_zero": "number jump",
    "advance": "number",
    "verify": "number number",
}

#: Primitives whose first two parameters are of the same type.
_COPIES = frozenset(
    name
    for name, needed in PRIMITIVES.items()
    if needed in ("place data", "header header", "union union", "stack stack")
)

#: Operands of the operators whose result is a number; a unary operator has one.
_OPERATORS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("+", "-"), ("number number", "number")),
    "~": ("number",),
    **dict.fromkeys(("*", "&", "|", "^", "<<", ">>", "/", "%"), ("number number",)),
    **dict.fromkeys(("==", "!="), ("comparable comparable",)),
    **dict.fromkeys(("<", "<=", ">", ">=", "and", "or"), ("number number",)),
    **dict.fromkeys(("not", "d2b", "b2d"), ("number",)),
    "valid": ("header",),
    "valid_union": ("union",),
    "?": ("number number number",),
    **dict.fromkeys(("two_comp_mod", "sat_cast", "usat_cast"), ("number constant",)),
    **dict.fromkeys(("last_stack_index", "size_stack"), ("stack",)),
    **dict.fromkeys(("dereference_header_stack", "dereference_stack", "dereference_union_stack"), ("stack number",)),
    "access_field": ("header constant",),
    "access_union_header": ("union constant",),
}


def verify(program: Bmv2Program) -> None:
    """Refuse a program that breaks a rule, with a ProgramError that names the place, what was found and accepted."""
    _Verifier(program).run()


class _Verifier:
    """One run over a program. `_place` is the part that is looked at."""

    def __init__(self, program: Bmv2Program):
        self._program = program
        self._place = "the program"
        #: Parameters of the action that expressions stand in.
        self._parameters = 0
        self._steps = 0
        self._looks_ahead = False

    def run(self) -> None:
        """Check everything, what others refer to first."""
        self._header_types()
        self._stacks_and_unions()
        self._standard_metadata()
        self._arrays()
        self._lists()
        self._calculations()
        self._parser()
        for action in self._program.actions.values():
            self._action(action)
        for control in (self._program.ingress, self._program.egress):
            self._control(control)
        self._deparser()

    def _wrong(self, found: str, accepted: str) -> ProgramError:
        return wrong(f"{self._place} has {found}; accepted: {accepted}")

    # Headers.

    def _header_types(self) -> None:
        used = {(header.type.name, header.metadata): header.type for header in self._program.headers.values()}
        for (name, is_struct), header_type in used.items():
            self._place = f"header type {name!r}"
            varbits = [item for item in header_type.fields if item.varbit]
            for item in varbits:
                if item.bits < 0 or item.bits % 8:
                    raise self._wrong(f"{item.bits} bits left for the varbit {item.name!r}", "whole bytes")
            if not is_struct:
                if len(varbits) > 1:
                    raise self._wrong(f"the varbits {_listed(item.name for item in varbits)}", "one varbit in a header")
                groups_of(header_type)  # a varbit starts, and the header ends, at a whole byte

    def _stacks_and_unions(self) -> None:
        program = self._program
        known = {header.type.name for header in program.headers.values()}
        layouts: dict[str, tuple[str, ...]] = {}
        for union in program.unions.values():
            self._place = f"header union {union.name!r}"
            found = self._types(union.headers)
            # p4c may list a member's type by the name that it has in the source; then all unions of the type agree.
            listed = (kind if kind in known else own for kind, own in zip(union.member_types, found, strict=False))
            if len(found) != len(union.members) or found != layouts.setdefault(union.type, tuple(listed)):
                raise self._wrong(
                    f"members of the types {_listed(found)}", f"those of its type, {_listed(union.member_types)}"
                )
        for stack, elements in program.stacks.items():
            self._elements(f"header stack {stack!r}", elements, self._types(elements), program.stack_types[stack])
        for stack, elements in program.union_stacks.items():
            found = tuple(program.unions[name].type for name in elements)
            self._elements(f"header union stack {stack!r}", elements, found, program.stack_types[stack])
        self._once("header", [*program.stacks.values(), *(union.headers for union in program.unions.values())])
        self._once("header union", program.union_stacks.values())

    def _once(self, what: str, groups: Iterable[Sequence[str]]) -> None:
        """Check that nothing is an element or a member twice."""
        seen = set()
        for name in (name for group in groups for name in group):
            self._place = f"{what} {name!r}"
            if name in seen:
                raise self._wrong("more than one place in stacks and unions", "one")
            seen.add(name)

    def _types(self, headers: Iterable[str]) -> tuple[str, ...]:
        """Return the types of elements or members, which are headers and no structs."""
        for name in headers:
            if self._program.headers[name].metadata:
                raise self._wrong(f"the struct {name!r}", "headers")
        return tuple(self._program.headers[name].type.name for name in headers)

    def _elements(self, place: str, elements: Sequence[str], found: Sequence[str], expected: str) -> None:
        self._place = place
        if not elements:
            raise self._wrong("no elements", "at least one")
        for name, kind in zip(elements, found, strict=True):
            if kind != expected:
                raise self._wrong(f"the element {name!r} of type {kind!r}", f"elements of its own type, {expected!r}")

    def _standard_metadata(self) -> None:
        """Check the fields that the switch itself sets and reads."""
        program = self._program
        self._place = "the program"
        header = program.headers.get("standard_metadata")
        if header is None or not header.metadata:
            raise self._wrong("no struct 'standard_metadata'", "programs for v1model")
        self._place = "the standard metadata"
        for name, bits in V1MODEL_BITS.items():
            item = header.type.field(name)
            if item is not None and (item.bits, item.signed, item.varbit) != (bits, False, False):
                raise self._wrong(f"{_described(item)} as {name!r}", f"bit<{bits}>")
        for name in (f"{prefix}.{name}" for prefix in ALIASED for name in (*V1MODEL_BITS, "qid")):
            alias = program.aliases.get(name)
            if alias is not None:
                self._place = f"the alias {name!r}"
                known = program.headers.get(alias.header)
                item = known.type.field(alias.field) if known is not None and known.metadata else None
                if item is None:
                    raise self._wrong(
                        f"the field {alias.header}.{alias.field}, which is not there", "fields of structs"
                    )
                if item.signed or item.varbit or item.bits > _WIDEST_STANDARD:
                    raise self._wrong(f"{_described(item)}", f"bit<1> to bit<{_WIDEST_STANDARD}>")

    def _arrays(self) -> None:
        for kind, arrays in self._program.arrays.items():
            for info in arrays.values():
                self._place = f"{kind} array {info.name!r}"
                if info.table is not None and info.table not in self._program.tables:
                    raise self._wrong(f"the table {info.table!r}, which is not there", "tables of the program")
                if info.result is not None:
                    self._expect("as its result", info.result, "field")

    def _lists(self) -> None:
        for what, lists, word in (
            ("learn list", self._program.digests, "listed number"),
            ("field list", self._program.field_lists, "listed"),
        ):
            for number, fields in lists.items():
                self._place = f"{what} {number}"
                for item in fields.fields:
                    self._expect("in it", item, word)

    def _calculations(self) -> None:
        program = self._program
        selectors = [profile.selector for profile in program.profiles.values() if profile.selector is not None]
        for calculation in (*program.calculations.values(), *selectors):
            self._place = f"calculation {calculation.name!r}"
            if calculation.algorithm not in ALGORITHMS:
                raise wrong(f"{self._place} has an {unknown('algorithm', calculation.algorithm, ALGORITHMS)}")
            for part in calculation.inputs:
                if part.value is not None:
                    self._expect("as an input", part.value, "listed")
        for checksum in program.checksums:
            self._place = f"the checksum in {checksum.target.header}.{checksum.target.field}"
            self._expect("as its target", checksum.target, "field")
            if checksum.condition is not None:
                self._expect("as its condition", checksum.condition, "number")

    def _deparser(self) -> None:
        self._place = "the deparser"
        types, sizes = Counter[str](), dict[str, int]()
        for name in self._program.emitted:
            header = self._program.headers[name]
            if header.metadata:
                raise self._wrong(f"the struct {name!r}", "headers")
            types[header.type.name] += 1
            sizes.setdefault(header.type.name, sum(item.bits for item in header.type.fields) // 8)
        size = sum(count * sizes[name] for name, count in types.items())
        if size > LARGEST_EMITTED:
            raise beyond(self._place, size, LARGEST_EMITTED, "bytes of headers")

    # Expressions.

    def _kind(self, expression: Expression) -> OperandKind:
        """Return the kind of an expression, after a check of all that it consists of."""
        match expression:
            case Const(value, bits):
                if bits is not None and not -(1 << bits >> 1) <= value < 1 << bits:
                    raise self._wrong(f"the literal {shown(value)} in {bits} bits", "numbers of this width")
                return NUMBER
            case Text():
                return OperandKind("text")
            case FieldRef():
                return _kind_of_field(self._program.field(expression))
            case LastField(stack, field, member):
                header = self._program.headers[self._last_header(stack, member)]
                return _kind_of_field(header.type.by_name[field])
            case Lookahead():
                if not self._looks_ahead:
                    raise self._wrong("a lookahead", "lookahead in the parser alone")
                return NUMBER
            case Parameter(index):
                if not 0 <= index < self._parameters:
                    raise self._wrong(f"parameter {index}", f"its action's {self._parameters} parameters, from 0")
                return NUMBER
            case RegisterCell(register, index):
                self._array("register", register)
                self._expect("the index of a register", index, "number")
                return NUMBER
            case Several(items):
                for item in items:
                    self._expect("a list with", item, "data")
                return OperandKind("list")
            case Named(kind, name):
                return self._named(kind, name)
            case Operator():
                return self._operator(expression)
        raise AssertionError(expression)

    def _last_header(self, stack: str, member: str | None) -> str:
        """Return the first of the headers that the last element of a stack may be; all are of one type."""
        program = self._program
        if member is None:
            if stack not in program.stacks:
                raise self._wrong(f"the header stack {stack!r}, which is not there", "a header stack of the program")
            return program.stacks[stack][0]
        if stack not in program.union_stacks:
            raise self._wrong(
                f"the header union stack {stack!r}, which is not there", "a header union stack of the program"
            )
        union = program.unions[program.union_stacks[stack][0]]
        if member not in union.members:
            raise self._wrong(f"the member {member!r} of {union.name!r}", f"its members {_listed(union.members)}")
        return union.headers[union.members.index(member)]

    def _named(self, kind: str, name: str) -> OperandKind:
        """Return the kind of what a name stands for."""
        program = self._program
        words = kind.replace("_", " ")
        match kind:
            case "header":
                return self._kind_of_header(name)
            case "header_stack" if name in program.stacks:
                return OperandKind(words, (program.stack_types[name], len(program.stacks[name])))
            case "header_union" if name in program.unions:
                return OperandKind(words, program.unions[name].type)
            case "header_union_stack" if name in program.union_stacks:
                return OperandKind(words, (program.stack_types[name], len(program.union_stacks[name])))
            case "calculation" if name in program.calculations:
                return OperandKind(words)
            case "register_array" | "counter_array" | "meter_array":
                self._array(kind.removesuffix("_array"), name)
                return OperandKind(words)
            case _:
                raise self._wrong(f"the {words} {name!r}, which is not there", f"a {words} of the program")

    def _kind_of_header(self, name: str) -> OperandKind:
        header = self._program.headers[name]
        return OperandKind("struct" if header.metadata else "header", header.type.name)

    def _array(self, kind: str, name: str) -> None:
        """Check that an array is there and has an index; a direct one is used by its table alone."""
        info = self._program.arrays[kind].get(name)
        if info is None or info.table is not None:
            is_there = "which is not there" if info is None else "which is direct"
            raise self._wrong(
                f"the {kind} array {name!r}, {is_there}", f"a {kind} array of the program that is not direct"
            )

    def _operator(self, expression: Operator) -> OperandKind:
        """Return the kind of a result."""
        op, operands = expression.op, expression.operands
        signatures = _OPERATORS.get(op)
        if signatures is None:
            raise self._wrong(f"the operator {op!r}", ", ".join(_OPERATORS))
        signature = next((words for words in signatures if len(words.split()) == len(operands)), None)
        if signature is None:
            counts = " or ".join(str(len(words.split())) for words in signatures)
            raise self._wrong(f"{len(operands)} operands of {op!r}", counts)
        kinds = [
            self._expect(f"as operand {number} of {op!r}", operand, word)
            for number, (operand, word) in enumerate(zip(operands, signature.split(), strict=True), 1)
        ]
        match op:
            case "==" | "!=":
                self._same(f"operands of {op!r}", kinds)
                if kinds[0].word == "header union" and not all(isinstance(operand, Named) for operand in operands):
                    raise self._wrong("a comparison of header unions by index", "unions that are named")
            case "dereference_header_stack" | "dereference_stack" | "dereference_union_stack":
                return self._element(op, operands[0])
            case "access_field":
                fields = self._program.headers[self._example(operands[0])].type.fields
                return _kind_of_field(fields[self._offset(op, operands[1], len(fields))])
            case "access_union_header":
                union = self._program.unions[self._example_union(operands[0])]
                return self._kind_of_header(union.headers[self._offset(op, operands[1], len(union.headers))])
        return NUMBER

    def _element(self, op: str, stack: Expression) -> OperandKind:
        """Return the kind of an element of a stack."""
        assert isinstance(stack, Named)
        of_unions = stack.kind == "header_union_stack"
        if of_unions != (op == "dereference_union_stack"):
            raise self._wrong(f"{op!r} of a {stack.kind.replace('_', ' ')}", "an operator for that kind of stack")
        return OperandKind("header union" if of_unions else "header", self._program.stack_types[stack.name])

    def _example(self, header: Expression) -> str:
        """Return one of the headers that an expression may stand for; all are of one type."""
        match header:
            case Named(_, name):
                return name
            case Operator("access_union_header", (union, Const(offset))):
                return self._program.unions[self._example_union(union)].headers[offset]
            case Operator(_, (Named(_, stack), _)):
                return self._program.stacks[stack][0]
        raise AssertionError(header)

    def _example_union(self, union: Expression) -> str:
        """Return one of the unions that an expression may stand for; all are of one type."""
        match union:
            case Named(_, name):
                return name
            case Operator(_, (Named(_, stack), _)):
                return self._program.union_stacks[stack][0]
        raise AssertionError(union)

    def _offset(self, op: str, number: Expression, count: int) -> int:
        assert isinstance(number, Const)
        if not 0 <= number.value < count:
            raise self._wrong(f"{number.value} as operand 2 of {op!r}", f"numbers below {count}")
        return number.value

    def _expect(self, role: str, expression: Expression, word: str) -> OperandKind:
        """Return the kind of an expression that has to be of the kind that a word stands for."""
        if word in ("constant", "count", "jump", "digest"):
            self._constant(role, expression, word)
            return NUMBER
        kind = self._kind(expression)
        if word in ("field", "place"):
            is_place = isinstance(expression, FieldRef | LastField) or (
                isinstance(expression, Operator) and expression.op == "access_field"
            )
            if not is_place or (word == "field" and kind != NUMBER):
                raise self._wrong(f"{kind} {role}", "a field" if word == "place" else "a field that is a number")
        elif kind.word not in _ACCEPTED[word]:
            raise self._wrong(f"{kind} {role}", f"a {' or '.join(_ACCEPTED[word])}")
        return kind

    def _constant(self, role: str, expression: Expression, word: str) -> None:
        """Check a number that has to be known when the program is loaded."""
        if not isinstance(expression, Const):
            raise self._wrong(f"{self._kind(expression)} {role}", "a constant")
        if word == "count" and expression.value < 0:
            raise self._wrong(f"{expression.value} {role}", "numbers from 0")
        if word == "jump" and not 0 <= expression.value <= self._steps:
            raise self._wrong(f"{expression.value} {role}", f"steps 0 to {self._steps}")
        if word == "digest" and expression.value not in self._program.digests:
            raise self._wrong(f"{expression.value} {role}", "the id of a learn list")

    def _same(self, what: str, kinds: Sequence[OperandKind]) -> None:
        if kinds[0] != kinds[1]:
            raise self._wrong(f"{kinds[0]} and {kinds[1]} as {what}", "two of the same type")

    # Actions and the parser.

    def _primitive(self, step: Primitive) -> None:
        needed = PRIMITIVES.get(step.op)
        if needed is None:  # an action that no packet reaches may use others
            return
        must, _, may = needed.partition("?")
        words = [*must.split(), *may.split()]
        least, count = len(must.split()), len(step.parameters)
        if not least <= count <= len(words):
            accepted = str(len(words)) if least == len(words) else f"{least} to {len(words)}"
            raise self._wrong(f"{step.op!r} with {count} parameters", accepted)
        kinds = [
            self._expect(f"as parameter {number} of {step.op!r}", parameter, word)
            for number, (parameter, word) in enumerate(zip(step.parameters, words, strict=False), 1)
        ]
        if step.op in _COPIES:
            self._same(f"parameters of {step.op!r}", kinds)

    def _action(self, action: ActionInfo) -> None:
        self._parameters, self._steps = len(action.parameters), len(action.primitives)
        for number, step in enumerate(action.primitives):
            self._place = f"action {action.name!r}, step {number}"
            self._primitive(step)
        self._parameters = self._steps = 0

    def _parser(self) -> None:
        program = self._program
        self._looks_ahead = True
        self._place = "the parser"
        self._successor(program.first_state, program.states)
        for state in program.states.values():
            for number, step in enumerate(state.steps):
                self._place = f"parser state {state.name!r}, step {number}"
                if step.op in ("extract", "extract_VL"):
                    self._extraction(step)
                else:
                    self._primitive(step)
            self._place = f"parser state {state.name!r}"
            for part in state.key:
                self._expect("in its key", part, "number")
            for transition in state.transitions:
                self._successor(transition.next_state, program.states)
        self._looks_ahead = False

    def _successor(self, name: str | None, known: Iterable[str]) -> None:
        if name is not None and name not in known:
            raise self._wrong(
                f"the successor {name!r}, which is not there", "what is named there, and null for the end"
            )

    def _extraction(self, step: Primitive) -> None:
        target, *length = step.parameters
        header = self._extracted(target)
        if header.metadata:
            raise self._wrong(f"an extraction into the struct {header.name!r}", "headers")
        if step.op == "extract_VL":
            if len(length) != 1:
                raise self._wrong(f"{step.op!r} with {len(step.parameters)} parameters", "2")
            self._expect("as the size of a varbit", length[0], "number")
            if not any(item.varbit for item in header.type.fields):
                raise self._wrong(f"{step.op!r} into {header.name!r}, which has no varbit", "headers with one")

    def _extracted(self, target: Expression) -> HeaderInfo:
        """Return the header that an extraction fills, or one of the stack's; all are of one type."""
        match target:
            case Named("header", name):
                return self._program.headers[name]
            case Named("header_stack", name):
                return self._program.headers[self._last_header(name, None)]
            case LastField(stack, _, member):
                return self._program.headers[self._last_header(stack, member)]
        raise AssertionError(target)

    # Controls.

    def _control(self, control: Control) -> None:
        self._place = f"the control {control.name!r}"
        self._successor(control.start, control.nodes)
        if control is self._program.egress:
            for name, node in control.nodes.items():
                if isinstance(node, TableInfo) and isinstance(self._program.ingress.nodes.get(name), TableInfo):
                    raise self._wrong(f"a table {name!r}, which ingress has too", "tables of other names")
        for node in control.nodes.values():
            if isinstance(node, Condition):
                self._place = f"condition {node.name!r}"
                self._expect("as its expression", node.expression, "number")
            else:
                self._table(node)
            for successor in node.named_next:
                self._successor(successor, control.nodes)

    def _table(self, table: TableInfo) -> None:
        program = self._program
        self._place = f"table {table.name!r}"
        if table.kind not in BMV2_KINDS:
            raise self._wrong(f"the match type {table.kind!r}", ", ".join(BMV2_KINDS))
        for part in table.key:
            if part.target.field != VALIDITY:
                self._expect(f"as {part.name!r} in its key", part.target, "number")
            if part.mask is not None and not 0 <= part.mask < 1 << part.bits:
                raise self._wrong(f"the mask {shown(hex(part.mask))} of {part.name!r}", f"masks of {part.bits} bits")
        if [part.kind for part in table.key].count(LPM.name) > 1:
            raise self._wrong("two lpm fields in its key", "one")
        if table.profile is not None and table.profile not in program.profiles:
            raise self._wrong(f"the action profile {table.profile!r}, which is not there", "profiles of the program")
        if table.direct_meter is not None:
            meter = program.arrays["meter"].get(table.direct_meter)
            if meter is None or meter.table != table.name or meter.result is None:
                raise self._wrong(
                    f"the direct meter {table.direct_meter!r}", "a meter that is bound to it, with a result"
                )


def _kind_of_field(item: FieldInfo) -> OperandKind:
    return OperandKind("varbit", item.bits) if item.varbit else NUMBER


def _described(item: FieldInfo) -> str:
    return f"{'varbit' if item.varbit else 'int' if item.signed else 'bit'}<{item.bits}>"


def _listed(names: Iterable[str]) -> str:
    first = list(islice(names, _MOST_LISTED + 1))
    return ", ".join([*map(repr, first[:_MOST_LISTED]), *(["..."] if len(first) > _MOST_LISTED else [])]) or "none"
