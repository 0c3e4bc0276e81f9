"""`tensorexpress hot`: the table, JSON, CSV and figure of hot keys say what the functions behind them do."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.pages import DOCS, run_blocks
from support.thorough import rest

from tensorexpress.cli import main
from tensorexpress.hot_keys import RowExchange, identify, packets_in
from tensorexpress.lookups import read_lookups
from tensorexpress.results.hot_plot import draw_hot
from tensorexpress.results.hot_report import as_json, as_table, study_of_model, study_of_sample
from tensorexpress.sparse import SparseTable, expected_rows

LOOKUPS = Path(__file__).parents[1] / "examples" / "lookups.csv"
MODEL = ("--keys", "10000000", "--skew", "1.05", "--lookups", "26000")


def hot(*arguments: object) -> str:
    result = CliRunner().invoke(main, ["hot", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


def study(workers=8, servers=4, memory_bytes=64_000, width=16):
    return study_of_sample(read_lookups(LOOKUPS), RowExchange(width, workers, servers), memory_bytes)


def test_hot_keys_are_written_as_a_sample_that_reads_back(tmp_path):
    hot(LOOKUPS, "--memory", "64 KB", "-o", tmp_path / "keys.csv")
    written, sample = read_lookups(tmp_path / "keys.csv"), read_lookups(LOOKUPS)
    found = identify(sample, study().best.hot)
    rows = [f"{key},{count}" for key, count in zip(found.keys, found.counts, strict=True)]
    assert (tmp_path / "keys.csv").read_text().splitlines() == ["key,count", *rows]
    assert set(written.keys.tolist()) == set(found.keys.tolist())
    assert hot(LOOKUPS, "--memory", "64 KB", "-o", "-").splitlines() == ["key,count", *rows]


def test_the_json_has_the_numbers_of_the_functions():
    document = json.loads(hot(LOOKUPS, "--memory", "64 KB", "--json", "-"))
    assert document == json.loads(json.dumps(as_json(study())))
    assert (document["keys"], document["batches_of_sample"], document["lookups"]) == (1495, 40, 250)
    assert [row["packets"] for row in document["table"]] == sorted({row["packets"] for row in document["table"]})
    best = min(document["table"], key=lambda row: row["busiest_bytes"])
    assert best == document["best"]
    assert document["best"]["hot"] == 96
    found = identify(read_lookups(LOOKUPS), 96)
    assert best["of_lookups"] == pytest.approx(found.of_lookups)
    assert best["of_rows"] == pytest.approx(found.of_rows)
    assert best["held_out"] == pytest.approx(found.held_out._asdict())
    assert document["connections"]["servers"] == {"of_worker": 4, "of_server": 8, "together": 32}
    assert document["connections"]["switch"] == {"of_worker": 1, "of_server": 1, "together": 12}
    layout = document["layout"]
    assert layout["by_use"]["ideal"] <= layout["by_use"]["sorted"] <= layout["by_heat"]["sorted"]


def test_a_model_is_what_a_sample_of_it_says():
    document = json.loads(hot(*MODEL, "--json", "-"))
    table = SparseTable(10**7, 16, 26000, 1.05)
    assert document["rows_of_a_worker"] == pytest.approx(expected_rows(table))
    assert document["rows_of_all_workers"] == pytest.approx(expected_rows(table, 8))
    assert document["table"][0]["server_bytes"] == pytest.approx(8 * expected_rows(table) * 72 * 9038 / 8908)
    assert all(row["held_out"] is None for row in document["table"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((LOOKUPS, "--memory", "64 KB"), "Have the switch sum the 96 hottest rows, in 6 slots (12.67 KB)"),
        ((LOOKUPS, "--memory", "64 KB"), "More memory does not pay: a worker touches row 97 in"),
        ((LOOKUPS, "--memory", "3 KB"), "Memory is the limit: with 12.67 KB for 96 rows"),
        (MODEL, "More memory gains little: with"),
        (("--keys", 100, "--skew", 0, "--lookups", 1), "Leave all rows to the servers"),
        ((LOOKUPS,), "As many keys from the earlier half of batches cover"),
        ((LOOKUPS,), "As a layer of a workload: keys 1495, width 16, lookups 250, skew 1.0"),
        ((LOOKUPS, "--workers", 16, "--servers", 2), "servers alone take 2 at a worker and 16 at a server, 32 in all."),
    ],
)
def test_notes_say_what_to_do(arguments, said):
    assert said in hot(*arguments)


def test_a_sample_whose_keys_change_is_told_of(tmp_path):
    rows = [f"{batch},{(batch // 10) * 1000 + key}" for batch in range(20) for key in range(64)]
    (tmp_path / "drift.csv").write_text("\n".join(["batch,key", *rows]))
    said = hot(tmp_path / "drift.csv")
    assert "cover 0.0% (0.0% to 0.0% with 95 % confidence) of the later half." in said
    assert "That is less: the sample is short, or its keys change." in said


def test_one_lookup_is_too_little_to_hold_out_any(tmp_path):
    (tmp_path / "one.csv").write_text("key,count\n5,1\n")
    said = hot(tmp_path / "one.csv", "--lookups", 9, "--workers", 100, "--servers", 1)
    assert "The sample is too short to hold half of it out" in said


@given(st.integers(1, 10**6), st.integers(1, 10**4), st.floats(0, 3), st.integers(1, 600), st.integers(2112, 10**7))
@example(keys=1117, lookups=125, skew=0.05859375, width=225, memory_bytes=2112)
@settings(max_examples=30, deadline=None)
def test_the_best_of_a_table_is_in_it_and_within_the_memory(keys, lookups, skew, width, memory_bytes):
    exchange = RowExchange(width, 8, 4)
    found = study_of_model(SparseTable(keys, width, lookups, skew), exchange, memory_bytes)
    assert found.best in [row.traffic for row in found.rows]
    assert found.best.packets <= packets_in(memory_bytes)
    least = min(row.traffic.busiest_bytes for row in found.rows)
    assert found.best.busiest_bytes == pytest.approx(least)
    assert found.best_of_all.busiest_bytes <= found.best.busiest_bytes * (1 + 1e-9)
    lines = as_table(found).splitlines()
    assert [line.endswith("best") for line in lines].count(True) == 1
    assert all(len(line) <= 120 for line in lines[:-4])


@rest(but=1)
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_figure_is_the_same_every_time(tmp_path, suffix):
    for name in ("one", "other"):
        hot(LOOKUPS, "--memory", "64 KB", "--plot", tmp_path / f"{name}.{suffix}")
    assert (tmp_path / f"one.{suffix}").read_bytes() == (tmp_path / f"other.{suffix}").read_bytes()


def test_the_figure_draws_what_the_functions_say():
    found = study()
    upper, lower = draw_hot(found).axes
    curves = {line.get_label(): line for axes in (upper, lower) for line in axes.get_lines()}
    for label, value in (
        ("of lookups", found.best.of_lookups),
        ("of rows sent", found.best.of_rows),
        ("bytes that servers are spared", found.spared(found.best)),
        ("of lookups, in the half held out", found.at(found.best).held_out.of_lookups),
        ("a worker's link", found.best.worker_bytes),
        ("a server's link", found.best.server_bytes / 4),
    ):
        curve = dict(zip(*curves[label].get_data(), strict=True))
        assert curve[found.best.memory_bytes] == pytest.approx(value)


def test_the_page_runs(monkeypatch):
    monkeypatch.chdir(DOCS.parent)
    run_blocks((DOCS / "sparse.md").read_text())
