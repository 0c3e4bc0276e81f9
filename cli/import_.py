"""tensorexpress import: a profile or workload of another tool as the CSV that a scenario takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tensorexpress.cli import say
from tensorexpress.cli.options import check_file
from tensorexpress.errors import one_line
from tensorexpress.foreign.astra_text import UNITS
from tensorexpress.foreign.recognise import FORMATS, read_foreign
from tensorexpress.units import counted, format_ms, format_size
from tensorexpress.workload import DTYPE_BYTES, write_csv

if TYPE_CHECKING:
    from tensorexpress.foreign.imported import Imported


@click.command("import", short_help="Read a profile or workload of another tool, and write layers for job.csv.")
@click.argument("path", metavar="FILE")
@click.option("-o", "--output", metavar="LAYERS.csv", help="Where to write the layers, for job.csv.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(list(FORMATS)),
    help="; ".join(f"{name}: {about}" for name, about in FORMATS.items()) + ".  [default: by content]",
)
@click.option("--unit", type=click.Choice(list(UNITS)), help="astra-text: what times are in.")
@click.option(
    "--dtype",
    type=click.Choice(list(DTYPE_BYTES)),
    help="What gradients are, where a file says only how many bytes they have.  [default: fp32]",
)
def import_(path: str, output: str | None, format_: str | None, unit: str | None, dtype: str | None) -> None:
    """Read layers, their parameters and their times from FILE, and say what was read and what was left out.

    Training that is not data-parallel is refused, with the layer and the collective that show it.

    \b
      tensorexpress import Resnet50_DataParallel.txt --unit ns -o layers.csv
      tensorexpress predict --set job.csv=layers.csv
    """
    check_file("--output", output)
    found = read_foreign(path, format_, unit=unit, dtype=dtype)
    click.echo("\n".join(map(one_line, _summary(path, found))))
    if output is not None and write_csv(found.workload, output, with_names=True):
        say(f"wrote {output}")


def _summary(path: str, found: Imported) -> list[str]:
    workload = found.workload
    params = sum(layer.params for layer in workload.layers)
    forward_ps = sum(layer.forward_ps for layer in workload.layers)
    lines = [
        f"{path}: {found.source}",
        f"{counted(len(workload.layers), 'layer')}, {params:,} parameters, "
        f"{format_size(sum(workload.tensor_bytes))} of gradients ({workload.dtype})",
        f"compute {format_ms(workload.compute_ps)}: forward {format_ms(forward_ps)}, "
        f"backward {format_ms(workload.compute_ps - forward_ps)}; mean of {counted(found.iterations, 'iteration')}",
        f"explained: {found.explained:.1%} of an iteration of {format_ms(found.iteration_ps)}",
        *(f"- {note}" for note in found.notes),
    ]
    if workload.dtype != "fp32":
        lines.append(f"- gradients are {workload.dtype}: give the job dtype = {workload.dtype!r} beside this CSV")
    return lines
