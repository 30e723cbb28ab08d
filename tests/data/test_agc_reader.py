"""The reader of the Atari Grand Challenge: what it makes of good files, and what it says of bad ones."""

import os
import pickle
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from rbi.data.episode import RejectedEpisode
from rbi.data.formats import FormatSettings, load_episodes, open_reader, recognise
from rbi.data.formats.agc import ENVS, AgcConfig, EpisodeError, StepGrid, Trajectory, parse
from rbi.data.formats.agc_repair import resize
from rbi.data.formats.reader import SpecOverrides
from tests.data.consoles import play
from tests.fixtures.agc_defects import Defects
from tests.fixtures.agc_simulator import Recording, record
from tests.fixtures.agc_writer import Rows, write_episode
from tests.reference.agc_steps import frame_seen, steps

pytestmark = pytest.mark.slow  # plays and reads whole games

HEADER = "db traj id : 7\nframe,reward,score,terminal,action\n"


def settings(**config):
    return FormatSettings(agc=AgcConfig(**config))


def only(found):
    """The single thing that a reader gives."""
    (item,) = found
    return item


@pytest.fixture(scope="module")
def qbert(tmp_path_factory):
    """A piece of a game that someone left, as files: root, screens, and what led to each."""
    root = tmp_path_factory.mktemp("agc")
    screens, actions, rewards, *_ = play("qbert", 4, 260)
    rows = Rows.late(7, rewards, actions, terminal=False, reward_offset=2, action_offset=2)
    write_episode(root, "qbert", 12, rows, screens)
    return root, screens, actions, rewards


@pytest.fixture
def damaged(qbert, tmp_path):
    """A copy of it to break."""
    shutil.copytree(qbert[0], tmp_path / "root")
    return tmp_path / "root"


def text_of(root, number=12):
    return root / "trajectories/qbert" / f"{number}.txt"


def test_every_level_of_the_folders_is_recognised_and_gives_the_same_episode(qbert):
    root = qbert[0]
    for path in (root, root / "trajectories", root / "trajectories/qbert", root / "screens/qbert", text_of(root)):
        assert recognise(path) == "agc"
        assert only(open_reader(path).parts()) == 12
    episode = only(load_episodes(root))
    assert (episode.source, episode.line, episode.player) == ("trajectories/qbert/12.txt", 1, "")


def test_the_spec_is_that_of_atari_games(qbert):
    spec = open_reader(qbert[0]).spec
    assert (spec.obs_shape, spec.num_actions, spec.frame_stack, spec.env) == ((84, 84), 18, 4, "ALE/Qbert-v5")
    assert open_reader(qbert[0], settings=FormatSettings(overrides=SpecOverrides(frame_stack=2))).spec.frame_stack == 2
    with pytest.raises(ValueError, match=r"^--num-actions = 6: AGC has 18"):
        open_reader(qbert[0], settings=FormatSettings(overrides=SpecOverrides(num_actions=6)))


@pytest.mark.parametrize("phase", range(4))
def test_an_episode_is_its_frames_four_to_a_step(qbert, phase):
    root, screens, actions, rewards = qbert
    episode = only(open_reader(root, settings=settings(phase=phase)).read(12))
    late_actions, late_rewards = np.roll(actions, 2), np.roll(rewards, 2)
    told = steps(late_actions, late_rewards, phase, 2, 2)
    assert episode.actions.tolist() == [step[0] for step in told]
    assert episode.rewards.tolist() == [step[1] for step in told]
    grey = np.array([np.asarray(Image.fromarray(screen).convert("L")) for screen in screens])
    for at in (0, 1, 30, len(told)):
        frame = told[at][2] if at < len(told) else told[-1][3]
        assert np.array_equal(episode.observations[at], resize(frame_seen(grey, frame)[None])[0])
    assert len(episode.observations) == len(told) + 1


