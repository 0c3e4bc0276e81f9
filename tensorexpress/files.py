"""Writing files whole or not at all, directories for them, and reading JSON."""

from __future__ import annotations

import errno
import json
import os
import secrets
from pathlib import Path
from typing import Any

from tensorexpress.errors import InputError


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
        return json.loads(Path(path).read_bytes())
    except OSError as error:
        raise kind(f"{path}: cannot be read ({error.strerror}); {remedy}") from None
    except (ValueError, RecursionError) as error:
        raise kind(f"{path}: is not JSON ({error}); {remedy}") from None


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
