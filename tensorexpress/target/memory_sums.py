"""Sums of scripts' gradients without a network: added in memory, in the order of workers, as a server does."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from tensorexpress.script_memory import ScriptMemory, drain, wake


@contextmanager
def sums_in_memory(memories: Sequence[ScriptMemory], channels: Sequence[socket.socket]) -> Iterator[None]:
    """Let the scripts of all workers begin, and sum their gradients in a thread as long as the block lasts."""
    ours, stop = socket.socketpair()
    thread = threading.Thread(target=_sum_all, args=(memories, channels, ours), name="sums in memory", daemon=True)
    with ours, stop:
        thread.start()
        try:
            yield
        finally:
            wake(stop)
            thread.join()


def _sum_all(memories: Sequence[ScriptMemory], channels: Sequence[socket.socket], stop: socket.socket) -> None:
    """Sum every layer as soon as all workers have made it, until something comes from `stop`."""
    summed: NDArray[np.int64] = np.zeros_like(memories[0].ready)
    with selectors.DefaultSelector() as selector:
        for channel in (*channels, stop):
            selector.register(channel, selectors.EVENT_READ)
        for memory, channel in zip(memories, channels, strict=True):
            memory.start()
            wake(channel)
        while True:
            for key, _ in selector.select():
                if key.fileobj is stop:
                    return
                assert isinstance(key.fileobj, socket.socket)
                if not drain(key.fileobj):
                    selector.unregister(key.fileobj)
            if _sum_ready(memories, summed):
                for channel in channels:
                    wake(channel)


def _sum_ready(memories: Sequence[ScriptMemory], summed: NDArray[np.int64]) -> bool:
    """Sum the layers that all workers have made once more; return whether there were any."""
    layers = np.flatnonzero(np.min([memory.ready for memory in memories], axis=0) > summed).tolist()
    for layer in layers:
        total = memories[0].gradient(int(summed[layer]), layer).copy()
        for memory in memories[1:]:
            total += memory.gradient(int(summed[layer]), layer)
        summed[layer] += 1
        for memory in memories:
            memory.sum(layer)[:] = total
            memory.summed[layer] = summed[layer]
    return bool(layers)
