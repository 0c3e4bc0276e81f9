"""A BMv2 program as frozen values: reads the JSON that p4c writes for simple_switch, and checks what it refers to."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tensorexpress.errors import ProgramError
from tensorexpress.switch.operations import ActionCall, Entry, MatchValue
from tensorexpress.switch.program.budgets import (
    DEEPEST_EXPRESSION,
    LARGEST_DOCUMENT,
    LARGEST_HEADER,
    LARGEST_SELECT,
    LARGEST_STACK,
    LONGEST_NAME,
    LONGEST_TEXT,
    MOST_CELLS,
    MOST_REGISTER_BITS,
    WIDEST_BITS,
    WIDEST_NUMBER_BITS,
    beyond,
)

#: P4Runtime priorities grow with urgency and those of BMv2 fall; the one is this minus the other.
HIGHEST_PRIORITY = 2**31 - 1

_JSON_MAJOR_VERSION = 2

#: The field by which BMv2 JSON asks whether a header is valid; no field has this name.
VALIDITY = "$valid$"

#: Operators whose second operand is the width of the result.
_CASTS = frozenset({"two_comp_mod", "sat_cast", "usat_cast"})

#: Whole numbers of the document (ids, sizes, ...) are below this.
_NUMBERS_END = 2**63


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a header type. A varbit field is `bits` wide at most."""

    name: str
    bits: int
    signed: bool = False
    varbit: bool = False


@dataclass(frozen=True, slots=True)
class HeaderType:
    """A header or struct type and its fields in the order of the wire."""

    name: str
    fields: tuple[Field, ...]
    by_name: Mapping[str, Field] = field(repr=False, compare=False)

    def field(self, name: str) -> Field | None:
        """Return the field of that name, None if there is none."""
        return self.by_name.get(name)


@dataclass(frozen=True, slots=True)
class Header:
    """One header (or struct of metadata) that a packet may carry."""

    name: str
    type: HeaderType
    metadata: bool


@dataclass(frozen=True, slots=True)
class Union:
    """Headers of which one is valid at most; `members` are their names within the union."""

    name: str
    headers: tuple[str, ...]
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Const:
    """A number; booleans are 0 and 1."""

    value: int
    bits: int | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """A character string, as `log_msg` takes it."""

    text: str


@dataclass(frozen=True, slots=True)
class FieldRef:
    """A field of a header that is known when the program is loaded."""

    header: str
    field: str


@dataclass(frozen=True, slots=True)
class Named:
    """A header, stack, union, register, meter, counter or calculation: the kind is BMv2's word for it."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class LastField:
    """A field of the last element of a stack; `member` is set where the elements are unions."""

    stack: str
    field: str
    member: str | None = None


@dataclass(frozen=True, slots=True)
class Lookahead:
    """Bits of the frame that the parser has not reached yet."""

    offset_bits: int
    bits: int


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the action that the expression stands in."""

    index: int


@dataclass(frozen=True, slots=True)
class RegisterCell:
    """A cell of a register array."""

    register: str
    index: Expression


@dataclass(frozen=True, slots=True)
class Several:
    """A list of expressions: the arguments of a log message, or the fields of a list."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator and its operands; a unary operator has one."""

    op: str
    operands: tuple[Expression, ...]


Expression = Const | Text | FieldRef | Named | LastField | Lookahead | Parameter | RegisterCell | Several | Operation


@dataclass(frozen=True, slots=True)
class Primitive:
    """One step of an action or of a parser state."""

    op: str
    parameters: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class ActionInfo:
    """An action: what it does and the names and widths of its parameters."""

    id: int
    name: str
    parameters: tuple[tuple[str, int], ...]
    primitives: tuple[Primitive, ...]


@dataclass(frozen=True, slots=True)
class Transition:
    """One case of a parser's select: values and masks per key field, a value set, or neither for the default."""

    values: tuple[int, ...] | None
    masks: tuple[int, ...] | None
    value_set: str | None
    next_state: str | None


@dataclass(frozen=True, slots=True)
class ParserState:
    """What a parser state does, and where it goes from there."""

    name: str
    steps: tuple[Primitive, ...]
    key: tuple[Expression, ...]
    transitions: tuple[Transition, ...]


