"""Hot rows of a job: how many of every sparse table switches sum, under policies that have them sum.

Hot rows are dense: every worker sends all of them in every iteration, so switches sum them as they sum any tensor. Cold
ones go to servers, as messages, from every worker that touched them. A layer's parameters are there when both are.

Rows take turns in the slots of their pool. So memory does not limit how many can be hot, as it would if each had a
place of its own (`hot_keys.packets_in`); it limits how fast they are summed, as with any tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tensorexpress.cluster import Cluster
from tensorexpress.hot_keys import RowExchange, traffic
from tensorexpress.scenario import Job
from tensorexpress.sparse import SparseTable, ZipfHeat
from tensorexpress.sums import SUM_FRAMING, VALUES, packets_of

Ints = NDArray[np.int64]

#: Numbers of hot rows that are compared; twice as many in the end.
_STEPS = 33


def hot_rows_of(job: Job, cluster: Cluster) -> tuple[int, ...]:
    """Return the hot rows of every layer of a job; 0 where it has no table.

    Where the job does not say how many, they leave least on the links of workers and servers, with all else that is on
    these (`link_cost`).
    """
    layers = job.workload.layers
    if isinstance(job.hot_rows, int):
        return tuple(min(job.hot_rows, layer.keys) for layer in layers)
    tables = tuple(layer.table for layer in layers if layer.table is not None)
    exchanges = tuple(exchange_of(job, table, cluster) for table in tables)
    dense_bytes = sum(packets_of(job.workload)) * SUM_FRAMING.full_packet_bytes
    best = iter(_best_rows(tables, exchanges, dense_bytes) if tables else ())
    return tuple(0 if layer.table is None else next(best) for layer in layers)


def exchange_of(job: Job, table: SparseTable, cluster: Cluster) -> RowExchange:
    """Return who exchanges the rows of a job's table with whom."""
    parties = len(job.hosts), len(job.servers)
    return RowExchange(table.width, *parties, mtu=cluster.mtu, value_bytes=job.workload.bytes_per_param)


def link_cost(from_worker: NDArray[np.float64], into_server: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what bytes on a worker's and on a server's link cost: all on the busier one, half of those on the other.

    Cold rows keep the links of servers busy, hot ones those of workers. If they did so all the time at once, only the
    busier one would count; if one after the other, both. The simulator finds them between the two.
    """
    return np.asarray(np.maximum(from_worker, into_server) + np.minimum(from_worker, into_server) / 2)


@lru_cache(maxsize=64)
def _best_rows(
    tables: tuple[SparseTable, ...], exchanges: tuple[RowExchange, ...], dense_bytes: int
) -> tuple[int, ...]:
    """Return the hot rows of tables that leave least on links.

    A hot row spares a worker some bytes for each that it costs, fewer than the row before. So the best rows of all
    tables are those that spare at least some share: 1, where a worker's link gains no more from further ones, or less,
    down to 1 / workers, where a server's does not. Rows that are alike make large steps; the best may be inside of one.
    """
    heats = [ZipfHeat(table) for table in tables]
    shares = exchanges[0].workers ** -np.linspace(0, 1, _STEPS)
    packets = np.array([_packets_worth(*each, shares.tolist()) for each in zip(heats, exchanges, strict=True)])
    costs = _costs(heats, exchanges, packets, dense_bytes)
    (least,) = np.nonzero(costs == costs.min())
    low, high = packets[:, max(0, least[0] - 1), None], packets[:, min(_STEPS - 1, least[-1] + 1), None]
    between = np.rint(low + (high - low) * np.linspace(0, 1, 2 * _STEPS)).astype(np.int64)
    best = between[:, _costs(heats, exchanges, between, dense_bytes).argmin()].tolist()
    each = zip(tables, exchanges, best, strict=True)
    return tuple(min(table.keys, exchange.rows_in(count)) for table, exchange, count in each)


def _packets_worth(heat: ZipfHeat, exchange: RowExchange, shares: Sequence[float]) -> list[int]:
    """Return how many packets take the rows that spare a worker at least these shares of the bytes that they cost."""
    row_bytes = exchange.width * SUM_FRAMING.full_packet_bytes / VALUES
    rows = [heat.touched_in(share * row_bytes / exchange.cold_row_bytes) for share in shares]
    whole = exchange.packets_for(heat.keys)
    return [whole if each == heat.keys else round(each * exchange.width / VALUES) for each in rows]


def _costs(
    heats: Sequence[ZipfHeat], exchanges: Sequence[RowExchange], packets: Ints, dense_bytes: int
) -> NDArray[np.float64]:
    """Return what so many packets, by (table, choice), leave on links, with others that have no rows."""
    from_worker, into_servers = np.full((2, packets.shape[1]), float(dense_bytes))
    for heat, exchange, counts in zip(heats, exchanges, packets.tolist(), strict=True):
        loads = [traffic(heat, exchange, count) for count in counts]
        from_worker += [load.worker_bytes for load in loads]
        into_servers += [load.server_bytes for load in loads]
    return link_cost(from_worker, into_servers / exchanges[0].servers)
