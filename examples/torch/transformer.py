"""A small language model on texts that are made by a seed: every token follows from the two before it, mostly.

Its parameters are of the kinds that are easy to get wrong: the embedding is also the last layer (tied), positions
belong to the model itself, and attention uses the weights of a module that it never calls.

`tensorexpress profile examples/torch/transformer.py:build -o layers.csv` measures it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

TOKENS = 64
LENGTH = 32
#: Of all workers together.
BATCH = 16


class Block(nn.Module):
    """Attention to what came before, then two linear layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the input and what attention and the linear layers add to it."""
        y = self.norm1(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.narrow(functional.gelu(self.wide(self.norm2(x))))


class Transformer(nn.Module):
    """Predicts the next token; the last layer has the weights of the first one."""

    mask: torch.Tensor

    def __init__(self, width: int = 64, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.positions = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        self.embed = nn.Embedding(TOKENS, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.predict = nn.Linear(width, TOKENS, bias=False)
        nn.init.normal_(self.embed.weight, std=0.1)
        self.predict.weight = self.embed.weight
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return a score for every token that may come next, at every place."""
        length = tokens.shape[1]
        x = self.embed(tokens) + self.positions[:length]
        for block in self.blocks:
            x = block(x, self.mask[:length, :length])
        return self.predict(self.norm(x))


def model(seed: int = 1) -> Transformer:
    """Return the model with the same parameters for the same seed."""
    torch.manual_seed(seed)
    return Transformer()


def batch(seed: int, size: int = BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    """Return texts and what comes next at every place of them, the same for the same seed."""
    random = torch.Generator().manual_seed(seed)
    text = torch.randint(TOKENS, (size, LENGTH + 1), generator=random)
    is_slip = torch.rand(size, LENGTH + 1, generator=random) < 0.1
    for place in range(2, LENGTH + 1):
        follows = (text[:, place - 1] + 3 * text[:, place - 2] + 1) % TOKENS
        text[:, place] = torch.where(is_slip[:, place], text[:, place], follows)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def build() -> tuple[nn.Module, tuple[torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]:
    """Return the model, what each of two workers calls it with, and the loss of what it returns."""
    tokens, following = batch(seed=1, size=BATCH // 2)

    def loss(scores: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(scores.flatten(0, 1), following.to(scores.device).flatten())

    return model(), (tokens,), loss
