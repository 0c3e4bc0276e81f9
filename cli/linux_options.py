"""Options that say which interface of a Linux machine gets queues, and of which rate; two verbs share them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tensorexpress.cli import Command
from tensorexpress.cli.options import with_option
from tensorexpress.errors import InputError
from tensorexpress.units import format_rate, parse_rate

if TYPE_CHECKING:
    from tensorexpress.plan import Plan

#: What --rate says where no rate is to be enforced.
LINE = "line"


def linux_options(command: Command) -> Command:
    """Add --dev and --rate."""
    for option in (
        click.option(
            "--rate",
            metavar="RATE|line",
            help="linux: what all queues share, such as 9.5Gbps; line: the interface's own speed, by the qdisc prio.  "
            "[default: the rate of the plan's hosts]",
        ),
        click.option(
            "--dev", "device", metavar="NAME", help="linux: the interface whose egress gets queues, such as eth0."
        ),
    ):
        command = option(command)
    return command


def host_rate(plan: Plan, rate: str | None) -> int | None:
    """Return the rate that --rate names in bit/s, None for the interface's own; without it that of the plan's hosts."""
    if rate == LINE:
        return None
    if rate is not None:
        return with_option("--rate", parse_rate, rate)
    cluster = plan.scenario.cluster
    links = cluster.directed()
    rates = {rate for source, rate in zip(links.source, links.rate_bps, strict=True) if source < len(cluster.hosts)}
    if len(rates) > 1:
        raise InputError(
            f"the hosts of the plan have links of {format_rate(min(rates))} to {format_rate(max(rates))}; "
            "say with --rate which one this is"
        )
    return rates.pop()
