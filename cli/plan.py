"""tensorexpress plan: decide queues, slices, servers and paths, and write them to a file that the other verbs take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tensorexpress.cli.options import check_file, check_outputs, read_with_one_policy, set_option, write_output
from tensorexpress.errors import InputError
from tensorexpress.wire.dscp import check_dscps

if TYPE_CHECKING:
    from tensorexpress.scenario import Scenario


@click.command(short_help="Decide every tensor's queue and write the plan to a file.")
@click.argument("scenario", required=False, metavar="[SCENARIO.toml]")
@set_option
@click.option(
    "--policy",
    metavar="NAME[:CHOICE=VALUE,...]",
    default="tensorexpress",
    show_default=True,
    help="The policy to plan for.",
)
@click.option(
    "--dscp",
    "dscps",
    metavar="DSCP,...",
    help="DSCP of every queue, most urgent first, each lower than the one before, such as 46,34,26,0 for 4 queues.  "
    "[default: 40 (CS5) and down, 0 last]",
)
@click.option("--paths", is_flag=True, help="Show the path of every two hosts that talk: switches, and their ports.")
@click.option(
    "--plot", "plot_path", metavar="FILE", help="Draw the network: links by load, where sums happen (.png, .svg, .pdf)."
)
@click.option("-o", "--output", metavar="FILE", help="Write the plan as JSON; - prints it instead of the table.")
def plan(
    scenario: str | None,
    overrides: tuple[str, ...],
    policy: str,
    dscps: str | None,
    paths: bool,
    plot_path: str | None,
    output: str | None,
) -> None:
    """Show what a policy decides for a scenario: each job's tensors by queue. With -o, write it for `deploy`.

    \b
      tensorexpress plan -o plan.json
      tensorexpress plan examples/two-jobs.toml --set cluster.queues=4
      tensorexpress plan examples/leaf-spine.toml --paths
      tensorexpress plan examples/inart.toml --policy inart --plot fabric.png
      tensorexpress plan --set cluster.queues=4 --dscp 46,34,26,0 -o plan.json
    """
    from tensorexpress.plan import make_plan
    from tensorexpress.plan_file import plan_text
    from tensorexpress.results.fabric_plot import plot_fabric
    from tensorexpress.results.figure import check_suffix
    from tensorexpress.results.plan_report import as_table

    check_file("--plot", plot_path)
    check_outputs(output, plot_path)
    if plot_path is not None:
        check_suffix(plot_path)
    inputs, chosen = read_with_one_policy(scenario, overrides, policy)
    decided = make_plan(inputs, chosen, None if dscps is None else _dscps(dscps, inputs))
    if output is not None:
        write_output(output, plan_text(decided))
    if plot_path is not None:
        plot_fabric(decided, plot_path)
    if output != "-":
        click.echo(as_table(decided, paths=paths))


def _dscps(text: str, inputs: Scenario) -> tuple[int, ...]:
    """Return the DSCPs that --dscp lists; InputError names the option."""
    values = [value.strip() for value in text.split(",")]
    if not all(value.isascii() and value.isdigit() and len(value) < 4 for value in values):
        raise InputError(f"--dscp {text!r}; accepted: whole numbers with commas between them, such as 46,34,26,0")
    try:
        return check_dscps([int(value) for value in values], inputs.cluster.queues)
    except InputError as error:
        raise InputError(f"--dscp {text!r}: {error}") from None
