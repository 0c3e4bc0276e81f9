"""A profile of a model: some steps of it are run, and every layer gets its times, its bytes and its name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from statistics import median_low
from typing import Any

import torch

from tensorexpress.errors import InputError, MachineError, WorkloadError, shown, unknown
from tensorexpress.foreign.imported import different_names, listed
from tensorexpress.names import name_of_file
from tensorexpress.torch.compiled import is_compiled, name_before, not_compiling, original
from tensorexpress.torch.profile_layers import LAYER_KINDS, SeenStep, TimedSteps, timed_layers
from tensorexpress.torch.profile_steps import Clock, CpuClock, CudaClock, Steps, arguments_of, left_as_found
from tensorexpress.units import counted, format_ms, format_size
from tensorexpress.workload import DTYPE_BYTES, LARGEST_BATCH, Layer, Workload, write_csv

#: Steps that are looked at, and steps before those, where nobody says.
USUAL_STEPS, USUAL_WARMUP = 10, 3
MOST_STEPS = 10_000
MOST_THREADS = 1024
DEVICES = ("cpu", "cuda")

_PS_PER_NS = 1000

#: A share of a step that no reader should miss.
_MUCH_NOISE = 0.05

#: What gradients are in torch -> ours; what is not here counts as so many values of the most usual one that is.
_DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True)
class ModelProfile:
    """What was measured of a model."""

    workload: Workload
    #: Steps that times are medians of.
    steps: int
    #: How long a step took that was looked at, and one that was not.
    step_ps: int
    bare_ps: int
    #: What a step takes beside its layers, as `job.overhead` has it.
    overhead_ps: int
    #: What it ran on, in words.
    device: str
    #: What was done with parameters that are no plain ones, and what a reader should know.
    notes: tuple[str, ...]

    def write(self, path: str | os.PathLike[str]) -> bool:
        """Write the CSV that `job.csv` takes. Returns what `write_atomic` returns."""
        return write_csv(self.workload, path, with_names=True)

    def summary(self) -> list[str]:
        """Return what to tell a person, line by line."""
        workload = self.workload
        params = sum(layer.params for layer in workload.layers)
        forward_ps = sum(layer.forward_ps for layer in workload.layers)
        backward_ps = workload.compute_ps - forward_ps
        batch = f", batch {workload.batch}" if workload.batch else ""
        return [
            f"{workload.name} on {self.device}{batch}",
            f"{counted(len(workload.layers), 'layer')}, {params:,} parameters, "
            f"{format_size(sum(workload.tensor_bytes))} of gradients ({workload.dtype})",
            f"compute {format_ms(workload.compute_ps)}: forward {format_ms(forward_ps)}, "
            f"backward {format_ms(backward_ps)}; medians of {counted(self.steps, 'step')}",
            f"explained {workload.compute_ps / 1e9:.2f} of {format_ms(self.step_ps)} of a step "
            f"({workload.compute_ps / max(1, self.step_ps):.1%}); unobserved, a step takes {format_ms(self.bare_ps)}",
            *(f"- {note}" for note in self.notes),
        ]


@dataclass(frozen=True)
class _Parameters:
    """The parameters of a model, each once, and what there is to know about them."""

    #: Trainable ones: what they are called first, and the module that owns them.
    names: tuple[str, ...]
    tensors: tuple[torch.nn.Parameter, ...]
    owners: tuple[str, ...]
    frozen: tuple[str, ...]
    #: Second names of tied ones, as "decoder.weight is embedding.weight".
    tied: tuple[str, ...]
    #: Those that a module owns beside other modules.
    beside: tuple[str, ...]


def profile(
    model: torch.nn.Module,
    inputs: Any,
    loss: Callable[[Any], torch.Tensor],
    *,
    steps: int = USUAL_STEPS,
    warmup: int = USUAL_WARMUP,
    device: str | None = None,
    threads: int | None = None,
    each: str = "module",
    name: str = "",
    clock: Clock | None = None,
) -> ModelProfile:
    """Run some steps of a model and return what every layer of it takes; docs/profile.md says how.

    `inputs` is what the model is called with: a tuple of arguments, a dict of those with names, or the only one.
    `loss` makes one number of what the model returns. Nothing is learnt: there is no optimizer, and gradients, buffers
    and the state of random numbers are as before when it is over. With `device`, the model and its inputs move there.
    `each` is "module", where parameters that a module owns and uses together are a layer, or "parameter".
    """
    _check(model, loss, steps, warmup, each)
    if device is not None:
        model, inputs = _moved(model, inputs, device)
    on_gpu = any(parameter.is_cuda for parameter in model.parameters())
    run = Steps(model, inputs, loss, clock or (CudaClock() if on_gpu else CpuClock()))
    bare: list[int] = []
    seen: list[SeenStep] = []
    compiled = is_compiled(model)
    with (
        torch.enable_grad(),
        left_as_found(model),
        _computed_by(threads),
        not_compiling() if compiled else nullcontext(),
    ):
        for _ in range(warmup):  # which also makes the parameters of lazy modules
            run.run()
        parameters = _parameters(model)
        run.observe(parameters.tensors)
        for _ in range(steps):
            bare.append(run.run())
            seen.append(run.observe(parameters.tensors))
        where = _words_of_device(on_gpu)
    timed = timed_layers(seen, parameters.owners, each)
    if not timed.layers:
        raise WorkloadError("no parameter gets a gradient; accepted: a loss that depends on trainable parameters")
    dtype = _dtype(parameters.tensors)
    layers = _layers(timed, parameters, dtype, each)
    workload = Workload(name or name_of_file(type(original(model)).__name__), layers, dtype, batch=_batch(inputs))
    notes = [*_notes(timed, parameters, workload, len(seen), set(seen[0].uses_ns))]
    if compiled:
        notes.append(
            "the model is compiled, and was profiled without torch.compile; if yours trains compiled, give "
            "job.samples_per_second its throughput"
        )
    bare_ps = median_low(bare) * _PS_PER_NS
    return ModelProfile(workload, timed.steps, timed.step_ps, bare_ps, timed.beside_ps, where, tuple(notes))


def _check(model: object, loss: object, steps: int, warmup: int, each: str) -> None:
    if not isinstance(model, torch.nn.Module):
        raise WorkloadError(f"the model is {shown(model)}; accepted: a torch.nn.Module")
    if not callable(loss):
        raise WorkloadError(f"the loss is {shown(loss)}; accepted: a function from the model's output to one number")
    for what, found in (("steps", steps), ("warmup", warmup)):
        if type(found) is not int or not 1 <= found <= MOST_STEPS:
            raise InputError(f"{what} is {shown(found)}; accepted: a whole number from 1 to {MOST_STEPS}")
    if each not in LAYER_KINDS:
        raise InputError(unknown("kind of layer", each, LAYER_KINDS))
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise WorkloadError(
            f"{type(model).__name__} has no trainable parameter; accepted: a model with one that requires_grad"
        )


@contextmanager
def _computed_by(threads: int | None) -> Iterator[None]:
    """Have torch compute with so many threads meanwhile."""
    before = torch.get_num_threads()
    if threads is not None and (type(threads) is not int or not 1 <= threads <= MOST_THREADS):
        raise InputError(f"threads is {shown(threads)}; accepted: a whole number from 1 to {MOST_THREADS}")
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _moved(model: torch.nn.Module, inputs: Any, device: str) -> tuple[torch.nn.Module, Any]:
    if device not in DEVICES:
        raise InputError(unknown("device", device, DEVICES))
    if device == "cuda" and not torch.cuda.is_available():
        raise MachineError("torch finds no GPU here; profile on a machine with one, or give --device cpu")
    arguments, keywords = arguments_of(inputs)
    if keywords:
        return model.to(device), {key: _tensor_on(value, device) for key, value in keywords.items()}
    return model.to(device), tuple(_tensor_on(value, device) for value in arguments)


def _tensor_on(value: Any, device: str) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value


def _parameters(model: torch.nn.Module) -> _Parameters:
    first: dict[int, str] = {}
    tied, frozen, beside = [], [], []
    names, tensors, owners = [], [], []
    has_modules = {
        name_before(path) for path, module in model.named_modules() if next(module.children(), None) is not None
    }
    for own_name, parameter in model.named_parameters(remove_duplicate=False):
        name = name_before(own_name)
        if id(parameter) in first:
            tied.append(f"{name} is {first[id(parameter)]}")
            continue
        first[id(parameter)] = name
        if not parameter.requires_grad:
            frozen.append(name)
            continue
        owner = name.rpartition(".")[0]
        names.append(name)
        tensors.append(parameter)
        owners.append(owner)
        if owner in has_modules:
            beside.append(name)
    return _Parameters(*map(tuple, (names, tensors, owners, frozen, tied, beside)))


def _layers(timed: TimedSteps, parameters: _Parameters, dtype: str, each: str) -> tuple[Layer, ...]:
    whole = {owner: parameters.owners.count(owner) for owner in set(parameters.owners)}
    names, sizes = [], []
    for layer in timed.layers:
        owner = parameters.owners[layer.parameters[0]]
        is_module = each == "module" and owner and whole[owner] == len(layer.parameters)
        names.append(owner if is_module else parameters.names[layer.parameters[0]])
        tensors = [parameters.tensors[index] for index in layer.parameters]
        gradient_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        sizes.append(-(-gradient_bytes // DTYPE_BYTES[dtype]))
    return tuple(
        Layer(name, size, layer.forward_ps, layer.backward_ps)
        for name, size, layer in zip(different_names(names), sizes, timed.layers, strict=True)
    )


def _dtype(tensors: Sequence[torch.nn.Parameter]) -> str:
    """Return what most bytes of gradients are in."""
    weight = dict.fromkeys(_DTYPES, 0)
    for tensor in tensors:
        if tensor.dtype in weight:
            weight[tensor.dtype] += tensor.numel() * tensor.element_size()
    return _DTYPES[max(weight, key=lambda dtype: weight[dtype])]


def _batch(inputs: Any) -> int:
    """Return the first size of the first tensor among a model's inputs; 0 where there is none."""
    arguments, keywords = arguments_of(inputs)
    sizes = [
        len(value) for value in (*arguments, *keywords.values()) if isinstance(value, torch.Tensor) and value.dim()
    ]
    return sizes[0] if sizes and sizes[0] <= LARGEST_BATCH else 0


