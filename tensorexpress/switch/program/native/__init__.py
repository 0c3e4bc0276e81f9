"""The second back end: a BMv2 program as machine code, through LLVM IR, and the memory that it works on.

It stands on what the first one (codegen/) found out: which variables are used where, what ingress hands to egress.

generate.py  unit.py                        the module: ingress and egress, and what its writers share
layout.py  rows.py                          where everything is: the context of a packet, rows of tables
code.py  numbers.py                         IR as text; whole numbers that are as wide as their values
regions.py                                  the memory that an access may use, and the proof that it stays inside
checking.py  checking.ll                    the checked build: a test in front of every access
regions.py                                  the memory that an access may use, and the proof that it stays inside
checking.py  checking.ll                    the checked build: a test in front of every access
parser.py  tables.py  actions.py            the stages of a program: states, tables, actions
primitives.py  expressions.py               what they consist of
headers.py  hashing.py  runtime.ll          fields and headers on the wire; hashes; what every program calls
memory.py  pipeline.py                      tables, registers and counters in memory; packets through them

`tensorexpress/machine_code.py` makes machine code of the IR.
"""
