"""What the timelines of a page show: what workers computed and transferred, packed into few bytes.

Times are whole multiples of a quantum, and all numbers are one stream of 32-bit integers, in which times are
differences to the number before. Bytes of equal weight stand together, which makes the stream easy to compress.
`page.js` unpacks it. A report holds a limited number of events: of large runs, what goes to all servers of a tensor is
one, then there are fewer iterations, and at last fewer workers.
"""

from __future__ import annotations

import zlib
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorexpress.graph import BRINGS_SUMS, KINDS
from tensorexpress.results.chrome_trace import merge_slices, worker_transfers
from tensorexpress.results.page.contents import Contents
from tensorexpress.results.timelines import most_blocked
from tensorexpress.trace import Ints, JobTrace, Trace

#: Layers computed and tensors transferred that a report holds at most, about; some 4 to 9 bytes each. 64 workers with
#: 54 layers, 11 iterations and four policies are 608,000.
MOST_EVENTS = 640_000

#: A run is at least so many quanta long: more than any screen has pixels by four orders of magnitude.
_RESOLUTION = 2**23

#: No time is further from the start, in quanta: a difference of two fits into 32 bits with its sign.
_FARTHEST = 2**29


@dataclass(frozen=True)
class Window:
    """Which iterations and workers of a job a timeline holds."""

    first: int
    iterations: int
    workers: tuple[int, ...]
    #: Whether what a worker exchanges of a tensor with all hosts is one transfer.
    is_merged: bool


