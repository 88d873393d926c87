"""Changes real files of every format at random and loads them: ``python -m tests.fuzz.files``.

A file either loads, or its loader raises an error of a kind that it documents (`Format.errors`) whose message has the
path of the file or of its folder. Anything else is a find: another error, a crash, more than `SLOW` seconds, or more
than `MEMORY` bytes above what the process held before. Change number i of a format depends only on the seed and on i,
so a find can be repeated. It is made as small as possible and kept in ``build/fuzz``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

sys.path.insert(1, str(Path(__file__).parents[1]))
from tests.fuzz.formats import FORMATS, Format, prepare

SLOW = 2.0
"""Seconds of a processor, which other work on the machine does not change; a load that waits may take `WAITS` times as
many by the clock."""
WAITS = 60
MEMORY = 2**29
JOB = 1000
"""Changes of one process: a crash costs no more than these."""
SHRINKING = 20.0
"""Seconds in which a find is made small."""
FOUND = Path("build/fuzz")
PREFIX = "fuzz-"
"""The folders of the files begin with it."""


# ---- changes ----

NUMBERS = (
    0,
    1,
    2,
    3,
    0x7F,
    0x80,
    0xFF,
    2**15,
    2**16 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**53,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
TEXTS = (b"0", b"-1", b"1", b"1e999", b"nan", b"0.5", b"99999999999999999999", b"9223372036854775807", b"4294967296")

Draw = random.Random
Change = Callable[[Draw, bytes, bytes, tuple[bytes, ...]], bytes]


def _span(draw: Draw, size: int) -> tuple[int, int]:
    """Returns the ends of a part, which is rather short than long."""
    first = draw.randrange(size + 1)
    return first, min(size, first + int(2 ** draw.uniform(0, 12)))


def flip(draw: Draw, one: bytes, other: bytes, words: tuple[bytes, ...]) -> bytes:
    out = bytearray(one)
    for _ in range(draw.choice((1, 1, 2, 8))):
        out[draw.randrange(len(out))] ^= 1 << draw.randrange(8)
    return bytes(out)


def fill(draw: Draw, one: bytes, other: bytes, words: tuple[bytes, ...]) -> bytes:
    first, last = _span(draw, len(one))
    value = draw.choice((b"\0", b"\xff", b"0", b" ", b"\n", bytes([draw.randrange(256)])))
    return one[:first] + (draw.randbytes(last - first) if draw.random() < 0.3 else value * (last - first)) + one[last:]


def cut(draw: Draw, one: bytes, other: bytes, words: tuple[bytes, ...]) -> bytes:
    return one[: draw.randrange(len(one) + 1)]


def remove(draw: Draw, one: bytes, other: bytes, words: tuple[bytes, ...]) -> bytes:
    first, last = _span(draw, len(one))
    return one[:first] + one[last:]


def repeat(draw: Draw, one: bytes, other: bytes, words: tuple[bytes, ...]) -> bytes:
    first, last = _span(draw, len(one))
    at = draw.choice((first, draw.randrange(len(one) + 1)))
    return one[:at] + one[first:last] * draw.choice((1, 1, 2, 30)) + one[at:]


def splice(draw: Draw, one: bytes, other: bytes, words: tuple[bytes, ...]) -> bytes:
    first, last = _span(draw, len(other))
    at = draw.choice((min(first, len(one)), draw.randrange(len(one) + 1)))
    return one[:at] + other[first:last] + one[draw.choice((at, min(len(one), at + last - first))) :]


def number(draw: Draw, one: bytes, other: bytes, words: tuple[bytes, ...]) -> bytes:
    """Writes another number for one in the text."""
    found = list(re.finditer(rb"-?\d+(\.\d+)?", one[:20_000]))
    if not found:
        return binary(draw, one, other, words)
    place = draw.choice(found)
    value = draw.choice((*TEXTS, b"%d" % (int(place[0].partition(b".")[0][:9]) + draw.choice((-1, 1)))))
    return one[: place.start()] + value + one[place.end() :]


def binary(draw: Draw, one: bytes, other: bytes, words: tuple[bytes, ...]) -> bytes:
    """Writes an integer of 1 to 8 bytes."""
    size = draw.choice((1, 2, 4, 8))
    at = draw.choice((draw.randrange(len(one) + 1), draw.randrange(min(len(one), 64) + 1)))
    value = draw.choice(NUMBERS) % 2 ** (8 * size)
    return one[:at] + value.to_bytes(size, draw.choice(("little", "big"))) + one[at + size :]


def nest(draw: Draw, one: bytes, other: bytes, words: tuple[bytes, ...]) -> bytes:
    begin, end = draw.choice(((b"[", b"]"), (b"{", b"}"), (b"(", b")"), (b'{"a":', b"}"), (b"(", b"t"), (b"a.", b"")))
    depth, at = draw.choice((2, 40, 990, 2000)), draw.randrange(len(one) + 1)
    after = draw.choice((at, min(len(one), at + 1)))
    return one[:at] + begin * depth + one[at:after] + end * draw.choice((depth, 0)) + one[after:]


def lines(draw: Draw, one: bytes, other: bytes, words: tuple[bytes, ...]) -> bytes:
    rows = one.split(b"\n")
    i, j = draw.randrange(len(rows)), draw.randrange(len(rows))
    kind = draw.randrange(3)
    if kind == 0:
        rows[i], rows[j] = rows[j], rows[i]
    elif kind == 1:
        rows.insert(i, rows[j])
    else:
        del rows[i]
    return b"\n".join(rows)


def word(draw: Draw, one: bytes, other: bytes, words: tuple[bytes, ...]) -> bytes:
    """Inserts a word of the format, or writes it over what is there, or for a value in the text."""
    if not words:
        return binary(draw, one, other, words)
    value = draw.choice(words)
    values = list(re.finditer(rb"(?<=[:=] )[^,\n}]+|(?<=:)[^,\n}]+", one[:20_000])) if draw.random() < 0.5 else []
    if values:
        place = draw.choice(values)
        return one[: place.start()] + value + one[place.end() :]
    at = draw.randrange(len(one) + 1)
    return one[:at] + value + one[at + draw.choice((0, len(value))) :]


CHANGES: tuple[Change, ...] = (
    *(flip, flip, fill, cut, remove, repeat, splice, number, number, binary, binary, nest, lines, word, word),
)
LARGEST = 2**20


def changed(form: Format, contents: list[bytes], seed: int, i: int) -> bytes:
    """Returns change number i of a format."""
    draw = random.Random(f"{form.name} {seed} {i}")
    one, other = draw.choice(contents), draw.choice(contents)
    inside = form.open is not None and draw.random() < 0.7
    if form.open is not None and inside:
        one, other = form.open(one), form.open(other)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 5))):
        if one:
            one = draw.choice(CHANGES)(draw, one, other, form.words)
    one = one[:LARGEST]
    return form.close(one) if inside else one


# ---- loading ----


class Find(NamedTuple):
    """What a file did that no file may do."""

    kind: str
    """Two files with the same kind are taken for the same find."""
    details: str


class TooSlow(BaseException):
    pass


def _too_slow(signal_number: int, frame: FrameType | None) -> None:
    raise TooSlow


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Within the block the process has at most `MEMORY` bytes more than now, and `judge` can interrupt a load."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) if sys.platform == "linux" else None
    before = resource.getrlimit(resource.RLIMIT_AS)
    if pages is not None:
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, before[1]))
    old = {number: signal.signal(number, _too_slow) for number in (signal.SIGPROF, signal.SIGALRM)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def judge(form: Format, target: Path, content: bytes) -> Find | None:
    """Loads a file with this content. Returns what is wrong with the outcome, or None."""
    root = next(one for one in target.parents if one.name.startswith(PREFIX))
    target.write_bytes(content)
    signal.setitimer(signal.ITIMER_PROF, SLOW)
    signal.setitimer(signal.ITIMER_REAL, WAITS * SLOW)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            form.load(target)
    except TooSlow:
        return Find("slow", f"took more than {SLOW} s\n{traceback.format_exc()}")
    except form.errors as error:
        chain, inner = [], error
        while inner is not None:
            chain.append(type(inner))
            inner = inner.__cause__ or inner.__context__
        if MemoryError in chain or "Unable to allocate" in str(error):
            return Find("memory", f"more than {MEMORY} bytes\n{traceback.format_exc()}")
        if str(root) not in str(error):
            return Find(f"unnamed {_place(error)}", f"the message names no file in {root}\n{traceback.format_exc()}")
    except BaseException as error:
        return Find(f"{type(error).__name__} {_place(error)}", traceback.format_exc())
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
    return None


def _place(error: BaseException) -> str:
    """Returns file and line of rotrnn in which an error was raised."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if "rotrnn" in one.filename] or [
        *traceback.extract_tb(error.__traceback__)
    ]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"


