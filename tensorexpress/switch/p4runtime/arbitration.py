"""Who may write: for each role the client with the highest election id ever seen is the primary."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tensorexpress.switch.p4runtime.status import Code, Refused, invalid

#: A role and its highest election id are remembered until the switch stops; more of them are refused.
LARGEST_NUMBER_OF_ROLES = 64
LONGEST_ROLE = 256

Client = TypeVar("Client")


@dataclass(frozen=True)
class Advice:
    """What a client is told: the highest election id seen (None: none yet), and whether it is the primary.

    The code is OK for the primary, ALREADY_EXISTS for a backup, NOT_FOUND for a backup while there is no primary.
    """

    role: str
    election_id: int | None
    code: Code


@dataclass
class _Role(Generic[Client]):
    highest: int | None = None
    primary: Client | None = None
    #: Election ids of the live clients; None is below every id and never becomes primary.
    clients: dict[Client, int | None] = field(default_factory=dict)


class Arbitration(Generic[Client]):
    """The clients of one device by role. Every change returns the advice to send, the new primary's last."""

    def __init__(self) -> None:
        self._roles: dict[str, _Role[Client]] = {"": _Role()}
        self._role_of: dict[Client, str] = {}

    def update(self, client: Client, role: str, election_id: int | None) -> list[tuple[Client, Advice]]:
        """Let a client join with an election id, or change its own; Refused ends its stream."""
        known = self._role_of.get(client, role)
        if known != role:
            raise Refused(
                Code.FAILED_PRECONDITION, f"role {role!r} on the stream of role {known!r}; open another stream"
            )
        if len(role) > LONGEST_ROLE:
            raise invalid(f"a role's name of {len(role)} characters; accepted: at most {LONGEST_ROLE}")
        if role not in self._roles and len(self._roles) >= LARGEST_NUMBER_OF_ROLES:
            raise Refused(Code.RESOURCE_EXHAUSTED, f"at most {LARGEST_NUMBER_OF_ROLES} roles are kept")
        state = self._roles.setdefault(role, _Role())
        others = [id for other, id in state.clients.items() if other != client]
        if election_id is not None and election_id in others:
            raise invalid(f"election id {election_id} is that of another client of role {role!r}; use another one")
        self._role_of[client] = role
        state.clients[client] = election_id
        if election_id is not None and (state.highest is None or election_id >= state.highest):
            state.highest, state.primary = election_id, client
            return _advise_all(role, state)
        if state.primary == client:
            state.primary = None
            return _advise_all(role, state)
        return [(client, _advice(role, state, client))]

    def leave(self, client: Client) -> list[tuple[Client, Advice]]:
        """Forget a client whose stream has ended; without its primary a role has none until a client claims it."""
        role = self._role_of.pop(client, None)
        if role is None:
            return []
        state = self._roles[role]
        del state.clients[client]
        if state.primary != client:
            return []
        state.primary = None
        return _advise_all(role, state)

    def knows(self, role: str) -> bool:
        """Whether a client has ever joined under that role; the default role, "", is always known."""
        return role in self._roles

    def role_of(self, client: Client) -> str | None:
        """Return the role that a client has joined; None when it has joined none."""
        return self._role_of.get(client)

    def primary(self, role: str) -> Client | None:
        """Return the primary of a role."""
        state = self._roles.get(role)
        return state.primary if state else None

    def is_primary(self, role: str, election_id: int | None) -> bool:
        """Whether a request with that election id comes from the primary of the role."""
        state = self._roles.get(role)
        return state is not None and state.primary is not None and state.highest == election_id

    def __contains__(self, client: Client) -> bool:
        return client in self._role_of

    def is_primary_client(self, client: Client) -> bool:
        """Whether this client is the primary of its role."""
        role = self._role_of.get(client)
        return role is not None and self._roles[role].primary == client


def _advise_all(role: str, state: _Role[Client]) -> list[tuple[Client, Advice]]:
    backups = [client for client in state.clients if client != state.primary]
    primary = [] if state.primary is None else [state.primary]
    return [(client, _advice(role, state, client)) for client in [*backups, *primary]]


def _advice(role: str, state: _Role[Client], client: Client) -> Advice:
    if state.primary == client:
        return Advice(role, state.highest, Code.OK)
    return Advice(role, state.highest, Code.NOT_FOUND if state.primary is None else Code.ALREADY_EXISTS)
