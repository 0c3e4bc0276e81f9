"""Traces: what happened, simulated or measured, and the metrics of it.

An iteration of a job runs from the moment its first worker starts its last forward layer to the next such moment:
backward, transfers, and the next forward pass. Every forward pass so counts with all that held it up, and no schedule
can make a single iteration shorter than `deadline.lower_bound_ps`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

#: Where a trace comes from.
SOURCES = ("simulated", "measured")

#: One slice between two hosts in one iteration; `kind` is an index into graph.KINDS, `tensor` a layer.
TRANSFER = np.dtype(
    [(name, np.int64) for name in ("iteration", "kind", "tensor", "src", "dst", "bytes", "queue")]
    + [(name, np.int64) for name in ("ready_ps", "sent_ps", "delivered_ps")]
)

#: One directed link over the whole run.
LINK = np.dtype(
    [(name, np.int64) for name in ("bytes", "busy_ps", "drops", "losses", "marks", "peak_bytes", "background_drops")]
)


@dataclass(frozen=True)
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
    #: When a layer's updated parameters had arrived.
    updated_ps: Ints
    transfers: NDArray[np.void]

    @cached_property
    def forward_end_ps(self) -> Ints:
        """When each forward layer ended."""
        return self.forward_start_ps + self.forward_ps

    @cached_property
    def gradient_ps(self) -> Ints:
        """When each gradient was ready; the backward pass runs from the last layer to the first without a stop."""
        backward = self.backward_ps[:, :, ::-1]
        ready: Ints = self.forward_end_ps[:-1, :, -1:] + np.cumsum(backward, axis=2)[:, :, ::-1]
        return ready

    @cached_property
    def waits_ps(self) -> Ints:
        """How long every layer of every forward pass but the first stood still, by (iteration, worker, layer)."""
        could_start = np.concatenate([self.gradient_ps[:, :, :1], self.forward_end_ps[1:, :, :-1]], axis=2)
        waits: Ints = self.forward_start_ps[1:] - could_start
        return waits


@dataclass(frozen=True)
class Trace:
    """What happened in one run of a plan."""

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
    #: Forward and backward of the slowest worker.
    compute_ps: float
    #: Time a worker's forward pass stood still for parameters: mean over workers, and of the worst.
    blocking_ps: float
    blocking_worst_ps: float
    #: The same mean over workers in an iteration half of which took longer: what disturbs a few does not count.
    blocking_median_ps: float
    latency: Latency


def iterations_ps(job: JobTrace) -> Ints:
    """Return the length of every iteration, warm-up included."""
    return np.asarray(np.diff(job.forward_start_ps[:, :, -1].min(axis=1)))


def measure_job(job: JobTrace, warmup: int) -> JobMetrics:
    """Return the metrics of a job's measured iterations."""
    waits = job.waits_ps[warmup:].sum(axis=2)
    compute = job.forward_ps[1:].sum(axis=2) + job.backward_ps.sum(axis=2)
    latency = (job.updated_ps - job.gradient_ps)[warmup:]
    return JobMetrics(
        iteration_ps=float(iterations_ps(job)[warmup:].mean()),
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
    )


def busiest_link(trace: Trace) -> tuple[str, float]:
    """Return the name of the link that was busy longest and the share of the run during which it was."""
    index = int(trace.links["busy_ps"].argmax())
    return trace.link_names[index], float(trace.links["busy_ps"][index] / trace.end_ps)
