"""The process that profiles for a scenario: it runs the user's code, and writes numbers or an error as JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tensorexpress.errors import InputError, TensorExpressError
from tensorexpress.tied import end_with_parent
from tensorexpress.torch.profile_cache import as_json, digest
from tensorexpress.torch.profile_source import ModelSource, build, own_files, told_in_a_line


def main(parent: str, place: str, function: str, folder: str) -> None:
    """Profile what a function builds and write what is kept of it; whatever the user's code prints is no result."""
    end_with_parent(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a word: its parent says what there is to say
    result = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    source = ModelSource(place, function, Path(folder))
    print(f"tensorexpress: profiling {source}, which runs it; its numbers are kept for the next time", file=sys.stderr)
    try:
        found = _profile(source)
    except TensorExpressError as error:
        found = {"error": str(error), "is_input": isinstance(error, InputError)}
    json.dump(found, result)
    result.close()


def _profile(source: ModelSource) -> dict[str, Any]:
    before = own_files()
    model, inputs, loss = build(source)
    files = _digests(before)
    from tensorexpress.torch.profile_model import profile

    with told_in_a_line(source):
        measured = profile(model, inputs, loss, name=source.name)
    # What was loaded only now belongs to it as well; of the others counts what they were when they were loaded.
    return as_json(measured.workload, measured.overhead_ps, _digests(before) | files)


def _digests(before: frozenset[Path]) -> dict[str, str]:
    return {str(path): digest(path) for path in sorted(own_files() - before)}


if __name__ == "__main__":
    main(*sys.argv[1:])
