"""The scheduler: takes requests, and tells workers where and when to send, or that they need not.

    worker -> scheduler   request {size, version, norm}      scheduler -> worker   go {to, seq} or discard
    helper -> scheduler   summed {seq}                       scheduler -> helper   collect {seq, members}, send {seq}
    server -> scheduler   delivered {seq}, committed {seq, version}                skip {seq}

One group at a time uses the server's link, at the whole rate that its path has; sums are collected meanwhile.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from tensorexpress.commits.aggregate import Aggregation
from tensorexpress.commits.scheduler import decide
from tensorexpress.commits.updates import Update
from tensorexpress.roles.task import RoleTask
from tensorexpress.roles.wire import ENDED, Header, Nic, RoleLink


@dataclass(eq=False)
class _Place:
    """A group and its place in the order of commits."""

    seq: int
    members: tuple[int, ...]
    helper: int | None
    is_summed: bool = False
    is_sending: bool = False
    is_delivered: bool = False
    #: Whether its helper waits for somebody who will not come.
    has_changed: bool = False


class SchedulerRole:
    """The one who decides."""

    def __init__(self, task: RoleTask, nic: Nic | None, start: float, tell: Callable[[Header], None]):
        self.task, self.start, self.tell = task, start, tell
        self.links: dict[int, RoleLink] = {}
        self.server = task.server
        self.version = 0
        self.waiting: dict[int, Update] = {}
        self.line: list[_Place] = []
        self.seq = 0
        self.idle: list[int] = []
        self.free_at = 0.0

    async def run(self, scheduler: int | None) -> None:
        """Serve until somebody ends this process."""
        await asyncio.Event().wait()

    async def serve(self, link: RoleLink, hello: Header) -> None:
        """Listen to one of the others for as long as it is there."""
        host, role = int(hello["host"]), hello["role"]
        self.links[host] = link
        if role == "helper":
            self.idle.append(host)
        elif role == "server":
            self._begin(host, int(hello["version"]))
            await link.send({"kind": "begin", "seq": self.seq})
        try:
            while True:
                header, _ = await link.receive()
                self._hear(host, header)
                await self._go_on()
        finally:
            self._forget(host, role)
            await self._go_on()

    def _begin(self, server: int, version: int) -> None:
        """Start anew with a server: what was told before concerned another one."""
        self.server, self.version = server, version
        self.waiting.clear()
        self.line.clear()
        self.idle = [helper for helper in self.task.helpers if helper in self.links]

    def _hear(self, host: int, header: Header) -> None:
        match header["kind"]:
            case "request":
                self._drop_from_line(host)
                self.waiting[host] = Update(host, int(header["version"]), int(header["size"]), float(header["norm"]))
            case "withdraw":
                self.waiting.pop(host, None)
                self._drop_from_line(host)
            case "summed":
                for place in self._places(header):
                    place.is_summed = True
            case "delivered":
                for place in self._places(header):
                    place.is_delivered = True
                    if place.helper is not None and place.helper in self.links:
                        self.idle.append(place.helper)
            case "committed":
                self.version = int(header["version"])
                self.line = [place for place in self.line if place.seq != header["seq"]]

    def _places(self, header: Header) -> list[_Place]:
        return [place for place in self.line if place.seq == header["seq"]]

    def _drop_from_line(self, host: int) -> None:
        """Take a worker that asks again, or is gone, out of groups that are not there yet."""
        for place in self.line:
            if host in place.members and not place.is_delivered:
                place.members = tuple(member for member in place.members if member != host)
                place.has_changed = place.helper is not None

    def _forget(self, host: int, role: str) -> None:
        self.links.pop(host, None)
        self.waiting.pop(host, None)
        if role == "helper":
            self.idle = [helper for helper in self.idle if helper != host]
        elif role == "worker":
            self._drop_from_line(host)

    def _is_lost(self, place: _Place) -> bool:
        """Whether a group will never be there: its helper is gone, or the worker that was to send it."""
        senders = place.members if place.helper is None else (place.helper,)
        return not place.is_delivered and not (place.members and any(sender in self.links for sender in senders))

    async def _go_on(self) -> None:
        for place in [each for each in self.line if self._is_lost(each)]:
            self.line.remove(place)
            await self._send(self.server, {"kind": "skip", "seq": place.seq})
        for update in self._decide():
            self.tell({"dropped": 1})
            await self._send(update.host, {"kind": "discard"})
        for place in self.line:
            if place.helper is not None and not place.is_sending and not place.is_summed:
                await self._collect(place)
            elif place.has_changed and place.helper is not None:
                place.has_changed = False
                fewer = {"kind": "collect", "seq": place.seq, "members": len(place.members)}
                await self._send(place.helper, fewer)
        await self._next_turn()

    def _decide(self) -> tuple[Update, ...]:
        """Put groups in line if the server's link is free, or a helper could prepare a sum; return what is dropped."""
        now = asyncio.get_running_loop().time()
        has_room = all(place.is_delivered for place in self.line)
        if not self.waiting or not (has_room or self.idle):
            return ()
        way = Aggregation(
            self.server,
            tuple(self.idle),
            self.task.add_rate_bps,
            0 if has_room else max(0, round((self.free_at - now) * 1e12)),
        )
        decided = sum(len(place.members) for place in self.line)
        plan = decide(list(self.waiting.values()), self.version + decided, self.task.tau, way, self._bandwidth)
        if has_room or any(group.helper is not None for group in plan.groups):
            for group in plan.groups:
                hosts = tuple(update.host for update in group.updates)
                self.line.append(_Place(self.seq, hosts, group.helper))
                self.seq += 1
                self.free_at = now + group.arrives_ps / 1e12
                if group.helper is not None:
                    self.idle.remove(group.helper)
                for host in hosts:
                    del self.waiting[host]
        for update in plan.drops:
            del self.waiting[update.host]
        return plan.drops

    def _bandwidth(self, src: int, dst: int) -> int:
        now = asyncio.get_running_loop().time() - self.start
        own = (self.task.send_steps[src], self.task.receive_steps[dst])
        return min(steps[max(0, bisect_right([at for at, _ in steps], now) - 1)][1] for steps in own)

    async def _collect(self, place: _Place) -> None:
        """Have the members of a group send to its helper, one after another as its link allows."""
        assert place.helper is not None
        place.is_sending = True
        await self._send(place.helper, {"kind": "collect", "seq": place.seq, "members": len(place.members)})
        for host in place.members:
            await self._send(host, {"kind": "go", "to": place.helper, "seq": place.seq})

    async def _next_turn(self) -> None:
        """Let the first group in line that is not there use the server's link."""
        place = next((each for each in self.line if not each.is_delivered), None)
        if place is None:
            return
        if place.helper is None and not place.is_sending:
            place.is_sending = True
            await self._send(place.members[0], {"kind": "go", "to": self.server, "seq": place.seq})
        elif place.helper is not None and place.is_summed:
            place.is_summed = False  # it is told once
            await self._send(place.helper, {"kind": "send", "seq": place.seq})

    async def _send(self, host: int, header: Header) -> None:
        try:
            await self.links[host].send(header)
        except (KeyError, *ENDED):
            return
