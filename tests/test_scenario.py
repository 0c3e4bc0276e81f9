from __future__ import annotations

import contextlib
import doctest
import json
import re
import tomllib
from collections.abc import Sequence
from contextlib import chdir
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.thorough import examples

from tensorexpress import models, scenario, scenario_document, scenario_keys
from tensorexpress.commits.settings import CommitSettings
from tensorexpress.errors import InputError, ScenarioError
from tensorexpress.policy import POLICIES
from tensorexpress.scenario import (
    Background,
    Change,
    Job,
    Scenario,
    Study,
    Transport,
    make_scenario,
    read_scenario,
    read_study,
    scenario_from,
    to_json,
)
from tensorexpress.scenario_keys import SECTIONS, Words, keys, keys_table
from tensorexpress.topologies import TOPOLOGIES, star
from tensorexpress.workload import Layer, Workload

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.toml"))
DOC = ROOT / "docs" / "scenario.md"
CSV = "layer_index,numel,forward_ns,backward_ns\n0,1000,10,20\n1,2000,10,20\n"
NO_ACKS = {"transport": {"acks": False, "window": 0}, "cluster": {"buffer": "unlimited"}}


def refusal(content: object, *overrides: str) -> str:
    """Return the one-line message with which a scenario is refused."""
    with pytest.raises(ScenarioError) as error:
        scenario_from(content, "cluster.toml", overrides)
    message = str(error.value)
    assert message.isprintable()
    return message


def file_refusal(path: Path | str, content: bytes | None = None) -> str:
    if content is not None:
        Path(path).write_bytes(content)
    with pytest.raises(ScenarioError) as error:
        read_scenario(path)
    assert str(error.value).isprintable()
    return str(error.value)


def hosts_of(job: Job) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return job.workers, job.servers


@pytest.mark.parametrize("module", [scenario, scenario_keys, scenario_document])
def test_docstring_examples_hold(module):
    assert doctest.testmod(module).failed == 0


class TestDefault:
    def test_is_resnet50_on_a_10_gbps_star_with_8_workers_and_4_servers(self):
        default = read_scenario()
        (job,) = default.jobs
        assert job.workload == models.load("resnet50", batch=64, device="v100")
        assert (job.workers, job.servers) == (tuple(range(8)), (8, 9, 10, 11))
        assert {link.rate_bps for link in default.cluster.links} == {10**10}

    def test_is_the_example_resnet50_star(self):
        example = read_scenario(ROOT / "examples" / "resnet50-star.toml")
        assert replace(read_scenario(), name="resnet50-star") == example

    def test_values_of_keys_are_those_of_the_dataclasses(self):
        default = read_scenario()
        assert default.transport == Transport()
        bare = Scenario(default.name, default.cluster, default.jobs)
        assert default == bare
        (job,) = default.jobs
        assert job == Job(job.name, job.workload, job.workers, job.servers)
        traffic = {"src": "h0", "dst": "h1", "rate": "1 Gbps"}
        assert scenario_from({"background": traffic}, "x").background == (Background(0, 1, 10**9),)


class TestKeys:
    def test_every_row_names_a_field_that_exists(self):
        owners = {"": Scenario, "transport": Transport, "compute": Scenario, "background": Background, "change": Change}
        owners["commits"] = CommitSettings
        for section, owner in owners.items():
            known = {field.name for field in fields(owner)} | set(Study._fields)
            # A preset becomes the values of other keys.
            assert {key.field for key in SECTIONS[section].values()} - {"preset"} <= known

    def test_every_field_of_the_transport_can_be_set(self):
        keyed = {key.field for key in SECTIONS["transport"].values()} - {"preset"}
        assert keyed == {field.name for field in fields(Transport)}

    def test_every_default_is_accepted_when_written_out(self):
        written: dict[str, dict[str, object]] = {}
        for section in ("", "job", "commits", "transport", "compute"):
            rows = {n: k.default for n, k in SECTIONS[section].items() if not isinstance(k.default, Words)}
            written.update({section: rows} if section else rows)
        assert scenario_from(written, "default") == read_scenario()

    def test_no_key_is_listed_twice_and_every_one_has_a_meaning(self):
        rows = keys()
        assert len({row.path for row in rows}) == len(rows) == sum(map(len, SECTIONS.values()))
        assert all(row.accepted and row.default and row.help and "|" not in "".join(row) for row in rows)

    @pytest.mark.parametrize("section", SECTIONS)
    def test_the_documentation_holds_the_table_of_each_section(self, section):
        assert f"\n{keys_table(section)}\n\n" in DOC.read_text(encoding="utf-8")

    def test_the_documentation_lists_no_other_key(self):
        listed = re.findall(r"^\| `([a-z_.]+)` \|", DOC.read_text(encoding="utf-8"), re.MULTILINE)
        assert listed == [row.path for row in keys()]


class TestDocumentation:
    def test_every_toml_block_is_a_scenario(self):
        blocks = re.findall(r"```toml\n(.*?)```", DOC.read_text(encoding="utf-8"), re.DOTALL)
        assert blocks
        for block in blocks:
            scenario_from(tomllib.loads(block), "docs/scenario.md")

    def test_python_examples_hold(self):
        for page in (DOC, ROOT / "docs" / "policies.md"):
            assert doctest.testfile(str(page), module_relative=False).failed == 0

    def test_policies_page_lists_the_policies_with_their_choices(self):
        page = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
        for policy in POLICIES.values():
            size = {0: "whole", 32_000: "32 KB", 200_000: "200 KB", 1_000_000: "1 MB"}[policy.slice_bytes]
            credit = {0: "none", 4_000_000: "4 MB"}[policy.credit_bytes]
            row = f"| `{policy.name}` | {size} | {policy.host_order} | {credit} | {policy.discipline} |"
            assert row in page


