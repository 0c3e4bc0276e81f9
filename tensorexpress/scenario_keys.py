"""The keys of a scenario, as data: what may be written, what each key takes, its default and its meaning.

Every key is one row of `SECTIONS`: to add a key, add a row. The reader, its error messages and the tables in
docs/scenario.md follow from the rows.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from tensorexpress import models
from tensorexpress.cluster import MOST_HOSTS
from tensorexpress.commits.modes import COMMIT_MODES
from tensorexpress.errors import InputError, ScenarioError, unknown
from tensorexpress.framing import SEGMENT_OVERHEAD_BYTES
from tensorexpress.graph import ALL_ARCHITECTURES
from tensorexpress.learning import PROBLEMS
from tensorexpress.names import ACCEPTED as ACCEPTED_NAME
from tensorexpress.names import is_name
from tensorexpress.policy import Policy, parse_policy
from tensorexpress.presets import PRESETS
from tensorexpress.sparse import MOST_KEYS
from tensorexpress.topologies import TOPOLOGIES
from tensorexpress.units import LARGEST, PS_PER_MS, parse_limit, parse_rate, parse_size, parse_time
from tensorexpress.workload import (
    DTYPE_BYTES,
    LARGEST_BATCH,
    LARGEST_COMPRESSION,
    MOST_SAMPLES_PER_SECOND,
    Workload,
)


class ValueKind(NamedTuple):
    """What values a key takes."""

    #: In words, for the documentation and the error messages.
    accepted: str
    #: Returns the value in our units; raises ValueError, or an InputError that says more.
    parse: Callable[[Any], Any]


class Key(NamedTuple):
    """One key of a scenario."""

    #: What the value becomes: a field of the section's dataclass, or a parameter of the cluster's constructor.
    field: str
    kind: ValueKind
    #: As one would write it in the file, or `Words`.
    default: object
    help: str

    def accepts(self, value: object) -> bool:
        """Whether a value in our own units could have come out of a document."""
        try:
            return bool(self.kind.parse(value) == value)
        except (ValueError, InputError):
            return False


class Words(str):
    """A default that depends on other keys, in words; the reader first leaves such a key None."""


REQUIRED = Words("required")


def _require(condition: bool) -> None:
    if not condition:
        raise ValueError


def _whole(least: int, most: int) -> ValueKind:
    def parse(value: Any) -> int:
        _require(type(value) is int and least <= value <= most)
        return int(value)

    return ValueKind(f"a whole number from {least} to {most}", parse)


def _real(least: float, below: float) -> ValueKind:
    def parse(value: Any) -> float:
        _require(type(value) in (int, float) and least <= value < below)
        return float(value)

    return ValueKind(f"a number from {least:g} to below {below:g}", parse)


def _one_of(what: str, names: Iterable[str]) -> ValueKind:
    accepted = tuple(names)

    def parse(value: Any) -> str:
        name = _text(value).lower()
        if name not in accepted:
            raise ScenarioError(unknown(what, value, accepted))
        return name

    return ValueKind("one of " + ", ".join(accepted), parse)


def _quantity(words: str, parse_unit: Callable[[object], int], least: int = 0, most: int = LARGEST) -> ValueKind:
    def parse(value: Any) -> int:
        _require(isinstance(value, int | float | str))
        amount = parse_unit(value)
        _require(least <= amount <= most)
        return amount

    return ValueKind(words + " above 0" * (least > 0), parse)


def _text(value: Any) -> str:
    _require(isinstance(value, str) and value.isprintable())
    return str(value)


def _model(value: Any) -> str | Workload:
    """Return a model's own name for any spelling of it, or a workload made in Python; "" leaves it to `csv`."""
    if isinstance(value, Workload):
        return value
    return models.architecture(_text(value)).name if value != "" else ""


def _hot_rows(value: Any) -> int | str:
    _require(value == "auto" or (type(value) is int and 0 <= value <= MOST_KEYS))
    return value  # type: ignore[no-any-return]


def _flag(value: Any) -> bool:
    _require(isinstance(value, bool))
    return bool(value)


def _list(value: Any) -> list[Any]:
    _require(isinstance(value, list | tuple))
    return list(value)


def _name(value: Any) -> str:
    _require(is_name(value))
    return str(value)


def _names(value: Any) -> tuple[str, ...]:
    """Return names; "h0,h1" is easier to write on a command line than a TOML list."""
    items = [item.strip() for item in value.split(",")] if isinstance(value, str) else _list(value)
    return tuple(_name(item) for item in items)


