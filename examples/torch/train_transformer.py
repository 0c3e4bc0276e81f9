"""Trains the small language model of transformer.py: alone, or as one worker of a run.

python examples/torch/train_transformer.py
tensorexpress run examples/torch/transformer.toml --script examples/torch/train_transformer.py
"""

from __future__ import annotations

import torch
from torch.nn import functional
from transformer import batch, model

import tensorexpress.torch as te


def main(steps: int = 20) -> None:
    """Train for so many steps, or as many as the run has."""
    session = te.join(steps=steps)
    trained = model()
    optimizer = session.distribute(trained, torch.optim.AdamW(trained.parameters(), lr=3e-3))
    for step in range(session.steps):
        for tokens, following in session.shards(*batch(seed=step)):
            loss = functional.cross_entropy(trained(tokens).flatten(0, 1), following.flatten())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if session.worker == 0 and step % 10 == 0:
            print(f"step {step}: loss {float(loss.detach()):.4f}", flush=True)


if __name__ == "__main__":
    main()
