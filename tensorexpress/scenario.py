"""Scenarios: a cluster, the jobs on it, and what disturbs them; read from TOML, or written in Python in the same words.

There is one way in: a document (what a TOML file holds) and overrides ("KEY=VALUE") become a `Scenario`; an empty
document is the default scenario. `scenario_keys` says what may be written, `scenario_document` reads what was, and
this module what it means. What happens depends on no policy; those that a file names are beside it, in a `Study`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, NamedTuple

from tensorexpress import cluster as clusters
from tensorexpress import models
from tensorexpress.buffer import most_in_queue
from tensorexpress.changes import Change, ChangeStep, change_problems, describe_change, extremes, links_of, rate_steps
from tensorexpress.cluster import Cluster
from tensorexpress.commits.modes import COMMIT_MODES
from tensorexpress.commits.settings import CommitSettings, usual_modes
from tensorexpress.errors import InputError, ScenarioError, shown
from tensorexpress.framing import SEGMENT_OVERHEAD_BYTES, Framing
from tensorexpress.graph import ALL_ARCHITECTURES, ASYNC
from tensorexpress.learning import PROBLEMS
from tensorexpress.names import check_name, name_of_file
from tensorexpress.policy import Policy
from tensorexpress.presets import PRESETS
from tensorexpress.recovery import LEAST_TIMEOUT_PS
from tensorexpress.routing import DirectedLinks
from tensorexpress.scenario_document import Document, Override, Table, merge, read_toml
from tensorexpress.scenario_keys import SECTIONS, keys
from tensorexpress.sums import MOST_CHILDREN, PART_FRAMING, SUM_FRAMING
from tensorexpress.topologies import TOPOLOGIES
from tensorexpress.units import counted, format_rate, format_time
from tensorexpress.workload import Workload, at_throughput, compressed, in_buckets, read_csv, without_backward

__all__ = [
    "Background",
    "Change",
    "Job",
    "Scenario",
    "Study",
    "Transport",
    "chosen_policies",
    "keys",
    "make_scenario",
    "policy_problems",
    "problems",
    "read_scenario",
    "read_study",
    "scenario_from",
    "study_from",
    "sum_problems",
    "to_json",
]


@dataclass(frozen=True)
class Transport:
    """The reliable windowed transport between hosts."""

    #: Most bytes a flow (a pair of hosts and a queue of one job) may have unacknowledged; 0 is no limit.
    window_bytes: int = 128_000
    #: Bytes of the window at the start and after nothing has been lost; 0 starts with the whole window.
    initial_window_bytes: int = 0
    #: Packets a receiver takes before it acknowledges; gaps, marks and ends of slices it acknowledges at once.
    ack_every: int = 4
    #: False leaves acknowledgements out: an idealisation for lossless studies against closed forms.
    acks: bool = True
    #: Least time-out; the actual one follows the measured round trip.
    rto_min_ps: int = LEAST_TIMEOUT_PS
    #: Bytes in a switch queue from which packets are marked (ECN); 0 is off.
    ecn_bytes: int = 0
    #: Bytes of a packet on the wire that are not tensor; the default is what our transport sends.
    header_bytes: int = SEGMENT_OVERHEAD_BYTES
    #: Bytes of an acknowledgement on the wire.
    ack_bytes: int = SEGMENT_OVERHEAD_BYTES
    #: What the stack reaches of a host's link, and bit/s that it reaches at the most; 0 is no limit.
    rate_share: float = 1.0
    stack_rate_bps: int = 0
    #: Bit/s at which a host copies messages, and what each costs beside, on the way out and in; 0 is at once.
    copy_rate_bps: int = 0
    message_ps: int = 0

    @property
    def has_software(self) -> bool:
        """Whether anything of what hosts' software takes is said, which is for predictions alone."""
        return bool(self.rate_share != 1 or self.stack_rate_bps or self.copy_rate_bps or self.message_ps)


@dataclass(frozen=True)
class Job:
    """One training job: a workload on some hosts."""

    name: str
    workload: Workload
    #: Index of every worker's host; one with several GPUs stands here once for each of them.
    workers: tuple[int, ...]
    #: Indices of the hosts that sum; empty where workers sum among themselves. A host may be both.
    servers: tuple[int, ...] = ()
    #: A name in `graph.ALL_ARCHITECTURES`.
    architecture: str = "ps"
    #: Tensors of at least this many bytes are split over all servers; smaller ones stay on one.
    shard_bytes: int = 1_000_000
    #: Bit/s at which a server sums; 0 is at once.
    sum_rate_bps: int = 0
    #: When the first iteration starts.
    start_ps: int = 0
    #: Workers on every host, which sum among themselves before they use the network.
    gpus_per_host: int = 1
    #: Bit/s between them; 0 is at once.
    local_rate_bps: int = 0
    #: Bytes from which on a bucket of layers is full; 0: every layer is a tensor of its own.
    bucket_bytes: int = 0
    #: How many layers ahead parameters may be gathered where they are sharded.
    prefetch: int = 1
    #: Whether it only infers: parameters are pulled before every pass.
    forward_only: bool = False
    #: Bit/s at which a host adds what comes in to a sum, one message after another; 0 is at once.
    add_rate_bps: int = 0
    #: Bit/s at which a server makes parameters of sums, one after another; 0 is at once.
    update_rate_bps: int = 0
    #: What an iteration takes at a worker beside its layers, before the first of them.
    overhead_ps: int = 0
    #: Whether nothing of the next iteration starts at a worker before it has all parameters.
    barrier: bool = False
    #: The hottest rows of every sparse table, which switches sum where a policy has them sum; "auto": see `hot_rows`.
    hot_rows: int | str = "auto"

    def __post_init__(self) -> None:
        check_name("the name of a job", self.name, ScenarioError)

    @property
    def hosts(self) -> tuple[int, ...]:
        """The hosts that compute, each once."""
        return tuple(dict.fromkeys(self.workers))

    def exchanges(self, workload: Workload) -> Workload:
        """Return the workload of a model as this job computes and exchanges it; its own is that already."""
        joined = in_buckets(workload, self.bucket_bytes)
        return without_backward(joined) if self.forward_only else joined

    @property
    def placement(self) -> str:
        """How many compute and how they sum, for people: "8 workers, 4 servers", "8 workers on 2 hosts, ring"."""
        on_hosts = f" on {counted(len(self.hosts), 'host')}" if self.gpus_per_host > 1 else ""
        sums = counted(len(self.servers), "server") if self.servers else self.architecture
        return f"{counted(len(self.workers), 'worker')}{on_hosts}, {sums}"


