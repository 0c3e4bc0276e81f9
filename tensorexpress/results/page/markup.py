"""Markup: elements of a page, built so that text from outside can never become more than text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

#: Elements of HTML that have no end.
_VOID = frozenset(("meta", "br", "hr", "input"))


class Markup(str):
    """Text that is markup already; all other text is escaped where it becomes part of an element."""

    __slots__ = ()


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element. In attributes "_" stands for "-" and is cut off at the end; None and False leave one out.

    >>> tag("td", "a < b", class_="name", data_value=0.5, hidden=False)
    '<td class="name" data-value="0.5">a &lt; b</td>'
    """
    start = f"<{name}{''.join(_attribute(key, value) for key, value in attributes.items())}>"
    return Markup(start if name in _VOID else f"{start}{joined(*children)}</{name}>")


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


def joined(*children: object) -> Markup:
    """Return children one after another; those that are lists or tuples are taken apart, None is left out."""
    parts: list[str] = []
    for child in children:
        if isinstance(child, list | tuple):
            parts.append(joined(*child))
        elif child is not None:
            parts.append(child if isinstance(child, Markup) else escape(str(child)))
    return Markup("".join(parts))


def data_block(name: str, value: Any) -> Markup:
    """Return a block of JSON for the page's script, by name; nothing in it can end the block.

    >>> data_block("x", ["</script><b>"])
    '<script type="application/json" id="x">["\\\\u003c/script>\\\\u003cb>"]</script>'
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return Markup(f'<script type="application/json" id="{escape(name)}">{text}</script>')


def table(head: list[Any], rows: list[list[Any]], caption: str, class_: str | None = None) -> Markup:
    """Return a table that scrolls by itself where it is too wide; a cell is text, or an element of its own.

    The first cell of a row names the row.
    """

    def cells(row: list[Any]) -> list[Markup]:
        first = tag("th", row[0], scope="row")
        return [first, *(each if str(each).startswith("<td") else tag("td", each) for each in row[1:])]

    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption),
            tag("thead", tag("tr", [tag("th", each, scope="col") for each in head])),
            tag("tbody", [tag("tr", cells(row)) for row in rows]),
            class_=class_,
        ),
        class_="scroll",
        role="region",
        tabindex=0,
        aria_label=caption,
    )


def section(name: str, title: str, children: Sequence[Markup | None], level: str = "h2") -> Markup:
    """Return a section with a heading that a reader of the page can be sent to."""
    return tag("section", tag(level, title, id=name), *children, aria_labelledby=name)
