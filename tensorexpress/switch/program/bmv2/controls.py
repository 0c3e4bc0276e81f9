"""Reads actions and the controls that run them: tables, conditions, the entries that the program starts with."""

from __future__ import annotations

from collections.abc import Mapping

from tensorexpress.switch.operations import ActionCall, Entry, MatchValue
from tensorexpress.switch.program.bmv2.document import JsonNode
from tensorexpress.switch.program.bmv2.expressions import ExpressionReader
from tensorexpress.switch.program.bmv2.headers import HeaderReader
from tensorexpress.switch.program.bmv2.values import (
    VALIDITY,
    ActionInfo,
    Condition,
    Control,
    FieldRef,
    KeyField,
    TableInfo,
)
from tensorexpress.switch.program.match_kinds import BMV2_KINDS, EXACT

#: P4Runtime priorities grow with urgency and those of BMv2 fall; the one is this minus the other.
HIGHEST_PRIORITY = 2**31 - 1

#: The match of whether a header is valid: an exact one of a single bit.
_VALID = "valid"


def read_action(node: JsonNode, expressions: ExpressionReader) -> ActionInfo:
    """Return an action."""
    return ActionInfo(
        id=node["id"].number(),
        name=node["name"].text(),
        parameters=tuple((item["name"].text(), item["bitwidth"].width()) for item in node["runtime_data"]),
        primitives=tuple(expressions.primitive(item) for item in node["primitives"]),
    )


class ControlReader:
    """Reads controls whose tables run these actions."""

    def __init__(self, headers: HeaderReader, expressions: ExpressionReader, actions: Mapping[int, ActionInfo]):
        self._headers = headers
        self._expressions = expressions
        self._actions = actions

    def control(self, node: JsonNode) -> Control:
        """Return the ingress or egress control."""
        nodes: dict[str, TableInfo | Condition] = {}
        for item in node["tables"]:
            nodes[item["name"].text()] = self._table(item)
        for item in node["conditionals"]:
            name = item["name"].text()
            nodes[name] = Condition(
                name,
                self._expressions.expression(item["expression"]),
                item.get("true_next").optional_text(),
                item.get("false_next").optional_text(),
            )
        if node.get("action_calls", []).value:
            raise node.error("has 'action_calls', which the embedded switch does not support")
        return Control(node["name"].text(), node["init_table"].optional_text(), nodes)

    def _table(self, node: JsonNode) -> TableInfo:
        name = node["name"].text()
        ids = [item.number() for item in node["action_ids"]]
        for number in ids:
            if number not in self._actions:
                raise node.error(f"has an action of id {number}, which the program does not have")
        actions = {self._actions[number].name: number for number in ids}
        following = {
            key: JsonNode(value, node.path).optional_text() for key, value in node["next_tables"].value.items()
        }
        fallback = node.get("base_default_next").optional_text()
        key = tuple(self._key_field(item) for item in node["key"])
        default = node.get("default_entry")
        profile = node["type"].text() != "simple"
        return TableInfo(
            name=name,
            kind=node["match_type"].text(),
            key=key,
            actions=actions,
            profile=node["action_profile"].text() if profile else None,
            size=node["max_size"].number(),
            counts=bool(node["with_counters"].value),
            ages=bool(node["support_timeout"].value),
            direct_meter=node["direct_meters"].optional_text(),
            default=self._action_call(default) if default.value is not None else None,
            default_is_const=bool(default.get("action_entry_const", False).value),
            next_by_action={name: following.get(name, fallback) for name in actions},
            next_hit=following.get("__HIT__", fallback),
            next_miss=following.get("__MISS__", fallback),
            next_default=fallback,
            by_hit="__HIT__" in following or "__MISS__" in following,
            entries=tuple(self._entry(item, name, key) for item in node.get("entries", [])),
        )

    def _key_field(self, node: JsonNode) -> KeyField:
        kind, target = node["match_type"].text(), node["target"]
        if kind not in (*BMV2_KINDS, _VALID):
            raise node.error(f"has the match kind {kind!r}; accepted: {', '.join([*BMV2_KINDS, _VALID])}")
        if kind == _VALID or target[1].value == VALIDITY:
            header = target.text() if kind == _VALID else target[0].text()
            kind = EXACT.name if kind == _VALID else kind
            return KeyField(node.get("name", header).text(), FieldRef(header, VALIDITY), kind, 1, None)
        reference = self._headers.field_ref(target)
        mask = node.get("mask")
        return KeyField(
            node.get("name", ".".join(target.value)).text(),
            reference,
            kind,
            self._headers.field(reference).bits,
            None if mask.value is None else mask.hexadecimal(),
        )

    def _action_call(self, node: JsonNode) -> ActionCall:
        number = node["action_id"].number()
        if number not in self._actions:
            raise node.error(f"refers to action {number}, which the program does not have")
        arguments = tuple(item.hexadecimal() for item in node["action_data"])
        if len(arguments) != len(self._actions[number].parameters):
            raise node.error(f"has {len(arguments)} arguments for action {self._actions[number].name!r}")
        return ActionCall(self._actions[number].name, arguments)

    def _entry(self, node: JsonNode, table: str, key: tuple[KeyField, ...]) -> tuple[Entry, ActionCall]:
        values = tuple(_match_value(item) for item in node["match_key"])
        if len(values) != len(key):
            raise node.error(f"has {len(values)} key fields, its table {len(key)}")
        needs_priority = any(BMV2_KINDS[part.kind].is_ranked for part in key)
        priority = HIGHEST_PRIORITY - node["priority"].number() if needs_priority else 0
        return Entry(table, values, priority), self._action_call(node["action_entry"])


def _match_value(node: JsonNode) -> MatchValue:
    kind = node["match_type"].text()
    return int(bool(node["key"].value)) if kind == _VALID else BMV2_KINDS.get(kind, EXACT).from_json(node)
