"""Which parameters of a model make up each layer of a scenario: by name and by size, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch

from tensorexpress.errors import InputError, shown
from tensorexpress.torch.compiled import name_before, original

#: A layer that is named after one parameter of a module may hold others of it; with more than these nobody tries.
_MOST_BESIDE = 12

Named = tuple[str, torch.nn.Parameter]


def trainable(model: torch.nn.Module) -> list[Named]:
    """Return the parameters that are trained, each under its first name; refuse those that hosts cannot sum."""
    found = [(name_before(name), each) for name, each in model.named_parameters() if each.requires_grad]
    for name, parameter in found:
        if parameter.dtype != torch.float32:
            raise InputError(f"parameter {name} is of {parameter.dtype}; accepted: torch.float32; convert the model")
    return [(name, parameter) for name, parameter in found if parameter.numel()]


def match_layers(
    model: torch.nn.Module, names: Sequence[str], elements: Sequence[int], scenario: str
) -> list[list[Named]]:
    """Return the parameters of every layer, in the order in which their gradients lie in it.

    A layer has the name of a module, of which it holds all parameters, or of one parameter, perhaps with others of the
    same module. Parameters that are in no layer were not used when the model was profiled.

    >>> [layer] = match_layers(torch.nn.Sequential(torch.nn.Linear(3, 2)), ["0"], [8], "small")
    >>> [name for name, _ in layer]
    ['0.weight', '0.bias']
    """
    free = dict(trainable(model))
    kind = type(original(model)).__name__
    layers: list[list[Named]] = []
    for name, count in zip(names, elements, strict=True):
        own = _of_layer(name, count, free)
        found = sum(free[each].numel() for each in own)
        if not own:
            where, is_what = shown(name), "no module or parameter of"
            raise InputError(f"{scenario}: layer {where} is {is_what} {kind}; {_ACCEPTED}")
        if found != count:
            raise InputError(
                f"{scenario}: layer {shown(name)} has {count} parameters, and {' + '.join(own)} of {kind} "
                f"{found}; {_ACCEPTED}"
            )
        layers.append([(each, free.pop(each)) for each in own])
    return layers


_ACCEPTED = "accepted: the layers of this model; make the CSV again with `tensorexpress profile`"


def _of_layer(name: str, count: int, free: dict[str, torch.nn.Parameter]) -> list[str]:
    """Return the parameters that a layer of this name can only mean; none if there are no such ones."""
    if name not in free:
        return [each for each in free if each.rpartition(".")[0] == name]
    missing = count - free[name].numel()
    owner = name.rpartition(".")[0]
    beside = [each for each in free if each != name and each.rpartition(".")[0] == owner][:_MOST_BESIDE]
    fitting = [
        chosen
        for size in range(len(beside) + 1)
        for chosen in combinations(beside, size)
        if sum(free[each].numel() for each in chosen) == missing
    ]
    if len(fitting) != 1:
        return [name]
    return [each for each in free if each == name or each in fitting[0]]
