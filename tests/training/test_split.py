"""Sequences split over processes: equal to one process up to rounding, and every failure reaches all.

The processes are threads of this one (worlds.py); the last tests start processes by mpiexec.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import split_by_mpi
import strict
from patience import PATIENCE
from rotrnn import ops
from rotrnn.models.classifier import SequenceClassifier
from rotrnn.models.tagger import Tagger
from rotrnn.nn.blocks.block import FeedForwardBlock, ResidualBlock, ResidualStack
from rotrnn.nn.blocks.dense import Dense
from rotrnn.nn.blocks.feed_forward import FeedForward
from rotrnn.nn.blocks.gate import Dropout, Gate
from rotrnn.nn.blocks.norm import BatchNorm, LayerNorm
from rotrnn.nn.blocks.pool import LastPool, MeanPool
from rotrnn.nn.layer import Context, astype, flatten, unflatten
from rotrnn.nn.layers.bidirectional import Bidirectional
from rotrnn.nn.layers.lru import LRU
from rotrnn.nn.layers.memory import RopeMemory
from rotrnn.nn.layers.min_gru import MinGRU
from rotrnn.nn.layers.rotrnn import RotRNN
from rotrnn.nn.layers.s4d import S4D
from rotrnn.nn.layers.s5 import S5
from rotrnn.ops import split as splitting
from rotrnn.ops.linear_layer import System, linear_layer, linear_layer_backward
from rotrnn.training.parallel import ALONE, Fallen
from worlds import among

B, N, D = 3, 5, 4
SIZES = (7, 0, 6, 11)
"""Steps of each process's piece: unequal, and one of none."""
T = sum(SIZES)
LENGTHS = np.array([24, 9, 0])
LANES = [np.float32, np.float64, np.complex64, np.complex128]


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    """Maps of pieces are made of those of chunks of two steps."""
    monkeypatch.setattr(splitting, "CHUNK", 2 * B * N)


def piece(rank, sizes=SIZES):
    return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))


def joined(parts):
    return np.concatenate(parts, 1)


def draw(rng, dtype, *shape):
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def close(got, expected, scale, roundings):
    """Checks that two results of at most so many roundings of numbers up to `scale` agree."""
    bound = 2 * roundings * np.finfo(expected.dtype).eps * scale
    np.testing.assert_allclose(got, expected, rtol=0, atol=bound)


class Counted:
    """Ranks whose messages are counted."""

    def __init__(self, ranks):
        self.ranks, self.rank, self.size, self.sent = ranks, ranks.rank, ranks.size, []

    def gather(self, x):
        self.sent.append(x.nbytes)
        return self.ranks.gather(x)


# ---- scans ----


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["whole", "ragged"])
@pytest.mark.parametrize("varying", [False, True])
@pytest.mark.parametrize("dtype", LANES)
def test_the_pieces_of_a_diagonal_scan_are_those_of_the_whole(dtype, varying, lengths, reverse):
    """With |a| = 1, which forgets nothing. A state is a sum of at most T + 1 numbers, each multiplied at most T times,
    so it has at most 4 T + 4 roundings (a complex product has two) of numbers up to the sum of |x| and |h0|; da is a
    sum of B T products of such a state and such a gradient."""
    rng = np.random.default_rng(0)
    a = draw(rng, dtype, *((B, T, N) if varying else (N,)))
    a /= np.abs(a)
    x, dh, h0, dhT = (
        draw(rng, dtype, B, T, N),
        draw(rng, dtype, B, T, N),
        draw(rng, dtype, B, N),
        draw(rng, dtype, B, N),
    )
    if lengths is not None:
        padding = np.arange(T) >= lengths[:, None]
        x[padding] = dh[padding] = np.nan
    how = {"reverse": reverse, "lengths": lengths}
    h, hT = ops.diagonal_scan(a, x, h0, **how, return_state=True)
    grads = ops.diagonal_scan_backward(dh, a, h, h0, dhT=dhT, **how)
    first, last = (3, 0) if reverse else (0, 3)

    def run(world):
        part, r = piece(world.rank), world.rank
        own = a[:, part] if varying else a
        valid = None if lengths is None else ops.split_lengths(lengths, SIZES[r], split=world)
        here = {"reverse": reverse, "lengths": valid}
        start = ops.split_start(own, x[:, part], h0 if r == first else None, split=world, **here)
        states, end = ops.diagonal_scan(own, x[:, part], start, **here, return_state=True)
        back = ops.split_end(dh[:, part], own, dhT if r == last else None, split=world, **here)
        assert all(one.dtype == dtype for one in (start, back))
        return states, end, ops.diagonal_scan_backward(dh[:, part], own, states, start, dhT=back, **here)

    states, ends, parts = zip(*among(4, run), strict=True)
    large, steep = (np.nansum(np.abs(one), 1).max() + np.abs(more).max() for one, more in ((x, h0), (dh, dhT)))
    close(joined(states), h, large, 4 * T + 4)
    close(ends[last], hT, large, 4 * T + 4)
    close(joined([one.dx for one in parts]), grads.dx, steep, 4 * T + 4)
    close(parts[first].dh0, grads.dh0, steep, 4 * T + 4)
    da = joined([one.da for one in parts]) if varying else sum(one.da for one in parts)
    close(da, grads.da, B * T * large * steep, 8 * T + 8 + B * T)


