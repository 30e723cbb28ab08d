"""Settings for all tests: Hypothesis profiles, threads, skipping of tests without their hardware, a browser.

Hypothesis is derandomised by default, so that every run tests the same examples. HYPOTHESIS_PROFILE=fuzz draws fresh
examples, and many more of them; a failure prints how to reproduce it.
"""

import gc
import os
import shutil
import signal

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # pytest-xdist already uses every core; waiting threads of BLAS spin
# Outside of jax.jit, XLA compiles every operation alone for one use; optimising them, or splitting them among threads,
# takes longer than all the rest.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1")

import jax
import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
jax.config.update("jax_enable_x64", True)  # so that float64 arrays stay float64 in JAX too
settings.register_profile("derandomized", deadline=None, max_examples=60, derandomize=True)
settings.register_profile("fuzz", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "derandomized"))


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Nothing that modules and tests are made of is garbage: looking for it takes seconds, and again in each test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture
def undrawn(monkeypatch):
    """Figures are made but not drawn, half of the time of a short command: for tests about something else."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda _, file, **__: file.write(b"figure"))
    monkeypatch.setattr("matplotlib.figure.Figure.get_layout_engine", lambda _: None)


@pytest.fixture
def default_sighup():
    """SIGHUP as in a terminal: tests that run under `nohup` ignore it, and so would their processes."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="session")
def chromium():
    """The system's Chromium, without a window; tests skip where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )
    if path is None:
        pytest.skip("no Chromium on this machine (apt-get install chromium)")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()