@given(
    rows=st.lists(st.tuples(st.integers(0, 17), st.integers(0, 99)), min_size=1, max_size=60),
    phase=st.integers(0, 3),
    offsets=st.tuples(st.integers(0, 10), st.integers(0, 10)),
)
def test_steps_are_those_of_the_slow_twin(rows, phase, offsets):
    actions, rewards = (np.array(column) for column in zip(*rows, strict=True))
    text = Trajectory(7, rewards, np.cumsum(rewards), actions, terminal=False)
    told = steps(actions.tolist(), rewards.tolist(), phase, *offsets)
    if not told:
        with pytest.raises(EpisodeError, match="too few for a step"):
            StepGrid(len(rows), phase).fold(text, *offsets)
        return
    folded = StepGrid(len(rows), phase).fold(text, *offsets)
    assert [column.tolist() for column in folded] == [[step[0] for step in told], [step[1] for step in told]]


def test_who_leaves_is_truncated_and_a_game_that_is_over_is_terminated(qbert, damaged):
    left = only(load_episodes(qbert[0]))
    assert (left.truncated[-1], left.terminated[-1], left.abandoned) == (True, False, True)
    *lines, last = text_of(damaged).read_text().splitlines()
    frame, reward, score, _, action = last.split(",")
    text_of(damaged).write_text("\n".join([*lines, ",".join([frame, reward, score, "1", action])]))
    over = only(load_episodes(damaged))
    assert (over.truncated[-1], over.terminated[-1], over.abandoned) == (False, True, False)


def test_an_outline_is_the_episode_without_its_screens(qbert, damaged):
    shutil.rmtree(damaged / "screens")
    outline = only(open_reader(damaged).summaries(12))
    episode = only(load_episodes(qbert[0]))
    assert outline.actions.tolist() == episode.actions.tolist()
    assert outline.rewards.tolist() == episode.rewards.tolist()
    assert (outline.terminated[-1], outline.abandoned, outline.source) == (False, True, episode.source)


def test_screens_numbered_from_one_are_those_numbered_from_zero(qbert, damaged):
    folder = damaged / "screens/qbert/12"
    for number in sorted((int(file.stem) for file in folder.iterdir()), reverse=True):
        (folder / f"{number}.png").rename(folder / f"{number + 1}.png")
    one, other = only(load_episodes(qbert[0])), only(load_episodes(damaged))
    np.testing.assert_array_equal(one.observations, other.observations)
    np.testing.assert_array_equal(one.rewards, other.rewards)


def test_a_reader_travels_to_another_process(qbert):
    reader = pickle.loads(pickle.dumps(open_reader(qbert[0])))
    assert reader.parallel
    assert np.array_equal(only(reader.read(12)).observations, only(load_episodes(qbert[0])).observations)


def test_version_one_reads_the_same(qbert, damaged):
    before = only(load_episodes(qbert[0]))
    _, _, *rows = text_of(damaged).read_text().splitlines()
    words = [row.split(",") for row in rows]
    told = [" , ".join([*row[:3], "True" if row[3] == "1" else "False", row[4]]) for row in words]
    text_of(damaged).write_text("db traj id : 7\nframe , reward , score , terminal , action\n" + "\n".join(told))
    after = only(load_episodes(damaged))
    assert after.actions.tolist() == before.actions.tolist()
    assert after.rewards.tolist() == before.rewards.tolist()


GOOD = ["0,0,0,0,0", "1,0,0,0,3", "2,25,25,0,17", "3,0,25,1,2"]


