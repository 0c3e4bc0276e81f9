"""Options and outputs that several verbs share."""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from tensorexpress.cli import Command, say
from tensorexpress.errors import InputError, PolicyError
from tensorexpress.files import check_writable, is_special, write_atomic
from tensorexpress.policy import Policy
from tensorexpress.scenario import Scenario, Study, chosen_policies, read_study
from tensorexpress.sim_engines import ENGINES

if TYPE_CHECKING:
    from tensorexpress.sim.tasks import Executor

Value = TypeVar("Value")

#: A prediction that takes longer than this, or more memory, says so before it starts.
_SAID_FROM_SECONDS = 10
_SAID_FROM_BYTES = 10**9


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


def replan_options(where: str) -> Callable[[Command], Command]:
    """Add --replan and --every, which plan routes again when others send more or less; `where` says when they can."""

    def add(command: Command) -> Command:
        for option in (
            click.option(
                "--every",
                type=NumberRange(min=0.1, max=86_400),
                default=1.0,
                show_default=True,
                metavar="SECONDS",
                help="With --replan: how often counters of ports are read.",
            ),
            click.option(
                "--replan",
                type=NumberRange(min=0.1, max=100),
                metavar="PERCENT",
                help=f"{where}: plan routes again when others' load on a link changes by so much of its rate.",
            ),
        ):
            command = option(command)
        return command

    return add


def executor_options(command: Command) -> Command:
    """Add what says where many simulations run: --processes, --scheduler, --wait."""
    for option in (
        click.option(
            "--wait",
            "wait_seconds",
            type=NumberRange(min=0.1, max=86400.0),
            default=60.0,
            show_default=True,
            metavar="SECONDS",
            help="How long to wait for the first worker of --scheduler.",
        ),
        click.option(
            "--scheduler",
            metavar="tcp://HOST:PORT",
            help="Simulate on the workers of a Dask cluster, by the address of its scheduler.",
        ),
        click.option("--processes", type=click.IntRange(min=1), help="Simulations at a time.  [default: one per core]"),
    ):
        command = option(command)
    return command


def executor_of(processes: int | None, scheduler: str | None, wait_seconds: float) -> Executor:
    """Return where to simulate, as these options say."""
    if scheduler is None:
        from tensorexpress.sim.processes import LocalProcesses

        return LocalProcesses(processes)
    if processes is not None:
        raise InputError("--processes: found with --scheduler, whose workers decide; accepted: one of the two")
    from tensorexpress.sim.dask_cluster import DaskCluster

    return with_option("--scheduler", lambda address: DaskCluster(address, wait_seconds), scheduler)


def read_inputs(
    path: str | None, overrides: Sequence[str], policies: Sequence[str] = (), *, takes_async: bool = False
) -> Study:
    """Read the scenario and the policies that the shared options describe; --policy is one more override."""
    study = read_study(path, [*overrides, *chosen_policies(policies)])
    if not takes_async:
        study.scenario.check_in_step()
    return study


def with_option(option: str, parse: Callable[[str], Value], text: str) -> Value:
    """Return what an option's text means; an error names the option."""
    try:
        return parse(text)
    except InputError as error:
        raise type(error)(f"{option}: {error}") from None


