"""When a forward pass first uses each parameter of a model.

Hooks on modules cannot tell. `nn.MultiheadAttention` uses the weight of its `out_proj` without ever calling it, a
module that owns a parameter beside its children is entered long before it uses that, and a tied parameter belongs to
several modules. So every call into torch is looked at: a parameter is used when it is first an argument of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

#: What tells about a tensor and neither reads nor hands on what is in it; all others, also unknown ones, are uses.
_PROPERTIES = ("device", "dtype", "grad", "grad_fn", "is_leaf", "is_nested", "layout", "ndim", "requires_grad", "shape")
_METHODS = ("dim", "element_size", "is_complex", "is_floating_point", "nelement", "numel", "size", "stride")
_HOOKS = ("register_hook", "register_post_accumulate_grad_hook")
_NO_USES = frozenset(
    [getattr(torch.Tensor, name).__get__ for name in _PROPERTIES]
    + [getattr(torch.Tensor, name).__set__ for name in ("grad", "requires_grad")]
    + [getattr(torch.Tensor, name) for name in (*_METHODS, *_HOOKS)]
)


class FirstUse(TorchFunctionMode):
    """Calls back before the first torch call that uses a parameter, once per parameter since the last `reset`.

    It works as a context, in the thread that enters it. A parameter that is named twice, as tied ones are, is one.
    Functions that torch hands over as a whole, such as `F.multi_head_attention_forward`, use all of their parameters
    when they begin. What runs outside of Python, as scripted modules do, is not seen: see `unused`.

    >>> a, b = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    >>> with FirstUse([a, b], lambda parameter: print("a" if parameter is a else "b")):
    ...     sum = torch.cat([b, a]) + b
    b
    a
    """

    def __init__(self, parameters: Iterable[torch.Tensor], callback: Callable[[torch.Tensor], None]) -> None:
        super().__init__()
        self._parameters = {id(parameter): parameter for parameter in parameters}
        self._callback = callback
        self._unused = dict(self._parameters)

    def reset(self) -> None:
        """Take all parameters for unused again."""
        self._unused = dict(self._parameters)

    @property
    def unused(self) -> tuple[torch.Tensor, ...]:
        """The parameters whose use was not seen since the last `reset`."""
        return tuple(self._unused.values())

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Look at the arguments of a call, then make it; calls inside of it and of the callback are not seen."""
        kwargs = kwargs or {}
        if self._unused and func not in _NO_USES:
            self._look(args)
            if kwargs:
                self._look(kwargs.values())
        return func(*args, **kwargs)

    def _look(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, torch.Tensor):
                if id(value) in self._unused:
                    # It stays unused where the callback fails: whoever tries again must not find it ready.
                    self._callback(value)
                    self._unused.pop(id(value), None)
            elif isinstance(value, list | tuple):
                self._look(value)
            elif isinstance(value, dict):
                self._look(value.values())
