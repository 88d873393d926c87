"""The command `rotrnn`: train, sweep, results, eval, export, generate, estimate, data, plot, figure, groups, info."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import inspect
import io
import os
import re
import sys
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rotrnn import __version__, _cpu, cuda
from rotrnn._support.checkpoint import check_like
from rotrnn._support.command import INTERRUPTED
from rotrnn._support.files import check_folder, half_moved, write_text
from rotrnn._support.json import to_json
from rotrnn._support.progress import GONE, say
from rotrnn._support.provenance import versions
from rotrnn._support.text import alike, an, plain, plural
from rotrnn._support.warn import warn
from rotrnn.devices.cuda import DeviceError
from rotrnn.models.build import BLOCKS, HEADS, ModelSettings
from rotrnn.models.files import Loaded, load, save_model
from rotrnn.models.io.pretrained import find_folder, read_folder
from rotrnn.models.tagger import LanguageModel
from rotrnn.models.writing import Bytes, tokens_of
from rotrnn.nn.blocks.norm import NORMS
from rotrnn.nn.layer import Recurrent, flatten
from rotrnn.nn.layers.bidirectional import has_directions
from rotrnn.nn.layers.stored_history import StoredHistory
from rotrnn.nn.registry import GROUPS, LAYERS
from rotrnn.ops.boundary import rename
from rotrnn.tasks import TASKS, Released, describe
from rotrnn.tasks.language import Language
from rotrnn.tasks.own import shape_of
from rotrnn.tasks.rules import RULES, find_rules
from rotrnn.tasks.task import Exhausted
from rotrnn.training.crew import Crew, serve
from rotrnn.training.estimate import estimate
from rotrnn.training.evaluation import BOUNDS
from rotrnn.training.loop import Interrupted, train
from rotrnn.training.optimiser import SGD, AdamW, NonFinite, describe_groups, members, table
from rotrnn.training.parallel import Fallen, MPIWorld, started, world
from rotrnn.training.recipe import (
    SMALL,
    Training,
    build,
    load_recipe,
    parse_override,
    parse_value,
    pick,
    recipe_names,
    recipe_tables,
    replaced,
    shipped,
)
from rotrnn.training.reevaluation import SPLITS, reevaluate
from rotrnn.training.results import check_out, collect, duration, find_runs, markdown, read_runs, render
from rotrnn.training.run import PARAMETERS, Run
from rotrnn.training.slurm import launch
from rotrnn.training.state import initial_state
from rotrnn.training.sweep import parse_grid, parse_seeds, plan, read_sweep, run_sweep, stop_at_eof

SWEEPS = Path("sweeps")
FIGURES = Path("figures")
"""The folders of sweeps and of figures, unless --out says otherwise."""
FAILED = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Returns the exit code: 0; 2 after an error, which is reported in one line; 130 after Ctrl-C.

    Any other exception (TypeError, KeyError, ...) is a bug of the program and gives a traceback.
    """
    for stream in (sys.stdout, sys.stderr):  # characters that the terminal cannot show are escaped
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        args = _arguments(arguments)
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: _say(f"warning: {message}")
            if args.command not in (_train, _sweep) and (processes := started()[1]) > 1:
                raise ValueError(
                    f"MPI started {processes} processes, expected one: only train and sweep run on several"
                )
            args.command(args)
            _flush(lost=args.command is _train)
    except Interrupted as error:
        return _report(str(error), INTERRUPTED)
    except KeyboardInterrupt:
        return _report("aborted", INTERRUPTED)
    except BrokenPipeError:  # the reader has closed the pipe
        _flush(lost=True)
        return FAILED
    except (DeviceError, Exhausted, Fallen, ImportError, NonFinite, OSError, ValueError) as error:
        return _report(f"error: {_words(error)}", FAILED)
    except MemoryError as error:
        return _report(f"error: out of memory. {error}", FAILED)
    except RuntimeError as error:
        if "can't start new thread" not in str(error):
            raise
        return _report(f"error: {error}: the system allows no more threads or processes (ulimit -u)", FAILED)
    return 0


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Returns the parsed arguments. SystemExit after --help and --version, and where arguments are wrong."""
    try:
        return _parser().parse_args(arguments)
    except SystemExit:
        _flush(lost=False)
        raise


def _flush(lost: bool) -> None:
    """Writes out what was printed. If that fails, it is an error, or if `lost` it is dropped, also when Python ends.
    Messages on standard error are dropped in any case: Python's exit code would be 120 instead of the command's."""
    for stream, drop in ((sys.stderr, True), (sys.stdout, lost)):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            if not drop:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _words(error: Exception) -> str:
    """The message of an error; of one about a file without its number."""
    if isinstance(error, OSError) and isinstance(error.filename, str):
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _report(message: str, code: int) -> int:
    _say(message)
    _flush(lost=True)  # or Python's end, which finds that it cannot write, would be the exit code
    return code


def _say(message: str) -> None:
    """Prints a line on standard error; with several processes only the first does.

    It is written in one piece: `print` writes the line's end by itself, and what another process says may come between.
    """
    if started()[0] == 0:
        with contextlib.suppress(*GONE):  # nobody is there to be told
            lines = "\n".join(map(plain, message.split("\n")))
            sys.stderr.write(f"rotrnn: {lines}\n")


# ---- commands ----


def _train(args: argparse.Namespace) -> None:
    if args.until_eof:
        stop_at_eof()
    if args.recipe is None and args.resume is None:
        raise ValueError("train: expected a RECIPE, or --resume DIR")
    overrides = _overrides(args, "steps", "seed")
    _check_out(args.out)
    among = world()
    with among.together():
        if args.recipe is None:
            run = Run(args.resume)
            recipe = run.load_recipe(overrides, trust=args.trust)
        else:
            recipe = load_recipe(args.recipe, overrides)
            others = replaced(recipe_tables(args.recipe), [parse_override(one) for one in overrides])
            run = Run(args.resume or args.out or Path("runs", ",".join([Path(args.recipe).stem, *others])))
        if args.resume is None:
            data = f"rotrnn data {recipe.tables()['task']['name']} --stand-in --out DIR"
            _check_files(recipe.task, f"{data}, then --set task.data_dir=DIR")
        train(recipe, run.folder, resume=args.resume is not None, among=among, device=args.device)
    if among.first:
        say(f"done: {run.folder}" + ("" if _can_draw() else f"; install matplotlib for rotrnn plot {run.folder}"))
        if _can_draw() and not args.no_plots:
            from rotrnn.plots import plot

            try:
                say(f"plots: {plot(run.folder)[0].parent}")
            except Exception as error:  # the run has ended and is whole, whatever a picture of it needs
                warn(f"no pictures: {_words(error)}; try again with rotrnn plot {run.folder}")


def _check_out(folder: Path | None) -> None:
    if folder is not None:
        check_folder("--out", folder)


def _trust(args: argparse.Namespace, runs: Iterable[Run]) -> None:
    """Imports the modules that the recipes of runs name, if --trust asks for it."""
    for run in runs if args.trust else ():
        try:
            run.load_recipe(trust=True)
        except (OSError, ValueError) as error:
            warn(str(error))


def _can_draw() -> bool:
    """Returns whether matplotlib, an optional extra, is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def _overrides(args: argparse.Namespace, *keys: str) -> list[str]:
    """Returns the overrides of --set, and of options that set a key of [training]."""
    for one in args.set:
        parse_override(one, "--set")
    return [*args.set, *(f"training.{key}={value}" for key in keys if (value := getattr(args, key)) is not None)]


