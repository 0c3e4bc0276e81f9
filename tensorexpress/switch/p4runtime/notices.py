"""What becomes of the notices of the data path: packets, idle entries and lists of digests for the primary."""

from __future__ import annotations

import threading
import time
from typing import Any

from tensorexpress.p4runtime_messages import p4runtime_pb2
from tensorexpress.switch.operations import CpuFrame, Digest, IdleEntry, Notice
from tensorexpress.switch.p4runtime.clients import Clients
from tensorexpress.switch.p4runtime.digests import DigestQueue
from tensorexpress.switch.p4runtime.holdings import Holdings
from tensorexpress.switch.p4runtime.inbox import Inbox
from tensorexpress.switch.p4runtime.messages.checks import find
from tensorexpress.switch.p4runtime.packet_io import decode_header
from tensorexpress.switch.p4runtime.pipelines import Pipelines
from tensorexpress.switch.p4runtime.values import encode_data, leaves
from tensorexpress.switch.program.budgets import PLAIN_MEMORY, SwitchMemory


class Notices:
    """Works on notices in a thread of its own, with the device's lock; all else is for those who hold that."""

    def __init__(
        self,
        pipelines: Pipelines,
        clients: Clients,
        lock: threading.RLock,
        memory: SwitchMemory = PLAIN_MEMORY,
    ):
        self._pipelines = pipelines
        self._clients = clients
        self._lock = lock
        self._digests: dict[int, DigestQueue] = {}
        #: Half of the memory of control is for digests, the other half for requests and streams.
        self._held = Holdings(memory.control_bytes // 2)
        #: Frames from the CPU port that were shorter than the program's packet-in header.
        self.malformed_packets_in = 0
        self._inbox = Inbox(self._work_on)

    @property
    def dropped(self) -> int:
        """How many notices came faster than they could be worked on."""
        return self._inbox.dropped

    def stop(self) -> None:
        """Work on no further notices."""
        self._inbox.stop()

    def forget(self) -> None:
        """Forget what waits to be worked on."""
        self._inbox.clear()

    def restart_digests(self) -> None:
        """Forget what was gathered for the program before."""
        for queue in self._digests.values():
            queue.clear()
        self._digests.clear()
        self.configure_digests()

    def acknowledge(self, ack: Any) -> None:
        """Take a client's word that it has a list of digests."""
        running = self._pipelines.running
        find("digest", running.config.schema.digests if running else {}, ack.digest_id)
        if ack.digest_id in self._digests:
            self._digests[ack.digest_id].acknowledge(ack.list_id)

    def notify(self, notice: Notice) -> None:
        """Take a notice from the data path; never waits."""
        self._inbox.put(notice)

    def _work_on(self, notices: list[Notice]) -> int | None:
        """Send what notices call for and return when the next digest list is due."""
        with self._lock:
            for notice in notices:
                if isinstance(notice, CpuFrame):
                    self._packet_in(notice)
                elif isinstance(notice, Digest):
                    self._gather(notice)
            self._idle([notice for notice in notices if isinstance(notice, IdleEntry)])
            return self._send_digests()

    def _packet_in(self, notice: CpuFrame) -> None:
        if self._pipelines.running is None:
            return
        packet = decode_header(self._pipelines.running.config.schema.packet_in, notice.frame)
        if packet is None:
            self.malformed_packets_in += 1
        else:
            self._clients.send_news(p4runtime_pb2.StreamMessageResponse(packet=packet))

    def _idle(self, notices: list[IdleEntry]) -> None:
        message = p4runtime_pb2.IdleTimeoutNotification(timestamp=time.time_ns())
        store = self._pipelines.running.store if self._pipelines.running else None
        rows = [store.rows.idle(notice.entry) for notice in notices] if store else []
        message.table_entry.extend(row for row in rows if row is not None)
        if message.table_entry:
            self._clients.send_news(p4runtime_pb2.StreamMessageResponse(idle_timeout_notification=message))

    def configure_digests(self) -> None:
        """Let the queues of digests follow what clients have configured."""
        if self._pipelines.running is None:
            return
        config, store = self._pipelines.running.config, self._pipelines.running.store
        for id in config.schema.digests:
            wanted = store.digest_config(id)
            queue = self._digests.get(id)
            if wanted is None:
                if queue is not None:
                    queue.clear()
                    del self._digests[id]
            elif queue is None:
                self._digests[id] = DigestQueue(wanted, self._held)
            else:
                queue.config = wanted

    def _gather(self, notice: Digest) -> None:
        digest = self._pipelines.running.config.schema.digest_named(notice.name) if self._pipelines.running else None
        if digest and digest.id in self._digests and len(notice.values) == leaves(digest.type):
            self._digests[digest.id].add(notice.values, time.monotonic_ns())

    def _send_digests(self) -> int | None:
        now_ns = time.monotonic_ns()
        next_ns: int | None = None
        for id, queue in self._digests.items():
            while (due_ns := queue.due_ns()) is not None and due_ns <= now_ns:
                self._send_list(id, *queue.take(now_ns))
            if due_ns is not None:
                next_ns = due_ns if next_ns is None else min(next_ns, due_ns)
        return next_ns

    def _send_list(self, id: int, list_id: int, messages: list[tuple[int, ...]]) -> None:
        assert self._pipelines.running is not None
        kind = self._pipelines.running.config.schema.digests[id].type
        digest = p4runtime_pb2.DigestList(digest_id=id, list_id=list_id, timestamp=time.time_ns())
        for values in messages:
            digest.data.add(**encode_data(kind, iter(values)))
        self._clients.send_news(p4runtime_pb2.StreamMessageResponse(digest=digest))
