from __future__ import annotations

import doctest
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from support.thorough import one_in, rest

import tensorexpress
from tensorexpress.errors import InputError
from tensorexpress.policy import POLICIES, parse_policy
from tensorexpress.results import figure as style
from tensorexpress.results import plot, timelines
from tensorexpress.results.figure import new_figure, save_figure
from tensorexpress.results.plot import draw_side_by_side, plot_side_by_side
from tensorexpress.results.provenance import provenance
from tensorexpress.results.timelines import next_to_arrive
from tensorexpress.scenario import read_scenario
from tensorexpress.sim.predict import predict
from tensorexpress.trace import TRANSFER

MADE_BY = provenance(read_scenario(), [POLICIES["fifo"]])
THREE_LAYERS = ("0,5000,10000,20000", "1,60000,10000,20000", "2,20000,7000,9000")
EIGHT = (
    "fifo",
    "tictac",
    "bytescheduler",
    "p3",
    "tensorexpress",
    "ideal",
    "p3:slice=50 KB",
    "tensorexpress:slice=20 KB,host=fifo,credit=400 KB,switch=sp-pifo,queues=equal",
)


def prediction(tmp_path, *overrides, layers=THREE_LAYERS, policies=("fifo", "tensorexpress:slice=20 KB")):
    path = tmp_path / "small.csv"
    path.write_text("\n".join(["layer_index,numel,forward_ns,backward_ns", *layers]))
    usual = ("job.model=''", f"job.csv={path}", "job.workers=2", "job.servers=2", "iterations=1")
    scenario = read_scenario(None, [*usual, *overrides])
    return predict(scenario, [parse_policy(policy) for policy in policies], engine="simpy")


def test_iterations_are_drawn_over_time_where_the_cluster_changes(tmp_path):
    changes = (
        "change.0.link=h0-s0", "change.0.share=0.5", "change.0.at=200 us", "change.0.until=400 us",
        "change.1.worker=h1", "change.1.factor=2", "change.1.at_iteration=3", "iterations=4",
    )  # fmt: skip
    shown = prediction(tmp_path, *changes)
    figure = draw_side_by_side(shown)
    (axes,) = figure.subfigs[2].axes
    lines = [patch for patch in axes.patches if hasattr(patch, "get_data")]
    for (values, edges, _), result in zip((line.get_data() for line in lines), shown.results.values(), strict=True):
        starts = result.trace.jobs[0].forward_start_ps[:, :, -1].min(axis=1)
        assert np.allclose(values, np.diff(starts) / 1e9)
        assert np.allclose(edges, starts / 1e9)
    (span,) = [patch for patch in axes.patches if patch not in lines]
    assert np.allclose(span.get_extents().transformed(axes.transData.inverted()).intervalx, [0.2, 0.4])
    said_below = figure.subfigs[2].get_supxlabel()
    assert said_below.startswith("1: h0-s0 at 0.5 of its rate from 200 us until 400 us; 2: h1 2 times slower from")
    # The marks of the iterations with which the worker changes.
    assert [len(line.get_xdata()) for line in axes.lines] == [2, 2]
    assert len(draw_side_by_side(prediction(tmp_path)).subfigs) == 2


def texts(figure):
    """Return all text that is drawn: axes also hold labels of ticks beyond their limits, which is not."""
    axes = [axis for part in figure.subfigs for one in part.axes for axis in (one.xaxis, one.yaxis)]
    beyond = {
        tick.label1
        for axis in axes
        for tick in axis.get_major_ticks()
        if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
    }
    return [
        text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible() and text not in beyond
    ]


def said(figure):
    return "\n".join(text.get_text() for text in texts(figure))


@rest()
def test_the_ending_chooses_the_format(tmp_path):
    figure = draw_side_by_side(prediction(tmp_path))
    save_figure(figure, tmp_path / "a.png", MADE_BY)
    save_figure(figure, tmp_path / "a.SVG", MADE_BY)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "a.SVG").read_text().startswith("<?xml")


@pytest.mark.parametrize("name", ["figure.bmp", "figure", "png"])
def test_another_ending_is_refused_on_one_line_before_anything_is_drawn(name, tmp_path):
    with pytest.raises(InputError, match=r"accepted: \.png, \.svg, \.pdf") as caught:
        plot_side_by_side(None, tmp_path / name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / name).exists()


