"""Layers that are programs, in the C library: its grammar, and layers that only the user has (csrc/lib/lines.c)."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import librotrnn
from librotrnn import LibraryError, Model, its_instructions
from rotrnn import LAYERS, LRU, S5, ModelSettings, RopeMemory, RotRNN, build_model
from rotrnn._cpu import LINES as LINES_OF_THE_MODULE
from rotrnn.models.files import contents, described
from rotrnn.nn import instructions as table
from rotrnn.nn.layer import EVALUATION, Array, astype, flatten
from rotrnn.nn.program import Builder, Call, Program, Programmed
from small_models import Cube
from tests.lib.model_files import LAYERS as SMALL
from tests.lib.model_files import content_of

pytestmark = pytest.mark.skipif(
    not (librotrnn.ROOT / "csrc").exists() or not shutil.which("make"), reason="needs the sources, and make"
)

D = 6


@dataclass(frozen=True)
class Own(Programmed):
    """A layer of a user, of every map and layout that the library has, some on rows and on parameters."""

    about: ClassVar[str] = "a test"
    paper: ClassVar[str] = "none"
    cubed: bool = False

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        n = self.d_model
        shapes: dict[str, tuple[int, ...]] = {"w": (3 * n, n), "b": (3 * n,), "t": (3 * n,), "taps": (n, 3)}
        return {**shapes, "r": (n,), "scale": (2,), "C": (n, n), "columns": (n,), "E": (n, n // 2)}

    def init(self, rng: np.random.Generator) -> Any:
        return astype({name: rng.standard_normal(shape) / 2 for name, shape in self.shapes.items()}, np.float32)

    def program(self) -> Program:
        p, n = Builder(self), self.d_model
        half = (n // 2, n // 2)
        bias = p(table.Sum(), p(table.Affine(0.5, 0.1), "b"), "t")  # of parameters alone
        w_u, w_v, w_z = p(table.Split((n, n, n), axis=-2), "w")
        b_u, b_v, b_z = p(table.Split((n, n, n)), bias)
        u, v, z = (p(table.Dense(), p.x, *one) for one in ((w_u, b_u), (w_v, b_v), (w_z, b_z)))
        a = p(table.Decay(), p(table.Softplus(), u), p(table.Rates(), "r"))
        h = p(table.Scan(), a, p(table.GELU(), p(table.Conv(), p(table.Conv(), v, "taps"), None)))
        pairs = p(table.Reshape((n // 2, 2)), p(table.GLU(), h, z))
        normed = p(table.Reshape((n,)), p(table.LayerNorm(0.1), p(table.RMSNorm(0.1), pairs, "scale")))
        on = p(table.LogSigmoid(), p(Cube(), z) if self.cubed else z)
        both = p(
            table.Sum(), p(table.Product(), on, p(table.Sigmoid(), u)), p(table.SwiGLU(), normed, p(table.SiLU(), z))
        )
        left, right = p(table.Split(half), both)
        top, bottom = p(table.Split((1, 1), axis=-2), p(table.Reshape((2, n // 2)), both))
        less = p(table.Sum(), p(table.Reshape((n // 2,)), top), p(table.Reshape((n // 2,)), bottom))
        read = p(table.Sum(), p(table.Sum(), left, p(table.Affine(2, -1), right)), less)
        y = p(table.Sum(), p(table.Dense(), both, p(table.Columns(), "C", "columns")), p(table.Skip(), p.x, "r"))
        return p.returns(p(table.Sum(), y, p(table.Dense(), read, "E")))


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setitem(LAYERS, "own", Own)

    def made(**settings: Any) -> Any:
        model = build_model(ModelSettings("own", D, 2), settings, head="tagger", n_classes=3, n_features=2)
        return model, astype(model.init(np.random.default_rng(0)), np.float64)

    return made


def drawn() -> Array:
    return np.random.default_rng(1).standard_normal((3, 11, 2))


def test_a_layer_of_the_users_own_streams_in_c(own: Callable[..., Any]) -> None:
    """Both round sums of some ten numbers of size one, on a path of two layers."""
    model, params = own()
    x, expected = drawn(), None
    expected, _ = model.forward(params, x)
    stream = model.stream(params, 3)
    assert stream.engine == "c"
    got = np.concatenate([stream.push(x[:, :4]), stream.push(x[:, 4:])], 1)
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-13 * np.abs(expected).max())


def test_a_saved_layer_of_the_users_own_runs_without_python(own: Callable[..., Any], tmp_path: Path) -> None:
    model, params = own()
    model.save(tmp_path / "m.safetensors", params)
    saved = Model((tmp_path / "m.safetensors").read_bytes())
    with its_instructions(saved):
        expected = model.stream(params, 3).push(drawn())
    np.testing.assert_array_equal(saved.stream(3).push(drawn()), expected)


def test_an_instruction_of_the_users_own_streams_in_python(own: Callable[..., Any]) -> None:
    model, params = own(cubed=True)
    assert model.stream(params, 3).engine == "python"
    with pytest.raises(ValueError, match=r"line \d+ is a \S*\.Cube, which the library does not support"):
        model.stream(params, 3, engine="c")


def test_an_instruction_that_says_its_lines_streams_in_c(
    own: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cube, "emit", lambda self, to, line, x: to("Product", x, to("Product", x, x)))
    model, params = own(cubed=True)
    x = drawn()
    expected, _ = model.forward(params, x)
    got = model.stream(params, 3, engine="c").push(x)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-13 * np.abs(expected).max())  # as above


def test_a_variant_of_an_instruction_does_not_inherit_its_lines(
    own: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cube, "emit", lambda self, to, line, x: to("Product", x, to("Product", x, x)))

    @dataclass(frozen=True)
    class Fourth(Cube):
        def forward(self, call: Call, x: Array) -> Array:
            y: Array = x**4
            return y

    monkeypatch.setitem(globals(), "Cube", Fourth)
    model, params = own(cubed=True)
    assert model.stream(params, 3).engine == "python"


@pytest.mark.parametrize(
    ("emit", "message"),
    [
        (lambda to, x: None, "Cube.emit: returned None, expected the register of its output"),
        (lambda to, x: to("Prodct", x, x), "Cube.emit: got the line 'Prodct', .*; did you mean Product"),
    ],
)
def test_wrong_lines_are_refused(
    own: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, emit: Any, message: str
) -> None:
    """With any engine, and in a file: the layer would stream in Python, and its file would have no program."""
    monkeypatch.setattr(Cube, "emit", lambda self, to, line, x: emit(to, x))
    model, params = own(cubed=True)
    for engine in ("auto", "c"):
        with pytest.raises((TypeError, ValueError), match=f"^{message}"):
            model.stream(params, 3, engine=engine)
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        model.save(tmp_path / "m.safetensors", params)


@pytest.mark.parametrize(
    ("emit", "message"),
    [
        (lambda to, x: to("Skip", x, np.ones(D + 1)), "Skip, does not fit"),
        (
            lambda to, x: to("Reshape", to("Reshape", x, shape=(1, 1, 1, 1, D)), shape=(D,)),
            "Reshape, has too many numbers in shape, expected at most 4",
        ),
    ],
)
def test_lines_that_the_library_refuses_stream_in_python_with_a_warning(
    own: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, emit: Any, message: str
) -> None:
    """Inputs and settings of lines without an instruction of the same form are checked by the library alone. Of a list
    that was too long for it, nothing was said."""
    monkeypatch.setattr(Cube, "emit", lambda self, to, line, x: emit(to, x))
    model, params = own(cubed=True)
    with pytest.warns(UserWarning, match=rf"^Stream: engine is 'python', since line \d+ of the program, {message}"):
        assert model.stream(params, 3).engine == "python"


def test_the_modules_list_of_lines_is_the_librarys() -> None:
    assert [op for op, _ in INSTRUCTIONS] == [*LINES_OF_THE_MODULE]


def test_a_layer_that_is_no_program_streams_in_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It would inherit the lines of its base class, which compute something else."""

    @dataclass(frozen=True)
    class Louder(LRU):
        def forward(self, params: Any, x: Array, ctx: Any = EVALUATION, state: Any = None) -> Any:
            y, kept = super().forward(params, x, ctx, state)
            return 2 * y, kept

    monkeypatch.setitem(LAYERS, "louder", Louder)
    model = build_model(ModelSettings("louder", D, 1), {"d_state": 3}, n_classes=3, n_features=2)
    params = model.init(np.random.default_rng(0))
    assert model.stream(params).engine == "python"
    model.save(tmp_path / "m.safetensors", params)
    with pytest.raises(LibraryError, match="the model has a Louder, which has no program"):
        Model((tmp_path / "m.safetensors").read_bytes())


