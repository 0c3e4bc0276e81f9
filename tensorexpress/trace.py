"""Traces: what happened, simulated or measured, and the metrics of it.

An iteration of a job runs from the moment its first worker starts its last forward layer to the next such moment:
backward, transfers, and the next forward pass. Every forward pass so counts with all that held it up, and no schedule
can make a single iteration shorter than `deadline.lower_bound_ps`, nor their mean than what `bound.py` says.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

#: Where a trace comes from.
SOURCES = ("simulated", "measured")

#: One slice between two hosts in one iteration; `kind` is an index into graph.KINDS, `tensor` a layer; `timed_out_ps`,
#: how long its flow stood still before time-outs that found its packets lost. Runs do not observe that, and have 0.
TRANSFER = np.dtype(
    [(name, np.int64) for name in ("iteration", "kind", "tensor", "src", "dst", "bytes", "queue")]
    + [(name, np.int64) for name in ("ready_ps", "sent_ps", "delivered_ps", "timed_out_ps")]
)

#: One directed link over the whole run.
LINK = np.dtype(
    [(name, np.int64) for name in ("bytes", "busy_ps", "drops", "losses", "marks", "peak_bytes", "background_drops")]
)


#: Iterations that differ by less than this part have settled.
_SETTLED = 0.01


def _same(one: JobTrace | Trace, other: JobTrace | Trace) -> bool:
    """Return whether all fields are equal; arrays are if they hold the same numbers in the same shape."""
    pairs = [(getattr(one, field.name), getattr(other, field.name)) for field in fields(one)]
    return all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in pairs)


@dataclass(frozen=True, eq=False)
class JobTrace:
    """What one job did. Times are in ps by (iteration, worker, layer); layers are in forward order."""

    name: str
    layers: tuple[str, ...]
    #: Names of the hosts that compute.
    workers: tuple[str, ...]
    forward_ps: Ints
    backward_ps: Ints
    #: One forward pass more than there are backward passes: the last shows what the last transfers held up.
    forward_start_ps: Ints
    backward_start_ps: Ints
    #: When a layer's updated parameters had arrived.
    updated_ps: Ints
    transfers: NDArray[np.void]

    def __eq__(self, other: object) -> bool:
        return _same(self, other) if isinstance(other, JobTrace) else NotImplemented

    @cached_property
    def forward_end_ps(self) -> Ints:
        """When each forward layer ended."""
        return self.forward_start_ps + self.forward_ps

    @cached_property
    def gradient_ps(self) -> Ints:
        """When each gradient was ready; the backward pass runs from the last layer to the first."""
        return self.backward_start_ps + self.backward_ps

    @cached_property
    def waits_ps(self) -> Ints:
        """How long every layer of every forward pass but the first stood still, by (iteration, worker, layer)."""
        could_start = np.concatenate([self.gradient_ps[:, :, :1], self.forward_end_ps[1:, :, :-1]], axis=2)
        waits: Ints = self.forward_start_ps[1:] - could_start
        return waits

    @cached_property
    def backward_waits_ps(self) -> Ints:
        """How long every layer of every backward pass stood still, by (iteration, worker, layer)."""
        could_start = np.concatenate([self.gradient_ps[:, :, 1:], self.forward_end_ps[:-1, :, -1:]], axis=2)
        waits: Ints = self.backward_start_ps - could_start
        return waits

    @cached_property
    def blocking_ps(self) -> Ints:
        """How long every worker stood still, in a backward pass and the next forward pass, by (iteration, worker)."""
        return np.asarray(self.backward_waits_ps.sum(axis=2) + self.waits_ps.sum(axis=2))


@dataclass(frozen=True, eq=False)
class Trace:
    """What happened in one run of a plan; two are equal if the same happened, to the picosecond."""

    #: One of SOURCES.
    source: str
    policy: str
    #: Iterations at the start that are not measured.
    warmup: int
    #: Names of the cluster's hosts; transfers give them by index.
    hosts: tuple[str, ...]
    jobs: tuple[JobTrace, ...]
    link_names: tuple[str, ...]
    links: NDArray[np.void]
    end_ps: int
    transmissions: int
    retransmissions: int
    timeouts: int
    #: Where sums end at servers: sums that these completed, those of them that came whole from a switch, and packets
    #: that reached a server.
    server_sums: int = 0
    whole_sums: int = 0
    server_packets: int = 0

    def __eq__(self, other: object) -> bool:
        return _same(self, other) if isinstance(other, Trace) else NotImplemented


@dataclass(frozen=True)
class Latency:
    """Tensor latency: gradient ready at a worker until the updated parameters are back there, in ps."""

    mean_ps: float
    p50_ps: float
    p99_ps: float
    #: Of the first layer, which the next forward pass needs first.
    first_ps: float


@dataclass(frozen=True)
class JobMetrics:
    """The measured iterations of one job, in ps."""

    iteration_ps: float
    #: Standard deviation of single iterations; 0 where one was measured.
    spread_ps: float
    #: Forward and backward of the slowest worker.
    compute_ps: float
    #: Time a worker stood still for parameters, in both passes: mean over workers, and of the worst.
    blocking_ps: float
    blocking_worst_ps: float
    #: The same mean over workers in an iteration half of which took longer: what disturbs a few does not count.
    blocking_median_ps: float
    latency: Latency
    #: The most that time-outs can have cost: a worker's wait for a layer, as far as its slices waited for time-outs.
    timed_out_ps: float = 0.0
    #: Length of an iteration half of which took longer: a few long ones do not count.
    iteration_median_ps: float = 0.0


def iterations_ps(job: JobTrace) -> Ints:
    """Return the length of every iteration, warm-up included."""
    return np.asarray(np.diff(job.forward_start_ps[:, :, -1].min(axis=1)))


def drift_ps(job: JobTrace, warmup: int) -> tuple[float, float] | None:
    """Return what iterations took early and late if they have not settled, None if they have.

    They have where the first and the last measured one are within 1 %. Of four or more, halves are compared, and what
    chance explains (two standard errors) does not count. One alone is held against the one before it.
    """
    series = iterations_ps(job)
    series = series[warmup:] if len(series) - warmup > 1 else series[max(0, warmup - 1) :]
    if len(series) < 2:
        return None
    half = len(series) // 2 if len(series) >= 4 else 1
    early, late = series[:half], series[-half:]
    noise = 2 * float(np.hypot(early.std(), late.std())) / half**0.5
    first, last = float(early.mean()), float(late.mean())
    return (first, last) if abs(last - first) > max(_SETTLED * first, noise) else None


def measure_job(job: JobTrace, warmup: int) -> JobMetrics:
    """Return the metrics of a job's measured iterations."""
    measured = iterations_ps(job)[warmup:]
    waits = job.blocking_ps[warmup:]
    compute = job.forward_ps[1:].sum(axis=2) + job.backward_ps.sum(axis=2)
    latency = (job.updated_ps - job.gradient_ps)[warmup:]
    return JobMetrics(
        iteration_ps=float(measured.mean()),
        spread_ps=float(measured.std(ddof=1)) if len(measured) > 1 else 0.0,
        compute_ps=float(compute[warmup:].mean(axis=0).max()),
        blocking_ps=float(waits.mean()),
        blocking_worst_ps=float(waits.mean(axis=0).max()),
        blocking_median_ps=float(np.median(waits.mean(axis=1))),
        latency=Latency(
            mean_ps=float(latency.mean()),
            p50_ps=float(np.percentile(latency, 50)),
            p99_ps=float(np.percentile(latency, 99)),
            first_ps=float(latency[:, :, 0].mean()),
        ),
        timed_out_ps=float(_timed_out_ps(job)[warmup:].mean()),
        iteration_median_ps=float(np.median(measured)),
    )


def _timed_out_ps(job: JobTrace) -> Ints:
    """Return how long workers stood still for tensors of which packets timed out, by (iteration, worker)."""
    rows = job.transfers[job.transfers["timed_out_ps"] > 0]
    longest = np.zeros((len(job.waits_ps), len(job.layers)), dtype=np.int64)
    np.maximum.at(longest, (rows["iteration"], rows["tensor"]), rows["timed_out_ps"])
    return np.asarray(np.minimum(job.waits_ps, longest[:, None, :]).sum(axis=2))


def busiest_link(trace: Trace) -> tuple[str, float]:
    """Return the name of the link that was busy longest and the share of the run during which it was."""
    index = int(trace.links["busy_ps"].argmax())
    return trace.link_names[index], float(trace.links["busy_ps"][index] / trace.end_ps)
