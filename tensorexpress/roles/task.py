"""What one process of asynchronous training has to know: plain values that go over a pipe as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tensorexpress.changes import pace_steps
from tensorexpress.commits.modes import CommitMode

if TYPE_CHECKING:
    # Every role is a process, and none needs more of scenarios than what its task says.
    from tensorexpress.scenario import Scenario

ROLES = ("scheduler", "server", "replica", "helper", "worker")


@dataclass(frozen=True)
class RoleTask:
    """One process: its role and host, who else there is, and how all train."""

    role: str
    host: int
    #: Where everybody listens: a folder of Unix sockets that nobody else may enter.
    folder: str
    mode: str
    workers: tuple[int, ...]
    server: int
    helpers: tuple[int, ...]
    #: None: there is no replica; and nobody decides.
    replica: int | None
    scheduler: int | None
    tau: int
    divergence: float
    problem: str
    learning_rate: float
    target_loss: float
    updates: int
    update_bytes: int
    add_rate_bps: int
    update_rate_bps: int
    #: Of every host that takes part: bit/s at which it sends and gets, by when these begin, in seconds.
    send_steps: dict[int, list[tuple[float, int]]]
    receive_steps: dict[int, list[tuple[float, int]]]
    compute_s: float
    overhead_s: float
    pause_s: float
    jitter: float
    #: How many times slower this host's worker computes, by when that begins.
    slower_steps: list[tuple[float, float]]
    seed: int

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return asdict(self)


def task_from(document: Mapping[str, Any]) -> RoleTask:
    """Return the task that `RoleTask.to_json` wrote; JSON knows neither tuples nor numbers as keys."""
    steps = {
        name: {int(host): [(time_s, rate) for time_s, rate in own] for host, own in document[name].items()}
        for name in ("send_steps", "receive_steps")
    }
    slower = [(time_s, factor) for time_s, factor in document["slower_steps"]]
    tuples = {name: tuple(document[name]) for name in ("workers", "helpers")}
    return RoleTask(**{**document, **steps, **tuples, "slower_steps": slower})


def tasks_for(scenario: Scenario, mode: CommitMode, folder: str) -> list[RoleTask]:
    """Return the tasks of all processes; a scheduler, helpers and a replica are there if the mode has use for them."""
    job, commits = scenario.jobs[0], scenario.commits
    helpers = commits.helpers if mode.summed else ()
    replica = commits.replicas[0] if mode.replicated else None
    server = job.servers[0]
    # It has no host of its own: what it says is a small packet.
    scheduler = len(scenario.cluster.hosts) if mode.ordered else None
    hosts = [*job.hosts, server, *helpers, *([replica] if replica is not None else [])]
    send, receive = _rate_steps(scenario, hosts)
    slower = dict(scenario.stragglers)

    def task(role: str, host: int) -> RoleTask:
        own = slower.get(host, 1.0)
        steps = [
            (step.time_ps / 1e12, own * step.value / 1e6) for step in pace_steps(scenario.changes) if step.thing == host
        ]
        return RoleTask(
            role=role,
            host=host,
            folder=folder,
            mode=mode.name,
            workers=job.hosts,
            server=server,
            helpers=helpers,
            replica=replica,
            scheduler=scheduler,
            tau=commits.tau,
            divergence=commits.divergence,
            problem=commits.problem,
            learning_rate=commits.learning_rate,
            target_loss=commits.target_loss,
            updates=commits.updates,
            update_bytes=sum(job.workload.tensor_bytes),
            add_rate_bps=job.add_rate_bps,
            update_rate_bps=job.update_rate_bps,
            send_steps=send,
            receive_steps=receive,
            compute_s=job.workload.compute_ps / 1e12,
            overhead_s=job.overhead_ps / 1e12,
            pause_s=commits.pause_ps / 1e12,
            jitter=scenario.jitter,
            slower_steps=[(0.0, own), *steps],
            seed=scenario.seed,
        )

    return [
        *([task("scheduler", scheduler)] if scheduler is not None else []),
        *([task("replica", replica)] if replica is not None else []),
        task("server", server),
        *(task("helper", host) for host in helpers),
        *(task("worker", host) for host in job.hosts),
    ]


Steps = dict[int, list[tuple[float, int]]]


def _rate_steps(scenario: Scenario, hosts: list[int]) -> tuple[Steps, Steps]:
    """Return the rates of the hosts' links, what they send and what they get, with all changes of them."""
    directed = scenario.directed()
    changes = scenario.rate_steps()
    send: Steps = {}
    receive: Steps = {}
    for link, (source, target) in enumerate(zip(directed.source, directed.target, strict=True)):
        for host, found in ((source, send), (target, receive)):
            if host in hosts:
                later = [(step.time_ps / 1e12, step.value) for step in changes if step.thing == link]
                found[host] = [(0.0, directed.rate_bps[link]), *later]
    return send, receive
