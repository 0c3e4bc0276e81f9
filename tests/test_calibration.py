"""Calibrations: what the probe shows is what was there, and a calibrated prediction has it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from support.strategies import plans
from support.thorough import rest

from tensorexpress.baseline import FittedBaseline, fit_copy_rate, parse_baseline
from tensorexpress.calibration import (
    Calibration,
    HostCost,
    calibrate_plan,
    calibrate_scenario,
    fit,
    probe_plan,
    read_calibration,
    write_calibration,
)
from tensorexpress.cli import main
from tensorexpress.errors import InputError, NetworkError
from tensorexpress.host.cost import measure_host_cost
from tensorexpress.plan import Plan, make_plan
from tensorexpress.policy import POLICIES
from tensorexpress.scenario import Scenario, read_scenario
from tensorexpress.sim import simulate
from tensorexpress.target import speed
from tensorexpress.topologies import dumbbell, star
from tensorexpress.trace import measure_job

US = 10**6
MBPS = 10**6

CALIBRATION = Calibration(
    target="embedded",
    rate_bps=50 * MBPS,
    rate_share=0.98,
    host_packet_ps=100 * US,
    host_byte_ps=5000,
    switch_packet_ps=300 * US,
    switch_byte_ps=10_000,
    timer_ps=200 * US,
    paced_links=0,
)


@rest(but=1)
@settings(max_examples=25)
@given(
    share=st.floats(0.5, 1.0),
    host_us=st.integers(0, 300),
    switch_us=st.integers(0, 1000),
    byte_ns=st.integers(0, 50),
    paced_links=st.integers(0, 2),
    mtu=st.sampled_from([1500, 9000]),
    rate_bps=st.sampled_from([20 * MBPS, 50 * MBPS, 1000 * MBPS]),
)
def test_the_probe_finds_what_a_target_adds(
    share: float, host_us: int, switch_us: int, byte_ns: int, paced_links: int, mtu: int, rate_bps: int
) -> None:
    # A simulated target, whose timers are never late: all that it adds is in its links.
    real = replace(
        CALIBRATION,
        rate_bps=rate_bps,
        rate_share=share,
        host_packet_ps=host_us * US,
        switch_packet_ps=switch_us * US,
        host_byte_ps=0,
        switch_byte_ps=byte_ns * 1000,
        timer_ps=0,
        paced_links=paced_links,
    )
    plan = probe_plan(rate_bps, mtu)
    measured = simulate(calibrate_plan(plan, real))
    found = fit("embedded", plan, measured, simulate(plan), HostCost(host_us * US, 0))
    # The delay of a link does not depend on the packet: the probe cannot tell bytes from packets here.
    assert found.switch_byte_ps * mtu < 100_000
    assert found.paced_links == paced_links
    assert found.rate_share == pytest.approx(share, rel=0.01)
    assert found.host_packet_ps == pytest.approx(host_us * US, rel=0.01, abs=US)
    again = simulate(calibrate_plan(plan, found))
    for one, other in zip(measured.jobs, again.jobs, strict=True):
        latencies = [(job.updated_ps - job.gradient_ps).mean(axis=(0, 1)) for job in (one, other)]
        assert np.allclose(*latencies, rtol=0.01)


def delays_ps(scenario: Scenario) -> list[int]:
    return [link.delay_ps for link in scenario.cluster.links]


def test_a_way_over_one_switch_has_the_hosts_and_the_switch_once() -> None:
    scenario = replace(read_scenario(), cluster=star(12, "50 Mbps", "1 us", mtu=1500))
    near, far = delays_ps(calibrate_scenario(scenario, CALIBRATION))[:2]
    size = 1538
    assert near + far == (100 + 300 + 200 // 2) * US + size * 15_000


def test_a_way_over_two_switches_has_two() -> None:
    scenario = replace(read_scenario(), cluster=dumbbell(6, 6, "50 Mbps", mtu=1500))
    *hosts, trunk = delays_ps(calibrate_scenario(scenario, CALIBRATION))
    size = 1538
    assert hosts[0] + trunk + hosts[-1] == (100 + 2 * 300 + 200 // 2) * US + size * 25_000


@pytest.mark.parametrize(("paced_links", "host", "switch"), [(0, False, False), (1, True, False), (2, True, True)])
def test_those_links_are_paced_that_the_target_paces(paced_links: int, host: bool, switch: bool) -> None:
    scenario = replace(read_scenario(), cluster=dumbbell(6, 6, "50 Mbps", mtu=1500))
    cluster = calibrate_scenario(scenario, replace(CALIBRATION, paced_links=paced_links)).cluster
    assert {(link.a in cluster.hosts, *link.paced) for link in cluster.links} == {
        (True, host, switch),
        (False, switch, switch),
    }


@given(plans())
def test_what_was_decided_stays(plan: Plan) -> None:
    calibrated = calibrate_plan(plan, replace(CALIBRATION, rate_bps=10**11))
    assert calibrated.jobs == plan.jobs
    assert calibrated.policy == plan.policy
    assert calibrated.scenario.jobs == plan.scenario.jobs


def test_a_scenario_that_the_target_cannot_run_is_refused_with_the_factor() -> None:
    with pytest.raises(InputError) as refusal:
        calibrate_scenario(read_scenario(), CALIBRATION)
    assert str(refusal.value) == (
        "default: a link runs at 10 Gbps, and the target embedded was calibrated up to 50 Mbps; "
        "accepted: a scenario that it can run, as with --scale 200"
    )


def test_a_calibration_read_back_is_the_calibration(tmp_path: Path) -> None:
    write_calibration(tmp_path / "c.json", CALIBRATION)
    assert read_calibration(tmp_path / "c.json") == CALIBRATION


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"timer_ps": -1}, "timer_ps is -1; accepted: 0 to"),
        ({"timer_ps": True}, "timer_ps is True; accepted"),
        ({"rate_share": None}, "rate_share is None; accepted"),
        ({"rate_share": float("nan")}, "NaN is no number in JSON"),
        ({"rate_share": 9.0}, "accepted: 0.1 to 1.5"),
        ({"paced_links": 3}, "paced_links is 3; accepted: 0 to 2; make one with `tensorexpress calibrate`"),
        ({"colour": "red"}, "unknown key 'colour'"),
    ],
)
def test_a_calibration_that_is_wrong_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "c.json"
    write_calibration(path, CALIBRATION)
    document = json.loads(path.read_text())
    document["measured"] |= changes
    path.write_text(json.dumps(document))
    with pytest.raises(InputError) as refusal:
        read_calibration(path)
    assert message in str(refusal.value)
    assert str(refusal.value).startswith(f"{path}: ")


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": "tensorexpress calibration", "version": 1}'])
def test_a_file_that_holds_something_else_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(content)
    with pytest.raises(InputError, match="make one with `tensorexpress calibrate`"):
        read_calibration(path)


def test_predict_takes_a_calibration_and_a_scale(tmp_path: Path) -> None:
    write_calibration(tmp_path / "c.json", CALIBRATION)
    small = ["--set", "job.workers=2", "--set", "job.servers=1", "--set", "iterations=1", "--policy", "fifo"]
    given_file = ["--calibration", str(tmp_path / "c.json")]
    refused = CliRunner().invoke(main, ["predict", *small, *given_file])
    assert refused.exit_code == 2
    assert "--scale 200" in refused.output
    taken = CliRunner().invoke(main, ["predict", *small, *given_file, "--scale", "200", "--json", "-"])
    plain = CliRunner().invoke(main, ["predict", *small, "--scale", "200", "--json", "-"])
    times = [json.loads(result.output)["policies"]["fifo"]["latency_ms"]["first"] for result in (taken, plain)]
    assert times[0] > times[1]


@pytest.mark.parametrize("wires", [False, True])
def test_packets_cost_hosts_something(wires: bool) -> None:
    assert measure_host_cost(1500, wires).packet_ps > 0


@rest()
def test_the_verb_measures_a_target_and_writes_what_predict_takes(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    result = CliRunner().invoke(main, ["calibrate", "--mtu", "1500", "--iterations", "3", "-o", str(path)])
    assert result.exit_code == 0, result.output
    found = read_calibration(path)
    assert found.target == "embedded"
    assert "timers come late by" in result.output


@pytest.mark.parametrize("rate_bps", [10 * MBPS, 40 * MBPS, 100 * MBPS])
@pytest.mark.parametrize("mtu", [1500, 9000])
def test_nothing_of_the_probe_is_sent_twice_however_slow_its_links_are(rate_bps: int, mtu: int) -> None:
    """It waits longer behind itself than time-outs of a fast network last, and would make a link look slower."""
    assert simulate(probe_plan(rate_bps, mtu, iterations=1)).timeouts == 0


def test_what_cannot_have_been_measured_is_refused() -> None:
    plan = probe_plan(50 * MBPS, 1500, iterations=1)
    predicted = simulate(plan)
    job = predicted.jobs[0]
    hasty = replace(predicted, jobs=(replace(job, updated_ps=job.gradient_ps + np.arange(3)),))
    with pytest.raises(NetworkError, match="calibrate again when this machine has less else to do"):
        fit("embedded", plan, hasty, predicted, HostCost(0, 0))


@pytest.mark.parametrize(("rate", "said"), [("1 Tbps", "400 Mbps"), ("0 bps", "43 Mbps")])
def test_a_rate_that_the_target_cannot_have_is_refused(rate: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "known_bps", lambda target, load: 10**9)
    result = CliRunner().invoke(main, ["calibrate", "--rate", rate])
    assert result.exit_code == 2
    assert f"--rate {rate!r}; accepted: from 10 Mbps to the {said} that the target embedded" in result.output


VGG = ["job.model=vgg16", "job.batch=4", "job.workers=1", "job.servers=1", "cluster.bandwidth=25 Gbps", "iterations=1"]


class TestBaseline:
    @rest()
    def test_the_copy_rate_is_found_that_was_there(self, tmp_path: Path) -> None:
        known = read_scenario(overrides=[*VGG, "transport.copy_rate=7 Gbps"])
        trace = simulate(make_plan(known, POLICIES["fifo"]))
        measured_ms = measure_job(trace.jobs[0], trace.warmup).iteration_ps / 10**9
        path = str(tmp_path / "fitted.json")
        changes = [word for change in VGG for word in ("--set", change)]
        speed = f"fifo={measured_ms:.6f} ms"
        done = CliRunner().invoke(main, ["calibrate", *changes, "--baseline", speed, "-o", path])
        assert done.exit_code == 0, done.output
        fitted = read_calibration(path)
        assert isinstance(fitted, FittedBaseline)
        assert fitted.copy_rate_bps == pytest.approx(7 * 10**9, rel=0.01)
        # A prediction with it has the baseline, and the policies that the baseline does not explain.
        done = CliRunner().invoke(
            main, ["predict", *changes, "--policy", "fifo,p3", "--calibration", path, "--json", "-"]
        )
        results = json.loads(done.output)
        text = json.dumps(results)
        assert '"copy_rate_bps": ' + str(fitted.copy_rate_bps) in text

    def test_samples_a_second_are_those_of_all_workers(self) -> None:
        scenario = read_scenario(overrides=["job.model=vgg16", "job.batch=16", "job.workers=5", "job.device=a100"])
        policy, iteration_ps = parse_baseline("p3:slice=1 MB=40 samples/s", scenario)
        assert (policy.name, policy.slice_bytes) == ("p3:slice=1 MB", 10**6)
        assert iteration_ps == 16 * 5 * 10**12 // 40

    @given(st.floats(8, 12), st.floats(0.01, 0.9))
    def test_any_rate_is_found_where_copies_add_to_an_iteration(self, digits: float, share: float) -> None:
        rate_bps, fixed_ps = round(10**digits), 10**12

        def simulated_ps(copy_rate_bps: int) -> float:
            return fixed_ps + (share * 10**21 / copy_rate_bps if copy_rate_bps else 0.0)

        measured_ps = round(simulated_ps(rate_bps))
        found_ps = simulated_ps(fit_copy_rate(simulated_ps, measured_ps))
        assert found_ps == pytest.approx(measured_ps, rel=0.002)

    def test_what_copies_cannot_explain_is_said(self) -> None:
        with pytest.raises(InputError, match=r"5 ms was measured, and 10 ms is simulated even with copies at once"):
            fit_copy_rate(lambda _: 10 * 10**9, 5 * 10**9)
        with pytest.raises(InputError, match=r"50 ms was measured, which is longer than with copies at 10 Mbps"):
            fit_copy_rate(lambda _: 10 * 10**9, 50 * 10**9)

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"copy_rate_bps": -1}, "copy_rate_bps is -1; accepted: 0 to"),
            ({"copy_rate_bps": 0.5}, "copy_rate_bps is 0.5; accepted"),
            ({"iteration_ps": 0}, "iteration_ps is 0; accepted: 1 to"),
            ({"policy": "\n"}, "policy is"),
            ({"more": 1}, "unknown key 'more'"),
        ],
    )
    def test_files_are_checked(self, tmp_path: Path, changed: dict[str, Any], message: str) -> None:
        path = tmp_path / "fitted.json"
        write_calibration(path, FittedBaseline("fifo", 10**12, 10**9))
        document = json.loads(path.read_text())
        document["fitted"] |= changed
        path.write_text(json.dumps(document))
        with pytest.raises(InputError, match=message):
            read_calibration(path)
