"""Liquid-S4: S4 with terms of products of inputs (Hasani et al. 2022, "Liquid Structural State-Space Models")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from rotrnn.nn.folded import Folded
from rotrnn.nn.layer import EVALUATION, Array, Context, Params, State, StateArray, StateForm, trusted
from rotrnn.nn.layers.s4 import S4
from rotrnn.nn.listing import Listing
from rotrnn.ops.dplr_bank import DplrBankSaved, DplrSystem, dplr_bank, dplr_bank_backward, dplr_bank_step
from rotrnn.ops.pointwise import flip, mask_padding
from rotrnn.ops.window import latest, latest_backward

KERNELS = "pb", "kb"


class OneWay(NamedTuple):
    """Saved for backward by one direction: inputs with the inputs before them, in its order of time, the products of 1,
    2, ... successive inputs (B, T, D), and the op's saved arrays, once for each product that drives the states."""

    before: Array
    products: tuple[Array, ...]
    banks: tuple[DplrBankSaved, ...]


class LiquidS4Saved(NamedTuple):
    """Saved for backward: the systems, each direction, lengths, and the state after x."""

    folded: Folded[tuple[DplrSystem, ...]]
    directions: tuple[OneWay, ...]
    lengths: npt.NDArray[np.int64] | None
    state: State


