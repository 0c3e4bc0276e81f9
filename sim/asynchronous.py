"""Asynchronous training, simulated: workers compute and push when ready, a server commits one update after another.

Transfers are fluids (`fluid.py`), gradients are real ones of a small problem (`learning.py`): what is committed when,
and computed from which version, decides how the loss falls. A worker pulls the whole model, computes, and pushes one
update; how the update gets to the server is for a `_Way` to decide.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tensorexpress.changes import Paces, slowed_ps
from tensorexpress.commits.aggregate import Aggregation, CommitGroup
from tensorexpress.commits.modes import CommitMode
from tensorexpress.commits.replicate import ReplicaLog
from tensorexpress.commits.scheduler import decide
from tensorexpress.commits.trace import CommitTrace
from tensorexpress.commits.updates import Update
from tensorexpress.learning import DIVERGED, PROBLEMS, Floats
from tensorexpress.paths import choose_paths
from tensorexpress.scenario import Scenario
from tensorexpress.sim.fluid import LEAST_SHARE, FluidNetwork, FluidTransfer
from tensorexpress.units import serialisation_ps

#: A server's link of which less than this share is unused is busy: nobody else is told to send.
_BUSY_BELOW = 0.1


@dataclass(eq=False)
class _Learner:
    """A worker: where it is, and what it draws."""

    host: int
    rng: np.random.Generator
    version: int = 0
    iteration: int = 0


@dataclass(eq=False)
class _Computed:
    """An update with what it does to the model."""

    learner: _Learner
    update: Update
    change: Floats


def simulate_commits(scenario: Scenario, mode: CommitMode) -> CommitTrace:
    """Train until the loss is down to its target, or as many updates are computed as the job may take."""
    simulation = _Training(scenario, mode)
    with np.errstate(over="ignore", invalid="ignore"):
        simulation.run()
    return simulation.trace()


class _Training:
    """The job: its learners, its server, and the network between them."""

    def __init__(self, scenario: Scenario, mode: CommitMode):
        self.scenario, self.mode, self.job = scenario, mode, scenario.jobs[0]
        self.settings = scenario.commits
        self.server = self.job.servers[0]
        self.network = FluidLinks(scenario)
        self.problem = PROBLEMS[self.settings.problem].make()
        self.model = self.problem.start.copy()
        self.version = 0
        self.learners = [
            _Learner(host, np.random.default_rng([scenario.seed, number]))
            for number, host in enumerate(self.job.workers)
        ]
        self.update_bytes = sum(self.job.workload.tensor_bytes)
        self.way = self._new_way()
        self.replica = _Replica(self) if mode.replicated else None
        #: Groups of updates that are at the server and not committed yet, in the order of their commits.
        self.arrived: deque[Sequence[_Computed]] = deque()
        self._committing = False
        self._computed = self.dropped = self.lost = self.sums = self.summed = 0
        self._log: list[tuple[int, int, int, float]] = []
        #: The last losses: a single one may be down by chance.
        self._losses: deque[float] = deque(maxlen=2 * len(self.learners))
        self._reached_ps: int | None = None
        self._over = False

    def _new_way(self) -> _Way:
        return (_InStep if self.mode.in_step else _Scheduled if self.mode.ordered else _AsTheyCome)(self)

    def run(self) -> None:
        """Let everything happen."""
        if self.settings.server_fails_ps:
            self.network.after(self.settings.server_fails_ps, self._fail)
        for learner in self.learners:
            self.network.after(self.job.start_ps, partial(self.compute, learner, self.model))
        self.network.run(lambda: self._over)

    # Workers

    def compute(self, learner: _Learner, model: Floats) -> None:
        """Let a worker compute an update from the model that it has."""
        rows = learner.rng.integers(0, self.problem.samples, self.problem.batch)
        change = self.settings.learning_rate * self.problem.gradient(model, rows)
        update = Update(learner.host, learner.version, self.update_bytes, float(np.linalg.norm(change)))
        computed = _Computed(learner, update, change)
        self._computed += 1
        self.network.after(self._compute_ps(learner), lambda: self.way.ready(computed))
        learner.iteration += 1

    def _compute_ps(self, learner: _Learner) -> int:
        """Return how long it takes; draws are in turn, so that every mode meets the same ones."""
        job, jitter = self.job, self.scenario.jitter
        spread = np.sqrt(np.log1p(jitter**2))
        noise = np.exp(learner.rng.normal(-(spread**2) / 2, spread))
        pause_ps = round(learner.rng.random() * self.settings.pause_ps)
        slower = dict(self.scenario.stragglers).get(learner.host, 1.0)
        drawn_ps = round((job.workload.compute_ps * noise) * slower) + job.overhead_ps
        return self.network.paced_ps(learner.host, drawn_ps, learner.iteration) + pause_ps

    def send_model(
        self,
        learners: Sequence[_Learner],
        helper: int | None = None,
        sent: Callable[[], None] = lambda: None,
        handed_on: Callable[[], None] = lambda: None,
    ) -> None:
        """Send the model as it is now to workers: to each of them, or once to a helper that hands it on."""
        model, version = self.model, self.version

        def arrive(learner: _Learner) -> Callable[[], None]:
            def there() -> None:
                learner.version = version
                self.compute(learner, model)

            return there

        def hand_on(helper: int) -> None:
            for place, learner in enumerate(learners):
                self.network.move(helper, learner.host, self.update_bytes, place, arrive(learner), handed_on)

        if helper is not None:
            self.network.move(self.server, helper, self.update_bytes, 0, lambda: hand_on(helper), sent)
            return
        for learner in learners:
            self.network.move(self.server, learner.host, self.update_bytes, 0, arrive(learner), sent)

    # The server

    def receive(self, group: Sequence[_Computed]) -> None:
        """Take updates that have arrived together; they commit as consecutive versions."""
        if len(group) > 1 and not self.mode.in_step:
            self.sums += 1
            self.summed += len(group)
        self.arrived.append(group)
        self.commit_next()

    def commit_next(self) -> None:
        """Start to commit what has arrived first, unless the server is at one or its replica lacks too much."""
        if self._committing or not self.arrived:
            return
        if self.replica is not None and self.replica.follows and not self.replica.lets_commit(self.arrived[0]):
            return
        self._committing = True
        self.network.after(_taken_ps(self.update_bytes, self.job.update_rate_bps), self._commit)

    def _commit(self) -> None:
        self._committing = False
        group = self.arrived.popleft()
        delays = [self.version + place - each.update.version for place, each in enumerate(group)]
        if self.mode.bounded and max(delays) > self.settings.tau:
            # Only single updates that nobody scheduled can be late.
            self.drop(group)
        elif self.mode.in_step:
            self._apply(group, [0] * len(group))
        else:
            self._apply(group, delays)
        self.way.committed(group)
        self.commit_next()

    def _apply(self, group: Sequence[_Computed], delays: Sequence[int]) -> None:
        self.model = self.model - np.sum([each.change for each in group], axis=0)
        self.version += len(group)
        if self.replica is not None and self.replica.follows:
            self.replica.note_commit(group)
        loss = self.problem.loss(self.model)
        for each, delay in zip(group, delays, strict=True):
            self._log.append((self.network.now_ps, each.update.host, delay, loss))
            self._losses.append(loss)
        if np.mean(self._losses) <= self.settings.target_loss:
            self._reached_ps = self.network.now_ps
        diverged = not loss < DIVERGED
        self._over |= self._reached_ps is not None or diverged or self._computed >= self.settings.updates

    def drop(self, group: Sequence[_Computed]) -> None:
        """Give updates up; their workers go on from the model as it is."""
        self.dropped += len(group)
        self._over |= self._computed >= self.settings.updates

    def _fail(self) -> None:
        """Lose the server: its replica takes over or, without one, it starts again with nothing learned.

        What was under way or being computed is lost with it, and every worker gets the model of the new server.
        """
        self.network.break_off()
        self.arrived.clear()
        self._committing = False
        self.way = self._new_way()
        before = self.version
        if self.replica is not None:
            self.server, self.model, self.version = self.replica.take_over()
        else:
            self.model, self.version = self.problem.start, 0
        self.lost += max(0, before - self.version)
        self.send_model(self.learners)

    def trace(self) -> CommitTrace:
        """Return what happened."""
        rows = list(zip(*self._log, strict=True)) or [(), (), (), ()]
        log = self.replica.log if self.replica is not None else None
        servers = (*self.job.servers, *self.settings.replicas)
        forwards = self.replica.forwards if self.replica is not None else 0
        forwarded_bytes = forwards * self.scenario.framing.wire_bytes(self.update_bytes)
        return CommitTrace(
            mode=self.mode.name,
            time_ps=np.array(rows[0], dtype=np.int64),
            host=np.array(rows[1], dtype=np.int64),
            delay=np.array(rows[2], dtype=np.int64),
            loss=np.array(rows[3], dtype=np.float64),
            start_loss=self.problem.loss(self.problem.start),
            target_loss=self.settings.target_loss,
            reached_ps=self._reached_ps,
            dropped=self.dropped,
            lost=self.lost,
            sums=self.sums,
            summed=self.summed,
            server_in_bytes=sum(self.network.received_bytes.get(host, 0) for host in servers) - forwarded_bytes,
            server_out_bytes=sum(self.network.sent_bytes.get(host, 0) for host in servers),
            divergence=self.replica.most_divergence if self.replica is not None else 0.0,
            divergence_bound=log.bound if log is not None else 0.0,
            distance=self.replica.most_distance if self.replica is not None else 0.0,
        )


def _taken_ps(size_bytes: int, rate_bps: int) -> int:
    return serialisation_ps(size_bytes, rate_bps) if rate_bps else 0


class _Way:
    """How updates get to the server."""

    def __init__(self, training: _Training):
        self.training = training

    def ready(self, computed: _Computed) -> None:
        """Take an update that its worker has computed."""
        raise NotImplementedError

    def committed(self, group: Sequence[_Computed]) -> None:
        """Let workers go on whose updates were committed, or dropped."""
        self.training.send_model([each.learner for each in group])


class _AsTheyCome(_Way):
    """Every worker sends at once, all share the links, and the server commits in the order of arrival."""

    def ready(self, computed: _Computed) -> None:
        training = self.training
        training.network.move(
            computed.update.host,
            training.server,
            training.update_bytes,
            rank=0,
            arrived=lambda: training.receive([computed]),
        )


class _InStep(_Way):
    """The server waits for all workers, and then all wait for it."""

    def __init__(self, training: _Training):
        super().__init__(training)
        self._there: list[_Computed] = []

    def ready(self, computed: _Computed) -> None:
        training = self.training
        training.network.move(
            computed.update.host, training.server, training.update_bytes, 0, arrived=lambda: self._arrive(computed)
        )

    def _arrive(self, computed: _Computed) -> None:
        self._there.append(computed)
        if len(self._there) == len(self.training.learners):
            group, self._there = self._there, []
            self.training.receive(group)


@dataclass(eq=False)
class _InLine:
    """A group that was told to go, and has its place in the order of commits."""

    group: Sequence[_Computed]
    helper: int | None
    missing: int
    is_there: bool = False


class _Scheduled(_Way):
    """A scheduler says who sends when and through whom, and who need not send at all."""

    def __init__(self, training: _Training):
        super().__init__(training)
        self._waiting: list[_Computed] = []
        self._line: deque[_InLine] = deque()
        self._unsent = 0
        self._rank = 0
        #: When the server's link is free of all that was told to go, as far as the scheduler knows.
        self._free_at_ps = 0
        self._helpers = training.settings.helpers if training.mode.summed else ()
        self._idle = list(self._helpers)
        #: Workers that wait for the model, and helpers that nobody waits for.
        self._pulling: deque[_Learner] = deque()
        self._handing_on: dict[int, int] = dict.fromkeys(self._helpers, 0)
        self._sending = 0

    def ready(self, computed: _Computed) -> None:
        self._waiting.append(computed)
        self._decide()

    def committed(self, group: Sequence[_Computed]) -> None:
        self._pulling.extend(each.learner for each in group)
        self._send_model()

    def _send_model(self) -> None:
        """Send the model to the worker that waits longest, or to a helper for the later half of those that wait.

        One after another, so that each gets the newest there is, and soon; but nobody waits for a slow link of another.
        """
        network, server = self.training.network, self.training.server
        while self._pulling and (not self._sending or network.room_from(server) >= _BUSY_BELOW):
            self._send_next_model()

    def _send_next_model(self) -> None:
        self._sending += 1
        members = (len(self._pulling) + 1) // 2
        helper = next((helper for helper in self._helpers if not self._handing_on[helper]), None)
        if helper is None or members < 2:
            self.training.send_model([self._pulling.popleft()], sent=self._model_sent)
            return
        learners = [self._pulling.pop() for _ in range(members)][::-1]
        self._handing_on[helper] = members
        self.training.send_model(learners, helper, self._model_sent, partial(self._handed_on, helper))

    def _model_sent(self) -> None:
        self._sending -= 1
        self._send_model()

    def _handed_on(self, helper: int) -> None:
        self._handing_on[helper] -= 1
        self._send_model()

    def _decide(self) -> None:
        """Ask for a decision on all that wait, when the server's link has room or a helper could prepare a sum."""
        training = self.training
        has_room = self._has_room()
        if not self._waiting or not (has_room or self._idle):
            return
        decided = sum(len(each.group) for each in self._line) + sum(map(len, training.arrived))
        plan = decide(
            [each.update for each in self._waiting],
            training.version + decided,
            training.settings.tau,
            Aggregation(
                training.server,
                tuple(self._idle),
                training.job.add_rate_bps,
                free_ps=0 if has_room else max(0, self._free_at_ps - training.network.now_ps),
            ),
            training.network.bandwidth,
        )
        by_host = {each.update.host: each for each in self._waiting}
        dropped = [by_host[update.host] for update in plan.drops]
        goes = plan.groups if has_room or any(group.helper is not None for group in plan.groups) else ()
        gone = {update.host for group in goes for update in group.updates} | {update.host for update in plan.drops}
        self._waiting = [each for each in self._waiting if each.update.host not in gone]
        if goes:
            self._free_at_ps = training.network.now_ps + goes[-1].arrives_ps
        for each in dropped:
            training.drop([each])
            self.committed([each])
        for group in goes:
            self._start(group, [by_host[update.host] for update in group.updates])

    def _has_room(self) -> bool:
        if not self._unsent:
            return True
        if any(each.helper is not None and not each.is_there for each in self._line):
            return False
        return self.training.network.room_to(self.training.server) >= _BUSY_BELOW

    def _start(self, group: CommitGroup, members: Sequence[_Computed]) -> None:
        place = _InLine(members, group.helper, len(members))
        self._line.append(place)
        self._unsent += 1
        self._rank += 1
        rank = self._rank
        if group.helper is None:
            self._send(place, members[0].update.host, rank)
            return
        self._idle.remove(group.helper)
        for number, each in enumerate(members):
            self.training.network.move(
                each.update.host,
                group.helper,
                each.update.size_bytes,
                rank + number,
                arrived=lambda: self._sum(place, rank),
            )

    def _sum(self, place: _InLine, rank: int) -> None:
        """Add one more update at a helper; with the last, send the sum."""
        place.missing -= 1
        assert place.helper is not None
        if not place.missing:
            helper = place.helper
            add_ps = _taken_ps(self.training.update_bytes, self.training.job.add_rate_bps)
            self.training.network.after(add_ps, lambda: self._send(place, helper, rank))

    def _send(self, place: _InLine, source: int, rank: int) -> None:
        training = self.training
        training.network.move(
            source,
            training.server,
            training.update_bytes,
            rank,
            sent=self._sent,
            arrived=lambda: self._arrive(place),
        )

    def _sent(self) -> None:
        self._unsent -= 1
        self._decide()

    def _arrive(self, place: _InLine) -> None:
        place.is_there = True
        if place.helper is not None:
            self._idle.append(place.helper)
        while self._line and self._line[0].is_there:
            self.training.receive(self._line.popleft().group)


