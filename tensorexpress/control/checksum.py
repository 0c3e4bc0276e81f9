"""What checksum.p4 has for a controller: packets with a bad checksum are counted. It wants no entries."""

from __future__ import annotations

from tensorexpress.control.controls import P4Control
from tensorexpress.p4 import define

CONTROL = P4Control(exceptions={define.BAD_CHECKSUM: "bad checksum"})
