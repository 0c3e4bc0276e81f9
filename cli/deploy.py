"""tensorexpress deploy: bring switches to what a plan says."""

from __future__ import annotations

import click

from tensorexpress.cli.deploy_linux import check_options, deploy_linux
from tensorexpress.cli.deploy_p4 import check_no_switches, deploy_p4, watch_settings, write_entries
from tensorexpress.cli.linux_options import linux_options
from tensorexpress.cli.options import check_outputs, replan_options
from tensorexpress.cli.targets import read_targets, target_options
from tensorexpress.errors import InputError


@click.command(short_help="Bring switches, or an interface of this machine, to what a plan says.")
@click.argument("plan_path", metavar="PLAN.json")
@click.option(
    "--target",
    type=click.Choice(["p4", "linux"]),
    default="p4",
    show_default=True,
    help="Switches that speak P4Runtime, or the egress of one interface of this machine.",
)
@target_options
@click.option("--partial", is_flag=True, help="Deploy to the switches named here alone, and not to all of the plan.")
@click.option("--dry-run", is_flag=True, help="Show the difference, and write nothing.")
@click.option(
    "--election-id",
    type=click.IntRange(min=1, max=2**128 - 1),
    default=1,
    show_default=True,
    help="Of several controllers the one with the highest may write.",
)
@click.option(
    "--bind-sources/--no-bind-sources",
    default=True,
    show_default=True,
    help="Drop packets to the tensor port that a host sends in the name of another.",
)
@click.option(
    "--strangers",
    type=click.Choice(["remark", "drop"]),
    default="remark",
    show_default=True,
    help="Tensor packets at a port where their job has no business: make them best effort, or drop them.",
)
@click.option(
    "--limit",
    "limits",
    metavar="JOB=RATE",
    multiple=True,
    help='Rate above which a job is best effort, such as job0="5 Gbps"; may be repeated.',
)
@click.option(
    "--miss",
    type=click.Choice(["drop", "controller"]),
    default="drop",
    show_default=True,
    help="Packets to unknown addresses: drop them, or send them to the controller.",
)
@click.option("--hosts", "hosts_path", metavar="FILE", help="TOML file of hosts' addresses that are not the default.")
@click.option("--trust-dscp", is_flag=True, help="Let the DSCP of packets without our header say their queue.")
@click.option(
    "--entries",
    "entries_directory",
    metavar="DIR",
    help="Ask no switch: write the program and the entries of every switch of the plan there, for `switch replay`.",
)
@click.option("--stay", is_flag=True, help="Stay, as primary or as backup, and deploy again when a switch comes back.")
@replan_options("With --stay")
@click.option(
    "--json", "json_path", metavar="FILE", help="Write every change as JSON; - prints it instead of the table."
)
@linux_options
@click.option("--remove", is_flag=True, help="linux: take the queues away; the interface gets its default ones.")
@click.pass_context
def deploy(
    context: click.Context,
    plan_path: str,
    target: str,
    switches: tuple[str, ...],
    device_ids: tuple[str, ...],
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    partial: bool,
    dry_run: bool,
    election_id: int,
    bind_sources: bool,
    strangers: str,
    limits: tuple[str, ...],
    miss: str,
    hosts_path: str | None,
    trust_dscp: bool,
    entries_directory: str | None,
    stay: bool,
    replan: float | None,
    every: float,
    json_path: str | None,
    device: str | None,
    rate: str | None,
    remove: bool,
) -> None:
    """Bring the switches of a plan to what it says: program, routes, queues, guards.

    Reads what is on a switch and writes only the difference: a second deploy writes nothing, and one that was
    interrupted can be repeated. What the plan does not want is removed, whoever put it there.

    With --target linux, give the egress of an interface of this machine the plan's queues, by tc; needs root.

    \b
      tensorexpress plan -o plan.json
      tensorexpress deploy plan.json --switch s0 --dry-run
      tensorexpress deploy plan.json --switch s0 --stay --replan 10
      tensorexpress deploy plan.json --entries entries
      tensorexpress deploy plan.json --target linux --dev eth0 --dry-run
    """
    check_options(context, target)
    if target == "linux":
        deploy_linux(plan_path, device, rate, remove=remove, dry_run=dry_run, json_path=json_path)
        return
    choices = {"bind_sources": bind_sources, "strangers": strangers, "miss": miss, "trust_dscp": trust_dscp}
    if entries_directory is not None:
        check_no_switches(context)
        write_entries(plan_path, entries_directory, hosts_path, limits, **choices)
        return
    if stay and (dry_run or json_path):
        raise InputError("--stay goes with neither --dry-run nor --json; leave one of them out")
    if replan is not None and (partial or not stay):
        raise InputError("--replan goes with --stay and with all switches of the plan; give --stay, and no --partial")
    check_outputs(json_path)
    deploy_p4(
        plan_path,
        read_targets(switches, device_ids, tls_ca, tls_cert, tls_key, election_id),
        hosts_path,
        limits,
        partial=partial,
        dry_run=dry_run,
        stay=stay,
        replan=None if replan is None else watch_settings(replan, every),
        json_path=json_path,
        **choices,
    )
