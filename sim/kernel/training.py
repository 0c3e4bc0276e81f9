"""Training: the graph whose nodes count each other down, and the workers that wait for its gates."""

from __future__ import annotations

from tensorexpress.changes import USUAL_PACE
from tensorexpress.compiled_functions import compiled
from tensorexpress.sim.columns import *
from tensorexpress.sim.flat_plan import COMPUTE, JOIN, PHASE
from tensorexpress.sim.kernel.events import schedule
from tensorexpress.sim.kernel.lanes import append_work, take_work
from tensorexpress.sim.kernel.memory import Memory, halves
from tensorexpress.sim.kernel.transport import copied, start_message


@compiled
def fire_successors(m: Memory, node: int, deadline: int) -> None:
    stack = m[STACK]
    m[stack], m[stack + 1] = node, deadline
    depth = 1
    while depth:
        depth -= 1
        node, deadline = m[stack + 2 * depth], m[stack + 2 * depth + 1]
        for i in range(halves(m, node)[N_SUCCESSORS], halves(m, node)[N_SUCCESSORS_END]):
            successor = m[i]
            n = halves(m, successor)
            n[N_NEED] -= 1
            if deadline < m[successor + N_DEADLINE]:
                m[successor + N_DEADLINE] = deadline
            if n[N_NEED] == 0:
                n[N_NEED] = n[N_NEED_ALL]
                earliest = m[successor + N_DEADLINE]
                m[successor + N_DEADLINE] = NEVER
                if fire(m, successor, earliest):
                    m[stack + 2 * depth], m[stack + 2 * depth + 1] = successor, earliest
                    depth += 1


@compiled
def fire(m: Memory, node: int, deadline: int) -> bool:
    """Do what a node stands for; return whether its successors can be counted down at once."""
    n = halves(m, node)
    thing = n[N_THING]
    if n[N_KIND] == MESSAGE_NODE:
        return start_message(m, thing, deadline)
    if n[N_KIND] == GATE_NODE:
        open_gate(m, thing)
        return False
    if n[N_KIND] == BACKWARD_NODE:
        open_backward(m, thing)
        return False
    if m[node + N_DELAY] == 0 and m[node + N_WORK] == 0:
        return True
    # Nobody counts this node down before it has fired: its row can hold what it carries.
    m[node + N_DEADLINE] = deadline
    if m[node + N_DELAY] == 0:
        append_work(m, n[N_LANE], node)
    else:
        schedule(m, m[NOW] + m[node + N_DELAY], JOIN * PHASE + node)
    return False


@compiled
def take_in(m: Memory, node: int) -> None:
    """Let a host take in a message that has arrived, or update what it has summed."""
    if m[node + N_WORK] == 0:
        finish(m, node)
    else:
        append_work(m, halves(m, node)[N_LANE], node)


@compiled
def finish(m: Memory, node: int) -> None:
    """Fire what waits for a message or a sum."""
    if halves(m, node)[N_KIND] == MESSAGE_NODE:
        message = halves(m, node)[N_THING]
        s = halves(m, message)
        m[s[M_TIMES] + s[M_ITERATION] * TIMES_COLUMNS + T_DELIVERED] = m[NOW]
        fire_successors(m, node, m[message + M_DEADLINE])
    else:
        deadline = m[node + N_DEADLINE]
        m[node + N_DEADLINE] = NEVER
        fire_successors(m, node, deadline)


@compiled
def work(m: Memory, lane: int) -> None:
    """Finish what the lane had under way, and take up what is first now."""
    node = m[lane + S_NODE]
    m[lane + S_NODE] = NONE
    if node != NONE:
        if m[lane + S_IS_OUT]:
            copied(m, halves(m, node)[N_THING])
        else:
            finish(m, node)
    take_work(m, lane)


