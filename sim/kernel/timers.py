"""Time-outs: the rules of `recovery.py`, compiled, for flows and for streams."""

from __future__ import annotations

from tensorexpress import recovery
from tensorexpress.compiled_functions import compiled
from tensorexpress.sim.columns import *
from tensorexpress.sim.flat_plan import PHASE, TIMER
from tensorexpress.sim.kernel.events import schedule_sleeper
from tensorexpress.sim.kernel.memory import Memory, halves

smoothed = compiled(recovery.smoothed)
timeout_after = compiled(recovery.timeout_after)
backed_off = compiled(recovery.backed_off)
lost_up_to = compiled(recovery.lost_up_to)
timer_sleep_ps = compiled(recovery.timer_sleep_ps)


@compiled
def arm(m: Memory, flow: int, delay: int) -> None:
    halves(m, flow)[F_ARMED] = 1
    schedule_sleeper(m, m[NOW] + timer_sleep_ps(delay, m[RTO_MIN]), TIMER * PHASE + flow)


@compiled
def measured_round_trip(m: Memory, flow: int, sample: int) -> None:
    round_trip, deviation = smoothed(m[flow + F_RTT], m[flow + F_RTT_DEVIATION], sample)
    m[flow + F_RTT], m[flow + F_RTT_DEVIATION] = round_trip, deviation
    m[flow + F_TIMEOUT] = timeout_after(round_trip, deviation, m[RTO_MIN])
