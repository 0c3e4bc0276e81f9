"""The server, and its replica, which is a server that does not serve before the first one is gone."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tensorexpress.commits.modes import COMMIT_MODES
from tensorexpress.commits.replicate import ReplicaLog
from tensorexpress.learning import DIVERGED, PROBLEMS, Floats
from tensorexpress.roles.task import RoleTask
from tensorexpress.roles.wire import ENDED, Header, Nic, RoleLink, connect, packed, run_beside, unpacked


@dataclass(eq=False)
class _Arrived:
    """Updates that came together: who made them, from which version, and what they do to the model."""

    members: Sequence[Header]
    change: Floats
    seq: int | None


class ServerRole:
    """Commits updates one group after another, and sends the model to whoever waits for it."""

    def __init__(self, task: RoleTask, nic: Nic, start: float, tell: Callable[[Header], None]):
        self.task, self.nic, self.start, self.tell = task, nic, start, tell
        self.mode = COMMIT_MODES[task.mode]
        self.problem = PROBLEMS[task.problem].make()
        self.model = self.problem.start.copy()
        self.version = 0
        self.serves = task.role == "server"
        self.workers: dict[int, RoleLink] = {}
        self.helpers: dict[int, RoleLink] = {}
        self.handing_on: set[int] = set()
        self.scheduler: RoleLink | None = None
        self.replica: RoleLink | None = None
        self.log: ReplicaLog | None = None
        self.expected = 0
        self.held: dict[int, _Arrived | None] = {}
        self.queue: deque[_Arrived] = deque()
        self.round: list[_Arrived] = []
        self.committed: dict[int, int] = {}
        #: Who waits for the model, and after which of its updates; None: after none.
        self.pulling: deque[tuple[int, int | None]] = deque()
        self.wake = asyncio.Event()
        self.send_models = asyncio.Event()
        self.losses: deque[float] = deque(maxlen=2 * len(task.workers))
        self.computed = 0

    async def run(self, scheduler: int | None) -> None:
        """Serve until training is over."""
        if not self.serves:
            await asyncio.Event().wait()
        await self._start_serving(scheduler)

    async def _start_serving(self, scheduler: int | None) -> None:
        if self.serves and self.task.role == "server" and self.task.replica is not None:
            self.replica = await connect(
                self.task.folder, self.task.replica, {"role": "server", "host": self.task.host}, self.nic
            )
            run_beside(self._hear_replica(self.replica))
        if scheduler is not None and self.mode.ordered:
            try:
                me = {"role": "server", "host": self.task.host, "version": self.version}
                self.scheduler = await connect(self.task.folder, scheduler, me, None)
                run_beside(self._hear_scheduler(self.scheduler))
            except ENDED:
                self._without_scheduler()
        run_beside(self._send_models())
        await self._commit_all()

    # Others

    async def serve(self, link: RoleLink, hello: Header) -> None:
        """Listen to a worker, a helper or, as a replica, to the server."""
        host, role = int(hello["host"]), hello["role"]
        if role == "server":
            await self._follow(link)
        elif role == "helper":
            self.helpers[host] = link
            await self._hear_helper(host, link)
        else:
            self.workers[host] = link
            self._pull(host, None)
            await self._hear_worker(host, link)

    async def _hear_worker(self, host: int, link: RoleLink) -> None:
        try:
            while True:
                header, payload = await link.receive()
                if header["kind"] == "pull":
                    self._pull(host, int(header["iteration"]))
                else:
                    await self._take(_Arrived([header], unpacked(payload, len(self.model)), header["seq"]))
        finally:
            self.workers.pop(host, None)
            self._round_if_whole()

    async def _hear_helper(self, host: int, link: RoleLink) -> None:
        try:
            while True:
                header, payload = await link.receive()
                if header["kind"] == "handed_on":
                    self.handing_on.discard(host)
                    self.send_models.set()
                else:
                    await self._take(_Arrived(header["members"], unpacked(payload, len(self.model)), header["seq"]))
        finally:
            self.helpers.pop(host, None)
            self.handing_on.discard(host)

    async def _hear_scheduler(self, link: RoleLink) -> None:
        try:
            while True:
                header, _ = await link.receive()
                if header["kind"] == "begin":
                    self.expected = int(header["seq"])
                else:
                    self.held.setdefault(int(header["seq"]), None)
                self._in_order()
        except ENDED:
            self._without_scheduler()

    def _without_scheduler(self) -> None:
        """Commit as updates come from now on, those that waited for their turn first."""
        self.scheduler = None
        self.tell({"note": f"the scheduler is gone: updates commit as they come from version {self.version} on"})
        self.queue.extend(group for _, group in sorted(self.held.items()) if group is not None)
        self.held.clear()
        self.wake.set()

    # Commits

    async def _take(self, group: _Arrived) -> None:
        if self.scheduler is None or group.seq is None:
            if self.mode.in_step:
                self.round.append(group)
                self._round_if_whole()
                return
            self.queue.append(group)
            self.wake.set()
            return
        self.held[group.seq] = group
        await self._tell_scheduler({"kind": "delivered", "seq": group.seq})
        self._in_order()

    def _round_if_whole(self) -> None:
        if self.mode.in_step and self.round and len(self.round) >= len(self.workers):
            members = [member for group in self.round for member in group.members]
            change = np.sum([group.change for group in self.round], axis=0)
            self.queue.append(_Arrived(members, change, None))
            self.round = []
            self.wake.set()

    def _in_order(self) -> None:
        while self.expected in self.held:
            group = self.held.pop(self.expected)
            self.expected += 1
            if group is not None:
                self.queue.append(group)
        self.wake.set()

    async def _commit_all(self) -> None:
        while True:
            self.wake.clear()
            while self.queue and await self._may_commit(self.queue[0]):
                await self._commit(self.queue.popleft())
            await self.wake.wait()

    async def _may_commit(self, group: _Arrived) -> bool:
        """Whether the replica allows it; what it lacks for that is sent."""
        if self.replica is None:
            return True
        norm = _norm(group)
        if self.log is None:
            self.log = ReplicaLog(self.task.divergence * float(group.members[0]["norm"]))
        if self.log.may_commit(norm):
            return True
        if not self.log.is_forwarding:
            if self.log.committed > self.log.received:
                self.log.forward()
                self._forward(self.model, self.version)
            else:
                self.log.forward_ahead(norm)
                self._forward(self.model - group.change, self.version + len(group.members))
        return False

    async def _commit(self, group: _Arrived) -> None:
        if self.task.update_rate_bps:
            await asyncio.sleep(self.task.update_bytes * 8 / self.task.update_rate_bps)
        hosts = [int(member["host"]) for member in group.members]
        if any(self.committed.get(int(each["host"]), 0) >= int(each["iteration"]) for each in group.members):
            # Offered again after somebody was lost on the way, though it had arrived.
            await self._done(group)
            return
        delays = [self.version + place - int(member["version"]) for place, member in enumerate(group.members)]
        if self.mode.in_step:
            delays = [0] * len(delays)
        elif self.mode.bounded and max(delays) > self.task.tau:
            self.tell({"dropped": len(hosts)})
            await self._done(group)
            return
        self.committed.update({int(member["host"]): int(member["iteration"]) for member in group.members})
        self.model = self.model - group.change
        self.version += len(hosts)
        self.computed += len(hosts)
        divergence = 0.0
        if self.replica is not None and self.log is not None:
            self.log.commit(_norm(group))
            divergence = self.log.divergence
            if self.log.should_forward():
                self.log.forward()
                self._forward(self.model, self.version)
        self._note(hosts, delays, divergence)
        await self._done(group)

    def _note(self, hosts: Sequence[int], delays: Sequence[int], divergence: float) -> None:
        """Tell of a commit, and of the end of training with the last one."""
        loss = self.problem.loss(self.model)
        self.losses.extend([loss] * len(hosts))
        seconds = asyncio.get_running_loop().time() - self.start
        reached = bool(np.mean(self.losses) <= self.task.target_loss)
        self.tell(
            {
                "commit": [seconds, hosts, [max(0, delay) for delay in delays], loss],
                "divergence": [divergence, self.log.bound if self.log is not None else 0.0],
                "bytes": [self.nic.received_bytes, self.nic.sent_bytes],
                "version": self.version,
                "reached": reached,
                "over": reached or not loss < DIVERGED or self.computed >= self.task.updates,
            }
        )

    async def _done(self, group: _Arrived) -> None:
        if group.seq is not None:
            await self._tell_scheduler({"kind": "committed", "seq": group.seq, "version": self.version})
        for member in group.members:
            self._pull(int(member["host"]), int(member["iteration"]))

    async def _tell_scheduler(self, header: Header) -> None:
        if self.scheduler is not None:
            try:
                await self.scheduler.send(header)
            except ENDED:
                return  # who listens to it says so

    # Models

    def _pull(self, host: int, iteration: int | None) -> None:
        self.pulling.append((host, iteration))
        self.send_models.set()

    async def _send_models(self) -> None:
        """Send the model to the one that waits longest, or to a helper for half of those that wait.

        Where nobody orders, everybody gets it at once, and all share the link.
        """
        while True:
            self.send_models.clear()
            while self.pulling and self.serves:
                helper = next((each for each in self.helpers if each not in self.handing_on), None)
                members = (len(self.pulling) + 1) // 2
                if self.mode.summed and helper is not None and members > 1:
                    waiting = [self.pulling.pop() for _ in range(members)][::-1]
                    self.handing_on.add(helper)
                    await self._send_model(self.helpers[helper], {"kind": "hand_on", "workers": waiting})
                    continue
                host, iteration = self.pulling.popleft()
                link = self.workers.get(host)
                if link is not None:
                    sending = self._send_model(link, {"kind": "model", "after": iteration})
                    if self.mode.ordered:
                        await sending
                    else:
                        run_beside(sending)
            await self.send_models.wait()

    async def _send_model(self, link: RoleLink, header: Header) -> None:
        payload = packed(self.model, self.task.update_bytes)
        try:
            await link.send({**header, "version": self.version}, payload)
        except ENDED:
            return

    # Replication

    def _forward(self, model: Floats, version: int) -> None:
        run_beside(self._send_forward(model, version))

    async def _send_forward(self, model: Floats, version: int) -> None:
        if self.replica is not None:
            try:
                await self.replica.send(
                    {"kind": "replicate", "version": version}, packed(model, self.task.update_bytes)
                )
            except ENDED:
                return

    async def _hear_replica(self, link: RoleLink) -> None:
        try:
            while True:
                await link.receive()
                assert self.log is not None
                self.log.arrived()
                if self.log.should_forward():
                    self.log.forward()
                    self._forward(self.model, self.version)
                self.wake.set()
        except ENDED:
            self.replica = None
            self.tell({"note": f"the replica is gone: from version {self.version} on nobody follows the server"})
            self.wake.set()

    async def _follow(self, link: RoleLink) -> None:
        """Keep what the server forwards; serve when it is gone."""
        try:
            while True:
                header, payload = await link.receive()
                self.model, self.version = unpacked(payload, len(self.model)), int(header["version"])
                await link.send({"kind": "replicated", "version": self.version})
        except ENDED:
            self.serves = True
            self.tell({"takes_over": self.version})
            await self._start_serving(self.task.scheduler)


def _norm(group: _Arrived) -> float:
    return float(sum(float(member["norm"]) for member in group.members))
