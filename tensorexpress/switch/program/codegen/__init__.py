"""The text of the functions that packets run through, made from a BMv2 program.

generate.py  standard.py                               the functions; the metadata and decisions they begin and end with
section.py  context.py                                 one section of code, and its writers put together
parser.py  control.py  tables.py  actions.py           the stages of a program, and what they run
assignments.py  externs.py  decisions.py               the primitives that actions consist of
expressions.py  references.py  checksums.py            values, what they refer to, hashes over them
headers.py                                             whole headers: out of the frame, copied, back into bytes
flow.py                                                graphs of states, tables or jumps as nested statements
scope.py  variables.py  layout.py                      which variables there are, who uses them, how headers are cut
identifiers.py  lines.py  snippets.py                  names, lines and values as text

A writer adds lines, or returns the text of a value. None inherits from another: section.py hands each those it needs.
A primitive is a method of a writer, in its `primitives`.
"""
