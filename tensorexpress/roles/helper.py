"""The helper: sums the updates of a group, sends the sum when told to, and hands models on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tensorexpress.learning import PROBLEMS, Floats
from tensorexpress.roles.task import RoleTask
from tensorexpress.roles.wire import ENDED, Header, Nic, RoleLink, connect, packed, run_beside, unpacked


@dataclass
class _Sum:
    total: Floats
    members: list[Header] = field(default_factory=list)


class HelperRole:
    """One helper."""

    def __init__(self, task: RoleTask, nic: Nic, start: float, tell: Callable[[Header], None]):
        self.task, self.nic, self.tell = task, nic, tell
        self.count = len(PROBLEMS[task.problem].make().start)
        self.workers: dict[int, RoleLink] = {}
        self.sums: dict[int, _Sum] = {}
        self.expected: dict[int, int] = {}
        self.server: RoleLink | None = None
        self.scheduler: RoleLink | None = None

    async def run(self, scheduler: int | None) -> None:
        """Serve until somebody ends this process."""
        await self._join(self.task.server)
        if scheduler is not None:
            self.scheduler = await connect(self.task.folder, scheduler, self._me, None)
            run_beside(self._obey(self.scheduler))
        await asyncio.Event().wait()

    @property
    def _me(self) -> Header:
        return {"role": "helper", "host": self.task.host}

    async def _join(self, server: int) -> None:
        self.server = await connect(self.task.folder, server, self._me, self.nic)
        run_beside(self._hand_on(self.server))

    async def serve(self, link: RoleLink, hello: Header) -> None:
        """Take what a worker sends."""
        self.workers[int(hello["host"])] = link
        while True:
            header, payload = await link.receive()
            seq = int(header["seq"])
            found = self.sums.setdefault(seq, _Sum(np.zeros(self.count)))
            found.total = found.total + unpacked(payload, self.count)
            found.members.append({name: header[name] for name in ("host", "iteration", "version", "norm")})
            await self._tell_summed(seq)

    async def _obey(self, scheduler: RoleLink) -> None:
        try:
            while True:
                header, _ = await scheduler.receive()
                seq = int(header["seq"])
                if header["kind"] == "collect":
                    self.expected[seq] = int(header["members"])
                    await self._tell_summed(seq)
                elif header["kind"] == "send":
                    await self._send(seq)
        except ENDED:
            self.scheduler = None
            # Nobody tells what to wait for any more: what is here goes as it is.
            for seq in sorted(self.sums):
                await self._send(seq)

    async def _tell_summed(self, seq: int) -> None:
        found = self.sums.get(seq)
        if found is None or len(found.members) < self.expected.get(seq, 1 << 30):
            return
        if self.task.add_rate_bps:
            await asyncio.sleep(self.task.update_bytes * 8 / self.task.add_rate_bps)
        if self.scheduler is not None and self.expected.pop(seq, None) is not None:
            await self.scheduler.send({"kind": "summed", "seq": seq})

    async def _send(self, seq: int) -> None:
        found = self.sums.pop(seq, None)
        if found is None or self.server is None:
            return
        header = {"kind": "sum", "seq": seq, "members": found.members}
        try:
            await self.server.send(header, packed(found.total, self.task.update_bytes))
        except ENDED:
            return

    async def _hand_on(self, server: RoleLink) -> None:
        """Hand models on to the workers that the server names; follow to the replica where the server is gone."""
        try:
            while True:
                header, payload = await server.receive()
                for host, iteration in header["workers"]:
                    model = {"kind": "model", "version": header["version"], "after": iteration}
                    try:
                        await self.workers[host].send(model, payload)
                    except (KeyError, *ENDED):
                        continue
                await server.send({"kind": "handed_on"})
        except ENDED:
            self.sums.clear()
            if self.task.replica is not None and server is self.server:
                await self._join(self.task.replica)
