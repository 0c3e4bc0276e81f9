"""What any reader makes of a file: a workload, how much of an iteration it explains, and what was left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorexpress.errors import WorkloadError, shown
from tensorexpress.names import LONGEST_NAME, name_of_file
from tensorexpress.units import counted, format_ms
from tensorexpress.workload import DTYPE_BYTES, LONGEST_CSV_PS, Layer, Workload

#: Layers and iterations of a file; the deepest models have some thousands of operations.
MOST_PARTS = 1_000_000


@dataclass(frozen=True)
class Part:
    """What a file says of one layer, in forward order; `params` is 0 where nothing of it is to be summed."""

    name: str
    params: int
    forward_ps: int
    backward_ps: int


@dataclass(frozen=True)
class Imported:
    """What was read from a file."""

    workload: Workload
    #: What it was read as, in words.
    source: str
    #: Iterations that the times are means of.
    iterations: int
    #: How long a worker's iteration takes in the file, with what no layer has.
    iteration_ps: int
    #: What was left out and why, and what was done with what does not fit.
    notes: tuple[str, ...]

    @property
    def explained(self) -> float:
        """The share of an iteration that is in the layers' times."""
        return self.workload.compute_ps / self.iteration_ps if self.iteration_ps else 1.0


def imported(
    place: str,
    source: str,
    parts: Sequence[Part],
    *,
    dtype: str,
    iterations: int,
    iteration_ps: int,
    notes: Iterable[str],
) -> Imported:
    """Return what a reader found as a value: every layer with parameters, every name once, explained at most wholly.

    The workload is called as the file, up to its first ending.
    """
    if not any(part.params for part in parts):
        raise WorkloadError(f"{place}: no layer of {len(parts)} has parameters; accepted: gradients that are summed")
    joined = _joined(parts)
    names = different_names([part.name for part in joined])
    layers = tuple(_layer(place, name, part) for name, part in zip(names, joined, strict=True))
    said = list(notes)
    if len(joined) < len(parts):
        said.append(
            f"{counted(len(parts) - len(joined), 'layer')} without parameters: computed as a part of the layer before"
        )
    workload = Workload(name_of_file(Path(place).name.partition(".")[0]), layers, dtype)
    return Imported(workload, source, iterations, max(iteration_ps, workload.compute_ps), tuple(said))


def _joined(parts: Iterable[Part]) -> list[Part]:
    """Return the parts that have parameters, each with the times of those without that follow it.

    Their forward pass comes after its own, and their backward pass has to be through before its gradient is ready. What
    comes before the first one is a part of that.
    """
    joined: list[Part] = []
    waiting: list[Part] = []
    for part in parts:
        if part.params:
            joined.append(_with_times(part, waiting))
            waiting = []
        elif joined:
            joined[-1] = _with_times(joined[-1], [part])
        else:
            waiting.append(part)
    return joined


def _layer(place: str, name: str, part: Part) -> Layer:
    longest_ps = max(part.forward_ps, part.backward_ps)
    if longest_ps > LONGEST_CSV_PS:
        raise WorkloadError(
            f"{place}: layer {name} computes for {format_ms(longest_ps)}; accepted: up to {format_ms(LONGEST_CSV_PS)}; "
            "check the unit"
        )
    try:
        return Layer(name, part.params, part.forward_ps, part.backward_ps)
    except WorkloadError as error:
        raise WorkloadError(f"{place}: {error}") from None


def mean_parts(iterations: Sequence[Sequence[Part]]) -> list[Part]:
    """Return the layers of iterations that have the same ones, with mean times."""
    return [
        Part(
            same[0].name,
            same[0].params,
            sum(part.forward_ps for part in same) // len(same),
            sum(part.backward_ps for part in same) // len(same),
        )
        for same in zip(*iterations, strict=True)
    ]


def params_of_bytes(where: str, size: int, dtype: str) -> int:
    """Return how many parameters have a gradient of so many bytes."""
    params, rest = divmod(size, DTYPE_BYTES[dtype])
    if rest:
        raise WorkloadError(
            f"{where}: {size} bytes are no whole number of {dtype} parameters; "
            f"accepted: a multiple of {DTYPE_BYTES[dtype]}; give --dtype"
        )
    return params


def _with_times(part: Part, others: Iterable[Part]) -> Part:
    """Return a part that also computes what others do."""
    forward_ps, backward_ps = part.forward_ps, part.backward_ps
    for other in others:
        forward_ps += other.forward_ps
        backward_ps += other.backward_ps
    return Part(part.name, part.params, forward_ps, backward_ps)


def different_names(names: Sequence[str]) -> list[str]:
    """Return names that are such, each once: what comes again gets a number.

    >>> different_names(["mlp", "mlp", "a<b>", "mlp"])
    ['mlp', 'mlp:2', 'a_b_', 'mlp:3']
    """
    plain = [name_of_file(name) for name in names]
    taken = set(plain)
    seen: dict[str, int] = {}
    found = []
    for name in plain:
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            name, seen[name] = _numbered(name, seen[name], taken)
        found.append(name)
    return found


def _numbered(name: str, number: int, taken: set[str]) -> tuple[str, int]:
    """Return a name with the next number that nobody has, and that number."""
    while True:
        ending = f":{number}"
        numbered = f"{name[: LONGEST_NAME - len(ending)].rstrip()}{ending}"
        if numbered not in taken:
            taken.add(numbered)
            return numbered, number
        number += 1


def not_data_parallel(where: str, what: str) -> WorkloadError:
    """Return the refusal of training in which workers share more than gradients."""
    return WorkloadError(
        f"{where}: {what}; "
        "accepted: data-parallel training, in which workers sum gradients (all-reduce) and nothing else"
    )


def listed(names: Iterable[str], most: int = 3) -> str:
    """Return some names for a sentence.

    >>> listed(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    all_names = [shown(name, 60).strip("'\"") for name in names]
    more = f" and {len(all_names) - most} more" if len(all_names) > most else ""
    return ", ".join(all_names[:most]) + more
