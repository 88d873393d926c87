"""Layers converted into each other compute the same function (`rotrnn.nn.conversions`)."""

from __future__ import annotations

import numpy as np
import pytest

from rotrnn.nn import LRU, RNN, S4D, S5, Mamba, Recurrent, RopeMemory, RotRNN, astype
from rotrnn.nn.conversions import Converted, orthogonal_inverse, real_jordan, to_lru, to_rnn, to_rotrnn
from rotrnn.nn.layer import Params
from rotrnn.nn.layers.lru import FORMS
from rotrnn.ops.orthogonal import orthogonal

EPS = np.finfo(np.float64).eps
T = 40
DIAGONAL: list[Recurrent] = [
    LRU(5, 6),
    LRU(5, 6, form="exp", gamma=False, bidirectional=True),
    LRU(5, 6, form="real_imag", gamma=False),
    RotRNN(5, 12, heads=3),
    RotRNN(5, 9, heads=3, bidirectional=True, normalise="alpha"),
    S5(5, 8),
    S5(5, 8, bidirectional=True),
]
DENSE: list[Recurrent] = [RNN(5, 7), RNN(5, 8, initialisation="orthogonal", bidirectional=True)]


def drawn(layer: Recurrent, seed: int = 0) -> Params:
    return astype(layer.init(np.random.default_rng(seed)), np.float64)


def outputs(layer: Recurrent, params: Params) -> np.ndarray:
    x = np.random.default_rng(1).standard_normal((2, T, 5))
    return layer.forward(params, x)[0]


def assert_same(layer: Recurrent, params: Params, converted: Converted, condition: float = 1.0) -> None:
    """Outputs of the same system in other coordinates. A step and a product round by a few eps of the sum of the
    magnitudes, T steps at most add up, and a change of coordinates multiplies by its condition number."""
    wanted = outputs(layer, params)
    size = np.abs(wanted).max()
    found = outputs(converted.layer, converted.params)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=64 * T * EPS * size * condition)
    assert converted.error == 0


@pytest.mark.parametrize("layer", DIAGONAL, ids=repr)
@pytest.mark.parametrize("convert", [to_rnn, to_lru, to_rotrnn])
def test_diagonal_layers(layer: Recurrent, convert) -> None:
    params = drawn(layer)
    assert_same(layer, params, convert(layer, params))


@pytest.mark.parametrize("layer", DENSE, ids=repr)
@pytest.mark.parametrize("convert", [to_rnn, to_lru, to_rotrnn])
def test_dense_layers(layer: Recurrent, convert) -> None:
    params = drawn(layer)
    params["A"] *= 0.9 / np.abs(np.linalg.eigvals(params["A"])).max()
    assert_same(layer, params, convert(layer, params), np.linalg.cond(np.linalg.eig(params["A"])[1]))


@pytest.mark.parametrize("convert", [to_lru, to_rotrnn])
def test_windows_are_kept(convert) -> None:
    layer = LRU(5, 4, window=6)
    params = drawn(layer)
    converted = convert(layer, params)
    assert converted.layer.window == 6
    assert_same(layer, params, converted)
    with pytest.raises(ValueError, match="to_rnn: layer has window=6, expected None"):
        to_rnn(layer, params)


def test_a_rotrnn_and_its_lru_have_the_same_decay_and_angles() -> None:
    """Head width 2 equals an LRU with N/2 complex states (RotRNN, section 4.1)."""
    layer = RotRNN(5, 8, heads=4)
    params = drawn(layer)
    lru = to_lru(layer, params)
    np.testing.assert_allclose(np.exp(lru.params["theta_log"]), params["theta"][:, 0], rtol=8 * EPS)
    # -log |a| from the rounded a is off by eps / -log |a| of itself
    np.testing.assert_allclose(lru.params["nu_log"], params["gamma_log"], rtol=0, atol=1e4 * EPS)


def test_fewer_heads_are_as_near_as_their_moduli() -> None:
    layer = LRU(5, 6, r_min=0.2, r_max=0.9)
    params = drawn(layer)
    moduli = np.sort(np.abs(layer.eigenvalues(params))).reshape(3, 2)
    converted = to_rotrnn(layer, params, heads=3)
    np.testing.assert_allclose(converted.error, np.max(moduli[:, 1] - moduli[:, 0]) / 2, rtol=64 * EPS)
    apart = np.abs(np.sort(np.abs(converted.layer.eigenvalues(converted.params))).reshape(3, 2) - moduli)
    np.testing.assert_allclose(apart.max(), converted.error, rtol=64 * EPS)


