"""Runs that several tests of the report show."""

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
