"""Exchanges as machine code: what `exchange.py` does with messages that come, until others leave, without Python.

Every function here does what the one that it names does there; tests hold both to the same messages, sums and times.
Gates, sums that take time, and whatever is wrong, are for Python: `native_exchange.py` is the other side of this.
"""

from __future__ import annotations

from tensorexpress import queueing
from tensorexpress.compiled_functions import compiled
from tensorexpress.host.blocks import CONTENT, hold, let_all_go, let_go, new_block
from tensorexpress.host.exchange_layout import *
from tensorexpress.host.flow_kernel import offer, row_of, tell
from tensorexpress.host.flow_layout import *
from tensorexpress.host.kernel import put
from tensorexpress.host.layout import H_ITERATION
from tensorexpress.switch.native.machine import Cells, copy, floats, halves, words

_PRIORITY, _RANDOM = queueing.HOST_ORDERS["priority"].code, queueing.HOST_ORDERS["random"].code
shuffled = compiled(queueing.shuffled)

_FLOAT_BYTES = 4

#: Elements that are summed at a time: all that is added to them stays in the first cache meanwhile.
_TOGETHER = 2048


@compiled
def node_at(x: Cells, node: int) -> int:
    """Return where a node is."""
    return row_of(x[X_NODES], node, NODE_WORDS)


@compiled
def time_at(times: int, iteration: int, columns: int, column: int) -> int:
    """Return where a time is kept."""
    return times + WORD_BYTES * (iteration * columns + column)


@compiled
def tell_of(c: Cells, x: Cells, what: int, node: int) -> None:
    """Note what Python is to be told of a node."""
    tell(c, what, x[X_INDEX] * BY_EXCHANGE + node)


# Values


@compiled
def add_floats(into: int, source: int, count: int) -> None:
    """Add numbers to others."""
    a, b = floats(into), floats(source)
    for at in range(count):
        a[at] += b[at]


@compiled
def differences(one: int, other: int, count: int) -> int:
    """Return in how many places numbers differ."""
    a, b, found = floats(one), floats(other), 0
    for at in range(count):
        found += a[at] != b[at]
    return found


@compiled
def place_of(x: Cells, iteration: int, tensor: int) -> int:
    """Return where a tensor begins in tables, in an iteration (`Gradients._place`)."""
    return words(x[X_PLACES])[iteration * x[X_LAYERS] + tensor]


@compiled
def content_of(x: Cells, source: int, target: Cells, iteration: int) -> int:
    """Return where that of a node is which another one carries (`Exchange._value`)."""
    s = words(node_at(x, source))
    if s[N_KIND] != IS_GRADIENT:
        return s[N_CONTENT]
    element = place_of(x, iteration, s[N_TENSOR]) + s[N_WORKER] * x[X_DISTANCE] + target[N_FIRST]
    return x[X_TABLE] + _FLOAT_BYTES * element


@compiled
def use(x: Cells, source: int) -> None:
    """Let go of what nobody else will use (`Exchange._use`)."""
    s = words(node_at(x, source))
    if s[N_KIND] != IS_GRADIENT:
        s[N_USES] -= 1
        if s[N_USES] == 0:
            let_go(s[N_BLOCK])
            s[N_BLOCK] = s[N_CONTENT] = 0


@compiled
def sum_up(exchange: int, node: int, iteration: int) -> bool:
    """Give a node the sum of what it carries, as its content; of a single one just that (`Exchange._sum`).

    False: there is no memory for it.
    """
    x, n = words(exchange), words(node)
    carried, count = words(x[X_EDGES] + WORD_BYTES * n[N_CARRIED]), n[N_CARRIED_COUNT]
    first = content_of(x, carried[0], n, iteration)
    if count == 1:
        n[N_CONTENT], n[N_BLOCK] = first, words(node_at(x, carried[0]))[N_BLOCK]
        hold(n[N_BLOCK])
    else:
        n[N_BLOCK] = new_block(exchange + WORD_BYTES * X_BLOCKS, _FLOAT_BYTES * n[N_COUNT])
        if not n[N_BLOCK]:
            return False
        n[N_CONTENT] = n[N_BLOCK] + CONTENT
        for start in range(0, n[N_COUNT], _TOGETHER):
            size, skipped = min(_TOGETHER, n[N_COUNT] - start), _FLOAT_BYTES * start
            copy(n[N_CONTENT] + skipped, first + skipped, _FLOAT_BYTES * size)
            for at in range(1, count):
                add_floats(n[N_CONTENT] + skipped, content_of(x, carried[at], n, iteration) + skipped, size)
    for at in range(count):
        use(x, carried[at])
    return True


