"""Training over a run: the same losses and parameters as one process has, whatever is difficult about a model."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import pytest
from support.thorough import rest

torch = pytest.importorskip("torch", reason="needs the extra torch")

from support.torch_training import (  # noqa: E402
    STEPS,
    Tricky,
    batch,
    layers_of,
    loss_of,
    reference,
    train_together,
    tricky,
    uses_rare,
)

from tensorexpress.errors import InputError  # noqa: E402
from tensorexpress.torch.training_layers import match_layers  # noqa: E402

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}

NOTHING: Callable[..., None] = lambda *arguments: None  # noqa: E731


def script(
    make_optimizer: Callable[..., Any],
    accumulate: int = 1,
    *,
    before_step: Callable[[Tricky], None] = NOTHING,
    at_step: Callable[..., None] = NOTHING,
) -> Callable[[Any], Any]:
    """Return a script that trains the tricky model, as anybody would write it."""

    def run(session: Any) -> Any:
        model = tricky()
        optimizer = session.distribute(model, make_optimizer(model.parameters()), accumulate=accumulate)
        for step in range(session.steps):
            for micro in range(accumulate):
                tokens = batch(step, session.worker, micro)
                loss_of(model, tokens, uses_rare(step, session.worker, micro)).backward()
            before_step(model)
            optimizer.step()
            optimizer.zero_grad()
            at_step(step, model, optimizer)
        return session.losses, {name: value.clone() for name, value in model.state_dict().items()}

    return run


LAYERS = layers_of(tricky(), "unused.weight", "unused.bias")


def check_equal(found: list[Any], expected: tuple[list[float], dict[str, Any]]) -> None:
    """Check that all workers have the losses and the parameters of the reference, bit for bit."""
    losses, parameters = expected
    by_step = [[own[0][step] for own in found] for step in range(STEPS)]
    assert [loss for step in by_step for own in step for loss in own] == losses
    for _, own in found:
        assert own.keys() == parameters.keys()
        for name, value in parameters.items():
            assert torch.equal(own[name], value), name


@rest(but=1)
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_together_is_training_alone(optimizer: str, accumulate: int) -> None:
    found = train_together(LAYERS, script(OPTIMIZERS[optimizer], accumulate))
    check_equal(found, reference(OPTIMIZERS[optimizer], accumulate))


# A hook on modules sees their calls, not the uses of parameters.


def with_hooks(leaves_only: bool) -> Callable[[Any], Any]:
    """Return a script that waits for parameters when a module is entered which owns them, as others have done."""

    def run(session: Any) -> Any:
        model = tricky()
        optimizer = session.distribute(model, OPTIMIZERS["momentum"](model.parameters()))
        session.engine._watch._look = NOTHING  # first uses are not seen any more

        def before(module: Any, inputs: object) -> None:
            for parameter in module.parameters(recurse=False):
                if parameter.requires_grad and id(parameter) in session.engine._part_of:
                    session.engine.before_use(parameter)

        for module in model.modules():
            if not leaves_only or not list(module.children()):
                module.register_forward_pre_hook(before)
        for step in range(session.steps):
            loss_of(model, batch(step, session.worker, 0), uses_rare(step, session.worker, 0)).backward()
            optimizer.step()
            optimizer.zero_grad()
        return session.losses, {name: value.clone() for name, value in model.state_dict().items()}

    return run


@pytest.mark.parametrize("leaves_only", [False, True])
def test_hooks_on_modules_instead_of_first_uses_fail(leaves_only: bool) -> None:
    # The engine sees it, or autograd does: never is anything trained wrongly in silence.
    seen = "was used before it was updated, and nobody saw it|modified by an inplace operation"
    with pytest.raises((InputError, RuntimeError), match=seen):
        train_together(LAYERS, with_hooks(leaves_only))


# What needs all gradients first


@rest(but=1)
@pytest.mark.parametrize("accumulate", [1, 3])
def test_clipping_by_norm_waits_for_all_sums_and_says_so_once(
    accumulate: int, capfd: pytest.CaptureFixture[str]
) -> None:
    def clip(model: Tricky) -> None:
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        assert norm > 0.5

    found = train_together(LAYERS, script(OPTIMIZERS["adamw"], accumulate, before_step=clip))
    check_equal(found, reference(OPTIMIZERS["adamw"], accumulate, before_step=clip))
    said = capfd.readouterr().err
    assert said.count("was read before the next forward pass") == 1


def test_a_scaler_that_skips_a_step_skips_it_everywhere() -> None:
    def run(session: Any) -> Any:
        model = tricky()
        optimizer = session.distribute(model, torch.optim.SGD, lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        skipped = []
        for step in range(session.steps):
            loss = loss_of(model, batch(step, session.worker, 0), True)
            # One worker alone has a gradient that is not finite.
            factor = float("inf") if (step, session.worker) == (1, 0) else 1.0
            scaler.scale(loss * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            after = {name: value.clone() for name, value in model.state_dict().items()}
            skipped.append(all(torch.equal(after[name], before[name]) for name in after))
            before = after
        return skipped, before

    (first, one), (second, other) = train_together(LAYERS, run)
    assert first == second == [step == 1 for step in range(STEPS)]
    assert all(torch.equal(one[name], other[name]) for name in one)


# Checkpoints, evaluation, schedules


def test_checkpoint_in_the_middle_schedule_and_evaluation() -> None:
    def at_step(step: int, model: Tricky, optimizer: Any) -> None:
        if step == 2:
            kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            kept = torch.load(_through_a_file(kept), weights_only=True)
            for parameter in model.parameters():
                torch.nn.init.zeros_(parameter)
            model.load_state_dict(kept["model"])
            optimizer.load_state_dict(kept["optimizer"])
        if step == 3:
            with torch.no_grad():
                assert torch.isfinite(loss_of(model.eval(), batch(99, 0, 0), True))
            model.train()
        for group in optimizer.param_groups:
            group["lr"] *= 0.7

    for name in OPTIMIZERS:
        found = train_together(LAYERS, script(OPTIMIZERS[name], at_step=at_step))
        check_equal(found, reference(OPTIMIZERS[name], 1, at_step=at_step))


def _through_a_file(kept: dict[str, Any]) -> io.BytesIO:
    content = io.BytesIO()
    torch.save(kept, content)
    content.seek(0)
    return content


@rest(but=1)
@pytest.mark.parametrize(
    "zero",
    [
        lambda model, optimizer: model.zero_grad(),
        lambda model, optimizer: optimizer.zero_grad(set_to_none=False),
        lambda model, optimizer: [setattr(parameter, "grad", None) for parameter in model.parameters()],
        NOTHING,
    ],
    ids=["model.zero_grad", "zeros", "grad = None", "never"],
)
def test_gradients_are_forgotten_as_the_script_says(
    zero: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    def run(step_of: Callable[[int], Any], model: Tricky, optimizer: Any) -> Any:
        for step in range(STEPS):
            step_of(step)
            optimizer.step()
            zero(model, optimizer)
        return {name: value.clone() for name, value in model.state_dict().items()}

    def together(session: Any) -> Any:
        model = tricky()
        optimizer = session.distribute(model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9))
        return run(lambda step: loss_of(model, batch(step, session.worker, 0), True).backward(), model, optimizer)

    alone = tricky()

    def backward(step: int) -> None:
        """Add the mean of workers' gradients, each of which lies on top of what was there before."""
        before = {parameter: parameter.grad for parameter in alone.parameters()}
        totals: dict[Any, Any] = {}
        for worker in range(2):
            for parameter, gradient in before.items():
                parameter.grad = None if gradient is None else gradient.clone()
            loss_of(alone, batch(step, worker, 0), True).backward()
            for parameter in alone.parameters():
                if parameter.grad is not None:
                    totals[parameter] = totals[parameter] + parameter.grad if parameter in totals else parameter.grad
        for parameter in alone.parameters():
            parameter.grad = totals[parameter] / 2 if parameter in totals else None

    expected = run(backward, alone, torch.optim.SGD(alone.parameters(), lr=0.02, momentum=0.9))
    for own in train_together(LAYERS, together):
        assert all(torch.equal(own[name], value) for name, value in expected.items())
    assert capfd.readouterr().err == ""


