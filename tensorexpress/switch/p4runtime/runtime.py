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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any

from tensorexpress import lost_frames
from tensorexpress.errors import TensorExpressError
from tensorexpress.p4runtime_messages import p4runtime_pb2
from tensorexpress.plain_messages import write_message
from tensorexpress.switch.operations import DataPath, Notice
from tensorexpress.switch.p4runtime.answers import abort_batch, refusing
from tensorexpress.switch.p4runtime.batch import Found
from tensorexpress.switch.p4runtime.clients import Clients
from tensorexpress.switch.p4runtime.entities import write_entries
from tensorexpress.switch.p4runtime.notices import Notices
from tensorexpress.switch.p4runtime.p4info import parse_p4info
from tensorexpress.switch.p4runtime.pipeline_config import read_config
from tensorexpress.switch.p4runtime.pipelines import Pipelines, RuntimePipeline
from tensorexpress.switch.p4runtime.places import Place, Places
from tensorexpress.switch.p4runtime.reconcile import reconcile
from tensorexpress.switch.p4runtime.status import Code, Refused, invalid
from tensorexpress.switch.p4runtime.store import Recorder
from tensorexpress.switch.p4runtime.streams import Streams
from tensorexpress.switch.p4runtime.wire_format import Messages, parse, split
from tensorexpress.switch.program.budgets import PLAIN_MEMORY, SwitchMemory

API_VERSION = "1.4.1"

