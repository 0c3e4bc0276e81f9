"""Table entries, default entries, and the direct counters and meters of entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tensorexpress.p4runtime_messages import p4runtime_pb2
from tensorexpress.switch.operations import (
    ActionCall,
    DeleteEntry,
    Entry,
    Key,
    MeterRates,
    Operation,
    ReadCounter,
    ReadIdleTime,
    SetDefault,
    SetMeter,
    WriteCounter,
)
from tensorexpress.switch.p4runtime.batch import DELETE, INSERT, MODIFY, Ask, Batch, Found, check_modify, check_presence
from tensorexpress.switch.p4runtime.matching import read_action, read_key
from tensorexpress.switch.p4runtime.messages import cells, table_entries
from tensorexpress.switch.p4runtime.messages.checks import check_metadata, find_table
from tensorexpress.switch.p4runtime.messages.table_entries import ClientRow, Default, RowAction
from tensorexpress.switch.p4runtime.p4info import P4Schema, P4Table
from tensorexpress.switch.p4runtime.profiles import Profiles
from tensorexpress.switch.p4runtime.status import Code, Refused, invalid, unimplemented


@dataclass(frozen=True)
class Initial:
    """What a program starts with: the entries and default actions in its source, by table id.

    `renamed` gives the data path those entries under the canonical key by which the control plane names them.
    """

    rows: Mapping[int, tuple[ClientRow, ...]] = field(default_factory=dict)
    defaults: Mapping[int, ActionCall] = field(default_factory=dict)
    renamed: tuple[Operation, ...] = ()


class Rows:
    """The entries of all tables."""

    def __init__(self, schema: P4Schema, ask: Ask, initial: Initial, profiles: Profiles):
        self._schema = schema
        self._ask = ask
        self._initial = initial
        self._profiles = profiles
        self._rows: dict[int, dict[Entry, ClientRow]] = {
            id: {row.entry: row for row in initial.rows.get(id, ())} for id in schema.tables
        }
        self._defaults: dict[int, Default] = {}

    def holds(self, message: Any) -> bool:
        """Whether there is an entry that the TableEntry names."""
        table = self._schema.tables.get(message.table_id)
        try:
            return table is not None and table_entries.read_entry(table, message) in self._rows[table.id]
        except Refused:
            return False

    def deleted_initial(self) -> list[Any]:
        """Return, as TableEntry messages, the entries that the program started with and a client deleted."""
        return [
            p4runtime_pb2.TableEntry(**table_entries.write_entry(self._schema.tables[id], row.entry))
            for id, rows in self._initial.rows.items()
            for row in rows
            if row.entry not in self._rows[id]
        ]

    def changed_defaults(self) -> list[Any]:
        """Return, as TableEntry messages, the default entries that a client has set."""
        return [p4runtime_pb2.TableEntry(**self._default_content(self._schema.tables[id])) for id in self._defaults]

    def idle(self, entry: Entry) -> Any | None:
        """Return the TableEntry for the notification about an idle entry; None when it is gone."""
        table = self._schema.table_named(entry.table)
        row = self._rows[table.id].get(entry) if table else None
        return _idle_message(table, row) if table and row else None

    # Table entries.

    def write(self, batch: Batch, kind: int, message: Any) -> None:
        """Do an update of a table entry."""
        table = find_table(self._schema, message.table_id)
        if table.unusable:
            raise unimplemented(f"{table.name}: {table.unusable}; leave its entries out")
        if message.is_const:
            raise invalid(f"{table.name}: is_const is for reading; leave it out")
        if message.is_default_action:
            self._write_default(batch, kind, table, message)
            return
        if kind == INSERT and not table.fields:
            raise invalid(f"{table.name}: a table without a key has no entries but the default one; modify that")
        if table.const_entries and kind != MODIFY:
            raise _const_entries(table)
        entry = table_entries.read_entry(table, message)
        if kind == DELETE:
            self._delete_row(batch, table, entry)
        else:
            self._set_row(batch, kind, table, entry, message)

    def _write_default(self, batch: Batch, kind: int, table: P4Table, message: Any) -> None:
        if kind != MODIFY:
            raise invalid(f"{table.name}: the default entry is always there; it can only be modified")
        if message.match or message.priority:
            raise invalid(f"{table.name}: the default entry has no match and no priority; leave them out")
        if message.idle_timeout_ns or message.HasField("time_since_last_hit"):
            raise invalid(f"{table.name}: the default entry has no idle timeout; leave it out")
        if table.const_default or table.profile:
            raise Refused(Code.PERMISSION_DENIED, f"{table.name}: the default action is constant")
        table_entries.check_direct(table, message)
        if message.HasField("counter_data") or message.HasField("meter_config"):
            raise unimplemented(f"{table.name}: the default entry has no direct counter or meter here")
        if not message.HasField("action"):
            if table.id in self._defaults:
                batch.remove(self._defaults, table.id)
            batch.operations.append(SetDefault(table.name, None))
            return
        if message.action.WhichOneof("type") != "action":
            raise invalid(f"{table.name}: the default entry has a plain action; give one")
        call = read_action(table.name, table.actions, message.action.action, as_default=True)
        metadata = check_metadata(table.name, message)
        batch.put(self._defaults, table.id, Default(call, metadata, message.controller_metadata))
        batch.operations.append(SetDefault(table.name, call))

    def _set_row(self, batch: Batch, kind: int, table: P4Table, entry: Entry, message: Any) -> None:
        rows = self._rows[table.id]
        old = rows.get(entry)
        is_const = table.const_entries or (old is not None and old.is_const)
        if is_const and _sets_more_than_direct_resources(message):
            raise _const_entries(table)
        table_entries.check_idle(table, message)
        action = self._read_row_action(kind, table, message)
        table_entries.check_direct(table, message)
        meter = self._read_direct_rates(table, message)
        check_presence(kind, old is not None, f"{table.name}: the entry")
        if old is None and table.size and len(rows) >= table.size:
            raise Refused(Code.RESOURCE_EXHAUSTED, f"{table.name}: full with {table.size} entries; delete some")
        if action is None:
            assert old is not None
            action = old.action
        self._profiles.check_room_for(table, action, old)
        metadata = check_metadata(table.name, message)
        row = ClientRow(entry, action, meter, message.idle_timeout_ns, metadata, message.controller_metadata, is_const)
        batch.put(rows, entry, row)
        if not is_const:
            self._profiles.point(batch, table, row, old)
        if table.meter and (old.meter if old else None) != meter:
            batch.operations.append(SetMeter(self._schema.direct_meters[table.meter].name, entry, meter))
        if message.HasField("counter_data"):
            packets, octets = cells.read_counts(table.name, message.counter_data)
            name = self._schema.direct_counters[table.counter].name
            batch.operations.append(WriteCounter(name, entry, packets, octets))

    def _read_row_action(self, kind: int, table: P4Table, message: Any) -> RowAction | None:
        """Return the action that the message gives; None when it leaves the action as it is."""
        if not message.HasField("action"):
            if kind == INSERT:
                raise invalid(f"{table.name}: an entry without an action; give one")
            return None
        action = table_entries.read_table_action(self._schema, table, message.action)
        self._profiles.check_use(table, action)
        return action

    def _read_direct_rates(self, table: P4Table, message: Any) -> MeterRates | None:
        if not message.HasField("meter_config"):
            return None
        return cells.read_rates(self._schema.direct_meters[table.meter], message.meter_config)

    def _delete_row(self, batch: Batch, table: P4Table, entry: Entry) -> None:
        row = self._rows[table.id].get(entry)
        check_presence(DELETE, row is not None, f"{table.name}: the entry")
        assert row is not None
        if row.is_const:
            raise _const_entries(table)
        batch.remove(self._rows[table.id], entry)
        batch.operations.append(DeleteEntry(entry))
        self._profiles.release(batch, table, row)

    def read(self, request: Any) -> Found:
        """Return the table entries that a request selects."""
        if request.HasField("meter_counter_data"):
            raise unimplemented("meters count no colours here; leave meter_counter_data out")
        tables = [table for table in self._requested_tables(request) if not table.unusable]
        if request.is_default_action:
            return Found(len(tables), [{"table_entry": self._default_content(table)} for table in tables])
        is_about_idleness = bool(request.table_id) and request.HasField("time_since_last_hit")
        if is_about_idleness and tables and not tables[0].idle_timeout:
            raise invalid(f"{tables[0].name}: time_since_last_hit of a table without idle timeouts; leave it out")
        found = [(table, row) for table in tables for row in self._selected(table, request)]
        counts = self._ask_counts(found) if request.HasField("counter_data") else {}
        ages = self._ask_ages(found) if request.HasField("time_since_last_hit") else {}
        with_meter = request.HasField("meter_config")
        return Found(
            len(found),
            ({"table_entry": _row_content(self._schema, table, row, counts, ages, with_meter)} for table, row in found),
        )

    def _requested_tables(self, request: Any) -> list[P4Table]:
        if request.table_id:
            return [find_table(self._schema, request.table_id)]
        if request.match or request.HasField("action") or request.priority:
            raise invalid("a read of all tables (table_id 0) takes no match, action or priority")
        return list(self._schema.tables.values())

    def _selected(self, table: P4Table, request: Any) -> list[ClientRow]:
        """Return the entries that pass all filters of a TableEntry; a filter at its default lets all pass."""
        rows = self._named(table, request)
        if request.HasField("action"):
            wanted = _filtered_action(table, request.action)
            rows = [row for row in rows if isinstance(row.action, ActionCall) and row.action.action == wanted]
        return [
            row
            for row in rows
            if request.controller_metadata in (0, row.controller_metadata) and request.metadata in (b"", row.metadata)
        ]

    def _named(self, table: P4Table, request: Any) -> list[ClientRow]:
        """Return the entries that have the key and the priority of a TableEntry, as far as it has any."""
        rows: Iterable[ClientRow] = self._rows[table.id].values()
        if request.match:
            rows = self._with_key(table, read_key(table.name, table.fields, request.match), request.priority)
        return [row for row in rows if request.priority in (0, row.entry.priority)]

    def _with_key(self, table: P4Table, key: Key, priority: int) -> list[ClientRow]:
        rows = self._rows[table.id]
        if table.needs_priority and not priority:
            return [row for row in rows.values() if row.entry.key == key]
        row = rows.get(Entry(table.name, key, priority))
        return [row] if row else []

    def _default_content(self, table: P4Table) -> dict[str, Any]:
        content = {"table_id": table.id, "is_default_action": True, "is_const": table.const_default}
        initial = self._initial.defaults.get(table.id)
        default = self._defaults.get(table.id) or (Default(initial) if initial else None)
        if default is None:
            return content
        return {
            **content,
            "action": table_entries.write_table_action(self._schema, default.action),
            "metadata": default.metadata,
            "controller_metadata": default.controller_metadata,
        }

    def _ask_counts(self, found: list[tuple[P4Table, ClientRow]]) -> dict[Entry, tuple[int, int]]:
        counted = [(table, row) for table, row in found if table.counter]
        queries = [ReadCounter(self._schema.direct_counters[table.counter].name, row.entry) for table, row in counted]
        answers = self._ask(queries)
        return {row.entry: answer[0] for (_, row), answer in zip(counted, answers, strict=True)}

    def _ask_ages(self, found: list[tuple[P4Table, ClientRow]]) -> dict[Entry, int]:
        aging = [row for table, row in found if table.idle_timeout]
        answers = self._ask([ReadIdleTime(row.entry) for row in aging])
        return {row.entry: answer[0] for row, answer in zip(aging, answers, strict=True)}

    # Direct counters and meters.

    def write_counter(self, batch: Batch, kind: int, message: Any) -> None:
        """Do an update of an entry's direct counter."""
        check_modify(kind, "direct counter")
        table, entry = self._direct_target(message, "counter", lambda table: table.counter)
        if message.HasField("data"):
            packets, octets = cells.read_counts(table.name, message.data)
            name = self._schema.direct_counters[table.counter].name
            batch.operations.append(WriteCounter(name, entry, packets, octets))

    def _direct_target(self, message: Any, what: str, resource: Callable[[P4Table], int]) -> tuple[P4Table, Entry]:
        """Return the table and the entry whose direct resource is to be written."""
        if not message.HasField("table_entry"):
            raise invalid(f"a direct {what} without its table_entry; give the entry that it belongs to")
        table = find_table(self._schema, message.table_entry.table_id)
        _check_direct_resource(table, what, resource(table))
        if message.table_entry.is_default_action:
            raise unimplemented(f"{table.name}: the default entry has no direct {what} here")
        entry = table_entries.read_entry(table, message.table_entry)
        if entry not in self._rows[table.id]:
            raise Refused(Code.NOT_FOUND, f"{table.name}: the entry is not there")
        return table, entry

    def _direct_rows(
        self, request: Any, what: str, resource: Callable[[P4Table], int]
    ) -> list[tuple[P4Table, ClientRow]]:
        """Return the entries whose direct resources are asked for."""
        if not request.HasField("table_entry"):
            raise invalid(f"a direct {what} without its table_entry; give one, empty for all entries")
        asked = request.table_entry
        if asked.is_default_action:
            raise unimplemented(f"the default entry has no direct {what} here")
        if not asked.table_id:
            tables = [table for table in self._requested_tables(asked) if resource(table)]
            return [(table, row) for table in tables for row in self._rows[table.id].values()]
        table = find_table(self._schema, asked.table_id)
        _check_direct_resource(table, what, resource(table))
        rows = self._named(table, asked)
        if asked.match and not rows:
            raise Refused(Code.NOT_FOUND, f"{table.name}: the entry is not there")
        return [(table, row) for row in rows]

    def read_counters(self, request: Any) -> Found:
        """Return the direct counters that a request selects."""
        found = self._direct_rows(request, "counter", lambda table: table.counter)
        counts = self._ask_counts(found)
        contents = ({"direct_counter_entry": _direct_counter_content(table, row, counts)} for table, row in found)
        return Found(len(found), contents)

    def write_meter(self, batch: Batch, kind: int, message: Any) -> None:
        """Do an update of an entry's direct meter."""
        check_modify(kind, "direct meter")
        table, entry = self._direct_target(message, "meter", lambda table: table.meter)
        meter = self._schema.direct_meters[table.meter]
        cells.check_no_colours(meter, message)
        rates = cells.read_rates(meter, message.config) if message.HasField("config") else None
        rows = self._rows[table.id]
        batch.put(rows, entry, replace(rows[entry], meter=rates))
        batch.operations.append(SetMeter(meter.name, entry, rates))

    def read_meters(self, request: Any) -> Found:
        """Return the direct meters that a request selects."""
        if request.HasField("counter_data"):
            raise unimplemented("meters count no colours here; leave counter_data out")
        found = self._direct_rows(request, "meter", lambda table: table.meter)
        return Found(len(found), ({"direct_meter_entry": _direct_meter_content(table, row)} for table, row in found))


