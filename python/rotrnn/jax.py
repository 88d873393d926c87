"""Layers, blocks and models as functions for JAX: of parameters and input, in `jit`, `grad` and `vmap`.

    lru = rotrnn.jax.function(rotrnn.LRU(d_model=8, d_state=16))
    y = lru(params, x)                                   # params: a dict of arrays, as from layer.init
    grads = jax.grad(lambda params: (lru(params, x) ** 2).sum())(params)

The compiled program calls Python (`jax.experimental.buffer_callback`, a handler of XLA's foreign function interface).
There the layer's own forward reads XLA's buffers as NumPy arrays, without a copy, and its results are written to XLA's
once. When a gradient is wanted, forward has more outputs, the bytes of each array that it made for backward
(`rotrnn.models.call`), and the layer's own backward reads these; forward is not computed again. They are separate
because Linux's C library requests blocks above 32 MB from the system anew each time, page by page, but often keeps
smaller blocks.

Shapes come first: while JAX traces, forward runs once on zeros, and errors about shapes, dtypes and names are raised.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from rotrnn import _cpu
from rotrnn._support.text import an
from rotrnn.models.call import Call, Form, Gradients, Inputs, Plan, filled
from rotrnn.models.model import NEEDS_DT
from rotrnn.nn.layer import Array, Context, Module, Params, State, flatten, is_parameter, unflatten
from rotrnn.nn.packing import AsBatch, as_batch, check_rows, stepwise

try:
    import jax
    import jax.numpy as jnp
    from jax.custom_derivatives import SymbolicZero
    from jax.experimental.buffer_callback import buffer_callback
    from jax.extend.core import Primitive
    from jax.interpreters import batching, mlir
    from jax.tree_util import tree_flatten, tree_leaves, tree_map, tree_structure
except ImportError as error:
    raise ImportError(f"rotrnn.jax needs JAX 0.6.2 or later; pip install 'rotrnn[jax]' ({error})") from error

__all__ = ["function", "trained", "with_buffers"]


def function(
    module: Module, *, train: bool = False, return_state: bool = False, return_buffers: bool = False
) -> Callable[..., Any]:
    """Returns a layer, block, stack or model as a function for JAX.

        f(params, x, state=None, *, lengths=None, cu_seqlens=None, reset=None, dt=None, seed=0, step=0)

    It returns y, or a tuple of y and the other results requested here. `params` is a nested dict of arrays, as from
    ``module.init``, and `state` the state before x. `lengths`, and in training mode `seed` and `step`, are as in
    `rotrnn.Context`, and may be traced. `cu_seqlens`, where the sequences of a packed row begin and end, or `reset`,
    where rows of a batch are cut, is a NumPy array, since shapes follow from it: the sequences run as a padded batch as
    long as the longest. `dt` (B, T), intervals between samples at uneven times, may be traced; it has no gradient.
    A model that was trained with intervals (`timed`) needs them.

    Results and gradients have the bits of ``module.forward`` and ``module.backward``. f is differentiable in reverse
    mode, once: in the parameters, in x unless these are token ids, and in the state. `vmap` runs one element after the
    other, so each has the bits of a separate call; sequences that are to run together belong in the batch axis of x.
    Everything runs on one device, the CPU.

    Parameters
    ----------
    module : Module
        The layer, block, stack or model.
    train : bool
        Training mode: use batch statistics and dropout.
    return_state : bool
        Also return the state after x.
    return_buffers : bool
        Also return the running statistics after the call, which training mode updates: a dict for `with_buffers`.

    Returns
    -------
    callable
        It is compiled (`jax.jit`) for each combination of shapes and dtypes, and computes in the precision set where
        `function` is called (`rotrnn.precision`). It cannot be pickled: pickle the module, and call `function` there.

    Raises
    ------
    TypeError, ValueError
        Here for wrong settings; in calls of f as in ``module.forward``, and for arrays of 64 bits while JAX is set to
        32.
    NotImplementedError
        For a second derivative, several devices, and a device that is not the CPU.
    ValueError or jax.errors.JaxRuntimeError
        With the text of the layer's error, if values are wrong, which only the running program finds: lengths beyond T,
        parameters that are not finite.
    """
    if not isinstance(module, Module):
        kind = type(module).__name__
        raise TypeError(f"rotrnn.jax.function: module is {an(kind)}, expected a layer, block, stack or model")
    for name, value in (("train", train), ("return_state", return_state), ("return_buffers", return_buffers)):
        if not isinstance(value, bool):
            raise TypeError(f"rotrnn.jax.function: {name} is {value!r}, expected True or False")
    adapter = _Adapter(module, train, return_state)
    if return_state:
        adapter.check_state_form()
    if return_buffers != bool(train and adapter.buffers):
        what = ", ".join(adapter.buffers) or "none"
        raise ValueError(
            f"{adapter.title}: return_buffers is {return_buffers}, expected {not return_buffers}: running statistics "
            f"are updated in training mode, and these are {what}"
        )
    compiled = jax.jit(adapter.differentiable())

    def apply(
        params: Params,
        x: Any,
        state: State = None,
        *,
        lengths: Any = None,
        cu_seqlens: Any = None,
        reset: Any = None,
        dt: Any = None,
        seed: Any = 0,
        step: Any = 0,
    ) -> Any:
        packed = None
        if cu_seqlens is not None or reset is not None:
            packed = adapter.as_batch(x, cu_seqlens, reset, lengths)
            if packed.origins is not None:
                state = tree_map(lambda leaf: adapter.spread(leaf, packed.origins, len(x)), state)
            dt = adapter.of_rows(dt, x.shape[:2], packed.rows)
            x, lengths = x.reshape(-1, *x.shape[2:])[packed.rows], packed.lengths.astype(np.int32)
        given = adapter.arguments(params, x, state, lengths, dt, (seed, step))
        y, after, buffers = compiled(given)
        if packed is not None and stepwise(module):
            y = y.reshape(-1, *y.shape[2:])[packed.back]
        if packed is not None and packed.ends is not None:
            after = [leaf[packed.ends] for leaf in after]
        more = [filled(adapter.call.form, after)] if return_state else []
        if return_buffers:
            more.append(unflatten(dict(zip(adapter.buffers, buffers, strict=True))))
        return (y, *more) if more else y

    apply.__name__ = apply.__qualname__ = type(module).__name__
    apply.__doc__ = f"{module!r:.200} as a function for JAX (`rotrnn.jax.function`)."
    return apply


def with_buffers(params: Params, buffers: Params) -> Params:
    """Returns params with the running statistics that a function with ``return_buffers=True`` returned.

    TypeError or ValueError if these are no dict, or have a name that params lack.
    """
    if not isinstance(buffers, dict):
        raise TypeError(f"rotrnn.jax.with_buffers: buffers is {an(type(buffers).__name__)}, expected a dict")
    if not isinstance(params, dict):
        raise TypeError(f"rotrnn.jax.with_buffers: params is {an(type(params).__name__)}, expected a dict of arrays")
    if others := sorted(buffers.keys() - params.keys()):
        raise ValueError(f"rotrnn.jax.with_buffers: buffers has {others[0]!r}, expected names of params")
    for name, value in buffers.items():
        if not isinstance(params[name], dict) and np.shape(value) != np.shape(params[name]):
            got, expected = "a dict" if isinstance(value, dict) else f"shape {np.shape(value)}", np.shape(params[name])
            raise ValueError(f"rotrnn.jax.with_buffers: {name} of buffers has {got}, expected shape {expected}")
    return {
        name: with_buffers(value, buffers.get(name, {})) if isinstance(value, dict) else buffers.get(name, value)
        for name, value in params.items()
    }


def trained(params: Params) -> dict[str, Any]:
    """Returns a dict like params with True for each parameter, and False for each running statistic: the `mask` for
    decay and optimisers (optax), which would otherwise change the statistics.

    TypeError if params is no dict.
    """
    if not isinstance(params, dict):
        raise TypeError(f"rotrnn.jax.trained: params is {an(type(params).__name__)}, expected a dict of arrays")
    return {name: trained(value) if isinstance(value, dict) else is_parameter(name) for name, value in params.items()}


class _Given(NamedTuple):
    """The arrays of a call; or their gradients, None for arrays without a gradient."""

    x: Any
    params: list[Any]
    """In the order of `Call.names`."""
    state: list[Any]
    """The leaves of the state before x, or nothing."""
    lengths: Any
    dt: Any
    key: Any
    """Seed and step, in training."""


class _Made(NamedTuple):
    """The outputs of a call."""

    y: Any
    after: list[Any]
    """The leaves of the state after x, if wanted."""
    buffers: list[Any]
    """The running statistics after the call, in training."""


class _Adapter:
    """A module as a function of `_Given`: first of NumPy arrays, then of JAX's."""

    def __init__(self, module: Module, train: bool, after: bool) -> None:
        self.module, self.train, self.after = module, train, after
        self.call = Call(module, _cpu.precision())
        self.title = f"rotrnn.jax: {type(module).__name__}"
        self.buffers = [name for name in self.call.names if name not in self.call.trained]

    def arguments(self, params: Params, x: Any, state: State, lengths: Any, dt: Any, key: tuple[Any, Any]) -> _Given:
        """Returns the arrays of a call. Checks names and kinds, and that JAX will not round them in silence."""
        if not isinstance(params, dict):
            kind = type(params).__name__
            raise TypeError(f"{self.title}: params is {an(kind)}, expected a dict of arrays (the arguments: params, x)")
        flat = dict(flatten(params))
        for name, value in [("x", x), *((f"params.{name}", value) for name, value in flat.items())]:
            self._check_array(name, value)
        if dt is None and getattr(self.module, "timed", False):
            raise ValueError(f"{self.title}: {NEEDS_DT}")
        if isinstance(lengths, list | tuple):
            try:
                lengths = jnp.asarray(lengths or np.zeros(0, np.int32))  # of traced numbers within jit
            except (TypeError, ValueError, OverflowError) as error:
                raise TypeError(f"{self.title}: lengths is {lengths!r:.60}, expected integers") from error
        for name, value in (("lengths", lengths), ("dt", dt)):
            if value is not None:
                self._check_array(name, value)
        for name, value in zip(("seed", "step"), key, strict=True):
            if not hasattr(value, "dtype"):
                Context(**{name: value})  # refuses what is no integer from 0
                self._check_array(name, np.int64(value))
            elif jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
                got = f"a key of JAX ({value.dtype})"
                raise TypeError(f"{self.title}: {name} is {got}, expected an integer: jax.random.bits(key)")
            elif value.dtype.kind not in "iu":
                raise TypeError(f"{self.title}: {name} has dtype {value.dtype}, expected an integer dtype")
            elif value.shape:
                raise ValueError(f"{self.title}: {name} has shape {value.shape}, expected ()")
            else:
                self._check_array(name, value)
        if flat.keys() != set(self.call.names):
            self._check_params(flat)
        leaves = []
        if state is not None:
            self.check_state_form()
            form = tree_structure(filled(self.call.form, range(len(self.call.leaves))))
            if tree_structure(state) != form:
                got = tree_structure(state)
                raise TypeError(
                    f"{self.title}: state has the structure {got}, expected {form} as after an earlier call"
                )
            leaves = tree_leaves(state)
            for leaf in leaves:
                self._check_array("state", leaf)
        return _Given(x, [flat[name] for name in self.call.names], leaves, lengths, dt, key if self.train else None)

    def as_batch(self, x: Any, cu_seqlens: Any, reset: Any, lengths: Any) -> AsBatch:
        """Returns the segments of a batch as a batch."""
        self._check_array("x", x)
        for name, value in (("cu_seqlens", cu_seqlens), ("reset", reset)):
            if isinstance(value, jax.core.Tracer):
                raise TypeError(f"{self.title}: {name} is traced, expected a NumPy array: shapes follow from it")
        return as_batch(self.title, self.module, x.shape, cu_seqlens, reset, lengths)

    def of_rows(self, dt: Any, shape: tuple[int, ...], rows: Any) -> Any:
        """Returns the intervals (B, T) of rows, if any, as intervals of the batch that the rows become."""
        if dt is None:
            return None
        self._check_array("dt", dt)
        if dt.shape != shape:
            raise ValueError(f"{self.title}: dt has shape {dt.shape}, expected {shape}")
        return dt.reshape(-1)[rows]

    def spread(self, leaf: Any, origins: Any, B: int) -> Any:
        """Returns a leaf (S, ...) of the state (B, ...) before rows with resets, zero where segments begin by one."""
        self._check_array("state", leaf)
        check_rows(self.title, leaf.shape, B)
        return jnp.concatenate([jnp.zeros((1, *leaf.shape[1:]), leaf.dtype), leaf])[origins + 1]

    def check_state_form(self) -> None:
        """Checks that there is a state of fixed size: shapes may not depend on the number of steps so far."""
        if not self.call.leaves:
            raise ValueError(f"{self.title}: a state is asked for or given, expected none: it has none to go on from")
        if any(None in one.shape for one in self.call.leaves):
            raise ValueError(
                f"{self.title}: its state grows with every step, expected one of fixed size, as in a window"
            )

    def _check_array(self, name: str, value: Any) -> None:
        if not hasattr(value, "dtype"):
            raise TypeError(f"{self.title}: {name} is {an(type(value).__name__)}, expected an array")
        if isinstance(value, np.ndarray) and not value.dtype.isnative:  # JAX would hand on its bytes as they are
            expected = "expected the byte order of this machine: array.astype(array.dtype.newbyteorder('='))"
            raise TypeError(f"{self.title}: {name} has dtype {value.dtype}, {expected}")
        if not all(isinstance(size, int | np.integer) for size in value.shape):
            shape = ", ".join(map(str, value.shape))
            raise TypeError(
                f"{self.title}: {name} has shape ({shape}), expected sizes that are numbers: rotrnn calls Python, and "
                "jax.export cannot export that"
            )
        self._check_width(name, value.dtype)
        if value.dtype.kind in "iu" and isinstance(value, np.ndarray | np.generic):
            kept = jax.dtypes.canonicalize_dtype(value.dtype)
            if (wrong := np.atleast_1d(value)[np.atleast_1d(value != value.astype(kept))]).size:
                expected = f'numbers of {kept}, or jax.config.update("jax_enable_x64", True) before'
                raise ValueError(f"{self.title}: {name} has {wrong[0]}, expected {expected}")

    def _check_width(self, name: str, dtype: Any) -> None:
        if dtype.kind in "fc" and dtype != jax.dtypes.canonicalize_dtype(dtype):
            raise TypeError(
                f"{self.title}: {name} has dtype {dtype}, but JAX is set to 32 bits, expected "
                'jax.config.update("jax_enable_x64", True) before'
            )

    def _check_params(self, flat: dict[str, Any]) -> None:
        """Raises the module's error if names, shapes or dtypes are wrong."""
        zeros = {name: np.broadcast_to(np.zeros((), one.dtype), one.shape) for name, one in flat.items()}
        self.module.arrays(unflatten(zeros))

    # ---- on NumPy arrays ----

    def inputs(self, given: _Given) -> Inputs:
        """Returns the inputs of a `Call`."""
        key = np.array([int(one) for one in given.key]) if self.train else None
        return Inputs(given.x, given.params, given.state, given.lengths, given.dt, key, self.after, "cpu")

    def sorted(self, outputs: Sequence[Any]) -> _Made:
        """Returns outputs of a `Call`, or their forms, by name."""
        last = len(outputs) - len(self.buffers) * self.train
        first = last - len(self.call.leaves) * self.after
        return _Made(outputs[0], list(outputs[first:last]), list(outputs[last:]))

    def forward(self, results: tuple[_Made, list[Array]], given: _Given) -> None:
        """Runs forward, and writes the outputs and, if wanted, the bytes that backward needs to `results`."""
        outputs, plan = self.call.forward(self.inputs(given))
        for result, one in zip(tree_leaves(results[0]), tree_leaves(self.sorted(outputs)), strict=True):
            _write(result, one)
        for i, view in _views(plan, results[1]).items():
            _write(view, outputs[i])

    def backward(
        self, results: Gradients, given: _Given, y: Array, held: list[Array], dy: Array, dstate: list[Any]
    ) -> None:
        """Runs backward, and writes gradients to `results`."""
        inputs = self.inputs(given)
        plan = self.call.plan(inputs.forms())
        views = {**_views(plan, held), 0: y}
        grads = self.call.backward(inputs, [views[i] for i in plan.kept], dy, dstate)
        for result, one in zip(_with_none(results), _with_none(grads), strict=True):
            if result is not None:
                _write(result, np.zeros_like(result) if one is None else one)

    # ---- for JAX ----

    def plan(self, given: _Given) -> Plan:
        """Returns how outputs are arranged, by a forward on zeros, with forward's errors."""
        self._check_params(dict(zip(self.call.names, given.params, strict=True)))
        key = np.zeros(2, np.int64) if self.train else None
        plan = self.call.plan(self.inputs(given._replace(key=(0, 0)))._replace(key=key).forms())
        for one in self.sorted(plan.forms).after:
            self._check_width("the state after x", one.dtype)
        return plan

    def differentiable(self) -> Callable[[_Given], _Made]:
        """Returns the function, with its gradient."""

        def alone(given: _Given) -> _Made:
            return self._call_forward(self.plan(given), given, keep=False)[0]

        def forward(primals: _Given) -> tuple[_Made, Any]:
            given = tree_map(lambda one: one.value, primals)
            if primals.dt is not None and primals.dt.perturbed:
                expected = "expected jax.lax.stop_gradient(dt): it has none"
                raise NotImplementedError(f"{self.title}: dt requires a gradient, {expected}")
            if any(map(_varies, tree_leaves(given))):
                expected = "expected one device and check_vma=False"
                raise NotImplementedError(f"{self.title}: a gradient within shard_map, {expected}")
            made, held = self._call_forward(self.plan(given), given, keep=True)
            return made, (given, made.y, held)

        def backward(residual: Any, cotangents: _Made) -> tuple[_Given]:
            given, y, held = residual
            dstate = [_without_zeros(one) for one in cotangents.after]
            grads = self._call_backward(given, y, held, _dense(cotangents.y), dstate)
            found = dict(zip(self.call.trained, grads.dparams, strict=True))
            dparams = [found.get(name) for name in self.call.names]
            return (_Given(grads.dx, dparams, grads.dstate, None, None, None),)

        run = jax.custom_vjp(alone)
        run.defvjp(forward, backward, symbolic_zeros=True)
        return run

    def _call_forward(self, plan: Plan, given: _Given, keep: bool) -> tuple[_Made, Any]:
        """Returns the outputs and, with `keep`, the bytes of each array that backward needs besides."""
        made = tree_map(_shape_for_jax, self.sorted(plan.forms), is_leaf=_is_form)
        sizes = [math.prod(shape) * dtype.itemsize for shape, _, dtype in _held_forms(plan).values()]
        held = [jax.ShapeDtypeStruct((size,), np.uint8) for size in sizes] if keep else []

        def callback(results: Any, given: Any) -> None:
            for into, (one,) in _each(results, (given,), made.y):
                self.forward(into, one)

        return self._on_buffers(callback, (made, held))(given)

    def _call_backward(self, given: _Given, y: Any, held: Any, dy: Any, dstate: list[Any]) -> Gradients:
        """Returns the gradients of the given arrays."""

        def form(array: Any) -> Any:
            return _shape_for_jax(array) if array.dtype.kind in "fc" else None

        pairs = zip(self.call.names, given.params, strict=True)
        params = [form(one) for name, one in pairs if name not in self.buffers]
        forms = Gradients(form(given.x), params, [form(one) for one in given.state])

        def callback(results: Any, *arrays: Any) -> None:
            for into, one in _each(results, arrays, tree_leaves(forms)[0]):
                self.backward(into, *one)

        call = self._on_buffers(callback, forms)
        return tree_map(_conjugate, call(given, y, held, dy, tree_map(_conjugate, dstate)))

    def _on_buffers(self, callback: Callable[..., None], forms: Any) -> Callable[..., Any]:
        """Returns a function of trees of arrays for which XLA calls `callback`, with NumPy views of its memory."""

        def on_views(_: Any, results: Any, *given: Any) -> None:
            mode = _cpu.use_float_mode(None)  # in XLA's threads, subnormal numbers are zero
            try:
                callback(tree_map(np.asarray, results), *tree_map(np.asarray, given))
            finally:
                _cpu.use_float_mode(mode)

        def call(*given: Any) -> Any:
            leaves, tree = tree_flatten(given)
            leaves[0] = _on_one_cpu.bind(leaves[0], title=self.title)
            return buffer_callback(on_views, forms, vmap_method="expand_dims")(*tree.unflatten(leaves))

        def refuse(*_: Any) -> None:
            raise NotImplementedError(
                f"{self.title}: a second derivative is asked for, expected first derivatives, in reverse mode"
            )

        once = jax.custom_jvp(call)
        once.defjvp(refuse)
        return once


