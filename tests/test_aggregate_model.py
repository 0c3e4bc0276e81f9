"""No wrong sum, ever: every interleaving of loss, duplication and reordering around the real pipeline, and mutants.

support/summing_model.py says what is modelled. TENSOREXPRESS_MODEL=N adds N turns to every case that is not too large,
and TENSOREXPRESS_MUTANTS=all tries all mutants where otherwise every tenth is tried.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.hashed_switch import DifferentError, compare_with_rules
from support.summing import (
    DUMBBELL,
    ONE_SERVER,
    TWO_JOBS,
    TWO_LEAVES,
    hashed_plan,
    served_plan,
    star_plan,
    tree_plan,
)
from support.summing_model import Model, Settings, StuckError, WrongSumError, drain, explore
from support.thorough import THOROUGH, rest

from tensorexpress import p4
from tensorexpress.p4 import P4Program, Stamp

#: States of a case that every run of the suite explores, at the most.
LARGEST = 12_000
DEEPER = int(os.environ.get("TENSOREXPRESS_MODEL", "0"))

TWO_WORKERS = ("job.workers=2", "job.servers=1", "cluster.hosts=3")
ON_A_WORKER = ("job.workers=3", "job.servers=1", "job.colocated=true", "cluster.hosts=4")
#: A worker at each of two switches.
FAR_WORKERS = ("job.workers=h0,h2", *DUMBBELL[1:])


def hashed(*words: str, cells: int = 1, policy: str = "tensorexpress:sum=hashed", **more: Any) -> Settings:
    """Return a case in which slots are found by hash; one packet may be under way beside those of workers."""
    return Settings(hashed_plan(*words, cells=cells, policy=policy), **{"under_way": 1, **more})


#: What makes a case that is explored to the end, and fewer states than it must not have: a model that sees nothing
#: proves nothing. The largest ones are for thorough runs.
CASES = {
    "two workers, two slots, four turns": (lambda: Settings(star_plan(2), slots=2, turns=4 + DEEPER), 900),
    "three workers, two slots, three turns": (lambda: Settings(star_plan(3), slots=2, turns=3 + DEEPER), 4000),
    "three workers, eight turns": (lambda: Settings(star_plan(3), turns=8 + DEEPER), 180),
    "two workers that start anew twice": (lambda: Settings(star_plan(2), turns=3 + DEEPER, restarts=2), 2000),
    "three workers that start anew": (lambda: Settings(star_plan(3), turns=2 + DEEPER, restarts=1), 1500),
    "packets arrive damaged": (lambda: Settings(star_plan(2), slots=2, turns=2 + DEEPER, damage=True), 200),
    "two levels of switches": (lambda: Settings(tree_plan(3), turns=3 + DEEPER), 120),
    "two levels of switches, two slots": (lambda: Settings(tree_plan(3), slots=2, turns=2 + DEEPER), 5000),
    "two levels of switches, workers that start anew": (lambda: Settings(tree_plan(3), turns=2, restarts=1), 5000),
    "a worker that is out of step": (lambda: Settings(star_plan(3), turns=3 + DEEPER, confused=1), 20),
    "two workers before a server": (lambda: Settings(served_plan(*TWO_WORKERS), slots=2, turns=3 + DEEPER), 600),
    "three workers before a server": (lambda: Settings(served_plan(*ONE_SERVER), turns=4 + DEEPER), 90),
    "a server on the host of a worker": (lambda: Settings(served_plan(*ON_A_WORKER), turns=3 + DEEPER), 70),
    "two levels of switches before a server": (lambda: Settings(served_plan(*DUMBBELL), turns=3 + DEEPER), 80),
    "workers before a server that start anew": (lambda: Settings(served_plan(*TWO_WORKERS), turns=2, restarts=1), 300),
    "by hash: two workers, two turns": (lambda: hashed(*TWO_WORKERS, turns=2 + DEEPER), 8000),
    "by hash: one turn, two packets under way": (lambda: hashed(*TWO_WORKERS, turns=1 + DEEPER, under_way=2), 1400),
    "by hash: two classes, one cell": (lambda: hashed(*TWO_WORKERS, slots=2, turns=1), 39000),
    "by hash: a window of two, two cells": (lambda: hashed(*TWO_WORKERS, cells=2, slots=2, window=2, turns=1), 30000),
    "by hash: cells that are too old": (lambda: hashed(*TWO_WORKERS, policy="atp", slots=2, turns=1, age=True), 50000),
    "by hash: workers that start anew": (lambda: hashed(*TWO_WORKERS, turns=1 + DEEPER, restarts=1), 12000),
    "by hash: packets arrive damaged": (lambda: hashed(*TWO_WORKERS, turns=1 + DEEPER, damage=True), 200),
    "by hash: a worker that is out of step": (lambda: hashed(*TWO_WORKERS, turns=2 + DEEPER, confused=1), 400),
    "by hash: three workers": (lambda: hashed(*ONE_SERVER, turns=1 + DEEPER), 5000),
    "by hash: two levels of switches": (lambda: hashed(*DUMBBELL, turns=1 + DEEPER), 27000),
    "by hash: two levels, two turns": (lambda: hashed(*FAR_WORKERS, turns=2 + DEEPER), 11000),
}


@rest(but=2)
@pytest.mark.parametrize("name", [name for name, (_, fewest) in CASES.items() if THOROUGH or fewest <= LARGEST])
def test_no_interleaving_gives_a_wrong_sum_or_stands_still(name: str) -> None:
    case, fewest = CASES[name]
    assert explore(Model(case())).states >= fewest


@cache
def walked(name: str) -> Model:
    cases = {
        "star": Settings(star_plan(3), slots=2, turns=6, restarts=2, damage=True),
        "tree": Settings(tree_plan(4), slots=2, turns=5, restarts=1),
        "front": Settings(served_plan(*TWO_LEAVES), slots=2, turns=5, restarts=1),
        "by hash": hashed(*ONE_SERVER, slots=2, turns=5, restarts=1, damage=True, age=True, under_way=3),
        "by hash, levels": hashed(*TWO_LEAVES, cells=2, slots=4, window=2, turns=3, age=True, under_way=5),
    }
    return Model(cases[name])


@settings(max_examples=25 * (DEEPER + 1))
@given(
    st.sampled_from(["star", "tree", "front", "by hash", "by hash, levels"]),
    st.lists(st.integers(0, 2**16), max_size=120),
)
def test_wherever_a_walk_leads_all_sums_are_right_and_come_in_the_end(name: str, choices: list[int]) -> None:
    model = walked(name)
    state = model.start
    for choice in choices:
        moves = list(model.moves(state))
        state = moves[choice % len(moves)]()
    drain(model, state, set())


#: Ends of lines and how far the next one is indented.
DEEP, LESS, FLAT = "\n" + 24 * " ", "\n" + 20 * " ", "\n" + 16 * " "
AGGREGATE, LANES, HASHED, CHECKSUM = "aggregate", "lanes", "hashed", "checksum"

#: A rule of the protocol -> (the file in which it is, what stands there, what a mutant has there instead).
MUTANTS = {
    "a late packet is dropped": (AGGREGATE, "(newer != 0 && newer[31:31] == 0)", "newer != 0"),
    "a newer packet starts afresh": (AGGREGATE, "(newer != 0 && newer[31:31] == 0)", "false"),
    "epochs count": (AGGREGATE, "newer = hdr.sum.epoch - owner[63:32];", "newer = 0;"),
    "turns count": (AGGREGATE, "newer = hdr.sum.turn - owner[31:0];", "newer = 0;"),
    "numbers go on beyond their end": (AGGREGATE, "newer[31:31] == 0", "hdr.sum.epoch >= owner[63:32]"),
    "another job's slot is older": (AGGREGATE, "owner[72:64] != 1w0 ++ meta.slot || ", ""),
    "who starts afresh owns the cell": (
        AGGREGATE,
        "owners.write(cell, 1w0 ++ meta.slot ++ hdr.sum.epoch ++ hdr.sum.turn);",
        "",
    ),
    "who starts afresh says of what": (AGGREGATE, "identities.write(cell, identity);", ""),
    "who starts afresh leaves no bit of others": (
        AGGREGATE,
        "if (newer == 0) {",
        "seen.read(before, cell); if (newer == 0) {",
    ),
    "who starts afresh leaves its values": (AGGREGATE, "values3.write(cell, hdr.sum.values3);\n            }", "}"),
    "only what is of one packet is added": (AGGREGATE, "if (known != identity) {", "if (false) {"),
    "there are two sets": (AGGREGATE, "(bit<32>)(hdr.sum.slot ++ hdr.sum.turn[0:0])", "(bit<32>)(hdr.sum.slot ++ 1w0)"),
    "nobody is added twice": (AGGREGATE, "if (before & summand.own != 0) {", "if (false) {"),
    "no duplicate is answered too early": (
        AGGREGATE,
        f"if (before != summand.everyone) {{{DEEP}refuse",
        f"if (false) {{{DEEP}refuse",
    ),
    "a duplicate is answered": (
        AGGREGATE,
        f"if (before != summand.everyone) {{{DEEP}refuse",
        f"if (true) {{{DEEP}refuse",
    ),
    "a duplicate is answered with the sum": (AGGREGATE, "values1.read(hdr.sum.values1, cell);", ""),
    "a duplicate is answered with its check": (AGGREGATE, "hdr.sum.check = head[39:24];", ""),
    "a duplicate is answered with what is needed": (AGGREGATE, f"hdr.sum.needed = head[23:16];{LESS}hdr", "hdr"),
    "who was added is known": (AGGREGATE, "seen.write(cell, before);", ""),
    "those added before stay known": (AGGREGATE, "before = before | summand.own;", "before = summand.own;"),
    "check and exponents are kept": (AGGREGATE, "heads.write(cell, ", "heads.write(cell + 1, "),
    "a sum is of everybody": (
        AGGREGATE,
        f"if (before != summand.everyone) {{{LESS}mark_to_drop",
        f"if (false) {{{LESS}mark_to_drop",
    ),
    "lanes do not carry": (LANES, "(held & ~TOP) + (hdr.sum.values & ~TOP)", "held + hdr.sum.values"),
    "top bits are added too": (LANES, " ^ ((held ^ hdr.sum.values) & TOP)", ""),
    "checks are added": (LANES, "(bit<17>)hdr.sum.check + (bit<17>)head[39:24]", "(bit<17>)hdr.sum.check"),
    "checks are added modulo a prime": (LANES, "check = check - SUM_MODULUS;", ""),
    "the largest exponent is needed": (LANES, "if (head[23:16] > hdr.sum.needed)", "if (head[23:16] < hdr.sum.needed)"),
    "a culprit is not forgotten": (LANES, "if (head[15:8] > hdr.sum.culprit)", "if (false)"),
    "a root says that it made the sum": (AGGREGATE, "hdr.sum.flags = hdr.sum.flags | SUM_RESULT;", ""),
    "a leaf asks the root again": (
        AGGREGATE,
        "is_repeated = true;",
        "is_repeated = true; if (!is_root) { refuse(SUM_LATE); }",
    ),
    "a leaf sends no result": (AGGREGATE, "if (is_root) {", "if (true) {"),
    "what a switch makes has its own checksum": (AGGREGATE, "hdr.udp.checksum = checksum;\n            if", "if"),
    "a copy's checksum is mended": (AGGREGATE, "hdr.udp.checksum = checksum;\n        hdr.ethernet", "hdr.ethernet"),
    "damaged packets are not added": (
        CHECKSUM,
        "hdr.sum.isValid() && !hdr.part.isValid() && hdr.ipv4",
        "false && hdr.ipv4",
    ),
}

#: The same where slots are found by hash.
HASHED_MUTANTS = {
    "sequence numbers have cells of their own": ("hdr.sum.slot, hdr.sum.turn }", "hdr.sum.slot }"),
    "pools have cells of their own": ("{ hdr.tensor.job, hdr.sum.slot,", "{ hdr.tensor.job,"),
    "a cell is one pool's": (" && way[164:149] == hdr.sum.slot", ""),
    "a result frees its cell": (f"owners.write(cell, 0);{FLAT}events.count(SUM_FREED)", "events.count(SUM_FREED)"),
    "a result frees no other cell": (f"if (is_own) {{{FLAT}owners.write", f"if (true) {{{FLAT}owners.write"),
    "nobody speaks for others": ("workers & ~summand.own != 0", "false"),
    "late packets are dropped": ("if (newer[31:31] == 1)", "if (false)"),
    "epochs go on beyond their end": ("if (newer[31:31] == 1)", "if (hdr.sum.epoch < owner[63:32])"),
    "a dead run's cell is free": ("is_held = false;", ""),
    "no other job is late": ("is_held && owner[71:64] == meta.slot && newer != 0", "is_held && newer != 0"),
    "only what is of one packet is added": ("if (known != identity)", "if (false)"),
    "nobody is added twice": ("if (workers & before == 0)", "if (true)"),
    "what was there stays known": ("hdr.part.workers = workers | before;", ""),
    "what is sent again is not held": (f"if (is_sent_again) {{{DEEP}owners", f"if (false) {{{DEEP}owners"),
    "what is sent again frees the cell": (f"owners.write(cell, 0);{DEEP}events", "events"),
    "who was added is known": ("seen.write(cell, hdr.part.workers);", ""),
    "what goes up is of everybody": ("hdr.part.workers == summand.everyone ?", "hdr.part.workers != 0 ?"),
    "what goes up goes up once": ("(hdr.sum.flags | sent)", "hdr.sum.flags"),
    "check and exponents are kept": (
        "heads.write(cell, hdr.sum.check ++ hdr.sum.needed ++ hdr.sum.culprit ++ (",
        "heads.write(cell + 1, hdr.sum.check ++ hdr.sum.needed ++ hdr.sum.culprit ++ (",
    ),
    "sets that overlap are no duplicates": ("} else if (workers & ~before == 0) {", "} else if (true) {"),
    "sets within others are duplicates": ("} else if (workers & ~before == 0) {", "} else if (false) {"),
    "duplicates are dropped": ("if (!is_sent_again) {", "if (false) {"),
    "a flush frees the cell": (f"owners.write(cell, 0);{LESS}events.count(SUM_FLUSHED)", "events.count(SUM_FLUSHED)"),
    "a flush has the values": ("values2.read(hdr.sum.values2, cell);", ""),
    "a flush says whose they are": (f"hdr.part.workers = before;{LESS}", ""),
    "a flush has the check": (f"hdr.sum.check = head[39:24];{LESS}", ""),
    "a flush has what is needed": (f"hdr.sum.needed = head[23:16];{LESS}", ""),
    "a flush keeps what only cells know": ("head[7:0] & SUM_OVERFLOW;", "head[7:0];"),
    "who is sent again takes no cell": ("if (is_sent_again || workers ==", "if (workers =="),
    "a sum of all takes no cell": ("is_sent_again || workers == summand.everyone", "is_sent_again"),
    "a dead run's cell is freed": (f"if (!is_held) {{{LESS}owners", f"if (false) {{{LESS}owners"),
    "the old are evicted": ("age <= SUM_AGE", "true"),
    "the young are not": ("age <= SUM_AGE", "false"),
    "policies that do not order evict nobody": ("summand.preempts && ", ""),
    "the less urgent are evicted": ("summand.queue < way[122:120]", "false"),
    "equals are not": ("summand.queue < way[122:120]", "summand.queue <= way[122:120]"),
    "who takes a cell owns it": ("owners.write(cell, claim);", ""),
    "who takes a cell says of what": ("identities.write(cell, identity);", ""),
    "who takes a cell leaves no bit of others": ("seen.write(cell, workers);", "seen.write(cell, workers | before);"),
    "who takes a cell leaves its check": (
        "heads.write(cell, hdr.sum.check ++ hdr.sum.needed ++ hdr.sum.culprit ++ hdr.sum.flags);",
        "",
    ),
    "who takes a cell leaves its values": (f"SWAP(values2){FLAT}", ""),
    "who takes a cell is young": ("++ standard_metadata.ingress_global_timestamp)", "++ 48w0)"),
    "who takes a cell says its class": ("++ summand.queue ++", "++ 3w0 ++"),
    "who takes a cell holds it": ("if (!is_held || head[7:0] & SUM_SENT != 0)", "if (head[7:0] & SUM_SENT != 0)"),
    "who was complete is not sent again": ("if (!is_held || head[7:0] & SUM_SENT != 0)", "if (!is_held)"),
    **{
        f"the evicted has its {name}": (f"{FLAT}{place} = {value};", FLAT)
        for name, place, value in (
            ("epoch", "hdr.sum.epoch", "owner[63:32]"),
            ("sequence number", "hdr.sum.turn", "owner[31:0]"),
            ("job", "hdr.tensor.job", "way[180:165]"),
            ("pool", "hdr.sum.slot", "way[164:149]"),
            ("tree", "meta.tree", "way[148:133]"),
            ("port", "standard_metadata.egress_spec", "way[132:124]"),
            ("queue", "hdr.tensor.queue", "way[119:112]"),
            ("chunks", "hdr.tensor.chunks", "way[111:80]"),
            ("slack", "hdr.tensor.slack", "(int<32>)way[79:48]"),
            ("iteration", "hdr.tensor.iteration", "known[87:56]"),
            ("tensor", "hdr.tensor.tensor", "known[55:40]"),
            ("packet", "hdr.tensor.chunk", "known[39:8]"),
            ("exponent", "hdr.sum.exponent", "known[7:0]"),
            ("workers", "hdr.part.workers", "before"),
            ("check", "hdr.sum.check", "head[39:24]"),
            ("needed", "hdr.sum.needed", "head[23:16]"),
            ("culprit", "hdr.sum.culprit", "head[15:8]"),
            ("flags", "hdr.sum.flags", "head[7:0]"),
        )
    },
    "the evicted is not held again": ("hdr.tensor.flags = TENSOR_RETRANSMITTED;", ""),
}
MUTANTS |= {f"by hash: {rule}": (HASHED, *change) for rule, change in HASHED_MUTANTS.items()}
MUTANTS |= {
    "by hash: what a switch makes has its own checksum": (AGGREGATE, "{ UDP_SUM, hdr.part.workers }", "{ UDP_SUM }"),
    "by hash: damaged packets are not added": (
        CHECKSUM,
        "hdr.sum.isValid() && hdr.part.isValid() && hdr.ipv4",
        "false && hdr.ipv4",
    ),
}

#: The mutants that are compiled and tried: each takes some seconds, so every tenth rule, or all of them.
TRIED = list(MUTANTS)[:: 1 if os.environ.get("TENSOREXPRESS_MUTANTS") == "all" else 10]

#: In which a mutant must give itself away: small, and together with every rule in them.
TRIALS = (
    Settings(star_plan(2), turns=3, damage=True),
    Settings(star_plan(3), turns=4),
    Settings(star_plan(2), turns=3, restarts=1),
    Settings(tree_plan(3), turns=2),
    Settings(star_plan(2), turns=3, confused=1),
    Settings(served_plan(*TWO_WORKERS), turns=2),
)

#: The same for rules of cells found by hash; what makes no sum wrong is found out beside the rules in plain Python.
HASHED_TRIALS = (hashed(*TWO_WORKERS, turns=1, damage=True),)
RULES = (
    (hashed_plan(*TWO_JOBS, cells=3), "s0"),
    (hashed_plan(*DUMBBELL, cells=2), "s1"),
    (hashed_plan(*TWO_JOBS, cells=1, policy="atp"), "s0"),
    # A switch with one child, from which come values of all as well.
    (hashed_plan(*TWO_LEAVES, cells=2), "s2"),
)


def mutated(source: Path, name: str, old: str, new: str) -> None:
    """Change a rule in the one place where it stands."""
    path = source / "include" / f"{name}.p4"
    text = path.read_text()
    assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
    path.write_text(text.replace(old, new))


def built(source: Path) -> P4Program:
    """Compile a mutant; it may leave something unused, of which p4c would warn."""
    made = source / "mutant.json", source / "mutant.p4info.txtpb"
    command = [p4.find_p4c(), "--arch", "v1model", "--Wdisable", "-o", made[0], "--p4runtime-files", made[1]]
    subprocess.run([*command, source / f"{p4.NAME}.p4"], check=True)
    return P4Program(made[0].read_bytes(), made[1].read_text(), Stamp("", ""))


def try_out(program: P4Program, *, by_hash: bool = True, in_slots: bool = True) -> None:
    for plan, name in RULES * by_hash:
        compare_with_rules(program, plan, name, seed=1, count=3000)
    for trial in TRIALS * in_slots + HASHED_TRIALS * by_hash:
        explore(Model(trial, program))


@pytest.mark.parametrize("rule", MUTANTS)
def test_a_rule_that_a_mutant_changes_is_still_there(rule: str, tmp_path: Path) -> None:
    shutil.copytree(p4.HERE / "include", tmp_path / "include")
    mutated(tmp_path, *MUTANTS[rule])


@pytest.mark.skipif(shutil.which("p4c-bm2-ss") is None, reason="p4c-bm2-ss is not on PATH, and mutants are not kept")
@pytest.mark.parametrize("rule", TRIED)
def test_a_mutation_of_any_rule_is_caught(rule: str, tmp_path: Path) -> None:
    source = tmp_path / "p4"
    shutil.copytree(p4.HERE, source, ignore=shutil.ignore_patterns("build", "__pycache__"))
    mutated(source, *MUTANTS[rule])
    mutant = built(source)
    by_hash = rule.startswith("by hash")
    with pytest.raises((WrongSumError, StuckError, DifferentError)):
        try_out(mutant, by_hash=by_hash, in_slots=not by_hash)


@rest()
def test_the_rules_are_right_where_mutants_are_caught() -> None:
    try_out(p4.load())
