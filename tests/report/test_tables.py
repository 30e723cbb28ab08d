"""Tables in a terminal of 80 columns: names and numbers are whole, and what does not fit is left out or wrapped."""

import io

import pytest

from rbi import cli, runs
from rbi.progress import PlainConsole
from rbi.report import bandit, improve, numbers_table, offline
from tests.report.pages import write_run


def shown(table, width=80):
    """The lines of a table as a terminal of this width shows them."""
    console = PlainConsole(width=width, file=io.StringIO())
    with console.capture() as found:
        console.print(table)
    lines = found.get().splitlines()
    assert max(map(len, lines)) <= width
    return lines


def words(lines):
    return {word for line in lines if "─" not in line for word in line.split()}


@pytest.mark.usefixtures("undrawn")
def test_rules_are_shown_with_their_names_and_numbers(tmp_path):
    cli.main(["rules", "--out", str(tmp_path / "run")])
    run = runs.read(tmp_path / "run")
    lines = shown(bandit.rules_table(run))
    assert words(lines) >= set(run.config["settings"]["rules"]) | {"improvement", "penalty", "0.50..1.50", "0.0341"}
    assert words(lines) == words(shown(bandit.rules_table(run), width=160))


def test_learning_curves_are_shown_at_all_powers_of_ten(tmp_path):
    rule, times, mean = "reroute(0.25,1.75)", [10, 100, 1000, 10_000], [0.125, 0.25, 0.375, 0.5]
    curve = {"stds": "1,10", "learning_rate": "0.01", "rule": rule, "times": times, "mean": mean}
    settings = {"means": [-1, 1], "repetitions": 1, "exploration": 0.1, "floor": 0.1, "initial_samples": 10}
    settings["rules"] = [rule]
    run = runs.read(write_run(tmp_path / "run", "bandit-learn", settings=settings, result={"curves": [curve]}))
    assert {"t=10,000", rule, "+0.125", "+0.250", "+0.375", "+0.500"} <= words(shown(bandit.learning_table(run)))


def test_scores_leave_out_quartiles_and_median_before_a_policy_is_cut_off(tmp_path):
    scores = {"mean": 412.5, "interval": [412.5, 412.5], "iqm": 412.5, "median": 412.5, "quartiles": [412.5, 412.5]}
    names = ["behavior", "reroute(0.25,1.75)", "forward_kl(radius=0.125)"]
    compared = {"below": 0.0, "verdict": "not below"}
    result = {
        "env": "CartPole-v1", "updates": 10, "validation": [{}], "protocol": "", "population": scores,
        "rows": [{"name": name} | scores | compared for name in names],
    }  # fmt: skip
    table = offline.score_table(runs.read(write_run(tmp_path / "run", "offline", result=result)))
    narrow = words(shown(table))
    assert {*names[1:], "IQM", "P(below)", "verdict"} <= narrow
    assert not {"quartiles", "median"} & narrow
    assert {"quartiles", "median"} <= words(shown(table, width=120))


def test_no_more_columns_are_left_out_than_necessary():
    table = numbers_table(None, ("name", "one", "two"), texts=("name",), optional=("one", "two"))
    table.add_row("x" * 60, "1" * 10, "2" * 10)
    assert words(shown(table)) >= {"x" * 60, "two", "2" * 10}
    assert "one" not in words(shown(table))


def test_changes_of_probabilities_stay_on_one_line_each(improved):
    found = runs.read(improved).finished()
    actions = [{"action": n, "beta": 0.25, "pi": 0.5} for n in range(2)]
    row = found["changes"]["largest"][0] | {"source": "decisions.csv", "line": 1234, "count": 7, "actions": actions}
    found["changes"] = found["changes"] | {"largest": [row]}
    for episodes, has_steps in ((found["steps"], False), (1, True)):
        lines = shown(improve.largest_table(found | {"episodes": episodes}))
        assert ("step" in words(lines[:5])) == has_steps
        assert any("decisions.csv, line 1234" in line for line in lines)
        assert sum("25.0% to 50.0%" in line for line in lines) == len(actions)


@pytest.mark.parametrize("command", ["train", "offline", "certify"])
def test_help_is_wrapped(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        cli.main([command, "--help-all"])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > 80 and not line.startswith(("example:", "  --"))] == []
