"""LLVM IR to machine code, and machine code into memory."""

from __future__ import annotations

import hashlib
from functools import cache
from itertools import count
from typing import Any

import llvmlite.binding as llvm

from tensorexpress.user_cache import cached, kept

#: LLVM's levels of optimisation: that of code which is there soon, and that of code to stay with; a further one takes
#: twice as long, and packets are no faster.
_FIRST_LEVEL, _LEVEL = 0, 1

_numbers = count()


@cache
def _target_machine(level: int = _LEVEL) -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=level, reloc="pic"
    )


def to_machine_code(text: str) -> bytes:
    """Return IR as an object file for this processor, compiled now or before."""
    return cached("native", _name(text), lambda: optimised_machine_code(text))


def kept_machine_code(text: str) -> bytes | None:
    """Return IR as an object file if it was compiled before."""
    return kept("native", _name(text))


def optimised_machine_code(text: str) -> bytes:
    """Return IR as an object file that is compiled now and not kept."""
    return compile_module(llvm.parse_assembly(text))


def first_machine_code(text: str) -> bytes:
    """Return IR as an object file that is there several times sooner, and does the same more slowly."""
    return compile_module(llvm.parse_assembly(text), _FIRST_LEVEL)


def _name(text: str) -> str:
    return f"{hashlib.sha256(processor_key() + text.encode()).hexdigest()}.o"


def processor_key() -> bytes:
    """Return what machine code depends on beside its IR."""
    features = llvm.get_host_cpu_features().flatten()
    return f"{llvm.get_host_cpu_name()}\0{features}\0{_LEVEL}\0{llvm.llvm_version_info}\0".encode()


def compile_module(module: Any, level: int = _LEVEL) -> bytes:
    """Return a module as an object file for this processor."""
    machine = _target_machine(level)
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=level))
    builder.getModulePassManager().run(module, builder)
    code: bytes = machine.emit_object(module)
    return code


@cache
def start_linker() -> Any:
    """Return what puts machine code into memory, started when it is needed first."""
    _target_machine()
    return llvm.create_lljit_compiler(use_jit_link=False)


def load(code: bytes, functions: tuple[str, ...]) -> tuple[Any, tuple[int, ...]]:
    """Return what keeps an object file in memory, and the addresses of its functions."""
    builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
    for name in functions:
        builder.export_symbol(name)
    library = builder.link(start_linker(), f"program{next(_numbers)}")
    return library, tuple(library[name] for name in functions)
