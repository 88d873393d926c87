"""Properties of RotRNN and LRU stated in the papers: known answers and invariants."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from cores import LAYERS_HERE
from rotrnn.nn.layer import EVALUATION, Context, astype
from rotrnn.nn.layers.lru import LRU
from rotrnn.nn.layers.mamba3 import Mamba3
from rotrnn.nn.layers.rotrnn import RotRNN
from rotrnn.nn.layers.s4d import S4D
from rotrnn.nn.layers.selective_rotrnn import SelectiveRotRNN
from rotrnn.nn.registry import LAYERS
from rotrnn.ops.scan import diagonal_scan, diagonal_scan_backward
from small_models import sizes_of

EPS = np.finfo(np.float64).eps


def printed_binf(a: Any, b: Any) -> Any:
    """Appendix C's `binf`: the binary function of the parallel scan."""
    gamma_i, thetas_i, acc_i = a
    gamma_j, thetas_j, acc_j = b
    off_diags = np.stack([-acc_i[..., 1::2], acc_i[..., 0::2]], axis=-1).reshape(acc_i.shape)
    theta = np.repeat(thetas_j, repeats=2, axis=-1)
    acc = gamma_j * (np.cos(theta) * acc_i + np.sin(theta) * off_diags)
    return gamma_i * gamma_j, thetas_i + thetas_j, acc + acc_j


def printed_forward(params: Any, input_sequence: Any) -> Any:
    """Appendix C's `forward` for one sequence (T, D), its parallel scan as a loop over time."""
    thetas, gamma_log, M, B, C, D = params
    gammas = np.exp(-np.exp(gamma_log))
    B_T_B_trace = np.trace(B.transpose(0, 2, 1) @ B, axis1=1, axis2=2)
    xi = np.sqrt((1 - gammas.squeeze(-1) ** 2) / B_T_B_trace)
    B_norm = np.einsum("H,HTD->HTD", xi, B)
    P = np.stack([scipy.linalg.expm(m - m.T) for m in M])
    x = np.einsum("HDi,Ti->HTD", B_norm, input_sequence)
    x = np.einsum("HDi,HTi->HTD", P.transpose(0, 2, 1), x)
    states = []
    for head in range(len(M)):
        carry = (gammas[head], thetas[head], x[head, 0])
        rows = [carry[2]]
        for t in range(1, len(input_sequence)):
            carry = printed_binf(carry, (gammas[head], thetas[head], x[head, t]))
            rows.append(carry[2])
        states.append(rows)
    x = np.einsum("HDi,HTi->HTD", P, np.array(states))
    x = x.transpose(1, 0, 2).reshape(len(input_sequence), -1)
    return x @ C.T + D * input_sequence


@pytest.mark.parametrize(("heads", "d_state"), [(1, 6), (4, 16), (8, 16)])
def test_rotrnn_equals_the_printed_algorithm(heads: int, d_state: int) -> None:
    rng = np.random.default_rng(heads)
    layer = RotRNN(5, d_state, heads=heads)
    params = astype(layer.init(rng), np.float64)
    x = rng.standard_normal((3, 50, 5))
    y, _ = layer.forward(params, x)
    printed = (params["theta"], params["gamma_log"][:, None], params["M"], params["B"], params["C"], params["D"])
    for b in range(3):
        np.testing.assert_allclose(y[b], printed_forward(printed, x[b]), rtol=0, atol=1e-12)


def test_rotrnn_with_heads_of_width_two_is_an_lru() -> None:
    """Section 4.1: lambda = gamma e^{i theta}, B = b0 + i b1, C = c0 - i c1 after folding P, exp(gamma_log) = xi."""
    rng = np.random.default_rng(0)
    D, N = 4, 6
    rot = RotRNN(D, 2 * N, heads=N)
    p = astype(rot.init(rng), np.float64)
    folding = rot.fold(p).kept
    CP = np.einsum("dhw,hwv->dhv", p["C"].reshape(D, N, 2), folding.P)
    lru_params = {
        "nu_log": p["gamma_log"],
        "theta_log": np.log(p["theta"][:, 0]),
        "gamma_log": np.log(folding.xi),
        "B_re": folding.PtB[:, 0],
        "B_im": folding.PtB[:, 1],
        "C_re": CP[:, :, 0],
        "C_im": -CP[:, :, 1],
        "D": p["D"],
    }
    x = rng.standard_normal((2, 40, D))
    y_rot, _ = rot.forward(p, x)
    y_lru, _ = LRU(D, N).forward(lru_params, x)
    # two routes through 40 decaying steps and a dozen products each
    np.testing.assert_allclose(y_rot, y_lru, rtol=0, atol=1e3 * EPS * np.abs(y_lru).max())


