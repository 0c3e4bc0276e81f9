"""A worker: computes forward and backward passes, gives gradients away, and waits for the parameters it needs next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tensorexpress.compute import compute_times
from tensorexpress.errors import NetworkError
from tensorexpress.host.gradients import Floats, elements_of, gradients_of
from tensorexpress.host.tagging import Tag, Tagger
from tensorexpress.host.training import Station, slice_tags
from tensorexpress.plan import Plan
from tensorexpress.wire.header import Kind

#: Computes one layer of one pass (forward?, iteration, layer), or pretends to; returns the ps that it takes.
Compute = Callable[[bool, int, int], int]


class Worker(ABC):
    """What all workers do; how gradients become parameters is for subclasses.

    Time is kept as the compute times add up: a timer that rings late delays what it starts, but not the next one.
    """

    def __init__(
        self,
        station: Station,
        plan: Plan,
        job: int,
        index: int,
        *,
        compute: Compute | None = None,
        progress: Callable[[int], None] = lambda iteration: None,
    ):
        """Be the index-th worker of a job; `compute` is by default the time that the workload says."""
        self.index = index
        self.done = False
        self._station, self._plan = station, plan.jobs[job]
        self._hosts = plan.scenario.cluster.hosts
        self._workers = len(self._plan.job.workers)
        self._rounds = plan.scenario.rounds
        self._compute = compute or emulated(plan, job, index)
        self._progress = progress
        self._gradients = gradients_of(self._plan, plan.scenario.seed)
        self._parts = elements_of(self._plan)
        self._tagger = Tagger(plan, job=job, worker=index)
        self._tags = slice_tags(plan, self._tagger, Kind.GRADIENT)
        layers = len(self._plan.ranks)
        self._slices_of: list[list[int]] = [[] for _ in range(layers)]
        for number, piece in enumerate(self._plan.slices):
            self._slices_of[piece.tensor].append(number)
        #: Of each tensor: the updates that are complete, and the parts that the next one lacks.
        self._updates = [0] * layers
        self._missing = [self._parts_of_an_update(tensor) for tensor in range(layers)]
        self._pass = self._layer = 0
        #: When the layer that is next could start; None while a layer is computed.
        self._could_start_ps: int | None = None
        self.forward_start_ps: NDArray[np.int64] = np.full((self._rounds + 1, layers), -1, dtype=np.int64)
        self.updated_ps: NDArray[np.int64] = np.full((self._rounds, layers), -1, dtype=np.int64)
        self._join(station, job)

    @abstractmethod
    def _join(self, station: Station, job: int) -> None:
        """Prepare what this kind of worker needs beside, and say which messages of the job it takes."""

    def start(self, at_ps: int) -> None:
        """Begin the first forward pass at a time of the station's clock."""
        self._station.call_at(at_ps, lambda: self._begin_pass(at_ps))

    def _begin_pass(self, at_ps: int) -> None:
        self._layer = 0
        self._tagger.begin(self._pass, at_ps)
        self._go_on(at_ps)

    def _go_on(self, could_start_ps: int) -> None:
        """Compute the next forward layer, now or when its parameters come."""
        if self._updates[self._layer] < self._pass:
            self._could_start_ps = could_start_ps
            return
        self._could_start_ps = None
        updated_ps = self.updated_ps[self._pass - 1, self._layer] if self._pass else 0
        start_ps = max(could_start_ps, int(updated_ps))
        self.forward_start_ps[self._pass, self._layer] = start_ps
        end_ps = start_ps + self._compute(True, self._pass, self._layer)
        self._station.call_at(end_ps, lambda: self._forward_done(end_ps))

    def _forward_done(self, at_ps: int) -> None:
        self._layer += 1
        if self._layer < len(self._plan.ranks):
            self._go_on(at_ps)
        elif self._pass < self._rounds:
            self._backward(len(self._plan.ranks) - 1, at_ps)
        else:
            self.done = True

    def _backward(self, layer: int, start_ps: int) -> None:
        end_ps = start_ps + self._compute(False, self._pass, layer)
        self._station.call_at(end_ps, lambda: self._backward_done(layer, end_ps))

    def _backward_done(self, layer: int, at_ps: int) -> None:
        self._tagger.ready(layer, at_ps)
        self._gradient_ready(layer, at_ps)
        if layer:
            self._backward(layer - 1, at_ps)
        else:
            self._pass += 1
            self._progress(self._pass)
            self._begin_pass(at_ps)

    @abstractmethod
    def _gradient_ready(self, tensor: int, ready_ps: int) -> None:
        """Give a gradient of the present pass away."""

    @abstractmethod
    def _parts_of_an_update(self, tensor: int) -> int:
        """Return how many calls of `_take` make an update of a tensor."""

    def _take(self, tensor: int, now_ps: int) -> None:
        """Note that a part of a tensor's update is here; go on if it was the last that the next layer waited for."""
        self._missing[tensor] -= 1
        if self._missing[tensor]:
            return
        self._missing[tensor] = self._parts_of_an_update(tensor)
        self.updated_ps[self._updates[tensor], tensor] = now_ps
        self._updates[tensor] += 1
        if self._could_start_ps is not None and tensor == self._layer:
            self._go_on(self._could_start_ps)

    def _check(self, source: str, iteration: int, tensor: int, elements: slice, found: Floats) -> None:
        """Raise NetworkError when elements of a tensor are not the sums of all workers' gradients."""
        expected = self._gradients.total(iteration, tensor, elements)
        if not np.array_equal(found, expected):
            place = int(np.flatnonzero(found != expected)[0])
            raise NetworkError(
                f"{self._station.name}: in iteration {iteration}, {self._plan.job.workload.layers[tensor].name} from "
                f"{source} is not the sum of all gradients: element {elements.start + place} is {found[place]}, "
                f"not {expected[place]}"
            )


