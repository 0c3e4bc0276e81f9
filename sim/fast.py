"""The compiled engine: lays a program out in the kernel's memory, runs it, and reads the results back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tensorexpress.errors import SimulationError, StoppedError
from tensorexpress.sim.columns import *
from tensorexpress.sim.kernel import SPARE_PACKETS, kernel
from tensorexpress.sim.model import ALPHA_ONE, loss_threshold
from tensorexpress.sim.program import BACKGROUND, COMPUTE, GAPS, NO_LIMIT, PHASE, Ints, Program
from tensorexpress.sim.record import PACKET, Record, empty_record

#: What the compiled engine knows by name; anything else needs the SimPy model.
DISCIPLINES = ("fifo", "strict", "sp-pifo", "pifo")
HOST_ORDERS = ("fifo", "priority")

#: Events between two looks at whether to stop.
BUDGET = 2_000_000


class _Memory:
    """Lays tables out one after the other in the engine's memory."""

    def __init__(self) -> None:
        self.size = HEAD
        self.parts: list[tuple[int, Ints]] = []

    def table(self, rows: int, columns: int) -> tuple[Ints, Ints]:
        """Return a new table of zeros and the addresses of its rows."""
        values = np.zeros((rows, columns), dtype=np.int64)
        return values, self.place(values) + np.arange(rows) * columns

    def place(self, values: Ints) -> int:
        """Give an array its place; return where that is."""
        at = self.size
        self.parts.append((at, values))
        self.size += values.size
        return at

    def filled(self) -> Ints:
        """Return the memory with everything in its place."""
        memory = np.zeros(self.size, dtype=np.int64)
        for at, values in self.parts:
            memory[at : at + values.size] = values.ravel()
        return memory


