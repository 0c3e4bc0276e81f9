"""Whole numbers in LLVM IR. Each is as wide as its value can be, so that nothing is lost until a field takes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tensorexpress.switch.program.budgets import WIDEST_BITS as LONGEST_SHIFT
from tensorexpress.switch.program.native.code import WIDEST_BITS, IrFunction
from tensorexpress.switch.program.native.unsupported import Unsupported

#: The widest numbers that processors divide, and that LLVM multiplies without a library.
_WIDEST_QUOTIENT, _WIDEST_PRODUCT = 64, 128


@dataclass(frozen=True, slots=True)
class Num:
    """A number: the text of an operand of LLVM's type i<bits>. A signed one may be negative."""

    text: str
    bits: int
    signed: bool = False
    #: The value where it is known when the program is loaded.
    known: int | None = None

    @property
    def signed_bits(self) -> int:
        """How many bits hold the number together with a sign."""
        return self.bits if self.signed else self.bits + 1


def constant(value: int) -> Num:
    """Return a number that is known.

    >>> constant(5)
    Num(text='5', bits=3, signed=False, known=5)
    """
    bits = max(value.bit_length() + (value < 0), 1)
    return Num(literal(value, bits), bits, value < 0, value)


def literal(value: int, bits: int) -> str:
    """Return the text of a number of that many bits; long ones are hexadecimal, which Python writes at any length."""
    return str(value) if -(2**63) <= value < 2**63 else f"u0x{value & ((1 << bits) - 1):x}"


def truth(condition: str) -> Num:
    """Return a condition as 0 or 1."""
    return Num(condition, 1)


