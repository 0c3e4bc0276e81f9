"""The model zoo: architectures computed in code, and the workloads they make on a device.

>>> workload = load("ResNet-50", batch=64, device="v100")
>>> len(workload.layers), sum(layer.params for layer in workload.layers)
(54, 25557032)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict
from functools import cache, partial

from tensorexpress.errors import WorkloadError, unknown
from tensorexpress.models import convnets, llamas, recommenders, transformers
from tensorexpress.models.devices import DEVICES, ComputeRates, Device
from tensorexpress.models.structure import Family, LayerCost, ModelArchitecture
from tensorexpress.units import PS_PER_SECOND
from tensorexpress.workload import LARGEST_BATCH, Layer, Workload

__all__ = [
    "DEVICES",
    "LARGEST_BATCH",
    "ComputeRates",
    "Device",
    "Family",
    "LayerCost",
    "ModelArchitecture",
    "architecture",
    "load",
    "names",
    "rates_of",
    "usual_device",
]

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
    "vit-l16": transformers.vit_large,
    "llama2-7b": llamas.llama2_7b,
    "llama2-70b": llamas.llama2_70b,
    "llama3-8b": llamas.llama3_8b,
    "mixtral-8x7b": llamas.mixtral_8x7b,
    "dlrm": recommenders.dlrm,
    "dlrm-sparse": recommenders.dlrm_sparse,
    "dlrm-mlperf": recommenders.dlrm_mlperf,
}

#: Beside any spelling of the names themselves, with other case, hyphens, spaces or underscores.
_ALIASES = {
    "inception3": "inception-v3",
    "gpt2small": "gpt2",
    "transformer": "transformer-base",
    "vitl": "vit-l16",
    "vitl/16": "vit-l16",
    "mixtral": "mixtral-8x7b",
}


#: What computes where a scenario names no device: the first of these that has its precision.
_USUAL_DEVICES = ("v100", "a100")


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
    LayerCost(name='fc1', params=102764544, flops=205520896, family=<Family.DENSE: 'dense'>, table=None)
    """
    found = _BY_PLAIN_NAME.get(_plain(name))
    if found is None:
        raise WorkloadError(unknown("model", name, _ZOO))
    return _build(found)


def usual_device(dtype: str = "") -> str:
    """Return the name of the device that a scenario without one computes on: the first that has the precision.

    >>> usual_device("fp16"), usual_device("bf16")
    ('v100', 'a100')
    """
    wanted = dtype.lower()
    return next((name for name in _USUAL_DEVICES if wanted in DEVICES[name].rates), _USUAL_DEVICES[0])


def rates_of(device: str, dtype: str = "") -> tuple[str, ComputeRates]:
    """Return the rates of a preset of `DEVICES` in a precision, and its name ("": what frameworks use there).

    >>> dtype, rates = rates_of("a100")
    >>> dtype, rates.transformer
    ('tf32', 55000000000000)
    """
    preset = DEVICES.get(device.lower())
    if preset is None:
        raise WorkloadError(unknown("device", device, DEVICES))
    chosen = dtype.lower() or preset.usual_dtype
    if chosen not in preset.rates:
        having = [name for name, each in DEVICES.items() if chosen in each.rates]
        elsewhere = f"; {chosen} is on devices {', '.join(having)}" if having else ""
        raise WorkloadError(
            f"device {preset.name} computes in no {chosen!r} here; accepted: {', '.join(preset.rates)}{elsewhere}"
        )
    return chosen, preset.rates[chosen]


def load(name: str, batch: int = 0, device: str = "v100", dtype: str = "") -> Workload:
    """Return a model's workload: `batch` samples a worker (0: the model's default) on a preset of `DEVICES`.

    A layer's forward time is its FLOPs over the rate that the device reaches on layers of its family, in `dtype` ("":
    what frameworks use there); its backward time is twice that, as gradients of both inputs and weights are computed.
    """
    model = architecture(name)
    chosen, rates = rates_of(device, dtype)
    if not 0 <= batch <= LARGEST_BATCH:
        raise WorkloadError(
            f"batch {batch} for model {model.name}; accepted: 1 to {LARGEST_BATCH:,}, "
            f"or 0 for the model's default of {model.default_batch}"
        )
    samples = batch or model.default_batch
    layers = []
    for layer in model.layers:
        forward_ps = round(layer.flops * samples * PS_PER_SECOND / rates.of(layer.family))
        table = layer.table
        sparse = {} if table is None else asdict(table) | {"lookups": samples * table.lookups}
        layers.append(Layer(layer.name, layer.params, forward_ps, 2 * forward_ps, **sparse))
    return Workload(model.name, tuple(layers), chosen, samples)
