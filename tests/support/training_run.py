"""Small runs for tests: scenarios that take tens of milliseconds an iteration; as a program, one that can be killed."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path

import numpy as np

from tensorexpress.plan import make_plan
from tensorexpress.policy import parse_policy
from tensorexpress.scenario import read_scenario
from tensorexpress.sim.run import simulate
from tensorexpress.target.embedded import EmbeddedNetwork, EmbeddedTarget
from tensorexpress.target.runner import run_plan

#: The last layers are the largest, so that what is needed first waits behind them.
LAYERS = ((2_000, 2), (3_000, 2), (30_000, 2), (60_000, 2))


def write_workload(directory: Path, scale: float = 1) -> Path:
    """Write a workload of four layers, each forward and backward of some milliseconds."""
    path = Path(directory, "layers.csv")
    rows = [f"{i},{int(params * scale)},{ms}000000,{ms}000000" for i, (params, ms) in enumerate(LAYERS)]
    path.write_text("\n".join(["layer_index,numel,forward_ns,backward_ns", *rows, ""]))
    return path


def small_plan(directory: Path, *overrides: str, policy: str = "tensorexpress", scale: float = 1):
    """Return a plan for 2 workers and a server at 40 Mbps, with keys of its scenario changed."""
    usual = ["job.workers=2", "job.servers=1", "cluster.bandwidth=40 Mbps", "iterations=2", "warmup=1"]
    workload = ["job.model=", f"job.csv={write_workload(directory, scale)}"]
    return make_plan(read_scenario(None, [*workload, *usual, *overrides]), parse_policy(policy))


def check_consistent(run) -> None:
    """Check what must hold in every trace, whatever the machine did: the same that holds in the simulator's."""
    simulated = simulate(run.plan)
    assert run.trace.source == "measured"
    assert run.trace.link_names == simulated.link_names
    for measured, expected in zip(run.trace.jobs, simulated.jobs, strict=True):
        assert measured.forward_start_ps.shape == expected.forward_start_ps.shape
        assert (measured.forward_ps == expected.forward_ps).all()
        assert (measured.backward_ps == expected.backward_ps).all()
        # A forward layer starts when the one before has ended and its parameters are there, and not before.
        assert (measured.waits_ps >= 0).all()
        could_start = measured.forward_start_ps[1:] - measured.waits_ps
        assert (measured.forward_start_ps[1:] == np.maximum(could_start, measured.updated_ps)).all()
        planned = ["iteration", "kind", "tensor", "src", "dst", "bytes", "queue"]
        transfers = measured.transfers
        assert (transfers[planned] == expected.transfers[planned]).all()
        assert (transfers["ready_ps"] >= 0).all()
        assert (transfers["ready_ps"] <= transfers["sent_ps"]).all()
        assert (transfers["sent_ps"] <= transfers["delivered_ps"]).all()
        shared_ps = measured.updated_ps.max() - transfers["delivered_ps"].max()
        is_local = any(job.local_rate_bps for job in run.plan.scenario.jobs)
        assert shared_ps > 0 if is_local else shared_ps == 0


def check_queues(run) -> None:
    """Check that the switch served each packet of each tensor in the queue of the plan, by its own counters."""
    (served,) = [report.served for report in run.ports if report.port is None]
    transfers, planned = run.trace.jobs[0].transfers, Counter()
    payload = run.plan.framing.payload_bytes
    for queue, size in transfers[["queue", "bytes"]].tolist():
        planned[queue] += -(-size // payload)
    counted = {queue: packets for (slot, queue), packets in served.items() if slot == 1}
    # Acknowledgements are as urgent as the first tensor. A time-out, where the machine stood still, sends again.
    most_urgent = run.plan.jobs[0].queues[0]
    assert counted.keys() == {*planned, most_urgent}
    for queue, packets in planned.items():
        beyond = counted[queue] - packets
        assert beyond > 0 if queue == most_urgent else 0 <= beyond <= run.trace.retransmissions, (queue, counted)


class Killer:
    """Sends a signal to a process of the run when the second iteration is over."""

    def __init__(self, who: str, number: int):
        self.who, self.number, self.iterations = who, number, 0
        self.pids: dict[str, int] = {}

    def started(self, network, pids) -> None:
        switch = network.switches["s0"]
        forwarding = switch.running.data_path.pid if isinstance(network, EmbeddedNetwork) else switch.pid
        self.pids = {**pids, "switch": forwarding}

    def progress(self) -> None:
        self.iterations += 1
        if self.iterations == 2:
            os.kill(self.pids[self.who], self.number)


def main(directory: str, wires: bool) -> None:
    """Run for ever; print the pids of all processes when it runs."""

    def started(network, pids):
        forwarding = [switch.running.data_path.pid for switch in network.switches.values()]
        print(json.dumps([*pids.values(), *forwarding]), flush=True)

    plan = small_plan(Path(directory), "iterations=1000")
    run_plan(plan, EmbeddedTarget(wires=wires), started=started)


if __name__ == "__main__":
    os.environ["GRPC_VERBOSITY"] = "NONE"
    main(sys.argv[1], sys.argv[2] == "wires")
