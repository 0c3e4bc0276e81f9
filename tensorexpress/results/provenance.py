"""Provenance: what made a result, so that every file can be traced back to what it shows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

import tensorexpress
from tensorexpress.policy import Policy
from tensorexpress.results.columns import Cells
from tensorexpress.scenario import Scenario

#: Hexadecimal digits of a digest: enough to tell all scenarios of a study apart, few enough to read out.
_DIGITS = 12


@dataclass(frozen=True)
class Provenance:
    """Version, scenario, seed and policies of a result."""

    #: Of tensorexpress.
    version: str
    #: The scenario's name.
    scenario: str
    #: What two scenarios share, within a version, if and only if the same happens in both; see `digest`.
    digest: str
    seed: int
    policies: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {**asdict(self), "policies": list(self.policies)}

    def cells(self) -> Cells:
        """Return the columns that every row of a CSV file ends with; its policy is a column of its own."""
        return {
            "scenario": self.scenario,
            "scenario_digest": self.digest,
            "seed": self.seed,
            "version": self.version,
        }

    @property
    def line(self) -> str:
        """On one short line, for figures."""
        return f"tensorexpress {self.version}, scenario {self.digest}, seed {self.seed}"


def provenance(scenario: Scenario, policies: Iterable[Policy]) -> Provenance:
    """Return what made a result of these policies on this scenario."""
    return Provenance(
        version=tensorexpress.__version__,
        scenario=scenario.name,
        digest=digest(scenario),
        seed=scenario.seed,
        policies=tuple(policy.name for policy in policies),
    )


def digest(scenario: Scenario) -> str:
    """Return the start of the SHA-256 of all that a scenario says but its name.

    >>> from tensorexpress.scenario import read_scenario
    >>> one, other = (read_scenario(None, [f"name={name}"]) for name in ("one", "other"))
    >>> digest(one) == digest(other)
    True
    """
    content = {**asdict(scenario), "name": ""}
    return sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()[:_DIGITS]
