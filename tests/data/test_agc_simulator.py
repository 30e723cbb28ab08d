"""Recordings in the format of the Atari Grand Challenge: the truth is true, and each defect is where it says."""

import dataclasses
import json

import numpy as np
import pytest
from PIL import Image

from rbi.cli import main
from rbi.data.formats import load_episodes
from rbi.data.formats.agc import ENVS, FIRST_ROW, parse
from rbi.envs.atari import FrameByFrame
from tests.fixtures.agc_defects import DRIFT_FRAMES, ICONS, Defects, Injected, draw
from tests.fixtures.agc_palette import TABLE
from tests.fixtures.agc_players import SKILLED, Restless
from tests.fixtures.agc_simulator import Played, Recording, play, read_truth, record

GAMES = ("spaceinvaders", "qbert", "mspacman", "revenge")
SCORES = {"spaceinvaders": (104, 102), "qbert": (91, 90, 89), "mspacman": (120, 121, 122), "revenge": (21, 20, 19)}
"""Where each game's memory has its score, two decimal digits a byte, the lowest first."""
LIVES = {
    "spaceinvaders": lambda memory: memory[73],
    "qbert": lambda memory: memory[8].astype(np.int8) + 2,
    "mspacman": lambda memory: (memory[123] & 7) + 1,
    "revenge": lambda memory: (memory[58] & 7) + 1,
}
PAIRS = {(210, 210, 64): (208, 208, 80), (187, 187, 53): (184, 184, 64),
         (210, 182, 86): (208, 180, 108), (200, 72, 72): (192, 88, 88)}  # fmt: skip
"""Colours of ale-py beside those of the collectors' data."""


def digits(memory, places):
    return sum(100**i * (10 * (int(memory[at]) >> 4) + (int(memory[at]) & 15)) for i, at in enumerate(places))


def one(root, game="qbert", index=0, most_frames=200, quits=0.0, **settings):
    return record(root, Recording(game, most_frames=most_frames, quits=quits, **settings), index)[0]


def screen(root, truth, frame):
    return np.asarray(Image.open(root / "screens" / truth.game / str(truth.number) / f"{frame}.png"))


def text(root, truth):
    return (root / "trajectories" / truth.game / f"{truth.number}.txt").read_bytes()


def played_again(truth, seed=1):
    """The emulator at each frame of a truth."""
    game = FrameByFrame(ENVS[truth.game], seed)
    for frame, action in enumerate(truth.actions):
        if frame:
            game.act(action)
        yield frame, game


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A game of each kind with points and lost lives: two of them whole."""
    root, seeds = tmp_path_factory.mktemp("agc"), {"spaceinvaders": 4, "qbert": 3, "mspacman": 6, "revenge": 1}
    skilled = {"revenge": 1.0}
    return root, {g: one(root, g, most_frames=1400, skilled=skilled.get(g, 0.0), seed=seeds[g]) for g in GAMES}


@pytest.mark.parametrize("game", GAMES)
def test_rewards_are_the_score_that_the_game_itself_keeps(whole, game):
    points = 0
    for frame, moment in played_again(whole[1][game]):
        points += whole[1][game].rewards[frame]
        assert digits(moment.memory(), SCORES[game]) == points
    assert points == whole[1][game].score > 0


@pytest.mark.parametrize("game", GAMES)
def test_a_life_is_lost_when_the_games_own_count_falls_and_the_game_goes_on(whole, game):
    truth, before, fell, left = whole[1][game], None, [], []
    for frame, moment in played_again(truth):
        now = int(LIVES[game](moment.memory()))
        if before is not None and now < before and not moment.over:
            fell.append(frame)
            left.append(now)
        before = now
    assert fell
    assert (truth.life_losses, truth.lives_left) == (tuple(fell), tuple(left))


@pytest.mark.parametrize("game", GAMES)
def test_screens_are_those_of_the_game_at_each_frame(whole, game):
    root, truths = whole
    for frame, moment in played_again(truths[game]):
        if frame % 40 == 0 or frame in truths[game].life_losses:
            assert np.array_equal(screen(root, truths[game], frame), moment.screen())


@pytest.mark.parametrize("game", GAMES)
def test_rows_come_two_frames_after_their_screens_and_the_last_one_ends_the_game(whole, game):
    root, truths = whole
    truth, found = truths[game], parse(text(root, truths[game]))
    assert (found.terminal, truth.abandoned) == (not truth.abandoned, game in ("mspacman", "revenge"))
    assert found.actions[2:].tolist() == list(truth.actions[:-2])
    assert found.scores[2:].tolist() == np.cumsum(truth.rewards[:-2]).tolist()
    assert not found.actions[:3].any()
    assert not found.scores[:3].any()


def test_the_truth_can_be_read_back(whole):
    root, truths = whole
    for game in GAMES:
        assert read_truth(root, game, truths[game].number) == truths[game]


def test_same_seed_same_episode_and_another_index_is_another_episode(tmp_path):
    first, again, other = one(tmp_path / "a"), one(tmp_path / "b"), one(tmp_path / "b", index=1)
    assert first == again
    assert text(tmp_path / "a", first) == text(tmp_path / "b", again)
    assert other.actions != first.actions
    assert other.number != first.number


def test_who_leaves_has_no_terminal_row_and_played_a_part_of_the_game(tmp_path, whole):
    stayed = whole[1]["qbert"]
    left = one(tmp_path, most_frames=1400, skilled=0.0, seed=3, quits=1.0)
    assert (stayed.abandoned, left.abandoned) == (False, True)
    assert not parse(text(tmp_path, left)).terminal
    assert left.actions == stayed.actions[: left.frames]
    assert left.frames < stayed.frames


def test_qbert_ends_when_a_new_game_begins_in_the_frame_in_which_the_old_one_ended():
    """ale-py tells nothing then, and takes the lost points back as a negative reward."""
    rng, player, game = np.random.default_rng(10), Restless(), FrameByFrame(ENVS["qbert"], 0)
    found = play(game, player, 2000, rng)
    assert found.over
    assert not game.over
    assert game.lives > 0
    assert (found.rewards >= 0).all()


@pytest.mark.parametrize("game", GAMES)
def test_a_colour_of_ours_is_one_of_theirs(game):
    """Each of the console's colours has one value in ale-py's screens, near the one of the collectors' emulator."""
    moment = FrameByFrame(ENVS[game], 0)
    for action in range(400):
        moment.act(action % 18)
    colours, pixels = moment.colours(), moment.screen().astype(int)
    for number in np.unique(colours):
        ours = np.unique(pixels[colours == number], axis=0)
        assert len(ours) == 1
        assert abs(ours[0] - TABLE[number]).max() < 40
        if tuple(ours[0]) in PAIRS:
            assert tuple(TABLE[number]) == PAIRS[tuple(ours[0])]


