"""Packets, as the SimPy model moves them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorexpress.sim.adding import Adder, Stream
    from tensorexpress.sim.model import Flow, Message


class Packet:
    """One packet on its way along `path`; `hop` is the index of the link it is on or waits for."""

    __slots__ = (
        "acked_to", "adder", "again", "asks", "child", "chunk", "enqueued_ps", "flow", "hop", "iteration", "kind",
        "marked", "message", "path", "queue", "rank", "sent_ps", "size", "slack_ps", "transmission", "workers",
    )  # fmt: skip

    def __init__(self, kind: int, flow: Flow | Stream, path: list[int], size: int, rank: int, slack_ps: int):
        self.kind, self.flow, self.path, self.size = kind, flow, path, size
        self.rank, self.slack_ps = rank, slack_ps
        self.hop = self.queue = self.enqueued_ps = 0
        self.message: Message | None = None
        self.iteration = self.chunk = self.transmission = self.sent_ps = self.acked_to = -1
        #: For how many acknowledgements it asks.
        self.asks = 0
        self.marked = False
        #: Where switches sum: the adder to which it goes, and from which of its children.
        self.adder: Adder | None = None
        self.child = -1
        #: And where slots are found by hash: whose values are in it, and whether it was sent again.
        self.workers = 0
        self.again = False
