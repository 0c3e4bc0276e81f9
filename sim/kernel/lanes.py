"""Lanes: what a host's software does one after another, a binary heap of (key, node)."""

from __future__ import annotations

from tensorexpress.compiled_functions import compiled
from tensorexpress.sim.columns import *
from tensorexpress.sim.flat_plan import PHASE, WORK
from tensorexpress.sim.kernel.events import drop_first_pair, schedule, sift_up
from tensorexpress.sim.kernel.memory import Memory, halves


@compiled
def add_work(m: Memory, lane: int, key: int, node: int) -> None:
    waiting = m[lane + S_WAITING]
    m[lane + S_WAITING] = waiting + 1
    sift_up(m, m[lane + S_HEAP], waiting, key, node)
    if not m[lane + S_BUSY]:
        m[lane + S_BUSY] = 1
        schedule(m, m[NOW], WORK * PHASE + lane)


@compiled
def append_work(m: Memory, lane: int, node: int) -> None:
    m[lane + S_TAKEN] += 1
    add_work(m, lane, m[lane + S_TAKEN], node)


@compiled
def take_work(m: Memory, lane: int) -> None:
    """Take up what is first now, or leave the lane idle."""
    waiting = m[lane + S_WAITING] - 1
    if waiting < 0:
        m[lane + S_BUSY] = 0
        return
    heap = m[lane + S_HEAP]
    node = m[heap + 1]
    m[lane + S_WAITING] = waiting
    drop_first_pair(m, heap, waiting)
    m[lane + S_NODE] = node
    work = m[halves(m, node)[N_THING] + M_OUT] if m[lane + S_IS_OUT] else m[node + N_WORK]
    schedule(m, m[NOW] + work, WORK * PHASE + lane)
