"""Entities in a file: a P4Runtime WriteRequest in text form, checked as a switch would, as operations."""

from __future__ import annotations

from google.protobuf import text_format

from tensorexpress.errors import ProgramError
from tensorexpress.p4runtime_messages import p4runtime_pb2
from tensorexpress.switch.operations import Operation
from tensorexpress.switch.p4runtime.fitting import Fitted, fit
from tensorexpress.switch.p4runtime.p4info import read_p4info
from tensorexpress.switch.p4runtime.rows import Initial
from tensorexpress.switch.p4runtime.store import Recorder, Store


def read_entries(
    p4info_text: str, entries_text: str, document: bytes | None = None, *, cpu_port: int | None = None
) -> list[Operation]:
    """Return the operations of a WriteRequest in text form: all of its updates in order, each of them validated.

    With the program (`document`, BMv2 JSON) the P4Info is checked against it, and updates may refer to entries that
    the program itself starts with. Raises ProgramError naming the first update, counted from 1, that a switch would
    refuse.
    """
    schema = read_p4info(p4info_text)
    fitted = Fitted(schema, Initial()) if document is None else fit(schema, document)
    recorder = Recorder()
    recorder.apply(fitted.initial.renamed)
    write_entries(Store(fitted.schema, recorder, fitted.initial, cpu_port), entries_text)
    return recorder.operations


def write_entries(store: Store, entries_text: str) -> None:
    """Make all updates of a WriteRequest in text form; ProgramError names the first that is refused, from 1."""
    for number, refusal in enumerate(store.write(_updates(entries_text)), start=1):
        if refusal:
            raise ProgramError(f"entries: update {number} is refused ({refusal.code.name}): {refusal}")


def _updates(text: str) -> list[object]:
    request = p4runtime_pb2.WriteRequest()
    try:
        text_format.Parse(text, request)
    except (text_format.ParseError, UnicodeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ProgramError(f"entries are not a P4Runtime WriteRequest in text form: {reason}") from None
    return list(request.updates)
