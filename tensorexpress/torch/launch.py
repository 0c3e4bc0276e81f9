"""Runs a training script as one worker of a run: the process that `target/scripts.py` starts."""

from __future__ import annotations

import json
import os
import runpy
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensorexpress import tied
from tensorexpress.errors import TensorExpressError, one_line
from tensorexpress.script_memory import ScriptMemory
from tensorexpress.torch.channel import HostChannel, HostLostError
from tensorexpress.torch.session import LoneSession, NotAloneError, TrainingSession, WorkerSession, give

#: The longest message of an exception that is told as it is.
_LONGEST_TEXT = 500


def main(parent: int, report: int, memory: int, channel: int) -> None:
    """Run the script of the command line; descriptors lead to the parent, the memory and the host.

    Without a memory the script is alone, and stands for as many workers as its task says.
    """
    tied.end_with_parent(parent)
    reports = socket.socket(fileno=report)
    with reports.makefile("rb") as requests:
        task = json.loads(requests.readline())

    def tell(message: dict[str, Any]) -> None:
        reports.sendall(json.dumps(message).encode() + b"\n")

    script, status = sys.argv[1], 1
    session: TrainingSession
    if memory < 0:
        session = LoneSession(workers=task["workers"], steps=task["steps"])
    else:
        shared = ScriptMemory(memory, task["elements"], task["steps"])
        session = WorkerSession(task, HostChannel(shared, socket.socket(fileno=channel)), tell)
    try:
        _train(session, tell)
        tell({"done": True})
        status = 0
    except NotAloneError as error:
        tell({"not_alone": str(error)})
    except TensorExpressError as error:
        tell({"error": f"{script} (worker {task['worker']}): {error}"})
    except Exception as error:
        text = _told(error, script, task["worker"])
        # What a script for DDP fails with alone may be that torch.distributed has no other processes.
        tell({"not_alone" if isinstance(session, LoneSession) and session.is_ddp else "error": text})
    except SystemExit as end:
        tell({"error": f"{script} (worker {task['worker']}) ended with status {end.code}"})
    except HostLostError:
        tell({"lost": True})
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Threads of the script, and what they wait for, end with it.
        os._exit(status)


def _train(session: TrainingSession, tell: Callable[[dict[str, Any]], None]) -> None:
    """Run the script to its end, and make sure that all of its steps were made."""
    give(session)
    del sys.argv[0]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    session.close()
    if isinstance(session, LoneSession):
        for losses in session.losses:
            tell({"losses": losses})


def _told(error: Exception, script: str, worker: int) -> str:
    """Return an exception as one line, with the place in the script where it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).name == Path(script).name] or frames
    text = one_line(str(error))[:_LONGEST_TEXT]
    if type(error).__module__.startswith("torch._dynamo"):
        text = "the model was compiled after distribute(); accepted: torch.compile before distribute() and ddp()"
    if not own:
        return f"{script} (worker {worker}): {type(error).__name__}: {text}"
    deepest = "" if own[-1] is frames[-1] else f", in {frames[-1].filename}:{frames[-1].lineno}"
    return f"{script}:{own[-1].lineno} (worker {worker}): {type(error).__name__}: {text}{deepest}"
