"""JSON that is checked as it is read: every complaint names the place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tensorexpress.errors import ProgramError
from tensorexpress.switch.program.budgets import LARGEST_DOCUMENT, LONGEST_NAME, LONGEST_TEXT, WIDEST_BITS, beyond

#: Whole numbers of the document (ids, sizes, ...) are below this.
_NUMBERS_END = 2**63


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


def parse_document(document: bytes) -> JsonNode:
    """Return the root of a BMv2 JSON document; ProgramError if it is something else."""
    if len(document) > LARGEST_DOCUMENT:
        raise beyond("the program", len(document), LARGEST_DOCUMENT, "bytes of BMv2 JSON")
    try:
        value = json.loads(document)
    except (ValueError, RecursionError) as error:
        what = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ProgramError(f"the program is not JSON ({what}); give the file that p4c-bm2-ss wrote with -o") from None
    if not isinstance(value, dict) or "header_types" not in value:
        raise ProgramError("the program is JSON but not BMv2's: it has no 'header_types'; compile with p4c-bm2-ss")
    return JsonNode(value, "program")


def wrong(problem: str) -> ProgramError:
    """Return the error for a part of a program that breaks a rule."""
    return ProgramError(f"BMv2 JSON: {problem}; compile the program again with p4c-bm2-ss")


class JsonNode:
    """A JSON value and where it stands, so that every complaint names the place."""

    def __init__(self, value: Any, path: str):
        self.value = value
        self.path = path

    def __getitem__(self, key: str | int) -> JsonNode:
        if not isinstance(self.value, dict if isinstance(key, str) else list):
            raise self.error(f"is not {'an object' if isinstance(key, str) else 'a list'}")
        try:
            value = self.value[key]  # type: ignore[index]
        except (KeyError, IndexError):
            raise self.error(f"has no {key!r}") from None
        return JsonNode(value, f"{self.path}.{key}" if isinstance(key, str) else f"{self.path}[{key}]")

    def get(self, key: str, default: Any = None) -> JsonNode:
        """Return what stands under a key, the default where nothing does."""
        if not isinstance(self.value, dict):
            raise self.error("is not an object")
        return JsonNode(self.value.get(key, default), f"{self.path}.{key}")

    def __iter__(self) -> Iterator[JsonNode]:
        if not isinstance(self.value, list):
            raise self.error("is not a list")
        return (JsonNode(item, f"{self.path}[{index}]") for index, item in enumerate(self.value))

    def distinct(self, key: str | int = "name") -> Iterator[tuple[Any, JsonNode]]:
        """Yield the items of a list, each with the name or number that it has under a key and that no other one has."""
        seen = set()
        for item in self:
            label = item[key].number() if key == "id" else item[key].text()
            if label in seen:
                raise item.error(f"has the {'id' if key == 'id' else 'name'} {label!r}, which another one has")
            seen.add(label)
            yield label, item

    def members(self) -> Iterator[tuple[str, JsonNode]]:
        """Yield the names and values of an object."""
        if not isinstance(self.value, dict):
            raise self.error("is not an object")
        return ((name, self[name]) for name in self.value)

    def flag(self) -> bool:
        """Return a truth value, which some compilers write as a number."""
        if self.value not in (True, False):
            raise self.error("is neither true nor false")
        return bool(self.value)

    def text(self, longest: int = LONGEST_NAME) -> str:
        """Return a string."""
        if not isinstance(self.value, str):
            raise self.error("is not a string")
        if len(self.value) > longest:
            raise beyond(f"BMv2 JSON: {self.path}", len(self.value), longest, "characters")
        return self.value

    def optional_text(self) -> str | None:
        """Return a string, None where there is none."""
        return None if self.value is None else self.text()

    def number(self) -> int:
        """Return a whole number of at most 64 bits."""
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
        """Return a number of bits."""
        return self.at_most(WIDEST_BITS, "bits")

    def hexadecimal(self) -> int:
        """Return the number that a string of hexadecimal digits is."""
        try:
            return int(self.text(LONGEST_TEXT), 16)
        except ValueError:
            raise self.error("is not a hexadecimal number") from None

    def of_width(self, bits: int) -> int:
        """Return a hexadecimal number of so many bits; one below zero is taken as its two's complement."""
        value = self.hexadecimal()
        if not -(1 << bits >> 1) <= value < 1 << bits:
            raise self.error(f"does not fit {bits} bits")
        return value & (1 << bits) - 1

    def error(self, problem: str) -> ProgramError:
        """Return the error that this place is to blame for."""
        return wrong(f"{self.path} {problem}")
