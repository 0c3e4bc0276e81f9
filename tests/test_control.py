"""The controller without a switch: what a plan wants on each, and in which order a difference is written."""

from __future__ import annotations

import doctest
import inspect
import re
from collections import Counter, deque
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.strategies import scenarios

from tensorexpress import addresses
from tensorexpress.addresses import GATEWAY_MAC, default_addresses, read_addresses
from tensorexpress.classify import queue_map_of
from tensorexpress.cluster import Cluster, fat_tree, leaf_spine, star
from tensorexpress.control import (
    classify,
    controls,
    deploy,
    entities,
    forward,
    guard,
    mark,
    messages,
    reconcile,
    report,
    status,
)
from tensorexpress.control.deploy import prepare
from tensorexpress.control.entities import (
    KINDS,
    Call,
    CloneEntry,
    CounterEntry,
    DefaultEntry,
    Entity,
    MeterEntry,
    MulticastEntry,
    Rates,
    RegisterEntry,
    TableEntry,
    copies,
    decode_entity,
    table_size,
    tables,
)
from tensorexpress.control.intent import Intent, Options
from tensorexpress.control.messages import ProgramSchema, parse_p4info
from tensorexpress.control.reconcile import Changes, difference, steps
from tensorexpress.errors import InputError, PlanError, ProgramError
from tensorexpress.p4 import load
from tensorexpress.plan import Plan, make_plan
from tensorexpress.policy import POLICIES, Policy
from tensorexpress.scenario import read_scenario
from tensorexpress.wire.dscp import queue_of_dscp

ROOT = Path(__file__).parents[1]
#: Where the controller lives.
ROOM = "tensorexpress/control"
PROGRAMS = ROOT / "tests" / "programs" / "build"
PROGRAM = load()
SCHEMA = ProgramSchema.of(PROGRAM)
INSERT, MODIFY, DELETE = 1, 2, 3


@st.composite
def deployable_plans(draw: st.DrawFn) -> Plan:
    """A plan for a cluster that has a switch, with a policy that switches can follow."""
    scenario = draw(scenarios().filter(lambda scenario: scenario.cluster.switches))
    choices = draw(
        st.sampled_from([("strict", "optimal"), ("strict", "equal"), ("fifo", "equal"), ("sp-pifo", "slack")])
    )
    return make_plan(scenario, Policy("random", discipline=choices[0], queue_map=choices[1]))


@st.composite
def intents(draw: st.DrawFn) -> Intent:
    plan = draw(deployable_plans())
    limited = draw(st.sets(st.sampled_from([job.job.name for job in plan.jobs])))
    options = Options(
        bind_sources=draw(st.booleans()),
        strangers=draw(st.sampled_from(sorted(guard.STRANGERS))),
        limits={job: draw(st.integers(8, 10**12)) for job in sorted(limited)},
        miss=draw(st.sampled_from(sorted(forward.MISSES))),
        trust_dscp=draw(st.booleans()),
    )
    return Intent(plan, draw(st.sampled_from(plan.scenario.cluster.switches)), options)


def wanted_by(intent: Intent) -> list[Entity]:
    return prepare(intent.plan, [intent.switch], intent.options, PROGRAM).wanted[intent.switch]


def plan_on(cluster: Cluster, policy: str = "tensorexpress") -> Plan:
    scenario = read_scenario(overrides=["job.workers=2", "job.servers=1", "job.model=alexnet"])
    return make_plan(replace(scenario, cluster=cluster), POLICIES[policy])


def test_examples_in_docstrings_hold() -> None:
    for module in (addresses, controls, copies, forward, messages, tables):
        result = doctest.testmod(module)
        assert result.attempted
        assert not result.failed


# Messages.


@given(intents())
@settings(max_examples=25)
def test_what_is_wanted_is_of_the_program_and_survives_the_way_into_messages_and_back(intent: Intent) -> None:
    for entity in wanted_by(intent):
        message = entity.encode(SCHEMA)
        assert decode_entity(SCHEMA, type(message).FromString(message.SerializeToString())) == entity
        assert "\n" not in entity.show(SCHEMA)


