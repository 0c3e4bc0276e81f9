"""Text: lines and columns for a terminal, JSON for files that people compare."""

from __future__ import annotations

import json
from typing import Any


def grid(rows: list[list[str]]) -> list[str]:
    """Align columns: the first to the left, all others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(n) for cell, n in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]


def json_text(document: Any) -> str:
    """Return JSON that breaks lines only around what itself holds lists or objects: long enough to read and to diff.

    >>> print(json_text({"name": "a", "rows": [{"x": 1, "y": 2}, {"x": 3}]}), end="")
    {
      "name": "a",
      "rows": [
        {"x": 1, "y": 2},
        {"x": 3}
      ]
    }
    """
    return _lines(document, "") + "\n"


def _lines(node: Any, indent: str) -> str:
    inner = indent + "  "
    children = list(node.values()) if isinstance(node, dict) else node if isinstance(node, list) else ()
    if not any(isinstance(child, dict | list) for child in children):
        return json.dumps(node, ensure_ascii=False)
    if isinstance(node, dict):
        rows = [f"{inner}{json.dumps(key, ensure_ascii=False)}: {_lines(value, inner)}" for key, value in node.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    return "[\n" + ",\n".join(inner + _lines(value, inner) for value in node) + f"\n{indent}]"
