"""What fused blocks keep for backward: the same bits whatever it is, and no more bytes than allowed."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rotrnn
from rotrnn.nn.blocks import fused
from rotrnn.nn.blocks.block import ResidualBlock, ResidualStack
from rotrnn.nn.blocks.gate import Gate
from rotrnn.nn.blocks.norm import BatchNorm
from rotrnn.nn.layer import Context, flatten
from rotrnn.nn.layers.lru import LRU
from rotrnn.nn.saved import flatten_saved
from rotrnn.ops.block import (
    ChannelNorm,
    Gating,
    Later,
    RowNorm,
    keepable,
    residual_block,
    residual_block_backward,
)
from rotrnn.ops.linear_layer import System

KEEPABLE = keepable(np.zeros(0))

CHOICES = [tuple(subset) for n in range(4) for subset in itertools.combinations(KEEPABLE, n)]
"""Everything that a block can be asked to keep."""

SHAPES = {"one": (1, 220, None), "few": (2, 200, (200, 150)), "many": (18, 100, None), "ragged": (17, 97, True)}
"""B, T and lengths: two sequences or fewer run their tiles in parallel, 16 or more one after the other."""


def arguments(dtype: Any, K: int, norm: str, form: str, shape: str, D: int = 5, **dropout: Any) -> dict[str, Any]:
    """Arguments of a block with N 3 or, where D is large, 21."""
    N = 3 if D == 5 else 21
    B, T, lengths = SHAPES[shape]
    rng = np.random.default_rng(0)

    def normal(*size: int) -> Any:
        return rng.standard_normal(size).astype(dtype)

    angle = np.exp(1j * rng.uniform(-np.pi, np.pi, N))
    a = (rng.uniform(0.9, 1, N) * angle).astype(np.result_type(dtype, np.complex64))
    h0 = (normal(K, B, N) + 1j * normal(K, B, N)).astype(a.dtype)
    value = {"w_value": normal(D, D), "b_value": normal(D)} if form == "full" else {}
    return {
        "x": normal(B, T, D),
        "norm": RowNorm(normal(D), normal(D)) if norm == "row" else ChannelNorm(normal(D), normal(D), normal(D)),
        "system": System(normal(2 * N, D), a, normal(K, D, 2 * N), normal(D)),
        "gating": Gating(form, normal(D, D), normal(D), **value, **dropout),
        "h0": h0,
        "lengths": rng.integers(1, T + 1, B) if lengths is True else lengths,
    }


def run(args: dict[str, Any], keep: tuple[str, ...], exact: Any = None) -> list[Any]:
    """Every array that forward and backward return."""
    parts = args["norm"], args["system"], args["gating"]
    y, hT, moments, saved = residual_block(
        args["x"], *parts, args["h0"], lengths=args["lengths"], moments=True, keep=keep, exact=exact
    )
    assert {name for name in KEEPABLE if getattr(saved, name) is not None} == set(keep)
    dhT = hT.astype(args["h0"].dtype)
    later = Later(y, *(np.linspace(-1, 1, y.shape[2]).astype(y.dtype) for _ in range(3)))
    grads = residual_block_backward(np.cos(y), *parts, saved, dhT, later)
    weights = [one for one in grads.gating if isinstance(one, np.ndarray)]
    return [y, hT, *(moments or ()), grads.dx, *grads.system, *weights, grads.dh0, grads.norm_sum, grads.norm_product]


def same(args: dict[str, Any], **more: Any) -> None:
    expected = run(args, (), **more)
    for keep in CHOICES:
        for one, other in zip(run(args, keep, **more), expected, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=f"keep={keep}")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("K", [1, 2])
@pytest.mark.parametrize(
    ("norm", "form"), [("row", "full"), ("channel", "half1"), ("channel", "half2"), ("row", "half1")]
)
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_results_do_not_depend_on_what_is_kept(shape: str, K: int, norm: str, form: str, precision: str) -> None:
    over_time = norm == "row"
    with rotrnn.precision(precision):
        same(arguments(np.float32, K, norm, form, shape, rate=0.3, over_time=over_time, seed=3, site=2))
        same(arguments(np.float32, K, norm, form, shape))


def test_nor_in_float64_or_with_exact_transitions() -> None:
    same(arguments(np.float64, 2, "row", "full", "few", rate=0.1))
    args = arguments(np.float32, 2, "row", "full", "few")
    same(args, exact=args["system"].a.astype(np.complex128))


@pytest.mark.parametrize("simd", rotrnn._cpu.SIMD_AVAILABLE)
def test_nor_on_any_instruction_set(simd: str) -> None:
    """D 37 and N 21: rows that begin at every offset from a register's."""
    before = rotrnn._cpu.use_simd(simd)
    try:
        for precision in ("float32", "bf16"):
            with rotrnn.precision(precision):
                same(arguments(np.float32, 1, "channel", "full", "few", D=37))
    finally:
        rotrnn._cpu.use_simd(before)