@given(intents())
@settings(max_examples=25)
def test_every_table_has_the_default_that_is_wanted_and_nothing_is_wanted_twice(intent: Intent) -> None:
    wanted = wanted_by(intent)
    assert max(Counter(entity.identity for entity in wanted).values()) == 1
    defaults = {entity.table for entity in wanted if isinstance(entity, DefaultEntry)}
    assert defaults == {messages.short(table.preamble.name) for table in SCHEMA.p4info.tables}


@given(st.integers(0, 2**128 - 1))
def test_values_are_canonical(value: int) -> None:
    assert messages.decode(messages.encode(value)) == value
    assert messages.encode(value)[0] or value == 0


def test_a_program_without_a_name_is_refused_by_that_name() -> None:
    with pytest.raises(ProgramError, match=r"no table 'forward\.l3'"):
        DefaultEntry("forward.l3", Call("NoAction")).encode(SCHEMA)
    with pytest.raises(ProgramError, match="P4Info cannot be read"):
        parse_p4info("tables {")


def test_a_value_that_is_too_wide_is_refused() -> None:
    with pytest.raises(PlanError, match="port is 512; accepted: 0 to 511"):
        TableEntry(forward.L2, (("destination", 1),), Call("forward.switch_to", (("port", 512),))).encode(SCHEMA)


def test_a_cell_that_an_array_does_not_have_or_hold_is_refused() -> None:
    with pytest.raises(PlanError, match=r"register guard\.sampled has no cell 256; accepted: 0 to 255"):
        RegisterEntry(guard.SAMPLED, 256, 0).encode(SCHEMA)
    with pytest.raises(PlanError, match=r"guard\.sampled cell 7 is 2; accepted: 0 to 1, which 1 bits hold"):
        RegisterEntry(guard.SAMPLED, 7, 2).encode(SCHEMA)
    with pytest.raises(ProgramError, match=r"no 'guard\.tally' among these: meter, counter, register"):
        entities.cells_of(SCHEMA, "guard.tally")


OTHER = ProgramSchema(parse_p4info((PROGRAMS / "runtime.p4info.txtpb").read_text()))


@given(st.integers(-(2**11), 2**11 - 1), st.integers(0, 2**32 - 1), st.integers(0, 3))
def test_registers_hold_numbers_with_and_without_a_sign(signed: int, unsigned: int, index: int) -> None:
    for cell in (RegisterEntry("signed_cells", index, signed), RegisterEntry("last_seen", index, unsigned)):
        assert decode_entity(OTHER, cell.encode(OTHER)) == cell
    with pytest.raises(PlanError, match="accepted: -2048 to 2047, which 12 bits hold"):
        RegisterEntry("signed_cells", index, signed + 2**12).encode(OTHER)


# What controls declare.


def test_controls_declare_what_the_program_has_and_nothing_else() -> None:
    for kind in ("table", "meter", "counter", "register"):
        assert Counter(controls.declared(f"{kind}s")) == Counter(SCHEMA.names(kind)), kind


def test_every_exception_has_a_name_of_its_own() -> None:
    claimed = [cell for control in controls.controls() for cell in control.exceptions]
    assert sorted(claimed) == list(range(SCHEMA.find("counter", controls.EXCEPTIONS).size))
    assert len(set(controls.exception_names().values())) == len(claimed)


def test_references_and_readings_are_of_places_that_are_there() -> None:
    arrays = {name for kind in entities.CELL_KINDS for name in SCHEMA.names(kind.kind)}
    places = {*SCHEMA.names("table"), *arrays, entities.MULTICAST_GROUPS, entities.CLONE_SESSIONS}
    for control in controls.controls():
        assert {*control.references, *(other for others in control.references.values() for other in others)} <= places
        for reading in control.readings:
            assert arrays.issuperset(reading.arrays)


def test_what_knows_all_entities_and_controls_names_none_of_them() -> None:
    kinds = {kind.__name__ for kind in KINDS} - {TableEntry.__name__}  # whose number is the use of a table
    own = [name for kind in ("table", "meter", "counter", "register") for name in SCHEMA.names(kind) if "." in name]
    for module in (messages, reconcile, deploy, report, status):
        text = inspect.getsource(module)
        assert not [name for name in (*kinds, *own) if re.search(rf"\b{re.escape(name)}\b", text)], module.__name__


