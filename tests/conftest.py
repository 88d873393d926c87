"""Settings of all tests."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest

# No deadline: a machine with other work stalls for seconds. The same examples in every run, so that no change fails by
# an example of chance; `make stable` takes others, by a seed that it prints
for name, derandomize in (("gate", True), ("chance", False)):
    hypothesis.settings.register_profile(
        name, deadline=None, derandomize=derandomize, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
hypothesis.settings.load_profile("gate")

collect_ignore = ["pytorch", "with_pandas"]
"""Run by ``make test-torch`` and ``make test-data``, where PyTorch and pandas are."""


@pytest.fixture(autouse=True)
def _generators_begin_again(request: pytest.FixtureRequest) -> None:
    """A test that draws from a generator of its module gets the same numbers in any order of tests."""
    own = vars(request.module)
    if "generators_at_import" not in own:
        generators = [one for one in own.values() if isinstance(one, np.random.Generator)]
        own["generators_at_import"] = [(one, one.bit_generator.state) for one in generators]
    for generator, state in own["generators_at_import"]:
        generator.bit_generator.state = state


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests on the harness as slow: the CUDA kernels are compiled for it first."""
    for item in items:
        if item.path.stem.endswith("_on_harness"):
            item.add_marker("slow")
