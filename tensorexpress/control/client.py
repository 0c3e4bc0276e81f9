"""One connection to one switch over P4Runtime, with errors that say which switch, what happened and what to do.

p4runtime-shell's client is not used: its stream, its error iterator and its time-outs end the program, loop or wait
where a caller needs an answer.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import grpc

from tensorexpress import lost_frames
from tensorexpress.control.messages import decode, encode
from tensorexpress.control_address import parse_address
from tensorexpress.errors import InputError, NetworkError, ProgramError
from tensorexpress.files import read_pem
from tensorexpress.p4runtime_messages import P4RuntimeStub, code_pb2, p4runtime_pb2, status_pb2
from tensorexpress.plain_messages import read_message, write_message

#: How long a switch may take: to answer at all, to answer a question, to load a program, to say goodbye.
CONNECT_S = 5.0
REQUEST_S = 120.0
PIPELINE_S = 60.0
CLOSE_S = 1.0

#: Updates in one request: the errors of all of them have room in the 8 KiB of metadata that gRPC takes as an answer.
BATCH = 150

#: Messages from the switch that wait to be looked at; packets that come while so many wait are dropped.
_MOST_WAITING = 1000

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class ClientTls:
    """PEM files: whom to trust, and what proves who we are where the switch wants to know."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None


@dataclass(frozen=True)
class RemoteSwitch:
    """A switch of the plan, and how to reach and control it."""

    name: str
    #: HOST:PORT, [IPV6]:PORT or unix:PATH.
    address: str
    device_id: int = 1
    #: Of several controllers the one with the highest is primary, and may write.
    election_id: int = 1
    #: None speaks without TLS.
    tls: ClientTls | None = None

    def __str__(self) -> str:
        return f"{self.name} at {self.address}"


@dataclass(frozen=True)
class Standing:
    """Which part a switch gives us."""

    is_primary: bool
    #: The highest election id that the switch has seen, which is that of the primary if there is one.
    highest: int
    #: Nobody is primary.
    is_vacant: bool = False


@dataclass(frozen=True)
class ReceivedPacket:
    """A frame that the switch sent to the controller, and the fields of its packet-in header by id."""

    frame: bytes
    metadata: dict[int, int]


@dataclass(frozen=True)
class RefusedUpdate:
    """An update that the switch did not make: its place in the batch, and why."""

    index: int
    code: str
    message: str


