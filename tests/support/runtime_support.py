"""What the P4Runtime tests share: the program, a data path that checks its orders, and a plain client."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import text_format

from tensorexpress.p4runtime_messages import P4RuntimeStub, is_repeated, p4info_pb2, p4runtime_pb2, status_pb2
from tensorexpress.switch import operations as ops
from tensorexpress.switch.p4runtime.fitting import fit
from tensorexpress.switch.p4runtime.p4info import read_p4info
from tensorexpress.switch.p4runtime.store import Store
from tensorexpress.switch.program.bmv2.reader import read_program

PROGRAMS = Path(__file__).parents[1] / "programs" / "build"
DOCUMENT = (PROGRAMS / "runtime.json").read_bytes()
P4INFO_TEXT = (PROGRAMS / "runtime.p4info.txtpb").read_text()
P4INFO = text_format.Parse(P4INFO_TEXT, p4info_pb2.P4Info(), allow_unknown_field=True)
SCHEMA = read_p4info(P4INFO_TEXT)
PROGRAM = read_program(DOCUMENT)
FITTED = fit(SCHEMA, DOCUMENT)

INSERT, MODIFY, DELETE = 1, 2, 3


def id_of(alias: str) -> int:
    """Return the id that P4Info gives to anything, found by its alias."""
    for group in P4INFO.ListFields():
        for one in group[1] if is_repeated(group[0]) else ():
            if hasattr(one, "preamble") and one.preamble.alias == alias:
                return one.preamble.id
    raise KeyError(alias)


class StrictDataPath:
    """A data path without packets that fails a test when an operation is not one that it may rely on."""

    def __init__(self) -> None:
        self.document = b""
        self.clear()

    def clear(self) -> None:
        self.entries: dict[ops.Entry, ops.TableAction] = {}
        self.timeouts: dict[ops.Entry, int] = {}
        self.defaults: dict[str, Any] = {}
        self.members: dict[tuple[str, int], ops.ActionCall] = {}
        self.groups: dict[tuple[str, int], tuple[int, ...]] = {}
        self.multicast: dict[int, Any] = {}
        self.clones: dict[int, ops.SetCloneSession] = {}
        self.registers: dict[str, list[int]] = {}
        self.counters: dict[tuple[str, Any], tuple[int, int]] = {}
        self.meters: dict[tuple[str, Any], ops.MeterRates | None] = {}
        self.value_sets: dict[str, Any] = {}
        self.frames: list[bytes] = []
        self.batches: list[list[ops.Operation]] = []

    def load(self, document: bytes, operations: Sequence[ops.Operation] = ()) -> None:
        self.clear()
        self.document = document
        self.sizes = {array.name: array.size for array in [*SCHEMA.counters.values(), *SCHEMA.meters.values()]}
        self.registers = {one.name: [0] * one.size for one in SCHEMA.registers.values()}
        for table in PROGRAM.tables.values():
            self.entries.update(table.entries)
        self.apply(operations)

    def apply(self, operations: Sequence[ops.Operation], *, atomic: bool = False) -> None:
        self.batches.append(list(operations))
        for operation in operations:
            getattr(self, f"_{type(operation).__name__}")(operation)

    def _check(self, table: str, action: Any) -> None:
        if isinstance(action, ops.UseMember):
            assert any(member == action.member for _, member in self.members), action
        elif isinstance(action, ops.UseGroup):
            assert any(group == action.group for _, group in self.groups), action

    def _SetEntry(self, one: ops.SetEntry) -> None:
        self._check(one.entry.table, one.action)
        self.entries[one.entry] = one.action
        self.timeouts[one.entry] = one.idle_timeout_ns

    def _DeleteEntry(self, one: ops.DeleteEntry) -> None:
        del self.entries[one.entry]
        self.counters = {key: value for key, value in self.counters.items() if key[1] != one.entry}
        self.meters = {key: value for key, value in self.meters.items() if key[1] != one.entry}

    def _SetDefault(self, one: ops.SetDefault) -> None:
        self.defaults[one.table] = one.action

    def _SetMember(self, one: ops.SetMember) -> None:
        self.members[one.profile, one.member] = one.action

    def _DeleteMember(self, one: ops.DeleteMember) -> None:
        assert not any(one.member in group for (profile, _), group in self.groups.items() if profile == one.profile)
        del self.members[one.profile, one.member]

    def _SetGroup(self, one: ops.SetGroup) -> None:
        assert all((one.profile, member) in self.members for member in one.members)
        self.groups[one.profile, one.group] = one.members

    def _DeleteGroup(self, one: ops.DeleteGroup) -> None:
        assert ops.UseGroup(one.group) not in self.entries.values()
        del self.groups[one.profile, one.group]

    def _SetMulticastGroup(self, one: ops.SetMulticastGroup) -> None:
        self.multicast[one.group] = one.replicas

    def _SetCloneSession(self, one: ops.SetCloneSession) -> None:
        self.clones[one.session] = one

    def _WriteRegister(self, one: ops.WriteRegister) -> None:
        cells = self.registers[one.register]
        for index in range(len(cells)) if one.index is None else [one.index]:
            cells[index] = one.value

    def _WriteCounter(self, one: ops.WriteCounter) -> None:
        assert not isinstance(one.index, ops.Entry) or one.index in self.entries
        for index in range(self.sizes[one.counter]) if one.index is None else [one.index]:
            self.counters[one.counter, index] = one.packets, one.bytes

    def _SetMeter(self, one: ops.SetMeter) -> None:
        assert not isinstance(one.index, ops.Entry) or one.index in self.entries
        for index in range(self.sizes[one.meter]) if one.index is None else [one.index]:
            self.meters[one.meter, index] = one.rates

    def _SetValueSet(self, one: ops.SetValueSet) -> None:
        self.value_sets[one.value_set] = one.members

    def ask(self, queries: Sequence[ops.Query]) -> list[list[Any]]:
        return [self._answer(query) for query in queries]

    def _answer(self, query: ops.Query) -> list[Any]:
        if isinstance(query, ops.ReadRegister):
            cells = self.registers[query.register]
            return list(cells) if query.index is None else [cells[query.index]]
        if isinstance(query, ops.ReadIdleTime):
            return [12345]
        cells_asked = range(self.sizes[query.counter]) if query.index is None else [query.index]
        return [self.counters.get((query.counter, cell), (0, 0)) for cell in cells_asked]

    def packet_out(self, frame: bytes) -> None:
        self.frames.append(frame)


def new_store(cpu_port: int | None = 255) -> tuple[Store, StrictDataPath]:
    """Return the entities of the program on a strict data path that has loaded it."""
    data_path = StrictDataPath()
    data_path.load(DOCUMENT)
    data_path.apply(FITTED.initial.renamed)
    return Store(FITTED.schema, data_path, FITTED.initial, cpu_port), data_path


def update(kind: int, text: str = "", **content: Any) -> Any:
    """Return an Update, its entity given as text or by its fields; names after $ stand for their ids."""
    entity = p4runtime_pb2.Entity(**content)
    text_format.Parse(with_ids(text), entity)
    return p4runtime_pb2.Update(type=kind, entity=entity)


def entity(text: str) -> Any:
    """Return an Entity given as text; names after $ stand for their ids."""
    return text_format.Parse(with_ids(text), p4runtime_pb2.Entity())


def with_ids(text: str) -> str:
    """Replace $alias by the id of what P4Info calls so."""
    words = text.split("$")
    for position, word in enumerate(words[1:], start=1):
        name = word.split()[0].rstrip("};,")
        words[position] = word.replace(name, str(id_of(name)), 1)
    return "".join(words)


def codes(error: grpc.RpcError) -> list[int]:
    """Return the canonical code of every part of a refused request."""
    status = status_of(error)
    assert status.code == grpc.StatusCode.UNKNOWN.value[0] == error.code().value[0]
    assert status.message == error.details()
    return [unpacked(detail).canonical_code for detail in status.details]


def status_of(error: grpc.RpcError) -> Any:
    """Return the google.rpc.Status that a refused request carries."""
    details = dict(error.trailing_metadata()).get("grpc-status-details-bin", b"")
    return status_pb2.Status.FromString(details)


def unpacked(detail: Any) -> Any:
    """Return the p4.v1.Error in an Any."""
    error = p4runtime_pb2.Error()
    assert detail.Unpack(error)
    return error


class Client:
    """A client with one stream, for tests that look at every message."""

    def __init__(
        self,
        address: str,
        election_id: int | None = 1,
        *,
        device_id: int = 1,
        role: str = "",
        credentials: grpc.ChannelCredentials | None = None,
    ):
        # A status for every update of a large batch does not fit the 8 KiB that a client takes by default.
        options = [("grpc.max_metadata_size", 1 << 20)]
        self.channel = (
            grpc.secure_channel(address, credentials, options)
            if credentials
            else grpc.insecure_channel(address, options=options)
        )
        self.stub = P4RuntimeStub(self.channel)
        self.device_id, self.election_id, self.role = device_id, election_id, role
        self._outgoing: queue.Queue[Any] = queue.Queue()
        self.incoming: queue.Queue[Any] = queue.Queue()
        self._call: Any = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the stream and the connection."""
        if self._call:
            self._outgoing.put(None)
            self._reader.join()
        self.channel.close()

    def open(self) -> Client:
        """Open the stream without a word."""
        self._call = self.stub.StreamChannel(iter(self._outgoing.get, None))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def _read(self) -> None:
        try:
            for message in self._call:
                self.incoming.put(message)
            self.incoming.put(None)
        except grpc.RpcError as error:
            self.incoming.put(error)

    def send(self, **content: Any) -> None:
        """Send one message on the stream."""
        self._outgoing.put(p4runtime_pb2.StreamMessageRequest(**content))

    def next(self) -> Any:
        """Return what comes next on the stream: a message, the error that ended it, or None at its end."""
        return self.incoming.get(timeout=20)

    def claim(self, election_id: int | None = None, **changes: Any) -> None:
        """Send an arbitration message."""
        if election_id is not None:
            self.election_id = election_id
        message = p4runtime_pb2.MasterArbitrationUpdate(device_id=changes.get("device_id", self.device_id))
        if changes.get("role", self.role):
            message.role.name = changes.get("role", self.role)
        if self.election_id is not None:
            message.election_id.CopyFrom(uint128(self.election_id))
        self.send(arbitration=message)

    def join(self) -> Any:
        """Open the stream, claim, and return what the switch says to that."""
        if not self._call:
            self.open()
        self.claim()
        return self.next()

    def identity(self) -> dict[str, Any]:
        """Return the fields that say who writes."""
        found: dict[str, Any] = {"device_id": self.device_id, "role": self.role}
        if self.election_id is not None:
            found["election_id"] = uint128(self.election_id)
        return found

    def write(self, *updates: Any, atomicity: int = 0) -> None:
        """Write all updates in one request."""
        self.stub.Write(p4runtime_pb2.WriteRequest(updates=updates, atomicity=atomicity, **self.identity()))

    def refused(self, *updates: Any, atomicity: int = 0) -> list[int]:
        """Return the codes with which the switch answers; all OK when it does not refuse."""
        try:
            self.write(*updates, atomicity=atomicity)
        except grpc.RpcError as error:
            return codes(error)
        return [0] * len(updates)

    def read(self, *entities: Any) -> list[Any]:
        """Return all entities that are read."""
        request = p4runtime_pb2.ReadRequest(device_id=self.device_id, entities=entities)
        return [one for response in self.stub.Read(request) for one in response.entities]

    def set_pipeline(
        self, action: int = 3, *, cookie: int | None = None, with_config: bool = True, **parts: Any
    ) -> Any:
        """Send SetForwardingPipelineConfig."""
        request = p4runtime_pb2.SetForwardingPipelineConfigRequest(action=action, **self.identity())
        if with_config:
            request.config.p4info.CopyFrom(parts.get("p4info", P4INFO))
            request.config.p4_device_config = parts.get("document", DOCUMENT)
            if cookie is not None:
                request.config.cookie.cookie = cookie
        return self.stub.SetForwardingPipelineConfig(request)


def uint128(value: int) -> Any:
    """Return an election id as a message."""
    return p4runtime_pb2.Uint128(high=value >> 64, low=value & (1 << 64) - 1)


@contextmanager
def refused_with(code: grpc.StatusCode) -> Iterator[None]:
    """Expect that a request is refused as a whole, with one line for a person."""
    with pytest.raises(grpc.RpcError) as found:
        yield
    assert found.value.code() == code, found.value
    assert found.value.details(), found.value
    assert "\n" not in found.value.details(), found.value