class ServedWorker(Worker):
    """A worker of a job with parameter servers: pushes slices of gradients, and gets their sums back."""

    def _join(self, station: Station, job: int) -> None:
        self._parameters: list[Floats] = [np.empty(part.stop - part.start, dtype=np.float32) for part in self._parts]
        station.play(self, job, Kind.PARAMETERS)

    def _parts_of_an_update(self, tensor: int) -> int:
        return len(self._slices_of[tensor])

    def _gradient_ready(self, tensor: int, ready_ps: int) -> None:
        for number in self._slices_of[tensor]:
            tag = replace(self._tags[number], iteration=self._pass, deadline_ps=self._tagger.deadline_ps(number))
            gradient = self._gradients.of(self.index, self._pass, tensor, self._parts[number])
            server = self._hosts[self._plan.slices[number].server]
            self._station.send(server, push_number(number, self.index, self._workers), tag, gradient, ready_ps)

    def buffer_for(self, source: str, tag: Tag, size: int) -> Floats | None:
        """Return the memory for a slice of the update that is due."""
        if not 0 <= tag.message < len(self._parts):
            return None
        piece, memory = self._plan.slices[tag.message], self._parameters[tag.message]
        due = tag.iteration == self._updates[piece.tensor] and source == self._hosts[piece.server]
        return memory if due and size == memory.nbytes else None

    def delivered(self, source: str, tag: Tag) -> None:
        """Check the sum of a slice, and take it."""
        number, tensor = tag.message, self._plan.slices[tag.message].tensor
        self._check(source, tag.iteration, tensor, self._parts[number], self._parameters[number])
        pull = pull_number(number, self.index, self._workers, len(self._parts))
        self._take(tensor, self._station.note_delivered(pull, tag))


def push_number(number: int, worker: int, workers: int) -> int:
    """Return the number of the message with which a worker pushes a slice; the simulator counts in the same way."""
    return number * workers + worker


def pull_number(number: int, worker: int, workers: int, slices: int) -> int:
    """Return the number of the message that brings a slice's sum to a worker."""
    return slices * workers + push_number(number, worker, workers)


def emulated(plan: Plan, job: int, index: int) -> Compute:
    """Return a compute that takes the time that the scenario says, jitter and stragglers included."""
    forward, backward = compute_times(plan.scenario, plan.scenario.rounds)[job]
    times = {True: forward[:, index].tolist(), False: backward[:, index].tolist()}
    return lambda is_forward, iteration, layer: int(times[is_forward][iteration][layer])
