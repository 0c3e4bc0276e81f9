"""State that a program keeps between packets, other than tables: arrays of cells, and value sets.

An array that a program may have is a class here, its primitives are in codegen/externs.py and the kinds of their
parameters in verify.py; BMv2 JSON lists those of the kind "x" under "x_arrays". Programs that use primitives which
native/primitives.py does not have run in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from tensorexpress.switch.operations import Key, MeterRates

GREEN, YELLOW, RED = range(3)


class ExternArray(Protocol):
    """An array of cells that actions use by index."""

    def bindings(self, name: str) -> dict[str, Any]:
        """Return what generated code finds the array's parts under, which it knows by this name."""
        ...

    def lists(self) -> list[list[int]]:
        """Return all lists with one item for each cell."""
        ...


class RegisterArray:
    """An array of numbers."""

    def __init__(self, size: int):
        self.cells = [0] * size

    def bindings(self, name: str) -> dict[str, Any]:
        """Return the cells under the name itself."""
        return {name: self.cells}

    def lists(self) -> list[list[int]]:
        """Return the cells."""
        return [self.cells]

    def write(self, index: int | None, value: int) -> None:
        """Set one cell, or all when the index is None."""
        if index is None:
            self.cells[:] = [value] * len(self.cells)
        else:
            self.cells[index] = value

    def read(self, index: int | None) -> list[int]:
        """Return one cell, or all when the index is None."""
        return list(self.cells) if index is None else [self.cells[index]]


class CounterArray:
    """An array of counters; every cell counts packets and bytes."""

    def __init__(self, size: int):
        self.packets = [0] * size
        self.bytes = [0] * size

    def bindings(self, name: str) -> dict[str, Any]:
        """Return packets and bytes, each under a name of its own."""
        return {f"{name}_packets": self.packets, f"{name}_bytes": self.bytes}

    def lists(self) -> list[list[int]]:
        """Return packets and bytes."""
        return [self.packets, self.bytes]

    def write(self, index: int | None, packets: int, size_bytes: int) -> None:
        """Set one cell, or all when the index is None."""
        if index is None:
            self.packets[:] = [packets] * len(self.packets)
            self.bytes[:] = [size_bytes] * len(self.bytes)
        else:
            self.packets[index] = packets
            self.bytes[index] = size_bytes

    def read(self, index: int | None) -> Iterable[tuple[int, int]]:
        """Return (packets, bytes) of one cell, or of all when the index is None: copies, made as they are taken."""
        if index is None:
            return zip(self.packets[:], self.bytes[:], strict=True)
        return [(self.packets[index], self.bytes[index])]


class MeterCell:
    """A two-rate three-colour meter: one bucket filled at the peak rate, one at the committed rate.

    Buckets fill by the time since the switch started, so no rounding adds up.
    """

    __slots__ = ("committed", "committed_seen", "peak", "peak_seen", "rates")

    def __init__(self) -> None:
        self.configure(None)

    def configure(self, rates: MeterRates | None) -> None:
        """Set the rates and fill both buckets; with None every packet is green."""
        self.rates = rates
        self.committed_seen = self.peak_seen = 0
        self.committed = rates.cburst if rates else 0
        self.peak = rates.pburst if rates else 0

    def execute(self, units: int, now_us: int) -> int:
        """Return the colour of a packet of that many units (bytes or packets) and take them from the buckets."""
        rates = self.rates
        if rates is None:
            return GREEN
        filled = now_us * rates.pir // 1_000_000
        self.peak = min(self.peak + filled - self.peak_seen, rates.pburst)
        self.peak_seen = filled
        if self.peak < units:
            return RED
        self.peak -= units
        filled = now_us * rates.cir // 1_000_000
        self.committed = min(self.committed + filled - self.committed_seen, rates.cburst)
        self.committed_seen = filled
        if self.committed < units:
            return YELLOW
        self.committed -= units
        return GREEN


class MeterArray:
    """An array of meters; a cell is made when it is configured alone or used first, since most never are."""

    def __init__(self, size: int):
        self.size = size
        self._meters: dict[int, MeterCell] = {}
        #: What all cells were set to that have not been made yet; a meter that nobody used has full buckets.
        self._rates: MeterRates | None = None

    def bindings(self, name: str) -> dict[str, Any]:
        """Return the array under the name itself."""
        return {name: self}

    def lists(self) -> list[list[int]]:
        """Return none: only cells in use take memory."""
        return []

    def configure(self, index: int | None, rates: MeterRates | None) -> None:
        """Set the rates of one cell, or of all when the index is None."""
        if index is None:
            self._meters = {}
            self._rates = rates
        else:
            self._meters.setdefault(index, MeterCell()).configure(rates)

    def execute(self, index: int, units: int, now_us: int) -> int:
        """Return the colour of a packet; green at a cell that is not configured or not there."""
        meter = self._meters.get(index)
        if meter is None:
            if self._rates is None or not 0 <= index < self.size:
                return GREEN
            meter = self._meters[index] = MeterCell()
            meter.configure(self._rates)
        return meter.execute(units, now_us)


#: The arrays that a program may have, by BMv2's word for a cell; each is made from its number of cells.
ARRAYS: dict[str, Callable[[int], ExternArray]] = {
    "register": RegisterArray,
    "counter": CounterArray,
    "meter": MeterArray,
}


class ValueSet:
    """The members of a parser value set: plain keys in a set, keys with masks or ranges in a list."""

    def __init__(self) -> None:
        self.set(())

    def set(self, members: tuple[Key, ...]) -> None:
        """Replace all members."""
        self._plain = {member for member in members if all(isinstance(value, int) for value in member)}
        self._masked = [member for member in members if member not in self._plain]

    def holds(self, *values: int) -> bool:
        """Whether the values of a select's key are in the set."""
        return values in self._plain or any(
            all(_matches(value, part) for value, part in zip(values, member, strict=True)) for member in self._masked
        )


def _matches(value: int, part: int | tuple[int, int] | None) -> bool:
    if part is None or part == value:
        return True
    return isinstance(part, tuple) and value & part[1] == part[0] & part[1]
