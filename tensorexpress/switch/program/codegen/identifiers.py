"""The names of generated code.

Generated code is executed, and a program may come from anyone. So its text holds no word of the program: every name in
it is a letter and a number, counted here, and whatever text the code needs reaches it as an object under such a name.
"""

from __future__ import annotations

from collections import Counter

from tensorexpress.switch.program.budgets import Work
from tensorexpress.switch.program.codegen.variables import Var

#: What an identifier names, by its first letter: no other names of generated code are a letter and a number.
_LETTERS = {
    "variable": "f",
    "table": "t",
    "register": "r",
    "counter": "c",
    "meter": "m",
    "value set": "s",
    "hash": "h",
    "text": "x",
    "constant": "k",
    "unit": "u",
    "value": "e",
}


class Identifiers:
    """Counts the identifiers of one generation of a program, and knows what they stand for."""

    def __init__(self, work: Work):
        self._work = work
        #: Constants of the generated module, by identifier.
        self.preamble: dict[str, str] = {}
        #: Identifiers of tables, registers, texts, ..., by kind and name.
        self.objects: dict[tuple[str, str], str] = {}
        #: Identifier -> what it names, in the program's own words.
        self.labels: dict[str, str] = {}
        self._names: dict[Var | tuple[str, str | Var], str] = {}
        self._counts: Counter[str] = Counter()

    def of(self, var: Var) -> str:
        """Return the identifier of a variable."""
        self._work.spend()
        known = self._names.get(var)
        if known is None:
            part = var.part if isinstance(var.part, str) else " ".join(var.part)
            known = self._names[var] = self.fresh("variable", f"{var.header}.{part}")
        return known

    def fresh(self, kind: str, label: str) -> str:
        """Return an identifier that nothing has yet; the label says what it is to people, never to Python."""
        letter = _LETTERS[kind]
        self._counts[letter] += 1
        name = f"{letter}{self._counts[letter]}"
        self.labels[name] = label
        return name

    def once(self, kind: str, label: str, key: Var | None = None) -> str:
        """Return the identifier of something that is asked for by the same kind and label, or key, every time."""
        found = (kind, key or label)
        if found not in self._names:
            self._names[found] = self.fresh(kind, label)
        return self._names[found]

    def constant(self, definition: str) -> str:
        """Return the identifier of a constant of the generated module."""
        name = self.once("constant", definition)
        self.preamble[name] = definition
        return name

    def object(self, kind: str, name: str) -> str:
        """Return the identifier under which the generated code finds a table, register, counter, meter, text, ..."""
        self.objects[kind, name] = self.once(kind, name)
        return self.objects[kind, name]
