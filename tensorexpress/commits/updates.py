"""Updates that wait to be committed, and how long each is under way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tensorexpress.units import serialisation_ps

#: Bit/s that the path from one host to another carries now.
Bandwidth = Callable[[int, int], int]


@dataclass(frozen=True)
class Update:
    """What a worker has computed and asks to commit."""

    #: Host of the worker.
    host: int
    #: The version of the model that it was computed from.
    version: int
    size_bytes: int
    #: Euclidean length of the change that it makes to the model.
    norm: float = 0.0

    def transfer_ps(self, target: int, bandwidth: Bandwidth) -> int:
        """Return how long it takes from its worker to another host."""
        return serialisation_ps(self.size_bytes, bandwidth(self.host, target))
