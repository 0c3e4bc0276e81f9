"""Hot keys over the memory of a switch: what was found in a sample or a model, as a table, as JSON and in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import tensorexpress
from tensorexpress.hot_keys import (
    Heat,
    HeldOut,
    RowExchange,
    RowTraffic,
    Validation,
    best_packets,
    connections,
    packets_in,
    traffic,
)
from tensorexpress.lookups import LookupSample, heat_of
from tensorexpress.register_layout import Packing, co_use, in_turn, lay_out, packing
from tensorexpress.results.provenance import Provenance
from tensorexpress.sparse import SparseTable, ZipfHeat, fitted_skew
from tensorexpress.sums import MOST_SLOTS, VALUES
from tensorexpress.text import grid
from tensorexpress.units import counted, format_size

#: The table starts at this part of the memory, and doubles.
_SMALLEST_PART = 64

#: Coverage that is lower by more than this in the half that was held out is told of.
_DRIFT = 0.02

#: Bytes fewer by less than this share are called nothing.
_WORTH_IT = 0.02

#: The two lines above every column, and which column a model does not have.
_HEADINGS = (
    ("", "memory"),
    ("", "packets"),
    ("hot", "keys"),
    ("of", "lookups"),
    ("held", "out"),
    ("of", "rows"),
    ("from a", "worker"),
    ("into", "servers"),
    ("servers", "spared"),
    ("busiest", "link"),
    ("", ""),
)
_HELD_OUT = 4


@dataclass(frozen=True)
class HotRow:
    """One line of the table."""

    traffic: RowTraffic
    held_out: HeldOut | None


@dataclass(frozen=True, eq=False)
class HotStudy:
    """A sparse table, who exchanges its rows, and the memory that a switch has for them."""

    name: str
    heat: Heat
    exchange: RowExchange
    memory_bytes: int
    #: Rows that a worker looks up in an iteration, on average.
    lookups: float
    #: What it is about, in a line.
    title: str
    #: None of a model.
    sample: LookupSample | None = None

    @cached_property
    def validation(self) -> Validation | None:
        """The halves of the sample; None of a model."""
        return None if self.sample is None else Validation(self.sample, round(self.lookups))

    @cached_property
    def alone(self) -> RowTraffic:
        """The traffic of servers alone."""
        return traffic(self.heat, self.exchange, 0)

    @cached_property
    def best(self) -> RowTraffic:
        """The traffic with as many hot rows as leave least on the busiest link, within the memory."""
        return traffic(self.heat, self.exchange, best_packets(self.heat, self.exchange, packets_in(self.memory_bytes)))

    @cached_property
    def best_of_all(self) -> RowTraffic:
        """The same, within the slots that packets can name."""
        return traffic(self.heat, self.exchange, best_packets(self.heat, self.exchange, MOST_SLOTS))

    @cached_property
    def rows(self) -> list[HotRow]:
        """The lines of the table: servers alone, ever more memory, and the best of it."""
        most = packets_in(self.memory_bytes)
        parts = [most * (1 << step) // _SMALLEST_PART for step in range(_SMALLEST_PART.bit_length())]
        found = [traffic(self.heat, self.exchange, packets) for packets in (0, *parts)]
        by_packets = {one.packets: one for one in (*found, self.best)}
        return [self.at(one) for _, one in sorted(by_packets.items())]

    @cached_property
    def packings(self) -> tuple[Packing, Packing] | None:
        """Packets of a batch's best hot rows, laid out by use and by heat alone; None where no batches are known."""
        if self.sample is None or not self.sample.batches or not self.best.hot:
            return None
        arrays = max(1, VALUES // self.exchange.width)
        used = co_use(self.sample, self.best.hot)
        layout = lay_out(used, arrays, -(-used.rows // arrays))
        return packing(used, layout), packing(used, in_turn(used.rows, arrays))

    def at(self, found: RowTraffic) -> HotRow:
        """Return the line for some traffic."""
        return HotRow(found, None if self.validation is None else self.validation.held_out(found.hot))

    def spared(self, found: RowTraffic) -> float:
        """Return the share of bytes that servers are spared."""
        return 1 - found.server_bytes / self.alone.server_bytes

    @property
    def provenance(self) -> Provenance:
        """What made it, for figures."""
        text = json.dumps(as_json(self), separators=(",", ":"))
        return Provenance(tensorexpress.__version__, self.name, sha256(text.encode()).hexdigest()[:12], 1, ())


def study_of_sample(sample: LookupSample, exchange: RowExchange, memory_bytes: int, lookups: int = 0) -> HotStudy:
    """Return the study of a sample; `lookups` of a worker's iteration where it does not know batches."""
    in_batches = f" in {sample.batches:,} batch{'es' * (sample.batches > 1)}" if sample.batches else ""
    title = f"{sample.name}: {sample.lookups:,} lookups of {len(sample.keys):,} keys{in_batches}"
    per_iteration = sample.lookups / sample.batches if sample.batches else lookups
    return HotStudy(sample.name, heat_of(sample, lookups), exchange, memory_bytes, per_iteration, title, sample)


def study_of_model(table: SparseTable, exchange: RowExchange, memory_bytes: int) -> HotStudy:
    """Return the study of a table whose lookups follow Zipf's law."""
    title = f"Zipf: {table.keys:,} keys, skew {table.skew:g}"
    return HotStudy("zipf", ZipfHeat(table), exchange, memory_bytes, table.lookups, title)


def as_table(study: HotStudy) -> str:
    """Return the table for a terminal, with what it says in words below."""
    exchange = study.exchange
    who = f"{counted(exchange.workers, 'worker')}, {counted(exchange.servers, 'server')}"
    touched = (
        f"a worker looks up {study.lookups:,.0f} rows of {exchange.width} values in an iteration and touches "
        f"{study.heat.covered(study.heat.keys).rows:,.0f}"
    )
    together = f"; all together {study.heat.together(exchange.workers):,.0f}" if exchange.workers > 1 else ""
    notes = [f"- {note}" for note in notes_of(study)]
    rows = [[column[line] for column in _HEADINGS] for line in (0, 1)] + [_cells(study, row) for row in study.rows]
    if study.sample is None:
        rows = [[*row[:_HELD_OUT], *row[_HELD_OUT + 1 :]] for row in rows]
    table = [line.rstrip() for line in grid(rows)]
    return "\n".join([study.title, f"{who}; {touched}{together}", "", *table, "", *notes])


def _cells(study: HotStudy, row: HotRow) -> list[str]:
    found = row.traffic
    return [
        format_size(found.memory_bytes) if found.packets else "servers alone",
        f"{found.packets:,}",
        f"{found.hot:,}",
        f"{found.of_lookups:.1%}",
        "" if row.held_out is None else f"{row.held_out.of_lookups:.1%}",
        f"{found.of_rows:.1%}",
        format_size(round(found.worker_bytes)),
        format_size(round(found.server_bytes)),
        f"{study.spared(found):.1%}",
        format_size(round(found.busiest_bytes)),
        "best" if found == study.best else "",
    ]


def as_json(study: HotStudy) -> dict[str, Any]:
    """Return everything as a JSON object: sizes in bytes of one iteration, one way."""
    exchange, sample, packings = study.exchange, study.sample, study.packings
    return {
        "made_by": f"tensorexpress {tensorexpress.__version__}",
        "name": study.name,
        "keys": study.heat.keys,
        "lookups_of_sample": None if sample is None else sample.lookups,
        "batches_of_sample": None if sample is None else sample.batches,
        "lookups": study.lookups,
        "width": exchange.width,
        "workers": exchange.workers,
        "servers": exchange.servers,
        "mtu": exchange.mtu,
        "memory_bytes": study.memory_bytes,
        "rows_of_a_worker": study.heat.covered(study.heat.keys).rows,
        "rows_of_all_workers": study.heat.together(exchange.workers),
        "table": [_row_to_json(study, row) for row in study.rows],
        "best": _row_to_json(study, study.at(study.best)),
        "best_of_any_memory": _row_to_json(study, study.at(study.best_of_all)),
        "connections": {
            "servers": connections(exchange.workers, exchange.servers, with_switch=False)._asdict(),
            "switch": connections(exchange.workers, exchange.servers, with_switch=True)._asdict(),
        },
        "layout": None if packings is None else {"by_use": packings[0]._asdict(), "by_heat": packings[1]._asdict()},
        "notes": notes_of(study),
    }


def _row_to_json(study: HotStudy, row: HotRow) -> dict[str, Any]:
    held_out = None if row.held_out is None else row.held_out._asdict()
    return {**row.traffic._asdict(), "spared": study.spared(row.traffic), "held_out": held_out}


def hot_keys_text(study: HotStudy) -> str:
    """Return the hot keys of the best memory as a CSV, the hottest first; it is a sample of counts itself."""
    assert study.sample is not None, "a model has no keys"
    hot = zip(study.sample.keys[: study.best.hot].tolist(), study.sample.counts[: study.best.hot].tolist(), strict=True)
    return "\n".join(["key,count", *(f"{key},{count}" for key, count in hot), ""])


def notes_of(study: HotStudy) -> list[str]:
    """Return what to make of it, most important first."""
    return [*_about_best(study), *_about_memory(study), *_about_sample(study), *_about_layout(study)]


def _about_best(study: HotStudy) -> Iterator[str]:
    best, alone, exchange = study.best, study.alone, study.exchange
    if not best.hot or 1 - best.busiest_bytes / alone.busiest_bytes < _WORTH_IT:
        yield (
            "Leave all rows to the servers: switches that sum hot rows would spare the busiest link less than "
            f"{_WORTH_IT:.0%} of its bytes. A worker touches the hottest row in {study.heat.covered(1).rows:.1%} of "
            "iterations; hot rows are sent in all of them, in packets of 256 values."
        )
        return
    busiest = "a worker's" if best.worker_bytes >= best.server_bytes / exchange.servers else "a server's"
    slots, memory = counted(best.packets, "slot"), format_size(best.memory_bytes)
    yield (
        f"Have the switch sum the {best.hot:,} hottest rows, in {slots} ({memory}): servers are spared "
        f"{study.spared(best):.1%} of their bytes, and the busiest link, now {busiest}, carries "
        f"{alone.busiest_bytes / best.busiest_bytes:.2f} times fewer bytes."
    )
    before, after = (connections(exchange.workers, exchange.servers, with_switch) for with_switch in (False, True))
    yield (
        f"Hot rows take one connection at every host, {after.together} in all; servers alone take {before.of_worker} "
        f"at a worker and {before.of_server} at a server, {before.together} in all. Cold rows still take those."
    )


def _about_memory(study: HotStudy) -> Iterator[str]:
    best, other, alone = study.best, study.best_of_all, study.alone
    if other.packets > best.packets:
        gains = best.busiest_bytes / other.busiest_bytes - 1 >= _WORTH_IT
        begin = "Memory is the limit" if gains else "More memory gains little"
        yield (
            f"{begin}: with {format_size(other.memory_bytes)} for {other.hot:,} rows, the busiest link would carry "
            f"{alone.busiest_bytes / other.busiest_bytes:.2f} times fewer bytes. More than that does not pay."
        )
    elif best.hot and best.hot < study.heat.keys:
        rank = best.hot + 1
        often = study.heat.covered(rank).rows - study.heat.covered(best.hot).rows
        yield (
            f"More memory does not pay: a worker touches row {rank:,} in {often:.1%} of iterations, and as a hot row "
            "it is sent in all of them."
        )


def _about_sample(study: HotStudy) -> Iterator[str]:
    if study.sample is None or study.validation is None:
        return
    best, held = study.best, study.at(study.best).held_out
    if best.hot and held is not None:
        halves = (
            "the earlier half of batches cover {} of the later half"
            if study.sample.batches > 1
            else "a random half of lookups cover {} of the other half"
        )
        share = f"{held.of_lookups:.1%} ({held.low:.1%} to {held.high:.1%} with 95 % confidence)"
        yield f"They cover {best.of_lookups:.1%} of the lookups seen. As many keys from {halves.format(share)}."
        if best.of_lookups - held.of_lookups > _DRIFT:
            yield "That is less: the sample is short, or its keys change. Take a longer one, or a newer one more often."
    elif best.hot:
        yield "The sample is too short to hold half of it out: nothing is known of how far it can be trusted."
    keys, rows = study.heat.keys, study.heat.covered(study.heat.keys).rows
    skew = fitted_skew(keys, max(1, round(study.lookups)), rows)
    yield (
        f"As a layer of a workload: keys {keys}, width {study.exchange.width}, lookups {round(study.lookups)}, skew "
        f"{skew:g}, with which a worker touches as many rows."
    )


def _about_layout(study: HotStudy) -> Iterator[str]:
    if study.packings is None:
        return
    by_use, by_heat = study.packings
    arrays = max(1, VALUES // study.exchange.width)
    yield (
        f"A switch that sums only what was touched, in {counted(arrays, 'register array')}, takes {by_use.sorted:,.1f} "
        f"packets of hot rows a batch (ideal {by_use.ideal:,.1f}; laid out by heat alone {by_heat.sorted:,.1f}; "
        f"unsorted {by_use.in_order:,.1f}); dense rows take {study.best.packets:,}."
    )