def test_a_class_of_the_controller_has_a_name_that_no_other_room_uses() -> None:
    named: dict[str, set[str]] = {}
    for directory in ("tensorexpress", "sim", "cli", "p4"):
        for path in (ROOT / directory).rglob("*.py"):
            for name in re.findall(r"^class ([A-Za-z]\w*)", path.read_text(), re.MULTILINE):
                named.setdefault(name, set()).add(str(path.parent.relative_to(ROOT)))
    assert not {name for name, rooms in named.items() if {ROOM, f"{ROOM}/entities"} & rooms and len(rooms) > 1}


# Forwarding.


def ports_of(cluster: Cluster) -> dict[tuple[str, int], tuple[str, int | None]]:
    """Return what is at the other end of every port: a node and, of a switch, its port."""
    directed = cluster.directed()
    own = {link: (switch, port) for switch in cluster.switches for port, link in cluster.ports(switch).items()}
    return {
        end: (cluster.nodes[directed.target[link]], own[link ^ 1][1] if link ^ 1 in own else None)
        for link, end in own.items()
    }


def table_of(entities: list[Entity], table: str) -> dict[object, Call]:
    return {
        tuple(value for _, value in entity.key): entity.action
        for entity in entities
        if isinstance(entity, TableEntry) and entity.table == table
    }


def next_hops(entities: list[Entity], action: Call) -> list[dict[str, int]]:
    """Return all next hops that a route may take."""
    arguments = dict(action.arguments)
    if action.action == "forward.next_hop":
        return [arguments]
    hops = table_of(entities, forward.NEXT_HOPS)
    return [dict(hops[arguments["group"], path].arguments) for path in range(arguments["paths"])]


@given(deployable_plans())
@settings(max_examples=20)
def test_every_route_from_every_switch_leads_to_the_host(plan: Plan) -> None:
    cluster = plan.scenario.cluster
    wanted = prepare(plan, cluster.switches, Options(), PROGRAM).wanted
    ends = ports_of(cluster)
    for host, address in enumerate(default_addresses(cluster.hosts)):
        for key, table in (
            ((int(address.ipv4), 32), forward.IPV4),
            ((int(address.ipv6), 128), forward.IPV6),
        ):
            places = deque((switch, 0) for switch in cluster.switches)
            while places:
                switch, hops = places.popleft()
                assert hops <= len(cluster.switches)
                for hop in next_hops(wanted[switch], table_of(wanted[switch], table)[key,]):
                    node, port = ends[switch, hop["port"]]
                    if port is None:
                        assert node == cluster.hosts[host]
                        assert hop["destination"] == int.from_bytes(address.mac, "big")
                    else:
                        assert hop["destination"] == int.from_bytes(GATEWAY_MAC, "big")
                        places.append((node, hops + 1))


def flood(cluster: Cluster, wanted: dict[str, list[Entity]], host: int) -> Counter[str]:
    """Return how many copies of a broadcast each node gets."""
    ends = ports_of(cluster)
    groups = {
        switch: next(entity for entity in entities if isinstance(entity, MulticastEntry))
        for switch, entities in wanted.items()
    }
    start = next(end for end, other in ends.items() if other == (cluster.hosts[host], None))
    received: Counter[str] = Counter()
    arrivals = deque([start])
    while arrivals:
        switch, ingress_port = arrivals.popleft()
        received[switch] += 1
        assert received[switch] == 1, "a broadcast circles"
        for port, _ in groups[switch].replicas:
            node, other = ends[switch, port]
            if port != ingress_port and other is None:
                received[node] += 1
            elif port != ingress_port and other is not None:
                arrivals.append((node, other))
    return received