def _hosts(least: int) -> ValueKind:
    count = _whole(least, MOST_HOSTS)

    def parse(value: Any) -> int | tuple[str, ...]:
        if isinstance(value, int):
            return int(count.parse(value))
        names = _names(value)
        _require(len(names) >= least)
        return names

    return ValueKind(f"a count from {least} to {MOST_HOSTS}, or a list of host names", parse)


def _policies(value: Any) -> tuple[Policy, ...]:
    """Return policies; in "p3,fifo:slice=1 KB,switch=strict" a part with "=" but no ":" goes on with the one before."""
    texts = re.split(r",(?![^:,]*=)", value) if isinstance(value, str) else _list(value)
    _require(len(texts) > 0)
    found = tuple(parse_policy(_text(text)) for text in texts)
    for name, uses in Counter(policy.name for policy in found).items():
        if uses > 1:
            raise ScenarioError(f"policy {name!r} is given {uses} times; accepted: each policy once")
    return found


def _modes(value: Any) -> tuple[str, ...]:
    found = _names(value)
    for name in found:
        if name not in COMMIT_MODES:
            raise ScenarioError(unknown("mode", name, COMMIT_MODES))
    _require(len(found) > 0 and len(set(found)) == len(found))
    return found


def _factors(value: Any) -> dict[str, float]:
    _require(isinstance(value, Mapping))
    factor = _real(0.01, 1000.0)
    return {_name(host): factor.parse(times) for host, times in value.items()}


def _share(value: Any) -> float:
    _require(type(value) in (int, float) and 0.01 <= value <= 1)
    return float(value)


def _of_preset(otherwise: str) -> Words:
    """Return the default of a key that `transport.preset` sets."""
    return Words(f"the preset's; {otherwise}")


_NAME = ValueKind(ACCEPTED_NAME, _name)
_OWN_NAME = ValueKind(ACCEPTED_NAME, lambda value: _name(value) if value != "" else "")
_FLAG = ValueKind("true or false", _flag)
_FILE = ValueKind("the path of a file, seen from the scenario's folder", _text)
_SIZE = _quantity('a size such as "200 KB"', parse_size)
_LIMIT = _quantity('a size such as "1 MB"; 0 or "unlimited" is no limit', parse_limit)
_TIME = _quantity('a time such as "2 us"', parse_time)
_SHORT_TIME = _quantity('a time such as "20 us", up to "100 ms"', parse_time, most=100 * PS_PER_MS)
_TIME_ABOVE_0 = _quantity('a time such as "10 ms"', parse_time, least=1)
_RATE = _quantity('a rate such as "10 Gbps"', parse_rate)
_RATE_ABOVE_0 = _quantity('a rate such as "10 Gbps"', parse_rate, least=1)
_SHARE = ValueKind("a number from 0.01 to 1", _share)
_COUNT = _whole(1, MOST_HOSTS)
_MODEL = ValueKind("one of " + ", ".join(models.names()), _model)

#: The policies that are compared where nobody names any: in predictions, and in runs those that every target can do.
USUAL_POLICIES = ("fifo", "p3", "tensorexpress", "ideal")
USUAL_IN_RUNS = ("fifo", "tensorexpress")

