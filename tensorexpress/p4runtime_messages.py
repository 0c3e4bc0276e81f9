"""P4Runtime's messages and its client stub, with any protobuf that is installed.

The package p4runtime brings modules that an old protoc has generated: a current protobuf refuses to import them, and
the protobuf that takes them is slow. What they describe is in them as one literal each, which is read here without
running them, and made into classes by the protobuf that is there. The classes live in a pool of their own, so that
other code of the process, such as p4runtime-shell, may import the generated modules beside them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal import enum_type_wrapper

#: Distribution -> its modules that describe messages, each after those that it builds on.
_DESCRIBED_IN = {
    "googleapis-common-protos": ("google/rpc/code_pb2.py", "google/rpc/status_pb2.py"),
    "p4runtime": (
        "p4/config/v1/p4types_pb2.py",
        "p4/config/v1/p4info_pb2.py",
        "p4/v1/p4data_pb2.py",
        "p4/v1/p4runtime_pb2.py",
    ),
}


#: The description in generated code: an argument by name from an old protoc, the only one from a new one.
_LITERAL = re.compile(r"""(?:\bserialized_pb=|\bAddSerializedFile\()\s*(b'(?:[^'\\]|\\.)*'|b"(?:[^"\\]|\\.)*")""")


def _described(name: str, module: str) -> bytes:
    """Return the serialised description of messages in a generated module, which is not imported."""
    try:
        path = Path(str(distribution(name).locate_file(module)))
    except PackageNotFoundError:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name) from None
    literal = _LITERAL.search(path.read_text())
    if literal is None:
        raise ImportError(f"{path}: describes no messages; install another version of {name}", name=name)
    return bytes(ast.literal_eval(literal[1]))


def _class_of(pool: Any, descriptor: Any) -> Any:
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(pool).GetPrototype(descriptor)  # protobuf before 4.22


def _module(pool: Any, file: Any) -> SimpleNamespace:
    """Return what protoc would have put into a module: classes of messages, enums and their values."""
    names = {name: _class_of(pool, found) for name, found in file.message_types_by_name.items()}
    for name, found in file.enum_types_by_name.items():
        names[name] = enum_type_wrapper.EnumTypeWrapper(found)
        names.update({value.name: value.number for value in found.values})
    return SimpleNamespace(DESCRIPTOR=file, **names)


def _modules() -> list[SimpleNamespace]:
    """Return the modules in the order of `_DESCRIBED_IN`."""
    pool: Any = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(any_pb2.DESCRIPTOR.serialized_pb)
    files = []
    for name, modules in _DESCRIBED_IN.items():
        for module in modules:
            pool.AddSerializedFile(_described(name, module))
            files.append(pool.FindFileByName(module.replace("_pb2.py", ".proto")))
    return [_module(pool, file) for file in files]


code_pb2, status_pb2, p4types_pb2, p4info_pb2, p4data_pb2, p4runtime_pb2 = _modules()


def is_repeated(field: Any) -> bool:
    """Return whether a field holds several values, which an old and a new protobuf say differently."""
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED)


def _serialised(request: Any) -> bytes:
    return request if isinstance(request, bytes) else bytes(request.SerializeToString())


class P4RuntimeStub:
    """The methods of P4Runtime on a gRPC channel, as attributes; each takes a message, or a serialised one.

    `readers` says how answers are read, by the name of the method, where that is not as messages.
    """

    def __init__(self, channel: Any, readers: Mapping[str, Callable[[bytes], Any]] = MappingProxyType({})):
        # Descriptors of an old protobuf do not say what is a stream; their serialised form does.
        file = descriptor_pb2.FileDescriptorProto.FromString(p4runtime_pb2.DESCRIPTOR.serialized_pb)
        (service,) = file.service
        for method in service.method:
            arity = "_".join("stream" if one else "unary" for one in (method.client_streaming, method.server_streaming))
            returns = getattr(p4runtime_pb2, method.output_type.rpartition(".")[2])
            call = getattr(channel, arity)(
                f"/{file.package}.{service.name}/{method.name}",
                request_serializer=_serialised,
                response_deserializer=readers.get(method.name, returns.FromString),
            )
            setattr(self, method.name, call)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"P4Runtime has no method {name!r}; it has {', '.join(vars(self))}")