def test_the_sizes_of_messages():
    """128 bytes, B N complex numbers of 16 bytes, and N of the power, or B N where lengths differ."""

    def run(world):
        a, x = np.full(N, 0.5 + 0.5j), np.zeros((B, T, N), np.complex64)
        counted = Counted(world)
        ops.split_start(a, x, split=counted)
        ops.split_end(x, a, split=counted)
        ops.split_start(a, x, split=counted, lengths=LENGTHS)
        ops.split_start(a.real, x.real, split=counted)
        return counted.sent

    for sent in among(3, run):
        assert sent == [128 + 16 * (1 + B) * N] * 2 + [128 + 16 * 2 * B * N, 128 + 8 * (1 + B) * N]


def test_one_process_has_nothing_to_add():
    x = np.ones((B, T, N))
    assert ops.split_start(np.ones(N), x, split=ALONE) is None
    np.testing.assert_array_equal(ops.split_start(np.ones(N), x, x[:, 0], split=ALONE), x[:, 0])
    np.testing.assert_array_equal(ops.split_lengths(LENGTHS, T, split=ALONE), LENGTHS)


# ---- the linear layer ----


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("K", [1, 2])
def test_the_pieces_of_a_linear_layer(K, fused):
    """Products of D or 2 N terms around a scan: 4 T + 4 + D + 2 N roundings, and again as many in a gradient, which
    sums over B T more."""
    rng = np.random.default_rng(2)
    a = np.exp(1j * rng.uniform(0, 6, N))
    system = System(rng.standard_normal((2 * N, D)), a, rng.standard_normal((K, D, 2 * N)), rng.standard_normal(D))
    u, dy = rng.standard_normal((2, B, T, D))
    padding = np.arange(T) >= LENGTHS[:, None]
    u[padding] = dy[padding] = np.nan
    y, _, saved = linear_layer(system, u, lengths=LENGTHS, fused=fused)
    grads = linear_layer_backward(dy, system, saved)

    def run(world):
        part, r = piece(world.rank), world.rank
        valid = ops.split_lengths(LENGTHS, SIZES[r], split=world)
        own, _, kept = linear_layer(system, u[:, part], lengths=valid, fused=fused, split=world)
        with pytest.raises(ValueError, match="linear_layer_backward: split is None, expected forward's"):
            linear_layer_backward(dy[:, part], system, kept)
        return own, linear_layer_backward(dy[:, part], system, kept, split=world)

    ys, parts = zip(*among(4, run), strict=True)
    weight = 2 * max(np.abs(one).sum() for one in (system.w_in, system.w_out, system.skip))
    large, steep = (np.nansum(np.abs(one)) for one in (u, dy))
    close(joined(ys), y, weight**2 * large, 4 * T + 4 + D + 2 * N)
    close(joined([one.du for one in parts]), grads.du, weight**2 * steep, 4 * T + 4 + D + 2 * N)
    for name, whole in grads.system._asdict().items():
        total = sum(getattr(one.system, name) for one in parts)
        close(total, whole, weight**2 * large * steep, 2 * (4 * T + 4 + D + 2 * N) + B * T)


