"""Simulations on a Dask cluster of real processes: the same bytes as here, whatever becomes of its workers."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.thorough import rest

from tensorexpress.cli import main
from tensorexpress.errors import MachineError, NetworkError, SimulationError
from tensorexpress.results.swept import Point
from tensorexpress.sim.dask_cluster import DaskCluster, code_digest
from tensorexpress.sim.sweep import sweep

# It takes a second to import, which is for whoever runs these tests and not for all that look for tests.
if find_spec("distributed") is None:
    pytest.skip("needs distributed: pip install 'tensorexpress[dask]'", allow_module_level=True)

LAYERS = "layer_index,numel,forward_ns,backward_ns\n0,20000,200000,400000\n1,100000,300000,600000\n"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    path = tmp_path_factory.mktemp("workload") / "layers.csv"
    path.write_text(LAYERS)
    return ["job.model=", f"job.csv={path}", "job.workers=2", "job.servers=1"]


def cluster_of(workers: int) -> Any:
    import distributed

    return distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0", silence_logs=50
    )


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with cluster_of(2) as made:
        yield made


def pids_of(address: str) -> list[int]:
    import distributed

    with distributed.Client(address) as client:
        return list(client.run(os.getpid).values())


def outputs(arguments: Sequence[str], folder: Path) -> list[bytes]:
    folder.mkdir()
    paths = [folder / "out.csv", folder / "out.json"]
    files = ["--csv", str(paths[0]), "--json", str(paths[1])]
    result = CliRunner().invoke(main, [*arguments, *files], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return [result.stdout_bytes, *(path.read_bytes() for path in paths)]


@rest(but=1)
def test_a_sweep_gives_the_same_bytes_as_here(small, cluster, tmp_path):
    given = [word for override in small for word in ("--set", override)]
    arguments = ["sweep", *given, "--vary", "cluster.bandwidth=1,5,25Gbps", "--policy", "p3"]
    here = outputs([*arguments, "--processes", "1"], tmp_path / "here")
    there = outputs([*arguments, "--scheduler", cluster.scheduler_address], tmp_path / "there")
    assert there == here


@rest()
def test_a_search_gives_the_same_bytes_as_here(small, cluster, tmp_path):
    given = [word for override in small for word in ("--set", override)]
    arguments = ["tune", *given, "--fix", "sum=none", "--budget", "14", "--within", "0"]
    here = outputs([*arguments, "--processes", "1"], tmp_path / "here")
    assert outputs([*arguments, "--scheduler", cluster.scheduler_address], tmp_path / "there") == here


@rest()
def test_a_worker_that_is_killed_costs_nothing_but_time(small, cluster):
    before = pids_of(cluster.scheduler_address)
    killed: list[int] = []

    def kill_one(point: Point) -> None:
        if not killed:
            killed.append(before[0])
            os.kill(before[0], signal.SIGKILL)

    vary = {"seed": [str(seed) for seed in range(8)]}
    there = sweep(None, small, vary, ["p3"], on_point=kill_one, executor=DaskCluster(cluster.scheduler_address))
    assert killed
    assert there == sweep(None, small, vary, ["p3"], processes=1)


@rest()
def test_workers_that_die_over_a_task_are_told_in_one_line(small):
    with cluster_of(1) as fragile:
        fragile.scheduler.allowed_failures = 0
        (only,) = pids_of(fragile.scheduler_address)

        def kill(point: Point) -> None:
            os.kill(only, signal.SIGKILL)

        vary = {"cluster.mtu": ["9000", "131"]}
        with pytest.raises(SimulationError, match=r"^point cluster.mtu=131: 1 worker of tcp://.* died over") as caught:
            sweep(None, small, vary, ["fifo"], "simpy", on_point=kill, executor=DaskCluster(fragile.scheduler_address))
    assert "\n" not in str(caught.value)
    assert "most likely for want of memory" in str(caught.value)


@rest()
def test_ctrl_c_keeps_the_finished_points(small, cluster):
    def press(point: Point) -> None:
        raise KeyboardInterrupt

    kept = sweep(
        None,
        small,
        {"seed": [str(seed) for seed in range(6)]},
        [],
        on_point=press,
        executor=DaskCluster(cluster.scheduler_address),
    )
    assert len(kept.points) == 1
    again = sweep(None, small, {"seed": [kept.points[0].values[0]]}, [], processes=1)
    assert kept.points == again.points


def test_other_code_is_refused_with_the_worker_and_the_difference(small, cluster, monkeypatch):
    own = code_digest()
    monkeypatch.setattr(DaskCluster, "expected_digest", "0123456789ab")
    with pytest.raises(MachineError, match=rf"^worker tcp://.* has other code of tensorexpress \({own}\) than this"):
        sweep(None, small, {"seed": ["1"]}, [], executor=DaskCluster(cluster.scheduler_address))


def test_another_version_is_refused_with_the_worker_and_the_difference(small, cluster, monkeypatch):
    import distributed

    monkeypatch.setattr(distributed.versions, "_version_cached", lambda package: "0.0.1")
    with pytest.raises(
        MachineError, match=r"^worker tcp://.* has tensorexpress 0\.1\.0, this machine 0\.0\.1; results"
    ):
        sweep(None, small, {"seed": ["1"]}, [], executor=DaskCluster(cluster.scheduler_address))


def test_a_worker_that_came_later_with_other_code_is_refused_too(small, cluster, monkeypatch):
    monkeypatch.setattr(DaskCluster, "_compare_versions", lambda self: None)
    monkeypatch.setattr(DaskCluster, "expected_digest", "0123456789ab")
    with pytest.raises(MachineError, match=r"^point seed=1: worker tcp://.* has other code"):
        sweep(None, small, {"seed": ["1"]}, [], executor=DaskCluster(cluster.scheduler_address))


def test_no_workers_and_no_scheduler_are_one_line_each(small):
    with (
        cluster_of(0) as empty,
        pytest.raises(NetworkError, match=r"has no workers after 0\.2 s; start some with `dask"),
    ):
        sweep(None, small, {"seed": ["1"]}, [], executor=DaskCluster(empty.scheduler_address, 0.2))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(NetworkError, match=rf"^scheduler {address} does not answer \(.*\); accepted: the address"):
            sweep(None, small, {"seed": ["1"]}, [], executor=DaskCluster(address))


def test_without_distributed_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MachineError, match=r"pip install 'tensorexpress\[dask\]'"), DaskCluster("tcp://127.0.0.1:1"):
        pass
