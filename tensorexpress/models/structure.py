"""What a model is before it meets a device: layers with their parameters and floating-point operations."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tensorexpress.sparse import SparseTable


class Family(Enum):
    """What a layer computes, on which devices reach different rates; a value names a field of `ComputeRates`."""

    #: A convolution with a bias alone: libraries save multiplications (Winograd), so it may exceed a device's peak.
    CONVOLUTION = "convolution"
    #: A convolution with a batch norm, whose rate is bound by the memory that the norm moves.
    NORMED_CONVOLUTION = "normed_convolution"
    #: A fully connected layer of a network of other kinds; its weights are used once a sample.
    DENSE = "dense"
    #: The matrices of a transformer, and embeddings.
    TRANSFORMER = "transformer"
    #: Those of 4,096 columns or more, which fill tensor cores better.
    WIDE_TRANSFORMER = "wide_transformer"


@dataclass(frozen=True)
class LayerCost:
    """One layer: the unit whose gradient is scheduled as one tensor."""

    name: str
    #: Trained parameters; weights shared with an earlier layer are counted there.
    params: int
    #: Floating-point operations of the forward pass for one sample; a multiply-accumulate is two.
    flops: int
    family: Family
    #: Its parameters as a sparse table, with the lookups of one sample.
    table: SparseTable | None = None


@dataclass(frozen=True)
class ModelArchitecture:
    """A model of the zoo: its layers in the order in which the forward pass needs their parameters."""

    name: str
    title: str
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
