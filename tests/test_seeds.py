"""Seeds: what several draws of chance say together."""

from __future__ import annotations

import doctest
import json

import pytest
from click.testing import CliRunner
from support.thorough import rest

from tensorexpress.cli import main
from tensorexpress.errors import InputError
from tensorexpress.results import seeds
from tensorexpress.results.seeds import Estimate, OverSeeds

SMALL = ["--set", "job.model=alexnet", "--set", "job.workers=2", "--set", "job.servers=1", "--set", "iterations=1"]


def test_an_estimate_of_equal_values_is_sure() -> None:
    assert Estimate.of([2.0] * 40) == Estimate(2.0, 0.0)


def test_one_seed_says_nothing_of_chance() -> None:
    with pytest.raises(InputError, match="1 seeds; accepted: two or more"):
        OverSeeds((None,))


@rest()
def test_seeds_give_means_of_what_each_gives_alone() -> None:
    arguments = ["predict", *SMALL, "--set", "loss=0.001", "--policy", "fifo,p3", "--json", "-"]
    documents = [
        json.loads(CliRunner().invoke(main, [*arguments, *more], catch_exceptions=False).stdout)
        for more in (["--seeds", "3"], ["--set", "seed=2"], ["--set", "seed=3"])
    ]
    together = documents[0]["over_seeds"]
    assert together["seeds"] == [1, 2, 3]
    for policy in ("fifo", "p3"):
        alone = [document["policies"][policy]["iteration_ms"] for document in documents]
        (job,) = together["policies"][policy].values()
        told = job["iteration_ms"]
        assert told["mean"] == pytest.approx(sum(alone) / 3)
        assert 0 < told["within_95"] < told["mean"]


def test_doctests() -> None:
    assert doctest.testmod(seeds).failed == 0