def _words_of_device(on_gpu: bool) -> str:
    if on_gpu:
        return str(torch.cuda.get_device_name())
    return f"the CPU with {counted(torch.get_num_threads(), 'thread')}"


def _notes(timed: TimedSteps, parameters: _Parameters, workload: Workload, steps: int, used: set[int]) -> Iterator[str]:
    """Say what was done with all that is no plain parameter, one line for each kind."""
    in_layers = {index for layer in timed.layers for index in layer.parameters}
    others = set(range(len(parameters.names))) - in_layers
    kinds: Mapping[str, Sequence[str]] = {
        "tied: one gradient, from the first of all uses on": parameters.tied,
        "frozen: no gradient; computed as a part of the layer before": parameters.frozen,
        "used, but without a gradient: computed as a part of the layer before": [
            parameters.names[index] for index in sorted(others & used)
        ],
        "unused: no gradient, left out": [parameters.names[index] for index in sorted(others - used)],
        "on a module with modules inside: a layer from its first use on": parameters.beside,
        "whose use torch does not show, such as in scripted modules: taken for used with the one before": [
            parameters.names[index] for index in sorted(in_layers - used)
        ],
    }
    for what, names in kinds.items():
        if names:
            yield f"{counted(len(names), 'parameter')} {what} ({listed(names)})"
    if timed.early:
        names = [workload.layers[index].name for index in timed.early]
        yield (
            f"{counted(len(names), 'gradient')} ready before that of a layer behind: taken for ready with it "
            f"({listed(names)})"
        )
    other_types = {str(each.dtype).removeprefix("torch.") for each in parameters.tensors} - {
        _torch_name(workload.dtype)
    }
    if other_types:
        yield f"gradients in {', '.join(sorted(other_types))}: counted as {workload.dtype} of as many bytes"
    noise_ps = timed.step_ps - timed.beside_ps - workload.compute_ps
    if noise_ps > _MUCH_NOISE * timed.step_ps:
        yield (
            f"{format_ms(noise_ps)} of a step come and go, now in one layer and now in another: the machine was busy; "
            "profile again when it is not"
        )
    if timed.steps < steps:
        yield f"{counted(steps - timed.steps, 'step')} left out, as parameters were used in another order"


def _torch_name(dtype: str) -> str:
    return next(str(each).removeprefix("torch.") for each, ours in _DTYPES.items() if ours == dtype)
