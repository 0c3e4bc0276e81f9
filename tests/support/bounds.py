"""The bound of a link's bytes for a few iterations, which is the one of many less what is owed at the end."""

from __future__ import annotations

import numpy as np

from tensorexpress.bound import Demand, run_bound_ps
from tensorexpress.deadline import gradients_ready_ps
from tensorexpress.trace import JobTrace


def forced_ps(demand: Demand, trace: JobTrace, warmup: int) -> float:
    """Return what the mean of a run's measured iterations is at least, by all that docs/deadlines.md proves.

    Before the last worker starts its last layer again, every link carries the bytes of all iterations: none before the
    first gradient is ready, and of what single workers wait for none before every worker has one. Workers that only
    infer need nobody's gradients but begin when they are through themselves.
    """
    starts = trace.forward_start_ps[:, :, -1]
    iterations = len(trace.backward_ps) - warmup
    ready = gradients_ready_ps(starts[warmup], trace.forward_ps[warmup], trace.backward_ps[warmup])[:, -1]
    owed_ps = int(np.ptp(starts[-1])) + demand.early_ps + int(starts[warmup].min())
    whole_ps = iterations * int((demand.shared_ps + demand.owned_ps).max(initial=0)) + int(ready.min()) - owed_ps
    begins_ps = int(ready.max() if demand.in_step else ready.min())
    owned_ps = iterations * int(demand.owned_ps.max(initial=0)) + begins_ps - owed_ps
    return max(run_bound_ps(demand, trace, warmup), whole_ps / iterations, owned_ps / iterations)
