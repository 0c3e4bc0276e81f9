"""Times of training scripts: wherever a script waits for sums, the wait is stall, and the rest of its time compute.

A script trains under a clock that only its own work and its waits move, so that both are exact numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra torch")

from support.torch_training import Hub, HubChannel  # noqa: E402

from tensorexpress.cli.run_script import notes_on_training, warnings_on_times  # noqa: E402
from tensorexpress.host.script import pass_times  # noqa: E402
from tensorexpress.target.scripts import TrainingScript  # noqa: E402
from tensorexpress.torch.session import WorkerSession  # noqa: E402
from tensorexpress.trace import JobTrace  # noqa: E402

#: What a sum has a script wait for, and what the script itself takes.
WAIT, FORWARD, BACKWARD, BETWEEN, LAST = 1000, 10, 20, 7, 5

STEPS, LAYERS = 4, 3


class Clock:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.now_ns = 10**9

    def move(self, ns: int) -> None:
        self.now_ns += ns


class SlowChannel(HubChannel):
    """A channel over which each sum takes its time, and none comes before a script waits for it."""

    def __init__(self, hub: Hub, clock: Clock):
        super().__init__(hub, 0)
        self._clock = clock
        self.updated_ns = np.zeros((STEPS, LAYERS), dtype=np.int64)

    def wait(self) -> None:
        self._clock.move(WAIT)
        before = self.memory.summed.copy()
        super().wait()
        for layer in np.flatnonzero(self.memory.summed > before).tolist():
            self.updated_ns[before[layer], layer] = self._clock.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("time.monotonic_ns", lambda: clock.now_ns)
    return clock


@pytest.fixture
def no_group() -> Iterator[None]:
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def nothing(*arguments: Any) -> None:
    pass


def clip(session: Any, model: Any) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def log(session: Any, model: Any) -> None:
    assert all(each.grad.norm() >= 0 for each in model.parameters())


def read_all_first(session: Any, model: Any) -> None:
    model.register_forward_pre_hook(lambda *_: [each.norm() for each in model.parameters()] and None)


#: Where a script waits: before its step, after it, or before its forward pass.
PLACES: dict[str, dict[str, Callable[..., None]]] = {
    "first uses": {},
    "clipping": {"before_step": clip},
    "logging": {"after_step": log},
    "flush": {"after_step": lambda session, model: session.flush()},
    "pre-hook": {"at_start": read_all_first},
    "ddp": {},
    "ddp with a static graph": {},
    "ddp with small buckets": {},
}

DDP_OPTIONS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "ddp with a static graph": {"static_graph": True},
    "ddp with small buckets": {"bucket_cap_mb": 1e-6},
}


def trained(place: str, clock: Clock, store: Path) -> tuple[JobTrace, list[dict[str, Any]], Any]:
    """Return the trace of a script that waits in some place, in ns, its messages, and when it made its steps."""
    hooks = PLACES[place]
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(3, 3, bias=False) for _ in range(LAYERS)))
    elements = [9] * LAYERS
    channel = SlowChannel(Hub(elements, STEPS, 1), clock)
    task = {
        "worker": 0, "workers": 1, "steps": STEPS, "layers": [f"{layer}.weight" for layer in range(LAYERS)],
        "elements": elements, "in_switches": [], "scenario": "small", "store": str(store),
    }  # fmt: skip
    told: list[dict[str, Any]] = []
    session = WorkerSession(task, channel, told.append)
    hooks.get("at_start", nothing)(session, model)
    for layer in model:
        layer.register_forward_hook(lambda *_: clock.move(FORWARD))
        layer.weight.register_hook(lambda gradient: clock.move(BACKWARD))
    if place in DDP_OPTIONS:
        whole = session.ddp(model, **DDP_OPTIONS[place])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    else:
        whole, optimizer = model, session.distribute(model, torch.optim.SGD, lr=0.1)
    for _ in range(session.steps):
        clock.move(BETWEEN)
        whole(torch.ones(2, 3)).sum().backward()
        hooks.get("before_step", nothing)(session, model)
        optimizer.step()
        hooks.get("after_step", nothing)(session, model)
        optimizer.zero_grad()
        clock.move(LAST)
    session.close()
    memory = channel.memory
    times = pass_times(memory.arrived, memory.backward, memory.made, memory.stepped, channel.updated_ns)
    seen = {name: times[name][:, None] for name in ("forward", "backward", "forward_start", "backward_start")}
    trace = JobTrace(
        name="job0",
        layers=tuple(task["layers"]),
        workers=("w0",),
        forward_ps=seen["forward"],
        backward_ps=seen["backward"],
        forward_start_ps=seen["forward_start"],
        backward_start_ps=seen["backward_start"],
        updated_ps=channel.updated_ns[:, None],
        transfers=np.zeros(0, dtype=[("timed_out_ps", np.int64)]),
    )
    return trace, told, times["stepped"]


@pytest.mark.parametrize("place", PLACES)
def test_every_wait_of_a_script_is_stall_and_the_rest_of_its_time_compute(
    place: str, clock: Clock, tmp_path: Path, no_group: None
) -> None:
    trace, told, stepped_ns = trained(place, clock, tmp_path / "store")
    compute = trace.forward_ps[1:].sum(axis=2) + trace.backward_ps.sum(axis=2)
    # Before the last pass there need be no use of any parameter.
    assert trace.blocking_ps[:-1].ravel().tolist() == [LAYERS * WAIT] * (STEPS - 1)
    assert compute[:-1].ravel().tolist() == [LAYERS * (FORWARD + BACKWARD) + BETWEEN + LAST] * (STEPS - 1)
    assert np.all(np.diff(stepped_ns) == (trace.blocking_ps + compute)[:-1, 0])
    waited = [message["waited_for_all"] for message in told if "losses" in message]
    is_by_layer = place in ("first uses", "pre-hook")
    assert waited[1:] == [not is_by_layer] * (STEPS - 1)
    if place == "first uses":
        assert np.all(trace.waits_ps[:-1] == WAIT)
    elif not is_by_layer:
        assert np.all(trace.waits_ps == [LAYERS * WAIT, 0, 0])
    if place != "pre-hook":
        assert np.all(trace.forward_ps[1:-1] >= FORWARD)
    if place not in ("ddp", "ddp with a static graph"):
        # Where DDP makes one bucket of all layers, as it does at first, nothing tells when each gradient was ready.
        assert np.all(trace.backward_ps[1:] == BACKWARD)


def run_of(policy: str, compute_ms: float, iteration_ms: float, steps: int = 6) -> Any:
    """Return what the checks of times see of a run: one worker, two layers, stalls of 10 ms."""
    ms = 10**9
    times = np.full((steps + 1, 1, 2), int(compute_ms * ms / 4), dtype=np.int64)
    length = int((compute_ms + 10) * ms)
    forward_start = np.arange(steps + 1)[:, None, None] * length + np.array([0, times[0, 0, 0]])
    backward_start = forward_start[:-1] + 2 * times[0, 0, 0]
    trace = JobTrace(
        "job0", ("a", "b"), ("w0",), times, times[1:], forward_start, backward_start[:, :, ::-1], backward_start,
        np.zeros(0, dtype=[("timed_out_ps", np.int64), ("iteration", np.int64), ("tensor", np.int64)]),
    )  # fmt: skip
    return SimpleNamespace(
        plan=SimpleNamespace(policy=SimpleNamespace(name=policy)),
        trace=SimpleNamespace(jobs=(trace,), warmup=1),
        stepped_ps=np.arange(steps)[:, None] * int(iteration_ms * ms),
        losses=(2.0, 1.0),
        script_waits=policy == "fifo",
    )


def test_compute_that_differs_between_policies_and_time_that_nothing_explains_are_warned_of() -> None:
    assert not warnings_on_times([run_of("fifo", 20, 30), run_of("p3", 21, 31)])
    (apart,) = warnings_on_times([run_of("fifo", 16, 26), run_of("p3", 242, 252)])
    assert apart.startswith("compute of the same script is 16.00 ms under fifo and 242.00 ms under p3, 1412% more")
    (lost,) = warnings_on_times([run_of("p3", 20, 40)])
    assert lost.startswith("under p3, stall and compute of w0 are 30.00 ms an iteration, and its steps 40.00 ms apart")
    assert not warnings_on_times([run_of("p3", 20, 40, steps=each) for each in (2, 4)])
    runs = [run_of("fifo", 16, 26), run_of("p3", 242, 252)]
    notes = notes_on_training(runs, TrainingScript("train.py"), None, had_barrier=False)
    assert notes[-1] == f"- Warning: {apart}"
    assert "- Under fifo the script waited for all sums before each forward pass" in notes[-2]
    assert not any("waited" in note for note in notes_on_training(runs, TrainingScript("train.py"), None, True))
