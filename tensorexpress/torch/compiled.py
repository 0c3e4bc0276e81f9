"""Models under torch.compile: found, named as the original ones, and run without being compiled.

Compiled graphs do not show the uses of parameters, and looking at calls of torch would break them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from tensorexpress.errors import WorkloadError

#: A step in names of parameters and modules below a compiled module.
_ORIGINAL = "_orig_mod"


def is_compiled(model: torch.nn.Module) -> bool:
    """Return whether a model, or a part of it, was given to torch.compile."""
    return any(
        type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


def name_before(name: str) -> str:
    """Return the name that a parameter or module has in the model before torch.compile.

    >>> name_before("_orig_mod.encoder._orig_mod.weight")
    'encoder.weight'
    """
    return ".".join(step for step in name.split(".") if step != _ORIGINAL)


def original(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model that torch.compile was given as a whole; any other as it is."""
    found: Any = getattr(model, _ORIGINAL, model)
    return found if isinstance(found, torch.nn.Module) else model


def not_compiling() -> AbstractContextManager[Any]:
    """Have compiled models run as they were before, from now on or, as a context, meanwhile."""
    compiler: Any = torch.compiler
    if not hasattr(compiler, "set_stance"):
        raise WorkloadError(
            "the model is compiled, and its graphs do not show the uses of parameters; accepted: the model before "
            "torch.compile, or torch 2.6 or newer"
        )
    stance: AbstractContextManager[Any] = compiler.set_stance("force_eager")
    return stance
