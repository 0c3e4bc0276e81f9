"""Where switches sum: trees that join all workers, slots that fit into switches, and what is refused."""

from __future__ import annotations

import doctest
from collections import Counter
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import plans

from tensorexpress import slots, sums
from tensorexpress.errors import InputError, PlanError
from tensorexpress.plan import Plan, make_plan, unlimited_sums
from tensorexpress.policy import POLICIES, parse_policy
from tensorexpress.scenario import read_scenario
from tensorexpress.slots import (
    check_pools,
    check_tree,
    needed_slots,
    room_of,
    round_trip_ps,
    share_out,
    taken_share,
    throughput_share,
)
from tensorexpress.sums import (
    MOST_CHILDREN,
    SLOT_BYTES,
    SUM_FRAMING,
    Pool,
    SummingSwitch,
    SumPlan,
    cell_of,
    packets_of,
)
from tensorexpress.topologies import star

FAT_TREE = ("cluster.topology=fat-tree", "cluster.k=4")
LEAF_SPINE = ("cluster.topology=leaf-spine", "cluster.leaves=4", "cluster.spines=2", "cluster.hosts_per_leaf=4")


def planned(*overrides: str, policy: str = "tensorexpress+sum") -> Plan:
    return make_plan(read_scenario(overrides=["job.architecture=ring", *overrides]), parse_policy(policy))


def tree_of(plan: Plan, job: int = 0) -> SumPlan:
    (found,) = plan.jobs[job].sums
    return found


class TestTrees:
    @given(plans(sums=["pool"]))
    def test_join_every_worker_once_by_adjacent_switches(self, plan: Plan) -> None:
        cluster, directed = plan.scenario.cluster, plan.scenario.cluster.directed()
        for job in plan.jobs:
            (tree,) = job.sums
            check_tree(tree, job.job, cluster)
            sources = Counter(directed.source[link] for link in tree.links)
            assert {node for node in sources if node < len(cluster.hosts)} == set(job.job.hosts)
            assert set(sources.values()) == {1}
            root = len(cluster.hosts) + tree.switches[0].switch
            for link in tree.links:
                way = tree.way_up(link)
                assert directed.target[way[-1]] == root
                assert all(directed.target[a] == directed.source[b] for a, b in pairwise(way))

    def test_of_one_switch_is_that_switch(self) -> None:
        assert tree_of(planned("job.workers=3")).switches == (SummingSwitch(0, (0, 2, 4)),)

    def test_of_two_leaves_has_a_spine_as_root_and_only_their_leaves(self) -> None:
        tree = tree_of(planned(*LEAF_SPINE, "job.workers=8"))
        assert [switch.switch for switch in tree.switches] == [4, 0, 1]
        assert [len(switch.children) for switch in tree.switches] == [2, 4, 4]

    def test_of_a_fat_tree_is_as_deep_as_its_workers_are_apart(self) -> None:
        names = read_scenario(overrides=[*FAT_TREE, "job.workers=2"]).cluster.switches
        depth = {}
        for workers in (2, 4, 16):
            tree = tree_of(planned(*FAT_TREE, f"job.workers={workers}"))
            depth[workers] = max(len(tree.way_up(link)) for link in tree.links)
        # In one edge switch, in one pod, in all pods.
        assert depth == {2: 1, 4: 2, 16: 3}
        assert len(names) == 20

    def test_of_several_jobs_part_where_they_can(self) -> None:
        jobs = [f"job.{i}.workers=h{i},h{4 + i}" for i in range(2)]
        plan = planned(*LEAF_SPINE, "job.1.model=resnet50", "job.1.architecture=ring", *jobs)
        first, second = (tree_of(plan, job) for job in range(2))
        assert first.switches[0].switch != second.switches[0].switch
        assert not set(first.links) & set(second.links)

    def test_are_the_same_in_slow_motion_and_every_time(self) -> None:
        one, other = (
            planned(*FAT_TREE, "job.workers=16", f"cluster.bandwidth={rate}") for rate in ("1 Gbps", "9 Mbps")
        )
        assert tree_of(one).switches == tree_of(other).switches

    @pytest.mark.parametrize(
        ("overrides", "message"),
        [
            (["job.workers=65"], "switch s0 would sum for 65 hosts and switches below it; accepted: 64"),
            (["job.workers=1", "job.architecture=ps"], "job.0.workers: found one host; accepted: two or more"),
            (["job.architecture=fsdp"], "job.0.architecture: found fsdp; accepted: one without shards"),
            (["job.architecture=ps", "job.forward_only=true"], "job.0.forward_only: found true; accepted: false"),
            (["job.compression=2"], "job.0.compression: found 2.0; accepted: 1: switches add plain values"),
            (["cluster.mtu=1099"], "cluster.mtu: found 1099; accepted: 1100 or more, a packet of 256 values"),
            (["cluster.switch_memory=1 KB"], "room for 0 slots of 2112 bytes, and 1 pool need one each"),
            (
                ["cluster.topology=custom", "cluster.hosts=h0,h1", 'cluster.links=[["h0","h1"]]', "job.workers=2"],
                "no switch is between its workers; accepted where switches sum: one at least",
            ),
        ],
    )
    def test_of_what_cannot_be_summed_are_refused(self, overrides: list[str], message: str) -> None:
        with pytest.raises(InputError) as refusal:
            planned(*overrides, policy="switchml")
        assert message in str(refusal.value)
        assert "\n" not in str(refusal.value)

    def test_have_32_children_at_the_most(self) -> None:
        assert len(tree_of(planned(f"job.workers={MOST_CHILDREN}")).switches[0].children) == MOST_CHILDREN


