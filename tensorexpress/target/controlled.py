"""Switches of a target under control of P4Runtime: a plan put on them, kept there over restarts, and counters read."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import tensorexpress.control  # noqa: F401 - before gRPC is imported, which it keeps from logging by itself
from tensorexpress import p4
from tensorexpress.errors import MachineError, NetworkError, TensorExpressError
from tensorexpress.plan import Plan
from tensorexpress.replan import NewRoutes
from tensorexpress.units import PS_PER_SECOND

if TYPE_CHECKING:
    from tensorexpress.control.watch import WatchSettings

#: How long all switches together may take to have the plan.
_DEPLOYED_S = 60.0

#: Who plans routes again goes before who keeps the first plan (election id 1).
_FOLLOWING = 2


def check_p4runtime() -> None:
    """Raise MachineError, with what to do, where P4Runtime is not installed."""
    try:
        import grpc  # noqa: F401

        import tensorexpress.p4runtime_messages  # noqa: F401
    except ImportError:
        raise MachineError("P4Runtime is not installed; run `pip install 'tensorexpress[p4]'`") from None


def control_address(directory: str, number: int) -> str:
    """Return where a switch of this run is controlled: a socket that only this user can reach."""
    return f"unix:{directory}/{number}.sock"


@contextmanager
def kept(plan: Plan, addresses: Mapping[str, str]) -> Iterator[None]:
    """Put a plan on switches, by name and address, and put it there again whenever one has forgotten it."""
    from tensorexpress.control.client import RemoteSwitch
    from tensorexpress.control.deploy import Event, Keeper, prepare
    from tensorexpress.control.intent import Options

    deployment = prepare(plan, list(addresses), Options(), p4.load())
    done = {name: threading.Event() for name in addresses}
    errors: dict[str, TensorExpressError] = {}

    def report(event: Event) -> None:
        if event.kind == "primary":
            done[event.target.name].set()
        elif event.error is not None:
            errors[event.target.name] = event.error

    keepers = [Keeper(deployment, RemoteSwitch(name, address), report) for name, address in addresses.items()]
    threads = [threading.Thread(target=keeper.run, name=f"keeper of {keeper.target}") for keeper in keepers]
    for thread in threads:
        thread.start()
    try:
        for name, deployed in done.items():
            if not deployed.wait(_DEPLOYED_S):
                raise errors.get(name) or NetworkError(f"{name} at {addresses[name]} has not taken the plan in time")
        yield
    finally:
        for keeper in keepers:
            keeper.stop()
        for thread in threads:
            thread.join()


@contextmanager
def rerouted(
    plan: Plan, addresses: Mapping[str, str], settings: WatchSettings | None, start_ns: int
) -> Iterator[list[NewRoutes]]:
    """Give a plan on switches other routes when others' loads change; yield what it got, which grows meanwhile.

    Times count from a start. Whoever keeps the plan there steps back until this is over. Without settings, routes stay.
    """
    found: list[NewRoutes] = []
    if settings is None:
        yield found
        return
    from tensorexpress.control.client import RemoteSwitch
    from tensorexpress.control.deploy import Event
    from tensorexpress.control.intent import Options
    from tensorexpress.control.watch import Rerouting, watch

    failures: list[TensorExpressError] = []
    stopping = threading.Event()
    targets = [RemoteSwitch(name, address, election_id=_FOLLOWING) for name, address in addresses.items()]

    def report(happened: Event | Rerouting) -> None:
        if isinstance(happened, Rerouting) and happened.found.moved:
            now_ps = (time.monotonic_ns() - start_ns) * 1000
            found.append(NewRoutes(now_ps - round(happened.seconds * PS_PER_SECOND), now_ps, happened.found))

    def follow() -> None:
        try:
            watch(plan, targets, Options(), p4.load(), settings, report, stopping)
        except TensorExpressError as error:
            failures.append(error)

    thread = threading.Thread(target=follow, name="routes planned again")
    thread.start()
    try:
        yield found
    finally:
        stopping.set()
        thread.join()
    for failure in failures:
        raise failure


def read_served(name: str, address: str) -> dict[tuple[int, int], int]:
    """Return the packets that a switch has served, by (slot, queue)."""
    from tensorexpress.control import mark
    from tensorexpress.control.client import Connection, RemoteSwitch
    from tensorexpress.control.messages import ProgramSchema

    with Connection(RemoteSwitch(name, address)) as connection:
        return mark.read_served(connection, ProgramSchema.of(p4.load()))
