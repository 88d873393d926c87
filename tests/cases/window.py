"""Rows of windowed scans."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases.layer_row import LayerRow
from cases.table import Arrays, Case, normal, padding
from rotrnn.nn.layers.linear import LinearRecurrence
from rotrnn.nn.layers.lru import LRU
from rotrnn.nn.layers.rotrnn import RotRNN
from rotrnn.ops.scan import diagonal_scan, diagonal_scan_backward, rotation_scan, rotation_scan_backward


def window_loop(a: Any, x: Any, h0: Any, window: int, reverse: bool = False, lengths: Any = None) -> tuple[Any, Any]:
    """h_t is the sum of the last `window` inputs, which are multiplied by the transition at each step. Also returns
    those inputs after the last step."""
    B, T, N = x.shape
    h = np.zeros((B, T, N), np.result_type(a, x, h0))
    hT = np.zeros((B, window - 1, N), h.dtype)
    for b in range(B):
        steps = range(T if lengths is None else lengths[b])
        seen = list(h0[b])
        for t in reversed(steps) if reverse else steps:
            seen = [*((a[b, t] if a.ndim == 3 else a) * one for one in seen), x[b, t]][-window:]
            h[b, t] = np.sum(seen, 0)
            seen = seen[-window + 1 :] if window > 1 else []
        hT[b] = np.reshape(seen, (window - 1, N))
    return h, hT


def window_case(
    B: int, T: int, N: int, window: int, *, lanes: str = "real", varying: bool = False, reverse: bool = False,
    lengths: Any = None,
) -> Case:  # fmt: skip
    """A windowed diagonal scan with |a| = 1 (complex) or close to 1 (real)."""
    is_complex = lanes == "complex"

    def make(rng: np.random.Generator) -> Arrays:
        shape = (B, T, N) if varying else (N,)
        if is_complex:
            a = np.exp(1j * rng.uniform(-np.pi, np.pi, shape))
        else:
            a = rng.choice([-1.0, 1.0], shape) * rng.uniform(0.9, 1.0, shape)
        return {"a": a, "x": normal(rng, (B, T, N), is_complex), "h0": normal(rng, (B, window - 1, N), is_complex)}

    how: dict[str, Any] = {"window": window, "reverse": reverse, "lengths": lengths}

    def forward(args: Arrays) -> tuple[Any, ...]:
        result = diagonal_scan(**args, **how, return_state=True)
        assert isinstance(result, tuple)
        return result

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        grads = diagonal_scan_backward(doutputs[0], args["a"], None, args["h0"], x=args["x"], dhT=doutputs[1], **how)
        return {"a": grads.da, "x": grads.dx, "h0": grads.dh0}

    padded = padding(lengths, "x", "out0", *(("a",) if varying else ()))
    flags = "".join([" varying" * varying, " reverse" * reverse, " ragged" * (lengths is not None)])
    return Case(
        f"diagonal_scan window {window} {lanes}{flags} {B}x{T}x{N}",
        make,
        forward,
        backward,
        lambda args: window_loop(**args, **how),
        terms=8 * min(window, T) + B * T + 4,  # a constant transition's gradient sums over b and t
        linear=(("x", "h0"),),
        ragged=padded,
        lengths=lengths,
    )


def rotation_window_case(B: int, T: int, H: int, width: int, window: int, varying: bool, lengths: Any) -> Case:
    P, N = width // 2, H * width
    lead = (B, T) if varying else ()
    how: dict[str, Any] = {"window": window, "lengths": lengths}

    def make(rng: np.random.Generator) -> Arrays:
        return {
            "theta": rng.uniform(0, 2 * np.pi, (*lead, H, P)),
            "gamma": rng.uniform(0.9, 1.0, (*lead, H)),
            "x": normal(rng, (B, T, N)),
            "h0": normal(rng, (B, window - 1, N)),
        }

    def forward(args: Arrays) -> tuple[Any, ...]:
        result = rotation_scan(**args, **how, return_state=True)
        assert isinstance(result, tuple)
        return result

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        grads = rotation_scan_backward(
            doutputs[0], args["theta"], args["gamma"], None, args["h0"], x=args["x"], dhT=doutputs[1], **how
        )
        return {"theta": grads.dtheta, "gamma": grads.dgamma, "x": grads.dx, "h0": grads.dh0}

    def rotation(angles: Any, decay: Any) -> Any:
        block = np.eye(width)
        for p, angle in enumerate(angles):
            c, s = np.cos(angle), np.sin(angle)
            block[2 * p : 2 * p + 2, 2 * p : 2 * p + 2] = [[c, -s], [s, c]]
        return decay * block

    def reference(args: Arrays) -> tuple[Any, ...]:
        h, hT = np.zeros((B, T, N)), np.zeros((B, window - 1, N))
        for b in range(B):
            seen = list(args["h0"][b])
            for t in range(T if lengths is None else lengths[b]):
                theta, gamma = (args[name][b, t] if varying else args[name] for name in ("theta", "gamma"))
                blocks = [rotation(theta[head], gamma[head]) for head in range(H)]
                turned = [
                    np.concatenate([R @ v for R, v in zip(blocks, one.reshape(H, width), strict=True)]) for one in seen
                ]
                h[b, t] = np.sum([*turned, args["x"][b, t]], 0)
                seen = [*turned, args["x"][b, t]][1:]
            hT[b] = seen
        return h, hT

    padded = padding(lengths, "x", "out0", *(("theta", "gamma") if varying else ()))
    flags = "".join([" varying" * varying, " ragged" * (lengths is not None)])
    return Case(
        f"rotation_scan window {window}{flags} {B}x{T} heads {H}x{width}",
        make,
        forward,
        backward,
        reference,
        terms=12 * min(window, T) + B * T + 6,
        linear=(("x", "h0"),),
        ragged=padded,
        lengths=lengths,
    )


WINDOWS = [
    *(
        window_case(2, T, 3, window, lanes=lanes, varying=varying)
        for lanes, varying in (("real", True), ("complex", False))
        for T, window in ((0, 3), (1, 1), (1, 4), (13, 1), (13, 2), (13, 5), (12, 4), (7, 7), (7, 20))
    ),
    *(
        window_case(3, 17, 5, 4, lanes=lanes, varying=varying, reverse=reverse, lengths=lengths)
        for lanes, varying, reverse, lengths in (
            ("real", False, True, (17, 0, 5)),
            ("real", True, False, (17, 0, 5)),
            ("complex", False, False, (16, 1, 3)),
            ("complex", True, True, (8, 2, 17)),
        )
    ),
    window_case(3, 17, 5, 30, lanes="complex", varying=True, reverse=True, lengths=(8, 0, 17)),
    window_case(1, 300, 3, 130, lanes="complex", lengths=(290,)),  # more than one partial sum
    window_case(2, 70, 530, 31, lanes="complex", varying=True, reverse=True, lengths=(70, 34)),  # and strip of lanes
    window_case(1, 4, 0, 2),
    window_case(0, 4, 3, 2, lanes="complex"),
    rotation_window_case(2, 11, 2, 4, 3, False, (11, 2)),
    rotation_window_case(2, 11, 2, 5, 4, True, (11, 0)),
]

WINDOWS_LARGE = [
    window_case(2, 4000, 40, 7, lanes="complex", lengths=(4000, 2999)),  # more than one run of blocks
    window_case(3, 700, 70, 100, lanes="complex", varying=True, reverse=True, lengths=(700, 7, 699)),
]


def windowed_loop(layer: LinearRecurrence, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    """y_t = W_out sum_{k<L} a^k (W_in u)_{t-k} + D u_t of the folded system, from a list of all inputs."""
    assert layer.window is not None
    (w_in, a, w_out, skip), L = layer.fold(params).weights, layer.window
    B, T, _ = x.shape
    v = np.ascontiguousarray(x @ w_in.T).view(np.complex128)
    y = np.zeros_like(x)
    delay, sums = np.zeros((B, L + 1, len(a)), complex), np.zeros((B, 2, len(a)), complex)
    position = np.zeros(B, np.int64) if state is None else state[2].copy()

    def total(inputs: Any) -> Any:
        return sum((one * a**k for k, one in enumerate(reversed(inputs))), np.zeros(len(a), complex))

    for b in range(B):
        steps = T if lengths is None else lengths[b]
        past = [np.zeros(len(a), complex)] * (L + 1)
        if state is not None:
            past = [state[0][b, (position[b] + i) % (L + 1)] for i in range(L + 1)]
        for k, out in enumerate(w_out):
            seen = [*past, *(v[b, :steps][::-1] if k else v[b, :steps])]
            for t in range(steps):
                h = total(seen[t + 2 : t + L + 2])
                y[b, steps - 1 - t if k else t] += out @ h.view(np.float64)
        y[b, :steps] += skip * x[b, :steps]
        position[b] += steps
        seen = [*past, *v[b, :steps]][-L - 1 :]
        for i, one in enumerate(seen):
            delay[b, (position[b] + i) % (L + 1)] = one
        sums[b] = total(seen[1:]), total(seen[len(seen) - position[b] % L :])
    return y, None if layer.bidirectional else (delay, sums, position)


def windowed_row(name: str, layer: LinearRecurrence, B: int, T: int, lengths: Any = None) -> LayerRow:
    return LayerRow(
        f"{name} window {layer.window}",
        layer,
        B,
        T,
        lengths,
        windowed_loop,
        terms=8 * T + 3 * layer.d_state + layer.d_model + 20,
        linear=(("x",) if layer.bidirectional else ("x", "state"),),
    )


WINDOWED_LAYERS = [
    windowed_row("", LRU(4, 3, r_min=0.9, window=4), 2, 13),
    windowed_row("", LRU(3, 2, window=1), 2, 3),
    windowed_row("", LRU(3, 2, window=9), 1, 6),
    windowed_row("", LRU(3, 2, window=3), 3, 9, (9, 0, 2)),
    windowed_row("", LRU(3, 2, window=3), 2, 0),
    windowed_row("bidirectional", LRU(3, 2, bidirectional=True, window=4), 3, 9, (9, 0, 3)),
    windowed_row("", RotRNN(4, 6, heads=2, window=3), 2, 8),
]
