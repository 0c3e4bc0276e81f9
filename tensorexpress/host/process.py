"""One host as a process, which `nursery` forks, with its task on standard input.

    standard input      a line of JSON, the task; a line with the start time in ns of CLOCK_MONOTONIC; then nothing. Its
                        end means that whoever started this process is gone, and ends it at once. With background
                        traffic there is one more line when the jobs of all hosts are done, which ends it.
    standard output     lines of JSON: {"ready": true} when the network is open, {"iteration": N} as a worker goes on,
                        {"done": true} when there is only background traffic left to send and take,
                        {"error": TEXT} when it cannot, {"result": BYTES} before so many bytes of observations (.npz)

CLOCK_MONOTONIC is the same for all processes of a machine, so the times of all hosts are of one clock.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tensorexpress.changes import rate_steps
from tensorexpress.classify import queue_map_of
from tensorexpress.errors import InputError, TensorExpressError
from tensorexpress.fixed_point import MOST_WORKERS
from tensorexpress.framing import Framing
from tensorexpress.host.background import LEAST_PACKET_BYTES, BackgroundTraffic, takes_part
from tensorexpress.host.exchange import Exchange
from tensorexpress.host.gradients import Tensors
from tensorexpress.host.links import HostLink, KernelLink
from tensorexpress.host.script import ScriptTensors, ScriptWorker, layer_elements
from tensorexpress.host.summing import PoolExchange, SumServing, WholeLayers
from tensorexpress.host.training import Station, host_settings
from tensorexpress.host.wire_link import WireLink
from tensorexpress.host.worker import Exchanging, Worker
from tensorexpress.plan import JobPlan, Plan
from tensorexpress.plan_file import plan_from_json, plan_to_json
from tensorexpress.script_memory import ScriptMemory
from tensorexpress.wire.frame import FrameEnd as Host
from tensorexpress.wire.header import UDP_PORT
from tensorexpress.wire.udp import take_wire

_PS_PER_NS = 1000


@dataclass(frozen=True)
class Wire:
    """A cable to a switch: the end of a UDP wire, by its descriptor in the host's process."""

    descriptor: int
    mac: str
    gateway_mac: str
    #: Whether frames say when they were sent.
    stamped: bool = False


@dataclass(frozen=True)
class Scripts:
    """Training scripts that make the gradients of a job, by descriptors in the host's process."""

    #: The memory of workers, by number: those of this host, or of all where sums are checked.
    memories: Mapping[int, int]
    #: What leads to the scripts of this host's workers.
    channels: Mapping[int, int]
    #: Whether every sum is compared with that of all gradients.
    checks: bool


@dataclass(frozen=True)
class Task:
    """What one host of a plan has to do."""

    plan: Plan
    #: Index of the host in the plan's cluster.
    host: int
    #: IP address of every host of the cluster.
    addresses: tuple[str, ...]
    #: None where the host has a network stack of its own.
    wire: Wire | None
    session: int
    silence_ps: int
    #: Tells this run from those before it in switches that sum; grows from run to run, modulo 2**32.
    epoch: int = 0
    #: None: gradients cost nothing, and compute is a timer.
    scripts: Scripts | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the task as a JSON object."""
        rest = {name: getattr(self, name) for name in ("host", "addresses", "session", "silence_ps", "epoch")}
        parts = {
            name: part and dataclasses.asdict(part) for name, part in (("wire", self.wire), ("scripts", self.scripts))
        }
        return {**rest, "plan": plan_to_json(self.plan), **parts}


def task_from_json(document: Mapping[str, Any]) -> Task:
    """Return the task that `Task.to_json` wrote."""
    wire = document["wire"]
    return Task(
        plan=plan_from_json(document["plan"]),
        host=document["host"],
        addresses=tuple(document["addresses"]),
        wire=wire and Wire(**wire),
        session=document["session"],
        silence_ps=document["silence_ps"],
        epoch=document["epoch"],
        scripts=_scripts_from_json(document["scripts"]),
    )


def _scripts_from_json(document: Mapping[str, Any] | None) -> Scripts | None:
    if document is None:
        return None
    memories, channels = ({int(key): fd for key, fd in document[name].items()} for name in ("memories", "channels"))
    return Scripts(memories, channels, document["checks"])


def jobs_of(plan: Plan, host: int) -> list[int]:
    """Return the numbers of the jobs that a host takes part in."""
    return [number for number, job in enumerate(plan.jobs) if host in {*job.graph.hosts, *job.job.workers}]


def is_needed(plan: Plan, host: int) -> bool:
    """Return whether a host has anything to do in a run."""
    return bool(jobs_of(plan, host)) or takes_part(plan.scenario, host)


def peers_of(plan: Plan, host: int) -> set[int]:
    """Return the hosts that a host exchanges tensors with, or watches where switches sum."""
    pairs = {pair for job in plan.jobs for pair in (*job.graph.pairs, *_watches(job))}
    return {dst for src, dst in pairs if src == host} | {src for src, dst in pairs if dst == host}


def _watches(job: JobPlan) -> Iterator[tuple[int, int]]:
    """Yield pairs of hosts that notice when the other falls silent; sums in switches do not tell who is missing.

    The first worker and any other: enough that every one is seen by somebody. Servers and all workers, so that a server
    knows when nobody needs it any more.
    """
    if not job.sums:
        return
    first, *others = job.job.workers
    yield from ((first, other) for other in others)
    servers = [tree.server for tree in job.sums if tree.server >= 0]
    yield from ((server, worker) for server in servers for worker in job.job.workers if worker != server)


def join_job(
    plan: Plan,
    job: int,
    host: int,
    station: Station,
    addresses: Sequence[str],
    epoch: int,
    tensors: Tensors | None = None,
) -> Exchanging | None:
    """Let a host take part in a job; return what makes parameters of gradients there, if it has workers."""
    planned, trees = plan.jobs[job], plan.jobs[job].sums
    placed = planned.job
    if not trees:
        return exchange_for(station, plan, job, host, tensors)
    # Not to itself: the kernel would not let that out.
    target = (addresses[next(worker for worker in placed.workers if worker != host)], UDP_PORT)
    if host in {tree.server for tree in trees}:
        SumServing(station, plan, job, host, target=target, epoch=epoch, tensors=tensors)
    parts: list[Exchanging] = []
    if host in {end for pair in planned.graph.pairs for end in pair}:
        parts.append(Exchange(station, plan, job, host, tensors))
    if host not in placed.workers:
        return None
    parts.append(PoolExchange(station, plan, job, host, target=target, epoch=epoch, tensors=tensors))
    return WholeLayers(planned, parts)


def exchange_for(station: Station, plan: Plan, job: int, host: int, tensors: Tensors | None) -> Exchanging:
    """Return a host's part in a job; machine code carries it out where its endpoint is one and no script needs sums."""
    if station.is_native and tensors is None:
        from tensorexpress.host.native_exchange import NativeExchange

        return NativeExchange(station, plan, job, host)
    return Exchange(station, plan, job, host, tensors)


