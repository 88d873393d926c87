"""Fused blocks against their unfused parts; what blocks pass to each other; which blocks are fused."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import rotrnn
from rotrnn import _cpu
from rotrnn.devices.device import HOST
from rotrnn.models.build import ModelSettings, build_model
from rotrnn.nn.blocks import fused
from rotrnn.nn.blocks.block import PartsSaved, ResidualBlock, ResidualStack
from rotrnn.nn.blocks.fused import FusedSaved
from rotrnn.nn.blocks.gate import Gate
from rotrnn.nn.blocks.norm import BatchNorm, LayerNorm
from rotrnn.nn.layer import Context, astype, flatten
from rotrnn.nn.layers.lru import LRU
from rotrnn.ops.block import ChannelNorm, Gating, Later, RowNorm, residual_block, residual_block_backward, settle
from rotrnn.ops.linear_layer import System, linear_layer, linear_layer_backward
from rotrnn.ops.pointwise import batch_norm_statistics

CTX = Context(lengths=np.array([200, 1, 97]), train=True, seed=3, step=5)


def close(got: Any, expected: Any) -> None:
    """Equal to 1e-12 of the largest element."""
    scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12 * scale)


def step(settings: ModelSettings, layer: dict[str, Any], ctx: Context) -> tuple[Any, dict[str, Any]]:
    """Logits and all gradients of a classifier, and where batch norm's running statistics went."""
    model = build_model(settings, layer, n_classes=3, n_features=2)
    params = astype(model.init(np.random.default_rng(0)), np.float64)
    rng = np.random.default_rng(1)
    logits, saved = model.forward(params, rng.standard_normal((3, 200, 2)), ctx)
    grads = model.backward(params, saved, rng.standard_normal(logits.shape))
    running = {name: array for name, array in flatten(params) if "running" in name}
    return logits, dict(flatten(grads)) | running


@pytest.mark.parametrize("norm", ["batch", "layer"])
@pytest.mark.parametrize("glu", ["full", "half1", "half2"])
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("layer", ["rotrnn", "lru"])
def test_a_fused_model_equals_its_parts(norm: str, glu: str, train: bool, layer: str) -> None:
    options: dict[str, Any] = {"d_state": 6} | ({"heads": 2} if layer == "rotrnn" else {"bidirectional": True})
    settings = ModelSettings(layer, d_model=5, n_layers=3, norm=norm, glu=glu, dropout=0.2)
    ctx = replace(CTX, train=train)
    logits, grads = step(settings, options, ctx)
    expected, expected_grads = step(settings, options, replace(ctx, fused=False))
    close(logits, expected)
    assert grads.keys() == expected_grads.keys()
    for name, grad in grads.items():
        close(grad, expected_grads[name])


@pytest.fixture
def parts() -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    B, T, D, N, K = 3, 50, 4, 3, 2
    h0 = rng.standard_normal((2, K, B, N))
    system = System(
        rng.standard_normal((2 * N, D)),
        rng.uniform(0.8, 1, N) * np.exp(1j * rng.uniform(0, 6, N)),
        rng.standard_normal((K, D, 2 * N)),
        rng.standard_normal(D),
    )
    gating = Gating("full", *(rng.standard_normal(shape) for shape in ((D, D), D, (D, D), D)), rate=0.1)
    norm = ChannelNorm(*rng.standard_normal((3, D)))
    return rng.standard_normal((B, T, D)), norm, system, gating, h0[0] + 1j * h0[1]


