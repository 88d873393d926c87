"""Streaming inference: a model's state between tokens, which can be saved and loaded."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rotrnn._cpu import MOST_STEPS
from rotrnn._support.checkpoint import read_checkpoint, write_checkpoint
from rotrnn._support.text import plural
from rotrnn.nn.blocks.dense import Dense
from rotrnn.nn.layer import TRUSTED, Array, Context, Params, State, flatten_state, trusted, unflatten_state
from rotrnn.nn.module import Unchecked, check_form, in_order
from rotrnn.ops.boundary import Boundary, rename

if TYPE_CHECKING:
    from rotrnn.models.model import SequenceModel


class Stream:
    """Streaming inference: reads a batch of sequences token by token or in chunks, in constant memory.

    (Memory, and the time of a token, grow with two layers that have no window: attention keeps every key and value, and
    wrope_memory every state.) `model.stream(params)` creates a stream. Its
    output equals that of the model's forward in evaluation mode on all inputs pushed so far, up to rounding. For layers
    that iterate to a fixed point, it is equal up to their `tol`; FPMamba may reach another of its fixed points (see
    `inference_gap`). Everything that does not depend on time is computed once, when the stream is created: after a
    change of `params`, create a new stream.

    Attributes
    ----------
    state : tuple or None
        State of the stack and of the head: arrays whose first axis is the batch; None before the first token.
    tokens : (B,) int64
        Number of tokens that each sequence has read.
    """

    def __init__(self, model: SequenceModel, params: Params, batch: int = 1) -> None:
        batch = Boundary("Stream").integer("batch", batch, 1)
        model.check_params(params)
        self.model, self.params = model, in_order(params)
        self.batch = batch
        self.prepared = trusted(model.stack.prepare)(self.params["blocks"])
        self.reset()

    def reset(self) -> None:
        """Resets the stream to its state before the first token."""
        self.state: State = None
        self.tokens = np.zeros(self.batch, np.int64)

    def push(self, inputs: npt.ArrayLike, lengths: npt.ArrayLike | None = None) -> Array:
        """Reads the next token of each sequence, or the next chunk of tokens.

        Parameters
        ----------
        inputs : (B,) token ids or (B, F) features of one step; (B, T) or (B, T, F) of a chunk
        lengths : (B,) integers in [0, T], optional
            With a chunk: the number of valid steps of each sequence.

        Returns
        -------
        logits : array
            From a classifier (B, C), for the sequences read so far. From a tagger (of classes, bits or a language) (B,
            C) for one step, or (B, T, C) for a chunk.

        Raises
        ------
        ValueError
            The shape does not fit, or a layer is bidirectional.
        """
        features = isinstance(self.model.encoder, Dense)
        args = Boundary("Stream.push")
        x = Boundary(args.op).any_array("inputs", inputs)
        if x.ndim not in (1 + features, 2 + features) or x.shape[0] != self.batch:
            forms = "(B, F) or (B, T, F)" if features else "(B,) or (B, T)"
            raise ValueError(f"Stream.push: inputs has shape {x.shape}, expected {forms} with B={self.batch}")
        one = x.ndim == 1 + features
        if one and lengths is not None:
            raise ValueError("Stream.push: got lengths with a single step, expected lengths only with a chunk")
        with Unchecked(self, "push", "inputs, or the stream's params, prepared, state or tokens, do not fit"):
            stack, head = (None, None) if self.state is None else self.state
            try:
                y, stack, steps = self._step(args, x, stack) if one else self._chunk(args, x, lengths, stack)
            except (TypeError, ValueError) as error:
                rename(error, "embedding: ids", f"{args.op}: inputs")
                raise
            logits, head = self.model.read(self.params, head, y, steps)
            tokens = self.tokens + (y.shape[1] if steps is None else steps)
        self.state, self.tokens = (stack, head), tokens
        return logits[:, 0] if one and logits.ndim == 3 else logits

    def _step(self, args: Boundary, x: Array, state: State) -> tuple[Array, State, None]:
        """Returns (the head's input (B, 1, D), state of the stack, None) after one step."""
        model, params = self.model, self.params
        model.stack.check_streams(args)
        model.bind_sizes(args)
        x = model.check_input(args, "inputs", x[:, None])
        z, _ = model.encoder.forward(params["encoder"], x, TRUSTED)
        y, state = trusted(model.stack.step)(params["blocks"], state, z[:, 0], self.prepared)
        y = y[:, None]
        return (y if model.norm is None else model.norm.forward(params["norm"], y, TRUSTED)[0]), state, None

    def _chunk(
        self, args: Boundary, x: Array, lengths: npt.ArrayLike | None, state: State
    ) -> tuple[Array, State, npt.NDArray[np.int64] | None]:
        """Returns (the head's input (B, T, D), state of the stack, checked lengths) after a chunk."""
        model = self.model
        model.bind_sizes(args)
        x = model.check_input(args, "inputs", x)
        ctx = model.check_context(args, Context(lengths))  # type: ignore[arg-type]  # checked here
        y, saved = model.encode(self.params, x, ctx, state)
        state = saved[1].state
        if any(one is None for one in state):
            raise ValueError("Stream.push: a layer is bidirectional and has no state to keep")
        return y, state, ctx.lengths

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the state atomically as a safetensors file, with a digest of the model's settings.

        The parameters are not included. A complex array is stored as a real one with an additional last axis of size 2.
        """
        _check_path("Stream.save", path)
        arrays = {"tokens": self.tokens}
        for name, leaf in flatten_state(self.state):
            arrays[name] = leaf.view(leaf.real.dtype).reshape(*leaf.shape, 2) if np.iscomplexobj(leaf) else leaf
        kinds = {name: leaf.dtype.name for name, leaf in flatten_state(self.state)}
        write_checkpoint(path, arrays, {"stream": self._digest(), "dtypes": kinds})

    def load(self, path: str | os.PathLike[str]) -> None:
        """Loads a state that `save` wrote, on this machine or another, and continues from it.

        Raises
        ------
        FileNotFoundError
            The file does not exist.
        ValueError
            The file is damaged, is not a stream's state, or belongs to a model with other settings or to another batch
            size; or an array in it is not one of the model's state. The stream is unchanged.
        """
        _check_path("Stream.load", path)
        arrays, facts = read_checkpoint(path)
        if facts.get("stream") != self._digest():
            what = "from a model with other settings" if "stream" in facts else "not a stream's state"
            raise ValueError(f"{path}: is {what}, expected a state saved by a stream of this model")
        tokens = arrays.pop("tokens", None)
        if tokens is None or tokens.dtype != np.int64 or tokens.ndim != 1:
            raise ValueError(f"{path}: has no tokens, expected the number of tokens that each sequence has read")
        if len(tokens) != self.batch:
            raise ValueError(f"{path}: holds {plural(len(tokens), 'sequence')}, expected {self.batch}")
        try:
            _check_steps("tokens", tokens)
            self.state = self._restored(arrays, facts.get("dtypes"))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error
        self.tokens = tokens

    def _restored(self, arrays: dict[str, Array], dtypes: Any) -> State:
        """Returns the state from the arrays of `save`, checked against the model. TypeError or ValueError, with the
        array's name, if it is not a state of the model."""
        if not (isinstance(dtypes, dict) and dtypes.keys() == arrays.keys()):
            raise ValueError("does not list the dtypes of its arrays")
        flat = {name: _plain(name, leaf, dtypes[name]) for name, leaf in arrays.items()}
        nested = unflatten_state(flat)
        if nested is None:
            return None
        if others := [name for name in flat if name.partition(".")[0] != "state"]:
            raise ValueError(f"has {others[0]}, which is not expected")
        if not isinstance(nested, tuple) or len(nested) > 2:
            raise ValueError("state is not a tuple of the states of the stack and of the head")
        stack, head = (*nested, None)[:2]
        args = Boundary("Stream.load")
        args.bind("B", self.batch, "the stream")
        self.model.stack.check_state(args, "state.0", stack)
        if (form := self.model.head_state_form) is None and head is not None:
            raise ValueError("has state.1, but the head of the model has no state")
        if form is not None:
            check_form(args, "state.1", head, form)
        for name, leaf in flat.items():
            if leaf.dtype.kind in "iu":
                _check_steps(name, leaf)
        return stack, head

    def _digest(self) -> str:
        return hashlib.sha256(repr(self.model).encode()).hexdigest()


def _check_path(call: str, path: str | os.PathLike[str]) -> None:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{call}: path is a {type(path).__name__}, expected the path of a file")


def _plain(name: str, leaf: Array, dtype: Any) -> Array:
    """Returns an array of a file in the dtype that it had: a complex one is stored with a last axis of two parts."""
    if dtype == leaf.dtype.name:
        return np.ascontiguousarray(leaf).reshape(leaf.shape)
    if dtype in ("complex64", "complex128") and leaf.shape[-1:] == (2,):
        whole = np.dtype(dtype)
        if leaf.dtype == np.zeros((), whole).real.dtype:
            joined: Array = np.ascontiguousarray(leaf).view(whole)[..., 0]
            return joined
    raise ValueError(f"{name} has dtype {leaf.dtype} and shape {leaf.shape}, which does not hold {dtype!r:.20}")


def _check_steps(name: str, count: Array) -> None:
    """Raises ValueError if a number of steps is negative or above `MOST_STEPS`."""
    wrong = (count < 0) | (count > MOST_STEPS)
    if wrong.any():
        raise ValueError(f"{name} is {count[wrong][0]}, expected a number of steps from 0 to {MOST_STEPS}")
