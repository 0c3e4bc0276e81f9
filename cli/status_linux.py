"""tensorexpress status --dev: the queues that `deploy --target linux` gave an interface, and their packets."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tensorexpress.text import grid
from tensorexpress.units import counted, format_rate, format_size

if TYPE_CHECKING:
    from tensorexpress.tc import InterfaceState

_HEAD = ["queue", "DSCP", "packets", "bytes", "drops", "waiting", "limit"]


def interface_json(device: str, state: InterfaceState) -> dict[str, Any]:
    """Return the queues of an interface as JSON."""
    return {"device": device, **asdict(state)}


def interface_table(device: str, state: InterfaceState) -> str:
    """Return the queues of an interface as a table, below a line with the rate that they share."""
    share = "the interface's own speed" if state.rate_bps is None else format_rate(state.rate_bps)
    rows = [
        [
            f"{number}",
            _ranges(queue.dscps),
            f"{queue.packets}",
            f"{queue.bytes}",
            f"{queue.drops}",
            counted(queue.waiting_packets, "packet") if queue.waiting_packets else "-",
            format_size(queue.limit_bytes),
        ]
        for number, queue in enumerate(state.queues)
    ]
    return "\n".join([f"{device}: {counted(len(rows), 'queue')} ({state.kind}) on {share}", *grid([_HEAD, *rows])])


def _ranges(numbers: tuple[int, ...]) -> str:
    """Return numbers as ranges.

    >>> _ranges((0, 1, 2, 40, 46))
    '0-2, 40, 46'
    """
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in ranges) or "-"