# ---- arrays ----


def _held_forms(plan: Plan) -> dict[int, Form]:
    """Returns the forms of the outputs that backward needs, without y. JAX has them as bytes, of any dtype."""
    return {i: plan.forms[i] for i in plan.kept if i > 0}


def _views(plan: Plan, held: list[Array]) -> dict[int, Array]:
    """Returns these outputs as views of the bytes that hold them, if any."""
    pairs = zip(_held_forms(plan).items(), held, strict=False)
    return {i: np.ndarray(form.shape, form.dtype, one.data) for (i, form), one in pairs}


def _write(result: Array, value: Array) -> None:
    """Copies a value of the same shape. JAX may have an integer in 32 bits, which then must hold it."""
    if result.shape != value.shape:
        raise ValueError(f"rotrnn.jax: an array has shape {value.shape}, expected {result.shape}")
    result[...] = value
    if result.dtype.kind in "iu" and result.dtype != value.dtype and (result != value).any():
        raise OverflowError(f"rotrnn.jax: {value.max()} does not fit JAX's {result.dtype}, expected jax_enable_x64")


def _each(results: Any, given: tuple[Any, ...], first: Any) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yields results and given arrays of each element that `vmap` added axes for. `first` is the first of the results
    without these axes; an array that all elements share has axes of size 1."""
    shape = tree_leaves(results)[0].shape
    added = shape[: len(shape) - len(first.shape)]
    if not added:
        yield results, given
        return
    for index in np.ndindex(added):

        def pick(array: Array, index: tuple[int, ...] = index) -> Array:
            places = (min(i, size - 1) for i, size in zip(index, array.shape, strict=False))
            return array[(*places, ...)]

        yield tree_map(pick, results), tree_map(pick, given)


# ---- forms and gradients of JAX ----


def _is_form(value: Any) -> bool:
    return hasattr(value, "dtype")


def _with_none(tree: Any) -> list[Any]:
    return tree_leaves(tree, is_leaf=lambda one: one is None)


def _shape_for_jax(array: Any) -> Any:
    return jax.ShapeDtypeStruct(array.shape, jax.dtypes.canonicalize_dtype(array.dtype))


def _dense(cotangent: Any) -> Any:
    """Returns the gradient of an output as an array."""
    is_zero = isinstance(cotangent, SymbolicZero)
    return jax.numpy.zeros(cotangent.shape, cotangent.dtype) if is_zero else cotangent


def _without_zeros(cotangent: Any) -> Any:
    """Returns the gradient of a state's array, None if it is known to be zero or belongs to an integer."""
    is_zero = isinstance(cotangent, SymbolicZero) or cotangent.dtype == jax.dtypes.float0
    return None if is_zero else cotangent


