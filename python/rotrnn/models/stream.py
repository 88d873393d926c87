"""Inference that goes on: a model's state between tokens, kept, saved and loaded."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rotrnn._support.checkpoint import read_checkpoint, write_checkpoint
from rotrnn.nn.blocks.dense import Dense
from rotrnn.nn.layer import TRUSTED, Array, Context, Params, State, flatten_state, trusted, unflatten_state
from rotrnn.ops.boundary import Boundary

if TYPE_CHECKING:
    from rotrnn.models.model import SequenceModel


class Stream:
    """A batch of sequences that a model reads as they come, in memory that does not grow with time.

    (One layer's does: attention keeps every key and value.) `model.stream(params)` makes one. What it gives is what
    the model's forward gives in evaluation mode on all that was pushed so far, to rounding (of layers that iterate to a
    fixed point, to their `tol`; of FPMamba, another of its fixed points: `inference_gap`). What time does
    not touch is folded once here: after a change of `params`, make a new stream.

    Attributes
    ----------
    state : tuple or None
        State of the stack and of the head: arrays with the batch axis first; None before the first token.
    tokens : (B,) int64
        How many tokens each sequence has seen.
    """

    def __init__(self, model: SequenceModel, params: Params, batch: int = 1) -> None:
        if batch < 1:
            raise ValueError(f"Stream: batch is {batch}, expected a positive integer")
        self.model, self.params = model, params
        self.batch = batch
        model.check_params(params)
        self.prepared = trusted(model.stack.prepare)(params["blocks"])
        self.reset()

    def reset(self) -> None:
        """Back to before the first token."""
        self.state: State = None
        self.tokens = np.zeros(self.batch, np.int64)

    def push(self, inputs: npt.ArrayLike, lengths: npt.ArrayLike | None = None) -> Array:
        """Goes on with one token of each sequence, or with a chunk of them.

        Parameters
        ----------
        inputs : (B,) token ids or (B, F) features of one step; (B, T) or (B, T, F) of a chunk
        lengths : (B,) integers in [0, T], optional
            With a chunk: how many of its steps each sequence has.

        Returns
        -------
        logits : array
            Of a classifier (B, C), of the sequences so far. Of a tagger (of classes, bits or a language) (B, C) of
            the step, or (B, T, C) of the chunk.

        Raises
        ------
        ValueError
            The shape does not fit, or a layer runs in both directions.
        """
        features = isinstance(self.model.encoder, Dense)
        x = np.asarray(inputs)
        if x.ndim not in (1 + features, 2 + features) or x.shape[0] != self.batch:
            forms = "(B, F) or (B, T, F)" if features else "(B,) or (B, T)"
            raise ValueError(f"Stream.push: inputs has shape {x.shape}, expected {forms} with B={self.batch}")
        one = x.ndim == 1 + features
        if one and lengths is not None:
            raise ValueError("Stream.push: lengths was given with a single step, expected it with a chunk alone")
        stack, head = (None, None) if self.state is None else self.state
        if one:
            y, stack = self._step(x, stack)
            n: npt.NDArray[np.int64] | int = 1
            steps = None
        else:
            args = Boundary("Stream.push")
            self.model.bind_sizes(args)
            x = self.model.check_input(args, "inputs", x)
            ctx = self.model.check_context(args, Context(None if lengths is None else np.asarray(lengths)))
            y, saved = self.model.encode(self.params, x, ctx, stack)
            stack = saved[1].state
            if any(state is None for state in stack):
                raise ValueError("Stream.push: a layer runs in both directions, and keeps no state")
            steps = ctx.lengths
            n = x.shape[1] if steps is None else steps
        logits, head = self.model.read(self.params, head, y, steps)
        self.state = stack, head
        self.tokens = self.tokens + n
        return logits[:, 0] if one and logits.ndim == 3 else logits

    def _step(self, x: Array, state: State) -> tuple[Array, State]:
        """(output of the trunk (B, 1, D), state of the stack) after one step."""
        model, params = self.model, self.params
        model.stack.check_streams(Boundary("Stream.push"))
        z, _ = model.encoder.forward(params["encoder"], x[:, None], TRUSTED)
        y, state = trusted(model.stack.step)(params["blocks"], state, z[:, 0], self.prepared)
        y = y[:, None]
        return (y if model.norm is None else model.norm.forward(params["norm"], y, TRUSTED)[0]), state

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the state as safetensors, there whole or not at all; with a digest of the model's settings.

        The parameters are not in it. Complex arrays are stored as real ones with an axis of two more.
        """
        arrays = {"tokens": self.tokens}
        for name, leaf in flatten_state(self.state):
            arrays[name] = leaf.view(leaf.real.dtype).reshape(*leaf.shape, 2) if np.iscomplexobj(leaf) else leaf
        kinds = {name: leaf.dtype.name for name, leaf in flatten_state(self.state)}
        write_checkpoint(path, arrays, {"stream": self._digest(), "dtypes": kinds})

    def load(self, path: str | os.PathLike[str]) -> None:
        """Goes on from a state that `save` wrote, on this machine or another.

        Raises
        ------
        FileNotFoundError
            There is none.
        ValueError
            The file is damaged, is no state of a stream, or one of a model with other settings or another batch.
        """
        arrays, facts = read_checkpoint(path)
        if facts.get("stream") != self._digest():
            what = "of a model with other settings" if "stream" in facts else "no state of a stream"
            raise ValueError(f"{path}: is {what}, expected a state that this model's stream saved")
        tokens = arrays.pop("tokens")
        if tokens.shape != (self.batch,):
            raise ValueError(f"{path}: holds {len(tokens)} sequences, expected {self.batch}")
        flat = {
            name: leaf.view(facts["dtypes"][name])[..., 0] if "complex" in facts["dtypes"][name] else leaf
            for name, leaf in arrays.items()
        }
        nested = unflatten_state({name: np.ascontiguousarray(leaf) for name, leaf in flat.items()})
        self.state = None if nested is None else (nested[0], nested[1] if len(nested) > 1 else None)
        self.tokens = tokens

    def _digest(self) -> str:
        return hashlib.sha256(repr(self.model).encode()).hexdigest()
