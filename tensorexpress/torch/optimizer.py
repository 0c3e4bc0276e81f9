"""An optimizer whose steps are made parameter by parameter, each when the sum of its gradients is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tensorexpress.errors import InputError, unknown
from tensorexpress.torch.training import Engine

#: What torch has that updates every parameter by itself alone.
SEPARABLE = (
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
)  # fmt: skip


class DistributedOptimizer(torch.optim.Optimizer):
    """Stands for an optimizer: the same groups, options and state, other times of updates.

    Schedulers and checkpoints take it for the one that it stands for; `state_dict` waits for all updates.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, engine: Engine):
        """Let an engine make the steps of an optimizer, as far as parameters are the engine's."""
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._inner, self._engine = optimizer, engine
        self._take_over()

    def _take_over(self) -> None:
        """Have groups and state in common with the optimizer, and give every parameter one of its own."""
        self.param_groups, self.state = self._inner.param_groups, self._inner.state
        group_of = {id(parameter): group for group in self.param_groups for parameter in group["params"]}
        self._groups = [group_of.get(id(each.parameter)) for each in self._engine.parts]
        for each, group in zip(self._engine.parts, self._groups, strict=True):
            each.optimizer = None if group is None else _alone(self._inner, each.parameter, group)

    def step(self, closure: Callable[[], float] | None = None) -> None:
        """Have all parameters updated, with the options that groups have now; this waits for nothing."""
        if closure is not None:
            raise InputError("step(closure) computes the loss again; accepted: step(), after loss.backward()")
        for each, group in zip(self._engine.parts, self._groups, strict=True):
            if group is not None:
                each.options = _options(group)
        self._engine.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients; this waits for nothing, and does not disturb steps that are pending."""
        self._engine.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after all updates, in the form of the optimizer that this one stands for."""
        self._engine.flush()
        state: dict[str, Any] = self._inner.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state that this optimizer, or the one that it stands for, had."""
        self._engine.flush()
        self._inner.load_state_dict(state_dict)
        self._take_over()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take the groups of the optimizer; refuse further ones."""
        if hasattr(self, "_engine"):
            raise InputError("add_param_group after distribute(); accepted: all groups before")
        super().add_param_group(param_group)


def check_optimizer(optimizer: torch.optim.Optimizer, parameters: set[int]) -> None:
    """Refuse an optimizer that updates parameters together, or parameters that are not the model's."""
    kind = type(optimizer)
    if kind is not getattr(torch.optim, kind.__name__, None) or kind.__name__ not in SEPARABLE:
        raise InputError(
            f"{unknown('optimizer', kind.__name__, SEPARABLE)}; those of torch.optim that update each parameter alone"
        )
    for number, group in enumerate(optimizer.param_groups):
        if not all(id(parameter) in parameters for parameter in group["params"]):
            raise InputError(
                f"group {number} of the optimizer has a parameter that is not the model's; accepted: those of "
                "model.parameters()"
            )


def _options(group: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a group as they are now; a scheduler may change even a tensor in place."""
    return {
        key: value.clone() if isinstance(value, torch.Tensor) else value
        for key, value in group.items()
        if key != "params"
    } | {"foreach": False, "fused": None}


def _alone(
    optimizer: torch.optim.Optimizer, parameter: torch.nn.Parameter, group: dict[str, Any]
) -> torch.optim.Optimizer:
    """Return an optimizer for one parameter, which keeps its state where the other one does."""
    kind: Any = type(optimizer)
    one: torch.optim.Optimizer = kind.__new__(kind)
    one.__dict__.update(optimizer.__dict__)
    one.param_groups = [{**_options(group), "params": [parameter]}]
    return one