class TestSlots:
    @given(plans(sums=["pool"]))
    def test_of_every_plan_fit_and_are_given_away_once(self, plan: Plan) -> None:
        found = [tree_of(plan, job) for job in range(len(plan.jobs))]
        wanted = [tree for job in plan.jobs for tree in unlimited_sums(job, plan.scenario, plan.policy)]
        check_pools(found, wanted, plan.scenario.cluster, [(job, 0) for job in range(len(found))])
        for tree, own in zip(found, wanted, strict=True):
            for pool, unlimited in zip(tree.pools, own.pools, strict=True):
                assert pool.slots <= unlimited.slots
                assert pool.slots & (pool.slots - 1) == 0

    def test_cover_the_round_trip(self) -> None:
        plan = planned("job.workers=2", "cluster.bandwidth=10 Gbps", "cluster.delay=1 us")
        packet_ps = 910_400
        assert round_trip_ps(tree_of(plan), plan.scenario.directed()) == 2 * (packet_ps + 10**6)
        # 4.2 packets.
        assert needed_slots(tree_of(plan), plan.scenario.directed()) == 5
        assert [pool.slots for pool in tree_of(plan).pools] == [8]

    def test_are_no_more_than_packets(self) -> None:
        plan = planned(
            "job.workers=2", "cluster.delay=1 ms", "job.model=resnet50", policy="tensorexpress+sum:queues=equal"
        )
        assert needed_slots(tree_of(plan), plan.scenario.directed()) > 2000
        for pool in tree_of(plan).pools:
            assert pool.slots <= max(2 * pool.packets_per_iteration - 1, 1)

    def test_shrink_from_the_least_urgent_class_on(self) -> None:
        policy = "tensorexpress+sum:queues=equal"
        slots_of = {}
        for room in (64, 60, 40, 32, 24, 12, 9, 8):
            plan = planned("job.workers=2", f"cluster.switch_memory={room * SLOT_BYTES}", policy=policy)
            slots_of[room] = [pool.slots for pool in tree_of(plan).pools]
        assert slots_of == {
            64: [8] * 8,
            60: [8] * 7 + [4],
            40: [8] * 2 + [4] * 6,
            32: [4] * 8,
            24: [4] * 4 + [2] * 4,
            12: [2] * 4 + [1] * 4,
            9: [2] + [1] * 7,
            8: [1] * 8,
        }

    def test_of_less_memory_cost_a_share_that_is_told(self) -> None:
        full = planned("job.workers=2", "cluster.delay=10 us")
        needed = needed_slots(tree_of(full), full.scenario.directed())
        assert [throughput_share(pool, needed) for pool in tree_of(full).pools] == [1.0]
        less = planned("job.workers=2", "cluster.delay=10 us", f"cluster.switch_memory={8 * SLOT_BYTES}")
        assert [throughput_share(pool, needed) for pool in tree_of(less).pools] == [8 / needed]

    def test_of_jobs_that_share_no_switch_may_be_the_same(self) -> None:
        jobs = [f"job.{i}.workers=h{4 * i},h{4 * i + 1}" for i in range(2)]
        plan = planned(*LEAF_SPINE, "job.1.model=resnet50", "job.1.architecture=ring", *jobs)
        assert [tree_of(plan, job).pools[0].first_slot for job in range(2)] == [0, 0]

    def test_of_jobs_that_share_a_switch_are_apart(self) -> None:
        plan = planned("job.0.workers=h0,h1", "job.1.workers=h2,h3", "job.1.model=vgg16", "job.1.architecture=ring")
        first, second = (tree_of(plan, job).pools for job in range(2))
        assert second[0].first_slot == sum(pool.slots for pool in first)

    @given(
        st.lists(
            st.tuples(st.sets(st.integers(0, 3), min_size=1), st.lists(st.integers(0, 6), min_size=1, max_size=4)),
            min_size=1,
            max_size=4,
        ),
        st.integers(1, 200),
    )
    def test_are_shared_out_or_refused_with_what_would_do(
        self, jobs: list[tuple[set[int], list[int]]], room: int
    ) -> None:
        wanted = [
            SumPlan(
                tuple(SummingSwitch(switch, (0,)) for switch in sorted(switches)),
                tuple(Pool(queue, 0, 1 << power, (queue,), (10**6,)) for queue, power in enumerate(powers)),
            )
            for switches, powers in jobs
        ]
        cluster = star(2, switch_memory=room * SLOT_BYTES)
        assert room_of(cluster) == room
        try:
            found = share_out(wanted, cluster, [str(job) for job in range(len(jobs))])
        except PlanError:
            # Even one slot for each is more than there are.
            assert sum(len(powers) for _, powers in jobs) > room
            return
        taken: Counter[tuple[int, int]] = Counter()
        for plan, before in zip(found, wanted, strict=True):
            assert [pool.queue for pool in plan.pools] == [pool.queue for pool in before.pools]
            for pool, asked in zip(plan.pools, before.pools, strict=True):
                assert 1 <= pool.slots <= asked.slots
                assert pool.first_slot + pool.slots <= room
                taken.update(
                    (switch.switch, pool.first_slot + slot) for switch in plan.switches for slot in range(pool.slots)
                )
        assert max(taken.values()) == 1
        if all(sum(1 << power for power in powers) * len(jobs) <= room for _, powers in jobs):
            assert [plan.pools[0].slots for plan in found] == [plan.pools[0].slots for plan in wanted]