# What is refused, by name


def refused(body: Callable[..., Any], layers: Any = LAYERS, **options: Any) -> str:
    def run(session: Any) -> None:
        model = tricky()
        optimizer = session.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)
        body(session, model, optimizer)

    with pytest.raises(InputError) as error:
        train_together(layers, run, workers=1, steps=2)
    return str(error.value)


def backward(model: Tricky) -> None:
    loss_of(model, batch(0, 0, 0), True).backward()


def test_wrong_uses_are_refused_by_name() -> None:
    def twice(session: Any, model: Tricky, optimizer: Any) -> None:
        backward(model)
        backward(model)

    assert "got a gradient after its gradients had been sent; accepted: 1 backward per step" in refused(twice)

    def early(session: Any, model: Tricky, optimizer: Any) -> None:
        backward(model)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    assert "was read before it was summed, in a step of 1 backward; accepted: 3" in refused(early, accumulate=3)

    def closure(session: Any, model: Tricky, optimizer: Any) -> None:
        optimizer.step(lambda: 0.0)

    assert refused(closure).startswith("step(closure) computes the loss again")

    def view(session: Any, model: Tricky, optimizer: Any) -> None:
        kept = model.rare.weight.t()
        for _ in range(2):
            (kept * 2).sum().backward(retain_graph=True)
            optimizer.step()

    assert "parameter rare.weight was used before it was updated, and nobody saw it" in refused(view)

    def unfrozen(session: Any, model: Tricky, optimizer: Any) -> None:
        model.frozen.requires_grad_(True)
        backward(model)
        optimizer.step()

    assert refused(unfrozen).startswith("parameter frozen.weight was frozen when it was distributed")

    def outside(session: Any, model: Tricky, optimizer: Any) -> None:
        model.unused(torch.ones(8)).sum().backward()
        optimizer.step()

    assert refused(outside).startswith("parameter unused.weight has a gradient, and no layer of the scenario has it")

    def fewer(session: Any, model: Tricky, optimizer: Any) -> None:
        backward(model)
        optimizer.step()

    assert refused(fewer).startswith("the script made 1 steps; accepted: the 2 of the run")

    def more(session: Any, model: Tricky, optimizer: Any) -> None:
        for _ in range(3):
            backward(model)
            optimizer.step()

    assert refused(more).startswith("the script makes more than the 2 steps of the run")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda layers: [("rare.wait", 64)], "layer 'rare.wait' is no module or parameter of Tricky"),
        (lambda layers: [("rare", 73)], "layer 'rare' has 73 parameters, and rare.weight + rare.bias of Tricky 72"),
        (lambda layers: [("rare.weight", 70)], "layer 'rare.weight' has 70 parameters, and rare.weight of Tricky 64"),
        (lambda layers: [*layers, layers[0]], "layer 'scale' is no module or parameter of Tricky"),
        (lambda layers: [("frozen", 72)], "layer 'frozen' is no module or parameter of Tricky"),
    ],
)
def test_layers_that_are_not_the_models_are_refused(change: Callable[..., Any], message: str) -> None:
    assert refused(NOTHING, change(LAYERS)).startswith(f"small: {message}")