@dataclass(frozen=True)
class Background:
    """Open-loop traffic from one host to another."""

    src: int
    dst: int
    rate_bps: int
    packet_bytes: int = 1500
    #: "constant" or "poisson" gaps between packets.
    pattern: str = "poisson"
    #: When it begins, and when it ends; None is never.
    at_ps: int = 0
    until_ps: int | None = None


_USUAL_COMMITS = CommitSettings()


@dataclass(frozen=True)
class Scenario:
    """Everything a prediction depends on but the policy."""

    name: str
    cluster: Cluster
    jobs: tuple[Job, ...]
    transport: Transport = Transport()
    background: tuple[Background, ...] = ()
    #: Relative standard deviation of compute times, drawn per worker and iteration.
    jitter: float = 0.0
    #: How many times slower the named workers compute, as (host, factor).
    stragglers: tuple[tuple[int, float], ...] = ()
    #: Probability that a packet is lost on a link.
    loss: float = 0.0
    seed: int = 1
    #: Iterations measured, after `warmup` ones that are not.
    iterations: int = 2
    warmup: int = 1
    #: What is otherwise for a while.
    changes: tuple[Change, ...] = ()
    #: Of a job whose workers are not in step.
    commits: CommitSettings = _USUAL_COMMITS

    def __post_init__(self) -> None:
        check_name("the name of a scenario", self.name, ScenarioError)

    @property
    def framing(self) -> Framing:
        """How tensors become packets."""
        return Framing(self.cluster.mtu, self.transport.header_bytes, self.transport.ack_bytes)

    def directed(self) -> DirectedLinks:
        """Return both directions of every link, those of hosts at the rate that the hosts' stacks reach.

        These are the rates outside of all changes.
        """
        links = self.cluster.directed()
        if self.transport.rate_share == 1 and self.transport.stack_rate_bps == 0:
            return links
        rates = (self._reached_bps(links, link, rate_bps) for link, rate_bps in enumerate(links.rate_bps))
        return links._replace(rate_bps=tuple(rates))

    def _reached_bps(self, links: DirectedLinks, link: int, rate_bps: int) -> int:
        """Return what hosts' stacks reach of a rate of a link."""
        share, most_bps = self.transport.rate_share, self.transport.stack_rate_bps
        if min(links.source[link], links.target[link]) >= len(self.cluster.hosts):
            return rate_bps
        return max(1, min(round(rate_bps * share), most_bps or rate_bps))

    def rate_steps(self) -> list[ChangeStep]:
        """Return when which directed link gets which rate, in the order of time; of hosts' links what stacks reach."""
        links = self.cluster.directed()
        return [
            step._replace(value=self._reached_bps(links, step.thing, step.value))
            for step in rate_steps(self.changes, links.rate_bps)
        ]

    def slowest(self) -> DirectedLinks:
        """Return `directed` with the least rate that every link ever has."""
        links = self.directed()
        return links._replace(rate_bps=tuple(extremes(self.rate_steps(), links.rate_bps)[0]))

    def fastest(self) -> DirectedLinks:
        """Return `directed` with the greatest rate that every link ever has."""
        links = self.directed()
        return links._replace(rate_bps=tuple(extremes(self.rate_steps(), links.rate_bps)[1]))

    @property
    def greatest_rate_bps(self) -> int:
        """Bit/s of the fastest link, at its fastest."""
        changed = (change.rate_bps or 0 for change in self.changes)
        return max((*self.cluster.directed().rate_bps, *changed), default=0)

    @property
    def is_async(self) -> bool:
        """Whether its job's workers are not in step: then there is no plan of an iteration."""
        return any(job.architecture == ASYNC for job in self.jobs)

    def check_in_step(self) -> None:
        """Refuse a job whose workers are not in step, where iterations are planned."""
        for index, job in enumerate(self.jobs):
            if job.architecture == ASYNC:
                raise ScenarioError(
                    f"{self.name}: job.{index}.architecture: found {ASYNC}, which has no iterations to plan; accepted: "
                    "an architecture in step, or `tensorexpress predict`, which trains this one"
                )

    @property
    def rounds(self) -> int:
        """All iterations, those of the warm-up too."""
        return self.warmup + self.iterations


class Study(NamedTuple):
    """What a scenario file holds: a scenario, and the policies to compare in it."""

    scenario: Scenario
    #: Empty where none are named.
    policies: tuple[Policy, ...]


#: Parameters of every topology's constructor.
_COMMON = ("bandwidth", "delay", "ports")


def _own_keys(topology: str) -> dict[str, Parameter]:
    """Return the keys of [cluster] that only some topologies have, as their constructors take them.

    >>> list(_own_keys("dumbbell"))
    ['left', 'right', 'bottleneck']
    """
    names = {key.field: name for name, key in SECTIONS["cluster"].items()}
    parameters = signature(TOPOLOGIES[topology]).parameters
    return {names[name]: each for name, each in parameters.items() if name not in _COMMON}


#: By topology; the first of them makes it larger.
_TOPOLOGY_KEYS = {topology: _own_keys(topology) for topology in TOPOLOGIES}

#: Servers of a job that does not say how many; one that is not in step has one.
_USUAL_SERVERS = 4

