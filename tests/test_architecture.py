"""Who imports whom is as docs/architecture.md says, names of classes stand for one thing, the core needs no extra."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from configparser import ConfigParser
from functools import cache
from pathlib import Path

import pytest
from support import quick

ROOT = Path(__file__).parents[1]

#: A room (a package below tensorexpress) -> the other rooms that it imports. Anybody may import "", the plain modules.
IMPORTS: dict[str, set[str]] = {
    "": {"models", "commits", "wire", "p4", "torch"},
    "models": set(),
    "foreign": set(),
    "roles": {"commits"},
    "commits": set(),
    "wire": {"p4"},
    "p4": set(),
    "p4.program": set(),
    "results": {"models", "commits"},
    "results.page": {"results"},
    "torch": {"foreign"},
    "sim": {"results", "commits", "sim.kernel"},
    "sim.kernel": {"sim"},
    "switch": {"wire", "p4", "switch.native", "switch.program", "switch.program.bmv2", "switch.p4runtime"},
    "switch.native": {"wire", "switch", "switch.program", "switch.program.native"},
    "switch.program": {"switch", "switch.program.bmv2", "switch.program.codegen", "switch.program.native"},
    "switch.program.bmv2": {"switch", "switch.program"},
    "switch.program.codegen": {"switch", "switch.program", "switch.program.bmv2"},
    "switch.program.native": {"switch", "switch.program", "switch.program.bmv2", "switch.program.codegen"},
    "switch.p4runtime": {"switch", "switch.program", "switch.program.bmv2", "switch.p4runtime.messages"},
    "switch.p4runtime.messages": {"switch", "switch.p4runtime", "switch.program"},
    "control": {"wire", "p4", "control.entities"},
    "control.entities": {"control"},
    "host": {"wire", "switch", "switch.native"},
    "target": {"wire", "p4", "host", "switch", "control"},
    "cli": {
        "models",
        "torch",
        "foreign",
        "roles",
        "wire",
        "p4",
        "results",
        "results.page",
        "sim",
        "switch",
        "switch.p4runtime",
        "switch.program",
        "control",
        "host",
        "target",
    },
}

#: Somebody else's package -> the rooms that import it; numpy is for everybody.
IMPORTED_BY: dict[str, set[str]] = {
    "click": {"cli"},
    "simpy": {"sim"},
    "numba": {"", "sim", "sim.kernel", "host", "switch.native"},
    "llvmlite": {"", "sim.kernel", "host", "switch.native"},
    "matplotlib": {"results"},
    "scipy": {""},
    "scapy": {"wire"},
    "torch": {"torch"},
    "distributed": {"sim"},
    "grpc": {"control", "switch.p4runtime", "target"},
    "google": {"", "control", "switch.p4runtime"},
}


@cache
def packages() -> dict[str, Path]:
    """Return the packages that are installed, by name, and where they lie in the checkout."""
    settings = ConfigParser()
    settings.read(ROOT / "setup.cfg")
    rows = (row.split("=") for row in settings["options"]["package_dir"].split("\n") if row)
    moved = {package.strip(): ROOT / directory.strip() for package, directory in rows}
    places: dict[str, Path] = {}
    for name in settings["options"]["packages"].split():
        outer, _, inner = name.rpartition(".")
        places[name] = moved[name] if name in moved else places[outer] / inner
    assert all(place.is_dir() for place in places.values())
    return places


@cache
def modules() -> dict[str, ast.Module]:
    """Return the syntax of every module; the front door names what others hold, and imports none of it itself."""
    return {
        f"{package}.{path.stem}".removesuffix(".__init__"): ast.parse(path.read_text())
        for package, directory in packages().items()
        for path in sorted(directory.glob("*.py"))
        if (package, path.name) != ("tensorexpress", "__init__.py")
    }


def room_of(name: str) -> str:
    """Return the room that a module or a name in it belongs to."""
    package = max((package for package in packages() if f"{name}.".startswith(f"{package}.")), key=len)
    return package.removeprefix("tensorexpress").removeprefix(".")


def imported(module: str) -> Iterator[str]:
    for node in ast.walk(modules()[module]):
        if isinstance(node, ast.ImportFrom):
            assert node.module, f"{module} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_every_room_has_a_rule() -> None:
    assert IMPORTS.keys() == {room_of(package) for package in packages()}


@pytest.mark.parametrize("room", IMPORTS)
def test_a_room_imports_what_its_rule_says_and_the_rule_is_no_wider(room: str) -> None:
    found = defaultdict(set)
    for module in modules():
        if room_of(module) == room:
            for other in imported(module):
                if other.split(".")[0] == "tensorexpress":
                    found[room_of(other)].add(f"{module} imports {other}")
    beyond = {line for other, lines in found.items() if other not in {"", room, *IMPORTS[room]} for line in lines}
    assert not beyond
    assert not IMPORTS[room] - found.keys(), "the rule allows what nobody imports"


def test_the_packages_of_others_are_imported_where_the_rule_says_and_nowhere_else() -> None:
    found = defaultdict(set)
    for module in modules():
        for other in imported(module):
            top = other.split(".")[0]
            if top not in {"tensorexpress", "numpy", *sys.stdlib_module_names}:
                found[top].add(room_of(module))
    assert found == IMPORTED_BY


def test_the_name_of_a_class_stands_for_one_thing() -> None:
    defined = defaultdict(list)
    for module, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                defined[node.name].append(module)
    assert not {name: where for name, where in defined.items() if len(where) > 1}


@pytest.mark.parametrize(
    "work",
    [
        "import tensorexpress.cli.predict, tensorexpress.sim.predict",
        "import tensorexpress.wire.header, tensorexpress.wire.frame, tensorexpress.classify",
        "from tensorexpress import p4, switch; switch.VirtualSwitch(p4.load().document)",
    ],
)
def test_the_core_works_without_grpc_protobuf_scapy_and_torch(work: str) -> None:
    check = (
        "import sys; print(*sorted({'grpc', 'google.protobuf', 'scapy', 'p4runtime_sh', 'torch'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", f"{work}; {check}"], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""


def test_what_the_fast_tier_leaves_out_exists() -> None:
    there = {
        f"{path.name}::{name}"
        for path in Path(__file__).parent.glob("test_*.py")
        for name in re.findall(r"^ *def (test_\w+)\(", path.read_text(), re.MULTILINE)
    }
    left_out = {f"{name.split('::')[0]}::{name.split('::')[-1]}": name for name in quick.read_list()}
    gone = {name for short, name in left_out.items() if short not in there}
    assert not gone, f"take them off tests/support/{quick.LIST.name}"
