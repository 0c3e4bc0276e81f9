"""STF, the language of p4c's own tests of BMv2 programs: a reader, and a run through the embedded switch.

A directory holds NAME.json, which p4c-bm2-ss compiled, beside NAME.stf. Every test of it, by hand:
python tests/support/stf.py DIRECTORY
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar

from tensorexpress.program_engines import PYTHON
from tensorexpress.switch.operations import (
    ActionCall,
    Entry,
    MatchValue,
    MeterRates,
    Operation,
    ReadCounter,
    SetCloneSession,
    SetDefault,
    SetEntry,
    SetMeter,
    SetMulticastGroup,
    WriteRegister,
)
from tensorexpress.switch.program.bmv2.controls import HIGHEST_PRIORITY
from tensorexpress.switch.program.bmv2.reader import read_program
from tensorexpress.switch.program.bmv2.values import ActionInfo, Bmv2Program, KeyField, TableInfo
from tensorexpress.switch.replay import VirtualSwitch

#: What p4c's own runner does with priorities, which grow with urgency in STF and fall in BMv2.
_PRIORITY_BASE = 10_000

Named = TypeVar("Named")

_CALL = re.compile(r"([\w.$\[\]]+)\((.*)\)")


class StfTest:
    """One STF file on its way through a switch."""

    def __init__(self, program: Path, engine: str = PYTHON):
        document = program.read_bytes()
        self.program: Bmv2Program = read_program(document)
        self.switch = VirtualSwitch(document, cpu_port=None, engine=engine)
        self.sent: dict[int, list[bytes]] = defaultdict(list)
        #: Nibbles of every frame expected at a port; None for any frame.
        self.expected: dict[int, list[str | None]] = defaultdict(list)
        self.nodes: list[tuple[int, list[int]]] = []
        self.groups: dict[int, list[int]] = defaultdict(list)
        self.sessions: dict[int, int] = {}
        self.entries: dict[str, Entry] = {}
        self.problems: list[str] = []
        self.commands: dict[str, Callable[[str], None]] = {
            "packet": self.packet,
            "expect": self.expect,
            "add": self.add,
            "setdefault": self.set_default,
            "check_counter": self.check_counter,
            "mc_mgrp_create": lambda rest: None,
            "mc_node_create": self.make_node,
            "mc_node_associate": self.associate,
            "mirroring_add": self.mirror,
            "mirroring_add_mc": self.mirror_to_group,
            "register_write": self.write_register,
            "register_reset": lambda rest: self.apply(WriteRegister(rest.strip(), None, 0)),
            "meter_set_rates": self.set_meter,
            "meter_array_set_rates": self.set_meters,
            # These print something or pass the time.
            **dict.fromkeys(("register_read", "mirroring_get", "meter_get_rates", "wait"), lambda rest: None),
        }

    def run(self, text: str) -> list[str]:
        """Run all lines and return what went otherwise than they say."""
        for line in text.splitlines():
            words = line.split("#", 1)[0].strip()
            if words:
                command, _, rest = words.partition(" ")
                if command not in self.commands:
                    return [f"unknown command {command!r}"]
                self.commands[command](rest)
        self.compare()
        return self.problems

    def apply(self, *operations: Operation) -> None:
        self.switch.apply(operations)

    # Packets.

    def packet(self, rest: str) -> None:
        port, _, data = rest.strip().partition(" ")
        frame = bytes.fromhex("".join(data.split()))
        for left, frames in self.switch.run({int(port): [frame]}).items():
            self.sent[left] += frames

    def expect(self, rest: str) -> None:
        port, _, data = rest.strip().partition(" ")
        self.expected[int(port)].append("".join(data.split()).lower() or None)

    def compare(self) -> None:
        """Compare frames port by port: all are expected, and in this order."""
        for port in sorted({*self.sent, *self.expected}):
            pairs = zip_longest(self.expected[port], self.sent[port], fillvalue=...)
            if self.expected[port] == [None] * len(self.expected[port]) != []:
                continue
            for number, (wanted, frame) in enumerate(pairs):
                if wanted is ... or frame is ...:
                    self.problems.append(
                        f"port {port}: {len(self.sent[port])} frames, expected {len(self.expected[port])}"
                    )
                    break
                if isinstance(wanted, str) and isinstance(frame, bytes) and not is_as_expected(frame, wanted):
                    self.problems.append(f"port {port}, frame {number}: {frame.hex()}, expected {wanted}")

    # Tables.

    def add(self, rest: str) -> None:
        rest, _, name = rest.partition("=")
        found = _CALL.search(rest)
        assert found is not None, rest
        table_name, *words = rest[: found.start()].split()
        table = by_suffix(self.program.tables, table_name)
        priority = int(words.pop(0), 0) if words and ":" not in words[0] else 0
        given = dict(word.rsplit(":", 1) for word in words)
        key = tuple(match_value(part, given_for(part, given)) for part in table.key)
        is_ranked = any(part.kind in ("ternary", "range") for part in table.key)
        entry = Entry(table.name, key, HIGHEST_PRIORITY - (_PRIORITY_BASE - priority) if is_ranked else 0)
        self.apply(SetEntry(entry, self.call(table, found.group(1), found.group(2))))
        self.entries[name.strip()] = entry

    def set_default(self, rest: str) -> None:
        table_name, _, action = rest.strip().partition(" ")
        table = by_suffix(self.program.tables, table_name)
        found = _CALL.search(action)
        assert found is not None, rest
        self.apply(SetDefault(table.name, self.call(table, found.group(1), found.group(2))))

    def call(self, table: TableInfo, name: str, arguments: str) -> ActionCall:
        info: ActionInfo = self.program.actions[by_suffix(table.actions, name)]
        given = dict(part.split(":") for part in re.sub(r"\s", "", arguments).split(",") if part)
        return ActionCall(info.name, tuple(int(given[parameter], 0) for parameter, _ in info.parameters))

    def check_counter(self, rest: str) -> None:
        found = re.fullmatch(r"([\w.]+)\s*\(\s*(\$?\w+)\s*\)\s*(?:(packets|bytes)\s*(==)\s*(\d+))?", rest.strip())
        assert found is not None, rest
        name, cell, unit, _, value = found.groups()
        counter = by_suffix({one: one for one in self.program.arrays["counter"]}, name)
        index = self.entries[cell[1:]] if cell.startswith("$") else int(cell)
        ((packets, size_bytes),) = self.switch._switch.ask([ReadCounter(counter, index)])[0]
        if unit and (packets if unit == "packets" else size_bytes) != int(value):
            self.problems.append(
                f"counter {name}({cell}) is at {packets} packets, {size_bytes} bytes, expected {value}"
            )

    # Replication, registers and meters.

    def make_node(self, rest: str) -> None:
        replication_id, *ports = map(int, rest.split())
        self.nodes.append((replication_id, ports))

    def associate(self, rest: str) -> None:
        group, node = map(int, rest.split())
        self.groups[group].append(node)
        self.apply(SetMulticastGroup(group, self.replicas(group)))
        for session, of_group in self.sessions.items():
            self.apply(SetCloneSession(session, self.replicas(of_group)))

    def replicas(self, group: int) -> tuple[tuple[int, int], ...]:
        nodes = [self.nodes[number] for number in self.groups[group]]
        return tuple((port, replication_id) for replication_id, ports in nodes for port in ports)

    def mirror(self, rest: str) -> None:
        session, port = map(int, rest.split())
        self.apply(SetCloneSession(session, ((port, 0),)))

    def mirror_to_group(self, rest: str) -> None:
        session, group = map(int, rest.split())
        self.sessions[session] = group
        self.apply(SetCloneSession(session, self.replicas(group)))

    def write_register(self, rest: str) -> None:
        name, index, value = rest.split()
        self.apply(WriteRegister(name, int(index), int(value, 0)))

    def set_meter(self, rest: str) -> None:
        name, index, *rates = rest.split()
        self.apply(SetMeter(name, int(index), meter_rates(rates)))

    def set_meters(self, rest: str) -> None:
        name, *rates = rest.split()
        self.apply(SetMeter(name, None, meter_rates(rates)))


def meter_rates(texts: Iterable[str]) -> MeterRates:
    """Return the rates of BMv2's `rate:burst` pairs, whose rates are per microsecond."""
    (committed, cburst), (peak, pburst) = (text.split(":") for text in texts)
    return MeterRates(round(float(committed) * 10**6), int(cburst), round(float(peak) * 10**6), int(pburst))


