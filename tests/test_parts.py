"""The parts of the suite: `make test` and `make rest` try every test between them, and none twice."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from support import thorough
from support.thorough import leave_out, leave_rest, one_in, rest, tries_again

COLOURS, SIZES = ["red", "green", "blue"], [10, 20, 30]


class Case:
    """What a choice looks at, of a test with its parameters."""

    def __init__(self, mark: pytest.MarkDecorator | None, test: str, **parameters: Any):
        self.mark = mark.mark if mark is not None else None
        self.name = f"{test}[{'-'.join(map(str, parameters.values()))}]" if parameters else test
        self.nodeid = f"tests/test_x.py::{self.name}"
        if parameters:
            self.callspec = SimpleNamespace(params=parameters)

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.mark if self.mark is not None and self.mark.name == name else None


def cases_of(mark: pytest.MarkDecorator | None) -> list[Case]:
    return [Case(mark, "test_many", colour=colour, size=size) for colour, size in product(COLOURS, SIZES)]


def configured(*options: str, failed: dict[str, bool] | None = None) -> Any:
    return SimpleNamespace(
        getoption=lambda name, default=None: name in options,
        hook=SimpleNamespace(pytest_deselected=lambda items: None),
        cache=SimpleNamespace(get=lambda key, default: failed or default),
    )


def chosen(choose: Any, items: list[Case], *options: str) -> list[str]:
    left: Any = list(items)
    choose(configured(*options), left)
    return [item.name for item in left]


@pytest.mark.parametrize("but", [0, 1, 4, 9, 12])
def test_a_case_is_in_one_part_and_as_many_stay_as_the_mark_says(but: int) -> None:
    items = [*cases_of(rest(but)), Case(rest(), "test_long"), Case(rest(1), "test_only"), Case(None, "test_short")]
    first, second = chosen(leave_rest, items, "--no-rest"), chosen(leave_rest, items, "--rest")
    assert sorted(first + second) == sorted(chosen(leave_rest, items)) == sorted(item.name for item in items)
    assert sum(name.startswith("test_many") for name in first) == min(but, len(COLOURS) * len(SIZES))
    assert {"test_only", "test_short"} <= set(first)
    assert "test_long" in second


@pytest.mark.parametrize(("choose", "mark", "options"), [
    (leave_rest, rest(3), ["--no-rest"]),
    (leave_out, one_in(3), []),
])  # fmt: skip
def test_every_value_is_tried_before_any_comes_again(
    choose: Any, mark: pytest.MarkDecorator, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thorough, "THOROUGH", False)
    names = chosen(choose, cases_of(mark), *options)
    assert len(names) == 3
    assert all(any(str(value) in name for name in names) for value in [*COLOURS, *SIZES])


def test_what_failed_is_tried_again_whichever_part_it_is_of() -> None:
    assert tries_again(configured("--last-failed", failed={"tests/test_x.py::test_many[red-10]": True}))
    assert not tries_again(configured("--last-failed"))
    assert not tries_again(configured(failed={"tests/test_x.py::test_many[red-10]": True}))
