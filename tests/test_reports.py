"""Messages of the forwarding process come across as they were, and hostile ones run nothing in the other process."""

from __future__ import annotations

import json
import os
import pickle
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorexpress.errors import InputError, NetworkError, NotRootError, ProgramError, TensorExpressError
from tensorexpress.switch import reports
from tensorexpress.switch.counted import PortStatistics, Statistics
from tensorexpress.switch.link import DataLink, LinkClosedError
from tensorexpress.switch.operations import CpuFrame, Digest, Entry, IdleEntry, ReadRegister

numbers = st.integers(0, 2**4096)
keys = st.lists(st.none() | numbers | st.tuples(numbers, numbers)).map(tuple)
notices = (
    st.binary().map(CpuFrame)
    | st.builds(Digest, st.text(), st.lists(numbers).map(tuple))
    | st.builds(Entry, st.text(), keys, numbers).map(IdleEntry)
)
words = st.text("a '\"\\\N{SNOWMAN}", max_size=5)
counted = st.integers(0, 2**64)
counts = st.dictionaries(words, counted, max_size=3)
statistics = st.builds(
    Statistics,
    st.dictionaries(
        counted,
        st.builds(
            PortStatistics,
            *[counted] * 4,
            drops=counts,
            depths=st.lists(counted, max_size=8).map(tuple),
            deepest_bytes=st.lists(counted, max_size=8).map(tuple),
        ),
        max_size=3,
    ),
    counts,
    counts,
    counted,
    st.dictionaries(counted, counts.map(Counter), max_size=3),
)


@given(notices)
def test_a_notice_comes_across(notice: Any) -> None:
    assert reports.decode_notice(reports.encode_notice(notice)) == notice


@given(statistics)
def test_statistics_come_across(given: Statistics) -> None:
    sent = reports.encode(reports.encode_statistics(given))
    read = reports.read_statistics(reports.decode(sent))
    assert read == given
    assert all(type(struck) is Counter for struck in read.faults.values())


@pytest.mark.parametrize("error", [ProgramError("a line"), InputError("two\nlines"), NotRootError("root")])
def test_an_error_comes_across(error: TensorExpressError) -> None:
    read = reports.read_error(reports.decode(reports.encode(reports.encode_error(error))))
    assert (type(read), str(read)) == (type(error), str(error))


def test_an_error_of_another_module_is_its_base() -> None:
    read = reports.read_error(reports.encode_error(LinkClosedError("gone")))
    assert (type(read), str(read)) == (NetworkError, "gone")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
READERS = [
    reports.nothing,
    reports.cells,
    reports.numbers_by_port,
    reports.read_statistics,
    reports.read_error,
]


@pytest.mark.parametrize("read", READERS)
@given(value=json_values)
def test_any_other_value_is_refused_in_a_line(read: Callable[[Any], Any], value: Any) -> None:
    with suppress(reports.BadReportError):
        assert not isinstance(read(value), bool)


@given(st.binary() | st.binary().map(b"D".__add__) | json_values.map(lambda value: b"I" + json.dumps(value).encode()))
def test_any_other_notice_is_refused(content: bytes) -> None:
    try:
        notice = reports.decode_notice(content)
    except reports.BadReportError:
        return
    assert isinstance(notice, CpuFrame | Digest | IdleEntry)


def test_a_reason_that_would_move_the_cursor_is_refused() -> None:
    with pytest.raises(reports.BadReportError):
        reports.read_statistics([[], [["\x1b[2J", 1]], [], 0, []])


@pytest.mark.parametrize(
    "value", [True, -1, 1.5, "1", [[0, 1, 2]], [[True, 1]], [[0, [1, 2, 3]]], [[0, -5]], {"0": 1}, [[0, "x"]]]
)
def test_a_cell_is_a_number_or_two(value: Any) -> None:
    with pytest.raises(reports.BadReportError):
        reports.cells(value)


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def hostile(path: Path) -> dict[str, bytes]:
    """Return answers that a process which was taken over may send, with how long they claim to be."""

    def sized(content: bytes) -> bytes:
        return struct.pack("!Q", len(content)) + content

    payload = pickle.dumps(Payload(path))
    return {
        "pickled": sized(payload),
        "a pickled answer": sized(b"A" + payload),
        "a pickled error": sized(b"E" + payload),
        "of another kind": sized(b"Xnull"),
        "an answer that is none": sized(b"A[1]"),
        "an error of no such class": sized(b'E["SystemExit","x"]'),
        "an error of a class that is no error": sized(b'E["Iterable","x"]'),
        "nested without end": sized(b"A" + b"[" * 10**6),
        "a number without end": sized(b"A" + b"9" * 10**5),
        "too long": struct.pack("!Q", 2**60),
        "empty": sized(b""),
        "a cell of no query": sized(b"P[[1,5]]"),
        "a cell of query -1": sized(b"P[[-1,5]]"),
    }


@pytest.mark.parametrize("name", hostile(Path()))
def test_a_forwarding_process_that_was_taken_over_runs_nothing_here(name: str, tmp_path: Path) -> None:
    path = tmp_path / "made"
    here, there = socket.socketpair()
    notices = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link = DataLink(here, notices[0])

    def answer() -> None:
        there.recv(2**20)
        there.sendall(hostile(path)[name])

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(LinkClosedError, match="a message that is none of its own"):
        link.ask([ReadRegister("any", 0)])
    thread.join()
    with pytest.raises(LinkClosedError):  # it is not spoken to again
        link.packet_out(b"")
    assert not path.exists()
    link.close()
    there.close()
    notices[1].close()


def test_hostile_notices_run_nothing_either(tmp_path: Path) -> None:
    here, there = socket.socketpair()
    notices = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link = DataLink(here, notices[0])
    notices[1].send(reports.encode_notice(CpuFrame(b"frame")))
    notices[1].send(pickle.dumps(Payload(tmp_path / "made")))
    assert list(link.notices()) == [CpuFrame(b"frame")]
    assert not (tmp_path / "made").exists()
    link.close()
    there.close()
    notices[1].close()
