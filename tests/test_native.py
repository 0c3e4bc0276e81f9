"""Programs as machine code: the same as in Python packet for packet, and safe whatever frames and programs are."""

from __future__ import annotations

import gc
import json
import logging
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.deployed import PROGRAM, framed
from support.passes import BUILD, PROGRAMS, document
from support.random_tables import RandomTables
from support.summing import SummingNetwork, random_sums, star_plan
from support.thorough import examples, one_in, rest
from support.twins import TwinPipelines, both, twins_in_switches
from test_hostile_programs import endless_action, endless_parser
from test_pipeline_programs import changed, damage

from tensorexpress import tied, user_cache
from tensorexpress.compiled_functions import Library
from tensorexpress.errors import ProgramError
from tensorexpress.p4 import BUILD as OWN_BUILD
from tensorexpress.program_engines import AUTO, NATIVE, PYTHON
from tensorexpress.switch import compiling
from tensorexpress.switch.compiling import Compiled, compile_beside
from tensorexpress.switch.packet import DROP_PORT, EndlessLoop, SwitchPacket
from tensorexpress.switch.program.bmv2.reader import read_program
from tensorexpress.switch.program.compiled import compile_program
from tensorexpress.switch.program.engines import make_pipeline
from tensorexpress.switch.program.pipeline import Pipeline
from tensorexpress.switch.replay import VirtualSwitch

DOCUMENTS = {**{name: document(name) for name in PROGRAMS}, "tensorexpress": PROGRAM.document}


def pass_all(pipeline: Pipeline, frame: bytes, port: int, now_us: int) -> None:
    """Take a frame through both stages, unless ingress drops it, again as often as it asks for that."""
    packet = SwitchPacket(frame, port, now_us)
    with suppress(EndlessLoop):
        for _ in range(4):
            pipeline.ingress(packet)
            if packet.resubmit_fields < 0:
                break
            again = SwitchPacket(frame, 0, now_us)
            again.preserved = pipeline.preserve(packet, packet.resubmit_fields)
            packet = again
        else:
            return
        if packet.egress_spec != DROP_PORT or packet.mcast_grp:
            packet.egress_port, packet.egress_us = packet.egress_spec, now_us + 5
            pipeline.egress(packet)


@rest(but=4)
@one_in(2)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", DOCUMENTS)
def test_random_frames_through_random_tables_are_the_same_in_both_engines(name: str, seed: int) -> None:
    twins = TwinPipelines(DOCUMENTS[name])
    draw = RandomTables(read_program(DOCUMENTS[name]), seed)
    for operation in draw.first():
        twins.apply(operation)
    seeds = [framed(bytes(60)), framed(bytes(1100))] if name == "tensorexpress" else [bytes(range(64)), bytes(64)]
    for number in range(150):
        twins.apply(draw.operation())
        for port in range(2):
            pass_all(twins, draw.frame(seeds), port, 1000 * number)


def test_a_frame_cut_anywhere_is_the_same_in_both_engines() -> None:
    for name in DOCUMENTS:
        twins = TwinPipelines(DOCUMENTS[name])
        for size in range(0, 200, 3):
            pass_all(twins, framed(bytes(200))[:size], 1, 0)
            pass_all(twins, bytes([255] * size), 2, 0)


@rest(but=1)
def test_sums_in_switches_are_the_same_in_both_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    native = compile_program(PROGRAM.document, NATIVE)
    monkeypatch.setattr("support.summing.compiled", lambda document: native)
    with twins_in_switches():
        network = SummingNetwork(star_plan(3, jobs=2))
        left = [network.send(host, frame) for host, frame in random_sums(Random(5), network, 250)]
    assert any(left)
    assert not any(switch.statistics().failures for switch in network.switches.values())


@pytest.mark.parametrize("spoil", [endless_parser, endless_action])
@pytest.mark.parametrize("name", ["switchboard", "stateful"])
def test_loops_without_end_are_ended_after_as_many_steps_in_both_engines(
    name: str, spoil: Callable[[Any], None]
) -> None:
    twins = TwinPipelines(changed(name, spoil))
    with pytest.raises(EndlessLoop):
        twins.ingress(SwitchPacket(bytes(64), 3, 0))


