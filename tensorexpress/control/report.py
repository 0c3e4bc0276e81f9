"""What was deployed and what switches did, as tables for a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tensorexpress.control.client import ReceivedPacket, RemoteSwitch
from tensorexpress.control.deploy import Event, SwitchOutcome
from tensorexpress.control.entities import Entity
from tensorexpress.control.messages import ProgramSchema
from tensorexpress.control.readings import StatusReading
from tensorexpress.control.reconcile import NONE, OTHER, Changes, count
from tensorexpress.control.status import Status
from tensorexpress.control.watch import Rerouting
from tensorexpress.plan import Plan
from tensorexpress.text import grid
from tensorexpress.units import PS_PER_SECOND, format_rate, format_time
from tensorexpress.wire.frame import read_frame

_KINDS = ("inserted", "modified", "deleted", "unchanged")
_SIGNS = {"inserted": "+", "modified": "~", "deleted": "-"}

#: Entries of one table and kind that a dry run shows.
_MOST_SHOWN = 3


def changes_table(outcomes: Sequence[SwitchOutcome], schema: ProgramSchema, *, dry_run: bool) -> str:
    """Return what was changed on every switch, table by table; for a dry run what would be, with examples."""
    blocks = []
    for outcome in outcomes:
        if outcome.changes is None:
            continue
        rows = [
            [row.place, str(row.inserted), str(row.modified), str(row.deleted), str(row.unchanged)]
            for row in count(outcome.changes, schema)
        ]
        lines = [f"{outcome.target}: {_summary(outcome.changes, dry_run)}", *grid([["table", *_KINDS], *rows])]
        blocks.append("\n".join(lines + (_examples(outcome.changes, schema) if dry_run else [])))
    return "\n\n".join(blocks)


def _summary(changes: Changes, dry_run: bool) -> str:
    would = "would be " if dry_run else ""
    program = {NONE: f"program {would}loaded", OTHER: f"program {would}replaced, and all entries with it"}
    done = [f"{len(getattr(changes, kind))} {kind}" for kind in _KINDS if getattr(changes, kind)]
    words = [*([program[changes.program]] if changes.program in program else []), ", ".join(done)]
    return "; ".join(words) if not changes.is_empty else f"nothing to do, {done[0]}"


def _examples(changes: Changes, schema: ProgramSchema) -> list[str]:
    lines = []
    for kind, sign in _SIGNS.items():
        entities: dict[str, list[Entity]] = {}
        for entity in getattr(changes, kind):
            entities.setdefault(entity.place, []).append(entity)
        for where, those in entities.items():
            lines += [f"{sign} {where} {entity.show(schema)}" for entity in those[:_MOST_SHOWN]]
            if len(those) > _MOST_SHOWN:
                lines.append(f"{sign} {where} and {len(those) - _MOST_SHOWN} more; --json lists all")
    return lines


def changes_json(outcomes: Sequence[SwitchOutcome], schema: ProgramSchema, *, dry_run: bool) -> dict[str, Any]:
    """Return what was changed, entry by entry."""
    return {"dry_run": dry_run, "switches": [_outcome_json(outcome, schema) for outcome in outcomes]}


def _outcome_json(outcome: SwitchOutcome, schema: ProgramSchema) -> dict[str, Any]:
    document: dict[str, Any] = {**_switch_json(outcome.target), "error": str(outcome.error) if outcome.error else None}
    if outcome.changes is not None:
        document["program"] = outcome.changes.program
        document["tables"] = [asdict(row) for row in count(outcome.changes, schema)]
        document["changes"] = [
            {"change": kind, "table": entity.place, "entry": entity.show(schema)}
            for kind in _SIGNS
            for entity in getattr(outcome.changes, kind)
        ]
    return document


def _switch_json(switch: RemoteSwitch) -> dict[str, Any]:
    return {"name": switch.name, "address": switch.address, "device_id": switch.device_id}


def event_line(event: Event, schema: ProgramSchema) -> str:
    """Return what happened to a switch that is kept, as one line."""
    match event:
        case Event(kind="primary", changes=Changes() as changes):
            return f"{event.target}: primary; {_summary(changes, dry_run=False)}"
        case Event(kind="packet", packet=ReceivedPacket() as packet):
            return f"{event.target}: {_packet_line(packet, schema)}"
        case Event(kind="backup", standing=standing) if standing is not None:
            return f"{event.target}: backup; election id {standing.highest} is primary"
        case _:
            return f"{event.error}; trying again"


def rerouting_line(rerouting: Rerouting, plan: Plan) -> str:
    """Return what others' loads have changed, and what was made of it, as one line."""
    link, found = plan.scenario.cluster.link_names[rerouting.link], rerouting.found
    load = f"others send {format_rate(round(rerouting.others_bps))} over {link}, {rerouting.share:.0%} of it"
    planned = f"planned again in {format_time(round(found.seconds * PS_PER_SECOND))}"
    before = " and ".join(format_rate(round(rate)) for rate in found.before_bps)
    if not found.moved:
        return f"{load}; {planned}: all stays as it is, at {before}"
    after = " and ".join(format_rate(round(rate)) for rate in found.after_bps)
    inserted, modified, deleted = rerouting.written
    return (
        f"{load}; {planned}: {'; '.join(found.moved)}, at {after} in place of {before}; "
        f"{inserted} entries inserted, {modified} modified, {deleted} deleted in {rerouting.switches} switches, "
        f"in {format_time(round(rerouting.seconds * PS_PER_SECOND))}"
    )


