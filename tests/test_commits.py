"""Order, aggregation and replication of updates: the facts that hold for any updates, and the best there is for few."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorexpress.commits.aggregate import Aggregation, aggregate
from tensorexpress.commits.order import CommitOrder, latest_position, order
from tensorexpress.commits.replicate import ReplicaLog
from tensorexpress.commits.scheduler import decide
from tensorexpress.commits.updates import Bandwidth, Update
from tensorexpress.errors import InputError
from tensorexpress.units import serialisation_ps

SERVER, HELPERS = 100, (101, 102)
VERSION = 20


def links(rates_bps: dict[int, int]) -> Bandwidth:
    """Return what a path carries where every host has a link of its own."""
    return lambda src, dst: min(rates_bps.get(src, 8000), rates_bps.get(dst, 8000))


@st.composite
def waiting(draw: st.DrawFn, most: int = 40) -> tuple[list[Update], Bandwidth]:
    """Draw updates of one worker each, from versions up to the present one, and what their paths carry."""
    count = draw(st.integers(0, most))
    updates = [
        Update(host, draw(st.integers(VERSION - 12, VERSION)), 1000 * draw(st.integers(1, 9)), draw(st.floats(0, 5)))
        for host in range(count)
    ]
    hosts = [*range(count), SERVER, *HELPERS]
    return updates, links({host: draw(st.sampled_from([2000, 4000, 8000])) for host in hosts})


TAUS = st.integers(0, 16)


def delays(found: CommitOrder) -> list[int]:
    return [VERSION + place - update.version for place, update in enumerate(found.commits)]


def total_ps(commits: tuple[Update, ...], bandwidth: Bandwidth) -> int:
    """Return the sum of commit times where one transfer follows another."""
    times = [update.transfer_ps(SERVER, bandwidth) for update in commits]
    return sum(time * (len(times) - place) for place, time in enumerate(times))


@given(waiting(), TAUS)
def test_no_commit_is_later_than_tau_and_every_update_is_committed_or_dropped(
    drawn: tuple[list[Update], Bandwidth], tau: int
) -> None:
    updates, bandwidth = drawn
    found = order(updates, VERSION, tau, SERVER, bandwidth)
    assert all(delay <= tau for delay in delays(found))
    assert sorted(update.host for update in (*found.commits, *found.drops)) == [update.host for update in updates]


@given(waiting(), TAUS)
def test_updates_are_dropped_only_where_no_order_has_room_for_them(
    drawn: tuple[list[Update], Bandwidth], tau: int
) -> None:
    updates, bandwidth = drawn
    found = order(updates, VERSION, tau, SERVER, bandwidth)
    for dropped in found.drops:
        places = sorted(latest_position(update, VERSION, tau) for update in (*found.commits, dropped))
        # Earliest deadline first finds an order if there is one.
        assert any(latest < place for place, latest in enumerate(places, 1))


@given(waiting())
def test_without_a_bound_or_in_step_nothing_is_dropped_and_the_shortest_go_first(
    drawn: tuple[list[Update], Bandwidth],
) -> None:
    updates, bandwidth = drawn
    in_step = [Update(update.host, VERSION, update.size_bytes) for update in updates]
    for some, tau in ((updates, None), (in_step, max(0, len(updates) - 1))):
        found = order(some, VERSION, tau, SERVER, bandwidth)
        times = [update.transfer_ps(SERVER, bandwidth) for update in found.commits]
        assert (found.drops, times) == ((), sorted(times))


def first_possible(updates: list[Update], tau: int, bandwidth: Bandwidth) -> list[int]:
    """Return the hosts in the order that the definition gives, place by place.

    At each place the shortest transfer goes, if the rest can still go by earliest deadline.
    """
    rest, hosts = list(updates), []
    while rest:
        gone = len(hosts)

        def leaves_room(update: Update, rest: list[Update] = rest, gone: int = gone) -> bool:
            others = sorted(latest_position(other, VERSION, tau) for other in rest if other is not update)
            return all(place <= latest for place, latest in enumerate(others, gone + 2))

        chosen = min(filter(leaves_room, rest), key=lambda update: update.transfer_ps(SERVER, bandwidth))
        rest = [update for update in rest if update is not chosen]
        hosts.append(chosen.host)
    return hosts


@given(waiting(most=14), TAUS)
def test_the_order_is_shortest_first_as_far_as_earliest_deadline_of_the_rest_allows(
    drawn: tuple[list[Update], Bandwidth], tau: int
) -> None:
    updates, bandwidth = drawn
    found = order(updates, VERSION, tau, SERVER, bandwidth)
    by_definition = first_possible(list(found.commits), tau, bandwidth)
    hosts = {update.host: update for update in updates}
    assert total_ps(found.commits, bandwidth) == total_ps(tuple(hosts[host] for host in by_definition), bandwidth)


def best_of_all(updates: list[Update], tau: int, bandwidth: Bandwidth) -> tuple[int, int, int]:
    """Return (drops, time until the link is free, sum of commit times) of the best of all orders of all subsets."""
    for kept in range(len(updates), -1, -1):
        costs = []
        for some in combinations(updates, kept):
            busy_ps = sum(update.transfer_ps(SERVER, bandwidth) for update in some)
            for commits in permutations(some):
                if all(place <= latest_position(update, VERSION, tau) for place, update in enumerate(commits, 1)):
                    costs.append((busy_ps, total_ps(commits, bandwidth)))
        if costs:
            return (len(updates) - kept, *min(costs))
    raise AssertionError("nothing can always be committed")


@given(waiting(most=6), TAUS)
def test_few_updates_commit_as_well_as_in_the_best_of_all_orders(
    drawn: tuple[list[Update], Bandwidth], tau: int
) -> None:
    updates, bandwidth = drawn
    found = order(updates, VERSION, tau, SERVER, bandwidth)
    busy_ps = sum(update.transfer_ps(SERVER, bandwidth) for update in found.commits)
    assert (len(found.drops), busy_ps, total_ps(found.commits, bandwidth)) == best_of_all(updates, tau, bandwidth)


@pytest.mark.parametrize("number", range(3))
def test_eight_updates_commit_as_well_as_in_the_best_of_all_orders(number: int) -> None:
    updates = [Update(host, VERSION - host * 5 % (3 + number), 1000 * (1 + host * 7 % 5)) for host in range(8)]
    bandwidth, tau = links({1: 2000, 4: 4000}), 5 + number
    found = order(updates, VERSION, tau, SERVER, bandwidth)
    busy_ps = sum(update.transfer_ps(SERVER, bandwidth) for update in found.commits)
    assert (len(found.drops), busy_ps, total_ps(found.commits, bandwidth)) == best_of_all(updates, tau, bandwidth)


def test_a_bound_below_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="tau: found -1; accepted: 0 or more"):
        order([], VERSION, -1, SERVER, links({}))


# Aggregation

ADD_RATES = st.sampled_from([0, 4000, 80_000])


@given(waiting(), ADD_RATES, st.integers(0, 10**13))
def test_groups_keep_the_order_use_a_helper_once_and_never_keep_the_link_busy_for_longer(
    drawn: tuple[list[Update], Bandwidth], add_rate_bps: int, free_ps: int
) -> None:
    updates, bandwidth = drawn
    way = Aggregation(SERVER, HELPERS, add_rate_bps, free_ps)
    groups = aggregate(updates, way, bandwidth)
    assert [update for group in groups for update in group.updates] == updates
    helpers = [group.helper for group in groups if group.helper is not None]
    assert len(set(helpers)) == len(helpers)
    assert all((len(group.updates) == 1) == (group.helper is None) for group in groups)
    arrivals = [group.arrives_ps for group in groups]
    assert arrivals == sorted(arrivals)
    straight = aggregate(updates, Aggregation(SERVER, (), 0, free_ps), bandwidth)
    assert not groups or groups[-1].arrives_ps <= straight[-1].arrives_ps


@given(waiting(), ADD_RATES)
def test_a_sum_arrives_after_all_its_uploads_and_its_own_transfer(
    drawn: tuple[list[Update], Bandwidth], add_rate_bps: int
) -> None:
    updates, bandwidth = drawn
    free_ps = 0
    for group in aggregate(updates, Aggregation(SERVER, HELPERS, add_rate_bps), bandwidth):
        sender = group.updates[0].host if group.helper is None else group.helper
        size_bytes = max(update.size_bytes for update in group.updates)
        send_ps = serialisation_ps(size_bytes, bandwidth(sender, SERVER))
        uploads_ps = 0 if group.helper is None else sum(u.transfer_ps(group.helper, bandwidth) for u in group.updates)
        assert group.arrives_ps >= max(free_ps, uploads_ps) + send_ps
        free_ps = group.arrives_ps


def soonest_ps(updates: list[Update], helpers: tuple[int, ...], bandwidth: Bandwidth, free_ps: int = 0) -> int:
    """Return when the link is free at the soonest, over all ways to group updates and to give groups to helpers."""
    if not updates:
        return free_ps
    straight_ps = free_ps + updates[0].transfer_ps(SERVER, bandwidth)
    found = [soonest_ps(updates[1:], helpers, bandwidth, straight_ps)]
    for helper in helpers:
        others = tuple(other for other in helpers if other != helper)
        for members in range(2, len(updates) + 1):
            some = updates[:members]
            summed_ps = sum(update.transfer_ps(helper, bandwidth) for update in some)
            send_ps = serialisation_ps(max(update.size_bytes for update in some), bandwidth(helper, SERVER))
            found.append(soonest_ps(updates[members:], others, bandwidth, max(free_ps, summed_ps) + send_ps))
    return min(found)


@given(st.lists(st.integers(1, 9), max_size=8), st.sampled_from([2000, 4000, 8000]), st.integers(0, 2))
def test_few_updates_over_equal_links_are_summed_in_the_best_of_all_ways(
    sizes: list[int], rate_bps: int, helpers: int
) -> None:
    updates = [Update(host, VERSION, 1000 * size) for host, size in enumerate(sizes)]
    groups = aggregate(updates, Aggregation(SERVER, HELPERS[:helpers]), lambda src, dst: rate_bps)
    best_ps = soonest_ps(updates, HELPERS[:helpers], lambda src, dst: rate_bps)
    assert (groups[-1].arrives_ps if groups else 0) == best_ps


@pytest.mark.parametrize("helpers", [1, 2, 3, 7])
def test_helpers_divide_the_time_of_equal_updates(helpers: int) -> None:
    """With h helpers, n updates need about n / (h + 1) transfers: that many straight, the others h sums."""
    updates = [Update(host, VERSION, 1000) for host in range(60)]
    way = Aggregation(SERVER, tuple(range(200, 200 + helpers)))
    last_ps = aggregate(updates, way, lambda src, dst: 8000)[-1].arrives_ps
    assert 60 / (helpers + 1) <= last_ps / 10**12 <= 60 / (helpers + 1) + 2 * helpers


@given(waiting(), TAUS, ADD_RATES)
def test_a_decision_loses_nobody_and_keeps_every_delay_within_tau(
    drawn: tuple[list[Update], Bandwidth], tau: int, add_rate_bps: int
) -> None:
    updates, bandwidth = drawn
    plan = decide(updates, VERSION, tau, Aggregation(SERVER, HELPERS, add_rate_bps), bandwidth)
    going = [update for group in plan.groups for update in group.updates]
    found = CommitOrder((*going, *plan.waiting), plan.drops)
    assert all(delay <= tau for delay in delays(found))
    assert sorted(update.host for update in (*found.commits, *found.drops)) == [update.host for update in updates]
    assert bool(plan.groups) == bool(found.commits)


# Replication

STEPS = st.lists(st.one_of(st.floats(0, 4), st.sampled_from(["forward", "arrived"])), max_size=60)


@given(STEPS, st.floats(0, 10))
def test_a_replica_never_lacks_more_than_the_bound(steps: list[float | str], bound: float) -> None:
    log = ReplicaLog(bound)
    norms: list[float] = []
    for step in steps:
        if step == "forward" and not log.is_forwarding:
            log.forward()
        elif step == "arrived":
            log.arrived()
        elif isinstance(step, float) and log.may_commit(step):
            log.commit(step)
            norms.append(step)
        missing = norms[log.received :]
        assert log.divergence == pytest.approx(sum(missing))
        assert sum(missing) <= bound * (1 + 1e-12)
    assert log.committed == len(norms)
    assert log.fail_over() == len(norms) - log.received
    assert log.divergence == 0


def test_an_update_above_the_bound_waits_for_the_replica() -> None:
    log = ReplicaLog(1.0)
    log.commit(0.75)
    assert not log.may_commit(3.0)
    with pytest.raises(ValueError, match="exceeds the bound of 1"):
        log.commit(3.0)
    log.forward_ahead(3.0)
    assert not log.may_commit(3.0)
    log.arrived()
    assert (log.received, log.divergence, log.may_commit(3.0)) == (2, 0, True)
    log.commit(3.0)
    assert (log.committed, log.divergence, log.may_commit(0.5)) == (2, 0, True)


def test_forwarding_starts_at_half_of_the_bound_and_not_twice() -> None:
    log = ReplicaLog(2.0)
    log.commit(0.9)
    assert not log.should_forward()
    log.commit(0.2)
    assert log.should_forward()
    log.forward()
    log.commit(0.9)
    assert not log.should_forward()
    log.arrived()
    assert log.divergence == pytest.approx(0.9)


def test_what_a_replica_has_ahead_is_not_lost_when_it_takes_over() -> None:
    log = ReplicaLog(1.0)
    log.forward_ahead(5.0)
    log.arrived()
    assert (log.fail_over(), log.committed) == (0, 1)


def test_a_bound_that_is_no_norm_is_refused() -> None:
    with pytest.raises(InputError, match="divergence: found nan; accepted: 0 or more"):
        ReplicaLog(float("nan"))
