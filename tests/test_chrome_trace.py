from __future__ import annotations

import doctest
import json
import math
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorexpress import chrome_trace
from tensorexpress.chrome_trace import merge_slices, to_chrome, worker_transfers, write_chrome
from tensorexpress.errors import InputError
from tensorexpress.graph import KINDS
from tensorexpress.plan import make_plan
from tensorexpress.policy import parse_policy
from tensorexpress.scenario import read_scenario
from tensorexpress.sim.run import simulate
from tensorexpress.trace import TRANSFER, measure_job

CSV = "layer_index,numel,forward_ns,backward_ns\n0,5000,10000,20000\n1,60000,10000.5,20000\n2,20000,7000.001,9000\n"


def scenario(tmp_path, *overrides):
    path = tmp_path / "small.csv"
    path.write_text(CSV)
    return read_scenario(None, ["job.model=''", f"job.csv={path}", "compute.jitter=0.1", *overrides])


def trace_of(scenario, policy="tensorexpress:slice=20 KB"):
    return simulate(make_plan(scenario, parse_policy(policy)), "simpy")


@pytest.fixture
def servers(tmp_path):
    # Workers stand in another order than their hosts, so that mixing up the two shows.
    return scenario(tmp_path, 'job.workers=["h4", "h0", "h2"]', 'job.servers=["h1", "h3"]')


@pytest.fixture
def ring(tmp_path):
    return scenario(tmp_path, "job.architecture=ring", "job.workers=3")


def slices(document, category):
    return [event for event in document["traceEvents"] if event["ph"] == "X" and event["cat"] == category]


def names(document, what):
    return {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in document["traceEvents"]
        if event["name"] == what
    }


def picoseconds(time_us):
    return round(time_us * 10**6)


def nanoseconds_in_perfetto(time_us):
    return int(time_us * 1000.0)


