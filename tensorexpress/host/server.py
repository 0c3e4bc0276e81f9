"""A parameter server: sums the slices that it is given when every worker's part is there, and sends the sums back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tensorexpress.host.gradients import Floats, elements_of
from tensorexpress.host.tagging import Tag, Tagger
from tensorexpress.host.training import Station, slice_tags
from tensorexpress.host.worker import pull_number, push_number
from tensorexpress.plan import Plan
from tensorexpress.units import serialisation_ps
from tensorexpress.wire.header import Kind


class _Sum:
    """One slice: every worker's part of it, and how far the present iteration is."""

    __slots__ = ("deadline_ps", "iteration", "missing", "parts")

    def __init__(self, workers: int, elements: int):
        self.parts: Floats = np.empty((workers, elements), dtype=np.float32)
        self.iteration = 0
        self.missing = workers
        #: The earliest of all workers.
        self.deadline_ps: int | None = None


class Server:
    """One server of a job."""

    def __init__(self, station: Station, plan: Plan, job: int, host: int):
        self._station, self._plan = station, plan.jobs[job]
        self._rounds = plan.scenario.rounds
        self._workers = [plan.scenario.cluster.hosts[worker] for worker in self._plan.job.workers]
        self._index = {name: index for index, name in enumerate(self._workers)}
        tagger = Tagger(plan, job=job)
        self._tags = slice_tags(plan, tagger, Kind.PARAMETERS)
        self._sums = {
            number: _Sum(len(self._workers), part.stop - part.start)
            for number, (piece, part) in enumerate(zip(self._plan.slices, elements_of(self._plan), strict=True))
            if piece.server == host
        }
        self._left = self._rounds * len(self._sums)
        station.play(self, job, Kind.GRADIENT)

    @property
    def done(self) -> bool:
        """Whether the sums of all iterations have been handed to the transport."""
        return self._left == 0

    def buffer_for(self, source: str, tag: Tag, size: int) -> Floats | None:
        """Return the memory for a worker's part of a slice, in the iteration that is due."""
        due, worker = self._sums.get(tag.message), self._index.get(source)
        if due is None or worker is None or tag.iteration != due.iteration or size != due.parts[worker].nbytes:
            return None
        part: Floats = due.parts[worker]
        return part

    def delivered(self, source: str, tag: Tag) -> None:
        """Sum a slice when the last worker's part of it has come."""
        due = self._sums[tag.message]
        number = push_number(tag.message, self._index[source], len(self._workers))
        now_ps = self._station.note_delivered(number, tag)
        due.deadline_ps = tag.deadline_ps if due.deadline_ps is None else min(due.deadline_ps, tag.deadline_ps)
        due.missing -= 1
        if due.missing:
            return
        total: Floats = np.add.reduce(due.parts, axis=0)
        answer = replace(self._tags[tag.message], iteration=due.iteration, deadline_ps=due.deadline_ps)
        due.iteration, due.missing, due.deadline_ps = due.iteration + 1, len(self._workers), None
        rate_bps = self._plan.job.sum_rate_bps
        if rate_bps:
            ready_ps = now_ps + serialisation_ps(self._plan.slices[tag.message].bytes, rate_bps)
            self._station.call_at(ready_ps, lambda: self._answer(answer, total, ready_ps))
        else:
            self._answer(answer, total, now_ps)

    def _answer(self, tag: Tag, total: Floats, ready_ps: int) -> None:
        slices = len(self._plan.slices)
        for index, worker in enumerate(self._workers):
            number = pull_number(tag.message, index, len(self._workers), slices)
            self._station.send(worker, number, replace(tag, worker=index), total, ready_ps)
        self._left -= 1
