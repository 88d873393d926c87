"""Rows of the delta rule and of the layer that uses it."""

from __future__ import annotations

from typing import Any

import numpy as np

from cases.layer_row import LayerRow
from cases.table import Arrays, Case, normal
from cases.turn import rotate, selective_angles
from rotrnn.nn.layers.comba import Comba
from rotrnn.nn.layers.delta_net import DeltaNet
from rotrnn.nn.layers.kda import KDA, GatedDeltaNet2
from rotrnn.nn.layers.rwkv7 import RWKV7
from rotrnn.ops.delta import delta_rule, delta_rule_backward


def delta_loop(
    q: Any, k: Any, v: Any, beta: Any = None, decay: Any = None, h0: Any = None, read: Any = None, erase: Any = None,
    reverse: bool = False, lengths: Any = None,
) -> tuple[Any, Any]:  # fmt: skip
    """In the papers' form, S = h^T: S_t = S_{t-1} (D - e f^T) + beta v k^T, o_t = S_t q_t; a token's first step
    decays."""
    B, T, R, H, K = k.shape
    y, hT = np.zeros(v.shape[:2] + v.shape[3:]), np.zeros((B, H, K, v.shape[-1])) if h0 is None else np.array(h0)
    for b in range(B):
        for head in range(H):
            S = hT[b, head].T
            steps = range(T if lengths is None else lengths[b])
            for t in reversed(steps) if reverse else steps:
                for i in range(R):
                    at = b, t, i, head
                    d = np.ones(K) if i or decay is None else np.ones(K) * decay[b, t, head]
                    step = 1 if beta is None else beta[at]
                    e, f = d * k[at] if read is None else read[at], step * k[at] if erase is None else erase[at]
                    S = S @ (np.diag(d) - np.outer(e, f)) + step * np.outer(v[at], k[at])
                y[b, t, head] = S @ q[b, t, head]
            hT[b, head] = S.T
    return y, hT


def delta_case(
    B: int, T: int, R: int, H: int, K: int, V: int, *, beta: bool = True, decay: str = "head", read: bool = False,
    erase: bool = False, reverse: bool = False, lengths: Any = None, keep: bool = False,
) -> Case:  # fmt: skip
    """Unit keys and beta in (0, 2), so that the state does not grow; the first head's state does not decay. Keys e of
    length 1/8: a step adds at most a quarter of the state, which is what the decay takes."""
    how: dict[str, Any] = {"reverse": reverse, "lengths": lengths}

    def make(rng: np.random.Generator) -> Arrays:
        def unit() -> Any:
            k = normal(rng, (B, T, R, H, K))
            return k / np.maximum(np.linalg.norm(k, axis=-1, keepdims=True), 1e-9)

        k = unit()
        args = {"q": normal(rng, (B, T, H, K)), "k": k, "v": normal(rng, (B, T, R, H, V))}
        if beta:
            args["beta"] = rng.uniform(0.1, 1.9, (B, T, R, H))
        args["h0"] = normal(rng, (B, H, K, V))
        if decay:
            args["decay"] = rng.uniform(0.5, 1 - 0.25 * (read or erase), (B, T, H, *[K] * (decay == "keys")))
            if not (read or erase):
                args["decay"][:, :, :1] = 1
        return args | ({"read": unit() / 8} if read else {}) | ({"erase": unit()} if erase else {})

    def forward(args: Arrays) -> tuple[Any, ...]:
        result = delta_rule(**args, **how, return_state=True)
        assert isinstance(result, tuple)
        return result

    def backward(args: Arrays, outputs: tuple[Any, ...], doutputs: tuple[Any, ...]) -> Arrays:
        carries = delta_rule(**args, **how, return_carries=True)[1] if keep else None
        grads = delta_rule_backward(doutputs[0], **args, **how, dhT=doutputs[1], carries=carries)
        return {name: getattr(grads, f"d{name}") for name in args}

    optional = {"beta": beta, "decay": bool(decay), "read": read, "erase": erase}
    flags = (
        " decay" * bool(decay)
        + " by keys" * (decay == "keys")
        + " no beta" * (not beta)
        + " read" * read
        + " erase" * erase
    )
    flags += " reverse" * reverse + " ragged" * (lengths is not None) + " kept" * keep
    padded = ("q", "k", "v", *(name for name, there in optional.items() if there), "out0")
    return Case(
        f"delta_rule{flags} {B}x{T}x{R} H{H} {K}x{V}",
        make,
        forward,
        backward,
        lambda args: delta_loop(**args, **how),
        # a number of the state passes each step's product with a key, K terms, and a few more; gradients sum channels
        terms=(2 * K + 8) * R * T + 2 * (K + V) + 20,
        linear=(("v", "h0"), ("q",)),
        ragged={} if lengths is None else dict.fromkeys(padded, lengths),
        lengths=lengths,
    )


