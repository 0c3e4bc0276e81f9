"""How much of the suite a run tries.

`make test` is for whoever changes something and waits: it leaves what is marked as the rest (`pytest --no-rest`) to
`make rest` (`pytest --rest`), which continuous integration runs as well. Both try a part of large sets of cases, and
`make thorough`, with TENSOREXPRESS_THOROUGH=1, all of them.

A test that takes more than `WAITED_FOR_S` of a processor, all its cases together, belongs to the rest, but for as many
cases as show that its subject works: none, where another test of the file does, and all, where each shows something
else. `pytest --measure` names those that nobody has marked.
"""

from __future__ import annotations

import os
import zlib
from collections import defaultdict
from collections.abc import Iterator

import pytest

THOROUGH = bool(os.environ.get("TENSOREXPRESS_THOROUGH"))

#: What one test may take of a processor for whoever waits, all its cases together.
WAITED_FOR_S = 1


def examples(number: int, part: int = 5) -> int:
    """Return how many examples a property test looks at, of so many in a thorough run: one in five, if nobody says."""
    return number if THOROUGH else max(5, number // part)


def one_in(number: int) -> pytest.MarkDecorator:
    """Mark a test of whose cases one in so many is tried: always the same ones, with every parameter's values first."""
    return pytest.mark.one_in(number)


def rest(but: int = 0) -> pytest.MarkDecorator:
    """Mark a test, or a case, for `make rest`, but for so many cases: always the same ones, chosen as by `one_in`."""
    return pytest.mark.rest(but)


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
    """Return which value each parameter of a case has; all cases with a value have the same object."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return {(name, id(value)) for name, value in parameters.items()}


def _marked(items: list[pytest.Item], name: str) -> Iterator[tuple[int, list[pytest.Item]]]:
    """Yield the cases of every test that has a mark with a number, and that number."""
    cases: dict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if marker := item.get_closest_marker(name):
            cases[item.nodeid.split("[")[0], marker.args[0]].append(item)
    for (_, number), own in cases.items():
        yield number, own


def _leave(config: pytest.Config, items: list[pytest.Item], left_out: set[pytest.Item]) -> None:
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def tries_again(config: pytest.Config) -> bool:
    """Whether only what failed is there, of whichever part: a choice among these cases would leave some of them out."""
    if not config.getoption("--last-failed", False):
        return False
    return bool(config.cache and config.cache.get("cache/lastfailed", {}))


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what only a thorough run tries."""
    if THOROUGH:
        return
    left_out = set[pytest.Item]()
    for number, own in _marked(items, "one_in"):
        left_out.update(set(own) - set(_chosen(own, -(-len(own) // number))))
    _leave(config, items, left_out)


def leave_rest(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the rest, or all but the rest, if that is asked for."""
    the_rest = set[pytest.Item]()
    for but, own in _marked(items, "rest"):
        the_rest.update(set(own) - set(_chosen(own, min(but, len(own)))))
    if config.getoption("--rest"):
        _leave(config, items, set(items) - the_rest)
    elif config.getoption("--no-rest"):
        _leave(config, items, the_rest)