class Connection:
    """A connection to a switch, open until it is closed. Reading needs nothing else; writing needs `arbitrate`."""

    def __init__(self, target: RemoteSwitch):
        self.target = target
        self._election_id = target.election_id
        self._channel = _open_channel(target)
        self._stub = P4RuntimeStub(self._channel, {"Read": partial(read_message, p4runtime_pb2.ReadResponse)})
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._messages: queue.Queue[Standing | ReceivedPacket | NetworkError | None] = queue.Queue()
        self._stream: Any = None
        self._receiver: threading.Thread | None = None
        try:
            self.check_alive()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the switch; no thread stays behind."""
        self._requests.put(None)
        if self._receiver is not None:
            # A switch that sees the end of the stream frees our election id before it ends its own side.
            self._receiver.join(CLOSE_S)
            self._stream.cancel()
            self._receiver.join()
        self._channel.close()

    # Who may write.

    def arbitrate(self) -> Standing:
        """Ask for our part, and take one that nobody has; the election id then grows above the highest one seen."""
        if self._stream is None:
            self._open_stream()
        standing = self._claim(self._election_id)
        if standing.is_vacant:
            standing = self._claim(standing.highest + 1)
        return standing

    def become_primary(self) -> None:
        """Become primary, or raise NetworkError that says who is."""
        standing = self.arbitrate()
        if not standing.is_primary:
            raise NetworkError(
                f"{self.target}: another controller is primary with election id {standing.highest}, ours is "
                f"{self._election_id}; stop it, or take over with --election-id {standing.highest + 1}"
            )

    def listen(self, timeout_s: float | None = None) -> Standing | ReceivedPacket | None:
        """Return what the switch says next; None when it says nothing in that time, or `wake` was called."""
        try:
            message = self._messages.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(message, NetworkError):
            raise message
        return message

    def packet_out(self, frame: bytes, metadata: Mapping[int, int]) -> None:
        """Send a frame through the switch, with the fields of its packet-out header by id; only a primary may."""
        request = p4runtime_pb2.StreamMessageRequest()
        request.packet.payload = frame
        for number, value in metadata.items():
            request.packet.metadata.add(metadata_id=number, value=encode(value))
        self._requests.put(request)

    def wake(self) -> None:
        """Let another thread's `listen` return."""
        self._messages.put(None)

    def _open_stream(self) -> None:
        self._stream = self._stub.StreamChannel(iter(self._requests.get, None))
        self._receiver = threading.Thread(target=self._receive, name=f"stream of {self.target.name}", daemon=True)
        self._receiver.start()

    def _claim(self, election_id: int) -> Standing:
        self._election_id = election_id
        request = p4runtime_pb2.StreamMessageRequest()
        request.arbitration.device_id = self.target.device_id
        request.arbitration.election_id.CopyFrom(_uint128(election_id))
        self._requests.put(request)
        while True:
            message = self.listen(CONNECT_S)
            if message is None:
                raise NetworkError(
                    f"{self.target}: does not say who is primary within {CONNECT_S:g} s (election id {election_id}); "
                    "is it a P4Runtime server? Try again"
                )
            if isinstance(message, Standing):
                return message

    def _receive(self) -> None:
        """Sort what the switch sends, until the stream ends."""
        try:
            for message in self._stream:
                if message.HasField("arbitration"):
                    self._messages.put(_standing(message.arbitration))
                elif message.HasField("error"):
                    self._messages.put(NetworkError(f"{self.target}: {message.error.message}"))
                elif message.HasField("packet") and self._messages.qsize() < _MOST_WAITING:
                    self._messages.put(_packet_in(message.packet))
            ended = NetworkError(f"{self.target}: ended the connection; is it still running?")
        except grpc.RpcError as error:
            ended = self._stream_error(error)
        self._messages.put(ended)

    def _stream_error(self, error: Any) -> NetworkError:
        if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
            return NetworkError(
                f"{self.target}: another controller has election id {self._election_id} already; stop it, or take over "
                f"with --election-id {self._election_id + 1}"
            )
        return self._error("its stream", error)

    # What is there, and what to change.

    def check_alive(self) -> None:
        """Raise NetworkError unless a P4Runtime server answers."""
        try:
            self._stub.Capabilities(p4runtime_pb2.CapabilitiesRequest(), timeout=CONNECT_S)
        except grpc.RpcError as error:
            # Servers older than the request are P4Runtime servers all the same.
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise self._error("connecting", error) from None

    def read_lost_frames(self) -> dict[int, int] | None:
        """Return how many frames each port lost before the switch took them; None when the switch does not say."""
        try:
            _, call = self._stub.Capabilities.with_call(p4runtime_pb2.CapabilitiesRequest(), timeout=REQUEST_S)
            told = dict(call.trailing_metadata() or ()).get(lost_frames.KEY)
            return None if told is None else lost_frames.decode(str(told))
        except (grpc.RpcError, ValueError):
            return None

    def read_pipeline(self) -> tuple[Any, int] | None:
        """Return P4Info and cookie of the program that the switch runs, or None when it runs none."""
        request = p4runtime_pb2.GetForwardingPipelineConfigRequest(
            device_id=self.target.device_id,
            response_type=p4runtime_pb2.GetForwardingPipelineConfigRequest.P4INFO_AND_COOKIE,
        )
        try:
            response = self._stub.GetForwardingPipelineConfig(request, timeout=REQUEST_S)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                return None
            raise self._error("reading its program", error) from None
        # An empty answer means no program too: switches differ in how they say it.
        if not response.config.p4info.ByteSize():
            return None
        return response.config.p4info, response.config.cookie.cookie

    def push_pipeline(self, p4info: Any, document: bytes, cookie: int) -> None:
        """Let the switch run a program; all entries of the one before are gone then."""
        request = p4runtime_pb2.SetForwardingPipelineConfigRequest(
            device_id=self.target.device_id,
            election_id=_uint128(self._election_id),
            action=p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT,
        )
        request.config.p4info.CopyFrom(p4info)
        request.config.p4_device_config = document
        request.config.cookie.cookie = cookie
        try:
            self._stub.SetForwardingPipelineConfig(request, timeout=PIPELINE_S)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED):
                raise ProgramError(f"{self.target}: cannot run the program: {error.details()}") from None
            raise self._error(f"loading the program into device {self.target.device_id}", error) from None

    def read(self, queries: Iterable[Any]) -> Iterator[Any]:
        """Yield all entities that match; one request for each query, so that no answer grows too large."""
        for query in queries:
            request = p4runtime_pb2.ReadRequest(device_id=self.target.device_id, entities=[query])
            try:
                for response in self._stub.Read(request, timeout=REQUEST_S):
                    yield from response.entities
            except grpc.RpcError as error:
                raise self._error(f"reading {query.WhichOneof('entity')}", error) from None

    def read_few(self, queries: Sequence[Any]) -> list[Any]:
        """Return all entities that match, of few queries that each match few, in one request."""
        request = p4runtime_pb2.ReadRequest(device_id=self.target.device_id, entities=queries)
        try:
            return [entity for response in self._stub.Read(request, timeout=REQUEST_S) for entity in response.entities]
        except grpc.RpcError as error:
            raise self._error(f"reading {queries[0].WhichOneof('entity')}", error) from None

    def read_if_implemented(self, query: Any) -> list[Any] | None:
        """Return all entities that match, or None when the switch cannot read such."""
        request = p4runtime_pb2.ReadRequest(device_id=self.target.device_id, entities=[query])
        try:
            return [entity for response in self._stub.Read(request, timeout=REQUEST_S) for entity in response.entities]
        except grpc.RpcError as error:
            if _is_unimplemented(error):
                return None
            raise self._error(f"reading {query.WhichOneof('entity')}", error) from None

    def write(self, updates: Sequence[Any], show: Callable[[Any], str] = str) -> None:
        """Make updates, which must not depend on each other; NetworkError names the first that was refused.

        An update is a message or the content of one, as in plain_messages.py.
        """
        for start in range(0, len(updates), BATCH):
            part = updates[start : start + BATCH]
            request = write_message(
                p4runtime_pb2.WriteRequest,
                {
                    "device_id": self.target.device_id,
                    "election_id": _uint128(self._election_id),
                    "updates": part,
                },
            )
            try:
                self._stub.Write(request, timeout=REQUEST_S)
            except grpc.RpcError as error:
                refusals = refusals_of(error)
                if not refusals:
                    raise self._error("writing entries", error) from None
                first = refusals[0]
                raise NetworkError(
                    f"{self.target}: refused {len(refusals)} of {len(part)} entries, first {show(part[first.index])}: "
                    f"{first.code} {first.message}".rstrip()
                ) from None

    def _error(self, doing: str, error: Any) -> NetworkError:
        """Return what happened as one line, with the next step."""
        code, details = error.code(), " ".join(str(error.details()).split())
        if code is grpc.StatusCode.PERMISSION_DENIED:
            return NetworkError(
                f"{self.target}: is no longer ours to write (election id {self._election_id}): {details}; another "
                "controller took over; stop it, or take over with a higher --election-id"
            )
        if code is grpc.StatusCode.FAILED_PRECONDITION:
            return NetworkError(f"{self.target}: runs no program ({details}); deploy a plan to it first")
        if code is grpc.StatusCode.NOT_FOUND:
            return NetworkError(f"{self.target}: {details}; give its number with --device-id {self.target.name}=NUMBER")
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            return NetworkError(f"{self.target}: {_unreachable(self.target, code, details)}")
        return NetworkError(f"{self.target}: {doing} failed with {code.name}: {details}")


