"""Training whose gradients switches sum, with whole hosts in virtual time: every update is exact, and told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.summing_switch import ReferenceSwitch, SummingNetwork
from support.training_run import small_plan
from support.virtual_network import FAULTLESS, Faults, VirtualLink

from tensorexpress.errors import InputError, NetworkError
from tensorexpress.host.process import check_runnable, jobs_of, peers_of
from tensorexpress.host.summing import PoolExchange, child_number
from tensorexpress.host.training import Station, host_settings
from tensorexpress.host.worker import Worker
from tensorexpress.plan import Plan

MS = 10**9
STATED = Faults(loss=0.1, duplication=0.05, reordering=0.1, corruption=0.01)
LEAF_SPINE = ["cluster.topology=leaf-spine", "cluster.leaves=2", "cluster.spines=1", "cluster.hosts_per_leaf=2"]


def summed_plan(directory: Path, *overrides: str, policy: str = "switchml", scale: float = 0.1) -> Plan:
    usual = ["job.workers=3", "job.servers=0", "job.architecture=ring", "iterations=3"]
    return small_plan(directory, *usual, *overrides, policy=policy, scale=scale)


class Training:
    """The hosts of a plan, and its switches, in virtual time."""

    def __init__(self, plan: Plan, faults: Faults = FAULTLESS, seed: int = 0):
        self.plan, self.network = plan, SummingNetwork(faults, seed)
        cluster = plan.scenario.cluster
        for number, job in enumerate(plan.jobs):
            directed = cluster.directed()
            assert job.sums is not None
            for switch in job.sums.switches:
                children = [self._address(directed.source[link], number) for link in switch.children]
                above = None
                if switch.up >= 0:
                    parent = next(each for each in job.sums.switches if switch.up in each.children)
                    above = (self._address(directed.target[switch.up], number), parent.children.index(switch.up))
                node = len(cluster.hosts) + switch.switch
                ReferenceSwitch(self.network, self._address(node, number), children, above=above, job=number)
        self.stations, self.workers = [], []
        for host in range(len(cluster.hosts)):
            for job in jobs_of(plan, host):
                self._join(host, job)

    def _address(self, node: int, job: int = 0) -> tuple[str, int]:
        """Return the address of a host, or of that of a switch in which a job is summed."""
        is_host = node < len(self.plan.scenario.cluster.hosts)
        return f"10.0.0.{node + 1}", 21592 if is_host else job

    def _join(self, host: int, job: int) -> None:
        names = self.plan.scenario.cluster.hosts
        station = Station(
            names[host],
            VirtualLink(self.network, self._address(host)),
            {names[peer]: self._address(peer) for peer in peers_of(self.plan, host)},
            host_settings(self.plan, host, job, silence_ps=10**13),
            session=1,
            clock_ps=self.network.clock_ps,
        )
        exchange = PoolExchange(station, self.plan, job, host, target=self._address(0), epoch=5)
        index = self.plan.jobs[job].job.workers.index(host)
        worker = Worker(station, self.plan, job, index, exchange)
        worker.start(0)
        self.stations.append(station)
        self.workers.append(worker)

    def run(self) -> None:
        endpoints: list[Any] = [station.endpoint for station in self.stations]
        self.network.run(endpoints, lambda: all(worker.done for worker in self.workers), most_events=10**6)


@pytest.mark.parametrize("policy", ["switchml", "tensorexpress+sum"])
@pytest.mark.parametrize(("overrides", "levels"), [([], 1), ([*LEAF_SPINE, "job.workers=4"], 3)])
@pytest.mark.parametrize("faults", [FAULTLESS, STATED], ids=["faultless", "faults"])
def test_every_update_is_exact_and_told(
    tmp_path: Path, policy: str, overrides: list[str], levels: int, faults: Faults
) -> None:
    plan = summed_plan(tmp_path, *overrides, policy=policy)
    training = Training(plan, faults)
    assert len(training.network.switches) == levels
    training.run()
    for worker, station in zip(training.workers, training.stations, strict=True):
        assert (worker.updated_ps > 0).all()
        seen = station.transfers[0].arrays()
        graph = plan.jobs[0].graph
        own = np.flatnonzero((graph.src == worker.index) | (graph.dst == worker.index))
        for rows in seen.values():
            expected = {(iteration, number) for iteration in range(4) for number in own.tolist()}
            assert {(iteration, number) for iteration, number, _ in rows.tolist()} == expected
        assert (seen["ready"] <= seen["sent"]).all()
        assert (seen["sent"] <= seen["delivered"]).all()
    harmed = training.network.carried > 0 and sum(station.endpoint.retransmissions for station in training.stations)
    assert bool(harmed) == (faults is STATED)


def test_hosts_of_several_jobs_in_one_switch_and_types_of_two_bytes(tmp_path: Path) -> None:
    jobs = ["job.0.workers=h0,h1", "job.1.model=", f"job.1.csv={tmp_path / 'layers.csv'}", "job.1.workers=h2,h3"]
    overrides = [*jobs, "job.1.servers=0", "job.1.architecture=ring", "job.0.dtype=bf16"]
    Training(
        small_plan(tmp_path, "job.0.servers=0", "job.0.architecture=ring", *overrides, policy="switchml", scale=0.1)
    )


def test_a_wrong_sum_is_an_error(tmp_path: Path) -> None:
    training = Training(summed_plan(tmp_path))
    gradients = training.stations[0]._roles[0, 4]._gradients  # type: ignore[attr-defined]
    gradients._sums = gradients._sums + 1
    with pytest.raises(
        NetworkError, match=r"h0: in iteration 0, .* from the switch is not the sum of all gradients: el"
    ):
        training.run()


def test_children_have_the_numbers_that_switches_know_them_by(tmp_path: Path) -> None:
    plan = summed_plan(tmp_path, *LEAF_SPINE, "job.workers=4")
    sums = plan.jobs[0].sums
    assert sums is not None
    assert [child_number(plan, sums, host) for host in range(4)] == [0, 1, 0, 1]
    assert [peers_of(plan, host) for host in range(4)] == [{1, 2, 3}, {0}, {0}, {0}]


@pytest.mark.parametrize(("overrides", "message"), [
    (["job.gpus_per_host=2"], "job0 has 2 workers on a host; accepted with sum=pool: one; only predict can have more"),
    (["job.workers=65", "cluster.topology=leaf-spine", "cluster.leaves=5", "cluster.spines=1",
      "cluster.hosts_per_leaf=13"], "job0 has 65 workers; accepted with sum=pool: 64 at most"),
])  # fmt: skip
def test_what_hosts_cannot_do_with_sums_is_refused(overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        check_runnable(summed_plan(tmp_path, *overrides))


def test_plans_with_sums_can_be_run(tmp_path: Path) -> None:
    check_runnable(summed_plan(tmp_path))