def packed(contents: Contents, most_events: int = MOST_EVENTS) -> tuple[dict[str, Any], str]:
    """Return what timelines need to know, as JSON, and the stream of all numbers, compressed and in base64."""
    traces = [result.trace for case in contents.cases for result in case.compared.results.values()]
    quantum_ps = quantum_for(max(trace.end_ps for trace in traces))
    jobs = sum(len(trace.jobs) for trace in traces)
    runs: list[dict[str, Any]] = []
    columns: list[Ints] = []
    for number, case in enumerate(contents.cases):
        for name, result in case.compared.results.items():
            for index, job in enumerate(result.trace.jobs):
                window = window_of(result.trace, index, most_events // jobs)
                runs.append(_header(result.trace, job, window) | {"case": number, "job": index, "policy": name})
                columns += _columns(result.trace, job, window, quantum_ps)
    cases = [
        {
            "title": title,
            "hosts": list(case.compared.scenario.cluster.hosts),
            "layers": [list(job.layers) for job in case.compared.baseline.trace.jobs],
            "worker": [most_blocked(case.compared.baseline.trace, job) for job in range(len(case.compared.optimal_ps))],
            "warmup": case.compared.scenario.warmup,
        }
        for title, case in zip(contents.titles, contents.cases, strict=True)
    ]
    header = {"quantum_ps": quantum_ps, "kinds": KINDS, "brings_sums": BRINGS_SUMS, "cases": cases, "runs": runs}
    return header, _compressed(np.concatenate(columns))


def quantum_for(end_ps: int) -> int:
    """Return the power of ten of ps, 1 ns at least, that is fine enough for a run of this length.

    >>> quantum_for(10**6), quantum_for(10**12)
    (1000, 100000)
    """
    quantum_ps = 1000
    while end_ps // (10 * quantum_ps) >= _RESOLUTION:
        quantum_ps *= 10
    return quantum_ps


def window_of(trace: Trace, number: int, most_events: int) -> Window:
    """Return what a timeline holds of a job: as many measured iterations as may be; if one is too many, few workers."""
    job = trace.jobs[number]
    iterations, workers, layers = map(int, job.backward_ps.shape)

    def events(is_merged: bool) -> int:
        transfers = merge_slices(_without_peers(job.transfers) if is_merged else job.transfers)
        return max(1, 2 * workers * layers + len(transfers) // iterations)

    is_merged = events(False) * iterations > most_events
    in_one = events(is_merged)
    held = max(1, min(iterations, most_events // in_one))
    kept = max(1, min(workers, most_events * workers // in_one))
    # Warm-up is shown where there is room, else not.
    first = max(0, min(trace.warmup, iterations - held))
    longest = np.argsort(-job.blocking_ps[trace.warmup :].sum(axis=0), kind="stable")[:kept]
    return Window(first, held, tuple(sorted(longest.tolist())), is_merged)


def _without_peers(transfers: NDArray[np.void]) -> NDArray[np.void]:
    """Return transfers that say nothing of the host at the other end, for which the worker's own stands."""
    alone = transfers.copy()
    brings = np.isin(transfers["kind"], [KINDS.index(kind) for kind in BRINGS_SUMS])
    alone["src"] = np.where(brings, transfers["dst"], transfers["src"])
    alone["dst"] = alone["src"]
    return alone


def _header(trace: Trace, job: JobTrace, window: Window) -> dict[str, Any]:
    return {
        "first": window.first,
        "iterations": window.iterations,
        "of_iterations": len(job.backward_ps),
        "workers": [[worker, job.workers[worker]] for worker in window.workers],
        "of_workers": len(job.workers),
        "is_merged": window.is_merged,
        "kinds": [code for code in range(len(KINDS)) if (job.transfers["kind"] == code).any()],
    }


def _columns(trace: Trace, job: JobTrace, window: Window, quantum_ps: int) -> Iterator[Ints]:
    """Yield the numbers of one job: per worker what it computed, then of every kind how many transfers, and these."""
    held = slice(window.first, window.first + window.iterations)
    held_forward = slice(window.first, window.first + window.iterations + 1)
    iteration = job.transfers["iteration"]
    transfers = job.transfers[(iteration >= held.start) & (iteration < held.stop)]
    transfers = merge_slices(_without_peers(transfers) if window.is_merged else transfers)
    kinds = [kind for code, kind in enumerate(KINDS) if (job.transfers["kind"] == code).any()]
    for worker in window.workers:
        for start_ps, end_ps, rows in (
            (job.forward_start_ps, job.forward_end_ps, held_forward),
            (job.backward_start_ps, job.gradient_ps, held),
        ):
            yield from _times(start_ps[rows, worker].ravel(), end_ps[rows, worker].ravel(), quantum_ps)
        name = job.workers[worker]
        for kind in kinds:
            # What a host transfers is shown with the first of its workers.
            own = worker_transfers(transfers, trace.hosts.index(name), kind)
            own = own[:0] if name in job.workers[:worker] else own
            yield np.array([len(own)])
            yield from _transfer_columns(own, "src" if kind in BRINGS_SUMS else "dst", quantum_ps)


def _transfer_columns(transfers: NDArray[np.void], peer: str, quantum_ps: int) -> Iterator[Ints]:
    yield from _times(transfers["sent_ps"], transfers["delivered_ps"], quantum_ps)
    yield _quanta(transfers["sent_ps"], quantum_ps) - _quanta(transfers["ready_ps"], quantum_ps)
    for name in ("iteration", "tensor", peer, "queue", "slices"):
        yield transfers[name]
    # Sizes may need more than 32 bits.
    yield transfers["bytes"] % 2**30
    yield transfers["bytes"] // 2**30


def _times(start_ps: Ints, end_ps: Ints, quantum_ps: int) -> tuple[Ints, Ints]:
    """Return starts as differences to the one before, and lengths; what touched before rounding touches after it."""
    start = _quanta(start_ps, quantum_ps)
    return np.diff(start, prepend=0), _quanta(end_ps, quantum_ps) - start


def _quanta(times_ps: Ints, quantum_ps: int) -> Ints:
    """Return times in quanta; what no run can reach, as in a file that lies, stays a number that can be packed."""
    return np.asarray(np.clip((times_ps + quantum_ps // 2) // quantum_ps, -_FARTHEST, _FARTHEST))


def _compressed(numbers: Ints) -> str:
    """Return 32-bit integers in base64: the sign in the lowest bit, and bytes of equal weight together."""
    unsigned = ((numbers << 1) ^ (numbers >> 63)).astype("<u4")
    planes = np.ascontiguousarray(unsigned.view(np.uint8).reshape(-1, 4).T).tobytes()
    return b64encode(zlib.compress(planes, 9)).decode()