def test_states_that_do_not_decay() -> None:
    """RopeMemory's |a| = 1 is outside of what the logarithmic forms reach, and the distance is said."""
    layer = RopeMemory(5, 4, length=16)
    params = drawn(layer)
    assert_same(layer, params, to_lru(layer, params, "real_imag"))
    for converted in (to_lru(layer, params), to_rotrnn(layer, params)):
        assert 0 < converted.error < 2e-12
        np.testing.assert_allclose(outputs(converted.layer, converted.params), outputs(layer, params), atol=1e-9)


@pytest.mark.parametrize("convert", [to_lru, to_rotrnn, to_rnn])
def test_the_error_is_that_of_the_rounded_parameters(convert) -> None:
    layer = S5(5, 12)
    params = layer.init(np.random.default_rng(0))
    converted = convert(layer, params)
    wide = astype(converted.params, np.float64)
    found = np.linalg.eigvals(wide["A"]) if convert is to_rnn else converted.layer.eigenvalues(wide)
    wanted = layer.eigenvalues(astype(params, np.float64))
    apart = np.abs(found[:, None] - wanted).min(0).max()  # the eigenvalues are much farther from each other
    np.testing.assert_allclose(converted.error, apart, rtol=0, atol=64 * EPS)
    assert 0 < converted.error < 16 * np.finfo(np.float32).eps


@pytest.mark.parametrize("form", FORMS)
def test_a_real_eigenvalue_does_not_turn(form: str) -> None:
    """In float32 an angle of 2 pi would be off by 2e-7, half a turn after 2^24 steps."""
    layer = RNN(1, 1)
    params = {name: np.ones(shape, np.float32) for name, shape in layer.shapes.items()}
    converted = to_lru(layer, params, form)
    assert abs(np.angle(converted.layer.eigenvalues(converted.params))) < 1e-30
    assert converted.error < 2e-12


@pytest.mark.parametrize("form", FORMS)
def test_an_eigenvalue_just_below_the_real_axis_turns_backwards_or_not_at_all(form: str) -> None:
    layer = LRU(1, 1, form="real_imag")
    params = layer.init(np.random.default_rng(0))
    params["lambda_re"][:], params["lambda_im"][:] = 0.5, -1e-17
    converted = to_lru(layer, params, form)
    assert abs(np.angle(converted.layer.eigenvalues(converted.params))) < 1e-16


def test_a_state_of_eigenvalue_zero_and_a_head_without_input() -> None:
    layer = LRU(5, 3, form="real_imag", gamma=False)
    params = drawn(layer)
    params["lambda_re"][0] = params["lambda_im"][0] = 0
    params["B_re"][1] = params["B_im"][1] = 0
    for convert in (to_lru, to_rotrnn, to_rnn):
        assert_same(layer, params, convert(layer, params))


