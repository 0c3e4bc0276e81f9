"""Words that Python and the machine code of exchanges (`exchange_kernel.py`) share.

An exchange is the part of one host in the graph of a job: nodes, and edges between them. Nodes are numbered from 0,
and so are the messages that leave here and those that come, for each of which times are kept by iteration.
"""

from __future__ import annotations

#: Of an exchange. NODES to TOTALS are addresses: of the node of each message by the job's own number; of edges, in
#: which each node finds what it carries and what follows it; of rows of messages that leave, but for what differs from
#: iteration to iteration; of the three kinds of times; of where tensors begin in tables, by iteration, and of these.
#: BLOCKS leads to all memory of the exchange. STACK has the nodes from which it is to go on, at NOW_PS.
(
    X_INDEX, X_JOB, X_ROUNDS, X_LAYERS, X_MESSAGES, X_LEAVING, X_COMING, X_LEFT, X_NOW_PS,
    X_NODES, X_NODE_OF, X_EDGES, X_ROWS, X_READY, X_SENT, X_DELIVERED, X_PLACES, X_TABLE, X_TOTALS, X_DISTANCE,
    X_BLOCKS, X_STACK, X_STACK_COUNT,
) = range(23)  # fmt: skip
EXCHANGE_WORDS = 23

#: Kinds of nodes.
IS_MESSAGE, IS_SUM, IS_GATE, IS_GRADIENT = range(4)

#: Of a node as something that comes after others: how often it has happened, how many it still waits for, of how many,
#: the earliest deadline of those, and the edges from what it carries. CONTENT, in a BLOCK if it is its own, is what it
#: passes on to USES of HEIRS more nodes, DUE_PS, along the edges to what FOLLOWS. FIRST and COUNT are its elements of
#: its TENSOR. A message that leaves has a NUMBER, a row to LEAVE by, and a FLOW, `NONE` where it is for this host
#: itself; one that comes has the iteration EXPECTED, its SENDER, and a column to COME by.
#: A gate that was given something wrong has its CONTENT, its node as COUNT and the iteration as FIRST.
(
    N_KIND, N_TIMES, N_MISSING, N_NEEDED, N_DEADLINE_PS, N_CARRIED, N_CARRIED_COUNT, N_FOLLOWS, N_FOLLOWS_COUNT,
    N_CONTENT, N_BLOCK, N_USES, N_HEIRS, N_DUE_PS, N_FIRST, N_COUNT, N_TENSOR, N_WORKER, N_LEAD_PS, N_DELAY_PS, N_AT_PS,
    N_NUMBER, N_LEAVE, N_FLOW, N_EXPECTED, N_SENDER, N_COME,
) = range(27)  # fmt: skip
NODE_WORDS = 27

#: An edge to what follows is the node times this, plus 1 if that carries it.
BY_NODE = 2
