"""What native code cannot do."""

from __future__ import annotations


class Unsupported(Exception):
    """Raised for a program that the native back end cannot run; the text completes "not in native code: ..."."""
