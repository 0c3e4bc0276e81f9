"""Keys and actions: between the messages of P4Runtime and the values of the data path.

Reading validates as the specification says and raises Refusal; writing gives the canonical form, in which a field
that matches anything is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tensorexpress.p4runtime_messages import p4runtime_pb2
from tensorexpress.switch.operations import ActionCall, Key, MatchValue
from tensorexpress.switch.p4runtime.p4info import Action, ActionUse, Field, MatchField, Table
from tensorexpress.switch.p4runtime.status import Code, Refusal, invalid
from tensorexpress.switch.p4runtime.values import decode_bits, encode_bits


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


def _ids(fields: Iterable[Field]) -> str:
    return ", ".join(f"{field.id} ({field.name})" for field in fields) or "none"


def _read_match(owner: str, field: MatchField, match: Any | None) -> MatchValue:
    what = f"{owner}, {field.name}"
    if match is None:
        return _anything(what, field)
    kind = match.WhichOneof("field_match_type")
    if kind != field.kind:
        raise invalid(f"{what}: a match of kind {kind or 'none'}; accepted: {field.kind}")
    return _READERS[kind](what, field.width, getattr(match, kind))


def _anything(what: str, field: MatchField) -> MatchValue:
    if field.kind == "exact":
        raise invalid(f"{what}: an exact match field is missing; give its value")
    return anything(field)


def anything(field: MatchField) -> MatchValue:
    """Return the value that matches every packet, for a field that is not exact."""
    if field.kind == "optional":
        return None
    return (0, (1 << field.width) - 1) if field.kind == "range" else (0, 0)


def _read_exact(what: str, width: int, match: Any) -> MatchValue:
    return decode_bits(match.value, width, what)


def _read_lpm(what: str, width: int, match: Any) -> MatchValue:
    value, length = decode_bits(match.value, width, what), match.prefix_len
    if not 0 < length <= width:
        raise invalid(f"{what}: a prefix of {length} bits; accepted: 1 to {width}, and no match at all for any value")
    if value & ((1 << (width - length)) - 1):
        raise invalid(f"{what}: bits are set behind the prefix of {length} bits; they must be zero")
    return value, length


def _read_ternary(what: str, width: int, match: Any) -> MatchValue:
    value, mask = decode_bits(match.value, width, what), decode_bits(match.mask, width, f"{what} mask")
    if mask == 0:
        raise invalid(f"{what}: a mask of zero matches anything; leave the field out")
    if value & ~mask:
        raise invalid(f"{what}: bits are set that the mask leaves open; they must be zero")
    return value, mask


def _read_range(what: str, width: int, match: Any) -> MatchValue:
    low, high = decode_bits(match.low, width, f"{what} low"), decode_bits(match.high, width, f"{what} high")
    if low > high:
        raise invalid(f"{what}: the range goes from {low} down to {high}; low is at most high")
    if low == 0 and high == (1 << width) - 1:
        raise invalid(f"{what}: the range covers every value; leave the field out")
    return low, high


_READERS = {
    "exact": _read_exact,
    "optional": _read_exact,
    "lpm": _read_lpm,
    "ternary": _read_ternary,
    "range": _read_range,
}


def write_key(fields: tuple[MatchField, ...], key: Key) -> list[Any]:
    """Return the FieldMatch messages of a key, in the order of the fields."""
    return [
        _write_match(field, value)
        for field, value in zip(fields, key, strict=True)
        if field.kind == "exact" or value != anything(field)
    ]


def _write_match(field: MatchField, value: Any) -> Any:
    match = p4runtime_pb2.FieldMatch(field_id=field.id)
    if field.kind == "exact":
        match.exact.value = encode_bits(value)
    elif field.kind == "optional":
        match.optional.value = encode_bits(value)
    elif field.kind == "lpm":
        match.lpm.value, match.lpm.prefix_len = encode_bits(value[0]), value[1]
    elif field.kind == "ternary":
        match.ternary.value, match.ternary.mask = encode_bits(value[0]), encode_bits(value[1])
    else:
        match.range.low, match.range.high = encode_bits(value[0]), encode_bits(value[1])
    return match


def read_priority(table: Table, priority: int) -> int:
    """Return the priority of an entry; a table whose entries can overlap needs one and no other may have one."""
    if table.needs_priority and priority <= 0:
        raise invalid(f"{table.name}: priority {priority}; a key with ternary, range or optional needs one above zero")
    if not table.needs_priority and priority != 0:
        raise invalid(f"{table.name}: priority {priority}; only keys with ternary, range or optional have one")
    return priority


def read_action(owner: str, uses: Mapping[int, ActionUse], message: Any, *, as_default: bool = False) -> ActionCall:
    """Return the call that an Action message makes, among those that the table or profile `owner` allows."""
    use = uses.get(message.action_id)
    if use is None:
        accepted = ", ".join(f"{id} ({use.action.name})" for id, use in uses.items()) or "none"
        raise invalid(f"{owner}: unknown action {message.action_id}; accepted: {accepted}")
    if not (use.as_default if as_default else use.in_entries):
        place = "the default action" if as_default else "an entry"
        raise Refusal(Code.PERMISSION_DENIED, f"{owner}: action {use.action.name} may not stand in {place}")
    return ActionCall(use.action.name, _read_arguments(owner, use.action, message.params))


def _read_arguments(owner: str, action: Action, params: Iterable[Any]) -> tuple[int, ...]:
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


def write_action(action: Action, call: ActionCall) -> Any:
    """Return the Action message of a call."""
    message = p4runtime_pb2.Action(action_id=action.id)
    for parameter, value in zip(action.parameters, call.arguments, strict=True):
        message.params.add(param_id=parameter.id, value=encode_bits(value))
    return message
