"""Long streams and long training of every layer, in tiny models."""

from __future__ import annotations

import gc
import time
from typing import Any

import numpy as np

from rotrnn.models.build import ModelSettings, build_model
from rotrnn.models.model import SequenceModel
from rotrnn.models.stream import Stream
from rotrnn.nn.layer import Context, astype, flatten, flatten_state
from rotrnn.nn.registry import LAYERS
from rotrnn.training.optimiser import AdamW
from tests.soak.row import MIB, Row, resident

D, F, CLASSES = 8, 4, 3
SETTINGS: dict[str, dict[str, Any]] = {
    **{name: {"d_state": 8} if "d_state" in kind.__dataclass_fields__ else {} for name, kind in LAYERS.items()},
    "rotrnn": {"d_state": 8, "heads": 2},
    "selective_rotrnn": {"d_state": 8, "heads": 2},
    "attention": {"heads": 2},
    "rope_memory": {"d_state": 8, "length": 1000},
    "wrope_memory": {"d_state": 8, "length": 1000},
}
WINDOW = 100
WINDOWED = ("lru", "s4d", "attention", "rope_memory", "wrope_memory")
GROWING = ("attention", "wrope_memory")
"""Layers that are documented to grow, without a window: memory, and the time of a token."""
GROWN = 20_000
"""Tokens of their streams."""

CHUNK, SINGLE, LAST = 1000, 8, 100
"""Tokens of a chunk; the first ones of each chunk, which are pushed one by one; and the last, whose error is taken."""
MARKS = (10**3, 10**4, 10**5, 10**6)
LARGEST_ERROR = 1e-2
"""Of a stream in float32, relative. Fixed points differ by their tolerance; layers that are not linear amplify."""
STEADY = {"rnn": {"initialisation": "orthogonal"}, "linoss": {"method": "damped"}}
"""Settings with which a layer does not grow: a Gaussian A of this size has eigenvalues above 1 in one draw of three;
undamped oscillators never forget, nor do their roundings decay."""
WARM, WARM_STEPS = 10, 200
"""Chunks, and training steps, after which memory is taken as the beginning's."""


def model_of(name: str, settings: dict[str, Any], head: str) -> SequenceModel:
    return build_model(ModelSettings(name, D, 1, norm="layer"), settings, head=head, n_classes=CLASSES, n_features=F)


def state_bytes(stream: Stream) -> int:
    return sum(leaf.nbytes for _, leaf in flatten_state(stream.state))


def cases() -> dict[str, tuple[str, dict[str, Any]]]:
    """Returns (layer, settings) by name: every layer, and some with a window."""
    windowed = {f"{name}, window {WINDOW}": (name, SETTINGS[name] | {"window": WINDOW}) for name in WINDOWED}
    return {name: (name, SETTINGS[name] | STEADY.get(name, {})) for name in LAYERS} | windowed


def stream(case: str, seed: int, tokens: int, seconds: float) -> Row:
    """Streams in float32, and with the same parameters in float64, in chunks whose first tokens are single pushes.

    Ends before `tokens` where the time is over; the table says after how many tokens.
    """
    name, settings = cases()[case]
    row = Row("stream", case, seed)
    grows = name in GROWING and "window" not in settings
    rng = np.random.default_rng(seed)
    model = model_of(name, settings, "tagger")
    params = model.init(rng)
    streams = [Stream(model, params), Stream(model, astype(params, np.float64))]
    times: list[float] = []
    errors: dict[int, float] = {}
    began, first = time.monotonic(), (0, 0)
    done, wanted = 0, min(tokens, GROWN) if grows else tokens
    while done < wanted and (done < CHUNK or time.monotonic() - began < seconds):
        x = rng.standard_normal((1, CHUNK, F)).astype(np.float32)
        outputs = []
        for one, dtype in zip(streams, (np.float32, np.float64), strict=True):
            inputs, single = x.astype(dtype), []
            for t in range(SINGLE):
                before = time.perf_counter()
                one.push(inputs[:, t])
                single.append(time.perf_counter() - before)
            outputs.append(one.push(inputs[:, SINGLE:])[0, -LAST:])
            if dtype == np.float32:
                times.append(float(np.median(single)))
        done += CHUNK
        errors[done] = float(np.linalg.norm(outputs[0] - outputs[1]) / np.linalg.norm(outputs[1]))
        if done == WARM * CHUNK:
            first = resident(), state_bytes(streams[0])
    row.figures["tokens"] = done
    row.figures |= {f"error at 1e{int(np.log10(mark))}": errors[mark] for mark in MARKS if mark in errors}
    row.figures["largest error"] = max(errors.values())
    # the least of the medians of a tenth of the chunks: what else runs on the machine only adds to it
    tenth = max(1, len(times) // 10)
    row.figures |= {"us a token, early": min(times[:tenth]) * 1e6, "late": min(times[-tenth:]) * 1e6}
    row.figures["state, bytes"] = state_bytes(streams[0])
    row.expect(all(np.isfinite(error) and error <= LARGEST_ERROR for error in errors.values()), "error too large")
    if done > 2 * WARM * CHUNK:
        row.figures["memory grew, MiB"] = (resident() - first[0]) / MIB
        if not grows:
            row.expect(state_bytes(streams[0]) == first[1], f"the state grew from {first[1]} bytes")
            row.expect(resident() - first[0] < 16 * MIB, "memory grew by more than 16 MiB")
            row.expect(row.figures["late"] < 2 * row.figures["us a token, early"], "a token takes twice as long")
    return row


def training(case: str, seed: int, steps: int, seconds: float) -> Row:
    """Training steps on random batches: memory and the number of Python's objects stay, and losses are finite."""
    name, settings = cases()[case]
    row = Row("training", case, seed)
    rng = np.random.default_rng(seed)
    model = model_of(name, settings, "classifier")
    params = model.init(rng)
    moments = {f"{kind}.{path}": np.zeros_like(value) for kind in "mv" for path, value in flatten(params)}
    optimiser = AdamW(lr=1e-3)
    losses, first, objects = [], 0, 0
    began = time.monotonic()
    step = 0
    while step < steps and (step < 2 or time.monotonic() - began < seconds):
        x, labels = rng.standard_normal((4, 13, F)).astype(np.float32), rng.integers(0, CLASSES, 4)
        logits, saved = model.forward(params, x, Context(train=True, seed=seed, step=step))
        loss = model.loss(logits, labels, None)
        losses.append(float(loss.mean))
        grads = model.backward(params, saved, loss.dlogits)
        optimiser.update(params, grads, moments, lambda _: "global", step, steps)
        step += 1
        if step == min(WARM_STEPS, steps // 2):
            gc.collect()
            first, objects = resident(), len(gc.get_objects())
    del logits, saved, loss, grads
    gc.collect()
    row.figures |= {"steps": step, "last loss": losses[-1], "ms a step": (time.monotonic() - began) / step * 1e3}
    row.expect(bool(np.isfinite(losses).all()), "a loss is not finite")
    if first:
        grown, more = resident() - first, len(gc.get_objects()) - objects
        row.figures |= {"memory grew, MiB": grown / MIB, "objects more": more}
        row.expect(grown < 8 * MIB, "memory grew by more than 8 MiB")
        row.expect(more < 200, "Python holds more objects")
    return row
