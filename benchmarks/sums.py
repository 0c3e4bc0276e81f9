"""Sums in switches: how fast, with how little memory, and where order, summing or both are enough.

    python benchmarks/sums.py rates       # values a second: sums in switches, rings, servers; a minute
    python benchmarks/sums.py memory      # two jobs and too little memory; half an hour
    python benchmarks/sums.py hot         # hot rows of sparse tables: skew, memory and workers; seconds
    python benchmarks/sums.py rows        # the same, simulated beside computed; two minutes
    python benchmarks/sums.py zoo         # order, sums, both: five models at four bandwidths; an hour

Prints the tables of docs/aggregation-studies.md. Times are for two cores.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from typing import NamedTuple

from tensorexpress.errors import PlanError
from tensorexpress.hot_keys import RowExchange, best_packets, connections, packets_in, traffic
from tensorexpress.hot_rows import exchange_of, hot_rows_of
from tensorexpress.plan import make_plan
from tensorexpress.policy import parse_policy
from tensorexpress.scenario import Job, Scenario, make_scenario, read_scenario
from tensorexpress.sim import predict
from tensorexpress.sim.flat_plan import build
from tensorexpress.sim.run import execute, simulate, to_trace
from tensorexpress.sparse import SparseTable, ZipfHeat
from tensorexpress.sums import SLOT_BYTES, SUM_FRAMING, VALUE_BYTES, VALUES
from tensorexpress.topologies import star
from tensorexpress.trace import iterations_ps, measure_job
from tensorexpress.units import format_size
from tensorexpress.workload import Layer, Workload

GBPS = 10**9

# Values a second

WORKERS = (2, 4, 8, 16, 32, 64)
#: Packets of gradients that take no time to make, in so many tensors, so that some come back while others leave.
PACKETS = 8000
TENSORS = 16
#: Bytes around 256 values in SwitchML's own packets, from its published code.
SWITCHML_OVERHEAD_BYTES = 82

#: Ways to sum: policy, architecture and servers; -1: as many as workers, on the same hosts.
WAYS = {
    "switchml": ("switchml", "ring", 0),
    "libra, 4 servers": ("libra", "ps", 4),
    "atp, 4 servers": ("atp", "ps", 4),
    "ring": ("fifo", "ring", 0),
    "servers on all hosts": ("fifo", "ps", -1),
    "4 servers": ("fifo", "ps", 4),
}


def line_rate(bandwidth_bps: int, overhead_bytes: int) -> float:
    """Return how many values a second packets of 256 bring over a link."""
    return bandwidth_bps / 8 / (VALUES * VALUE_BYTES + overhead_bytes) * VALUES


def values_per_second(way: str, workers: int, bandwidth_bps: int, packets: int = PACKETS) -> float:
    """Return how many values a second are summed and back at every worker."""
    policy, architecture, servers = WAYS[way]
    own = range(workers) if servers < 0 else range(workers, workers + servers)
    layers = tuple(Layer(f"tensor{n}", packets // TENSORS * VALUES, 0, 0) for n in range(TENSORS))
    job = Job("job", Workload("at once", layers), tuple(range(workers)), tuple(own), architecture, shard_bytes=1)
    cluster = star(workers + max(0, servers), bandwidth_bps, "1 us", switch_memory=0)
    plan = make_plan(Scenario("rates", cluster, (job,), iterations=1, warmup=0), parse_policy(policy))
    return packets * VALUES * 10**12 / float(iterations_ps(simulate(plan).jobs[0])[-1])


def rates(workers: Sequence[int] = WORKERS, packets: int = PACKETS) -> Iterator[str]:
    """Yield the table of values a second."""
    for gbps in (10, 100):
        own, theirs = (
            line_rate(gbps * GBPS, size) / 1e6 for size in (SUM_FRAMING.header_bytes, SWITCHML_OVERHEAD_BYTES)
        )
        yield f"\n{gbps} Gbps, M values a second; line rate {own:.0f} with our packets, {theirs:.0f} with SwitchML's\n"
        yield from header(["", *(f"{count} workers" for count in workers)])
        for way in WAYS:
            found = [values_per_second(way, count, gbps * GBPS, packets) / 1e6 for count in workers]
            yield row([way, *(f"{each:.0f}" for each in found)])


# Memory


class Shared(NamedTuple):
    """What came of two jobs that share a switch."""

    iteration_ms: float
    #: Of sums that reached servers, those that came whole from a switch; None where all do.
    whole: float | None
    packets: float | None


#: Policies, and whether urgent packets take cells from others.
RIVALS = {
    "fifo": ("fifo", None),
    "tensorexpress": ("tensorexpress", None),
    "switchml": ("switchml", None),
    "libra": ("libra", None),
    "atp": ("atp", None),
    "tensorexpress+sum": ("tensorexpress+sum", None),
    "tensorexpress+sum:sum=front": ("tensorexpress+sum:sum=front", None),
    "tensorexpress+sum:sum=hashed": ("tensorexpress+sum:sum=hashed", True),
    "the same, without preemption": ("tensorexpress+sum:sum=hashed", False),
}
SLOTS = (4, 8, 16, 32, 64, 128, 473)
TWO_JOBS = (
    "cluster.bandwidth=5 Gbps",
    *(f"job.{job}.{key}" for job in range(2) for key in ("model=resnet50", "workers=8", "servers=2")),
)


def shared(rival: str, slots: int, changes: Sequence[str] = TWO_JOBS) -> Shared | None:
    """Return how two jobs fare whose switch has so many slots; None where that is too few."""
    name, preempts = RIVALS[rival]
    scenario = read_scenario(None, [*changes, "iterations=2", "warmup=1"])
    cluster = replace(scenario.cluster, switch_memory_bytes=slots * SLOT_BYTES)
    try:
        plan = make_plan(replace(scenario, cluster=cluster), parse_policy(name))
    except PlanError:
        return None
    program = build(plan)
    if preempts is not None:
        program = replace(program, preempts=preempts)
    trace = to_trace(plan, program, execute(program))
    iteration_ps = sum(measure_job(job, trace.warmup).iteration_ps for job in trace.jobs) / len(trace.jobs)
    if not program.cells:
        return Shared(iteration_ps / 1e9, None, None)
    return Shared(iteration_ps / 1e9, trace.whole_sums / trace.server_sums, trace.server_packets / trace.server_sums)


def memory(slots: Sequence[int] = SLOTS, changes: Sequence[str] = TWO_JOBS) -> Iterator[str]:
    """Yield the table of two jobs and little memory: iterations, and what was left to servers."""
    yield "Two jobs, iteration in ms; in brackets: sums that came whole from a switch, packets into servers for a sum\n"
    without = {name: shared(name, slots[0], changes) for name in ("fifo", "tensorexpress")}
    said = ", ".join(f"{found.iteration_ms:.1f} under `{name}`" for name, found in without.items() if found is not None)
    yield f"Servers alone: {said}\n"
    yield from header(["slots", *map(str, slots)])
    yield row(["memory", *(format_size(count * SLOT_BYTES) for count in slots)])
    for rival in (name for name in RIVALS if name not in without):
        cells = []
        for count in slots:
            found = shared(rival, count, changes)
            if found is None:
                cells.append("too few")
            elif found.whole is None:
                cells.append(f"{found.iteration_ms:.1f}")
            else:
                cells.append(f"{found.iteration_ms:.1f} ({found.whole:.0%}, {found.packets:.1f})")
        yield row([f"`{rival}`" if "," not in rival else rival, *cells])


# The zoo

MODELS = ("resnet50", "inception-v3", "vgg16", "bert-base", "gpt2")
BANDWIDTHS_GBPS = (10, 25, 100, 400)
COMPARED = (
    "fifo", "tensorexpress", "switchml", "libra", "atp", "tensorexpress+sum", "tensorexpress+sum:sum=front",
    "tensorexpress+sum:sum=hashed",
)  # fmt: skip


def zoo(
    models: Sequence[str] = MODELS, bandwidths_gbps: Sequence[int] = BANDWIDTHS_GBPS, changes: Sequence[str] = ()
) -> Iterator[str]:
    """Yield a row for every model and bandwidth: iterations in ms, and what the lower bound of all is of them."""
    yield "Iteration in ms, in brackets what the bound of all policies is of it\n"
    yield from header(["", "compute", *(f"`{policy}`" for policy in COMPARED)])
    for model in models:
        for gbps in bandwidths_gbps:
            words = [f"job.model={model}", f"cluster.bandwidth={gbps} Gbps", "iterations=1", "warmup=1", *changes]
            compared = predict(read_scenario(None, words), COMPARED)
            cells = [
                f"{result.jobs[0].iteration_ps / 1e9:.1f} ({compared.of_optimal(name):.0%})"
                for name, result in compared.results.items()
            ]
            yield row([f"{model}, {gbps} Gbps", f"{compared.baseline.jobs[0].compute_ps / 1e9:.1f}", *cells])


# Tables


def header(cells: Sequence[str]) -> Iterator[str]:
    """Yield the first two lines of a table."""
    yield row(cells)
    yield row(["---"] * len(cells))


def row(cells: Sequence[str]) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(cells)} |"


# Hot rows

SKEWS = (0.8, 0.95, 1.05, 1.2, 1.5)
MEMORIES = tuple(10**6 * megabytes for megabytes in (1, 4, 16))
HOT_WORKERS = (8, 64)
HOT_SERVERS = 4
TABLE_KEYS, TABLE_WIDTH, TABLE_LOOKUPS = 10**7, 16, 26_000


class HotRows(NamedTuple):
    """The best use of some memory of a switch for hot rows."""

    of_lookups: float
    of_rows: float
    #: How many times fewer bytes the busiest link carries.
    gain: float
    #: The memory that is used, which may be less than there is.
    used_bytes: int


def hot_rows(skew: float, workers: int, memory_bytes: int) -> HotRows:
    """Return what a switch that sums hot rows brings over servers alone."""
    heat = ZipfHeat(SparseTable(TABLE_KEYS, TABLE_WIDTH, TABLE_LOOKUPS, skew))
    exchange = RowExchange(TABLE_WIDTH, workers, HOT_SERVERS)
    best = traffic(heat, exchange, best_packets(heat, exchange, packets_in(memory_bytes)))
    return HotRows(
        best.of_lookups,
        best.of_rows,
        traffic(heat, exchange, 0).busiest_bytes / best.busiest_bytes,
        best.memory_bytes,
    )


def hot() -> Iterator[str]:
    """Yield the table of hot rows."""
    for workers in HOT_WORKERS:
        alone, with_switch = (connections(workers, HOT_SERVERS, by_switch).together for by_switch in (False, True))
        yield f"{workers} workers, {HOT_SERVERS} servers: {alone} connections for rows, {with_switch} for hot ones"
        yield f"| skew | {' | '.join(format_size(memory) for memory in MEMORIES)} |"
        yield f"|{'---|' * (1 + len(MEMORIES))}"
        for skew in SKEWS:
            found = [hot_rows(skew, workers, memory) for memory in MEMORIES]
            cells = [f"{each.of_lookups:.0%}, {each.of_rows:.0%}: {each.gain:.2f}x" for each in found]
            yield f"| {skew} | {' | '.join(cells)} |"


#: Cold rows in pieces of this size are on all links at once.
ROW_SLICES = "slice=8 KB"
ROW_POLICIES = tuple(f"{name}:{ROW_SLICES}" for name in ("fifo", "libra", "switchml", "atp"))


def table_scenario(skew: float, workers: int) -> Scenario:
    """Return a scenario in which rows of one table alone take time."""
    table = SparseTable(TABLE_KEYS, TABLE_WIDTH, TABLE_LOOKUPS, skew)
    workload = Workload("table", (Layer("embed", table.params, 1, 1, *astuple(table)),))
    job = {"model": workload, "workers": workers, "servers": HOT_SERVERS, "shard": 0}
    return make_scenario(job=job, iterations=1, warmup=1)


def rows(skews: Sequence[float] = SKEWS, many_workers: Sequence[int] = HOT_WORKERS) -> Iterator[str]:
    """Yield how many times faster iterations are with hot rows in switches: computed, and simulated in all ways."""
    yield from header(["workers, skew", "hot rows", "busiest link", *(f"`{name}`" for name in ROW_POLICIES[1:])])
    for workers in many_workers:
        for skew in skews:
            scenario = table_scenario(skew, workers)
            job = scenario.jobs[0]
            (hot,), (layer,) = hot_rows_of(job, scenario.cluster), job.workload.layers
            assert layer.table is not None
            heat, exchange = ZipfHeat(layer.table), exchange_of(job, layer.table, scenario.cluster)
            before, after = (traffic(heat, exchange, exchange.packets_for(count)) for count in (0, hot))
            compared = predict(scenario, ROW_POLICIES, grain=1)
            gains = [before.busiest_bytes / after.busiest_bytes, *map(compared.speedup, ROW_POLICIES[1:])]
            yield row([f"{workers}, {skew}", f"{hot:,}", *(f"{gain:.2f}x" for gain in gains)])


STUDIES = {"rates": rates, "memory": memory, "hot": hot, "rows": rows, "zoo": zoo}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES, nargs="*", default=list(STUDIES))
    for name in parser.parse_args().study:
        for line in STUDIES[name]():
            print(line, flush=True)


if __name__ == "__main__":
    main()
