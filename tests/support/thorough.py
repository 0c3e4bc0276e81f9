"""How much of large sets of cases a run of the suite tries: a part of them, or with TENSOREXPRESS_THOROUGH=1 all.

`make test` is for whoever changes something and waits; `make thorough` takes several times as long.
"""

from __future__ import annotations

import os
import zlib
from collections import defaultdict

import pytest

THOROUGH = bool(os.environ.get("TENSOREXPRESS_THOROUGH"))


def examples(number: int, part: int = 5) -> int:
    """Return how many examples a property test looks at, of so many in a thorough run: one in five, if nobody says."""
    return number if THOROUGH else max(5, number // part)


def one_in(number: int) -> pytest.MarkDecorator:
    """Mark a test of whose cases one in so many is tried: always the same ones, with every parameter's values first."""
    return pytest.mark.one_in(number)


def _chosen(cases: list[pytest.Item], number: int) -> list[pytest.Item]:
    """Return so many cases; the next is always one with most values of parameters that none before it had."""
    # A regular choice, such as every second one, would try some values only together with some others.
    left = sorted(cases, key=lambda item: zlib.crc32(item.name.encode()))
    chosen, seen = [], set[tuple[str, int]]()
    while len(chosen) < number:
        following = max(left, key=lambda item: len(_values(item) - seen))
        left.remove(following)
        chosen.append(following)
        seen |= _values(following)
    return chosen


def _values(item: pytest.Item) -> set[tuple[str, int]]:
    """Return which value each parameter of a case has, by number."""
    return set(item.callspec.indices.items())  # type: ignore[attr-defined]


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what only a thorough run tries."""
    if THOROUGH:
        return
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("one_in"):
            cases[item.nodeid.split("[")[0]].append(item)
    left_out = set[pytest.Item]()
    for own in cases.values():
        marker = own[0].get_closest_marker("one_in")
        assert marker is not None
        left_out.update(set(own) - set(_chosen(own, -(-len(own) // marker.args[0]))))
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