def test_other_colours_change_nothing_but_colours(tmp_path):
    truth = one(tmp_path, defects=Defects(palette=1.0))
    for frame, moment in played_again(truth):
        if frame % 50 == 0:
            assert np.array_equal(screen(tmp_path, truth, frame), TABLE[moment.colours()])
    assert truth.injected == Injected(palette=True, frame=truth.injected.frame, points=truth.injected.points)


def test_flashing_icons_are_black_for_the_frames_that_the_truth_names(tmp_path):
    truth = one(tmp_path, "revenge", skilled=0.0, defects=Defects(flashing=1.0))
    black = [not screen(tmp_path, truth, frame)[ICONS["revenge"]].any() for frame in range(truth.frames)]
    named = {n for first, count in truth.injected.flashes for n in range(first, first + count) if n < truth.frames}
    assert len(named) >= 3
    assert {frame for frame, dark in enumerate(black) if dark} == named


def test_other_offsets_are_in_the_text_and_in_the_truth(tmp_path):
    seen = set()
    for index in range(4):
        truth = one(tmp_path, index=index, most_frames=120, defects=Defects(reward_offset=1.0, action_offset=1.0))
        found, offset = parse(text(tmp_path, truth)), truth.injected.action_offset
        assert found.actions[offset:].tolist() == list(truth.actions[: truth.frames - offset])
        assert 2 not in (offset, truth.injected.reward_offset)
        seen |= {offset, truth.injected.reward_offset}
    assert len(seen) > 2


def test_a_wrong_score_is_in_the_text_only(tmp_path):
    truth = one(tmp_path, defects=Defects(wrong_score=1.0))
    found = parse(text(tmp_path, truth))
    assert truth.score == truth.screen_score == sum(truth.rewards)
    assert found.scores[-1] == truth.text_score == truth.score + truth.injected.points
    assert np.array_equal(np.cumsum(found.rewards), found.scores)
    assert (truth.usable, truth.shows) == (False, True)


def test_a_run_that_drifts_shows_the_players_game_up_to_a_frame_and_another_one_after(tmp_path):
    truth = one(tmp_path, most_frames=400, defects=Defects(drift=1.0))
    at = truth.injected.frame
    same = [np.array_equal(screen(tmp_path, truth, n), game.screen()) for n, game in played_again(truth)]
    assert all(same[:at])
    assert not all(same[at : at + 3 * DRIFT_FRAMES])
    assert (truth.usable, truth.shows) == (False, truth.screen_score != truth.text_score)


@pytest.mark.parametrize(("kind", "changed"), [("same_identity", 0), ("same_rows", 1)])
def test_a_copy_has_another_number_the_same_rows_and_the_same_screens(tmp_path, kind, changed):
    truth, copy = record(tmp_path, Recording("qbert", most_frames=120, defects=Defects(**{kind: 1.0})), 0)
    assert (copy.copy_of, copy.identity - truth.identity) == (truth.number, changed)
    first, second = (text(tmp_path, each).split(b"\n", 1) for each in (truth, copy))
    assert first[1] == second[1]
    assert (first[0] == second[0]) == (not changed)
    assert all(np.array_equal(screen(tmp_path, truth, n), screen(tmp_path, copy, n)) for n in range(truth.frames))
    assert (truth.usable, copy.usable) == (True, False)


