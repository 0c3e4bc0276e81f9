"""The exceptions tensorexpress raises for what a person can mend, and the one rule of exit statuses.

    TensorExpressError          base; `exit_code` is the CLI's exit status
    ├── InputError              something the user gave is wrong (exit 2)
    │   ├── UnitError           a quantity that does not parse or is out of range
    │   ├── WorkloadError       an unknown model or device, a bad workload CSV
    │   ├── ClusterError        a cluster that cannot be: bad link, disconnected hosts
    │   ├── PolicyError         an unknown policy or choice
    │   ├── ScenarioError       a scenario file or key
    │   ├── PlanError           a plan file, or a plan that does not go with the switch or scenario named with it
    │   ├── ProgramError        a P4 program, its P4Info or its entries that a switch cannot take
    │   ├── HeaderError         bytes that are no TensorExpress header, or values that fit into none
    │   └── CaptureError        a capture file that cannot be read
    ├── MachineError            what this machine lacks: a program, a package (exit 1)
    │   └── StorageError        a disk that is full or fails
    ├── SimulationError         the simulation could not go on (exit 1)
    │   └── StoppedError        it was told to stop
    └── NetworkError            what the network did: no answer, a refusal, a port that is taken (exit 1)

The exit status follows one rule: would other input mend it? Then it is 2: an option, a file named on the command line
and what it holds, a path that is not there or may not be used. If the same command could work on another machine, for
another user or at another time, it is 1: a program or package that is not installed, a right that only root has, a full
disk, a switch that does not answer. What was interrupted, by Ctrl-C, SIGTERM or SIGHUP, is 130.

Every message is one line: what was found, where, what is accepted, what to do next. Whatever it quotes, no character
of it breaks the line, moves the cursor or turns the direction of reading: those are shown as escapes.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class TensorExpressError(Exception):
    """Base of all errors meant for a person to read; the CLI prints it on one line."""

    exit_code = 1

    def __str__(self) -> str:
        return one_line(super().__str__())


class InputError(TensorExpressError):
    """Something the user gave is wrong; the message says what is accepted."""

    exit_code = 2


class UnitError(InputError):
    """A quantity that does not parse or is out of range; give a number and a unit, such as "10 Gbps"."""


class WorkloadError(InputError):
    """An unknown model or device, or a workload CSV that cannot be read; see `tensorexpress models`."""


class ClusterError(InputError):
    """A cluster that cannot be built or routed; check its links and sizes."""


class PolicyError(InputError):
    """An unknown policy, or choices that do not go together; see docs/policies.md."""


class ScenarioError(InputError):
    """A scenario file or key that cannot be used; see docs/scenario.md."""


class PlanError(InputError):
    """A plan that cannot be read, or that is not for the program or scenario it is used with; make it again."""


class ProgramError(InputError):
    """A P4 program, its P4Info or its entries that a switch cannot take; the message names the part."""


class HeaderError(InputError):
    """Bytes that are no TensorExpress header, or values that do not fit into one; see docs/wire.md."""


class CaptureError(InputError):
    """A capture file that cannot be read; the message says at which byte it ends to make sense."""


class MachineError(TensorExpressError):
    """What this machine lacks: a program, a package, a right, room on a disk; the message says how to get it."""


class SimulationError(TensorExpressError):
    """The simulation could not go on, for example because no packet can make progress."""


class StoppedError(SimulationError):
    """The simulation was told to stop before its end; there is no result."""


class StorageError(MachineError):
    """A disk that is full or fails; free room, or give a file elsewhere."""


class NetworkError(TensorExpressError):
    """What the network did: a switch that does not answer or refuses, an address that is taken."""


class NotRootError(NetworkError):
    """What root may do, in a user namespace of its own too: see `target.namespaces.as_own_root`."""


def one_line(text: str) -> str:
    r"""Return a text in which characters that do not print are shown as escapes.

    >>> print(one_line("job 'a\x1b[2J' and\nmore"))
    job 'a\x1b[2J' and\nmore
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shown(value: object, most: int = 80) -> str:
    """Return a value as an error message quotes it: one line, and not a long one."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python refuses to print very long integers and very deep lists
        text = f"a huge {type(value).__name__}"
    return text if len(text) <= most else f"{text[: most - 3]}..."


def unknown(what: str, found: object, accepted: Iterable[str]) -> str:
    """Return the one-line message for a name that is not among those accepted.

    >>> unknown("model", "vgg61", ["vgg16", "alexnet"])
    "unknown model 'vgg61'; did you mean 'vgg16'? Accepted: alexnet, vgg16"
    """
    names = sorted(accepted)
    close = get_close_matches(str(found), names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"unknown {what} {str(found)!r}; {hint}Accepted: {', '.join(names)}"
