"""Endpoints: one process's end of the transport. Messages of tensors out and in, over a link, with timers.

    endpoint = Endpoint(link, peers, settings, session=7, buffer_for=..., delivered=...)
    endpoint.send("server 0", tag, gradient)
    endpoint.run(until=lambda: everything_has_come)

The endpoint has no thread and, but for `run`, does not wait: `receive` takes what has arrived, `advance` does what is
due, `next_event_ps` says when there is something to do again. Its clock can be given, so tests run in virtual time.
"""

from __future__ import annotations

import heapq
import itertools
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple

from tensorexpress.errors import HeaderError, InputError, NetworkError, unknown
from tensorexpress.fixed_point import Floats, Integers
from tensorexpress.framing import SEGMENT_HEADER_BYTES, SEGMENT_OVERHEAD_BYTES, Framing
from tensorexpress.host.assembly import Assembly, Incoming, fits
from tensorexpress.host.background import BackgroundSender, Datagrams
from tensorexpress.host.flow import SPAN, Ack, Burst, FlowSettings, Outgoing, ReceiveFlow, SendFlow
from tensorexpress.host.links import Address, Arrival, HostLink
from tensorexpress.host.pool import Contribution, PoolSender, Summed
from tensorexpress.host.scheduler import Scheduler, Sender
from tensorexpress.host.segments import SegmentBuffer, SegmentRun, part_of
from tensorexpress.host.sum_server import SumServer
from tensorexpress.host.tagging import BEST_EFFORT, Tag, Tagger, TrafficClass, monotonic_ps
from tensorexpress.plan import Plan
from tensorexpress.queueing import Slice
from tensorexpress.recovery import reordering_of
from tensorexpress.units import PS_PER_SECOND, format_time
from tensorexpress.wire.header import Flag, Header, Kind, clamp_slack_us
from tensorexpress.wire.sum_header import SumFlag, SumHeader, read_sum

#: What is taken from the link before it is time to acknowledge and to send: so many bursts, or so many bytes. More
#: would leave the sender waiting for the first acknowledgement of a window until the last of it has been read.
_MOST_ARRIVALS = 32
_MOST_ARRIVED_BYTES = 2**19

#: Heartbeats within the time after which silence is an error.
_BEATS = 4

#: The same where switches sum: peers send each other nothing else, and of ten in a row one gets through anything.
_BEATS_WITH_SUMS = 10

#: How often a host that hears of no sums, and waits for none, sends last packets again for those who may.
_RECALL_PS = PS_PER_SECOND // 4

#: Copies of a goodbye that is not repeated any more, because who sends it leaves at once.
_LAST_GOODBYES = 3

#: Where in a header the kind is, in the lower half of a byte.
_KIND_AT = 2

_PS_PER_US = 10**6
_LONGEST_MESSAGE_BYTES = 2**32 - 1

# What a control packet says, in the field `message`.
_HEARTBEAT, _GOODBYE = 0, 1

# As plain numbers: operations on enumerations would take as long as all else that is done per burst.
_RETRANSMITTED, _LAST_OF_SLICE, _ASKS_ACK, _MARKED = map(
    int, (Flag.RETRANSMITTED, Flag.LAST_OF_SLICE, Flag.ASKS_ACK, Flag.MARKED)
)
_AT_ONCE = _RETRANSMITTED | _LAST_OF_SLICE | _ASKS_ACK
_PARAMETERS, _ACK, _CONTROL = map(int, (Kind.PARAMETERS, Kind.ACK, Kind.CONTROL))
_SUMS = frozenset(map(int, (Kind.SUM, Kind.PART)))


@dataclass(frozen=True)
class EndpointSettings:
    """How an endpoint sends. `settings_of` makes those of a plan."""

    flow: FlowSettings
    #: A name in `queueing.HOST_ORDERS`.
    host_order: str = "fifo"
    #: Most bytes unacknowledged over all flows; 0 is no limit.
    credit_bytes: int = 0
    #: Whether flows take turns by what they have to send.
    weighs_turns: bool = False
    #: Rate of the host's link, to which sending is paced; 0 sends as fast as windows allow.
    rate_bps: int = 0
    job: int = 0
    #: How acknowledgements and control packets are marked.
    control: TrafficClass = BEST_EFFORT
    #: A peer that is not heard of for so long is gone; 0 waits for ever.
    silence_ps: int = 0
    #: For how long it does nothing after it did something, so that several packets share what waking up costs.
    rest_ps: int = 0
    #: Whether it carries messages alone, neither sums nor other traffic: machine code can do all of that.
    messages_alone: bool = False