class TestExamples:
    @pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
    def test_loads_and_says_on_top_what_question_it_answers(self, path):
        loaded = read_scenario(path)
        assert loaded.name == path.stem
        comment = "".join(line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#"))
        assert "?" in comment or "Compare" in comment
        json.dumps(to_json(loaded))

    def test_cover_what_they_are_named_for(self):
        loaded = {path.stem: read_scenario(path) for path in EXAMPLES}
        assert loaded["bert-ring"].jobs[0].architecture == "ring"
        assert {link.rate_bps for link in loaded["vgg16-25g"].cluster.links} == {25 * 10**9}
        named = read_study(ROOT / "examples" / "two-jobs.toml").policies
        assert {policy.queue_map for policy in named} >= {"fewest", "slack"}
        assert len(loaded["two-jobs"].jobs) == 2
        assert loaded["stragglers-background"].background
        assert loaded["stragglers-background"].stragglers
        assert loaded["leaf-spine"].cluster.name == "leaf-spine"
        assert set(loaded["colocated"].jobs[0].servers) <= set(loaded["colocated"].jobs[0].workers)


class TestFiles:
    def test_a_missing_file(self, tmp_path):
        path = tmp_path / "no.toml"
        assert file_refusal(path) == f"{path}: cannot be read (No such file or directory); accepted: a scenario in TOML"

    def test_a_directory(self, tmp_path):
        assert "cannot be read (Is a directory)" in file_refusal(tmp_path)

    def test_a_path_no_system_has(self):
        assert "cannot be read (embedded null byte)" in file_refusal("a\0b")

    def test_bytes_that_are_not_utf8_with_their_line(self, tmp_path):
        path = tmp_path / "a.toml"
        assert file_refusal(path, b"seed = 1\nname = '\xff'\n").startswith(f"{path}:2: byte 0xff is not UTF-8")

    def test_a_byte_order_mark_is_no_harm(self, tmp_path):
        path = tmp_path / "a.toml"
        path.write_bytes(b"\xef\xbb\xbfseed = 7\n")
        assert read_scenario(path).seed == 7

    @pytest.mark.parametrize(
        ("content", "line"),
        [(b"seed = 1\n[job\n", 2), (b"seed = 1\nseed = 2\n", 2), (b"seed = \n", 1), (b"[job]\nname = '", 2)],
    )
    def test_toml_syntax_with_its_line(self, tmp_path, content, line):
        path = tmp_path / "a.toml"
        assert file_refusal(path, content).startswith(f"{path}:{line}: not TOML: ")

    def test_an_integer_longer_than_python_reads(self, tmp_path):
        assert "not TOML: Exceeds the limit" in file_refusal(tmp_path / "a.toml", b"seed = " + b"9" * 5000)

    def test_an_integer_longer_than_python_prints(self, tmp_path):
        message = file_refusal(tmp_path / "a.toml", b"seed = 0x" + b"f" * 5000)
        assert "a.toml: seed: found a huge int; accepted: a whole number from 0" in message

    def test_nesting_deeper_than_python_follows(self, tmp_path):
        assert "is nested too deeply" in file_refusal(tmp_path / "a.toml", b"x = " + b"[" * 50_000)

    def test_a_file_too_large_to_be_a_scenario(self, tmp_path):
        assert "is larger than 1000000 bytes" in file_refusal(tmp_path / "a.toml", b"#" * 1_000_001)

    def test_an_empty_file_is_the_default_under_its_own_name(self, tmp_path):
        (tmp_path / "mine.toml").write_text("")
        assert read_scenario(tmp_path / "mine.toml") == replace(read_scenario(), name="mine")

    def test_files_are_sought_beside_the_scenario(self, tmp_path, monkeypatch):
        (tmp_path / "net.csv").write_text(CSV)
        (tmp_path / "a.toml").write_text('[job]\ncsv = "net.csv"\n')
        monkeypatch.chdir(ROOT)
        assert sum(read_scenario(tmp_path / "a.toml").jobs[0].workload.tensor_bytes) == 4 * 3000

    def test_files_on_the_command_line_are_sought_from_here(self, tmp_path, monkeypatch):
        (tmp_path / "there").mkdir()
        (tmp_path / "there" / "a.toml").write_text("")
        (tmp_path / "net.csv").write_text(CSV)
        monkeypatch.chdir(tmp_path)
        assert read_scenario("there/a.toml", ["job.csv=net.csv"]).jobs[0].workload.name == "net"

    def test_a_bad_csv_names_scenario_key_and_csv(self, tmp_path):
        (tmp_path / "net.csv").write_text("what\n")
        message = file_refusal(tmp_path / "a.toml", b'[job]\ncsv = "net.csv"\n')
        assert message.startswith(f"{tmp_path / 'a.toml'}: job.csv: {tmp_path / 'net.csv'}:1: header is 'what'")


class TestUnknownKeys:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ({"sede": 1}, "cluster.toml: unknown key or section 'sede'; did you mean 'seed'? Accepted: background, "),
            ({"jobs": {}}, "cluster.toml: unknown key or section 'jobs'; did you mean 'job'? Accepted: "),
            (
                {"job": {"modle": ""}},
                "cluster.toml: job.modle: unknown key 'modle'; did you mean 'model'? Accepted: add_",
            ),
            ({"job": [{}, {"x": 1}]}, "cluster.toml: job.1.x: unknown key 'x'; Accepted: add_rate, arch"),
            ({"bandwidth": 1}, "cluster.toml: unknown key 'bandwidth'; did you mean cluster.bandwidth?"),
            ({"job": {"loss": 0}}, "cluster.toml: job.loss: unknown key 'loss'; did you mean loss?"),
            ({"job": {"model": "vgg61"}}, "cluster.toml: job.model: unknown model 'vgg61'; did you mean 'vgg19'? Acc"),
            ({"job": {"device": "v10"}}, "cluster.toml: job.device: unknown device 'v10'; did you mean 'v100'? Accept"),
            ({"cluster": {"topology": "ring"}}, "cluster.toml: cluster.topology: unknown topology 'ring'; "),
            ({"policies": ["fifo", "ideel"]}, "cluster.toml: policies: unknown policy 'ideel'; did you mean 'ideal'?"),
            ({"a\nb": 1}, "cluster.toml: unknown key or section 'a\\nb'; Accepted: "),
        ],
    )
    def test_are_named_with_the_nearest_and_all_that_are_accepted(self, content, message):
        assert refusal(content).startswith(message)


