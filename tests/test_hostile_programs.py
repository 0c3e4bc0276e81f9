"""Programs that p4c never wrote: no name of theirs is code, and what they may cost is bounded."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import grpc
import pytest
from fuzz_configs import fuzz, peak_bytes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import tiny_programs as tiny
from support.passes import PROGRAMS, document, through
from support.runtime_support import DOCUMENT, P4INFO, Client, StrictDataPath
from support.thorough import examples, rest
from support.twins import both

from tensorexpress.errors import ProgramError
from tensorexpress.p4 import load as load_own
from tensorexpress.p4runtime_messages import p4runtime_pb2
from tensorexpress.switch.counted import LOOP
from tensorexpress.switch.device import Switch
from tensorexpress.switch.p4runtime.service import serve
from tensorexpress.switch.program.pipeline import Pipeline

DOCUMENTS = {name: document(name) for name in PROGRAMS} | {"tensorexpress": load_own().document}


@cache  # and not when tests are collected: every worker of a run collects all of them
def source_of(name: str) -> str:
    return Pipeline(DOCUMENTS[name]).source


#: Strings that BMv2 JSON and v1model give a meaning; all others are names and texts that a program's author chose.
_MEANING = re.compile(
    r"""
    \* | __HIT__ | __MISS__ | \$valid\$ | ingress | egress | default | bytes | packets | payload
    | standard_metadata | (standard|intrinsic|queueing)_metadata\..* | NoError | PacketTooShort | NoMatch
    | StackOutOfBounds | HeaderTooShort | ParserTimeout | ParserInvalidArgument
    """,
    re.VERBOSE,
)

#: Keys whose strings are words of the format, not names.
_WORDS = {"op", "type", "match_type", "algo", "mask", "__meta__", "start", "end", "action_data"}


def is_word(parent: Any, key: str) -> bool:
    """Whether the strings under a key of an object are words or numbers of the format."""
    is_number = key == "value" and parent.get("type") == "hexstr"
    return key in _WORDS or is_number or (key == "key" and isinstance(parent[key], str))


def strings(value: Any, key: str = "") -> Iterator[str]:
    """Yield every string of a document that is a name or a text, and the keys that are names."""
    if isinstance(value, str):
        if not _MEANING.fullmatch(value):
            yield value
    elif isinstance(value, list):
        for item in value:
            yield from strings(item, key)
    elif isinstance(value, dict):
        for name, item in value.items():
            if key == "next_tables" and not _MEANING.fullmatch(name):
                yield name
            if not is_word(value, name):
                yield from strings(item, name)


def standard_fields(value: Any) -> set[str]:
    """Return the names of the standard metadata's fields, which v1model gives a meaning."""
    names = {header["header_type"] for header in value["headers"] if header["name"] == "standard_metadata"}
    return {item[0] for kind in value["header_types"] if kind["name"] in names for item in kind["fields"]}


def renamed(value: Any, names: dict[str, str], key: str = "") -> Any:
    """Return a document with other names, the same wherever the same one stood."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, list):
        return [renamed(item, names, key) for item in value]
    if isinstance(value, dict):
        return {
            names.get(name, name) if key == "next_tables" else name: item
            if is_word(value, name)
            else renamed(item, names, name)
            for name, item in value.items()
        }
    return value


def with_names(name: str, make: Callable[[int], str]) -> bytes:
    """Return a program whose every name is made from a number of its own."""
    value = json.loads(DOCUMENTS[name])
    kept = standard_fields(value)
    found = [text for text in dict.fromkeys(strings(value)) if text not in kept]
    return json.dumps(renamed(value, {text: make(number) for number, text in enumerate(found)})).encode()


HOSTILE = [
    "\nraise SystemExit('ran')\n#",
    "\r\n    raise SystemExit('ran')",
    "\x0craise SystemExit",
    "\u2028raise SystemExit\u2029",
    '"""',
    "'''",
    "\\",
    "{packet}",
    "%s%n",
    "#",
    "packet",
    "ｐａｃｋｅｔ",
    "ﬁeld",
    "def",
    "None",
    "__import__('os')",
    "step0_",
    "row",
    "frame",
    "at",
    "key",
    "f0",
    "f1",
    "t1_known",
    "$packet$",
    "$bytes$",
    "$next$",
    "$unit a$",
    "$raw a$",
    "\0",
    "\ud800",
    "\U0001f600",
    "",
    " ",
    "a" * 400,
    "scalars",
    "0",
    "-1",
]


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(sorted(set(DOCUMENTS) - {"tensorexpress"})),
    st.lists(st.sampled_from(HOSTILE) | st.text(max_size=20), min_size=1, max_size=8),
    st.booleans(),
)
def test_names_leave_no_trace_in_the_generated_code(name: str, hostile: list[str], numbered_last: bool) -> None:
    def make(number: int) -> str:
        text = hostile[number % len(hostile)]
        # The first of each kind stands alone, so that exactly these names are tried too.
        if number < len(hostile):
            return text if hostile.index(text) == number else f"{text}{number}~"
        return f"{text}{number}~" if numbered_last else f"{number}~{text}"

    source = Pipeline(with_names(name, make)).source
    assert ast.dump(ast.parse(source)) == ast.dump(ast.parse(source_of(name)))
    assert source == source_of(name)


