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


#: What a table may be: one with actions of its own, or with an action profile, without a selector or with one.
_TABLE_TYPES = ("simple", "indirect", "indirect_ws")

#: What follows an action may depend on whether the key was found, and not on the action.
_BY_HIT = {"__HIT__", "__MISS__"}


def read_action(number: int, node: JsonNode, expressions: ExpressionReader) -> ActionInfo:
    """Return an action with this id."""
    return ActionInfo(
        id=number,
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
        for name, item in node["tables"].distinct():
            nodes[name] = self._table(name, item)
        for name, item in node["conditionals"].distinct():
            if name in nodes:
                raise item.error(f"has the name {name!r}, which a table has")
            nodes[name] = Condition(
                name,
                self._expressions.expression(item["expression"]),
                item.get("true_next").optional_text(),
                item.get("false_next").optional_text(),
            )
        if node.get("action_calls", []).value:
            raise node.error("has 'action_calls', which the embedded switch does not support")
        return Control(node["name"].text(), node["init_table"].optional_text(), nodes)

    def _table(self, name: str, node: JsonNode) -> TableInfo:
        actions: dict[str, int] = {}
        for item in node["action_ids"]:
            action = self._actions.get(item.number())
            if action is None:
                raise item.error(f"is {item.value}, an action that the program does not have")
            if action.name in actions:
                raise item.error(f"is a second action {action.name!r} of the table {name!r}")
            actions[action.name] = action.id
        following = {after: value.optional_text() for after, value in node["next_tables"].members()}
        for after in following:
            if after not in actions and after not in _BY_HIT:
                raise node.error(f"goes on after {after!r}, which is not one of its actions")
        fallback = node.get("base_default_next").optional_text()
        key = tuple(self._key_field(item) for item in node["key"])
        default = node.get("default_entry")
        kind = node["type"].text()
        if kind not in _TABLE_TYPES:
            raise node.error(f"is of type {kind!r}; accepted: {', '.join(_TABLE_TYPES)}")
        return TableInfo(
            name=name,
            kind=node["match_type"].text(),
            key=key,
            actions=actions,
            profile=node["action_profile"].text() if kind != "simple" else None,
            size=node["max_size"].number(),
            counts=node["with_counters"].flag(),
            ages=node["support_timeout"].flag(),
            direct_meter=node["direct_meters"].optional_text(),
            default=self._action_call(default, actions) if default.value is not None else None,
            default_is_const=default.value is not None and default.get("action_entry_const", False).flag(),
            next_by_action={name: following.get(name, fallback) for name in actions},
            next_hit=following.get("__HIT__", fallback),
            next_miss=following.get("__MISS__", fallback),
            next_default=fallback,
            by_hit=not _BY_HIT.isdisjoint(following),
            entries=tuple(self._entry(item, name, key, actions) for item in node.get("entries", [])),
        )

    def _key_field(self, node: JsonNode) -> KeyField:
        kind, target = node["match_type"].text(), node["target"]
        if kind not in (*BMV2_KINDS, _VALID):
            raise node.error(f"has the match kind {kind!r}; accepted: {', '.join([*BMV2_KINDS, _VALID])}")
        if kind == _VALID or target[1].value == VALIDITY:
            header = self._headers.header(target if kind == _VALID else target[0])
            kind = EXACT.name if kind == _VALID else kind
            return KeyField(node.get("name", header).text(), FieldRef(header, VALIDITY), kind, 1, None)
        reference = self._headers.field_ref(target)
        mask = node.get("mask")
        return KeyField(
            node.get("name", f"{reference.header}.{reference.field}").text(),
            reference,
            kind,
            self._headers.field(reference).bits,
            None if mask.value is None else mask.hexadecimal(),
        )

    def _action_call(self, node: JsonNode, actions: Mapping[str, int]) -> ActionCall:
        """Return a call of one of a table's actions."""
        number = node["action_id"].number()
        action = self._actions.get(number)
        if action is None or actions.get(action.name) != number:
            raise node.error(f"refers to action {number}, which its table does not have")
        items = list(node["action_data"])
        if len(items) != len(action.parameters):
            raise node.error(f"has {len(items)} arguments for action {action.name!r}")
        widths = (bits for _, bits in action.parameters)
        return ActionCall(action.name, tuple(item.of_width(bits) for item, bits in zip(items, widths, strict=True)))

    def _entry(
        self, node: JsonNode, table: str, key: tuple[KeyField, ...], actions: Mapping[str, int]
    ) -> tuple[Entry, ActionCall]:
        items = list(node["match_key"])
        if len(items) != len(key):
            raise node.error(f"has {len(items)} key fields, its table {len(key)}")
        values = tuple(_match_value(item, part) for item, part in zip(items, key, strict=True))
        needs_priority = any(BMV2_KINDS[part.kind].is_ranked for part in key)
        priority = HIGHEST_PRIORITY - node["priority"].number() if needs_priority else 0
        return Entry(table, values, priority), self._action_call(node["action_entry"], actions)


def _match_value(node: JsonNode, part: KeyField) -> MatchValue:
    """Return the value that an entry has for a part of its table's key."""
    kind = node["match_type"].text()
    if kind == _VALID and part.target.field == VALIDITY:
        return int(node["key"].flag())
    if kind != part.kind:
        raise node.error(f"has the match kind {kind!r}; accepted: {part.kind}, which the key of its table has")
    return BMV2_KINDS[kind].from_json(node, part.bits)
