"""What a report is about: cases, each of which is policies side by side, and runs held against predictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tensorexpress.results.compare import Comparison, TracedRun, compare
from tensorexpress.results.explanation import Explanation
from tensorexpress.results.plot import timeline_policies
from tensorexpress.results.provenance import digest
from tensorexpress.results.side_by_side import SideBySide
from tensorexpress.results.swept import Sweep

#: How many times shorter an iteration must be for a policy to be spoken of instead of the usual one.
_NOTABLY = 1.01


@dataclass(frozen=True)
class Case:
    """Policies side by side on one scenario, all predicted or all measured, and what else is known of them."""

    compared: SideBySide
    #: The files that it comes from; none for the default scenario.
    origins: tuple[str, ...] = ()
    #: What the scenario's file says, where it was read from one.
    text: str = ""
    explanation: Explanation | None = None
    #: What a reader must know of the machine that made a run.
    machine: tuple[str, ...] = ()
    #: The target for which a prediction was calibrated.
    calibrated_for: str | None = None
    #: What would come of it at other values of some keys.
    sweep: Sweep | None = None

    @property
    def how(self) -> str:
        """Whether it was measured or predicted."""
        source = self.compared.baseline.trace.source
        return "predicted" if source == "simulated" else source

    @cached_property
    def spoken_of(self) -> list[str]:
        """The policies that all parts speak of: the baseline and, if there are others, the one to compare with it.

        That is the one that figures show beside it, or the fastest that a switch can do where that is notably faster.
        """
        baseline, *others = timeline_policies(self.compared)
        times = {name: result.jobs[0].iteration_ps for name, result in self.compared.results.items()}
        real = [name for name in times if name != baseline and name.partition(":")[0] != "ideal"]
        fastest = min(real, key=lambda name: times[name], default=baseline)
        is_notable = bool(others) and times[fastest] * _NOTABLY < times[others[0]]
        return [baseline, fastest] if is_notable else [baseline, *others]

    @property
    def runs(self) -> list[TracedRun]:
        """The run of every policy."""
        results = self.compared.results.items()
        return [TracedRun(name, result.trace, result.plan, self.calibrated_for) for name, result in results]


@dataclass(frozen=True)
class Contents:
    """All that a report shows."""

    cases: tuple[Case, ...]
    #: The command that made it.
    command: str = ""

    @property
    def titles(self) -> list[str]:
        """What every case is called; those of one name are numbered."""
        names = [f"{case.compared.scenario.name}, {case.how}" for case in self.cases]
        uses, seen = Counter(names), Counter[str]()
        titles = []
        for name in names:
            seen[name] += 1
            titles.append(f"{name} ({seen[name]})" if uses[name] > 1 else name)
        return titles

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """Every measured run beside the first prediction of the same policy on the same scenario."""
        predicted = _first_of_each(self.cases, "predicted")
        measured = _first_of_each(self.cases, "measured")
        return [compare(run, predicted[key]) for key, run in measured.items() if key in predicted]


def _first_of_each(cases: Sequence[Case], how: str) -> dict[tuple[str, str], TracedRun]:
    """Return runs by what was run: the scenario without its name, and the policy."""
    found: dict[tuple[str, str], TracedRun] = {}
    for case in cases:
        for run in case.runs if case.how == how else ():
            found.setdefault((digest(run.plan.scenario), run.name), run)
    return found