@rest(but=1)
@pytest.mark.parametrize("suffix", style.SUFFIXES)
def test_the_same_prediction_gives_the_same_bytes(suffix, tmp_path):
    shown = prediction(tmp_path)
    for name in ("a", "b"):
        plot_side_by_side(shown, tmp_path / f"{name}{suffix}")
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_the_bars_end_at_the_iteration_times_and_the_line_stands_at_the_bound(tmp_path):
    shown = prediction(tmp_path)
    bars = draw_side_by_side(shown).subfigs[0].axes[0]
    for row, result in enumerate(shown.results.values()):
        ends = [bar.get_x() + bar.get_width() for bar in bars.patches if round(bar.get_y() + 0.31) == row]
        assert max(ends) == pytest.approx(result.jobs[0].iteration_ps / 1e9)
    (line,) = bars.lines
    assert line.get_xdata()[0] == pytest.approx(shown.optimal_ps[0] / 1e9)


def test_the_figure_says_what_was_simulated_and_what_came_out(tmp_path):
    shown = prediction(tmp_path, "name=my study")
    text = said(draw_side_by_side(shown))
    for words in (
        "my study",
        "small on 2 workers, 2 servers; star, 4 hosts, 10 Gbps",
        "no schedule can beat this",
        f"{shown.speedup('tensorexpress:slice=20 KB'):.2f}×",
        "fifo: worker h",
        "push",
        "pull",
        "layer0",
    ):
        assert words in text


@rest(but=1)
@one_in(2)
@pytest.mark.parametrize("policies", [EIGHT[:1], EIGHT[:2], EIGHT])
@pytest.mark.parametrize("name", ["x", "a-long-name-" * 16, "costs 5_000 and 6_000"])
def test_all_text_is_inside_the_figure_and_none_overlaps(policies, name, tmp_path):
    figure = draw_side_by_side(prediction(tmp_path, f"name={name}", policies=policies))
    save_figure(figure, tmp_path / "a.png", MADE_BY)
    boxes = {text: text.get_window_extent() for text in texts(figure)}
    width, height = figure.get_size_inches() * figure.dpi
    for text, box in boxes.items():
        assert box.x0 >= 0, text
        assert box.y0 >= 0, text
        assert box.x1 <= width, text
        assert box.y1 <= height, text
    ordered = list(boxes.items())
    for index, (text, box) in enumerate(ordered):
        for other, other_box in ordered[index + 1 :]:
            assert not box.padded(-1).overlaps(other_box.padded(-1)), (text, other)


def test_a_ring_has_lanes_for_reduce_and_gather(tmp_path):
    figure = draw_side_by_side(prediction(tmp_path, "job.architecture=ring", "job.servers=0"))
    lanes = [label.get_text() for label in figure.subfigs[1].axes[0].get_yticklabels()]
    assert lanes == ["compute", "reduce", "gather"]
    assert "2 workers, ring" in said(figure)


def test_one_layer_needs_no_colour_bar(tmp_path):
    figure = draw_side_by_side(prediction(tmp_path, layers=THREE_LAYERS[:1]))
    assert len(figure.subfigs[1].axes) == 2


def test_a_job_that_never_waits_is_drawn(tmp_path):
    layers = ("0,1,10000000,20000000", "1,1,900000000,2000000")
    shown = prediction(tmp_path, layers=layers)
    plot_side_by_side(shown, tmp_path / "a.png")
    assert shown.baseline.jobs[0].iteration_ps == pytest.approx(shown.optimal_ps[0], rel=0.01)


def test_all_jobs_are_drawn_and_named(tmp_path):
    (tmp_path / "small.csv").write_text("\n".join(["layer_index,numel,forward_ns,backward_ns", *THREE_LAYERS]))
    jobs = [
        f"job.{index}.{setting}"
        for index, name in enumerate(("vision", "language"))
        for setting in (f"name={name}", "model=''", f"csv={tmp_path / 'small.csv'}", "workers=2", "servers=1")
    ]
    shown = predict(read_scenario(None, ["name=both", *jobs]), [parse_policy("fifo")], engine="simpy")
    figure = draw_side_by_side(shown)
    assert len(figure.subfigs) == 4
    assert all(f"{name}: small on 2 workers" in said(figure) for name in ("vision", "language"))


