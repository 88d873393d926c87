"""Known answers of S4 and Liquid-S4: HiPPO's matrices, their exponential, the paper's form by FFT, S4D, the equation of
liquid networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.signal

from cases.dplr import dense_transition
from rotrnn.nn.layer import astype, flatten_state
from rotrnn.nn.layers.continuous import hippo_dplr, hippo_normal
from rotrnn.nn.layers.liquid_s4 import LiquidS4
from rotrnn.nn.layers.s4 import S4
from rotrnn.nn.layers.s4d import S4D
from rotrnn.ops.dplr_bank import DplrSystem, dplr_bank, dplr_bank_backward, dplr_bank_step

EPS = np.finfo(np.float64).eps


def hippo(n: int) -> tuple[Any, Any]:
    """HiPPO-LegS as the paper has it: A (n, n) and B (n,), real."""
    root = np.sqrt(2 * np.arange(n) + 1.0)
    return -np.tril(np.outer(root, root), -1) - np.diag(np.arange(n) + 1.0), root


def exact_params(n: int, step: float) -> Any:
    """Parameters of one channel in float64, those of init before they are rounded to float32."""
    A, P, B = hippo_dplr(n)
    C = np.random.default_rng(0).standard_normal((2, n // 2))
    values = {"log_A_re": np.log(-A.real), "A_im": A.imag, "P_re": P.real, "P_im": P.imag, "B_re": B.real}
    values |= {"B_im": B.imag, "C_re": C[0], "C_im": C[1]}
    return {**{name: one[None] for name, one in values.items()}, "log_step": np.log([step]), "D": np.zeros(1)}


def readout(params: Any, n: int) -> Any:
    """C of all states in the basis of HiPPO's own matrix, real: 2 Re(C V^H x) over the eigenvectors V that are kept."""
    C = params["C_re"][0] + 1j * params["C_im"][0]
    return 2 * (C @ hippo_normal(n)[1][:, n // 2 :].conj().T).real


def response(layer: S4, params: Any, L: int) -> Any:
    """The layer's convolution kernel: its output for an impulse."""
    x = np.zeros((1, L, 1))
    x[0, 0] = 1
    return layer.forward(params, x)[0][0, :, 0]


@pytest.mark.parametrize("n", [2, 16, 64])
def test_hippo_is_normal_plus_rank_one(n: int) -> None:
    """V (Lambda - P P^H) V^H over all pairs is the matrix of HiPPO-LegS, and V B its B. Sums of n products of numbers
    whose sizes are at most n, the largest real part of the matrix."""
    A, P, B = hippo_dplr(n)
    kept = hippo_normal(n)[1][:, n // 2 :]
    expected, drive = hippo(n)
    atol = 8 * n * EPS * n * n
    np.testing.assert_allclose(
        2 * ((kept * A) @ kept.conj().T).real - np.outer(*[2 * (kept @ P).real] * 2), expected, atol=atol
    )
    np.testing.assert_allclose(2 * (kept @ B).real, drive, atol=atol)


@pytest.mark.parametrize(("n", "step"), [(4, 0.5), (16, 0.1), (64, 0.01), (64, 0.5)])
def test_the_kernel_is_that_of_dense_powers(n: int, step: float) -> None:
    """The layer's kernel is C transition^k gain of HiPPO's own matrix, which is dense and real, by the trapezoidal
    rule: (1 - Delta A / 2)^-1 by a solver.

    Tolerance: both recurrences are contractions, because A + A^T is negative; so after k steps the error of a state is
    at most k times that of a step, relative to the largest state, |gain|. That of a step is n rounding errors of
    numbers as large as 1 in the solver, as the inverse's norm is at most 1 and that of Delta A / 2 at most Delta n^2 /
    2."""
    A, B = hippo(n)
    params, one, L = exact_params(n, step), np.eye(n), 300
    lhs = one - step / 2 * A
    transition, state = np.linalg.solve(lhs, one + step / 2 * A), np.linalg.solve(lhs, step * B)
    C, expected, size = readout(params, n), [], np.linalg.norm(state)
    for _ in range(L):
        expected.append(C @ state)
        state = transition @ state
    atol = 4 * n * (L + 1 + step * n * n / 2) * EPS * size * np.linalg.norm(C)
    np.testing.assert_allclose(response(S4(1, n), params, L), expected, rtol=0, atol=atol)
    assert atol < 1e-8 * np.abs(expected).max()  # this says something


@pytest.mark.parametrize("scale", [0.5, 4.0])
def test_a_scaled_step_is_the_discretisation_of_scipy(scale: float) -> None:
    """The kernel of a layer with `step_scale` is of HiPPO's own matrix by SciPy's bilinear rule, at that step. The
    tolerance is that of the dense powers above."""
    n, step, L = 16, 0.1, 300
    A, B = hippo(n)
    transition, gain, *_ = scipy.signal.cont2discrete((A, B[:, None], np.eye(n), 0), scale * step, method="bilinear")
    params, state = exact_params(n, step), gain[:, 0]
    C, expected, size = readout(params, n), [], np.linalg.norm(state)
    for _ in range(L):
        expected.append(C @ state)
        state = transition @ state
    atol = 4 * n * (L + 1 + scale * step * n * n / 2) * EPS * size * np.linalg.norm(C)
    np.testing.assert_allclose(response(S4(1, n, step_scale=scale), params, L), expected, rtol=0, atol=atol)
    assert atol < 1e-8 * np.abs(expected).max()  # this says something


@pytest.mark.parametrize("n", [4, 8])
def test_the_kernel_is_the_matrix_exponential_but_for_the_second_order_of_the_step(n: int) -> None:
    """kernel_k / Delta is C exp((k + 1/2) Delta A) B + E, with A and B of HiPPO's own matrix.

    With z = Delta A, E is C (f(z) - exp((k + 1/2) z)) B, f(z) = (1 + z/2)^k (1 - z/2)^-(k+1). As A + A^T is negative,
    von Neumann's inequality bounds |g(z)| for every g that is analytic and bounded on the left half plane by the
    largest |g| on the imaginary axis. With g(z) = (f(z) - exp((k + 1/2) z)) / z^2, |E| <= |C| max|g| Delta^2 |A^2
    B|."""
    A, B = hippo(n)
    step, L = 1e-4, 200
    params = exact_params(n, step)
    C, found = readout(params, n), response(S4(1, n), params, L) / step
    omega = np.concatenate([np.linspace(1e-3, 30, 300_000), np.geomspace(30, 1e4, 1000)])  # beyond, |g| < 2 / omega^2
    moment = np.linalg.norm(A @ A @ B)
    for k in (0, 1, 17, L - 1):
        f = np.exp(2j * k * np.arctan(omega / 2)) / (1 - 0.5j * omega)
        worst = (np.abs(f - np.exp(1j * (k + 0.5) * omega)) / omega**2).max()
        bound = np.linalg.norm(C) * worst * step**2 * moment
        expected = C @ scipy.linalg.expm((k + 0.5) * step * A) @ B
        assert abs(found[k] - expected) <= bound
        assert bound < 0.05 * np.abs(found).max()  # this says something
    half = {**params, "log_step": np.log([step / 2])}
    errors = []
    for values, where in ((found, np.arange(L)), (response(S4(1, n), half, 2 * L) / (step / 2), np.arange(2 * L))):
        delta = L * step / len(values)
        exact = [C @ scipy.linalg.expm((k + 0.5) * delta * A) @ B for k in where]
        errors.append(np.abs(values - exact).max())
    assert 3.5 < errors[0] / errors[1] < 4.5  # of second order


def test_the_papers_form_by_fft() -> None:
    """The kernel from its generating function, sum_k kernel_k z^k = C (1 - transition^L z^L) (1 - transition z)^-1
    gain, by Cauchy products and Woodbury's identity (the paper's Algorithm 1), and an inverse FFT.
    The nodes z are roots of -1, half a step from those of 1, among which is -1, where the formula has a pole.

    Tolerance: as of dense powers, for the readout; each value is a sum of n terms, and as large as the factor 2 / (1 +
    z) times that of a resolvent, whose norm is below Delta."""
    n, step, L = 16, 0.05, 128
    params = exact_params(n, step)
    Lambda, P, B = (np.concatenate([one, one.conj()]) for one in hippo_dplr(n))
    transition, gain = (one[0] for one in dense_transition(params))
    C = params["C_re"][0] + 1j * params["C_im"][0]
    C = np.concatenate([C, C.conj()]) @ (np.eye(n) + np.linalg.matrix_power(transition, L))
    z = np.exp(-2j * np.pi * (np.arange(L) + 0.5) / L)
    g = 2 / step * (1 - z) / (1 + z)

    def cauchy(left: Any, right: Any) -> Any:
        return (left * right / (g[:, None] - Lambda)).sum(1)

    corrected = cauchy(C, B) - cauchy(C, P) * cauchy(P.conj(), B) / (1 + cauchy(P.conj(), P))
    kernel = np.fft.ifft(2 / (1 + z) * corrected) * np.exp(1j * np.pi * np.arange(L) / L)
    size = np.abs(2 / (1 + z)).max() * np.linalg.norm(C) * np.linalg.norm(gain)
    found = response(S4(1, n), params, L)
    np.testing.assert_allclose(found, kernel.real, rtol=0, atol=4 * n * (L + n) * EPS * size)
    assert 4 * n * (L + n) * EPS * size < 1e-7 * np.abs(found).max()  # this says something


@pytest.mark.parametrize("bidirectional", [False, True])
def test_without_the_rank_one_part_it_is_s4d(bidirectional: bool) -> None:
    """P = 0: S4D by the trapezoidal rule. Its state lacks the factor gain, Delta B / (1 - Delta Lambda / 2)."""
    D, n, T = 3, 6, 40
    rng = np.random.default_rng(1)
    layer, other = (one(D, n, bidirectional=bidirectional) for one in (S4, S4D))
    params = astype(layer.init(rng), np.float64)
    params |= {"P_re": 0 * params["P_re"], "P_im": 0 * params["P_im"]}
    x = rng.standard_normal((2, T, D))
    y, saved = layer.forward(params, x)
    same = {name: value for name, value in params.items() if not name.startswith("P_")}
    expected, other_saved = S4D(D, n, bidirectional, discretisation="bilinear").forward(same, x)
    assert other.state_lanes == layer.state_lanes
    atol = 8 * (T + n) * EPS
    np.testing.assert_allclose(y, expected, rtol=0, atol=atol * np.abs(expected).max())
    if not bidirectional:
        step, B = np.exp(params["log_step"])[:, None], params["B_re"] + 1j * params["B_im"]
        gain = step * B / (1 - step * (-np.exp(params["log_A_re"]) + 1j * params["A_im"]) / 2)
        np.testing.assert_allclose(saved.state, gain * other_saved.state, rtol=0, atol=atol * np.abs(saved.state).max())


def test_no_state_can_grow() -> None:
    """A + A^H is negative whatever the parameters are, so that the trapezoidal rule's transition is a contraction."""
    layer, rng = S4(4, 8), np.random.default_rng(2)
    params = {name: value + rng.standard_normal(value.shape) for name, value in layer.init(rng).items()}
    assert np.linalg.norm(dense_transition(params)[0], 2, (1, 2)).max() <= 1 + 100 * EPS
    assert np.abs(layer.eigenvalues(params)).max() < 1


@pytest.mark.parametrize("log_step", [-46.0, -120.0, -1e4], ids=["1e-20", "subnormal", "0"])
@pytest.mark.parametrize("layer", [S4(3, 6), LiquidS4(3, 6, degree=3, kernel="kb")], ids=["S4", "LiquidS4"])
def test_states_stay_over_a_step_of_almost_no_time(layer: S4, log_step: float) -> None:
    """In float32 1 / Delta and its square overflow: a step of 1e-20 had a gradient of log_step that is NaN, and a step
    of 0 outputs that are. By such a step no digit of a state changes. Gradients differ from float64's by rounding."""
    T, eps, rng = 30, np.finfo(np.float32).eps, np.random.default_rng(4)
    params = layer.init(rng) | {"log_step": np.full(3, log_step, np.float32)}
    u = rng.standard_normal((2, T, 3), dtype=np.float32)
    _, first = layer.forward(layer.init(rng), u)
    y, saved = layer.forward(params, u, state=first.state)
    for (_, before), (_, after) in zip(flatten_state(first.state), flatten_state(saved.state), strict=True):
        np.testing.assert_array_equal(after, before)
    h = dict(flatten_state(first.state))["state" if type(layer) is S4 else "state.1"]
    held = 2 * ((params["C_re"] + 1j * params["C_im"]) * h).real.sum(-1)[:, None] + params["D"] * u
    np.testing.assert_allclose(y, held, rtol=0, atol=16 * eps * np.abs(held).max())
    _, saved = layer.forward(params, u)
    _, dparams, _ = layer.backward(params, saved, u)
    wide = astype(params, np.float64)
    _, saved = layer.forward(wide, u.astype(np.float64))
    _, expected, _ = layer.backward(wide, saved, u.astype(np.float64))
    assert all(np.isfinite(one).all() for one in dparams.values())
    rounding = 4 * (6 * T + 20) * eps * np.abs(expected["log_step"]).max() + np.finfo(np.float32).tiny
    np.testing.assert_allclose(dparams["log_step"], expected["log_step"], rtol=0, atol=rounding)


def test_eigenvalues_are_those_of_hippo() -> None:
    """A of HiPPO is triangular, with -1, ... -n on the diagonal. By the theorem of Bauer and Fike an error e of the
    matrix moves eigenvalues by at most e times the condition number of the eigenvectors, here about 2e5."""
    n, step = 8, 0.1
    z = -step * (np.arange(n) + 1) / 2
    condition = np.linalg.cond(np.linalg.eig(hippo(n)[0])[1])
    found = np.sort(S4(1, n).eigenvalues(exact_params(n, step))[0].real)
    np.testing.assert_allclose(found, np.sort((1 + z) / (1 - z)), rtol=0, atol=20 * n * EPS * condition)
    assert condition * EPS < 1e-8


def test_initial_values() -> None:
    layer = S4(50, 6, dt_min=1e-2, dt_max=0.2, bidirectional=True)
    params = layer.init(np.random.default_rng(3))
    A, P, B = hippo_dplr(6)
    for name, one in (("log_A_re", np.log(-A.real)), ("A_im", A.imag), ("P_re", P.real), ("B_im", B.imag)):
        np.testing.assert_allclose(params[name], np.tile(one, (50, 1)), rtol=1e-6, atol=1e-6)
    assert np.all((params["log_step"] >= np.log(0.01) - 1e-6) & (params["log_step"] <= np.log(0.2) + 1e-6))
    assert {name: value.shape for name, value in params.items()} == layer.shapes
    assert 0.8 < sum(params[name].var() for name in ("C_re", "C_im")) < 1.2
    assert not np.array_equal(params["C_re"], params["C_re_reverse"])


# ---------------------------------------------------------------------------------------------------- Liquid-S4


def liquid_equation(params: Any, u: Any) -> Any:
    """x_k = (A + B u_k) x_{k-1} + B u_k with B u_k on the diagonal, and y_k = C x_k of one channel, by dense
    matrices."""
    transition, gain = (one[0] for one in dense_transition(params))
    C = params["C_re"][0] + 1j * params["C_im"][0]
    state, y = np.zeros(len(gain), complex), []
    for one in u:
        state = (transition + np.diag(gain * one)) @ state + gain * one
        y.append(2 * (C @ state[: len(C)]).real)
    return np.array(y)


@pytest.mark.parametrize(("kernel", "agree"), [("kb", 12), ("pb", 4)])
def test_two_successive_inputs_obey_the_equation(kernel: str, agree: int) -> None:
    """Of inputs that are zero but for two successive steps the equation makes one product, whose response KB has for
    good, and PB at that step, the fourth."""
    params, n = exact_params(6, 0.3), 6
    u = np.zeros(12)
    u[2:4] = 0.7, -1.3
    y = LiquidS4(1, n, kernel=kernel).forward(params, u[None, :, None])[0][0, :, 0]
    expected = liquid_equation(params, u)
    atol = 100 * n * EPS * np.abs(expected).max()
    np.testing.assert_allclose(y[:agree], expected[:agree], rtol=0, atol=atol)
    assert agree == 12 or np.abs(y[agree:] - expected[agree:]).max() > 1e-3
    plain = S4(1, n).forward(params, u[None, :, None])[0][0, :, 0]
    assert np.abs(y[3] - plain[3]) > 1e-2  # the product counts


@pytest.mark.parametrize("kernel", ["pb", "kb"])
def test_a_product_of_m_inputs_comes_with_the_mth_degree(kernel: str) -> None:
    """Where no two successive inputs are other than zero, Liquid-S4 is S4; and where no three are, degree 3 is degree
    2."""
    params, rng = exact_params(4, 0.3), np.random.default_rng(5)
    u = rng.standard_normal((1, 12, 1))
    u[0, 2::3] = 0
    two, three = (LiquidS4(1, 4, degree=m, kernel=kernel).forward(params, u)[0] for m in (2, 3))
    np.testing.assert_array_equal(two, three)
    u[0, 1::3] = 0
    found = LiquidS4(1, 4, degree=3, kernel=kernel).forward(params, u)[0]
    np.testing.assert_array_equal(found, S4(1, 4).forward(params, u)[0])
    assert np.abs(two).max() > 0


# ------------------------------------------------------------------------------------------------------- errors


def test_layers_say_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="S4: d_state=5, expected an even number"):
        S4(2, 5)
    with pytest.raises(ValueError, match=r"LiquidS4: dt_min=1\.0, dt_max=0\.5, expected 0 < dt_min"):
        LiquidS4(2, 4, dt_min=1.0, dt_max=0.5)
    with pytest.raises(ValueError, match="LiquidS4: degree=1, expected"):
        LiquidS4(2, 4, degree=1)
    with pytest.raises(ValueError, match="LiquidS4: kernel='full', expected one of pb, kb"):
        LiquidS4(2, 4, kernel="full")


def test_the_bank_says_what_is_wrong() -> None:
    pair, u = np.ones((3, 2), complex), np.ones((2, 5, 3))
    system = DplrSystem(pair, pair, pair, pair, pair, np.ones(3))
    with pytest.raises(TypeError, match="dplr_bank: system is a tuple, expected a DplrSystem"):
        dplr_bank(tuple(system), u)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"dplr_bank: system\.p has dtype float64, expected complex64 or complex128"):
        dplr_bank(system._replace(p=pair.real), u)
    with pytest.raises(ValueError, match=r"dplr_bank: system\.c has shape \(3, 4\), expected \(D=3, N=2\)"):
        dplr_bank(system._replace(c=np.ones((3, 4), complex)), u)
    with pytest.raises(ValueError, match=r"dplr_bank: h0 has shape \(2, 3\), expected \(B, D, N\)"):
        dplr_bank(system, u, np.ones((2, 3), complex))
    with pytest.raises(ValueError, match=r"dplr_bank: lengths\[1\] is 6, expected an integer from 0 to T=5"):
        dplr_bank(system, u, lengths=[5, 6])
    with pytest.raises(ValueError, match=r"dplr_bank_step: u_t has shape \(2, 5, 3\), expected \(B, D\)"):
        dplr_bank_step(system, None, u)
    saved = dplr_bank(system, u)[2]
    with pytest.raises(TypeError, match="dplr_bank_backward: saved is a tuple, expected a DplrBankSaved"):
        dplr_bank_backward(u, system, tuple(saved))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"dplr_bank_backward: saved\.carries has shape \(2, 1, 2, 2, 3\)"):
        dplr_bank_backward(np.ones((2, 40, 3)), system, saved._replace(u=np.ones((2, 40, 3))))
