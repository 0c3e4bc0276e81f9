"""Ways to train with a parameter server, from all in step to ordered, summed and replicated commits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CommitMode:
    """What decides which updates are committed, and when."""

    name: str
    #: Whether the server waits for an update of every worker.
    in_step: bool = False
    #: Whether no update may commit with a longer delay than tau.
    bounded: bool = False
    #: Whether a scheduler decides who sends when.
    ordered: bool = False
    #: Whether idle hosts sum updates on their way.
    summed: bool = False
    #: Whether a second server follows within a bound.
    replicated: bool = False


#: By name, each with more than the one before.
COMMIT_MODES = {
    mode.name: mode
    for mode in (
        CommitMode("sync", in_step=True),
        CommitMode("fifo"),
        CommitMode("bounded", bounded=True),
        CommitMode("order", bounded=True, ordered=True),
        CommitMode("aggregate", bounded=True, ordered=True, summed=True),
        CommitMode("mlfabric", bounded=True, ordered=True, summed=True, replicated=True),
    )
}
