"""An endpoint whose messages machine code carries: `endpoint_kernel.py` does what `Endpoint` does, without Python.

What is left to Python is what happens once per message or less: memory for it, word that it is complete, timers,
heartbeats and leave. Messages of an exchange that machine code carries out (`native_exchange.py`) are not even that.
The tables that both work on are arrays of words; machine code says when they must grow.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tensorexpress.compiled_functions import Library
from tensorexpress.errors import InputError
from tensorexpress.framing import SEGMENT_HEADER_BYTES
from tensorexpress.host import flow_layout as at
from tensorexpress.host import native
from tensorexpress.host.assembly import Incoming
from tensorexpress.host.endpoint import PLAIN, Counters, Endpoint, EndpointSettings, Peer, view_of
from tensorexpress.host.layout import ECT, H_CHUNK, H_ITERATION, H_MESSAGE, H_TOTAL
from tensorexpress.host.links import Address, KernelLink, raise_what_can_be_mended, segments_together
from tensorexpress.host.segments import SegmentBuffer, SegmentRun
from tensorexpress.host.tables import SharedTable, Words, WordTable
from tensorexpress.host.tagging import Tag, TrafficClass, monotonic_ps
from tensorexpress.host.wire_link import LONGEST_FRAME_BYTES, WireLink
from tensorexpress.queueing import HOST_ORDERS, TURN, Slice
from tensorexpress.recovery import ALPHA_ONE
from tensorexpress.wire.frame import FrameEnd
from tensorexpress.wire.header import Kind
from tensorexpress.wire.udp import STAMP_BYTES

_FLOWS = Library(
    "flows",
    {"flows": 4},
    ("tensorexpress.host.endpoint_kernel",),
    waiting=("flows",),
    part="the transport of hosts",
)
[_flows] = _FLOWS.functions()

_PS_PER_NS, _PS_PER_US = 1000, 10**6
_COUNTERS = {
    "sent": at.N_SENT, "received": at.N_RECEIVED, "acks_sent": at.N_ACKS_SENT, "acks_received": at.N_ACKS_RECEIVED,
    "marked": at.N_MARKED, "strangers": at.N_STRANGERS, "malformed": at.N_MALFORMED, "corrupt": at.N_CORRUPT,
    "foreign": at.N_FOREIGN, "implausible": at.N_IMPLAUSIBLE, "refused": at.N_REFUSED,
}  # fmt: skip

#: What the headers of a segment say of its message: kind, job, worker, iteration, tensor, queue, chunks, slack, flow,
#: number, bytes.
_HEADERS = struct.Struct("!2xBxHHIHB5xIi12xH10xI4xI")

#: Where the number of the iteration is in the row of a message that is sent: in the headers of its segments.
_ITERATION, _ITERATION_AT = struct.Struct("!I"), at.WORD_BYTES * at.O_HEADER + H_ITERATION
_OUTGOING_BYTES = at.WORD_BYTES * at.OUTGOING_WORDS
_INCOMING = struct.Struct(f"={at.INCOMING_WORDS}q")

#: Rows of messages that are kept for when the same is sent again.
_MOST_TEMPLATES = 2**16


class Told(Protocol):
    """An exchange that machine code carries out."""

    #: Its words, as `exchange_layout` has them.
    words: Words
    #: Of how many of its nodes Python can be told at once.
    most_told: int
    #: How many messages it may send because one has come.
    most_sent: int

    def told(self, what: int, place: int) -> None:
        """Take what machine code says of a node."""
        ...


class Sent:
    """A message at its sender, as `flow.Outgoing`: whether it is done, and when it was first sent."""

    __slots__ = ("_endpoint", "_row", "_sent_ps", "done", "payload")

    def __init__(self, endpoint: NativeEndpoint, row: int, payload: Any):
        self._endpoint, self._row, self.payload = endpoint, row, payload
        self._sent_ps = -1
        #: Whether all of it has been acknowledged; only then may its payload change.
        self.done = False

    @property
    def sent_ps(self) -> int:
        """When its first segment was first sent; -1 before."""
        return self._sent_ps if self.done else self._endpoint.first_sent_ps(self._row)

    def arrived(self) -> None:
        """Note that it is done: its row is somebody else's from now on."""
        self._sent_ps = self.sent_ps
        self.done, self.payload = True, None


