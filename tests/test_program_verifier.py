"""The rules that a program must keep before any code is made of it: the same line refuses it in both engines."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from support.mutants import mutant
from support.passes import PROGRAMS, document, egress, ingress, through
from support.random_tables import RandomTables
from support.thorough import examples, rest
from support.tiny_programs import (
    assign,
    control,
    extract,
    field,
    named,
    number,
    operation,
    program,
    state,
    step,
    table,
    text,
)
from support.twins import TwinPipelines

from tensorexpress.errors import ProgramError
from tensorexpress.program_engines import NATIVE, PYTHON
from tensorexpress.switch import VirtualSwitch
from tensorexpress.switch.packet import DROP_PORT, EndlessLoop
from tensorexpress.switch.program import verify
from tensorexpress.switch.program.bmv2.reader import read_program
from tensorexpress.switch.program.compiled import CompiledProgram, compile_program
from tensorexpress.switch.program.verify import PRIMITIVES


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
    stacks = {"mixed": ("ta", ["ha", "hb"])} if mixed else {"sa": ("ta", ["ha"]), "sb": ("tb", ["hb"])}
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
    value["header_stacks"] = []
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


# One program with something of everything, and one row for each rule: a place in it, and a value that breaks the rule.

FIXED = [["a", 8, False], ["b", 16, False]], None
VARIABLE = [["n", 8, False], ["v", "*"]], 17
UNION_MEMBERS = [f"{union}.{member}" for union in ("u", "w", "us[0]", "us[1]") for member in ("m", "n")]

IN_PARSER = [
    step("set", field("scalars", "x"), {"type": "lookahead", "value": [0, 8]}),
    step(
        "set", {"type": "stack_field", "value": ["st", "a"]}, {"type": "union_stack_field", "value": ["us", "m", "a"]}
    ),
    step("primitive", step("add_header", named("header", "s1"))),
    step("shift", 0),
]

#: The first member of the first union of a stack of unions.
OF_UNION = operation(
    "access_union_header", operation("dereference_union_stack", named("header_union_stack", "us"), number(0)), 0
)

STEPS = [
    assign(field("one", "a"), number(7)),
    assign(field("one", "b"), operation("+", field("one", "a"), {"type": "hexstr", "value": "0x0f", "bitwidth": 8})),
    step(
        "assign_header",
        named("header", "one"),
        operation("dereference_header_stack", named("header_stack", "st"), number(1)),
    ),
    step("assign_header_stack", named("header_stack", "st"), named("header_stack", "st")),
    step("assign_union", named("header_union", "u"), named("header_union", "w")),
    step("push", named("header_stack", "st"), number(1)),
    step("count", named("counter_array", "c"), number(0)),
    step("execute_meter", named("meter_array", "m"), number(0), field("scalars", "x")),
    step("register_write", named("register_array", "r"), number(0), field("one", "a")),
    step("modify_field_with_hash_based_offset", field("one", "b"), number(0), named("calculation", "hash"), number(9)),
    step("generate_digest", number(1), number(3)),
    step("mark_to_drop", named("header", "standard_metadata")),
    step("_jump_if_zero", operation("valid", named("header", "one")), number(14)),
    step("log_msg", {"type": "string", "value": "{}"}, {"type": "parameters_vector", "value": [field("one", "a")]}),
    step("assign", field("one", "a"), operation("access_field", named("header", "one"), 0)),
    step("assign_VL", field("one_v", "v"), field("two_v", "v")),
    assign(field("one", "a"), operation("access_field", OF_UNION, 0)),
    assign(field("one", "b"), {"type": "register", "value": ["r", number(1)]}),
    assign(field("scalars", "x"), operation("?", number(1), field("one", "a"), {"type": "bool", "value": True})),
    assign(field("scalars", "x"), operation("==", named("header_union", "u"), named("header_union", "w"))),
    assign(field("standard_metadata", "egress_spec"), number(1)),
]


def everything() -> Any:
    """Return a program with something of everything."""
    members = {name: "fixed" if name.endswith("m") else "variable" for name in UNION_MEMBERS}
    select = {
        "transition_key": [field("one", "a")],
        "transitions": [
            {"type": "hexstr", "value": "0x01", "mask": "0x0f", "next_state": "more"},
            {"type": "parse_vset", "value": "set", "mask": None, "next_state": "more"},
            {"type": "default", "value": None, "mask": None, "next_state": None},
        ],
    }
    value = program(
        {"fixed": FIXED, "variable": VARIABLE},
        {"one": "fixed", "s0": "fixed", "s1": "fixed", "one_v": "variable", "two_v": "variable", **members},
        [
            state("start", [extract("one")], **select),
            state(
                "more",
                [extract("st", "stack"), extract("one_v", bits=number(16)), step("advance", number(8)), *IN_PARSER],
            ),
        ],
        ingress=STEPS,
        egress=[step("no_op")],
        emitted=["one", "s0", "s1", "one_v"],
        stacks={"st": ("fixed", ["s0", "s1"])},
        scalars=[["x", 8, False]],
        parse_vsets=[{"name": "set", "id": 0, "compressed_bitwidth": 8}],
        register_arrays=[{"name": "r", "id": 0, "size": 4, "bitwidth": 8}],
        counter_arrays=[
            {"name": "c", "id": 0, "is_direct": False, "size": 4},
            {"name": "direct", "id": 1, "is_direct": True, "binding": "tk"},
        ],
        meter_arrays=[
            {"name": "m", "id": 0, "is_direct": False, "size": 4, "rate_count": 2, "type": "bytes"},
            {
                "name": "own",
                "id": 1,
                "is_direct": True,
                "binding": "tk",
                "result_target": ["scalars", "x"],
                "rate_count": 2,
                "type": "packets",
            },
        ],
        calculations=[{"name": "hash", "id": 0, "algo": "crc16", "input": [field("one", "a"), named("header", "one")]}],
        checksums=[
            {
                "name": "sum",
                "id": 0,
                "type": "generic",
                "calculation": "hash",
                "target": ["one", "b"],
                "verify": False,
                "update": True,
                "if_cond": operation("valid", named("header", "one")),
            }
        ],
        learn_lists=[{"name": "digest", "id": 3, "elements": [field("one", "a")]}],
        field_lists=[{"name": "kept", "id": 1, "elements": [field("scalars", "x")]}],
        field_aliases=[["queueing_metadata.qid", ["scalars", "x"]]],
    )
    ids = {header["name"]: header["id"] for header in value["headers"]}
    value["header_union_types"] = [{"name": "either", "id": 0, "headers": [["m", "fixed"], ["n", "variable"]]}]
    value["header_unions"] = [
        {"name": name, "id": at, "union_type": "either", "header_ids": [ids[f"{name}.m"], ids[f"{name}.n"]]}
        for at, name in enumerate(("u", "w", "us[0]", "us[1]"))
    ]
    value["header_union_stacks"] = [
        {"name": "us", "id": 0, "union_type": "either", "size": 2, "header_union_ids": [2, 3]}
    ]
    value["actions"].append(
        {
            "name": "set",
            "id": 2,
            "runtime_data": [{"name": "to", "bitwidth": 8}],
            "primitives": [assign(field("one", "a"), {"type": "runtime_data", "value": 0})],
        }
    )
    call = {"action_id": 2, "action_data": ["0x05"]}
    value["pipelines"][0]["tables"][0]["next_tables"]["in"] = "if"
    value["pipelines"][0]["conditionals"] = [
        {
            "name": "if",
            "id": 0,
            "expression": operation("valid", named("header", "one")),
            "true_next": "tk",
            "false_next": None,
        }
    ]
    value["pipelines"][0]["tables"].append(
        table("tk", 1, "set")
        | {
            "key": [
                {"match_type": "exact", "name": "a", "target": ["one", "a"], "mask": None},
                {"match_type": "lpm", "name": "b", "target": ["one", "b"], "mask": None},
                {"match_type": "exact", "name": "valid", "target": ["one", "$valid$"], "mask": None},
            ],
            "match_type": "lpm",
            "action_ids": [2],
            "default_entry": call | {"action_const": False, "action_entry_const": False},
            "direct_meters": "own",
            "with_counters": True,
            "entries": [
                {
                    "match_key": [
                        {"match_type": "exact", "key": "0x05"},
                        {"match_type": "lpm", "key": "0x1200", "prefix_length": 8},
                        {"match_type": "exact", "key": "0x01"},
                    ],
                    "action_entry": call,
                    "priority": 1,
                }
            ],
        }
    )
    return value


def changed(path: str, new: Any) -> Any:
    """Return the program with another value at a place; a path that ends with "+" appends it to a list."""
    value = place = json.loads(json.dumps(everything()))  # no part of it is another part of it, too
    *way, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    for part in way:
        place = place[part]
    if last == "+":
        place.append(new)
    else:
        place[last] = new
    return value


#: The table with a key.
KEYED = everything()["pipelines"][0]["tables"][1]

#: A register, a stack, ... where something else belongs.
REGISTER, STACK, UNION = named("register_array", "r"), named("header_stack", "st"), named("header_union", "u")
KEY, ENTRY, TABLE = "pipelines/0/tables/1/key", "pipelines/0/tables/1/entries/0", "pipelines/0/tables/1"
STEP = {name["op"]: f"actions/0/primitives/{at}" for at, name in list(enumerate(STEPS, 1))[::-1]}

PROFILE = {"name": "ap", "id": 0, "max_size": 4}

RULES: list[tuple[str, Any, str]] = [
    # Names and ids.
    ("headers/3/name", "one", "has the name 'one', which another one has"),
    ("headers/3/id", 2, "has the id 2, which another one has"),
    ("header_types/3/name", "fixed", "has the name 'fixed', which another one has"),
    ("header_types/2/fields/1/0", "a", "has the name 'a', which another one has"),
    ("header_unions/1/name", "u", "has the name 'u', which another one has"),
    ("header_unions/1/id", 0, "has the id 0, which another one has"),
    ("header_union_types/0/headers/1/0", "m", "has the name 'm', which another one has"),
    ("actions/1/id", 0, "has the id 0, which another one has"),
    ("parsers/0/parse_states/1/name", "start", "has the name 'start', which another one has"),
    ("pipelines/0/tables/1/name", "ti", "has the name 'ti', which another one has"),
    ("pipelines/0/conditionals/0/name", "ti", "has the name 'ti', which a table has"),
    ("pipelines/1", control("egress", 1, [table("tk", 1, "out")]), "a table 'tk', which ingress has too"),
    ("counter_arrays/1/name", "c", "has the name 'c', which another one has"),
    ("learn_lists/+", {"name": "digest", "id": 3, "elements": []}, "has the id 3, which another one has"),
    ("field_lists/+", {"name": "kept", "id": 1, "elements": []}, "has the id 1, which another one has"),
    ("errors/1/0", "NoError", "has the name 'NoError', which another one has"),
    ("errors/1/1", -1, "has -1 as its number; accepted: up to 4294967295"),
    # Headers.
    ("headers/2/header_type", "gone", "is of type 'gone', which the program does not have"),
    ("headers/2/metadata", 7, "is neither true nor false"),
    ("header_types/2/fields/1/1", 15, "header type 'fixed' does not end at a whole byte"),
    ("header_types/3/fields/0/1", 7, "has 129 bits left for the varbit 'v'; accepted: whole bytes"),
    ("header_types/3/fields", [["n", 4], ["v", "*"], ["m", 4]], "'v' does not start at a whole byte"),
    ("header_types/3/fields/+", ["w", "*"], "has the varbits 'v', 'w'; accepted: one varbit in a header"),
    ("header_types/3/max_length", 0, "has -8 bits left for the varbit 'v'; accepted: whole bytes"),
    ("header_types/3/max_length", None, "is not a whole number"),
    ("header_stacks/0/header_ids/1", 99, "is 99, an id that nothing has"),
    ("header_stacks/0/header_ids/1", 5, "has the element 'one_v' of type 'variable'; accepted: elements of its own"),
    ("header_stacks/0/header_ids/1", 0, "has the struct 'scalars'; accepted: headers"),
    ("header_stacks/0/header_ids/1", 3, "header 's0' has more than one place in stacks and unions; accepted: one"),
    ("header_stacks/0/header_ids", [3], "has 1 elements and the size 2"),
    ("header_stacks/0/header_type", "variable", "has the element 's0' of type 'fixed'; accepted: elements of its own"),
    (
        "header_stacks/+",
        {"name": "none", "header_type": "fixed", "header_ids": []},
        "header stack 'none' has no elements",
    ),
    ("header_stacks/0/size", 3, "has 2 elements and the size 3"),
    ("header_unions/0/union_type", "gone", "is of type 'gone', which the program does not have"),
    ("header_unions/0/header_ids", [8, 7], "has members of the types 'variable', 'fixed'; accepted: those of its type"),
    ("header_unions/0/header_ids", [7], "has members of the types 'fixed'; accepted: those of its type"),
    ("header_union_stacks/0/header_union_ids", [2, 2], "header union 'us[0]' has more than one place"),
    (
        "header_union_stacks/0/union_type",
        "other",
        "has the element 'us[0]' of type 'either'; accepted: elements of its own",
    ),
    ("deparsers/0/order/0", "gone", "refers to 'gone', a header that the program does not have"),
    ("deparsers/0/order/0", "scalars", "the deparser has the struct 'scalars'; accepted: headers"),
    ("deparsers/0/order/0", "st", "refers to 'st', a header that the program does not have"),
    # Standard metadata.
    ("headers/1/metadata", False, "the program has no struct 'standard_metadata'; accepted: programs for v1model"),
    ("header_types/1/fields/1/1", 16, "the standard metadata has bit<16> as 'egress_spec'; accepted: bit<9>"),
    ("header_types/1/fields/1/2", True, "the standard metadata has int<9> as 'egress_spec'; accepted: bit<9>"),
    ("field_aliases/0/1/1", "gone", "has the field scalars.gone, which is not there; accepted: fields of structs"),
    ("header_types/0/fields/0/2", True, "the alias 'queueing_metadata.qid' has int<8>; accepted: bit<1> to bit<63>"),
    # The parser.
    ("parsers/0/init_state", "gone", "the parser has the successor 'gone', which is not there"),
    ("parsers/0/parse_states/0/transitions/0/next_state", "gone", "'start' has the successor 'gone', which is not"),
    ("parsers/0/parse_states/0/transitions/0/value", "0x100", "transitions[0].value does not fit 8 bits"),
    ("parsers/0/parse_states/0/transitions/0/mask", "-0x100", "transitions[0].mask does not fit 8 bits"),
    ("parsers/0/parse_states/0/transitions/1/value", "gone", "a value set that the program does not have"),
    ("parse_vsets/0/compressed_bitwidth", 9, "has a key of 8 bits; accepted: 9 of the value set 'set'"),
    ("parsers/0/parse_states/0/transition_key/0", field("one_v", "v"), "has a key of 128 bits; accepted: 8"),
    ("parsers/0/parse_states/0/transition_key/0", number(1), "neither a field nor lookahead"),
    ("parsers/0/parse_states/0/parser_ops/0", extract("scalars"), "into the struct 'scalars'; accepted: headers"),
    ("parsers/0/parse_states/0/parser_ops/0", extract("us", "stack"), "the header stack 'us', which is not there"),
    ("parsers/0/parse_states/0/parser_ops/0", extract("one", bits=number(8)), "into 'one', which has no varbit"),
    ("parsers/0/parse_states/0/parser_ops/0", step("extract_VL", named("regular", "one_v")), "with 1 parameters"),
    ("parsers/0/parse_states/0/parser_ops/0", step("verify", number(1)), "has 'verify' with 1 parameters; accepted: 2"),
    (
        "parsers/0/parse_states/1/parser_ops/0/parameters/0",
        {"type": "union_stack", "value": ["us", "gone"]},
        "has the member 'gone' of 'us[0]'; accepted: its members 'm', 'n'",
    ),
    ("parsers/0/parse_states/1/parser_ops/0/parameters/0/type", "odd", "accepted: regular, stack, union_stack"),
    ("parsers/0/parse_states/1/parser_ops/0/op", "odd", "is the parser operation 'odd', which the embedded switch"),
    ("parsers/0/parse_states/1/parser_ops/4/parameters/0/value/0", "gone", "refers to a field of a stack that the"),
    ("parsers/0/parse_states/1/parser_ops/4/parameters/1/value/1", "gone", "refers to a field of a stack that the"),
    ("parsers/0/parse_states/1/parser_ops/5/parameters/0/parameters/0/value", "gone", "'gone', a header that the"),
    ("parsers/0/parse_states/1/parser_ops/6/parameters/0", -1, "has -1 bytes; accepted: up to 65536"),
    ("parsers/0/parse_states/0/transitions/0/type", "odd", "accepted: default, hexstr, parse_vset"),
    (
        "parsers/0/parse_states/1/parser_ops/0/parameters/0",
        {"type": "union_stack", "value": ["st", "m"]},
        "has the header union stack 'st', which is not there",
    ),
    # Primitives and their operands.
    (f"{STEP['assign']}/parameters/0", number(1), "a number as parameter 1 of 'assign'; accepted: a field"),
    (
        f"{STEP['assign']}/parameters/1",
        STACK,
        "a header stack of 2 elements of type 'fixed' as parameter 2 of 'assign'",
    ),
    (f"{STEP['assign']}/parameters/1", field("one_v", "v"), "a number and a varbit of 128 bits as parameters"),
    (
        f"{STEP['assign']}/parameters/1",
        {"type": "lookahead", "value": [0, 8]},
        "accepted: lookahead in the parser alone",
    ),
    (f"{STEP['assign']}/parameters/1", {"type": "runtime_data", "value": 0}, "parameter 0; accepted: its action's 0"),
    (f"{STEP['assign']}/parameters", [number(1)], "has 'assign' with 1 parameters; accepted: 2"),
    ("actions/0/primitives/2/parameters/1/value/value/right/value", "0x100", "the literal 256 in 8 bits"),
    ("actions/0/primitives/2/parameters/1/value/value/op", "<=>", "the operator '<=>'; accepted: +, -"),
    (
        "actions/0/primitives/2/parameters/1/value/value",
        {"op": "*", "left": None, "right": number(1)},
        "has 1 operands of '*'",
    ),
    (
        "actions/0/primitives/2/parameters/1/value/value/left",
        named("header", "one"),
        "a header of type 'fixed' as operand 1",
    ),
    (
        "actions/0/primitives/2/parameters/1/value/value/left",
        field("one_v", "v"),
        "a varbit of 128 bits as operand 1 of '+'",
    ),
    (f"{STEP['assign_header']}/parameters/0", named("header", "one_v"), "'variable' and a header of type 'fixed' as"),
    (f"{STEP['assign_header']}/parameters/0", named("header", "scalars"), "a struct of type 'scalars_0' and a header"),
    (f"{STEP['assign_header']}/parameters/1/value/value/left", REGISTER, "a register array as operand 1 of 'deref"),
    (
        f"{STEP['assign_header']}/parameters/1/value/value/left/value",
        "gone",
        "the header stack 'gone', which is not there",
    ),
    (
        f"{STEP['assign_header']}/parameters/1/value/value/left",
        named("header_union_stack", "us"),
        "has 'dereference_header_stack' of a header union stack; accepted: an operator for that kind of stack",
    ),
    ("actions/0/primitives/17/parameters/1/value/value/left/value/value/right", 2, "as operand 2 of 'access_union"),
    ("actions/0/primitives/18/parameters/1/value/0", "gone", "the register array 'gone', which is not there"),
    ("actions/0/primitives/18/parameters/1/value/1", STACK, "the index of a register; accepted: a number"),
    ("actions/0/primitives/19/parameters/1/value/value/cond", UNION, "as operand 1 of '?'; accepted: a number"),
    (
        "actions/0/primitives/20/parameters/1/value/value/right",
        operation("dereference_union_stack", named("header_union_stack", "us"), number(0)),
        "has a comparison of header unions by index; accepted: unions that are named",
    ),
    (f"{STEP['assign_header_stack']}/parameters/1", named("header_union_stack", "us"), "and a header union stack of 2"),
    (f"{STEP['assign_union']}/parameters/1", named("header", "one"), "accepted: a header union"),
    (f"{STEP['push']}/parameters/0", UNION, "accepted: a header stack or header union stack"),
    (f"{STEP['push']}/parameters/1", field("one", "a"), "has a number as parameter 2 of 'push'; accepted: a constant"),
    (f"{STEP['push']}/parameters/1/value", "-0x1", "has -1 as parameter 2 of 'push'; accepted: numbers from 0"),
    (
        f"{STEP['count']}/parameters/0",
        REGISTER,
        "a register array as parameter 1 of 'count'; accepted: a counter array",
    ),
    (f"{STEP['count']}/parameters/0/value", "gone", "the counter array 'gone', which is not there"),
    (f"{STEP['count']}/parameters/0/value", "direct", "the counter array 'direct', which is direct"),
    (f"{STEP['execute_meter']}/parameters/0", REGISTER, "accepted: a meter array"),
    (f"{STEP['execute_meter']}/parameters/2", field("one_v", "v"), "accepted: a field that is a number"),
    (f"{STEP['register_write']}/parameters/0/value", "gone", "the register array 'gone', which is not there"),
    (f"{STEP['register_write']}/parameters/2", STACK, "as parameter 3 of 'register_write'; accepted: a number"),
    (
        f"{STEP['modify_field_with_hash_based_offset']}/parameters/2/value",
        "gone",
        "the calculation 'gone', which is not",
    ),
    (
        f"{STEP['generate_digest']}/parameters/1/value",
        "0x4",
        "has 4 as parameter 2 of 'generate_digest'; accepted: the id",
    ),
    (f"{STEP['mark_to_drop']}/parameters/0", STACK, "as parameter 1 of 'mark_to_drop'; accepted: a header or struct"),
    (
        f"{STEP['_jump_if_zero']}/parameters/1/value",
        "0x99",
        "has 153 as parameter 2 of '_jump_if_zero'; accepted: steps 0 to",
    ),
    (
        f"{STEP['_jump_if_zero']}/parameters/1/value",
        "-0x1",
        "has -1 as parameter 2 of '_jump_if_zero'; accepted: steps 0",
    ),
    (f"{STEP['_jump_if_zero']}/parameters/0/value/value/left", UNION, "a header union of type 'either' as operand 1"),
    (f"{STEP['log_msg']}/parameters/0", number(1), "has a number as parameter 1 of 'log_msg'; accepted: a text"),
    (f"{STEP['log_msg']}/parameters/1", number(1), "has a number as parameter 2 of 'log_msg'; accepted: a list"),
    (f"{STEP['assign_VL']}/parameters/1", field("one", "a"), "a varbit of 128 bits and a number as parameters"),
    (
        "actions/0/primitives/15/parameters/1/value/value/right",
        2,
        "has 2 as operand 2 of 'access_field'; accepted: numbers",
    ),
    # Tables.
    (f"{KEY}/0/match_type", "fuzzy", "has the match kind 'fuzzy'; accepted: exact, lpm"),
    (f"{KEY}/0/match_type", "lpm", "has the match kind 'exact'; accepted: lpm, which the key of its table has"),
    (f"{KEY}/0/target", ["gone", "a"], "refers to 'gone', a header that the program does not have"),
    (f"{KEY}/2/target", ["gone", "$valid$"], "refers to 'gone', a header that the program does not have"),
    (f"{KEY}/0/target", ["one_v", "v"], "has a varbit of 128 bits as 'a' in its key; accepted: a number"),
    (f"{KEY}/0/mask", "0x100", "the mask '0x100' of 'a'; accepted: masks of 8 bits"),
    (f"{TABLE}/match_type", "fuzzy", "the match type 'fuzzy'; accepted: exact, lpm"),
    (f"{TABLE}/type", "odd", "is of type 'odd'; accepted: simple, indirect, indirect_ws"),
    (f"{TABLE}/type", "indirect", "has no 'action_profile'"),
    (f"{TABLE}/action_ids/0", 9, "is 9, an action that the program does not have"),
    (f"{TABLE}/action_ids", [2, 2], "is a second action 'set' of the table 'tk'"),
    (f"{TABLE}/next_tables", {"gone": None}, "goes on after 'gone', which is not one of its actions"),
    (f"{TABLE}/next_tables", {"set": "gone"}, "table 'tk' has the successor 'gone', which is not there"),
    (f"{TABLE}/base_default_next", "gone", "has the successor 'gone'"),
    ("pipelines/0/conditionals/0/true_next", "gone", "condition 'if' has the successor 'gone', which is not there"),
    ("pipelines/0/conditionals/0/expression", STACK, "as its expression; accepted: a number"),
    ("pipelines/0/init_table", "gone", "the control 'ingress' has the successor 'gone', which is not there"),
    (f"{TABLE}/default_entry/action_id", 0, "refers to action 0, which its table does not have"),
    (f"{TABLE}/default_entry/action_data", [], "has 0 arguments for action 'set'"),
    (f"{TABLE}/default_entry/action_data/0", "0x100", "does not fit 8 bits"),
    (f"{ENTRY}/action_entry/action_id", 1, "refers to action 1, which its table does not have"),
    (f"{ENTRY}/match_key/0/key", "0x100", "match_key[0].key does not fit 8 bits"),
    (f"{ENTRY}/match_key/1/prefix_length", 17, "match_key[1].prefix_length has 17 bits; accepted: up to 16"),
    (f"{ENTRY}/match_key/1/match_type", "ternary", "has the match kind 'ternary'; accepted: lpm"),
    (f"{ENTRY}/match_key", [], "has 0 key fields, its table 3"),
    (f"{TABLE}/direct_meters", "m", "has the direct meter 'm'; accepted: a meter that is bound to it, with a result"),
    (TABLE, KEYED | {"key": [KEYED["key"][1]] * 2, "entries": []}, "table 'tk' has two lpm fields in its key"),
    (TABLE, KEYED | {"type": "indirect", "action_profile": "gone"}, "the action profile 'gone', which is not there"),
    ("pipelines/0/action_profiles", [PROFILE, PROFILE], "has the name 'ap', which another one has"),
    ("pipelines/0/action_calls", [{}], "has 'action_calls', which the embedded switch does not support"),
    ("pipelines/1/name", "ingress", "has the name 'ingress', which another one has"),
    ("parsers/+", {}, "has not one parser and one deparser; only v1model programs can run"),
    # Arrays, calculations, lists.
    ("counter_arrays/1/binding", "gone", "has the table 'gone', which is not there"),
    ("meter_arrays/1/result_target", ["one_v", "v"], "as its result; accepted: a field that is a number"),
    ("calculations/0/algo", "rot13", "has an unknown algorithm 'rot13'"),
    ("calculations/0/input/1", STACK, "accepted in a calculation: field, hexstr, header, payload"),
    ("checksums/0/calculation", "gone", "a calculation that the program does not have"),
    (
        "checksums/0/target",
        ["one_v", "v"],
        "has a varbit of 128 bits as its target; accepted: a field that is a number",
    ),
    ("checksums/0/if_cond", STACK, "as its condition; accepted: a number"),
    ("learn_lists/0/elements/0", STACK, "learn list 3 has a header stack of 2 elements of type 'fixed' in it"),
    ("learn_lists/0/elements/0", field("one_v", "v"), "learn list 3 has a varbit of 128 bits in it"),
    ("field_lists/0/elements/0", UNION, "field list 1 has a header union of type 'either' in it"),
]


@pytest.mark.parametrize(("path", "new", "says"), RULES, ids=[f"{path}-{at}" for at, (path, _, _) in enumerate(RULES)])
def test_every_rule_refuses_what_breaks_it(path: str, new: Any, says: str) -> None:
    assert says in refusal(text(changed(path, new)))


def test_the_program_with_everything_runs_in_both_engines() -> None:
    pipeline = TwinPipelines(text(everything()))
    for frame in (b"", b"\1\2\3", bytes(64), b"\1" + bytes(range(200))):
        through(pipeline, frame)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_programs_of_the_suite_keep_all_rules(name: str) -> None:
    assert read_program(document(name)).states


def test_a_sound_tiny_program_runs_in_both_engines() -> None:
    value = copying(step("assign_header", named("header", "ha"), named("header", "ha")))
    value["deparsers"][0]["order"] = ["ha"]
    frame = b"Z" * (VARBIT_BYTES + FIELDS) + b"tail"
    for engine in (PYTHON, NATIVE):
        assert VirtualSwitch(text(value), engine=engine).run({0: [frame]}) == {1: [frame]}


@pytest.mark.parametrize(("argument", "first"), [("0x05", 5), ("-0x01", 255), ("-0x80", 128)])
def test_an_argument_below_zero_is_its_twos_complement(argument: str, first: int) -> None:
    value = changed(f"{TABLE}/default_entry/action_data/0", argument)
    value["actions"][0]["primitives"] = STEPS[-1:]
    left = through(TwinPipelines(text(value)), b"\2\0\0")
    assert left is not None
    assert left[0] == first


def test_a_narrow_field_for_one_of_the_standard_metadata_takes_the_low_bits() -> None:
    value = program(
        {"fixed": FIXED},
        {"one": "fixed"},
        [state("start", [extract("one")])],
        egress=[assign(field("one", "a"), field("scalars", "x"))],
        emitted=["one"],
        scalars=[["x", 4, False], ["rest", 4, False]],
        field_aliases=[["intrinsic_metadata.egress_rid", ["scalars", "x"]]],
    )
    pipeline = TwinPipelines(text(value))
    packet = ingress(pipeline, bytes(3))
    packet.egress_rid = 0x135
    assert egress(pipeline, packet) == b"\5\0\0"


def test_members_of_a_union_may_be_listed_by_another_name_of_their_type_but_not_differ() -> None:
    value = changed("header_union_types/0/headers/0/1", "name_in_the_source")
    assert read_program(text(value)).unions["u"].member_types == ("name_in_the_source", "variable")
    ids = {header["name"]: header["id"] for header in value["headers"]}
    value["header_unions"][1]["header_ids"][0] = ids["one_v"]
    assert "header union 'w' has members of the types 'variable', 'variable'" in refusal(text(value))


def test_every_primitive_that_can_be_written_has_a_rule_for_its_parameters() -> None:
    says = refusal(text(changed("actions/0/primitives/1/op", "teleport")))
    assert set(says.partition("Accepted: ")[2].split(", ")) - {"set"} <= set(PRIMITIVES)


def test_an_error_lists_some_names_alone() -> None:
    value = everything()
    value["header_unions"][0]["header_ids"] = [7] * 100_000
    assert len(refusal(text(value))) < 500


def test_what_headers_of_one_type_have_in_common_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(verify, "groups_of", lambda kind: seen.append(kind.name))
    value = everything()
    value["headers"] += [value["headers"][2] | {"name": f"more{at}", "id": 1000 + at} for at in range(50)]
    read_program(text(value))
    assert sorted(seen) == ["fixed", "variable"]


# Mutants of real programs.


def becomes(document: bytes, engine: str) -> CompiledProgram | str:
    """Return a program that is compiled, or the line that refuses it."""
    try:
        return compile_program(document, engine, optimised=False)
    except ProgramError as error:
        return str(error)


def compared(document: bytes, random: Random) -> bool:
    """Return whether a program runs, after a check that both engines refuse it alike, or do the same with packets."""
    outcome, native = becomes(document, PYTHON), becomes(document, NATIVE)
    if isinstance(outcome, str):
        assert native == outcome
        assert outcome.isprintable()
        assert "do not fit together" not in outcome
        return False
    if isinstance(native, str):  # what native code cannot do has a reason, and that is no mishap
        assert re.fullmatch(r"the program cannot run as native code: it [a-z].*; choose .*", native), native
        return True
    twins, draw = TwinPipelines(native), RandomTables(read_program(document), random.getrandbits(32))
    operations = [draw.operation() for _ in range(20)] if native.tables else []
    for each in (*native.entries, *draw.first(), *operations):
        twins.apply(each)
    for frame in (b"", bytes(64), bytes(range(200)), random.randbytes(90), b"\1" + random.randbytes(60)):
        with suppress(EndlessLoop):
            packet = ingress(twins, frame, random.randrange(4))
            if packet.egress_spec != DROP_PORT and packet.resubmit_fields < 0:
                egress(twins, packet)
    return True


@rest(but=2)
@pytest.mark.parametrize("name", [*PROGRAMS, "everything"])
def test_a_mutant_is_refused_in_one_line_or_does_the_same_in_both_engines(name: str) -> None:
    sound = text(everything()) if name == "everything" else document(name)
    ran = [compared(mutant(random, sound), random) for random in map(Random, range(examples(100)))]
    assert any(ran)
    assert not all(ran)
