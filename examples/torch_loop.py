"""Trains a classifier of handwritten digits, row by row of pixels, in PyTorch's own loop.

    pip install '.[torch,data]'
    python examples/torch_loop.py [--steps N]

The encoder, the norm and the head are PyTorch's layers, with a recurrent layer of rotrnn between them. Batches come
from a DataLoader, and torch.optim.AdamW updates all parameters alike.
"""

from __future__ import annotations

import argparse
from itertools import islice

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset, random_split

import rotrnn.torch


class Classifier(torch.nn.Module):
    """Logits (B, 10) of images, which are sequences (B, 64, 1) of pixels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder = torch.nn.Linear(1, width)
        self.norm = torch.nn.LayerNorm(width)
        self.layer = rotrnn.torch.LRU(d_model=width, d_state=2 * width, r_min=0.9, r_max=0.999)
        self.head = torch.nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.encoder(x)
        x = x + torch.nn.functional.gelu(self.layer(self.norm(x)))
        logits: torch.Tensor = self.head(x.mean(1))
        return logits


def accuracy(net: torch.nn.Module, data: DataLoader[tuple[torch.Tensor, ...]]) -> float:
    """The share of images that are classified correctly."""
    net.eval()
    with torch.no_grad():
        right = [(net(images).argmax(1) == labels).float() for images, labels in data]
    net.train()
    return torch.cat(right).mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600, help="updates of the parameters (600)")
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.from_numpy(digits.data).float().unsqueeze(2) / 16
    train, test = random_split(TensorDataset(images, torch.from_numpy(digits.target)), [1500, 297])
    net = Classifier(32)
    optimiser = torch.optim.AdamW(net.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    loader = DataLoader(train, batch_size=50, shuffle=True)
    epochs = (batch for _ in range(steps) for batch in loader)
    for step, (x, labels) in enumerate(islice(epochs, steps), 1):
        loss = torch.nn.functional.cross_entropy(net(x), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % 100 == 0 or step == steps:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    print(f"test accuracy {100 * accuracy(net, DataLoader(test, batch_size=297)):.1f} %")


if __name__ == "__main__":
    main()
