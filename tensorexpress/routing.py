"""Routes between the hosts of a network: all shortest ones, and the one that a hash chooses among them."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class DirectedLinks(NamedTuple):
    """The two directions of every link, as columns: entry d of each describes directed link d."""

    #: Index of the node that sends.
    source: tuple[int, ...]
    #: Index of the node that receives.
    target: tuple[int, ...]
    rate_bps: tuple[int, ...]
    #: Propagation delay.
    delay_ps: tuple[int, ...]
    paced: tuple[bool, ...]


_MASK64 = 2**64 - 1


def ecmp_hash(src: int, dst: int, flow: int, node: int) -> int:
    """Return the 64-bit hash by which `node` chooses among equal next hops for a flow between two hosts.

    Each of the four numbers is added to the hash so far, and one step of splitmix64 mixes the sum, all modulo 2**64.
    The node takes part, so that switches of different tiers choose independently.

    >>> hex(ecmp_hash(0, 1, 0, 16))
    '0x83571e6c28aff00f'
    """
    mixed = 0
    for word in (src, dst, flow, node):
        mixed = (mixed + word + 0x9E3779B97F4A7C15) & _MASK64
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK64
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK64
        mixed ^= mixed >> 31
    return mixed


#: Shortest paths between two switches that are looked at; where there are more, a hash draws as many of them.
MOST_PATHS = 256


class Router:
    """Finds routes in a network; remembers the next hops towards each switch that it has searched from."""

    def __init__(self, directed: DirectedLinks, hosts: int, nodes: int) -> None:
        self._target = directed.target
        #: The one directed link that leaves each host.
        self._nic = [0] * hosts
        #: The directed links from each switch to other switches; hosts do not forward.
        self._trunks: dict[int, list[int]] = {switch: [] for switch in range(hosts, nodes)}
        for link, (source, target) in enumerate(zip(directed.source, directed.target, strict=True)):
            if source < hosts:
                self._nic[source] = link
            elif target >= hosts:
                self._trunks[source].append(link)
        self._next_hops: dict[int, dict[int, list[int]]] = {}

    def route(self, src: int, dst: int, flow: int) -> tuple[int, ...]:
        """Return the links of the shortest path that the hash chooses for a flow."""
        ends = self.ends(src, dst)
        if ends is None:
            return self.joined(src, dst, ())
        return self.joined(src, dst, self._hashed(*ends, src, dst, flow))

    def ends(self, src: int, dst: int) -> tuple[int, int] | None:
        """Return the switches of two hosts; None where no switch is between them."""
        first, last = self._target[self._nic[src]], self._target[self._nic[dst]]
        return None if src == dst or first == dst else (first, last)

    def joined(self, src: int, dst: int, between: tuple[int, ...]) -> tuple[int, ...]:
        """Return the whole path from host to host over these links between their switches."""
        if src == dst:
            return ()
        return (self._nic[src],) if self.ends(src, dst) is None else (self._nic[src], *between, self._nic[dst] ^ 1)

    def shortest_paths(self, first: int, last: int) -> list[tuple[int, ...]]:
        """Return the shortest paths from one switch to another, in ascending order; at most MOST_PATHS of them."""
        next_hops = self._next_hops_to(last)
        paths: list[list[int]] = [[]]
        places = [first]
        # All of them are equally far from the end.
        while places[0] != last:
            for path, place in list(zip(paths, places, strict=True)):
                *others, link = next_hops[place]
                paths += [[*path, other] for other in others]
                path.append(link)
            if len(paths) > MOST_PATHS:
                return sorted({self._hashed(first, last, first, last, number) for number in range(MOST_PATHS)})
            places = [self._target[path[-1]] for path in paths]
        return sorted(map(tuple, paths))

    def next_hops(self, switch: int, host: int) -> list[int]:
        """Return the links on which a switch may send to a host, by index."""
        last_switch = self._target[self._nic[host]]
        return [self._nic[host] ^ 1] if switch == last_switch else self._next_hops_to(last_switch).get(switch, [])

    def _hashed(self, first: int, last: int, src: int, dst: int, flow: int) -> tuple[int, ...]:
        next_hops = self._next_hops_to(last)
        path: list[int] = []
        node = first
        while node != last:
            equal = next_hops[node]
            path.append(equal[ecmp_hash(src, dst, flow, node) % len(equal)])
            node = self._target[path[-1]]
        return tuple(path)

    def _next_hops_to(self, switch: int) -> dict[int, list[int]]:
        """Return, for each switch that reaches `switch`, its links that lead one hop nearer, by link index."""
        if switch not in self._next_hops:
            hops = self._hops_from(switch)
            self._next_hops[switch] = {
                node: [link for link in self._trunks[node] if hops[self._target[link]] < hops[node]] for node in hops
            }
        return self._next_hops[switch]

    def _hops_from(self, switch: int) -> dict[int, int]:
        hops = {switch: 0}
        queue = deque([switch])
        while queue:
            node = queue.popleft()
            for neighbour in (self._target[link] for link in self._trunks[node]):
                if neighbour not in hops:
                    hops[neighbour] = hops[node] + 1
                    queue.append(neighbour)
        return hops
