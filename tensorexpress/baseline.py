"""Baselines: how fast a cluster trains as somebody has measured it, and the one rate of its software that explains it.

What a scenario says of compute and links is taken as right. What the simulated baseline is too fast by is put down to
hosts that copy whole tensors: the copy rate is found at which it takes as long as was measured.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

from tensorexpress.errors import InputError
from tensorexpress.policy import Policy, parse_policy
from tensorexpress.scenario import Job, Scenario
from tensorexpress.units import LARGEST, PS_PER_SECOND, format_rate, format_time, parse_time

_ACCEPTED = 'a policy and its speed, such as "fifo=142 samples/s" (all workers together) or "fifo=350 ms"'

#: Copy rates among which the one is sought, in bit/s.
_SLOWEST_BPS, _FASTEST_BPS = 10**7, 10**13

#: The simulated iteration is as long as the measured one within this share, and how often it is tried.
TOLERANCE = 0.002
_MOST_TRIES = 40


@dataclass(frozen=True)
class FittedBaseline:
    """The software of hosts as a measured baseline shows it."""

    #: The policy that was measured, and how long its iterations took.
    policy: str
    iteration_ps: int
    #: Bit/s at which hosts copy messages; 0 is at once.
    copy_rate_bps: int

    @property
    def target(self) -> str:
        """What a prediction with it is for, in the words of a calibration."""
        return f"hosts of the measured {self.policy}"


def parse_baseline(text: str, scenario: Scenario) -> tuple[Policy, int]:
    """Return the policy that was measured and how long its iterations took, in ps."""
    name, _, speed = text.rpartition("=")
    if not name or not speed.strip():
        raise InputError(f"found {text!r}; accepted: {_ACCEPTED}")
    throughput = re.fullmatch(r"\s*([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*samples/s\s*", speed)
    if throughput is None:
        iteration_ps = parse_time(speed.strip())
    else:
        per_second = float(throughput[1])
        samples = len(scenario.jobs[0].workers) * batch_of(scenario.jobs[0])
        iteration_ps = round(samples * PS_PER_SECOND / per_second) if per_second else 0
    if len(scenario.jobs) > 1:
        raise InputError(f"{scenario.name} has {len(scenario.jobs)} jobs; accepted: the one that was measured")
    if not 0 < iteration_ps <= LARGEST:
        raise InputError(f"found {text!r}, an iteration of {iteration_ps} ps; accepted: {_ACCEPTED}")
    return parse_policy(name.strip()), iteration_ps


def batch_of(job: Job) -> int:
    """Return the samples of a worker's iteration."""
    if job.workload.batch:
        return job.workload.batch
    raise InputError(
        f"nobody knows the samples of an iteration of {job.workload.name}; "
        "accepted: a time, as fifo=350 ms, or job.batch"
    )


def fit_copy_rate(simulated_ps: Callable[[int], float], measured_ps: int) -> int:
    """Return the copy rate at which the simulated iteration takes as long as was measured; 0 is at once."""
    at_once_ps = simulated_ps(0)
    if abs(at_once_ps - measured_ps) <= TOLERANCE * measured_ps:
        return 0
    if at_once_ps > measured_ps:
        raise InputError(
            f"{_measured(measured_ps)}, and {format_time(round(at_once_ps))} is simulated even with copies at once; "
            "accepted: a measurement that is slower; look at the scenario's compute times and links first"
        )
    slow_bps, fast_bps = _SLOWEST_BPS, _FASTEST_BPS
    if simulated_ps(slow_bps) < measured_ps:
        raise InputError(
            f"{_measured(measured_ps)}, which is longer than with copies at {format_rate(slow_bps)}; "
            "accepted: a measurement that copies can explain"
        )
    for _ in range(_MOST_TRIES):
        rate_bps = round(sqrt(slow_bps * fast_bps))
        found_ps = simulated_ps(rate_bps)
        if abs(found_ps - measured_ps) <= TOLERANCE * measured_ps:
            break
        if found_ps > measured_ps:
            slow_bps = rate_bps
        else:
            fast_bps = rate_bps
    return rate_bps


def _measured(time_ps: int) -> str:
    return f"{format_time(time_ps)} was measured"