def is_as_expected(frame: bytes, expected: str) -> bool:
    """Whether a frame begins with these nibbles, of which any may be *; it ends with them where a $ follows."""
    wanted = expected.removesuffix("$")
    found = frame.hex()
    if len(found) < len(wanted) or (expected.endswith("$") and len(found) != len(wanted)):
        return False
    return all(nibble in ("*", there) for nibble, there in zip(wanted, found, strict=False))


def by_suffix(known: Mapping[str, Named], name: str) -> Named:
    """Return what has that name; STF may leave out the control that it stands in."""
    if name in known:
        return known[name]
    (found,) = [one for full, one in known.items() if full.endswith(f".{name}")]
    return found


def given_for(part: KeyField, given: dict[str, str]) -> str | None:
    """Return the text for a field of a key; STF may leave out what stands before its name."""
    plain = {re.sub(r"\[(\d+)\]", r"$\1", name): text for name, text in given.items()}
    own = re.sub(r"\[(\d+)\]", r"$\1", part.name)
    candidates = [own, f"{part.target.header}.{part.target.field}", part.target.header]
    for name, text in plain.items():
        if any(candidate == name or candidate.endswith(f".{name}") for candidate in candidates):
            return text
    return None


def match_value(part: KeyField, text: str | None) -> MatchValue:
    """Return a match of STF: a number, one with * for digits that do not count, or value/prefix."""
    everything = (1 << part.bits) - 1
    if text is None:
        return {"ternary": (0, 0), "lpm": (0, 0), "range": (0, everything)}.get(part.kind, 0)
    text, _, length = text.partition("/")
    digit_bits = {"0x": 4, "0b": 1}.get(text[:2].lower(), 0)
    if "*" in text:
        value = int(text.replace("*", "0"), 0)
        mask = sum(
            (0 if digit == "*" else (1 << digit_bits) - 1) << digit_bits * place
            for place, digit in enumerate(reversed(text[2:]))
        )
    else:
        value, mask = int(text, 0), everything
    match part.kind:
        case "ternary":
            return value, mask & everything
        case "lpm":
            return value, int(length) if length else (mask & everything).bit_count()
        case "range":
            return value, value
    return value


def run_test(program: Path, engine: str = PYTHON) -> list[str]:
    """Return what went wrong in one test, nothing if it passed."""
    try:
        return StfTest(program, engine).run(program.with_suffix(".stf").read_text())
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]


def programs(directory: Path) -> list[Path]:
    """Return the compiled programs that have an STF file beside them."""
    return sorted(path for path in directory.glob("*.json") if path.with_suffix(".stf").exists())


def main() -> int:
    passed = failed = 0
    for directory in sys.argv[1:]:
        for program in programs(Path(directory)):
            problems = run_test(program)
            passed, failed = passed + (not problems), failed + bool(problems)
            if problems:
                print(f"{program.stem}: {problems[0]}")
    print(f"{passed} of {passed + failed} pass")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