@pytest.mark.parametrize(
    ("line", "row", "reason"),
    [
        (4, "1,0,0,0", "4 fields: must be 5"),
        (5, "2,25,25,0,17,1", "6 fields: must be 5"),
        (4, "1,x,0,0,3", "'x' is not a whole number"),
        (5, "2,nan,25,0,17", "'nan' is not a whole number"),
        (5, "2,25,99999999999999999999,0,17", "'99999999999999999999' is not a whole number"),
        (4, "1,0,0,,3", "'' is not a whole number"),
        (4, "1,0,0,2,3", "terminal 2: must be 0 or 1"),
        (4, "1,0,0,1,3", "terminal 1: the game is over, and the file goes on"),
        (5, "2,25,25,0,18", "action 18: must lie in 0 to 17"),
        (6, "3,0,25,1,-1", "action -1: must lie in 0 to 17"),
        (5, "3,25,25,0,17", "frame 3: frames must be consecutive from 0"),
        (3, "1,0,0,0,0", "frame 1: frames must be consecutive from 0"),
        (2, "frame,reward,score,action", "the columns must be frame,reward,score,terminal,action"),
        (1, "hello", "b'hello' is not a line such as 'db traj id : 1234'"),
    ],
)
def test_a_bad_line_is_named_with_its_number_and_its_value(line, row, reason):
    lines = [*HEADER.splitlines(), *GOOD]
    parse("\n".join(lines).encode())
    lines[line - 1] = row
    with pytest.raises(EpisodeError) as told:
        parse("\n".join(lines).encode())
    assert (told.value.line, told.value.reason) == (line, reason)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", 1, "is empty"),
        (" \n\n", 1, "is empty"),
        ("db traj id : 7\n", 2, "the columns must be frame,reward,score,terminal,action"),
        (HEADER, 3, "has no frames"),
        ("\n".join(GOOD), 1, "b'0,0,0,0,0' is not a line such as 'db traj id : 1234'"),
    ],
)
def test_a_text_without_frames_or_header_is_refused(text, line, reason):
    with pytest.raises(EpisodeError) as told:
        parse(text.encode())
    assert (told.value.line, told.value.reason) == (line, reason)


@given(written=st.binary(max_size=80))
def test_no_bytes_whatever_break_the_parser(written):
    for text in (written, HEADER.encode() + written, HEADER.encode() + b"0,0,0,0,0\n" + written):
        try:
            frames = len(parse(text))
        except EpisodeError as error:
            frames = error.line
        assert frames >= 1


def cut(file):
    os.truncate(file, file.stat().st_size // 2)


def swell(file):
    Image.new("RGB", (320, 210)).save(file)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (cut, "is a damaged image; download it again"),
        (lambda file: file.unlink(), "no such screen"),
        (lambda file: file.write_bytes(b""), "is a damaged image; download it again"),
        (swell, "is 320 x 210, not 160 x 210"),
    ],
)
def test_a_bad_screen_is_named_with_the_line_of_its_frame_and_the_rest_goes_on(damaged, broken, reason):
    copy = damaged / "screens/qbert/30"
    shutil.copytree(damaged / "screens/qbert/12", copy)
    text_of(damaged, 30).write_text(text_of(damaged).read_text().replace("id : 7", "id : 8").replace(",17\n", ",8\n"))
    broken(damaged / "screens/qbert/12/57.png")
    found = load_episodes(damaged)
    assert found.rejected == [RejectedEpisode("trajectories/qbert/12.txt", 60, f"screens/qbert/12/57.png: {reason}")]
    assert only(found).source == "trajectories/qbert/30.txt"
    with pytest.raises(ValueError, match=r"^trajectories/qbert/12.txt, line 60: screens/qbert/12/57.png: "):
        load_episodes(damaged, strict=True)


def test_more_rows_than_screens_name_the_first_screen_that_lacks(damaged):
    with text_of(damaged).open("a") as file:
        file.write("260,0,0,0,0\n")
    assert only(load_episodes(damaged).rejected).reason == "screens/qbert/12/260.png: no such screen"


def test_an_episode_that_came_before_is_left_out_by_its_identity_or_by_its_rows(damaged):
    same = text_of(damaged).read_text()
    text_of(damaged, 13).write_text(same)
    text_of(damaged, 14).write_text(same.replace("id : 7", "id : 8"))
    for number in (13, 14):
        shutil.copytree(damaged / "screens/qbert/12", damaged / f"screens/qbert/{number}")
    found = load_episodes(damaged)
    assert [episode.source for episode in found] == ["trajectories/qbert/12.txt"]
    assert [str(problem) for problem in found.rejected] == [
        f"trajectories/qbert/{number}.txt, line 1: is the same episode as trajectories/qbert/12.txt"
        for number in (13, 14)
    ]
    assert len(load_episodes(damaged, settings=settings(duplicates=True))) == 3


