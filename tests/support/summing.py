"""Jobs whose gradients switches sum, the switches of their trees in this process, and packets to sum."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from ipaddress import IPv4Address
from random import Random

import numpy as np
from numpy.typing import NDArray

from support.deployed import PROGRAM, compiled, operations
from tensorexpress.addresses import GATEWAY_MAC, addresses_of
from tensorexpress.control.aggregate import EVENT_NAMES, EVENTS
from tensorexpress.control.deploy import entries
from tensorexpress.control.entities import Entity
from tensorexpress.control.intent import Intent, Options
from tensorexpress.framing import WORKERS_BYTES
from tensorexpress.p4 import P4Program
from tensorexpress.plan import Plan, make_plan
from tensorexpress.policy import parse_policy
from tensorexpress.scenario import read_scenario
from tensorexpress.sums import VALUES, Pool, SummingSwitch, SumPlan
from tensorexpress.switch.device import Switch
from tensorexpress.switch.operations import ReadCounter
from tensorexpress.wire.checksum import checksum
from tensorexpress.wire.frame import FrameEnd, build_frame
from tensorexpress.wire.header import Flag, Header, Kind, unpack
from tensorexpress.wire.sum_header import SumHeader, check_of

Values = NDArray[np.int32]

HEADERS_BYTES = 14 + 20 + 8
PAYLOAD_BYTES = 16 + 1024


def pool(first_slot: int, slots: int) -> Pool:
    """Return a pool; switches care for nothing of it but its slots."""
    return Pool(queue=0, first_slot=first_slot, slots=slots, tensors=(0,), packets=(1,))


@cache
def star_plan(workers: int = 3, first_slot: int = 4, slots: int = 8, jobs: int = 1) -> Plan:
    """Return a plan with jobs of so many workers, one after the other at one switch, and one more host."""
    each = [
        [f"job.{job}.model=alexnet", f"job.{job}.architecture=ring", f"job.{job}.workers={workers}"]
        for job in range(jobs)
    ]
    words = [word for words in each for word in words]
    plan = make_plan(
        read_scenario(overrides=[*words, f"cluster.hosts={jobs * workers + 1}"]), parse_policy("tensorexpress")
    )
    summed = tuple(
        replace(
            job,
            sums=(
                SumPlan(
                    switches=(SummingSwitch(switch=0, children=tuple(2 * host for host in job.job.workers)),),
                    pools=(pool(first_slot + number * slots, slots),),
                ),
            ),
        )
        for number, job in enumerate(plan.jobs)
    )
    return replace(plan, jobs=summed)


@cache
def tree_plan(workers: int = 4, first_slot: int = 4, slots: int = 8) -> Plan:
    """Return a plan whose one job has workers under two leaves, which a spine joins."""
    words = ["job.model=alexnet", "job.architecture=ring", f"job.workers={workers}", "cluster.topology=leaf-spine"]
    words += ["cluster.leaves=2", "cluster.spines=1", "cluster.hosts_per_leaf=2"]
    plan = make_plan(read_scenario(overrides=words), parse_policy("tensorexpress"))
    # Hosts 0 and 1 are at s0, 2 and 3 at s1; links 0, 2, 4, 6 lead from them, 8 and 10 from the leaves to s2.
    below = [tuple(2 * host for host in plan.jobs[0].job.workers if host // 2 == leaf) for leaf in range(2)]
    leaves = [SummingSwitch(leaf, children, up=8 + 2 * leaf) for leaf, children in enumerate(below)]
    switches = [SummingSwitch(switch=2, children=(8, 10)), *leaves]
    sums = SumPlan(switches=tuple(switches), pools=(pool(first_slot, slots),))
    return replace(plan, jobs=(replace(plan.jobs[0], sums=(sums,)),))


@cache
def served_plan(*words: str, policy: str = "libra") -> Plan:
    """Return a plan whose sums end at servers; the last of its hosts has nothing to do, unless words say otherwise."""
    return make_plan(read_scenario(overrides=["job.model=alexnet", *words]), parse_policy(policy))


@cache
def hashed_plan(*words: str, cells: int = 2, policy: str = "tensorexpress:sum=hashed") -> Plan:
    """Return a plan whose slots are found by hash among so many cells.

    Every tree has two pools, of the first two classes: pool 0 and 1 in the first, 2 and 3 in the second.
    """
    plan = served_plan(*words, policy=policy)
    jobs = []
    for job in plan.jobs:
        each = [(pool(number, 2), pool(number + 1, 2)) for number in range(0, 2 * len(job.sums), 2)]
        pools = [(first, replace(second, queue=1)) for first, second in each]
        trees = zip(job.sums, pools, strict=True)
        jobs.append(replace(job, sums=tuple(replace(sums, pools=own, cells=cells) for sums, own in trees)))
    return replace(plan, jobs=tuple(jobs))


#: Workers are hosts 0 to 2, then come the servers, and one host that has no business there.
ONE_SERVER = ("job.workers=3", "job.servers=1", "cluster.hosts=5")
TWO_SERVERS = ("job.workers=3", "job.servers=2", "cluster.hosts=6")
COLOCATED = ("job.workers=3", "job.servers=2", "job.colocated=true", "cluster.hosts=4")
#: Job 0 has hosts 0 to 2 and server 3, job 1 has hosts 4 to 6 and server 7.
TWO_JOBS = (
    *(f"job.{job}.{word}" for job in range(2) for word in ("model=vgg16", "workers=3", "servers=1")),
    "cluster.hosts=9",
)
#: Hosts 0 and 1 are at s0, worker 2 and the server at s1; a spine s2 joins the two, or a link alone.
TWO_LEAVES = (
    *("job.workers=3", "job.servers=1", "cluster.topology=leaf-spine", "cluster.leaves=2", "cluster.spines=1"),
    "cluster.hosts_per_leaf=2",
)
DUMBBELL = ("job.workers=3", "job.servers=1", "cluster.topology=dumbbell", "cluster.left=2", "cluster.right=2")


@dataclass(frozen=True)
class SumPacket:
    """What a packet to sum says."""

    header: Header
    sums: SumHeader
    values: Values

    def payload(self) -> bytes:
        return self.header.pack() + self.sums.pack() + self.values.astype(">i4").tobytes()


def packet(values: Values, *, worker: int = 0, job: int = 0, chunk: int = 0, **fields: int) -> SumPacket:
    """Return a contribution, of kind 5 if it says whose values are in.

    `fields` are those of the sum header, and some of the tensor header, with what is usual left out.
    """
    of_header = {
        name: fields.pop(name) for name in ("iteration", "tensor", "queue", "slack_us", "sent_again") if name in fields
    }
    is_part = bool(fields.get("workers"))
    header = Header(
        job,
        worker,
        of_header.pop("iteration", 0),
        of_header.pop("tensor", 0),
        chunk,
        fields.pop("chunks", 100),
        kind=Kind.PART if is_part else Kind.SUM,
        payload_bytes=PAYLOAD_BYTES + is_part * WORKERS_BYTES,
        flags=of_header.pop("sent_again", 0) * Flag.RETRANSMITTED,
        **of_header,
    )
    usual = {"epoch": 7, "turn": 0, "slot": 4, "check": check_of(values), "exponent": 1, "needed": 0}
    return SumPacket(header, SumHeader(**{**usual, **fields}), values)


def read_payload(payload: bytes) -> SumPacket:
    """Return what is in a UDP packet."""
    header, workers = unpack(payload), 0
    rest = payload[32:]
    if header.kind == Kind.PART:
        workers, rest = int.from_bytes(rest[:WORKERS_BYTES], "big"), rest[WORKERS_BYTES:]
    assert len(rest) == PAYLOAD_BYTES
    values = np.frombuffer(rest, dtype=">i4", offset=16).astype(np.int32)
    return SumPacket(header, SumHeader.unpack(rest, workers), values)


def parse(frame: bytes) -> SumPacket:
    """Return what a frame says; all its checksums must be right."""
    content = read_payload(frame[HEADERS_BYTES:])
    assert checksum(frame[14:34]) == 0
    assert frame[40:42] != bytes(2)
    assert checksum(frame[26:34] + struct.pack("!II", len(frame) - 34, 17) + frame[34:]) == 0
    return content


class SummingNetwork:
    """The switches of a plan that sums, joined by their links, in virtual time; hosts are outside."""

    def __init__(
        self, plan: Plan, options: Options | None = None, program: P4Program = PROGRAM, more: Sequence[Entity] = ()
    ):
        self.plan, self._cluster = plan, plan.scenario.cluster
        self.addresses = addresses_of(self._cluster)
        self.now_ps = 0
        self._sent: list[tuple[int, bytes]] = []
        self.switches = {
            name: self._start(name, options or Options(), program, more) for name in self._cluster.switches
        }

    def _start(self, name: str, options: Options, program: P4Program, more: Sequence[Entity]) -> Switch:
        switch = Switch(lambda port, frame, time_ps: self._sent.append((port, frame)))
        code = compiled(program.document)
        configuration = switch.prepare(code)
        for entry in code.entries:
            configuration.apply(entry)
        switch.switch_over(configuration)
        switch.apply(operations((*entries(Intent(self.plan, name, options)), *more), program))
        return switch

    def pass_one(self, name: str, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Return what leaves one switch because of a frame."""
        self._sent.clear()
        self.switches[name].receive(port, frame, self.now_ps)
        return list(self._sent)

    def send(self, host: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Return what reaches which hosts because of a frame, after all switches on its way."""
        links, hosts = self._cluster.directed(), len(self._cluster.hosts)
        under_way = [(links.source.index(host), frame)]
        arrived = []
        while under_way:
            link, data = under_way.pop(0)
            node = links.target[link]
            if node < hosts:
                arrived.append((node, data))
                continue
            name = self._cluster.nodes[node]
            ports = {link: port for port, link in self._cluster.ports(name).items()}
            outgoing = {port: link for link, port in ports.items()}
            under_way += [(outgoing[port], out) for port, out in self.pass_one(name, ports[link ^ 1], data)]
        return arrived

    def frame(self, host: int, content: SumPacket, **ip: int) -> bytes:
        """Return the frame in which a host sends a packet to sum."""
        return self.framed(host, content.payload(), **ip)

    def framed(self, host: int, payload: bytes, source: IPv4Address | None = None, **ip: int) -> bytes:
        own, first = self.addresses[host], self.addresses[self.plan.jobs[0].job.workers[0]]
        return build_frame(FrameEnd(own.mac, source or own.ipv4), FrameEnd(GATEWAY_MAC, first.ipv4), payload, **ip)

    def events(self, name: str = "s0") -> dict[str, int]:
        """Return what a switch counted of packets to sum."""
        cells = self.switches[name].ask([ReadCounter(f"TensorIngress.{EVENTS}", None)])[0]
        return {EVENT_NAMES[cell]: packets for cell, (packets, _) in enumerate(cells) if packets}


def random_sums(choose: Random, network: SummingNetwork, count: int) -> Iterator[tuple[int, bytes]]:
    """Yield (host, frame) of workers of `star_plan(3, jobs=2)` on a bad network, and of one that has no business there.

    Workers take turns nearly together, so that sums are completed; what they send is of a few kinds that go wrong.
    """
    turns = dict.fromkeys(((job, slot) for job in range(2) for slot in range(2)), 0)
    for _ in range(count):
        job, worker, slot = choose.randrange(2), choose.randrange(3), choose.randrange(2)
        turns[job, slot] += choose.random() < 0.1
        turn = (2**32 - 3 + turns[job, slot] + choose.choice([-2, -1, -1, 0, 0, 0, 0])) % 2**32
        most = choose.choice([2**20, 2**20, 2**31 - 1])
        values = np.random.default_rng(choose.randrange(4)).integers(-most, most, VALUES, dtype=np.int32)
        fields = {"epoch": choose.choice([2**32 - 1, 0, 0, 0]), "turn": turn, "slot": 4 + 8 * job + slot}
        fields |= {"needed": choose.randrange(-5, 5), "culprit": choose.choice([0, 0, worker + 1]), "chunk": turn // 2}
        if choose.random() < 0.2:
            wrong = (("slot", 3), ("chunk", 9), ("exponent", 9), ("flags", 1), ("flags", 2), ("flags", 252))
            fields.update([choose.choice(wrong)])
        host = choose.choice([3 * job + worker] * 20 + list(range(7)))
        frame = network.frame(host, packet(values, worker=worker, job=job, **fields))
        if choose.random() < 0.1:
            place = choose.randrange(14, len(frame))
            frame = frame[:place] + bytes([frame[place] ^ 1 << choose.randrange(8)]) + frame[place + 1 :]
        yield host, frame
