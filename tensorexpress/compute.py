"""Compute times: how long every layer of every pass takes at every worker, drawn once for all who execute a plan."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tensorexpress.changes import Change, Paces, slowed_all_ps
from tensorexpress.scenario import Job, Scenario

Ints = NDArray[np.int64]


def compute_times(scenario: Scenario, rounds: int) -> list[tuple[Ints, Ints]]:
    """Return (forward, backward) of every job in ps by (pass, worker, layer), with jitter, stragglers and overhead.

    They follow from the seed alone, so every policy meets the same ones, simulated or run. There is one pass more than
    `rounds`, as a run ends with a forward pass. Changes that come with an iteration are in them; what those make of
    them that come at a time, `taken_times` says.

    >>> from tensorexpress.scenario import read_scenario
    >>> [(forward, backward)] = compute_times(read_scenario(overrides=["job.workers=2"]), rounds=3)
    >>> forward.shape[:2], bool((forward[0, 0] == forward[3, 1]).all())
    ((4, 2), True)
    """
    slower = dict(scenario.stragglers)
    spread = np.sqrt(np.log1p(scenario.jitter**2))
    times = []
    for index, job in enumerate(scenario.jobs):
        rng = np.random.default_rng([scenario.seed, index])
        # Log-normal with mean 1, so that jitter makes iterations uneven but not longer on average.
        noise = np.exp(rng.normal(-(spread**2) / 2, spread, (2, rounds + 1, len(job.workers), 1)))
        factor = noise * np.array([slower.get(host, 1.0) for host in job.workers])[:, None]
        layers = job.workload.layers
        forward, backward = (
            np.rint(np.array(base) * scale).astype(np.int64)
            for base, scale in (
                ([layer.forward_ps for layer in layers], factor[0]),
                ([layer.backward_ps for layer in layers], factor[1]),
            )
        )
        forward[:, :, 0] += job.overhead_ps
        for change in scenario.changes:
            if change.by_iteration:
                _change_iterations(job, change, forward, backward)
        times.append((forward, backward))
    return times


def _change_iterations(job: Job, change: Change, forward: Ints, backward: Ints) -> None:
    """Change the pace of a worker in whole iterations, each of which begins with the last layer of a forward pass."""
    own = np.array([host == change.worker for host in job.workers])[:, None]
    pace = np.int64(change.pace)
    for iteration in change.iterations(len(backward) - 1):
        for part in (forward[iteration, :, -1:], backward[iteration], forward[iteration + 1, :, :-1]):
            part[:] = np.where(own, slowed_all_ps(part, pace), part)


def taken_times(scenario: Scenario, number: int, forward_start_ps: Ints, backward_start_ps: Ints) -> tuple[Ints, Ints]:
    """Return what the layers of a job took, from when they started: as drawn, or as changes made it meanwhile."""
    forward, backward = compute_times(scenario, scenario.rounds)[number]
    hosts, paces = scenario.jobs[number].workers, Paces(scenario.changes)
    return (
        paces.all_taken_ps(hosts, forward, forward_start_ps),
        paces.all_taken_ps(hosts, backward[:-1], backward_start_ps),
    )
