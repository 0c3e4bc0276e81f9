"""The checked build: machine code that tests every access against the region that it may use before it makes it.

`checked_ir` rewrites the IR of a program and of runtime.ll, line by line, so that no access is left out whoever wrote
it; checking.ll has the test. `AccessChecks` tells a loaded program where the regions are, and reads what was outside.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from tensorexpress.errors import ProgramError
from tensorexpress.program_engines import CHECKED_VARIABLE
from tensorexpress.switch.program.native.layout import SLOTS
from tensorexpress.switch.program.native.memory import Block
from tensorexpress.switch.program.native.unsupported import Unsupported

#: Symbols of a checked program that `AccessChecks` reads and writes.
CHECKED_SYMBOLS = ("te_extra", "te_count", "te_found", "te_first")

#: Regions whose place Python or the stage knows, violations that are noted, and bytes of the widest number.
_MOST_EXTRA, _MOST_NOTED, _WIDEST = 2**16, 64, 2048

#: A region that is not known when the program is written: any that has the bytes.
ANY = -1

_MARK = r"(?: ; in (?P<regions>[-\d ]+))?"
_LOAD = re.compile(
    rf"  (?P<name>%[\w.]+) = load (?P<type>i\d+|ptr), ptr (?P<at>[%@][\w.]+)(?P<align>, align \d+)?{_MARK}"
)
_STORE = re.compile(rf"  store (?P<type>i\d+|ptr) (?P<value>\S+), ptr (?P<at>[%@][\w.]+)(?P<align>, align \d+)?{_MARK}")
_BULK = re.compile(
    r"  call void @llvm\.(?P<what>memmove|memcpy|memset)\.(?P<kind>[\w.]+)\(ptr (?P<into>[%@][\w.]+), "
    rf"(?P<source>ptr [%@][\w.]+|i8 0), i64 (?P<size>\S+), i1 false\){_MARK}"
)
_IS_ACCESS = re.compile(r"\b(load|store|cmpxchg|atomicrmw|va_arg|fence)\b|call.*@llvm\.mem|\bcall.*@llvm\.masked")
_DEFINE = re.compile(r"define .*?(@[\w.]+)\(")


class OutsideAccess(Exception):
    """Raised by a checked program that would have used memory outside of the region meant; it did not."""


@dataclass(frozen=True)
class CheckedLayout:
    """Regions of a checked program by number, and the accesses that it tests, each as function and instruction."""

    #: Regions of the module itself, whose places are in its code, and all others.
    static: tuple[str, ...]
    extra: tuple[str, ...]
    #: From where to where pieces of the context are.
    context: Mapping[str, tuple[int, int]]
    #: Pieces of the context that are made of others.
    made_of_others: frozenset[str]
    sites: tuple[str, ...]


class RegionNumbers:
    """The numbers by which IR refers to regions: names of a program do not stand in its code."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, name: str, rooms: Mapping[str, int]) -> int:
        """Return the number of a region: below -1 if it is memory of the module itself."""
        return -2 - list(rooms).index(name) if name in rooms else self.numbers.setdefault(name, len(self.numbers))


def checked_ir(
    text: str,
    regions: RegionNumbers,
    rooms: Mapping[str, int],
    sites: list[str],
    room_bytes: Mapping[str, int],
) -> str:
    """Return IR in which every access is tested first; the sites of these tests are added to those that there are.

    `rooms` are the memory of the module itself, `room_bytes` the sizes of output and scratch beside the frame's.
    """
    lines = []
    function = ""
    for line in text.splitlines():
        written = line
        if found := _DEFINE.match(line):
            function = found[1]
            written = line.replace("ptr noalias %c", "ptr %c")
            for stage in ("ingress", "egress"):
                written = written.replace(f"define i64 @{stage}(", f"define internal i64 @stage_of_{stage}(")
        code = line.split(";", 1)[0]
        if function and _IS_ACCESS.search(code):
            sites.append(f"{function}: {code.strip()}")
            lines += _tested(line, len(sites) - 1)
        else:
            lines.append(written)
        if line.startswith("}"):
            function = ""
    own = ", ".join(
        f"[3 x i64] [i64 ptrtoint (ptr {name} to i64), "
        f"i64 ptrtoint (ptr getelementptr (i8, ptr {name}, i64 {size}) to i64), i64 0]"
        for name, size in rooms.items()
    )
    lines.append(f"@te_static = internal constant [{len(rooms)} x [3 x i64]] [{own}], align 16")
    words = {
        "EXTRA": _MOST_EXTRA,
        "NOTED": _MOST_NOTED,
        "WIDEST": _WIDEST,
        "STATIC": len(rooms),
        **{name.upper(): regions.number(name, {}) for name in ("frame", "output", "scratch")},
        **{f"{name.upper()}_SLOT": SLOTS[name] for name in room_bytes},
        **{f"{name.upper()}_BYTES": size for name, size in room_bytes.items()},
    }
    checker = resources.files(__package__).joinpath("checking.ll").read_text()
    return "\n".join([*lines, re.sub(rf"\b({'|'.join(words)})\b", lambda found: str(words[found[0]]), checker)])


