"""What a model is before it meets a device: layers with their parameters and floating-point operations."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Family(Enum):
    """What a model mostly computes; devices reach different rates on each."""

    CONVNET = "convnet"
    TRANSFORMER = "transformer"


@dataclass(frozen=True)
class LayerCost:
    """One layer: the unit whose gradient is scheduled as one tensor."""

    name: str
    #: Trained parameters; weights shared with an earlier layer are counted there.
    params: int
    #: Floating-point operations of the forward pass for one sample; a multiply-accumulate is two.
    flops: int


@dataclass(frozen=True)
class ModelArchitecture:
    """A model of the zoo: its layers in the order in which the forward pass needs their parameters."""

    name: str
    title: str
    family: Family
    layers: tuple[LayerCost, ...]
    #: Samples of a worker's batch when none is given.
    default_batch: int
    #: What one sample is.
    sample: str
    #: Where the architecture is defined.
    source: str

    @property
    def params(self) -> int:
        """Parameters of all layers."""
        return sum(layer.params for layer in self.layers)

    @property
    def flops(self) -> int:
        """Floating-point operations of one sample's forward pass."""
        return sum(layer.flops for layer in self.layers)
