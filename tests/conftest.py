"""Settings for all tests: Hypothesis without deadlines (times are for benchmarks), the same draws on every CI run."""

import os

import jax
import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)  # pytest-xdist already uses every core
jax.config.update("jax_enable_x64", True)  # so that float64 arrays stay float64 in JAX too
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, max_examples=60, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))
