"""Training over a run's network: gradients leave as they become ready, and updates are made when they are needed.

    loss.backward()      a layer's gradient goes to the host as soon as its last parameter has it
    optimizer.step()     returns at once
    model(inputs)        waits, at the first use of every parameter, for the sum of its layer alone, and updates it then

While it waits for one layer, it updates others whose sums are there. All of that happens in the thread of the script:
nothing changes a parameter while anybody else may look at it, and autograd's own checks see every change.

What needs all gradients before the step, such as clipping by their norm, reads `grad` of parameters: then all sums are
waited for, and the means of all workers are what is found there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any, Protocol

import torch

from tensorexpress.errors import InputError
from tensorexpress.script_memory import AT, ScriptMemory
from tensorexpress.torch.channel import SumChannel, stall
from tensorexpress.torch.first_use import FirstUse
from tensorexpress.torch.training_layers import Named, trainable
from tensorexpress.torch.training_parts import Stage, Trained, TrainedLayer

#: While it is entered, nobody is told of calls into torch: what the engine does itself is no use of a parameter.
_own_doing = torch._C.DisableTorchFunction

_GET_GRAD, _SET_GRAD = torch.Tensor.grad.__get__, torch.Tensor.grad.__set__


class Watching(Protocol):
    """Who is told of what a script does with its model."""

    parts: list[Trained]

    def before_use(self, parameter: torch.Tensor) -> None:
        """Hear of the first use of a parameter since the last step."""
        ...

    def before_read(self, tensor: torch.Tensor, frame: FrameType) -> None:
        """Hear that somebody reads the gradient of any tensor, and where."""
        ...

    def before_set(self, tensor: torch.Tensor, value: object) -> None:
        """Hear that somebody sets the gradient of any tensor."""
        ...

    def before_backward(self, loss: torch.Tensor) -> None:
        """Hear of a backward pass."""
        ...


class GradientWatch(FirstUse):
    """Sees first uses of parameters, who reads or sets their gradients, and the losses of backward passes."""

    def __init__(self, engine: Watching):
        super().__init__((each.parameter for each in engine.parts), engine.before_use)
        self._engine = engine

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Tell the engine before a call that concerns it, then make the call."""
        if func == _GET_GRAD:
            self._engine.before_read(args[0], sys._getframe(1))
        elif func == _SET_GRAD:
            self._engine.before_set(args[0], args[1])
        elif func is torch.Tensor.backward:
            self._engine.before_backward(args[0])
        return super().__torch_function__(func, types, args, kwargs)


