"""The TensorExpress header: its bytes, its scapy layer, its DSCP."""
