"""Linux traffic control: the queues of a plan as `tc` commands for the egress of one interface.

Classes by DSCP, strict priority between them, and one rate that they share. docs/linux.md says why it is htb that does
this, and what it does not do.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorexpress.buffer import most_in_queue
from tensorexpress.errors import InputError, PlanError
from tensorexpress.framing import ETHERNET_BYTES
from tensorexpress.names import check_interface
from tensorexpress.plan import Plan
from tensorexpress.queueing import DISCIPLINES, Deployment
from tensorexpress.units import format_rate, format_size
from tensorexpress.wire.dscp import MOST_QUEUES, dscp_blocks

#: A command as its words.
Command = tuple[str, ...]

#: Handle of our root qdisc, by which it is known again. The class of queue q is MAJOR:q+1.
MAJOR = "7e"
_SHARED = f"{MAJOR}:ff"

#: Bytes of an Ethernet header, which Linux counts as part of a packet, unlike all else that surrounds it on the wire.
_HEADER_BYTES = 14
_OVERHEAD_BYTES = ETHERNET_BYTES - _HEADER_BYTES

#: Largest limit that bfifo takes.
_LARGEST_LIMIT = 2**32 - 1

_ICMPV6 = 58

#: Rates that htb keeps to; what is slower sends less than a packet a second.
_SLOWEST_BPS, _FASTEST_BPS = 10_000, 10**12


@dataclass(frozen=True, slots=True)
class Egress:
    """What the sending side of an interface is to be like."""

    #: The DSCP of every strict-priority queue, most urgent first; what has another goes where `queue_of_dscp` says.
    dscps: tuple[int, ...]
    #: Bit/s that all queues share, counted as on the wire; None is the interface's own speed.
    rate_bps: int | None
    #: Bytes that may wait at the interface, as on the wire; 0 is no limit.
    buffer_bytes: int
    #: Largest IP packet in bytes.
    mtu: int
    #: An egress that was due to send and was woken up late may catch up with this much of its time.
    catch_up_us: int = 200

    def __post_init__(self) -> None:
        if self.rate_bps is not None and not _SLOWEST_BPS <= self.rate_bps <= _FASTEST_BPS:
            raise InputError(
                f"rate {format_rate(self.rate_bps)}; accepted by tc: {format_rate(_SLOWEST_BPS)} to "
                f"{format_rate(_FASTEST_BPS)}"
            )

    @property
    def queues(self) -> int:
        """Strict-priority queues; queue 0 is the most urgent."""
        return len(self.dscps)


def dscps_of(plan: Plan) -> tuple[int, ...]:
    """Return the DSCPs by which packets of a plan are told apart, one for each queue: one if it wants them in order.

    >>> from tensorexpress.plan import make_plan
    >>> from tensorexpress.policy import POLICIES
    >>> from tensorexpress.scenario import read_scenario
    >>> [dscps_of(make_plan(read_scenario(), POLICIES[name])) for name in ("tensorexpress", "p3")]
    [(40, 34, 32, 26, 24, 18, 16, 0), (0,)]
    """
    queues, deployment = plan.scenario.cluster.queues, None if plan.policy.in_switches else plan.policy.deployment
    if deployment is Deployment.ONE_QUEUE:
        return plan.dscps[-1:] or (0,)
    if deployment is not Deployment.TABLE:
        by_dscp = (Deployment.ONE_QUEUE, Deployment.TABLE)
        accepted = [f"switch={name}" for name, discipline in DISCIPLINES.items() if discipline.deployment in by_dscp]
        raise PlanError(
            f"policy {plan.policy.name!r} wants {plan.policy.discipline!r} and sum={plan.policy.sums} in the switch, "
            f"which no DSCP can say; accepted where queues follow the DSCP: {' or '.join(accepted)}, and sum=none"
        )
    if queues > MOST_QUEUES:
        raise PlanError(
            f"the plan has {queues} queues; accepted where queues follow the DSCP: at most {MOST_QUEUES}; make it "
            f"again with --set cluster.queues={MOST_QUEUES}"
        )
    return plan.dscps


def egress_of(plan: Plan, rate_bps: int | None) -> Egress:
    """Return what the egress of an interface of the given rate is like under a plan."""
    cluster = plan.scenario.cluster
    return Egress(dscps_of(plan), rate_bps, cluster.buffer_bytes, cluster.mtu)


def summary(egress: Egress) -> str:
    """Return what an egress is like on one line.

    >>> summary(Egress((40, 32, 0), rate_bps=10**10, buffer_bytes=16_000_000, mtu=9000))
    '3 queues by DSCP share 10 Gbps; each holds up to 10.67 MB'
    """
    share = "the interface's own speed" if egress.rate_bps is None else format_rate(egress.rate_bps)
    most = most_in_queue(egress.buffer_bytes, egress.queues)
    size = f"holds up to {format_size(most)}" if egress.buffer_bytes else "holds whatever comes"
    if egress.queues == 1:
        return f"1 queue in order of arrival has {share}; it {size}"
    return f"{egress.queues} queues by DSCP share {share}; each {size}"


def setup(device: str, egress: Egress) -> list[Command]:
    """Return the commands that give an interface its queues, whatever queues it has."""
    check_interface(device)
    root, parts = _unshaped(egress) if egress.rate_bps is None else _shaped(egress, egress.rate_bps)
    words = [
        # Our root is made anew in any case, and its handle is free only when another one has taken its place.
        f"qdisc replace dev {device} root pfifo",
        f"qdisc replace dev {device} root handle {MAJOR}: {root}",
        *(f"{what} add dev {device} {rest}" for what, rest in [*parts, *_filters(egress.dscps)]),
    ]
    return [("tc", *line.split()) for line in words]


def reshape(device: str, egress: Egress) -> list[Command]:
    """Return the commands that give another rate to queues that `setup` made, which keep what waits in them."""
    check_interface(device)
    assert egress.rate_bps is not None
    _, parts = _shaped(egress, egress.rate_bps)
    return [("tc", "class", "change", "dev", device, *rest.split()) for what, rest in parts if what == "class"]


def remove(device: str) -> list[Command]:
    """Return the commands that take the queues from an interface; the kernel then gives it its default ones.

    >>> remove("eth0")
    [('tc', 'qdisc', 'del', 'dev', 'eth0', 'root')]
    """
    return [("tc", "qdisc", "del", "dev", check_interface(device), "root")]


_Part = tuple[str, str]


def _shaped(egress: Egress, rate_bps: int) -> tuple[str, list[_Part]]:
    """Return htb's root and classes. All of the rate belongs to the shared class, and is lent by priority.

    A class must have a rate of its own, which it gets out of turn; the least there is, 8 bit/s, is one packet a minute.
    """
    frame = egress.mtu + _HEADER_BYTES
    burst = max(1, rate_bps * egress.catch_up_us // 8_000_000)
    shares = f"overhead {_OVERHEAD_BYTES} quantum {frame}"
    rate = f"{rate_bps}bit"
    classes = [("class", f"parent {MAJOR}: classid {_SHARED} htb rate {rate} burst {burst} cburst {burst} {shares}")]
    for queue in range(egress.queues):
        own = f"rate 8bit burst 1 ceil {rate} cburst {burst} prio {queue} {shares}"
        classes.append(("class", f"parent {_SHARED} classid {_class(queue)} htb {own}"))
    return f"htb default {egress.queues:x}", classes + _buffers(egress)


def _unshaped(egress: Egress) -> tuple[str, list[_Part]]:
    """Return prio's root. It has no rate: it puts in order what waits because the interface is busy."""
    if egress.queues == 1:
        return f"bfifo limit {_limit(egress)}", []
    lowest = " ".join([str(egress.queues - 1)] * 16)
    return f"prio bands {egress.queues} priomap {lowest}", _buffers(egress)


