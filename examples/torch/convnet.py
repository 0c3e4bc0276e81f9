"""A small convolutional network on pictures that are made by a seed: each shows a bar, and the class is its direction.

`tensorexpress profile examples/torch/convnet.py:build -o layers.csv` measures it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

CLASSES = 8
SIZE = 16
#: Of all workers together.
BATCH = 32


class Residual(nn.Module):
    """Two convolutions around which the input goes, too; `scale`, which it owns itself, is used after both."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels, 1, 1))
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input and what the convolutions make of it."""
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(x + self.scale * self.norm2(self.conv2(y)))


class ConvNet(nn.Module):
    """A stem, residual blocks at two sizes, and a classifier."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1)
        self.block1 = Residual(channels)
        self.down = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)
        self.block2 = Residual(2 * channels)
        self.classify = nn.Linear(2 * channels, CLASSES)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Return a score for every class."""
        x = functional.max_pool2d(functional.relu(self.stem(pictures)), 2)
        x = self.block2(functional.relu(self.down(self.block1(x))))
        return self.classify(x.mean(dim=(2, 3)))


def model(seed: int = 1) -> ConvNet:
    """Return the network with the same parameters for the same seed."""
    torch.manual_seed(seed)
    return ConvNet()


def batch(seed: int, size: int = BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pictures with noise and what they show, the same for the same seed."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (size,), generator=random)
    angles = labels * (math.pi / CLASSES)
    offsets = 4 * torch.rand(size, generator=random) - 2
    axis = torch.arange(SIZE) - SIZE / 2
    distance = axis * torch.cos(angles)[:, None, None] + axis[:, None] * torch.sin(angles)[:, None, None]
    bars = torch.exp(-(((distance - offsets[:, None, None]) / 2) ** 2))
    noise = 0.3 * torch.randn(size, SIZE, SIZE, generator=random)
    return (bars + noise)[:, None], labels


def build() -> tuple[nn.Module, tuple[torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]:
    """Return the model, what each of two workers calls it with, and the loss of what it returns."""
    pictures, labels = batch(seed=1, size=BATCH // 2)
    return model(), (pictures,), lambda scores: functional.cross_entropy(scores, labels.to(scores.device))
