"""Placements in InArt's set-up: a fat-tree with 54 hosts and 45 switches, 4 servers, 10 to 50 workers, random links.

`python benchmarks/placement.py` prints the rate of every placement, and how much less time gradients take under `inart`
than under `equal`, `atp` and `load`, beside what was published; `--scale` how long planning takes, also for 1,024
workers and 64 switches.
docs/placement.md shows what it printed, and says why numbers differ.
"""

from __future__ import annotations

import argparse
import resource
from collections import Counter
from dataclasses import replace

import numpy as np

from tensorexpress.cluster import Cluster, with_rates
from tensorexpress.fabric import Fabric, fabric_of
from tensorexpress.placement import place
from tensorexpress.placement_programs import Parties
from tensorexpress.text import grid
from tensorexpress.topologies import fat_tree, leaf_spine

MBPS = 10**6

#: Shortest and longest rates of links, of servers' links, and what a switch takes in to sum, in Mbit/s.
LINKS, SERVER_LINK, SWITCH = (10, 30), 20, 9

#: Slots of a switch: those of 1 MB.
SLOTS = 473


def random_fat_tree(seed: int, servers: tuple[int, ...]) -> Cluster:
    """Return the fat-tree with links of random rates, servers' links aside."""
    rng = np.random.default_rng(seed)
    tree = fat_tree(6, "20 Mbps")
    names = {tree.hosts[server] for server in servers}
    links = []
    for link in tree.links:
        rate = SERVER_LINK if link.a in names or link.b in names else int(rng.integers(LINKS[0], LINKS[1] + 1))
        links.append(with_rates(link, rate * MBPS, rate * MBPS))
    return replace(tree, links=tuple(links))


def set_up(workers: int, seed: int, switch_bps: float) -> tuple[Fabric, Parties]:
    """Return the set-up with servers and workers on random hosts."""
    hosts = np.random.default_rng([seed, 1]).permutation(54).tolist()
    servers = tuple(hosts[:4])
    cluster = random_fat_tree(seed, servers)
    fabric = fabric_of(cluster, cluster.directed(), Counter(), SLOTS, round(switch_bps))
    return fabric, Parties(f"{workers} workers", tuple(sorted(hosts[4 : 4 + workers])), servers)


def rates(workers: int, seed: int, way: str, switch_bps: float) -> dict[str, float]:
    """Return the rate of every placement in Mbit/s, and what no placement beats."""
    fabric, parties = set_up(workers, seed, switch_bps)
    placed = {name: place(fabric, parties, name, way, seed=seed) for name in ("inart", "equal", "atp", "load")}
    found = {name: placement.rate_bps / MBPS for name, placement in placed.items()}
    return {**found, "bound": placed["inart"].bound_bps / MBPS, "seconds": placed["inart"].seconds}


def study(seeds: int, way: str, switch_mbps: float) -> list[list[str]]:
    """Return a row for every number of workers: means over seeds, and by how much gradients take less time."""
    rows = [
        [
            "workers",
            "inart",
            "equal",
            "atp",
            "load",
            "of optimum",
            "less than equal",
            "than atp",
            "than load",
            "planned in",
        ]
    ]
    for workers in (10, 20, 30, 40, 50):
        each = [rates(workers, seed, way, switch_mbps * MBPS) for seed in range(seeds)]
        means = {name: float(np.mean([one[name] for one in each])) for name in each[0]}
        less = {
            name: float(np.mean([1 - one[name] / one["inart"] for one in each])) for name in ("equal", "atp", "load")
        }
        rows.append(
            [
                str(workers),
                *(f"{means[name]:.2f}" for name in ("inart", "equal", "atp", "load")),
                f"{np.mean([one['inart'] / one['bound'] for one in each]):.0%}",
                *(f"{less[name]:.0%}" for name in ("equal", "atp", "load")),
                f"{max(one['seconds'] for one in each):.2f} s",
            ]
        )
    return rows


def scale() -> list[list[str]]:
    """Return how long planning takes, and how much memory the process has used by then."""
    rows = [["network", "workers", "servers", "summed", "of optimum", "planned in", "memory"]]
    wide = leaf_spine(48, 16, 22, oversubscription=2)
    behind = tuple(22 * leaf + 21 for leaf in range(0, 48, 6))
    others = tuple(host for host in range(len(wide.hosts)) if host not in behind)[:1024]
    for name, cluster, workers, servers, ways in (
        ("fat-tree, 45 switches", fat_tree(6), tuple(range(50)), (50, 51, 52, 53), ("trees", "once", "none")),
        ("leaf-spine, 64 switches", wide, others, behind, ("trees", "none")),
    ):
        fabric = fabric_of(cluster, cluster.directed(), Counter(), SLOTS, 0)
        for way in ways:
            placed = place(fabric, Parties(name, workers, servers), "inart", way)
            used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            counts = [str(len(workers)), str(len(servers)), way]
            rows.append([name, *counts, f"{placed.of_optimum:.0%}", f"{placed.seconds:.2f} s", f"{used:.0f} MiB"])
    return rows


def main() -> None:
    """Print the study, or what planning costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="set-ups to draw for every number of workers")
    parser.add_argument("--scale", action="store_true", help="print how long planning takes instead")
    chosen = parser.parse_args()
    if chosen.scale:
        print("\n".join(grid(scale())))
        return
    for title, way, switch_mbps in (
        (
            f"Summed once at the most, a switch takes {SWITCH} Mbps in: InArt's set-up. Mbps, mean of {chosen.seeds}",
            "once",
            SWITCH,
        ),
        (f"Summed by every switch on the way, a switch takes {SWITCH} Mbps in", "trees", SWITCH),
        ("Summed by every switch on the way, which are as fast as links", "trees", 0),
    ):
        print(title)
        print("\n".join(grid(study(chosen.seeds, way, switch_mbps))))
        print()
    print("Published, InArt against its baselines: 48 to 57 % less communication time for 10 to 50 workers.")


if __name__ == "__main__":
    main()
