"""Where a script is written for DistributedDataParallel: its buckets, taken apart into layers that the plan knows.

    model = session.ddp(model)      instead of DistributedDataParallel(model)

DDP hands over a bucket when all its gradients are ready, the last layers' first. Every layer in it is then sent with
its own priority. But DDP's backward pass ends when all sums are there: nothing overlaps with the next forward pass.
So the last bucket, behind which no gradient is missing, waits for the sums of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NamedTuple

import torch

from tensorexpress.errors import InputError
from tensorexpress.torch.channel import SumChannel, stall
from tensorexpress.torch.training import GradientWatch, check_steps, in_no_layer, mark_once
from tensorexpress.torch.training_layers import Named
from tensorexpress.torch.training_parts import Trained, TrainedLayer


class _Bucket(NamedTuple):
    """A bucket whose sums are waited for."""

    #: Parameters, and the places of their gradients in the bucket.
    parts: list[tuple[Trained, torch.Tensor]]
    buffer: torch.Tensor
    future: Any


class BucketExchange:
    """Sends the buckets of one worker's model, and gives it the means of all workers' gradients."""

    def __init__(
        self,
        layers: Sequence[Sequence[Named]],
        channel: SumChannel,
        *,
        workers: int,
        on_loss: Callable[[torch.Tensor], None] = lambda loss: None,
        on_step: Callable[[], None] = lambda: None,
    ):
        self._channel, self._memory, self._workers = channel, channel.memory, workers
        self._on_loss, self._on_step = on_loss, on_step
        self._layers = [TrainedLayer(index, named, channel.memory, False) for index, named in enumerate(layers)]
        self.parts = [each for layer in self._layers for each in layer.parts]
        self._part_of = {id(each.parameter): each for each in self.parts}
        self.steps = 0
        #: DDP waits for all sums, always.
        self.waited_for_all = True
        self._sent: list[_Bucket] = []
        self._watch, self._has_begun = GradientWatch(self), False

    def start(self, model: torch.nn.Module) -> None:
        """Begin to watch a model that DDP has made."""
        self._watch.__enter__()
        self._hook = model.register_forward_pre_hook(lambda *_: self._before_forward())

    def _before_forward(self) -> None:
        """Forget uses since the last step: the optimizer's, which is not the engine's here."""
        if not self._has_begun:
            self._has_begun = True
            self._memory.arrived[self.steps] = 0
            self._watch.reset()

    def send(self, bucket: Any) -> Any:
        """Send what is in a bucket; return a future of its buffer, with the means of all workers' gradients."""
        step, parts = self.steps, []
        check_steps(step, self._memory)
        with torch._C.DisableTorchFunction(), torch.no_grad():
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
                each = self._part_of.get(id(parameter))
                if each is not None:
                    each.gradients[step % 2].copy_(gradient)
                    each.passes = step + 1
                    parts.append((each, gradient))
                elif gradient.any():
                    raise InputError(in_no_layer("a parameter"))
        for layer in {each.layer.index: each.layer for each, _ in parts}.values():
            if all(each.passes > step for each in layer.parts):
                self._memory.mark(self._memory.made, step, layer.index)
                layer.sent = step + 1
                self._memory.ready[layer.index] = layer.sent
        self._channel.wake()
        future: Any = torch.futures.Future()
        self._sent.append(_Bucket(parts, bucket.buffer(), future))
        if bucket.is_last():
            self._receive(step)
            self._memory.mark(self._memory.stepped, step)
            self.steps += 1
            self._has_begun = False
            self._watch.reset()
            self._on_step()
        return future

    def _receive(self, step: int) -> None:
        """Wait for the sums of all buckets, and write their means into them."""
        missing = [part for bucket in self._sent for part in bucket.parts]
        while missing:
            still = []
            for each, gradient in missing:
                if self._memory.summed[each.layer.index] <= step:
                    still.append((each, gradient))
                    continue
                with torch._C.DisableTorchFunction(), torch.no_grad():
                    gradient.copy_(each.sum).div_(self._workers)
            if len(still) == len(missing):
                stall(self._channel)
            missing = still
        for bucket in self._sent:
            bucket.future.set_result(bucket.buffer)
        self._sent.clear()

    # What the script does

    def before_use(self, parameter: torch.Tensor) -> None:
        """Note when a layer is first used; its parameters are up to date."""
        mark_once(self._memory, self.steps, self._part_of[id(parameter)].layer.index)

    def before_read(self, tensor: torch.Tensor, frame: FrameType) -> None:
        """Take note of nothing: gradients are means when backward is over."""

    def before_set(self, tensor: torch.Tensor, value: object) -> None:
        """Take note of nothing."""

    def before_backward(self, loss: torch.Tensor) -> None:
        """Take note of a loss, and of when backward began."""
        if self.steps < self._memory.rounds:
            self._memory.mark(self._memory.backward, self.steps)
        self._on_loss(loss)

    def flush(self) -> None:
        """Wait for nothing: DDP has waited for all."""

    def close(self) -> None:
        """Leave the model alone from now on."""
        self._hook.remove()
        if not self._has_begun:
            self._memory.arrived[self.steps] = 0
        self._watch.__exit__(None, None, None)
