"""LLVM IR to machine code, and machine code into memory."""

from __future__ import annotations

import hashlib
from functools import cache
from itertools import count
from typing import Any

import llvmlite.binding as llvm

from tensorexpress.user_cache import cached

#: LLVM's level of optimisation: a second one takes twice as long, and packets are no faster.
_LEVEL = 1

_numbers = count()


@cache
def _target_machine() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=_LEVEL, reloc="pic"
    )


def to_machine_code(text: str) -> bytes:
    """Return IR as an object file for this processor, compiled now or before."""
    key = hashlib.sha256(processor_key() + text.encode())
    return cached("native", f"{key.hexdigest()}.o", lambda: compile_module(llvm.parse_assembly(text)))


def processor_key() -> bytes:
    """Return what machine code depends on beside its IR."""
    features = llvm.get_host_cpu_features().flatten()
    return f"{llvm.get_host_cpu_name()}\0{features}\0{_LEVEL}\0{llvm.llvm_version_info}\0".encode()


def compile_module(module: Any) -> bytes:
    """Return a module as an object file for this processor."""
    machine = _target_machine()
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=_LEVEL))
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
