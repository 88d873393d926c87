"""A published Mamba that reads a prompt and writes tokens, beside transformers' MambaForCausalLM with the same weights.

    build/hub/bin/python -m benchmarks.generate [--json] [--quick]

The model has the sizes of mamba-130m, with 4 of its 24 layers since torch.compile takes minutes for all of them, and
random weights: width 768, 16 states a channel, a vocabulary of 50280, float32. transformers writes it in the published
layout, and `rotrnn.from_pretrained` reads it. One sequence on the CPU, by one thread and by two, all in one run, each
function in turn with its limit. The limit is the faster of transformers' model as it is and compiled by torch.compile
(--quick: by its backend that compiles nothing), with its cache and in inference mode:

- a prompt of 128 tokens and the logits of its last one: `stream.push(prompt, last=True)`, by both engines of a stream,
  beside a forward with these logits alone
- a token after the prompt, the most probable one each time: beside a step with the cache
- `model.generate` of the prompt and 32 tokens, with the making of the stream, beside the same with that cache.

The logits of both are compared with each other and with transformers' model in float64, whose tokens both read.
The bound on the difference, relative to the largest logit, is a rounding for each product of a sum between a token and
its logits, and for each step of the recurrences.

Without --quick, writes benchmarks/results/generate.json and the table of docs/models.md. Packages: `make test-hub`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import MambaConfig, MambaForCausalLM

import rotrnn
from benchmarks.measure import (
    RESULTS,
    ROOT,
    arguments,
    markdown,
    origin,
    row,
    rows_of_child,
    seconds_in_turn,
    show,
    version,
)
from benchmarks.record import record
from benchmarks.report import refresh
from rotrnn._support.text import plural

Logits = np.ndarray[Any, Any]


class Size(NamedTuple):
    """Sizes of a model and of its prompt, and the number of tokens that it writes."""

    D: int
    states: int
    layers: int
    vocab: int
    T: int
    tokens: int


PUBLISHED = Size(768, 16, 4, 50280, 128, 32)
QUICK = Size(16, 4, 2, 50, 12, 4)
THREADS = (1, 2)


class Theirs:
    """The model of transformers, as it is or compiled, with its cache."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.cache: Any = None

    def read(self, ids: Any, last: int = 1) -> Any:
        """Begins anew. Returns the logits of the last tokens of a prompt; 0 for all."""
        found = self.model(ids, use_cache=True, logits_to_keep=last)
        self.cache = found.cache_params
        return found.logits

    def step(self, token: Any) -> Any:
        """Returns the logits (1, V) after one more token."""
        return self.model(token, cache_params=self.cache, use_cache=True).logits[:, -1]

    def write(self, ids: Any, count: int) -> list[int]:
        """Returns the most probable tokens behind a prompt."""
        found = [self.read(ids)[:, -1].argmax(1, keepdim=True)]
        while len(found) < count:
            found.append(self.step(found[-1]).argmax(1, keepdim=True))
        return torch.cat(found, 1)[0].tolist()


def published(size: Size) -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": size.vocab, "hidden_size": size.D, "state_size": size.states}
    return MambaForCausalLM(MambaConfig(**sizes, num_hidden_layers=size.layers)).eval()


def imported(model: Any) -> tuple[Any, Any]:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return rotrnn.from_pretrained(folder)


def greedy(stream: Any) -> Callable[[], None]:
    """The next token, the most probable one."""
    token = np.zeros(1, np.int64)

    def step() -> None:
        token[:] = stream.push(token).argmax(1)

    return step


def written(theirs: Theirs) -> Callable[[], None]:
    token = torch.zeros((1, 1), dtype=torch.int64)

    def step() -> None:
        token[:] = theirs.step(token).argmax(1, keepdim=True)

    return step


