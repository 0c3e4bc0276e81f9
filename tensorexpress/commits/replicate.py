"""A replica that may lag behind its server by so much and no more, and what is lost when it takes over.

The server commits first and forwards what it committed later, many updates as one sum. By how much the two models
differ is at most the sum of the norms of the updates that the replica lacks, whatever their directions. The server
commits an update only while that sum stays within a bound; an update that alone exceeds it is forwarded first, and
committed when the replica has it.
"""

from __future__ import annotations

from tensorexpress.errors import InputError


class ReplicaLog:
    """What the server has committed, what was forwarded and what the replica has: versions, in order."""

    def __init__(self, bound: float):
        if not bound >= 0:
            raise InputError(f"divergence: found {bound}; accepted: 0 or more, the norms that a replica may lack")
        self.bound = bound
        #: Versions committed at the server, sent to the replica, and there.
        self.committed = self.forwarded = self.received = 0
        #: Norms of updates from version `received` on, also of one that is forwarded before it is committed.
        self._norms: list[float] = []

    @property
    def divergence(self) -> float:
        """The most that the two models can differ by: what would be lost if the server failed now."""
        return float(sum(self._norms[: max(0, self.committed - self.received)]))

    @property
    def is_forwarding(self) -> bool:
        """Whether something is on the way to the replica."""
        return self.forwarded > self.received

    def may_commit(self, norm: float) -> bool:
        """Whether the next update keeps the divergence within the bound, or is with the replica already."""
        return self.received > self.committed or self.divergence + norm <= self.bound

    def commit(self, norm: float) -> None:
        """Commit the next update at the server."""
        if not self.may_commit(norm):
            raise ValueError(f"a norm of {norm} on top of {self.divergence} exceeds the bound of {self.bound}")
        if self.committed - self.received == len(self._norms):
            self._norms.append(norm)
        self.committed += 1

    def should_forward(self, share: float = 0.5) -> bool:
        """Whether to send on what was committed: nothing is on the way, and so large a share of the bound is used.

        Half of it leaves the other half for what is committed meanwhile.
        """
        return not self.is_forwarding and self.committed > self.received and self.divergence >= share * self.bound

    def forward(self) -> int:
        """Send on everything that is committed, as one sum; return the version that the replica will be at."""
        self.forwarded = self.committed
        return self.forwarded

    def forward_ahead(self, norm: float) -> int:
        """Send on everything and, with it, the next update, which may then be committed when the replica has it."""
        self._norms = [*self._norms[: self.committed - self.received], norm]
        self.forwarded = self.committed + 1
        return self.forwarded

    def arrived(self) -> None:
        """Note that the replica has what was forwarded."""
        del self._norms[: self.forwarded - self.received]
        self.received = self.forwarded

    def fail_over(self) -> int:
        """Let the replica be the server from now on; return how many committed updates are lost with the old one.

        What was on the way counts as missing, so the bound holds whether or not it still arrives.
        """
        lost = max(0, self.committed - self.received)
        self.committed = self.forwarded = self.received
        self._norms = []
        return lost
