"""Ops beside the plain PyTorch functions of flash-linear-attention (package fla-core): outputs, states, gradients.

These functions compute in float32. Here they run in float64, so that only rounding differs. The package's layers and
kernels need Triton and a GPU, and do not run here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from benchmarks.chunks import plain, table
from rotrnn import ops

ROOT = Path(__file__).parents[2]
B, T, H, K, V = 2, 32, 3, 5, 4
CHUNK = 8
TOLERANCE = 1e-12
"""Of the largest number of an array: each number has some thousand roundings of 1e-16."""
Arrays = dict[str, Any]
Both = tuple[Any, Any]
"""Output (B, T, H, V) and state after the last token (B, H, K, V)."""


class Double(ModuleType):
    """PyTorch, whose float32 is float64."""

    float32 = float = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@pytest.fixture(autouse=True)
def _double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def naive(part: str, name: str) -> Callable[..., Any]:
    """Returns a function of fla/ops/PART/naive.py that computes in float64."""
    function = plain(part, name)
    function.__globals__["torch"] = Double("torch")
    return function


def drawn() -> Arrays:
    """Returns each argument that a function has: (B, T, H, ...), a state (B, H, K, V)."""
    rng = np.random.default_rng(0)
    unit = rng.standard_normal((3, B, T, H, K))
    unit /= np.linalg.norm(unit, axis=-1, keepdims=True)
    arrays = {
        "q": rng.standard_normal((B, T, H, K)),
        "k": unit[0],
        "v": rng.standard_normal((B, T, H, V)),
        "beta": rng.uniform(0, 2, (B, T, H)),
        "g": -rng.uniform(0, 1, (B, T, H)),
        "gk": -rng.uniform(0, 1, (B, T, H, K)),
        "gv": -rng.uniform(0, 1, (B, T, H, V)),
        "p": unit[1],
        "b": rng.uniform(0, 1, (B, T, H, K)),
        "w": rng.uniform(0, 1, (B, T, H, V)),
        "alpha": -unit[2],
        "erase": unit[2] * rng.uniform(0, 1, (B, T, H, K)),
        "state": rng.standard_normal((B, H, K, V)),
    }
    return {name: torch.tensor(x, requires_grad=True) for name, x in arrays.items()}


class Op(torch.autograd.Function):
    """An op and its adjoint of this library for PyTorch's autograd: tensors to output and final state."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Both], adjoint: Callable[..., Any], *tensors: Any) -> Any:
        ctx.adjoint, ctx.arrays = adjoint, [None if x is None else x.detach().numpy() for x in tensors]
        y, state = run(*ctx.arrays)
        return torch.from_numpy(y), torch.from_numpy(state)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        dy, dstate = (x.contiguous().numpy() for x in grads)
        found = ctx.adjoint(dy, dstate, *ctx.arrays)
        wanted = (None if x is None else torch.from_numpy(dx) for x, dx in zip(ctx.arrays, found, strict=True))
        return None, None, *wanted


def delta_rule(*tensors: Any) -> Both:
    """`rotrnn.ops.delta_rule` of q, k, v, beta, decay, h0, read, erase."""
    y, state = Op.apply(
        lambda *a: ops.delta_rule(*a, return_state=True),
        lambda dy, dstate, *a: ops.delta_rule_backward(dy, *a, dhT=dstate),
        *tensors,
    )
    return y, state


def one_step(
    a: Arrays, v: Any = None, beta: Any = None, decay: Any = None, read: Any = None, erase: Any = None
) -> Both:
    """A delta rule of one step a token."""
    q, v = a["q"] * K**-0.5, a["v"] if v is None else v
    k, v, beta, read, erase = (None if x is None else x[:, :, None] for x in (a["k"], v, beta, read, erase))
    return delta_rule(q, k, v, beta, decay, a["state"], read, erase)


def gated(a: Arrays) -> Both:
    return one_step(a, beta=a["beta"], decay=a["g"].exp())


def kimi(a: Arrays) -> Both:
    return one_step(a, beta=a["beta"], decay=a["gk"].exp())


def gated_2(a: Arrays) -> Both:
    d = a["gk"].exp()
    return one_step(a, v=a["w"] * a["v"], decay=d, read=d * a["b"] * a["k"])


def comba(a: Arrays) -> Both:
    return one_step(a, beta=a["beta"], decay=a["g"].exp(), read=a["p"])


def comba_late(a: Arrays) -> Both:
    """fla's loop of Comba reads after the decay. Its chunks read before, as the paper does."""
    d = a["g"].exp()
    return one_step(a, beta=a["beta"], decay=d, read=d[..., None] * a["p"])


def low_rank(a: Arrays) -> Both:
    return one_step(a, read=a["alpha"], erase=-a["erase"])


def diagonal_and_low_rank(a: Arrays) -> Both:
    return one_step(a, decay=a["gk"].exp(), read=a["alpha"], erase=-a["erase"])


def gated_linear_attention(a: Arrays) -> Both:
    """A delta rule that reads nothing."""
    return one_step(a, decay=a["gk"].exp(), read=torch.zeros_like(a["k"]))


