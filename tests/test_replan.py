"""Routes planned again: the best there are, for sums that stay the same, and changed while packets are under way."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import default_rng
from support.deployed import PROGRAM, SCHEMA, fitted
from support.summed_training import PipelineNetwork, Training, summed_plan
from support.thorough import rest
from support.virtual_network import FAULTLESS, Faults
from test_placed import AT_ONCE, both, scenario_on, simulated_bps, three_leaves

from tensorexpress.changes import Change, links_of
from tensorexpress.cli import main
from tensorexpress.control.deploy import prepare
from tensorexpress.control.entities import Entity
from tensorexpress.control.intent import Options
from tensorexpress.control.reconcile import Changes, difference, steps
from tensorexpress.errors import PlanError
from tensorexpress.p4runtime_messages import p4runtime_pb2
from tensorexpress.plan import Plan, make_plan
from tensorexpress.plan_file import plan_from_json, plan_to_json
from tensorexpress.policy import parse_policy
from tensorexpress.replan import follow, places_of, replan
from tensorexpress.scenario import Background, Job, Scenario, read_scenario
from tensorexpress.sums import SummingSwitch, SumPlan
from tensorexpress.switch.operations import Operation
from tensorexpress.switch.p4runtime.entities import write_entries
from tensorexpress.switch.p4runtime.store import Recorder, Store
from tensorexpress.topologies import fat_tree, leaf_spine

#: Two spines, and a server on every leaf.
TWO_SPINES = (
    *("cluster.topology=leaf-spine", "cluster.leaves=2", "cluster.spines=2", "cluster.hosts_per_leaf=3"),
    *("job.workers=h0,h1,h3,h4", "job.servers=h2,h5"),
)
#: Spines that sum for two leaves, in front of servers on a third.
THREE_LEAVES = (
    *("cluster.topology=leaf-spine", "cluster.leaves=3", "cluster.spines=2", "cluster.hosts_per_leaf=2"),
    *("job.workers=h0,h1,h2,h3", "job.servers=h4,h5"),
)
STATED = Faults(loss=0.1, duplication=0.05, reordering=0.1, corruption=0.01)


def taken_at(plan: Plan, switch: str, share: float = 0.9) -> dict[int, float]:
    """Return what others take where they use a part of every link between a switch and other switches."""
    directed, cluster = plan.scenario.directed(), plan.scenario.cluster
    node, hosts = cluster.nodes.index(switch), len(cluster.hosts)
    ends = enumerate(zip(directed.source, directed.target, strict=True))
    return {link: share * directed.rate_bps[link] for link, pair in ends if node in pair and min(pair) >= hosts}


def workers_below(plan: Plan, tree: SumPlan) -> list[list[frozenset[int]]]:
    """Return for every place in a tree, and for every number of a child there, which workers are below."""
    directed, hosts = plan.scenario.cluster.directed(), len(plan.scenario.cluster.hosts)
    by_node = {hosts + each.switch: each for each in tree.switches}

    def below(node: int) -> frozenset[int]:
        if node < hosts:
            return frozenset({node})
        return frozenset().union(*(below(directed.source[link]) for link in by_node[node].children))

    return [[below(directed.source[link]) for link in each.children] for each in tree.switches]


def small_scenario_plan(policy: str = "inart") -> Plan:
    return make_plan(read_scenario(None, [*TWO_SPINES, "job.model=alexnet"]), parse_policy(policy))


class TestPlanned:
    @pytest.mark.parametrize("policy", ["inart", "libra", "atp"])
    def test_sums_leave_a_spine_that_others_use(self, policy: str) -> None:
        plan = small_scenario_plan(policy)
        spines = {plan.scenario.cluster.switches[each.switch] for each in plan.jobs[0].sums[0].switches} - {"s0", "s1"}
        (spine,) = spines
        found = replan(plan, taken_at(plan, spine))
        assert min(found.after_bps) > 1.5 * min(found.before_bps)
        assert f"no longer {spine}" in found.moved[0]
        assert plan_from_json(json.loads(json.dumps(plan_to_json(found.plan)))) == found.plan
        # When others leave, nothing is gained any more, and all stays.
        assert replan(found.plan, {}).plan == found.plan

    def test_paths_leave_it_where_nothing_is_summed(self) -> None:
        plan = small_scenario_plan("fifo")
        found = replan(plan, taken_at(plan, "s2"))
        slow = {link for link, bps in taken_at(plan, "s2").items() if bps}
        assert found.after_bps > found.before_bps
        assert any(set(path.links) & slow for path in plan.paths)
        assert not any(set(path.links) & slow for path in found.plan.paths)
        assert found.moved == (f"{sum(a != b for a, b in zip(plan.paths, found.plan.paths, strict=True))} of "
                               f"{len(plan.paths)} paths",)  # fmt: skip

    @settings(max_examples=15)
    @given(seed=st.integers(0, 2**16), policy=st.sampled_from(["inart", "atp"]))
    def test_a_bit_stands_for_the_same_workers_in_a_switch_at_any_time(self, seed: int, policy: str) -> None:
        rng = default_rng(seed)
        plan = make_plan(scenario_on(three_leaves(seed % 7), 6, 3), parse_policy(policy))
        links, places, meant = 2 * len(plan.scenario.cluster.links), places_of(plan), dict[object, object]()
        for _ in range(4):
            for number, tree in enumerate(plan.jobs[0].sums):
                for each, below in zip(tree.switches, workers_below(plan, tree), strict=True):
                    for bit, workers in enumerate(below):
                        assert meant.setdefault((number, each.switch, bit), workers) == workers
                    assert meant.setdefault((number, each.switch), len(below)) == len(below)
            taken = {int(link): float(rng.random()) * 10**9 for link in rng.integers(0, links, 12)}
            found = replan(plan, taken, worth=0.0, places=places)
            places |= places_of(found.plan)
            # Hosts are told nothing.
            assert [tree.pools for tree in found.plan.jobs[0].sums] == [tree.pools for tree in plan.jobs[0].sums]
            assert found.plan.jobs[0].slices == plan.jobs[0].slices
            plan = found.plan

    def test_no_other_choice_of_spines_is_faster(self) -> None:
        choices = 0
        for seed in range(5):
            plan, _ = both(scenario_on(three_leaves(seed), 6, 3), "libra:placement=equal")
            taken = {link: float(bps) for link, bps in enumerate(default_rng(seed).integers(0, 10**9, 30))}
            rates = [replan(other, taken, worth=10.0).before_bps[0] for other in every_choice(plan)]
            assert replan(plan, taken, worth=0.0).after_bps[0] == pytest.approx(max(rates), rel=1e-6), seed
            choices += len(rates)
        assert choices > 5

    def test_a_fat_tree_is_planned_again(self) -> None:
        scenario = scenario_on(fat_tree(4), 12, 2)
        plan, _ = both(scenario, "inart")
        cores = {each.switch for each in plan.jobs[0].sums[0].switches if each.switch >= 16}
        found = replan(plan, taken_at(plan, scenario.cluster.switches[min(cores)]))
        assert found.after_bps[0] > found.before_bps[0]
        assert min(cores) not in {each.switch for each in found.plan.jobs[0].sums[0].switches}

    @pytest.mark.parametrize(("seed", "spine"), [(0, "s3"), (3, "s4"), (4, "s3"), (6, "s4")])
    def test_packets_reach_what_is_planned_before_and_after(self, seed: int, spine: str) -> None:
        cluster = three_leaves(seed)
        links = tuple(link for leaf in ("s0", "s1", "s2") for link in links_of(f"{leaf}-{spine}", cluster))
        scenario = scenario_on(cluster, 6, 3, changes=(Change(links=links, share=0.25),))
        plan, _ = both(scenario, "inart")
        found = replan(plan, {}, scenario.slowest().rate_bps)
        assert simulated_bps(plan) == pytest.approx(found.before_bps[0], rel=0.03)
        assert simulated_bps(found.plan) == pytest.approx(found.after_bps[0], rel=0.03)
        assert found.after_bps[0] > 1.3 * found.before_bps[0]

    def test_routes_follow_links_and_background_traffic_of_a_scenario(self) -> None:
        cluster = leaf_spine(3, 2, 3, oversubscription=3)
        slow = Change(at_ps=2, until_ps=5, links=links_of("s0-s3", cluster), share=0.2)
        # Over either spine there is something else for a while.
        others = tuple(Background(host, 5, 10**9, 1500, "constant", 10, 20) for host in (2, 8))
        job = Job("job", AT_ONCE, (0, 1, 3, 4), (6, 7), shard_bytes=10_000)
        scenario = Scenario("s", cluster, (job,), changes=(slow,), background=others)
        found = dict(follow(make_plan(scenario, parse_policy("libra:placement=equal"))))
        assert list(found) == [2, 5, 10, 20]
        # 5 Gbps over each spine; a fifth of that over one of them is worth leaving it.
        assert found[2].before_bps == pytest.approx((2e9,), rel=0.01)
        assert found[2].after_bps == found[5].before_bps == pytest.approx((5e9,), rel=0.01)
        assert found[5].after_bps == pytest.approx((10e9,), rel=0.01)
        assert found[10].before_bps[0] < found[20].after_bps[0] == pytest.approx(10e9, rel=0.01)

    def test_place_says_what_moves_when_links_change(self) -> None:
        example = str(Path(__file__).parent.parent / "examples" / "inart-changing.toml")
        said = CliRunner().invoke(main, ["place", example, "--no-more"]).output
        assert "2 s     2 Gbps         5 Gbps" in said
        assert "sums of job0 to" in said
        document = json.loads(CliRunner().invoke(main, ["place", example, "--no-more", "--json", "-"]).output)
        assert [each["at_ps"] for each in document["planned_again"]] == [2 * 10**12, 5 * 10**12]

    def test_what_has_no_routes_to_choose_is_told(self) -> None:
        ring = read_scenario(None, ["job.architecture=ring", "job.model=alexnet"])
        with pytest.raises(PlanError, match="a job has no servers, whose routes could be planned again"):
            replan(make_plan(ring, parse_policy("fifo")), {})
        with pytest.raises(PlanError, match="policy 'switchml' has sums end in switches"):
            replan(make_plan(ring, parse_policy("switchml")), {})
        plan = small_scenario_plan("libra")
        *others, last = plan.jobs[0].slices
        mixed = replace(plan.jobs[0], slices=(*others, replace(last, summed=False)))
        with pytest.raises(PlanError, match="a job sums some rows in switches and sends others"):
            replan(replace(plan, jobs=(mixed,)), {})


def every_choice(plan: Plan) -> Iterator[Plan]:
    """Yield plans with every choice of a spine for every tree that goes over one alone."""
    names = plan.scenario.cluster.link_names

    def over(tree: SumPlan, old: str, new: str) -> SumPlan:
        def moved(link: int) -> int:
            return names.index(names[link].replace(old, new)) if link >= 0 else link

        switches = (
            SummingSwitch(4 + 3 - each.switch if each.switch >= 3 and old != new else each.switch,
                          tuple(map(moved, each.children)), moved(each.up))
            for each in tree.switches
        )  # fmt: skip
        return replace(tree, switches=tuple(switches))

    options = []
    for tree in plan.jobs[0].sums:
        spines = {f"s{each.switch}" for each in tree.switches} & {"s3", "s4"}
        own = [tree]
        if len(spines) == 1:
            (old,) = spines
            own.append(over(tree, old, "s4" if old == "s3" else "s3"))
        options.append(own)
    for sums in product(*options):
        yield replace(plan, jobs=(replace(plan.jobs[0], sums=sums),))


class ReroutedNetwork(PipelineNetwork):
    """Switches that are given one plan after another, write by write, while packets are under way."""

    def __init__(self, plan: Plan, faults: Faults, seed: int):
        super().__init__(plan, faults, seed)
        self._wanted, self._choose = self._entities(plan), Random(seed)
        self._controllers = {name: SwitchControl(own) for name, own in self._wanted.items()}
        self._writes: deque[tuple[str, Operation]] = deque()

    @staticmethod
    def _entities(plan: Plan) -> dict[str, list[Entity]]:
        return prepare(plan, plan.scenario.cluster.switches, Options(), PROGRAM).wanted

    def reroute(self, plan: Plan) -> None:
        """Have the switches brought to another plan, from now on."""
        wanted = self._entities(plan)
        changes = {name: difference(own, self._wanted[name]) for name, own in wanted.items()}
        for kind in ("inserted", "modified", "deleted"):
            told = {name: deque(self._controllers[name].write(own, kind)) for name, own in changes.items()}
            # Switches are written to at once, each in its order.
            names = [name for name, own in told.items() for _ in own]
            self._writes += [(name, told[name].popleft()) for name in self._choose.sample(names, len(names))]
        self._wanted = wanted

    @property
    def is_rerouted(self) -> bool:
        return not self._writes

    def deliver(self) -> None:
        super().deliver()
        if self._writes and self._choose.random() < 0.5:
            name, operation = self._writes.popleft()
            self.switches.switches[name].apply([operation])


class SwitchControl:
    """What a switch makes of what a controller writes."""

    def __init__(self, held: list[Entity]):
        self._recorder = Recorder()
        self._store = Store(fitted().schema, self._recorder, fitted().initial, cpu_port=255)
        self._make([(_MODIFY if entity.is_permanent else _INSERT, entity) for entity in held])

    def write(self, changes: Changes, kind: str) -> list[Operation]:
        """Return what the forwarding process is told of one kind of changes, in the order in which they are written."""
        told = len(self._recorder.operations)
        for step in steps(replace(Changes((), (), (), ()), **{kind: getattr(changes, kind)}), SCHEMA):
            self._make(step)
        return self._recorder.operations[told:]

    def _make(self, updates: list[tuple[int, Entity]]) -> None:
        request = p4runtime_pb2.WriteRequest()
        for kind, entity in updates:
            request.updates.add(type=kind, entity=entity.encode(SCHEMA))
        write_entries(self._store, str(request))


_INSERT, _MODIFY = p4runtime_pb2.Update.INSERT, p4runtime_pb2.Update.MODIFY


@rest(but=1)
@pytest.mark.parametrize(
    ("policy", "faults"),
    [("inart", STATED), ("atp", FAULTLESS)],
    ids=["inart, faults", "atp, faultless"],
)
def test_every_sum_is_exact_while_routes_change_write_by_write(tmp_path: Path, policy: str, faults: Faults) -> None:
    plan = summed_plan(tmp_path, *THREE_LEAVES, "job.shard=4 KB", "iterations=5", policy=policy, scale=0.06)
    network = ReroutedNetwork(plan, faults, 2)
    training = Training(plan, network)
    now, places = plan, places_of(plan)
    first, other = sorted({"s3", "s4"}, key=lambda name: name not in spines_of(plan))
    # There, and back again: what is in the registers of a spine is then as old as it likes to be.
    for old, new in [(first, other), (other, first)] * 2:
        found = replan(now, taken_at(plan, old, 0.99), places=places)
        assert spines_of(found.plan) == {new}
        now, places = found.plan, places | places_of(found.plan)
        network.reroute(now)
        training.run(until=lambda: network.is_rerouted)
        at_old, enough = summed(network, old), summed(network, new) + 12
        training.run(until=partial(has_summed, network, new, enough))
        assert summed(network, old) == at_old
    assert not any(worker.done for worker in training.workers)
    training.run()
    # Workers compare every sum with what it should be.
    assert all((worker.updated_ps > 0).all() for worker in training.workers)


def spines_of(plan: Plan) -> set[str]:
    return {f"s{each.switch}" for tree in plan.jobs[0].sums for each in tree.switches} & {"s3", "s4"}


def has_summed(network: ReroutedNetwork, switch: str, packets: int) -> bool:
    return summed(network, switch) >= packets


def summed(network: ReroutedNetwork, switch: str) -> int:
    """Return how many packets of children a switch has taken."""
    events = Counter(network.switches.events(switch))
    return events["added"] + events["passed on as they were"]