@pytest.mark.parametrize("cluster", [star(4), leaf_spine(3, 2, 2), fat_tree(4)], ids=["star", "leaf-spine", "fat-tree"])
def test_a_broadcast_reaches_every_other_host_once(cluster: Cluster) -> None:
    wanted = prepare(plan_on(cluster), cluster.switches, Options(), PROGRAM).wanted
    for host in range(len(cluster.hosts)):
        received = flood(cluster, wanted, host)
        assert [received[name] for name in cluster.hosts] == [int(other != host) for other in range(len(cluster.hosts))]


def test_switched_frames_take_a_shortest_path() -> None:
    cluster = fat_tree(4)
    wanted = prepare(plan_on(cluster), cluster.switches, Options(), PROGRAM).wanted
    for switch, held in wanted.items():
        ports = cluster.ports(switch)
        frames = table_of(held, forward.L2)
        for host, address in enumerate(default_addresses(cluster.hosts)):
            [(_, port)] = frames[int.from_bytes(address.mac, "big"),].arguments
            assert ports[port] in cluster.next_hops(switch, host)


def test_a_group_of_next_hops_keeps_its_number_when_others_come_and_go() -> None:
    groups = [(port, port + 1) for port in range(0, 400, 2)]
    numbers = forward.number_groups(set(groups))
    assert len(set(numbers.values())) == len(groups)
    assert 0 not in numbers.values()
    assert forward.number_groups({groups[7]}) == {groups[7]: numbers[groups[7]]}


def test_switches_spread_with_multipliers_of_their_own() -> None:
    cluster = leaf_spine(2, 2, 2)
    wanted = prepare(plan_on(cluster), cluster.switches, Options(), PROGRAM).wanted
    multipliers = {
        dict(action.arguments)["multiplier"]
        for entities in wanted.values()
        for action in table_of(entities, forward.IPV4).values()
        if action.action == "forward.spread"
    }
    assert len(multipliers) == 2


# Guard, classify, mark.


@given(intents())
@settings(max_examples=25)
def test_ports_of_hosts_are_bound_to_their_addresses_and_those_between_switches_to_none(intent: Intent) -> None:
    bound = table_of(wanted_by(intent), guard.SOURCES)
    expected = {
        (port,): Call(
            "guard.bind", (("ipv4", int(intent.addresses[host].ipv4)), ("ipv6", int(intent.addresses[host].ipv6)))
        )
        for port, host in intent.host_of_port.items()
        if host is not None
    }
    assert bound == (expected if intent.options.bind_sources else {})


@given(intents())
@settings(max_examples=25)
def test_a_job_is_admitted_at_its_own_hosts_and_between_switches(intent: Intent) -> None:
    admitted = table_of(wanted_by(intent), guard.ADMISSION)
    for port, host in intent.host_of_port.items():
        for number, job in enumerate(intent.plan.jobs):
            at_home = host is None or host in (*job.job.workers, *job.job.servers)
            assert ((port, number) in admitted) == at_home
            if at_home:
                assert admitted[port, number] == Call("guard.admit", (("slot", number + 1),))


@given(intents())
@settings(max_examples=25)
def test_the_tables_say_what_the_queue_map_says(intent: Intent) -> None:
    queues, wanted = queue_map_of(intent.plan), wanted_by(intent)
    lowest = Call("classify.use_queues", (("lowest", queues.best_effort),))
    assert DefaultEntry(classify.QUEUES, lowest) in wanted
    tensors = {key: dict(call.arguments)["queue"] for key, call in table_of(wanted, classify.TENSOR_QUEUE).items()}
    assert tensors == queues.tensor_queue
    assert set(table_of(wanted, classify.JOB_MODE)) == {(job,) for job in queues.slack_jobs}
    for table in (classify.DSCP_QUEUE, classify.DSCP6_QUEUE):
        trusted = {key: dict(call.arguments)["queue"] for key, call in table_of(wanted, table).items()}
        expected = {(dscp,): queue_of_dscp(dscp, intent.plan.dscps) for dscp in range(64)}
        assert trusted == (expected if intent.options.trust_dscp else {})
    for queue in range(queues.queues):
        dscp = ("dscp", intent.plan.dscps[queue])
        assert table_of(wanted, mark.QUEUE_DSCP)[queue, 1] == Call("mark.set_dscp", (dscp,))
        assert table_of(wanted, mark.QUEUE_DSCP)[queue, 0] == Call("mark.set_dscp6", (dscp,))


