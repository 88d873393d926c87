"""Mamba and Mamba-2 in Hugging Face's format: the folders of MambaForCausalLM and Mamba2ForCausalLM of transformers.

A folder has config.json with the settings, and model.safetensors with the arrays, or several such files and an index of
them. Both families are a `LanguageModel` of plain blocks with RMS norms. Its embedding and head have a bias, which the
published ones do not: it is zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from safetensors import SafetensorError, deserialize

from rotrnn._support.files import read_file
from rotrnn._support.json import from_json
from rotrnn._support.settings import PYTHON, Unfit, describe, fit, hints_of
from rotrnn.models.build import ModelSettings, build_model
from rotrnn.models.files import WEIGHTS, Loaded
from rotrnn.models.model import SequenceModel
from rotrnn.nn.layer import Array, Params, Recurrent, unflatten
from rotrnn.nn.layers.mamba import Mamba
from rotrnn.nn.layers.mamba2 import Mamba2

INDEX = "model.safetensors.index.json"

FOREVER = ([0, float("inf")], [0, None], [0, {"__float__": "Infinity"}])
"""What config.json says of step sizes that are not cut off."""


@dataclass(frozen=True, kw_only=True)
class MambaConfig:
    """What a config.json says that a Mamba depends on. Names and defaults are those of transformers."""

    vocab_size: int = 50280
    hidden_size: int = 768
    num_hidden_layers: int = 32
    layer_norm_epsilon: float = 1e-5
    state_size: int = 16
    expand: int = 2
    conv_kernel: int = 4
    use_bias: bool = False
    use_conv_bias: bool = True
    hidden_act: str = "silu"
    time_step_rank: int | str = "auto"
    time_step_scale: float = 1.0
    time_step_min: float = 0.001
    time_step_max: float = 0.1
    time_step_floor: float = 1e-4
    time_step_init_scheme: str = "random"
    tie_word_embeddings: bool = True

    layer_name: ClassVar[str] = "mamba"
    arrays: ClassVar[dict[str, str]] = {
        "in_proj": "in_proj.weight",
        "in_bias": "in_proj.bias",
        "conv_w": "conv1d.weight",
        "conv_bias": "conv1d.bias",
        "x_proj": "x_proj.weight",
        "dt_proj": "dt_proj.weight",
        "dt_bias": "dt_proj.bias",
        "A_log": "A_log",
        "D": "D",
        "out_proj": "out_proj.weight",
        "out_bias": "out_proj.bias",
    }
    """The layer's parameters, and their names in a checkpoint."""

    def layer(self) -> Recurrent:
        return Mamba(
            self.hidden_size,
            d_state=self.state_size,
            d_conv=self.conv_kernel,
            expand=self.expand,
            dt_rank=self.time_step_rank,
            dt_min=self.time_step_min,
            dt_max=self.time_step_max,
            dt_init=self.time_step_init_scheme,
            dt_scale=self.time_step_scale,
            dt_init_floor=self.time_step_floor,
            conv_bias=self.use_conv_bias,
            bias=self.use_bias,
        )


@dataclass(frozen=True, kw_only=True)
class Mamba2Config:
    """What a config.json says that a Mamba-2 depends on. Names and defaults are those of transformers."""

    vocab_size: int = 32768
    hidden_size: int = 4096
    num_hidden_layers: int = 64
    layer_norm_epsilon: float = 1e-5
    state_size: int = 128
    num_heads: int = 128
    head_dim: int = 64
    n_groups: int = 8
    expand: int = 2
    conv_kernel: int = 4
    use_bias: bool = False
    use_conv_bias: bool = True
    hidden_act: str = "silu"
    time_step_min: float = 0.001
    time_step_max: float = 0.1
    time_step_floor: float = 1e-4
    tie_word_embeddings: bool = False

    layer_name: ClassVar[str] = "mamba2"
    arrays: ClassVar[dict[str, str]] = MambaConfig.arrays | {"dt_bias": "dt_bias", "norm": "norm.weight"}

    def __post_init__(self) -> None:
        inner = self.expand * self.hidden_size
        if self.num_heads * self.head_dim != inner:
            got = f"num_heads is {self.num_heads} and head_dim {self.head_dim}"
            raise ValueError(f"{got}, expected expand * hidden_size = {inner} as their product")

    def layer(self) -> Recurrent:
        return Mamba2(
            self.hidden_size,
            d_state=self.state_size,
            d_conv=self.conv_kernel,
            expand=self.expand,
            d_head=self.head_dim,
            groups=self.n_groups,
            dt_min=self.time_step_min,
            dt_max=self.time_step_max,
            dt_init_floor=self.time_step_floor,
            conv_bias=self.use_conv_bias,
            bias=self.use_bias,
            norm_eps=self.layer_norm_epsilon,
        )


