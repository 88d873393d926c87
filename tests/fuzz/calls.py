"""Fuzzes calls of every public op, layer, block, model, stream and of the optimiser.

    python -m fuzz.calls --count 100000 --seed 1         # from the folder tests; `make fuzz` has the sanitizers

Call number `index` of a seed is a good call (good_calls.py) with up to three mutations (mutations.py), and depends on
the two numbers alone. It is judged by what docs/guarantees.md promises:

- it ends, within two seconds, without a crash and without a report of a sanitizer;
- an error is a TypeError, ValueError or IndexError that names the function or layer, and an argument (or a MemoryError,
  if the call asked for more than there is, or an error that the documentation names);
- layout does not matter: the call does the same to the last bit as with plain copies of its arrays;
- inputs are not changed, and results have memory of their own.

What is found is printed with its seed and index, and with as few of its mutations as it needs. Faults that are known,
and not mended yet, are in KNOWN.
"""

from __future__ import annotations

import argparse
import faulthandler
import functools
import inspect
import json
import mmap
import os
import re
import resource
import struct
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import rotrnn
from fuzz.good_calls import Call, recorded, scenarios
from fuzz.mutations import Mutation, applied, chosen
from fuzz.tree import LARGE, Path, arrays, at, copied, kinds, leaves, names, plain
from rotrnn.nn.module import Module
from rotrnn.training.optimiser import NonFinite

FAULTY = 3
"""Exit status after faults; sanitizers and Python itself have 1."""
SECONDS = 2.0
HANG = 60
"""Seconds after which a call is ended from outside."""
MEMORY = 6 << 30
"""Bytes of addresses that a process may take, without sanitizers."""

KNOWN: list[tuple[str, str]] = []
"""Faults that are not mended yet: a pattern of the fault's line, and where it is to be mended."""


class Fault(NamedTuple):
    """What is wrong with a call: its name, the kind of fault, and a message."""

    call: str
    kind: str
    message: str

    @property
    def line(self) -> str:
        """The fault without numbers and names of variables, which is the same for many calls."""
        return re.sub(r"0x\w+|-?\d[\d.e+-]*|\bnan\b|\binf\b|'[^']*'", "_", f"{self.call}: {self.kind}: {self.message}")[
            :300
        ]

    @property
    def known(self) -> str | None:
        return next((where for pattern, where in KNOWN if re.search(pattern, self.line)), None)


@dataclass(frozen=True)
class Trial:
    """A call with its mutations."""

    call: Call
    mutations: tuple[Mutation, ...]

    def arguments(self) -> dict[str, Any]:
        """Makes the arguments; the same each time, in new memory. A setting that a dataclass refuses raises."""
        tree = copied(self.call.arguments)
        for mutation in self.mutations:
            tree = applied(tree, mutation, _donated)
        return tree

    def __str__(self) -> str:
        what = [f"{'.'.join(map(str, path)) or 'all arguments'} {kind} ({seed})" for path, kind, seed in self.mutations]
        return f"{self.call.name} with {'; '.join(what) or 'its good arguments'}"


def _drawn(rng: np.random.Generator, only: str = "") -> Call:
    every = scenarios()
    families = [one for one in every if only in one] or list(every)
    family = families[int(rng.integers(len(families)))]
    for place in rng.permutation(len(every[family])):
        calls = recorded(family, int(place))
        if calls:  # a case of a function that is not public has none
            name = sorted(calls)[int(rng.integers(len(calls)))]
            return calls[name][int(rng.integers(len(calls[name])))]
    return _drawn(rng, only)


def _donated(seed: int, path: Path) -> Any:
    """Returns what another call has at this path, or the whole argument, or None."""
    rng = np.random.default_rng(seed)
    for _ in range(100):
        arguments = _drawn(rng).arguments
        if path[0] in arguments:
            try:
                return copied(at(arguments, path))
            except KeyError:
                return copied(arguments[path[0]])
    return None


def trial(seed: int, index: int, only: str = "") -> Trial:
    """Returns call number `index` of a seed."""
    rng = np.random.default_rng([seed, index])
    call = _drawn(rng, only)
    mutations = [Mutation((), "single", 0)] * int(rng.random() < 0.3)
    mutations += [chosen(rng, call.arguments) for _ in range(int(rng.choice(4, p=(0.05, 0.5, 0.3, 0.15))))]
    return Trial(call, tuple(mutations))


# ---- judging ----

