"""Tags: the header, the DSCP and the priority are those of the plan, and slack counts down."""

from __future__ import annotations

import doctest
import socket
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.thorough import rest

from tensorexpress.classify import queue_map_of
from tensorexpress.errors import InputError, PlanError
from tensorexpress.host import tagging
from tensorexpress.host.endpoint import settings_of
from tensorexpress.host.tagging import Tagger, TrafficClass, tag_socket
from tensorexpress.plan import Plan, make_plan, slice_leads_ps
from tensorexpress.policy import parse_policy
from tensorexpress.scenario import read_scenario
from tensorexpress.sim.flat_plan import build
from tensorexpress.wire.dscp import queue_of_dscp
from tensorexpress.wire.header import HEADER_DTYPE, Kind

MS = 10**9
PAGE = Path(__file__).parents[1] / "docs" / "tagging.md"
SMALL = ("job.model=alexnet", "cluster.mtu=9000")


class Clock:
    def __init__(self) -> None:
        self.now_ps = 0

    def __call__(self) -> int:
        return self.now_ps


@cache
def planned(policy: str) -> Plan:
    return make_plan(read_scenario(None, SMALL), parse_policy(policy))


def tagger_for(policy: str = "tensorexpress", **options: object) -> Tagger:
    return Tagger(planned(policy), clock_ps=Clock(), **options)  # type: ignore[arg-type]


def test_examples_hold() -> None:
    assert doctest.testmod(tagging).failed == 0
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.failed == 0
    assert result.attempted > 0


@pytest.mark.parametrize("policy", ["tensorexpress", "fifo", "p3", "tensorexpress:queues=equal"])
def test_queue_dscp_and_priority_are_those_that_a_switch_gives_the_tensor(policy: str) -> None:
    plan = make_plan(read_scenario(None, SMALL), parse_policy(policy))
    tagger, queues = Tagger(plan), queue_map_of(plan)
    for tensor in range(len(plan.jobs[0].queues)):
        header = tagger.header(tensor, 0, 10)
        granted = queues.queue_of_tensor(header)
        traffic = tagger.traffic_class(tensor)
        assert header.queue == granted
        assert queue_of_dscp(traffic.dscp, plan.dscps) == granted
        assert 0 <= traffic.priority <= 6


@rest(but=2)
@pytest.mark.parametrize(
    "policy", ["tensorexpress:queues=optimal", "fifo", "p3", "tensorexpress:switch=sp-pifo,queues=slack"]
)
def test_tensors_share_a_flow_on_hosts_exactly_when_they_do_in_the_simulator(policy: str) -> None:
    plan = make_plan(read_scenario(None, SMALL), parse_policy(policy))
    tagger, program = Tagger(plan), build(plan)
    classes: dict[int, set[int]] = {}
    for tensor, flow in zip(program.message_tensor.tolist(), program.message_flow.tolist(), strict=True):
        classes.setdefault(flow, set()).add(tagger.flow_class(tensor))
    assert all(len(of_flow) == 1 for of_flow in classes.values())
    pairs = [(program.flow_src[flow], program.flow_dst[flow], *of_flow) for flow, of_flow in classes.items()]
    assert len(set(pairs)) == len(pairs)


def test_where_slack_decides_the_dscp_is_that_of_the_plans_own_map_and_tensors_have_flows_of_their_own() -> None:
    tagger = tagger_for("tensorexpress:switch=sp-pifo,queues=slack")
    tensors = range(len(tagger.plan.queues))
    assert [tagger.queue(tensor) for tensor in tensors] == list(tagger.plan.queues)
    assert [tagger.flow_class(tensor) for tensor in tensors] == list(tensors)


def test_every_chunk_of_a_tensor_is_tagged_once_and_its_bytes_are_those_of_the_tensor() -> None:
    tagger = tagger_for()
    for tensor, size in enumerate(tagger.plan.job.workload.tensor_bytes):
        headers = tagger.headers(tensor, Kind.PARAMETERS)
        assert headers.dtype == HEADER_DTYPE
        assert headers["payload_bytes"].sum() == size
        assert headers["payload_bytes"].max() <= tagger.payload_bytes
        assert len(headers) == tagger.chunks(tensor)


