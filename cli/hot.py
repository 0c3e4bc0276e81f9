"""tensorexpress hot: which rows of a sparse table a switch should sum, and how much traffic that spares servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tensorexpress.cli.options import NumberRange, check_file, check_outputs, with_option, write_json, write_output
from tensorexpress.errors import InputError
from tensorexpress.sparse import MOST_KEYS, MOST_LOOKUPS, MOST_SKEW, MOST_WIDTH
from tensorexpress.units import format_size, parse_size

if TYPE_CHECKING:
    from tensorexpress.hot_keys import RowExchange
    from tensorexpress.results.hot_report import HotStudy

#: The skew of a model that does not say one.
_USUAL_SKEW = 1.05

_MOST_HOSTS = 100_000


@click.command(short_help="Find the hot keys of a sparse table, and what summing them in a switch spares servers.")
@click.argument("samples", required=False, metavar="[SAMPLES.csv]")
@click.option("--memory", default="1 MB", show_default=True, metavar="SIZE", help="What the switch has for hot rows.")
@click.option("--width", type=click.IntRange(1, MOST_WIDTH), default=16, show_default=True, help="Values of a row.")
@click.option("--workers", type=click.IntRange(1, _MOST_HOSTS), default=8, show_default=True)
@click.option("--servers", type=click.IntRange(1, _MOST_HOSTS), default=4, show_default=True)
@click.option(
    "--mtu", type=click.IntRange(576, 65535), default=9000, show_default=True, help="Of packets to servers, in bytes."
)
@click.option(
    "--lookups",
    type=click.IntRange(1, MOST_LOOKUPS),
    metavar="N",
    help="Rows that a worker looks up in an iteration; a file of batches says it itself.",
)
@click.option("--keys", type=click.IntRange(1, MOST_KEYS), metavar="N", help="Rows of a table, in place of a file.")
@click.option(
    "--skew",
    type=NumberRange(0, MOST_SKEW),
    metavar="S",
    help=f"Exponent of Zipf's law by which --keys are looked up; 0: all alike.  [default: {_USUAL_SKEW}]",
)
@click.option("--json", "json_path", metavar="FILE", help="Write everything as JSON; - prints it instead of the table.")
@click.option(
    "--plot", "plot_path", metavar="FILE", help="Draw coverage and traffic over the memory (.png, .svg, .pdf)."
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write the hot keys of the best memory as CSV, the hottest first; - prints them.",
)
def hot(
    samples: str | None,
    memory: str,
    width: int,
    workers: int,
    servers: int,
    mtu: int,
    lookups: int | None,
    keys: int | None,
    skew: float | None,
    json_path: str | None,
    plot_path: str | None,
    output: str | None,
) -> None:
    """Say which rows of a sparse table a switch should sum in front of the servers, and what that spares them.

    SAMPLES.csv has a row for every lookup (batch,key), or how often every key was looked up (key,count). Without
    a file, --keys and --lookups describe a table whose keys are looked up by Zipf's law.

    \b
      tensorexpress hot lookups.csv --width 16 --plot hot.png -o hot-keys.csv
      tensorexpress hot counts.csv --lookups 26000 --memory "4 MB"
      tensorexpress hot --keys 10000000 --skew 1.05 --lookups 26000 --workers 16
    """
    from tensorexpress.hot_keys import RowExchange
    from tensorexpress.results.figure import check_suffix
    from tensorexpress.results.hot_plot import plot_hot
    from tensorexpress.results.hot_report import as_json, as_table, hot_keys_text

    check_outputs(json_path, plot_path, output)
    if plot_path is not None:
        check_file("--plot", plot_path)
        check_suffix(plot_path)
    memory_bytes = _memory(memory)
    exchange = RowExchange(width, workers, servers, mtu)
    if samples is None:
        if output is not None:
            raise InputError("--output: found without a file of lookups; accepted: with one, as a model has no keys")
        study = _of_model(keys, lookups, skew, exchange, memory_bytes)
    else:
        for option, value in (("--keys", keys), ("--skew", skew)):
            if value is not None:
                raise InputError(f"{option} {value:g}: found beside {samples!r}; accepted: a file, or a model")
        study = _of_sample(samples, lookups, exchange, memory_bytes)
    if output is not None:
        write_output(output, hot_keys_text(study))
    if json_path is not None:
        write_json(json_path, as_json(study))
    if plot_path is not None:
        plot_hot(study, plot_path)
    if "-" not in (json_path, output):
        click.echo(as_table(study))


def _memory(text: str) -> int:
    """Return the bytes of --memory, which are those of one slot or more."""
    from tensorexpress.sums import SLOT_BYTES

    memory_bytes = with_option("--memory", parse_size, text)
    if memory_bytes < SLOT_BYTES:
        found, accepted = format_size(memory_bytes), f"{SLOT_BYTES} B or more, a slot of 256 values"
        raise InputError(f"--memory: found {found}; accepted: {accepted}")
    return memory_bytes


def _of_model(
    keys: int | None, lookups: int | None, skew: float | None, exchange: RowExchange, memory_bytes: int
) -> HotStudy:
    from tensorexpress.results.hot_report import study_of_model
    from tensorexpress.sparse import SparseTable

    if keys is None or lookups is None:
        missing = "--keys" if keys is None else "--lookups"
        raise InputError(f"{missing} is missing; accepted: a file of lookups, or --keys and --lookups of a table")
    table = SparseTable(keys, exchange.width, lookups, _USUAL_SKEW if skew is None else skew)
    return study_of_model(table, exchange, memory_bytes)


def _of_sample(path: str, lookups: int | None, exchange: RowExchange, memory_bytes: int) -> HotStudy:
    from tensorexpress.lookups import read_lookups
    from tensorexpress.results.hot_report import study_of_sample

    sample = read_lookups(path)
    if sample.batches and lookups is not None:
        raise InputError(f"--lookups {lookups}: found beside batches in {path!r}, which say it; leave it out")
    if not sample.batches and lookups is None:
        raise InputError(f"--lookups is missing: {path!r} has counts and no batches; accepted: rows of an iteration")
    return study_of_sample(sample, exchange, memory_bytes, lookups or 0)
