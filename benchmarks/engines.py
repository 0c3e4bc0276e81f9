"""How fast the engines are: replay against ns-3 and SimPy, training against SimPy, and growth with workers.

Run by `make bench`. Times are medians over runs in turn, after a warm-up that compiles. Every comparison also checks
that the results are equal; nothing is asserted about speed.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median

import ns3_peer
import numpy as np
from numpy.typing import NDArray

from tensorexpress.plan import make_plan
from tensorexpress.policy import POLICIES
from tensorexpress.scenario import read_scenario
from tensorexpress.sim import fast, model
from tensorexpress.sim.flat_plan import FlatPlan, build
from tensorexpress.sim.record import Record
from tensorexpress.sim.replay import replay
from tensorexpress.topologies import star

HOSTS, RATE_BPS, DELAY_PS, LOAD, QUEUES = 8, 10**10, 10**6, 0.8, 8
BUILD_DIRECTORY = Path(__file__).parents[1] / "build" / "ns3"
GIB = 1 << 30
ROUNDS = 5
RESNET_50 = ("job.model=resnet50", "cluster.mtu=1500")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a hundredth of the packets, and at most 16 workers")
    parser.add_argument("--only", choices=["replay", "training", "growth"], help="one of the three parts")
    parser.add_argument("--workers", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.workers:
        print(json.dumps(measure_iteration(arguments.workers)))
        return
    small, only = arguments.small, arguments.only
    if only in (None, "replay"):
        compare_replay(packets=10_000 if small else 1_000_000, prefix=3_000 if small else 30_000)
    if only in (None, "training"):
        compare_training(workers=1 if small else 2)
    if only in (None, "growth"):
        show_growth(workers=(8, 16) if small else (8, 16, 32, 64, 128))


# Replay


def compare_replay(packets: int, prefix: int) -> None:
    """Print packets/s of the compiled engine, ns-3 and SimPy on the same packets."""
    print(f"Replay: star of {HOSTS}, {RATE_BPS / 1e9:g} Gbps, {DELAY_PS / 1e6:g} us, load {LOAD}, {packets:,} packets")
    reason = ns3_peer.available()
    if reason:
        print(f"without ns-3: {reason}")
    program = None if reason else ns3_peer.build(BUILD_DIRECTORY)
    rows = []
    for sizes, (least, most) in {"1500 B": (1500, 1500), "300-1500 B": (300, 1500)}.items():
        traffic = random_packets(packets, least, most)
        for discipline in ("fifo", "strict"):
            rows.append([sizes, discipline, *replay_row(traffic, prefix, discipline, program)])
    peers = [("SimPy", "compiled/SimPy", "unequal"), ("ns-3", "compiled/ns-3", "unequal")]
    print_table(["sizes", "discipline", "compiled", *chain(*peers)], rows)
    print(
        f"packets/s; compiled: the whole call of replay(); SimPy: on the first {prefix:,} packets; ns-3: its event "
        "loop alone.\nunequal: arrival times that are not the same picosecond.\n"
    )


def random_packets(count: int, least_bytes: int, most_bytes: int) -> NDArray[np.void]:
    """Return packets at uniform times between uniform pairs of hosts."""
    rng = np.random.default_rng(1)
    packets = np.zeros(count, dtype=ns3_peer.PACKET)
    packets["bytes"] = rng.integers(least_bytes, most_bytes + 1, count)
    span_ps = int(packets["bytes"].sum()) * 8 * 10**12 / (HOSTS * RATE_BPS * LOAD)
    packets["time_ps"] = np.sort(rng.integers(0, int(span_ps), count))
    packets["src"] = rng.integers(0, HOSTS, count)
    packets["dst"] = (packets["src"] + rng.integers(1, HOSTS, count)) % HOSTS
    packets["rank"] = rng.integers(0, QUEUES, count)
    return packets


def replay_row(traffic: NDArray[np.void], prefix: int, discipline: str, program: Path | None) -> list[str]:
    cluster = star(HOSTS, RATE_BPS, DELAY_PS, buffer=0, queues=QUEUES)
    few = traffic[:prefix]
    compiled = partial(replay, cluster, traffic, discipline, engine="fast")
    simpy = partial(replay, cluster, few, discipline, engine="simpy")
    arrivals, few_arrivals = compiled(), replay(cluster, few, discipline, engine="fast")
    runs: list[Callable[[], float]] = [partial(seconds, compiled), partial(seconds, simpy)]
    differences = [int((simpy() != few_arrivals).sum())]
    if program is not None:
        star_options = {"hosts": HOSTS, "rate_bps": RATE_BPS, "delay_ps": DELAY_PS, "queues": QUEUES}
        ns3 = partial(ns3_peer.run, program, traffic, discipline=discipline, **star_options)
        runs.append(lambda: ns3()[1])
        differences.append(int((ns3()[0] != arrivals).sum()))
    times = medians(runs)
    rates = [count / time for count, time in zip((len(traffic), prefix, len(traffic)), times, strict=False)]
    against_ns3 = [millions(rates[2]), ratio(rates[0], rates[2]), str(differences[1])] if program else ["-"] * 3
    return [millions(rates[0]), millions(rates[1]), ratio(rates[0], rates[1]), str(differences[0]), *against_ns3]


# Training


def compare_training(workers: int) -> None:
    """Print transmissions/s of the two engines on the same training scenario."""
    overrides = ["job.model=resnet50", f"job.workers={workers}", "job.servers=1", "cluster.mtu=9000"]
    print(f"Training: {' '.join(overrides)}, one iteration")
    rows = [training_row(overrides, policy) for policy in ("fifo", "tensorexpress")]
    print_table(["policy", "transmissions", "compiled", "SimPy", "compiled/SimPy", "unequal"], rows)
    print("transmissions/s: packets put on a link, acknowledgements included. unequal: parts of the records.\n")


def training_row(overrides: Iterable[str], policy: str) -> list[str]:
    program = program_of(overrides, policy)
    record = fast.run(program)
    unequal = unequal_fields(record, model.run(program))
    times = medians([partial(seconds, partial(engine.run, program)) for engine in (fast, model)])
    compiled, simpy = (record.transmissions / time for time in times)
    return [policy, f"{record.transmissions:,}", millions(compiled), millions(simpy), ratio(compiled, simpy), unequal]


def program_of(overrides: Iterable[str], policy: str) -> FlatPlan:
    scenario = read_scenario(None, [*overrides, "iterations=1", "warmup=0"])
    return build(make_plan(scenario, POLICIES[policy]))


def unequal_fields(one: Record, other: Record) -> str:
    names = [f.name for f in fields(Record) if not np.array_equal(getattr(one, f.name), getattr(other, f.name))]
    return ", ".join(names) or "0"


# Growth


def show_growth(workers: Sequence[int]) -> None:
    """Print how time and memory grow with the number of workers."""
    print(f"Growth: {' '.join(RESNET_50)}, servers = workers / 2, one iteration, policy tensorexpress, compiled engine")
    rows, per_million = [], []
    for count in workers:
        command = [sys.executable, __file__, f"--workers={count}"]
        found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        per_million.append(found["seconds"] / found["transmissions"] * 1e6)
        rows.append(
            [
                str(count),
                f"{found['transmissions']:,}",
                f"{found['build_seconds']:.1f}",
                f"{found['seconds']:.2f}",
                f"{per_million[-1]:.3f}",
                f"{per_million[-1] / per_million[0]:.2f}",
                f"{found['peak_bytes'] / GIB:.2f} GiB",
            ]
        )
    header = [
        "workers",
        "transmissions",
        "build CPU s",
        "run CPU s",
        "s per million",
        f"relative to {workers[0]}",
        "peak memory",
    ]
    print_table(header, rows)
    under = "under" if found["peak_bytes"] < 8 * GIB else "NOT under"
    print(f"{workers[-1]} workers: {under} 8 GiB")


def measure_iteration(workers: int) -> dict[str, float]:
    """Return what one iteration takes, in a process of its own; getrusage tells its peak memory."""
    fast.run(program_of([*RESNET_50, "job.workers=1", "job.servers=1"], "tensorexpress"))
    # Time of the processor, because these runs are too long to repeat until no other process disturbs them.
    start = time.process_time()
    program = program_of([*RESNET_50, f"job.workers={workers}", f"job.servers={workers // 2}"], "tensorexpress")
    built = time.process_time()
    record = fast.run(program)
    return {
        "transmissions": record.transmissions,
        "build_seconds": built - start,
        "seconds": time.process_time() - built,
        # Linux counts it in KiB.
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


# Helpers


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def medians(runs: Sequence[Callable[[], float]]) -> list[float]:
    """Return the median of what each run returns, taking turns so that a busy machine slows all alike."""
    rounds = [[run() for run in runs] for _ in range(ROUNDS)]
    return [median(times) for times in zip(*rounds, strict=True)]


def millions(rate: float) -> str:
    return f"{rate / 1e6:.3g} M"


def ratio(rate: float, peer: float) -> str:
    return f"{rate / peer:.0f}x"


def print_table(header: list[str], rows: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in [header, *rows]:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


if __name__ == "__main__":
    main()
