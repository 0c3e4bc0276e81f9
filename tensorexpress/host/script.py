"""A worker whose gradients a training script makes: what `worker.Worker` is to emulated compute.

The script is another process, with which this one has memory in common (script_memory.py). The host sends what the
script has made ready, as the plan says, and puts sums where the script finds them; it never waits for the script.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tensorexpress.fixed_point import HIGHEST, exponents_needed, in_blocks, rounding_error
from tensorexpress.host.gradients import Floats, elements_of, wrong_element
from tensorexpress.host.pool import COARSEST
from tensorexpress.host.tagging import Tagger
from tensorexpress.host.training import Station
from tensorexpress.host.worker import Exchanging
from tensorexpress.plan import JobPlan, Plan
from tensorexpress.script_memory import AT, STALL, Longs, ScriptMemory, drain, wake
from tensorexpress.sums import VALUES

_PS_PER_NS = 1000

#: Later than all times.
_NEVER = np.iinfo(np.int64).max

#: Half of the distance between 1 and the next number, and the smallest number, of float32.
_ROUNDING, _SMALLEST = 2.0**-24, 2.0**-149


def layer_elements(plan: JobPlan) -> list[int]:
    """Return how many numbers every layer of a job has."""
    ends = [0] * len(plan.ranks)
    for piece, part in zip(plan.slices, elements_of(plan), strict=True):
        ends[piece.tensor] = max(ends[piece.tensor], part.stop)
    return ends


class ScriptTensors:
    """Gradients in the memory of scripts; sums go there, too."""

    def __init__(self, plan: JobPlan, memories: Mapping[int, ScriptMemory], checks: bool):
        """Know some workers' memories; with those of all, every sum can be checked."""
        self._memories, self._checks = memories, checks
        self._in_switches = {piece.tensor for piece in plan.summed}

    def of(self, worker: int, iteration: int, tensor: int, elements: slice) -> Floats:
        """Return a part of one worker's gradient."""
        return self._memories[worker].gradient(iteration, tensor)[elements]

    def deliver(self, worker: int, iteration: int, tensor: int, first: int, found: Floats) -> str | None:
        """Put a part of a sum where the worker's script finds it."""
        self._memories[worker].sum(tensor)[first : first + len(found)] = found
        return self.wrong(iteration, tensor, first, found)

    def wrong(self, iteration: int, tensor: int, first: int, found: Floats) -> str | None:
        """Return which element is further from the sum of all gradients than rounding explains."""
        if not self._checks:
            return None
        gradients = [
            self.of(worker, iteration, tensor, slice(first, first + len(found))) for worker in sorted(self._memories)
        ]
        expected: NDArray[np.float64] = np.asarray(np.sum(gradients, axis=0, dtype=np.float64))
        if not np.isfinite(expected).all():
            return None
        bound = sum_error(gradients, in_switches=tensor in self._in_switches)
        # A comparison with NaN is false.
        is_right = np.abs(found - expected) <= bound
        return wrong_element(np.where(is_right, expected, found).astype(np.float32), expected.astype(np.float32), first)


def sum_error(gradients: Sequence[Floats], in_switches: bool) -> NDArray[np.float64]:
    """Return how far every element of a sum may be from the exact one.

    Every addition of float32 rounds by half a unit of at most the sum of all magnitudes. Switches add whole numbers,
    which are rounded before; their result is rounded to float32 once.

    >>> gradients = [np.float32([1, 3]), np.float32([2, -3])]
    >>> [sum_error(gradients, in_switches).max() <= 2.0**-20 for in_switches in (False, True)]
    [True, True]
    """
    workers = len(gradients)
    magnitudes = np.sum(np.abs(gradients), axis=0, dtype=np.float64)
    error = np.asarray(workers * (_ROUNDING * magnitudes + _SMALLEST))
    if not in_switches:
        return error
    needed = np.max([exponents_needed(in_blocks(gradient)) for gradient in gradients], axis=0)
    coarsest = np.minimum(needed + COARSEST, HIGHEST)
    return np.asarray(error + np.repeat(rounding_error(coarsest, workers), VALUES)[: len(error)])


