"""Control flow as nested statements: a graph of nodes, each written once.

After a branch the paths meet at its immediate post-dominator, and writing goes on there. A node that several paths
reach, but not all, is written after the branch that they come from, behind a test of `step`, which the paths that lead
to it set. A graph with a cycle becomes a loop over node numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from tensorexpress.switch.program.budgets import MOST_NODES, Work, beyond
from tensorexpress.switch.program.codegen.lines import Lines
from tensorexpress.switch.program.codegen.scope import Scope

Node = str | None  #: None is the end.

#: Writes a node; it calls its second argument with the successor wherever control goes there.
Body = Callable[[str, Callable[[Node], None]], None]

#: Python reads at most 100 levels of indentation, and actions add some of their own.
_DEEPEST = 60


class FlowGraph:
    """A graph by the successors of its nodes. All successors of a node are nodes or None, the end."""

    def __init__(self, start: Node, successors: Mapping[str, Sequence[Node]]):
        if len(successors) > MOST_NODES:
            raise beyond("the program", len(successors), MOST_NODES, "states, tables or primitives in one graph")
        self.start = start
        self.successors = successors
        #: A node that leads back to itself, None if there is none.
        self.cycle: Node = None
        self.order = self._topological()
        self._joins: dict[str, Node] = {}
        self._parents: dict[str, Node] = {}
        if self.order is not None:
            self._find_joins(self.order)
            self._find_parents(self.order)
        self._shared = self._find_shared()
        self._numbers = {node: number for number, node in enumerate(chain.from_iterable(self._shared.values()), 1)}

    def _topological(self) -> list[str] | None:
        """Return the nodes with every node before its successors, None if there is a cycle."""
        done: dict[str, bool] = {}
        order: list[str] = []
        stack: list[tuple[str, bool]] = [(self.start, False)] if self.start is not None else []
        while stack:
            node, leaving = stack.pop()
            if leaving:
                done[node] = True
                order.append(node)
            elif node not in done:
                done[node] = False
                stack.append((node, True))
                for successor in self.successors[node]:
                    if successor is not None:
                        if done.get(successor) is False:
                            self.cycle = successor
                            return None
                        stack.append((successor, False))
        return order[::-1]

    def _find_joins(self, order: list[str]) -> None:
        """Find the immediate post-dominator of every node: the first node that all paths from it lead through."""
        depth: dict[Node, int] = {None: 0}
        for node in reversed(order):
            join, *others = self.successors[node]
            for other in others:
                join = _meet(join, other, self._joins, depth)
            self._joins[node] = join
            depth[node] = depth[join] + 1

    def _find_parents(self, order: list[str]) -> None:
        """Find the immediate dominator of every node: the last node that all paths to it lead through."""
        depth: dict[Node, int] = {None: 0}
        for node in order:
            depth[node] = depth[self._parents.setdefault(node, None)] + 1
            for successor in self.successors[node]:
                if successor is not None:
                    known = self._parents.get(successor, node)
                    self._parents[successor] = _meet(known, node, self._parents, depth)

    def _find_shared(self) -> dict[str, list[str]]:
        """Return, for every node, those after its branch that some of the paths from it lead to."""
        arrivals: dict[Node, int] = {}
        for node in self.order or ():
            for successor in self.successors[node]:
                arrivals[successor] = arrivals.get(successor, 0) + 1
        shared: dict[str, list[str]] = {}
        for node in self.order or ():
            parent = self._parents[node]
            if parent is not None and arrivals[node] > 1 and self._joins[parent] != node:
                shared.setdefault(parent, []).append(node)
        return shared

    def is_nestable(self) -> bool:
        """Whether nested statements can express the graph: it has no cycle and is not too deep for Python."""
        if self.order is None:
            return False
        lines = Lines()

        def body(node: str, go: Callable[[Node], None]) -> None:
            for successor in self.successors[node]:
                with lines.block("branch"):
                    go(successor)

        try:
            self.write_nested(lines, body)
        except RecursionError:
            return False
        return lines.deepest <= _DEEPEST

    def write_nested(self, lines: Lines, body: Body, step: str = "step") -> None:
        """Write all nodes as nested statements; `step` names the variable, one of its own where graphs nest."""

        def write(node: Node, until: Node, is_guarded: bool = False) -> None:
            while node is not None and node != until:
                if node in self._numbers and not is_guarded:
                    lines.add(f"{step} = {self._numbers[node]}")
                    return
                is_guarded = False
                join = self._joins[node]
                ends_here = join is None or self._parents[join] != node
                inner_until = until if ends_here else join
                body(node, lambda successor, until=inner_until: write(successor, until))  # type: ignore[misc]
                for shared in self._shared.get(node, ()):
                    with lines.block(f"if {step} == {self._numbers[shared]}:"):
                        write(shared, inner_until, is_guarded=True)
                if ends_here:
                    return
                node = join

        if self._numbers:
            lines.add(f"{step} = 0")
        write(self.start, None)

    def write_loop(self, lines: Lines, head: str, body: Body) -> int:
        """Write a loop with that head over a number of the next node; the end leaves it by `break`.

        Returns the number of characters that one step runs at most.
        """
        if self.start is None:
            return 0
        # A name of its own where loops nest.
        step = f"step{lines.depth}_"
        numbers = {node: number for number, node in enumerate(reachable(self.start, self.successors))}

        def go(successor: Node) -> None:
            lines.add("break" if successor is None else f"{step} = {numbers[successor]}")

        lines.add(f"{step} = 0")
        tests, longest = 0, 0
        with lines.block(head):
            for position, node in enumerate(numbers):
                test = f"{'el' if position else ''}if {step} == {numbers[node]}:"
                start = len(lines.text)
                with lines.block(test):
                    body(node, go)
                tests += len(test)
                longest = max(longest, sum(map(len, lines.text[start + 1 :])))
        return tests + longest


def graph(work: Work, start: Node, successors: Mapping[str, Sequence[Node]]) -> FlowGraph:
    """Return a graph to write; finding out where its paths meet is work too."""
    work.spend(len(successors) + len(successors) ** 2 // 1024)
    return FlowGraph(start, successors)


def reachable(start: Node, successors: Mapping[str, Sequence[Node]]) -> list[str]:
    """Return the nodes that some path from the start leads to, the start first.

    >>> reachable("a", {"a": ["c", None], "b": ["a"], "c": ["a"]})
    ['a', 'c']
    """
    found: dict[str, None] = {}
    waiting = [start]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found[node] = None
            waiting += successors[node]
    return list(found)


def write_bounded_loop(scope: Scope, lines: Lines, flow: FlowGraph, body: Body) -> None:
    """Write a graph with a cycle; a packet that has used up its steps ends there."""
    cost = flow.write_loop(lines, "for _ in steps:", body)
    with lines.block("else:"):
        lines.add("endless()")
    scope.loop_costs[scope.stage] = max(cost, scope.loop_costs.get(scope.stage, 0))


def _meet(left: Node, right: Node, tree: Mapping[str, Node], depth: Mapping[Node, int]) -> Node:
    """Return the deepest common ancestor of two nodes of a tree, given by parents and depths."""
    while left != right:
        if depth[left] < depth[right]:
            left, right = right, left
        assert left is not None
        left = tree[left]
    return left
