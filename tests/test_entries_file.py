"""A plan as files of entries: replayed offline, frames meet what the plan says."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.pages import run_blocks, section
from support.thorough import rest

from tensorexpress import p4
from tensorexpress.addresses import GATEWAY_MAC, addresses_of
from tensorexpress.cli import main
from tensorexpress.plan_file import read_plan
from tensorexpress.switch.pcap import TimedFrame, read_pcap, write_pcap
from tensorexpress.wire.frame import FrameEnd, build_frame, read_frame
from tensorexpress.wire.header import Header

pytest.importorskip("tensorexpress.p4runtime_messages")

#: Almost every queue is used, by two jobs on three hosts each.
TWO_JOBS = [
    *("--policy", "tensorexpress:queues=equal", "--set", "cluster.queues=5"),
    *("--set", "job.0.model=alexnet", "--set", "job.0.workers=2", "--set", "job.0.servers=1"),
    *("--set", "job.1.model=vgg16", "--set", "job.1.workers=2", "--set", "job.1.servers=1"),
]
EXAMPLES = Path(__file__).parents[1] / "examples"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)])


def plan_in(directory: Path, *arguments: object) -> Path:
    path = directory / "plan.json"
    ran = run("plan", *arguments, "-o", path)
    assert ran.exit_code == 0, ran.output
    return path


def replayed(directory: Path, switch: str, frames: dict[int, list[bytes]]) -> dict[int, list[bytes]]:
    """Send frames, by port, through a switch that has the entries in a directory; return what leaves, by port."""
    inputs, out = [], directory / f"left-{'-'.join(map(str, frames))}"
    for port, sent in frames.items():
        write_pcap(directory / f"{port}.pcap", [TimedFrame(0, frame) for frame in sent])
        inputs += ["--in", f"{port}={directory / f'{port}.pcap'}"]
    ran = run(
        *("switch", "replay", directory / f"{p4.NAME}.json", "--p4info", directory / f"{p4.NAME}.p4info.txtpb"),
        *("--entries", directory / f"{switch}.entries.txtpb", "--rate", "10 Mbps", "--queues", 5),
        *(*inputs, "--out", out),
    )
    assert ran.exit_code == 0, ran.output
    return {
        int(path.name.removeprefix("port").partition("-")[0]): [frame.data for frame in read_pcap(path)]
        for path in out.iterdir()
    }


@rest(but=1)
@pytest.mark.parametrize("version", [4, 6])
def test_every_tensor_waits_in_the_queue_of_the_plan(version: int, tmp_path: Path) -> None:
    """Frames ask for the last queue and carry no DSCP; the switch knows better, and marks them by the queue."""
    path = plan_in(tmp_path, *TWO_JOBS)
    plan, directory = read_plan(path), tmp_path / "entries"
    assert run("deploy", path, "--entries", directory).exit_code == 0
    hosts = addresses_of(plan.scenario.cluster)

    def ip(host: int) -> Any:
        return hosts[host].ipv4 if version == 4 else hosts[host].ipv6

    for job, (worker, server) in enumerate(((0, 2), (3, 5))):
        queues = plan.jobs[job].queues
        frames = [
            build_frame(
                FrameEnd(hosts[worker].mac, ip(worker)),
                FrameEnd(GATEWAY_MAC, ip(server)),
                Header(job=job, worker=0, iteration=0, tensor=tensor, chunk=0, chunks=1, queue=4).pack(),
            )
            for tensor in reversed(range(len(queues)))
        ]
        left = replayed(directory, "s0", {worker: frames})
        assert list(left) == [server]
        seen = [read_frame(frame) for frame in left[server]]
        assert {one.header.tensor: plan.dscps.index(one.dscp) for one in seen} == dict(enumerate(queues))
        # The first one found the port idle; the others waited for it, and left by queue.
        waited = [queues[one.header.tensor] for one in seen][1:]
        assert waited == sorted(waited)
        assert len(set(waited)) >= 4


def test_options_of_deploy_are_in_the_entries(tmp_path: Path) -> None:
    path = plan_in(tmp_path, *TWO_JOBS)
    assert run("deploy", path, "--entries", tmp_path, "--limit", "job0=8 Mbps", "--strangers", "drop").exit_code == 0
    entries = (tmp_path / "s0.entries.txtpb").read_text()
    assert "# guard.job_meter" in entries
    frame = build_frame(
        FrameEnd(addresses_of(read_plan(path).scenario.cluster)[5].mac, ip_address("10.0.0.6")),
        FrameEnd(GATEWAY_MAC, ip_address("10.0.0.1")),
        Header(job=0, worker=0, iteration=0, tensor=0, chunk=0, chunks=1).pack(),
    )
    assert replayed(tmp_path, "s0", {5: [frame]}) == {}, "a stranger is not dropped"


def test_every_switch_of_a_plan_has_a_file(tmp_path: Path) -> None:
    path = plan_in(tmp_path, EXAMPLES / "leaf-spine.toml")
    ran = run("deploy", path, "--entries", tmp_path / "new" / "entries")
    assert ran.exit_code == 0, ran.output
    written = [Path(line) for line in ran.stdout.splitlines()]
    assert all(file.is_file() for file in written)
    switches = read_plan(path).scenario.cluster.switches
    assert [file.name for file in written[2:]] == [f"{switch}.entries.txtpb" for switch in switches]
    assert len(switches) == 4


@pytest.mark.parametrize("option", [["--switch", "s0=127.0.0.1:9559"], ["--dry-run"], ["--stay"], ["--json", "-"]])
def test_options_that_need_a_switch_are_refused(option: list[str], tmp_path: Path) -> None:
    ran = run("deploy", tmp_path / "plan.json", "--entries", tmp_path, *option)
    assert ran.exit_code == 2
    assert f"{option[0]} goes with switches, and --entries asks none" in ran.stderr


def test_the_page_says_what_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_blocks(section("switch.md", "### A plan, offline")) == 2