Config = MambaConfig | Mamba2Config


def read_mamba(folder: Path, settings: dict[str, Any]) -> Loaded:
    """Returns the model of a folder whose config.json has the model_type "mamba"."""
    return _read(folder, settings, MambaConfig)


def read_mamba2(folder: Path, settings: dict[str, Any]) -> Loaded:
    """Returns the model of a folder whose config.json has the model_type "mamba2"."""
    if settings.get("time_step_limit", FOREVER[0]) not in FOREVER:
        limit = f"time_step_limit is {settings['time_step_limit']!r:.80}"
        raise ValueError(f"{folder / 'config.json'}: {limit}, expected 0 and infinity: step sizes that are not cut off")
    return _read(folder, settings, Mamba2Config)


def _read(folder: Path, settings: dict[str, Any], kind: Any) -> Loaded:
    """Returns the model of a folder; `kind` is the class of its settings."""
    path = folder / "config.json"
    known = {
        name: _setting(path, name, settings[name], hint) for name, hint in hints_of(kind).items() if name in settings
    }
    try:
        config: Config = kind(**known)
        if config.hidden_act != "silu":
            raise ValueError(f"hidden_act is {config.hidden_act!r:.80}, expected 'silu'")
        inner = config.expand * config.hidden_size
        if settings.get("intermediate_size", inner) != inner:
            raise ValueError(f"intermediate_size is {settings['intermediate_size']!r:.80}, expected {inner}")
        model = _model_of(config)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    return Loaded(model, _params_of(folder, model, config))


def _setting(path: Path, name: str, value: Any, hint: Any) -> Any:
    try:
        return fit(value, hint)
    except Unfit:
        raise ValueError(f"{path}: {name} is {value!r:.80}, expected {describe(hint, PYTHON)}") from None


def _model_of(config: Config) -> SequenceModel:
    settings = ModelSettings(
        config.layer_name,
        *(config.hidden_size, config.num_hidden_layers),
        norm="rms",
        block="plain",
        final_norm=True,
        norm_eps=config.layer_norm_epsilon,
        tied=config.tie_word_embeddings,
    )
    return build_model(settings, config.layer(), head="language", n_classes=config.vocab_size, vocab=config.vocab_size)


