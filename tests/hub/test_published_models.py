"""Folders that transformers writes, read by `rotrnn.from_pretrained`: the logits are those of its own models."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    FalconMambaConfig,
    FalconMambaForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    RecurrentGemmaConfig,
    RecurrentGemmaForCausalLM,
)

import rotrnn
from rotrnn.nn.layers.griffin import Griffin
from rotrnn.nn.layers.mamba import Mamba
from rotrnn.nn.layers.mamba2 import Mamba2

V, T, B = 61, 37, 3
SMALL = {"vocab_size": V, "hidden_size": 24, "state_size": 5, "num_hidden_layers": 3}
HEADS = {"num_heads": 6, "head_dim": 8, "chunk_size": 8}
GEMMA = {"vocab_size": V, "hidden_size": 32, "intermediate_size": 192, "num_attention_heads": 4, "pad_token_id": None}
PUBLISHED: dict[str, tuple[Any, Any]] = {
    "mamba": (MambaForCausalLM, MambaConfig(**SMALL)),
    "mamba, other forms": (
        MambaForCausalLM,
        MambaConfig(
            **SMALL, use_bias=True, use_conv_bias=False, tie_word_embeddings=False, time_step_rank=3, conv_kernel=3,
            layer_norm_epsilon=1e-3, expand=3, mixer_rms_eps=1e-2,  # which FalconMamba alone reads
        ),
    ),
    "mamba2": (Mamba2ForCausalLM, Mamba2Config(**SMALL, **HEADS, n_groups=1)),
    "mamba2, groups": (Mamba2ForCausalLM, Mamba2Config(**SMALL, **HEADS, n_groups=2, use_bias=True)),
    "mamba2, tied": (
        Mamba2ForCausalLM,
        Mamba2Config(**SMALL, **HEADS, n_groups=3, tie_word_embeddings=True, use_conv_bias=False),
    ),
    "falcon_mamba": (FalconMambaForCausalLM, FalconMambaConfig(**SMALL, tie_word_embeddings=False)),
    "falcon_mamba, other forms": (
        FalconMambaForCausalLM,
        FalconMambaConfig(**SMALL, mixer_rms_eps=1e-2, use_bias=True, expand=16, intermediate_size=72),
    ),
    "recurrent_gemma": (
        RecurrentGemmaForCausalLM,
        RecurrentGemmaConfig(**GEMMA, num_hidden_layers=4, num_key_value_heads=1, attention_window_size=7),
    ),
    "recurrent_gemma, other forms": (
        RecurrentGemmaForCausalLM,
        RecurrentGemmaConfig(
            **GEMMA, num_hidden_layers=2, block_types=["recurrent", "attention"], tie_word_embeddings=False,
            logits_soft_cap=3.0, rms_norm_eps=1e-3,
        ),
    ),
}  # fmt: skip
TOLERANCE = 1e-5
"""Of logits of size 4: some thousand roundings of 2^-24 each, of random sign, in three blocks."""


def published(name: str, folder: Path, **more: Any) -> Any:
    """A model of transformers, each parameter moved from its initial value, written to a folder."""
    kind, config = PUBLISHED[name]
    torch.manual_seed(0)
    model = kind(config).eval()
    with torch.no_grad():
        for one in model.parameters():
            one.add_(0.1 * torch.randn_like(one))
    model.save_pretrained(folder, **more)
    return model


def tokens() -> Any:
    return np.random.default_rng(0).integers(0, V, (B, T))


def logits_of(model: Any, ids: Any) -> Any:
    with torch.no_grad():
        return model(torch.tensor(ids), use_cache=False).logits.numpy()


@pytest.mark.parametrize("name", PUBLISHED)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    theirs, ids = published(name, tmp_path), tokens()
    model, params = rotrnn.from_pretrained(tmp_path)
    expected = logits_of(theirs, ids)
    logits, _ = model.forward(params, ids)
    assert logits.dtype == np.float32
    assert np.abs(logits - expected).max() <= TOLERANCE
    assert np.ptp(expected) > 1  # 1e-5 is little beside them
    kinds = {"mamba": Mamba, "falcon_mamba": Mamba, "mamba2": Mamba2, "recurrent_gemma": Griffin}
    assert type(model.stack.blocks[0].layer) is kinds[name.partition(",")[0]]


@pytest.mark.parametrize("engine", ["c", "python"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_streams_go_on_as_transformers_do(name: str, engine: str, tmp_path: Path) -> None:
    """A chunk, then single tokens."""
    theirs, ids = published(name, tmp_path), tokens()
    model, params = rotrnn.from_pretrained(tmp_path)
    expected, stream = logits_of(theirs, ids), model.stream(params, B, engine)
    assert np.abs(stream.push(ids[:, :9]) - expected[:, :9]).max() <= TOLERANCE
    for t in range(9, T):
        assert np.abs(stream.push(ids[:, t]) - expected[:, t]).max() <= TOLERANCE


@pytest.mark.parametrize("name", PUBLISHED)
def test_text_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    """Greedy. No two logits are as near to each other as the two programs' differ."""
    theirs, ids = published(name, tmp_path), tokens()[:, :7]
    model: Any
    model, params = rotrnn.from_pretrained(tmp_path)
    with torch.no_grad():
        mask = torch.ones(ids.shape, dtype=torch.int64)
        expected = theirs.generate(
            torch.tensor(ids), attention_mask=mask, max_new_tokens=20, do_sample=False, eos_token_id=None
        ).numpy()
    assert np.array_equal(model.sample(params, ids, 20, temperature=0), expected[:, 7:])