#: Every call holds a thread, and its request up to 8 MiB, so that their numbers are limited.
LARGEST_NUMBER_OF_READS = 8
LARGEST_NUMBER_OF_REQUESTS = 8
#: Programs that are verified at once; it takes long, and nothing waits for it.
LARGEST_NUMBER_OF_VERIFICATIONS = 2
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
        memory: SwitchMemory = PLAIN_MEMORY,
    ):
        self._data_path = data_path
        #: Frames that each port has lost; None where nobody counts them.
        self._lost = lost
        self._cpu_port = cpu_port
        self._memory = memory
        self._verify = verify
        self._lock = threading.RLock()
        self._pipelines = Pipelines()
        self._clients = Clients(device_id, self._lock)
        self._notices = Notices(self._pipelines, self._clients, self._lock, memory)
        self._streams = Streams(data_path, self._pipelines, self._clients, self._notices, self._lock)
        self._reads = Places(LARGEST_NUMBER_OF_READS, "reads are under way", wait_s=_WAIT_S, patience_s=_PATIENCE_S)
        self._requests = Places(
            LARGEST_NUMBER_OF_REQUESTS, "requests are under way", wait_s=_WAIT_S, patience_s=_PATIENCE_S
        )
        self._verifications = Places(LARGEST_NUMBER_OF_VERIFICATIONS, "programs are being verified")

    @property
    def dropped_notices(self) -> int:
        """How many notices came faster than they could be worked on."""
        return self._notices.dropped

    @property
    def dropped_messages(self) -> int:
        """How many messages were dropped because their client does not read its stream as fast as they come."""
        return self._clients.dropped_messages

    @property
    def malformed_packets_in(self) -> int:
        """How many frames from the CPU port were shorter than the program's packet-in header."""
        return self._notices.malformed_packets_in

    def notify(self, notice: Notice) -> None:
        """Take a notice from the data path; never waits."""
        self._notices.notify(notice)

    def stop(self) -> None:
        """Work on no further notices."""
        self._notices.stop()

    def start_with(self, p4info_text: str, document: bytes, entries_text: str = "") -> None:
        """Commit a program and entries from files, as a primary would; ProgramError changes nothing."""
        message = p4runtime_pb2.ForwardingPipelineConfig(p4_device_config=document)
        message.p4info.CopyFrom(parse_p4info(p4info_text))
        config, recorder = read_config(message), Recorder(self._memory)
        store = config.store(recorder, self._cpu_port, self._memory)
        write_entries(store, entries_text)
        with self._lock:
            self._commit(RuntimePipeline(config, store, recorder))

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
                self._clients.check_primary(request)
                store = self._pipelines.current().store
                refusals = store.write(
                    Messages(p4runtime_pb2.Update, updates),
                    all_or_none=request.atomicity != p4runtime_pb2.WriteRequest.CONTINUE_ON_ERROR,
                    atomic=_is_atomic(request.atomicity, len(updates)),
                    must_tell=True,
                )
                self._notices.configure_digests()
            if any(refusals):
                abort_batch(context, refusals)
            return p4runtime_pb2.WriteResponse()

    def Read(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Stream the entities that the requested ones, with wildcards, select."""
        with refusing(context), self._reads.take(context.cancel) as place:
            data = next(requests, None)
            if data is None:
                raise invalid("a request without a message")
            place.keep()
            yield from self._read(data, context, place)

    def _read(self, data: bytes, context: Any, place: Place) -> Iterator[bytes]:
        request, asked = split(p4runtime_pb2.ReadRequest, data, "entities")
        if len(asked) > LARGEST_READ:
            raise Refused(
                Code.RESOURCE_EXHAUSTED, f"a read of {len(asked)} entities; accepted: at most {LARGEST_READ} at a time"
            )
        refusals: list[Refused | None] = []
        found: list[Found] = []
        with self._lock:
            self._clients.check_device(request)
            store = self._pipelines.current().store
            count = 0
            for entity in Messages(p4runtime_pb2.Entity, asked):
                refusals.append(None)
                try:
                    found.append(store.select(entity))
                except Refused as refusal:
                    refusals[-1] = Refused(refusal.code, str(refusal))
                    continue
                count += found[-1].count
                if count > LARGEST_FOUND and len(asked) > 1:
                    raise Refused(
                        Code.RESOURCE_EXHAUSTED,
                        f"a read that finds more than {LARGEST_FOUND} entities; ask for one thing at a time",
                    )
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
                self._clients.check_primary(request)
            self._set_pipeline(request)
            return p4runtime_pb2.SetForwardingPipelineConfigResponse()

    def GetForwardingPipelineConfig(self, requests: Iterator[bytes], context: Any) -> Any:
        """Return the program that reads and writes refer to."""
        response = p4runtime_pb2.GetForwardingPipelineConfigResponse()
        kinds = p4runtime_pb2.GetForwardingPipelineConfigRequest
        with self._request(requests, context) as data:
            request = parse(kinds, data)
            with self._lock:
                self._clients.check_device(request)
                if request.response_type not in kinds.ResponseType.values():
                    raise invalid(f"unknown response type {request.response_type}; accepted: 0 to 3")
                current = self._pipelines.newest
        if current is None:
            return response
        stored = current.config.message
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
        return self._streams.keep(requests, context)

    @contextmanager
    def _request(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Give the one message of a request, in a place for it; what refuses it inside ends it."""
        with refusing(context), self._requests.take(context.cancel) as place:
            data = next(requests, None)
            if data is None:
                raise invalid("a request without a message")
            place.keep()
            yield data

    # Pipelines.

    def _set_pipeline(self, request: Any) -> None:
        """Do all that takes long beside reads, writes and arbitration; who is primary may change meanwhile."""
        if request.action == _Config.COMMIT:
            with self._lock:
                self._clients.check_primary(request)
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
            pipeline = self._verified(request.config)
        with self._lock:
            self._clients.check_primary(request)
            self._take_over(request.action, pipeline)

    def _verified(self, message: Any) -> RuntimePipeline:
        """Return a config that runs, and its entities; whatever goes wrong on the way is the config's fault."""
        recorder = Recorder(self._memory)
        try:
            config = read_config(message)
            self._verify(config.document)
            return RuntimePipeline(config, config.store(recorder, self._cpu_port, self._memory), recorder)
        except (Refused, TensorExpressError):
            raise
        except Exception as error:
            raise invalid(f"a config that contradicts itself ({type(error).__name__}); give what p4c wrote") from None

    def _take_over(self, action: int, pipeline: RuntimePipeline) -> None:
        if action == _Config.VERIFY_AND_SAVE:
            self._pipelines.saved = pipeline
        elif action != _Config.VERIFY:
            if action == _Config.RECONCILE_AND_COMMIT and self._pipelines.running:
                reconcile(self._pipelines.running.store, pipeline.store)
            self._commit(pipeline)

    def _commit_saved(self, request: Any) -> None:
        if request.HasField("config"):
            raise invalid("a config with COMMIT, which commits the saved one; leave it out")
        if self._pipelines.saved is None:
            raise Refused(Code.NOT_FOUND, "no saved pipeline; send VERIFY_AND_SAVE first")
        self._commit(self._pipelines.saved)

    def _commit(self, pipeline: RuntimePipeline) -> None:
        config = pipeline.config
        self._data_path.load(config.document, [*config.initial.renamed, *pipeline.recorder.operations])
        # What the program before has noticed would be read by the P4Info of this one.
        self._notices.forget()
        pipeline.recorder.operations.clear()  # they are done, and may be many
        pipeline.store.run_on(self._data_path)
        self._pipelines.run(pipeline)
        self._notices.restart_digests()


def _responses(found: list[Found]) -> Iterator[bytes]:
    """Yield all entities, in serialised messages of a size that clients take."""
    contents = chain.from_iterable(each.contents for each in found)
    while entities := list(islice(contents, _ENTITIES_PER_RESPONSE)):
        yield write_message(p4runtime_pb2.ReadResponse, {"entities": entities})


def _is_atomic(atomicity: int, updates: int) -> bool:
    """Whether so many updates are to be made between two packets; Refused if those would wait too long."""
    kinds = p4runtime_pb2.WriteRequest
    if atomicity not in kinds.Atomicity.values():
        raise invalid(f"unknown atomicity {atomicity}; accepted: 0, 1, 2")
    if atomicity != kinds.DATAPLANE_ATOMIC:
        return False
    if updates > LARGEST_ATOMIC_BATCH:
        raise Refused(
            Code.RESOURCE_EXHAUSTED,
            f"packets would wait for {updates} updates with DATAPLANE_ATOMIC; "
            f"accepted: at most {LARGEST_ATOMIC_BATCH}, or another atomicity",
        )
    return True