def test_precision_of_the_parameters_is_kept() -> None:
    layer = LRU(5, 4)
    params = layer.init(np.random.default_rng(0))
    for convert in (to_lru, to_rotrnn, to_rnn):
        assert {one.dtype for one in convert(layer, params).params.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize("n", [0, 1, 2, 5, 8])
def test_real_jordan(n: int) -> None:
    A = np.random.default_rng(n).standard_normal((n, n))
    V, J = real_jordan(A)
    assert V.dtype == J.dtype == np.float64
    np.testing.assert_allclose(A @ V, V @ J, rtol=0, atol=32 * n * EPS * (np.abs(A).max() if n else 0))
    off = J - np.diag(np.diag(J))
    assert np.all((off != 0).sum(1) <= 1)  # blocks of one or two
    np.testing.assert_array_equal(off, -off.T)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: real_jordan(np.ones((2, 3))), ValueError, r"real_jordan: A has shape \(2, 3\), expected a square"),
        (lambda: real_jordan(np.full((2, 2), np.nan)), ValueError, "real_jordan: A has the number nan"),
        (
            lambda: real_jordan([[1.0, 1.0], [0.0, 1.0]]),
            ValueError,
            "the eigenvectors of A have condition",
        ),
        (lambda: to_lru(Mamba(4), {}), TypeError, "to_lru: layer is Mamba, expected LRU, RotRNN"),
        (lambda: to_rnn(RNN(4, 4, activation="tanh"), {}), TypeError, "an RNN with activation 'tanh', expected"),
        (lambda: to_lru(LRU(4, 4), drawn(LRU(4, 4)), "polar"), ValueError, "to_lru: form"),
        (lambda: to_rotrnn(LRU(4, 4), drawn(LRU(4, 4)), 3), ValueError, "heads=3, expected a divisor of the 4 planes"),
        (lambda: to_rotrnn(LRU(4, 4), {}), ValueError, "to_rotrnn: parameter nu_log is missing"),
        (lambda: to_lru(LRU(4, 4), None), TypeError, "to_lru: params is a NoneType, expected a dict"),
        (lambda: to_lru(LRU, {}), TypeError, "to_lru: layer is the class LRU, expected LRU, RotRNN"),
        (lambda: to_rnn(RNN(4, 4), {}), ValueError, "to_rnn: parameter A is missing"),
    ],
)
def test_wrong_arguments(call, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()


@pytest.mark.parametrize("conjugate", [True, False])
def test_eigenvalues_of_s4d(conjugate: bool) -> None:
    """The impulse response of a state of channel d at lag k is c a^k: from the third on, each is a times the last."""
    layer = S4D(1, 2 if conjugate else 1, conjugate=conjugate)  # one complex state
    params = drawn(layer)
    impulse = np.zeros((1, 5, 1))
    impulse[0, 0] = 1
    y = layer.forward(params, impulse)[0][0, 1:, 0]
    (a,) = layer.eigenvalues(params)[0]
    # a real signal with poles a and conj(a)
    np.testing.assert_allclose(y[2:], 2 * a.real * y[1:-1] - abs(a) ** 2 * y[:-2], rtol=0, atol=16 * EPS * abs(y).max())


@pytest.mark.parametrize("n", [1, 2, 3, 8, 33])
@pytest.mark.parametrize("size", [1e-6, 0.1, 10.0])
def test_inverse(n: int, size: float) -> None:
    """The Schur form and three products round by n eps each, the exponential by a few more."""
    P = orthogonal(size * np.random.default_rng(n).standard_normal((2, 2, n, n)))
    M = orthogonal_inverse(P)
    np.testing.assert_array_equal(M, -np.swapaxes(M, -1, -2))
    np.testing.assert_allclose(orthogonal(M), P, rtol=0, atol=64 * n * EPS)
    assert np.all(np.linalg.norm(2 * M, 2, axis=(-2, -1)) <= np.pi * (1 + 8 * n * EPS))  # the principal angles


def test_inverse_of_half_turns() -> None:
    """Eigenvalues -1, in any number of pairs, beside others."""
    Q = orthogonal(np.random.default_rng(0).standard_normal((7, 7)))
    for signs in ([-1, -1, 1, 1, 1, 1, 1], [-1, 1, -1, -1, 1, -1, 1], [-1] * 6 + [1]):
        P = Q @ np.diag(signs) @ Q.T
        np.testing.assert_allclose(orthogonal(orthogonal_inverse(P)), P, rtol=0, atol=64 * 7 * EPS)


def test_inverse_of_a_rounded_rotation_is_that_of_the_nearest_one() -> None:
    P = orthogonal(np.random.default_rng(1).standard_normal((6, 6)))
    M = orthogonal_inverse(P.astype(np.float32))
    assert M.dtype == np.float32
    # P and M are rounded to 2^-24 of 1 and of pi / 2, and the exponential's derivative is at most 2
    np.testing.assert_allclose(orthogonal(M.astype(np.float64)), P, rtol=0, atol=6 * 4 * np.pi * 2**-24)


@pytest.mark.parametrize(
    ("P", "match"),
    [
        (np.ones((2, 3)), r"orthogonal_inverse: P has shape \(2, 3\)"),
        (1.1 * np.eye(2), "P of matrix 0 of P is 0.21 from I, expected 0.001 at most"),
        (np.full((2, 2), np.nan), "is nan from I"),
        (np.diag([1.0, -1.0]), r"matrix 0 of P is a reflection \(determinant -1\), expected a rotation"),
    ],
)
def test_inverse_of_what_is_no_rotation(P: np.ndarray, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        orthogonal_inverse(P)
