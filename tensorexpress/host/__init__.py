"""Hosts: tagging packets by a plan, and moving tensors reliably between processes.

tagging      what a packet says of its tensor, and how it is marked; for anybody who sends packets
captures     tensors, queues and latencies in a pcap file

segments     packets of the transport, written and read in bursts; kernel, frame_kernel: in compiled code
flow         windows, acknowledgements, loss of one flow; assembly puts messages together again
pool         slots, turns and exponents of one pool, where switches sum
scheduler    which flow or pool sends next; links to the kernel's stack, wire_link to a cable over UDP
endpoint     all of it as one end of the transport; cost measures what a packet takes

gradients    numbers that cost nothing to make and little to check
training     one host: an endpoint, its part in jobs, and what it saw
exchange     a host's part in a job's communication, as the job's graph says; summing where switches sum
worker       computes
process      one host as a process
"""
