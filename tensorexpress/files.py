"""Writing files whole or not at all, directories for them, and reading JSON."""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
from collections import Counter
from pathlib import Path
from typing import Any

from tensorexpress.errors import InputError, shown

#: Longest JSON file that is read; plans of a million slices are shorter.
LARGEST_JSON_BYTES = 2**28


def write_atomic(path: str | os.PathLike[str], data: str | bytes) -> None:
    """Write a file so that a reader sees the old content or all of the new, never a part; text is UTF-8.

    The data goes to a new file in the same directory, which then takes the name. A link is followed; a pipe or
    device, which cannot be replaced, is written to as it is.
    """
    content = data.encode() if isinstance(data, str) else data
    try:
        target = os.path.realpath(path)
        if os.path.isdir(target):
            raise _is_directory(path)
        if _is_special(path):
            Path(path).write_bytes(content)
        else:
            _write_and_rename(target, content)
    except (OSError, ValueError) as error:
        raise _cannot_write(path, error.strerror if isinstance(error, OSError) else str(error)) from None


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise the error that `write_atomic` would raise, as far as that can be known without writing."""
    target = os.path.realpath(path)
    directory = os.path.dirname(target)
    if os.path.isdir(target):
        raise _is_directory(path)
    if _is_special(path):
        return
    if not os.path.isdir(directory):
        raise _cannot_write(path, os.strerror(errno.ENOENT))
    if not os.access(directory, os.W_OK):
        raise _cannot_write(path, os.strerror(errno.EACCES))


def make_directory(path: str | os.PathLike[str]) -> None:
    """Make the directory that files will go to, if it is not there."""
    try:
        os.makedirs(path, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"cannot write to {os.fspath(path)!r}: {reason}; give a directory that can be made") from None


def read_json(path: str | os.PathLike[str], remedy: str, kind: type[InputError] = InputError) -> Any:
    """Return what a JSON file holds; an error of this kind, with what to do, when that cannot be."""
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST_JSON_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise kind(f"{path}: cannot be read ({reason}); {remedy}") from None
    if len(content) > LARGEST_JSON_BYTES:
        raise kind(f"{path}: is larger than {LARGEST_JSON_BYTES} bytes; {remedy}")
    try:
        return parse_json(content)
    except ValueError as error:
        raise kind(f"{path}: is not JSON ({error}); {remedy}") from None


def parse_json(content: str | bytes) -> Any:
    """Return what JSON holds; ValueError for what RFC 8259 does not have, or leaves to chance.

    Python alone would take NaN and Infinity, numbers beyond its own, and of two members of one name the last.
    """
    try:
        return json.loads(
            content, parse_constant=_no_number, parse_float=_finite, object_pairs_hook=_with_different_names
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number in JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{shown(text)} is too large a number")
    return value


def _with_different_names(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) < len(members):
        twice = next(name for name, uses in Counter(name for name, _ in members).items() if uses > 1)
        raise ValueError(f"an object has two members {shown(twice)}")
    return found


def _is_special(path: str | os.PathLike[str]) -> bool:
    """Whether this is a pipe or a device, which is written to and not replaced."""
    return os.path.exists(path) and not os.path.isfile(path)


def _is_directory(path: str | os.PathLike[str]) -> InputError:
    return InputError(f"cannot write {os.fspath(path)!r}: it is a directory; give the name of a file")


def _cannot_write(path: str | os.PathLike[str], reason: str | None) -> InputError:
    return InputError(
        f"cannot write {os.fspath(path)!r}: {reason}; give a file in a directory that exists and is writable"
    )


def _write_and_rename(target: str, content: bytes) -> None:
    temporary = os.path.join(os.path.dirname(target), f".tensorexpress-{secrets.token_hex(8)}.tmp")
    # Opened by hand, and not by tempfile, so that the file gets the mode any new file of this user has.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
