"""Placements as a table and as JSON: how fast workers send, shares, sums, the bottleneck, and what more would bring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorexpress.errors import ScenarioError
from tensorexpress.placed import place_jobs
from tensorexpress.placement import WAYS, Better, Placement, what_more_brings
from tensorexpress.placement_rounding import Chosen, UpTree
from tensorexpress.plan import make_plan, usual_paths
from tensorexpress.policy import PLACEMENTS, parse_policy
from tensorexpress.replan import Replanned, follow
from tensorexpress.results.heading import heading
from tensorexpress.results.provenance import provenance
from tensorexpress.scenario import Job, Scenario
from tensorexpress.sums import SUM_FRAMING, packets_of
from tensorexpress.text import grid
from tensorexpress.units import PS_PER_SECOND, format_rate, format_time


@dataclass(frozen=True)
class PlacementStudy:
    """The placements of one job side by side, and one of them in full."""

    job: Job
    placements: Mapping[str, Placement]
    chosen: Placement
    #: What more would bring; none where nobody asked.
    more: tuple[Better, ...]

    def model_ps(self, placement: Placement, scenario: Scenario) -> int:
        """Return how long all gradients of an iteration take at the planned rate."""
        if placement.way == "none":
            size = sum(scenario.framing.wire_bytes(each) for each in self.job.workload.tensor_bytes)
        else:
            size = sum(packets_of(self.job.workload)) * SUM_FRAMING.full_packet_bytes
        return round(8 * size * PS_PER_SECOND / placement.rate_bps)


def study(scenario: Scenario, name: str, way: str, *, more: bool) -> tuple[PlacementStudy, ...]:
    """Decide all placements of every job, where gradients are summed in one way."""
    for number, job in enumerate(scenario.jobs):
        if not job.servers:
            raise ScenarioError(
                f"{scenario.name}: job.{number}.architecture: found {job.architecture}; accepted for a placement: ps"
            )
    paths, found = usual_paths(scenario), []
    together = {each: place_jobs(scenario, each, way, paths) for each in PLACEMENTS if each != "none"}
    used = {host for each in scenario.jobs for host in (*each.hosts, *each.servers)}
    spare = [host for host in range(len(scenario.cluster.hosts)) if host not in used]
    for number, job in enumerate(scenario.jobs):
        placements = {each: placed[number] for each, placed in together.items()}
        betters = tuple(what_more_brings(together[name], number, spare)) if more else ()
        found.append(PlacementStudy(job, placements, placements[name], betters))
    return tuple(found)


def followed(scenario: Scenario, name: str, way: str) -> list[tuple[int, Replanned]]:
    """Return how the routes of a placement follow changes of links and background traffic, where a policy can do so."""
    changes = scenario.rate_steps() or any(each.at_ps or each.until_ps for each in scenario.background)
    if way == "once" or not changes:
        return []
    base = "fifo" if way == "none" or name == "load" else "libra"
    return list(follow(make_plan(scenario, parse_policy(f"{base}:placement={name}"))))


def _followed_lines(moments: Sequence[tuple[int, Replanned]]) -> Iterator[str]:
    yield "routes planned again when links or background traffic change"
    rows = [["at", "as it was", "planned again", "planned in", "what moves"]]
    for time_ps, found in moments:
        before, after = (
            " ".join(format_rate(round(rate)) for rate in rates) for rates in (found.before_bps, found.after_bps)
        )
        seconds = format_time(round(found.seconds * PS_PER_SECOND))
        rows.append([format_time(time_ps), before, after, seconds, "; ".join(found.moved) or "nothing"])
    yield from grid(rows)


def as_table(
    scenario: Scenario, studies: Sequence[PlacementStudy], moments: Sequence[tuple[int, Replanned]] = ()
) -> str:
    """Return all placements, of one what it decided, and how its routes follow what changes."""
    lines = [heading(scenario, said=("job.name", "job.model", "job.workers", "job.servers"))]
    if len(studies) > 1:
        lines += ["", *_sharing_lines([each.chosen for each in studies])]
    for each in studies:
        lines += ["", *_job_lines(scenario, each)]
    if moments:
        lines += ["", *_followed_lines(moments)]
    return "\n".join(lines)


def _sharing_lines(placements: Sequence[Placement]) -> Iterator[str]:
    """Yield what jobs that share the network have of it, and what they would have alone."""
    seconds = format_time(round(placements[0].seconds * PS_PER_SECOND))
    title = f"{placements[0].name}: {len(placements)} jobs planned together in {seconds}"
    yield f"{title}: the slowest is as fast as can be, then the next"
    rows = [["job", "alone", "shared", "pays", "used up first"]]
    for each in placements:
        alone, shared = format_rate(round(each.alone_bps)), format_rate(round(each.rate_bps))
        rows.append([each.parties.name, alone, shared, f"{each.pays:.0%}", each.fabric.name_of(each.bottleneck)])
    yield from grid(rows)


def _job_lines(scenario: Scenario, found: PlacementStudy) -> Iterator[str]:
    chosen, fabric = found.chosen, found.chosen.fabric
    yield f"{found.job.name}: {found.job.workload.name}, {found.job.placement}; summed {WAYS[chosen.way]}"
    rows = [["placement", "rate", "of optimum", "gradients in", "planned in", "used up first"]]
    for name, placement in found.placements.items():
        unsummed = " (no sums)" if placement.way == "none" != chosen.way else ""
        rows.append(
            [
                name + unsummed,
                format_rate(round(placement.rate_bps)),
                f"{placement.rate_bps / _bound_bps(found):.0%}",
                format_time(found.model_ps(placement, scenario)),
                format_time(round(placement.seconds * PS_PER_SECOND)),
                fabric.name_of(placement.bottleneck),
            ]
        )
    yield from grid(rows)
    yield ""
    how = "in proportion to servers' links" if chosen.is_closed_form else "by linear programs"
    shares = [["server", "share", "summed at", "links"]]
    for host, share, choice in zip(found.job.servers, chosen.shares, chosen.choices, strict=True):
        shares.append([fabric.nodes[host], f"{share:.1%}", _where(chosen, choice), str(_links(chosen, choice))])
    yield (
        f"{chosen.name}: shares {how}" if chosen.name == "inart" else f"{chosen.name}: the same share for every server"
    )
    yield from grid(shares)
    if found.more:
        yield ""
        yield from _more_lines(found)


def _bound_bps(found: PlacementStudy) -> float:
    """Return what no placement of this way to sum beats."""
    return max(placement.bound_bps for placement in found.placements.values())


def _where(placement: Placement, choice: Chosen) -> str:
    """Return at how many switches, or at which few, a server's gradients are summed."""
    nodes = placement.fabric.nodes
    places = sorted(summing_switches(placement, choice))
    if not places:
        return "nowhere"
    return " ".join(nodes[place] for place in places) if len(places) <= 4 else f"{len(places)} switches"