@dataclass(frozen=True, slots=True)
class KeyField:
    """One field of a table's key; `kind` is exact, lpm, ternary or range (optional is ternary here)."""

    name: str
    target: FieldRef
    kind: str
    bits: int
    mask: int | None


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A match-action table. `actions` maps names to ids; `next_*` name the node that follows, None at the end."""

    name: str
    kind: str
    key: tuple[KeyField, ...]
    actions: Mapping[str, int]
    profile: str | None
    size: int
    counts: bool
    ages: bool
    direct_meter: str | None
    default: ActionCall | None
    default_is_const: bool
    next_by_action: Mapping[str, str | None]
    next_hit: str | None
    next_miss: str | None
    #: What follows a miss in a table without a default action.
    next_default: str | None
    by_hit: bool
    entries: tuple[tuple[Entry, ActionCall], ...]


@dataclass(frozen=True, slots=True)
class Condition:
    """An `if` of a control."""

    name: str
    expression: Expression
    next_true: str | None
    next_false: str | None


@dataclass(frozen=True, slots=True)
class Control:
    """The ingress or egress control as a graph of tables and conditions."""

    name: str
    start: str | None
    nodes: Mapping[str, TableInfo | Condition]


@dataclass(frozen=True, slots=True)
class CalculationInput:
    """Input of a hash: a field, a whole header, a constant, or the payload."""

    kind: str
    value: Expression | None
    bits: int = 0


@dataclass(frozen=True, slots=True)
class Calculation:
    """A hash or checksum algorithm over its inputs."""

    name: str
    algorithm: str
    inputs: tuple[CalculationInput, ...]


@dataclass(frozen=True, slots=True)
class Checksum:
    """A checksum field that is verified after parsing or updated before deparsing, where the condition holds."""

    target: FieldRef
    calculation: str
    verify: bool
    update: bool
    condition: Expression | None


@dataclass(frozen=True, slots=True)
class ProfileInfo:
    """An action profile; `selector` is the calculation that chooses a member of a group."""

    name: str
    size: int
    selector: Calculation | None


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """A register, counter or meter array. A direct one has one cell for each entry of its table."""

    name: str
    size: int
    bits: int = 0
    in_bytes: bool = False
    table: str | None = None
    result: FieldRef | None = None


@dataclass(frozen=True, slots=True)
class FieldList:
    """Fields that a clone, resubmit or recirculate preserves, or that a digest carries."""

    id: int
    name: str
    fields: tuple[Expression, ...]


@dataclass(frozen=True)
class Program:
    """Everything that one BMv2 JSON document says."""

    headers: Mapping[str, Header]
    stacks: Mapping[str, tuple[str, ...]]
    unions: Mapping[str, Union]
    union_stacks: Mapping[str, tuple[str, ...]]
    errors: Mapping[str, int]
    states: Mapping[str, ParserState]
    first_state: str | None
    value_sets: Mapping[str, int]
    emitted: tuple[str, ...]
    actions: Mapping[int, ActionInfo]
    ingress: Control
    egress: Control
    profiles: Mapping[str, ProfileInfo]
    registers: Mapping[str, ArrayInfo]
    counters: Mapping[str, ArrayInfo]
    meters: Mapping[str, ArrayInfo]
    calculations: Mapping[str, Calculation]
    checksums: tuple[Checksum, ...]
    digests: Mapping[int, FieldList]
    field_lists: Mapping[int, FieldList]
    #: simple_switch's name of a field -> the field of this program.
    aliases: Mapping[str, FieldRef] = field(default_factory=dict)

    @cached_property
    def primitives(self) -> frozenset[str]:
        """The names of all primitives that actions consist of."""
        return frozenset(step.op for action in self.actions.values() for step in action.primitives)

    @cached_property
    def tables(self) -> Mapping[str, TableInfo]:
        """All tables by name, ingress first."""
        nodes = [*self.ingress.nodes.values(), *self.egress.nodes.values()]
        return {node.name: node for node in nodes if isinstance(node, TableInfo)}

    def field(self, reference: FieldRef) -> Field:
        """Return what is known of a field that the program refers to."""
        found = self.headers[reference.header].type.field(reference.field)
        assert found is not None, reference
        return found


#: What a document that p4c never wrote may cause where its parts do not fit together: more than is worth naming.
CONTRADICTIONS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


def contradiction(error: Exception) -> ProgramError:
    """Return the error for a document whose parts do not fit together."""
    what = " ".join(f"{type(error).__name__} {error}".split())[:LONGEST_NAME]
    return ProgramError(f"BMv2 JSON: its parts do not fit together ({what}); compile the program again with p4c-bm2-ss")


def read_program(document: bytes) -> Program:
    """Read a BMv2 JSON document; ProgramError says which part of it cannot be used."""
    if len(document) > LARGEST_DOCUMENT:
        raise beyond("the program", len(document), LARGEST_DOCUMENT, "bytes of BMv2 JSON")
    try:
        value = json.loads(document)
    except (ValueError, RecursionError) as error:
        what = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ProgramError(f"the program is not JSON ({what}); give the file that p4c-bm2-ss wrote with -o") from None
    root = _Node(value, "program")
    if not isinstance(value, dict) or "header_types" not in value:
        raise ProgramError("the program is JSON but not BMv2's: it has no 'header_types'; compile with p4c-bm2-ss")
    try:
        return _Reader(root).program()
    except CONTRADICTIONS as error:
        raise contradiction(error) from None


class _Node:
    """A JSON value and where it stands, so that every complaint names the place."""

    def __init__(self, value: Any, path: str):
        self.value = value
        self.path = path

    def __getitem__(self, key: str | int) -> _Node:
        if not isinstance(self.value, dict if isinstance(key, str) else list):
            raise self.error(f"is not {'an object' if isinstance(key, str) else 'a list'}")
        try:
            value = self.value[key]  # type: ignore[index]
        except (KeyError, IndexError):
            raise self.error(f"has no {key!r}") from None
        return _Node(value, f"{self.path}.{key}" if isinstance(key, str) else f"{self.path}[{key}]")

    def get(self, key: str, default: Any = None) -> _Node:
        value = self.value.get(key, default) if isinstance(self.value, dict) else default
        return _Node(value, f"{self.path}.{key}")

    def __iter__(self) -> Iterator[_Node]:
        if not isinstance(self.value, list):
            raise self.error("is not a list")
        return (_Node(item, f"{self.path}[{index}]") for index, item in enumerate(self.value))

    def text(self, longest: int = LONGEST_NAME) -> str:
        if not isinstance(self.value, str):
            raise self.error("is not a string")
        if len(self.value) > longest:
            raise beyond(f"BMv2 JSON: {self.path}", len(self.value), longest, "characters")
        return self.value

    def optional_text(self) -> str | None:
        return None if self.value is None else self.text()

    def number(self) -> int:
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            raise self.error("is not a whole number")
        if not -_NUMBERS_END < self.value < _NUMBERS_END:
            raise self.error("is a number of more than 64 bits")
        return self.value

    def at_most(self, most: int, unit: str) -> int:
        """Return a number that a budget bounds."""
        number = self.number()
        if not 0 <= number <= most:
            raise beyond(f"BMv2 JSON: {self.path}", number, most, unit)
        return number

    def width(self) -> int:
        return self.at_most(WIDEST_BITS, "bits")

    def hexadecimal(self) -> int:
        try:
            return int(self.text(LONGEST_TEXT), 16)
        except ValueError:
            raise self.error("is not a hexadecimal number") from None

    def error(self, problem: str) -> ProgramError:
        return ProgramError(f"BMv2 JSON: {self.path} {problem}; compile the program again with p4c-bm2-ss")


class _Reader:
    """Reads the parts in the order in which they refer to each other."""

    def __init__(self, root: _Node):
        self.root = root
        version = root.get("__meta__", {}).get("version", [_JSON_MAJOR_VERSION, 0])
        if version[0].number() != _JSON_MAJOR_VERSION:
            raise ProgramError(
                f"the program is in version {version[0].value} of BMv2's JSON; accepted: {_JSON_MAJOR_VERSION}"
            )
        self.types = {node["name"].text(): self.header_type(node) for node in root["header_types"]}
        self.header_names: dict[int, str] = {}
        self.headers: dict[str, Header] = {}
        for node in root["headers"]:
            self.read_header(node)
        self.depth = 0
        #: Bits that the result of an operation may have, by the operation's identity.
        self.results: dict[int, int] = {}
        self.stacks = self.read_stacks("header_stacks", "header_ids", self.header_names)
        self.unions = self.read_unions()
        self.union_stacks = self.read_stacks("header_union_stacks", "header_union_ids", self.union_names)
        self.calculations = {node["name"].text(): self.calculation(node) for node in root["calculations"]}
        self.actions = {node["id"].number(): self.action(node) for node in root["actions"]}
        self.value_sets = {
            node["name"].text(): node["compressed_bitwidth"].width() for node in root.get("parse_vsets", [])
        }

    def program(self) -> Program:
        parsers = list(self.root["parsers"])
        deparsers = list(self.root["deparsers"])
        controls = {node["name"].text(): node for node in self.root["pipelines"]}
        for name in ("ingress", "egress"):
            if name not in controls:
                raise ProgramError(f"the program has no pipeline {name!r}; only v1model programs can run")
        if len(parsers) != 1 or len(deparsers) != 1:
            raise ProgramError("the program has not one parser and one deparser; only v1model programs can run")
        profiles = [node for control in controls.values() for node in control.get("action_profiles", [])]
        states = {node["name"].text(): self.state(node) for node in parsers[0]["parse_states"]}
        arrays = {
            kind: {node["name"].text(): self.array(node) for node in self.root[f"{kind}_arrays"]}
            for kind in ("register", "counter", "meter")
        }
        _check_cells(arrays)
        for state in states.values():
            for transition in state.transitions:
                if transition.next_state is not None and transition.next_state not in states:
                    raise ProgramError(
                        f"BMv2 JSON: parser state {state.name!r} is followed by {transition.next_state!r}, "
                        "which is not there; compile the program again with p4c-bm2-ss"
                    )
        return Program(
            headers=self.headers,
            stacks=self.stacks,
            unions=self.unions,
            union_stacks=self.union_stacks,
            errors={node[0].text(): node[1].number() for node in self.root.get("errors", [])},
            states=states,
            first_state=parsers[0]["init_state"].optional_text(),
            value_sets=self.value_sets,
            emitted=tuple(self.header(name) for name in deparsers[0]["order"]),
            actions=self.actions,
            ingress=self.control(controls["ingress"]),
            egress=self.control(controls["egress"]),
            profiles={node["name"].text(): self.profile(node) for node in profiles},
            registers=arrays["register"],
            counters=arrays["counter"],
            meters=arrays["meter"],
            calculations=self.calculations,
            checksums=tuple(self.checksum(node) for node in self.root["checksums"]),
            digests={node["id"].number(): self.field_list(node) for node in self.root["learn_lists"]},
            field_lists={node["id"].number(): self.field_list(node) for node in self.root["field_lists"]},
            aliases={
                node[0].text(): FieldRef(node[1][0].text(), node[1][1].text())
                for node in self.root.get("field_aliases", [])
            },
        )

    def header_type(self, node: _Node) -> HeaderType:
        name = node["name"].text()
        fixed_bits = sum(item[1].width() for item in node["fields"] if item[1].value != "*")
        fields = []
        for item in node["fields"]:
            signed = len(item.value) > 2 and bool(item[2].value)
            if item[1].value == "*":
                longest = node["max_length"].at_most(LARGEST_HEADER, "bytes") * 8 - fixed_bits
                fields.append(Field(item[0].text(), max(longest, 0), signed, varbit=True))
            else:
                fields.append(Field(item[0].text(), item[1].width(), signed))
            if fields[-1].name == VALIDITY:
                raise item.error(f"is a field named {VALIDITY!r}, which stands for the header's validity")
        return HeaderType(name, tuple(fields), {found.name: found for found in fields})

    def read_header(self, node: _Node) -> None:
        name, type_name = node["name"].text(), node["header_type"].text()
        if type_name not in self.types:
            raise node.error(f"is of type {type_name!r}, which the program does not have")
        header = Header(name, self.types[type_name], bool(node["metadata"].value))
        size = sum(item.bits for item in header.type.fields) // 8
        if size > LARGEST_HEADER and not header.metadata:
            raise beyond(f"header {name!r}", size, LARGEST_HEADER, "bytes")
        self.headers[name] = header
        self.header_names[node["id"].number()] = name

    def read_stacks(self, kind: str, ids: str, names: Mapping[int, str]) -> dict[str, tuple[str, ...]]:
        stacks = {node["name"].text(): self.by_id(node[ids], names) for node in self.root.get(kind, [])}
        for name, elements in stacks.items():
            if len(elements) > LARGEST_STACK:
                raise beyond(f"header stack {name!r}", len(elements), LARGEST_STACK, "elements")
        return stacks

    def read_unions(self) -> dict[str, Union]:
        types = {
            node["name"].text(): tuple(item[0].text() for item in node["headers"])
            for node in self.root.get("header_union_types", [])
        }
        self.union_names: dict[int, str] = {}
        unions = {}
        for node in self.root.get("header_unions", []):
            name = node["name"].text()
            self.union_names[node["id"].number()] = name
            members = types.get(node["union_type"].text(), ())
            unions[name] = Union(name, self.by_id(node["header_ids"], self.header_names), members)
        return unions

    def by_id(self, ids: _Node, names: Mapping[int, str]) -> tuple[str, ...]:
        for node in ids:
            if node.number() not in names:
                raise node.error(f"is {node.value}, an id that nothing has")
        return tuple(names[node.number()] for node in ids)

    def header(self, node: _Node) -> str:
        name = node.text()
        if name not in self.headers:
            raise node.error(f"refers to {name!r}, a header that the program does not have")
        return name

    def field_ref(self, node: _Node) -> FieldRef:
        reference = FieldRef(self.header(node[0]), node[1].text())
        if self.headers[reference.header].type.field(reference.field) is None:
            raise node.error(f"refers to {reference.field!r}, which {reference.header!r} does not have")
        return reference

    def expression(self, node: _Node) -> Expression:
        self.depth += 1
        if self.depth > DEEPEST_EXPRESSION:
            raise ProgramError(f"the program nests more than {DEEPEST_EXPRESSION} expressions; use a variable between")
        found = self.one_expression(node)
        self.depth -= 1
        return found

    def one_expression(self, node: _Node) -> Expression:
        kind, value = node["type"].text(), node["value"]
        match kind:
            case "expression":
                return self.operation(value) if "op" in value.value else self.expression(value)
            case "hexstr":
                return Const(value.hexadecimal(), node.get("bitwidth").value)
            case "bool":
                return Const(int(bool(value.value)), 1)
            case "string":
                return Text(value.text(LONGEST_TEXT))
            case "field":
                return self.field_expression(value)
            case "stack_field":
                return LastField(value[0].text(), value[1].text())
            case "union_stack_field":
                return LastField(value[0].text(), value[2].text(), value[1].text())
            case "lookahead":
                return Lookahead(value[0].at_most(8 * LARGEST_HEADER, "bits"), value[1].width())
            case "runtime_data" | "local":
                return Parameter(value.number())
            case "register":
                return RegisterCell(value[0].text(), self.expression(value[1]))
            case "parameters_vector" | "field_list":
                # p4c writes an empty object for an empty list.
                return Several(tuple(self.expression(item) for item in value) if value.value else ())
            case "header":
                return Named(kind, self.header(value))
            case (
                "header_stack"
                | "header_union"
                | "header_union_stack"
                | "calculation"
                | "register_array"
                | "meter_array"
                | "counter_array"
            ):
                return Named(kind, value.text())
        raise node.error(f"is of type {kind!r}, which the embedded switch does not support")

    def field_expression(self, value: _Node) -> Expression:
        if isinstance(value[0].value, dict):
            header: Expression = self.operation(value[0])
        else:
            header = Named("header", self.header(value[0]))
        if value[1].text() == VALIDITY:
            return Operation("valid", (header,))
        return self.field_ref(value)

    def operation(self, node: _Node) -> Expression:
        op = node["op"].text()
        if op in ("access_field", "access_union_header"):
            return Operation(op, (self.expression(node["left"]), Const(node["right"].number())))
        parts = [node[part] for part in (["cond"] if op == "?" else []) + ["left", "right"]]
        operation = Operation(op, tuple(self.expression(part) for part in parts if part.value is not None))
        bits = self.result_bits(op, operation.operands)
        if bits > WIDEST_NUMBER_BITS:
            raise beyond(f"BMv2 JSON: {node.path}: the result of {op!r}", bits, WIDEST_NUMBER_BITS, "bits")
        self.results[id(operation)] = bits
        return operation

    def result_bits(self, op: str, operands: tuple[Expression, ...]) -> int:
        """Return how many bits the result of an operation may have: numbers have no width while they are computed."""
        bits = [self.bits(operand) for operand in operands]
        constants = [operand.value for operand in operands[1:] if isinstance(operand, Const)]
        if op in _CASTS:
            if not constants or not 1 <= constants[0] <= WIDEST_BITS:
                raise ProgramError(f"BMv2 JSON: {op!r} to another width than 1 to {WIDEST_BITS} bits")
            return constants[0]
        if op == "*":
            return sum(bits)
        if op == "<<":
            return bits[0] + min(max(constants[0], 0) if constants else WIDEST_BITS, WIDEST_BITS)
        if op == "&" and constants and constants[0] >= 0:
            return min(bits)
        return max(bits, default=0) + (op in ("+", "-"))

    def bits(self, expression: Expression) -> int:
        match expression:
            case Const(value):
                return value.bit_length()
            case FieldRef(header, name):
                return self.headers[header].type.by_name[name].bits
            case Operation():
                return self.results.get(id(expression), 1)
        return WIDEST_BITS

    def primitive(self, node: _Node) -> Primitive:
        return Primitive(node["op"].text(), tuple(self.expression(item) for item in node["parameters"]))

    def action(self, node: _Node) -> ActionInfo:
        return ActionInfo(
            id=node["id"].number(),
            name=node["name"].text(),
            parameters=tuple((item["name"].text(), item["bitwidth"].width()) for item in node["runtime_data"]),
            primitives=tuple(self.primitive(item) for item in node["primitives"]),
        )

    def state(self, node: _Node) -> ParserState:
        key = tuple(self.expression(item) for item in node["transition_key"])
        if len(key) > LARGEST_SELECT:
            raise beyond(f"BMv2 JSON: {node.path}", len(key), LARGEST_SELECT, "parts in its key")
        return ParserState(
            name=node["name"].text(),
            steps=tuple(self.parser_step(item) for item in node["parser_ops"]),
            key=key,
            transitions=tuple(self.transition(item, key) for item in node["transitions"]),
        )

    def parser_step(self, node: _Node) -> Primitive:
        op, parameters = node["op"].text(), list(node["parameters"])
        if op == "primitive":
            return self.primitive(parameters[0])
        if op == "shift":
            return Primitive("advance", (Const(8 * parameters[0].number()),))
        if op in ("extract", "extract_VL"):
            target, length = parameters[0], [self.expression(item) for item in parameters[1:]]
            return Primitive(op, (self.extract_target(target), *length))
        if op in ("set", "verify", "advance"):
            return Primitive(op, tuple(self.expression(item) for item in parameters))
        raise node.error(f"is the parser operation {op!r}, which the embedded switch does not support")

    def extract_target(self, node: _Node) -> Expression:
        kind, value = node["type"].text(), node["value"]
        if kind == "regular":
            return Named("header", self.header(value))
        if kind == "stack":
            return Named("header_stack", value.text())
        if kind == "union_stack":
            return LastField(value[0].text(), "", value[1].text())
        raise node.error(f"is of type {kind!r}; accepted: regular, stack, union_stack")

    def transition(self, node: _Node, key: tuple[Expression, ...]) -> Transition:
        value, next_state = node["value"], node["next_state"].optional_text()
        # Older compilers wrote no type; the word itself or nothing then stands for the default.
        kind = node.get("type", "default" if value.value in (None, "default") else "hexstr").text()
        if kind == "default":
            return Transition(None, None, None, next_state)
        if kind == "parse_vset":
            name = value.text()
            if name not in self.value_sets:
                raise node.error(f"refers to {name!r}, a value set that the program does not have")
            return Transition(None, None, name, next_state)
        if kind != "hexstr":
            raise node.error(f"is of type {kind!r}; accepted: default, hexstr, parse_vset")
        values = self.split(value.hexadecimal(), key)
        masks = None if node["mask"].value is None else self.split(node["mask"].hexadecimal(), key)
        return Transition(values, masks, None, next_state)

    def split(self, number: int, key: tuple[Expression, ...]) -> tuple[int, ...]:
        """Cut a number of byte-padded fields into the numbers of the fields."""
        parts = []
        for part in reversed(key):
            size = (self.width(part) + 7) // 8 * 8
            parts.append(number & ((1 << size) - 1))
            number >>= size
        return tuple(reversed(parts))

    def width(self, expression: Expression) -> int:
        match expression:
            case FieldRef(header, name):
                found = self.headers[header].type.field(name)
            case LastField(stack, name, None):
                found = self.headers[self.stacks[stack][0]].type.field(name)
            case LastField(stack, name, member):
                union = self.unions[self.union_stacks[stack][0]]
                found = self.headers[union.headers[union.members.index(str(member))]].type.field(name)
            case Lookahead(_, bits):
                return bits
            case Operation("valid", _):
                return 1
            case _:
                raise ProgramError("BMv2 JSON: a parser selects on something that is neither a field nor lookahead")
        assert found is not None
        return found.bits

    def control(self, node: _Node) -> Control:
        nodes: dict[str, TableInfo | Condition] = {}
        for item in node["tables"]:
            nodes[item["name"].text()] = self.table(item)
        for item in node["conditionals"]:
            name = item["name"].text()
            nodes[name] = Condition(
                name,
                self.expression(item["expression"]),
                item.get("true_next").optional_text(),
                item.get("false_next").optional_text(),
            )
        if node.get("action_calls", []).value:
            raise node.error("has 'action_calls', which the embedded switch does not support")
        start = node["init_table"].optional_text()
        if start is not None and start not in nodes:
            raise node.error(f"starts with {start!r}, which is not there")
        return Control(node["name"].text(), start, nodes)

    def table(self, node: _Node) -> TableInfo:
        name = node["name"].text()
        ids = [item.number() for item in node["action_ids"]]
        for number in ids:
            if number not in self.actions:
                raise node.error(f"has an action of id {number}, which the program does not have")
        actions = {self.actions[number].name: number for number in ids}
        following = {key: _Node(value, node.path).optional_text() for key, value in node["next_tables"].value.items()}
        fallback = node.get("base_default_next").optional_text()
        key = tuple(self.key_field(item) for item in node["key"])
        default = node.get("default_entry")
        profile = node["type"].text() != "simple"
        return TableInfo(
            name=name,
            kind=node["match_type"].text(),
            key=key,
            actions=actions,
            profile=node["action_profile"].text() if profile else None,
            size=node["max_size"].number(),
            counts=bool(node["with_counters"].value),
            ages=bool(node["support_timeout"].value),
            direct_meter=node["direct_meters"].optional_text(),
            default=self.action_entry(default) if default.value is not None else None,
            default_is_const=bool(default.get("action_entry_const", False).value),
            next_by_action={name: following.get(name, fallback) for name in actions},
            next_hit=following.get("__HIT__", fallback),
            next_miss=following.get("__MISS__", fallback),
            next_default=fallback,
            by_hit="__HIT__" in following or "__MISS__" in following,
            entries=tuple(self.entry(item, name, key) for item in node.get("entries", [])),
        )

    def key_field(self, node: _Node) -> KeyField:
        kind, target = node["match_type"].text(), node["target"]
        if kind not in ("exact", "lpm", "ternary", "range", "valid"):
            raise node.error(f"has the match kind {kind!r}; accepted: exact, lpm, ternary, range, valid")
        if kind == "valid" or target[1].value == VALIDITY:
            header = target.text() if kind == "valid" else target[0].text()
            kind = "exact" if kind == "valid" else kind
            return KeyField(node.get("name", header).text(), FieldRef(header, VALIDITY), kind, 1, None)
        reference = self.field_ref(target)
        mask = node.get("mask")
        found = self.headers[reference.header].type.field(reference.field)
        assert found is not None
        return KeyField(
            node.get("name", ".".join(target.value)).text(),
            reference,
            kind,
            found.bits,
            None if mask.value is None else mask.hexadecimal(),
        )

    def action_entry(self, node: _Node) -> ActionCall:
        number = node["action_id"].number()
        if number not in self.actions:
            raise node.error(f"refers to action {number}, which the program does not have")
        arguments = tuple(item.hexadecimal() for item in node["action_data"])
        if len(arguments) != len(self.actions[number].parameters):
            raise node.error(f"has {len(arguments)} arguments for action {self.actions[number].name!r}")
        return ActionCall(self.actions[number].name, arguments)

    def entry(self, node: _Node, table: str, key: tuple[KeyField, ...]) -> tuple[Entry, ActionCall]:
        values = tuple(self.match_value(item) for item in node["match_key"])
        if len(values) != len(key):
            raise node.error(f"has {len(values)} key fields, its table {len(key)}")
        needs_priority = any(part.kind in ("ternary", "range") for part in key)
        priority = HIGHEST_PRIORITY - node["priority"].number() if needs_priority else 0
        return Entry(table, values, priority), self.action_entry(node["action_entry"])

    def match_value(self, node: _Node) -> MatchValue:
        match node["match_type"].text():
            case "valid":
                return int(bool(node["key"].value))
            case "lpm":
                return node["key"].hexadecimal(), node["prefix_length"].number()
            case "ternary":
                return node["key"].hexadecimal(), node["mask"].hexadecimal()
            case "range":
                return node["start"].hexadecimal(), node["end"].hexadecimal()
        return node["key"].hexadecimal()

    def calculation(self, node: _Node, name: str | None = None) -> Calculation:
        return Calculation(
            name or node["name"].text(),
            node["algo"].text(),
            tuple(self.calculation_input(item) for item in node["input"]),
        )

    def calculation_input(self, node: _Node) -> CalculationInput:
        kind = node["type"].text()
        if kind == "payload":
            return CalculationInput(kind, None)
        if kind == "header":
            return CalculationInput(kind, Named(kind, self.header(node["value"])))
        value = self.expression(node)
        if isinstance(value, Const):
            return CalculationInput("const", value, node["bitwidth"].width())
        if isinstance(value, FieldRef):
            return CalculationInput("field", value, self.width(value))
        if value == Operation("valid", getattr(value, "operands", ())):
            return CalculationInput("field", value, 1)
        raise node.error(f"is of type {kind!r}; accepted in a calculation: field, hexstr, header, payload")

    def checksum(self, node: _Node) -> Checksum:
        name = node["calculation"].text()
        if name not in self.calculations:
            raise node.error(f"refers to {name!r}, a calculation that the program does not have")
        condition = node.get("if_cond")
        return Checksum(
            self.field_ref(node["target"]),
            name,
            bool(node.get("verify", True).value),
            bool(node.get("update", True).value),
            None if condition.value is None else self.expression(condition),
        )

    def profile(self, node: _Node) -> ProfileInfo:
        selector = node.get("selector")
        name = node["name"].text()
        return ProfileInfo(
            name, node["max_size"].number(), None if selector.value is None else self.calculation(selector, name)
        )

    def array(self, node: _Node) -> ArrayInfo:
        direct = bool(node.get("is_direct", False).value)
        result = node.get("result_target")
        return ArrayInfo(
            name=node["name"].text(),
            size=0 if direct else node["size"].at_most(MOST_CELLS, "cells"),
            bits=node.get("bitwidth", 0).width(),
            in_bytes=node.get("type").value == "bytes",
            table=node["binding"].text() if direct else None,
            result=self.field_ref(result) if result.value else None,
        )

    def field_list(self, node: _Node) -> FieldList:
        return FieldList(
            node["id"].number(),
            node["name"].text(),
            tuple(self.expression(item) for item in node["elements"]),
        )


def _check_cells(arrays: Mapping[str, Mapping[str, ArrayInfo]]) -> None:
    """Refuse arrays that together would take too much memory."""
    cells = sum(array.size for kind in arrays.values() for array in kind.values())
    if cells > MOST_CELLS:
        raise beyond("the program", cells, MOST_CELLS, "cells in all registers, counters and meters")
    bits = sum(array.size * array.bits for array in arrays["register"].values())
    if bits > MOST_REGISTER_BITS:
        raise beyond("the program", bits, MOST_REGISTER_BITS, "bits in all registers")
