"""Rows of systems in continuous time at uneven times: the ops, and the layers with `Context.dt`."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases.layer_row import LayerRow
from cases.linoss import linoss_reference
from cases.table import Arrays, Case, beside, normal, padding, scan_loop
from rotrnn.nn.layer import Context
from rotrnn.nn.layers.linoss import LinOSS
from rotrnn.nn.layers.s4d import S4D
from rotrnn.nn.layers.s5 import S5
from rotrnn.ops.sampled import sampled_bank, sampled_bank_backward, sampled_scan, sampled_scan_backward
from rotrnn.testing import layer_functions


def discretised_at(method: str, lam: Any, size: Any) -> tuple[Any, Any]:
    """Transition and gain of ``h' = lam h + x`` over times `size`; the gain at lam = 0 is its limit."""
    z = lam * size
    if method == "bilinear":
        return (1 + z / 2) / (1 - z / 2), size / (1 - z / 2)
    still = lam == 0
    gain = np.where(still, size, np.expm1(z) / np.where(still, 1, lam)) if method == "zoh" else size + 0j
    return np.exp(z), gain


def sampled_loop(
    lam: Any, step: Any, dt: Any, x: Any, h0: Any, method: str = "zoh", lengths: Any = None
) -> tuple[Any, Any]:
    """One step after the other; (h, hT)."""
    a, gain = discretised_at(method, lam, step * dt[..., None])
    return scan_loop(a, gain * x, h0, False, lengths)


def sampled_case(B: int, T: int, N: int, method: str = "zoh", lengths: Any = None) -> Case:
    """The first lane is lam = 0, the second turns without decay, and the others have |z| on both sides of 1/2, where
    the adjoint of zoh goes from a series to a quotient. An interval is 0, and one turns the fastest lanes around."""

    def make(rng: np.random.Generator) -> Arrays:
        lam = -rng.uniform(0, 1, N) + 4j * rng.uniform(-1, 1, N)
        lam[:1], lam[1:2] = 0, 1j
        dt = rng.uniform(0, 2, (B, T))
        dt[:, 1:2], dt[:, 2:3] = 0, 5
        step = np.geomspace(0.02, 0.5, N)
        return {"lam": lam, "step": step, "dt": dt, "x": normal(rng, (B, T, N), True), "h0": normal(rng, (B, N), True)}

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        dh, dhT = doutputs
        lam, step, dt, x, h0 = args.values()
        how = {"method": method, "lengths": lengths}
        grads = sampled_scan_backward(dh, lam, step, dt, x, outputs[0], h0, dhT=dhT, **how)
        return {name: getattr(grads, f"d{name}") for name in args}

    return Case(
        f"sampled_scan {method}{' ragged' * (lengths is not None)} {B}x{T}x{N}",
        make,
        lambda args: sampled_scan(**args, method=method, lengths=lengths, return_state=True),
        backward,
        lambda args: sampled_loop(**args, method=method, lengths=lengths),
        terms=16 * (B * T + N + 4),  # exp(z) has an error of |z| roundings, |z| <= 11; dlam is summed over B and T
        linear=(("x", "h0"),),
        ragged=padding(lengths, "dt", "x", "out0"),
        lengths=lengths,
    )


def bank_at(
    lam: Any, c: Any, skip: Any, step: Any, u: Any, h0: Any, dt: Any, method: str = "zoh", lengths: Any = None
) -> tuple[Any, Any]:
    """Channel after channel; (y, hT)."""
    y, ends = skip * u, []
    for d in range(u.shape[2]):
        inputs = np.repeat(u[:, :, d : d + 1], len(lam[d]), 2)
        h, hT = sampled_loop(lam[d], np.full(len(lam[d]), step[d]), dt, inputs, h0[:, d], method, lengths)
        y[:, :, d] += (h @ c[d]).real
        ends.append(hT)
    for b, steps in enumerate(lengths or ()):
        y[b, steps:] = 0
    return y, np.stack(ends, 1) if ends else h0