@contextlib.contextmanager
def _options(call: str, **options: str) -> Iterator[None]:
    """Errors that begin with the name of a `call` and of its argument name the option instead."""
    try:
        yield
    except ValueError as error:
        for argument, option in options.items():
            rename(error, f"{call}: {argument}", option)
        raise


def _sweep(args: argparse.Namespace) -> None:
    among = world()
    if isinstance(among, MPIWorld) and not among.first:
        serve(among)
        return
    with Crew(among) as crew:
        _check_out(args.out)
        with _options(args.recipe, grid="--grid", variants="--variant", overrides="--set"):
            runs = plan(
                args.recipe,
                seeds=parse_seeds(args.seeds) if args.seeds is not None else (),
                grid=[parse_grid(one) for one in args.grid],
                variants=args.variant,
                overrides=_overrides(args, "steps"),
            )
        folder = args.out or SWEEPS / Path(args.recipe).stem
        how: dict[str, Any] = {"retry": args.retry, "say": say, "device": args.device}
        if args.slurm_option and not args.launcher:
            raise ValueError(f"--slurm-option {args.slurm_option[0]}: expected --launcher slurm with it")
        if args.launcher:
            if among.size > 1:
                raise ValueError(f"--launcher {args.launcher}: MPI started {among.size} processes, expected one")
            if launch(runs, folder, jobs=args.jobs, options=args.slurm_option, **how):
                return
            ended = [Run(folder / name) for name in runs]
        else:
            if among.size > 1 and args.device != "cpu":
                raise ValueError(f"sweep: --device {args.device} with {among.size} processes of MPI, expected cpu")
            ended = run_sweep(runs, folder, places=crew.places(args.jobs or 1, args.device), **how)
    _conclude(ended)


def _conclude(ended: list[Run]) -> None:
    """Prints the table of a sweep. ValueError if some of its runs failed."""
    mends = "--retry mends a damaged result.json, and a damaged or missing recipe.toml"
    try:
        outcomes, unreadable = read_runs(ended)
    except ValueError as error:
        raise ValueError(f"{error}; {mends}") from error
    print(render([one.row() for one in collect(outcomes)], unreadable=unreadable), end="")
    failed = sum(run.status() == "failed" for run in ended)
    if failed:
        raise ValueError(f"{failed} of {plural(len(ended), 'run')} failed; --retry resumes the failed ones")
    if unreadable:
        raise ValueError(f"{len(unreadable)} of {plural(len(ended), 'run')} cannot be read; {mends}")


def _results(args: argparse.Namespace) -> None:
    if args.out:
        check_out("--out", args.out)
    runs = find_runs(args.runs)
    _trust(args, runs)
    outcomes, unreadable = read_runs(runs)
    with _options("collect", by="--by"):
        rows = [one.row() for one in collect(outcomes, args.by)]
    with _options("render", kind="the end of --out", curve="--curve"):
        if args.out:
            write_text(args.out, render(rows, args.out.suffix, curve=args.curve, unreadable=unreadable))
        print(render(rows, curve=args.curve, unreadable=unreadable), end="")


def _eval(args: argparse.Namespace) -> None:
    if args.out:
        check_out("--out", args.out)
    _trust(args, [Run(args.run)])
    with _options("reevaluate", split="--split", fixed_points="--fixed-points"):
        found = reevaluate(
            Run(args.run),
            split=args.split,
            checkpoint=args.checkpoint,
            overrides=_overrides(args),
            grid=[parse_grid(one) for one in args.grid],
            device=args.device,
            fixed_points=args.fixed_points,
        )
    said = {"split": args.split, "checkpoint": args.checkpoint, "settings": args.set}
    text = to_json([{**said, "point": point, **one} for point, one in found], indent=2) + "\n"
    _print_evaluation(args, found)
    if args.out:
        write_text(args.out, text)


def _print_evaluation(args: argparse.Namespace, found: list[tuple[str, dict[str, Any]]]) -> None:
    what = f"{args.split}, {args.checkpoint} parameters"
    if args.grid:
        print(what)
        plain = [
            {"": point}
            | {_spaced(name): f"{value:.4g}" for name, value in one.items() if isinstance(value, int | float)}
            for point, one in found
        ]
        print(markdown(plain), end="")
        for point, one in found:
            _print_fixed_points(one.get("fixed_points", []), f"{point}, ")
        return
    ((_, one),) = found
    fixed_points = one.pop("fixed_points", [])
    curve = one.pop("curve", None)
    numbers = ", ".join(f"{_spaced(name)} {value:.4g}" for name, value in one.items())
    print(f"{what}: {numbers}")
    if curve is not None:
        print(" ".join(f"{name:>18}" for name in curve))
        for row in zip(*curve.values(), strict=True):
            print(" ".join(f"{value:>18.4g}" for value in row))
    _print_fixed_points(fixed_points)


