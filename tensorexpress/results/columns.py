"""Columns: what is reported of one job under one policy, in every table, CSV and JSON.

To add a column, add it here: to `JOB_COLUMNS` if it is the job's own, to `NETWORK_COLUMNS` if all jobs share it. With a
heading it is also in the table that `predict` and `run` print.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tensorexpress.trace import JobMetrics
from tensorexpress.units import PS_PER_MS

#: One row of a CSV file or of a data frame.
Cells: TypeAlias = dict[str, str | int | float]

#: Stands for a speed-up that a coarse simulation cannot tell from none.
UNCLEAR = "unclear"


@dataclass(frozen=True)
class JobResult:
    """What came out for one job under one policy."""

    policy: str
    job: str
    metrics: JobMetrics
    #: Iteration time under the policy that others are compared with.
    baseline_ps: float
    #: The iteration time that no schedule can beat.
    optimal_ps: float
    busiest_link: str
    #: Part of the run during which that link was busy.
    utilisation: float
    #: Packets of all jobs that found a buffer full, and that were sent again.
    drops: int
    retransmissions: int
    #: Whether it was simulated or measured.
    source: str
    #: Whether the policy differs from the baseline by more than a coarse simulation may be off.
    is_clear: bool = True

    @property
    def speedup(self) -> float:
        """How many times shorter an iteration is than under the baseline."""
        return self.baseline_ps / self.metrics.iteration_ps

    @property
    def of_optimal(self) -> float:
        """The lower bound over the iteration time: 1 means that nothing can be faster."""
        return self.optimal_ps / self.metrics.iteration_ps


@dataclass(frozen=True)
class Column:
    """One column: what it is called in files, its value, and how a table shows it."""

    name: str
    value: Callable[[JobResult], str | int | float]
    #: The two lines above it in a table; None leaves it to files.
    heading: tuple[str, str] | None = None
    #: How a table writes the value.
    form: str = "{:.2f}"

    def shown(self, result: JobResult) -> str:
        """Return the cell of a table."""
        if self.name == "speedup" and not result.is_clear:
            return UNCLEAR
        return self.form.format(self.value(result))


def _time(name: str, read_ps: Callable[[JobResult], float], heading: tuple[str, str] | None = None) -> Column:
    """Return a column of a time: ps inside, milliseconds outside."""
    return Column(f"{name}_ms", lambda result: read_ps(result) / PS_PER_MS, heading)


JOB_COLUMNS = (
    _time("iteration", lambda result: result.metrics.iteration_ps, ("iteration", "ms")),
    _time("iteration_median", lambda result: result.metrics.iteration_median_ps),
    _time("iteration_spread", lambda result: result.metrics.spread_ps, ("", "+-")),
    _time("compute", lambda result: result.metrics.compute_ps),
    _time("optimal", lambda result: result.optimal_ps),
    _time("blocking", lambda result: result.metrics.blocking_ps, ("blocking", "ms")),
    _time("blocking_median", lambda result: result.metrics.blocking_median_ps),
    _time("blocking_worst", lambda result: result.metrics.blocking_worst_ps, ("worst", "ms")),
    _time("timed_out", lambda result: result.metrics.timed_out_ps),
    _time("latency_mean", lambda result: result.metrics.latency.mean_ps, ("latency", "mean ms")),
    _time("latency_p50", lambda result: result.metrics.latency.p50_ps, ("", "p50")),
    _time("latency_p99", lambda result: result.metrics.latency.p99_ps, ("", "p99")),
    _time("latency_first", lambda result: result.metrics.latency.first_ps, ("1st layer", "ms")),
    Column("speedup", lambda result: result.speedup, ("speed-", "up"), "{:.2f}x"),
    Column("of_optimal", lambda result: result.of_optimal, ("of", "optimum"), "{:.1%}"),
)

#: What all jobs of a run share.
NETWORK_COLUMNS = (
    Column("busiest_link", lambda result: result.busiest_link),
    Column("utilisation", lambda result: result.utilisation, ("busiest", "link"), "{:.0%}"),
    Column("drops", lambda result: result.drops, ("", "drops"), "{}"),
    Column("retransmissions", lambda result: result.retransmissions, ("re-", "sent"), "{}"),
    Column("source", lambda result: result.source),
)

COLUMNS: Mapping[str, Column] = {column.name: column for column in (*JOB_COLUMNS, *NETWORK_COLUMNS)}

#: The columns of a table.
TABLE_COLUMNS = tuple(column for column in COLUMNS.values() if column.heading is not None)


def cells(result: JobResult) -> Cells:
    """Return all that is reported of a job under a policy, as one flat row; times are in milliseconds."""
    row: Cells = {
        "policy": result.policy,
        "job": result.job,
        **{name: column.value(result) for name, column in COLUMNS.items()},
    }
    return row if result.is_clear else row | {"speedup": ""}