@compiled
def open_gate(m: Memory, gate: int) -> None:
    opened = m[gate + G_OPENED]
    m[m[gate + G_TIMES] + opened * GATE_TIMES_COLUMNS + T_OPENED] = m[NOW]
    m[gate + G_OPENED] = opened + 1
    worker = m[gate + G_WORKER]
    if m[worker + W_WAITING] == gate and not m[worker + W_BACKWARD]:
        m[worker + W_WAITING] = NONE
        start_forward(m, worker)


@compiled
def open_backward(m: Memory, gate: int) -> None:
    m[gate + G_OPENED_BACKWARD] += 1
    worker = m[gate + G_WORKER]
    if m[worker + W_WAITING] == gate and m[worker + W_BACKWARD]:
        m[worker + W_WAITING] = NONE
        start_backward(m, worker)


@compiled
def taken(m: Memory, worker: int, drawn: int) -> int:
    """Return how long a layer takes at the worker's pace; the other form of `changes.slowed_ps`."""
    pace = m[worker + W_PACE]
    if pace == USUAL_PACE:
        return drawn
    return drawn // USUAL_PACE * pace + drawn % USUAL_PACE * pace // USUAL_PACE


@compiled
def start_forward(m: Memory, worker: int) -> None:
    """Start the worker's next forward layer, or let it wait at the gate."""
    iteration, gate = m[worker + W_ITERATION], m[worker + W_GATE]
    if m[gate + G_OPENED] < iteration:
        m[worker + W_WAITING] = gate
        return
    times = m[gate + G_TIMES] + iteration * GATE_TIMES_COLUMNS
    m[times + T_STARTED] = m[NOW]
    schedule(m, m[NOW] + taken(m, worker, m[times + T_FORWARD]), COMPUTE * PHASE + worker)


@compiled
def start_backward(m: Memory, worker: int) -> None:
    """Start the worker's next backward layer, or let it wait for what comes before it."""
    iteration, gate = m[worker + W_ITERATION], m[worker + W_GATE]
    if m[gate + G_OPENED_BACKWARD] <= iteration:
        m[worker + W_WAITING] = gate
        return
    times = m[gate + G_TIMES] + iteration * GATE_TIMES_COLUMNS
    m[times + T_STARTED_BACKWARD] = m[NOW]
    schedule(m, m[NOW] + taken(m, worker, m[times + T_BACKWARD]), COMPUTE * PHASE + worker)


@compiled
def passed(m: Memory, node: int) -> None:
    """Fire what waits until a worker is through a layer; that has no deadline to hand on."""
    if halves(m, node)[N_SUCCESSORS] < halves(m, node)[N_SUCCESSORS_END]:
        fire_successors(m, node, NEVER)


@compiled
def computed(m: Memory, worker: int) -> None:
    """A worker has finished what it computed: go on to the next layer of the pass, or to the other pass."""
    gate, iteration = m[worker + W_GATE], m[worker + W_ITERATION]
    if iteration == NONE:
        m[worker + W_ITERATION] = 0
        start_forward(m, worker)
        return
    if m[worker + W_BACKWARD]:
        fire_successors(m, m[gate + G_GRADIENT], m[NOW] + m[gate + G_SLACK])
        passed(m, m[gate + G_BACKWARD])
        if gate > m[worker + W_FIRST_GATE]:
            m[worker + W_GATE] = gate - GATE_COLUMNS
            start_backward(m, worker)
        else:
            m[worker + W_BACKWARD] = 0
            m[worker + W_ITERATION] += 1
            start_forward(m, worker)
        return
    if iteration < m[ROUNDS]:
        passed(m, m[gate + G_FORWARD])
    if iteration > 0:
        passed(m, m[gate + G_NODE])
    if gate < m[worker + W_LAST_GATE]:
        m[worker + W_GATE] = gate + GATE_COLUMNS
        start_forward(m, worker)
    elif iteration < m[ROUNDS]:
        m[worker + W_BACKWARD] = 1
        start_backward(m, worker)
    else:
        m[RUNNING] -= 1
        if m[RUNNING] == 0:
            m[STATUS] = FINISHED
