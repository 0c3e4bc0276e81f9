"""Training as other tools write it down: profiles and workloads that are read, and traces that are written.

`imported.py` is the value that every reader makes, `recognise.py` finds out which reader a file is for; there is one
module for each format. docs/import.md says what each format tells and what it leaves open.
"""
