"""Checks for your own tests: gradients of layers, models, ops and any function with its adjoint; and streams.

`streamcheck` compares the lines of a layer with its forward. `gradcheck` makes two checks in one call:
`central_differences` and `adjoint_identity`, which take functions over dicts of arrays. They need no test runner:
failures raise AssertionError.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn import _cpu
from rotrnn._support.json import to_json
from rotrnn._support.text import an
from rotrnn.models.listing import ModelListing
from rotrnn.models.model import SequenceModel
from rotrnn.nn.layer import (
    EVALUATION,
    Array,
    Context,
    Module,
    Params,
    Recurrent,
    State,
    astype,
    flatten,
    flatten_state,
    is_parameter,
    unflatten,
    unflatten_state,
)
from rotrnn.nn.listing import Listing

__all__ = ["adjoint_identity", "central_differences", "gradcheck", "streamcheck"]

Arrays = dict[str, Array]
Forward = Callable[[Arrays], tuple[Array, ...]]
Backward = Callable[[Arrays, tuple[Array, ...], tuple[Array, ...]], Arrays]

STEP = 1e-4
"""Step of the central differences, for arguments of up to some hundred; for larger arguments a millionth of their
size."""
FIXED_TOL = 1e-12
"""Largest tol of layers that iterate to a fixed point: both ends of a difference, and a stream, iterate separately."""
FINER = 16
"""Factor by which the second, deciding step is shorter, if the first does not confirm a gradient."""
BATCH, STEPS, BEFORE = 2, 7, 3
"""Numbers of sequences and of steps drawn for a layer, and of earlier steps that lead to its state."""


def gradcheck(
    function: Module | Callable[..., Any] | tuple[Callable[..., Any], Callable[..., Any]],
    *arguments: Any,
    seed: int = 0,
    **settings: Any,
) -> dict[str, float]:
    """Checks that backward is the adjoint of forward, in float64.

    Every gradient g of ``L = sum(Re(conj(w) y))``, for random cotangents w of all outputs y, is compared along a random
    direction v with the four-point difference ``(L(-2s) - 8 L(-s) + 8 L(s) - L(2s)) / 12s`` of ``L(s) = L(x + s v)``, s
    = 1e-4, to 1e-6 of its size (`central_differences`). Where forward is linear in an argument, the adjoint identity
    ``<J v, w> = <v, J^T w>`` is held to rounding besides (`adjoint_identity`).

    A layer, and a function that takes `lengths`, is also run on a padded batch, whose outputs, states and gradients
    have to be those of its sequences alone, to 1e-9 of the largest number, or of 1. The gradient of padding is zero.
    `lengths` are drawn if they are not given. Of a function, arguments (B, T, ...) as its first output, or as its first
    argument of three axes, are along time, but for states: names that end in 0, `state` and `past`. What mixes the
    sequences of a batch, as `batch_norm`, is left out, and so are packed rows and contexts with `reset`.

    A layer with a state is also run on two pieces of the sequences, the state handed on: outputs and the final state
    have to be those of the whole, to 1e-9 likewise. Left out are contexts with `lengths`, and with `train`, where
    statistics of a batch are of all its steps, and layers with a `tol`: in a piece an iteration begins elsewhere, and
    may end at another fixed point. A module finally runs in float32 once, forward and backward, without a state.

    >>> gradcheck(layer)                                          # parameters, input and state are drawn
    >>> gradcheck(layer, params, x, Context(lengths=lengths))     # or given, as to forward
    >>> gradcheck(rotrnn.ops.diagonal_scan, a, x, h0, window=3)   # an op, and its op_backward
    >>> gradcheck(rotrnn.ops.mean_pool, x, seq_len=7)             # seq_len is an argument of mean_pool_backward
    >>> gradcheck(rotrnn.ops.cross_entropy, logits, labels)       # a loss that returns its gradient
    >>> gradcheck((forward, backward), x, w)                      # dx, dw = backward(dy, x, w)

    Parameters
    ----------
    function : layer, model or other module; op; or a pair of functions
        The backward of an op is ``NAME_backward`` of the same module. It takes arguments and outputs of the op by their
        names, ``dNAME`` for the cotangent of the output NAME, and the tuple of all outputs for any other argument
        without a default. The second of a pair takes the cotangents of all outputs and then the arguments, and returns
        the gradients of the arguments in their order, None for arguments without a gradient.
    *arguments
        Arguments of forward. For a module ``params``, ``x``, ``ctx`` and ``state``: missing arguments are drawn, for
        two sequences of seven steps. Arrays are taken in float64 or complex128. They should not vary by orders of
        magnitude, since an array has a single step, 1e-4 or a millionth of its size. Other arguments are held. A layer
        that iterates to a fixed point needs a `tol` of at most 1e-12. Arguments with a straight-through gradient, which
        a layer names as `estimated` or the module of an op as `ESTIMATED`, are left out.
    seed : int
        Of what is drawn.
    **settings
        Further arguments of forward, and of an op's backward.

    Returns
    -------
    dict of str to float
        Errors of the gradients by the names of the arguments, relative to their sizes.

    Raises
    ------
    AssertionError
        A gradient is wrong, missing, or of another shape or dtype, an output or a gradient depends on padding, or an
        output or the final state on where a sequence is cut; the message names the function and the argument or output.
    TypeError
        The function has no backward, an argument has an unknown form, or an op of a layer returns another dtype than
        float32 in float32.
    ValueError
        A layer that iterates to a fixed point has a gradient other than "implicit", or a `tol` above 1e-12, with which
        its gradients are not those of its outputs.
    """
    rng = np.random.default_rng(seed)
    if isinstance(function, type):
        name = function.__name__
        raise TypeError(f"gradcheck: function is the class {name}, expected an object of it, {name}(...)")
    if isinstance(function, Module):
        if unknown := [key for key in settings if key not in ("params", "x", "ctx", "state")]:
            raise TypeError(f"gradcheck: has no argument {unknown[0]!r} for a module, expected params, x, ctx or state")
        name, given = type(function).__name__, _module(function, rng, *arguments, **settings)
    elif isinstance(function, tuple):
        name, given = getattr(function[0], "__name__", "forward"), _pair(*function, arguments, settings)
    elif callable(function):
        name, given = getattr(function, "__name__", "function"), _op(function, arguments, settings)
    else:
        raise TypeError(
            f"gradcheck: function is {an(type(function).__name__)}, expected a module, an op, or (forward, backward)"
        )
    forward, backward, arrays = given[:3]
    try:
        errors = central_differences(forward, backward, arrays, rng, name)
        for one in arrays:
            if _is_linear(forward, arrays, one, rng):
                adjoint_identity(forward, backward, arrays, [one], rng, name)
        if given.ragged is not None:
            _check_lengths(given.ragged, rng, name)
        if given.pieces is not None:
            _check_pieces(*given.pieces(), name)
    except AssertionError as error:
        if (tol := getattr(function, "tol", 0)) > FIXED_TOL:
            raise ValueError(f"gradcheck: {name} has tol={tol}, expected at most {FIXED_TOL}") from error
        raise
    if given.single is not None:
        given.single()
    return errors


def streamcheck(
    layer: Recurrent, params: Params | None = None, x: npt.ArrayLike | None = None, *, seed: int = 0
) -> float:
    """Checks that the C library's stream of a layer equals its forward, in float64.

    The lines that `emit` writes run in the library, in two pieces of a sequence, and so do lines of your own
    instructions. Each number has to be within 1e-9 of the largest, or of 1: far more than the roundings of some hundred
    steps, far less than the effect of a different equation on random inputs.

    >>> streamcheck(layer)                 # parameters and input are drawn, as by gradcheck
    >>> streamcheck(layer, params, x)      # or given, x (B, T, D)

    Parameters
    ----------
    layer : Recurrent
        A layer that iterates to a fixed point needs a `tol` of at most 1e-12.
    params, x
        As to forward.
    seed : int
        Of what is drawn.

    Returns
    -------
    float
        The largest difference, relative to the largest number of y, or to 1.

    Raises
    ------
    AssertionError
        They differ; the message names the layer, the step and the channel.
    TypeError
        `layer` is something else, or a line has inputs or settings of another kind.
    ValueError
        A part of the layer has no lines, or a line does not fit its instruction; or a layer's `tol` allows results to
        differ.
    NotImplementedError
        The library does not know a line, or the layer keeps all steps, as attention without a window.
    """
    if not isinstance(layer, Recurrent):
        raise TypeError(f"streamcheck: layer is {an(type(layer).__name__)}, expected a layer, as LRU(d_model=4)")
    rng, D, name = np.random.default_rng(seed), layer.d_model, type(layer).__name__
    params = astype(_drawn(layer, rng) if params is None else params, np.float64)
    given = rng.standard_normal((BATCH, STEPS, D)) if x is None else np.ascontiguousarray(_wide(x))
    expected, _ = layer.forward(params, given)
    to = Listing(dict(flatten(params)))
    y, ends = layer.emit(to, params, 0), (to.array(np.eye(D)), to.array(np.zeros(D)))
    listing = ModelListing(False, ends, to.lines, y, None, ends, to.arrays)  # its encoder and its head change nothing
    try:
        stream = _cpu.Stream(to_json({"program": listing.described()}), listing.arrays, len(given), False)
    except NotImplementedError as error:
        raise NotImplementedError(f"streamcheck: {name}: {error}") from error
    got = np.empty_like(given)
    for piece in (slice(BEFORE), slice(BEFORE, None)):
        read, written = np.ascontiguousarray(given[:, piece]), np.empty_like(given[:, piece], order="C")
        if read.shape[1]:
            stream.push(read, read.shape[1], None, False, written)
        got[:, piece] = written
    size = max(1.0, float(np.abs(expected).max(initial=0.0)))
    wrong = ~(np.abs(got - expected) <= 1e-9 * size)
    if wrong.any() and (tol := getattr(layer, "tol", 0)) > FIXED_TOL:
        raise ValueError(f"streamcheck: {name} has tol={tol}, up to which they differ, expected at most {FIXED_TOL}")
    if wrong.any():
        t, b, d = (int(one[0]) for one in np.nonzero(wrong.swapaxes(0, 1)))
        raise AssertionError(
            f"{name}: the stream of its lines has {got[b, t, d]:.9g} in sequence {b}, step {t}, channel {d}, expected "
            f"{expected[b, t, d]:.9g} by forward"
        )
    return float(np.abs(got - expected).max(initial=0.0)) / size


# ---- the two checks ----


def central_differences(
    forward: Forward, backward: Backward, arguments: Arrays, rng: np.random.Generator, name: str = "forward"
) -> dict[str, float]:
    """Compares each gradient with the slope along a random direction, the other arguments held.

    A wrong gradient differs along every direction except a set of measure zero. The four-point stencil of step s
    errs by s^4 f^(5)/30 and by rounding terms*eps*|f|/s: at s = 1e-4 and a few hundred steps of a recurrence both lie
    below 1e-7 of the derivative's natural scale |grad| |v|; 1e-6 is promised, and 1e-9 of |f| (of 1, if that is more)
    where the derivative is small. Where they differ by more, a step of s / 16 decides: a sharp bend, whose f^(5) is
    large, has 65,000 times less error there, while the error of a wrong gradient stays.

    Parameters
    ----------
    forward : callable
        From the dict of arguments to the tuple of outputs.
    backward : callable
        From (arguments, outputs, cotangents of the outputs) to the dict of gradients.
    arguments : dict of arrays
        float64 or complex128, of order one.
    rng : numpy.random.Generator
        Of cotangents and directions.
    name : str
        Of the function in messages.

    Returns
    -------
    dict of str to float
        Errors, relative to the scales; to a thousandth of |f| (of 1, if that is less) where a gradient is about zero.

    Raises
    ------
    AssertionError
        As `gradcheck`.
    """
    outputs = forward(arguments)
    doutputs = tuple(_like(rng, out) for out in outputs)
    grads = backward(arguments, outputs, doutputs)
    if grads.keys() != arguments.keys():
        got, expected = ", ".join(grads) or "none", ", ".join(arguments)
        raise AssertionError(f"{name}: backward returned gradients of {got}, expected {expected}")
    summed = sum(float(np.sum(np.abs(w) * np.abs(y))) for w, y in zip(doutputs, outputs, strict=True))
    errors = {}
    for key, x in arguments.items():
        grad = grads[key]
        for what, found, wanted in (("shape", np.shape(grad), np.shape(x)), ("dtype", grad.dtype, x.dtype)):
            if found != wanted:
                raise AssertionError(f"{name}: the gradient of {key} has {what} {found}, expected {wanted}")
        v, step = _like(rng, x), STEP * max(1.0, float(np.linalg.norm(x)) / max(1.0, np.sqrt(np.size(x))) / 100)
        along = _inner(grad, v)
        size = float(np.linalg.norm(grad) * np.linalg.norm(v)) / max(1.0, np.sqrt(np.size(v)))
        for shorter in (step, step / FINER):  # a shorter step sees less of a bend, as of a short vector's direction
            f = [_total(doutputs, forward({**arguments, key: x + k * shorter * v})) for k in (-2, -1, 1, 2)]
            slope = (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * shorter)
            if right := abs(slope - along) <= 1e-6 * max(size, abs(slope)) + 1e-9 * min(1.0, summed):
                break
        if not right:
            raise AssertionError(
                f"{name}: the gradient of {key} is {along:.9g} along a random direction, expected {slope:.9g} by "
                "central differences"
            )
        scale = max(size, abs(slope), 1e-3 * min(1.0, summed))
        errors[key] = float(abs(slope - along) / scale) if scale else 0.0
    return errors


def adjoint_identity(
    forward: Forward,
    backward: Backward,
    arguments: Arrays,
    linear: Iterable[str],
    rng: np.random.Generator,
    name: str = "forward",
    rounding: float = 1e-11,
) -> None:
    """Checks ``<J v, w> = <v, J^T w>`` for random v and w, where forward is jointly linear in the arguments `linear`.

    There is no step, so the sides differ only by `rounding` of |J v| |w|. The other parameters are as in
    `central_differences`.

    Raises
    ------
    AssertionError
        The sides differ; the message names the arguments.
    """
    outputs, group = forward(arguments), list(linear)
    doutputs = tuple(_like(rng, out) for out in outputs)
    grads = backward(arguments, outputs, doutputs)
    v = {key: _like(rng, arguments[key]) for key in group}
    base = forward(arguments | {key: np.zeros_like(arguments[key]) for key in group})
    image = [one - two for one, two in zip(forward(arguments | v), base, strict=True)]
    left, right = _total(doutputs, image), sum(_inner(grads[key], v[key]) for key in group)
    size = sum(float(np.sum(np.abs(one) * np.abs(w))) for one, w in zip(image, doutputs, strict=True))
    if not abs(left - right) <= rounding * max(size, 1.0):
        raise AssertionError(
            f"{name}: <J v, w> is {left:.15g} for {', '.join(group)}, and <v, J^T w> by backward {right:.15g}, "
            "expected equal numbers"
        )


class Given(NamedTuple):
    """Forward and backward over a dict of arrays, and the calls with lengths, with pieces and in float32, if there are
    such."""

    forward: Forward
    backward: Backward
    arrays: Arrays
    ragged: Ragged | None = None
    pieces: Callable[[], tuple[Arrays, Arrays]] | None = None
    single: Callable[[], Any] | None = None


class Ragged(NamedTuple):
    """A function of a batch of `size` (B, T): ``again(arguments, steps)`` calls it. `along` are the names of arguments
    (B, T, ...), `outputs` of the outputs. `absent` are the lengths of a batch without padding."""

    again: Callable[[Arrays, int], Given]
    arguments: Arrays
    size: tuple[int, int]
    along: frozenset[str]
    outputs: tuple[str, ...]
    absent: Callable[[int], Any]


def _ragged(
    again: Callable[[Arrays, int], Given],
    arguments: Arrays,
    y: Array,
    outputs: Iterable[str],
    absent: Callable[[int], Any] = lambda steps: None,
) -> Ragged | None:
    """Returns a function with the first output y as `Ragged`; None if no argument is along time."""
    states = {key for key in arguments if key.endswith("0") or key in ("state", "past")}
    arrays = {key: one for key, one in arguments.items() if isinstance(one, np.ndarray) and key not in states}
    sizes = [one.shape[:2] for one in arrays.values() if one.ndim > 1 and one.shape[:2] == y.shape[:2]]
    sizes += [one.shape[:2] for one in arrays.values() if one.ndim > 2 and one.shape[:1] == y.shape[:1]]
    if not sizes:
        return None
    along = frozenset(key for key, one in arrays.items() if one.shape[:2] == sizes[0])
    return Ragged(again, arguments, sizes[0], along, tuple(outputs), absent)


def _check_lengths(ragged: Ragged, rng: np.random.Generator, name: str) -> None:
    """Compares a padded batch with its sequences alone. Sequence b alone is row b of a batch of its copies, with
    cotangents of this row only, so that gradients of states and parameters add up to the gradients of the padded batch.
    An output whose size depends on the longest sequence, as a state that grows, is left out."""
    again, arguments, (B, T), along = ragged[:4]
    given = arguments.get("lengths")
    lengths = 1 + (T // 2 + np.arange(B)) % max(T, 1) if given is None else np.asarray(given)
    if lengths.min(initial=T) == T:
        return
    forward, backward, arrays = again(arguments | {"lengths": lengths}, T)[:3]
    outputs = forward(arrays)
    mixed = [key for key in arrays if key in along and _mixes(forward, arrays, outputs, key)]
    if any(arrays[key].ndim > 2 for key in mixed):
        return  # it is no function of each sequence
    along = along.difference(mixed)  # a parameter has this shape
    expected, doutputs = [one.copy() for one in outputs], [np.zeros_like(one) for one in outputs]
    summed = {key: np.zeros_like(one) for key, one in arrays.items()}
    for b, n in enumerate(map(int, lengths)):
        some = {key: np.repeat(arguments[key][b : b + 1, :n], B, 0) for key in along}
        alone = again(arguments | some | {"lengths": ragged.absent(n)}, n)
        found = alone.forward(alone.arrays)
        dfound = tuple(np.zeros_like(one) for one in found)
        for whole, dwhole, one, done in zip(expected, doutputs, found, dfound, strict=True):
            row: Any = (b, slice(n)) if whole.shape[1:2] == (T,) and one.shape[1:2] == (n,) else b
            if one.shape[:1] == (B,) and whole[row].shape == one[b].shape:
                whole[row], done[b] = one[b], _like(rng, one[b])
                dwhole[row] = done[b]
        for key, grad in alone.backward(alone.arrays, found, dfound).items():
            part = summed[key][:, :n] if key in along else summed[key]
            part += grad
    title = f"{name}: with lengths={lengths.tolist()!s:.80}"
    for key, one, whole in zip(ragged.outputs, outputs, expected, strict=True):
        if (at := _differ(one, whole)) is not None:
            got, wanted = f"the output {key} is {one[at]:.9g} at {at}", f"{whole[at]:.9g} as of the sequence alone"
            raise AssertionError(f"{title}, {got}, expected {wanted}")
    for key, grad in backward(arrays, outputs, tuple(doutputs)).items():
        if (at := _differ(grad, summed[key])) is not None:
            beyond = key in along and at[1] >= lengths[at[0]]
            wanted = "0 beyond the length" if beyond else f"{summed[key][at]:.9g} as of the sequences alone"
            raise AssertionError(f"{title}, the gradient of {key} is {grad[at]:.9g} at {at}, expected {wanted}")


def _check_pieces(whole: Arrays, found: Arrays, name: str) -> None:
    """Compares y and the final state of sequences, by name, with those found of two pieces."""
    for key, expected in whole.items():
        if (at := _differ(found[key], expected)) is not None:
            got = f"of two pieces, the state handed on, the output {key} is {found[key][at]:.9g} at {at}"
            raise AssertionError(f"{name}: {got}, expected {expected[at]:.9g} as of the whole")


def _mixes(forward: Forward, arrays: Arrays, outputs: tuple[Array, ...], key: str) -> bool:
    """Returns whether outputs of the other sequences change with the first row of an argument."""
    changed = arrays[key].copy()
    changed[0] = changed[-1]
    found = forward(arrays | {key: changed})
    return any(one.ndim and _differ(two[1:], one[1:]) is not None for one, two in zip(outputs, found, strict=True))


def _differ(got: Array, expected: Array) -> tuple[int, ...] | None:
    """Returns the first place where arrays differ by more than 1e-9 of the largest number, or of 1."""
    wrong = ~(np.abs(got - expected) <= 1e-9 * max(1.0, float(np.abs(expected).max(initial=0.0))))
    return tuple(int(one[0]) for one in np.nonzero(wrong)) if wrong.any() else None


def _inner(x: Any, y: Any) -> float:
    """Returns <x, y> over real and imaginary parts, the inner product of gradients."""
    return float(np.sum((np.conj(x) * y).real))


def _total(xs: Iterable[Array], ys: Iterable[Array]) -> float:
    return sum(_inner(x, y) for x, y in zip(xs, ys, strict=True))


def _like(rng: np.random.Generator, x: Any) -> Any:
    """Returns a normal random direction in the space of x."""
    d = rng.standard_normal(np.shape(x))
    return d + 1j * rng.standard_normal(np.shape(x)) if np.iscomplexobj(x) else d


def _is_linear(forward: Forward, arrays: Arrays, name: str, rng: np.random.Generator) -> bool:
    """Returns whether forward is affine in an argument: f(2v) - f(0) = 2 (f(v) - f(0)), to far less than a second-order
    term. False if forward refuses zeros."""
    v = _like(rng, arrays[name])
    try:
        zero, one, two = (forward(arrays | {name: k * v}) for k in (0, 1, 2))
    except ValueError:
        return False
    return all(
        np.allclose(c - a, 2 * (b - a), rtol=0, atol=1e-10 * max(1.0, float(np.max(np.abs(c), initial=0.0))))
        for a, b, c in zip(zero, one, two, strict=True)
    )


# ---- forward and backward over dicts ----


def _wide(value: Any) -> Any:
    """Returns an array of floats or complex numbers in double precision, others unchanged."""
    array = np.asarray(value)
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64) if array.dtype.kind in "fc" else array


def layer_functions(module: Module, params: Params, x: Array, ctx: Context, state: State) -> tuple[Forward, Backward]:
    """Returns forward and backward of a module over a dict of its flattened parameters, "x", and the leaves of its
    state. Values that are not arguments of a call are fixed here: buffers, token ids, integers of the state."""
    flat, stateful = dict(flatten(params)), state is not None

    def state_of(args: Arrays, leaves: State) -> State:
        return unflatten_state({name: args.get(name, leaf) for name, leaf in flatten_state(leaves)})

    def run(args: Arrays) -> tuple[Params, Array, Any]:
        own = unflatten({name: args.get(name, value) for name, value in flat.items()})
        before = (state_of(args, state),) if stateful else ()
        call: Any = module
        return own, *call.forward(own, args.get("x", x), ctx, *before)

    def forward(args: Arrays) -> tuple[Array, ...]:
        _, y, saved = run(args)
        return (y, *(leaf for _, leaf in _real_leaves(saved.state))) if stateful else (y,)

    def backward(args: Arrays, outputs: tuple[Array, ...], doutputs: tuple[Array, ...]) -> Arrays:
        own, _, saved = run(args)
        dafter: tuple[State, ...] = ()
        if stateful:
            cotangents = dict(zip((name for name, _ in _real_leaves(saved.state)), doutputs[1:], strict=True))
            zeros = {name: np.zeros(leaf.shape) for name, leaf in flatten_state(saved.state)}
            dafter = (unflatten_state(zeros | cotangents),)
        call: Any = module
        back = call.backward_all if isinstance(module, SequenceModel) else call.backward
        dx, dparams, *rest = back(own, saved, doutputs[0], *dafter)
        grads = {**dict(flatten(dparams)), "x": dx, **dict(flatten_state(rest[0] if stateful else None))}
        return {name: grads[name] for name in args if grads.get(name) is not None}

    return forward, backward


def _real_leaves(state: State) -> list[tuple[str, Array]]:
    return [(name, leaf) for name, leaf in flatten_state(state) if leaf.dtype.kind in "fc"]


def _drawn(module: Any, rng: np.random.Generator) -> Params:
    """Returns slightly changed initial parameters, so that no zero hides an error."""
    drawn = flatten(astype(module.init(rng), np.float64))
    return unflatten({n: one + 0.05 * rng.standard_normal(one.shape) * is_parameter(n) for n, one in drawn})


def _module(
    module: Any,
    rng: np.random.Generator,
    params: Params | None = None,
    x: npt.ArrayLike | None = None,
    ctx: Context = EVALUATION,
    state: State = None,
) -> Given:
    width, kind = getattr(module, "d_model", None), type(module).__name__
    if getattr(module, "gradient", "implicit") != "implicit":
        what = f"gradient={module.gradient!r}, which is not forward's gradient"
        raise ValueError(f"gradcheck: {kind} has {what}, expected 'implicit', with a tol of at most 1e-12")
    if params is None:
        params = _drawn(module, rng)
    if x is None and width is None:
        raise TypeError(f"gradcheck: x is missing, expected the input of {an(kind)}")
    params, x = astype(params, np.float64), rng.standard_normal((BATCH, STEPS, width or 0)) if x is None else _wide(x)
    one_way = isinstance(module, Recurrent) and not getattr(module, "bidirectional", False)
    if state is None and one_way and width is not None:
        sequences = len(x) if ctx.cu_seqlens is None else len(ctx.cu_seqlens) - 1
        _, saved = module.forward(params, rng.standard_normal((sequences, BEFORE, width)))
        state = getattr(saved, "state", None)
    arrays = {name: value for name, value in flatten(params) if is_parameter(name)}
    arrays |= {"x": x} if x.dtype.kind in "fc" else {}
    arrays |= dict(_real_leaves(state))
    arrays = {name: value for name, value in arrays.items() if name not in getattr(module, "estimated", ())}

    def single() -> None:
        own, given = astype(params, np.float32), x.astype(np.float32) if x.dtype.kind == "f" else x
        forward, backward = layer_functions(module, own, given, ctx, None)
        outputs = forward({})
        backward({}, outputs, outputs)

    def run(*pieces: slice) -> Arrays:
        ys: list[Array] = []
        after = state
        for piece in pieces:
            of = ctx if ctx.dt is None else replace(ctx, dt=np.asarray(ctx.dt)[:, piece])
            y, saved = module.forward(params, x[:, piece], of, after)
            ys.append(y)
            after = saved.state
        return {"y": np.concatenate(ys, 1), **dict(flatten_state(after))}

    def pieces() -> tuple[Arrays, Arrays]:
        middle = x.shape[1] // 2
        return run(slice(None)), run(slice(middle), slice(middle, None))

    given = Given(*layer_functions(module, params, x, ctx, state), arrays, single=single)
    if not isinstance(module, Recurrent) or ctx.cu_seqlens is not None or ctx.reset is not None:
        return given

    def again(some: Arrays, steps: int) -> Given:
        of = replace(ctx, lengths=some["lengths"], dt=some["dt"])
        own = arrays | ({"x": some["x"]} if "x" in arrays else {})
        return Given(*layer_functions(module, params, some["x"], of, state), own)

    inputs: dict[str, Any] = {"x": x, "lengths": ctx.lengths, "dt": None if ctx.dt is None else np.asarray(ctx.dt)}
    outputs = "y", *(name for name, _ in _real_leaves(state))
    uncut = ctx.lengths is not None or ctx.train or hasattr(module.core, "tol")
    cut = state is not None and x.shape[1] > 1 and not uncut
    return given._replace(ragged=_ragged(again, inputs, x, outputs), pieces=pieces if cut else None)


def _pair(
    forward: Callable[..., Any], backward: Callable[..., Any], arguments: tuple[Any, ...], settings: dict[str, Any]
) -> Given:
    known = list(inspect.signature(forward).parameters)
    names = [known[i] if i < len(known) else f"argument {i}" for i in range(len(arguments))]
    wide = (_wide(one) if isinstance(one, np.ndarray | list | float) else one for one in arguments)
    given = dict(zip(names, wide, strict=True))
    arrays = {key: one for key, one in given.items() if isinstance(one, np.ndarray) and one.dtype.kind in "fc"}
    if not arrays:
        raise TypeError(f"gradcheck: none of {', '.join(names) or 'no arguments'} has floats, expected one that has")

    def tupled(result: Any) -> tuple[Any, ...]:
        return result if isinstance(result, tuple) else (result,)

    def gradients(args: Arrays, outputs: tuple[Array, ...], doutputs: tuple[Array, ...]) -> Arrays:
        found = tupled(backward(*doutputs, *(given | args).values(), **settings))
        if len(found) != len(names):
            expected = f"expected {len(names)}: those of {', '.join(names)}"
            raise AssertionError(
                f"{getattr(backward, '__name__', 'backward')}: returned {len(found)} value(s), {expected}"
            )
        return {key: np.asarray(one) for key, one in zip(names, found, strict=True) if key in args and one is not None}

    made = Given(lambda args: tupled(forward(*(given | args).values(), **settings)), gradients, arrays)
    lengths = given.get("lengths")
    if lengths is None:
        return made

    def again(some: Arrays, steps: int) -> Given:
        return _pair(forward, backward, tuple(some.values()), settings)

    found = made.forward(arrays)
    outputs = map(str, range(len(found)))
    return made._replace(ragged=_ragged(again, given, found[0], outputs, lambda steps: np.full_like(lengths, steps)))


def _op(op: Callable[..., Any], arguments: tuple[Any, ...], settings: dict[str, Any]) -> Given:
    name, back = getattr(op, "__name__", "function"), None
    if module := sys.modules.get(getattr(op, "__module__", None) or ""):
        back = getattr(module, f"{name}_backward", None)
    takes = inspect.signature(op).parameters
    of_forward = {key: value for key, value in settings.items() if key in takes}
    try:
        given = dict(inspect.signature(op).bind(*arguments, **of_forward).arguments)
    except TypeError as error:
        raise TypeError(f"gradcheck: {name}: {error}") from None
    if "return_state" in takes:
        given.setdefault("return_state", True)
    given = {key: _wide(value) if isinstance(value, np.ndarray | list) else value for key, value in given.items()}
    first = next(iter(takes))
    if back is None:
        loss = op(*arguments, **settings)
        if not (isinstance(loss, tuple) and len(loss) == 2 and np.ndim(loss[0]) == 0):
            expected = "a function beside it of this name, or (forward, backward)"
            raise TypeError(f"gradcheck: {name} has no {name}_backward, expected {expected}")
        return Given(
            lambda args: (np.asarray(op(**given | args)[0]),),
            lambda args, outputs, doutputs: {first: doutputs[0] * op(**given | args)[1]},
            {first: given[first]},
        )
    parameters = inspect.signature(back).parameters
    wants = list(parameters)
    # dh and dhT are the cotangents of the outputs h and hT; other names likewise
    own = [key for key in wants if key not in takes and key not in settings]
    cotangents = [key for key in own if key.startswith("d") and key != "d"]
    order = [*(key[1:] for key in cotangents), *(key for key in own if key not in cotangents)]

    def named(result: Any) -> dict[str, Any]:
        if hasattr(result, "_fields"):
            return {**result._asdict(), "result": result}
        results = result if isinstance(result, tuple) else (result,)
        arrays = [one for one in results if not isinstance(one, tuple)]
        return {**dict(zip(dict.fromkeys(order), arrays, strict=False)), "saved": results[-1]}

    def differentiable(result: Any) -> dict[str, Array]:
        return {key: one for key, one in named(result).items() if f"d{key}" in cotangents and one is not None}

    def call(args: Arrays, result: Any, doutputs: dict[str, Any]) -> Arrays:
        known = {**named(result), **given, **args, **settings, **{f"d{key}": one for key, one in doutputs.items()}}
        for key in own if hasattr(result, "_fields") else ():
            if parameters[key].default is inspect.Parameter.empty:
                known.setdefault(key, result)
        grads = back(**{key: known[key] for key in wants if key in known})
        found = grads._asdict() if hasattr(grads, "_fields") else {f"d{first}": grads}
        return {key.removeprefix("d"): one for key, one in found.items() if one is not None}

    def forward(args: Arrays) -> tuple[Array, ...]:
        return tuple(differentiable(op(**given | args)).values())

    def backward(args: Arrays, outputs: tuple[Array, ...], doutputs: tuple[Array, ...]) -> Arrays:
        result = op(**given | args)
        grads = call(args, result, dict(zip(differentiable(result), doutputs, strict=True)))
        # the gradient of a real argument that forward promoted to complex is the real part of backward's result
        return {key: grads[key] if np.iscomplexobj(one) else grads[key].real for key, one in args.items()}

    result = op(**given)
    zeros = {key: np.zeros_like(one) for key, one in differentiable(result).items()}
    known = call({}, result, zeros)
    estimated = getattr(module, "ESTIMATED", ())
    arrays = {key: one for key, one in given.items() if key in known and isinstance(one, np.ndarray)}
    arrays = {key: one for key, one in arrays.items() if key not in estimated}
    if not arrays:
        raise TypeError(f"gradcheck: {name} has gradients of {', '.join(known)}, expected some of arrays given here")
    made = Given(forward, backward, {key: one for key, one in arrays.items() if one.dtype.kind in "fc"})
    if "lengths" not in takes or not zeros:
        return made
    rest = {key: value for key, value in settings.items() if key not in takes}

    def again(some: Arrays, steps: int) -> Given:
        return _op(op, (), {**rest, **({"seq_len": steps} if "seq_len" in rest else {}), **some})

    def absent(steps: int) -> Any:
        return None if takes["lengths"].default is None else np.full_like(given["lengths"], steps)

    return made._replace(ragged=_ragged(again, given, next(iter(zeros.values())), zeros, absent))
