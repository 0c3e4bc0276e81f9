"""Models of PyTorch: profiled, and trained over the network. All of it needs the extra `torch`.

These are the names that programs use; docs/profile.md and docs/train.md say what for. They are imported when they are
first used, so that whoever imports this package alone needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorexpress.torch.first_use import FirstUse as FirstUse
    from tensorexpress.torch.profile_model import ModelProfile as ModelProfile
    from tensorexpress.torch.profile_model import profile as profile
    from tensorexpress.torch.session import TrainingSession as TrainingSession
    from tensorexpress.torch.session import join as join

#: Name -> the module below this package that holds it.
_MODULE_OF = {
    "FirstUse": "first_use",
    "ModelProfile": "profile_model",
    "profile": "profile_model",
    "TrainingSession": "session",
    "join": "session",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'tensorexpress.torch' has no attribute {name!r}")
    value = getattr(import_module(f"tensorexpress.torch.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