@settings(max_examples=examples(40))
@given(
    st.sampled_from(PROGRAMS),
    st.lists(st.integers(0, 1000), min_size=1, max_size=9),
    st.sampled_from([None, 0, -1, "x", "0xff", "0xfffffffffffffffffffffff", [], {}, True, 4000, 10**12, ["a"]]),
)
def test_a_damaged_document_is_the_same_in_both_engines(name: str, turns: list[int], junk: Any) -> None:
    with suppress(ProgramError):
        twins = both(changed(name, lambda value: damage(value, turns, junk)))
        for frame in (b"", bytes(64), bytes(range(64)), bytes([255] * 64)):
            pass_all(twins, frame, 1, 0)


def test_nothing_beyond_any_block_is_read_or_written() -> None:
    paths = [str(BUILD / f"{name}.json") for name in PROGRAMS]
    command = [sys.executable, "-m", "support.guarded", *paths, str(OWN_BUILD / "tensorexpress.json")]
    ended = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "nothing was touched\n"), ended.stderr


# What cannot be native code.


def unsupported() -> bytes:
    """Return a program whose headers take more than native code has room for."""
    value = json.loads(document("switchboard"))
    fields = [[f"x{number}", 4000, False] for number in range(120)]
    value["header_types"].append({"name": "wide_t", "id": 99, "fields": fields})
    for number in range(5):
        header = {"name": f"wide{number}", "id": 100 + number, "header_type": "wide_t", "metadata": False}
        value["headers"].append(header)
    return json.dumps(value).encode()


WHY = "its headers, metadata and tables take more than 262144 bytes for a packet"


def test_what_cannot_be_native_runs_in_python_and_one_line_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        left = [VirtualSwitch(unsupported(), engine=engine).run({3: [bytes(64)]}) for engine in (AUTO, PYTHON)]
    assert left[0] == left[1]
    assert caplog.messages == [f"the program runs in Python, not in native code: {WHY}"]


def number_for(varbit: list[str]) -> Callable[[Any], None]:
    """Have a number stand where the program has a varbit."""

    def spoil(node: Any) -> None:
        if isinstance(node, dict) and node.get("value") == varbit:
            node["value"] = ["command", "first"]
        for part in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            spoil(part)

    return spoil


@pytest.mark.parametrize("varbit", [["one", "content"], ["two", "content"], ["aside_0", "field"], ["tmp_1", "field"]])
def test_no_engine_mixes_numbers_with_varbits(varbit: list[str]) -> None:
    with pytest.raises(ProgramError, match=r"has a (number|varbit of 128 bits) (and|as) "):
        VirtualSwitch(changed("varbits", number_for(varbit)), engine=NATIVE)


def test_who_asks_for_native_code_is_told_where_there_is_none() -> None:
    with pytest.raises(ProgramError) as refused:
        VirtualSwitch(unsupported(), engine=NATIVE)
    assert str(refused.value) == f"the program cannot run as native code: {WHY}; choose the engine auto or python"


def test_an_engine_that_is_not_there_is_refused() -> None:
    with pytest.raises(ProgramError, match="unknown engine 'nativ'; did you mean 'native'"):
        VirtualSwitch(document("switchboard"), engine="nativ")


def test_another_process_compiles_to_native_code_and_this_one_runs_it() -> None:
    compiled = compile_beside(document("switchboard"), NATIVE)
    program = pickle.loads(compiled.program)
    assert program.native is not None
    twins = TwinPipelines(program)
    for entry in compiled.entries:
        twins.apply(entry)
    pass_all(twins, bytes(64), 1, 0)


@pytest.mark.parametrize("name", ["matching", "stateful"])
def test_a_program_that_is_taken_apart_leaves_nothing_to_the_garbage_collector(name: str) -> None:
    program = compile_program(document(name), NATIVE)
    draw = RandomTables(read_program(document(name)), seed=1)
    gc.disable()  # as the forwarding process has it
    try:
        pipeline = make_pipeline(program)
        for operation in (*program.entries, *draw.first(), *(draw.operation() for _ in range(50))):
            pipeline.apply(operation)
        pass_all(pipeline, bytes(64), 1, 0)
        left = [weakref.ref(pipeline), *map(weakref.ref, (*pipeline._tables.values(), *pipeline._profiles.values()))]
        for _ in pipeline.dismantle():
            pass
        del pipeline
        assert [found() for found in left] == [None] * len(left)
    finally:
        gc.enable()