class NumberRange(click.FloatRange):
    """A number within limits; what is no number (nan) is within none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, or fail as click's own types do."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number


def read_with_one_policy(path: str | None, overrides: Sequence[str], policy: str) -> tuple[Scenario, Policy]:
    """Read the scenario and the policy of a verb that takes one at a time."""
    scenario, policies = read_inputs(path, overrides, [policy])
    if len(policies) != 1:
        raise PolicyError(f"--policy {policy!r} names {len(policies)} policies; accepted: one at a time")
    return scenario, policies[0]


@contextmanager
def progress(length: int, label: str) -> Iterator[Callable[..., None]]:
    """Show a progress bar on standard error, only where a person is watching.

    Give what moves it on by a number of steps, one where none is given, and shows a note beside it.
    """
    with click.progressbar(
        length=length,
        label=label,
        show_pos=True,
        update_min_steps=0,
        item_show_func=lambda note: note,
        file=sys.stderr,
        hidden=not sys.stderr.isatty(),
    ) as bar:
        yield lambda steps=1, note=None: bar.update(steps, note)


def say_if_long(scenario: Scenario, policies: Sequence[Policy], packets: int, engine: str) -> None:
    """Print on standard error how much time and memory a prediction will take, before it starts, if that is much."""
    from tensorexpress.sim.predict import announced_cost, format_duration

    cost = announced_cost(scenario, policies, packets, engine)
    if cost.seconds < _SAID_FROM_SECONDS and cost.bytes < _SAID_FROM_BYTES:
        return
    coarse = f" with {packets} packets moved as one" if packets > 1 else ""
    # A simulation of sums in switches has no grain.
    faster = "" if any(policy.in_switches for policy in policies) else "; --grain PACKETS trades accuracy for time"
    needs = f"about {format_duration(cost.seconds)} and {cost.bytes / 10**9:.1f} GB of memory"
    say(f"this takes {needs}{coarse}{faster}")


class Grain(click.ParamType):  # type: ignore[type-arg]  # older click's types cannot be subscripted
    """A number of packets, or auto."""

    name = "grain"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Return the number or the word, or fail as click's own types do."""
        if value == "auto":
            return "auto"
        try:
            packets = int(value)
        except ValueError:
            packets = 0
        if packets < 1:
            self.fail(f"{value!r} is not a valid grain.", param, ctx)
        return packets


def grain_option(command: Command) -> Command:
    """Add --grain, which says how finely to simulate."""
    return click.option(
        "--grain",
        type=Grain(),
        default="auto",
        show_default=True,
        metavar="PACKETS",
        help="Move so many packets as one. 1 is packet level; auto is that too, unless it would take much longer than "
        "half a minute.",
    )(command)


def check_outputs(*paths: str | None) -> None:
    """Refuse files that cannot be written before any work is done for them; "-" is standard output."""
    given = [path for path in paths if path is not None]
    for path, uses in Counter(map(_destination, given)).items():
        if uses > 1:
            found = "- (standard output)" if path == "-" else repr(path)
            raise InputError(f"{uses} outputs are to go to {found}; accepted: one; give each other a file of its own")
    for path in given:
        if path != "-":
            check_writable(path)


def check_file(option: str, path: str | None) -> None:
    """Refuse a file that cannot be written, and "-" where what is written is not for reading on a terminal."""
    if path == "-":
        raise InputError(f"{option} -: goes to no standard output; accepted: the name of a file, such as ./-")
    check_outputs(path)


def _destination(path: str) -> str:
    """Return a name that two paths share only if one would overwrite what the other wrote."""
    return path if path == "-" or is_special(path) else os.path.realpath(path)


def write_output(path: str, text: str) -> bool:
    """Write text to a file at once, or to standard output for "-"; False where it could not be, which is said later."""
    if path == "-":
        click.echo(text.rstrip("\n"))
        return True
    return write_atomic(path, text)


def write_json(path: str, document: Any) -> None:
    """Write a JSON document to a file, or to standard output for "-"."""
    write_output(path, json.dumps(document, indent=2) + "\n")


def command_line() -> str:
    """Return the command that is being executed, as one could type it again."""
    context = click.get_current_context()
    words: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        value = context.params[name]
        values = value if isinstance(value, tuple) else (value,)
        if not isinstance(parameter, click.Option):
            words[:0] = [str(each) for each in values if each is not None]
        elif parameter.is_flag:
            words.append((parameter.opts if value else parameter.secondary_opts)[-1])
        else:
            words += [word for each in values for word in (parameter.opts[-1], str(each))]
    return shlex.join(["tensorexpress", context.command.name or "", *words])
