"""Commits of asynchronous training: how fast the scheduler decides.

    python benchmarks/commits.py scheduler    # updates a second, by the size of a batch; seconds

Prints tables of docs/asynchronous.md.
"""

from __future__ import annotations

import argparse
import random
import time

from tensorexpress.commits.aggregate import Aggregation
from tensorexpress.commits.scheduler import decide
from tensorexpress.commits.updates import Update

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


def main() -> None:
    """Print one of the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=["scheduler"])
    parser.parse_args()
    print_scheduler()


if __name__ == "__main__":
    main()
