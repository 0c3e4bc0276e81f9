"""Ways to sum compared (benchmarks/sums.py): what docs/aggregation-studies.md claims, on less, and some figures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.thorough import rest

from tensorexpress.framing import Framing
from tensorexpress.sums import PART_FRAMING, SUM_FRAMING

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import sums  # noqa: E402

PAGE = (ROOT / "docs" / "aggregation-studies.md").read_text(encoding="utf-8").splitlines()
GBPS = 10**9

LAYERS = (
    "layer_index,numel,forward_ns,backward_ns\n0,40000,100000,200000\n1,300000,100000,200000\n2,300000,100000,200000\n"
)


@pytest.fixture
def two_jobs(tmp_path: Path) -> list[str]:
    """Overrides of two jobs whose packets meet in a switch, for about as long as they compute."""
    path = tmp_path / "layers.csv"
    path.write_text(LAYERS)
    keys = ("model=", f"csv={path}", "workers=4", "servers=1")
    return ["cluster.bandwidth=10 Gbps", *(f"job.{job}.{key}" for job in range(2) for key in keys)]


@rest(but=3)
@pytest.mark.parametrize("bandwidth_bps", [10 * GBPS, 100 * GBPS])
@pytest.mark.parametrize(
    ("way", "framing"), [("switchml", SUM_FRAMING), ("libra, 4 servers", SUM_FRAMING), ("atp, 4 servers", PART_FRAMING)]
)
def test_switches_sum_at_line_rate_whatever_the_workers(way: str, framing: Framing, bandwidth_bps: int) -> None:
    found = [sums.values_per_second(way, workers, bandwidth_bps) for workers in (2, 16, 64)]
    assert found == pytest.approx([sums.line_rate(bandwidth_bps, framing.header_bytes)] * 3, rel=0.03)


def test_the_line_rate_of_switchml_is_that_of_its_own_packets() -> None:
    rates = [sums.line_rate(gbps * GBPS, sums.SWITCHML_OVERHEAD_BYTES) / 1e6 for gbps in (10, 100)]
    assert rates == pytest.approx([289.3, 2893], rel=0.001)


@pytest.mark.parametrize("workers", [4, 16])
def test_rings_and_servers_move_more_bytes_the_more_workers_there_are(workers: int) -> None:
    # Values of 4 bytes in packets of 9,000, each (n - 1) / n times out and as often in.
    most = 10 * GBPS / 8 / 4 * 8968 / (8968 + 128) * workers / (2 * (workers - 1))
    for way in ("ring", "servers on all hosts"):
        assert 0.9 * most < sums.values_per_second(way, workers, 10 * GBPS) < 1.03 * most
    ours = sums.values_per_second("switchml", workers, 10 * GBPS)
    assert ours > 1.3 * sums.values_per_second("ring", workers, 10 * GBPS)
    four = [sums.values_per_second("4 servers", count, 10 * GBPS) for count in (workers, 2 * workers)]
    assert four[0] > 1.8 * four[1]


def test_more_memory_leaves_less_to_servers(two_jobs: list[str]) -> None:
    found = [sums.shared("atp", slots, two_jobs) for slots in (2, 8, 32, 128)]
    whole = [each.whole for each in found if each is not None and each.whole is not None]
    assert whole == sorted(whole)
    assert whole[0] < 0.5
    assert whole[-1] > 0.97
    times = [each.iteration_ms for each in found if each is not None]
    assert times[0] > 1.5 * times[-1]


def test_with_next_to_no_memory_only_shared_cells_work(two_jobs: list[str]) -> None:
    assert sums.shared("tensorexpress+sum:sum=front", 1, two_jobs) is None
    assert sums.shared("tensorexpress+sum:sum=hashed", 1, two_jobs) is not None


def test_preemption_keeps_more_of_what_is_urgent(two_jobs: list[str]) -> None:
    rows = [line for line in sums.memory((4,), two_jobs) if "hashed" in line or "preemption" in line]
    with_it, without = (float(row.split("|")[2].split()[0]) for row in rows)
    assert with_it < without


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


def on_page(first: str, after: str = "") -> list[str]:
    """Return the cells of a row of the page, by its first one, in the table after some words."""
    start = next(number for number, line in enumerate(PAGE) if after in line)
    return cells(next(line for line in PAGE[start:] if line.startswith(f"| {first} |")))


def test_the_page_has_the_rates_that_the_benchmark_prints() -> None:
    for gbps in (10, 100):
        for way in ("switchml", "ring"):
            row = on_page(way, f"{gbps} Gbps, M values a second")
            for column, workers in ((1, 2), (3, 8)):
                assert row[column] == f"{sums.values_per_second(way, workers, gbps * GBPS) / 1e6:.0f}"


@rest()
def test_the_page_has_the_memory_that_the_benchmark_prints() -> None:
    found = sums.shared("atp", 8)
    assert found is not None
    expected = f"{found.iteration_ms:.1f} ({found.whole:.0%}, {found.packets:.1f})"
    assert on_page("`atp`", "Two jobs")[on_page("slots").index("8")] == expected


@rest()
def test_the_page_has_the_models_that_the_benchmark_prints() -> None:
    *_, row = sums.zoo(["inception-v3"], [10])
    assert on_page("inception-v3, 10 Gbps") == cells(row)


def test_the_page_has_the_hot_rows_that_the_benchmark_prints() -> None:
    found = [line for line in sums.hot() if line.startswith("|")]
    assert len(found) == len(sums.HOT_WORKERS) * (2 + len(sums.SKEWS))
    assert set(found) <= set(PAGE)


def test_the_page_has_the_simulated_rows_that_the_benchmark_prints() -> None:
    *_, row = sums.rows([1.5], [8])
    assert on_page("8, 1.5") == cells(row)


def test_hot_rows_bring_more_the_more_skew_memory_and_workers() -> None:
    for least, more in (((0.8, 8), (1.5, 8)), ((1.05, 8), (1.05, 64))):
        assert sums.hot_rows(*least, 10**6).gain < sums.hot_rows(*more, 10**6).gain
    small, large = (sums.hot_rows(1.05, 64, memory) for memory in (10**6, 10**7))
    assert small.gain < large.gain
    assert small.used_bytes <= 10**6 < large.used_bytes <= 10**7
