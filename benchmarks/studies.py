"""Published studies: what was measured elsewhere beside what is predicted here.

    python benchmarks/studies.py            # all studies of examples/studies
    python benchmarks/studies.py p3         # one of them

A study is a scenario, NAME.toml, and its published points, NAME.csv, with the columns

    case        what the point is called
    set         how its scenario differs from NAME.toml, as after --set, separated by semicolons
    policy      what was measured
    over        the policy it was compared with, if `published` is how many times faster; else empty
    samples     samples of an iteration of all workers, if `published` is samples a second; else empty
    published   the figure
    fitted      the key whose value was fitted on this point; empty: the point is a test
    source      where the figure stands
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tensorexpress.scenario import read_scenario
from tensorexpress.sim import predict
from tensorexpress.units import PS_PER_SECOND

STUDIES = Path(__file__).parent.parent / "examples" / "studies"


class Point(NamedTuple):
    """One published figure, in the order of the columns."""

    case: str
    set: str
    policy: str
    over: str
    samples: str
    published: str
    fitted: str
    source: str

    @property
    def overrides(self) -> list[str]:
        """How the point's scenario differs from the study's."""
        return [change.strip() for change in self.set.split(";")]

    @property
    def unit(self) -> str:
        """What the figure counts."""
        return f"x {self.over}" if self.over else "samples/s"


def studies() -> list[str]:
    """Return the names of all studies."""
    return sorted(path.stem for path in STUDIES.glob("*.toml"))


def points(study: str) -> Iterator[Point]:
    """Yield what was published of a study."""
    with (STUDIES / f"{study}.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, strict=True):
            yield Point(**row)


def predicted(study: str, point: Point) -> float:
    """Return the figure of a point as it is predicted."""
    scenario = read_scenario(STUDIES / f"{study}.toml", point.overrides)
    results = predict(scenario, [name for name in (point.over, point.policy) if name]).results
    iteration_ps = results[point.policy].jobs[0].iteration_ps
    if point.over:
        return results[point.over].jobs[0].iteration_ps / iteration_ps
    return int(point.samples) * PS_PER_SECOND / iteration_ps


def main() -> None:
    """Print a table of every study that is asked for."""
    parser = argparse.ArgumentParser(description="Print published figures beside predicted ones.")
    parser.add_argument("study", nargs="*", help=f"which of {', '.join(studies())}; all if none is named")
    named = parser.parse_args().study
    if unknown := set(named) - set(studies()):
        parser.error(f"found {', '.join(sorted(unknown))}; accepted: {', '.join(studies())}")
    for study in named or studies():
        print(f"\n{study}\n{'':34}{'published':>10}{'predicted':>11}{'':12}{'difference':>11}")
        for point in points(study):
            published, here = float(point.published), predicted(study, point)
            digits = 2 if point.over else 1
            note = f"  fitted: {point.fitted}" if point.fitted else ""
            print(
                f"{point.case:34}{published:10.{digits}f}{here:11.{digits}f} {point.unit:11}"
                f"{here / published - 1:+11.1%}{note}",
                flush=True,
            )


if __name__ == "__main__":
    main()