def test_timelines_show_the_baseline_and_the_fastest_policy_that_a_switch_can_run(tmp_path):
    shown = prediction(tmp_path, policies=("ideal", "fifo", "tensorexpress"))

    def with_times(**times_ps):
        results = {
            name: replace(result, jobs=(replace(result.jobs[0], iteration_ps=times_ps[name]),))
            for name, result in shown.results.items()
        }
        return replace(shown, results=results)

    assert plot.timeline_policies(with_times(fifo=200.0, ideal=100.0, tensorexpress=100.05)) == [
        "fifo",
        "tensorexpress",
    ]
    assert plot.timeline_policies(with_times(fifo=200.0, ideal=50.0, tensorexpress=100.0)) == ["fifo", "tensorexpress"]
    assert plot.timeline_policies(with_times(fifo=200.0, ideal=101.0, tensorexpress=100.0)) == ["fifo", "tensorexpress"]
    assert plot.timeline_policies(with_times(fifo=1.0, ideal=101.0, tensorexpress=100.0)) == ["fifo", "tensorexpress"]


def test_a_lane_shows_what_arrives_next_among_what_is_under_way():
    transfers = np.zeros(3, dtype=TRANSFER)
    transfers["tensor"] = [7, 3, 5]
    transfers["sent_ps"] = [0, 4, 30]
    transfers["delivered_ps"] = [20, 8, 40]
    times_ps = np.array([0, 3, 4, 8, 9, 20, 21, 30, 41])
    assert next_to_arrive(transfers, times_ps).tolist() == [7, 7, 3, 3, 7, 7, -1, 5, -1]


def test_drawing_leaves_matplotlib_as_it_was(tmp_path):
    program = (
        "import sys\n"
        "import tensorexpress.results.figure as style, tensorexpress.results.plot\n"
        "assert 'matplotlib' not in sys.modules\n"
        "made_by = style.Provenance('1', 'a', 'b', 1, ())\n"
        "import matplotlib\n"
        "before = dict(matplotlib.rcParams)\n"
        "figure = style.new_figure(2, 1, made_by)\n"
        "figure.subplots().plot([1, 2])\n"
        "style.save_figure(figure, sys.argv[1], made_by)\n"
        "assert dict(matplotlib.rcParams) == before\n"
        "import matplotlib.pyplot\n"
        "assert matplotlib.pyplot.get_fignums() == []\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "a.svg")], check=True)


def test_a_figure_that_cannot_be_written_is_one_line(tmp_path):
    with pytest.raises(InputError, match="missing") as caught:
        save_figure(new_figure(2, 1, MADE_BY), tmp_path / "missing" / "a.png", MADE_BY)
    assert "\n" not in str(caught.value)


#: Machado, Oliveira and Fernandes 2009: what is seen of linear RGB without one kind of cone.
VISION = {
    "usual": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}


def perceived(colours, vision):
    """Return CIE Lab of sRGB colours as somebody sees them; a distance of 2 can just be seen."""
    rgb = np.asarray(colours)
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(linear @ np.array(VISION[vision]).T, 0, 1)
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    xyz = seen @ np.array(to_xyz).T / [0.95047, 1, 1.08883]
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.stack([116 * f[..., 1] - 16, 500 * (f[..., 0] - f[..., 1]), 200 * (f[..., 1] - f[..., 2])], -1)


@pytest.mark.parametrize("vision", VISION)
def test_blocking_and_layers_differ_for_a_colour_blind_reader_and_blocking_is_hatched(vision):
    name, lightest, darkest = timelines.LAYER_COLOURS
    layers = perceived(colormaps[name](np.linspace(lightest, darkest, 256))[:, :3], vision)
    blocked = perceived(to_rgb(timelines.BLOCKED_STYLE["edgecolor"]), vision)
    assert np.linalg.norm(layers - blocked, axis=1).min() > 40
    assert timelines.BLOCKED_STYLE["hatch"]


def test_the_colours_of_the_palette_differ():
    assert len(set(style.PALETTE)) == len(style.PALETTE) == 8


def test_examples_in_docstrings():
    assert doctest.testmod(timelines).failed == 0


@rest()
def test_a_figure_says_what_made_it_in_small_letters_and_to_programs(tmp_path):
    shown = prediction(tmp_path, "name=my study", "seed=7")
    for suffix in style.SUFFIXES:
        plot_side_by_side(shown, tmp_path / f"a{suffix}")
    line = shown.provenance.line
    assert line == f"tensorexpress {tensorexpress.__version__}, scenario {shown.provenance.digest}, seed 7"
    assert line in said(draw_side_by_side(shown))
    png, svg, pdf = ((tmp_path / f"a{suffix}").read_bytes() for suffix in style.SUFFIXES)
    policies = "policies fifo; tensorexpress:slice=20 KB"
    assert b"Title\0my study" in png
    assert f"Description\0{line}, {policies}".encode() in png
    assert f"<dc:description>{line}, {policies}</dc:description>".encode() in svg
    assert f"/Subject ({line}, {policies})".encode() in pdf
