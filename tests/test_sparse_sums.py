"""Hot rows of sparse tables in switches and cold ones at servers: rows, bytes, plans, predictions, and what is refused.

Both engines, and the lower bounds, meet such plans in the random scenarios of test_engines.py and test_oracles.py.
"""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from numpy.typing import NDArray
from support.strategies import SUMMED, plans, sparse_workloads

from tensorexpress.cli import main
from tensorexpress.errors import InputError, PlanError
from tensorexpress.hot_keys import RowExchange, traffic
from tensorexpress.hot_rows import exchange_of, hot_rows_of, link_cost
from tensorexpress.plan import Plan, carried_bytes, make_plan
from tensorexpress.plan_file import plan_from_json, plan_to_json
from tensorexpress.policy import parse_policy
from tensorexpress.scenario import Scenario, make_scenario
from tensorexpress.sim.flat_plan import build, transmissions_of
from tensorexpress.sim.predict import predict
from tensorexpress.sim.run import simulate
from tensorexpress.sparse import SparseTable, ZipfHeat
from tensorexpress.sums import SLOT_BYTES, SUM_FRAMING, VALUES
from tensorexpress.workload import Layer, Workload


def layer_of(name: str, table: SparseTable) -> Layer:
    """Return a layer that is a table, and nothing else."""
    return Layer(name, table.params, 10**6, 10**6, *astuple(table))


TABLE = SparseTable(keys=10_000, width=16, lookups=2_000, skew=1.05)
MODEL = Workload(
    "mine",
    (
        Layer("below", 3_000, 10**6, 10**6),
        layer_of("embed", TABLE),
    ),
)


def loads_of(table: SparseTable, exchange: RowExchange) -> NDArray[np.float64]:
    """Return what a worker's and a server's link carry of a table, by packets of hot rows from none to all."""
    choices = range(exchange.packets_for(table.keys) + 1)
    heat = ZipfHeat(table)
    each = [traffic(heat, exchange, packets) for packets in choices]
    return np.array([(load.worker_bytes, load.server_bytes / exchange.servers) for load in each])


#: Nothing but tensors is on links.
BARE = {"window": 0, "acks": False}


def scenario_of(model: Workload = MODEL, **sections: Any) -> Scenario:
    """Return a scenario of 8 workers and 4 servers in which no packet waits for another's acknowledgement."""
    cluster = {"buffer": 0, **sections.pop("cluster", {})}
    job = {"model": model, "shard": 0, **sections.pop("job", {})}
    return make_scenario(cluster=cluster, job=job, transport=BARE, iterations=1, warmup=0, **sections)


