"""STF: the reader on a program of ours, and, where they are, p4c's own tests through the embedded switch.

TENSOREXPRESS_STF names a directory of programs that p4c-bm2-ss compiled, each NAME.json beside its NAME.stf.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.passes import BUILD
from support.stf import StfTest, is_as_expected, programs, run_test

from tensorexpress.program_engines import AUTO, PYTHON

DIRECTORY = os.environ.get("TENSOREXPRESS_STF", "")


@pytest.mark.skipif(not DIRECTORY, reason="TENSOREXPRESS_STF names no directory of compiled programs and STF files")
@pytest.mark.parametrize("engine", [PYTHON, AUTO])
@pytest.mark.parametrize("program", programs(Path(DIRECTORY)) if DIRECTORY else [], ids=lambda program: program.stem)
def test_p4c_s_own_tests_pass(program: Path, engine: str) -> None:
    assert run_test(program, engine) == []


FRAME = "000000000007 0200000000{:02x} 88b5 aabb"


@pytest.mark.parametrize(
    ("lines", "problems"),
    [
        (["packet 3 " + FRAME.format(1), "expect 7 " + FRAME.format(1) + " $"], 0),
        (["packet 3 " + FRAME.format(1), "expect 7 0000 0000 00** 02"], 0),
        (["add l2 ethernet.destination:0x7 forward(port:9)", "packet 3 " + FRAME.format(1), "expect 9"], 0),
        (["setdefault l2 forward(port:4)", "packet 3 " + FRAME.format(1) + " # a comment", "expect 4"], 0),
        (["packet 3 " + FRAME.format(1)], 1),
        (["expect 7 00"], 1),
        (["packet 3 " + FRAME.format(1), "expect 7 " + FRAME.format(2)], 1),
        (["packet 3 " + FRAME.format(1), "expect 7 000000000007 $"], 1),
        (
            [
                *("mc_mgrp_create 1", "mc_node_create 5 4 6", "mc_node_associate 1 0"),
                *("packet 3 ffffffffffff 020000000001 88b5", "expect 4 ffff", "expect 6 ffff"),
            ],
            0,
        ),
    ],
)
def test_an_stf_file_says_what_a_program_does(lines: list[str], problems: int) -> None:
    for engine in (PYTHON, AUTO):
        assert len(StfTest(BUILD / "switchboard.json", engine).run("\n".join(lines))) == problems


@pytest.mark.parametrize(
    ("expected", "matches"),
    [("0a1b", True), ("0a", True), ("**1b", True), ("0a$", False), ("0a1b$", True), ("0a1b2", False)],
)
def test_expected_nibbles(expected: str, matches: bool) -> None:
    assert is_as_expected(b"\x0a\x1b", expected) == matches
