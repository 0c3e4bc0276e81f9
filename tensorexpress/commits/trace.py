"""What happened in asynchronous training: every commit with its time, delay and the loss after it; what was lost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class CommitTrace:
    """Commits in their order, one entry each in every column, and what there was beside them."""

    mode: str
    #: When the update was committed, who computed it, and how many versions were between.
    time_ps: Ints
    host: Ints
    delay: Ints
    #: Loss after it; the updates of a sum share one.
    loss: Floats
    start_loss: float
    target_loss: float
    #: When the loss, on average over as many commits as two of every worker, was down to the target; None: never.
    reached_ps: int | None
    #: Updates that were computed and never committed: older than tau, or lost with a server.
    dropped: int
    lost: int
    #: Transfers that brought sums of several updates to the server, and the updates in them.
    sums: int
    summed: int
    #: Bytes that reached the server and that it sent, on the wire.
    server_in_bytes: int
    server_out_bytes: int
    #: The largest sum of norms that the replica lacked, its bound, and by how much the two models ever differed.
    divergence: float = 0.0
    divergence_bound: float = 0.0
    distance: float = 0.0

    @property
    def end_ps(self) -> int:
        """When the last update was committed."""
        return int(self.time_ps[-1]) if len(self.time_ps) else 0

    @property
    def commits(self) -> int:
        """Updates that were committed."""
        return len(self.time_ps)

    @property
    def commits_per_second(self) -> float:
        """Updates that were committed in a second."""
        return self.commits / self.end_ps * 1e12 if self.end_ps else 0.0

    @property
    def mean_delay(self) -> float:
        """Versions between the model of an update and the one that it was applied to."""
        return float(self.delay.mean()) if self.commits else 0.0

    @property
    def worst_delay(self) -> int:
        """The most of them."""
        return int(self.delay.max()) if self.commits else 0
