"""Switches whose cells are found by hash, and the servers above them, as plain Python: the rules and nothing else.

They know no P4, tables or hosts' code: the P4 program is held to the one, and stands between workers and the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np

from support.summing import SummingNetwork, SumPacket, Values, packet, parse
from tensorexpress.control.intent import Intent
from tensorexpress.p4 import P4Program
from tensorexpress.plan import Plan
from tensorexpress.sums import VALUES, cell_of
from tensorexpress.wire.header import Flag
from tensorexpress.wire.sum_header import CHECK_MODULUS, SumFlag, check_of

AGAIN, RESULT, OVERFLOW = Flag.RETRANSMITTED, SumFlag.RESULT, SumFlag.OVERFLOW
AGE_US = 1_000_000


def is_newer(one: int, other: int) -> bool:
    """Whether a number of 32 bits comes after another one, by RFC 1982."""
    return 0 < (one - other) % 2**32 < 2**31


def identity(content: SumPacket) -> tuple[int, int, int, int]:
    """Return what packets must have in common to be added up."""
    return content.header.iteration, content.header.tensor, content.header.chunk, content.sums.exponent


def fits(one: SumPacket, other: SumPacket) -> bool:
    """Whether no number leaves the range of 32 bits when two packets are added up."""
    wide = one.values.astype(np.int64) + other.values
    return bool((wide == wide.astype(np.int32)).all())


def merged(one: SumPacket, other: SumPacket) -> SumPacket:
    """Return one packet with another one's values added, whose header it keeps."""
    values: Values = (one.values.astype(np.int64) + other.values).astype(np.int32)
    flags = (one.sums.flags | other.sums.flags) & OVERFLOW
    sums = replace(
        one.sums,
        workers=one.sums.workers | other.sums.workers,
        check=(one.sums.check + other.sums.check) % CHECK_MODULUS,
        needed=max(one.sums.needed, other.sums.needed),
        culprit=max(one.sums.culprit, other.sums.culprit),
        flags=flags | (0 if fits(one, other) else OVERFLOW),
    )
    return replace(one, sums=sums, values=values)


def sent_again(content: SumPacket) -> SumPacket:
    """Return a packet that nobody holds."""
    return replace(content, header=replace(content.header, flags=AGAIN))


@dataclass(frozen=True)
class Way:
    """What a switch knows of one pool of a job."""

    cells: int
    queue: int
    preempts: bool
    #: By port and child: the workers below.
    own: dict[tuple[int, int], int]
    #: Ports to the children, by number, and to the server or the switch above, with this one's number there.
    down: tuple[int, ...]
    up: int
    number: int

    @property
    def everyone(self) -> int:
        """All workers below this switch."""
        return sum(self.own.values())


def ways_of(plan: Plan, name: str) -> dict[tuple[int, int], Way]:
    """Return what a switch of a plan knows, by job and pool."""
    cluster = plan.scenario.cluster
    port_of = {link: port for port, link in cluster.ports(name).items()}
    ways = {}
    for number, job in enumerate(plan.jobs):
        for tree in job.sums:
            bits = {2 * host: 1 << worker for worker, host in enumerate(job.job.workers)}
            for switch in reversed(tree.switches):
                bits[switch.up] = sum(bits[link] for link in switch.children)
            (here,) = (switch for switch in tree.switches if cluster.switches[switch.switch] == name)
            down = tuple(port_of[link ^ 1] for link in here.children)
            own = {(port, child): bits[here.children[child]] for child, port in enumerate(down)}
            orders, up = plan.policy.orders_in_switches, port_of[here.up]
            at = [above.children.index(here.up) for above in tree.switches if here.up in above.children]
            for pool in tree.pools:
                ways[number, pool.first_slot] = Way(tree.cells, pool.queue, orders, own, down, up, *(at or [0]))
    return ways


@dataclass(frozen=True)
class Cell:
    """What is in a cell: the first contribution, with all that has been added to it."""

    content: SumPacket
    taken_us: int
    is_sent: bool = False

    @property
    def owner(self) -> tuple[int, int, int, int]:
        """Whose it is."""
        return owner_of(self.content)


def owner_of(content: SumPacket) -> tuple[int, int, int, int]:
    """Return whose cell a packet is looking for."""
    return content.header.job, content.sums.epoch, content.sums.slot, content.sums.turn


