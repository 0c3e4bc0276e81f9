"""The checked build tests every access of machine code before it is made: proven on its IR, and tried with programs.

The programs that leave their memory are those of test_native_memory.py, without the verifier and without the proofs of
the code generator.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib import resources
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import llvmlite.binding as llvm
import pytest
from fuzz_programs import attempt, trials
from support.passes import PROGRAMS, document, ingress
from support.stf import programs
from support.thorough import rest
from test_native_memory import REFUSED

from tensorexpress.p4 import load as load_own
from tensorexpress.program_engines import CHECKED_VARIABLE, NATIVE
from tensorexpress.switch import VirtualSwitch
from tensorexpress.switch.packet import INGRESS_CLONE, NORMAL, RECIRCULATED, EndlessLoop, SwitchPacket
from tensorexpress.switch.program import native
from tensorexpress.switch.program.bmv2.reader import read_program
from tensorexpress.switch.program.codegen.generate import generate
from tensorexpress.switch.program.compiled import compile_program
from tensorexpress.switch.program.engines import make_pipeline
from tensorexpress.switch.program.native.checking import OutsideAccess
from tensorexpress.switch.program.native.code import IrFunction
from tensorexpress.switch.program.native.generate import generate_native
from tensorexpress.switch.program.native.layout import HeaderPlace
from tensorexpress.switch.program.native.pipeline import NativePipeline

DOCUMENTS = {name: document(name) for name in PROGRAMS} | {"tensorexpress": load_own().document}
STF = os.environ.get("TENSOREXPRESS_STF", "")
if STF:
    DOCUMENTS |= {path.stem: path.read_bytes() for path in programs(Path(STF))}

#: Functions that test accesses; they alone make some without a test.
CHECKER = set(re.findall(r"^define .*@(te_\w+)\(", (resources.files(native) / "checking.ll").read_text(), re.M))

#: Instructions that touch no memory, and intrinsics that touch none.
PURE = {"add", "sub", "mul", "udiv", "sdiv", "urem", "srem", "and", "or", "xor", "shl", "lshr", "ashr", "trunc"}
PURE |= {"zext", "sext", "select", "icmp", "phi", "br", "switch", "ret", "getelementptr", "ptrtoint"}
PURE_INTRINSICS = re.compile(r"llvm\.(bswap|umin|umax|smin|smax|uadd\.sat|usub\.sat|sadd\.sat|ssub\.sat)\.")


def checked_ir(document: bytes) -> str:
    program = read_program(document)
    return generate_native(program, generate(program), checked=True)[0]


def size_of(kind: str) -> int:
    return 8 if kind == "ptr" else -(-int(kind.removeprefix("i")) // 8)


def number(operand: Any) -> int:
    found = re.fullmatch(r"i64 (-?\d+)", str(operand))
    return int(found[1]) if found else -1


def unchecked(ir: str) -> list[str]:
    """Return all instructions of a module that touch memory without a test of their own address and size."""
    module = llvm.parse_assembly(ir)
    module.verify()
    defined = {function.name for function in module.functions if not function.is_declaration}
    assert defined >= CHECKER
    return [
        f"{function.name}: {line}"
        for function in module.functions
        if function.name in defined - CHECKER
        for block in function.blocks
        for line in _unchecked_in(block, defined)
    ]


def _unchecked_in(block: Any, defined: set[str]) -> Iterator[str]:
    #: Results of tests in this block: function, pointer as text, size operand.
    tests: dict[str, tuple[str, str, Any]] = {}

    def is_tested(pointer: Any, test: str, size: int) -> bool:
        kind, _, tested = tests.get(pointer.name, ("", "", None))
        return kind == test and number(tested) == size

    def covered(size: Any) -> set[str]:
        """Return the pointers behind which so many bytes are tested."""
        found: set[str] = set()
        while size.name in tests:
            kind, pointer, size = tests[size.name]
            if kind != "te_size":
                return set()
            found.add(pointer)
        return found

    loaded: set[str] = set()
    for instruction in block.instructions:
        opcode, operands = instruction.opcode, list(instruction.operands)
        match opcode:
            case "load":
                is_fine = is_tested(operands[0], "te_load", size_of(str(instruction.type)))
                loaded.add(instruction.name)
            case "store":
                is_fine = is_tested(operands[1], "te_store", size_of(str(operands[0].type)))
            case "call":
                callee = operands[-1].name
                if callee in ("te_load", "te_store", "te_size"):
                    tests[instruction.name] = callee, str(operands[0]), operands[1]
                if re.match(r"llvm\.mem(cpy|move|set)\.", callee):
                    pointers = operands[:1] if "memset" in callee else operands[:2]
                    is_fine = {str(pointer) for pointer in pointers} <= covered(operands[2])
                else:
                    # The only address that is called is that of Python, from a slot.
                    is_fine = callee in defined or bool(PURE_INTRINSICS.match(callee)) or callee in loaded
            case _:
                is_fine = opcode in PURE
        if not is_fine:
            yield str(instruction).strip()


@rest(but=4)
@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_access_of_a_checked_build_is_without_a_test(name: str) -> None:
    assert unchecked(checked_ir(DOCUMENTS[name])) == []


def test_an_access_without_a_test_is_found() -> None:
    ir = checked_ir(DOCUMENTS["switchboard"])
    tests = re.findall(r"(%te\d+) = call \w+ @te_\w+\(ptr (\S+),", ir)
    assert len(tests) > 100
    for name, pointer in tests[::20]:
        use = re.compile(rf"(ptr|i64) {name}\b(?!\.)")
        spoilt = use.sub(lambda found, to=pointer: f"ptr {to}" if found[1] == "ptr" else "i64 8", ir)
        assert len(unchecked(spoilt)) == 1, name
    smaller = re.sub(r"@te_load\((ptr \S+), i64 8,", r"@te_load(\1, i64 4,", ir, count=1)
    assert len(unchecked(smaller)) == 1


@pytest.fixture
def unproven(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Write code for whatever a program asks for: without the verifier, proofs and bounds."""
    monkeypatch.setattr("tensorexpress.switch.program.bmv2.reader.verify", lambda program: None)
    monkeypatch.setattr(IrFunction, "inside", lambda code, offset, size, base="%c": code._place(offset, base)[0])
    monkeypatch.setattr(IrFunction, "at_most", lambda code, value, most: code.bound(value, most))
    monkeypatch.setattr(HeaderPlace, "shape", property(lambda place: None))
    compile_program.cache_clear()
    yield
    compile_program.cache_clear()


