"""A forwarding pipeline: P4Info and program as a client sends them, checked, and its entities."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from tensorexpress.errors import ProgramError
from tensorexpress.plain_messages import varint
from tensorexpress.switch.operations import DataPath
from tensorexpress.switch.p4runtime.fitting import Fitted, fit
from tensorexpress.switch.p4runtime.p4info import P4Schema, read_p4info
from tensorexpress.switch.p4runtime.rows import Initial
from tensorexpress.switch.p4runtime.store import Store
from tensorexpress.switch.program.budgets import LARGEST_DOCUMENT, SwitchMemory, beyond

#: Field 3, length-delimited: the program in the message that PI's clients wrap it in (p4.tmp.P4DeviceConfig).
_DEVICE_DATA = 3 << 3 | 2

#: That message has three fields; what has many more is something else.
_MOST_FIELDS = 16


@dataclass(frozen=True)
class PipelineConfig:
    """A checked ForwardingPipelineConfig: the message, and what is needed to load it."""

    message: Any
    document: bytes
    schema: P4Schema
    initial: Initial

    def store(self, data_path: DataPath, cpu_port: int | None, memory: SwitchMemory) -> Store:
        """Return the entities that the program starts with."""
        return Store(self.schema, data_path, self.initial, cpu_port, memory)


def read_config(message: Any) -> PipelineConfig:
    """Check a ForwardingPipelineConfig; ProgramError says what of it cannot be used."""
    document = read_device_config(message.p4_device_config)
    fitted = _fitted(message.p4info, document)
    return PipelineConfig(message, document, fitted.schema, fitted.initial)


#: What the last program that was accepted became: switches of one process mostly run the same. By a digest, and one
#: alone, because clients choose how long programs are.
_LAST_FITTED: dict[bytes, Fitted] = {}


def _fitted(p4info: Any, document: bytes) -> Fitted:
    digest = hashlib.sha256(p4info.SerializeToString(deterministic=True))
    digest.update(hashlib.sha256(document).digest())
    key = digest.digest()
    known = _LAST_FITTED.get(key)
    if known is None:
        known = fit(read_p4info(p4info), document)
        _LAST_FITTED.clear()
        _LAST_FITTED[key] = known
    return known


def read_device_config(data: bytes) -> bytes:
    r"""Return the BMv2 JSON of a `p4_device_config`: the JSON itself, or PI's message around it.

    >>> read_device_config(b"\x08\x01\x1a\x02{}")
    b'{}'
    """
    if len(data) > LARGEST_DOCUMENT:
        raise beyond("the program", len(data), LARGEST_DOCUMENT, "bytes of p4_device_config")
    if data.lstrip()[:1] == b"{":
        return data
    try:
        return _unwrap(data)
    except (IndexError, ValueError):
        raise ProgramError("p4_device_config is not BMv2 JSON; give the file that p4c-bm2-ss wrote with -o") from None


def _unwrap(data: bytes) -> bytes:
    position = 0
    for _ in range(_MOST_FIELDS):
        tag, position = varint(data, position)
        value, position = varint(data, position)
        if tag & 7 == 2:
            if tag == _DEVICE_DATA:
                return data[position : position + value]
            position += value
        elif tag & 7 != 0:
            break
    raise ValueError("no device_data")
