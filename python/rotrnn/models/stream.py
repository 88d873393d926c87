"""Streaming inference: a model's state between tokens, which can be saved and loaded."""

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
        if batch < 1:
            raise ValueError(f"Stream: batch is {batch}, expected a positive integer")
        self.model, self.params = model, params
        self.batch = batch
        model.check_params(params)
        self.prepared = trusted(model.stack.prepare)(params["blocks"])
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
        x = np.asarray(inputs)
        if x.ndim not in (1 + features, 2 + features) or x.shape[0] != self.batch:
            forms = "(B, F) or (B, T, F)" if features else "(B,) or (B, T)"
            raise ValueError(f"Stream.push: inputs has shape {x.shape}, expected {forms} with B={self.batch}")
        one = x.ndim == 1 + features
        if one and lengths is not None:
            raise ValueError("Stream.push: got lengths with a single step, expected lengths only with a chunk")
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
                raise ValueError("Stream.push: a layer is bidirectional and has no state to keep")
            steps = ctx.lengths
            n = x.shape[1] if steps is None else steps
        logits, head = self.model.read(self.params, head, y, steps)
        self.state = stack, head
        self.tokens = self.tokens + n
        return logits[:, 0] if one and logits.ndim == 3 else logits

    def _step(self, x: Array, state: State) -> tuple[Array, State]:
        """Returns (the head's input (B, 1, D), state of the stack) after one step."""
        model, params = self.model, self.params
        model.stack.check_streams(Boundary("Stream.push"))
        z, _ = model.encoder.forward(params["encoder"], x[:, None], TRUSTED)
        y, state = trusted(model.stack.step)(params["blocks"], state, z[:, 0], self.prepared)
        y = y[:, None]
        return (y if model.norm is None else model.norm.forward(params["norm"], y, TRUSTED)[0]), state

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the state atomically as a safetensors file, with a digest of the model's settings.

        The parameters are not included. A complex array is stored as a real one with an additional last axis of size 2.
        """
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
            size.
        """
        arrays, facts = read_checkpoint(path)
        if facts.get("stream") != self._digest():
            what = "from a model with other settings" if "stream" in facts else "not a stream's state"
            raise ValueError(f"{path}: is {what}, expected a state saved by a stream of this model")
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
