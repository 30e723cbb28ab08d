"""`rbi.monitor`: alarms and stops that hold however often one looks."""

import numpy as np
import pytest
from scipy import stats

import rbi
from rbi import runs
from rbi.certification.monitor import LOOKS, bounds_over_time, difference_over_time
from rbi.cli import main
from rbi.data.dataset import Dataset
from rbi.data.episode import RejectedEpisode
from rbi.data.formats import FormatSettings, TableConfig


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


def with_features(seed, mean, episodes):
    """Episodes that differ by a feature."""
    rng = np.random.default_rng(seed)
    data = live(seed, mean, episodes)
    return Dataset.from_arrays(rng.random((episodes, 1)), np.zeros(episodes, int), data.scores, np.ones(episodes, bool))


def test_a_control_group_that_contains_live_episodes_is_refused():
    """The difference from all traffic is smaller than that from the control group, and nearly without noise."""
    new, control = with_features(0, 0.24, 1500), with_features(1, 0.3, 1500)
    whole = {name: np.concatenate([new.arrays[name], control.arrays[name]]) for name in ("observations", "rewards")}
    both = Dataset.from_arrays(whole["observations"], np.zeros(3000, int), whole["rewards"], np.ones(3000, bool))
    for other in (new, both):
        with pytest.raises(ValueError, match=r"1,500 live episodes \(of 1,500\) that are among the control episodes"):
            rbi.monitor(new, other, return_range=(0, 1))
    assert rbi.monitor(new, both, return_range=(0, 1), accept_equal=True).estimate == pytest.approx(-0.03, abs=0.02)
    assert rbi.monitor(new, control, return_range=(0, 1)).alarm


def last(values, limits, alpha):
    return np.array(bounds_over_time(values, limits, alpha, np.array([len(values)])))[:, 0]


@pytest.mark.parametrize(("low", "controls", "in_pairs"), [(0.0, 300, True), (0.45, 3000, False)])
def test_half_of_the_error_is_for_pairs_and_a_quarter_for_each_group_and_the_better_bound_counts(
    low, controls, in_pairs
):
    rng = np.random.default_rng(0)
    new, control = rng.uniform(low, 1 - low, 300), rng.uniform(low, 1 - low, controls)
    found = difference_over_time([new, control], (0.0, 1.0), 0.2, [np.array([300]), np.array([controls])])
    pairs = last(new - control[:300], (-1.0, 1.0), 0.1)
    groups = last(new, (0.0, 1.0), 0.05) - last(control, (0.0, 1.0), 0.05)[::-1]
    assert np.ravel(found) == pytest.approx(pairs if in_pairs else groups)


def test_an_old_value_leaves_the_whole_error_to_the_live_episodes():
    new = live(0, 0.5, 500)
    found = rbi.monitor(new, return_range=(0, 1), old_value=0.25)
    assert [found.lower, found.upper] == pytest.approx(last(new.scores, (0.0, 1.0), 0.05) - 0.25, abs=2e-4)


def test_better_and_worse_are_mirror_images():
    new, control = live(0, 0.4, 700), live(1, 0.3, 300)
    one, other = (rbi.monitor(*sides, return_range=(0, 1)) for sides in ((new, control), (control, new)))
    assert [one.lower, one.upper] == pytest.approx([-other.upper, -other.lower])


def test_an_alarm_comes_long_before_the_end():
    found = rbi.monitor(live(2, 0.1, 3000), return_range=(0, 1), old_value=0.3)
    alarmed = [look["episodes"] for look in found.history if look["upper"] < 0]
    assert alarmed[0] < 600
    assert all(look["upper"] < 0 for look in found.history if look["episodes"] >= alarmed[0])


def test_looking_all_the_time_is_rarely_wrong():
    """What was rejected at any time stays rejected, so that the last bound knows of all looks."""
    wrong, times = np.zeros(2, int), np.array([200])
    for seed in range(100):
        new, control = np.random.default_rng(seed).random((2, 200))
        alone = bounds_over_time(new, (0.0, 1.0), 0.1, times)[0] > 0.5
        compared = difference_over_time([new, control], (0.0, 1.0), 0.1, [times, times])[0] > 0
        wrong += np.concatenate([alone, compared])
    assert all(stats.binomtest(int(count), 100, 0.1, "greater").pvalue > 1e-3 for count in wrong)


def test_episodes_that_come_later_change_no_bound_of_before():
    samples, times = [live(0, 0.4, 900).scores, live(1, 0.3, 600).scores], [np.array([30, 300, 900])]
    times.append(times[0] * 2 // 3)
    full = np.array(difference_over_time(samples, (0.0, 1.0), 0.1, times))
    for looks in (1, 2):
        seen, until = [x[: at[looks - 1]] for x, at in zip(samples, times, strict=True)], [at[:looks] for at in times]
        assert np.array(difference_over_time(seen, (0.0, 1.0), 0.1, until)) == pytest.approx(full[:, :looks], abs=1e-12)


def test_bounds_never_widen_in_the_history():
    found = rbi.monitor(live(0, 0.4, 500), live(1, 0.3, 2000), return_range=(0, 1))
    assert len(found.history) == LOOKS
    assert (np.diff([look["lower"] for look in found.history]) >= 0).all()
    assert (np.diff([look["upper"] for look in found.history]) <= 0).all()


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
        rows = [f"0,0,{int(paid)},{name} {k % 50}" for k, paid in enumerate(rng.random(1000) < mean)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["obs_0,action,reward,player", *rows]) + "\n")
    files = [str(tmp_path / "new.csv"), "--control", str(tmp_path / "control.csv"), "--table.one-step"]
    assert main(["monitor", *files, "--return-range", "0", "1", "--out", str(tmp_path / "run")]) == 3
    assert capsys.readouterr().out.startswith("ALARM: the new policy is worse")
    run = runs.read(tmp_path / "run")
    assert run.finished()["alarm"]
    assert [figure.name for figure in run.figures] == ["gain.png"]
    by_player = ["--return-range", "0", "1", "--unit", "player", "--out", str(tmp_path / "players")]
    assert main(["monitor", *files, *by_player]) == 3
    assert "1,000 live episodes of 50 players against 1,000 control episodes of 50" in capsys.readouterr().out
    assert [figure.name for figure in runs.read(tmp_path / "players").figures] == ["gain.png"]
    assert main(["monitor", *files]) == 2
    assert "--return-range" in capsys.readouterr().err


