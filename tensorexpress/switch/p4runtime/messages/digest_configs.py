"""How digests are gathered into lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorexpress.p4runtime_messages import p4runtime_pb2
from tensorexpress.switch.p4runtime.status import invalid


@dataclass(frozen=True)
class DigestConfig:
    """How digests are gathered into lists: waits in nanoseconds, and messages in a list (0: no limit)."""

    max_timeout_ns: int = 0
    max_list_size: int = 0
    ack_timeout_ns: int = 0


def read_digest(name: str, message: Any) -> DigestConfig:
    """Return how a digest is to be gathered; without a config every message is sent at once."""
    config = message.config
    if min(config.max_timeout_ns, config.max_list_size, config.ack_timeout_ns) < 0:
        raise invalid(f"{name}: a digest config below zero; times and sizes are 0 or more")
    return DigestConfig(config.max_timeout_ns, config.max_list_size, config.ack_timeout_ns)


def write_digest(id: int, config: DigestConfig) -> Any:
    """Return the DigestEntry of a digest."""
    message = p4runtime_pb2.DigestEntry(digest_id=id)
    message.config.max_timeout_ns = config.max_timeout_ns
    message.config.max_list_size = config.max_list_size
    message.config.ack_timeout_ns = config.ack_timeout_ns
    return message
