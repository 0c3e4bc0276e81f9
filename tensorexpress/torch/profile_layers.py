"""From what was seen of some steps to layers with times: pure functions, which need no torch.

A step is a forward pass, a loss and a backward pass. The forward time of a layer runs from the first use of its
parameters to that of the next layer's, the last one's to the begin of the backward pass. Its backward time runs from
the gradients of the layer behind it to its own. So what has no parameters of its own is a part of the layer before it,
and nothing between the first use and the last gradient is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low

_PS_PER_NS = 1000

#: What a layer is: the parameters that a module owns and uses together, or every parameter.
LAYER_KINDS = ("module", "parameter")


@dataclass(frozen=True)
class SeenStep:
    """When what happened in one step, in ns of any clock; parameters are numbers, as `named_parameters` counts them."""

    begin_ns: int
    #: Parameter -> its first use, in that order.
    uses_ns: Mapping[int, int]
    backward_ns: int
    #: Parameter -> its gradient is ready, in that order.
    ready_ns: Mapping[int, int]
    end_ns: int

    @property
    def order(self) -> tuple[int, ...]:
        """The parameters that got a gradient, in the order of their first uses.

        One whose use was not seen comes behind the one that stands before it in the model.
        """
        found = [parameter for parameter in self.uses_ns if parameter in self.ready_ns]
        for parameter in sorted(self.ready_ns.keys() - self.uses_ns.keys()):
            before = [place for place, other in enumerate(found) if other < parameter]
            found.insert(before[-1] + 1 if before else 0, parameter)
        return tuple(found)


@dataclass(frozen=True)
class TimedLayer:
    """Parameters that go together, and how long they take."""

    parameters: tuple[int, ...]
    forward_ps: int
    backward_ps: int


@dataclass(frozen=True)
class TimedSteps:
    """Layers in forward order, with medians over the steps that went as most of them did."""

    layers: tuple[TimedLayer, ...]
    #: A whole step, and what of it is before the first use and behind the last gradient.
    step_ps: int
    beside_ps: int
    steps: int
    #: Layers whose gradients were ready before those of a layer behind them, as some are beside a long branch.
    early: tuple[int, ...]


def timed_layers(steps: Sequence[SeenStep], owners: Sequence[str], each: str) -> TimedSteps:
    """Return layers and their times; `owners` has for every parameter the module that owns it.

    >>> steps = [SeenStep(0, {0: 1, 1: 1, 2: 5}, 9, {2: 12, 1: 20, 0: 21}, 22)]
    >>> for layer in timed_layers(steps, ["a", "a", "b"], "module").layers: print(layer)
    TimedLayer(parameters=(0, 1), forward_ps=4000, backward_ps=9000)
    TimedLayer(parameters=(2,), forward_ps=4000, backward_ps=3000)
    """
    order, _ = Counter(step.order for step in steps).most_common(1)[0]
    alike = [step for step in steps if step.order == order]
    groups = _groups(order, owners, each)
    forward = [_forward_ns(step, groups) for step in alike]
    backward = [_backward_ns(step, groups) for step in alike]
    layers = tuple(
        TimedLayer(group, _median_ps(forwards), _median_ps(backwards))
        for group, forwards, backwards in zip(
            groups, zip(*forward, strict=True), zip(*backward, strict=True), strict=True
        )
    )
    whole = [step.end_ns - step.begin_ns for step in alike]
    beside = [all_ns - sum(f) - sum(b) for all_ns, f, b in zip(whole, forward, backward, strict=True)]
    early = tuple(index for index in range(len(groups) - 1) if all(_is_early(step, groups, index) for step in alike))
    return TimedSteps(layers, _median_ps(whole), _median_ps(beside), len(alike), early)


def _median_ps(times_ns: Sequence[int]) -> int:
    return median_low(times_ns) * _PS_PER_NS


def _groups(order: Sequence[int], owners: Sequence[str], each: str) -> list[tuple[int, ...]]:
    """Return parameters that are used one after another and have the same owner together."""
    groups: list[list[int]] = []
    for parameter in order:
        if groups and each == "module" and owners[groups[-1][0]] == owners[parameter]:
            groups[-1].append(parameter)
        else:
            groups.append([parameter])
    return [tuple(group) for group in groups]


def _forward_ns(step: SeenStep, groups: Sequence[Sequence[int]]) -> list[int]:
    uses: list[int] = []
    for group in groups:
        seen = [step.uses_ns[parameter] for parameter in group if parameter in step.uses_ns]
        # One that was not seen is taken for used together with the one before it.
        uses.append(min(seen) if seen else uses[-1] if uses else min(step.uses_ns.values(), default=step.begin_ns))
    return [later - earlier for earlier, later in pairwise([*uses, step.backward_ns])]


def _backward_ns(step: SeenStep, groups: Sequence[Sequence[int]]) -> list[int]:
    """Return backward times such that no layer is ready before the one behind it, which is what a workload can say."""
    ready = step.backward_ns
    times: list[int] = []
    for group in reversed(groups):
        later = max(ready, _ready_ns(step, group))
        times.append(later - ready)
        ready = later
    return times[::-1]


def _ready_ns(step: SeenStep, group: Sequence[int]) -> int:
    return max(step.ready_ns[parameter] for parameter in group)


def _is_early(step: SeenStep, groups: Sequence[Sequence[int]], index: int) -> bool:
    return _ready_ns(step, groups[index]) < max(_ready_ns(step, group) for group in groups[index + 1 :])