def _names(model: SequenceModel, config: Config) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yields each parameter, its name in a checkpoint, and its shape there."""
    V, D = config.vocab_size, config.hidden_size
    yield "encoder.table", "backbone.embeddings.weight", (V, D)
    for i, block in enumerate(model.stack.blocks):
        yield f"blocks.{i}.norm.scale", f"backbone.layers.{i}.norm.weight", (D,)
        for name, shape in block.layer.shapes.items():
            there = (shape[0], 1, shape[1]) if name == "conv_w" else shape
            yield f"blocks.{i}.layer.{name}", f"backbone.layers.{i}.mixer.{config.arrays[name]}", there
    yield "norm.scale", "backbone.norm_f.weight", (D,)
    if not config.tie_word_embeddings:
        yield "head.w", "lm_head.weight", (V, D)


def _params_of(folder: Path, model: SequenceModel, config: Config) -> Params:
    """Returns the parameters of a folder, in the dtype of its arrays, but at least float32."""
    where, arrays = _arrays(folder)
    table, first = "backbone.embeddings.weight", "backbone.embedding.weight"
    if first in arrays and table not in arrays:  # as the first checkpoints have it
        arrays[table] = arrays.pop(first)
    head = arrays.pop("lm_head.weight", None) if config.tie_word_embeddings else None
    if head is not None and not np.array_equal(head, arrays.get(table, head), equal_nan=True):
        expected = f"{table} once more, or tie_word_embeddings=false in config.json"
        raise ValueError(f"{where}: lm_head.weight has numbers of its own, expected {expected}")
    flat: dict[str, Array] = {}
    for name, there, shape in _names(model, config):
        if there not in arrays:
            raise ValueError(f"{where}: lacks {there}")
        array = arrays.pop(there)
        if array.shape != shape:
            raise ValueError(f"{where}: {there} has shape {array.shape}, expected {shape}")
        flat[name] = array.reshape(shape[0], shape[2]) if len(shape) == 3 else array
    if arrays:
        raise ValueError(f"{where}: has {min(arrays)}, which is not expected")
    dtype = np.result_type(*flat.values())
    flat = {name: one.astype(dtype, copy=False) for name, one in flat.items()}
    flat |= {"encoder.bias": np.zeros(config.hidden_size, dtype), "head.bias": np.zeros(config.vocab_size, dtype)}
    params = unflatten(flat)
    try:
        model.check_params(params)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    return params


def _arrays(folder: Path) -> tuple[Path, dict[str, Array]]:
    """Returns the file with a folder's arrays, or the index of several, and the arrays."""
    whole, index = folder / WEIGHTS, folder / INDEX
    if whole.is_file() or not index.is_file():
        check_weights(folder)
        return whole, read_arrays(whole)
    try:
        files = sorted(set(from_json(read_file(index))["weight_map"].values()))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ValueError(f"{index}: has no weight_map, expected the file of each array") from None
    arrays: dict[str, Array] = {}
    for name in files:
        if not isinstance(name, str) or Path(name).name != name:
            raise ValueError(f"{index}: weight_map names {name!r:.80}, expected a file of this folder")
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder}: has no {name}, expected all {len(files)} files that {INDEX} names")
        part = read_arrays(folder / name)
        if twice := arrays.keys() & part.keys():
            raise ValueError(f"{folder / name}: has {min(twice)}, which another file of {INDEX} has, too")
        arrays |= part
    return index, arrays


def check_weights(folder: Path) -> None:
    """Raises FileNotFoundError if a folder has no file with arrays."""
    if not (folder / WEIGHTS).is_file():
        pickled = [path.name for path in sorted(folder.glob("*.bin"))]
        what = "is a pickle, which may run code: let the library that wrote it write safetensors"
        hint = "".join(f"; {name} {what}" for name in pickled[:1])
        raise FileNotFoundError(f"{folder}: has no {WEIGHTS}, expected the arrays of a model{hint}")


def read_arrays(path: Path) -> dict[str, Array]:
    """Returns the arrays of a safetensors file of anyone's: float32 and float64, and float16 and bfloat16 as float32.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        It is not a safetensors file, is damaged, or an array has another dtype.
    """
    try:
        parts = deserialize(read_file(path))  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise ValueError(f"{path}: is truncated, or is not a safetensors file ({error})") from error
    return {name: _array(path, name, **part) for name, part in parts}


def _array(path: Path, name: str, shape: list[int], dtype: str, data: bytes) -> Array:
    if dtype == "BF16":  # the upper half of a float32
        wide: Array = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    elif dtype in ("F16", "F32", "F64"):
        wide = np.frombuffer(data, f"<f{int(dtype[1:]) // 8}")
    else:
        raise ValueError(f"{path}: {name} has dtype {dtype}, expected F32, F64, F16 or BF16")
    return wide.reshape(shape).astype(np.result_type(wide.dtype, np.float32))
