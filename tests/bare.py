"""What rotrnn does where nothing but its `dependencies` is installed; `make test-bare` runs it on the built wheel.

Needs no pytest, and finds rotrnn where it is installed: run it by ``python -I``, outside the source tree.
"""

from __future__ import annotations

import subprocess
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path

EXTRAS = (
    "scipy",
    "sklearn",
    "matplotlib",
    "pooch",
    "PIL",
    "tensorboard",
    "mpi4py",
    "jax",
    "onnx",
    "tokenizers",
    "huggingface_hub",
    "pytest",
)
COMMAND = str(Path(sysconfig.get_path("scripts"), "rotrnn"))
IMPLICIT = {"d_state": 4, "gradient": "implicit", "tol": 1e-10, "max_iterations": 999}
SMALL = {
    "rotrnn": {"d_state": 8, "heads": 2},
    "attention": {"heads": 2},
    "fixed_point": IMPLICIT,
    "bedouin": IMPLICIT,
    "fpmamba": IMPLICIT,
    "rope_memory": {"d_state": 4, "length": 8},
    "wrope_memory": {"d_state": 4, "length": 8, "window": 4},
}
"""Settings of layers that need others than d_state = 4, if they have it; fixed points with the gradient that
differences have."""


def rotrnn(folder: str, *arguments: str, fails: bool = False) -> str:
    """What the command prints in a folder; of one that is to fail, its error."""
    done = subprocess.run([COMMAND, *arguments], cwd=folder, capture_output=True, text=True)
    assert bool(done.returncode) == fails, f"rotrnn {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return (done.stderr if fails else done.stdout).strip()


def check_layers() -> None:
    """Forward and backward of every layer: <df/dx, v> is the slope of f along v; of D, where dx is an estimate."""
    import numpy as np

    from rotrnn import LAYERS

    for name, kind in LAYERS.items():
        rng = np.random.default_rng(0)
        states = {"d_state": 4} if "d_state" in kind.__dataclass_fields__ else {}
        layer = kind(d_model=4, **SMALL.get(name, states))
        params = layer.init(rng)  # with numbers in place of zeros, behind which nothing moves
        params |= {key: 0.5 * rng.standard_normal(p.shape) for key, p in params.items() if not np.any(p)}
        x, v = rng.standard_normal((2, 2, 9, 4))
        y, saved = layer.forward(params, x)[:2]
        dy = rng.standard_normal(y.shape)
        dx, dparams = layer.backward(params, saved, dy)[:2]

        moves = [(params, x + step * v) for step in (1e-6, -1e-6)]
        slope = float((dx * v).sum())
        if "x" in layer.estimated:
            moves = [(params | {"D": params["D"] + step * v[0, 0]}, x) for step in (1e-6, -1e-6)]
            slope = float(dparams["D"] @ v[0, 0])
        above, below = (float((layer.forward(*moved)[0] * dy).sum()) for moved in moves)
        expected = (above - below) / 2e-6
        assert abs(expected) > 0.01, f"{name}: slope {expected}, too flat to check"
        assert abs(slope - expected) <= 1e-5 * (1 + abs(expected)), f"{name}: slope {slope}, expected {expected}"
        print(f"{name}: slope {slope:.6f}")


def main() -> None:
    there = [name for name in EXTRAS if find_spec(name)]
    assert not there, f"not bare: {', '.join(there)}"
    import rotrnn as package

    assert sysconfig.get_path("platlib") in str(package.__file__), package.__file__
    check_layers()
    small = ("--set", "task.val_fraction=0.01", "--set", "task.test=64", "--set", "task.samples=4000")
    with tempfile.TemporaryDirectory() as folder:
        print(rotrnn(folder, "info"))
        print(rotrnn(folder, "train", "word-problem-small", "--out", "run", "--steps", "5", *small))
        for arguments, extra in (("train", "digits-rotrnn"), "data"), (("plot", "run"), "plot"):
            error = rotrnn(folder, *arguments, fails=True)
            assert len(error.splitlines()) == 1, error
            assert error.startswith("rotrnn: error: "), error
            assert f"pip install 'rotrnn[{extra}]'" in error, error
            print(error)


if __name__ == "__main__":
    main()