class ScriptWorker:
    """One worker of a job, whose gradients a script makes."""

    def __init__(
        self,
        station: Station,
        plan: Plan,
        job: int,
        index: int,
        exchange: Exchanging,
        *,
        memory: ScriptMemory,
        channel: socket.socket,
        progress: Callable[[int], None] = lambda iteration: None,
    ):
        """Be the index-th worker of a job; `channel` leads to the script."""
        self.index = index
        self._station, self._exchange, self._memory, self._channel = station, exchange, memory, channel
        self._progress = progress
        self._tagger = Tagger(plan, job=job, worker=index)
        self._rounds, layers = plan.scenario.rounds, len(plan.jobs[job].ranks)
        #: Of each layer: how many gradients were given away, and how many updates are complete.
        self._given, self._updates = np.zeros(layers, dtype=np.int64), [0] * layers
        self._pass = 0
        self.updated_ps: NDArray[np.int64] = np.full((self._rounds, layers), -1, dtype=np.int64)
        exchange.join(index, self._tagger, self._updated)
        station.keep_until(lambda: self.done)

    @property
    def done(self) -> bool:
        """Whether all updates are complete, and the script has nothing left to do."""
        return min(self._updates) == self._rounds and self._memory.finished

    def start(self, at_ps: int) -> None:
        """Let the script begin at a time of the station's clock."""
        self._station.endpoint.watch(self._channel.fileno(), self._take)
        self._station.call_at(at_ps, lambda: self._begin(at_ps))

    def _begin(self, at_ps: int) -> None:
        self._tagger.begin(0, at_ps)
        self._memory.start()
        wake(self._channel)

    def _take(self) -> None:
        """Give away all gradients that have become ready, in the order in which they did."""
        if not drain(self._channel):
            # Whoever started the script knows why it has ended.
            self._station.endpoint.watch(self._channel.fileno(), None)
        ready = self._memory.ready.copy()
        times_ns = self._memory.made[:, :, AT]
        while True:
            layers = np.flatnonzero((ready > self._given) & (self._given == self._pass))
            if not len(layers):
                return
            own_ns = times_ns[self._pass]
            for layer in sorted(layers.tolist(), key=lambda layer: int(own_ns[layer])):
                self._given[layer] += 1
                ready_ps = int(own_ns[layer]) * _PS_PER_NS
                self._tagger.ready(layer, ready_ps)
                self._exchange.gradient_ready(self.index, layer, ready_ps)
            if self._given.min() > self._pass:
                self._pass += 1
                self._progress(self._pass)
                self._tagger.begin(self._pass, int(own_ns.max()) * _PS_PER_NS)

    def _updated(self, tensor: int, now_ps: int) -> None:
        """Tell the script of a sum."""
        self.updated_ps[self._updates[tensor], tensor] = now_ps
        self._updates[tensor] += 1
        self._memory.summed[tensor] = self._updates[tensor]
        wake(self._channel)

    def times_ps(self) -> dict[str, NDArray[np.int64]]:
        """Return when layers started and how long they took, by names that a run has for these."""
        memory, updated_ns = self._memory, self.updated_ps // _PS_PER_NS
        times = pass_times(memory.arrived, memory.backward, memory.made, memory.stepped, updated_ns)
        return {name: each * _PS_PER_NS for name, each in times.items()}


def pass_times(arrived: Longs, begun: Longs, made: Longs, stepped: Longs, updated_ns: Longs) -> dict[str, Longs]:
    """Return when layers of all passes started and how long they computed, as in a trace, and when steps were made.

    Given are marks of a script (script_memory.py), 0 where it made none. It came to a layer, by (pass, layer); it began
    a backward pass, and made a step, by iteration, and was through after the last; it had made a gradient, by
    (iteration, layer). `updated_ns` has the time of every update.

    A forward layer has the time until the script comes to the next one, a backward layer that until its gradient is
    made, the first forward layer also that since the last gradient. A part of that time is stall, wherever in it the
    script waited; a trace has it before the layer, which then computes for the rest of the time.
    """
    rounds = len(made)
    arrived = _ordered(arrived)
    begun = np.maximum(begun, arrived[:rounds, -1])
    made = np.maximum(np.maximum.accumulate(made[:, ::-1], axis=1), begun[:, None])
    arrived[1:] = np.maximum(arrived[1:], made[:, -1:])
    # After the last iteration there need be no forward pass; then it is one that computes as the one before.
    for layer in np.flatnonzero(arrived[-1, :, AT] == _NEVER).tolist():
        if layer:
            own_ns = _compute(arrived[-2, layer - 1], arrived[-2, layer])
            arrived[-1, layer] = _after(arrived[-1, layer - 1], updated_ns[-1, layer - 1], own_ns)
        else:
            # One iteration alone has no time between two.
            own_ns = _compute(stepped[-3], arrived[-2, 0]) if rounds > 1 else 0
            stall_ns = stepped[-1, STALL] - stepped[-2, STALL]
            arrived[-1, 0] = _after(stepped[-2], stepped[-2, AT] + stall_ns, own_ns)
    end = _after(arrived[-1, -1], updated_ns[-1, -1], _compute(arrived[-2, -1], begun[-1]))
    forward_from = arrived.copy()
    forward_from[1:, 0] = made[:, -1]
    forward_to = np.concatenate([arrived[:, 1:], np.append(begun, [end], axis=0)[:, None]], axis=1)
    backward_from = np.concatenate([begun[:, None], made[:, :-1]], axis=1)
    forward_start, forward = _after_stall(forward_from, forward_to)
    backward_start, backward = _after_stall(backward_from, made)
    return {
        "forward_start": forward_start,
        "backward_start": backward_start[:, ::-1],
        "forward": forward,
        "backward": backward[:, ::-1],
        "stepped": stepped[:-1, AT],
    }


def _compute(start: Longs, end: Longs) -> int:
    """Return the time between two marks that is no stall."""
    between = end - start
    return int(between[AT] - between[STALL])


def _after(mark: Longs, updated_ns: int, own_ns: int) -> Longs:
    """Return the mark after a stall until an update, and some compute."""
    stall_ns = max(0, int(updated_ns - mark[AT]))
    return np.asarray(mark + np.array([stall_ns + own_ns, stall_ns]))


def _after_stall(start: Longs, end: Longs) -> tuple[Longs, Longs]:
    """Return when layers start that stall first, and how long they take from then on."""
    between = end - start
    stall_ns = np.clip(between[..., STALL], 0, between[..., AT])
    return start[..., AT] + stall_ns, between[..., AT] - stall_ns


def _ordered(marks: Longs) -> Longs:
    """Return marks in which every layer of a pass comes after those before it, and one that was not reached with the
    next; where there is none, never."""
    known = np.where(marks[..., AT:STALL] == 0, _NEVER, marks)
    known = np.minimum.accumulate(known[:, ::-1], axis=1)[:, ::-1].copy()
    # Only the last pass may end early.
    known[:-1] = np.where(known[:-1] == _NEVER, marks[:-1].max(axis=1, keepdims=True), known[:-1])
    return known
