"""The model zoo: architectures computed in code, and the workloads they make on a device.

>>> workload = load("ResNet-50", batch=64, device="v100")
>>> len(workload.layers), sum(layer.params for layer in workload.layers)
(54, 25557032)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial

from tensorexpress.errors import WorkloadError, unknown
from tensorexpress.models import convnets, transformers
from tensorexpress.models.devices import DEVICES, Device
from tensorexpress.models.structure import Family, LayerCost, ModelArchitecture
from tensorexpress.units import PS_PER_SECOND
from tensorexpress.workload import Layer, Workload

__all__ = ["DEVICES", "Device", "Family", "LayerCost", "ModelArchitecture", "architecture", "load", "names"]

_ZOO: dict[str, Callable[[], ModelArchitecture]] = {
    "alexnet": convnets.alexnet,
    "vgg16": partial(convnets.vgg, 16),
    "vgg19": partial(convnets.vgg, 19),
    "resnet50": partial(convnets.resnet, 50),
    "resnet101": partial(convnets.resnet, 101),
    "inception-v3": convnets.inception_v3,
    "bert-base": partial(transformers.bert, "bert-base", "BERT-base", 12, 768, 32),
    "bert-large": partial(transformers.bert, "bert-large", "BERT-large", 24, 1024, 8),
    "gpt2": partial(transformers.gpt2, "gpt2", "GPT-2", 12, 768, 4),
    "gpt2-xl": partial(transformers.gpt2, "gpt2-xl", "GPT-2 XL", 48, 1600, 1),
    "transformer-base": transformers.transformer_base,
}

#: Beside any spelling of the names themselves, with other case, hyphens, spaces or underscores.
_ALIASES = {"inception3": "inception-v3", "gpt2small": "gpt2", "transformer": "transformer-base"}

#: A batch beyond this is a slip of the keyboard, and would carry times out of 64 bits.
LARGEST_BATCH = 1_000_000


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name.lower())


_BY_PLAIN_NAME = {_plain(name): name for name in _ZOO} | _ALIASES


def names() -> tuple[str, ...]:
    """Return the names of the zoo's models.

    >>> names()[:3]
    ('alexnet', 'vgg16', 'vgg19')
    """
    return tuple(_ZOO)


@cache
def _build(name: str) -> ModelArchitecture:
    return _ZOO[name]()


def architecture(name: str) -> ModelArchitecture:
    """Return a model's layers, with parameters and FLOPs per sample, by its name in any usual spelling.

    >>> architecture("VGG-16").layers[-3]
    LayerCost(name='fc1', params=102764544, flops=205520896)
    """
    found = _BY_PLAIN_NAME.get(_plain(name))
    if found is None:
        raise WorkloadError(unknown("model", name, _ZOO))
    return _build(found)


def load(name: str, batch: int = 0, device: str = "v100") -> Workload:
    """Return a model's workload: `batch` samples a worker (0: the model's default) on a preset of `DEVICES`.

    A layer's forward time is its FLOPs over the rate the device reaches; its backward time is twice that, as
    gradients of both inputs and weights are computed.
    """
    model = architecture(name)
    preset = DEVICES.get(device.lower())
    if preset is None:
        raise WorkloadError(unknown("device", device, DEVICES))
    if not 0 <= batch <= LARGEST_BATCH:
        raise WorkloadError(
            f"batch {batch} for model {model.name}; accepted: 1 to {LARGEST_BATCH:,}, "
            f"or 0 for the model's default of {model.default_batch}"
        )
    samples, rate = batch or model.default_batch, preset.rate(model.family)
    layers = []
    for layer in model.layers:
        forward_ps = round(layer.flops * samples * PS_PER_SECOND / rate)
        layers.append(Layer(layer.name, layer.params, forward_ps, 2 * forward_ps))
    return Workload(model.name, tuple(layers))
