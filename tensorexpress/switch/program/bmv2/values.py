"""What a BMv2 program says, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tensorexpress.switch.operations import ActionCall, Entry
from tensorexpress.switch.program.match_kinds import EXACT

#: The field by which BMv2 JSON asks whether a header is valid; no field has this name.
VALIDITY = "$valid$"


@dataclass(frozen=True, slots=True)
class FieldInfo:
    """A field of a header type. A varbit field is `bits` wide at most."""

    name: str
    bits: int
    signed: bool = False
    varbit: bool = False


@dataclass(frozen=True, slots=True)
class HeaderType:
    """A header or struct type and its fields in the order of the wire."""

    name: str
    fields: tuple[FieldInfo, ...]
    by_name: Mapping[str, FieldInfo] = field(repr=False, compare=False)

    def field(self, name: str) -> FieldInfo | None:
        """Return the field of that name, None if there is none."""
        return self.by_name.get(name)


@dataclass(frozen=True, slots=True)
class HeaderInfo:
    """One header (or struct of metadata) that a packet may carry."""

    name: str
    type: HeaderType
    metadata: bool


@dataclass(frozen=True, slots=True)
class UnionInfo:
    """Headers of which one is valid at most; `members` are their names within the union, by its type."""

    name: str
    type: str
    headers: tuple[str, ...]
    members: tuple[str, ...]
    member_types: tuple[str, ...]


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
class Operator:
    """An operator and its operands; a unary operator has one."""

    op: str
    operands: tuple[Expression, ...]


Expression = Const | Text | FieldRef | Named | LastField | Lookahead | Parameter | RegisterCell | Several | Operator


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

    @property
    def is_default(self) -> bool:
        """Whether it is taken whatever the key is."""
        if self.value_set is not None:
            return False
        return self.values is None or (self.masks is not None and not any(self.masks))


@dataclass(frozen=True, slots=True)
class ParserState:
    """What a parser state does, and where it goes from there."""

    name: str
    steps: tuple[Primitive, ...]
    key: tuple[Expression, ...]
    transitions: tuple[Transition, ...]

    @property
    def successors(self) -> list[str | None]:
        """What may follow; None is the end."""
        found: list[str | None] = []
        for transition in self.transitions:
            found.append(transition.next_state)
            if transition.is_default:
                return found
        return [*found, None]


@dataclass(frozen=True, slots=True)
class KeyField:
    """One field of a table's key; `kind` is BMv2's word for how it matches."""

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

    @property
    def is_exact(self) -> bool:
        """Whether every field of the key is exact, so that a dictionary finds the entry."""
        return all(part.kind == EXACT.name for part in self.key)

    @property
    def successors(self) -> list[str | None]:
        """What may follow; None is the end."""
        if self.by_hit:
            return [self.next_hit, self.next_miss]
        found: list[str | None] = list(self.next_by_action.values())
        return found if self.default is not None and self.profile is None else [*found, self.next_default]

    @property
    def named_next(self) -> list[str | None]:
        """All nodes that the table names, those included that cannot follow."""
        return [*self.next_by_action.values(), self.next_hit, self.next_miss, self.next_default]

    @property
    def fixed_action(self) -> ActionCall | None:
        """The action of a table that always runs the same one and counts nothing; None for any other table."""
        return self.default if not self.key and self.default_is_const and not self.counts else None


@dataclass(frozen=True, slots=True)
class Condition:
    """An `if` of a control."""

    name: str
    expression: Expression
    next_true: str | None
    next_false: str | None

    @property
    def successors(self) -> list[str | None]:
        """What may follow; None is the end."""
        return [self.next_true, self.next_false]

    @property
    def named_next(self) -> list[str | None]:
        """All nodes that the condition names."""
        return self.successors


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
class Bmv2Program:
    """Everything that one BMv2 JSON document says."""

    headers: Mapping[str, HeaderInfo]
    stacks: Mapping[str, tuple[str, ...]]
    unions: Mapping[str, UnionInfo]
    union_stacks: Mapping[str, tuple[str, ...]]
    #: The type of the headers or unions of each stack.
    stack_types: Mapping[str, str]
    errors: Mapping[str, int]
    states: Mapping[str, ParserState]
    first_state: str | None
    value_sets: Mapping[str, int]
    emitted: tuple[str, ...]
    actions: Mapping[int, ActionInfo]
    ingress: Control
    egress: Control
    profiles: Mapping[str, ProfileInfo]
    #: By kind ("register", "counter", "meter"), then by name.
    arrays: Mapping[str, Mapping[str, ArrayInfo]]
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

    def field(self, reference: FieldRef) -> FieldInfo:
        """Return what is known of a field that the program refers to."""
        found = self.headers[reference.header].type.field(reference.field)
        assert found is not None, reference
        return found

    def stack_elements(self, stack: str) -> list[tuple[str, ...]]:
        """Return the headers of each element of a stack: one, or the members of a union."""
        if stack in self.stacks:
            return [(header,) for header in self.stacks[stack]]
        return [self.unions[union].headers for union in self.union_stacks[stack]]
