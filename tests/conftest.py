"""What all tests share: no example of a property test is measured against the clock."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# The first example of some tests compiles the fast engine, and a random scenario takes long to draw.
settings.register_profile("tensorexpress", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tensorexpress")
