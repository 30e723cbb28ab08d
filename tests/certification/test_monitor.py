"""`rbi.monitor`: alarms and stops that hold however often one looks."""

import numpy as np
import pytest

import rbi
from rbi import runs
from rbi.certification.monitor import bounds_over_time
from rbi.cli import main
from rbi.data.dataset import Dataset
from rbi.data.episode import RejectedEpisode


def live(seed, mean, episodes):
    rng = np.random.default_rng(seed)
    return Dataset.from_arrays(
        np.zeros((episodes, 1)), np.zeros(episodes, int), rng.random(episodes) < mean, np.ones(episodes, bool)
    )


@pytest.mark.parametrize(("mean", "outcome"), [(0.5, "better"), (0.1, "worse"), (0.3, "continue")])
def test_a_policy_is_compared_with_control_and_with_an_old_value(mean, outcome):
    new = live(0, mean, 2000)
    for options in ({"control": live(1, 0.3, 3000)}, {"old_value": 0.3}):
        found = rbi.monitor(new, return_range=(0, 1), **options)
        assert found.outcome == outcome
        assert found.alarm == (outcome == "worse")
        assert found.lower < mean - 0.3 < found.upper
        assert found.estimate == pytest.approx(mean - 0.3, abs=0.05)


def test_both_sides_of_a_comparison_share_the_error():
    new, control = live(0, 0.5, 500), live(1, 0.3, 800)
    ours, theirs = (bounds_over_time(data.scores, (0.0, 1.0), 0.05) for data in (new, control))
    found = rbi.monitor(new, control, return_range=(0, 1), confidence=0.9)
    assert found.lower == pytest.approx(ours.lower[-1] - theirs.upper[-1])
    assert found.upper == pytest.approx(ours.upper[-1] - theirs.lower[-1])
    alone = rbi.monitor(new, return_range=(0, 1), old_value=0.0, confidence=0.95)
    assert alone.lower == pytest.approx(ours.lower[-1])


def test_an_alarm_comes_long_before_the_end():
    found = rbi.monitor(live(2, 0.1, 3000), return_range=(0, 1), old_value=0.3)
    alarmed = [look["episodes"] for look in found.history if look["upper"] < 0]
    assert alarmed[0] < 600
    assert all(look["upper"] < 0 for look in found.history if look["episodes"] >= alarmed[0])


def test_looking_all_the_time_is_rarely_wrong():
    wrong = 0
    for seed in range(40):
        values = np.random.default_rng(seed).random(300)
        side = bounds_over_time(values, (0.0, 1.0), 0.1)
        wrong += bool((side.lower > 0.5).any())
    assert wrong <= 11  # of 40 at 10%: more has probability 0.0006


def test_returns_sum_over_the_steps_of_an_episode_with_discount():
    data = Dataset.from_arrays(np.zeros((4, 1)), [0, 0, 0, 0], [1, 1, 0, 1], [0, 1, 0, 1])
    found = rbi.monitor(data, return_range=(0, 2), old_value=0.0, gamma=0.5)
    assert found.estimate == pytest.approx((1.5 + 0.5) / 2)


def test_bad_input_is_refused_in_one_line():
    with pytest.raises(ValueError, match=r"old_value = 1e\+308: must be in the range of returns, 0 to 1"):
        rbi.monitor(live(0, 0.3, 10), return_range=(0, 1), old_value=1e308)
    with pytest.raises(ValueError, match=r"either control episodes \(--control\) or old_value \(--old-value\)"):
        rbi.monitor(live(0, 0.3, 10), return_range=(0, 1))
    with pytest.raises(ValueError, match=r"arrays, line \d+: return 1 is outside the stated range 0 to 0.5"):
        rbi.monitor(live(0, 0.3, 10), return_range=(0, 0.5), old_value=0.1)
    data = live(0, 0.5, 100)
    data.rejected = [RejectedEpisode("live.csv", 7, "reward is nan")]
    with pytest.raises(ValueError, match=r"live.csv, line 7: reward is nan; .* nothing is decided"):
        rbi.monitor(data, return_range=(0, 1), old_value=0.3)
    rewards = np.random.default_rng(0).random(100)
    twice = Dataset.from_arrays(np.zeros((200, 1)), np.zeros(200, int), np.tile(rewards, 2), np.ones(200, bool))
    with pytest.raises(ValueError, match=r"200 episodes \(of 200\) that are there several times"):
        rbi.monitor(twice, return_range=(0, 1), old_value=0.3)
    assert rbi.monitor(twice, return_range=(0, 1), old_value=0.3, accept_equal=True).episodes == 200


def test_the_command_line_ends_with_3_on_alarm(tmp_path, capsys):
    rng = np.random.default_rng(0)
    for name, mean in (("new", 0.1), ("control", 0.4)):
        rows = [f"0,0,{int(paid)}" for paid in rng.random(1000) < mean]
        (tmp_path / f"{name}.csv").write_text("\n".join(["obs_0,action,reward", *rows]) + "\n")
    files = [str(tmp_path / "new.csv"), "--control", str(tmp_path / "control.csv"), "--table.one-step"]
    assert main(["monitor", *files, "--return-range", "0", "1", "--out", str(tmp_path / "run")]) == 3
    assert capsys.readouterr().out.startswith("ALARM: the new policy is worse")
    run = runs.read(tmp_path / "run")
    assert run.finished()["alarm"]
    assert [figure.name for figure in run.figures] == ["gain.png"]
    assert main(["monitor", *files]) == 2
    assert "--return-range" in capsys.readouterr().err


def test_returns_at_the_ends_of_the_stated_range_are_inside_whatever_float32_makes_of_them():
    rewards = np.random.default_rng(0).choice([0, 0.1], 200)
    data = rbi.Dataset.from_arrays(np.zeros((200, 1)), np.arange(200) % 2, rewards, np.ones(200, bool))
    assert data.scores.max() > 0.1
    assert rbi.monitor(data, return_range=(0, 0.1), old_value=0.05).outcome
    with pytest.raises(ValueError, match=r"is outside the stated range 0 to 0\.09"):
        rbi.monitor(data, return_range=(0, 0.09), old_value=0.05)
