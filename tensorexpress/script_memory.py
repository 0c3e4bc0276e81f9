"""What a training script and the host that sends for it have in common: memory, and a socket to wake each other.

The script is a process of its own, with all that it imports; its host is one of the run. Gradients and sums stay where
they are written, and counters say what is there: a layer's gradient when `ready` grew, its sum when `summed` did. A
gradient of one iteration is kept while the next one is written, because others may still read it.

Times are in ns of CLOCK_MONOTONIC, which all processes of a machine share. A mark is a time and the stall until then:
how long the script has waited for sums since it began. Between two marks, the rest of the time is compute.
"""

from __future__ import annotations

import mmap
import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Longs = NDArray[np.int64]

_FLOAT_BYTES, _LONG_BYTES = 4, 8

#: Columns of a mark: when it was made, and the stall until then.
AT, STALL = range(2)

#: Gradients that are kept of a layer.
_KEPT = 2


class ScriptMemory:
    """The memory of one worker: of `elements` numbers in every layer, for so many iterations."""

    def __init__(self, descriptor: int, elements: Sequence[int], rounds: int):
        """Map the memory behind a descriptor, which `new_memory` made for the same layers and iterations."""
        layers = len(elements)
        self.rounds = rounds
        self._mapped = mmap.mmap(descriptor, _size(elements, rounds))
        longs: Longs = np.frombuffer(self._mapped, dtype=np.int64, count=_longs(layers, rounds))
        shapes = {
            "flags": (2,), "stall_ns": (1,), "ready": (layers,), "summed": (layers,), "backward": (rounds, 2),
            "stepped": (rounds + 1, 2), "made": (rounds, layers, 2), "arrived": (rounds + 1, layers, 2),
        }  # fmt: skip
        split = np.split(longs, np.cumsum([np.prod(shape) for shape in shapes.values()]))
        parts = {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), split, strict=False)}
        self._flags, self._stall_ns = parts["flags"], parts["stall_ns"]
        #: How many gradients of each layer the script has made, and how many of their sums are there.
        self.ready, self.summed = parts["ready"], parts["summed"]
        #: Marks of each iteration: backward began, the step was made (and then: all is over); by (iteration, layer):
        #: the gradient was made.
        self.backward, self.stepped, self.made = parts["backward"], parts["stepped"], parts["made"]
        #: Marks by (pass, layer): the forward pass came to the layer.
        self.arrived = parts["arrived"]
        floats: Floats = np.frombuffer(self._mapped, dtype=np.float32, offset=longs.nbytes)
        ends = np.cumsum(elements).tolist()
        self._parts = [slice(end - count, end) for end, count in zip(ends, elements, strict=True)]
        areas = floats.reshape(_KEPT + 1, ends[-1])
        self._gradients, self._sums = areas[:_KEPT], areas[_KEPT]

    def gradient(self, iteration: int, layer: int) -> Floats:
        """Return the place of a layer's gradient in an iteration."""
        part: Floats = self._gradients[iteration % _KEPT, self._parts[layer]]
        return part

    def sum(self, layer: int) -> Floats:
        """Return the place of a layer's last sum."""
        part: Floats = self._sums[self._parts[layer]]
        return part

    def mark(self, marks: Longs, *place: int) -> None:
        """Write the time and the stall until now into a place of some marks."""
        marks[place] = time.monotonic_ns(), self._stall_ns[0]

    def add_stall(self, stall_ns: int) -> None:
        """Add to the time for which the script has waited for sums."""
        self._stall_ns[0] += stall_ns

    @property
    def started(self) -> bool:
        """Whether the run has begun."""
        return bool(self._flags[0])

    def start(self) -> None:
        """Let the script go on."""
        self._flags[0] = 1

    @property
    def finished(self) -> bool:
        """Whether the script needs nothing any more, and all its times are here."""
        return bool(self._flags[1])

    def finish(self) -> None:
        """Say that the script needs nothing any more."""
        self._flags[1] = 1


def new_memory(elements: Sequence[int], rounds: int) -> int:
    """Return the descriptor of new memory."""
    descriptor = os.memfd_create("gradients", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, _size(elements, rounds))
    return descriptor


def _longs(layers: int, rounds: int) -> int:
    return 5 + 2 * layers + 4 * rounds + 2 * rounds * layers + 2 * (rounds + 1) * layers


def _size(elements: Sequence[int], rounds: int) -> int:
    return _LONG_BYTES * _longs(len(elements), rounds) + _FLOAT_BYTES * (_KEPT + 1) * sum(elements)


def wake(channel: socket.socket) -> None:
    """Have the other end look at the memory; if it has not looked since the last times, once more makes no difference.

    That it is gone is for whoever started it to notice.
    """
    with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
        channel.send(b"\0", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def drain(channel: socket.socket) -> bool:
    """Take what came to wake this end, without waiting; return whether the other end is still there."""
    while True:
        try:
            if not channel.recv(4096, socket.MSG_DONTWAIT):
                return False
        except BlockingIOError:
            return True
        except ConnectionResetError:
            return False
