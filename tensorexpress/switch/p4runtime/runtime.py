"""P4Runtime of one device: its pipeline, its clients, and what passes between them.

Where the specification leaves a choice, it is the one with which a controller works on BMv2 too:
- all three atomicities are carried out; packets pass between the updates of a batch unless it is DATAPLANE_ATOMIC, and
  such a batch is bounded, since packets wait for it;
- a client that never sends an election id stays a backup; one of zero is the lowest id there is;
- when the primary goes, nobody is primary until a client claims that with an id at least as high;
- roles have full access: there is no scheme of role configs, so that any `role.config` is refused;
- packets, digests and idle entries go to the primary of the default role;
- reads and writes after VERIFY_AND_SAVE are about the saved pipeline, and so is GetForwardingPipelineConfig;
- RECONCILE_AND_COMMIT keeps all entities, counters and registers, or refuses.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tensorexpress import lost_frames
from tensorexpress.errors import NetworkError, TensorExpressError
from tensorexpress.p4runtime_messages import p4runtime_pb2
from tensorexpress.switch.operations import DataPath, Digest, IdleEntry, Notice, PacketIn
from tensorexpress.switch.p4runtime.answers import abort, abort_batch, refusing
from tensorexpress.switch.p4runtime.arbitration import Advice, Arbitration
from tensorexpress.switch.p4runtime.digests import DigestQueue
from tensorexpress.switch.p4runtime.entities import write_entries
from tensorexpress.switch.p4runtime.inbox import Inbox
from tensorexpress.switch.p4runtime.mailbox import Mailbox
from tensorexpress.switch.p4runtime.messages import find
from tensorexpress.switch.p4runtime.p4info import parse_p4info
from tensorexpress.switch.p4runtime.packet_io import decode_header, encode_header
from tensorexpress.switch.p4runtime.pipeline_config import PipelineConfig, read_config
from tensorexpress.switch.p4runtime.places import Place, Places
from tensorexpress.switch.p4runtime.reconcile import reconcile
from tensorexpress.switch.p4runtime.status import Code, Refusal, invalid, unimplemented
from tensorexpress.switch.p4runtime.store import Recorder, Store
from tensorexpress.switch.p4runtime.values import encode_data, leaves
from tensorexpress.switch.p4runtime.wire_format import parse, split

API_VERSION = "1.4.1"

#: Every call holds a thread, and its request up to 8 MiB, so that their numbers are limited.
LARGEST_NUMBER_OF_STREAMS = 32
LARGEST_NUMBER_OF_READS = 8
LARGEST_NUMBER_OF_REQUESTS = 8
#: Programs that are verified at once; it takes long, and nothing waits for it.
LARGEST_NUMBER_OF_VERIFICATIONS = 2
#: How long a stream may stay open without its client saying who it is.
ARBITRATION_S = 10.0
#: A read that its client has not taken from for so long makes room for another one.
_READ_PATIENCE_S = 1.0
#: A request whose message has not come in that time makes room for another one.
_PATIENCE_S = 0.5
#: How long a request or read waits for one of those under way to end.
_WAIT_S = 10.0

#: Entities that one read may ask for; that it may find, if it asks for several; and those in one response.
LARGEST_READ = 4096
LARGEST_FOUND = 1 << 16
#: Updates that may be made between two packets.
LARGEST_ATOMIC_BATCH = 1000
_ENTITIES_PER_RESPONSE = 256
#: The longest frame that a controller may send: more than any link takes.
_LONGEST_FRAME = 1 << 16
_LARGEST_STREAM_MESSAGE = 1 << 20

_Config = p4runtime_pb2.SetForwardingPipelineConfigRequest


class RuntimeService:
    """One device. A lock guards its state: every request sees the state between two others."""

    def __init__(
        self,
        data_path: DataPath,
        *,
        device_id: int = 1,
        cpu_port: int | None = None,
        verify: Callable[[bytes], object],
        lost: Callable[[], Mapping[int, int]] | None = None,
    ):
        self._data_path = data_path
        #: Frames that each port has lost; None where nobody counts them.
        self._lost = lost
        self._device_id = device_id
        self._cpu_port = cpu_port
        self._verify = verify
        self._lock = threading.RLock()
        self._arbitration: Arbitration[Mailbox] = Arbitration()
        #: The pipeline that runs, and one that is saved and not committed; each with its entities.
        self._running: tuple[PipelineConfig, Store] | None = None
        self._saved: tuple[PipelineConfig, Store] | None = None
        self._recorder = Recorder()
        self._digests: dict[int, DigestQueue] = {}
        self._streams = Places(LARGEST_NUMBER_OF_STREAMS, "streams are open")
        self._reads = Places(LARGEST_NUMBER_OF_READS, "reads are under way", wait_s=_WAIT_S, patience_s=_PATIENCE_S)
        self._requests = Places(
            LARGEST_NUMBER_OF_REQUESTS, "requests are under way", wait_s=_WAIT_S, patience_s=_PATIENCE_S
        )
        self._verifications = Places(LARGEST_NUMBER_OF_VERIFICATIONS, "programs are being verified")
        #: Messages that were dropped because their client does not read its stream as fast as they come.
        self.dropped_messages = 0
        #: Frames from the CPU port that were shorter than the program's packet-in header.
        self.malformed_packets_in = 0
        self._inbox = Inbox(self._work_on)

    @property
    def dropped_notices(self) -> int:
        """Return how many notices came faster than they could be worked on."""
        return self._inbox.dropped

    def stop(self) -> None:
        """Work on no further notices."""
        self._inbox.stop()

    def start_with(self, p4info_text: str, document: bytes, entries_text: str = "") -> None:
        """Commit a program and entries from files, as a primary would; ProgramError changes nothing."""
        message = p4runtime_pb2.ForwardingPipelineConfig(p4_device_config=document)
        message.p4info.CopyFrom(parse_p4info(p4info_text))
        config, recorder = read_config(message), Recorder()
        store = config.store(recorder, self._cpu_port)
        write_entries(store, entries_text)
        with self._lock:
            self._commit(config, store, recorder)

    # Requests.

    # They take serialised messages as they come: gRPC would log a traceback for every malformed one, hold a thread for
    # a client that sends none, and never stop the server while a stream that begins with a malformed one is open.

    def Capabilities(self, requests: Iterator[bytes], context: Any) -> Any:
        """Return the version of the API, and beside it, for who knows to look, the frames that ports have lost."""
        with self._request(requests, context) as data:
            parse(p4runtime_pb2.CapabilitiesRequest, data)
            if self._lost is not None:
                context.set_trailing_metadata(((lost_frames.KEY, lost_frames.encode(self._lost())),))
            return p4runtime_pb2.CapabilitiesResponse(p4runtime_api_version=API_VERSION)

    def Write(self, requests: Iterator[bytes], context: Any) -> Any:
        """Insert, modify and delete entities."""
        with self._request(requests, context) as data:
            request, updates = split(p4runtime_pb2.WriteRequest, data, "updates")
            with self._lock:
                self._check_primary(request)
                _, store = self._pipeline()
                refusals = store.write(
                    Messages(p4runtime_pb2.Update, updates),
                    all_or_none=request.atomicity != p4runtime_pb2.WriteRequest.CONTINUE_ON_ERROR,
                    atomic=_is_atomic(request.atomicity, len(updates)),
                    must_tell=True,
                )
                self._configure_digests()
            if any(refusals):
                abort_batch(context, refusals)
            return p4runtime_pb2.WriteResponse()

    def Read(self, requests: Iterator[bytes], context: Any) -> Iterator[Any]:
        """Stream the entities that the requested ones, with wildcards, select."""
        with refusing(context), self._reads.take(context.cancel) as place:
            data = next(requests, None)
            if data is None:
                raise invalid("a request without a message")
            place.keep()
            yield from self._read(data, context, place)

    def _read(self, data: bytes, context: Any, place: Place) -> Iterator[Any]:
        request, asked = split(p4runtime_pb2.ReadRequest, data, "entities")
        if len(asked) > LARGEST_READ:
            raise Refusal(
                Code.RESOURCE_EXHAUSTED, f"a read of {len(asked)} entities; accepted: at most {LARGEST_READ} at a time"
            )
        refusals: list[Refusal | None] = []
        found: list[Iterator[Any]] = []
        with self._lock:
            self._check_device(request)
            _, store = self._pipeline()
            count = 0
            for entity in Messages(p4runtime_pb2.Entity, asked):
                refusals.append(None)
                try:
                    number, entities = store.select(entity)
                except Refusal as refusal:
                    refusals[-1] = Refusal(refusal.code, str(refusal))
                    continue
                count += number
                if count > LARGEST_FOUND and len(asked) > 1:
                    raise Refusal(
                        Code.RESOURCE_EXHAUSTED,
                        f"a read that finds more than {LARGEST_FOUND} entities; ask for one thing at a time",
                    )
                found.append(entities)
        for response in _responses(found):
            with place.waiting(_READ_PATIENCE_S):
                yield response
        if any(refusals):
            abort_batch(context, refusals)

    def SetForwardingPipelineConfig(self, requests: Iterator[bytes], context: Any) -> Any:
        """Verify, save and commit a program."""
        with self._request(requests, context) as data:
            request = parse(_Config, data)
            with self._lock:
                self._check_primary(request)
            self._set_pipeline(request)
            return p4runtime_pb2.SetForwardingPipelineConfigResponse()

    def GetForwardingPipelineConfig(self, requests: Iterator[bytes], context: Any) -> Any:
        """Return the program that reads and writes refer to."""
        response = p4runtime_pb2.GetForwardingPipelineConfigResponse()
        kinds = p4runtime_pb2.GetForwardingPipelineConfigRequest
        with self._request(requests, context) as data:
            request = parse(kinds, data)
            with self._lock:
                self._check_device(request)
                if request.response_type not in kinds.ResponseType.values():
                    raise invalid(f"unknown response type {request.response_type}; accepted: 0 to 3")
                current = self._saved or self._running
        if current is None:
            return response
        stored = current[0].message
        response.config.SetInParent()
        if stored.HasField("cookie"):
            response.config.cookie.CopyFrom(stored.cookie)
        if request.response_type in (kinds.ALL, kinds.P4INFO_AND_COOKIE):
            response.config.p4info.CopyFrom(stored.p4info)
        if request.response_type in (kinds.ALL, kinds.DEVICE_CONFIG_AND_COOKIE):
            response.config.p4_device_config = stored.p4_device_config
        return response

    def StreamChannel(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Keep a client's session: arbitration, packets, digests, idle entries."""
        mailbox = Mailbox(context.cancel)
        with refusing(context), self._streams.take(lambda: _push_out(mailbox)) as place:
            if not context.add_callback(mailbox.close):
                return
            threading.Thread(
                target=self._listen, args=(requests, mailbox, place), name="p4runtime stream", daemon=True
            ).start()
            deadline = time.monotonic() + ARBITRATION_S
            while True:
                message = mailbox.take(max(0.0, deadline - time.monotonic()) if place.is_idle else None)
                if message is not None:
                    yield message
                elif mailbox.is_closed:
                    break
                elif place.is_idle and time.monotonic() >= deadline:
                    mailbox.close(Refusal(Code.ABORTED, f"no arbitration within {ARBITRATION_S:g} s"))
            if mailbox.refusal:
                abort(context, mailbox.refusal)

    @contextmanager
    def _request(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Give the one message of a request, in a place for it; what refuses it inside ends it."""
        with refusing(context), self._requests.take(context.cancel) as place:
            data = next(requests, None)
            if data is None:
                raise invalid("a request without a message")
            place.keep()
            yield data

    # Who may do it.

    def _check_device(self, request: Any) -> None:
        if request.device_id != self._device_id:
            raise Refusal(Code.NOT_FOUND, f"no device {request.device_id}; accepted: {self._device_id}")

    def _check_primary(self, request: Any) -> None:
        self._check_device(request)
        if not self._arbitration.knows(request.role):
            raise Refusal(Code.NOT_FOUND, f"no role {request.role!r}; open a stream for it first")
        if not self._arbitration.is_primary(request.role, _election_id(request)):
            raise Refusal(
                Code.PERMISSION_DENIED,
                f"election id {_election_id(request)} is not that of the primary of role {request.role!r}",
            )

    def _pipeline(self) -> tuple[PipelineConfig, Store]:
        """Return the pipeline that reads and writes refer to."""
        current = self._saved or self._running
        if current is None:
            raise Refusal(Code.FAILED_PRECONDITION, "no pipeline; send SetForwardingPipelineConfig first")
        return current

    # Pipelines.

    def _set_pipeline(self, request: Any) -> None:
        """Do all that takes long beside reads, writes and arbitration; who is primary may change meanwhile."""
        if request.action == _Config.COMMIT:
            with self._lock:
                self._check_primary(request)
                self._commit_saved(request)
            return
        if request.action not in (
            _Config.VERIFY,
            _Config.VERIFY_AND_SAVE,
            _Config.VERIFY_AND_COMMIT,
            _Config.RECONCILE_AND_COMMIT,
        ):
            raise invalid(f"unknown action {request.action}; accepted: {', '.join(_Config.Action.keys()[1:])}")
        if not request.HasField("config"):
            raise invalid("no config; give P4Info and p4_device_config")
        with self._verifications.take(lambda: None) as place:
            place.keep()
            recorder = Recorder()
            config, store = self._verified(request.config, recorder)
        with self._lock:
            self._check_primary(request)
            self._take_over(request.action, config, store, recorder)

    def _verified(self, message: Any, recorder: Recorder) -> tuple[PipelineConfig, Store]:
        """Return a config that runs, and its entities; whatever goes wrong on the way is the config's fault."""
        try:
            config = read_config(message)
            self._verify(config.document)
            return config, config.store(recorder, self._cpu_port)
        except (Refusal, TensorExpressError):
            raise
        except Exception as error:
            raise invalid(f"a config that contradicts itself ({type(error).__name__}); give what p4c wrote") from None

    def _take_over(self, action: int, config: PipelineConfig, store: Store, recorder: Recorder) -> None:
        if action == _Config.VERIFY_AND_SAVE:
            self._saved, self._recorder = (config, store), recorder
        elif action != _Config.VERIFY:
            if action == _Config.RECONCILE_AND_COMMIT and self._running:
                reconcile(self._running[1], store)
            self._commit(config, store, recorder)

    def _commit_saved(self, request: Any) -> None:
        if request.HasField("config"):
            raise invalid("a config with COMMIT, which commits the saved one; leave it out")
        if self._saved is None:
            raise Refusal(Code.NOT_FOUND, "no saved pipeline; send VERIFY_AND_SAVE first")
        self._commit(*self._saved, self._recorder)

    def _commit(self, config: PipelineConfig, store: Store, recorder: Recorder) -> None:
        self._data_path.load(config.document, [*config.initial.renamed, *recorder.operations])
        # What the program before has noticed would be read by the P4Info of this one.
        self._inbox.clear()
        store.run_on(self._data_path)
        self._running, self._saved = (config, store), None
        self._digests.clear()
        self._configure_digests()

    # Streams.

    def _listen(self, requests: Iterator[bytes], mailbox: Mailbox, place: Place) -> None:
        """Work on what a client sends, until it ends the stream or has to be refused."""
        refusal: Refusal | None = Refusal(Code.INTERNAL, "the switch could not work on a message of the stream")
        try:
            for data in _until_lost(requests):
                if len(data) > _LARGEST_STREAM_MESSAGE:
                    raise Refusal(Code.RESOURCE_EXHAUSTED, f"a stream message of {len(data)} bytes; send less")
                self._handle(parse(p4runtime_pb2.StreamMessageRequest, data), mailbox)
                if mailbox in self._arbitration:
                    place.keep()
            refusal = None
        except Refusal as reason:
            refusal = reason
        finally:
            with self._lock:
                self._send_advice(self._arbitration.leave(mailbox))
            mailbox.close(refusal)

    def _handle(self, request: Any, mailbox: Mailbox) -> None:
        kind = request.WhichOneof("update")
        if kind == "arbitration":
            with self._lock:
                self._arbitrate(request.arbitration, mailbox)
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
        except Refusal as refusal:
            error.canonical_code, error.message = refusal.code, str(refusal)
        except NetworkError as reason:
            error.canonical_code, error.message = Code.UNAVAILABLE, str(reason)
        if error.canonical_code:
            self._put_news(mailbox, p4runtime_pb2.StreamMessageResponse(error=error))

    def _arbitrate(self, message: Any, mailbox: Mailbox) -> None:
        if message.device_id != self._device_id:
            known = mailbox in self._arbitration
            code = Code.FAILED_PRECONDITION if known else Code.NOT_FOUND
            raise Refusal(code, f"no device {message.device_id}; accepted: {self._device_id}")
        if message.role.id:
            raise invalid("roles by number are deprecated; give the role a name")
        if message.role.HasField("config"):
            raise invalid("no scheme of role configs is agreed upon; leave role.config out for full access")
        self._send_advice(self._arbitration.update(mailbox, message.role.name, _election_id(message)))

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

    def _packet_out(self, packet: Any, mailbox: Mailbox) -> None:
        if not self._arbitration.is_primary_client(mailbox):
            raise Refusal(Code.PERMISSION_DENIED, "only the primary may send packets")
        if self._running is None:
            raise Refusal(Code.FAILED_PRECONDITION, "no pipeline runs; send SetForwardingPipelineConfig first")
        if len(packet.payload) > _LONGEST_FRAME:
            raise invalid(f"a frame of {len(packet.payload)} bytes; accepted: at most {_LONGEST_FRAME}")
        header = encode_header(self._running[0].schema.packet_out, packet.metadata)
        self._data_path.packet_out(header + packet.payload)

    def _acknowledge(self, ack: Any, mailbox: Mailbox) -> None:
        if not self._arbitration.is_primary_client(mailbox):
            raise Refusal(Code.PERMISSION_DENIED, "only the primary may acknowledge digests")
        find("digest", self._running[0].schema.digests if self._running else {}, ack.digest_id)
        if ack.digest_id in self._digests:
            self._digests[ack.digest_id].acknowledge(ack.list_id)

    # Notices.

    def notify(self, notice: Notice) -> None:
        """Take a notice from the data path; never waits."""
        self._inbox.put(notice)

    def _work_on(self, notices: list[Notice]) -> int | None:
        """Send what notices call for and return when the next digest list is due."""
        with self._lock:
            for notice in notices:
                if isinstance(notice, PacketIn):
                    self._packet_in(notice)
                elif isinstance(notice, Digest):
                    self._gather(notice)
            self._idle([notice for notice in notices if isinstance(notice, IdleEntry)])
            return self._send_digests()

    def _send_news(self, response: Any) -> None:
        primary = self._arbitration.primary("")
        if primary is not None:
            self._put_news(primary, response)

    def _put_news(self, mailbox: Mailbox, response: Any) -> None:
        dropped = mailbox.put_news(response.SerializeToString())
        if dropped:
            with self._lock:
                self.dropped_messages += dropped

    def _packet_in(self, notice: PacketIn) -> None:
        if self._running is None:
            return
        packet = decode_header(self._running[0].schema.packet_in, notice.frame)
        if packet is None:
            self.malformed_packets_in += 1
        else:
            self._send_news(p4runtime_pb2.StreamMessageResponse(packet=packet))

    def _idle(self, notices: list[IdleEntry]) -> None:
        message = p4runtime_pb2.IdleTimeoutNotification(timestamp=time.time_ns())
        store = self._running[1] if self._running else None
        rows = [store.rows.idle(notice.entry) for notice in notices] if store else []
        message.table_entry.extend(row for row in rows if row is not None)
        if message.table_entry:
            self._send_news(p4runtime_pb2.StreamMessageResponse(idle_timeout_notification=message))

    def _configure_digests(self) -> None:
        """Let the queues of digests follow what clients have configured."""
        if self._running is None:
            return
        config, store = self._running
        for id in config.schema.digests:
            wanted = store.digest_config(id)
            queue = self._digests.get(id)
            if wanted is None:
                self._digests.pop(id, None)
            elif queue is None:
                self._digests[id] = DigestQueue(wanted)
            else:
                queue.config = wanted

    def _gather(self, notice: Digest) -> None:
        digest = self._running[0].schema.digest_named(notice.name) if self._running else None
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
        assert self._running is not None
        kind = self._running[0].schema.digests[id].type
        digest = p4runtime_pb2.DigestList(digest_id=id, list_id=list_id, timestamp=time.time_ns())
        digest.data.extend(encode_data(kind, iter(values)) for values in messages)
        self._send_news(p4runtime_pb2.StreamMessageResponse(digest=digest))


def _until_lost(requests: Iterator[bytes]) -> Iterator[bytes]:
    """Yield what a client sends; gRPC raises an exception of no particular type when the connection is lost."""
    try:
        yield from requests
    except Exception:
        return


_ADVICE = {
    Code.OK: "you are the primary",
    Code.ALREADY_EXISTS: "you are a backup",
    Code.NOT_FOUND: "you are a backup, and there is no primary",
}


@dataclass(frozen=True)
class Messages(Collection[Any]):
    """Serialised messages of one kind, each parsed when it is its turn: together they may take much memory."""

    kind: Any
    serialised: list[bytes]

    def __len__(self) -> int:
        return len(self.serialised)

    def __iter__(self) -> Iterator[Any]:
        return (parse(self.kind, data) for data in self.serialised)

    def __contains__(self, message: object) -> bool:
        return any(message == each for each in self)


def _push_out(mailbox: Mailbox) -> None:
    """End the stream of a client that has not said who it is."""
    mailbox.close(Refusal(Code.RESOURCE_EXHAUSTED, "another client needed the place of this stream"))
    mailbox.cut()


def _responses(found: list[Iterator[Any]]) -> Iterator[Any]:
    """Yield all entities, in messages of a size that clients take."""
    response = p4runtime_pb2.ReadResponse()
    for entities in found:
        for entity in entities:
            response.entities.append(entity)
            if len(response.entities) >= _ENTITIES_PER_RESPONSE:
                yield response
                response = p4runtime_pb2.ReadResponse()
    if response.entities:
        yield response


def _is_atomic(atomicity: int, updates: int) -> bool:
    """Whether so many updates are to be made between two packets; Refusal if those would wait too long."""
    kinds = p4runtime_pb2.WriteRequest
    if atomicity not in kinds.Atomicity.values():
        raise invalid(f"unknown atomicity {atomicity}; accepted: 0, 1, 2")
    if atomicity != kinds.DATAPLANE_ATOMIC:
        return False
    if updates > LARGEST_ATOMIC_BATCH:
        raise Refusal(
            Code.RESOURCE_EXHAUSTED,
            f"packets would wait for {updates} updates with DATAPLANE_ATOMIC; "
            f"accepted: at most {LARGEST_ATOMIC_BATCH}, or another atomicity",
        )
    return True


def _election_id(message: Any) -> int | None:
    """Return the 128-bit election id; None when it is not set, which is below every id."""
    if not message.HasField("election_id"):
        return None
    return int(message.election_id.high) << 64 | int(message.election_id.low)
