"""Programs: a plan as flat arrays, the one thing both engines execute.

Training is the graph of `tensorexpress.graph`, the jobs' graphs put together: messages first, then sums (joins), gates,
gradients, forward and backward layers. A node fires when all its predecessors have, and then counts down its
successors. Engines know nothing of parameter servers or rings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorexpress.background import background_gaps
from tensorexpress.changes import pace_steps
from tensorexpress.compute import compute_times
from tensorexpress.framing import ETHERNET_BYTES
from tensorexpress.graph import NODE_KINDS, SUM, Edges, Graph, index_of, kind_of
from tensorexpress.plan import Plan, own_slacks_ps, slice_leads_ps
from tensorexpress.queueing import DISCIPLINES
from tensorexpress.recovery import newer_sums_of, reordering_of
from tensorexpress.scenario import Scenario
from tensorexpress.sim.flows import Ints as Ints
from tensorexpress.sim.flows import flow_columns, flows_of_background, flows_of_messages, one_after_another
from tensorexpress.sim.program_changes import PACE, RATE, LaterPlans, ProgramChange, change_columns, later_ways
from tensorexpress.sim.streams import streams
from tensorexpress.software import host_work

#: Phases of one instant: simultaneous events happen in this order, and by index inside a phase. The cluster changes
#: first; lanes of hosts and ports choose last, so that they see everything that came at the same picosecond.
CHANGE, ARRIVE, ACKNOWLEDGE, COMPUTE, JOIN, ANSWER, TIMER, BACKGROUND, WORK, TRANSMIT = range(10)

#: An event's place inside its instant is phase * PHASE + index.
PHASE = 1 << 40


#: Stands for no limit; small enough that products with it stay inside 64 bits.
NO_LIMIT = 1 << 40

#: A time that does not come.
NEVER = NO_LIMIT << 20


@dataclass(frozen=True)
class FlatPlan:
    """Everything an engine needs, as int64 arrays. `x_start` arrays delimit rows of `x` (compressed rows)."""

    iterations: int

    #: Packets of a message that are moved as one, a train; 1 is packet level. A train occupies a link for all its
    #: bytes, but goes on as soon as its first packet has arrived, and acknowledgements travel beside trains, not behind
    #: them. Engines speak of a train as a packet, and of its bytes as a chunk.
    grain: int
    #: What waits in queues at packet level, in millionths of what waits in them here, where windows are wider.
    queue_share: int

    # The network. A port is the transmitter of a directed link and has its index.
    hosts: int
    link_source: Ints
    link_target: Ints
    link_rate_bps: Ints
    link_delay_ps: Ints
    link_paced: Ints
    host_port: Ints
    queues: int
    buffer_bytes: int
    discipline: str
    slack_mode: bool
    ecn_bytes: int
    loss: float
    seed: int

    # Flows: one per job, pair of hosts and class, as a NIC keeps one connection per traffic class; then one per
    # background source. A class is a queue, or a tensor where ranks are sorted: packets of one class stay in order, and
    # what waits in a less urgent class does not use up the window of a more urgent one.
    flow_src: Ints
    flow_dst: Ints
    flow_job: Ints
    path_start: Ints
    path: Ints
    back_start: Ints
    back: Ints
    host_flows_start: Ints
    host_flows: Ints

    # Hosts and transport.
    host_order: str
    credit_bytes: int
    payload_bytes: int
    header_bytes: int
    ack_bytes: int
    acks: bool
    ack_every: int
    window_bytes: int
    initial_window_bytes: int
    rto_min_ps: int
    #: A chunk counts as lost when one that was sent this many transmissions later in its flow is acknowledged.
    reordering: int
    #: Newer sums that tell the loss of a packet that switches sum (`recovery.Gaps`).
    newer_sums: int

    # Messages; their switch rank is the queue for strict priority, otherwise the tensor's rank.
    message_flow: Ints
    message_bytes: Ints
    message_chunks: Ints
    #: Slices and packets that a message is made of at packet level; each packet has a header.
    message_slices: Ints
    message_packets: Ints
    message_rank: Ints
    message_switch_rank: Ints
    message_tensor: Ints
    #: How long before the deadline of its tensor a message should be there.
    message_lead_ps: Ints
    #: The slack of a message from when it may be sent; NEVER where it is due when what it carries is.
    message_slack_ps: Ints
    message_kind: Ints

    # Sums in switches, if there are any. A stream is a flow: what one worker sends of one pool and gets back
    # (`tensorexpress.sums`); an adder is one pool in one switch, or at the server behind the root. Streams come first.
    #: Bytes on the wire of every packet of a stream.
    sum_packet_bytes: int
    #: By flow: slots, and packets of an iteration; no slots where it is no stream.
    stream_slots: Ints
    stream_packets: Ints
    #: The adder to which it sends, and its number there; where slots are found by hash, its number in the job.
    stream_adder: Ints
    stream_child: Ints
    #: How far the next turn of a flow at its host is, only where that is not the same for all.
    stream_turn: Ints
    weighs_turns: bool
    #: Its messages in the order in which their packets are numbered.
    stream_messages_start: Ints
    stream_messages: Ints
    #: Of every message that is summed: the number of its first packet, and the message that brings the sum back.
    message_first: Ints
    message_answer: Ints
    adder_slots: Ints
    #: The link to the adder above, that adder, and its own number there; -1 where sums end.
    adder_up: Ints
    adder_parent: Ints
    adder_child: Ints
    #: A stream of its pool, as which transmissions between switches are noted.
    adder_stream: Ints
    #: All that it adds up: its children, or where slots are found by hash the workers below it, a bit for each.
    adder_everybody: Ints
    #: At a server: its host, how soon nobody can have seen its answer, how long a packet that is added and a sum that
    #: becomes parameters occupy it, and how much later the answer leaves. Otherwise -1 and 0; but what is added may
    #: occupy a switch, too.
    adder_host: Ints
    adder_round_trip_ps: Ints
    adder_add_ps: Ints
    adder_update_ps: Ints
    adder_delay_ps: Ints
    #: Its switch, -1 at a server; the queue of its pool; and the checksum of job and pool, with which hashes begin.
    adder_switch: Ints
    adder_queue: Ints
    adder_hash: Ints
    #: Its children: the links down to them, and of each the stream or the adder; the other one is -1.
    adder_children_start: Ints
    adder_links: Ints
    adder_streams: Ints
    adder_below: Ints
    #: Cells of every switch where slots are found by hash, otherwise 0; whether urgent packets take those of others.
    cells: int
    preempts: bool

    # What the lanes of hosts have to do (`tensorexpress.software`); a lane's number is LANES * host + OUT or IN.
    message_out_ps: Ints
    message_in_ps: Ints
    join_work_ps: Ints
    join_host: Ints

    # The graph; nodes are messages, then joins, and as many gates, gradients, forward and backward layers.
    joins: int
    gates: int
    need: Ints
    successors_start: Ints
    successors: Ints
    join_delay_ps: Ints

    # Workers; worker w has gates first_gate[w] to first_gate[w + 1] - 1, one per layer.
    worker_job: Ints
    worker_start_ps: Ints
    first_gate: Ints
    forward_ps: Ints
    backward_ps: Ints
    slack_ps: Ints

    # Background sources; they send nothing from their end on.
    background_flow: Ints
    background_bytes: Ints
    background_gaps_ps: Ints
    background_at_ps: Ints
    background_until_ps: Ints
    background_rank: int
    background_slack_ps: int

    # Changes: when what of which thing gets which value; those of flows' ways are rows of `later_way`.
    change_ps: Ints
    change_what: Ints
    change_thing: Ints
    change_value: Ints
    later_way_start: Ints
    later_way: Ints

    @property
    def messages(self) -> int:
        """How many messages one iteration has."""
        return len(self.message_flow)

    @property
    def first_of_kind(self) -> tuple[int, ...]:
        """The number of the first node of every kind."""
        first_gate = self.messages + self.joins
        return (0, self.messages, *(first_gate + place * self.gates for place in range(NODE_KINDS - 2)))

    @property
    def workers(self) -> int:
        """How many workers there are, over all jobs."""
        return len(self.worker_job)

    @property
    def full_packet_bytes(self) -> int:
        """Bytes of a full data packet on the wire; windows and credit are counted in these."""
        return self.payload_bytes + self.header_bytes

    @property
    def chunk_bytes(self) -> int:
        """Tensor bytes of a full train."""
        return self.grain * self.payload_bytes

    @property
    def head_bytes(self) -> int:
        """What has to arrive of a packet or train before it goes on: at packet level all of it, however large."""
        return self.full_packet_bytes if self.grain > 1 else NO_LIMIT


def transmissions_of(program: FlatPlan) -> int:
    """Return how many packets will be put on links, acknowledgements included, if nothing is sent twice; about."""
    children = np.diff(program.adder_children_start)
    summed = 2 * (children * program.stream_packets[program.adder_stream]).sum()
    hops, back = np.diff(program.path_start), np.diff(program.back_start)
    chunks = np.bincount(program.message_flow, weights=program.message_chunks, minlength=len(hops))
    chunks[program.stream_slots > 0] = 0
    acks = chunks / program.ack_every if program.acks and program.grain == 1 else 0 * chunks
    return program.iterations * int(summed + (chunks * hops + acks * back).sum())


def _connect(graphs: Sequence[Graph], gates_per_job: Sequence[int]) -> tuple[int, Ints, Ints, Ints]:
    """Put the jobs' graphs together; return the number of joins, need, successors_start and successors."""
    counts = np.array(
        [[len(g.src), len(g.sum_host), *[n] * (NODE_KINDS - 2)] for g, n in zip(graphs, gates_per_job, strict=True)]
    )
    first_of_kind = np.concatenate([[0], np.cumsum(counts.sum(axis=0))])
    before = np.cumsum(counts, axis=0) - counts

    def number(nodes: Ints, job: int) -> Ints:
        kind = kind_of(nodes)
        return np.asarray(first_of_kind[kind] + before[job][kind] + index_of(nodes), dtype=np.int64)

    sources, targets = [], []
    for job, graph in enumerate(graphs):
        for source, target in (*_executed(graph), *graph.orders):
            sources.append(number(source, job))
            targets.append(number(target, job))
    source, target = np.concatenate(sources), np.concatenate(targets)
    nodes = int(first_of_kind[-1])
    order = np.argsort(source, kind="stable")
    start = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=nodes))])
    return int(counts[:, 1].sum()), np.bincount(target, minlength=nodes), start, target[order]


