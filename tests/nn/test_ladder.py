"""Known answers: LRU's ladder and its propositions, RotRNN's normalisations, S5, S4D and what they discretise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.stats

from rotrnn.nn.layer import Context, astype
from rotrnn.nn.layers.continuous import DISCRETISATIONS, hippo_normal, input_gain_backward, phi, phi_slope
from rotrnn.nn.layers.lru import FORMS, LRU
from rotrnn.nn.layers.rotrnn import RotRNN
from rotrnn.nn.layers.s4d import S4D
from rotrnn.nn.layers.s5 import S5
from rotrnn.ops.bank import diagonal_bank, diagonal_bank_backward

EPS = np.finfo(np.float64).eps
UNLIKELY = 1e-3
"""Level of the tests of distributions; seeds are fixed, so each either holds for ever or never did."""

# --------------------------------------------------------------------------------------------------------- LRU


def impulse_states(layer: Any, params: Any, T: int) -> Any:
    """h (D, T, N) of an impulse in each of the D channels at the first step."""
    x = np.zeros((layer.d_model, T, layer.d_model))
    x[:, 0] = np.eye(layer.d_model)
    _, saved = layer.forward(params, x, Context(fused=False))
    return saved.layer.h[0]


@pytest.mark.parametrize("gamma", [False, True])
def test_stationary_gain_for_white_input(gamma: bool) -> None:
    """E|h_t|^2 is the sum of all impulse responses' squares up to t: sum_k b_k (1 - |lambda_k|^2t) / (1 - |lambda_k|^2)
    with b_k the squared norm of row k of the input matrix. (The paper's sum after eq. 14 starts one step late.)"""
    layer = LRU(3, 6, r_min=0.5, r_max=0.9, gamma=gamma)
    params = astype(layer.init(np.random.default_rng(0)), np.float64)
    gain = np.exp(params["gamma_log"]) if gamma else 1
    b = gain**2 * (params["B_re"] ** 2 + params["B_im"] ** 2).sum(1)
    square = np.abs(layer.eigenvalues(params)) ** 2
    energy = np.cumsum((np.abs(impulse_states(layer, params, 400)) ** 2).sum((0, 2)))
    t = np.arange(1, 401)[:, None]
    # powers of 400 rounded products
    np.testing.assert_allclose(energy, (b * (1 - square**t) / (1 - square)).sum(1), rtol=4 * 400 * EPS)
    np.testing.assert_allclose(energy[-1], (b / (1 - square)).sum(), rtol=4 * 400 * EPS)  # 0.9^800 is 2e-37
    if gamma:  # eq. 7 was made for this: the gain is that of B alone, but for gamma_log's rounding to float32
        norm = (params["B_re"] ** 2 + params["B_im"] ** 2).sum()
        np.testing.assert_allclose(energy[-1], norm, rtol=1e-5)


@pytest.mark.parametrize(("r_min", "r_max"), [(0.0, 0.9), (0.5, 0.99), (0.9, 0.999)])
def test_proposition_3_3(r_min: float, r_max: float) -> None:
    """The gain E|h|^2 / E|B u|^2 over the draw of lambda and B is log((1 - r_min^2) / (1 - r_max^2)) / (r_max^2 -
    r_min^2), for white input and for constant input: its mean over many states lies within three standard errors."""
    layer = LRU(4, 40_000, r_min=r_min, r_max=r_max, form="stable_exp", gamma=False)
    params = astype(layer.init(np.random.default_rng(1)), np.float64)
    lam = layer.eigenvalues(params)
    b = (params["B_re"] ** 2 + params["B_im"] ** 2).sum(1)  # of mean 1
    expected = np.log((1 - r_min**2) / (1 - r_max**2)) / (r_max**2 - r_min**2)
    for gains in (b / (1 - np.abs(lam) ** 2), b / np.abs(1 - lam) ** 2):
        assert abs(gains.mean() - expected) < 3 * gains.std() / np.sqrt(len(gains))
        assert gains.std() / np.sqrt(len(gains)) < 0.15 * expected  # this says something


@pytest.mark.parametrize("form", FORMS)
def test_lemma_3_2(form: str) -> None:
    """|lambda|^2 and the phase are uniform and independent, in every form of lambda; forms start from one draw."""
    layer = LRU(1, 20_000, r_min=0.4, r_max=0.9, max_phase=2.0, form=form)
    lam = layer.eigenvalues(astype(layer.init(np.random.default_rng(2)), np.float64))
    area, phase = (np.abs(lam) ** 2 - 0.16) / (0.81 - 0.16), np.angle(lam) / 2
    for uniform in (area, phase):
        assert scipy.stats.kstest(uniform, "uniform").pvalue > UNLIKELY
    assert scipy.stats.spearmanr(area, phase).pvalue > UNLIKELY
    reference = LRU(1, 20_000, r_min=0.4, r_max=0.9, max_phase=2.0)
    same = reference.eigenvalues(astype(reference.init(np.random.default_rng(2)), np.float64))
    np.testing.assert_allclose(lam, same, rtol=0, atol=8 * np.finfo(np.float32).eps)


@pytest.mark.slow
def test_theorem_3_1_glorot_matrices_have_the_spectrum_of_the_disc() -> None:
    """The share of eigenvalues within radius r is r^2 but for: real ones, sqrt(2 N / pi) of them; those beyond the
    edge, sqrt(N / 2 pi); and fluctuations of a disc's count, of variance below sqrt(N), taken three times. LRU(0, 1)
    draws from the limit itself."""
    N = 300
    spectrum = np.linalg.eigvals(np.random.default_rng(3).standard_normal((N, N)) / np.sqrt(N))
    gap = scipy.stats.kstest(np.abs(spectrum) ** 2, "uniform").statistic
    assert gap < (np.sqrt(2 * N / np.pi) + np.sqrt(N / (2 * np.pi)) + 3 * N**0.25) / N
    upper = spectrum[spectrum.imag > 0]  # the others are their conjugates, or real
    assert scipy.stats.kstest(np.angle(upper) / np.pi, "uniform").pvalue > UNLIKELY
    layer = LRU(1, 20_000, form="real_imag", gamma=False)
    lam = layer.eigenvalues(astype(layer.init(np.random.default_rng(4)), np.float64))
    assert scipy.stats.kstest(np.abs(lam) ** 2, "uniform").pvalue > UNLIKELY
    assert scipy.stats.kstest(np.angle(lam), "uniform", args=(-np.pi, 2 * np.pi)).pvalue > UNLIKELY


@pytest.mark.parametrize(("phase", "most"), [(2 * np.pi, 16_384), (np.pi / 50, 164)])
def test_figure_4_impulse(phase: float, most: int) -> None:
    """nu = 5e-5 and 16k steps: the impulse decays as e^{-nu t}, to 0.44 of its size, and turns theta L / 2 pi times;
    a small phase at the start leaves at most a hundredth of the turns."""
    L, N = 16_384, 3
    layer = LRU(1, N, max_phase=phase, form="exp", gamma=False)
    params = astype(layer.init(np.random.default_rng(5)), np.float64)
    params |= {"nu": np.full(N, 5e-5), "B_re": np.ones((N, 1)), "B_im": np.zeros((N, 1))}
    h = impulse_states(layer, params, L)[0]
    t = np.arange(L)[:, None]
    np.testing.assert_allclose(np.abs(h), np.broadcast_to(np.exp(-5e-5 * t), h.shape), rtol=4 * L * EPS)
    assert 0.43 < np.abs(h[-1]).max() < 0.45
    turns = np.abs(np.angle(h[1:] / h[:-1])).sum(0) / (2 * np.pi)  # a step beyond pi looks like one backwards
    theta = params["theta"]
    np.testing.assert_allclose(turns, np.minimum(theta, 2 * np.pi - theta) * (L - 1) / (2 * np.pi), rtol=1e-6)
    assert (theta * L / (2 * np.pi)).max() <= most


def test_the_first_rungs_may_leave_the_unit_disc() -> None:
    x = np.zeros((1, 8, 1))
    x[0, 0] = 1
    for form, values in (("real_imag", (1.1, 0.0)), ("exp", (-np.log(1.1), 0.0))):
        layer = LRU(1, 1, form=form, gamma=False)
        params = dict.fromkeys(layer.shapes, np.ones((1, 1))) | {"D": np.zeros(1)}
        params |= {name: np.array([value]) for name, value in zip(FORMS[form], values, strict=True)}
        params |= {name: np.zeros((1, 1)) for name in ("B_im", "C_im")}
        y, _ = layer.forward(params, x)
        np.testing.assert_allclose(y[0, :, 0], 1.1 ** np.arange(8), rtol=32 * EPS)


# ------------------------------------------------------------------------------------------------------ RotRNN


@pytest.mark.parametrize("normalise", ["input", "alpha"])
@pytest.mark.parametrize("c", [1.0, 3.0])
def test_rotrnn_keeps_the_expected_norm_at_c(normalise: str, c: float) -> None:
    """Sigma_t = A Sigma_{t-1} A^T + W W^T exactly, from any Sigma_0 of trace c: the trace stays c per head."""
    rng = np.random.default_rng(6)
    layer = RotRNN(7, 12, heads=3, gamma_init=(0.5, 0.9999), normalise=normalise, c=c)
    params = astype(layer.init(rng), np.float64)
    params["B"] *= 37.0  # the norm must not depend on the size of any parameter
    system, folding = layer.fold(params)
    if normalise == "alpha":  # what eq. 10 complains of
        assert np.all(np.abs(system.a.reshape(3, 2)) < folding.gamma[:, None])
    W = system.w_in.reshape(3, 4, 7)
    for head in range(3):
        A = scipy.linalg.block_diag(*([[z.real, -z.imag], [z.imag, z.real]] for z in system.a.reshape(3, 2)[head]))
        root = rng.standard_normal((4, 4))
        sigma = c * root @ root.T / np.trace(root @ root.T)
        for _ in range(1000):
            sigma = A @ sigma @ A.T + W[head] @ W[head].T
            assert abs(np.trace(sigma) - c) <= c * 1e-12  # a thousand steps of a few roundings each


# --------------------------------------------------------------------------------------------- continuous time


def legs(n: int) -> tuple[Any, Any]:
    """HiPPO-LegS as published, and the p of its normal part A + p p^T."""
    A = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            A[i, j] = -np.sqrt((2 * i + 1) * (2 * j + 1)) if i > j else -(i + 1) if i == j else 0
    return A, np.sqrt(np.arange(n) + 0.5)


@pytest.mark.parametrize("n", [1, 2, 5, 64])
def test_hippo_normal_against_the_dense_matrix(n: int) -> None:
    A, p = legs(n)
    normal = A + np.outer(p, p)
    eigenvalues, V = hippo_normal(n)
    size = n * np.linalg.norm(normal)  # eigenvalues of a normal matrix err by n eps |A| at most, in any order of work
    dense = scipy.linalg.eigvals(normal)
    np.testing.assert_allclose(eigenvalues, dense[np.argsort(dense.imag)], rtol=0, atol=8 * EPS * size)
    np.testing.assert_allclose(V @ np.diag(eigenvalues) @ V.conj().T, normal, rtol=0, atol=8 * EPS * size)
    np.testing.assert_allclose(V.conj().T @ V, np.eye(n), rtol=0, atol=8 * EPS * n)


def test_hippo_normal_is_computed_once_and_stays_as_it_is() -> None:
    """Every layer of a model has the same, and none can change it for the others: not even by its initial values."""
    first = hippo_normal(6)
    assert hippo_normal(6) is first
    kept = [one.copy() for one in first]
    for one in first:
        with pytest.raises(ValueError, match="read-only"):
            one += 1
    for layer in (S5(d_model=3, d_state=12, blocks=2), S4D(d_model=3, d_state=6)):
        for array in layer.init(np.random.default_rng(0)).values():
            array += 1
    for one, before in zip(hippo_normal(6), kept, strict=True):
        np.testing.assert_array_equal(one, before)


def test_phi_and_its_slope() -> None:
    """phi(z) = int_0^1 e^{zs} ds, phi'(z) = int_0^1 s e^{zs} ds, by quadrature that is exact to rounding here."""
    nodes, weights = np.polynomial.legendre.leggauss(60)
    s, w = (nodes + 1) / 2, weights / 2
    rng = np.random.default_rng(7)
    z = 10 ** rng.uniform(-9, 1.3, 400) * np.exp(1j * rng.uniform(np.pi / 2, 3 * np.pi / 2, 400))
    z = np.append(z, [0, 0.5j, -0.5, np.nextafter(0.5, 0) * 1j])
    for function, factor in ((phi, 1), (phi_slope, s)):
        exact = (w * factor * np.exp(z[:, None] * s)).sum(1)
        # away from zero the slope is a difference of numbers up to 1 over |z| >= 1/2
        np.testing.assert_allclose(function(z), exact, rtol=0, atol=32 * EPS)
        narrow = function(z.astype(np.complex64))
        assert narrow.dtype == np.complex64
        # and z itself is rounded, by |z| / 2^24, where the functions' slopes are below 1 / |z|
        np.testing.assert_allclose(narrow, exact, rtol=0, atol=32 * np.finfo(np.float32).eps)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("method", DISCRETISATIONS)
def test_discretisations_far_from_and_near_zero(method: str) -> None:
    """In single precision too, neither a warning nor NaN: |z| is thousands in S5 of 512 states."""
    sizes = np.array([1e-44, 1e-38, 1e-31, 1e-20, 3e3, 1e18, 1e25], np.float32)
    z = sizes[:, None] * np.array([-1, 1j, -1 + 1j], np.complex64)
    a, a_slope, gain, gain_slope, gain_by_step = (function(z) for function in DISCRETISATIONS[method])
    assert all(np.isfinite(one).all() for one in (a, a_slope, gain, gain_slope, gain_by_step))
    for one in (a, a_slope, gain, gain_by_step):
        np.testing.assert_allclose(one[sizes < 1e-9], 1, rtol=4e-7)
    np.testing.assert_allclose(gain_slope[sizes < 1e-9], {"zoh": 0.5, "bilinear": 0.5, "first_order": 0}[method])


def test_moduli_of_lru_in_float32_are_up_to_a_rounding_above_one() -> None:
    """A cosine and a sine, each rounded to 2^-25 of itself in the mean, make a modulus of 1 + 2^-24 at most."""
    layer = LRU(1, 10_000)
    params = layer.init(np.random.default_rng(0))
    params["nu_log"][:] = -20
    found = np.abs(layer.eigenvalues(params).astype(np.complex128)).max() - 1
    assert 0 < found <= 2**-24


@pytest.mark.parametrize("method", DISCRETISATIONS)
def test_the_gain_by_its_step(method: str) -> None:
    """It is gain / Delta + z times its slope: to rounding where these do not cancel, and of zero-order hold e^z where
    they do, as in fast decays over long steps."""
    z = np.random.default_rng(0).uniform(-3, 0, 50) + 1j * np.linspace(-3, 3, 50)
    found = DISCRETISATIONS[method]
    np.testing.assert_allclose(found.gain_by_step(z), found.gain(z) + z * found.gain_slope(z), rtol=0, atol=64 * EPS)
    _, dstep = input_gain_backward(np.ones(2), method, np.array([-1.0, -2.0]), np.array([20.0, 30.0]))
    exact = {"zoh": np.exp([-20, -60]), "bilinear": [1 / 11**2, 1 / 31**2], "first_order": [1, 1]}[method]
    np.testing.assert_allclose(dstep, exact, rtol=4 * EPS)


def dense_sampled(method: str, A: Any, B: Any, step: float) -> tuple[Any, Any]:
    """The sampled system of x' = A x + B u: by the exponential of the system with its held input, or Tustin's rule."""
    n, m = B.shape
    if method == "bilinear":
        left = np.eye(n) - step / 2 * A
        return np.linalg.solve(left, np.eye(n) + step / 2 * A), np.linalg.solve(left, step * B)
    held = scipy.linalg.expm(step * np.block([[A, B], [np.zeros((m, n + m))]]))
    return held[:n, :n], held[:n, n:]


def dense_response(A: Any, B: Any, C: Any, T: int) -> Any:
    """C A^t B, (T, outputs, inputs)."""
    powers = [B]
    for _ in range(T - 1):
        powers.append(A @ powers[-1])
    return C @ np.stack(powers)


@pytest.mark.parametrize("method", ["zoh", "bilinear"])
def test_s5_is_the_dense_system_in_hippos_basis(method: str) -> None:
    """h = V^H x: the layer's impulse response is that of a real dense system x' = A x + B u, y = C x, sampled by its
    matrix exponential, with A HiPPO-N twice over, B real of variance 1 / N."""
    T, D, N = 40, 3, 8
    layer = S5(D, N, blocks=2, discretisation=method, c_init="lecun_normal")
    params = astype(layer.init(np.random.default_rng(8)), np.float64)
    params |= {"log_step": np.full(N // 2, np.log(0.05)), "D": np.zeros(D)}
    V = np.kron(np.eye(2), hippo_normal(N // 2)[1][:, : N // 4])
    lam = params["lambda_re"] + 1j * params["lambda_im"]
    A = 2 * (V @ np.diag(lam) @ V.conj().T).real
    B = 2 * (V @ (params["B_re"] + 1j * params["B_im"])).real
    C = 2 * ((params["C_re"] + 1j * params["C_im"]) @ V.conj().T).real
    hippo, p = legs(N // 2)
    published = np.kron(np.eye(2), hippo + np.outer(p, p))
    np.testing.assert_allclose(A, published, rtol=0, atol=N * np.finfo(np.float32).eps * np.abs(A).max())
    assert np.abs(B).max() < 2 / 0.8796 / np.sqrt(N)  # cut at two deviations
    expected = dense_response(*dense_sampled(method, A, B, 0.05), C, T)
    x = np.zeros((D, T, D))
    x[:, 0] = np.eye(D)
    y, _ = layer.forward(params, x)
    # T products of N terms on either side, of matrices of norm 1 but for C
    atol = 8 * T * N * EPS * np.linalg.norm(C) * np.linalg.norm(B)
    np.testing.assert_allclose(y.transpose(1, 2, 0), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("frequencies", ["legs", "lin", "inv"])
@pytest.mark.parametrize("method", ["zoh", "bilinear"])
def test_s4d_is_a_dense_system_for_each_channel(frequencies: str, method: str) -> None:
    """Each complex state is a plane of a real system of matrices [[re, -im], [im, re]], sampled by its exponential."""
    T, D, N = 40, 3, 8
    layer = S4D(D, N, frequencies=frequencies, discretisation=method, dt_min=0.01)
    rng = np.random.default_rng(9)
    params = astype(layer.init(rng), np.float64)
    params |= {"B_im": rng.standard_normal((D, N // 2)), "D": np.zeros(D)}
    x = np.zeros((1, T, D))
    x[0, 0] = 1
    y, _ = layer.forward(params, x)
    for d in range(D):
        re, im = -np.exp(params["log_A_re"][d]), params["A_im"][d]
        A = scipy.linalg.block_diag(*([[a, -b], [b, a]] for a, b in zip(re, im, strict=True)))
        B = np.stack([params["B_re"][d], params["B_im"][d]], 1).reshape(N, 1)
        C = 2 * np.stack([params["C_re"][d], -params["C_im"][d]], 1).reshape(1, N)
        step = np.exp(params["log_step"][d])
        expected = dense_response(*dense_sampled(method, A, B, step), C, T)[:, 0, 0]
        # the exponential's own squarings double its rounding, as often as |A Delta| has factors of 2
        size = (1 + step * np.abs(A).max()) * np.linalg.norm(B) * np.linalg.norm(C)
        np.testing.assert_allclose(y[0, :, d], expected, rtol=0, atol=8 * T * N * EPS * size)


def test_initial_frequencies_of_s4d() -> None:
    """As published; LRU, section 4, on S4D-Lin: at Delta = 1e-3, N = 128 moduli are 0.9995, phases up to pi / 8."""

    def frequencies(name: str, N: int, **settings: Any) -> Any:
        layer = S4D(1, N, frequencies=name, **settings)
        params = layer.init(np.random.default_rng(10))
        np.testing.assert_allclose(np.exp(params["log_A_re"]), 0.5, rtol=1e-6)
        return params["A_im"][0]

    np.testing.assert_allclose(frequencies("lin", 6), [0, np.pi, 2 * np.pi], rtol=1e-6)
    np.testing.assert_allclose(frequencies("inv", 6), [30 / np.pi, 6 / np.pi, 1.2 / np.pi], rtol=1e-6)
    np.testing.assert_allclose(
        frequencies("inv_lru", 4, conjugate=False), np.array([12, 4, 4 / 3, 0]) / np.pi, rtol=1e-6, atol=1e-7
    )
    imag = hippo_normal(6)[0].imag
    half, all_of_them = frequencies("legs", 6), frequencies("legs", 6, conjugate=False)
    np.testing.assert_allclose(np.sort(np.concatenate([half, -half])), imag, rtol=1e-6)
    np.testing.assert_allclose(np.sort(all_of_them), imag, rtol=1e-6)

    layer = S4D(1, 128, frequencies="lin", conjugate=False, dt_min=1e-3, dt_max=1e-3)
    a = layer.fold(astype(layer.init(np.random.default_rng(11)), np.float64)).weights.a[0]
    np.testing.assert_allclose(np.abs(a), np.exp(-0.0005), rtol=1e-6)
    np.testing.assert_allclose(np.angle(a), 1e-3 * np.pi * np.arange(128), atol=1e-6)
    assert np.angle(a).max() < 1.02 * np.pi / 8


def test_tying_the_step_changes_nothing_at_the_start() -> None:
    tied, untied = S4D(3, 4, frequencies="lin"), S4D(3, 4, frequencies="lin", tied=False)
    x = np.random.default_rng(12).standard_normal((2, 9, 3))
    y, _ = tied.forward(tied.init(np.random.default_rng(13)), x)
    y_untied, _ = untied.forward(untied.init(np.random.default_rng(13)), x)
    np.testing.assert_array_equal(y, y_untied)


@pytest.mark.parametrize("c_init", ["trunc_standard_normal", "lecun_normal", "complex_normal"])
def test_initial_values_of_s5(c_init: str) -> None:
    D, N = 40, 48
    layer = S5(D, N, blocks=3, c_init=c_init, dt_min=1e-4, dt_max=1e-2)
    params = layer.init(np.random.default_rng(14))
    assert params["lambda_im"].max() < 0
    np.testing.assert_allclose(params["lambda_re"], -0.5, rtol=1e-6)
    assert params["log_step"].min() >= np.log(1e-4) - 1e-5
    assert params["log_step"].max() <= np.log(1e-2) + 1e-5
    # a unitary V keeps E|.|^2, half of whose rows are here: of real B' 1/N in all, of complex C' 2/fan_in
    expected = {"trunc_standard_normal": 2 / N, "lecun_normal": 2 / (D * N), "complex_normal": 1.0}[c_init]
    for name, mean in (("B", 1 / N), ("C", expected)):
        square = params[f"{name}_re"] ** 2 + params[f"{name}_im"] ** 2
        # each square's deviation is below sqrt(2) of its mean; rows that V mixes are independent all the same
        assert abs(square.mean() / mean - 1) < 3 * np.sqrt(2 / square.size)


def test_clipped_eigenvalues_of_s5() -> None:
    """Real parts above -1e-4 are held there and have no gradient."""
    layer = S5(2, 4, clip_eigs=True)
    params = astype(layer.init(np.random.default_rng(15)), np.float64)
    params["lambda_re"] = np.array([0.3, -0.2])
    step = np.exp(params["log_step"])
    np.testing.assert_allclose(np.abs(layer.eigenvalues(params)), np.exp(np.array([-1e-4, -0.2]) * step), rtol=8 * EPS)
    x = np.random.default_rng(16).standard_normal((2, 5, 2))
    y, saved = layer.forward(params, x)
    _, dparams, _ = layer.backward(params, saved, y)
    assert dparams["lambda_re"][0] == 0
    assert dparams["lambda_re"][1] != 0
    assert np.all(dparams["lambda_im"] != 0)


def test_zero_eigenvalue_integrates() -> None:
    """Lambda = 0 under zero-order hold: a = 1 and gain = Delta, with finite gradients."""
    layer = S5(1, 1, conjugate=False)
    params = {name: np.zeros(shape) for name, shape in layer.shapes.items()}
    params |= {"B_re": np.ones((1, 1)), "C_re": np.ones((1, 1)), "log_step": np.log([0.25])}
    y, saved = layer.forward(params, np.ones((1, 6, 1)))
    np.testing.assert_allclose(y[0, :, 0], 0.25 * np.arange(1, 7), rtol=32 * EPS)
    _, dparams, _ = layer.backward(params, saved, np.ones_like(y))
    # y_k = sum_{j<=k} e^{lambda Delta (k-j)} Delta phi(lambda Delta): dy_k/dlambda = Delta^2 sum_i (i + 1/2)
    expected = 0.25**2 * sum(i + 0.5 for k in range(6) for i in range(k + 1))
    np.testing.assert_allclose(dparams["lambda_re"], expected, rtol=64 * EPS)


@pytest.mark.parametrize("value", [-1e4, -100.0, -85.0, 85.0, 100.0, 1e4])
@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (LRU(2, 3), "nu_log"),
        (LRU(2, 3, form="stable_exp", gamma=False), "nu_log"),
        (RotRNN(2, 4, heads=2), "gamma_log"),
        (RotRNN(2, 4, heads=2, normalise="alpha"), "gamma_log"),
        (S4D(2, 4), "log_A_re"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
@pytest.mark.filterwarnings("error")
def test_decays_are_decays_for_any_parameter(layer: Any, name: str, value: float) -> None:
    """No memory at all, or for ever: outputs and gradients are finite in single precision."""
    params = layer.init(np.random.default_rng(17))
    params[name][:] = value
    y, saved = layer.forward(params, np.ones((1, 5, 2), np.float32))
    dx, dparams, _ = layer.backward(params, saved, y)
    assert all(np.isfinite(one).all() for one in (y, dx, *dparams.values()))


# ------------------------------------------------------------------------------------------------------ errors


def test_layers_say_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="LRU: form='polar', expected one of real_imag, exp, stable_exp, log_phase"):
        LRU(3, 2, form="polar")
    with pytest.raises(ValueError, match="RotRNN: normalise='beta', expected one of input, alpha, spectrum, bounded"):
        RotRNN(3, 2, normalise="beta")
    with pytest.raises(ValueError, match=r"RotRNN: c=0\.0, expected a positive number"):
        RotRNN(3, 2, c=0)
    with pytest.raises(ValueError, match="S5: d_state=6, expected a multiple of 4, with blocks=2 and conjugate=True"):
        S5(3, 6, blocks=2)
    with pytest.raises(ValueError, match="S5: blocks=True, expected an integer"):
        S5(3, 6, blocks=True)
    with pytest.raises(ValueError, match="S5: c_init='zero', expected one of trunc_standard_normal, lecun_normal"):
        S5(3, 6, c_init="zero")
    with pytest.raises(ValueError, match="S4D: d_state=3, expected an even number of states"):
        S4D(3, 3)
    with pytest.raises(ValueError, match="S4D: d_state=0, expected a positive integer"):
        S4D(3, 0)
    with pytest.raises(ValueError, match="S4D: frequencies='log', expected one of legs, lin, inv, inv_lru"):
        S4D(3, 2, frequencies="log")
    for layer in (S4D, S5):
        name = layer.__name__
        with pytest.raises(
            ValueError, match=f"{name}: discretisation='euler', expected one of {'.*'.join(DISCRETISATIONS)}"
        ):
            layer(3, 2, discretisation="euler")
        with pytest.raises(ValueError, match=f"{name}: dt_min=0.1, dt_max=0.01, expected 0 < dt_min <= dt_max"):
            layer(3, 2, dt_min=0.1, dt_max=0.01)
        with pytest.raises(ValueError, match=f"{name}: step_scale=-2.0, expected a positive number"):
            layer(3, 2, step_scale=-2.0)
    both = S4D(3, 2, bidirectional=True)
    params = both.init(np.random.default_rng(17))
    with pytest.raises(ValueError, match=r"S4D\.forward: a bidirectional layer takes no state"):
        both.forward(params, np.zeros((1, 2, 3)), state=np.zeros((1, 3, 1), np.complex128))
    with pytest.raises(ValueError, match=r"S4D\.step: a bidirectional layer cannot run step by step"):
        both.step(params, None, np.zeros((1, 3)))


def test_bank_says_what_is_wrong() -> None:
    a, c, skip, u = np.ones((3, 2), complex), np.ones((3, 2), complex), np.ones(3), np.ones((2, 5, 3))
    with pytest.raises(TypeError, match="diagonal_bank: a has dtype float64, expected complex64 or complex128"):
        diagonal_bank(a.real, c, skip, u)
    with pytest.raises(ValueError, match=r"diagonal_bank: c has shape \(3, 4\), expected \(D=3, N=2\), with N from a"):
        diagonal_bank(a, np.ones((3, 4), complex), skip, u)
    with pytest.raises(ValueError, match=r"diagonal_bank: h0 has shape \(2, 3\), expected \(B, D, N\)"):
        diagonal_bank(a, c, skip, u, np.ones((2, 3), complex))
    with pytest.raises(ValueError, match=r"diagonal_bank: lengths\[1\] is 6, expected an integer from 0 to T=5"):
        diagonal_bank(a, c, skip, u, lengths=[5, 6])
    saved = diagonal_bank(a, c, skip, u)[2]
    with pytest.raises(ValueError, match=r"diagonal_bank_backward: saved.carries has shape \(2, 1, 2, 2, 3\)"):
        diagonal_bank_backward(np.ones((2, 70, 3)), a, c, skip, saved._replace(u=np.ones((2, 70, 3))))
    narrow = [one.astype(np.complex64) for one in (a, c)]
    saved = diagonal_bank(*narrow, skip.astype(np.float32), u.astype(np.float32))[2]
    with pytest.raises(TypeError, match=r"diagonal_bank_backward: saved\.u has dtype float32"):
        diagonal_bank_backward(u, a, c, skip, saved)