@dataclass(frozen=True)
class LiquidS4(S4):
    """S4 with a further term for each product of 2 to `degree` successive inputs.

    The paper's system is ``x_k = (A + B u_k) x_{k-1} + B u_k``, ``y_k = C x_k + D u_k``, with A, B and C of S4 after
    its discretisation (eq. 9; B u_k is added to the diagonal). It adds to S4 products of inputs with weights ``C A^i
    B^m``, where B^m is taken element by element in S4's basis (eqs. 10-13). Of these, the terms with ``v_{m,k} = u_k
    u_{k-1} ... u_{k-m+1}`` are kept, m = 2 ... `degree`:

        kb:  h_k = A h_{k-1} + sum_{m>=1} B^m v_{m,k},    y_k = 2 Re(C h_k) + D u_k
        pb:  h_k = A h_{k-1} + B u_k,    y_k = 2 Re(C h_k) + D u_k + sum_{m>=2} 2 Re(C B^m) v_{m,k}

    (Algorithm 1; "KB" is S4's kernel times B, "PB" has the powers of B alone, as if A were the identity.) Everything is
    causal.

    The authors' code (raminmh/liquid-s4, commit d3a72bd) computes a different function:

    - Products are added in reverse order of time, so its outputs depend on later inputs. By default they are products
      of the inputs nearest the end of the sequence, any m of these. With ``allcombs=False`` they are products of
      successive inputs; the product itself is shifted, so the product of degree 3 is ``u_k u_{k-1}^2 u_{k-2}``.
    - B is without the rank-one part. B^m is not taken element by element: with the number S, the sum of B over all
      states, "pb" has ``B S`` for degree 2, ``B S^3`` for 3 and ``B S^7`` for 4.
    - "kb" has the kernel of S4 itself, times ``S^{m-1}``. It multiplies the Fourier transform of the kernel, of length
      T + 1, by the transform of the products, of length 2 T; this is not their convolution.
    - These terms read A, B, C and Delta as they were when the model was built. The parameters get no gradient from
      these terms, and on a GPU the terms keep the initial values.
    - An option, ``lcontract``, sends the products through a tanh. It is off by default.

    Settings: the settings of S4, `degree`, at least 2, and `kernel`. "kb" runs the recurrence once for each degree.
    The state is (the last degree - 1 inputs (B, degree - 1, D), h (B, D, N) complex). Parameters and initial values are
    S4's.
    """

    about: ClassVar[str] = "S4 with a kernel on products of successive inputs"
    paper: ClassVar[str] = 'Hasani et al. 2022, "Liquid Structural State-Space Models"'
    lanes: ClassVar[str] = "d_model (d_state + degree - 1)"

    degree: int = 2
    kernel: str = "pb"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_sizes("degree", least=2)
        self.check_choice("kernel", KERNELS)

    @property
    def state_form(self) -> StateForm:
        h = super().state_form
        assert isinstance(h, StateArray)
        return StateArray("inputs", (self.degree - 1, self.d_model)), h

    def forward(  # type: ignore[override]
        self, params: Params, x: Array, ctx: Context = EVALUATION, state: State = None
    ) -> tuple[Array, LiquidS4Saved]:
        """Returns (y (B, T, D), saved) for x (B, T, D); `state` continues an earlier call (one direction only)."""
        folded, lengths = trusted(self.fold)(params), ctx.lengths
        x = mask_padding(x, lengths)
        before, h0 = self._start(x) if state is None else state
        y, hT, saved = self._one_way(folded.weights[0], x, before, h0, lengths)
        if not self.bidirectional:
            after = latest(before, x, self.degree - 1, lengths), hT
            return y, LiquidS4Saved(folded, (saved,), lengths, after)
        y_reverse, _, other = self._one_way(folded.weights[1], flip(x, lengths), before, None, lengths)
        return y + flip(y_reverse, lengths), LiquidS4Saved(folded, (saved, other), lengths, None)

    def backward(  # type: ignore[override]
        self, params: Params, saved: LiquidS4Saved, dy: Array, dstate: State = None
    ) -> tuple[Array, Params, State]:
        folded, directions, lengths, _ = saved
        dy = mask_padding(dy.astype(directions[0].before.dtype, copy=False), lengths)
        dafter, dhT = (None, None) if dstate is None else dstate
        dsystem, dx, dbefore, dh0 = self._one_way_backward(folded.weights[0], directions[0], dy, dhT)
        if not self.bidirectional:
            if dafter is not None:
                dbefore = dbefore + latest_backward(dafter.astype(dx.dtype, copy=False), dx, lengths)
            return dx, self.fold_backward(params, folded, (dsystem,)), (dbefore, dh0)
        other, dx_reverse, _, _ = self._one_way_backward(folded.weights[1], directions[1], flip(dy, lengths), None)
        return dx + flip(dx_reverse, lengths), self.fold_backward(params, folded, (dsystem, other)), None

    def step(self, params: Params, state: State, x_t: Array, prepared: DplrSystem | None = None) -> tuple[Array, State]:
        system = trusted(self.prepare)(params) if prepared is None else prepared
        x = x_t[:, None]
        before, h0 = self._start(x) if state is None else state
        products = self._products(x, before)
        y, h = dplr_bank_step(system, h0, x_t)
        for m, product in enumerate(products[1:], 2):
            if self.kernel == "pb":
                y = y + _direct(system, m) * product[:, 0]
            else:
                further, more = dplr_bank_step(_powered(system, m), None, product[:, 0])
                y, h = y + further, h + more
        return y, (np.concatenate([before, x], 1)[:, 1:], h)

    def emit(self, to: Listing, params: Params, x: int) -> int:
        drives = self.degree if self.kernel == "kb" else 1
        return self._emit_bank(to, params, to("Products", x, degree=self.degree), self.degree, drives)

    def _start(self, x: Array) -> tuple[Array, None]:
        """Returns the state before the first step: no inputs, and states of zero."""
        return np.zeros((len(x), self.degree - 1, self.d_model), x.dtype, like=x), None

    def _one_way(
        self, system: DplrSystem, x: Array, before: Array, h0: Array | None, lengths: npt.NDArray[np.int64] | None
    ) -> tuple[Array, Array, OneWay]:
        """Returns (y, hT, saved) of the recurrence forward in time. The parts of the states that each product drives
        are added, because their recurrences differ only in the gain."""
        products = self._products(x, before)
        y, hT, first = dplr_bank(system, x, h0, lengths=lengths)
        banks = [first]
        for m, product in enumerate(products[1:], 2):
            if self.kernel == "pb":
                y = y + _direct(system, m) * product
            else:
                further, h, bank = dplr_bank(_powered(system, m), product, lengths=lengths)
                y, hT = y + further, hT + h
                banks.append(bank)
        return y, hT, OneWay(before, products, tuple(banks))

    def _one_way_backward(
        self, system: DplrSystem, saved: OneWay, dy: Array, dhT: Array | None
    ) -> tuple[DplrSystem, Array, Array, Array]:
        """Adjoint of `_one_way`: returns (dsystem, dx, dbefore, dh0)."""
        dsystem, dx, dh0 = dplr_bank_backward(dy, system, saved.banks[0], dhT)
        dproducts = [dx]
        for m, product in enumerate(saved.products[1:], 2):
            slope = np.conj(m * system.gain ** (m - 1))
            if self.kernel == "pb":
                dproducts.append(_direct(system, m) * dy)
                d = (dy * product).sum((0, 1), dtype=np.float64).astype(dy.dtype)[:, None]
                dgain, dc = dsystem.gain + d * slope * system.c.conj(), dsystem.c + d * np.conj(system.gain**m)
                dsystem = dsystem._replace(gain=dgain, c=dc)
            else:
                more, dproduct, _ = dplr_bank_backward(dy, _powered(system, m), saved.banks[m - 1], dhT)
                dproducts.append(dproduct)
                a, p, q, _, c, _ = (one + other for one, other in zip(dsystem, more, strict=True))
                dsystem = DplrSystem(a, p, q, dsystem.gain + more.gain * slope, c, dsystem.skip)
        return dsystem, *self._products_backward(dproducts, saved), dh0

    def _products(self, x: Array, before: Array) -> tuple[Array, ...]:
        """Returns the products of the last m inputs at each step, m = 1 ... degree, (B, T, D) each."""
        products = [x]
        for earlier in self._earlier(x, before):
            products.append(products[-1] * earlier)
        return tuple(products)

    def _earlier(self, x: Array, before: Array) -> list[Array]:
        """Returns the inputs 1, 2, ... degree - 1 steps before x."""
        inputs, rows = np.concatenate([before, x], 1), before.shape[1]
        return [inputs[:, rows - lag : rows - lag + x.shape[1]] for lag in range(1, rows + 1)]

    def _products_backward(self, dproducts: list[Array], saved: OneWay) -> tuple[Array, Array]:
        """Adjoint of `_products`: returns (dx, dbefore)."""
        x, rows = saved.products[0], saved.before.shape[1]
        dinputs = np.concatenate([np.zeros_like(saved.before), np.zeros_like(x)], 1)
        earlier, total = self._earlier(x, saved.before), dproducts[-1]
        for lag in range(rows, 0, -1):
            dinputs[:, rows - lag : rows - lag + x.shape[1]] += total * saved.products[lag - 1]
            total = total * earlier[lag - 1] + dproducts[lag - 1]
        return dinputs[:, rows:] + total, dinputs[:, :rows]


def _powered(system: DplrSystem, m: int) -> DplrSystem:
    """Returns the system whose input is the product of m inputs."""
    return system._replace(gain=system.gain**m, skip=np.zeros_like(system.skip))


def _direct(system: DplrSystem, m: int) -> Array:
    """Returns ``2 Re(C B^m)`` (D,), the response at once to the product of m inputs."""
    return (system.c * system.gain**m).real.sum(1)
