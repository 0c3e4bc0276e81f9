"""Hosts whose gradients switches sum, in virtual time over switches in plain Python: pools, servers, slots by hash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np

from support.summing_switch import HashedSwitch, HashedTree, ReferenceNetwork, ReferenceSwitch
from support.virtual_network import FAULTLESS, Faults, VirtualLink
from tensorexpress.fixed_point import LOWEST, exponents_needed, in_blocks, rounding_error
from tensorexpress.framing import SEGMENT_OVERHEAD_BYTES
from tensorexpress.host.endpoint import Endpoint, EndpointSettings
from tensorexpress.host.flow import FlowSettings
from tensorexpress.host.links import Address
from tensorexpress.host.pool import COARSEST, Membership, PoolSender, Summed
from tensorexpress.host.sum_server import Service, SumServer
from tensorexpress.host.tagging import BEST_EFFORT, Tag
from tensorexpress.sums import VALUES, Pool, SumPlan

MS = 10**9
EPOCH = 2**32 - 3
STATED = Faults(loss=0.1, duplication=0.05, reordering=0.1, corruption=0.01)
FAR_WORSE = Faults(loss=0.3, duplication=0.3, reordering=0.6, corruption=0.1)

#: Two classes: the last layers, and the first one.
POOLS = (
    Pool(queue=0, first_slot=5, slots=2, tensors=(0,), packets=(3,)),
    Pool(queue=1, first_slot=7, slots=3, tensors=(2, 1), packets=(5, 1)),
)
#: The same where slots are found by hash: numbers of pools, and windows.
WINDOWS = (replace(POOLS[0], first_slot=0), replace(POOLS[1], first_slot=1, slots=4))
LAYERS = ("conv1", "fc1", "fc2")
PACKETS = sum(pool.packets_per_iteration for pool in POOLS)
ELEMENTS = {0: 2 * VALUES + 100, 1: 7, 2: 5 * VALUES}


def address(worker: int) -> Address:
    return f"10.0.0.{worker + 1}", 1


@dataclass(frozen=True)
class Kinds:
    """How a cluster sums."""

    #: As `Policy.sums` says.
    sums: str = "pool"
    servers: int = 0
    #: Whether servers are on the hosts of workers, from the last one on.
    colocated: bool = False
    #: Of every switch, where slots are found by hash.
    cells: int = 0
    preempts: bool = False


POOL = Kinds()


@dataclass(frozen=True)
class _Node:
    """A switch of a tree: its name, its children, and what is above it."""

    name: str
    children: Sequence[Address]
    above: Address | None


class Cluster:
    """Workers on one switch, or on two below a third, each with the pools above; and servers, if there are any."""

    def __init__(
        self,
        workers: int,
        faults: Faults = FAULTLESS,
        seed: int = 0,
        levels: int = 1,
        kinds: Kinds = POOL,
        iterations: int = 4,
        **settings: Any,
    ):
        self.network = ReferenceNetwork(faults, seed)
        self.random = Random(seed)
        self.kinds, self.levels, self.workers = kinds, levels, workers
        self.switches: list[ReferenceSwitch | HashedSwitch] = []
        hosts = [address(worker) for worker in range(workers)]
        self.groups = [hosts] if levels == 1 else [hosts[: workers // 2], hosts[workers // 2 :]]
        self.server_hosts = self._server_hosts()
        self.sums: list[dict[tuple[int, int, int], np.ndarray]] = [{} for _ in hosts]
        self.after_sum: Callable[[int], None] = lambda worker: None
        self.pools: list[list[PoolSender]] = [[] for _ in hosts]
        everybody = dict.fromkeys([*hosts, *self.server_hosts])
        self._endpoint_of = {
            host: Endpoint(
                VirtualLink(self.network, host),
                {f"h{number}": other for number, other in enumerate(everybody) if other != host},
                EndpointSettings(FlowSettings(1000, SEGMENT_OVERHEAD_BYTES), **settings),
                session=1,
                clock_ps=self.network.clock_ps,
            )
            for host in everybody
        }
        self.endpoints = list(self._endpoint_of.values())
        self.servers: list[SumServer] = []
        self._grow(iterations)
        for worker in range(workers):
            target = address((worker + 1) % workers)
            self.endpoints[worker].sum_through(0, self.pools[worker], target, self._taker(worker))

    def _server_hosts(self) -> list[Address]:
        first = self.workers - self.kinds.servers if self.kinds.colocated else self.workers
        return [address(first + number) for number in range(self.kinds.servers)]

    def _grow(self, iterations: int) -> None:
        """Let trees be: one, or one for every server, which all have pools of their own."""
        hashed = self.kinds.sums == "hashed"
        pools = WINDOWS if hashed else POOLS
        if hashed:
            names = ["root"] if self.levels == 1 else ["root", "leaf0", "leaf1"]
            self.switches += [
                HashedSwitch(self.network, (name, 0), self.kinds.cells, preempts=self.kinds.preempts) for name in names
            ]
        shares = [pools] if len(self.server_hosts) < 2 else [(pool,) for pool in pools]
        for number, own in enumerate(shares):
            server = self.server_hosts[number] if self.server_hosts else None
            nodes = self._nodes(number, server)
            slots = range(own[0].first_slot, own[-1].first_slot + (1 if hashed else own[-1].slots))
            for node in nodes:
                self._plant(node, number, slots, nodes)
            self._join(number, own, nodes)
            if server is not None:
                self._serve(own, server, iterations)

    def _nodes(self, tree: int, server: Address | None) -> list[_Node]:
        number = 0 if self.kinds.sums == "hashed" else tree

        def place(name: str) -> Address:
            return name, number

        if self.levels == 1:
            return [_Node("root", self.groups[0], server)]
        if server is None:
            leaves = [_Node(f"leaf{leaf}", group, place("root")) for leaf, group in enumerate(self.groups)]
            return [_Node("root", [place("leaf0"), place("leaf1")], None), *leaves]
        # A server's own switch is the root: its leaf, here. The spine is below that, and the other leaf below it.
        own = next((leaf for leaf, group in enumerate(self.groups) if server in group), tree % 2)
        other = 1 - own
        return [
            _Node(f"leaf{own}", [*self.groups[own], place("root")], server),
            _Node("root", [place(f"leaf{other}")], place(f"leaf{own}")),
            _Node(f"leaf{other}", self.groups[other], place("root")),
        ]

    def _plant(self, node: _Node, tree: int, slots: range, nodes: list[_Node]) -> None:
        above = None
        if node.above is not None:
            parent = next((each for each in nodes if each.name == node.above[0]), None)
            place = (node.name, 0 if self.kinds.sums == "hashed" else tree)
            above = (node.above, 0 if parent is None else list(parent.children).index(place))
        if self.kinds.sums != "hashed":
            children = list(node.children)
            self.switches.append(ReferenceSwitch(self.network, (node.name, tree), children, above=above, slots=slots))
            return
        assert above is not None
        switch = self.network.switches[node.name, 0]
        assert isinstance(switch, HashedSwitch)
        own = [self._below(child, nodes) for child in node.children]
        switch.join(HashedTree(0, slots, list(node.children), own, above))

    def _below(self, child: Address, nodes: list[_Node]) -> int:
        node = next((each for each in nodes if each.name == child[0]), None)
        if node is None:
            return 1 << [address(worker) for worker in range(self.workers)].index(child)
        return sum(self._below(further, nodes) for further in node.children)

    def _join(self, tree: int, pools: Sequence[Pool], nodes: list[_Node]) -> None:
        for worker in range(self.workers):
            child = next(
                list(node.children).index(address(worker)) for node in nodes if address(worker) in node.children
            )
            member = Membership(0, worker, self.workers, child, LAYERS, EPOCH, rto_min_ps=5 * MS)
            self.pools[worker] += [PoolSender(pool, member, by_hash=self.kinds.sums == "hashed") for pool in pools]

    def _serve(self, pools: Sequence[Pool], host: Address, iterations: int) -> None:
        service = Service(
            job=0,
            workers=self.workers,
            layers=LAYERS,
            epoch=EPOCH,
            iterations=iterations,
            round_trip_ps=MS // 100,
            traffic=dict.fromkeys(LAYERS_OF, BEST_EFFORT),
        )
        server = SumServer(SumPlan((), tuple(pools), server=0, cells=self.kinds.cells), service)
        self.servers.append(server)
        self._endpoint_of[host].serve_sums(0, server, address(host == address(0)), lambda summed: None)

    def _taker(self, worker: int) -> Any:
        def take(summed: Summed) -> None:
            key = (summed.iteration, summed.tensor, summed.packet)
            assert key not in self.sums[worker]
            self.sums[worker][key] = summed.values
            self.after_sum(worker)

        return take

    def offer(self, worker: int, iteration: int, tensor: int, gradient: np.ndarray) -> None:
        sender = next(pool for pool in self.pools[worker] if tensor in pool.pool.tensors)
        tag = Tag(
            0,
            worker,
            iteration,
            tensor,
            kind=sender.kind,
            queue=sender.pool.queue,
            chunks=sender.packets_of(tensor),
            deadline_ps=tensor,
        )
        self.endpoints[worker].contribute(sender, tag, gradient, self.network.now_ps)

    def train(self, gradients: list[list[dict[int, np.ndarray]]], most_events: int = 200_000) -> None:
        """Let every worker do its iterations: a backward pass at its own pace, then all sums, then the next."""

        def begin(worker: int, iteration: int) -> None:
            at_ps = self.network.now_ps
            for tensor in (2, 1, 0):
                at_ps += self.random.randrange(3 * MS)
                gradient = gradients[worker][iteration][tensor]
                self.endpoints[worker].call_at(
                    at_ps, lambda tensor=tensor, gradient=gradient: self.offer(worker, iteration, tensor, gradient)
                )

        def summed(worker: int) -> None:
            iterations, rest = divmod(len(self.sums[worker]), PACKETS)
            if rest == 0 and iterations < len(gradients[worker]):
                begin(worker, iterations)

        self.after_sum = summed
        for worker in range(len(gradients)):
            begin(worker, 0)
        total = PACKETS * len(gradients[0])
        self.network.run(
            self.endpoints, until=lambda: all(len(sums) == total for sums in self.sums), most_events=most_events
        )
        assert all(pool.idle for pools in self.pools for pool in pools)


def random_gradients(
    workers: int, iterations: int, seed: int, whole: bool = False
) -> list[list[dict[int, np.ndarray]]]:
    """Gradients of every worker and iteration, by tensor; their sizes vary by many decades, some are all zeros."""
    generator = np.random.default_rng(seed)

    def one(count: int) -> np.ndarray:
        if whole:
            return generator.integers(-512, 512, count).astype(np.float32)
        scale = np.float32(generator.choice([0.0, 1e-30, 1e-3, 1.0, 1.0, 3.0, 1e4, 1e30]))
        return generator.standard_normal(count, dtype=np.float32) * scale

    return [
        [{tensor: one(ELEMENTS[tensor]) for tensor in LAYERS_OF} for _ in range(iterations)] for _ in range(workers)
    ]


LAYERS_OF = range(3)


def check_sums(cluster: Cluster, gradients: list[list[dict[int, np.ndarray]]]) -> None:
    """Every worker has the same bits, within the error that is promised for what the workers needed."""
    workers = len(gradients)
    for sums in cluster.sums[1:]:
        assert sums.keys() == cluster.sums[0].keys()
        assert all(sums[key].tobytes() == values.tobytes() for key, values in cluster.sums[0].items())
    for iteration in range(len(gradients[0])):
        for tensor in LAYERS_OF:
            blocks = [in_blocks(own[iteration][tensor]) for own in gradients]
            exact = sum(block.astype(np.float64) for block in blocks)
            needed = np.max([exponents_needed(block) for block in blocks], axis=0)
            bound = rounding_error(needed + COARSEST, workers)
            bound[needed == LOWEST] = workers * 2.0**LOWEST
            for packet, block in enumerate(exact):
                assert (abs(cluster.sums[0][iteration, tensor, packet] - block) <= bound[packet] * 1.0001).all()
