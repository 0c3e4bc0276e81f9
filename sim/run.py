"""Runs a plan on one of the two engines and returns what happened as a Trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tensorexpress.errors import InputError, MachineError, ScenarioError, unknown
from tensorexpress.graph import ARCHITECTURES
from tensorexpress.memory import check_memory
from tensorexpress.observed import ObservedJob, ObservedNetwork, make_trace
from tensorexpress.plan import Plan, slice_counts
from tensorexpress.recovery import LONGEST_TIMEOUT_PS
from tensorexpress.replan import NewRoutes
from tensorexpress.scenario import Scenario
from tensorexpress.sim.flat_plan import NEVER, FlatPlan, build, transmissions_of
from tensorexpress.sim.grain import check_grain, coarsened
from tensorexpress.sim.record import Record
from tensorexpress.sim_engines import ENGINES
from tensorexpress.trace import LINK, Trace
from tensorexpress.units import PS_PER_SECOND, format_rate, format_time, serialisation_ps

#: Bytes of memory that a simulation needs at the least for every chunk and every message of an iteration, all tables
#: included; `cost.py` tells more.
_BYTES_PER_CHUNK = 1
_BYTES_PER_MESSAGE = 700

#: How many times as long as the longest time-out a packet may occupy a link.
_MOST_TIMEOUTS = 10


def simulate(
    plan: Plan,
    engine: str = "auto",
    stopped: Callable[[], bool] = lambda: False,
    routes: Sequence[NewRoutes] = (),
) -> Trace:
    """Execute a plan and return its trace; both engines give the same one.

    `stopped` is asked now and then whether to give up; then StoppedError is raised. `routes` are those that the plan
    gets on the way (`replan.new_routes`).
    """
    return simulate_coarsely(plan, 1, engine, stopped, routes=routes)[1]


def simulate_coarsely(
    plan: Plan,
    grain: int,
    engine: str = "auto",
    stopped: Callable[[], bool] = lambda: False,
    advanced: Callable[[float], None] = lambda _: None,
    routes: Sequence[NewRoutes] = (),
) -> tuple[Plan, Trace]:
    """Execute a plan with so many packets moved as one; return the plan with its larger slices, and its trace.

    `advanced` is told now and then about which share is done; `routes` are those that the plan gets on the way.
    """
    check_grain(plan.scenario, grain, [plan.policy])
    check_memory(plan.scenario.name, needed_bytes(plan.scenario, grain))
    coarse = coarsened(plan, grain)
    program = build(coarse, grain, plan, [(each.from_ps, each.replanned.plan) for each in routes])
    expected = max(1, transmissions_of(program))
    check_timeouts(coarse, program)
    record = execute(program, engine, stopped=stopped, advanced=lambda done: advanced(min(1.0, done / expected)))
    return coarse, to_trace(coarse, program, record)


def check_timeouts(plan: Plan, program: FlatPlan) -> None:
    """Refuse links so slow that a packet takes many times as long as the longest time-out.

    Every flow would send packets again all the time, for which these links have no room.
    """
    if program.rto_min_ps >= NEVER:
        return
    links = np.unique(np.concatenate([program.path, program.back]))
    if not len(links):
        return
    slowest = links[np.argmin(program.link_rate_bps[links])]
    rate_bps, scenario = int(program.link_rate_bps[slowest]), plan.scenario
    packet_ps = serialisation_ps(program.full_packet_bytes, rate_bps)
    if packet_ps > _MOST_TIMEOUTS * LONGEST_TIMEOUT_PS:
        least_bps = -(-program.full_packet_bytes * 8 * PS_PER_SECOND // (_MOST_TIMEOUTS * LONGEST_TIMEOUT_PS))
        raise ScenarioError(
            f"{scenario.name}: a packet of {program.full_packet_bytes} bytes takes {format_time(packet_ps)} on a link "
            f"of {format_rate(rate_bps)}, and what is not acknowledged within {format_time(LONGEST_TIMEOUT_PS)} is "
            f"sent again; accepted: links of {format_rate(least_bps)} or more, a smaller mtu, or cluster.buffer=0 "
            "(unlimited), with which there are no time-outs"
        )


def needed_bytes(scenario: Scenario, grain: int = 1) -> int:
    """Return how much memory a simulation of a scenario takes at the least, whatever the policy."""
    payload = grain * scenario.framing.payload_bytes
    needed = 0
    for job in scenario.jobs:
        architecture = ARCHITECTURES[job.architecture]
        chunks = (2 + architecture.regathers) * len(job.workers)
        needed += _BYTES_PER_CHUNK * chunks * sum(-(-size // payload) for size in job.workload.tensor_bytes)
        # Whole tensors are the fewest messages.
        messages = architecture.messages_per_slice(len(job.hosts)) * sum(slice_counts(job, 0))
        needed += _BYTES_PER_MESSAGE * messages
    return needed


def execute(
    program: FlatPlan,
    engine: str = "auto",
    record_packets: bool = False,
    stopped: Callable[[], bool] = lambda: False,
    advanced: Callable[[int], None] = lambda _: None,
) -> Record:
    """Execute a program on an engine."""
    if engine not in ENGINES:
        raise InputError(unknown("engine", engine, ENGINES))
    # Only the engine that is used is imported: to load it takes longer than a small simulation takes to run.
    if engine != "simpy":
        load_engine(engine)
        from tensorexpress.sim import fast

        missing = fast.what_is_not_compiled(program)
        if missing is None:
            return fast.run(program, record_packets, stopped, advanced)
        if engine == "fast":
            raise InputError(f"engine 'fast' has no {missing}; use engine 'simpy', or 'auto'")
    from tensorexpress.sim import model

    return model.run(program, record_packets, stopped, advanced)


def load_engine(engine: str) -> None:
    """Load the compiled engine unless SimPy is asked for; the first time on a machine, this compiles it."""
    if engine == "simpy":
        return
    try:
        import tensorexpress.sim.fast  # noqa: F401 - to have it loaded
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] == "tensorexpress":
            raise
        raise MachineError(
            f"the compiled simulator needs {error.name}, which is not installed; pip install {error.name}, or choose "
            "--engine simpy, which is slower"
        ) from None


def to_trace(plan: Plan, program: FlatPlan, record: Record) -> Trace:
    """Return an engine's record in terms of jobs, workers and layers."""
    links = np.zeros(len(program.link_source), dtype=LINK)
    for name in LINK.names or ():
        links[name] = getattr(record, f"link_{name}")
    jobs = [_observed(number, plan, program, record) for number in range(len(plan.jobs))]
    at_servers = (record.server_sums, record.whole_sums, record.server_packets)
    network = ObservedNetwork(links, record.transmissions, record.retransmissions, record.timeouts, *at_servers)
    return make_trace(plan, "simulated", jobs, network, record.end_ps)


def _observed(number: int, plan: Plan, program: FlatPlan, record: Record) -> ObservedJob:
    job = plan.jobs[number].job
    own_workers = np.flatnonzero(program.worker_job == number)
    gates = slice(int(program.first_gate[own_workers[0]]), int(program.first_gate[own_workers[-1] + 1]))
    shape = (-1, len(job.workers), len(job.workload.layers))
    messages = np.flatnonzero(program.flow_job[program.message_flow] == number)
    return ObservedJob(
        forward_start_ps=record.forward_start_ps[:, gates].reshape(shape),
        backward_start_ps=record.backward_start_ps[:, gates].reshape(shape),
        updated_ps=record.gate_open_ps[:, gates].reshape(shape),
        ready_ps=record.ready_ps[:, messages],
        sent_ps=record.sent_ps[:, messages],
        delivered_ps=record.delivered_ps[:, messages],
        timed_out_ps=record.timed_out_ps[:, messages],
    )
