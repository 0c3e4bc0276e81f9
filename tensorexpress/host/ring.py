"""A worker of a ring: reduce-scatter, then all-gather, a segment of every slice at a time.

With n workers, segment s of a slice travels from worker s on around the ring. In its first n - 1 steps every worker
adds its own gradient (reduce), in the next n - 1 steps the sum goes around (gather). At step k worker s + k sends it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tensorexpress.host.gradients import FLOAT_BYTES, Floats
from tensorexpress.host.tagging import Tag
from tensorexpress.host.training import Station
from tensorexpress.host.worker import Worker
from tensorexpress.wire.header import Kind


class _Step(NamedTuple):
    """Which segment of which slice is sent for the how-manieth time."""

    number: int
    segment: int
    step: int


class RingWorker(Worker):
    """A worker that exchanges gradients with its neighbours in a ring."""

    def _join(self, station: Station, job: int) -> None:
        self._steps = 2 * (self._workers - 1)
        hosts = self._plan.job.workers
        self._next = self._hosts[hosts[(self.index + 1) % self._workers]]
        self._previous = self._hosts[hosts[self.index - 1]]
        #: What was received, by (slice, step); at one worker the step says which segment it is.
        self._received: dict[tuple[int, int], Floats] = {}
        #: Sums on their way that came before the own gradient: by tensor, with their deadlines.
        self._early: list[list[tuple[_Step, int]]] = [[] for _ in self._slices_of]
        #: Gradients that are ready, by tensor.
        self._ready = [0] * len(self._slices_of)
        station.play(self, job, Kind.GRADIENT)
        station.play(self, job, Kind.PARAMETERS)

    def _parts_of_an_update(self, tensor: int) -> int:
        return len(self._slices_of[tensor]) * self._workers

    def _elements(self, number: int, segment: int) -> slice:
        """Return the elements of its tensor that a segment of a slice holds; there may be none."""
        part = self._parts[number]
        count = part.stop - part.start
        start, stop = (part.start + count * end // self._workers for end in (segment, segment + 1))
        return slice(start, stop)

    def _gradient_ready(self, tensor: int, ready_ps: int) -> None:
        self._ready[tensor] += 1
        for number in self._slices_of[tensor]:
            own = self._elements(number, self.index)
            gradient = self._gradients.of(self.index, self._pass, tensor, own)
            deadline_ps = self._tagger.deadline_ps(number)
            self._send(_Step(number, self.index, 0), self._pass, gradient, deadline_ps, ready_ps)
        early, self._early[tensor] = self._early[tensor], []
        for step, deadline_ps in early:
            self._add(step, self._pass, deadline_ps, ready_ps)
        for number in self._slices_of[tensor]:
            for segment in range(self._workers):
                if self._is_empty(number, segment):
                    self._station.call_at(ready_ps, lambda: self._take(tensor, ready_ps))

    def _is_empty(self, number: int, segment: int) -> bool:
        elements = self._elements(number, segment)
        return bool(elements.start == elements.stop)

    def _send(self, step: _Step, iteration: int, payload: Floats, deadline_ps: int, ready_ps: int) -> None:
        if not payload.size:
            return
        tag = replace(
            self._tags[step.number],
            iteration=iteration,
            message=self._message(step),
            kind=Kind.GRADIENT if step.step < self._workers - 1 else Kind.PARAMETERS,
            deadline_ps=deadline_ps,
        )
        self._station.send(self._next, tag.message, tag, payload, ready_ps)

    def _message(self, step: _Step) -> int:
        """Return the number of a message in its iteration; the simulator counts in the same way."""
        return (step.number * self._workers + step.segment) * self._steps + step.step

    def _step(self, message: int) -> _Step:
        rest, step = divmod(message, self._steps)
        return _Step(*divmod(rest, self._workers), step)

    def buffer_for(self, source: str, tag: Tag, size: int) -> Floats | None:
        """Return the memory for a segment that the neighbour passes on."""
        step = self._step(tag.message)
        is_mine = (step.segment + step.step + 1) % self._workers == self.index and source == self._previous
        if not is_mine or not 0 <= step.number < len(self._parts):
            return None
        elements = self._elements(step.number, step.segment)
        if size != FLOAT_BYTES * (elements.stop - elements.start):
            return None
        memory: Floats = np.empty(elements.stop - elements.start, dtype=np.float32)
        self._received[step.number, step.step] = memory
        return memory

    def delivered(self, source: str, tag: Tag) -> None:
        """Add the own gradient and pass it on, or take the sum, and pass it on to who does not have it yet."""
        step = self._step(tag.message)
        tensor = self._plan.slices[step.number].tensor
        now_ps = self._station.note_delivered(tag.message, tag)
        if step.step >= self._workers - 1:
            total = self._received.pop((step.number, step.step))
            if step.step + 1 < self._steps:
                self._send(step._replace(step=step.step + 1), tag.iteration, total, tag.deadline_ps, now_ps)
            self._take_sum(step, tag.iteration, total, now_ps)
        elif self._ready[tensor] > tag.iteration:
            self._add(step, tag.iteration, tag.deadline_ps, now_ps)
        else:
            self._early[tensor].append((step, tag.deadline_ps))

    def _add(self, step: _Step, iteration: int, deadline_ps: int, now_ps: int) -> None:
        tensor = self._plan.slices[step.number].tensor
        own = self._gradients.of(self.index, iteration, tensor, self._elements(step.number, step.segment))
        total: Floats = self._received.pop((step.number, step.step)) + own
        after = step._replace(step=step.step + 1)
        self._send(after, iteration, total, deadline_ps, now_ps)
        if after.step == self._workers - 1:
            self._take_sum(step, iteration, total, now_ps)

    def _take_sum(self, step: _Step, iteration: int, total: Floats, now_ps: int) -> None:
        tensor = self._plan.slices[step.number].tensor
        self._check(self._previous, iteration, tensor, self._elements(step.number, step.segment), total)
        self._take(tensor, now_ps)
