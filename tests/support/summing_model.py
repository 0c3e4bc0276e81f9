"""All that can happen to a job whose packets switches sum: a model of hosts and network around the real pipeline.

The network is as bad as can be. Whatever was once sent may arrive at any later time, in any order, as often as it
likes, or never. So loss, duplication and reordering are not events that are counted: a state holds what may still
arrive, and every choice of what arrives next is a way on. What bounds the model is how many turns a slot takes and how
often workers start anew, not how often the network fails. Where slots are found by hash there is too much that may
still arrive between switches and at the server: no more than `Settings.under_way` of it, whichever that is; the rest is
lost.

Workers are those of docs/aggregation.md, as short as can be, and so are servers. Switches are the P4 program in the
embedded switch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from support.deployed import PROGRAM
from support.hashed_switch import served
from support.summing import SummingNetwork, SumPacket, Values, packet, parse, read_payload
from tensorexpress.control import aggregate, hashed
from tensorexpress.p4 import P4Program, define
from tensorexpress.plan import Plan
from tensorexpress.sums import VALUES
from tensorexpress.switch.operations import ReadRegister, WriteRegister
from tensorexpress.wire.sum_header import SumFlag, check_of

REGISTERS = [
    f"TensorIngress.{name}"
    for name in (
        *(aggregate.OWNERS, aggregate.IDENTITIES, aggregate.SEEN, aggregate.HEADS, *aggregate.VALUES, hashed.WAYS),
    )
]

#: The place of the server among switches.
SERVER = -1

#: When a cell that was taken at 0 has just become too old.
TOO_OLD_PS = (define.SUM_AGE + 1) * 10**6

#: The first epoch; the next one is 0, so that numbers that begin anew are met at once.
FIRST_EPOCH = 2**32 - 1

#: The lowest bits of a way are the time at which its cell was taken.
TIME_BITS = 48

#: What is in a switch, when it has to be written anew.
UNKNOWN = -1


class WrongSumError(AssertionError):
    """A worker took something for the sum that is not."""


class StuckError(AssertionError):
    """From some state on workers do not get all sums, however often they send again and nothing is lost any more."""


class Turn(NamedTuple):
    """One turn of a slot of a worker: what it sends then."""

    worker: int
    epoch: int
    slot: int
    turn: int


class State(NamedTuple):
    """Everything that the future depends on; a tuple, of which a million are made and compared."""

    #: By worker: how often it has started, and the turn of every slot.
    workers: tuple[tuple[int, tuple[int, ...]], ...]
    #: By worker and earlier start: the turns that it had come to.
    past: tuple[tuple[tuple[int, ...], ...], ...]
    #: What is in the slots of every switch.
    switches: tuple[int, ...]
    #: What the server has, if there is one.
    server: int
    #: By worker: the results that may still arrive, and that it would not discard.
    results: tuple[frozenset[int], ...]
    #: (switch, port, frame) that may still arrive between switches, from the server, or at it.
    between: frozenset[tuple[int, int, int]]


@dataclass(frozen=True)
class Settings:
    """What is modelled."""

    plan: Plan
    #: Where they are found by hash: those of a pool with as many as its window come first, then those of the next.
    slots: int = 1
    window: int = 1
    #: Turns that every slot takes.
    turns: int = 3
    #: How often a worker may start anew, each at its own time.
    restarts: int = 0
    #: Whether contributions also arrive damaged.
    damage: bool = False
    #: Whether cells are also found too old.
    age: bool = False
    #: How much may be under way between switches and the server; None is all that was ever sent.
    under_way: int | None = None
    #: A worker that takes turn 1 for that of another packet; no sum of that turn is right then.
    confused: int | None = None


@dataclass
class Numbered:
    """Values by small numbers, which are quick to compare."""

    items: list[Any] = field(default_factory=list)
    numbers: dict[Any, int] = field(default_factory=dict)

    def __call__(self, item: Any) -> int:
        number = self.numbers.setdefault(item, len(self.items))
        if number == len(self.items):
            self.items.append(item)
        return number


class Model:
    """The ways on from every state."""

    def __init__(self, settings: Settings, program: P4Program = PROGRAM):
        self.settings = settings
        self._network = SummingNetwork(settings.plan, program=program)
        self._cluster = settings.plan.scenario.cluster
        (sums,) = settings.plan.jobs[0].sums
        self._is_hashed = sums.cells > 0
        self._first_slot = sums.pools[0].first_slot
        self._hosts = settings.plan.jobs[0].job.workers
        self._names = list(self._cluster.switches)
        links = self._cluster.directed()
        ways = {name: self._cluster.ports(name) for name in self._names}
        port_of = {link: (place, port) for place, name in enumerate(self._names) for port, link in ways[name].items()}
        #: (switch, port) -> the worker there, or (switch, port) at the other end.
        self._ends = {end: port_of.get(link ^ 1, links.target[link]) for link, end in port_of.items()}
        children = {links.source[link]: place for own in sums.switches for place, link in enumerate(own.children)}
        self._entry = {host: port_of[links.source.index(host) ^ 1] for host in self._hosts}
        self._child = {host: children[host] for host in self._hosts}
        self._cells = range(2 * self._first_slot, 2 * (self._first_slot + settings.slots))
        if self._is_hashed:
            self._cells = range(sums.cells)
        self._server_host = sums.server
        self._everyone = (1 << len(self._hosts)) - 1 if self._is_hashed else 0
        #: Where a server's answers come in.
        self._answers_at = port_of[sums.switches[0].up] if sums.server >= 0 else (SERVER, SERVER)
        self.frames, self._held, self._servers = Numbered(), Numbered(), Numbered()
        self._now = [self._held(self._read(place)) for place in range(len(self._names))]
        self._empty = tuple(self._now)
        self._passed: dict[tuple[int, int, int, int, bool], tuple[int, list[tuple[int, int]]]] = {}
        self._answered: dict[tuple[int, int], tuple[int, list[int]]] = {}
        self._sent: dict[Turn, tuple[int, ...]] = {}
        self._contents: dict[int, SumPacket | None] = {}
        self._arrived: dict[tuple[Turn, int], bool] = {}
        self._results: dict[int, bool] = {}

    # The real switches, as functions of what is in their slots.

    def _read(self, place: int) -> tuple[Any, ...]:
        queries = [ReadRegister(name, cell) for name in REGISTERS for cell in self._cells]
        found = [value for (value,) in self._network.switches[self._names[place]].ask(queries)]
        # The last of the registers says when cells were taken, and then their time is 0.
        ways = [value >> TIME_BITS << TIME_BITS for value in found[-len(self._cells) :]]
        return tuple(found[: -len(self._cells)] + ways)

    def _restore(self, place: int, held: int) -> None:
        if self._now[place] != held:
            cells = [(name, cell) for name in REGISTERS for cell in self._cells]
            writes = zip(cells, self._held.items[held], strict=True)
            self._network.switches[self._names[place]].apply([WriteRegister(*cell, value) for cell, value in writes])
            self._now[place] = held

    def _pass(self, place: int, held: int, port: int, frame: int, old: bool) -> tuple[int, list[tuple[int, int]]]:
        """Return what is in a switch after a frame, and (port, frame) of what leaves it.

        Cells count as taken at 0, and it is that time, or later by more than they may become old.
        """
        key = (place, held, port, frame, old)
        if key not in self._passed:
            self._restore(place, held)
            self._network.now_ps = TOO_OLD_PS * old
            sent = self._network.pass_one(self._names[place], port, self.frames.items[frame])
            after = self._held(self._read(place))
            self._now[place] = UNKNOWN if old else after
            self._passed[key] = after, [(out, self.frames(data)) for out, data in sent]
        return self._passed[key]

    # The server.

    def _serve(self, server: int, frame: int) -> tuple[int, list[int]]:
        """Return what the server has after a frame, and its answer, if any."""
        key = (server, frame)
        if key not in self._answered:
            self._answered[key] = self._served(server, frame)
        return self._answered[key]

    def _served(self, server: int, frame: int) -> tuple[int, list[int]]:
        content = self._content(frame)
        if content is None:
            return server, []
        places = dict(self._servers.items[server])
        slot, turn = self._slot_and_turn(content)
        held, answer = served(_read_held(places.get((slot, turn % 2))), content, self._everyone)
        if held is not None:
            places[slot, turn % 2] = held[0].payload(), held[1]
        sent = [] if answer is None else [self.frames(self._network.frame(self._server_host, answer))]
        return self._servers(tuple(sorted(places.items()))), sent

    # Workers.

    def contribution(self, turn: Turn, **more: int) -> SumPacket:
        settings = self.settings
        place = {"turn": turn.turn, "slot": self._first_slot + turn.slot}
        if self._is_hashed:
            number, at = divmod(turn.slot, settings.window)
            place = {"turn": turn.turn * settings.window + at, "slot": number, "workers": 1 << turn.worker}
        return packet(
            self.values(turn),
            worker=self._child[self._hosts[turn.worker]],
            epoch=(FIRST_EPOCH + turn.epoch) % 2**32,
            # Every other turn sends the packet of the one before again, scaled with another exponent.
            chunk=turn.turn // 2 + 50 * (settings.confused == turn.worker and turn.turn == 1),
            exponent=turn.turn % 2,
            needed=self._needed(turn.worker, turn.turn),
            culprit=(turn.worker + turn.turn) % 3,
            **place,
            **more,
        )

    def _slot_and_turn(self, content: SumPacket) -> tuple[int, int]:
        """Return which slot of the model a packet is of, and which turn of it."""
        if not self._is_hashed:
            return content.sums.slot - self._first_slot, content.sums.turn
        turn, at = divmod(content.sums.turn, self.settings.window)
        return content.sums.slot * self.settings.window + at, turn

    def _needed(self, worker: int, turn: int) -> int:
        return (worker * 2 + turn) % 5 - 2

    @cached_property
    def _random(self) -> Values:
        settings = self.settings
        shape = (len(self._hosts), settings.restarts + 1, settings.slots, settings.turns, VALUES)
        return np.random.default_rng(1).integers(-(2**28), 2**28, shape, dtype=np.int32)

    def values(self, turn: Turn) -> Values:
        values: Values = self._random[turn.worker, turn.epoch, turn.slot, turn.turn]
        return values

    def _frames_of(self, turn: Turn) -> tuple[int, ...]:
        """Return the frames that a worker sends in a turn: the last of them as often as it likes.

        Before it there are the first one where that is another, and the same damaged on its way where there is damage.
        """
        if turn not in self._sent:
            contents = [self.contribution(turn)] + [self.contribution(turn, sent_again=1)] * self._is_hashed
            sent = [self._network.frame(self._hosts[turn.worker], content) for content in contents]
            damaged = [frame[:500] + bytes([frame[500] ^ 4]) + frame[501:] for frame in sent if self.settings.damage]
            self._sent[turn] = tuple(map(self.frames, damaged + sent))
        return self._sent[turn]

    def _is_sum(self, turn: Turn, frame: int) -> bool:
        """Whether a worker takes a frame for the sum of its turn; WrongSumError if it should not."""
        key = (turn, frame)
        if key not in self._arrived:
            self._arrived[key] = self._compare(turn, frame)
        return self._arrived[key]

    def _content(self, frame: int) -> SumPacket | None:
        """Return what a worker is told in a frame; None where its checksums are wrong, so that it is told nothing."""
        if frame not in self._contents:
            try:
                self._contents[frame] = parse(self.frames.items[frame])
            except AssertionError:
                self._contents[frame] = None
        return self._contents[frame]

    def _compare(self, turn: Turn, frame: int) -> bool:
        found, own = self._content(frame), self.contribution(turn)
        names = ("job", "worker", "iteration", "tensor", "chunk"), ("epoch", "turn", "slot", "exponent")
        same = all(
            getattr(theirs, name) == getattr(ours, name)
            for those, theirs, ours in zip(names, (found.header, found.sums), (own.header, own.sums), strict=True)
            for name in those
        )
        if not same or not found.sums.flags & SumFlag.RESULT or check_of(found.values) != found.sums.check:
            return False
        workers = range(len(self._hosts))
        parts = [Turn(worker, turn.epoch, turn.slot, turn.turn) for worker in workers]
        right = (
            (found.values == sum(self.values(part) for part in parts)).all()
            and found.sums.needed == max(self._needed(worker, turn.turn) for worker in workers)
            and found.sums.culprit == max((worker + turn.turn) % 3 for worker in workers)
            and found.sums.flags == SumFlag.RESULT
            and found.sums.workers == self._everyone
            and not (self.settings.confused is not None and turn.turn == 1)
        )
        if not right:
            raise WrongSumError(f"{turn}: {found.sums}")
        return True

    # States.

    @property
    def start(self) -> State:
        """All workers at their first turn, nothing in any slot."""
        workers = len(self._hosts)
        return State(
            workers=((0, (0,) * self.settings.slots),) * workers,
            past=((),) * workers,
            switches=self._empty,
            server=self._servers(()),
            results=(frozenset(),) * workers,
            between=frozenset(),
        )

    @property
    def most_rounds(self) -> int:
        """In how many rounds without loss all workers must have all sums."""
        return self.settings.turns * (len(self._names) + 1 if self._is_hashed else 1)

    def is_done(self, state: State) -> bool:
        """Whether all workers have all sums."""
        return all(turn == self.settings.turns for _, turns in state.workers for turn in turns)

    def moves(self, state: State) -> Iterator[Callable[[], State]]:
        """Yield what may happen next: an arrival, or that a worker starts anew. Calling a move gives the state then."""
        for worker, (epoch, turns) in enumerate(state.workers):
            for frame in state.results[worker]:
                for slot, turn in enumerate(turns):
                    if turn < self.settings.turns and self._is_sum(Turn(worker, epoch, slot, turn), frame):
                        yield partial(self._advanced, state, worker, slot)
            if epoch < self.settings.restarts:
                yield partial(self.restarted, state, worker)
            place, port = self._entry[self._hosts[worker]]
            for started, reached in enumerate((*state.past[worker], turns)):
                for slot, turn in enumerate(reached):
                    for sent in range(min(turn + 1, self.settings.turns)):
                        for frame in self._frames_of(Turn(worker, started, slot, sent)):
                            yield from self._arrivals(state, (place, port, frame))
        for arrival in sorted(state.between):
            yield from self._arrivals(state, arrival)
            if len(state.between) == self.settings.under_way:
                # For something else to be under way, something has to be lost, or to arrive for the last time.
                without = state._replace(between=state.between - {arrival})
                yield partial(self._same, without)
                yield from self._arrivals(without, arrival)

    def _same(self, state: State) -> State:
        return state

    def _arrivals(self, state: State, arrival: tuple[int, int, int]) -> Iterator[Callable[[], State]]:
        for old in range(1 + self.settings.age):
            yield partial(self._after, state, arrival, old=bool(old))

    def sent_again(self, state: State) -> State:
        """Return what is after all before was lost, workers have sent what they wait for, and all of that arrived."""
        state = state._replace(results=(frozenset(),) * len(state.workers), between=frozenset())
        for worker, (epoch, turns) in enumerate(state.workers):
            for slot, turn in enumerate(turns):
                if turn < self.settings.turns:
                    frame = self._frames_of(Turn(worker, epoch, slot, turn))[-1]
                    state = self._all_arrive(state, (*self._entry[self._hosts[worker]], frame))
        for worker, (epoch, turns) in enumerate(state.workers):
            for slot, turn in enumerate(turns):
                own = Turn(worker, epoch, slot, turn)
                if turn < self.settings.turns and any(self._is_sum(own, frame) for frame in state.results[worker]):
                    state = self._advanced(state, worker, slot)
        return state

    def _all_arrive(self, state: State, arrival: tuple[int, int, int]) -> State:
        """Return what is after a frame and all that it caused have arrived once."""
        under_way = deque([arrival])
        while under_way:
            state, sent = self._arrive(state, under_way.popleft(), old=False)
            under_way += sent
        return state

    def _advanced(self, state: State, worker: int, slot: int) -> State:
        epoch, turns = state.workers[worker]
        after = (epoch, (*turns[:slot], turns[slot] + 1, *turns[slot + 1 :]))
        return self._pruned(state, worker, after, state.past)

    def restarted(self, state: State, worker: int) -> State:
        """Return what is after a worker has started anew."""
        epoch, turns = state.workers[worker]
        past = (*state.past[:worker], (*state.past[worker], turns), *state.past[worker + 1 :])
        return self._pruned(state, worker, (epoch + 1, (0,) * self.settings.slots), past)

    def _pruned(self, state: State, worker: int, after: tuple[int, tuple[int, ...]], past: Any) -> State:
        """Return the state with a worker elsewhere; results that it would discard from now on are the same as none."""
        kept = frozenset(frame for frame in state.results[worker] if self._may_matter(after, frame))
        return state._replace(
            workers=(*state.workers[:worker], after, *state.workers[worker + 1 :]),
            past=past,
            results=(*state.results[:worker], kept, *state.results[worker + 1 :]),
        )

    def _may_matter(self, worker: tuple[int, tuple[int, ...]], frame: int) -> bool:
        """Whether a result is of a turn that a worker has not finished: the current one, or one to come."""
        content = self._content(frame)
        if content is None:
            return False
        epoch, turns = worker
        started, (slot, turn) = (content.sums.epoch - FIRST_EPOCH) % 2**32, self._slot_and_turn(content)
        return started > epoch or (started == epoch and turn >= turns[slot])

    def _after(self, state: State, arrival: tuple[int, int, int], *, old: bool) -> State:
        """Return what is after a frame has arrived; what it causes is then under way, if there is room."""
        state, sent = self._arrive(state, arrival, old=old)
        if not sent:
            return state
        between = state.between
        for each in sent:
            if self.settings.under_way is None or len(between) < self.settings.under_way:
                between |= {each}
        return state if between == state.between else state._replace(between=between)

    def _arrive(self, state: State, arrival: tuple[int, int, int], *, old: bool) -> tuple[State, list[Any]]:
        """Return what is after a frame has arrived, and what is now under way to switches and the server."""
        place, port, frame = arrival
        if place == SERVER:
            server, answers = self._serve(state.server, frame)
            after = state if server == state.server else state._replace(server=server)
            return after, [(*self._answers_at, answer) for answer in answers]
        held, sent = self._pass(place, state.switches[place], port, frame, old)
        results, on_the_way = state.results, []
        for out, data in sent:
            end = self._ends[place, out]
            if isinstance(end, tuple):
                on_the_way.append((*end, data))
            elif end == self._server_host and not self._is_result(data):
                on_the_way.append((SERVER, 0, data))
            elif data not in results[worker := self._hosts.index(end)] and self._may_matter(
                state.workers[worker], data
            ):
                results = (*results[:worker], results[worker] | {data}, *results[worker + 1 :])
        if held == state.switches[place] and results is state.results:
            return state, on_the_way
        switches = (*state.switches[:place], held, *state.switches[place + 1 :])
        return state._replace(switches=switches, results=results), on_the_way

    def _is_result(self, frame: int) -> bool:
        if frame not in self._results:
            content = self._content(frame)
            self._results[frame] = content is not None and bool(content.sums.flags & SumFlag.RESULT)
        return self._results[frame]


def _read_held(held: tuple[bytes, bool] | None) -> tuple[SumPacket, bool] | None:
    return None if held is None else (read_payload(held[0]), held[1])


@dataclass(frozen=True)
class Explored:
    """How much there was to see."""

    states: int
    ways: int


def explore(model: Model) -> Explored:
    """Visit all states there are; WrongSumError or StuckError if the protocol is not right."""
    known, waiting, ways = {model.start}, deque([model.start]), 0
    ends_well: set[Any] = set()
    while waiting:
        state = waiting.popleft()
        if model.settings.confused is None:
            drain(model, state, ends_well)
        for move in model.moves(state):
            after = move()
            ways += 1
            if after not in known:
                known.add(after)
                waiting.append(after)
    return Explored(len(known), ways)


def drain(model: Model, state: State, ends_well: set[Any]) -> None:
    """Lose all that is on its way, then let workers send again and lose nothing; StuckError if that is not enough.

    Workers that started anew wait for the others to do so. `ends_well` is what was found out before.
    """
    latest = max(epoch for epoch, _ in state.workers)
    for worker, (epoch, _) in enumerate(state.workers):
        for _ in range(latest - epoch):
            state = model.restarted(state, worker)
    seen = set()
    while not model.is_done(state) and (key := (state.workers, state.switches, state.server)) not in ends_well:
        # Every round takes all workers one turn further, but for the first: then some are behind others. Where slots
        # are found by hash, sets that overlap may take another round for every level.
        if key in seen or len(seen) > model.most_rounds:
            raise StuckError(str(state.workers))
        seen.add(key)
        state = model.sent_again(state)
    ends_well |= seen