def sampled_bank_case(B: int, T: int, D: int, N: int, method: str = "zoh", lengths: Any = None) -> Case:
    """Eigenvalues and intervals as in `sampled_case`. Intervals have no gradient; beyond `lengths` they are NaN."""
    of_lanes = sampled_case(B, T, D * N, method)
    intervals = of_lanes.make(np.random.default_rng(5))["dt"]
    for b, steps in enumerate(lengths or ()):
        intervals[b, steps:] = np.nan

    def at(args: Arrays) -> Any:
        return beside(intervals.astype(args["u"].dtype), args["u"])

    def make(rng: np.random.Generator) -> Arrays:
        return {
            "lam": of_lanes.make(rng)["lam"].reshape(D, N),
            "c": normal(rng, (D, N), True),
            "skip": normal(rng, (D,)),
            "step": np.geomspace(0.5, 0.02, D),
            "u": normal(rng, (B, T, D)),
            "h0": normal(rng, (B, D, N), True),
        }

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        system = [args[name] for name in ("lam", "c", "skip", "step")]
        saved = sampled_bank(**args, dt=at(args), method=method, lengths=lengths)[2]
        grads = sampled_bank_backward(doutputs[0], *system, saved, doutputs[1], method=method)
        return {name: getattr(grads, f"d{name}") for name in args}

    return Case(
        f"sampled_bank {method}{' ragged' * (lengths is not None)} {B}x{T}x{D} by {N}",
        make,
        lambda args: sampled_bank(**args, dt=at(args), method=method, lengths=lengths)[:2],
        backward,
        lambda args: bank_at(**args, dt=np.nan_to_num(intervals), method=method, lengths=lengths),
        terms=16 * (B * T + N + 4),  # as of `sampled_case`, and a sum over N states
        linear=(("u", "h0"), ("c", "skip")),
        ragged=padding(lengths, "u", "out0"),
        lengths=lengths,
    )


