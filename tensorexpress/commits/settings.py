"""What a scenario says of commits: bounds, who helps, what is learned."""

from __future__ import annotations

from dataclasses import dataclass

from tensorexpress.commits.modes import COMMIT_MODES
from tensorexpress.learning import PROBLEMS

_USUAL = PROBLEMS["logistic"]


@dataclass(frozen=True)
class CommitSettings:
    """How the updates of an asynchronous job are committed, and what is learned by them."""

    #: Most versions that may be committed between the model of an update and its own commit.
    tau: int = 0
    #: Hosts that sum updates on their way, and those that follow the server.
    helpers: tuple[int, ...] = ()
    replicas: tuple[int, ...] = ()
    #: What a replica may lack: the sum of norms of updates, in norms of the first one.
    divergence: float = 8.0
    #: Most that a worker is held up before it computes an update, drawn from 0 on.
    pause_ps: int = 0
    #: A name in `learning.PROBLEMS`.
    problem: str = "logistic"
    learning_rate: float = _USUAL.learning_rate
    target_loss: float = _USUAL.target_loss
    #: When the server fails, and its replica takes over or all begins again; 0: never.
    server_fails_ps: int = 0
    #: Updates that are computed at the most.
    updates: int = 5000
    #: Names in `COMMIT_MODES`, to compare.
    modes: tuple[str, ...] = ("sync", "fifo", "bounded", "order")


def usual_modes(helpers: int, replicas: int) -> tuple[str, ...]:
    """Return the modes that so many helpers and replicas allow.

    >>> usual_modes(helpers=0, replicas=1)
    ('sync', 'fifo', 'bounded', 'order', 'mlfabric')
    """
    return tuple(
        mode.name
        for mode in COMMIT_MODES.values()
        if (replicas or not mode.replicated) and (helpers or mode.replicated or not mode.summed)
    )
