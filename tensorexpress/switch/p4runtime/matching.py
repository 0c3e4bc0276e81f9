"""Keys and actions: between the messages of P4Runtime and the values of the data path.

Reading validates as the specification says and raises Refused; writing gives the canonical form, in which a field
that matches anything is left out. A kind of match has its form as a message here, all else in program/match_kinds.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from tensorexpress.switch.operations import ActionCall, Key, MatchValue
from tensorexpress.switch.p4runtime.p4info import ActionUse, MatchField, P4Action, P4Field, P4Schema, P4Table
from tensorexpress.switch.p4runtime.status import Code, Refused, invalid
from tensorexpress.switch.p4runtime.values import decode_bits, encode_bits
from tensorexpress.switch.program.match_kinds import MATCH_KINDS

#: The kinds of match whose entries have a priority, in words.
_RANKED = " or ".join(", ".join(kind.name for kind in MATCH_KINDS.values() if kind.is_ranked).rsplit(", ", 1))


def read_key(owner: str, fields: tuple[MatchField, ...], matches: Iterable[Any]) -> Key:
    """Return the key that FieldMatch messages give for the fields of a table or value set named `owner`."""
    given = _by_field_id(owner, fields, matches)
    return tuple(_read_match(owner, field, given.get(field.id)) for field in fields)


def _by_field_id(owner: str, fields: tuple[MatchField, ...], matches: Iterable[Any]) -> dict[int, Any]:
    known = {field.id for field in fields}
    given: dict[int, Any] = {}
    for match in matches:
        if match.field_id not in known:
            raise invalid(f"{owner}: unknown match field {match.field_id}; accepted: {_ids(fields)}")
        if match.field_id in given:
            raise invalid(f"{owner}: match field {match.field_id} is given twice; give it once")
        given[match.field_id] = match
    return given


def _ids(fields: Iterable[P4Field]) -> str:
    return ", ".join(f"{field.id} ({field.name})" for field in fields) or "none"


def _read_match(owner: str, field: MatchField, match: Any | None) -> MatchValue:
    what = f"{owner}, {field.name}"
    kind = MATCH_KINDS[field.kind]
    if match is None:
        if not kind.may_be_left_out:
            raise invalid(f"{what}: an exact match field is missing; give its value")
        return kind.anything(field.width)
    given = match.WhichOneof("field_match_type")
    if given != field.kind:
        raise invalid(f"{what}: a match of kind {given or 'none'}; accepted: {field.kind}")
    return _FORMS[given].read(what, field.width, getattr(match, given))


def _read_exact(what: str, width: int, match: Any) -> MatchValue:
    return decode_bits(match.value, width, what)


def _write_exact(value: Any) -> dict[str, Any]:
    return {"value": encode_bits(value)}


def _read_lpm(what: str, width: int, match: Any) -> MatchValue:
    value, length = decode_bits(match.value, width, what), match.prefix_len
    if not 0 < length <= width:
        raise invalid(f"{what}: a prefix of {length} bits; accepted: 1 to {width}, and no match at all for any value")
    if value & ((1 << (width - length)) - 1):
        raise invalid(f"{what}: bits are set behind the prefix of {length} bits; they must be zero")
    return value, length


def _write_lpm(value: Any) -> dict[str, Any]:
    return {"value": encode_bits(value[0]), "prefix_len": value[1]}


def _read_ternary(what: str, width: int, match: Any) -> MatchValue:
    value, mask = decode_bits(match.value, width, what), decode_bits(match.mask, width, f"{what} mask")
    if mask == 0:
        raise invalid(f"{what}: a mask of zero matches anything; leave the field out")
    if value & ~mask:
        raise invalid(f"{what}: bits are set that the mask leaves open; they must be zero")
    return value, mask


def _write_ternary(value: Any) -> dict[str, Any]:
    return {"value": encode_bits(value[0]), "mask": encode_bits(value[1])}


def _read_range(what: str, width: int, match: Any) -> MatchValue:
    low, high = decode_bits(match.low, width, f"{what} low"), decode_bits(match.high, width, f"{what} high")
    if low > high:
        raise invalid(f"{what}: the range goes from {low} down to {high}; low is at most high")
    if low == 0 and high == (1 << width) - 1:
        raise invalid(f"{what}: the range covers every value; leave the field out")
    return low, high


def _write_range(value: Any) -> dict[str, Any]:
    return {"low": encode_bits(value[0]), "high": encode_bits(value[1])}


class _Form(NamedTuple):
    """A match as a message; the field of FieldMatch that carries it has the name of the kind."""

    #: (what it is called in a refusal, width, message) -> value
    read: Callable[[str, int, Any], MatchValue]
    #: value -> content of a message
    write: Callable[[Any], dict[str, Any]]


_FORMS = {
    "exact": _Form(_read_exact, _write_exact),
    "optional": _Form(_read_exact, _write_exact),
    "lpm": _Form(_read_lpm, _write_lpm),
    "ternary": _Form(_read_ternary, _write_ternary),
    "range": _Form(_read_range, _write_range),
}


def write_key(fields: tuple[MatchField, ...], key: Key) -> list[dict[str, Any]]:
    """Return the contents of the FieldMatch messages of a key, in the order of the fields."""
    return [
        {"field_id": field.id, field.kind: _FORMS[field.kind].write(value)}
        for field, value in zip(fields, key, strict=True)
        if not MATCH_KINDS[field.kind].may_be_left_out or value != MATCH_KINDS[field.kind].anything(field.width)
    ]


def read_priority(table: P4Table, priority: int) -> int:
    """Return the priority of an entry; a table whose entries can overlap needs one and no other may have one."""
    if table.needs_priority and priority <= 0:
        raise invalid(f"{table.name}: priority {priority}; a key with {_RANKED} needs one above zero")
    if not table.needs_priority and priority != 0:
        raise invalid(f"{table.name}: priority {priority}; only keys with {_RANKED} have one")
    return priority


def read_action(owner: str, uses: Mapping[int, ActionUse], message: Any, *, as_default: bool = False) -> ActionCall:
    """Return the call that an Action message makes, among those that the table or profile `owner` allows."""
    use = uses.get(message.action_id)
    if use is None:
        accepted = ", ".join(f"{id} ({use.action.name})" for id, use in uses.items()) or "none"
        raise invalid(f"{owner}: unknown action {message.action_id}; accepted: {accepted}")
    if not (use.as_default if as_default else use.in_entries):
        place = "the default action" if as_default else "an entry"
        raise Refused(Code.PERMISSION_DENIED, f"{owner}: action {use.action.name} may not stand in {place}")
    return ActionCall(use.action.name, _read_arguments(owner, use.action, message.params))


def _read_arguments(owner: str, action: P4Action, params: Iterable[Any]) -> tuple[int, ...]:
    given: dict[int, bytes] = {}
    known = {parameter.id for parameter in action.parameters}
    for param in params:
        if param.param_id not in known:
            raise invalid(
                f"{owner}: {action.name} has no parameter {param.param_id}; accepted: {_ids(action.parameters)}"
            )
        if param.param_id in given:
            raise invalid(f"{owner}: parameter {param.param_id} of {action.name} is given twice; give it once")
        given[param.param_id] = param.value
    for parameter in action.parameters:
        if parameter.id not in given:
            raise invalid(f"{owner}: {action.name} lacks parameter {parameter.id} ({parameter.name}); give its value")
    return tuple(
        decode_bits(given[parameter.id], parameter.width, f"{owner}, {action.name}.{parameter.name}")
        for parameter in action.parameters
    )


def write_action(schema: P4Schema, call: ActionCall) -> dict[str, Any]:
    """Return the content of the Action message of a call."""
    action = schema.action_named(call.action)
    assert action is not None
    params = [
        {"param_id": parameter.id, "value": encode_bits(value)}
        for parameter, value in zip(action.parameters, call.arguments, strict=True)
    ]
    return {"action_id": action.id, "params": params}
