"""A switch as its engine has it: packets in Python, or in native code where that is asked for and can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tensorexpress.program_engines import PYTHON
from tensorexpress.switch.device import PLAIN, Switch
from tensorexpress.switch.native.settings import can_be_native
from tensorexpress.switch.program.engines import warm_up
from tensorexpress.switch.traffic import PortSettings


def prepare_engine(engine: str) -> None:
    """Load what an engine needs, so that packets do not wait for it when the first program comes."""
    warm_up(engine)
    if engine != PYTHON:
        _native_switch()


def make_switch(
    transmit: Callable[[int, bytes, int], None],
    *arguments: Any,
    ports: Mapping[int, PortSettings] | None = None,
    default: PortSettings = PLAIN,
    engine: str = PYTHON,
    **options: Any,
) -> Switch:
    """Return a switch; arguments as those of `Switch`."""
    kind: Any = Switch
    if engine != PYTHON and all(map(can_be_native, (*(ports or {}).values(), default))):
        kind = _native_switch() or Switch
    switch: Switch = kind(transmit, *arguments, ports=ports, default=default, engine=engine, **options)
    return switch


def _native_switch() -> Any:
    """Return what native switches are made by, compiled; None where LLVM or numba is not installed."""
    try:
        from tensorexpress.switch.native.build import functions
        from tensorexpress.switch.native.device import NativeSwitch

        functions()
    except ImportError:  # a program says so where it runs in Python for that
        return None
    return NativeSwitch
