"""tensorexpress sweep: vary any scenario key, and see where scheduling pays."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tensorexpress.cli import say
from tensorexpress.cli.options import (
    NumberRange,
    check_outputs,
    executor_of,
    executor_options,
    policy_option,
    progress,
    scenario_options,
    write_json,
    write_output,
)
from tensorexpress.cli.signals import INTERRUPTED
from tensorexpress.errors import InputError
from tensorexpress.units import counted

if TYPE_CHECKING:
    from tensorexpress.results.swept import Point


@click.command(short_help="Vary any scenario key and plot the band where scheduling pays.")
@scenario_options
@policy_option
@click.option(
    "--vary",
    metavar="KEY=VALUES",
    multiple=True,
    help="What to vary: KEY=V1,V2,... or KEY=START:STOP:STEPS[:log]; twice for a grid. "
    "[default: cluster.bandwidth from 1/8 to 8 times the scenario's]",
)
@click.option(
    "--threshold",
    type=NumberRange(min=1.0, max=1000.0),
    default=1.05,
    show_default=True,
    help="Speed-up over fifo from which scheduling is said to pay.",
)
@executor_options
@click.option(
    "--json", "json_path", metavar="FILE", help="Write all metrics as JSON; - prints them instead of the table."
)
@click.option("--csv", "csv_path", metavar="FILE", help="Write a row per point, policy and job; - prints them instead.")
@click.option(
    "--plot", "plot_path", metavar="FILE", help="Draw curves over one key, or a map over two (.png, .svg, .pdf)."
)
def sweep(
    scenario: str | None,
    overrides: tuple[str, ...],
    engine: str,
    policies: tuple[str, ...],
    vary: tuple[str, ...],
    threshold: float,
    processes: int | None,
    scheduler: str | None,
    wait_seconds: float,
    json_path: str | None,
    csv_path: str | None,
    plot_path: str | None,
) -> None:
    """Predict a scenario at every value of one or more keys, on all cores or on a Dask cluster.

    A number without a unit takes that of the next value with one. Ctrl-C or SIGTERM ends a sweep early and
    keeps the points that are finished.

    \b
      tensorexpress sweep --plot band.png
      tensorexpress sweep --vary cluster.bandwidth=5,10,25,40,100Gbps --policy p3,tensorexpress
      tensorexpress sweep --vary job.workers=2:32:5:log --vary cluster.queues=1,2,4,8 --csv grid.csv
      tensorexpress sweep --vary seed=1:1000:1000 --scheduler tcp://10.0.0.1:8786 --csv seeds.csv
    """
    from tensorexpress.results import sweep_report as report
    from tensorexpress.results.sweep_plot import check_plot, plot_sweep
    from tensorexpress.sim.sweep import sweep as run_sweep
    from tensorexpress.sim.sweep import usual_vary

    varied = values_by_key(vary) or usual_vary(scenario, overrides)
    check_outputs(json_path, csv_path, plot_path)
    executor = executor_of(processes, scheduler, wait_seconds)
    if plot_path is not None:
        check_plot(plot_path, len(varied))
    total = math.prod(map(len, varied.values()))
    with (
        _kept_meanwhile(csv_path, tuple(varied)) as keep,
        progress(total, "sweeping") as advance,
    ):

        def on_point(point: Point) -> None:
            keep(point)
            advance()

        result = run_sweep(
            scenario,
            overrides,
            varied,
            policies,
            engine,
            on_point,
            executor=executor,
            on_simulation=_noted(advance),
        )
    if result.points:
        if json_path is not None:
            write_json(json_path, report.as_json(result, threshold))
        if csv_path is not None and write_output(csv_path, report.as_csv(tuple(varied), result.points)):
            _partial(csv_path).unlink(missing_ok=True)
        if plot_path is not None:
            plot_sweep(result, plot_path, threshold)
        if "-" not in (json_path, csv_path):
            click.echo(report.as_table(result, threshold))
    if len(result.points) < total:
        say(f"stopped after {len(result.points)} of {total} points")
        sys.exit(INTERRUPTED)


def _noted(advance: Callable[..., None]) -> Callable[[], None]:
    """Return a function to call after each simulation: it shows their number beside the progress bar."""
    numbers = count(1)
    return lambda: advance(0, f"{counted(next(numbers), 'simulation')}")


def values_by_key(vary: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the values of every --vary by their key."""
    from tensorexpress.vary import parse_vary

    varied: dict[str, tuple[str, ...]] = {}
    for text in vary:
        key, values = parse_vary(text)
        if key in varied:
            raise InputError(f"--vary {key} is given twice; accepted: each key once, with all its values")
        varied[key] = values
    return varied


def _partial(csv_path: str) -> Path:
    return Path(f"{csv_path}.part")


@contextmanager
def _kept_meanwhile(csv_path: str | None, keys: tuple[str, ...]) -> Iterator[Callable[[Point], None]]:
    """Give what appends a finished point to FILE.part, where it is safe even if this process is killed."""
    from tensorexpress.results.sweep_report import as_csv

    if csv_path in (None, "-") or (os.path.exists(csv_path) and not os.path.isfile(csv_path)):
        yield lambda _: None
        return
    partial = _partial(csv_path)
    with suppress(OSError):
        partial.unlink(missing_ok=True)

    def keep(point: Point) -> None:
        # Where there is no room for it the point is still in memory, and writing the whole says what is wrong.
        with suppress(OSError), partial.open("a", newline="") as file:
            file.write(as_csv(keys, [point], header=file.tell() == 0))

    try:
        yield keep
    except BaseException:
        if os.path.exists(partial) and partial.stat().st_size:
            say(f"the points finished so far are in {partial}")
        raise
    finally:
        with suppress(OSError):
            if not partial.stat().st_size:  # the disk is full
                partial.unlink()
