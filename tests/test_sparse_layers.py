"""Layers that are sparse tables: what they weigh, their CSV, plans and predictions, and who refuses them."""

from dataclasses import astuple, replace

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from support.thorough import rest

from tensorexpress.cli import main
from tensorexpress.errors import InputError, WorkloadError
from tensorexpress.graph import ARCHITECTURES
from tensorexpress.plan import make_plan
from tensorexpress.plan_file import plan_from_json, plan_text, plan_to_json, read_plan
from tensorexpress.policy import POLICIES
from tensorexpress.scenario import make_scenario, read_scenario
from tensorexpress.sim.predict import predict
from tensorexpress.sparse import SparseTable, rows_sent
from tensorexpress.workload import Layer, Workload, compressed, in_buckets, read_csv, write_csv

DENSE_HEADER = "layer_index,numel,forward_ns,backward_ns"
HEADER = f"{DENSE_HEADER},keys,width,lookups,skew"

tables = st.builds(
    SparseTable, st.integers(1, 10**6), st.integers(1, 512), st.integers(1, 10**5), st.floats(0, 10).map(abs)
)


@st.composite
def sparse_layers(draw):
    table = draw(st.none() | tables)
    own = () if table is None else astuple(table)
    params = draw(st.integers(1, 1000)) + (0 if table is None else table.params)
    return Layer("x", params, draw(st.integers(0, 10**9)), draw(st.integers(0, 10**9)), *own)


workloads = st.lists(sparse_layers(), min_size=1, max_size=8).map(lambda layers: Workload("w", tuple(layers)))

SPARSE = Workload(
    "mine",
    (
        Layer("below", 3000, 10**8, 10**8),
        Layer("embed", 16_000_000, 10**8, 10**8, 10**6, 16, 500, 1.05),
        Layer("above", 5000, 10**8, 10**8),
    ),
    batch=500,
)


def test_a_sparse_layer_weighs_the_rows_that_it_touches_and_their_keys():
    rows = rows_sent(SPARSE.layers[1].table)
    assert 0 < rows < 500
    assert SPARSE.tensor_bytes == (12_000, rows * 72, 20_000)
    half = Workload("half", SPARSE.layers, "bf16")
    assert half.tensor_bytes == (6_000, rows * 40, 10_000)


def test_a_table_that_is_lighter_as_a_whole_goes_as_a_whole():
    assert Workload("w", (Layer("embed", 64, 0, 0, keys=4, width=16, lookups=2048),)).tensor_bytes == (256,)


def test_parameters_beside_a_table_are_always_sent():
    layer = Layer("embed", 16 * 10**6 + 10, 0, 0, keys=10**6, width=16, lookups=1)
    assert Workload("w", (layer,)).tensor_bytes == (40 + 72,)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"keys": 8, "width": 2, "lookups": 1},
            "layer a has 10 parameters and a sparse table of 16; accepted",
        ),
        ({"keys": 8}, "width of a sparse table are 0; accepted: 1 to"),
        ({"skew": 1.0}, "keys of a sparse table are 0; accepted: 1 to"),
        ({"keys": -1}, "keys of a sparse table are -1; accepted: 1 to"),
    ],
)
def test_layers_that_cannot_be_are_refused(table, message):
    with pytest.raises(WorkloadError, match=message):
        Layer("a", 10, 0, 0, **table)


@given(workloads, st.integers(1, 10**8))
def test_buckets_keep_tables_and_bytes_and_join_no_table_with_others(workload, bucket_bytes):
    bucketed = in_buckets(workload, bucket_bytes)
    assert sum(bucketed.tensor_bytes) == sum(workload.tensor_bytes)
    assert [layer for layer in bucketed.layers if layer.table] == [layer for layer in workload.layers if layer.table]
    assert in_buckets(bucketed, bucket_bytes) == bucketed


