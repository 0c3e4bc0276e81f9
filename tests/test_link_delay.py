"""Delays of links in real runs: each direction has its own exactly once, in switches of both engines."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.thorough import rest
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
from tensorexpress.switch.emulated_cable import CableSettings, DelayLine, EmulatedCable, arrivals
from tensorexpress.target.embedded import EmbeddedTarget, emulated_cables
from tensorexpress.target.linux import LinuxTarget
from tensorexpress.target.machine import MachineWatch
from tensorexpress.target.runner import Run, run_plan
from tensorexpress.topologies import custom, star

pytestmark = pytest.mark.usefixtures("one_nursery")

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


@pytest.mark.parametrize("wires", [True, False])
def test_every_direction_of_a_link_has_its_delay_once(wires: bool) -> None:
    plan = chain("1 ms", "2 ms", "4 ms", "0")
    cluster, emulated = plan.scenario.cluster, emulated_cables(plan, wires=wires)
    port_of = {link: emulated.get(name, {}).get(port, CableSettings())
               for name in cluster.switches for port, link in cluster.ports(name).items()}  # fmt: skip
    for link, delay_ps in enumerate(cluster.directed().delay_ps):
        leaving, arriving = port_of.get(link), port_of.get(link ^ 1)
        parts = [leaving.leaving_ps if leaving else 0, arriving.arriving_ps if arriving else 0]
        assert sorted(parts) == [0, delay_ps]
        # Both ends have to agree on what is on the wire; hosts say when they sent something, and are not told.
        if leaving is None:
            assert arriving is not None
            assert arriving.arriving_stamped == (wires and delay_ps > 0)
        else:
            assert leaving.leaving_stamped == (arriving is not None and delay_ps > 0)
            assert arriving is None or arriving.arriving_stamped == leaving.leaving_stamped


def test_delays_that_machines_add_themselves_cost_nothing() -> None:
    short, least = (planned(star(3, delay=delay_ps)) for delay_ps in (LEAST_EMULATED_PS - 1, LEAST_EMULATED_PS))
    assert emulated_cables(short, wires=True) == {}
    assert len(emulated_cables(least, wires=True)["s0"]) == 3


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 20))), st.integers(0, 30))
def test_frames_stay_in_order_and_are_there_when_their_delay_is_over(
    steps: list[tuple[int, int, int]], delay: int
) -> None:
    line, now, due, taken = DelayLine(delay), 0, [0], []
    for number, (sent_after, looked_after, known_after) in enumerate(steps):
        now += sent_after
        line.put(number.to_bytes(2, "big"), now - known_after)
        # One that was sent before the last is no sooner there than that.
        due.append(max(due[-1], now - known_after + delay))
        now += looked_after
        taken += line.take(now)
        assert len(taken) == sum(time <= now for time in due[1:])
        assert line.next_ps == (due[len(taken) + 1] if len(taken) + 1 < len(due) else None)
    assert taken == [(due[number + 1], number.to_bytes(2, "big")) for number in range(len(taken))]


def test_frames_arrive_when_they_had_to_however_late_a_switch_looks() -> None:
    cables = {port: EmulatedCable(CableSettings(arriving_ps=delay_ps), port) for port, delay_ps in ((1, 10), (2, 4))}
    for port, sent_ps in ((1, 0), (1, 5), (2, 3), (2, 9), (2, 60)):
        cables[port].arriving.put(b"%d of %d" % (sent_ps, port), sent_ps)
    assert arrivals(cables, 0, 40) == [(2, b"3 of 2", 7), (1, b"0 of 1", 10), (2, b"9 of 2", 13), (1, b"5 of 1", 15)]
    # Word of one comes when the switch has done all until 40 already.
    cables[1].arriving.put(b"late", 20)
    assert arrivals(cables, 40, 70) == [(1, b"late", 40), (2, b"60 of 2", 64)]


@rest(but=1)
@pytest.mark.parametrize("engine", [PYTHON, NATIVE])
def test_no_tensor_is_there_before_its_links_let_it(engine: str, tmp_path: Path) -> None:
    keys = ("cluster.topology=dumbbell", "cluster.left=2", "cluster.right=1", "iterations=1", "cluster.delay=30 ms")
    run = run_plan(small_plan(tmp_path, *keys, scale=0.1), EmbeddedTarget(wires=True, engine=engine))
    check_consistent(run)
    transfers = run.trace.jobs[0].transfers
    # Not since it was sent: what a host sends late counts from when it had to leave.
    took_ps = transfers["delivered_ps"] - transfers["ready_ps"]
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
