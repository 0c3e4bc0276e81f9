"""Training: the graph whose nodes count each other down, and the workers that wait for its gates."""

from __future__ import annotations

from tensorexpress.sim.columns import *
from tensorexpress.sim.flat_plan import COMPUTE, JOIN, PHASE
from tensorexpress.sim.kernel.events import schedule
from tensorexpress.sim.kernel.memory import Memory, compiled
from tensorexpress.sim.kernel.transport import start_message


@compiled
def fire_successors(m: Memory, node: int, deadline: int) -> None:
    stack = m[STACK]
    m[stack], m[stack + 1] = node, deadline
    depth = 1
    while depth:
        depth -= 1
        node, deadline = m[stack + 2 * depth], m[stack + 2 * depth + 1]
        for i in range(m[node + N_SUCCESSORS], m[node + N_SUCCESSORS_END]):
            successor = m[i]
            m[successor + N_NEED] -= 1
            if deadline < m[successor + N_DEADLINE]:
                m[successor + N_DEADLINE] = deadline
            if m[successor + N_NEED] == 0:
                m[successor + N_NEED] = m[successor + N_NEED_ALL]
                earliest = m[successor + N_DEADLINE]
                m[successor + N_DEADLINE] = NEVER
                if fire(m, successor, earliest):
                    m[stack + 2 * depth], m[stack + 2 * depth + 1] = successor, earliest
                    depth += 1


@compiled
def fire(m: Memory, node: int, deadline: int) -> bool:
    """Do what a node stands for; return whether its successors can be counted down at once."""
    thing = m[node + N_THING]
    if m[node + N_KIND] == MESSAGE_NODE:
        return start_message(m, thing, deadline)
    if m[node + N_KIND] == GATE_NODE:
        open_gate(m, thing)
        return False
    if m[node + N_DELAY] == 0:
        return True
    # Nobody counts this node down before it has fired: its row can hold what it carries.
    m[node + N_DEADLINE] = deadline
    schedule(m, m[NOW] + m[node + N_DELAY], JOIN * PHASE + node)
    return False


@compiled
def open_gate(m: Memory, gate: int) -> None:
    opened = m[gate + G_OPENED]
    m[m[gate + G_TIMES] + opened * GATE_TIMES_COLUMNS + T_OPENED] = m[NOW]
    m[gate + G_OPENED] = opened + 1
    worker = m[gate + G_WORKER]
    if m[worker + W_WAITING] == gate:
        m[worker + W_WAITING] = NONE
        start_forward(m, worker)


@compiled
def start_forward(m: Memory, worker: int) -> None:
    """Start the worker's next forward layer, or let it wait at the gate."""
    iteration, gate = m[worker + W_ITERATION], m[worker + W_GATE]
    if m[gate + G_OPENED] < iteration:
        m[worker + W_WAITING] = gate
        return
    times = m[gate + G_TIMES] + iteration * GATE_TIMES_COLUMNS
    m[times + T_STARTED] = m[NOW]
    schedule(m, m[NOW] + m[times + T_FORWARD], COMPUTE * PHASE + worker)


@compiled
def start_backward(m: Memory, worker: int) -> None:
    times = m[m[worker + W_GATE] + G_TIMES] + m[worker + W_ITERATION] * GATE_TIMES_COLUMNS
    schedule(m, m[NOW] + m[times + T_BACKWARD], COMPUTE * PHASE + worker)


@compiled
def computed(m: Memory, worker: int) -> None:
    """A worker has finished what it computed: go on to the next layer of the pass, or to the other pass."""
    gate = m[worker + W_GATE]
    if m[worker + W_ITERATION] == NONE:
        m[worker + W_ITERATION] = 0
        start_forward(m, worker)
    elif m[worker + W_BACKWARD]:
        fire_successors(m, m[gate + G_GRADIENT], m[NOW] + m[gate + G_SLACK])
        if gate > m[worker + W_FIRST_GATE]:
            m[worker + W_GATE] = gate - GATE_COLUMNS
            start_backward(m, worker)
        else:
            m[worker + W_BACKWARD] = 0
            m[worker + W_ITERATION] += 1
            start_forward(m, worker)
    elif gate < m[worker + W_LAST_GATE]:
        m[worker + W_GATE] = gate + GATE_COLUMNS
        start_forward(m, worker)
    elif m[worker + W_ITERATION] < m[ROUNDS]:
        m[worker + W_BACKWARD] = 1
        start_backward(m, worker)
    else:
        m[RUNNING] -= 1
        if m[RUNNING] == 0:
            m[STATUS] = FINISHED
