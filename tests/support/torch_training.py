"""Workers of one job as threads, which sum through memory alone; models that are easy to train wrongly; a reference."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tensorexpress.script_memory import ScriptMemory, new_memory
from tensorexpress.torch.channel import HostLostError
from tensorexpress.torch.session import WorkerSession

WORKERS = 2
STEPS = 6


class Hub:
    """Sums what all workers have made ready, in their order, and no sooner than somebody waits for it."""

    def __init__(self, elements: list[int], steps: int, workers: int):
        self.memories = [ScriptMemory(new_memory(elements, steps), elements, steps) for _ in range(workers)]
        self.changed = threading.Condition()
        self.failed = False
        for memory in self.memories:
            memory.start()

    def sum_one(self, wanted: ScriptMemory) -> bool:
        """Sum the least layer that a worker could go on with; False if there is none."""
        ready = np.min([memory.ready for memory in self.memories], axis=0)
        for layer in np.flatnonzero(ready > wanted.summed).tolist():
            iteration = int(wanted.summed[layer])
            total = self.memories[0].gradient(iteration, layer).copy()
            for memory in self.memories[1:]:
                total += memory.gradient(iteration, layer)
            wanted.sum(layer)[:] = total
            wanted.summed[layer] += 1
            return True
        return False


class HubChannel:
    """One worker's channel to the hub."""

    def __init__(self, hub: Hub, worker: int):
        self._hub, self.memory = hub, hub.memories[worker]

    def wake(self) -> None:
        with self._hub.changed:
            self._hub.changed.notify_all()

    def wait(self) -> None:
        with self._hub.changed:
            while not self._hub.sum_one(self.memory):
                if self._hub.failed:
                    raise HostLostError
                self._hub.changed.wait()
            self._hub.changed.notify_all()


def layers_of(model: nn.Module, *unused: str) -> list[tuple[str, int]]:
    """Return a layer for every parameter that is trained, but those that no profile would have."""
    return [
        (name, parameter.numel())
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and name not in unused
    ]


def train_together(
    layers: list[tuple[str, int]],
    script: Callable[[WorkerSession], Any],
    *,
    workers: int = WORKERS,
    steps: int = STEPS,
) -> list[Any]:
    """Run a script in a thread for every worker, and return what each returned; the first error of any is raised."""
    names, elements = [name for name, _ in layers], [size for _, size in layers]
    hub = Hub(elements, steps, workers)
    results: list[Any] = [None] * workers
    errors: list[BaseException] = []

    def work(worker: int) -> None:
        task = {
            "worker": worker, "workers": workers, "steps": steps, "layers": names, "elements": elements,
            "in_switches": [], "scenario": "small",
        }  # fmt: skip
        session = WorkerSession(task, HubChannel(hub, worker), lambda message: None)
        try:
            results[worker] = script(session)
            session.close()
        except BaseException as error:
            if not isinstance(error, HostLostError):
                errors.append(error)
            with hub.changed:
                hub.failed = True
                hub.changed.notify_all()

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


class Tricky(nn.Module):
    """Tied, frozen, unused and sometimes unused parameters, one beside modules, and attention that calls no module."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.embed = nn.Embedding(11, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.frozen = nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.unused = nn.Linear(8, 8)
        self.rare = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor, with_rare: bool = True) -> torch.Tensor:
        x = self.embed(tokens)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = torch.tanh(self.frozen(x))
        if with_rare:
            x = x + self.rare(x)
        return self.out(self.norm(x) * self.scale)


def tricky() -> Tricky:
    """Return a model, always the same; random numbers, which threads have in common, are drawn once."""
    with _making:
        if not _made:
            with torch.random.fork_rng():
                torch.manual_seed(3)
                _made.append(Tricky())
        return copy.deepcopy(_made[0])


_making = threading.Lock()
_made: list[Tricky] = []


def batch(step: int, part: int, micro: int) -> torch.Tensor:
    """Return the tokens that a worker takes in one backward pass."""
    random = torch.Generator().manual_seed(10_000 * step + 100 * part + micro)
    return torch.randint(11, (3, 6), generator=random)


def loss_of(model: Tricky, tokens: torch.Tensor, with_rare: bool) -> torch.Tensor:
    scores = model(tokens[:, :-1], with_rare)
    return functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())


def uses_rare(step: int, part: int, micro: int) -> bool:
    """Whether a backward pass uses the parameters that are not used always: never in step 2, by one worker in 3."""
    return step != 2 and not (step == 3 and part == 1) and micro != 1


def reference(
    make_optimizer: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer],
    accumulate: int,
    *,
    workers: int = WORKERS,
    steps: int = STEPS,
    before_step: Callable[[Tricky], None] = lambda model: None,
    at_step: Callable[[int, Tricky, torch.optim.Optimizer], None] = lambda step, model, optimizer: None,
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Train in one process, with nothing but torch; return losses and parameters.

    Gradients of a worker's passes add up, then those of workers in their order, and the mean of these is taken.
    """
    model = tricky()
    optimizer = make_optimizer(model.parameters())
    losses = []
    for step in range(steps):
        totals: dict[nn.Parameter, torch.Tensor] = {}
        for part in range(workers):
            for micro in range(accumulate):
                loss = loss_of(model, batch(step, part, micro), uses_rare(step, part, micro))
                losses.append(float(loss.detach()))
                loss.backward()
            for parameter in model.parameters():
                if parameter.grad is not None:
                    before = totals.get(parameter)
                    totals[parameter] = parameter.grad if before is None else before + parameter.grad
                    parameter.grad = None
        for parameter, total in totals.items():
            parameter.grad = total / workers
        before_step(model)
        optimizer.step()
        optimizer.zero_grad()
        at_step(step, model, optimizer)
    return losses, {name: value.clone() for name, value in model.state_dict().items()}