class Arithmetic:
    """Writes what is computed with numbers in one function.

    Where `low` is given, only that many bits of a result count: it may be any number that has these.
    """

    def __init__(self, code: IrFunction):
        self._code = code

    def fit(self, number: Num, bits: int) -> str:
        """Return the operand of a number as one of so many bits, cut or extended."""
        if bits > WIDEST_BITS:
            raise Unsupported(f"it computes with numbers of {bits} bits, and {WIDEST_BITS} are the most")
        if number.known is not None:
            return literal(_cut(number.known, bits), bits)
        if number.bits == bits:
            return number.text
        if bits < number.bits:
            return self._code.op(f"trunc i{number.bits} {number.text} to i{bits}", number.bits)
        word = "sext" if number.signed else "zext"
        return self._code.op(f"{word} i{number.bits} {number.text} to i{bits}", bits)

    def cut(self, number: Num, bits: int | None) -> Num:
        """Return a number with what is above so many bits cut away, sign included; None cuts nothing."""
        if bits is None or (not number.signed and number.bits <= bits):
            return number
        if number.known is not None:
            return constant(number.known & (1 << bits) - 1)
        return Num(self.fit(number, bits), bits)

    def wrap(self, number: Num, bits: int, *, signed: bool) -> Num:
        """Return a number as a field of that many bits holds it."""
        return Num(self.fit(number, bits), bits, signed) if signed else self.cut(number, bits)

    def binary(self, op: str, left: Num, right: Num, low: int | None) -> Num:
        """Return a sum, difference, product or bitwise combination."""
        bits, signed = _result(op, left, right)
        if low is not None and (bits >= low or signed):
            bits, signed = low, False
        if op == "*" and bits > _WIDEST_PRODUCT:
            raise Unsupported(f"it multiplies numbers of {bits} bits, and {_WIDEST_PRODUCT} are the most")
        word = {"+": "add", "-": "sub", "*": "mul", "&": "and", "|": "or", "^": "xor"}[op]
        text = self._code.op(f"{word} i{bits} {self.fit(left, bits)}, {self.fit(right, bits)}", bits)
        return Num(text, bits, signed)

    def complement(self, number: Num, low: int | None) -> Num:
        """Return ~number."""
        return self.binary("^", number, constant(-1), low)

    def shift_left(self, number: Num, amount: Num, low: int | None) -> Num:
        """Return number << amount; the amount is at most what fields have bits."""
        if amount.known is not None:
            return self._shift_left_by(number, min(max(amount.known, 0), LONGEST_SHIFT), low)
        most = min((1 << amount.bits) - 1, LONGEST_SHIFT) if amount.bits <= 16 else LONGEST_SHIFT
        bits = number.bits + most if low is None else min(low, number.bits + most)
        signed = number.signed and bits == number.bits + most
        limited = self._limited(amount, most)
        code = self._code
        shifted = code.op(f"shl i{bits} {self.fit(number, bits)}, {self.fit(limited, bits)}", bits)
        is_far = self.compare(">=", limited, constant(bits))
        return Num(code.op(f"select i1 {is_far}, i{bits} 0, i{bits} {shifted}", bits), bits, signed)

    def _shift_left_by(self, number: Num, amount: int, low: int | None) -> Num:
        bits, signed = number.bits + amount, number.signed
        if low is not None and bits > low:
            if amount >= low:
                return constant(0)
            bits, signed = low, False
        return Num(self._code.op(f"shl i{bits} {self.fit(number, bits)}, {amount}", bits), bits, signed)

    def shift_right(self, number: Num, amount: Num) -> Num:
        """Return number >> amount."""
        code, bits = self._code, number.bits
        word = "ashr" if number.signed else "lshr"
        if amount.known is not None:
            by = min(max(amount.known, 0), LONGEST_SHIFT)
            if by >= bits:
                if not number.signed:
                    return constant(0)
                by = bits - 1
            shifted = Num(code.op(f"{word} i{bits} {self.fit(number, bits)}, {by}", bits), bits, number.signed)
            return self.narrow(shifted, bits - by)
        limited = self._limited(amount, bits)
        shifted_text = code.op(f"{word} i{bits} {number.text}, {self.fit(limited, bits)}", bits)
        is_far = self.compare(">=", limited, constant(bits))
        rest = code.op(f"ashr i{bits} {number.text}, {bits - 1}", bits) if number.signed else "0"
        return Num(code.op(f"select i1 {is_far}, i{bits} {rest}, i{bits} {shifted_text}", bits), bits, number.signed)

    def narrow(self, number: Num, bits: int) -> Num:
        """Return a number that is known to fit so many bits, in these."""
        return Num(self.fit(number, bits), bits, number.signed)

    def _limited(self, number: Num, most: int) -> Num:
        """Return a number brought between 0 and another one."""
        return self.limit(number, 0, most)

    def limit(self, number: Num, least: int, most: int) -> Num:
        """Return a number brought between two others."""
        code = self._code
        bits = max(number.signed_bits, constant(most).signed_bits, constant(least).signed_bits)
        text = self.fit(number, bits)
        if number.signed or least > 0:
            is_less = code.op(f"icmp slt i{bits} {text}, {literal(least, bits)}", bits)
            text = code.op(f"select i1 {is_less}, i{bits} {literal(least, bits)}, i{bits} {text}", bits)
        is_more = code.op(f"icmp sgt i{bits} {text}, {literal(most, bits)}", bits)
        text = code.op(f"select i1 {is_more}, i{bits} {literal(most, bits)}, i{bits} {text}", bits)
        limited = Num(text, bits, signed=True)
        if least < 0:
            return self.narrow(limited, max(constant(most).signed_bits, constant(least).bits))
        return Num(self.fit(limited, max(most.bit_length(), 1)), max(most.bit_length(), 1))

    def divide(self, op: str, left: Num, right: Num) -> Num:
        """Return a quotient or a remainder, rounded down; by zero it is 0."""
        signed = left.signed or right.signed
        bits = max(left.signed_bits, right.signed_bits) + 1 if signed else max(left.bits, right.bits)
        if bits > _WIDEST_QUOTIENT:
            raise Unsupported(f"it divides numbers of {bits} bits, and {_WIDEST_QUOTIENT} are the most")
        code, kind = self._code, f"i{bits}"
        over, by = self.fit(left, bits), self.fit(right, bits)
        is_zero = code.op(f"icmp eq {kind} {by}, 0")
        safe = code.op(f"select i1 {is_zero}, {kind} 1, {kind} {by}")
        word = "s" if signed else "u"
        quotient = code.op(f"{word}div {kind} {over}, {safe}")
        rest = code.op(f"{word}rem {kind} {over}, {safe}")
        if signed:  # LLVM rounds to 0
            is_whole = code.op(f"icmp eq {kind} {rest}, 0")
            signs = code.op(f"xor {kind} {rest}, {safe}")
            is_apart = code.op(f"icmp slt {kind} {signs}, 0")
            is_below = code.op(f"select i1 {is_whole}, i1 false, i1 {is_apart}")
            less = code.op(f"sub {kind} {quotient}, 1")
            more = code.op(f"add {kind} {rest}, {safe}")
            quotient = code.op(f"select i1 {is_below}, {kind} {less}, {kind} {quotient}")
            rest = code.op(f"select i1 {is_below}, {kind} {more}, {kind} {rest}")
        found = quotient if op == "/" else rest
        return Num(code.op(f"select i1 {is_zero}, {kind} 0, {kind} {found}"), bits, signed)

    def compare(self, op: str, left: Num, right: Num) -> str:
        """Return the condition that two numbers compare so."""
        signed = left.signed or right.signed
        bits = max(left.signed_bits, right.signed_bits) if signed else max(left.bits, right.bits)
        order = "s" if signed else "u"
        word = {"==": "eq", "!=": "ne"}.get(op) or order + {"<": "lt", "<=": "le", ">": "gt", ">=": "ge"}[op]
        return self._code.op(f"icmp {word} i{bits} {self.fit(left, bits)}, {self.fit(right, bits)}", bits)

    def choose(self, condition: str, yes: Num, no: Num) -> Num:
        """Return one of two numbers."""
        signed = yes.signed or no.signed
        bits = max(yes.signed_bits, no.signed_bits) if signed else max(yes.bits, no.bits)
        chosen = f"select i1 {condition}, i{bits} {self.fit(yes, bits)}, i{bits} {self.fit(no, bits)}"
        return Num(self._code.op(chosen, bits), bits, signed)

    def one_of(self, choices: list[tuple[str | None, Callable[[], Num]]]) -> Num:
        """Return the number of the choice whose condition holds, 0 if none does."""
        found = constant(0)
        for condition, number in reversed(choices):
            found = number() if condition is None else self.choose(condition, number(), found)
        return found


def _cut(value: int, bits: int) -> int:
    """Return what LLVM takes for a number of that many bits."""
    return value & (1 << bits) - 1


def _result(op: str, left: Num, right: Num) -> tuple[int, bool]:
    """Return how many bits the result of an operation may have, and whether it may be negative."""
    signed = left.signed or right.signed or op == "-"
    if not signed:
        longest = max(left.bits, right.bits)
        bits = {"+": longest + 1, "*": left.bits + right.bits, "&": min(left.bits, right.bits)}.get(op, longest)
        return bits, False
    if op == "&" and not (left.signed and right.signed):
        return (right if left.signed else left).bits, False
    longest = max(left.signed_bits, right.signed_bits)
    return {"+": longest + 1, "-": longest + 1, "*": left.signed_bits + right.signed_bits}.get(op, longest), True
