"""State between packets, and packets that go elsewhere than straight on."""

from __future__ import annotations

import logging
import struct

import pytest
from support.passes import egress, ingress, load, through

from tensorexpress.switch.operations import (
    ActionCall,
    DeleteEntry,
    Entry,
    MeterRates,
    ReadCounter,
    ReadIdleTime,
    ReadRegister,
    SetEntry,
    SetMeter,
    WriteCounter,
    WriteRegister,
)
from tensorexpress.switch.packet import DROP_PORT, EGRESS_CLONE, INGRESS_CLONE, RECIRCULATED, RESUBMITTED, Packet
from tensorexpress.switch.program.pipeline import Pipeline

COMMAND = struct.Struct(">BHIB")


def command(what: int, index: int = 0, value: int = 0, note: int = 0) -> bytes:
    return COMMAND.pack(what, index, value, note) + b"payload"


def answer(pipeline: Pipeline, *parts: int, now_us: int = 0) -> tuple[int, ...]:
    out = through(pipeline, command(*parts), now_us=now_us)
    assert out is not None
    return COMMAND.unpack(out[: COMMAND.size])


def test_registers_wrap_to_their_width_and_have_no_cells_beyond_their_end() -> None:
    pipeline = load("stateful")
    answer(pipeline, 1, 3, 0x12345678)
    assert answer(pipeline, 2, 3) == (2, 3, 0x45678, 0)
    answer(pipeline, 1, 8, 5)
    answer(pipeline, 1, 0xFFFF, 5)
    assert answer(pipeline, 2, 8, 7)[2] == 0
    assert pipeline.ask(ReadRegister("In.cells", None)) == [0, 0, 0, 0x45678, 0, 0, 0, 0]


def test_the_controller_reads_and_writes_registers() -> None:
    pipeline = load("stateful")
    pipeline.apply(WriteRegister("In.cells", None, 9))
    pipeline.apply(WriteRegister("In.cells", 2, 5))
    assert pipeline.ask(ReadRegister("In.cells", None)) == [9, 9, 5, 9, 9, 9, 9, 9]
    assert pipeline.ask(ReadRegister("In.cells", 2)) == [5]
    assert answer(pipeline, 2, 2)[2] == 5


def test_counters_count_packets_and_bytes_of_cells_that_are_there() -> None:
    pipeline = load("stateful")
    for index in (1, 1, 2, 8, 9999):
        answer(pipeline, 0, index)
    cells = list(pipeline.ask(ReadCounter("In.seen", None)))
    assert cells == [(0, 0), (2, 30), (1, 15)] + [(0, 0)] * 5
    pipeline.apply(WriteCounter("In.seen", None, 0, 0))
    pipeline.apply(WriteCounter("In.seen", 1, 7, 70))
    assert pipeline.ask(ReadCounter("In.seen", 1)) == [(7, 70)]
    assert pipeline.ask(ReadCounter("In.seen", 2)) == [(0, 0)]


def test_a_meter_in_bytes_lets_its_burst_through_and_then_its_rates() -> None:
    pipeline = load("stateful")
    pipeline.apply(SetMeter("In.rates", 2, MeterRates(cir=15_000_000, cburst=30, pir=30_000_000, pburst=45)))
    colours = [answer(pipeline, 3, 2, now_us=0)[3] for _ in range(4)]
    assert colours == [0, 0, 1, 2]
    # Frames are 15 bytes: one microsecond brings back one at the committed rate and two at the peak rate.
    assert [answer(pipeline, 3, 2, now_us=1)[3] for _ in range(3)] == [0, 1, 2]
    assert answer(pipeline, 3, 3, now_us=1)[3] == 0
    assert answer(pipeline, 3, 200, now_us=1)[3] == 0


def test_random_numbers_stay_in_their_bounds_and_repeat_with_the_pipeline() -> None:
    def draw() -> list[int]:
        pipeline = load("stateful")
        return [answer(pipeline, 4)[2] for _ in range(200)]

    numbers = draw()
    assert set(numbers) == set(range(10, 21))
    assert draw() == numbers


def test_a_digest_carries_its_fields() -> None:
    packet = ingress(load("stateful"), command(5, 0, 0xABCD), port=7)
    assert packet.digests == [("notice_t", (5, 0xABCD, 7))]


def test_an_ingress_clone_has_the_headers_that_came_and_the_metadata_that_was_kept() -> None:
    pipeline = load("stateful")
    packet = ingress(pipeline, command(6, 3, 4))
    assert (packet.clone_session, packet.egress_spec) == (5, 1)
    clone = Packet(packet.frame, packet.ingress_port, packet.ingress_us)
    clone.instance_type = INGRESS_CLONE
    clone.preserved = pipeline.preserve(packet, packet.clone_fields)
    original, copy = egress(pipeline, packet), egress(pipeline, clone)
    assert original == command(6, 3, 4, 1)
    assert copy == command(6, 0x6666, 4, 0x66)
    assert packet.clone_session == -1