def test_states_that_do_not_decay_are_passed_on_in_double_precision():
    """The error against the whole in float64 stays that of float32 per piece, where a power of the rounded transition
    would be off by T times the rounding of a."""
    rng, steps, pieces = np.random.default_rng(3), 10_000, 4
    a = np.exp(1j * rng.uniform(0, 3, N))
    system = System(np.eye(2 * N), a, np.eye(2 * N)[None], np.zeros(2 * N))
    u = np.zeros((1, steps * pieces, 2 * N), np.float32)
    u[0, 0] = 1
    small = System(*(one.astype(np.complex64 if one.dtype == complex else np.float32) for one in system))
    y, _, _ = linear_layer(system, u)

    def run(world):
        part = piece(world.rank, (steps,) * pieces)
        return linear_layer(small, u[:, part], exact=a, split=world)[0]

    # a state of one number: per tile of 96 steps a product rounded in float32, after at most 96 steps
    np.testing.assert_allclose(joined(among(pieces, run)), y, rtol=0, atol=2 * 4 * 97 * np.finfo(np.float32).eps)


# ---- models ----


def model_of(block="residual", norm=BatchNorm, layer=LRU, prenorm=True, **settings):
    def one(i):
        inner = layer(D, d_state=4, **settings)
        if block == "residual":
            return ResidualBlock(norm(D), inner, Gate(D, dropout=0.3, over_time=True, site=2 * i), prenorm)
        return FeedForwardBlock(ResidualBlock(norm(D), inner, Dropout(0.0), prenorm), norm(D), FeedForward(D))

    return SequenceClassifier(Dense(2, D), ResidualStack((one(0), one(1))), MeanPool(), Dense(D, 3), norm=norm(D))


