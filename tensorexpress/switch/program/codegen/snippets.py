"""Python text of values, with what is known of their widths.

Numbers have no width while they are computed; a field that takes one wraps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorexpress.switch.program.bmv2.values import Const, Expression, FieldInfo
from tensorexpress.switch.program.budgets import WIDEST_BITS


@dataclass(frozen=True, slots=True)
class Snippet:
    """Python text of a value: `bits` bounds a value that is not negative, `signed` one that may be."""

    text: str
    bits: int | None = None
    signed: int | None = None
    atom: bool = False

    @property
    def inner(self) -> str:
        """The text as an operand of something else."""
        return self.text if self.atom else f"({self.text})"


def number(value: int) -> Snippet:
    """Return the text of a constant."""
    text = str(value) if -256 < value < 256 else hex(value)
    return Snippet(text, value.bit_length() if value >= 0 else None, value.bit_length() + 1, atom=value >= 0)


def masked(code: Snippet, bits: int) -> Snippet:
    """Return a value cut to an unsigned width."""
    if code.bits is not None and code.bits <= bits:
        return code
    return Snippet(f"{code.inner} & {hex((1 << bits) - 1)}", bits)


def wrapped(code: Snippet, item: FieldInfo) -> Snippet:
    """Return a value as a field stores it."""
    if not item.signed:
        return masked(code, item.bits)
    return two_complement(code, item.bits)


def unsigned(code: Snippet, item: FieldInfo) -> Snippet:
    """Return a field's value as it stands in a key or on the wire."""
    return masked(code, item.bits) if item.signed else code


def two_complement(code: Snippet, bits: int) -> Snippet:
    """Return a value wrapped to a signed width."""
    if (code.signed is not None and code.signed <= bits) or (code.bits is not None and code.bits < bits):
        return Snippet(code.text, code.bits, bits, code.atom)
    half = 1 << bits - 1
    return Snippet(f"({code.inner} + {hex(half)} & {hex(2 * half - 1)}) - {hex(half)}", None, bits)


def one_of(choices: Sequence[tuple[str | None, Snippet]]) -> Snippet:
    """Return the text of the first choice whose condition holds, 0 if none does."""
    if len(choices) == 1 and choices[0][0] is None:
        return choices[0][1]
    text = " else ".join(f"{code.inner} if {condition}" for condition, code in choices)
    widths = [code.bits for _, code in choices]
    bits = max(width or 0 for width in widths) if None not in widths else None
    signs = [code.signed or (None if code.bits is None else code.bits + 1) for _, code in choices]
    return Snippet(f"{text} else 0", bits, None if None in signs else max(sign or 0 for sign in signs))


def either(condition: str, yes: Snippet, no: Snippet) -> Snippet:
    """Return the text of a choice between two values."""
    bits = None if yes.bits is None or no.bits is None else max(yes.bits, no.bits)
    signed = None if yes.signed is None or no.signed is None else max(yes.signed, no.signed)
    return Snippet(f"{yes.inner} if {condition} else {no.inner}", bits, signed)


def cast(op: str, code: Snippet, width: Expression) -> Snippet:
    """Return the text of a cast to a width, saturating or not."""
    assert isinstance(width, Const)
    bits = width.value
    if op == "two_comp_mod":
        return two_complement(code, bits)
    if op == "usat_cast":
        if code.bits is not None:
            return Snippet(f"min({code.text}, {hex((1 << bits) - 1)})", bits, atom=True)
        return Snippet(f"max(0, min({code.text}, {hex((1 << bits) - 1)}))", bits, atom=True)
    half = 1 << bits - 1
    return Snippet(f"max(-{hex(half)}, min({code.text}, {hex(half - 1)}))", None, bits, atom=True)


def shift(op: str, left: Snippet, right: Snippet, constant: Expression) -> Snippet:
    """Return the text of a shift; no amount is too large."""
    if isinstance(constant, Const):
        amount = min(max(constant.value, 0), WIDEST_BITS)
        if left.bits is None:
            return Snippet(f"{left.inner} {op} {amount}", None, left.signed if op == ">>" else None)
        return Snippet(f"{left.inner} {op} {amount}", max(left.bits + (amount if op == "<<" else -amount), 0))
    if op == ">>":
        amount_text = right.inner if right.bits is not None else f"max(0, {right.text})"
        return Snippet(f"{left.inner} >> {amount_text}", left.bits, left.signed)
    if right.bits is not None and right.bits <= 8:
        bits = None if left.bits is None else left.bits + (1 << right.bits) - 1
        return Snippet(f"{left.inner} << {right.inner}", bits)
    return Snippet(f"{left.inner} << max(0, min({right.text}, {WIDEST_BITS}))")


def arithmetic(op: str, left: Snippet, right: Snippet, operands: Sequence[Expression]) -> Snippet:
    """Return the text of a sum, product or bitwise operation, with what is known of its width."""
    bits: int | None = None
    if op == "&":
        known = [code.bits for code in (left, right) if code.bits is not None]
        bits = min(known, default=None)
        for code, mask in ((left, operands[1]), (right, operands[0])):
            if (
                isinstance(mask, Const)
                and code.bits is not None
                and mask.value & (1 << code.bits) - 1 == (1 << code.bits) - 1
            ):
                return code
    elif left.bits is not None and right.bits is not None:
        if op == "+":
            bits = max(left.bits, right.bits) + 1
        elif op == "*":
            bits = left.bits + right.bits
        elif op in "|^":
            bits = max(left.bits, right.bits)
    return Snippet(f"{left.inner} {op} {right.inner}", bits)


def literal(code: Snippet) -> int | None:
    """Return the number that a text is, None if it is no number."""
    try:
        return int(code.text, 0)
    except ValueError:
        return None