@pytest.mark.parametrize(("ecn_bytes", "packets"), [(0, 2**19 - 1), (1, 1), (9000 * 7 + 1, 7), (10**15, 2**19 - 1)])
def test_bytes_of_ecn_are_packets_in_a_switch(ecn_bytes: int, packets: int) -> None:
    plan = plan_on(star(3))
    scenario = replace(plan.scenario, transport=replace(plan.scenario.transport, ecn_bytes=ecn_bytes))
    wanted = wanted_by(Intent(replace(plan, scenario=scenario), "s0"))
    assert DefaultEntry(mark.ECN, Call("mark.mark_over", (("packets", packets),))) in wanted


def test_samples_go_to_the_controller() -> None:
    assert CloneEntry(255, frozenset({(255, 0)})) in wanted_by(Intent(plan_on(star(3)), "s0"))


def test_a_limit_is_a_meter_of_the_jobs_slot() -> None:
    [meter] = [
        entity
        for entity in wanted_by(Intent(plan_on(star(3)), "s0", Options(limits={"job0": 8 * 10**9})))
        if isinstance(entity, MeterEntry)
    ]
    assert meter == MeterEntry(guard.JOB_METER, 1, Rates(10**9, 10**7, 10**9, 10**7))


# Limits.


def refusal(plan: Plan, switch: str = "s0", **options: Any) -> str:
    with pytest.raises(PlanError) as error:
        prepare(plan, [switch], Options(**options), PROGRAM)
    return str(error.value)


def test_a_plan_that_the_program_has_no_room_for_is_refused_by_the_limit() -> None:
    plan = plan_on(star(3))

    def on(cluster: Cluster) -> Plan:
        return replace(plan, scenario=replace(plan.scenario, cluster=cluster))

    assert "256 jobs; accepted: at most 255" in refusal(replace(plan, jobs=plan.jobs * 256))
    assert "9 queues at a port; accepted: at most 8" in refusal(on(star(3, queues=9)))
    assert "port 255" in refusal(on(star(256)))
    assert "needs 2050 entries in forward.ipv6; accepted: at most 2048" in refusal(on(leaf_spine(2, 1, 1025)), "s2")
    long = replace(plan.jobs[0], queues=(0,) * 40_000)
    assert "needs 40000 entries in classify.tensor_queue" in refusal(replace(plan, jobs=(long,)))


def test_switches_and_jobs_that_the_plan_lacks_are_refused() -> None:
    plan = plan_on(star(3))
    assert refusal(plan, "s1") == "unknown switch 's1'; Accepted: s0"
    assert refusal(plan, limits={"jab0": 1000}) == "unknown job 'jab0'; did you mean 'job0'? Accepted: job0"


# Differences.

numbers = st.integers(0, 3)
calls = st.builds(Call, st.sampled_from(["a", "b"]), st.just(()))
some_entity = st.one_of(
    st.builds(TableEntry, st.sampled_from([forward.L2, forward.NEXT_HOPS]), numbers.map(lambda n: (("x", n),)), calls),
    st.builds(MulticastEntry, numbers, st.frozensets(st.tuples(numbers, numbers), min_size=1)),
    st.builds(CloneEntry, numbers, st.frozensets(st.tuples(numbers, numbers), min_size=1)),
    st.builds(DefaultEntry, st.just(forward.L2), calls),
    st.builds(MeterEntry, st.just("m"), numbers, st.one_of(st.none(), st.just(Rates(1, 2, 3, 4)))),
    st.builds(CounterEntry, st.just("c"), numbers, numbers, numbers),
    st.builds(RegisterEntry, st.just("r"), numbers, numbers),
)
states = st.lists(some_entity, unique_by=lambda entity: entity.identity)


def after(found: list[Entity], changes: Changes) -> dict[object, Entity]:
    """Return a switch's state after all steps; what a switch would refuse fails."""
    state = {entity.identity: entity for entity in found}
    for step in steps(changes, SCHEMA):
        for kind, entity in step:
            permanent = entity.is_permanent
            assert kind == MODIFY or not permanent
            assert permanent or (entity.identity in state) == (kind != INSERT)
            if kind == DELETE:
                del state[entity.identity]
            else:
                state[entity.identity] = entity
    return state


