"""Regimes: is a policy ever slower than fifo, and does more bandwidth ever make an iteration longer?

    python benchmarks/regimes.py                    # everything: hours on two cores
    python benchmarks/regimes.py --sample 24        # so many of the scenarios, chosen with a seed
    python benchmarks/regimes.py --grain 8          # trains of eight packets: quicker, and coarser

Every scenario is simulated with all policies that order anything. A row is printed for whatever is more than 1 % slower
than fifo in the same scenario, with the reason that `tensorexpress predict` gives, or than itself with less bandwidth;
then the counts. The reason is large slices, and it counts only if the same policy with small ones is not slower; or,
where slices are small, too many queues, and it counts only if the same with as few as do is not slower.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise, product
from typing import NamedTuple

from tensorexpress.policy import POLICIES
from tensorexpress.results.advice import why_slower
from tensorexpress.results.side_by_side import SideBySide
from tensorexpress.scenario import read_scenario
from tensorexpress.sim import predict

MODELS = ("resnet50", "vgg16", "inception-v3", "bert-base")
GBPS = (1, 2, 5, 10, 25)
WORKERS = (2, 4, 8)
JITTERS = (0.0, 0.02, 0.05)

#: Those that promise to be no slower: all that put what is urgent first, in hosts or in switches, and send as much.
ORDERING = tuple(
    name
    for name, policy in POLICIES.items()
    if (policy.host_order == "priority" or policy.orders_in_switches) and not policy.in_switches
)

#: What counts as no slower.
TOLERANCE = 1.01


class Regime(NamedTuple):
    """All of a scenario but its bandwidth."""

    model: str
    colocated: bool
    workers: int
    jitter: float


def regimes() -> Iterator[Regime]:
    """Yield every regime."""
    return map(Regime._make, product(MODELS, (True, False), WORKERS, JITTERS))


def predicted(regime: Regime, gbps: float, grain: int, policies: Iterable[str]) -> SideBySide:
    """Return what comes of policies."""
    changes = [
        f"job.model={regime.model}",
        f"job.workers={regime.workers}",
        f"cluster.bandwidth={gbps} Gbps",
        f"compute.jitter={regime.jitter}",
        "iterations=10",
    ]
    if regime.colocated:
        changes.append("job.colocated=true")
    return predict(read_scenario(None, changes), ["fifo", *policies], grain=grain)


def iterations_ms(compared: SideBySide) -> dict[str, float]:
    """Return the mean iteration time of every policy."""
    return {name: result.jobs[0].iteration_ps / 1e9 for name, result in compared.results.items()}


class Broken(NamedTuple):
    """A promise that a policy did not keep."""

    line: str
    explained: bool


def found(regime: Regime, grain: int) -> list[Broken]:
    """Return every broken promise of a regime."""
    broken = []
    by_rate = {}
    for gbps in GBPS:
        compared = predicted(regime, gbps, grain, ORDERING)
        times = by_rate[gbps] = iterations_ms(compared)
        for name in ORDERING:
            if times[name] > TOLERANCE * times["fifo"]:
                why = why_slower(compared, name, 0)
                is_small = POLICIES[name].slice_bytes == POLICIES["tensorexpress"].slice_bytes
                remedy = f"{name}:switch=strict,queues=fewest" if is_small else f"{name}:slice=32 KB"
                remedied = iterations_ms(predicted(regime, gbps, grain, [remedy]))[remedy]
                line = (
                    f"{regime} {gbps} Gbps: {name} {times[name]:.2f} ms, fifo {times['fifo']:.2f} ms, "
                    f"{remedy} {remedied:.2f} ms{why}"
                )
                broken.append(Broken(line, bool(why) and remedied <= TOLERANCE * times["fifo"]))
    for less, more in pairwise(GBPS):
        for name in ORDERING:
            if by_rate[more][name] > TOLERANCE * by_rate[less][name]:
                line = (
                    f"{regime} {name}: {by_rate[more][name]:.2f} ms at {more} Gbps, "
                    f"{by_rate[less][name]:.2f} ms at {less} Gbps"
                )
                broken.append(Broken(line, False))
    return broken


def main() -> None:
    """Print what is found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=0, help="so many regimes; 0 is all of them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--grain", type=int, default=1)
    arguments = parser.parse_args()
    chosen = list(regimes())
    if arguments.sample:
        chosen = random.Random(arguments.seed).sample(chosen, min(arguments.sample, len(chosen)))
    broken: list[Broken] = []
    # Processes rather than the threads of `predict`, which leave a core idle while the last policy ends.
    with ProcessPoolExecutor() as pool:
        for done, of_regime in enumerate(pool.map(found, chosen, [arguments.grain] * len(chosen)), 1):
            broken += of_regime
            for each in of_regime:
                print(each.line, flush=True)
            print(f"{done} of {len(chosen)} regimes", end="\r", file=sys.stderr, flush=True)
    promises = len(chosen) * (len(GBPS) + len(GBPS) - 1) * len(ORDERING)
    unexplained = sum(not each.explained for each in broken)
    print(
        f"{len(chosen)} regimes at {len(GBPS)} bandwidths, {len(ORDERING)} policies: {len(broken)} of {promises} "
        f"promises broken, {unexplained} of them without a true reason"
    )


if __name__ == "__main__":
    main()