class _Layout:
    """A program laid out in memory, and where to find the results."""

    def __init__(self, program: Program, log_rows: int):
        p, memory = program, _Memory()
        links, rounds = len(p.link_source), p.iterations
        ports, self.port_at = memory.table(links, PORT_COLUMNS)
        queues, queue_at = memory.table(links * p.queues, QUEUE_COLUMNS)
        flows, flow_at = memory.table(len(p.flow_src), FLOW_COLUMNS)
        messages, message_at = memory.table(p.messages, MESSAGE_COLUMNS)
        nodes, node_at = memory.table(len(p.need), NODE_COLUMNS)
        workers, worker_at = memory.table(p.workers, WORKER_COLUMNS)
        gates, gate_at = memory.table(p.gates, GATE_COLUMNS)
        sources, source_at = memory.table(len(p.background_flow), BACKGROUND_COLUMNS)
        message_times, self.message_times_at = memory.table(p.messages, rounds * TIMES_COLUMNS)
        gate_times, self.gate_times_at = memory.table(p.gates, (rounds + 1) * GATE_TIMES_COLUMNS)
        first_join, first_gate, first_gradient = np.cumsum([p.messages, p.joins, p.gates])

        host_port = self.port_at[p.host_port]

        def rows(table: Ints, column: int, start: Ints, addresses: Ints) -> None:
            """Store addresses, and in two columns of the table where each row of them starts and ends."""
            at = memory.place(np.asarray(addresses, dtype=np.int64))
            table[:, column], table[:, column + 1] = start[:-1] + at, start[1:] + at

        ports[:, L_INDEX], ports[:, L_RATE], ports[:, L_DELAY] = np.arange(links), p.link_rate_bps, p.link_delay_ps
        ports[:, L_IS_HOST], ports[:, L_IDLE] = p.link_source < p.hosts, 1
        for column in (L_HEAD, L_TAIL, L_ROOT, L_CONTROL, L_CONTROL_TAIL):
            ports[:, column] = NONE
        ports[:, L_QUEUES] = queue_at[:: p.queues]
        queues[:, Q_HEAD] = queues[:, Q_TAIL] = NONE
        ports[p.host_port, L_READY] = (
            memory.place(np.zeros(len(p.host_flows), dtype=np.int64)) + p.host_flows_start[:-1]
        )

        flows[:, F_INDEX] = np.arange(len(p.flow_src))
        flows[:, F_SRC], flows[:, F_DST] = host_port[p.flow_src], host_port[p.flow_dst]
        rows(flows, F_PATH, p.path_start, self.port_at[p.path])
        rows(flows, F_BACK, p.back_start, self.port_at[p.back])
        flows[:, F_OLDEST] = flows[:, F_NEWEST] = NONE
        # A slice is pending once for its start, and again while an older entry waits to be discarded; room to spare.
        room = 4 * np.bincount(p.message_flow, minlength=len(flows)) + 8
        flows[:, F_PENDING] = memory.place(np.zeros(2 * room.sum(), dtype=np.int64)) + 2 * (np.cumsum(room) - room)
        flows[:, F_AT] = NONE
        flows[p.host_flows, F_PLACE] = np.arange(len(p.host_flows))
        flows[:, F_CURRENT] = NONE
        flows[:, F_WINDOW] = min(p.initial_window_bytes or NO_LIMIT, p.window_bytes or NO_LIMIT)
        flows[:, F_SLOW_UNTIL], flows[:, F_ALPHA], flows[:, F_TIMEOUT] = NO_LIMIT, ALPHA_ONE, p.rto_min_ps

        chunks = np.zeros((int(p.message_chunks.sum()), CHUNK_COLUMNS), dtype=np.int64)
        chunks_at = memory.place(chunks)
        chunks[:, C_MESSAGE] = np.repeat(message_at, p.message_chunks)
        messages[:, M_INDEX], messages[:, M_NODE] = np.arange(p.messages), node_at[: p.messages]
        messages[:, M_FLOW], messages[:, M_BYTES] = flow_at[p.message_flow], p.message_bytes
        messages[:, M_CHUNKS] = p.message_chunks
        first_chunk = np.cumsum(p.message_chunks) - p.message_chunks
        messages[:, M_FIRST_CHUNK] = chunks_at + first_chunk * CHUNK_COLUMNS
        messages[:, M_RANK], messages[:, M_SWITCH_RANK] = p.message_rank, p.message_switch_rank
        messages[:, M_LEAD] = p.message_lead_ps
        messages[:, M_TIMES], messages[:, M_ITERATION] = self.message_times_at, NONE
        messages[:, M_UNACKNOWLEDGED] = messages[:, M_NEXT] = p.message_chunks
        message_times[:] = NONE

        nodes[:, N_KIND] = np.searchsorted(
            [first_join, first_gate, first_gradient], np.arange(len(nodes)), side="right"
        )
        nodes[:first_join, N_THING] = message_at
        nodes[first_gate:first_gradient, N_THING] = gate_at
        nodes[:, N_NEED] = nodes[:, N_NEED_ALL] = p.need
        nodes[:, N_DEADLINE] = NEVER
        nodes[first_join:first_gate, N_DELAY] = p.join_delay_ps
        rows(nodes, N_SUCCESSORS, p.successors_start, node_at[p.successors])

        workers[:, W_ITERATION] = workers[:, W_WAITING] = NONE
        workers[:, W_GATE] = workers[:, W_FIRST_GATE] = gate_at[p.first_gate[:-1]]
        workers[:, W_LAST_GATE] = gate_at[p.first_gate[1:] - 1]
        gates[:, G_WORKER] = np.repeat(worker_at, np.diff(p.first_gate))
        gates[:, G_SLACK], gates[:, G_GRADIENT] = p.slack_ps, node_at[first_gradient:]
        gates[:, G_TIMES] = self.gate_times_at
        times = gate_times.reshape(p.gates, rounds + 1, GATE_TIMES_COLUMNS)
        times[:] = NONE
        times[:, :, T_FORWARD], times[:, :, T_BACKWARD] = p.forward_ps.T, p.backward_ps.T

        sources[:, B_FLOW], sources[:, B_SIZE] = flow_at[p.background_flow], p.background_bytes
        sources[:, B_GAPS] = memory.place(p.background_gaps_ps) + np.arange(len(sources)) * GAPS

        events = 2 * links + p.workers + p.joins + len(flows) + len(sources) + 1
        events_at = memory.place(np.zeros(2 * events, dtype=np.int64))
        stack_at = memory.place(np.zeros(2 * (p.messages + p.joins + 1), dtype=np.int64))

        m = memory.filled()
        for field, value in {
            EVENTS: events_at, STACK: stack_at, FREE: NONE, RUNNING: p.workers, QUEUES: p.queues,
            DISCIPLINE: DISCIPLINES.index(p.discipline), BUFFER: p.buffer_bytes, SLACK_MODE: p.slack_mode,
            ECN: p.ecn_bytes, LOSS: loss_threshold(p.loss), SEED: p.seed, BY_RANK: p.host_order == "priority",
            CREDIT: p.credit_bytes, PAYLOAD: p.payload_bytes, HEADER: p.header_bytes, ACK_SIZE: p.ack_bytes,
            ACKS: p.acks, ACK_EVERY: p.ack_every, LARGEST_WINDOW: p.window_bytes or NO_LIMIT, RTO_MIN: p.rto_min_ps,
            REORDERING: p.reordering,
            ROUNDS: rounds, OTHER_RANK: p.background_rank, OTHER_SLACK: p.background_slack_ps, LOGGING: log_rows > 0,
        }.items():  # fmt: skip
            m[field] = value
        # What is sorted is a heap.
        first_events = sorted(
            [(start, COMPUTE * PHASE + worker) for worker, start in zip(worker_at, p.worker_start_ps, strict=True)]
            + [(gaps[0], BACKGROUND * PHASE + at) for at, gaps in zip(source_at, p.background_gaps_ps, strict=True)]
        )
        m[EVENT_COUNT] = len(first_events)
        m[events_at : events_at + 2 * len(first_events)] = np.ravel(first_events)
        self.program = program
        self.memory = _with_packets(m, 4096)

    def write(self, record: Record) -> None:
        """Copy what happened out of the memory."""
        p, m = self.program, self.memory

        def block(at: Ints, width: int) -> Ints:
            return m[at[0] : at[0] + len(at) * width].reshape(len(at), -1) if len(at) else np.zeros((0, width), int)

        rounds = p.iterations
        times = block(self.message_times_at, rounds * TIMES_COLUMNS).reshape(p.messages, rounds, TIMES_COLUMNS)
        record.ready_ps, record.sent_ps, record.delivered_ps = (
            times[:, :, column].T.copy() for column in (T_READY, T_SENT, T_DELIVERED)
        )
        gates = block(self.gate_times_at, (rounds + 1) * GATE_TIMES_COLUMNS).reshape(p.gates, rounds + 1, -1)
        record.forward_start_ps = gates[:, :, T_STARTED].T.copy()
        record.gate_open_ps = gates[:, :rounds, T_OPENED].T.copy()
        ports = block(self.port_at, PORT_COLUMNS)
        record.link_bytes, record.link_busy_ps = ports[:, L_BYTES].copy(), ports[:, L_BUSY].copy()
        record.link_background_drops = ports[:, L_OTHER_DROPS].copy()
        record.link_drops, record.link_losses = ports[:, L_DROPS].copy(), ports[:, L_LOSSES].copy()
        record.link_marks, record.link_peak_bytes = ports[:, L_MARKS].copy(), ports[:, L_PEAK].copy()
        record.retransmissions, record.timeouts = int(m[RETRANSMISSIONS]), int(m[TIMEOUTS])
        record.transmissions, record.end_ps = int(m[TRANSMISSIONS]), int(m[NOW])


