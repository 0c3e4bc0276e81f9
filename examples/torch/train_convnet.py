"""Trains the small convolutional network of convnet.py: alone, or as one worker of a run.

python examples/torch/train_convnet.py
tensorexpress run examples/torch/convnet.toml --script examples/torch/train_convnet.py
"""

from __future__ import annotations

import torch
from convnet import batch, model
from torch.nn import functional

import tensorexpress.torch as te


def main(steps: int = 20) -> None:
    """Train for so many steps, or as many as the run has."""
    session = te.join(steps=steps)
    trained = model()
    optimizer = session.distribute(trained, torch.optim.SGD(trained.parameters(), lr=0.05, momentum=0.9))
    for step in range(session.steps):
        for pictures, labels in session.shards(*batch(seed=step)):
            loss = functional.cross_entropy(trained(pictures), labels)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if session.worker == 0 and step % 10 == 0:
            print(f"step {step}: loss {float(loss.detach()):.4f}", flush=True)


if __name__ == "__main__":
    main()
