"""Source text that grows line by line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tensorexpress.errors import ProgramError
from tensorexpress.switch.program.budgets import LONGEST_SOURCE
from tensorexpress.switch.program.codegen.variables import Var


class Lines:
    """Source text that grows line by line, and which variables are sure to have a value where it ends."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.depth = self.deepest = self._size = 0
        self._settled: list[set[Var]] = [set()]

    def add(self, line: str) -> None:
        """Append one line at the present depth."""
        self.text.append("    " * self.depth + line)
        self._size += len(self.text[-1])
        if self._size > LONGEST_SOURCE:
            raise ProgramError(
                f"the program becomes more than {LONGEST_SOURCE} characters of code; make it smaller: fewer tables "
                "that share long actions, smaller header stacks"
            )

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Append a line that ends in a colon; what is added inside stands below it."""
        self.add(head)
        self.depth += 1
        self.deepest = max(self.depth, self.deepest)
        self._settled.append(set())
        start = len(self.text)
        yield
        if len(self.text) == start:
            self.add("pass")
        self._settled.pop()
        self.depth -= 1
        if head == "else:":
            self._tidy_else(start)

    def _tidy_else(self, start: int) -> None:
        """Drop an `else` that does nothing; make one that holds nothing but another `if` an `elif`."""
        if [line.strip() for line in self.text[start:]] == ["pass"]:
            del self.text[start - 1 :]
            return
        inner = "    " * (self.depth + 1)
        heads = [line for line in self.text[start:] if line.startswith(inner) and line[len(inner)] != " "]
        if heads[0].startswith(f"{inner}if ") and all(line.startswith(f"{inner}el") for line in heads[1:]):
            self.text[start - 1 :] = [line[4:] for line in self.text[start:]]
            self.text[start - 1] = "    " * self.depth + "el" + self.text[start - 1].lstrip()

    def settle(self, var: Var) -> None:
        """Note that the last line gave a variable a value; what is below a block may not be reached."""
        self._settled[-1].add(var)

    def is_settled(self, var: Var) -> bool:
        """Whether a variable has a value here, on whatever path this point is reached."""
        return any(var in known for known in self._settled)
