"""What holds for every program: any frame passes, wrong documents are refused in one line, the source can be read."""

from __future__ import annotations

import doctest
import json
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.passes import BUILD, PROGRAMS, document, load
from support.thorough import examples

from tensorexpress.errors import ProgramError
from tensorexpress.p4 import compile_source, find_p4c
from tensorexpress.p4 import load as load_own
from tensorexpress.switch.packet import DROP_PORT, EGRESS_CLONE, INGRESS_CLONE, EndlessLoop, SwitchPacket
from tensorexpress.switch.program import budgets, hashes, pipeline
from tensorexpress.switch.program.codegen import headers
from tensorexpress.switch.program.codegen.flow import FlowGraph, Node
from tensorexpress.switch.program.codegen.lines import Lines
from tensorexpress.switch.program.pipeline import Pipeline


@pytest.mark.parametrize("module", [budgets, headers, hashes, pipeline])
def test_examples_in_docstrings(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


@pytest.mark.skipif(shutil.which("p4c-bm2-ss") is None, reason="p4c-bm2-ss is not on PATH")
@pytest.mark.parametrize("source", sorted(BUILD.parent.glob("*.p4")), ids=lambda source: source.stem)
def test_the_committed_build_is_what_p4c_makes_of_the_source(source: Path) -> None:
    # Programs with action profiles: p4c warns of what BMv2 does not support there.
    made, p4info = compile_source(find_p4c(), source, accepts_warnings=True)
    assert made == json.loads((BUILD / f"{source.stem}.json").read_bytes())
    assert p4info == (BUILD / f"{source.stem}.p4info.txtpb").read_text()


@cache
def loaded_program(name: str) -> Pipeline:
    return Pipeline(load_own().document) if name == "tensorexpress" else load(name)


@settings(max_examples=examples(150))
@given(
    st.sampled_from(sorted([*PROGRAMS, "tensorexpress"])),
    st.binary(max_size=80) | st.integers(0, 2000).flatmap(lambda size: st.binary(min_size=size, max_size=size)),
    st.integers(0, 511),
)
def test_frames_of_any_bytes_and_length_never_raise(name: str, frame: bytes, port: int) -> None:
    loaded = loaded_program(name)
    packet = SwitchPacket(frame, port, 0)
    try:
        loaded.ingress(packet)
    except EndlessLoop:
        assert name == "stateful"  # the one program with a loop whose length a frame decides
        return
    clone_fields = packet.clone_fields if packet.clone_session >= 0 else None
    has_ended = packet.egress_spec == DROP_PORT and not packet.mcast_grp
    for instance_type in (0, INGRESS_CLONE):
        if clone_fields is None if instance_type else has_ended:
            continue
        copy = SwitchPacket(frame, port, 0)
        copy.instance_type = instance_type
        copy.state = () if instance_type else packet.state
        copy.preserved = loaded.preserve(packet, clone_fields) if clone_fields is not None else ()
        loaded.egress(copy)
        if copy.clone_session >= 0:
            again = SwitchPacket(frame, port, 0)
            again.instance_type, again.state = EGRESS_CLONE, copy.state
            loaded.egress(again)
        if copy.egress_spec != DROP_PORT:
            assert isinstance(loaded.deparse(copy), bytes)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_identifier_of_the_source_can_be_looked_up(name: str) -> None:
    loaded = load(name)
    assert {table.name for table in loaded.program.tables.values() if table.key} <= set(loaded.names.values())
    assert set(re.findall(r"\b[b-z]\d+\b", loaded.source)) <= set(loaded.names)


def test_a_field_that_nobody_reads_is_not_extracted_and_its_header_leaves_as_it_came() -> None:
    loaded = load("parsing")
    identifiers = {label: name for name, label in loaded.names.items()}
    assert "mark.high" in identifiers
    assert "mark.low" not in identifiers
    assert f"{identifiers['mark.bytes']} = frame[at : at + 2]" in loaded.source


def test_a_program_may_use_the_names_that_the_generated_code_uses() -> None:
    text = document("arithmetic")
    for name, taken in ((b"operands", b"packet"), (b'"a"', b'"frame"'), (b'"b"', b'"valid"'), (b'"n"', b'"min"')):
        text = text.replace(name, taken)
    frame = bytes(range(9)) + b"rest"
    packets = [SwitchPacket(frame, 0, 0), SwitchPacket(frame, 0, 0)]
    loads = (load("arithmetic"), Pipeline(text))
    for packet, loaded in zip(packets, loads, strict=True):
        loaded.ingress(packet)
        loaded.egress(packet)
    assert loads[0].deparse(packets[0]) == loads[1].deparse(packets[1])


def changed(name: str, change: Any) -> bytes:
    value = json.loads(document(name))
    change(value)
    return json.dumps(value).encode()


def set_primitive(value: Any) -> None:
    value["actions"][0]["primitives"] = [{"op": "teleport", "parameters": []}]
    value["actions"][0]["runtime_data"] = []


def set_header(value: Any) -> None:
    value["deparsers"][0]["order"].append("ghost")


def set_algorithm(value: Any) -> None:
    for calculation in value["calculations"]:
        calculation["algo"] = "rot13"


def set_operator(value: Any) -> None:
    value["pipelines"][0]["conditionals"][0]["expression"]["value"]["op"] = "<=>"


def set_varbit(value: Any) -> None:
    steps = [step for state in value["parsers"][0]["parse_states"] for step in state["parser_ops"]]
    (extraction,) = [step for step in steps if step["op"] == "extract_VL"]
    extraction["parameters"][0]["value"] = "mark"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "not JSON"),
        (b"[1, 2", "not JSON"),
        (b"[]", "not BMv2's"),
        (b'{"header_types": 3}', "is not a list"),
        (b"{}", "not BMv2's"),
        (changed("headers", lambda value: value["__meta__"].update(version=[3, 0])), "version 3"),
        (changed("headers", lambda value: value.pop("headers")), "has no 'headers'"),
        (changed("headers", lambda value: value["pipelines"].pop()), "no pipeline 'egress'"),
        (changed("matching", set_primitive), "unknown primitive 'teleport'"),
        (changed("headers", set_header), "'ghost'"),
        (changed("hashing", set_algorithm), "unknown algorithm 'rot13'"),
        (changed("headers", set_operator), "'<=>'"),
        (changed("parsing", set_varbit), "'extract_VL' into 'mark', which has no varbit"),
    ],
)
def test_what_cannot_run_is_refused_by_name_in_one_line(text: bytes, says: str) -> None:
    with pytest.raises(ProgramError) as caught:
        Pipeline(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def damage(value: Any, turns: list[int], junk: Any) -> None:
    """Replace one part of a document, found by taking these turns from its root."""
    for turn in turns:
        places = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not places:
            return
        place = places[turn % len(places)]
        if not isinstance(value[place], dict | list) or turn == turns[-1]:
            value[place] = junk
            return
        value = value[place]


@settings(max_examples=examples(60))
@given(
    st.sampled_from(PROGRAMS),
    st.lists(st.integers(0, 1000), min_size=1, max_size=9),
    st.sampled_from([None, 0, -1, "x", "0xzz", [], {}, True, 10**12, ["a"], {"type": "field", "value": ["a", "b"]}]),
)
def test_a_damaged_document_runs_or_is_refused_in_one_line(name: str, turns: list[int], junk: Any) -> None:
    refusal = ""
    try:
        Pipeline(changed(name, lambda value: damage(value, turns, junk)))
    except ProgramError as error:
        refusal = str(error)
    assert "\n" not in refusal


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, list[Node]]:
    """Acyclic graphs of up to nine nodes with up to three branches each."""
    size = draw(st.integers(1, 9))
    targets = {str(node): [*map(str, range(node + 1, size)), None] for node in range(size)}
    return {node: draw(st.lists(st.sampled_from(later), min_size=1, max_size=3)) for node, later in targets.items()}


@given(graphs(), st.lists(st.integers(0, 2), min_size=9, max_size=9))
def test_nested_statements_walk_a_graph_as_the_graph_says(graph: dict[str, list[Node]], turns: list[int]) -> None:
    flow, lines = FlowGraph("0", graph), Lines()

    def body(node: str, go: Any) -> None:
        lines.add(f"seen.append({node})")
        successors = graph[node]
        for place, successor in enumerate(successors):
            last = place == len(successors) - 1
            with lines.block(
                "if True:"
                if len(successors) == 1
                else "else:"
                if last
                else f"{'el' if place else ''}if turns[{node}] == {place}:"
            ):
                go(successor)

    flow.write_nested(lines, body)
    assert sum("seen" in line for line in lines.text) <= len(graph)
    names: dict[str, Any] = {"turns": turns, "seen": []}
    exec("\n".join(lines.text), names)
    node: Node = "0"
    walked = []
    while node is not None:
        walked.append(int(node))
        node = graph[node][min(turns[int(node)], len(graph[node]) - 1)]
    assert names["seen"] == walked
