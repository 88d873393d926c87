"""Folders in the layout of Hugging Face, as `save_pretrained` writes them, and repositories by name.

What transformers writes is in tests/hub."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import rotrnn
from fuzz.formats import tiny_mamba, tiny_mamba2
from rotrnn.models.build import ModelSettings, build_model
from rotrnn.models.io.huggingface import CONVERT
from rotrnn.nn.layer import flatten

MODEL = build_model(ModelSettings("lru", 6, 2, norm="rms"), {"d_state": 3}, n_classes=5, vocab=5)
PARAMS = MODEL.init(np.random.default_rng(0))


def equal(one: Any, two: Any) -> bool:
    pairs = zip(sorted(flatten(one)), sorted(flatten(two)), strict=True)
    return all(a == b and np.array_equal(x, y) for (a, x), (b, y) in pairs)


def test_a_folder_is_read_again(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    MODEL.save_pretrained(folder, PARAMS)
    for name in (folder, str(folder)):
        model, params = rotrnn.from_pretrained(name)
        assert model == MODEL
        assert equal(params, PARAMS)
    assert rotrnn.load(folder / "model.safetensors").model == MODEL
    MODEL.save_pretrained(folder, PARAMS)  # over the old one
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


def test_others_read_its_files(tmp_path: Path) -> None:
    MODEL.save_pretrained(tmp_path, PARAMS)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert (config["model_type"], config["architectures"]) == ("rotrnn", ["SequenceClassifier"])
    assert config["model"]["stack"]["blocks"][0]["norm"] == {"kind": "RMSNorm", "d_model": 6, "eps": 1e-5}
    arrays = load_file(tmp_path / "model.safetensors")
    assert {name for name in arrays if not name.startswith("program.")} == dict(flatten(PARAMS)).keys()


WRONG: dict[str, tuple[Any, str]] = {
    "no JSON": ("{", "is not JSON"),
    "list": ([], "is a list, expected an object of settings"),
    "kind": ({"model_type": "gpt2"}, "model_type is 'gpt2', expected one of rotrnn, mamba, mamba2"),
    "no kind": ({"model_type": None}, "model_type is None, expected one of"),
    "mamba_ssm's, a name": ('{"d_model": 768, "n_layer": 24, "n_head": 4}', "has n_head, which is not expected"),
    "mamba_ssm's, a layer": (
        '{"d_model": 8, "n_layer": 2, "ssm_cfg": {"layer": "Mamba4"}}',
        "ssm_cfg.layer is 'Mamba4', expected one of Mamba1",
    ),
    "mamba_ssm's, a setting": ('{"d_model": 8, "n_layer": 2, "ssm_cfg": {"N": 2}}', "ssm_cfg has 'N', expected one of"),
    "mamba_ssm's, attention": (
        '{"d_model": 8, "n_layer": 2, "attn_layer_idx": [1]}',
        r"attn_layer_idx is \(1,\), expected \(\)",
    ),
    "mamba_ssm's, no name": ('{"d_model": 8, "n_layer": 2, "ssm_cfg": {"layer": ["Mamba2"]}}', r"ssm_cfg\.layer is \["),
    "mamba_ssm's, a limit": (
        '{"d_model": 8, "n_layer": 2, "ssm_cfg": {"layer": "Mamba2", "dt_limit": [0.0, 1.0]}}',
        r"ssm_cfg\.dt_limit is \[0\.0, 1\.0\], expected \[0\.0, inf\]",
    ),
    "mamba_ssm's, heads": (
        '{"d_model": 8, "n_layer": 2, "ssm_cfg": {"layer": "Mamba2", "headdim": 5}}',
        r"num_heads is 3 and ssm_cfg\.headdim 5, expected ssm_cfg\.expand \* d_model = 16",
    ),
    "mamba_ssm's, a dict": ('{"d_model": 8, "n_layer": 2, "ssm_cfg": 3}', "ssm_cfg is 3, expected a dict"),
    "mamba_ssm's, a number": (
        '{"d_model": 8, "n_layer": 2, "ssm_cfg": {"d_state": "x"}}',
        r"ssm_cfg\.d_state is 'x', expected an integer",
    ),
    "format": ({"model_format": 9}, "model_format is 9, expected 1"),
    "model": ({"model": {"kind": "Tagger"}}, "model differs from model.safetensors"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_settings_name_the_file(wrong: str, tmp_path: Path) -> None:
    value, message = WRONG[wrong]
    MODEL.save_pretrained(tmp_path, PARAMS)
    path = tmp_path / "config.json"
    whole = json.loads(path.read_text(encoding="utf-8")) | value if isinstance(value, dict) else value
    path.write_text(whole if isinstance(whole, str) else json.dumps(whole), encoding="utf-8")
    with pytest.raises(ValueError, match=message) as raised:
        rotrnn.from_pretrained(tmp_path)
    assert str(raised.value).startswith(str(path))


def test_wrong_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("x", encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)  # a long path would be cut
        with pytest.raises(ValueError, match=r"from_pretrained: name is 'file', a file, .* rotrnn.load"):
            rotrnn.from_pretrained("file")
    for name in (tmp_path / "a", str(tmp_path / "a"), "./a/b", "a/b/c", "none"):
        with pytest.raises(FileNotFoundError):
            rotrnn.from_pretrained(name)
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        rotrnn.from_pretrained(tmp_path)
    with pytest.raises(TypeError, match="from_pretrained: name is an int, expected a folder or a repository's name"):
        rotrnn.from_pretrained(3)  # type: ignore[arg-type]
    MODEL.save_pretrained(tmp_path / "m", PARAMS)
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path / "m")
        with pytest.raises(ValueError, match=r"from_pretrained: name is '', expected a folder"):
            rotrnn.from_pretrained("")
    with pytest.raises(ValueError, match="revision is 'main', expected None with the folder"):
        rotrnn.from_pretrained(tmp_path / "m", revision="main")
    with pytest.raises(ValueError, match=r"save_pretrained: folder .*file: is a file, expected a folder"):
        MODEL.save_pretrained(file, PARAMS)
    with pytest.raises(ValueError, match="encoder is missing"):
        MODEL.save_pretrained(tmp_path / "n", {})


@pytest.mark.parametrize("kind", ["rotrnn", "mamba"])
def test_folders_without_their_arrays(kind: str, tmp_path: Path) -> None:
    if kind == "mamba":
        tiny_mamba(tmp_path)
    else:
        MODEL.save_pretrained(tmp_path, PARAMS)
    (tmp_path / "model.safetensors").unlink()
    missing = f"{tmp_path}: has no model.safetensors, expected the arrays of a model"
    with pytest.raises(FileNotFoundError) as raised:
        rotrnn.from_pretrained(tmp_path)
    assert str(raised.value) == missing
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(FileNotFoundError) as raised:
        rotrnn.from_pretrained(tmp_path)
    pickle = "pytorch_model.bin is a pickle, which may run code; where it is trusted"
    assert str(raised.value) == f"{missing}; {pickle}, {CONVERT} in the folder writes the other"


def test_a_repository_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for huggingface_hub that has one repository, and none other."""
    MODEL.save_pretrained(tmp_path, PARAMS)
    asked: list[Any] = []

    def snapshot_download(name: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((name, revision))
        assert {"config.json", "*.safetensors"} <= set(allow_patterns)
        if name == "someone/pickled":
            (tmp_path / "other").mkdir()
            return str(tmp_path / "other")
        if name == "someone/cut":
            raise Exception("peer closed connection")  # as httpx's errors, which are not OSErrors
        if name != "someone/small":
            raise OSError("404 Client Error.\n\nRepository Not Found")
        return str(tmp_path)

    stand_in: Any = types.ModuleType("huggingface_hub")
    stand_in.snapshot_download = snapshot_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", stand_in)
    model, params = rotrnn.from_pretrained("someone/small", revision="v1")
    assert (model, asked) == (MODEL, [("someone/small", "v1")])
    assert equal(params, PARAMS)
    with pytest.raises(
        OSError, match=r"^from_pretrained: 'someone/else' could not be downloaded \(404 Client Error\.\)$"
    ):
        rotrnn.from_pretrained("someone/else")
    with pytest.raises(OSError, match=r"^from_pretrained: 'someone/cut' could not be downloaded \(peer closed conn"):
        rotrnn.from_pretrained("someone/cut")
    with pytest.raises(TypeError, match=r"^from_pretrained: revision is an int, expected a text or None"):
        rotrnn.from_pretrained("someone/small", revision=1)  # type: ignore[arg-type]
    with pytest.raises(
        FileNotFoundError, match=r"^from_pretrained: 'someone/pickled' has no model\.safetensors, .*python -c"
    ):
        rotrnn.from_pretrained("someone/pickled")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"huggingface_hub, which is not installed; pip install 'rotrnn\[hub\]'"):
        rotrnn.from_pretrained("someone/small")


