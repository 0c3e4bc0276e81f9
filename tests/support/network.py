"""Virtual cables and network namespaces for tests; root only."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from contextlib import ExitStack, contextmanager

import pytest

_numbers = itertools.count()


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def may_make_interfaces():
    """Whether this process may make a virtual cable, found out by making one."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        return False
    probe = f"te{os.getpid()}p"
    made = subprocess.run(["ip", "link", "add", probe, "type", "veth"], capture_output=True, check=False)
    if made.returncode == 0:
        ip("link", "del", probe)
    return made.returncode == 0


needs_root = pytest.mark.skipif(
    not may_make_interfaces(), reason="makes veth interfaces, which needs root and iproute2"
)


#: BMv2, if it is here.
BMV2 = shutil.which(os.environ.get("TENSOREXPRESS_BMV2", "simple_switch_grpc"))


def why_no_bmv2():
    """Return what BMv2 lacks to run on virtual cables here; "" is nothing."""
    if BMV2 is None:
        return "simple_switch_grpc is not on PATH, and TENSOREXPRESS_BMV2 names none"
    if shutil.which("ethtool") is None:
        return "BMv2 needs cables without offloads, and ethtool, which turns them off, is not on PATH"
    return ""


needs_bmv2 = pytest.mark.skipif(bool(why_no_bmv2()), reason=why_no_bmv2())


@contextmanager
def cable(mtu=9000):
    """A virtual cable with both ends here; gives the names of its ends.

    Where ethtool is there, all offloads are off, as BMv2 needs it; the embedded switch takes frames as they come.
    """
    number = next(_numbers)
    near, far = f"te{os.getpid()}c{number}", f"te{os.getpid()}d{number}"
    ip("link", "add", near, "mtu", str(mtu), "type", "veth", "peer", "name", far, "mtu", str(mtu))
    try:
        for end in (near, far):
            ip("link", "set", end, "addrgenmode", "none")
            ip("link", "set", end, "up")
            if shutil.which("ethtool") is None:
                continue
            offloads = [word for name in ("tso", "gso", "gro", "tx", "rx", "sg") for word in (name, "off")]
            subprocess.run(["ethtool", "-K", end, *offloads], check=True, capture_output=True)
        yield near, far
    finally:
        ip("link", "del", near)


@contextmanager
def host(address, mac, mtu=1500):
    """A namespace with one address, on a cable whose other end is here; gives (namespace, name of this end)."""
    number = next(_numbers)
    namespace = f"te{os.getpid()}n{number}"
    here, there = f"te{os.getpid()}a{number}", f"te{os.getpid()}b{number}"
    with ExitStack() as cleanup:
        ip("netns", "add", namespace)
        cleanup.callback(ip, "netns", "del", namespace)
        ip("link", "add", here, "mtu", str(mtu), "type", "veth", "peer", "name", there, "mtu", str(mtu))
        cleanup.callback(subprocess.run, ["ip", "link", "del", here], capture_output=True, check=False)
        ip("link", "set", there, "address", mac, "netns", namespace)
        # Without this the kernel's own discovery packets would mix with those of the test.
        for command in (("link", "set", here, "addrgenmode", "none"), ("link", "set", here, "up")):
            ip(*command)
        for command in (
            ("link", "set", "lo", "up"),
            ("link", "set", there, "addrgenmode", "none"),
            ("addr", "add", f"{address}/24", "dev", there),
            ("link", "set", there, "up"),
        ):
            ip("-n", namespace, *command)
        yield namespace, here


def neighbour(namespace, address, mac):
    """Tell a namespace the hardware address of another host, so that it need not ask."""
    device = subprocess.run(
        ["ip", "-n", namespace, "-o", "link", "show", "type", "veth"], check=True, capture_output=True, text=True
    ).stdout.split(": ")[1].split("@")[0]  # fmt: skip
    ip("-n", namespace, "neigh", "add", address, "lladdr", mac, "dev", device, "nud", "permanent")
    return device
