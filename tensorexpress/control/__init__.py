"""The controller: a plan as table entries, written to switches over P4Runtime.

messages.py  entities/                        P4Info by name; what a controller can set, one class for each kind
controls.py  readings.py                      what controls of the P4 program declare; what they count
guard.py  hashed.py  aggregate.py  forward.py  classify.py  mark.py  checksum.py
                                              one module for each P4 control, by the same name
intent.py                                     a plan, one of its switches, and what is decided beside the plan
client.py  reconcile.py                       one connection; only the difference is written
probe.py                                      which queues a switch has, found out without changing it
deploy.py  status.py  report.py               several switches; what they did; the same for people and programs
"""

from __future__ import annotations

import os

# gRPC logs every failed handshake to standard error by itself. Here all failures are errors that say what to do.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
