"""What `tensorexpress run --script` has beside a run: the script, its reference, and what its losses say."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tensorexpress.errors import InputError
from tensorexpress.units import PS_PER_MS

if TYPE_CHECKING:
    from tensorexpress.plan import Plan
    from tensorexpress.policy import Policy
    from tensorexpress.target import Target
    from tensorexpress.target.runner import Run
    from tensorexpress.target.scripts import Reference, TrainingScript

#: Compute of the same script may differ by less than this between policies.
_MOST_APART = 0.1

#: By so much, stall and compute may differ from the time that a script's steps take.
_UNEXPLAINED = 0.02

#: Of fewer iterations, nothing tells how much they vary.
_LEAST_EXPLAINED = 3


def training_script(path: str | None, checks: bool, reference: bool, scale: str) -> TrainingScript | None:
    """Return the script of the command line, if there is one; refuse what does not go with it, or needs one."""
    from tensorexpress.target.scripts import TrainingScript
    from tensorexpress.torch.profile_source import check_torch

    if path is None:
        for given, option in ((checks, "--check-sums"), (reference, "--reference")):
            if given:
                raise InputError(f"{option} without --script; accepted: with a script that trains")
        return None
    if scale != "1":
        raise InputError(f"--scale {scale} with --script; accepted: 1, because a script computes as fast as it does")
    if not os.path.isfile(path):
        raise InputError(f"--script {path!r} is no file; accepted: a Python script, such as train.py")
    check_torch()
    return TrainingScript(path, checks=checks)


def check_trainable(plan: Plan, target: Target, policies: Iterable[Policy]) -> None:
    """Refuse a plan that a script cannot train, or whose links are too fast for the target."""
    from tensorexpress.target.scripts import check_script
    from tensorexpress.target.speed import fastest_bps, said
    from tensorexpress.units import format_rate

    check_script(plan)
    accepted_bps = fastest_bps(plan.scenario, target, policies)
    if plan.scenario.greatest_rate_bps > accepted_bps:
        raise InputError(
            f"{plan.scenario.name}: a link runs at {format_rate(plan.scenario.greatest_rate_bps)}; with a script the "
            f"target {target.name} keeps up with {said(accepted_bps)} on this machine; give slower links, such as "
            f'--set cluster.bandwidth="{said(accepted_bps)}"'
        )


def notes_on_training(
    runs: Sequence[Run], script: TrainingScript | None, expected: Reference | None, had_barrier: bool
) -> list[str]:
    """Return notes on losses and times of a script's runs; `had_barrier`: their scenario had one."""
    if script is None:
        return []
    notes = []
    if expected is not None and expected.because:
        notes.append(
            "- The reference is a process for each worker, whose gradients are summed in memory, and not one process "
            f"for all: {expected.because}."
        )
    for run in runs:
        name, losses = run.plan.policy.name, run.losses
        compared = "" if expected is None else f"; {_difference(losses, expected)}"
        notes.append(
            f"- Under {name} the loss went from {losses[0]:.4g} to {losses[-1]:.4g} in {len(losses)} steps{compared}."
        )
    if script.checks:
        notes.append("- Every sum was that of all workers' gradients, as far as rounding allows.")
    waiting = [run.plan.policy.name for run in runs if run.script_waits]
    if waiting and not had_barrier:
        notes.append(
            f"- Under {', '.join(waiting)} the script waited for all sums before each forward pass, as with DDP or "
            "clipping by norm: traces and the lower bound have job.barrier = true; predict with --set job.barrier=true."
        )
    return notes + [f"- Warning: {warning}" for warning in warnings_on_times(runs)]


def warnings_on_times(runs: Sequence[Run]) -> list[str]:
    """Return warnings about the times of a script's runs, a line each.

    Stall and compute of every worker must add up to the time between its steps, by the script's own clock, and compute
    must be about the same under all policies.
    """
    warnings = [text for run in runs if run.stepped_ps is not None for text in _unexplained(run)]
    compute_ps = {run.plan.policy.name: _compute_ps(run) for run in runs if run.stepped_ps is not None}
    if compute_ps:
        least, most = (choose(compute_ps, key=compute_ps.__getitem__) for choose in (min, max))
        apart = compute_ps[most] / max(compute_ps[least], 1) - 1
        if apart >= _MOST_APART:
            warnings.append(
                f"compute of the same script is {compute_ps[least] / PS_PER_MS:.2f} ms under {least} and "
                f"{compute_ps[most] / PS_PER_MS:.2f} ms under {most}, {apart:.0%} more; accepted: less than "
                f"{_MOST_APART:.0%}. Their iterations differ by more than the network; close other programs and run it "
                "again."
            )
    return warnings


def _compute_ps(run: Run) -> float:
    from tensorexpress.trace import measure_job

    return measure_job(run.trace.jobs[0], run.trace.warmup).compute_ps


def _unexplained(run: Run) -> Iterator[str]:
    """Yield a line for every worker whose stall and compute differ from the time between its steps."""
    import numpy as np

    assert run.stepped_ps is not None
    job, first = run.trace.jobs[0], run.trace.warmup
    # Behind the last step there may be no forward pass.
    found = (job.blocking_ps + job.forward_ps[1:].sum(axis=2) + job.backward_ps.sum(axis=2))[first:-1]
    expected = np.diff(run.stepped_ps[first:], axis=0)
    if len(found) < _LEAST_EXPLAINED:
        return
    # The two windows begin and end at other places of an iteration.
    margin = 2 * found.std(axis=0) + _UNEXPLAINED * expected.sum(axis=0)
    for worker in np.flatnonzero(abs(found.sum(axis=0) - expected.sum(axis=0)) > margin).tolist():
        yield (
            f"under {run.plan.policy.name}, stall and compute of {job.workers[worker]} are "
            f"{found[:, worker].mean() / PS_PER_MS:.2f} ms an iteration, and its steps "
            f"{expected[:, worker].mean() / PS_PER_MS:.2f} ms apart; accepted: {_UNEXPLAINED:.0%} of difference. Its "
            "parameters may be used in another order than that of the scenario's layers; profile the model again."
        )


def _difference(found: Sequence[float], expected: Reference) -> str:
    """Return how far losses are from those of the reference, in words.

    >>> from tensorexpress.target.scripts import Reference
    >>> _difference([1.0, 0.5], Reference((1.0, 0.5))), _difference([1.0, 0.5], Reference((1.0, 0.4)))
    ('all of them are those of one process, bit for bit', 'they differ from those of one process by 0.1 at most')
    """
    those = "those of the reference" if expected.because else "those of one process"
    if list(found) == list(expected.losses):
        return f"all of them are {those}, bit for bit"
    worst = max(abs(one - other) for one, other in zip(found, expected.losses, strict=True))
    return f"they differ from {those} by {worst:.2g} at most"


def with_losses(document: dict[str, Any], runs: Sequence[Run]) -> dict[str, Any]:
    """Add losses of every step to the JSON of a script's runs, null where a step had none, and warnings on times."""
    for run in runs:
        if run.losses:
            document["warnings"] = warnings_on_times(runs)
            document["policies"][run.plan.policy.name]["waits_for_all"] = run.script_waits
            document["policies"][run.plan.policy.name]["losses"] = [
                None if math.isnan(loss) else loss for loss in run.losses
            ]
    return document