class NativeEndpoint(Endpoint):
    """One end of the transport, for messages alone: neither sums nor other traffic pass through it."""

    def __init__(
        self,
        link: WireLink | KernelLink,
        peers: Mapping[str, Address],
        settings: EndpointSettings,
        **options: Any,
    ):
        """Speak over a wire or a kernel socket; options are those of `Endpoint`."""
        self._core_words: Words = np.zeros(at.CORE_WORDS, dtype=np.int64)
        #: The same as numbers: of single words Python reads and writes these faster.
        self._core = self._core_words.data
        self._address = native.address_of(self._core_words)
        self._seen = Counters()
        super().__init__(link, peers, settings, **options)
        self._link: WireLink | KernelLink = link
        self._has_own_clock = self._clock_ps is monotonic_ps
        #: Tables hold times since then: those of a machine that is up for months would not fit a word.
        self._origin_ps = self._clock_ps() // _PS_PER_NS * _PS_PER_NS
        #: Memory that words lead to: by the word, and the flow if it is one of a flow.
        self._memory: dict[int | tuple[int, int], Any] = {}
        self._sent: dict[int, Sent] = {}
        self._incoming: dict[int, Incoming] = {}
        self._flows: dict[tuple[str, int], int] = {}
        self._templates: dict[tuple[Any, ...], bytes] = {}
        self._exchanges: list[Told] = []
        #: How to send to a peer, by traffic class: addresses of what machine code reads, and what is there.
        self._routes: dict[tuple[Address, TrafficClass], tuple[int, Any]] = {}
        self._header = SegmentBuffer(SEGMENT_HEADER_BYTES)
        self._header_words = np.frombuffer(self._header.memory, dtype=np.int64)
        self._outgoing = SharedTable(self._core_words, at.OUTGOING, at.OUTGOING_WORDS, at.FREE_OUTGOING)
        self._arriving = SharedTable(self._core_words, at.INCOMING, at.INCOMING_WORDS, at.FREE_INCOMING)
        self._tables = {
            at.PEERS: WordTable(self._core_words, at.PEERS, at.PEER_WORDS),
            at.SENDING: WordTable(self._core_words, at.SENDING, at.SENDING_WORDS),
            at.RECEIVING: WordTable(self._core_words, at.RECEIVING, at.RECEIVING_WORDS),
            at.OUTGOING: self._outgoing,
            at.INCOMING: self._arriving,
        }
        self._set_up(self._core_words, settings)
        self._peer_names = list(peers)
        for name in self._peer_names:
            self._add_peer(name)
        self._make_lists()

    @property
    def counters(self) -> Counters:
        """What the endpoint has seen, in datagrams."""
        for name, place in _COUNTERS.items():
            setattr(self._seen, name, self._core[place])
        if isinstance(self._link, WireLink):
            self._link.ignored = self._core[at.N_IGNORED]
        return self._seen

    @counters.setter
    def counters(self, counters: Counters) -> None:
        self._seen = counters

    # Tables

    def _set_up(self, core: Words, settings: EndpointSettings) -> None:
        flow = settings.flow
        self._stage_memory = bytearray(LONGEST_FRAME_BYTES)
        leaving, held = np.zeros(LONGEST_FRAME_BYTES + STAMP_BYTES, dtype=np.uint8), np.zeros(0, np.uint8)
        times, run, option = (np.zeros(words, dtype=np.int64) for words in (2, 8, 1))
        self._header.pack(self._plain(int(Kind.ACK)), 0)
        ack = self._header_words.copy()
        received, *others = native.message_words(self._stage_memory)
        core[at.DESCRIPTOR] = self._link.fileno()
        if isinstance(self._link, WireLink):
            core[at.IS_WIRE], core[at.IS_STAMPED] = 1, self._link.is_stamped
            own, found = native.wire_words(self._link.fileno(), self._link.own)
        else:
            here = FrameEnd(b"", ip_address(self._link.address[0]), self._link.address[1])
            own, found = native.wire_words(self._link.fileno(), here)
            core[at.TOGETHER] = segments_together(self._stride) if self._link.offload else 1
            held = np.zeros(at.MOST_BURST * self._stride, dtype=np.uint8)
            self._forget()
        self._kept: tuple[NDArray[Any], ...] = (leaving, held, times, run, option, ack, received, own, found)
        core[[at.LEAVING, at.HELD, at.TIME, at.RUN_HEADER, at.OPTION, at.ACK_HEADER, at.RECEIVED, at.OWN, at.FOUND]] = [
            native.address_of(each) for each in self._kept
        ]
        self._kept += tuple(others)
        core[[at.STAGE, at.STAGE_BYTES]] = native.address_in(self._stage_memory), LONGEST_FRAME_BYTES
        core[at.ORIGIN_NS] = self._origin_ps // _PS_PER_NS
        core[at.REST_PS], core[at.SESSION] = settings.rest_ps, self.session
        core[at.PAYLOAD_BYTES], core[at.FULL_BYTES] = flow.payload_bytes, flow.full_bytes
        core[at.ACK_EVERY], core[at.RTO_MIN_PS] = flow.ack_every, flow.rto_min_ps
        core[at.REORDERING] = flow.reordering or at.NEVER
        core[at.CREDIT_BYTES], core[at.RATE_BPS] = settings.credit_bytes, settings.rate_bps
        core[at.WEIGHS_TURNS], core[at.IS_IDLE] = settings.weighs_turns, 1
        core[at.MOST_SEGMENTS] = min(self._most, at.MOST_BURST)
        core[at.HOST_ORDER] = HOST_ORDERS[settings.host_order].code or 0
        self._poll()

    def _poll(self) -> None:
        """Say on what machine code waits: the wire, and what Python watches."""
        polled = [self._link.fileno(), *self._watched]
        self._polled = np.array(polled, dtype=np.int64) | at.READABLE << 32
        self._core_words[[at.POLLED, at.POLLED_COUNT]] = native.address_of(self._polled), len(polled)

    def _make_lists(self) -> None:
        """Give lists of rows the room for all of them, and events that for one of each message and peer."""
        sending, receiving = (len(self._tables[place]) for place in (at.SENDING, at.RECEIVING))
        events = sum(len(self._tables[place]) for place in (at.OUTGOING, at.INCOMING, at.PEERS))
        events += sum(exchange.most_told for exchange in self._exchanges)
        for place, size in ((at.ACTIVE, sending), (at.DUE, receiving), (at.EVENTS, 2 * events)):
            old = self._memory.get(place, np.zeros(0, dtype=np.int64))
            if len(old) < size:
                new = np.zeros(size, dtype=np.int64)
                new[: len(old)] = old
                self._memory[place] = new
                self._core[place] = native.address_of(new)

    def _take_row(self, place: int) -> int:
        table = self._tables[place]
        room = len(table)
        row = table.take()
        if len(table) != room:
            self._make_lists()
        return row

    def _add_peer(self, name: str) -> None:
        peer = self._peers[name]
        row = self._take_row(at.PEERS)
        words = self._tables[at.PEERS].words[row]
        words[at.P_PORT] = peer.address[1]
        ip = ip_address(peer.address[0]).packed
        words[at.P_IP : at.P_IP_REST + 1].view(np.uint8)[: len(ip)] = np.frombuffer(ip, dtype=np.uint8)
        words[[at.P_HEARD_PS, at.P_SENT_PS]] = peer.heard_ps - self._origin_ps, peer.sent_ps - self._origin_ps
        words[[at.P_SENDING, at.P_RECEIVING]] = at.NONE
        words[at.P_ROUTE] = self._route_to(peer.address, self.settings.control)
        self._core[at.PEER_COUNT] = row + 1

    def _route_to(self, target: Address, traffic: TrafficClass) -> int:
        """Return where machine code finds how to send to a peer."""
        found = self._routes.get((target, traffic))
        if found is None:
            found = self._routes[target, traffic] = self._new_route(target, traffic)
        return found[0]

    def _new_route(self, target: Address, traffic: TrafficClass) -> tuple[int, Any]:
        if isinstance(self._link, WireLink):
            headers = self._link.headers_to(target, traffic)
            self._core[at.FRAME_HEADER_BYTES] = len(headers)
            return native.address_in(headers), headers
        place = self._link.place_of(target)
        words = np.array(
            [native.address_in(place), len(place), traffic.dscp << 2 | ECT, traffic.priority], dtype=np.int64
        )
        return native.address_of(words), (words, place)

    def _add_sending(self, peer: str, flow: int) -> int:
        settings = self.settings.flow
        row = self._take_row(at.SENDING)
        words, of_peer = self._tables[at.SENDING].words[row], self._peer_row(peer)
        words[:] = 0
        largest = settings.window_bytes or at.NEVER
        window = min(settings.initial_window_bytes or at.NEVER, largest)
        for place, value in (
            (at.S_FLOW, flow), (at.S_PEER, self._peer_names.index(peer)), (at.S_NEXT, of_peer[at.P_SENDING]),
            (at.S_LARGEST_WINDOW, largest), (at.S_WINDOW, window), (at.S_TIMEOUT_PS, settings.rto_min_ps),
            (at.S_PROBE, -1), (at.S_TURN, TURN), (at.S_CURRENT, at.NONE), (at.S_FIRST_WAITING, at.NONE),
            (at.S_FIRST_LOSING, at.NONE), (at.S_LAST_LOSING, at.NONE), (at.S_SEEN, -1),
            (at.S_SLOW_START_UNTIL, at.NEVER), (at.S_ALPHA, ALPHA_ONE),
        ):  # fmt: skip
            words[place] = value
        of_peer[at.P_SENDING] = row
        self._grow_bursts(row)
        self._flows[peer, flow] = row
        return row

    def _grow_bursts(self, flow: int) -> None:
        """Give a flow more room for what is on the way."""
        words = self._tables[at.SENDING].words[flow]
        room, first, count = (int(words[place]) for place in (at.S_BURST_ROOM, at.S_FIRST_BURST, at.S_BURST_COUNT))
        bursts = np.zeros((max(16, 2 * room), at.BURST_WORDS), dtype=np.int64)
        if count:
            bursts[:count] = self._memory[at.S_BURSTS, flow][(first + np.arange(count)) % room]
        self._memory[at.S_BURSTS, flow] = bursts
        words[[at.S_BURSTS, at.S_BURST_ROOM, at.S_FIRST_BURST]] = native.address_of(bursts), len(bursts), 0

    def _add_receiving(self) -> None:
        """Make the flow to which the segment belongs that is next."""
        row = self._take_row(at.RECEIVING)
        words = self._tables[at.RECEIVING].words[row]
        peer = self._core[at.PENDING_PEER]
        of_peer = self._tables[at.PEERS].words[peer]
        words[[at.R_FLOW, at.R_PEER, at.R_NEXT]] = self._pending()[8], peer, of_peer[at.P_RECEIVING]
        words[[at.R_TRANSMISSION, at.R_MESSAGE]] = -1, at.NONE
        of_peer[at.P_RECEIVING] = row

    def _pending(self) -> tuple[int, ...]:
        """Return what the segment that is next says of its message."""
        start = self._core[at.PENDING] - self._core[at.STAGE]
        return _HEADERS.unpack_from(self._stage_memory, start)

    def _peer_row(self, name: str) -> Words:
        row: Words = self._tables[at.PEERS].words[self._peer_names.index(name)]
        return row

    # Messages

    def send(self, peer: str, tag: Tag, payload: Any) -> Any:
        """Send a message, as `Endpoint.send`."""
        target, view = self._target(peer), view_of(payload)
        flow = self.flow_to(peer, tag.flow)
        origin_ps, length = self._origin_ps, len(view)
        now_ps, deadline_ps = self._clock_ps() - origin_ps, tag.deadline_ps - origin_ps
        key = self._scheduler.key_of(Slice(now_ps, tag.rank, length, deadline_ps, tag.iteration, tag.message))
        row = self._take_row(at.OUTGOING)
        table = self._outgoing
        start = row * _OUTGOING_BYTES
        table.bytes[start : start + _OUTGOING_BYTES] = self._template(target, tag, length, flow)
        _ITERATION.pack_into(table.bytes, start + _ITERATION_AT, tag.iteration)
        first = row * at.OUTGOING_WORDS
        table.cells[first + at.O_KEY], table.cells[first + at.O_DEADLINE_PS] = key, deadline_ps
        if length:
            table.cells[first + at.O_PAYLOAD] = native.address_in(view)
        sent = self._sent[row] = Sent(self, row, view)
        _flows(self._address, at.OFFER, flow, row)
        return sent

    def flow_to(self, peer: str, number: int) -> int:
        """Return the row of a flow to a peer."""
        flow = self._flows.get((peer, number))
        return self._add_sending(peer, number) if flow is None else flow

    def _template(self, target: Peer, tag: Tag, length: int, flow: int) -> bytes:
        """Return the row of a message, which is the same in every iteration but for its number, key and deadline."""
        same = (
            target.name, length, tag.job, tag.worker, tag.tensor, tag.message, tag.kind, tag.queue, tag.chunk,
            tag.chunks, tag.flow, tag.traffic,
        )  # fmt: skip
        found = self._templates.get(same)
        if found is None:
            if len(self._templates) == _MOST_TEMPLATES:
                self._templates.clear()
            found = self._templates[same] = self.new_template(target.name, tag, length, flow)
        return found

    def new_template(self, peer: str, tag: Tag, length: int, flow: int) -> bytes:
        """Return the row of a message to a peer, before it is offered."""
        target, size = self._peer(peer), self.settings.flow.payload_bytes
        segments = max(1, -(-length // size))
        row: Words = np.zeros(at.OUTGOING_WORDS, dtype=np.int64)
        for place, value in (
            (at.O_FLOW, flow), (at.O_LENGTH, length), (at.O_SEGMENTS, segments),
            (at.O_LAST_BYTES, length - (segments - 1) * size), (at.O_FIRST_SEQUENCE, -1), (at.O_SENT_PS, at.NONE),
            (at.O_UNARRIVED, segments), (at.O_ROUTE, self._route_to(target.address, tag.traffic)),
            (at.O_NEXT, at.NONE), (at.O_BEFORE, at.NONE),
        ):  # fmt: skip
            row[place] = value
        run = PLAIN._replace(
            kind=tag.kind, job=tag.job, worker=tag.worker, tensor=tag.tensor, queue=tag.queue, chunk=tag.chunk,
            chunks=tag.chunks, payload_bytes=size, session=self.session, flow=tag.flow, message=tag.message,
            total_bytes=length,
        )  # fmt: skip
        self._header.pack(run, 0)
        row[at.O_HEADER :] = self._header_words
        return row.tobytes()

    def rows_like(self, rows: Words, numbers: Words, chunks: Words, lengths: Words) -> Words:
        """Return rows of messages that differ from some by their numbers, first chunks and lengths."""
        size = self.settings.flow.payload_bytes
        segments = np.maximum(1, -(-lengths // size))
        rows[:, at.O_LENGTH], rows[:, at.O_LAST_BYTES] = lengths, lengths - (segments - 1) * size
        rows[:, at.O_SEGMENTS] = rows[:, at.O_UNARRIVED] = segments
        headers = rows.view(np.uint8)[:, at.WORD_BYTES * at.O_HEADER :]
        for place, values in ((H_CHUNK, chunks), (H_MESSAGE, numbers), (H_TOTAL, lengths)):
            headers[:, place : place + 4].view(">u4")[:, 0] = values
        return rows

    def first_sent_ps(self, row: int) -> int:
        """Return when a message of a row was first sent; -1: not yet."""
        sent_ps = self._outgoing.cells[row * at.OUTGOING_WORDS + at.O_SENT_PS]
        return sent_ps if sent_ps == at.NONE else sent_ps + self._origin_ps

    def set_rate(self, rate_bps: int) -> None:
        """Send at another rate of the host's link from now on."""
        self._core[at.RATE_BPS] = rate_bps

    def _refuse(self, *_: Any, **__: Any) -> None:
        raise InputError("this endpoint carries messages alone; for sums and other traffic make one of class Endpoint")

    sum_through = serve_sums = send_background = contribute = _refuse

    @property
    def idle(self) -> bool:
        """Whether everything that was sent has been acknowledged."""
        flows, peers = self._tables[at.SENDING].used, self._tables[at.PEERS].used
        flows = flows[peers[flows[:, at.S_PEER], at.P_GONE] == 0]
        under_way = flows[:, [at.S_BURST_COUNT, at.S_WAITING]].any()
        return not under_way and bool((flows[:, [at.S_FIRST_LOSING, at.S_CURRENT]] == at.NONE).all())

    @property
    def retransmissions(self) -> int:
        """Segments that were sent again."""
        return int(self._tables[at.SENDING].used[:, at.S_AGAIN].sum())

    @property
    def timeouts(self) -> int:
        """Time-outs that struck."""
        return int(self._tables[at.SENDING].used[:, at.S_TIMEOUTS].sum())

    @property
    def duplicates(self) -> int:
        """Segments that had arrived before."""
        return int(self._tables[at.RECEIVING].used[:, at.R_DUPLICATES].sum())

    # Exchanges

    @property
    def origin_ps(self) -> int:
        """Since when times in tables are counted."""
        return self._origin_ps

    @property
    def peer_names(self) -> list[str]:
        """The peers in the order of their rows."""
        return self._peer_names

    def carry_out(self, exchange: Told) -> int:
        """Let machine code carry an exchange out from now on; return its number."""
        self._exchanges.append(exchange)
        addresses = np.array([native.address_of(each.words) for each in self._exchanges], dtype=np.int64)
        self._memory[at.EXCHANGES] = addresses
        self._core_words[[at.EXCHANGES, at.EXCHANGE_COUNT]] = native.address_of(addresses), len(addresses)
        self._core[at.MOST_SENT] = max(each.most_sent for each in self._exchanges)
        self._make_lists()
        return len(addresses) - 1

    def check_present(self, peer: str) -> None:
        """Refuse to send to a peer that has left; NetworkError."""
        self._target(peer)

    def go_on_from(self, exchange: Told, node: int, sends: int) -> None:
        """Let an exchange go on from a node, which sends at most so many messages."""
        self._make_rows(sends)
        _flows(self._address, at.GO_ON_FROM, native.address_of(exchange.words), node)
        self._tell()

    def _make_rows(self, sends: int) -> None:
        """Have rows for so many messages that leave, and for one more that comes."""
        while self._outgoing.free_rows < sends:
            self._outgoing.grow()
        if self._arriving.free_rows == 0:
            self._arriving.grow()
        self._make_lists()

    def close(self) -> None:
        """Close the link, and free what exchanges hold."""
        super().close()
        for exchange in self._exchanges:
            _flows(self._address, at.LET_GO, native.address_of(exchange.words), 0)

    # Time

    def next_event_ps(self) -> int | None:
        """Return when there is something to do if nothing arrives; None: never."""
        due = _flows(self._address, at.NEXT_EVENT, self._now_ps(), 0)
        times = [self._next_own_ps(), at.NEVER if due == at.NONE else due]
        return None if min(times) == at.NEVER else min(times) + self._origin_ps

    def _now_ps(self) -> int:
        return self._clock_ps() - self._origin_ps

    def _next_own_ps(self) -> int:
        """Return when Python has something to do by itself, as tables say times."""
        times = [self._timers[0][0]] if self._timers else []
        if self._beat_ps:
            times.append(self._next_beat_ps)
        return min(times) - self._origin_ps if times else at.NEVER

    def receive(self) -> None:
        """Take what has arrived, acknowledge it, and deliver the messages that are complete."""
        while not _flows(self._address, at.TAKE_FRAMES, self._now_ps(), 0):
            self._go_on()
        self._tell()
        _flows(self._address, at.ACKNOWLEDGE_ALL, self._now_ps(), 0)
        self._is_left = self._core[at.IS_LEFT] != 0

    def _send_single(self, peer: Peer, run: SegmentRun, payload: bytes) -> None:
        if isinstance(self._link, KernelLink):
            self._link.forget()
        super()._send_single(peer, run, payload)
        self._forget()

    def _transmit(self, now_ps: int) -> None:
        while not _flows(self._address, at.GIVE, now_ps - self._origin_ps, 0):
            self._go_on()
        self._go_on()

    def run(self, until: Callable[[], bool]) -> None:
        """Receive, send, rest and wait until a condition holds; NetworkError names a peer that has fallen silent."""
        if not self._has_own_clock:
            super().run(until)
            return
        core, waits = self._core, False
        core[at.PHASE] = at.TAKING
        while True:
            core[at.WAKE_PS] = self._next_own_ps()
            watched = _flows(self._address, at.RUN_ON, waits, 0)
            self._go_on()
            if core[at.PHASE] == at.TAKING and not watched:
                waits = False
                continue  # what it could not go on without is there now
            if watched:
                self._look()
            self._do_own()
            waits = core[at.PHASE] == at.WAITING
            if waits and until():
                return

    def _do_own(self) -> None:
        """Do what is due and not for machine code."""
        now_ps = self._clock_ps()
        self._ring(now_ps)
        if self._beat_ps and now_ps >= self._next_beat_ps:
            self._beat(now_ps)

    def _look(self) -> None:
        """Call those who watch descriptors that can be read."""
        for word in self._polled[1:].tolist():
            action = self._watched.get(word & 0xFFFFFFFF)
            if word >> 48 and action is not None:
                action()

    def watch(self, descriptor: int, action: Callable[[], None] | None) -> None:
        """While this end runs, call an action whenever a descriptor can be read; None: no more."""
        super().watch(descriptor, action)
        self._poll()

    # What machine code says

    def _go_on(self) -> None:
        """Do what machine code cannot go on without, and take what it says."""
        self._tell()
        if self._core[at.ERROR]:
            self._raise_error()
        blocked = self._core[at.BLOCKED]
        if blocked == at.NEW_FLOW:
            self._add_receiving()
        elif blocked == at.NEW_MESSAGE:
            self._begin_pending()
        elif blocked == at.MORE_ROWS:
            self._make_rows(self._core[at.MOST_SENT])
        elif blocked == at.MORE_ROOM:
            self._grow_bursts(self._core[at.BLOCKED_ON])

    def _raise_error(self) -> None:
        """Raise what the kernel said about a datagram, and a person can do something about."""
        error, self._core[at.ERROR] = self._core[at.ERROR], 0
        raise_what_can_be_mended(OSError(error, os.strerror(error)), next(iter(self._by_address)), self._stride)

    def _forget(self) -> None:
        """Let machine code believe nothing of how the kernel marks and cuts what is sent next."""
        self._core[at.TOS], self._core[at.CUT_BYTES] = -1, 0

    def _tell(self) -> None:
        """Tell others what has come, was acknowledged, or has left."""
        count = self._core[at.EVENT_COUNT]
        if not count:
            return
        events = self._memory[at.EVENTS].data[: 2 * count].tolist()
        self._core[at.EVENT_COUNT] = 0
        for what, row in zip(events[::2], events[1::2], strict=True):
            if what == at.ARRIVED:
                self._sent.pop(row).arrived()
                self._outgoing.give_back(row)
            elif what == at.COME:
                self._arriving.give_back(row)
                self._delivered(self._incoming.pop(row))
            elif what == at.DEPARTED:
                self._depart(self._peers[self._peer_names[row]])
            else:
                self._exchanges[row // at.BY_EXCHANGE].told(what, row % at.BY_EXCHANGE)

    def _begin_pending(self) -> None:
        """Ask the caller for memory for the message of which a segment is next; without any, that is refused."""
        core = self._core
        kind, job, worker, iteration, tensor, queue, chunks, slack_us, flow, number, total = self._pending()
        tag = Tag(
            job=job,
            worker=worker,
            iteration=iteration,
            tensor=tensor,
            message=number,
            kind=kind & 15,
            queue=queue,
            chunks=chunks,
            flow=flow,
            deadline_ps=self._clock_ps() + slack_us * _PS_PER_US,
        )
        message = self._opened(self._peer_names[core[at.PENDING_PEER]], tag, total)
        if message is None:
            core[at.BLOCKED] = at.NOTHING
            core[at.N_RECEIVED] += 1
            core[at.N_REFUSED] += 1
            return
        row, of_flow = self._take_row(at.INCOMING), core[at.BLOCKED_ON]
        flows, last = self._tables[at.RECEIVING].cells, of_flow * at.RECEIVING_WORDS + at.R_MESSAGE
        memory = native.address_of(message.buffer)
        _INCOMING.pack_into(
            self._arriving.bytes, row * _INCOMING.size,
            of_flow, kind & 15, iteration, tensor, number, memory, total, total, flows[last], 0, at.NONE,
        )  # fmt: skip
        flows[last] = row
        self._incoming[row] = message

    # Peers

    def _depart(self, peer: Peer) -> None:
        super()._depart(peer)
        self._peer_row(peer.name)[at.P_GONE] = 1
        for (name, _), flow in self._flows.items():
            if name == peer.name:
                _flows(self._address, at.RETIRE, flow, 0)

    def _beat(self, now_ps: int) -> None:
        origin_ps, words = self._origin_ps, self._tables[at.PEERS].words
        self._drained_ps = self._core[at.DRAINED_PS] + origin_ps
        for row, peer in enumerate(self._peers.values()):
            peer.heard_ps = int(words[row, at.P_HEARD_PS]) + origin_ps
            peer.sent_ps = max(peer.sent_ps, int(words[row, at.P_SENT_PS]) + origin_ps)
        super()._beat(now_ps)
