"""Streaming inference: a model's state between tokens, which can be saved and loaded."""

from __future__ import annotations

import hashlib
import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rotrnn._cpu import MOST_NUMBERS
from rotrnn._support.checkpoint import Facts, packed, read_checkpoint, unpacked, write_checkpoint
from rotrnn._support.files import check_file
from rotrnn._support.text import an, plural
from rotrnn.models.engines import check_steps, engine_of
from rotrnn.nn.blocks.dense import Dense
from rotrnn.nn.layer import Array, Params, State, flatten_state
from rotrnn.nn.module import Unchecked, in_order, spelled_out
from rotrnn.ops.boundary import Boundary, on_host
from rotrnn.ops.sampled import intervals

if TYPE_CHECKING:
    from rotrnn.models.model import SequenceModel

ENGINES = ("auto", "c", "python")
WEIGHTS = ("exact", "bf16")


class Stream:
    """Streaming inference: reads a batch of sequences token by token or in chunks, in constant memory.

    (Memory and the time of a token grow in three layers without a window: attention keeps every key and value,
    wrope_memory and a stored history every state.) `model.stream(params)` creates a stream. Its output equals the
    output of the model's forward in evaluation mode on all inputs pushed so far, up to rounding. For layers that
    iterate to a fixed point, it is equal up to their `tol`; FPMamba may reach another of its fixed points (see
    `inference_gap`). Values that do not depend on time are computed once, when the stream is created: after a change of
    `params`, create a new stream.

    Models on NumPy arrays run in the C library (docs/c.md), whose numbers have the dtype of the parameters: inputs are
    converted to it, and subnormal numbers (below 1.2e-38 in float32) are zero there. Its results have the same bits
    however tokens are divided into chunks, and do not depend on `rotrnn.precision`. A GPU's arrays, layers of your own,
    layers that keep every step, and layers that the library does not have run by the layers' functions in
    Python, some ten times slower for a token.

    A stream belongs to one thread at a time: in the C library, a call while another thread is in one raises
    RuntimeError. Long chunks let other threads run. A copy of a stream (also by `pickle`) is another stream that
    continues from the same state, with the parameters at that time.

    Parameters
    ----------
    model, params, batch
        The model, its parameters, and the number of sequences.
    engine : "auto", "c" or "python"
        The engine. "auto" is "c" where possible. "c" raises ValueError with the reason where it is not.
    weights : "exact" or "bf16"
        "bf16" rounds the matrix or table of the encoder, the matrices of all dense maps and of the head, and the input
        and output projections (B, C) of diagonal recurrences, B with its gain folded in, to bfloat16 (to nearest, ties
        to even), which takes half the memory and is faster where memory is the limit: every logit has the bits of a
        stream with these rounded numbers. Everything else, sums and states too, stays float32.
        Only in the C library, for float32 parameters.

    Raises
    ------
    ValueError
        A layer is bidirectional: it needs later steps. Or `weights` is "bf16" where that is not possible.

    Attributes
    ----------
    engine : "c" or "python"
        The engine in use.
    state : (B, n) uint8, or tuple of arrays
        With "c", the library's bytes for each sequence. With "python", the states of the stack and of the head, arrays
        whose first axis is the batch; None before the first token.
    tokens : (B,) int64
        Number of tokens that each sequence has read.
    """

    def __init__(
        self, model: SequenceModel, params: Params, batch: int = 1, engine: str = "auto", weights: str = "exact"
    ) -> None:
        args = Boundary("Stream")
        batch, engine = args.integer("batch", batch, 1, MOST_NUMBERS), args.choice("engine", engine, ENGINES)
        self.weights = args.choice("weights", weights, WEIGHTS)
        model.stack.check_streams(args)
        model.check_params(params)
        self.model, self.params, self.batch = model, in_order(params), batch
        self._engine = engine_of(engine, model, self.params, batch, self.weights == "bf16")
        self._features = model.encoder.d_in if isinstance(model.encoder, Dense) else None

    def __repr__(self) -> str:
        model, read = type(self.model).__name__, self.tokens
        steps = f"{read.min()}" if read.min() == read.max() else f"{read.min()} to {read.max()}"
        kind = f"engine={self.engine!r}" + (f", weights={self.weights!r}" if self.weights != "exact" else "")
        return f"<Stream of {model}: batch={self.batch}, {kind}, {steps} tokens read>"

    @property
    def engine(self) -> str:
        return self._engine.name

    @property
    def state(self) -> State:
        return self._engine.state

    @property
    def tokens(self) -> npt.NDArray[np.int64]:
        return self._engine.tokens

    def reset(self, which: npt.ArrayLike | None = None) -> None:
        """Resets the stream to its state before the first token.

        Parameters
        ----------
        which : (B,) bool, optional
            The sequences to reset, while the others go on. Default: all.

        Raises
        ------
        TypeError, ValueError
            The dtype or the shape is another.
        """
        if which is None:
            self._engine.reset(None)
            return
        mask = on_host("Stream.reset", "which", which)
        if mask.dtype != np.bool_:
            raise TypeError(f"Stream.reset: which has dtype {mask.dtype}, expected bool")
        if mask.shape != (self.batch,):
            raise ValueError(f"Stream.reset: which has shape {mask.shape}, expected (B={self.batch},)")
        self._engine.reset(mask)

    def push(
        self,
        inputs: npt.ArrayLike,
        lengths: npt.ArrayLike | None = None,
        *,
        dt: npt.ArrayLike | None = None,
        last: bool = False,
    ) -> Array:
        """Reads the next token of each sequence, or the next chunk of tokens.

        Parameters
        ----------
        inputs : (B,) token ids or (B, F) features of one step; (B, T) or (B, T, F) of a chunk
        lengths : (B,) integers in [0, T], optional
            With a chunk: the number of valid steps of each sequence.
        dt : (B,) of one step, (B, T) of a chunk, optional
            Intervals since the step before, for samples at uneven times (`rotrnn.Context`). Only with the engine
            "python", and layers in continuous time. A model that was trained with intervals (`timed`) needs them.
        last : bool
            From a tagger, return only the logits of each sequence's last step, which is faster; zero if it has none.

        Returns
        -------
        logits : array
            From a classifier (B, C), for the sequences read so far. From a tagger (of classes, bits or a language) (B,
            C) for one step or with `last`, or (B, T, C) for a chunk.

        Raises
        ------
        ValueError
            The shape does not fit, or a `timed` model gets no `dt`.
        NotImplementedError
            The engine or a layer does not take `dt`.
        """
        if lengths is None and dt is None and last is False and (logits := self._engine.read(inputs)) is not None:
            return logits
        args = Boundary("Stream.push")
        self.model.check_timed(args, dt)
        F = self._features
        x, steps = Boundary(args.op).any_array("inputs", inputs), 1 if F is None else 2
        wide = F is not None and x.shape[-1:] != (F,)
        if x.ndim not in (steps, steps + 1) or x.shape[0] != self.batch or wide:
            forms = f"(B,) or (B, T) with B={self.batch}"
            if F is not None:
                forms = f"(B, F) or (B, T, F) with B={self.batch}, F={F}"
            raise ValueError(f"Stream.push: inputs has shape {x.shape}, expected {forms}")
        one, last = x.ndim == steps, args.flag("last", last)
        if one and lengths is not None:
            raise ValueError("Stream.push: got lengths with a single step, expected lengths only with a chunk")
        if dt is not None:
            if self.engine != "python":
                what = f"Stream.push: got dt, which the engine {self.engine!r} does not support"
                raise NotImplementedError(f"{what}, expected a stream with engine='python'")
            args.bind("B", self.batch, "the stream")
            if not one:
                args.bind("T", x.shape[1], "inputs")
            dt = intervals(args, dt, "B" if one else "B T")
            dt = dt[:, None] if one else dt
        with Unchecked(self, "push", "inputs, or the stream's params, prepared, state or tokens, do not fit"):
            return self._engine.push(args, x, one, lengths, last, dt)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the state atomically as a safetensors file, with a digest of the model's settings.

        The parameters are not included. A complex array is stored as a real one with an additional last axis of size 2.
        """
        check_file("Stream.save", path)
        write_checkpoint(path, *self._contents(self.state, self.tokens))

    def _contents(self, state: State, tokens: npt.NDArray[np.int64]) -> tuple[dict[str, Array], Facts]:
        """Returns the arrays and the facts of a saved state."""
        arrays = {"tokens": tokens}
        for name, leaf in flatten_state(state):
            arrays[name] = leaf.view(leaf.real.dtype).reshape(*leaf.shape, 2) if np.iscomplexobj(leaf) else leaf
        kinds = {name: leaf.dtype.name for name, leaf in flatten_state(state)}
        return arrays, {"stream": self._digest, "dtypes": kinds, "numbers": self._engine.numbers}

    def load(self, path: str | os.PathLike[str]) -> None:
        """Loads a state that `save` wrote, on this machine or another, and continues from it.

        Raises
        ------
        FileNotFoundError
            The file does not exist.
        ValueError
            The file is damaged, is not a stream's state, or belongs to a model with other settings, to another batch
            size, to another engine, or to parameters of another dtype; or an array in it is not one of the
            model's state. The stream is unchanged.
        """
        check_file("Stream.load", path)
        self._restore(path, *read_checkpoint(path))

    def get_sequence(self, sequence: int) -> bytes:
        """Returns the state of one sequence, to continue it later in any place of any stream of this model.

        The bytes equal the file that `save` writes for a stream of one sequence, without parameters. The sequence is
        unchanged.

        Raises
        ------
        ValueError
            `sequence` is not one of 0 to B - 1.
        """
        one = Boundary("Stream.get_sequence").integer("sequence", sequence, 0, self.batch - 1)
        state, tokens = self._engine.state_of(one), self.tokens[one : one + 1]
        return packed("Stream.get_sequence", *self._contents(state, tokens))

    def set_sequence(self, sequence: int, state: bytes) -> None:
        """Continues one sequence from the bytes of `get_sequence`, of this or another stream, while the others go on.

        Raises
        ------
        TypeError
            `state` is not bytes.
        ValueError
            `sequence` is not one of 0 to B - 1, or as in `load`; also, with the engine "python", if a layer keeps every
            step and the sequences of this stream have read a different number of steps. The stream is unchanged.
        """
        one = Boundary("Stream.set_sequence").integer("sequence", sequence, 0, self.batch - 1)
        if not isinstance(state, bytes):
            raise TypeError(f"Stream.set_sequence: state is {an(type(state).__name__)}, expected bytes")
        name = "Stream.set_sequence: state"
        self._restore(name, *unpacked(name, state), sequence=one)

    def _restore(
        self, path: str | os.PathLike[str], arrays: dict[str, Array], facts: Facts, sequence: int | None = None
    ) -> None:
        """Continues from a saved state: all sequences, or one sequence from the state of a batch of one."""
        if facts.get("stream") != self._digest:
            what = "from a model with other settings" if "stream" in facts else "not a stream's state"
            raise ValueError(f"{path}: is {what}, expected a state saved by a stream of this model")
        tokens = arrays.pop("tokens", None)
        if tokens is None or tokens.dtype != np.int64 or tokens.ndim != 1:
            raise ValueError(f"{path}: has no tokens, expected the number of tokens that each sequence has read")
        if len(tokens) != (batch := self.batch if sequence is None else 1):
            raise ValueError(f"{path}: holds {plural(len(tokens), 'sequence')}, expected {batch}")
        numbers, expected = facts.get("numbers"), self._engine.numbers
        if numbers is not None and numbers != expected:  # older files do not record it
            raise ValueError(f"{path}: has numbers of {numbers!r:.20}, expected {expected} as the stream's parameters")
        try:
            check_steps("tokens", tokens)
            self._engine.restore(arrays, facts.get("dtypes"), tokens, sequence)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error

    def __reduce__(self) -> tuple[Any, ...]:
        arrays = dict(flatten_state(self.state))
        return _again, (self.model, self.params, self.batch, self.engine, self.weights, arrays, self.tokens)

    @cached_property
    def _digest(self) -> str:
        return hashlib.sha256(spelled_out(self.model).encode()).hexdigest()


def _again(
    model: SequenceModel, params: Params, batch: int, engine: str, weights: str, arrays: dict[str, Array],
    tokens: npt.NDArray[np.int64],
) -> Stream:  # fmt: skip
    """Returns the copy of a stream."""
    stream = Stream(model, params, batch, engine, weights)
    stream._engine.restore(arrays, {name: leaf.dtype.name for name, leaf in arrays.items()}, tokens)
    return stream