def check_runnable(plan: Plan) -> None:
    """Refuse a plan that asks for what hosts cannot do."""
    scenario, sent = plan.scenario, Framing(plan.scenario.cluster.mtu)
    asked = scenario.framing
    for wrong, message in (
        (
            asked != sent,
            f"transport.header is {asked.header_bytes} and transport.ack_size {asked.ack_bytes}; "
            f"accepted: {sent.header_bytes} and {sent.ack_bytes}, which hosts send; only predict can have others",
        ),
        *(
            (
                source.packet_bytes < LEAST_PACKET_BYTES,
                f"background.{index}.packet is {source.packet_bytes}; accepted: {LEAST_PACKET_BYTES} or more, which a "
                "frame carries without padding; only predict can have less",
            )
            for index, source in enumerate(scenario.background)
        ),
        *(
            (
                job.forward_only or job.architecture == "fsdp",
                f"{job.name} is {'forward_only' if job.forward_only else 'of architecture fsdp'}; accepted: training "
                "with another architecture; only predict can have it",
            )
            for job in scenario.jobs
        ),
        *(
            (
                plan.policy.in_switches and job.gpus_per_host > 1,
                f"{job.name} has {job.gpus_per_host} workers on a host; accepted with sum={plan.policy.sums}: one; "
                "only predict can have more",
            )
            for job in scenario.jobs
        ),
        *(
            (
                plan.policy.in_switches and len(job.workers) > MOST_WORKERS,
                f"{job.name} has {len(job.workers)} workers; accepted with sum={plan.policy.sums}: {MOST_WORKERS} at "
                "most; only predict can have more",
            )
            for job in scenario.jobs
        ),
        (not scenario.transport.acks, "transport.acks is false; accepted: true; only predict can do without"),
    ):
        if wrong:
            raise InputError(f"{scenario.name}: {message}")
    queue_map_of(plan)


def open_link(task: Task) -> HostLink:
    """Open the network of a host."""
    address = task.addresses[task.host]
    if task.wire is None:
        return KernelLink((address, UDP_PORT))
    own = Host(bytes.fromhex(task.wire.mac), ip_address(address))
    wire = take_wire(task.wire.descriptor)
    return WireLink(own, bytes.fromhex(task.wire.gateway_mac), wire, stamped=task.wire.stamped)


