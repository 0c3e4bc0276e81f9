"""The streams of clients: what each of them sends, and what is sent to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

from tensorexpress.errors import NetworkError
from tensorexpress.p4runtime_messages import p4runtime_pb2
from tensorexpress.switch.operations import DataPath
from tensorexpress.switch.p4runtime.answers import abort, refusing
from tensorexpress.switch.p4runtime.clients import Clients
from tensorexpress.switch.p4runtime.mailbox import Mailbox
from tensorexpress.switch.p4runtime.notices import Notices
from tensorexpress.switch.p4runtime.packet_io import encode_header
from tensorexpress.switch.p4runtime.pipelines import Pipelines
from tensorexpress.switch.p4runtime.status import Code, Refused, invalid, unimplemented
from tensorexpress.switch.p4runtime.stream_places import StreamPlaces, peer_of
from tensorexpress.switch.p4runtime.wire_format import parse

#: How long a stream may stay open without its client saying who it is.
ARBITRATION_S = 10.0
#: The longest frame that a controller may send: more than any link takes.
_LONGEST_FRAME = 1 << 16
_LARGEST_STREAM_MESSAGE = 1 << 20


class Streams:
    """The streams that are open."""

    def __init__(
        self, data_path: DataPath, pipelines: Pipelines, clients: Clients, notices: Notices, lock: threading.RLock
    ):
        self._data_path = data_path
        self._pipelines = pipelines
        self._clients = clients
        self._notices = notices
        self._lock = lock
        self._places = StreamPlaces()

    def keep(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Keep a client's session: arbitration, packets, digests, idle entries."""
        mailbox = Mailbox(context.cancel)
        place = self._places.take(peer_of(context), lambda: self._clients.standing(mailbox), mailbox.evict)
        with refusing(context), place:
            if not context.add_callback(mailbox.close):
                return
            threading.Thread(
                target=self._listen, args=(requests, mailbox), name="p4runtime stream", daemon=True
            ).start()
            deadline = time.monotonic() + ARBITRATION_S
            while True:
                silent = mailbox not in self._clients
                message = mailbox.take(max(0.0, deadline - time.monotonic()) if silent else None)
                if message is not None:
                    yield message
                elif mailbox.is_closed:
                    break
                elif mailbox not in self._clients and time.monotonic() >= deadline:
                    mailbox.close(Refused(Code.ABORTED, f"no arbitration within {ARBITRATION_S:g} s"))
            if mailbox.refusal:
                abort(context, mailbox.refusal)

    def _listen(self, requests: Iterator[bytes], mailbox: Mailbox) -> None:
        """Work on what a client sends, until it ends the stream or has to be refused."""
        refusal: Refused | None = Refused(Code.INTERNAL, "the switch could not work on a message of the stream")
        try:
            for data in _until_lost(requests):
                if len(data) > _LARGEST_STREAM_MESSAGE:
                    raise Refused(Code.RESOURCE_EXHAUSTED, f"a stream message of {len(data)} bytes; send less")
                self._handle(parse(p4runtime_pb2.StreamMessageRequest, data), mailbox)
            refusal = None
        except Refused as reason:
            refusal = reason
        finally:
            with self._lock:
                self._clients.leave(mailbox)
            mailbox.close(refusal)

    def _handle(self, request: Any, mailbox: Mailbox) -> None:
        kind = request.WhichOneof("update")
        if kind == "arbitration":
            with self._lock:
                self._clients.arbitrate(request.arbitration, mailbox)
            return
        error = p4runtime_pb2.StreamError()
        try:
            with self._lock:
                if kind == "packet":
                    error.packet_out.packet_out.CopyFrom(request.packet)
                    self._packet_out(request.packet, mailbox)
                elif kind == "digest_ack":
                    error.digest_list_ack.digest_list_ack.CopyFrom(request.digest_ack)
                    self._acknowledge(request.digest_ack, mailbox)
                else:
                    error.other.other.CopyFrom(request.other)
                    raise unimplemented(f"a stream message of kind {kind or 'none'} is not known to v1model")
        except Refused as refusal:
            error.canonical_code, error.message = refusal.code, str(refusal)
        except NetworkError as reason:
            error.canonical_code, error.message = Code.UNAVAILABLE, str(reason)
        if error.canonical_code:
            self._clients.put_news(mailbox, p4runtime_pb2.StreamMessageResponse(error=error))

    def _packet_out(self, packet: Any, mailbox: Mailbox) -> None:
        if not self._clients.is_primary(mailbox):
            raise Refused(Code.PERMISSION_DENIED, "only the primary may send packets")
        running = self._pipelines.running
        if running is None:
            raise Refused(Code.FAILED_PRECONDITION, "no pipeline runs; send SetForwardingPipelineConfig first")
        if len(packet.payload) > _LONGEST_FRAME:
            raise invalid(f"a frame of {len(packet.payload)} bytes; accepted: at most {_LONGEST_FRAME}")
        header = encode_header(running.config.schema.packet_out, packet.metadata)
        self._data_path.packet_out(header + packet.payload)

    def _acknowledge(self, ack: Any, mailbox: Mailbox) -> None:
        if not self._clients.is_primary(mailbox):
            raise Refused(Code.PERMISSION_DENIED, "only the primary may acknowledge digests")
        self._notices.acknowledge(ack)


def _until_lost(requests: Iterator[bytes]) -> Iterator[bytes]:
    """Yield what a client sends; gRPC raises an exception of no particular type when the connection is lost."""
    try:
        yield from requests
    except Exception:
        return
