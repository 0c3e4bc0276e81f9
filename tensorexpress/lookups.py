"""Lookups of a sparse table as they were seen: read from a CSV, counted, and cut into halves.

A CSV of lookups has one of two forms. `key,count` says how often every key was looked up. `batch,key` has a row for
every lookup and says in which batch of a worker it was, so that it is known, too, which keys are used together.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tensorexpress.errors import InputError, shown
from tensorexpress.files import open_input
from tensorexpress.names import name_of_file
from tensorexpress.sparse import Covered, Floats, touched

Integers = NDArray[np.int64]

COUNTS, BATCHES = "key,count", "batch,key"

#: A sample need not be longer: a million lookups know the share of hot keys to a thousandth.
LARGEST_FILE_BYTES = 2**27
MOST_ROWS = 10_000_000

#: Digits of a number in a file, so that all fit into 64 bits.
_MOST_DIGITS = 18

#: All lookups of a file together; sums stay exact as floating-point numbers.
_MOST_LOOKUPS = 10**15

_NUMBER = re.compile(rf"[0-9]{{1,{_MOST_DIGITS}}}")


@dataclass(frozen=True, eq=False)
class LookupSample:
    """Lookups of one table. Keys are in the order of their heat: their place in it is their rank.

    The heat of a key is in how many batches it is, for a row is sent once in an iteration, however often it was looked
    up; of equal ones, and where batches are not known, it is how often it was looked up; then the smaller key is first.
    """

    name: str
    keys: Integers
    #: Lookups of every key.
    counts: Integers
    #: Number of batches; 0 where the sample does not know them.
    batches: int
    #: Every key of every batch once, by batch and then by rank: the batch, the rank, and how often it was looked up.
    of_batch: Integers
    of_rank: Integers
    of_count: Integers

    @property
    def lookups(self) -> int:
        """All lookups."""
        return int(self.counts.sum())

    @property
    def touches(self) -> Integers:
        """In how many batches every key is."""
        return np.bincount(self.of_rank, minlength=len(self.keys))


@dataclass(frozen=True, eq=False)
class SampleHeat:
    """The rows of a sample from the hottest on, as `ZipfHeat` is those of a model."""

    of_lookups: Floats
    rows: Floats

    @property
    def keys(self) -> int:
        """How many rows there are."""
        return len(self.rows)

    def covered(self, hot: int) -> Covered:
        """Return what the `hot` hottest rows are in for."""
        last = min(hot, self.keys) - 1
        return Covered(float(self.of_lookups[last]), float(self.rows[last])) if last >= 0 else Covered(0.0, 0.0)

    def together(self, workers: int) -> float:
        """Return how many rows so many workers touch in an iteration, if their batches are independent."""
        of_one = np.diff(self.rows, prepend=0.0)
        return float(touched(np.minimum(of_one, 1.0), workers).sum())


def heat_of(sample: LookupSample, lookups: int = 0) -> SampleHeat:
    """Return how hot the rows of a sample are; `lookups` of a worker's iteration where it does not know batches."""
    shares = sample.counts / sample.lookups
    rows = sample.touches / sample.batches if sample.batches else touched(shares, lookups)
    return SampleHeat(np.cumsum(shares), np.cumsum(rows))


def sample_of_counts(name: str, keys: Integers, counts: Integers) -> LookupSample:
    """Return a sample of keys, each once, and how often they were looked up."""
    order = np.lexsort((keys, -counts))
    none = np.empty(0, dtype=np.int64)
    return LookupSample(name, keys[order], counts[order], 0, none, none, none)


def sample_of_batches(name: str, batch: Integers, key: Integers) -> LookupSample:
    """Return a sample of lookups: the batch and the key of each."""
    _, batch = np.unique(batch, return_inverse=True)
    keys, place, counts = np.unique(key, return_inverse=True, return_counts=True)
    pairs, of_count = np.unique(batch * len(keys) + place, return_counts=True)
    of_batch, place = np.divmod(pairs, len(keys))
    order = np.lexsort((keys, -counts, -np.bincount(place, minlength=len(keys))))
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    sort = np.lexsort((rank[place], of_batch))
    return LookupSample(
        name, keys[order], counts[order], int(of_batch[-1]) + 1, of_batch[sort], rank[place][sort], of_count[sort]
    )


def halves(sample: LookupSample, seed: int = 1) -> tuple[LookupSample, LookupSample] | None:
    """Return a half of a sample to find hot keys in, and the other half to hold them against; None if one is empty.

    These are the earlier and the later batches, as hot keys are found before they are used. Where there are no two
    batches, every lookup is in one half or the other by chance, always the same for a seed.
    """
    if sample.batches > 1:
        later = sample.of_batch >= sample.batches // 2
        return _of_pairs(sample, ~later), _of_pairs(sample, later)
    earlier = np.random.default_rng(seed).binomial(sample.counts, 0.5)
    parts = [(counts > 0, counts) for counts in (earlier, sample.counts - earlier)]
    if not all(there.any() for there, _ in parts):
        return None
    found, held = (sample_of_counts(sample.name, sample.keys[there], counts[there]) for there, counts in parts)
    return found, held


