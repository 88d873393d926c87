"""How the outputs of a layer grow along random words, beside the accuracy at such lengths.

    python -m benchmarks.growth RUN... [--json] [--quick]

RUN is the folder of a finished run of a word problem with one block of Bedouin. 64 random words go through it, with the
best parameters: the median over words of |y_t|, the length of the fixed point's vector, at products 4 to 100; and of
the run's own test, the share of words that are right up to a product. Writes benchmarks/results/growth.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fixed_points import layer_of, table
from benchmarks.measure import RESULTS, arguments, origin
from rotrnn.training.optimiser import RECURRENT
from rotrnn.training.run import Run

WORDS = 64
PRODUCTS = (4, 8, 16, 30, 50, 100)
RIGHT = (16, 30, 50, 100)


def row(run: Run) -> dict[str, Any]:
    """Settings of the run by which this page's runs differ, the lengths of y, and the shares of right words."""
    recipe = run.load_recipe()
    layer, params, x = layer_of(run, "best", max(PRODUCTS), WORDS)
    _, saved = layer.forward(params, x)
    sizes = np.median(np.linalg.norm(saved.iterate, axis=-1), axis=0)
    curve = run.read_json(run.result)["test"]["best"]["curve"]
    right = dict(zip(curve["length"], curve["sequence_accuracy"], strict=True))
    return {
        "gradient": recipe.layer.gradient,
        "feedback norm": recipe.layer.feedback_norm,
        "weight decay": recipe.optimiser.weight_decay,
        "of maps, too": RECURRENT not in recipe.optimiser.no_decay,
        "steps": recipe.training.steps,
        "seed": recipe.training.seed,
        **{f"length of y_{t}": f"{sizes[t - 1]:.3g}" for t in PRODUCTS},
        **{f"right at {t}, %": f"{100 * right[t]:.1f}" for t in RIGHT if t in right},
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folder of a run")
    args = parser.parse_args()
    rows = [row(Run(one)) for one in args.runs]
    for one in rows:
        print(json.dumps(one) if args.json else "  ".join(str(value) for value in one.values()))
    if not args.quick:
        text = f"`python -m benchmarks.growth RUN...`, {WORDS} words, commit {origin()['commit']}.\n\n{table(rows)}"
        (RESULTS / "growth.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