def _executed(graph: Graph) -> Iterator[Edges]:
    """Yield the edges that nodes count each other down by; who sums packets under way knows no messages."""
    under_way = np.append(np.arange(len(graph.sum_host)) < graph.sums_under_way, False)
    for source, target in graph.edges:
        # Whatever is no sum looks up the last entry.
        summed = (under_way[np.where(kind_of(end) == kind_of(SUM), index_of(end), -1)] for end in (source, target))
        kept = ~np.logical_or(*summed)
        yield source[kept], target[kept]


def _changes_of_cluster(scenario: Scenario) -> Iterator[ProgramChange]:
    hosts = [host for job in scenario.jobs for host in job.workers]
    for step in scenario.rate_steps():
        yield ProgramChange(step.time_ps, RATE, step.thing, step.value)
    for step in pace_steps(scenario.changes):
        for worker, host in enumerate(hosts):
            if host == step.thing:
                yield ProgramChange(step.time_ps, PACE, worker, step.value)


def _network(scenario: Scenario) -> dict[str, Any]:
    cluster, directed = scenario.cluster, scenario.directed()
    host_port = np.full(len(cluster.hosts), -1, dtype=np.int64)
    for link, source in enumerate(directed.source):
        if source < len(cluster.hosts):
            host_port[source] = link
    return {
        "hosts": len(cluster.hosts),
        "link_source": np.array(directed.source, dtype=np.int64),
        "link_target": np.array(directed.target, dtype=np.int64),
        "link_rate_bps": np.array(directed.rate_bps, dtype=np.int64),
        "link_delay_ps": np.array(directed.delay_ps, dtype=np.int64),
        "link_paced": np.array(directed.paced, dtype=np.int64),
        "host_port": host_port,
        "queues": cluster.queues,
        "ecn_bytes": scenario.transport.ecn_bytes,
        "loss": scenario.loss,
        "seed": scenario.seed,
    }