class Engine:
    """Sends the gradients of one worker's model, and updates it with their sums."""

    def __init__(
        self,
        model: torch.nn.Module,
        layers: Sequence[Sequence[Named]],
        channel: SumChannel,
        *,
        workers: int,
        accumulate: int = 1,
        in_switches: Iterable[int] = (),
        on_loss: Callable[[torch.Tensor], None] = lambda loss: None,
        on_step: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = lambda text: None,
    ):
        """Train a model whose layers are these; `accumulate` backward passes make a gradient."""
        check_model(model)
        self._channel, self._memory, self._workers, self._accumulate = channel, channel.memory, workers, accumulate
        self._on_loss, self._on_step, self._say = on_loss, on_step, say
        chosen = set(in_switches)
        self._layers = [
            TrainedLayer(index, named, channel.memory, index in chosen) for index, named in enumerate(layers)
        ]
        self.parts = [each for layer in self._layers for each in layer.parts]
        self._part_of = {id(each.parameter): each for each in self.parts}
        self._outside = [each for each in trainable(model) if id(each[1]) not in self._part_of]
        self._frozen = [each for each in model.named_parameters() if not each[1].requires_grad]
        #: Steps that were made; also the number of the forward pass that comes next.
        self.steps = 0
        #: Whether the last forward pass began with all sums there; None before the second one.
        self.waited_for_all: bool | None = None
        self._has_begun = False
        self._has_said_why = False
        self._watch = GradientWatch(self)
        self._hooks = [each.parameter.register_post_accumulate_grad_hook(self._hook_of(each)) for each in self.parts]
        self._watch.__enter__()

    def close(self) -> None:
        """Make all updates that are pending, and leave the model alone from now on."""
        self.flush()
        self._watch.__exit__(None, None, None)
        for hook in self._hooks:
            hook.remove()

    # Gradients

    def _hook_of(self, each: Trained) -> Callable[[torch.Tensor], None]:
        return lambda parameter: self._accumulated(each)

    def _accumulated(self, each: Trained) -> None:
        """Take note that backward has made a gradient; send its layer if that was the last that was missing."""
        layer = each.layer
        if layer.stage is Stage.PENDING:
            raise InputError(
                f"parameter {each.name} was used before it was updated, and nobody saw it, as with a view made before "
                "the last step; accepted: parameters that are used by torch functions, after each step anew"
            )
        if layer.stage is not Stage.LOCAL:
            raise InputError(
                f"parameter {each.name} got a gradient after its gradients had been sent; accepted: "
                f"{self._accumulate} backward per step, which distribute(..., accumulate=N) changes"
            )
        with _own_doing():
            if each.parameter.grad is not None and each.parameter.grad.layout != torch.strided:
                raise InputError(
                    f"parameter {each.name} has a sparse gradient; accepted: dense ones, as with sparse=False"
                )
        each.passes += 1
        each.was_read = False
        if all(part.passes >= self._accumulate for part in layer.parts):
            self._send(layer)

    def _send(self, layer: TrainedLayer) -> None:
        memory = self._memory
        check_steps(layer.sent, memory)
        # A gradient that was given up may still be on its way.
        self._wait_for(layer)
        with _own_doing(), torch.no_grad():
            layer.write_gradients()
        layer.stage = Stage.SENT
        memory.mark(memory.made, layer.sent, layer.index)
        layer.sent += 1
        memory.ready[layer.index] = layer.sent
        self._channel.wake()

    def _finish_round(self) -> None:
        """Send what is left: parameters without a gradient, or with fewer than others."""
        self.flush()
        for layer in self._layers:
            if layer.stage is Stage.LOCAL:
                self._send(layer)

    # Steps

    def step(self) -> None:
        """Have every parameter updated with the options that its optimizer has now, each when its sum is there."""
        self._check_outside()
        for each in self.parts:
            if each.layer.stage is Stage.LOCAL and each.was_read and each.passes:
                raise InputError(
                    f"the gradient of {each.name} was read before it was summed, in a step of {each.passes} backward; "
                    f"accepted: {self._accumulate}, which distribute(..., accumulate=N) changes"
                )
        self._finish_round()
        for layer in self._layers:
            gathered = layer.stage is Stage.GATHERED
            layer.stage = Stage.PENDING
            for each in layer.parts:
                each.zeroed = None
            if gathered:
                with _own_doing():
                    self._update(layer, [each for each in layer.parts if each.parameter.grad is not None])
        self._next_round()

    def _next_round(self) -> None:
        self._memory.mark(self._memory.stepped, self.steps)
        self.steps += 1
        self._has_begun = False
        for each in self.parts:
            each.passes, each.was_read = 0, False
        self._watch.reset()
        self._on_step()

    def _check_outside(self) -> None:
        """Refuse gradients that nobody would sum."""
        with _own_doing():
            for name, parameter in self._outside:
                if parameter.grad is not None:
                    raise InputError(in_no_layer(f"parameter {name}"))
            for name, parameter in self._frozen:
                if parameter.requires_grad:
                    raise InputError(
                        f"parameter {name} was frozen when it was distributed, and is not any more; accepted: to "
                        "distribute a model in which all that will be trained requires_grad"
                    )

    def zero_grad(self, set_to_none: bool) -> None:
        """Forget all gradients; those of steps that are pending when these are made."""
        if any(layer.stage in (Stage.SENT, Stage.GATHERED) for layer in self._layers):
            # There was no step, as when a scaler found that they are too large: all workers have sent, and go on.
            self._finish_round()
            for layer in self._layers:
                layer.stage = Stage.LOCAL
            self._next_round()
        with _own_doing():
            for each in self.parts:
                self._zero(each, set_to_none)
                if each.layer.stage is Stage.PENDING:
                    each.zeroed = set_to_none
                else:
                    each.passes, each.was_read = 0, False
            for _, parameter in self._outside:
                parameter.grad = None

    @staticmethod
    def _zero(each: Trained, set_to_none: bool) -> None:
        gradient = each.parameter.grad
        if gradient is None or set_to_none:
            each.parameter.grad = None
        else:
            gradient.detach_().zero_()

    # Sums

    def flush(self) -> None:
        """Make all updates that are pending, as before whatever looks at parameters behind torch's back."""
        for layer in self._layers:
            if layer.stage is Stage.PENDING:
                self._complete(layer)

    def _complete(self, layer: TrainedLayer) -> None:
        """Update a layer when its sum is there, and meanwhile others."""
        self._wait_for(layer)
        # Another one's wait may have been for this.
        if layer.stage is Stage.PENDING:
            self._update_with_mean(layer)

    def _wait_for(self, layer: TrainedLayer) -> None:
        """Wait for the sum of what was last sent of a layer; update others whose sums are there meanwhile."""
        summed = self._memory.summed
        while summed[layer.index] < layer.sent:
            for other in self._layers:
                if other.stage is Stage.PENDING and other is not layer and summed[other.index] >= other.sent:
                    self._update_with_mean(other)
                    break
            else:
                stall(self._channel)

    def _update_with_mean(self, layer: TrainedLayer) -> None:
        with _own_doing():
            with torch.no_grad():
                having = [each for each in layer.parts if layer.take_mean(each, self._workers)]
            self._update(layer, having)

    def _update(self, layer: TrainedLayer, having: Sequence[Trained]) -> None:
        for each in having:
            if each.optimizer is not None:
                each.optimizer.param_groups[0].update(each.options)
                each.optimizer.step()
        layer.stage = Stage.LOCAL
        for each in layer.parts:
            if each.zeroed is not None:
                self._zero(each, each.zeroed)

    def gather(self) -> None:
        """Wait for all sums of a backward pass, and put their means into `grad` of parameters."""
        self._finish_round()
        for layer in self._layers:
            if layer.stage is Stage.SENT:
                self._wait_for(layer)
                with _own_doing(), torch.no_grad():
                    for each in layer.parts:
                        if not layer.take_mean(each, self._workers):
                            each.parameter.grad = None
                layer.stage = Stage.GATHERED

    # What the script does

    def before_use(self, parameter: torch.Tensor) -> None:
        """Update a parameter that is about to be used for the first time since the last step."""
        layer = self._part_of[id(parameter)].layer
        if not self._has_begun:
            self._has_begun = True
            if self.steps:
                self.waited_for_all = all(each.stage is not Stage.PENDING for each in self._layers)
        mark_once(self._memory, self.steps, layer.index)
        if layer.stage is Stage.PENDING:
            self._complete(layer)

    def before_read(self, tensor: torch.Tensor, frame: FrameType) -> None:
        """Have a gradient that somebody reads be the mean of all workers'."""
        each = self._part_of.get(id(tensor))
        if each is None:
            return
        stage = each.layer.stage
        if stage is Stage.PENDING and each.zeroed is None and not _is_setting_to_none(frame):
            self._say_why(each)
            self._complete(each.layer)
        elif stage is Stage.SENT or (stage is Stage.LOCAL and any(other.stage is Stage.SENT for other in self._layers)):
            self._say_why(each)
            self.gather()
        elif stage is Stage.LOCAL:
            each.was_read = True

    def before_set(self, tensor: torch.Tensor, value: object) -> None:
        """Take note that somebody gives a parameter another gradient, or none."""
        each = self._part_of.get(id(tensor))
        if each is None:
            return
        if each.layer.stage is Stage.PENDING:
            if value is None:
                each.zeroed = True
            else:
                self._complete(each.layer)
        elif each.layer.stage is Stage.SENT:
            self._say_why(each)
            self.gather()

    def before_backward(self, loss: torch.Tensor) -> None:
        """Take note of a loss, and of when backward began."""
        if self.steps < self._memory.rounds:
            self._memory.mark(self._memory.backward, self.steps)
        self._on_loss(loss)

    def _say_why(self, each: Trained) -> None:
        if not self._has_said_why:
            self._has_said_why = True
            self._say(
                f"the gradient of {each.name} was read before the next forward pass, as clipping, scaling and logging "
                "do: every step that does so waits for all sums, and nothing of it overlaps with the next one"
            )


