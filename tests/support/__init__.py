"""What tests share; none of it is collected.

| module | what it gives |
|---|---|
| `strategies` | random small scenarios, plans and policies for property tests |
| `passes`, `scripted` | a P4 program without queues around it; a program written in Python, with them |
| `deployed` | the P4 program with the entries of a plan, in virtual time; frames to send through it |
| `stf` | p4c's own language of tests, read and run; also a command |
| `runtime_support`, `runtime_oracle` | a P4Runtime client and a strict data path; what a server must answer |
| `switches` | switches that answer P4Runtime: embedded or BMv2 |
| `virtual_network` | links between endpoints that lose and reorder, in virtual time |
| `network`, `namespace_sockets` | virtual cables and network namespaces; sockets inside them; root only |
| `training_run`, `transport_process` | small training runs and hosts of the transport; also started as processes |
| `pages` | runs a page of docs/ from top to bottom and compares what it prints |
| `quick` | the fast tier, and what is too slow for it |
| `thorough` | what `make test` leaves to `make rest`, and both to `make thorough` |

Tests import `support.x`: pytest puts tests/ on the path.
"""
