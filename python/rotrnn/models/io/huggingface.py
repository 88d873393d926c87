"""Models in Hugging Face's format: the folders of MambaForCausalLM, Mamba2ForCausalLM, FalconMambaForCausalLM and
RecurrentGemmaForCausalLM of transformers, and Mamba and Mamba-2 with the settings of the package mamba_ssm.

A folder has config.json with the settings, and model.safetensors with the arrays, or several such files and an index.
All become a `LanguageModel` with RMS norms, of plain blocks or Griffin's. Its embedding and head have a bias, zero,
which the published models lack.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from safetensors import SafetensorError, deserialize

from rotrnn._support.files import read_file
from rotrnn._support.json import from_json
from rotrnn._support.settings import PYTHON, Unfit, describe, fit, hints_of
from rotrnn.models.build import ModelSettings, build_model
from rotrnn.models.files import WEIGHTS, Loaded
from rotrnn.models.model import SequenceModel
from rotrnn.nn.layer import Array, Params, Recurrent, unflatten
from rotrnn.nn.layers.attention import Attention
from rotrnn.nn.layers.mamba import Mamba
from rotrnn.nn.layers.mamba2 import Mamba2
from rotrnn.nn.layers.rg_lru import RGLRU

INDEX = "model.safetensors.index.json"

FOREVER = ([0, float("inf")], [0, None], [0, {"__float__": "Infinity"}])
"""Values in config.json for unlimited step sizes."""


def _same(array: Array) -> Array:
    return array


class Named(NamedTuple):
    """A parameter, its name in a checkpoint, its shape there, and its conversion."""

    name: str
    there: str
    shape: tuple[int, ...]
    change: Callable[[Array], Array] = _same


@dataclass(frozen=True, kw_only=True)
class MambaFamily:
    """The settings of both families of Mamba in config.json, in plain blocks, with the names and defaults of
    transformers."""

    layer_name: ClassVar[str]
    arrays: ClassVar[dict[str, str]]
    table: ClassVar[tuple[str, ...]] = ("backbone.embeddings.weight", "backbone.embedding.weight")
    """Names of the embedding: the current name, and the name in the first checkpoints."""
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    state_size: int
    tie_word_embeddings: bool
    layer_norm_epsilon: float = 1e-5
    expand: int = 2
    intermediate_size: int | None = None
    conv_kernel: int = 4
    use_bias: bool = False
    use_conv_bias: bool = True
    hidden_act: str = "silu"
    time_step_min: float = 0.001
    time_step_max: float = 0.1
    time_step_floor: float = 1e-4

    @property
    def shared(self) -> dict[str, Any]:
        """The settings of the layer, of both families."""
        sizes = {"d_state": self.state_size, "d_conv": self.conv_kernel, "expand": self.expand}
        steps = {"dt_min": self.time_step_min, "dt_max": self.time_step_max, "dt_init_floor": self.time_step_floor}
        return {**sizes, **steps, "conv_bias": self.use_conv_bias, "bias": self.use_bias}

    def check(self, settings: dict[str, Any]) -> None:
        """Raises ValueError if a setting has a value that no model here has."""
        if self.hidden_act != "silu":
            raise ValueError(f"hidden_act is {self.hidden_act!r:.80}, expected 'silu'")

    def model(self) -> ModelSettings:
        return ModelSettings(
            self.layer_name,
            *(self.hidden_size, self.num_hidden_layers),
            norm="rms",
            block="plain",
            final_norm=True,
            norm_eps=self.layer_norm_epsilon,
            tied=self.tie_word_embeddings,
        )

    def names(self, model: SequenceModel) -> Iterator[Named]:
        """Yields the parameters."""
        V, D = self.vocab_size, self.hidden_size
        yield Named("encoder.table", self.table[0], (V, D))
        for i, block in enumerate(model.stack.blocks):
            yield Named(f"blocks.{i}.norm.scale", f"backbone.layers.{i}.norm.weight", (D,))
            for name, shape in block.layer.shapes.items():
                there = f"backbone.layers.{i}.mixer.{self.arrays[name]}"
                taps = ((shape[0], 1, shape[1]), _taps) if name == "conv_w" else (shape,)
                yield Named(f"blocks.{i}.layer.{name}", there, *taps)
        yield Named("norm.scale", "backbone.norm_f.weight", (D,))


def _taps(array: Array) -> Array:
    """Returns the taps (D, K) of PyTorch's Conv1d, (D, 1, K)."""
    return array[:, 0]


