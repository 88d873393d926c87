"""Time of a residual block (batch norm, RotRNN, GELU, full GLU) beside its matrix products alone.

    python -m benchmarks.block [--json] [--quick]

The limit is the block's four products forward, twelve with backward, run by NumPy on whole matrices. The paths of the
block and the products are timed in turn.
"""

from __future__ import annotations

from benchmarks.measure import arguments, block_products, show
from benchmarks.model import LISTOPS, QUICK, beside_products, classifier


def main() -> None:
    args = arguments(__doc__).parse_args()
    size, window = (QUICK, 0.2) if args.quick else (LISTOPS, 16.0)
    block = classifier(size).stack.blocks[0]
    show(beside_products("block", block, block_products(size.D, size.N), size, window), args.json)


if __name__ == "__main__":
    main()