#: Keys that ask for hosts.
_WITH_HOSTS = ("workers", "servers", "helpers", "replicas")

#: Slices of one job and iteration from which a slice size is a slip of the keyboard.
_MOST_SLICES = 1_000_000


def read_study(path: str | Path | None = None, overrides: Sequence[str | Override] = ()) -> Study:
    """Return the scenario of a TOML file, or the default one, with the values of some keys replaced, and its policies.

    An override is "KEY=VALUE"; VALUE is read as TOML or, where it is none, as text. `job.KEY` is a key of every job,
    `job.0.KEY` one of the first; the next index that is free adds a job.

    >>> scenario, policies = read_study(overrides=["job.workers=2", "policies=fifo,p3"])
    >>> [policy.name for policy in policies]
    ['fifo', 'p3']
    """
    if path is None:
        return study_from({}, "default", overrides)
    source = str(path)
    return study_from(read_toml(source), source, overrides)


def read_scenario(path: str | Path | None = None, overrides: Sequence[str | Override] = ()) -> Scenario:
    """Return the scenario of a TOML file, or the default one, with the values of some keys replaced.

    It is that of `read_study`, without the policies that the file names.

    >>> scenario = read_scenario(overrides=["job.workers=2", "job.1.model=vgg16"])
    >>> [(len(job.workers), job.workload.name) for job in scenario.jobs]
    [(2, 'resnet50'), (8, 'vgg16')]
    """
    return read_study(path, overrides).scenario


def make_scenario(**keys: Any) -> Scenario:
    """Return the scenario that these keys describe, in the words of a TOML file: a section is a dict of its keys.

    Sections that may repeat are a dict or a list of them. `cluster` may also be a `Cluster`, and the `model` of a job
    a `Workload`. Units are written out, or left out for ps, bytes and bit/s.

    >>> from tensorexpress.topologies import star
    >>> cluster = star(3, bandwidth="25 Gbps", buffer="unlimited")
    >>> scenario = make_scenario(cluster=cluster, job={"model": "vgg16", "workers": 2, "servers": 1}, seed=7)
    >>> scenario == make_scenario(
    ...     cluster={"bandwidth": "25 Gbps", "buffer": "unlimited"}, job={"model": "vgg16", "workers": 2, "servers": 1},
    ...     seed=7,
    ... )
    True
    """
    if "policies" in keys:
        raise ScenarioError("scenario: policies: are no part of what happens; give them to predict or sweep")
    return scenario_from(keys, "scenario")


def chosen_policies(policies: Sequence[str]) -> list[Override]:
    """Return the override for policies given with --policy, none if there are none."""
    return [Override(f"policies={','.join(policies)}", "--policy")] if policies else []


def scenario_from(content: Mapping[str, Any], source: str, overrides: Sequence[str | Override] = ()) -> Scenario:
    """Return the scenario that the content of a TOML file describes; `source` is what errors call that file.

    >>> scenario_from({"job": {"workers": 2, "servers": 1}}, "small").cluster.hosts
    ('h0', 'h1', 'h2')
    """
    return study_from(content, source, overrides).scenario


def study_from(content: Mapping[str, Any], source: str, overrides: Sequence[str | Override] = ()) -> Study:
    """Return the scenario that the content of a TOML file describes, and the policies that it names."""
    document = merge(content, source, overrides)
    top, compute = document.top(), document.table("compute")
    jobs = [_checked_job(document, table) for table in document.tables("job")]
    background = document.tables("background")
    commits = _checked_commits(document, jobs)
    # Helpers and replicas find their hosts as those of jobs do, after them.
    cluster = _cluster(document, [*jobs, commits], background)
    own = {name: value for name, value in top.values.items() if name in Scenario.__dataclass_fields__}
    scenario = Scenario(
        **{**own, "name": top["name"] or name_of_file(Path(source).stem)},
        cluster=cluster,
        **_placed(document, jobs, commits, cluster),
        transport=_transport(document.table("transport")),
        background=tuple(_background(document, table, cluster) for table in background),
        changes=tuple(_change(document, table, cluster) for table in document.tables("change")),
        jitter=compute["jitter"],
        stragglers=tuple(
            (_host(document, f"compute.stragglers.{name}", name, cluster), factor)
            for name, factor in compute["stragglers"].items()
        ),
    )
    study = Study(scenario, top["policies"] or ())
    for path, problem in (*problems(scenario), *policy_problems(*study)):
        raise document.error(path, problem)
    return study


def to_json(scenario: Scenario) -> dict[str, Any]:
    """Return what was simulated as a JSON object: hosts by name, quantities in ps, bytes and bit/s."""
    hosts = scenario.cluster.hosts
    return {
        "name": scenario.name,
        "seed": scenario.seed,
        "iterations": scenario.iterations,
        "warmup": scenario.warmup,
        "loss": scenario.loss,
        "cluster": {
            "topology": scenario.cluster.name,
            "description": clusters.describe(scenario.cluster),
            "hosts": len(hosts),
            "switches": len(scenario.cluster.switches),
            "mtu": scenario.cluster.mtu,
            "buffer_bytes": scenario.cluster.buffer_bytes,
            "queues": scenario.cluster.queues,
            "switch_memory_bytes": scenario.cluster.switch_memory_bytes,
            "switch_rate_bps": scenario.cluster.switch_rate_bps,
        },
        "jobs": [_job_to_json(job, hosts) for job in scenario.jobs],
        "transport": asdict(scenario.transport),
        "compute": {
            "jitter": scenario.jitter,
            "stragglers": {hosts[host]: factor for host, factor in scenario.stragglers},
        },
        "background": [
            {**asdict(traffic), "src": hosts[traffic.src], "dst": hosts[traffic.dst]} for traffic in scenario.background
        ],
        **({"commits": _commits_to_json(scenario.commits, hosts)} if scenario.is_async else {}),
        "changes": [_change_to_json(change, scenario.cluster) for change in scenario.changes],
    }


