"""Sweeps: predictions over all values of one or more scenario keys, on all cores.

Simulations run in processes rather than threads: Ctrl-C then ends one in the middle, the parts of a simulation that
are not compiled run side by side too, and so does the SimPy engine.
"""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

from tensorexpress.errors import InputError, SimulationError, TensorExpressError
from tensorexpress.plan import make_plan
from tensorexpress.policy import POLICIES, Policy
from tensorexpress.results.columns import JobResult
from tensorexpress.results.provenance import Provenance
from tensorexpress.results.swept import Point, Sweep
from tensorexpress.scenario import Study, chosen_policies, scenario_from, study_from
from tensorexpress.scenario_document import Override, merge, read_toml
from tensorexpress.scenario_keys import USUAL_POLICIES
from tensorexpress.sim.predict import predict
from tensorexpress.sim.run import simulate
from tensorexpress.units import format_rate
from tensorexpress.vary import MOST_POINTS, parse_vary

#: How far a sweep of the bandwidth goes to both sides of the scenario's own when no key is named, and its steps.
_USUAL_FACTOR, _USUAL_STEPS = 8, 11


@dataclass(frozen=True)
class _Task:
    """One simulation, as it is sent to a process."""

    point: int
    #: The point in words, for error messages.
    label: str
    content: Mapping[str, Any]
    source: str
    overrides: tuple[str | Override, ...]
    policy: Policy
    engine: str


@dataclass(frozen=True)
class _Simulated:
    """What came out of a task: a result for every job."""

    results: tuple[JobResult, ...]
    provenance: Provenance


def usual_vary(path: str | Path | None = None, overrides: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
    """Return what is varied when no key is named: the bandwidth, from an eighth to eight times the scenario's own.

    >>> usual_vary()["cluster.bandwidth"][::5]
    ('1.25 Gbps', '10 Gbps', '80 Gbps')
    """
    document = merge(*_read(path), overrides)
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
) -> Sweep:
    """Predict a scenario at every combination of the values in `vary`, which maps keys to values.

    `base` is a scenario file, or a dict of keys such as `make_scenario` takes, or None for the default scenario.
    `policies` replaces the scenario's own, and fifo is always added: it is what the others are compared with. Every
    point is checked before the first simulation. `on_point` gets each point as soon as it is finished, in any order.
    Ctrl-C ends the sweep early; what is returned then holds the points that are finished.

    As always with processes, a script that calls this does so below `if __name__ == "__main__":`.
    """
    varied = {key: tuple(map(_text, values)) for key, values in vary.items()}
    combinations = _combinations(varied)
    content, source = _read(base)
    common: tuple[str | Override, ...] = (*overrides, *chosen_policies(policies))
    points = [
        tuple(Override(f"{key}={value}", f"--vary {key}") for key, value in zip(varied, values, strict=True))
        for values in combinations
    ]
    first, named = _checked(content, source, common, points)
    compared = _with_fifo(named or tuple(POLICIES[name] for name in USUAL_POLICIES))
    tasks = [
        _Task(index, _label(point), content, source, (*common, *point), policy, engine)
        for index, point in enumerate(points)
        for policy in compared
    ]
    unfinished: dict[int, dict[str, _Simulated]] = {index: {} for index in range(len(points))}
    finished: dict[int, Point] = {}
    with suppress(KeyboardInterrupt), closing(_run(tasks, processes or os.cpu_count() or 1)) as results:
        for task, simulated in results:
            index = task.point
            unfinished[index][task.policy.name] = simulated
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


def _read(base: str | Path | Mapping[str, Any] | None) -> tuple[Mapping[str, Any], str]:
    if isinstance(base, Mapping):
        return base, "scenario"
    return ({}, "default") if base is None else (read_toml(str(base)), str(base))


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


def _simulate(task: _Task) -> _Simulated:
    """Return what came out for every job; `_joined` compares it with that of other policies."""
    scenario = scenario_from(task.content, task.source, task.overrides)
    prediction = predict(scenario, [task.policy], task.engine, grain=1)
    return _Simulated(tuple(prediction.job_results(task.policy.name)), prediction.provenance)


def _run(tasks: Sequence[_Task], processes: int) -> Generator[tuple[_Task, _Simulated], None, None]:
    """Yield the tasks as they are finished, in any order; when this ends, so do its processes."""
    context = get_context("spawn")
    children = {}
    try:
        with _interrupts_held():
            for _ in range(min(processes, len(tasks))):
                ours, theirs = context.Pipe()
                child = context.Process(target=_serve, args=(theirs,), daemon=True)
                child.start()
                children[ours] = child
                theirs.close()
        if any(task.engine != "simpy" for task in tasks):
            _compile_once()
        yield from _dispatch(tasks, children)
    finally:
        for child in children.values():
            child.kill()
        for child in children.values():
            child.join()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold back what ends a sweep while processes start; they inherit it and never see one: ending them is ours."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # It would start with the first process, and lift the hold.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _compile_once() -> None:
    """Fill the cache of compiled code, so that not every process compiles for itself; quick if it is filled."""
    content = {"iterations": 1, "warmup": 0, "cluster": {"mtu": 65535}, "job": {"workers": 1, "servers": 1}}
    simulate(make_plan(scenario_from(content, "warm-up"), POLICIES["fifo"]), "fast")


def _dispatch(tasks: Iterable[_Task], connections: Iterable[Connection]) -> Iterator[tuple[_Task, _Simulated]]:
    waiting = iter(tasks)
    running: dict[Connection, _Task] = {}

    def give_next(connection: Connection) -> None:
        task = next(waiting, None)
        if task is not None:
            running[connection] = task
            # If the process has died, that shows when its result is read.
            with suppress(OSError):
                connection.send(task)

    for connection in connections:
        give_next(connection)
    while running:
        ready = wait(list(running))
        for connection in [one for one in running if one in ready]:
            task = running.pop(connection)
            simulated = _result(task, connection)
            give_next(connection)
            yield task, simulated


def _result(task: _Task, connection: Connection) -> _Simulated:
    try:
        reply = connection.recv()
    except (EOFError, OSError):
        raise SimulationError(
            f"point {task.label}: the process that simulated {task.policy.name} died, most likely for want of memory; "
            "try a smaller scenario or fewer processes"
        ) from None
    if isinstance(reply, TensorExpressError):
        raise type(reply)(f"point {task.label}: {reply}")
    simulated: _Simulated = reply
    return simulated


def _serve(connection: Connection) -> None:
    """Simulate what comes until the other side hangs up; the body of a process."""
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        reply: _Simulated | TensorExpressError
        try:
            reply = _simulate(task)
        except TensorExpressError as error:
            reply = error
        with suppress(BrokenPipeError):
            connection.send(reply)
