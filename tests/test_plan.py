"""Plans: slices cover their tensors, servers share the load, links carry what the formulas say, queues exist."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.strategies import US, plans, policies, scenarios
from support.thorough import examples

from tensorexpress.deadline import equal_map, queue_map, slacks
from tensorexpress.graph import KINDS, cut
from tensorexpress.plan import Ints, JobPlan, Plan, link_loads, make_plan, own_slacks_ps, slice_leads_ps
from tensorexpress.policy import Policy
from tensorexpress.scenario import Job, Scenario, Transport
from tensorexpress.topologies import leaf_spine, star
from tensorexpress.workload import Layer, Workload

few = settings(max_examples=examples(40))


def training(sizes: list[int], workers: int, servers: int, architecture: str = "ps", shard_bytes: int = 0) -> Scenario:
    """Tensors of these sizes on a star; servers are the last hosts, and full packets carry 1000 bytes in 1098."""
    layers = tuple(Layer(f"l{i}", size // 4, 10 * US, 20 * US) for i, size in enumerate(sizes))
    hosts = range(workers + servers)
    job = Job(
        "job", Workload("sizes", layers), tuple(hosts[:workers]), tuple(hosts[workers:]), architecture, shard_bytes
    )
    return Scenario("plan", star(len(hosts), "8 Gbps", mtu=1060), (job,), Transport(header_bytes=98))


def only_job(scenario: Scenario, policy: Policy | None = None) -> JobPlan:
    return make_plan(scenario, policy or Policy("whole")).jobs[0]


def loads(scenario: Scenario) -> tuple[Ints, Ints]:
    """Return the link loads of the only job of a scenario."""
    plan = make_plan(scenario, Policy("whole"))
    return link_loads(plan.jobs[0], scenario, plan.paths)


class TestSlices:
    @few
    @given(plans())
    def test_cover_their_tensors_exactly(self, plan: Plan) -> None:
        for job in plan.jobs:
            covered = Counter()
            for piece in job.slices:
                covered[piece.tensor] += piece.bytes
            assert tuple(covered[tensor] for tensor in range(len(job.ranks))) == job.job.workload.tensor_bytes

    @few
    @given(plans())
    def test_are_no_larger_than_asked_for_and_as_equal_as_bytes_allow(self, plan: Plan) -> None:
        for job in plan.jobs:
            for tensor, total in enumerate(job.job.workload.tensor_bytes):
                sizes = [piece.bytes for piece in job.slices if piece.tensor == tensor]
                assert 1 <= min(sizes) <= max(sizes) <= min(sizes) + 1
                # What hosts send as one is no larger: where workers pass parts of a slice around, a part.
                parts = int(job.graph.parts.max())
                assert max(sizes) <= (parts * plan.policy.slice_bytes or total)

    @few
    @given(plans())
    def test_are_whole_unless_cut_or_sharded(self, plan: Plan) -> None:
        for job in plan.jobs:
            for tensor, total in enumerate(job.job.workload.tensor_bytes):
                pieces = sum(piece.tensor == tensor for piece in job.slices)
                if job.job.servers and total >= job.job.shard_bytes:
                    # A part is a byte at the least.
                    assert pieces >= min(len(job.job.servers), total)
                elif not plan.policy.slice_bytes:
                    assert pieces == 1

    @few
    @given(scenarios(), policies())
    def test_are_shared_evenly_by_the_servers(self, scenario: Scenario, policy: Policy) -> None:
        for job in make_plan(scenario, policy).jobs:
            load = Counter(dict.fromkeys(job.job.servers, 0))
            for piece in job.slices:
                load[piece.server] += piece.bytes
            if job.job.servers:
                assert set(load) == set(job.job.servers)
                assert max(load.values()) - min(load.values()) <= max(piece.bytes for piece in job.slices)
            else:
                assert set(load) == {-1}

    def test_of_a_small_tensor_stay_on_one_server(self) -> None:
        job = only_job(training([400, 8000], workers=2, servers=4, shard_bytes=1000))
        assert [piece.bytes for piece in job.slices] == [400, 2000, 2000, 2000, 2000]

    @given(st.integers(1, 10**6), st.integers(2, 20))
    def test_of_a_ring_are_cut_into_one_segment_per_worker(self, size: int, workers: int) -> None:
        segments = cut(size, workers)
        assert (len(segments), sum(segments)) == (workers, size)
        assert max(segments) - min(segments) <= 1


class TestBytesOnTheWire:
    @pytest.mark.parametrize(
        ("mtu", "header", "payload"),
        [
            (1500, 98, 1440),  # 38 of the 98 bytes are Ethernet's and lie outside the MTU
            (9000, 98, 8940),
            (1500, 38, 1500),
            (1500, 0, 1500),
        ],
    )
    def test_a_packet_carries_what_headers_leave_of_the_mtu(self, mtu: int, header: int, payload: int) -> None:
        scenario = Scenario("wire", star(2, mtu=mtu), (), Transport(header_bytes=header))
        assert scenario.framing.payload_bytes == payload

    @pytest.mark.parametrize(("size", "wire"), [(0, 0), (1, 99), (1000, 1098), (1001, 1001 + 2 * 98), (4000, 4392)])
    def test_every_packet_has_a_header(self, size: int, wire: int) -> None:
        assert training([4], 1, 1).framing.wire_bytes(size) == wire


def sent_bytes(plan: JobPlan, scenario: Scenario) -> Iterator[tuple[int, int, int, bool]]:
    """Yield sender, receiver, bytes on the wire, and whether a sum is brought, of all messages between hosts.

    What is gathered again is none of them.
    """
    graph = plan.graph
    columns = (graph.src, graph.dst, graph.bytes, graph.brings_sums, graph.kind)
    for src, dst, size, brings_sum, kind in zip(*columns, strict=True):
        if src != dst and KINDS[kind] != "regather":
            yield int(src), int(dst), scenario.framing.wire_bytes(int(size)), bool(brings_sum)


class TestMoves:
    """What facts of arithmetic say about one iteration, with 8000 tensor bytes that are 8784 on the wire."""

    wire = 8 * 1098

    def sent_by(self, scenario: Scenario) -> Counter[int]:
        sent: Counter[int] = Counter()
        for src, _, size, _ in sent_bytes(only_job(scenario), scenario):
            sent[src] += size
        return sent

    def test_with_servers_every_worker_pushes_and_pulls_everything(self) -> None:
        sent = self.sent_by(training([8000], workers=3, servers=2))
        assert sent == {0: self.wire, 1: self.wire, 2: self.wire, 3: 3 * self.wire // 2, 4: 3 * self.wire // 2}

    def test_in_a_ring_every_worker_passes_on_all_segments_but_one_twice(self) -> None:
        sent = self.sent_by(training([8000], workers=4, servers=0, architecture="ring"))
        assert sent == dict.fromkeys(range(4), 2 * 3 * self.wire // 4)

    def test_colocated_servers_move_as_much_as_a_ring(self) -> None:
        scenario = training([8000], workers=4, servers=0)
        (job,) = scenario.jobs
        colocated = Job("job", job.workload, job.workers, job.workers, shard_bytes=0)
        scenario = replace(scenario, jobs=(colocated,))
        assert self.sent_by(scenario) == dict.fromkeys(range(4), 2 * 3 * self.wire // 4)

    def test_nothing_moves_between_a_worker_and_the_server_on_its_host(self) -> None:
        scenario = training([8000], workers=2, servers=0)
        (job,) = scenario.jobs
        alone = replace(scenario, jobs=(Job("job", job.workload, (0,), (0,)),))
        assert list(sent_bytes(only_job(alone), alone)) == []

    @few
    @given(plans())
    def test_every_worker_is_gated_by_the_parameters_that_it_does_not_sum_itself(self, plan: Plan) -> None:
        for job in plan.jobs:
            total = sum(plan.framing.wire_bytes(piece.bytes) for piece in job.slices)
            for worker in job.job.workers:
                gating = sum(n for _, dst, n, is_own in sent_bytes(job, plan.scenario) if is_own and dst == worker)
                own = sum(plan.framing.wire_bytes(p.bytes) for p in job.slices if p.server == worker)
                if job.job.architecture == "ps":
                    assert gating == total - own


class TestLinkLoads:
    """8 Gbps: 1000 bytes a microsecond, so loads in us are bytes / 1000."""

    def test_of_a_star_are_the_bytes_over_the_rate(self) -> None:
        scenario = training([8000, 4000], workers=3, servers=1)
        shared, own = loads(scenario)
        push, pull = shared / US, own / US
        sizes = np.array([8 * 1.098, 4 * 1.098])
        for worker in range(3):
            up, down = 2 * worker, 2 * worker + 1
            assert push[up] == pytest.approx(sizes)
            assert push[down] == pytest.approx(0 * sizes)
            assert pull[down] == pytest.approx(sizes)
        server_up, server_down = 6, 7
        assert push[server_down] == pytest.approx(3 * sizes)
        assert pull[server_up] == pytest.approx(3 * sizes)

    @few
    @given(plans())
    def test_are_those_of_the_moves_on_the_first_and_the_last_link(self, plan: Plan) -> None:
        scenario = plan.scenario
        directed = scenario.directed()
        hosts = len(scenario.cluster.hosts)
        for job in plan.jobs:
            shared, own = link_loads(job, scenario, plan.paths)
            busy = (shared + own).sum(axis=1)
            for host in range(hosts):
                sent = sum(size for src, _, size, _ in sent_bytes(job, scenario) if src == host)
                received = sum(size for _, dst, size, _ in sent_bytes(job, scenario) if dst == host)
                for link, size in ((directed.source.index(host), sent), (directed.target.index(host), received)):
                    # Rounded up once for every move and tensor.
                    exact_ps = size * 8 * 10**12 / directed.rate_bps[link]
                    assert exact_ps <= busy[link] <= exact_ps + 2 * hosts * len(job.ranks)

    def test_follow_the_paths_of_the_plan(self) -> None:
        near = training([8000], workers=3, servers=1)
        two_leaves = leaf_spine(2, spines=1, hosts_per_leaf=2, bandwidth="8 Gbps", oversubscription=2, mtu=1060)
        far = replace(near, cluster=two_leaves)
        shared, _ = loads(far)
        # Two of the three workers are at the other leaf than the server: their pushes cross both trunks.
        assert sorted(shared.sum(axis=1) // 1_098_000) == [0, 0, 0, 0, 0, 0, 8, 8, 8, 16, 16, 24]


class TestQueuesAndSlack:
    @few
    @given(plans())
    def test_queues_exist_and_follow_the_layers(self, plan: Plan) -> None:
        queues = plan.scenario.cluster.queues
        for job in plan.jobs:
            assert job.queues[0] == 0
            assert list(job.queues) == sorted(job.queues)
            most = min(queues, len(job.ranks)) - 1
            assert job.queues[-1] == most or (plan.policy.queue_map == "fewest" and job.queues[-1] < most)

    @few
    @given(plans())
    def test_ranks_and_slack_are_those_of_the_workload(self, plan: Plan) -> None:
        for job in plan.jobs:
            layers = job.job.workload.layers
            assert job.ranks == tuple(range(len(layers)))
            assert job.slack_ps == slacks([x.forward_ps for x in layers], [x.backward_ps for x in layers])

    def test_leads_of_sharded_tensors_are_the_time_to_gather_what_is_left(self) -> None:
        job = only_job(training([8000] * 3, 4, 0, "fsdp"), Policy("halves", slice_bytes=1000))
        # Two slices each; the link carries a tensor once to reduce it and once to gather it.
        assert slice_leads_ps(job) == [lead for each in job.transfer_ps for lead in (each // 4, 0)]

    def test_gathers_are_due_by_the_step_that_lets_them_go_and_what_passes_them_on_by_what_it_carries(self) -> None:
        job = only_job(training([8000] * 3, 4, 0, "fsdp"))
        never = -1
        first = {(kind, tensor): never for kind in ("reduce", "gather", "regather") for tensor in range(3)}
        first |= {("regather", tensor): slack * US for tensor, slack in enumerate((20, 20, 0))}
        # The first layer may be gathered from its own gradient on, whose deadline it keeps.
        first |= {("gather", tensor): slack * US for tensor, slack in ((1, 10), (2, 10))}
        graph = job.graph
        for message, slack_ps in enumerate(own_slacks_ps(job, never).tolist()):
            key = KINDS[graph.kind[message]], int(graph.tensor[message])
            assert slack_ps == (never if graph.passes_on[message] else first[key])
        assert np.count_nonzero(~graph.passes_on) == 3 * 3 * len(job.job.hosts)

    def test_the_equal_map_ignores_sizes_and_the_optimal_one_does_not(self) -> None:
        scenario = training([400, 400, 400, 400, 400, 800_000], workers=2, servers=1)
        scenario = replace(scenario, cluster=replace(scenario.cluster, queues=2))
        equal, optimal = (
            only_job(scenario, Policy("map", host_order="priority", discipline="strict", queue_map=map_)).queues
            for map_ in ("equal", "optimal")
        )
        assert equal == equal_map(6, 2) == (0, 0, 0, 1, 1, 1)
        # The bottleneck is the server's link, which carries both workers' tensors.
        wire_ps = [2 * 498_000] * 5 + [2 * 800 * 1_098_000]
        assert optimal == queue_map([10 * US] * 6, [20 * US] * 6, wire_ps, 2).queue_of
