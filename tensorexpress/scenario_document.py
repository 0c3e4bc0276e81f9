"""Scenario documents: what was written, in a TOML file and on the command line, and where each key came from."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from tensorexpress.errors import InputError, ScenarioError, shown, unknown
from tensorexpress.files import open_input
from tensorexpress.scenario_keys import REQUIRED, SECTIONS, Key, Words, join

#: Sections a file may hold several times, and how many there are when it holds none.
_REPEATED = {"job": 1, "background": 0, "change": 0}

#: How alike two keys are where one may be the other with a slip of the keyboard.
_SLIP = 0.85

#: A scenario is a page of text; what is larger is some other file.
_LARGEST_FILE_BYTES = 1_000_000


class Override(NamedTuple):
    """A key given on the command line, as "KEY=VALUE", and what an error calls it."""

    text: str
    #: None for "--set KEY".
    option: str | None = None


@dataclass(frozen=True)
class Table:
    """One section of a document, read: its values by `Key.field`, None where the default depends on other keys."""

    path: str
    #: The keys that were written; the others have their defaults.
    given: frozenset[str]
    values: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def at(self, name: str) -> str:
        """Return the path of one of its keys."""
        return join(self.path, name)


@dataclass(frozen=True)
class Document:
    """What was written, overrides included; sections that may repeat are lists of tables."""

    source: str
    content: Mapping[str, Any]
    #: The keys given on the command line, in that order, and what an error calls each.
    overridden: Mapping[str, str]

    def top(self) -> Table:
        """Return the keys that are in no section; refuse what is neither one of them nor a section."""
        for name in self.content:
            if name not in _top_level():
                raise self.error("", _unknown_key("", name))
        return self._read("", "", {name: value for name, value in self.content.items() if name in SECTIONS[""]})

    def table(self, section: str) -> Table:
        """Return a section that stands in a document at most once."""
        return self._read(section, section, self.content.get(section, {}))

    def tables(self, section: str) -> list[Table]:
        """Return all tables of a section that may repeat."""
        found = self.content[section]
        if not isinstance(found, list) or len(found) < _REPEATED[section]:
            raise self.error(section, f"found {shown(found)}; accepted: [{section}], or [[{section}]] several times")
        return [self._read(section, f"{section}.{index}", table) for index, table in enumerate(found)]

    def error(self, path: str, message: str) -> ScenarioError:
        """Return the error for the key at `path`; it names the file or the command line, whichever set the key."""
        option = self._option(path)
        if option is not None:
            return _error(option, message)
        tables = self.content.get(path.partition(".")[0])
        several = isinstance(tables, list) and len(tables) > 1
        where = path if several else _without_index(path)
        return _error(f"{self.source}: {where}" if where else self.source, message)

    def file(self, path: str, name: str) -> Path:
        """Return the file named at `path`: seen from the scenario's folder or, on the command line, from here."""
        return Path(name) if self.is_override(path) else Path(self.source).parent / name

    def is_override(self, path: str) -> bool:
        """Whether the key at `path` was given on the command line."""
        return self._option(path) is not None

    def is_varied(self, path: str) -> bool:
        """Whether the key at `path` was given by --vary, which compares its values."""
        return (self._option(path) or "").startswith("--vary")

    def _option(self, path: str) -> str | None:
        """Return what on the command line set the key at `path`, or a part of its value."""
        for key, option in reversed(list(self.overridden.items())):
            for form in (path, _without_index(path)):
                part_of_value = form not in SECTIONS and key.startswith(f"{form}.")
                if form == key or form.startswith(f"{key}.") or part_of_value:
                    return option
        return None

    def _read(self, section: str, path: str, table: object) -> Table:
        rows = SECTIONS[section]
        if not isinstance(table, Mapping):
            raise self.error(path, f"found {shown(table)}; accepted: a table of {', '.join(rows)}")
        for name in table:
            if name not in rows:
                raise self.error(join(path, str(name)), _unknown_key(section, name))
        values = {key.field: self._value(join(path, name), key, table.get(name)) for name, key in rows.items()}
        return Table(path, frozenset(table), values)

    def _value(self, path: str, key: Key, value: object) -> Any:
        if value is None and key.default is REQUIRED:
            raise self.error(path, f"is missing; accepted: {key.kind.accepted}")
        if value is None and isinstance(key.default, Words):
            return None
        try:
            return key.kind.parse(key.default if value is None else value)
        except ValueError:
            raise self.error(path, f"found {shown(value)}; accepted: {key.kind.accepted}") from None
        except InputError as error:
            raise self.error(path, str(error)) from None


