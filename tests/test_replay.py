"""Replay: two engines, one meaning; what any switch port must obey; and waits that queueing theory knows."""

from __future__ import annotations

import doctest
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.thorough import examples, rest

from tensorexpress.cluster import Link
from tensorexpress.errors import InputError, SimulationError
from tensorexpress.plan import make_plan
from tensorexpress.policy import Policy
from tensorexpress.queueing import DISCIPLINES, StrictPriority
from tensorexpress.scenario import Job, Scenario
from tensorexpress.sim import model, replay_fast
from tensorexpress.sim.flat_plan import build
from tensorexpress.sim.record import DATA
from tensorexpress.sim.replay import replay
from tensorexpress.topologies import custom, dumbbell, fat_tree, leaf_spine, star
from tensorexpress.workload import Layer, Workload

DOCS = Path(__file__).parents[1] / "docs" / "replay.md"

NAMES = ("time_ps", "src", "dst", "bytes", "rank")
PACKET = np.dtype([(name, np.int64) for name in NAMES])
BUILT_IN = ("fifo", "strict", "sp-pifo", "pifo")
US = 10**6


def packets_of(*rows):
    return np.array(list(rows), dtype=PACKET)


# Worked by hand, on a star at 10 Gbps and 1 us: 1250 bytes occupy a link for 1 us.

STAR = star(hosts=4, bandwidth="10 Gbps", delay="1 us")


def paced(cluster, ends):
    return replace(cluster, links=tuple(replace(link, paced=ends) for link in cluster.links))


@pytest.fixture(params=["simpy", "fast"])
def engine(request):
    return request.param


def test_a_lone_packet_pays_serialisation_and_delay_twice(engine):
    assert replay(STAR, packets_of((7, 0, 1, 1250, 0)), engine=engine).tolist() == [4 * US + 7]


