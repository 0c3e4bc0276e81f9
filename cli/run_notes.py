"""What a reader must know of a run beside its numbers: what was harmed, lost, and what else the machine did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorexpress.target import Target
    from tensorexpress.target.runner import Run

#: From this share on, what else the machine does shows in the result.
_BUSY = 0.85


def notes_on(runs: Sequence[Run], target: Target) -> list[str]:
    """Return what a reader must know beside the numbers."""
    from tensorexpress.emulation import EMULATING, LEAST_EMULATED_PS, emulated_delay_ps
    from tensorexpress.switch.counted import LOST_ON_CABLE, NOT_TAKEN
    from tensorexpress.units import counted, format_time

    rounds = len(runs[0].trace.jobs[0].updated_ps)
    found = "" if runs[0].losses else f"; every worker found every sum of {rounds} iterations exact"
    notes = [f"- Measured on the target {target.name}{found}."]
    if runs[0].plan.scenario.transport.has_software or any(
        job.add_rate_bps or job.update_rate_bps for job in runs[0].plan.scenario.jobs
    ):
        notes.append("- The scenario's software path is for predictions; here hosts took the time that they take.")
    if runs[0].plan.scenario.cluster.switch_rate_bps:
        notes.append("- cluster.switch_rate is for predictions; here switches took the time that they take.")
    longest = max(runs[0].plan.scenario.cluster.links, key=lambda link: link.delay_ps)
    if longest.delay_ps >= LEAST_EMULATED_PS and not emulated_delay_ps(longest, target.name):
        notes.append(
            f"- The delay of links, up to {format_time(longest.delay_ps)}, is not emulated on the target "
            f"{target.name}; it is on {', '.join(EMULATING)}."
        )
    # A script computes as fast as it does, whatever the scale.
    remedy = f"close other programs, or give {'slower links' if runs[0].losses else 'a larger --scale'}"
    for run in runs:
        notes += _about_routes(run)
        notes += [
            f"- Under {run.plan.policy.name}, switch {name} ended during the run and was started again "
            f"{'once' if times == 1 else f'{times} times'}: packets that were in it are among the retransmits, and its "
            "counters begin with its last start; run it again for times without that."
            for name, times in run.restarts.items()
        ]
        if run.background:
            sent, arrived = (counted(number, "packet") for number in map(sum, zip(*run.background, strict=True)))
            name = run.plan.policy.name
            notes.append(f"- Background traffic under {name}: {sent} left, {arrived} had arrived by the end.")
        harmed = sum((Counter(report.faults) for report in run.ports), Counter[str]())
        harmed += Counter(loss=sum(report.drops.get(LOST_ON_CABLE, 0) for report in run.ports))
        if harmed:
            kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(harmed.items()))
            notes.append(f"- Under {run.plan.policy.name}, frames harmed on purpose: {kinds}.")
        not_taken = sum(report.drops.get(NOT_TAKEN, 0) for report in run.ports)
        if not_taken:
            notes.append(
                f"- Under {run.plan.policy.name} switches lost {counted(not_taken, 'frame')} that came faster than "
                f"they could take; {remedy}."
            )
        if run.machine.busy > _BUSY:
            notes.append(
                f"- Under {run.plan.policy.name} the machine was {run.machine.busy:.0%} busy: its times are partly "
                f"those of the machine; {remedy}."
            )
        if run.attempts > 1:
            notes.append(
                f"- {run.plan.policy.name} was run {run.attempts} times, because this machine stood still meanwhile; "
                f"in the run that counts, the calmest, for {run.machine.stalled:.1%} of the time."
            )
        if not run.machine.is_calm:
            notes.append(
                f"- Under {run.plan.policy.name} {run.machine.stalls}; run it again, as with --attempts "
                f"{run.attempts + 2}, or look at the median of more iterations."
            )
    return notes


def _about_routes(run: Run) -> Iterator[str]:
    """Say which routes were planned again meanwhile, and from when on they were in force."""
    from tensorexpress.units import format_rate, format_time

    for each in run.routes:
        found = each.replanned
        rates = (" and ".join(format_rate(round(bps)) for bps in of) for of in (found.after_bps, found.before_bps))
        yield (
            f"- Under {run.plan.policy.name}, {format_time(each.from_ps)} after the start, other routes were in force: "
            f"{'; '.join(found.moved)}, at {' in place of '.join(rates)}."
        )


def with_background(document: dict[str, Any], runs: Sequence[Run]) -> dict[str, Any]:
    """Add the packets of every source of background traffic to the JSON of runs, by policy."""
    for run in runs:
        if run.background:
            document["policies"][run.plan.policy.name]["background"] = [
                {"sent": sent, "arrived": arrived} for sent, arrived in run.background
            ]
    return document


def with_restarts(document: dict[str, Any], runs: Sequence[Run]) -> dict[str, Any]:
    """Add the switches that were started again during a run to the JSON of runs, by policy."""
    for run in runs:
        if run.restarts:
            document["policies"][run.plan.policy.name]["restarted_switches"] = run.restarts
    return document
