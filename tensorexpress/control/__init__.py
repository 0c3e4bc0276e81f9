"""The controller: a plan as table entries, written to switches over P4Runtime."""
