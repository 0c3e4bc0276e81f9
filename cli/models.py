"""`tensorexpress models`: the model zoo, one model layer by layer, and the devices that compute them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import click

from tensorexpress import models as zoo
from tensorexpress.cli.options import check_file
from tensorexpress.sparse import rows_sent
from tensorexpress.units import PS_PER_MS, PS_PER_SECOND
from tensorexpress.workload import DTYPE_BYTES, Workload, write_csv

_BYTES_PER_MB = 10**6


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.pass_context
def models(context: click.Context, as_json: bool) -> None:
    """List the models of the zoo; `models show NAME` prints one layer by layer, `models devices` what computes."""
    if context.invoked_subcommand is not None:
        return
    rows = [_summary(zoo.architecture(name)) for name in zoo.names()]
    click.echo(json.dumps(rows, indent=2) if as_json else _list_table(rows))


@models.command()
@click.argument("name")
@click.option("--batch", type=click.IntRange(min=1), help="Samples a worker takes at a time [the model's default].")
@click.option("--device", help=f"One of {', '.join(zoo.DEVICES)} [v100; a100 if --dtype is bf16 or tf32].")
@click.option("--dtype", default="", help="fp32, tf32, bf16 or fp16 [what frameworks use on the device].")
@click.option("--csv", "csv_file", metavar="FILE", help="Also write the layers as a CSV in SwitchML's format.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.pass_context
def show(
    context: click.Context,
    name: str,
    batch: int | None,
    device: str | None,
    dtype: str,
    csv_file: str | None,
    as_json: bool,
) -> None:
    """Print the layers of model NAME in forward order, with their times on a device."""
    check_file("--csv", csv_file)
    model = zoo.architecture(name)
    device = device or zoo.usual_device(dtype)
    workload = zoo.load(name, batch or 0, device, dtype)
    details = _details(model, workload, zoo.DEVICES[device.lower()])
    if csv_file is not None and write_csv(workload, csv_file):
        click.echo(f"wrote {csv_file}", err=True)
    click.echo(json.dumps(details, indent=2) if _wants_json(context, as_json) else _show_table(details))


@models.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.pass_context
def devices(context: click.Context, as_json: bool) -> None:
    """List the devices with the TFLOP/s that training reaches on each family of layers, and where they come from."""
    rows = [
        {"name": device.name, "title": device.title, "dtype": dtype, **rates._asdict(), "source": device.source}
        for device in zoo.DEVICES.values()
        for dtype, rates in device.rates.items()
    ]
    click.echo(json.dumps(rows, indent=2) if _wants_json(context, as_json) else _devices_table(rows))


def _wants_json(context: click.Context, as_json: bool) -> bool:
    """Whether JSON is asked for: `models --json show NAME` means the same as `models show NAME --json`."""
    return as_json or bool(context.parent and context.parent.params["as_json"])


def _summary(model: zoo.ModelArchitecture) -> dict[str, Any]:
    largest = max(model.layers, key=lambda layer: layer.params)
    return {
        "name": model.name,
        "title": model.title,
        "layers": len(model.layers),
        "params": model.params,
        "bytes": model.params * DTYPE_BYTES["fp32"],
        "flops_per_sample": model.flops,
        "largest_layer": largest.name,
        "largest_share": largest.params / model.params,
        "default_batch": model.default_batch,
        "sample": model.sample,
        "source": model.source,
    }


def _details(model: zoo.ModelArchitecture, workload: Workload, device: zoo.Device) -> dict[str, Any]:
    forward_ps = sum(layer.forward_ps for layer in workload.layers)
    backward_ps = sum(layer.backward_ps for layer in workload.layers)
    return _summary(model) | {
        "bytes": sum(workload.tensor_bytes),
        "batch": workload.batch,
        "device": device.name,
        "device_title": device.title,
        "device_source": device.source,
        "dtype": workload.dtype,
        "effective_flops": model.flops * workload.batch * PS_PER_SECOND / forward_ps,
        "forward_ps": forward_ps,
        "backward_ps": backward_ps,
        "samples_per_second": workload.batch * PS_PER_SECOND / (forward_ps + backward_ps),
        "layers": [
            {
                "index": index,
                "name": layer.name,
                "params": layer.params,
                "share": layer.params / model.params,
                "forward_ps": layer.forward_ps,
                "backward_ps": layer.backward_ps,
                "bytes": size,
                "table": layer.table and asdict(layer.table) | {"rows_sent": rows_sent(layer.table)},
            }
            for index, (layer, size) in enumerate(zip(workload.layers, workload.tensor_bytes, strict=True))
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


def _devices_table(rows: Iterable[dict[str, Any]]) -> str:
    families = [family.value for family in zoo.Family]
    head = ("device", "dtype", *(family.replace("_", " ") for family in families), "peak")
    cells = [
        (row["name"], row["dtype"], *(f"{row[family] / 1e12:.3g}" for family in families), f"{row['peak'] / 1e12:.4g}")
        for row in rows
    ]
    sources = [(row["name"], row["source"]) for row in rows]
    return f"{_table([head, *cells], '<<' + '>' * (len(head) - 2))}\n\n{_table(list(dict.fromkeys(sources)), '<<')}"


def _show_table(details: dict[str, Any]) -> str:
    total_ms = (details["forward_ps"] + details["backward_ps"]) / PS_PER_MS
    title = (
        f"{details['title']} ({details['source']}), batch {details['batch']} on "
        f"{details['device_title']}, {details['dtype'].upper()}\n"
        f"a sample is {details['sample']}, {details['flops_per_sample'] / 1e9:,.4g} GFLOPs forward; "
        f"training reaches {details['effective_flops'] / 1e12:.3g} TFLOP/s\n"
    )
    head = ["#", "layer", "parameters", "share", "forward ms", "backward ms"]
    rows = [[f"{layer['index']}", layer["name"], *_costs(layer)] for layer in details["layers"]]
    total = ["", "total", *_costs(details | {"share": 1.0})]
    if any(layer["table"] for layer in details["layers"]):
        head += ["keys", "width", "lookups", "rows sent"]
        rows = [[*row, *_table_cells(layer)] for row, layer in zip(rows, details["layers"], strict=True)]
        total += [""] * 4
    footer = (
        f"\ncompute of an iteration {total_ms:,.4g} ms, {details['samples_per_second']:,.4g} samples/s; "
        f"gradients {details['bytes'] / _BYTES_PER_MB:,.1f} MB"
    )
    return f"{title}\n{_table([head, *rows, total], '><' + '>' * (len(head) - 2))}\n{footer}"


def _table_cells(layer: dict[str, Any]) -> list[str]:
    if layer["table"] is None:
        return [""] * 4
    return [f"{layer['table'][name]:,}" for name in ("keys", "width", "lookups", "rows_sent")]


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
