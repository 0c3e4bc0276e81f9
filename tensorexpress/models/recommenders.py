"""Recommendation models: tables of embeddings beside small fully connected layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tensorexpress.models.structure import Family, LayerCost, ModelArchitecture

#: Rows of the tables of the Criteo Kaggle data set, one for each categorical feature.
_CRITEO_KAGGLE = (
    1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5683, 8_351_593, 3194,
    27, 14_992, 5_461_306, 10, 5652, 2173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572,
)  # fmt: skip


def _perceptron(name: str, widths: Sequence[int], extra_flops: int = 0) -> list[LayerCost]:
    """Return fully connected layers; extra operations are done before the first of them."""
    layers = []
    for index, (inputs, outputs) in enumerate(pairwise(widths)):
        flops = 2 * inputs * outputs + (extra_flops if index == 0 else 0)
        layers.append(LayerCost(f"{name}{index}", inputs * outputs + outputs, flops, Family.DENSE))
    return layers


def dlrm() -> ModelArchitecture:
    """DLRM as its reference code runs the Criteo Kaggle data: 26 tables of 16 columns, 13 numbers beside them."""
    width, numbers = 16, 13
    features = len(_CRITEO_KAGGLE) + 1
    pairs = features * (features - 1) // 2
    layers = _perceptron("bottom", (numbers, 512, 256, 64, width))
    layers += [
        LayerCost(f"embed{index}", rows * width, width, Family.TRANSFORMER) for index, rows in enumerate(_CRITEO_KAGGLE)
    ]
    # Every two features are multiplied with each other; the products and the numbers go on.
    layers += _perceptron("top", (pairs + width, 512, 256, 1), extra_flops=2 * pairs * width)
    return ModelArchitecture("dlrm", "DLRM, Criteo Kaggle", tuple(layers), 128, "a click", "Naumov et al. 2019")
