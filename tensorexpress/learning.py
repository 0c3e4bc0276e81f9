"""Small problems of machine learning, solved by stochastic gradients: what an order of commits does to convergence.

The data are the same in every run; which samples a worker takes when is for the caller to draw.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LearningProblem:
    """A loss over samples, as a function of the parameters."""

    samples: int
    start: Floats
    #: Mean loss over all samples.
    loss: Callable[[Floats], float]
    #: Gradient of the mean loss over some samples, by their indices.
    gradient: Callable[[Floats, Ints], Floats]
    #: Samples of a gradient.
    batch: int


#: A loss from which on nothing is learned any more.
DIVERGED = 1e6

_SEED = 20_190_227


def logistic_regression(samples: int = 2000, features: int = 40) -> LearningProblem:
    """Return a convex problem: two classes that overlap, features of different scales, a little regularisation."""
    rng = np.random.default_rng(_SEED)
    scale = np.geomspace(1.0, 0.1, features)
    x = rng.normal(size=(samples, features)) * scale
    truth = rng.normal(size=features) / scale / np.sqrt(features) * 3
    y = np.where(rng.random(samples) < 1 / (1 + np.exp(-x @ truth)), 1.0, -1.0)
    decay = 1e-4

    def loss(w: Floats) -> float:
        return float(np.logaddexp(0.0, -y * (x @ w)).mean() + decay / 2 * (w @ w))

    def gradient(w: Floats, rows: Ints) -> Floats:
        chosen, sign = x[rows], y[rows]
        weight = -sign / (1 + np.exp(np.clip(sign * (chosen @ w), -500, 500)))
        return np.asarray(chosen.T @ weight / len(rows) + decay * w)

    return LearningProblem(samples, np.zeros(features), loss, gradient, batch=32)


def small_network(samples: int = 1000, features: int = 8, hidden: int = 16) -> LearningProblem:
    """Return a problem that is not convex: a network with one hidden layer learns what another one computes."""
    rng = np.random.default_rng(_SEED + 1)
    x = rng.normal(size=(samples, features))
    inner, outer = rng.normal(size=(features, 4)), rng.normal(size=4)
    y = np.tanh(x @ inner) @ outer
    y = (y - y.mean()) / y.std()
    cuts = features * hidden, features * hidden + hidden

    def parts(w: Floats) -> tuple[Floats, Floats, Floats]:
        return w[: cuts[0]].reshape(features, hidden), w[cuts[0] : cuts[1]], w[cuts[1] :]

    def loss(w: Floats) -> float:
        first, bias, last = parts(w)
        return float(np.mean((np.tanh(x @ first + bias) @ last - y) ** 2))

    def gradient(w: Floats, rows: Ints) -> Floats:
        first, bias, last = parts(w)
        chosen = x[rows]
        active = np.tanh(chosen @ first + bias)
        error = 2 * (active @ last - y[rows]) / len(rows)
        back = np.outer(error, last) * (1 - active**2)
        return np.concatenate([(chosen.T @ back).ravel(), back.sum(axis=0), active.T @ error])

    start = rng.normal(size=cuts[1] + hidden) * 0.3
    return LearningProblem(samples, start, loss, gradient, batch=32)


@dataclass(frozen=True)
class ProblemKind:
    """A problem, and what is taken for learned and a step that gets there, where nobody says otherwise."""

    make: Callable[[], LearningProblem]
    target_loss: float
    learning_rate: float


#: By the name that a scenario gives them.
PROBLEMS = {
    "logistic": ProblemKind(logistic_regression, target_loss=0.44, learning_rate=0.3),
    "network": ProblemKind(small_network, target_loss=0.1, learning_rate=0.02),
}
