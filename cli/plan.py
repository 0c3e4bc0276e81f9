"""tensorexpress plan: decide queues, slices and servers, and write them to a file that the other verbs take."""

from __future__ import annotations

import click

from tensorexpress.cli.options import check_outputs, one_policy, read_inputs, set_option, write_output


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
@click.option("-o", "--output", metavar="FILE", help="Write the plan as JSON; - prints it instead of the table.")
def plan(scenario: str | None, overrides: tuple[str, ...], policy: str, output: str | None) -> None:
    """Show what a policy decides for a scenario: each job's tensors by queue. With -o, write it for `deploy`.

    \b
      tensorexpress plan -o plan.json
      tensorexpress plan examples/two-jobs.toml --set cluster.queues=4
    """
    from tensorexpress.plan import make_plan
    from tensorexpress.plan_file import plan_text
    from tensorexpress.plan_report import as_table

    check_outputs(output)
    inputs = read_inputs(scenario, overrides, [policy])
    decided = make_plan(inputs, one_policy(inputs, policy))
    if output is not None:
        write_output(output, plan_text(decided))
    if output != "-":
        click.echo(as_table(decided))