class _Parent:
    """Whoever started this process."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO):
        self._requests, self._answers = requests, answers

    def ask(self) -> Any:
        """Return what the next line says; the process ends when there is none."""
        line = self._requests.readline()
        if not line:
            os._exit(1)
        return json.loads(line)

    def tell(self, message: Mapping[str, Any], content: bytes = b"") -> None:
        """Say something; a parent that is gone is noticed elsewhere."""
        self._answers.write(json.dumps(message).encode() + b"\n" + content)
        self._answers.flush()

    def end_with_it(self) -> int:
        """End this process as soon as the parent is gone, whatever it is doing then.

        Return a descriptor on which there is something when the parent has said more.
        """
        heard, said = os.pipe()
        threading.Thread(target=self._wait_for_end, args=(said,), name="parent", daemon=True).start()
        return heard

    def _wait_for_end(self, said: int) -> None:
        # Not through the buffered file: its lock, held by this thread, would stop the interpreter from ending.
        while more := os.read(self._requests.fileno(), 64):
            os.write(said, more)
        os._exit(1)


def _take_part(task: Task, parent: _Parent) -> None:
    """Do what a host has to do, and tell what it saw."""
    plan, jobs = task.plan, jobs_of(task.plan, task.host)
    names = plan.scenario.cluster.hosts
    link = open_link(task)
    # A host without a job has no peers, and sends nothing that any job marks.
    settings = host_settings(plan, task.host, jobs[0] if jobs else 0, task.silence_ps)
    peers = {names[peer]: (task.addresses[peer], UDP_PORT) for peer in peers_of(plan, task.host)}
    background = BackgroundTraffic(plan.scenario, task.host, task.addresses, task.session, link)
    parent.tell({"ready": True})
    start_ps = int(parent.ask()) * _PS_PER_NS
    said = parent.end_with_it()
    station = Station(names[task.host], link, peers, settings, session=task.session)
    _change_rates(plan, task.host, station, start_ps)
    if plan.scenario.background:
        background.start(station.endpoint, start_ps)

    def progress(iteration: int) -> None:
        parent.tell({"iteration": iteration})

    workers: list[tuple[int, Worker | ScriptWorker]] = []
    for job in jobs:
        placed = plan.scenario.jobs[job]
        memories, tensors = _script_tensors(task, job)
        exchange = join_job(plan, job, task.host, station, task.addresses, task.epoch, tensors)
        own = [index for index, host in enumerate(placed.workers) if host == task.host]
        for index in own:
            assert exchange is not None
            worker: Worker | ScriptWorker
            if task.scripts is None:
                worker = Worker(station, plan, job, index, exchange, progress=progress)
            else:
                channel = socket.socket(fileno=task.scripts.channels[index])
                worker = ScriptWorker(
                    station, plan, job, index, exchange, memory=memories[index], channel=channel, progress=progress
                )
            worker.start(start_ps + placed.start_ps)
            workers.append((job, worker))
    with station.endpoint:
        station.run()
        if plan.scenario.background:
            parent.tell({"done": True})
            _run_until_told(station, said)
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, background=background.counts(), **_observations(station, workers))
    parent.tell({"result": content.tell()}, content.getvalue())


def _run_until_told(station: Station, said: int) -> None:
    """Send and take background traffic until the parent says that all jobs are done."""
    told: list[bytes] = []
    station.endpoint.watch(said, lambda: told.append(os.read(said, 64)))
    station.endpoint.run(until=lambda: bool(told))


def _script_tensors(task: Task, job: int) -> tuple[dict[int, ScriptMemory], ScriptTensors | None]:
    """Return the memory of workers by number, and the gradients in it; none where no script makes them."""
    if task.scripts is None:
        return {}, None
    planned = task.plan.jobs[job]
    elements, rounds = layer_elements(planned), task.plan.scenario.rounds
    memories = {
        worker: ScriptMemory(descriptor, elements, rounds) for worker, descriptor in task.scripts.memories.items()
    }
    return memories, ScriptTensors(planned, memories, task.scripts.checks)


def _change_rates(plan: Plan, host: int, station: Station, start_ps: int) -> None:
    """Let the host send at the rates that its link will have."""
    directed = plan.scenario.cluster.directed()
    own = directed.source.index(host)
    for step in rate_steps(plan.scenario.changes, directed.rate_bps):
        if step.thing == own:
            station.call_at(start_ps + step.time_ps, partial(station.endpoint.set_rate, step.value))


def _observations(
    station: Station, workers: Sequence[tuple[int, Worker | ScriptWorker]]
) -> dict[str, NDArray[np.int64]]:
    """Return all that a host saw, by names such as "0/sent" and "0/3/updated": job, worker and what it is."""
    seen = {
        f"{job}/{name}": rows
        for job, transfers in station.transfers.items()
        for name, rows in transfers.arrays().items()
    }
    for job, worker in workers:
        for name, times in {**worker.times_ps(), "updated": worker.updated_ps}.items():
            seen[f"{job}/{worker.index}/{name}"] = times
    endpoint = station.endpoint
    servers = tuple(endpoint.sum_servers())
    counts = (
        endpoint.counters.sent + endpoint.counters.acks_sent,
        endpoint.retransmissions,
        endpoint.timeouts,
        *(sum(getattr(server, name) for server in servers) for name in ("sums", "whole", "packets")),
    )
    return {**seen, "counts": np.array(counts, dtype=np.int64)}


def main() -> None:
    """Run the process; exit status 1 when it could not do all of its task."""
    parent = _Parent(sys.stdin.buffer, sys.stdout.buffer)
    try:
        _take_part(task_from_json(parent.ask()), parent)
    except TensorExpressError as error:
        parent.tell({"error": str(error)})
        sys.exit(1)