def shrunk(form: Format, target: Path, content: bytes, find: Find) -> bytes:
    """Returns the content without most of what the find does not need."""
    end, size = time.monotonic() + SHRINKING, max(1, len(content) // 2)
    while size:
        at = 0
        while at < len(content) and time.monotonic() < end:
            shorter = content[:at] + content[at + size :]
            again = judge(form, target, shorter)
            if again is not None and again.kind == find.kind:
                content = shorter
            else:
                at += size
        size //= 2
    return content


@contextlib.contextmanager
def folder_of(form: Format) -> Iterator[tuple[Path, list[bytes]]]:
    """Makes the files of a format in a temporary folder, in memory if there is such a file system."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{form.name}-", dir=memory)).resolve()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield form.make(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def work(name: str, seed: int, first: int, last: int, at: Any, finds: Any) -> None:
    """Tries changes first .. last-1 of a format; `at` tells the one that is being tried."""
    form, seen = FORMATS[name], set[str]()
    with folder_of(form) as (target, contents), limited():
        for content in contents:
            if (find := judge(form, target, content)) is not None:
                finds.put((name, seed, -1, find, content, content))
        for i in range(first, last):
            at.value = i
            content = changed(form, contents, seed, i)
            find = judge(form, target, content)
            if find is not None and find.kind == "slow":  # the machine may have been busy
                find = judge(form, target, content)
            if find is not None and find.kind not in seen:
                seen.add(find.kind)
                small = content if find.kind == "slow" else shrunk(form, target, content, find)
                finds.put((name, seed, i, find, content, small))
    at.value = last


# ---- the processes ----


def fuzz(names: list[str], count: int, seed: int, processes: int, say: Callable[[str], None] = print) -> int:
    """Tries `count` changes of each format. Returns the number of different finds."""
    fork = multiprocessing.get_context("fork")
    prepare()
    finds = fork.Manager().Queue()
    todo = [(name, first, min(first + JOB, count)) for name in names for first in range(0, count, JOB)]
    left = {name: sum(one[0] == name for one in todo) for name in names}
    spent, kinds = dict.fromkeys(names, 0.0), dict[str, set[str]]()
    running: list[tuple[Any, Any, tuple[str, int, int], float]] = []
    while todo or running:
        while todo and len(running) < processes:
            job, at = todo.pop(0), fork.Value("q", -1)
            process = fork.Process(target=work, args=(job[0], seed, job[1], job[2], at, finds))
            process.start()
            running.append((process, at, job, time.monotonic()))
        time.sleep(0.01)
        for one in [one for one in running if not one[0].is_alive()]:
            running.remove(one)
            process, at, (name, _, last), began = one
            spent[name] += time.monotonic() - began
            left[name] -= 1
            if at.value != last:
                finds.put((name, seed, at.value, Find("crash", f"exit code {process.exitcode}"), None, None))
                if 0 <= at.value < last - 1:
                    todo.insert(0, (name, at.value + 1, last))
                    left[name] += 1
            while not finds.empty():
                where, _, i, find, content, small = finds.get()
                if find.kind not in kinds.setdefault(where, set()):
                    kinds[where].add(find.kind)
                    _report(FORMATS[where], seed, i, find, content, small, say)
            if not left[name]:
                found = len(kinds.get(name, ()))
                say(f"{name:20s} {count:8d} files {spent[name]:8.1f} s {count / spent[name]:7.0f} /s {found:3d} finds")
    return sum(map(len, kinds.values()))


def _report(
    form: Format, seed: int, i: int, find: Find, content: bytes | None, small: bytes | None, say: Callable[[str], None]
) -> None:
    if content is None:
        with folder_of(form) as (_, contents):
            content = small = changed(form, contents, seed, i)
    FOUND.mkdir(parents=True, exist_ok=True)
    path = FOUND / f"{form.name}-{seed}-{i}"
    path.write_bytes(content)
    path.with_suffix(".small").write_bytes(small or b"")
    again = f"python -m tests.fuzz.files --format {form.name} --seed {seed} --only {i}"
    say(f"\n{form.name}: {find.kind}: {path}, made small {len(small or b'')} bytes: {(small or b'')[:300]!r}")
    say(f"{find.details.rstrip()}\nagain: {again}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000, help="changed files of each format (10000)")
    parser.add_argument("--format", action="append", choices=FORMATS, help="only these; may be repeated")
    parser.add_argument("--seed", type=int, default=None, help="the same seed makes the same files (the time)")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", type=int, help="only this change, in this process, to look at a find")
    args = parser.parse_args()
    seed = int(time.time()) if args.seed is None else args.seed
    names = args.format or list(FORMATS)
    print(f"seed {seed}, {args.count} files of each of {len(names)} formats", flush=True)
    if args.only is not None:
        with folder_of(FORMATS[names[0]]) as (target, contents), limited():
            find = judge(FORMATS[names[0]], target, changed(FORMATS[names[0]], contents, seed, args.only))
        print("nothing" if find is None else f"{find.kind}\n{find.details}")
        return find is not None
    return fuzz(names, args.count, seed, args.processes, lambda text: print(text, flush=True)) > 0


if __name__ == "__main__":
    sys.exit(main())
