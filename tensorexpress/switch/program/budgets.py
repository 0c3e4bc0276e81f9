"""What a program may cost. Each budget is far above what programs need; one that asks for more is refused.

A program comes from whoever controls the switch. Without bounds a few bytes of JSON could ask for all memory, or for
code that takes a packet minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorexpress.errors import ProgramError
from tensorexpress.units import format_size

if TYPE_CHECKING:
    from tensorexpress.switch.program.bmv2.values import ArrayInfo

#: Bytes that a switch takes altogether, in both of its processes, and the fewest that it can work with.
MEMORY_BYTES = 2**31
LEAST_MEMORY_BYTES = 2**29

#: Bytes of both processes before anything is loaded: Python, its libraries, gRPC.
BASE_BYTES = 2**28

#: Replicas of a multicast group or a clone session.
MOST_REPLICAS = 1024

#: Ports of a switch on which every number is a port; v1model has 511 numbers.
MOST_PORTS = 4096

#: Largest number of such a port; P4Runtime's have 32 bits. Frames to a larger one go to no port.
LARGEST_PORT = 2**32 - 1

#: Copies that one arriving frame and all copies of it may cause together, each round of one through the program counted
#: as a copy, and the bytes of these copies; v1model bounds neither.
MOST_COPIES = 2**12
MOST_COPY_BYTES = 2**24

#: Times that a packet may be resubmitted, recirculated or cloned, one after the other.
MOST_PASSES = 256

#: Packets that may wait to pass the program again, with their copies.
MOST_WAITING = 2**14

#: Copies that one event (an arrival, a departure) makes at once. Those beyond it are made later, in turns with other
#: frames: so many every 10 ms.
COPIES_AT_ONCE = 512
COPIES_IN_TURN = 64
TURN_PS = 10**10

#: Bytes of address space that a forwarding process may take beyond those that it begins with: programs, their state,
#: and packets that wait.
MOST_GROWTH_BYTES = 2**32

#: Keys whose rows all tables of a program together remember in Python, so that a key that repeats is found at once.
MOST_REMEMBERED = 2**17

#: Bytes of a BMv2 JSON document, and of a P4Info.
LARGEST_DOCUMENT = 2**22

#: Characters of a name, and of a text to log.
LONGEST_NAME = 512
LONGEST_TEXT = 4096

#: Bits of a field, a parameter or a register's cell; a number shifted further left has nothing left in it.
WIDEST_BITS = 4096

#: Bits of a number on its way, before a field takes it.
WIDEST_NUMBER_BITS = 2**16

#: Bytes of a header on the wire; no frame is longer.
LARGEST_HEADER = 2**16

#: Bytes of all headers that the deparser lists, one that is listed twice counted twice; a frame grows by no more.
LARGEST_EMITTED = 2**18

#: Elements of a header stack, and parts of a parser's select.
LARGEST_STACK = 256
LARGEST_SELECT = 64

#: Cells of all registers, counters and meters together, and the bits of all registers.
MOST_CELLS = 2**22
MOST_REGISTER_BITS = 2**28

#: Members of the type of a digest or of a register's cell, structs in structs counted out.
MOST_MEMBERS = 4096

#: Expressions within each other.
DEEPEST_EXPRESSION = 128

#: States of the parser, tables and conditions of a control, primitives of an action with conditions.
MOST_NODES = 4096

#: Characters of the code that a program becomes, and how often a variable is looked at to make that code.
LONGEST_SOURCE = 2**19
MOST_WORK = 2**18

#: Steps that all loops of a program together may take for one packet in one pass; BMv2 would go on for ever. They are
#: fewer where one step runs much code, so that they take a fraction of a second in any case.
MOST_STEPS = 2**16
MOST_LOOP_CHARACTERS = 2**27


def cells_bytes(kind: str, cells: int, bits: int = 0) -> int:
    """Return the memory of an array of cells, in the engine that takes more of it: objects of Python in lists.

    >>> cells_bytes("register", 1000, 32), cells_bytes("counter", 1000), cells_bytes("meter", 1000)
    (44000, 80000, 320000)
    """
    numbers = {"register": 1, "counter": 2}
    if kind not in numbers:
        return 320 * cells  # of a meter: its buckets, their times, its rates and its place
    return numbers[kind] * cells * (36 + 4 * max(1, -(-bits // 30)))


def state_bytes(arrays: Mapping[str, Mapping[str, ArrayInfo]]) -> int:
    """Return the memory of all registers, counters and meters of a program, by kind and name."""
    return sum(cells_bytes(kind, one.size, one.bits) for kind, named in arrays.items() for one in named.values())


def beyond(what: str, found: int, most: int, unit: str) -> ProgramError:
    """Return the refusal of a program that asks for more than a budget.

    >>> print(beyond("register 'a'", 10**9, 4096, "bits in a cell"))
    register 'a' has 1000000000 bits in a cell; accepted: up to 4096
    """
    return ProgramError(f"{what} has {_figure(found)} {unit}; accepted: up to {most}")


def _figure(found: int) -> str:
    # Python refuses to print numbers of many thousand digits, and nobody reads them.
    return str(found) if abs(found) < 2**64 else f"about 2^{found.bit_length()}"


class Work:
    """What is left of the work that may be spent on the code of one program."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MOST_WORK

    def spend(self, amount: int = 1) -> None:
        """Take note of some work; ProgramError when there was too much."""
        self.left -= amount
        if self.left < 0:
            raise ProgramError(
                f"the program takes more than {MOST_WORK} steps to compile; make it smaller: fewer tables that share "
                "long actions, smaller header stacks"
            )


@dataclass(frozen=True, slots=True)
class SwitchMemory:
    """The memory of a switch, and how its parts share it: eighths of all but the base."""

    total_bytes: int = MEMORY_BYTES

    @property
    def _eighth(self) -> int:
        return (self.total_bytes - BASE_BYTES) // 8

    @property
    def packets_bytes(self) -> int:
        """Bytes of packets that wait: two eighths."""
        return 2 * self._eighth

    @property
    def program_bytes(self) -> int:
        """Bytes of the registers, counters and meters of one program; one takes the place of another beside it."""
        return self._eighth

    def check_program(self, arrays: Mapping[str, Mapping[str, ArrayInfo]]) -> None:
        """Refuse a program whose state takes more."""
        size_bytes = state_bytes(arrays)
        if size_bytes > self.program_bytes:
            raise ProgramError(
                f"the program has {format_size(size_bytes)} of registers, counters and meters; accepted: up to "
                f"{format_size(self.program_bytes)} with a --memory of {format_size(self.total_bytes)}"
            )

    @property
    def entities_bytes(self) -> int:
        """Bytes of what controllers set in one program; there may be a saved one and one that is reconciled, too."""
        return self._eighth

    @property
    def control_bytes(self) -> int:
        """Bytes of requests under way, and of messages for clients."""
        return self._eighth


PLAIN_MEMORY = SwitchMemory()
