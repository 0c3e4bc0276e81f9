"""Commits of asynchronous training: whose update goes first, which are summed on the way, what a replica may lack."""
