"""Transformers: embeddings, attention and feed-forward sub-layers, each matrix a layer of its own.

The query, key and value matrices of one attention are one layer, and so is all that attention computes between them
and the output matrix: when the output matrix is needed and when its gradient is ready then come out right. A layer
norm belongs to the layer beside it. Operations are those of matrix products, as in published counts; an embedding
look-up counts one operation for every element that it adds.
"""

from __future__ import annotations

from functools import partial

from tensorexpress.models.structure import Family, LayerCost, ModelArchitecture

_layer = partial(LayerCost, family=Family.TRANSFORMER)


def _affine(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def _norm(width: int) -> int:
    return 2 * width


def _embedding(name: str, rows: int, width: int, tokens: int, extra_params: int = 0) -> LayerCost:
    return _layer(name, rows * width + extra_params, tokens * width)


def _attention(name: str, width: int, tokens: int, memory: int, *, norm_first: bool) -> tuple[LayerCost, LayerCost]:
    """Return the layers of `tokens` queries that attend to `memory` tokens."""
    project = 2 * width * width * (tokens + 2 * memory)
    scores_and_sums = 2 * 2 * tokens * memory * width
    before, after = (_norm(width), 0) if norm_first else (0, _norm(width))
    return (
        _layer(f"{name}.qkv", 3 * _affine(width, width) + before, project + scores_and_sums),
        _layer(f"{name}.out", _affine(width, width) + after, 2 * width * width * tokens),
    )


def _feed_forward(name: str, width: int, tokens: int, *, norm_first: bool) -> tuple[LayerCost, LayerCost]:
    hidden = 4 * width
    flops = 2 * width * hidden * tokens
    before, after = (_norm(width), 0) if norm_first else (0, _norm(width))
    return (
        _layer(f"{name}.in", _affine(width, hidden) + before, flops),
        _layer(f"{name}.out", _affine(hidden, width) + after, flops),
    )


def _block(name: str, width: int, tokens: int, *, norm_first: bool) -> tuple[LayerCost, ...]:
    return (
        *_attention(f"{name}.attn", width, tokens, tokens, norm_first=norm_first),
        *_feed_forward(f"{name}.ffn", width, tokens, norm_first=norm_first),
    )


def _architecture(
    name: str, title: str, layers: list[LayerCost], sample: str, default_batch: int, source: str
) -> ModelArchitecture:
    return ModelArchitecture(name, title, tuple(layers), default_batch, sample, source)


def bert(name: str, title: str, blocks: int, width: int, default_batch: int) -> ModelArchitecture:
    """BERT, uncased, with its pooler and without the heads of pre-training, on the usual 128 tokens."""
    vocabulary, positions, segments, tokens = 30_522, 512, 2, 128
    layers = [
        _embedding("embed.word", vocabulary, width, tokens),
        _embedding("embed.position", positions, width, tokens, segments * width + _norm(width)),
    ]
    for index in range(blocks):
        layers += _block(f"block{index}", width, tokens, norm_first=False)
    # The pooler sees the first token alone.
    layers.append(_layer("pooler", _affine(width, width), 2 * width * width))
    return _architecture(
        name, title, layers, f"a sequence of {tokens} tokens", default_batch, "Devlin et al. 2018, uncased"
    )


def gpt2(name: str, title: str, blocks: int, width: int, default_batch: int) -> ModelArchitecture:
    """GPT-2 on its full context; the output matrix is the word embedding, counted there."""
    vocabulary, tokens = 50_257, 1024
    layers = [
        _embedding("embed.word", vocabulary, width, tokens),
        _embedding("embed.position", tokens, width, tokens),
    ]
    for index in range(blocks):
        layers += _block(f"block{index}", width, tokens, norm_first=True)
    layers.append(_layer("head", _norm(width), 2 * tokens * width * vocabulary))
    return _architecture(name, title, layers, f"a sequence of {tokens} tokens", default_batch, "Radford et al. 2019")


def transformer_base() -> ModelArchitecture:
    """The base model of "Attention is all you need", with one embedding shared by encoder, decoder and output.

    The batch is about the paper's 25,000 tokens a side over 8 devices, in sentences of 32 tokens.
    """
    vocabulary, width, blocks, tokens = 37_000, 512, 6, 32
    # Source and target words are both looked up.
    layers = [_embedding("embed.word", vocabulary, width, 2 * tokens)]
    for index in range(blocks):
        layers += _block(f"encoder{index}", width, tokens, norm_first=False)
    for index in range(blocks):
        name = f"decoder{index}"
        layers += _attention(f"{name}.attn", width, tokens, tokens, norm_first=False)
        layers += _attention(f"{name}.cross", width, tokens, tokens, norm_first=False)
        layers += _feed_forward(f"{name}.ffn", width, tokens, norm_first=False)
    # The output matrix is the embedding's, so its work goes to the layer just before it.
    last = layers.pop()
    layers.append(_layer(last.name, last.params, last.flops + 2 * tokens * width * vocabulary))
    return _architecture(
        "transformer-base",
        "Transformer (base)",
        layers,
        f"a pair of sentences of {tokens} tokens",
        96,
        "Vaswani et al. 2017, 37,000 BPE",
    )


def vit_large() -> ModelArchitecture:
    """ViT-L/16 with its classifier: an image is 196 patches of 16×16 pixels, and a class token."""
    width, blocks, patch, classes, patches = 1024, 24, 16, 1000, (224 // 16) ** 2
    tokens = patches + 1
    pixels = 3 * patch * patch
    layers = [
        _layer("embed.patch", _affine(pixels, width), 2 * pixels * width * patches),
        # The class token is a row more; all are added.
        _embedding("embed.position", tokens, width, tokens, width),
    ]
    for index in range(blocks):
        layers += _block(f"block{index}", width, tokens, norm_first=True)
    # The classifier sees the class token alone.
    layers.append(_layer("head", _norm(width) + _affine(width, classes), 2 * width * classes))
    return _architecture("vit-l16", "ViT-L/16", layers, "an image of 224×224 pixels", 64, "Dosovitskiy et al. 2020")