def test_layers_may_be_modules_or_parts_of_them() -> None:
    model = tricky()
    names, sizes = ["embed", "attention", "rare.weight", "scale"], [88, 192 + 24, 72, 8]
    found = match_layers(model, names, sizes, "small")
    assert [[name for name, _ in layer] for layer in found] == [
        ["embed.weight"], ["attention.in_proj_weight", "attention.in_proj_bias"], ["rare.weight", "rare.bias"],
        ["scale"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "optimizer", "message"),
    [
        (lambda: torch.nn.Linear(2, 2).double(), torch.optim.SGD, "parameter weight is of torch.float64"),
        (lambda: torch.nn.DataParallel(torch.nn.Linear(2, 2)), torch.optim.SGD, "the model is of class DataParallel"),
        (lambda: torch.nn.Linear(2, 2), torch.optim.LBFGS, "unknown optimizer 'LBFGS'"),
    ],
)
def test_models_and_optimizers_that_cannot_be_are_refused(
    model: Callable[[], Any], optimizer: Any, message: str
) -> None:
    def run(session: Any) -> None:
        session.distribute(model(), optimizer, lr=0.1)

    with pytest.raises(InputError, match=re.escape(message)):
        train_together([(name, p.numel()) for name, p in model().named_parameters()], run, workers=1)
