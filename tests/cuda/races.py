"""Runs every CUDA kernel in the harness, at one shape; tests/c/races.py builds it with the thread sanitizer.

python tests/cuda/races.py             # must be clean
python tests/cuda/races.py barriers    # barriers order nothing: races must be found
"""

from __future__ import annotations

import os
import sys

from cases import ON_DEVICES
from cases.device import check_case
from cuda_harness import few, on_harness

if sys.argv[1:] == ["barriers"]:
    os.environ["ROT_HOST_UNORDERED"] = "1"

rows = few(ON_DEVICES, 1)
for case in rows:
    check_case(case, on_harness())
print(f"{len(rows)} rows of the table of cases")