# Machine code that is kept.


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return user_cache.cache_directory("native")


def made(name: str = "a.o") -> bytes:
    """Return what a cache has under a name, "made" where it is made now."""
    return user_cache.cached("native", name, lambda: b"made")


def test_what_was_made_is_kept_for_its_user_alone(kept: Path) -> None:
    assert user_cache.cached("native", "a.o", lambda: b"code") == b"code"
    assert made() == b"code"
    assert made("b.o") == b"made"
    assert [oct(path.stat().st_mode & 0o777) for path in (kept, kept / "a.o")] == ["0o700", "0o600"]


def test_what_others_could_have_written_is_not_executed(kept: Path) -> None:
    user_cache.cached("native", "a.o", lambda: b"code")
    (kept / "a.o").chmod(0o620)
    assert made() == b"made"
    user_cache.cached("native", "b.o", lambda: b"code")
    kept.chmod(0o770)
    assert made("b.o") == b"made"
    kept.chmod(0o700)
    assert made("b.o") == b"code"


def test_a_link_or_a_damaged_file_is_made_anew(kept: Path) -> None:
    user_cache.cached("native", "a.o", lambda: b"code")
    (kept / "b.o").symlink_to(kept / "a.o")
    assert made("b.o") == b"made"
    for content in (b"", (kept / "a.o").read_bytes()[:-1], bytes(64)):
        (kept / "a.o").write_bytes(content)
        assert made() == b"made"
        assert user_cache.cached("native", "a.o", lambda: b"again") == b"made"


def test_a_program_is_compiled_once_for_an_engine_until_what_it_is_made_from_changes(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []

    def start(*arguments: Any, **options: Any) -> Any:
        started.append(arguments)
        return tied.start(*arguments, **options)

    monkeypatch.setattr(compiling, "tied", SimpleNamespace(start=start))

    def compiled(name: str, engine: str) -> Compiled:
        """Return what a process that starts now would have."""
        monkeypatch.setattr(compiling, "_kept", {})
        return compile_beside(document(name), engine)

    first = compiled("switchboard", PYTHON)
    assert compiled("switchboard", PYTHON) == first
    assert len(started) == 1
    assert pickle.loads(compiled("switchboard", NATIVE).program).native is not None
    assert compiled("matching", PYTHON) != first
    assert len(started) == 3
    monkeypatch.setattr(compiling, "_sources", lambda: b"changed")
    compiled("switchboard", PYTHON)
    assert len(started) == 4


def test_a_program_that_is_refused_is_not_kept(kept: Path) -> None:
    for _ in range(2):
        with pytest.raises(ProgramError, match="the program cannot run as native code"):
            compile_beside(unsupported(), NATIVE)
    assert not list(user_cache.cache_directory("programs").iterdir())


def test_few_files_are_kept(kept: Path) -> None:
    for number in range(70):
        user_cache.cached("native", f"{number}.o", lambda: b"code")
    assert len(list(kept.iterdir())) == 64


def test_without_a_place_to_keep_it_code_is_made_every_time(kept: Path) -> None:
    kept.parent.mkdir()
    kept.write_text("not a directory")
    assert [made(), made()] == [b"made", b"made"]


def test_users_are_told_of_a_compilation_and_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "doubling.py"
    source.write_text("def doubled(number: int) -> int:\n    return 2 * number\n")
    monkeypatch.syspath_prepend(tmp_path)
    library = Library("doubling", {"doubled": 1}, ("doubling",), part="an example")
    with caplog.at_level(logging.WARNING, "tensorexpress.compiled_functions"):
        for _ in range(2):
            (doubled,) = library.functions()
            assert doubled(21) == 42
    begun, ended = caplog.messages
    assert "tensorexpress: compiling an example for this machine; it is kept, so this happens once" in begun
    assert ended.startswith("tensorexpress: compiled an example in ")
