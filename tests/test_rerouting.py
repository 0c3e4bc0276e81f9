"""Routes of a real run that change in the middle, because others send: watched by counters, written over P4Runtime."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

from support.deployed import PROGRAM, SCHEMA
from support.summed_training import summed_plan
from support.thorough import rest
from support.training_run import check_consistent

from tensorexpress.cli.run_notes import notes_on
from tensorexpress.control.client import Connection, RemoteSwitch
from tensorexpress.control.deploy import Event
from tensorexpress.control.intent import Options
from tensorexpress.control.mark import PortBytes, read_ports
from tensorexpress.control.report import rerouting_line
from tensorexpress.control.watch import Rerouting, WatchSettings, others_bps, watch
from tensorexpress.errors import TensorExpressError
from tensorexpress.plan import Plan
from tensorexpress.target.embedded import EmbeddedNetwork, EmbeddedTarget
from tensorexpress.target.runner import run_plan
from tensorexpress.topologies import leaf_spine
from tensorexpress.wire.frame import FrameEnd, build_frame

#: Two spines with 2 Mbps of every leaf; h2 and h5 have no part in the job.
SPARE_HOSTS = (
    *("cluster.topology=leaf-spine", "cluster.leaves=2", "cluster.spines=2", "cluster.hosts_per_leaf=3"),
    *("cluster.oversubscription=3", "cluster.bandwidth=4 Mbps", "transport.rto_min=50 ms", "job.shard=4 KB"),
    *("job.workers=h0,h3", "job.servers=h1,h4"),
)


class Others:
    """Somebody else's traffic, from h2 to h5 over one of two spines; and what ports have counted."""

    def __init__(self, network: EmbeddedNetwork):
        self._network, self._over = network, threading.Event()
        self._ends = [network.hosts[name] for name in ("h2", "h5")]
        self._wire = socket.socket(fileno=os.dup(self._ends[0].descriptor))  # type: ignore[union-attr]
        self._thread = threading.Thread(target=self._send)
        self._frame = b""

    def counted(self, switch: str) -> dict[int, PortBytes]:
        with Connection(RemoteSwitch(switch, self._network.switches[switch].address)) as connection:
            return read_ports(connection, SCHEMA, range(5))

    def start(self, port_up: int) -> None:
        """Send at 1.5 Mbps by a port of s0: routes spread packets over spines by a hash, so some UDP port does."""
        (one, other), gateway = self._ends, self._ends[0].gateway_mac  # type: ignore[union-attr]
        for udp_port in range(30_000, 30_064):
            here = FrameEnd(one.mac, IPv4Address(one.address), udp_port)  # type: ignore[union-attr]
            there = FrameEnd(gateway, IPv4Address(other.address), 9)  # type: ignore[union-attr]
            self._frame = build_frame(here, there, bytes(900))
            before = self.counted("s0").get(port_up)
            self._wire.send(self._frame)
            time.sleep(0.02)
            after = self.counted("s0").get(port_up)
            if after is not None and after.other_packets > (before.other_packets if before else 0):
                self._thread.start()
                return
        raise AssertionError("no UDP port leads over the spine")

    def _send(self) -> None:
        started, sent = time.monotonic(), 0
        while not self._over.wait(0.01):
            # Whatever the machine does meanwhile, the rate is kept.
            for _ in range(int((time.monotonic() - started) * 1.5e6 / 8 / 966) - sent):
                with suppress(OSError):  # the run may be over
                    self._wire.send(self._frame)
                sent += 1

    def stop(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        self._wire.close()


class Rerouted:
    """Lets others send when a run has begun, and watches until its switches go."""

    def __init__(self, plan: Plan):
        self.plan, self.seen = plan, list[Event | Rerouting]()
        self._iterations, self._nearly_over = 0, threading.Event()
        self.failures: list[TensorExpressError] = []
        #: What s0 had sent by each port when routes had changed, and when the run was nearly over.
        self.after: list[dict[int, PortBytes]] = []

    def started(self, network: EmbeddedNetwork, pids: Mapping[str, int]) -> None:
        self._others = Others(network)
        targets = [RemoteSwitch(name, each.address, election_id=5) for name, each in network.switches.items()]
        self.thread = threading.Thread(target=self._watch, args=[targets])
        self.thread.start()

    def _watch(self, targets: list[RemoteSwitch]) -> None:
        try:
            settings = WatchSettings(every_s=0.4, threshold=0.3)
            watch(self.plan, targets, Options(), PROGRAM, settings, self._report, threading.Event())
        except TensorExpressError as error:
            self.failures.append(error)
        finally:
            self._others.stop()

    def _report(self, happened: Event | Rerouting) -> None:
        self.seen.append(happened)
        if isinstance(happened, Rerouting):
            if happened.found.moved and not self.after:
                self.after.append(self._others.counted("s0"))
                # A busy machine holds others up now and then, and routes would follow that too: not in this test.
                self._nearly_over.wait()
        elif len(self.seen) == len(self.plan.scenario.cluster.switches):
            self._others.start(port_up=3)

    def progress(self) -> None:
        self._iterations += 1
        if self._iterations == self.plan.scenario.rounds - 1:
            self.after.append(self._others.counted("s0"))
            self._nearly_over.set()

    def end(self) -> None:
        self._nearly_over.set()
        self.thread.join()


@rest()
def test_a_run_plans_its_routes_again_by_itself(tmp_path: Path) -> None:
    plan = summed_plan(tmp_path, *SPARE_HOSTS, "iterations=24", policy="inart", scale=0.3)
    others: list[Others] = []

    def started(network: EmbeddedNetwork, pids: Mapping[str, int]) -> None:
        others.append(Others(network))
        others[0].start(port_up=3)

    try:
        settings = WatchSettings(every_s=0.4, threshold=0.3)
        run = run_plan(plan, EmbeddedTarget(wires=True), started=started, replan=settings)
    finally:
        for each in others:
            each.stop()
    check_consistent(run)
    first = run.routes[0]
    assert 0 < first.changed_ps < first.from_ps < run.trace.end_ps
    assert "over s3, no longer s2" in "; ".join(first.replanned.moved)
    (note,) = [note for note in notes_on([replace(run, routes=run.routes[:1])], EmbeddedTarget()) if "routes" in note]
    assert "after the start, other routes were in force: sums of job0 to" in note


@rest()
def test_a_run_takes_the_other_spine_when_others_use_one_and_every_sum_is_exact(tmp_path: Path) -> None:
    plan = summed_plan(tmp_path, *SPARE_HOSTS, "iterations=24", policy="inart", scale=0.3)
    rerouted = Rerouted(plan)
    try:
        run = run_plan(plan, EmbeddedTarget(wires=True), started=rerouted.started, progress=rerouted.progress)
    finally:
        rerouted.end()
    # Hosts compare every sum with what it should be, and end a run in which one is wrong.
    check_consistent(run)
    move, *_ = [each for each in rerouted.seen if isinstance(each, Rerouting) and each.found.moved]
    line = rerouting_line(move, plan)
    assert "others send" in line
    assert "over s3, no longer s2" in line
    # Port 3 of s0 leads to s2, port 4 to s3. Afterwards all of the job goes over s3, but for word that hosts live.
    early, late = rerouted.after
    assert late[3].octets - early[3].octets < 10_000
    assert late[4].octets - early[4].octets > 50_000
    assert late[3].other_packets > early[3].other_packets
    # Switches ended with the run: one line says so of one of them.
    (failure,) = rerouted.failures
    assert str(failure).startswith("s")
    assert "\n" not in str(failure)


def test_loads_of_others_are_told_by_link_and_in_bits_on_the_wire() -> None:
    cluster = leaf_spine(2, 1, 1)
    before = {"s0": {0: PortBytes(0, 5, 500, 1, 100)}, "s1": {}, "s2": {}}
    after = {"s0": {0: PortBytes(0, 9, 900, 11, 1100), 1: PortBytes(1, 7, 70, 0, 0)}, "s1": {}, "s2": {}}
    assert others_bps(cluster, before, after, 2.0) == {cluster.ports("s0")[0]: 8 * (1000 + 10 * 24) / 2}
