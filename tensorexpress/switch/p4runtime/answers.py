"""Refusals on their way to a client: what a default client of gRPC takes, so that none is lost.

gRPC sends the status of a request as metadata, of which clients take 8 KiB by default and drop the rest with all that
it says. P4Runtime wants an error for each update of a batch. For a batch with few updates that fits, at first with all
texts, then with the texts of the first refusals alone. A larger batch that may be done in part gets one line that names
what was refused in ranges; where not even those fit, the batch is not done at all. So what the client is told is always
the whole truth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, NoReturn

import grpc

from tensorexpress.errors import NetworkError, ProgramError
from tensorexpress.p4runtime_messages import p4runtime_pb2, status_pb2
from tensorexpress.switch.p4runtime.status import Code, Refused, invalid

#: Clients take 8 KiB of metadata; some 300 bytes of it are names and numbers.
_LARGEST_STATUS_BYTES = 7 << 10
#: A line for a person, and what a summary may say about single updates.
_LONGEST_LINE = 1000
_LONGEST_SUMMARY = 600
#: Bytes of one p4.v1.Error without its text, as a detail of a status.
_DETAIL_BYTES = 40

#: Updates of a batch, or entities of a read, for each of which an answer has room.
LARGEST_DETAILED_BATCH = (_LARGEST_STATUS_BYTES - 200) // _DETAIL_BYTES

_GRPC_CODES = {code.value[0]: code for code in grpc.StatusCode}


@contextmanager
def refusing(context: Any) -> Iterator[None]:
    """End the request with the code of whatever refuses it."""
    try:
        yield
    except Refused as refusal:
        abort(context, refusal)
    except ProgramError as error:
        abort(context, invalid(str(error)))
    except RecursionError:
        abort(context, invalid("a message that is nested too deeply"))
    except NetworkError as error:
        abort(context, Refused(Code.UNAVAILABLE, str(error)))


def abort(context: Any, refusal: Refused) -> NoReturn:
    """End the request; what a client sent may stand in the text, and is cut to a length that arrives."""
    context.abort(_GRPC_CODES[refusal.code], shortened(str(refusal), _LONGEST_LINE))
    raise AssertionError("context.abort raises")


def abort_batch(context: Any, refusals: Sequence[Refused | None]) -> NoReturn:
    """End a request with one p4.v1.Error for each of its parts, or one line about all where they are too many."""
    message = f"{_number_of(refusals)} of {len(refusals)} refused"
    if len(refusals) > LARGEST_DETAILED_BATCH:
        first = next(refusal for refusal in refusals if refusal is not None)
        abort(context, Refused(first.code, f"{message}, the others are done: {summary(refusals)}"))
    details = _status(message, refusals)
    context.set_trailing_metadata((("grpc-status-details-bin", details),))
    context.abort(grpc.StatusCode.UNKNOWN, message)
    raise AssertionError("context.abort raises")


def can_be_told(refusals: Sequence[Refused | None]) -> bool:
    """Whether one answer has room for what became of every part of a request."""
    if len(refusals) <= LARGEST_DETAILED_BATCH:
        return True
    room = _LONGEST_SUMMARY
    for words in _ranges(refusals):
        room -= len(words) + 2
        if room < 0:
            return False
    return True


def not_done(refusals: Sequence[Refused | None], updates: int) -> Refused:
    """Return the refusal of a whole batch that has more updates than an answer can list, and was tried that far."""
    return Refused(
        Code.ABORTED,
        f"nothing is done: {_number_of(refusals)} of {updates} updates refused, and an answer has no room to name all; "
        f"leave them out, or send at most {LARGEST_DETAILED_BATCH} at a time: {summary(refusals)}",
    )


def summary(refusals: Sequence[Refused | None]) -> str:
    """Return which parts of a request are refused with which code, and the text of the first.

    >>> exists = Refused(Code.ALREADY_EXISTS, "it is there")
    >>> summary([None, exists, exists, None, invalid("no")])
    '1-2 ALREADY_EXISTS, 4 INVALID_ARGUMENT; 1: it is there'
    """
    first = next(index for index, refusal in enumerate(refusals) if refusal is not None)
    said, length = [], 0
    for words in _ranges(refusals):
        length += len(words) + 2
        if length > _LONGEST_SUMMARY:
            said.append("...")
            break
        said.append(words)
    return f"{', '.join(said)}; {first}: {refusals[first]}"


def _ranges(refusals: Sequence[Refused | None]) -> Iterator[str]:
    for code, group in groupby(enumerate(refusals), key=lambda each: each[1] and each[1].code):
        if code is not None:
            indexes = [index for index, _ in group]
            yield f"{indexes[0]}{f'-{indexes[-1]}' if len(indexes) > 1 else ''} {code.name}"


def shortened(text: str, longest: int) -> str:
    """Return a text of at most so many characters that are written as one byte each."""
    plain = text.encode("ascii", "backslashreplace").decode()
    return plain if len(plain) <= longest else f"{plain[: longest - 3]}..."


def _number_of(refusals: Sequence[Refused | None]) -> int:
    return sum(refusal is not None for refusal in refusals)


def _status(message: str, refusals: Sequence[Refused | None]) -> bytes:
    """Return the status with the code of every part, and the texts of the first ones as far as they fit."""
    status = status_pb2.Status(code=Code.UNKNOWN, message=message)
    room = _LARGEST_STATUS_BYTES - 200 - _DETAIL_BYTES * len(refusals)
    for refusal in refusals:
        error = p4runtime_pb2.Error()
        if refusal:
            error.canonical_code = refusal.code
            text = shortened(str(refusal), _LONGEST_LINE)
            room -= len(text) + 4
            # Once one has found no room, a shorter one behind it would only seem more important.
            error.message = text if room > 0 else ""
        status.details.add().Pack(error)
    return bytes(status.SerializeToString())
