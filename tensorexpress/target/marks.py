"""Marks: how we know again the namespaces, cables and directories that are ours, and whose maker is gone.

A process that makes some draws a random mark, which all their names carry. The mark is also the name of a file in a
directory that nobody else can write, and the process holds a lock on that file: the kernel gives it back with the
process, however that ends, and a pid that is used again means nothing. So what is removed is exactly what carries a
mark that is written there and whose lock nobody holds. A directory is locked itself.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from tensorexpress.errors import NetworkError

#: Letters and digits of a mark: with "te", a kind and five digits it makes the 15 characters of an interface's name.
_ALPHABET, _LENGTH = "abcdefghijklmnopqrstuvwxyz234567", 7
_MARK = re.compile(f"[{_ALPHABET}]{{{_LENGTH}}}")

#: How directories for the sockets of a run begin.
_PREFIX = "tensorexpress-run-"

_numbers = count()


class _OwnMark:
    """The mark of this process: there while something carries it."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._pid, self._uses, self._mark, self._file = 0, 0, "", -1

    def take(self) -> str:
        with self._changing:
            if self._pid != os.getpid():  # a child of fork() has one of its own
                self._pid, self._uses = os.getpid(), 0
            if not self._uses:
                self._mark, self._file = _new_mark()
            self._uses += 1
            return self._mark

    def give_back(self) -> None:
        with self._changing:
            self._uses -= 1
            if not self._uses:
                with suppress(OSError):
                    (directory() / self._mark).unlink()
                os.close(self._file)


_own = _OwnMark()


@contextmanager
def marked_name(kind: str) -> Iterator[str]:
    """Give a name that nobody has, for something of a kind (a letter); on the way out that must be gone."""
    mark = _own.take()
    name = f"te{mark}{kind}{next(_numbers)}"
    try:
        yield name
    finally:
        # What could not be removed keeps the mark for who comes after.
        if not any(Path(place, name).exists() for place in ("/run/netns", "/sys/class/net")):
            _own.give_back()


def mark_of(name: str) -> str | None:
    """Return the mark that a name carries; None for one that carries none.

    >>> mark_of("teabcdef2n0"), mark_of("te123n0"), mark_of("tether0")
    ('abcdef2', None, None)
    """
    match = re.fullmatch(rf"te({_MARK.pattern})[a-z]\d+", name)
    return match[1] if match else None


@contextmanager
def abandoned() -> Iterator[set[str]]:
    """Give the marks of processes that are gone, and forget them if all went well; one process at a time does so."""
    place = directory()
    with _locked(place):
        gone = {name for name in os.listdir(place) if _MARK.fullmatch(name) and _is_abandoned(place / name)}
        yield gone
        for name in gone:
            (place / name).unlink(missing_ok=True)


@contextmanager
def private_directory() -> Iterator[str]:
    """Give a directory that no other user can look into; remove those that processes left which are gone."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if _is_own_directory(left) and _is_abandoned(left):
            shutil.rmtree(left, ignore_errors=True)
    path, lock = _new_directory()
    try:
        yield str(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _new_directory() -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        with suppress(FileNotFoundError):  # another process took it for one that was left, before it was locked
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists():
                return path, lock
            os.close(lock)


def _is_own_directory(path: Path) -> bool:
    """Whether this is a directory of this user that is closed to all others."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def directory(*places: Path) -> Path:
    """Return the directory of marks, the first of these or of the usual places that can be one.

    It is of this user, and closed to all others.
    """
    refused = []
    for place in places or (Path("/run/tensorexpress"), Path(tempfile.gettempdir(), f"tensorexpress-{os.geteuid()}")):
        with suppress(OSError):
            place.mkdir(mode=0o700, exist_ok=True)
        if _is_own_directory(place):
            return place
        if place.exists():
            refused.append(str(place))
    raise NetworkError(
        f"there is no directory to note namespaces in: {' and '.join(refused) or 'none'} must be a directory of this "
        "user with mode 0700; remove what is there, or make /run writable"
    )


def _new_mark() -> tuple[str, int]:
    place = directory()
    with _locked(place):  # so that nobody finds the file before its lock is held
        while True:
            mark = "".join(secrets.choice(_ALPHABET) for _ in range(_LENGTH))
            with suppress(FileExistsError):
                file = os.open(place / mark, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                fcntl.flock(file, fcntl.LOCK_EX)
                return mark, file


def _is_abandoned(path: Path) -> bool:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(file)
    return True


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