class TestValues:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ({"seed": "1"}, "seed: found '1'; accepted: a whole number from 0 to 2147483647"),
            ({"seed": True}, "seed: found True; accepted: a whole number"),
            ({"seed": -1}, "seed: found -1; accepted: a whole number"),
            ({"name": 3}, "name: found 3; accepted: a name"),
            ({"iterations": 0}, "iterations: found 0; accepted: a whole number from 1 to 1000"),
            ({"iterations": 1001}, "iterations: found 1001; accepted: a whole number from 1 to 1000"),
            ({"warmup": 1.5}, "warmup: found 1.5; accepted: a whole number from 0 to 1000"),
            ({"loss": 1.0}, "loss: found 1.0; accepted: a number from 0 to below 1"),
            ({"loss": -0.1}, "loss: found -0.1; accepted: a number from 0 to below 1"),
            ({"loss": float("nan")}, "loss: found nan; accepted: a number from 0 to below 1"),
            ({"policies": []}, "policies: found []; accepted: a list of policies"),
            ({"policies": 3}, "policies: found 3; accepted: a list of policies"),
            ({"policies": ["p3", "p3"]}, "policies: policy 'p3' is given 2 times; accepted: each policy once"),
            ({"policies": ["p3:slice=1 mile"]}, "policies: policy 'p3:slice=1 mile': slice: '1 mile' is not a size"),
            (
                {"policies": ["p3:slice=1 B"]},
                "policies: policy 'p3:slice=1 B' cuts 102228128 bytes into slices of 1; acc",
            ),
            ({"cluster": 3}, "cluster: found 3; accepted: a table of topology, bandwidth"),
            (
                {"cluster": {"bandwidth": "10 Gbsp"}},
                "cluster.bandwidth: '10 Gbsp' is not a rate; accepted: a number and",
            ),
            ({"cluster": {"bandwidth": 0}}, 'cluster.bandwidth: found 0; accepted: a rate such as "10 Gbps" above 0'),
            ({"cluster": {"bandwidth": "-1 Gbps"}}, "cluster.bandwidth: '-1 Gbps' is negative; a rate is zero or more"),
            ({"cluster": {"delay": "1 Gbps"}}, "cluster.delay: '1 Gbps' is not a time; accepted: a number and one of"),
            ({"cluster": {"delay": [1]}}, 'cluster.delay: found [1]; accepted: a time such as "2 us"'),
            ({"cluster": {"mtu": 63}}, "cluster.mtu: found 63; accepted: a whole number from 64 to 65535"),
            ({"cluster": {"mtu": 130}}, "cluster.mtu: found 130; accepted: more than transport.header (130 bytes)"),
            ({"cluster": {"queues": 0}}, "cluster.queues: found 0; accepted: a whole number from 1 to 32"),
            (
                {"cluster": {"buffer": "1 KB"}},
                "cluster.buffer: found 1000 bytes, of which a queue gets 566 at the most; accepted: 0, or at least",
            ),
            ({"cluster": {"buffer": False}}, "cluster.buffer: False is not a size"),
            ({"job": 3}, "job: found 3; accepted: [job], or [[job]] several times"),
            ({"job": []}, "job: found []; accepted: [job], or [[job]] several times"),
            ({"job": [3]}, "job: found 3; accepted: a table of name, model, csv"),
            ({"job": {"batch": 0}}, "job.batch: found 0; accepted: a whole number from 1 to 1000000"),
            (
                {"job": {"workers": 0}},
                "job.workers: found 0; accepted: a count from 1 to 100000, or a list of host names",
            ),
            ({"job": {"workers": []}}, "job.workers: found []; accepted: a count from 1"),
            ({"job": {"workers": 10**9}}, "job.workers: found 1000000000; accepted: a count from 1 to 100000"),
            ({"job": {"workers": [3]}}, "job.workers: found [3]; accepted: a count from 1"),
            ({"job": {"workers": True}}, "job.workers: found True; accepted: a count from 1"),
            ({"job": {"servers": 0}}, "job.servers: found 0 with architecture ps; accepted: 1 or more"),
            (
                {"job": {"architecture": "ring", "servers": 2}},
                "job.servers: found 2 with architecture ring; accepted",
            ),
            (
                {"job": {"architecture": "ring", "workers": 1}},
                "job.workers: found 1 with architecture ring; accepted",
            ),
            (
                {"job": {"architecture": "tree", "workers": 1}},
                "job.workers: found 1 with architecture tree; accepted",
            ),
            (
                {"job": {"architecture": "fsdp", "workers": 1}},
                "job.workers: found 1 with architecture fsdp; accepted",
            ),
            ({"job": {"prefetch": -1}}, "job.prefetch: found -1; accepted: a whole number from 0 to 1000"),
            ({"job": {"bucket": "all"}}, "job.bucket: "),
            (
                {"job": {"architecture": "ring", "forward_only": True}},
                "job.forward_only: found true with architecture ring; accepted: false, or architecture ps",
            ),
            ({"job": {"gpus_per_host": 0}}, "job.gpus_per_host: found 0; accepted: a whole number from 1 to 64"),
            (
                {"job": {"gpus_per_host": 2, "local_rate": "1 Gbps"}},
                "job.local_rate: found 1 Gbps; accepted: 0, or at least the 10 Gbps of the hosts' links",
            ),
            (
                {"job": {"colocated": True, "servers": 9}},
                "job.servers: found 9 on the hosts of 8 workers; accepted: at m",
            ),
            ({"job": {"colocated": "yes"}}, "job.colocated: found 'yes'; accepted: true or false"),
            (
                {"job": {"model": ""}},
                "job.model: found '', no csv and no torch; accepted: a model's name, or one of the two",
            ),
            ({"job": {"model": "vgg16", "csv": "a"}}, "job.csv: found beside model 'vgg16'; accepted: one of the two"),
            ({"job": {"csv": "no.csv"}}, "job.csv: cannot read 'no.csv': No such file or directory; accepted: a CSV"),
            ({"job": [{"name": "a"}, {"name": "a"}]}, "job: 2 jobs are named 'a'; accepted: a name for each"),
            (
                {"transport": {"window": "1 KB"}},
                "transport.window: found 1000 bytes; accepted: 0, or at least a packet",
            ),
            ({"transport": {"rto_min": 0}}, 'transport.rto_min: found 0; accepted: a time such as "10 ms" above 0'),
            ({"transport": {"ack_every": 0}}, "transport.ack_every: found 0; accepted: a whole number from 1"),
            ({"compute": {"jitter": 1.0}}, "compute.jitter: found 1.0; accepted: a number from 0 to below 1"),
            ({"compute": {"jitter": -0.1}}, "compute.jitter: found -0.1; accepted: a number from 0 to below 1"),
            (
                {"compute": {"stragglers": {"h0": 0}}},
                "compute.stragglers: found {'h0': 0}; accepted: a table of workers",
            ),
            (
                {"compute": {"stragglers": {"h9": 2}}},
                "compute.stragglers.h9: host 'h9' is no worker of any job; accepted",
            ),
            ({"compute": {"stragglers": {"x": 2}}}, "compute.stragglers.x: unknown host 'x'; Accepted: h0, h1"),
            ({"background": {"src": "h0"}}, "background.dst: is missing; accepted: a name"),
        ],
    )
    def test_that_cannot_be_are_refused_with_key_found_and_accepted(self, content, message):
        assert refusal(content).startswith(f"cluster.toml: {message}")

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"dst": "h0"}, "dst: found 'h0', which is also src; accepted: another host"),
            ({"dst": "x"}, "dst: unknown host 'x'; Accepted: h0"),
            ({"rate": 0}, 'rate: found 0; accepted: a rate such as "10 Gbps" above 0'),
            ({"packet": 9001}, "packet: found 9001; accepted: at most the mtu of 9000 bytes"),
            ({"pattern": "bursty"}, "pattern: unknown pattern 'bursty'; Accepted: constant, poisson"),
            ({"at": "2 s", "until": "2 s"}, "until: found 2 s; accepted: later than at, 2 s"),
        ],
    )
    def test_of_background_traffic_likewise(self, changes, message):
        traffic = {"src": "h0", "dst": "h1", "rate": "1 Gbps", **changes}
        assert refusal({"background": traffic}).startswith(f"cluster.toml: background.{message}")

    def test_quantities_are_read_in_their_units(self):
        read = scenario_from(
            {
                "cluster": {"bandwidth": "25 Gbps", "delay": "500 ns", "buffer": "unlimited"},
                "job": {"shard": "2 MB", "sum_rate": "40 Gbps", "start": "3 ms"},
                "transport": {"window": "256 KiB", "rto_min": "1 ms", "ecn": "100 KB"},
            },
            "x",
        )
        assert {(link.rate_bps, link.delay_ps) for link in read.cluster.links} == {(25 * 10**9, 500_000)}
        assert read.cluster.buffer_bytes == 0
        (job,) = read.jobs
        assert (job.shard_bytes, job.sum_rate_bps, job.start_ps) == (2_000_000, 40 * 10**9, 3 * 10**9)
        assert read.transport == Transport(window_bytes=2**18, rto_min_ps=10**9, ecn_bytes=100_000)

    def test_models_may_be_written_in_any_usual_spelling(self):
        assert read_scenario(overrides=["job.model=ResNet-50", "job.device=V100"]) == read_scenario()

    def test_without_a_batch_a_model_has_its_own(self):
        assert read_scenario(overrides=["job.model=bert-large"]).jobs[0].workload == models.load("bert-large")