BOTH_MAMBAS: dict[str, Any] = {
    "bos_token_id": 0, "conv_kernel": 4, "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 4,
    "initializer_range": 0.1, "intermediate_size": 8, "layer_norm_epsilon": 1e-5, "num_hidden_layers": 2,
    "pad_token_id": 0, "rescale_prenorm_residual": False, "residual_in_fp32": True, "state_size": 3,
    "time_step_floor": 1e-4, "time_step_init_scheme": "random", "time_step_max": 0.1, "time_step_min": 0.001,
    "time_step_rank": 2, "time_step_scale": 1.0, "torch_dtype": "bfloat16", "transformers_version": "4.39.0.dev0",
    "use_bias": False, "use_cache": True, "use_conv_bias": True, "vocab_size": 5,
}  # fmt: skip
PUBLISHED: dict[str, dict[str, Any]] = {
    "state-spaces/mamba-130m-hf": {
        **BOTH_MAMBAS, "architectures": ["MambaForCausalLM"], "d_inner": 8, "d_model": 4, "expand": 2,
        "fused_add_norm": True, "model_type": "mamba", "n_layer": 2, "pad_vocab_size_multiple": 8, "rms_norm": True,
        "ssm_cfg": {}, "torch_dtype": "float32",
    },
    "tiiuae/falcon-mamba-7b": {
        **BOTH_MAMBAS, "architectures": ["FalconMambaForCausalLM"], "expand": 16, "model_type": "falcon_mamba",
        "tie_word_embeddings": False,
    },
    "mistralai/Mamba-Codestral-7B-v0.1": {
        **BOTH_MAMBAS, "architectures": ["Mamba2ForCausalLM"], "chunk_size": 256, "conv_kernel": 2, "expand": 2,
        "head_dim": 4, "model_type": "mamba2", "n_groups": 1, "norm_before_gate": True, "num_heads": 2,
        "num_hidden_layers": 1, "rms_norm": True, "tie_word_embeddings": False,
        "time_step_limit": [0.0, float("inf")], "time_step_rank": 256,
    },
    "google/recurrentgemma-2b": {
        "architectures": ["RecurrentGemmaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "attention_window_size": 4, "block_types": ["recurrent", "recurrent", "attention"], "bos_token_id": 2,
        "conv1d_width": 4, "embeddings_scale_by_sqrt_dim": True, "eos_token_id": 1,
        "final_w_init_variance_scale": 0.08, "head_dim": 4, "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 8, "intermediate_size": 48, "logits_soft_cap": 30.0, "lru_width": 8,
        "model_type": "recurrent_gemma", "num_attention_heads": 2, "num_hidden_layers": 3, "num_key_value_heads": 1,
        "pad_token_id": 0, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "torch_dtype": "bfloat16", "transformers_version": "4.40.0.dev0", "use_cache": True, "vocab_size": 5,
        "w_init_variance_scale": 0.01,
    },
}  # fmt: skip
"""The files config.json of these repositories, with smaller sizes."""


def tiny_gemma(folder: Path) -> None:
    """The arrays of RecurrentGemmaForCausalLM, in these sizes."""
    D, H, dense = 8, 2, {"weight": (8, 8), "bias": (8,)}
    shapes: dict[str, Any] = {"embed_tokens.weight": (5, D), "final_norm.weight": (D,)}
    for i in range(3):
        here = f"layers.{i}.temporal_block."
        shapes |= {f"layers.{i}.{name}_pre_norm.weight": (D,) for name in ("temporal", "channel")}
        for name, size in (("gate", (3 * D, D)), ("up", (3 * D, D)), ("down", (D, 3 * D))):
            part = f"layers.{i}.mlp_block.{name}_proj."
            shapes |= {f"{part}weight": size, f"{part}bias": size[:1]}
        if i == 2:
            shapes |= {f"{here}{n}_proj.weight": (D if n in "qo" else D // H, D) for n in "qkvo"}
            shapes |= {f"{here}o_proj.bias": (D,)}
            continue
        shapes |= {f"{here}linear_{n}.{part}": size for n in ("x", "y", "out") for part, size in dense.items()}
        shapes |= {f"{here}conv_1d.weight": (D, 1, 4), f"{here}conv_1d.bias": (D,)}
        shapes |= {f"{here}rg_lru.recurrent_param": (D,)}
        for gate in ("input", "recurrent"):
            part = f"{here}rg_lru.{gate}_gate_"
            shapes |= {f"{part}weight": (H, D // H, D // H), f"{part}bias": (H, D // H)}
    arrays = {f"model.{name}": np.full(shape, 0.5, np.float32) for name, shape in shapes.items()}
    save_file(arrays, folder / "model.safetensors")


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_settings(name: str, tmp_path: Path) -> None:
    """The first has the names of mamba_ssm beside its own; the second has another `expand` than its arrays."""
    settings = PUBLISHED[name]
    kind, path = settings["model_type"], tmp_path / "model.safetensors"
    {"mamba2": tiny_mamba2, "recurrent_gemma": tiny_gemma}.get(kind, tiny_mamba)(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    if settings.get("tie_word_embeddings") is False:
        arrays = load_file(path)
        save_file(arrays | {HEAD: arrays[TABLE] + 1}, path)
    model, params = rotrnn.from_pretrained(tmp_path)
    assert (model.stack.d_model, len(model.stack.blocks)) == (settings["hidden_size"], settings["num_hidden_layers"])
    assert np.isfinite(model.forward(params, np.array([[1, 2, 3]]))[0]).all()


@pytest.mark.parametrize("name", ["state-spaces/mamba-130m-hf", "tiiuae/falcon-mamba-7b"])
def test_channels_are_a_multiple_of_the_width(name: str, tmp_path: Path) -> None:
    tiny_mamba(tmp_path)
    for change in ({"intermediate_size": 9}, {"intermediate_size": 0}, {"hidden_size": 0}):
        settings = PUBLISHED[name] | change
        (tmp_path / "config.json").write_text(json.dumps(settings), encoding="utf-8")
        with pytest.raises(
            ValueError, match=r"config.json: intermediate_size is \d, expected a multiple of hidden_size"
        ):
            rotrnn.from_pretrained(tmp_path)


def test_falcon_mamba_without_its_norms_is_refused(tmp_path: Path) -> None:
    tiny_mamba(tmp_path)
    settings = PUBLISHED["tiiuae/falcon-mamba-7b"] | {"mixer_rms_eps": None}
    (tmp_path / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(ValueError, match=r"config.json: mixer_rms_eps is None, expected a finite number"):
        rotrnn.from_pretrained(tmp_path)


HEAD, TABLE, FIRST = "lm_head.weight", "backbone.embeddings.weight", "backbone.embedding.weight"


def test_a_head_of_its_own_is_not_dropped(tmp_path: Path) -> None:
    """config.json does not say whether the head is tied, and transformers' default is that it is."""
    tiny_mamba(tmp_path)
    path, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    arrays = load_file(path)
    _, expected = rotrnn.from_pretrained(tmp_path)
    save_file(arrays | {HEAD: arrays[TABLE].copy()}, path)
    assert equal(rotrnn.from_pretrained(tmp_path).params, expected)
    for other in (arrays[TABLE] + 1, arrays[TABLE][:-1]):
        save_file(arrays | {HEAD: np.ascontiguousarray(other)}, path)
        with pytest.raises(
            ValueError, match=r"model.safetensors: lm_head.weight differs from the embedding, expected back"
        ):
            rotrnn.from_pretrained(tmp_path)
    save_file(arrays | {HEAD: arrays[TABLE] + 1}, path)
    config.write_text(
        json.dumps({**json.loads(config.read_text(encoding="utf-8")), "tie_word_embeddings": False}), encoding="utf-8"
    )
    assert np.array_equal(rotrnn.from_pretrained(tmp_path).params["head"]["w"], arrays[TABLE] + 1)


def test_no_array_takes_the_place_of_another(tmp_path: Path) -> None:
    tiny_mamba(tmp_path)
    path = tmp_path / "model.safetensors"
    arrays = load_file(path)
    save_file(arrays | {FIRST: arrays[TABLE] + 1}, path)
    with pytest.raises(ValueError, match=r"model.safetensors: has backbone.embedding.weight, which is not expected"):
        rotrnn.from_pretrained(tmp_path)
    path.unlink()
    for name in ("a.safetensors", "b.safetensors"):
        save_file(arrays, tmp_path / name)
    index = {"weight_map": {TABLE: "a.safetensors", "backbone.norm_f.weight": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(ValueError, match=r"b.safetensors: has backbone.embeddings.weight, which another file of model"):
        rotrnn.from_pretrained(tmp_path)
    (tmp_path / "b.safetensors").unlink()
    expected = "has no b.safetensors, expected all 2 files that model.safetensors.index.json names"
    with pytest.raises(FileNotFoundError, match=expected):
        rotrnn.from_pretrained(tmp_path)
