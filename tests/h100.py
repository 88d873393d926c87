"""What counts assume of a GPU (an H100), and the lengths of the LRU's recipes for Long Range Arena."""

BANDWIDTH = 3.0e12
"""Bytes a second that a copy reads and writes."""

RATES = {"float32": 60e12, "tf32": 400e12, "bf16": 790e12}
"""Flops a second of a library's products, by their precision."""

STEPS = {"scifar": 1024, "listops": 2048, "text": 4096, "retrieval": 4000, "pathfinder": 1024, "pathx": 16384}
"""Length of sequences, by recipe."""

RAGGED = ("listops", "text", "retrieval")
