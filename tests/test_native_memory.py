"""Native code stays inside its memory: every access is proven when it is written, whoever wrote the program.

The programs here are ones that the verifier refuses (test_program_verifier.py). It is taken away, so that the code
generator is the only one to refuse them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiny_programs import extract, field, named, number, program, state, step, text

from tensorexpress.errors import ProgramError
from tensorexpress.program_engines import AUTO, NATIVE
from tensorexpress.switch.program.compiled import compile_program
from tensorexpress.switch.program.native.code import IrFunction, IrModule
from tensorexpress.switch.program.native.layout import SLOT_NAMES, SLOTS
from tensorexpress.switch.program.native.regions import Extent, Region, Regions, excess
from tensorexpress.switch.program.native.unsupported import Unsupported

#: Two types of 201 bytes at most: the varbit of one is small, of the other large.
FIELDS = 4
SMALL = ([["v", "*"], *([f"a{each}", 256] for each in range(FIELDS))], 32 * FIELDS + 1)
LARGE = ([["v", "*"], *([f"b{each}", 8] for each in range(FIELDS))], 32 * FIELDS + 1)
BODY = 31 * FIELDS + 1


def copying(op: str, kind: str, into: str, source: str, **more: Any) -> bytes:
    """Return a program that copies a header with a large varbit over one with a small varbit."""
    return text(
        program(
            {"small": SMALL, "large": LARGE},
            {"hs": "small", "hl": "large"},
            [state("start", [extract("hl", bits=number(8 * BODY))])],
            ingress=[step(op, named(kind, into), named(kind, source))],
            emitted=["hs"] * 3,
            **more,
        )
    )


def unions() -> dict[str, Any]:
    return {
        "header_union_types": [{"name": "u", "id": 0, "headers": [["m", "small"]]}],
        "header_unions": [
            {"name": name, "id": at, "union_type": "u", "header_ids": [2 + at]} for at, name in enumerate(("us", "ul"))
        ],
    }


def mixed_stack() -> bytes:
    """Return a program whose stack has a header of one byte and one of 512 bytes."""
    return text(
        program(
            {"short": ([["a", 8]], None), "long": ([["b", 4096]], None)},
            {"s0": "short", "s1": "long"},
            [state("start", [extract("st", "stack"), extract("st", "stack")])],
            emitted=["s0", "s1"],
            stacks={"st": ("short", ["s0", "s1"])},
        )
    )


def varbit_stack() -> bytes:
    """Return a program whose stack has a large varbit and a small one, and which writes to a register behind them."""
    return text(
        program(
            {"much": ([["a", 8], ["v", "*"]], 4001), "little": ([["a", 8], ["v", "*"]], 2), "next": ([["v", "*"]], 8)},
            {"s0": "much", "s1": "little", "hx": "next", "hy": "next"},
            [
                state(
                    "start",
                    [
                        extract("st", "stack", number(0)),
                        *(extract(name, bits=number(0)) for name in ("hx", "hy")),
                        extract("st", "stack", number(24000)),
                    ],
                )
            ],
            ingress=[
                step("assign_VL", field("hy", "v"), field("hx", "v")),
                step("register_write", named("register_array", "r"), number(0), number(0x41)),
            ],
            emitted=["s0", "s1"],
            stacks={"st": ("much", ["s0", "s1"])},
            register_arrays=[{"name": "r", "id": 0, "size": 16, "bitwidth": 64}],
        )
    )


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "header": (lambda: copying("assign_header", "header", "hs", "hl"), "header 'hs' takes the contents of 'hl'"),
    "copied header": (lambda: copying("copy_header", "header", "hs", "hl"), "header 'hs' takes the contents of 'hl'"),
    "stack": (
        lambda: copying(
            *("assign_header_stack", "header_stack", "ss", "sl"),
            stacks={"ss": ("small", ["hs"]), "sl": ("large", ["hl"])},
        ),
        "header 'hs' takes the contents of 'hl'",
    ),
    "pushed stack": (
        lambda: text(
            program(
                {"small": SMALL, "large": LARGE},
                {"hs": "small", "hl": "large"},
                [state("start", [extract("hl", bits=number(8 * BODY))])],
                ingress=[step("push", named("header_stack", "mixed"), number(1))],
                emitted=["hs", "hl"],
                stacks={"mixed": ("small", ["hs", "hl"])},
            )
        ),
        "header 'hl' takes the contents of 'hs'",
    ),
    "union": (lambda: copying("assign_union", "header_union", "us", "ul", **unions()), "header 'hs' takes"),
    "element": (mixed_stack, "headers 's0' and 's1' of one stack are of different types"),
    "varbit of an element": (varbit_stack, "headers 's0' and 's1' of one stack are of different types"),
}


@pytest.fixture
def unverified(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let programs pass that the verifier refuses."""
    monkeypatch.setattr("tensorexpress.switch.program.bmv2.reader.verify", lambda program: None)
    compile_program.cache_clear()
    yield
    compile_program.cache_clear()