def test_one_header_and_many_are_the_same() -> None:
    tagger = tagger_for(worker=5)
    tagger.begin(7)
    headers = tagger.headers(1)
    for chunk in (0, 1, len(headers) // 2, len(headers) - 1):
        one = tagger.header(1, chunk, int(headers["payload_bytes"][chunk]))
        assert one.pack() == headers[chunk].tobytes()
        assert (one.worker, one.iteration) == (5, 7)


def test_slices_cover_the_chunks_of_their_tensor_in_order() -> None:
    tagger = tagger_for()
    for index, piece in enumerate(tagger.plan.slices):
        assert tagger.slice_of(piece.tensor, tagger.first_chunk(index)) == index
        if tagger.first_chunk(index):
            assert tagger.slice_of(piece.tensor, tagger.first_chunk(index) - 1) == index - 1
    with pytest.raises(PlanError, match=f"chunk {tagger.chunks(0)} of tensor 0; accepted: 0 to"):
        tagger.slice_of(0, tagger.chunks(0))


def test_slack_counts_down_with_the_clock_and_starts_anew_with_an_iteration() -> None:
    tagger = tagger_for()
    clock = tagger._clock_ps
    assert isinstance(clock, Clock)
    tagger.begin(0)
    before = [tagger.slack_us(tensor) for tensor in range(len(tagger.plan.ranks))]
    clock.now_ps = 5 * MS
    after = [tagger.slack_us(tensor) for tensor in range(len(tagger.plan.ranks))]
    assert [a - b for a, b in zip(before, after, strict=True)] == [5000] * len(before)
    tagger.begin(1)
    assert [tagger.slack_us(tensor) for tensor in range(len(tagger.plan.ranks))] == before


def test_a_gradient_that_is_ready_has_the_slack_of_the_plan_less_the_lead_of_its_slice() -> None:
    tagger = tagger_for()
    leads = slice_leads_ps(tagger.plan)
    tagger.ready(2, at_ps=3 * MS)
    for index, piece in enumerate(tagger.plan.slices):
        if piece.tensor == 2:
            assert tagger.deadline_ps(index) == 3 * MS + tagger.plan.slack_ps[2] - leads[index]
            assert tagger.tag(index).deadline_ps == tagger.deadline_ps(index)


def test_the_tag_of_a_slice_is_that_of_its_packets() -> None:
    tagger = tagger_for(worker=2)
    tagger.begin(4)
    for index in (0, len(tagger.plan.slices) // 2, len(tagger.plan.slices) - 1):
        tag = tagger.tag(index, Kind.PARAMETERS)
        header = tagger.header(tag.tensor, tag.chunk, 0, Kind.PARAMETERS)
        shared = ("job", "worker", "iteration", "tensor", "chunk", "chunks", "queue", "kind")
        assert [getattr(tag, name) for name in shared] == [getattr(header, name) for name in shared]
        assert tag.rank == tagger.plan.ranks[tag.tensor]


def test_a_job_is_found_by_its_name_or_number() -> None:
    name = tagger_for().plan.job.name
    assert tagger_for(job=name).job == 0
    with pytest.raises(PlanError, match="unknown job 'nobody'"):
        tagger_for(job="nobody")
    with pytest.raises(PlanError, match="job 3; accepted: 0 to 0"):
        tagger_for(job=3)


def test_a_tensor_is_found_by_the_name_of_its_layer_or_its_number() -> None:
    tagger = tagger_for()
    for number, layer in enumerate(tagger.plan.job.workload.layers):
        assert tagger.traffic_class(layer.name) == tagger.traffic_class(number)
        assert tagger.headers(layer.name).tobytes() == tagger.headers(np.int64(number)).tobytes()
        assert tagger.header(layer.name, 0, 10).tensor == number


@pytest.mark.parametrize("wrong", [99, -1, 10**30, "nobody", "", "0", 1.0, True, None, [0], b"fc3"])
@pytest.mark.parametrize(
    "ask",
    [
        Tagger.traffic_class,
        Tagger.headers,
        Tagger.queue,
        Tagger.chunks,
        Tagger.ready,
        Tagger.flow_class,
        Tagger.slack_us,
        lambda tagger, tensor: tagger.slice_of(tensor, 0),
        lambda tagger, tensor: tagger.header(tensor, 0, 10),
    ],
)
def test_a_tensor_that_the_plan_does_not_have_is_refused_in_one_line(ask: Any, wrong: Any) -> None:
    with pytest.raises(PlanError, match=r"tensor .*[Aa]ccepted: ") as refusal:
        ask(tagger_for(), wrong)
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize("wrong", [-1, 10**6, "0", 0.5, True])
def test_slices_and_chunks_that_the_plan_does_not_have_are_refused(wrong: Any) -> None:
    tagger = tagger_for()
    for ask in (tagger.first_chunk, tagger.deadline_ps, tagger.tag, lambda chunk: tagger.slice_of(0, chunk)):
        with pytest.raises(PlanError, match=r"(slice|chunk) .*accepted: 0 to "):
            ask(wrong)


@pytest.mark.parametrize("wrong", [77, -1, "1", 1.0, True, None])
def test_a_worker_that_the_job_does_not_have_is_refused(wrong: Any) -> None:
    with pytest.raises(PlanError, match=r"worker of job0 .*; accepted: 0 to "):
        tagger_for(worker=wrong)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "9000"])
