"""Chakra execution traces, both ways: what is written is what Google's protobuf reads, and what it writes is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chakra_schema import message, messages_of, trace_of
from support.foreign_files import BUCKETS, TEXT, linked

from tensorexpress.cli import main
from tensorexpress.compute import compute_times
from tensorexpress.errors import InputError, PlanError
from tensorexpress.foreign import protobuf
from tensorexpress.foreign.chakra_export import chakra_traces
from tensorexpress.foreign.recognise import read_foreign
from tensorexpress.plan import Plan, make_plan
from tensorexpress.plan_file import plan_text
from tensorexpress.policy import POLICIES
from tensorexpress.scenario import Scenario, read_scenario
from tensorexpress.workload import Layer, Workload

SMALL = ["job.model=alexnet", "job.workers=3", "job.servers=1", "iterations=2", "warmup=1"]
SCENARIO = read_scenario(overrides=SMALL)

LAYERS = st.lists(
    st.tuples(
        # Whatever they are called, also as nodes are.
        st.sampled_from(["conv", "fc", "a_BWD", "a_FWD_IG", "b_FWD_c", "COMP_NODE_x", "x_ALLREDUCE", "my_forward"]),
        st.integers(1, 10**9),
        st.integers(0, 10**12),
        st.integers(0, 10**12),
    ),
    min_size=1,
    unique_by=lambda row: row[0],
)


def planned(scenario: Scenario) -> Plan:
    return make_plan(scenario, POLICIES["tensorexpress"])


def with_layers(scenario: Scenario, layers: tuple[Layer, ...], **changed: Any) -> Scenario:
    job = replace(scenario.jobs[0], workload=Workload("w", layers, dtype="bf16"), **changed)
    return replace(scenario, jobs=(job,))


@settings(max_examples=20)
@given(LAYERS)
def test_a_workload_that_is_written_reads_back_to_the_picosecond(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, int, int, int]]
) -> None:
    layers = tuple(Layer(*row) for row in rows)
    plan = planned(with_layers(SCENARIO, layers))
    path = tmp_path_factory.mktemp("chakra") / "w.0.et"
    path.write_bytes(next(chakra_traces(plan, 0)))
    found = read_foreign(path)
    assert found.workload.layers == layers
    assert found.workload.dtype == "bf16"
    assert (found.iterations, found.explained) == (3, 1.0)


def test_layers_that_share_a_name_keep_their_own_gradients(tmp_path: Path) -> None:
    layers = tuple(Layer("block", params, params * 10, params * 100) for params in (3, 5, 7))
    (tmp_path / "w.et").write_bytes(next(chakra_traces(planned(with_layers(SCENARIO, layers)), 0)))
    found = read_foreign(tmp_path / "w.et").workload.layers
    assert [layer.params for layer in found] == [3, 5, 7]
    assert [layer.backward_ps for layer in found] == [300, 500, 700]
    assert [layer.name for layer in found] == ["block", "block:2", "block:3"]


def test_every_worker_gets_the_times_that_an_execution_draws() -> None:
    scenario = read_scenario(overrides=[*SMALL, "compute.jitter=0.2", "compute.stragglers.h1=2.0"])
    [(forward, backward)] = compute_times(scenario, scenario.rounds)
    for worker, trace in enumerate(chakra_traces(planned(scenario), 0)):
        exact = [
            attribute.uint64_val
            for node in messages_of(trace)[1:]
            for attribute in node.attr
            if attribute.name == "duration_ps"
        ]
        drawn = [
            time_ps
            for iteration in range(scenario.rounds)
            for time_ps in (*forward[iteration, worker], *backward[iteration, worker][::-1])
        ]
        assert exact == drawn


def test_what_is_written_is_what_feeders_of_astra_sim_take() -> None:
    plan = planned(SCENARIO)
    [workload] = [job.workload for job in plan.scenario.jobs]
    traces = list(chakra_traces(plan, 0))
    assert len(traces) == 3
    metadata, *nodes = messages_of(traces[0])
    assert metadata.version
    done: set[int] = set()
    for node in nodes:
        # A window of a file is fed at a time: nothing may depend on what comes later.
        assert set(node.data_deps) <= done
        done.add(node.id)
        attributes = {attribute.name: attribute for attribute in node.attr}
        assert not attributes["is_cpu_op"].bool_val
        if node.type == 7:
            assert attributes["comm_type"].int64_val == 0
            assert attributes["comm_size"].int64_val in workload.tensor_bytes
    assert len(done) == len(nodes) == 3 * 3 * len(workload.layers)
    micros = sum(node.duration_micros for node in nodes)
    assert micros == pytest.approx(3 * workload.compute_ps / 10**6, abs=3)


def test_a_forward_layer_waits_for_its_own_sum_and_with_a_barrier_the_first_for_all() -> None:
    for barrier in (False, True):
        plan = planned(with_layers(SCENARIO, SCENARIO.jobs[0].workload.layers, barrier=barrier))
        _, *nodes = messages_of(next(chakra_traces(plan, 0)))
        names = {node.id: node.name for node in nodes}
        first, second = (node for node in nodes if node.name.endswith("_FWD") and node.id in (24, 25))
        sums = [[names[dep] for dep in node.data_deps if "ALLREDUCE" in names[dep]] for node in (first, second)]
        assert len(sums[0]) == (8 if barrier else 1)
        layer = second.name.removeprefix("COMP_NODE_").removesuffix("_FWD")
        assert sums[1] == [f"COMM_COLL_NODE_{layer}_ALLREDUCE"]


def converted(text: str, passes: int) -> bytes:
    """Return what Chakra's text converter makes of a data-parallel text, by its rules, written by Google's protobuf."""
    rows = [line.split() for line in text.splitlines()[2:]]
    nodes: list[Any] = [message("GlobalMetadata")(attr=[{"name": "schema", "string_val": "1.0.2-chakra.1.0.0"}])]

    def add(name: str, type_: int, parents: list[int], **more: Any) -> int:
        nodes.append(message("Node")(id=len(nodes) - 1, name=name, type=type_, data_deps=parents, **more))
        return len(nodes) - 2

    sums: dict[str, int] = {}
    for _ in range(passes):
        last: list[int] = []
        for row in rows:
            waits_for = [*last, *([sums[row[0]]] if row[0] in sums else [])]
            last = [add(f"COMP_NODE_{row[0]}_FWD", 4, waits_for, duration_micros=int(row[2]))]
        for row in reversed(rows):
            last = [add(f"COMP_NODE_{row[0]}_BWD_WG", 4, last, duration_micros=int(row[8]))]
            attributes = [{"name": "comm_type", "int64_val": 0}, {"name": "comm_size", "int64_val": int(row[10])}]
            sums[row[0]] = add(f"COMM_COLL_NODE_{row[0]}_{row[9]}", 7, last, attr=attributes)
            if row is not rows[0]:
                last = [add(f"COMP_NODE_{row[0]}_BWD_IG", 4, last, duration_micros=int(row[5]))]
    return trace_of(nodes)


@pytest.mark.parametrize("passes", [1, 3])
def test_a_text_and_the_trace_that_is_made_of_it_are_the_same_workload(tmp_path: Path, passes: int) -> None:
    (tmp_path / "w.txt").write_text(TEXT)
    (tmp_path / "w.et").write_bytes(converted(TEXT, passes))
    trace = read_foreign(tmp_path / "w.et")
    assert trace.workload == read_foreign(tmp_path / "w.txt", unit="us").workload
    assert trace.iterations == passes


def node(number: int, name: str, type_: int, parents: tuple[int, ...] = (), **attributes: int) -> Any:
    attr = [{"name": key, "int64_val": value} for key, value in attributes.items()]
    return message("Node")(id=number, name=name, type=type_, ctrl_deps=parents, duration_micros=7, attr=attr)


ITERATION = [("a_FWD", 4, {}), ("a_BWD", 4, {}), ("a_ALLREDUCE", 7, {"comm_type": 0, "comm_size": 400})]


@pytest.mark.parametrize(
    ("number", "changed", "said"),
    [
        (2, ("moe", 7, {"comm_type": 6, "comm_size": 9}), "node 'moe' is ALL_TO_ALL of 9 bytes"),
        (2, ("x", 7, {"comm_type": 77, "comm_size": 9}), "is a collective of type 77"),
        (1, ("tp", 7, {"comm_type": 0, "comm_size": 8}), "node 'tp' is ALL_REDUCE of 8 bytes in the forward pass"),
        (1, ("pipe", 5, {}), "node 'pipe' sends to one other worker"),
        (1, ("pipe", 6, {}), "node 'pipe' receives from one other worker"),
        (2, ("a_ALLREDUCE", 7, {"comm_type": 0}), "lacks comm_type or comm_size"),
        (2, ("a_ALLREDUCE", 7, {"comm_type": 0, "comm_size": -4}), "lacks comm_type or comm_size"),
        (2, ("a_ALLREDUCE", 7, {"comm_type": 0, "comm_size": 7}), "7 bytes are no whole number of fp32"),
        (2, ("b_ALLREDUCE", 7, {"comm_type": 0, "comm_size": 8}), "gradient of 'b' is summed, and no forward pass"),
        (0, ("matmul", 4, {}), "compute node 'matmul' is of no pass"),
    ],
)
def test_a_trace_that_is_wrong_or_not_data_parallel_is_refused_by_name(
    tmp_path: Path, number: int, changed: tuple[str, int, dict[str, int]], said: str
) -> None:
    rows = [*ITERATION]
    rows[number] = changed
    nodes = [node(index, name, type_, **attributes) for index, (name, type_, attributes) in enumerate(rows)]
    (tmp_path / "w.et").write_bytes(trace_of([message("GlobalMetadata")(version="0.0.4"), *nodes]))
    with pytest.raises(InputError, match=r"w\.et: .*; accepted: ") as caught:
        read_foreign(tmp_path / "w.et")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("parents", "said"),
    [
        ({0: (2,), 2: (0,)}, "2 nodes depend on each other"),
        ({1: (9,)}, "depends on node 9, which is not there"),
    ],
)
def test_dependencies_that_cannot_be_are_refused(
    tmp_path: Path, parents: dict[int, tuple[int, ...]], said: str
) -> None:
    nodes = [
        node(index, name, type_, parents.get(index, ()), **attributes)
        for index, (name, type_, attributes) in enumerate(ITERATION)
    ]
    (tmp_path / "w.et").write_bytes(trace_of([message("GlobalMetadata")(version="0.0.4"), *nodes]))
    with pytest.raises(InputError, match=said):
        read_foreign(tmp_path / "w.et")


def test_order_is_that_of_dependencies_not_of_the_file(tmp_path: Path) -> None:
    rows = [
        node(5, "a_ALLREDUCE", 7, (4,), comm_type=0, comm_size=400),
        node(4, "a_BWD", 4, (3,)),
        node(3, "a_FWD", 4),
    ]
    (tmp_path / "w.et").write_bytes(trace_of([message("GlobalMetadata")(version="0.0.4"), *rows]))
    assert read_foreign(tmp_path / "w.et").workload.layers == (Layer("a", 100, 7_000_000, 7_000_000),)


def test_a_trace_linked_from_pytorchs_is_its_buckets(tmp_path: Path) -> None:
    (tmp_path / "w.et").write_bytes(linked())
    found = read_foreign(tmp_path / "w.et")
    assert found.workload.layers == tuple(
        Layer(f"bucket{number}", params, sum(forward) * 10**6, sum(backward) * 10**6)
        for number, (params, forward, backward) in reversed(list(enumerate(BUCKETS)))
    )
    assert found.iteration_ps == found.workload.compute_ps + (9 + 21) * 10**6
    assert "left out: 0.01 ms before the first layer and 0.02 ms after the last gradient" in found.notes
    assert "left out: collectives that sum no gradients: ncclBroadcast" in found.notes


def test_a_linked_trace_that_is_not_data_parallel_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "w.et").write_bytes(linked(collective=7))
    with pytest.raises(InputError, match="node 'ncclAllReduce' is REDUCE_SCATTER of 20520 bytes in the backward pass"):
        read_foreign(tmp_path / "w.et")


@given(st.integers(0, 2**64 - 1))
def test_numbers_survive_their_bytes(value: int) -> None:
    assert protobuf.varint(protobuf.encode_varint(value), 0) == (value, len(protobuf.encode_varint(value)))


@pytest.mark.parametrize("content", [b"\x80", b"\xff" * 11, b"\x05ab", b"\x02\x00\x01", b"\x02\x0b\x00"])
def test_bytes_that_are_no_messages_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"a (number|message|field)"):
        [list(protobuf.fields(found)) for _, found in protobuf.messages(content)]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["job.architecture=fsdp", "job.servers=0"], "shards its parameters"),
        (["job.forward_only=true"], "only infers"),
        (["change.0.worker=h0", "change.0.factor=2.0", "change.0.at=1 ms"], "changes the pace of a worker at a time"),
    ],
)
def test_training_that_is_no_all_reduce_is_not_written(overrides: list[str], said: str) -> None:
    plan = planned(read_scenario(overrides=[*SMALL, *overrides]))
    with pytest.raises(PlanError, match=said):
        next(chakra_traces(plan, 0))


def test_rows_of_a_sparse_table_are_not_written() -> None:
    table = Layer("embed", 1000, 1, 1, keys=100, width=10, lookups=2)
    with pytest.raises(PlanError, match=r"sends rows of a sparse table \(layer embed\)"):
        next(chakra_traces(planned(with_layers(SCENARIO, (table,))), 0))


def test_the_verbs_write_a_trace_for_every_worker_and_read_it(tmp_path: Path) -> None:
    plan = planned(SCENARIO)
    (tmp_path / "plan.json").write_text(plan_text(plan))
    prefix = str(tmp_path / "training")
    result = CliRunner().invoke(main, ["export", str(tmp_path / "plan.json"), "--format", "chakra", "-o", prefix])
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in tmp_path.glob("*.et")) == [f"training.{worker}.et" for worker in range(3)]
    result = CliRunner().invoke(main, ["import", f"{prefix}.2.et"])
    assert result.exit_code == 0, result.output
    assert "8 layers, 61,100,840 parameters" in result.stdout