def _commits_to_json(commits: CommitSettings, hosts: Sequence[str]) -> dict[str, Any]:
    named = {role: [hosts[host] for host in getattr(commits, role)] for role in ("helpers", "replicas")}
    return {**asdict(commits), **named, "modes": list(commits.modes)}


def _change_to_json(change: Change, cluster: Cluster) -> dict[str, Any]:
    worker = None if change.worker is None else cluster.hosts[change.worker]
    links = [cluster.link_names[link] for link in change.links]
    return {"description": describe_change(change, cluster), **asdict(change), "links": links, "worker": worker}


def _job_to_json(job: Job, hosts: Sequence[str]) -> dict[str, Any]:
    """Return every field of a job as JSON: hosts by name, and a summary of the workload in place of its layers."""
    workload = job.workload
    as_they_are = {field.name: getattr(job, field.name) for field in fields(job) if field.name != "workload"}
    return {
        **as_they_are,
        "model": workload.name,
        "layers": len(workload.layers),
        "tensor_bytes": sum(workload.tensor_bytes),
        "dtype": workload.dtype,
        "batch": workload.batch,
        "compression": workload.compression,
        "compression_rate_bps": workload.compression_rate_bps,
        "compute_ps": workload.compute_ps,
        "workers": [hosts[host] for host in job.hosts],
        "servers": [hosts[host] for host in job.servers],
    }


def _cluster(document: Document, jobs: Sequence[Table], background: Sequence[Table]) -> Cluster:
    written = document.content.get("cluster")
    if isinstance(written, Cluster):
        return written
    table = document.table("cluster")
    topology, own = table["topology"], _TOPOLOGY_KEYS[table["topology"]]
    foreign = {name for names in _TOPOLOGY_KEYS.values() for name in names} - set(own)
    for name in sorted(table.given & foreign):
        raise document.error(table.at(name), f"topology {topology!r} has no {name!r}; accepted: {', '.join(own)}")
    arguments = {
        key.field: table[key.field]
        for name, key in SECTIONS["cluster"].items()
        if name not in foreign and name != "topology" and table[key.field] is not None
    }
    if topology == "star":
        arguments.setdefault("hosts", _hosts_needed(jobs, background))
    for name, parameter in own.items():
        if parameter.default is Parameter.empty and parameter.name not in arguments:
            accepted = SECTIONS["cluster"][name].kind.accepted
            raise document.error(table.at(name), f"is missing for topology {topology!r}; accepted: {accepted}")
    if "path" in arguments:
        arguments["path"] = document.file(table.at("file"), arguments["path"])
    try:
        return TOPOLOGIES[topology](**arguments)
    except InputError as error:
        # A message about one parameter starts with its name; in a file, the file is what to mend.
        about = "file" if topology == "p4" else str(error).replace(":", " ").split()[0]
        raise document.error(table.at(about) if about in own else "cluster", str(error)) from None


def _transport(table: Table) -> Transport:
    """Return the transport; what is not given of the software path is the preset's."""
    values = {name: value for name, value in table.values.items() if name != "preset"}
    preset = asdict(PRESETS[table["preset"]])
    return Transport(**{name: preset[name] if value is None else value for name, value in values.items()})


def _checked_job(document: Document, table: Table) -> Table:
    """Return the table of a job with its number of servers decided."""
    name, workers, servers = table["architecture"], _size(table["workers"]), table["servers"]
    architecture = ALL_ARCHITECTURES[name]
    if servers is None:
        usual = 1 if name == ASYNC else workers if table["colocated"] else _USUAL_SERVERS
        servers = usual if architecture.has_servers else 0
    too_many = table["colocated"] and isinstance(servers, int) and servers > workers
    for wrong, key, message in (
        (
            not architecture.has_servers and _size(servers) > 0,
            "servers",
            f"found {_size(servers)} with architecture {name}; accepted: 0, or architecture ps",
        ),
        (
            workers < architecture.fewest_hosts,
            "workers",
            f"found {workers} with architecture {name}; accepted: {architecture.fewest_hosts} or more",
        ),
        (
            architecture.has_servers and _size(servers) == 0,
            "servers",
            f"found 0 with architecture {name}; accepted: 1 or more, or an architecture without servers",
        ),
        (
            table["forward_only"] and not architecture.has_servers,
            "forward_only",
            f"found true with architecture {name}; accepted: false, or architecture ps, whose servers hold parameters",
        ),
        (
            table["barrier"] and architecture.regathers,
            "barrier",
            f"found true with architecture {name}; accepted: false: its layers are gathered one after another",
        ),
        (too_many, "servers", f"found {servers} on the hosts of {workers} workers; accepted: at most {workers}"),
    ):
        if wrong:
            raise document.error(table.at(key), message)
    return Table(table.path, table.given, {**table.values, "servers": servers})


def _size(hosts: int | Sequence[str]) -> int:
    return hosts if isinstance(hosts, int) else len(hosts)


def _counted(job: Table) -> int:
    """Return how many hosts a job asks for by count, beside those that it names."""
    return sum(job[role] for role in _roles(job) if isinstance(job[role], int))


def _roles(table: Table) -> tuple[str, ...]:
    """Return the keys of a job, or of commits, that ask for hosts of their own."""
    if "workers" not in table.values:
        return "helpers", "replicas"
    return ("workers",) if table["colocated"] else ("workers", "servers")


def _named(jobs: Sequence[Table]) -> set[str]:
    lists = [job[role] for job in jobs for role in _WITH_HOSTS if role in job.values]
    return {name for names in lists if not isinstance(names, int) for name in names}


