"""Why a P4Runtime request is refused: a canonical code and one line for a person."""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """The canonical codes of gRPC that the P4Runtime specification uses."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class Refused(Exception):
    """A request, or one part of it, that the specification says to refuse; nothing has been changed by it."""

    def __init__(self, code: Code, message: str):
        super().__init__(message)
        self.code = code


def invalid(message: str) -> Refused:
    """Return the refusal of something malformed."""
    return Refused(Code.INVALID_ARGUMENT, message)


def unimplemented(message: str) -> Refused:
    """Return the refusal of something well-formed that this switch does not do."""
    return Refused(Code.UNIMPLEMENTED, message)
