"""Commits of asynchronous training: how fast the scheduler decides, and what it gains in clusters that change.

    python benchmarks/commits.py scheduler    # updates a second, by the size of a batch; seconds
    python benchmarks/commits.py clusters     # time to a loss: a calm cluster, and what may change in it; ten minutes
    python benchmarks/commits.py bounds       # everything changes, and delays are bounded more tightly; ten minutes
    python benchmarks/commits.py steps        # everything changes, and every mode has its own best step; 15 minutes

Prints the tables of docs/asynchronous.md. Times are for two cores.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import replace
from statistics import fmean
from typing import Any

from tensorexpress.commits.aggregate import Aggregation
from tensorexpress.commits.scheduler import decide
from tensorexpress.commits.updates import Update
from tensorexpress.results.convergence import Convergence
from tensorexpress.results.seeds import Estimate
from tensorexpress.scenario import Scenario, make_scenario
from tensorexpress.sim.train import train

BATCHES = (1, 8, 64, 512)
HELPERS = (0, 2, 8)
TAU = 1000
SERVER = 10_000


def decisions_per_second(batch: int, helpers: int, seconds: float = 0.5) -> float:
    """Return for how many updates a second the scheduler decides, in batches of requests that wait together."""
    draws = random.Random(1)
    updates = [Update(host, draws.randrange(TAU), 10**8, 1.0) for host in range(batch)]
    rates_bps = [draws.choice([10**9, 10**10]) for _ in range(batch)]
    way = Aggregation(SERVER, tuple(range(SERVER + 1, SERVER + 1 + helpers)))

    def bandwidth(src: int, dst: int) -> int:
        return rates_bps[src] if src < batch else 10**10

    decided, start = 0, time.perf_counter()
    while time.perf_counter() < start + seconds:
        decide(updates, TAU, TAU, way, bandwidth)
        decided += batch
    return decided / (time.perf_counter() - start)


def print_scheduler() -> None:
    """Print updates a second that are ordered, and summed by helpers, with one core."""
    print("| requests that wait together | " + " | ".join(f"{count} helpers" for count in HELPERS) + " |")
    print("|---|" + "---|" * len(HELPERS))
    for batch in BATCHES:
        rates = (f"{decisions_per_second(batch, helpers):,.0f}" for helpers in HELPERS)
        print(f"| {batch} | " + " | ".join(rates) + " |")


# Clusters that change

WORKERS = 24
SEEDS = range(1, 21)
#: Nothing is drawn for later; the slowest training is over before.
HORIZON_S = 400
MODES = ("sync", "fifo", "bounded", "order", "aggregate", "mlfabric")
TAUS = (23, 28, 36)
BOUNDED = ("bounded", "order", "aggregate")
STEPS = {"logistic": (0.2, 0.3, 0.5), "network": (0.02, 0.025, 0.03)}


def spells(draws: random.Random, between_s: float, length_s: float) -> Iterator[dict[str, str]]:
    """Yield when something begins and ends, again and again; both are exponential."""
    now_s = draws.expovariate(1 / between_s)
    while now_s < HORIZON_S:
        until_s = now_s + draws.expovariate(1 / length_s) + 0.1
        yield {"at": f"{now_s:.3f} s", "until": f"{until_s:.3f} s"}
        now_s = until_s + draws.expovariate(1 / between_s)


def stragglers(draws: random.Random) -> list[dict[str, Any]]:
    """Return workers that are 2 to 10 times slower for a while, a fifth of the time."""
    return [
        {"worker": f"h{worker}", "factor": round(draws.uniform(2, 10), 2), **when}
        for worker in range(WORKERS)
        for when in spells(draws, 20, 5)
    ]


def slow_links(draws: random.Random) -> list[dict[str, Any]]:
    """Return links of workers that are at a twentieth to a half of their rate, a fifth of the time."""
    return [
        {"link": f"h{worker}-s0", "share": round(draws.uniform(0.05, 0.5), 3), **when}
        for worker in range(WORKERS)
        for when in spells(draws, 20, 5)
    ]


def bursts(draws: random.Random) -> list[dict[str, Any]]:
    """Return bursts that take 2 to 8 of the 10 Gbps to and from the server, half of the time."""
    server, other = f"h{WORKERS}", f"h{WORKERS + 6}"
    return [
        {"src": src, "dst": dst, "rate": f"{draws.uniform(2, 8):.2f} Gbps", **when}
        for src, dst in ((other, server), (server, other))
        for when in spells(draws, 5, 5)
    ]


#: What changes in each of them: workers, links, other traffic.
CLUSTERS = {
    "calm": (),
    "stragglers": ("stragglers",),
    "slow links": ("links",),
    "bursts": ("bursts",),
    "all of it": ("stragglers", "links", "bursts"),
}


def cluster(name: str, seed: int, problem: str, step: float | None = None) -> Scenario:
    """Return a job whose server's link is the bottleneck, in a cluster that changes as the seed draws it."""
    draws = random.Random(seed)
    slow, links, traffic = stragglers(draws), slow_links(draws), bursts(draws)
    chosen = CLUSTERS[name]
    steps = {} if step is None else {"learning_rate": step}
    return make_scenario(
        name=name.replace(" ", "-"),
        cluster={"hosts": WORKERS + 7},
        job={"architecture": "async", "workers": WORKERS},
        commits={"helpers": 4, "pause": "500 ms", "problem": problem, "modes": list(MODES), "updates": 8000, **steps},
        compute={"jitter": 0.1},
        change=slow * ("stragglers" in chosen) + links * ("links" in chosen),
        background=traffic * ("bursts" in chosen),
        seed=seed,
    )