def all_numbers(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [number for item in value for number in all_numbers(item)]
    return [value] if isinstance(value, int | float) else []


@pytest.mark.parametrize("architecture", ["servers", "ring"])
def test_every_event_follows_the_format(architecture, request):
    shown = request.getfixturevalue(architecture)
    document = json.loads(json.dumps(to_chrome(trace_of(shown))))
    assert document["displayTimeUnit"] == "ms"
    for event in document["traceEvents"]:
        assert {"name", "ph", "pid", "tid", "ts", "args"} <= event.keys()
        assert event["ph"] in ("M", "X")
        assert type(event["pid"]) is type(event["tid"]) is int
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
    assert all(map(math.isfinite, all_numbers(document)))


@pytest.mark.parametrize("architecture", ["servers", "ring"])
def test_no_two_slices_of_a_track_overlap_in_perfetto_which_would_drop_them(architecture, request):
    shown = request.getfixturevalue(architecture)
    tracks = defaultdict(list)
    for event in to_chrome(trace_of(shown))["traceEvents"]:
        if event["ph"] == "X":
            start = nanoseconds_in_perfetto(event["ts"])
            tracks[event["pid"], event["tid"]].append((start, start + nanoseconds_in_perfetto(event["dur"])))
    for track in tracks.values():
        assert track == sorted(track)
        assert all(end <= start for (_, end), (start, _) in pairwise(track))


def test_every_track_and_process_has_a_name_and_a_place(servers):
    document = to_chrome(trace_of(servers))
    used = {(event["pid"], event["tid"]) for event in document["traceEvents"] if event["ph"] == "X"}
    assert used == set(names(document, "thread_name"))
    assert {pid for pid, _ in used} == {pid for pid, _ in names(document, "process_name")}
    for what, field in (("process_sort_index", "pid"), ("thread_sort_index", "tid")):
        places = [event for event in document["traceEvents"] if event["name"] == what]
        assert places
        assert all(event["args"]["sort_index"] == event[field] for event in places)


def test_compute_slices_give_the_times_of_the_trace_to_the_picosecond(servers):
    trace = trace_of(servers)
    job, document = trace.jobs[0], to_chrome(trace)
    for category, start_ps, end_ps in (
        ("forward", job.forward_start_ps, job.forward_end_ps),
        ("backward", job.gradient_ps - job.backward_ps, job.gradient_ps),
    ):
        events = slices(document, category)
        assert len(events) == start_ps.size
        for event in events:
            at = tuple(event["args"][key] for key in ("iteration", "worker", "layer"))
            assert event["name"] == f"{category} {job.layers[at[2]]}"
            assert picoseconds(event["ts"]) == start_ps[at]
            assert picoseconds(event["ts"]) + picoseconds(event["dur"]) == end_ps[at]


def test_blocked_slices_are_the_waits_and_end_where_the_forward_layer_starts(servers):
    trace = trace_of(servers, "fifo")
    job, document = trace.jobs[0], to_chrome(trace)
    blocked = slices(document, "blocked")
    assert len(blocked) == np.count_nonzero(job.waits_ps) > 0
    for event in blocked:
        iteration, worker, layer = (event["args"][key] for key in ("iteration", "worker", "layer"))
        assert event["name"] == f"blocked: {job.layers[layer]}"
        assert picoseconds(event["dur"]) == job.waits_ps[iteration - 1, worker, layer]
        assert picoseconds(event["ts"]) + picoseconds(event["dur"]) == job.forward_start_ps[iteration, worker, layer]


@pytest.mark.parametrize(("architecture", "kinds"), [("servers", ("push", "pull")), ("ring", ("reduce", "gather"))])
def test_transfers_stand_at_their_worker_with_all_bytes_and_slices(architecture, kinds, request):
    shown = request.getfixturevalue(architecture)
    trace = trace_of(shown)
    job, document = trace.jobs[0], to_chrome(trace)
    processes = {pid: name for (pid, _), name in names(document, "process_name").items()}
    for kind, end in zip(kinds, ("src", "dst"), strict=True):
        events, original = slices(document, kind), job.transfers[job.transfers["kind"] == KINDS.index(kind)]
        assert sum(event["args"]["bytes"] for event in events) == original["bytes"].sum()
        assert sum(event["args"]["slices"] for event in events) == len(original) > len(events)
        for event in events:
            args = event["args"]
            assert event["name"] == f"{kind} {job.layers[args['layer']]}"
            assert job.workers[args["worker"]] == args[end]
            assert processes[event["pid"]].endswith(f" {args[end]}")
            assert args["ready_us"] <= event["ts"]


def test_updated_parameters_arrive_when_the_last_pull_of_a_layer_ends(servers):
    trace = trace_of(servers)
    arrived = defaultdict(int)
    for event in slices(to_chrome(trace), "pull"):
        at = tuple(event["args"][key] for key in ("iteration", "worker", "layer"))
        arrived[at] = max(arrived[at], picoseconds(event["ts"]) + picoseconds(event["dur"]))
    assert dict(arrived) == dict(np.ndenumerate(trace.jobs[0].updated_ps))


def test_several_policies_in_a_file_are_groups_of_processes_in_the_order_given(servers, tmp_path):
    traces = [trace_of(servers, policy) for policy in ("p3", "fifo")]
    write_chrome(traces, tmp_path / "trace.json")
    document = json.loads((tmp_path / "trace.json").read_text())
    processes = {pid: name for (pid, _), name in names(document, "process_name").items()}
    assert [processes[pid] for pid in sorted(processes)] == [
        f"{policy} · {host}" for policy in ("p3", "fifo") for host in ("h0", "h2", "h4")
    ]


def test_what_is_known_of_the_whole_run_stands_in_other_data(servers):
    trace = trace_of(servers)
    other = to_chrome(trace)["otherData"]
    assert other["schema_version"] == 1
    (summary,) = other["traces"]
    assert (summary["policy"], summary["source"], summary["warmup"]) == (trace.policy, "simulated", 1)
    (job,) = summary["jobs"]
    metrics = measure_job(trace.jobs[0], trace.warmup)
    assert job["metrics"]["iteration_ps"] == metrics.iteration_ps
    assert job["metrics"]["latency"]["p99_ps"] == metrics.latency.p99_ps
    assert job["workers"] == ("h4", "h0", "h2")


def test_jobs_that_share_a_host_have_tracks_of_their_own(tmp_path):
    (tmp_path / "small.csv").write_text(CSV)
    job = ("model=''", f"csv={tmp_path / 'small.csv'}", 'workers=["h0", "h1"]', 'servers=["h2"]')
    shared = read_scenario(
        None, [f"job.{index}.{setting}" for index in (0, 1) for setting in (f"name=job-{index}", *job)]
    )
    document = to_chrome(trace_of(shared))
    tracks = names(document, "thread_name")
    assert {"job-0: compute", "job-1: compute"} <= {name for (pid, _), name in tracks.items() if pid == 1}
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            assert tracks[event["pid"], event["tid"]].startswith(f"job-{event['args']['job']}: ")


def test_merging_keeps_first_sending_last_delivery_and_sums():
    transfers = np.zeros(4, dtype=TRANSFER)
    transfers["tensor"] = [1, 0, 1, 1]
    transfers["dst"] = [1, 1, 1, 2]
    transfers["bytes"] = [10, 20, 30, 40]
    transfers["ready_ps"] = [3, 2, 4, 5]
    transfers["sent_ps"] = [5, 4, 6, 9]
    transfers["delivered_ps"] = [9, 7, 8, 12]
    merged = merge_slices(transfers)
    fields = ("tensor", "dst", "bytes", "slices", "ready_ps", "sent_ps", "delivered_ps")
    assert [tuple(row) for row in merged[list(fields)].tolist()] == [
        (0, 1, 20, 1, 2, 4, 7),
        (1, 1, 40, 2, 3, 5, 9),
        (1, 2, 40, 1, 5, 9, 12),
    ]


def test_nothing_merges_to_nothing():
    assert len(merge_slices(np.zeros(0, dtype=TRANSFER))) == 0


def test_a_worker_owns_what_it_pushes_and_what_it_pulls():
    transfers = np.zeros(4, dtype=TRANSFER)
    transfers["kind"] = [KINDS.index(kind) for kind in ("push", "pull", "push", "pull")]
    transfers["src"], transfers["dst"] = [0, 2, 1, 2], [2, 0, 2, 1]
    transfers["bytes"] = [1, 2, 3, 4]
    assert worker_transfers(transfers, 0, "push")["bytes"].tolist() == [1]
    assert worker_transfers(transfers, 1, "pull")["bytes"].tolist() == [4]


@given(st.integers(0, 2**49))
def test_microseconds_give_back_every_picosecond(time_ps):
    assert picoseconds(chrome_trace._microseconds(time_ps)) == time_ps


@given(st.integers(0, 2**43), st.integers(0, 999))
def test_microseconds_never_lose_a_nanosecond(time_ns, rest_ps):
    assert nanoseconds_in_perfetto(chrome_trace._microseconds(time_ns * 1000 + rest_ps)) == time_ns


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), max_size=30))
def test_lanes_hold_every_interval_once_without_overlap_and_are_as_few_as_can_be(intervals):
    intervals = sorted((start, start + length) for start, length in intervals)
    lanes = chrome_trace._lanes([start for start, _ in intervals], [end for _, end in intervals])
    assert sorted(index for lane in lanes for index in lane) == list(range(len(intervals)))
    for lane in lanes:
        assert all(intervals[a][1] <= intervals[b][0] for a, b in pairwise(lane))
    busiest = max((sum(a <= time < b for a, b in intervals) for time in range(71)), default=0)
    assert len(lanes) == busiest


def test_a_file_that_cannot_be_written_is_one_line(servers, tmp_path):
    with pytest.raises(InputError, match="missing") as caught:
        write_chrome([], tmp_path / "missing" / "trace.json")
    assert "\n" not in str(caught.value)


def test_examples_in_docstrings():
    assert doctest.testmod(chrome_trace).failed == 0


def test_examples_in_the_documentation():
    page = Path(__file__).parent.parent / "docs" / "trace.md"
    assert doctest.testfile(str(page), module_relative=False).failed == 0
