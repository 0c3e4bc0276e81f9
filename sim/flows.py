"""Flows of a program: who sends to whom in which class, by which links, as flat arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

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


class Flows(NamedTuple):
    """Flows of a program, one after another."""

    #: Job, source and destination of each, and its links there and back.
    ends: list[tuple[int, int, int]]
    ways: list[tuple[Links, Links]]
    #: Of every host: those from which it chooses what to send, in the order in which equal ones take turns.
    by_host: list[list[int]]
    #: The flow of every message; -1 for those that are in none of these.
    message_flow: Ints


def one_after_another(parts: Iterable[Flows]) -> Flows:
    """Return flows of several kinds, numbered one after another."""
    first, *others = parts
    ends, ways, by_host, message_flow = list(first.ends), list(first.ways), list(first.by_host), first.message_flow
    for part in others:
        before = len(ends)
        ends, ways = ends + part.ends, ways + part.ways
        rows_of_hosts = zip(by_host, part.by_host, strict=True)
        by_host = [[*own, *(before + flow for flow in more)] for own, more in rows_of_hosts]
        message_flow = np.where(part.message_flow >= 0, before + part.message_flow, message_flow)
    return Flows(ends, ways, by_host, message_flow)


def flows_of_messages(scenario: Scenario, paths: Paths, graphs: Sequence[Graph], message_class: Ints) -> Flows:
    """Find who talks to whom in which class, and by which way; what switches sum is left to streams."""
    hosts = len(scenario.cluster.hosts)
    classes = int(message_class.max()) + 1
    job = np.repeat(np.arange(len(graphs)), [len(graph.src) for graph in graphs])
    src, dst = (np.concatenate([getattr(graph, end) for graph in graphs]) for end in ("src", "dst"))
    own = ~np.concatenate([graph.under_way for graph in graphs])
    codes = (((job * hosts + src) * hosts + dst) * classes + message_class)[own]
    found, flow_of = np.unique(codes, return_inverse=True)
    message_flow = np.full(len(own), -1, dtype=np.int64)
    message_flow[own] = flow_of.ravel()
    ends = [(pair // hosts**2, pair // hosts % hosts, pair % hosts) for pair in (found // classes).tolist()]
    by_host: list[list[int]] = [[] for _ in range(hosts)]
    for index, (_, sender, receiver) in enumerate(ends):
        if sender != receiver:
            by_host[sender].append(index)
    # Hosts take turns starting at different peers, so that equal tensors do not all meet at the same server first.
    by_host = [row[h % len(row) :] + row[: h % len(row)] if row else row for h, row in enumerate(by_host)]
    return Flows(ends, _ways(paths, ends), by_host, message_flow)


def flows_of_background(scenario: Scenario, paths: Paths, messages: int) -> Flows:
    """Return a flow for every background source; its packets are never held back."""
    ends = [(len(scenario.jobs) + index, b.src, b.dst) for index, b in enumerate(scenario.background)]
    nobody: list[list[int]] = [[] for _ in scenario.cluster.hosts]
    return Flows(ends, _ways(paths, ends), nobody, np.full(messages, -1, dtype=np.int64))


def _ways(paths: Paths, ends: Iterable[tuple[int, int, int]]) -> list[tuple[Links, Links]]:
    return [(paths.between(src, dst), paths.between(dst, src)) for _, src, dst in ends]


def flow_columns(flows: Flows) -> dict[str, Any]:
    """Return flows as columns of a program."""
    job, src, dst = np.array(flows.ends, dtype=np.int64).reshape(-1, 3).T
    path_start, path = rows(there for there, _ in flows.ways)
    back_start, back = rows(back for _, back in flows.ways)
    host_flows_start, host_flows = rows(flows.by_host)
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
        "message_flow": flows.message_flow,
    }
