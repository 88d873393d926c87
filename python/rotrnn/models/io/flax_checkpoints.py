"""Checkpoints of S5 (the published Flax code) and of minimal-LRU (a Flax implementation of LRU).

Their classifiers are ``encoder`` (a dense map ``encoder/encoder``, the blocks ``encoder/layers_0``, ...) and
``decoder``. A checkpoint has the arrays under these names in "params", and the running statistics of batch norms in
"batch_stats". Settings that it lacks, because the published classes take them as arguments, are arguments here. The
published models return log_softmax of the logits here.
"""

from __future__ import annotations

import errno
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rotrnn._support.extras import needed
from rotrnn._support.files import read_file, read_npz
from rotrnn._support.text import an
from rotrnn.models.build import ModelSettings, build_model
from rotrnn.models.files import Loaded
from rotrnn.nn.blocks.pool import POOLS
from rotrnn.nn.layer import Array, Recurrent, unflatten
from rotrnn.nn.layers.lru import LRU
from rotrnn.nn.layers.s5 import S5
from rotrnn.ops.boundary import Boundary

Source = str | os.PathLike[str] | Mapping[str, Any]
EPSILON = {"batch": 1e-5, "layer": 1e-6}
"""Added to variances by Flax."""
ACTIVATIONS = {"full_glu": "full", "half_glu1": "half1", "half_glu2": "half2", "gelu": "gelu"}
"""The ends of a block in S5's code, and their names in `ModelSettings`."""
OUTPUTS: dict[str, tuple[str, ...]] = {"full": ("out1", "out2"), "half1": ("out2",), "half2": ("out2",), "gelu": ()}
"""Dense maps of each end of a block."""


def import_lru(source: Source, *, prenorm: bool, pool: str = "mean", tokens: bool = False) -> Loaded:
    """Returns the model of a checkpoint of minimal-LRU (BatchClassificationModel), and its parameters.

    Parameters
    ----------
    source : path or dict
        A .npz file whose arrays have the names "params/encoder/encoder/kernel" and so on; a msgpack file of
        flax.serialization (needs flax); or the nested dict of arrays itself. A model with batch norms needs its
        "batch_stats", too: norms without running statistics are read as layer norms, whose arrays have the same names.
    prenorm : bool
        Whether the norm comes before the layer or after the sum, as in the published class.
    pool : "mean", "last" or "none"
        As `pooling` of the published class. "none" makes a `Tagger`.
    tokens : bool
        Take token ids in place of one-hot vectors.

    Raises
    ------
    OSError, ValueError
        There is no such file, it is a folder or damaged, or an array is missing, of another shape, or not expected. The
        error names the file and the array.
    ImportError
        A msgpack file, but flax is not installed.
    """
    args, tree = Boundary("import_lru"), _Tree.of("import_lru", source)
    prenorm = args.flag("prenorm", prenorm)
    N, D = tree.shape("encoder/layers_0/seq/B_re", 2)
    layer = LRU(D, N)
    for i in range(tree.layers):
        for name, shape in layer.shapes.items():
            tree.take(f"blocks.{i}.layer.{name}", f"encoder/layers_{i}/seq/{name}", shape)
    return _loaded(args, tree, layer, "full", "normalization", prenorm, pool, tokens, 0.99)


