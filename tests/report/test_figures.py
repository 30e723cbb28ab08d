"""Figures: at most eight coloured lines in a panel, named where they end."""

import io

import numpy as np
import pytest
from matplotlib.figure import Figure

from rbi import runs
from rbi.report import LINES, data, improve, name_ticks, offline, spi, spread, train
from tests.report.pages import SETTINGS, training_run, write_run


def study(algorithms):
    """A part of a study's result: the j-th algorithm has mean j, and CVaR -j."""
    columns = np.arange(len(algorithms), dtype=float)
    return {
        "algorithms": algorithms, "compared": algorithms[:2], "sizes": [10, 100], "baseline": 0.0, "repetitions": 5,
        "summary": {"mean": [columns.tolist()] * 2, "cvar": [(-columns).tolist()] * 2}, "title": "World",
        "quality_name": "eta", "quality": 0.9, "size_unit": "steps", "score_label": "score",
    }  # fmt: skip


def test_a_study_shows_ours_and_the_best_of_each_family_in_colour_and_the_rest_in_grey():
    part = study(["ours(1)", "ours_too(1)", *(f"peer{n}({k})" for n in range(8) for k in range(2))])
    shown = spi.highlighted(part)
    assert shown == [
        "ours(1)", "ours_too(1)", "peer7(1)", "peer0(0)", "peer6(1)", "peer1(0)", "peer5(1)", "peer2(0)",
    ]  # fmt: skip
    figure = spi.figure(part)
    for panel in figure.axes:
        named = [line.get_label() for line in panel.get_lines() if not line.get_label().startswith("_")]
        assert sorted(named) == sorted(shown)
        assert sorted(text.get_text() for text in panel.texts) == sorted(shown)
    assert len(shown) == len(LINES)


def test_seeds_of_one_algorithm_are_one_line_of_medians_with_quartiles_shaded(tmp_path):
    paths = [
        training_run(tmp_path / f"{algo}{seed}", np.array([1.0, 2.0]) * (seed + 1), settings=SETTINGS | {"algo": algo})
        for algo in ("rbi", "apex")
        for seed in range(5)
    ]
    (panel,) = train.learning_curves([runs.read(path) for path in paths]).axes
    assert [line.get_label() for line in panel.get_lines()] == ["RBI, 5 seeds", "Ape-X, 5 seeds"]
    assert panel.get_lines()[0].get_ydata()[-1] == pytest.approx(6.0)
    for band in panel.collections:
        heights = band.get_paths()[0].vertices[:, 1]
        assert (heights.min(), heights.max()) == pytest.approx((2.0, 8.0))  # 2 to 4 at first, 4 to 8 in the end
    assert panel.get_legend() is None


def test_offline_learning_curves_are_means_by_updates_with_the_quartiles_of_the_behaviour(tmp_path):
    rows = [{"name": "behavior", "learner": "behavior_q"}, {"name": "greedy", "learner": "behavior_q"},
            {"name": "DQfD", "learner": "dqfd"}]  # fmt: skip
    lines = [
        {"kind": "evaluated", "updates": 1000 * n,
         "scores": {"behavior": [[0.0, 4.0], [8.0, 12.0]], "greedy": [[n, n], [3.0 * n]], "DQfD": [[n], [0.0]]}}
        for n in (1, 2, 3)
    ]  # fmt: skip
    result = {"rows": rows, "population": {"mean": 5.0}}
    figure = offline.curves(runs.read(write_run(tmp_path / "run", "offline", metrics=lines, result=result)))
    drawn = [{line.get_label(): line.get_ydata() for line in panel.get_lines()} for panel in figure.axes]
    assert drawn[0]["greedy"].tolist() == [2, 4, 6]  # each seed weighs the same
    assert drawn[1]["DQfD"].tolist() == [0.5, 1, 1.5]
    for panel, lines_by_name in zip(figure.axes, drawn, strict=True):
        assert lines_by_name["behaviour policy (cloned)"].tolist() == [6, 6, 6]
        shaded = panel.collections[0].get_paths()[0].vertices
        assert (shaded[:, 1].min(), shaded[:, 1].max()) == (3, 9)
        assert (shaded[:, 0].min(), shaded[:, 0].max()) == (1, 3)


