"""What a training script has of a run: three lines, beside those that choose its part of the data.

    import tensorexpress.torch as te

    session = te.join()
    optimizer = session.distribute(model, optimizer)

`tensorexpress run --script` starts a script once for every worker. Started by Python it is alone, and trains as if
nothing of this were there: the reference for what a run does.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tensorexpress.errors import InputError, shown
from tensorexpress.torch.channel import SumChannel
from tensorexpress.torch.compiled import is_compiled, not_compiling
from tensorexpress.torch.ddp import BucketExchange
from tensorexpress.torch.launchers import launched_several
from tensorexpress.torch.optimizer import DistributedOptimizer, check_optimizer
from tensorexpress.torch.training import Engine
from tensorexpress.torch.training_layers import Named, match_layers

#: How many workers a script that is alone stands for.
WORKERS_VARIABLE = "TENSOREXPRESS_WORKERS"

_MOST_WORKERS = 10_000


class NotAloneError(InputError):
    """A script that is alone cannot stand for all workers."""


class TrainingSession:
    """A script's part in training: alone, or as one worker of a run (`WorkerSession`)."""

    def __init__(self, worker: int = 0, workers: int = 1, steps: int = 1):
        #: Which worker this is, of how many, and how many steps there are to make.
        self.worker, self.workers, self.steps = worker, workers, steps
        #: Of every step, the losses of its backward passes.
        self.losses: list[list[float]] = []
        self._seen: list[float] = []
        self._recorded: list[float] = []

    def distribute(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Callable[..., torch.optim.Optimizer],
        *,
        accumulate: int = 1,
        **options: Any,
    ) -> torch.optim.Optimizer:
        """Return the optimizer with which to train a model; in a run, its gradients are the means of all workers'.

        An optimizer is one that is there, or its class, whose options follow. `accumulate` is how many backward passes
        a step has.
        """
        if type(accumulate) is not int or accumulate < 1:
            raise InputError(f"accumulate is {shown(accumulate)}; accepted: a whole number of 1 or more")
        if not isinstance(optimizer, torch.optim.Optimizer):
            optimizer = optimizer(model.parameters(), **options)
        elif options:
            raise InputError(f"options {', '.join(options)} beside an optimizer; accepted: with a class of optimizers")
        return self._distribute(model, optimizer, accumulate)

    def _distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, accumulate: int
    ) -> torch.optim.Optimizer:
        raise NotImplementedError

    def ddp(self, model: torch.nn.Module, **options: Any) -> torch.nn.Module:
        """Return a model as DistributedDataParallel makes it, for scripts whose loop cannot change.

        Its gradients are the means of all workers' when `backward` is over; options are those of DDP.
        """
        raise NotImplementedError

    def shards(self, *tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
        """Yield this worker's part of a batch, the same for all tensors; alone, the parts of all workers in turn."""
        raise NotImplementedError

    def _parts(self, tensors: tuple[torch.Tensor, ...]) -> list[tuple[torch.Tensor, ...]]:
        sizes = {len(tensor) for tensor in tensors}
        if len(sizes) != 1 or sizes.pop() % self.workers:
            found = ", ".join(str(len(tensor)) for tensor in tensors)
            raise InputError(f"a batch of {found}; accepted: as many of each, a multiple of {self.workers} workers")
        return list(zip(*(tensor.chunk(self.workers) for tensor in tensors), strict=True))

    def record(self, loss: float | torch.Tensor) -> None:
        """Have a number stand for the loss of this step, instead of what backward was called on."""
        self._recorded.append(float(loss))

    def flush(self) -> None:
        """Wait until all updates are made; what looks at parameters through torch need not."""

    def close(self) -> None:
        """End training; what was started by `run --script` does so by itself."""

    def _backward(self, loss: torch.Tensor) -> None:
        if loss.numel() == 1:
            self._seen.append(float(loss.detach()))

    def _stepped(self) -> None:
        self.losses.append(self._recorded or self._seen)
        self._seen, self._recorded = [], []


class LoneModel(torch.nn.Module):
    """A model in the form in which DistributedDataParallel has it, for a script that is alone."""

    def __init__(self, model: torch.nn.Module, workers: int):
        super().__init__()
        self.module = model
        self._workers = workers

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Return the output of the model."""
        return self.module(*inputs, **options)

    def no_sync(self) -> AbstractContextManager[None]:
        """Return a context in which gradients add up, as they do here anyway."""
        if self._workers > 1:
            raise NotAloneError(
                f"the script calls no_sync, and alone it stands for {self._workers} workers; accepted: with a process "
                f"for each, or {WORKERS_VARIABLE}=1"
            )
        return nullcontext()


class LoneSession(TrainingSession):
    """A script that is alone, and may stand for several workers: their parts of a batch, one after another."""

    def __init__(self, workers: int = 1, steps: int = 1):
        super().__init__(workers=workers, steps=steps)
        #: Whether the script is written for DDP, and whether it has ever asked for its part of a batch.
        self.is_ddp, self._has_shards = False, False

    def _distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, accumulate: int
    ) -> torch.optim.Optimizer:
        self._begin(model, accumulate)
        optimizer.register_step_post_hook(lambda *_: self._stepped())
        return optimizer

    def ddp(self, model: torch.nn.Module, **options: Any) -> torch.nn.Module:
        """Return the model in the form that DDP gives it; a batch is a step."""
        self._begin(model, accumulate=1)
        self.is_ddp = True
        return LoneModel(model, self.workers)

    def _begin(self, model: torch.nn.Module, accumulate: int) -> None:
        # A reference computes as the run does; a script that Python starts is left alone.
        if self in _given and is_compiled(model):
            not_compiling()
        self._model, self._accumulate, self._batches = model, accumulate, 0
        _LossWatch(self._backward).__enter__()

    def _backward(self, loss: torch.Tensor) -> None:
        if self.workers > 1 and not self._has_shards:
            raise NotAloneError(
                f"the script never calls session.shards, so alone it has the data of one of {self.workers} workers; "
                f"accepted: batches from session.shards(...), or {WORKERS_VARIABLE}=1"
            )
        super()._backward(loss)

    def shards(self, *tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
        """Yield the parts of all workers in turn; their gradients add up, and are the mean behind the last one."""
        self._has_shards = True
        yield from self._parts(tensors)
        self._batches += 1
        if self.workers > 1 and self._batches % self._accumulate == 0:
            for parameter in self._model.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(self.workers)
        if self.is_ddp:
            self._stepped()


class _LossWatch(TorchFunctionMode):
    """Sees what backward is called on."""

    def __init__(self, seen: Callable[[torch.Tensor], None]):
        super().__init__()
        self._seen = seen

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.backward:
            self._seen(args[0])
        return func(*args, **(kwargs or {}))


class WorkerSession(TrainingSession):
    """One worker of a run."""

    def __init__(self, task: dict[str, Any], channel: SumChannel, tell: Callable[[dict[str, Any]], None]):
        """Take part as a task says (`target/scripts.py`); `tell` is heard by whoever runs the plan."""
        super().__init__(task["worker"], task["workers"], task["steps"])
        self._task, self._channel, self._tell = task, channel, tell
        self.engine: Engine | BucketExchange | None = None

    def _distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, accumulate: int
    ) -> torch.optim.Optimizer:
        task, layers = self._task, self._layers(model)
        check_optimizer(optimizer, {id(parameter) for parameter in model.parameters()})
        engine = self.engine = Engine(
            model,
            layers,
            self._channel,
            workers=self.workers,
            accumulate=accumulate,
            in_switches=task["in_switches"],
            on_loss=self._backward,
            on_step=self._stepped,
            say=self._say,
        )
        self._start(model)
        return DistributedOptimizer(optimizer, engine)

    def ddp(self, model: torch.nn.Module, **options: Any) -> torch.nn.Module:
        """Return a model as DistributedDataParallel makes it, whose buckets go out layer by layer."""
        from tensorexpress.torch.process_group import start_group

        layers = self._layers(model)
        start_group(self._task["store"], self.worker, self.workers)
        exchange = self.engine = BucketExchange(
            layers, self._channel, workers=self.workers, on_loss=self._backward, on_step=self._stepped
        )
        wrapped: torch.nn.Module = torch.nn.parallel.DistributedDataParallel(model, **options)
        # DDP looks at annotations, and at the name of the second argument.
        wrapped.register_comm_hook(None, lambda state, bucket: exchange.send(bucket))
        self._start(model)
        exchange.start(wrapped)
        return wrapped

    def _layers(self, model: torch.nn.Module) -> list[list[Named]]:
        if self.engine is not None:
            raise InputError("a model was distributed already; accepted: one model; put several into one ModuleList")
        if is_compiled(model):
            not_compiling()
            self._say(
                "the model is compiled; here it runs without torch.compile, whose graphs show no uses of parameters"
            )
        task = self._task
        return match_layers(model, task["layers"], task["elements"], task["scenario"])

    def _start(self, model: torch.nn.Module) -> None:
        """Say that the model is ready, and wait for the run to begin."""
        self._tell({"joined": digest(model)})
        while not self._channel.memory.started:
            self._channel.wait()

    def shards(self, *tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
        """Yield this worker's part of a batch."""
        yield self._parts(tensors)[self.worker]

    def flush(self) -> None:
        """Wait until all updates are made."""
        if self.engine is not None:
            self.engine.flush()

    def close(self) -> None:
        """End training: all updates are made, and as many as the run has."""
        if self.engine is None:
            return
        memory = self._channel.memory
        memory.mark(memory.stepped, memory.rounds)
        self.engine.close()
        if self.engine.steps != self.steps:
            raise InputError(
                f"the script made {self.engine.steps} steps; accepted: the {self.steps} of the run (session.steps), "
                "which iterations and warmup of the scenario set"
            )
        memory.finish()
        self._channel.wake()

    def _stepped(self) -> None:
        super()._stepped()
        assert self.engine is not None
        self._tell({"losses": self.losses[-1], "waited_for_all": self.engine.waited_for_all})

    def _say(self, text: str) -> None:
        if self.worker == 0:
            print(f"tensorexpress: {text}", file=sys.stderr, flush=True)


def digest(model: torch.nn.Module) -> str:
    """Return what tells parameters from others: models that are equal have equal ones."""
    found = hashlib.sha256()
    with torch._C.DisableTorchFunction():
        for name, parameter in model.named_parameters():
            found.update(name.encode())
            found.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


#: The session of a script that `run --script` has started.
_given: list[TrainingSession] = []


def give(session: TrainingSession) -> None:
    """Have `join` return a session."""
    _given[:] = [session]


def join(*, steps: int = 1) -> TrainingSession:
    """Return the script's part in training; `steps` is for one that is alone, as a run knows how many it has."""
    if _given:
        return _given[0]
    if WORKERS_VARIABLE not in os.environ:
        refused = launched_several(sys.argv[0] or "the script", os.environ)
        if refused is not None:
            print(f"tensorexpress: error: {refused}", file=sys.stderr, flush=True)
            raise SystemExit(InputError.exit_code)
    text = os.environ.get(WORKERS_VARIABLE, "1")
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= _MOST_WORKERS):
        raise InputError(f"{WORKERS_VARIABLE} is {shown(text)}; accepted: 1 to {_MOST_WORKERS}")
    return LoneSession(workers=int(text), steps=steps)