CHOICES: dict[str, dict[str, Any]] = {
    "penalty": {"repetition_penalty": 1.7},
    "min_p": {"min_p": 0.2},
    "all": {"repetition_penalty": 1.3, "temperature": 0.7, "top_k": 25, "top_p": 0.9, "min_p": 0.02},
}


@pytest.mark.parametrize("choice", CHOICES)
def test_draws_and_stops_are_those_of_transformers(
    choice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its `generate` with several `eos_token_id`, whose draws take the noise of `sample`: a class by the largest sum of
    log probability and Gumbel noise. Where a sequence has ended, it pads."""
    theirs, ids = published("falcon_mamba", tmp_path), tokens()[:, :7]
    model: Any
    model, params = rotrnn.from_pretrained(tmp_path)
    free = model.sample(params, ids, 20, seed=4, **CHOICES[choice])
    assert not np.array_equal(free, model.sample(params, ids, 20, seed=4))
    stops = [int(free[0, 3]), int(free[1, 11])]
    drawn = model.sample(params, ids, 20, seed=4, stop=stops, **CHOICES[choice])
    rng = np.random.default_rng(4)

    def multinomial(p: torch.Tensor, num_samples: int) -> torch.Tensor:
        assert num_samples == 1
        return (p.double().log() + torch.tensor(rng.gumbel(size=p.shape))).argmax(1, keepdim=True)

    monkeypatch.setattr(torch, "multinomial", multinomial)
    every = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, **CHOICES[choice]}  # its own top_k would be 50
    with torch.no_grad():
        whole = theirs.generate(
            torch.tensor(ids), attention_mask=torch.ones(ids.shape, dtype=torch.int64), max_new_tokens=20,
            do_sample=True, eos_token_id=stops, pad_token_id=V - 1, **every,
        ).numpy()[:, 7:]  # fmt: skip
    assert whole.shape == drawn.shape
    ends = [next((i for i, one in enumerate(row) if one in stops), len(row) - 1) for row in whole.tolist()]
    assert min(ends) < len(drawn[0]) - 1
    for got, expected, end in zip(drawn, whole, ends, strict=True):
        assert np.array_equal(got[: end + 1], expected[: end + 1])


OF_MAMBA_SSM: dict[str, dict[str, Any]] = {
    "mamba": {"ssm_cfg": {"d_state": 5}},
    "mamba2": {
        "ssm_cfg": {"layer": "Mamba2", "d_state": 5, "headdim": 8, "ngroups": 1}, "attn_layer_idx": [], "attn_cfg": {},
        "d_intermediate": 0,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", OF_MAMBA_SSM)
def test_settings_of_the_package_mamba_ssm(name: str, tmp_path: Path) -> None:
    """As its checkpoints have them: other names of settings and of the embedding, and 61 tokens that the arrays pad to
    64. The arrays are otherwise those of transformers, which converts them by a script."""
    kind, config = PUBLISHED[name]
    config = copy.deepcopy(config)
    config.vocab_size, config.tie_word_embeddings = 64, True
    torch.manual_seed(0)
    theirs = kind(config).eval()
    arrays = {one.replace("embeddings", "embedding"): value for one, value in theirs.state_dict().items()}
    tied = arrays["backbone.embedding.weight"].clone()
    save_file(
        {**arrays, "backbone.embedding.weight": tied, "lm_head.weight": tied.clone()}, tmp_path / "model.safetensors"
    )
    settings = {"d_model": 24, "n_layer": 3, "vocab_size": V, "rms_norm": True, "pad_vocab_size_multiple": 8}
    settings |= {"architectures": ["MambaLMHeadModel"], "initializer_cfg": None}  # which say nothing here
    (tmp_path / "config.json").write_text(json.dumps({**settings, **OF_MAMBA_SSM[name]}), encoding="utf-8")
    model, params = rotrnn.from_pretrained(tmp_path)
    ids = tokens()
    assert np.abs(model.forward(params, ids)[0] - logits_of(theirs, ids)).max() <= TOLERANCE


@pytest.mark.parametrize("parts", [["pytorch_model.bin"], [f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2)]])
def test_the_command_that_converts_pickles(parts: list[str], tmp_path: Path) -> None:
    """As the error has it. One matrix is stored by columns."""
    theirs = published("mamba", tmp_path)
    state = theirs.state_dict()
    strided = "backbone.layers.0.mixer.x_proj.weight"
    state[strided] = state[strided].T.contiguous().T
    names = sorted(state)
    for i, part in enumerate(parts):
        torch.save({name: state[name] for name in names[i :: len(parts)]}, tmp_path / part)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=rf"{parts[0]} is a pickle") as raised:
        rotrnn.from_pretrained(tmp_path)
    command = str(raised.value).partition("trusted, ")[2].rpartition(" in the folder writes")[0]
    subprocess.run(command.replace("python", sys.executable, 1), shell=True, check=True, cwd=tmp_path)
    model, params = rotrnn.from_pretrained(tmp_path)
    ids = tokens()
    assert np.abs(model.forward(params, ids)[0] - logits_of(theirs, ids)).max() <= TOLERANCE


def test_a_model_in_parts_and_in_half_precision(tmp_path: Path) -> None:
    """Files of a limited size and an index of them; bfloat16 is widened."""
    whole, parts, half = tmp_path / "whole", tmp_path / "parts", tmp_path / "half"
    published("mamba", whole)
    published("mamba", parts, max_shard_size="20KB")
    assert len(list(parts.glob("*.safetensors"))) > 1
    _, expected = rotrnn.from_pretrained(whole)
    _, got = rotrnn.from_pretrained(parts)
    theirs = published("mamba", tmp_path / "again").to(torch.bfloat16)
    theirs.save_pretrained(half)
    _, narrow = rotrnn.from_pretrained(half)
    wide = dict(theirs.to(torch.float32).state_dict())
    for (name, one), (_, two) in zip(rotrnn.nn.flatten(expected), rotrnn.nn.flatten(got), strict=True):
        assert np.array_equal(one, two), name
    assert np.array_equal(narrow["encoder"]["table"], wide["backbone.embeddings.weight"].numpy())
    assert narrow["blocks"]["0"]["layer"]["A_log"].dtype == np.float32


def test_gradients_are_those_of_torch(tmp_path: Path) -> None:
    """Of the mean cross-entropy, by every parameter; the embedding is tied, so its gradient is a sum of two."""
    theirs, ids = published("mamba", tmp_path).train(), tokens()
    model: Any
    model, params = rotrnn.from_pretrained(tmp_path)
    theirs(torch.tensor(ids), labels=torch.tensor(ids)).loss.backward()
    logits, saved = model.forward(params, ids)
    loss = model.loss(logits, model.targets(ids))
    grads = dict(rotrnn.nn.flatten(model.backward(params, saved, loss.dlogits)))
    named = {"encoder.table": "backbone.embeddings.weight", "norm.scale": "backbone.norm_f.weight"}
    named |= {f"blocks.1.layer.{name}": f"backbone.layers.1.mixer.{name}" for name in ("A_log", "D")}
    named["blocks.0.layer.dt_bias"] = "backbone.layers.0.mixer.dt_proj.bias"
    named["blocks.2.norm.scale"] = "backbone.layers.2.norm.weight"
    for ours, there in named.items():
        expected = theirs.get_parameter(there).grad.numpy()
        assert np.abs(grads[ours] - expected).max() <= 1e-5 * max(1, np.abs(expected).max()), ours


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "type": ({"state_size": "5"}, "config.json: state_size is '5', expected an integer"),
    "shape": ({"state_size": 6}, r"backbone.layers.0.mixer.x_proj.weight has shape \(12, 48\), expected \(14, 48\)"),
    "fewer": ({"num_hidden_layers": 2}, "model.safetensors: has backbone.layers.2.mixer.A_log, which is not expected"),
    "more": ({"num_hidden_layers": 4}, "model.safetensors: lacks backbone.layers.3.norm.weight"),
    "act": ({"hidden_act": "gelu"}, "config.json: hidden_act is 'gelu', expected 'silu'"),
    "untied": ({"tie_word_embeddings": False}, "model.safetensors: lacks lm_head.weight"),
    "inner": ({"intermediate_size": 7}, "config.json: intermediate_size is 7, expected a multiple of hidden_size = 24"),
    "value": ({"layer_norm_epsilon": -1.0}, "config.json: .*norm_eps"),
    "kind": (
        {"model_type": "mamba3"},
        "config.json: model_type is 'mamba3', expected one of rotrnn, mamba, mamba2, falcon_mamba, recurrent",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_settings_that_do_not_fit_are_named(wrong: str, tmp_path: Path) -> None:
    change, message = WRONG[wrong]
    published("mamba", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | change), encoding="utf-8")
    with pytest.raises(ValueError, match=message) as raised:
        rotrnn.from_pretrained(tmp_path)
    assert str(raised.value).startswith(str(tmp_path))


def test_settings_of_mamba2_that_do_not_fit_are_named(tmp_path: Path) -> None:
    published("mamba2", tmp_path)
    path = tmp_path / "config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    for change, message in (
        ({"time_step_limit": [0.0, 0.1]}, r"time_step_limit is \[0.0, 0.1\], expected 0 and infinity"),
        ({"num_heads": 5}, r"num_heads is 5 and head_dim 8, expected expand \* hidden_size = 48 as their product"),
    ):
        path.write_text(json.dumps(settings | change), encoding="utf-8")
        with pytest.raises(ValueError, match=f"config.json: {message}"):
            rotrnn.from_pretrained(tmp_path)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    published("mamba", tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"model.safetensors: is truncated, or is not a safetensors file"):
        rotrnn.from_pretrained(tmp_path)
    weights.unlink()
    with pytest.raises(FileNotFoundError, match=r"model.safetensors"):
        rotrnn.from_pretrained(tmp_path)


def test_settings_of_recurrent_gemma_that_do_not_fit_are_named(tmp_path: Path) -> None:
    published("recurrent_gemma", tmp_path)
    path = tmp_path / "config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    for change, message in (
        ({"intermediate_size": 96}, "intermediate_size is 96, expected 192"),
        ({"lru_width": 64}, "lru_width is 64, expected 32"),
        ({"hidden_activation": "silu"}, "hidden_activation is 'silu', expected 'gelu_pytorch_tanh'"),
        ({"attention_bias": True}, "attention_bias is True, expected False"),
        ({"rope_parameters": {"rope_theta": 5000.0}}, "rope_theta is 5000.0, expected 10000"),
        ({"rope_scaling": {"rope_theta": 5000.0}}, "rope_theta is 5000.0, expected 10000"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type is 'linear', expected 'default'"),
        ({"sliding_window": 1}, "sliding_window is 1, expected 7"),
        ({"partial_rotary_factor": 1.0, "rope_parameters": None}, "partial_rotary_factor is 1.0, expected 0.5"),
        ({"block_types": ["attention", "recurrent"]}, r"block_types is \['attention', 'recurrent'\], expected"),
        ({"block_types": ["attention"]}, r"block_types is \['attention'\], expected"),
        ({"block_types": []}, r"block_types is \[\], expected"),
        ({"rope_parameters": [1]}, r"rope_parameters is \[1\], expected an object"),
        ({"num_attention_heads": 5}, "head_dim is 8, expected 6"),
        ({"num_attention_heads": 0, "head_dim": 32}, "model.attention_heads: got 0, expected an integer from 1"),
        ({"num_key_value_heads": 0}, "model.attention_kv_heads: got 0, expected an integer from 1"),
    ):
        path.write_text(json.dumps(settings | change), encoding="utf-8")
        with pytest.raises(ValueError, match=f"config.json: .*{message}"):
            rotrnn.from_pretrained(tmp_path)


def test_gradients_of_recurrent_gemma_are_those_of_torch(tmp_path: Path) -> None:
    """Of the mean cross-entropy; those by a_param go through the gain, whose slope both clip."""
    theirs, ids = published("recurrent_gemma", tmp_path).train(), tokens()
    model: Any
    model, params = rotrnn.from_pretrained(tmp_path)
    theirs(torch.tensor(ids), labels=torch.tensor(ids), use_cache=False).loss.backward()
    logits, saved = model.forward(params, ids)
    grads = dict(rotrnn.nn.flatten(model.backward(params, saved, model.loss(logits, model.targets(ids)).dlogits)))
    named = {"encoder.table": "model.embed_tokens.weight", "norm.scale": "model.final_norm.weight"}
    named["blocks.0.layer.a_param"] = "model.layers.0.temporal_block.rg_lru.recurrent_param"
    named["blocks.1.layer.griffin_conv_bias"] = "model.layers.1.temporal_block.conv_1d.bias"
    named["blocks.2.layer.w_v"] = "model.layers.2.temporal_block.v_proj.weight"
    named["blocks.3.feed_forward.down.w"] = "model.layers.3.mlp_block.down_proj.weight"
    for ours, there in named.items():
        expected = theirs.get_parameter(there).grad.numpy()
        assert np.abs(grads[ours] - expected).max() <= 1e-5 * max(1, np.abs(expected).max()), ours