def _print_fixed_points(found: list[dict[str, Any]], point: str = "") -> None:
    """Prints the norms of the maps of tokens as a histogram, and the iterations, for each block."""
    for one in found:
        print(
            f"{point}block {one['block'] + 1}: |J| of the maps of {one['tokens']} tokens: median {one['median']:.3g}, "
            f"largest {one['largest']:.3g}, above 1: {100 * one['above']:.3g} %"
        )
        for low, high, share in zip(BOUNDS[:-1], BOUNDS[1:], one["shares"], strict=True):
            print(f"  {low:4.2f} to {high:4.2f} {100 * share:5.1f} % {'#' * round(40 * share)}".rstrip())
        print(
            f"  iterations: {one['iterations']:.3g} of a step in the mean, {one['most']:.3g} at most; "
            f"largest residual {one['residual']:.2g}"
        )


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def _model(args: argparse.Namespace) -> tuple[Loaded, Path]:
    """Returns a model and its folder: of a run, of a file, or of a folder that `rotrnn.from_pretrained` finds."""
    there = Path(args.model)
    if there.is_file():
        return load(there), there.parent
    if Run(there).recipe.is_file():
        run = Run(there)
        recipe, path = run.load_recipe(trust=args.trust), run.checkpoint(args.checkpoint)
        params = run.load_params(args.checkpoint)
        model = recipe.build(run.shape(recipe, args.checkpoint, params))
        check_like(path, dict(flatten(params)), dict(flatten(initial_state(model, recipe).params)))
        return Loaded(model, params), there
    try:
        folder = find_folder(args.model)
    except (OSError, ValueError) as error:
        rename(error, "from_pretrained: name", "MODEL")
        raise
    return read_folder(folder), folder


def _export(args: argparse.Namespace) -> None:
    if args.out.suffix in (".onnx", ".safetensors"):
        check_out("--out", args.out)
    (model, params), folder = _model(args)
    rules = find_rules(args.model if Path(args.model).is_file() else folder)
    if rules is not None and rules.dt:
        model = dataclasses.replace(model, timed=True)
    if args.out.suffix == ".onnx":
        if model.timed:
            raise ValueError(
                f"--out {args.out}: the model reads intervals dt, which ONNX does not have, "
                "expected a name that ends in .safetensors, or a folder"
            )
        model.save_onnx(args.out, params, lengths=args.lengths, state=args.state)
    elif args.lengths or args.state:
        raise ValueError(f"--{'lengths' if args.lengths else 'state'}: --out is {args.out}, expected FILE.onnx")
    elif args.out.suffix == ".safetensors":
        save_model(args.out, model, params, {} if rules is None else {RULES: dataclasses.asdict(rules)})
    elif args.out.suffix:
        raise ValueError(f"--out {args.out}: expected a name that ends in .safetensors or .onnx, or a folder")
    elif Run(args.out).recipe.exists():
        raise ValueError(f"--out {args.out}: holds a run, expected another folder")
    else:
        model.save_pretrained(args.out, params)
        if rules is not None:
            Run(args.out).write(Run(args.out).rules, rules.text())
    print(args.out)


