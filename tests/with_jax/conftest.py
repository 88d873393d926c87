"""These tests need JAX: `make test-jax` runs them, in a virtual environment of their own; `make test` collects none."""

from __future__ import annotations

import os
from importlib.util import find_spec

collect_ignore_glob = ["test_*.py"] if find_spec("jax") is None else []

# before JAX is imported: sharding is refused on two devices
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
