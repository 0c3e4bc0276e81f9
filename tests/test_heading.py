"""The first line of a result names every key that is not as in the default scenario."""

import doctest

import pytest

from tensorexpress.results import heading as module
from tensorexpress.results.heading import JOB_LINE, changes, heading
from tensorexpress.scaling import scale_scenario
from tensorexpress.scenario import read_scenario
from tensorexpress.scenario_keys import keys

USUAL = "default: star, 12 hosts, 10 Gbps, 1 us, MTU 9000, 8 queues"
BACKGROUND = ("background.0.src=h0", "background.0.dst=h1", "background.0.rate=1 Gbps")

#: Key -> an override of it, and what the line then says of it; None: it is in what the cluster is described with.
SAID = {
    "name": ("mine", "mine: star"),
    "seed": ("7", "seed=7"),
    "iterations": ("9", "iterations=9"),
    "warmup": ("0", "warmup=0"),
    "loss": ("0.01", "loss=0.01"),
    "cluster.bandwidth": ("25 Gbps", "25 Gbps"),
    "cluster.delay": ("3 us", "3 us"),
    "cluster.send_rate": ("4 Gbps", "4 Gbps to 10 Gbps"),
    "cluster.receive_rate": ("4 Gbps", "4 Gbps to 10 Gbps"),
    "cluster.mtu": ("1500", "MTU 1500"),
    "cluster.buffer": ("2 MB", "cluster.buffer=2 MB"),
    "cluster.queues": ("4", "4 queues"),
    "cluster.switch_memory": ("2 MB", "cluster.switch_memory=2 MB"),
    "cluster.switch_rate": ("5 Gbps", "cluster.switch_rate=5 Gbps"),
    "cluster.hosts": ("20", "20 hosts"),
    "job.name": ("vision", "job.name=vision"),
    "job.model": ("vgg16", "job.model=vgg16"),
    "job.batch": ("8", "job.batch=8"),
    "job.device": ("a100", "job.device=a100"),
    "job.dtype": ("fp16", "job.dtype=fp16"),
    "job.samples_per_second": ("432", "job.samples_per_second=432"),
    "job.compression": ("4", "job.compression=4"),
    "job.compression_rate": ("80 Gbps", "job.compression_rate=80 Gbps"),
    "job.workers": ("4", "job.workers=4"),
    "job.servers": ("2", "job.servers=2"),
    "job.colocated": ("true", "job.colocated=true"),
    "job.architecture": ("ring", "job.architecture=ring"),
    "job.bucket": ("10 MB", "job.bucket=10 MB"),
    "job.prefetch": ("2", "job.prefetch=2"),
    "job.forward_only": ("true", "job.forward_only=true"),
    "job.shard": ("2 MB", "job.shard=2 MB"),
    "job.sum_rate": ("9 Gbps", "job.sum_rate=9 Gbps"),
    "job.start": ("5 ms", "job.start=5 ms"),
    "job.gpus_per_host": ("4", "job.gpus_per_host=4"),
    "job.local_rate": ("300 Gbps", "job.local_rate=300 Gbps"),
    "job.add_rate": ("9 Gbps", "job.add_rate=9 Gbps"),
    "job.update_rate": ("9 Gbps", "job.update_rate=9 Gbps"),
    "job.overhead": ("5 ms", "job.overhead=5 ms"),
    "job.barrier": ("true", "job.barrier=true"),
    "job.hot_rows": ("0", "job.hot_rows=0"),
    "commits.tau": ("20", "commits.tau=20"),
    "commits.divergence": ("2.5", "commits.divergence=2.5"),
    "commits.pause": ("500 ms", "commits.pause=500 ms"),
    "commits.problem": ("network", "commits.problem=network"),
    "commits.learning_rate": ("0.25", "commits.learning_rate=0.25"),
    "commits.target_loss": ("0.5", "commits.target_loss=0.5"),
    "commits.server_fails": ("10 s", "commits.server_fails=10 s"),
    "commits.updates": ("100", "commits.updates=100"),
    "commits.modes": ("sync,fifo", "commits.modes=sync,fifo"),
    "transport.preset": ("grpc", "transport.copy_rate=8.6 Gbps, transport.message_cost=100 us"),
    "transport.rate_share": ("0.9", "transport.rate_share=0.9"),
    "transport.stack_rate": ("9 Gbps", "transport.stack_rate=9 Gbps"),
    "transport.copy_rate": ("20 Gbps", "transport.copy_rate=20 Gbps"),
    "transport.message_cost": ("20 us", "transport.message_cost=20 us"),
    "transport.window": ("256 KB", "transport.window=256 KB"),
    "transport.initial_window": ("64 KB", "transport.initial_window=64 KB"),
    "transport.ack_every": ("2", "transport.ack_every=2"),
    "transport.rto_min": ("1 s", "transport.rto_min=1 s"),
    "transport.ecn": ("64 KB", "transport.ecn=64 KB"),
    "transport.header": ("100", "transport.header=100"),
    "transport.ack_size": ("200", "transport.ack_size=200"),
    "compute.jitter": ("0.1", "compute.jitter=0.1"),
    "compute.stragglers": ("{h0 = 1.5}", "compute.stragglers.h0=1.5"),
}