MAY_RAISE = (TypeError, ValueError, IndexError, NotImplementedError, rotrnn.ConvergenceError, NonFinite)
CHANGES: dict[str, Callable[[Path], bool]] = {
    "AdamW.update": lambda path: path[0] in ("params", "moments"),
    "tiir_scan": lambda path: path[:2] in (("state", "delay"), ("state", 0)),
    "push": lambda path: path[0] == "self",
    "step": lambda path: path[0] == "state",  # with `prepared`
    "forward": lambda path: path[-1] in ("running_mean", "running_var"),
    "state_norms": lambda path: path[-1] in ("running_mean", "running_var"),
}
"""Which arguments a function changes, as its documentation says; by its name or that of the method."""

ANSWER: dict[str, Callable[[Any], Any]] = {
    "forward": lambda result: (result[0], getattr(result[1], "state", None)),
    "diagonal_bank": lambda result: result[:2],
    "dplr_bank": lambda result: result[:2],
    "layer_norm": lambda result: result[0],
    "linear_layer": lambda result: result[:2],
    "residual_block": lambda result: (result.y, result.hT),
    "rms_norm": lambda result: result[0],
    "sampled_bank": lambda result: result[:2],
}
"""What a function computes, besides what it saves for backward: that may hold inputs, and is undefined at padding."""

MAY_SHARE = dict.fromkeys(
    ("Dropout.forward", "Dropout.backward", "fold", "fold_backward", "mask_padding", "prepare", "tiir_scan"), 1
)
"""Functions whose result may be an input itself: there may be nothing to do, or it is updated in place."""

INNER = dict.fromkeys(("fold", "fold_backward"), 1)
"""Methods that check nothing, since others call them with what they have checked."""


def _by_name(table: dict[str, Any], name: str) -> Any:
    return table.get(name) or table.get(name.rpartition(".")[2])


def _bits(tree: Any) -> list[Any]:
    """Returns all numbers of a result, to be compared bit by bit."""

    def of(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray | np.generic):
            leaf, native = np.asarray(leaf), leaf.dtype.newbyteorder("=")
            return leaf.shape, native, leaf.astype(native, copy=False).tobytes() if leaf.nbytes < LARGE else None
        return struct.pack("d", leaf) if isinstance(leaf, float) else None

    return [(path, of(leaf)) for path, leaf in leaves(tree)]


def _memory(array: Any) -> Any:
    """Returns the array that owns the memory: what is written beside a view is seen in it."""
    while isinstance(array.base, np.ndarray) and array.base.nbytes < LARGE:
        array = array.base
    return array


class Outcome(NamedTuple):
    result: Any
    error: Exception | None
    seconds: float
    arguments: dict[str, Any] | None


