"""Scans: linear recurrences of a vector, or of a matrix for each head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rotrnn.nn.instructions.recurrence import Recurrence
from rotrnn.nn.listing import Listing
from rotrnn.nn.program import Line, Shape
from rotrnn.ops.delta import delta_rule, delta_rule_backward
from rotrnn.ops.hold import QUADRATURE, hold_scan, hold_scan_backward
from rotrnn.ops.oscillator import oscillator_scan, oscillator_scan_backward
from rotrnn.ops.permuted import permuted_scan, permuted_scan_backward
from rotrnn.ops.scan import diagonal_scan, diagonal_scan_backward
from rotrnn.ops.selective import selective_scan, selective_scan_backward
from rotrnn.ops.ssd import ssd_scan, ssd_scan_backward
from rotrnn.ops.trapezoid import trapezoid_scan, trapezoid_scan_backward


@dataclass(frozen=True)
class Scan(Recurrence):
    """``h_t = a_t h_{t-1} + x_t``, a and x (N,) (`rotrnn.ops.diagonal_scan`)."""

    of = diagonal_scan, diagonal_scan_backward
    takes = "a x"
    form = "N; N -> N"
    states = "h N"
    results = "h hT"
    reads = ("a", "y")


@dataclass(frozen=True)
class OscillatorScan(Recurrence):
    """``h_t = M h_{t-1} + f u_t``, h (2, N), m (2, 2, N), f (2, N), u (N,) (`rotrnn.ops.oscillator_scan`)."""

    of = oscillator_scan, oscillator_scan_backward
    takes = "m f u"
    form = "2 2 N; 2 N; N -> 2 N"
    states = "h 2 N"
    results = "h hT"
    reads = ("u", "y")
    parameters = ("m", "f")


@dataclass(frozen=True)
class PermutedScan(Recurrence):
    """``h_t = P_t D_t h_{t-1} + x_t`` with weights w (K,) of matrices m (K, N, N), and d, x and h (2, N)
    (`rotrnn.ops.permuted_scan`)."""

    of = permuted_scan, permuted_scan_backward
    takes = "w m d x"
    form = "K; K N N; 2 N; 2 N -> 2 N"
    states = "h 2 N"
    whole = "found"
    reads = ("w", "d", "y")
    parameters = ("m",)


@dataclass(frozen=True)
class SelectiveScan(Recurrence):
    """The scan of Mamba, x and delta (I,), A (I, S), B and C (S,), skip (I,) (`rotrnn.ops.selective_scan`)."""

    negative: bool = False
    of: ClassVar[tuple[Any, Any]] = selective_scan, selective_scan_backward
    takes = "x delta A B C skip"
    form = "I; I; I S; S; S; I -> I"
    states = "h I S"
    results = "y hT carries"
    reads = ("x", "delta", "B", "C")
    parameters = ("A", "skip")


@dataclass(frozen=True)
class SsdScan(SelectiveScan):
    """The scan of Mamba-2, x (H, P), delta (H,), A (H,), B and C (G, N), skip (H,) (`rotrnn.ops.ssd_scan`)."""

    of = ssd_scan, ssd_scan_backward
    form = "H P; H; H; G N; G N; H -> H P"
    states = "h H P N"


@dataclass(frozen=True)
class TrapezoidScan(Recurrence):
    """The scan of Mamba-3, x (H, P), delta, lam and log_a (H,), B and C (G, N), skip (H,); with gain (H, R, P), B and C
    (R, G, N), and y is (R, H, P) (`rotrnn.ops.trapezoid_scan`)."""

    of = trapezoid_scan, trapezoid_scan_backward
    takes = "x delta lam log_a B C skip gain?"
    form = "H P; H; H; H; ... G N; ... G N; H; H ... P -> ... H P"
    states = "h H P N; B ... G N; x H P"
    reads = ("x", "delta", "lam", "log_a", "B", "C")
    parameters = ("skip", "gain")

    def shapes(self, *inputs: Any) -> tuple[Shape, ...]:
        if (inputs[7] is None) != (len(inputs[4]) == 2):
            raise ValueError("expected B (G, N), or gain (H, R, P) and B (R, G, N)")
        return super().shapes(*inputs)


@dataclass(frozen=True)
class HoldScan(Recurrence):
    """The scan of SLinOSS, x (H, P), delta, log_a and theta (H,), B and C (H, N), adjacent lanes a complex number
    (`rotrnn.ops.hold_scan`). Its state is the angle c (2, H), the turned state of the heads, and the last B, turned,
    and x."""

    of = hold_scan, hold_scan_backward
    takes = "x delta log_a theta B C"
    form = "H P; H; H; H; H N; H N -> H P"
    states = "c 2 H; h H P N; B H N; x H P"
    reads = ("x", "delta", "log_a", "theta", "B", "C")

    def emit(self, to: Listing, line: Line, *inputs: Any) -> Any:
        return super().emit(to, line, *inputs, QUADRATURE)


@dataclass(frozen=True)
class DeltaRule(Recurrence):
    """n Householder steps of a state for each head: q (H, K), k (n, H, K), v (n, H, V), beta (n, H), decay (H,) or
    (H, K), read and erase (n, H, K). All but q, k and v may be None (`rotrnn.ops.delta_rule`)."""

    of = delta_rule, delta_rule_backward
    takes = "q k v beta? decay? read? erase?"
    form = "H K; n H K; n H V; n H; H ...; n H K; n H K -> H V"
    states = "h H K V"
    results = "y hT carries"
    reads = ("q", "k", "v", "beta", "decay", "read", "erase")

    def shapes(self, *inputs: Any) -> tuple[Shape, ...]:
        q, decay = inputs[0], inputs[4]
        if decay is not None and decay not in (q[:1], q):
            raise ValueError("expected decay (H) or (H, K)")
        return super().shapes(*inputs)