#: Said with another key, by what a cluster is described with, or by the table itself.
ELSEWHERE = {
    "policies", "job.csv", "job.torch", "commits.helpers", "commits.replicas", "transport.acks",
    "cluster.topology", "cluster.left", "cluster.right", "cluster.bottleneck", "cluster.leaves", "cluster.spines",
    "cluster.hosts_per_leaf", "cluster.oversubscription", "cluster.k", "cluster.switches", "cluster.links",
    "cluster.file", "background.src", "background.dst", "background.rate", "background.packet", "background.pattern",
    "background.at", "background.until", "change.at", "change.until", "change.link", "change.rate", "change.share",
    "change.worker", "change.factor", "change.at_iteration", "change.until_iteration",
}  # fmt: skip


def test_the_default_scenario_says_nothing_more():
    assert heading(read_scenario()) == USUAL


def test_every_key_is_thought_of():
    assert set(SAID) | ELSEWHERE == {row.path for row in keys()}


@pytest.mark.parametrize("key", SAID)
def test_a_key_that_differs_is_named(key):
    value, said = SAID[key]
    assert said in heading(read_scenario(None, [f"{key}={value}"]))


def test_keys_that_another_line_says_are_left_out():
    inputs = read_scenario(None, ["job.model=vgg16", "job.workers=4", "job.batch=3"])
    assert heading(inputs, said=JOB_LINE).endswith("8 queues; job.batch=3")


def test_jobs_are_told_apart_only_where_they_differ(tmp_path):
    (tmp_path / "mine.csv").write_text("layer_index,numel,forward_ns,backward_ns\n0,5,1,1\n")
    shown = ("job.0.start=1 ms", "job.1.start=2 ms", "job.shard=2 MB", "job.1.model=", f"job.1.csv={tmp_path}/mine.csv")
    found = changes(read_scenario(None, ["job.1.workers=8", *shown]))
    assert found == {"job.shard": "2 MB", "job.0.start": "1 ms", "job.1.start": "2 ms", "job.1.csv": "mine"}


def test_a_job_that_is_not_in_step_says_what_differs_from_such_a_job():
    asynchronous = "job.architecture=async"
    assert changes(read_scenario(None, [asynchronous])) == {"job.architecture": "async"}
    keys = ("job.workers=4", "commits.tau=8", "commits.helpers=3", "commits.replicas=0")
    found = changes(read_scenario(None, [asynchronous, *keys]))
    said = {"job.workers": "4", "job.architecture": "async", "commits.helpers": "3", "commits.replicas": "0"}
    assert found == said


def test_changes_and_bursts_are_named_with_their_times():
    link = ("change.0.link=s0>h1", "change.0.share=0.25", "change.0.at=1 s", "change.0.until=3 s")
    worker = ("change.1.worker=h2", "change.1.factor=1.5", "change.1.at_iteration=1", "change.1.until_iteration=2")
    burst = (*BACKGROUND, "background.0.until=2 ms")
    said = (
        "background.0=h0 to h1, 1 Gbps from the start until 2 ms, change.0=s0>h1 at 0.25 of its rate from 1 s until "
        "3 s, change.1=h2 1.5 times slower from iteration 1 until 2"
    )
    assert heading(read_scenario(None, [*burst, *link, *worker])) == f"{USUAL}; {said}"


def test_traffic_and_slow_motion_are_named():
    assert heading(read_scenario(None, BACKGROUND)).endswith("background.0=h0 to h1, 1 Gbps")
    assert "job.compute=10x" in heading(scale_scenario(read_scenario(), 10))


@pytest.mark.parametrize(
    "keys",
    [
        ("job.device=a100", "job.dtype=bf16"),
        ("job.device=a100", "job.dtype=fp16", "job.compression=2.5"),
        ("job.model=vgg16", "job.batch=32", "job.device=h100", "job.samples_per_second=1234.5"),
        ("job.dtype=fp16", "job.samples_per_second=1276", "job.compression=8", "job.compression_rate=1 Tbps"),
    ],
)
def test_all_that_makes_a_workload_is_named_and_nothing_else(keys):
    assert heading(read_scenario(None, keys)) == f"{USUAL}; {', '.join(keys)}"


def test_a_measured_workload_is_named_with_what_its_file_cannot_say(tmp_path):
    (tmp_path / "mine.csv").write_text("layer_index,numel,forward_ns,backward_ns\n0,5,1,1\n")
    keys = ("job.model=", f"job.csv={tmp_path}/mine.csv", "job.batch=8", "job.dtype=bf16")
    assert changes(read_scenario(None, keys)) == {"job.csv": "mine", "job.batch": "8", "job.dtype": "bf16"}


def test_examples_in_docstrings():
    assert doctest.testmod(module).failed == 0
