"""Ways to commit side by side: time to a target loss, delays, drops, bytes and divergence, with their confidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

import tensorexpress
from tensorexpress import scenario as scenarios
from tensorexpress.commits.trace import CommitTrace
from tensorexpress.results.columns import Cells
from tensorexpress.results.heading import heading
from tensorexpress.results.provenance import Provenance, digest
from tensorexpress.results.seeds import Estimate
from tensorexpress.scenario import Scenario
from tensorexpress.text import grid
from tensorexpress.units import PS_PER_SECOND, counted, format_size, format_time

#: Points of a curve that JSON holds at the most.
_MOST_POINTS = 200

#: Changes and background traffic that the first line names one by one.
_MOST_CHANGES = 6

#: What each trace is asked for, by the name that JSON and CSV give it.
METRICS: dict[str, Callable[[CommitTrace], float]] = {
    "commits": lambda trace: trace.commits,
    "commits_per_second": lambda trace: trace.commits_per_second,
    "mean_delay": lambda trace: trace.mean_delay,
    "worst_delay": lambda trace: trace.worst_delay,
    "dropped": lambda trace: trace.dropped,
    "lost": lambda trace: trace.lost,
    "summed": lambda trace: trace.summed,
    "server_in_bytes": lambda trace: trace.server_in_bytes,
    "server_out_bytes": lambda trace: trace.server_out_bytes,
    "divergence": lambda trace: trace.divergence,
    "divergence_bound": lambda trace: trace.divergence_bound,
    "final_loss": lambda trace: float(trace.loss[-1]) if trace.commits else trace.start_loss,
}


@dataclass(frozen=True, eq=False)
class Convergence:
    """What came out in every mode, with one trace for every seed."""

    scenario: Scenario
    traces: Mapping[str, tuple[CommitTrace, ...]]

    @property
    def seeds(self) -> list[int]:
        """The seeds, in order."""
        count = len(next(iter(self.traces.values())))
        return [self.scenario.seed + number for number in range(count)]

    @property
    def baseline(self) -> str:
        """The mode that speed-ups refer to: fifo, which is what people use, otherwise the first."""
        return "fifo" if "fifo" in self.traces else next(iter(self.traces))

    def seconds(self, mode: str) -> list[float | None]:
        """Return when the target was reached with every seed; None: it was not."""
        reached = (trace.reached_ps for trace in self.traces[mode])
        return [None if time_ps is None else time_ps / PS_PER_SECOND for time_ps in reached]

    def reached(self, mode: str) -> list[float]:
        """Return the same where it was reached."""
        return [each for each in self.seconds(mode) if each is not None]

    def speedups(self, mode: str, baseline: str | None = None) -> list[float]:
        """Return how many times sooner than in the baseline, where both got there with the same seed."""
        pairs = zip(self.seconds(baseline or self.baseline), self.seconds(mode), strict=True)
        return [other / own for other, own in pairs if own and other]

    def mean(self, mode: str, metric: str) -> float:
        """Return the mean of a metric over seeds."""
        return fmean(METRICS[metric](trace) for trace in self.traces[mode])

    @cached_property
    def provenance(self) -> Provenance:
        """What made this."""
        scenario = self.scenario
        return Provenance(tensorexpress.__version__, scenario.name, digest(scenario), scenario.seed, tuple(self.traces))

    def rows(self) -> list[Cells]:
        """Return one flat row for every mode and seed, as in CSV and for data frames."""
        return [
            {"mode": mode, "seconds_to_loss": "" if seconds is None else seconds}
            | {name: read(trace) for name, read in METRICS.items()}
            | self.provenance.cells()
            | {"seed": seed}
            for mode, traces in self.traces.items()
            for seed, trace, seconds in zip(self.seeds, traces, self.seconds(mode), strict=True)
        ]

    def to_json(self) -> dict[str, Any]:
        """Return everything as a JSON object; curves are those of the first seed."""
        return {
            "provenance": self.provenance.to_json(),
            "scenario": scenarios.to_json(self.scenario),
            "seeds": self.seeds,
            "target_loss": self.scenario.commits.target_loss,
            "modes": {mode: self._mode_to_json(mode) for mode in self.traces},
            "notes": notes(self),
        }

    def _mode_to_json(self, mode: str) -> dict[str, Any]:
        return {
            "seconds_to_loss": {"by_seed": self.seconds(mode)} | _estimated(self.reached(mode)),
            f"speedup_over_{self.baseline}": _estimated(self.speedups(mode)),
            **{name: self.mean(mode, name) for name in METRICS},
            "curve": [[time_ps / PS_PER_SECOND, loss] for time_ps, loss in curve(self.traces[mode][0])],
        }

    def as_table(self) -> str:
        """Return the table for a terminal, and what to make of it."""
        job, commits = self.scenario.jobs[0], self.scenario.commits
        roles = [
            f"{len(hosts)} {name}" for name, hosts in (("helpers", commits.helpers), ("replica", commits.replicas))
        ]
        model = f"{job.workload.name}, {format_size(sum(job.workload.tensor_bytes))} an update"
        about = f"{model}, computed in {format_time(job.workload.compute_ps)}; {job.placement}, {', '.join(roles)}"
        learned = f"{commits.problem} to a loss of {commits.target_loss:g}, steps of {commits.learning_rate:g}"
        said: tuple[str, ...] = (
            "job.model",
            "job.workers",
            "job.servers",
            "commits.helpers",
            "commits.replicas",
            "commits.problem",
        )
        changing = len(self.scenario.changes), len(self.scenario.background)
        if sum(changing) > _MOST_CHANGES:
            said += ("change", "background")
            learned += f"; {changing[0]} changes and {changing[1]} sources of other traffic"
        lines = [heading(self.scenario, said), f"{about}; tau {commits.tau}; {learned}"]
        if len(self.seeds) > 1:
            lines.append(
                f"seeds {self.seeds[0]} to {self.seeds[-1]}: means, and how far off they are (95 % confidence)"
            )
        return "\n".join([*lines, "", *grid(self._cells()), "", *(f"- {note}" for note in notes(self))])

    def _cells(self) -> list[list[str]]:
        columns = [column for column in _TABLE if not column.of_several or len(self.seeds) > 1]
        rows = [[column.text(self, mode) for column in columns] for mode in self.traces]
        return [[column.upper for column in columns], [column.lower for column in columns], *rows]


class _TableColumn(NamedTuple):
    """A column of the table: the two lines above it, its text, and whether one seed alone has none."""

    upper: str
    lower: str
    text: Callable[[Convergence, str], str]
    of_several: bool = False


def _mean(values: Sequence[float], unit: str = "") -> str:
    return f"{fmean(values):.2f}{unit}" if values else "-"


def _within(values: Sequence[float]) -> str:
    return f"{Estimate.of(values).within:.2f}" if len(values) > 1 else "-"


def _a_commit(found: Convergence, mode: str, metric: str) -> float:
    return found.mean(mode, metric) / max(1.0, found.mean(mode, "commits"))


def _of_replica(found: Convergence, mode: str, metric: str) -> str:
    return f"{found.mean(mode, metric):.3g}" if found.mean(mode, "divergence_bound") else ""


_TABLE = (
    _TableColumn("", "mode", lambda found, mode: mode),
    _TableColumn("to loss", "s", lambda found, mode: _mean(found.reached(mode))),
    _TableColumn("", "+-", lambda found, mode: _within(found.reached(mode)), of_several=True),
    _TableColumn("", "reached", lambda found, mode: f"{len(found.reached(mode))}/{len(found.seeds)}", of_several=True),
    _TableColumn("speed-", "up", lambda found, mode: _mean(found.speedups(mode), "x")),
    _TableColumn("", "+-", lambda found, mode: _within(found.speedups(mode)), of_several=True),
    _TableColumn("commits", "a s", lambda found, mode: f"{found.mean(mode, 'commits_per_second'):.2f}"),
    _TableColumn("delay", "mean", lambda found, mode: f"{found.mean(mode, 'mean_delay'):.1f}"),
    _TableColumn("", "worst", lambda found, mode: str(max(trace.worst_delay for trace in found.traces[mode]))),
    _TableColumn("", "dropped", lambda found, mode: f"{found.mean(mode, 'dropped'):.4g}"),
    _TableColumn("", "lost", lambda found, mode: f"{found.mean(mode, 'lost'):.4g}"),
    _TableColumn("", "summed", lambda found, mode: f"{_a_commit(found, mode, 'summed'):.0%}"),
    _TableColumn("MB in", "a commit", lambda found, mode: f"{_a_commit(found, mode, 'server_in_bytes') / 1e6:.1f}"),
    _TableColumn("diver-", "gence", lambda found, mode: _of_replica(found, mode, "divergence")),
    _TableColumn("", "bound", lambda found, mode: _of_replica(found, mode, "divergence_bound")),
)


def _estimated(values: Sequence[float]) -> dict[str, Any]:
    if len(values) < 2:
        return {"mean": values[0] if values else None, "within_95": None}
    return Estimate.of(values).to_json()


def curve(trace: CommitTrace) -> Iterator[tuple[int, float]]:
    """Yield some points of the loss over time, the first and the last with them."""
    yield 0, trace.start_loss
    for index in np.unique(np.linspace(0, trace.commits - 1, min(trace.commits, _MOST_POINTS)).astype(int)):
        yield int(trace.time_ps[index]), float(trace.loss[index])


def notes(found: Convergence) -> list[str]:
    """Return what to make of the numbers, one sentence or two each."""
    return [
        note
        for note in (
            _fastest(found),
            *(_never_there(found, mode) for mode in found.traces),
            _what_orders_gain(found),
            _busy_link(found),
            _failed(found),
        )
        if note
    ]


def _all_reached(found: Convergence) -> dict[str, float]:
    return {mode: fmean(found.reached(mode)) for mode in found.traces if len(found.reached(mode)) == len(found.seeds)}


def _fastest(found: Convergence) -> str:
    times = _all_reached(found)
    if not times:
        return ""
    best = min(times, key=lambda mode: times[mode])
    others = [
        f"{fmean(found.speedups(best, mode)):.2f} times as soon as {mode}"
        for mode in ("sync", "fifo")
        if mode in times and mode != best
    ]
    return f"{best} gets there first, {' and '.join(others)}." if others else f"{best} gets there first."


def _never_there(found: Convergence, mode: str) -> str:
    missed = len(found.seeds) - len(found.reached(mode))
    if not missed:
        return ""
    worst = max(trace.loss[-1] if trace.commits else trace.start_loss for trace in found.traces[mode])
    start_loss = found.traces[mode][0].start_loss
    if not worst <= 10 * start_loss:
        delay, rate = found.mean(mode, "mean_delay"), found.scenario.commits.learning_rate
        seeds = counted(missed, "seed")
        return f"{mode} diverges with {seeds}: steps of {rate:g} are too large for a delay of {delay:.1f}."
    limit = f"{found.scenario.commits.updates} updates"
    return (
        f"{mode} does not reach the target within {limit} with {counted(missed, 'seed')}; commits.updates allows more."
    )


def _what_orders_gain(found: Convergence) -> str:
    if not {"fifo", "order"} <= found.traces.keys():
        return ""
    shared, ordered = (found.mean(mode, "commits_per_second") for mode in ("fifo", "order"))
    if ordered < 1.05 * shared:
        return f"Order alone brings {ordered / shared:.2f} times the commits of fifo, and as long a delay on average."
    return (
        f"Order alone brings {ordered / shared:.2f} times the commits of fifo: transfers that share a link all end "
        "late, and their workers wait together."
    )


def _busy_link(found: Convergence) -> str:
    """Say where helpers have nothing to gain, because the server's link is not what decides."""
    if not {"order", "aggregate"} <= found.traces.keys():
        return ""
    alone, summed = (found.mean(mode, "commits_per_second") for mode in ("order", "aggregate"))
    if summed > 1.05 * alone:
        return (
            f"Helpers bring {summed / alone:.2f} times the commits of order alone through the same link of the server."
        )
    return "Helpers bring no more commits: too few updates wait together for the server's link to be summed meanwhile."


def _failed(found: Convergence) -> str:
    fails_ps = found.scenario.commits.server_fails_ps
    if not fails_ps or "mlfabric" not in found.traces:
        return ""
    lost = found.mean("mlfabric", "lost")
    return (
        f"When the server fails at {format_time(fails_ps)}, the replica lacks {lost:.3g} committed updates; it goes "
        "on, and without one all begins again."
    )
