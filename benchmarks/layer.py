"""Time of a RotRNN layer beside its matrix products alone.

    python -m benchmarks.layer [--json] [--quick]

The limit is the layer's two products forward, six with backward, run by NumPy on whole matrices. The paths of the
layer and the products are timed in turn.
"""

from __future__ import annotations

from benchmarks.measure import arguments, layer_products, show
from benchmarks.model import LISTOPS, QUICK, beside_products, classifier


def main() -> None:
    args = arguments(__doc__).parse_args()
    size, window = (QUICK, 0.2) if args.quick else (LISTOPS, 8.0)
    layer = classifier(size).stack.blocks[0].layer
    show(beside_products("layer", layer, layer_products(size.D, size.N), size, window), args.json)


if __name__ == "__main__":
    main()
