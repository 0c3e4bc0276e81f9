"""The compiled engine: lays a program out in the kernel's memory, runs it, and reads the results back."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorexpress.background import GAPS
from tensorexpress.buffer import shares
from tensorexpress.changes import USUAL_PACE
from tensorexpress.errors import SimulationError, StoppedError
from tensorexpress.graph import NODE_KINDS
from tensorexpress.memory import check_memory
from tensorexpress.queueing import DISCIPLINES, HOST_ORDERS, Pifo, not_compiled
from tensorexpress.recovery import ALPHA_ONE
from tensorexpress.sim.columns import *
from tensorexpress.sim.flat_plan import BACKGROUND, CHANGE, COMPUTE, NO_LIMIT, PHASE, FlatPlan, Ints
from tensorexpress.sim.kernel.native import kernel
from tensorexpress.sim.model import loss_threshold
from tensorexpress.sim.program_changes import BACK, CHILD_BELOW, CHILD_LINK, PACE, PARENT, PATH, RATE, UP
from tensorexpress.sim.record import PACKET, Record, empty_record
from tensorexpress.software import IN, LANES, OUT
from tensorexpress.units import PS_PER_SECOND

#: Events between two looks at whether to stop.
BUDGET = 2_000_000

#: So many times that may go on while no message arrives: longer than the largest tensor of the zoo is under way.
PATIENCE = 500

#: Rows for packets that one event can take at the most where no switch sums, and a little more.
SPARE_PACKETS = 4

#: Rows for packets at the start, and those that are added at once at the most.
FIRST_PACKETS, MORE_PACKETS = 4096, 1 << 16

#: So many packets of one flow, some of them sent again, have numbers that fit into half a word.
MOST_PACKETS = 1 << 30

#: At which word of a cache line large arrays of numpy start, behind what malloc keeps there; only speed depends on it.
START = 2


Halves = NDArray[np.int32]


class _Table(NamedTuple):
    """Rows of one kind of thing, and the address of each."""

    rows: Ints
    at: Ints

    @property
    def halves(self) -> Halves:
        """The same rows, for columns of half a word."""
        return self.rows.view(np.int32)


class _Memory:
    """Lays tables out one after the other in the engine's memory, in which so many words are expected."""

    def __init__(self, expected: int) -> None:
        self.size = HEAD
        self.words = np.zeros(expected, dtype=np.int64)
        #: What found no room there.
        self.parts: list[tuple[int, Ints]] = []

    def align(self) -> int:
        """Return where the next cache line starts, and go on there."""
        self.size += -(self.size + START) % LINE
        return self.size

    def table(self, rows: int, columns: int) -> _Table:
        """Return a new table of zeros."""
        if columns % LINE == 0:
            self.align()
        at, values = self._zeros(rows * columns)
        return _Table(values.reshape(rows, columns), at + np.arange(rows) * columns)

    def place(self, values: Ints) -> int:
        """Give an array its place; return where that is."""
        at, own = self._zeros(values.size)
        own[:] = values.ravel()
        return at

    def _zeros(self, words: int) -> tuple[int, Ints]:
        at = self.room(words)
        if self.size <= self.words.size:
            return at, self.words[at : self.size]
        self.parts.append((at, np.zeros(words, dtype=np.int64)))
        return self.parts[-1]

    def room(self, words: int) -> int:
        """Return where a number of free words lie; nothing touches them before they are needed."""
        at = self.size
        self.size += words
        return at

    def place_rows(self, table: Ints | Halves, column: int, start: Ints, addresses: Ints) -> None:
        """Place addresses; store in two columns of a table where each of its rows of them starts and ends."""
        at = self.place(np.asarray(addresses, dtype=np.int64))
        table[:, column], table[:, column + 1] = start[:-1] + at, start[1:] + at

    def filled(self) -> Ints:
        """Return the memory with everything in its place."""
        if self.size > MOST_WORDS:
            raise SimulationError("found a program of more than 16 GiB; accepted: what fits (--grain needs less)")
        if self.size > self.words.size:
            self.words = _with_reserve(self.words, self.size)
        for at, values in self.parts:
            self.words[at : at + values.size] = values.ravel()
        return self.words


