"""P4Runtime over gRPC: the control plane of a switch, in a process of its own.

p4info.py  fitting.py  values.py  matching.py  messages.py     what P4Info declares; what messages say, validated
store.py  rows.py  profiles.py  arrays.py  replication.py      the entities of a program, and who decides on writes
batch.py  reconcile.py  entities.py                            changes taken back, taken over, and read from files
arbitration.py  digests.py  packet_io.py                       who is the primary; digests and packets for it
inbox.py  mailbox.py  pipeline_config.py  runtime.py           one device and its clients
wire_format.py  places.py                                      bounds on what a client sends, and on calls under way
status.py  answers.py  listening.py  service.py                refusals; how they arrive; who can connect; the server
"""

import os

# The C core of gRPC writes lines of its own to standard error; what matters of them our errors say.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
