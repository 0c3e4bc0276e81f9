"""Indirect counters, meters and registers: arrays of cells."""

from __future__ import annotations

from typing import Any

from tensorexpress.switch.operations import (
    MeterRates,
    ReadCounter,
    ReadRegister,
    SetMeter,
    WriteCounter,
    WriteRegister,
)
from tensorexpress.switch.p4runtime.batch import Ask, Batch, Found, check_modify, declared_or_all
from tensorexpress.switch.p4runtime.messages import cells
from tensorexpress.switch.p4runtime.messages.checks import find
from tensorexpress.switch.p4runtime.p4info import P4Register, P4Schema
from tensorexpress.switch.p4runtime.status import unimplemented
from tensorexpress.switch.p4runtime.values import Members, decode_data


class Arrays:
    """The configuration of meters; what counters and registers hold is the data path's."""

    def __init__(self, schema: P4Schema, ask: Ask):
        self._schema = schema
        self._ask = ask
        self._meters: dict[int, dict[int, MeterRates]] = {id: {} for id in schema.meters}

    def write_counter(self, batch: Batch, kind: int, message: Any) -> None:
        """Do an update of one cell of a counter, or of all."""
        check_modify(kind, "counter")
        counter = find("counter", self._schema.counters, message.counter_id)
        index = cells.read_index(counter, message)
        if message.HasField("data"):
            packets, octets = cells.read_counts(counter.name, message.data)
            batch.operations.append(WriteCounter(counter.name, index, packets, octets))

    def read_counters(self, request: Any) -> Found:
        """Return the cells of counters that a request selects."""
        counters = declared_or_all("counter", self._schema.counters, request.counter_id)
        index = cells.read_index(counters[0], request) if request.counter_id else None
        answers = self._ask([ReadCounter(counter.name, index) for counter in counters])
        contents = (
            {"counter_entry": cells.write_counter(counter, cell, counts)}
            for counter, answer in zip(counters, answers, strict=True)
            for cell, counts in enumerate(answer, start=index or 0)
        )
        return Found(sum(map(len, answers)), contents)

    def write_meter(self, batch: Batch, kind: int, message: Any) -> None:
        """Do an update of one cell of a meter, or of all."""
        check_modify(kind, "meter")
        meter = find("meter", self._schema.meters, message.meter_id)
        cells.check_no_colours(meter, message)
        index = cells.read_index(meter, message)
        rates = cells.read_rates(meter, message.config) if message.HasField("config") else None
        configured = self._meters[meter.id]
        if index is None:
            batch.put(self._meters, meter.id, {} if rates is None else dict.fromkeys(range(meter.size), rates))
        elif rates is not None:
            batch.put(configured, index, rates)
        elif index in configured:
            batch.remove(configured, index)
        batch.operations.append(SetMeter(meter.name, index, rates))

    def read_meters(self, request: Any) -> Found:
        """Return the cells of meters that a request selects."""
        meters = declared_or_all("meter", self._schema.meters, request.meter_id)
        for meter in meters:
            cells.check_no_colours(meter, request)
        index = cells.read_index(meters[0], request) if request.meter_id else None
        found = [
            (meter, cell, self._meters[meter.id].get(cell))
            for meter in meters
            for cell in (range(meter.size) if index is None else (index,))
        ]
        contents = ({"meter_entry": cells.write_meter(meter, cell, rates)} for meter, cell, rates in found)
        return Found(len(found), contents)

    def write_register(self, batch: Batch, kind: int, message: Any) -> None:
        """Do an update of one cell of a register, or of all."""
        check_modify(kind, "register")
        register = find("register", self._schema.registers, message.register_id)
        _check_single_number(register)
        index = cells.read_index(register, message)
        value = decode_data(register.type, message.data, register.name)
        batch.operations.append(WriteRegister(register.name, index, value))

    def read_registers(self, request: Any) -> Found:
        """Return the cells of registers that a request selects."""
        registers = declared_or_all("register", self._schema.registers, request.register_id)
        for register in registers:
            _check_single_number(register)
        index = cells.read_index(registers[0], request) if request.register_id else None
        answers = self._ask([ReadRegister(register.name, index) for register in registers])
        contents = (
            {"register_entry": cells.write_register(register, cell, value)}
            for register, answer in zip(registers, answers, strict=True)
            for cell, value in enumerate(answer, start=index or 0)
        )
        return Found(sum(map(len, answers)), contents)


def _check_single_number(register: P4Register) -> None:
    if isinstance(register.type, Members):
        raise unimplemented(f"{register.name}: a register of {register.type.form}s cannot be read or written")
