"""tensorexpress decode: what tensors a capture holds, in which queues, and how long they took."""

from __future__ import annotations

import click

from tensorexpress.cli.options import check_outputs, write_json
from tensorexpress.errors import CaptureError


@click.command(short_help="Show the tensors, queues and latencies in a capture.")
@click.argument("capture", metavar="FILE")
@click.argument("later", metavar="[LATER]", required=False)
@click.option("--json", "json_path", metavar="FILE", help="Write the table as JSON; - prints it instead.")
def decode(capture: str, later: str | None, json_path: str | None) -> None:
    """Show the tensor packets of a capture: a line for every tensor of a job.

    Files are pcap or pcapng, of Ethernet or of Linux cooked frames (`tcpdump -i any`). Of a file that was cut off the
    whole frames are shown, and then where it ends; the exit status is 2.

    Latency is the time from the first to the last packet of a tensor that one sender sends in one iteration: mean and
    longest. A second file, captured further on the packets' way by the same clock, adds how long packets took from
    one place to the other, and how many did not arrive.

    \b
      tensorexpress decode port0-in.pcap
      tensorexpress decode port0-in.pcap port2-out.pcap --json -
    """
    from tensorexpress.host import captures

    check_outputs(json_path)
    files = [captures.decode_file(path) for path in (capture, later) if path is not None]
    decoded = files[0][0]
    rows = captures.tensor_rows(*(recorded for recorded, _ in files))
    if json_path is not None:
        write_json(json_path, captures.as_json(decoded, rows))
    if json_path != "-":
        click.echo(captures.as_table(decoded, rows))
    damage = [str(error) for _, error in files if error is not None]
    if damage:
        raise CaptureError("; ".join(damage))