def settings_of(
    plan: Plan, tagger: Tagger, *, rate_bps: int = 0, silence_ps: int = 0, rest_ps: int = 0
) -> EndpointSettings:
    """Return the settings that a plan asks for: window, order and credit as its scenario and policy say."""
    transport, policy = plan.scenario.transport, plan.policy
    most = Framing(plan.scenario.cluster.mtu).payload_bytes
    if tagger.payload_bytes > most:
        raise InputError(
            f"the tagger counts packets of {tagger.payload_bytes} bytes; accepted: at most the {most} that a segment "
            f"carries in an MTU of {plan.scenario.cluster.mtu}; make it with payload_bytes={most}"
        )
    flow = FlowSettings(
        payload_bytes=tagger.payload_bytes,
        overhead_bytes=SEGMENT_OVERHEAD_BYTES,
        window_bytes=transport.window_bytes,
        initial_window_bytes=transport.initial_window_bytes,
        ack_every=transport.ack_every,
        rto_min_ps=transport.rto_min_ps,
        reordering=reordering_of(policy),
    )
    return EndpointSettings(
        flow,
        host_order=policy.host_order,
        credit_bytes=policy.credit_bytes,
        weighs_turns=policy.weighs_turns,
        rate_bps=rate_bps,
        job=tagger.job,
        control=tagger.traffic_class(0),
        silence_ps=silence_ps,
        rest_ps=rest_ps,
        messages_alone=not (policy.in_switches or plan.scenario.background),
    )


@dataclass
class Counters:
    """What an endpoint has seen, in datagrams."""

    sent: int = 0
    received: int = 0
    acks_sent: int = 0
    acks_received: int = 0
    marked: int = 0
    #: From an address that is no peer.
    strangers: int = 0
    #: Not a segment at all.
    malformed: int = 0
    #: Damaged on the way.
    corrupt: int = 0
    #: Of another session.
    foreign: int = 0
    #: Whole and of this session, but impossible: outside of the flow's range or of its message.
    implausible: int = 0
    #: For which the receiver gave no buffer; they are not acknowledged, and come again.
    refused: int = 0


#: A segment in which nothing is said yet.
PLAIN = SegmentRun._make([0] * 18 + [1, 0])._replace(chunks=1)


class _Receiving(NamedTuple):
    flow: ReceiveFlow
    assembly: Assembly


@dataclass(eq=False)
class Peer:
    """Another end, and the flows between it and this one."""

    name: str
    address: Address
    heard_ps: int
    sent_ps: int = 0
    #: It has said goodbye, or was released: its silence means nothing.
    gone: bool = False
    sending: dict[int, SendFlow] = field(default_factory=dict)
    receiving: dict[int, _Receiving] = field(default_factory=dict)


class _Lane(NamedTuple):
    """A message of which more is likely to come next: its segments so far that followed each other."""

    peer: Peer
    flow: ReceiveFlow
    assembly: Assembly
    message: Incoming
    run: SegmentRun
    #: Of the first segment of the run.
    header: bytes


class _Content(NamedTuple):
    """What the endpoint hangs on a message that it sends."""

    peer: Peer
    tag: Tag
    payload: memoryview


class _Sums(NamedTuple):
    """The pools of a job that switches sum, and who is told of sums."""

    pools: Sequence[PoolSender]
    summed: Callable[[Summed], None]


class _Serving(NamedTuple):
    """A job whose sums end at this host, and who is told of them."""

    server: SumServer
    summed: Callable[[Summed], None]


#: Called with the peer's name, the tag and the length when a message begins; gives the memory for it, or refuses.
BufferFor = Callable[[str, Tag, int], Any]