def s5_at(layer: S5, params: Arrays, x: Any, dt: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    """Each step with the transition and the gain of its own interval."""
    real = np.minimum(params["lambda_re"], -1e-4) if layer.clip_eigs else params["lambda_re"]
    lam, step = real + 1j * params["lambda_im"], layer.step_scale * np.exp(params["log_step"])
    Bu = x @ (params["B_re"] + 1j * params["B_im"]).T
    h, hT = sampled_loop(lam, step, dt, Bu, state, layer.discretisation, lengths)
    weight = 2 if layer.conjugate else 1
    y = weight * (h @ (params["C_re"] + 1j * params["C_im"]).T).real + params["D"] * x
    return y, hT


def s4d_at(layer: S4D, params: Arrays, x: Any, dt: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    """Channel after channel; the state in and out is h without the gain of a unit interval and B."""
    A = -np.exp(params["log_A_re"]) + 1j * params["A_im"]
    step, B = layer.step_scale * np.exp(params["log_step"]), params["B_re"] + 1j * params["B_im"]
    C = (2 if layer.conjugate else 1) * (params["C_re"] + 1j * params["C_im"])
    y, ends = params["D"] * x, []
    for d in range(layer.d_model):
        gain = discretised_at(layer.discretisation, A[d], step[d])[1]
        u = x[:, :, d : d + 1] * B[d]
        h, hT = sampled_loop(A[d], step[d], dt, u, gain * B[d] * state[:, d], layer.discretisation, lengths)
        y[:, :, d] += (h @ C[d]).real
        ends.append(hT / (gain * B[d]))
    return y, np.stack(ends, 1)


def linoss_at(layer: LinOSS, params: Arrays, x: Any, dt: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    return linoss_reference(layer, params, x, state, lengths, dt)


def row_at(name: str, layer: Any, B: int, T: int, lengths: Any = None) -> LayerRow:
    reference = {S5: s5_at, S4D: s4d_at, LinOSS: linoss_at}[type(layer)]
    terms = 40 * (T + 6) ** 2 if isinstance(layer, LinOSS) else 16 * (T + layer.d_state + layer.d_model + 8)
    return LayerRow(f"at uneven times {name}", layer, B, T, lengths, reference, terms, (("x", "state"),))


def case_at(row: LayerRow) -> Case:
    """A row's layer with intervals from 0 to some units."""
    layer, dt = row.layer, np.random.default_rng(5).exponential(size=(row.B, row.T))
    dt[:, 1:2] = 0

    def of(args: Arrays) -> Any:
        ctx = Context(row.ctx.lengths, dt=beside(dt.astype(args["x"].dtype), args["x"]))
        params = {name: args[name] for name in layer.shapes}
        return layer_functions(layer, params, args["x"], ctx, row.state_of(args))

    def reference(args: Arrays) -> tuple[Any, ...]:
        assert row.reference is not None
        params = {name: args[name] for name in layer.shapes}
        y, state = row.reference(layer, params, args["x"], dt, row.state_of(args), row.lengths)
        for b, steps in enumerate(row.lengths or ()):
            y[b, steps:] = 0
        return y, *row.leaves(state).values()

    even = row.case()
    return Case(
        row.title,
        even.make,
        lambda args: of(args)[0](args),
        lambda args, *more: of(args)[1](args, *more),
        reference,
        row.terms,
        even.linear,
        padding(row.lengths, "x", "out0"),
        lengths=row.lengths,
    )


ROWS = [
    row_at("zoh", S5(3, 8, blocks=2), 2, 9),
    row_at("zoh", S5(3, 8, blocks=2), 1, 0),
    row_at("bilinear", S5(3, 4, discretisation="bilinear"), 3, 8, (8, 0, 3)),
    row_at("clipped", S5(2, 4, clip_eigs=True, discretisation="first_order", dt_min=0.05), 2, 6),
    row_at("all states", S5(3, 3, conjugate=False, step_scale=2.0), 2, 7, (3, 7)),
    row_at("zoh", S4D(3, 8), 2, 9),
    row_at("zoh", S4D(3, 4), 1, 0),
    row_at("bilinear", S4D(2, 4, discretisation="bilinear", frequencies="lin"), 3, 8, (8, 0, 3)),
    row_at("all states", S4D(3, 3, conjugate=False, step_scale=2.0, discretisation="first_order"), 2, 7, (3, 7)),
    row_at("im", LinOSS(3, 4, "im"), 2, 9),
    row_at("half rate", LinOSS(2, 3, "im", step_scale=2.0), 3, 8, (8, 0, 3)),
]
OPS = [
    *(sampled_case(2, 13, 5, method) for method in ("zoh", "bilinear", "first_order")),
    sampled_case(1, 1, 1),
    sampled_case(2, 0, 3),
    sampled_case(0, 3, 2),
    sampled_case(3, 9, 7, "zoh", (9, 0, 4)),
    sampled_case(3, 9, 7, "bilinear", (9, 0, 4)),
    sampled_case(2, 31, 131, "zoh", (31, 17)),  # more than four strips of lanes
    *(sampled_bank_case(2, 13, 3, 5, method) for method in ("zoh", "bilinear", "first_order")),
    *(sampled_bank_case(*shape) for shape in ((1, 1, 1, 1), (2, 0, 3, 2), (0, 4, 3, 2), (2, 4, 0, 2), (2, 4, 3, 0))),
    sampled_bank_case(3, 33, 35, 2, "zoh", (33, 0, 32)),  # more than one tile and one strip of channels
    sampled_bank_case(3, 9, 18, 2, "bilinear", (9, 0, 4)),
    sampled_bank_case(2, 35, 2, 33, "zoh", (35, 9)),  # more states than a warp has lanes
    *(case_at(row) for row in ROWS),
]
OPS_LARGE = [
    sampled_case(3, 130, 150, "zoh", (130, 0, 77)),
    sampled_bank_case(18, 70, 40, 7, "zoh", tuple(range(53, 71))),  # more sequences than slots of partial sums
]
