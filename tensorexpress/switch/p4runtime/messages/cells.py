"""Cells of counters, meters and registers."""

from __future__ import annotations

from typing import Any

from tensorexpress.switch.operations import MeterRates
from tensorexpress.switch.p4runtime.p4info import P4Array, P4Meter, P4Register
from tensorexpress.switch.p4runtime.status import Code, Refused, invalid, unimplemented
from tensorexpress.switch.p4runtime.values import encode_data

#: Types of meters, as MeterSpec.Type numbers them.
_TWO_RATE, _SINGLE_RATE, _TWO_COLOUR = range(3)


def read_index(array: Any, message: Any) -> int | None:
    """Return the index of a cell, None when all of the array is meant."""
    if not message.HasField("index"):
        return None
    index = message.index.index
    if index < 0:
        raise invalid(f"{array.name}: index {index}; accepted: 0 to {array.size - 1}")
    if index >= array.size:
        raise Refused(Code.OUT_OF_RANGE, f"{array.name}: index {index}; accepted: 0 to {array.size - 1}")
    return index  # type: ignore[no-any-return]


def read_counts(owner: str, message: Any) -> tuple[int, int]:
    """Return (packets, bytes) of a CounterData."""
    if message.packet_count < 0 or message.byte_count < 0:
        raise invalid(
            f"{owner}: a count of {message.packet_count} packets and {message.byte_count} bytes; give 0 or more"
        )
    return message.packet_count, message.byte_count


def read_rates(meter: P4Meter, message: Any) -> MeterRates:
    """Return the rates of a MeterConfig, which must suit the type of the meter."""
    rates = MeterRates(message.cir, message.cburst, message.pir, message.pburst)
    if min(rates.cir, rates.cburst, rates.pir, rates.pburst, message.eburst) < 0:
        raise invalid(f"{meter.name}: a meter config below zero; rates and bursts are 0 or more")
    if meter.kind in (_SINGLE_RATE, _TWO_COLOUR) and (rates.cir, rates.cburst) != (rates.pir, rates.pburst):
        raise invalid(f"{meter.name}: a single-rate meter has pir equal to cir and pburst equal to cburst")
    if message.eburst and meter.kind in (_TWO_RATE, _TWO_COLOUR):
        raise invalid(f"{meter.name}: eburst is {message.eburst}; only single-rate three-colour meters have one")
    if message.eburst:
        raise unimplemented(f"{meter.name}: an excess burst is not supported; give an eburst of 0")
    if rates.pir < rates.cir:
        raise invalid(f"{meter.name}: a peak rate of {rates.pir} below the committed {rates.cir}; it is at least that")
    return rates


def write_rates(rates: MeterRates) -> dict[str, int]:
    """Return the content of the MeterConfig of rates."""
    return {"cir": rates.cir, "cburst": rates.cburst, "pir": rates.pir, "pburst": rates.pburst}


def check_no_colours(array: P4Array, message: Any) -> None:
    """Refuse counters per colour, which this switch has not."""
    if message.HasField("counter_data"):
        raise unimplemented(f"{array.name}: meters count no colours here; leave counter_data out")


def write_counter(counter: P4Array, cell: int, counts: tuple[int, int]) -> dict[str, Any]:
    """Return the content of the CounterEntry of a cell; counts are (packets, bytes)."""
    return {"counter_id": counter.id, "index": {"index": cell}, "data": write_counts(counts)}


def write_counts(counts: tuple[int, int]) -> dict[str, int]:
    """Return the content of a CounterData with (packets, bytes)."""
    return {"byte_count": counts[1], "packet_count": counts[0]}


def write_meter(meter: P4Meter, cell: int, rates: MeterRates | None) -> dict[str, Any]:
    """Return the content of the MeterEntry of a cell."""
    content = {"meter_id": meter.id, "index": {"index": cell}}
    return {**content, "config": write_rates(rates)} if rates else content


def write_register(register: P4Register, cell: int, value: int) -> dict[str, Any]:
    """Return the content of the RegisterEntry of a cell."""
    return {"register_id": register.id, "index": {"index": cell}, "data": encode_data(register.type, iter((value,)))}
