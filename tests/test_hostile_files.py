"""Files that others wrote: whatever is changed in a plan, a trace or a calibration, it is refused in one line or sound.

Every mutation puts a value into a document where another one was. Sound is what reads back as the same once it is
written again, and what the functions that work on it take without an error.
"""

from __future__ import annotations

import copy
import io
import json
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.thorough import examples

from tensorexpress import calibration as calibrations
from tensorexpress.calibration import Calibration, calibrate_scenario, read_calibration
from tensorexpress.errors import InputError
from tensorexpress.files import parse_json, read_json
from tensorexpress.plan import make_plan
from tensorexpress.plan_file import plan_from_json, plan_text, plan_to_json, read_plan
from tensorexpress.policy import POLICIES
from tensorexpress.results.chrome_trace import to_chrome
from tensorexpress.results.plan_report import as_table
from tensorexpress.scenario import read_scenario
from tensorexpress.sim.run import simulate
from tensorexpress.trace import measure_job
from tensorexpress.trace_file import read_trace, write_trace
from tensorexpress.workload import Layer, Workload, read_csv

SCENARIO = read_scenario(
    overrides=[
        "job.model=alexnet",
        "job.workers=2",
        "job.servers=1",
        "iterations=1",
        "warmup=0",
        "job.1.architecture=ring",
        "job.1.workers=2",
        "job.1.servers=0",
        "job.1.model=alexnet",
        "background.0.src=h0",
        "background.0.dst=h1",
        "background.0.rate=1 Mbps",
        "background.0.at=1 us",
        "background.0.until=1 s",
        "compute.stragglers.h0=2.0",
        "change.0.link=h0-s0",
        "change.0.rate=1 Gbps",
        "change.0.until=1 ms",
        "change.1.link=s0>h1",
        "change.1.share=0.5",
        "change.2.worker=h0",
        "change.2.factor=2.5",
        "change.2.at=1 ms",
        "change.3.worker=h1",
        "change.3.factor=0.5",
        "change.3.at_iteration=0",
        "change.3.until_iteration=1",
    ]
)
SMALL = Workload("small", tuple(Layer(f"layer{i}", 20_000, 10**8, 10**8) for i in range(3)))
PLAN = make_plan(
    replace(SCENARIO, jobs=tuple(replace(job, workload=SMALL) for job in SCENARIO.jobs)), POLICIES["tensorexpress"]
)
DOCUMENT = json.loads(plan_text(PLAN))
CALIBRATION = Calibration("embedded", 40_000_000, 0.99, 10**8, 10**3, 10**8, 10**3, 10**8, 1)

#: What mutations put in place of a value.
VALUES: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(
        [None, True, False, "", "NaN", "1", "a\nb", 0, -1, 1, 0.5, 2**31, 2**53 + 1, 2**63, -(2**63), 10**30, 10**400]
    ),
    st.sampled_from([float("1e308"), -0.0, [], {}, [[]], [0], {"a": 1}, "x" * 300, "\ud800", "\x1b[2J"]),
    st.integers(-3, 40),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=5),
)


