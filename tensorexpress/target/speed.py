"""How fast a target is on this machine: a probe measures it, and what a scenario asks for is held against that.

One machine carries the packets of all links, in processes that take a time for each. So small packets, and many links
that are busy at once, leave less for each. The probe is a run like any other, on links that are far too fast: what it
carries is what the machine can.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, replace

import tensorexpress
from tensorexpress.errors import InputError
from tensorexpress.framing import Framing
from tensorexpress.plan import Plan, make_plan
from tensorexpress.policy import POLICIES, Policy
from tensorexpress.processor import processor_kind
from tensorexpress.scaling import factor_for
from tensorexpress.scenario import Job, Scenario, Transport
from tensorexpress.sums import SUM_FRAMING
from tensorexpress.target import Target
from tensorexpress.target.runner import Run, run_plan
from tensorexpress.topologies import star
from tensorexpress.trace import Trace
from tensorexpress.units import LARGEST, PS_PER_MS, PS_PER_SECOND, counted, format_rate
from tensorexpress.user_cache import keep, kept
from tensorexpress.workload import Layer, Workload

#: So many packets a second, over all links, are carried by any machine: a run that needs no more is not kept waiting.
_ANY_MACHINE_PER_S = 600

#: Of what a machine carries at most, the share at which packets are still in time (benchmarks/run.py measures that).
_IN_TIME = 0.4

#: With more links than this busy, all cores are, and links share what there is.
_MOST_LINKS = 4

#: A packet of background traffic, or one that switches sum, takes as much work as one of so many times its size: it is
#: in no window, and nobody acknowledges it or puts it together.
_PLAIN_PACKET_WORTH = 4

#: The probe: links that no machine keeps up with, the packets of all of them each way in an iteration, a fraction of a
#: second on any machine, and the window of a flow, as scenarios have it if they say nothing else.
_PROBE_BPS = 10**10
_PROBE_PACKETS = 400
_PROBE_WINDOW_BYTES = 128_000
_PROBE_ITERATIONS = 5

#: How many of the processes that ask have the machine measured, and what this one has found: a run asks for every
#: policy.
_PROBES = 3
_found: dict[str, int] = {}


@dataclass(frozen=True)
class Load:
    """What a scenario asks of a machine at once."""

    #: Of the packets that links carry.
    mtu: int
    #: How many links are busy both ways, as many as the fastest would be.
    links: float
    #: Whether these packets are summed by switches.
    sums: bool

    @property
    def framing(self) -> Framing:
        """Return how long the packets are."""
        return SUM_FRAMING if self.sums else Framing(self.mtu)


def load_of(scenario: Scenario, policies: Iterable[Policy] = ()) -> Load:
    """Return the most that some policies ask of a machine in a scenario.

    With parameter servers at most all links of servers, or of workers, are busy; with sums in switches all links of
    workers, and where these end at servers what one of them sends once more: all servers together get one sum.
    Background traffic comes on top.
    """
    policies = tuple(policies)
    directed = scenario.cluster.directed()
    rates = dict(zip(directed.source, directed.rate_bps, strict=True))
    in_switches = any(policy.in_switches for policy in policies)
    end_at_servers = any(policy.sums_end_at_servers for policy in policies)
    busy_bps = 0
    for job in scenario.jobs:
        workers_bps, servers_bps = (sum(rates[host] for host in hosts) for hosts in (job.hosts, job.servers))
        busy_bps += workers_bps if in_switches or not job.servers else min(workers_bps, servers_bps)
        busy_bps += min(servers_bps, max(rates[host] for host in job.hosts)) if end_at_servers else 0
    full_bytes = (SUM_FRAMING if in_switches else Framing(scenario.cluster.mtu)).full_packet_bytes
    other_bps = sum(
        source.rate_bps * max(1.0, full_bytes / (_PLAIN_PACKET_WORTH * source.packet_bytes))
        for source in scenario.background
    )
    links = (busy_bps + other_bps) / max(directed.rate_bps)
    return Load(scenario.cluster.mtu, max(1.0, links), in_switches)


#: Measures what each link of a load carries at most, in bit/s.
Measure = Callable[[Target, Load], int]


def fastest_bps(
    scenario: Scenario, target: Target, policies: Iterable[Policy] = (), measure: Measure | None = None
) -> int:
    """Return the fastest link that a target keeps up with in a scenario, under every one of some policies."""
    return fastest_under(load_of(scenario, policies), target, scenario.greatest_rate_bps, measure)


def fastest_under(load: Load, target: Target, asked_bps: int = LARGEST, measure: Measure | None = None) -> int:
    """Return the fastest links that a target keeps up with on this machine, where as many are busy as the load says.

    Only who asks for more than any machine carries makes it necessary to measure.
    """
    surely_per_s = _ANY_MACHINE_PER_S * (_PLAIN_PACKET_WORTH if load.sums else 1)
    surely_bps = int(surely_per_s * 8 * load.framing.full_packet_bytes / load.links)
    if asked_bps <= surely_bps:
        return surely_bps
    links = min(_MOST_LINKS, math.ceil(load.links))
    most_bps = (measure or known_bps)(target, replace(load, links=links)) * min(1.0, links / load.links)
    return max(surely_bps, int(most_bps * _IN_TIME))


def check_speed(
    scenario: Scenario,
    target: Target,
    policies: Iterable[Policy] = (),
    measure: Measure | None = None,
    scaled_by: int = 1,
) -> None:
    """Refuse a scenario whose links are too fast for the target, with the --scale that replaces the one it has."""
    found_bps, policies = scenario.greatest_rate_bps, tuple(policies)
    accepted_bps = fastest_bps(scenario, target, policies, measure)
    if found_bps > accepted_bps:
        raise InputError(
            f"{scenario.name}: a link runs at {format_rate(found_bps)}; the target {target.name} keeps up with "
            f"{said(accepted_bps)} on this machine ({said_load(load_of(scenario, policies))}); give --scale "
            f"{factor_for(scenario, accepted_bps, scaled_by)} or --scale auto, which divides rates and multiplies "
            "times by that"
        )


def said(rate_bps: int) -> str:
    """Return a measured rate as it is said: two digits are what a measurement is good for.

    >>> said(183_456_789)
    '180 Mbps'
    """
    digits = max(0, len(str(rate_bps)) - 2)
    return format_rate(rate_bps // 10**digits * 10**digits)


def said_load(load: Load) -> str:
    """Return for what a rate holds.

    >>> said_load(Load(9000, 4.0, sums=False))
    'MTU 9000, 4 busy links'
    """
    packets = f"packets of {SUM_FRAMING.full_packet_bytes} bytes that switches sum" if load.sums else f"MTU {load.mtu}"
    return f"{packets}, {counted(math.ceil(load.links), 'busy link')}"


# Measuring


def known_bps(target: Target, load: Load, *, again: bool = False) -> int:
    """Return what each link of a load carries at most on this machine, the most that probes have found.

    The first few processes that ask have it measured, each once: a probe beside other work finds less than there is.
    `again` forgets what was found before.
    """
    machine = (processor_kind(), os.cpu_count(), platform.release(), tensorexpress.__version__)
    name = hashlib.sha256(repr((target.variant, astuple(load), machine)).encode()).hexdigest()
    if again or name not in _found:
        rates = [] if again else _rates_in(kept("speed", name) or b"")
        if len(rates) < _PROBES:
            rates = [*rates, measure_bps(target, load)]
            keep("speed", name, json.dumps(rates).encode())
        _found[name] = max(rates)
    return _found[name]


def _rates_in(content: bytes) -> list[int]:
    """Return the rates that were kept; none where something else was."""
    try:
        rates = json.loads(content)
    except ValueError:
        return []
    are_rates = isinstance(rates, list) and all(type(rate) is int and 0 < rate <= LARGEST for rate in rates)
    return rates if are_rates else []


def measure_bps(target: Target, load: Load, run: Callable[[Plan, Target], Run] = run_plan) -> int:
    """Run the probe of a load, and return what each of its links carried at most, both ways at once.

    Switches make no faults meanwhile: a lost packet waits for a time-out, which takes no work.
    """
    plan = probe_plan(load)
    return carried_bps(plan, run(plan, target.faultless).trace)


def probe_plan(load: Load) -> Plan:
    """Return a plan that keeps the links of a load, a whole number, as busy as the machine lets them.

    There are as many servers as workers, and each worker sends every server a tensor: every link carries as much.
    """
    links = int(load.links)
    params = load.framing.payload_bytes // 4 * (_PROBE_PACKETS // links**2)
    layers = tuple(Layer(f"to {server}", params, PS_PER_MS // 100, PS_PER_MS // 100) for server in range(links))
    workers, servers = tuple(range(links)), tuple(range(links, 2 * links))
    job = Job("probe", Workload("probe", layers), workers, servers)
    transport = Transport(_PROBE_WINDOW_BYTES, rto_min_ps=PS_PER_SECOND // 5)
    cluster = star(len(workers) + len(servers), _PROBE_BPS, delay=0, mtu=load.mtu)
    scenario = Scenario("speed", cluster, (job,), transport, iterations=_PROBE_ITERATIONS, warmup=1)
    return make_plan(scenario, POLICIES["switchml" if load.sums else "fifo"])


def carried_bps(plan: Plan, trace: Trace) -> int:
    """Return the rate at which links carried the probe's tensors, there and back, when they were quickest.

    Whatever else the machine did meanwhile made it slower, and says nothing of what it can do.
    """
    job = trace.jobs[0]
    taken_ps = (job.updated_ps.max(axis=(1, 2)) - job.gradient_ps.min(axis=(1, 2)))[trace.warmup :]
    framing = SUM_FRAMING if plan.policy.in_switches else plan.framing
    size = framing.wire_bytes(sum(plan.jobs[0].job.workload.tensor_bytes))
    return size * 8 * PS_PER_SECOND // int(taken_ps.min())
