"""Options that name switches and how to reach them; several verbs share them."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import click

from tensorexpress.cli import Command
from tensorexpress.control_address import DEFAULT_PORT, DEFAULT_SHOWN, default_address, parse_address
from tensorexpress.errors import InputError

if TYPE_CHECKING:
    from tensorexpress.control.client import RemoteSwitch


def target_options(command: Command) -> Command:
    """Add --switch, --device-id and the files of TLS."""
    for option in (
        click.option("--tls-key", metavar="FILE", help="PEM key of this controller."),
        click.option("--tls-cert", metavar="FILE", help="PEM certificate of this controller, for switches that ask."),
        click.option("--tls-ca", metavar="FILE", help="Speak TLS with switches that this PEM certificate vouches for."),
        click.option(
            "--device-id",
            "device_ids",
            metavar="[NAME=]NUMBER",
            multiple=True,
            help="P4Runtime's device id of all switches, or of one; may be repeated.  [default: 1]",
        ),
        click.option(
            "--switch",
            "switches",
            metavar="NAME[=ADDRESS]",
            multiple=True,
            help="A switch, and its address: HOST[:PORT], [IPV6][:PORT] or unix:PATH; may be repeated.  "
            f"[default address: {DEFAULT_SHOWN}, ID: its device id; default port: {DEFAULT_PORT}]",
        ),
    ):
        command = option(command)
    return command


def read_targets(
    switches: Sequence[str],
    device_ids: Sequence[str],
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    election_id: int = 1,
) -> list[RemoteSwitch]:
    """Return the switches that the options name."""
    if not switches:
        raise InputError(f"no switch is named; give --switch NAME for this user's switch, or {_ACCEPTED}")
    from tensorexpress.target.controlled import check_p4runtime

    check_p4runtime()
    from tensorexpress.control.client import ClientTls, RemoteSwitch, check_files

    tls = ClientTls(tls_ca, tls_cert, tls_key) if tls_ca or tls_cert or tls_key else None
    check_files(tls)
    addresses = _addresses(switches)
    of_all, of_one = _device_ids(device_ids, addresses)
    ids = {name: of_one.get(name, of_all) for name in addresses}
    return [
        RemoteSwitch(name, address or str(default_address(ids[name])), ids[name], election_id, tls)
        for name, address in addresses.items()
    ]


_ACCEPTED = f"NAME=ADDRESS, such as s0=127.0.0.1:{DEFAULT_PORT} or s0=unix:PATH"


def _addresses(switches: Sequence[str]) -> dict[str, str | None]:
    """Return the address of every switch; None for the default."""
    addresses: dict[str, str | None] = {}
    for text in switches:
        name, equals, address = text.partition("=")
        if not name or (equals and not address):
            raise InputError(f"--switch {text!r}; accepted: NAME for this user's switch, or {_ACCEPTED}")
        if name in addresses:
            raise InputError(f"--switch {name} is given twice; accepted: one address for each switch")
        said = f"--switch {text!r}"
        addresses[name] = str(parse_address(address, said, default_port=DEFAULT_PORT)) if equals else None
    return addresses


def _device_ids(device_ids: Sequence[str], switches: Collection[str]) -> tuple[int, dict[str, int]]:
    """Return the device id of all switches, and those of single ones."""
    of_all, of_one = 1, {}
    for text in device_ids:
        name, equals, number = text.rpartition("=")
        if not re.fullmatch("[0-9]{1,20}", number) or int(number) >= 2**64:
            raise InputError(f"--device-id {text!r}; accepted: a number, or NAME=NUMBER such as s0=1")
        if not equals:
            of_all = int(number)
        elif name in switches:
            of_one[name] = int(number)
        else:
            raise InputError(f"--device-id {text!r}: no --switch {name}; accepted: {', '.join(switches)}")
    return of_all, of_one