@pytest.mark.parametrize("kind", ["lru", "rotrnn", "s4", "s4d", "s5"])
def test_fold_checks_its_parameters(kind: str) -> None:
    layer = LAYERS[kind](3, **sizes_of(kind))
    params = layer.init(np.random.default_rng(0))
    name = next(iter(params))
    with pytest.raises(ValueError, match=rf"^{type(layer).__name__}: parameter {name} is nan at .*, expected finite"):
        layer.fold(params | {name: np.full_like(params[name], np.nan)})
    with pytest.raises(ValueError, match=rf"^{type(layer).__name__}: parameter {name} is missing"):
        layer.fold({})


@pytest.mark.parametrize("start", ["stationary", "zero"])
def test_state_norm_is_preserved_for_white_input(start: str) -> None:
    """Sigma_t = A Sigma_{t-1} A^T + W W^T (Lemma 3's expectation, exactly): the trace per head stays 1 from any
    Sigma_0 of trace 1, and is 1 - gamma^{2t} from zero."""
    rng = np.random.default_rng(3)
    layer = RotRNN(7, 12, heads=3, gamma_init=(0.5, 0.9999))
    params = astype(layer.init(rng), np.float64)
    params["B"] *= 37.0  # the norm must not depend on the size of any parameter
    system, folding = layer.fold(params)
    a = system.a.reshape(3, 2)
    W = system.w_in.reshape(3, 4, 7)
    for head in range(3):
        A = np.zeros((4, 4))
        for p, z in enumerate(a[head]):
            A[2 * p : 2 * p + 2, 2 * p : 2 * p + 2] = [[z.real, -z.imag], [z.imag, z.real]]
        root = rng.standard_normal((4, 4))
        sigma = root @ root.T / np.trace(root @ root.T) if start == "stationary" else np.zeros((4, 4))
        for t in range(1, 2001):
            sigma = A @ sigma @ A.T + W[head] @ W[head].T
            expected = 1 if start == "stationary" else -np.expm1(2 * t * np.log(folding.gamma[head]))
            assert abs(np.trace(sigma) - expected) <= 1e-12


def test_float32_scan_at_unit_modulus_stays_within_its_rounding_bound() -> None:
    """|a| = 1, T = 10^5. A rounded complex product errs by at most sqrt(8) u |a h|, the sum by u |h|, and errors are
    carried on with |a|^k <= (1 + u)^k: e_t <= 1.01 u sum_s (3 |h_{s-1}| + |h_s|), against float64 on the same
    rounded inputs. The adjoint is the same recurrence backwards."""
    rng = np.random.default_rng(4)
    T, N, u = 100_000, 4, float(np.finfo(np.float32).eps) / 2
    a = np.exp(1j * rng.uniform(-np.pi, np.pi, N)).astype(np.complex64)
    assert np.all(np.abs(a.astype(np.complex128)) <= 1 + u)
    x = (rng.standard_normal((1, T, N)) + 1j * rng.standard_normal((1, T, N))).astype(np.complex64)
    narrow = diagonal_scan(a, x)
    wide = diagonal_scan(a.astype(np.complex128), x.astype(np.complex128))
    dnarrow = diagonal_scan_backward(x, a, narrow).dx
    dwide = diagonal_scan_backward(x.astype(np.complex128), a.astype(np.complex128), wide).dx
    for got, exact in ((narrow, wide), (dnarrow[:, ::-1], dwide[:, ::-1])):
        size = np.abs(exact)
        before = np.concatenate([np.zeros((1, 1, N)), size[:, :-1]], 1)
        bound = 1.01 * u * np.cumsum(3 * before + size, axis=1)
        error = np.abs(got - exact)
        assert np.all(error <= bound)
        assert bound[0, -1].max() < 0.05 * size.max()  # the bound says something


def test_lru_starts_on_its_ring_with_unit_gain() -> None:
    """Lemma 3.2: |lambda|^2 uniform on [r_min^2, r_max^2]; gamma^2 = 1 - |lambda|^2 (eq. 7)."""
    layer = LRU(4, 20_000, r_min=0.4, r_max=0.9, max_phase=1.0)
    params = astype(layer.init(np.random.default_rng(5)), np.float64)
    lam = layer.eigenvalues(params)
    area = (np.abs(lam) ** 2 - 0.16) / (0.81 - 0.16)
    assert abs(area.mean() - 0.5) < 3 / np.sqrt(12 * len(lam))  # three standard errors of a uniform mean
    assert area.min() > -1e-5
    assert area.max() < 1 + 1e-5
    assert np.angle(lam).min() >= 0
    assert np.angle(lam).max() <= 1 + 1e-6
    # parameters were rounded to float32 once: relative error of 1 - |lambda|^2 below 1e-5 on this ring
    np.testing.assert_allclose(np.exp(2 * params["gamma_log"]), 1 - np.abs(lam) ** 2, rtol=1e-5)


