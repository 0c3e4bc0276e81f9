"""Files of other tools that somebody changed: whatever was done to them, they are read, or refused in one line.

TENSOREXPRESS_MUTATIONS says how many changed files are tried of all formats together.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.foreign_files import TEXT, linked, packed, profile

from tensorexpress.errors import InputError
from tensorexpress.foreign.chakra_export import chakra_traces
from tensorexpress.foreign.recognise import read_foreign
from tensorexpress.plan import make_plan
from tensorexpress.policy import POLICIES
from tensorexpress.scenario import read_scenario
from tensorexpress.workload import read_csv, write_csv

MUTATIONS = int(os.environ.get("TENSOREXPRESS_MUTATIONS", "400"))

#: What stands for a number or a text that was there.
VALUES: list[Any] = [
    None,
    True,
    "",
    "a\nb",
    "\x1b[2J",
    0,
    -1,
    0.5,
    1e300,
    2**63,
    -(2**63),
    10**30,
    [],
    {},
    [[-1]],
    [[10**9] * 9],
]

WORDS = [
    b"-1",
    b"nan",
    b"NaN",
    b"1e999",
    b"9" * 40,
    b"\x00",
    b"\xff\xff",
    b"\n",
    b"{",
    b"[" * 3000,
    b"\xff" * 11,
    b"NONE",
    b"ALLTOALL",
]


def chakra() -> bytes:
    overrides = ["job.model=alexnet", "job.workers=1", "job.servers=1", "iterations=1", "warmup=0"]
    return next(chakra_traces(make_plan(read_scenario(overrides=overrides), POLICIES["tensorexpress"]), 0))


def changed_bytes(content: bytes, rng: random.Random) -> bytes:
    """Return a file with one or a few of its bytes, or a stretch of them, another, gone, or there twice."""
    made = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 3])):
        at = rng.randrange(len(made)) if made else 0
        to = min(len(made), at + rng.choice([1, 1, 4, 30]))
        action = rng.randrange(6)
        if action == 0:
            del made[at:to]
        elif action == 1:
            made[at:at] = made[at:to]
        elif action == 2:
            made[at:to] = rng.choice(WORDS)
        elif action == 3:
            del made[at:]
        else:
            made[at:to] = bytes(rng.randrange(256) for _ in range(to - at))
    return bytes(made)


def changed_values(content: bytes, rng: random.Random) -> bytes:
    """Return JSON with a value somewhere in it that is another, or gone."""
    document = json.loads(content)
    for _ in range(rng.choice([1, 1, 3])):
        place: Any = document
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = rng.choice(keys)
            if isinstance(place[key], dict | list) and place[key] and rng.random() < 0.9:
                place = place[key]
                continue
            if rng.random() < 0.2:
                del place[key]
            else:
                place[key] = rng.choice(VALUES)
            break
    return json.dumps(document).encode()


def changed_columns(content: bytes, rng: random.Random) -> bytes:
    """Return a text in which columns are others."""
    rows = [line.split(b"\t") for line in content.split(b"\n")]
    for _ in range(rng.choice([1, 1, 3])):
        row = rng.choice(rows)
        row[rng.randrange(len(row))] = rng.choice([*WORDS, rng.choice(rng.choice(rows))])
    return b"\n".join(b"\t".join(row) for row in rows)


PROFILE = profile(steps=1)
ON_GPU = profile(steps=2, launch_us=2.0, with_shapes=False, buckets=(2, 0))

#: What is changed, how, and with which choices it is read.
KINDS: dict[str, tuple[Callable[[], bytes], Callable[[bytes, random.Random], bytes], dict[str, str]]] = {
    "text": (lambda: TEXT.encode(), changed_bytes, {"unit": "us"}),
    "columns": (lambda: TEXT.encode(), changed_columns, {"unit": "ms"}),
    "profile": (lambda: PROFILE, changed_bytes, {}),
    "profile's values": (lambda: PROFILE, changed_values, {}),
    "gpu's values": (lambda: ON_GPU, changed_values, {}),
    "packed": (lambda: packed(PROFILE), changed_bytes, {}),
    "chakra": (chakra, changed_bytes, {}),
    "linked chakra": (linked, changed_bytes, {}),
    "chakra, chosen": (chakra, changed_bytes, {"format_": "chakra"}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_file_is_read_or_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    make, change, choices = KINDS[kind]
    content, rng = make(), random.Random(kind)
    outcomes: Counter[str] = Counter()
    for number in range(-(-MUTATIONS // len(KINDS))):
        path = tmp_path / "changed"
        path.write_bytes(change(content, rng))
        try:
            found = read_foreign(path, **choices)
        except InputError as error:
            message = str(error)
            assert message.isprintable(), (number, message)
            assert len(message) < 700, (number, message)
            outcomes["refused"] += 1
            continue
        outcomes["read"] += 1
        assert 0 <= found.explained <= 1.0 + 1e-9, number
        write_csv(found.workload, tmp_path / "layers.csv", with_names=True)
        assert read_csv(tmp_path / "layers.csv").layers == found.workload.layers, number
    assert outcomes["refused"], "no change was felt"


def test_all_files_are_read_as_long_as_nobody_changes_them(tmp_path: Path) -> None:
    for make, _, choices in KINDS.values():
        (tmp_path / "whole").write_bytes(make())
        assert read_foreign(tmp_path / "whole", **choices).workload.layers