class Twice:
    """Beside a layer as a base: its forward, and not the layer's lines, is what counts."""

    def forward(self, params: Any, x: Array, ctx: Any = EVALUATION, state: Any = None) -> Any:
        y, kept = super().forward(params, x, ctx, state)  # type: ignore[misc]
        return 2 * y, kept


def test_forward_of_another_base_has_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    kind: Any = dataclass(frozen=True)(type("Louder", (Twice, LRU), {"__doc__": "LRU, twice as loud."}))
    monkeypatch.setitem(LAYERS, "louder", kind)
    model = build_model(ModelSettings("louder", D, 1), {"d_state": 3}, n_classes=3, n_features=2)
    assert model.stream(model.init(np.random.default_rng(0))).engine == "python"


class Folds:
    """Its fold reads the input with other weights."""

    def fold(self, params: Any) -> Any:
        folded = super().fold(params)  # type: ignore[misc]
        return folded._replace(weights=folded.weights._replace(w_in=3 * folded.weights.w_in))


@pytest.mark.parametrize(
    ("base", "settings"),
    [
        (LRU, {"d_state": 3}),
        (LRU, {"d_state": 3, "window": 4}),
        (S5, {"d_state": 4}),
        (RotRNN, {"d_state": 4}),
        (RotRNN, {"d_state": 4, "normalise": "spectrum"}),
        (RopeMemory, {"d_state": 3, "length": 16}),
    ],
)
def test_another_fold_streams_in_c(base: Any, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its system is that of forward, and not of the base. Both round sums of some ten numbers of size one."""
    kind: Any = dataclass(frozen=True)(type("Variant", (Folds, base), {"__doc__": "Another fold."}))
    monkeypatch.setitem(LAYERS, "variant", kind)
    model = build_model(ModelSettings("variant", D, 1), settings, head="tagger", n_classes=3, n_features=2)
    params = astype(model.init(np.random.default_rng(0)), np.float64)
    x = drawn()
    expected, _ = model.forward(params, x)
    got = model.stream(params, 3, engine="c").push(x)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


def refused(model: Any, params: Any, change: Callable[[Any], Any]) -> LibraryError:
    arrays, facts = contents(model, params)
    change(facts["program"])
    with pytest.raises(LibraryError) as caught:
        Model(content_of(arrays, facts))
    return caught.value


def test_every_line_is_checked(own: Callable[..., Any]) -> None:
    """Each input of each line in turn another register: those not set yet, and far ones; and settings of other types.
    A register of the same shape and kind makes another program, which runs."""
    model, params = own()
    for at, line in enumerate(contents(model, params)[1]["program"]["lines"]):
        for i, given in enumerate(line["in"]):
            others = [200, -2, 2**40, 0.5, [0], *([None] if i == 0 else [])]
            for other in [*others, *([3] if isinstance(given, str) else ["head.w"])]:
                error = refused(model, params, lambda program: program["lines"][at]["in"].__setitem__(i, other))  # noqa: B023
                assert error.status == librotrnn.DAMAGED
                assert f"line {at} of the program" in error.text
            error = refused(model, params, lambda program: program["lines"][at]["in"].__setitem__(i, "none"))  # noqa: B023
            assert "none, named in the program, is missing" in error.text
        for key, value in line.items():
            if key in ("op", "in"):
                continue
            error = refused(model, params, lambda program: program["lines"][at].update({key: "no"}))  # noqa: B023
            assert error.status == librotrnn.DAMAGED, (line, value)
        error = refused(model, params, lambda program: program["lines"][at].update(op="Warp"))  # noqa: B023
        assert error.status == librotrnn.UNSUPPORTED
        error = refused(model, params, lambda program: program["lines"][at].update(op=3))  # noqa: B023
        assert error.status == librotrnn.UNSUPPORTED
        error = refused(model, params, lambda program: program["lines"][at].update(speed=3))  # noqa: B023
        assert error.status == librotrnn.UNSUPPORTED


@pytest.mark.parametrize(("layer", "settings"), SMALL, ids=[f"{i}-{layer}" for i, (layer, _) in enumerate(SMALL)])
def test_a_missing_input_and_an_array_without_numbers(layer: str, settings: dict[str, Any]) -> None:
    """Each input of each line in turn: an error, there or in a later line, or another program. No size that is missing
    is divided by."""
    model = build_model(ModelSettings(layer, 4, 1), settings, head="tagger", n_classes=3, n_features=2)
    params = model.init(np.random.default_rng(0))
    arrays, facts = contents(model, params)
    arrays["empty"] = np.zeros((0, 2), np.float32)
    for line in facts["program"]["lines"]:
        for i, given in enumerate(line["in"]):
            for other in (None, "empty"):
                line["in"][i] = other
                try:
                    Model(content_of(arrays, facts))
                except LibraryError as error:
                    assert "of the program" in error.text  # noqa: PT017
            line["in"][i] = given


@pytest.mark.parametrize(
    "change",
    [
        lambda program: program.update(y=0.5),
        lambda program: program.update(y=2**40),
        lambda program: program.update(y=-1),
        lambda program: program.update(lines={}),
        lambda program: program.update(lines=[3]),
        lambda program: program.update(lines=[[]]),
        lambda program: program["lines"].pop(),
        lambda program: program["lines"][0].pop("in"),
    ],
)
def test_what_is_around_the_lines_is_checked(own: Callable[..., Any], change: Callable[[Any], Any]) -> None:
    model, params = own()
    assert refused(model, params, change).status == librotrnn.DAMAGED


@pytest.mark.parametrize(
    "op", [{"op": "Affine", "scale": 2, "shift": 1}, {"op": "SiLU"}, {"op": "RMSNorm", "eps": 1.0, "gain": 1.0}]
)
def test_an_output_of_another_width_is_refused(own: Callable[..., Any], op: dict[str, Any]) -> None:
    """A fuzzer found that its line wrote as many numbers as the model is wide."""
    model, params = own()

    def narrow(program: Any) -> None:
        program["lines"] = [{"op": "Split", "in": [0], "sizes": [2, D - 2], "axis": -1}, {**op, "in": [1]}]
        program["y"] = 3

    assert refused(model, params, narrow).status == librotrnn.DAMAGED


@pytest.mark.parametrize("pool", [None, "mean", "last"])
@pytest.mark.parametrize(
    "line", [{"op": "Split", "in": [0], "sizes": [2, D - 2], "axis": -1}, {"op": "Concat", "in": [0, 0]}]
)
def test_a_head_may_read_a_narrower_or_wider_register(
    own: Callable[..., Any], line: dict[str, Any], pool: str | None
) -> None:
    """The head read, and the mean wrote, as many numbers as the model is wide. Logits have the bits of a head on the
    encoder's output: products with zeros, before or behind, change no sum."""
    model, params = own()
    arrays, facts = contents(model, params)
    facts["program"]["pool"] = pool
    w = np.zeros((3, D))
    w[:, :2] = arrays["head.w"][:, :2]
    head = {"Split": w[:, :2], "Concat": np.concatenate([np.zeros_like(w), w], 1)}[line["op"]]

    def logits(lines: list[Any], w: Array) -> Array:
        facts["program"].update(lines=lines, y=len(lines))
        return Model(content_of({**arrays, "head.w": np.ascontiguousarray(w)}, facts)).stream(3).push(drawn())

    np.testing.assert_array_equal(logits([line], head), logits([], w))


@dataclass(frozen=True)
class Keys(Own):
    """Attention, and the keys that it reads."""

    window: int | None = None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"q": (self.d_model, self.d_model), "k": (self.d_model // 2, self.d_model)}

    def program(self) -> Program:
        p = Builder(self)
        q, k = (p(table.Dense(), p.x, name) for name in ("q", "k"))
        read = p(table.CausalAttention(2, self.window), q, k, k)
        return p.returns(p(table.Sum(), read, p(table.Concat(), k, k)))


@pytest.mark.parametrize("window", [None, 3])
def test_attention_leaves_its_keys_to_later_lines(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It wrote sums over the keys. Both round sums of some ten numbers of size one."""
    monkeypatch.setitem(LAYERS, "keys", Keys)
    model = build_model(ModelSettings("keys", D, 1), {"window": window}, head="tagger", n_classes=3, n_features=2)
    params = astype(model.init(np.random.default_rng(0)), np.float64)
    expected, _ = model.forward(params, drawn())
    got = Model(content_of(*contents(model, params))).stream(3).push(drawn())
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-13 * np.abs(expected).max())


LINES = librotrnn.ROOT / "csrc/lib/lines.c"
ROW = r'\{"(\w+)", (?:\w+\()?read_\w+\)?, (\d+), '
INSTRUCTIONS = re.findall(ROW, LINES.read_text("utf-8") if LINES.exists() else "")


@pytest.mark.parametrize(("op", "inputs"), INSTRUCTIONS, ids=[op for op, _ in INSTRUCTIONS])
@pytest.mark.parametrize("given", [0, "head.w"])
def test_inputs_of_another_kind_are_refused(own: Callable[..., Any], op: str, inputs: str, given: Any) -> None:
    """A register where parameters belong, and the other way round. A fuzzer found a division by a size that such an
    input does not have."""
    model, params = own()

    def alike(program: Any) -> None:
        program["lines"] = [{"op": op, "in": [given] * int(inputs)}]
        program["y"] = 1

    try:
        assert refused(model, params, alike).status in (librotrnn.DAMAGED, librotrnn.UNSUPPORTED)
    except pytest.fail.Exception:
        assert given == 0  # maps of registers alone run


@pytest.mark.parametrize("op", ["Concat", "Products"])
def test_memory_is_in_proportion_to_the_file(own: Callable[..., Any], op: str) -> None:
    """A fuzzer's find: registers that double from line to line."""
    model, params = own()

    def double(program: Any) -> None:
        own = {"in": [0], "degree": 2} if op == "Products" else {"in": [0, 0]}
        program["lines"] = [{"op": op, **own, "in": [i for _ in own["in"]]} for i in range(24)]
        program["y"] = 24

    assert refused(model, params, double).status == librotrnn.NO_MEMORY


@pytest.mark.parametrize(
    ("layer", "own"),
    [
        ("wrope_memory", {"d_state": 3, "length": 4, "window": 5}),
        ("selective_rotrnn", {"d_state": 6, "heads": 3, "gamma": "input"}),
    ],
)
def test_planes_of_older_files_are_halves(layer: str, own: dict[str, Any]) -> None:
    """All real parts came first. Both round sums of some ten numbers of size one."""
    model = build_model(ModelSettings(layer, D, 1, norm="layer"), own, head="tagger", n_classes=3, n_features=2)
    params = astype(model.init(np.random.default_rng(0)), np.float64)
    expected = Model(content_of(*contents(model, params))).stream(3).push(drawn())
    arrays, facts = contents(model, params)
    lines = facts["program"]["lines"]
    first = next(i for i, line in enumerate(lines) if line["op"] in ("History", "TurningScan"))
    scan = lines[first]
    by_output = {i + 1: line for i, line in enumerate(lines)}
    into = by_output[scan["in"][0]]
    out_of = next(line for line in lines[first:] if line["op"] == "Dense" and line["in"][0] == first + 1)
    halves = np.concatenate([np.arange(at, len(arrays[into["in"][1]]), 2) for at in (0, 1)])
    arrays["older.in"] = arrays[into["in"][1]][halves]
    arrays["older.out"] = np.ascontiguousarray(arrays[out_of["in"][1]][:, halves])
    into["in"][1], out_of["in"][1] = "older.in", "older.out"
    del scan["window"]
    if scan["op"] == "History":
        scan.update(op="Wrope", form=scan.pop("angles"), window=5, **{"in": scan["in"][:1]})
        del scan["heads"], scan["counted"]
    np.testing.assert_allclose(Model(content_of(arrays, facts)).stream(3).push(drawn()), expected, rtol=0, atol=1e-13)


def test_a_file_without_the_program_is_refused_by_name() -> None:
    model = build_model(ModelSettings("mamba", D, 1), {"d_state": 2}, n_classes=3, n_features=2)
    params = dict(flatten(model.init(np.random.default_rng(0))))
    with pytest.raises(LibraryError, match="the file is of an earlier version: load the model in Python") as caught:
        Model(content_of(params, {"model": described(model), "model_format": 1}))
    assert caught.value.status == librotrnn.UNSUPPORTED
