"""tensorexpress: in-network scheduling of tensors for distributed training.

These are the names that most programs need; docs/api.md says what each is for. They are imported when they are first
used, so that `import tensorexpress` is quick and asks for nothing that is not installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorexpress.cluster import Cluster as Cluster
    from tensorexpress.errors import TensorExpressError as TensorExpressError
    from tensorexpress.host.tagging import Tagger as Tagger
    from tensorexpress.plan import Plan as Plan
    from tensorexpress.plan import make_plan as make_plan
    from tensorexpress.plan_file import read_plan as read_plan
    from tensorexpress.policy import POLICIES as POLICIES
    from tensorexpress.policy import Policy as Policy
    from tensorexpress.policy import parse_policy as parse_policy
    from tensorexpress.scenario import Job as Job
    from tensorexpress.scenario import Scenario as Scenario
    from tensorexpress.scenario import make_scenario as make_scenario
    from tensorexpress.scenario import read_scenario as read_scenario
    from tensorexpress.scenario import read_study as read_study
    from tensorexpress.sim.explain import explain as explain
    from tensorexpress.sim.predict import predict as predict
    from tensorexpress.sim.run import simulate as simulate
    from tensorexpress.sim.sweep import sweep as sweep
    from tensorexpress.topologies import fat_tree as fat_tree
    from tensorexpress.topologies import leaf_spine as leaf_spine
    from tensorexpress.topologies import star as star
    from tensorexpress.trace_file import read_trace as read_trace
    from tensorexpress.workload import Workload as Workload

    __version__: str

#: Module -> the names of it that stand here, too.
_PLACES = {
    "cluster": ("Cluster",),
    "errors": ("TensorExpressError",),
    "host.tagging": ("Tagger",),
    "plan": ("Plan", "make_plan"),
    "plan_file": ("read_plan",),
    "policy": ("POLICIES", "Policy", "parse_policy"),
    "scenario": ("Job", "Scenario", "make_scenario", "read_scenario", "read_study"),
    "sim.explain": ("explain",),
    "sim.predict": ("predict",),
    "sim.run": ("simulate",),
    "sim.sweep": ("sweep",),
    "topologies": ("fat_tree", "leaf_spine", "star"),
    "trace_file": ("read_trace",),
    "workload": ("Workload",),
}
_MODULE_OF = {name: module for module, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("tensorexpress")
    elif name in _MODULE_OF:
        value = getattr(import_module(f"tensorexpress.{_MODULE_OF[name]}"), name)
    else:
        raise AttributeError(f"module 'tensorexpress' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), "__version__", *_MODULE_OF})
