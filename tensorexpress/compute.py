"""Compute times: how long every layer of every pass takes at every worker, drawn once for all who execute a plan."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tensorexpress.scenario import Scenario

Ints = NDArray[np.int64]


def compute_times(scenario: Scenario, rounds: int) -> list[tuple[Ints, Ints]]:
    """Return (forward, backward) of every job in ps by (pass, worker, layer), with jitter, stragglers and overhead.

    They follow from the seed alone, so every policy meets the same ones, simulated or run. There is one pass more than
    `rounds`, as a run ends with a forward pass.

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
        times.append((forward, backward))
    return times
