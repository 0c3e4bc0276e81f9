"""Cabling: the links of a cluster as cables between hosts and ports of switches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tensorexpress.cluster import Link
from tensorexpress.errors import PlanError
from tensorexpress.plan import Plan


class Cable(NamedTuple):
    """A link, and what it joins."""

    link: Link
    #: The host at one end; None between two switches.
    host: str | None
    #: Switch and number of the port at every other end: one or two.
    ports: tuple[tuple[str, int], ...]


def cables(plan: Plan) -> Iterator[Cable]:
    """Yield a cable for every link; PlanError where two hosts are joined without a switch.

    >>> from tensorexpress.plan import make_plan
    >>> from tensorexpress.policy import POLICIES
    >>> from tensorexpress.scenario import read_scenario
    >>> scenario = read_scenario(overrides=["job.workers=1", "job.servers=1"])
    >>> [(cable.host, cable.ports) for cable in cables(make_plan(scenario, POLICIES["fifo"]))]
    [('h0', (('s0', 0),)), ('h1', (('s0', 1),))]
    """
    cluster = plan.scenario.cluster
    port_of_link = {link: (name, port) for name in cluster.switches for port, link in cluster.ports(name).items()}
    for index, link in enumerate(cluster.links):
        near, far = port_of_link.get(2 * index), port_of_link.get(2 * index + 1)
        if near is None and far is None:
            raise PlanError(
                f"{plan.scenario.name}: {link.a} and {link.b} are joined without a switch; accepted: a switch between"
            )
        host = link.a if near is None else link.b if far is None else None
        yield Cable(link, host, tuple(filter(None, (near, far))))