def test_returns_at_the_ends_of_the_stated_range_are_inside_whatever_float32_makes_of_them():
    rewards = np.random.default_rng(0).choice([0, 0.1], 200)
    data = rbi.Dataset.from_arrays(np.zeros((200, 1)), np.arange(200) % 2, rewards, np.ones(200, bool))
    assert data.scores.max() > 0.1
    assert rbi.monitor(data, return_range=(0, 0.1), old_value=0.05).outcome
    with pytest.raises(ValueError, match=r"is outside the stated range 0 to 0\.09"):
        rbi.monitor(data, return_range=(0, 0.09), old_value=0.05)


def with_players(data, numbers, name="player"):
    data.texts = [*data.texts, *(f"{name} {k}" for k in range(max(numbers) + 1))]
    data.records["player"] = len(data.texts) - max(numbers) - 1 + np.asarray(numbers)
    return data


def test_with_players_as_the_unit_each_counts_once_in_the_order_of_first_episodes():
    numbers = np.concatenate([np.arange(39, -1, -1), np.repeat(np.arange(20), 12)])
    new, control = with_players(live(0, 0.6, 280), numbers), with_players(live(1, 0.2, 90), np.arange(90) % 30, "old")
    found = rbi.monitor(new, control, return_range=(0, 1), unit="player", accept_equal=True)
    means = np.array([new.scores[numbers == k].mean() for k in range(39, -1, -1)])
    old = np.array([control.scores[k::30].mean() for k in range(30)])
    wanted = difference_over_time([means, old], (0.0, 1.0), 0.05, [np.array([40]), np.array([30])])
    assert found.estimate == pytest.approx(means.mean() - old.mean())
    assert [found.lower, found.upper] == pytest.approx(np.ravel(wanted), abs=2e-3)
    assert (found.episodes, found.players, found.control_episodes, found.control_players) == (280, 40, 90, 30)
    assert found.history[-1]["players"] == 40
    assert found.outcome == "better"
    assert not found.warning
    assert "280 live episodes of 40 players against 90 control episodes of 30 players" in found.summary()
    assert "of a random player" in found.summary()


def test_a_few_players_give_an_alarm_and_are_not_proved_to_be_better():
    options = {"return_range": (0, 1), "unit": "player", "accept_equal": True}
    good, bad = (with_players(live(0, mean, 900), np.arange(900) % 9) for mean in (0.95, 0.05))
    better = rbi.monitor(good, old_value=0.02, **options)
    assert better.lower > 0
    assert better.outcome == "continue"
    assert better.warning == "But 9 players cannot show what others would gain: it takes at least 10."
    worse = rbi.monitor(bad, old_value=0.98, **options)
    assert worse.alarm
    assert "900 live episodes of 9 players against the old value" in worse.summary()


def test_players_in_both_groups_are_said():
    logs = [with_players(live(seed, 0.5, 60), np.arange(60) % 20) for seed in range(2)]
    found = rbi.monitor(*logs, return_range=(0, 1), unit="player", accept_equal=True)
    assert found.warning.startswith("But 20 players are in both logs")


def test_monitor_warns_of_several_episodes_of_one_player():
    def log(players, seed):
        data = live(seed, 0.3, 300)
        data.records["player"] = np.arange(300) % players
        return data

    def outcome(*players):
        return rbi.monitor(*(log(count, seed) for seed, count in enumerate(players)), return_range=(0, 1))

    assert outcome(300, 300).warning == outcome(1, 1).warning == ""  # without names all are of one
    found = outcome(300, 20)
    assert "(300 episodes of 300 and 300 episodes of 20 players)" in found.warning
    assert found.summary().endswith("Make players the unit (--unit player).")
    assert found.to_dict()["warning"] == found.warning


def test_a_table_is_read_as_for_its_policy_in_a_folder_or_in_memory(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("first", "later"):
        columns = {"kind": rng.choice(["new", "old"], 60), "offer": rng.choice(["a", "b"], 60), "paid": rng.random(60)}
        rows = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join([",".join(columns), *rows]) + "\n")
    table = TableConfig(observations=("kind",), action="offer", reward="paid", one_step=True)
    options = {"updates": 4, "batch_size": 8, "hidden_size": 4, "progress": False}
    policy = rbi.improve(tmp_path / "first.csv", settings=FormatSettings(table=table), **options).policy
    policy.save(tmp_path / "policy")
    later = {"old_value": 0.5, "return_range": (0, 1)}
    found = [rbi.monitor(tmp_path / "later.csv", policy=given, **later) for given in (policy, tmp_path / "policy")]
    assert found[0] == found[1]
    assert found[0].episodes == 60
