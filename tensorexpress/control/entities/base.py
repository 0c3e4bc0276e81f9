"""What all kinds of entities have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, ClassVar

from tensorexpress.control.messages import ProgramSchema
from tensorexpress.p4runtime_messages import p4runtime_pb2


class Entity(ABC):
    """Something that a controller can set."""

    __slots__ = ()

    #: What people call many of this kind.
    plural: ClassVar[str]
    #: Whether it is there as long as the program runs, so that it can be modified and neither inserted nor deleted.
    is_permanent: ClassVar[bool] = False
    #: What to do about a switch that cannot read or set any of this kind.
    remedy: ClassVar[str] = "take a switch that implements all of P4Runtime"

    @property
    @abstractmethod
    def place(self) -> str:
        """Where it is, for reports and references: a table, a counter, or one of the switch's own lists."""

    @property
    @abstractmethod
    def identity(self) -> Hashable:
        """What two entities have in common when one of them takes the place of the other."""

    @abstractmethod
    def content(self, schema: ProgramSchema) -> dict[str, Any]:
        """Return the content of its message, as in plain_messages.py.

        PlanError says that a value does not fit, ProgramError that a name is not there.
        """

    def encode(self, schema: ProgramSchema) -> Any:
        """Return it as a message; errors are those of `content`."""
        return p4runtime_pb2.Entity(**self.content(schema))

    @classmethod
    @abstractmethod
    def is_in(cls, message: Any) -> bool:
        """Whether a message holds an entity of this kind."""

    @classmethod
    @abstractmethod
    def decode(cls, schema: ProgramSchema, message: Any) -> Entity:
        """Return the entity that a message holds, which is of this kind."""

    @classmethod
    @abstractmethod
    def queries(cls, schema: ProgramSchema, wanted: Iterable[Entity]) -> Iterator[Any]:
        """Yield what to read, one by one, to know all of this kind that may differ from what is wanted."""

    @abstractmethod
    def show(self, schema: ProgramSchema) -> str:
        """Return it as one line for a person, without its place."""

    @classmethod
    def initial(cls, schema: ProgramSchema, wanted: Iterable[Entity]) -> Iterator[Entity]:
        """Yield what a switch holds that has just begun to run the program, of arrays the cells that are wanted."""
        return iter(())

    @classmethod
    def places(cls, schema: ProgramSchema) -> list[str]:
        """Return the places of this kind that belong to the program."""
        return []

    def room(self, schema: ProgramSchema) -> int | None:
        """Return how many of its kind its place has room for; None where nobody says."""
        return None

    def at_rest(self) -> Entity:
        """Return what takes its place when nobody wants it any more but it is permanent."""
        return self
