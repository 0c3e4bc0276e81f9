"""Reports: the page holds the very numbers of --json, nothing from a file becomes markup, and large runs stay small."""

from __future__ import annotations

import base64
import doctest
import hashlib
import json
import re
import webbrowser
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from support.thorough import rest

from tensorexpress.cli import main
from tensorexpress.notes_file import read_notes, write_notes
from tensorexpress.results import compare_report
from tensorexpress.results.compare import METRICS, TracedRun, compare
from tensorexpress.results.page import charts, markup, timeline_data
from tensorexpress.results.page.contents import Case, Contents
from tensorexpress.results.page.document import page
from tensorexpress.results.page.markup import joined, tag
from tensorexpress.results.page.timeline_data import packed, window_of
from tensorexpress.results.side_by_side import Result as PolicyResult
from tensorexpress.results.side_by_side import side_by_side
from tensorexpress.scenario import read_scenario
from tensorexpress.sim.predict import predict
from tensorexpress.trace_file import read_trace, write_trace

#: What is simulated here is small, and this engine has nothing to load or to compile.
READABLE = ("--engine", "simpy")

VOID = {"meta", "br", "hr", "input"}

#: What would be run if any part of it became markup.
HOSTILE = "</pre></script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">'\"&"


class Page(HTMLParser):
    """The elements of a page: a stack that must close as it opened, and all cells, blocks and attributes."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.blocks: dict[str, str] = {}
        self.text = ""
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"an attribute twice in {tag}"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        tag, attributes = self.open[-1] if self.open else ("", {})
        if tag == "script" and attributes.get("type") == "application/json":
            self.blocks[str(attributes["id"])] = data
        elif tag == "script":
            self.scripts.append(data)
        elif tag == "style":
            self.styles.append(data)
        else:
            self.text += data

    def json(self, name: str) -> Any:
        return json.loads(self.blocks[name])


def cli(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


@pytest.fixture(scope="module")
def scenario_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("scenario")
    layers = [
        "layer_index,numel,forward_ns,backward_ns",
        "0,5000,100000,200000",
        "1,60000,1000,2000",
        "2,20000,700,900",
    ]
    (directory / "small.csv").write_text("\n".join(layers))
    path = directory / "small.toml"
    path.write_text(
        f"# {HOSTILE}\niterations = 2\npolicies = ['fifo', 'tensorexpress:slice=20 KB']\n"
        "[cluster]\nbandwidth = '1 Gbps'\n"
        f"[job]\nmodel = ''\ncsv = '{directory / 'small.csv'}'\nworkers = 3\nservers = 2\n"
    )
    return path


@pytest.fixture(scope="module")
def predicted(scenario_file: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], Path]:
    """Return a page on a scenario, the JSON of `predict`, and its traces."""
    directory = tmp_path_factory.mktemp("predicted")
    saved = ("--json", directory / "out.json", "--save", directory / "traces")
    done = cli("predict", scenario_file, *saved, *READABLE)
    assert done.exit_code == 0, done.output
    done = cli("report", scenario_file, "-o", directory / "report.html", "--explain", *READABLE)
    assert done.exit_code == 0, done.output
    assert re.fullmatch(r".*report.html: \d+ KB, 1 scenario predicted\n", done.output)
    return directory / "report.html", json.loads((directory / "out.json").read_text()), directory / "traces"


def as_measured(traces: Path, directory: Path) -> Path:
    """Write traces again as if they were measured, in which all took a tenth longer."""
    directory.mkdir()
    for path in traces.glob("*.trace"):
        trace, plan = read_trace(path)
        times = ("forward_ps", "backward_ps", "forward_start_ps", "backward_start_ps", "updated_ps")
        jobs = tuple(replace(job, **{n: getattr(job, n) * 11 // 10 for n in times}) for job in trace.jobs)
        write_trace(directory / path.name, replace(trace, source="measured", jobs=jobs), plan)
    return directory


def test_the_modules_examples_are_true() -> None:
    for module in (markup, charts, timeline_data):
        assert doctest.testmod(module).failed == 0


def test_the_table_holds_the_very_numbers_of_json(predicted: tuple[Path, dict[str, Any], Path]) -> None:
    path, wanted, _ = predicted
    found = Page(path.read_text())
    assert found.json("results0") | {"explanation": None} == wanted | {"explanation": None}
    cells = [attributes for tag, attributes in found.elements if tag == "td" and "data-column" in attributes]
    columns = {str(cell["data-column"]) for cell in cells}
    assert {"iteration_ms", "blocking_ms", "latency_p99_ms", "speedup", "of_optimal", "utilisation"} <= columns
    for cell in cells:
        policy = wanted["policies"][cell["data-policy"]]
        job = policy["jobs"][cell["data-job"]]
        flat = {**job, **{f"latency_{kind}_ms": value for kind, value in job["latency_ms"].items()}}
        flat |= {"utilisation": policy["utilisation"]["share"]}
        flat |= {name: policy[name] for name in ("drops", "retransmissions")}
        assert float(str(cell["data-value"])) == flat[str(cell["data-column"])]
    assert len(cells) == len(columns) * len(wanted["policies"])
    assert wanted["notes"][0] in found.text


def test_an_explanation_is_that_of_explain(
    predicted: tuple[Path, dict[str, Any], Path], scenario_file: Path, tmp_path: Path
) -> None:
    found = Page(predicted[0].read_text())
    chosen = "tensorexpress:slice=20 KB"
    done = cli("explain", scenario_file, "--policy", chosen, "--json", tmp_path / "out.json", *READABLE)
    assert done.exit_code == 0, done.output
    wanted = json.loads((tmp_path / "out.json").read_text())
    assert found.json("results0")["explanation"] == wanted
    assert wanted["jobs"]["job0"]["summary"] in found.text


def test_traces_give_the_page_that_their_scenario_gives(
    predicted: tuple[Path, dict[str, Any], Path], tmp_path: Path
) -> None:
    path, _, traces = predicted
    done = cli("report", traces, "-o", tmp_path / "traces.html", "--no-explain")
    assert done.exit_code == 0, done.output
    found, wanted = Page((tmp_path / "traces.html").read_text()), Page(path.read_text())
    assert found.json("results0")["policies"] == wanted.json("results0")["policies"]
    assert found.blocks["timeline-stream"] == wanted.blocks["timeline-stream"]


def test_measured_runs_stand_beside_their_predictions(
    predicted: tuple[Path, dict[str, Any], Path], tmp_path: Path
) -> None:
    measured = as_measured(predicted[2], tmp_path / "measured")
    write_notes(measured, ["the machine was 99% busy", HOSTILE])
    done = cli("report", measured, "--predict", "-o", tmp_path / "both.html", *READABLE)
    assert done.exit_code == 0, done.output
    assert "1 scenario measured, 1 scenario predicted" in done.output
    found = Page((tmp_path / "both.html").read_text())
    assert "the machine was 99% busy" in found.text
    assert HOSTILE in found.text
    pairs = []
    for name in ("fifo.trace", "tensorexpress:slice=20%20KB.trace"):
        runs = [
            TracedRun(trace.policy, trace, plan)
            for trace, plan in map(read_trace, (measured / name, predicted[2] / name))
        ]
        pairs.append(compare(*runs))
    assert found.json("comparisons") == [compare_report.as_json([pair]) for pair in pairs]
    cells = [attributes for tag, attributes in found.elements if tag == "td" and "data-metric" in attributes]
    wanted = [
        time_ps / 1e9
        for pair in pairs
        for metric in METRICS
        for time_ps in (pair.jobs[0].metrics[metric].reference_ps, pair.jobs[0].metrics[metric].other_ps)
    ]
    assert [float(str(cell["data-value"])) for cell in cells] == wanted


def test_two_scenarios_stand_side_by_side(scenario_file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(scenario_file.read_text().replace("workers = 3", "workers = 2"))
    done = cli("report", scenario_file, other, "-o", tmp_path / "two.html", "--no-explain", *READABLE)
    assert done.exit_code == 0, done.output
    found = Page((tmp_path / "two.html").read_text())
    assert len([attributes for _, attributes in found.elements if attributes.get("class") == "timeline"]) == 2
    rows = [attributes for tag, attributes in found.elements if attributes.get("data-column") == "iteration_ms"]
    values = [str(each["data-value"]) for each in rows]
    # Once side by side, and once in the table of its own.
    assert values[:4] == values[4:]
    anchors = {attributes.get("href") for tag, attributes in found.elements if tag == "a"}
    assert anchors == {"#side-by-side", "#case0", "#case1"}
    ids = [attributes["id"] for _, attributes in found.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    assert {str(anchor)[1:] for anchor in anchors} <= set(ids)


@rest()
def test_a_sweep_says_at_the_scenarios_own_value_what_the_scenario_says(
    predicted: tuple[Path, dict[str, Any], Path], scenario_file: Path, tmp_path: Path
) -> None:
    arguments = ("--vary", "cluster.bandwidth=1,100Gbps", "--no-explain", "-o", tmp_path / "page.html")
    done = cli("report", scenario_file, *arguments, *READABLE)
    assert done.exit_code == 0, done.output
    found = Page((tmp_path / "page.html").read_text())
    sweep = found.json("results0")["sweep"]
    assert all(sentence in found.text for sentence in sweep["summary"])
    own = {row["policy"]: row["iteration_ms"] for row in sweep["rows"] if row["cluster.bandwidth"] == "1 Gbps"}
    assert own == {name: policy["iteration_ms"] for name, policy in predicted[1]["policies"].items()}
    cells = [attributes for tag, attributes in found.elements if attributes.get("data-column") == "iteration_ms"]
    # After the table of the scenario comes that of all points.
    assert [float(str(cell["data-value"])) for cell in cells[2:]] == [row["iteration_ms"] for row in sweep["rows"]]


def test_links_are_as_busy_as_the_trace_says(predicted: tuple[Path, dict[str, Any], Path]) -> None:
    found = Page(predicted[0].read_text())
    cells = [float(str(attributes["data-busy"])) for _, attributes in found.elements if "data-busy" in attributes]
    # First of the policy that the report speaks of, then of the baseline.
    wanted = []
    for name in ("tensorexpress:slice=20%20KB.trace", "fifo.trace"):
        trace, _ = read_trace(predicted[2] / name)
        wanted += sorted((trace.links["busy_ps"] / trace.end_ps).tolist(), reverse=True)[:10]
    assert cells == wanted


def test_nothing_from_a_file_becomes_markup(predicted: tuple[Path, dict[str, Any], Path]) -> None:
    text = predicted[0].read_text()
    found = Page(text)
    assert HOSTILE in found.text  # a comment of the scenario's file, shown as it is
    assert len(found.scripts) == 1
    assert not [tag for tag, _ in found.elements if tag in ("img", "iframe", "object", "link", "base", "form")]
    assert not [key for _, attributes in found.elements for key in attributes if key.startswith("on") or key == "style"]


def test_a_page_admits_its_own_script_and_style_alone(predicted: tuple[Path, dict[str, Any], Path]) -> None:
    found = Page(predicted[0].read_text())
    (policy,) = [
        str(attributes["content"])
        for tag, attributes in found.elements
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for kind, texts in (("script", found.scripts), ("style", found.styles)):
        digest = base64.b64encode(hashlib.sha256("".join(texts).encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    # What is opened when a button is pressed is the one address of another site.
    assert set(re.findall(r"https?://[^\s\"'<)]+", "".join(found.scripts))) == {
        "https://ui.perfetto.dev",
        "http://www.w3.org/2000/svg",
    }
    addresses = [
        value for tag, attributes in found.elements for key, value in attributes.items() if key in ("src", "href")
    ]
    assert all(str(address).startswith("#") for address in addresses)


@given(st.text(), st.text())
def test_any_text_is_text_again_when_a_page_is_read(text: str, attribute: str) -> None:
    # HTML has no way to write these two.
    text, attribute = (each.replace("\0", "").replace("\r", "") for each in (text, attribute))

    class Reader(HTMLParser):
        seen: list[Any] = []  # noqa: RUF012

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.seen.append((tag, attrs))

        def handle_data(self, data: str) -> None:
            self.seen.append(data)

    reader = Reader()
    reader.seen = []
    reader.feed(str(joined(tag("p", text, title=attribute))))
    reader.close()
    assert reader.seen[0] == ("p", [("title", attribute)])
    assert "".join(reader.seen[1:]) == text
    block = markup.data_block("x", {"y": [text]})
    assert block.count("<") == 2
    assert json.loads(block[block.index(">") + 1 : block.rindex("<")]) == {"y": [text]}


def unpacked(stream: str) -> np.ndarray:
    planes = np.frombuffer(zlib.decompress(base64.b64decode(stream)), np.uint8).reshape(4, -1)
    unsigned = np.ascontiguousarray(planes.T).view("<u4").ravel().astype(np.int64)
    return np.asarray((unsigned >> 1) ^ -(unsigned & 1))


def test_timelines_hold_what_the_trace_holds(scenario_file: Path) -> None:
    prediction = predict(read_scenario(scenario_file), ["fifo"], engine="simpy")
    header, stream = packed(Contents((Case(prediction),)))
    numbers, quantum_ps = unpacked(stream), header["quantum_ps"]
    job = prediction.results["fifo"].trace.jobs[0]
    (run,) = header["runs"]
    assert (run["first"], run["iterations"], len(run["workers"])) == (0, 3, 3)
    passes, layers = job.forward_ps.shape[0], job.forward_ps.shape[2]
    starts = np.cumsum(numbers[: passes * layers])
    lengths = numbers[passes * layers : 2 * passes * layers]
    assert np.abs(starts * quantum_ps - job.forward_start_ps[:, 0].ravel()).max() <= quantum_ps // 2
    assert np.abs((starts + lengths) * quantum_ps - job.forward_end_ps[:, 0].ravel()).max() <= quantum_ps // 2


def test_large_runs_are_held_in_less_detail_then_few_iterations_then_few_workers(scenario_file: Path) -> None:
    scenario = read_scenario(scenario_file, ["job.shard=1 KB"])
    trace = predict(scenario, ["fifo"], engine="simpy").results["fifo"].trace
    # In an iteration: layers forward and backward; tensors to and from both servers; the same, servers together.
    computed, exchanged, merged = 2 * 3 * 3, 2 * 3 * 3 * 2, 2 * 3 * 3
    everything = window_of(trace, 0, 3 * (computed + exchanged))
    assert (everything.first, everything.iterations, everything.is_merged) == (0, 3, False)
    together = window_of(trace, 0, 3 * (computed + exchanged) - 1)
    assert (together.first, together.iterations, together.is_merged) == (0, 3, True)
    two = window_of(trace, 0, 3 * (computed + merged) - 1)
    assert (two.first, two.iterations, len(two.workers)) == (1, 2, 3)
    one = window_of(trace, 0, (computed + merged) * 2 // 3)
    assert (one.first, one.iterations) == (1, 1)
    # Of few workers those are kept that stood still longest.
    order = np.argsort(-trace.jobs[0].blocking_ps[1:].sum(axis=0), kind="stable")
    assert one.workers == tuple(sorted(order[:2].tolist()))


def test_a_report_speaks_of_the_usual_policy_unless_another_is_notably_faster(scenario_file: Path) -> None:
    chosen = ["fifo", "p3", "tensorexpress", "ideal"]
    prediction = predict(read_scenario(scenario_file), chosen, engine="simpy")

    def taking(**times: float) -> Case:
        results = {
            name: replace(result, jobs=(replace(result.jobs[0], iteration_ps=times.get(name, 100.0)),))
            for name, result in prediction.results.items()
        }
        return Case(replace(prediction, results=results))

    assert taking(p3=99.5, ideal=50.0).spoken_of == ["fifo", "tensorexpress"]
    assert taking(p3=90.0).spoken_of == ["fifo", "p3"]
    alone = Case(replace(prediction, results={"p3": prediction.results["p3"]}))
    assert alone.spoken_of == ["p3"]


def test_a_trace_that_lies_about_times_still_gives_a_page(predicted: tuple[Path, dict[str, Any], Path]) -> None:
    trace, plan = read_trace(predicted[2] / "fifo.trace")
    job = trace.jobs[0]
    transfers = job.transfers.copy()
    transfers["delivered_ps"][0], transfers["bytes"][0] = 2**62, 2**62
    lying = replace(trace, jobs=(replace(job, transfers=transfers),))
    contents = Contents((Case(side_by_side([PolicyResult.of(plan, lying)])),))
    assert Page(page(contents)).blocks["timeline-stream"]


def test_the_same_contents_give_the_same_bytes(scenario_file: Path) -> None:
    contents = Contents((Case(predict(read_scenario(scenario_file), ["fifo"], engine="simpy"), ("a",), "b"),), "c")
    assert page(contents) == page(contents)


def test_predict_writes_the_page_too_and_opens_it(
    scenario_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: bool(opened.append(address)) or True)
    path = tmp_path / "page.html"
    done = cli("predict", scenario_file, "--policy", "fifo", "--report", path, "--open", *READABLE)
    assert done.exit_code == 0, done.output
    assert opened == [path.as_uri()]
    assert "predict" in Page(path.read_text()).text
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert cli("predict", scenario_file, "--policy", "fifo", "--open", *READABLE).exit_code == 0
    assert Path(opened[1].removeprefix("file://")).read_bytes()


def test_the_command_can_be_typed_again(predicted: tuple[Path, dict[str, Any], Path], scenario_file: Path) -> None:
    command = f"tensorexpress report {scenario_file} --output {predicted[0]} --engine simpy --explain"
    assert command in Page(predicted[0].read_text()).text


def test_notes_that_are_none_are_refused_in_a_line(
    predicted: tuple[Path, dict[str, Any], Path], tmp_path: Path
) -> None:
    for content, said in (
        ('{"format": "another"}', "accepted: format"),
        ('{"format": "tensorexpress notes", "version": 1}', "notes is None"),
    ):
        (tmp_path / "notes.json").write_text(content)
        done = cli("report", tmp_path, "-o", tmp_path / "out.html")
        assert done.exit_code == 2
        assert said in done.output
        assert not (tmp_path / "out.html").exists()


def test_notes_are_read_as_they_were_written(tmp_path: Path) -> None:
    assert read_notes(tmp_path) == ()
    write_notes(tmp_path, ["one", HOSTILE])
    assert read_notes(tmp_path) == ("one", HOSTILE)
