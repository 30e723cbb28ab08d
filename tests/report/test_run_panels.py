"""Panels of the report hold the numbers of their runs, in the stated units."""

import pytest

from rbi import runs
from rbi.report import offline
from rbi.report.run_panels import (
    decision_panels,
    duration,
    fits_by_seed,
    histogram,
    learning_curves,
    monitor_panels,
    offline_curve,
    offline_panels,
    offline_scores,
    reliability,
    spread_around,
)
from tests.report.pages import SETTINGS, training_run, write_run


@pytest.mark.parametrize(("env", "states", "scale"), [("ALE/Pong-v5", "frames", 4), ("CartPole-v1", "steps", 1)])
def test_atari_games_count_four_frames_a_state_and_hours_are_hours(tmp_path, env, states, scale):
    run = runs.read(training_run(tmp_path / "run", settings=SETTINGS | {"env": env}))
    axes = {axis.name: axis.lines[0].x for axis in learning_curves(env, {"RBI": [run]}).axes}
    assert axes[states] == [scale * line["states"] for line in run.metrics]
    assert axes["hours"] == [line["seconds"] / 3600 for line in run.metrics]


@pytest.mark.parametrize(
    ("seconds", "shown"), [(119.0, "119 s"), (120.0, "2 min"), (7199.0, "120 min"), (9000.0, "2.5 h")]
)
def test_durations_have_the_unit_that_people_would_use(seconds, shown):
    assert duration(seconds) == shown


def score_row(name, verdict=None, **numbers):
    found = {"name": name, "learner": "behavior_q", "mean": 2.0, "interval": [1.0, 3.0], "verdict": verdict}
    return found | {"iqm": 2.0, "median": 2.0, "quartiles": [1.0, 3.0], "below": None} | numbers


def offline_run(path, seed=7):
    """A run of `rbi offline` with two seeds, two evaluations and two rules."""
    scores = {name: [[0.0, 1.0], [2.0, 3.0, 4.0]] for name in ("behavior", "greedy", "tv(0.1)")}
    evaluated = [{"kind": "evaluated", "updates": n, "seconds": 3600 * n, "scores": scores} for n in (1, 2)]
    validated = [
        {
            "kind": "validated", "seed": s, "updates": 1, "train": {"q_rmse": 0.5 + s, "beta_loss": 0.25 * s},
            "validation": {"q_rmse": 1.5 + s, "log_likelihood_calibrated": -0.5 * s},
        }
        for s in (seed, seed + 1)
    ]  # fmt: skip
    compared = {"below": 0.5, "difference": 1.0, "difference_bounds": [-1.0, 2.0]}
    rows = [
        score_row("behavior"), score_row("greedy", "below", scores=[[1.0]] * 2, **compared),
        score_row("tv(0.1)", "not below", scores=[[1.0]] * 2, **compared),
    ]  # fmt: skip
    names = ("log_likelihood", "log_likelihood_calibrated", "log_likelihood_of_frequencies", "temperature", "accuracy")
    more = ("majority_accuracy", "q_rmse", "q_bias", "q_explained_variance")
    bins = {"predicted": [1.0, 2.0], "observed": [1.5, 2.5], "steps": [3, 3]}
    statistics = {"total_variation": 0.1, "expected_gain": 0.2}
    result = {
        "env": "CartPole-v1", "updates": 2, "seconds": 7200.0, "protocol": "p", "margin": 0.05, "rows": rows,
        "saved_policy": "tv(0.1)", "rule_statistics": [{row["name"]: statistics for row in rows}] * 2,
        "population": score_row("population") | {"all_episodes": 5, "excluded": 0.0},
        "validation": [dict.fromkeys((*names, *more), 0.5) | {"steps": 6, "reliability": bins}] * 2,
    }  # fmt: skip
    return runs.read(write_run(path, "offline", metrics=[*validated, *evaluated], result=result, seed=seed))


def test_offline_curves_are_medians_with_quartiles_over_the_episodes_of_all_seeds(tmp_path):
    run = offline_run(tmp_path / "run")
    updates, hours = offline_curve(run, "", ["greedy"], run.metrics[-2:]).axes
    (line,) = updates.lines
    assert (line.low[0], line.y[0], line.high[0]) == (1.0, 2.0, 3.0)
    assert (line.x, hours.lines[0].x) == ([1, 2], [1, 2])