class _Replica:
    """The second server: what it has, and what is on its way."""

    def __init__(self, training: _Training):
        self.training = training
        self.host = training.settings.replicas[0]
        self.model, self.version = training.model, 0
        #: False from when on it is the server itself.
        self.follows = True
        self.log: ReplicaLog | None = None
        self.most_divergence = self.most_distance = 0.0
        self.forwards = 0

    def _norm(self, group: Sequence[_Computed]) -> float:
        return float(sum(each.update.norm for each in group))

    def lets_commit(self, group: Sequence[_Computed]) -> bool:
        """Whether the server may commit updates; what the replica lacks for it is sent."""
        norm = self._norm(group)
        if self.log is None:
            # The bound is in norms of a first update, as nobody knows the scale of a problem beforehand.
            self.log = ReplicaLog(self.training.settings.divergence * group[0].update.norm)
        if self.log.may_commit(norm):
            return True
        if not self.log.is_forwarding:
            if self.log.committed > self.log.received:
                self.log.forward()
                self._forward(self.training.model, self.training.version)
            else:
                self.log.forward_ahead(norm)
                change = np.sum([each.change for each in group], axis=0)
                self._forward(self.training.model - change, self.training.version + len(group))
        return False

    def note_commit(self, group: Sequence[_Computed]) -> None:
        """Count updates that the server has just committed; forward them when it is time."""
        assert self.log is not None
        self.log.commit(self._norm(group))
        self.most_divergence = max(self.most_divergence, self.log.divergence)
        if self.log.received <= self.log.committed:
            self.most_distance = max(self.most_distance, float(np.linalg.norm(self.training.model - self.model)))
        self._forward_if_due(self.log)

    def take_over(self) -> tuple[int, Floats, int]:
        """Be the server from now on; return host, model and version."""
        self.follows = False
        if self.log is not None:
            self.log.fail_over()
        return self.host, self.model, self.version

    def _forward_if_due(self, log: ReplicaLog) -> None:
        if log.should_forward():
            log.forward()
            self._forward(self.training.model, self.training.version)

    def _forward(self, model: Floats, version: int) -> None:
        training = self.training
        self.forwards += 1

        def arrived() -> None:
            assert self.log is not None
            self.log.arrived()
            self.model, self.version = model, version
            self._forward_if_due(self.log)
            training.commit_next()

        training.network.move(training.server, self.host, training.update_bytes, 0, arrived=arrived)


