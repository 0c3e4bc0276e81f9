"""tensorexpress export: a plan as configuration for equipment that tensorexpress does not drive itself."""

from __future__ import annotations

import click

from tensorexpress.cli import say
from tensorexpress.cli.linux_options import host_rate, linux_options
from tensorexpress.cli.options import check_file, check_outputs, write_output
from tensorexpress.errors import InputError
from tensorexpress.export import FORMATS, JOB_CLASSES, job_number
from tensorexpress.files import write_atomic

#: Option -> the formats that it says something about.
_OF_FORMAT = {
    "ports": ("sonic",),
    "job": ("nccl", "chakra"),
    "job_class": ("nccl",),
    "device": ("linux",),
    "rate": ("linux",),
}


@click.command(short_help="Write a plan as configuration for SONiC, NCCL or Linux, or as traces for ASTRA-sim.")
@click.argument("plan_path", metavar="PLAN.json")
@click.option(
    "--format",
    "format_",
    type=click.Choice(list(FORMATS)),
    required=True,
    help="; ".join(f"{name}: {about}" for name, about in FORMATS.items()) + ".",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    default="-",
    help="Where to write it instead of standard output; chakra: FILE.0.et, FILE.1.et, ...",
)
@click.option("--ports", metavar="NAME,...", help="sonic: ports to configure.  [default: Ethernet0, Ethernet4, ...]")
@click.option("--job", metavar="NAME", help="nccl, chakra: the job, where the plan has several.")
@click.option(
    "--job-class",
    type=click.Choice(list(JOB_CLASSES)),
    default="median",
    show_default=True,
    help="nccl: which of its queues stands for all of the job.",
)
@linux_options
@click.pass_context
def export(
    context: click.Context,
    plan_path: str,
    format_: str,
    output: str,
    ports: str | None,
    job: str | None,
    job_class: str,
    device: str | None,
    rate: str | None,
) -> None:
    """Write what a plan says about queues in the words of other equipment.

    Hosts mark packets with the DSCP of their queue; this tells switches, NCCL and Linux the same map.

    \b
      tensorexpress plan -o plan.json
      tensorexpress export plan.json --format sonic -o qos.json
      tensorexpress export plan.json --format linux --dev eth0
      tensorexpress export plan.json --format chakra -o training
    """
    from tensorexpress import export as formats
    from tensorexpress.plan_file import read_plan

    for option, only in _OF_FORMAT.items():
        if format_ not in only and _was_given(context, option):
            flag = "dev" if option == "device" else option.replace("_", "-")
            raise InputError(f"--{flag} goes with --format {' or '.join(only)} only; leave it out")
    if format_ == "chakra":
        _write_traces(plan_path, job, output)
        return
    check_outputs(output)
    plan = read_plan(plan_path)
    if format_ == "sonic":
        text = formats.sonic_text(plan, _port_names(ports) if ports is not None else ())
    elif format_ == "nccl":
        text = formats.nccl(plan, job, job_class)
    else:
        text = formats.linux(plan, device or "eth0", host_rate(plan, rate))
    write_output(output, text)


def _write_traces(plan_path: str, job: str | None, prefix: str) -> None:
    """Write a trace for every worker, named as ASTRA-sim looks for them."""
    from tensorexpress.foreign.chakra_export import chakra_traces
    from tensorexpress.plan_file import read_plan

    if prefix == "-":
        check_file("--output", prefix)
    check_outputs(f"{prefix}.0.et")
    plan = read_plan(plan_path)
    count = 0
    for count, trace in enumerate(chakra_traces(plan, job_number(plan, job)), 1):
        if not write_atomic(f"{prefix}.{count - 1}.et", trace):
            return
    say(f"wrote {prefix}.0.et to {prefix}.{count - 1}.et")


def _was_given(context: click.Context, option: str) -> bool:
    return context.get_parameter_source(option) is click.core.ParameterSource.COMMANDLINE


def _port_names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise InputError(
            f"--ports {text!r}; accepted: different names with commas between them, such as Ethernet0,Ethernet4"
        )
    return names