WRONG = {
    "element": (b"AB", "512 bytes at 0x[0-9a-f]+ are outside of frame .* in @parse: .*memmove"),
    "varbit of an element": (
        b"AB" + bytes(5000),
        "3000 bytes at .* are outside of header 's1' .* in @parse: .*memmove",
    ),
} | {
    name: (bytes(129), r"\d+ bytes at .* are outside of output \(.*\) in @egress: .*memmove")
    for name in REFUSED
    if name not in ("element", "varbit of an element", "pushed stack")
}


def loaded(name: str) -> NativePipeline:
    program = compile_program(REFUSED[name][0](), NATIVE, optimised=False, checked=True)
    pipeline = make_pipeline(program)
    assert isinstance(pipeline, NativePipeline)
    return pipeline


@pytest.mark.usefixtures("unproven")
@pytest.mark.parametrize("name", WRONG)
def test_an_access_outside_is_reported_and_not_made(name: str) -> None:
    frame, message = WRONG[name]
    pipeline = loaded(name)
    for _ in range(2):
        with pytest.raises(OutsideAccess, match=message):
            pipeline.egress(ingress(pipeline, frame))
    assert pipeline.checks is not None
    assert pipeline.checks.count >= 2


@pytest.mark.usefixtures("unproven")
def test_a_switch_counts_packets_whose_accesses_are_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHECKED_VARIABLE, "1")
    switch = VirtualSwitch(REFUSED["element"][0](), engine=NATIVE)
    assert switch.run({0: [b"AB", b"AB"]}) == {}
    assert switch.statistics().failures == {"OutsideAccess": 2}


@rest(but=3)
@pytest.mark.parametrize("name", [*PROGRAMS, "tensorexpress"])
def test_egress_stays_inside_whatever_the_state_of_a_packet_holds(name: str) -> None:
    """Sizes of varbits, counts of stacks and the start of the payload are numbers in memory, and nothing is trusted."""
    pipeline = make_pipeline(compile_program(DOCUMENTS[name], NATIVE, optimised=False, checked=True))
    assert isinstance(pipeline, NativePipeline)
    random = Random(name)
    size = pipeline.layout.state[1] - pipeline.layout.state[0]
    for number in range(200):
        packet = SwitchPacket(random.randbytes(random.choice((0, 1, 60, 1500))), 1, number)
        some = bytes(random.choice((0, 1, 1, 255, 128, number % 256)) for _ in range(64))
        packet.state = (b"", (some * (size // 64 + 1))[number % 64 :][:size].ljust(size, b"\1"))
        packet.instance_type = random.choice((NORMAL, INGRESS_CLONE, RECIRCULATED))
        with suppress(EndlessLoop):
            pipeline.egress(packet)
    assert pipeline.checks is not None
    assert pipeline.checks.found() is None


def test_a_checked_build_is_kept_apart_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CHECKED_VARIABLE, raising=False)
    layouts = []
    for value in ("", "1"):
        monkeypatch.setenv(CHECKED_VARIABLE, value)
        compile_program.cache_clear()
        program = compile_program(DOCUMENTS["switchboard"], NATIVE, optimised=False)
        assert program.native is not None
        layouts.append(program.native.layout.checks)
    compile_program.cache_clear()
    assert layouts[0] is None
    assert layouts[1] is not None


@rest(but=1)
@pytest.mark.parametrize("first", range(0, 60, 10))
def test_changed_programs_stay_inside_and_do_the_same_in_both_engines(first: int) -> None:
    """A bounded run; `python tests/fuzz_programs.py --pairs 1000000` is the long one."""
    seen: Counter[str] = Counter()
    for number, text in islice(trials(seed=3), first, first + 10):
        counts, faults = attempt(text, number, packets=60)
        assert faults == [], f"program {number} of seed 3"
        seen += counts
    assert seen["programs that ran"] > 2
    assert seen["pairs"] > 100


@rest()
@pytest.mark.skipif(bool(os.environ.get(CHECKED_VARIABLE)), reason="this run tests the checked build already")
def test_packets_of_all_programs_stay_inside_in_the_checked_build() -> None:
    here = Path(__file__).parent
    others = ("native", "native_loop", "hostile_programs", "program_verifier", "stf")
    files = [*sorted(here.glob("test_pipeline_*.py")), *(here / f"test_{name}.py" for name in others)]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, files)]
    environment = os.environ | {CHECKED_VARIABLE: "1"}
    ended = subprocess.run(command, cwd=here.parent, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-4000:]