def _idle_message(table: P4Table, row: ClientRow) -> Any:
    return p4runtime_pb2.TableEntry(
        **table_entries.write_entry(table, row.entry),
        metadata=row.metadata,
        controller_metadata=row.controller_metadata,
        idle_timeout_ns=row.idle_timeout_ns,
    )


def _check_direct_resource(table: P4Table, what: str, resource: int) -> None:
    if not resource:
        raise invalid(f"{table.name}: has no direct {what}")


def _sets_more_than_direct_resources(message: Any) -> bool:
    return bool(
        message.HasField("action") or message.idle_timeout_ns or message.metadata or message.controller_metadata
    )


def _const_entries(table: P4Table) -> Refused:
    return Refused(Code.PERMISSION_DENIED, f"{table.name}: its entries are constant; only counters and meters change")


def _filtered_action(table: P4Table, message: Any) -> str:
    if message.WhichOneof("type") != "action":
        raise invalid(f"{table.name}: reads are filtered by a plain action only; give an action_id")
    if message.action.action_id not in table.actions:
        raise invalid(f"{table.name}: unknown action {message.action.action_id}")
    return table.actions[message.action.action_id].action.name


def _row_content(
    schema: P4Schema,
    table: P4Table,
    row: ClientRow,
    counts: Mapping[Entry, tuple[int, int]],
    ages: Mapping[Entry, int],
    with_meter: bool,
) -> dict[str, Any]:
    content = table_entries.write_row(schema, table, row)
    # Most reads ask for none of these.
    if counts and row.entry in counts:
        content["counter_data"] = cells.write_counts(counts[row.entry])
    if ages and row.entry in ages:
        content["time_since_last_hit"] = {"elapsed_ns": ages[row.entry]}
    if with_meter and row.meter:
        content["meter_config"] = cells.write_rates(row.meter)
    return content


def _direct_counter_content(table: P4Table, row: ClientRow, counts: Mapping[Entry, tuple[int, int]]) -> dict[str, Any]:
    return {"table_entry": table_entries.write_entry(table, row.entry), "data": cells.write_counts(counts[row.entry])}


def _direct_meter_content(table: P4Table, row: ClientRow) -> dict[str, Any]:
    content = {"table_entry": table_entries.write_entry(table, row.entry)}
    return {**content, "config": cells.write_rates(row.meter)} if row.meter else content
