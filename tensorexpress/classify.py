"""Classification: which queue a packet waits in, as one value that every executor of a plan follows.

The controller writes a `QueueMap` into the switch's tables, a host asks it for the DSCP of its packets, and tests
hold the P4 program and the simulator to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tensorexpress.errors import PlanError
from tensorexpress.plan import Plan
from tensorexpress.queueing import DISCIPLINES, Deployment
from tensorexpress.wire.frame import Seen
from tensorexpress.wire.header import Header


@dataclass(frozen=True)
class QueueMap:
    """What a switch knows about queues. Queue 0 is the most urgent; best effort is the lowest queue."""

    #: Strict-priority queues of a port.
    queues: int
    #: (job, tensor) -> queue.
    tensor_queue: Mapping[tuple[int, int], int]
    #: Jobs whose packets are ranked by time and slack instead (SP-PIFO); the queue depends on what came before.
    slack_jobs: frozenset[int] = frozenset()
    #: Jobs trusted to name their queue -> the most urgent queue they may name.
    asking_jobs: Mapping[int, int] = field(default_factory=dict)
    #: DSCP -> queue of packets without our header.
    dscp_queue: Mapping[int, int] = field(default_factory=dict)

    @property
    def best_effort(self) -> int:
        """The queue of all that is not told otherwise."""
        return self.queues - 1

    def queue_of_tensor(self, header: Header) -> int | None:
        """Return the queue of a tensor packet whose job may be here; None when its slack decides.

        >>> classes = QueueMap(queues=4, tensor_queue={(0, 7): 1}, asking_jobs={2: 1})
        >>> [classes.queue_of_tensor(Header(job, 0, 0, tensor=7, chunk=0, chunks=1)) for job in (0, 1, 2)]
        [1, 3, 1]
        """
        if header.job in self.slack_jobs:
            return None
        if header.job in self.asking_jobs:
            return min(max(header.queue, self.asking_jobs[header.job]), self.best_effort)
        return min(self.tensor_queue.get((header.job, header.tensor), self.best_effort), self.best_effort)

    def queue_of(self, seen: Seen, *, admitted: bool) -> int | None:
        """Return the queue of what a switch sees, the job being admitted at its port or not; None: slack decides.

        What comes to the tensor port without being a believable tensor packet of an admitted job is best effort,
        whatever its DSCP says.
        """
        if seen.header is not None and admitted:
            return self.queue_of_tensor(seen.header)
        if seen.to_tensor_port or seen.dscp is None:
            return self.best_effort
        return min(self.dscp_queue.get(seen.dscp, self.best_effort), self.best_effort)


def queue_map_of(plan: Plan) -> QueueMap:
    """Return what a plan says about queues. A job's number on the wire is its place in the scenario.

    Where the policy leaves switches in order of arrival, all packets are best effort.

    >>> from tensorexpress.plan import make_plan
    >>> from tensorexpress.policy import POLICIES
    >>> from tensorexpress.scenario import read_scenario
    >>> queue_map_of(make_plan(read_scenario(), POLICIES["tensorexpress"])).tensor_queue[0, 0]
    0
    """
    queues, deployment = plan.scenario.cluster.queues, deployment_of(plan)
    if deployment is Deployment.ONE_QUEUE:
        return QueueMap(queues, {})
    if deployment is Deployment.SLACK:
        return QueueMap(queues, {}, slack_jobs=frozenset(range(len(plan.jobs))))
    tensors = ((number, tensor) for number, job in enumerate(plan.jobs) for tensor in range(len(job.queues)))
    return QueueMap(queues, {(number, tensor): plan.jobs[number].queues[tensor] for number, tensor in tensors})


def deployment_of(plan: Plan) -> Deployment:
    """Return how switches are made to do what a plan's policy wants of them; PlanError when they cannot."""
    policy = plan.policy
    if policy.deployment is None:
        accepted = [
            f"switch={name}" + (" with queues=slack" if discipline.deployment is Deployment.SLACK else "")
            for name, discipline in DISCIPLINES.items()
            if discipline.deployment is not None
        ]
        raise PlanError(
            f"policy {policy.name!r} wants {policy.discipline!r} with queues={policy.queue_map} in the switch; "
            f"accepted for deployment: {', '.join(accepted)}"
        )
    return policy.deployment
