"""Recurrences that are not linear in their state: LSTMs and other cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rotrnn.nn.instructions.recurrence import Recurrence
from rotrnn.nn.layer import StateArray
from rotrnn.ops.boundary import Boundary
from rotrnn.ops.mlstm import mlstm, mlstm_backward
from rotrnn.ops.rnn import gru, gru_backward, lstm, lstm_backward, rnn, rnn_backward
from rotrnn.ops.slstm import check_normaliser, slstm, slstm_backward


@dataclass(frozen=True)
class MatrixMemory(Recurrence):
    """The memory of mLSTM: q and k (H, N), v (H, P), logarithms of gates log_i and log_f (H,) (`rotrnn.ops.mlstm`)."""

    of = mlstm, mlstm_backward
    takes = "q k v log_i log_f"
    form = "H N; H N; H P; H; H -> H P"
    states = "c H P N; n H N; m H"
    whole = "result"
    reads = ("q", "k", "v", "log_i", "log_f", "y")


@dataclass(frozen=True)
class ScalarMemory(Recurrence):
    """The memory of sLSTM: inputs x (4, H, P) of the gates, w (H, 4P, P) (`rotrnn.ops.slstm`)."""

    forget: str = "sigmoid"
    of = slstm, slstm_backward
    takes = "x w"
    form = "4 H P; H 4P P -> H P"
    states = "h H P; c H P; n H P; m H P"
    whole = "result"
    reads = ("y",)
    parameters = ("w",)

    def check_state(self, args: Boundary, name: str, state: Any) -> None:
        if not name.startswith("d"):
            check_normaliser(args, f"{name}.n", state[2])


@dataclass(frozen=True)
class LSTMCells(Recurrence):
    """The cells of an LSTM: inputs x (4N,) of the gates, w (4N, N) (`rotrnn.ops.lstm`)."""

    of = lstm, lstm_backward
    takes = "x w"
    form = "4N; 4N N -> N"
    states = "h N; c N"
    reads = ("y",)
    parameters = ("w",)


@dataclass(frozen=True)
class GRUCells(Recurrence):
    """The cells of a GRU: inputs x (3N,) of the gates, w (3N, N), bias (3N,) (`rotrnn.ops.gru`)."""

    of = gru, gru_backward
    takes = "x w bias"
    form = "3N; 3N N; 3N -> N"
    states = "h N"
    reads = ("y",)
    parameters = ("w", "bias")


@dataclass(frozen=True)
class Elman(Recurrence):
    """``h_t = f(A h_{t-1} + x_t)``, x (N,), A (N, N); backward in time if `reverse` (`rotrnn.ops.rnn`)."""

    activation: str = "identity"
    reverse: bool = False
    of = rnn, rnn_backward
    takes = "x A"
    form = "N; N N -> N"
    states = "h N"
    results = "h hT"
    reads = ("y",)
    along = True
    parameters = ("A",)

    def state(self, *inputs: Any) -> tuple[StateArray, ...]:
        return () if self.reverse else super().state(*inputs)
