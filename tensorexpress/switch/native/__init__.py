"""A switch whose packets meet no Python: arrivals, queues, links and sockets as machine code around a native program.

settings  which ports can be native
words     where everything is in memory
machine   addresses, and what compiled functions can do with them
queues    buffers and strict-priority queues of ports; the other form of `traffic.py`
steps     from arrival to departure; the other form of `device.py`
sockets   batches of frames from and to the kernel
captures  records of frames from and to the kernel, for capture files
turns     waiting for sockets and the clock; the other form of a turn of `loop.py`
build     these compiled, and kept on disk
arena     the memory
trays     memory for records of captures, and who empties it
port      a port as Python sees it
device    the switch: what native code cannot do is done by Python, packet by packet and in order
"""