def test_compressing_takes_the_time_of_what_is_sent():
    slow = compressed(SPARSE, 2, 10**9)
    assert slow.codec_ps == tuple(size * 8 * 1000 for size in SPARSE.tensor_bytes)
    assert slow.tensor_bytes == tuple(-(-size // 2) for size in SPARSE.tensor_bytes)


@given(workloads)
def test_a_sparse_workload_survives_its_csv_byte_for_byte(tmp_path_factory, workload):
    one, two = (tmp_path_factory.mktemp("csv") / name for name in ("one.csv", "two.csv"))
    write_csv(workload, one)
    read = read_csv(one)
    assert [replace(layer, name="x") for layer in read.layers] == list(workload.layers)
    write_csv(read, two)
    assert one.read_bytes() == two.read_bytes()


def test_the_written_format(tmp_path):
    write_csv(SPARSE, tmp_path / "w.csv")
    assert (tmp_path / "w.csv").read_text().splitlines() == [
        HEADER,
        "0,3000,100000,100000,,,,",
        "1,16000000,100000,100000,1000000,16,500,1.05",
        "2,5000,100000,100000,,,,",
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("0,10,1,2", "has 4 of 8 columns; accepted: layer_index,numel,forward_ns,backward_ns,keys,width,lookups,skew"),
        ("0,10,1,2,5,2,3,", "skew is ''; accepted: a number from 0 on, or all four columns empty"),
        ("0,10,1,2,,2,3,1", "keys is ''; accepted: a whole number from 1 on, or all four columns empty"),
        ("0,10,1,2,five,2,3,1", "keys is 'five'"),
        ("0,10,1,2,5,-2,3,1", "width is '-2'"),
        ("0,10,1,2,5,2,3.5,1", "lookups is '3.5'"),
        ("0,10,1,2,5,2,3,nan", "skew is 'nan'"),
        ("0,10,1,2,5,2,3,11", "the skew of a sparse table is 11.0; accepted: 0 to 10"),
        ("0,10,1,2,5,2,0,1", "lookups of a sparse table are 0; accepted: 1 to"),
        ("0,10,1,2,6,2,3,1", "layer layer0 has 10 parameters and a sparse table of 12; accepted"),
        ("0,10,1,2,٣,2,3,1", "keys is '٣'"),
    ],
)
def test_bad_tables_are_named_by_file_and_line(tmp_path, row, message):
    path = tmp_path / "w.csv"
    path.write_text(f"{HEADER}\n{row}\n")
    with pytest.raises(WorkloadError) as caught:
        read_csv(path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert message in str(caught.value)
    assert str(caught.value).count(str(path)) == 1


def test_another_header_is_refused(tmp_path):
    (tmp_path / "w.csv").write_text(f"{DENSE_HEADER},keys\n0,1,1,1,1\n")
    with pytest.raises(WorkloadError, match="backward_ns, and keys,width,lookups,skew behind it for sparse tables"):
        read_csv(tmp_path / "w.csv")


@pytest.mark.parametrize("name", [name for name, kind in ARCHITECTURES.items() if not kind.has_servers])
def test_an_architecture_without_servers_refuses_the_layer_by_name(name):
    with pytest.raises(InputError) as caught:
        make_scenario(job={"model": SPARSE, "architecture": name, "workers": 4})
    assert f"job.architecture: found {name} with layer embed, a sparse table; accepted: ps" in str(caught.value)


def test_several_gpus_of_a_host_refuse_the_layer_by_name():
    with pytest.raises(InputError, match=r"gpus_per_host: found 2 with layer embed, a sparse table; accepted: 1"):
        make_scenario(job={"model": SPARSE, "gpus_per_host": 2})


def test_placements_of_what_switches_sum_refuse_the_layer_by_name():
    result = CliRunner().invoke(main, ["predict", "--policy", "inart", "--set", "job.model=dlrm-sparse"])
    assert result.exit_code == 2
    assert "job.0.model: found layer embed0, a sparse table; accepted: layers without sparse tables" in result.stderr


def test_a_plan_of_sparse_layers_survives_its_file(tmp_path):
    plan = make_plan(make_scenario(job={"model": SPARSE, "workers": 2, "servers": 1}), POLICIES["tensorexpress"])
    (tmp_path / "plan.json").write_text(plan_text(plan))
    assert read_plan(tmp_path / "plan.json") == plan
    assert sum(piece.bytes for piece in plan.jobs[0].slices) == sum(SPARSE.tensor_bytes)
    document = plan_to_json(plan)
    document["scenario"]["jobs"][0]["workload"]["layers"][1]["lookups"] = 0
    with pytest.raises(InputError, match="lookups of a sparse table are 0; accepted: 1 to"):
        plan_from_json(document)


def test_a_sparse_model_is_predicted_alike_by_both_engines():
    overrides = ["job.model=dlrm-sparse", "job.workers=2", "job.servers=1", "iterations=1"]
    scenario = read_scenario(None, overrides)
    policies = (POLICIES["fifo"], POLICIES["tensorexpress"])
    fast, simpy = (predict(scenario, policies, engine=engine) for engine in ("fast", "simpy"))
    assert fast.speedup("tensorexpress") == simpy.speedup("tensorexpress")


@rest()
def test_servers_of_a_sparse_model_need_a_fraction_of_the_time_of_a_dense_one():
    """Most of DLRM is tables: the time of a network-bound iteration falls as the bytes do."""
    overrides = ["job.workers=4", "job.servers=2", "iterations=1", "cluster.bandwidth=1 Gbps"]
    fifo = (POLICIES["fifo"],)
    iterations_ps, sizes = [], []
    for model in ("dlrm", "dlrm-sparse"):
        scenario = read_scenario(None, [*overrides, f"job.model={model}"])
        grain = "auto" if model == "dlrm" else 1
        iterations_ps.append(predict(scenario, fifo, grain=grain).results["fifo"].jobs[0].iteration_ps)
        sizes.append(sum(scenario.jobs[0].workload.tensor_bytes))
    assert iterations_ps[0] / iterations_ps[1] == pytest.approx(sizes[0] / sizes[1], rel=0.3)
