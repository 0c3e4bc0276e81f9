"""Calibrations: what a target on this machine adds to the model, so that a prediction is for this machine.

The model knows links: a packet occupies one for size / rate, and arrives whole after that and the link's delay. Hosts
and switches of a target also take time for every packet, timers come late, links are a little slower than they are told
to be, and have no delay but what a target emulates. On the way of one packet of n bytes from host to host, this is
added:

    host_packet_ps + n * host_byte_ps           in the two hosts: sending, receiving, checking
    switch_packet_ps + n * switch_byte_ps       in a switch
    timer_ps                                    before the first packet of a tensor whose gradient is due

These become the delays of links; no part of them occupies a link, because while one packet is looked at the next is on
its way. What does occupy the link, its actual rate, is `rate_share` of the nominal one. Cables of targets have no speed
of their own: software keeps them to a rate. Where it does so by letting a packet pass at once and keeping the next one
waiting, links become paced ones.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from os import PathLike
from reprlib import repr as short_repr
from typing import Any, get_type_hints

import numpy as np

from tensorexpress.baseline import FittedBaseline
from tensorexpress.cluster import Cluster, Link, with_rates
from tensorexpress.emulation import emulated_delay_ps
from tensorexpress.errors import InputError, NetworkError, unknown
from tensorexpress.files import read_json, write_atomic
from tensorexpress.framing import ETHERNET_BYTES, Framing
from tensorexpress.graph import KINDS
from tensorexpress.names import ACCEPTED as ACCEPTED_NAME
from tensorexpress.names import is_name
from tensorexpress.plan import Plan, make_plan
from tensorexpress.policy import POLICIES
from tensorexpress.scaling import factor_for
from tensorexpress.scenario import Change, Job, Scenario, Transport
from tensorexpress.text import json_text
from tensorexpress.topologies import star
from tensorexpress.trace import Ints, Trace
from tensorexpress.units import LARGEST, PS_PER_MS, PS_PER_SECOND, format_rate, serialisation_ps
from tensorexpress.workload import Layer, Workload

#: What says that a JSON file is a calibration, and of which form.
FORMAT = "tensorexpress calibration"
VERSION = 3

_MAKE_ONE = "make one with `tensorexpress calibrate`"


@dataclass(frozen=True)
class Calibration:
    """What was measured of a target on one machine."""

    target: str
    #: Rate of the links on which it was measured; links of predictions are no faster.
    rate_bps: int
    #: Actual rate of a link over its nominal one.
    rate_share: float
    #: Time in the sending and the receiving host together, per packet and per byte.
    host_packet_ps: int
    host_byte_ps: int
    #: Time in a switch, per packet and per byte.
    switch_packet_ps: int
    switch_byte_ps: int
    #: How late a host acts on a timer: from a gradient's being due to its first packet.
    timer_ps: int
    #: How many of the two links from host to host are paced: neither, that of the sending host, or both.
    paced_links: int


@dataclass(frozen=True)
class HostCost:
    """Time that sending and receiving one packet takes, both hosts together and no network between them."""

    packet_ps: int
    byte_ps: int


#: Iterations of the probe that are measured: enough for medians, and some seconds on every target.
ITERATIONS = 12
_WARMUP = 2

#: How long the long tensor of the probe occupies a link, beside which a timer's lateness is little; and what separates
#: transfers: they never meet, even where links have only half of their rate.
_STREAM_PS, _GAP_PS = 200 * PS_PER_MS, 20 * PS_PER_MS

#: A window that no target's round trip can use up, so that the stream shows the rate of a link; and a time-out that no
#: packet of it waits for, because what is sent twice would occupy that link, too.
_WINDOW_BYTES = 10**6
_TIME_OUT_PS = 5 * PS_PER_SECOND

#: The links from host to host of the probe.
_LINKS = 2

#: Shares of its rate that a link can have; what is beyond was measured on a machine that did something else.
_LEAST_SHARE, _MOST_SHARE = 0.1, 1.5

#: What the values of a calibration lie between; the others are times, and no packet takes longer than this anywhere.
_RANGES = {
    "rate_bps": (1, LARGEST),
    "rate_share": (_LEAST_SHARE, _MOST_SHARE),
    "host_byte_ps": (0, 10**9),
    "switch_byte_ps": (0, 10**9),
    "paced_links": (0, _LINKS),
    "copy_rate_bps": (0, LARGEST),
    "iteration_ps": (1, LARGEST),
}

#: What a file holds: what a target adds, or what a user's baseline shows of the software of hosts.
_KINDS: dict[str, type[Calibration | FittedBaseline]] = {"measured": Calibration, "fitted": FittedBaseline}
_LONGEST_PS = 10 * PS_PER_SECOND

#: The tensors of the probe, by index.
_SMALL, _FULL, _STREAM = range(3)


def probe_plan(rate_bps: int, mtu: int, iterations: int = ITERATIONS) -> Plan:
    """Return the plan whose run shows what a target adds: one worker, one server, three tensors that never meet.

    The first is one parameter, the second fills a packet, and the third occupies a link for 200 ms.
    """
    transport, framing = Transport(_WINDOW_BYTES, rto_min_ps=_TIME_OUT_PS), Framing(mtu)
    cluster = star(2, rate_bps, delay=0, mtu=mtu)
    full = framing.payload_bytes // 4
    packet_ps = serialisation_ps(framing.full_packet_bytes, rate_bps)
    packets = 1 + _STREAM_PS // packet_ps
    # There and back over two links each, at half of their rate.
    gap_ps = _GAP_PS + 8 * packet_ps
    layers = (
        Layer("one parameter", 1, PS_PER_MS, gap_ps),
        Layer("one packet", full, PS_PER_MS, gap_ps + 4 * _STREAM_PS),
        Layer("stream", full * packets, PS_PER_MS, PS_PER_MS),
    )
    job = Job("probe", Workload("probe", layers), workers=(0,), servers=(1,))
    scenario = Scenario("calibration", cluster, (job,), transport, iterations=iterations, warmup=_WARMUP)
    return make_plan(scenario, POLICIES["fifo"])


def fit(target: str, plan: Plan, measured: Trace, predicted: Trace, cost: HostCost) -> Calibration:
    """Return the calibration with which the model would have predicted what was measured of the probe.

    `predicted` is the probe simulated as it was planned. What hosts add was measured apart; the rest is the switch's.
    """
    scenario = plan.scenario
    rate_bps = scenario.cluster.links[0].rate_bps
    latencies = _latency_ps(measured)
    seen, model = np.median(latencies, axis=0), np.median(_latency_ps(predicted), axis=0)
    # One packet that comes late delays the whole stream behind it, however long that is; that is no lower rate.
    quickest = latencies.min(axis=0)
    rate_share = float((model[_STREAM] - model[_FULL]) / (quickest[_STREAM] - quickest[_FULL]))
    if not _LEAST_SHARE < rate_share < _MOST_SHARE:
        raise NetworkError(
            f"the links of target {target} ran at {rate_share:.0%} of {format_rate(rate_bps)}, which cannot be; "
            "calibrate again when this machine has less else to do, with more --iterations"
        )
    # No link is faster than it is told to be; one that seems to be has made up for a late start.
    rate_share = min(rate_share, 1.0)
    # One way is half of there and back.
    added = (seen - model / rate_share) / 2
    small, full = (size + scenario.framing.header_bytes for size in scenario.jobs[0].workload.tensor_bytes[:2])
    byte_ps = float(added[_FULL] - added[_SMALL]) / (full - small)
    packet_ps = max(0.0, float(added[_SMALL]) - byte_ps * small)
    # Bytes that arrive sooner than the model says did not wait for a link.
    link_byte_ps = 8 * PS_PER_SECOND / (rate_share * rate_bps)
    paced_links = min(_LINKS, max(0, round((cost.byte_ps - byte_ps) / link_byte_ps)))
    byte_ps += paced_links * link_byte_ps
    timer_ps = min(_lateness_ps(measured), 2 * packet_ps)
    host_packet_ps = min(cost.packet_ps, packet_ps - timer_ps / 2)
    return Calibration(
        target=target,
        rate_bps=rate_bps,
        rate_share=rate_share,
        host_packet_ps=round(host_packet_ps),
        host_byte_ps=cost.byte_ps,
        switch_packet_ps=round(packet_ps - timer_ps / 2 - host_packet_ps),
        switch_byte_ps=round(max(0.0, byte_ps - cost.byte_ps)),
        timer_ps=round(timer_ps),
        paced_links=paced_links,
    )


def _latency_ps(trace: Trace) -> Ints:
    """Return the latencies of the probe's tensors, by (iteration, tensor)."""
    job = trace.jobs[0]
    return (job.updated_ps - job.gradient_ps)[trace.warmup :, 0]


