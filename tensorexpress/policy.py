"""Policies, as data: seven independent choices, and the named combinations of the field.

A gain is explained by switching the choices on one at a time; so a policy is a value, not a class tree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType

from tensorexpress.errors import PolicyError, UnitError, unknown
from tensorexpress.names import check_name
from tensorexpress.queueing import DISCIPLINES, HOST_ORDERS, Deployment, Ranks
from tensorexpress.units import LARGEST, format_size, parse_size

#: Choices of `Policy.queue_map`: how L ranks become K queues, or a rank that is no table at all.
QUEUE_MAPS = {
    "optimal": "contiguous partition of the layers that loses least against PIFO, by dynamic programming",
    "fewest": "the same, with as few queues as lose at most a twentieth of an iteration",
    "equal": "the same number of layers in every queue",
    "slack": "no table: rank is the switch's clock plus the slack in the packet (sp-pifo and pifo only)",
}

#: Choices of `Policy.sums`: whether switches sum gradients on their way, and how they share out their memory.
SUMS = {
    "none": "servers or workers sum",
    "pool": "switches do, in a pool of slots for every class of a job, as SwitchML; no servers",
    "front": "switches do, in front of servers, in such pools: one packet reaches a server for all, as Libra",
    "hashed": "switches do in slots found by hash, which all jobs share; what finds none goes on to a server, as ATP",
}

#: Choices of `Policy.placement`: what every server gets of a model, and by which links and switches it goes there.
PLACEMENTS = {
    "none": "servers get as much as each other; paths are shortest ones that share out what they move",
    "equal": "every server the same share; sums and paths planned for the highest rate",
    "load": "the same without sums: paths that balance the load of links",
    "inart": "shares, sums and paths planned for the highest rate, as InArt",
    "atp": "every server the same share, sums at shortest ways to its switch, as ATP",
}


@dataclass(frozen=True)
class Policy:
    """How to decide: what to slice, what is sent first, where gradients are summed, and what goes to which server."""

    name: str
    #: Bytes of a slice, the unit a host schedules; 0 leaves tensors whole.
    slice_bytes: int = 0
    #: A name in `queueing.HOST_ORDERS`: fifo (in the order of readiness), priority (earliest deadline first) or random.
    host_order: str = "fifo"
    #: Bytes a host may have sent and not yet seen acknowledged, over all its flows; 0 is no limit.
    credit_bytes: int = 0
    #: A name in `queueing.DISCIPLINES`: fifo, strict, sp-pifo, pifo.
    discipline: str = "fifo"
    #: One of QUEUE_MAPS.
    queue_map: str = "optimal"
    #: One of SUMS.
    sums: str = "none"
    #: One of PLACEMENTS.
    placement: str = "none"

    def __post_init__(self) -> None:
        check_name("the name of a policy", self.name, PolicyError)
        for choice, value, accepted in (
            ("host order", self.host_order, HOST_ORDERS),
            ("switch discipline", self.discipline, DISCIPLINES),
            ("queue map", self.queue_map, QUEUE_MAPS),
            ("sum", self.sums, SUMS),
            ("placement", self.placement, PLACEMENTS),
        ):
            if value not in accepted:
                raise PolicyError(f"policy {self.name}: {unknown(choice, value, accepted)}")
        for what, size in (("slice", self.slice_bytes), ("credit", self.credit_bytes)):
            if not 0 <= size <= LARGEST:
                raise PolicyError(f"policy {self.name}: {what} is {size} bytes; accepted: 0 to {LARGEST}")
        if self.by_slack and not DISCIPLINES[self.discipline].sorts():
            sorting = sorted(name for name, discipline in DISCIPLINES.items() if discipline.sorts())
            raise PolicyError(
                f"policy {self.name}: queue map 'slack' has no table for discipline {self.discipline!r}; "
                f"accepted with it: {', '.join(sorting)}"
            )
        if self.credit_bytes and self.in_switches:
            raise PolicyError(
                f"policy {self.name}: credit counts what is not acknowledged, and sums in switches are not; "
                f"accepted with sum={self.sums}: credit=none"
            )

        if self.placement != "none" and self.sums == "pool":
            raise PolicyError(
                f"policy {self.name}: a placement is of servers, and with sum=pool nothing goes to them; accepted with "
                f"placement={self.placement}: sum=none, front or hashed"
            )
        if self.placement == "load" and self.in_switches:
            raise PolicyError(
                f"policy {self.name}: placement=load balances what is not summed on its way; accepted with "
                f"sum={self.sums}: placement=equal, inart or atp"
            )

    @property
    def by_slack(self) -> bool:
        """Whether a packet's rank is the switch's clock plus the slack in the packet."""
        return self.queue_map == "slack"

    @property
    def in_switches(self) -> bool:
        """Whether switches sum gradients on their way."""
        return self.sums != "none"

    @property
    def weighs_turns(self) -> bool:
        """Whether what goes to servers of unequal shares takes turns at a host by these, so that all end together."""
        return self.placement != "none" and self.sums == "front"

    @property
    def sums_end_at_servers(self) -> bool:
        """Whether what switches sum goes on to servers, whose answers come back."""
        return self.sums in ("front", "hashed")

    @property
    def orders_in_hosts(self) -> bool:
        """Whether hosts do more than to send in the order of readiness."""
        return not HOST_ORDERS[self.host_order].keeps_order

    @property
    def orders_in_switches(self) -> bool:
        """Whether switches do more than to send in the order of arrival."""
        return DISCIPLINES[self.discipline].ranks is not Ranks.IGNORED

    @property
    def keeps_flows_in_order(self) -> bool:
        """Whether switches never reorder the packets of a flow, so that a gap tells a loss."""
        return DISCIPLINES[self.discipline].keeps_order and not self.by_slack

    @property
    def deployment(self) -> Deployment | None:
        """How a controller makes switches do it; None when it cannot."""
        deployment = DISCIPLINES[self.discipline].deployment
        return deployment if (deployment is Deployment.SLACK) == self.by_slack else None


#: The named policies. Slice sizes are those of the systems' papers or defaults where they are public.
POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        policy.name: policy
        for policy in (
            Policy("fifo"),
            Policy("random", host_order="random"),
            Policy("tictac", host_order="priority"),
            Policy("bytescheduler", slice_bytes=1_000_000, host_order="priority", credit_bytes=4_000_000),
            Policy("p3", slice_bytes=200_000, host_order="priority"),
            Policy("switch-only", discipline="strict", queue_map="fewest"),
            Policy("tensorexpress", slice_bytes=32_000, host_order="priority", discipline="strict", queue_map="fewest"),
            Policy("ideal", slice_bytes=32_000, host_order="priority", discipline="pifo", queue_map="slack"),
            Policy("switchml", sums="pool"),
            Policy("libra", sums="front"),
            Policy("atp", sums="hashed"),
            Policy("inart", sums="front", placement="inart"),
            Policy("tensorexpress+sum", host_order="priority", discipline="strict", queue_map="fewest", sums="pool"),
        )
    }
)

#: The choices as a user writes them, and the field and parser of each.
_CHOICES: dict[str, tuple[str, Callable[[str], str | int]]] = {
    "slice": ("slice_bytes", parse_size),
    "host": ("host_order", str),
    "credit": ("credit_bytes", parse_size),
    "switch": ("discipline", str),
    "queues": ("queue_map", str),
    "sum": ("sums", str),
    "placement": ("placement", str),
}


#: What the choices of a policy are called.
CHOICE_NAMES = tuple(_CHOICES)


def parse_policy(text: str) -> Policy:
    """Return a policy by name, with any choice changed: "NAME" or "NAME:choice=value,choice=value".

    >>> parse_policy("fifo:slice=200 KB,switch=strict").discipline
    'strict'
    """
    name, _, rest = (part.strip() for part in text.partition(":"))
    if name not in POLICIES:
        raise PolicyError(unknown("policy", name, POLICIES))
    changes: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in rest.split(","))):
        choice, equals, value = (p.strip() for p in part.partition("="))
        if choice not in _CHOICES:
            raise PolicyError(f"policy {text!r}: {unknown('choice', choice, _CHOICES)}, each as choice=value")
        if not equals or choice in changes:
            raise PolicyError(f"policy {text!r}: {choice!r} has no value or two; accepted: one {choice}=value")
        changes[choice] = value
    return with_choices(POLICIES[name], changes, text.strip()) if changes else POLICIES[name]


def with_choices(policy: Policy, choices: Mapping[str, str], name: str) -> Policy:
    """Return a policy with some choices changed to others, as one writes them, under another name."""
    changes: dict[str, object] = {}
    for choice, value in choices.items():
        field, parse = _CHOICES[choice]
        try:
            changes[field] = 0 if value in ("whole", "none") and parse is parse_size else parse(value)
        except UnitError as error:
            raise PolicyError(f"policy {name!r}: {choice}: {error}") from None
    return replace(policy, name=name, **changes)  # type: ignore[arg-type]


def written_choices(policy: Policy) -> dict[str, str]:
    """Return every choice as one writes it.

    >>> written_choices(POLICIES["p3"])["slice"]
    '200 KB'
    """
    written = {}
    for choice, (field, parse) in _CHOICES.items():
        value = getattr(policy, field)
        if parse is parse_size:
            value = format_size(value) if value else {"slice": "whole", "credit": "none"}[choice]
        written[choice] = value
    return written


def policy_text(choices: Mapping[str, str]) -> str:
    """Return the shortest text of which `parse_policy` makes a policy with these choices.

    >>> policy_text(written_choices(POLICIES["tensorexpress"]) | {"slice": "64 KB"})
    'tensorexpress:slice=64 KB'
    """
    texts = []
    for name, named in POLICIES.items():
        own = written_choices(named)
        changed = [f"{choice}={value}" for choice, value in choices.items() if own[choice] != value]
        texts.append((len(changed), f"{name}:{','.join(changed)}" if changed else name))
    return min(texts, key=lambda counted: counted[0])[1]


def describe(policy: Policy) -> str:
    """Return the choices on one line; of placements, only one that plans.

    >>> describe(POLICIES["p3"])
    'slice=200 KB host=priority credit=none switch=fifo queues=optimal sum=none'
    """
    written = written_choices(policy)
    if policy.placement == "none":
        del written["placement"]
    return " ".join(f"{choice}={value}" for choice, value in written.items())


def to_json(policy: Policy) -> dict[str, str | int]:
    """Return the policy as a JSON object."""
    return {field.name: getattr(policy, field.name) for field in fields(policy)}