class FluidLinks:
    """The fluid network of a scenario: paths between hosts, other traffic, and what changes with time."""

    def __init__(self, scenario: Scenario):
        directed = scenario.directed()
        self._rate_bps: list[int] = list(directed.rate_bps)
        self._taken_bps = [0] * len(self._rate_bps)
        self._fluid = FluidNetwork(self._rate_bps)
        self._epoch = 0
        self._paths = choose_paths(scenario.cluster, dict.fromkeys(_pairs(scenario), 1))
        self._delay_ps = directed.delay_ps
        self._framing = scenario.framing
        self._links_in = {path.dst: path.links[-1] for path in self._paths}
        self._links_out = {path.src: path.links[0] for path in self._paths}
        self.received_bytes: dict[int, int] = {}
        self.sent_bytes: dict[int, int] = {}
        self._changes, self._paces = scenario.changes, Paces(scenario.changes)
        for time_ps, link, rate_bps in scenario.rate_steps():
            self._fluid.at(time_ps, partial(self._change, link, rate_bps))
        for traffic in scenario.background:
            for link in self._paths.between(traffic.src, traffic.dst):
                self._fluid.at(traffic.at_ps, partial(self._take, link, traffic.rate_bps))
                if traffic.until_ps is not None:
                    self._fluid.at(traffic.until_ps, partial(self._take, link, -traffic.rate_bps))

    @property
    def now_ps(self) -> int:
        """The time."""
        return self._fluid.now_ps

    def run(self, until: Callable[[], bool]) -> None:
        """Let events happen."""
        self._fluid.run(until)

    def after(self, wait_ps: int, event: Callable[[], None]) -> None:
        """Ask for an event some time from now, unless everything is broken off before."""
        epoch = self._epoch

        def happen() -> None:
            if epoch == self._epoch:
                event()

        self._fluid.at(self.now_ps + wait_ps, happen)

    def break_off(self) -> None:
        """Forget everything that was asked for or is under way."""
        self._epoch += 1
        self._fluid.cancel(list(self._fluid.transfers))

    def paced_ps(self, host: int, drawn_ps: int, iteration: int) -> int:
        """Return how long what was drawn takes a worker that starts now."""
        for change in self._changes:
            if change.worker == host and change.by_iteration and iteration in change.iterations(iteration + 1):
                drawn_ps = slowed_ps(drawn_ps, change.pace)
        return self._paces.taken_ps(host, drawn_ps, self.now_ps)

    def bandwidth(self, src: int, dst: int) -> int:
        """Return what the path between two hosts carries now."""
        rates = self._fluid.rates_bps
        return max(1, int(min(rates[link] for link in self._paths.between(src, dst))))

    def room_to(self, host: int) -> float:
        """Return the share of the link to a host that is unused."""
        return self._room(self._links_in[host])

    def room_from(self, host: int) -> float:
        """Return the share of the link from a host that is unused."""
        return self._room(self._links_out[host])

    def _room(self, link: int) -> float:
        return self._fluid.unused_bps(link) / self._fluid.rates_bps[link]

    def move(
        self,
        src: int,
        dst: int,
        size_bytes: int,
        rank: int,
        arrived: Callable[[], None],
        sent: Callable[[], None] = lambda: None,
    ) -> FluidTransfer:
        """Send bytes from a host to another; they arrive when the last packet has passed all links."""
        links = self._paths.between(src, dst)
        wire_bytes = self._framing.wire_bytes(size_bytes)
        self.sent_bytes[src] = self.sent_bytes.get(src, 0) + wire_bytes
        self.received_bytes[dst] = self.received_bytes.get(dst, 0) + wire_bytes

        def done() -> None:
            self.after(self._latency_ps(links), arrived)
            sent()

        return self._fluid.send(links, wire_bytes, rank, done)

    def _latency_ps(self, links: Sequence[int]) -> int:
        packet_bytes = self._framing.full_packet_bytes
        forwarded = (serialisation_ps(packet_bytes, self._rate_bps[link]) for link in links[1:])
        return sum(self._delay_ps[link] for link in links) + sum(forwarded)

    def _change(self, link: int, rate_bps: int) -> None:
        self._rate_bps[link] = rate_bps
        self._set(link)

    def _take(self, link: int, rate_bps: int) -> None:
        self._taken_bps[link] += rate_bps
        self._set(link)

    def _set(self, link: int) -> None:
        rate_bps = self._rate_bps[link]
        self._fluid.set_rate(link, max(LEAST_SHARE * rate_bps, rate_bps - self._taken_bps[link]))


def _pairs(scenario: Scenario) -> Iterator[tuple[int, int]]:
    """Yield who may send to whom."""
    job = scenario.jobs[0]
    servers = (*job.servers, *scenario.commits.replicas)
    for worker in job.hosts:
        for other in (*servers, *scenario.commits.helpers):
            yield worker, other
            yield other, worker
    for server in servers:
        for other in (*servers, *scenario.commits.helpers):
            if server != other:
                yield server, other
                yield other, server
    for traffic in scenario.background:
        yield traffic.src, traffic.dst
