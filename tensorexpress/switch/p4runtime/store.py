"""The authoritative state of a program's entities: decides every write, then hands operations to the data path.

A write is decided on this state alone, so that the data path never fails and reads of entries never disturb packets.
Only what packets change (counters, registers, idle times) is asked of the data path.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from tensorexpress.p4runtime_messages import p4runtime_pb2
from tensorexpress.switch.operations import DataPath, Key, Operation, Query, SetValueSet
from tensorexpress.switch.p4runtime.answers import LARGEST_DETAILED_BATCH, can_be_told, not_done
from tensorexpress.switch.p4runtime.arrays import Arrays
from tensorexpress.switch.p4runtime.batch import (
    DELETE,
    INSERT,
    MODIFY,
    Batch,
    Found,
    Reader,
    Writer,
    check_modify,
    check_presence,
    declared_or_all,
    stored_or_all,
)
from tensorexpress.switch.p4runtime.holdings import Holdings, kept_bytes
from tensorexpress.switch.p4runtime.messages import digest_configs, value_sets
from tensorexpress.switch.p4runtime.messages.checks import find
from tensorexpress.switch.p4runtime.messages.digest_configs import DigestConfig
from tensorexpress.switch.p4runtime.p4info import P4Schema
from tensorexpress.switch.p4runtime.profiles import Profiles
from tensorexpress.switch.p4runtime.replication import Replication
from tensorexpress.switch.p4runtime.rows import Initial, Rows
from tensorexpress.switch.p4runtime.status import Code, Refused, invalid, unimplemented
from tensorexpress.switch.program.budgets import PLAIN_MEMORY, SwitchMemory


class Recorder:
    """A data path that keeps operations for later: for a program that is saved, and for entries in a file."""

    def __init__(self, memory: SwitchMemory = PLAIN_MEMORY) -> None:
        self.operations: list[Operation] = []
        self._holdings = Holdings(memory.entities_bytes)

    def load(self, document: bytes, operations: Sequence[Operation] = ()) -> None:
        """Keep nothing: what is recorded is for the program that the operations are written for."""

    def apply(self, operations: Sequence[Operation], *, atomic: bool = False) -> None:
        """Keep the operations; Refused where there is no memory for them."""
        self._holdings.charge(sum(map(kept_bytes, operations)))
        self.operations += operations

    def ask(self, queries: Sequence[Query]) -> list[list[Any]]:
        """Refuse: no packet has been counted yet."""
        raise Refused(Code.FAILED_PRECONDITION, "the pipeline is saved, not committed: nothing is counted yet")

    def packet_out(self, frame: bytes) -> None:
        """Drop the frame: no program runs."""


class Store:
    """All entities of one loaded program. Not for several threads at once."""

    def __init__(
        self,
        schema: P4Schema,
        data_path: DataPath,
        initial: Initial,
        cpu_port: int | None = None,
        memory: SwitchMemory = PLAIN_MEMORY,
    ):
        self.schema = schema
        self._holdings = Holdings(memory.entities_bytes)
        self._holdings.charge(sum(kept_bytes(row) for rows in initial.rows.values() for row in rows))
        self._data_path = data_path
        self._profiles = Profiles(schema)
        #: Table entries, for those who look one up without asking for a message.
        self.rows = Rows(schema, self._ask, initial, self._profiles)
        self._arrays = Arrays(schema, self._ask)
        self._replication = Replication(cpu_port)
        self._value_sets: dict[int, tuple[Key, ...]] = {}
        self._digests: dict[int, DigestConfig] = {}
        self._writers: dict[str, Writer] = {
            "table_entry": self.rows.write,
            "action_profile_member": self._profiles.write_member,
            "action_profile_group": self._profiles.write_group,
            "meter_entry": self._arrays.write_meter,
            "direct_meter_entry": self.rows.write_meter,
            "counter_entry": self._arrays.write_counter,
            "direct_counter_entry": self.rows.write_counter,
            "packet_replication_engine_entry": self._replication.write,
            "value_set_entry": self._write_value_set,
            "register_entry": self._arrays.write_register,
            "digest_entry": self._write_digest,
        }
        self._readers: dict[str, Reader] = {
            "table_entry": self.rows.read,
            "action_profile_member": self._profiles.read_members,
            "action_profile_group": self._profiles.read_groups,
            "meter_entry": self._arrays.read_meters,
            "direct_meter_entry": self.rows.read_meters,
            "counter_entry": self._arrays.read_counters,
            "direct_counter_entry": self.rows.read_counters,
            "packet_replication_engine_entry": self._replication.read,
            "value_set_entry": self._read_value_sets,
            "register_entry": self._arrays.read_registers,
            "digest_entry": self._read_digests,
        }

    def write(
        self,
        updates: Collection[Any],
        *,
        all_or_none: bool = False,
        atomic: bool = False,
        must_tell: bool = False,
    ) -> list[Refused | None]:
        """Do Update messages in order and return, for each, why it was refused, or None.

        With `all_or_none` a refusal leaves everything as it was, and the other updates are answered with ABORTED. With
        `atomic` the operations of all of them reach the data path between the same two packets. With
        `must_tell` a batch about whose updates no answer could say what became of each leaves everything as it was, and
        the refusal is raised for the whole batch.
        """
        batch = Batch(self._holdings)
        refusals: list[Refused | None] = []
        try:
            for update in updates:
                refusals.append(self._attempt(batch, update))
                if refusals[-1] and all_or_none:
                    break
            told = can_be_told(refusals) and not (all_or_none and len(updates) > LARGEST_DETAILED_BATCH)
            if any(refusals) and must_tell and not told:
                raise not_done(refusals, len(updates))
        except BaseException:
            batch.take_back()
            raise
        if any(refusals) and all_or_none:
            batch.take_back()
            others = Refused(Code.ABORTED, f"not done, because update {len(refusals) - 1} was refused")
            return [others] * (len(refusals) - 1) + refusals[-1:] + [others] * (len(updates) - len(refusals))
        if batch.operations:
            self._hand_over(batch, atomic)
        return refusals

    def _attempt(self, batch: Batch, update: Any) -> Refused | None:
        kind, mark = update.entity.WhichOneof("entity"), batch.mark()
        try:
            if update.type not in (INSERT, MODIFY, DELETE):
                raise invalid(f"update type {update.type}; accepted: INSERT, MODIFY, DELETE")
            _check_entity_kind(kind, self._writers)
            self._writers[kind](batch, update.type, getattr(update.entity, kind))
        except Refused as refusal:
            batch.take_back(mark)  # memory may run out in the middle of an update
            # Its traceback would keep the messages of a whole batch in memory.
            return Refused(refusal.code, str(refusal))
        except RecursionError:
            return invalid("an entity that is nested too deeply")
        return None

    def _hand_over(self, batch: Batch, atomic: bool) -> None:
        try:
            self._data_path.apply(batch.operations, atomic=atomic)
        except Exception:
            # What the data path was not told must not stand here.
            batch.take_back()
            raise

    def read(self, request: Any) -> Iterator[Any]:
        """Return the Entity messages that a request, an Entity with wildcards, selects.

        The state is looked at before this returns; the messages are made as they are taken.
        """
        return (p4runtime_pb2.Entity(**content) for content in self.select(request).contents)

    def select(self, request: Any) -> Found:
        """Return the contents of what `read` returns."""
        kind = request.WhichOneof("entity")
        _check_entity_kind(kind, self._readers)
        return self._readers[kind](getattr(request, kind))

    def run_on(self, data_path: DataPath) -> None:
        """Hand further operations to another data path, which has had all that were handed on so far."""
        self._data_path = data_path

    def digest_config(self, id: int) -> DigestConfig | None:
        """Return how a digest is gathered; None when a client has not asked for it."""
        return self._digests.get(id)

    def _ask(self, queries: Sequence[Query]) -> list[list[Any]]:
        return self._data_path.ask(queries) if queries else []

    def _write_value_set(self, batch: Batch, kind: int, message: Any) -> None:
        check_modify(kind, "value set")
        value_set = find("value set", self.schema.value_sets, message.value_set_id)
        members = value_sets.read_value_set(value_set, message)
        batch.put(self._value_sets, value_set.id, members)
        batch.operations.append(SetValueSet(value_set.name, members))

    def _read_value_sets(self, request: Any) -> Found:
        chosen = declared_or_all("value set", self.schema.value_sets, request.value_set_id)
        found = [(one, self._value_sets.get(one.id, ())) for one in chosen]
        contents = ({"value_set_entry": value_sets.write_value_set(one, members)} for one, members in found)
        return Found(len(found), contents)

    def _write_digest(self, batch: Batch, kind: int, message: Any) -> None:
        digest = find("digest", self.schema.digests, message.digest_id)
        what = f"{digest.name}: the digest's configuration"
        if kind == DELETE:
            check_presence(kind, digest.id in self._digests, what)
            batch.remove(self._digests, digest.id)
            return
        config = digest_configs.read_digest(digest.name, message)
        check_presence(kind, digest.id in self._digests, what)
        batch.put(self._digests, digest.id, config)

    def _read_digests(self, request: Any) -> Found:
        if request.digest_id:
            find("digest", self.schema.digests, request.digest_id)
        found = stored_or_all("configuration of digest", self._digests, request.digest_id)
        return Found(len(found), ({"digest_entry": digest_configs.write_digest(id, config)} for id, config in found))


def _check_entity_kind(kind: str | None, known: Mapping[str, Any]) -> None:
    if kind is None:
        raise invalid("an update or request without an entity; give one")
    if kind not in known:
        raise unimplemented(f"a v1model program has no {kind}")
