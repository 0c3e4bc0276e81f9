"""Hosts: tagging packets by a plan, and moving tensors reliably between processes."""
