"""The base class of all models: an encoder, a stack of blocks, an optional norm, and a head given by a subclass."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.devices.device import beside, is_array
from rotrnn.models.files import save_folder, save_model
from rotrnn.models.onnx_export import save_onnx
from rotrnn.models.stream import Stream
from rotrnn.nn.blocks.block import Block, ResidualStack, StackSaved, check_parts
from rotrnn.nn.blocks.dense import Dense, Embedding, TiedDense
from rotrnn.nn.blocks.norm import norm_backward
from rotrnn.nn.layer import (
    EVALUATION,
    Array,
    Context,
    Gather,
    Layer,
    Module,
    Params,
    State,
    StateForm,
    trusted,
    zero_state,
)
from rotrnn.nn.layers.linear import LinearRecurrence
from rotrnn.nn.packing import stepwise
from rotrnn.ops.boundary import INTEGERS, Boundary, on_host, rename
from rotrnn.ops.pointwise import cross_entropy

IGNORED = -1
"""A label that is ignored by losses and accuracies."""

NEEDS_DT = "dt is None, expected intervals, as the model was trained with; ones are even steps"
"""The end of the error where a `timed` model gets no intervals."""


class Loss(NamedTuple):
    """Mean loss over the labels that count, its gradient, and two masks.

    `counted` marks the labels that count, `right` the correctly predicted labels among them. The masks are (B, 1), or
    have the shape of a tagger's labels: (B, T), for bits (B, T, bits). For a regression `right` is None, and
    `reference` is the mean loss of predicting zero for every target.
    """

    mean: float
    dlogits: Array
    counted: Array
    right: Array | None
    reference: float = math.nan

    @property
    def total(self) -> int:
        """The number of labels that `mean` is the mean of."""
        return int(np.count_nonzero(self.counted))


class ModelSaved(NamedTuple):
    """The arrays that each part of the model saved for the backward pass."""

    encoder: Any
    blocks: StackSaved
    norm: Any
    head: Any


@dataclass(frozen=True)
class SequenceModel(Module, ABC):
    """From token ids (B, T) or features (B, T, F) to logits: the backbone of LRU (fig. 1) and RotRNN (fig. 1).

    Params: "encoder", "blocks" -> "0", "1", ..., "norm" if a norm follows the blocks, and the head's own.
    """

    output_forms: ClassVar[tuple[str, ...]] = ("B C",)
    time_axis: ClassVar[int] = 1
    """The axis of the inputs that is time."""
    ties: ClassVar[bool] = False
    """Whether the head can be a `TiedDense`."""

    of_classes: ClassVar[bool] = True
    """Whether a label is a class, and not bits or numbers."""

    encoder: Dense | Embedding
    stack: ResidualStack
    norm: Layer | None = field(default=None, kw_only=True)
    class_weights: tuple[float, ...] | None = field(default=None, kw_only=True, repr=False)
    """Weights of the loss, in evaluations too, a number for each class (`rotrnn.ops.cross_entropy`); for bits, weights
    of the ones of each bit. Not saved."""
    label_smoothing: float = field(default=0.0, kw_only=True, repr=False)
    """Label smoothing of the loss, in evaluations too; 0 if labels are not classes. Not saved."""
    timed: bool = field(default=False, kw_only=True, repr=False)
    """Whether the model was trained with intervals (`Context.dt`), as the file that it was loaded from says (`save`),
    or the estimator or the task of the recipe that it is of. Calls then need `dt`, and streams run in Python."""

    def __post_init__(self) -> None:
        super().__post_init__()
        *_, last = self.heads.values()
        if self.class_weights is not None and len(self.class_weights) != last.d_out:
            name, weights = type(self).__name__, len(self.class_weights)
            raise ValueError(f"{name}: class_weights has {weights} numbers, expected {last.d_out}, one for each class")
        if self.label_smoothing and not self.of_classes:
            name = type(self).__name__
            raise ValueError(f"{name}: label_smoothing is {self.label_smoothing}, expected 0: labels are not classes")
        if self.norm is not None:
            check_parts(self, self.stack.d_model, {"norm": self.norm})
        for name, head in self.heads.items():
            if isinstance(head, TiedDense):
                self._check_tied(name, head)

    def _check_tied(self, name: str, head: TiedDense) -> None:
        kind, encoder = type(self).__name__, self.encoder
        if not self.ties:
            raise ValueError(f"{kind}: {name} is a TiedDense, expected a Dense")
        if not isinstance(encoder, Embedding) or (encoder.vocab, encoder.d_model) != (head.d_out, head.d_in):
            raise ValueError(
                f"{kind}: {name} is {head}, but the encoder {encoder}, expected Embedding({head.d_out}, {head.d_in})"
            )

    # ---- the head, implemented by subclasses ----

    @property
    @abstractmethod
    def heads(self) -> dict[str, Dense]:
        """The dense maps of the head by their names in the parameters; the last one gives the logits."""

    @abstractmethod
    def head_forward(self, params: Params, x: Array, ctx: Context) -> tuple[Array, Any]:
        """Returns (logits, saved) from the last block's output (B, T, D)."""

    @abstractmethod
    def head_backward(
        self, params: Params, saved: Any, dlogits: Array, gather: Gather | None = None
    ) -> tuple[Array, Params]:
        """Returns (dx, gradients of the head's parameters). `gather` is the same as in forward's context."""

    @abstractmethod
    def read(self, params: Params, state: State, x: Array, lengths: Array | None) -> tuple[Array, State]:
        """Returns (logits, new state of the head) when a stream continues with x (B, T, D)."""

    @property
    def head_state_form(self) -> StateForm | None:
        """Returns the arrays of the state of `read`; None if it has no state."""
        return None

    @property
    def stepwise(self) -> bool:
        """Whether there are logits for each step."""
        return stepwise(self)

    def answers(self, logits: Array) -> Array:
        """Returns the most probable labels, of bits 1 where it is more probable than 0. Where a logit is NaN, it is
        `IGNORED`, which no correct answer equals."""
        given: Array = logits if is_array(logits) else np.asarray(logits)
        if not self.of_classes:
            return np.where(np.isnan(given), IGNORED, given > 0)
        return np.where(np.isnan(given).any(-1), IGNORED, given.argmax(-1))

    @property
    def weighted(self) -> dict[str, Any]:
        """The settings of the loss that are not 1 and 0 by default."""
        smoothing = {"label_smoothing": self.label_smoothing} if self.label_smoothing else {}
        return {"weights": self.class_weights, **smoothing}

    def loss(self, logits: Array, labels: Array, lengths: Array | None = None, weights: Array | None = None) -> Loss:
        """Returns the `Loss` of logits (B, C) for labels (B,). The terms of sequence b are multiplied by its weight, of
        `weights` (B,) if given; the number of labels that the mean is divided by does not change."""
        args = Boundary(f"{type(self).__name__}.loss")
        labels = args.array("labels", labels, "B", kinds=INTEGERS)
        try:
            mean, dlogits = cross_entropy(logits, labels, sample_weights=weights, **self.weighted)
        except (TypeError, ValueError) as error:
            rename(error, "cross_entropy: sample_weights", f"{args.op}: weights")
            rename(error, "cross_entropy:", f"{args.op}:")
            raise
        right = (self.answers(logits) == labels)[:, None]
        return Loss(mean, dlogits, np.ones_like(right), right)

    def count(self, labels: Array, lengths: Array | None = None) -> int:
        """Returns the number of labels that `loss` is the mean of."""
        return len(Boundary(f"{type(self).__name__}.count").integers("labels", labels, "B"))

    # ---- the same for all models ----

    @property
    def modules(self) -> dict[str, Any]:
        norm = {} if self.norm is None else {"norm": self.norm}
        return {"encoder": self.encoder, "blocks": self.stack, **norm, **self.heads}

    def bind_sizes(self, args: Boundary) -> None:
        if isinstance(self.encoder, Dense):
            args.bind("I", self.encoder.d_in, "the encoder")
        *_, last = self.heads.values()
        args.bind("C", last.d_out, "the head")

    def check_input(self, args: Boundary, name: str, x: Any) -> Any:
        form = self.encoder.input_forms[0]
        return args.integers(name, x, form) if isinstance(self.encoder, Embedding) else args.array(name, x, form)

    def encode(
        self, params: Params, inputs: Array, ctx: Context, state: State = None
    ) -> tuple[Array, tuple[Any, StackSaved, Any]]:
        """Returns (the head's input x (B, T, D), the saved arrays of encoder, blocks and norm)."""
        x, encoder = self.encoder.forward(params["encoder"], inputs, ctx)
        x, blocks = self.stack.forward(params["blocks"], x, ctx, state)
        if self.norm is None:
            return x, (encoder, blocks, None)
        x, norm = self.norm.forward(params["norm"], x, ctx)
        return x, (encoder, blocks, norm)

    def forward(
        self, params: Params, inputs: Array, ctx: Context = EVALUATION, state: State = None
    ) -> tuple[Array, ModelSaved]:
        """Returns (logits, saved). `state` is the state of the blocks before the first step, a tuple with one state per
        block (`zero_state`); the state after the inputs is ``saved.blocks.state``. A pool reads only these inputs. For
        a packed row (`Context.cu_seqlens`), a model with a pool returns logits (S, C), others (1, T, C)."""
        x, saved = self.encode(params, inputs, ctx, state)
        logits, head = self.head_forward(params, x, ctx)
        return logits, ModelSaved(*saved, head)

    def backward(self, params: Params, saved: ModelSaved, dlogits: Array, gather: Gather | None = None) -> Params:
        """Returns the gradients of all parameters, nested like `params`. `gather` is the same as in forward's
        context."""
        return trusted(self.backward_all)(params, saved, dlogits, None, gather)[1]

    def backward_all(
        self, params: Params, saved: ModelSaved, dlogits: Array, dstate: State = None, gather: Gather | None = None
    ) -> tuple[Array | None, Params, State]:
        """Returns (dinputs, dparams, dstate0), as a layer's backward does; token ids have no gradient (None)."""
        grads: Params = {}

        def below_head() -> Array:
            dx, dhead = self.head_backward(params, saved.head, dlogits, gather)
            grads.update(dhead)
            if self.norm is not None:
                dx, grads["norm"] = norm_backward(self.norm, params["norm"], saved.norm, dx, gather)
            return dx

        # no local name: each gradient is freed as soon as the next one is computed
        stack_backward = trusted(self.stack.backward)
        dx, dblocks, dstate0 = stack_backward(params["blocks"], saved.blocks, below_head(), dstate, gather)
        dinputs, dencoder = trusted(self.encoder.backward)(params["encoder"], saved.encoder, dx)
        return dinputs, {"encoder": dencoder, "blocks": dblocks, **grads}, dstate0

    def check_context(self, args: Boundary, ctx: Context) -> Context:
        self.check_timed(args, ctx.dt)
        return super().check_context(args, ctx)

    def check_timed(self, args: Boundary, dt: Any) -> None:
        """Raises ValueError if the model was trained with intervals and is given none."""
        if self.timed and dt is None:
            raise ValueError(f"{args.op}: {NEEDS_DT}")

    def check_state(self, args: Boundary, name: str, state: State) -> None:
        self.stack.check_state(args, name, state)

    def zero_state(self, batch: int, dtype: npt.DTypeLike = np.float32) -> tuple[State, ...]:
        """Returns the state of the blocks before the first step, as arrays of zeros.

        Raises
        ------
        ValueError
            A layer is bidirectional, keeps every step, or does not declare its state.
        TypeError
            The dtype is not float32 or float64.
        """
        args = Boundary("zero_state")
        batch, real = args.integer("batch", batch), args.real_dtype("dtype", dtype)
        return tuple(zero_state(f"block {i}", block.layer, batch, real) for i, block in enumerate(self.stack.blocks))

    def stream(self, params: Params, batch: int = 1, engine: str = "auto", weights: str = "exact") -> Stream:
        """Returns a `Stream` for streaming inference: it reads a token or a chunk at a time and keeps the state."""
        return Stream(self, params, batch, engine, weights)

    def save(self, path: str | os.PathLike[str], params: Params, *, timed: bool | None = None) -> None:
        """Writes the model and its parameters to one file, which `rotrnn.load` reads, and the C library.

        It is a safetensors file: the arrays have the names of the flattened parameters, and the metadata the settings
        of every part (`rotrnn.models.files`). For the C library it also has the model as lines, and a few further
        arrays, whose names begin with "program.". It is written atomically, and verified by a checksum when it is read.
        Warns of parameters of float32 and float64 together, which the C library refuses.

        Parameters
        ----------
        timed : bool, optional
            Whether the model was trained with intervals (`rotrnn.Context.dt`). Loaded, it then needs `dt` in every
            call, and the C library, which would read samples as evenly spaced, refuses the file. Default:
            `model.timed`, which `load` sets as the file says.

        Raises
        ------
        NotImplementedError
            `timed` is True, and a layer takes no intervals.
        ValueError
            A parameter is missing, has another shape or is not finite; or a part is a class of your own that `load`
            could not find. Nothing is written.
        OSError
            The file cannot be written.
        """
        save_model(path, self, params, timed=timed)

    def save_pretrained(self, folder: str | os.PathLike[str], params: Params, *, timed: bool | None = None) -> None:
        """Writes the model and its parameters to a folder, which `rotrnn.from_pretrained` reads.

        It has the layout of Hugging Face: model.safetensors is the file of `save`, and config.json repeats the settings
        as JSON, for other programs. `timed` as in `save`.

        Raises
        ------
        ValueError, OSError
            As `save`, or `folder` is a file.
        """
        save_folder(folder, self, params, timed=timed)

    def save_onnx(
        self, path: str | os.PathLike[str], params: Params, *, lengths: bool = False, state: bool = False
    ) -> None:
        """Writes the model and its parameters as an ONNX file, for programs that run such graphs.

        It computes `forward` in evaluation mode, for any batch and time from 1; the input is named "inputs" (token ids
        are int64, and those outside the vocabulary an error of the runtime, except in padding), the output "logits".
        Classifiers and taggers whose layers are LRU, S5, RotRNN, RopeMemory, S4D or programs (`rotrnn.nn.program`),
        alone, in Griffin or with a stored history; no recurrence may have a window. Needs onnx (pip install
        'rotrnn[onnx]').

        Parameters
        ----------
        lengths : bool
            Whether the graph has an input "lengths" (batch,) int64, the number of valid steps of each sequence, from 0
            to time, which a graph does not check. Logits of a tagger at padded steps mean nothing. By default all
            sequences have the same length.
        state : bool
            Whether the graph goes on from a state: it has inputs "state_0", "state_1", ... with outputs "next_state_0",
            ... of the same shapes (batch, ...) and dtypes; an axis "past" has a row for each earlier step. Zeros, and
            no such rows, are the state before the first step. A sequence may then come in pieces of any number of
            steps from 1, as in a `Stream`; a classifier's logits are for all steps so far.

        Raises
        ------
        ImportError
            onnx is not installed.
        ValueError, OSError
            As `save`, or a part cannot be exported; `state` is True and a layer is bidirectional; the model is `timed`;
            or its arrays have 2 GB or more, the limit of an ONNX file.
        """
        save_onnx(path, self, params, lengths=lengths, state=state)

    def report(self, saved: ModelSaved) -> dict[str, float]:
        """Returns the layers' reports of a forward pass (`Recurrent.report`), with the keys "block.name"."""
        return {
            f"{i}.{name}": float(value)
            for i, (block, one) in enumerate(self._blocks(saved))
            for name, value in block.report(one).items()
        }

    def token_norms(self, saved: ModelSaved) -> dict[int, Array]:
        """Returns the norms (B, T) of the maps of tokens, of each block that iterates to a fixed point, by its number
        (`Recurrent.token_norms`)."""
        found = {i: block.token_norms(one) for i, (block, one) in enumerate(self._blocks(saved))}
        return {i: one for i, one in found.items() if one is not None}

    def state_norms(self, params: Params, inputs: Array, ctx: Context = EVALUATION) -> Array:
        """Returns |h_t| (blocks, T) of each block's recurrence (forward direction), the mean over sequences that reach
        t.

        Only blocks whose layer has one vector h_t have a row (see `Recurrent.state_norms`).
        """
        args = Boundary(f"{type(self).__name__}.state_norms")
        args.one_of("ctx", ctx, Context)
        if ctx.cu_seqlens is not None or ctx.reset is not None:
            raise ValueError(f"{args.op}: got a packed row, expected lengths: its means are over sequences at a step")
        inputs = args.any_array("inputs", inputs)
        _, saved = self.forward(params, inputs, replace(ctx, fused=False))  # the fused pass keeps no states
        found = [block.state_norms(one) for block, one in self._blocks(saved)]
        norms = [one for one in found if one is not None]
        if not norms:
            return np.zeros((0, inputs.shape[-1 - isinstance(self.encoder, Dense)]))
        B, T = norms[0].shape
        lengths = np.full(B, T) if ctx.lengths is None else self.flat_lengths(on_host(args.op, "lengths", ctx.lengths))
        reached = (lengths[:, None] > np.arange(T)).sum(0)
        return np.stack(norms).sum(1) / beside(np.maximum(reached, 1), norms[0])

    def flat_lengths(self, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the lengths of the sequences that the stack sees."""
        return lengths

    def eigenvalues(self, params: Params) -> list[Array]:
        """Returns the eigenvalues (N,) complex of the transition of each block with a linear recurrence, also inside a
        stored history or Griffin's branches."""
        self.arrays(params)
        layers: list[Any] = [block.layer for block in self.stack.blocks]
        return [
            layer.eigenvalues(params["blocks"][str(i)]["layer"])
            for i, layer in enumerate(layers)
            if isinstance(layer.core, LinearRecurrence)
        ]

    def _blocks(self, saved: ModelSaved) -> Iterator[tuple[Block, Any]]:
        return zip(self.stack.blocks, saved.blocks.blocks, strict=True)
