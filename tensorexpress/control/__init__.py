"""The controller: a plan as table entries, written to switches over P4Runtime.

addresses.py (beside this package)                what hosts are called
entries.py  messages.py                           entries by name; the same as P4Runtime messages, by P4Info
intent.py  guard.py  forward.py  classify.py  mark.py   what a plan wants, one module for each P4 control
limits.py                                         what a program has room for
client.py  reconcile.py                           one connection; only the difference is written
probe.py                                          which queues a switch has, found out without changing it
deploy.py  status.py  report.py                   several switches; what they did; the same for people and programs
"""

from __future__ import annotations

import os

# gRPC logs every failed handshake to standard error by itself. Here all failures are errors that say what to do.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