OPS = [
    delta_case(2, 7, 1, 2, 3, 4),
    delta_case(1, 1, 1, 1, 1, 1, keep=True),
    delta_case(2, 0, 1, 2, 3, 2),
    delta_case(0, 4, 2, 2, 3, 2),
    delta_case(2, 4, 1, 0, 3, 2),
    delta_case(2, 4, 1, 1, 0, 2),
    delta_case(2, 4, 2, 1, 3, 0, keep=True),
    delta_case(1, 37, 1, 2, 4, 5, decay="", keep=True),
    delta_case(2, 19, 3, 2, 5, 3),  # three steps a token, two tiles
    delta_case(3, 34, 2, 1, 3, 2, lengths=(34, 0, 17), keep=True),  # lengths at none, in the second tile, and past it
    delta_case(3, 34, 1, 2, 7, 37, reverse=True, lengths=(16, 34, 0)),  # several blocks of channels; at a tile's end
    delta_case(2, 17, 2, 1, 9, 16, reverse=True, decay=""),
    delta_case(2, 19, 1, 2, 5, 3, decay="keys"),
    delta_case(1, 0, 1, 1, 3, 2, decay="keys", read=True, erase=True),
    delta_case(2, 4, 1, 1, 0, 2, decay="keys", read=True, erase=True),
    delta_case(3, 34, 2, 1, 7, 17, beta=False, decay="keys", lengths=(16, 34, 0), keep=True),
    delta_case(2, 19, 1, 2, 5, 3, read=True),
    delta_case(3, 37, 2, 1, 3, 18, beta=False, decay="keys", read=True, lengths=(37, 0, 17), reverse=True),
    delta_case(2, 18, 2, 2, 4, 5, erase=True),
    delta_case(2, 17, 1, 2, 5, 33, beta=False, decay="keys", read=True, erase=True),
    delta_case(3, 20, 2, 1, 4, 3, read=True, erase=True, lengths=(20, 0, 16), reverse=True, keep=True),
    delta_case(1, 13, 1, 1, 3, 3, decay="", erase=True, beta=False),
]

OPS_LARGE = [
    delta_case(3, 50, 2, 2, 16, 40, lengths=(50, 0, 37)),
    delta_case(1, 60, 1, 8, 16, 16, reverse=True, decay=""),
    delta_case(2, 45, 1, 2, 16, 33, beta=False, decay="keys", read=True, erase=True),
]