def read_toml(source: str) -> dict[str, Any]:
    """Return what a TOML file holds."""
    text = _read_text(source)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise _error(source, "is nested too deeply; accepted: a scenario in TOML") from None
    except ValueError as error:  # a TOMLDecodeError, or an integer longer than Python reads
        message, _, place = str(error).partition(" (at ")
        found = re.match(r"line (\d+)", place)
        line = found[1] if found else text.rstrip().count("\n") + 1
        raise _error(f"{source}:{line}", f"not TOML: {message}; accepted: lines such as seed = 1") from None


def _read_text(source: str) -> str:
    try:
        with open_input(source) as file:
            content = file.read(_LARGEST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        reason = getattr(error, "strerror", None) or error
        raise _error(source, f"cannot be read ({reason}); accepted: a scenario in TOML") from None
    if len(content) > _LARGEST_FILE_BYTES:
        raise _error(source, f"is larger than {_LARGEST_FILE_BYTES} bytes; accepted: a scenario in TOML")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = f"byte {content[error.start]:#04x} is not UTF-8; accepted: a scenario in TOML"
        raise _error(f"{source}:{line}", message) from None


def merge(content: Mapping[str, Any], source: str, overrides: Sequence[str | Override]) -> Document:
    """Return the document of a file's content and the overrides that were given beside it."""
    merged: dict[str, Any] = _with_lists(content)
    overridden: dict[str, str] = {}
    for override in overrides:
        written, option = override if isinstance(override, Override) else Override(override)
        path, equals, text = (part.strip() for part in written.partition("="))
        steps = path.split(".")
        if not equals or not all(steps):
            raise _error("--set", f"found {shown(written)}; accepted: KEY=VALUE such as job.model=vgg16")
        where = option or f"--set {path}"
        if steps[0] not in _top_level():
            raise _error(where, _unknown_key("", steps[0]))
        try:
            merged = _with_lists(_put(merged, steps, _override_value(text)))
        except ValueError as error:
            raise _error(where, str(error)) from None
        overridden.pop(path, None)  # given again, it is the last
        overridden[path] = where
    return Document(source, merged, overridden)


def _with_lists(content: Mapping[str, Any]) -> dict[str, Any]:
    repeated = {section: content.get(section, [{}] * count) for section, count in _REPEATED.items()}
    return {**content, **{name: [value] if isinstance(value, Mapping) else value for name, value in repeated.items()}}


def _put(node: Any, steps: Sequence[str], value: object) -> Any:
    """Return the node with the value where the steps lead; a list without an index stands for each of its items."""
    if not steps:
        return value
    step, *rest = steps
    if isinstance(node, Mapping):
        return {**node, step: _put(node.get(step, {}), rest, value)}
    if not isinstance(node, list):
        raise ValueError(f"found {shown(node)} where {step!r} should be a key; accepted: a key of a table")
    if not re.fullmatch("[0-9]{1,6}", step):
        return [_put(item, steps, value) for item in node or [{}]]
    index = int(step)
    if index > len(node):
        raise ValueError(f"found index {index}; accepted: 0 to {len(node)}, where {len(node)} adds one")
    items = [*node, {}] if index == len(node) else list(node)
    items[index] = _put(items[index], rest, value)
    return items


def _override_value(text: str) -> object:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _top_level() -> list[str]:
    return [*SECTIONS[""], *filter(None, SECTIONS)]


def _unknown_key(section: str, name: object) -> str:
    homes = [join(home, str(name)) for home, rows in SECTIONS.items() if home != section and name in rows]
    # A slip in a key of the section itself is likelier than the key of another one.
    is_slip = bool(get_close_matches(str(name), SECTIONS[section], 1, _SLIP))
    if homes and not is_slip:
        return f"unknown key {shown(name)}; did you mean {' or '.join(homes)}?"
    if section:
        return unknown("key", name, SECTIONS[section])
    return unknown("key or section", name, _top_level())


def _without_index(path: str) -> str:
    return re.sub(r"^(\w+)\.[0-9]+", r"\1", path)


def _error(where: str, message: str) -> ScenarioError:
    return ScenarioError(f"{where}: {message}")
