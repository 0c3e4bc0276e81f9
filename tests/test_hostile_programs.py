"""Programs that p4c never wrote: no name of theirs is code, and what they may cost is bounded."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from p4.v1 import p4runtime_pb2
from passes import PROGRAMS, document, through
from runtime_support import DOCUMENT, P4INFO, Client, StrictDataPath

from tensorexpress.errors import ProgramError
from tensorexpress.p4 import load as load_own
from tensorexpress.switch.device import LOOP, Switch
from tensorexpress.switch.p4runtime.service import serve
from tensorexpress.switch.program.pipeline import Pipeline

DOCUMENTS = {name: document(name) for name in PROGRAMS} | {"tensorexpress": load_own().document}
SOURCES = {name: Pipeline(text).source for name, text in DOCUMENTS.items()}

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
    "a" * 900,
    "scalars",
    "0",
    "-1",
]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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
    assert ast.dump(ast.parse(source)) == ast.dump(ast.parse(SOURCES[name]))
    assert source == SOURCES[name]


def test_names_leave_no_trace_in_the_code_of_our_own_program() -> None:
    source = Pipeline(with_names("tensorexpress", lambda number: HOSTILE[number % len(HOSTILE)] + str(number))).source
    assert source == SOURCES["tensorexpress"]


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_the_generated_code_has_no_comment_and_no_name_but_its_own(name: str) -> None:
    source = SOURCES[name]
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
