"""Who imports whom is as docs/architecture.md says, and the core needs neither gRPC nor scapy."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

#: Directory -> the package that it installs as.
PACKAGES = {"tensorexpress": "tensorexpress", "sim": "tensorexpress.sim"}

#: Packages that anything may import, as plain modules may be.
PLAIN = {"models", "wire", "p4"}

#: Packages that stand side by side -> those of them that each may import.
BESIDE: dict[str, set[str]] = {
    **{plain: set() for plain in PLAIN},
    "sim": set(),
    "switch": set(),
    "control": set(),
    "host": {"switch"},
    "target": {"host", "switch", "control", "sim"},
}


def modules() -> Iterator[tuple[str, Path]]:
    for directory, package in PACKAGES.items():
        for path in sorted((ROOT / directory).rglob("*.py")):
            inner = path.relative_to(ROOT / directory).with_suffix("").parts
            name = ".".join((package, *inner)).removesuffix(".__init__")
            if name != "tensorexpress":  # the front door names what others hold, and imports none of it itself
                yield name, path


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def part_of(name: str) -> str:
    """Return the package beside others that a module is in; "" for a plain module."""
    words = name.split(".")
    return words[1] if words[0] == "tensorexpress" and len(words) > 1 and words[1] in BESIDE else ""


@pytest.mark.parametrize(("name", "path"), list(modules()), ids=lambda value: value if isinstance(value, str) else "")
def test_a_package_imports_only_what_lies_below_it(name: str, path: Path) -> None:
    own = part_of(name)
    allowed = {"", own, *PLAIN} | BESIDE.get(own, set())
    for other in imported(path):
        if other.startswith("tensorexpress"):
            assert part_of(other) in allowed, f"{name} imports {other}"
            assert not other.startswith("tensorexpress.cli"), f"{name} imports {other}"


@pytest.mark.parametrize(
    "work",
    [
        "import tensorexpress.cli.predict, tensorexpress.sim.predict",
        "import tensorexpress.wire.header, tensorexpress.wire.frame, tensorexpress.classify",
        "from tensorexpress import p4, switch; switch.VirtualSwitch(p4.load().document)",
    ],
)
def test_the_core_works_without_grpc_protobuf_and_scapy(work: str) -> None:
    check = "import sys; print(*sorted({'grpc', 'google.protobuf', 'scapy', 'p4runtime_sh'} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", f"{work}; {check}"], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""