def summing_switches(placement: Placement, choice: Chosen) -> set[int]:
    """Return the switches at which several packets of a server's become one."""
    fabric, way = placement.fabric, choice.way
    if isinstance(way, UpTree):
        comes = Counter(fabric.switch_of(worker) for worker in placement.parties.workers)
        comes.update(fabric.target(arc) for arc in way.up.values())
    else:
        comes = Counter(place for place in way.place.values() if place >= 0)
    return {switch for switch, packets in comes.items() if packets > 1}


def _links(placement: Placement, choice: Chosen) -> int:
    """Return over how many links a server's gradients come."""
    return int((choice.loads[: len(placement.fabric.links)] > 0).sum())


def _more_lines(found: PlacementStudy) -> Iterator[str]:
    bound_bps = found.chosen.bound_bps
    yield f"with a tenth more of something, the bound of {format_rate(round(bound_bps))} would be"
    rows = [["of", "bound", "gain"]]
    for better in found.more:
        rows.append(
            [better.what, format_rate(round(better.bound_bps)), f"{max(0.0, better.bound_bps / bound_bps - 1):+.1%}"]
        )
    yield from grid(rows)


def as_json(
    scenario: Scenario, studies: Sequence[PlacementStudy], moments: Sequence[tuple[int, Replanned]] = ()
) -> dict[str, Any]:
    """Return the same as a JSON object; rates are bit/s on the wire."""
    made_by = provenance(scenario, ())
    again = [
        {
            "at_ps": time_ps,
            "before_bps": [round(rate) for rate in found.before_bps],
            "after_bps": [round(rate) for rate in found.after_bps],
            "planned_s": found.seconds,
            "moved": list(found.moved),
        }
        for time_ps, found in moments
    ]
    jobs = [_job_json(scenario, each) for each in studies]
    return {"provenance": made_by.to_json(), "jobs": jobs, "planned_again": again}


def _job_json(scenario: Scenario, found: PlacementStudy) -> dict[str, Any]:
    return {
        "name": found.job.name,
        "sums": found.chosen.way,
        "placements": {
            name: _placement_json(placement, found.model_ps(placement, scenario))
            for name, placement in found.placements.items()
        },
        "chosen": found.chosen.name,
        "more": [{"of": better.what, "bound_bps": round(better.bound_bps)} for better in found.more],
    }


def _placement_json(placement: Placement, model_ps: int) -> dict[str, Any]:
    fabric = placement.fabric
    return {
        "rate_bps": round(placement.rate_bps),
        "alone_bps": round(placement.alone_bps),
        "bound_bps": round(placement.bound_bps),
        "of_optimum": placement.of_optimum,
        "gradients_ps": model_ps,
        "bottleneck": fabric.name_of(placement.bottleneck),
        "planned_s": placement.seconds,
        "closed_form": placement.is_closed_form,
        "servers": [
            {
                "host": fabric.nodes[host],
                "share": share,
                "summed_at": [fabric.nodes[node] for node in sorted(summing_switches(placement, choice))],
                "ways": _ways_json(placement, choice),
            }
            for host, share, choice in zip(placement.parties.servers, placement.shares, placement.choices, strict=True)
        ],
        "links": {
            fabric.name_of(resource): float(used)
            for resource, used in zip(fabric.resources, placement.usage, strict=True)
            if used > 0
        },
    }


def _ways_json(placement: Placement, choice: Chosen) -> dict[str, list[str]]:
    """Return the switches that every worker's gradients pass on their way to a server."""
    fabric, way = placement.fabric, choice.way
    found = {}
    for worker in placement.parties.workers:
        first = fabric.switch_of(worker)
        if isinstance(way, UpTree):
            arcs = way.way(fabric, first)
        else:
            arcs = (*way.to_place[worker], *way.onward.get(way.place[worker], ()))
        found[fabric.nodes[worker]] = [fabric.nodes[node] for node in (first, *map(fabric.target, arcs))]
    return found
