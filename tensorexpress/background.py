"""Background traffic: when every source of other traffic sends, drawn once for all who execute a plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from tensorexpress.scenario import Scenario
from tensorexpress.units import PS_PER_SECOND

#: How many gaps between packets of a source are drawn before they repeat.
GAPS = 4096


def background_gaps(scenario: Scenario) -> NDArray[np.int64]:
    """Return the gaps between packets of every source, in ps by (source, gap); they follow from the seed alone."""
    gaps = np.zeros((len(scenario.background), GAPS), dtype=np.int64)
    for index, source in enumerate(scenario.background):
        mean = source.packet_bytes * 8 * PS_PER_SECOND / source.rate_bps
        rng = np.random.default_rng([scenario.seed, 1 << 20, index])
        drawn = rng.exponential(mean, GAPS) if source.pattern == "poisson" else np.full(GAPS, mean)
        gaps[index] = np.maximum(1, np.rint(drawn))
    return gaps


def send_times_ps(gaps_ps: Sequence[int], at_ps: int, until_ps: int | None) -> Iterator[int]:
    """Yield when a source sends: the first time a gap after it begins, and no more from its end on.

    >>> list(send_times_ps([1, 3], at_ps=10, until_ps=20))
    [11, 14, 15, 18, 19]
    """
    due_ps = at_ps
    for gap_ps in cycle(gaps_ps):
        due_ps += gap_ps
        if until_ps is not None and due_ps >= until_ps:
            return
        yield due_ps