def _made(build: Callable[[], dict[str, Any]], call: Call) -> Outcome:
    arguments = None
    begin = time.thread_time()
    try:
        arguments = build()
        given = dict(arguments)
        begin = time.thread_time()
        first = [given.pop("self")] if "self" in given else []
        answer = _by_name(ANSWER, call.name) or (lambda result: result)
        result = answer(call.function(*first, **given))  # which may need memory, too
    except Exception as error:
        return Outcome(None, error, time.thread_time() - begin, arguments)
    return Outcome(result, None, time.thread_time() - begin, arguments)


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def _unclear(call: Call, error: Exception, mutations: Sequence[Mutation]) -> str | None:
    """Returns what is wrong with an error."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, MemoryError):
        grown = any(kind not in ("single", "byte-swapped", "fortran", "read-only") for _, kind, _ in mutations)
        return None if grown else text
    if not isinstance(error, MAY_RAISE):
        return text
    if isinstance(error, NonFinite):
        return None  # names the gradient or the parameter
    if any("gather" in path for path, _, _ in mutations):
        return None  # an error of the caller's own function
    words = _words(str(error))
    owners = {*_words(call.name), call.name.removesuffix("_backward"), "Context", *kinds(call.arguments), *parts()}
    known = {*names(call.arguments), *inspect.signature(call.function).parameters}
    for part in call.arguments.values():
        owners |= _inner_modules(part)
        known |= {*getattr(part, "__dict__", ()), *getattr(part, "shapes", ())}
    if re.search(r"\w=|(parameter|setting) '?\w", str(error)):  # a setting or a parameter of a part
        known |= words
    if call.name == "build_model":
        owners.add("model")  # settings of a recipe's section [model]
    missing = [what for what, some in (("function or layer", owners), ("argument", known)) if not words & some]
    return f"names no {' and no '.join(missing)}: {text}" if missing else None


@functools.cache
def parts() -> frozenset[str]:
    """Returns the names of all modules, and of the settings that they share: one that cannot be made names itself."""
    found, left = {"Iteration", "Mixer"}, [Module]
    while left:
        found |= {one.__name__ for one in left}
        left = [inner for one in left for inner in one.__subclasses__()]
    return frozenset(found)


def _inner_modules(module: Any) -> set[str]:
    """Returns the names of the types of the modules that a module consists of: a message may name one with its path."""
    inner = getattr(module, "modules", {}).values()
    return {type(one).__name__ for one in inner}.union(*[_inner_modules(one) for one in inner])


def judged(one: Trial) -> list[Fault]:
    """Makes the call and returns its faults."""
    call, (name, _, _) = one.call, one.call
    before: list[tuple[Path, Any, bytes]] = []

    def build() -> dict[str, Any]:
        made = one.arguments()
        for path, leaf in leaves(made):
            if type(leaf) is np.ndarray and leaf.nbytes < LARGE and not leaf.dtype.hasobject:
                before.append((path, _memory(leaf), _memory(leaf).tobytes()))
        return made

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        outcome = _made(build, call)
        again = _made(lambda: plain(one.arguments()), call)

    found: list[tuple[str, str]] = []
    if outcome.seconds > SECONDS:
        found.append(("slow", f"took {outcome.seconds:.1f} s of one core"))
    changes = _by_name(CHANGES, name) or (lambda path: False)
    aliased = _by_name(CHANGES, name) and any(kind in ("alias", "without", "donated") for _, kind, _ in one.mutations)
    if not _by_name(INNER, name):
        if outcome.error is not None and (text := _unclear(call, outcome.error, one.mutations)):
            found.append(("unclear error", text))
        if not (aliased or any(path and (path == ("out",) or changes(path)) for path, _, _ in one.mutations)):
            found += [("layout matters", text) for text in _differences(outcome, again)]
    for path, array, content in before:
        if not (aliased or path == ("out",) or changes(path)) and array.tobytes() != content:
            found.append(("changed its input", ".".join(map(str, path))))
    if outcome.error is None and not (_by_name(MAY_SHARE, name) or _is_identity(outcome)):
        found += [("result shares memory", f"with {path[0]}") for path in _shared(outcome) if not changes(path)]
    return [Fault(name, *one) for one in dict.fromkeys(found)]


def _differences(outcome: Outcome, again: Outcome) -> Iterator[str]:
    """Yields how the call differs from the call with plain copies."""
    if type(outcome.error) is not type(again.error):
        yield f"{outcome.error!r}, but with plain copies {again.error!r}"
    elif outcome.error is None and _bits(outcome.result) != _bits(again.result):
        yield "other bits with plain copies"


def _is_identity(outcome: Outcome) -> bool:
    """Returns whether the call is one of a stack without blocks, which returns its input."""
    return getattr((outcome.arguments or {}).get("self"), "blocks", None) == ()


def _shared(outcome: Outcome) -> Iterator[Path]:
    """Yields the paths of the arguments that the result overlaps."""
    results = [one for one in arrays(outcome.result) if one.size]
    for path, leaf in leaves(outcome.arguments):
        if path != ("out",) and isinstance(leaf, np.ndarray):
            yield from [path for one in results if np.may_share_memory(one, leaf)]


def shrunk(one: Trial, same: Callable[[Trial], bool]) -> Trial:
    """Returns the trial without the mutations that are not needed for `same`."""
    for mutation in one.mutations:
        fewer = Trial(one.call, tuple(other for other in one.mutations if other is not mutation))
        if same(fewer):
            one = fewer
    return one


# ---- processes ----


def work(options: argparse.Namespace) -> None:
    """A worker: judges its share of the calls, and prints each fault as a line of JSON."""
    with open(options.place, "r+b") as file:
        place = mmap.mmap(file.fileno(), 8)
    for index in range(options.first, options.count, options.step):
        place[:] = index.to_bytes(8, "little")
        faulthandler.dump_traceback_later(HANG, exit=True)
        one = trial(options.seed, index, options.only)
        for fault in judged(one):
            least = shrunk(one, lambda fewer, line=fault.line: line in [other.line for other in judged(fewer)])
            print(json.dumps([index, fault, str(least)]), flush=True)
    faulthandler.cancel_dump_traceback_later()


def _crash_of(options: argparse.Namespace, index: int) -> str:
    """Returns the crashed call with the mutations that it needs, each try in a process of its own."""

    def crashes(kept: Sequence[int]) -> bool:
        command = [*_command(options), "--index", str(index), "--keep", ",".join(map(str, kept))]
        return subprocess.run(command, capture_output=True, check=False).returncode not in (0, FAULTY)

    one = trial(options.seed, index, options.only)
    kept = list(range(len(one.mutations)))
    if not crashes(kept):
        return f"{one} (not when run by itself)"
    for i in list(kept):
        if crashes([k for k in kept if k != i]):
            kept.remove(i)
    return str(Trial(one.call, tuple(one.mutations[i] for i in kept)))


def _command(options: argparse.Namespace) -> list[str]:
    return [sys.executable, "-m", "fuzz.calls", "--seed", str(options.seed), "--only", options.only]


class Report:
    """Faults by line, the first of each printed; shared by the threads that read the workers."""

    def __init__(self, seed: int, with_known: bool = False) -> None:
        self.seed, self.lock, self.with_known = seed, threading.Lock(), with_known
        self.found: Counter[str] = Counter()
        self.known: Counter[str] = Counter()

    def add(self, index: int, fault: Fault, call: str) -> None:
        with self.lock:
            if fault.known and not self.with_known:
                self.known[fault.known] += 1
                return
            self.found[fault.line] += 1
            if self.found[fault.line] == 1:
                print(f"seed {self.seed} index {index}: {fault.kind}: {fault.message[:600]}\n    {call}", flush=True)


def _supervise(options: argparse.Namespace, worker: int, report: Report) -> None:
    """Runs a worker, and after each crash another from the next call on."""
    first = worker
    with tempfile.NamedTemporaryFile() as place, tempfile.TemporaryFile() as errors:
        place.write(bytes(8))
        place.flush()
        while first < options.count:
            errors.seek(0)
            errors.truncate()
            share = ["--first", str(first), "--step", str(options.processes), "--count", str(options.count)]
            command = [*_command(options), *share, "--place", place.name]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("["):
                    index, fault, call = json.loads(line)
                    report.add(index, Fault(*fault), call)
            if process.wait() == 0:
                return
            place.seek(0)
            index = int.from_bytes(place.read(8), "little")
            errors.seek(0)
            text = errors.read().decode(errors="replace")
            one = trial(options.seed, index, options.only)
            report.add(
                index, Fault(one.call.name, "crash", _summary(process.returncode, text)), _crash_of(options, index)
            )
            first = index + options.processes


def _summary(code: int, text: str) -> str:
    """Returns the line of a sanitizer's report, or the end of what was printed."""
    found = re.search(r"(runtime error|ERROR: AddressSanitizer|Timeout).*", text)
    frames = re.findall(r"#\d+ \S+ in (\w+)[^\n]*csrc", text)
    return f"exit {code}: {found[0] if found else text[-500:]} {' < '.join(frames[:3])}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=20_000, help="how many calls")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", metavar="NAME", help="families of calls with this in their name")
    parser.add_argument("--known", action="store_true", help="also print the faults of KNOWN")
    parser.add_argument("--index", type=int, help="this call alone, here")
    parser.add_argument("--keep", help="of that call, only the mutations with these numbers")
    for name in ("--first", "--step"):
        parser.add_argument(name, type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--place", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    if options.place:
        work(options)
        return 0
    if options.index is not None:
        one = trial(options.seed, options.index, options.only)
        if options.keep is not None:
            kept = [int(i) for i in options.keep.split(",") if i]
            one = Trial(one.call, tuple(one.mutations[i] for i in kept))
        print(one, flush=True)
        faulthandler.dump_traceback_later(HANG, exit=True)
        faults = judged(one)
        print(*faults, sep="\n")
        return FAULTY if faults else 0
    begin = time.time()
    report = Report(options.seed, options.known)
    with ThreadPoolExecutor(options.processes) as pool:
        list(pool.map(lambda worker: _supervise(options, worker, report), range(options.processes)))
    print(
        f"{options.count} calls, seed {options.seed}, {time.time() - begin:.0f} s, {sum(report.found.values())} faults "
        f"of {len(report.found)} kinds"
    )
    for line, count in [*report.found.most_common(), *report.known.most_common()]:
        print(f"  {count:6}  {line}{'  (known)' if line in report.known else ''}")
    return FAULTY if report.found else 0


if __name__ == "__main__":
    sys.exit(main())
