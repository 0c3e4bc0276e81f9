"""P4Runtime over gRPC: the control plane of a switch, in a process of its own.

p4info.py  data_types.py  fitting.py                           what P4Info declares; whether a program fits it
values.py  matching.py  messages/                              what messages say, validated
store.py  rows.py  profiles.py  arrays.py  replication.py      the entities of a program, and who decides on writes
batch.py  reconcile.py  entities.py                            changes taken back, taken over, and read from files
pipeline_config.py  pipelines.py                               a program as clients send it; which one runs
arbitration.py  clients.py  mailbox.py  streams.py             who is the primary; what clients send and are told
inbox.py  notices.py  digests.py  packet_io.py                 what packets cause: packets and digests for the primary
runtime.py                                                     one device and its requests
wire_format.py  places.py                                      bounds on what a client sends, and on calls under way
status.py  answers.py  listening.py  service.py                refusals; how they arrive; who can connect; the server
"""

import os

# The C core of gRPC writes lines of its own to standard error; what matters of them our errors say.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
