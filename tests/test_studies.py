"""Published studies: their files are whole, and docs/studies.md is right about every point, one of each simulated."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.thorough import rest

from tensorexpress.policy import parse_policy
from tensorexpress.scenario import read_scenario, read_study

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import studies  # noqa: E402

PAGE = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
POINTS = [(study, point) for study in studies.studies() for point in studies.points(study)]


def row(point: studies.Point) -> list[str]:
    """Return the cells of a point's row on the page."""
    [found] = [line for line in PAGE.splitlines() if line.startswith(f"| {point.case} |")]
    return [cell.strip() for cell in found.strip("|").split("|")]


@pytest.mark.parametrize("study", studies.studies())
def test_a_study_is_a_scenario_with_fitted_points_and_tested_ones(study: str) -> None:
    fitted = {point.fitted for point in studies.points(study)}
    assert "" in fitted, "nothing is tested"
    comment = "".join(line for line in (studies.STUDIES / f"{study}.toml").read_text().splitlines() if line[:1] == "#")
    for key in fitted - {""}:
        assert key in comment
    assert "?" in comment
    assert read_study(studies.STUDIES / f"{study}.toml").policies
    assert f"`examples/studies/{study}.toml`" in (ROOT / "docs" / "scenario.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("study", "point"), POINTS, ids=lambda each: getattr(each, "case", each))
def test_a_point_has_a_source_a_scenario_and_a_row_on_the_page(study: str, point: studies.Point) -> None:
    assert point.source
    assert bool(point.over) != bool(point.samples), "either a gain or a throughput"
    scenario = read_scenario(studies.STUDIES / f"{study}.toml", point.overrides)
    for policy in filter(None, (point.policy, point.over)):
        parse_policy(policy)
    if point.samples:
        compute_s = scenario.jobs[0].workload.compute_ps / 1e12
        [throughput] = [
            p.published
            for s, p in POINTS
            if s == study
            and p.fitted == "job.samples_per_second"
            and p.case.split(",")[:-1] == point.case.split(",")[:-1]
        ]
        assert int(point.samples) == pytest.approx(
            len(scenario.jobs[0].workers) * compute_s * float(throughput), rel=1e-3
        )
    _, published, predicted, difference, fitted = row(point)
    assert float(published) == float(point.published)
    assert float(predicted) / float(published) - 1 == pytest.approx(
        float(difference.removesuffix("%")) / 100, abs=0.006
    )
    assert fitted.strip("`") == point.fitted


@rest(but=1)
@pytest.mark.parametrize(
    ("study", "case"),
    [
        ("p3", "ResNet-50, 4 Gbps"),
        ("tensorflow-p2-8xlarge", "ResNet-50, batch 32, 32 GPUs"),
        ("tensorflow-p2-xlarge", "8 machines"),
    ],
)
def test_a_point_is_predicted_as_the_page_says(study: str, case: str) -> None:
    [point] = [point for point in studies.points(study) if point.case == case]
    assert studies.predicted(study, point) == pytest.approx(float(row(point)[2]), rel=0.01)
