"""tensorexpress decode: what tensors a capture holds, in which queues, and how long they took."""

from __future__ import annotations

import click

from tensorexpress.cli.options import check_outputs, write_json


@click.command(short_help="Show the tensors, queues and latencies in a capture.")
@click.argument("capture", metavar="FILE.pcap")
@click.argument("later", metavar="[LATER.pcap]", required=False)
@click.option("--json", "json_path", metavar="FILE", help="Write the table as JSON; - prints it instead.")
def decode(capture: str, later: str | None, json_path: str | None) -> None:
    """Show the tensor packets of a pcap file: a line for every tensor of a job.

    Latency is the time from the first to the last packet of a tensor that one sender sends in one iteration: mean and
    longest. A second file, captured further on the packets' way by the same clock, adds how long packets took from
    one place to the other, and how many did not arrive.

    \b
      tensorexpress decode port0-in.pcap
      tensorexpress decode port0-in.pcap port2-out.pcap --json -
    """
    from tensorexpress.host import captures
    from tensorexpress.switch.pcap import read_pcap

    check_outputs(json_path)
    decoded = captures.decode(read_pcap(capture))
    rows = captures.tensor_rows(decoded, None if later is None else captures.decode(read_pcap(later)))
    if json_path is not None:
        write_json(json_path, captures.as_json(decoded, rows))
    if json_path != "-":
        click.echo(captures.as_table(decoded, rows))
