"""Generated code of the primitives that use externs: counters, meters, registers, hashes, random numbers, logs."""

from __future__ import annotations

from collections.abc import Callable

from tensorexpress.switch.program.bmv2.values import Expression, Named, Several, Text
from tensorexpress.switch.program.codegen.assignments import AssignmentWriter
from tensorexpress.switch.program.codegen.checksums import ChecksumWriter
from tensorexpress.switch.program.codegen.context import Context
from tensorexpress.switch.program.codegen.expressions import ExpressionWriter
from tensorexpress.switch.program.codegen.snippets import Snippet, literal, masked


class ExternWriter:
    """Writes what externs do for actions."""

    def __init__(
        self,
        context: Context,
        expressions: ExpressionWriter,
        checksums: ChecksumWriter,
        assignments: AssignmentWriter,
    ):
        self._context = context
        self._scope = context.scope
        self._lines = context.lines
        self._expressions = expressions
        self._checksums = checksums
        self._assignments = assignments
        self.primitives: dict[str, Callable[..., None]] = {
            "count": self._count,
            "execute_meter": self._execute_meter,
            "register_read": self._register_read,
            "register_write": self._register_write,
            "modify_field_with_hash_based_offset": self._hash,
            "modify_field_rng_uniform": self._random,
            "assert": lambda condition: self._claim("assert", condition),
            "assume": lambda condition: self._claim("assume", condition),
            "log_msg": self._log,
        }

    def _count(self, counter: Expression, index: Expression) -> None:
        """Count this packet in a cell; one that is not there counts nothing."""
        assert isinstance(counter, Named)
        info = self._scope.program.arrays["counter"][counter.name]
        name = self._scope.identifiers.object("counter", counter.name)
        code = self._context.bound(self._expressions.value(index))
        self._guarded(
            code,
            info.size,
            lambda: self._lines.add(f"{name}_packets[{code.text}] += 1"),
            lambda: self._lines.add(f"{name}_bytes[{code.text}] += length"),
        )

    def _guarded(self, index: Snippet, size: int, *statements: Callable[[], None]) -> None:
        """Write statements that need an index within an array."""
        known = literal(index)
        if (known is not None and 0 <= known < size) or (index.bits is not None and 1 << index.bits <= size):
            for statement in statements:
                statement()
            return
        guard = f"{index.inner} < {size}" if index.bits is not None else f"0 <= {index.inner} < {size}"
        with self._lines.block(f"if {guard}:"):
            for statement in statements:
                statement()

    def _execute_meter(self, meter: Expression, index: Expression, target: Expression) -> None:
        """target = colour of this packet."""
        assert isinstance(meter, Named)
        info = self._scope.program.arrays["meter"][meter.name]
        name = self._scope.identifiers.object("meter", meter.name)
        units = "length" if info.in_bytes else "1"
        self._lines.add(f"data = {name}.execute({self._expressions.value(index).text}, {units}, {self._context.now()})")
        self._assignments.set_field(target, Snippet("data", 2, atom=True))

    def _register_read(self, target: Expression, register: Expression, index: Expression) -> None:
        """target = register[index]."""
        assert isinstance(register, Named)
        if self._assignments.needs(target):
            self._assignments.set_field(
                target, self._expressions.register(register.name, self._context.bound(self._expressions.value(index)))
            )

    def _register_write(self, register: Expression, index: Expression, value: Expression) -> None:
        """register[index] = value; a cell that is not there stays so."""
        assert isinstance(register, Named)
        info = self._scope.program.arrays["register"][register.name]
        cells = self._scope.identifiers.object("register", register.name)
        code = self._context.bound(self._expressions.value(index))
        text = masked(self._expressions.value(value), info.bits).text
        self._guarded(code, info.size, lambda: self._lines.add(f"{cells}[{code.text}] = {text}"))

    def _hash(self, target: Expression, base: Expression, calculation: Expression, size: Expression) -> None:
        """target = base + hash % size, where a size of 0 counts as 1."""
        assert isinstance(calculation, Named)
        if not self._assignments.needs(target):
            return
        result = self._checksums.hashed(self._scope.program.calculations[calculation.name])
        modulus = self._expressions.value(size)
        known = literal(modulus)
        if known is None:
            text, bits = f"({result}) % ({modulus.text} or 1)", modulus.bits
        else:
            text, bits = f"({result}) % {known or 1}", (known or 1).bit_length()
        start = self._expressions.value(base)
        code = Snippet(text, bits)
        if start.text != "0":
            wide = None if bits is None or start.bits is None else max(bits, start.bits) + 1
            code = Snippet(f"{text} + {start.inner}", wide)
        self._assignments.set_field(target, code)

    def _random(self, target: Expression, low: Expression, high: Expression) -> None:
        """target = a number from low to high; left alone when low is above high."""
        if self._assignments.needs(target):
            lowest, highest = (
                self._context.bound(self._expressions.value(low)),
                self._context.bound(self._expressions.value(high)),
            )
            with self._lines.block(f"if {lowest.inner} <= {highest.inner}:"):
                self._lines.add(f"data = randint({lowest.text}, {highest.text})")
                self._assignments.set_field(target, Snippet("data", highest.bits, atom=True))

    def _claim(self, word: str, condition: Expression) -> None:
        """Report when a condition does not hold."""
        with self._lines.block(f"if not {self._expressions.inner_condition(condition)}:"):
            self._lines.add(f"broken_claim({self._context.text(f'{word} does not hold in {self._context.where}')})")

    def _log(self, message: Expression, values: Expression) -> None:
        """Log a message with the values in the place of its braces."""
        assert isinstance(message, Text)
        assert isinstance(values, Several)
        texts = [self._expressions.value(item).text for item in values.items]
        self._lines.add(f"log_message({', '.join([self._context.text(message.text), *texts])})")
