"""A worker: computes forward and backward passes, gives gradients away, and waits for the parameters it needs next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tensorexpress.changes import Paces
from tensorexpress.compute import compute_times
from tensorexpress.host.exchange import Updated
from tensorexpress.host.tagging import Tagger
from tensorexpress.host.training import Station
from tensorexpress.plan import Plan

#: Computes one layer of one pass (forward?, iteration, layer), or pretends to; returns the ps that it takes.
Compute = Callable[[bool, int, int], int]


class Exchanging(Protocol):
    """What makes parameters of gradients: the exchange of a worker's host, or its part in sums of switches."""

    def join(self, worker: int, tagger: Tagger, updated: Updated) -> None:
        """Let a worker of this host take part."""
        ...

    def gradient_ready(self, worker: int, tensor: int, ready_ps: int) -> None:
        """Give a worker's gradient away."""
        ...


class Worker:
    """One worker of a job. How gradients become parameters is for the exchange of its host.

    Time is kept as the compute times add up: a timer that rings late delays what it starts, but not the next one.
    """

    def __init__(
        self,
        station: Station,
        plan: Plan,
        job: int,
        index: int,
        exchange: Exchanging,
        *,
        compute: Compute | None = None,
        progress: Callable[[int], None] = lambda iteration: None,
    ):
        """Be the index-th worker of a job; `compute` is by default the time that the workload says."""
        self.index = index
        self.done = False
        self._station, self._plan, self._exchange = station, plan.jobs[job], exchange
        self._rounds = plan.scenario.rounds
        self._compute = compute or emulated(plan, job, index)
        # Who computes really takes what it takes.
        self._paces = Paces(plan.scenario.changes if compute is None else ())
        self._host, self._job_start_ps = plan.scenario.jobs[job].workers[index], plan.scenario.jobs[job].start_ps
        #: When the run began, by the station's clock.
        self._began_ps = 0
        self._progress = progress
        self._tagger = Tagger(plan, job=job, worker=index)
        layers = len(self._plan.ranks)
        #: Of each tensor: the updates that are complete.
        self._updates = [0] * layers
        self._pass = self._layer = 0
        #: When the layer that is next could start; None while a layer is computed.
        self._could_start_ps: int | None = None
        self.forward_start_ps: NDArray[np.int64] = np.full((self._rounds + 1, layers), -1, dtype=np.int64)
        self.backward_start_ps: NDArray[np.int64] = np.full((self._rounds, layers), -1, dtype=np.int64)
        self.updated_ps: NDArray[np.int64] = np.full((self._rounds, layers), -1, dtype=np.int64)
        exchange.join(index, self._tagger, self._updated)
        station.keep_until(lambda: self.done)

    def start(self, at_ps: int) -> None:
        """Begin the first forward pass at a time of the station's clock."""
        self._began_ps = at_ps - self._job_start_ps
        self._station.call_at(at_ps, lambda: self._begin_pass(at_ps))

    def times_ps(self) -> dict[str, NDArray[np.int64]]:
        """Return when layers started, by names that a run has for these; what they took follows from the scenario."""
        return {"forward_start": self.forward_start_ps, "backward_start": self.backward_start_ps}

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
        end_ps = self._end_ps(start_ps, self._compute(True, self._pass, self._layer))
        self._station.call_at(end_ps, lambda: self._forward_done(end_ps))

    def _end_ps(self, start_ps: int, drawn_ps: int) -> int:
        """Return when a layer ends, at the pace that the worker has when it starts."""
        return start_ps + self._paces.taken_ps(self._host, drawn_ps, start_ps - self._began_ps)

    def _forward_done(self, at_ps: int) -> None:
        self._layer += 1
        if self._layer < len(self._plan.ranks):
            self._go_on(at_ps)
        elif self._pass < self._rounds:
            self._backward(len(self._plan.ranks) - 1, at_ps)
        else:
            self.done = True

    def _backward(self, layer: int, start_ps: int) -> None:
        self.backward_start_ps[self._pass, layer] = start_ps
        end_ps = self._end_ps(start_ps, self._compute(False, self._pass, layer))
        self._station.call_at(end_ps, lambda: self._backward_done(layer, end_ps))

    def _backward_done(self, layer: int, at_ps: int) -> None:
        self._tagger.ready(layer, at_ps)
        self._exchange.gradient_ready(self.index, layer, at_ps)
        if layer:
            self._backward(layer - 1, at_ps)
        else:
            self._pass += 1
            self._progress(self._pass)
            self._begin_pass(at_ps)

    def _updated(self, tensor: int, now_ps: int) -> None:
        """Note that a tensor's update is complete; go on if it was what the next layer waited for."""
        self.updated_ps[self._updates[tensor], tensor] = now_ps
        self._updates[tensor] += 1
        if self._could_start_ps is not None and tensor == self._layer:
            self._go_on(self._could_start_ps)


def emulated(plan: Plan, job: int, index: int) -> Compute:
    """Return a compute that takes the time that the scenario says, jitter and stragglers included."""
    forward, backward = compute_times(plan.scenario, plan.scenario.rounds)[job]
    times = {True: forward[:, index].tolist(), False: backward[:, index].tolist()}
    return lambda is_forward, iteration, layer: int(times[is_forward][iteration][layer])
