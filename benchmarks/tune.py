"""Tuned policies beside those that have a name, on eight scenarios: docs/tune.md shows what it printed.

`python benchmarks/tune.py [NAME ...]` tunes all scenarios, or those named, and prints a row for each; it fails if a
tuned policy is slower than a named one. All but the last are decided at packet level.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tensorexpress.results.tuned import Tuned
from tensorexpress.sim.tune import USUAL_BUDGET, question_of, tune
from tensorexpress.units import format_ms

EXAMPLES = Path(__file__).parents[1] / "examples"

WITHOUT_SUMS: Mapping[str, str | None] = {"sum": "none"}


@dataclass(frozen=True)
class TuningCase:
    """A scenario to tune."""

    name: str
    file: str | None = None
    overrides: tuple[str, ...] = ()
    fixed: Mapping[str, str | None] = field(default_factory=dict)
    grain: int = 1
    budget: int = USUAL_BUDGET


CASES = (
    TuningCase("colocated", "colocated.toml", ("cluster.bandwidth=5 Gbps", "compute.jitter=0.05"), WITHOUT_SUMS),
    TuningCase("racks, 4:1", "leaf-spine.toml", ("cluster.bandwidth=10 Gbps",), WITHOUT_SUMS),
    TuningCase("ring", "bert-ring.toml", ("compute.jitter=0.05",), WITHOUT_SUMS),
    TuningCase("sums, little memory", "switchml.toml", ("cluster.switch_memory=100 KB",), budget=60),
    TuningCase("one server", "loop.toml", ("iterations=3",), WITHOUT_SUMS),
    TuningCase("two jobs", "two-jobs.toml", (), WITHOUT_SUMS),
    TuningCase(
        "gpt2-xl",
        None,
        ("job.model=gpt2-xl", "job.workers=2", "job.servers=2", "cluster.bandwidth=100 Gbps", "iterations=1"),
        budget=30,
    ),
    TuningCase(
        "llama2-70b",
        None,
        ("job.model=llama2-70b", "job.device=h100", "job.workers=4", "cluster.bandwidth=400 Gbps"),
        WITHOUT_SUMS,
        grain=1024,
    ),
)


def row(case: TuningCase, tuned: Tuned, seconds: float) -> str:
    """Return what came out as a row of a Markdown table."""
    best, named, fifo = tuned.best, tuned.best_named, tuned.baseline
    assert best is not None, "the search came to an end"
    assert named is not None, "policies have names"
    assert fifo is not None, "fifo is always simulated"
    if best.iteration_ps > named.iteration_ps:
        sys.exit(f"{case.name}: {best.candidate.label} is slower than {named.candidate.label}")
    cells = (
        case.name,
        format_ms(fifo.iteration_ps),
        f"`{named.candidate.label}` {format_ms(named.iteration_ps)}",
        f"`{best.candidate.label}` {format_ms(best.iteration_ps)}",
        f"{named.iteration_ps / best.iteration_ps:.3f}x",
        f"{tuned.above_bound(best):.1%}",
        f"{len(tuned.trials)} ({len(tuned.decisive)})",
        tuned.stopped,
        f"{seconds:.0f} s",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Tune and print."""
    wanted = sys.argv[1:] or [case.name for case in CASES]
    print("| scenario | `fifo` | best with a name | tuned | gain | above the bound | simulations | ended by | took |")
    print("|---|---|---|---|---|---|---|---|---|")
    for case in CASES:
        if case.name in wanted:
            path = EXAMPLES / case.file if case.file is not None else None
            begin = time.perf_counter()
            tuned = tune(question_of(path, case.overrides, fixed=case.fixed), finest=case.grain, budget=case.budget)
            print(row(case, tuned, time.perf_counter() - begin), flush=True)


if __name__ == "__main__":
    main()
