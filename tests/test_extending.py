"""The pages docs/extending.md and docs/simulator.md: what they show is what happens."""

from __future__ import annotations

import doctest
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorexpress.errors import PolicyError
from tensorexpress.policy import Policy
from tensorexpress.queueing import DISCIPLINES, HOST_ORDERS

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(autouse=True)
def registries_as_before() -> Iterator[None]:
    before = [(registry, dict(registry)) for registry in (DISCIPLINES, HOST_ORDERS)]
    yield
    for registry, entries in before:
        registry.clear()
        registry.update(entries)


@pytest.mark.parametrize("page", ["extending.md", "simulator.md"])
def test_every_example_of_the_page_prints_what_it_says(page: str) -> None:
    failed, attempted = doctest.testfile(str(DOCS / page), module_relative=False)
    assert attempted > 0
    assert failed == 0


def test_what_is_not_registered_is_refused() -> None:
    with pytest.raises(PolicyError, match="unknown switch discipline 'three-to-one'"):
        Policy("mine", discipline="three-to-one")
    with pytest.raises(PolicyError, match="unknown host order 'smallest'"):
        Policy("mine", host_order="smallest")