def _hosts_needed(jobs: Sequence[Table], background: Sequence[Table]) -> int:
    """Return the hosts h0, h1, ... that hold every named host and, beside those of jobs, all counted ones."""
    needed = sum(map(_counted, jobs))
    for index in sorted(_host_numbers(_named(jobs))):
        needed = max(needed + (index < needed), index + 1)
    ends = (traffic[end] for traffic in background for end in ("src", "dst"))
    return max([needed, *(index + 1 for index in _host_numbers(ends))])


def _host_numbers(names: Iterable[str]) -> Iterator[int]:
    return (int(name[1:]) for name in names if re.fullmatch("h[0-9]{1,6}", name))


def _placed(document: Document, jobs: Sequence[Table], commits: Table, cluster: Cluster) -> dict[str, Any]:
    """Return the jobs and commits on their hosts: named ones where they say, counted ones in order on what is left."""
    named = _named([*jobs, commits])
    free = [index for index, name in enumerate(cluster.hosts) if name not in named]
    counted = sum(map(_counted, [*jobs, commits]))
    if counted > len(free):
        present = len(cluster.hosts)
        raise document.error(
            f"cluster.{next(iter(_TOPOLOGY_KEYS.get(cluster.name, ('hosts',))))}",
            f"{cluster.name} has {present} hosts and the jobs need {present - len(free) + counted}; "
            "accepted: more hosts, or fewer workers and servers",
        )
    unused = iter(free)
    placed = tuple(_job(document, table, index, cluster, unused) for index, table in enumerate(jobs))
    for name, uses in Counter(job.name for job in placed).items():
        if uses > 1:
            raise document.error("job", f"{uses} jobs are named {name!r}; accepted: a name for each")
    hosts = {role: _hosts_of(document, commits, role, cluster, unused) for role in _roles(commits)}
    return {"jobs": placed, "commits": CommitSettings(**{**commits.values, **hosts})}


def _hosts_of(document: Document, table: Table, role: str, cluster: Cluster, unused: Iterator[int]) -> tuple[int, ...]:
    hosts = table[role]
    if isinstance(hosts, int):
        return tuple(next(unused) for _ in range(hosts))
    return tuple(_host(document, table.at(role), name, cluster) for name in hosts)


def _checked_commits(document: Document, jobs: Sequence[Table]) -> Table:
    """Return the table of commits with what it does not say decided."""
    table = document.table("commits")
    is_async = any(job["architecture"] == ASYNC for job in jobs)
    for role in _roles(table):
        if not is_async and role in table.given:
            found = f"found {shown(table[role])} without a job of architecture {ASYNC}"
            raise document.error(table.at(role), f"{found}; accepted: only with one")
    problem = PROBLEMS[table["problem"]]
    decided = {
        "tau": 2 * _size(jobs[0]["workers"]) if is_async else 0,
        "helpers": 2 if is_async else 0,
        "replicas": 1 if is_async else 0,
        "learning_rate": problem.learning_rate,
        "target_loss": problem.target_loss,
    }
    values = decided | {name: value for name, value in table.values.items() if value is not None}
    values.setdefault("modes", usual_modes(_size(values["helpers"]), _size(values["replicas"])))
    return Table(table.path, table.given, values)


def _job(document: Document, table: Table, index: int, cluster: Cluster, unused: Iterator[int]) -> Job:
    def place(role: str) -> tuple[int, ...]:
        return _hosts_of(document, table, role, cluster, unused)

    workers = place("workers")
    follows = table["colocated"] and isinstance(table["servers"], int)
    servers = workers[: table["servers"]] if follows else place("servers")
    once = {"workers": workers, "servers": servers if table["colocated"] else (*set(workers), *servers)}
    for role, hosts in once.items():
        host, uses = Counter(hosts).most_common(1)[0] if hosts else (0, 0)
        if uses > 1:
            raise document.error(
                table.at(role),
                f"host {cluster.hosts[host]!r} is named more than once in one job; accepted: once, "
                "or as worker and server with colocated = true",
            )
    own = {name: value for name, value in table.values.items() if name in Job.__dataclass_fields__}
    on_gpus = tuple(host for host in workers for _ in range(table["gpus_per_host"]))
    placed = {"name": table["name"] or f"job{index}", "workers": on_gpus, "servers": servers}
    workload, overhead_ps = _workload(document, table)
    if table["overhead_ps"] is None:
        own["overhead_ps"] = overhead_ps
    job = Job(**{**own, **placed, "workload": workload})
    return replace(job, workload=job.exchanges(workload))


#: Keys of a job that say what it computes, beside its model.
_OF_WORKLOADS = ("csv", "torch", "batch", "device", "dtype", "samples_per_second", "compression", "compression_rate")


def _workload(document: Document, table: Table) -> tuple[Workload, int]:
    """Return what a job computes, and what is known of its overhead."""
    if isinstance(table["model"], Workload):
        for name in _OF_WORKLOADS:
            if name in table.given:
                raise document.error(
                    table.at(name), "found beside a model that is a Workload; accepted: one of the two"
                )
        return table["model"], 0
    overhead_ps = 0
    if table["torch"]:
        workload, overhead_ps = _profiled(document, table)
    else:
        workload = _measured(document, table) if table["csv"] else _from_zoo(document, table)
    about = "samples_per_second"
    try:
        if table["samples_per_second"]:  # which was measured without any compression, and with all overhead
            workload, overhead_ps = at_throughput(workload, table["samples_per_second"]), 0
        about = "compression"
        return compressed(workload, table["compression"], table["compression_rate_bps"]), overhead_ps
    except InputError as error:
        raise document.error(table.at(about), str(error)) from None


def _profiled(document: Document, table: Table) -> tuple[Workload, int]:
    """Return the workload of a PyTorch model as it was profiled on this machine, and what a step takes beside it."""
    # Other scenarios need nothing of it.
    from tensorexpress.torch.profile_cache import check_beside, profiled
    from tensorexpress.torch.profile_source import parse_source

    at = table.at("torch")
    for other in ("model", "csv", "batch", "dtype"):
        if other in table.given and table[other]:
            raise document.error(at, f"found beside {other} {table[other]!r}; accepted: one of the two")
    try:
        source = parse_source(table["torch"], document.file(at, ""))
        if not document.is_override(at):
            check_beside(source)
        found = profiled(source)
    except InputError as error:
        raise document.error(at, str(error)) from None
    return found.workload, found.overhead_ps


