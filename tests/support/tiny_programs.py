"""Writes BMv2 JSON of tiny programs: every packet goes to port 1, and does what a test asks for on its way."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

#: Where a packet goes unless the program's own steps have another end.
OUT_PORT = 1

#: Ids of the table that `with_table` adds, and of its action.
TABLE_ID, ACTION_ID = 33554433, 16777217

STANDARD: list[list[Any]] = [
    ["ingress_port", 9, False],
    ["egress_spec", 9, False],
    ["egress_port", 9, False],
    ["instance_type", 32, False],
    ["packet_length", 32, False],
    ["enq_timestamp", 32, False],
    ["enq_qdepth", 19, False],
    ["deq_timedelta", 32, False],
    ["deq_qdepth", 19, False],
    ["ingress_global_timestamp", 48, False],
    ["egress_global_timestamp", 48, False],
    ["mcast_grp", 16, False],
    ["egress_rid", 16, False],
    ["checksum_error", 1, False],
    ["parser_error", 32, False],
    ["priority", 3, False],
    ["_padding", 3, False],
]

#: A header type: its fields as [name, bits], bits "*" for a varbit; then its greatest length in bytes, if it has one.
HeaderType = tuple[Sequence[Sequence[Any]], int | None]


def field(header: str, name: str) -> Any:
    return {"type": "field", "value": [header, name]}


def number(value: int) -> Any:
    return {"type": "hexstr", "value": hex(value)}


def named(kind: str, name: str) -> Any:
    return {"type": kind, "value": name}


def operation(op: str, left: Any, right: Any = None, cond: Any = None) -> Any:
    value = {"op": op, "left": left, "right": right} | ({} if cond is None else {"cond": cond})
    return {"type": "expression", "value": {"type": "expression", "value": value}}


def step(op: str, *parameters: Any) -> Any:
    return {"op": op, "parameters": list(parameters)}


def extract(name: str, kind: str = "regular", bits: Any = None) -> Any:
    return step("extract", named(kind, name)) if bits is None else step("extract_VL", named(kind, name), bits)


def state(name: str, steps: Iterable[Any], following: str | None = None, **more: Any) -> Any:
    default = {"type": "default", "value": None, "mask": None, "next_state": following}
    return {"name": name, "id": 0, "parser_ops": list(steps), "transition_key": [], "transitions": [default]} | more


def assign(target: Any, source: Any) -> Any:
    return step("assign", target, source)


def table(name: str, number: int, action: str, **more: Any) -> Any:
    """Return a table without a key that runs one action."""
    entry = {"action_id": number, "action_const": True, "action_data": [], "action_entry_const": True}
    return {
        "name": name,
        "id": number,
        "key": [],
        "match_type": "exact",
        "type": "simple",
        "max_size": 1024,
        "with_counters": False,
        "support_timeout": False,
        "direct_meters": None,
        "action_ids": [number],
        "actions": [action],
        "base_default_next": None,
        "next_tables": {action: None},
        "default_entry": entry,
    } | more


def control(name: str, number: int, tables: Sequence[Any]) -> Any:
    start = tables[0]["name"] if tables else None
    return {
        "name": name,
        "id": number,
        "init_table": start,
        "tables": tables,
        "action_profiles": [],
        "conditionals": [],
    }


def program(
    types: Mapping[str, HeaderType],
    headers: Mapping[str, str],
    states: Sequence[Any],
    ingress: Iterable[Any] = (),
    egress: Iterable[Any] = (),
    emitted: Sequence[str] = (),
    stacks: Mapping[str, tuple[str, Sequence[str]]] | None = None,
    scalars: Sequence[Any] = (),
    **more: Any,
) -> Any:
    """Return a program as a JSON value; `more` are members of the document itself."""
    kinds: list[Any] = [
        {"name": "scalars_0", "id": 0, "fields": [list(item) for item in scalars]},
        {"name": "standard_metadata", "id": 1, "fields": STANDARD},
    ]
    for name, (fields, longest) in types.items():
        kind = {"name": name, "id": len(kinds), "fields": [list(item) for item in fields]}
        kinds.append(kind if longest is None else kind | {"max_length": longest})
    all_headers = [("scalars", "scalars_0"), ("standard_metadata", "standard_metadata"), *headers.items()]
    ids = {name: number for number, (name, _) in enumerate(all_headers)}
    forward = assign(field("standard_metadata", "egress_spec"), number(OUT_PORT))
    egress_steps = list(egress)
    lists = (
        *("header_union_types", "header_unions", "header_union_stacks", "field_lists", "enums", "parse_vsets"),
        *("meter_arrays", "counter_arrays", "register_arrays", "calculations", "learn_lists", "checksums"),
        *("force_arith", "extern_instances", "field_aliases"),
    )
    errors = ("NoError", "PacketTooShort", "NoMatch", "StackOutOfBounds", "HeaderTooShort", "ParserTimeout")
    return {
        **{name: [] for name in lists},
        "header_types": kinds,
        "headers": [
            {"name": name, "id": ids[name], "header_type": kind, "metadata": ids[name] < 2, "pi_omit": True}
            for name, kind in all_headers
        ],
        "header_stacks": [
            {
                "name": name,
                "id": at,
                "header_type": kind,
                "size": len(items),
                "header_ids": [ids[item] for item in items],
            }
            for at, (name, (kind, items)) in enumerate((stacks or {}).items())
        ],
        "errors": [[name, at] for at, name in enumerate((*errors, "ParserInvalidArgument"))],
        "parsers": [{"name": "parser", "id": 0, "init_state": states[0]["name"], "parse_states": list(states)}],
        "deparsers": [{"name": "deparser", "id": 0, "order": list(emitted), "primitives": []}],
        "actions": [
            {"name": "in", "id": 0, "runtime_data": [], "primitives": [forward, *ingress]},
            {"name": "out", "id": 1, "runtime_data": [], "primitives": egress_steps},
        ],
        "pipelines": [
            control("ingress", 0, [table("ti", 0, "in")]),
            control("egress", 1, [table("te", 1, "out")] if egress_steps else []),
        ],
        "__meta__": {"version": [2, 23], "compiler": "by hand"},
    } | more


def text(value: Any) -> bytes:
    return json.dumps(value).encode()


def forwarding(
    headers: Mapping[str, Mapping[str, int]],
    *,
    extracted: Iterable[str] = (),
    ingress: Sequence[Any] = (),
    egress: Sequence[Any] = (),
    **more: Any,
) -> bytes:
    """Return a program as JSON text: headers as name -> field -> bits, which are sent in this order."""
    value = program(
        {
            f"{name}_t": ([[each, bits, False] for each, bits in fields.items()], None)
            for name, fields in headers.items()
        },
        {name: f"{name}_t" for name in headers},
        [state("start", [extract(name) for name in extracted])],
        ingress,
        egress,
        emitted=list(headers),
        field_lists=[{"id": 1, "name": "nothing", "elements": []}],
        **more,
    )
    return text(value)


def call(name: str, *numbers: int) -> dict[str, Any]:
    return {"op": name, "parameters": [number(each) for each in numbers]}


def add_header(name: str) -> dict[str, Any]:
    return {"op": "add_header", "parameters": [{"type": "header", "value": name}]}


def skip_unless(header: str, name: str, value: int, to: int) -> dict[str, Any]:
    """Go on at another primitive unless a field has a value."""
    test = {"op": "==", "left": field(header, name), "right": number(value)}
    return {"op": "_jump_if_zero", "parameters": [{"type": "expression", "value": test}, number(to)]}


def with_table(document: bytes, header: str, name: str) -> bytes:
    """Return a program whose ingress ends with an exact table without any effect: `table_info` has its P4Info."""
    value = json.loads(document)
    tables = value["pipelines"][0]["tables"]
    value["actions"].append({"name": "nothing", "id": 2, "runtime_data": [], "primitives": []})
    key = {"match_type": "exact", "name": f"{header}.{name}", "target": [header, name], "mask": None}
    added = table("big", 2, "nothing", key=[key])
    added["default_entry"]["action_const"] = False
    tables.append(added)
    tables[0]["next_tables"] = dict.fromkeys(tables[0]["next_tables"], "big")
    return text(value)


def table_info(field: str, bits: int, size: int) -> str:
    """Return P4Info of the table and the action that `with_table` adds."""
    return f"""pkg_info {{ arch: "v1model" }}
        tables {{ preamble {{ id: {TABLE_ID} name: "big" alias: "big" }} size: {size} action_refs {{ id: {ACTION_ID} }}
            match_fields {{ id: 1 name: "{field}" bitwidth: {bits} match_type: EXACT }} }}
        actions {{ preamble {{ id: {ACTION_ID} name: "nothing" alias: "nothing" }} }}"""
