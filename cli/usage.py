"""Errors of usage as one line: click says what is wrong with an option, this says it as all our errors do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import click

from tensorexpress.errors import unknown

#: How click's types begin to say what is wrong with a value.
_FOUND = re.compile(r"(.+) is not (?:in the range|a valid|one of) ", re.DOTALL)


def usage_message(error: click.ClickException) -> str:
    """Return what is wrong with a command line: what was found, what is accepted, where to read more."""
    context = getattr(error, "ctx", None)
    more = f"; see `{context.command_path} --help`" if context is not None else ""
    return f"{_problem(error, context)}{more}"


def _problem(error: click.ClickException, context: click.Context | None) -> str:
    said = error.message.rstrip(".")
    if isinstance(error, click.NoSuchOption):
        return f"unknown option {error.option_name!r}{_did_you_mean(error.possibilities or ())}"
    if isinstance(error, click.MissingParameter):
        return f"{_name(error.param, context)} is missing{_accepted_hint(error.param)}"
    if isinstance(error, click.BadParameter) and error.param is not None:
        found = _FOUND.match(said)
        where = _name(error.param, context)
        if found is None:
            return f"{where}: {said}"
        return f"{where}: found {found[1]}{_accepted_hint(error.param)}"
    command = re.fullmatch("No such command '(.*)'", said, re.DOTALL)
    if command is not None and context is not None and isinstance(context.command, click.Group):
        kind = "verb" if context.parent is None else "subcommand"
        return unknown(kind, command[1], context.command.list_commands(context))
    extra = re.fullmatch(r"Got unexpected extra arguments? \((.*)\)", said, re.DOTALL)
    if extra is not None:
        return f"found {extra[1]!r} beyond the arguments that are accepted"
    return said[:1].lower() + said[1:]


def _name(param: click.Parameter | None, context: click.Context | None) -> str:
    """Return a parameter as the user types it."""
    if isinstance(param, click.Option):
        return max(param.opts, key=len)
    return param.make_metavar(context) if param is not None and context is not None else "an argument"


def _did_you_mean(possibilities: Iterable[str]) -> str:
    names = sorted(possibilities)
    return f"; did you mean {' or '.join(map(repr, names))}" if names else ""


def _accepted_hint(param: click.Parameter | None) -> str:
    accepted = _accepted(param.type) if param is not None else ""
    return f"; accepted: {accepted}" if accepted else ""


def _accepted(kind: click.ParamType[Any]) -> str:
    if isinstance(kind, click.Choice):
        return ", ".join(map(str, kind.choices))
    if isinstance(kind, click.IntRange | click.FloatRange):
        number = "a whole number" if isinstance(kind, click.IntRange) else "a number"
        return f"{number} from {kind.min}{f' to {kind.max}' if kind.max is not None else ' on'}"
    words = {"integer": "a whole number", "float": "a number", "grain": "a number of packets from 1 on, or auto"}
    return words.get(kind.name, "")
