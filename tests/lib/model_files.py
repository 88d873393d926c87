"""Changed model files for the C library: each must give an error with a sentence, or a model that runs.

    PYTHONPATH=python:tests:. python -m tests.lib.model_files --count 100000    # make fuzz-lib: under the sanitizers

Half of the changes are of bytes. The other half are of settings, shapes and places, with the right checksum, so that
they reach the checks behind it.
"""

from __future__ import annotations

import argparse
import copy
import json
from typing import Any

import numpy as np
from safetensors.numpy import save

from librotrnn import LibraryError, Model
from rotrnn import ModelSettings, build_model
from rotrnn._support.checkpoint import KEY, _digest
from rotrnn.models.files import contents

Rng = np.random.Generator

VALUES: list[Any] = [
    *(-1, 0, 1, 2, 3, 7, 12, 13, 2**28, 2**28 + 1, 2**31, 2**62, 2**63, -(2**63), 10**30, 0.5, -0.0, 1e308, 1e-320),
    *("Dense", "Split", "Sum", "Scan", "SelectiveScan", "System", "FixedPoint", "encoder.w", "program.0", "u", "delta"),
    *("householder", "low_rank", "kronecker", "orthogonal", "dense", "mixture", "direct", ["mixer", "lambda"]),
    *(None, True, False, "", "full", "LRU", "Mamba", "Attention", "\u00e9\u0000", [], {}, [1], {"kind": "Dense"}),
]
LAYERS: list[tuple[str, dict[str, Any]]] = [
    ("lru", {"d_state": 3}),
    ("rotrnn", {"d_state": 6, "heads": 2, "window": 3}),
    ("s4d", {"d_state": 2, "window": 2}),
    ("liquid_s4", {"d_state": 2, "kernel": "kb"}),
    ("mamba", {"d_state": 2, "negative": True}),
    ("mamba2", {"d_state": 2, "d_head": 2, "groups": 2}),
    ("mamba3", {"d_state": 4, "d_head": 2, "groups": 2}),
    ("mamba3", {"d_state": 4, "d_head": 2, "rank": 2}),
    ("delta_net", {"d_state": 2, "heads": 2, "steps": 2, "gate": True}),
    ("rwkv7", {"heads": 2, "rank": 2, "gate_rank": 3}),
    ("gated_delta_net_2", {"d_state": 2, "heads": 2}),
    ("mlstm", {"d_state": 3, "heads": 2, "bias": True}),
    ("slstm", {"d_state": 4, "heads": 2}),
    ("lstm", {"d_state": 3}),
    ("gru", {"d_state": 3}),
    ("rg_lru", {"heads": 2}),
    ("linoss", {"d_state": 3}),
    ("aussm", {"d_state": 3, "d_conv": 2}),
    ("slinoss", {"d_state": 2, "d_head": 2}),
    ("pd_ssm", {"d_state": 3, "dictionary": 2}),
    ("min_gru", {"d_state": 3, "negative": True}),
    ("rnn", {"d_state": 3, "activation": "tanh"}),
    ("attention", {"heads": 2}),
    ("wrope_memory", {"d_state": 2, "length": 4}),
    ("lru", {"d_state": 4, "history": {"length": 4, "heads": 2, "window": 3}}),
    ("lstm", {"d_state": 4, "history": {"length": 4, "heads": 2, "read": "ages", "form": "reversed"}}),
    ("fixed_point", {"d_state": 4, "d_conv": 2, "separate_convs": True, "feedback": ("mixer", "output")}),
    ("bedouin", {"d_state": 2, "mixer": "kronecker", "d_conv": 2}),
    ("fpmamba", {"d_state": 2, "max_iterations": 100, "symmetric": True, "d_head": 2, "d_conv": 2}),
    ("selective_rotrnn", {"d_state": 6, "heads": 2, "gamma": "input"}),
    ("fixed_point", {"d_state": 4, "mixer": "mixture", "rank": 2, "selective": ("mixer",)}),
    ("fixed_point", {"d_state": 4, "solver": "direct", "rank": 2, "selective": ()}),
    *(
        ("fixed_point", {"d_state": 4, "solver": "direct", "mixer": mixer, "rank": 2})
        for mixer in ("kronecker", "orthogonal", "mixture", "rotation")
    ),
    ("bedouin", {"d_state": 2, "mixer": "dense"}),
    ("bedouin", {"d_state": 2, "feedback_norm": True}),
    ("bedouin", {"d_state": 2, "mixer": "low_rank", "solver": "direct"}),
    ("bedouin", {"d_state": 2, "mixer": "mixture", "rank": 2, "solver": "direct"}),
    ("fpmamba", {"d_state": 2, "mixer": "mixture", "rank": 3, "spectral": True}),
]


