"""tensorexpress explain: where the gain of a policy comes from, one choice at a time."""

from __future__ import annotations

import click

from tensorexpress.cli.options import check_outputs, progress, read_with_one_policy, scenario_options, write_json


@click.command(short_help="Split a gain into slicing, host order, switch order and what is left.")
@scenario_options
@click.option(
    "--policy",
    metavar="NAME[:CHOICE=VALUE,...]",
    default="tensorexpress",
    show_default=True,
    help="The policy whose gain over fifo is explained.",
)
@click.option(
    "--json", "json_path", metavar="FILE", help="Write the steps as JSON; - prints them instead of the table."
)
@click.option(
    "--plot", "plot_path", metavar="FILE", help="Draw a waterfall from fifo to the optimum (.png, .svg, .pdf)."
)
def explain(
    scenario: str | None,
    overrides: tuple[str, ...],
    engine: str,
    policy: str,
    json_path: str | None,
    plot_path: str | None,
) -> None:
    """Explain the gain of a policy by switching its choices on one at a time, from fifo to the optimum.

    What a choice gains depends on those that are on already, so the table also shows its gain alone (nothing else is
    on) and last (all else is on).

    \b
      tensorexpress explain
      tensorexpress explain --policy p3 --set cluster.bandwidth="5 Gbps"
      tensorexpress explain examples/two-jobs.toml --plot explain.png
    """
    from tensorexpress.results import explanation_report as report
    from tensorexpress.results.explanation_plot import plot_explanation
    from tensorexpress.results.figure import check_suffix
    from tensorexpress.sim import explain as explaining
    from tensorexpress.sim.run import load_engine

    check_outputs(json_path, plot_path)
    if plot_path is not None:
        check_suffix(plot_path)
    inputs, chosen = read_with_one_policy(scenario, overrides, policy)
    load_engine(engine)
    with progress(explaining.simulations(chosen), "simulating") as advance:
        explanation = explaining.explain(inputs, chosen, engine, progress=lambda _: advance())
    if json_path is not None:
        write_json(json_path, report.as_json(explanation))
    if plot_path is not None:
        plot_explanation(explanation, plot_path)
    if json_path != "-":
        click.echo(report.as_table(explanation))