# Messages that leave


@compiled
def key_of_message(c: Cells, n: Cells, iteration: int, deadline_ps: int, now_ps: int) -> int:
    """Return what the host order sorts a message by (`Scheduler.key_of`)."""
    if c[HOST_ORDER] == _PRIORITY:
        return deadline_ps
    return shuffled(iteration, n[N_NUMBER]) if c[HOST_ORDER] == _RANDOM else now_ps


@compiled
def send(core: int, x: Cells, node: int, iteration: int, deadline_ps: int, now_ps: int) -> None:
    """Give the content of a node to the transport, whose rows suffice (`NativeEndpoint.send`)."""
    c, n = words(core), words(node_at(x, node))
    if words(row_of(c[PEERS], words(row_of(c[SENDING], n[N_FLOW], SENDING_WORDS))[S_PEER], PEER_WORDS))[P_GONE]:
        tell_of(c, x, UNWANTED, node)
        return
    c[FREE_OUTGOING_COUNT] -= 1
    number = words(c[FREE_OUTGOING])[c[FREE_OUTGOING_COUNT]]
    row = row_of(c[OUTGOING], number, OUTGOING_WORDS)
    copy(row, row_of(x[X_ROWS], n[N_LEAVE], OUTGOING_WORDS), WORD_BYTES * OUTGOING_WORDS)
    put(row + WORD_BYTES * O_HEADER + H_ITERATION, iteration)
    o = words(row)
    o[O_KEY], o[O_DEADLINE_PS] = key_of_message(c, n, iteration, deadline_ps, now_ps), deadline_ps
    o[O_PAYLOAD], o[O_BLOCK] = n[N_CONTENT], n[N_BLOCK]
    o[O_SENT_AT] = time_at(x[X_SENT], iteration, x[X_LEAVING], n[N_LEAVE])
    n[N_CONTENT] = n[N_BLOCK] = 0
    offer(core, n[N_FLOW], number)


# The graph


@compiled
def pass_on(x: Cells, node: int, deadline_ps: int) -> None:
    """Let the exchange go on from a node that has its content (`Exchange._have`)."""
    n = words(node_at(x, node))
    n[N_USES], n[N_DUE_PS] = n[N_HEIRS], deadline_ps
    if n[N_USES] == 0:
        let_go(n[N_BLOCK])
        n[N_BLOCK] = n[N_CONTENT] = 0
    words(x[X_STACK])[x[X_STACK_COUNT]] = node
    x[X_STACK_COUNT] += 1


@compiled
def receive(x: Cells, node: int, deadline_ps: int, now_ps: int) -> None:
    """Use a message that is complete (`Exchange.delivered`)."""
    n = words(node_at(x, node))
    words(time_at(x[X_DELIVERED], n[N_EXPECTED], x[X_COMING], n[N_COME]))[0] = now_ps
    n[N_EXPECTED] += 1
    pass_on(x, node, deadline_ps)


@compiled
def fire(core: int, exchange: int, node: int, now_ps: int) -> None:
    """Do what was waited for (`Exchange._fire`)."""
    c, x = words(core), words(exchange)
    at = node_at(x, node)
    n = words(at)
    iteration, deadline_ps = n[N_TIMES], n[N_DEADLINE_PS]
    n[N_TIMES], n[N_MISSING], n[N_DEADLINE_PS] = iteration + 1, n[N_NEEDED], NEVER
    n[N_AT_PS] = now_ps
    if n[N_KIND] == IS_GATE:
        carried = words(x[X_EDGES] + WORD_BYTES * n[N_CARRIED])
        for place in range(n[N_CARRIED_COUNT]):
            use(x, carried[place])
        tell_of(c, x, OPENED, node)
        return
    if not sum_up(exchange, at, iteration):
        tell_of(c, x, WRONG, node)
        return
    if n[N_KIND] == IS_SUM:
        if n[N_DELAY_PS]:
            n[N_USES], n[N_DUE_PS] = n[N_HEIRS], deadline_ps
            tell_of(c, x, DELAYED, node)
        else:
            pass_on(x, node, deadline_ps)
        return
    x[X_LEFT] -= 1
    if x[X_LEFT] == 0:
        tell_of(c, x, GIVEN_AWAY, node)
    words(time_at(x[X_READY], iteration, x[X_LEAVING], n[N_LEAVE]))[0] = now_ps
    if n[N_FLOW] == NONE:
        words(time_at(x[X_SENT], iteration, x[X_LEAVING], n[N_LEAVE]))[0] = now_ps
        receive(x, node, deadline_ps, now_ps)
    else:
        send(core, x, node, iteration, deadline_ps, now_ps)


