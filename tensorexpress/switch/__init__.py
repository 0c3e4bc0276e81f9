"""The embedded P4 switch: runs what p4c compiled for BMv2, with queues that share one link rate.

program/                                                   BMv2 JSON compiled to Python functions, and their state
packet.py                                                  one packet, and what the stages tell each other about it
traffic.py  device.py                                      queues and rates; the whole switch on a clock
pcap.py  replay.py                                         frames from and to files, in virtual time
ports.py  offload.py  loop.py  link.py  running.py         sockets and interfaces, in real time and two processes
operations.py                                              what a control plane may ask of the data path
p4runtime/                                                 P4Runtime over gRPC
"""

from tensorexpress.switch.replay import VirtualSwitch

__all__ = ["VirtualSwitch"]
