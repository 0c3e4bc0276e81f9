"""Order never makes an iteration longer than none, whatever shares a host; benchmarks/regimes.py looks at far more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.thorough import rest

from tensorexpress.policy import POLICIES
from tensorexpress.results.advice import notes
from tensorexpress.scenario import Scenario, read_scenario
from tensorexpress.sim import predict

ORDERING = [name for name, policy in POLICIES.items() if policy.host_order == "priority" and not policy.in_switches]


def colocated(bandwidth: str, *changes: str) -> Scenario:
    return read_scenario(
        None,
        ["job.workers=2", "job.colocated=true", f"cluster.bandwidth={bandwidth}", "compute.jitter=0.02", *changes],
    )


def iterations_ms(scenario: Scenario, policies: list[str]) -> dict[str, float]:
    return {name: each.jobs[0].iteration_ps / 1e9 for name, each in predict(scenario, policies).results.items()}


@rest()
@pytest.mark.parametrize("model", ["resnet50", "inception-v3"])
def test_with_colocated_servers_no_order_is_slower_than_fifo_and_more_bandwidth_never_hurts(model: str) -> None:
    slower = None
    for bandwidth in ("2 Gbps", "4.5 Gbps", "5 Gbps"):
        times = iterations_ms(colocated(bandwidth, f"job.model={model}", "iterations=10"), ["fifo", *ORDERING])
        for name in ORDERING:
            assert times[name] <= 1.01 * times["fifo"], (bandwidth, name)
            assert slower is None or times[name] <= 1.01 * slower[name], (bandwidth, name)
        slower = times


def test_a_worker_that_is_ahead_does_not_delay_what_one_that_is_behind_still_needs() -> None:
    """By layers this took exactly 1.5 times as long as the network needs; by deadlines it is what the network needs."""
    job = predict(colocated("2 Gbps", "iterations=10"), ["tensorexpress"]).results["tensorexpress"].jobs[0]
    carried_ms = (
        102.228 * 8 / 2 * 1.0163
    )  # each link carries the model once, in packets of 9000 bytes and their headers
    assert carried_ms <= job.iteration_ps / 1e9 <= 1.02 * carried_ms


#: Few large packets, for a quick answer.
LARGE = ("cluster.mtu=65535", "compute.jitter=0.05")
BOUND_BY_BYTES = ("job.model=vgg16", "job.workers=8", "job.colocated=true", "cluster.bandwidth=5 Gbps")


@rest(but=1)
@pytest.mark.parametrize(
    ("changes", "policies", "reason"),
    [
        (
            BOUND_BY_BYTES,
            ["fifo", "tictac", "p3"],
            "nothing of a tensor comes back before all of it has come from every",
        ),
        (BOUND_BY_BYTES, ["fifo", "p3:slice=16 MB", "p3"], "nothing of a slice of 16 MB comes back before all of it"),
        ((), ["p3", "tensorexpress:queues=optimal"], "in 8 queues, workers that are ahead overtake those for whom"),
    ],
)
def test_a_policy_that_is_slower_is_told_of_with_the_reason(
    changes: tuple[str, ...], policies: list[str], reason: str
) -> None:
    compared = predict(read_scenario(None, [*LARGE, *changes]), policies)
    begins = f"{policies[1]} is slower than {policies[0]} by "
    (note,) = [note for note in notes(compared) if note.startswith(begins)]
    assert reason in note
    assert ("as under p3" in note) == ("p3" in policies[1:])
    coarse = replace(compared, grain=64, grain_errors={policies[0]: 0.02, policies[1]: 0.9})
    assert not [note for note in notes(coarse) if note.startswith(begins)], "the error may be more than that"


@rest()
def test_with_racks_strict_priority_by_layers_stays_near_a_full_sort_by_deadlines() -> None:
    """Windows without limit leave the order to switches, and uplinks that are too slow let everything wait there."""
    scenario = colocated(
        "10 Gbps",
        "job.workers=4",
        "cluster.topology=leaf-spine",
        "cluster.leaves=2",
        "cluster.spines=1",
        "cluster.hosts_per_leaf=2",
        "cluster.oversubscription=4",
        "cluster.buffer=unlimited",
        "transport.window=unlimited",
        "iterations=5",
    )
    times = iterations_ms(scenario, ["fifo", "tensorexpress", "ideal"])
    assert times["tensorexpress"] <= min(1.01 * times["ideal"], times["fifo"])
