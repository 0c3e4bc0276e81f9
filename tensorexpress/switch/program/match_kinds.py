"""How a field of a key matches: what each kind of match needs of its values, from BMv2 JSON to the rows of a table.

A new kind is a class here and its form as a message in p4runtime/matching.py. Tables, priorities, entries of programs
and the checks of P4Info against a program follow from what it says of itself.
"""

from __future__ import annotations

from tensorexpress.switch.operations import MatchValue
from tensorexpress.switch.program.bmv2.document import JsonNode


class MatchKind:
    """A kind of match. Values are those of `operations.MatchValue`; `bits` is the width of the field."""

    #: The word for it in P4Info.
    name: str
    #: The word for it in BMv2 JSON.
    bmv2: str
    #: Whether several entries can match one packet, so that a priority must say which wins.
    is_ranked = False
    #: Whether a client may leave the field out, to match anything.
    may_be_left_out = True
    #: Whether the mask does not say all, so that `admits` has to be asked.
    is_compared = False

    def from_json(self, node: JsonNode, bits: int) -> MatchValue:
        """Return the value that an entry in BMv2 JSON gives; the node checks what is read from it."""
        return node["key"].of_width(bits)

    def anything(self, bits: int) -> MatchValue:
        """Return the value that matches every packet."""
        return 0, 0

    def canonical(self, value: MatchValue, bits: int) -> MatchValue:
        """Return a value as P4Runtime writes it: no bits where it does not look."""
        return value

    def mask(self, value: MatchValue, bits: int) -> tuple[int, int]:
        """Return which bits of a packet's field are compared, as (value, mask)."""
        if value is None:
            return 0, 0
        if isinstance(value, int):
            return value, (1 << bits) - 1
        return self._mask_of_pair(value, bits)

    def _mask_of_pair(self, value: tuple[int, int], bits: int) -> tuple[int, int]:
        return value

    def admits(self, value: MatchValue, number: int) -> bool:
        """Whether the field of a packet, which its mask lets pass, matches."""
        return True


class Exact(MatchKind):
    """One value."""

    name = bmv2 = "exact"
    may_be_left_out = False


class Lpm(MatchKind):
    """The bits of a prefix; of several prefixes the longest wins."""

    name = bmv2 = "lpm"

    def from_json(self, node: JsonNode, bits: int) -> MatchValue:
        """Return (value, length of the prefix)."""
        return node["key"].of_width(bits), node["prefix_length"].at_most(bits, "bits")

    def canonical(self, value: MatchValue, bits: int) -> MatchValue:
        """Return it with no bits behind the prefix."""
        if not isinstance(value, tuple):
            return value
        behind = bits - value[1]
        return value[0] >> behind << behind, value[1]

    def _mask_of_pair(self, value: tuple[int, int], bits: int) -> tuple[int, int]:
        return value[0], (1 << bits) - (1 << bits - value[1])


class Ternary(MatchKind):
    """The bits under a mask."""

    name = bmv2 = "ternary"
    is_ranked = True

    def from_json(self, node: JsonNode, bits: int) -> MatchValue:
        """Return (value, mask)."""
        return node["key"].of_width(bits), node["mask"].of_width(bits)

    def canonical(self, value: MatchValue, bits: int) -> MatchValue:
        """Return it with no bits outside the mask."""
        return (value[0] & value[1], value[1]) if isinstance(value, tuple) else value


class Range(MatchKind):
    """All numbers between two, these included. No mask says that: rows are compared one by one."""

    name = bmv2 = "range"
    is_ranked = True
    is_compared = True

    def from_json(self, node: JsonNode, bits: int) -> MatchValue:
        """Return (low, high)."""
        return node["start"].of_width(bits), node["end"].of_width(bits)

    def anything(self, bits: int) -> MatchValue:
        """Return the range of all numbers."""
        return 0, (1 << bits) - 1

    def mask(self, value: MatchValue, bits: int) -> tuple[int, int]:
        """Compare no bits."""
        return 0, 0

    def admits(self, value: MatchValue, number: int) -> bool:
        """Whether a number is in the range."""
        return not isinstance(value, tuple) or value[0] <= number <= value[1]


class Optional(MatchKind):
    """One value, or anything. BMv2 knows no such match: p4c makes it a ternary one."""

    name = "optional"
    bmv2 = "ternary"
    is_ranked = True

    def anything(self, bits: int) -> MatchValue:
        """Return what stands for no value."""
        return None

    def canonical(self, value: MatchValue, bits: int) -> MatchValue:
        """Return the value of a ternary match that looks at all bits or at none."""
        if not isinstance(value, tuple):
            return value
        return value[0] if value[1] else None


EXACT, LPM, RANGE = Exact(), Lpm(), Range()

#: What P4Info may declare, by its words.
MATCH_KINDS = {kind.name: kind for kind in (EXACT, LPM, Ternary(), RANGE, Optional())}

#: What the tables of BMv2 may match by, by its words.
BMV2_KINDS = {kind.name: kind for kind in MATCH_KINDS.values() if kind.name == kind.bmv2}
