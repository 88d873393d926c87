"""Engines of a stream: the C library (`include/rotrnn.h`), or the layers' functions in Python."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from rotrnn import _cpu
from rotrnn._cpu import MOST_STEPS
from rotrnn._support.json import to_json
from rotrnn._support.text import plural
from rotrnn._support.warn import warn
from rotrnn.devices.device import beside, full
from rotrnn.models.listing import listed
from rotrnn.nn.fixed_points.iteration import NotConverged
from rotrnn.nn.layer import TRUSTED, Array, Context, Params, State, flatten, trusted, unflatten_state
from rotrnn.nn.listing import Unlisted
from rotrnn.nn.module import check_form, in_order
from rotrnn.nn.packing import each
from rotrnn.ops.boundary import Boundary, rename
from rotrnn.ops.pointwise import check_indices, last_step

if TYPE_CHECKING:
    from rotrnn.models.model import SequenceModel

Int64 = npt.NDArray[np.int64]


class Engine(ABC):
    """The state of a batch of sequences, and the functions that advance it.

    Subclasses have `state`, arrays whose first axis is the batch or None before the first step, and `tokens` (B,), the
    number of steps that each sequence has read.
    """

    name: ClassVar[str]
    numbers: str
    """The dtype of the parameters. A state belongs to parameters of one dtype."""
    state: Any
    tokens: Any

    @abstractmethod
    def push(
        self, args: Boundary, x: Array, one: bool, lengths: npt.ArrayLike | None, last: bool, dt: Array | None = None
    ) -> Array:
        """Returns the logits after reading x (B,) or (B, F) if it is `one` step, else (B, T) or (B, T, F): of all
        steps, or of the `last` of each sequence. The caller has checked the shape. `dt` (B, T) are intervals, only for
        the engine "python"."""

    def read(self, x: Any) -> Array | None:
        """Returns the logits after one step x, if x needs no check or conversion beyond the engine's own, else None:
        nothing has been read then. A short way for the usual call."""
        return None

    @abstractmethod
    def reset(self, which: npt.NDArray[np.bool_] | None) -> None:
        """Goes back to the state before the first step: of these sequences (B,), or of all."""

    @abstractmethod
    def state_of(self, sequence: int) -> Any:
        """Returns a copy of the state of one sequence, in the form of a batch of one."""

    @abstractmethod
    def restore(self, arrays: dict[str, Array], dtypes: Any, tokens: Int64, sequence: int | None = None) -> None:
        """Continues from the arrays of a state with the names of `flatten_state`, of these dtypes; a single `sequence`,
        if given, from the state of a batch of one. TypeError or ValueError, with the array's name, if it is not a state
        of the model; nothing is changed then."""


class CEngine(Engine):
    """A stream of the C library, on the current parameters. Numbers have the parameters' dtype.

    The state is (B, n) uint8: for each sequence the bytes that the library keeps of it, beginning with the number of
    its steps as int64.
    """

    name = "c"

    def __init__(self, model: SequenceModel, params: Params, batch: int, half: bool) -> None:
        arrays = dict(flatten(params))
        if not all(type(one) is np.ndarray for one in arrays.values()):
            raise NotImplementedError("the parameters are not NumPy arrays")
        listing = listed(model, params)
        self.model, self.batch = model, batch
        self.dtype = next(iter(arrays.values())).dtype
        self.numbers = self.dtype.name
        self.reads_features = not listing.tokens
        self.pools = listing.pool is not None
        self.outputs = len(listing.arrays[listing.head[0]])
        self.iterating = sum(line.op.endswith("FixedPoint") for line in listing.lines)
        try:
            plain = {name: in_order(one) for name, one in listing.arrays.items()}  # buffers, too
            self.stream = _cpu.Stream(to_json({"program": listing.described()}), plain, batch, half)
        except (TypeError, ValueError) as error:
            raise NotImplementedError(str(error)) from error
        self.unsettled = 0
        self.step: tuple[tuple[int, ...], np.dtype[Any]] = (batch,), np.dtype(np.int64)
        if self.reads_features:
            self.step = (batch, model.encoder.d_in), np.dtype(self.numbers)  # type: ignore[union-attr]

    def read(self, x: Any) -> Array | None:
        shape, dtype = self.step
        if type(x) is not np.ndarray or x.shape != shape or x.dtype is not dtype or not x.flags.carray:
            return None
        if self.iterating:
            return None
        logits = np.empty((self.batch, self.outputs), self.dtype)
        return logits if self.stream.push(x, 1, None, False, logits) else None

    def push(
        self, args: Boundary, x: Array, one: bool, lengths: npt.ArrayLike | None, last: bool, dt: Array | None = None
    ) -> Array:
        B, outputs = self.batch, self.outputs
        self.model.bind_sizes(args)
        x = self.model.check_input(args, "inputs", x[:, None] if one else x)
        if self.reads_features:
            x = args.layout(x, self.dtype)
        steps = args.lengths(lengths)
        n = x.shape[1]
        logits = np.empty((B, outputs) if one or last or self.pools else (B, n, outputs), self.dtype)
        if not self.stream.push(x, n, steps, last, logits):
            padding = None if steps is None else np.arange(n) >= steps[:, None]
            check_indices(args, "inputs", x, self.model.encoder.vocab, padding)  # type: ignore[union-attr]
        if self.iterating:
            self._warn(B * n if steps is None else int(steps.sum()))
        return logits

    def _warn(self, steps: int) -> None:
        """Warns if a layer did not reach its fixed point in the last `steps` of all sequences. Each layer has its own
        fixed point of each step."""
        before, self.unsettled = self.unsettled, sum(self.stream.unsettled())
        if found := self.unsettled - before:
            among = f"{plural(steps * self.iterating, 'step')} of {plural(self.iterating, 'layer')}"
            warn(f"Stream.push: no fixed point for {found} of {among}", NotConverged)

    def reset(self, which: npt.NDArray[np.bool_] | None) -> None:
        for sequence in [None] if which is None else np.flatnonzero(which).tolist():
            self.stream.reset(sequence)
        self.unsettled = sum(self.stream.unsettled())

    @property
    def state(self) -> State:
        return np.frombuffer(self.stream.state(None), np.uint8).reshape(self.batch, -1)

    def state_of(self, sequence: int) -> State:
        return np.frombuffer(self.stream.state(sequence), np.uint8)[None]

    @property
    def tokens(self) -> Int64:
        return np.array(self.stream.steps(), np.int64)

    def restore(self, arrays: dict[str, Array], dtypes: Any, tokens: Int64, sequence: int | None = None) -> None:
        if arrays.keys() != {"state"}:
            got = ", ".join(arrays) or "no array"
            raise ValueError(f"has {got:.80}, expected state, the bytes of a stream whose engine is 'c'")
        state, size = arrays["state"], len(self.stream.state(0))
        expected = (self.batch if sequence is None else 1, size)
        if state.dtype != np.uint8 or state.shape != expected:
            raise ValueError(f"state has dtype {state.dtype} and shape {state.shape}, expected uint8 and {expected}")
        read = state[:, :8].copy().view(np.int64)[:, 0]
        if (read != tokens).any():
            raise ValueError(f"state is that after {read.tolist()} steps, expected tokens, {tokens.tolist()}")
        self.stream.restore(state.tobytes(), sequence)
        self.unsettled = sum(self.stream.unsettled()) if self.iterating else 0


class PythonEngine(Engine):
    """The layers' `step` and `forward`, on arrays of any device. The state is (state of the stack, state of the
    head)."""

    name = "python"

    def __init__(self, model: SequenceModel, params: Params, batch: int) -> None:
        self.model, self.params, self.batch = model, params, batch
        self.numbers = next(leaf.dtype.name for _, leaf in flatten(params))
        self.prepared = trusted(model.stack.prepare)(params["blocks"])
        self.reset(None)

    def reset(self, which: npt.NDArray[np.bool_] | None) -> None:
        if which is None or which.all():
            self.state: State = None
            self.tokens = np.zeros(self.batch, np.int64)
            return

        def leaf(one: Array) -> Array:
            own = one.copy()
            own[beside(which, one)] = 0
            return own

        self.state, self.tokens = each(leaf, self.state), np.where(which, 0, self.tokens)

    def state_of(self, sequence: int) -> State:
        return each(lambda one: one[sequence : sequence + 1].copy(), self.state)

    def push(
        self, args: Boundary, x: Array, one: bool, lengths: npt.ArrayLike | None, last: bool, dt: Array | None = None
    ) -> Array:
        stack, head = (None, None) if self.state is None else self.state
        try:
            if one and dt is None:
                y, stack, steps = self._step(args, x, stack)
            else:
                y, stack, steps = self._chunk(args, x[:, None] if one else x, lengths, stack, dt)
        except (TypeError, ValueError) as error:
            rename(error, "embedding: ids", f"{args.op}: inputs")
            raise
        pushed = np.full(len(y), y.shape[1]) if steps is None else steps
        self.tokens = self.tokens + pushed
        last = last and self.model.stepwise
        if last and not one:
            y, steps = last_step(y, steps)[:, None], np.minimum(pushed, 1)
        logits, head = self.model.read(self.params, head, y, steps)
        self.state = stack, head
        return logits[:, 0] if (one or last) and logits.ndim == 3 else logits

    def _step(self, args: Boundary, x: Array, state: State) -> tuple[Array, State, None]:
        """Returns (the head's input (B, 1, D), state of the stack, None) after one step."""
        model, params = self.model, self.params
        model.bind_sizes(args)
        x = model.check_input(args, "inputs", x[:, None])
        z, _ = model.encoder.forward(params["encoder"], x, TRUSTED)
        y, state = trusted(model.stack.step)(params["blocks"], state, z[:, 0], self.prepared)
        y = y[:, None]
        return (y if model.norm is None else model.norm.forward(params["norm"], y, TRUSTED)[0]), state, None

    def _chunk(
        self, args: Boundary, x: Array, lengths: npt.ArrayLike | None, state: State, dt: Array | None
    ) -> tuple[Array, State, Int64 | None]:
        """Returns (the head's input (B, T, D), state of the stack, checked lengths) after a chunk."""
        model = self.model
        model.bind_sizes(args)
        x = model.check_input(args, "inputs", x)
        ctx = model.check_context(args, Context(lengths, dt=dt))  # type: ignore[arg-type]  # checked here
        y, saved = model.encode(self.params, x, ctx, state)
        state = saved[1].state
        if any(one is None for one in state):
            raise ValueError("Stream.push: a layer returned no state to keep, expected one that runs forward")
        return y, state, ctx.lengths

    def restore(self, arrays: dict[str, Array], dtypes: Any, tokens: Int64, sequence: int | None = None) -> None:
        if not (isinstance(dtypes, dict) and dtypes.keys() == arrays.keys()):
            raise ValueError("does not list the dtypes of its arrays")
        flat = {name: _plain(name, leaf, dtypes[name]) for name, leaf in arrays.items()}
        state = self._restored(flat, self.batch if sequence is None else 1)
        if sequence is None:
            self.state, self.tokens = state, tokens
        elif state is None:
            self.reset(np.arange(self.batch) == sequence)
        else:
            self.state = _put(self.state, state, sequence, self.batch)
            self.tokens = np.where(np.arange(self.batch) == sequence, tokens, self.tokens)

    def _restored(self, flat: dict[str, Array], batch: int) -> State:
        """Returns the state of a batch from named arrays, checked against the model."""
        nested = unflatten_state(flat)
        if nested is None:
            return None
        if others := [name for name in flat if name.partition(".")[0] != "state"]:
            raise ValueError(f"has {others[0]}, which is not expected")
        if not isinstance(nested, tuple) or len(nested) > 2:
            raise ValueError(
                "state is not a tuple of the states of the stack and of the head, expected one that a stream with "
                'engine "python" saved'
            )
        stack, head = (*nested, None)[:2]
        args = Boundary("Stream.load")
        args.bind("B", batch, "the stream")
        self.model.stack.check_state(args, "state.0", stack)
        if (form := self.model.head_state_form) is None and head is not None:
            raise ValueError("has state.1, but the head of the model has no state")
        if form is not None:
            check_form(args, "state.1", head, form)
        for name, leaf in flat.items():
            if leaf.dtype.kind in "iu":
                check_steps(name, leaf)
        return stack, head


def _put(into: State, one: State, sequence: int, batch: int) -> State:
    """Returns a copy of the state of a batch, None before the first step, with a sequence replaced by the state of a
    batch of one. ValueError if the two keep different numbers of steps."""
    if isinstance(one, tuple):
        every = (None,) * len(one) if into is None else into
        return tuple(_put(own, new, sequence, batch) for own, new in zip(every, one, strict=True))
    if one is None:
        return into
    own = full((batch, *one.shape[1:]), 0, one.dtype, like=one) if into is None else into.copy()
    if own.shape[1:] != one.shape[1:]:
        why = "a layer that keeps every step has the same number of them in all sequences of a batch"
        raise ValueError(f"has an array of shape {one.shape}, expected {(1, *own.shape[1:])}: {why}")
    own[sequence : sequence + 1] = one
    return own


def _plain(name: str, leaf: Array, dtype: Any) -> Array:
    """Returns an array of a file in its original dtype: complex numbers are stored with a last axis of two parts."""
    if dtype == leaf.dtype.name:
        return np.ascontiguousarray(leaf).reshape(leaf.shape)
    if dtype in ("complex64", "complex128") and leaf.shape[-1:] == (2,):
        whole = np.dtype(dtype)
        if leaf.dtype == np.zeros((), whole).real.dtype:
            return np.ascontiguousarray(leaf).view(whole)[..., 0]
    raise ValueError(f"{name} has dtype {leaf.dtype} and shape {leaf.shape}, which does not hold {dtype!r:.20}")


def check_steps(name: str, count: Array) -> None:
    """Raises ValueError if a number of steps is negative or above `MOST_STEPS`."""
    wrong = (count < 0) | (count > MOST_STEPS)
    if wrong.any():
        raise ValueError(f"{name} is {count[wrong][0]}, expected a number of steps from 0 to {MOST_STEPS}")


LIMIT = "expected at most"
"""The words by which the C library (csrc/lib) tells that a number is above a limit of its own."""


def engine_of(name: str, model: SequenceModel, params: Params, batch: int, half: bool = False) -> Engine:
    """Returns the engine of that name; with "auto" the C engine, unless the library cannot run the model, with a
    warning if a limit is the reason, or the lines of an `emit`. `half`: with matrices in bfloat16, which the C engine
    alone has."""
    if name == "python" and half:
        raise ValueError("Stream: weights is 'bf16' with engine='python', expected engine='c' or 'auto'")
    if name == "python":
        return PythonEngine(model, params, batch)
    try:
        return CEngine(model, params, batch, half)
    except (NotImplementedError, Unlisted) as error:
        if half:
            raise ValueError(f"Stream: weights is 'bf16', but {error}: expected 'exact'") from error
        if name == "c":
            raise ValueError(f"Stream: engine is 'c', but {error}: expected 'python' or 'auto'") from error
        if LIMIT in str(error) or isinstance(error.__cause__, ValueError):  # or an `emit` whose lines are wrong
            warn(f"Stream: engine is 'python', since {error}")
    return PythonEngine(model, params, batch)