#: Every key of every section; "" is the top of the file.
SECTIONS: Mapping[str, Mapping[str, Key]] = {
    "": {
        "name": Key("name", _OWN_NAME, Words("the file's name"), "what the results are headed with"),
        "seed": Key("seed", _whole(0, 2**31 - 1), 1, "same seed, same result"),
        "iterations": Key("iterations", _whole(1, 1000), 2, "training iterations measured"),
        "warmup": Key("warmup", _whole(0, 1000), 1, "iterations before those, not measured"),
        "policies": Key(
            "policies",
            ValueKind('a list of policies such as ["fifo", "p3:switch=strict"]', _policies),
            Words(f"{json.dumps(USUAL_POLICIES)}; run: {json.dumps(USUAL_IN_RUNS)}"),
            "what to compare; see policies.md",
        ),
        "loss": Key("loss", _real(0.0, 1.0), 0.0, "probability that a packet is lost on a link"),
    },
    "cluster": {
        "topology": Key("topology", _one_of("topology", TOPOLOGIES), "star", "how hosts and switches are joined"),
        "bandwidth": Key("bandwidth", _RATE_ABOVE_0, "10 Gbps", "rate of a link in each direction"),
        "send_rate": Key("send_rate", _RATE, 0, "most that a host sends; 0 is what its link carries"),
        "receive_rate": Key("receive_rate", _RATE, 0, "most that reaches a host; 0 is what its link carries"),
        "delay": Key("delay", _TIME, Words('"1 us"; p4: 0'), "propagation delay of a link"),
        "mtu": Key("mtu", _whole(64, 65535), 9000, "bytes of the largest IP packet"),
        "buffer": Key("buffer", _LIMIT, "16 MB", "bytes that a switch port can hold"),
        "queues": Key("queues", _whole(1, 32), 8, "priority queues of a switch port"),
        "switch_memory": Key("switch_memory", _LIMIT, "1 MB", "bytes that a switch has for sums; aggregation.md"),
        "switch_rate": Key(
            "switch_rate", _RATE, 0, "what a switch takes in to sum; 0 is no limit; placement.md; prediction only"
        ),
        "hosts": Key(
            "hosts", _hosts(1), Words("star: as many as needed"), "star: how many; custom: their names (required)"
        ),
        "left": Key("left", _COUNT, 8, "dumbbell: hosts at the first switch"),
        "right": Key("right", _COUNT, 8, "dumbbell: hosts at the second switch"),
        "bottleneck": Key(
            "bottleneck", _RATE_ABOVE_0, Words("`bandwidth`"), "dumbbell: rate of the link between the switches"
        ),
        "leaves": Key("leaves", _COUNT, 4, "leaf-spine: leaf switches"),
        "spines": Key("spines", _COUNT, 2, "leaf-spine: spine switches"),
        "hosts_per_leaf": Key("hosts_per_leaf", _COUNT, 4, "leaf-spine: hosts at each leaf"),
        "oversubscription": Key(
            "oversubscription", _real(0.01, 1000.0), 1.0, "leaf-spine: rate of a leaf's hosts over that of its uplinks"
        ),
        "k": Key("k", _whole(2, 72), 4, "fat-tree: ports of a switch, an even number; there are k³/4 hosts"),
        "switches": Key("switches", ValueKind("a list of names", _names), [], "custom: their names"),
        "links": Key(
            "links",
            ValueKind('a list of links such as ["h0", "s0"] or ["h1", "s0", "25 Gbps", "2 us"]', _list),
            Words("custom: required"),
            "custom: the two ends, then bandwidth, delay and bandwidth back where they differ from those above",
        ),
        "file": Key("path", _FILE, Words("p4: required"), "p4: a `topology.json` of the P4 tutorials"),
    },
    "job": {
        "name": Key("name", _OWN_NAME, Words("job0, job1, ..."), "what the results call it"),
        "model": Key("model", _MODEL, "resnet50", "a model of the zoo, in any usual spelling of its name"),
        "csv": Key("csv", _FILE, "", "layers and their times, in place of `model` and `device`"),
        "torch": Key(
            "torch",
            ValueKind("FILE.py:FUNCTION or MODULE:FUNCTION, beside the scenario", _text),
            "",
            "a PyTorch model, which is profiled once, in place of `model` and `device`; it is run: profile.md",
        ),
        "batch": Key("batch", _whole(1, LARGEST_BATCH), Words("the model's own"), "samples per worker and iteration"),
        "device": Key(
            "device", _one_of("device", models.DEVICES), Words("v100; a100 if `dtype` is bf16 or tf32"), "what computes"
        ),
        "dtype": Key(
            "dtype",
            _one_of("dtype", DTYPE_BYTES),
            Words("tf32 where the device has it, else fp32"),
            "what is computed in, which gives the rate and the bytes of gradients; tf32 only computes",
        ),
        "samples_per_second": Key(
            "samples_per_second",
            _real(0.0, MOST_SAMPLES_PER_SECOND),
            0,
            "throughput of one worker alone, to which all times of layers are scaled; 0: by the device's rates",
        ),
        "compression": Key(
            "compression",
            _real(1.0, LARGEST_COMPRESSION),
            1,
            "how many times smaller gradients and parameters travel",
        ),
        "compression_rate": Key(
            "compression_rate_bps",
            _RATE,
            0,
            "rate at which a worker compresses, and decompresses, as a part of its computing; 0 is at once",
        ),
        "workers": Key("workers", _hosts(1), 8, "hosts that compute"),
        "servers": Key(
            "servers",
            _hosts(0),
            Words("4; colocated: one per worker; async: 1; others than ps: 0"),
            "hosts that sum the gradients",
        ),
        "colocated": Key("colocated", _FLAG, False, "servers share the hosts of workers, from the first on"),
        "architecture": Key(
            "architecture",
            _one_of("architecture", ALL_ARCHITECTURES),
            "ps",
            "parameter servers; all-reduce in a ring or in two trees; sharded parameters (FSDP, ZeRO-3) in rings; or "
            "a server and workers that are not in step",
        ),
        "bucket": Key(
            "bucket_bytes", _SIZE, 0, "layers share tensors of this size, as in PyTorch's DDP (25 MiB); 0: one for each"
        ),
        "prefetch": Key("prefetch", _whole(0, 1000), 1, "fsdp: how many layers ahead parameters may be gathered"),
        "forward_only": Key("forward_only", _FLAG, False, "inference: parameters are pulled, and nothing is trained"),
        "shard": Key("shard_bytes", _SIZE, "1 MB", "tensors from this size on are split over all servers"),
        "hot_rows": Key(
            "hot_rows",
            ValueKind(f"auto, or a whole number from 0 to {MOST_KEYS}", _hot_rows),
            "auto",
            "the hottest rows of every sparse table, which switches sum under policies that have them sum; auto: as "
            "many as leave least on links; sparse.md",
        ),
        "sum_rate": Key("sum_rate_bps", _RATE, 0, "rate at which a server sums; 0 is at once"),
        "start": Key("start_ps", _TIME, 0, "when the first iteration starts"),
        "gpus_per_host": Key("gpus_per_host", _whole(1, 64), 1, "GPUs of every host, each of them a worker"),
        "local_rate": Key("local_rate_bps", _RATE, 0, "rate at which GPUs of one host sum and share; 0 is at once"),
        "add_rate": Key(
            "add_rate_bps", _RATE, 0, "rate at which a host adds gradients that come in, one by one; 0 is at once"
        ),
        "update_rate": Key(
            "update_rate_bps", _RATE, 0, "rate at which a server updates parameters, one by one; 0 is at once"
        ),
        "overhead": Key(
            "overhead_ps", _TIME, Words("0; torch: as profiled"), "what an iteration takes before its first layer"
        ),
        "barrier": Key("barrier", _FLAG, False, "true: a worker's iteration starts when it has all parameters"),
    },
    "commits": {
        "tau": Key(
            "tau",
            _whole(0, 10**6),
            Words("twice the workers"),
            "most versions that may be committed between an update's model and its commit; modes from bounded on",
        ),
        "helpers": Key("helpers", _hosts(0), Words("2"), "idle hosts that sum updates on their way; mode aggregate"),
        "replicas": Key("replicas", _hosts(0), Words("1"), "servers that follow the first, at most one; mode mlfabric"),
        "divergence": Key(
            "divergence", _real(0.0, 1e6), 8, "norms of updates that a replica may lack, in that of the first one"
        ),
        "pause": Key("pause_ps", _TIME, 0, "most that a worker is held up before an update, drawn from 0 on"),
        "problem": Key("problem", _one_of("problem", PROBLEMS), "logistic", "what is learned, in place of the model"),
        "learning_rate": Key("learning_rate", _real(0.0, 1e6), Words("the problem's own"), "step of an update"),
        "target_loss": Key("target_loss", _real(0.0, 1e6), Words("the problem's own"), "loss at which all is learned"),
        "server_fails": Key(
            "server_fails_ps", _TIME, 0, "when the server fails: its replica takes over, or all begins again; 0: never"
        ),
        "updates": Key("updates", _whole(1, 10**6), 5000, "updates computed at the most"),
        "modes": Key(
            "modes",
            ValueKind("a list of " + ", ".join(COMMIT_MODES), _modes),
            Words("all that helpers and replicas allow"),
            "what to compare; see asynchronous.md",
        ),
    },
    "transport": {
        "window": Key("window_bytes", _LIMIT, "128 KB", "most bytes a flow may have unacknowledged"),
        "initial_window": Key("initial_window_bytes", _SIZE, 0, "window at the start; 0 is the whole window"),
        "ack_every": Key("ack_every", _whole(1, 1000), 4, "packets per acknowledgement"),
        "acks": Key("acks", _FLAG, True, "false sends none, for lossless studies against closed forms"),
        "rto_min": Key("rto_min_ps", _TIME_ABOVE_0, "5 ms", "least time-out: a flow then probes for what was lost"),
        "ecn": Key("ecn_bytes", _SIZE, 0, "bytes in a queue from which packets are marked; 0 is off"),
        "header": Key(
            "header_bytes",
            _whole(0, 1000),
            SEGMENT_OVERHEAD_BYTES,
            "bytes of a packet on the wire that are not tensor; `run` takes only the default",
        ),
        "ack_size": Key(
            "ack_bytes",
            _whole(1, 9000),
            SEGMENT_OVERHEAD_BYTES,
            "bytes of an acknowledgement on the wire; `run` takes only the default",
        ),
        "preset": Key(
            "preset", _one_of("preset", PRESETS), "none", "measured values of the four keys below; software-path.md"
        ),
        "rate_share": Key(
            "rate_share", _SHARE, _of_preset("1.0"), "what the stack reaches of a host's link; prediction only"
        ),
        "stack_rate": Key(
            "stack_rate_bps", _RATE, _of_preset("0"), "most that the stack reaches; 0 is no limit; prediction only"
        ),
        "copy_rate": Key(
            "copy_rate_bps",
            _RATE,
            _of_preset("0"),
            "rate at which a host copies a message, each way; 0 is at once; prediction only",
        ),
        "message_cost": Key(
            "message_ps",
            _SHORT_TIME,
            _of_preset("0"),
            "what a message costs a host beside that, each way; prediction only",
        ),
    },
    "compute": {
        "jitter": Key("jitter", _real(0.0, 1.0), 0.0, "relative standard deviation of compute times"),
        "stragglers": Key(
            "stragglers",
            ValueKind("a table of workers with factors from 0.01 to below 1000, such as { h0 = 1.5 }", _factors),
            {},
            "how many times slower some workers compute",
        ),
    },
    "background": {
        "src": Key("src", _NAME, REQUIRED, "host that sends"),
        "dst": Key("dst", _NAME, REQUIRED, "host that receives"),
        "rate": Key("rate_bps", _RATE_ABOVE_0, REQUIRED, "mean rate"),
        "packet": Key("packet_bytes", _whole(1, 65535), 1500, "bytes of an IP packet"),
        "pattern": Key("pattern", _one_of("pattern", ["constant", "poisson"]), "poisson", "gaps between packets"),
        "at": Key("at_ps", _TIME, 0, "when it begins"),
        "until": Key("until_ps", _TIME_ABOVE_0, Words("the end"), "when it ends"),
    },
    "change": {
        "at": Key("at_ps", _TIME, 0, "when it begins"),
        "until": Key("until_ps", _TIME_ABOVE_0, Words("the end"), "when it ends, and all is as before"),
        "link": Key(
            "links",
            ValueKind('two nodes that are joined, such as "h0-s0", or "h0>s0" for one direction', _text),
            Words("no link"),
            "link whose rate changes",
        ),
        "rate": Key(
            "rate_bps", _RATE_ABOVE_0, Words("by `share`"), "its rate meanwhile, in each of the directions named"
        ),
        "share": Key("share", _SHARE, Words("by `rate`"), "which share of its own rate it has meanwhile"),
        "worker": Key("worker", _NAME, Words("no worker"), "host whose workers compute slower, or faster"),
        "factor": Key("factor", _real(0.01, 1000.0), Words("required for `worker`"), "how many times slower meanwhile"),
        "at_iteration": Key(
            "at_iteration", _whole(0, 1999), Words("by `at`"), "worker: the first iteration; the warm-up begins with 0"
        ),
        "until_iteration": Key(
            "until_iteration", _whole(1, 2000), Words("the end"), "worker: the first iteration after it"
        ),
    },
}


class KeyRow(NamedTuple):
    """A key as the documentation lists it."""

    path: str
    accepted: str
    default: str
    help: str


def keys() -> tuple[KeyRow, ...]:
    """Return every key that a scenario may have.

    >>> next(row for row in keys() if row.path == "cluster.bandwidth").default
    '"10 Gbps"'
    """
    return tuple(row for section in SECTIONS for row in _section_keys(section))


def keys_table(section: str) -> str:
    """Return the keys of a section as the Markdown table in docs/scenario.md; "" is the top of the file."""
    rows = [f"| `{row.path}` | {row.accepted} | {row.default} | {row.help} |" for row in _section_keys(section)]
    return "\n".join(["| key | value | default | meaning |", "|---|---|---|---|", *rows])


def _section_keys(section: str) -> list[KeyRow]:
    def written(default: object) -> str:
        return str(default) if isinstance(default, Words) else json.dumps(default)

    return [
        KeyRow(join(section, name), key.kind.accepted, written(key.default), key.help)
        for name, key in SECTIONS[section].items()
    ]


def join(section: str, name: str) -> str:
    """Return the path of a key in a section."""
    return f"{section}.{name}" if section else name