class TestRows:
    @pytest.mark.parametrize("workers", [2, 8, 64])
    @pytest.mark.parametrize("table", [TABLE, replace(TABLE, skew=0.0), replace(TABLE, width=300, keys=400)])
    def test_of_one_table_are_as_good_as_the_best_of_all_choices(self, table: SparseTable, workers: int) -> None:
        """Memory does not count: rows take turns in slots."""
        model = Workload("table", (layer_of("embed", table),))
        scenario = scenario_of(model, job={"workers": workers}, cluster={"switch_memory": 8 * SLOT_BYTES})
        exchange = exchange_of(scenario.jobs[0], table, scenario.cluster)
        costs = link_cost(*loads_of(table, exchange).T)
        (rows,) = hot_rows_of(scenario.jobs[0], scenario.cluster)
        assert costs[exchange.packets_for(rows)] <= 1.01 * costs.min()

    def test_of_two_tables_are_as_good_as_the_best_of_all_choices(self) -> None:
        """Beside a dense layer, which loads a worker's link more than a server's."""
        tables = (replace(TABLE, keys=600), replace(TABLE, keys=2_000, skew=0.7, width=40))
        layers = (Layer("dense", 30_000, 0, 0), *(layer_of(f"embed{i}", table) for i, table in enumerate(tables)))
        scenario = scenario_of(Workload("both", layers))
        job, cluster = scenario.jobs[0], scenario.cluster
        loads = [loads_of(table, exchange_of(job, table, cluster)) for table in tables]
        dense = -(-30_000 // VALUES) * SUM_FRAMING.full_packet_bytes * np.array([1, 1 / len(job.servers)])
        totals = dense + loads[0][:, None] + loads[1][None]
        costs = link_cost(totals[:, :, 0], totals[:, :, 1])
        each = zip(tables, hot_rows_of(job, cluster)[1:], strict=True)
        place = tuple(exchange_of(job, table, cluster).packets_for(rows) for table, rows in each)
        assert costs[place] <= 1.01 * costs.min()
        assert costs.min() < 0.95 * min(costs[0, 0], costs[-1, -1])

    @pytest.mark.parametrize(("rows", "expected"), [(0, (0, 0)), (96, (0, 96)), (10_000, (0, 10_000))])
    def test_are_those_that_a_job_says(self, rows: int, expected: tuple[int, ...]) -> None:
        scenario = scenario_of(job={"hot_rows": rows})
        assert hot_rows_of(scenario.jobs[0], scenario.cluster) == expected
        for policy in ("libra", "switchml", "atp"):
            assert make_plan(scenario, parse_policy(policy)).jobs[0].hot_rows == expected

    def test_of_a_small_table_are_all(self) -> None:
        layers = (*MODEL.layers, Layer("small", 800, 0, 0, 50, 16, 100, 1.0))
        scenario = scenario_of(Workload("both", layers), job={"hot_rows": 96})
        assert hot_rows_of(scenario.jobs[0], scenario.cluster) == (0, 96, 50)


class TestBytes:
    @pytest.mark.parametrize("rows", ["auto", 0, 16, 512, 10_000])
    def test_on_links_are_what_the_verb_computes(self, rows: int | str) -> None:
        """Of the table alone; cold rows are whole, and every message has headers of its own."""
        scenario = scenario_of(Workload("table", MODEL.layers[1:]), job={"hot_rows": rows})
        plan = make_plan(scenario, parse_policy("libra"))
        job, links = plan.jobs[0], simulate(plan, "fast").links["bytes"]
        exchange = exchange_of(job.job, TABLE, scenario.cluster)
        computed = traffic(ZipfHeat(TABLE), exchange, exchange.packets_for(job.hot_rows[0]))
        assert computed.hot == job.hot_rows[0]
        sources = scenario.cluster.directed().source
        worker_bytes = [links[sources.index(host)] for host in job.job.workers]
        server_bytes = sum(links[sources.index(host) ^ 1] for host in job.job.servers)
        of_a_row = exchange.cold_row_bytes / 2 + 4 * plan.framing.header_bytes
        assert worker_bytes == [pytest.approx(computed.worker_bytes, abs=of_a_row)] * 8
        assert server_bytes == pytest.approx(computed.server_bytes, abs=8 * of_a_row)

    @settings(max_examples=30)
    @given(plans(disturbed=False, sums=("pool", "front"), sparse=True))
    def test_on_links_are_hot_rows_once_for_all_and_cold_ones_for_every_worker(self, plan: Plan) -> None:
        plan = make_plan(
            replace(plan.scenario, transport=replace(plan.scenario.transport, copy_rate_bps=0)), plan.policy
        )
        expected = np.zeros(2 * len(plan.scenario.cluster.links), dtype=np.int64)
        for job in plan.jobs:
            layers, width = job.job.workload.layers, job.job.workload.bytes_per_param
            values = sum(
                -(-layer.dense_values(rows) // VALUES) for layer, rows in zip(layers, job.hot_rows, strict=True)
            )
            assert values == sum(packets for _, packets in job.packets)
            cold = [layer.cold_bytes(width, rows) for layer, rows in zip(layers, job.hot_rows, strict=True)]
            assert sum(piece.bytes for piece in job.others) == sum(cold)
            for tree in job.sums:
                packets = sum(pool.packets_per_iteration for pool in tree.pools)
                for link in tree.links:
                    expected[[link, link ^ 1]] += packets * SUM_FRAMING.full_packet_bytes
            for piece in job.others:
                for worker in job.job.workers:
                    for way in ((worker, piece.server), (piece.server, worker)):
                        expected[list(plan.paths.between(*way))] += plan.framing.wire_bytes(piece.bytes)
        carried = np.zeros_like(expected)
        for job in plan.jobs:
            for each in carried_bytes(job, plan.scenario, plan.paths):
                carried[each.link] += (each.shared + each.own).sum()
        assert np.array_equal(carried, expected)
        trace = simulate(plan, "fast")
        assert (trace.links["bytes"] >= expected * plan.scenario.rounds).all()
        if not trace.retransmissions:
            assert np.array_equal(trace.links["bytes"], expected * plan.scenario.rounds)
            assert trace.transmissions == transmissions_of(build(plan))


class TestGain:
    def test_is_that_of_the_busiest_link(self) -> None:
        """Where the network is all that takes time, and pieces are small enough to be on all links at once."""
        scenario = scenario_of(Workload("table", MODEL.layers[1:]), cluster={"bandwidth": "1 Gbps"})
        policies = [parse_policy(text) for text in ("fifo:slice=1 KB", "libra:slice=1 KB")]
        before, after = (simulate(make_plan(scenario, policy), "fast").jobs[0] for policy in policies)
        heat, exchange = ZipfHeat(TABLE), exchange_of(scenario.jobs[0], TABLE, scenario.cluster)
        busiest = [
            traffic(heat, exchange, exchange.packets_for(rows)).busiest_bytes
            for rows in (0, *hot_rows_of(scenario.jobs[0], scenario.cluster))
        ]
        took = [int(job.updated_ps.max() - job.gradient_ps.min()) for job in (before, after)]
        assert took[0] / took[1] == pytest.approx(busiest[0] / busiest[1], rel=0.1)

    def test_of_a_zoo_model_is_there_with_every_way_to_sum(self) -> None:
        """Most bytes of this one are rows; the bound of each way is for what it sends itself."""
        model = Workload("tables", tuple(replace(MODEL.layers[1], name=f"embed{i}") for i in range(3)))
        scenario = make_scenario(job={"model": model}, iterations=1)
        compared = predict(scenario, ["fifo", "libra", "switchml", "atp"])
        for name in ("libra", "switchml", "atp"):
            assert compared.speedup(name) > 1.2
            assert 0 < compared.of_optimal(name) <= 1


class TestPlanFiles:
    @settings(max_examples=30)
    @given(plans(sums=SUMMED, sparse=True))
    def test_give_back_what_was_planned(self, plan: Plan) -> None:
        assert plan_from_json(plan_to_json(plan)) == plan

    @pytest.mark.parametrize(
        ("column", "place", "value", "message"),
        [
            ("summed", 0, False, "summed holds true behind false; accepted: first those that switches sum"),
            ("summed", -1, True, "summed holds true behind false"),
            ("summed", 0, 1, "slices.summed.0 is 1; accepted: bool"),
            ("bytes", 1, 64 * 10_001, "slices hold 10081 rows of tensor 1; accepted: the 10000 of its table"),
            ("bytes", 1, 1025, "slices hold 6145 bytes of tensor 1; accepted: its 6144 bytes"),
            ("bytes", -1, 8, "bytes of tensor 1; accepted: its"),
            ("server", -1, 0, "slices.server holds 0; accepted: who sums for job0"),
        ],
    )
    def test_with_other_parts_are_refused_by_name(self, column: str, place: int, value: object, message: str) -> None:
        document = plan_to_json(make_plan(scenario_of(job={"hot_rows": 96}), parse_policy("libra")))
        document["jobs"][0]["slices"][column][place] = value
        with pytest.raises(PlanError) as refusal:
            plan_from_json(document)
        assert message in str(refusal.value)

    def test_without_switches_that_sum_say_so_of_no_slice(self) -> None:
        document = plan_to_json(make_plan(scenario_of(), parse_policy("fifo")))
        document["jobs"][0]["slices"]["summed"][0] = True
        with pytest.raises(PlanError, match="summed holds true; accepted: false for all, as no switch sums"):
            plan_from_json(document)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


class TestRefusals:
    @pytest.mark.parametrize(
        ("model", "rows", "message"),
        [
            (MODEL, 10_001, "job.hot_rows: found 10001; accepted: auto, or 0 to the 10000 of the largest table"),
            ("resnet50", 5, "job.hot_rows: found 5, and no layer is a sparse table; accepted: auto, or 0"),
            (MODEL, -1, "job.hot_rows: found -1; accepted: auto, or a whole number from 0 to"),
            (MODEL, "some", "job.hot_rows: found 'some'; accepted: auto, or a whole number from 0 to"),
            (MODEL, True, "job.hot_rows: found True; accepted: auto, or a whole number from 0 to"),
        ],
    )
    def test_of_rows_say_what_there_is(self, model: Workload | str, rows: object, message: str) -> None:
        with pytest.raises(InputError) as refusal:
            make_scenario(job={"model": model, "hot_rows": rows})
        assert message in str(refusal.value)

    def test_of_too_little_memory_say_how_much_is_needed(self) -> None:
        result = run(
            "plan", "--policy", "libra", "--set", "job.model=dlrm-sparse", "--set", "cluster.switch_memory=4 KB"
        )
        assert result.exit_code == 2
        assert "accepted: a cluster.switch_memory of" in result.stderr

    @settings(max_examples=20)
    @given(sparse_workloads())
    def test_are_none_of_what_the_whole_range_allows(self, workload: Workload) -> None:
        for rows in ("auto", 0, max(layer.keys for layer in workload.layers)):
            plan = make_plan(scenario_of(workload, job={"hot_rows": rows}), parse_policy("libra"))
            assert all(
                0 <= own <= layer.keys for own, layer in zip(plan.jobs[0].hot_rows, workload.layers, strict=True)
            )