def test_a_payload_that_holds_nothing_is_refused(wrong: Any) -> None:
    with pytest.raises(PlanError, match=r"payload_bytes is .*; accepted: a whole number of 1 or more"):
        tagger_for(payload_bytes=wrong)


def test_a_policy_that_cannot_be_deployed_is_refused() -> None:
    with pytest.raises(PlanError, match="accepted for deployment"):
        tagger_for("ideal")


@pytest.mark.parametrize(("family", "level", "option"), [
    (socket.AF_INET, socket.IPPROTO_IP, socket.IP_TOS),
    (socket.AF_INET6, socket.IPPROTO_IPV6, socket.IPV6_TCLASS),
])  # fmt: skip
@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_socket_keeps_both_dscp_and_priority(family: int, level: int, option: int, kind: int) -> None:
    with socket.socket(family, kind) as tagged:
        for traffic in (TrafficClass(56, 6), TrafficClass(8, 1), TrafficClass(0, 0)):
            tag_socket(tagged, traffic)
            assert tagged.getsockopt(level, option) >> 2 == traffic.dscp
            assert tagged.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY) == traffic.priority


def test_the_settings_of_an_endpoint_are_those_of_the_plan() -> None:
    scenario = read_scenario(None, (*SMALL, "transport.window=64 KB", "transport.ack_every=2"))
    plan = make_plan(scenario, parse_policy("bytescheduler"))
    settings = settings_of(plan, Tagger(plan, payload_bytes=8908), rate_bps=10**9)
    assert (settings.flow.window_bytes, settings.flow.ack_every, settings.flow.reordering) == (64_000, 2, 3)
    assert (settings.host_order, settings.credit_bytes, settings.rate_bps) == ("priority", 4_000_000, 10**9)
    assert settings.flow.full_bytes == 9000 + 38
    by_slack = make_plan(scenario, parse_policy("tensorexpress:switch=sp-pifo,queues=slack"))
    assert settings_of(by_slack, Tagger(by_slack, payload_bytes=8908)).flow.reordering == 0
    with pytest.raises(InputError, match="packets of 8909 bytes; accepted: at most the 8908"):
        settings_of(plan, Tagger(plan, payload_bytes=8909))
