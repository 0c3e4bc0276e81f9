"""The command line: one file per verb."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

import click

from tensorexpress.errors import TensorExpressError
from tensorexpress.files import failures_kept

#: What a function that adds options takes and returns.
Command = TypeVar("Command", bound=Callable[..., Any])

#: Verb -> the module below tensorexpress.cli that holds it; imported when the verb is used, so that help is quick.
VERBS = {
    verb: verb
    for verb in (
        "predict",
        "sweep",
        "explain",
        "models",
        "plan",
        "switch",
        "deploy",
        "status",
        "run",
        "calibrate",
        "compare",
        "export",
        "decode",
        "p4",
        "doctor",
    )
}


class Verbs(click.Group):
    """Loads a verb when it is asked for, and shows our own errors as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order of their use."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb's module and return its command."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = getattr(import_module(f"tensorexpress.cli.{VERBS[cmd_name]}"), cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run a verb; what the user can mend is said on one line, without a traceback."""
        try:
            with failures_kept():
                return super().invoke(ctx)
        except TensorExpressError as error:
            click.echo(f"tensorexpress: error: {error}", err=True)
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("tensorexpress: stopped", err=True)
            sys.exit(130)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="tensorexpress")
def main() -> None:
    """In-network scheduling of tensors for distributed training.

    Start with `tensorexpress predict`: will priority in hosts and switches shorten your iterations, and by how much?
    """
