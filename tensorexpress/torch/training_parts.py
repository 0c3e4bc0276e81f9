"""What the engine of training knows of every layer and parameter of a model."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import torch

from tensorexpress.script_memory import ScriptMemory
from tensorexpress.torch.training_layers import Named


class Stage(enum.Enum):
    """Where a layer is between two updates."""

    #: Its gradients accumulate here.
    LOCAL = enum.auto()
    #: Its gradient is with the host.
    SENT = enum.auto()
    #: The mean of all workers' gradients is in the parameters' `grad`, because somebody wanted to see it there.
    GATHERED = enum.auto()
    #: The optimizer was told to step, and the update is made when the sum is there.
    PENDING = enum.auto()


class Trained:
    """A parameter that is trained."""

    def __init__(self, name: str, parameter: torch.nn.Parameter, layer: TrainedLayer):
        self.name, self.parameter, self.layer = name, parameter, layer
        #: Where its gradients and its sum lie, with its shape.
        self.gradients: tuple[torch.Tensor, ...] = ()
        self.sum = parameter.detach()
        #: Backward passes since the last update, and whether somebody has read the gradient since the last of them.
        self.passes, self.was_read = 0, False
        #: Whether this worker had a gradient, when it was sent.
        self.had_gradient = False
        #: What `zero_grad` asked for while the update was pending: None, or whether to set gradients to None.
        self.zeroed: bool | None = None
        #: Updates this parameter alone; None where no optimizer was given it.
        self.optimizer: torch.optim.Optimizer | None = None
        #: The optimizer's options for it when it was last told to step.
        self.options: dict[str, Any] = {}


class TrainedLayer:
    """Parameters whose gradients are sent together."""

    def __init__(self, index: int, named: Sequence[Named], memory: ScriptMemory, in_switches: bool):
        self.index, self.stage, self.in_switches = index, Stage.LOCAL, in_switches
        self.sent = 0
        self.parts = [Trained(name, parameter, self) for name, parameter in named]
        sizes = [each.parameter.numel() for each in self.parts]
        places = [torch.from_numpy(memory.gradient(iteration, index)).split(sizes) for iteration in range(2)]
        sums = torch.from_numpy(memory.sum(index)).split(sizes)
        for number, each in enumerate(self.parts):
            shape = each.parameter.shape
            each.gradients = tuple(place[number].view(shape) for place in places)
            each.sum = sums[number].view(shape)

    def write_gradients(self) -> None:
        """Put the gradients where the host finds them.

        A worker that has none puts negative zeros there, and nobody else does: their sum is negative zero exactly if no
        worker has one. Then the parameter is not updated, as in a single process.
        """
        for each in self.parts:
            place, gradient = each.gradients[self.sent % 2], each.parameter.grad
            each.had_gradient = gradient is not None
            if gradient is None:
                place.fill_(-0.0)
            else:
                place.copy_(gradient).add_(0.0)

    def take_mean(self, each: Trained, workers: int) -> bool:
        """Put the mean of all workers' gradients into a parameter's `grad`; False if none has any."""
        if not self._has_gradient(each):
            return False
        parameter = each.parameter
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
        parameter.grad.copy_(each.sum).div_(workers)
        return True

    def _has_gradient(self, each: Trained) -> bool:
        if each.had_gradient:
            return True
        if self.in_switches:
            # Whole numbers know no negative zero.
            return bool(each.sum.any())
        return not bool(torch.signbit(each.sum.flatten()[0]) & (each.sum.flatten()[0] == 0))