class TestWhatIsComputed:
    def workload(self, *overrides):
        return read_scenario(overrides=overrides).jobs[0].workload

    def test_a_dtype_sets_bytes_and_rates(self):
        full, half = self.workload(), self.workload("job.dtype=fp16")
        assert half == models.load("resnet50", dtype="fp16")
        assert full.tensor_bytes == tuple(2 * size for size in half.tensor_bytes)
        assert full.compute_ps == pytest.approx(half.compute_ps * 28.7 / 8.8, rel=0.01)

    def test_a_device_computes_in_tf32_where_it_can_and_sends_fp32(self):
        usual = self.workload("job.device=a100")
        assert usual == self.workload("job.device=A100", "job.dtype=TF32")
        assert usual.tensor_bytes == self.workload("job.device=a100", "job.dtype=fp32").tensor_bytes

    @pytest.mark.parametrize("keys", [(), ("job.device=h100", "job.dtype=bf16"), ("job.model=vgg16", "job.batch=16")])
    def test_a_throughput_is_what_a_worker_alone_reaches(self, keys):
        before, after = self.workload(*keys), self.workload(*keys, "job.samples_per_second=432")
        assert after.batch * 1e12 / after.compute_ps == pytest.approx(432)
        assert after.tensor_bytes == before.tensor_bytes
        assert after.layers[-1].forward_ps / after.compute_ps == pytest.approx(
            before.layers[-1].forward_ps / before.compute_ps, rel=1e-4
        )

    def test_a_measured_workload_may_have_batch_dtype_and_throughput(self, tmp_path):
        (tmp_path / "net.csv").write_text(CSV)
        net = self.workload(f"job.csv={tmp_path}/net.csv", "job.batch=8", "job.dtype=bf16", "job.samples_per_second=2")
        assert (net.compute_ps, sum(net.tensor_bytes)) == (4 * 10**12, 2 * 3000)

    def test_what_was_measured_had_no_compression(self):
        small = self.workload("job.samples_per_second=64", "job.compression=4", "job.compression_rate=8 Gbps")
        # 102,228,128 bytes at a GB/s, once each way.
        assert small.compute_ps == pytest.approx(10**12 + 2 * 102_228_128_000)
        assert sum(small.tensor_bytes) == 102_228_128 // 4

    @pytest.mark.parametrize(
        "key", ["csv", "batch", "device", "dtype", "samples_per_second", "compression", "compression_rate"]
    )
    def test_a_workload_from_python_says_all_of_it_itself(self, key):
        value = WRITTEN["job"].get(key, ["net.csv"])[0]
        made = Workload("mine", (Layer("a", 1, 1, 1),))
        with pytest.raises(ScenarioError, match=f"job.{key}: found beside a model that is a Workload"):
            make_scenario(job={"model": made, key: value})


class TestWithoutAcks:
    def test_is_accepted_where_nothing_rests_on_them(self):
        assert not scenario_from(NO_ACKS, "x").transport.acks

    @pytest.mark.parametrize(
        ("override", "obstacle"),
        [
            ("loss=0.1", "loss = 0.1; accepted with it: 0"),
            ("transport.window=1 MB", "transport.window = 1000000; accepted with it: 0"),
            ("transport.ecn=1 MB", "transport.ecn = 1000000; accepted with it: 0"),
            ("cluster.buffer=1 MB", "cluster.buffer = 1000000; accepted with it: 0"),
            ("policies=fifo,bytescheduler", "policies = bytescheduler; accepted with it: policies without credit"),
        ],
    )
    def test_is_refused_with_the_setting_that_stands_in_the_way(self, override, obstacle):
        assert refusal(NO_ACKS, override) == f"cluster.toml: transport.acks: false does not go with {obstacle}"


