"""The state of a run: everything that training changes, and its checkpoints."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rotrnn import _cpu
from rotrnn._support.checkpoint import Facts, write_checkpoint
from rotrnn._support.text import an
from rotrnn._support.warn import warn
from rotrnn.devices import cuda
from rotrnn.devices.device import HOST, Device, to_host
from rotrnn.models.model import SequenceModel
from rotrnn.models.tagger import Tagger
from rotrnn.nn.layer import (
    Array,
    Params,
    astype,
    flatten,
    flatten_state,
    moved,
    unflatten,
    unflatten_state,
)
from rotrnn.nn.layer import State as Carried
from rotrnn.training.optimiser import Moments
from rotrnn.training.parallel import World
from rotrnn.training.recipe import Recipe
from rotrnn.training.run import PARAMS, Run

CARRIED = "carried"
"""Name of the carried state in checkpoints."""


@dataclass
class State:
    """Everything that training changes: the contents of a checkpoint."""

    step: int
    params: Params
    moments: Moments
    best_step: int = 0
    best_score: float = -1.0
    waited: int = 0
    """Number of evaluations in a row that were no better than the best before them (`training.patience`)."""
    arithmetic: list[str] = field(default_factory=list)
    """Instruction set, NumPy version and, if several, number of processes that the run was trained with, or the GPU;
    more than one, in order, if they changed."""
    carried: Carried = None
    """The model's state after the last step, of each row of the batch, if the task carries it on."""
    skipped: int = 0
    """Number of steps that were left out just before (`training.skip`); it begins anew when a run is resumed."""

    def arrays(self) -> dict[str, Array]:
        """Every array, on the CPU, by the name it has in a checkpoint. A complex one is viewed as a real one with a
        last axis of size 2, since files have no complex128."""
        arrays = {**{PARAMS + name: array for name, array in flatten(self.params)}, **self.moments}
        arrays |= dict(flatten_state(self.carried, CARRIED))
        return {name: _as_real(to_host(array)) for name, array in arrays.items()}

    def move(self, device: Device) -> None:
        """Moves every array to a device."""
        self.params, self.moments = moved(self.params, device), moved(self.moments, device)
        carried = moved(dict(flatten_state(self.carried, CARRIED)), device)
        self.carried = unflatten_state(carried)


def _as_real(array: Array) -> Array:
    return array.view(array.real.dtype).reshape(*array.shape, 2) if np.iscomplexobj(array) else array


def _as_it_was(array: Array, like: Array) -> Array:
    """The inverse of `_as_real`, for an array of the dtype of `like`."""
    return np.ascontiguousarray(array).view(like.dtype).reshape(like.shape) if np.iscomplexobj(like) else array


def initial_state(model: SequenceModel, recipe: Recipe) -> State:
    """Initial values, drawn from (seed, 0, 1)."""
    rng = np.random.default_rng([recipe.training.seed, 0, 1])
    params = astype(model.init(rng), recipe.training.dtype)
    return State(0, params, recipe.optimiser.init(params))


def zero_rows(model: SequenceModel, recipe: Recipe) -> Carried:
    """The state of the model before the first step of each row of a batch, for a task that carries states on."""
    if not isinstance(model, Tagger):
        raise ValueError(
            f"task.carry: the model is {an(type(model).__name__)}, expected one with labels for steps, as a Tagger"
        )
    try:
        return model.zero_state(recipe.training.batch, recipe.training.dtype)
    except ValueError as error:
        raise ValueError(f"task.carry: {error}") from error


def checksum(state: State) -> int:
    """CRC-32 of all its arrays."""
    crc = 0
    for array in state.arrays().values():
        crc = zlib.crc32(array.tobytes(), crc)
    return crc


def arithmetic(recipe: Recipe, processes: int = 1, device: Device = HOST) -> str:
    """The facts on which the bits of a run depend besides its recipe: instruction set, NumPy version and, if several,
    number of processes, or the GPU."""
    simd, by = _cpu.simd(), _cpu.bf16_by()
    if recipe.training.precision == "bf16" and by != "float32":
        simd = by
    here = f"{simd} and NumPy {np.__version__}" if device is HOST else cuda.describe()
    return here + f" on {processes} processes" * (processes > 1)


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of a run: `init` and `best` hold parameters alone, `last` the whole state."""

    run: Run
    recipe: Recipe
    world: World
    device: Device = HOST

    def load(self, initial: State) -> State:
        """The state of the last checkpoint, or `initial` if there is none; read by the first process, for all."""
        state = self.read(initial) if self.world.first else initial
        facts = self.world.tell([state.step, state.best_step, state.best_score, state.waited, state.arithmetic])
        state.step, state.best_step, state.best_score, state.waited, state.arithmetic = facts[0]
        self.world.share(state.arrays())
        return state

    def read(self, state: State) -> State:
        """The state of the last checkpoint, or the initial one, `state`, where there is none; the log is cut to it."""
        last = self.run.checkpoint("last")
        here = arithmetic(self.recipe, self.world.size, self.device)
        if not last.exists():
            state.arithmetic.append(here)
            self.write("init", state)
            self.run.cut_log(0)
            return state
        arrays, facts = self.run.read_last(self.recipe, state.arrays())
        if facts["best_step"]:
            self.run.read("best", self.recipe)  # better now than at the end
        records = self.run.cut_log(facts["step"], facts.get("unlogged", ()))
        logged = sum("loss" in record for record in records)
        if logged < facts["step"]:
            warn(f"{self.run.log}: tells {logged} of {facts['step']} steps, the others are lost")
        history = facts["arithmetic"]
        if history[-1] != here:
            change = f"{last}: was trained with {history[-1]}, and this is {here}"
            warn(f"{change}; the run may end on other bits than one that was never stopped")
            history = [*history, here]
        params = unflatten({name: arrays[PARAMS + name] for name, _ in flatten(state.params)})
        moments = {name: arrays[name] for name in state.moments}
        leaves = flatten_state(state.carried, CARRIED)
        carried = unflatten_state({name: _as_it_was(arrays[name], leaf) for name, leaf in leaves})
        best = facts["best_step"], facts["best_score"], facts["waited"]
        return State(facts["step"], params, moments, *best, history, carried)

    def write(self, name: str, state: State, **facts: Any) -> None:
        """Writes the checkpoint "init", "last" or "best", with more `facts` if given."""
        arrays = state.arrays()
        if name != "last":
            arrays = {key: array for key, array in arrays.items() if key.startswith(PARAMS)}
        write_checkpoint(self.run.checkpoint(name), arrays, {**self.facts(state), **facts})

    def facts(self, state: State) -> Facts:
        return {
            "recipe": self.recipe.digest(),
            "step": state.step,
            "best_step": state.best_step,
            "best_score": state.best_score,
            "waited": state.waited,
            "arithmetic": state.arithmetic,
        }
