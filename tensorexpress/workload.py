"""Workloads: the layers of a model in forward order, with their parameters and compute times."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layer:
    """One layer: what it computes for and what its gradient weighs."""

    name: str
    params: int
    forward_ps: int
    backward_ps: int


@dataclass(frozen=True)
class Workload:
    """A model as the network sees it: layers in forward order, each with at least one parameter."""

    name: str
    layers: tuple[Layer, ...]
    bytes_per_param: int = 4

    @property
    def tensor_bytes(self) -> tuple[int, ...]:
        """Bytes of every layer's gradient, in forward order."""
        return tuple(layer.params * self.bytes_per_param for layer in self.layers)