SAMPLING = ("seed", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""Options that are arguments of `LanguageModel.generate`."""


def _generate(args: argparse.Namespace) -> None:
    try:
        args.prompt.encode()
    except UnicodeEncodeError:
        raise ValueError(f"generate: PROMPT is {args.prompt!a:.80}, expected a text in UTF-8") from None
    (model, params), folder = _model(args)
    if not isinstance(model, LanguageModel):
        raise ValueError(f"generate: {args.model} is {an(type(model).__name__)}, expected a LanguageModel")
    of_bytes = args.bytes or (Run(folder).recipe.is_file() and isinstance(Run(folder).load_recipe().task, Language))
    if of_bytes and model.head.d_out > Bytes.COUNT:
        raise ValueError(f"generate: --bytes with a model of {model.head.d_out} tokens, expected at most {Bytes.COUNT}")
    tokens = Bytes() if of_bytes else tokens_of(folder)
    prompt = np.array([tokens.encode(args.prompt)], np.int64)
    how = {name: getattr(args, name) for name in (*SAMPLING, "stop")}
    drawn = (int(one[0]) for one in model.generate(params, prompt, args.tokens, **how))
    print(args.prompt, end="", flush=True)
    for piece in tokens.pieces(drawn):
        print(piece, end="", flush=True)
    print()


def _estimate(args: argparse.Namespace) -> None:
    recipe = load_recipe(args.recipe, _overrides(args))
    if args.stand_in is None:
        _check_files(recipe.task, "--stand-in")
    print(estimate(recipe, args.steps, stand_in=args.stand_in, device=args.device).text())


def _data(args: argparse.Namespace) -> None:
    kind = pick("TASK", args.task, TASKS)
    settings: dict[str, Any] = {}
    for one in args.set:
        key, equals, value = one.partition("=")
        if not equals:
            raise ValueError(f"--set {one}: expected key=value")
        settings[key.strip()] = parse_value(value)
    task = build(kind, args.task, settings)
    _check_out(args.out)
    if args.stand_in is not None:
        _stand_in(task, args)
    else:
        if args.out is None:
            _check_files(task, "--stand-in --out DIR")
        elif not (getattr(task, "resumable", False) or half_moved(args.out)) and any(_visible(args.out)):
            raise ValueError(f"--out {args.out}: already has files, which are not replaced; expected an empty folder")
        print(describe(task.write(args.out) if args.out else task.load()))


def _visible(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if not name.startswith(".")] if folder.is_dir() else []


def _stand_in(task: Any, args: argparse.Namespace) -> None:
    if not isinstance(task, Released):
        raise ValueError(f"--stand-in: {args.task} needs no files, expected one of {', '.join(_released())}")
    if args.out is None or args.stand_in < 1:
        raise ValueError(f"--stand-in {args.stand_in}: expected a positive number and a folder, --out DIR")
    task.stand_in(args.out, args.stand_in)
    print(f"random data in {args.out}; use them with: --set task.data_dir={args.out}")


def _check_files(task: Any, stand_in: str) -> None:
    """Raises an error, which suggests random data, if the files of a released task are missing."""
    if isinstance(task, Released) and not task.download:
        try:
            task.folder()
        except (FileNotFoundError, ValueError) as error:
            raise type(error)(f"{error}; to try with random data: {stand_in}") from error


def _released() -> list[str]:
    return [name for name, kind in TASKS.items() if isinstance(kind, type) and issubclass(kind, Released)]


def _plot(args: argparse.Namespace) -> None:
    from rotrnn.plots import compare, plot  # matplotlib is an optional extra

    _check_out(args.out)
    _trust(args, find_runs(args.runs))
    first = args.runs[0]
    if len(args.runs) == 1 and (Run(first).recipe.is_file() or first.is_file()):
        paths = plot(first, args.out)
    else:
        shared = first if len(args.runs) == 1 else os.path.commonpath([run.absolute().parent for run in args.runs])
        paths = compare(args.runs, args.out or Path(shared, "plots"))
    for path in paths:
        print(path)


def _figure(args: argparse.Namespace) -> None:
    from rotrnn.plots import figures  # matplotlib is an optional extra

    for place in args.runs or ():
        if not place.is_dir():
            raise ValueError(f"figure: --runs {place}: there is no such folder, expected a folder with runs")
    if args.list:
        print(f"{markdown(figures.listing([FIGURES, *(args.runs or [SWEEPS])]))}\n{figures.TOOK}")
        return
    if args.name is None:
        raise ValueError("figure: expected NAME, or --list")
    seeds = parse_seeds(args.seeds) if args.seeds is not None else ()
    how: dict[str, Any] = {"full": args.full, "seeds": seeds, "overrides": _overrides(args, "steps")}
    one = pick("figure", args.name, figures.paper_figures())
    if args.estimate:
        total = 0.0
        for label, count, seconds in figures.cost(args.name, **how):
            total += count * seconds
            print(f"{label}: {plural(count, 'run')} of {duration(seconds)}", flush=True)
        print(f"in total {duration(total)}, one run after the other")
        return
    _check_out(args.out)
    folder = args.out or Path(FIGURES, args.name + ("-full" if args.full else ""))
    there = figures.finished([folder, *(args.runs or [SWEEPS])])
    recipes = [recipe for some in one.runs(**how).values() for recipe in some.values()]
    missing = [recipe for recipe in recipes if recipe.digest() not in there]
    for name, task in {recipe.tables()["task"]["name"]: recipe.task for recipe in missing}.items():
        _check_files(task, f"rotrnn data {name} --stand-in --out DIR, then --set task.data_dir=DIR")
    more: dict[str, Any] = {"places": args.runs or [SWEEPS], "retry": args.retry, "device": args.device}
    for path in figures.make(args.name, folder, jobs=args.jobs, say=say, **how, **more):
        print(path)


def _groups(args: argparse.Namespace) -> None:
    here, overrides = Path(args.recipe), _overrides(args)
    if args.recipe not in recipe_names() and Run(here).recipe.is_file():
        run, recipe = Run(here), Run(here).load_recipe(overrides, trust=args.trust)
    else:
        run, recipe = Run(here.parent), load_recipe(args.recipe, overrides)
    try:
        shape = shape_of(recipe.task)
    except (OSError, ImportError):
        if here not in (run.folder, run.recipe) or not run.checkpoint("init").exists():
            raise
        shape = run.shape(recipe, "init", run.load_params("init"))
    model = recipe.build(shape)
    params = initial_state(model, recipe).params
    group_of = recipe.optimiser.grouping(model.is_recurrent)
    groups = describe_groups(recipe.optimiser, params, group_of, recipe.training.steps)
    print(table(groups))
    for group in groups:
        print(f"\n{group.name}:\n{members(group)}")


SECTIONS = {"model": ModelSettings, "optimiser": AdamW, "sgd": SGD, "training": Training}
"""Sections of a recipe whose keys are the same in every recipe; [optimiser] has others with name = "sgd"."""


def _about(topic: str) -> list[str]:
    """Returns the lines of text about a topic."""
    if topic == "layers":
        width = max(map(len, LAYERS))
        indent = "\n" + " " * (width + 2)
        lines = []
        grouped = {name for group in GROUPS.values() for name in group}
        others = {name: layer for name, layer in LAYERS.items() if name not in grouped}
        for title, group in {**GROUPS, **({"others": others} if others else {})}.items():
            lines.append(f"{title}:")
            for name, one in group.items():
                lines.append(f"{name:<{width}}  " + indent.join([one.about, one.paper, *_lanes(one)]))
            lines.append("")
        return lines[:-1]
    if topic == "tasks":
        width = max(map(len, TASKS))
        first = {name: (inspect.getdoc(one) or "").partition("\n\n")[0] for name, one in TASKS.items()}
        return [f"{name:<{width}}  {textwrap.shorten(text, 100, placeholder=' ...')}" for name, text in first.items()]
    if topic == "recipes":
        return [line for name in shipped() for line in _of_recipe(name)]
    if topic in LAYERS:
        layer = LAYERS[topic]
        return [
            layer.about,
            layer.paper,
            *_lanes(layer),
            "",
            inspect.getdoc(layer) or "",
            "",
            "settings in [layer]:",
            *_indented(_of_layer(layer)),
        ]
    if topic in SECTIONS:
        return [
            inspect.getdoc(SECTIONS[topic]) or "",
            "",
            f"settings in [{'optimiser' if topic == 'sgd' else topic}]:",
            *_indented(_settings(SECTIONS[topic])),
        ]
    if topic in BLOCKS:
        return [f'block = "{topic}": {BLOCKS[topic]}', "", "settings of blocks: rotrnn info model"]
    head = [f'head = "{topic}": chosen by the task of a recipe; in Python build_model(..., head="{topic}")']
    if topic in HEADS and topic not in TASKS:
        return head
    if topic in TASKS:
        namesake = (
            ["", f"recipe {topic}, with its own settings in [task]:", load_recipe(topic).text()]
            if topic in recipe_names()
            else []
        )
        return [
            inspect.getdoc(TASKS[topic]) or "",
            "",
            "settings in [task]:",
            *_indented(_settings(TASKS[topic])),
            *namesake,
            *(["", *head] if topic in HEADS else []),
        ]
    if topic in recipe_names():
        return [load_recipe(topic).text()]
    plain = topic.removesuffix(SMALL)
    known = [*LAYERS, *BLOCKS, *TASKS, *recipe_names(), *SECTIONS, "layers", "tasks", "recipes"]
    likely = alike(topic, [plain] if plain in recipe_names() else known)
    sections = ", ".join(SECTIONS)
    expected = f"layers, tasks, recipes, the name of one of them or of a block, or a section ({sections})"
    raise ValueError(f"info: TOPIC is '{topic}', expected {expected}{likely}")


def _indented(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _lanes(layer: type[Recurrent]) -> list[str]:
    """How large the state of a stream is, if the layer says."""
    grows = " after t steps" if layer.lanes.endswith(" t") else ""
    return [f"state of a sequence: {layer.lanes} real numbers{grows}"] if layer.lanes else []


SHARED = {
    "bidirectional": "whether it runs in both directions of time",
    "window": "forgets inputs older than this number of steps; None: forgets nothing",
    "history": "a table, by which its states are stored and read (docs/layers.md); none if left out",
}
"""Texts about settings that many layers have."""


def _settings(kind: Any) -> list[str]:
    """The keys of a section or table of recipes, with their defaults."""
    given = () if kind is ModelSettings else ("d_model", "layer")  # no keys of [layer]: the model's, a history's layer
    fields = [one for one in dataclasses.fields(kind) if one.name not in given]
    return [one.name + ("" if one.default is dataclasses.MISSING else f" = {one.default!r}") for one in fields]


def _of_layer(kind: type[Recurrent]) -> list[str]:
    lines = _settings(kind)
    lines += [] if has_directions(kind) else ["bidirectional = False"]
    lines += [f"history = {{{', '.join(_settings(StoredHistory))}}}"]
    about = ((line, SHARED.get(line.partition(" ")[0])) for line in lines)
    return [line + (f"   # {text}" if text else "") for line, text in about]


def _of_recipe(name: str) -> list[str]:
    source, figures = load_recipe(name).source, read_sweep(recipe_tables(name)).published
    title = name + (f", {name}{SMALL}" if name + SMALL in recipe_names() else "")
    said = [source.paper, source.table, source.accuracy]
    said += [f"published: {'; '.join(f'{one} {figure}' for one, figure in figures.items())}"] if figures else []
    return [title, *(f"    {text}" for text in (*said, source.note) if text)]


def _info(args: argparse.Namespace) -> None:
    if args.topic is not None:
        print("\n".join(_about(args.topic)))
        return
    have = versions()
    rows = {
        "rotrnn": have["rotrnn"] + (f", commit {have['commit']}" if have["commit"] else ""),
        "compiler": have["compiler"],
        "SIMD": f"{have['simd']} in use, of {', '.join(_cpu.SIMD_AVAILABLE)}; bfloat16 by {_cpu.bf16_by()}",
        "OpenMP": f"yes ({_cpu.OPENMP})" if _cpu.OPENMP else "no",
        "threads": f"{have['threads']} on {plural(have['cores'], 'core')} of {have['processor']}",
        "CUDA": cuda.about(),
        "Python": f"{have['python']}, {have['system']}",
        "NumPy": f"{have['numpy']}, BLAS {have['blas']}",
        "layers": ", ".join(LAYERS),
        "blocks": ", ".join(BLOCKS),
        "norms": ", ".join(NORMS),
        "heads": ", ".join(HEADS),
        "tasks": ", ".join(TASKS),
        "recipes": f"{len(recipe_names())}, listed by: rotrnn info recipes",
    }
    for name, text in rows.items():
        print(f"{name:<9} {text}")


# ---- arguments ----


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="rotrnn",
        description="Linear recurrent sequence models: RotRNN, LRU and others (rotrnn info layers).",
        epilog="rotrnn COMMAND --help describes a command.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for add in (
        _train_parser,
        _sweep_parser,
        _results_parser,
        _eval_parser,
        _export_parser,
        _generate_parser,
        _estimate_parser,
        _data_parser,
        _plot_parser,
        _figure_parser,
        _groups_parser,
        _info_parser,
    ):
        add(commands)
    return parser


def _train_parser(commands: Any) -> None:
    one = _command(
        commands,
        "train",
        _train,
        "train a recipe, or resume a run",
        """\
Trains a recipe in its own folder and evaluates it on the test split. The folder holds

  recipe.toml          the complete recipe: training it again on the same kind of machine, with
                       the same instruction set and NumPy version, gives the same bits
  log.jsonl            one JSON object per line: each step, each evaluation
  last.safetensors     written at each evaluation: everything needed to resume
  best.safetensors     the parameters with the best validation accuracy
  init.safetensors     the initial parameters
  result.json          written at the end: test loss and accuracy
  rules.json           of your own data: features, scales and classes, by which other files are read
  sessions.json        for each start: time, command, versions, commit of the source tree, threads, machine,
                       SHA-256 of the data file
  failed.json          the error, if the run ended with one
  plots                written at the end if matplotlib is installed: the plots of `rotrnn plot`
  tensorboard          the log for TensorBoard, if the package tensorboard is installed

Ctrl-C finishes the step, saves and exits with code 130; a second Ctrl-C aborts. SIGTERM and a closed terminal (but for
nohup) do as Ctrl-C does, and a pipe that is closed ends no run. After any interruption (kill -9, power failure, full
disk), --resume continues from the last checkpoint, or from the start if there is none. The result has the same bytes as
the result of an uninterrupted run. If the instruction set or the NumPy version has changed, there is a warning: bits
may differ then. The environment variable OMP_NUM_THREADS sets the number of threads (OpenMP). The number of threads
does not change the bits.

Under mpirun, with the extra "mpi", several processes share every batch. The result equals the result of one process up
to rounding, and has the same bits for the same number of processes. Process 0 writes the files and prints messages. If
another process fails, the last finished step is saved.

`rotrnn info recipes` lists the recipes.""",
        """\
rotrnn train digits-rotrnn
rotrnn train listops-lru --out runs/lru --set training.batch=16 --set layer.r_max=0.9
rotrnn train my-recipe.toml --steps 200 --seed 1
rotrnn train --resume runs/lru
OMP_NUM_THREADS=1 mpirun -n 2 rotrnn train digits-lru --out runs/digits""",
    )
    one.add_argument(
        "recipe",
        nargs="?",
        metavar="RECIPE",
        help="name of a recipe, or path of a TOML file (it ends in .toml or has a slash)",
    )
    _add_set(one, "section.key=value", "replace a setting of the recipe; the value is TOML, strings need no quotes")
    folder = one.add_mutually_exclusive_group()
    default = "runs/RECIPE, and layer or task of --set"
    folder.add_argument("--out", type=Path, metavar="DIR", help=f"folder of the run (default: {default})")
    folder.add_argument("--resume", type=Path, metavar="DIR", help="resume the run in this folder with its recipe")
    one.add_argument(
        "--until-eof",
        action="store_true",
        help="stop as if by Ctrl-C when standard input is closed, so that a run ends with the program that started it",
    )
    _add_trust(one)
    _add_device(one)
    _add_steps(one)
    one.add_argument("--seed", type=int, metavar="N", help="the same as --set training.seed=N")
    one.add_argument("--no-plots", action="store_true", help="draw no plots at the end")


def _sweep_parser(commands: Any) -> None:
    one = _command(
        commands,
        "sweep",
        _sweep,
        "train a recipe over seeds, settings and variants",
        """\
Trains the product of the variants, the grid and the seeds in a recipe's section [sweep]. Each run has its own folder
below DIR, named after the settings that distinguish it. The options replace or extend the recipe's.

After any interruption (Ctrl-C, kill -9, power failure), the same command resumes the unfinished runs and does not touch
the finished ones. A run that fails or crashes is recorded and counted, and the others continue. At the end the command
prints a table of these runs; `rotrnn results DIR` prints a table of all runs below DIR, including earlier sweeps.

Under mpirun, with the extra "mpi", process 0 hands out the runs, and each process trains one at a time (or --jobs). All
processes must see DIR. Ctrl-C stops all runs after their step.

With --launcher slurm the command submits an array job and returns. Each of its tasks trains one run, as by
`rotrnn train --resume`. A minute before its time limit a run saves and ends; to resume, repeat the command when the job
has ended: only unfinished runs are submitted. What a task prints is in DIR/slurm-JOB_TASK.log.""",
        """\
rotrnn sweep digits-lru --seeds 0..2 --jobs 2
rotrnn sweep digits-lru --seeds 0,3,5 --grid layer.r_max=0.9,0.99 --grid layer.d_state=16,32 --out sweeps/radii
rotrnn sweep my-ablation.toml --variant full --variant plain --steps 1000
OMP_NUM_THREADS=1 mpirun -n 8 rotrnn sweep digits-lru --seeds 0..7
rotrnn sweep listops-lru --seeds 0..4 --launcher slurm --slurm-option time=12:00:00 --slurm-option cpus-per-task=8""",
    )
    one.add_argument("recipe", metavar="RECIPE", help="name of a recipe, or path of a TOML file")
    one.add_argument("--seeds", metavar="A..B|A,B,...", help="seeds of the runs, instead of the recipe's")
    _add_grid(one, "values of a setting, in place of the recipe's or in addition")
    one.add_argument(
        "--variant", action="append", default=[], metavar="NAME", help="run only this variant; may be repeated"
    )
    _add_set(one, "section.key=value", "replace a setting in every run")
    _add_steps(one)
    one.add_argument("--out", type=Path, metavar="DIR", help="folder of the sweep (default: sweeps/RECIPE)")
    _add_device(one)
    one.add_argument(
        "--jobs",
        type=_positive,
        metavar="N",
        help="number of runs at a time, which share the cores (default: 1); under mpirun in each process; with Slurm "
        "the most tasks of the array at a time (default: no limit)",
    )
    one.add_argument(
        "--retry",
        action="store_true",
        help="resume failed runs too, and evaluate those again whose result.json or recipe.toml is damaged or "
        "whose recipe.toml is missing",
    )
    one.add_argument(
        "--launcher",
        choices=("slurm",),
        help="slurm: write DIR/sweep.sbatch, an array job with a task for each unfinished run, and submit it by sbatch",
    )
    one.add_argument(
        "--slurm-option",
        action="append",
        default=[],
        metavar="option=value",
        help="an option of sbatch without its dashes, such as time=2:00:00 or gres=gpu:1; may be repeated",
    )


def _results_parser(commands: Any) -> None:
    one = _command(
        commands,
        "results",
        _results,
        "a table of runs",
        """\
One row for each configuration, that is, for runs that differ only in the seed: the number of finished, failed and
unfinished runs; mean ± sample standard deviation on the test split, for the parameters that were best on the validation
split and for the last ones, next to the published figure; number of parameters, training steps per second, peak memory
and time. A run that cannot be read is named below the table.""",
        """\
rotrnn results sweeps/digits-lru
rotrnn results sweeps runs/digits --out table.md
rotrnn results sweeps/words --curve --out curves.csv""",
    )
    one.add_argument(
        "runs", nargs="+", type=Path, metavar="DIR", help="folder of a run, or a folder with runs below it"
    )
    one.add_argument(
        "--out", type=Path, metavar="FILE", help="also write the table, as .md, .csv or .json (everything)"
    )
    one.add_argument(
        "--by",
        nargs="+",
        default=[],
        metavar="section.key",
        help="group runs of a task that agree in these settings",
    )
    one.add_argument("--curve", action="store_true", help="show accuracies against length instead")
    _add_trust(one)


def _eval_parser(commands: Any) -> None:
    one = _command(
        commands,
        "eval",
        _eval,
        "loss and accuracy of a run on a split",
        """\
Evaluates the parameters of a run: the mean loss (of classes the cross-entropy in nats, weighted and smoothed as in
training), and the share of right answers. Settings of the task, the layer and the model may differ from the training,
as long as every parameter keeps its shape, and so may training.class_weights and training.label_smoothing. With --grid,
each combination of values is evaluated.""",
        """\
rotrnn eval runs/digits-rotrnn
rotrnn eval runs/digits-rotrnn --split val --checkpoint last
rotrnn eval runs/words --set task.test_length=100
rotrnn eval runs/words --fixed-points
rotrnn eval runs/words --grid layer.max_iterations=2,4,8,16 --out runs/words/iterations.json""",
    )
    one.add_argument("run", type=Path, metavar="RUN", help="folder of the run")
    _add_set(one, "section.key=value", "change a setting of the training")
    _add_grid(one, "evaluate each of these values of a setting")
    one.add_argument("--out", type=Path, metavar="FILE", help="also write all results, including curves, as JSON")
    one.add_argument("--split", choices=SPLITS, default="test", help="default: test")
    one.add_argument(
        "--fixed-points",
        action="store_true",
        help="of layers that iterate to a fixed point, also print how far the maps of the tokens of a batch are from "
        "contraction (a histogram of their norms |J|, which contract below 1), and the iterations",
    )
    _add_trust(one)
    _add_device(one)
    one.add_argument(
        "--checkpoint",
        choices=PARAMETERS,
        default="best",
        help="the parameters to evaluate; the default, best, are those with the best validation accuracy (there is a "
        "warning if the data set has no validation split and they were selected on the test split)",
    )


def _export_parser(commands: Any) -> None:
    one = _command(
        commands,
        "export",
        _export,
        "write a run's model to one file, a folder, or ONNX",
        """\
Writes a model with its parameters. --out FILE.safetensors is one file, which `rotrnn.load` and the C library read; a
name without an ending is a folder with config.json and model.safetensors, which `rotrnn.from_pretrained` reads; and
FILE.onnx is an ONNX graph (needs onnx: pip install 'rotrnn[onnx]'), for the layers whose loop ONNX's Scan can say.

MODEL is the folder of a run, whose best parameters are taken unless --checkpoint says otherwise; or a model's file or
folder, to convert it. A file that exists is replaced.""",
        """\
rotrnn export runs/digits --out digits.safetensors
rotrnn export runs/digits --out digits.onnx --checkpoint last
rotrnn export runs/digits --out digits.onnx --state""",
    )
    _add_model(one)
    one.add_argument("--out", type=Path, required=True, metavar="PATH", help="file or folder to write")
    one.add_argument(
        "--lengths", action="store_true", help="an ONNX graph has the input lengths, the steps of each sequence"
    )
    one.add_argument(
        "--state", action="store_true", help="an ONNX graph has states as inputs and outputs, so that it streams"
    )


def _generate_parser(commands: Any) -> None:
    one = _command(
        commands,
        "generate",
        _generate,
        "continue a text by a language model",
        """\
Prints PROMPT and what the model writes after it, token by token. MODEL is the folder of a run, a model's file or
folder, or the name of a repository on the Hugging Face hub (needs huggingface_hub: pip install 'rotrnn[hub]').

If the model's folder has a tokenizer.json (needs tokenizers, of the same extra), or is the folder of a run of the task
`language`, PROMPT is a text, else token ids. The same seed gives the same tokens. Needs no network if MODEL is a
folder.""",
        """\
rotrnn generate mamba-130m-hf "The capital of France is" --temperature 0
rotrnn generate state-spaces/mamba-130m-hf "Once upon a time" --tokens 200 --top-p 0.9
rotrnn generate runs/book "It was" --tokens 200
rotrnn generate model.safetensors "1 2 3" --tokens 20 --top-k 4 --seed 1
rotrnn generate runs/book "It was" --min-p 0.05 --repetition-penalty 1.1 --stop 10 --stop 46""",
    )
    _add_model(one)
    one.add_argument("prompt", metavar="PROMPT", help="text or token ids to continue")
    one.add_argument(
        "--bytes", action="store_true", help="tokens are bytes, as of the task language, and PROMPT a text"
    )
    one.add_argument("--tokens", type=int, default=100, metavar="N", help="at most so many tokens (default: 100)")
    one.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the draws (default: 0)")
    one.add_argument(
        "--temperature", type=float, default=1.0, metavar="X", help="divides the logits; 0: the most probable token"
    )
    one.add_argument("--top-k", type=int, metavar="N", help="draw from the N most probable tokens")
    one.add_argument("--top-p", type=float, metavar="X", help="draw from the fewest tokens of probability X together")
    one.add_argument(
        "--min-p", type=float, metavar="X", help="draw from tokens of at least X times the greatest probability"
    )
    one.add_argument(
        "--repetition-penalty",
        type=float,
        default=1.0,
        metavar="X",
        help="divides positive logits of tokens that were there before, and multiplies negative ones (default: 1)",
    )
    one.add_argument("--stop", type=int, action="append", metavar="ID", help="end after this token; may be repeated")


def _add_model(one: argparse.ArgumentParser) -> None:
    one.add_argument("model", metavar="MODEL", help="folder of a run, or a model's file or folder")
    one.add_argument("--checkpoint", choices=PARAMETERS, default="best", help="of a run (default: best)")
    _add_trust(one)


def _estimate_parser(commands: Any) -> None:
    one = _command(
        commands,
        "estimate",
        _estimate,
        "estimate time and memory of training a recipe",
        """\
Runs the first steps of a recipe, evaluates a few batches, and estimates the time of the whole training. Writes nothing.
With --stand-in, a generated task generates only a few examples if it has a setting for their number, and a task with
published files uses random data of the same shape instead, so the files are not needed.""",
        """\
rotrnn estimate listops-rotrnn
rotrnn estimate image-lru --stand-in --steps 20""",
    )
    one.add_argument("recipe", metavar="RECIPE", help="name of a recipe, or path of a TOML file")
    _add_set(one, "section.key=value", "replace a setting of the recipe")
    one.add_argument("--steps", type=_positive, default=100, metavar="N", help="steps to run (default: 100)")
    _add_device(one)
    one.add_argument(
        "--stand-in",
        type=_positive,
        nargs="?",
        const=1000,
        metavar="N",
        help="use N examples per split, and random ones in place of published files (default N: 1000)",
    )


def _data_parser(commands: Any) -> None:
    one = _command(
        commands,
        "data",
        _data,
        "describe a task's data, or write them as files",
        "Generates or reads the data of a task and describes them; with --out, also writes them as files.\n\n"
        + textwrap.fill(f"tasks: {', '.join(TASKS)}; their settings are the keys of a recipe's section [task]", 110)
        + "\n\n"
        f"{', '.join(_released())} are read from their published files, in the folder data_dir;\n"
        "download=true downloads them. --stand-in writes random data of the same format and full length,\n"
        "to try out a recipe.",
        """\
rotrnn data digits
rotrnn data imdb --set data_dir=data --set download=true
rotrnn data imdb --stand-in --out data/random
rotrnn data listops --out data/listops --set train=1000 --set min_length=10 --set max_length=50
rotrnn data pathfinder --out data/path-x --set resolution=128""",
    )
    one.add_argument("task", metavar="TASK", help="name of a task")
    one.add_argument("--out", type=Path, metavar="DIR", help="new or empty folder for the files")
    one.add_argument(
        "--stand-in",
        type=int,
        nargs="?",
        const=128,
        metavar="N",
        help="write N random examples for each part instead (default N: 128)",
    )
    _add_set(one, "key=value", "a setting of the task")


def _plot_parser(commands: Any) -> None:
    one = _command(
        commands,
        "plot",
        _plot,
        "plot a run, or compare several",
        """\
For one run, written to RUN/plots: learning curves; if the layers have them, eigenvalues in the unit disc before and
after training, norms of the hidden states along the sequence and over training, iterations to the fixed point, and the
difference between parallel and sequential inference; for the best parameters on the test split, the confusion matrix
and, if the task defines it, accuracy against length; accuracy against the maximum number of iterations, or against the
tolerance, of fixed points, if `rotrnn eval RUN --grid layer.max_iterations=2,4,8 --out RUN/iterations.json`, or the
same with `layer.tol=0.1,0.01` and RUN/tolerances.json, was run. Where the data are missing, a warning says so, and what
is computed from them is left out.

For several runs, or a folder of runs, written to DIR/plots, or to `plots` next to the runs: learning curves, accuracies
on the test split, and, if the runs have them, accuracy against length, hidden states and iterations. Runs whose recipes
differ only in the seed have lines of one colour. A picture has eight configurations at most. A warning names runs that
cannot be read.

Prints the paths of the plots. Needs matplotlib (pip install 'rotrnn[plot]').""",
        """\
rotrnn plot runs/digits-rotrnn
rotrnn plot runs/lru-0 runs/lru-1 runs/rotrnn-0 runs/rotrnn-1 --out pictures
rotrnn plot runs/digits-rotrnn --out pictures/digits.svg
rotrnn plot runs/sweep""",
    )
    one.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folder of a run, or of several")
    one.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for the plots; or DIR/STEM.svg, also .pdf or .png: plots DIR/STEM-NAME of that kind",
    )
    _add_trust(one)


def _figure_parser(commands: Any) -> None:
    one = _command(
        commands,
        "figure",
        _figure,
        "a figure or table of a paper: train, draw, and write its page",
        """\
Trains the runs that a figure or table of a paper needs and that are not there, draws them together, and writes DIR with
the pictures and figure.md: commands, table and pictures. At the small size, made for two cores, or with --full at the
size of the paper.

After any interruption the same command goes on. Repeated after its end it trains nothing and draws again. Finished runs
of the same recipe and seed below `sweeps`, or the folders of --runs, are taken as they are.

--list prints all figures: how many of their runs are finished, of how many, for both sizes; and how long the small size
took where it was recorded, as the sum of all runs. --estimate runs a few steps of each configuration and
estimates the rest. Needs matplotlib (pip install 'rotrnn[plot]').""",
        """\
rotrnn figure --list
rotrnn figure lru-ladder --jobs 2
rotrnn figure rotrnn-table1 --full --estimate --set task.data_dir=data
rotrnn figure fixed-point-table2 --full --set training.precision=bf16 --seeds 0
rotrnn figure fixed-point-fig1 --runs results/A5 --out pictures""",
    )
    one.add_argument("name", nargs="?", metavar="NAME", help="name of a figure, as --list has them")
    one.add_argument("--list", action="store_true", help="print all figures, and what there is of them")
    one.add_argument("--full", action="store_true", help="at the size of the paper")
    one.add_argument("--estimate", action="store_true", help="estimate the time; trains and writes nothing")
    one.add_argument(
        "--runs",
        type=Path,
        action="append",
        metavar="DIR",
        help=f"take finished runs in or below this folder; may be repeated (default: {SWEEPS})",
    )
    one.add_argument("--seeds", metavar="A..B|A,B,...", help="seeds of the runs, instead of the figure's")
    _add_set(one, "section.key=value", "replace a setting in every run")
    _add_steps(one)
    default = "figures/NAME, or figures/NAME-full"
    one.add_argument("--out", type=Path, metavar="DIR", help=f"folder of the figure (default: {default})")
    _add_device(one)
    one.add_argument("--jobs", type=_positive, default=1, metavar="N", help="number of runs at a time (default: 1)")
    one.add_argument("--retry", action="store_true", help="resume failed runs too, and mend damaged ones")


def _groups_parser(commands: Any) -> None:
    one = _command(
        commands,
        "groups",
        _groups,
        "show the parameter groups of a recipe's optimiser",
        "Prints for each parameter group: the number of arrays and elements; the learning rate and the weight decay\n"
        "per step, at the first step, after the warm-up and at the last step; and the names. Needs no data, but for a\n"
        "recipe on your own data, which says no sizes, the file or the folder of a run.",
        'rotrnn groups listops-s5\nrotrnn groups digits-lru --set \'optimiser.no_decay=["layer", "norm"]\'\n'
        "rotrnn groups runs/digits",
    )
    one.add_argument("recipe", metavar="RECIPE", help="name of a recipe, path of a TOML file, or folder of a run")
    _add_set(one, "section.key=value", "replace a setting of the recipe")
    _add_trust(one)


def _info_parser(commands: Any) -> None:
    one = _command(
        commands,
        "info",
        _info,
        "version, build, instruction sets, threads, BLAS, layers, recipes",
        "Prints version, compiler, instruction sets, OpenMP and threads, NumPy's BLAS, layers, tasks and recipes;\n"
        "with `layers`, `tasks` or `recipes`, a line on each and its source; with the name of one, its documentation;\n"
        "with `model`, `optimiser` or `training`, every key of that section of a recipe.",
        "\n".join(f"rotrnn info{one}" for one in ("", " layers", " lru", " pathfinder", " pathx-s5", " training")),
    )
    one.add_argument(
        "topic",
        nargs="?",
        metavar="TOPIC",
        help="layers, tasks, recipes, the name of one of them or of a block, or a section of recipes",
    )


class _Parser(argparse.ArgumentParser):
    """A parser that raises OSError where a message cannot be written: argparse drops it."""

    def _print_message(self, message: str, file: Any = None) -> None:
        if message and (stream := file or sys.stderr) is not None:
            stream.write(message)


class _Help(argparse.RawDescriptionHelpFormatter):
    """Fills paragraphs, and the second column of lists, to the width of the terminal. Commands stay lines, to be
    copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        width = min(width, 118)
        return "\n\n".join(self._fill(part, width) for part in text.split("\n\n"))

    def _fill(self, part: str, width: int) -> str:
        if part.startswith("examples:"):
            return part
        if not part.startswith(" "):
            return textwrap.fill(" ".join(part.split()), width, break_on_hyphens=False)
        filled = []
        for line in re.sub(r"\n {3,}", " ", part).splitlines():
            column = re.match(r" +\S+ +", line)
            inner = " " * min(column.end() if column else 4, width // 2)
            filled.append(textwrap.fill(line, width, subsequent_indent=inner, break_on_hyphens=False))
        return "\n".join(filled)


def _command(commands: Any, name: str, run: Any, brief: str, text: str, examples: str) -> argparse.ArgumentParser:
    indented = "\n".join(f"  {line}" for line in examples.splitlines())
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=brief,
        description=text,
        epilog=f"examples:\n{indented}",
        formatter_class=_Help,
    )
    parser.set_defaults(command=run)
    return parser


def _positive(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def _add_set(parser: argparse.ArgumentParser, form: str, text: str) -> None:
    parser.add_argument("--set", action="append", default=[], metavar=form, help=f"{text}; may be repeated")


def _add_trust(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trust",
        action="store_true",
        help="import the modules that the recipe in a run's folder names: their code runs",
    )


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="cuda: compute on a GPU (default: cpu)"
    )


def _add_steps(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, metavar="N", help="the same as --set training.steps=N")


def _add_grid(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument(
        "--grid", action="append", default=[], metavar="section.key=a,b", help=f"{text}; may be repeated"
    )


if __name__ == "__main__":
    sys.exit(main())