def _hosts(plan: Plan, grain: int, *, reroutes: bool) -> dict[str, Any]:
    policy, transport = plan.policy, plan.scenario.transport
    # Where nothing can be lost, nothing times out; but parts of sums can be left where slots are found by hash, and in
    # switches that sums no longer go over.
    buffer_bytes = plan.scenario.cluster.buffer_bytes if DISCIPLINES[policy.discipline].has_limit else 0
    leaves_parts = policy.sums == "hashed" or (reroutes and policy.in_switches)
    can_wait_forever = bool(buffer_bytes or plan.scenario.loss or leaves_parts)
    # A window in which a second train cannot start would make a flow wait for every acknowledgement. Flows then have
    # more in flight than at packet level; so that buffers hold as many windows, they are larger by the same factor, and
    # so is the least time-out.
    packet_bytes = plan.framing.full_packet_bytes
    second_train_bytes = (grain + 1) * packet_bytes if grain > 1 else 0
    window_bytes = transport.window_bytes and max(transport.window_bytes, second_train_bytes)
    in_flight_bytes = window_bytes + (grain - 1) * packet_bytes

    def widened(value: int) -> int:
        return min(NO_LIMIT, value * in_flight_bytes // transport.window_bytes) if window_bytes and grain > 1 else value

    return {
        "grain": grain,
        "queue_share": 10**6 * transport.window_bytes // window_bytes if window_bytes else 10**6,
        # At the least a train has room where a packet had.
        "buffer_bytes": max(widened(buffer_bytes), grain * buffer_bytes),
        "rto_min_ps": widened(transport.rto_min_ps) if can_wait_forever else NEVER,
        "discipline": policy.discipline,
        "slack_mode": policy.by_slack,
        "host_order": policy.host_order,
        "credit_bytes": policy.credit_bytes and max(policy.credit_bytes, second_train_bytes),
        "payload_bytes": plan.framing.payload_bytes,
        "header_bytes": plan.framing.header_bytes,
        "ack_bytes": plan.framing.ack_bytes,
        "sum_packet_bytes": plan.sum_framing.full_packet_bytes,
        "acks": transport.acks,
        "ack_every": transport.ack_every,
        "window_bytes": window_bytes,
        "initial_window_bytes": widened(transport.initial_window_bytes),
        "reordering": reordering_of(policy) or NO_LIMIT,
        "newer_sums": newer_sums_of(policy),
    }


def _merged(plan: Plan, packet_level: Plan, graphs: Sequence[Graph]) -> Ints:
    """Return how many messages of packet level, where slices may be smaller, each message stands for."""
    merged = []
    for job, graph, finer in zip(plan.jobs, graphs, packet_level.jobs, strict=True):
        slices, finer_slices = (
            np.bincount([piece.tensor for piece in each.slices], minlength=len(job.ranks)) for each in (job, finer)
        )
        merged.append(np.maximum(1, finer_slices // slices)[graph.tensor])
    return np.concatenate(merged)


def _messages(plan: Plan, graphs: Sequence[Graph], grain: int, packet_level: Plan) -> dict[str, Any]:
    def joined(parts: Iterable[Ints]) -> Ints:
        return np.concatenate(list(parts)).astype(np.int64)

    sizes = joined(graph.bytes for graph in graphs)
    jobs = list(zip(plan.jobs, graphs, strict=True))
    ranks = joined(np.array(job.ranks)[graph.tensor] for job, graph in jobs)
    queues = joined(np.array(job.queues)[graph.tensor] for job, graph in jobs)
    tensors = joined(graph.tensor for graph in graphs)
    merged, payload = _merged(plan, packet_level, graphs), plan.framing.payload_bytes
    discipline = DISCIPLINES[plan.policy.discipline]
    return {
        "message_bytes": sizes,
        "message_chunks": _chunks(plan, graphs, sizes, grain * payload),
        "message_slices": merged,
        "message_packets": merged * -(-sizes // (merged * payload)),
        "message_rank": ranks,
        "message_switch_rank": discipline.rank_of(queues, ranks),
        "message_tensor": tensors,
        "message_lead_ps": joined(np.array(slice_leads_ps(job))[graph.slice] for job, graph in jobs),
        "message_slack_ps": joined(own_slacks_ps(job, NEVER) for job in plan.jobs),
        "message_kind": joined(graph.kind for graph in graphs),
        "join_delay_ps": joined(graph.sum_delay_ps for graph in graphs),
    }


def _chunks(plan: Plan, graphs: Sequence[Graph], sizes: Ints, chunk_bytes: int) -> Ints:
    """Return into how many chunks every message is cut; what switches sum has packets of its own."""
    chunks = -(-sizes // chunk_bytes)
    jobs = zip(plan.jobs, graphs, strict=True)
    packets = [np.array([count for _, count in job.packets])[graph.slice[graph.under_way]] for job, graph in jobs]
    chunks[np.concatenate([graph.under_way for graph in graphs])] = np.concatenate(packets)
    return chunks


def _software(plan: Plan, graphs: Sequence[Graph], slices: Ints) -> dict[str, Any]:
    work = [host_work(job.job, graph, plan.scenario.transport) for job, graph in zip(plan.jobs, graphs, strict=True)]
    out_ps, in_ps = (np.concatenate([getattr(each, way) for each in work]) for way in ("out_ps", "in_ps"))
    # What is one message here may be several slices at packet level, each with its own cost.
    others_ps = (slices - 1) * plan.scenario.transport.message_ps
    return {
        "message_out_ps": out_ps + np.where(out_ps > 0, others_ps, 0),
        "message_in_ps": in_ps + np.where(out_ps > 0, others_ps, 0),
        "join_work_ps": np.concatenate([each.sum_ps for each in work]),
        # What switches sum is nobody's work.
        "join_host": np.concatenate(
            [np.where(graph.sum_host < graph.first_switch, graph.sum_host, 0) for graph in graphs]
        ).astype(np.int64),
    }


def _flows(plan: Plan, graphs: Sequence[Graph], message_class: Ints, routes: LaterPlans) -> dict[str, Any]:
    """Return the flows of a program: streams, those of messages, and those of background traffic; and what changes."""
    scenario = plan.scenario
    of_messages = flows_of_messages(scenario, plan.paths, graphs, message_class)
    of_background = flows_of_background(scenario, plan.paths, len(message_class))
    others = len(of_messages.ends) + len(of_background.ends)
    of_streams, stream_columns, moves = streams(plan, others, routes)
    first_background = len(of_streams.ends) + len(of_messages.ends)
    flows = one_after_another([of_streams, of_messages, of_background])
    reroutes, ways = later_ways(flows, len(of_streams.ends), [(time_ps, later.paths) for time_ps, later in routes])
    return {
        **flow_columns(flows),
        **stream_columns,
        **change_columns([*_changes_of_cluster(scenario), *moves, *reroutes], ways),
        "background_flow": np.arange(first_background, len(of_streams.ends) + others),
    }


def _workers(plan: Plan, rounds: int) -> dict[str, Any]:
    times = compute_times(plan.scenario, rounds)
    forward, backward = ([each[way].reshape(rounds + 1, -1) for each in times] for way in (0, 1))
    workers = [(index, job) for index, job in enumerate(plan.jobs) for _ in job.job.workers]
    return {
        "worker_job": np.array([index for index, _ in workers], dtype=np.int64),
        "worker_start_ps": np.array([job.job.start_ps for _, job in workers], dtype=np.int64),
        "first_gate": np.cumsum([0, *(len(job.ranks) for _, job in workers)]),
        "forward_ps": np.concatenate(forward, axis=1),
        "backward_ps": np.concatenate(backward, axis=1),
        "slack_ps": np.concatenate([np.array(job.slack_ps, dtype=np.int64) for _, job in workers]),
    }


def build(plan: Plan, grain: int = 1, packet_level: Plan | None = None, routes: LaterPlans = ()) -> FlatPlan:
    """Turn a plan into the arrays that the engines execute, with so many packets moved as one.

    Where the plan has larger slices than what it stands for (`grain.coarsened`), that is `packet_level`. `routes` are
    plans whose trees and paths hold from some times on, in order.
    """
    scenario, discipline = plan.scenario, DISCIPLINES[plan.policy.discipline]
    rounds = scenario.rounds
    graphs = [job.graph for job in plan.jobs]
    gates = [len(job.job.workers) * len(job.ranks) for job in plan.jobs]
    joins, need, successors_start, successors = _connect(graphs, gates)
    messages = _messages(plan, graphs, grain, packet_level or plan)
    tensors, ranks = messages["message_tensor"], messages["message_switch_rank"]
    classes = np.broadcast_to(discipline.class_of(ranks, tensors), tensors.shape)
    return FlatPlan(
        iterations=rounds,
        joins=joins,
        gates=sum(gates),
        need=need.astype(np.int64),
        successors_start=successors_start.astype(np.int64),
        successors=successors.astype(np.int64),
        background_bytes=np.array([b.packet_bytes + ETHERNET_BYTES for b in scenario.background], dtype=np.int64),
        background_gaps_ps=background_gaps(scenario),
        background_at_ps=np.array([b.at_ps for b in scenario.background], dtype=np.int64),
        background_until_ps=np.array(
            [NEVER if b.until_ps is None else b.until_ps for b in scenario.background], dtype=np.int64
        ),
        # Best effort: less urgent than every tensor.
        background_rank=discipline.rank_of(scenario.cluster.queues - 1, int(tensors.max()) + 1),
        background_slack_ps=max(max(job.slack_ps) for job in plan.jobs),
        **_network(scenario),
        **_hosts(plan, grain, reroutes=bool(routes)),
        **messages,
        **_software(plan, graphs, messages["message_slices"]),
        **_flows(plan, graphs, classes, routes),
        **_workers(plan, rounds),
    )
