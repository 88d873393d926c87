"""Compares every row of cases with its reference, finite differences, the adjoint identity, and itself."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

from cases import CASES, LARGE
from cases.table import Arrays, Case
from rotrnn import _cpu
from rotrnn.testing import adjoint_identity, central_differences


def over(cases: list[Case], slow: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """Parametrizes by cases; those whose names begin with one of `slow` have that mark."""
    rows = [(case, [pytest.mark.slow] * case.name.startswith(slow)) for case in cases]
    return pytest.mark.parametrize("case", [pytest.param(case, id=case.name, marks=marks) for case, marks in rows])


cases = over(CASES)
linear_cases = over([case for case in CASES if case.linear])
ragged_cases = over([case for case in CASES if case.ragged])

EPS = np.finfo(np.float64).eps


def rng_of(case: Case) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(case.name.encode()))


def like(rng: np.random.Generator, x: Any) -> Any:
    """Returns a normal random direction in the space of x."""
    d = rng.standard_normal(np.shape(x))
    return d + 1j * rng.standard_normal(np.shape(x)) if np.iscomplexobj(x) else d


def prepared(case: Case) -> tuple[np.random.Generator, Arrays, tuple[Any, ...], tuple[Any, ...]]:
    """Returns (rng, arguments, outputs, cotangent of the outputs). The cotangent is zero at padding."""
    rng = rng_of(case)
    args = case.make(rng)
    outputs = case.forward(args)
    return rng, args, outputs, tuple(like(rng, out) for out in outputs)


def valid(case: Case, name: str, x: Any) -> Any:
    """Returns a mask of the elements of an argument or output that are not padding."""
    mask = np.ones(np.shape(x), bool)
    if name in case.ragged:
        for b, length in enumerate(case.ragged[name]):
            mask[b, length:] = False
    return mask


@cases
def test_forward_equals_reference(case: Case) -> None:
    _, args, outputs, _ = prepared(case)
    for out, expected in zip(outputs, case.reference(args), strict=True):
        assert out.shape == expected.shape
        assert out.dtype == expected.dtype
        # two orders of `terms` rounded operations on numbers no larger than the largest partial sum
        scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
        np.testing.assert_allclose(out, expected, rtol=0, atol=4 * case.terms * EPS * scale)


@over(CASES, slow=("Bedouin", "FPMamba"))
def test_backward_equals_central_differences(case: Case) -> None:
    """Each argument on its own. Padding too: forward does not depend on it, so its gradient is zero."""
    rng = rng_of(case)
    args = case.make(rng)
    held = {name: args.pop(name) for name in case.estimated}

    def backward(given: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        grads = case.backward(ordered(given), outputs, doutputs)
        return {name: grads[name] for name in given}

    def ordered(given: Arrays) -> Arrays:
        return {name: {**held, **given}[name] for name in names}

    names = tuple(case.make(rng_of(case)))
    central_differences(lambda given: case.forward(ordered(given)), backward, args, rng)


@linear_cases
def test_adjoint_identity(case: Case) -> None:
    """<J v, w> = <v, J^T w> where forward is linear: the sides differ by rounding, terms * eps * |Jv| |w|."""
    rng, rounding = rng_of(case), min(1e-11, 8 * case.terms * EPS)
    args = case.make(rng)
    for group in case.linear:
        adjoint_identity(case.forward, case.backward, args, group, rng, rounding=rounding)


@cases
def test_float32_is_close_to_float64(case: Case) -> None:
    """The same arguments rounded to float32: forward and backward stay within terms * eps32 of float64's."""

    def narrow(x: Any) -> Any:
        return x.astype(np.complex64 if np.iscomplexobj(x) else np.float32)

    _, args, _, doutputs = prepared(case)
    small = {name: narrow(x) for name, x in args.items()}
    wide = {name: x.astype(args[name].dtype) for name, x in small.items()}
    dsmall = tuple(narrow(d) for d in doutputs)
    out_small, out_wide = case.forward(small), case.forward(wide)
    grads_small = case.backward(small, out_small, dsmall)
    grads_wide = case.backward(wide, out_wide, tuple(d.astype(w.dtype) for d, w in zip(dsmall, doutputs, strict=True)))
    pairs = [*zip(out_small, out_wide, strict=True), *((grads_small[name], grads_wide[name]) for name in args)]
    for i, (got, expected) in enumerate(pairs):
        assert got.dtype == (expected if i in case.double else narrow(expected)).dtype
        scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
        tolerance = 4 * case.terms * np.finfo(np.float32).eps * scale
        np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)