def _tested(line: str, site: int) -> list[str]:
    """Return an access with its test in front; there is no other way to write one."""
    if found := _LOAD.fullmatch(line):
        (region,) = _regions(found["regions"], 1)
        test = (
            f"  %te{site} = call ptr @te_load(ptr {found['at']}, i64 {_size(found['type'])}, i64 {region}, i64 {site})"
        )
        return [test, f"  {found['name']} = load {found['type']}, ptr %te{site}{found['align'] or ''}"]
    if found := _STORE.fullmatch(line):
        (region,) = _regions(found["regions"], 1)
        test = (
            f"  %te{site} = call ptr @te_store(ptr {found['at']}, i64 {_size(found['type'])}, i64 {region}, i64 {site})"
        )
        return [test, f"  store {found['type']} {found['value']}, ptr %te{site}{found['align'] or ''}"]
    if found := _BULK.fullmatch(line):
        into, source = _regions(found["regions"], 2)
        tests = [f"  %te{site} = call i64 @te_size(ptr {found['into']}, i64 {found['size']}, i64 {into}, i64 {site})"]
        size = f"%te{site}"
        if found["what"] != "memset":
            size = f"%te{site}.source"
            tests.append(f"  {size} = call i64 @te_size({found['source']}, i64 %te{site}, i64 {source}, i64 {site})")
        given = f"ptr {found['into']}, {found['source']}, i64 {size}, i1 false"
        return [*tests, f"  call void @llvm.{found['what']}.{found['kind']}({given})"]
    raise Unsupported(f"the checked build has no test for {line.strip()!r}")


def _regions(marked: str | None, count: int) -> list[int]:
    return [int(number) for number in marked.split()] if marked else [ANY] * count


def _size(kind: str) -> int:
    size = 8 if kind == "ptr" else -(-int(kind[1:]) // 8)
    if size > _WIDEST:
        raise Unsupported(f"the checked build has no test for numbers of {size} bytes")
    return size


class AccessChecks:
    """The regions of one loaded program. They outlast its machine code, which may be swapped."""

    def __init__(self, layout: CheckedLayout, context: int):
        self._layout = layout
        self._places: dict[str, tuple[int, int]] = {
            name: (context + start, end - start) for name, (start, end) in layout.context.items()
        }
        self._numbers = {name: number for number, name in enumerate(layout.extra)}
        self._symbols: dict[str, int] = {}
        #: Accesses outside since the program was loaded.
        self.count = 0

    def use(self, symbols: Mapping[str, int]) -> None:
        """Let machine code that was just loaded have all regions."""
        self._symbols = dict(symbols)
        for name, place in self._places.items():
            self._write(name, *place)

    def note(self, name: str, block: Block) -> None:
        """Take note of the block that a region is in from now on."""
        self._places[name] = block.address, len(block.data)
        self._write(name, *self._places[name])

    def _write(self, name: str, address: int, size: int) -> None:
        number = self._numbers.setdefault(name, len(self._numbers))
        if number >= _MOST_EXTRA:
            raise ProgramError(f"a checked program has at most {_MOST_EXTRA} regions; unset {CHECKED_VARIABLE}")
        words = (ctypes.c_uint64 * 3).from_address(self._symbols["te_extra"] + 24 * number)
        words[:] = [address, address + size, int(name in self._layout.made_of_others)]
        ctypes.c_uint64.from_address(self._symbols["te_count"]).value = len(self._numbers)

    def found(self) -> str | None:
        """Return the first access outside since the last call, as a line, or None; forget all."""
        found = ctypes.c_uint64.from_address(self._symbols["te_found"])
        if not found.value:
            return None
        address, size, region, site = (ctypes.c_int64 * 4).from_address(self._symbols["te_first"])
        self.count += found.value
        more = f" (and {found.value - 1} more)" if found.value > 1 else ""
        found.value = 0
        what = f"{size % 2**64} bytes at {address % 2**64:#x} are outside of {self._name(region)}"
        return f"{what} in {self._layout.sites[site]}{more}"

    def _name(self, region: int) -> str:
        if region == ANY:
            return "all regions"
        if region < ANY:
            return f"{self._layout.static[-2 - region]}, memory of the program itself"
        start, end, _ = (ctypes.c_uint64 * 3).from_address(self._symbols["te_extra"] + 24 * region)
        return f"{list(self._numbers)[region]} ({end - start} bytes at {start:#x})"