class TestPlacement:
    def test_counts_take_hosts_in_order_job_by_job(self):
        jobs = scenario_from({"job": [{"workers": 2, "servers": 1}, {"workers": 1, "servers": 2}]}, "x").jobs
        assert [hosts_of(job) for job in jobs] == [((0, 1), (2,)), ((3,), (4, 5))]

    def test_counts_pass_over_hosts_that_any_job_names(self):
        jobs = scenario_from({"job": [{"workers": 2, "servers": 1}, {"workers": ["h1"], "servers": ["h9"]}]}, "x").jobs
        assert [hosts_of(job) for job in jobs] == [((0, 2), (3,)), ((1,), (9,))]

    def test_jobs_share_hosts_when_both_name_them(self):
        job = {"workers": ["h0", "h1"], "servers": ["h2"]}
        assert len({hosts_of(job) for job in scenario_from({"job": [job, job]}, "x").jobs}) == 1

    @pytest.mark.parametrize(
        ("job", "key"),
        [
            ({"workers": ["h0", "h0"]}, "workers: host 'h0'"),
            ({"servers": ["h3", "h3"]}, "servers: host 'h3'"),
            ({"workers": ["h0", "h1"], "servers": ["h1"]}, "servers: host 'h1'"),
            ({"workers": ["h0", "h1"], "servers": ["h1", "h1"], "colocated": True}, "servers: host 'h1'"),
        ],
    )
    def test_a_host_named_twice_in_one_job_is_refused(self, job, key):
        assert refusal({"job": job}).startswith(f"cluster.toml: job.{key} is named more than once in one job; accepted")

    def test_colocated_servers_are_on_the_first_workers(self):
        jobs = [{"workers": 4, "servers": 2, "colocated": True}, {"workers": 3, "colocated": True}]
        placed = scenario_from({"job": jobs}, "x")
        assert [hosts_of(job) for job in placed.jobs] == [((0, 1, 2, 3), (0, 1)), ((4, 5, 6), (4, 5, 6))]
        assert len(placed.cluster.hosts) == 7

    def test_a_host_may_be_named_as_worker_and_server_when_colocated(self):
        (job,) = scenario_from({"job": {"workers": ["h0", "h1"], "servers": ["h1"], "colocated": True}}, "x").jobs
        assert hosts_of(job) == ((0, 1), (1,))

    def test_a_ring_has_no_servers(self):
        (job,) = scenario_from({"job": {"architecture": "ring", "workers": 5}}, "x").jobs
        assert hosts_of(job) == ((0, 1, 2, 3, 4), ())

    def test_a_star_grows_to_the_hosts_that_background_names(self):
        traffic = {"src": "h20", "dst": "h3", "rate": "1 Gbps"}
        assert len(scenario_from({"background": traffic}, "x").cluster.hosts) == 21

    @given(
        st.lists(
            st.tuples(st.integers(1, 4) | st.sets(st.integers(0, 12), min_size=1, max_size=3), st.integers(1, 3)),
            min_size=1,
            max_size=3,
        )
    )
    @settings(max_examples=examples(50), deadline=None)
    def test_a_star_by_default_has_room_for_all_and_no_host_too_many(self, jobs):
        tables = [
            {"workers": workers if isinstance(workers, int) else [f"h{i}" for i in sorted(workers)], "servers": servers}
            for workers, servers in jobs
        ]
        placed = scenario_from({"job": tables}, "x")
        used = [host for job in placed.jobs for host in (*job.workers, *job.servers)]
        assert len(placed.cluster.hosts) == max(used) + 1
        counted = [
            host
            for table, job in zip(tables, placed.jobs, strict=True)
            for host in (*(job.workers if isinstance(table["workers"], int) else ()), *job.servers)
        ]
        assert all(used.count(host) == 1 for host in counted)

    @pytest.mark.parametrize(
        ("cluster", "message"),
        [
            ({"hosts": 8}, "cluster.hosts: star has 8 hosts and the jobs need 12; accepted: more hosts, or fewer work"),
            ({"topology": "fat-tree", "k": 2}, "cluster.k: fat-tree has 2 hosts and the jobs need 12;"),
            ({"topology": "leaf-spine", "leaves": 2}, "cluster.leaves: leaf-spine has 8 hosts and the jobs need 12;"),
        ],
    )
    def test_a_cluster_with_too_few_hosts_is_refused_with_both_numbers(self, cluster, message):
        assert refusal({"cluster": cluster}).startswith(f"cluster.toml: {message}")

    def test_hosts_that_are_not_there_are_refused(self):
        assert refusal({"job": {"workers": ["worker1"]}}).startswith(
            "cluster.toml: job.workers: unknown host 'worker1'; Accepted: h0, h1, h2, h3"
        )


class TestClusters:
    @pytest.mark.parametrize(
        ("cluster", "hosts", "links"),
        [
            ({"hosts": 20}, 20, 20),
            ({"topology": "dumbbell", "left": 8, "right": 4, "bottleneck": "1 Gbps"}, 12, 13),
            ({"topology": "leaf-spine", "leaves": 3, "spines": 2, "hosts_per_leaf": 4, "oversubscription": 2}, 12, 18),
            ({"topology": "fat-tree", "k": 4}, 16, 48),
        ],
    )
    def test_every_topology_takes_its_sizes(self, cluster, hosts, links):
        built = scenario_from({"cluster": cluster}, "x").cluster
        assert (built.name, len(built.hosts), len(built.links)) == (cluster.get("topology", "star"), hosts, links)

    @pytest.mark.parametrize("topology", ["star", "dumbbell", "leaf-spine", "fat-tree"])
    def test_the_default_job_fits_every_topology_as_it_is(self, topology):
        assert len(read_scenario(overrides=[f"cluster.topology={topology}"]).cluster.hosts) >= 12

    def test_custom_links_have_their_own_rate_and_delay_or_the_common_one(self):
        cluster = {
            "topology": "custom",
            "hosts": ["a", "b"],
            "switches": ["s"],
            "links": [["a", "s"], ["b", "s", "25 Gbps", "2 us"]],
            "delay": "3 us",
        }
        built = scenario_from({"cluster": cluster, "job": {"workers": ["b"], "servers": ["a"]}}, "x")
        assert [(link.rate_bps, link.delay_ps) for link in built.cluster.links] == [
            (10**10, 3_000_000),
            (25 * 10**9, 2_000_000),
        ]
        assert hosts_of(built.jobs[0]) == ((1,), (0,))

    def test_p4_topologies_are_read_beside_the_scenario(self, tmp_path):
        topology = {"hosts": {"h1": {}, "h2": {}}, "switches": {"s1": {}}, "links": [["h1", "s1-p1"], ["h2", "s1-p2"]]}
        (tmp_path / "topology.json").write_text(json.dumps(topology))
        (tmp_path / "a.toml").write_text(
            '[cluster]\ntopology = "p4"\nfile = "topology.json"\n[job]\nworkers = 1\nservers = 1\n'
        )
        assert read_scenario(tmp_path / "a.toml").cluster.hosts == ("h1", "h2")

    @pytest.mark.parametrize(
        ("cluster", "message"),
        [
            ({"spines": 2}, "cluster.spines: topology 'star' has no 'spines'; accepted: hosts"),
            ({"topology": "fat-tree", "hosts": 16}, "cluster.hosts: topology 'fat-tree' has no 'hosts'; accepted: k"),
            ({"topology": "fat-tree", "k": 3}, "cluster.k: k is 3; accepted: an even number"),
            ({"hosts": ["a"]}, "cluster.hosts: hosts is ('a',); accepted: a whole number from 1 to 100000"),
            ({"topology": "custom"}, "cluster.hosts: is missing for topology 'custom'; accepted: a count from 1"),
            (
                {"topology": "custom", "hosts": ["a"]},
                "cluster.links: is missing for topology 'custom'; accepted: a list",
            ),
            (
                {"topology": "custom", "hosts": ["a"], "links": [["a"]]},
                "cluster: links[0] is ['a']; accepted: [node, node",
            ),
            (
                {"topology": "custom", "hosts": ["a", "b"], "links": []},
                "cluster: host a has no link; join it to a switch",
            ),
            ({"topology": "p4"}, "cluster.file: is missing for topology 'p4'; accepted: the path of a file"),
            (
                {"topology": "p4", "file": "no.json"},
                "cluster.file: no.json: cannot be read (No such file or directory)",
            ),
        ],
    )
    def test_that_cannot_be_are_refused(self, cluster, message):
        assert refusal({"cluster": cluster}).startswith(f"cluster.toml: {message}")


