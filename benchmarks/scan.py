"""Time of the diagonal scan beside a plain copy of the same number of bytes.

    python -m benchmarks.scan [--json] [--quick]

Forward reads x and writes h, as a copy does; backward reads dh and h and writes dx, and is compared with 3/2 copies.
The complex scan works on the same bytes as N/2 complex lanes, which is also the rotation scan. All are minima over
windows of seconds in which they take turns with the copy.
"""

from __future__ import annotations

import numpy as np

from benchmarks.measure import arguments, plain_copy, row, seconds_in_turn, show
from rotrnn.ops.scan import diagonal_scan, diagonal_scan_backward


def main() -> None:
    args = arguments(__doc__).parse_args()
    B, T, N = (4, 256, 256) if args.quick else (32, 2048, 256)
    window = 0.2 if args.quick else 4.0

    rng = np.random.default_rng(0)
    x, dh = rng.standard_normal((2, B, T, N), dtype=np.float32)
    h, out = np.empty_like(x), np.empty_like(x)
    a = rng.uniform(0.9, 0.999, N).astype(np.float32)
    z = (rng.uniform(0.9, 0.999, N // 2) * np.exp(1j * rng.uniform(0, np.pi, N // 2))).astype(np.complex64)
    zx, zdh, zh, zout = (array.view(np.complex64) for array in (x, dh, h, out))
    forward, backward = plain_copy(h, x), plain_copy(out, dh)  # the same arrays, because their addresses matter
    scans = {
        "real forward": (2, lambda: diagonal_scan(a, x, out=h), forward),
        "real backward": (3, lambda: diagonal_scan_backward(dh, a, h, out=out), backward),
        "complex forward": (2, lambda: diagonal_scan(z, zx, out=zh), forward),
        "complex backward": (3, lambda: diagonal_scan_backward(zdh, z, zh, out=zout), backward),
    }
    rows = []
    for name, (passes, scan, copy) in scans.items():
        scan_s, copy_s = seconds_in_turn([scan, copy], window=window)
        rate = {"GB/s": passes * x.nbytes / scan_s / 1e9}
        limit = "plain copy" if passes == 2 else "3/2 plain copies"
        rows.append(row(f"scan {name}", scan_s, copy_s * passes / 2, limit=limit, **rate, B=B, T=T, N=N))
    show(rows, args.json)


if __name__ == "__main__":
    main()
