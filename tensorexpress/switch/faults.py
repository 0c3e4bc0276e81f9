"""Faults on purpose: a port whose frames are lost, doubled, overtaken or damaged on their way in, by a seed.

Every run with the same seed and the same frames in the same order meets the same faults. All of them are counted.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass, fields

from tensorexpress.errors import InputError, unknown
from tensorexpress.switch.ports import FramePort

_ACCEPTED = "accepted: KIND=SHARE,... such as loss=5%,duplicate=2%,reorder=5%,corrupt=0.1%"


@dataclass(frozen=True)
class Faults:
    """The share of the arriving frames, from 0 to 1, that each kind of fault strikes."""

    loss: float = 0.0
    duplicate: float = 0.0
    #: Overtaken by the frame behind it.
    reorder: float = 0.0
    #: One bit flipped, anywhere in the frame.
    corrupt: float = 0.0
    seed: int = 1

    @property
    def are_none(self) -> bool:
        """Whether no fault can strike."""
        return not (self.loss or self.duplicate or self.reorder or self.corrupt)


_KINDS = tuple(field.name for field in fields(Faults) if field.name != "seed")


def parse_faults(text: str, seed: int = 1) -> Faults:
    """Return the faults that a text names.

    >>> parse_faults("loss=5%, corrupt=0.001").corrupt
    0.001
    """
    shares: dict[str, float] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        kind, equals, share = (each.strip() for each in part.partition("="))
        if kind not in _KINDS:
            raise InputError(f"faults {text!r}: {unknown('fault', kind, _KINDS)}")
        if not equals or kind in shares:
            raise InputError(f"faults {text!r}: {kind} has no share, or two; {_ACCEPTED}")
        shares[kind] = _share(text, share)
    return Faults(**shares, seed=seed)


def _share(text: str, share: str) -> float:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?)\s*(%?)", share)
    value = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= value <= 1:
        raise InputError(f"faults {text!r}: the share {share!r} is not from 0% to 100%; {_ACCEPTED}")
    return value


class FaultyPort:
    """A port at which faults strike what arrives; what leaves is left alone."""

    def __init__(self, port: FramePort, faults: Faults, number: int, struck: Counter[str]):
        """Let faults strike at a port; what struck is counted by kind in `struck`."""
        self._port, self._faults, self._struck = port, faults, struck
        self._random = random.Random(faults.seed << 16 | number)
        self._held: list[bytes] = []
        self.fileno, self.send, self.lost, self.close = port.fileno, port.send, port.lost, port.close
        self.sending_fileno = port.sending_fileno

    def receive(self, most: int) -> list[bytes]:
        """Return the frames that are there, after the faults."""
        arrived: list[bytes] = []
        for frame in self._port.receive(most):
            arrived += self._strike(frame)
        return arrived

    def _strike(self, frame: bytes) -> list[bytes]:
        faults, overtaken = self._faults, self._held
        self._held = []
        if self._strikes("loss", faults.loss):
            self._held = overtaken  # nothing that could overtake it
            return []
        if self._strikes("corrupt", faults.corrupt):
            frame = self._damage(frame)
        frames = [frame, frame] if self._strikes("duplicate", faults.duplicate) else [frame]
        if not overtaken and self._strikes("reorder", faults.reorder):
            self._held = frames
            return []
        return frames + overtaken

    def _strikes(self, kind: str, share: float) -> bool:
        if not share or self._random.random() >= share:
            return False
        self._struck[kind] += 1
        return True

    def _damage(self, frame: bytes) -> bytes:
        if not frame:
            return frame
        bit = self._random.randrange(8 * len(frame))
        damaged = bytearray(frame)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        return bytes(damaged)
