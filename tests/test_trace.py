"""Traces: what is derived from a trace, on an example small enough to do by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tensorexpress.trace import (
    LINK,
    TRANSFER,
    JobTrace,
    Latency,
    Trace,
    busiest_link,
    drift_ps,
    iterations_ps,
    measure_job,
)

# Two workers, two layers, two iterations and the forward pass after them. Forward layers take 2 and 3, backward ones
# 4 and 5, but the second worker runs its second backward pass at half speed. Worker 1:
#
#     0  forward 2, 3   5  backward of layer 1 until 10, of layer 0 until 14    parameters: layer 0 at 16, layer 1 at 17
#    16  forward 2, 3  21  backward until 26 and 30                             parameters: layer 0 at 30, layer 1 at 40
#    30  forward 2, waits from 32 to 40
#
JOB = JobTrace(
    name="job",
    layers=("first", "second"),
    workers=("h0", "h1"),
    forward_ps=np.tile([2, 3], (3, 2, 1)),
    backward_ps=np.array([[[4, 5], [4, 5]], [[4, 5], [8, 10]]]),
    forward_start_ps=np.array([[[0, 2], [0, 2]], [[16, 18], [17, 20]], [[30, 40], [42, 44]]]),
    backward_start_ps=np.array([[[10, 5], [10, 5]], [[26, 21], [33, 23]]]),
    updated_ps=np.array([[[16, 17], [17, 20]], [[30, 40], [42, 43]]]),
    transfers=np.zeros(0, dtype=TRANSFER),
)


def test_forward_layers_end_after_their_time() -> None:
    assert JOB.forward_end_ps[0, 0].tolist() == [2, 5]


def test_gradients_are_ready_from_the_last_layer_to_the_first() -> None:
    assert JOB.gradient_ps.tolist() == [[[14, 10], [14, 10]], [[30, 26], [41, 33]]]


def test_a_layer_waits_from_when_it_could_start_until_it_does() -> None:
    assert JOB.waits_ps.tolist() == [[[2, 0], [3, 1]], [[0, 8], [1, 0]]]


def test_an_iteration_lasts_until_the_first_worker_starts_its_last_layer_again() -> None:
    # The first starts of the last layer: 2, 18 (not 20), 40 (not 44).
    assert iterations_ps(JOB).tolist() == [16, 22]


def test_metrics_of_all_iterations() -> None:
    metrics = measure_job(JOB, warmup=0)
    assert metrics.iteration_ps == 19
    assert metrics.compute_ps == 14 + 9 / 2  # the second worker: 14, then 23
    assert metrics.blocking_ps == (2 + 4 + 8 + 1) / 4
    assert metrics.blocking_worst_ps == (2 + 8) / 2


def test_metrics_leave_the_warm_up_out() -> None:
    metrics = measure_job(JOB, warmup=1)
    assert (metrics.iteration_ps, metrics.compute_ps) == (22, 23)
    assert (metrics.blocking_ps, metrics.blocking_worst_ps) == (4.5, 8)
    # Latencies of the second iteration, by worker and layer: 0, 14 and 1, 10.
    assert metrics.latency == Latency(mean_ps=6.25, p50_ps=5.5, p99_ps=pytest.approx(13.88), first_ps=0.5)


def test_what_a_worker_computes_and_waits_is_all_of_its_time() -> None:
    starts = JOB.forward_start_ps[:, :, -1]
    computed = JOB.forward_ps[:-1, :, -1] + JOB.backward_ps.sum(axis=2) + JOB.forward_ps[1:, :, 0]
    assert np.array_equal(np.diff(starts, axis=0), computed + JOB.waits_ps.sum(axis=2))


def test_the_busiest_link_is_named_with_its_share_of_the_run() -> None:
    links = np.zeros(2, dtype=LINK)
    links["busy_ps"] = 30, 45
    trace = Trace(
        source="simulated",
        policy="fifo",
        warmup=0,
        hosts=("h0", "h1"),
        jobs=(JOB,),
        link_names=("h0>s0", "s0>h1"),
        links=links,
        end_ps=60,
        transmissions=0,
        retransmissions=0,
        timeouts=0,
    )
    assert busiest_link(trace) == ("s0>h1", 0.75)


def with_iterations(lengths_ms: list[int]) -> JobTrace:
    """A job of one worker and one layer whose iterations take so long."""
    starts = np.cumsum([0, *lengths_ms]).reshape(-1, 1, 1) * 10**9
    times = np.zeros_like(starts)
    return replace(
        JOB,
        layers=("l0",),
        forward_ps=times,
        backward_ps=times[1:],
        forward_start_ps=starts,
        backward_start_ps=starts[:-1],
        updated_ps=starts[1:],
    )


@pytest.mark.parametrize(
    ("lengths_ms", "warmup", "drift_ms"),
    [
        ([418, 609, 625], 1, (609, 625)),
        ([418, 609], 1, (418, 609)),
        ([609], 0, None),
        ([418, 624, 625], 1, None),
        ([100, 101, 104, 105, 103, 106, 104], 1, None),
        ([100, 100, 100, 110, 110], 1, (100, 110)),
        ([100, 100, 120, 100, 120, 100, 120], 1, None),
    ],
)
def test_iterations_that_still_change_are_told_from_settled_and_from_random_ones(
    lengths_ms: list[int], warmup: int, drift_ms: tuple[int, int] | None
) -> None:
    expected = None if drift_ms is None else tuple(each * 10**9 for each in drift_ms)
    assert drift_ps(with_iterations(lengths_ms), warmup) == expected


def test_the_spread_is_the_standard_deviation_of_measured_iterations_and_0_for_one() -> None:
    assert measure_job(with_iterations([5, 9, 11]), 1).spread_ps == pytest.approx(2**0.5 * 10**9)
    assert measure_job(with_iterations([5, 9]), 1).spread_ps == 0


def test_a_wait_counts_as_lost_to_time_outs_as_far_as_slices_of_its_tensor_waited_for_them() -> None:
    """Iteration 1: layer 0 is waited for by nobody, layer 1 for 8 by the first worker and for 0 by the second."""
    rows = np.zeros(3, dtype=TRANSFER)
    rows["iteration"], rows["tensor"], rows["timed_out_ps"] = [1, 1, 1], [0, 1, 1], [9, 3, 5]
    assert JOB.waits_ps[1].tolist() == [[0, 8], [1, 0]]
    assert measure_job(replace(JOB, transfers=rows), 1).timed_out_ps == (5 + 1) / 2
    assert measure_job(JOB, 1).timed_out_ps == 0
