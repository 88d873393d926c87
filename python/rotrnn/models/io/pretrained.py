"""Models as folders in the layout of Hugging Face: config.json with the settings, model.safetensors with the arrays.

`SequenceModel.save_pretrained` writes such a folder. Its config.json has the model_type "rotrnn", and its
model.safetensors is the file of `SequenceModel.save`, which `rotrnn.load` and the C library read. `from_pretrained`
reads these folders and the folders of published models in `CONFIGS`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rotrnn._support.extras import needed
from rotrnn._support.files import read_file
from rotrnn._support.json import from_json, to_json
from rotrnn._support.text import an
from rotrnn.models.files import CONFIG, FORMAT, OWN, WEIGHTS, Loaded, described, load
from rotrnn.models.io.huggingface import CONFIGS, CONVERT, INDEX, check_weights, read_mamba_ssm, read_published


def from_pretrained(name: str | os.PathLike[str], *, revision: str | None = None) -> Loaded:
    """Reads a model and its parameters from a folder: ``model, params = rotrnn.from_pretrained("folder")``.

    The folder was written by `SequenceModel.save_pretrained`, by MambaForCausalLM, Mamba2ForCausalLM,
    FalconMambaForCausalLM or RecurrentGemmaForCausalLM of transformers, such as "state-spaces/mamba-130m-hf", or holds
    a Mamba or Mamba-2 of the package mamba_ssm. Parameters are float32, or float64 if the file has any. Code in a
    folder is never run.

    Parameters
    ----------
    name : path of a folder, or str
        Where there is no such folder, the name of a repository on the Hugging Face hub, "owner/name". It is downloaded
        into the cache of the package huggingface_hub (pip install 'rotrnn[hub]').
    revision : str, optional
        A branch, tag or commit of the repository.

    Raises
    ------
    FileNotFoundError
        There is no such folder, or it lacks a file.
    ImportError
        huggingface_hub is not installed.
    OSError
        The repository could not be downloaded.
    ValueError
        A file is damaged, the model is of an unknown kind, a setting is wrong, or an array is missing, of another
        shape, or not finite. The error names the file and the field.
    """
    return read_folder(find_folder(name, revision))


def read_folder(folder: Path) -> Loaded:
    """Returns the model of a folder; see `from_pretrained`."""
    path = folder / CONFIG
    if not path.is_file():
        raise FileNotFoundError(f"{folder}: has no {CONFIG}, expected the folder of a model")
    try:
        settings = from_json(read_file(path))
    except ValueError as error:
        raise ValueError(f"{path}: is not JSON ({error})") from None
    if not isinstance(settings, dict):
        raise ValueError(f"{path}: is {an(type(settings).__name__)}, expected an object of settings")
    kind = settings.get("model_type")
    theirs = {"d_model", "n_layer"} <= settings.keys() and "hidden_size" not in settings  # both: of transformers
    if theirs and kind in (None, "mamba", "mamba2"):
        return read_mamba_ssm(folder, settings)
    if kind == OWN:
        return _read_own(folder, settings)
    if not isinstance(kind, str) or kind not in CONFIGS:
        raise ValueError(f"{path}: model_type is {kind!r:.80}, expected one of {', '.join((OWN, *CONFIGS))}")
    return read_published(folder, settings, CONFIGS[kind])


def _read_own(folder: Path, settings: dict[str, Any]) -> Loaded:
    """Returns the model of a folder of `save_folder`. The file with the arrays is whole in itself; the settings beside
    it must be the same."""
    path = folder / CONFIG
    if settings.get("model_format") != FORMAT:
        raise ValueError(f"{path}: model_format is {settings.get('model_format')!r:.20}, expected {FORMAT}")
    check_weights(folder)
    loaded = load(folder / WEIGHTS)
    if settings.get("model") != from_json(to_json(described(loaded.model))):
        raise ValueError(f"{path}: model differs from {WEIGHTS}, expected the two files that were written together")
    return loaded


def find_folder(name: str | os.PathLike[str], revision: str | None = None) -> Path:
    """Returns the folder of that path, or of a repository of that name."""
    if not isinstance(name, str | os.PathLike):
        raise TypeError(f"from_pretrained: name is {an(type(name).__name__)}, expected a folder or a repository's name")
    if not isinstance(revision, str | None):
        raise TypeError(f"from_pretrained: revision is {an(type(revision).__name__)}, expected a text or None")
    path, text = Path(name), os.fspath(name)
    if not text:  # which pathlib takes for the current folder
        raise ValueError(
            "from_pretrained: name is '', expected a folder ('.' is the current one) or a repository's name"
        )
    if path.is_file():
        raise ValueError(f"from_pretrained: name is {text!r:.80}, a file, expected a folder, or rotrnn.load for a file")
    if path.is_dir():
        if revision is not None:
            raise ValueError(
                f"from_pretrained: revision is {revision!r:.80}, expected None with the folder {text!r:.80}"
            )
        return path
    if isinstance(name, os.PathLike) or text.count("/") != 1 or text.startswith(("/", ".", "~")) or text.endswith("/"):
        raise FileNotFoundError(f"from_pretrained: name is {text!r:.80}, and there is no such folder")
    return _downloaded(text, revision)


def _downloaded(name: str, revision: str | None) -> Path:
    missing = f"there is no folder {name!r:.80}, and to ask for a repository of that name needs huggingface_hub"
    with needed(f"from_pretrained: {missing}", "'rotrnn[hub]'"):
        from huggingface_hub import snapshot_download
    wanted = [CONFIG, INDEX, "*.safetensors", "tokenizer.json"]
    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=wanted))
    except Exception as error:  # an interrupted download raises errors of the HTTP client in use
        reason = str(error).strip().partition("\n")[0]
        raise OSError(f"from_pretrained: {name!r:.80} could not be downloaded ({reason})") from error
    if not any(folder.glob("*.safetensors")):
        pickled = (
            f"if it has pytorch_model.bin and is trusted, download that, too, and {CONVERT} writes the other there"
        )
        raise FileNotFoundError(
            f"from_pretrained: {name!r:.80} has no model.safetensors, expected its arrays; {pickled}"
        )
    return folder
