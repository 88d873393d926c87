"""Trains the model of the audio effect: a small LRU that imitates a known nonlinear filter, sample by sample.

    python examples/c/effect.py [--steps 4000] [--out examples/c/effect.safetensors]

The filter is the Moog ladder of Huovilainen ("Non-linear digital implementation of the Moog ladder filter", DAFx 2004):
four one-pole low-passes with a tanh each, and feedback around them, driven hard enough to distort. It is computed here
in float64, one sample after the other. The model sees only its input and output, at 48 kHz.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import rotrnn

Array = npt.NDArray[Any]

RATE = 48_000
CUTOFF, RESONANCE, DRIVE = 1200.0, 2.0, 2.0
"""Hz; feedback, which would oscillate by itself at 4; gain before the first tanh."""

SETTINGS = rotrnn.ModelSettings(layer="lru", d_model=16, n_layers=3)
LAYER = {"d_state": 16, "r_min": 0.3, "r_max": 0.99, "max_phase": 0.5}
BATCH, WINDOW, WARM_UP = 16, 1024, 128
"""Sequences of a step, their samples, and the first samples that do not count: the model may settle."""


def ladder(x: Array) -> Array:
    """The known filter on x (B, T): ``y_k += g (tanh(y_{k-1}) - tanh(y_k))`` for its four stages, of which the first
    reads ``drive x - resonance y_4``; returns y_4, (B, T)."""
    g = 1 - np.exp(-2 * np.pi * CUTOFF / RATE)
    stages = np.zeros((4, len(x)))
    y = np.empty(x.shape)
    for t in range(x.shape[1]):
        below = np.tanh(DRIVE * x[:, t] - RESONANCE * stages[3])
        for stage in stages:
            stage += g * (below - np.tanh(stage))
            below = np.tanh(stage)
        y[:, t] = stages[3]
    return y


def sounds(rng: np.random.Generator, batch: int, samples: int) -> Array:
    """Sounds (B, T) in [-1, 1], each of its own kind, pitch and loudness: chords of saws, strings of decaying
    harmonics, sweeps, noise that is louder at low frequencies."""
    t = np.arange(samples) / RATE
    x = np.empty((batch, samples))
    for one in x:
        pitch = 55 * 2 ** rng.uniform(0, 4.5)
        kind = rng.integers(4)
        if kind == 0:  # a chord of saws
            pitches = pitch * rng.choice([1.0, 1.25, 1.5, 2.0], size=3)
            one[:] = sum(2 * ((p * t + rng.uniform()) % 1) - 1 for p in pitches) / 3
        elif kind == 1:  # harmonics that decay, the high ones faster
            k = np.arange(1, 1 + int(min(30, RATE / 2 // pitch)))[:, None]
            one[:] = (np.sin(2 * np.pi * (k * pitch * t + rng.uniform(size=k.shape))) * np.exp(-3 * k * t) / k).sum(0)
        elif kind == 2:  # a sweep
            end = 55 * 2 ** rng.uniform(0, 7)
            seconds = samples / RATE
            one[:] = np.sin(2 * np.pi * pitch * seconds * ((end / pitch) ** (t / seconds) - 1) / np.log(end / pitch))
        else:
            one[:] = np.convolve(rng.standard_normal(samples), 0.9 ** np.arange(64))[:samples]
        one *= 10 ** rng.uniform(-1, 0) / np.abs(one).max()
    return x


def error_db(y: Array, target: Array) -> float:
    """Energy of the error relative to the target's energy, in dB."""
    return float(10 * np.log10(np.sum((y - target) ** 2) / np.sum(target**2)))


def best_linear(x: Array, target: Array, taps: int = 200) -> Array:
    """What the best linear filter of so many samples makes of x (B, T), by least squares over all of the target: what
    a model has to beat that has learnt the distortion, too."""
    padded = np.pad(x, ((0, 0), (taps - 1, 0)))
    past = np.lib.stride_tricks.sliding_window_view(padded, taps, axis=1)  # (B, T, taps)
    squares = sum(one.T @ one for one in past) + 1e-9 * np.eye(taps)
    response = np.linalg.solve(squares, sum(one.T @ wanted for one, wanted in zip(past, target, strict=True)))
    return np.stack([one @ response for one in past])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".safetensors"))
    args = parser.parse_args()

    model = rotrnn.build_model(SETTINGS, LAYER, head="tagger", n_classes=1, n_features=1)
    params = model.init(np.random.default_rng(0))
    optimiser = rotrnn.AdamW(lr=6e-3, recurrent_factor=0.5, weight_decay=0.0, clip=1.0)
    moments, group_of = optimiser.init(params), optimiser.grouping(model.is_recurrent)

    rng = np.random.default_rng(1)
    heard = sounds(rng, 512, WINDOW)
    wanted = ladder(heard)
    for step in range(args.steps):
        rows = rng.integers(len(heard), size=BATCH)
        x, target = heard[rows, :, None].astype(np.float32), wanted[rows, :, None].astype(np.float32)
        y, saved = model.forward(params, x)  # as in use: batch norm is a constant scale, for quiet sounds as for loud
        dy = (y - target) / target[:, WARM_UP:].size  # gradient of half the mean squared error
        dy[:, :WARM_UP] = 0
        optimiser.update(params, model.backward(params, saved, dy), moments, group_of, step, args.steps)
        if (step + 1) % 250 == 0:
            print(f"step {step + 1}: error {error_db(y[:, WARM_UP:], target[:, WARM_UP:]):.1f} dB", flush=True)

    other = sounds(np.random.default_rng(2), 16, RATE // 4)
    target = ladder(other)
    y, _ = model.forward(params, other[..., None].astype(np.float32))
    linear = error_db(best_linear(other, target), target)
    print(f"held out: error {error_db(y[..., 0], target):.1f} dB, the best linear filter {linear:.1f} dB")
    model.save(args.out, params)


if __name__ == "__main__":
    main()
