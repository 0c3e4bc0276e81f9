"""P4Runtime's messages with whatever protobuf is installed, and Python started in the checkout's own directory."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc
import pytest

from tensorexpress.p4runtime_messages import (
    _LITERAL,
    P4RuntimeStub,
    code_pb2,
    p4info_pb2,
    p4runtime_pb2,
    status_pb2,
)

ROOT = Path(__file__).parents[1]


def write_request(messages: Any) -> Any:
    request = messages.WriteRequest(device_id=7, atomicity=messages.WriteRequest.DATAPLANE_ATOMIC)
    entry = request.updates.add(type=messages.Update.MODIFY).entity.table_entry
    entry.table_id = 5
    entry.match.add(field_id=1).lpm.prefix_len = 24
    entry.action.action.params.add(param_id=2, value=b"\x01\xff")
    return request


def test_messages_survive_the_way_into_bytes_and_back() -> None:
    request = write_request(p4runtime_pb2)
    assert p4runtime_pb2.WriteRequest.FromString(request.SerializeToString()) == request
    assert p4info_pb2.MatchField.MatchType.Name(p4info_pb2.MatchField.LPM) == "LPM"


def test_details_of_a_status_are_packed_and_unpacked() -> None:
    status, error = status_pb2.Status(), p4runtime_pb2.Error()
    status.details.add().Pack(p4runtime_pb2.Error(canonical_code=code_pb2.NOT_FOUND, message="no such entry"))
    (detail,) = status_pb2.Status.FromString(status.SerializeToString()).details
    assert detail.Unpack(error)
    assert (code_pb2.Code.Name(error.canonical_code), error.message) == ("NOT_FOUND", "no such entry")


def test_the_generated_modules_beside_ours_read_and_write_the_same_bytes() -> None:
    if int(version("protobuf").partition(".")[0]) > 3:
        pytest.skip("this protobuf refuses the modules that p4runtime brings")
    from p4.v1 import p4runtime_pb2 as generated

    assert generated.WriteRequest is not p4runtime_pb2.WriteRequest
    assert write_request(generated).SerializeToString() == write_request(p4runtime_pb2).SerializeToString()


def test_the_stub_has_all_methods_and_names_them_for_who_asks_for_another() -> None:
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        stub = P4RuntimeStub(channel)
        assert sorted(vars(stub)) == [
            "Capabilities",
            "GetForwardingPipelineConfig",
            "Read",
            "SetForwardingPipelineConfig",
            "StreamChannel",
            "Write",
        ]
        with pytest.raises(AttributeError, match="no method 'Delete'; it has Write, Read"):
            stub.Delete(None)


@pytest.mark.parametrize(
    "generated",
    [
        r"""DESCRIPTOR = _descriptor.FileDescriptor(name='a.proto', serialized_pb=b'\n\x07it\'s "a"', more=1)""",
        r"""DESCRIPTOR = pool.AddSerializedFile(b'\n\x07it\'s "a"')""",
        "DESCRIPTOR = pool.AddSerializedFile(\n    b'\\n\\x07it\\'s \"a\"'\n)",
        r"""DESCRIPTOR = pool.AddSerializedFile(b"\n\x07it's \"a\"")""",
    ],
    ids=["old protoc", "new protoc", "new protoc and a formatter", "double quotes"],
)
def test_the_description_is_found_in_code_of_any_protoc(generated: str) -> None:
    found = _LITERAL.search(f"import sys\n{generated}\nprint(b'no')\n")
    assert found is not None
    assert ast.literal_eval(found[1]) == b'\n\x07it\'s "a"'


# Python puts the directory that it is started in before all others, and the checkout has a directory p4/.


def run_in_checkout(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True)


def test_verbs_that_speak_p4runtime_run_in_the_checkout() -> None:
    verb = "from tensorexpress.cli import main; main()"
    ran = run_in_checkout("-c", verb, "status", "--switch", "s0=unix:/nonexistent/s0.sock")
    assert (ran.returncode, ran.stdout) == (1, ""), ran.stderr
    assert "s0 at unix:/nonexistent/s0.sock: no socket is there; start the switch" in ran.stderr
    ran = run_in_checkout("-c", verb, "p4", "show")
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_shell_of_p4runtime_runs_in_the_checkout() -> None:
    pytest.importorskip("p4runtime_sh", reason="p4runtime-shell is not installed")
    ran = run_in_checkout("-m", "p4runtime_sh", "--help")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "--grpc-addr" in ran.stdout
