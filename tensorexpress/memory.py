"""Memory: what does not fit is refused before hours of swapping tell so."""

from __future__ import annotations

import os

from tensorexpress.errors import ScenarioError
from tensorexpress.units import format_size


def installed_bytes() -> int:
    """Return how much memory this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_memory(scenario: str, needed_bytes: int, cause: str = "") -> None:
    """Refuse to begin what needs more memory for a scenario than there is; a cause says what needs it."""
    if needed_bytes > installed_bytes():
        raise ScenarioError(
            f"{scenario}: found a scenario that needs about {format_size(needed_bytes)} of memory"
            f"{f' for {cause}' if cause else ''}; accepted: what fits into the {format_size(installed_bytes())} of "
            "this machine; take fewer workers, a smaller model or a larger mtu"
        )
