"""The coverage benchmark on few repetitions: proved bounds hold in every world, and a gain is found."""

import numpy as np
import pytest

from benchmarks import coverage

WORLDS = {world.name: world for world in coverage.all_worlds(simulated=False)}
FAST = [
    "binary rewards", "nothing to gain, all actions logged", "worse by 1%", "rare lucky action, greedy, worse",
    "hidden cause, probabilities logged", "episodes of 5 steps", "Wet Chicken, 10 steps",
]  # fmt: skip


def rows_of(name, episodes, repetitions, monkeypatch):
    monkeypatch.setattr(coverage, "BCA_DRAWS", 0)
    monkeypatch.setattr(coverage, "WIDTHS", 2)
    rows = coverage.measure(WORLDS[name], episodes, repetitions, confidences=(0.9,))
    return {row["bound"]: row for row in rows}


@pytest.mark.parametrize("name", FAST)
def test_proved_bounds_hold(name, monkeypatch):
    found = rows_of(name, 200, 300, monkeypatch)
    assert found["betting"]["must_hold"]
    assert all(row["holds"] for row in found.values() if row["must_hold"])


@pytest.mark.parametrize("kind", ["taken", "all"])
@pytest.mark.parametrize("value", ["0.5", "0.1"])
def test_a_gain_of_a_tenth_is_found_with_5000_episodes(kind, value, monkeypatch):
    found = rows_of(f"gain of 10% of {value}, {kind} actions logged", 5000, 60, monkeypatch)
    assert found["betting"]["deploy"] >= 0.8


def test_estimated_probabilities_fail_with_a_hidden_cause_and_logged_ones_do_not(monkeypatch):
    wrong = rows_of("hidden cause, probabilities estimated", 1000, 100, monkeypatch)["student"]
    right = rows_of("hidden cause, probabilities logged", 1000, 100, monkeypatch)["betting"]
    assert wrong["unsafe"]
    assert wrong["deploy"] > 0.5
    assert wrong["status"] == "heuristic"
    assert right["deploy"] <= 0.1


def test_where_gains_differ_by_player_bounds_hold_with_players_as_the_unit_and_not_with_episodes(monkeypatch):
    monkeypatch.setattr(coverage, "BCA_DRAWS", 0)
    monkeypatch.setattr(coverage, "WIDTHS", 2)
    rows = coverage.measure_players(300, (20,), ("each gains or loses 0.1",))
    found = {(row["unit"], row["bound"]): row for row in rows}
    assert found["player", "betting"]["must_hold"]
    for bound in ("betting", "student"):
        assert found["player", bound]["holds"]
        assert found["episode", bound]["missed"] > 0.15


@pytest.mark.parametrize("name", ["binary rewards", "episodes of 5 steps", "Wet Chicken, 10 steps"])
def test_the_stated_truth_is_the_mean_of_the_terms(name):
    world = WORLDS[name]
    x = world.draw(np.random.default_rng(0), (1, 200_000))
    assert world.floor <= x.min()
    assert abs(x.mean() - world.truth) < 5 * x.std() / np.sqrt(x.size)


@pytest.mark.parametrize("name", ["binary rewards", "heavy-tailed rewards, nothing to gain"])
def test_the_stated_value_is_the_weighted_mean_of_the_logged_rewards(name):
    world = WORLDS[name]
    weights, rewards = world.logs(np.random.default_rng(0), 1_000_000)
    x = weights * rewards
    assert abs(x.mean() - world.value) < 4 * x.std() / np.sqrt(x.size)
