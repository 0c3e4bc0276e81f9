"""A host in training: the roles that it plays in jobs, on one endpoint, and the times that it saw.

Its role in a job is its part of the exchange (exchange.py), for its workers (worker.py) if it has any. Both are state
machines without a loop: messages and timers of the endpoint move them on. What a host sends itself does not touch the
network.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tensorexpress.host.assembly import Incoming
from tensorexpress.host.endpoint import Endpoint, EndpointSettings, settings_of
from tensorexpress.host.flow import Outgoing
from tensorexpress.host.links import Address, HostLink, KernelLink
from tensorexpress.host.segments import machine_code
from tensorexpress.host.tagging import Tag, Tagger, monotonic_ps
from tensorexpress.host.wire_link import WireLink
from tensorexpress.plan import Plan
from tensorexpress.queueing import HOST_ORDERS
from tensorexpress.units import PS_PER_MS, serialisation_ps
from tensorexpress.wire.header import Kind

#: A host rests no longer than this: what it does meanwhile is late by so much.
LONGEST_REST_PS = PS_PER_MS

#: What a round trip takes beside delays: packets of which each hop waits for the last bit, and acknowledgements.
_ROUND_TRIP_PACKETS = 3


class Role(Protocol):
    """What a host is in one job."""

    @property
    def done(self) -> bool:
        """Whether it has nothing left to do."""
        ...

    def buffer_for(self, source: str, tag: Tag, size: int) -> Any:
        """Return the memory for a message that begins; None if it is not one that is waited for."""
        ...

    def delivered(self, source: str, tag: Tag) -> None:
        """Take note that a message is complete."""
        ...


@dataclass
class Transfers:
    """When the messages of one job were ready, sent and delivered, as (iteration, number, ps), where it was seen."""

    ready: list[tuple[int, int, int]] = field(default_factory=list)
    sent: list[tuple[int, int, int]] = field(default_factory=list)
    delivered: list[tuple[int, int, int]] = field(default_factory=list)
    #: Who saw more of it, and says so by the names of these.
    others: list[Callable[[str], NDArray[np.int64]]] = field(default_factory=list)

    def arrays(self) -> dict[str, NDArray[np.int64]]:
        """Return the three as arrays of three columns."""
        return {
            name: np.concatenate(
                [np.array(rows, dtype=np.int64).reshape(-1, 3), *(other(name) for other in self.others)]
            )
            for name, rows in (("ready", self.ready), ("sent", self.sent), ("delivered", self.delivered))
        }


class Station:
    """One host: an endpoint, its roles by job, and what they saw."""

    def __init__(
        self,
        name: str,
        link: HostLink,
        peers: Mapping[str, Address],
        settings: EndpointSettings,
        *,
        session: int,
        clock_ps: Callable[[], int] = monotonic_ps,
    ):
        self.name = name
        self.now_ps = clock_ps
        kind = _endpoint_for(link, settings)
        #: Whether machine code carries messages.
        self.is_native = kind is not Endpoint
        self.endpoint = kind(
            link,
            peers,
            settings,
            session=session,
            buffer_for=self._buffer_for,
            delivered=self._delivered,
            clock_ps=clock_ps,
        )
        self.call_at = self.endpoint.call_at
        #: By number of the job.
        self.transfers: dict[int, Transfers] = {}
        self._roles: dict[tuple[int, int], Role] = {}
        self._until: list[Callable[[], bool]] = []
        self._on_the_way: deque[tuple[int, int, int, Outgoing]] = deque()

    def play(self, role: Role, job: int, receives: Kind) -> None:
        """Give messages of one kind and job to a role."""
        self._roles[job, int(receives)] = role
        self.transfers.setdefault(job, Transfers())

    def keep_until(self, is_done: Callable[[], bool]) -> None:
        """Run until this, too, is so."""
        self._until.append(is_done)

    def run(self) -> None:
        """Run until every role is done and everybody has what was sent to them."""
        self.endpoint.run(
            until=lambda: all(role.done for role in self._roles.values()) and all(done() for done in self._until)
        )
        self.endpoint.leave()
        self.note_all_sent()

    def note_all_sent(self) -> None:
        """Note when everything was sent: who has left has got it, even if word of that did not reach us."""
        while self._on_the_way:
            self._note_first_sent()

    def send(self, target: str, number: int, tag: Tag, payload: NDArray[np.float32], ready_ps: int) -> None:
        """Send what was ready at a time, as the message of this number in its job and iteration."""
        seen = self.transfers[tag.job]
        seen.ready.append((tag.iteration, number, ready_ps))
        if target == self.name:
            seen.sent.append((tag.iteration, number, ready_ps))
            self.call_at(ready_ps, lambda: self._hand_over(tag, payload))
        else:
            message = self.endpoint.send(target, tag, payload)
            self._on_the_way.append((tag.job, tag.iteration, number, message))
        self._note_sent()

    def note_delivered(self, number: int, tag: Tag) -> int:
        """Note that the message of this number is complete now; return the time."""
        now_ps = self.now_ps()
        self.transfers[tag.job].delivered.append((tag.iteration, number, now_ps))
        return now_ps

    def _note_sent(self) -> None:
        """Note when messages left that are done, and let go of them."""
        while self._on_the_way and self._on_the_way[0][-1].done:
            self._note_first_sent()

    def _note_first_sent(self) -> None:
        job, iteration, number, message = self._on_the_way.popleft()
        self.transfers[job].sent.append((iteration, number, message.sent_ps))

    def _hand_over(self, tag: Tag, payload: NDArray[np.float32]) -> None:
        """Give a message to the role of this host that it is for."""
        role = self._roles[tag.job, int(tag.kind)]
        role.buffer_for(self.name, tag, payload.nbytes)[:] = payload
        role.delivered(self.name, tag)

    def _buffer_for(self, source: str, tag: Tag, size: int) -> Any:
        role = self._roles.get((tag.job, int(tag.kind)))
        return None if role is None else role.buffer_for(source, tag, size)

    def _delivered(self, message: Incoming) -> None:
        self._roles[message.tag.job, int(message.tag.kind)].delivered(message.source, message.tag)


def _endpoint_for(link: HostLink, settings: EndpointSettings) -> type[Endpoint]:
    """Return what carries messages by machine code, where link and settings allow that, else what is all Python."""
    has_code = HOST_ORDERS[settings.host_order].code is not None and machine_code() is not None
    if settings.messages_alone and has_code and isinstance(link, KernelLink | WireLink):
        from tensorexpress.host.native_endpoint import NativeEndpoint

        return NativeEndpoint
    return Endpoint


def slice_tags(plan: Plan, tagger: Tagger, kind: Kind) -> list[Tag]:
    """Return a tag for every slice of a job, in which iteration and deadline are still to be filled in."""
    return [slice_tag(plan, tagger, index, kind) for index in range(len(tagger.plan.slices))]


def slice_tag(plan: Plan, tagger: Tagger, index: int, kind: Kind) -> Tag:
    """Return a tag for a slice of a job, in which iteration and deadline are still to be filled in.

    Jobs of one host share its endpoint, so the numbers of their flows must differ.
    """
    classes = max(plan.scenario.cluster.queues, *(len(job.ranks) for job in plan.jobs))
    tag = tagger.tag(index, kind)
    return replace(tag, flow=tagger.job * classes + tag.flow)


def host_settings(plan: Plan, host: int, job: int, silence_ps: int) -> EndpointSettings:
    """Return how a host of a plan sends: as its policy says, at the rate of its link."""
    tagger = Tagger(plan, job=job)
    directed = plan.scenario.cluster.directed()
    rate_bps = directed.rate_bps[directed.source.index(host)]
    return settings_of(plan, tagger, rate_bps=rate_bps, silence_ps=silence_ps, rest_ps=rest_ps(plan, rate_bps))


def rest_ps(plan: Plan, rate_bps: int) -> int:
    """Return for how long a host may rest after it did something, on a link of some rate.

    Acknowledgements then come later by as much at both ends of a flow. Of the time in which the link sends a window, a
    quarter of what round trips leave does not make flows wait for their windows. None where no second packet comes in
    that time, where windows become smaller by themselves, or where switches sum: they have slots for a round trip.
    """
    transport, policy = plan.scenario.transport, plan.policy
    limits = (transport.window_bytes, transport.initial_window_bytes, policy.credit_bytes)
    if policy.in_switches or transport.ecn_bytes or not any(limits):
        return 0
    window_ps = serialisation_ps(min(filter(None, limits)), rate_bps)
    packet_ps = serialisation_ps(plan.framing.full_packet_bytes, rate_bps)
    delay_ps = plan.scenario.cluster.directed().delay_ps
    way_ps = max((sum(delay_ps[link] for link in path.links) for path in plan.paths), default=0)
    longest_ps = min(LONGEST_REST_PS, (window_ps - _ROUND_TRIP_PACKETS * packet_ps - 2 * way_ps) // 4)
    return longest_ps if longest_ps > packet_ps else 0
