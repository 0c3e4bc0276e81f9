"""The command line: one file per verb."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from keyword import iskeyword
from typing import Any, NoReturn, TypeVar

import click

from tensorexpress.cli.signals import INTERRUPTED, leave, stopped_by_signals
from tensorexpress.errors import NotRootError, StorageError, TensorExpressError, one_line
from tensorexpress.files import failures_kept, of_the_disk

#: What a function that adds options takes and returns.
Command = TypeVar("Command", bound=Callable[..., Any])

#: Verb -> the module below tensorexpress.cli that holds it, which is also the name of its command there; imported when
#: the verb is used, so that help is quick. A word of Python cannot be a name and gets a "_".
VERBS = {
    verb: f"{verb}_" if iskeyword(verb) else verb
    for verb in (
        "predict",
        "sweep",
        "tune",
        "explain",
        "models",
        "profile",
        "import",
        "hot",
        "place",
        "plan",
        "switch",
        "deploy",
        "status",
        "tag",
        "run",
        "calibrate",
        "compare",
        "report",
        "export",
        "decode",
        "p4",
        "doctor",
    )
}


#: Verbs that compute and write files, and set nothing up on the machine.
_COMPUTING = ("predict", "sweep", "tune", "explain", "hot", "place", "plan", "report")


class _InterruptedVerb(Exception):
    """Ctrl-C, or a signal that means the same, while a verb was at work."""


class Verbs(click.Group):
    """Loads a verb when it is asked for, shows every error as one line, and lets signals end a verb as Ctrl-C does."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order of their use."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb's module and return its command."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = getattr(import_module(f"tensorexpress.cli.{VERBS[cmd_name]}"), VERBS[cmd_name])
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a verb; click would say an empty line where it is interrupted."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise _InterruptedVerb from None

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a verb and exit; see `tensorexpress.errors` for the exit status.

        What takes root begins again as root of a user namespace where that is possible.
        """
        run: Callable[..., Any] = partial(super().main, *args, **{**extra, "standalone_mode": False})
        if not extra.get("standalone_mode", True):
            return run()
        begun = bool(args) or extra.get("args") is not None  # by a caller of Python, not as a process of its own
        try:
            with (
                stopped_by_signals(computes=not begun and not {*sys.argv[1:2]}.isdisjoint(_COMPUTING)),
                failures_kept(),
            ):
                status = run()
        except NotRootError as error:
            if begun:
                _end(f"error: {error}", error.exit_code)
            _begin_again(error)
        except TensorExpressError as error:
            _end(f"error: {error}", error.exit_code)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(error.exit_code)
        except click.ClickException as error:
            from tensorexpress.cli.usage import usage_message

            _end(f"error: {usage_message(error)}", error.exit_code)
        except OSError as error:
            problem = of_the_disk(error)
            if problem is None:
                raise
            # What is left in the buffer would fail once more when Python ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            _end(f"error: cannot write to standard output: {problem}", StorageError.exit_code)
        except (_InterruptedVerb, KeyboardInterrupt, click.Abort):
            if not begun:
                say("stopped")
                leave(INTERRUPTED)
            _end("stopped", INTERRUPTED)
        except SystemExit as ended:
            if not begun and ended.code == INTERRUPTED:
                leave(INTERRUPTED)
            raise
        sys.exit(status if isinstance(status, int) else 0)


def say(message: str) -> None:
    """Tell the user something beside the result: one line on standard error, whatever names are in it."""
    click.echo(f"tensorexpress: {one_line(message)}", err=True)


def _end(message: str, status: int) -> NoReturn:
    say(message)
    sys.exit(status)


def _begin_again(refused: NotRootError) -> NoReturn:
    """Run this command as root of a user namespace of its own; where that cannot be, say so."""
    from tensorexpress.target.namespaces import as_own_root

    try:
        command = as_own_root(sys.orig_argv)
    except TensorExpressError as error:
        _end(f"error: {refused}; {error}", refused.exit_code)
    os.execvp(command[0], command)


@click.group(
    "tensorexpress", cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="tensorexpress")
def main() -> None:
    """In-network scheduling of tensors for distributed training.

    Start with `tensorexpress predict`: will priority in hosts and switches shorten your iterations, and by how much?
    """
