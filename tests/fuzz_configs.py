"""Damaged pipeline configs, P4Info and BMv2 JSON, for everything between a client's message and a packet.

Run by hand with as many as there is time for: python tests/fuzz_configs.py --count 10000
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import resource
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from tensorexpress.errors import ProgramError
from tensorexpress.p4 import load as load_own
from tensorexpress.p4runtime_messages import p4runtime_pb2
from tensorexpress.switch.device import Switch
from tensorexpress.switch.p4runtime.p4info import parse_p4info
from tensorexpress.switch.p4runtime.pipeline_config import read_config
from tensorexpress.switch.program.pipeline import Pipeline

BUILD = Path(__file__).parent / "programs" / "build"

#: Values that take the place of others. Numbers are at and beyond every budget.
JUNK: list[Any] = [
    *(None, True, False, 0, 1, -1, 7, 2**16, 2**22, 2**31, 2**63, 10**10, 10**400, 0.5, float("inf"), float("nan")),
    *("", "x", "\n", "0x", "-0x1", "0x" + "f" * 1030, "a" * 600, "\ud800", "$valid$", "ingress", "scalars"),
    *([], {}, [[]], ["a", "b"], [0] * 300, {"op": "+"}, {"type": "field", "value": ["scalars", "x"]}),
    {"type": "hexstr", "value": "0x0"},
    {"type": "expression", "value": {"op": "*", "left": None, "right": None}},
]


def seeds() -> list[tuple[Any, str]]:
    """Return sound programs as (JSON value, P4Info text)."""
    texts = [
        (path.read_bytes(), path.with_suffix(".p4info.txtpb").read_text()) for path in sorted(BUILD.glob("*.json"))
    ]
    own = load_own()
    texts.append((own.document, own.p4info))
    return [(json.loads(document), p4info) for document, p4info in texts]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container of a JSON value with every key or index in it."""
    waiting = [value]
    while waiting:
        container = waiting.pop()
        for key in container if isinstance(container, dict) else range(len(container)):
            yield container, key
            if isinstance(container[key], dict | list):
                waiting.append(container[key])


def damage(random: Random, value: Any) -> None:
    """Replace, exchange, repeat, remove, wrap or change the number of something in a JSON value."""
    found = list(places(value))
    container, key = random.choice(found)
    there = container[key]
    match random.randrange(8):
        case 0 | 1:
            container[key] = copy.deepcopy(random.choice(JUNK))
        case 2 | 3:
            other, place = random.choice(found)
            container[key] = copy.deepcopy(other[place])
        case 4 if isinstance(container, list):
            container.extend([copy.deepcopy(there) for _ in range(random.choice((1, 2, 40)))])
        case 5:
            del container[key]
        case 6:
            for _ in range(random.choice((1, 20, 200))):
                container[key] = {"type": "expression", "value": {"op": "/", "left": there, "right": container[key]}}
        case _ if isinstance(there, int):
            container[key] = there + random.choice((-1, 1, 2**20))


def damaged(random: Random, good: list[tuple[Any, str]]) -> tuple[bytes, Any]:
    """Return a document and a P4Info message of which at least one has something wrong, as a rule."""
    value, text = random.choice(good)
    value, p4info = copy.deepcopy(value), parse_p4info(text)
    try:
        for _ in range(random.choice((1, 1, 1, 2, 5))):
            damage(random, value)
        document = json.dumps(value).encode()
    except RecursionError:  # wrapped so often that not even Python copies or writes it
        document = b'{"header_types": ' * 2000
    match random.randrange(12):
        case 0:
            cut = bytearray(document)
            for _ in range(3):
                cut[random.randrange(len(cut))] = random.randrange(256)
            document = bytes(cut)
        case 1:
            document = document[: random.randrange(len(document))]
        case 2:
            raw = bytearray(p4info.SerializeToString())
            for _ in range(random.choice((1, 4))):
                raw[random.randrange(len(raw))] = random.randrange(256)
            try:
                p4info.ParseFromString(bytes(raw))
            except Exception:  # what is no message never reaches the switch
                p4info = parse_p4info(text)
    return document, p4info


FRAMES = [b"", bytes(64), bytes(range(200)), bytes.fromhex("ffffffffffff0200000000010800") + b"\x45" + bytes(60)]


def try_config(document: bytes, p4info: Any) -> str:
    """Read, compile and run one config; return what became of it. Anything but ProgramError leaves here."""
    outcome = "taken"
    try:
        read_config(p4runtime_pb2.ForwardingPipelineConfig(p4info=p4info, p4_device_config=document))
    except ProgramError as error:
        _check_line(error)
        outcome = "config refused"
    try:
        pipeline = Pipeline(document)
    except ProgramError as error:
        _check_line(error)
        return "program refused"
    assert len(pipeline.source) <= 2 * len(document), f"{len(pipeline.source)} characters of {len(document)} bytes"
    switch = Switch(lambda *frame: None, program=pipeline)
    with quiet():
        for port, frame in enumerate(FRAMES):
            switch.receive(port, frame, 0)
    return outcome


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what the switch logs of programs that make no sense to itself."""
    logger = logging.getLogger("tensorexpress.switch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _check_line(error: ProgramError) -> None:
    assert str(error).isprintable(), repr(str(error))
    assert len(str(error)) < 8000, f"a line of {len(str(error))} characters"
    assert "do not fit together" not in str(error), f"no rule refuses it: {error}"


def peak_bytes() -> int:
    """Return the most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fuzz(count: int, seed: int) -> Counter[str]:
    """Try that many damaged configs; return what became of them."""
    random, good, seen = Random(seed), seeds(), Counter[str]()
    for number in range(count):
        document, p4info = damaged(random, good)
        try:
            seen[try_config(document, p4info)] += 1
        except Exception as error:
            raise AssertionError(f"config {number} of seed {seed} fails with {error!r}") from error
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="configs (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    start, before = time.monotonic(), peak_bytes()
    for what, count in sorted(fuzz(arguments.count, arguments.seed).items()):
        print(f"{what:24} {count:>12,}")
    print(
        f"{arguments.count:,} configs in {time.monotonic() - start:.0f} s, seed {arguments.seed}: no other error; "
        f"memory {before / 1e6:.0f} to {peak_bytes() / 1e6:.0f} MB"
    )


if __name__ == "__main__":
    main()