def _lateness_ps(trace: Trace) -> float:
    """Return how long after its gradient was due the first packet of a tensor usually left."""
    transfers = trace.jobs[0].transfers
    pushes = transfers[(transfers["kind"] == KINDS.index("push")) & (transfers["tensor"] == _SMALL)]
    return float(np.median(pushes["sent_ps"] - pushes["ready_ps"]))


def calibrate_scenario(scenario: Scenario, calibration: Calibration | FittedBaseline) -> Scenario:
    """Return the scenario as the target runs it: with the rates and delays that its links have there.

    Of a fitted baseline, it is the scenario whose hosts copy at the rate that was found.
    """
    if isinstance(calibration, FittedBaseline):
        return replace(scenario, transport=replace(scenario.transport, copy_rate_bps=calibration.copy_rate_bps))
    factor = factor_for(scenario, calibration.rate_bps)
    if factor > 1:
        fastest_bps = scenario.greatest_rate_bps
        raise InputError(
            f"{scenario.name}: a link runs at {format_rate(fastest_bps)}, and the target {calibration.target} was "
            f"calibrated up to {format_rate(calibration.rate_bps)}; accepted: a scenario that it can run, as with "
            f"--scale {factor}"
        )
    cluster = scenario.cluster
    links = tuple(_calibrate_link(link, cluster, calibration) for link in cluster.links)
    changes = tuple(_calibrate_change(change, calibration) for change in scenario.changes)
    return replace(scenario, cluster=replace(cluster, links=links), changes=changes)