def _packet_line(packet: ReceivedPacket, schema: ProgramSchema) -> str:
    where = f"port {packet.metadata[schema.header_fields('packet_in')['ingress_port']]}"
    header = read_frame(packet.frame).header
    if header is None:
        return f"a packet of {len(packet.frame)} bytes from {where}"
    return (
        f"a packet of job {header.job} from {where}: worker {header.worker}, iteration {header.iteration}, tensor "
        f"{header.tensor}, chunk {header.chunk} of {header.chunks}, slack {header.slack_us} us"
    )


def status_table(status: Status) -> str:
    """Return what a switch did."""
    blocks = [
        grid([["table", "entries", "size"], *([t.table, str(t.entries), str(t.size)] for t in status.tables)]),
        *(_reading_lines(reading, rows) for reading, rows in status.readings.items()),
        grid([["exception", "packets"], *([name, str(n)] for name, n in status.exceptions.items())]),
        _lost_lines(status),
    ]
    return "\n\n".join("\n".join(block) for block in blocks)


def _reading_lines(reading: StatusReading, rows: Sequence[Any] | None) -> list[str]:
    if rows is None:
        return [f"{reading.title}: not readable on this switch"]
    if not rows:
        return [f"{reading.title}: {reading.empty}"]
    headings = [heading for heading, _ in reading.columns]
    return grid([headings, *([str(getattr(row, name)) for _, name in reading.columns] for row in rows)])


def _lost_lines(status: Status) -> list[str]:
    if status.lost_frames is None:
        return ["frames lost before they were taken: not told by this switch"]
    rows = [[str(port), str(frames)] for port, frames in status.lost_frames.items() if frames]
    if not rows:
        return ["frames lost before they were taken: none"]
    return grid([["port", "frames lost before they were taken"], *rows])


def status_json(statuses: Mapping[RemoteSwitch, Status | str]) -> dict[str, Any]:
    """Return what switches did; a text in the place of a status says why there is none."""
    return {"switches": [_status_json(switch, status) for switch, status in statuses.items()]}


def _status_json(switch: RemoteSwitch, status: Status | str) -> dict[str, Any]:
    if isinstance(status, str):
        return {**_switch_json(switch), "error": status}
    return {
        **_switch_json(switch),
        "error": None,
        "tables": [asdict(use) for use in status.tables],
        **{
            reading.name: None if rows is None else [asdict(row) for row in rows]
            for reading, rows in status.readings.items()
        },
        "exceptions": status.exceptions,
        "lost_frames": status.lost_frames,
    }
