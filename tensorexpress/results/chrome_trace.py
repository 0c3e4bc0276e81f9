"""Traces as Chrome trace-event JSON, which Perfetto (ui.perfetto.dev) opens.

Every worker is a process with a track of what it computed and tracks of what it sent and received. docs/trace.md
describes the file.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorexpress.files import write_atomic
from tensorexpress.graph import BRINGS_SUMS, KINDS
from tensorexpress.results.provenance import Provenance
from tensorexpress.trace import TRANSFER, Ints, JobTrace, Trace, measure_job

#: Changes when a reader of the file would have to.
SCHEMA_VERSION = 1

Event = dict[str, Any]

_PS_PER_US = 10**6

#: The slices of one tensor between two hosts in one iteration, as one: first sent, last delivered.
_TENSOR_TRANSFER = np.dtype([*TRANSFER.descr, ("slices", np.int64)])


@dataclass(frozen=True)
class _Track:
    """Events of one host that follow each other without overlap."""

    host: int
    name: str
    events: list[Event]


def to_chrome(trace: Trace, made_by: Provenance | None = None) -> dict[str, Any]:
    """Return a trace as an object of Chrome's trace-event format, with what made it if that is given."""
    return _document([trace], made_by)


def write_chrome(traces: Sequence[Trace], path: str | os.PathLike[str], made_by: Provenance | None = None) -> None:
    """Write traces of one cluster, such as one per policy, to a single file; the processes of each stay together."""
    write_atomic(path, json.dumps(_document(traces, made_by), separators=(",", ":"), allow_nan=False) + "\n")


def merge_slices(transfers: NDArray[np.void]) -> NDArray[np.void]:
    """Return one transfer for all slices of a tensor between two hosts in one iteration, in the order of sending."""
    keys = ("iteration", "kind", "tensor", "src", "dst")
    # One number per group sorts many times faster than five columns do.
    group = np.zeros(len(transfers), dtype=np.int64)
    for key in keys:
        group = group * (1 + transfers[key].max(initial=0)) + transfers[key]
    order = np.argsort(group, kind="stable")
    first = np.flatnonzero(np.diff(group[order], prepend=-1))
    merged = np.zeros(len(first), dtype=_TENSOR_TRANSFER)
    for name in (*keys, "queue"):
        merged[name] = transfers[name][order[first]]
    for name, combine in (
        ("bytes", np.add),
        ("ready_ps", np.minimum),
        ("sent_ps", np.minimum),
        ("delivered_ps", np.maximum),
        ("timed_out_ps", np.maximum),
    ):
        merged[name] = combine.reduceat(transfers[name][order], first)
    merged["slices"] = np.diff(first, append=len(transfers))
    return merged[np.argsort(merged["sent_ps"], kind="stable")]


def worker_transfers(transfers: NDArray[np.void], host: int, kind: str) -> NDArray[np.void]:
    """Return the transfers of one kind that belong to the worker on a host: pushes it sends, pulls it receives."""
    end = transfers["dst" if kind in BRINGS_SUMS else "src"]
    own: NDArray[np.void] = transfers[(end == host) & (transfers["kind"] == KINDS.index(kind))]
    return own


def _document(traces: Sequence[Trace], made_by: Provenance | None) -> dict[str, Any]:
    known = {} if made_by is None else {"provenance": made_by.to_json()}
    events = [event for group, trace in enumerate(traces) for event in _events(trace, 1 + group * len(trace.hosts))]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"schema_version": SCHEMA_VERSION, **known, "traces": [_summary(trace) for trace in traces]},
    }


def _summary(trace: Trace) -> dict[str, Any]:
    return {
        "policy": trace.policy,
        "source": trace.source,
        "warmup": trace.warmup,
        "end_ps": trace.end_ps,
        "transmissions": trace.transmissions,
        "retransmissions": trace.retransmissions,
        "timeouts": trace.timeouts,
        "jobs": [
            {
                "name": job.name,
                "workers": job.workers,
                "layers": job.layers,
                "metrics": asdict(measure_job(job, trace.warmup)),
            }
            for job in trace.jobs
        ],
    }


def _events(trace: Trace, first_pid: int) -> Iterator[Event]:
    """Yield the events of one trace; host i is process `first_pid` + i, and threads count up from 1 in each."""
    tids: Counter[int] = Counter()
    for index, job in enumerate(trace.jobs):
        prefix = f"{job.name}: " if len(trace.jobs) > 1 else ""
        for track in _tracks(index, job, trace.hosts):
            pid = first_pid + track.host
            if not tids[pid]:
                yield _metadata("process_name", pid, 0, {"name": f"{trace.policy} · {trace.hosts[track.host]}"})
                yield _metadata("process_sort_index", pid, 0, {"sort_index": pid})
            tids[pid] += 1
            yield _metadata("thread_name", pid, tids[pid], {"name": prefix + track.name})
            yield _metadata("thread_sort_index", pid, tids[pid], {"sort_index": tids[pid]})
            for event in track.events:
                yield {**event, "pid": pid, "tid": tids[pid]}


