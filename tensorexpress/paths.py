"""Paths: by which links the packets of two hosts go, chosen once for all who carry them.

There is one path from a host to another, whatever job a packet is of: every switch, a router of Linux too, can tell
packets apart by their two addresses. Pairs of hosts choose in turn among their shortest paths, those that move most
first, each the one that makes busy links least busier.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from reprlib import repr as short_repr
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorexpress.cluster import Cluster
from tensorexpress.errors import PlanError
from tensorexpress.routing import DirectedLinks, ecmp_hash


@dataclass(frozen=True, slots=True)
class Path:
    """The directed links that packets from one host to another take, first to last."""

    src: int
    dst: int
    links: tuple[int, ...]


@dataclass(frozen=True)
class Paths:
    """The paths of all pairs of hosts that talk, by their indices in ascending order."""

    rows: tuple[Path, ...] = ()

    def __iter__(self) -> Iterator[Path]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def between(self, src: int, dst: int) -> tuple[int, ...]:
        """Return the directed links from host `src` to host `dst`; a host reaches itself over no link."""
        if src == dst:
            return ()
        links = self._links.get((src, dst))
        if links is None:
            raise PlanError(f"the plan has no path from host {src} to host {dst}; make it again")
        return links

    @cached_property
    def _links(self) -> dict[tuple[int, int], tuple[int, ...]]:
        return {(path.src, path.dst): path.links for path in self.rows}


def choose_paths(cluster: Cluster, moved: Mapping[tuple[int, int], int]) -> Paths:
    """Choose a path for every pair of hosts; `moved` are the bytes from the first to the second in some time.

    >>> from tensorexpress.topologies import leaf_spine
    >>> paths = choose_paths(leaf_spine(2, 2, 2), {(0, 2): 100, (1, 3): 100})
    >>> sorted(path.links[1] for path in paths)
    [8, 10]
    """
    chooser = _Chooser(cluster)
    by_size = sorted(moved, key=lambda pair: -moved[pair])
    return Paths(tuple(sorted((chooser.choose(*pair, moved[pair]) for pair in by_size), key=_pair)))


def _pair(path: Path) -> tuple[int, int]:
    return path.src, path.dst


def check_paths(cluster: Cluster, paths: Sequence[Path]) -> None:
    """Refuse what is no path from one host to another over switches, each of them once; errors name it by number."""
    directed = cluster.directed()
    for number, path in enumerate(paths):
        problem = _problem(cluster, directed, path)
        if problem is not None:
            raise PlanError(f"paths.{number}: {problem}")


def _problem(cluster: Cluster, directed: DirectedLinks, path: Path) -> str | None:
    """Return what is wrong with a path, and what would be right."""
    hosts, links = len(cluster.hosts), len(directed.source)

    def name(node: int) -> str:
        return cluster.nodes[node]

    for host in (path.src, path.dst):
        if not 0 <= host < hosts:
            return f"there is no host {short_repr(host)}; accepted: 0 to {hosts - 1}"
    place, seen = path.src, {path.src}
    for link in path.links:
        if not 0 <= link < links:
            return f"there is no link {short_repr(link)}; accepted: 0 to {links - 1}"
        if directed.source[link] != place:
            return (
                f"link {link} leaves {name(directed.source[link])}, and the way so far ends at {name(place)}; "
                "accepted: links that follow each other"
            )
        if place < hosts and place != path.src:
            return f"it leads through {name(place)}; accepted: switches, as hosts do not forward"
        place = directed.target[link]
        if place in seen:
            return f"it passes {name(place)} twice; accepted: every node once"
        seen.add(place)
    if place != path.dst or path.src == path.dst:
        return f"it ends at {name(place)}; accepted: a way from one host to another, here to {name(path.dst)}"
    return None


class _Chooser:
    """Knows how busy the links between switches are so far."""

    def __init__(self, cluster: Cluster):
        self._router = cluster.router
        rates = np.array(cluster.directed().rate_bps, dtype=np.float64)
        #: How much longer than the fastest link each takes for a byte, in 16ths: whole numbers, whose sums are exact in
        #: any order, and the same ones when a scenario runs in slow motion.
        self._slowness = np.rint(16 * rates.max() / rates)
        #: Bytes times slowness.
        self._busy = np.zeros_like(self._slowness)
        self._candidates: dict[tuple[int, int], _Candidates] = {}

    def choose(self, src: int, dst: int, moved: int) -> Path:
        ends = self._router.ends(src, dst)
        if ends is None or ends[0] == ends[1]:
            return Path(src, dst, self._router.joined(src, dst, ()))
        candidates = self._candidates.get(ends)
        if candidates is None:
            links = np.array(self._router.shortest_paths(*ends), dtype=np.int64)
            slowness = self._slowness[links]
            candidates = self._candidates[ends] = _Candidates(links, 2 * slowness, (slowness**2).sum(axis=1))
        links = candidates.links[self._best(candidates, moved, src, dst)]
        self._busy[links] += moved * self._slowness[links]
        return Path(src, dst, self._router.joined(src, dst, tuple(links.tolist())))

    def _best(self, candidates: _Candidates, moved: int, src: int, dst: int) -> int:
        """Return the candidate by which the squares of how busy links are grow least.

        So a busy link counts more than several that are not.
        """
        if len(candidates.links) == 1:
            return 0
        growth = np.einsum("ij,ij->i", self._busy[candidates.links], candidates.twice_slowness)
        growth += moved * candidates.squares
        (best,) = np.nonzero(growth == growth.min())
        # Otherwise the paths of all small plans would begin with the first spine.
        return int(best[ecmp_hash(src, dst, 0, 0) % len(best)])


class _Candidates(NamedTuple):
    """The shortest paths between two switches, a row of links each, and what follows from the links' rates."""

    links: NDArray[np.int64]
    twice_slowness: NDArray[np.float64]
    squares: NDArray[np.float64]
