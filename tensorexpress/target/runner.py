"""Runs a plan on a target: starts the network and a process for every host, and makes a trace of what they saw."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from tensorexpress.changes import rate_steps
from tensorexpress.cluster import Cluster
from tensorexpress.emulation import EMULATING
from tensorexpress.errors import InputError, TensorExpressError
from tensorexpress.host.nursery import Nursery
from tensorexpress.host.process import check_runnable
from tensorexpress.observed import ObservedJob, ObservedNetwork, make_trace
from tensorexpress.plan import Plan
from tensorexpress.replan import NewRoutes
from tensorexpress.replan import replan as plan_again
from tensorexpress.switch.counted import INGRESS_DROP, NOT_TAKEN
from tensorexpress.target import NO_ROOM, Network, PortReport, Target
from tensorexpress.target.controlled import rerouted
from tensorexpress.target.machine import MachineWatch
from tensorexpress.target.processes import running_hosts
from tensorexpress.target.scripts import TrainingScript, running_scripts
from tensorexpress.trace import LINK, Trace
from tensorexpress.units import PS_PER_SECOND, serialisation_ps

if TYPE_CHECKING:
    from tensorexpress.control.watch import WatchSettings

#: Targets whose switches take entries over P4Runtime while they forward.
P4_TARGETS = ("embedded", "bmv2")

#: A host that is not heard of for so long is gone; a switch that restarts in this time is survived.
SILENCE_S = 10.0

#: Between the last process that is ready and the start of the first iteration: all of them have heard of it by then.
_LEAD_NS = 200 * 10**6


@dataclass(frozen=True)
class Run:
    """What came of running a plan."""

    plan: Plan
    trace: Trace
    ports: tuple[PortReport, ...]
    #: What the machine did meanwhile.
    machine: MachineWatch
    #: How often the plan was run until the machine was calm, or patience over; this is the calmest of these runs.
    attempts: int = 1
    #: Of every source of background traffic, the packets that were sent, and those that had arrived when all was over.
    background: tuple[tuple[int, int], ...] = ()
    #: Of every step of a training script, the mean of the losses that all workers found; none without one.
    losses: tuple[float, ...] = ()
    #: Whether the script waited for all sums before its forward passes; then jobs of plan and trace have a barrier.
    script_waits: bool = False
    #: By (step, worker): when a script made its steps; None without one.
    stepped_ps: NDArray[np.int64] | None = None
    #: Routes that were planned again and written meanwhile.
    routes: tuple[NewRoutes, ...] = ()

    @property
    def restarts(self) -> dict[str, int]:
        """How often each switch that ended during the run was started again, by its name."""
        return {report.switch: report.restarts for report in self.ports if report.restarts}


def check_replan(plan: Plan, target: Target) -> None:
    """Refuse to plan routes again that cannot be, or on a target that has no P4 switches."""
    if target.name not in P4_TARGETS:
        raise InputError(
            f"--replan writes to P4 switches, and the target {target.name} has none; accepted: {', '.join(P4_TARGETS)}"
        )
    plan_again(plan, {})


def check_sums(plan: Plan, target: Target) -> None:
    """Refuse sums in switches on a target whose switches cannot add."""
    if plan.policy.in_switches and not target.sums:
        raise InputError(
            f"policy {plan.policy.name!r} has switches sum, and those of the target {target.name} cannot; accepted: a "
            "target with P4 switches, or sum=none"
        )


def check_changes(plan: Plan, target: Target) -> None:
    """Refuse links that get other rates on a target that cannot do that."""
    for index, change in enumerate(plan.scenario.changes):
        if change.links and not target.changes_rates:
            raise InputError(
                f"{plan.scenario.name}: change.{index}.link: the target {target.name} keeps the rates of links; "
                "accepted: a target that changes them (embedded, linux), no change of links, or predict"
            )


def check_loss(plan: Plan, target: Target) -> None:
    """Refuse links that lose packets on a target that cannot do that."""
    if plan.scenario.loss and target.name not in EMULATING:
        raise InputError(
            f"{plan.scenario.name}: loss is {plan.scenario.loss:g}, and links of the target {target.name} lose nothing "
            f"on purpose; accepted: 0, or a target that emulates links ({', '.join(EMULATING)})"
        )


def least_duration_ps(plan: Plan) -> int:
    """Return how long a run takes at least: every iteration as long as a worker computes, or the busiest link sends."""
    return plan.scenario.rounds * max(max(each.job.workload.compute_ps, sum(each.transfer_ps)) for each in plan.jobs)


def run_plan(
    plan: Plan,
    target: Target,
    *,
    silence_s: float = SILENCE_S,
    progress: Callable[[], None] = lambda: None,
    started: Callable[[Network, Mapping[str, int]], None] = lambda network, pids: None,
    script: TrainingScript | None = None,
    replan: WatchSettings | None = None,
) -> Run:
    """Run a plan on a target and return what was measured.

    `progress` is called once for every iteration. `started` is given the network, and the pid of every host by name,
    when the first iteration is about to begin. Whether the target keeps up with the plan is for `check_speed`
    to say. A training script makes real gradients; without one they cost nothing, and compute is a timer. With
    `replan`, routes are planned again when ports count that others send more, or less.
    """
    check_runnable(plan)
    check_sums(plan, target)
    check_changes(plan, target)
    check_loss(plan, target)
    target.check()
    with (
        running_scripts(plan, script) if script is not None else nullcontext() as scripts,
        closing(Nursery()) as nursery,
        target.start(plan) as network,
        running_hosts(plan, network, nursery, silence_s, scripts) as hosts,
    ):
        hosts.wait_until_ready()
        ports_before = network.report()
        with MachineWatch() as machine:
            start_ns = time.monotonic_ns() + _LEAD_NS
            hosts.say(start_ns)
            started(network, hosts.pids)
            with (
                _changing_rates(plan, network, start_ns),
                rerouted(plan, network.control_addresses, replan, start_ns) as routes,
            ):
                observed = hosts.collect(progress)
        ports = _difference(ports_before, network.report())
    if scripts is not None and scripts.wait_for_all:
        plan = plan.with_barriers()
    trace = _trace(plan, observed, ports, start_ns * 1000)
    found = Run(plan, trace, ports, machine, background=_background(observed), routes=tuple(routes))
    if scripts is None:
        return found
    stepped_ps = _of_workers(plan, 0, observed, "stepped") - start_ns * 1000
    return replace(found, losses=scripts.losses, script_waits=scripts.wait_for_all, stepped_ps=stepped_ps)


def run_calmly(run_once: Callable[[str], Run], attempts: int) -> Run:
    """Run until the machine was calm meanwhile, at most `attempts` times, and return the calmest run.

    What was measured has no part in the choice. `run_once` is given what to add to the name of an attempt.
    """
    runs: list[Run] = []
    while len(runs) < attempts and not (runs and runs[-1].machine.is_calm):
        runs.append(run_once(f", attempt {len(runs) + 1} of {attempts}" if runs else ""))
    calmest = min(runs, key=lambda run: run.machine.stalled)
    return replace(calmest, attempts=len(runs))


@contextmanager
def _changing_rates(plan: Plan, network: Network, start_ns: int) -> Iterator[None]:
    """Give links the rates that they have at every time of the run, in a thread of its own."""
    steps = rate_steps(plan.scenario.changes, plan.scenario.cluster.directed().rate_bps)
    over = threading.Event()
    failures: list[TensorExpressError] = []

    def change() -> None:
        for step in steps:
            still_s = step.time_ps / PS_PER_SECOND - (time.monotonic_ns() - start_ns) / 10**9
            if over.wait(max(0.0, still_s)):
                return
            try:
                network.set_rate(step.thing, step.value)
            except TensorExpressError as error:
                failures.append(error)
                return

    thread = threading.Thread(target=change, name="changing rates", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    for failure in failures:
        raise failure


# What was seen


def _difference(before: Sequence[PortReport], after: Sequence[PortReport]) -> tuple[PortReport, ...]:
    """Return what ports have seen between two reports; a switch that was started again begins at zero."""
    known = {(report.switch, report.port): report for report in before}
    changes = []
    for report in after:
        start = known.get((report.switch, report.port))
        restarts = report.restarts - (start.restarts if start is not None else 0)
        if start is None or start.tx_bytes > report.tx_bytes or restarts:
            changes.append(replace(report, restarts=restarts))
            continue
        changes.append(
            replace(
                report,
                tx_bytes=report.tx_bytes - start.tx_bytes,
                rx_bytes=report.rx_bytes - start.rx_bytes,
                drops=_less(report.drops, start.drops),
                faults=_less(report.faults, start.faults),
                served=_less(report.served, start.served),
                restarts=restarts,
            )
        )
    return tuple(changes)


_Key = TypeVar("_Key")


def _less(after: Mapping[_Key, int], before: Mapping[_Key, int]) -> dict[_Key, int]:
    return {key: value - before.get(key, 0) for key, value in after.items() if value != before.get(key, 0)}


def _trace(
    plan: Plan, observed: Sequence[Mapping[str, NDArray[np.int64]]], ports: Sequence[PortReport], start_ps: int
) -> Trace:
    """Put together what all hosts and ports saw; times count from the start."""
    jobs = [_job(plan, number, observed, start_ps) for number in range(len(plan.jobs))]
    counts = np.sum([each["counts"] for each in observed], axis=0).tolist()
    # A packet whose values are in a slot has not been lost, though it goes no further.
    summed = (INGRESS_DROP,) if plan.policy.in_switches else ()
    links = _links(plan.scenario.cluster, ports, summed)
    return make_trace(plan, "measured", jobs, ObservedNetwork(links, *counts))


def _background(observed: Sequence[Mapping[str, NDArray[np.int64]]]) -> tuple[tuple[int, int], ...]:
    counts = np.sum([each["background"] for each in observed], axis=0).tolist()
    return tuple((sent, arrived) for sent, arrived in counts)


def _job(plan: Plan, number: int, observed: Sequence[Mapping[str, NDArray[np.int64]]], start_ps: int) -> ObservedJob:
    of_workers = partial(_of_workers, plan, number, observed)
    starts = [of_workers(name) - start_ps for name in ("forward_start", "backward_start", "updated")]
    if plan.jobs[number].job.barrier:
        starts[-1][:, :, 0] = starts[-1].max(axis=2)
    times = np.zeros((3, plan.scenario.rounds, len(plan.jobs[number].graph.kind)), dtype=np.int64)
    for each in observed:
        for index, name in enumerate(("ready", "sent", "delivered")):
            iteration, message, time_ps = each.get(f"{number}/{name}", np.zeros((0, 3), dtype=np.int64)).T
            times[index, iteration, message] = time_ps - start_ps
    observed_job = ObservedJob(*starts, *times)
    if not any(f"{number}/0/forward" in each for each in observed):
        return observed_job
    return replace(observed_job, forward_ps=of_workers("forward"), backward_ps=of_workers("backward"))


def _of_workers(
    plan: Plan, number: int, observed: Sequence[Mapping[str, NDArray[np.int64]]], name: str
) -> NDArray[np.int64]:
    """Return what all workers of a job saw under a name, by (iteration, worker, ...)."""
    seen = {key: rows for each in observed for key, rows in each.items()}
    workers = range(len(plan.jobs[number].job.workers))
    return np.stack([seen[f"{number}/{worker}/{name}"] for worker in workers], axis=1)


def _links(cluster: Cluster, ports: Sequence[PortReport], no_losses: Collection[str] = ()) -> NDArray[np.void]:
    """Return what is known of every directed link: it is seen by the switch at its start, or at its end.

    Packets dropped for some reasons are no losses.
    """
    directed = cluster.directed()
    links = np.zeros(len(directed.source), dtype=LINK)
    leaving = {(name, port): link for name in cluster.switches for port, link in cluster.ports(name).items()}
    for report in ports:
        if report.port is None:
            continue
        link = leaving[report.switch, report.port]
        links["bytes"][link] = report.tx_bytes
        for reason, packets in report.drops.items():
            if reason in no_losses:
                continue
            came_from = link ^ 1 if reason == NOT_TAKEN else link
            links["drops" if reason in NO_ROOM else "losses"][came_from] += packets
        links["losses"][link ^ 1] += report.faults.get("loss", 0)
        if directed.target[link] < len(cluster.hosts):
            links["bytes"][link ^ 1] = report.rx_bytes
    links["busy_ps"] = [
        serialisation_ps(int(n), rate) for n, rate in zip(links["bytes"], directed.rate_bps, strict=True)
    ]
    return links