def _of_pairs(sample: LookupSample, chosen: NDArray[np.bool_]) -> LookupSample:
    repeats = sample.of_count[chosen]
    batch, rank = (np.repeat(column[chosen], repeats) for column in (sample.of_batch, sample.of_rank))
    return sample_of_batches(sample.name, batch, sample.keys[rank])


def read_lookups(path: str | os.PathLike[str]) -> LookupSample:
    """Return the sample of a CSV with the header `key,count` or `batch,key`, and whole numbers below."""
    place = os.fspath(path)
    header, _, body = _content(place).partition(b"\n")
    form = header.decode("utf-8-sig", "replace").replace(" ", "").strip()  # spreadsheets put a mark in front
    if form not in (COUNTS, BATCHES):
        raise InputError(f"{place}:1: header is {shown(form)}; accepted: {COUNTS}, or {BATCHES}")
    first, second = _columns(place, form, body)
    if not len(first):
        raise InputError(f"{place}:2: no row after the header; accepted: a row for every {form.partition(',')[0]}")
    name = name_of_file(Path(place).stem)
    if form == BATCHES:
        return sample_of_batches(name, first, second)
    _check_counts(place, body, first, second)
    return sample_of_counts(name, first, second)


def _content(place: str) -> bytes:
    accepted = f"accepted: a CSV file with the header {COUNTS} or {BATCHES}"
    try:
        with open_input(place) as file:
            content = file.read(LARGEST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"cannot read {place!r}: {reason}; {accepted}") from None
    if len(content) > LARGEST_FILE_BYTES:
        raise InputError(f"{place}: is larger than {LARGEST_FILE_BYTES} bytes; accepted: fewer rows, as a sample")
    if not content:
        raise InputError(f"{place}: is empty; {accepted}")
    return content


def _columns(place: str, form: str, body: bytes) -> tuple[Integers, Integers]:
    """Return both columns; the usual form of rows is read all at once, any other row by row."""
    plain = body.replace(b"\r\n", b"\n")
    plain = plain if plain.endswith(b"\n") or not plain else plain + b"\n"
    if plain.count(b"\n") > MOST_ROWS:
        raise InputError(f"{place}: has more than {MOST_ROWS} rows; accepted: fewer, as a sample")
    if _is_plain(plain):
        numbers = np.fromstring(plain.replace(b"\n", b",").decode("ascii"), dtype=np.int64, sep=",")
        return numbers[0::2], numbers[1::2]
    rows = [
        _row(f"{place}:{number}", form, line)
        for number, line in enumerate(plain.split(b"\n"), 2)
        if line.strip()  # an empty line says nothing
    ]
    columns = np.array(rows, dtype=np.int64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]


def _is_plain(body: bytes) -> bool:
    """Whether all rows are two numbers with a comma between them, and nothing else."""
    raw = np.frombuffer(body, dtype=np.uint8)
    is_comma, is_end = raw == ord(","), raw == ord("\n")
    stops = np.flatnonzero(is_comma | is_end)
    digits = np.diff(stops, prepend=-1) - 1
    return bool(
        len(stops) % 2 == 0
        and is_comma[stops[0::2]].all()
        and is_end[stops[1::2]].all()
        and ((digits >= 1) & (digits <= _MOST_DIGITS)).all()
        and (is_comma | is_end | ((raw >= ord("0")) & (raw <= ord("9")))).all()
    )


def _row(where: str, form: str, line: bytes) -> tuple[int, int]:
    if not line.isascii():
        at = next(byte for byte in line if byte > 127)
        raise InputError(f"{where}: byte 0x{at:02x} is no part of a number; accepted: rows of {form}, in ASCII")
    fields = [field.strip() for field in line.decode("ascii").split(",")]
    if len(fields) != 2:
        raise InputError(f"{where}: {shown(line.decode('ascii'))} has {len(fields)} of 2 columns; accepted: {form}")
    for column, field in zip(form.split(","), fields, strict=True):
        if not _NUMBER.fullmatch(field):
            accepted = f"a whole number from 0 on, of at most {_MOST_DIGITS} digits"
            raise InputError(f"{where}: {column} is {shown(field)}; accepted: {accepted}")
    return int(fields[0]), int(fields[1])


def _check_counts(place: str, body: bytes, keys: Integers, counts: Integers) -> None:
    """Refuse a key that stands in two rows, and counts of nothing or of too much; the message names the line."""
    if not counts.all():
        where = f"{place}:{_line(body, int(np.argmin(counts != 0)))}"
        raise InputError(f"{where}: count is 0; accepted: 1 or more; leave keys out that were not looked up")
    if counts.astype(np.float64).sum() > _MOST_LOOKUPS:
        raise InputError(f"{place}: has more than {_MOST_LOOKUPS} lookups; accepted: fewer, as a sample")
    _, first = np.unique(keys, return_index=True)
    if len(first) < len(keys):
        again = np.ones(len(keys), dtype=bool)
        again[first] = False
        row = int(np.argmax(again))
        raise InputError(f"{place}:{_line(body, row)}: key {keys[row]} stands here again; accepted: every key once")


def _line(body: bytes, row: int) -> int:
    """Return the line of a row: empty lines are none."""
    filled = (number for number, line in enumerate(body.split(b"\n"), 2) if line.strip())
    return next(number for index, number in enumerate(filled) if index == row)