def _from_zoo(document: Document, table: Table) -> Workload:
    if not table["model"]:
        raise document.error(
            table.at("model"), "found '', no csv and no torch; accepted: a model's name, or one of the two"
        )
    about = "dtype"
    try:
        # Values of a key that is varied are compared, on one device.
        chooses = not document.is_varied(table.at("dtype"))
        device = table["device"] or models.usual_device((table["dtype"] or "") if chooses else "")
        dtype, _ = models.rates_of(device, table["dtype"] or "")
        about = "batch"
        return models.load(table["model"], table["batch"] or 0, device, dtype)
    except InputError as error:
        raise document.error(table.at(about), str(error)) from None


def _measured(document: Document, table: Table) -> Workload:
    """Return the workload of a CSV; batch and dtype, which it cannot hold, are what the job says."""
    if "model" in table.given and table["model"]:
        raise document.error(
            table.at("csv"), f"found beside model {table['model']!r}; accepted: one of the two (model = '' clears it)"
        )
    try:
        workload = read_csv(document.file(table.at("csv"), table["csv"]))
    except InputError as error:
        raise document.error(table.at("csv"), str(error)) from None
    return replace(workload, dtype=table["dtype"] or workload.dtype, batch=table["batch"] or 0)


def _host(document: Document, path: str, name: str, cluster: Cluster) -> int:
    try:
        return cluster.host_index(name)
    except InputError as error:
        raise document.error(path, str(error)) from None


def _background(document: Document, table: Table, cluster: Cluster) -> Background:
    if table["src"] == table["dst"]:
        raise document.error(table.at("dst"), f"found {table['dst']!r}, which is also src; accepted: another host")
    ends = {end: _host(document, table.at(end), table[end], cluster) for end in ("src", "dst")}
    return Background(**{**table.values, **ends})


def _change(document: Document, table: Table, cluster: Cluster) -> Change:
    worker = table["worker"]
    links: tuple[int, ...] = ()
    if worker is not None:
        worker = _host(document, table.at("worker"), worker, cluster)
    if table["links"] is not None:
        try:
            links = links_of(table["links"], cluster)
        except InputError as error:
            raise document.error(table.at("link"), str(error)) from None
    return Change(**{**table.values, "links": links, "worker": worker})


