"""tensorexpress p4: the P4 program, and compiling it again."""

from __future__ import annotations

from pathlib import Path

import click

from tensorexpress import p4 as programs


@click.group(short_help="Look at the P4 program, or compile it again.")
def p4() -> None:
    """Say where the P4 program is and what it was built from, or compile it again."""


@p4.command()
def show() -> None:
    """Print where the program's files are, and whether the build is that of the sources."""
    program = programs.load()
    for path in (programs.HERE / f"{programs.NAME}.p4", *sorted(programs.BUILD.glob(f"{programs.NAME}.*"))):
        click.echo(path)
    state = (
        "is up to date" if program.stamp.sources == programs.source_hash() else "is stale: run `tensorexpress p4 build`"
    )
    click.echo(f"the build by p4c {program.stamp.p4c} {state}")


@p4.command()
@click.option("--p4c", metavar="PROGRAM", help="The compiler, where p4c-bm2-ss is not on PATH.")
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=programs.BUILD,
    help="Directory for JSON, P4Info and stamp, instead of the package's own.",
)
def build(p4c: str | None, output: Path) -> None:
    """Compile the P4 program with p4c, and stamp the result with the hash of the sources and p4c's version."""
    program = programs.build(programs.find_p4c(p4c), output)
    click.echo(f"built {len(program.document)} bytes of JSON with p4c {program.stamp.p4c}")
