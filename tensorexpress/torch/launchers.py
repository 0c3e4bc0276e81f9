"""Launchers that start a script several times, found by the variables that they set.

A script joins a run that starts its workers itself. Started by another launcher, every process would train alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple


class Launcher(NamedTuple):
    """A launcher: its name, and the variables that have the number of processes and the number of this one."""

    name: str
    size: str
    rank: str


#: The first one that fits counts; a step of Slurm has fewer tasks than its job where srun -n says so.
LAUNCHERS = (
    Launcher("torchrun", "WORLD_SIZE", "RANK"),
    Launcher("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    Launcher("srun", "SLURM_NTASKS", "SLURM_PROCID"),
    Launcher("mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    Launcher("mpirun", "PMI_SIZE", "PMI_RANK"),
)

_NUMBER = re.compile("[0-9]{1,9}")


def launched_several(script: str, environment: Mapping[str, str]) -> str | None:
    """Return the error of a script that another launcher has started several times; None if none has."""
    for launcher in LAUNCHERS:
        rank, size = (environment.get(variable, "") for variable in (launcher.rank, launcher.size))
        if not (_NUMBER.fullmatch(rank) and _NUMBER.fullmatch(size)):
            continue
        if int(size) > 1:
            return (
                f"{script} is process {rank} of {size} that {launcher.name} started ({launcher.size}={size}), and each "
                f"would train alone; start it once with `tensorexpress run SCENARIO.toml --script {script}`, which "
                "starts all workers, or give TENSOREXPRESS_WORKERS=1 to train alone"
            )
        if launcher.size == "SLURM_STEP_NUM_TASKS":
            # What the job has beside its step is no matter.
            return None
    return None
