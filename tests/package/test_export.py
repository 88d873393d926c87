"""The commands export and generate: a run's model as a file and a folder, and a text that goes on."""

from __future__ import annotations

import json
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rotrnn
from rotrnn._support.checkpoint import read_checkpoint, write_checkpoint
from rotrnn.cli import main
from rotrnn.models.build import ModelSettings, build_model
from rotrnn.models.writing import Tokenizer, tokens_of
from rotrnn.nn.layer import flatten
from rotrnn.training.run import Run

MODEL: Any = build_model(ModelSettings("min_gru", 6, 1), {"d_state": 4}, head="language", n_classes=9, vocab=9)
PARAMS = MODEL.init(np.random.default_rng(0))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps, evaluated after the first, so that its best and last parameters may differ."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    recipe = rotrnn.load_recipe("digits-lru", ["training.steps=3", "training.eval_every=1"])
    rotrnn.train(recipe, folder, progress=False)
    return folder


def equal(one: Any, two: Any) -> bool:
    pairs = zip(sorted(flatten(one)), sorted(flatten(two)), strict=True)
    return all(a == b and np.array_equal(x, y) for (a, x), (b, y) in pairs)


def test_a_run_as_a_file_and_a_folder(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for out, checkpoint in (("m.safetensors", "best"), ("folder", "last")):
        path = tmp_path / out
        more = [] if checkpoint == "best" else ["--checkpoint", checkpoint]
        assert main(["export", str(run), "--out", str(path), *more]) == 0
        assert capsys.readouterr().out == f"{path}\n"
        model, params = rotrnn.load(path) if path.suffix else rotrnn.from_pretrained(path)
        assert equal(params, Run(run).load_params(checkpoint))
        assert model.check_params(params) is None
    assert main(["export", str(tmp_path / "folder"), "--out", str(tmp_path / "again.safetensors")]) == 0
    assert equal(rotrnn.load(tmp_path / "again.safetensors").params, params)


@pytest.mark.parametrize(
    ("task", "model"),
    [
        ({"name": "arrays", "kind": "classification"}, {}),
        ({"name": "arrays", "kind": "regression"}, {"objective": "quantile", "quantiles": [0.1, 0.5, 0.9]}),
        ({"name": "series"}, {}),
        ({"name": "listops", "train": 2, "val": 2, "test": 2, "min_length": 5, "max_length": 9}, {}),
    ],
)
def test_the_sizes_of_a_model_are_those_of_its_run(tmp_path: Path, task: dict[str, Any], model: dict[str, Any]) -> None:
    """Whether the data are still there, and whatever tokens occur in the training part."""
    data = tmp_path / "own.npz"
    if task["name"] != "listops":
        np.savez(data, x=np.arange(24.0).reshape(4, 3, 2) ** 2, y=np.arange(4) % 3)
        task = {**task, "path": str(data), "val_fraction": 0.0, "test_fraction": 0.0}
    own = {"layer": "min_gru", "d_model": 4, "n_layers": 1, "norm": "layer", **model}
    training = {"batch": 2, "steps": 1, "eval_every": 1}
    recipe = {"task": task, "model": own, "layer": {"d_state": 4}, "optimiser": {"lr": 0.004}, "training": training}
    rotrnn.train(recipe, tmp_path / "run", progress=False)
    data.unlink(missing_ok=True)
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "m.safetensors")]) == 0
    assert equal(rotrnn.load(tmp_path / "m.safetensors").params, Run(tmp_path / "run").load_params("best"))


def test_a_checkpoint_without_a_head_is_named(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(run, tmp_path / "run")
    arrays, facts = read_checkpoint(path := Run(tmp_path / "run").checkpoint("best"))
    write_checkpoint(path, {name: one for name, one in arrays.items() if "head" not in name}, facts)
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "m.safetensors")]) == 2
    expected = "has the arrays encoder.bias, encoder.w, expected head.bias, and encoder.table or encoder.w"
    assert f"{path}: {expected}" in capsys.readouterr().err


