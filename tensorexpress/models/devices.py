"""Devices: how many floating-point operations a second training reaches on them, which is far from the peak.

The rates are estimates: published training throughput × 3 × the forward operations of one sample, since a backward
pass costs two forward passes. Where a device was not measured on a family of layers, its rate is that of a measured
device times a ratio that `source` names. docs/models.md lists the measurements; tests hold the rates to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from tensorexpress.models.structure import Family

_TERA = 10**12


class ComputeRates(NamedTuple):
    """FLOP/s that training in one precision reaches on a device, by family of layers."""

    convolution: int
    normed_convolution: int
    dense: int
    transformer: int
    wide_transformer: int
    #: What the data sheet promises for dense matrices.
    peak: int

    def of(self, family: Family) -> int:
        """Return the rate of one family."""
        return int(getattr(self, family.value))


@dataclass(frozen=True)
class Device:
    """An accelerator and the rates that training reaches on it."""

    name: str
    title: str
    #: By precision, a key of `workload.DTYPE_BYTES`; the first is what frameworks compute in unless told otherwise.
    rates: Mapping[str, ComputeRates]
    #: Where the rates come from.
    source: str

    @property
    def usual_dtype(self) -> str:
        """The precision of a job that names none."""
        return next(iter(self.rates))


def _tera(
    convolution: float, normed: float, dense: float, transformer: float, peak: float, wide: float | None = None
) -> ComputeRates:
    """Return rates given in TFLOP/s; wide transformers reach what others do unless more was measured."""
    wide = transformer if wide is None else wide
    return ComputeRates(*(round(rate * _TERA) for rate in (convolution, normed, dense, transformer, wide, peak)))


def _times(rates: ComputeRates, factor: float, peak: float, most: ComputeRates | None = None) -> ComputeRates:
    """Return the rates of a device that is `factor` times as fast, and in no family faster than `most`."""
    scaled = [round(rate * factor) for rate in rates[:-1]]
    if most is not None:
        scaled = [min(pair) for pair in zip(scaled, most, strict=False)]
    return ComputeRates._make([*scaled, round(peak * _TERA)])


_V100 = {"fp32": _tera(24.3, 8.8, 8.8, 9, peak=15.7), "fp16": _tera(42.5, 28.7, 23.5, 42, peak=125)}

#: How much faster wide transformers were measured to be than BERT-large, on an A100 (173 of 112) and an H100 (352 of
#: 229 TFLOP/s).
_WIDE = 1.54

_A100_TF32 = _tera(47, 22.5, 24, 55, peak=156)
_A100_HALF = _tera(100, 46.2, 25, 112, peak=312, wide=112 * _WIDE)


def _older(normed: float, peak: float, **measured: float) -> dict[str, ComputeRates]:
    """Return the rates of a GPU without tensor cores: what was not measured is a V100's, as its ResNets are to its."""
    usual = _V100["fp32"]
    rates = _times(usual, normed * _TERA / usual.normed_convolution, peak)
    return {"fp32": rates._replace(**{name: round(rate * _TERA) for name, rate in measured.items()})}


def _newer(
    tf32: tuple[float, float], half: tuple[float, float], peaks: tuple[float, float, float]
) -> dict[str, ComputeRates]:
    """Return the rates of a GPU whose rates for ResNet-50 and BERT-large are known in TF32 and half precision.

    Networks without norms and dense layers are to an A100's as ResNets in TF32 are; FP32 proper is to a V100's as the
    peaks are, and no faster than TF32. Peaks are those of FP32, TF32 and half precision.
    """
    fp32_peak, tf32_peak, half_peak = peaks
    ratio = tf32[0] * _TERA / _A100_TF32.normed_convolution

    def rates(like: ComputeRates, normed: float, transformer: float, peak: float, wide: float) -> ComputeRates:
        return _times(like, ratio, peak)._replace(
            normed_convolution=round(normed * _TERA),
            transformer=round(transformer * _TERA),
            wide_transformer=round(transformer * wide * _TERA),
        )

    single, halves = rates(_A100_TF32, *tf32, tf32_peak, wide=1), rates(_A100_HALF, *half, half_peak, wide=_WIDE)
    usual = _V100["fp32"]
    fp32 = _times(usual, fp32_peak * _TERA / usual.peak, fp32_peak, most=single)
    return {"tf32": single, "fp32": fp32, "bf16": halves, "fp16": halves}


_P100 = _older(5.1, peak=10.6, convolution=14.5)

_TENSORFLOW = "TensorFlow's benchmarks (2017)"
_LAMBDA = "Lambda's deeplearning-benchmark"

#: The device presets by name.
DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        device.name: device
        for device in (
            Device("k80", "NVIDIA K80, one of its two GPUs", _older(1.15, peak=4.37, convolution=3.3), _TENSORFLOW),
            Device(
                "m60",
                "NVIDIA M60, one of its two GPUs",
                _older(1.85, peak=4.8),
                "a GTX 1080 Ti (Lambda 2019) × 0.375, by peak and memory",
            ),
            Device(
                "p4000",
                "NVIDIA Quadro P4000",
                _older(2.4, peak=5.3),
                "a GTX 1080 Ti (Lambda 2019) × 0.484, by peak and memory",
            ),
            Device(
                "p100",
                "NVIDIA P100 SXM2",
                {**_P100, "fp16": _times(_P100["fp32"], 1.2, peak=21.2)},
                f"{_TENSORFLOW}; fp16 × 1.2, by Dell's ratios to a V100",
            ),
            Device("v100", "NVIDIA V100 SXM2", _V100, f"published throughput of four networks; {_LAMBDA}"),
            Device(
                "a100",
                "NVIDIA A100 SXM4",
                _newer((22.5, 55), (46.2, 112), (19.5, 156, 312)),
                f"published throughput of four networks; {_LAMBDA}; PyTorch FSDP (2024)",
            ),
            Device(
                "h100",
                "NVIDIA H100 SXM5",
                _newer((44, 105), (68, 229), (67, 494.7, 989.4)),
                f"{_LAMBDA}; torchtitan (2024)",
            ),
            Device("h200", "NVIDIA H200 SXM", _newer((55, 134), (75, 259), (67, 494.7, 989.4)), _LAMBDA),
            Device("b200", "NVIDIA B200 SXM", _newer((73, 208), (75, 387), (75, 1125, 2250)), _LAMBDA),
            Device(
                "l40s",
                "NVIDIA L40S",
                _newer((15.1, 30.9), (26.7, 55.5), (91.6, 183, 362)),
                f"an RTX 6000 Ada, the same chip ({_LAMBDA}) × 0.95, by memory",
            ),
            Device("rtx4090", "NVIDIA RTX 4090", _newer((17.7, 32.5), (31.9, 68.7), (82.6, 82.6, 165.2)), _LAMBDA),
        )
    }
)
