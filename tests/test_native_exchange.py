"""Exchanges that machine code carries out, against those that do it in Python: the same messages at the same times."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.thorough import examples, rest
from support.training_run import write_workload

from tensorexpress.addresses import default_addresses
from tensorexpress.errors import NetworkError
from tensorexpress.host import exchange_layout as at
from tensorexpress.host.exchange import Exchange
from tensorexpress.host.process import exchange_for, jobs_of, peers_of
from tensorexpress.host.segments import machine_code
from tensorexpress.host.tagging import Tag
from tensorexpress.host.training import Station, host_settings
from tensorexpress.host.wire_link import WireLink
from tensorexpress.host.worker import Worker
from tensorexpress.plan import Plan, make_plan
from tensorexpress.policy import parse_policy
from tensorexpress.scenario import read_scenario
from tensorexpress.units import PS_PER_MS
from tensorexpress.wire.frame import FrameEnd
from tensorexpress.wire.header import UDP_PORT
from tensorexpress.wire.udp import lay_wire

pytestmark = pytest.mark.skipif(machine_code() is None, reason="no machine code of segments on this processor")

_GATEWAY = bytes.fromhex("020000000001")
_LONGEST = 10_000
_WIRE_PS = 50 * 10**6

MakeExchange = Callable[[Station, Plan, int, int], Any]


def in_python(station: Station, plan: Plan, job: int, host: int) -> Exchange:
    return Exchange(station, plan, job, host)


def in_machine_code(station: Station, plan: Plan, job: int, host: int) -> Any:
    exchange = exchange_for(station, plan, job, host, None)
    assert not isinstance(exchange, Exchange)
    return exchange


class Cluster:
    """All hosts of a plan in virtual time: what one sends is there a moment later, unless it is lost."""

    def __init__(self, plan: Plan, make: MakeExchange, *, loss: float = 0.0, seed: int = 0):
        self.plan, self.now_ps = plan, 10**15
        self.chance, self.loss = random.Random(seed), loss
        names, addresses = plan.scenario.cluster.hosts, default_addresses(plan.scenario.cluster.hosts)
        self.wires, self.stations, self.exchanges, self.workers = {}, {}, {}, []
        for host in range(len(names)):
            if not (jobs := jobs_of(plan, host)):
                continue
            here, self.wires[addresses[host].ipv4.packed] = lay_wire()
            link = WireLink(FrameEnd(addresses[host].mac, addresses[host].ipv4), _GATEWAY, here)
            peers = {names[peer]: (str(addresses[peer].ipv4), UDP_PORT) for peer in peers_of(plan, host)}
            settings = host_settings(plan, host, jobs[0], 0)
            station = self.stations[host] = Station(
                names[host], link, peers, settings, session=7, clock_ps=lambda: self.now_ps
            )
            for job in jobs:
                exchange = self.exchanges[host, job] = make(station, plan, job, host)
                placed = plan.scenario.jobs[job]
                for index in (index for index, worker in enumerate(placed.workers) if worker == host):
                    worker = Worker(station, plan, job, index, exchange)
                    worker.start(self.now_ps + placed.start_ps)
                    self.workers.append(worker)

    def run(self, most: int = 100_000) -> None:
        """Let time pass until all workers and exchanges are done, and everything was acknowledged."""
        arriving: list[tuple[int, bytes]] = []
        for _ in range(most):
            for station in self.stations.values():
                station.endpoint.receive()
                station.endpoint.advance()
            for source in self.wires.values():
                while (frame := _frame_of(source)) is not None:
                    if self.chance.random() >= self.loss:
                        arriving.append((self.now_ps + _WIRE_PS, frame))
            if self.is_done():
                return
            due = [time for station in self.stations.values() if (time := station.endpoint.next_event_ps()) is not None]
            times = [*due, *(time for time, _ in arriving[:1])]
            assert times, "nothing is on its way and nobody waits for a time: a deadlock"
            self.now_ps = max(self.now_ps, min(times))
            while arriving and arriving[0][0] <= self.now_ps:
                frame = arriving.pop(0)[1]
                self.wires[frame[30:34]].send(frame)
        raise AssertionError(f"not done after {most} steps")

    def is_done(self) -> bool:
        return (
            all(worker.done for worker in self.workers)
            and all(exchange.done for exchange in self.exchanges.values())
            and all(station.endpoint.idle for station in self.stations.values())
        )

    def seen(self) -> list[object]:
        """Return what hosts saw: times of messages and of workers, and packets."""
        found: list[object] = []
        for host, station in self.stations.items():
            station.note_all_sent()
            for job, transfers in station.transfers.items():
                for name, rows in transfers.arrays().items():
                    found.append((host, job, name, rows[np.lexsort(rows.T[::-1])].tolist()))
            found.append((host, vars(station.endpoint.counters), station.endpoint.retransmissions))
        for worker in self.workers:
            found.append([times.tolist() for times in (*worker.times_ps().values(), worker.updated_ps)])
        return found

    def close(self) -> None:
        for station in self.stations.values():
            station.endpoint.close()
        for wire in self.wires.values():
            wire.close()


def _frame_of(wire) -> bytes | None:
    try:
        return wire.recv(_LONGEST)
    except BlockingIOError:
        return None


def plan_of(directory, *overrides: str, policy: str = "tensorexpress") -> Plan:
    csv = write_workload(directory)
    usual = ["job.model=", f"job.csv={csv}", "cluster.bandwidth=40 Mbps", "iterations=2", "warmup=0"]
    return make_plan(read_scenario(None, [*usual, *(each.format(csv=csv) for each in overrides)]), parse_policy(policy))


@contextmanager
def cluster_of(plan: Plan, make: MakeExchange, **options: Any) -> Iterator[Cluster]:
    cluster = Cluster(plan, make, **options)
    try:
        yield cluster
    finally:
        cluster.close()


def seen_by(plan: Plan, make: MakeExchange, **options: Any) -> list[object]:
    with cluster_of(plan, make, **options) as cluster:
        cluster.run()
        if make is in_machine_code:
            # Nothing is held that nobody needs any more.
            assert not any(exchange.words[at.X_BLOCKS] for exchange in cluster.exchanges.values())
        return cluster.seen()


SERVERS = ["job.workers=3", "job.servers=2"]
CASES = {
    "servers": SERVERS,
    "servers that take time to sum": [*SERVERS, "job.sum_rate=1 Gbps"],
    "one worker": ["job.workers=1", "job.servers=1"],
    "barrier": [*SERVERS, "job.barrier=true"],
    "colocated": ["job.workers=3", "job.servers=3", "job.colocated=true", "job.shard=10 KB"],
    "ring": ["job.workers=3", "job.servers=0", "job.architecture=ring", "job.bucket=40 KB"],
    "tree": ["job.workers=5", "job.servers=0", "job.architecture=tree", "compute.jitter=0.1"],
    "several jobs": [
        "job.0.workers=h0,h1", "job.0.servers=h2", "job.1.model=", "job.1.csv={csv}", "job.1.workers=h0,h3",
        "job.1.servers=h2", "job.1.start=20 ms",
    ],
    "several workers on a host": ["job.workers=4", "job.servers=1", "job.gpus_per_host=2"],
    "workers that share a bus": ["job.workers=4", "job.servers=1", "job.gpus_per_host=2", "job.local_rate=1 Gbps"],
}  # fmt: skip


@rest(but=10)
@pytest.mark.parametrize("policy", ["fifo", "tensorexpress", "p3", "bytescheduler", "random"])
@pytest.mark.parametrize("case", CASES)
def test_messages_are_ready_sent_and_delivered_when_python_would(case, policy, tmp_path):
    plan = plan_of(tmp_path, *CASES[case], policy=policy)
    python, native = (seen_by(plan, make) for make in (in_python, in_machine_code))
    assert python == native


@rest(but=2)
@pytest.mark.parametrize("seed", range(examples(30)))
def test_so_they_are_where_packets_are_lost(seed, tmp_path):
    chance = random.Random(seed)
    case, policy = chance.choice(list(CASES.values())), chance.choice(["fifo", "tensorexpress", "random"])
    plan = plan_of(
        tmp_path, *case, "transport.rto_min=5 ms", f"compute.jitter={chance.choice((0, 0.2))}", policy=policy
    )
    python, native = (seen_by(plan, make, loss=0.05, seed=seed) for make in (in_python, in_machine_code))
    assert python == native


WRONG_SUM = r"^h0: in iteration 0, layer3 from h[34] is not the sum of all gradients: element \d+ is \S+, not \S+$"


@pytest.mark.parametrize("make", [in_python, in_machine_code])
def test_a_sum_that_is_wrong_is_told_by_element(make, tmp_path):
    plan = plan_of(tmp_path, *SERVERS)
    with cluster_of(plan, make) as cluster:
        table = gradients_in(cluster.exchanges[1, 0])
        table.flags.writeable = True
        table[5000:] += 1
        with pytest.raises(NetworkError, match=WRONG_SUM):
            cluster.run()


def gradients_in(exchange: Any) -> Any:
    if isinstance(exchange, Exchange):
        return exchange._tensors.tables[0]
    return exchange._kept[at.X_TABLE]


def test_what_is_not_due_is_refused_and_harms_nobody(tmp_path):
    plan = plan_of(tmp_path, *SERVERS, "cluster.bandwidth=1 Gbps")
    graph = plan.jobs[0].graph
    with cluster_of(plan, in_machine_code) as cluster:
        worker, server = (cluster.stations[host] for host in (0, 3))
        [number] = np.flatnonzero((graph.src == 0) & (graph.dst == 3))[:1].tolist()
        size = int(graph.bytes[number])
        plain = Tag(job=0, worker=0, iteration=0, tensor=0, message=number, flow=900)
        wrong = [
            (replace(plain, iteration=1), size),
            (replace(plain, iteration=2**32 - 1), size),
            (replace(plain, message=2**32 - 1), size),
            (replace(plain, message=len(graph.kind)), size),
            # That of another worker, of another host, and one that this host sends itself.
            *((replace(plain, message=int(np.flatnonzero(other)[0])), size) for other in (
                (graph.src == 1) & (graph.dst == 3), graph.dst == 0, graph.src == 3)),
            (plain, size - 4),
            (plain, size + 4),
            (plain, 0),
        ]  # fmt: skip
        for flow, (tag, length) in enumerate(wrong, start=900):
            worker.endpoint.send("h3", replace(tag, flow=flow), bytes(length))
        wires = list(cluster.wires.values())
        for _ in range(50):
            worker.endpoint.advance()
            while (frame := _frame_of(wires[0])) is not None:
                wires[3].send(frame)
            server.endpoint.receive()
            cluster.now_ps += PS_PER_MS // 10
        assert server.endpoint.counters.refused >= len(wrong)
        assert server.endpoint.counters.acks_sent == 0
        assert cluster.exchanges[3, 0].words[at.X_BLOCKS] == 0
