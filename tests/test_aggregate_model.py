"""No wrong sum, ever: every interleaving of loss, duplication and reordering around the real pipeline, and mutants.

support/summing_model.py says what is modelled. TENSOREXPRESS_MODEL=N adds N turns to every case.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.summing import star_plan, tree_plan
from support.summing_model import Model, Settings, StuckError, WrongSumError, drain, explore

from tensorexpress import p4
from tensorexpress.p4 import P4Program, Stamp

DEEPER = int(os.environ.get("TENSOREXPRESS_MODEL", "0"))

#: What is explored to the end, and fewer states than it must not have: a model that sees nothing proves nothing.
CASES = {
    "two workers, two slots, four turns": (Settings(star_plan(2), slots=2, turns=4 + DEEPER), 900),
    "three workers, two slots, three turns": (Settings(star_plan(3), slots=2, turns=3 + DEEPER), 4000),
    "three workers, eight turns": (Settings(star_plan(3), turns=8 + DEEPER), 180),
    "two workers that start anew twice": (Settings(star_plan(2), turns=3 + DEEPER, restarts=2), 2000),
    "three workers that start anew": (Settings(star_plan(3), turns=2 + DEEPER, restarts=1), 1500),
    "packets arrive damaged": (Settings(star_plan(2), slots=2, turns=2 + DEEPER, damage=True), 200),
    "two levels of switches": (Settings(tree_plan(3), turns=3 + DEEPER), 120),
    "two levels of switches, two slots": (Settings(tree_plan(3), slots=2, turns=2 + DEEPER), 5000),
    "two levels of switches, workers that start anew": (Settings(tree_plan(3), turns=2, restarts=1), 5000),
    "a worker that is out of step": (Settings(star_plan(3), turns=3 + DEEPER, confused=1), 20),
}


@pytest.mark.parametrize("name", CASES)
def test_no_interleaving_gives_a_wrong_sum_or_stands_still(name: str) -> None:
    case, fewest = CASES[name]
    assert explore(Model(case)).states >= fewest


@cache
def walked(name: str) -> Model:
    cases = {
        "star": Settings(star_plan(3), slots=2, turns=6, restarts=2, damage=True),
        "tree": Settings(tree_plan(4), slots=2, turns=5, restarts=1),
    }
    return Model(cases[name])


@settings(max_examples=25 * (DEEPER + 1))
@given(st.sampled_from(["star", "tree"]), st.lists(st.integers(0, 2**16), max_size=120))
def test_wherever_a_walk_leads_all_sums_are_right_and_come_in_the_end(name: str, choices: list[int]) -> None:
    model = walked(name)
    state = model.start
    for choice in choices:
        moves = list(model.moves(state))
        state = moves[choice % len(moves)]()
    drain(model, state, set())


#: Ends of lines in aggregate.p4 and how far the next one is indented.
DEEP, LESS = "\n" + 24 * " ", "\n" + 20 * " "

#: A rule of the protocol -> (what stands in aggregate.p4 or checksum.p4, what a mutant has there instead).
MUTANTS = {
    "a late packet is dropped": ("(newer != 0 && newer[31:31] == 0)", "newer != 0"),
    "a newer packet starts afresh": ("(newer != 0 && newer[31:31] == 0)", "false"),
    "epochs count": ("newer = hdr.sum.epoch - owner[63:32];", "newer = 0;"),
    "turns count": ("newer = hdr.sum.turn - owner[31:0];", "newer = 0;"),
    "numbers go on beyond their end": ("newer[31:31] == 0", "hdr.sum.epoch >= owner[63:32]"),
    "another job's slot is older": ("owner[71:64] != meta.slot || ", ""),
    "who starts afresh owns the cell": ("owners.write(cell, meta.slot ++ hdr.sum.epoch ++ hdr.sum.turn);", ""),
    "who starts afresh says of what": ("identities.write(cell, identity);", ""),
    "who starts afresh leaves no bit of others": ("if (newer == 0) {", "seen.read(before, cell); if (newer == 0) {"),
    "who starts afresh leaves its values": ("values3.write(cell, hdr.sum.values3);\n            }", "}"),
    "only what is of one packet is added": ("if (known != identity) {", "if (false) {"),
    "there are two sets": ("(bit<32>)(hdr.sum.slot ++ hdr.sum.turn[0:0])", "(bit<32>)(hdr.sum.slot ++ 1w0)"),
    "nobody is added twice": ("if (before & own != 0) {", "if (false) {"),
    "no duplicate is answered too early": (f"if (before != everyone) {{{DEEP}refuse", f"if (false) {{{DEEP}refuse"),
    "a duplicate is answered": (f"if (before != everyone) {{{DEEP}refuse", f"if (true) {{{DEEP}refuse"),
    "a duplicate is answered with the sum": ("values1.read(hdr.sum.values1, cell);", ""),
    "a duplicate is answered with its check": ("hdr.sum.check = head[39:24];", ""),
    "a duplicate is answered with what is needed": (f"hdr.sum.needed = head[23:16];{LESS}hdr", "hdr"),
    "who was added is known": ("seen.write(cell, before);", ""),
    "those added before stay known": ("before = before | own;", "before = own;"),
    "check and exponents are kept": ("heads.write(cell, ", "heads.write(cell + 1, "),
    "a sum is of everybody": (f"if (before != everyone) {{{LESS}mark_to_drop", f"if (false) {{{LESS}mark_to_drop"),
    "lanes do not carry": ("(held & ~TOP) + (hdr.sum.values & ~TOP)", "held + hdr.sum.values"),
    "top bits are added too": (" ^ ((held ^ hdr.sum.values) & TOP)", ""),
    "checks are added": ("(bit<17>)hdr.sum.check + (bit<17>)head[39:24]", "(bit<17>)hdr.sum.check"),
    "checks are added modulo a prime": ("check = check - SUM_MODULUS;", ""),
    "the largest exponent is needed": ("if (head[23:16] > hdr.sum.needed)", "if (head[23:16] < hdr.sum.needed)"),
    "a culprit is not forgotten": ("if (head[15:8] > hdr.sum.culprit)", "if (false)"),
    "a root says that it made the sum": ("hdr.sum.flags = hdr.sum.flags | SUM_RESULT;", ""),
    "a leaf asks the root again": ("is_repeated = true;", "is_repeated = true; if (!is_root) { refuse(SUM_LATE); }"),
    "a leaf sends no result": ("if (is_root) {", "if (true) {"),
    "what a switch makes has its own checksum": ("hdr.udp.checksum = checksum;\n            if", "if"),
    "a copy's checksum is mended": ("hdr.udp.checksum = checksum;\n        hdr.ethernet", "hdr.ethernet"),
    "damaged packets are not added": ("hdr.sum.isValid() && hdr.ipv4.isValid(), { UDP_SUM", "false, { UDP_SUM"),
}

#: In which a mutant must give itself away: small, and together with every rule in them.
TRIALS = (
    Settings(star_plan(2), turns=3, damage=True),
    Settings(star_plan(3), turns=4),
    Settings(star_plan(2), turns=3, restarts=1),
    Settings(tree_plan(3), turns=2),
    Settings(star_plan(2), turns=3, confused=1),
)


def mutated(source: Path, old: str, new: str) -> None:
    """Change a rule in the one place where it stands."""
    found = [path for path in source.glob("include/*.p4") if old in path.read_text()]
    assert len(found) == 1, f"{old!r} is in {len(found)} files"
    text = found[0].read_text()
    assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
    found[0].write_text(text.replace(old, new))


def built(source: Path) -> P4Program:
    """Compile a mutant; it may leave something unused, of which p4c would warn."""
    made = source / "mutant.json", source / "mutant.p4info.txtpb"
    command = [p4.find_p4c(), "--arch", "v1model", "--Wdisable", "-o", made[0], "--p4runtime-files", made[1]]
    subprocess.run([*command, source / f"{p4.NAME}.p4"], check=True)
    return P4Program(made[0].read_bytes(), made[1].read_text(), Stamp("", ""))


def try_out(program: P4Program) -> None:
    for trial in TRIALS:
        explore(Model(trial, program))


@pytest.mark.skipif(shutil.which("p4c-bm2-ss") is None, reason="p4c-bm2-ss is not on PATH, and mutants are not kept")
@pytest.mark.parametrize("rule", MUTANTS)
def test_a_mutation_of_any_rule_is_caught(rule: str, tmp_path: Path) -> None:
    source = tmp_path / "p4"
    shutil.copytree(p4.HERE, source, ignore=shutil.ignore_patterns("build", "__pycache__"))
    mutated(source, *MUTANTS[rule])
    mutant = built(source)
    with pytest.raises((WrongSumError, StuckError)):
        try_out(mutant)


def test_the_rules_are_right_where_mutants_are_caught() -> None:
    try_out(p4.load())
