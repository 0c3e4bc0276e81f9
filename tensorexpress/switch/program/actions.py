"""Generated code of actions: one method per primitive that p4c emits for v1model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from inspect import Signature, signature

from tensorexpress.errors import ProgramError, unknown
from tensorexpress.switch.packet import DROP_PORT
from tensorexpress.switch.program.bmv2 import (
    ActionInfo,
    Const,
    Expression,
    FieldRef,
    Named,
    Operation,
    Primitive,
    Several,
    Text,
)
from tensorexpress.switch.program.checksum import ChecksumWriter
from tensorexpress.switch.program.expressions import Code, masked, number, wrapped
from tensorexpress.switch.program.flow import Body, Flow, Node
from tensorexpress.switch.program.scope import NEXT, Lines, Scope, Var

_DECISION = "decision"


def decision(what: str) -> Var:
    """Return the variable that stands for something that a pass decides about the packet itself."""
    return Var("", (_DECISION, what))


def is_decision(var: Var) -> bool:
    """Whether a variable stands for a decision about the packet."""
    return isinstance(var.part, tuple) and var.part[0] == _DECISION


class ActionWriter(ChecksumWriter):
    """Writes primitives, and actions as sequences of them."""

    def __init__(self, scope: Scope, lines: Lines):
        super().__init__(scope, lines)
        self._signatures: dict[str, Signature] = {}
        self._primitives: dict[str, Callable[..., None]] = {
            "assign": self.assign,
            "modify_field": self.assign,
            "set": self.assign,
            "assign_VL": self.assign,
            "assign_header": self.assign_header,
            "copy_header": self.assign_header,
            "assign_union": self.assign_union,
            "assign_header_stack": self.assign_stack,
            "assign_union_stack": self.assign_stack,
            "push": lambda stack, count: self.push(stack, count, 1),
            "pop": lambda stack, count: self.push(stack, count, -1),
            "add_header": self.add_header,
            "remove_header": self.remove_header,
            "drop": self.drop,
            "mark_to_drop": self.drop,
            "count": self.count,
            "execute_meter": self.execute_meter,
            "register_read": self.register_read,
            "register_write": self.register_write,
            "modify_field_with_hash_based_offset": self.hash,
            "modify_field_rng_uniform": self.random,
            "generate_digest": self.digest,
            "clone_ingress_pkt_to_egress": self.clone,
            "clone_egress_pkt_to_egress": self.clone,
            "resubmit": lambda fields: self.decide("resubmit_fields", fields),
            "recirculate": lambda fields: self.decide("recirculate_fields", fields),
            "truncate": self.truncate,
            "assert": lambda condition: self.claim("assert", condition),
            "assume": lambda condition: self.claim("assume", condition),
            "log_msg": self.log,
            "exit": lambda: self.lines.add("break"),
            "no_op": lambda: None,
            **{name: self.compute(op) for name, op in _P4_14.items()},
        }

    def action(self, info: ActionInfo, arguments: Sequence[Code]) -> None:
        """Write an action's body with these arguments."""
        outer, self.where = self.where, f"action {info.name!r}"
        self.parameters = arguments
        if any(primitive.op.startswith("_jump") for primitive in info.primitives):
            self.with_jumps(info)
        else:
            for primitive in info.primitives:
                self.primitive(primitive)
                if primitive.op == "exit":
                    break
        self.parameters = ()
        self.where = outer

    def primitive(self, primitive: Primitive) -> None:
        """Write one primitive."""
        write = self._primitives.get(primitive.op)
        if write is None:
            known = [name for name in self._primitives if name not in ("set",)]
            raise ProgramError(f"{self.where} uses an {unknown('primitive', primitive.op, known)}")
        try:
            self._signature(primitive.op).bind(*primitive.parameters)
        except TypeError:
            count = len(primitive.parameters)
            raise self.unsupported(f"{primitive.op!r} with {count} parameters") from None
        write(*primitive.parameters)

    def _signature(self, op: str) -> Signature:
        if op not in self._signatures:
            self._signatures[op] = signature(self._primitives[op])
        return self._signatures[op]

    def with_jumps(self, info: ActionInfo) -> None:
        """Write an action that has conditions: p4c lowers them to jumps, which become conditions again."""
        steps = info.primitives
        successors: dict[str, list[Node]] = {}

        def place(position: int) -> Node:
            return str(position) if position < len(steps) else None

        for position, step in enumerate(steps):
            if step.op == "_jump":
                successors[str(position)] = [place(_target(step.parameters[0]))]
            elif step.op == "_jump_if_zero":
                successors[str(position)] = [place(position + 1), place(_target(step.parameters[1]))]
            elif step.op == "exit":
                successors[str(position)] = [None]
            else:
                successors[str(position)] = [place(position + 1)]
        flow = self.flow_of(place(0), successors)

        def body(node: str, go: Callable[[Node], None]) -> None:
            step = steps[int(node)]
            if step.op == "_jump":
                go(successors[node][0])
            elif step.op == "_jump_if_zero":
                self.branch(step.parameters[0], successors[node], go)
            else:
                self.primitive(step)
                go(successors[node][0])

        if flow.is_nestable():
            flow.write_nested(self.lines, body, step="jump")
        elif any(step.op == "exit" for step in steps):
            raise self.unsupported("exit within a loop")
        else:
            self.loop(flow, body)

    def flow_of(self, start: Node, successors: dict[str, list[Node]]) -> Flow:
        """Return a graph to write; finding out where its paths meet is work too."""
        self.scope.work.spend(len(successors) + len(successors) ** 2 // 1024)
        return Flow(start, successors)

    def loop(self, flow: Flow, body: Body) -> None:
        """Write a graph with a cycle; a packet that has used up its steps ends there."""
        cost = flow.write_loop(self.lines, "for _ in steps:", body)
        with self.lines.block("else:"):
            self.lines.add("endless()")
        costs = self.scope.loop_costs
        costs[self.scope.stage] = max(cost, costs.get(self.scope.stage, 0))

    def branch(self, condition: Expression, successors: list[Node], go: Callable[[Node], None]) -> None:
        """Write an `if` whose second successor is taken when the condition does not hold."""
        with self.lines.block(f"if {self.condition(condition)}:"):
            go(successors[0])
        with self.lines.block("else:"):
            go(successors[1])

    def one_case(self, cases: list[tuple[list[str | None], Callable[[], None]]]) -> None:
        """Write alternatives that exclude each other; one without a condition is the only one."""
        word = "if"
        for conditions, write in cases:
            known = [condition for condition in conditions if condition]
            if not known:
                write()
                continue
            with self.lines.block(f"{word} {' and '.join(known)}:"):
                write()
            word = "elif"

    def store(self, targets: list[tuple[str | None, FieldRef]], value: Callable[[FieldRef], str]) -> None:
        """Write an assignment to whichever target is meant."""
        needed = [target for target in targets if self.scope.write(Var(target[1].header, target[1].field)) is not None]
        self.one_case(
            [([condition], partial(self.store_one, target, value)) for condition, target in needed],
        )

    def store_one(self, target: FieldRef, value: Callable[[FieldRef], str]) -> None:
        """Write an assignment to one field."""
        self.put(Var(target.header, target.field), value(target))

    def set_field(self, target: Expression, code: Code) -> None:
        """Write that a field takes a value."""
        targets = self.targets(target)
        if (
            len(targets) > 1
            and not code.atom
            and any(self.scope.is_live(Var(to.header, to.field)) for _, to in targets)
        ):
            self.lines.add(f"data = {code.text}")
            code = Code("data", code.bits, code.signed, atom=True)
        self.store(targets, lambda to: wrapped(code, self.scope.program.field(to)).text)

    def needs(self, target: Expression) -> bool:
        """Whether anybody needs what is stored in a field; the expression is not yet written."""
        return any(self.scope.is_live(Var(to.header, to.field)) for _, to in self.targets(target))

    def assign(self, target: Expression, source: Expression) -> None:
        """target = source."""
        if not self.needs(target):
            return
        found = self.scope.program.field(self.targets(target)[0][1])
        if found.varbit:
            self.store(self.targets(target), lambda to: self.value(source).text)
        else:
            self.set_field(target, self.value(source))

    def compute(self, op: str) -> Callable[..., None]:
        """Return the writer of one of P4_14's primitives for arithmetic: target = left op right."""

        def write(target: Expression, left: Expression, right: Expression | None = None) -> None:
            operands = (target, left) if right is None else (left, right)
            self.set_field(target, self.operation(Operation(op, operands)))

        return write

    def assign_header(self, target: Expression, source: Expression) -> None:
        """Copy a header, validity included."""
        self.one_case(
            [
                ([target_condition, source_condition], partial(self.copy_member, into, out_of))
                for target_condition, into in self.headers(target)
                for source_condition, out_of in self.headers(source)
            ]
        )

    def copy_member(self, into: str, out_of: str) -> None:
        """Write a copy of a header; from one that is not valid nothing is taken but that."""
        if self.scope.header(into).metadata:
            self.copy([(into, out_of)])
            return
        with self.lines.block(f"if {self.valid(out_of)}:"):
            self.copy([(into, out_of)])
            self.mark_valid(into)
        with self.lines.block("else:"):
            self.mark_invalid(into)

    def copy_members(self, pairs: list[tuple[str, str]]) -> None:
        """Write copies of headers one after the other."""
        for into, out_of in pairs:
            self.copy_member(into, out_of)

    def assign_union(self, target: Expression, source: Expression) -> None:
        """Copy all headers of a union."""
        unions = self.scope.program.unions
        self.one_case(
            [
                (
                    [target_condition, source_condition],
                    partial(self.copy_members, list(zip(unions[into].headers, unions[out_of].headers, strict=True))),
                )
                for target_condition, into in self.unions(target)
                for source_condition, out_of in self.unions(source)
            ]
        )

    def assign_stack(self, target: Expression, source: Expression) -> None:
        """Copy all elements of a stack, and how many there are."""
        assert isinstance(target, Named)
        assert isinstance(source, Named)
        elements = zip(self.stack_elements(target.name), self.stack_elements(source.name), strict=True)
        self.copy_members([pair for into, out_of in elements for pair in zip(into, out_of, strict=True)])
        if self.scope.is_live(Var(target.name, NEXT)):
            self.put(Var(target.name, NEXT), self.scope.carry(Var(source.name, NEXT)))

    def push(self, stack: Expression, count: Expression, direction: int) -> None:
        """Push or pop a constant number of elements."""
        if not isinstance(stack, Named) or not isinstance(count, Const):
            raise self.unsupported("a push or pop of a number of elements that is no constant")
        if count.value:
            self.shift_stack(stack.name, direction * count.value)

    def add_header(self, header: Expression) -> None:
        """Make a header valid; one that was not is all zeros."""
        self.one_case(
            [
                ([condition, f"not {self.valid(name)}"], partial(self.add_one, name))
                for condition, name in self.headers(header)
                if not self.scope.header(name).metadata
            ]
        )

    def add_one(self, name: str) -> None:
        """Write that a header that was not valid is so."""
        self.clear(name)
        self.mark_valid(name)
        self.resize(self.fixed_size(name))

    def remove_header(self, header: Expression) -> None:
        """Make a header invalid."""
        self.one_case(
            [
                ([condition, self.valid(name)], partial(self.remove_one, name))
                for condition, name in self.headers(header)
                if not self.scope.header(name).metadata
            ]
        )

    def remove_one(self, name: str) -> None:
        """Write that a header that was valid is not."""
        self.resize(-self.fixed_size(name))
        self.mark_invalid(name)

    def resize(self, more_bytes: int) -> None:
        """Write that the packet has more or fewer bytes for whoever sees it next: egress, or egress again."""
        if self.scope.stage == "egress" and not self.clones_at_egress():
            return
        name = self.scope.fill(decision("size"))
        if name is not None and more_bytes:
            self.scope.carry(decision("size"))
            self.lines.add(f"{name} {'+' if more_bytes > 0 else '-'}= {abs(more_bytes)}")

    def clones_at_egress(self) -> bool:
        """Whether any action clones a packet that has been through egress."""
        return "clone_egress_pkt_to_egress" in self.scope.program.primitives

    def standard(self, name: str) -> FieldRef | None:
        """Return the field that simple_switch knows by this name, None if the program has none."""
        for prefix in ("standard_metadata", "intrinsic_metadata", "queueing_metadata"):
            alias = self.scope.program.aliases.get(f"{prefix}.{name}")
            if alias is not None:
                return alias
        header = self.scope.program.headers.get("standard_metadata")
        if header is not None and header.type.field(name) is not None:
            return FieldRef("standard_metadata", name)
        return None

    def drop(self, metadata: Expression | None = None) -> None:
        """Send the packet nowhere; `metadata` is what stands for the standard metadata, which may be a copy of it."""
        for name, value in (("egress_spec", DROP_PORT), ("mcast_grp", 0)):
            target = self.standard(name)
            if isinstance(metadata, Named) and metadata.name != "standard_metadata":
                target = FieldRef(metadata.name, name)
            if target is not None and self.scope.header(target.header).type.field(target.field) is not None:
                self.set_field(target, number(value))

    def count(self, counter: Expression, index: Expression) -> None:
        """Count this packet in a cell; one that is not there counts nothing."""
        assert isinstance(counter, Named)
        info = self.scope.program.counters.get(counter.name)
        if info is None:
            raise self.unsupported(f"the counter {counter.name!r}, which is not there")
        name = self.scope.object("counter", counter.name)
        code = self.bound(self.value(index))
        self.guarded(
            code,
            info.size,
            lambda: self.lines.add(f"{name}_packets[{code.text}] += 1"),
            lambda: self.lines.add(f"{name}_bytes[{code.text}] += length"),
        )

    def guarded(self, index: Code, size: int, *statements: Callable[[], None]) -> None:
        """Write statements that need an index within an array."""
        literal = _literal(index)
        if (literal is not None and 0 <= literal < size) or (index.bits is not None and 1 << index.bits <= size):
            for statement in statements:
                statement()
            return
        guard = f"{index.inner} < {size}" if index.bits is not None else f"0 <= {index.inner} < {size}"
        with self.lines.block(f"if {guard}:"):
            for statement in statements:
                statement()

    def execute_meter(self, meter: Expression, index: Expression, target: Expression) -> None:
        """target = colour of this packet."""
        assert isinstance(meter, Named)
        info = self.scope.program.meters.get(meter.name)
        if info is None:
            raise self.unsupported(f"the meter {meter.name!r}, which is not there")
        name = self.scope.object("meter", meter.name)
        units = "length" if info.in_bytes else "1"
        self.lines.add(f"data = {name}.execute({self.value(index).text}, {units}, {self.now()})")
        self.set_field(target, Code("data", 2, atom=True))

    def now(self) -> str:
        """Return the text of the time that meters and idle timeouts go by."""
        return "packet.ingress_us" if self.scope.stage == "ingress" else "packet.egress_us"

    def register_read(self, target: Expression, register: Expression, index: Expression) -> None:
        """target = register[index]."""
        assert isinstance(register, Named)
        if self.needs(target):
            self.set_field(target, self.register(register.name, self.bound(self.value(index))))

    def register_write(self, register: Expression, index: Expression, value: Expression) -> None:
        """register[index] = value; a cell that is not there stays so."""
        assert isinstance(register, Named)
        info = self.scope.program.registers.get(register.name)
        if info is None:
            raise self.unsupported(f"the register {register.name!r}, which is not there")
        cells = self.scope.object("register", register.name)
        code = self.bound(self.value(index))
        text = masked(self.value(value), info.bits).text
        self.guarded(code, info.size, lambda: self.lines.add(f"{cells}[{code.text}] = {text}"))

    def hash(self, target: Expression, base: Expression, calculation: Expression, size: Expression) -> None:
        """target = base + hash % size, where a size of 0 counts as 1."""
        assert isinstance(calculation, Named)
        if not self.needs(target):
            return
        found = self.scope.program.calculations.get(calculation.name)
        if found is None:
            raise self.unsupported(f"the calculation {calculation.name!r}, which is not there")
        result = self.hashed(found)
        modulus = self.value(size)
        literal = _literal(modulus)
        if literal is None:
            text, bits = f"({result}) % ({modulus.text} or 1)", modulus.bits
        else:
            text, bits = f"({result}) % {literal or 1}", (literal or 1).bit_length()
        start = self.value(base)
        code = Code(text, bits)
        if start.text != "0":
            wide = None if bits is None or start.bits is None else max(bits, start.bits) + 1
            code = Code(f"{text} + {start.inner}", wide)
        self.set_field(target, code)

    def random(self, target: Expression, low: Expression, high: Expression) -> None:
        """target = a number from low to high; left alone when low is above high."""
        if self.needs(target):
            lowest, highest = self.bound(self.value(low)), self.bound(self.value(high))
            with self.lines.block(f"if {lowest.inner} <= {highest.inner}:"):
                self.lines.add(f"data = randint({lowest.text}, {highest.text})")
                self.set_field(target, Code("data", highest.bits, atom=True))

    def decide(self, what: str, value: Expression) -> None:
        """Write a decision about the packet itself."""
        self.put(decision(what), self.value(value).text)

    def digest(self, receiver: Expression, fields: Expression) -> None:
        """Send a digest when ingress ends; the last one asked for is the one that is sent."""
        self.decide("digest", fields)

    def clone(self, session: Expression, fields: Expression) -> None:
        """Clone the packet when this control ends; the last clone asked for is the one that is made."""
        self.decide("clone_session", session)
        self.decide("clone_fields", fields)

    def truncate(self, size: Expression) -> None:
        """Let no more than that many bytes leave; the smallest number asked for counts."""
        text = self.bound(self.value(size)).inner
        known = "packet.truncate_bytes"
        self.lines.add(f"{known} = {text} if {known} is None else min({known}, {text})")

    def claim(self, word: str, condition: Expression) -> None:
        """Report when a condition does not hold."""
        with self.lines.block(f"if not {self.inner_condition(condition)}:"):
            self.lines.add(f"broken_claim({self.text(f'{word} does not hold in {self.where}')})")

    def log(self, message: Expression, values: Expression) -> None:
        """Log a message with the values in the place of its braces."""
        assert isinstance(message, Text)
        assert isinstance(values, Several)
        texts = [self.value(item).text for item in values.items]
        self.lines.add(f"log_message({', '.join([self.text(message.text), *texts])})")

    def text(self, text: str) -> str:
        """Return the identifier under which generated code finds a text of the program."""
        return self.scope.object("text", text)


#: P4_14's primitives for arithmetic, which p4c emits for programs of that version.
_P4_14 = {
    "add_to_field": "+",
    "subtract_from_field": "-",
    "add": "+",
    "subtract": "-",
    "bit_xor": "^",
    "bit_or": "|",
    "bit_and": "&",
    "shift_left": "<<",
    "shift_right": ">>",
}


def _target(expression: Expression) -> int:
    assert isinstance(expression, Const)
    return expression.value


def _literal(code: Code) -> int | None:
    """Return the number that a text is, None if it is no number."""
    try:
        return int(code.text, 0)
    except ValueError:
        return None
