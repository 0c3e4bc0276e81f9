"""Profiles of real PyTorch models: with a clock of our own, every layer must have exactly the time it was given."""

from __future__ import annotations

import doctest
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.thorough import rest

from tensorexpress.cli import main
from tensorexpress.errors import TensorExpressError, WorkloadError
from tensorexpress.torch import profile_layers, profile_source
from tensorexpress.torch.profile_layers import SeenStep, timed_layers
from tensorexpress.workload import read_csv

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'tensorexpress[torch]'")
from torch import nn  # noqa: E402

from tensorexpress.torch import first_use, profile  # noqa: E402
from tensorexpress.torch.first_use import FirstUse  # noqa: E402

EXAMPLES = Path(__file__).parents[1] / "examples" / "torch"
sys.path.insert(0, str(EXAMPLES))
import convnet  # noqa: E402
import transformer  # noqa: E402

# Threads that wait for each other are slow where others compute as well.
torch.set_num_threads(1)


class FakeClock:
    """A clock that stands still but for what the model says."""

    def __init__(self) -> None:
        self.now = 0

    def mark(self) -> int:
        return self.now

    def settle(self) -> None:
        pass

    def read(self, since: int, mark: int) -> int:
        return mark - since


CLOCK = FakeClock()


class Work(torch.autograd.Function):
    """Multiplies, and takes a known time for it in both passes."""

    @staticmethod
    def forward(context: Any, x: Any, weight: Any, forward_ns: int, backward_ns: int) -> Any:
        y = x * weight
        CLOCK.now += forward_ns
        context.save_for_backward(x, weight)
        context.backward_ns = backward_ns
        return y

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        CLOCK.now += context.backward_ns
        x, weight = context.saved_tensors
        return gradient * weight, gradient * x, None, None


def work(x: Any, weight: Any, forward_ns: int, backward_ns: int = 0) -> Any:
    return Work.apply(x, weight, forward_ns, backward_ns)


class Timed(nn.Module):
    """A layer of which all is known."""

    def __init__(self, size: int, forward_ns: int, backward_ns: int, trainable: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size), requires_grad=trainable)
        self.times = forward_ns, backward_ns

    def forward(self, x: Any) -> Any:
        return work(x, self.weight, *self.times)


class Written(nn.Module):
    """A model with what its forward pass is written to do."""

    def __init__(self, forward: Callable[[Any, Any], Any], **parts: Any) -> None:
        super().__init__()
        self.written = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Any) -> Any:
        return self.written(self, x)


def parameter(trainable: bool = True) -> Any:
    return nn.Parameter(torch.ones(4), requires_grad=trainable)


def profiled(model: Any, **choices: Any) -> Any:
    return profile(model, (torch.ones(4),), lambda y: y.sum(), clock=CLOCK, **{"steps": 3, "warmup": 1, **choices})


