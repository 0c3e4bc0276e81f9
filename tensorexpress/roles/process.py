"""All roles as processes: `python -P -m tensorexpress.roles.process PARENT IN:OUT ...` forks one for every two pipes.

Python starts, and all is imported, once: a fork takes milliseconds. The first process says {"pids": [...]} on standard
output, and buries all of them when its standard input ends. A role finds at the ends of its pipes

standard input      a line of JSON, the task; a line with the start, in seconds of CLOCK_MONOTONIC. Its end means that
                    whoever started this process is gone.
standard output     lines of JSON: {"listens": true}, {"commit": ...}, {"dropped": N}, {"note": TEXT}
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import traceback
from collections.abc import Sequence
from itertools import chain
from typing import Any, NoReturn

from tensorexpress.roles.helper import HelperRole
from tensorexpress.roles.scheduler import SchedulerRole
from tensorexpress.roles.server import ServerRole
from tensorexpress.roles.task import RoleTask, task_from
from tensorexpress.roles.wire import ENDED, Header, Nic, RoleLink, socket_of
from tensorexpress.roles.worker import WorkerRole
from tensorexpress.tied import end_with_parent


def tell(header: Header) -> None:
    """Tell whoever started this process."""
    sys.stdout.write(json.dumps(header) + "\n")
    sys.stdout.flush()


async def play(task: RoleTask) -> None:
    """Listen, wait for the start, and play the role to the end."""
    loop = asyncio.get_running_loop()
    role: Any = None
    ready = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ready.wait()
        link = RoleLink(reader, writer, None)
        try:
            hello, _ = await link.receive()
            await role.serve(RoleLink(reader, writer, _nic_for(task, hello, nic)), hello)
        except ENDED:
            return
        finally:
            link.close()

    server = await asyncio.start_unix_server(accept, socket_of(task.folder, task.host))
    tell({"listens": True})
    start = float(await loop.run_in_executor(None, sys.stdin.readline))
    send, receive = (steps.get(task.host, [(0.0, 1)]) for steps in (task.send_steps, task.receive_steps))
    nic = Nic(send, receive, start)
    kinds = {
        "scheduler": SchedulerRole,
        "server": ServerRole,
        "replica": ServerRole,
        "helper": HelperRole,
        "worker": WorkerRole,
    }
    role = kinds[task.role](task, nic, start, tell)
    ready.set()
    async with server:
        await role.run(task.scheduler)


def _nic_for(task: RoleTask, hello: Header, nic: Nic) -> Nic | None:
    """Return the link that a connection passes; what a scheduler says is a small packet, and takes no time."""
    return None if "scheduler" in (task.role, hello["role"]) else nic


def main(parent: str, *pipes: str) -> None:
    """Fork a process for every role; each ends with this one, and this one with its parent."""
    end_with_parent(int(parent))
    gc.freeze()  # what is there now stays shared with all roles
    ends = [(int(read), int(write)) for read, write in (pair.split(":") for pair in pipes)]
    own = os.getpid()
    pids = [os.fork() or _become_role(own, ends, number) for number in range(len(ends))]
    _close(ends)
    tell({"pids": pids})
    sys.stdin.read()
    for pid in pids:
        os.waitpid(pid, 0)


def _become_role(parent: int, ends: Sequence[tuple[int, int]], number: int) -> NoReturn:
    """Play the role that standard input says, in this process, and end with it."""
    status = 1
    try:
        end_with_parent(parent)
        for place, end in enumerate(ends[number]):
            os.dup2(end, place)
        _close(ends)
        asyncio.run(play(task_from(json.loads(sys.stdin.readline()))))
        status = 0
    except (KeyboardInterrupt, BrokenPipeError):
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _close(ends: Sequence[tuple[int, int]]) -> None:
    for each in chain.from_iterable(ends):
        os.close(each)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(1)
