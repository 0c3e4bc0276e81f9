"""Steps of a model under observation: a forward pass, a loss and a backward pass, and when what of it happened."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from tensorexpress.errors import WorkloadError, shown
from tensorexpress.torch.first_use import FirstUse
from tensorexpress.torch.profile_layers import SeenStep


class Clock(Protocol):
    """What tells time: marks are taken while a step runs, and read when it is over."""

    def mark(self) -> Any:
        """Return a mark of now, in the order of what is computed."""

    def settle(self) -> None:
        """Wait until all that was started is through."""

    def read(self, since: Any, mark: Any) -> int:
        """Return the ns from one mark to another, both before the last `settle`."""


class CpuClock:
    """The clock of this machine: on a CPU a call has computed what it should when it returns."""

    def mark(self) -> int:
        """Return now."""
        return time.perf_counter_ns()

    def settle(self) -> None:
        """Nothing is under way."""

    def read(self, since: int, mark: int) -> int:
        """Return the ns between two marks."""
        return mark - since


class CudaClock:
    """Events in the stream of a GPU: calls only start what it computes, and return long before."""

    def mark(self) -> Any:
        """Put an event behind all that was started so far."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def settle(self) -> None:
        """Wait for the GPU."""
        torch.cuda.synchronize()

    def read(self, since: Any, mark: Any) -> int:
        """Return the ns between two events, which CUDA tells in ms."""
        return round(float(since.elapsed_time(mark)) * 1e6)


class Steps:
    """Steps of one model on one batch. Parameters are never changed, as there is no optimizer."""

    def __init__(self, model: torch.nn.Module, inputs: Any, loss: Callable[[Any], Any], clock: Clock) -> None:
        self._model = model
        self._arguments, self._keywords = arguments_of(inputs)
        self._loss = loss
        self._clock = clock

    def run(self) -> int:
        """Make a step that nobody looks at, and return the ns that it took."""
        self._clock.settle()
        begin = self._clock.mark()
        self._forward().backward()
        end = self._clock.mark()
        self._clock.settle()
        return self._clock.read(begin, end)

    def observe(self, parameters: Sequence[torch.nn.Parameter]) -> SeenStep:
        """Make a step and return what was seen of it."""
        number = {id(parameter): index for index, parameter in enumerate(parameters)}
        uses: dict[int, Any] = {}
        ready: dict[int, Any] = {}

        def used(parameter: torch.Tensor) -> None:
            uses[number[id(parameter)]] = self._clock.mark()

        def is_ready(parameter: torch.Tensor) -> None:
            ready[number[id(parameter)]] = self._clock.mark()

        hooks = [each.register_post_accumulate_grad_hook(is_ready) for each in parameters]
        try:
            return self._observed(FirstUse(parameters, used), uses, ready)
        finally:
            for hook in hooks:
                hook.remove()

    def _observed(self, first_use: FirstUse, uses: Mapping[int, Any], ready: Mapping[int, Any]) -> SeenStep:
        clock = self._clock
        clock.settle()
        begin = clock.mark()
        with first_use:
            loss = self._forward()
        backward = clock.mark()
        loss.backward()
        end = clock.mark()
        clock.settle()
        return SeenStep(
            0,
            {parameter: clock.read(begin, mark) for parameter, mark in uses.items()},
            clock.read(begin, backward),
            {parameter: clock.read(begin, mark) for parameter, mark in ready.items()},
            clock.read(begin, end),
        )

    def _forward(self) -> torch.Tensor:
        self._model.zero_grad(set_to_none=True)
        found = self._loss(self._model(*self._arguments, **self._keywords))
        if not isinstance(found, torch.Tensor) or found.numel() != 1:
            what = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else shown(found)
            raise WorkloadError(f"the loss is {what}; accepted: a tensor with one number")
        if not found.requires_grad:
            raise WorkloadError("the loss depends on no trainable parameter; accepted: one that backward() starts from")
        return found


def arguments_of(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what a model is called with: a tuple or list is its arguments, a dict those with names, else it is one."""
    if isinstance(inputs, tuple | list):
        return tuple(inputs), {}
    if isinstance(inputs, dict):
        return (), inputs
    return (inputs,), {}


@contextmanager
def left_as_found(model: torch.nn.Module) -> Iterator[None]:
    """Give a model back its gradients, its buffers, such as means of batch norm, and the state of random numbers."""
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    with torch.random.fork_rng(devices=[torch.cuda.current_device()] if torch.cuda.is_available() else []):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)
            for parameter, gradient in gradients:
                parameter.grad = gradient