@dataclass
class ReferenceHashedSwitch:
    """One switch, which all jobs share."""

    ways: dict[tuple[int, int], Way]
    cells: dict[int, Cell] = field(default_factory=dict)
    events: Counter[str] = field(default_factory=Counter)

    def receive(self, port: int, content: SumPacket, now_us: int) -> list[tuple[int, SumPacket]]:
        """Return what leaves by which ports because of a packet."""
        way = self.ways.get((content.header.job, content.sums.slot))
        if way is None:
            return self.dropped("slots out of range")
        place = cell_of(content.header.job, content.sums.slot, content.sums.turn, way.cells)
        if content.sums.flags & RESULT:
            return self._result(port, content, way, place)
        workers = content.sums.workers
        if workers & ~way.own.get((port, content.header.worker), 0):
            return self.dropped("strangers")
        flags = content.sums.flags & OVERFLOW
        header = replace(content.header, flags=content.header.flags & AGAIN)
        content = replace(content, header=header, sums=replace(content.sums, flags=flags))
        cell = self.cells.get(place)
        if cell and cell.content.header.job == content.header.job:
            if is_newer(cell.content.sums.epoch, content.sums.epoch):
                return self.dropped("late")
            if is_newer(content.sums.epoch, cell.content.sums.epoch):
                del self.cells[place]
                cell = None
        if cell and cell.owner == owner_of(content):
            return self._own(cell, content, way, place)
        if content.header.flags or workers == way.everyone:
            return self._as_it_was(content)
        if cell is None:
            return self._take(place, content, now_us)
        theirs = self.ways[cell.content.header.job, cell.content.sums.slot]
        if now_us - cell.taken_us > AGE_US or (way.preempts and way.queue < theirs.queue):
            self.events["evictions"] += 1
            self._take(place, content, now_us)
            return [] if cell.is_sent else self._up(sent_again(cell.content))
        self.events["collisions"] += 1
        return self._as_it_was(content)

    def _result(self, port: int, content: SumPacket, way: Way, place: int) -> list[tuple[int, SumPacket]]:
        if port != way.up:
            return self.dropped("strangers")
        self.events["handed down"] += 1
        cell = self.cells.get(place)
        if cell and cell.owner == owner_of(content):
            self.events["freed by results"] += 1
            del self.cells[place]
        return [
            (out, replace(content, header=replace(content.header, worker=child))) for child, out in enumerate(way.down)
        ]

    def _own(self, cell: Cell, content: SumPacket, way: Way, place: int) -> list[tuple[int, SumPacket]]:
        if identity(cell.content) != identity(content):
            return self.dropped("mismatches")
        there, workers = cell.content.sums.workers, content.sums.workers
        if not workers & there:
            self.events["added"] += 1
            total = merged(content, cell.content)
            self.events["overflows"] += not fits(content, cell.content)
            if content.header.flags:
                return self._flushed(place, total)
            is_complete = total.sums.workers == way.everyone
            self.cells[place] = Cell(replace(total, header=cell.content.header), cell.taken_us, is_complete)
            self.events["sums completed"] += is_complete
            return self._up(total) if is_complete else []
        if workers & ~there:
            return self._as_it_was(content)
        if not content.header.flags:
            return self.dropped("duplicates dropped")
        return self._flushed(place, replace(cell.content, header=content.header))

    def _take(self, place: int, content: SumPacket, now_us: int) -> list[tuple[int, SumPacket]]:
        self.events["added"] += 1
        self.cells[place] = Cell(content, now_us)
        return []

    def _flushed(self, place: int, content: SumPacket) -> list[tuple[int, SumPacket]]:
        self.events["flushed"] += 1
        del self.cells[place]
        return self._up(content)

    def _as_it_was(self, content: SumPacket) -> list[tuple[int, SumPacket]]:
        self.events["passed on as they were"] += 1
        return self._up(content)

    def _up(self, content: SumPacket) -> list[tuple[int, SumPacket]]:
        way = self.ways[content.header.job, content.sums.slot]
        return [(way.up, replace(content, header=replace(content.header, worker=way.number)))]

    def dropped(self, event: str) -> list[tuple[int, SumPacket]]:
        """Count a packet of which nothing becomes."""
        self.events[event] += 1
        return []


#: What a server has of one place of a pool: the sum so far, and whether it was answered.
Held = tuple[SumPacket, bool]


def served(held: Held | None, content: SumPacket, everyone: int) -> tuple[Held | None, SumPacket | None]:
    """Return what a server has of a place after a packet, and its answer, if any.

    In front of it, where packets do not say whose values are in, every sum is one of all: `everyone` is 0 then. A place
    is a slot and the lowest bit of its turn there, or a sequence number modulo twice the window of its pool.
    """
    if check_of(content.values) != content.sums.check:
        return held, None
    if held is not None:
        before, is_answered = held
        epoch, turn = before.sums.epoch, before.sums.turn
        if is_newer(epoch, content.sums.epoch) or (epoch == content.sums.epoch and is_newer(turn, content.sums.turn)):
            return held, None
        if (epoch, turn) == (content.sums.epoch, content.sums.turn):
            if identity(before) != identity(content):
                return held, None
            if is_answered:
                return held, _answer(before)
            if before.sums.workers & content.sums.workers:
                return held, None
            content = merged(before, content)
    is_complete = content.sums.workers == everyone
    return (content, is_complete), _answer(content) if is_complete else None