@compiled
def check(c: Cells, x: Cells, source: int, gate: int) -> None:
    """Compare a part of an update with the sum of all gradients (`Exchange._deliver`)."""
    s, g = words(node_at(x, source)), words(node_at(x, gate))
    if s[N_KIND] == IS_GRADIENT:
        return
    expected = x[X_TOTALS] + _FLOAT_BYTES * (place_of(x, g[N_TIMES], g[N_TENSOR]) + s[N_FIRST])
    if differences(s[N_CONTENT], expected, s[N_COUNT]):
        # Python says what is wrong, and ends the run.
        hold(s[N_BLOCK])
        g[N_CONTENT], g[N_COUNT], g[N_FIRST] = s[N_CONTENT], source, g[N_TIMES]
        tell_of(c, x, WRONG, gate)


@compiled
def follow(core: int, exchange: int, now_ps: int) -> None:
    """Count down what comes after nodes that are done, and do what then can be done (`Exchange._done`)."""
    c, x = words(core), words(exchange)
    while x[X_STACK_COUNT]:
        x[X_STACK_COUNT] -= 1
        source = words(x[X_STACK])[x[X_STACK_COUNT]]
        s = words(node_at(x, source))
        follows = words(x[X_EDGES] + WORD_BYTES * s[N_FOLLOWS])
        for at in range(s[N_FOLLOWS_COUNT]):
            target = follows[at] // BY_NODE
            n = words(node_at(x, target))
            due_ps = s[N_DUE_PS] - (n[N_LEAD_PS] if s[N_KIND] == IS_GRADIENT else 0)
            n[N_DEADLINE_PS] = min(n[N_DEADLINE_PS], due_ps)
            if n[N_KIND] == IS_GATE and follows[at] % BY_NODE:
                check(c, x, source, target)
            n[N_MISSING] -= 1
            if n[N_MISSING] == 0:
                fire(core, exchange, target, now_ps)


@compiled
def go_on_from(core: int, exchange: int, node: int) -> int:
    """Go on from a gradient that is there, or a sum that took its time, at NOW_PS."""
    x = words(exchange)
    words(x[X_STACK])[x[X_STACK_COUNT]] = node
    x[X_STACK_COUNT] += 1
    follow(core, exchange, x[X_NOW_PS])
    return 0


# Messages that come


@compiled
def exchange_of(c: Cells, job: int) -> int:
    """Return the exchange of a job; 0: there is none."""
    for index in range(c[EXCHANGE_COUNT]):
        exchange = words(c[EXCHANGES])[index]
        if words(exchange)[X_JOB] == job:
            return exchange
    return 0


@compiled
def node_for(x: Cells, number: int, sender: int, iteration: int, size: int) -> int:
    """Return the node of a message that begins; `NONE` for one that is not due here (`Exchange.buffer_for`)."""
    if number >= x[X_MESSAGES]:
        return NONE
    node = halves(x[X_NODE_OF])[number]
    if node == NONE:
        return NONE
    n = words(node_at(x, node))
    # Of one that has begun, or is still to be used, there is a block: nobody may write there but who began it.
    is_due = n[N_SENDER] == sender and n[N_EXPECTED] == iteration and iteration < x[X_ROUNDS] and not n[N_BLOCK]
    return node if is_due and size == _FLOAT_BYTES * n[N_COUNT] else NONE


@compiled
def memory_for(exchange: int, node: int, due_ps: int) -> int:
    """Return memory for a message that begins and is due at a time; 0: there is none."""
    x = words(exchange)
    n = words(node_at(x, node))
    n[N_BLOCK] = new_block(exchange + WORD_BYTES * X_BLOCKS, _FLOAT_BYTES * n[N_COUNT])
    if not n[N_BLOCK]:
        return 0
    n[N_CONTENT], n[N_DUE_PS] = n[N_BLOCK] + CONTENT, due_ps
    return n[N_CONTENT]


@compiled
def take_message(core: int, exchange: int, node: int, now_ps: int) -> None:
    """Take a message that is complete, and go on from there."""
    x = words(exchange)
    receive(x, node, words(node_at(x, node))[N_DUE_PS], now_ps)
    follow(core, exchange, now_ps)


@compiled
def let_go_of(exchange: int) -> int:
    """Free all memory of an exchange."""
    let_all_go(exchange + WORD_BYTES * X_BLOCKS)
    return 0
