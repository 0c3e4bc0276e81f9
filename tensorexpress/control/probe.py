"""What a switch can do, found out without changing it: no program is pushed, no entry written.

Whether its queues are there no request tells. So packets are sent through each of them to the controller's own port:
a switch that has a queue sends them back, and one that lacks it drops them without a word.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import closing

import grpc

from tensorexpress.control.aggregate import OWNERS
from tensorexpress.control.classify import QUEUES
from tensorexpress.control.client import CONNECT_S, Connection, ReceivedPacket, RemoteSwitch, Standing
from tensorexpress.control.entities import DefaultEntry, decode_entity
from tensorexpress.control.messages import ProgramSchema
from tensorexpress.control.reconcile import NONE, OURS, running_program
from tensorexpress.control_address import default_address
from tensorexpress.doctor import BMV2, Finding
from tensorexpress.errors import NetworkError
from tensorexpress.p4 import P4Program
from tensorexpress.p4.define import CPU_PORT
from tensorexpress.p4runtime_messages import p4runtime_pb2
from tensorexpress.sums import SLOT_BYTES
from tensorexpress.units import counted, format_size

#: How long a packet may take through the switch and back.
RETURN_S = 3.0

#: A packet may be lost for other reasons; a queue that returned none in so many rounds is not there.
ROUNDS = 2

#: Addresses that nobody has and an EtherType for experiments; a program that forwards it all the same does no harm.
_ETHERNET = bytes.fromhex("02545800fffe 02545800ffff 88b5")
_SHORTEST_FRAME_BYTES = 60


class Observer(Connection):
    """A connection that looks. It becomes primary only where it is told to."""

    def api_version(self) -> str:
        """Return the version of P4Runtime that the switch says it speaks; it may be too old to be asked."""
        try:
            answer = self._stub.Capabilities(p4runtime_pb2.CapabilitiesRequest(), timeout=CONNECT_S)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return "too old to say its version"
            raise self._error("asking for its version", error) from None
        return answer.p4runtime_api_version or "not told"

    def observe(self) -> Standing:
        """Ask who is primary without an election id; a switch for which any client will do may still choose us."""
        self._open_stream()
        request = p4runtime_pb2.StreamMessageRequest()
        request.arbitration.device_id = self.target.device_id
        self._requests.put(request)
        while not isinstance(message := self.listen(CONNECT_S), Standing):
            if message is None:
                raise NetworkError(f"{self.target}: does not say who is primary within {CONNECT_S:g} s; try again")
        return message

    def claim(self, election_id: int) -> Standing:
        """Ask for the part that an election id gives us."""
        return self._claim(election_id)


def check_switch(target: RemoteSwitch, program: P4Program, *, take_over: bool = False) -> list[Finding]:
    """Return what one switch can do. Queues are probed as primary: where nobody is, or where we may take over."""
    try:
        switch = Observer(target)
    except NetworkError as error:
        grpc_option = "" if target.address == str(default_address(target.device_id)) else f"--grpc {target.address} "
        start = f"tensorexpress switch {grpc_option}--device-id {target.device_id}"
        return [_failure("connection", target, error, f"; {start} starts one")]
    findings = [Finding("connection", "ok", "P4Runtime answers")]
    with closing(switch):
        try:
            for finding in _examine(switch, program, take_over):
                findings.append(finding)
        except NetworkError as error:
            findings.append(_failure("further checks", target, error))
    return findings


def _failure(name: str, target: RemoteSwitch, error: NetworkError, more: str = "") -> Finding:
    """Return a finding from a line that says what happened and, behind a semicolon, what to do."""
    found, _, advice = str(error).removeprefix(f"{target}: ").partition("; ")
    return Finding(name, "problem", found, f"{advice or 'look again'}{more}")


def _examine(switch: Observer, program: P4Program, take_over: bool) -> Iterator[Finding]:
    schema = ProgramSchema.of(program)
    yield Finding("P4Runtime API", "ok", switch.api_version())
    running = running_program(switch, program, schema)
    yield _program_finding(running)
    if running == OURS:
        yield sums_finding(schema)
    standing = switch.observe()
    yield _primary_finding(standing)
    if running != OURS:
        yield _not_probed("it does not run this program", "deploy a plan, then look again")
    elif not _is_ours_to_take(standing) and not take_over:
        yield _not_probed("another controller is primary", "stop that one, or give --take-over")
    elif not (standing.is_primary or switch.claim(_winning_id(standing)).is_primary):
        yield _not_probed("another controller became primary", "look again")
    else:
        lowest = read_lowest_queue(switch, schema)
        yield queues_finding(probe_queues(switch, schema, lowest), lowest)


def _program_finding(running: str) -> Finding:
    if running == OURS:
        return Finding("program", "ok", "that of this tensorexpress")
    found = "none" if running == NONE else "another, or another version"
    return Finding("program", "note", found, "tensorexpress deploy puts it there, and then entries of the plan")


def sums_finding(schema: ProgramSchema) -> Finding:
    """Return the memory that the program has for sums, and up to which plans use no more."""
    slots = schema.find("register", OWNERS).size // 2
    most = format_size(slots * SLOT_BYTES)
    return Finding("sums", "ok", f"{slots} slots: enough for plans with a cluster.switch_memory up to {most}")


def _is_ours_to_take(standing: Standing) -> bool:
    return standing.is_primary or standing.is_vacant


def _primary_finding(standing: Standing) -> Finding:
    if _is_ours_to_take(standing):
        return Finding("primary", "ok", "nobody")
    return Finding(
        "primary",
        "note",
        f"another controller, with election id {standing.highest}",
        f"stop it before you deploy, or deploy with --election-id {standing.highest + 1}",
    )


def _winning_id(standing: Standing) -> int:
    """Return the smallest election id that makes us primary.

    Where nobody is primary that is the highest seen, again: a larger one would lock out whoever had it before.
    """
    return max(standing.highest, 1) if standing.is_vacant else standing.highest + 1


def _not_probed(why: str, remedy: str) -> Finding:
    return Finding("queues", "note", f"not probed: {why}", remedy)


# The queues.


def read_lowest_queue(switch: Connection, schema: ProgramSchema) -> int:
    """Return the number of the lowest queue that the running program uses."""
    # What the switch says comes last and counts; it may say nothing of a default that nobody has set.
    answer = switch.read([DefaultEntry.query(schema, QUEUES)])
    told = [*DefaultEntry.initial(schema, ()), *(decode_entity(schema, message) for message in answer)]
    actions = [entity.action for entity in told if isinstance(entity, DefaultEntry) and entity.table == QUEUES]
    return dict(actions[-1].arguments)["lowest"]


def probe_queues(switch: Observer, schema: ProgramSchema, lowest: int) -> frozenset[int]:
    """Return through which of the queues 0 to `lowest` of the controller's port packets come back."""
    returned: frozenset[int] = frozenset()
    for _ in range(ROUNDS):
        if len(returned) <= lowest:
            returned |= _send_through(switch, schema, lowest)
    return returned


