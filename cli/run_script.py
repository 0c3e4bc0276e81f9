"""What `tensorexpress run --script` has beside a run: the script, its reference, and what its losses say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorexpress.errors import InputError, MachineError

if TYPE_CHECKING:
    from tensorexpress.plan import Plan
    from tensorexpress.policy import Policy
    from tensorexpress.target import Target
    from tensorexpress.target.runner import Run
    from tensorexpress.target.scripts import TrainingScript


def training_script(path: str | None, checks: bool, reference: bool, scale: str) -> TrainingScript | None:
    """Return the script of the command line, if there is one; refuse what does not go with it, or needs one."""
    from importlib.util import find_spec

    from tensorexpress.target.scripts import TrainingScript

    if path is None:
        for given, option in ((checks, "--check-sums"), (reference, "--reference")):
            if given:
                raise InputError(f"{option} without --script; accepted: with a script that trains")
        return None
    if scale != "1":
        raise InputError(f"--scale {scale} with --script; accepted: 1, because a script computes as fast as it does")
    if not Path(path).is_file():
        raise InputError(f"--script {path!r} is no file; accepted: a Python script, such as train.py")
    if find_spec("torch") is None:
        raise MachineError("torch is not installed; `pip install 'tensorexpress[torch]'` installs it")
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


def reference_losses(plan: Plan, script: TrainingScript) -> tuple[float, ...]:
    """Return the losses of a script that is alone and stands for all workers of a plan."""
    from tensorexpress.target.scripts import run_alone

    return run_alone(plan, script)


def notes_on_training(
    runs: Sequence[Run], script: TrainingScript | None, expected: Sequence[float] | None
) -> list[str]:
    """Return what to say of the losses of a script's runs."""
    if script is None:
        return []
    notes = []
    for run in runs:
        name, losses = run.plan.policy.name, run.losses
        compared = "" if expected is None else f"; {_difference(losses, expected)}"
        notes.append(
            f"- Under {name} the loss went from {losses[0]:.4g} to {losses[-1]:.4g} in {len(losses)} steps{compared}."
        )
    if script.checks:
        notes.append("- Every sum was that of all workers' gradients, as far as rounding allows.")
    return notes


def _difference(found: Sequence[float], expected: Sequence[float]) -> str:
    """Return how far losses are from those of the reference, in words.

    >>> _difference([1.0, 0.5], [1.0, 0.5]), _difference([1.0, 0.5], [1.0, 0.4])
    ('all of them are those of one process, bit for bit', 'they differ from those of one process by 0.1 at most')
    """
    if list(found) == list(expected):
        return "all of them are those of one process, bit for bit"
    if len(found) != len(expected):
        return f"alone, the script made {len(expected)} steps"
    worst = max(abs(one - other) for one, other in zip(found, expected, strict=True))
    return f"they differ from those of one process by {worst:.2g} at most"


def with_losses(document: dict[str, Any], runs: Sequence[Run]) -> dict[str, Any]:
    """Add the losses of every step to the JSON of runs, by policy; null where a step had none."""
    for run in runs:
        if run.losses:
            document["policies"][run.plan.policy.name]["losses"] = [
                None if math.isnan(loss) else loss for loss in run.losses
            ]
    return document
