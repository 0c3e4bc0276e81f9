"""The embedded P4 switch: runs what p4c compiled for BMv2, with queues that share one link rate.

program/                                                   BMv2 JSON compiled to Python functions, and their state
packet.py  copies.py                                       one packet as the stages see it, and its copies
packed.py                                                  many frames in one piece of memory
traffic.py  counted.py                                     queues and rates; what ports count
configuration.py  device.py                                what a controller has set; the whole switch on a clock
pcap.py  replay.py                                         frames from and to files, in virtual time
ports.py  offload.py  loop.py  link.py  running.py         sockets and interfaces, in real time and two processes
operations.py                                              what a control plane may ask of the data path
p4runtime/                                                 P4Runtime over gRPC
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorexpress.switch.replay import VirtualSwitch as VirtualSwitch

__all__ = ["VirtualSwitch"]


def __getattr__(name: str) -> Any:
    if name != "VirtualSwitch":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Hosts use some modules of this package, and start sooner without the whole switch.
    from tensorexpress.switch.replay import VirtualSwitch

    return VirtualSwitch