@pytest.mark.usefixtures("unverified")
@pytest.mark.parametrize("name", REFUSED)
def test_no_code_is_made_whose_accesses_may_leave_their_memory(name: str) -> None:
    make, why = REFUSED[name]
    with pytest.raises(ProgramError, match=why):
        compile_program(make(), NATIVE)
    assert compile_program(make(), AUTO).native is None


@given(st.data())
def test_an_access_is_written_exactly_where_it_stays_inside_its_region(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=5))
    offset, size = data.draw(st.integers(-3, 150)), data.draw(st.sampled_from((1, 2, 8, 16, 24)))
    regions, start = Regions(), 0
    for count, each in enumerate(sizes):
        regions.add(f"region {count}", start, each)
        start += each
    code = IrFunction(IrModule(regions), "define void @f(ptr %c)")
    ends = [sum(sizes[: count + 1]) for count in range(len(sizes))]
    is_inside = any(end - each <= offset and offset + size <= end for end, each in zip(ends, sizes, strict=True))
    try:
        if data.draw(st.booleans()):
            code.load(offset, 8 * size)
        else:
            code.store(0, offset, 8 * size)
        written = True
    except Unsupported:
        written = False
    assert written == is_inside


@given(st.randoms(use_true_random=False))
def test_an_extent_that_is_proven_holds_for_all_values(random: Random) -> None:
    names = ["%a", "%b", "%c"]
    bounds = {"%a": Extent(random.randrange(9)), "%b": Extent(random.randrange(4), {"%c": random.randrange(2)})}

    def draw() -> Extent:
        return Extent(random.randrange(12), {name: random.randrange(3) for name in names if random.random() < 0.6})

    end, size = draw(), draw()
    proven = excess(end, size, bounds)
    for _ in range(20):
        values = {"%c": random.randrange(6), "%a": random.randint(0, bounds["%a"].constant)}
        values["%b"] = random.randint(0, bounds["%b"].constant + bounds["%b"].values["%c"] * values["%c"])
        of = [each.constant + sum(values[name] * count for name, count in each.values.items()) for each in (end, size)]
        assert proven is None or of[0] - of[1] <= proven


def test_memory_that_nothing_is_known_of_is_not_used() -> None:
    slots = Regions()
    slots.add("slots", 0, 8 * len(SLOT_NAMES))
    code = IrFunction(IrModule(slots), "define void @f(ptr %c)")
    room, frame = code.room(16), code.pointer(SLOTS["frame"], Region("frame", Extent()))
    for use in (
        lambda: code.load(0, base="%p"),
        lambda: code.load(0, 8, frame),
        lambda: code.copy(room, code.element("%v", frame, Region("frame", Extent(8))), 9),
        lambda: code.load("%v", base=room),
        lambda: code.copy(room, room, "%v"),
        lambda: code.copy(room, code.room(8), 16),
        lambda: code.clear(0, 8 * len(SLOT_NAMES) + 1),
        lambda: code.element("%v", room, Region("element", Extent(8))) and code.load(8, base="%v3"),
    ):
        with pytest.raises(Unsupported):
            use()
    code.copy(room, code.room(16), code.at_most("%v", 16))
