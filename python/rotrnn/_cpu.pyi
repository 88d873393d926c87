"""The C kernels. Arguments stand in the order of csrc/entries.c; shapes are checked by rotrnn.ops, not here."""

from typing import Any

import numpy as np
import numpy.typing as npt

_R = npt.NDArray[Any]
_RO = npt.NDArray[Any] | None
_U8 = npt.NDArray[np.uint8]
_I = npt.NDArray[np.int64]
_IO = npt.NDArray[np.int64] | None

SIMD_AVAILABLE: tuple[str, ...]
OPENMP: int
COMPILER: str
KEEPS_MEMORY: int

def empty(shape: tuple[int, ...], dtype: npt.DTypeLike, /) -> npt.NDArray[Any]: ...
def release_memory() -> int: ...
def simd() -> str: ...
def use_simd(name: str, /) -> str: ...
def threads() -> int: ...
def use_threads(count: int, /) -> int: ...
def scan_forward(
    h: _R, hT: _RO, a: _R, x: _R, h0: _RO, lengths: _IO, B: int, T: int, N: int, varying: int, reverse: int, /
) -> None: ...
def scan_backward(
    dx: _R,
    da: _R,
    dh0: _RO,
    dh: _R,
    dhT: _RO,
    a: _R,
    h: _R,
    h0: _RO,
    lengths: _IO,
    B: int,
    T: int,
    N: int,
    varying: int,
    reverse: int,
    /,
) -> None: ...
def window_forward(
    h: _R,
    last: _RO,
    a: _R,
    x: _R,
    past: _RO,
    lengths: _IO,
    B: int,
    T: int,
    N: int,
    L: int,
    varying: int,
    reverse: int,
    /,
) -> None: ...
def window_backward(
    dx: _R,
    da: _R,
    dpast: _R,
    dh: _R,
    dlast: _RO,
    a: _R,
    x: _R,
    past: _RO,
    lengths: _IO,
    B: int,
    T: int,
    N: int,
    L: int,
    varying: int,
    reverse: int,
    /,
) -> None: ...
def tiir(
    h: _R, delay: _R, sums: _R, position: _I, a: _R, power: _R, x: _R, B: int, T: int, N: int, L: int, resets: int, /
) -> None: ...
def matmul(y: _R, x: _R, w: _R, bias: _RO, M: int, d_in: int, d_out: int, transposed: int, /) -> None: ...
def matmul_weight_grad(dw: _R, dbias: _RO, x: _R, dy: _R, M: int, d_in: int, d_out: int, /) -> None: ...
def philox(out: _I, counter: _I, key: _I, n: int, /) -> None: ...
def listops_sample(
    tokens: _U8,
    lengths: _I,
    values: _U8,
    n: int,
    seed: int,
    first: int,
    max_depth: int,
    max_args: int,
    min_length: int,
    max_length: int,
    /,
) -> None: ...
def listops_parse(tokens: _U8, result: _I, text: _U8, size: int, /) -> None: ...
def listops_render(text: _U8, start: _I, tokens: _U8, n: int, /) -> None: ...
def word_sample(elements: _I, row: _I, n: int, T: int, order: int, count: int, seed: int, /) -> None: ...
def word_states(states: _I, elements: _I, factors: _I, n: int, T: int, F: int, /) -> None: ...
def copy_rows(
    tokens: _I,
    labels: _I,
    stream: _I,
    n: int,
    T: int,
    seed: int,
    letters: int,
    variant: int,
    gram: int,
    answer: int,
    low: int,
    high: int,
    /,
) -> None: ...
def copy_strings(
    tokens: _I,
    labels: _I,
    sizes: _I,
    stream: _I,
    length: _I,
    n: int,
    T: int,
    seed: int,
    letters: int,
    variant: int,
    gram: int,
    answer: int,
    /,
) -> None: ...
def delayed_copy(
    inputs: _U8, labels: _I, stream: _I, n: int, length: int, delay: int, bits: int, seed: int, /
) -> None: ...
def brackets_sample(
    tokens: _I,
    labels: _I,
    sizes: _I,
    stream: _I,
    n: int,
    T: int,
    seed: int,
    low: int,
    high: int,
    modulus: int,
    operators: int,
    /,
) -> None: ...
def regular_sample(
    tokens: _I,
    labels: _I,
    sizes: _I,
    stream: _I,
    length: _IO,
    n: int,
    T: int,
    seed: int,
    low: int,
    high: int,
    language: int,
    m: int,
    /,
) -> None: ...
def pathfinder(
    images: _U8,
    facts: _I,
    paddles: _I,
    index: _I,
    lines: _U8,
    masks: _U8,
    markers: _U8,
    seed_steps: _R,
    steps: _R,
    ring: _R,
    ends: _I,
    weights: _I,
    probes: _I,
    probe_counts: _I,
    n: int,
    seed: int,
    window: int,
    padding: int,
    seed_distance: int,
    margin: int,
    S: int,
    C: int,
    K: int,
    E: int,
    contour_length: int,
    distractors: int,
    distractor_length: int,
    target_shade: int,
    distractor_shade: int,
    /,
) -> None: ...
def matmul_stack(y: _R, x: _R, w: _R, G: int, M: int, d_in: int, d_out: int, /) -> None: ...
def copy(y: _R, x: _R, n: int, /) -> None: ...
def elementwise(y: _R, x: _R, lengths: _IO, B: int, T: int, D: int, function: int, /) -> None: ...
def glu_forward(y: _R, value: _R, gate: _R, lengths: _IO, B: int, T: int, D: int, /) -> None: ...
def glu_backward(
    dvalue: _R, dgate: _R, dy: _R, value: _R, gate: _R, lengths: _IO, B: int, T: int, D: int, /
) -> None: ...
def mask_padding(y: _R, x: _R, lengths: _IO, B: int, T: int, D: int, /) -> None: ...
def dropout(
    y: _R,
    x: _R,
    lengths: _IO,
    places: _IO,
    B: int,
    T: int,
    D: int,
    rate: float,
    seed: int,
    step: int,
    site: int,
    over_time: int,
    /,
) -> None: ...
def channel_moments(mean: _R, var: _R, x: _R, lengths: _IO, B: int, T: int, D: int, /) -> None: ...
def channel_affine(y: _R, x: _R, center: _R, gain: _R, offset: _R, lengths: _IO, B: int, T: int, D: int, /) -> None: ...
def channel_sums(sum: _R, product: _R, dy: _R, x: _R, center: _R, lengths: _IO, B: int, T: int, D: int, /) -> None: ...
def channel_adjoint(
    dx: _R, dy: _R, x: _R, center: _R, gain: _R, slope: _R, offset: _R, lengths: _IO, B: int, T: int, D: int, /
) -> None: ...
def layer_norm_forward(
    y: _R, mean: _R, rstd: _R, x: _R, scale: _R, bias: _R, lengths: _IO, B: int, T: int, D: int, eps: float, /
) -> None: ...
def layer_norm_backward(
    dx: _R,
    dscale: _R,
    dbias: _R,
    dy: _R,
    x: _R,
    scale: _R,
    mean: _R,
    rstd: _R,
    lengths: _IO,
    B: int,
    T: int,
    D: int,
    /,
) -> None: ...
def embedding_forward(y: _R, ids: _I, table: _R, bias: _RO, lengths: _IO, B: int, T: int, D: int, /) -> None: ...
def embedding_backward(dtable: _R, dy: _R, ids: _I, lengths: _IO, B: int, T: int, D: int, V: int, /) -> None: ...
def mean_pool_forward(y: _R, x: _R, lengths: _IO, B: int, T: int, D: int, /) -> None: ...
def mean_pool_backward(dx: _R, dy: _R, lengths: _IO, B: int, T: int, D: int, /) -> None: ...
def cross_entropy(loss: _R, dlogits: _R, logits: _R, labels: _I, B: int, C: int, /) -> None: ...
def adamw(
    p: _R,
    m: _R,
    v: _R,
    norms: npt.NDArray[np.float64],
    grad: _R,
    n: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    scale: float,
    step: int,
    /,
) -> None: ...
def norm(norm: npt.NDArray[np.float64], x: _R, n: int, /) -> None: ...
def block_forward(*args: Any) -> None: ...  # csrc/block.h, by way of rotrnn.ops.linear_layer.block_arguments
def block_backward(*args: Any) -> None: ...
def orthogonal_forward(P: _R, M: _R, G: int, n: int, /) -> None: ...
def orthogonal_backward(dM: _R, dP: _R, M: _R, G: int, n: int, /) -> None: ...
def rnn_forward(
    h: _R,
    hT: _R,
    c: _RO,
    cT: _RO,
    gates: _RO,
    w: _R,
    x: _R,
    h0: _RO,
    c0: _RO,
    lengths: _IO,
    B: int,
    T: int,
    N: int,
    cell: int,
    reverse: int,
    /,
) -> None: ...
def rnn_backward(
    dx: _R,
    dh0: _R,
    dc0: _RO,
    dh: _R,
    dhT: _RO,
    dcT: _RO,
    w: _R,
    h: _R,
    c: _RO,
    gates: _RO,
    c0: _RO,
    lengths: _IO,
    B: int,
    T: int,
    N: int,
    cell: int,
    reverse: int,
    /,
) -> None: ...
def attention_forward(
    y: _R,
    norm: _R,
    q: _R,
    k: _R,
    v: _R,
    lengths: _IO,
    past: _IO,
    B: int,
    T: int,
    S: int,
    D: int,
    H: int,
    window: int,
    /,
) -> None: ...
def attention_backward(
    dq: _R,
    dk: _R,
    dv: _R,
    dy: _R,
    q: _R,
    k: _R,
    v: _R,
    y: _R,
    norm: _R,
    lengths: _IO,
    past: _IO,
    B: int,
    T: int,
    S: int,
    D: int,
    H: int,
    window: int,
    /,
) -> None: ...
def bank_forward(
    y: _R,
    hT: _R,
    carries: _R,
    a: _R,
    c: _R,
    skip: _R,
    u: _R,
    h0: _RO,
    lengths: _IO,
    B: int,
    T: int,
    D: int,
    N: int,
    tile: int,
    reverse: int,
    /,
) -> None: ...
def bank_backward(
    du: _R,
    da: _R,
    dc: _R,
    dskip: _R,
    dh0: _R,
    dy: _R,
    dhT: _RO,
    carries: _R,
    a: _R,
    c: _R,
    skip: _R,
    u: _R,
    lengths: _IO,
    B: int,
    T: int,
    D: int,
    N: int,
    tile: int,
    reverse: int,
    /,
) -> None: ...
def elementwise_backward(dx: _R, dy: _R, x: _R, lengths: _IO, B: int, T: int, D: int, function: int, /) -> None: ...
def selective_forward(
    y: _RO,
    hT: _RO,
    carries: _RO,
    x: _R,
    delta: _R,
    A: _R,
    B: _R,
    C: _R,
    skip: _RO,
    h0: _RO,
    lengths: _IO,
    batch: int,
    T: int,
    D: int,
    S: int,
    reverse: int,
    /,
) -> None: ...
def selective_backward(
    dx: _R,
    ddelta: _R,
    dA: _R,
    dB: _R,
    dC: _R,
    dskip: _RO,
    dh0: _R,
    dy: _R,
    dhT: _RO,
    carries: _R,
    x: _R,
    delta: _R,
    A: _R,
    B: _R,
    C: _R,
    skip: _RO,
    lengths: _IO,
    batch: int,
    T: int,
    D: int,
    S: int,
    reverse: int,
    /,
) -> None: ...
def conv_forward(
    y: _R, final: _RO, x: _R, w: _R, bias: _RO, state: _RO, lengths: _IO, B: int, T: int, D: int, taps: int, /
) -> None: ...
def conv_backward(
    dx: _R,
    dw: _R,
    dbias: _R,
    dstate: _R,
    dy: _R,
    dfinal: _RO,
    x: _R,
    w: _R,
    state: _RO,
    lengths: _IO,
    B: int,
    T: int,
    D: int,
    taps: int,
    /,
) -> None: ...
def mix_forward(
    y: _R,
    u: _R,
    alpha: _R,
    x: _R,
    origin: _RO,
    lengths: _IO,
    B: int,
    T: int,
    R: int,
    D: int,
    u_varying: int,
    alpha_varying: int,
    form: int,
    /,
) -> None: ...
def mix_backward(
    dx: _R,
    du: _R,
    dalpha: _R,
    dorigin: _RO,
    dy: _R,
    u: _R,
    alpha: _R,
    x: _R,
    origin: _RO,
    lengths: _IO,
    B: int,
    T: int,
    R: int,
    D: int,
    u_varying: int,
    alpha_varying: int,
    form: int,
    /,
) -> None: ...
def relax(residual: _R, y: _R, f: _R, s: _R, lengths: _IO, B: int, T: int, D: int, each_step: int, /) -> None: ...
def mixer_prepare(w: _R, u: _R, M: int, R: int, D: int, form: int, /) -> None: ...
def depth_pass(
    residual: _R,
    y: _R,
    x: _R,
    lam: _R,
    w: _R,
    alpha: _R,
    h0: _RO,
    s: _R,
    lengths: _IO,
    B: int,
    T: int,
    R: int,
    D: int,
    varying: int,
    w_varying: int,
    alpha_varying: int,
    form: int,
    scaled: int,
    adjoint: int,
    /,
) -> None: ...
def lagged_forward(
    out: _R,
    base: _R,
    late: _RO,
    first: _RO,
    lengths: _IO,
    B: int,
    T: int,
    K: int,
    lo: int,
    n: int,
    function: int,
    /,
) -> None: ...
def lagged_product(
    out: _R,
    base: _R,
    y: _R,
    v: _R,
    first: _RO,
    lengths: _IO,
    widths: _I,
    functions: _I,
    ranges: int,
    B: int,
    T: int,
    K: int,
    E: int,
    /,
) -> None: ...
def lagged_backward(
    dbase: _R,
    dlate: _RO,
    dfirst: _RO,
    dout: _R,
    base: _R,
    late: _RO,
    first: _RO,
    lengths: _IO,
    B: int,
    T: int,
    K: int,
    lo: int,
    n: int,
    function: int,
    /,
) -> None: ...