def import_s5(
    source: Source,
    *,
    prenorm: bool,
    activation: str,
    pool: str = "mean",
    tokens: bool = False,
    conj_sym: bool = True,
    discretization: str = "zoh",
    clip_eigs: bool = False,
    step_rescale: float = 1.0,
    bn_momentum: float = 0.9,
) -> Loaded:
    """Returns the model of a checkpoint of S5 (BatchClassificationModel), and its parameters.

    Parameters
    ----------
    source, prenorm, tokens
        As in `import_lru`.
    activation : "full_glu", "half_glu1", "half_glu2" or "gelu"
    pool : "mean" or "last"
        `mode` of the published class, whose "pool" is the mean.
    conj_sym, discretization, clip_eigs, step_rescale, bn_momentum
        As in the published class. Whether it is bidirectional is seen from its arrays.

    Raises
    ------
    OSError, ValueError, ImportError
        As `import_lru`.
    """
    args, tree = Boundary("import_s5"), _Tree.of("import_s5", source)
    prenorm, conjugate = args.flag("prenorm", prenorm), args.flag("conj_sym", conj_sym)
    args.choice("activation", activation, ACTIVATIONS)
    P, D, _ = tree.shape("encoder/layers_0/seq/B", 3)
    apart = "encoder/layers_0/seq/C1" in tree
    both = apart or tree.shape("encoder/layers_0/seq/C", 3)[1] == 2 * P
    layer = S5(
        D, P * (1 + conjugate), bidirectional=both, conjugate=conjugate, discretisation=discretization,
        clip_eigs=clip_eigs, step_scale=step_rescale,
    )  # fmt: skip
    for i in range(tree.layers):
        ours, there = f"blocks.{i}.layer.", f"encoder/layers_{i}/seq/"
        for name, published in (("lambda_re", "Lambda_re"), ("lambda_im", "Lambda_im")):
            tree.take(ours + name, there + published, (P,))
        tree.put(ours + "log_step", tree.pop(there + "log_step", (P, 1))[:, 0])
        tree.put(ours + "D", tree.pop(there + "D", (D,)))
        pairs = {"B": tree.pop(there + "B", (P, D, 2))}
        if apart:
            pairs |= {"C": tree.pop(there + "C1", (D, P, 2)), "C_reverse": tree.pop(there + "C2", (D, P, 2))}
        else:
            whole = tree.pop(there + "C", (D, P * (1 + both), 2))
            pairs |= {"C": whole[:, :P], **({"C_reverse": whole[:, P:]} if both else {})}
        for name, pair in pairs.items():
            letter, _, direction = name.partition("_")
            for part, k in (("re", 0), ("im", 1)):
                tree.put("_".join(filter(None, (ours + letter, part, direction))), pair[..., k])
    return _loaded(
        args,
        tree,
        layer,
        ACTIVATIONS[activation],
        "norm",
        prenorm,
        pool,
        tokens,
        args.number("bn_momentum", bn_momentum),
    )


TRAINING = ("opt_state/", "step", "rng", "key")
"""Training data in a checkpoint besides the model."""


class _Tree:
    """The arrays of a checkpoint by their names, such as "encoder/encoder/kernel", and the arrays of our model made
    from them."""

    def __init__(self, where: str, tree: Mapping[str, Any]) -> None:
        whole = dict(_flat(tree))
        prefix = "params/" if any(name.startswith("params/") for name in whole) else ""
        wanted = (prefix, "batch_stats/") if prefix else ("",)
        self.where, self.made = where, dict[str, Array]()
        self.arrays = {name.removeprefix(prefix): value for name, value in whole.items() if name.startswith(wanted)}
        if other := [name for name in whole if not name.startswith(wanted)]:
            raise ValueError(f"{where}: has {other[0]}, which is not expected beside params and batch_stats")
        names = {name.split("/")[1] for name in self.arrays if name.startswith("encoder/layers_")}
        self.layers = len(names)
        if not self.layers:
            raise ValueError(f"{where}: has no encoder/layers_0, expected the arrays of a stack of blocks")

    @classmethod
    def of(cls, call: str, source: Source) -> _Tree:
        if isinstance(source, Mapping):
            return cls(f"{call}: source", source)
        if not isinstance(source, str | os.PathLike):
            raise TypeError(f"{call}: source is {an(type(source).__name__)}, expected a path or a dict of arrays")
        path = Path(source)
        if path.is_dir():
            expected = "expected a .npz file or a msgpack file of flax; of a folder of Orbax, the dict that it restores"
            raise IsADirectoryError(errno.EISDIR, f"{call}: source is a folder, {expected}", str(path))
        return cls(str(path), read_npz(path) if zipfile.is_zipfile(path) else _msgpack(path))

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def pop(self, name: str, shape: tuple[int, ...]) -> Array:
        """Returns an array of the checkpoint, which must have this shape."""
        got = self.shape(name, len(shape))
        if got != shape:
            raise ValueError(f"{self.where}: {name} has shape {got}, expected {shape}")
        return self.arrays.pop(name)

    def shape(self, name: str, axes: int) -> tuple[int, ...]:
        if name not in self.arrays:
            raise ValueError(f"{self.where}: lacks {name}")
        array = self.arrays[name]
        if array.dtype.kind != "f" or array.ndim != axes:
            got = f"dtype {array.dtype} and shape {array.shape}"
            raise ValueError(f"{self.where}: {name} has {got}, expected real numbers with {axes} axes")
        return tuple(array.shape)

    def put(self, ours: str, array: Array) -> None:
        self.made[ours] = np.array(array, np.result_type(array.dtype, np.float32), order="C")

    def take(self, ours: str, name: str, shape: tuple[int, ...]) -> None:
        self.put(ours, self.pop(name, shape))

    def take_dense(self, ours: str, name: str, d_in: int, d_out: int, w: str = "w") -> None:
        """A dense map of Flax, whose kernel is (in, out)."""
        kernel = self.pop(f"{name}/kernel", (d_in, d_out))
        self.put(f"{ours}.{w}", kernel if w == "table" else kernel.T)
        self.take(f"{ours}.bias", f"{name}/bias", (d_out,))


