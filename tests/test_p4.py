"""The P4 program: its build is that of its sources, and p4c, where it is there, makes the same of them again."""

from __future__ import annotations

import doctest
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tensorexpress import p4
from tensorexpress.cli import main
from tensorexpress.control import forward, guard, mark
from tensorexpress.control.controls import EXCEPTIONS
from tensorexpress.control.messages import ProgramSchema
from tensorexpress.errors import InputError, ProgramError
from tensorexpress.p4 import constants, define
from tensorexpress.p4.constants import module_text

needs_p4c = pytest.mark.skipif(shutil.which("p4c-bm2-ss") is None, reason="p4c-bm2-ss is not on PATH")


def test_examples_in_docstrings_hold() -> None:
    for module in (p4, constants):
        result = doctest.testmod(module)
        assert result.attempted
        assert not result.failed


def test_the_build_is_that_of_the_sources() -> None:
    assert p4.load().stamp.sources == p4.source_hash(), "run `tensorexpress p4 build`"


def test_the_constants_for_python_are_those_of_the_source() -> None:
    assert p4.DEFINE.read_text() == p4.define_text(), "run `tensorexpress p4 build`"


def test_the_constants_are_what_p4c_made_of_them() -> None:
    schema = ProgramSchema.of(p4.load())
    assert schema.find("meter", guard.JOB_METER).size == define.SLOTS == 1 << define.SLOT_T_BITS
    assert schema.find("counter", mark.SERVED).size == define.SLOT_QUEUES == define.SLOTS << define.QUEUE_T_BITS
    assert schema.find("register", mark.LONGEST).size == define.PORTS << define.QUEUE_T_BITS
    assert schema.find("counter", EXCEPTIONS).size == define.EXCEPTIONS
    assert schema.find("table", forward.L2).size == define.HOSTS_L2


def test_a_constant_may_be_made_of_others() -> None:
    text = module_text("// All.\n\nconst int A = 0x10;\n\n// B.\nconst bit<32> B = (A << 16w2) + 3 * A - 1;\n")
    assert text.splitlines()[2:] == ["A = 16", "", "# B.", "B = 111"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("const bit<9> A = B;", "line 2: 'B' is no number; accepted: numbers as 0x5458 or 16w7"),
        ("const bit<9> A = __import__('os');", "is no number; accepted: "),
        ("const bit<9> A = 1 +;", "'1 +' is no number; accepted: "),
        ("control C() {}", "line 2 is 'control C() {}'; accepted: constants, types of bits, comments"),
    ],
)
def test_what_is_no_constant_is_refused_by_its_line(line: str, message: str) -> None:
    with pytest.raises(ProgramError) as error:
        module_text(f"// All.\n{line}\n")
    assert message in str(error.value)


def test_every_control_is_a_file_and_every_file_is_included() -> None:
    top = (p4.HERE / "tensorexpress.p4").read_text()
    for path in p4.HERE.glob("include/*.p4"):
        assert f'#include "include/{path.name}"' in top


def test_the_build_names_no_directory() -> None:
    for path in p4.BUILD.iterdir():
        assert "/home" not in path.read_text()
        assert str(p4.HERE) not in path.read_text()
        assert "p4include" not in path.read_text()


@needs_p4c
def test_p4c_makes_the_same_again_without_a_warning(tmp_path: Path) -> None:
    again = p4.build(p4.find_p4c(), tmp_path)
    if again.stamp == p4.load().stamp:
        assert again == p4.load()
    assert again.stamp.sources == p4.source_hash()


@needs_p4c
def test_the_verb_builds_where_it_is_told(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["p4", "build", "-o", str(tmp_path / "new")])
    assert result.exit_code == 0, result.output
    assert p4.load(tmp_path / "new").stamp.sources == p4.source_hash()


def test_show_says_whether_the_build_is_up_to_date() -> None:
    result = CliRunner().invoke(main, ["p4", "show"])
    assert result.exit_code == 0
    assert result.output.splitlines()[-1].endswith("is up to date")


def test_a_compiler_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--p4c 'nowhere': is no program; accepted: "):
        p4.find_p4c("nowhere")
    compiler = tmp_path / "false"
    version = '[ "$1" = --version ] && echo Version 1.2.5 && exit\n'
    compiler.write_text(f"#!/bin/sh\n{version}echo 'tensorexpress.p4(1): error:\n broken' >&2; exit 1\n")
    compiler.chmod(0o755)
    with pytest.raises(ProgramError, match=r"p4c refuses tensorexpress\.p4: tensorexpress\.p4\(1\): error: broken"):
        p4.build(str(compiler), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["false"]


def test_a_directory_without_a_build_is_named(tmp_path: Path) -> None:
    (tmp_path / "stamp.json").write_text(json.dumps({"sources": ""}))
    with pytest.raises(ProgramError, match=r"holds no build .*tensorexpress p4 build"):
        p4.load(tmp_path)