def trained(task: tuple[str, int, str, float | None]) -> Convergence:
    """Return what came of one seed; a function of its own, so that another process can call it."""
    return train(cluster(*task))


def study(name: str, problem: str, steps: Sequence[float | None], pool: Executor) -> list[Convergence]:
    """Return the trainings of all seeds, with every step."""
    return list(pool.map(trained, [(name, seed, problem, step) for step in steps for seed in SEEDS]))


def seconds(found: Sequence[Convergence], mode: str) -> list[float]:
    """Return the time to the loss with every seed; one that never got there counts as the end of its training.

    That favours the mode that failed.
    """
    return [(each.traces[mode][0].reached_ps or each.traces[mode][0].end_ps) / 1e12 for each in found]


def failures(found: Sequence[Convergence], mode: str) -> int:
    """Return with how many seeds the loss was never reached."""
    return sum(each.traces[mode][0].reached_ps is None for each in found)


def estimated(values: Sequence[float], unit: str) -> str:
    """Return a mean and its confidence."""
    estimate = Estimate.of(values)
    return f"{estimate.mean:.3g} ± {estimate.within:.2g}{unit}"


def gains(found: Mapping[str, Sequence[float]], over: str) -> dict[str, str]:
    """Return how many times sooner than a mode every other is, with the same seed."""
    pairs = {mode: list(zip(found[over], own, strict=True)) for mode, own in found.items()}
    return {mode: estimated([other / own for other, own in each], "x") for mode, each in pairs.items()}


def print_clusters() -> None:
    """Print time to the loss and its ratios in every cluster, all modes with the problem's own step."""
    print("| cluster | mode | seconds to loss | over sync | over fifo | commits/s | worst delay | dropped | failed |")
    print("|---|---|---|---|---|---|---|---|---|")
    with ProcessPoolExecutor() as pool:
        for name in CLUSTERS:
            found = study(name, "logistic", [None], pool)
            times = {mode: seconds(found, mode) for mode in MODES}
            over_sync, over_fifo = gains(times, "sync"), gains(times, "fifo")
            for mode in MODES:
                rate, dropped = (
                    fmean(each.mean(mode, metric) for each in found) for metric in ("commits_per_second", "dropped")
                )
                worst = max(each.traces[mode][0].worst_delay for each in found)
                cells = [name, mode, estimated(times[mode], ""), over_sync[mode], over_fifo[mode], f"{rate:.1f}"]
                print(
                    "| " + " | ".join([*cells, str(worst), f"{dropped:.0f}", str(failures(found, mode))]) + " |",
                    flush=True,
                )


def trained_within(task: tuple[int, int]) -> Convergence:
    """Return what came of a bound and a seed where everything changes."""
    tau, seed = task
    found = cluster("all of it", seed, "logistic")
    return train(replace(found, commits=replace(found.commits, tau=tau, modes=("fifo", *BOUNDED))))


def print_bounds() -> None:
    """Print what a bound on delay costs whom."""
    print("| tau | mode | seconds to loss | over fifo | commits/s | dropped |")
    print("|---|---|---|---|---|---|")
    with ProcessPoolExecutor() as pool:
        for tau in TAUS:
            found = list(pool.map(trained_within, [(tau, seed) for seed in SEEDS]))
            times = {mode: seconds(found, mode) for mode in ("fifo", *BOUNDED)}
            over_fifo = gains(times, "fifo")
            for mode in BOUNDED:
                rate, dropped = (
                    fmean(each.mean(mode, metric) for each in found) for metric in ("commits_per_second", "dropped")
                )
                cells = [str(tau), mode, estimated(times[mode], ""), over_fifo[mode], f"{rate:.1f}", f"{dropped:.0f}"]
                print("| " + " | ".join(cells) + " |", flush=True)


def print_steps() -> None:
    """Print the same where everything changes and every mode has the step with which it is soonest on average."""
    print("| problem | mode | best step | seconds to loss | over sync | over fifo | failed |")
    print("|---|---|---|---|---|---|---|")
    with ProcessPoolExecutor() as pool:
        for problem, steps in STEPS.items():
            found = study("all of it", problem, steps, pool)
            by_step = {step: found[number * len(SEEDS) :][: len(SEEDS)] for number, step in enumerate(steps)}
            best: dict[str, float] = {}
            for mode in MODES:
                # A step with which some seed fails is none that anybody would choose.
                cost = {step: (failures(own, mode), fmean(seconds(own, mode))) for step, own in by_step.items()}
                best[mode] = min(cost, key=lambda step: cost[step])
            times = {mode: seconds(by_step[best[mode]], mode) for mode in MODES}
            over_sync, over_fifo = gains(times, "sync"), gains(times, "fifo")
            for mode in MODES:
                cells = [problem, mode, f"{best[mode]:g}", estimated(times[mode], ""), over_sync[mode], over_fifo[mode]]
                print("| " + " | ".join([*cells, str(failures(by_step[best[mode]], mode))]) + " |", flush=True)


TABLES = {"scheduler": print_scheduler, "clusters": print_clusters, "bounds": print_bounds, "steps": print_steps}


def main() -> None:
    """Print one of the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=TABLES)
    TABLES[parser.parse_args().table]()


if __name__ == "__main__":
    main()
