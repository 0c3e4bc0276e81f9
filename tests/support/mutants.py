"""Programs that are wrong in a place or two: parts of a sound one change places, are left out, or have another size."""

from __future__ import annotations

import copy
import json
from collections import defaultdict
from collections.abc import Iterator
from random import Random
from typing import Any

#: Parts that mean nothing to a switch.
_REMARKS = {"source_info", "program", "compiler", "pragmas"}

_NUMBERS = (-1, 0, 1, 8, 4096, 2**20, 2**40)
_DIGITS = ("0x0", "0x1", "-0x1", "0x" + "f" * 40)


def places(value: Any, kind: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield every container of a JSON value with every key or index in it, each with the name of what stands there."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        name = str(key) if isinstance(value, dict) else f"{kind}[]"
        if name not in _REMARKS:
            yield name, value, key
            yield from places(value[key], name)


def mutate(random: Random, value: Any) -> None:
    """Change one or two places of a program; what takes the place of something is of the same name, as a rule."""
    named: dict[str, list[tuple[Any, Any]]] = defaultdict(list)
    for name, container, key in places(value):
        named[name].append((container, key))
    names = sorted(named)
    for _ in range(random.choice((1, 1, 1, 2))):
        name = random.choice(names)
        container, key = random.choice(named[name])
        other, place = random.choice(named[random.choice(names) if random.random() < 0.2 else name])
        try:
            there, new = container[key], copy.deepcopy(other[place])
        except (LookupError, TypeError):  # the change before took it away
            continue
        match there:
            case bool() if random.random() < 0.5:
                new = not there
            case int() if random.random() < 0.5:
                new = random.choice((*_NUMBERS, there + 1, there - 1, 2 * there))
            case str() if there.startswith("0x") and random.random() < 0.5:
                new = random.choice((*_DIGITS, hex(int(there, 16) + 1)))
            case [_, *_] if random.random() < 0.5:
                new = random.choice((there[::-1], there[1:], there[:-1], [], [*there, there[0]]))
        container[key] = new


def mutant(random: Random, document: bytes) -> bytes:
    """Return a program that a mutation was made from."""
    value = json.loads(document)
    mutate(random, value)
    return json.dumps(value).encode()
