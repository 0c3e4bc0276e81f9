"""One role as a process: `python -P -m tensorexpress.roles.process PARENT`, with its task on standard input.

standard input      a line of JSON, the task; a line when all listen; a line with the start, in seconds of
                    CLOCK_MONOTONIC. Its end means that whoever started this process is gone.
standard output     lines of JSON: {"listens": true}, {"commit": ...}, {"dropped": N}, {"note": TEXT}
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

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


def main(parent: str) -> None:
    """Play the role that standard input says."""
    end_with_parent(int(parent))
    asyncio.run(play(task_from(json.loads(sys.stdin.readline()))))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(1)
