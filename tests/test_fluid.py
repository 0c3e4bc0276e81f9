"""Transfers as fluids: what max-min fair and ranked means, closed forms, and the packet engine as a peer."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorexpress.plan import make_plan
from tensorexpress.policy import POLICIES
from tensorexpress.scenario import Scenario, make_scenario
from tensorexpress.sim import fluid
from tensorexpress.sim.asynchronous import FluidLinks
from tensorexpress.sim.fluid import FluidNetwork, FluidTransfer, share_rates
from tensorexpress.sim.run import simulate
from tensorexpress.workload import Layer, Workload

SECOND = 10**12


def over(*links: int, rank: int = 0) -> FluidTransfer:
    return FluidTransfer(links, rank, 1.0, lambda: None)


@st.composite
def loads(draw: st.DrawFn, ranks: int) -> tuple[list[FluidTransfer], list[float]]:
    rates = [float(draw(st.integers(1, 100))) for _ in range(draw(st.integers(1, 6)))]
    paths = st.lists(st.integers(0, len(rates) - 1), min_size=1, max_size=3, unique=True)
    count = draw(st.integers(1, 10))
    return [over(*draw(paths), rank=draw(st.integers(0, ranks - 1))) for _ in range(count)], rates


@given(loads(ranks=1))
def test_everybody_has_a_full_link_on_which_nobody_has_more(drawn: tuple[list[FluidTransfer], list[float]]) -> None:
    transfers, rates = drawn
    shares = share_rates(transfers, rates)
    used = [sum(s for s, t in zip(shares, transfers, strict=True) if link in t.links) for link in range(len(rates))]
    assert all(use <= rate * (1 + 1e-9) for use, rate in zip(used, rates, strict=True))
    for own, transfer in zip(shares, transfers, strict=True):
        bottlenecks = [link for link in transfer.links if used[link] >= rates[link] * (1 - 1e-9)]
        most = {link: max(s for s, t in zip(shares, transfers, strict=True) if link in t.links) for link in bottlenecks}
        assert any(own >= share * (1 - 1e-9) for share in most.values())


@given(loads(ranks=3))
def test_a_rank_never_feels_those_behind_it(drawn: tuple[list[FluidTransfer], list[float]]) -> None:
    transfers, rates = drawn
    shares = share_rates(transfers, rates)
    for rank in range(3):
        ahead = [transfer for transfer in transfers if transfer.rank <= rank]
        alone = share_rates(ahead, rates)
        assert alone == [s for s, t in zip(shares, transfers, strict=True) if t.rank <= rank]


def ends(network: FluidNetwork, transfers: list[tuple[tuple[int, ...], int, int]]) -> list[int]:
    """Return when transfers of (links, bytes, rank) that start at once are sent."""
    found = [0] * len(transfers)
    for index, (links, size_bytes, rank) in enumerate(transfers):

        def sent(index: int = index) -> None:
            found[index] = network.now_ps

        network.send(links, size_bytes, rank, sent)
    network.run(lambda: False)
    return found


def test_transfers_share_and_those_left_speed_up() -> None:
    """Two share 8 bit/s: 1 byte each ends at 2 s; of 3 bytes, the other two then take the whole link."""
    assert ends(FluidNetwork([8.0]), [((0,), 1, 0), ((0,), 3, 0)]) == [2 * SECOND, 4 * SECOND]


def test_ranks_go_one_after_another_and_a_slow_sender_leaves_room() -> None:
    network = FluidNetwork([8.0, 2.0])
    assert ends(network, [((0,), 1, 1), ((0,), 1, 2)]) == [SECOND, 2 * SECOND]
    # The first is held to 2 bit/s by its own link and needs 4 s; the second has the other 6 meanwhile.
    start_ps = network.now_ps
    found = ends(network, [((1, 0), 1, 1), ((0,), 3, 2)])
    assert [end_ps - start_ps for end_ps in found] == [4 * SECOND, 4 * SECOND]


def test_a_link_that_changes_holds_up_what_is_under_way() -> None:
    network = FluidNetwork([8.0])
    network.at(SECOND, lambda: network.set_rate(0, 2.0))
    assert ends(network, [((0,), 2, 0)]) == [5 * SECOND]


def test_what_is_cancelled_is_never_sent_and_leaves_the_link_to_others() -> None:
    network = FluidNetwork([8.0])
    gone = network.send((0,), 100, 0, lambda: pytest.fail("it was cancelled"))
    network.at(SECOND, lambda: network.cancel([gone]))
    assert ends(network, [((0,), 1, 0)]) == [3 * SECOND // 2]


def pushes(rates: list[str], size_bytes: int, architecture: str) -> Scenario:
    """Return a job with a worker behind every one of these links, and its server behind 10 Gbps."""
    hosts = [f"h{number}" for number in range(len(rates) + 1)]
    links = [[host, "s0", rate] for host, rate in zip(hosts, [*rates, "10 Gbps"], strict=True)]
    workload = Workload("one", (Layer("a", size_bytes // 4, 0, 10**9),))
    return make_scenario(
        cluster={"topology": "custom", "hosts": hosts, "switches": ["s0"], "links": links},
        job={
            "model": workload,
            "workers": hosts[:-1],
            "servers": hosts[-1:],
            "architecture": architecture,
            "shard": "1 GB",
        },
        iterations=1,
        warmup=0,
        **({"commits": {"helpers": 0, "replicas": 0}} if architecture == "async" else {}),
    )


@pytest.mark.parametrize(
    ("rates", "size_bytes", "within"),
    [
        (["10 Gbps"], 4_000_000, 0.001),
        (["10 Gbps"] * 8, 4_000_000, 0.01),
        (["10 Gbps"] * 8, 40_000_000, 0.002),
        (["10 Gbps"] * 6 + ["1 Gbps"] * 2, 4_000_000, 0.02),
        # Windows share a little less fairly where links of several rates fill another one.
        (["2 Gbps", "3 Gbps", "5 Gbps", "10 Gbps", "500 Mbps"], 40_000_000, 0.05),
    ],
)
def test_workers_that_push_at_once_are_done_when_the_packet_engine_says(
    rates: list[str], size_bytes: int, within: float
) -> None:
    trace = simulate(make_plan(pushes(rates, size_bytes, "ps"), POLICIES["fifo"]))
    transfers = trace.jobs[0].transfers
    packets = {
        int(row["src"]): int(row["delivered_ps"] - row["ready_ps"]) for row in transfers if row["dst"] == len(rates)
    }
    links = FluidLinks(pushes(rates, size_bytes, "async"))
    found: dict[int, int] = {}
    for worker in range(len(rates)):

        def arrived(worker: int = worker) -> None:
            found[worker] = links.now_ps

        links.move(worker, len(rates), size_bytes, 0, arrived)
    links.run(lambda: False)
    assert {worker: found[worker] / packets[worker] for worker in packets} == pytest.approx(
        dict.fromkeys(range(len(rates)), 1.0), rel=within
    )


def test_examples_in_docstrings() -> None:
    assert doctest.testmod(fluid).failed == 0