# ---- bad input ----


def test_what_cannot_be_kept_is_refused() -> None:
    args = arguments(np.float32, 1, "row", "full", "one")
    message = r"residual_block: keep is 'gates', expected one of layer, states, products"
    with pytest.raises(ValueError, match=message):
        run(args, ("gates",))


@pytest.mark.parametrize("name", KEEPABLE)
def test_what_was_kept_is_checked(name: str) -> None:
    args = arguments(np.float32, 1, "row", "full", "one")
    parts = args["norm"], args["system"], args["gating"]
    y, _, _, saved = residual_block(args["x"], *parts, args["h0"], keep=KEEPABLE)
    kept = getattr(saved, name)
    for other in (kept[..., 1:], kept.astype(np.float64)):
        with pytest.raises(ValueError, match=rf"residual_block_backward: saved.{name} has shape .* expected"):
            residual_block_backward(y, *parts, saved._replace(**{name: other}))
    with rotrnn.precision("bf16"), pytest.raises(ValueError, match=r"saved.layer has .*, expected .* and uint16"):
        residual_block_backward(y, *parts, saved)


@pytest.mark.parametrize("memory", [-1, 1.5, True, "auto"])
def test_memory_is_a_number_of_bytes(memory: Any) -> None:
    with pytest.raises(ValueError, match=r"Context: memory is .*, expected an integer from 0"):
        Context(memory=memory)


# ---- which, in so much memory ----

B, T, D = 4, 300, 64
STACK = ResidualStack(tuple(ResidualBlock(BatchNorm(D), LRU(D, 32), Gate(D)) for _ in range(3)))
PARAMS = STACK.init(np.random.default_rng(0))
X = np.random.default_rng(1).standard_normal((B, T, D)).astype(np.float32)


def bytes_kept(saved: Any) -> int:
    arrays, _ = flatten_saved(saved)
    return sum(one.nbytes for name, one in arrays.items() if name.rsplit(".", 1)[-1] in KEEPABLE)


def step(ctx: Context) -> tuple[list[Any], int]:
    """What a step of the stack returns, and the bytes that it kept."""
    y, saved = STACK.forward(PARAMS, X, ctx)
    dx, grads, _ = STACK.backward(PARAMS, saved, np.cos(y))
    return [y, dx, *(grad for _, grad in flatten(grads))], bytes_kept(saved)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_stack_keeps_as_much_as_memory_holds(precision: str) -> None:
    ctx, before = Context(train=True), -1
    with rotrnn.precision(precision):
        expected, _ = step(replace(ctx, memory=0))
        for memory in (0, X.nbytes // 2, X.nbytes, 3 * X.nbytes, 5 * X.nbytes, 2**40):
            arrays, kept = step(replace(ctx, memory=memory))
            assert before <= kept <= memory
            before = kept
            for one, other in zip(arrays, expected, strict=True):
                np.testing.assert_array_equal(one, other)
        assert before > 0


def test_by_default_training_keeps_half_of_its_inputs_and_evaluation_nothing() -> None:
    assert step(Context(train=True))[1] == 2 * X.nbytes  # of three blocks' inputs, rounded up
    assert step(Context())[1] == 0
    assert step(Context(memory=2**40))[1] > 0


def test_what_saves_more_for_its_bytes_is_kept_first() -> None:
    """Layers' outputs save K L products of a number, states and products of the gate D; the last blocks come first."""
    parts = [block.fusible(Context()) for block in STACK.blocks]
    found = [one for i, part in enumerate(parts) if part is not None for one in fused.choices(i, part, X)]
    worth = {(one.block, one.name): one.worth for one in found}
    assert worth == {(i, name): 64 / 4 for i in range(3) for name in KEEPABLE}
    assert fused.kept_by(parts, X, Context(memory=X.nbytes)) == [(), (), ("layer",)]
    assert fused.kept_by([None, parts[0]], X, Context(memory=2**40))[0] == ()


def test_what_costs_more_than_it_saves_is_never_kept() -> None:
    """At D 8 a number kept saves some eight multiply-adds, which take less time than to write and read it."""
    small = ResidualStack((ResidualBlock(BatchNorm(8), LRU(8, 4), Gate(8)),))
    _, saved = small.forward(small.init(np.random.default_rng(0)), X[:, :, :8], Context(train=True, memory=2**40))
    assert bytes_kept(saved) == 0