def test_layers_say_what_is_wrong() -> None:
    rng = np.random.default_rng(6)
    layer = RotRNN(3, 8, heads=2)
    params = layer.init(rng)
    x = rng.standard_normal((2, 5, 3), dtype=np.float32)
    bad = {**params, "B": params["B"].copy()}
    bad["B"][1, 2, 0] = np.nan
    with pytest.raises(ValueError, match=r"RotRNN: parameter B is nan at \(1, 2, 0\)"):
        layer.forward(bad, x)
    with pytest.raises(ValueError, match="parameter B of head 0 is zero"):
        layer.forward({**params, "B": np.zeros_like(params["B"])}, x)
    with pytest.raises(ValueError, match="RotRNN: parameter C is missing, expected theta, gamma_log, M, B, C, D"):
        layer.forward({name: value for name, value in params.items() if name != "C"}, x)
    with pytest.raises(ValueError, match=r"RotRNN: parameter theta has shape \(4,\), expected \(2, 2\)"):
        layer.forward({**params, "theta": params["theta"].ravel()}, x)
    with pytest.raises(ValueError, match=r"RotRNN.forward: x has shape \(2, 5, 2\), expected \(B, T, D=3\)"):
        layer.forward(params, x[:, :, :2])
    with pytest.raises(ValueError, match="lengths"):
        layer.forward(params, x, Context(lengths=np.array([6, 1])))
    with pytest.raises(ValueError, match="d_state=9 and heads=2"):
        RotRNN(3, 9, heads=2)
    with pytest.raises(ValueError, match="r_min"):
        LRU(3, 4, r_min=0.9, r_max=0.5)
    with pytest.raises(ValueError, match=r"RotRNN\.step: x_t has shape"):
        layer.step(params, None, x)
    both = LRU(3, 4, bidirectional=True)
    with pytest.raises(ValueError, match="bidirectional"):
        both.step(both.init(rng), None, x[:, 0])


@pytest.mark.parametrize("power", [-110, -70, 70, 110])
@pytest.mark.parametrize("kind", [RotRNN, SelectiveRotRNN])
def test_rotrnn_is_the_same_for_every_size_of_b(kind: Any, power: int) -> None:
    """B is divided by its norm: times 2^n it gives the same bits, and 2^-n of its gradient, also where its squares
    overflow or vanish in float32."""
    layer = kind(4, 6, heads=2)
    params = layer.init(np.random.default_rng(0))
    x = np.random.default_rng(1).standard_normal((2, 9, 4), dtype=np.float32)

    def run(B: Any) -> Any:
        y, saved = layer.forward(params | {"B": B}, x)
        dx, grads, _ = layer.backward(params | {"B": B}, saved, np.ones_like(y))
        return {"y": y, "dx": dx, **grads}

    expected, found = run(params["B"]), run(np.ldexp(params["B"], power))
    expected["B"] = np.ldexp(expected["B"], -power)
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], name)


@pytest.mark.parametrize("window", [None, 1, 7])
def test_rotrnn_by_alpha_with_a_b_of_any_size(window: int | None) -> None:
    """In float32 as in float64, to the rounding of a few products of 9 steps, 6 states and 4 channels. With a window,
    outputs were NaN from 2^-12 B on, where |a| rounds to 1, and the gradient of gamma_log was all rounding before."""
    layer = RotRNN(4, 6, heads=2, normalise="alpha", window=window)
    params = layer.init(np.random.default_rng(0))
    no_memory = {"gamma_log": np.full(2, 5, np.float32)}  # gamma is 0, and alpha^3 overflowed
    x = np.random.default_rng(1).standard_normal((2, 9, 4), dtype=np.float32)
    for power, more in (*((power, {}) for power in (-110, -70, -16, -12, -8, 0, 70, 110)), (-90, no_memory)):
        single = params | more | {"B": np.ldexp(params["B"], power)}
        double = astype(single, np.float64)
        y, saved = layer.forward(single, x)
        exact, kept = layer.forward(double, x.astype(np.float64))
        np.testing.assert_allclose(y, exact, rtol=0, atol=64 * 2.0**-24 * np.abs(exact).max())
        found = layer.backward(single, saved, np.ones_like(y))[1]
        expected = layer.backward(double, kept, np.ones_like(exact))[1]
        assert np.isfinite(found["gamma_log"]).all()  # beside no_memory it is a square of gamma, 0 in float32
        for name in ("B",) if more else ("B", "gamma_log"):
            atol = 64 * 2.0**-24 * np.abs(expected[name]).max() + np.finfo(np.float32).tiny
            np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=atol, err_msg=f"{name} {power}")


