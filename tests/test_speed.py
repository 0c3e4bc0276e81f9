"""How fast a target is: what a scenario asks of a machine, what a probe shows, and what is made of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tensorexpress.errors import InputError
from tensorexpress.policy import POLICIES
from tensorexpress.program_engines import PYTHON
from tensorexpress.scenario import read_scenario
from tensorexpress.sim import simulate
from tensorexpress.switch.faults import parse_faults
from tensorexpress.target import speed
from tensorexpress.target.bmv2 import Bmv2Target
from tensorexpress.target.embedded import EmbeddedTarget
from tensorexpress.target.linux import LinuxTarget
from tensorexpress.target.speed import (
    Load,
    carried_bps,
    check_speed,
    fastest_bps,
    known_bps,
    load_of,
    measure_bps,
    probe_plan,
)

WIRES = EmbeddedTarget(wires=True)
GBPS = 10**9


def scenario(*overrides, workers=8, servers=1):
    return read_scenario(overrides=[f"job.workers={workers}", f"job.servers={servers}", *overrides])


@pytest.mark.parametrize(("workers", "servers", "policy", "load"), [
    (8, 1, "fifo", Load(9000, 1, sums=False)),
    (8, 4, "fifo", Load(9000, 4, sums=False)),
    (2, 4, "fifo", Load(9000, 2, sums=False)),
    (8, 1, "switchml", Load(9000, 8, sums=True)),
    # All servers together get one packet for all workers, and answer it.
    (8, 1, "libra", Load(9000, 9, sums=True)),
    (8, 4, "libra", Load(9000, 9, sums=True)),
])  # fmt: skip
def test_a_machine_carries_the_links_that_can_be_busy_at_once(workers, servers, policy, load):
    policies = [POLICIES["fifo"], POLICIES[policy]]
    assert load_of(scenario(workers=workers, servers=servers), policies) == load


def test_without_servers_all_links_of_workers_are_busy():
    assert load_of(scenario("job.architecture=ring", workers=4, servers=0)).links == 4


def measured(asked):
    """Return a measurement that notes what it is asked for, and finds 1 Gbps for one link and less for more."""

    def measure(target, load):
        asked.append((target.name, load))
        return GBPS // int(load.links)

    return measure


def test_links_beyond_those_of_the_probe_share_what_there_is():
    asked: list[tuple[str, Load]] = []
    one, four, eight = (fastest_bps(scenario(servers=servers), WIRES, measure=measured(asked)) for servers in (1, 4, 8))
    assert [load.links for _, load in asked] == [1, 4, 4]
    assert one == 4 * four == 8 * eight
    assert 0 < one < GBPS


def test_what_any_machine_carries_is_not_measured():
    asked: list[tuple[str, Load]] = []
    assert fastest_bps(scenario("cluster.bandwidth=40 Mbps"), WIRES, measure=measured(asked)) >= 40 * 10**6
    check_speed(scenario("cluster.bandwidth=10 Mbps", servers=4), WIRES, measure=measured(asked))
    assert not asked
    check_speed(scenario("cluster.bandwidth=10 Mbps", "cluster.mtu=1500", servers=4), WIRES, measure=measured(asked))
    assert asked == [("embedded", Load(1500, 4, sums=False))]


def test_a_machine_that_carries_nothing_still_carries_what_any_does():
    slow = fastest_bps(scenario(), WIRES, measure=lambda target, load: 1)
    assert slow == fastest_bps(scenario("cluster.bandwidth=1 Mbps"), WIRES)


def test_links_that_are_too_fast_are_refused_with_the_factor_that_helps():
    with pytest.raises(InputError) as refused:
        check_speed(scenario(servers=4), LinuxTarget(), measure=lambda target, load: 312_345_678)
    assert str(refused.value) == (
        "default: a link runs at 10 Gbps; the target linux keeps up with 120 Mbps on this machine (MTU 9000, 4 busy "
        "links); give --scale 100 or --scale auto, which divides rates and multiplies times by that"
    )


@pytest.mark.parametrize("mtu", [1500, 9000])
@pytest.mark.parametrize(("links", "sums"), [(1, False), (4, False), (2, True), (4, True)])
def test_a_probe_shows_what_links_carry_both_ways_at_once(mtu, links, sums, monkeypatch):
    """Simulated, only links take time. There and then back takes twice as long as both at once, as sums do it."""
    monkeypatch.setattr(speed, "_PROBE_BPS", 100 * 10**6)
    plan = probe_plan(Load(mtu, links, sums))
    assert load_of(plan.scenario, [plan.policy]) == Load(mtu, links, sums)
    carried = carried_bps(plan, simulate(plan))
    assert 35 * 10**6 < carried < (101 if sums else 51) * 10**6


def test_a_probe_runs_without_the_faults_of_the_run_that_asks():
    probed = []

    def run(plan, target):
        probed.append(target)
        return SimpleNamespace(trace=simulate(plan))

    faulty = EmbeddedTarget(wires=True, engine=PYTHON, faults=parse_faults("loss=5%,corrupt=1%"))
    load = Load(9000, 1, sums=False)
    assert measure_bps(faulty, load, run) == measure_bps(WIRES, load, run)
    assert probed == [EmbeddedTarget(wires=True, engine=PYTHON), WIRES]
    # What other targets are measured by is what they are.
    assert all(target.faultless is target for target in (LinuxTarget(), Bmv2Target()))


def test_the_first_few_who_ask_measure_and_the_most_that_was_found_counts(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rates = iter([3 * GBPS, 2 * GBPS, 4 * GBPS, 1 * GBPS, 5 * GBPS])
    monkeypatch.setattr(speed, "measure_bps", lambda target, load: next(rates))
    load = Load(9000, 1, sums=False)

    def known_to_another_process():
        monkeypatch.setattr(speed, "_found", {})
        found = known_bps(WIRES, load)
        assert known_bps(WIRES, load) == found
        return found

    assert [known_to_another_process() for _ in range(5)] == [3 * GBPS] * 2 + [4 * GBPS] * 3
    # Who wants it measured again wants nothing of what was found before.
    assert known_bps(WIRES, load, again=True) == known_bps(WIRES, load) == 1 * GBPS
    [kept] = (tmp_path / "tensorexpress" / "speed").iterdir()
    for wrong in (b"true", b"[-3]", b"[true]", b"{", b"5000", b"[]"):
        assert speed._rates_in(wrong) == []
    kept.write_bytes(b"5000")
    assert known_to_another_process() == 5 * GBPS
