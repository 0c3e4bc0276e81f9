"""Writing files whole or not at all, directories for them, reading within bounds, and JSON."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import secrets
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any, BinaryIO

from tensorexpress.errors import InputError, StorageError, shown

#: What a disk can do to us, and what to do about it.
_OF_THE_DISK = {
    errno.ENOSPC: "the disk is full; free room, or give another file",
    errno.EDQUOT: "your share of the disk is used up; free room, or give another file",
    errno.EIO: "the disk fails; give a file on another one",
}


#: Where errors of the disk wait for the end of a verb; None where they are raised at once.
_kept: ContextVar[list[StorageError] | None] = ContextVar("kept", default=None)

#: Names of temporary files of writes in progress.
_temporaries: set[str] = set()

#: Longest JSON file that is read; plans of a million slices are shorter.
LARGEST_JSON_BYTES = 2**28

#: Longest file of certificates or of a key that is read.
LARGEST_PEM_BYTES = 2**20

#: How long a named pipe may be without a process that opens it for writing.
PIPE_WAIT_S = 1.0


def of_the_disk(error: OSError) -> str | None:
    """Return what a disk did and what to do about it; None for an error that is not the disk's."""
    return _OF_THE_DISK.get(error.errno or 0)


def write_atomic(path: str | os.PathLike[str], data: str | bytes) -> bool:
    """Write a file so that a reader sees the old content or all of the new, never a part; text is UTF-8.

    The data goes to a new file in the same directory, which takes the name once it is on the disk: not even a power
    failure leaves a part. A link is followed; a pipe or device, which cannot be replaced, is written to as it is.

    Returns True; False where the disk is full or fails and `failures_kept` says so later.
    """
    content = data.encode() if isinstance(data, str) else data
    try:
        target = _target(path)
        if is_special(path):
            Path(path).write_bytes(content)
        else:
            _write_and_rename(target, content)
    except (OSError, ValueError) as error:
        problem = of_the_disk(error) if isinstance(error, OSError) else None
        if problem is None:
            raise _cannot_write(path, error.strerror if isinstance(error, OSError) else str(error)) from None
        failure = StorageError(f"cannot write {os.fspath(path)!r}: {problem}")
        kept = _kept.get()
        if kept is None:
            raise failure from None
        kept.append(failure)
        return False
    return True


@contextmanager
def failures_kept() -> Iterator[None]:
    """Let a verb go on where a file cannot be written for want of room, and raise that error at its end.

    So a full disk does not take with it what was computed: the table is still printed, and other files are written.
    """
    failures: list[StorageError] = []
    before = _kept.set(failures)
    try:
        yield
    except SystemExit:
        if not failures:
            raise
    finally:
        _kept.reset(before)
    if failures:
        more = f" ({len(failures) - 1} more could not be written)" if len(failures) > 1 else ""
        raise StorageError(f"{failures[0]}{more}")


@contextmanager
def locked_directory(path: str | os.PathLike[str]) -> Iterator[None]:
    """Make a directory for files, and keep it from all others that want to write there until they are written.

    The lock goes with the process, however that ends.
    """
    make_directory(path)
    lock = os.path.join(path, ".tensorexpress.lock")
    descriptor = _take_lock(path, lock)
    try:
        yield
    finally:
        with suppress(OSError):
            os.unlink(lock)
        os.close(descriptor)


def _take_lock(path: str | os.PathLike[str], lock: str) -> int:
    while True:
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise InputError(
                f"cannot write to {os.fspath(path)!r}: {error.strerror}; give a directory that is writable"
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(lock)):
                return descriptor
        except FileNotFoundError:  # whoever had the lock is just done, and has removed the file
            pass
        except OSError:
            os.close(descriptor)
            raise InputError(
                f"{os.fspath(path)!r} is being written to by another process; give another directory, or wait for it"
            ) from None
        os.close(descriptor)


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise the error that `write_atomic` would raise, as far as that can be known without writing."""
    try:
        directory = os.path.dirname(_target(path))
    except (OSError, ValueError) as error:
        raise _cannot_write(path, error.strerror if isinstance(error, OSError) else str(error)) from None
    if is_special(path):
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


def open_input(path: str | os.PathLike[str]) -> BinaryIO:
    """Return a file opened for reading bytes; OSError for a named pipe that no process opens for writing in time."""
    if not stat.S_ISFIFO(os.stat(path).st_mode) or not os.access(path, os.R_OK):
        return open(path, "rb")
    opened: Queue[BinaryIO] = Queue()
    # Opening a named pipe waits for a writer, for ever where none comes.
    Thread(target=lambda: opened.put(open(path, "rb")), daemon=True).start()  # noqa: SIM115
    try:
        return opened.get(timeout=PIPE_WAIT_S)
    except Empty:
        with suppress(OSError, Empty), open(os.open(path, os.O_RDWR | os.O_NONBLOCK), "rb", buffering=0):
            opened.get(timeout=PIPE_WAIT_S).close()  # this writer of our own ends the thread's wait
        raise OSError(errno.EPIPE, "a pipe that no process writes to") from None


def read_within(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """Return the bytes of a file; OSError for more than `most_bytes`, and as `open_input` does."""
    with open_input(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"larger than {most_bytes} bytes")
    return content


def read_pem(what: str, path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of a PEM file; InputError names what it was given for, such as an option."""
    at = f"{what} {os.fspath(path)!r}"
    try:
        content = read_within(path, LARGEST_PEM_BYTES)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{at}: cannot be read ({reason}); give a PEM file") from None
    if b"-----BEGIN" not in content:
        raise InputError(f"{at}: is no PEM file; give one that begins with '-----BEGIN'")
    return content


def read_json(path: str | os.PathLike[str], remedy: str, kind: type[InputError] = InputError) -> Any:
    """Return what a JSON file holds; an error of this kind, with what to do, when that cannot be."""
    try:
        with open_input(path) as file:
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


def is_special(path: str | os.PathLike[str]) -> bool:
    """Whether this is a pipe or a device, which is written to and not replaced."""
    return os.path.exists(path) and not os.path.isfile(path)


def _target(path: str | os.PathLike[str]) -> str:
    """Return the name of the file that is to be written, links followed; OSError for a name that no file can have."""
    target = os.path.realpath(path)
    with suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(target).st_mode):
            raise _is_directory(path)
    return target


def _is_directory(path: str | os.PathLike[str]) -> InputError:
    return InputError(f"cannot write {os.fspath(path)!r}: it is a directory; give the name of a file")


def _cannot_write(path: str | os.PathLike[str], reason: str | None) -> InputError:
    return InputError(
        f"cannot write {os.fspath(path)!r}: {reason}; give a file in a directory that exists and is writable"
    )


def remove_temporaries() -> None:
    """Remove the temporary files of writes in progress, before this process ends without a chance to do so."""
    for path in list(_temporaries):
        with suppress(OSError):
            os.unlink(path)


def _write_and_rename(target: str, content: bytes) -> None:
    temporary = os.path.join(os.path.dirname(target), f".tensorexpress-{secrets.token_hex(8)}.tmp")
    _temporaries.add(temporary)
    try:
        _write_as(target, temporary, content)
    finally:
        _temporaries.discard(temporary)


def _write_as(target: str, temporary: str, content: bytes) -> None:
    # Opened by hand, and not by tempfile, so that the file gets the mode any new file of this user has.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
    directory = os.open(os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)  # the new name is on the disk, too
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems have nothing to do here
            raise
    finally:
        os.close(directory)
