"""The worker: computes an update from the model that it has, asks where to send it, and waits for the next model."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable

import numpy as np

from tensorexpress.commits.modes import COMMIT_MODES
from tensorexpress.learning import PROBLEMS, Floats
from tensorexpress.roles.task import RoleTask
from tensorexpress.roles.wire import ENDED, Header, Nic, RoleLink, connect, packed, run_beside, unpacked


class WorkerRole:
    """One worker; what others tell it comes in through one queue."""

    def __init__(self, task: RoleTask, nic: Nic, start: float, tell: Callable[[Header], None]):
        self.task, self.nic, self.start, self.tell = task, nic, start, tell
        self.problem = PROBLEMS[task.problem].make()
        self.rng = np.random.default_rng([task.seed, task.workers.index(task.host)])
        self.inbox: asyncio.Queue[tuple[Header, bytes]] = asyncio.Queue()
        self.links: dict[int, RoleLink] = {}
        self.scheduler: RoleLink | None = None
        self.server = task.server
        self.iteration = 0

    async def run(self, scheduler: int | None) -> None:
        """Train until somebody ends this process."""
        await self._join(self.server)
        for helper in self.task.helpers:
            await self._join(helper)
        if scheduler is not None:
            self.scheduler = await self._join(scheduler)
        model, version = await self._model()
        while True:
            change = await self._compute(model)
            self.iteration += 1
            model, version = await self._commit(change, version)

    async def _join(self, host: int) -> RoleLink:
        link = await connect(self.task.folder, host, {"role": "worker", "host": self.task.host}, self.nic)
        self.links[host] = link
        run_beside(self._listen(host, link))
        return link

    async def _listen(self, host: int, link: RoleLink) -> None:
        try:
            while True:
                await self.inbox.put(await link.receive())
        except ENDED:
            await self.inbox.put(({"kind": "gone", "host": host}, b""))

    async def _compute(self, model: Floats) -> Floats:
        task, rng = self.task, self.rng
        rows = rng.integers(0, self.problem.samples, self.problem.batch)
        change = task.learning_rate * self.problem.gradient(model, rows)
        spread = np.sqrt(np.log1p(task.jitter**2))
        noise = float(np.exp(rng.normal(-(spread**2) / 2, spread)))
        pause_s = float(rng.random()) * task.pause_s
        now = asyncio.get_running_loop().time() - self.start
        slower = task.slower_steps[max(0, bisect_right([at for at, _ in task.slower_steps], now) - 1)][1]
        await asyncio.sleep((task.compute_s * noise + task.overhead_s) * slower + pause_s)
        return np.asarray(change)

    def _about(self, change: Floats, version: int) -> Header:
        return {
            "host": self.task.host,
            "iteration": self.iteration,
            "version": version,
            "norm": float(np.linalg.norm(change)),
        }

    async def _commit(self, change: Floats, version: int) -> tuple[Floats, int]:
        """Bring an update to the server, over whom the scheduler says, and return the model that comes back.

        Whoever is lost on the way: the update is offered again, and the server knows it if it has it already.
        """
        about = self._about(change, version)
        payload = packed(change, self.task.update_bytes)
        sent_to = await self._offer(about, payload)
        given_up = False
        while True:
            header, content = await self.inbox.get()
            match header["kind"]:
                case "model" if header["after"] == (None if given_up else self.iteration):
                    return unpacked(content, len(change)), int(header["version"])
                case "go" if not given_up:
                    sent_to = int(header["to"])
                    await self._send(sent_to, {**about, "kind": "update", "seq": header["seq"]}, payload)
                case "discard" if not given_up:
                    await self._send(self.server, {"kind": "pull", **about})
                case "gone":
                    lost = int(header["host"])
                    if lost == self.server:
                        # What was computed goes with the server; the next one has a model of its own.
                        given_up = True
                        await self._withdraw()
                        await self._next_server()
                    elif self.scheduler is not None and lost not in self.task.helpers:
                        self.scheduler = None
                        if sent_to is None:
                            sent_to = await self._offer(about, payload)
                    elif lost == sent_to:
                        sent_to = await self._offer(about, payload)

    async def _offer(self, about: Header, payload: bytes) -> int | None:
        """Ask the scheduler or, without one, send to the server; return to whom it was sent."""
        if self.scheduler is not None and COMMIT_MODES[self.task.mode].ordered:
            try:
                await self.scheduler.send({**about, "kind": "request", "size": self.task.update_bytes})
                return None
            except ENDED:
                self.scheduler = None
        await self._send(self.server, {**about, "kind": "update", "seq": None}, payload)
        return self.server

    async def _withdraw(self) -> None:
        if self.scheduler is not None:
            try:
                await self.scheduler.send({"kind": "withdraw"})
            except ENDED:
                self.scheduler = None

    async def _send(self, host: int, header: Header, payload: bytes = b"") -> None:
        # A connection that has ended says so through the inbox.
        try:
            await self.links[host].send(header, payload)
        except ENDED:
            return

    async def _next_server(self) -> None:
        if self.task.replica is None or self.server == self.task.replica:
            return
        self.server = self.task.replica
        await self._join(self.server)

    async def _model(self) -> tuple[Floats, int]:
        while True:
            header, content = await self.inbox.get()
            if header["kind"] == "model":
                return unpacked(content, len(self.problem.start)), int(header["version"])
