"""The page as a whole: one file that needs no network, and in which no script runs but its own."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Iterable
from hashlib import sha256
from importlib import resources

import tensorexpress
from tensorexpress.files import write_atomic
from tensorexpress.results import compare_report, explanation_report, report, sweep_report
from tensorexpress.results.figure import PALETTE
from tensorexpress.results.page.contents import Contents
from tensorexpress.results.page.markup import Markup, data_block, joined, tag
from tensorexpress.results.page.sections import against, case_section, overview
from tensorexpress.results.page.timeline_data import packed
from tensorexpress.results.timelines import layer_shades

#: Shades of layers that can be told apart.
SHADES = 12

#: Which part of the colours of layers is seen on a dark page.
_ON_DARK = (0.05, 0.72)


def write_page(contents: Contents, path: str | os.PathLike[str]) -> int | None:
    """Write a report to a file, whole or not at all, and return its bytes; None where `write_atomic` is False.

    The same contents give the same bytes.
    """
    content = page(contents).encode()
    return len(content) if write_atomic(path, content) else None


def page(contents: Contents) -> str:
    """Return a report as HTML."""
    style, script = _asset("page.css") + _shades(), _asset("page.js")
    # Whatever a file may have brought in, no other script or style than these two is taken, and nothing is loaded.
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; base-uri 'none'; "
        "form-action 'none'"
    )
    title = f"tensorexpress report: {'; '.join(contents.titles)}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content=f"tensorexpress {tensorexpress.__version__}"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    body = tag("body", _patterns(), _header(contents), _main(contents), _data(contents), tag("script", Markup(script)))
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """Return how a Content-Security-Policy names a script or style."""
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def _shades() -> str:
    """Return the style's rules for the colours that figures have too, on a light page and a dark one."""

    def rules(colours: Iterable[str]) -> str:
        return "".join(
            f".layer{n}{{fill:{colour}}}.stage .on-layer{n}{{fill:{'#000' if _is_light(colour) else '#fff'}}}"
            for n, colour in enumerate(colours)
        )

    series = "".join(f".series{n}{{--series:{colour}}}" for n, colour in enumerate(PALETTE[:-1]))
    dark = f"@media screen and (prefers-color-scheme:dark){{{rules(layer_shades(SHADES, *_ON_DARK))}}}"
    return f"{rules(layer_shades(SHADES))}{series}{dark}"


def _is_light(colour: str) -> bool:
    """Whether black letters are easier to read on a colour than white ones, by the contrast that WCAG defines."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return (0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05) ** 2 > 1.05 * 0.05


def _patterns() -> Markup:
    """Return the hatching of what stands still, which all charts share."""
    line = tag("path", d="M-1 1l2-2M0 6l6-6M5 7l2-2", class_="hatch-line")
    hatch = tag(
        "pattern", tag("rect", width=6, height=6, class_="hatch-ground"), line,
        id="hatch", width=6, height=6, patternUnits="userSpaceOnUse",
    )  # fmt: skip
    return tag("svg", tag("defs", hatch), width=0, height=0, class_="patterns", aria_hidden="true")


def _header(contents: Contents) -> Markup:
    names = [("side-by-side", "Side by side")] if len(contents.cases) > 1 else []
    if contents.comparisons:
        names.append(("against", "Predicted against measured"))
    names += [(f"case{number}", title) for number, title in enumerate(contents.titles)]
    links = [tag("li", tag("a", name, href=f"#{anchor}")) for anchor, name in names]
    nav = tag("nav", tag("ul", links), aria_label="Parts of this report") if len(links) > 1 else None
    first = contents.cases[0].compared.scenario
    jobs = "; ".join(f"{job.workload.name}, {job.placement}" for job in first.jobs)
    title = jobs if len(contents.cases) == 1 else f"{len(contents.cases)} cases side by side"
    return tag("header", tag("p", "tensorexpress report", class_="brand"), tag("h1", title), nav)


def _main(contents: Contents) -> Markup:
    cases = zip(contents.cases, contents.titles, strict=True)
    made_by = [tag("dt", "made by"), tag("dd", f"tensorexpress {tensorexpress.__version__}")]
    if contents.command:
        made_by += [tag("dt", "command"), tag("dd", tag("code", contents.command))]
    return joined(
        tag(
            "main",
            overview(contents),
            against(contents.comparisons),
            [case_section(case, number, title) for number, (case, title) in enumerate(cases)],
        ),
        tag("footer", tag("dl", made_by)),
    )


def _data(contents: Contents) -> Markup:
    """Return what the script needs, and the numbers of --json for whoever reads the page with a program."""
    header, stream = packed(contents)
    blocks = [data_block("timeline-header", {**header, "shades": SHADES}), data_block("timeline-stream", stream)]
    for number, case in enumerate(contents.cases):
        numbers = report.as_json(case.compared)
        if case.explanation is not None:
            numbers["explanation"] = explanation_report.as_json(case.explanation)
        if case.sweep is not None:
            numbers["sweep"] = sweep_report.as_json(case.sweep)
        blocks.append(data_block(f"results{number}", numbers))
    if contents.comparisons:
        blocks.append(data_block("comparisons", [compare_report.as_json([each]) for each in contents.comparisons]))
    return joined(blocks)
