"""The tables, caveats and panels of `rbi improve` say what its result says."""

import copy
import dataclasses

import pytest

from rbi import runs
from rbi.report import improve
from rbi.report.panels import Table, line_of, page_values, sentence
from rbi.report.run_panels import improve_panels


@pytest.fixture
def run(improved):
    """A run whose result the test may change."""
    found = runs.read(improved)
    return dataclasses.replace(found, result=copy.deepcopy(found.result))


def says(run, words):
    return any(words in line for line in improve.closing(run))


def cells(table):
    return {row[0]: row[1] for row in Table.of(table).rows}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda found: found["diagnostics"].update(log_likelihood_of_frequencies=0.0), "no better than action freq"),
        (lambda found: found["test"].update(steps=99), "The test set has only 99 steps"),
        (lambda found: found.update(excluded=0.96), "Q learned from 4.0% of the training steps"),
        (lambda found: found["diagnostics"].update(q_explained_variance=-0.1), "Q does not explain the test returns"),
        (lambda found: found["diagnostics"].update(outside_range=0.25), "25.0% of the test states are far outside"),
        (lambda found: found.update(separate_test_set=False), "served for validation and testing"),
        (lambda found: found.update(decision={"refused": "too few"}), "No decision: too few."),
        (lambda found: found["changes"]["overall"]["observed_gain"].update(interval=None), "too few for an interval"),
        (lambda found: found.update(rule="tv(0.2)"), "limits the damage of a step to 20.0%"),
        (lambda found: found.update(rule="reroute(0.5,3)"), "the total variation of a state is at most 40.0%"),
        (lambda found: found.update(rule="greedy"), "greedy does not bound the distance to beta"),
    ],
)
def test_a_caveat_is_said_where_it_holds_and_nowhere_else(run, change, words):
    harmless = {"log_likelihood_of_frequencies": -9.0, "q_explained_variance": 0.5, "outside_range": 0.0}
    run.result["diagnostics"].update(harmless)
    run.result["test"]["steps"] = 100
    run.result["changes"]["overall"]["observed_gain"]["interval"] = [-1.0, 1.0]
    assert not says(run, words)
    change(run.result)
    assert says(run, words)


def test_diagnostics_say_what_was_excluded_and_whether_beta_was_calibrated(run):
    run.result.update(excluded=0.0, calibrated=True, temperature=1.25)
    shown = cells(improve.diagnostics_table(run.result))
    assert shown["beta: temperature"] == "1.250"
    assert "excluded from Q" not in shown
    run.result.update(excluded=0.125, calibrated=False)
    shown = cells(improve.diagnostics_table(run.result))
    assert shown["beta: temperature"].endswith("too few for calibration")
    assert shown["excluded from Q"].startswith("12.5% of the training steps")


def test_intervals_are_shown_from_low_to_high(run):
    run.result["changes"]["overall"]["observed_gain"] = {"mean": 0.5, "interval": [-0.25, 1.25]}
    assert cells(improve.change_table(run.result))["gain per step, by test returns"] == "+0.5 (-0.25 to +1.25)"


def test_features_are_low_up_to_a_number_or_a_date_and_high_from_another(run):
    run.result["spec"] |= {
        "obs_shape": [4],
        "features": [{"name": "country", "categories": ["", "DE"]}, {"name": "when", "is_date": True}, {"name": "age"}],
    }
    changes = {"total_variation_low": 0.1, "total_variation_high": 0.2}
    when = {"feature": 2, "name": "when", "low": 20_000.25, "high": 20_100.5}
    age = {"feature": 3, "name": "age", "low": 34.0, "high": 63.5}
    run.result["changes"]["features"] = [when | changes, age | changes]
    shown = Table.of(improve.feature_table(run.result)).rows
    assert [(row[1], row[3]) for row in shown] == [("2024-10-04", "2025-01-12"), ("34", "63.5")]
    panel = next(panel for panel in improve_panels(run)[1] if getattr(panel, "title", "") == "What changes, by feature")
    assert [row.text for row in panel.rows] == ["low ≤ 2024-10-04, high ≥ 2025-01-12", "low ≤ 34, high ≥ 63.5"]