def _calibrate_change(change: Change, calibration: Calibration) -> Change:
    """Give a link meanwhile what the target reaches of its rate; a share is one of that already."""
    if change.rate_bps is None:
        return change
    return replace(change, rate_bps=max(1, round(change.rate_bps * calibration.rate_share)))


def _calibrate_link(link: Link, cluster: Cluster, calibration: Calibration) -> Link:
    """Give a link its share of what hosts and switches add: half of what is added at either end.

    A packet passes the links of two hosts, and two ends of links at every switch.
    """
    size = cluster.mtu + ETHERNET_BYTES
    rates_bps = (max(1, round(rate_bps * calibration.rate_share)) for rate_bps in link.rates_bps)
    # Of the two ways of a tensor, there and back, one starts with a timer.
    at_host_ps = calibration.host_packet_ps + size * calibration.host_byte_ps + calibration.timer_ps // 2
    at_switch_ps = calibration.switch_packet_ps + size * calibration.switch_byte_ps
    is_switch = [end in cluster.switches for end in (link.a, link.b)]
    added_ps = sum(at_switch_ps if switch else at_host_ps for switch in is_switch) // 2
    added_ps += emulated_delay_ps(link, calibration.target)
    a, b = (calibration.paced_links > switch for switch in is_switch)
    return replace(with_rates(link, *rates_bps), delay_ps=max(a or b, added_ps), paced=(a, b))


def calibrate_plan(plan: Plan, calibration: Calibration | FittedBaseline) -> Plan:
    """Return the plan on the target's actual links; all that was decided stays as it was."""
    return replace(plan, scenario=calibrate_scenario(plan.scenario, calibration))


def write_calibration(path: str | PathLike[str], calibration: Calibration | FittedBaseline) -> None:
    """Write a calibration to a JSON file."""
    [name] = [name for name, kind in _KINDS.items() if isinstance(calibration, kind)]
    write_atomic(path, json_text({"format": FORMAT, "version": VERSION, name: asdict(calibration)}))


def read_calibration(path: str | PathLike[str]) -> Calibration | FittedBaseline:
    """Return the calibration of a file that `tensorexpress calibrate` wrote."""
    document = read_json(path, _MAKE_ONE)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(f"{path}: is no calibration; {_MAKE_ONE}")
    found = [name for name in _KINDS if isinstance(document.get(name), dict)]
    unmeasured = len(found) != 1
    if type(document.get("version")) is not int or document["version"] != VERSION or unmeasured:
        raise InputError(f"{path}: version is {short_repr(document.get('version'))}; accepted: {VERSION}; {_MAKE_ONE}")
    return _from_json(_KINDS[found[0]], document[found[0]], str(path))


def _from_json(
    kind: type[Calibration | FittedBaseline], values: dict[str, Any], path: str
) -> Calibration | FittedBaseline:
    names = [field.name for field in fields(kind)]
    for name in values:
        if name not in names:
            raise InputError(f"{path}: {unknown('key', name, names)}")
    kinds = get_type_hints(kind)
    for name in names:
        value = values.get(name)
        least, most = _RANGES.get(name, (0, _LONGEST_PS))
        number = value if type(value) is kinds[name] and isinstance(value, int | float) else math.nan
        if not (is_name(value) if kinds[name] is str else least <= number <= most):
            accepted = ACCEPTED_NAME if kinds[name] is str else f"{least} to {most}"
            raise InputError(f"{path}: {name} is {short_repr(value)}; accepted: {accepted}; {_MAKE_ONE}")
    return kind(**values)