HALF = slice(T // 2)


def product(a: Arrays) -> Both:
    """Two Householder steps a token, of half as many tokens."""
    k, v, beta = (a[name].reshape(B, T // 2, 2, *a[name].shape[2:]) for name in ("k", "v", "beta"))
    return delta_rule(a["q"][:, HALF] * K**-0.5, k, v, beta, a["g"][:, HALF].exp(), a["state"], None, None)


def their_product(function: Callable[..., Any], a: Arrays) -> Both:
    y, state = function(
        a["q"][:, HALF], a["k"], a["v"], a["g"][:, HALF], a["beta"], K**-0.5, initial_state=a["state"],
        output_final_state=True, num_householder=2,
    )  # fmt: skip
    return y, state


def ssd(a: Arrays) -> Both:
    """The scan of Mamba-2, whose state has its values first."""
    y, state = Op.apply(
        lambda x, B, C, log_a, h0: ops.ssd_scan(
            x, np.ones(x.shape[:3]), None, B, C, h0=h0, log_a=log_a, return_state=True
        ),
        lambda dy, dstate, x, B, C, log_a, h0: [
            getattr(ops.ssd_scan_backward(dy, x, np.ones(x.shape[:3]), None, B, C, h0=h0, log_a=log_a, dhT=dstate), d)
            for d in ("dx", "dB", "dC", "dlog_a", "dh0")
        ],
        a["v"], a["k"], a["q"] * K**-0.5, a["g"], a["state"].mT,
    )  # fmt: skip
    return y, state.mT


def lanes(a: Arrays) -> Both:
    """A diagonal scan: a lane for each number of v."""
    y, state = Op.apply(
        lambda decay, x, h0: ops.diagonal_scan(decay, x, h0, return_state=True),
        lambda dy, dstate, decay, x, h0: ops.diagonal_scan_backward(
            dy, decay, ops.diagonal_scan(decay, x, h0), h0, dhT=dstate
        ),
        a["gv"].exp().flatten(2), a["v"].flatten(2), a["state"][:, :, 0].flatten(1),
    )  # fmt: skip
    return y, state


def their_lanes(function: Callable[..., Any], a: Arrays) -> Both:
    y, state = function(a["v"].flatten(2), a["gv"].flatten(2), a["state"][:, :, 0].flatten(1), True)
    return y, state


class Case(NamedTuple):
    """A function of fla and its arguments, in its order, and the same by an op of this library."""

    part: str
    name: str
    given: str
    ours: Callable[[Arrays], Both]
    heads_first: bool = False
    chunks: bool = False
    theirs: Callable[[Callable[..., Any], Arrays], Both] | None = None

    def call(self, a: Arrays) -> Both:
        """Returns what fla's function returns."""
        function = naive(self.part, self.name)
        if self.theirs is not None:
            return self.theirs(function, a)
        turn: Callable[[Any], Any] = (lambda x: x.transpose(1, 2)) if self.heads_first else (lambda x: x)
        more = {"chunk_size": CHUNK} if self.chunks else {}
        y, state = function(
            *(turn(a[name]) for name in self.given.split()),
            initial_state=a["state"], output_final_state=True, **more,
        )  # fmt: skip
        return turn(y), state


def delta_net(a: Arrays) -> Both:
    return one_step(a, beta=a["beta"])


CASES = [
    Case("delta_rule", "delta_rule_recurrence", "q k v beta", delta_net, heads_first=True),
    Case("gated_delta_rule", "naive_recurrent_gated_delta_rule", "q k v beta g", gated),
    Case("gated_delta_rule", "naive_chunk_gated_delta_rule", "q k v g beta", gated, chunks=True),
    Case("gated_delta_product", "naive_recurrent_gated_delta_product", "q k v g beta", product, theirs=their_product),
    Case("kda", "naive_recurrent_kda", "q k v gk beta", kimi),
    Case("kda", "naive_chunk_kda", "q k v gk beta", kimi, chunks=True),
    Case("gdn2", "naive_recurrent_gdn2", "q k v gk b w", gated_2),
    Case("gdn2", "naive_chunk_gdn2", "q k v gk b w", gated_2, chunks=True),
    Case("comba", "naive_recurrent_comba", "q k v p beta g", comba_late),
    Case("comba", "naive_chunk_comba", "q k v p g beta", comba, chunks=True),
    Case("generalized_delta_rule/iplr", "iplr_recurrence", "q k v alpha erase", low_rank, heads_first=True),
    Case(
        "generalized_delta_rule/dplr", "dplr_recurrence", "q k v alpha erase gk", diagonal_and_low_rank,
        heads_first=True,
    ),
    Case("gla", "naive_recurrent_gla", "q k v gk", gated_linear_attention),
    Case("simple_gla", "naive_recurrent_simple_gla", "q k v g", ssd),
    Case("simple_gla", "naive_chunk_simple_gla", "q k v g", ssd, chunks=True),
    Case("hgrn", "naive_recurrent_hgrn", "v gv", lanes, theirs=their_lanes),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_outputs_states_and_gradients_are_the_same(case: Case) -> None:
    a = drawn()
    wanted = [a[name] for name in (*case.given.split(), "state")]
    found = {}
    for who, (y, state) in {"ours": case.ours(a), "theirs": case.call(a)}.items():
        loss = (y * torch.cos(torch.arange(y.numel())).reshape(y.shape)).sum() + (state**2).sum()
        found[who] = [y, state, *torch.autograd.grad(loss, wanted)]
    for ours, theirs in zip(found["ours"], found["theirs"], strict=True):
        wanted_array = theirs.detach().numpy()
        most = max(1.0, np.abs(wanted_array).max())
        np.testing.assert_allclose(ours.detach().numpy(), wanted_array, rtol=0, atol=TOLERANCE * most)


def test_the_quick_benchmark_runs_and_its_table_is_written() -> None:
    command = [sys.executable, "-m", "benchmarks.chunks", "--quick", "--json"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    text = table({"rows": rows, "machine": {"cpu": "a", "simd": "b"}, "commit": "c"})
    assert [line.rpartition("beside ")[2].split()[0] for line in text.splitlines()[4:]] == [
        *2 * ["fla"], *2 * ["transformers"], *4 * ["fla"]
    ]  # fmt: skip
