"""Functions that build a model, named as "FILE.py:FUNCTION" or "MODULE:FUNCTION": found, run, and what they return.

All that is run here is the user's own code. Whatever it raises becomes one line that says where.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from tensorexpress.errors import MachineError, TensorExpressError, WorkloadError, shown
from tensorexpress.names import name_of_file

_ACCEPTED = "accepted: FILE.py:FUNCTION or MODULE:FUNCTION, such as model.py:build"
_RETURNED = "accepted: (model, inputs, loss): a torch.nn.Module, what it is called with, a function of what it returns"

#: What a file's module is called, whatever the file is: it must hide no other module.
_MODULE_NAME = "tensorexpress_profiled"


@dataclass(frozen=True)
class ModelSource:
    """A function that builds a model, and the folder from which its file or module is seen."""

    place: str
    function: str
    folder: Path

    def __str__(self) -> str:
        return f"{self.place}:{self.function}"

    @property
    def path(self) -> Path | None:
        """Its file, where it is named by one."""
        return self.folder / self.place if self.place.endswith(".py") else None

    @property
    def name(self) -> str:
        """What its model is called."""
        return name_of_file(self.path.stem if self.path else self.place.rpartition(".")[2])


def parse_source(text: str, folder: Path) -> ModelSource:
    """Return what a reference names; nothing of it is run or looked for.

    >>> parse_source("models/small.py:build", Path()).name
    'small'
    """
    place, _, function = text.rpartition(":")
    is_module = all(step.isidentifier() for step in place.split("."))
    if not function.isidentifier() or not (place.endswith(".py") or is_module) or "\0" in place:
        raise WorkloadError(f"found {shown(text)}; {_ACCEPTED}")
    return ModelSource(place, function, folder)


def check_torch() -> None:
    """Raise MachineError, with what to do, where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise MachineError(
            "torch is not installed; install its CPU build, as PyTorch's own install page says, then run "
            "`pip install 'tensorexpress[torch]'`, which alone takes several GB of CUDA on Linux"
        )


def build(source: ModelSource) -> tuple[Any, Any, Callable[[Any], Any]]:
    """Run the function and return model, inputs and loss."""
    if source.path is not None and not os.path.isfile(source.path):
        raise WorkloadError(f"{source}: there is no such file; {_ACCEPTED}")
    check_torch()
    function = getattr(_module(source), source.function, None)
    if not callable(function):
        found = "no such function" if function is None else f"{source.function} is {shown(function)}"
        raise WorkloadError(f"{source}: {found}; {_ACCEPTED}")
    with told_in_a_line(source):
        returned = function()
    if not isinstance(returned, tuple | list) or len(returned) != 3:
        raise WorkloadError(f"{source} returned {shown(returned)}; {_RETURNED}")
    model, inputs, loss = returned
    return model, inputs, loss


def _module(source: ModelSource) -> ModuleType:
    """Import what holds the function; its folder comes first, as for a script that is run there."""
    folder = source.path.parent if source.path else source.folder
    sys.path.insert(0, str(folder.resolve()))
    if source.path is None:
        try:
            is_there = importlib.util.find_spec(source.place) is not None
        except (ImportError, ValueError):
            is_there = False
        if not is_there:
            raise WorkloadError(f"{source}: no module {source.place!r} here or among those installed; {_ACCEPTED}")
        with told_in_a_line(source):
            return importlib.import_module(source.place)
    found = importlib.util.spec_from_file_location(_MODULE_NAME, source.path)
    if found is None or found.loader is None:
        raise WorkloadError(f"{source}: its file is no module; {_ACCEPTED}")
    module = importlib.util.module_from_spec(found)
    sys.modules[_MODULE_NAME] = module
    with told_in_a_line(source):
        found.loader.exec_module(module)
    return module


@contextmanager
def told_in_a_line(source: ModelSource) -> Iterator[None]:
    """Make an error of one line of what the user's code raises; our own pass with the name of the source."""
    try:
        yield
    except WorkloadError as error:
        raise WorkloadError(f"{source}: {error}") from None
    except TensorExpressError:
        raise
    except (Exception, SystemExit) as error:
        what = str(error).strip().partition("\n")[0]
        said = f"{type(error).__name__}: {what}" if what else type(error).__name__
        raise WorkloadError(f"{source} failed{_line(source, error)}: {said}; mend it, then profile again") from error


def _line(source: ModelSource, error: BaseException) -> str:
    """Return where in the user's code it went wrong: in the file that was named, or in what that calls."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" at {_shown_path(source, error.filename)}:{error.lineno}"
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if _is_users(frame.f_globals.get("__name__", ""), frame.f_code.co_filename)
    ]
    named = [place for place in frames if _shown_path(source, place[0]) != place[0]]
    where = (named or frames)[-1:]
    return "".join(f" at {_shown_path(source, path)}:{line}" for path, line in where)


def _shown_path(source: ModelSource, path: str) -> str:
    """Return a path, or what the user calls it."""
    return source.place if source.path and Path(path).resolve() == source.path.resolve() else path


def own_files() -> frozenset[Path]:
    """Return the files of all modules that were loaded here and belong to no package that is installed."""
    found = ((name, getattr(module, "__file__", None)) for name, module in list(sys.modules.items()))
    return frozenset(Path(file).resolve() for name, file in found if isinstance(file, str) and _is_users(name, file))


def _is_users(name: str, file: str) -> bool:
    """Whether a module is neither ours nor part of Python or of a package that is installed."""
    if name.partition(".")[0] == "tensorexpress" or not file.endswith(".py"):
        return False
    return not any(map(Path(file).resolve().is_relative_to, _installed()))


@cache
def _installed() -> tuple[Path, ...]:
    """Return where Python and packages are."""
    places = {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(Path(place).resolve() for place in places)
