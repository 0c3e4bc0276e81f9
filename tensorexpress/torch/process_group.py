"""A process group in Python, for DistributedDataParallel on CPUs: all that it says beside gradients.

When it is made, DDP compares models and sends parameters and buffers of worker 0 to all others; with every forward pass
the buffers, if there are any. That is little, and goes through the store in which processes find each other. Gradients
take another way (`ddp.py`): collectives are the same calls in the same order everywhere, and carry no names, so that
nobody could give them the priority of a layer.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist

#: What torch lets Python extend; of type Any, as all of torch is here.
_c10d: Any = import_module("torch._C._distributed_c10d")

#: The name under which torch knows it.
BACKEND = "tensorexpress"


class DoneWork(_c10d.Work):
    """A collective that is over when it returns."""

    def __init__(self, result: Any):
        super().__init__()
        self._result = result

    def wait(self, timeout: Any = None) -> bool:
        """Wait for nothing."""
        return True

    def is_completed(self) -> bool:
        """Return True."""
        return True

    def get_future(self) -> Any:
        """Return a future that has the result."""
        future: Any = torch.futures.Future()
        future.set_result(self._result)
        return future


class StoreGroup(_c10d.ProcessGroup):
    """A process group whose collectives go through a store: right, and slow."""

    def __init__(self, store: Any, rank: int, size: int):
        super().__init__(rank, size)
        self._store, self._rank, self._size = store, rank, size
        self._numbers = itertools.count()

    def _exchange(self, tensors: Sequence[torch.Tensor] | None, sources: Sequence[int]) -> list[list[torch.Tensor]]:
        """Return the tensors of some workers; every worker calls it, and those that send give theirs."""
        number = next(self._numbers)
        if tensors is not None:
            content = io.BytesIO()
            torch.save([tensor.detach().cpu() for tensor in tensors], content)
            self._store.set(f"{number}/{self._rank}", content.getvalue())
        return [torch.load(io.BytesIO(self._store.get(f"{number}/{source}")), weights_only=True) for source in sources]

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> DoneWork:
        """Give all workers the tensors of one."""
        root = opts.rootRank
        (found,) = self._exchange(tensors if self._rank == root else None, [root])
        for tensor, value in zip(tensors, found, strict=True):
            tensor.copy_(value)
        return DoneWork(tensors)

    def allgather(self, gathered: list[list[torch.Tensor]], tensors: list[torch.Tensor], opts: Any = None) -> DoneWork:
        """Give all workers the tensors of all."""
        everyone = self._exchange(tensors, range(self._size))
        for index, places in enumerate(gathered):
            for place, found in zip(places, everyone, strict=True):
                place.copy_(found[index])
        return DoneWork(gathered)

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> DoneWork:
        """Give all workers the sums of all, added in the order of workers."""
        if opts is not None and opts.reduceOp != dist.ReduceOp.SUM:
            raise NotImplementedError(f"{BACKEND} reduces by sums alone")
        everyone = self._exchange(tensors, range(self._size))
        for index, tensor in enumerate(tensors):
            total = everyone[0][index].clone()
            for found in everyone[1:]:
                total += found[index]
            tensor.copy_(total)
        return DoneWork(tensors)

    def barrier(self, opts: Any = None) -> DoneWork:
        """Wait for all workers."""
        self._exchange([], range(self._size))
        return DoneWork([])

    def size(self) -> int:
        """Return how many workers there are."""
        return self._size

    def rank(self) -> int:
        """Return which worker this is."""
        return self._rank

    def getBackendName(self) -> str:
        """Return the name under which torch knows it."""
        return BACKEND


def start_group(path: str, rank: int, size: int) -> None:
    """Make this group the usual one of torch.distributed; workers find each other by a file."""
    if not hasattr(dist.Backend, BACKEND.upper()):
        dist.Backend.register_backend(
            BACKEND, lambda store, rank, size, timeout: StoreGroup(store, rank, size), devices=["cpu"]
        )
    dist.init_process_group(BACKEND, store=dist.FileStore(path, size), rank=rank, world_size=size)