def _metadata(name: str, pid: int, tid: int, args: Event) -> Event:
    return {"name": name, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": args}


def _slice(name: str, category: str, start_ps: int, end_ps: int, args: Event) -> Event:
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": _microseconds(start_ps),
        "dur": _microseconds(end_ps - start_ps),
        "args": args,
    }


def _microseconds(time_ps: int) -> float:
    """Return ps as microseconds, from which both the ps and the whole ns can be had back.

    Perfetto cuts 1000 times the number to whole ns. Where the nearest double would lose one, neighbours that touch
    would seem to overlap, and Perfetto drops what overlaps; so the next double is taken.
    """
    time_us = time_ps / _PS_PER_US
    return time_us if int(time_us * 1000) == time_ps // 1000 else math.nextafter(time_us, math.inf)


def _tracks(index: int, job: JobTrace, hosts: Sequence[str]) -> Iterator[_Track]:
    transfers = merge_slices(job.transfers)
    for worker, name in enumerate(job.workers):
        host, gpu = hosts.index(name), job.workers[:worker].count(name)
        several = job.workers.count(name) > 1
        yield _Track(host, f"compute {gpu}" if several else "compute", _compute_events(index, job, worker))
        for kind in KINDS if gpu == 0 else ():
            own = worker_transfers(transfers, host, kind)
            for lane, rows in enumerate(_lanes(own["sent_ps"], own["delivered_ps"]), 1):
                events = [_transfer_event(index, job, worker, hosts, transfer) for transfer in own[rows]]
                yield _Track(host, f"{kind} {lane}", events)


def _compute_events(index: int, job: JobTrace, worker: int) -> list[Event]:
    """Return what a worker computed, and where it stood still, in order of time."""

    def events(category: str, prefix: str, start_ps: Ints, end_ps: Ints, first: int = 0) -> Iterator[Event]:
        for iteration, times in enumerate(zip(start_ps[:, worker].tolist(), end_ps[:, worker].tolist(), strict=True)):
            for layer, (start, end) in enumerate(zip(*times, strict=True)):
                if end > start or category != "blocked":
                    args = {"job": index, "iteration": first + iteration, "layer": layer, "worker": worker}
                    yield _slice(prefix + job.layers[layer], category, start, end, args)

    forward = events("forward", "forward ", job.forward_start_ps, job.forward_end_ps)
    backward = events("backward", "backward ", job.backward_start_ps, job.gradient_ps)
    stood_from = job.forward_start_ps[1:] - job.waits_ps
    blocked = events("blocked", "blocked: ", stood_from, job.forward_start_ps[1:], first=1)
    stood_backward_from = job.backward_start_ps - job.backward_waits_ps
    blocked_backward = events("blocked", "blocked in backward: ", stood_backward_from, job.backward_start_ps)
    return sorted([*forward, *backward, *blocked, *blocked_backward], key=lambda event: event["ts"])


def _transfer_event(index: int, job: JobTrace, worker: int, hosts: Sequence[str], transfer: np.void) -> Event:
    row = dict(zip(_TENSOR_TRANSFER.names or (), transfer.tolist(), strict=True))
    args = {
        "job": index,
        "iteration": row["iteration"],
        "layer": row["tensor"],
        "worker": worker,
        "src": hosts[row["src"]],
        "dst": hosts[row["dst"]],
        "bytes": row["bytes"],
        "slices": row["slices"],
        "queue": row["queue"],
        "ready_us": _microseconds(row["ready_ps"]),
    }
    kind = KINDS[row["kind"]]
    return _slice(f"{kind} {job.layers[row['tensor']]}", kind, row["sent_ps"], row["delivered_ps"], args)


def _lanes(start_ps: Iterable[int], end_ps: Iterable[int]) -> list[list[int]]:
    """Return rows of intervals, which come in order of their start, so that none overlap in a row, in the fewest rows.

    >>> _lanes([0, 1, 2, 3], [2, 5, 3, 4])
    [[0, 2, 3], [1]]
    """
    lanes: list[list[int]] = []
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    for interval, (start, end) in enumerate(zip(start_ps, end_ps, strict=True)):
        while busy and busy[0][0] <= start:
            heappush(free, heappop(busy)[1])
        if free:
            lane = heappop(free)
        else:
            lane = len(lanes)
            lanes.append([])
        lanes[lane].append(interval)
        heappush(busy, (end, lane))
    return lanes