def _answer(content: SumPacket) -> SumPacket:
    sums = replace(content.sums, flags=content.sums.flags & OVERFLOW | RESULT)
    return replace(content, header=replace(content.header, flags=0), sums=sums)


#: Where whose values they are begins in a frame, and what is added up.
VALUES_AT = 74


class DifferentError(AssertionError):
    """The program did something else than the rules say."""


def random_parts(
    choose: Random, ways: dict[tuple[int, int], Way], count: int
) -> Iterator[tuple[int, SumPacket, int, bool]]:
    """Yield (port, packet, time in microseconds, whether its job is admitted there) at a switch whose cells are few.

    Children are a few sequence numbers apart, and send again what they have no result of; some packets go wrong.
    """
    vectors = np.random.default_rng(1).integers(-(2**28), 2**28, (4, VALUES), dtype=np.int32)
    now_us, sequence, (job, number) = 0, 2**32 - 3, (0, 0)
    ports = {(job, port) for (job, _), way in ways.items() for port in (*way.down, way.up)}
    for _ in range(count):
        now_us += choose.choice([0, 1, 1000, 1000, 1000, 250_000])
        sequence += choose.random() < 0.05
        if choose.random() < 0.3:
            job, number = choose.choice(sorted(ways))
        way = ways[job, number]
        (port, child), own = choose.choice(sorted(way.own.items()))
        fields = {
            "turn": (sequence + choose.choice([-1, *[0] * 8])) % 2**32,
            "epoch": choose.choice([2**32 - 1, *[0] * 10]),
            "slot": number if choose.random() < 0.98 else 7,
            "needed": choose.randrange(-5, 5),
            "culprit": choose.choice([0, 0, 3]),
            "tensor": choose.choice([1, *[0] * 20]),
            "exponent": choose.choice([1, *[0] * 40]),
            "workers": own & choose.choice([1, 2, 3, 7]) or own,
            "sent_again": choose.random() < 0.15,
            "flags": choose.choice([0, 0, 0, 0, OVERFLOW, 252]),
            "slack_us": choose.randrange(-9, 9),
            "queue": choose.randrange(8),
            "chunks": choose.randrange(9),
        }
        fields |= {"iteration": fields["turn"] // 2, "chunk": fields["turn"] ^ (choose.random() < 0.02)}
        if choose.random() < 0.08:
            port, fields["flags"], fields["workers"] = way.up, RESULT, way.everyone
        elif choose.random() < 0.03:
            fields["workers"] = choose.choice([7, 1, 4, 8])
        if choose.random() < 0.03:
            port = choose.choice([other for _, other in sorted(ports)])
        values = vectors[choose.randrange(4)] * choose.choice([1, 6])
        yield port, packet(values, worker=child, job=job, **fields), now_us, (job, port) in ports


def compare_with_rules(program: P4Program, plan: Plan, name: str, seed: int, count: int = 600) -> Counter[str]:
    """Send random packets through a switch, and by the rules; return what was counted. DifferentError."""
    network, ways = SummingNetwork(plan, program=program), ways_of(plan, name)
    rules = ReferenceHashedSwitch(ways)
    host_at = {port: host for port, host in Intent(plan, name).host_of_port.items() if host is not None}
    damage = Random(-seed)
    for port, content, now_us, is_admitted in random_parts(Random(seed), ways, count):
        network.now_ps = now_us * 10**6
        frame = network.frame(host_at.get(port, 0), content)
        if damage.random() < 0.05:
            place = damage.randrange(VALUES_AT, len(frame))
            if network.pass_one(name, port, frame[:place] + bytes([frame[place] ^ 16]) + frame[place + 1 :]):
                raise DifferentError(f"{port}: {content.header} {content.sums}, damaged at {place}")
        sent = network.pass_one(name, port, frame)
        wanted = rules.receive(port, content, now_us) if is_admitted else rules.dropped("strangers")
        if [(out, _said(frame)) for out, frame in sent] != [(out, each.payload()) for out, each in wanted]:
            raise DifferentError(f"{port}: {content.header} {content.sums}")
        for out, frame in sent:
            own = network.addresses[host_at[out]] if out in host_at else None
            if own is not None and (frame[:6], frame[30:34]) != (own.mac, own.ipv4.packed):
                raise DifferentError(f"what leaves by port {out} is for {frame[30:34].hex()}")
    if network.events(name) != +rules.events:
        raise DifferentError(f"{network.events(name)} {rules.events}")
    return +rules.events


def _said(frame: bytes) -> bytes | None:
    """Return what a frame says, if its checksums are right."""
    try:
        return parse(frame).payload()
    except AssertionError:
        return None
