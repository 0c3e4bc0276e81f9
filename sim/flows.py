"""Flows of a program: who sends to whom in which class, by which links, as flat arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorexpress.graph import Graph
from tensorexpress.paths import Paths
from tensorexpress.scenario import Scenario

Ints = NDArray[np.int64]
Links = tuple[int, ...]


def rows(lists: Iterable[Iterable[int]]) -> tuple[Ints, Ints]:
    """Return compressed rows: where each starts, and all of them in one array."""
    found = [list(row) for row in lists]
    start = np.cumsum([0, *map(len, found)])
    return start.astype(np.int64), np.array([x for row in found for x in row], dtype=np.int64)


def flows(scenario: Scenario, paths: Paths, graphs: Sequence[Graph], message_class: Ints) -> dict[str, Any]:
    """Find who talks to whom in which class, and by which way."""
    cluster, hosts = scenario.cluster, len(scenario.cluster.hosts)
    classes = int(message_class.max()) + 1
    job = np.repeat(np.arange(len(graphs)), [len(graph.src) for graph in graphs])
    src, dst = (np.concatenate([getattr(graph, end) for graph in graphs]) for end in ("src", "dst"))
    codes, message_flow = np.unique(((job * hosts + src) * hosts + dst) * classes + message_class, return_inverse=True)
    pairs = codes // classes
    background = [(len(graphs) + index, b.src, b.dst) for index, b in enumerate(scenario.background)]
    found = [(pair // hosts**2, pair // hosts % hosts, pair % hosts) for pair in pairs.tolist()] + background
    ways = [(paths.between(src, dst), paths.between(dst, src)) for _, src, dst in found]
    by_host: list[list[int]] = [[] for _ in cluster.hosts]
    for index, (_, src, dst) in enumerate(found[: len(pairs)]):
        if src != dst:
            by_host[src].append(index)
    # Hosts take turns starting at different peers, so that equal tensors do not all meet at the same server first.
    by_host = [row[h % len(row) :] + row[: h % len(row)] if row else row for h, row in enumerate(by_host)]
    return {
        **flow_columns(found, ways, by_host),
        "message_flow": message_flow.ravel().astype(np.int64),
        "background_flow": np.arange(len(pairs), len(found)),
    }


def flow_columns(
    ends: Sequence[tuple[int, int, int]], ways: Sequence[tuple[Links, Links]], by_host: Iterable[Iterable[int]]
) -> dict[str, Any]:
    """Return flows, as (job, source, destination), with their links there and back."""
    job, src, dst = np.array(ends, dtype=np.int64).reshape(-1, 3).T
    path_start, path = rows(there for there, _ in ways)
    back_start, back = rows(back for _, back in ways)
    host_flows_start, host_flows = rows(by_host)
    return {
        "flow_src": src,
        "flow_dst": dst,
        "flow_job": job,
        "path_start": path_start,
        "path": path,
        "back_start": back_start,
        "back": back,
        "host_flows_start": host_flows_start,
        "host_flows": host_flows,
    }
