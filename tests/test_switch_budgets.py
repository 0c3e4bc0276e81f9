"""What one frame, one controller and one program may cost a switch: work and memory are bounded, in both loops."""

from __future__ import annotations

from typing import Any

import pytest
from support import tiny

from tensorexpress.cli.switch import statistics_table
from tensorexpress.p4.define import CPU_PORT
from tensorexpress.program_engines import NATIVE, PYTHON
from tensorexpress.switch.counted import NO_PORT
from tensorexpress.switch.device import Switch
from tensorexpress.switch.engines import make_switch
from tensorexpress.switch.packet import DROP_PORT
from tensorexpress.switch.program.budgets import MOST_PORTS
from tensorexpress.switch.traffic import PortSettings

Sent = list[tuple[int, bytes, int]]

engines = pytest.mark.parametrize("engine", [PYTHON, NATIVE])


def switch_with(document: bytes, engine: str, **options: Any) -> tuple[Switch, Sent]:
    """Return a switch that runs a program, and the list of the frames that it sends."""
    sent: Sent = []
    switch = make_switch(lambda *left: sent.append(left), engine=engine, **options)
    switch.load(document)
    return switch, sent


def run_out(switch: Switch) -> None:
    """Let everything leave that waits."""
    while (due_ps := switch.next_event_ps()) is not None:
        switch.advance(due_ps)


def to_any_port() -> bytes:
    """Return a program that sends each frame to the port of 32 bits that it begins with."""
    return tiny.program(
        {"h": {"port": 32}},
        extracted=["h"],
        ingress=[tiny.assign(tiny.field("standard_metadata", "egress_spec"), tiny.field("h", "port"))],
        standard={**tiny.STANDARD, "egress_spec": 32},
    )


@engines
def test_all_ports_that_do_not_exist_share_one_counter(engine: str) -> None:
    switch, sent = switch_with(to_any_port(), engine, ports={0: PortSettings()})
    numbers = [*range(600, 900), *range(2**32 - 300, 2**32)]
    for number in numbers:
        switch.receive(0, number.to_bytes(4, "big"), 0)
    switch.receive(0, bytes(4), 0)
    statistics = switch.statistics()
    assert [port for port, _, _ in sent] == [0]
    assert set(statistics.ports) == {0, CPU_PORT}
    assert statistics.drops == {NO_PORT: len(numbers)}
    assert f"ports that do not exist: {len(numbers)} no such port" in statistics_table(statistics)


@engines
def test_a_switch_with_any_port_makes_a_bounded_number_of_them(engine: str) -> None:
    switch, sent = switch_with(to_any_port(), engine, cpu_port=None)
    numbers = [number for number in range(MOST_PORTS + 9) if number != DROP_PORT]
    for number in numbers:
        switch.receive(0, number.to_bytes(4, "big"), 0)
    statistics = switch.statistics()
    assert [port for port, _, _ in sent] == numbers[:MOST_PORTS]
    assert len(statistics.ports) == MOST_PORTS
    assert statistics.drops == {NO_PORT: len(numbers) - MOST_PORTS}
