"""tensorexpress: in-network scheduling of tensors for distributed training."""