def refusals_of(error: Any) -> list[RefusedUpdate]:
    """Return which updates of a batch were refused: P4Runtime says so in details that gRPC hides in metadata."""
    for name, value in error.trailing_metadata() or ():
        if name == "grpc-status-details-bin":
            status = status_pb2.Status.FromString(value)
            return list(_refusals(status.details))
    return []


def _refusals(details: Iterable[Any]) -> Iterator[RefusedUpdate]:
    for index, detail in enumerate(details):
        error = p4runtime_pb2.Error()
        if detail.Unpack(error) and error.canonical_code != code_pb2.OK:
            yield RefusedUpdate(index, code_pb2.Code.Name(error.canonical_code), error.message)


def _is_unimplemented(error: Any) -> bool:
    named = code_pb2.Code.Name(code_pb2.UNIMPLEMENTED)
    return error.code() is grpc.StatusCode.UNIMPLEMENTED or any(each.code == named for each in refusals_of(error))


#: What gRPC says of a connection that failed -> what that means. It has no codes for these.
_FAILURES = {
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not from the authority given with --tls-ca; give the right one",
    "Hostname Verification": "its certificate is for another name than the address; use the name that it is for",
    "WRONG_VERSION_NUMBER": "it does not speak TLS; leave --tls-ca, --tls-cert and --tls-key out",
    "Tls handshake failed": "TLS failed; check --tls-ca, --tls-cert and --tls-key",
    "Connection refused": "nobody answers there; start the switch, or correct the address given with --switch",
    "No such file": "no socket is there; start the switch, or correct the path given with --switch",
    "Permission denied": "the socket is another user's; run as the user who started the switch",
    "lookup": "no host has that name; correct the address given with --switch",
    "HTTP/2": "who answers there does not speak P4Runtime; correct the address given with --switch",
}