def _varies(array: Any) -> bool:
    """Whether JAX knows that the array differs between the devices of a shard_map, which gradients then must, too."""
    kind = jax.typeof(array)
    return bool(getattr(getattr(kind, "manual_axis_type", None), "varying", None) or getattr(kind, "vma", None))


def _conjugate(gradient: Any) -> Any:
    """JAX's gradient of a complex number a + ib, dL/da - i dL/db, is the conjugate of the gradient here."""
    return gradient.conj() if gradient.dtype.kind == "c" else gradient


# ---- one device ----


def _lower_on_one_cpu(context: Any, x: Any, *, title: str) -> list[Any]:
    """Refuses programs for other platforms, and for several devices."""
    platforms, axes = context.module_context.platforms, context.module_context.axis_context
    if tuple(platforms) != ("cpu",):
        got = ", ".join(platforms)
        raise NotImplementedError(
            f"{title}: the arrays are on {got}, expected jax.device_put(x, jax.devices('cpu')[0])"
        )
    if hasattr(axes, "mesh"):  # within shard_map
        devices = axes.mesh.size
    elif hasattr(axes, "num_devices"):
        devices = axes.num_devices or 1
    else:  # within pmap
        devices = axes.axis_env.nreps
    if devices > 1:
        raise NotImplementedError(f"{title}: the arrays are sharded or replicated over {devices} devices, expected one")
    return [x]


_on_one_cpu = Primitive("rotrnn_on_one_cpu")
"""The identity for an array on one device, the CPU."""
_on_one_cpu.def_impl(lambda x, title: x)
_on_one_cpu.def_abstract_eval(lambda x, title: x)
batching.defvectorized(_on_one_cpu)
mlir.register_lowering(_on_one_cpu, _lower_on_one_cpu)