@dataclass(frozen=True, kw_only=True)
class MambaConfig(MambaFamily):
    """The settings of a Mamba in config.json."""

    vocab_size: int = 50280
    hidden_size: int = 768
    num_hidden_layers: int = 32
    state_size: int = 16
    time_step_rank: int | str = "auto"
    time_step_scale: float = 1.0
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

    def check(self, settings: dict[str, Any]) -> None:
        """Raises ValueError if a setting has a value that no model here has."""
        super().check(settings)
        D, inner = self.hidden_size, self.intermediate_size
        if inner is not None and (min(D, inner) < 1 or inner % D):
            raise ValueError(f"intermediate_size is {inner}, expected a multiple of hidden_size = {D}")

    def layer(self) -> Mamba:
        inner = self.intermediate_size  # transformers reads it and not `expand`, which may differ in published files
        sizes = self.shared if inner is None else {**self.shared, "expand": inner // self.hidden_size}
        return Mamba(
            self.hidden_size,
            dt_rank=self.time_step_rank,
            dt_init=self.time_step_init_scheme,
            dt_scale=self.time_step_scale,
            **sizes,
        )


@dataclass(frozen=True, kw_only=True)
class FalconMambaConfig(MambaConfig):
    """The settings of a FalconMamba in config.json: a Mamba that normalises the step sizes, B and C."""

    mixer_rms_eps: float = 1e-6

    def layer(self) -> Mamba:
        return replace(super().layer(), norm_eps=self.mixer_rms_eps)


@dataclass(frozen=True, kw_only=True)
class Mamba2Config(MambaFamily):
    """The settings of a Mamba-2 in config.json."""

    vocab_size: int = 32768
    hidden_size: int = 4096
    num_hidden_layers: int = 64
    state_size: int = 128
    num_heads: int = 128
    head_dim: int = 64
    n_groups: int = 8
    tie_word_embeddings: bool = False

    layer_name: ClassVar[str] = "mamba2"
    arrays: ClassVar[dict[str, str]] = MambaConfig.arrays | {"dt_bias": "dt_bias", "norm": "norm.weight"}

    def __post_init__(self) -> None:
        inner = self.expand * self.hidden_size
        if self.num_heads * self.head_dim != inner:
            got = f"num_heads is {self.num_heads} and head_dim {self.head_dim}"
            raise ValueError(f"{got}, expected expand * hidden_size = {inner} as their product")
        if self.intermediate_size not in (None, inner):
            raise ValueError(f"intermediate_size is {self.intermediate_size}, expected {inner}")

    def check(self, settings: dict[str, Any]) -> None:
        """Raises ValueError if a setting has a value that no model here has."""
        super().check(settings)
        if settings.get("time_step_limit", FOREVER[0]) not in FOREVER:
            limit = f"time_step_limit is {settings['time_step_limit']!r:.80}"
            raise ValueError(f"{limit}, expected 0 and infinity: step sizes that are not cut off")

    def layer(self) -> Recurrent:
        norm_eps = self.layer_norm_epsilon
        return Mamba2(self.hidden_size, d_head=self.head_dim, groups=self.n_groups, norm_eps=norm_eps, **self.shared)


@dataclass(frozen=True, kw_only=True)
class RecurrentGemmaConfig:
    """The settings of a RecurrentGemma in config.json, with the names and defaults of transformers; its
    `intermediate_size` is twice the width of the feed-forward net."""

    vocab_size: int = 256000
    hidden_size: int = 2560
    num_hidden_layers: int = 26
    intermediate_size: int = 7680
    num_attention_heads: int = 10
    num_key_value_heads: int | None = None
    lru_width: int | None = None
    attention_window_size: int = 2048
    conv1d_width: int = 4
    logits_soft_cap: float = 30.0
    rms_norm_eps: float = 1e-6
    hidden_activation: str = "gelu_pytorch_tanh"
    attention_bias: bool = False
    block_types: tuple[str, ...] = ("recurrent", "recurrent", "attention")
    tie_word_embeddings: bool = True

    table: ClassVar[tuple[str, ...]] = ("model.embed_tokens.weight",)
    expected: ClassVar[dict[str, Any]] = {
        "hidden_activation": "gelu_pytorch_tanh", "attention_bias": False, "conv1d_width": 4, "rope_theta": 10_000,
        "partial_rotary_factor": 0.5, "rope_type": "default",
    }  # fmt: skip
    """Settings with a single supported value here."""

    def check(self, settings: dict[str, Any]) -> None:
        """Raises ValueError if a setting has a value that no model here has."""
        D, types, rope = self.hidden_size, self.block_types, dict[str, Any]()
        for name in ("rope_parameters", "rope_scaling"):  # the current name, and the former one, which goes first
            given = settings.get(name) or {}
            if not isinstance(given, dict):
                raise ValueError(f"{name} is {given!r:.80}, expected an object")
            rope |= {"rope_type" if key == "type" else key: one for key, one in given.items()}
        sizes = {"intermediate_size": 6 * D, "lru_width": D, "head_dim": D // max(self.num_attention_heads, 1)}
        sizes["sliding_window"] = self.attention_window_size  # another name in transformers
        for name, value in {**self.expected, **sizes}.items():
            got = {**settings, **rope}.get(name, getattr(self, name, value))
            if got not in (value, None):
                raise ValueError(f"{name} is {got!r:.80}, expected {value!r}")
        recurrent = ("recurrent",) * len(types)
        if types not in [recurrent, (*recurrent[1:], "attention")][: len(types)]:
            expected = "'recurrent' and at the end 'attention', or 'recurrent' alone"
            raise ValueError(f"block_types is {list(types)!r:.80}, expected {expected}")

    def layer(self) -> Recurrent:
        return RGLRU(self.hidden_size, heads=self.num_attention_heads)

    def model(self) -> ModelSettings:
        attends = self.block_types[-1] == "attention"
        attention: dict[str, Any] = {
            "attention_every": len(self.block_types),
            "attention_window": self.attention_window_size,
            "attention_heads": self.num_attention_heads,
            "attention_kv_heads": self.num_key_value_heads,
        }
        return ModelSettings(
            "rg_lru",
            *(self.hidden_size, self.num_hidden_layers),
            norm="rms",
            block="griffin",
            final_norm=True,
            norm_eps=self.rms_norm_eps,
            tied=self.tie_word_embeddings,
            scale_embedding=True,
            logit_cap=self.logits_soft_cap,
            **(attention if attends else {}),
        )

    def names(self, model: SequenceModel) -> Iterator[Named]:
        """Yields the parameters. The norms' weights are scales minus one, the gates' matrices multiply from the right,
        and pairs of turning channels are i and i + half of their number."""
        V, D, H = self.vocab_size, self.hidden_size, self.num_attention_heads
        yield Named("encoder.table", self.table[0], (V, D))
        for i, block in enumerate(model.stack.blocks):
            here, there = f"blocks.{i}.", f"model.layers.{i}."
            for name, norm in (("norm", "temporal_pre_norm"), ("norm2", "channel_pre_norm")):
                yield Named(f"{here}{name}.scale", f"{there}{norm}.weight", (D,), _one_more)
            for name, part in (("up", "gate_proj"), ("value", "up_proj"), ("down", "down_proj")):
                shape = (D, 3 * D) if name == "down" else (3 * D, D)
                yield Named(f"{here}feed_forward.{name}.w", f"{there}mlp_block.{part}.weight", shape)
                yield Named(f"{here}feed_forward.{name}.bias", f"{there}mlp_block.{part}.bias", shape[:1])
            here, there = f"{here}layer.", f"{there}temporal_block."
            if isinstance(block.layer, Attention):
                for name in ("q", "k", "v", "out"):
                    part = f"{there}{name[0]}_proj.weight"
                    change = _pairs(D // H) if name in ("q", "k") else _same
                    yield Named(f"{here}w_{name}", part, block.layer.shapes[f"w_{name}"], change)
                yield Named(f"{here}b_out", f"{there}o_proj.bias", (D,))
                continue
            for name, part in (("gate", "linear_y"), ("value", "linear_x"), ("out", "linear_out")):
                yield Named(f"{here}griffin_{name}_w", f"{there}{part}.weight", (D, D))
                yield Named(f"{here}griffin_{name}_bias", f"{there}{part}.bias", (D,))
            yield Named(f"{here}griffin_conv_w", f"{there}conv_1d.weight", (D, 1, 4), _taps)
            yield Named(f"{here}griffin_conv_bias", f"{there}conv_1d.bias", (D,))
            yield Named(f"{here}a_param", f"{there}rg_lru.recurrent_param", (D,))
            for name, part in (("a_gate", "recurrent_gate"), ("input_gate", "input_gate")):
                yield Named(f"{here}{name}_w", f"{there}rg_lru.{part}_weight", (H, D // H, D // H), _from_the_left)
                yield Named(f"{here}{name}_bias", f"{there}rg_lru.{part}_bias", (H, D // H), np.ravel)
        yield Named("norm.scale", "model.final_norm.weight", (D,), _one_more)


def _one_more(array: Array) -> Array:
    return 1 + array


def _from_the_left(array: Array) -> Array:
    return array.swapaxes(1, 2)


def _pairs(width: int) -> Callable[[Array], Array]:
    """Returns a function that orders the rows of heads so that the rows of a pair, i and i + width / 4, are
    adjacent."""
    turning = width // 2
    order = np.concatenate([np.arange(turning).reshape(2, -1).T.ravel(), np.arange(turning, width)])
    return lambda array: array.reshape(-1, width, array.shape[-1])[:, order].reshape(array.shape)


Config = MambaConfig | Mamba2Config | RecurrentGemmaConfig
CONFIGS: dict[str, type[Config]] = {
    "mamba": MambaConfig,
    "mamba2": Mamba2Config,
    "falcon_mamba": FalconMambaConfig,
    "recurrent_gemma": RecurrentGemmaConfig,
}
"""The classes of settings, by the model_type of config.json."""


def read_mamba_ssm(folder: Path, settings: dict[str, Any]) -> Loaded:
    """Returns the model of a folder whose config.json has the settings of the package mamba_ssm."""
    path = folder / "config.json"
    known = hints_of(MambaSsmConfig)
    given = {name: one for name, one in settings.items() if name not in NOT_OF_MODELS}
    if unknown := sorted(given.keys() - known.keys()):
        raise ValueError(f"{path}: has {unknown[0]}, which is not expected beside d_model and n_layer")
    given["ssm_cfg"] = {} if given.get("ssm_cfg") is None else given["ssm_cfg"]
    config = MambaSsmConfig(**{name: _setting(path, name, one, known[name]) for name, one in given.items()})
    try:
        renamed, names, kind = config.renamed()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    try:
        return read_published(folder, renamed, kind)
    except ValueError as error:  # in the words of the file
        words = re.compile(rf"\b({'|'.join(names)})\b")
        raise ValueError(words.sub(lambda one: names[one[0]], str(error))) from error


@dataclass(frozen=True, kw_only=True)
class MambaSsmConfig:
    """The settings of the package mamba_ssm in config.json. Names and defaults are as in its MambaConfig."""

    d_model: int
    n_layer: int
    d_intermediate: int = 0
    vocab_size: int = 50277
    ssm_cfg: dict[str, Any] = field(default_factory=dict)
    attn_layer_idx: tuple[int, ...] = ()
    attn_cfg: dict[str, Any] = field(default_factory=dict)
    rms_norm: bool = True
    residual_in_fp32: bool = True
    fused_add_norm: bool = True
    pad_vocab_size_multiple: int = 8
    tie_embeddings: bool = True

    def renamed(self) -> tuple[dict[str, Any], dict[str, str], type[MambaConfig] | type[Mamba2Config]]:
        """Returns the settings by the names of transformers, their names here, and their class."""
        for name, value in (("d_intermediate", 0), ("attn_layer_idx", ()), ("rms_norm", True)):
            if getattr(self, name) != value:
                raise ValueError(f"{name} is {getattr(self, name)!r:.80}, expected {value!r}")
        own = dict(self.ssm_cfg)
        which = own.pop("layer", "Mamba1")
        if not isinstance(which, str) or which not in SSM_LAYERS:
            raise ValueError(f"ssm_cfg.layer is {which!r:.80}, expected one of {', '.join(SSM_LAYERS)}")
        kind, names, defaults = SSM_LAYERS[which]
        for name, values in ONE_VALUE.items():
            if own.get(name, values[0]) not in values:
                raise ValueError(f"ssm_cfg.{name} is {own[name]!r:.80}, expected {values[0]!r}")
        own = {name: value for name, value in own.items() if name not in ONE_VALUE.keys() | NOT_OF_LAYERS}
        if unknown := sorted(own.keys() - names.keys()):
            raise ValueError(f"ssm_cfg has {unknown[0]!r:.80}, expected one of {', '.join(names)}")
        multiple = max(1, self.pad_vocab_size_multiple)
        found: dict[str, Any] = {
            "hidden_size": self.d_model,
            "num_hidden_layers": self.n_layer,
            "vocab_size": -(-self.vocab_size // multiple) * multiple,
            "tie_word_embeddings": self.tie_embeddings,
            **defaults,
            **{names[name]: value for name, value in own.items()},
        }
        if kind is Mamba2Config and isinstance(found["expand"], int) and isinstance(found["head_dim"], int):
            found["num_heads"] = found["expand"] * self.d_model // max(1, found["head_dim"])
        here = {"hidden_size": "d_model", "num_hidden_layers": "n_layer", "tie_word_embeddings": "tie_embeddings"}
        return found, here | {there: f"ssm_cfg.{name}" for name, there in names.items()}, kind


NOT_OF_MODELS = {"model_type", "architectures", "transformers_version", "torch_dtype", "initializer_cfg"}
"""Other keys of config.json, on which results do not depend."""
NOT_OF_LAYERS = {"use_fast_path", "use_mem_eff_path", "chunk_size", "A_init_range", "dt_init", "layer_idx"}
ONE_VALUE: dict[str, tuple[Any, ...]] = {
    "dt_limit": ([0.0, float("inf")], [0.0, None]),
    "rmsnorm": (True,),
    "norm_before_gate": (False,),
    "D_has_hdim": (False,),
    "d_ssm": (None,),
}
"""Settings of layers with a single supported value here."""


_SSM_NAMES = {
    "d_state": "state_size", "d_conv": "conv_kernel", "expand": "expand", "conv_bias": "use_conv_bias",
    "bias": "use_bias", "dt_min": "time_step_min", "dt_max": "time_step_max", "dt_init_floor": "time_step_floor",
}  # fmt: skip
SSM_LAYERS: dict[str, tuple[Any, dict[str, str], dict[str, Any]]] = {
    "Mamba1": (MambaConfig, _SSM_NAMES | {"dt_rank": "time_step_rank", "dt_scale": "time_step_scale"}, {}),
    "Mamba2": (
        Mamba2Config,
        _SSM_NAMES | {"headdim": "head_dim", "ngroups": "n_groups"},
        {"state_size": 128, "expand": 2, "head_dim": 64, "n_groups": 1},
    ),
}
"""The layers of mamba_ssm: the settings in transformers' words, each name there and here, and defaults that differ."""


def read_published(folder: Path, settings: dict[str, Any], kind: Any) -> Loaded:
    """Returns the model of a folder; `kind` is the class of its settings."""
    path = folder / "config.json"
    known = {
        name: _setting(path, name, settings[name], hint) for name, hint in hints_of(kind).items() if name in settings
    }
    try:
        config: Config = kind(**known)
        config.check(settings)
        sizes = {"n_classes": config.vocab_size, "vocab": config.vocab_size}
        model: SequenceModel = build_model(config.model(), config.layer(), head="language", **sizes)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    return Loaded(model, _params_of(folder, model, config))


def _setting(path: Path, name: str, value: Any, hint: Any) -> Any:
    try:
        return fit(value, hint)
    except Unfit:
        raise ValueError(f"{path}: {name} is {value!r:.80}, expected {describe(hint, PYTHON)}") from None


def _params_of(folder: Path, model: SequenceModel, config: Config) -> Params:
    """Returns the parameters of a folder, in the dtype of its arrays, but at least float32."""
    where, arrays = _arrays(folder)
    table, *earlier = config.table
    called = next((one for one in earlier if one in arrays and table not in arrays), table)
    if called != table:
        arrays[table] = arrays.pop(called)
    head = arrays.pop("lm_head.weight", None) if config.tie_word_embeddings else None
    if head is not None and not np.array_equal(head, arrays.get(table, head), equal_nan=True):
        expected = f"{table} once more, or tie_word_embeddings=false in config.json"
        raise ValueError(f"{where}: lm_head.weight differs from the embedding, expected {expected}")
    named = list(config.names(model))
    if not config.tie_word_embeddings:
        named.append(Named("head.w", "lm_head.weight", (config.vocab_size, config.hidden_size)))
    flat: dict[str, Array] = {}
    for name, there, shape, change in named:
        if there not in arrays:
            raise ValueError(f"{where}: lacks {there}")
        array = arrays.pop(there)
        if array.shape != shape:
            shown = called if there == table else there
            raise ValueError(f"{where}: {shown} has shape {array.shape}, expected {shape}")
        flat[name] = np.ascontiguousarray(change(array))
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


CONVERT = (
    'python -c "import glob, torch, safetensors.torch as s; '
    "s.save_file({k: v.contiguous().clone() for f in glob.glob('pytorch_model*.bin') "
    "for k, v in torch.load(f, weights_only=True).items()}, 'model.safetensors')\""
)
"""A command that converts a file of PyTorch, or several, in their folder. Arrays that share memory or have strides are
copied, as safetensors requires."""


def check_weights(folder: Path) -> None:
    """Raises FileNotFoundError if a folder has no file with arrays."""
    if not (folder / WEIGHTS).is_file():
        pickled = [path.name for path in sorted(folder.glob("pytorch_model*.bin"))]
        what = f"is a pickle, which may run code; where it is trusted, {CONVERT} in the folder writes the other"
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