def _unreachable(target: RemoteSwitch, code: Any, details: str) -> str:
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return "no answer in time; is the address right, and the switch running?"
    for sign, meaning in _FAILURES.items():
        if sign in details:
            return meaning
    if "Socket closed" in details or "reset by peer" in details:
        if target.tls is None:
            return "closed the connection; start the switch again or, if it speaks TLS, give --tls-ca"
        return "closed the connection; if it asks who we are, give the --tls-cert and --tls-key that it trusts"
    return f"no answer ({details}); start the switch, or correct the address given with --switch"


def check_files(tls: ClientTls | None) -> None:
    """Refuse files that are none, or that do not go together."""
    if tls is not None:
        _read_files(tls)


def _read_files(tls: ClientTls) -> tuple[bytes | None, bytes | None, bytes | None]:
    """Return the contents of the certificate to trust, of our key and of our certificate, as gRPC takes them."""
    ca, certificate, key = (
        None if path is None else read_pem(option, path)
        for option, path in (("--tls-ca", tls.ca), ("--tls-cert", tls.certificate), ("--tls-key", tls.key))
    )
    if (certificate is None) != (key is None):
        raise InputError("--tls-cert and --tls-key go together; give both, or neither")
    return ca, key, certificate


def _open_channel(target: RemoteSwitch) -> Any:
    address = parse_address(target.address, str(target)).for_grpc
    if target.tls is None:
        return grpc.insecure_channel(address)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(*_read_files(target.tls)))


def _uint128(value: int) -> Any:
    return p4runtime_pb2.Uint128(high=value >> 64, low=value & 0xFFFFFFFFFFFFFFFF)


def _standing(message: Any) -> Standing:
    code = message.status.code
    highest = message.election_id.high << 64 | message.election_id.low
    return Standing(code == code_pb2.OK, highest, is_vacant=code == code_pb2.NOT_FOUND)


def _packet_in(message: Any) -> ReceivedPacket:
    return ReceivedPacket(message.payload, {each.metadata_id: decode(each.value) for each in message.metadata})
