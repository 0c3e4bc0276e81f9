"""The clients of one device: who of them is the primary, and what they are told."""

from __future__ import annotations

import threading
from typing import Any

from tensorexpress.p4runtime_messages import p4runtime_pb2
from tensorexpress.switch.p4runtime.arbitration import Advice, Arbitration
from tensorexpress.switch.p4runtime.mailbox import Mailbox
from tensorexpress.switch.p4runtime.status import Code, Refused, invalid
from tensorexpress.switch.p4runtime.stream_places import StreamStanding

#: What a client is told about its role, in words.
_ADVICE = {
    Code.OK: "you are the primary",
    Code.ALREADY_EXISTS: "you are a backup",
    Code.NOT_FOUND: "you are a backup, and there is no primary",
}


class Clients:
    """The clients that have said who they are; call all but `put_news` and `standing` with the device's lock."""

    def __init__(self, device_id: int, lock: threading.RLock):
        self._device_id = device_id
        self._lock = lock
        self._arbitration: Arbitration[Mailbox] = Arbitration()
        #: Messages that were dropped because their client does not read its stream as fast as they come.
        self.dropped_messages = 0

    def __contains__(self, mailbox: Mailbox) -> bool:
        return mailbox in self._arbitration

    def is_primary(self, mailbox: Mailbox) -> bool:
        """Whether a client is the primary of its role."""
        return self._arbitration.is_primary_client(mailbox)

    def standing(self, mailbox: Mailbox) -> StreamStanding:
        """Return the standing of a client's stream; may be called without the device's lock."""
        role = self._arbitration.role_of(mailbox)
        if role is None:
            return StreamStanding.SILENT
        if self._arbitration.primary(role) != mailbox:
            return StreamStanding.BACKUP
        return StreamStanding.ROLE_PRIMARY if role else StreamStanding.PRIMARY

    def check_device(self, request: Any) -> None:
        """Refuse a request for another device."""
        if request.device_id != self._device_id:
            raise Refused(Code.NOT_FOUND, f"no device {request.device_id}; accepted: {self._device_id}")

    def check_primary(self, request: Any) -> None:
        """Refuse a request that does not come from the primary of its role."""
        self.check_device(request)
        if not self._arbitration.knows(request.role):
            raise Refused(Code.NOT_FOUND, f"no role {request.role!r}; open a stream for it first")
        if not self._arbitration.is_primary(request.role, election_id(request)):
            raise Refused(
                Code.PERMISSION_DENIED,
                f"election id {election_id(request)} is not that of the primary of role {request.role!r}",
            )

    def arbitrate(self, message: Any, mailbox: Mailbox) -> None:
        """Let a client join, or change its election id; Refused ends its stream."""
        if message.device_id != self._device_id:
            known = mailbox in self._arbitration
            code = Code.FAILED_PRECONDITION if known else Code.NOT_FOUND
            raise Refused(code, f"no device {message.device_id}; accepted: {self._device_id}")
        if message.role.id:
            raise invalid("roles by number are deprecated; give the role a name")
        if message.role.HasField("config"):
            raise invalid("no scheme of role configs is agreed upon; leave role.config out for full access")
        self._send_advice(self._arbitration.update(mailbox, message.role.name, election_id(message)))

    def leave(self, mailbox: Mailbox) -> None:
        """Forget a client whose stream has ended."""
        self._send_advice(self._arbitration.leave(mailbox))

    def _send_advice(self, advice: list[tuple[Mailbox, Advice]]) -> None:
        for mailbox, one in advice:
            response = p4runtime_pb2.StreamMessageResponse()
            response.arbitration.device_id = self._device_id
            if one.role:
                response.arbitration.role.name = one.role
            if one.election_id is not None:
                response.arbitration.election_id.high = one.election_id >> 64
                response.arbitration.election_id.low = one.election_id & (1 << 64) - 1
                response.arbitration.election_id.SetInParent()
            response.arbitration.status.code = one.code
            response.arbitration.status.message = _ADVICE[one.code]
            mailbox.put_advice(response.SerializeToString())

    def send_news(self, response: Any) -> None:
        """Send a message to the primary of the default role, if there is one."""
        primary = self._arbitration.primary("")
        if primary is not None:
            self.put_news(primary, response)

    def put_news(self, mailbox: Mailbox, response: Any) -> None:
        """Send a message to a client; what it does not read makes room."""
        dropped = mailbox.put_news(response.SerializeToString())
        if dropped:
            with self._lock:
                self.dropped_messages += dropped


def election_id(message: Any) -> int | None:
    """Return the 128-bit election id; None when it is not set, which is below every id."""
    if not message.HasField("election_id"):
        return None
    return int(message.election_id.high) << 64 | int(message.election_id.low)
