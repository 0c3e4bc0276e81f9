"""Real programs with parts swapped, resized, copied or left out, as checked machine code beside the Python engine.

No access may be outside of its region, and both engines have to do the same with every packet. Run by hand with as many
pairs of program and packet as there is time for: python tests/fuzz_programs.py --pairs 1000000
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import pickle
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from fuzz_configs import quiet
from support.passes import PROGRAMS, document
from support.random_tables import RandomTables
from support.stf import programs
from support.twins import TwinPipelines

from tensorexpress.errors import ProgramError
from tensorexpress.p4 import load as load_own
from tensorexpress.program_engines import AUTO
from tensorexpress.switch.packet import DROP_PORT, EGRESS_CLONE, INGRESS_CLONE, EndlessLoop, SwitchPacket
from tensorexpress.switch.program.bmv2 import reader
from tensorexpress.switch.program.compiled import compile_program
from tensorexpress.switch.program.native.checking import OutsideAccess

#: What became of a program or a packet that is a fault of ours.
OUTSIDE, DIFFERENT, BROKEN, CRASHED = FAULTS = ("outside", "different", "broken", "crashed")

#: Parts of a document that mutations leave alone: which program it is, and where its source was.
_LEFT_ALONE = {"__meta__", "program", "source_info", "field_aliases", "$schema"}

#: Widths, sizes and numbers at and beyond bounds.
_NUMBERS = (0, 1, 2, 7, 8, 9, 15, 16, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 511, 1024, 2040, 4096, 16384, 65535)

#: Packets of one program, and the seconds after which it has had enough; loops may take long.
_SECONDS = 3.0


def seeds(directory: str = "") -> list[Any]:
    """Return sound programs as JSON values: ours, and those of a directory."""
    texts = [document(name) for name in PROGRAMS]
    texts += [path.read_bytes() for path in programs(Path(directory))] if directory else []
    return [_bare(json.loads(text)) for text in (*texts, load_own().document)]


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _bare(part) for key, part in value.items() if key != "source_info"}
    return [_bare(part) for part in value] if isinstance(value, list) else value


def places(value: Any) -> dict[Any, list[tuple[Any, Any]]]:
    """Return all (container, key) of a document by the role that a value has there."""
    found: dict[Any, list[tuple[Any, Any]]] = defaultdict(list)
    waiting: list[tuple[Any, tuple[str, ...]]] = [(value, ())]
    while waiting:
        container, path = waiting.pop()
        items = container.items() if isinstance(container, dict) else enumerate(container)
        for key, part in items:
            if key in _LEFT_ALONE:
                continue
            inner = (*path, key if isinstance(key, str) else "*")
            kind = container.get("type", container.get("op")) if isinstance(container, dict) else len(container)
            if isinstance(kind, int):  # an element of a short list has a meaning of its own
                kind = key if kind <= 4 else "*"
            found[inner[-3:], str(kind), type(part).__name__].append((container, key))
            if isinstance(part, dict | list):
                waiting.append((part, inner))
    return found


def mutate(random: Random, value: Any) -> None:
    """Change one thing of a program so that it still looks like one."""
    roles = places(value)
    found = roles[random.choice(sorted(roles, key=repr))]
    (container, key), (other, place) = random.choice(found), random.choice(found)
    there = container[key]
    match random.randrange(7):
        case 0 | 1:
            container[key], other[place] = other[place], there
        case 2:
            container[key] = copy.deepcopy(other[place])
        case 3 if isinstance(container, list):
            container.insert(random.randrange(len(container) + 1), copy.deepcopy(there))
        case 4 if isinstance(container, list) and len(container) > 1:
            del container[key]
        case 5 if isinstance(container, list):
            random.shuffle(container)
        case _:
            _renumber(random, container, key)


def _renumber(random: Random, container: Any, key: Any) -> None:
    there = container[key]
    if isinstance(there, bool):
        container[key] = not there
    elif isinstance(there, int):
        container[key] = random.choice((*_NUMBERS, there + 1, max(there - 1, 0), there * 2))
    elif isinstance(there, str) and there.startswith("0x"):
        container[key] = hex(random.choice((*_NUMBERS, 2**32 - 1, 2**64 - 1, int(there, 16) + 1)))


def mutated(random: Random, good: list[Any]) -> bytes:
    """Return a real program with a few changes; our own, which is forty times as long as others, is rare."""
    value = copy.deepcopy(good[-1] if random.random() < 0.01 else random.choice(good[:-1]))
    for _ in range(random.choice((1, 1, 2, 2, 3, 5, 8))):
        mutate(random, value)
    return json.dumps(value).encode()


class Trial:
    """One program on its way: compiled, filled and given packets; `seen` counts what became of them."""

    def __init__(self, text: bytes, seed: int, packets: int, *, verified: bool = True):
        self._verified = verified
        self.seen = Counter[str]()
        self.faults: list[str] = []
        self._text, self._seed, self._packets = text, seed, packets

    def run(self) -> None:
        """Try the program."""
        try:
            program = compile_program(self._text, AUTO, optimised=False, checked=True)
            shape = reader.read_program(self._text)
        except ProgramError:
            self.seen["programs refused"] += 1
            return
        if program.native is None:
            self.seen["programs that only Python runs"] += 1
            return
        self.seen["programs that ran"] += 1
        twins = TwinPipelines(program)
        draw, random = RandomTables(shape, self._seed), Random(self._seed)
        for entry in (*program.entries, *draw.first()):
            self._apply(twins, entry)
        samples = [bytes(range(64)), bytes(64), bytes(1500), random.randbytes(200), random.randbytes(9000)]
        end = time.monotonic() + _SECONDS
        for number in range(self._packets):
            if number % 16 == 0 and shape.tables:
                self._apply(twins, draw.operation())
            self.seen["pairs"] += 1
            try:
                self._pass(twins, draw.frame(samples), number)
            except OutsideAccess as error:
                self._fault(OUTSIDE, error)
                return
            except AssertionError as error:
                self._fault(DIFFERENT, error)
                return
            if time.monotonic() > end:
                self.seen["programs cut short"] += 1
                return

    def _fault(self, what: str, error: BaseException) -> None:
        if not self._verified and what != OUTSIDE:  # such a program has no meaning that both engines could agree on
            self.seen["unverified programs that fail"] += 1
            return
        self.seen[what] += 1
        self.faults.append(f"{what}: {error!r}"[:1000])

    def _apply(self, twins: TwinPipelines, operation: Any) -> None:
        try:
            twins.apply(operation)
        except ProgramError:
            self.seen["operations refused"] += 1

    def _pass(self, twins: TwinPipelines, frame: bytes, number: int) -> None:
        """Take a frame through both stages, and its clones, as often as it asks for that."""
        packet = SwitchPacket(frame, number % 4, 1000 * number)
        try:
            for _ in range(3):
                twins.ingress(packet)
                self._clone(twins, packet, INGRESS_CLONE)
                if packet.resubmit_fields < 0:
                    break
                preserved = twins.preserve(packet, packet.resubmit_fields)
                packet = SwitchPacket(frame, 0, 1000 * number)
                packet.preserved = preserved
            else:
                return
            if packet.egress_spec != DROP_PORT or packet.mcast_grp:
                packet.egress_port, packet.egress_us = packet.egress_spec & 511, 1000 * number + 5
                twins.egress(packet)
                self._clone(twins, packet, EGRESS_CLONE)
        except EndlessLoop:
            self.seen["endless loops"] += 1

    def _clone(self, twins: TwinPipelines, packet: SwitchPacket, kind: int) -> None:
        if packet.clone_session < 0:
            return
        clone = SwitchPacket(packet.frame, packet.ingress_port, packet.ingress_us)
        clone.instance_type = kind
        clone.preserved = twins.preserve(packet, packet.clone_fields)
        if kind == EGRESS_CLONE:
            clone.state = packet.state
        twins.egress(clone)


def attempt(text: bytes, seed: int, packets: int, *, verified: bool = True) -> tuple[Counter[str], list[str]]:
    """Try a program; any error that leaves it is a fault. One that is not verified has to stay inside, and no more."""
    trial = Trial(text, seed, packets, verified=verified)
    with quiet():
        try:
            trial.run()
        except Exception as error:
            trial._fault(BROKEN, error)
    compile_program.cache_clear()
    return trial.seen, trial.faults


def attempt_beside(text: bytes, seed: int, packets: int, *, verified: bool = True) -> tuple[Counter[str], list[str]]:
    """Try a program in a process of its own, so that a crash is found too."""
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        os.close(receive)
        with os.fdopen(send, "wb") as pipe:
            pipe.write(pickle.dumps(attempt(text, seed, packets, verified=verified)))
        os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if not answer or status:
        return Counter({CRASHED: 1}), [f"{CRASHED}: wait status {status}"]
    found: tuple[Counter[str], list[str]] = pickle.loads(answer)
    return found


def trials(seed: int, directory: str = "") -> Iterator[tuple[int, bytes]]:
    """Yield programs without end, each with its number; the same seed gives the same ones."""
    good, number = seeds(directory), 0
    while True:
        yield number, mutated(Random(f"{seed}/{number}"), good)
        number += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--pairs", type=int, default=1_000_000, help="pairs of program and packet (default: %(default)s)"
    )
    parser.add_argument("--packets", type=int, default=500, help="packets of each program (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first program (default: %(default)s)")
    parser.add_argument("--stf", default=os.environ.get("TENSOREXPRESS_STF", ""), help="directory of further programs")
    parser.add_argument("--keep", type=Path, help="directory for programs that show a fault")
    parser.add_argument("--unverified", action="store_true", help="let programs pass that the verifier refuses")
    arguments = parser.parse_args()
    if arguments.unverified:
        reader.verify = lambda program: None
    start, seen = time.monotonic(), Counter[str]()
    for number, text in trials(arguments.seed, arguments.stf):
        if number < arguments.first:
            continue
        counts, faults = attempt_beside(text, number, arguments.packets, verified=not arguments.unverified)
        seen += counts
        for fault in faults:
            print(f"program {number} of seed {arguments.seed}: {fault}", flush=True)
            if arguments.keep:
                (arguments.keep / f"{arguments.seed}-{number}.json").write_bytes(text)
        if seen["pairs"] >= arguments.pairs:
            break
        if number % 500 == 499:
            print(f"{number + 1} programs, {seen['pairs']:,} pairs, {time.monotonic() - start:.0f} s", flush=True)
    for what in sorted({*seen, *FAULTS}):
        print(f"{what:32} {seen[what]:>12,}")
    print(f"seed {arguments.seed}, {time.monotonic() - start:.0f} s")
    return 1 if any(seen[what] for what in FAULTS) else 0


if __name__ == "__main__":
    sys.exit(main())