def problems(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Yield what cannot be in a scenario, whoever made it: the path of a key, and what was found and is accepted."""
    yield from _values_out_of_range(scenario, "", "")
    yield from _values_out_of_range(scenario, "compute", "compute")
    yield from _values_out_of_range(scenario.transport, "transport", "transport")
    for index, job in enumerate(scenario.jobs):
        yield from _values_out_of_range(job, "job", f"job.{index}")
    for index, traffic in enumerate(scenario.background):
        yield from _values_out_of_range(traffic, "background", f"background.{index}")
    for index, change in enumerate(scenario.changes):
        yield from _values_out_of_range(change, "change", f"change.{index}")
    yield from _values_out_of_range(scenario.commits, "commits", "commits")
    yield from _misplaced(scenario)
    workers = (host for job in scenario.jobs for host in job.workers)
    rounds = scenario.commits.updates if scenario.is_async else scenario.rounds
    yield from change_problems(scenario.changes, scenario.cluster, workers, rounds)
    yield from _impossible_sizes(scenario)
    if scenario.is_async:
        yield from _async_problems(scenario)
    if not scenario.transport.acks:
        yield from _obstacles_without_acks(scenario)


def _values_out_of_range(part: object, section: str, path: str) -> Iterator[tuple[str, str]]:
    """Yield the single values of a part of a scenario that no document could have given it."""
    for name, key in SECTIONS[section].items():
        value = getattr(part, key.field, None)
        is_host = key.field in ("src", "dst", "worker")  # known by its index by now
        if isinstance(value, int | float | str) and not is_host and not key.accepts(value):
            yield f"{path}.{name}" if path else name, f"found {shown(value)}; accepted: {key.kind.accepted}"


def _misplaced(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Yield jobs and traffic that are on no host, on one twice, or on too few."""
    hosts, names = range(len(scenario.cluster.hosts)), scenario.cluster.hosts
    known = f"accepted: host 0 to {len(hosts) - 1}"
    if len({job.name for job in scenario.jobs}) != len(scenario.jobs) or not scenario.jobs:
        yield "job", f"found {len(scenario.jobs)} jobs, or two of one name; accepted: one or more, a name for each"
    for index, job in enumerate(scenario.jobs):
        architecture = ALL_ARCHITECTURES.get(job.architecture)
        if architecture is None:
            continue  # which is said elsewhere
        for role, own, wrong in (
            ("workers", job.hosts, len(job.hosts) < architecture.fewest_hosts),
            ("servers", job.servers, bool(job.servers) != architecture.has_servers),
        ):
            if wrong:
                yield f"job.{index}.{role}", f"found {len(own)} with architecture {job.architecture}"
            for host in own:
                if host not in hosts:
                    yield f"job.{index}.{role}", f"found host {shown(host)}; {known}"
            if len(set(own)) != len(own):
                yield f"job.{index}.{role}", "found a host twice; accepted: every host once"
        if job.workers != tuple(host for host in job.hosts for _ in range(job.gpus_per_host)):
            accepted = f"every host {counted(job.gpus_per_host, 'time')}, as job.gpus_per_host says, and in a row"
            yield f"job.{index}.workers", f"found hosts in another number; accepted: {accepted}"
        if job.forward_only and not architecture.has_servers:
            yield f"job.{index}.forward_only", f"found true with architecture {job.architecture}; accepted: false"
        if job.barrier and architecture.regathers:
            yield f"job.{index}.barrier", f"found true with architecture {job.architecture}; accepted: false"
        if job.exchanges(job.workload) != job.workload:
            found = f"{job.workload.name} as it is elsewhere"
            accepted = "layers in buckets of job.bucket, and no backward pass where job.forward_only is true"
            yield f"job.{index}.model", f"found {found}; accepted: {accepted} (Job.exchanges)"
        yield from _slow_local_links(scenario, index)
        yield from _sparse_without_servers(job, index)
        yield from _rows_that_are_not_there(job, index)
    workers = {host for job in scenario.jobs for host in job.workers}
    for host, factor in scenario.stragglers:
        name = names[host] if host in hosts else host
        if host not in workers:
            yield f"compute.stragglers.{name}", f"host {name!r} is no worker of any job; accepted: a worker's host"
        if not SECTIONS["compute"]["stragglers"].accepts({"any": factor}):
            yield f"compute.stragglers.{name}", f"found {factor}; accepted: 0.01 to below 1000"
    if len({host for host, _ in scenario.stragglers}) != len(scenario.stragglers):
        yield "compute.stragglers", "found a host twice; accepted: every host once"
    for index, traffic in enumerate(scenario.background):
        if traffic.src not in hosts or traffic.dst not in hosts or traffic.src == traffic.dst:
            ends = f"{shown(traffic.src)} to {shown(traffic.dst)}"
            yield f"background.{index}.dst", f"found traffic from host {ends}; {known}, and two of them"
        if traffic.until_ps is not None and traffic.until_ps <= traffic.at_ps:
            times = f"found {format_time(traffic.until_ps)}; accepted: later than at, {format_time(traffic.at_ps)}"
            yield f"background.{index}.until", times
        if traffic.packet_bytes > scenario.cluster.mtu:
            yield (
                f"background.{index}.packet",
                f"found {traffic.packet_bytes}; accepted: at most the mtu of {scenario.cluster.mtu} bytes",
            )


def _slow_local_links(scenario: Scenario, index: int) -> Iterator[tuple[str, str]]:
    """Yield a link between GPUs that is slower than the network: parts would queue for it, which no executor does."""
    job, directed = scenario.jobs[index], scenario.cluster.directed()
    hosts = set(job.hosts)
    nics_bps = [rate for node, rate in zip(directed.source, directed.rate_bps, strict=True) if node in hosts]
    if job.gpus_per_host > 1 and 0 < job.local_rate_bps < max(nics_bps, default=0):
        found, accepted = format_rate(job.local_rate_bps), format_rate(max(nics_bps))
        yield f"job.{index}.local_rate", f"found {found}; accepted: 0, or at least the {accepted} of the hosts' links"


def _sparse_without_servers(job: Job, index: int) -> Iterator[tuple[str, str]]:
    """Yield what sums whole tensors, where a worker has but some rows of a layer: only servers take them by key."""
    sparse = _first_sparse(job.workload)
    if not sparse:
        return
    if not ALL_ARCHITECTURES[job.architecture].has_servers:
        found = f"found {job.architecture} with {sparse}"
        yield f"job.{index}.architecture", f"{found}; accepted: ps, whose servers take rows by their keys"
    if job.gpus_per_host > 1:
        found = f"found {job.gpus_per_host} with {sparse}"
        yield f"job.{index}.gpus_per_host", f"{found}; accepted: 1, as GPUs of a host have different rows"


def _rows_that_are_not_there(job: Job, index: int) -> Iterator[tuple[str, str]]:
    """Yield a number of hot rows that no sparse table has."""
    tables = [layer.table for layer in job.workload.layers if layer.table]
    if not isinstance(job.hot_rows, int) or not job.hot_rows:
        return
    if not tables:
        yield f"job.{index}.hot_rows", f"found {job.hot_rows}, and no layer is a sparse table; accepted: auto, or 0"
    elif job.hot_rows > (most := max(table.keys for table in tables)):
        yield f"job.{index}.hot_rows", f"found {job.hot_rows}; accepted: auto, or 0 to the {most} of the largest table"


def _first_sparse(workload: Workload) -> str:
    """Return which layer is the first that is a sparse table; "" where none is."""
    return next((f"layer {layer.name}, a sparse table" for layer in workload.layers if layer.table), "")


def _impossible_sizes(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Yield sizes with which no packet could ever be sent, or arrive."""
    cluster, transport = scenario.cluster, scenario.transport
    if cluster.mtu <= transport.header_bytes:
        yield (
            "cluster.mtu",
            f"found {cluster.mtu}; accepted: more than transport.header ({transport.header_bytes} bytes)",
        )
    packet_bytes = cluster.mtu + transport.header_bytes
    for path, size in (
        ("transport.window", transport.window_bytes),
        ("transport.initial_window", transport.initial_window_bytes),
    ):
        if 0 < size < packet_bytes:
            yield path, f"found {size} bytes; accepted: 0, or at least a packet ({packet_bytes} bytes)"
    most_bytes = most_in_queue(cluster.buffer_bytes, cluster.queues)
    if most_bytes < packet_bytes:
        least_bytes = packet_bytes * (2 if cluster.queues > 1 else 1)
        yield (
            "cluster.buffer",
            f"found {cluster.buffer_bytes} bytes, of which a queue gets {most_bytes} at the most; accepted: 0, or at "
            f"least {least_bytes}, so that there is room for a packet ({packet_bytes} bytes)",
        )


def _async_problems(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Yield what asynchronous training cannot have, as `problems` does."""
    job, commits, transport = scenario.jobs[0], scenario.commits, scenario.transport
    workers = len(job.workers)
    for path, found, accepted in (
        ("job", len(scenario.jobs) > 1 and f"{len(scenario.jobs)} jobs", "one job"),
        ("job.0.servers", len(job.servers) != 1 and f"{len(job.servers)} servers", "one, which commits in order"),
        ("job.0.colocated", set(job.servers) & set(job.workers) and "true", "false"),
        ("job.0.gpus_per_host", job.gpus_per_host > 1 and job.gpus_per_host, "1"),
        ("job.0.forward_only", job.forward_only and "true", "false: nothing is committed where nothing is trained"),
        ("job.0.model", _first_sparse(job.workload), "layers without sparse tables"),
        ("loss", scenario.loss, "0: transfers are fluids, without packets to lose"),
        ("transport.copy_rate", transport.copy_rate_bps, "0: hosts' copies are not simulated"),
        ("transport.message_cost", transport.message_ps, "0: messages' costs are not simulated"),
        ("commits.replicas", len(commits.replicas) > 1 and f"{len(commits.replicas)} replicas", "0 or 1"),
    ):
        if found:
            yield path, f"found {found} with architecture {ASYNC}; accepted: {accepted}"
    hosts = [*job.hosts, *job.servers, *commits.helpers, *commits.replicas]
    if len(set(hosts)) != len(hosts):
        yield "commits.helpers", "found a host with two roles; accepted: hosts that are nothing else"
    if commits.tau < workers - 1:
        yield (
            "commits.tau",
            f"found {commits.tau} with {workers} workers; accepted: {workers - 1} or more, as of {workers} updates "
            f"computed from one version the last commits {counted(workers - 1, 'version')} later, and would always be "
            "dropped",
        )
    for mode in (COMMIT_MODES[name] for name in commits.modes):
        if mode.replicated and not commits.replicas:
            yield "commits.modes", f"found {mode.name} and no replica; accepted: commits.replicas = 1, or other modes"
        elif mode.summed and not mode.replicated and not commits.helpers:
            yield "commits.modes", f"found {mode.name} and no helpers; accepted: commits.helpers, or other modes"


def policy_problems(scenario: Scenario, policies: Iterable[Policy]) -> Iterator[tuple[str, str]]:
    """Yield what policies cannot be asked for in a scenario, as `problems` does."""
    largest = max(sum(job.workload.tensor_bytes) for job in scenario.jobs)
    for policy in policies:
        if policy.slice_bytes * _MOST_SLICES < largest and policy.slice_bytes:
            yield (
                "policies",
                f"policy {policy.name!r} cuts {largest} bytes into slices of {policy.slice_bytes}; "
                f"accepted: at most {_MOST_SLICES} slices",
            )
        if policy.credit_bytes and not scenario.transport.acks:
            yield _without_acks("policies", policy.name, "policies without credit")
        if policy.in_switches:
            for path, problem in sum_problems(scenario, policy):
                yield "policies", f"policy {policy.name!r} has switches sum, and {path}: {problem}"
        if policy.placement != "none":
            for index, job in enumerate(scenario.jobs):
                if not job.servers:
                    found = f"job.{index}.architecture: found {job.architecture}; accepted: ps"
                    yield "policies", f"policy {policy.name!r} places shares on servers, and {found}"


def sum_problems(scenario: Scenario, policy: Policy) -> Iterator[tuple[str, str]]:
    """Yield what switches cannot sum in a scenario, as `problems` does; what its network lacks for it comes later."""
    hashed, cluster = policy.sums == "hashed", scenario.cluster
    framing = PART_FRAMING if hashed else SUM_FRAMING
    packet_bytes = framing.full_packet_bytes
    for index, job in enumerate(scenario.jobs):
        servers_missing = policy.sums_end_at_servers and not job.servers
        for key, found, accepted in (
            ("forward_only", job.forward_only and "true", "false: nothing is summed where nothing is trained"),
            ("architecture", ALL_ARCHITECTURES[job.architecture].regathers and job.architecture, "one without shards"),
            ("architecture", servers_missing and job.architecture, "ps, with servers at which sums end"),
            ("workers", len(job.hosts) < 2 and "one host", "two or more, whose gradients are summed"),
            (
                "workers",
                hashed and len(job.hosts) > MOST_CHILDREN and f"{len(job.hosts)} hosts",
                f"at most {MOST_CHILDREN} with sum=hashed: packets have a bit for each",
            ),
            ("compression", job.workload.compression != 1 and job.workload.compression, "1: switches add plain values"),
            (
                "model",
                policy.placement != "none" and _first_sparse(job.workload),
                "layers without sparse tables: a placement has whole tensors",
            ),
        ):
            if found:
                yield f"job.{index}.{key}", f"found {found}; accepted: {accepted}"
    if hashed and cluster.switch_rate_bps:
        yield "cluster.switch_rate", f"found {format_rate(cluster.switch_rate_bps)}; accepted with sum=hashed: 0"
    if cluster.mtu < framing.mtu:
        yield "cluster.mtu", f"found {cluster.mtu}; accepted: {framing.mtu} or more, a packet of 256 values"
    most_bytes = most_in_queue(cluster.buffer_bytes, cluster.queues)
    if most_bytes < packet_bytes:
        found = f"room for {most_bytes} bytes in a queue"
        yield "cluster.buffer", f"found {found}; accepted: a packet of {packet_bytes} bytes or more"


def _obstacles_without_acks(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Yield everything that rests on acknowledgements when there are none."""
    transport = scenario.transport
    obstacles = {
        "loss": (scenario.loss, "0"),
        "transport.window": (transport.window_bytes, "0"),
        "transport.ecn": (transport.ecn_bytes, "0"),
        "cluster.buffer": (scenario.cluster.buffer_bytes, "0"),
    }
    for key, (found, accepted) in obstacles.items():
        if found:
            yield _without_acks(key, found, accepted)


def _without_acks(key: str, found: object, accepted: str) -> tuple[str, str]:
    return "transport.acks", f"false does not go with {key} = {found}; accepted with it: {accepted}"
