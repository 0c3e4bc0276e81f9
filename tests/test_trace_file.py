"""Trace files: a trace survives the way to a file and back, and what is no trace is refused with what to do."""

from __future__ import annotations

import json
import zipfile
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.strategies import plans
from support.thorough import examples

from tensorexpress.errors import PlanError
from tensorexpress.plan import Plan, make_plan
from tensorexpress.plan_file import plan_from_json
from tensorexpress.policy import POLICIES
from tensorexpress.scenario import read_scenario
from tensorexpress.sim import simulate
from tensorexpress.trace import JobTrace, Trace
from tensorexpress.trace_file import read_trace, write_trace


def equal(one: Any, other: Any) -> bool:
    """Whether two traces, or parts of traces, hold the same values of the same types."""
    if isinstance(one, Trace | JobTrace):
        return all(equal(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype) and np.array_equal(one, other)
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        return all(map(equal, one, other))
    return bool(type(one) is type(other) and one == other)


@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(plans())
def test_a_trace_read_back_is_the_trace_with_its_plan(tmp_path: Path, plan: Plan) -> None:
    trace = simulate(plan)
    write_trace(tmp_path / "a.trace", trace, plan)
    back, plan_back = read_trace(tmp_path / "a.trace")
    assert equal(back, trace)
    assert plan_back == plan


@pytest.fixture(scope="module")
def plan() -> Plan:
    scenario = read_scenario(overrides=["job.model=alexnet", "job.workers=2", "job.servers=1", "iterations=1"])
    return make_plan(scenario, POLICIES["fifo"])


@pytest.fixture(scope="module")
def trace(plan: Plan) -> Trace:
    return simulate(plan)


@pytest.fixture
def path(tmp_path: Path, trace: Trace, plan: Plan) -> Path:
    write_trace(tmp_path / "fifo.trace", trace, plan)
    return tmp_path / "fifo.trace"


def test_the_same_trace_gives_the_same_bytes(path: Path, trace: Trace, plan: Plan) -> None:
    before = path.read_bytes()
    write_trace(path, trace, plan)
    assert path.read_bytes() == before


def test_numpy_and_unzip_read_the_file_too(path: Path, trace: Trace, plan: Plan) -> None:
    with np.load(path) as columns:
        assert np.array_equal(columns["jobs/0/transfers"], trace.jobs[0].transfers)
    with zipfile.ZipFile(path) as archive:
        assert plan_from_json(json.loads(archive.read("plan.json"))) == plan


def refusal(path: Path) -> str:
    with pytest.raises(PlanError) as raised:
        read_trace(path)
    message = str(raised.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("content", [b"", b"{}", b"PK\x03\x04", b"\xff" * 1000])
def test_a_file_that_holds_something_else_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.trace"
    path.write_bytes(content)
    assert "make one with `tensorexpress run` or `tensorexpress predict --save`" in refusal(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "cannot be read (No such file or directory); make one with" in refusal(tmp_path / "none.trace")
    assert "cannot be read (Is a directory); make one with" in refusal(tmp_path)


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.floats(0, 1, exclude_max=True))
def test_a_part_of_a_trace_is_refused(path: Path, cut: float) -> None:
    whole = path.read_bytes()
    part = path.with_name("part.trace")
    part.write_bytes(whole[: int(cut * len(whole))])
    assert "only a part of one" in refusal(part)


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_byte_that_changed_is_noticed_or_means_nothing(path: Path, trace: Trace, place: float, flip: int) -> None:
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= flip
    damaged = path.with_name("damaged.trace")
    damaged.write_bytes(content)
    with suppress(PlanError):
        assert equal(read_trace(damaged)[0], trace)


def rewrite(path: Path, changes: dict[str, bytes | None]) -> None:
    """Write the file again with some members replaced, or left out for None; all checksums are right."""
    with zipfile.ZipFile(path) as archive:
        members: dict[str, bytes | None] = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**members, **changes}.items():
            if content is not None:
                archive.writestr(name, content)


def header_of(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        header: dict[str, Any] = json.loads(archive.read("trace.json"))
    return header


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "recipe"}, "accepted: format 'tensorexpress trace'"),
        ({"version": 1}, "version is 1; accepted: 2; make the trace again"),
        ({"warmup": True}, "warmup is True; accepted: a whole number from 0 to"),
        ({"end_ps": -1}, "end_ps is -1; accepted: a whole number from 0 to"),
        ({"hosts": "h0"}, "hosts is 'h0'; accepted: a list of texts"),
        ({"hosts": ["h0", "h1", "h9"]}, "hosts of the trace is ('h0', 'h1', 'h9') and of its plan ('h0', 'h1', 'h2')"),
        ({"policy": "p3"}, "policy of the trace is 'p3' and of its plan 'fifo'"),
        ({"source": None}, "source is None; accepted: a text"),
        ({"jobs": []}, "jobs is []; accepted: one for each of the plan's 1"),
        ({"jobs": [7]}, "jobs.0 is 7; accepted: an object"),
    ],
)
def test_a_header_that_is_wrong_is_refused_by_name(path: Path, changes: dict[str, Any], message: str) -> None:
    rewrite(path, {"trace.json": json.dumps({**header_of(path), **changes}).encode()})
    assert message in refusal(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trace.json": None}, "trace.json is missing in it"),
        ({"trace.json": b"["}, "trace.json in it is not JSON"),
        ({"trace.json": b"[" * 100_000}, "trace.json in it is not JSON"),
        ({"plan.json": b"{}"}, "format is None; accepted: 'tensorexpress plan'"),
        ({"links.npy": None}, "links.npy is missing in it"),
        ({"links.npy": b""}, "links.npy in it is no array of shape (6,) and version 2; make the trace again"),
        ({"links.npy": b"\x93NUMPY\x01\x00\x02\x00{("}, "links.npy in it is no array"),
    ],
)
def test_a_member_that_is_wrong_is_refused_by_name(path: Path, changes: dict[str, bytes | None], message: str) -> None:
    rewrite(path, changes)
    assert message in refusal(path)


def test_an_array_that_promises_more_than_it_holds_is_refused_before_memory_is_taken(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        transfers = archive.read("jobs/0/transfers.npy")
    header = header_of(path)
    count = header["jobs"][0]["transfers"]
    header["jobs"][0]["transfers"] = 10**15
    promised = transfers.replace(f"({count},)".encode(), b"(1000000000000000,)")
    rewrite(path, {"trace.json": json.dumps(header).encode(), "jobs/0/transfers.npy": promised})
    assert "jobs.0.transfers is 1000000000000000; accepted: the plan's 64 at most" in refusal(path)


def test_a_trace_of_another_plan_is_not_written(tmp_path: Path, trace: Trace, plan: Plan) -> None:
    other = replace(plan, scenario=replace(plan.scenario, iterations=2))
    with pytest.raises(PlanError, match=r"shape of jobs\.0\.forward_ps .* accepted: a trace with the plan"):
        write_trace(tmp_path / "a.trace", trace, other)
    assert not list(tmp_path.iterdir())
