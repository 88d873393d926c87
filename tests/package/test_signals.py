"""A signal during a long kernel is handled soon, and an exception of its handler ends the kernel early."""

from __future__ import annotations

import functools
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rotrnn
from rotrnn import _cpu
from rotrnn.nn.layer import Array

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no interval timers")


class Interrupted(Exception):
    """Raised by the handler."""


def interrupted(call: Callable[[], object]) -> None:
    """Runs the call; a timer's handler raises in it."""

    def handler(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(Interrupted):
            call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def zeros(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


def rnn(h: Any) -> None:
    B, T, N = h.shape
    sizes = {"B": B, "T": T, "N": N}
    arrays = {"w": zeros(N, N), "x": zeros(B, T, N), "hT": zeros(B, N)}
    nothing = dict.fromkeys(("c", "cT", "gates", "bias", "h0", "c0", "lengths"))
    _cpu.kernels.rnn_forward(h=h, **arrays, **nothing, **sizes, cell=_cpu.CELL["tanh"], reverse=False)


def attention(y: Any) -> None:
    B, T, D = y.shape
    arrays = {"q": zeros(B, T, D), "k": zeros(B, T, D), "v": zeros(B, T, D), "norm": zeros(B, 1, T)}
    sizes = {"B": B, "T": T, "S": T, "D": D, "H": 1, "window": 0}
    _cpu.kernels.attention_forward(y=y, **arrays, **sizes, lengths=None, past=None)


def matmul(y: Any) -> None:
    M, d_out = y.shape
    arrays = {"x": zeros(M, 4096), "w": zeros(4096, d_out), "bias": None}
    _cpu.kernels.matmul(y=y, **arrays, M=M, d_in=4096, d_out=d_out, transposed=False)


def depth(h: Any, tile: int) -> None:
    """A step size with which 10^9 iterations do not reach the tolerance: rounding stops them."""
    B, T, D = h.shape
    sizes = {"B": B, "T": T, "R": 0, "D": D, "tile": tile, "limit": 10**9, "patience": 10**9, "cycle": 1000}
    counts = {"iterations": np.zeros(B, np.int64), "applied": np.zeros(B, np.int64), "residual": zeros(B)}
    arrays = {"y": zeros(B, T, D), "x": np.ones_like(h), "lam": zeros(D) + 0.5, "w": zeros(0), "alpha": zeros(0)}
    flags = dict.fromkeys(("varying", "w_varying", "alpha_varying", "scaled", "adjoint", "direct", "accelerate"), False)
    rules: dict[str, Any] = {"tol": 1e-4, "first": 1e-4, "shrink": 1.0, "form": _cpu.MIXER["householder"]}
    _cpu.kernels.depth_solve(h=h, **arrays, **counts, **sizes, **flags, **rules, h0=None, lengths=None)


@pytest.mark.parametrize(
    ("kernel", "shape"),
    [
        (rnn, (1, 100_000, 512)),
        (attention, (1, 65_536, 64)),
        (matmul, (65_536, 4096)),
        (functools.partial(depth, tile=1), (1, 100_000, 64)),
        (functools.partial(depth, tile=100_000), (1, 100_000, 64)),
    ],
    ids=["rnn", "attention", "matmul", "tiles", "one tile"],
)
def test_a_kernel_of_many_seconds_ends_early(kernel: Callable[[Any], None], shape: tuple[int, ...]) -> None:
    """Its last rows are not written: they are as the caller left them."""
    out = np.full(shape, np.nan, np.float32)
    interrupted(lambda: kernel(out))
    assert np.isnan(out).any()


def test_a_layer_can_be_called_again_afterwards() -> None:
    rng = np.random.default_rng(0)
    layer = rotrnn.RNN(d_model=256, d_state=512, activation="tanh")
    params, long = layer.init(rng), rng.standard_normal((4, 50_000, 256), np.float32)
    expected = layer.forward(params, long[:, :100])[0]
    interrupted(lambda: layer.forward(params, long))
    np.testing.assert_array_equal(layer.forward(params, long[:, :100])[0], expected)


def steps_of(seconds: float, stream: Any) -> Array:
    """An input that takes a stream about so long to read; fewer steps with sanitizers, which are slow. Seconds are
    those of processors, here and below: other work on the machine does not count."""
    few = np.ones((1, 2000, 2), np.float32)
    times = []
    for _ in range(3):
        began = time.process_time()
        stream.push(few)
        times.append(time.process_time() - began)
    return np.ones((1, int(2000 * seconds / min(times)), 2), np.float32)


def test_a_stream_is_afterwards_as_before() -> None:
    settings = rotrnn.ModelSettings("lru", 128, 4)
    model = rotrnn.build_model(settings, {"d_state": 128}, head="tagger", n_classes=2, n_features=2)
    stream = model.stream(model.init(np.random.default_rng(0)), engine="c")
    x = steps_of(3, stream)
    before, state, began = stream.tokens, stream.state, time.process_time()
    interrupted(lambda: stream.push(x))
    ended = time.process_time()
    np.testing.assert_array_equal(stream.state, state)
    stream.push(x)
    assert ended - began < (time.process_time() - ended) / 2
    assert stream.tokens == before + x.shape[1]


def test_a_handler_may_push_to_a_stream_during_a_push_to_another() -> None:
    settings = rotrnn.ModelSettings("lru", 128, 2)
    model = rotrnn.build_model(settings, {"d_state": 128}, head="tagger", n_classes=2, n_features=2)
    params = model.init(np.random.default_rng(0))
    x = steps_of(0.5, model.stream(params))
    expected, other, called = model.stream(params).push(x), model.stream(params), []

    def handler(number: int, frame: object) -> None:
        began = time.perf_counter()
        while time.perf_counter() - began < 0.1:  # longer than between two looks for signals
            called.append(other.push(x[:, 0]))

    before = signal.signal(signal.SIGALRM, handler)
    try:
        while not called:  # the signal may come before the push, or after it
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            np.testing.assert_array_equal(model.stream(params).push(x), expected)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    np.testing.assert_array_equal(called[0], expected[:, 0])


def test_a_handler_may_call_kernels_and_go_on() -> None:
    """A handler that returns, as that of SIGTERM in training does, changes nothing."""
    rng = np.random.default_rng(0)
    w, x = rng.standard_normal((2, 1000, 1000))
    expected, called = rotrnn.ops.dense(x, w), []

    def handler(number: int, frame: object) -> None:
        called.append(rotrnn.ops.dense(x[:3], w))

    before = signal.signal(signal.SIGALRM, handler)
    try:
        while len(called) < 3:  # a fast processor may be done before the signal comes
            signal.setitimer(signal.ITIMER_REAL, 0.01)  # once: a handler may take longer than this on a busy machine
            np.testing.assert_array_equal(rotrnn.ops.dense(x, w), expected)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    for one in called:
        np.testing.assert_array_equal(one, rotrnn.ops.dense(x[:3], w))