def _buffers(egress: Egress) -> list[_Part]:
    limit = _limit(egress)
    return [("qdisc", f"parent {_class(queue)} bfifo limit {limit}") for queue in range(egress.queues)]


def _filters(dscps: tuple[int, ...]) -> Iterator[_Part]:
    """Yield what finds a packet's class; those that match nothing are of the least urgent queue."""
    if len(dscps) == 1:
        return
    # Without an answer to these a neighbour cannot be sent to at all, so they must not starve.
    yield _filter("arp", 1, "match u32 0 0", 0)
    yield _filter("ipv6", 2, f"match u8 {_ICMPV6:#x} 0xff at 6", 0)
    for queue in range(len(dscps) - 1):
        for value, mask in dscp_blocks(queue, dscps):
            yield _filter("ip", 3, f"match u8 {value << 2:#04x} {mask << 2:#04x} at 1", queue)
            yield _filter("ipv6", 2, f"match u16 {value << 6:#06x} {mask << 6:#06x} at 0", queue)


def _filter(protocol: str, preference: int, match: str, queue: int) -> _Part:
    return ("filter", f"parent {MAJOR}: protocol {protocol} prio {preference} u32 {match} flowid {_class(queue)}")


def _class(queue: int) -> str:
    return f"{MAJOR}:{queue + 1:x}"


