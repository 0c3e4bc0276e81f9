"""Entities of P4Runtime: messages validated and turned into frozen values, and turned back into messages.

Everything here depends on the message and the schema alone. What depends on the other entities (is the member there,
is the table full) is decided by store.py.

table_entries.py  selectors.py               entries of tables; members and groups of action profiles
cells.py  replicas.py                        cells of counters, meters and registers; multicast groups, clone sessions
value_sets.py  digest_configs.py             parser value sets; how digests are gathered
checks.py                                    what all of them check
"""
