"""tensorexpress profile: what every layer of a PyTorch model takes on this machine, as CSV for scenarios."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tensorexpress.cli import say
from tensorexpress.cli.options import check_file
from tensorexpress.errors import one_line
from tensorexpress.torch.profile_layers import LAYER_KINDS
from tensorexpress.torch.profile_source import build, parse_source, told_in_a_line
from tensorexpress.units import format_time

if TYPE_CHECKING:
    from tensorexpress.torch.profile_model import ModelProfile


@click.command(short_help="Run some steps of a PyTorch model, and write its layers for job.csv.")
@click.argument("source", metavar="FILE.py:FUNCTION")
@click.option("-o", "--output", metavar="LAYERS.csv", help="Where to write the layers, for job.csv.")
@click.option("--steps", type=int, default=10, show_default=True, help="Steps that are measured; times are medians.")
@click.option("--warmup", type=int, default=3, show_default=True, help="Steps before those, at least one.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Where to run.  [default: where FUNCTION puts it]")
@click.option("--threads", type=int, help="Threads that compute on the CPU.  [default: torch's own]")
@click.option(
    "--each",
    type=click.Choice(LAYER_KINDS),
    default="module",
    show_default=True,
    help="What a layer is: the parameters that a module uses together, or every parameter.",
)
def profile(
    source: str, output: str | None, steps: int, warmup: int, device: str | None, threads: int | None, each: str
) -> None:
    """Run steps of the model that FUNCTION builds, and say what its layers take and how much of a step that explains.

    FUNCTION takes nothing and returns (model, inputs, loss): a torch.nn.Module, the tuple of what it is called with,
    and a function that makes one number of what it returns. MODULE:FUNCTION works as well.

    \b
      tensorexpress profile examples/torch/convnet.py:build -o layers.csv
      tensorexpress predict --set job.csv=layers.csv
    """
    check_file("--output", output)
    found = parse_source(source, Path())
    model, inputs, loss = build(found)
    from tensorexpress.torch.profile_model import profile as measure

    with told_in_a_line(found):
        choices: dict[str, Any] = {"device": device, "threads": threads, "each": each, "name": found.name}
        measured = measure(model, inputs, loss, steps=steps, warmup=warmup, **choices)
    click.echo("\n".join(map(one_line, [*measured.summary(), _beside_the_csv(measured)])))
    if output is not None and measured.write(output):
        say(f"wrote {output}")


def _beside_the_csv(measured: ModelProfile) -> str:
    """Return what the CSV has no room for, as a job takes it."""
    workload = measured.workload
    keys = [f"overhead = {format_time(measured.overhead_ps)!r}"]
    if workload.batch:
        keys.append(f"batch = {workload.batch}")
    if workload.dtype != "fp32":
        keys.append(f"dtype = {workload.dtype!r}")
    return f"beside the CSV, the job takes {', '.join(keys)}"
