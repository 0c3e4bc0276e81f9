"""Writes the smallest BMv2 programs: some headers, one action at ingress and one at egress, as p4c never would."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

#: Names of standard metadata's fields, and their bits.
STANDARD = {
    "ingress_port": 9,
    "egress_spec": 9,
    "egress_port": 9,
    "instance_type": 32,
    "packet_length": 32,
    "enq_timestamp": 32,
    "enq_qdepth": 19,
    "deq_timedelta": 32,
    "deq_qdepth": 19,
    "ingress_global_timestamp": 48,
    "egress_global_timestamp": 48,
    "mcast_grp": 16,
    "egress_rid": 16,
    "checksum_error": 1,
    "parser_error": 32,
    "priority": 3,
    "_padding": 3,
}

_EMPTY = (
    "header_stacks header_union_types header_unions header_union_stacks enums parse_vsets meter_arrays counter_arrays "
    "register_arrays calculations learn_lists checksums force_arith extern_instances field_aliases"
)

#: Of `table_info`.
TABLE_ID, ACTION_ID = 33554433, 16777217

#: Where a packet goes by default.
OUT_PORT = 1


def field(header: str, name: str) -> dict[str, Any]:
    return {"type": "field", "value": [header, name]}


def number(value: int) -> dict[str, Any]:
    return {"type": "hexstr", "value": hex(value)}


def assign(target: Any, source: Any) -> dict[str, Any]:
    return {"op": "assign", "parameters": [target, source]}


def call(name: str, *numbers: int) -> dict[str, Any]:
    return {"op": name, "parameters": [number(each) for each in numbers]}


def add_header(name: str) -> dict[str, Any]:
    return {"op": "add_header", "parameters": [{"type": "header", "value": name}]}


def skip_unless(header: str, name: str, value: int, to: int) -> dict[str, Any]:
    """Go on at another primitive unless a field has a value."""
    test = {"op": "==", "left": field(header, name), "right": number(value)}
    return {"op": "_jump_if_zero", "parameters": [{"type": "expression", "value": test}, number(to)]}


def program(
    headers: Mapping[str, Mapping[str, int]],
    *,
    extracted: Iterable[str] = (),
    ingress: Sequence[Any] = (),
    egress: Sequence[Any] = (),
    standard: Mapping[str, int] = STANDARD,
    **more: Any,
) -> bytes:
    """Return BMv2 JSON of a program that sends everything to `OUT_PORT`, unless `ingress` has another end.

    `headers` are name -> field -> bits, deparsed in this order; `more` replaces parts of the document.
    """
    types = {"scalars": {}, "standard_metadata": standard, **headers}
    operations = [{"op": "extract", "parameters": [{"type": "regular", "value": name}]} for name in extracted]
    start = {
        "name": "start",
        "id": 0,
        "parser_ops": operations,
        "transition_key": [],
        "transitions": [{"type": "default", "value": None, "mask": None, "next_state": None}],
    }
    actions = {"in": [assign(field("standard_metadata", "egress_spec"), number(OUT_PORT)), *ingress], "out": egress}
    errors = "NoError PacketTooShort NoMatch StackOutOfBounds HeaderTooShort ParserTimeout ParserInvalidArgument"
    value: dict[str, Any] = {name: [] for name in _EMPTY.split()} | {
        "header_types": [
            {"name": f"{name}_t", "id": id, "fields": [[each, bits, False] for each, bits in fields.items()]}
            for id, (name, fields) in enumerate(types.items())
        ],
        "headers": [
            {"name": name, "id": id, "header_type": f"{name}_t", "metadata": name not in headers, "pi_omit": True}
            for id, name in enumerate(types)
        ],
        "errors": [[name, id] for id, name in enumerate(errors.split())],
        "field_lists": [{"id": 1, "name": "nothing", "elements": []}],
        "parsers": [{"name": "parser", "id": 0, "init_state": "start", "parse_states": [start]}],
        "deparsers": [{"name": "deparser", "id": 0, "order": list(headers), "primitives": []}],
        "actions": [
            {"name": name, "id": id, "runtime_data": [], "primitives": list(primitives)}
            for id, (name, primitives) in enumerate(actions.items())
        ],
        "pipelines": [
            {
                "name": control,
                "id": id,
                "init_table": action,
                "tables": [_table(action, id)],
                "action_profiles": [],
                "conditionals": [],
            }
            for id, (control, action) in enumerate({"ingress": "in", "egress": "out"}.items())
        ],
        "__meta__": {"version": [2, 23], "compiler": "by hand"},
    }
    return json.dumps(value | more).encode()


def with_table(document: bytes, header: str, name: str) -> bytes:
    """Return a program whose ingress ends with an exact table without any effect: `table_info` has its P4Info."""
    value = json.loads(document)
    tables = value["pipelines"][0]["tables"]
    value["actions"].append({"name": "nothing", "id": 2, "runtime_data": [], "primitives": []})
    key = {"match_type": "exact", "name": f"{header}.{name}", "target": [header, name], "mask": None}
    table = _table("nothing", 2) | {"name": "big", "id": 2, "key": [key]}
    table["default_entry"] = {**table["default_entry"], "action_const": False}
    tables.append(table)
    tables[0]["next_tables"] = dict.fromkeys(tables[0]["next_tables"], "big")
    return json.dumps(value).encode()


def table_info(field: str, bits: int, size: int) -> str:
    """Return P4Info of the table and the action that `with_table` adds."""
    return f"""pkg_info {{ arch: "v1model" }}
        tables {{ preamble {{ id: {TABLE_ID} name: "big" alias: "big" }} size: {size} action_refs {{ id: {ACTION_ID} }}
            match_fields {{ id: 1 name: "{field}" bitwidth: {bits} match_type: EXACT }} }}
        actions {{ preamble {{ id: {ACTION_ID} name: "nothing" alias: "nothing" }} }}"""


def _table(action: str, id: int) -> dict[str, Any]:
    return {
        "name": action,
        "id": id,
        "key": [],
        "match_type": "exact",
        "type": "simple",
        "max_size": 1024,
        "with_counters": False,
        "support_timeout": False,
        "direct_meters": None,
        "action_ids": [id],
        "actions": [action],
        "base_default_next": None,
        "next_tables": {action: None},
        "default_entry": {"action_id": id, "action_const": True, "action_data": [], "action_entry_const": True},
    }
