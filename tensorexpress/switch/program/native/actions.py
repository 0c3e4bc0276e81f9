"""Native code of actions: each is a function, with the jumps that p4c lowers conditions to as blocks."""

from __future__ import annotations

from tensorexpress.switch.program.bmv2.values import ActionInfo, Const, Expression, Primitive
from tensorexpress.switch.program.budgets import Work
from tensorexpress.switch.program.codegen.flow import graph, reachable
from tensorexpress.switch.program.native.code import IrFunction
from tensorexpress.switch.program.native.layout import SLOTS
from tensorexpress.switch.program.native.primitives import PrimitiveCode
from tensorexpress.switch.program.native.regions import Extent, Region
from tensorexpress.switch.program.native.rows import argument_words
from tensorexpress.switch.program.native.unit import Unit
from tensorexpress.switch.program.native.unsupported import Unsupported

#: What an action, a control or a stage returns: it went on, it left its control early, its loops used up their steps.
WENT_ON, LEFT, ENDLESS = range(3)


class ActionCode:
    """Writes the actions of one stage, each once."""

    def __init__(self, unit: Unit, stage: str, work: Work):
        self._unit = unit
        self._stage = stage
        self._work = work
        self._written: dict[int, str] = {}

    def function(self, info: ActionInfo) -> str:
        """Return the name of the function that an action is: it takes the context and where its arguments are."""
        if info.id not in self._written:
            self._written[info.id] = name = f"@{self._stage}_action{info.id}"
            code = IrFunction(self._unit.module, f"define internal i64 {name}(ptr noalias %c, ptr %args)")
            code.place("%args", Region("arguments", Extent(8 * argument_words(info)), is_any=True))
            writer = PrimitiveCode(self._unit, code, self._stage)
            writer.where = f"action {info.name!r}"
            writer.expressions.parameters = [bits for _, bits in info.parameters]
            self._body(info, code, writer)
            self._unit.module.add(code)
        return self._written[info.id]

    def _body(self, info: ActionInfo, code: IrFunction, writer: PrimitiveCode) -> None:
        steps = info.primitives
        labels = [code.label() for _ in steps] + [code.label()]
        successors = _successors(steps)
        bounded = self._is_bounded(steps, successors)
        for position in sorted(map(int, reachable("0" if steps else None, successors))):
            step = steps[position]
            code.start(labels[position])
            if bounded:
                count_step(code)
            match step.op:
                case "_jump":
                    code.go(labels[_target(step.parameters[0], len(steps))])
                case "_jump_if_zero":
                    condition = writer.expressions.condition(step.parameters[0])
                    code.branch(condition, labels[position + 1], labels[_target(step.parameters[1], len(steps))])
                case "exit":
                    code.give_back(LEFT)
                case _:
                    write_primitive(writer, step)
        code.start(labels[-1])
        code.give_back(WENT_ON)

    def _is_bounded(self, steps: tuple[Primitive, ...], successors: dict[str, list[str | None]]) -> bool:
        """Whether the jumps of an action go back, so that its steps are counted."""
        if not any(step.op.startswith("_jump") for step in steps):
            return False
        return not graph(self._work, "0", successors).is_nestable()


def _successors(steps: tuple[Primitive, ...]) -> dict[str, list[str | None]]:
    """Return the steps of an action that may follow each of them, by position; None is the end."""
    successors: dict[str, list[str | None]] = {}
    for position, step in enumerate(steps):
        following = [position + 1]
        if step.op == "_jump":
            following = [_target(step.parameters[0], len(steps))]
        elif step.op == "_jump_if_zero":
            following.append(_target(step.parameters[1], len(steps)))
        elif step.op == "exit":
            following = [len(steps)]
        successors[str(position)] = [str(place) if place < len(steps) else None for place in following]
    return successors


def write_primitive(writer: PrimitiveCode, step: Primitive) -> None:
    """Write one primitive of an action or of a parser state."""
    write = writer.primitives.get(step.op)
    if write is None:
        raise Unsupported(f"{writer.where} uses the primitive {step.op!r}")
    write(*step.parameters)


def count_step(code: IrFunction) -> None:
    """Write that one step of a loop is taken; the function ends where none is left."""
    left = code.load(SLOTS["steps"])
    ended = code.unless(code.op(f"icmp eq i64 {left}, 0"))
    after = code.label()
    code.store(code.op(f"sub i64 {left}, 1"), SLOTS["steps"])
    code.go(after)
    code.start(ended)
    code.give_back(ENDLESS)
    code.start(after)


def _target(expression: Expression, count: int) -> int:
    assert isinstance(expression, Const)
    return min(expression.value, count)