def delta_net_loop(layer: DeltaNet, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    """One token after the other, with a buffer for the window of the convolution, in the papers' form."""
    tail, *turning, h = (np.array(one) for one in state)
    H, K, V, n = layer.heads, layer.d_state, layer.width, layer.steps
    y = np.zeros_like(x)

    def s(z: Any) -> Any:
        return 1 / (1 + np.exp(-z))

    def unit(z: Any) -> Any:
        return z / np.sqrt(z @ z + 1e-6)

    for b in range(x.shape[0]):
        for t in range(x.shape[1] if lengths is None else lengths[b]):
            z = params["qkv_proj"] @ x[b, t]
            if layer.d_conv:
                window = np.concatenate([tail[b], z[None]])
                tail[b] = window[1:]
                z = np.einsum("kd,dk->d", window, params["conv_w"])
            q, k, v = np.split(z * s(z), [H * K, (n + 1) * H * K])
            q, k, v = q.reshape(H, K), k.reshape(n, H, K), v.reshape(n, H, V)
            if layer.rope_base is not None:
                past, c = (one[b] for one in turning)
                selective_angles(layer, params, x[b, t], past, c)
                q, k = (rotate(one, c.sum(0), "halves") for one in (q, k))
            beta = (1 + layer.negative) * s(params["beta_proj"] @ x[b, t]).reshape(n, H)
            read = np.zeros((H, V))
            for head in range(H):
                S = h[b, head].T
                if layer.gate:
                    delta = np.log1p(np.exp(params["decay_proj"][head] @ x[b, t] + params["dt_bias"][head]))
                    S = np.exp(-np.exp(params["A_log"][head]) * delta) * S
                for i in range(n):
                    key = unit(k[i, head])
                    S = S @ (np.eye(K) - beta[i, head] * np.outer(key, key))
                    S = S + beta[i, head] * np.outer(v[i, head], key)
                o = S @ unit(q[head])
                read[head] = params["norm"] * o / np.sqrt(np.mean(o**2) + layer.norm_eps)
                h[b, head] = S.T
            out = read.ravel()
            if layer.output_gate:
                gate = params["gate_proj"] @ x[b, t]
                out = out * gate * s(gate)
            y[b, t] = params["out_proj"] @ out
    for c in turning[1:]:
        whole = c.sum(1)
        c[:, 0], c[:, 1] = whole - 2 * np.pi * np.rint(whole / (2 * np.pi)), 0
    return y, (tail, *turning, h)


def kda_loop(layer: KDA, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    """One token after the other, as published: KDA by the product of its matrices, Gated DeltaNet-2 by its error, with
    decays and erase gates of the heads of keys."""
    tail, h = (np.array(one) for one in state)
    H, K, V = layer.heads, layer.d_state, layer.width
    y = np.zeros_like(x)

    def s(z: Any) -> Any:
        return 1 / (1 + np.exp(-z))

    for b in range(x.shape[0]):
        for t in range(x.shape[1] if lengths is None else lengths[b]):
            u = x[b, t]
            z = params["qkv_proj"] @ u
            if layer.d_conv:
                window = np.concatenate([tail[b], z[None]])
                tail[b] = window[1:]
                z = np.einsum("kd,dk->d", window, params["conv_w"])
            G = layer.groups
            q, k, v = np.split(z * s(z), [G * K, 2 * G * K])
            q, k = (one.reshape(G, K) for one in (q, k))
            q, k = (one / np.sqrt((one**2).sum(-1, keepdims=True) + 1e-6) for one in (q, k))
            q, k = (np.stack([one[i * G // H] for i in range(H)]) for one in (q, k))
            v, o = v.reshape(H, V), np.zeros((H, V))
            step = (params["decay_out"] @ (params["decay_in"] @ u) + params["dt_bias"]).reshape(-1, K)
            for i in range(H):
                of = i * len(step) // H
                rate = np.exp(params["A_log"][of])
                bound = layer.lower_bound
                log_d = -rate * np.log1p(np.exp(step[of])) if bound is None else bound * s(rate * step[of])
                S = np.diag(np.exp(log_d)) @ h[b, i]
                if isinstance(layer, GatedDeltaNet2):
                    erase = (1 + layer.negative) * s(params["erase_proj"] @ u).reshape(G, K)[of]
                    write = s(params["write_proj"] @ u).reshape(H, V)[i]
                    S = S + np.outer(k[i], write * v[i] - S.T @ (erase * k[i]))
                else:
                    beta = (1 + layer.negative) * s(params["beta_proj"][i] @ u)
                    S = (np.eye(K) - beta * np.outer(k[i], k[i])) @ S + beta * np.outer(k[i], v[i])
                h[b, i] = S
                o[i] = S.T @ q[i]
            o = params["norm"] * o / np.sqrt((o**2).mean(-1, keepdims=True) + layer.norm_eps)
            gate = s(params["gate_out"] @ (params["gate_in"] @ u) + params["gate_bias"])
            y[b, t] = params["out_proj"] @ (o.ravel() * gate)
    return y, (tail, h)


def comba_loop(layer: Comba, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    """One token after the other, with the error of the state before its decay."""
    tail, h = (np.array(one) for one in state)
    H, K, V = layer.heads, layer.d_state, layer.width
    y = np.zeros_like(x)

    def s(z: Any) -> Any:
        return 1 / (1 + np.exp(-z))

    def unit(z: Any) -> Any:
        return z / np.sqrt(z @ z + 1e-6)

    for b in range(x.shape[0]):
        for t in range(x.shape[1] if lengths is None else lengths[b]):
            u = x[b, t]
            z = params["qkv_proj"] @ u
            if layer.d_conv:
                window = np.concatenate([tail[b], z[None]])
                tail[b] = window[1:]
                z = np.einsum("kd,dk->d", window, params["conv_w"])
            q, k, v = np.split(z * s(z), [H * K, 2 * H * K])
            q, k, v, o = q.reshape(H, K), k.reshape(H, K), v.reshape(H, V), np.zeros((H, V))
            delta = np.log1p(np.exp(params["decay_proj"] @ u + params["dt_bias"]))
            for i in range(H):
                d = s(params["feedback"][i])
                query = unit(q[i] - params["correction"][i] * d * k[i])
                key, S = unit(k[i]), h[b, i]
                error = v[i] - S.T @ (d * key)
                alpha, beta = np.exp(-np.exp(params["A_log"][i]) * delta[i]), s(params["beta_proj"][i] @ u)
                S = alpha * S + beta * np.outer(key, error)
                h[b, i] = S
                o[i] = S.T @ query
            o = params["norm"] * o / np.sqrt((o**2).mean(-1, keepdims=True) + layer.norm_eps)
            y[b, t] = params["out_proj"] @ (o.ravel() * s(params["gate_proj"] @ u))
    return y, (tail, h)


def rwkv7_loop(layer: RWKV7, params: Arrays, x: Any, state: Any, lengths: Any) -> tuple[Any, Any]:
    """RWKV-7's section 4 one token after the other, with the paper's state S = h^T (V, K)."""
    before, h = (np.array(one) for one in state)
    H, K = layer.heads, layer.width
    y = np.zeros_like(x)

    def s(z: Any) -> Any:
        return 1 / (1 + np.exp(-z))

    for b in range(x.shape[0]):
        for t in range(x.shape[1] if lengths is None else lengths[b]):
            u = {c: x[b, t] + (before[b, 0] - x[b, t]) * params[f"mu_{c}"] for c in "rwkvag"}
            before[b, 0] = x[b, t]
            r, k, v = (params[f"W_{c}"] @ u[c] for c in "rkv")
            w = np.exp(-np.exp(-0.5) * s(params["w_bias"] + params["w_out"] @ np.tanh(params["w_in"] @ u["w"])))
            a = s(params["a_bias"] + params["a_out"] @ (params["a_in"] @ u["a"]))
            g = params["g_out"] @ s(params["g_in"] @ u["g"])
            kappa = (k * params["k_k"]).reshape(H, K)
            kappa = kappa / np.sqrt((kappa**2).sum(-1, keepdims=True) + 1e-12)
            k = k * (1 + (a - 1) * params["k_a"])
            r, w, k, v, a = (one.reshape(H, K) for one in (r, w, k, v, a))
            out = np.zeros((H, K))
            for i in range(H):
                S = h[b, i].T
                S = S @ (np.diag(w[i]) - np.outer(kappa[i], a[i] * kappa[i])) + np.outer(v[i], k[i])
                h[b, i] = S.T
                o = S @ r[i]
                normed = (o - o.mean()) / np.sqrt(o.var() + layer.norm_eps * K)
                scale, offset, r_k = (params[name].reshape(H, K)[i] for name in ("norm", "norm_bias", "r_k"))
                out[i] = normed * scale + offset + (r[i] * k[i] * r_k).sum() * v[i]
            y[b, t] = params["W_o"] @ (out.ravel() * g)
    return y, (before, h)


def delta_net_row(
    name: str, layer: Any, B: int, T: int, lengths: Any = None, reference: Any = delta_net_loop
) -> LayerRow:
    return LayerRow(
        name,
        layer,
        B,
        T,
        lengths,
        reference,
        # those of the rule; the norms divide by what they are given, so roundings grow by its inverse size
        terms=(2 * layer.d_state + 8 + B) * getattr(layer, "steps", 1) * T + 8 * layer.inner + 200,
        linear=(("out_proj",),),
    )


LAYERS = [
    delta_net_row("", DeltaNet(4, d_state=3), 2, 12),
    delta_net_row("gated", DeltaNet(4, heads=2, d_state=3, gate=True, output_gate=True), 3, 9, (9, 0, 2)),
    delta_net_row("product", DeltaNet(4, heads=2, d_state=2, steps=2, negative=True), 2, 7),
    delta_net_row(
        "gated product",
        DeltaNet(3, d_state=4, expand=2, steps=3, gate=True, negative=True, output_gate=True, d_conv=2),
        2,
        6,
        (6, 3),
    ),
    delta_net_row("no convolution", DeltaNet(4, heads=2, d_state=2, d_conv=0, gate=True), 2, 6),
    delta_net_row("", DeltaNet(2, d_state=2, d_conv=1), 1, 0),
    delta_net_row(
        "selective rope",
        DeltaNet(4, heads=2, d_state=4, gate=True, output_gate=True, rope_base=100.0, rope_rank=3),
        3,
        9,
        (9, 0, 2),
    ),
    delta_net_row("rope bias", DeltaNet(4, d_state=2, steps=2, rope_base=1.0, rope_bias=True), 2, 12),
]

LAYERS += [
    delta_net_row(name, layer, B, T, lengths, kda_loop)
    for kind in (KDA, GatedDeltaNet2)
    for name, layer, B, T, lengths in (
        ("", kind(4, d_state=3), 2, 12, None),
        ("negative", kind(6, heads=2, d_state=3, expand=2, negative=True, d_conv=2), 3, 9, (9, 0, 2)),
        ("no convolution", kind(4, heads=2, d_state=2, d_conv=0), 2, 6, None),
        ("fewer keys", kind(8, heads=4, d_state=5, key_heads=2, lower_bound=-5.0), 2, 7, (7, 3)),
        ("", kind(2, d_state=2, d_conv=1), 1, 0, None),
    )
]

LAYERS += [
    delta_net_row("", Comba(4, d_state=3), 2, 12, None, comba_loop),
    delta_net_row("", Comba(6, heads=2, d_state=3, expand=2, d_conv=2), 3, 9, (9, 0, 2), comba_loop),
    delta_net_row("no convolution", Comba(4, heads=2, d_state=2, d_conv=0, correction=0.02), 2, 6, None, comba_loop),
]

LAYERS += [
    LayerRow(
        "",
        layer,
        B,
        T,
        lengths,
        rwkv7_loop,
        # those of the rule with K = D / H; the norms divide by lengths, here above a tenth
        terms=(2 * layer.width + 30) * (T + 4) + 60 * layer.d_model + 300,
        linear=(("W_o",),),
    )
    for layer, B, T, lengths in (
        (RWKV7(4, rank=3, gate_rank=5), 2, 12, None),
        (RWKV7(6, heads=2, rank=2, gate_rank=3), 3, 9, (9, 0, 2)),
        (RWKV7(6, heads=3, rank=2, gate_rank=2), 1, 0, None),
    )
]

LAYERS_LARGE = [
    delta_net_row("", DeltaNet(24, heads=2, d_state=8, steps=2, gate=True), 3, 120, (120, 0, 83), None),
    delta_net_row("", GatedDeltaNet2(24, heads=2, d_state=8, negative=True), 3, 80, (80, 0, 43), None),
]
