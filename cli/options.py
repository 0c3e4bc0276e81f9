"""Options and outputs that several verbs share."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click

from tensorexpress.cli import Command
from tensorexpress.errors import PolicyError
from tensorexpress.files import check_writable, write_atomic
from tensorexpress.policy import Policy
from tensorexpress.scenario import Scenario, read_scenario
from tensorexpress.sim.run import ENGINES


def set_option(command: Command) -> Command:
    """Add --set, which overrides keys of the scenario."""
    return click.option(
        "--set",
        "overrides",
        metavar="KEY=VALUE",
        multiple=True,
        help='Override a scenario key, such as cluster.bandwidth="25 Gbps"; may be repeated.',
    )(command)


def engine_option(command: Command) -> Command:
    """Add --engine, which chooses how to simulate."""
    return click.option(
        "--engine",
        type=click.Choice(ENGINES),
        default="auto",
        show_default=True,
        help="simpy is the readable reference, fast the compiled engine; both give the same result.",
    )(command)


def calibration_option(command: Command) -> Command:
    """Add --calibration, which makes a prediction one for a target on this machine."""
    return click.option(
        "--calibration", metavar="FILE", help="Predict for the target that `tensorexpress calibrate` measured."
    )(command)


def scenario_options(command: Command) -> Command:
    """Add what says which scenario to look at and how: SCENARIO, --set, --engine."""
    for option in (
        engine_option,
        set_option,
        click.argument("scenario", required=False, metavar="[SCENARIO.toml]"),
    ):
        command = option(command)
    return command


def policy_option(command: Command) -> Command:
    """Add --policy, which may be repeated and may list several."""
    return click.option(
        "--policy",
        "policies",
        metavar="NAME[:CHOICE=VALUE,...]",
        multiple=True,
        help="Policies to compare instead of the scenario's; may be repeated, or several separated by commas.",
    )(command)


def read_inputs(path: str | None, overrides: Sequence[str], policies: Sequence[str] = ()) -> Scenario:
    """Read the scenario that the shared options describe; --policy is one more override."""
    chosen = [f"policies={','.join(policies)}"] if policies else []
    return read_scenario(path, [*overrides, *chosen])


def one_policy(inputs: Scenario, text: str) -> Policy:
    """Return the policy of a verb that takes one at a time."""
    if len(inputs.policies) != 1:
        raise PolicyError(f"--policy {text!r} names {len(inputs.policies)} policies; accepted: one at a time")
    return inputs.policies[0]


@contextmanager
def progress(length: int, label: str) -> Iterator[Callable[[], None]]:
    """Show a progress bar on standard error, only where a person is watching; give what moves it on by one."""
    with click.progressbar(
        length=length, label=label, show_pos=True, file=sys.stderr, hidden=not sys.stderr.isatty()
    ) as bar:
        yield lambda: bar.update(1)


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Make SIGTERM, and the end of the terminal, do what Ctrl-C does: all that was set up is taken down again."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # Who was started with nohup ignores the second, and goes on doing so.
    minded = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) != signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in minded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def check_outputs(*paths: str | None) -> None:
    """Refuse files that cannot be written before any work is done for them."""
    for path in paths:
        if path not in (None, "-"):
            check_writable(path)


def write_output(path: str, text: str) -> bool:
    """Write text to a file at once, or to standard output for "-"; False where it could not be, which is said later."""
    if path == "-":
        click.echo(text.rstrip("\n"))
        return True
    return write_atomic(path, text)


def write_json(path: str, document: Any) -> None:
    """Write a JSON document to a file, or to standard output for "-"."""
    write_output(path, json.dumps(document, indent=2) + "\n")