def _limit(egress: Egress) -> int:
    """Return the limit of one queue, in bytes as Linux counts them.

    Queues of tc know nothing of each other: each may hold what it could if the others were short. A full packet weighs
    as much of this limit as it does of the buffer.
    """
    frame = egress.mtu + _HEADER_BYTES
    most = most_in_queue(egress.buffer_bytes, egress.queues) * frame // (frame + _OVERHEAD_BYTES)
    return min(most, _LARGEST_LIMIT)


def script(commands: Iterable[Sequence[str]], about: str) -> str:
    """Return commands as a shell script that stops at the first one that fails.

    >>> print(script([("tc", "qdisc", "del", "dev", "eth0", "root")], "Takes the queues away."), end="")
    #!/bin/sh
    # Takes the queues away.
    set -e
    tc qdisc del dev eth0 root
    """
    return "\n".join(["#!/bin/sh", f"# {about}", "set -e", *map(shlex.join, commands)]) + "\n"


@dataclass(frozen=True, slots=True)
class QueueCount:
    """What a queue of an interface has done so far."""

    bytes: int
    packets: int
    drops: int


def root_of(qdiscs: str, device: str) -> tuple[str, str]:
    """Return kind and handle of an interface's root qdisc, from `tc -j qdisc show`; handle "0:" is the kernel's own.

    >>> root_of('[{"kind":"htb","handle":"7e:","dev":"eth0","root":true}]', "eth0")
    ('htb', '7e:')
    """
    for qdisc in json.loads(qdiscs or "[]"):
        if qdisc.get("root") and qdisc.get("dev", device) == device:
            return qdisc["kind"], qdisc["handle"]
    return "noqueue", "0:"


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue of an interface: its DSCPs, what it has sent and dropped, and what waits in it."""

    dscps: tuple[int, ...]
    packets: int
    bytes: int
    drops: int
    waiting_packets: int
    waiting_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class InterfaceState:
    """Our queues on an interface, most urgent first; the rate that they share is None for the interface's own speed."""

    kind: str
    rate_bps: int | None
    queues: tuple[QueueState, ...]


_BIT_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def interface_state(qdiscs: str, classes: str, filters: str) -> InterfaceState | None:
    """Return our queues from `tc -s -j qdisc show`, `tc class show` and `tc -j filter show`; None without any."""
    found = json.loads(qdiscs or "[]")
    root = next((qdisc for qdisc in found if qdisc.get("root") and qdisc["handle"] == f"{MAJOR}:"), None)
    if root is None:
        return None
    children = {
        int(minor, 16) - 1: qdisc
        for qdisc in found
        for major, _, minor in [str(qdisc.get("parent", "")).partition(":")]
        if major == MAJOR
    } or {0: root}
    last = max(children)
    queue_of = _queue_of_dscp(json.loads(filters or "[]"), last)
    rate = re.search(rf"class htb {_SHARED} .*?\brate ([0-9]+)([KMGT]?)bit", classes)
    queues = (
        QueueState(
            tuple(dscp for dscp, queue in enumerate(queue_of) if queue == number),
            packets=qdisc["packets"],
            bytes=qdisc["bytes"],
            drops=qdisc["drops"],
            waiting_packets=qdisc["qlen"],
            waiting_bytes=qdisc["backlog"],
            limit_bytes=qdisc.get("options", {}).get("limit", 0),
        )
        for number, qdisc in sorted(children.items())
    )
    return InterfaceState(root["kind"], int(rate[1]) * _BIT_UNITS[rate[2]] if rate else None, tuple(queues))


