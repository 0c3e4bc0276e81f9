"""Losses of a scenario's links in real runs: each direction of each link loses its share, and sums stay exact."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support.thorough import rest
from support.training_run import check_consistent, small_plan

from tensorexpress.cli.run_notes import notes_on
from tensorexpress.errors import InputError
from tensorexpress.plan import Plan, make_plan
from tensorexpress.policy import POLICIES
from tensorexpress.scenario import read_scenario
from tensorexpress.switch.counted import LOST_ON_CABLE
from tensorexpress.switch.emulated_cable import CableSettings, EmulatedCable
from tensorexpress.switch.faults import Faults
from tensorexpress.target.bmv2 import Bmv2Target
from tensorexpress.target.embedded import EmbeddedTarget, emulated_cables, faults_of
from tensorexpress.target.linux import LinuxTarget
from tensorexpress.target.runner import check_loss, run_plan

pytestmark = pytest.mark.usefixtures("one_nursery")

DUMBBELL = ("cluster.topology=dumbbell", "cluster.left=2", "cluster.right=1", "job.workers=2", "job.servers=1")


def planned(*keys: str) -> Plan:
    return make_plan(read_scenario(overrides=[*DUMBBELL, *keys]), POLICIES["fifo"])


@rest(but=1)
def test_every_sum_is_exact_though_each_direction_of_each_link_loses(tmp_path: Path) -> None:
    keys = ("loss=0.1", "cluster.mtu=1500", "transport.rto_min=20 ms", "iterations=2")
    run = run_plan(small_plan(tmp_path, *DUMBBELL, *keys, scale=0.3), EmbeddedTarget(wires=True))
    check_consistent(run)
    assert run.trace.retransmissions > 0
    # Hundreds of packets cross every link both ways.
    assert (run.trace.links["losses"] > 0).all()
    lost = sum(report.faults.get("loss", 0) + report.drops.get(LOST_ON_CABLE, 0) for report in run.ports)
    assert run.trace.links["losses"].sum() == lost
    assert f"- Under tensorexpress, frames harmed on purpose: loss {lost}." in notes_on([run], EmbeddedTarget())


def test_what_goes_to_hosts_is_lost_on_its_cable_and_all_else_where_it_arrives() -> None:
    plan = planned("loss=0.25")
    cluster = plan.scenario.cluster
    assert [faults_of(plan, Faults(), switch).loss for switch in (0, 1)] == [0.25, 0.25]
    to_hosts = {
        (name, port)
        for name in cluster.switches
        for port, link in cluster.ports(name).items()
        if cluster.directed().target[link] < len(cluster.hosts)
    }
    found = {
        (name, port): cable
        for name, ports in emulated_cables(plan, wires=True).items()
        for port, cable in ports.items()
    }
    assert found.keys() == to_hosts
    assert {cable.leaving_loss for cable in found.values()} == {0.25}


def test_losses_come_on_top_of_faults_and_are_drawn_anew_at_every_switch() -> None:
    faults = Faults(loss=0.5, duplicate=0.1)
    assert faults_of(planned(), faults, 0) is faults
    both = [faults_of(planned("loss=0.5"), faults, switch) for switch in (0, 1)]
    assert {(each.loss, each.duplicate) for each in both} == {(0.75, 0.1)}
    assert both[0].seed != both[1].seed


def test_a_cable_loses_its_share() -> None:
    cable = EmulatedCable(CableSettings(leaving_loss=0.2, seed=3), port=1)
    lost = np.array([cable.loses() for _ in range(10_000)])
    # Five standard deviations.
    assert abs(lost.mean() - 0.2) < 5 * (0.2 * 0.8 / 10_000) ** 0.5
    assert Counter(EmulatedCable(CableSettings(), port=1).loses() for _ in range(100)) == {False: 100}


@pytest.mark.parametrize("target", [LinuxTarget(), Bmv2Target()])
def test_a_target_that_cannot_lose_packets_says_so(target: LinuxTarget | Bmv2Target) -> None:
    with pytest.raises(InputError, match=rf"default: loss is 0\.1, and links of the target {target.name} lose nothing"):
        check_loss(planned("loss=0.1"), target)
    check_loss(planned(), target)
    check_loss(planned("loss=0.1"), EmbeddedTarget())