def test_points_that_no_screen_shows_set_an_episode_aside(tmp_path):
    recording = Recording("mspacman", most_frames=300, quits=0.0, defects=Defects(wrong_score=1.0))
    truth = only(record(tmp_path, recording, 0))
    problem = only(open_reader(tmp_path).read(truth.number))
    told = f"the score is {truth.text_score} in the text and {truth.screen_score} on the screen"
    assert problem == RejectedEpisode("trajectories/mspacman/0.txt", truth.frames + 2, told)
    assert only(open_reader(tmp_path, settings=settings(check_scores=False)).read(0)).score == truth.text_score


def test_lost_lives_are_in_their_steps(tmp_path):
    recording = Recording("revenge", most_frames=520, quits=0.0, skilled=0.0, defects=Defects(palette=1.0))
    truth = only(record(tmp_path, recording, 3))
    episode = only(open_reader(tmp_path).read(truth.number))
    seen = StepGrid(truth.frames, 0).observed
    lost = [min(int(np.searchsorted(seen, frame)), len(episode)) - 1 for frame in truth.life_losses]
    assert len(lost) >= 3
    assert np.flatnonzero(episode.life_lost).tolist() == lost
    assert not only(open_reader(tmp_path, settings=settings(find_lives=False)).read(truth.number)).life_lost.any()


def test_offsets_are_found_if_they_are_not_given(tmp_path):
    defects = Defects(reward_offset=1.0, action_offset=1.0)
    truth = only(record(tmp_path, Recording("spaceinvaders", most_frames=700, quits=0.0, defects=defects), 0))
    assert 2 not in (truth.injected.reward_offset, truth.injected.action_offset)
    episode = only(open_reader(tmp_path, settings=settings(reward_offset=None, action_offset=None)).read(truth.number))
    told = steps(truth.actions, truth.rewards, 0, 0, 0)[: len(episode)]
    assert episode.actions.tolist() == [step[0] for step in told]
    assert episode.rewards[:-1].tolist() == [step[1] for step in told[:-1]]
    assert episode.score > 0
    given = only(open_reader(tmp_path).read(truth.number))
    assert given.actions.tolist() != episode.actions.tolist()


def test_pinball_is_read_without_repairs(tmp_path):
    truth = only(record(tmp_path, Recording("pinball", most_frames=120, quits=0.0), 0))
    config = settings(reward_offset=None, action_offset=None)
    reader = open_reader(tmp_path, settings=config)
    assert reader.spec.env == "ALE/VideoPinball-v5"
    assert len(only(reader.read(truth.number))) == 30


def test_of_several_games_one_must_be_chosen(damaged):
    (damaged / "trajectories/mspacman").mkdir()
    with pytest.raises(ValueError, match=r"holds qbert, mspacman; choose one with --agc.game"):
        open_reader(damaged)
    assert only(open_reader(damaged, settings=settings(game="qbert")).parts()) == 12
    with pytest.raises(ValueError, match=r"mspacman: is not an episode, and holds none"):
        open_reader(damaged, settings=settings(game="mspacman"))
    with pytest.raises(ValueError, match=r"holds no trajectories/revenge; it has qbert, mspacman"):
        open_reader(damaged, settings=settings(game="revenge"))
    with pytest.raises(ValueError, match=r"holds qbert, not revenge; leave out --agc.game"):
        open_reader(damaged / "trajectories/qbert", settings=settings(game="revenge"))


def test_a_folder_of_something_else_is_not_recognised(tmp_path):
    (tmp_path / "trajectories/chess").mkdir(parents=True)
    with pytest.raises(ValueError, match="holds no known format"):
        recognise(tmp_path)
    with pytest.raises(ValueError, match="holds no game of AGC"):
        open_reader(tmp_path, "agc")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"phase": 4}, "--agc.phase = 4: must be at least 0 and at most 3"),
        ({"reward_offset": -1}, "--agc.reward-offset = -1: must be at least 0 and at most 10"),
        ({"action_offset": 11}, "--agc.action-offset = 11: must be at least 0 and at most 10"),
    ],
)
def test_settings_that_make_no_sense_are_refused(config, reason):
    with pytest.raises(ValueError, match=f"^{reason}"):
        AgcConfig(**config)


def test_every_game_has_its_environment():
    assert set(ENVS) == {"spaceinvaders", "qbert", "mspacman", "pinball", "revenge"}