@pytest.mark.parametrize("lengths", [None, (50, 0, 33)])
def test_the_size_of_a_tile_is_rounding_alone(parts: Any, lengths: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """From one step a tile, where every carry is used, to one tile for all."""
    x, norm, system, gating, h0 = parts
    dy, dhT = np.cos(np.arange(x.size)).reshape(x.shape), 1j * h0

    def run(tile: int) -> list[Any]:
        monkeypatch.setitem(vars(HOST), "tile", tile)
        y, hT, moments, saved = residual_block(x, norm, system, gating, h0, lengths=lengths, moments=True)
        grads = residual_block_backward(dy, norm, system, gating, saved, dhT)
        one = linear_layer(system, x, h0, lengths=lengths)
        layer = linear_layer_backward(dy, system, one[2], dhT)
        gate = [grad for grad in grads.gating if isinstance(grad, np.ndarray)]
        arrays = [y, hT, *moments, grads.dx, grads.dh0, grads.norm_sum, grads.norm_product, *grads.system, *gate]
        return [*arrays, *one[:2], layer.du, layer.dh0, *layer.system]

    expected = run(50)
    for tile in (1, 7, 24, 96):
        for got, want in zip(run(tile), expected, strict=True):
            close(got, want)


def test_moments_are_those_of_the_output(parts: Any) -> None:
    x, norm, system, gating, h0 = parts
    for lengths in (None, (50, 0, 33)):
        y, _, moments, _ = residual_block(x + 1e3, norm, system, gating, h0, lengths=lengths, moments=True)
        assert moments is not None
        for got, expected in zip(moments, batch_norm_statistics(y, lengths=lengths), strict=True):
            close(got, expected)


@pytest.mark.parametrize("keep", [(), ("layer",)])
def test_pending_gradient_terms_are_added(parts: Any, keep: tuple[str, ...]) -> None:
    x, norm, system, gating, h0 = parts
    y, _, _, saved = residual_block(x, norm, system, gating, h0, lengths=(50, 0, 33), keep=keep)
    dy = np.cos(np.arange(x.size)).reshape(x.shape)
    later = Later(y, *np.random.default_rng(1).standard_normal((3, 4)))
    got = residual_block_backward(dy, norm, system, gating, saved, later=later)
    settled = settle(dy, later, lengths=saved.lengths)
    expected = residual_block_backward(settled, norm, system, gating, saved)
    close(got.dx, expected.dx)
    close(got.system.w_in, expected.system.w_in)
    close(got.gating.w_gate, expected.gating.w_gate)
    full = dy + later.slope * (y - later.center) + later.shift
    full[1] = full[2, 33:] = 0
    close(settled, full)
    assert settle(dy, None) is dy


@dataclass(frozen=True)
class Doubled(LRU):
    """A linear recurrence whose forward is its own."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        y, saved = super().forward(*args, **kwargs)
        return 2 * y, saved

    def backward(self, params: Any, saved: Any, dy: Any, dstate: Any = None) -> Any:
        return super().backward(params, saved, 2 * dy, dstate)


class LoudNorm(LayerNorm):
    pass


def test_what_is_fused_and_what_is_not() -> None:
    gate = Gate(4)
    for norm in (BatchNorm(4), LayerNorm(4)):
        assert fused.parts_of(norm, LRU(4, 3), gate, CTX)
        assert not fused.parts_of(norm, Doubled(4, 3), gate, CTX)
        assert not fused.parts_of(norm, LRU(4, 3), gate, replace(CTX, fused=False))
    assert not fused.parts_of(LoudNorm(4), LRU(4, 3), gate, CTX)


def test_a_stack_of_both_kinds() -> None:
    """Blocks that cannot be fused neither break the chain of statistics nor lose pending gradient terms."""
    layers = (LRU(4, 3), Doubled(4, 3), LRU(4, 3), LRU(4, 3))
    stack = ResidualStack(tuple(ResidualBlock(BatchNorm(4), layer, Gate(4)) for layer in layers))
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, 3, 200, 4))

    def run(ctx: Context) -> tuple[Any, Any, Any, Any]:
        params = astype(stack.init(np.random.default_rng(1)), np.float64)
        y, saved = stack.forward(params, x, ctx)
        dx, dparams, _ = stack.backward(params, saved, dy)
        return y, dx, dict(flatten(dparams)), saved

    y, dx, grads, saved = run(CTX)
    kinds = [type(block) for block in saved.blocks]
    assert kinds == [FusedSaved, PartsSaved, FusedSaved, FusedSaved]
    expected_y, expected_dx, expected, _ = run(replace(CTX, fused=False))
    close(y, expected_y)
    close(dx, expected_dx)
    for name, grad in grads.items():
        close(grad, expected[name])


def test_what_a_training_step_keeps() -> None:
    """Six blocks hold at most 1.5 x (6 + 2) tensors (B, T, D) between and during forward and backward."""
    B, T, D = 4, 4000, 32
    stack = ResidualStack(tuple(ResidualBlock(BatchNorm(D), LRU(D, 32), Gate(D)) for _ in range(6)))
    params = stack.init(np.random.default_rng(0))
    x = np.random.default_rng(0).standard_normal((B, T, D)).astype(np.float32)
    tracemalloc.start()
    try:
        y, saved = stack.forward(params, x, Context(train=True))
        dy = [np.ones_like(y)]
        del y  # as a classifier does once it is pooled
        dx, _, _ = stack.backward(params, saved, dy.pop())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert dx.shape == x.shape
    assert peak + x.nbytes <= 1.5 * (6 + 2) * x.nbytes


keeps_memory = pytest.mark.skipif(not _cpu.KEEPS_MEMORY, reason="a sanitizer keeps what was given back, to watch it")


@keeps_memory
def test_memory_is_kept_for_reuse_and_can_be_released() -> None:
    rotrnn.release_memory()
    first = _cpu.empty((1 << 20,), np.float32)
    place = first.ctypes.data
    del first
    again = _cpu.empty((1 << 20,), np.float32)
    assert again.ctypes.data == place
    del again
    assert rotrnn.release_memory() >= 1 << 22
    assert rotrnn.release_memory() == 0


@keeps_memory
def test_of_equal_blocks_the_last_that_was_freed_is_taken() -> None:
    """It may still be in a cache."""
    blocks = {name: _cpu.empty((1 << 20,), np.float32) for name in "abc"}
    places = {name: one.ctypes.data for name, one in blocks.items()}
    for name in "acb":
        del blocks[name]
    again = [_cpu.empty((1 << 20,), np.float32) for _ in range(3)]
    assert [one.ctypes.data for one in again] == [places[name] for name in "bca"]


@keeps_memory
def test_little_that_is_kept_can_be_released_beside_much_in_use() -> None:
    in_use, kept = (_cpu.empty((bytes_,), np.uint8) for bytes_ in (1 << 26, 1 << 21))
    del kept
    assert rotrnn.release_memory() >= 1 << 21
    assert rotrnn.release_memory() == 0
    assert in_use.size


FOOTPRINT = """
from pathlib import Path
import numpy as np
from rotrnn import _cpu

def peak():  # getrusage would count the parent's, whose tests before this one may have taken more
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    return 1024 * int(status["VmHWM"].split()[0])

before = peak()
for megabytes in (160, 120, 90, 160, 40):  # none fits where another was without wasting a quarter
    x = _cpu.empty((megabytes << 20,), np.uint8)
    x[:] = 1
    del x
assert peak() - before < 200 << 20, (peak() - before) >> 20
"""


@keeps_memory
@pytest.mark.skipif(sys.platform != "linux", reason="counts memory as Linux does")
def test_kept_memory_never_adds_to_the_peak() -> None:
    subprocess.run([sys.executable, "-c", FOOTPRINT], check=True)


def test_python_threads_may_call_at_once(parts: Any) -> None:
    x, norm, system, gating, h0 = parts
    x = np.tile(x, (1, 40, 1))  # few sequences, many tiles

    def run(_: int) -> list[bytes]:
        y, hT, _, saved = residual_block(x, norm, system, gating, h0)
        grads = residual_block_backward(y, norm, system, gating, saved, hT)
        return [array.tobytes() for array in (y, hT, grads.dx, grads.dh0, *grads.system)]

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(run, range(8)))
    assert all(result == results[0] for result in results)


def test_norms_may_change_from_block_to_block() -> None:
    """Only a batch norm asks the block before it for statistics."""
    norms = (LayerNorm(4), BatchNorm(4), LayerNorm(4), BatchNorm(4), BatchNorm(4))
    stack = ResidualStack(tuple(ResidualBlock(norm, LRU(4, 3), Gate(4)) for norm in norms))
    x, dy = np.random.default_rng(0).standard_normal((2, 3, 200, 4))

    def run(ctx: Context) -> Any:
        params = astype(stack.init(np.random.default_rng(1)), np.float64)
        y, saved = stack.forward(params, x, ctx)
        return y, *stack.backward(params, saved, dy)[:2]

    (y, dx, grads), (expected_y, expected_dx, expected) = run(CTX), run(replace(CTX, fused=False))
    close(y, expected_y)
    close(dx, expected_dx)
    for (name, grad), (expected_name, expected_grad) in zip(flatten(grads), flatten(expected), strict=True):
        assert name == expected_name
        close(grad, expected_grad)


def test_a_state_for_each_block() -> None:
    stack = ResidualStack(tuple(ResidualBlock(LayerNorm(4), LRU(4, 3), Gate(4)) for _ in range(2)))
    params = stack.init(np.random.default_rng(1))
    x = np.zeros((1, 5, 4), np.float32)
    y, saved = stack.forward(params, x)
    three = (*saved.state, saved.state[0])
    with pytest.raises(ValueError, match=r"forward: state has 3 states, expected one for each of 2 blocks"):
        stack.forward(params, x, state=three)
    with pytest.raises(ValueError, match=r"ResidualStack.backward: dstate has 3 states"):
        stack.backward(params, saved, y, three)
    with pytest.raises(ValueError, match=r"ResidualStack.step: state has 1 state,"):
        stack.step(params, three[:1], x[:, 0])


def test_mixed_precision_is_promoted() -> None:
    """float64 parameters and a float32 input: all results in float64."""
    stack = ResidualStack(tuple(ResidualBlock(BatchNorm(4), LRU(4, 3), Gate(4)) for _ in range(2)))
    params = astype(stack.init(np.random.default_rng(1)), np.float64)
    x = np.random.default_rng(0).standard_normal((3, 200, 4)).astype(np.float32)
    y, saved = stack.forward(params, x, CTX)
    dx, grads, _ = stack.backward(params, saved, np.ones_like(y))
    assert {array.dtype for array in (y, dx, *dict(flatten(grads)).values())} == {np.dtype(np.float64)}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"gating": {"form": "third"}}, ValueError, "residual_block: gating.form is 'third', expected one of full"),
        ({"gating": {"rate": 1.0}}, ValueError, "residual_block: rate is 1.0"),
        ({"gating": {"seed": -1}}, ValueError, "residual_block: seed is -1"),
        ({"gating": {"w_gate": np.ones((3, 4))}}, ValueError, r"residual_block: gating.w_gate has shape \(3, 4\)"),
        ({"gating": {"w_value": None}}, ValueError, "residual_block: gating.w_value is None"),
        ({"gating": {"b_gate": np.ones(4, int)}}, TypeError, "residual_block: gating.b_gate has dtype int64"),
        ({"norm": {"gain": np.ones(3)}}, ValueError, r"residual_block: norm.gain has shape \(3,\)"),
        ({"system": {"skip": np.ones(3)}}, ValueError, r"residual_block: skip has shape \(3,\)"),
        ({"lengths": (51, 0, 0)}, ValueError, r"residual_block: lengths\[0\] is 51"),
        (
            {"lengths": (0, 0, 0), "moments": True},
            ValueError,
            "residual_block: moments of an input without valid steps",
        ),
        ({"h0": np.ones((2, 3, 3))}, TypeError, "residual_block: h0 has dtype float64"),
        ({"h0": np.ones((1, 3, 3), complex)}, ValueError, r"residual_block: h0 has shape \(1, 3, 3\)"),
        ({"system": None}, TypeError, "residual_block: system is a NoneType, expected a System"),
        ({"norm": None}, TypeError, "residual_block: norm is a NoneType, expected a ChannelNorm or a RowNorm"),
        ({"norm": RowNorm(np.ones(4), np.ones(4), -1.0)}, ValueError, "residual_block: norm.eps is -1.0"),
    ],
)
def test_bad_input(parts: Any, change: dict[str, Any], error: type[Exception], message: str) -> None:
    x, norm, system, gating, h0 = parts
    named = {"norm": norm, "system": system, "gating": gating}
    arguments: dict[str, Any] = {"h0": h0, **named}
    for key, value in change.items():
        arguments[key] = named[key]._replace(**value) if isinstance(value, dict) else value
    with pytest.raises(error, match=message):
        residual_block(x, **arguments)


@pytest.mark.parametrize("keep", [5, "layer"])
def test_what_to_keep_is_a_collection(parts: Any, keep: Any) -> None:
    x, norm, system, gating, h0 = parts
    with pytest.raises(TypeError, match=f"residual_block: keep is {keep!r}, expected a collection of layer, states,"):
        residual_block(x, norm, system, gating, h0, keep=keep)


def test_what_backward_is_given_must_be_of_its_forward(parts: Any) -> None:
    x, norm, system, gating, h0 = parts
    saved = residual_block(x, norm, system, gating, h0).saved
    with pytest.raises(ValueError, match=r"residual_block_backward: saved.carries has shape \(2, 3, 2, 3\)"):
        residual_block_backward(x, norm, system, gating, saved._replace(carries=np.zeros((2, 3, 2, 3), complex)))
    with pytest.raises(ValueError, match=r"residual_block_backward: saved.x has shape"):
        residual_block_backward(x[:, :-1], norm, system, gating, saved)
    with pytest.raises(ValueError, match=r"residual_block_backward: dhT has shape"):
        residual_block_backward(x, norm, system, gating, saved, h0[:1])
    kept = residual_block(x, norm, system, gating, h0, lengths=(50, 0, 33), keep=("layer",)).saved
    with pytest.raises(ValueError, match=r"residual_block_backward: saved.layer has shape \(1, 50, 4\)"):
        residual_block_backward(x, norm, system, gating, kept._replace(layer=kept.layer[:1]))
    with pytest.raises(ValueError, match=r"residual_block_backward: lengths has shape \(1,\)"):
        residual_block_backward(x, norm, system, gating, kept._replace(lengths=np.array([50])))
    with pytest.raises(ValueError, match=r"residual_block_backward: later.center has shape \(2,\)"):
        residual_block_backward(x, norm, system, gating, kept, later=Later(x, *np.ones((3, 2))))
    narrow = kept._replace(x=kept.x.astype(np.float32))
    with pytest.raises(TypeError, match=r"residual_block_backward: saved.x has dtype float32, expected"):
        residual_block_backward(x, norm, system, gating, narrow)
    with pytest.raises(ValueError, match=r"settle: later.center has shape \(2,\)"):
        settle(x, Later(x, *np.ones((3, 2))))
    with pytest.raises(ValueError, match=r"settle: lengths\[0\] is 51"):
        settle(x, Later(x, *np.ones((3, 4))), lengths=(51, 0, 0))
    _, _, layer = linear_layer(system, x, h0)
    with pytest.raises(ValueError, match=r"linear_layer_backward: saved.carries has shape"):
        linear_layer_backward(x, system, layer._replace(carries=layer.carries[:, :, :0]))


def test_what_backward_is_given_may_be_byte_swapped(parts: Any) -> None:
    """As read from a file of another machine: the same bits."""
    x, norm, system, gating, h0 = parts
    kept = residual_block(x, norm, system, gating, h0, keep=("layer", "states")).saved
    swapped = {name: one.astype(one.dtype.newbyteorder(">")) for name, one in kept._asdict().items() if one is not None}
    want = residual_block_backward(x, norm, system, gating, kept)
    got = residual_block_backward(x, norm, system, gating, kept._replace(**swapped))
    assert got.dx.tobytes() == want.dx.tobytes()
    assert got.system.a.tobytes() == want.system.a.tobytes()


def test_layer_norm_blocks_take_scale_and_bias(parts: Any) -> None:
    """A row norm of scale and bias is what `LayerNorm` computes."""
    x, norm, system, gating, h0 = parts
    normed, _ = LayerNorm(4).forward({"scale": norm.gain, "bias": norm.offset}, x)
    got = residual_block(x, RowNorm(norm.gain, norm.offset), system, gating._replace(rate=0.0), h0).y
    identity = ChannelNorm(np.zeros(4), np.ones(4), np.zeros(4))
    close(got - x, residual_block(normed, identity, system, gating._replace(rate=0.0), h0).y - normed)
