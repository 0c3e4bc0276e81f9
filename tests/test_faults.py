"""Faults on purpose: what a faulty port does to frames, and how faults are named."""

from __future__ import annotations

import doctest
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorexpress.errors import InputError
from tensorexpress.switch import faults
from tensorexpress.switch.faults import Faults, FaultyPort, parse_faults

FRAMES = st.lists(st.binary(min_size=1, max_size=40), max_size=40)
SHARES = st.floats(0, 1)


class Arrivals:
    """A port at which some frames have arrived."""

    def __init__(self, frames):
        self.frames = list(frames)

    def fileno(self):
        return -1

    sending_fileno = fileno

    def receive(self, most):
        taken, self.frames = self.frames[:most], self.frames[most:]
        return taken

    def send(self, frame):
        return True

    def lost(self):
        return 0

    def close(self):
        pass


def through(frames, settings, batch=7):
    """Return what comes through a faulty port, and what struck."""
    struck: Counter[str] = Counter()
    port = FaultyPort(Arrivals(frames), settings, 3, struck)
    arrived = []
    for _ in range(0, len(frames) + 1, batch):
        arrived += port.receive(batch)
    return arrived, struck


def flipped_bits(left, right):
    return sum((a ^ b).bit_count() for a, b in zip(left, right, strict=True))


@given(FRAMES)
def test_without_faults_all_frames_come_as_they_were(frames):
    assert through(frames, Faults()) == (frames, {})


@given(FRAMES)
def test_certain_faults_strike_every_frame(frames):
    assert through(frames, Faults(loss=1)) == ([], {"loss": len(frames)} if frames else {})
    assert through(frames, Faults(duplicate=1))[0] == [frame for frame in frames for _ in range(2)]
    damaged, _ = through(frames, Faults(corrupt=1))
    assert [flipped_bits(*pair) for pair in zip(frames, damaged, strict=True)] == [1] * len(frames)


@given(FRAMES, SHARES)
def test_reordering_loses_and_invents_nothing(frames, share):
    arrived, struck = through(frames, Faults(reorder=share))
    held = len(frames) - len(arrived)  # the last one may wait for a frame that would overtake it
    assert held in (0, 1)
    assert not Counter(arrived) - Counter(frames)
    assert held <= struck["reorder"]
    # Nothing is overtaken by more than one frame.
    numbered = [bytes([number]) for number in range(len(frames))]
    order = [frame[0] for frame in through(numbered, Faults(reorder=share))[0]]
    assert all(abs(place - number) <= 1 for place, number in enumerate(order))


@given(FRAMES, SHARES, SHARES, SHARES, SHARES)
def test_the_same_seed_meets_the_same_faults_and_all_are_counted(frames, loss, duplicate, reorder, corrupt):
    settings = Faults(loss, duplicate, reorder, corrupt)
    arrived, struck = through(frames, settings)
    assert (arrived, struck) == through(frames, settings)
    assert len(arrived) <= len(frames) - struck["loss"] + struck["duplicate"]


def test_faults_are_named_with_shares():
    assert parse_faults("loss=5%, duplicate=2 %,reorder=0.05,corrupt=0.1%") == Faults(0.05, 0.02, 0.05, 0.001)
    assert parse_faults("").are_none


@pytest.mark.parametrize(("text", "message"), [
    ("lost=5%", "unknown fault 'lost'; did you mean 'loss'?"),
    ("loss", "loss has no share, or two"),
    ("loss=1%,loss=2%", "loss has no share, or two"),
    ("loss=101%", "the share '101%' is not from 0% to 100%"),
    ("loss=-1", "the share '-1' is not from 0% to 100%"),
])  # fmt: skip
def test_what_is_no_fault_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        parse_faults(text)


def test_examples_in_the_documentation_are_true():
    assert doctest.testmod(faults).failed == 0
