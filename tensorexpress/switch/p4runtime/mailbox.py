"""What waits to be sent on one stream: bounded, so that a client that does not read costs nobody else anything."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from tensorexpress.switch.p4runtime.status import Code, Refused

#: News (packets, digests, idle entries, errors) that wait at most; the oldest make room.
LARGEST_NEWS = 1024
LARGEST_NEWS_BYTES = 1 << 20
#: Advice about the primary is never dropped; a client that leaves this much of it unread loses its stream.
LARGEST_ADVICE = 1024


class Mailbox:
    """Messages for one client, serialised, put by any thread and taken by one."""

    def __init__(self, cut: Callable[[], object] = lambda: None) -> None:
        #: Ends the stream at once, also while its client reads nothing.
        self.cut = cut
        self._ready = threading.Condition()
        self._advice: deque[bytes] = deque()
        self._news: deque[bytes] = deque()
        self._news_bytes = 0
        self._closed = False
        self._awaited = False
        #: Why the stream ends; None when the client ended it.
        self.refusal: Refused | None = None

    def put_news(self, message: bytes) -> int:
        """Add news and return how many messages had to be dropped: the oldest, or itself when it is too large."""
        if len(message) > LARGEST_NEWS_BYTES:
            return 1
        dropped = 0
        with self._ready:
            if self._closed:
                return 1
            self._news.append(message)
            self._news_bytes += len(message)
            while len(self._news) > LARGEST_NEWS or self._news_bytes > LARGEST_NEWS_BYTES:
                self._news_bytes -= len(self._news.popleft())
                dropped += 1
            self._ready.notify()
        return dropped

    def put_advice(self, message: bytes) -> None:
        """Add advice, which is taken before any news."""
        with self._ready:
            if self._closed:
                return
            self._advice.append(message)
            if len(self._advice) > LARGEST_ADVICE:
                self._end(Refused(Code.RESOURCE_EXHAUSTED, "the client does not read its stream"))
                self.cut()
            self._ready.notify()

    def close(self, refusal: Refused | None = None) -> None:
        """Let the stream end when everything that waits has been taken."""
        with self._ready:
            self._end(refusal)

    def evict(self, refusal: Refused) -> None:
        """End the stream now, without the messages that wait; a client that does not read is cut off."""
        with self._ready:
            self._advice.clear()
            self._news.clear()
            self._news_bytes = 0
            self._end(refusal)
            if not self._awaited:
                self.cut()

    @property
    def is_closed(self) -> bool:
        """Whether nothing more will be put."""
        return self._closed

    def _end(self, refusal: Refused | None) -> None:
        if not self._closed:
            self._closed, self.refusal = True, refusal
        self._ready.notify()

    def take(self, timeout_s: float | None = None) -> bytes | None:
        """Return what is to be sent next, None when nothing has come in that time or nothing will any more."""
        with self._ready:
            self._awaited = True
            self._ready.wait_for(lambda: self._advice or self._news or self._closed, timeout_s)
            self._awaited = False
            if self._advice:
                return self._advice.popleft()
            if not self._news:
                return None
            message = self._news.popleft()
            self._news_bytes -= len(message)
            return message
