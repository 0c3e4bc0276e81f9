"""Memory of native code with a page behind every block, and behind every frame, that nobody may touch.

As a program it runs random frames through programs in such memory; a write or a read beyond an end is its own end.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from contextlib import suppress
from typing import Any

from support.random_tables import RandomTables
from tensorexpress.program_engines import NATIVE
from tensorexpress.switch.packet import DROP_PORT, EndlessLoop, SwitchPacket
from tensorexpress.switch.program.bmv2.reader import read_program
from tensorexpress.switch.program.compiled import compile_program
from tensorexpress.switch.program.native import memory, pipeline

PROT_NONE = 0

_libc = ctypes.CDLL(None, use_errno=True)


class GuardedBlock:
    """A block whose last byte is the last one before a page that nobody may touch."""

    def __init__(self, size: int):
        size = max(size, 8)
        whole = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self._pages = mmap.mmap(-1, whole + mmap.PAGESIZE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        assert _libc.mprotect(ctypes.c_void_p(start + whole), mmap.PAGESIZE, PROT_NONE) == 0
        self.address = start + whole - size
        self._held = (ctypes.c_char * size).from_address(self.address)
        self.data = memoryview(self._held).cast("B")

    def grown(self, size: int) -> GuardedBlock:
        larger = GuardedBlock(size)
        larger.data[: len(self.data)] = self.data
        return larger


class GuardedPipeline(pipeline.NativePipeline):
    """A pipeline that reads frames which end at such a page, too."""

    def __init__(self, program: Any):
        super().__init__(program)
        self._run_ingress, self._run_egress = self._guarded(self._run_ingress), self._guarded(self._run_egress)

    @staticmethod
    def _guarded(run: Any) -> Any:
        def call(context: int, frame: bytes, length: int) -> int:
            block = GuardedBlock(max(length, 8))
            block.data[len(block.data) - length :] = frame
            at = ctypes.cast(block.address + len(block.data) - length, ctypes.c_char_p)
            result: int = run(context, at, length)
            return result

        return call


def main(paths: list[str]) -> None:
    for module in (memory, pipeline):
        module.Block = GuardedBlock  # type: ignore[attr-defined]
    for path in paths:
        with open(path, "rb") as file:
            document = file.read()
        program = compile_program(document, NATIVE)
        assert program.native is not None
        loaded = GuardedPipeline(program)
        draw = RandomTables(read_program(document), seed=3)
        for operation in (*program.entries, *draw.first()):
            loaded.apply(operation)
        for number in range(400):
            loaded.apply(draw.operation())
            packet = SwitchPacket(draw.frame([]), number % 4, number)
            with suppress(EndlessLoop):
                loaded.ingress(packet)
                if packet.egress_spec != DROP_PORT or packet.mcast_grp:
                    loaded.egress(packet)
    print("nothing was touched")


if __name__ == "__main__":
    main(sys.argv[1:])
