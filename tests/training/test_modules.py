"""Modules that recipes import: where they are searched, what a run records of them, and errors."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rotrnn.cli import main
from rotrnn.nn.registry import LAYERS
from rotrnn.training import recipe as recipes
from rotrnn.training.modules import Untrusted, locate
from rotrnn.training.recipe import load_recipe, read_recipe
from rotrnn.training.results import find_runs, read_runs
from rotrnn.training.run import Run
from rotrnn.training.sweep import COMMAND, plan, prepared

LAYER = """
import rotrnn
class {name}(rotrnn.LRU):
    pass
rotrnn.LAYERS["{name}"] = {name}
"""
RECIPE = """
import = {modules}
base = "digits-lru"
[model]
layer = "{layer}"
[layer]
d_state = 8
"""


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restores imported modules, the import path and the registered layers after each test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    modules, layers = set(sys.modules), dict(LAYERS)
    yield
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    LAYERS.clear()
    LAYERS.update(layers)


def module(folder: Path, name: str, text: str | None = None) -> Path:
    path = folder.joinpath(*name.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(LAYER.format(name=path.stem) if text is None else text, encoding="utf-8")
    return path


def recipe(folder: Path, *modules: str, layer: str = "lru") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "mine.toml"
    path.write_text(RECIPE.format(modules=list(modules), layer=layer), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ("recipes", "beside_it"),
        ("work", "in_work"),
        ("recipes", "package.inner"),
        ("recipes/code", "code/in_code"),
        ("code", "../code/further_up"),
        ("site", "as_installed"),
    ],
)
def test_where_modules_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, name: str) -> None:
    layer = name.rpartition("/")[2].rpartition(".")[2]
    module(tmp_path / where, name.rpartition("/")[2])
    path = recipe(tmp_path / "recipes", name, layer=layer)
    (tmp_path / "work").mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / "work")
    sys.path.append(str(tmp_path / "site"))
    found = load_recipe(path)
    assert type(found.layer).__name__ == layer
    whole = f"{tmp_path / where}/{name.rpartition('/')[2]}"
    assert found.modules == ((name if where == "site" else whole),)
    monkeypatch.chdir(tmp_path)  # what is resolved holds anywhere
    assert read_recipe(tomllib.loads(found.text())) == found
    run = Run(tmp_path / "runs" / "one")
    run.folder.mkdir(parents=True)
    run.write(run.recipe, found.text())
    assert run.load_recipe() == found  # what is imported already serves


def test_beside_the_recipe_goes_before_the_working_directory_and_both_before_what_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for where in ("site", "work", "recipes"):
        (tmp_path / where).mkdir()
    monkeypatch.chdir(tmp_path / "work")
    sys.path.insert(0, str(tmp_path / "site"))
    for where in ("site", "work", "recipes"):
        module(tmp_path / where, "same")
        expected = "same" if where == "site" else f"{tmp_path / where}/same"
        assert locate(["same"], tmp_path / "recipes") == [expected]
    assert load_recipe(recipe(tmp_path / "recipes", "same", layer="same")).modules == (expected,)
    assert Path(sys.modules["same"].__file__ or "").parent == tmp_path / "recipes"
    assert sys.path[0] == str(tmp_path / "site")
    assert sys.path[-1] == str(tmp_path / "recipes")  # for what the module may import later


def test_a_module_that_moved_is_found_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module(tmp_path / "new", "moved")
    monkeypatch.chdir(tmp_path / "new")
    found = load_recipe(recipe(tmp_path / "runs", f"{tmp_path}/old/moved", layer="moved"))
    assert found.modules == (f"{tmp_path}/new/moved",)


def test_those_of_a_base_are_found_beside_the_base(tmp_path: Path) -> None:
    module(tmp_path / "below", "first")
    module(tmp_path, "second")
    recipe(tmp_path / "below", "first", layer="first")
    (tmp_path / "mine.toml").write_text(
        'import = ["second"]\nbase = "below/mine.toml"\n[training]\nsteps = 5', encoding="utf-8"
    )
    found = load_recipe(tmp_path / "mine.toml")
    assert found.modules == (f"{tmp_path}/below/first", f"{tmp_path}/second")
    assert {"first", "second"} <= set(LAYERS)
    (run,) = plan(tmp_path / "mine.toml").values()
    assert run.modules == found.modules


def test_where_modules_lie_makes_no_other_run(tmp_path: Path) -> None:
    module(tmp_path / "a", "one")
    module(tmp_path / "b", "other")
    a, b = (load_recipe(recipe(tmp_path / at, name)) for at, name in (("a", "one"), ("b", "other")))
    assert a.modules != b.modules
    assert a.digest() == b.digest() == load_recipe("digits-lru", ["layer.d_state=8"]).digest()


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ('["nowhere"]', r"there is no module 'nowhere' in {0}, .*next to the recipe or in the working"),
        ('["code/nowhere"]', r"there is no module 'nowhere' in {0}/code, {0}, "),
        ('["broken"]', r"broken fails with ModuleNotFoundError: No module named 'absent' \({0}/broken\.py, line 2\)"),
        ('["garbled"]', r"import: {0}/garbled fails with SyntaxError: .*garbled\.py, line 1"),
        ('["faulty"]', r"import: {0}/faulty fails with KeyError: 'x' \({0}/faulty\.py, line 1\)"),
        ('["json"]', r"import: 'json' is .*/json/__init__\.py in this process, expected {0}/json\.py; rename one"),
        ('["mine.py"]', r"import: 'mine\.py' is not a module name, expected one such as \"my_layers\""),
        ('["a b"]', r"import: 'a b' is not a module name"),
        ('["../"]', r"import: '\.\./' is not a module name"),
        ('"mine"', r"import is 'mine', expected a list of modules, such as \[\"my_layers\"\]"),
        ("[1]", r"import is \[1\], expected a list of modules"),
    ],
)  # fmt: skip
def test_mistakes(tmp_path: Path, modules: str, message: str) -> None:
    module(tmp_path, "broken", "\nimport absent")
    module(tmp_path, "garbled", "x = = 1")
    module(tmp_path, "faulty", "{}['x']")
    module(tmp_path, "json", "")
    (tmp_path / "mine.toml").write_text(f'import = {modules}\nbase = "digits-lru"', encoding="utf-8")
    with pytest.raises(ValueError, match=rf"^{re.escape(str(tmp_path))}/mine\.toml: import.*") as raised:
        load_recipe(tmp_path / "mine.toml")
    assert raised.match(message.format(re.escape(str(tmp_path))))


def test_what_an_unknown_name_may_lack(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('imports = ["mine"]\nbase = "digits-lru"', encoding="utf-8")
    with pytest.raises(ValueError, match=r"mine\.toml: imports is \['mine'\], expected a section \[imports\]"):
        load_recipe(tmp_path / "mine.toml")


def test_a_task_with_a_setting_that_no_recipe_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Odd:
        folder: Path = Path()

    monkeypatch.setitem(recipes.TASKS, "odd", Odd)
    monkeypatch.setitem(globals(), "Odd", Odd)
    annotated = re.escape(repr(Path))  # in the words of this Python
    with pytest.raises(TypeError, match=f"a setting is annotated {annotated}, expected what a recipe can hold"):
        load_recipe("digits-lru", ["task.name=odd", "task.folder=x"])


PLANTED = """
from pathlib import Path
Path(__file__).with_name("it ran").touch()
import rotrnn
rotrnn.LAYERS["planted"] = type("planted", (rotrnn.LRU,), {})
"""


@pytest.fixture
def foreign(tmp_path: Path) -> Run:
    """The run of somebody else, whose recipe names a module beside it."""
    run = Run(tmp_path / "foreign")
    recipe(run.folder, "planted", layer="planted").rename(run.recipe)
    module(run.folder, "planted", PLANTED)
    return run


def test_what_to_do_is_said_once_for_many_runs(foreign: Run) -> None:
    for name in ("second", "third"):
        shutil.copytree(foreign.folder, foreign.folder.with_name(name))
    with pytest.raises(ValueError, match="planted is the name of a module") as error:
        read_runs(find_runs(foreign.folder.parent))
    told = str(error.value)
    assert told.count("whose code would run") == 3
    assert told.count("expected --trust") == 1


@pytest.mark.parametrize(
    "command",
    [
        "results RUN",
        "eval RUN",
        "export RUN --out x",
        "generate RUN 1",
        "plot RUN",
        "plot RUN RUN",
        "train --resume RUN",
    ],
)
def test_a_run_imports_nothing_unless_it_is_trusted(
    foreign: Run, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rotrnn.cli.train", lambda recipe, *_, **__: pytest.fail("it trains"))
    monkeypatch.setattr("rotrnn.tasks.digits.Digits.load", lambda _: Run(tmp_path).check_there())  # it takes long
    words = [str(foreign.folder) if one == "RUN" else one for one in command.split()]
    path = list(sys.path)
    assert main(words) == 2
    assert "planted is the name of a module, whose code would run; expected --trust" in capsys.readouterr().err
    assert not (foreign.folder / "it ran").exists()
    assert sys.path == path
    monkeypatch.setattr("rotrnn.cli.train", lambda recipe, *_, **__: sys.exit(0))
    try:
        main([*words, "--trust"])
    except SystemExit:
        assert words[0] == "train"
    assert (foreign.folder / "it ran").exists()
    assert "--trust" not in capsys.readouterr().err


def test_another_module_of_an_imported_name_stays_off_the_path(foreign: Run) -> None:
    """On the path, its folder could bring an optional package that is not installed."""
    foreign.recipe.write_text(RECIPE.format(modules=["json"], layer="lru"), encoding="utf-8")
    module(foreign.folder, "json", PLANTED)
    path = list(sys.path)
    with pytest.raises(ValueError, match="'json' is already"):
        foreign.load_recipe()
    assert sys.path == path


def test_a_sweep_does_not_trust_what_is_in_its_folder(foreign: Run) -> None:
    """Its workers do trust it: they would import what the recipe there names."""
    runs = {foreign.folder.name: load_recipe("digits-lru", ["training.steps=1"])}
    with pytest.raises(Untrusted, match="expected --trust"), prepared(runs, foreign.folder.parent, False, print):
        pass
    assert not (foreign.folder / "it ran").exists()


def test_workers_of_a_sweep_take_no_module_of_the_working_directory(tmp_path: Path) -> None:
    for name in ("tqdm", "numpy", "rotrnn"):
        module(tmp_path, name, f"raise SystemExit({name!r})")
    done = subprocess.run([*COMMAND, "--version"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