def test_policies_below_are_bad_those_not_below_are_good_and_the_saved_one_is_strong(tmp_path):
    run = offline_run(tmp_path / "run")
    _, panels = offline_panels(run)
    (difference,) = [panel for panel in panels if panel.title == "Difference to the behaviour policy"]
    assert [(row.label, row.tone) for row in difference.rows] == [("greedy", "bad"), ("tv(0.1)", "good")]
    assert [row.tone for row in offline_scores(run).rows] == ["plain", "plain", "plain", "strong"]


def test_curves_of_seeds_have_their_names_and_training_is_thin(tmp_path):
    run = offline_run(tmp_path / "run")
    for panel, held, training in zip(fits_by_seed(run), (-4.0, 9.5), (-2.0, 8.5), strict=True):
        (axis,) = panel.axes
        assert [(line.label, line.y, line.thin) for line in axis.lines[2:]] == [
            ("seed 8", [held], False),
            ("seed 8, training", [training], True),
        ]
    (of_q,) = [panel for panel in offline_panels(run)[1] if panel.title == "Reliability of Q"]
    assert [line.label for line in of_q.axes[0].lines] == ["seed 7", "seed 8", "perfect"]


def test_advice_on_overfitting_follows_the_scores_and_is_said_once(tmp_path):
    run = offline_run(tmp_path / "run")
    run.finished()["overfitting"] = [{"network": "beta", "advice": "beta overfits"}]
    panels = offline_panels(run)[1]
    assert panels[1].lines == ["beta overfits"]
    assert "beta overfits" not in panels[-1].lines
    assert offline.closing(run)[0] == "beta overfits"


def test_a_perfect_q_is_the_diagonal_over_all_predictions_and_returns():
    *_, perfect = reliability({"Q": {"predicted": [-1.0, 2.0], "observed": [-3.0, 1.0]}}).axes[0].lines
    assert perfect.x == perfect.y == [-3.0, 2.0]


@pytest.mark.parametrize(("lower", "tone"), [(0.1, "good"), (0.0, "bad")])
def test_the_rule_that_decides_is_good_only_if_its_lower_bound_is_above_zero(lower, tone):
    rows = [
        {"rule": rule, "estimate": 1.0, "lower": bound, "upper": 2.0}
        for rule, bound in (("tv(0.1)", lower), ("greedy", -1.0), ("behavior", 0.0))
    ]
    decision = {"candidates": rows, "rule": "tv(0.1)", "tested": ["greedy"], "verdict": "keep", "headline": "h"}
    decision |= {"reasons": [], "assumptions": [], "confidence": 0.95, "episodes": 9, "status": "proved"}
    _, gains = decision_panels(decision)
    assert [(row.tone, row.text) for row in gains.rows] == [(tone, "decides"), ("plain", "tested"), ("plain", "")]
    assert "from 9 episodes, proved" in gains.note
    _, gains = decision_panels(decision | {"unit": "player", "evidence": {"players": 4}})
    assert "from 9 episodes of 4 players, each of whom counts once, proved" in gains.note


@pytest.mark.parametrize(
    ("unit", "stored"),
    [("episode", {"unit": "episode"}), ("player", {"unit": "player"}), ("episode", {})],  # earlier runs store none
)
def test_the_line_of_a_monitor_is_the_middle_of_its_band(unit, stored, tmp_path):
    history = [{f"{unit}s": n, "lower": -1.0, "upper": 2.0} for n in (10, 20)]
    result = {"history": history, "outcome": "continue", "episodes": 20, "players": 20, "summary": "s"}
    result |= {"confidence": 0.95} | stored
    _, (_, chart) = monitor_panels(runs.read(write_run(tmp_path / "run", "monitor", result=result)))
    (line,) = chart.axes[0].lines
    assert (line.x, line.y, line.low, line.high) == ([10, 20], [0.5, 0.5], [-1, -1], [2, 2])
    assert chart.axes[0].label == f"live {unit}s"


def test_bars_of_a_rule_are_two_standard_deviations_long():
    assert spread_around({"improvement": 1.0, "penalty_std": 0.25}) == (0.5, 1.5)


def test_a_histogram_rises_and_falls_at_the_edges_of_its_bins():
    found = {"edges": [0.0, 1.0, 3.0], "counts": [2, 5], "mean": 1.0, "quartiles": [0.0, 1.0, 2.0]}
    chart = histogram({"scores": found}, "scores", "Scores", "score")
    (line,) = chart.axes[0].lines
    assert (line.x, line.y) == ([0, 1, 1, 3], [2, 2, 5, 5])
    assert chart.y_range == pytest.approx((0, 5.3))