class TestOverrides:
    def test_win_over_the_file_and_the_last_wins(self):
        read = scenario_from({"seed": 1, "job": {"workers": 4}}, "x", ["job.workers=6", "seed=5", "seed=7"])
        assert (read.seed, len(read.jobs[0].workers)) == (7, 6)

    def test_leave_the_document_as_it_was(self):
        content = {"job": [{"workers": 2}], "compute": {"stragglers": {"h0": 2}}}
        before = json.dumps(content)
        scenario_from(content, "x", ["job.workers=3", "compute.stragglers.h1=2"])
        assert json.dumps(content) == before

    def test_values_are_toml_or_else_text(self):
        values = [
            "cluster.bandwidth=25 Gbps",
            'name="a=b"',
            "loss=1e-3",
            'job.workers=["h0", "h1"]',
            "job.servers=h2,h3",
        ]
        read = read_scenario(None, values)
        assert (read.name, read.loss, read.cluster.links[0].rate_bps) == ("a=b", 1e-3, 25 * 10**9)
        assert hosts_of(read.jobs[0]) == ((0, 1), (2, 3))

    def test_without_an_index_apply_to_every_job_and_with_one_to_that_job(self):
        jobs = scenario_from({"job": [{}, {}]}, "x", ["job.workers=3", "job.1.workers=2"]).jobs
        assert [len(job.workers) for job in jobs] == [3, 2]

    def test_with_the_next_index_add_a_table(self):
        settings = ["job.1.model=vgg16", "background.src=h0", "background.dst=h1", "background.0.rate=1 Gbps"]
        read = read_scenario(None, settings)
        assert [job.workload.name for job in read.jobs] == ["resnet50", "vgg16"]
        assert read.background == (Background(0, 1, 10**9),)

    def test_replace_whole_tables(self):
        assert len(read_scenario(None, ["job={workers = 3}"]).jobs[0].workers) == 3

    @pytest.mark.parametrize(
        ("text", "names"),
        [
            ("fifo", ["fifo"]),
            ("fifo,ideal", ["fifo", "ideal"]),
            ("fifo:slice=1 KB,switch=strict,p3", ["fifo:slice=1 KB,switch=strict", "p3"]),
            ("p3,fifo:slice=1 KB,ideal:credit=1 MB", ["p3", "fifo:slice=1 KB", "ideal:credit=1 MB"]),
            ('["p3", "fifo"]', ["p3", "fifo"]),
        ],
    )
    def test_of_policies_need_no_brackets(self, text, names):
        assert [policy.name for policy in read_study(None, [f"policies={text}"]).policies] == names

    def test_of_policies_leave_the_scenario_as_it_is(self):
        assert read_study(None, ["policies=p3"]).scenario == read_study().scenario == read_scenario()
        assert read_study().policies == ()

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("seed", "--set: found 'seed'; accepted: KEY=VALUE such as job.model=vgg16"),
            ("=1", "--set: found '=1'; accepted: KEY=VALUE"),
            ("job..model=1", "--set: found 'job..model=1'; accepted: KEY=VALUE"),
            ("jop.model=vgg16", "--set jop.model: unknown key or section 'jop'; did you mean 'job'?"),
            ("bandwidth=1 Gbps", "--set bandwidth: unknown key 'bandwidth'; did you mean cluster.bandwidth?"),
            ("job.modle=vgg16", "--set job.modle: unknown key 'modle'; did you mean 'model'?"),
            ("job.0.model=vgg61", "--set job.0.model: unknown model 'vgg61'; did you mean 'vgg19'?"),
            ("job.2.model=vgg16", "--set job.2.model: found index 2; accepted: 0 to 1, where 1 adds one"),
            ("job.model.x=1", "--set job.model.x: found {'x': 1}; accepted: one of alexnet"),
            ("cluster.bandwidth=ten", "--set cluster.bandwidth: 'ten' is not a rate; accepted: a number and one of"),
            ("cluster.hosts=3", "--set cluster.hosts: star has 3 hosts and the jobs need 12"),
            ("policies=", "--set policies: unknown policy ''; Accepted: atp, bytescheduler"),
            ("compute.stragglers.h9=2", "--set compute.stragglers.h9: host 'h9' is no worker"),
            ("compute.stragglers.h0=slow", "--set compute.stragglers.h0: found {'h0': 'slow'}; accepted: a table"),
            ("transport.acks=false", "--set transport.acks: false does not go with transport.window = 128000"),
        ],
    )
    def test_that_are_wrong_are_named_as_the_source(self, override, message):
        assert refusal({}, override).startswith(message)

    def test_of_other_keys_are_not_blamed(self):
        assert refusal({"job": {"batch": 0}}, "job.model=vgg16", "seed=2").startswith(
            "cluster.toml: job.batch: found 0"
        )

    def test_into_something_that_is_no_table_are_refused(self):
        message = refusal({"loss": 0.5}, "loss.x=1")
        assert message == "--set loss.x: found 0.5 where 'x' should be a key; accepted: a key of a table"


