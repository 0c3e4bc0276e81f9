"""The memory that generated code may use, as regions with names and sizes, and proofs that an access stays inside one.

An offset or a size is a constant plus values that the code computes. Each value has a bound: the generator notes it
when it writes the instruction that enforces it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

#: The value that stands for the bytes of the frame.
FRAME_LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Extent:
    """A number of bytes: a constant, and computed values that are not negative, each so many times.

    >>> Extent(4) + Extent(2, {"%v1": 1})
    Extent(constant=6, values={'%v1': 1})
    """

    constant: int = 0
    values: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Extent) -> Extent:
        return self.plus(other, 1)

    def __sub__(self, other: Extent) -> Extent:
        return self.plus(other, -1)

    def plus(self, other: Extent, times: int) -> Extent:
        """Return the sum of this extent and a multiple of another one."""
        values = dict(self.values)
        for name, count in other.values.items():
            values[name] = values.get(name, 0) + times * count
        return Extent(self.constant + times * other.constant, {name: count for name, count in values.items() if count})

    def __str__(self) -> str:
        return " + ".join([*(f"{count} * {name}" for name, count in self.values.items()), str(self.constant)])


def extent(of: int | str | Extent) -> Extent:
    """Return a number, or the name of a value, as an extent."""
    if isinstance(of, Extent):
        return of
    if isinstance(of, int):
        return Extent(of)
    return Extent(int(of)) if of.isdecimal() else Extent(0, {of: 1})


def excess(end: Extent, size: Extent, bounds: Mapping[str, Extent]) -> int | None:
    """Return by how many bytes `end` may exceed `size`, at most 0 if never; None if a value has no bound.

    Values of `end` count as their bounds, those of `size` alone as 0.

    >>> excess(Extent(2, {"%v1": 1}), Extent(10), {"%v1": Extent(8)})
    0
    >>> excess(Extent(2, {"%v1": 1}), Extent(2, {"%v1": 1}), {})
    0
    >>> excess(Extent(2, {"%v1": 1}), Extent(2), {})
    """
    left = size - end
    tried: set[str] = set()
    while short := next((name for name, count in left.values.items() if count < 0), None):
        bound = bounds.get(short)
        if bound is None or short in tried:
            return None
        tried.add(short)
        count = left.values[short]
        left = left.plus(Extent(0, {short: 1}), -count).plus(bound, count)
    return -left.constant


@dataclass(slots=True)
class Region:
    """A piece of memory. Its size is None while the program is being written that decides it."""

    name: str
    size: Extent | None
    #: How many bytes are used of it, where the size is not yet known; those of the frame come on top.
    used: int = 0
    #: Whether the program chooses among several regions as it runs, so that it may be any.
    is_any: bool = False

    def __str__(self) -> str:
        return self.name


class Regions:
    """The pieces of a context, in the order of their offsets."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._regions: list[Region] = []
        self._names: dict[str, int] = {}
        #: Regions that are several whole pieces, by name.
        self.wholes: dict[str, tuple[int, int]] = {}

    def add(self, name: str, start: int, size: int) -> None:
        """Add a piece behind all others; its name gets a number if another one has the name."""
        known = self._names[name] = self._names.get(name, 0) + 1
        if known > 1:
            name = f"{name} ({known})"
        self._starts.append(start)
        self._regions.append(Region(name, Extent(size)))

    def grow(self, name: str, end: int) -> None:
        """Let the last piece, which has that name or is still to be added, end further on."""
        assert self._regions
        last = self._regions[-1]
        assert last.size is not None
        if last.name != name:
            start = self._starts[-1] + last.size.constant
            self.add(name, start, end - start)
        else:
            last.size = Extent(end - self._starts[-1])

    def at(self, offset: int) -> tuple[Region, int] | None:
        """Return the piece at an offset and where that is in it, None if there is none."""
        position = bisect_right(self._starts, offset) - 1
        if position < 0:
            return None
        region, inside = self._regions[position], offset - self._starts[position]
        assert region.size is not None
        return (region, inside) if inside < max(region.size.constant, 1) else None

    def whole(self, start: int, size: int) -> Region | None:
        """Return several whole pieces as a region, None if some bytes are no whole pieces."""
        end = start + size
        if start not in self._starts or end not in {end for _, end in self.spans().values()}:
            return None
        name = f"bytes {start} to {end} of the context"
        self.wholes[name] = start, end
        return Region(name, Extent(size))

    def spans(self) -> dict[str, tuple[int, int]]:
        """Return from where to where every piece is."""
        return {
            region.name: (start, start + (region.size or Extent()).constant)
            for start, region in zip(self._starts, self._regions, strict=True)
        }
