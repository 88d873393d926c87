"""PyTorch as one writes it first: a Python loop over time, everything that does not depend on the state hoisted out.
And the same in all chunks of time at once, whose loops are as short as the root of time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

from benchmarks.peers.problem import (
    BETA1,
    BETA2,
    DECAY,
    EPS,
    LR,
    MOMENTUM,
    NORM_EPS,
    Array,
    Scan,
    Training,
    Trial,
    chunk_length,
)
from rotrnn.nn.layer import is_parameter

Params = dict[str, torch.Tensor]
Scanned = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _scan(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """States of ``h_t = a h_{t-1} + x_t``, (B, T, N)."""
    h, states = torch.zeros_like(x[:, 0]), []
    for x_t in x.unbind(1):
        h = a * h + x_t
        states.append(h)
    return torch.stack(states, 1)


def _chunked_scan(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The same in three steps: a loop within all chunks at once, one over the chunks' ends, and what they carry on."""
    B, T, N = x.shape
    length = chunk_length(T)
    within = _scan(a, x.reshape(-1, length, N)).view(B, -1, length, N)
    powers = a.expand(length, N).cumprod(0)
    ends = _scan(powers[-1], within[:, :, -1])
    carried = torch.cat([torch.zeros_like(ends[:, :1]), ends[:, :-1]], 1)
    return (within + powers * carried[:, :, None]).view(x.shape)


def scan(problem: Scan) -> Trial:
    a, x = torch.from_numpy(problem.a), torch.from_numpy(problem.x)

    def step() -> torch.Tensor:
        with torch.no_grad():
            return _scan(a, x)

    return Trial(step, lambda h: {"h": h.numpy()})


def scan_gradient(problem: Scan) -> Trial:
    a, x = (torch.from_numpy(array).requires_grad_() for array in (problem.a, problem.x))
    dh = torch.from_numpy(problem.dh)

    def step() -> tuple[torch.Tensor, ...]:
        h = _scan(a, x)
        return (h.detach(), *torch.autograd.grad(h, (a, x), dh))

    def answer(found: tuple[torch.Tensor, ...]) -> dict[str, Array]:
        return {name: array.numpy() for name, array in zip(("h", "da", "dx"), found, strict=True)}

    return Trial(step, answer)


def _lru(p: Params, u: torch.Tensor, scan: Scanned) -> torch.Tensor:
    """The LRU of its paper's appendix A, (B, T, D)."""
    lam = torch.exp(torch.complex(-torch.exp(p["nu_log"]), torch.exp(p["theta_log"])))
    gain = torch.exp(p["gamma_log"])[:, None]
    v = torch.complex(u @ (gain * p["B_re"]).T, u @ (gain * p["B_im"]).T)
    h = scan(lam, v)
    return h.real @ p["C_re"].T - h.imag @ p["C_im"].T + p["D"] * u


def _rotrnn(p: Params, u: torch.Tensor, scan: Scanned) -> torch.Tensor:
    """RotRNN with P folded into B and C, its planes as complex numbers, (B, T, D)."""
    with torch.autocast("cpu", enabled=False):
        a, w_in, w_out = _folded(p)
    v = (u @ w_in.T).float()
    h = scan(a, torch.view_as_complex(v.unflatten(-1, (-1, 2))))
    return torch.view_as_real(h).flatten(-2) @ w_out.T + p["D"] * u


def _folded(p: Params) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The transition of each plane, and the matrices before and after the scan."""
    gamma = torch.exp(-torch.exp(p["gamma_log"]))
    B, P = p["B"], torch.linalg.matrix_exp(p["M"] - p["M"].mT)
    xi = torch.sqrt((1 - gamma**2) / (B * B).sum((1, 2)))
    w_in = (xi[:, None, None] * P.mT @ B).flatten(0, 1)
    w_out = torch.einsum("dhw,hwi->dhi", p["C"].unflatten(1, P.shape[:2]), P).flatten(1)
    a = torch.polar(gamma[:, None].expand_as(p["theta"]).contiguous(), p["theta"]).flatten()
    return a, w_in, w_out


def training(problem: Training) -> Trial:
    return _training(problem, _scan)


def chunked(problem: Training) -> Trial:
    return _training(problem, _chunked_scan)


def _training(problem: Training, scan: Scanned) -> Trial:
    params = {k: torch.from_numpy(v.copy()).requires_grad_() for k, v in problem.params.items() if is_parameter(k)}
    running = [torch.from_numpy(problem.params[f"block.norm.running_{what}"].copy()) for what in ("mean", "var")]
    x, labels = torch.from_numpy(problem.x), torch.from_numpy(problem.labels)
    optimiser = torch.optim.AdamW(params.values(), lr=LR, betas=(BETA1, BETA2), eps=EPS, weight_decay=DECAY)
    p = {name.removeprefix("block."): param for name, param in params.items()}
    recurrence = {name.removeprefix("layer."): param for name, param in p.items() if name.startswith("layer.")}
    layer = _rotrnn if "theta" in recurrence else _lru

    def loss_of_batch() -> torch.Tensor:
        scale, bias = p["norm.scale"], p["norm.bias"]
        # torch weighs the batch where the field's momentum weighs the past
        z = F.batch_norm(x.flatten(0, 1), *running, scale, bias, training=True, momentum=1 - MOMENTUM, eps=NORM_EPS)
        z = F.gelu(layer(recurrence, z.view_as(x), scan), approximate="tanh")
        value = F.linear(z, p["gate.value.w"], p["gate.value.bias"])
        gate = F.linear(z, p["gate.gate.w"], p["gate.gate.bias"])
        y = x + value * torch.sigmoid(gate)
        return F.cross_entropy(F.linear(y.mean(1), p["head.w"], p["head.bias"]), labels)

    def step() -> torch.Tensor:
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=problem.precision == "bf16"):
            loss = loss_of_batch()
        loss.backward()
        optimiser.step()
        return loss.detach()

    def answer(loss: torch.Tensor) -> dict[str, Array]:
        moments = {name: optimiser.state[param]["exp_avg"] for name, param in params.items()}
        return {"loss": loss.numpy(), **{name: m.numpy() / (1 - BETA1) for name, m in moments.items()}}

    return Trial(step, answer)