def test_names_leave_no_trace_in_the_code_of_our_own_program() -> None:
    source = Pipeline(with_names("tensorexpress", lambda number: HOSTILE[number % len(HOSTILE)] + str(number))).source
    assert source == source_of("tensorexpress")


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_the_generated_code_has_no_comment_and_no_name_but_its_own(name: str) -> None:
    source = source_of(name)
    assert source.isascii()
    assert "#" not in source
    texts = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    assert all(
        isinstance(text, int | None) or text in ("big", b"") or re.fullmatch(r">[\dxsBHIQ]*", text) for text in texts
    )


def places(value: Any) -> dict[str, list[str]]:
    """Return the names of a document by what they name."""
    tables = [table["name"] for control in value["pipelines"] for table in control["tables"]]
    return {
        "state": [state["name"] for state in value["parsers"][0]["parse_states"]],
        "table": tables,
        "condition": [node["name"] for control in value["pipelines"] for node in control["conditionals"]],
        "action": [action["name"] for action in value["actions"]],
        "parameter": [item["name"] for action in value["actions"] for item in action["runtime_data"]],
        "field": [item[0] for kind in value["header_types"] for item in kind["fields"]],
        "digest": [item["name"] for item in value["learn_lists"]],
        "message": [text for text in strings(value) if "{}" in text],
        "register": [item["name"] for item in value["register_arrays"]],
    }


