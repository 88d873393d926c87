"""Time and memory of a whole training step beside its matrix products alone.

    python -m benchmarks.train_step [--path fused] [--large] [--json] [--quick]

One step is forward, backward and AdamW of the classifier of recipe listops-rotrnn (D 128, N 256, 6 layers) on B 32
sequences of T 2048 random tokens; `--large` is D 512, N 384, B 50, T 1024. Its limit is the twelve products of each
block, four forward and eight backward, run by NumPy on whole matrices. Activations are the process's peak memory during
a step minus its memory after a step of one token, in tensors of (B, T, D); so each path has its own process. Overhead
is that step of one token, which is all calls and no arithmetic.
"""

from __future__ import annotations

from benchmarks.measure import arguments, block_products, memory, products, row, seconds_in_turn, show
from benchmarks.model import LARGE, LISTOPS, PATHS, QUICK, training_step


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--path", choices=PATHS, default=next(iter(PATHS)))
    parser.add_argument("--large", action="store_true", help="D 512, N 384: minutes")
    args = parser.parse_args()
    size = QUICK if args.quick else LARGE if args.large else LISTOPS
    window = 0.1 if args.quick else 60.0 if args.large else 20.0
    ctx = PATHS[args.path]

    (overhead_s,) = seconds_in_turn([training_step(size._replace(B=1, T=1), ctx)], window=window / 20)
    step = training_step(size, ctx)
    held, _ = memory()
    step()
    step()
    _, peak = memory()
    multiply, flops = products(size.B * size.T, block_products(size.D, size.N), backward=True)

    def limit() -> None:
        for _ in range(size.n_layers):
            multiply()

    step_s, products_s = seconds_in_turn([step, limit], window=window)
    kind = {"path": args.path, **size._asdict()}
    rows = [
        row(
            "training step",
            step_s,
            products_s,
            limit="products alone",
            **{"GFLOP/s": 1e-9 * size.n_layers * flops / step_s},
            peak_bytes=peak,
            activations=(peak - held) / (4 * size.B * size.T * size.D),
            **kind,
        ),
        row("training step of one token", overhead_s, step_s, limit="whole step", **{**kind, "B": 1, "T": 1}),
    ]
    show(rows, args.json)


if __name__ == "__main__":
    main()
