"""Reports in a real browser: timelines are drawn, zoomed, pointed at, walked by keys; nothing is loaded or let in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.browser import NAMES, Browser, found_browser, started
from test_report_page import HOSTILE

from tensorexpress.results.page.contents import Case, Contents
from tensorexpress.results.page.document import write_page
from tensorexpress.results.timelines import most_blocked
from tensorexpress.scenario import read_scenario
from tensorexpress.sim.predict import predict
from tensorexpress.units import PS_PER_MS

pytestmark = pytest.mark.skipif(found_browser() is None, reason=f"no browser is here: {', '.join(NAMES)}")

LINE = "document.querySelector('.timeline').timeline"


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    path = tmp_path_factory.mktemp("case") / "small.csv"
    layers = (
        "layer_index,numel,forward_ns,backward_ns",
        "0,5000,100000,200000",
        "1,60000,100000,90000",
        "2,20000,70000,9000",
    )
    path.write_text("\n".join(layers))
    overrides = ("job.model=''", f"job.csv={path}", "job.workers=8", "job.servers=2", "cluster.bandwidth=1 Gbps")
    scenario = read_scenario(None, [*overrides, "iterations=3"])
    prediction = predict(scenario, ["fifo", "tensorexpress:slice=20 KB"], engine="simpy")
    return Case(prediction, (HOSTILE,), HOSTILE, machine=(HOSTILE,))


@pytest.fixture(scope="module")
def report_file(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(Contents((case,), HOSTILE), path)
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with started(tmp_path_factory.mktemp("browser")) as one:
        yield one


@pytest.fixture
def shown(browser: Browser, report_file: Path) -> Browser:
    browser.media()
    browser.open(report_file)
    return browser


def span(browser: Browser) -> float:
    return float(browser.evaluate(f"{LINE}.to - {LINE}.from"))


def tip(browser: Browser) -> str:
    return str(browser.evaluate(f"{LINE}.tip.hidden ? '' : {LINE}.tip.innerText"))


def place_of(browser: Browser, expression: str) -> tuple[float, float]:
    """Return where in the window a point of the drawing is."""
    browser.evaluate(f"{LINE}.stage.scrollIntoView({{block: 'center'}})")
    place = browser.evaluate(
        f"(() => {{ const line = {LINE}, box = line.drawing.getBoundingClientRect(), at = {expression};"
        " return [box.left + at[0], box.top + at[1]]; })()"
    )
    return float(place[0]), float(place[1])


def test_a_page_is_drawn_loads_nothing_and_runs_no_script_of_others(shown: Browser, report_file: Path) -> None:
    assert shown.evaluate("document.documentElement.dataset.failed") is None
    assert shown.evaluate(f"{LINE}.drawing.querySelectorAll('path.forward, path.backward, path.blocked').length") > 3
    assert shown.requests == [report_file.as_uri()]
    assert shown.console == []
    assert str(shown.evaluate("document.title")).startswith("tensorexpress report")
    assert HOSTILE in str(shown.evaluate("document.body.textContent"))


def test_a_script_that_is_smuggled_in_is_refused_by_the_browser(
    browser: Browser, report_file: Path, tmp_path: Path
) -> None:
    taken = tmp_path / "taken.html"
    script = "<script>document.title='taken'</script><img src='x' onerror=\"document.title='taken'\">"
    taken.write_text(report_file.read_text().replace("<main>", f"<main>{script}"))
    browser.open(taken)
    assert browser.evaluate("document.title") != "taken"
    assert any("Content Security Policy" in line for line in browser.console)


def test_what_stands_still_is_what_the_trace_says(shown: Browser, case: Case) -> None:
    trace = case.compared.results["fifo"].trace
    worker = most_blocked(trace)
    blocked_ms = trace.jobs[0].blocking_ps[trace.warmup, worker] / PS_PER_MS
    name = shown.evaluate("document.querySelector('.row-name').textContent")
    assert name == f"fifo: worker {trace.jobs[0].workers[worker]}, blocked for {blocked_ms:.3f} ms in iteration 1"


def test_zoom_and_pan_by_buttons_keys_wheel_and_drag(shown: Browser) -> None:
    whole = span(shown)
    shown.evaluate("document.querySelector('button[aria-label=\"Zoom in\"]').click()")
    assert span(shown) == pytest.approx(whole / 1.6)
    shown.evaluate(f"{LINE}.stage.focus()")
    shown.press("+")
    assert span(shown) == pytest.approx(whole / 1.6**2)
    before = shown.evaluate(f"{LINE}.from")
    shown.press("ArrowRight")
    assert shown.evaluate(f"{LINE}.from") == pytest.approx(before + 0.15 * span(shown))
    shown.press("0")
    assert span(shown) == pytest.approx(whole)
    x, y = place_of(shown, "[300, line.placed[0].y + 4]")
    at = shown.evaluate(f"{LINE}.from + (300 - 64) / {LINE}.scale")
    shown.point(x, y, "mouseWheel", deltaX=0, deltaY=-100, modifiers=2)
    assert span(shown) == pytest.approx(0.8 * whole)
    # What is under the pointer stays there.
    assert shown.evaluate(f"{LINE}.from + (300 - 64) / {LINE}.scale") == pytest.approx(at)
    before = shown.evaluate(f"{LINE}.from")
    shown.point(x, y, "mousePressed", button="left", clickCount=1)
    shown.point(x - 50, y, "mouseMoved", button="left", buttons=1)
    shown.point(x - 50, y, "mouseReleased", button="left", clickCount=1)
    assert shown.evaluate(f"({LINE}.from - {before}) * {LINE}.scale") == pytest.approx(50, abs=1)
    # Nobody gets lost: there is always something to see.
    for _ in range(30):
        shown.press("ArrowRight")
    limits = shown.evaluate(f"{LINE}.limits()")
    assert shown.evaluate(f"{LINE}.to") == pytest.approx(limits[1])


def test_a_bar_tells_about_itself(shown: Browser, case: Case) -> None:
    trace = case.compared.results["fifo"].trace
    job, worker = trace.jobs[0], most_blocked(trace)
    start_ps = job.backward_start_ps[1, worker, 2] - job.forward_start_ps[1, worker, 2]
    time = f"({start_ps} + 1e6) / line.all.quantum_ps"
    shown.point(*place_of(shown, f"[64 + ({time} - line.from) * line.scale, line.placed[0].y + 5]"))
    first, second, third = tip(shown).splitlines()
    assert first == f"backward {job.layers[2]}"
    assert second == f"fifo, {job.workers[worker]}, iteration 1"
    assert (
        third == f"from {start_ps / 1e6:.2f} us to {(start_ps + job.backward_ps[1, worker, 2]) / 1e6:.2f} us, 9.00 us"
    )
    own = job.transfers[(job.transfers["iteration"] == 1) & (job.transfers["kind"] == 0)]
    own = own[own["src"] == trace.hosts.index(job.workers[worker])]
    soonest = own[own["delivered_ps"].argmin()]
    middle = (soonest["sent_ps"] + soonest["delivered_ps"]) // 2 - job.forward_start_ps[1, worker, 2]
    shown.point(
        *place_of(shown, f"[64 + ({middle} / line.all.quantum_ps - line.from) * line.scale, line.placed[1].y + 5]")
    )
    lines = tip(shown).splitlines()
    assert lines[0] == f"push {job.layers[soonest['tensor']]} to {trace.hosts[soonest['dst']]}"
    assert f"queue {soonest['queue']}" in lines[3]


def test_keys_walk_from_bar_to_bar_and_say_what_they_reach(shown: Browser, case: Case) -> None:
    job = case.compared.results["fifo"].trace.jobs[0]
    shown.evaluate(f"{LINE}.stage.focus()")
    said = []
    for _ in range(4):
        shown.press("n")
        said.append(str(shown.evaluate(f"{LINE}.live.textContent")).split(";")[0])
    backward = [f"backward {name}" for name in reversed(job.layers)]
    assert said == [f"forward {job.layers[2]}", *backward]
    shown.press("p")
    assert tip(shown).startswith(backward[1])
    shown.press("ArrowDown")
    assert tip(shown).startswith("push ")
    shown.press("Escape")
    assert tip(shown) == ""


def test_all_workers_of_a_policy_are_shown_below_each_other(shown: Browser) -> None:
    shown.evaluate(
        "(() => { const view = document.querySelector('.tools select'); view.value = '1';"
        " view.dispatchEvent(new Event('change')); })()"
    )
    shown.drawn()
    assert shown.evaluate(f"new Set({LINE}.placed.map((lane) => lane.row.worker)).size") == 8
    assert shown.evaluate(f"{LINE}.drawing.querySelectorAll('.track').length") == shown.evaluate(
        f"{LINE}.placed.length"
    )


def test_cases_of_the_same_work_stand_below_each_other(browser: Browser, case: Case, tmp_path: Path) -> None:
    write_page(Contents((case, case)), tmp_path / "two.html")
    browser.media()
    browser.open(tmp_path / "two.html")
    browser.evaluate(f"(() => {{ {LINE}.view = 'cases'; {LINE}.fit(); }})()")
    browser.drawn()
    names = browser.evaluate("[...document.querySelectorAll('.row-name')].slice(0, 4).map((each) => each.textContent)")
    titles = [f"default, predicted ({number})" for number in (1, 2)]
    wanted = [f"{title}, {policy}" for title in titles for policy in case.compared.results]
    assert [name.split(": worker")[0] for name in names] == wanted


def test_what_is_narrower_than_a_pixel_is_merged_and_told(shown: Browser) -> None:
    shown.evaluate(f"{LINE}.fitAll()")
    shown.resize(420, 800)
    shown.drawn()
    assert "narrower than a pixel are merged" in str(shown.evaluate(f"{LINE}.said.textContent"))
    assert shown.evaluate("document.documentElement.scrollWidth") <= 420


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_letters_can_be_read_on_a_light_and_a_dark_page(browser: Browser, report_file: Path, scheme: str) -> None:
    browser.media(scheme=scheme)
    browser.open(report_file)
    colours = browser.evaluate(
        "[...document.querySelectorAll('body, .faint, .answer, caption, button, select, a, summary, .said, td, .key')]"
        ".map((each) => { let ground = each; while (getComputedStyle(ground).backgroundColor === 'rgba(0, 0, 0, 0)')"
        " ground = ground.parentElement;"
        " return [getComputedStyle(each).color, getComputedStyle(ground).backgroundColor]; })"
    )
    assert len({tuple(pair) for pair in colours}) > 2
    for pair in colours:
        assert contrast(*pair) >= 4.5, pair
    assert (luminance(colours[0][1]) < 0.1) == (scheme == "dark")


def luminance(colour: str) -> float:
    parts = [float(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_on_paper_all_is_open_and_no_button_is_left(shown: Browser, tmp_path: Path) -> None:
    shown.print_to(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    shown.media("print", "dark")
    # What was drawn for a screen is scaled to paper, and is as it was afterwards.
    assert shown.evaluate(f"{LINE}.drawing.getAttribute('viewBox')") is None
    shown.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert shown.evaluate(f"{LINE}.drawing.getAttribute('viewBox')").startswith("0 0 ")
    shown.evaluate("dispatchEvent(new Event('afterprint'))")
    assert shown.evaluate("[...document.querySelectorAll('details')].every((each) => each.open)")
    assert shown.evaluate("getComputedStyle(document.querySelector('.tools')).display") == "none"
    # Paper is white, whatever the screen is.
    assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_the_trace_goes_to_perfetto_when_it_is_asked_for_and_answers(shown: Browser, case: Case) -> None:
    handed: dict[str, Any] = shown.evaluate(
        """new Promise((done) => {
            const frame = document.body.appendChild(document.createElement("iframe")), said = [];
            const other = frame.contentWindow;
            other.postMessage = (message, origin) => {
                if (message !== "PING") return done({ said, origin, title: message.perfetto.title,
                    trace: JSON.parse(new TextDecoder().decode(message.perfetto.buffer)) });
                said.push(origin);
                const answer = (source, origin) =>
                    window.dispatchEvent(new MessageEvent("message", { data: "PONG", source, origin }));
                answer(other, "https://elsewhere.example");
                answer(window, "https://ui.perfetto.dev");
                if (said.length > 1) answer(other, "https://ui.perfetto.dev");
            };
            window.open = (address) => (said.push(address), other);
            [...document.querySelectorAll("button")].find((each) => each.textContent === "Open in Perfetto").click();
        })"""
    )
    assert set(handed["said"]) == {"https://ui.perfetto.dev"}
    assert handed["origin"] == "https://ui.perfetto.dev"
    events = [event for event in handed["trace"]["traceEvents"] if event["ph"] == "X"]
    jobs = [result.trace.jobs[0] for result in case.compared.results.values()]
    computed = sum(job.forward_ps.size + job.backward_ps.size for job in jobs)
    assert sum(event["cat"] in ("forward", "backward") for event in events) == computed
    blocked_us = sum(event["dur"] for event in events if event["cat"] == "blocked")
    assert blocked_us == pytest.approx(sum(job.blocking_ps.sum() for job in jobs) / 1e6, rel=1e-3)
    # Perfetto drops what overlaps on a track.
    tracks: dict[tuple[int, int], float] = {}
    for event in sorted(events, key=lambda event: event["ts"]):
        key = event["pid"], event["tid"]
        assert event["ts"] >= tracks.get(key, 0) - 1e-6
        tracks[key] = event["ts"] + event["dur"]