MODELS = {
    "lru, batch norm": {},
    "both directions": {"bidirectional": True},
    "s5, layer norm": {"layer": S5, "norm": LayerNorm},
    "rotrnn, postnorm": {"layer": RotRNN, "heads": 2, "prenorm": False},
    "feed-forward": {"block": "feed_forward"},
}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("settings", MODELS.values(), ids=MODELS)
def test_a_classifier_on_a_grid_of_two_by_two(settings, fused):
    """Two rows that share a batch of five, two pieces of time of unequal lengths; in training, with dropout over time.
    Loss: the sum of what all processes make of their logits, each weighed by 1/2. Roundings as in
    test_batch_norm_of_a_batch_that_is_spread, for three norms."""
    rng = np.random.default_rng(4)
    model = model_of(**settings)
    params = astype(model.init(rng), np.float64)
    lengths, shares, sizes = np.array([13, 9, 1, 4, 7]), [slice(0, 3), slice(3, 5)], (8, 5)
    x, dlogits = rng.standard_normal((5, 13, 2)), rng.standard_normal((5, 3))
    whole = Context(lengths, train=True, seed=1, step=2, fused=fused)

    def run(inputs, dout, ctx):
        mine = unflatten({name: array.copy() for name, array in flatten(params)})
        logits, saved = model.forward(mine, inputs, ctx)
        grads = dict(flatten(model.backward(mine, saved, dout, ctx.gather)))
        return logits, grads, {name: array for name, array in flatten(mine) if "running" in name}

    def one(world):
        grid = world.grid(time=2)
        assert (grid.rows, grid.row, grid.time.rank) == (2, world.rank // 2, world.rank % 2)
        rows, part = shares[grid.row], piece(grid.time.rank, sizes)
        valid = ops.split_lengths(lengths[rows], sizes[grid.time.rank], split=grid.time)
        ctx = replace(whole, lengths=valid, places=np.arange(5)[rows], gather=grid)
        logits, grads, running = run(x[rows, part], dlogits[rows] / 2, ctx)
        return logits, world.total(grads), running

    expected, grads, running = run(x, dlogits, whole)
    found = among(4, one)
    bound = 3 * (2 * 5 * 13 + 6 * D + 8 * 4 + 10 * 13) * np.finfo(np.float64).eps
    for row in (0, 1):
        for rank in (2 * row, 2 * row + 1):
            np.testing.assert_allclose(
                found[rank][0], expected[shares[row]], rtol=0, atol=bound * np.abs(expected).max()
            )
    largest = max(np.abs(grad).max() for grad in grads.values())
    for name, grad in grads.items():
        np.testing.assert_allclose(found[0][1][name], grad, rtol=0, atol=bound * largest, err_msg=name)
    for name, average in running.items():
        np.testing.assert_allclose(found[0][2][name], average, rtol=0, atol=bound)  # of numbers of about one


def test_a_tagger_in_pieces_and_its_states():
    """Each process has the logits of its own steps, in evaluation too; the state after the last piece is that of the
    whole, and gradients of it reach every piece."""
    rng = np.random.default_rng(5)
    stack = ResidualStack(model_of(norm=LayerNorm).stack.blocks)
    tagger = Tagger(Dense(2, D), stack, Dense(D, 3))
    params = astype(tagger.init(rng), np.float64)
    x = rng.standard_normal((B, T, 2))
    expected, _ = tagger.forward(params, x)
    parts = among(4, lambda world: tagger.forward(params, x[:, piece(world.rank)], Context(gather=world.grid(4)))[0])
    np.testing.assert_allclose(joined(parts), expected, rtol=0, atol=1000 * T * np.finfo(float).eps)

    layer, u = LRU(D, d_state=N), rng.standard_normal((B, T, D))
    own = astype(layer.init(rng), np.float64)
    before, dafter = draw(rng, complex, B, N), draw(rng, complex, B, N)
    y, saved = layer.forward(own, u, Context(), before)
    dx, dparams, dbefore = layer.backward(own, saved, y, dafter)

    def run(world):
        grid, part = world.grid(4), piece(world.rank)
        here, kept = layer.forward(own, u[:, part], Context(gather=grid), before if world.rank == 0 else None)
        back = layer.backward(own, kept, here, dafter if world.rank == 3 else None, grid)
        return here, kept.state, *back

    ys, states, dxs, several, dstates = zip(*among(4, run), strict=True)
    scale = 100 * max(np.abs(one).max() for one in (y, saved.state, dx, dbefore, *dparams.values()))
    close(joined(ys), y, scale, 4 * T)
    close(states[3], saved.state, scale, 4 * T)
    close(joined(dxs), dx, scale, 4 * T)
    close(dstates[0], dbefore, scale, 4 * T)
    for name, grad in dparams.items():
        close(sum(one[name] for one in several), grad, scale, 4 * T + B * T)


# ---- what is refused, in all processes ----


def test_processes_that_differ_are_refused_in_all():
    a, x = np.full(N, 0.5), np.zeros((B, T, N))
    small = a.astype(np.float32), x.astype(np.float32)
    layer = System(np.ones((2 * N, D)), a + 0j, np.ones((1, D, 2 * N)), np.ones(D))
    narrow = System(*(one.astype(kind) for one, kind in zip(layer, ("f4", "c8", "f4", "f4"), strict=True)))

    def run(world):
        first = world.rank == 0
        with pytest.raises(
            ValueError, match=r"^process 1 calls split_start with B=2, N=5, float64, expected split_start"
        ):
            ops.split_start(a, x[: 3 - world.rank], split=world)
        with pytest.raises(
            ValueError, match=r"^process 1 calls split_end with B=3, N=5, float32 from the end, expected"
        ):
            ops.split_end(*((x, a) if first else small[::-1]), split=world)
        with pytest.raises(
            ValueError, match=r"^process 1 calls split_start with B=3, N=5, float64 from the end, expec"
        ):
            ops.split_start(a, x, split=world, reverse=not first)
        with pytest.raises(
            ValueError, match=r"^process 1 calls linear_layer with B=3, N=5, float32, expected linear_l"
        ):
            linear_layer(layer if first else narrow, x[..., :D].astype("f8" if first else "f4"), split=world)
        return True

    assert all(among(2, run))


@pytest.mark.parametrize("split", [None, 2, "world"])
def test_what_are_no_processes(split):
    a, x = np.full(N, 0.5), np.zeros((B, T, N))
    layer = System(np.ones((2 * N, D)), a + 0j, np.ones((1, D, 2 * N)), np.ones(D))
    calls = {
        "split_start": lambda: ops.split_start(a, x, split=split),
        "split_end": lambda: ops.split_end(x, a, split=split),
        "split_lengths": lambda: ops.split_lengths(LENGTHS, T, split=split),
    }
    if split is not None:  # which is one process here
        calls["linear_layer"] = lambda: linear_layer(layer, x[..., :D], split=split)
    for name, call in calls.items():
        with pytest.raises(TypeError, match=f"^{name}: split is {split!r}, expected the processes that share each seq"):
            call()


@pytest.mark.parametrize("time", [None, "2", True, 1.0, 0])
def test_rows_that_are_no_number(time):
    with pytest.raises(ValueError, match=f"^grid: time={time!r}, expected a divisor of the number of processes, 1$"):
        ALONE.grid(time)
    assert ALONE.grid(np.int64(1)).time.size == 1


def test_powers_that_overflow_leave_zeros_as_they_are():
    a, x = np.array([1e200, 0.5, 1e200 + 1e200j]), np.zeros((1, 10, 3), complex)
    x[0, 0, 1] = 1
    starts = among(3, lambda world: ops.split_start(a, x[:, piece(world.rank, (4, 4, 2))], split=world))
    np.testing.assert_array_equal(starts[2], [[0, 0.5**7, 0]])


def test_a_process_that_fails_is_heard_of_in_other_rows_too():
    def run(world):
        grid = world.grid(time=2)
        try:
            with world.together():
                for _ in range(3):
                    x = np.zeros((B, 2, N), np.int64 if world.rank == 3 else np.float64)
                    ops.split_start(np.ones(N), x, split=grid.time)
        except (Fallen, TypeError) as error:
            return f"{type(error).__name__}: {error}"

    told = among(4, run)
    assert told[3].startswith("TypeError: split_start: x has dtype int64")
    assert told[:3] == [f"Fallen: process 3 of 4 failed: {told[3]}"] * 3


def test_no_lanes_at_all():
    found = among(3, lambda world: ops.split_start(np.ones(0), np.zeros((B, T, 0)), split=world))
    assert found[0] is None
    assert [one.shape for one in found[1:]] == [(B, 0), (B, 0)]


def test_states_belong_to_the_ends():
    a, x, h = np.full(N, 0.5), np.zeros((B, T, N)), np.zeros((B, N))

    def run(world):
        for call, given, reverse, rank, name in (
            (ops.split_start, (a, x, h), False, 0, "h0"),
            (ops.split_start, (a, x, h), True, 1, "h0"),
            (ops.split_end, (x, a, h), False, 1, "dhT"),
            (ops.split_end, (x, a, h), True, 0, "dhT"),
        ):
            expected = (
                f"{name} was given to process {1 - rank} of 2, expected only by process {rank}, "
                f"where time {'ends' if name == 'dhT' else 'begins'}"
            )
            try:
                with world.together():
                    call(*given, split=world, reverse=reverse)
            except (ValueError, Fallen) as error:
                assert isinstance(error, Fallen) == (world.rank == rank)  # noqa: PT017  # one raises, the other hears
                assert expected in str(error)  # noqa: PT017
            else:
                pytest.fail("nothing was raised")
            world.over = False
        return True

    assert all(among(2, run))


@pytest.mark.parametrize(
    "layer", [S4D(D, 4), MinGRU(D, 4), Bidirectional(D, LRU(D, 4))], ids=lambda one: type(one).__name__
)
def test_layers_that_cannot_be_split_say_so(layer):
    grid = ALONE.grid(1)
    params = layer.init(np.random.default_rng(0))
    kind = type(layer).__name__
    with pytest.raises(
        ValueError, match=rf"{kind}\.forward: sequences are split over processes, which {kind} does not "
    ):
        layer.forward(params, np.zeros((1, 3, D), np.float32), Context(gather=grid))
    block = ResidualBlock(LayerNorm(D), layer, Dropout(0.0))
    with pytest.raises(
        ValueError, match=rf"ResidualBlock\.forward: sequences are split .* which {kind} does not support"
    ):
        block.forward(block.init(np.random.default_rng(0)), np.zeros((1, 3, D), np.float32), Context(gather=grid))


def test_settings_that_cannot_be_split_say_so():
    rng, x, grid = np.random.default_rng(0), np.zeros((1, 3, D), np.float32), ALONE.grid(1)
    ctx = Context(train=True, gather=grid)
    windowed = LRU(D, 4, window=2)
    with pytest.raises(ValueError, match=r"LRU\.forward: LRU has window=2, expected None: sequences are split"):
        windowed.forward(windowed.init(rng), x, ctx)
    measuring = RotRNN(D, 4, normalise="spectrum")
    with pytest.raises(ValueError, match=r"RotRNN\.forward: RotRNN\(.*normalise='spectrum'\) measures its input, exp"):
        measuring.forward(measuring.init(rng), x, ctx)
    with pytest.raises(ValueError, match=r"linear_layer: window=2, expected None: windows of split sequences"):
        linear_layer(windowed.fold(windowed.init(rng)).weights, x, window=2, split=ALONE)
    with pytest.raises(ValueError, match=r"Dropout: rate=0\.5 with over_time=False, expected rate=0 or over_time=True"):
        Dropout(0.5).forward({}, x, ctx)
    assert Dropout(0.5).forward({}, x, replace(ctx, train=False))[0] is x
    with pytest.raises(ValueError, match=r"LastPool\.forward: sequences are split over processes, expected MeanPool"):
        LastPool().forward({}, x, ctx)
    _, saved = MeanPool().forward({}, x, ctx)
    with pytest.raises(ValueError, match=r"MeanPool\.backward: gather is None, expected forward's"):
        MeanPool().backward({}, saved, x[:, 0])
    layer = RopeMemory(D, 4, length=8)
    _, kept = layer.forward(layer.init(rng), x, ctx)
    with pytest.raises(ValueError, match=r"split is None, expected forward's"):
        layer.backward(layer.init(rng), kept, x)
    with pytest.raises(
        NotImplementedError, match=r"split_start: split sequences are not supported on the strict device, only on cpu"
    ):
        ops.split_start(strict.STRICT.asarray(np.ones(D)), strict.STRICT.asarray(x + 0.0), split=ALONE)


def test_arguments_of_grids_and_lengths():
    def run(world):
        with pytest.raises(ValueError, match=r"grid: time=2, expected a divisor of the number of processes, 3"):
            world.grid(2)
        with pytest.raises(ValueError, match=r"grid: time is 3 in process 1, expected 1 as in process 0"):
            world.grid(3 if world.rank == 1 else 1)
        with pytest.raises(
            ValueError, match=r"lengths\[1\] is 7, expected an integer from 0 to T=6, the sum of the pieces"
        ):
            ops.split_lengths([6, 7], 2, split=world)
        with pytest.raises(TypeError, match=r"split_lengths: lengths has dtype float64, expected an integer dtype"):
            ops.split_lengths([6.0], 2, split=world)
        return True

    assert all(among(3, run))


# ---- processes ----

MPIEXEC = Path(sys.executable).with_name("mpiexec")


@pytest.mark.whole
@pytest.mark.parametrize(("processes", "time"), [(2, 2), (4, 4), (4, 2)])
def test_processes_of_mpi_equal_one(processes, time):
    """A model forward, backward and one more exchange; the script compares with one process itself."""
    command = [MPIEXEC, "-n", processes, sys.executable, split_by_mpi.__file__, time]
    env = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{processes} processes, {time} pieces: equal\n"


@pytest.mark.whole
def test_processes_of_mpi_run_the_documented_examples(tmp_path):
    """Those of docs/processes.md, one after the other; each gives the gradients of one process."""
    page = Path(__file__).parents[2] / "docs" / "processes.md"
    block, scan = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    (tmp_path / "this.py").write_text(
        "\n".join([block, COMPARE_BLOCK, BEFORE_SCAN, scan, COMPARE_SCAN]), encoding="utf-8"
    )
    env = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    command = [str(MPIEXEC), "-n", "4", sys.executable, str(tmp_path / "this.py")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    of_block, of_scan = map(float, done.stdout.split())
    # float32: sums of 6 * 100 steps after some 10 * 100 roundings of a recurrence, and tens of the block's
    assert of_block < 2000 * np.finfo(np.float32).eps
    assert of_scan < 2 * 4 * 101 * np.finfo(float).eps  # as the tests of scans above


COMPARE_BLOCK = """
if everyone.first:
    x = np.random.default_rng(1).standard_normal((6, 100, 8), np.float32)
    params = block.init(np.random.default_rng(0))
    y, saved = block.forward(params, x, rotrnn.Context(np.array([100, 70, 30] * 2), train=True))
    whole = dict(rotrnn.nn.flatten(block.backward(params, saved, y)[1]))
    print(max(np.abs(dparams[name] - one).max() / np.abs(one).max() for name, one in whole.items()))
"""
BEFORE_SCAN = """
a, all_x, h0, dhT = np.exp(1j * np.arange(3.0)), np.ones((2, 100, 3)) + 0j, None, None
x = dh = all_x[:, piece]
"""
COMPARE_SCAN = """
whole = rotrnn.ops.diagonal_scan_backward(all_x, a, rotrnn.ops.diagonal_scan(a, all_x)).dx[:, piece]
worst = max(everyone.tell(np.abs(dx - whole).max() / 100))
if everyone.first:
    print(worst)
"""


@pytest.mark.whole
def test_a_process_of_mpi_that_fails_does_not_hang_the_others(tmp_path):
    command = [MPIEXEC, "-n", "4", sys.executable, split_by_mpi.__file__, "2", tmp_path]
    env = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode != 0
    told = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    fallen = "process 3 of 4 failed: ValueError: broken on demand"
    assert told == {"failed": "broken on demand", "0": fallen, "1": fallen, "2": fallen}, done.stderr