#: Key -> some values that it takes, as one writes them in a file; what depends on the topology is below.
WRITTEN: dict[str, dict[str, list[Any]]] = {
    "": {"name": ["mine"], "seed": [0, 7], "iterations": [3], "warmup": [0], "loss": [0, 0.01]},
    "job": {
        "name": ["vision"],
        "model": ["vgg16", "ResNet50"],
        "batch": [8],
        "device": ["a100"],
        "dtype": ["fp32"],
        "samples_per_second": [432, 99.5],
        "compression": [1, 4.5],
        "compression_rate": ["100 Gbps", 10**12],
        "workers": [2, ["h0", "h3"], "h0,h3"],
        "servers": [1, ["h4"]],
        "colocated": [False],
        "architecture": ["ps"],
        "bucket": ["25 MiB", 1000],
        "prefetch": [0, 2],
        "forward_only": [False, True],
        "shard": ["2 MB", 5000],
        "sum_rate": ["1 Gbps"],
        "start": ["2 ms", 70],
        "gpus_per_host": [1, 2],
        "local_rate": ["100 Gbps"],
        "add_rate": ["40 Gbps"],
        "update_rate": ["20 Gbps"],
        "overhead": ["3 ms", 5],
        "barrier": [True],
        "hot_rows": ["auto", 0],
    },
    "transport": {
        "window": ["unlimited", 0, "1 MB"],
        "initial_window": ["20 KB"],
        "ack_every": [1],
        "acks": [True],
        "rto_min": ["10 ms"],
        "ecn": ["100 KB"],
        "header": [98],
        "ack_size": [118],
        "preset": ["tcp-kernel", "none"],
        "rate_share": [0.9, 1],
        "stack_rate": ["30 Gbps"],
        "copy_rate": ["20 Gbps", 0],
        "message_cost": ["20 us", 0],
    },
    "commits": {
        "tau": [20],
        "helpers": [1],
        "replicas": [0],
        "divergence": [0, 2.5],
        "pause": ["500 ms"],
        "problem": ["network"],
        "learning_rate": [0.1],
        "target_loss": [0.5],
        "server_fails": ["10 s"],
        "updates": [100],
        "modes": [["sync", "fifo"], "fifo"],
    },
    "compute": {"jitter": [0, 0.1], "stragglers": [{"h0": 1.5}, {"h0": 2}]},
    "background": {
        "src": ["h0"],
        "dst": ["h5"],
        "rate": ["1 Gbps"],
        "packet": [1000],
        "pattern": ["constant"],
        "at": ["1 ms", 0],
        "until": ["2 ms"],
    },
    "change": {
        "at": ["1 ms", 0],
        "until": ["2 ms"],
        "link": ["h0-s0", "h0>s0"],
        "rate": ["1 Gbps"],
        "share": [0.5],
        "worker": ["h0"],
        "factor": [2, 0.5],
        "at_iteration": [0],
        "until_iteration": [1],
    },
}
PORTS: dict[str, list[Any]] = {
    "bandwidth": ["25 Gbps", 10**9],
    "delay": ["3 us", 0],
    "mtu": [1500],
    "buffer": ["unlimited", 0, "2 MB"],
    "queues": [1, 4],
    "send_rate": ["5 Gbps", 0],
    "receive_rate": ["5 Gbps"],
    "switch_memory": ["unlimited", 0, "2 MB"],
    "switch_rate": ["5 Gbps", 0],
}
TOPOLOGY_KEYS: dict[str, dict[str, list[Any]]] = {
    "star": {"hosts": [6, 20]},
    "dumbbell": {"left": [3], "right": [4], "bottleneck": ["5 Gbps"]},
    "leaf-spine": {"leaves": [3], "spines": [2], "hosts_per_leaf": [3], "oversubscription": [2, 0.5]},
    "fat-tree": {"k": [4]},
    "custom": {
        "hosts": [[f"h{index}" for index in range(6)]],
        "switches": [["s0"]],
        "links": [[["h0", "s0", "25 Gbps", "2 us"], *([f"h{index}", "s0"] for index in range(1, 6))]],
    },
    "p4": {"file": ["topology.json"]},
}


#: Keys of a change that go together, the first two always.
CHANGES = (
    ("link", "rate", "at", "until"),
    ("link", "share", "at", "until"),
    ("worker", "factor", "at", "until"),
    ("worker", "factor", "at_iteration", "until_iteration"),
)


def test_every_key_is_written_in_both_languages():
    written = {section: set(values) for section, values in WRITTEN.items()}
    written["cluster"] = {"topology", *PORTS, *(key for own in TOPOLOGY_KEYS.values() for key in own)}
    written[""].add("policies")  # no part of a scenario
    written["job"] |= {"csv", "torch"}  # instead of a model
    assert written == {section: set(rows) for section, rows in SECTIONS.items()}


def in_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {in_toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(in_toml, value)) + "]"
    return json.dumps(value)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Some keys of every section, with some of their values; the ends of background traffic are always there."""

    def some(values: dict[str, list[Any]], least: Sequence[str] = ()) -> dict[str, Any]:
        chosen = [key for key in values if key in least or draw(st.booleans())]
        return {key: draw(st.sampled_from(values[key])) for key in chosen}

    topology = draw(st.sampled_from(sorted(TOPOLOGY_KEYS)))
    own = TOPOLOGY_KEYS[topology]
    document = some(WRITTEN[""])
    document["cluster"] = {"topology": topology, **some(PORTS), **some(own, least=[*own])}
    document["job"] = [some(WRITTEN["job"], least=["workers", "servers"])]
    if draw(st.booleans()):
        document["job"] = {**document["job"][0], "model": "", "csv": "layers.csv", "batch": 8}
        document["job"].pop("device", None)
    document |= {section: some(WRITTEN[section]) for section in ("transport", "compute")}
    if draw(st.booleans()):
        document["background"] = some(WRITTEN["background"], least=["src", "dst", "rate"])
    # Helpers and replicas are for jobs that are not in step.
    document["commits"] = some(
        {key: own for key, own in WRITTEN["commits"].items() if key not in ("helpers", "replicas")}
    )
    kind = draw(st.sampled_from([(), *CHANGES]))
    if kind:
        document["change"] = some({key: WRITTEN["change"][key] for key in kind}, least=kind[:2])
    return document


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that documents name."""
    made = tmp_path_factory.mktemp("written")
    (made / "layers.csv").write_text(CSV)
    hosts = {f"h{index}": {} for index in range(6)}
    links = [[host, f"s0-p{port}"] for port, host in enumerate(hosts)]
    (made / "topology.json").write_text(json.dumps({"hosts": hosts, "switches": {"s0": {}}, "links": links}))
    return made