def _send_through(switch: Observer, schema: ProgramSchema, lowest: int) -> set[int]:
    """Send a packet through every queue and return the queues of those that come back.

    The lowest queue, which every switch has, is the last to be tried and to be served. Once its packet is back there
    is no other to wait for.
    """
    token = secrets.token_bytes(8)
    for queue in range(lowest + 1):
        frame = (_ETHERNET + token + bytes([queue])).ljust(_SHORTEST_FRAME_BYTES, b"\0")
        switch.packet_out(frame, _packet_out_header(schema, egress_port=CPU_PORT, queue=queue))
    returned: set[int] = set()
    give_up_s = time.monotonic() + RETURN_S
    while lowest not in returned and (left_s := give_up_s - time.monotonic()) > 0:
        message = switch.listen(left_s)
        if isinstance(message, ReceivedPacket):
            # The switch takes the front of the frame for a packet-in header, so only the token is sure to be there.
            _, found, rest = message.frame.partition(token)
            returned.update(rest[:1] if found else b"")
    return returned


def _packet_out_header(schema: ProgramSchema, **values: int) -> dict[int, int]:
    """Return the fields of a packet-out header by id, 0 where no value is given."""
    return {number: values.get(name, 0) for name, number in schema.header_fields("packet_out").items()}


def queues_finding(returned: frozenset[int], lowest: int) -> Finding:
    """Return what it means that packets came back through these queues of 0 to `lowest`."""
    queues = lowest + 1
    if lowest not in returned:
        return Finding(
            "queues",
            "problem",
            "no packet came back, not even through the lowest queue",
            f"restart the switch with --cpu-port {CPU_PORT}, so that packets to the controller arrive",
        )
    if len(returned) < queues:
        return Finding(
            "queues",
            "problem",
            f"{len(returned)} of the {queues} that the program uses; packets for the others are dropped silently",
            f"restart it with {queues} queues ({BMV2} ... -- --priority-queues {queues}, tensorexpress switch --queues "
            f"{queues}), or deploy a plan with cluster.queues={len(returned)}",
        )
    return Finding("queues", "ok", f"all {counted(queues, 'queue')} that the program uses")
