"""Recommendation models: tables of embeddings beside small fully connected layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tensorexpress.models.structure import Family, LayerCost, ModelArchitecture
from tensorexpress.sparse import SparseTable

#: Rows of the tables of the Criteo Kaggle data set, one for each categorical feature.
_CRITEO_KAGGLE = (
    1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5683, 8_351_593, 3194,
    27, 14_992, 5_461_306, 10, 5652, 2173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572,
)  # fmt: skip

#: The same of the Criteo Terabyte data set, with the indices of a feature taken modulo 40 million.
_CRITEO_TERABYTE = (
    39_884_406, 39_043, 17_289, 7420, 20_263, 3, 7120, 1543, 63, 38_532_951, 2_953_546, 403_346, 10,
    2208, 11_938, 155, 4, 976, 14, 39_979_771, 25_641_295, 39_664_984, 585_935, 12_972, 108, 36,
)  # fmt: skip

#: An assumption; measure your own data with `tensorexpress hot`.
_SKEW = 1.05


def _perceptron(name: str, widths: Sequence[int], extra_flops: int = 0) -> list[LayerCost]:
    """Return fully connected layers; extra operations are done before the first of them."""
    layers = []
    for index, (inputs, outputs) in enumerate(pairwise(widths)):
        flops = 2 * inputs * outputs + (extra_flops if index == 0 else 0)
        layers.append(LayerCost(f"{name}{index}", inputs * outputs + outputs, flops, Family.DENSE))
    return layers


def _dlrm(rows: Sequence[int], bottom: Sequence[int], top: Sequence[int], sparse: bool) -> tuple[LayerCost, ...]:
    """Return the layers of a DLRM with a table for every feature, as wide as the last layer below, one lookup each."""
    width, features = bottom[-1], len(rows) + 1
    pairs = features * (features - 1) // 2
    layers = _perceptron("bottom", bottom)
    for index, keys in enumerate(rows):
        table = SparseTable(keys, width, lookups=1, skew=_SKEW) if sparse else None
        layers.append(LayerCost(f"embed{index}", keys * width, width, Family.TRANSFORMER, table))
    # Every two features are multiplied with each other; the products and the numbers go on.
    layers += _perceptron("top", (pairs + width, *top), extra_flops=2 * pairs * width)
    return tuple(layers)


def _of_kaggle(sparse: bool) -> tuple[LayerCost, ...]:
    return _dlrm(_CRITEO_KAGGLE, (13, 512, 256, 64, 16), (512, 256, 1), sparse)


def dlrm() -> ModelArchitecture:
    """DLRM as its reference code runs the Criteo Kaggle data: 26 tables of 16 columns, 13 numbers beside them."""
    return ModelArchitecture(
        "dlrm", "DLRM, Criteo Kaggle", _of_kaggle(sparse=False), 128, "a click", "Naumov et al. 2019"
    )


def dlrm_sparse() -> ModelArchitecture:
    """The same, with the gradients of the rows that a batch looks up alone."""
    return ModelArchitecture(
        "dlrm-sparse", "DLRM, Criteo Kaggle", _of_kaggle(sparse=True), 128, "a click", "Naumov et al., sparse"
    )


def dlrm_mlperf() -> ModelArchitecture:
    """DLRM as MLPerf trains it on the Criteo Terabyte data: 26 tables of 128 columns and at most 40 million rows."""
    layers = _dlrm(_CRITEO_TERABYTE, (13, 512, 256, 128), (1024, 1024, 512, 256, 1), sparse=True)
    return ModelArchitecture("dlrm-mlperf", "DLRM, Criteo Terabyte", layers, 2048, "a click", "MLPerf 2020, sparse")
