"""tensorexpress switch: start an embedded P4 switch, or run a program over captures."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from tensorexpress.cli import Command
from tensorexpress.cli.options import with_option
from tensorexpress.control_address import DEFAULT_SHOWN, default_address
from tensorexpress.errors import InputError, NetworkError
from tensorexpress.p4.define import CPU_PORT
from tensorexpress.program_engines import AUTO, ENGINES
from tensorexpress.queueing import DISCIPLINES
from tensorexpress.units import counted, format_rate, parse_rate, parse_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensorexpress.switch.counted import Statistics
    from tensorexpress.switch.p4runtime.listening import ServerTlsFiles
    from tensorexpress.switch.ports import PortSpec
    from tensorexpress.switch.program.budgets import SwitchMemory
    from tensorexpress.switch.traffic import PortSettings


def _queue_options(command: Command) -> Command:
    """Add what says how packets wait at a port: --queues, --discipline, --buffer."""
    for option in (
        click.option(
            "--buffer", metavar="SIZE", default="1 MB", show_default=True, help="Bytes that may wait at a port."
        ),
        click.option(
            "--discipline",
            type=click.Choice(sorted(DISCIPLINES)),
            default="strict",
            show_default=True,
            help="Order of service.",
        ),
        click.option(
            "--queues", type=click.IntRange(1, 8), default=8, show_default=True, help="Priority queues of a port."
        ),
    ):
        command = option(command)
    return command


def _engine_option(command: Command) -> Command:
    """Add what a program runs in: --engine."""
    return click.option(
        "--engine",
        type=click.Choice(ENGINES),
        default=AUTO,
        show_default=True,
        help="native is machine code, python the readable reference; auto is native where a program can be that.",
    )(command)


@click.group(invoke_without_command=True, short_help="Start an embedded P4 switch, or run a program over captures.")
@click.option(
    "--device-id", type=click.IntRange(1, 2**64 - 1), default=1, show_default=True, help="P4Runtime's device id."
)
@click.option(
    "--port",
    "ports",
    metavar="N@WHERE",
    multiple=True,
    help="A port: N@INTERFACE (needs root) or N@udp:LOCAL:PORT-REMOTE:PORT; may be repeated.",
)
@click.option(
    "--rate",
    "rates",
    metavar="[N=]RATE",
    multiple=True,
    help='Rate of all links, such as "10 Mbps", or of port N alone; may be repeated.  [default: no limit]',
)
@_queue_options
@_engine_option
@click.option(
    "--lowest-share", metavar="PERCENT", default="0%", show_default=True, help="Least share of the least urgent queue."
)
@click.option(
    "--grpc",
    "address",
    metavar="ADDRESS",
    help="P4Runtime's address: unix:PATH for this user alone, HOST:PORT, where 0 is any port, or [IPV6]:PORT.  "
    f"[default: {DEFAULT_SHOWN}]",
)
@click.option("--insecure", is_flag=True, help="Let other machines control the switch without TLS.")
@click.option("--no-grpc", is_flag=True, help="Serve no P4Runtime; run --program alone.")
@click.option(
    "--cpu-port",
    type=click.IntRange(0, 510),
    default=CPU_PORT,
    show_default=True,
    help="Port of packet-in and packet-out.",
)
@click.option("--pcap", metavar="DIR", help="Capture what every port takes and sends, in one file each.")
@click.option(
    "--memory",
    metavar="SIZE",
    default="2 GiB",
    show_default=True,
    help="Memory that the switch may take in all, 512 MiB or more.",
)
@click.option(
    "--faults",
    metavar="KIND=SHARE,...",
    default="",
    help="What goes wrong on purpose with frames that arrive: loss, duplicate, reorder, corrupt, such as loss=5%.",
)
@click.option("--tls-cert", metavar="FILE", help="PEM certificate of this switch.")
@click.option("--tls-key", metavar="FILE", help="PEM key of this switch.")
@click.option("--tls-ca", metavar="FILE", help="PEM certificate of who vouches for clients; others are refused.")
@click.option("--program", metavar="FILE", help="BMv2 JSON to start with, until a controller sets another.")
@click.option("--p4info", metavar="FILE", help="P4Info of that program.")
@click.option("--entries", metavar="FILE", help="Entries to start with: a P4Runtime WriteRequest as text.")
@click.pass_context
def switch(
    context: click.Context,
    device_id: int,
    ports: tuple[str, ...],
    rates: tuple[str, ...],
    queues: int,
    discipline: str,
    buffer: str,
    engine: str,
    lowest_share: str,
    address: str | None,
    insecure: bool,
    no_grpc: bool,
    cpu_port: int,
    pcap: str | None,
    memory: str,
    faults: str,
    tls_cert: str | None,
    tls_key: str | None,
    tls_ca: str | None,
    program: str | None,
    p4info: str | None,
    entries: str | None,
) -> None:
    """Start a P4 switch that runs p4c's BMv2 JSON, with queues that share the rate of a link.

    It prints one line when it is ready and runs until Ctrl-C or SIGTERM; then it prints what it saw.

    \b
      tensorexpress switch --port 0@veth0 --port 1@veth2 --rate "100 Mbps"
      tensorexpress switch --port 0@udp:127.0.0.1:9000-127.0.0.1:9001 --grpc 127.0.0.1:0
    """
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    from tensorexpress.switch.faults import parse_faults
    from tensorexpress.switch.loop import LoopSettings
    from tensorexpress.switch.running import RunningSwitch
    from tensorexpress.switch.traffic import PortSettings

    shared = PortSettings(
        discipline=discipline,
        queues=queues,
        buffer_bytes=with_option("--buffer", parse_size, buffer),
        lowest_share=_share(lowest_share),
    )
    opened = _ports(ports, rates, shared, cpu_port)
    tls = _tls(tls_cert, tls_key, tls_ca)
    if no_grpc and program is None:
        raise InputError("--no-grpc without a program leaves a switch that forwards nothing; give --program too")
    start_with = _start_with(program, p4info, entries, serves=not no_grpc)
    loop = LoopSettings(opened, cpu_port, pcap, parse_faults(faults), engine, _memory(memory))
    if no_grpc:
        address = None
    elif address is None:
        address = str(default_address(device_id, make=True))
    running = RunningSwitch(loop, address, device_id=device_id, tls=tls, insecure=insecure)
    try:
        if start_with is not None:
            running.start_with(*start_with)
        click.echo(_ready(device_id, running.address, shared, ports, rates))
        running.wait()
        raise NetworkError("the process that forwards packets has ended; start the switch again")
    except KeyboardInterrupt:
        pass
    finally:
        statistics = running.stop()
    if statistics is not None:
        click.echo(statistics_table(statistics))


def _refuse_options(context: click.Context) -> None:
    """Options before a subcommand would be those of a switch that is not started."""
    for option in context.command.params:
        if option.name and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE:
            raise InputError(f"{option.opts[-1]} is given before {context.invoked_subcommand}; give options after it")


def _ports(
    ports: tuple[str, ...], rates: tuple[str, ...], shared: PortSettings, cpu_port: int
) -> dict[int, tuple[PortSpec, PortSettings]]:
    from dataclasses import replace

    from tensorexpress.switch.ports import parse_port

    specs: dict[int, PortSpec] = {}
    for text in ports:
        number, spec = parse_port(text)
        if number in specs:
            raise InputError(f"--port {number} is given twice; accepted: each number once")
        if number == cpu_port:
            raise InputError(f"--port {text} has the number of the CPU port; choose another, or another --cpu-port")
        specs[number] = spec
    rate_of_all, rate_of = _rates(rates)
    for number in rate_of:
        if number not in specs:
            raise InputError(f"--rate {number}=... is of no port; give --port {number}@...")
    return {
        number: (spec, replace(shared, rate_bps=rate_of.get(number, rate_of_all))) for number, spec in specs.items()
    }


def _rates(rates: tuple[str, ...]) -> tuple[int | None, dict[int, int]]:
    """Return the rate of all ports, None for no limit, and those of single ones."""
    rate_of_all, rate_of = None, {}
    for text in rates:
        match = re.match(r"([0-9]{1,5})=(.*)", text)
        if match is not None:
            rate_of[int(match[1])] = _rate(match[2])
        else:
            rate_of_all = _rate(text)
    return rate_of_all, rate_of


def _rate(text: str) -> int:
    rate_bps = with_option("--rate", parse_rate, text)
    if not rate_bps:
        raise InputError(f"--rate {text!r} would send nothing; accepted: more than 0, or no --rate for no limit")
    return rate_bps


def _memory(text: str) -> SwitchMemory:
    from tensorexpress.switch.program.budgets import LEAST_MEMORY_BYTES, SwitchMemory

    size_bytes = with_option("--memory", parse_size, text)
    if size_bytes < LEAST_MEMORY_BYTES:
        raise InputError(f"--memory {text!r} has no room for a switch; accepted: 512 MiB or more")
    return SwitchMemory(size_bytes)


def _share(text: str) -> float:
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*", text)
    if match is None or float(match[1]) >= 100:
        raise InputError(f"--lowest-share {text!r}; accepted: 0% to below 100%, such as 5%")
    return float(match[1]) / 100


def _tls(certificate: str | None, key: str | None, client_ca: str | None) -> ServerTlsFiles | None:
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        raise InputError(
            "TLS needs --tls-cert and --tls-key; --tls-ca beside them makes clients show a certificate too"
        )
    from tensorexpress.switch.p4runtime.listening import ServerTlsFiles

    return ServerTlsFiles(certificate, key, client_ca)


def _start_with(
    program: str | None, p4info: str | None, entries: str | None, *, serves: bool
) -> tuple[bytes, str | None, str] | None:
    """Return the program to start with, its P4Info and entries; None for no program."""
    from tensorexpress.switch.replay import read_program, read_text

    if program is None:
        if p4info is not None or entries is not None:
            raise InputError("--p4info and --entries go with --program; give all three")
        return None
    if p4info is None and (entries is not None or serves):
        raise InputError("--program needs --p4info, so that entries and controllers can speak of it; or give --no-grpc")
    texts = [None if path is None else read_text(path) for path in (p4info, entries)]
    return read_program(program), texts[0], texts[1] or ""


def _ready(
    device_id: int, address: str | None, shared: PortSettings, ports: tuple[str, ...], rates: tuple[str, ...]
) -> str:
    served = f"P4Runtime at {address}" if address is not None else "no P4Runtime"
    queues = f"{counted(shared.queues, 'queue')} ({shared.discipline})"
    return (
        f"switch {device_id} is ready: {served}; ports {', '.join(ports) or 'none'}; {queues}; rate {_rate_text(rates)}"
    )


def _rate_text(rates: tuple[str, ...]) -> str:
    rate_of_all, rate_of = _rates(rates)
    texts = [format_rate(rate_of_all) if rate_of_all is not None else "unlimited"]
    return ", ".join(texts + [f"{format_rate(rate)} at port {number}" for number, rate in rate_of.items()])


def statistics_table(statistics: Statistics) -> str:
    """Return what every port saw, one line each, and below it what went wrong."""
    lines = [f"{'port':>6} {'in':>10} {'bytes':>14} {'out':>10} {'bytes':>14}  dropped"]
    for number, port in statistics.ports.items():
        drops = _listed(port.drops) or "-"
        lines.append(
            f"{number:>6} {port.rx_frames:>10} {port.rx_bytes:>14} {port.tx_frames:>10} {port.tx_bytes:>14}  {drops}"
        )
    if statistics.drops:
        lines.append(f"ports that do not exist: {_listed(statistics.drops)}")
    if statistics.failures:
        lines.append(f"failed: {', '.join(f'{count} {kind}' for kind, count in statistics.failures.items())}")
    struck = sum(statistics.faults.values(), Counter[str]())
    if struck:
        lines.append(f"on purpose: {', '.join(f'{count} {kind}' for kind, count in sorted(struck.items()))}")
    if statistics.dropped_notices:
        lines.append(f"not told to the controller: {statistics.dropped_notices}")
    return "\n".join(lines)


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))


@switch.command(short_help="Run a program over captures, in virtual time.")
@click.argument("program", metavar="PROGRAM.json")
@click.option("--p4info", metavar="FILE", help="P4Info of the program; needed with --entries.")
@click.option("--entries", metavar="FILE", help="Table entries and the like: a P4Runtime WriteRequest as text.")
@click.option(
    "--in",
    "inputs",
    metavar="N=FILE",
    multiple=True,
    required=True,
    help="Frames that arrive at port N; may be repeated.",
)
@click.option("--out", "directory", metavar="DIR", required=True, help="Where to write one capture per port.")
@click.option("--rate", metavar="RATE", help='Rate of every link, such as "10 Mbps".  [default: no limit]')
@_queue_options
@_engine_option
@click.option(
    "--cpu-port", type=click.IntRange(0, 510), default=CPU_PORT, show_default=True, help="Port of the controller."
)
def replay(
    program: str,
    p4info: str | None,
    entries: str | None,
    inputs: tuple[str, ...],
    directory: str,
    rate: str | None,
    queues: int,
    discipline: str,
    buffer: str,
    engine: str,
    cpu_port: int,
) -> None:
    """Run pcap files through a P4 program and write what leaves, one pcap file per port.

    Time is that of the captures: frames of all ports are merged by their time stamps, and the same files give the
    same result, whatever the machine. No interface and no root is needed.

    \b
      tensorexpress switch replay router.json --p4info router.p4info.txtpb --entries entries.txtpb \\
          --in 0=a.pcap --in 1=b.pcap --out captures
    """
    from tensorexpress.switch.replay import VirtualSwitch
    from tensorexpress.switch.replay import replay as run_replay
    from tensorexpress.switch.traffic import PortSettings

    settings = PortSettings(
        rate_bps=_rate(rate) if rate is not None else None,
        discipline=discipline,
        queues=queues,
        buffer_bytes=with_option("--buffer", parse_size, buffer),
    )
    captures = _captures(inputs)
    virtual = VirtualSwitch(program, p4info, entries, settings=settings, cpu_port=cpu_port, engine=engine)
    written = run_replay(virtual, captures, directory)
    click.echo(statistics_table(virtual.statistics()))
    for path in written.values():
        click.echo(path)


def _captures(inputs: tuple[str, ...]) -> dict[int, str]:
    captures: dict[int, str] = {}
    for text in inputs:
        match = re.fullmatch(r"([0-9]{1,3})=(.+)", text)
        if match is None or int(match[1]) > 510:
            raise InputError(f"--in {text!r}; accepted: PORT=FILE with a port of 0 to 510, such as 0=a.pcap")
        if int(match[1]) in captures:
            raise InputError(f"--in {match[1]}=... is given twice; accepted: each port once")
        captures[int(match[1])] = match[2]
    return captures