def times(found: Any) -> dict[str, tuple[int, int]]:
    """Return forward and backward of every layer in ns, in forward order."""
    return {layer.name: (layer.forward_ps // 1000, layer.backward_ps // 1000) for layer in found.workload.layers}


# Times that are known.


def test_every_layer_has_exactly_the_time_that_it_takes() -> None:
    found = profiled(nn.Sequential(Timed(4, 10, 20), Timed(4, 30, 50), Timed(4, 70, 90)))
    assert times(found) == {"0": (10, 20), "1": (30, 50), "2": (70, 90)}
    assert (found.step_ps, found.bare_ps, found.overhead_ps) == (270_000, 270_000, 0)
    assert found.workload.batch == 4
    assert found.notes == ()
    assert "explained 0.00 of 0.00 ms of a step (100.0%)" in found.summary()[3]


def test_what_has_no_parameters_is_part_of_the_layer_before_and_what_is_before_all_is_overhead() -> None:
    one = torch.ones(4)

    def forward(self: Any, x: Any) -> Any:
        x = self.first(work(x, one, 5))
        return work(self.last(work(x, one, 7, 3)), one, 11, 13)

    found = profiled(Written(forward, first=Timed(4, 10, 20), last=Timed(4, 30, 50)))
    # Backward of what stands behind a layer is through before its gradient is ready.
    assert times(found) == {"first": (17, 23), "last": (41, 63)}
    assert found.overhead_ps == 5_000
    assert found.step_ps == found.workload.compute_ps + 5_000


def test_a_parameter_on_a_module_with_modules_inside_is_used_where_it_is_used() -> None:
    def forward(self: Any, x: Any) -> Any:
        return self.last(work(self.first(x), self.scale, 3, 4))

    model = Written(forward, scale=parameter(), first=Timed(4, 10, 20), last=Timed(4, 30, 50))
    assert next(model.named_parameters())[0] == "scale"
    found = profiled(model)
    assert times(found) == {"first": (10, 20), "scale": (3, 4), "last": (30, 50)}
    assert found.notes == ("1 parameter on a module with modules inside: a layer from its first use on (scale)",)


def test_parameters_of_one_module_that_are_used_apart_are_layers_of_their_own() -> None:
    def forward(self: Any, x: Any) -> Any:
        return work(self.inner(work(x, self.front, 1, 2)), self.back, 5, 6)

    model = Written(forward, inner=Timed(4, 10, 20), front=parameter(), back=parameter())
    assert times(profiled(model)) == {"front": (1, 2), "inner": (10, 20), "back": (5, 6)}


def test_a_module_that_uses_its_parameters_together_is_one_layer_or_as_many_as_wanted() -> None:
    def forward(self: Any, x: Any) -> Any:
        return work(work(x, self.a, 1, 2), self.b, 5, 6)

    model = nn.Sequential(Written(forward, a=parameter(), b=parameter()), Timed(4, 10, 20))
    assert times(profiled(model)) == {"0": (6, 8), "1": (10, 20)}
    assert times(profiled(model, each="parameter")) == {"0.a": (1, 2), "0.b": (5, 6), "1.weight": (10, 20)}
    assert [layer.params for layer in profiled(model).workload.layers] == [8, 4]


def test_a_tied_parameter_is_a_layer_at_its_first_use_and_ready_after_its_last() -> None:
    model = nn.Sequential(Timed(4, 10, 20), Timed(4, 30, 50), Timed(4, 70, 90))
    model[2].weight = model[0].weight
    found = profiled(model)
    assert times(found) == {"0": (10, 20), "1": (100, 140)}
    assert [layer.params for layer in found.workload.layers] == [4, 4]
    assert found.notes == ("1 parameter tied: one gradient, from the first of all uses on (2.weight is 0.weight)",)


def test_frozen_and_unused_parameters_have_no_layer_and_are_named() -> None:
    def forward(self: Any, x: Any) -> Any:
        with torch.no_grad():
            work(x, self.aside.weight, 2)
        return self.last(self.frozen(self.first(x)))

    model = Written(
        forward,
        first=Timed(4, 10, 20),
        frozen=Timed(4, 30, 50, trainable=False),
        unused=Timed(4, 1, 1),
        aside=Timed(4, 1, 1),
        last=Timed(4, 70, 90),
    )
    found = profiled(model)
    assert times(found) == {"first": (40, 70), "last": (70, 90)}
    assert found.overhead_ps == 2_000
    assert found.notes == (
        "1 parameter frozen: no gradient; computed as a part of the layer before (frozen.weight)",
        "1 parameter used, but without a gradient: computed as a part of the layer before (aside.weight)",
        "1 parameter unused: no gradient, left out (unused.weight)",
    )


def test_a_gradient_that_is_early_counts_as_ready_with_the_one_behind_it() -> None:
    def forward(self: Any, x: Any) -> Any:
        return self.short(x) + self.long(x)

    # Autograd takes what was computed last first: of two branches, the second one's gradient comes first.
    model = Written(forward, short=Timed(4, 10, 20), long=Timed(4, 30, 50))
    assert times(profiled(model)) == {"short": (10, 20), "long": (30, 50)}
    early = SeenStep(0, {0: 0, 1: 10, 2: 20}, 30, {0: 40, 2: 50, 1: 70}, 80)
    timed = timed_layers([early], ["a", "b", "c"], "module")
    assert [layer.backward_ps for layer in timed.layers] == [0, 20_000, 20_000]
    assert timed.early == (0,)


def test_times_are_medians_and_a_disturbance_is_said() -> None:
    calls = [0]

    def forward(self: Any, x: Any) -> Any:
        calls[0] += 1
        x = work(x, self.a.weight, 100 if calls[0] != 6 else 100_000, 10)
        return work(x, self.b.weight, 100 if calls[0] != 8 else 100_000, 10)

    model = Written(forward, a=Timed(4, 1, 1), b=Timed(4, 1, 1))
    assert times(profiled(model, steps=5)) == {"a": (100, 10), "b": (100, 10)}

    def restless(self: Any, x: Any) -> Any:
        calls[0] += 1
        x = work(x, self.a.weight, 100 + 1000 * (calls[0] % 3 == 0))
        return work(work(x, self.b.weight, 100 + 1000 * (calls[0] % 3 == 1)), self.c.weight, 1000 * (calls[0] % 3 == 2))

    model = Written(restless, **{name: Timed(4, 1, 1) for name in "abc"})
    found = profiled(model, steps=6)
    assert found.step_ps - found.workload.compute_ps == 1_000_000
    assert found.notes[-1].startswith("0.00 ms of a step come and go, now in one layer and now in another")


def test_steps_in_another_order_are_left_out() -> None:
    calls = [0]

    def forward(self: Any, x: Any) -> Any:
        calls[0] += 1
        return self.a(self.b(x)) if calls[0] in (6, 8) else self.b(self.a(x))

    found = profiled(Written(forward, a=Timed(4, 10, 20), b=Timed(4, 30, 50)), steps=5)
    assert times(found) == {"a": (10, 20), "b": (30, 50)}
    assert found.steps == 3
    assert found.notes == ("2 steps left out, as parameters were used in another order",)


def test_a_parameter_whose_use_is_not_seen_is_used_with_the_one_before_it() -> None:
    step = SeenStep(0, {0: 5, 2: 15}, 25, {2: 30, 1: 40, 0: 50}, 50)
    assert step.order == (0, 1, 2)
    layers = timed_layers([step], ["a", "b", "c"], "module").layers
    assert [(layer.forward_ps, layer.backward_ps) for layer in layers] == [
        (0, 10_000),
        (10_000, 10_000),
        (10_000, 5000),
    ]
    unseen = SeenStep(0, {}, 25, {1: 30, 0: 40}, 40)
    assert [layer.forward_ps for layer in timed_layers([unseen], ["a", "b"], "module").layers] == [0, 25_000]


# First uses.


def test_a_use_is_seen_wherever_the_parameter_is_among_the_arguments() -> None:
    a, b, c, d = (parameter() for _ in range(4))
    seen: list[Any] = []
    with FirstUse([a, b, c, d, a], seen.append) as first:
        torch.stack([b, a])
        torch.add(input=torch.ones(4), other=c)
        a.sum()
        assert [id(each) for each in seen] == [id(b), id(a), id(c)]
        assert [id(each) for each in first.unused] == [id(d)]
        first.reset()
        c.detach()
        assert seen[-1] is c
        assert len(seen) == 4
    d.sum()
    assert len(seen) == 4


def test_reading_what_a_parameter_is_like_is_no_use_but_a_view_of_it_is() -> None:
    seen: list[Any] = []
    weight = nn.Parameter(torch.ones(2, 3))
    with FirstUse([weight], seen.append) as first:
        assert (weight.shape, weight.dtype, weight.dim(), weight.numel()) == ((2, 3), torch.float32, 2, 6)
        weight.grad = None
        assert weight.requires_grad
        assert not seen
        for view in (lambda: weight.T, lambda: weight.data, lambda: weight[0], lambda: weight.view(6)):
            first.reset()
            view()
            assert len(seen) == 1
            seen.clear()


def test_a_parameter_stays_unused_where_the_callback_fails() -> None:
    weight = parameter()

    def fail(_: Any) -> None:
        raise RuntimeError("not there yet")

    with FirstUse([weight], fail) as first:
        with pytest.raises(RuntimeError, match="not there yet"):
            weight.sum()
        assert len(first.unused) == 1


def test_attention_and_recurrent_layers_use_parameters_of_modules_that_they_never_call() -> None:
    attention, recurrent = nn.MultiheadAttention(8, 2), nn.LSTM(8, 8)
    parameters = [*recurrent.parameters(), *attention.parameters()]
    names = {id(each): name for model in (attention, recurrent) for name, each in model.named_parameters()}
    seen: list[str] = []
    with FirstUse(parameters, lambda each: seen.append(names[id(each)])):
        x = torch.ones(3, 2, 8)
        recurrent(attention(x, x, x)[0])
    assert seen[:4] == ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"]
    assert seen[4:] == ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]


# Real models.


@pytest.mark.parametrize("example", [convnet, transformer])
def test_the_examples_are_explained_and_complete(example: Any, tmp_path: Path) -> None:
    model, inputs, loss = example.build()
    found = profile(model, inputs, loss, steps=1, warmup=1, name="example")
    layers = found.workload.layers
    assert sum(layer.params for layer in layers) == sum(each.numel() for each in model.parameters())
    # One step: forward, backward and overhead are all of it, whatever the machine did meanwhile.
    assert found.workload.compute_ps + found.overhead_ps == found.step_ps
    assert found.write(tmp_path / "layers.csv")
    assert read_csv(tmp_path / "layers.csv").layers == layers


def test_the_layers_of_the_transformer_stand_in_the_order_of_their_first_uses() -> None:
    found = profile(*transformer.build(), steps=1, warmup=1)
    block = ("norm1", "attention", "attention.out_proj", "norm2", "wide", "narrow")
    blocks = [f"blocks.{number}.{part}" for number in (0, 1) for part in block]
    assert [layer.name for layer in found.workload.layers] == ["embed", "positions", *blocks, "norm"]
    assert found.workload.batch == 8


@rest(but=1)
@pytest.mark.parametrize("example", [convnet, transformer])
def test_the_examples_learn_and_are_the_same_for_the_same_seed(example: Any) -> None:
    def losses() -> list[float]:
        model = example.model(seed=3)
        inputs, targets = example.batch(seed=4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found = []
        for _ in range(4):
            scores = model(inputs)
            loss = nn.functional.cross_entropy(scores.flatten(0, -2), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    first = losses()
    assert first == losses()
    assert all(later < earlier for earlier, later in pairwise(first))


def test_a_model_is_left_as_it_was_found() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    model(torch.randn(8, 4)).sum().backward()
    gradients = [each.grad for each in model.parameters()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    profile(model, torch.randn(8, 4, generator=torch.Generator().manual_seed(1)), torch.sum, steps=2)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(each.grad is gradient for each, gradient in zip(model.parameters(), gradients, strict=True))
    assert torch.equal(torch.get_rng_state(), random)
    hooks = [each._post_accumulate_grad_hooks for each in model.parameters()]
    assert not any(hooks)


def never(graph: Any, inputs: Any) -> Any:
    """Stand for a compiler that must not be asked."""
    raise AssertionError("compiled")


@rest()
def test_a_compiled_model_has_the_profile_of_the_one_before() -> None:
    def whole() -> Any:
        return nn.Sequential(Timed(4, 10, 20), nn.Sequential(Timed(4, 30, 50)))

    expected = profiled(whole())
    in_part, itself = whole(), whole()
    in_part[1] = torch.compile(in_part[1], backend=never)
    itself[1].compile(backend=never)
    for model in (torch.compile(whole(), backend=never), torch.compile(in_part, backend=never), itself):
        found = profiled(model)
        assert times(found) == times(expected)
        assert found.workload.name == expected.workload.name
        assert found.notes[-1].startswith("the model is compiled, and was profiled without torch.compile")
    assert not expected.notes


def test_a_compiled_model_without_a_way_to_run_the_one_before_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.compiler, "set_stance")
    with pytest.raises(WorkloadError, match=r"accepted: the model before torch\.compile, or torch 2\.6 or newer"):
        profile(torch.compile(nn.Linear(4, 1), backend=never), torch.ones(2, 4), torch.sum)


def test_types_lazy_modules_and_inputs_with_names() -> None:
    def forward(self: Any, x: Any) -> Any:
        return self.narrow(self.lazy(x).to(torch.bfloat16))

    model = Written(forward, lazy=nn.LazyLinear(8), narrow=nn.Linear(8, 2).to(torch.bfloat16))
    found = profile(model, {"x": torch.ones(6, 4)}, torch.sum, steps=1, warmup=1, threads=1)
    assert found.workload.dtype == "fp32"
    assert found.workload.batch == 6
    assert [layer.params for layer in found.workload.layers] == [40, 9]
    assert found.notes == ("gradients in bfloat16: counted as fp32 of as many bytes",)
    halves = profile(model.narrow, torch.ones(2, 8, dtype=torch.bfloat16), torch.sum, steps=1, warmup=1)
    assert (halves.workload.dtype, halves.workload.bytes_per_param) == ("bf16", 2)
    doubles = profile(nn.Linear(4, 1).double(), torch.ones(2, 4).double(), torch.sum, steps=1, warmup=1)
    assert doubles.workload.tensor_bytes == (40,)


# The verb.

GOOD = """
import torch
def build():
    return torch.nn.Linear(4, 1), (torch.ones(2, 4),), torch.sum
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def run(*words: str) -> Any:
    return CliRunner().invoke(main, list(words), standalone_mode=False)


def test_a_profile_goes_into_a_prediction(folder: Path) -> None:
    result = run("profile", str(EXAMPLES / "convnet.py:build"), "-o", "layers.csv", "--steps", "1", "--warmup", "1")
    assert result.exception is None
    lines = result.stdout.splitlines()
    assert lines[0].startswith("convnet on the CPU with ")
    assert lines[1] == "13 layers, 111,976 parameters, 447.9 KB of gradients (fp32)"
    assert lines[-1].startswith("beside the CSV, the job takes overhead = '")
    predicted = run("predict", "--set", "job.csv=layers.csv", "--set", "job.workers=2", "--engine", "simpy")
    assert predicted.exception is None
    assert "layers, 2 workers, 4 servers; compute " in predicted.stdout


def test_a_module_is_found_from_here(folder: Path) -> None:
    (folder / "mine_profiled.py").write_text(GOOD)
    result = run("profile", "mine_profiled:build", "--steps", "1", "--warmup", "1")
    assert result.exception is None
    assert result.stdout.startswith("mine_profiled on the CPU")


WRONG = {
    "import torch\ndef build(): return 7": "model.py:build returned 7; accepted: (model, inputs, loss)",
    "def build(): return 1, 2, 3": "the model is 1; accepted: a torch.nn.Module",
    "build = 3": "build is 3; accepted: FILE.py:FUNCTION",
    "def other(): pass": "no such function; accepted: FILE.py:FUNCTION",
    "def build(): return 1 / 0": "failed at model.py:1: ZeroDivisionError: division by zero; mend it",
    "def build(:": "failed at model.py:1: SyntaxError",
    "import sys\ndef build(): sys.exit(3)": "failed at model.py:2: SystemExit: 3",
    "import no_such_module_at_all": "ModuleNotFoundError: No module named 'no_such_module_at_all'",
    "def build(): raise ValueError('two\\nlines \\x1b[2J')": "ValueError: two; mend it",
    GOOD.replace("torch.sum", "7"): "the loss is 7; accepted: a function from the model's output to one number",
    GOOD.replace("torch.sum", "abs"): "the loss is a tensor of shape (2, 1); accepted: a tensor with one number",
    GOOD.replace("torch.sum", "lambda y: 3.0"): "the loss is 3.0; accepted: a tensor with one number",
    GOOD.replace("torch.sum", "lambda y: y.sum().detach()"): "the loss depends on no trainable parameter",
    GOOD.replace(
        "torch.sum", "lambda y: torch.ones(1, requires_grad=True) * 2"
    ): "no parameter gets a gradient; accepted",
    GOOD.replace("Linear(4, 1)", "Linear(4, 1).requires_grad_(False)"): "Linear has no trainable parameter; accepted",
    GOOD.replace("Linear(4, 1)", "ReLU()"): "ReLU has no trainable parameter; accepted",
    GOOD.replace("2, 4", "2, 5"): "model.py:build failed: RuntimeError: mat1 and mat2 shapes cannot be multiplied",
}


@pytest.mark.parametrize("code", WRONG)
def test_what_is_wrong_with_the_code_is_said_in_a_line(code: str, folder: Path) -> None:
    (folder / "model.py").write_text(code)
    result = run("profile", "model.py:build", "-o", "layers.csv")
    assert isinstance(result.exception, WorkloadError)
    assert WRONG[code] in str(result.exception)
    assert str(result.exception).isprintable()
    assert not (folder / "layers.csv").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("model.py",), "found 'model.py'; accepted: FILE.py:FUNCTION or MODULE:FUNCTION"),
        (("model.py:a b",), "found 'model.py:a b'; accepted"),
        (("model.py:build",), "model.py:build: there is no such file; accepted"),
        (("no.such.module:build",), "no module 'no.such.module' here or among those installed"),
        (("a/b:build",), "found 'a/b:build'; accepted"),
        (("good.py:build", "--steps", "0"), "steps is 0; accepted: a whole number from 1 to 10000"),
        (("good.py:build", "--warmup", "0"), "warmup is 0; accepted"),
        (("good.py:build", "--threads", "0"), "threads is 0; accepted: a whole number from 1 to 1024"),
    ],
)
def test_wrong_words_are_refused_in_a_line(words: tuple[str, ...], message: str, folder: Path) -> None:
    (folder / "good.py").write_text(GOOD)
    result = run("profile", *words)
    assert isinstance(result.exception, TensorExpressError)
    assert result.exception.exit_code == 2
    assert message in str(result.exception)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so(folder: Path) -> None:
    (folder / "good.py").write_text(GOOD)
    result = run("profile", "good.py:build", "--device", "cuda")
    assert isinstance(result.exception, TensorExpressError)
    assert result.exception.exit_code == 1
    assert "torch finds no GPU here" in str(result.exception)


def test_torch_is_not_imported_before_it_is_used() -> None:
    code = "import sys, tensorexpress.torch, tensorexpress.cli.profile; print('torch' in sys.modules, end=' ')"
    front = "import tensorexpress; tensorexpress.predict; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", f"{code}; {front}"], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "False"]


def test_doctests() -> None:
    for module in (first_use, profile_layers, profile_source):
        assert doctest.testmod(module).failed == 0