def test_the_offline_table_has_the_papers_score_of_each_row_beside_ours(tmp_path):
    scores = {"mean": 1.0, "interval": [0.0, 2.0], "median": 1.0, "quartiles": [0.0, 2.0]}
    names = ["behavior", "reroute(0.5,1.5)", "greedy", "ppo(0.5) by ascent", "DQfD"]
    result = {
        "env": "ALE/Qbert-v5", "updates": 10, "validation": [{}], "protocol": "", "population": scores,
        "rows": [{"name": name} | scores for name in names],
    }  # fmt: skip
    table = offline.score_table(runs.read(write_run(tmp_path / "run", "offline", result=result)))
    assert table.columns[-1].header == "paper"
    assert list(table.columns[-1].cells) == ["3,401", "8,562", "12,123", "", "14,089", "1,404"]


@pytest.mark.parametrize(
    ("env", "title"), [("CartPole-v1", "CartPole-v1"), ("ALE/Pong-v5", "ALE/Pong-v5: paper protocol")]
)
def test_scores_name_the_protocol_only_of_games_that_have_one(env, title, tmp_path):
    result = {"env": env, "protocol": "paper", "scores": [1.0, 2.0], "mean": 1.5, "interval": [1.0, 2.0]}
    figure = train.evaluation_figure(runs.read(write_run(tmp_path / "run", "evaluate", result=result)))
    assert figure.axes[0].get_title(loc="left") == title


def test_numbers_of_episodes_are_whole():
    histogram = {"edges": [0.0, 1.0, 2.0], "counts": [5, 12], "mean": 1.0}
    found = {"scores": histogram, "lengths": histogram, "actions": {"0": 3}, "steps": 3, "spec": {"num_actions": 1}}
    for panel in data.info_figure(found).axes[:2]:
        assert all(tick == round(tick) for tick in panel.get_yticks())


@pytest.mark.parametrize("places", [[0.0, 0.0, 0.0], [1.0, 1.0], [0.1, 0.5, 0.52, 0.9, 0.99]])
def test_labels_are_moved_apart_and_stay_beside_the_panel(places):
    found = spread(places, 0.1)
    assert np.diff(found).min() >= 0.1 - 1e-12
    assert max(found) <= 1
    assert min(found) >= 0


def test_actions_are_shown_as_the_log_names_them_whatever_letters_they_have():
    names = ["$5_$10", r"$\frac$", "<b>", "x" * 200]
    rows = [{"action": a, "beta": 0.25, "pi": 0.25, "change": 0.0} for a in range(4)]
    found = {"rule": "behavior", "spec": {"num_actions": 4, "action_names": names}, "changes": {"actions": rows}}
    figure = improve.action_figure(found)
    figure.savefig(io.BytesIO())  # formulas are parsed when they are drawn
    (panel,) = figure.axes
    assert [text.get_text() for text in panel.get_xticklabels()] == [*names[:3], "x" * 17 + "..." + "x" * 10]


@pytest.mark.parametrize(("names", "rotation"), [(["stay", "go"], 0), (["stay where you are", "go"], 90)])
def test_names_that_do_not_fit_beside_each_other_are_turned(names, rotation):
    panel = Figure().subplots()
    name_ticks(panel, names, max_letters=18)
    assert {text.get_rotation() for text in panel.get_xticklabels()} == {rotation}


def test_turned_names_make_the_figure_higher_and_leave_the_bars_their_height():
    heights = []
    for names in (["stay", "go"], ["offer a discount on the invoice", "offer a discount on the order"]):
        figure = Figure(figsize=(3, 2), layout="constrained")
        name_ticks(figure.subplots(), names, max_letters=18)
        figure.savefig(io.BytesIO())
        heights.append(figure.axes[0].get_window_extent().height)
    assert heights[1] == pytest.approx(heights[0], rel=0.15)


def test_long_names_that_begin_alike_are_told_apart():
    panel = Figure().subplots()
    name_ticks(panel, [f"{'the same words in front of ' * 3}{letter}" for letter in "ab"], max_letters=18)
    one, other = (text.get_text() for text in panel.get_xticklabels())
    assert one != other


def test_a_figure_with_letters_that_no_font_has_causes_no_warning(tmp_path, recwarn):
    rows = [{"action": 0, "beta": 1.0, "pi": 1.0, "change": 0.0}]
    found = {
        "rule": "behavior",
        "spec": {"num_actions": 1, "action_names": ["\u65e5\u672c"]},
        "changes": {"actions": rows},
    }
    with runs.Writer.create(tmp_path / "run", command="improve", settings={}) as run:
        run.figure("actions", improve.action_figure(found))
    assert not recwarn.list