def _queue_of_dscp(filters: Sequence[Mapping[str, Any]], last: int) -> list[int]:
    """Return the queue of every DSCP: that of the first filter for IPv4 that it matches, else the last."""
    queue_of = [-1] * 64
    for rule in filters:
        options = rule.get("options", {})
        match = options.get("match")
        if rule.get("protocol") == "ip" and match is not None and "flowid" in options:
            # The type of service is the second byte of the first word; its upper bits are the DSCP.
            value, mask = (int(match[part], 16) >> 18 & 63 for part in ("value", "mask"))
            queue = int(options["flowid"].partition(":")[2], 16) - 1
            queue_of = [queue if old < 0 and dscp & mask == value else old for dscp, old in enumerate(queue_of)]
    return [last if queue < 0 else queue for queue in queue_of]


@dataclass(frozen=True, slots=True)
class Shown:
    """Queues as tc shows them: qdiscs, classes and filters, without counters and numbers that the kernel hands out."""

    qdiscs: tuple[str, ...]
    classes: tuple[str, ...]
    filters: tuple[str, ...]


#: What a root qdisc shows of its past and of its interface.
_OF_INTERFACE = ("direct_packets_stat", "direct_qlen", "ver")


def shown(qdiscs: str, classes: str, filters: str) -> Shown:
    """Return the queues of an interface from `tc -j -d qdisc show`, `tc -d class show` and `tc -j -d filter show`.

    >>> once, again = (
    ...     shown('[{"kind":"bfifo","handle":"%s:","parent":"7e:1","options":{"limit":9}}]' % handle,
    ...           f"class htb 7e:1 parent 7e:ff leaf {handle}: prio 0", "[]")
    ...     for handle in ("8001", "8002")
    ... )
    >>> once == again, once.classes
    (True, ('class htb 7e:1 parent 7e:ff leaf prio 0',))
    """
    found = []
    for qdisc in json.loads(qdiscs or "[]"):
        options = {name: value for name, value in qdisc.get("options", {}).items() if name not in _OF_INTERFACE}
        handle = qdisc["handle"] if qdisc.get("root") else ""
        found.append(json.dumps([qdisc["kind"], handle, qdisc.get("parent", ""), options], sort_keys=True))
    lines = (re.sub(r"\bleaf [0-9a-f]+:", "leaf", line).strip() for line in classes.splitlines())
    rules = (json.dumps(rule, sort_keys=True) for rule in json.loads(filters or "[]"))
    return Shown(tuple(sorted(found)), tuple(sorted(filter(None, lines))), tuple(rules))


def queue_counts(qdiscs: str) -> dict[str, dict[int, QueueCount]]:
    """Return what each queue of each interface did, from `tc -s -j qdisc show`.

    >>> queue_counts('[{"dev":"p0","parent":"7e:2","bytes":90,"packets":1,"drops":0}]')
    {'p0': {1: QueueCount(bytes=90, packets=1, drops=0)}}
    """
    counts: dict[str, dict[int, QueueCount]] = {}
    for qdisc in json.loads(qdiscs or "[]"):
        major, _, minor = str(qdisc.get("parent", "")).partition(":")
        if major == MAJOR:
            count = QueueCount(qdisc["bytes"], qdisc["packets"], qdisc["drops"])
            counts.setdefault(qdisc["dev"], {})[int(minor, 16) - 1] = count
    return counts


def wire_bytes(size: int, packets: int) -> int:
    """Return what packets weigh on the wire of which Linux has counted `size` bytes.

    >>> wire_bytes(1514, 1)
    1538
    """
    return size + packets * _OVERHEAD_BYTES