@pytest.mark.parametrize("normalise", ["input", "spectrum"])
@pytest.mark.parametrize("gamma_log", [-4, -8, -16, -40])
def test_rotrnn_with_a_window_and_a_gamma_near_1(normalise: str, gamma_log: float) -> None:
    """The gain is a root of (1 - gamma^2) / (1 - gamma^2L). Of its two poles at gamma = 1 float32 left little in the
    gradient of gamma_log: 0.5 % was wrong at -8, and at -16 it was 74 times too large. It is now as in float64, to the
    rounding of a few products of 9 steps, 6 states and 4 channels."""
    layer = RotRNN(4, 6, heads=2, normalise=normalise, window=7)
    params = layer.init(np.random.default_rng(0)) | {"gamma_log": np.full(2, gamma_log, np.float32)}
    x = np.random.default_rng(1).standard_normal((2, 9, 4), dtype=np.float32)
    found, expected = (
        layer.backward(given, layer.forward(given, x.astype(dtype))[1], np.ones(x.shape, dtype))[1]["gamma_log"]
        for dtype, given in ((np.float32, params), (np.float64, astype(params, np.float64)))
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=64 * 2.0**-24 * np.abs(expected).max())


MIXED = {**LAYERS_HERE, "s4d in a window": S4D(4, 4, window=3), "mamba3 of rank 3": Mamba3(4, d_state=4, rank=3)}
INPUTS = {"liquid_s4": 0, "rwkv7": 0}
"""The part of a state that is inputs as they were given, which parameters do not widen."""


def leaves(state: Any) -> list[Any]:
    return [] if state is None else [*state] if isinstance(state, tuple) else [state]


def in_precision(state: Any, dtype: Any) -> Any:
    """The state, with its real and complex parts in this precision."""
    if isinstance(state, tuple):
        parts = [in_precision(one, dtype) for one in state]
        return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    kinds = {"i": state.dtype, "f": dtype, "c": np.result_type(dtype, np.complex64)}
    return state.astype(kinds[state.dtype.kind])


@pytest.mark.parametrize("name", MIXED)
def test_a_layer_computes_in_the_widest_precision_of_its_arguments(name: str) -> None:
    """y and the state after, of forward as of a step. The state of `RopeMemory` is always double, and widens no y."""
    layer, rng = MIXED[name], np.random.default_rng(7)
    params, x = layer.init(rng), rng.standard_normal((2, 3, 4), dtype=np.float32)
    before = None if getattr(layer, "bidirectional", name == "bidirectional") else layer.step(params, None, x[:, 0])[1]
    both: tuple[Any, Any] = np.float32, np.float64
    for of_params, of_x, of_state in product(both, both, (None, *both)):
        if before is None and of_state is not None:
            continue
        state = None if of_state is None else in_precision(before, of_state)
        given, inputs = astype(params, of_params), x.astype(of_x)
        wide = np.result_type(of_params, of_x, *[of_state] * (of_state is not None and name != "rope_memory"))
        y, saved = layer.forward(given, inputs, EVALUATION, *[state] * (before is not None))
        found = [(y, saved.state if before is not None else None)]
        if before is not None:
            found.append(layer.step(given, state, inputs[:, 0]))
        for out, after in found:
            assert out.dtype == wide
            for i, leaf in enumerate(leaves(after)):
                own: Any = np.result_type(of_x, of_state or of_x) if INPUTS.get(name) == i else wide
                own = np.float64 if name == "rope_memory" else own
                assert leaf.dtype.kind == "i" or leaf.real.dtype == own, (i, of_params, of_x, of_state)


def test_precisions_mix_by_numpys_rules() -> None:
    rng = np.random.default_rng(7)
    layer = LRU(3, 4)
    narrow = layer.init(rng)
    x = rng.standard_normal((2, 5, 3), dtype=np.float32)
    expected, _ = layer.forward(astype(narrow, np.float64), x.astype(np.float64))
    for params, inputs in ((astype(narrow, np.float64), x), (narrow, x.astype(np.float64))):
        y, saved = layer.forward(params, inputs)
        assert y.dtype == np.float64
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-6)  # folding in float32 rounds each weight once
        dx, _, dstate = layer.backward(params, saved, y)
        assert dx.dtype == np.float64
        assert dstate.dtype == np.complex128
        y_t, state = layer.step(params, None, inputs[:, 0])
        np.testing.assert_allclose(y_t, expected[:, 0], rtol=0, atol=1e-6)
        assert layer.step(params, state.astype(np.complex64), inputs[:, 1])[1].dtype == np.complex128
