"""Convolutional networks, built layer by layer while their shapes are tracked.

A batch norm belongs to its convolution's layer. Operations are those of convolutions and matrix products, as in
published counts; norms, biases, activations and pooling are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import NamedTuple

from tensorexpress.models.structure import Family, LayerCost, ModelArchitecture

_CLASSES = 1000


class _Shape(NamedTuple):
    channels: int
    height: int
    width: int


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


class _Net:
    """The layers so far and the shape that the next one sees; every step returns the net, so steps chain."""

    def __init__(self, side: int, *, norm: bool) -> None:
        self.shape = _Shape(3, side, side)
        self.layers: list[LayerCost] = []
        self._norm = norm

    def _slide(self, kernel: tuple[int, int], stride: int, padding: tuple[int, int], channels: int) -> None:
        _, height, width = self.shape
        self.shape = _Shape(
            channels,
            (height + 2 * padding[0] - kernel[0]) // stride + 1,
            (width + 2 * padding[1] - kernel[1]) // stride + 1,
        )

    def conv(
        self,
        name: str,
        channels: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: int | None = None,
    ) -> _Net:
        """Add a convolution with its batch norm, or with a bias in nets without norms.

        Unless told otherwise the padding is half the kernel, which keeps the size at stride 1.
        """
        high, wide = _pair(kernel)
        weights = self.shape.channels * channels * high * wide
        self._slide((high, wide), stride, (high // 2, wide // 2) if padding is None else _pair(padding), channels)
        extra = 2 * channels if self._norm else channels
        flops = 2 * weights * self.shape.height * self.shape.width
        family = Family.NORMED_CONVOLUTION if self._norm else Family.CONVOLUTION
        self.layers.append(LayerCost(name, weights + extra, flops, family))
        return self

    def pool(self, kernel: int, stride: int, padding: int = 0) -> _Net:
        self._slide(_pair(kernel), stride, _pair(padding), self.shape.channels)
        return self

    def pool_globally(self) -> _Net:
        self.shape = _Shape(self.shape.channels, 1, 1)
        return self

    def linear(self, name: str, outputs: int) -> _Net:
        weights = prod(self.shape) * outputs
        self.layers.append(LayerCost(name, weights + outputs, 2 * weights, Family.DENSE))
        self.shape = _Shape(outputs, 1, 1)
        return self

    def _branch(self, branches: tuple[_Branch, ...]) -> list[_Shape]:
        """Run every branch from the present shape, in the order written."""
        start, ends = self.shape, []
        for branch in branches:
            self.shape = start
            branch(self)
            ends.append(self.shape)
        return ends

    def add(self, *branches: _Branch) -> _Net:
        """Add the branches' outputs element by element."""
        (self.shape,) = set(self._branch(branches))
        return self

    def concat(self, *branches: _Branch) -> _Net:
        """Concatenate the branches' channels."""
        ends = self._branch(branches)
        ((height, width),) = {(end.height, end.width) for end in ends}
        self.shape = _Shape(sum(end.channels for end in ends), height, width)
        return self


_Branch = Callable[[_Net], object]


def _architecture(
    name: str, title: str, net: _Net, side: int, source: str, default_batch: int = 64
) -> ModelArchitecture:
    sample = f"an image of {side}×{side} pixels"
    return ModelArchitecture(name, title, tuple(net.layers), default_batch, sample, source)


def alexnet() -> ModelArchitecture:
    """AlexNet in its one-tower form, as in torchvision; the batch is the paper's."""
    net = _Net(224, norm=False)
    net.conv("conv1", 64, 11, stride=4, padding=2).pool(3, 2)
    net.conv("conv2", 192, 5).pool(3, 2)
    net.conv("conv3", 384, 3).conv("conv4", 256, 3).conv("conv5", 256, 3).pool(3, 2)
    net.linear("fc1", 4096).linear("fc2", 4096).linear("fc3", _CLASSES)
    return _architecture("alexnet", "AlexNet", net, 224, "Krizhevsky 2014, as torchvision", 128)


def vgg(depth: int) -> ModelArchitecture:
    """VGG without batch norm: 16 (configuration D) or 19 (E) layers with weights."""
    convs_per_stage = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}[depth]
    net = _Net(224, norm=False)
    for stage, (convs, channels) in enumerate(zip(convs_per_stage, (64, 128, 256, 512, 512), strict=True), 1):
        for index in range(1, convs + 1):
            net.conv(f"conv{stage}_{index}", channels, 3)
        net.pool(2, 2)
    net.linear("fc1", 4096).linear("fc2", 4096).linear("fc3", _CLASSES)
    return _architecture(f"vgg{depth}", f"VGG-{depth}", net, 224, "Simonyan, Zisserman 2014")


def _bottleneck(net: _Net, name: str, width: int, stride: int, project: bool) -> None:
    def main(net: _Net) -> None:
        net.conv(f"{name}.conv1", width, 1).conv(f"{name}.conv2", width, 3, stride)
        net.conv(f"{name}.conv3", 4 * width, 1)

    def shortcut(net: _Net) -> None:
        if project:
            net.conv(f"{name}.downsample", 4 * width, 1, stride)

    net.add(main, shortcut)


