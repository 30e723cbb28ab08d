"""Bad inputs end with exit status 2 and one line: no traceback, no hang, no episodes lost in silence.

`make test` tries one in sixty, the marker `slow` one in twenty, `python -m tests.faults.bad_inputs` all of them.
"""

from pathlib import Path

import pytest

from tests.faults.bad_inputs import all_cases, make_good_files, run_case

CASES = all_cases()


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A folder of good files of every format."""
    folder = tmp_path_factory.mktemp("good")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make_good_files()
    return folder


@pytest.mark.parametrize("case", [pytest.param(case, id=ascii(case.name)) for case in CASES[::60]])
def test_a_bad_input_is_refused_in_one_line_or_harmless(case, good):
    assert run_case(case, good) == ""


@pytest.mark.slow
def test_many_bad_inputs_are_refused_in_one_line_or_harmless(good):
    wrong = {case.name: found for case in CASES[1::20] if (found := run_case(case, Path(good)))}
    assert wrong == {}
