"""Delays of links in real runs: each direction has its own exactly once, in switches of both engines."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.training_run import check_consistent, small_plan

from tensorexpress import emulation
from tensorexpress.calibration import Calibration, calibrate_plan
from tensorexpress.cli.run_notes import notes_on
from tensorexpress.emulation import LEAST_EMULATED_PS
from tensorexpress.plan import Plan, make_plan
from tensorexpress.policy import POLICIES
from tensorexpress.program_engines import NATIVE, PYTHON
from tensorexpress.scenario import make_scenario
from tensorexpress.switch import emulated_cable
from tensorexpress.switch.emulated_cable import CableSettings, DelayLine
from tensorexpress.target.embedded import EmbeddedTarget, emulated_cables
from tensorexpress.target.linux import LinuxTarget
from tensorexpress.target.machine import MachineWatch
from tensorexpress.target.runner import Run, run_plan
from tensorexpress.topologies import custom, star

MS = 10**9


@pytest.mark.parametrize("module", [emulation, emulated_cable])
def test_examples_in_the_documentation_hold(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


def planned(cluster: object) -> Plan:
    job = {"model": "alexnet", "workers": 2, "servers": 1}
    return make_plan(make_scenario(cluster=cluster, job=job), POLICIES["fifo"])


def chain(*delays: str) -> Plan:
    """Return a plan on three hosts at two switches, with a delay for every link."""
    ends = (("h0", "s0"), ("h1", "s0"), ("s0", "s1"), ("s1", "h2"))
    links = [(*both, "1 Gbps", delay) for both, delay in zip(ends, delays, strict=True)]
    return planned(custom(["h0", "h1", "h2"], ["s0", "s1"], links))


def test_every_direction_of_a_link_has_its_delay_once() -> None:
    plan = chain("1 ms", "2 ms", "4 ms", "0")
    cluster, emulated = plan.scenario.cluster, emulated_cables(plan)
    port_of = {link: emulated.get(name, {}).get(port, CableSettings())
               for name in cluster.switches for port, link in cluster.ports(name).items()}  # fmt: skip
    for link, delay_ps in enumerate(cluster.directed().delay_ps):
        leaving, arriving = port_of.get(link), port_of.get(link ^ 1)
        parts = [leaving.leaving_ps if leaving else 0, arriving.arriving_ps if arriving else 0]
        assert sorted(parts) == [0, delay_ps]


def test_delays_that_machines_add_themselves_cost_nothing() -> None:
    short, least = (planned(star(3, delay=delay_ps)) for delay_ps in (LEAST_EMULATED_PS - 1, LEAST_EMULATED_PS))
    assert emulated_cables(short) == {}
    assert len(emulated_cables(least)["s0"]) == 3


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50))), st.integers(0, 30))
def test_frames_stay_in_order_and_are_there_when_their_delay_is_over(steps: list[tuple[int, int]], delay: int) -> None:
    line, now, due, taken = DelayLine(delay), 0, [], []
    for number, (sent_after, looked_after) in enumerate(steps):
        now += sent_after
        line.put(number.to_bytes(2, "big"), now)
        due.append(now + delay)
        now += looked_after
        taken += line.take(now)
        assert len(taken) == sum(time <= now for time in due)
        assert line.next_ps == (due[len(taken)] if len(taken) < len(due) else None)
    assert taken == [number.to_bytes(2, "big") for number in range(len(taken))]


@pytest.mark.parametrize("engine", [PYTHON, NATIVE])
def test_no_tensor_is_there_before_its_links_let_it(engine: str, tmp_path: Path) -> None:
    keys = ("cluster.topology=dumbbell", "cluster.left=2", "cluster.right=1", "iterations=1", "cluster.delay=30 ms")
    run = run_plan(small_plan(tmp_path, *keys, scale=0.1), EmbeddedTarget(wires=True, engine=engine))
    check_consistent(run)
    transfers = run.trace.jobs[0].transfers
    took_ps = transfers["delivered_ps"] - transfers["sent_ps"]
    # A host's link, that between switches, and the other host's.
    assert took_ps.min() >= 3 * 30 * MS
    # If a link had its delay twice, however little the machine had to do.
    assert took_ps.min() < 4 * 30 * MS


def test_a_calibrated_prediction_has_the_delays_that_were_emulated() -> None:
    plan = chain("1 ms", "2 ms", "4 ms", "1 us")
    delays = {}
    for target in ("embedded", "linux"):
        calibration = Calibration(target, 10**9, 1.0, 2 * 10**6, 0, 10**6, 0, 0, 0)
        delays[target] = [link.delay_ps for link in calibrate_plan(plan, calibration).scenario.cluster.links]
    machine = [3 * 10**6 // 2, 3 * 10**6 // 2, 10**6, 3 * 10**6 // 2]
    assert delays["linux"] == machine
    assert delays["embedded"] == [own + ps for own, ps in zip(machine, (MS, 2 * MS, 4 * MS, 0), strict=True)]


def test_a_note_says_which_delays_a_target_does_not_emulate(tmp_path: Path) -> None:
    plan = small_plan(tmp_path, "cluster.delay=2 ms", scale=0.1)
    run = run_plan(plan, EmbeddedTarget(wires=True))
    seen = Run(plan, run.trace, run.ports, MachineWatch())
    said = "- The delay of links, up to 2 ms, is not emulated on the target linux; it is on embedded."
    assert said in notes_on([seen], LinuxTarget())
    assert not any("delay" in note for note in notes_on([seen], EmbeddedTarget()))
