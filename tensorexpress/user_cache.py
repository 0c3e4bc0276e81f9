"""What was made before and is slow to make, in a directory of the user's own: machine code, profiles.

What is read from there is believed, and machine code is executed. So the directory and its files must belong to this
user, and nobody else may write there; otherwise nothing is read and nothing is kept.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

#: Files of a kind that are kept; the oldest go first.
_MOST_FILES = 64
_LARGEST_FILE = 2**24
_DIGEST_BYTES = hashlib.sha256().digest_size


def cache_directory(kind: str) -> Path:
    """Return where things of a kind are kept."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "tensorexpress" / kind


def cached(
    kind: str, name: str, make: Callable[[], bytes], is_good: Callable[[bytes], bool] = lambda content: True
) -> bytes:
    """Return what was made under a name before, if it is still good, else make it and keep it if that is safe."""
    found = kept(kind, name)
    if found is None or not is_good(found):
        found = make()
        keep(kind, name, found)
    return found


def kept(kind: str, name: str) -> bytes | None:
    """Return what is kept under a name, None where nothing is."""
    try:
        return _read(_own_directory(kind) / name)
    except (OSError, RuntimeError):  # RuntimeError: nobody knows where home is
        return None


def keep(kind: str, name: str, content: bytes) -> None:
    """Keep something under a name, in place of what was there, if that is safe."""
    with suppress(OSError, RuntimeError):
        directory = _own_directory(kind)
        _write(directory / name, content)
        _forget_oldest(directory)


def _own_directory(kind: str) -> Path:
    """Return the directory, made if it is not there; PermissionError if anybody else could write there."""
    directory = cache_directory(kind)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_own(os.lstat(directory), stat.S_ISDIR)
    return directory


def is_own(found: os.stat_result, is_kind: Callable[[int], bool]) -> bool:
    """Return whether a file of a kind belongs to this user, and its mode admits no other user."""
    return is_kind(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _check_own(found: os.stat_result, is_kind: Callable[[int], bool]) -> None:
    if not is_own(found, is_kind):
        raise PermissionError("others could have written it")


def _read(path: Path) -> bytes | None:
    """Return what a file holds; None where there is none, or not a whole one of this user's own."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            _check_own(os.fstat(descriptor), stat.S_ISREG)
            content = file.read(_LARGEST_FILE)
    except OSError:
        return None
    digest, kept = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return kept if hashlib.sha256(kept).digest() == digest else None


def _write(path: Path, content: bytes) -> None:
    """Put a file in its place at once, so that nobody sees a part of it."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)  # for this user alone
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(hashlib.sha256(content).digest() + content)
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _forget_oldest(directory: Path) -> None:
    files = sorted(directory.iterdir(), key=lambda file: file.lstat().st_mtime)
    for file in files[:-_MOST_FILES]:
        file.unlink(missing_ok=True)