@given(states, states)
def test_a_difference_turns_what_is_there_into_what_is_wanted_and_the_next_is_empty(
    wanted: list[Entity], found: list[Entity]
) -> None:
    state = after(found, difference(wanted, found))
    for entity in wanted:
        assert state.pop(entity.identity) == entity
    assert all(left.is_permanent and left == left.at_rest() for left in state.values())
    again = difference(wanted, [*wanted, *state.values()])
    assert again.is_empty
    assert not steps(again, SCHEMA)


@given(states, states)
def test_what_others_refer_to_comes_before_them_and_goes_after_them(wanted: list[Entity], found: list[Entity]) -> None:
    def is_group(entity: Entity) -> bool:
        return entity.place in (forward.NEXT_HOPS, "multicast groups", "clone sessions")

    order = [
        (kind == DELETE, not is_group(entity) if kind != DELETE else is_group(entity))
        for step in steps(difference(wanted, found), SCHEMA)
        for kind, entity in step
    ]
    assert order == sorted(order)


def test_a_table_that_would_overflow_makes_room_first() -> None:
    size = table_size(SCHEMA, forward.NEXT_HOPS)

    def hops(first: int, count: int) -> list[Entity]:
        return [TableEntry(forward.NEXT_HOPS, (("x", first + n),), Call("a")) for n in range(count)]

    roomy = steps(difference(hops(0, size), hops(0, size - 1)), SCHEMA)
    assert [kind for step in roomy for kind, _ in step] == [INSERT]
    full = steps(difference(hops(1, size), hops(0, size)), SCHEMA)
    assert [kind for step in full for kind, _ in step] == [DELETE, INSERT]
    half = steps(difference(hops(1, size // 2), hops(0, size // 2)), SCHEMA)
    assert [kind for step in half for kind, _ in step] == [INSERT, DELETE]


# Addresses.


def test_a_file_overrides_the_addresses_that_it_names(tmp_path: Path) -> None:
    path = tmp_path / "hosts.toml"
    path.write_text('h1 = {mac = "02:00:00:00:00:AA", ipv4 = "192.168.0.1"}\n')
    first, second = read_addresses(path, star(2))
    assert first == default_addresses(["h0"])[0]
    assert second.mac == bytes.fromhex("0200000000aa")
    assert second.ipv4 == IPv4Address("192.168.0.1")
    assert second.ipv6 == default_addresses(["h0", "h1"])[1].ipv6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h0 =", "is not TOML"),
        ("h2 = {}", "unknown host 'h2'; Accepted: h0, h1"),
        ("h0 = 1", "h0 is 1; accepted: a table with mac, ipv4, ipv6"),
        ("h0 = {ip = '10.0.0.1'}", "h0: unknown address 'ip'"),
        ("h0 = {mac = '02:00'}", "h0.mac is '02:00'; accepted: a MAC address"),
        ("h0 = {mac = '01:00:00:00:00:01'}", "accepted: a unicast address other than 02:54:58:00:00:01"),
        ("h0 = {mac = '02:54:58:00:00:01'}", "accepted: a unicast address other than"),
        ("h0 = {ipv4 = '10.0.0.256'}", "h0.ipv4 is '10.0.0.256'; accepted: a unicast address"),
        ("h0 = {ipv4 = 7}", "h0.ipv4 is 7"),
        ("h0 = {ipv6 = 'ff02::1'}", "h0.ipv6 is 'ff02::1'"),
        ("h0 = {ipv4 = '10.0.0.2'}", "2 hosts have ipv4 10.0.0.2"),
        ("h0 = {mac = '02:54:58:01:00:01'}", "2 hosts have mac 02:54:58:01:00:01"),
    ],
)
def test_what_are_no_addresses_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "hosts.toml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_addresses(path, star(2))
    assert message in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_of_addresses_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_addresses(tmp_path / "none.toml", star(1))
