"""Settings for all tests: Hypothesis profiles, threads, and skipping of tests without their hardware.

Hypothesis is derandomised by default, so that every run tests the same examples. HYPOTHESIS_PROFILE=fuzz draws fresh
examples, and many more of them; a failure prints how to reproduce it.
"""

import os

import jax
import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)  # pytest-xdist already uses every core
jax.config.update("jax_enable_x64", True)  # so that float64 arrays stay float64 in JAX too
settings.register_profile("derandomized", deadline=None, max_examples=60, derandomize=True)
settings.register_profile("fuzz", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "derandomized"))


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))
