"""Sweeps: predictions over all values of one or more scenario keys, on all cores or on a cluster of machines."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from tensorexpress.errors import InputError
from tensorexpress.policy import POLICIES, Policy
from tensorexpress.results.columns import JobResult
from tensorexpress.results.swept import Point, Sweep
from tensorexpress.scenario import Study, chosen_policies, scenario_from, study_from
from tensorexpress.scenario_document import Override, merge
from tensorexpress.scenario_keys import USUAL_POLICIES
from tensorexpress.sim.predict import announce_simpy
from tensorexpress.sim.processes import LocalProcesses
from tensorexpress.sim.tasks import Executor, Simulated, SimulationTask, read_base, result_of
from tensorexpress.units import format_rate
from tensorexpress.vary import MOST_POINTS, parse_vary

#: How far a sweep of the bandwidth goes to both sides of the scenario's own when no key is named, and its steps.
_USUAL_FACTOR, _USUAL_STEPS = 8, 11


def usual_vary(path: str | Path | None = None, overrides: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
    """Return what is varied when no key is named: the bandwidth, from an eighth to eight times the scenario's own.

    >>> usual_vary()["cluster.bandwidth"][::5]
    ('1.25 Gbps', '10 Gbps', '80 Gbps')
    """
    document = merge(*read_base(path), overrides)
    own_bps = document.table("cluster")["bandwidth"]
    ends = f"{format_rate(max(1, own_bps // _USUAL_FACTOR))}:{format_rate(own_bps * _USUAL_FACTOR)}"
    return dict([parse_vary(f"cluster.bandwidth={ends}:{_USUAL_STEPS}:log")])


def sweep(
    base: str | Path | Mapping[str, Any] | None,
    overrides: Sequence[str],
    vary: Mapping[str, Sequence[object]],
    policies: Sequence[str] = (),
    engine: str = "auto",
    on_point: Callable[[Point], None] | None = None,
    processes: int | None = None,
    executor: Executor | None = None,
    on_simulation: Callable[[], None] = lambda: None,
) -> Sweep:
    """Predict a scenario at every combination of the values in `vary`, which maps keys to values.

    `base` is a scenario file, or a dict of keys such as `make_scenario` takes, or None for the default scenario.
    `policies` replaces the scenario's own, and fifo is always added: it is what the others are compared with. Every
    point is checked before the first simulation. `on_point` gets each point as soon as it is finished, in any order.
    `on_simulation` is called after each simulation, one per point and policy.
    Ctrl-C ends the sweep early; what is returned then holds the points that are finished. `executor` says where to
    simulate, if not in `processes` of this machine.

    As always with processes, a script that calls this does so below `if __name__ == "__main__":`.
    """
    varied = {key: tuple(map(_text, values)) for key, values in vary.items()}
    combinations = _combinations(varied)
    content, source = read_base(base)
    common: tuple[str | Override, ...] = (*overrides, *chosen_policies(policies))
    points = [
        tuple(Override(f"{key}={value}", f"--vary {key}") for key, value in zip(varied, values, strict=True))
        for values in combinations
    ]
    first, named = _checked(content, source, common, points)
    compared = _with_fifo(named or tuple(POLICIES[name] for name in USUAL_POLICIES))
    tasks = [
        SimulationTask(index, f"point {_label(point)}", content, source, (*common, *point), policy, engine)
        for index, point in enumerate(points)
        for policy in compared
    ]
    announce_simpy(first, compared, engine, per_point=True)
    unfinished: dict[int, dict[str, Simulated]] = {index: {} for index in range(len(points))}
    finished: dict[int, Point] = {}
    with suppress(KeyboardInterrupt), executor or LocalProcesses(processes) as running:
        for task, outcome in running.outcomes(tasks):
            simulated, index = result_of(task, outcome), task.number
            unfinished[index][task.policy.name] = simulated
            on_simulation()
            if len(unfinished[index]) == len(compared):
                by_policy = unfinished.pop(index)
                finished[index] = Point(
                    combinations[index],
                    _joined([by_policy[one.name].results for one in compared]),
                    replace(simulated.provenance, policies=tuple(one.name for one in compared)),
                )
                if on_point is not None:
                    on_point(finished[index])
    return Sweep(
        scenario=first,
        vary=varied,
        policies=compared,
        points=tuple(finished[index] for index in sorted(finished)),
    )


def _text(value: object) -> str:
    """Return a value of a key as one would write it after KEY=; numbers may come out of numpy."""
    return value if isinstance(value, str) else json.dumps(value.item() if isinstance(value, np.generic) else value)


def _combinations(vary: Mapping[str, Sequence[str]]) -> list[tuple[str, ...]]:
    count = math.prod(map(len, vary.values()))
    if not 0 < count <= MOST_POINTS:
        raise InputError(f"the values of {', '.join(vary)} make {count} points; accepted: 1 to {MOST_POINTS}")
    if "policies" in vary:
        raise InputError("policies cannot be varied; they are compared at every point: name them with --policy")
    return list(product(*vary.values()))


def _checked(
    content: Mapping[str, Any],
    source: str,
    common: tuple[str | Override, ...],
    points: Sequence[tuple[Override, ...]],
) -> Study:
    """Return what is read for the first point once all points are known to be right."""
    first = None
    for point in points:
        try:
            study = study_from(content, source, (*common, *point))
            study.scenario.check_in_step()
        except InputError as error:
            # What is wrong whatever the point is said without one.
            scenario_from(content, source, common)
            raise InputError(f"point {_label(point)}: {error}") from None
        first = first or study
    assert first is not None, "there is at least one point"
    return first


def _label(point: Iterable[Override]) -> str:
    """Return a point in words, for error messages."""
    return ", ".join(override.text for override in point)


def _with_fifo(policies: tuple[Policy, ...]) -> tuple[Policy, ...]:
    named = any(policy.name == "fifo" for policy in policies)
    return policies if named else (POLICIES["fifo"], *policies)


def _joined(results_by_policy: Sequence[Sequence[JobResult]]) -> tuple[JobResult, ...]:
    """Return the results of a point with what can only be known when all of its policies have run."""
    joined = []
    for results in results_by_policy:
        for job, result in enumerate(results):
            same_job = [others[job] for others in results_by_policy]
            fifo_ps = next(other.metrics.iteration_ps for other in same_job if other.policy == "fifo")
            optimal_ps = min(other.optimal_ps for other in same_job)
            joined.append(replace(result, baseline_ps=fifo_ps, optimal_ps=optimal_ps))
    return tuple(joined)
