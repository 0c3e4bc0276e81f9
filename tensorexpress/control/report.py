"""What was deployed and what switches did, as tables for a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tensorexpress.control.client import PacketIn, Target
from tensorexpress.control.deploy import Event, Outcome
from tensorexpress.control.entries import Entity, place
from tensorexpress.control.messages import Schema
from tensorexpress.control.reconcile import NONE, OTHER, Changes, count
from tensorexpress.control.status import Status
from tensorexpress.text import grid
from tensorexpress.wire.frame import read_frame

_KINDS = ("inserted", "modified", "deleted", "unchanged")
_SIGNS = {"inserted": "+", "modified": "~", "deleted": "-"}

#: Entries of one table and kind that a dry run shows.
_MOST_SHOWN = 3


def changes_table(outcomes: Sequence[Outcome], schema: Schema, *, dry_run: bool) -> str:
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


def _examples(changes: Changes, schema: Schema) -> list[str]:
    lines = []
    for kind, sign in _SIGNS.items():
        entities: dict[str, list[Entity]] = {}
        for entity in getattr(changes, kind):
            entities.setdefault(place(entity), []).append(entity)
        for where, those in entities.items():
            lines += [f"{sign} {where} {schema.show(entity)}" for entity in those[:_MOST_SHOWN]]
            if len(those) > _MOST_SHOWN:
                lines.append(f"{sign} {where} and {len(those) - _MOST_SHOWN} more; --json lists all")
    return lines


def changes_json(outcomes: Sequence[Outcome], schema: Schema, *, dry_run: bool) -> dict[str, Any]:
    """Return what was changed, entry by entry."""
    return {"dry_run": dry_run, "switches": [_outcome_json(outcome, schema) for outcome in outcomes]}


def _outcome_json(outcome: Outcome, schema: Schema) -> dict[str, Any]:
    document: dict[str, Any] = {**_target_json(outcome.target), "error": str(outcome.error) if outcome.error else None}
    if outcome.changes is not None:
        document["program"] = outcome.changes.program
        document["tables"] = [asdict(row) for row in count(outcome.changes, schema)]
        document["changes"] = [
            {"change": kind, "table": place(entity), "entry": schema.show(entity)}
            for kind in _SIGNS
            for entity in getattr(outcome.changes, kind)
        ]
    return document


def _target_json(target: Target) -> dict[str, Any]:
    return {"name": target.name, "address": target.address, "device_id": target.device_id}


def event_line(event: Event, schema: Schema) -> str:
    """Return what happened to a switch that is kept, as one line."""
    match event:
        case Event(kind="primary", changes=Changes() as changes):
            return f"{event.target}: primary; {_summary(changes, dry_run=False)}"
        case Event(kind="packet", packet=PacketIn() as packet):
            return f"{event.target}: {_packet_line(packet, schema)}"
        case Event(kind="backup", standing=standing) if standing is not None:
            return f"{event.target}: backup; election id {standing.highest} is primary"
        case _:
            return f"{event.error}; trying again"


def _packet_line(packet: PacketIn, schema: Schema) -> str:
    where = f"port {packet.metadata[schema.header_fields('packet_in')['ingress_port']]}"
    header = read_frame(packet.frame).header
    if header is None:
        return f"a packet of {len(packet.frame)} bytes from {where}"
    return (
        f"a packet of job {header.job} from {where}: worker {header.worker}, iteration {header.iteration}, tensor "
        f"{header.tensor}, chunk {header.chunk} of {header.chunks}, slack {header.slack_us} us"
    )


def status_table(status: Status, jobs: Sequence[str]) -> str:
    """Return what a switch did; `jobs` are the names of the plan's jobs, if it is known."""
    blocks = [grid([["table", "entries", "size"], *([t.table, str(t.entries), str(t.size)] for t in status.tables)])]
    traffic = [
        [
            _job_name(row.job, jobs),
            *map(str, (row.queue, row.offered_packets, row.offered_bytes, row.served_packets, row.served_bytes)),
        ]
        for row in status.traffic
    ]
    blocks.append(
        grid([["job", "queue", "offered packets", "bytes", "served packets", "bytes"], *traffic])
        if traffic
        else ["no packet yet"]
    )
    blocks.append(grid([["exception", "packets"], *([name, str(n)] for name, n in status.exceptions.items())]))
    blocks += [_longest_lines(status), _lost_lines(status)]
    return "\n\n".join("\n".join(block) for block in blocks)


def _longest_lines(status: Status) -> list[str]:
    if status.longest is None:
        return ["longest queues: not readable on this switch"]
    if not status.longest:
        return ["longest queues: no packet has waited yet"]
    rows = [[str(cell) for cell in (row.port, row.queue, row.packets)] for row in status.longest]
    return grid([["port", "queue", "longest in packets"], *rows])


def _lost_lines(status: Status) -> list[str]:
    if status.lost_frames is None:
        return ["frames lost before they were taken: not told by this switch"]
    rows = [[str(port), str(frames)] for port, frames in status.lost_frames.items() if frames]
    if not rows:
        return ["frames lost before they were taken: none"]
    return grid([["port", "frames lost before they were taken"], *rows])


def status_json(statuses: Mapping[Target, Status | str], jobs: Sequence[str]) -> dict[str, Any]:
    """Return what switches did; a text in the place of a status says why there is none."""
    return {"switches": [_status_json(target, status, jobs) for target, status in statuses.items()]}


def _status_json(target: Target, status: Status | str, jobs: Sequence[str]) -> dict[str, Any]:
    if isinstance(status, str):
        return {**_target_json(target), "error": status}
    document = asdict(status)
    for row in document["traffic"]:
        row["name"] = _job_name(row["job"], jobs)
    return {**_target_json(target), "error": None, **document}


def _job_name(job: int | None, jobs: Sequence[str]) -> str:
    if job is None:
        return "other traffic"
    return jobs[job] if job < len(jobs) else f"job {job}"
