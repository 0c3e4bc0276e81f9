"""Scripts that another launcher starts several times are refused: each process would train alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.thorough import rest

pytest.importorskip("torch", reason="needs the extra torch")

from tensorexpress.torch import session

#: Variables that tell of one process of four, or of one alone, and who sets them.
SEVERAL = {
    "torchrun": {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "none"},
    "srun": {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4"},
    "srun, as in a job of old": {"SLURM_PROCID": "1", "SLURM_NTASKS": "4"},
    "mpirun": {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"},
    "mpirun of MPICH": {"PMI_RANK": "1", "PMI_SIZE": "4"},
}
ALONE = (
    {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "none"},
    {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"},
    {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "4"},
    {"WORLD_SIZE": "4"},
    {"RANK": "one", "WORLD_SIZE": "many"},
)


@pytest.fixture(autouse=True)
def started_by_python(monkeypatch: pytest.MonkeyPatch) -> None:
    for environment in (*SEVERAL.values(), *ALONE, {session.WORKERS_VARIABLE: ""}):
        for variable in environment:
            monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    monkeypatch.setattr(session, "_given", [])


@pytest.mark.parametrize("launcher", SEVERAL)
def test_one_of_several_processes_is_refused_in_a_line(
    launcher: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for variable, value in SEVERAL[launcher].items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit) as refused:
        session.join()
    assert refused.value.code == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(
        f"tensorexpress: error: train.py is process 1 of 4 that {launcher.split(',')[0].split()[0]} "
    )
    assert "start it once with `tensorexpress run SCENARIO.toml --script train.py`" in line
    monkeypatch.setenv(session.WORKERS_VARIABLE, "1")
    assert session.join().workers == 1
    monkeypatch.delenv(session.WORKERS_VARIABLE)
    ours = session.LoneSession()
    session.give(ours)
    assert session.join() is ours


@pytest.mark.parametrize("environment", ALONE)
def test_one_process_alone_is_not_refused(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    assert session.join().workers == 1


@rest()
def test_processes_of_torchrun_are_refused_and_one_of_them_is_not(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import tensorexpress.torch as te\nprint('joined', te.join(steps=3).workers, flush=True)\n")

    def torchrun(processes: int) -> subprocess.CompletedProcess[str]:
        options = ["--standalone", f"--nproc-per-node={processes}", str(script)]
        command = [sys.executable, "-m", "torch.distributed.run", *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    several = torchrun(2)
    assert several.returncode != 0
    assert "joined" not in several.stdout
    lines = [line for line in several.stderr.splitlines() if "tensorexpress: error:" in line]
    assert lines
    assert all(f"{script} is process " in line and " of 2 that torchrun started" in line for line in lines)
    assert 'Traceback (most recent call last):\n  File "' + str(script) not in several.stderr
    assert "exitcode  : 2" in several.stderr
    alone = torchrun(1)
    assert alone.returncode == 0, alone.stderr
    assert "joined 1" in alone.stdout
