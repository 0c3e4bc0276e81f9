"""Bytes that a job puts on links at least, however its tensors are cut into slices and shared among servers.

A byte of a tensor takes one of a few ways: by one of the servers, or in one of the parts that rings and trees cut every
slice into. Each way leads over other links. How many bytes go to which server is for a policy to choose; parts of a
slice are equal. The weighted mean of the loads of several links is at least its minimum over all such shares, and at
most the load of the busiest of the links.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tensorexpress.graph import KINDS
from tensorexpress.plan import Plan, one_slice_each, parts_of_slices
from tensorexpress.units import PS_PER_SECOND

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

#: Bytes of the smallest slices that count: of a slice, a part may have a byte more than its share.
SMALLEST_SLICE_BYTES = 256

#: How often weights are improved: by then they hardly change, and any weights give a bound.
_ROUNDS = 32

#: Takes off more than rounding can add.
_ROUNDED_DOWN = 1 - 1e-12

#: Loads that differ by less are equal.
_TIE = 1e-9


def cheapest_shares(ways: int, parts: int) -> Floats:
    """Return the shares of bytes that the cheapest way, the next one, and so on can have.

    >>> cheapest_shares(3, parts=1).tolist(), cheapest_shares(2, parts=2).tolist()
    ([1.0, 0.0, 0.0], [0.50390625, 0.49609375])
    """
    most = 1.0 if parts == 1 else 1 / parts + 1 / SMALLEST_SLICE_BYTES
    return np.clip(1 - most * np.arange(ways), 0, most)


def best_weights(loads: Floats, shares: Floats) -> Floats:
    """Return weights of links, which add up to 1, whose weighted mean load is large under any shares of the ways.

    `loads` is what a byte of each way puts on each link, by (link, way), and `shares` those of `cheapest_shares`.
    Weights go to the links that are busiest under the shares that were cheapest so far (fictitious play).

    >>> best_weights(np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.0]]), cheapest_shares(2, parts=1)).tolist()
    [0.5, 0.5, 0.0]
    """
    links, ways = loads.shape
    mean, weights = np.full(ways, 1 / ways), np.zeros(links)
    alone = np.sort(loads, axis=1) @ shares
    best = int(alone.argmax())
    found, most = np.eye(links)[best], float(alone[best])
    for number in range(_ROUNDS):
        on_links = loads @ mean
        busiest = on_links >= on_links.max() * (1 - _TIE)
        weights = (weights * number + busiest / busiest.sum()) / (number + 1)
        on_ways = weights @ loads
        least = float(np.sort(on_ways) @ shares)
        if least > most:
            found, most = weights, least
        answer = np.zeros(ways)
        if shares[0] == 1:
            equal = on_ways <= on_ways.min() * (1 + _TIE)
            answer = equal / equal.sum()
        else:
            answer[np.argsort(on_ways, kind="stable")] = shares
        mean = (mean * (number + 1) + answer) / (number + 2)
    return np.asarray(found)


@dataclass(frozen=True, eq=False)
class Ways:
    """How long a byte of each way occupies every directed link, in ps by (link, way)."""

    #: With what all workers wait for; with what single workers wait for; with what these gather again.
    shared: Floats
    owned: Floats
    again: Floats
    #: Of `owned`, by host of workers and link, what goes to that host.
    own: dict[int, dict[int, Floats]]
    #: Those of `cheapest_shares`.
    shares: Floats

    def least_ps(self, loads: Floats) -> float:
        """Return how long a byte occupies some of these links at least."""
        used = loads[loads.any(axis=1)]
        if not len(used):
            return 0.0
        return float(np.sort(best_weights(used, self.shares) @ used) @ self.shares) * _ROUNDED_DOWN

    def least_of_each_ps(self) -> Floats:
        """Return how long a byte that all workers wait for occupies each link at least."""
        return np.asarray(np.sort(self.shared, axis=1) @ self.shares * _ROUNDED_DOWN)

    def waited_ps(self, host: int) -> tuple[float, float]:
        """Return how long a byte that a host's workers wait for occupies some link: with that of all, and alone."""
        rows = self.own[host]
        alone = np.array(list(rows.values())).reshape(len(rows), self.shared.shape[1])
        return self.least_ps(alone + self.shared[list(rows)]), self.least_ps(alone)

    @cached_property
    def _weights(self) -> Floats:
        return best_weights(self.shared + self.owned + self.again, self.shares)

    def all_ps(self, shared: int, others: int) -> float:
        """Return how long bytes of so many iterations occupy some link: shared ones, and the others, each a byte."""
        loads = shared * self.shared + others * (self.owned + self.again)
        return float(np.sort(self._weights @ loads) @ self.shares) * _ROUNDED_DOWN


def ways_of(plan: Plan, number: int) -> Ways:
    """Return the ways that bytes of a job can take on a plan's paths: one for each server and part of a slice."""
    scenario, job = plan.scenario, plan.jobs[number].job
    graph, parts = one_slice_each(job), parts_of_slices(job)
    rates, hosts = np.array(scenario.fastest().rate_bps, dtype=np.float64), len(scenario.cluster.hosts)
    ways = parts * (int(graph.slice.max()) + 1)
    shared, owned, again = (np.zeros((len(rates), ways)) for _ in range(3))
    own: dict[int, dict[int, Floats]] = {host: {} for host in job.hosts}
    kind = np.where(graph.kind == KINDS.index("regather"), 2, graph.brings_sums)
    pairs, pair = np.unique(graph.src * hosts + graph.dst, return_inverse=True)
    code = (pair.ravel() * 3 + kind) * ways + graph.slice * parts + graph.part
    counts = np.bincount(code, minlength=len(pairs) * 3 * ways).reshape(len(pairs), 3, ways)
    for ends, moved in zip(pairs.tolist(), counts, strict=True):
        src, dst = divmod(ends, hosts)
        for link in plan.paths.between(src, dst) if src != dst else ():
            times = moved * (8 * PS_PER_SECOND / rates[link])
            for loads, each in zip((shared, owned, again), times, strict=True):
                loads[link] += each
            if moved[1].any():
                own[dst][link] = own[dst].get(link, 0) + times[1]
    return Ways(shared, owned, again, own, cheapest_shares(ways, parts))


def least_bytes(plan: Plan, number: int) -> Ints:
    """Return how many bytes the first layers of a job are on the wire at least, by layer up to which they count.

    Whole tensors have the fewest packets. In parts, a layer can have a byte less of each.
    """
    job, framing = plan.jobs[number].job, plan.scenario.framing
    sizes, parts = np.array(job.workload.tensor_bytes, dtype=np.int64), parts_of_slices(job)
    if parts == 1:
        return np.cumsum(framing.wire_bytes(sizes))
    fewest = np.maximum(np.cumsum(sizes - parts), 0)
    return np.asarray(fewest * framing.full_packet_bytes // framing.payload_bytes)