class TestFromPython:
    @given(documents())
    @settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_the_same_words_give_the_same_scenario_as_in_a_file(self, folder, document):
        text = "\n".join(f"{key} = {in_toml(value)}" for key, value in document.items())
        (folder / "scenario.toml").write_text(text)
        from_file = read_scenario(folder / "scenario.toml")
        with chdir(folder):
            assert make_scenario(**document) == from_file
            words = {SECTIONS["cluster"][key].field: value for key, value in document["cluster"].items()}
            cluster = TOPOLOGIES[words.pop("topology")](**words)
            assert make_scenario(**{**document, "cluster": cluster}) == from_file

    def test_a_workload_of_ones_own_is_a_model(self):
        workload = Workload("mine", (Layer("a", 1000, 10, 20), Layer("b", 2000, 10, 20)))
        scenario = make_scenario(job={"model": workload, "workers": 2, "servers": 1})
        assert scenario.jobs[0].workload == workload

    @pytest.mark.parametrize(
        ("written", "message"),
        [
            ({"job": {"workers": "many"}}, "scenario: job.workers: unknown host 'many'"),
            ({"job": {"modle": "vgg16"}}, "scenario: job.modle: unknown key 'modle'; did you mean 'model'?"),
            ({"bandwidth": "1 Gbps"}, "scenario: unknown key 'bandwidth'; did you mean cluster.bandwidth?"),
            ({"policies": ["p3"]}, "scenario: policies: are no part of what happens; give them to predict or sweep"),
            ({"cluster": star(3)}, "scenario: cluster.hosts: star has 3 hosts and the jobs need 12"),
            (
                {"job": {"model": Workload("mine", (Layer("a", 1, 1, 1),)), "batch": 2}},
                "scenario: job.batch: found beside a model that is a Workload; accepted: one of the two",
            ),
        ],
    )
    def test_what_is_wrong_is_said_as_of_a_file(self, written, message):
        with pytest.raises(ScenarioError) as error:
            make_scenario(**written)
        assert str(error.value).startswith(message)
        assert "\n" not in str(error.value)


def test_json_describes_what_was_simulated():
    traffic = {"src": "h0", "dst": "h1", "rate": "1 Gbps"}
    described = to_json(scenario_from({"background": traffic, "compute": {"stragglers": {"h1": 2}}}, "small.toml"))
    assert json.loads(json.dumps(described)) == described
    assert described["name"] == "small"
    assert described["cluster"]["description"] == "star, 12 hosts, 10 Gbps, 1 us, MTU 9000, 8 queues"
    (job,) = described["jobs"]
    assert (job["model"], job["workers"][:2], job["servers"][-1]) == ("resnet50", ["h0", "h1"], "h11")
    assert job["tensor_bytes"] == 4 * 25_557_032
    assert described["compute"]["stragglers"] == {"h1": 2.0}


JOB = Job("job", Workload("two", (Layer("a", 1000, 10, 20), Layer("b", 2000, 10, 20))), (0, 1), (2,), "async")
DESCRIBED = Scenario("small", star(4, "10 Gbps", "1 us"), (JOB,))
#: Other values of the fields whose type does not suggest one.
OTHER_VALUES: dict[str, Any] = {
    "cluster": star(5, "10 Gbps", "1 us"),
    "jobs": (JOB, replace(JOB, name="other")),
    "transport": Transport(window_bytes=1),
    "background": (Background(0, 1, 10**6),),
    "stragglers": ((0, 2.0),),
    "changes": (Change(0, 10, links=(0,), rate_bps=10**6),),
    "commits": CommitSettings(helpers=(3,)),
    "workload": Workload("one", (Layer("a", 1000, 10, 20),)),
    "workers": (0, 3),
    "servers": (3,),
}

SETTINGS: dict[str, Any] = {"scenario": DESCRIBED, "job": JOB, "transport": DESCRIBED.transport}


def another(name: str, value: object) -> object:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"another {value}"
    return OTHER_VALUES[name]


@pytest.mark.parametrize(
    ("owner", "name"),
    [(owner, field.name) for owner in ("scenario", "job", "transport") for field in fields(SETTINGS[owner])],
)
def test_json_tells_every_field_from_another_value_of_it(owner: str, name: str) -> None:
    value = SETTINGS[owner]
    changed = replace(value, **{name: another(name, getattr(value, name))})
    match changed:
        case Job():
            changed = replace(DESCRIBED, jobs=(changed,))
        case Transport():
            changed = replace(DESCRIBED, transport=changed)
    assert to_json(changed) != to_json(DESCRIBED)


# Small counts only: a cluster of 100,000 hosts is valid input, and slow to build hundreds of times.
NUMBERS = st.integers(-2, 20) | st.floats() | st.just(10**30)
WORDS = st.sampled_from(["star", "h0", "h1", "10 Gbps", "1 us", "fifo", "p3:switch=pifo", "ring", "", "unlimited"])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS | st.text(max_size=5) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
NAMES = {section: st.sampled_from(sorted(rows)) | st.text(max_size=3) for section, rows in SECTIONS.items()}
DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("seed", "loss", "policies", "surprise", "name"), VALUES),
        **{
            section: st.dictionaries(names, VALUES, max_size=3)
            | st.lists(st.dictionaries(names, VALUES, max_size=3), max_size=2)
            | VALUES
            for section, names in NAMES.items()
            if section
        },
    },
)
OVERRIDES = st.text(max_size=12) | st.builds(
    "{}{}={}".format,
    st.sampled_from([row.path for row in keys()] + ["job", "job.1.model", "job.7", "background.0.src", "policies.0"]),
    st.sampled_from(["", "", ".x", ".0"]),
    st.sampled_from(["1", "true", "[]", "{}", "h0,h1", "[[", "nan", "2020-01-01", "1\nx = 2"]) | st.text(max_size=8),
)
FUZZ = settings(max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck))


def refused_in_one_line(read) -> None:
    try:
        read()
    except InputError as error:
        message = str(error)
    else:
        return
    assert message.isprintable()


@given(DOCUMENTS)
@FUZZ
def test_any_document_is_a_scenario_or_an_input_error(content):
    refused_in_one_line(lambda: scenario_from(content, "fuzz.toml"))


@given(st.lists(OVERRIDES, max_size=3))
@FUZZ
def test_any_overrides_give_a_scenario_or_an_input_error(overrides):
    refused_in_one_line(lambda: read_scenario(None, overrides))


@given(st.binary(max_size=60) | st.text("[]{}=.\"'#\n ajobseed10", max_size=40).map(str.encode))
@FUZZ
def test_any_file_is_a_scenario_or_an_input_error(tmp_path, content):
    path = tmp_path / "fuzz.toml"
    path.write_bytes(content)
    refused_in_one_line(lambda: read_scenario(path))


def test_a_truncated_example_is_a_scenario_or_an_input_error(tmp_path):
    content = (ROOT / "examples" / "two-jobs.toml").read_bytes()
    for length in range(0, len(content), 7):
        (tmp_path / "cut.toml").write_bytes(content[:length])
        with contextlib.suppress(InputError):
            read_scenario(tmp_path / "cut.toml")
