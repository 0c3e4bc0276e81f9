"""What targets emulate of links beside their rates; cables on one machine have neither delay nor loss of their own."""

from __future__ import annotations

from tensorexpress.cluster import Link
from tensorexpress.units import PS_PER_MS

#: Waking up and forwarding take some hundred microseconds; what is below this would be lost in them, and cost as much.
LEAST_EMULATED_PS = PS_PER_MS // 10

#: Targets whose switches keep frames back for the delay of a link.
EMULATING = ("embedded",)


def emulated_delay_ps(link: Link, target: str) -> int:
    """Return the delay that a link has on a target, beside what the machine takes.

    >>> [emulated_delay_ps(Link("h0", "s0", 10**9, delay_ps), "embedded") for delay_ps in (10**6, 10**10)]
    [0, 10000000000]
    >>> emulated_delay_ps(Link("h0", "s0", 10**9, 10**10), "linux")
    0
    """
    return link.delay_ps if target in EMULATING and link.delay_ps >= LEAST_EMULATED_PS else 0
