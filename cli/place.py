"""tensorexpress place: what every server should get of a model, where it is summed, and how fast that can be."""

from __future__ import annotations

import click

from tensorexpress.cli.options import check_outputs, read_inputs, set_option, write_json
from tensorexpress.placement import WAYS
from tensorexpress.policy import PLACEMENTS

_CHOICES = [name for name in PLACEMENTS if name != "none"]


@click.command(short_help="Split a model over servers, and plan sums and routes for the highest rate.")
@click.argument("scenario", required=False, metavar="[SCENARIO.toml]")
@set_option
@click.option(
    "--placement",
    type=click.Choice(_CHOICES),
    default="inart",
    show_default=True,
    help="The placement to show in full; all are compared.",
)
@click.option(
    "--sums",
    type=click.Choice(list(WAYS)),
    default="trees",
    show_default=True,
    help="Who sums: every switch on the way (trees), one switch at the most (once), or servers alone (none).",
)
@click.option("--more/--no-more", default=True, show_default=True, help="Say what more of something would bring.")
@click.option("--json", "json_path", metavar="FILE", help="Write everything as JSON; - prints it instead of the table.")
def place(
    scenario: str | None,
    overrides: tuple[str, ...],
    placement: str,
    sums: str,
    more: bool,
    json_path: str | None,
) -> None:
    """Show how fast all workers of a job can send, by what its servers get, where it is summed and which way it goes.

    `plan`, `predict`, `deploy` and `run` carry a placement out: give them --policy inart, or any policy with
    placement=NAME.

    \b
      tensorexpress place examples/inart.toml
      tensorexpress place examples/inart.toml --sums once --placement equal
      tensorexpress place examples/inart.toml --set cluster.switch_rate="20 Gbps" --json -
    """
    from tensorexpress.results import placement_report as report

    check_outputs(json_path)
    inputs = read_inputs(scenario, overrides).scenario
    studies = report.study(inputs, placement, sums, more=more)
    moments = report.followed(inputs, placement, sums)
    if json_path is not None:
        write_json(json_path, report.as_json(inputs, studies, moments))
    if json_path != "-":
        click.echo(report.as_table(inputs, studies, moments))