def test_strict_priority_overtakes_what_waits_but_not_what_is_sent(engine):
    """All reach the switch at 2 us but the last, which comes at 2.5 us; the links of h0, h1, h2 are in this order."""
    packets = packets_of((0, 0, 3, 1250, 2), (0, 1, 3, 1250, 2), (0, 2, 3, 1250, 1), (3 * US // 2, 1, 3, 625, 0))
    fifo = [4 * US, 5 * US, 6 * US, 6 * US + US // 2]
    # At 2 us rank 1 is chosen; at 3 us rank 0 waits; at 3.5 us the two of rank 2 follow in order of their links.
    strict = [4 * US + 3 * US // 2, 5 * US + 3 * US // 2, 4 * US, 4 * US + US // 2]
    assert replay(STAR, packets, engine=engine).tolist() == fifo
    for discipline in ("strict", "pifo"):
        assert replay(STAR, packets, discipline, engine=engine).tolist() == strict


def test_only_what_waits_fills_a_buffer(engine):
    """Three packets meet at 2 us in room for two; at 3 us the second one leaves the buffer only after an arrival."""
    cluster = replace(STAR, buffer_bytes=2500)
    together = [(0, host, 3, 1250, 0) for host in (0, 1, 2)]
    assert replay(cluster, packets_of(*together), engine=engine).tolist() == [4 * US, 5 * US, -1]
    later = [*together, (US, 0, 3, 1250, 0), (US, 1, 3, 1250, 0)]
    assert replay(cluster, packets_of(*later), engine=engine).tolist() == [4 * US, 5 * US, -1, 6 * US, -1]


def test_a_nic_holds_any_backlog_and_a_host_reaches_itself_at_once(engine):
    cluster = replace(STAR, buffer_bytes=1250)
    packets = packets_of(*[(0, 0, 1, 1250, 0)] * 3, (5, 0, 0, 1250, 0))
    assert replay(cluster, packets, engine=engine).tolist() == [4 * US, 5 * US, 6 * US, 5]


def test_serialisation_rounds_up(engine):
    cluster = star(hosts=2, bandwidth="3 Gbps", delay=0)
    assert replay(cluster, packets_of((0, 0, 1, 1, 0)), engine=engine).tolist() == [2 * 2667]


def test_hosts_may_be_joined_directly(engine):
    cluster = custom(["a", "b"], [], [("a", "b", "10 Gbps", "1 us")])
    assert replay(cluster, packets_of((0, 0, 1, 1250, 0), (0, 1, 0, 1250, 0)), engine=engine).tolist() == [2 * US] * 2


def test_nothing_comes_of_no_packets(engine):
    assert replay(STAR, packets_of(), engine=engine).tolist() == []


def test_a_paced_link_is_passed_after_its_delay_and_then_occupied(engine):
    packets = packets_of((0, 0, 1, 1250, 0), (0, 0, 1, 1250, 0))
    assert replay(paced(STAR, (True, True)), packets, engine=engine).tolist() == [2 * US, 3 * US]


# Random traffic. Times and sizes are coarse, so that packets often meet at the same picosecond.

CLUSTERS = [
    star(hosts=4, delay="1 us"),
    star(hosts=3, bandwidth="7 Gbps", delay=0),
    dumbbell(left=2, right=3, bottleneck="5 Gbps"),
    leaf_spine(leaves=3, spines=2, hosts_per_leaf=2, oversubscription=2),
    fat_tree(4, bandwidth="3 Gbps", delay="100 ns"),
    paced(star(hosts=4, delay="1 us"), (True, True)),
    paced(dumbbell(left=2, right=2, delay="120 ns"), (True, False)),
    custom(
        ["a", "b", "c"], ["x", "y"], [("a", "x"), ("b", "x"), ("x", "y"), ("y", "x", "1 Gbps"), ("y", "c", "1 Gbps")]
    ),
]


@st.composite
def traffic(draw, clusters=CLUSTERS, ranks=3, least_packets=0):
    """Draw a cluster and packets for it."""
    cluster = draw(st.sampled_from(clusters))
    host = st.integers(0, len(cluster.hosts) - 1)
    size = st.sampled_from([150, 300, 600, 1500]) | st.integers(1, 9000)
    time_ps = st.integers(0, 30).map(lambda step: step * 120_000)
    row = st.tuples(time_ps, host, host, size, st.integers(0, ranks - 1))
    return cluster, packets_of(*draw(st.lists(row, min_size=least_packets, max_size=60)))


@pytest.mark.parametrize("discipline", BUILT_IN)
@settings(max_examples=examples(150), deadline=None)
@given(drawn=traffic(), buffer_bytes=st.sampled_from([0, 1500, 3100, 10_000]), queues=st.integers(3, 4))
def test_the_engines_agree_to_the_picosecond(discipline, drawn, buffer_bytes, queues):
    cluster, packets = drawn
    cluster = replace(cluster, buffer_bytes=buffer_bytes)
    fast = replay(cluster, packets, discipline, queues, engine="fast")
    assert fast.tolist() == replay(cluster, packets, discipline, queues, engine="simpy").tolist()


LARGEST_RANK = 1 << 62
RANKS = st.integers(-5, 5) | st.integers(-LARGEST_RANK, LARGEST_RANK)


@pytest.mark.parametrize("discipline", ["sp-pifo", "pifo"])
@settings(max_examples=examples(100), deadline=None)
@given(ranks=st.lists(RANKS, min_size=10, max_size=80), queues=st.integers(1, 4))
def test_the_engines_agree_on_any_ranks_in_a_long_queue(discipline, ranks, queues):
    packets = packets_of(*[(i // 9 * US, i % 3, 3, 1250, rank) for i, rank in enumerate(ranks)])
    fast = replay(STAR, packets, discipline, queues, engine="fast")
    assert fast.tolist() == replay(STAR, packets, discipline, queues, engine="simpy").tolist()


@given(drawn=traffic(), seed=st.integers(0, 99))
@settings(max_examples=examples(50), deadline=None)
def test_the_order_of_the_array_matters_only_to_packets_of_one_host_and_instant(drawn, seed):
    cluster, packets = drawn
    order = np.random.default_rng(seed).permutation(len(packets))
    # Put those of one host and instant back into their order.
    ties = np.lexsort((packets["src"], packets["time_ps"]))
    place = np.lexsort((packets["src"][order], packets["time_ps"][order]))
    order[place] = ties
    again = replay(cluster, packets[order], "strict")
    assert again.tolist() == replay(cluster, packets, "strict")[order].tolist()


@given(drawn=traffic(least_packets=1))
@settings(max_examples=30, deadline=None)
def test_order_and_width_of_the_fields_do_not_matter(drawn):
    cluster, packets = drawn
    narrow = np.dtype(
        [("rank", "u1"), ("note", "f8"), ("bytes", ">u2"), ("dst", "u8"), ("src", "i2"), ("time_ps", "u8")]
    )
    other = np.zeros(len(packets), dtype=narrow)
    for name in NAMES:
        other[name] = packets[name]
    before = other.copy()
    assert replay(cluster, other, "strict").tolist() == replay(cluster, packets, "strict").tolist()
    assert (other == before).all()


@given(drawn=traffic())
@settings(max_examples=examples(50), deadline=None)
def test_disciplines_that_mean_the_same_do_the_same(drawn):
    cluster, packets = drawn
    strict, fifo = replay(cluster, packets, "strict"), replay(cluster, packets)
    assert replay(cluster, packets, "pifo").tolist() == strict.tolist()
    assert replay(cluster, packets, "sp-pifo", queues=1).tolist() == fifo.tolist()
    packets["rank"] = 0
    for discipline in BUILT_IN:
        assert replay(cluster, packets, discipline).tolist() == fifo.tolist()


def test_many_hosts_are_replayed_like_few(monkeypatch):
    cluster, packets = CLUSTERS[3], packets_of(*[(t, t % 6, t * t % 6, 1500, t % 3) for t in range(100)])
    with_table = replay(cluster, packets, "strict")
    monkeypatch.setattr(replay_fast, "MOST_PAIRS", 0)
    assert replay(cluster, packets, "strict").tolist() == with_table.tolist()


# Invariants of a switch port, seen at the ports of a star, behind NICs that no discipline changes.


def sent_to(packets, arrival_ps, host):
    """Return (arrival at the switch, start, end, rank) of the packets to a host, in order of sending."""
    per_byte = 8 * 10**12 // STAR.links[0].rate_bps
    free_ps, rows = [0] * len(STAR.hosts), []
    for index in np.argsort(packets["time_ps"], kind="stable"):
        packet = packets[index]
        if packet["src"] != packet["dst"]:
            src, occupied_ps = packet["src"], packet["bytes"] * per_byte
            free_ps[src] = max(free_ps[src], packet["time_ps"]) + occupied_ps
            if packet["dst"] == host:
                end_ps = arrival_ps[index] - US
                rows.append((free_ps[src] + US, end_ps - occupied_ps, end_ps, packet["rank"], src))
    return sorted(rows, key=lambda row: row[1])


on_a_star = given(drawn=traffic(clusters=[STAR]))


@on_a_star
@settings(max_examples=examples(60), deadline=None)
def test_every_discipline_keeps_a_port_busy_at_the_same_times(drawn):
    _, packets = drawn
    for host in range(len(STAR.hosts)):
        busy = []
        for discipline in BUILT_IN:
            periods = []
            for _, start_ps, end_ps, *_ in sent_to(packets, replay(STAR, packets, discipline), host):
                if periods and periods[-1][1] == start_ps:
                    periods[-1][1] = end_ps
                else:
                    assert not periods or periods[-1][1] < start_ps
                    periods.append([start_ps, end_ps])
            busy.append(periods)
        assert busy == [busy[0]] * len(BUILT_IN)


@pytest.mark.parametrize("discipline", ["strict", "pifo"])
@on_a_star
@settings(max_examples=examples(60), deadline=None)
def test_nothing_less_urgent_starts_while_a_packet_waits(discipline, drawn):
    """So what is urgent waits for at most the one packet that it found on the link."""
    _, packets = drawn
    arrival_ps = replay(STAR, packets, discipline)
    for host in range(len(STAR.hosts)):
        sent = sent_to(packets, arrival_ps, host)
        for i, (_, earlier_start_ps, _, earlier_rank, _) in enumerate(sent):
            for arrived_ps, _, _, rank, _ in sent[i + 1 :]:
                assert arrived_ps > earlier_start_ps or rank >= earlier_rank


@pytest.mark.parametrize("discipline", ["fifo", "strict", "pifo"])
@on_a_star
@settings(max_examples=examples(60), deadline=None)
def test_packets_of_one_rank_leave_in_the_order_of_their_arrival_and_link(discipline, drawn):
    _, packets = drawn
    arrival_ps = replay(STAR, packets, discipline)
    for host in range(len(STAR.hosts)):
        for rank in range(3):
            keys = [(row[0], row[4]) for row in sent_to(packets, arrival_ps, host) if row[3] == rank]
            assert keys == sorted(keys)


# The training model, whose transmissions replayed from the NICs on must reach the last link at the same times.


@pytest.mark.parametrize("discipline", BUILT_IN)
@pytest.mark.parametrize(
    "cluster", [star(hosts=5), leaf_spine(leaves=2, spines=2, hosts_per_leaf=3)], ids=["star", "leaf-spine"]
)
def test_replay_sends_what_the_training_model_sent(discipline, cluster):
    layers = tuple(Layer(f"l{i}", 20_000 * (i + 1), 10 * US, 20 * US) for i in range(4))
    job = Job("job", Workload("small", layers), workers=(0, 1, 2), servers=(3, 4), shard_bytes=100_000)
    policy = Policy("policy", slice_bytes=20_000, host_order="priority", discipline=discipline)
    plan = make_plan(Scenario("small", cluster, (job,), iterations=1, warmup=0), policy)
    program = build(plan)
    log = model.run(program, record_packets=True).packets
    from_nic = log[program.link_source[log["link"]] < program.hosts]
    to_host = log[program.link_target[log["link"]] < program.hosts]
    ahead = from_nic["kind"] == DATA
    src, dst = program.flow_src[from_nic["flow"]], program.flow_dst[from_nic["flow"]]
    packets = np.zeros(len(from_nic), dtype=PACKET)
    packets["time_ps"], packets["bytes"] = from_nic["time_ps"], from_nic["size"]
    packets["src"], packets["dst"] = np.where(ahead, src, dst), np.where(ahead, dst, src)
    packets["rank"] = np.where(ahead, program.message_switch_rank[from_nic["message"]], 0)

    def keys(rows):
        return [tuple(row) for row in rows[["kind", "flow", "message", "iteration", "chunk"]].tolist()]

    replayed = dict(zip(keys(from_nic), replay(cluster, packets, discipline, paths=plan.paths).tolist(), strict=True))
    assert len(replayed) == len(packets) > 200
    rate_bps, delay_ps = program.link_rate_bps[to_host["link"]], program.link_delay_ps[to_host["link"]]
    arrived_ps = to_host["time_ps"] + -(-to_host["size"] * 8 * 10**12 // rate_bps) + delay_ps
    assert [replayed[key] for key in keys(to_host)] == arrived_ps.tolist()


# What only one engine can do, and what none can.


class Lifo(StrictPriority):
    """Serves the latest arrival first."""

    def __init__(self, queues):
        super().__init__(1)

    def push(self, item, size, rank):
        found = super().push(item, size, 0)
        self._queues[0].rotate(1)
        return found


def test_a_discipline_of_ones_own_is_replayed_by_simpy(monkeypatch):
    monkeypatch.setitem(DISCIPLINES, "lifo", Lifo)
    packets = packets_of(*[(0, host, 3, 1250, 0) for host in (0, 1, 2)])
    assert replay(STAR, packets, "lifo").tolist() == [6 * US, 5 * US, 4 * US]
    with pytest.raises(SimulationError, match=r"'fast' knows fifo, strict, sp-pifo, pifo.*'lifo'"):
        replay(STAR, packets, "lifo", engine="fast")


RING = custom(
    [f"h{i}" for i in range(5)],
    [f"s{i}" for i in range(5)],
    [(f"h{i}", f"s{i}") for i in range(5)] + [(f"s{i}", f"s{(i + 1) % 5}") for i in range(5)],
)


def test_routes_that_form_a_circle_are_replayed_by_simpy():
    packets = packets_of(*[(i, i % 5, (i + 2) % 5, 1500, i % 3) for i in range(50)])
    assert (replay(RING, packets, "strict") == replay(RING, packets, "strict", engine="simpy")).all()
    with pytest.raises(SimulationError, match=r"circle.*engine='simpy'"):
        replay(RING, packets, engine="fast")


ONE = packets_of((0, 0, 1, 1500, 0))


def changed(**fields):
    packets = np.concatenate([ONE, ONE])
    for name, value in fields.items():
        packets[name][1] = value
    return packets


@pytest.mark.parametrize(
    ("packets", "options", "said"),
    [
        (changed(src=4), {}, r"packets\[1\]: src is 4; accepted: 0 to 3"),
        (changed(src=-1), {}, r"packets\[1\]: src is -1"),
        (changed(dst=9), {}, r"packets\[1\]: dst is 9"),
        (changed(bytes=0), {}, r"packets\[1\]: bytes is 0; accepted: 1 to 1048576"),
        (changed(bytes=1 << 21), {}, r"packets\[1\]: bytes is 2097152"),
        (changed(time_ps=-5), {}, r"packets\[1\]: time_ps is -5"),
        (changed(time_ps=(1 << 62) - 1), {}, r"later than \d+ ps"),
        (changed(rank=8), {"discipline": "strict"}, r"packets\[1\]: rank is 8; accepted: 0 to 7"),
        (changed(rank=2), {"discipline": "strict", "queues": 2}, r"packets\[1\]: rank is 2; accepted: 0 to 1"),
        (changed(rank=-1), {"discipline": "strict"}, r"packets\[1\]: rank is -1"),
        (changed(rank=-(1 << 63)), {"discipline": "pifo"}, r"packets\[1\]: rank is -9"),
        (ONE, {"discipline": "lru"}, "unknown discipline 'lru'"),
        (ONE, {"engine": "ns3"}, "unknown engine 'ns3'"),
        (ONE, {"queues": 0}, "queues is 0"),
        (ONE, {"queues": "8"}, "queues is '8'"),
        (ONE[["time_ps", "src", "dst", "bytes"]], {}, "no field 'rank', only time_ps, src, dst, bytes"),
        (ONE.reshape(1, 1), {}, "packets is 2-d"),
        (np.zeros(3), {}, "packets is 1-d float64; accepted: a 1-d numpy structured array"),
        ([(0, 0, 1, 1500, 0)], {}, "packets is list"),
        (ONE.astype([(name, "f8") for name in NAMES]), {}, "field 'time_ps' of packets is float64"),
        (np.zeros(1, dtype=[(name, "i8", 2) for name in NAMES]), {}, "field 'time_ps' of packets is"),
        (np.full(1, 2**64 - 1, dtype=[(name, "u8") for name in NAMES]), {}, r"packets\[0\]: time_ps is 9"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_one_line(packets, options, said):
    with pytest.raises(InputError, match=said) as error:
        replay(STAR, packets, **options)
    assert "\n" not in str(error.value)
    assert "accepted" in str(error.value).lower()


def test_fifo_ignores_ranks():
    assert replay(STAR, changed(rank=-(1 << 63))).tolist() == replay(STAR, changed()).tolist()


def test_a_rate_beyond_64_bits_is_refused():
    with pytest.raises(InputError, match=r"rate of 10+ bit/s; accepted"):
        custom(["a", "b"], [], [Link("a", "b", 10**20, 0)])


# Queueing theory. Links into the switch are 100,000 times faster than the link out of it, so that packets reach the
# queue as they were drawn; half a percent is about the standard error of the mean waits below.

SOURCES, SERVICE_RATE_BPS = 8, 10**9
QUEUE = custom(
    [f"h{i}" for i in range(SOURCES)] + ["sink"],
    ["s"],
    [*((f"h{i}", "s", "100 Tbps", 0) for i in range(SOURCES)), ("s", "sink", SERVICE_RATE_BPS, 0)],
    buffer=0,
)


def poisson_arrivals(rng, count, load, mean_bytes):
    """Return packets to the sink at exponential gaps that load its link this much."""
    packets = np.zeros(count, dtype=PACKET)
    mean_gap_ps = mean_bytes * 8 * 10**12 / SERVICE_RATE_BPS / load
    packets["time_ps"] = np.cumsum(rng.exponential(mean_gap_ps, count))
    packets["src"], packets["dst"] = rng.integers(0, SOURCES, count), SOURCES
    return packets


def waits_ps(packets, discipline):
    service_ps = packets["bytes"] * (8 * 10**12 // SERVICE_RATE_BPS)
    return replay(QUEUE, packets, discipline) - packets["time_ps"] - service_ps


def test_mean_wait_of_m_d_1():
    load, size = 0.8, 10_000
    packets = poisson_arrivals(np.random.default_rng(1), 2_000_000, load, size)
    packets["bytes"] = size
    service_ps = size * 8 * 10**12 / SERVICE_RATE_BPS
    assert waits_ps(packets, "fifo").mean() == pytest.approx(load / (2 * (1 - load)) * service_ps, rel=0.02)


@rest(but=2)
@pytest.mark.parametrize("discipline", BUILT_IN)
def test_mean_wait_of_m_m_1_under_every_discipline_that_does_not_look_at_sizes(discipline):
    load, mean_bytes = 0.7, 20_000
    rng = np.random.default_rng(2)
    packets = poisson_arrivals(rng, 2_000_000, load, mean_bytes)
    packets["bytes"] = np.maximum(1, np.rint(rng.exponential(mean_bytes, len(packets))))
    packets["rank"] = rng.integers(0, 8, len(packets))
    service_ps = mean_bytes * 8 * 10**12 / SERVICE_RATE_BPS
    assert waits_ps(packets, discipline).mean() == pytest.approx(load / (1 - load) * service_ps, rel=0.02)


def test_mean_waits_of_three_classes_under_strict_priority_are_cobhams():
    sizes, shares, load = np.array([5_000, 10_000, 15_000]), np.array([0.3, 0.3, 0.4]), 0.75
    rng = np.random.default_rng(3)
    mean_bytes = float(sizes @ shares)
    packets = poisson_arrivals(rng, 2_000_000, load, mean_bytes)
    packets["rank"] = rng.choice(3, len(packets), p=shares)
    packets["bytes"] = sizes[packets["rank"]]
    service_ps = sizes * 8 * 10**12 / SERVICE_RATE_BPS
    rates = shares * load / (shares @ service_ps)
    residual_ps = (rates * service_ps**2).sum() / 2
    loads = np.concatenate([[0], np.cumsum(rates * service_ps)])
    waits = waits_ps(packets, "strict")
    for rank in range(3):
        cobham_ps = residual_ps / ((1 - loads[rank]) * (1 - loads[rank + 1]))
        assert waits[packets["rank"] == rank].mean() == pytest.approx(cobham_ps, rel=0.02)


def test_examples():
    assert doctest.testmod(sys.modules[replay.__module__]).failed == 0
    found = doctest.testfile(str(DOCS), module_relative=False)
    assert (found.failed, found.attempted > 0) == (0, True)