def many_actions(found, count=24):
    """`count` actions: the probability of the last one falls most, and of the others the higher rise more."""
    rows = [{"action": a, "taken": 0.1, "beta": 0.2, "pi": 0.2 + a / 1000, "change": a / 1000} for a in range(count)]
    rows[-1] |= {"pi": 0.0, "change": -0.2}
    found["changes"]["actions"] = [row | {"increased": 0.5, "decreased": 0.25} for row in rows]
    found["spec"] |= {"num_actions": count, "action_names": [f"offer {a}" for a in range(count)]}


def test_of_many_actions_those_that_change_most_are_shown_up_or_down(run):
    many_actions(run.result)
    shown = Table.of(improve.action_table(run.result))
    assert [row[0] for row in shown.rows] == [f"offer {a}" for a in (*range(22, 3, -1), 23)]
    assert shown.rows[-1] == ["offer 23", "10.0%", "20.0%", "0.0%", "-20.0%", "50.0%", "25.0%"]
    assert shown.numeric == [True] * 7
    assert shown.note == "The 20 that change most of 24"
    (pairs,) = [panel for panel in improve_panels(run)[1] if panel.kind == "pairs"]
    assert "4 actions that change less are left out" in pairs.note
    assert (pairs.rows[-1].label, pairs.rows[-1].beta, pairs.rows[-1].pi) == ("offer 23", 0.2, 0.0)
    bars = improve.action_figure(run.result).axes[0].patches
    assert [bar.get_height() for bar in bars[20:]] == [row.pi for row in pairs.rows]


def test_the_number_of_steps_in_a_state_is_shown_where_states_are_repeated(run):
    first, *others = run.result["changes"]["largest"]
    first["count"] = 1234
    table = Table.of(improve.largest_table(run.result))
    assert table.rows[0][table.columns.index("steps in this state")] == "1,234"
    assert len(table.rows) == 1 + len(others)


def test_features_show_the_change_for_high_values_as_the_dot_of_a_bar_from_low_to_high(run):
    numbers = {"low": 1.0, "high": 2.0, "total_variation_low": 0.3, "total_variation_high": 0.1}
    run.result["changes"]["features"] = [{"feature": 0, "name": "age", **numbers}]
    (panel,) = [panel for panel in improve_panels(run)[1] if getattr(panel, "title", "").endswith("by feature")]
    (row,) = panel.rows
    assert (row.label, row.value, row.low, row.high) == ("age", 0.1, 0.1, 0.3)


def test_what_the_verdict_says_is_not_said_again(run):
    _, panels = improve_panels(run)
    (verdict,) = [panel for panel in panels if panel.kind == "verdict"]
    assert verdict.reasons
    assert not {verdict.headline, *verdict.reasons} & set(panels[-1].lines)


def test_panels_hold_numbers_that_a_chart_can_draw():
    line = line_of("a", [1, 2, 3], [1.0, float("nan"), None], [0.0, 1.0, 2.0], [float("inf"), 3.0, 4.0])
    assert (line.y, line.low, line.high) == ([1.0, None, None], [0.0, 1.0, 2.0], [None, 3.0, 4.0])
    assert page_values({"a": [1234567.0, 0.12345678]}) == {"a": [1234570.0, 0.123457]}


@pytest.mark.parametrize(
    ("text", "shown"),
    [("actions: all", "Actions: all"), ("beta and Q", "beta and Q"), ("reroute(0.5,1.5)", "reroute(0.5,1.5)")],
)
def test_titles_begin_with_a_capital_unless_that_is_a_name(text, shown):
    assert sentence(text) == shown
