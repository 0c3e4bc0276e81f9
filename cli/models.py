"""`tensorexpress models`: the model zoo, and one model layer by layer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import click

from tensorexpress import models as zoo
from tensorexpress.cli.options import check_file
from tensorexpress.units import PS_PER_MS, PS_PER_SECOND
from tensorexpress.workload import Workload, write_csv

_BYTES_PER_MB = 10**6


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.pass_context
def models(context: click.Context, as_json: bool) -> None:
    """List the models of the zoo; `models show NAME` prints one layer by layer."""
    if context.invoked_subcommand is not None:
        return
    rows = [_summary(zoo.architecture(name)) for name in zoo.names()]
    click.echo(json.dumps(rows, indent=2) if as_json else _list_table(rows))


@models.command()
@click.argument("name")
@click.option("--batch", type=click.IntRange(min=1), help="Samples a worker takes at a time [the model's default].")
@click.option("--device", default="v100", show_default=True, help=f"One of {', '.join(zoo.DEVICES)}.")
@click.option("--csv", "csv_file", metavar="FILE", help="Also write the layers as a CSV in SwitchML's format.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.pass_context
def show(
    context: click.Context, name: str, batch: int | None, device: str, csv_file: str | None, as_json: bool
) -> None:
    """Print the layers of model NAME in forward order, with their times on a device."""
    check_file("--csv", csv_file)
    model = zoo.architecture(name)
    workload = zoo.load(name, batch or 0, device)
    details = _details(model, workload, batch or model.default_batch, zoo.DEVICES[device.lower()])
    if csv_file is not None:
        write_csv(workload, csv_file)
        click.echo(f"wrote {csv_file}", err=True)
    # `models --json show NAME` means the same as `models show NAME --json`.
    as_json = as_json or bool(context.parent and context.parent.params["as_json"])
    click.echo(json.dumps(details, indent=2) if as_json else _show_table(details))


def _summary(model: zoo.ModelArchitecture) -> dict[str, Any]:
    largest = max(model.layers, key=lambda layer: layer.params)
    return {
        "name": model.name,
        "title": model.title,
        "layers": len(model.layers),
        "params": model.params,
        "bytes": model.params * Workload.bytes_per_param,
        "flops_per_sample": model.flops,
        "largest_layer": largest.name,
        "largest_share": largest.params / model.params,
        "default_batch": model.default_batch,
        "sample": model.sample,
        "source": model.source,
    }


def _details(model: zoo.ModelArchitecture, workload: Workload, batch: int, device: zoo.Device) -> dict[str, Any]:
    forward_ps = sum(layer.forward_ps for layer in workload.layers)
    backward_ps = sum(layer.backward_ps for layer in workload.layers)
    return _summary(model) | {
        "batch": batch,
        "device": device.name,
        "device_title": device.title,
        "effective_flops": device.rate(model.family),
        "forward_ps": forward_ps,
        "backward_ps": backward_ps,
        "samples_per_second": batch * PS_PER_SECOND / (forward_ps + backward_ps),
        "layers": [
            {
                "index": index,
                "name": layer.name,
                "params": layer.params,
                "share": layer.params / model.params,
                "forward_ps": layer.forward_ps,
                "backward_ps": layer.backward_ps,
            }
            for index, layer in enumerate(workload.layers)
        ],
    }


def _list_table(rows: Iterable[dict[str, Any]]) -> str:
    head = ("model", "layers", "parameters", "MB", "largest", "batch", "source")
    cells = [
        (
            row["name"],
            f"{row['layers']}",
            f"{row['params']:,}",
            f"{row['bytes'] / _BYTES_PER_MB:,.1f}",
            f"{row['largest_share']:.1%}",
            f"{row['default_batch']}",
            row["source"],
        )
        for row in rows
    ]
    return _table([head, *cells], "<>>>>><")


def _show_table(details: dict[str, Any]) -> str:
    total_ms = (details["forward_ps"] + details["backward_ps"]) / PS_PER_MS
    title = (
        f"{details['title']} ({details['source']}), batch {details['batch']} on {details['device_title']}\n"
        f"a sample is {details['sample']}, {details['flops_per_sample'] / 1e9:,.4g} GFLOPs forward; "
        f"training reaches {details['effective_flops'] / 1e12:g} TFLOP/s\n"
    )
    head = ("#", "layer", "parameters", "share", "forward ms", "backward ms")
    cells = [(f"{layer['index']}", layer["name"], *_costs(layer)) for layer in details["layers"]]
    total = ("", "total", *_costs(details | {"share": 1.0}))
    footer = (
        f"\ncompute of an iteration {total_ms:,.4g} ms, {details['samples_per_second']:,.4g} samples/s; "
        f"gradients {details['bytes'] / _BYTES_PER_MB:,.1f} MB"
    )
    return f"{title}\n{_table([head, *cells, total], '><>>>>')}\n{footer}"


def _costs(row: dict[str, Any]) -> tuple[str, str, str, str]:
    return (
        f"{row['params']:,}",
        f"{row['share']:.1%}",
        f"{row['forward_ps'] / PS_PER_MS:,.3f}",
        f"{row['backward_ps'] / PS_PER_MS:,.3f}",
    )


def _table(rows: Sequence[Sequence[str]], aligns: str) -> str:
    """Return rows as lines of columns, each aligned to the left (<) or the right (>)."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:{align}{width}}" for cell, align, width in zip(row, aligns, widths, strict=True)).rstrip()
        for row in rows
    )
