"""A ResNet-18 on images of two classes, in PyTorch."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rotrnn.tasks.task import Split, Task

WIDTHS = (64, 128, 256, 512)
"""Channels of the four stages, two blocks each: 11 million parameters."""
LR, DECAY, RISE = 1e-3, 0.05, 0.05
"""Of AdamW: the rate rises for that part of all steps, and falls to 0 with a cosine."""
EVERY, CHECKED = 125, 2000
"""After so many steps, so many images of the validation split."""


class Point(NamedTuple):
    """Where training stands: mean loss of the steps since the last point, and what validation gives."""

    step: int
    loss: float
    val_accuracy: float
    seconds: float


class Block(nn.Module):
    """Two convolutions, and a way around them (He et al. 2016, Fig. 5 left)."""

    def __init__(self, d_in: int, d_out: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = conv(d_in, d_out, 3, stride), conv(d_out, d_out, 3, 1)
        self.around = nn.Identity() if d_in == d_out else conv(d_in, d_out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(F.relu(self.first(x))) + self.around(x))


def conv(d_in: int, d_out: int, size: int, stride: int) -> nn.Module:
    """A convolution and its norm."""
    return nn.Sequential(nn.Conv2d(d_in, d_out, size, stride, size // 2, bias=False), nn.BatchNorm2d(d_out))


def resnet18(widths: tuple[int, ...] = WIDTHS) -> nn.Module:
    """(n, 1, side, side) to (n, 2); the form for small images: it begins with a convolution of 3 x 3 and no pooling."""
    layers = [conv(1, widths[0], 3, 1), nn.ReLU()]
    for d_in, d_out in zip((widths[0], *widths), widths, strict=False):
        layers += [Block(d_in, d_out, 1 if d_in == d_out else 2), Block(d_out, d_out, 1)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 2)]
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


class Trial:
    """A network in training on a task of square grey images, one pixel a step.

    Parameters
    ----------
    widths : tuple of int
        Channels of the stages, each twice the one before.
    bfloat16 : bool
        Of convolutions; parameters stay float32.
    """

    def __init__(self, task: Task, widths: tuple[int, ...], *, batch: int, epochs: int, bfloat16: bool) -> None:
        torch.manual_seed(0)
        self.task, self.batch, self.epochs, self.bfloat16 = task, batch, epochs, bfloat16
        self.net = resnet18(widths)
        self.parameters = sum(one.numel() for one in self.net.parameters())
        self.steps = epochs * math.ceil(len(task.train) / batch)
        self.losses: list[float] = []

    def train(self) -> Iterator[Point]:
        """All steps; a point after every `EVERY`, and after the last."""
        optimiser = torch.optim.AdamW(self.net.parameters(), LR, weight_decay=DECAY)
        rise = math.ceil(RISE * self.steps)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimiser, lambda k: min((k + 1) / rise, (1 + math.cos(math.pi * k / self.steps)) / 2)
        )
        rng, begin, since = np.random.default_rng(0), time.perf_counter(), 0
        for _ in range(self.epochs):
            for x, y in self._batches(self.task.train, rng.permutation(len(self.task.train))):
                loss = F.cross_entropy(self._scores(x), y)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
                self.losses.append(loss.item())
                step = len(self.losses)
                if step % EVERY == 0 or step == self.steps:
                    mean, since = float(np.mean(self.losses[since:])), step
                    yield Point(step, mean, self.accuracy(self.task.val, CHECKED), time.perf_counter() - begin)

    def accuracy(self, split: Split, most: int) -> float:
        """Over the first images of a split."""
        self.net.eval()
        with torch.no_grad():
            right = [self._scores(x).argmax(1) == y for x, y in self._batches(split, np.arange(min(most, len(split))))]
        self.net.train()
        return torch.cat(right).double().mean().item()

    def _scores(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16):
            return self.net(x).float()

    def _batches(self, split: Split, order: np.ndarray) -> Iterator[tuple[Tensor, Tensor]]:
        for at in range(0, len(order), self.batch):
            pixels, labels, _ = split.batch(order[at : at + self.batch])
            side = math.isqrt(pixels.shape[1])
            x = torch.from_numpy(pixels.reshape(-1, 1, side, side)).contiguous(memory_format=torch.channels_last)
            yield x, torch.from_numpy(labels)
