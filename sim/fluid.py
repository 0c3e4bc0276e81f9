"""Transfers as fluids: every link shares its rate among those that cross it, and rates change only with events.

Transfers have ranks. Lower ranks are served first, as where a scheduler gives rates; transfers of one rank share as
long-lived TCP flows do, max-min fairly: nobody can have more without taking it from somebody who has less. There are
no packets, so a simulation of minutes takes a second; where that stops being true, docs/asynchronous.md says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from tensorexpress.units import PS_PER_SECOND

#: What is left of a link that other traffic fills: a transfer never stands still for good.
LEAST_SHARE = 0.01


@dataclass(eq=False)
class FluidTransfer:
    """Bits under way over some links."""

    links: tuple[int, ...]
    rank: int
    left_bits: float
    #: Called when the last bit is sent.
    sent: Callable[[], None]
    rate_bps: float = 0.0
    #: When the last bit is sent if nothing changes.
    end_ps: int = 1 << 62


def share_rates(transfers: Sequence[FluidTransfer], rates_bps: Sequence[float]) -> list[float]:
    """Return the rate of every transfer, lower ranks first and max-min fair within a rank.

    >>> def over(*links, rank=0):
    ...     return FluidTransfer(links, rank, 1.0, print)
    >>> share_rates([over(0), over(0, 1), over(0)], [9.0, 2.0])
    [3.5, 2.0, 3.5]
    >>> share_rates([over(0, rank=2), over(0, 1, rank=1)], [9.0, 2.0])
    [7.0, 2.0]
    """
    shares = [0.0] * len(transfers)
    left = {link: rates_bps[link] for transfer in transfers for link in transfer.links}
    by_rank: dict[int, list[int]] = {}
    for index, transfer in enumerate(transfers):
        by_rank.setdefault(transfer.rank, []).append(index)
    for _, group in sorted(by_rank.items()):
        _fill(transfers, group, left, shares)
    return shares


def _fill(transfers: Sequence[FluidTransfer], group: list[int], left: dict[int, float], shares: list[float]) -> None:
    """Give the transfers of a group what is left, the one with the least to get first; take it off the links."""
    users: dict[int, set[int]] = {}
    for index in group:
        for link in transfers[index].links:
            users.setdefault(link, set()).add(index)
    while users:
        share, link = min((left[link] / len(own), link) for link, own in users.items())
        for index in sorted(users[link]):
            shares[index] = share
            for crossed in transfers[index].links:
                left[crossed] = max(0.0, left[crossed] - share)
                users[crossed].discard(index)
        users = {link: own for link, own in users.items() if own}


class FluidNetwork:
    """Events in the order of time: those that were asked for, and the ends of transfers."""

    def __init__(self, rates_bps: Iterable[float]):
        self.now_ps = 0
        self.rates_bps = list(rates_bps)
        self.transfers: list[FluidTransfer] = []
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._asked = 0
        self._stale = False

    def at(self, time_ps: int, event: Callable[[], None]) -> None:
        """Ask for an event; those of one time happen in the order in which they were asked for."""
        heappush(self._events, (max(time_ps, self.now_ps), self._asked, event))
        self._asked += 1

    def send(self, links: Sequence[int], size_bytes: int, rank: int, sent: Callable[[], None]) -> FluidTransfer:
        """Start a transfer; `sent` is called when its last bit has left."""
        transfer = FluidTransfer(tuple(links), rank, 8.0 * size_bytes, sent)
        if not links or not size_bytes:
            self.at(self.now_ps, sent)
            return transfer
        self.transfers.append(transfer)
        self._stale = True
        return transfer

    def cancel(self, transfers: Iterable[FluidTransfer]) -> None:
        """Break transfers off; they will never be sent."""
        gone = set(map(id, transfers))
        self.transfers = [transfer for transfer in self.transfers if id(transfer) not in gone]
        self._stale = True

    def set_rate(self, link: int, rate_bps: float) -> None:
        """Give a link another rate from now on."""
        self.rates_bps[link] = rate_bps
        self._stale = True

    def unused_bps(self, link: int) -> float:
        """Return what no transfer takes of a link's rate now."""
        self._share()
        return self.rates_bps[link] - sum(each.rate_bps for each in self.transfers if link in each.links)

    def run(self, until: Callable[[], bool]) -> None:
        """Let events happen until there are no more, or `until` says so after one of them."""
        while not until():
            self._share()
            ended = min(self.transfers, key=lambda each: each.end_ps, default=None)
            if ended is not None and (not self._events or ended.end_ps <= self._events[0][0]):
                self._flow_until(ended.end_ps)
                self.transfers.remove(ended)
                self._stale = True
                ended.sent()
            elif self._events:
                time_ps, _, event = heappop(self._events)
                self._flow_until(time_ps)
                event()
            else:
                return

    def _flow_until(self, time_ps: int) -> None:
        seconds = (time_ps - self.now_ps) / PS_PER_SECOND
        if seconds:
            for transfer in self.transfers:
                transfer.left_bits = max(0.0, transfer.left_bits - transfer.rate_bps * seconds)
        self.now_ps = time_ps

    def _share(self) -> None:
        if not self._stale:
            return
        self._stale = False
        for transfer, rate_bps in zip(self.transfers, share_rates(self.transfers, self.rates_bps), strict=True):
            if rate_bps != transfer.rate_bps:
                transfer.rate_bps = rate_bps
                wait_ps = transfer.left_bits / rate_bps * PS_PER_SECOND if rate_bps else 1 << 62
                transfer.end_ps = self.now_ps + max(0, round(wait_ps))
