"""A P4 program: BMv2 JSON read, checked and compiled to Python functions, and the state they work on.

bmv2.py  budgets.py                                            what the JSON says, as frozen values; what it may cost
codegen.py  scope.py  flow.py  headers.py  checksum.py         the text of the functions: ingress, egress, deparser
parser.py  control.py  actions.py  expressions.py
tables.py  externs.py  hashes.py                               what they look up, count and compute with
pipeline.py                                                    a program that is loaded and runs
"""
