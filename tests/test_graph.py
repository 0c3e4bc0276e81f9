"""Communication graphs: whatever the architecture, everybody gets every sum once, with every gradient in it once."""

from __future__ import annotations

import doctest
from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.thorough import examples

from tensorexpress import graph as graphs
from tensorexpress.graph import (
    ARCHITECTURES,
    BACKWARD,
    FORWARD,
    GATE,
    GRADIENT,
    KINDS,
    MESSAGE,
    SUM,
    Cargo,
    Graph,
    draw,
    gathered_after,
    index_of,
    kind_of,
)
from tensorexpress.graph import tree_parents as parents_in
from tensorexpress.units import serialisation_ps

LAYERS = 3


@st.composite
def cargos(draw_: st.DrawFn, architecture: str, most_gpus: int = 3) -> Cargo:
    rule = ARCHITECTURES[architecture]
    hosts = tuple(range(draw_(st.integers(rule.fewest_hosts, 9))))
    slices = draw_(st.lists(st.tuples(st.integers(0, LAYERS - 1), st.integers(1, 500)), min_size=1, max_size=6))
    tensor, size = np.array(slices).T
    servers = draw_(st.lists(st.sampled_from([*hosts, 20, 21]), min_size=len(slices), max_size=len(slices)))
    return Cargo(
        hosts,
        LAYERS,
        tensor,
        size,
        np.array(servers) if rule.has_servers else np.full(len(slices), -1),
        gpus_per_host=draw_(st.integers(1, most_gpus)),
        local_rate_bps=draw_(st.sampled_from([0, 10**9])),
        prefetch=draw_(st.integers(0, 5)),
    )


def any_cargo() -> st.SearchStrategy[tuple[str, Cargo]]:
    return st.sampled_from(sorted(ARCHITECTURES)).flatmap(lambda name: st.tuples(st.just(name), cargos(name)))


def predecessors(edges: tuple[tuple[np.ndarray, np.ndarray], ...]) -> dict[int, list[int]]:
    before = defaultdict(list)
    for sources, targets in edges:
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
            before[target].append(source)
    return before


def carried(graph: Graph, node: int) -> tuple[int, int, int]:
    index = index_of(node)
    if kind_of(node) == kind_of(MESSAGE):
        return int(graph.slice[index]), int(graph.part[index]), int(graph.parts[index])
    return int(graph.sum_slice[index]), int(graph.sum_part[index]), int(graph.sum_parts[index])


