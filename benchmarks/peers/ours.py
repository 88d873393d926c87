"""rotrnn itself, measured as its peers are."""

from __future__ import annotations

from typing import Any

import numpy as np

import rotrnn
from benchmarks.model import PATHS
from benchmarks.peers.problem import BETA1, BETA2, DECAY, EPS, LR, Array, Scan, Training, Trial
from rotrnn.nn.blocks.pool import MeanPool
from rotrnn.nn.layer import unflatten
from rotrnn.ops.pointwise import cross_entropy
from rotrnn.ops.scan import diagonal_scan, diagonal_scan_backward
from rotrnn.training.optimiser import AdamW


def scan(problem: Scan) -> Trial:
    return Trial(lambda: diagonal_scan(problem.a, problem.x), lambda h: {"h": h})


def scan_gradient(problem: Scan) -> Trial:
    a, x, dh = problem

    def step() -> tuple[Any, Array, Array]:
        h = diagonal_scan(a, x)
        grads = diagonal_scan_backward(dh, a, h)
        return h, grads.dx, grads.da

    return Trial(step, lambda answer: dict(zip(("h", "dx", "da"), answer, strict=True)))


def training(problem: Training) -> Trial:
    block, head, flat, x, labels, precision = problem
    ctx, pool = next(iter(PATHS.values())), MeanPool()
    params = unflatten(flat)
    optimiser = AdamW(lr=LR, weight_decay=DECAY, betas=(BETA1, BETA2), eps=EPS, warmup=0)
    moments = optimiser.init(params)

    def run() -> float:
        y, saved_block = block.forward(params["block"], x, ctx)
        y, saved_pool = pool.forward({}, y, ctx)
        logits, saved_head = head.forward(params["head"], y)
        loss, dlogits = cross_entropy(logits, labels)
        dy, dhead = head.backward(params["head"], saved_head, dlogits)
        dy, _ = pool.backward({}, saved_pool, dy)
        _, dblock, _ = block.backward(params["block"], saved_block, dy)
        optimiser.update(params, {"block": dblock, "head": dhead}, moments, lambda name: "global", 0, 1)
        return loss

    def step() -> float:
        with rotrnn.precision(precision):
            return run()

    def answer(loss: float) -> dict[str, Array]:
        grads = {name[2:]: m / (1 - BETA1) for name, m in moments.items() if name.startswith("m.")}
        return {"loss": np.asarray(loss), **grads}

    return Trial(step, answer)
