"""Messages of the forwarding process as plain JSON, checked when they are read.

The forwarding process handles frames of any sender. A frame that took it over must not run code in the controlling
process. So none of its messages is unpickled: the readers here return numbers, texts and known values, or raise
BadReportError.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from tensorexpress import errors
from tensorexpress.errors import NetworkError, TensorExpressError
from tensorexpress.switch.counted import PortStatistics, Statistics
from tensorexpress.switch.operations import CpuFrame, Digest, Entry, IdleEntry, Key, MatchValue, Notice

_CPU_FRAME, _DIGEST, _IDLE_ENTRY = b"F", b"D", b"I"

#: Errors by the name under which they are sent; the message is all that they hold.
_ERRORS = {
    each.__name__: each
    for each in vars(errors).values()
    if isinstance(each, type) and issubclass(each, TensorExpressError)
}

Value = TypeVar("Value")
Name = TypeVar("Name", int, str)
Reader = Callable[[Any], Value]


class BadReportError(NetworkError):
    """A message that no forwarding process of this version sends."""


def bad_report() -> BadReportError:
    """Return the error of a message that no forwarding process of this version sends."""
    return BadReportError(
        "the process that forwards packets sent a message that is none of its own; start the switch again"
    )


def encode(value: object) -> bytes:
    """Return lists, tuples, numbers, texts and None as JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


def decode(content: bytes) -> Any:
    """Return the value in JSON that came from the forwarding process."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise bad_report() from None


# Notices.


def encode_notice(notice: Notice) -> bytes:
    """Return a notice as bytes."""
    if isinstance(notice, CpuFrame):
        return _CPU_FRAME + notice.frame
    if isinstance(notice, Digest):
        return _DIGEST + encode([notice.name, notice.values])
    entry = notice.entry
    return _IDLE_ENTRY + encode([entry.table, entry.key, entry.priority])


def decode_notice(content: bytes) -> Notice:
    """Return the notice in bytes that `encode_notice` made."""
    kind, rest = content[:1], content[1:]
    if kind == _CPU_FRAME:
        return CpuFrame(rest)
    if kind == _DIGEST:
        name, values = _list(decode(rest), 2)
        return Digest(text(name), tuple(map(number, _list(values))))
    if kind == _IDLE_ENTRY:
        table, key, priority = _list(decode(rest), 3)
        return IdleEntry(Entry(text(table), _key(key), number(priority)))
    raise bad_report()


def _key(value: Any) -> Key:
    return tuple(map(_match, _list(value)))


def _match(value: Any) -> MatchValue:
    if value is None:
        return None
    return _pair(value) if isinstance(value, list) else number(value)


# Answers.


def nothing(value: Any) -> None:
    """Return None, of which an answer without a value consists."""
    if value is not None:
        raise bad_report()


def number(value: Any) -> int:
    """Return a number that is not negative."""
    if type(value) is not int or value < 0:
        raise bad_report()
    return value


def text(value: Any) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise bad_report()
    return value


def numbers_by_port(value: Any) -> dict[int, int]:
    """Return a number for each port; sent by `encode_pairs`."""
    return _pairs(value, number, number)


def cells(value: Any) -> list[tuple[int, Any]]:
    """Return cells of registers and counters, each with the number of the query that asked for it."""
    pairs = [_list(each, 2) for each in _list(value)]
    return [(number(query), _pair(cell) if isinstance(cell, list) else number(cell)) for query, cell in pairs]


def encode_pairs(counts: Any) -> list[Any]:
    """Return a mapping as a list of pairs."""
    return list(counts.items())


def encode_statistics(statistics: Statistics) -> list[Any]:
    """Return statistics as lists, for `read_statistics`."""
    return [
        [(port, _encode_port(of)) for port, of in statistics.ports.items()],
        encode_pairs(statistics.drops),
        encode_pairs(statistics.failures),
        statistics.dropped_notices,
        [(port, encode_pairs(struck)) for port, struck in statistics.faults.items()],
    ]


def read_statistics(value: Any) -> Statistics:
    """Return the statistics that `encode_statistics` made lists of."""
    ports, drops, failures, dropped_notices, faults = _list(value, 5)
    return Statistics(
        _pairs(ports, number, _port),
        _pairs(drops, _word, number),
        _pairs(failures, _word, number),
        number(dropped_notices),
        _pairs(faults, number, lambda struck: Counter(_pairs(struck, _word, number))),
    )


def _encode_port(port: PortStatistics) -> list[Any]:
    return [
        *(port.rx_frames, port.rx_bytes, port.tx_frames, port.tx_bytes),
        *(encode_pairs(port.drops), port.depths, port.deepest_bytes),
    ]


def _port(value: Any) -> PortStatistics:
    rx_frames, rx_bytes, tx_frames, tx_bytes, drops, depths, deepest = _list(value, 7)
    return PortStatistics(
        rx_frames=number(rx_frames),
        rx_bytes=number(rx_bytes),
        tx_frames=number(tx_frames),
        tx_bytes=number(tx_bytes),
        drops=_pairs(drops, _word, number),
        depths=tuple(map(number, _list(depths))),
        deepest_bytes=tuple(map(number, _list(deepest))),
    )


def encode_error(error: TensorExpressError) -> list[str]:
    """Return an error's name and message; an error that the other side does not have is sent as its nearest base."""
    name = next(each.__name__ for each in type(error).__mro__ if each.__name__ in _ERRORS)
    return [name, str(error)]


def read_error(value: Any) -> TensorExpressError:
    """Return the error that `encode_error` made a list of."""
    name, message = map(text, _list(value, 2))
    if name not in _ERRORS:
        raise bad_report()
    return _ERRORS[name](message)


def _word(value: Any) -> str:
    """Return a text that may be shown on a terminal."""
    if not text(value).isprintable():
        raise bad_report()
    return text(value)


def _list(value: Any, size: int | None = None) -> list[Any]:
    if not isinstance(value, list) or (size is not None and len(value) != size):
        raise bad_report()
    return value


def _pair(value: Any) -> tuple[int, int]:
    first, second = _list(value, 2)
    return number(first), number(second)


def _pairs(value: Any, first: Reader[Name], second: Reader[Value]) -> dict[Name, Value]:
    return {first(key): second(content) for key, content in (_list(each, 2) for each in _list(value))}