class _Layout:
    """A program laid out in memory, and where to find the results."""

    def __init__(self, program: FlatPlan, log_rows: int):
        p, memory = program, _Memory(_expected_words(program))
        self.program, self._layout = program, memory
        self.ports = memory.table(len(p.link_source), PORT_COLUMNS)
        self.lanes = memory.table(LANES * p.hosts, LANE_COLUMNS)
        flows, place = memory.table(len(p.flow_src), FLOW_COLUMNS), _places(p)
        self.flows = _Table(np.zeros_like(flows.rows), flows.at[place])
        self.messages = memory.table(p.messages, MESSAGE_COLUMNS)
        self.nodes = memory.table(len(p.need), NODE_COLUMNS)
        self.workers = memory.table(p.workers, WORKER_COLUMNS)
        self.gates = memory.table(p.gates, GATE_COLUMNS)
        self.sources = memory.table(len(p.background_flow), BACKGROUND_COLUMNS)
        self.changes = memory.table(len(p.change_ps), CHANGE_COLUMNS)
        self.adders = memory.table(len(p.adder_slots), ADDER_COLUMNS)
        self.message_times = memory.table(p.messages, p.iterations * TIMES_COLUMNS)
        self.gate_times = memory.table(p.gates, (p.iterations + 1) * GATE_TIMES_COLUMNS)
        self._fill_ports()
        self._fill_lanes()
        self._fill_flows()
        self._fill_streams()
        self._fill_adders()
        self._fill_messages()
        self._fill_nodes()
        self._fill_workers()
        self._fill_sources()
        self._fill_changes()
        flows.rows[place] = self.flows.rows
        self.memory = self._start(log_rows)
        self._used, self.packets = memory.align(), 0
        self.add_packets(FIRST_PACKETS)

    def add_packets(self, count: int) -> None:
        """Free more rows for packets, behind all that is used."""
        is_long = self.memory[DISCIPLINE] == Pifo.code or self.memory[SLACK_MODE]
        columns = LONG_PACKET_COLUMNS if is_long else PACKET_COLUMNS
        first, self._used = self._used, self._used + count * columns
        if self._used > MOST_WORDS:
            raise SimulationError("found more packets under way than fit into 16 GiB; accepted: what fits")
        if self._used > self.memory.size:
            # Old and new memory are there at once; of the new one, all that is used.
            check_memory(
                "simulation",
                8 * (self.memory.size + self._used),
                f"{self.packets + count:,} packets under way, more with every time-out or window",
            )
            self.memory = _with_reserve(self.memory, self._used)
        self.packets += count
        m, addresses = self.memory, first + np.arange(count) * columns
        m.view(np.int32)[2 * addresses + P_NEXT] = np.append(addresses[1:], m[FREE])
        m[FREE] = first
        m[FREE_COUNT] += count

    def _fill_ports(self) -> None:
        p, memory, ports = self.program, self._layout, self.ports.rows
        memory.align()  # so that no queue lies in two cache lines
        queues = memory.table(len(ports) * p.queues, QUEUE_COLUMNS)
        queues.rows[:, Q_HEAD] = queues.rows[:, Q_TAIL] = NONE
        ports[:, L_INDEX], ports[:, L_QUEUES] = np.arange(len(ports)), queues.at[:: p.queues]
        ports[:, L_HEAD] = ports[:, L_TAIL] = ports[:, L_ROOT] = NONE
        # What a host has where a switch has its buffer.
        ports[p.host_port, L_CONTROL] = ports[p.host_port, L_CONTROL_TAIL] = NONE
        ports[p.host_port, L_READY_COUNT] = 0
        ports[:, L_RATE], ports[:, L_DELAY], ports[:, L_IS_PACED] = p.link_rate_bps, p.link_delay_ps, p.link_paced
        ports[:, L_IS_HOST], ports[:, L_IDLE] = p.link_source < p.hosts, 1
        # The two children of an entry in one cache line, and their four in one.
        words = LINE * -(-ENTRY_COLUMNS * (np.diff(p.host_flows_start) + 1) // LINE)
        ports[p.host_port, L_READY] = memory.align() + ENTRY_COLUMNS + np.cumsum(words) - words
        memory.room(int(words.sum()))

    def _fill_lanes(self) -> None:
        p, lanes = self.program, self.lanes.rows
        lanes[:, S_NODE] = NONE
        lanes[OUT::LANES, S_IS_OUT] = 1
        # Everything waits in a lane once at the most.
        room = np.zeros(len(lanes), dtype=np.int64)
        room[OUT::LANES] = np.bincount(p.flow_src[p.message_flow], p.message_out_ps > 0, p.hosts)
        room[IN::LANES] = np.bincount(p.flow_dst[p.message_flow], p.message_in_ps > 0, p.hosts)
        room[IN::LANES] += np.bincount(p.join_host, p.join_work_ps > 0, p.hosts).astype(np.int64)
        lanes[:, S_HEAP] = self._layout.room(2 * int(room.sum())) + 2 * (np.cumsum(room) - room)
        self.ports.rows[p.host_port, L_OUT_LANE] = self.lanes.at[OUT::LANES]

    def _fill_flows(self) -> None:
        p, memory, flows, small = self.program, self._layout, self.flows.rows, self.flows.halves
        host_port = self.ports.at[p.host_port]
        small[:, F_INDEX] = np.arange(len(flows))
        small[:, F_SRC], small[:, F_DST] = host_port[p.flow_src], host_port[p.flow_dst]
        flows[:, F_SERVED] = _places(p)
        self._place_ways()
        for column in (F_OLDEST, F_NEWEST, F_CURRENT, F_PROBE, F_ACK):
            small[:, column] = NONE
        # A slice is pending once for its start, and again while an older entry waits to be discarded; room to spare.
        room = 4 * np.bincount(p.message_flow, minlength=len(flows)) + 8 + p.stream_slots
        small[:, F_PENDING] = memory.room(2 * int(room.sum())) + 2 * (np.cumsum(room) - room)
        flows[:, F_WINDOW] = min(p.initial_window_bytes or NO_LIMIT, p.window_bytes or NO_LIMIT)
        flows[:, F_SLOW_UNTIL], flows[:, F_ALPHA], flows[:, F_TIMEOUT] = NO_LIMIT, ALPHA_ONE, p.rto_min_ps
        flows[:, F_TURN] = p.stream_turn

    def _place_ways(self) -> None:
        """Place the ways of flows and their acknowledgements, each once for all that go it: so they stay in a cache."""
        p, flows, small = self.program, len(self.flows.at), self.flows.halves
        start = np.concatenate([p.path_start, p.path_start[-1] + p.back_start[1:]])
        links, hops = np.concatenate([p.path, p.back]), np.diff(start)
        # Ways that are equal so far have the same number, hop after hop.
        number = hops
        for hop in range(hops.max(initial=0)):
            link = np.where(hop < hops, links[np.minimum(start[:-1] + hop, len(links) - 1)], 0)
            number = np.unique(number * len(self.ports.at) + link, return_inverse=True)[1]
        _, first, number = np.unique(number, return_index=True, return_inverse=True)
        hops = hops[first]
        ends = np.cumsum(hops)
        kept = links[np.arange(hops.sum()) + np.repeat(start[first] - (ends - hops), hops)]
        ends += self._layout.place(self.ports.at[kept])
        for column, own in ((F_PATH, number[:flows]), (F_BACK, number[flows:])):
            small[:, column], small[:, column + 1] = ends[own] - hops[own], ends[own]

    def _fill_streams(self) -> None:
        p, memory = self.program, self._layout
        (own,) = np.nonzero(p.stream_slots)
        streams = memory.table(len(own), STREAM_COLUMNS)
        self.flows.halves[own, F_STREAM], self.flows.rows[own, F_WINDOW] = streams.at, 0
        slots = memory.table(int(p.stream_slots.sum()), SLOT_COLUMNS)
        first = np.cumsum(p.stream_slots[own]) - p.stream_slots[own]
        slots.rows[:, Z_NUMBER] = np.arange(len(slots.rows)) - np.repeat(first, p.stream_slots[own])
        rows = streams.rows
        rows[:, R_SLOTS], rows[:, R_PACKETS] = p.stream_slots[own], p.stream_packets[own]
        rows[:, R_ADDER], rows[:, R_CHILD] = self.adders.at[p.stream_adder[own]], p.stream_child[own]
        rows[:, R_FIRST_SLOT] = slots.at[first]
        start = p.stream_messages_start[: len(own) + 1]
        memory.place_rows(rows, R_MESSAGES, start, self.messages.at[p.stream_messages])

    def _fill_adders(self) -> None:
        p, memory, adders = self.program, self._layout, self.adders.rows
        self.children = children = memory.table(len(p.adder_links), CHILD_COLUMNS)
        children.rows[:, D_LINK] = self.ports.at[p.adder_links]
        children.rows[:, D_STREAM] = _at(self.flows.at, p.adder_streams)
        children.rows[:, D_BELOW] = _at(self.adders.at, p.adder_below)
        sets = memory.table(2 * int(p.adder_slots.sum()), SET_COLUMNS)
        sets.rows[:, V_NUMBER] = NONE
        adders[:, A_SLOTS], adders[:, A_STREAM] = p.adder_slots, _at(self.flows.at, p.adder_stream)
        adders[:, A_SETS] = _at(sets.at, 2 * (np.cumsum(p.adder_slots) - p.adder_slots))
        adders[:, A_UP], adders[:, A_PARENT] = _at(self.ports.at, p.adder_up), _at(self.adders.at, p.adder_parent)
        adders[:, A_CHILD], adders[:, A_EVERYBODY] = p.adder_child, p.adder_everybody
        adders[:, A_SERVER] = _at(self.ports.at[p.host_port], p.adder_host)
        adders[:, A_ROUND_TRIP], adders[:, A_DELAY] = p.adder_round_trip_ps, p.adder_delay_ps
        adders[:, A_ADD], adders[:, A_UPDATE], adders[:, A_ANSWER] = p.adder_add_ps, p.adder_update_ps, NONE
        adders[:, A_QUEUE], adders[:, A_HASH] = p.adder_queue, p.adder_hash
        switches = np.unique(p.adder_switch[p.adder_switch >= 0])
        # When each switch is through with what it has to add, for all its adders.
        busy = memory.table(len(switches), 1)
        adders[:, A_BUSY] = np.where(p.adder_switch < 0, NONE, _at(busy.at, np.searchsorted(switches, p.adder_switch)))
        cells = memory.table(len(switches) * p.cells, CELL_COLUMNS)
        if p.cells:
            own = np.searchsorted(switches, p.adder_switch) * p.cells
            adders[:, A_CELLS] = np.where(p.adder_switch < 0, NONE, cells.at[np.minimum(own, len(cells.at) - 1)])
        first, end = p.adder_children_start[:-1], p.adder_children_start[1:]
        adders[:, A_CHILDREN] = _at(children.at, first)
        adders[:, A_CHILDREN_END] = adders[:, A_CHILDREN] + (end - first) * CHILD_COLUMNS

    @property
    def spare_packets(self) -> int:
        """How many packets one event can create, and a little more: copies of a sum, or all of a pool again."""
        p = self.program
        copies = np.diff(p.adder_children_start).max(initial=0)
        return SPARE_PACKETS + int(max(copies, p.stream_slots.max(initial=0)))

    def _fill_messages(self) -> None:
        p, messages, small = self.program, self.messages.rows, self.messages.halves
        # What switches sum is kept by slots.
        summed = p.stream_slots[p.message_flow] > 0
        words = np.where(summed, 0, -(-p.message_chunks // 8))
        small[:, M_STATES] = self._layout.room(int(words.sum())) + np.cumsum(words) - words
        small[:, M_INDEX], small[:, M_NODE] = np.arange(p.messages), self.nodes.at[: p.messages]
        small[:, M_FLOW], messages[:, M_BYTES] = self.flows.at[p.message_flow], p.message_bytes
        small[:, M_SWITCH_RANK] = p.message_switch_rank
        messages[:, M_LEAD], messages[:, M_SLACK] = p.message_lead_ps, p.message_slack_ps
        messages[:, M_OUT], small[:, M_ITERATION] = p.message_out_ps, NONE
        # Before the first start all chunks are as good as sent and acknowledged.
        small[:, M_CHUNKS] = small[:, M_UNACKNOWLEDGED] = small[:, M_NEXT] = p.message_chunks
        small[:, M_SLICES], small[:, M_PACKETS] = p.message_slices, p.message_packets
        small[summed, M_FIRST], small[summed, M_COPIED] = p.message_first[summed], NONE
        small[summed, M_ANSWER] = _at(self.messages.at, p.message_answer[summed])
        small[:, M_TIMES] = self.message_times.at
        self.message_times.rows[:] = NONE
        self.message_times.rows.reshape(-1, TIMES_COLUMNS)[:, T_TIMED_OUT] = 0

    def _fill_nodes(self) -> None:
        p, nodes, small = self.program, self.nodes.rows, self.nodes.halves
        _, first_join, first_gate, *_ = first_of_kind = p.first_of_kind
        small[:, N_KIND] = np.searchsorted(first_of_kind, np.arange(len(nodes)), side="right") - 1
        small[:first_join, N_THING] = self.messages.at
        small[first_gate:, N_THING] = np.tile(self.gates.at, NODE_KINDS - 2)
        nodes[first_join:first_gate, N_DELAY] = p.join_delay_ps
        nodes[:first_gate, N_WORK] = np.concatenate([p.message_in_ps, p.join_work_ps])
        small[:first_gate, N_LANE] = self.lanes.at[
            LANES * np.concatenate([p.flow_dst[p.message_flow], p.join_host]) + IN
        ]
        small[:, N_NEED] = small[:, N_NEED_ALL] = p.need
        nodes[:, N_DEADLINE] = NEVER
        self._layout.place_rows(small, N_SUCCESSORS, p.successors_start, self.nodes.at[p.successors])

    def _fill_workers(self) -> None:
        p, workers, gates = self.program, self.workers.rows, self.gates.rows
        workers[:, W_ITERATION] = workers[:, W_WAITING] = NONE
        workers[:, W_PACE] = USUAL_PACE
        workers[:, W_GATE] = workers[:, W_FIRST_GATE] = self.gates.at[p.first_gate[:-1]]
        workers[:, W_LAST_GATE] = self.gates.at[p.first_gate[1:] - 1]
        gates[:, G_WORKER] = np.repeat(self.workers.at, np.diff(p.first_gate))
        gates[:, G_SLACK], gates[:, G_TIMES] = p.slack_ps, self.gate_times.at
        for column, first in zip((G_NODE, G_GRADIENT, G_FORWARD, G_BACKWARD), p.first_of_kind[2:], strict=True):
            gates[:, column] = self.nodes.at[first : first + p.gates]
        # A backward layer before which nothing comes is always open.
        gates[:, G_OPENED_BACKWARD] = np.where(p.need[-p.gates :] > 0, 0, NEVER)
        times = self.gate_times.rows.reshape(p.gates, p.iterations + 1, GATE_TIMES_COLUMNS)
        times[:] = NONE
        times[:, :, T_FORWARD], times[:, :, T_BACKWARD] = p.forward_ps.T, p.backward_ps.T

    def _fill_sources(self) -> None:
        p, sources = self.program, self.sources.rows
        sources[:, B_FLOW], sources[:, B_SIZE] = self.flows.at[p.background_flow], p.background_bytes
        sources[:, B_GAPS] = self._layout.place(p.background_gaps_ps) + np.arange(len(sources)) * GAPS
        sources[:, B_UNTIL] = p.background_until_ps

    def _fill_changes(self) -> None:
        p = self.program
        later = self._layout.place(self.ports.at[p.later_way]) + p.later_way_start
        # The way of a flow is one word: where it starts, and where it ends.
        ways = np.stack([later[:-1], later[1:]], axis=1).astype(np.int32).view(np.int64).ravel()
        # Of everything that changes: where things are, which of their words it is, and where values are.
        fields = {
            RATE: (self.ports.at, L_RATE, None), PACE: (self.workers.at, W_PACE, None),
            UP: (self.adders.at, A_UP, self.ports.at), PARENT: (self.adders.at, A_PARENT, self.adders.at),
            CHILD_LINK: (self.children.at, D_LINK, self.ports.at),
            CHILD_BELOW: (self.children.at, D_BELOW, self.adders.at),
            PATH: (self.flows.at, F_PATH // 2, ways), BACK: (self.flows.at, F_BACK // 2, ways),
        }  # fmt: skip
        rows = self.changes.rows
        columns = (p.change_what.tolist(), p.change_thing.tolist(), p.change_value.tolist())
        for row, (what, thing, value) in enumerate(zip(*columns, strict=True)):
            things, word, values = fields[what]
            rows[row, X_WORD], rows[row, X_VALUE] = things[thing] + word, value if values is None else values[value]

    def _start(self, log_rows: int) -> Ints:
        """Return the memory with the first events in it."""
        p, memory = self.program, self._layout
        # Every port has two events at the most, everything else one, and a flow a timer beside it.
        events = 2 * len(self.ports.at) + len(self.flows.at) + len(self.lanes.at) + p.workers + p.joins
        events += len(self.sources.at) + len(self.adders.at) + len(self.changes.at) + 1
        checksums_at = memory.place(np.array([_checksum_step(byte) for byte in range(256)], dtype=np.int64))
        events_at, waiting = memory.room(2 * events), memory.table(events, EVENT_COLUMNS)
        sleepers_at = memory.room(2 * (len(self.flows.at) + events))
        waiting.rows[:-1, Y_NEXT], waiting.rows[-1, Y_NEXT] = waiting.at[1:], NONE
        buckets_at = memory.place(np.full(BUCKET_COUNT, NONE, dtype=np.int64))
        places_at = memory.place(np.full(-(-len(self.flows.at) // 2), NONE, dtype=np.int64))
        stack_at = memory.room(2 * (p.messages + p.joins + 1))
        m = memory.filled()
        discipline, host_order = DISCIPLINES[p.discipline].code, HOST_ORDERS[p.host_order].code
        own_bytes, common_bytes = shares(p.buffer_bytes, p.queues if DISCIPLINES[p.discipline].has_queues else 1)
        assert discipline is not None
        assert host_order is not None
        for field, value in {
            EVENTS: events_at, SLEEPERS: sleepers_at, BUCKETS: buckets_at, FREE_EVENT: waiting.at[0],
            BUCKET_SHIFT: self._bucket_shift(), STACK: stack_at, FREE: NONE, RUNNING: p.workers, QUEUES: p.queues,
            DISCIPLINE: discipline, OWN: own_bytes, COMMON: common_bytes, SLACK_MODE: p.slack_mode,
            ECN: p.ecn_bytes, LOSS: loss_threshold(p.loss), SEED: p.seed, HOST_ORDER: host_order,
            CREDIT: p.credit_bytes, PAYLOAD: p.payload_bytes, HEADER: p.header_bytes, ACK_SIZE: p.ack_bytes,
            ACKS: p.acks, ACK_EVERY: p.ack_every, LARGEST_WINDOW: p.window_bytes or NO_LIMIT, RTO_MIN: p.rto_min_ps,
            REORDERING: p.reordering, NEWER_SUMS: p.newer_sums, ROUNDS: p.iterations,
            OTHER_RANK: p.background_rank, OTHER_SLACK: p.background_slack_ps, LOGGING: log_rows > 0,
            TRAINS: p.grain > 1, CHUNK: p.chunk_bytes, HEAD_BYTES: p.head_bytes, QUEUE_SHARE: p.queue_share,
            SPARE: self.spare_packets, CELLS: p.cells, CHECKSUMS: checksums_at, PREEMPTS: p.preempts,
            SUM_PACKET: p.sum_packet_bytes, WEIGHS_TURNS: p.weighs_turns, FLOWS: self.flows.at.min(), PLACES: places_at,
        }.items():  # fmt: skip
            m[field] = value
        # What is sorted is a heap.
        first_events = sorted(
            [(start, COMPUTE * PHASE + at) for at, start in zip(self.workers.at, p.worker_start_ps, strict=True)]
            + [
                (due, BACKGROUND * PHASE + at)
                for at, due, until in zip(self.sources.at, self._first_due_ps(), p.background_until_ps, strict=True)
                if due < until
            ]
            + [(time, CHANGE * PHASE + at) for at, time in zip(self.changes.at, p.change_ps, strict=True)]
        )
        m[SLEEPER_COUNT] = len(first_events)
        m[sleepers_at : sleepers_at + 2 * len(first_events)] = np.ravel(first_events)
        return m

    def _bucket_shift(self) -> int:
        """Return the length of a bucket, as a power of two: long enough for some ten events while links are busy."""
        p = self.program
        packet_ps = (p.chunk_bytes + p.header_bytes) * 8 * PS_PER_SECOND // int(p.link_rate_bps.max())
        longest = NO_LIMIT // BUCKET_COUNT << 20  # so that no time overflows
        return min(longest, max(1, 8 * packet_ps // len(p.link_source))).bit_length() - 1

    def _first_due_ps(self) -> Ints:
        """Return when every background source sends first."""
        return np.asarray(self.program.background_at_ps + self.program.background_gaps_ps[:, 0])

    def arrived(self) -> int:
        """Return how many messages have arrived so far, in all iterations."""
        times, width = self.message_times.at, self.program.iterations * TIMES_COLUMNS
        delivered = self.memory[times[0] : times[-1] + width].reshape(-1, TIMES_COLUMNS)[:, T_DELIVERED]
        return int(np.count_nonzero(delivered != NONE))

    def why_stuck(self) -> str:
        """Return why no message arrives, by what the ports have counted, and how to mend it."""
        ports = self.memory[self.ports.at[:, None] + np.array([L_DROPS, L_LOSSES])]
        drops, losses = ports.sum(axis=0).tolist()
        timeouts = int(self.memory[TIMEOUTS])
        if timeouts > 10 * (drops + losses):
            return (
                f"{timeouts:,} time-outs have sent packets again that only waited, {drops:,} packets were dropped; "
                "take faster links, or a larger transport.rto_min"
            )
        if losses > drops:
            return f"{losses:,} packets were lost on links; take a smaller loss"
        return "the same packets are dropped again and again; give cluster.buffer room for a packet of every worker"

    def write(self, record: Record) -> None:
        """Copy what happened out of the memory."""
        p, m = self.program, self.memory

        def block(at: Ints, width: int) -> Ints:
            return m[at[0] : at[0] + len(at) * width].reshape(len(at), -1) if len(at) else np.zeros((0, width), int)

        rounds = p.iterations
        times = block(self.message_times.at, rounds * TIMES_COLUMNS).reshape(p.messages, rounds, TIMES_COLUMNS)
        record.ready_ps, record.sent_ps, record.delivered_ps, record.timed_out_ps = (
            times[:, :, column].T.copy() for column in (T_READY, T_SENT, T_DELIVERED, T_TIMED_OUT)
        )
        gates = block(self.gate_times.at, (rounds + 1) * GATE_TIMES_COLUMNS).reshape(p.gates, rounds + 1, -1)
        record.forward_start_ps = gates[:, :, T_STARTED].T.copy()
        record.gate_open_ps = gates[:, :rounds, T_OPENED].T.copy()
        record.backward_start_ps = gates[:, :rounds, T_STARTED_BACKWARD].T.copy()
        ports = block(self.ports.at, PORT_COLUMNS)
        record.link_bytes, record.link_busy_ps = ports[:, L_BYTES].copy(), ports[:, L_BUSY].copy()
        record.link_background_drops = ports[:, L_OTHER_DROPS].copy()
        record.link_drops, record.link_losses = ports[:, L_DROPS].copy(), ports[:, L_LOSSES].copy()
        record.link_marks = ports[:, L_MARKS].copy()
        record.link_peak_bytes = np.where(ports[:, L_IS_HOST], 0, ports[:, L_PEAK])
        record.retransmissions, record.timeouts = int(m[RETRANSMISSIONS]), int(m[TIMEOUTS])
        record.transmissions, record.end_ps = int(m[TRANSMISSIONS]), int(m[NOW])
        record.server_sums, record.whole_sums = int(m[SERVER_SUMS]), int(m[WHOLE_SUMS])
        record.server_packets = int(m[SERVER_PACKETS])
        record.collisions, record.evictions = int(m[COLLISIONS]), int(m[EVICTIONS])


def _expected_words(p: FlatPlan) -> int:
    """Return about how many words a program takes, rather more than less: what nobody touches needs no memory."""
    return (1 << 16) + 64 * len(p.need) + 64 * len(p.flow_src) + int(p.message_chunks.sum()) // 2


def _places(p: FlatPlan) -> Ints:
    """Return the place of every flow: those of one host lie side by side, in the order in which it serves them."""
    order = np.concatenate([p.host_flows, np.setdiff1d(np.arange(len(p.flow_src)), p.host_flows)])
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return places


def _at(addresses: Ints, index: Ints) -> Ints:
    """Return the addresses of things by index; NONE for those whose index is -1."""
    return np.append(addresses, NONE)[index]


def _checksum_step(byte: int) -> int:
    """Return the entry of a byte in the table by which CRC-32 goes on, eight bits at a time.

    >>> hex(_checksum_step(1))
    '0x77073096'
    """
    for _ in range(8):
        byte = byte >> 1 ^ (0xEDB88320 if byte & 1 else 0)
    return byte


def _with_reserve(memory: Ints, words: int) -> Ints:
    """Return the memory with room for some words, and half as many more: what nobody touches needs no memory."""
    larger = np.zeros(words + words // 2, dtype=np.int64)
    larger[: memory.size] = memory
    return larger


def what_is_not_compiled(program: FlatPlan) -> str | None:
    """Return what of the program only the SimPy model can execute, None when nothing."""
    choice = not_compiled(program.discipline, program.host_order)
    if choice is not None:
        return choice
    if len(program.flow_src) > BY_PLACE:
        return f"more than {BY_PLACE:,} flows"
    per_iteration = np.bincount(program.message_flow, program.message_chunks).max(initial=0)
    if per_iteration * program.iterations > MOST_PACKETS or program.chunk_bytes > MOST_PACKETS:
        return f"more than {MOST_PACKETS:,} packets of a flow, or bytes of a train"
    return None


def run(
    program: FlatPlan,
    record_packets: bool = False,
    stopped: Callable[[], bool] = lambda: False,
    advanced: Callable[[int], None] = lambda _: None,
) -> Record:
    """Execute a program with the compiled engine.

    Now and then `stopped` is asked whether to give up, and `advanced` is told how many transmissions there have been.
    """
    log = np.zeros((1 << 16 if record_packets else 0, LOG_COLUMNS), dtype=np.int64)
    layout = _Layout(program, len(log))
    packets, arrived = FIRST_PACKETS, -1
    for budgets in count(1):
        m = layout.memory
        status = kernel(m.ctypes.data, log.ctypes.data, len(log), BUDGET)
        if status == FINISHED:
            break
        if stopped():
            raise StoppedError
        advanced(int(m[TRANSMISSIONS]))
        if status == STUCK:
            raise SimulationError("no packet can make progress any more; this is a defect, please report it")
        if budgets % PATIENCE == 0:
            before, arrived = arrived, layout.arrived()
            if arrived == before:
                raise SimulationError(f"no message has arrived in {PATIENCE * BUDGET:,} events: {layout.why_stuck()}")
        if status == GROW and m[FREE_COUNT] < m[SPARE]:
            layout.add_packets(packets)
            packets = min(2 * packets, MORE_PACKETS)
        elif status == GROW:
            log = np.concatenate([log, np.zeros_like(log)])
    record = empty_record(program)
    layout.write(record)
    if record_packets:
        record.packets = log[: m[LOGGED]].copy().view(PACKET).reshape(-1)
    return record