def resnet(depth: int) -> ModelArchitecture:
    """ResNet of bottleneck blocks, 50 or 101 layers, with the stride on the 3×3 convolution (version 1.5)."""
    blocks_per_stage = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}[depth]
    net = _Net(224, norm=True)
    net.conv("conv1", 64, 7, stride=2).pool(3, 2, padding=1)
    for stage, blocks in enumerate(blocks_per_stage, 1):
        for block in range(blocks):
            first = block == 0
            stride = 2 if first and stage > 1 else 1
            _bottleneck(net, f"layer{stage}.{block}", 32 * 2**stage, stride, project=first)
    net.pool_globally().linear("fc", _CLASSES)
    return _architecture(f"resnet{depth}", f"ResNet-{depth} v1.5", net, 224, "He et al. 2015, as torchvision")


def _mixed_35(net: _Net, name: str, pool_channels: int) -> None:
    net.concat(
        lambda b: b.conv(f"{name}.1x1", 64, 1),
        lambda b: b.conv(f"{name}.5x5_1", 48, 1).conv(f"{name}.5x5_2", 64, 5),
        lambda b: b.conv(f"{name}.dbl_1", 64, 1).conv(f"{name}.dbl_2", 96, 3).conv(f"{name}.dbl_3", 96, 3),
        lambda b: b.pool(3, 1, padding=1).conv(f"{name}.pool", pool_channels, 1),
    )


def _reduce_35_to_17(net: _Net, name: str) -> None:
    net.concat(
        lambda b: b.conv(f"{name}.3x3", 384, 3, stride=2, padding=0),
        lambda b: (
            b.conv(f"{name}.dbl_1", 64, 1)
            .conv(f"{name}.dbl_2", 96, 3)
            .conv(f"{name}.dbl_3", 96, 3, stride=2, padding=0)
        ),
        lambda b: b.pool(3, 2),
    )


def _mixed_17(net: _Net, name: str, width: int) -> None:
    net.concat(
        lambda b: b.conv(f"{name}.1x1", 192, 1),
        lambda b: (
            b.conv(f"{name}.7x7_1", width, 1).conv(f"{name}.7x7_2", width, (1, 7)).conv(f"{name}.7x7_3", 192, (7, 1))
        ),
        lambda b: (
            b.conv(f"{name}.dbl_1", width, 1)
            .conv(f"{name}.dbl_2", width, (7, 1))
            .conv(f"{name}.dbl_3", width, (1, 7))
            .conv(f"{name}.dbl_4", width, (7, 1))
            .conv(f"{name}.dbl_5", 192, (1, 7))
        ),
        lambda b: b.pool(3, 1, padding=1).conv(f"{name}.pool", 192, 1),
    )


def _reduce_17_to_8(net: _Net, name: str) -> None:
    net.concat(
        lambda b: b.conv(f"{name}.3x3_1", 192, 1).conv(f"{name}.3x3_2", 320, 3, stride=2, padding=0),
        lambda b: (
            b.conv(f"{name}.7x7_1", 192, 1)
            .conv(f"{name}.7x7_2", 192, (1, 7))
            .conv(f"{name}.7x7_3", 192, (7, 1))
            .conv(f"{name}.7x7_4", 192, 3, stride=2, padding=0)
        ),
        lambda b: b.pool(3, 2),
    )


def _split(net: _Net, name: str) -> None:
    net.concat(lambda b: b.conv(f"{name}a", 384, (1, 3)), lambda b: b.conv(f"{name}b", 384, (3, 1)))


def _mixed_8(net: _Net, name: str) -> None:
    net.concat(
        lambda b: b.conv(f"{name}.1x1", 320, 1),
        lambda b: _split(b.conv(f"{name}.3x3_1", 384, 1), f"{name}.3x3_2"),
        lambda b: _split(b.conv(f"{name}.dbl_1", 448, 1).conv(f"{name}.dbl_2", 384, 3), f"{name}.dbl_3"),
        lambda b: b.pool(3, 1, padding=1).conv(f"{name}.pool", 192, 1),
    )


def inception_v3() -> ModelArchitecture:
    """Inception-v3 without the auxiliary classifier, whose 3.3 million parameters only training uses."""
    net = _Net(299, norm=True)
    net.conv("conv1a", 32, 3, stride=2, padding=0).conv("conv2a", 32, 3, padding=0).conv("conv2b", 64, 3)
    net.pool(3, 2).conv("conv3b", 80, 1).conv("conv4a", 192, 3, padding=0).pool(3, 2)
    for name, pool_channels in (("mixed5b", 32), ("mixed5c", 64), ("mixed5d", 64)):
        _mixed_35(net, name, pool_channels)
    _reduce_35_to_17(net, "mixed6a")
    for name, width in (("mixed6b", 128), ("mixed6c", 160), ("mixed6d", 160), ("mixed6e", 192)):
        _mixed_17(net, name, width)
    _reduce_17_to_8(net, "mixed7a")
    for name in ("mixed7b", "mixed7c"):
        _mixed_8(net, name)
    net.pool_globally().linear("fc", _CLASSES)
    return _architecture("inception-v3", "Inception-v3", net, 299, "Szegedy et al. 2015, no aux")