@pytest.mark.parametrize(
    ("program", "place"),
    [*(("stateful", place) for place in places(json.loads(DOCUMENTS["stateful"]))), ("runtime", "parameter")],
)
def test_a_name_that_goes_on_in_another_line_runs_nothing(program: str, place: str, tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    value = json.loads(DOCUMENTS[program])
    kept = standard_fields(value)
    names = {
        text: attack(witness) + str(number) for number, text in enumerate(places(value)[place]) if text not in kept
    }
    assert names or (program, place) == ("stateful", "parameter")
    pipeline = Pipeline(json.dumps(renamed(value, names)).encode())
    for frame in (b"", bytes(64), bytes(range(64))):
        through(pipeline, frame)
    assert not witness.exists()


def attack(witness: Path) -> str:
    """Return a name that makes a file, if it is executed as a comment's end, as a string's end or as a statement."""
    code = f"__import__('pathlib').Path({str(witness)!r}).touch()"
    return f"x\n{code}\r\n    {code}\n' + str({code}) + '\n"


def test_verifying_a_program_over_p4runtime_runs_nothing_of_its_names(tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    value = json.loads(DOCUMENT)
    names = {state["name"]: attack(witness) + state["name"] for state in value["parsers"][0]["parse_states"]}
    hostile = json.dumps(renamed(value, names)).encode()
    with serve(StrictDataPath(), "127.0.0.1:0", cpu_port=255) as server, Client(server.address) as client:
        client.join()
        request = p4runtime_pb2.SetForwardingPipelineConfigRequest(device_id=1, action=1)
        request.election_id.low = 1
        request.config.p4info.CopyFrom(P4INFO)
        request.config.p4_device_config = hostile
        client.stub.SetForwardingPipelineConfig(request)
    assert not witness.exists()


def test_a_program_that_breaks_a_rule_is_refused_over_p4runtime_and_the_one_before_stays() -> None:
    value = json.loads(DOCUMENT)
    first, other = [header["name"] for header in value["headers"] if not header["metadata"]][:2]
    copy = tiny.step("assign_header", tiny.named("header", first), tiny.named("header", other))
    value["actions"][0]["primitives"].append(copy)
    with serve(StrictDataPath(), "127.0.0.1:0", cpu_port=255) as server, Client(server.address) as client:
        client.join()
        request = p4runtime_pb2.SetForwardingPipelineConfigRequest(device_id=1)
        request.action = p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
        request.election_id.low = 1
        request.config.p4info.CopyFrom(P4INFO)
        request.config.p4_device_config = DOCUMENT
        client.stub.SetForwardingPipelineConfig(request)
        request.config.p4_device_config = json.dumps(value).encode()
        with pytest.raises(grpc.RpcError) as refused:
            client.stub.SetForwardingPipelineConfig(request)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "as parameters of 'assign_header'; accepted: two of the same type" in refused.value.details()
        there = client.stub.GetForwardingPipelineConfig(p4runtime_pb2.GetForwardingPipelineConfigRequest(device_id=1))
        assert there.config.p4_device_config == DOCUMENT


# Loops.


def refusal(value: Any) -> str:
    """Return why a program is refused, which is one line."""
    with pytest.raises(ProgramError) as caught:
        Pipeline(value if isinstance(value, bytes) else json.dumps(value).encode())
    assert str(caught.value).isprintable()
    return str(caught.value)


@pytest.mark.parametrize("stage", [0, 1])
def test_a_control_with_a_cycle_is_refused_by_a_node_on_it(stage: int) -> None:
    value = json.loads(DOCUMENTS["tensorexpress"])
    control = value["pipelines"][stage]
    node = control["conditionals"][0]
    node["true_next"] = node["false_next"] = control["init_table"]
    assert re.search(r"(table|condition) '.*' leads back to itself; controls have no loops", refusal(value))


def test_a_table_that_follows_itself_is_refused_by_name() -> None:
    value = json.loads(DOCUMENTS["matching"])
    control = value["pipelines"][0]
    table = control["tables"][0]
    control["init_table"] = table["base_default_next"] = table["name"]
    table["next_tables"] = {}
    assert f"table {table['name']!r} leads back to itself" in refusal(value)


def endless_parser(value: Any) -> None:
    """Let the first state extract nothing and follow itself."""
    state = value["parsers"][0]["parse_states"][0]
    value["parsers"][0]["init_state"] = state["name"]
    state["parser_ops"] = state["transition_key"] = []
    state["transitions"] = [{"type": "default", "value": None, "mask": None, "next_state": state["name"]}]


def endless_action(value: Any) -> None:
    """Let every action jump to its own beginning."""
    for action in value["actions"]:
        action["primitives"] = [{"op": "_jump", "parameters": [{"type": "hexstr", "value": "0x0"}]}]


@pytest.mark.parametrize("spoil", [endless_parser, endless_action])
@pytest.mark.parametrize("name", ["switchboard", "stateful"])
def test_a_packet_whose_program_loops_for_ever_is_dropped_and_counted(name: str, spoil: Callable[[Any], None]) -> None:
    value = json.loads(DOCUMENTS[name])
    spoil(value)
    sent: list[Any] = []
    switch = Switch(lambda *frame: sent.append(frame))
    switch.load(json.dumps(value).encode())
    switch.receive(3, bytes(64), 0)
    assert sent == []
    assert switch.statistics().ports[3].drops == {LOOP: 1}
    assert switch.statistics().failures == {}
    switch.load(DOCUMENTS[name])
    switch.receive(3, bytes(64), 0)
    assert switch.statistics().ports[3].drops[LOOP] == 1


def test_all_loops_of_a_pass_draw_from_the_same_steps() -> None:
    value = json.loads(DOCUMENTS["switchboard"])
    endless_parser(value)
    endless_action(value)
    ingress = next(
        node for node in ast.parse(Pipeline(json.dumps(value).encode()).source).body[::-1] if is_ingress(node)
    )
    heads = [ast.unparse(node.iter) for node in ast.walk(ingress) if isinstance(node, ast.For)]
    assert len(heads) > 1
    assert set(heads) == {"steps"}
    assert ast.unparse(ingress).count("steps = ") == 1


def is_ingress(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "ingress"


# Budgets.


FIELD = {"type": "field", "value": ["ethernet", "source"]}


def hexadecimal(value: int) -> Any:
    return {"type": "hexstr", "value": hex(value)}


def operation(op: str, *operands: Any) -> Any:
    keys = ["cond", "left", "right"] if len(operands) == 3 else ["left", "right"][-len(operands) :]
    return {"type": "expression", "value": {"op": op, "left": None} | dict(zip(keys, operands, strict=True))}


def with_destination(expression: Any) -> Any:
    """Return the program that computes the destination of a frame by an expression."""
    value = json.loads(DOCUMENTS["switchboard"])
    target = {"type": "field", "value": ["ethernet", "destination"]}
    for action in value["actions"]:
        action["primitives"] = [{"op": "assign", "parameters": [target, expression]}]
    return value


def nested(op: str, depth: int) -> Any:
    """Return an expression with an operator within itself, on the right and, where there is one, as a condition."""
    expression: Any = FIELD
    for number in range(depth):
        if op == "?":
            condition = operation("==", expression, hexadecimal(number))
            expression = operation("?", condition, hexadecimal(number), FIELD)
        elif op == "~":
            expression = operation("&", operation("~", expression), hexadecimal(2**48 - 1))
        elif op == "two_comp_mod":
            expression = operation("two_comp_mod", operation("+", expression, hexadecimal(9)), hexadecimal(48))
        elif op == "and":
            expression = operation("b2d", operation("and", operation("d2b", FIELD), operation("d2b", expression)))
        else:
            expression = operation(op, hexadecimal(10**12 + number), operation("+", expression, hexadecimal(1)))
    return expression


def calculated(op: str, depth: int, value: int) -> int:
    """Return what `nested` comes to in 48 bits."""
    result, mask = value, 2**48 - 1
    for number in range(depth):
        match op:
            case "?":
                result = number if result == number else value
            case "~":
                result = ~result & mask
            case "two_comp_mod":
                result = (result + 9 + 2**47 & mask) - 2**47
            case "and":
                result = int(bool(value) and bool(result))
            case "/":
                result = (10**12 + number) // (result + 1) if result + 1 else 0
            case "%":
                result = (10**12 + number) % (result + 1) if result + 1 else 0
            case "-":
                result = 10**12 + number - (result + 1)
            case "<<" | ">>":
                amount = min(max(result + 1, 0), 4096) if op == "<<" else result + 1
                result = 10**12 + number << amount if op == "<<" else 10**12 + number >> amount
    return result & mask


@rest(but=8)
@pytest.mark.parametrize("op", ["/", "%", "-", ">>", "?", "~", "two_comp_mod", "and"])
@pytest.mark.parametrize("depth", [1, 2, 30])
def test_source_grows_no_faster_than_the_expressions_it_is_made_from(op: str, depth: int) -> None:
    text = json.dumps(with_destination(nested(op, depth))).encode()
    pipeline = both(text)
    assert len(pipeline.source) < len(text)
    for source in (0, 1, 5, 2**40 + 12345):
        frame = bytes(5) + b"\7" + source.to_bytes(6, "big") + bytes(50)
        left = through(pipeline, frame)
        assert left is not None
        assert int.from_bytes(left[:6], "big") == calculated(op, depth, source)


def product(factors: int) -> Any:
    if factors == 1:
        return hexadecimal(2**4000)
    return operation("*", product(factors // 2), product(factors - factors // 2))


def change(path: str, new: Any, name: str = "stateful") -> bytes:
    """Return a program with another value at a path of keys and indices."""
    value = json.loads(DOCUMENTS[name])
    place = value
    *way, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    for step in way:
        place = place[step]
    place[last] = new
    return json.dumps(value).encode()


def many_registers() -> bytes:
    value = json.loads(DOCUMENTS["stateful"])
    value["register_arrays"] += [
        value["register_arrays"][0] | {"name": f"more{number}", "size": 2**20, "bitwidth": 8} for number in range(5)
    ]
    return json.dumps(value).encode()


def many_tables() -> bytes:
    """Return a program with one long action that hundreds of tables share."""
    value = json.loads(DOCUMENTS["switchboard"])
    control, step = value["pipelines"][0], value["actions"][1]["primitives"][0]
    value["actions"][1]["primitives"] = [step] * 400
    table = next(table for table in control["tables"] if table["name"] == "Choose.l2")
    control["tables"] = [
        table
        | {"name": f"t{number}", "next_tables": {}, "base_default_next": f"t{number + 1}" if number < 499 else None}
        for number in range(500)
    ]
    control["conditionals"], control["init_table"] = [], "t0"
    return json.dumps(value).encode()


def many_emitted() -> bytes:
    """Return a program that would make a frame of 300 MB from one that has a large header once."""
    value = json.loads(DOCUMENTS["switchboard"])
    ethernet = next(kind for kind in value["header_types"] if kind["name"] == "ethernet_t")
    ethernet["fields"] += [[f"f{number}", 4096] for number in range(100)]
    value["deparsers"][0]["order"] = ["ethernet"] * 6000
    return json.dumps(value).encode()


def many_states() -> bytes:
    value = json.loads(DOCUMENTS["switchboard"])
    states = value["parsers"][0]["parse_states"]
    states += [states[0] | {"name": f"state{number}"} for number in range(5000)]
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b" " * (2**22 + 1), "has 4194305 bytes of BMv2 JSON; accepted: up to 4194304"),
        (b"[" * 100_000, "not JSON"),
        (b'{"header_types": ' + b"9" * 10**6 + b"}", "not JSON"),
        (change("register_arrays.0.size", 2**24), "has 16777216 cells; accepted: up to 4194304"),
        (change("register_arrays.0.size", 10**400), "more than 64 bits"),
        (change("register_arrays.0.size", 1e999), "not a whole number"),
        (many_registers(), "cells in all registers, counters and meters; accepted: up to 4194304"),
        (change("register_arrays.0", {"name": "r", "size": 2**20, "bitwidth": 4096}), "bits in all registers"),
        (change("register_arrays.0.bitwidth", 5000), "has 5000 bits; accepted: up to 4096"),
        (change("header_types.2.fields.0.1", 10**10), "has 10000000000 bits; accepted: up to 4096"),
        (change("header_types.2.fields.0.1", -8), "has -8 bits; accepted: up to 4096"),
        (change("header_types.2.fields.0.0", "$valid$"), "stands for the header's validity"),
        (change("header_types.2.fields", [[f"f{n}", 4096, False] for n in range(130)]), "accepted: up to 65536"),
        (change("header_stacks.0.header_ids", [2] * 257, "headers"), "has 257 elements; accepted: up to 256"),
        (change("actions.0.name", "a" * 513), "has 513 characters; accepted: up to 512"),
        (json.dumps(with_destination(nested("/", 129))).encode(), "nests more than 128 expressions"),
        (json.dumps(with_destination(product(17))).encode(), "bits; accepted: up to 65536"),
        (json.dumps(with_destination(operation("two_comp_mod", FIELD, hexadecimal(10**9)))).encode(), "1 to 4096 bits"),
        (many_tables(), "more than 524288 characters of code"),
        (many_emitted(), "the deparser has 307284000 bytes of headers; accepted: up to 262144"),
        (many_states(), "states, tables or primitives in one graph; accepted: up to 4096"),
    ],
)
def test_what_is_beyond_a_budget_is_refused_by_its_name(text: bytes, says: str) -> None:
    assert says in refusal(text)


def test_a_push_by_any_number_of_elements_is_one_by_all_of_them() -> None:
    value = json.loads(DOCUMENTS["headers"])
    pushes = [step for action in value["actions"] for step in action["primitives"] if step["op"] in ("push", "pop")]
    assert pushes
    for step in pushes:
        step["parameters"][1]["value"] = hex(2**60)
    through(both(json.dumps(value).encode()), bytes(200))


@rest(but=1)
def test_damaged_configs_run_or_are_refused_in_one_line_with_bounded_source_and_memory() -> None:
    """A bounded run; `python tests/fuzz_configs.py --count 10000` is the long one."""
    before = peak_bytes()
    seen = fuzz(int(os.environ.get("TENSOREXPRESS_FUZZ_CONFIGS", "80")), seed=7)
    assert seen["taken"] > 0 < seen["program refused"]
    assert peak_bytes() - before < 150 * 10**6