@pytest.mark.parametrize(("kind", "row"), [
    ("four_fields", lambda fields: fields[:4]),
    ("impossible_action", lambda fields: [*fields[:4], "19"]),
    ("no_terminal", lambda fields: [*fields[:3], "", fields[4]]),
])  # fmt: skip
def test_a_broken_row_is_the_one_that_the_truth_names(tmp_path, kind, row):
    good = text(tmp_path / "a", one(tmp_path / "a", most_frames=120)).decode().splitlines()
    truth = one(tmp_path / "b", most_frames=120, defects=Defects(**{kind: 1.0}))
    bad = text(tmp_path / "b", truth).decode().splitlines()
    different = [line for line, (a, b) in enumerate(zip(good, bad, strict=True), 1) if a != b]
    assert different == [truth.injected.frame + FIRST_ROW]
    assert bad[different[0] - 1].split(",") == row(good[different[0] - 1].split(","))
    assert not truth.usable


def test_a_cut_picture_and_a_missing_one_are_those_that_the_truth_names(tmp_path):
    for kind in ("cut_picture", "missing_picture"):
        truth = one(tmp_path / kind, most_frames=120, defects=Defects(**{kind: 1.0}))
        files = [tmp_path / kind / "screens" / "qbert" / "0" / f"{n}.png" for n in range(truth.frames)]
        whole = [file.exists() and file.read_bytes().endswith(b"IEND\xaeB`\x82") for file in files]
        assert [n for n, good in enumerate(whole) if not good] == [truth.injected.frame]
        assert files[truth.injected.frame].exists() == (kind == "cut_picture")


def test_shares_of_defects_are_met_and_an_episode_has_one_fatal_defect_at_most():
    defects = Defects(palette=0.3, drift=0.2, four_fields=0.1)
    rng = np.random.default_rng(0)
    drawn = [draw(defects, "qbert", np.zeros(100, int), rng) for _ in range(4000)]
    share = {kind: np.mean([each.fatal == kind for each in drawn]) for kind in (None, "drift", "four_fields")}
    assert share[None] == pytest.approx(0.7, abs=0.03)
    assert share["drift"] == pytest.approx(0.2, abs=0.03)
    assert share["four_fields"] == pytest.approx(0.1, abs=0.03)
    assert np.mean([each.palette for each in drawn]) == pytest.approx(0.3, abs=0.03)
    assert all(each.flashes == () and each.reward_offset == 2 for each in drawn)


@pytest.mark.parametrize("game", GAMES)
def test_who_knows_the_game_makes_more_points_than_who_presses_anything(game):
    def points(kind, seed):
        return play(FrameByFrame(ENVS[game], seed), kind(), 1000, np.random.default_rng(seed)).rewards.sum()

    assert sum(points(SKILLED[ENVS[game]], seed) - points(Restless, seed) for seed in range(2)) > 0


def test_any_function_can_play():
    found = play(FrameByFrame(ENVS["qbert"], 0), lambda game, _rng: int(game.screen()[0, 0, 0]) + 5, 10, None)
    assert isinstance(found, Played)
    assert found.actions.tolist() == [0] + [5] * 9
    assert not found.over


@pytest.mark.parametrize(("wrong", "reason"), [
    (lambda: Defects(drift=1.5), r"drift = 1\.5: a share must lie in"),
    (lambda: Defects(drift=0.6, wrong_score=0.6), "one of them at most"),
    (lambda: Recording("pong"), "game = 'pong': AGC has"),
    (lambda: Recording("qbert", quits=-0.1), r"quits = -0\.1"),
    (lambda: Recording("qbert", most_frames=3), "most_frames = 3"),
    (lambda: FrameByFrame(ENVS["qbert"], 0).act(18), "action = 18"),
])  # fmt: skip
def test_nonsense_is_refused(wrong, reason):
    with pytest.raises(ValueError, match=reason):
        wrong()


def test_the_truth_is_plain_json(whole):
    root, truths = whole
    told = json.loads((root / "truth" / "qbert" / "0.json").read_text())
    assert set(told) == {field.name for field in dataclasses.fields(truths["qbert"])}


def test_the_command_records_what_the_importer_reads_and_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["data", "record", "restless", "--to", "agc", "--env", "ALE/SpaceInvaders-v5", "--out", "agc"]
    assert main([*command, "--episodes", "1"]) == 0
    [first] = (tmp_path / "agc" / "trajectories" / "spaceinvaders").iterdir()
    before = first.read_bytes()
    assert main([*command, "--episodes", "2", "--resume"]) == 0
    assert first.read_bytes() == before
    assert main(["data", "import", "agc", "--out", "s"]) == 0
    truths = [read_truth(tmp_path / "agc", "spaceinvaders", number) for number in (0, 2)]
    assert [one.score for one in load_episodes(tmp_path / "s")] == [truth.score for truth in truths]
