"""The kernel of the compiled engine: `model.py` once more, over a flat memory, with numba.

Functions carry the names of their twins in `model.py`, where they are documented. All state is one array of int64,
laid out by `fast.py`; see `columns.py`. One array keeps calls between compiled functions cheap and compilation short,
and lets the kernel stop at any event (to grow, to let Ctrl-C through) and go on where it was.

    memory      the array as a bare pointer
    events      the heap of events, and packets
    queues      disciplines and buffers of switch ports, host orders: the other form of `queueing.py`
    ready       which flow of a host, and which slice of a flow, goes next
    lanes       what the software of hosts does one after another
    timers      time-outs of flows and streams
    sums        what switches add up, and what workers send them
    transport   hosts, flows and messages
    training    the graph, and the workers that go through it
    loop        links, and the kernel that handles event after event
    native      the kernel as Python calls it
"""
