"""Notes of runs: what a reader must know of the machine beside the numbers, as a file among the traces of a run."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from reprlib import repr as short_repr

from tensorexpress.errors import InputError
from tensorexpress.files import read_json, write_atomic
from tensorexpress.text import json_text

#: What says that a file holds notes, and of which form.
FORMAT = "tensorexpress notes"
VERSION = 1

_NAME = "notes.json"
_REMEDY = "delete it, or make the run again with `tensorexpress run -o`"


def write_notes(directory: str | PathLike[str], notes: Sequence[str]) -> None:
    """Write the notes of a run beside its traces."""
    document = {"format": FORMAT, "version": VERSION, "notes": list(notes)}
    write_atomic(Path(directory) / _NAME, json_text(document))


def read_notes(directory: str | PathLike[str]) -> tuple[str, ...]:
    """Return the notes among the traces of a directory; none where there is no such file."""
    path = Path(directory) / _NAME
    if not path.exists():
        return ()
    document = read_json(path, _REMEDY)
    if not isinstance(document, dict) or (document.get("format"), document.get("version")) != (FORMAT, VERSION):
        raise InputError(
            f"{path}: is {short_repr(document)}; accepted: format {FORMAT!r}, version {VERSION}; {_REMEDY}"
        )
    notes = document.get("notes")
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise InputError(f"{path}: notes is {short_repr(notes)}; accepted: a list of texts; {_REMEDY}")
    return tuple(notes)
