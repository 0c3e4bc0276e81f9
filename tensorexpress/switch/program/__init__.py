"""A P4 program: BMv2 JSON read, checked and compiled to Python functions or machine code, and the state they work on.

bmv2/  budgets.py                          what the JSON says, as frozen values; what it may cost
codegen/                                   the text of the functions: ingress, egress, deparser
native/                                    the same as machine code, and its memory
compiled.py                                what comes out of both, for another process to load
tables.py  match_kinds.py                  what the functions look up, and how fields match
externs.py  hashes.py                      what they count, keep and compute with
pipeline.py  engines.py                    a program that is loaded and runs, and in what
"""
