"""The compiled functions of the loop, as Python calls them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from tensorexpress.compiled_functions import Library


class Functions(NamedTuple):
    """What Python calls; numbers and addresses, as the functions of these names say."""

    run: Callable[[int, int], int]
    depart_at: Callable[[int, int, int], int]
    move_times: Callable[[int, int], int]
    enqueue: Callable[[int, int, int, int, int], int]
    dequeue: Callable[[int, int], int]
    free_record: Callable[[int, int], int]
    free_sent: Callable[[int], int]
    take_datagrams: Callable[[int, int, int, int], int]
    take_slots: Callable[[int, int, int], int]
    release_slots: Callable[[int], int]
    send_all: Callable[[int, int], int]
    record_arrivals: Callable[[int, int], int]
    forward: Callable[[int, int, int], int]
    stamps_of: Callable[[int, int, int], int]
    hold_arrivals: Callable[[int, int], int]
    hold_leaving: Callable[[int, int, int, int, int], int]
    due: Callable[[int], int]


#: How many numbers each of them takes.
_ARGUMENTS = {
    "run": 2,
    "depart_at": 3,
    "move_times": 2,
    "enqueue": 5,
    "dequeue": 2,
    "free_record": 2,
    "free_sent": 1,
    "take_datagrams": 4,
    "take_slots": 3,
    "release_slots": 1,
    "send_all": 2,
    "record_arrivals": 2,
    "forward": 3,
    "stamps_of": 3,
    "hold_arrivals": 2,
    "hold_leaving": 5,
    "due": 1,
}


_LOOP = Library(
    "loop",
    _ARGUMENTS,
    tuple(
        f"tensorexpress.switch.native.{name}" for name in ("steps", "queues", "cables", "sockets", "captures", "turns")
    ),
    waiting=("forward",),
    part="the switch",
)


@cache
def functions() -> Functions:
    """Return the functions of the loop; ImportError where they are not compiled yet and numba is not installed."""
    return Functions(*_LOOP.functions())
