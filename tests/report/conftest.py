"""Runs that several tests of the report look at, and a browser to open pages in."""

import shutil

import pytest

import rbi
from rbi.data.formats import FormatSettings, TableConfig
from tests.report.pages import decisions_log, episodes_log


@pytest.fixture(scope="session")
def decided(tmp_path_factory):
    """A run of rbi.improve on logged decisions with named columns."""
    folder = tmp_path_factory.mktemp("decisions")
    table = TableConfig(action="offer", reward="paid", observations=("age", "device"), one_step=True)
    log, out = decisions_log(folder / "log.csv"), folder / "run"
    rbi.improve(log, settings=FormatSettings(table=table), updates=5, out=out, progress=False)
    return out


@pytest.fixture(scope="session")
def improved(tmp_path_factory):
    """A run of rbi.improve on episodes of vectors."""
    folder = tmp_path_factory.mktemp("episodes")
    log = episodes_log(folder / "log.csv")
    rbi.improve(log, updates=5, holdout_fraction=0.5, out=folder / "run", progress=False)
    return folder / "run"


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
