"""Llama and its like: transformers without biases, with gated feed-forward parts and fewer keys than queries.

Layers and their operations are counted as in `transformers`. A mixture of experts has all experts' parameters, and so
all their gradients; of its operations it has those of the experts that a token is sent to, evenly spread.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tensorexpress.models.structure import Family, LayerCost, ModelArchitecture

_layer = partial(LayerCost, family=Family.WIDE_TRANSFORMER)


@dataclass(frozen=True)
class _Shape:
    blocks: int
    width: int
    #: Columns of keys, and of values.
    keys: int
    hidden: int
    vocabulary: int
    tokens: int
    #: Feed-forward parts of a block, and those that work on a token.
    experts: int = 1
    active: int = 1


def _attention(name: str, shape: _Shape) -> tuple[LayerCost, LayerCost]:
    width, tokens = shape.width, shape.tokens
    project = width * (width + 2 * shape.keys)
    scores_and_sums = 2 * 2 * tokens * tokens * width
    return (
        _layer(f"{name}.qkv", project + width, 2 * tokens * project + scores_and_sums),
        _layer(f"{name}.out", width * width, 2 * tokens * width * width),
    )


def _feed_forward(name: str, shape: _Shape, norm: int) -> tuple[LayerCost, LayerCost]:
    """Return gate and input matrices together, and the output matrix; of one expert, where there are several."""
    matrix = shape.width * shape.hidden
    flops = 2 * shape.tokens * matrix * shape.active // shape.experts
    return (
        _layer(f"{name}.in", 2 * matrix + norm, 2 * flops),
        _layer(f"{name}.out", matrix, flops),
    )


def _experts(name: str, shape: _Shape) -> tuple[LayerCost, ...]:
    router = shape.width * shape.experts
    return (
        _layer(f"{name}.router", router + shape.width, 2 * shape.tokens * router),
        *(layer for expert in range(shape.experts) for layer in _feed_forward(f"{name}.expert{expert}", shape, norm=0)),
    )


def _architecture(name: str, title: str, shape: _Shape, source: str) -> ModelArchitecture:
    width, tokens = shape.width, shape.tokens
    words = shape.vocabulary * width
    layers = [_layer("embed.word", words, tokens * width)]
    for index in range(shape.blocks):
        block = f"block{index}"
        layers += _attention(f"{block}.attn", shape)
        layers += _experts(block, shape) if shape.experts > 1 else _feed_forward(f"{block}.ffn", shape, norm=width)
    layers.append(_layer("head", words + width, 2 * tokens * words))
    return ModelArchitecture(name, title, tuple(layers), 1, f"a sequence of {tokens:,} tokens", source)


def llama2_7b() -> ModelArchitecture:
    """Llama 2 with 7 billion parameters, on its full context."""
    shape = _Shape(blocks=32, width=4096, keys=4096, hidden=11_008, vocabulary=32_000, tokens=4096)
    return _architecture("llama2-7b", "Llama 2 7B", shape, "Touvron et al. 2023")


def llama2_70b() -> ModelArchitecture:
    """Llama 2 with 70 billion parameters, whose 64 heads share 8 keys."""
    shape = _Shape(blocks=80, width=8192, keys=1024, hidden=28_672, vocabulary=32_000, tokens=4096)
    return _architecture("llama2-70b", "Llama 2 70B", shape, "Touvron et al. 2023")


def llama3_8b() -> ModelArchitecture:
    """Llama 3 with 8 billion parameters; 3.1 is the same."""
    shape = _Shape(blocks=32, width=4096, keys=1024, hidden=14_336, vocabulary=128_256, tokens=8192)
    return _architecture("llama3-8b", "Llama 3 8B", shape, "Grattafiori et al. 2024")


def mixtral_8x7b() -> ModelArchitecture:
    """Mixtral 8x7B: eight experts a block, of which two work on a token."""
    shape = _Shape(32, 4096, keys=1024, hidden=14_336, vocabulary=32_000, tokens=4096, experts=8, active=2)
    return _architecture("mixtral-8x7b", "Mixtral 8x7B", shape, "Jiang et al. 2024")