def paths(node: Any, so_far: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value of a document; of long lists the ends, which stand for all."""
    if isinstance(node, dict):
        steps: list[Any] = list(node)
    else:
        steps = list(range(len(node)))[:2] + list(range(len(node)))[-1:] if isinstance(node, list) else []
    for step in steps:
        yield (*so_far, step)
        yield from paths(node[step], (*so_far, step))


def changed(document: Any, path: tuple[Any, ...], how: str, value: Any) -> Any:
    document = copy.deepcopy(document)
    node = document
    for step in path[:-1]:
        node = node[step]
    if how == "remove":
        del node[path[-1]]
    elif how == "add" and isinstance(node, dict):
        node[f"{path[-1]}2"] = value
    elif how == "add":
        node.append(value)
    else:
        node[path[-1]] = value
    return document


def is_one_line(error: InputError) -> None:
    assert str(error).isprintable()


HOW = st.sampled_from(["replace", "replace", "replace", "remove", "add"])


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from(list(paths(DOCUMENT))), HOW, VALUES)
@example(("jobs", 0, "tensors", 0, "bytes"), "replace", "NaN")
@example(("jobs", 0, "slices", "bytes", 0), "replace", 0)
@example(("scenario", "transport", "header_bytes"), "replace", 10**6)
@example(("scenario", "jitter"), "replace", 10**400)
@example(("scenario", "jobs", 0, "workload", "layers", 0, "params"), "replace", -1)
@example(("scenario", "cluster", "links", 0, "ports", 0), "replace", True)
def test_a_changed_plan_is_refused_in_one_line_or_is_a_plan(path: tuple[Any, ...], how: str, value: Any) -> None:
    document = changed(DOCUMENT, path, how, value)
    try:
        plan = plan_from_json(document)
    except InputError as error:
        is_one_line(error)
        return
    assert plan_from_json(parse_json(plan_text(plan))) == plan
    assert as_table(plan)


def test_no_single_number_of_a_plan_is_ignored() -> None:
    """Text in place of any number is refused, wherever that number stands."""
    numbers = [path for path in paths(DOCUMENT) if isinstance(at(DOCUMENT, path), int | float)]
    assert len(numbers) > 100
    for path in numbers:
        with pytest.raises(InputError):
            plan_from_json(changed(DOCUMENT, path, "replace", "NaN"))


def at(node: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        node = node[step]
    return node


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "a.trace"
    write_trace(path, simulate(PLAN), PLAN)
    return path


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_members(path: Path, content: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)


def is_read_or_refused(path: Path) -> None:
    try:
        trace, plan = read_trace(path)
    except InputError as error:
        is_one_line(error)
        return
    again = path.with_name("again.trace")
    write_trace(again, trace, plan)
    assert read_trace(again)[1] == plan
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        for job in trace.jobs:
            measure_job(job, trace.warmup)
    json.dumps(to_chrome(trace))


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), HOW, VALUES)
def test_a_changed_header_of_a_trace_is_refused_in_one_line(
    trace_file: Path, tmp_path: Path, data: st.DataObject, how: str, value: Any
) -> None:
    content = members(trace_file)
    header = json.loads(content["trace.json"])
    header = changed(header, data.draw(st.sampled_from(list(paths(header)))), how, value)
    path = tmp_path / "b.trace"
    write_members(path, {**content, "trace.json": json.dumps(header).encode()})
    is_read_or_refused(path)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.sampled_from([-1, 2**62, -(2**63), 2**63 - 1, 7, 10**6]))
def test_a_changed_number_in_an_array_of_a_trace_is_refused_or_harmless(
    trace_file: Path, tmp_path: Path, data: st.DataObject, value: int
) -> None:
    content = members(trace_file)
    name = data.draw(st.sampled_from([name for name in content if name.endswith(".npy")]))
    array = bytearray(content[name])
    start = 10 + int.from_bytes(array[8:10], "little")
    place = start + 8 * data.draw(st.integers(0, (len(array) - start) // 8 - 1))
    array[place : place + 8] = value.to_bytes(8, "little", signed=True)
    path = tmp_path / "b.trace"
    write_members(path, {**content, name: bytes(array)})
    is_read_or_refused(path)


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_trace_of_which_bytes_are_changed_or_lost_is_refused_in_one_line(
    trace_file: Path, tmp_path: Path, data: st.DataObject
) -> None:
    content = bytearray(trace_file.read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        # The archive's directory stands at its end; there changes do most.
        place = data.draw(
            st.one_of(st.integers(0, len(content) - 1), st.integers(len(content) - 700, len(content) - 1))
        )
        content[place] ^= data.draw(st.integers(1, 255))
    path = tmp_path / "b.trace"
    path.write_bytes(content)
    is_read_or_refused(path)


def test_a_trace_that_unpacks_to_gigabytes_is_refused_before_it_does(trace_file: Path, tmp_path: Path) -> None:
    content = members(trace_file)
    path = tmp_path / "bomb.trace"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            if name != "links.npy":
                archive.writestr(name, data)
        with archive.open("links.npy", "w", force_zip64=True) as member:
            for _ in range(300):
                member.write(bytes(2**20))
    with pytest.raises(InputError, match=r"links\.npy in it is longer than"):
        read_trace(path)


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), HOW, VALUES)
def test_a_changed_calibration_is_refused_in_one_line_or_is_one(
    tmp_path: Path, data: st.DataObject, how: str, value: Any
) -> None:
    document = {"format": calibrations.FORMAT, "version": calibrations.VERSION, "measured": asdict(CALIBRATION)}
    document = changed(document, data.draw(st.sampled_from(list(paths(document)))), how, value)
    path = tmp_path / "c.json"
    path.write_text(json.dumps(document))
    try:
        calibration = read_calibration(path)
        if calibration.rate_bps >= 10**10:
            make_plan(calibrate_scenario(PLAN.scenario, calibration), PLAN.policy)
    except InputError as error:
        is_one_line(error)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": NaN}', "NaN is no number in JSON"),
        ('{"a": -Infinity}', "-Infinity is no number in JSON"),
        ('{"a": 1e999}', "is too large a number"),
        ('{"a": 1' + "0" * 5000 + "}", "is not JSON"),
        ('{"a": 1, "a": 2}', "an object has two members 'a'"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": "\x1b"}', "is not JSON"),
    ],
)
def test_json_that_says_two_things_or_none_is_refused_in_one_line(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    for reader in (read_plan, read_calibration, lambda path: read_json(path, "give another")):
        with pytest.raises(InputError) as refusal:
            reader(path)
        assert reason in str(refusal.value)
        assert str(refusal.value).isprintable()


def test_a_file_without_an_end_is_not_read_to_its_end() -> None:
    for reader in (read_plan, read_calibration, read_csv):
        with pytest.raises(InputError, match="is larger than"):
            reader("/dev/zero")
    with pytest.raises(InputError, match="is a device or a pipe"):
        read_trace("/dev/zero")


def test_what_was_written_before_is_still_read() -> None:
    text = io.StringIO(plan_text(PLAN))
    assert plan_from_json(json.load(text)) == PLAN
    assert plan_to_json(PLAN) == DOCUMENT
