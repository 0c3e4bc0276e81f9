"""What all tests share: no example of a property test is measured against the clock."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "tensorexpress",
    deadline=None,
    # The first example of some tests compiles the fast engine, and a random scenario takes long to draw.
    suppress_health_check=[HealthCheck.too_slow],
    # New examples are for whoever can look into a failure; continuous integration judges a change by the same ones.
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("tensorexpress")
