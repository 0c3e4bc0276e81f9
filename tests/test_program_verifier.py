"""The rules that a program must keep before any code is made of it: the same line refuses it in both engines."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.passes import PROGRAMS, document
from support.tiny_programs import assign, extract, field, named, number, program, state, step, text

from tensorexpress.errors import ProgramError
from tensorexpress.program_engines import NATIVE, PYTHON
from tensorexpress.switch import VirtualSwitch
from tensorexpress.switch.program.bmv2.reader import read_program


def refusal(document: bytes) -> str:
    """Return why a program is refused: one line, the same for both engines."""
    lines = set()
    for engine in (PYTHON, NATIVE):
        with pytest.raises(ProgramError) as caught:
            VirtualSwitch(document, engine=engine)
        lines.add(str(caught.value))
    (line,) = lines
    assert line.isprintable()
    assert "do not fit together" not in line
    return line


# Programs that moved headers with the size of another type: memory beside them was read or overwritten.

FIELDS = 100
VARBIT_BYTES = 1 + 511 * FIELDS

#: Two types of one size, the varbit of one far longer than that of the other.
LONG_VARBIT = [["v", "*"], *([f"a{at}", 8] for at in range(FIELDS))], VARBIT_BYTES + FIELDS
SHORT_VARBIT = [["v", "*"], *([f"b{at}", 4096] for at in range(FIELDS))], 1 + 512 * FIELDS


def copying(*steps: Any, mixed: bool = False) -> Any:
    """Return a program that fills a header with a long varbit, then does something with it and one with a short one."""
    stacks = {"sa": ("ta", ["ha"]), "sb": ("tb", ["hb"])} | ({"mixed": ("ta", ["ha", "hb"])} if mixed else {})
    return program(
        {"ta": LONG_VARBIT, "tb": SHORT_VARBIT},
        {"ha": "ta", "hb": "tb"},
        [state("start", [extract("ha", bits=number(8 * VARBIT_BYTES))])],
        ingress=steps,
        emitted=["hb"],
        stacks=stacks,
    )


def with_unions(of_second: str) -> Any:
    """Return a program that copies a union to another one, whose member has a type that is given."""
    value = copying(step("assign_union", named("header_union", "ub"), named("header_union", "ua")))
    ids = {header["name"]: header["id"] for header in value["headers"]}
    value["header_union_types"] = [
        {"name": "ua_t", "id": 0, "headers": [["m", "ta"]]},
        {"name": "ub_t", "id": 1, "headers": [["m", "tb"]]},
    ]
    value["header_unions"] = [
        {"name": "ua", "id": 0, "union_type": "ua_t", "header_ids": [ids["ha"]]},
        {"name": "ub", "id": 1, "union_type": of_second, "header_ids": [ids["hb"]]},
    ]
    return value


def small_and_big() -> Any:
    """Return a program whose stack has a first element of one byte and a second one of 30,720."""
    return program(
        {"small": ([["a", 8]], None), "big": ([[f"b{at}", 4096] for at in range(60)], None)},
        {"s0": "small", "s1": "big"},
        [state("start", [extract("st", "stack"), extract("st", "stack")])],
        emitted=["s0", "s1"],
        stacks={"st": ("small", ["s0", "s1"])},
    )


def long_and_short(longest: int = 60_000) -> Any:
    """Return a program whose parser writes the second element of a stack with the bounds of the first."""
    return program(
        {"v1": ([["a", 8], ["v", "*"]], longest), "v2": ([["a", 8], ["v", "*"]], 2)},
        {"s0": "v1", "s1": "v2"},
        [state("start", [extract("st", "stack", number(0)), extract("st", "stack", number(8 * 20_000))])],
        stacks={"st": ("v1", ["s0", "s1"])},
        register_arrays=[{"name": "r", "id": 0, "size": 16, "bitwidth": 64}],
        ingress=[step("register_write", named("register_array", "r"), number(1), number(0x41))],
    )


def to_any_address() -> Any:
    """Return a program whose packet overwrites the size of a varbit, and by this the pointer to a register."""
    value = long_and_short(4001)
    value["header_types"] += [{"name": "vx", "id": 9, "fields": [["v", "*"]], "max_length": 8}]
    value["headers"] += [
        {"name": name, "id": 8 + at, "header_type": "vx", "metadata": False} for at, name in enumerate(("hx", "hy"))
    ]
    value["actions"][0]["primitives"][1:1] = [step("assign_VL", field("hy", "v"), field("hx", "v"))] * 12
    return value


HEADERS = [named("header", "hb"), named("header", "ha")]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (small_and_big(), "header stack 'st' has the element 's1' of type 'big'; accepted: elements of its own type, "),
        (long_and_short(), "header stack 'st' has the element 's1' of type 'v2'; accepted: elements of its own type, "),
        (to_any_address(), "header stack 'st' has the element 's1' of type 'v2'; accepted: elements of its own type, "),
        (copying(step("push", named("header_stack", "mixed"), number(1)), mixed=True), "'hb' of type 'tb'"),
        (copying(step("pop", named("header_stack", "mixed"), number(1)), mixed=True), "'hb' of type 'tb'"),
        (
            copying(step("assign_header", *HEADERS)),
            "action 'in', step 1 has a header of type 'tb' and a header of type 'ta' as parameters of 'assign_header'; "
            "accepted: two of the same type",
        ),
        (copying(step("copy_header", *HEADERS)), "a header of type 'tb' and a header of type 'ta' as parameters"),
        (
            copying(step("assign_header_stack", named("header_stack", "sb"), named("header_stack", "sa"))),
            "a header stack of 1 elements of type 'tb' and a header stack of 1 elements of type 'ta' as parameters",
        ),
        (copying(step("assign_VL", field("hb", "v"), field("ha", "v"))), "a varbit of 8 bits and a varbit of"),
        (copying(assign(field("hb", "b0"), field("ha", "v"))), "a number and a varbit of 408808 bits as parameters"),
        (with_unions("ub_t"), "a header union of type 'ub_t' and a header union of type 'ua_t' as parameters"),
        (with_unions("ua_t"), "header union 'ub' has members of the types 'tb'; accepted: those of its type, 'ta'"),
    ],
)
def test_no_copy_is_between_types_of_different_layout(value: Any, says: str) -> None:
    assert says in refusal(text(value))


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_programs_of_the_suite_keep_all_rules(name: str) -> None:
    assert read_program(document(name)).states


def test_a_sound_tiny_program_runs_in_both_engines() -> None:
    value = copying(step("assign_header", named("header", "ha"), named("header", "ha")))
    value["deparsers"][0]["order"] = ["ha"]
    frame = b"Z" * (VARBIT_BYTES + FIELDS) + b"tail"
    for engine in (PYTHON, NATIVE):
        assert VirtualSwitch(text(value), engine=engine).run({0: [frame]}) == {1: [frame]}
    assert json.loads(text(value)) == value
