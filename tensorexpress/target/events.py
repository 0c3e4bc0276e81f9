"""What the processes of a run say to whoever started them."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorexpress.errors import InputError, NetworkError, TensorExpressError


@dataclass(frozen=True)
class ProcessEvent:
    """What a host or a script said, or that it has ended."""

    host: str
    message: Mapping[str, Any]
    content: bytes = b""
    #: The worker whose script it is; -1 for a host.
    script: int = -1

    def failure(self) -> TensorExpressError:
        """Return why a host or a script could not do its part."""
        if "error" in self.message:
            if self.script >= 0:
                return InputError(self.message["error"])
            return NetworkError(self.message["error"])
        status = self.message["ended"]
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        return NetworkError(f"{self.host} {how} before the run was over; the other hosts were stopped")
