"""Reads a BMv2 JSON document, part by part in the order in which the parts refer to each other."""

from __future__ import annotations

from collections.abc import Iterable

from tensorexpress.errors import ProgramError
from tensorexpress.switch.program.bmv2.controls import ControlReader, read_action
from tensorexpress.switch.program.bmv2.document import CONTRADICTIONS, JsonNode, contradiction, parse_document
from tensorexpress.switch.program.bmv2.expressions import ExpressionReader
from tensorexpress.switch.program.bmv2.externs import ExternReader
from tensorexpress.switch.program.bmv2.headers import HeaderReader
from tensorexpress.switch.program.bmv2.parsers import ParserReader
from tensorexpress.switch.program.bmv2.values import Bmv2Program, FieldRef, ProfileInfo
from tensorexpress.switch.program.externs import ARRAYS
from tensorexpress.switch.program.verify import verify

_JSON_MAJOR_VERSION = 2


def read_program(document: bytes) -> Bmv2Program:
    """Read a BMv2 JSON document; ProgramError says which part of it cannot be used."""
    root = parse_document(document)
    try:
        _check_version(root)
        program = _program(root)
        verify(program)
    except CONTRADICTIONS as error:
        raise contradiction(error) from None
    return program


def _check_version(root: JsonNode) -> None:
    version = root.get("__meta__", {}).get("version", [_JSON_MAJOR_VERSION, 0])
    if version[0].number() != _JSON_MAJOR_VERSION:
        raise ProgramError(
            f"the program is in version {version[0].value} of BMv2's JSON; accepted: {_JSON_MAJOR_VERSION}"
        )


def _program(root: JsonNode) -> Bmv2Program:
    headers = HeaderReader(root)
    expressions = ExpressionReader(headers)
    externs = ExternReader(headers, expressions)
    calculations = {name: externs.calculation(node) for name, node in root["calculations"].distinct()}
    actions = {number: read_action(number, node, expressions) for number, node in root["actions"].distinct("id")}
    value_sets = {name: node["compressed_bitwidth"].width() for name, node in root.get("parse_vsets", []).distinct()}
    parser, deparser, controls = _stages(root)
    states = ParserReader(headers, expressions, value_sets).states(parser)
    arrays = externs.arrays(root, ARRAYS)
    control_reader = ControlReader(headers, expressions, actions)
    return Bmv2Program(
        headers=headers.headers,
        stacks=headers.stacks,
        unions=headers.unions,
        union_stacks=headers.union_stacks,
        stack_types=headers.stack_types,
        errors={name: node[1].at_most(2**32 - 1, "as its number") for name, node in root.get("errors", []).distinct(0)},
        states=states,
        first_state=parser["init_state"].optional_text(),
        value_sets=value_sets,
        emitted=tuple(headers.header(name) for name in deparser["order"]),
        actions=actions,
        ingress=control_reader.control(controls["ingress"]),
        egress=control_reader.control(controls["egress"]),
        profiles=_profiles(controls.values(), externs),
        arrays=arrays,
        calculations=calculations,
        checksums=tuple(externs.checksum(node, calculations) for node in root["checksums"]),
        digests={number: externs.field_list(node) for number, node in root["learn_lists"].distinct("id")},
        field_lists={number: externs.field_list(node) for number, node in root["field_lists"].distinct("id")},
        aliases={
            node[0].text(): FieldRef(node[1][0].text(), node[1][1].text()) for node in root.get("field_aliases", [])
        },
    )


def _profiles(controls: Iterable[JsonNode], externs: ExternReader) -> dict[str, ProfileInfo]:
    """Return the action profiles of all controls by name."""
    profiles: dict[str, ProfileInfo] = {}
    for control in controls:
        for name, node in control.get("action_profiles", []).distinct():
            if name in profiles:
                raise node.error(f"has the name {name!r}, which one of another control has")
            profiles[name] = externs.profile(node)
    return profiles


def _stages(root: JsonNode) -> tuple[JsonNode, JsonNode, dict[str, JsonNode]]:
    """Return parser, deparser and the controls by name, as v1model has them."""
    parsers, deparsers = list(root["parsers"]), list(root["deparsers"])
    controls = dict(root["pipelines"].distinct())
    for name in ("ingress", "egress"):
        if name not in controls:
            raise ProgramError(f"the program has no pipeline {name!r}; only v1model programs can run")
    if len(parsers) != 1 or len(deparsers) != 1:
        raise ProgramError("the program has not one parser and one deparser; only v1model programs can run")
    return parsers[0], deparsers[0], controls