def test_an_egress_clone_has_the_headers_that_egress_left() -> None:
    pipeline = load("stateful")
    packet = ingress(pipeline, command(15, 3, 4))
    assert egress(pipeline, packet) == command(15, 3, 4, 0x51)
    assert packet.clone_session == 6
    clone = Packet(packet.frame, packet.ingress_port, packet.ingress_us)
    clone.instance_type = EGRESS_CLONE
    clone.preserved = pipeline.preserve(packet, packet.clone_fields)
    clone.state = packet.state
    assert egress(pipeline, clone) == command(15, 0x15, 4, 0x51)
    assert clone.clone_session == -1


def test_a_resubmitted_packet_keeps_the_listed_metadata_alone() -> None:
    pipeline = load("stateful")
    first = ingress(pipeline, command(7))
    assert first.resubmit_fields >= 0
    second = Packet(first.frame, 0, 0)
    second.instance_type = RESUBMITTED
    second.preserved = pipeline.preserve(first, first.resubmit_fields)
    pipeline.ingress(second)
    assert second.resubmit_fields == -1
    assert egress(pipeline, second) == command(7, 0, 0, 0x77)


def test_a_recirculated_packet_comes_again_as_it_left() -> None:
    pipeline = load("stateful")
    first = ingress(pipeline, command(14, 9, 9))
    out = egress(pipeline, first)
    assert out == command(14, 9, 9)
    assert first.recirculate_fields >= 0
    second = Packet(out, 0, 0)
    second.instance_type = RECIRCULATED
    second.preserved = pipeline.preserve(first, first.recirculate_fields)
    pipeline.ingress(second)
    second.instance_type = 0
    assert egress(pipeline, second) == command(14, 9, 9, 0x14)
    assert second.recirculate_fields == -1


def test_decisions_are_on_the_packet() -> None:
    pipeline = load("stateful")
    packet = ingress(pipeline, command(8, 12))
    assert (packet.mcast_grp, packet.priority) == (12, 3)
    assert ingress(pipeline, command(11)).egress_spec == DROP_PORT
    # Through an action whose parameter is a copy of the standard metadata.
    assert ingress(pipeline, command(18)).egress_spec == DROP_PORT
    assert egress(pipeline, ingress(pipeline, command(16))) is None
    assert through(pipeline, command(9, 0x102)) == command(9, 0x102)[:4]


@pytest.mark.parametrize("last", [0, 1, 1000])
def test_an_action_may_loop(last: int) -> None:
    assert answer(load("stateful"), 19, last)[2] == last * (last + 1) // 2


def test_exit_leaves_the_control_at_once() -> None:
    assert answer(load("stateful"), 10) == (10, 0, 0, 0x10)


def test_egress_sees_what_the_traffic_manager_measured() -> None:
    pipeline = load("stateful")
    packet = ingress(pipeline, command(17))
    # Wider than their fields, as after years of running.
    packet.deq_timedelta, packet.enq_qdepth = 2**32 + 5, 2**19 + 9
    assert egress(pipeline, packet) == command(17, 1, 5, 9)


def test_an_assertion_that_fails_is_counted_and_does_not_stop_the_packet(caplog: pytest.LogCaptureFixture) -> None:
    pipeline = load("stateful")
    assert answer(pipeline, 12, 0, 1) == (12, 0, 1, 0)
    answer(pipeline, 12, 0, 0)
    assert pipeline.broken_claims == 1
    assert "assert does not hold" in caplog.text


def test_log_messages_carry_their_values(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        answer(load("stateful"), 0, 6)
    assert "command 0 at 6" in caplog.text


def test_entries_are_idle_once_per_timeout_without_a_hit() -> None:
    pipeline = load("stateful")
    busy, idle = Entry("In.idle_table", (1,)), Entry("In.idle_table", (2,))
    for entry in (busy, idle):
        pipeline.apply(SetEntry(entry, ActionCall("NoAction"), idle_timeout_ns=1_000_000))
    answer(pipeline, 13, 0, 1, now_us=900)

    def idle_at(now_us: int) -> list[Entry]:
        return [entry for entry in pipeline.idle_entries(now_us) if entry is not None]

    assert idle_at(1000) == [idle]
    assert idle_at(1500) == []
    assert pipeline.ask(ReadIdleTime(busy)) == [600_000]
    assert idle_at(2000) == [busy, idle]
    pipeline.apply(DeleteEntry(idle))
    assert idle_at(9000) == [busy]