def test_a_run_as_a_graph_that_streams(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx = pytest.importorskip("onnx")
    out = tmp_path / "m.onnx"
    assert main(["export", str(run), "--out", str(out), "--lengths", "--state"]) == 0
    graph = onnx.load(out).graph
    given, found = ([one.name for one in values] for values in (graph.input, graph.output))
    states = [name for name in given if name.startswith("state_")]
    assert given == ["inputs", "lengths", *states]
    assert found == ["logits", *(f"next_{name}" for name in states)]
    capsys.readouterr()
    assert main(["export", str(run), "--out", str(tmp_path / "m.safetensors"), "--state"]) == 2
    assert "--state: --out is" in capsys.readouterr().err


def test_what_cannot_be_exported(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for model, out, message in (
        (run, "m.pt", "m.pt: expected a name that ends in .safetensors or .onnx, or a folder"),
        (tmp_path / "none", "m.safetensors", "there is no such folder"),
    ):
        assert main(["export", str(model), "--out", str(tmp_path / out)]) == 2
        assert message in capsys.readouterr().err


def test_onnx_is_asked_for(run: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert main(["export", str(run), "--out", str(tmp_path / "m.onnx")]) == 2
    assert "save_onnx: needs onnx, which is not installed; pip install 'rotrnn[onnx]'" in capsys.readouterr().err


def test_token_ids_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    MODEL.save(tmp_path / "m.safetensors", PARAMS)
    command = ["generate", str(tmp_path / "m.safetensors"), "1, 2 3", "--tokens", "6", "--top-k", "4", "--seed", "2"]
    assert main(command) == 0
    expected = MODEL.sample(PARAMS, np.array([[1, 2, 3]]), 6, top_k=4, seed=2)[0]
    assert capsys.readouterr().out == "1, 2 3 " + " ".join(map(str, expected)) + "\n"
    limits = ["--min-p", "0.2", "--repetition-penalty", "2", "--stop", str(expected[1]), "--stop", str(expected[3])]
    assert main([*command, *limits]) == 0
    how: dict[str, Any] = {"min_p": 0.2, "repetition_penalty": 2.0, "stop": [int(expected[1]), int(expected[3])]}
    ended = MODEL.sample(PARAMS, np.array([[1, 2, 3]]), 6, top_k=4, seed=2, **how)[0]
    assert capsys.readouterr().out == "1, 2 3 " + " ".join(map(str, ended)) + "\n"
    assert main([*command[:2], "a b"]) == 2
    assert "prompt is 'a b', expected token ids, since there is no tokenizer.json" in capsys.readouterr().err


def test_the_bytes_of_a_text_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By a run of the task `language`, and by its exported model with --bytes."""
    (tmp_path / "book.txt").write_text("Größe und Maß. " * 40, encoding="utf-8")
    tiny = ["task.name=language", f"task.path={tmp_path / 'book.txt'}", "task.length=16", "model.n_layers=1"]
    tiny += ["training.batch=2", "training.steps=2", "training.eval_every=2", "layer.d_state=8", "model.d_model=8"]
    sets = [part for one in tiny for part in ("--set", one)]
    folder = tmp_path / "run"
    assert main(["train", "digits-lru", *sets, "--out", str(folder), "--no-plots"]) == 0
    assert main(["export", str(folder), "--out", str(tmp_path / "m.safetensors")]) == 0
    model, params = rotrnn.load(tmp_path / "m.safetensors")
    drawn = model.sample(params, np.frombuffer("Größe".encode(), np.uint8)[None].astype(np.int64), 9, seed=1)[0]
    expected = "Größe" + bytes(drawn.tolist()).decode(errors="replace") + "\n"
    capsys.readouterr()
    for command in ([str(folder)], [str(tmp_path / "m.safetensors"), "--bytes"]):
        assert main(["generate", *command, "Größe", "--tokens", "9", "--seed", "1"]) == 0
        assert capsys.readouterr().out == expected


class Published:
    """A stand-in for tokenizers.Tokenizer: a token is a byte, 0 to 8 for the bytes of `TEXT`."""

    TEXT = "añb".encode() + b"cdefg"

    @classmethod
    def from_str(cls, text: str) -> Published:
        if not text.startswith("{"):
            raise Exception("expected value at line 1 column 1")
        return cls()

    def encode(self, text: str) -> Any:
        return types.SimpleNamespace(ids=[self.TEXT.index(one) for one in text.encode()])

    def decode(self, ids: list[int]) -> str:
        return bytes(self.TEXT[one] for one in ids).decode(errors="replace")


def test_text_goes_on(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in: Any = types.ModuleType("tokenizers")
    stand_in.Tokenizer = Published
    monkeypatch.setitem(sys.modules, "tokenizers", stand_in)
    MODEL.save_pretrained(tmp_path, PARAMS)
    (tmp_path / "tokenizer.json").write_text(json.dumps({}), encoding="utf-8")
    assert main(["generate", str(tmp_path), "añb", "--temperature", "0", "--tokens", "4"]) == 0
    drawn = MODEL.sample(PARAMS, np.array([[0, 1, 2, 3]]), 4, temperature=0)[0]
    text = Published().decode(drawn.tolist())
    shown = capsys.readouterr().out
    assert shown.startswith("añb")
    assert text.rstrip("\N{REPLACEMENT CHARACTER}") in shown
    pieces = list(tokens_of(tmp_path).pieces([0, 1, 2, 3]))
    assert pieces == ["a", "ñ", "b"]  # the two bytes of a letter come together
    (tmp_path / "tokenizer.json").write_text("?", encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer\.json: is not a tokenizer, or is damaged"):
        tokens_of(tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"needs tokenizers, which is not installed; pip install 'rotrnn\[hub\]'"):
        Tokenizer(tmp_path / "tokenizer.json")


def test_a_folder_that_is_neither_a_run_nor_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tmp_path), "--out", str(tmp_path / "m.safetensors")]) == 2
    assert f"{tmp_path}: has no config.json, expected the folder of a model" in capsys.readouterr().err
    with pytest.raises(ValueError, match="train: folder is empty, expected the path of a folder"):
        rotrnn.train(rotrnn.load_recipe("digits-lru"), "")


def test_only_language_models_write(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(run), "1"]) == 2
    assert "is a SequenceClassifier, expected a LanguageModel" in capsys.readouterr().err