def _is_setting_to_none(frame: FrameType) -> bool:
    """Whether it is a module's `zero_grad` that looks whether there is a gradient to be forgotten."""
    return frame.f_code is torch.nn.Module.zero_grad.__code__ and frame.f_locals.get("set_to_none") is True


def mark_once(memory: ScriptMemory, steps: int, layer: int) -> None:
    """Mark that the forward pass after so many steps came to a layer, if it did so for the first time."""
    if not memory.arrived[steps, layer, AT]:
        memory.mark(memory.arrived, steps, layer)


def check_steps(made: int, memory: ScriptMemory) -> None:
    """Refuse one more step than a run has."""
    if made >= memory.rounds:
        raise InputError(
            f"the script makes more than the {memory.rounds} steps of the run; accepted: session.steps, which "
            "iterations and warmup of the scenario set"
        )


def in_no_layer(what: str) -> str:
    """Return the message for a gradient that nobody would sum."""
    return (
        f"{what} has a gradient, and no layer of the scenario has it; accepted: a CSV of a profile in which it is used"
    )


def check_model(model: torch.nn.Module) -> None:
    """Refuse models whose forward pass does not go through Python, where nobody could wait for parameters."""
    for name, module in model.named_modules():
        kind = next((each for each in _NOT_SEEN if any(each in base.__name__ for base in type(module).__mro__)), None)
        if kind is not None:
            where = f"module {name}" if name else "the model"
            raise InputError(
                f"{where} is of class {type(module).__name__}, which uses parameters where nobody sees it; accepted: a "
                "model that is neither scripted nor wrapped for another kind of data-parallel training"
            )


#: Scripted, and what distributes by itself.
_NOT_SEEN = ("ScriptModule", "DistributedDataParallel", "FullyShardedDataParallel", "DataParallel")
