"""Real runs in clusters that change: workers, hosts and switches do at every time what the scenario says."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from support.network import needs_root
from support.thorough import rest
from support.training_run import check_consistent, small_plan

from tensorexpress.bound import make_demand
from tensorexpress.calibration import Calibration, calibrate_plan
from tensorexpress.errors import InputError
from tensorexpress.host.scheduler import Scheduler
from tensorexpress.plan import make_plan
from tensorexpress.policy import POLICIES
from tensorexpress.scenario import read_scenario
from tensorexpress.switch.loop import LoopSettings
from tensorexpress.switch.ports import SocketSpec
from tensorexpress.switch.traffic import PortSettings
from tensorexpress.target.bmv2 import Bmv2Target
from tensorexpress.target.embedded import EmbeddedTarget, SupervisedSwitch
from tensorexpress.target.linux import LinuxTarget
from tensorexpress.target.runner import check_changes, run_plan
from tensorexpress.trace import JobTrace, iterations_ps
from tensorexpress.wire.udp import lay_wire

pytestmark = pytest.mark.usefixtures("one_nursery")

WIRES = EmbeddedTarget(wires=True)
MS = 10**9


def backward_lengths(job: JobTrace) -> np.ndarray:
    """Return how long backward layers took, all but the first of the model, by when the next one started."""
    return -np.diff(job.backward_start_ps, axis=2)


@rest()
def test_a_worker_straggles_from_a_time_until_another_in_a_run_too(tmp_path: Path) -> None:
    keys = ("change.worker=h1", "change.factor=3", "change.at=20 ms", "change.until=200 ms", "iterations=16")
    plan = small_plan(tmp_path, *keys, scale=0.1)
    (job,) = run_plan(plan, WIRES).trace.jobs
    # Layers take 2 ms, and those that started meanwhile 6 ms, each by the clock of its worker.
    started = job.backward_start_ps[:, 1, 1:]
    slow = (started >= 20 * MS) & (started < 200 * MS)
    assert slow.any()
    assert not slow.all()
    assert (backward_lengths(job)[:, 1] == np.where(slow, 6 * MS, 2 * MS)).all()
    assert (backward_lengths(job)[:, 0] == 2 * MS).all()
    assert (job.backward_ps[:, 1, 1:] == backward_lengths(job)[:, 1]).all()


def test_a_worker_straggles_for_an_iteration_in_a_run_too(tmp_path: Path) -> None:
    keys = ("change.worker=h0", "change.factor=2", "change.at_iteration=1", "change.until_iteration=2")
    (job,) = run_plan(small_plan(tmp_path, *keys, scale=0.1), WIRES).trace.jobs
    assert (backward_lengths(job)[:, 0] == np.array([2, 4, 2])[:, None] * MS).all()
    assert (backward_lengths(job)[:, 1] == 2 * MS).all()


def longest_link_ps(plan_directory: Path, *keys: str) -> int:
    return make_demand(small_plan(plan_directory, *keys), 0).busiest_ps


@rest(but=2)
@pytest.mark.parametrize("link", ["h2>s0", "s0>h2"])
@pytest.mark.parametrize("target", [WIRES, pytest.param(LinuxTarget(), marks=needs_root)], ids=["embedded", "linux"])
def test_a_link_that_gets_slower_carries_no_more_than_its_rate(
    link: str, target: EmbeddedTarget, tmp_path: Path
) -> None:
    """Of the server, both ways in turn: what a host sends, and what its switch does."""
    keys = (f"change.link={link}", "change.rate=10 Mbps")
    run = run_plan(small_plan(tmp_path, *keys), target)
    check_consistent(run)
    slow_ps, usual_ps = longest_link_ps(tmp_path, *keys), longest_link_ps(tmp_path)
    assert slow_ps > 3 * usual_ps
    # However busy the machine is, it cannot be faster; but for what links make up for.
    assert iterations_ps(run.trace.jobs[0]).mean() > 0.8 * slow_ps


@rest()
def test_a_link_that_is_faster_at_last_is_so_in_the_switch(tmp_path: Path) -> None:
    seen = {}
    keys = ("change.link=s0-h2", "change.share=0.25", "change.at=10 ms", "change.until=40 ms")

    def looked_at(network, pids):
        (seen["switch"],) = network.switches.values()

    run_plan(small_plan(tmp_path, *keys), WIRES, started=looked_at)
    # It was given the slow rate, and its own again.
    rates = {number: queues.rate_bps for number, (_, queues) in seen["switch"].settings.ports.items()}
    assert set(rates.values()) == {40 * 10**6}


def test_a_switch_that_is_started_again_keeps_the_rate_that_it_was_given(tmp_path: Path) -> None:
    (here, there) = lay_wire()
    with here as own, there:
        ports = {0: (SocketSpec(own.fileno()), PortSettings(rate_bps=10**6))}
        switch = SupervisedSwitch(LoopSettings(ports), f"unix:{tmp_path}/0.sock")
        try:
            switch.set_rate(0, 5 * 10**5)
            first = switch.running
            os.kill(first.data_path.pid, signal.SIGKILL)
            first.wait()
            # Also while it is gone.
            switch.set_rate(0, 2 * 10**5)
            assert switch.settings.ports[0][1].rate_bps == 2 * 10**5
        finally:
            switch.stop()


def test_a_host_sends_at_its_new_rate_and_what_was_sent_at_its_old_one() -> None:
    class Always:
        """A flow that always has a segment of 1000 bytes to send."""

        served, full_bytes, free_of_credit = 0, 1000, True

        def head(self):
            return (False, 0)

        def next_burst(self, now_ps, most):
            return type("Sent", (), {"wire_bytes": 1000})

    scheduler = Scheduler(rate_bps=8 * 10**6)
    scheduler.activate(Always())
    scheduler.next_burst(10**12, 1)
    assert scheduler.next_free_ps(10**12) == 10**12 + MS
    scheduler.set_rate(4 * 10**6)
    assert scheduler.next_free_ps(10**12) == 10**12 + MS
    scheduler.next_burst(10**12 + MS, 1)
    assert scheduler.next_free_ps(10**12 + MS) == 10**12 + 3 * MS


def test_a_target_that_keeps_its_rates_refuses_changes_of_links_with_the_key() -> None:
    def plan(*keys: str):
        return make_plan(read_scenario(overrides=["change.0.worker=h0", "change.0.factor=2", *keys]), POLICIES["fifo"])

    links = plan("change.1.link=h0-s0", "change.1.share=0.5")
    with pytest.raises(
        InputError, match=r"default: change\.1\.link: the target bmv2 keeps the rates of links; accepted"
    ):
        check_changes(links, Bmv2Target())
    for target in (WIRES, LinuxTarget()):
        check_changes(links, target)
    check_changes(plan(), Bmv2Target())


def test_what_a_target_reaches_of_a_rate_it_reaches_of_a_changed_one() -> None:
    keys = ("change.0.link=h0-s0", "change.0.rate=10 Mbps", "change.1.link=h1-s0", "change.1.share=0.5")
    plan = make_plan(read_scenario(overrides=["cluster.bandwidth=20 Mbps", *keys]), POLICIES["fifo"])
    calibration = Calibration("embedded", 20 * 10**6, 0.9, 0, 0, 0, 0, 0, 0)
    steps = calibrate_plan(plan, calibration).scenario.rate_steps()
    assert [step.value for step in steps] == [9 * 10**6] * 4
