"""How true the numbers are that `predict` announces: the error of a coarse simulation, its time, and its memory.

`python benchmarks/announce.py --only errors --scenarios 50` draws scenarios from the zoo (architectures, racks, servers
on workers' hosts, rates, jitter), simulates each under four policies at packet level and at three grains, and prints in
which share of cases an iteration is off packet level by no more than `sim/grain.py` announces.

`python benchmarks/announce.py --only cost` predicts a ladder of scenarios, each in a process of its own, and prints the
announced time and memory beside those that it took: seconds on the clock at the pace of the machine just before the
start, and CPU seconds, which other processes change less. Run by hand; nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from statistics import median

from tensorexpress.errors import InputError
from tensorexpress.models import names
from tensorexpress.plan import make_plan
from tensorexpress.policy import POLICIES
from tensorexpress.scenario import Scenario, read_scenario
from tensorexpress.scenario_keys import USUAL_POLICIES
from tensorexpress.sim.grain import coarse_error, compared_grain, usual_seconds
from tensorexpress.sim.run import simulate_coarsely
from tensorexpress.trace import measure_job

GRAINS = (4, 16, 64)
#: Models that no machine simulates at packet level in a while.
TOO_LARGE = ("llama", "mixtral", "dlrm")
#: Seconds of a usual machine that packet level may take, for each policy.
MOST_SECONDS = 4.0

#: Overrides, policies and grain of every scenario whose announced time and memory are measured.
LADDER = (
    ("job.workers=32 job.servers=16", "fifo,p3,tensorexpress,ideal", 1),
    ("job.workers=128 job.servers=64", "fifo", 1),
    ("job.workers=64 job.servers=32", "tensorexpress", 1),
    ("job.workers=32 job.servers=8 job.model=vgg16", "fifo,p3", 1),
    ("job.workers=64 job.architecture=ring", "tensorexpress", 1),
    ("job.workers=64 job.architecture=fsdp job.model=bert-large cluster.bandwidth=100Gbps", "fifo", 16),
    ("job.workers=64 job.servers=32 job.model=gpt2-xl", "fifo,p3", 128),
    ("job.workers=256 job.servers=128", "tensorexpress", 16),
    ("job.workers=128 job.architecture=ring", "fifo", 1),
    ("job.workers=32", "switchml", 1),
    ("job.workers=256 job.architecture=tree", "tensorexpress", 1),
)

_CHILD = """
import json, resource, sys, time
from tensorexpress.results import report
from tensorexpress.scenario import read_scenario
from tensorexpress.sim.cost import expected_cost, pace
from tensorexpress.sim.predict import checked_policies, predict
overrides, policies, grain = json.loads(sys.argv[1])
scenario = read_scenario(None, overrides)
cost = expected_cost(scenario, checked_policies(scenario, policies), grain)
announced = cost.seconds * pace()
start, used = time.perf_counter(), time.process_time()
report.as_table(predict(scenario, policies, grain=grain))
taken, used = time.perf_counter() - start, time.process_time() - used
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
print(json.dumps([announced, taken, cost.cpu_seconds, used, cost.bytes, peak]))
"""


def drawn_scenarios(seed: int) -> Iterator[tuple[str, Scenario]]:
    """Yield random scenarios, and their overrides, that packet level answers soon."""
    chance, models = random.Random(seed), [name for name in names() if not name.startswith(TOO_LARGE)]
    while True:
        workers = chance.choice([2, 4, 8, 8, 16, 32])
        kind = chance.choice(["star", "star", "star", "colocated", "ring", "tree", "fsdp", "racks"])
        overrides = [f"job.model={chance.choice(models)}", f"job.workers={workers}"]
        if kind in ("star", "racks"):
            overrides.append(f"job.servers={max(1, workers // chance.choice([1, 2, 2, 4]))}")
        elif kind == "colocated":
            overrides += [f"job.servers={workers}", "job.colocated=true"]
        else:
            overrides.append(f"job.architecture={kind}")
        if kind == "racks":
            overrides += ["cluster.topology=leaf-spine", "cluster.leaves=4", "cluster.spines=2"]
            overrides.append(f"cluster.hosts_per_leaf={(2 * workers + 3) // 4}")
            overrides.append(f"cluster.oversubscription={chance.choice([1, 2, 3])}")
        overrides.append(f"cluster.bandwidth={chance.choice([2, 5, 10, 25, 40, 100])}Gbps")
        if chance.random() < 0.25:
            overrides.append(f"compute.jitter={chance.choice([0.01, 0.05])}")
        if chance.random() < 0.2:
            overrides.append(f"cluster.mtu={chance.choice([1500, 4096])}")
        try:
            scenario = read_scenario(None, overrides)
        except InputError:
            continue
        if max(usual_seconds(scenario, [POLICIES[name]], 1) for name in USUAL_POLICIES) <= MOST_SECONDS:
            yield " ".join(overrides), scenario


def errors(seed: int, scenarios: int) -> None:
    """Print how often the announced error covers the true one."""
    cases: list[tuple[float, float, float, str]] = []
    for _, (overrides, scenario) in zip(range(scenarios), drawn_scenarios(seed), strict=False):
        for name in USUAL_POLICIES:
            plan = make_plan(scenario, POLICIES[name])
            known: dict[int, float] = {}
            for grain in (1, *GRAINS):
                for each in (grain, compared_grain(scenario, grain)) if grain > 1 else (1,):
                    if each not in known:
                        trace = simulate_coarsely(plan, each)[1]
                        known[each] = measure_job(trace.jobs[0], scenario.warmup).iteration_ps
            for grain in GRAINS:
                change = abs(known[compared_grain(scenario, grain)] / known[grain] - 1)
                true = abs(known[grain] / known[1] - 1)
                cases.append((true, change, coarse_error(scenario, plan.policy, change), f"{name} {grain} {overrides}"))
    covered = sum(true <= announced for true, _, announced, _ in cases) / len(cases)
    by_change = sum(true <= change for true, change, _, _ in cases) / len(cases)
    print(f"{len(cases)} cases: announced error covers {covered:.1%}; the change at another grain {by_change:.1%}")
    print(f"off by {median(case[0] for case in cases):.2%} (median), announced {median(c[2] for c in cases):.2%}")
    for true, _, announced, case in sorted(cases, reverse=True)[:10]:
        print(f"  off {true:.1%}, announced {announced:.1%}: {case}")


def costs() -> None:
    """Print announced and true time and memory of the ladder."""
    head = ["announced s", "took", "ratio", "CPU s", "took", "ratio", "MB", "peak", "ratio"]
    print(f"{'scenario':70}{''.join(f'{each:>12}' for each in head)}")
    for overrides, policies, grain in LADDER:
        asked = json.dumps([overrides.split(), policies.split(","), grain])
        ended = subprocess.run([sys.executable, "-c", _CHILD, asked], capture_output=True, text=True, check=True)
        announced, taken, expected, used, needed, peak = json.loads(ended.stdout)
        label = f"{overrides.replace('job.', '').replace('cluster.', '')} {policies} {grain}"
        numbers = [announced, taken, announced / taken, expected, used, expected / used]
        numbers += [needed / 1e6, peak / 1e6, needed / peak]
        print(f"{label[:70]:70}{''.join(f'{number:12.2f}' for number in numbers)}", flush=True)


def main() -> None:
    """Measure the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["errors", "cost"], help="this part alone")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scenarios", type=int, default=20, help="scenarios whose errors are measured")
    asked = parser.parse_args()
    if asked.only != "cost":
        errors(asked.seed, asked.scenarios)
    if asked.only != "errors":
        costs()


if __name__ == "__main__":
    main()
