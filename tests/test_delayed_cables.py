"""Cables with delays in native code: what is under way arrives when it would in Python, to the picosecond."""

from __future__ import annotations

import time
from contextlib import ExitStack
from random import Random

import pytest
from support.random_tables import RandomTables
from support.thorough import rest
from test_native_loop import DOCUMENTS, PORTS, SETTINGS, Arrivals, Loops, copies, seeds_of

from tensorexpress.switch.counted import REFUSED
from tensorexpress.switch.emulated_cable import CableSettings, EmulatedCable, arrivals
from tensorexpress.switch.native import arena, words
from tensorexpress.switch.native import device as native_device
from tensorexpress.switch.ports import DatagramPort
from tensorexpress.switch.program.bmv2.reader import read_program
from tensorexpress.wire.udp import lay_wire, stamped

PS_PER_NS = 1000

#: Every port has another delay each way; one has none on the way to it, one none on the way from it.
CABLES = {
    number: CableSettings(arriving_ps=arriving_ps, leaving_ps=leaving_ps, arriving_stamped=arriving_ps > 0)
    for number, (arriving_ps, leaving_ps) in enumerate([(10**8, 10**8), (3 * 10**8, 5 * 10**6), (0, 10**9), (7, 0)])
}


class DelayedLoops(Loops):
    """Both loops behind cables with delays: in Python as `loop.Loop` emulates them, and in native code."""

    def __init__(self, name: str, resources: ExitStack, **options: object):
        super().__init__(name, **options)
        self._cables = {number: EmulatedCable(settings, number) for number, settings in CABLES.items()}
        self._reached_ps = 0
        wires = [[resources.enter_context(end) for end in lay_wire()] for _ in CABLES]
        self._there = [there for _, there in wires]
        self._ports = {number: DatagramPort(here) for number, (here, _) in enumerate(wires)}
        # A while ago, so that every stamp is of what has been.
        self.started_ns = time.monotonic_ns() - 10**10
        self.native.count_from(self.started_ns)
        assert self.native.lay_cables(CABLES, self._ports)
        # What native code has sent is at the far end; what Python has sent, as `loop.Loop` does, sets out.
        self.native.transmit_many(self.sent[1].extend)
        self.native._transmit = self._let_set_out

    def _let_set_out(self, number: int, frame: bytes, time_ps: int) -> None:
        if not CABLES[number].leaving_ps:
            self.sent[1].append((number, frame, time_ps))
        else:
            assert self.native.hold_leaving(number, frame, time_ps)

    def set_out(self, sent: Arrivals) -> None:
        """Let frames be sent to ports at some time; word of them comes now."""
        for number, frame, sent_ps in sent:
            cable = self._cables[number]
            if not cable.arriving.delay_ps:
                for switch in self.switches:
                    switch.receive(number, frame, self._reached_ps)
                continue
            cable.arriving.put(frame, sent_ps)
            self._there[number].send(stamped(frame, self.started_ns + sent_ps // PS_PER_NS))
        for number, port in self._ports.items():
            self.native.hold_from(number, port, time.monotonic_ns())

    def advance(self, now_ps: int) -> None:
        """Let all arrive and leave that is due, and demand that all is the same afterwards."""
        python, native = self.switches
        python.receive_many(arrivals(self._cables, self._reached_ps, now_ps))
        python.advance(now_ps)
        native.advance(now_ps)
        self._reached_ps = now_ps
        self.compare()

    def compare(self) -> None:
        """Demand that what has reached the far ends of cables is the same at every port, and so is all that is left."""
        for number, frame, time_ps in self.sent[0]:
            self._cables[number].leaving.put(frame, time_ps)
        for number, cable in self._cables.items():
            there = [(time_ps, frame) for port, frame, time_ps in self.sent[1] if port == number]
            assert there == cable.leaving.take(self._reached_ps)
        for sent in self.sent:
            sent.clear()
        python, native = self.switches
        assert python.statistics() == native.statistics()
        times = [python.next_event_ps(), *(cable.next_ps for cable in self._cables.values())]
        assert native.next_event_ps() == min((each for each in times if each is not None), default=None)


def whole_ns(choose: Random, most_ps: int) -> int:
    return choose.randrange(most_ps // PS_PER_NS) * PS_PER_NS


@rest(but=8)
@pytest.mark.parametrize("farthest_ps", [native_device.FARTHEST_PS, 2 * 10**8])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_random_traffic_arrives_at_the_same_picosecond_in_both_loops(
    name: str, farthest_ps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_device, "FARTHEST_PS", farthest_ps)  # how soon native code counts from anew
    program = read_program(DOCUMENTS[name])
    for seed, port in enumerate(SETTINGS):
        choose, draw = Random(seed), RandomTables(program, seed)
        with ExitStack() as resources:
            loops = DelayedLoops(name, resources, ports=dict.fromkeys(range(PORTS), port), default=port)
            changes = [*draw.first(), *copies(choose)]
            for switch in loops.switches:
                switch.apply(changes)
            now_ps = 0
            for _ in range(12):
                # Some are late by more than their delay, and some come out of order.
                loops.set_out(
                    [
                        (choose.randrange(PORTS), draw.frame(seeds_of(name)), max(0, now_ps - whole_ns(choose, 10**9)))
                        for _ in range(choose.randrange(30))
                    ]
                )
                now_ps += choose.choice([0, whole_ns(choose, 10**7), whole_ns(choose, 10**9)])
                loops.advance(now_ps)
            loops.advance(now_ps + 10**12)
            assert loops.native.next_event_ps() is None


def test_cables_that_lose_frames_are_left_to_python() -> None:
    with ExitStack() as resources:
        loops = DelayedLoops("switchboard", resources, ports=dict.fromkeys(range(PORTS), SETTINGS[0]))
        assert not loops.native.lay_cables({0: CableSettings(arriving_ps=5, leaving_loss=0.1)}, {})


def test_a_frame_for_which_there_is_no_memory_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "REGION_BYTES", arena.FEWER_BYTES)
    with ExitStack() as resources:
        loops = DelayedLoops("switchboard", resources, ports=dict.fromkeys(range(PORTS), SETTINGS[0]))
        native = loops.native
        loops.set_out([(0, b"first", 0)])
        native._arena[words.UNUSED] = native._arena[words.END]
        loops.set_out([(0, b"x" * 600, 0)])
        assert native.statistics().ports[0].drops == {REFUSED: 1}