class Endpoint:
    """One end of the transport."""

    def __init__(
        self,
        link: HostLink,
        peers: Mapping[str, Address],
        settings: EndpointSettings,
        *,
        session: int,
        buffer_for: BufferFor = lambda source, tag, size: bytearray(size),
        delivered: Callable[[Incoming], None] = lambda message: None,
        clock_ps: Callable[[], int] = monotonic_ps,
    ):
        """Speak over `link` with peers, given by name; `session` (32 bits) is the same for all ends of one run.

        `buffer_for` gives a writable buffer of exactly the message's length, or None to refuse it for now.
        `delivered` is called once for every message, when it is complete.
        """
        self.settings, self.session = settings, session
        self.counters = Counters()
        self._link, self._buffer_for, self._delivered, self._clock_ps = link, buffer_for, delivered, clock_ps
        now_ps = clock_ps()
        self._peers = {name: Peer(name, address, heard_ps=now_ps) for name, address in peers.items()}
        self._by_address = {peer.address: peer for peer in self._peers.values()}
        #: By job: what this host has to do with its sums, and where it sends packets for switches; and when the last
        #: sum came, or somebody left who could have had a part in it.
        self._sums: dict[int, _Sums] = {}
        self._serving: dict[int, _Serving] = {}
        self._sum_targets: dict[int, Address] = {}
        #: When somebody last asked this host for a sum.
        self._asked_ps = now_ps
        self._summed_ps = now_ps
        self._scheduler = Scheduler(
            settings.host_order, settings.credit_bytes, settings.rate_bps, weighs_turns=settings.weighs_turns
        )
        self._stride = SEGMENT_HEADER_BYTES + settings.flow.payload_bytes
        self._most = link.most_segments(self._stride)
        self._stage = SegmentBuffer(max(self._most * self._stride, SEGMENT_HEADER_BYTES + SPAN // 8))
        #: The rest of a burst for which the link had no room.
        self._held: tuple[Peer, TrafficClass, bytes] | None = None
        self._to_acknowledge: dict[ReceiveFlow, tuple[Peer, SegmentRun]] = {}
        self._lane: _Lane | None = None
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._timer_numbers = itertools.count()
        self._beat_ps = settings.silence_ps // _BEATS
        self._next_beat_ps = now_ps
        self._leaving = False
        #: What else is waited for: descriptors, and what to do when they can be read.
        self._watched: dict[int, Callable[[], None]] = {}
        #: When the link was last found empty, and whether it was left before, with something that it may have kept.
        self._drained_ps = now_ps
        self._is_left = False

    def set_rate(self, rate_bps: int) -> None:
        """Send at another rate of the host's link from now on."""
        self._scheduler.set_rate(rate_bps)

    # Messages

    def send(self, peer: str, tag: Tag, payload: Any) -> Outgoing:
        """Send a message: any contiguous buffer, such as a numpy array. It must not change until the result is `done`.

        Nothing leaves before the next `advance` or `run`, so what is sent together is put in order together.
        """
        target, view = self._target(peer), view_of(payload)
        flow = target.sending.get(tag.flow)
        if flow is None:
            flow = target.sending[tag.flow] = SendFlow(self.settings.flow)
        key = self._scheduler.key_of(
            Slice(self._clock_ps(), tag.rank, len(view), tag.deadline_ps, tag.iteration, tag.message)
        )
        message = Outgoing(len(view), self.settings.flow.payload_bytes, key, _Content(target, tag, view))
        flow.offer(message)
        self._scheduler.activate(flow)
        return message

    def sum_through(
        self, job: int, pools: Sequence[PoolSender], target: Address, summed: Callable[[Summed], None]
    ) -> None:
        """Let switches sum a job's gradients through these pools; `summed` is called for every packet's sum.

        `target` is any address beyond this host's switch, which takes the packets out of the way there.
        """
        self._sums[job] = _Sums(pools, summed)
        self._join_sums(job, target)
        for pool in pools:
            pool.pools = pools
            self._scheduler.activate(pool)

    def serve_sums(self, job: int, server: SumServer, target: Address, summed: Callable[[Summed], None]) -> None:
        """Let the sums of a job end here; `summed` is called for every packet's sum, before it is answered."""
        self._serving[job] = _Serving(server, summed)
        self._join_sums(job, target)
        self._scheduler.activate(server)

    def send_background(self, sender: BackgroundSender) -> None:
        """Let other traffic have its part of the host's link, before all messages."""
        self._scheduler.activate(sender)

    def _join_sums(self, job: int, target: Address) -> None:
        self._sum_targets[job] = target
        self._beat_ps = self.settings.silence_ps // _BEATS_WITH_SUMS

    def contribute(self, pool: PoolSender, tag: Tag, gradient: Floats, ready_ps: int) -> None:
        """Have a gradient summed that was ready at a time; it must not change until the sum is here."""
        piece = Slice(ready_ps, tag.rank, gradient.nbytes, tag.deadline_ps, tag.iteration, tag.message)
        pool.offer(tag, gradient, self._scheduler.key_of(piece))

    def _target(self, name: str) -> Peer:
        """Return a peer that can be sent something."""
        target = self._peer(name)
        if target.gone:
            raise NetworkError(f"{name} has left, and can be sent nothing any more")
        return target

    def _peer(self, name: str) -> Peer:
        if name not in self._peers:
            raise InputError(unknown("peer", name, self._peers))
        return self._peers[name]

    @property
    def idle(self) -> bool:
        """Whether everything that was sent has been acknowledged."""
        flows = (flow for peer in self._peers.values() if not peer.gone for flow in peer.sending.values())
        others: tuple[PoolSender | SumServer, ...] = (*self._pools(), *self.sum_servers())
        return all(flow.idle for flow in flows) and all(other.idle for other in others)

    @property
    def retransmissions(self) -> int:
        """Segments, and packets for switches, that were sent again."""
        return sum(sender.retransmissions for sender in self._senders())

    @property
    def timeouts(self) -> int:
        """Time-outs that struck."""
        return sum(sender.timeouts for sender in self._senders())

    def _senders(self) -> Iterator[Sender]:
        for peer in self._peers.values():
            yield from peer.sending.values()
        yield from self._pools()
        yield from self.sum_servers()

    def _pools(self) -> Iterator[PoolSender]:
        for sums in self._sums.values():
            yield from sums.pools

    def sum_servers(self) -> Iterator[SumServer]:
        """Return what takes the sums of jobs that end at this host."""
        return (serving.server for serving in self._serving.values())

    @property
    def duplicates(self) -> int:
        """Segments that had arrived before."""
        return sum(each.flow.duplicates for peer in self._peers.values() for each in peer.receiving.values())

    # Time

    def call_at(self, time_ps: int, action: Callable[[], None]) -> None:
        """Call an action at a time of the clock, or as soon after as the endpoint is given control."""
        heapq.heappush(self._timers, (time_ps, next(self._timer_numbers), action))

    def next_event_ps(self) -> int | None:
        """Return when there is something to do if nothing arrives; None: never."""
        times = [
            self._scheduler.next_timeout_ps(),
            None if self._held else self._scheduler.next_free_ps(self._clock_ps()),
        ]
        if self._timers:
            times.append(self._timers[0][0])
        if self._beat_ps:
            times.append(self._next_beat_ps)
        return min((time for time in times if time is not None), default=None)

    def advance(self) -> None:
        """Do all that is due: timers, time-outs, heartbeats, and sending what may be sent."""
        now_ps = self._clock_ps()
        self._ring(now_ps)
        self._scheduler.time_out(now_ps)
        if self._beat_ps and now_ps >= self._next_beat_ps:
            self._beat(now_ps)
        self._transmit(now_ps)

    def _ring(self, now_ps: int) -> None:
        """Let timers ring that are due."""
        while self._timers and self._timers[0][0] <= now_ps:
            heapq.heappop(self._timers)[2]()

    def run(self, until: Callable[[], bool]) -> None:
        """Receive, send, rest and wait until a condition holds; NetworkError names a peer that has fallen silent."""
        descriptor = self._link.fileno()
        has_arrivals = True
        while True:
            # Before a beat in any case: nobody is called silent whose word may wait.
            if has_arrivals or self._is_left or self._clock_ps() >= self._next_beat_ps:
                self.receive()
            self.advance()
            if until():
                return
            if self.settings.rest_ps and not self._is_left:
                time.sleep(self.settings.rest_ps / PS_PER_SECOND)
            due_ps = self._clock_ps() if self._is_left else self.next_event_ps()
            wait = None if due_ps is None else max(0, due_ps - self._clock_ps()) / PS_PER_SECOND
            # Not epoll, whose time-outs are whole milliseconds.
            readable, _, _ = select.select([descriptor, *self._watched], [descriptor] if self._held else [], [], wait)
            has_arrivals = descriptor in readable
            for each in readable:
                if each in self._watched:
                    self._watched[each]()

    def watch(self, descriptor: int, action: Callable[[], None] | None) -> None:
        """While this end runs, call an action whenever a descriptor can be read; None: no more."""
        if action is None:
            self._watched.pop(descriptor, None)
        else:
            self._watched[descriptor] = action

    # Peers

    def has_left(self, peer: str) -> bool:
        """Whether a peer has said goodbye, or was released."""
        return self._peer(peer).gone

    def release(self, peer: str) -> None:
        """Expect nothing from a peer any more: its silence is no error, and it need not acknowledge."""
        self._depart(self._peer(peer))

    def _depart(self, peer: Peer) -> None:
        if not peer.gone:
            self._summed_ps = self._clock_ps()
        peer.gone = True
        for flow in peer.sending.values():
            self._scheduler.retire(flow)

    def _beat(self, now_ps: int) -> None:
        """Let peers know that this end lives, and find out who does not."""
        self._next_beat_ps = now_ps + self._beat_ps
        self._check_alone()
        if now_ps - self._summed_ps >= self._beat_ps:
            for pool in self._pools():
                pool.ask(now_ps, _RECALL_PS)
        for peer in self._peers.values():
            if peer.gone:
                continue
            # By when all that had arrived was read: if this end was away, the word of a peer may still wait.
            silent_ps = self._drained_ps - peer.heard_ps
            if silent_ps >= self.settings.silence_ps and not self._leaving:
                raise NetworkError(
                    f"{peer.name} at {peer.address[0]}:{peer.address[1]} has been silent for "
                    f"{format_time(silent_ps)}; it has ended, or the network between has failed"
                )
            if self._leaving or now_ps - peer.sent_ps >= self._beat_ps:
                # Who is nothing but a server takes leave last, so that workers go on telling it that they live.
                is_needed = self._serving and not self._sums
                self._send_control(peer, _GOODBYE if self._leaving and not is_needed else _HEARTBEAT)
            if not self._leaving:
                self._next_beat_ps = min(self._next_beat_ps, peer.heard_ps + self.settings.silence_ps)

    def _check_alone(self) -> None:
        """Raise NetworkError when a sum is missing and nobody is left with whom a switch could make it again."""
        silent_ps = self._drained_ps - self._summed_ps
        is_alone = all(peer.gone for peer in self._peers.values())
        if is_alone and silent_ps >= self.settings.silence_ps and not all(pool.idle for pool in self._pools()):
            raise NetworkError(
                f"no sum has come for {format_time(silent_ps)}, and the other hosts have left; the switch has failed"
            )

    def leave(self, linger_ps: int = PS_PER_SECOND) -> None:
        """Wait until all has been acknowledged, say goodbye, and wait for the goodbyes of the others at most so long.

        While it waits, it still acknowledges: who has not heard that all arrived can find out. Where sums end at this
        host, it stays until the others have left, or are silent and ask for nothing: nobody else has the sums.
        """
        self.run(until=lambda: self.idle)
        self._leaving, self._beat_ps = True, max(1, linger_ps // 16)
        self._next_beat_ps = self._clock_ps()
        end_ps = self._clock_ps() + linger_ps
        self.run(until=lambda: self._may_go(end_ps))
        for peer in self._peers.values():
            for _ in range(_LAST_GOODBYES):
                self._send_control(peer, _GOODBYE)

    def _may_go(self, end_ps: int) -> bool:
        here = [peer for peer in self._peers.values() if not peer.gone]
        if not self._serving:
            return not here or self._clock_ps() >= end_ps
        heard_ps = max((peer.heard_ps for peer in here), default=0)
        silent_ps = self._drained_ps - max(heard_ps, self._asked_ps)
        return not here or 0 < self.settings.silence_ps <= silent_ps

    def close(self) -> None:
        """Close the link."""
        self._link.close()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Sending

    def _transmit(self, now_ps: int) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            self._send_datagrams(*held)
        while self._held is None:
            burst = self._scheduler.next_burst(now_ps, self._most)
            self._link.leaves_ps = None if burst is None else self._scheduler.left_ps
            if burst is None:
                return
            self.counters.sent += burst.count
            if isinstance(burst, Contribution):
                self._send_contribution(burst)
                continue
            if isinstance(burst, Datagrams):
                # What finds no room is lost: nobody waits for it.
                self._link.send(burst.target, BEST_EFFORT, burst.data, burst.stride_bytes)
                continue
            self._send_burst(burst, now_ps)

    def _send_contribution(self, packet: Contribution) -> None:
        data = packet.header.pack() + packet.payload
        # Without room it is lost, and a time-out sends it again.
        self._link.send(self._sum_targets[packet.header.job], packet.traffic, data, len(data))

    def _send_datagrams(self, peer: Peer, traffic: TrafficClass, data: memoryview | bytes) -> None:
        """Send what there is room for, and keep the rest."""
        sent = self._link.send(peer.address, traffic, data, self._stride)
        if sent < len(data):
            self._held = (peer, traffic, bytes(data[sent:]))

    def _send_burst(self, burst: Burst, now_ps: int) -> None:
        """Send full segments, and the last of the message if it is among them, which may be shorter."""
        message, (peer, tag, payload) = burst.message, burst.message.content
        peer.sent_ps = now_ps
        size = self.settings.flow.payload_bytes
        run = self._run_of(burst, now_ps)
        last_flags = (_LAST_OF_SLICE if burst.ends_message else 0) | (_ASKS_ACK if burst.asks else 0)
        content = payload[run.offset : run.offset + burst.count * size]
        sent = self._link.send_run(peer.address, tag.traffic, run, content, last_flags)
        if sent < burst.count:
            full = burst.count - (burst.ends_message and message.last_bytes < size)
            rest = part_of(run, sent, burst.count - sent)._replace(start=0)
            self._send_datagrams(peer, tag.traffic, self._written(rest, full - sent, payload, last_flags))

    def _run_of(self, burst: Burst, now_ps: int) -> SegmentRun:
        message, (_, tag, _) = burst.message, burst.message.content
        size = self.settings.flow.payload_bytes
        return SegmentRun(
            kind=tag.kind,
            flags=_RETRANSMITTED if burst.retransmitted else 0,
            job=tag.job,
            worker=tag.worker,
            iteration=tag.iteration,
            tensor=tag.tensor,
            queue=tag.queue,
            chunk=tag.chunk + burst.first,
            chunks=tag.chunks,
            slack_us=clamp_slack_us(tag.deadline_ps - now_ps),
            payload_bytes=size,
            session=self.session,
            flow=tag.flow,
            sequence=burst.sequence,
            transmission=burst.transmission,
            message=tag.message,
            offset=burst.first * size,
            total_bytes=message.length_bytes,
            segments=burst.count,
        )

    def _written(self, run: SegmentRun, full: int, payload: memoryview, last_flags: int) -> memoryview:
        """Write the datagrams of a run: full segments, and after them the last of the message if it is shorter."""
        content = payload[run.offset : run.offset + full * run.payload_bytes]
        if full == run.segments:
            return self._stage.write(run, content, last_flags)
        if full:
            self._stage.write(run._replace(segments=full), content)
        end = part_of(run, full, 1)._replace(payload_bytes=len(payload) - run.offset - len(content))
        self._stage.write(end, payload[end.offset :], last_flags)
        return self._stage.view[: end.start + end.stride_bytes]

    def _send_control(self, peer: Peer, what: int) -> None:
        self._send_single(peer, self._plain(_CONTROL, message=what), b"")

    def _send_ack(self, peer: Peer, cause: SegmentRun, ack: Ack) -> None:
        """Acknowledge what a run was part of, as urgently as the most urgent tensor, or as that run."""
        arrived = ack.arrived.to_bytes(-(-ack.arrived.bit_length() // 8), "little")
        run = self._plain(
            _ACK,
            flags=_MARKED if ack.marked else 0,
            worker=cause.worker,
            iteration=cause.iteration,
            slack_us=cause.slack_us,
            flow=cause.flow,
            sequence=ack.sequence,
            transmission=ack.transmission,
            payload_bytes=len(arrived),
        )
        self.counters.acks_sent += 1
        self._send_single(peer, run, arrived)

    def _plain(self, kind: int, **values: int) -> SegmentRun:
        """Return a run of one segment that is of no tensor; in the switch it counts as one of tensor 0."""
        return PLAIN._replace(kind=kind, job=self.settings.job, session=self.session, **values)

    def _send_single(self, peer: Peer, run: SegmentRun, payload: bytes) -> None:
        peer.sent_ps = self._clock_ps()
        data = self._stage.write(run, payload)
        # Without room it is lost, which the transport survives as it does every loss.
        self._link.send(peer.address, self.settings.control, data, len(data))

    # Receiving

    def receive(self) -> None:
        """Take what has arrived, acknowledge it, and deliver the messages that are complete."""
        arrived_bytes = self._take_following()
        self._is_left = True
        for _ in range(_MOST_ARRIVALS):
            if arrived_bytes >= _MOST_ARRIVED_BYTES:
                break
            arrival = self._link.receive()
            if arrival is None:
                self._drained_ps = self._clock_ps()
                self._is_left = False
                break
            self._take(arrival)
            arrived_bytes += arrival.size_bytes + self._take_following()
        for flow, (peer, run) in self._to_acknowledge.items():
            ack = flow.acknowledgement()
            if ack is not None:
                self._send_ack(peer, run, ack)
        self._to_acknowledge.clear()

    def _take(self, arrival: Arrival) -> None:
        counters = self.counters
        if self._sum_targets and self._link.buffer.view[arrival.start + _KIND_AT] & 15 in _SUMS:
            self._take_sums(arrival)
            return
        peer = self._by_address.get(arrival.source)
        if peer is None:
            counters.strangers += -(-arrival.size_bytes // arrival.stride_bytes)
            return
        reading = self._link.buffer.read(arrival.start, arrival.size_bytes, arrival.stride_bytes)
        counters.malformed += reading.malformed
        counters.corrupt += reading.corrupt
        for run in reading.runs:
            if run.session != self.session:
                counters.foreign += run.segments
                continue
            peer.heard_ps = self._clock_ps()
            if run.kind <= _PARAMETERS:
                self._take_data(peer, run, arrival.marked)
            elif run.kind == _ACK:
                self._take_ack(peer, run)
            elif run.kind == _CONTROL and run.message == _GOODBYE:
                self._depart(peer)
            elif run.kind != _CONTROL:
                counters.malformed += run.segments

    def _take_sums(self, arrival: Arrival) -> None:
        """Take packets that say they are sums; switches make them, so their source says nothing."""
        end = arrival.start + arrival.size_bytes
        for start in range(arrival.start, end, arrival.stride_bytes):
            self._take_sum(self._link.buffer.view[start : min(end, start + arrival.stride_bytes)])

    def _take_sum(self, datagram: memoryview) -> None:
        counters = self.counters
        try:
            header, sums, values = read_sum(datagram)
        except HeaderError:
            counters.malformed += 1
            return
        if sums.flags & SumFlag.RESULT:
            self._take_result(header, sums, values)
        else:
            self._take_contribution(header, sums, values)

    def _take_result(self, header: Header, sums: SumHeader, values: Integers) -> None:
        """Give a sum to the pool that waits for it."""
        counters, joined = self.counters, self._sums.get(header.job)
        if joined is None or sums.epoch != joined.pools[0].member.epoch:
            counters.foreign += 1
            return
        pool = next((pool for pool in joined.pools if pool.has_slot(sums.slot)), None)
        if pool is None or header.kind != pool.kind:
            counters.implausible += 1
            return
        counters.received += 1
        self._summed_ps = self._clock_ps()
        summed = pool.take(header, sums, values, self._clock_ps())
        if summed is not None:
            joined.summed(summed)

    def _take_contribution(self, header: Header, sums: SumHeader, values: Integers) -> None:
        """Give what switches have summed to the server for which it is."""
        counters, serving = self.counters, self._serving.get(header.job)
        if serving is None:
            counters.implausible += 1
            return
        server = serving.server
        if sums.epoch != server.service.epoch:
            counters.foreign += 1
            return
        counters.received += 1
        self._asked_ps = self._clock_ps()
        summed = server.take(header, sums, values, self._clock_ps())
        if summed is not None:
            serving.summed(summed)

    def _take_data(self, peer: Peer, run: SegmentRun, marked: bool) -> None:
        counters = self.counters
        counters.received += run.segments
        flow, assembly = peer.receiving.get(run.flow) or self._new_receiving(peer, run.flow)
        new = flow.new_among(run.sequence, run.segments)
        if new is None:
            counters.implausible += run.segments
            return
        message = None
        if new:
            message = assembly.find(run) or self._begin(peer, assembly, run)
            if message is None:
                counters.refused += run.segments
                return
            if not fits(run, message):
                counters.implausible += run.segments
                return
            message.place(self._link.buffer, run, new)
        if marked:
            counters.marked += run.segments
            flow.mark()
        self._accept(peer, flow, run, new)
        if message is None:
            return
        if message.complete:
            self._deliver(assembly, message, run)
        elif run.payload_bytes:
            header = self._link.buffer.view[run.start : run.start + SEGMENT_HEADER_BYTES].tobytes()
            self._lane = _Lane(peer, flow, assembly, message, run, header)

    def _accept(self, peer: Peer, flow: ReceiveFlow, run: SegmentRun, new: int) -> None:
        flow.accept(run.sequence, run.transmission, run.segments, new, at_once=bool(run.flags & _AT_ONCE))
        self._to_acknowledge[flow] = (peer, run)

    def _deliver(self, assembly: Assembly, message: Incoming, run: SegmentRun) -> None:
        assembly.finish(run)
        self._delivered(message)

    def _take_following(self) -> int:
        """Take what most likely comes next, the following segments of a message, past Python; return their bytes."""
        if self._lane is None:
            return 0
        peer, flow, assembly, message, run, header = self._lane
        if not flow.expects(run.sequence + run.segments):
            self._lane = None
            return 0
        start = run.offset + run.segments * run.payload_bytes
        target = message.buffer[start:]
        count, flags = self._link.receive_following(peer.address, header, run, target, _MOST_ARRIVED_BYTES)
        if not count:
            return 0
        self.counters.received += count
        peer.heard_ps = self._clock_ps()
        message.missing_bytes -= count * run.payload_bytes
        self._accept(peer, flow, part_of(run, run.segments, count)._replace(flags=flags), (1 << count) - 1)
        self._lane = self._lane._replace(run=run._replace(segments=run.segments + count))
        if message.complete:
            self._lane = None
            self._deliver(assembly, message, run)
        return count * run.stride_bytes

    def _new_receiving(self, peer: Peer, flow: int) -> _Receiving:
        peer.receiving[flow] = _Receiving(ReceiveFlow(self.settings.flow.ack_every), Assembly())
        return peer.receiving[flow]

    def _begin(self, peer: Peer, assembly: Assembly, run: SegmentRun) -> Incoming | None:
        """Ask the caller for memory for a message of which the first segments are here."""
        tag = Tag(
            job=run.job,
            worker=run.worker,
            iteration=run.iteration,
            tensor=run.tensor,
            message=run.message,
            kind=run.kind,
            queue=run.queue,
            chunks=run.chunks,
            flow=run.flow,
            deadline_ps=self._clock_ps() + run.slack_us * _PS_PER_US,
        )
        message = self._opened(peer.name, tag, run.total_bytes)
        if message is not None:
            assembly.begin(run, message)
        return message

    def _opened(self, source: str, tag: Tag, size: int) -> Incoming | None:
        """Return a message for which the caller has given memory; None: it was refused."""
        buffer = self._buffer_for(source, tag, size)
        if buffer is None:
            return None
        view = memoryview(buffer).cast("B")
        if len(view) != size:
            raise InputError(f"a buffer of {len(view)} bytes for a message of {size}; give one of its length")
        if view.readonly:
            raise InputError(f"a buffer for a message of {size} bytes that nobody may write to; give a writable one")
        return Incoming(source, tag, view)

    def _take_ack(self, peer: Peer, run: SegmentRun) -> None:
        self.counters.acks_received += 1
        flow = peer.sending.get(run.flow)
        if flow is None:
            return
        start = run.start + SEGMENT_HEADER_BYTES
        arrived = int.from_bytes(self._link.buffer.view[start : start + run.payload_bytes], "little")
        ack = Ack(run.sequence, arrived, run.transmission, bool(run.flags & _MARKED))
        if flow.acknowledge(ack, self._clock_ps()) is None:
            self.counters.implausible += 1
        if flow.idle:
            self._scheduler.retire(flow)


def view_of(payload: Any) -> memoryview:
    """Return the bytes of what is to be sent."""
    view = memoryview(payload).cast("B")
    if len(view) > _LONGEST_MESSAGE_BYTES:
        raise InputError(f"a message of {len(view)} bytes; accepted: at most {_LONGEST_MESSAGE_BYTES}; cut it up")
    return view
