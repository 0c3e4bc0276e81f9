"""The TensorExpress header: its bytes, its scapy layer, its dissector for Wireshark, its DSCP."""

from pathlib import Path

#: Lua for Wireshark and tshark.
DISSECTOR = Path(__file__).with_name("tensorexpress.lua")