def _loaded(
    args: Boundary, tree: _Tree, layer: Recurrent, glu: str, norm_name: str, prenorm: bool, pool: str, tokens: bool,
    momentum: float,
) -> Loaded:  # fmt: skip
    """Returns the model around the layers, whose arrays are taken already."""
    args.choice("pool", pool, [*POOLS, "none"])
    D, first = layer.d_model, "encoder/layers_0/"
    F, C = tree.shape("encoder/encoder/kernel", 2)[0], tree.shape("decoder/kernel", 2)[1]
    norm = "batch" if f"batch_stats/{first}{norm_name}/mean" in tree else "layer"
    settings = ModelSettings(
        "s5" if isinstance(layer, S5) else "lru", D, tree.layers, norm, glu, pool="mean" if pool == "none" else pool,
        prenorm=prenorm, norm_eps=EPSILON[norm], norm_momentum=momentum,
    )  # fmt: skip
    reads = {"vocab": F} if args.flag("tokens", tokens) else {"n_features": F}
    model = build_model(settings, layer, head="tagger" if pool == "none" else "classifier", n_classes=C, **reads)
    tree.take_dense("encoder", "encoder/encoder", F, D, "table" if tokens else "w")
    tree.take_dense("head", "decoder", D, C)
    for i in range(tree.layers):
        there, norms = f"encoder/layers_{i}/", f"encoder/layers_{i}/{norm_name}/"
        for name in ("scale", "bias"):
            tree.take(f"blocks.{i}.norm.{name}", norms + name, (D,))
        for name in ("mean", "var") if norm == "batch" else ():
            tree.take(f"blocks.{i}.norm.running_{name}", f"batch_stats/{norms}{name}", (D,))
        for name in OUTPUTS[glu]:
            tree.take_dense(f"blocks.{i}.gate.{'value' if name == 'out1' else 'gate'}", there + name, D, D)
    if tree.arrays:
        raise ValueError(f"{tree.where}: has {min(tree.arrays)}, which is not expected")
    params = unflatten(tree.made)
    try:
        model.check_params(params)
    except ValueError as error:
        raise ValueError(f"{tree.where}: {error}") from error
    return Loaded(model, params)


def _flat(tree: Mapping[str, Any], path: str = "") -> list[tuple[str, Array]]:
    """Returns the arrays of a nested dict by their names; other values, and `TRAINING`, are left out."""
    found: list[tuple[str, Array]] = []
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{path}{name}/")
        elif hasattr(value, "shape") and not f"{path}{name}".startswith(TRAINING):  # keys of JAX are no NumPy arrays
            found.append((f"{path}{name}", np.asarray(value)))
    return found


def _msgpack(path: Path) -> dict[str, Any]:
    data = read_file(path)
    with needed(f"{path}: to read a msgpack file needs flax", "flax"):
        from flax.serialization import msgpack_restore
    try:
        tree = msgpack_restore(data)
    except Exception as error:  # whatever the parser raises
        raise ValueError(
            f"{path}: is neither a .npz file nor a msgpack file of flax, or is damaged ({error})"
        ) from None
    if not isinstance(tree, dict):
        raise ValueError(f"{path}: is {an(type(tree).__name__)}, expected a dict of arrays")
    return tree
