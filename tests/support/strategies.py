"""Random small scenarios and policies for property tests of the simulator: everything a user can set, a few packets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from tensorexpress.cluster import Cluster
from tensorexpress.graph import ARCHITECTURES
from tensorexpress.plan import Plan, make_plan
from tensorexpress.policy import Policy
from tensorexpress.queueing import HOST_ORDERS
from tensorexpress.scenario import Background, Change, Job, Scenario, Transport
from tensorexpress.sums import SLOT_BYTES
from tensorexpress.topologies import custom, dumbbell, leaf_spine, star
from tensorexpress.workload import Layer, Workload, compressed, without_backward

US = 10**6
MBPS = 10**6

#: A rate that divides nothing, beside round ones: serialisation times must round the same way everywhere.
RATES_BPS = (100 * MBPS, 937 * MBPS + 1, 1000 * MBPS)

#: Memory for sums that is scarce: at the least a slot for every queue of two jobs, and of three servers of each; or so
#: few cells that hardly anything finds one.
FEWEST_SLOTS = {
    "pool": (16 * SLOT_BYTES,),
    "front": (48 * SLOT_BYTES,),
    "hashed": (SLOT_BYTES, 2 * SLOT_BYTES, 5 * SLOT_BYTES),
}

#: Packets for which a port has room at the least and at the most. Parts of a sum in cells that were dropped are sent
#: again by all workers at the same time: in less room than for all of them, the same one may be dropped for ever.
PACKETS_IN_BUFFER = {False: (2, 20), True: (24, 40)}

#: How switches sum.
SUMMED = ("pool", "front", "hashed")

patterns = st.sampled_from(["poisson", "constant"])


@st.composite
def workloads(draw: st.DrawFn, most_layers: int = 6, most_params: int = 4000, summed: bool = False) -> Workload:
    """Layers of very different sizes; some compute for no time at all, some tensors are a single parameter."""
    times_ps = st.one_of(st.just(0), st.integers(1, 200 * US))
    params = st.one_of(st.integers(1, 3), st.integers(1, most_params))
    layers = draw(st.lists(st.tuples(params, times_ps, times_ps), min_size=1, max_size=most_layers))
    dtype = draw(st.sampled_from(["fp32", "fp32", "fp16"]))
    plain = Workload("random", tuple(Layer(f"layer{i}", *layer) for i, layer in enumerate(layers)), dtype)
    ratio = 1 if summed else draw(st.sampled_from([1, 1, 3.7]))
    return compressed(plain, ratio, draw(st.sampled_from([0, 10_000 * MBPS])))


@st.composite
def sparse_workloads(draw: st.DrawFn, most_params: int = 1500) -> Workload:
    """Some layers of which some are sparse tables, with or without parameters beside them; most rows are touched in
    some, hardly any in others."""
    layers = []
    for layer in draw(workloads(most_layers=4, most_params=most_params, summed=True)).layers:
        if draw(st.booleans()):
            width = draw(st.sampled_from([1, 3, 16, 300]))
            keys = draw(st.integers(1, most_params // width))
            table = (keys, width, draw(st.integers(1, 200)), draw(st.sampled_from([0.0, 0.7, 1.5])))
            params = keys * width + draw(st.sampled_from([0, 0, layer.params]))
            layers.append(Layer(layer.name, params, layer.forward_ps, layer.backward_ps, *table))
        else:
            layers.append(layer)
    return Workload("random", tuple(layers), draw(st.sampled_from(["fp32", "fp32", "fp16"])))


@st.composite
def clusters(draw: st.DrawFn, hosts: int, lossy: bool, sums: str = "none") -> Cluster:
    """A cluster of at least this many hosts; its ports can only overflow where the transport can recover."""
    smallest = {"none": 600, "pool": 1100, "front": 1100, "hashed": 1108}
    mtu = draw(st.sampled_from([smallest[sums], 1500, 9000]))
    wire = {"bandwidth": draw(st.sampled_from(RATES_BPS)), "delay": draw(st.sampled_from([0, 1, US, 20 * US]))}
    ports = {
        "mtu": mtu,
        "buffer": draw(st.integers(*PACKETS_IN_BUFFER[sums == "hashed"]))
        * (mtu + 200)
        * (lossy and draw(st.booleans())),
        "queues": draw(st.integers(1, 8)),
        "switch_memory": draw(st.sampled_from([0, 10**6, *FEWEST_SLOTS[sums]])) if sums != "none" else 10**6,
    }
    shape = draw(st.sampled_from(["star", "dumbbell", "leaf-spine", *["cable"] * (sums == "none")]))
    if shape == "dumbbell":
        left = draw(st.integers(1, hosts - 1))
        bottleneck = draw(st.sampled_from([None, *RATES_BPS]))
        return dumbbell(left, hosts - left, bottleneck=bottleneck, **wire, **ports)
    if shape == "leaf-spine":
        leaves, spines = draw(st.integers(1, 3)), draw(st.integers(1, 2))
        oversubscription = draw(st.sampled_from([1, 2]))
        return leaf_spine(leaves, spines, -(-hosts // leaves), oversubscription=oversubscription, **wire, **ports)
    if shape == "cable" and hosts == 2:
        return custom(["h0", "h1"], [], [("h0", "h1")], **wire, **ports)
    return star(hosts, **wire, **ports)


@st.composite
def jobs(draw: st.DrawFn, name: str, hosts: int, sums: str = "none", sparse: bool = False) -> Job:
    """A job on some of the hosts: separate servers, servers on workers' hosts, or workers among themselves.

    Jobs with sparse tables have servers, whatever sums.
    """
    summed, needs_servers = sums != "none", sums in ("front", "hashed") or sparse
    order = draw(st.permutations(range(hosts)))
    alone = sorted(
        name
        for name, architecture in ARCHITECTURES.items()
        if not needs_servers and not architecture.has_servers and not (summed and architecture.regathers)
    )
    kind = draw(st.sampled_from([*["separate"] * (hosts > 2 or not summed), "colocated", *alone]))
    forward_only = kind not in alone and not summed and draw(st.sampled_from([False, False, True]))
    workload = draw(sparse_workloads() if sparse else workloads(summed=summed))
    common: dict[str, Any] = {
        "sum_rate_bps": draw(st.sampled_from([0, 500 * MBPS])),
        "shard_bytes": draw(st.sampled_from([0, 1000, 10**6])),
        "start_ps": draw(st.sampled_from([0, 70 * US])),
    }
    common |= {"prefetch": draw(st.integers(0, 3)), "forward_only": forward_only}
    if forward_only:
        workload = without_backward(workload)
    common |= {
        "add_rate_bps": draw(st.sampled_from([0, 0, 800 * MBPS])),
        "update_rate_bps": draw(st.sampled_from([0, 0, 400 * MBPS])),
        "overhead_ps": draw(st.sampled_from([0, 0, 30 * US])),
        "barrier": kind != "fsdp" and draw(st.booleans()),
    }
    gpus = 1 if sparse else draw(st.sampled_from([1, 1, 1, 2, 3]))
    most_rows = max(layer.keys for layer in workload.layers)
    common["hot_rows"] = draw(st.sampled_from(["auto", "auto", 0]) | st.integers(0, most_rows))
    common |= {"gpus_per_host": gpus, "local_rate_bps": draw(st.sampled_from([0, 200_000 * MBPS]))}

    def on_gpus(own: list[int]) -> tuple[int, ...]:
        return tuple(host for host in own for _ in range(gpus))

    if kind in alone:
        workers = draw(st.integers(2, min(5, hosts)))
        return Job(name, workload, on_gpus(order[:workers]), (), kind, **common)
    if kind == "colocated":
        workers = draw(st.integers(2, min(5, hosts)))
        servers = draw(st.integers(1, min(3, workers)))
        return Job(name, workload, on_gpus(order[:workers]), tuple(order[:servers]), **common)
    fewest = 2 if summed else 1
    servers = draw(st.integers(1, min(3, hosts - fewest)))
    workers = draw(st.integers(fewest, min(5, hosts - servers)))
    return Job(name, workload, on_gpus(order[servers : servers + workers]), tuple(order[:servers]), **common)


@st.composite
def transports(draw: st.DrawFn, packet_bytes: int, acks: bool) -> Transport:
    """Windows from one packet to no limit; time-outs so short that some are premature."""
    header = draw(st.sampled_from([0, 38, 98]))
    software = {
        # Two sources of background traffic still leave room on the slowest link.
        "rate_share": draw(st.sampled_from([1.0, 1.0, 0.8])),
        "stack_rate_bps": draw(st.sampled_from([0, 0, 200 * MBPS])),
        "copy_rate_bps": draw(st.sampled_from([0, 1000 * MBPS])),
        "message_ps": draw(st.sampled_from([0, 3 * US])),
    }
    if not acks:
        return Transport(window_bytes=0, acks=False, header_bytes=header, **software)
    windows = st.one_of(st.just(0), st.integers(1, 30).map(lambda packets: packets * packet_bytes))
    return Transport(
        window_bytes=draw(windows),
        initial_window_bytes=draw(windows),
        ack_every=draw(st.integers(1, 8)),
        rto_min_ps=draw(st.sampled_from([50 * US, 500 * US, 5000 * US])),
        ecn_bytes=draw(st.sampled_from([0, 0, 1, 3000, 20_000])),
        header_bytes=header,
        **software,
    )


@st.composite
def policies(draw: st.DrawFn, credit: bool = True, sums: str = "none") -> Policy:
    """Any mix of the other choices."""
    discipline = draw(st.sampled_from(["fifo", "strict", "sp-pifo", "pifo"]))
    sorts = discipline in ("sp-pifo", "pifo")
    return Policy(
        "random",
        slice_bytes=draw(st.sampled_from([0, 500, 3000, 10_000])),
        host_order=draw(st.sampled_from(sorted(HOST_ORDERS))),
        credit_bytes=draw(st.sampled_from([0, 1, 20_000])) if credit and sums == "none" else 0,
        discipline=discipline,
        queue_map=draw(st.sampled_from(["optimal", "fewest", "equal", *["slack"] * sorts])),
        sums=sums,
    )


def bursts(draw: st.DrawFn) -> dict[str, int | None]:
    """Return when something begins and ends: always there, or for a while inside a run of some hundred us."""
    if draw(st.booleans()):
        return {}
    at_ps = draw(st.sampled_from([0, 7 * US, 100 * US, 333 * US]))
    return {"at_ps": at_ps, "until_ps": draw(st.sampled_from([None, at_ps + 1, at_ps + 60 * US, at_ps + 1000 * US]))}


@st.composite
def changes(draw: st.DrawFn, links: int, workers: Sequence[int], rounds: int) -> tuple[Change, ...]:
    """Links that are slower or faster for a while, and workers, by time and by iteration; one after the other."""
    found = []
    for link in draw(st.lists(st.integers(0, links - 1), max_size=3, unique=True)):
        at_ps = draw(st.sampled_from([0, 50 * US]))
        for _ in range(draw(st.integers(1, 3))):
            until_ps = at_ps + draw(st.integers(1, 300 * US))
            rate = draw(st.sampled_from([{"share": 0.5}, {"share": 0.3}, {"rate_bps": 150 * MBPS}]))
            found.append(Change(at_ps, until_ps, links=(link,), **rate))
            at_ps = until_ps + draw(st.sampled_from([0, 40 * US]))
    for worker in draw(st.lists(st.sampled_from(workers), max_size=2, unique=True)):
        factor = draw(st.sampled_from([0.5, 1.7, 3.0]))
        found.append(Change(**bursts(draw), worker=worker, factor=factor))
        if draw(st.booleans()):
            found.append(Change(at_iteration=draw(st.integers(0, rounds - 1)), worker=worker, factor=factor))
    return tuple(found)


@st.composite
def scenarios(draw: st.DrawFn, disturbed: bool = True, sums: str = "none", sparse: bool = False) -> Scenario:
    """One or two jobs that may share hosts; `disturbed` ones may lose packets, run unevenly, and meet other traffic.

    Switches can sum all that they exchange in the way that is asked for.
    """
    hosts = draw(st.integers(2, 7))
    acks = draw(st.sampled_from([True, True, True, False])) if disturbed else False
    cluster = draw(clusters(hosts, acks, sums))
    names = ["a", "b"][: draw(st.sampled_from([1, 1, 2]))]
    own_jobs = tuple(draw(jobs(name, hosts, sums, sparse)) for name in names)
    traffic: tuple[Background, ...] = ()
    stragglers: tuple[tuple[int, float], ...] = ()
    if disturbed:
        ends = st.lists(st.integers(0, hosts - 1), min_size=2, max_size=2, unique=True)
        traffic = tuple(
            Background(*draw(ends), 20 * MBPS, draw(st.sampled_from([64, 500])), draw(patterns), **bursts(draw))
            for _ in range(draw(st.sampled_from([0, 0, 1, 2])))
        )
        stragglers = tuple((job.workers[0], 2.5) for job in own_jobs[: draw(st.integers(0, 1))])
    iterations, warmup = draw(st.integers(1, 2)), draw(st.integers(0, 1))
    workers = sorted({host for job in own_jobs for host in job.workers})
    changed = draw(st.booleans()) if disturbed else False
    own_changes = draw(changes(2 * len(cluster.links), workers, iterations + warmup)) if changed else ()
    return Scenario(
        "random",
        cluster,
        own_jobs,
        draw(transports(cluster.mtu + 98, acks)),
        traffic,
        jitter=draw(st.sampled_from([0.0, 0.3])) if disturbed else 0.0,
        stragglers=stragglers,
        loss=draw(st.sampled_from([0.0, 0.0, 0.002, 0.05])) if acks else 0.0,
        seed=draw(st.integers(0, 2**31 - 1)),
        iterations=iterations,
        warmup=warmup,
        changes=own_changes,
    )


@st.composite
def plans(
    draw: st.DrawFn, disturbed: bool = True, sums: Sequence[str] = ("none",), sparse: bool | None = False
) -> Plan:
    """A random policy on a random scenario, in which switches sum in one of these ways; `sparse` None: either."""
    how = draw(st.sampled_from(sums))
    scenario = draw(scenarios(disturbed, how, draw(st.booleans()) if sparse is None else sparse))
    return make_plan(scenario, draw(policies(scenario.transport.acks, how)))


@st.composite
def paced_plans(draw: st.DrawFn, disturbed: bool = True, sums: Sequence[str] = ("none",)) -> Plan:
    """A random plan on links of which some or all are paced."""
    plan = draw(plans(disturbed, sums))
    ends = st.sampled_from([(True, True), (True, False), (False, True)])
    links = tuple(
        replace(link, paced=draw(ends), delay_ps=max(1, link.delay_ps)) for link in plan.scenario.cluster.links
    )
    cluster = replace(plan.scenario.cluster, links=links)
    return make_plan(replace(plan.scenario, cluster=cluster), plan.policy)
