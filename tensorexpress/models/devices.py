"""Devices: how many floating-point operations a second training reaches on them, which is far from the peak.

The rates are estimates: published training throughput × 3 × the forward operations of one sample, since a backward
pass costs two forward passes. docs/models.md lists the measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tensorexpress.models.structure import Family


@dataclass(frozen=True)
class Device:
    """An accelerator and the rates, in FLOP/s, that training reaches on it."""

    name: str
    title: str
    #: What convolutional networks reach.
    effective_flops: int
    #: What transformers reach: their large matrix products suit tensor cores better.
    transformer_flops: int
    #: What the data sheet promises for dense matrices in the same precision.
    peak_flops: int
    note: str

    def rate(self, family: Family) -> int:
        """Return the FLOP/s that models of a family reach."""
        return self.transformer_flops if family is Family.TRANSFORMER else self.effective_flops


_TERA = 10**12

#: The device presets by name.
DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        device.name: device
        for device in (
            Device(
                name="v100",
                title="NVIDIA V100 SXM2, FP32",
                effective_flops=8_800_000_000_000,
                transformer_flops=9 * _TERA,
                peak_flops=15_700_000_000_000,
                note="ResNet-50 at about 360 images/s, BERT-large at 12 sequences/s of 384 tokens",
            ),
            Device(
                name="a100",
                title="NVIDIA A100 SXM4, TF32",
                effective_flops=24_500_000_000_000,
                transformer_flops=55 * _TERA,
                peak_flops=156 * _TERA,
                note="ResNet-50 at about 1,000 images/s, BERT-large at 75 sequences/s of 384 tokens",
            ),
            Device(
                name="h100",
                title="NVIDIA H100 SXM5, TF32",
                effective_flops=44 * _TERA,
                transformer_flops=105 * _TERA,
                peak_flops=494_700_000_000_000,
                note="ResNet-50 at about 1,800 images/s, BERT-large at 145 sequences/s of 384 tokens",
            ),
        )
    }
)