@over([*CASES, *LARGE])
def test_same_bits_for_any_number_of_threads(case: Case) -> None:
    _, args, _, doutputs = prepared(case)
    results = []
    before = _cpu.threads()
    try:
        for threads in (1, 2, 7):
            _cpu.use_threads(threads)
            outputs = case.forward(args)
            grads = case.backward(args, outputs, doutputs)
            results.append([out.tobytes() for out in (*outputs, *grads.values())])
    finally:
        _cpu.use_threads(before)
    assert results[0] == results[1] == results[2]


@cases
@pytest.mark.parametrize("simd", _cpu.SIMD_AVAILABLE)
def test_every_instruction_set_agrees(case: Case, simd: str) -> None:
    """The variants differ only in the order of sums and in fused multiply-adds."""
    _, args, outputs, doutputs = prepared(case)
    grads = case.backward(args, outputs, doutputs)
    before = _cpu.use_simd(simd)
    try:
        outputs_here = case.forward(args)
        grads_here = case.backward(args, outputs_here, doutputs)
    finally:
        _cpu.use_simd(before)
    for got, expected in zip((*outputs_here, *grads_here.values()), (*outputs, *grads.values()), strict=True):
        scale = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
        np.testing.assert_allclose(got, expected, rtol=0, atol=8 * case.terms * EPS * scale)


@ragged_cases
def test_padding_is_inert(case: Case) -> None:
    """NaN in all padding of arguments and cotangents does not change a single bit; padding of results is zero."""
    _, args, outputs, doutputs = prepared(case)
    grads = case.backward(args, outputs, doutputs)

    def spoil(name: str, x: Any) -> Any:
        return np.where(valid(case, name, x), x, np.nan)

    spoiled = {name: spoil(name, x) for name, x in args.items()}
    spoiled_outputs = case.forward(spoiled)
    dspoiled = tuple(spoil(f"out{i}", d) for i, d in enumerate(doutputs))
    spoiled_grads = case.backward(spoiled, spoiled_outputs, dspoiled)
    for i, (got, expected) in enumerate(zip(spoiled_outputs, outputs, strict=True)):
        assert got.tobytes() == expected.tobytes()
        assert not np.any(got[~valid(case, f"out{i}", got)])
    for name in args:
        assert spoiled_grads[name].tobytes() == grads[name].tobytes(), name
        assert not np.any(grads[name][~valid(case, name, args[name])])


@cases
def test_inputs_are_not_changed_and_layout_does_not_matter(case: Case) -> None:
    """Read-only, Fortran-ordered, strided and byte-swapped arguments give the same results and are not changed."""
    _, args, outputs, doutputs = prepared(case)
    grads = case.backward(args, outputs, doutputs)

    def odd_layout(x: Any) -> Any:
        wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]) if x.ndim else (), x.dtype.newbyteorder())
        view = wide[..., ::2] if x.ndim else wide
        view[...] = x
        view = np.asfortranarray(view) if x.ndim == 2 else view
        view.flags.writeable = False
        return view

    strange = {name: odd_layout(x) for name, x in args.items()}
    again = case.forward(strange)
    grads_again = case.backward(strange, again, tuple(odd_layout(d) for d in doutputs))
    for got, expected in zip((*again, *grads_again.values()), (*outputs, *grads.values()), strict=True):
        np.testing.assert_array_equal(got, expected)