def content_of(arrays: dict[str, Any], facts: dict[str, Any]) -> bytes:
    """The bytes of a file with the right checksum."""
    text = json.dumps({**facts, "format": 2}, sort_keys=True)
    return bytes(save(arrays, {KEY: f"{_digest(arrays, text)} {text}"}))


def sources(rng: Rng) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Arrays and facts of a small model of each layer."""
    found = []
    for i, (layer, own) in enumerate(LAYERS):
        block = ("gated", "transformer", "griffin")[i % 3]
        settings = ModelSettings(layer, 4, 1, norm=("batch", "layer")[i % 2], block=block)
        reads = {"vocab": 5} if i % 2 else {"n_features": 2}
        model = build_model(settings, own, head=("classifier", "tagger")[i % 2], n_classes=3, **reads)
        found.append(contents(model, model.init(rng)))
    return found


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a value."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    own = [(value, key) for key in keys]
    return own + [place for container, key in own for place in places(container[key])]


def changed_settings(rng: Rng, arrays: dict[str, Any], facts: dict[str, Any]) -> bytes:
    """The file with one or two settings, or an array, changed."""
    arrays, facts = dict(arrays), json.loads(json.dumps(facts))
    for _ in range(int(rng.integers(1, 3))):
        container, key = (all_places := places(facts))[int(rng.integers(len(all_places)))]
        choice = rng.integers(4)
        if choice == 0 and isinstance(container, dict):
            container[f"{key}x"] = container.pop(key)
        elif choice == 1 and isinstance(container, list):
            container.append(copy.deepcopy(container[key]))
        else:
            container[key] = copy.deepcopy(VALUES[int(rng.integers(len(VALUES)))])
    if rng.integers(3) == 0:
        name = sorted(arrays)[int(rng.integers(len(arrays)))]
        one = arrays.pop(name)
        shapes = [None, (one.size,), (*one.shape, 1), (0, *one.shape[1:]), (2, *one.shape)]
        shape = shapes[int(rng.integers(len(shapes)))]
        if shape is not None:
            arrays[name] = np.resize(one, shape) * rng.choice([1, 0, 1e30, -1])
    return content_of(arrays, facts)


def changed_bytes(rng: Rng, content: bytes) -> bytes:
    """The file with a few bytes changed, or cut off, or with something in between."""
    changed = bytearray(content)
    for _ in range(int(rng.integers(1, 5))):
        place = int(rng.integers(len(changed) if rng.integers(2) else min(len(changed), 2000)))
        choice = rng.integers(4)
        if choice == 0:
            changed[place:] = changed[place:][int(rng.integers(1, 9)) :]
        elif choice == 1:
            changed[place:place] = rng.bytes(int(rng.integers(1, 9)))
        else:
            changed[place] = rng.integers(256) if choice == 2 else rng.choice(list(b'{}[]",:-0159eE\\un'))
        if not changed:
            break
    return bytes(changed)


def run(content: bytes) -> bool:
    """Loads a file and, if it is one, reads some steps. Returns whether it is."""
    try:
        model = Model(content)
        facts = model.facts
        stream = model.stream(2, 6)
    except LibraryError:
        return False
    x = np.ones((2, 5) if facts.reads_tokens else (2, 5, facts.inputs))
    stream.push(np.minimum(x, facts.inputs - 1))
    if stream.lib.state_size(stream.handle) < 2**20:  # a window may be as long as memory allows
        stream.load(stream.save())
    return True


def fuzz(count: int, seed: int) -> int:
    """Runs that many changed files; returns how many were models."""
    rng = np.random.default_rng(seed)
    found, models = sources(rng), 0
    contents = [content_of(*one) for one in found]
    for _ in range(count):
        i = int(rng.integers(len(found)))
        models += run(changed_settings(rng, *found[i]) if rng.integers(2) else changed_bytes(rng, contents[i]))
    return models


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    models = fuzz(options.count, options.seed)
    print(f"{options.count} changed files, of which {models} were models; no fault")
