"""All that can happen to a job whose packets switches sum: a model of hosts and network around the real pipeline.

The network is as bad as can be. Whatever was once sent may arrive at any later time, in any order, as often as it
likes, or never. So loss, duplication and reordering are not events that are counted: a state holds what may still
arrive, and every choice of what arrives next is a way on. What bounds the model is how many turns a slot takes and how
often workers start anew, not how often the network fails.

Workers are those of docs/aggregation.md, as short as can be. Switches are the P4 program in the embedded switch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from support.deployed import PROGRAM
from support.summing import SummingNetwork, SumPacket, Values, packet, parse
from tensorexpress.control import aggregate
from tensorexpress.p4 import P4Program
from tensorexpress.plan import Plan
from tensorexpress.sums import VALUES
from tensorexpress.switch.operations import ReadRegister, WriteRegister
from tensorexpress.wire.sum_header import SumFlag, check_of

REGISTERS = [
    f"TensorIngress.{name}"
    for name in (aggregate.OWNERS, aggregate.IDENTITIES, aggregate.SEEN, aggregate.HEADS, *aggregate.VALUES)
]

#: The first epoch; the next one is 0, so that numbers that begin anew are met at once.
FIRST_EPOCH = 2**32 - 1


class WrongSumError(AssertionError):
    """A worker took something for the sum that is not."""


class StuckError(AssertionError):
    """From some state on workers do not get all sums, however often they send again and nothing is lost any more."""


@dataclass(frozen=True)
class Turn:
    """One turn of a slot of a worker: what it sends then."""

    worker: int
    epoch: int
    slot: int
    turn: int


@dataclass(frozen=True)
class State:
    """Everything that the future depends on."""

    #: By worker: how often it has started, and the turn of every slot.
    workers: tuple[tuple[int, tuple[int, ...]], ...]
    #: By worker and earlier start: the turns that it had come to.
    past: tuple[tuple[tuple[int, ...], ...], ...]
    #: What is in the slots of every switch.
    switches: tuple[int, ...]
    #: By worker: the results that may still arrive, and that it would not discard.
    results: tuple[frozenset[int], ...]
    #: (switch, port, frame) that may still arrive between switches.
    between: frozenset[tuple[int, int, int]]


@dataclass(frozen=True)
class Settings:
    """What is modelled."""

    plan: Plan
    slots: int = 1
    #: Turns that every slot takes.
    turns: int = 3
    #: How often a worker may start anew, each at its own time.
    restarts: int = 0
    #: Whether contributions also arrive damaged.
    damage: bool = False
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
        self.frames, self._held = Numbered(), Numbered()
        self._now = [self._held(self._read(place)) for place in range(len(self._names))]
        self._empty = tuple(self._now)
        self._passed: dict[tuple[int, int, int, int], tuple[int, list[tuple[int, int]]]] = {}
        self._sent: dict[Turn, tuple[int, ...]] = {}
        self._contents: dict[int, SumPacket | None] = {}
        self._arrived: dict[tuple[Turn, int], bool] = {}

    # The real switches, as functions of what is in their slots.

    def _read(self, place: int) -> tuple[Any, ...]:
        queries = [ReadRegister(name, cell) for name in REGISTERS for cell in self._cells]
        return tuple(value for (value,) in self._network.switches[self._names[place]].ask(queries))

    def _restore(self, place: int, held: int) -> None:
        if self._now[place] != held:
            cells = [(name, cell) for name in REGISTERS for cell in self._cells]
            writes = zip(cells, self._held.items[held], strict=True)
            self._network.switches[self._names[place]].apply([WriteRegister(*cell, value) for cell, value in writes])
            self._now[place] = held

    def _pass(self, place: int, held: int, port: int, frame: int) -> tuple[int, list[tuple[int, int]]]:
        """Return what is in a switch after a frame, and (port, frame) of what leaves it."""
        key = (place, held, port, frame)
        if key not in self._passed:
            self._restore(place, held)
            sent = self._network.pass_one(self._names[place], port, self.frames.items[frame])
            self._now[place] = self._held(self._read(place))
            self._passed[key] = self._now[place], [(out, self.frames(data)) for out, data in sent]
        return self._passed[key]

    # Workers.

    def contribution(self, turn: Turn) -> SumPacket:
        settings = self.settings
        return packet(
            self.values(turn),
            worker=self._child[self._hosts[turn.worker]],
            epoch=(FIRST_EPOCH + turn.epoch) % 2**32,
            turn=turn.turn,
            slot=self._first_slot + turn.slot,
            # Every other turn sends the packet of the one before again, scaled with another exponent.
            chunk=turn.turn // 2 + 50 * (settings.confused == turn.worker and turn.turn == 1),
            exponent=turn.turn % 2,
            needed=self._needed(turn.worker, turn.turn),
            culprit=(turn.worker + turn.turn) % 3,
        )

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
        """Return the frame that a worker sends in a turn, and the same damaged on its way where there is damage."""
        if turn not in self._sent:
            frame = self._network.frame(self._hosts[turn.worker], self.contribution(turn))
            damaged = frame[:500] + bytes([frame[500] ^ 4]) + frame[501:]
            self._sent[turn] = tuple(map(self.frames, [frame, damaged][: 1 + self.settings.damage]))
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
            results=(frozenset(),) * workers,
            between=frozenset(),
        )

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
                            yield partial(self._after, state, place, port, frame)
        for place, port, frame in sorted(state.between):
            yield partial(self._after, state, place, port, frame)

    def sent_again(self, state: State) -> State:
        """Return what is after all before was lost, workers have sent what they wait for, and all of that arrived."""
        state = replace(state, results=(frozenset(),) * len(state.workers), between=frozenset())
        for worker, (epoch, turns) in enumerate(state.workers):
            for slot, turn in enumerate(turns):
                if turn < self.settings.turns:
                    frame = self._frames_of(Turn(worker, epoch, slot, turn))[0]
                    state = self._after(state, *self._entry[self._hosts[worker]], frame)
        before = None
        while before != state.between:
            before = state.between
            for arrival in sorted(before):
                state = self._after(state, *arrival)
        for worker, (epoch, turns) in enumerate(state.workers):
            for slot, turn in enumerate(turns):
                own = Turn(worker, epoch, slot, turn)
                if turn < self.settings.turns and any(self._is_sum(own, frame) for frame in state.results[worker]):
                    state = self._advanced(state, worker, slot)
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
        return State(
            (*state.workers[:worker], after, *state.workers[worker + 1 :]),
            past,
            state.switches,
            (*state.results[:worker], kept, *state.results[worker + 1 :]),
            state.between,
        )

    def _may_matter(self, worker: tuple[int, tuple[int, ...]], frame: int) -> bool:
        """Whether a result is of a turn that a worker has not finished: the current one, or one to come."""
        content = self._content(frame)
        if content is None:
            return False
        sums, (epoch, turns) = content.sums, worker
        started, slot = (sums.epoch - FIRST_EPOCH) % 2**32, sums.slot - self._first_slot
        return started > epoch or (started == epoch and sums.turn >= turns[slot])

    def _after(self, state: State, place: int, port: int, frame: int) -> State:
        """Return what is after a frame has arrived at a switch."""
        held, sent = self._pass(place, state.switches[place], port, frame)
        if held == state.switches[place] and not sent:
            return state
        results, between = list(state.results), state.between
        for out, data in sent:
            end = self._ends[place, out]
            if isinstance(end, tuple):
                between |= {(*end, data)}
            elif self._may_matter(state.workers[worker := self._hosts.index(end)], data):
                results[worker] |= {data}
        switches = (*state.switches[:place], held, *state.switches[place + 1 :])
        return State(state.workers, state.past, switches, tuple(results), between)


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
    while not model.is_done(state) and (key := (state.workers, state.switches)) not in ends_well:
        # Every round takes all workers one turn further, but for the first: then some are behind others.
        if key in seen or len(seen) > model.settings.turns:
            raise StuckError(str(state.workers))
        seen.add(key)
        state = model.sent_again(state)
    ends_well |= seen
