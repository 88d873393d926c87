"""The table of differentiable functions: every test of test_cases.py runs on every row.

A case makes its arguments, runs forward and backward on them, and has a reference: the simplest NumPy that can be
right. A new op added here is checked against its reference, finite differences, the adjoint identity, float32,
threads, instruction sets and (with `ragged`) NaN padding, without another line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rotrnn.devices.device import device_of

Arrays = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One function at one set of shapes.

    make(rng) gives the differentiable arguments, in float64 or complex128, by name. forward(args) gives the tuple of
    outputs; backward(args, outputs, doutputs) the gradient of sum(Re(conj(doutput) output)) for every argument by
    name; reference(args) the outputs again. `linear` names groups of arguments in which forward is jointly linear.
    `ragged` names the arguments and outputs with padding, with the lengths of their sequences: {name: lengths}.
    `double` are the outputs that stay in double precision whatever the dtype of the arguments.
    `estimated` are the arguments whose gradient is no derivative: straight through a choice.
    `terms` is how many rounded products and sums one output element passes through at most: tolerances scale with it.
    """

    name: str
    make: Callable[[np.random.Generator], Arrays]
    forward: Callable[[Arrays], tuple[Any, ...]]
    backward: Callable[[Arrays, tuple[Any, ...], tuple[Any, ...]], Arrays]
    reference: Callable[[Arrays], tuple[Any, ...]]
    terms: int
    linear: tuple[tuple[str, ...], ...] = ()
    ragged: dict[str, Any] = field(default_factory=dict)
    double: tuple[int, ...] = ()
    lengths: Any = None
    estimated: tuple[str, ...] = ()


def padding(lengths: Any, *names: str) -> dict[str, Any]:
    """Returns the lengths of the arguments and outputs with padding, which are of these names."""
    return {} if lengths is None else dict.fromkeys(names, lengths)


def beside(constant: Any, like: Any) -> Any:
    """Returns a constant of a case on the device of its arguments."""
    return device_of(like).asarray(constant)


def normal(rng: np.random.Generator, shape: tuple[int, ...], complex_lanes: bool = False) -> Any:
    """Standard normal numbers, real or complex."""
    x = rng.standard_normal(shape)
    return x + 1j * rng.standard_normal(shape) if complex_lanes else x


def rotation_of(S: Any) -> Any:
    """Returns exp(S) of a skew-symmetric matrix: the series of exp(S / 2^k), squared k times, in long double. SciPy's
    expm is off by 6e-14 at some S of norm 6."""
    k = max(0, int(np.ceil(np.log2(np.abs(S).sum(1).max(initial=0.0) + 1e-300))) + 1)
    A = np.asarray(S, np.longdouble) / 2**k
    P = term = np.eye(len(S), dtype=np.longdouble)
    for n in range(1, 25):  # |A| <= 1/2
        term = term @ A / n
        P = P + term
    for _ in range(k):
        P = P @ P
    return P.astype(np.float64)


def scan_loop(a: Any, x: Any, h0: Any = None, reverse: bool = False, lengths: Any = None) -> tuple[Any, Any]:
    """h_t = a_t h_{t-1} + x_t, one step after the other; (h, hT)."""
    B, T, N = x.shape
    h = np.zeros((B, T, N), np.result_type(a, x))
    hT = np.zeros((B, N), h.dtype) if h0 is None else np.array(h0, h.dtype)
    for b in range(B):
        steps = range(T if lengths is None else lengths[b])
        for t in reversed(steps) if reverse else steps:
            hT[b] = (a[b, t] if a.ndim == 3 else a) * hT[b] + x[b, t]
            h[b, t] = hT[b]
    return h, hT


def valid_steps(shape: tuple[int, ...], lengths: Any) -> Any:
    """Returns a mask (B, T, 1) of valid steps."""
    B, T = shape[:2]
    return (np.arange(T) < np.reshape(np.full(B, T) if lengths is None else lengths, (B, 1)))[..., None]


def pointwise_case(
    name: str,
    shapes: dict[str, tuple[int, ...]],
    forward: Callable[..., Any],
    backward: Callable[..., tuple[Any, ...]],
    reference: Callable[..., Any],
    *,
    lengths: Any = None,
    terms: int = 16,
    linear: tuple[tuple[str, ...], ...] = (),
) -> Case:
    """`forward(*args)` gives one output, `backward(dy, *args)` the gradients in the order of the arguments.

    With lengths, padding is that of the arrays of rank three, and `reference` sees it zeroed.
    """

    def zeroed(x: Any) -> Any:
        return np.where(valid_steps(x.shape, lengths), x, 0) if x.ndim == 3 and lengths is not None else x

    def run(args: Arrays) -> tuple[Any]:
        return (forward(*args.values()),)

    padded = {}
    if lengths is not None:
        padded = {key: lengths for key, shape in shapes.items() if len(shape) == 3}
        padded |= {} if "pool" in name else {"out0": lengths}
    sizes = " ".join("x".join(map(str, shape)) for shape in shapes.values())
    return Case(
        f"{name}{' ragged' * (lengths is not None)} {sizes}",
        lambda rng: {key: normal(rng, shape) for key, shape in shapes.items()},
        run,
        lambda args, outputs, doutputs: dict(zip(args, backward(doutputs[0], *args.values()), strict=True)),
        lambda args: (zeroed(reference(*map(zeroed, args.values()))),),
        terms=terms,
        linear=linear,
        ragged=padded,
        lengths=lengths,
    )
