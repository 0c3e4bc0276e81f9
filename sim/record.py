"""Records: the raw observations an engine writes while it runs, the same for every engine."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tensorexpress.sim.flat_plan import FlatPlan, Ints

#: What went over a link: a part of a tensor, an acknowledgement, background traffic; and where switches sum, what they
#: add up on its way to the root, and what comes back from there.
DATA, ACK, OTHER, ADDEND, TOTAL = range(5)

#: One transmission; message and chunk are -1 for background packets. Of what switches made there is no message; the
#: chunks of sums are numbered over all tensors of their pool.
PACKET = np.dtype(
    [(name, np.int64) for name in ("time_ps", "link", "kind", "flow", "message", "iteration", "chunk", "size")]
)


def _times(rows: int, columns: int) -> Ints:
    return np.full((rows, columns), -1, dtype=np.int64)


@dataclass
class Record:
    """Times in ps by (iteration, gate) and (iteration, message); counts by link. -1: did not happen."""

    forward_start_ps: Ints
    gate_open_ps: Ints
    backward_start_ps: Ints
    ready_ps: Ints
    sent_ps: Ints
    delivered_ps: Ints
    #: How long flows stood still before time-outs that found packets of a message lost.
    timed_out_ps: Ints
    link_bytes: Ints
    link_busy_ps: Ints
    #: Packets that found the buffer full, were lost on the wire, were marked (ECN), per link.
    link_drops: Ints
    link_losses: Ints
    link_marks: Ints
    link_peak_bytes: Ints
    #: Background packets that found their share of the buffer full, per link.
    link_background_drops: Ints
    retransmissions: int = 0
    timeouts: int = 0
    #: Packets that were put on a link.
    transmissions: int = 0
    end_ps: int = 0
    #: Where sums end at servers: sums that these completed, those of them that came whole from a switch, and packets
    #: that reached a server. Where slots are found by hash: packets that found another's cell and went on, and sums
    #: that had to leave their cell to others.
    server_sums: int = 0
    whole_sums: int = 0
    server_packets: int = 0
    collisions: int = 0
    evictions: int = 0
    #: Every transmission in order, if asked for.
    packets: NDArray[np.void] = field(default_factory=lambda: np.empty(0, PACKET))


def empty_record(program: FlatPlan) -> Record:
    """Return a record of the right shape in which nothing has happened yet."""
    rounds, links = program.iterations, len(program.link_source)
    ready, sent, delivered = (_times(rounds, program.messages) for _ in range(3))
    carried, busy, drops, losses, marks, peak, background_drops = np.zeros((7, links), dtype=np.int64)
    return Record(
        _times(rounds + 1, program.gates),
        _times(rounds, program.gates),
        _times(rounds, program.gates),
        ready,
        sent,
        delivered,
        np.zeros_like(delivered),
        carried,
        busy,
        drops,
        losses,
        marks,
        peak,
        background_drops,
    )