def test_a_value_is_32_bits_whatever_the_gradient_is() -> None:
    half, full = (planned("job.workers=2", f"job.dtype={dtype}") for dtype in ("fp16", "fp32"))
    assert packets_of(half.scenario.jobs[0].workload) == packets_of(full.scenario.jobs[0].workload)
    assert half.sum_framing == SUM_FRAMING != half.framing


def test_servers_have_nothing_to_do() -> None:
    ring, servers = planned("job.workers=4"), planned("job.workers=4", "job.architecture=ps", "job.servers=2")
    assert tree_of(ring) == tree_of(servers)
    assert (ring.jobs[0].graph.bytes == servers.jobs[0].graph.bytes).all()
    assert max(servers.jobs[0].graph.src) == len(servers.scenario.cluster.hosts)


AT_SERVERS = ["job.architecture=ps", "job.model=alexnet", "job.workers=4"]


class TestServers:
    """Trees whose sums end at servers."""

    @given(plans(sums=("front", "hashed")))
    def test_every_tensor_is_summed_on_its_way_to_its_server(self, plan: Plan) -> None:
        cluster, directed = plan.scenario.cluster, plan.scenario.cluster.directed()
        for job in plan.jobs:
            assert sorted(tensor for tree in job.sums for tensor in tree.tensors) == list(range(len(job.ranks)))
            for tree in job.sums:
                check_tree(tree, job.job, cluster)
                assert {job.slices[tensor].server for tensor in tree.tensors} == {tree.server}
                nics = [link for link in tree.links if directed.source[link] in job.job.hosts]
                assert len(nics) == len(job.job.hosts)
                for link in nics:
                    way = tree.way_up(link)
                    assert directed.target[way[-1]] == tree.server
                    assert all(directed.target[a] == directed.source[b] for a, b in pairwise(way))

    @given(plans(sums=("front",)))
    def test_slots_in_front_of_servers_are_given_away_once(self, plan: Plan) -> None:
        taken: dict[int, set[int]] = {}
        for tree in (tree for job in plan.jobs for tree in job.sums):
            for pool in tree.pools:
                slots = set(range(pool.first_slot, pool.first_slot + pool.slots))
                for switch in tree.switches:
                    assert not slots & taken.setdefault(switch.switch, set())
                    taken[switch.switch] |= slots

    @given(plans(sums=("hashed",)))
    def test_pools_that_hash_have_numbers_of_their_own_and_all_cells(self, plan: Plan) -> None:
        for job in plan.jobs:
            numbers = [pool.first_slot for tree in job.sums for pool in tree.pools]
            assert numbers == list(range(len(numbers)))
            (cells,) = {tree.cells for tree in job.sums}
            assert cells <= 2 * room_of(plan.scenario.cluster) < 2 * cells
            assert cells & (cells - 1) == 0

    def test_tensors_go_where_the_fewest_packets_are(self) -> None:
        plan = planned(*AT_SERVERS, "job.servers=3", policy="libra")
        packets = [sum(pool.packets_per_iteration for pool in tree.pools) for tree in plan.jobs[0].sums]
        assert sum(packets) == sum(packets_of(plan.jobs[0].job.workload))
        # One tensor has more than half of all: nobody else gets that much.
        assert sorted(packets)[:2] <= [sum(packets) // 3] * 2

    def test_a_server_on_the_host_of_a_worker_has_its_link_twice(self) -> None:
        plan = planned(*AT_SERVERS, "job.colocated=true", policy="libra")
        for tree in plan.jobs[0].sums:
            assert tree.switches[0].up ^ 1 in tree.switches[0].children

    def test_more_than_64_workers_have_no_bits(self) -> None:
        with pytest.raises(InputError, match=r"job.0.workers: found 65 hosts; accepted: at most 64 with sum=hashed"):
            planned("job.architecture=ps", "job.workers=65", policy="atp")

    def test_no_memory_is_refused(self) -> None:
        with pytest.raises(InputError, match=r"a switch has 1 KB for sums; accepted: a cluster.switch_memory of 2.112"):
            planned(*AT_SERVERS, "cluster.switch_memory=1 KB", policy="atp")

    def test_without_servers_nothing_ends_there(self) -> None:
        with pytest.raises(InputError, match=r"job.0.architecture: found ring; accepted: ps, with servers"):
            planned(policy="libra")


def test_cells_spread_and_depend_on_everything() -> None:
    found = Counter(cell_of(job, pool, number, 64) for job in range(4) for pool in range(4) for number in range(64))
    assert set(found) == set(range(64))
    assert max(found.values()) < 4 * 16
    assert cell_of(0, 0, 2**32 + 5, 977) == cell_of(0, 0, 5, 977)


@pytest.mark.parametrize(("sums_under_way", "cells"), [(1, 8), (8, 8), (32, 100), (300, 64)])
def test_as_many_sums_find_their_cell_taken_as_hashes_say(sums_under_way: int, cells: int) -> None:
    # Of numbers in a row fewer do: a CRC sends neighbours to different cells.
    found = [
        1
        - len({cell_of(0, 3, number, cells) for number in Random(trial).sample(range(2**32), sums_under_way)})
        / sums_under_way
        for trial in range(400)
    ]
    assert sum(found) / len(found) == pytest.approx(taken_share(sums_under_way, cells), abs=0.02)


def test_named_policies_say_where_they_sum() -> None:
    assert [name for name, policy in POLICIES.items() if policy.in_switches] == [
        "switchml",
        "libra",
        "atp",
        "inart",
        "tensorexpress+sum",
    ]
    assert [name for name, policy in POLICIES.items() if policy.sums_end_at_servers] == ["libra", "atp", "inart"]


@pytest.mark.parametrize("module", [slots, sums])
def test_examples_in_documentation(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]
