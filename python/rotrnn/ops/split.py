"""Sequences that are split over processes: each process has a piece of time, and only states pass between them.

A piece of the recurrence h_t = a_t h_{t-1} + x_t is an affine map of the state before it, ``h -> p h + f``: p is the
product of its transitions, and f its last state from zero. Each process sends its map to all others, once, and applies
the maps of the pieces before its own, in their order. That gives the state that its piece starts from, with which the
ordinary op then runs. Backward, the adjoint recurrence passes gradients of states the other way, in the same manner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from rotrnn._cpu import MOST_NUMBERS
from rotrnn.devices.device import HOST
from rotrnn.ops.boundary import Array, Boundary
from rotrnn.ops.scan import LANES, diagonal_scan

__all__ = ["Ranks", "split_end", "split_lengths", "split_start"]

FORM = 128
"""Bytes of a message that describe its numbers."""
CHUNK = 1 << 17
"""Numbers of a piece scanned at a time for its map, small enough for the cache."""


@runtime_checkable
class Ranks(Protocol):
    """The processes that share a sequence, in the order of their pieces: a `rotrnn.training.parallel.World` is one."""

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""

    @property
    def size(self) -> int:
        """The number of processes."""

    def gather(self, x: Array) -> list[Array]:
        """Returns the vector x of each process, in their order. Their lengths may differ."""


class Affine(NamedTuple):
    """The map ``h -> power h + last`` of a piece, in double precision: power (1, N) or (B, N), last (B, N)."""

    power: Array
    last: Array

    def __call__(self, state: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):  # a power may overflow, which leaves zeros as they are
            return np.where(state == 0, 0, self.power * state) + self.last

    def after(self, first: Affine) -> Affine:
        """Returns the map that applies `first`, and then this one."""
        with np.errstate(over="ignore", invalid="ignore"):
            return Affine(self.power * first.power, self(first.last))


Inputs = Callable[[slice], Array]
"""Returns the inputs (B, n, N) of some steps of a piece."""


def map_of(
    a: Array, inputs: Inputs, shape: tuple[int, int], lengths: Array | None, *, reverse: bool, adjoint: bool = False
) -> Affine:
    """Returns the map of a piece with `shape` (B, T), of ``h_t = a_t h_{t-1} + x_t`` or, if `adjoint`, of
    ``k_t = conj(a_t) (x_t + k_{t+1})``, whose k_0 is the gradient of the state before the piece."""
    (B, T), N = shape, a.shape[-1]
    wide = np.result_type(a, np.float64)
    found = Affine(np.ones((1, N), wide), np.zeros((B, N), wide))
    steps = max(1, CHUNK // max(1, B * N))
    back = reverse != adjoint
    firsts = range(0, T, steps)
    for first in reversed(firsts) if back else firsts:
        part = slice(first, min(first + steps, T))
        valid = np.full(1, part.stop - part.start) if lengths is None else np.clip(lengths - first, 0, steps)
        one = _map_of_chunk(
            a if a.ndim == 1 else a[:, part], inputs(part), None if lengths is None else valid, valid, back, adjoint
        )
        found = one.after(found)
    return found


def _map_of_chunk(a: Array, x: Array, lengths: Array | None, valid: Array, back: bool, adjoint: bool) -> Affine:
    wide = np.result_type(a, np.float64)
    if adjoint:
        a = a.conj()
    with np.errstate(over="ignore", invalid="ignore"):
        if a.ndim == 3:
            there = np.arange(a.shape[1]) < valid[:, None]
            power = np.where(there[..., None], a, 1).prod(1, dtype=wide)
            x = a * x if adjoint else x
        else:
            power = a.astype(wide) ** valid[:, None]
    last = diagonal_scan(a, x, reverse=back, lengths=lengths, return_state=True)[1]
    return Affine(power, a * last if adjoint and a.ndim == 1 else last)


def pass_on(
    op: str, name: str, split: Ranks, own: Affine, given: Array | None, dtype: np.dtype[Any], *, reverse: bool
) -> Array | None:
    """Returns the state (B, N) that this process's piece starts from, in double precision; None if it is zero.

    The processes send their maps in one message: `FORM` bytes, the power and the last state. `given` is the state
    `name` at the first piece, if any. If `reverse`, the first piece belongs to the last process. `dtype` is the dtype
    of the call, which must be the same in all processes.
    """
    B, N = own.last.shape
    order = range(split.size)[::-1] if reverse else range(split.size)
    if given is not None:
        if split.rank != order[0]:
            raise ValueError(
                f"{op}: {name} was given to process {split.rank} of {split.size}, expected only by process "
                f"{order[0]}, where time {'ends' if name == 'dhT' else 'begins'}"
            )
        own = own._replace(last=own(given))
    form = f"{op} with B={B}, N={N}, {dtype}" + (" from the end" if reverse else "")
    head = form.encode().ljust(FORM)[:FORM]
    body = np.concatenate([own.power.ravel(), own.last.ravel()])
    messages = split.gather(np.concatenate([np.frombuffer(head, np.uint8), body.view(np.uint8)]))
    forms = [bytes(one[:FORM]).decode().rstrip() for one in messages]
    for rank, other in enumerate(forms):
        if other != forms[0]:
            raise ValueError(f"process {rank} calls {other}, expected {forms[0]} as process 0")
    state = given
    for rank in order:
        if rank == split.rank:
            break
        numbers = messages[rank][FORM:].copy().view(body.dtype)
        cut = len(numbers) - B * N
        one = Affine(numbers[:cut].reshape(cut // N if N else 1, N), numbers[cut:].reshape(B, N))
        state = one.last if state is None else one(state)  # the first process's state includes the given state
    return state


def on_this_host(args: Boundary) -> None:
    """Raises NotImplementedError unless the arguments are NumPy arrays."""
    if args.device is not HOST:
        raise NotImplementedError(f"{args.op}: split sequences are not supported on {args.device.name}, only on cpu")


def check_split(args: Boundary, split: Any) -> None:
    """Raises TypeError unless `split` are processes that share a sequence."""
    if not isinstance(split, Ranks):
        raise TypeError(
            f"{args.op}: split is {split!r:.80}, expected the processes that share each sequence, such as "
            "rotrnn.training.parallel.world()"
        )


def split_start(
    a: npt.ArrayLike,
    x: npt.ArrayLike,
    h0: npt.ArrayLike | None = None,
    *,
    split: Ranks,
    reverse: bool = False,
    lengths: npt.ArrayLike | None = None,
) -> Array | None:
    """State from which this process's piece of a `diagonal_scan` starts.

    A sequence of ``T = sum_r T_r`` steps is split over processes r. Each calls, with its own piece of T_r >= 0 steps,

        h0 = split_start(a, x, h0, split=processes)
        h = diagonal_scan(a, x, h0)
        dhT = split_end(dh, a, dhT, split=processes)
        da, dx, dh0 = diagonal_scan_backward(dh, a, h, h0, dhT=dhT)

    and the pieces of h and dx equal the whole scan's up to rounding. The sum of a constant a's gradients over the
    processes is the gradient of the whole.

    Sends one message to each other process: 128 bytes, and in double precision B N numbers and the power of a, N
    numbers, or B N if `lengths` are given or a varies in time.

    Parameters
    ----------
    a, x, reverse, lengths
        As in `diagonal_scan`, for this piece: a is (N,) or (B, T_r, N), x (B, T_r, N), and lengths are the number of
        valid steps within the piece (`split_lengths`).
    h0 : (B, N), optional
        Initial state of the whole sequence. Only for the process whose piece comes first (the last process if
        `reverse`).
    split : Ranks
        The processes in the order of their pieces, such as ``rotrnn.training.parallel.world()``. All must make the same
        call. If a process may fail before the call, use ``with world.together()``, which tells the other processes.

    Returns
    -------
    (B, N), or None at the first piece without `h0`
        In the common dtype of the arguments.

    Raises
    ------
    TypeError, ValueError
        As `diagonal_scan`; or `h0` is given elsewhere than at the first piece; or, in all processes, their B, N or
        dtypes differ.
    NotImplementedError
        The arrays are not on the CPU.
    """
    args = Boundary("split_start")
    reverse = args.flag("reverse", reverse)
    ax = args.array("x", x, "B T N", kinds=LANES)
    aa = args.array("a", a, "N", "B T N", kinds=LANES)
    ah0 = args.optional("h0", h0, "B N", kinds=LANES)
    return _passed(args, "h0", split, aa, ax, ah0, args.lengths(lengths), reverse=reverse, adjoint=False)


def split_end(
    dh: npt.ArrayLike,
    a: npt.ArrayLike,
    dhT: npt.ArrayLike | None = None,
    *,
    split: Ranks,
    reverse: bool = False,
    lengths: npt.ArrayLike | None = None,
) -> Array | None:
    """Gradient of the final state of this process's piece, for `diagonal_scan_backward`; see `split_start`.

    It is the gradient that reaches this piece from later pieces: with ``k_t = conj(a_t) (dh_t + k_{t+1})``, the k at
    the first step of the next piece. Sends one message, as large as in `split_start`.

    Parameters
    ----------
    dh : (B, T_r, N)
        Gradient of this piece of `h`.
    a, split, reverse, lengths
        As given to `split_start`.
    dhT : (B, N), optional
        Gradient of the final state of the whole sequence. Only for the process whose piece comes last.

    Returns
    -------
    (B, N), or None at the last piece without `dhT`

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        As `split_start`.
    """
    args = Boundary("split_end")
    reverse = args.flag("reverse", reverse)
    adh = args.array("dh", dh, "B T N", kinds=LANES)
    aa = args.array("a", a, "N", "B T N", kinds=LANES)
    adhT = args.optional("dhT", dhT, "B N", kinds=LANES)
    return _passed(args, "dhT", split, aa, adh, adhT, args.lengths(lengths), reverse=reverse, adjoint=True)


def _passed(
    args: Boundary, name: str, split: Ranks, a: Array, x: Array, given: Array | None, lengths: Any, *, reverse: bool,
    adjoint: bool,
) -> Array | None:  # fmt: skip
    on_this_host(args)
    check_split(args, split)
    a, x, given = args.common(a, x, given)
    own = map_of(a, lambda steps: x[:, steps], x.shape[:2], lengths, reverse=reverse, adjoint=adjoint)
    state = pass_on(args.op, name, split, own, given, x.dtype, reverse=reverse != adjoint)
    return None if state is None else state.astype(x.dtype)


def split_lengths(lengths: npt.ArrayLike, seq_len: int, *, split: Ranks) -> npt.NDArray[np.int64]:
    """Number of valid steps (B,) in this process's piece of each sequence. Padding is at the end of the whole.

    Parameters
    ----------
    lengths : (B,) integers
        Number of valid steps of each whole sequence.
    seq_len : int
        T_r, the number of steps in this process's piece.
    split : Ranks
        The processes in the order of their pieces; they tell each other their T_r.

    Raises
    ------
    TypeError, ValueError
        Wrong dtype or shape, or, in all processes, a length beyond the sum of all T_r.
    """
    args = Boundary("split_lengths")
    check_split(args, split)
    seq_len = args.integer("seq_len", seq_len, 0, MOST_NUMBERS)
    sizes = [int(one[0]) for one in split.gather(np.array([seq_len], np.int64))]
    args.bind("B", np.size(lengths), "lengths")
    valid = args.counts("lengths", lengths, sum(sizes), f"T={sum(sizes)}, the sum of the pieces")
    return np.clip(valid - sum(sizes[: split.rank]), 0, seq_len)
