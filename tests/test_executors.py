"""Three executors, one queue: the P4 program in the embedded switch, the Python classifier and the simulator agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.deployed import DeployedSwitch, as_fragment, framed, planned, tagged, with_options, with_vlan
from support.thorough import rest

from tensorexpress.classify import QueueMap
from tensorexpress.control.classify import JOB_MODE, queue_map
from tensorexpress.control.entities import Call, TableEntry
from tensorexpress.control.guard import slot_of_job
from tensorexpress.control.intent import Intent, Options
from tensorexpress.graph import KINDS
from tensorexpress.host.tagging import Tagger
from tensorexpress.plan import make_plan
from tensorexpress.policy import parse_policy
from tensorexpress.queueing import SpPifo
from tensorexpress.scenario import read_scenario
from tensorexpress.sim import flat_plan as simulated
from tensorexpress.wire.frame import read_frame
from tensorexpress.wire.header import Flag, Header, Kind


def cases() -> Iterator[tuple[str, int, bytes]]:
    """Yield a name, a port and a frame for every class of header values."""
    for job, tensors in ((0, 8), (1, 16)):
        for tensor in range(tensors):
            yield f"job {job} tensor {tensor}", 3 * job, framed(tagged(job, tensor), source=3 * job)
    yield "tensor beyond the model", 0, framed(tagged(0, 8))
    yield "largest tensor", 0, framed(tagged(0, 65535))
    yield "unknown job", 0, framed(tagged(2, 0))
    yield "largest job", 0, framed(tagged(65535, 0))
    yield "another job's port", 3, framed(tagged(0, 0), source=3)
    yield "port without a job", 6, framed(tagged(1, 0), source=6)
    for queue in (0, 1, 6, 7, 8, 255):
        yield f"asks for queue {queue}", 0, framed(tagged(0, 5, queue=queue))
    for slack in (0, 1, -1, 2**31 - 1, -(2**31)):
        yield f"slack {slack}", 0, framed(tagged(0, 4, slack_us=slack))
    # Packets to sum wait in no queue before they are summed; tests/test_aggregate.py and test_hashed.py have those.
    for kind in {*Kind, 15} - {Kind.SUM, Kind.PART}:
        yield f"kind {kind}", 0, framed(tagged(0, 4, kind=kind))
    yield "all flags", 0, framed(tagged(0, 4, flags=255))
    yield "named flags", 0, framed(tagged(0, 4, flags=Flag.RETRANSMITTED | Flag.LAST_OF_SLICE))
    yield "chunk beyond chunks", 0, framed(tagged(0, 4, chunk=9, chunks=4))
    yield "largest numbers", 0, framed(tagged(0, 4, worker=65535, iteration=2**32 - 1, chunk=2**32 - 1))
    yield "no payload", 0, framed(tagged(0, 4, b""))
    yield "long payload", 0, framed(tagged(0, 4, bytes(8900)))
    yield "IPv6", 0, framed(tagged(0, 4), version=6)
    yield "VLAN", 0, with_vlan(framed(tagged(0, 4)))
    yield "VLAN and IPv6", 0, with_vlan(framed(tagged(0, 4), version=6))
    yield "IPv4 options", 0, with_options(framed(tagged(0, 4)))
    yield "padding after the packet", 0, framed(tagged(0, 4)) + bytes(30)
    yield "bad magic", 0, framed(b"\x54\x59" + tagged()[2:])
    yield "version 0", 0, framed(tagged()[:2] + b"\x00" + tagged()[3:])
    yield "version 2", 0, framed(tagged()[:2] + b"\x20" + tagged()[3:])
    yield "payload length too small", 0, framed(tagged(payload_bytes=7))
    yield "payload length too large", 0, framed(tagged(payload_bytes=9))
    yield "payload length that wraps", 0, framed(tagged(payload_bytes=65535))
    yield "no room for a header", 0, framed(tagged()[:31])
    yield "no room for a magic number", 0, framed(b"\x54")
    yield "empty", 0, framed(b"")
    yield "cut short in the payload", 0, framed(tagged())[:-1]
    yield "cut short in the header", 0, framed(tagged())[:60]
    yield "first fragment", 0, as_fragment(framed(tagged()), 0x2000)
    yield "later fragment", 0, as_fragment(framed(tagged()), 0x0001)
    yield "bad magic and an urgent DSCP", 0, framed(b"\x54\x59" + tagged()[2:], dscp=56)
    yield "stranger with an urgent DSCP", 6, framed(tagged(), source=6, dscp=56)
    for dscp in range(64):
        yield f"DSCP {dscp}", 6, framed(b"plain", dscp=dscp, port=9)
    yield "DSCP over IPv6", 6, framed(b"plain", dscp=40, port=9, version=6)


def admitted(port: int, frame: bytes) -> bool:
    header = read_frame(frame).header
    return header is not None and header.job == {0: 0, 3: 1}.get(port)


@rest(but=8)
@pytest.mark.parametrize("trust_dscp", [False, True])
@pytest.mark.parametrize("queues", [1, 4, 8])
@pytest.mark.parametrize("policy", ["tensorexpress", "tensorexpress:queues=equal", "fifo"])
def test_the_p4_program_and_the_classifier_choose_the_same_queue(policy: str, queues: int, trust_dscp: bool) -> None:
    plan, options = planned(policy, queues), Options(trust_dscp=trust_dscp)
    switch, classes = DeployedSwitch(plan, options), queue_map(Intent(plan, "s0", options))
    for name, port, frame in cases():
        is_admitted = admitted(port, frame)
        expected = classes.queue_of(read_frame(frame), admitted=is_admitted)
        header = read_frame(frame).header
        slot = slot_of_job(header.job) if header is not None and is_admitted else 0
        assert switch.slot_and_queue(port, frame) == (slot, expected), name


def test_jobs_that_may_ask_get_their_queue_from_the_header() -> None:
    plan = planned()
    asking = TableEntry(JOB_MODE, (("job", 0),), Call("classify.queue_asked", (("most_urgent", 2),)))
    switch = DeployedSwitch(plan, more=(asking,))
    classes: QueueMap = replace(queue_map(Intent(plan, "s0")), asking_jobs={0: 2})
    for name, port, frame in cases():
        expected = classes.queue_of(read_frame(frame), admitted=admitted(port, frame))
        assert switch.slot_and_queue(port, frame)[1] == expected, name


@pytest.mark.parametrize("queues", [1, 3, 8])
def test_the_simulator_and_the_classifier_choose_the_same_queue(queues: int) -> None:
    plan = planned(queues=queues)
    classes = queue_map(Intent(plan, "s0"))
    program = simulated.build(plan)
    jobs = program.flow_job[program.message_flow]
    columns = (jobs, program.message_tensor, program.message_switch_rank)
    assert set(zip(*(column.tolist() for column in columns), strict=True)) == {
        (job, tensor, classes.queue_of_tensor(Header(job, 0, 0, tensor, 0, 1)))
        for job, tensors in ((0, 8), (1, 16))
        for tensor in range(tensors)
    }
    assert program.background_rank == classes.best_effort


#: Servers on the hosts of workers, where messages of two iterations and of both kinds meet in one queue.
COLOCATED = ["job.model=alexnet", "job.workers=3", "job.colocated=true", "cluster.queues=4"]


@pytest.mark.parametrize("policy", ["tensorexpress", "tensorexpress:queues=optimal", "switch-only", "p3"])
def test_whatever_kind_iteration_and_slack_switch_simulator_and_hosts_choose_the_same_queue(policy: str) -> None:
    plan = make_plan(read_scenario(overrides=COLOCATED), parse_policy(policy))
    switch, tagger, program = DeployedSwitch(plan), Tagger(plan, worker=0), simulated.build(plan)
    orders = plan.policy.orders_in_switches
    for tensor in range(len(plan.jobs[0].ranks)):
        queues = set()
        for kind, name in ((Kind.GRADIENT, "push"), (Kind.PARAMETERS, "pull")):
            messages = (program.message_kind == KINDS.index(name)) & (program.message_tensor == tensor)
            queues |= set(program.message_switch_rank[messages].tolist()) if orders else set()
            for iteration, slack_us in product((0, 1, 2, 2**32 - 1), (-(2**31), -1, 0, 1, 40_000, 2**31 - 1)):
                tagger.iteration = iteration
                header = replace(tagger.header(tensor, 0, 8, kind), slack_us=slack_us)
                queues.add(header.queue)
                queues.add(switch.slot_and_queue(0, framed(header.pack() + bytes(8)))[1])
        assert len(queues) == 1, (tensor, queues)


@cache
def ranking_switch(queues: int) -> DeployedSwitch:
    return DeployedSwitch(planned("tensorexpress:switch=sp-pifo,queues=slack", queues))


slacks = st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(-2000, 2000))


@given(st.sampled_from([1, 2, 5, 8]), st.lists(st.tuples(st.integers(0, 1000), slacks), min_size=1, max_size=40))
def test_slack_is_ranked_as_sp_pifo_does(queues: int, packets: list[tuple[int, int]]) -> None:
    switch, oracle = ranking_switch(queues), SpPifo(queues)
    switch.forget_ranks()
    now_us = 0
    for gap_us, slack_us in packets:
        now_us += gap_us
        _, queue = switch.slot_and_queue(0, framed(tagged(0, 1, slack_us=slack_us)), now_us * 10**6)
        assert queue == oracle.place(now_us + 2**32 + slack_us)