def seconds_of(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def errors(size: Size, theirs: Any, model: Any, params: Any, ids: Any) -> dict[str, float]:
    """Differences of the logits of prompt and tokens, and from float64, relative to the largest."""
    exact = Theirs(published_in_float64(theirs))
    tokens = torch.tensor([exact.write(ids, size.tokens)])
    whole = torch.cat([ids, tokens], 1)

    def by(one: Theirs) -> Logits:
        return torch.cat([one.read(ids, 0), *(one.step(t)[:, None] for t in tokens.split(1, 1))], 1).double().numpy()

    stream = model.stream(params)
    ours = np.concatenate([stream.push(ids.numpy()), *(stream.push(t)[:, None] for t in tokens.numpy().T)], 1)
    right, their = exact.read(whole, 0).numpy(), by(Theirs(theirs))
    largest = np.abs(right).max()
    found = {
        "difference": float(np.abs(ours - their).max() / largest),
        "error_bound": float(np.finfo(np.float32).eps) * ((6 * size.layers + 1) * size.D + size.layers * size.T),
        "our_error": float(np.abs(ours - right).max() / largest),
        "their_error": float(np.abs(their - right).max() / largest),
    }
    if found["difference"] > found["error_bound"]:
        raise SystemExit(f"logits differ: {found}")
    return found


def published_in_float64(model: Any) -> Any:
    """The same weights in float64, in which the layers of transformers compute except for calls of float()."""
    copy = MambaForCausalLM(model.config).eval()
    copy.load_state_dict(model.state_dict())
    return copy.double()


def rows(size: Size, threads: int, window: float, backend: str) -> Iterator[dict[str, Any]]:
    torch.set_num_threads(threads)
    their = published(size)
    model, params = imported(their)
    ids = torch.randint(size.vocab, (1, size.T))
    with torch.inference_mode():
        close = errors(size, their, model, params, ids)
        plain, compiled = Theirs(their), Theirs(torch.compile(their, dynamic=False, backend=backend))
        plain.read(ids)
        to_compile = seconds_of(lambda: compiled.write(ids, 2))
        streams = {engine: model.stream(params, engine=engine) for engine in ("c", "python")}
        to_make = seconds_of(lambda: model.stream(params))
        prompt = ids.numpy()
        reading = {name: partial(one.push, prompt, last=True) for name, one in streams.items()}
        stepping = {name: greedy(one) for name, one in streams.items()}
        writing = {"c": lambda: list(model.generate(params, prompt, size.tokens, temperature=0))}
        tasks: list[tuple[str, int, dict[str, Any], Callable[[Theirs], Any]]] = [
            ("prompt", size.T, reading, lambda one: partial(one.read, ids)),
            ("token", 1, stepping, written),
            ("generate", size.tokens, writing, lambda one: partial(one.write, ids, size.tokens)),
        ]
        for name, tokens, ours, peer in tasks:
            timed = [*ours.values(), peer(plain), peer(compiled)]
            *seconds, eager, fast = seconds_in_turn(timed, window=window)
            limit, what = min((eager, "transformers"), (fast, "transformers, compiled"))
            for engine, one in zip(ours, seconds, strict=True):
                rates = {"tokens/s": tokens / one, "limit_tokens/s": tokens / limit, "eager_seconds": eager}
                sizes = {"threads": threads, "path": engine, **size._asdict()}
                yield row(f"{name}, {plural(threads, 'thread')}", one, limit, limit=what, **rates, **sizes, **close)
        yield {**row("compiling transformers' model", to_compile), "threads": threads}
        yield {**row("making a stream in C", to_make), "threads": threads}


def table(results: dict[str, Any]) -> str:
    """Markdown: a line for each engine."""
    found = [one for one in results["rows"] if "ratio" in one]
    machine, first = results["machine"], found[0]
    about = f"width {first['D']}, {first['layers']} layers, a vocabulary of {first['vocab']}, one sequence, float32"
    where = f"{machine['cpu']}, {machine['simd']}; {about}; a prompt of {first['T']} tokens, {first['tokens']} written"
    with_ = f"transformers {results['versions']['transformers']}, PyTorch {results['versions']['torch']}"
    body = [
        [
            one["name"].split(",")[0],
            str(one["threads"]),
            one["path"],
            f"{one['tokens/s']:.0f}",
            f"{one['limit_tokens/s']:.0f} ({one['limit']})",
            f"{1 / one['ratio']:.2f}",
        ]
        for one in found
    ]
    head = ["", "threads", "engine", "tokens a second", "transformers", "ours / theirs"]
    ours, their = f"{first['our_error']:.1e}", f"{first['their_error']:.1e}"
    apart = f"Largest difference of logits, over the largest: {first['difference']:.1e}"
    rest = f"{apart}; from float64, ours {ours}, theirs {their}."
    return f"{where}; {with_}, commit {results['commit']}.\n\n{markdown(head, body)}\n\n{rest}"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--threads", type=int, choices=THREADS, help="in this process, by so many threads")
    args = parser.parse_args()
    if args.threads:
        size, window, backend = (QUICK, 0.05, "eager") if args.quick else (PUBLISHED, 6.0, "inductor")
        for one in rows(size, args.threads, window, backend):
            show([one], args.json)
        return
    came_from = origin()  # before the results make the tree dirty
    came_from["versions"]["transformers"] = version("transformers")
    found = []
    for threads in THREADS[: 1 if args.quick else None]:
        options = ["--json", f"--threads={threads}", *(["--quick"] if args.quick else [])]
        # PyTorch's threads wait as they do by default, for some time awake; the last function's threads are asleep then
        environment = {"OMP_NUM_THREADS": str(threads), "GOMP_SPINCOUNT": "300000"}
        for one in rows_of_child("benchmarks.generate", *options, **environment):
            found.append(one)
            show([one], args.json)
    if not args.quick:
        results = {"rows": found, **came_from}
        refresh(ROOT / "docs" / "models.md", table(record(RESULTS / "generate.json", results)))


if __name__ == "__main__":
    main()
