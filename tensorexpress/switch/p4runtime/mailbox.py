"""What waits to be sent on one stream: bounded, so that a client that does not read costs nobody else anything."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

from tensorexpress.switch.p4runtime.status import Code, Refusal

#: News (packets, digests, idle entries, errors) that wait at most; the oldest make room.
LARGEST_NEWS = 1024
#: Advice about the primary is never dropped; a client that leaves this much of it unread loses its stream.
LARGEST_ADVICE = 1024


class Mailbox:
    """Messages for one client, put by any thread and taken by one."""

    def __init__(self) -> None:
        self._ready = threading.Condition()
        self._advice: deque[Any] = deque()
        self._news: deque[Any] = deque()
        self._closed = False
        #: Why the stream ends; None when the client ended it.
        self.refusal: Refusal | None = None

    def put_news(self, message: Any) -> bool:
        """Add news and return whether the oldest had to be dropped for it."""
        with self._ready:
            full = len(self._news) >= LARGEST_NEWS
            if full:
                self._news.popleft()
            self._news.append(message)
            self._ready.notify()
        return full

    def put_advice(self, message: Any) -> None:
        """Add advice, which is taken before any news."""
        with self._ready:
            self._advice.append(message)
            if len(self._advice) > LARGEST_ADVICE:
                self._end(Refusal(Code.RESOURCE_EXHAUSTED, "the client does not read its stream"))
            self._ready.notify()

    def close(self, refusal: Refusal | None = None) -> None:
        """Let the stream end when everything that waits has been taken."""
        with self._ready:
            self._end(refusal)

    def _end(self, refusal: Refusal | None) -> None:
        if not self._closed:
            self._closed, self.refusal = True, refusal
        self._ready.notify()

    def __iter__(self) -> Iterator[Any]:
        while True:
            with self._ready:
                self._ready.wait_for(lambda: self._advice or self._news or self._closed)
                if self._advice:
                    message = self._advice.popleft()
                elif self._news:
                    message = self._news.popleft()
                else:
                    return
            yield message