def _with_packets(m: Ints, count: int) -> Ints:
    """Return the memory with room for more packets at its end."""
    packets = np.zeros((count, PACKET_COLUMNS), dtype=np.int64)
    addresses = m.size + np.arange(count) * PACKET_COLUMNS
    packets[:-1, P_NEXT], packets[-1, P_NEXT] = addresses[1:], m[FREE]
    grown = np.concatenate([m, packets.ravel()])
    grown[FREE] = addresses[0]
    grown[FREE_COUNT] += count
    return grown


def what_is_not_compiled(program: Program) -> str | None:
    """Return what of the program only the SimPy model can execute, None when nothing."""
    if program.discipline not in DISCIPLINES:
        return f"discipline {program.discipline!r}"
    if program.host_order not in HOST_ORDERS:
        return f"host order {program.host_order!r}"
    return None


def run(program: Program, record_packets: bool = False, stopped: Callable[[], bool] = lambda: False) -> Record:
    """Execute a program with the compiled engine; `stopped` is asked now and then whether to give up."""
    log = np.zeros((1 << 16 if record_packets else 0, LOG_COLUMNS), dtype=np.int64)
    layout = _Layout(program, len(log))
    packets = 4096
    while True:
        m = layout.memory
        kernel(m.ctypes.data, log.ctypes.data, len(log), BUDGET)
        if m[STATUS] == FINISHED:
            break
        if stopped():
            raise StoppedError
        if m[STATUS] == STUCK:
            raise SimulationError("no packet can make progress any more; this is a defect, please report it")
        if m[STATUS] == GROW and m[FREE_COUNT] < SPARE_PACKETS:
            layout.memory = _with_packets(m, packets)
            packets *= 2
        elif m[STATUS] == GROW:
            log = np.concatenate([log, np.zeros_like(log)])
    record = empty_record(program)
    layout.write(record)
    if record_packets:
        record.packets = log[: m[LOGGED]].copy().view(PACKET).reshape(-1)
    return record