@settings(max_examples=examples(150))
@given(any_cargo())
def test_every_worker_gets_every_part_once_with_every_gradient_in_it_once(drawn: tuple[str, Cargo]) -> None:
    graph, cargo = draw(*drawn), drawn[1]
    before = predecessors(graph.edges)

    @cache
    def gradients_in(node: int) -> Counter[int]:
        if kind_of(node) == kind_of(GRADIENT):
            return Counter([index_of(node) // LAYERS])
        for source in before[node]:
            if kind_of(source) != kind_of(GRADIENT):
                assert carried(graph, source) == carried(graph, node)
            else:
                assert index_of(source) % LAYERS == cargo.tensor[carried(graph, node)[0]]
        return sum((gradients_in(source) for source in before[node]), Counter())

    workers = len(cargo.hosts) * cargo.gpus_per_host
    for worker in range(workers):
        for tensor in range(LAYERS):
            arrived = before[GATE + worker * LAYERS + tensor]
            for node in arrived:
                assert gradients_in(node) == Counter(range(workers))
            own = [carried(graph, node) for node in arrived]
            (parts,) = {of for *_, of in own} or {1}
            slices = np.flatnonzero(cargo.tensor == tensor).tolist()
            assert sorted(own) == [(piece, part, parts) for piece in slices for part in range(parts)]


@settings(max_examples=examples(150))
@given(any_cargo())
def test_a_host_has_at_hand_what_it_sends_and_sums(drawn: tuple[str, Cargo]) -> None:
    graph, cargo = draw(*drawn), drawn[1]
    hosts = [host for host in cargo.hosts for _ in range(cargo.gpus_per_host)]

    def made_at(node: int) -> int:
        index = index_of(node)
        if kind_of(node) == kind_of(MESSAGE):
            return int(graph.src[index])
        return int(graph.sum_host[index]) if kind_of(node) == kind_of(SUM) else hosts[index // LAYERS]

    for edges in (graph.edges, graph.orders):
        for target, sources in predecessors(edges).items():
            for source in sources:
                is_message = kind_of(source) == kind_of(MESSAGE)
                found = int(graph.dst[index_of(source)]) if is_message else made_at(source)
                assert found == made_at(target)


@settings(max_examples=examples(60))
@given(any_cargo())
def test_whoever_gathers_again_gets_every_part_once_from_the_one_who_keeps_it(drawn: tuple[str, Cargo]) -> None:
    (name, cargo), graph = drawn, draw(*drawn)
    before = predecessors(graph.edges)
    workers = len(cargo.hosts) * cargo.gpus_per_host
    hosts = [host for host in cargo.hosts for _ in range(cargo.gpus_per_host)]
    # The ring's own sums come first: those are the parts that workers keep.
    kept = range(len(cargo.tensor) * len(cargo.hosts)) if ARCHITECTURES[name].regathers else ()
    keeps = {carried(graph, SUM + index): int(graph.sum_host[index]) for index in kept}

    def comes_from(node: int) -> int:
        sources = before[node]
        return comes_from(sources[0]) if sources else int(graph.src[index_of(node)])

    for worker in range(workers):
        for tensor in range(LAYERS):
            arrived = before[BACKWARD + worker * LAYERS + tensor]
            assert all(comes_from(node) == keeps[carried(graph, node)] for node in arrived)
            others = [what for what, host in keeps.items() if cargo.tensor[what[0]] == tensor and host != hosts[worker]]
            assert sorted(carried(graph, node) for node in arrived) == sorted(others)


@pytest.mark.parametrize(
    ("prefetch", "again", "following"),
    [
        # Of three layers: forward is over after steps 0, 1, 2, backward after 5, 4, 3; the next pass starts with 6.
        (0, [4, 3, 2], [5, 6, 7]),
        (1, [3, 2, 2], [5, 5, 6]),
        (2, [2, 1, 2], [5, 4, 5]),
        (1000, [0, 1, 2], [5, 4, 3]),
    ],
)
def test_parameters_are_gathered_no_more_layers_ahead_than_asked_for(
    prefetch: int, again: list[int], following: list[int]
) -> None:
    assert [steps.tolist() for steps in gathered_after(3, prefetch)] == [again, following]


def test_who_only_infers_pulls_every_slice_once_when_its_pass_is_over() -> None:
    cargo = Cargo((0, 1), 2, np.array([0, 1, 1]), np.array([400, 800, 300]), np.array([2, 3, 2]), forward_only=True)
    for gpus in (1, 2):
        graph = draw("ps", replace(cargo, gpus_per_host=gpus))
        assert {KINDS[kind] for kind in graph.kind} == {"pull"}
        assert sorted(zip(graph.src.tolist(), graph.dst.tolist(), graph.bytes.tolist(), strict=True)) == [
            (2, 0, 300), (2, 0, 400), (2, 1, 300), (2, 1, 400), (3, 0, 800), (3, 1, 800),
        ]  # fmt: skip
        for pull, nodes in predecessors(graph.orders).items():
            (host,) = {index_of(node) // 2 // gpus for node in nodes}
            assert host == graph.dst[index_of(pull)]
            assert sorted(nodes) == [FORWARD + (host * gpus + gpu) * 2 + 1 for gpu in range(gpus)]


@settings(max_examples=examples(60))
@given(any_cargo())
def test_messages_are_as_many_and_as_long_as_they_should_be(drawn: tuple[str, Cargo]) -> None:
    (name, cargo), graph = drawn, draw(*drawn)
    assert len(graph.kind) == len(cargo.tensor) * ARCHITECTURES[name].messages_per_slice(len(cargo.hosts))
    assert set(graph.parts.tolist()) == {ARCHITECTURES[name].parts_per_slice(len(cargo.hosts))}
    assert (graph.tensor == cargo.tensor[graph.slice]).all()
    sizes: defaultdict[tuple[int, int], dict[int, int]] = defaultdict(dict)
    for piece, part, size, kind in zip(graph.slice, graph.part, graph.bytes, graph.kind, strict=True):
        sizes[int(piece), int(kind)][int(part)] = int(size)
    for (piece, _), parts in sizes.items():
        assert sum(parts.values()) == cargo.bytes[piece]


@given(st.integers(2, 200))
def test_of_the_two_trees_nobody_passes_on_in_both(workers: int) -> None:
    inner = []
    for tree in range(graphs.TREES):
        parents = parents_in(workers, tree)
        assert parents.count(-1) == 1
        children = Counter(parent for parent in parents if parent >= 0)
        assert max(children.values()) <= 2
        inner.append(set(children))
        for worker in range(workers):
            steps = 0
            while parents[worker] >= 0:
                worker, steps = parents[worker], steps + 1
            assert steps <= workers.bit_length()
    assert not inner[0] & inner[1]


def test_gpus_of_a_host_share_their_way_to_the_network() -> None:
    cargo = Cargo(
        (0, 1), 2, np.array([0, 1]), np.array([400, 800]), np.array([2, 2]), gpus_per_host=4, local_rate_bps=8 * 10**9
    )
    graph = draw("ps", cargo)
    assert len(graph.kind) == 8  # as many as with one GPU: the network sees hosts
    (before, after), *_ = graph.orders
    # Of both hosts: the last tensor is summed first, three quarters of 800 bytes at 8 bits a ns; then 400.
    first, then = graph.sum_delay_ps[index_of(before)], graph.sum_delay_ps[index_of(after)]
    assert first.tolist() == [serialisation_ps(600, 8 * 10**9)] * 2 == [600_000] * 2
    assert then.tolist() == [300_000] * 2


def test_examples_hold() -> None:
    assert doctest.testmod(graphs).failed == 0


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_hosts_and_pairs_are_those_of_the_messages(name: str) -> None:
    servers = np.array([5]) if ARCHITECTURES[name].has_servers else np.array([-1])
    graph = draw(name, Cargo((1, 2, 3), 1, np.array([0]), np.array([1000]), servers))
    assert graph.hosts >= {1, 2, 3}
    assert set(graph.pairs) == {(s, d) for s, d in zip(graph.src.tolist(), graph.dst.tolist(), strict=True)}
