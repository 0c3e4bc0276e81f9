"""The embedded P4 switch: runs what p4c compiled for BMv2, with queues that share one link rate.

bmv2.py  codegen*.py  tables.py  externs.py  hashes.py     a program, and the functions and state made from it
packet.py  pipeline.py                                     one packet; one loaded program
traffic.py  device.py                                      queues and rates; the whole switch on a clock
pcap.py  ports.py  loop.py  replay.py                      frames from and to files, sockets and interfaces
operations.py                                              what a control plane may ask of the data path
p4info.py  entities.py  service.py                         P4Runtime over gRPC
"""
