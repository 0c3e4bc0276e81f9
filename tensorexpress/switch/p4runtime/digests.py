"""Digests gathered into lists, as the client configured it, without those it has not acknowledged yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tensorexpress.switch.p4runtime.holdings import Holdings, kept_bytes
from tensorexpress.switch.p4runtime.messages.digest_configs import DigestConfig

#: Messages that wait for their list, or that a client has not acknowledged, at most.
LARGEST_CACHE = 1 << 16

Values = tuple[int, ...]


@dataclass
class DigestQueue:
    """The messages of one digest. Times are nanoseconds of any clock that does not go back."""

    config: DigestConfig
    #: What all digests of a device hold together.
    held: Holdings = field(default_factory=Holdings)
    _waiting: dict[Values, None] = field(default_factory=dict)
    _since_ns: int = 0
    _sent: dict[int, tuple[int, frozenset[Values]]] = field(default_factory=dict)
    _unacknowledged: set[Values] = field(default_factory=set)
    _last_list: int = 0

    def add(self, values: Values, now_ns: int) -> None:
        """Take a message, unless the same one waits, is with the client and not acknowledged, or has no room."""
        self._forget_old(now_ns)
        if values in self._waiting or values in self._unacknowledged or len(self._waiting) >= LARGEST_CACHE:
            return
        if not self.held.has_room(size := kept_bytes(values)):
            return
        self.held.bytes += size
        if not self._waiting:
            self._since_ns = now_ns
        self._waiting[values] = None

    def due_ns(self) -> int | None:
        """Return when the next list is to leave; None when nothing waits."""
        if not self._waiting:
            return None
        full = 0 < self.config.max_list_size <= len(self._waiting)
        return self._since_ns if full else self._since_ns + self.config.max_timeout_ns

    def take(self, now_ns: int) -> tuple[int, list[Values]]:
        """Return the id and the messages of the list that is due."""
        size = self.config.max_list_size or len(self._waiting)
        messages = list(self._waiting)[:size]
        for values in messages:
            del self._waiting[values]
        self._since_ns = now_ns
        self._last_list += 1
        if self.config.ack_timeout_ns and len(self._unacknowledged) + len(messages) <= LARGEST_CACHE:
            self._sent[self._last_list] = now_ns, frozenset(messages)
            self._unacknowledged.update(messages)
        else:
            self._give_back(messages)
        return self._last_list, messages

    def acknowledge(self, list_id: int) -> None:
        """Let the messages of a list be sent again when the data plane makes them again."""
        _, messages = self._sent.pop(list_id, (0, frozenset()))
        self._unacknowledged -= messages
        self._give_back(messages)

    def clear(self) -> None:
        """Forget all messages."""
        self._give_back(self._waiting)
        self._give_back(self._unacknowledged)
        self._waiting.clear()
        self._sent.clear()
        self._unacknowledged.clear()

    def _give_back(self, messages: Iterable[Values]) -> None:
        self.held.bytes -= sum(map(kept_bytes, messages))

    def _forget_old(self, now_ns: int) -> None:
        old = [id for id, (sent_ns, _) in self._sent.items() if now_ns - sent_ns >= self.config.ack_timeout_ns]
        for list_id in old:
            self.acknowledge(list_id)
