"""How the embedded switch tells a controller of frames that it lost, for which P4Runtime has no message.

It is metadata of gRPC with the answer to `Capabilities`, a request that needs no program and no standing. Clients that
do not know it never see it, and switches that do not send it lose nothing by that.
"""

from __future__ import annotations

from collections.abc import Mapping

#: The name of the metadata.
KEY = "tensorexpress-lost-frames"


def encode(lost: Mapping[int, int]) -> str:
    """Return how many frames each port has lost, as text.

    >>> encode({0: 12, 3: 0})
    '0=12,3=0'
    """
    return ",".join(f"{port}={frames}" for port, frames in lost.items())


def decode(text: str) -> dict[int, int]:
    """Return how many frames each port has lost; ValueError if the text is not what `encode` makes.

    >>> decode("0=12,3=0")
    {0: 12, 3: 0}
    """
    pairs = (pair.split("=") for pair in text.split(",") if pair)
    return {int(port): int(frames) for port, frames in pairs}
