"""Minari data sets: what Minari writes we read, what we write Minari reads."""

import gc
import json
import os
import pickle
import re
import shutil
import warnings

import gymnasium
import h5py
import minari
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from minari.data_collector import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage

from rbi import envs
from rbi.cli import main
from rbi.config import parse_env
from rbi.data.dataset import Dataset
from rbi.data.episode import DatasetSpec, RejectedEpisode
from rbi.data.formats import FormatSettings, dataset_or_path, load_episodes, open_reader, recognise
from rbi.data.formats.convert import flatten_observations
from rbi.data.formats.minari import dataset_id, recorded_env, write_minari
from rbi.data.formats.reader import SpecOverrides
from rbi.data.store import Store
from rbi.envs import EnvConfig
from tests.data.episodes import assert_same, episode, some_episodes

FORMATS = ("hdf5", "arrow", "parquet")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Minari's own folder of data sets, for one test."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return tmp_path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def collect(env, name, data_format, episodes=4):
    """Random play as Minari records it."""
    collector = minari.DataCollector(gymnasium.make(env), data_format=data_format)
    collector.action_space.seed(0)
    for seed in range(episodes):
        collector.reset(seed=seed)
        while not any(collector.step(collector.action_space.sample())[2:4]):
            pass
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Minari asks for authors, links and descriptions
        made = collector.create_dataset(name)
        del collector
        gc.collect()  # its temporary folders go now, with a warning of their own
    return made


def store(folder, observation_space, action_space, data_format="hdf5", episodes=(), **more):
    """A data set made of buffers with Minari's own storage."""
    folder.mkdir()
    storage = MinariStorage.new(folder / "data", observation_space, action_space, data_format=data_format, **more)
    storage.update_metadata({"dataset_id": f"{folder.name}-v0", "minari_version": minari.__version__})
    storage.update_episodes(episodes)
    return folder


def buffer(observations, actions, **columns):
    steps = len(actions)
    last = np.arange(steps) == steps - 1
    return EpisodeBuffer(
        **dict(
            observations=observations, actions=np.asarray(actions), rewards=np.arange(steps) / 2,
            terminations=last, truncations=np.zeros(steps, bool),
        ) | columns
    )  # fmt: skip


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")  # Minari's collector leaves its folder
def test_what_minari_records_is_read_with_equal_numbers(here, data_format):
    recorded = collect("CartPole-v1", "cart/random-v0", data_format)
    folder = here / "cart" / "random-v0"
    assert recognise(folder) == recognise(folder / "data") == "minari"
    episodes = load_episodes(folder)
    assert not episodes.rejected
    assert episodes.spec == DatasetSpec((4,), 2, frame_stack=1, env="CartPole-v1")
    for ours, theirs in zip(episodes, recorded.iterate_episodes(), strict=True):
        assert len(ours.observations) == len(ours) + 1
        for name, column in [("terminated", "terminations"), ("truncated", "truncations")]:
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, column))
        for name in ("observations", "actions", "rewards"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    assert [e.line for e in episodes] == [1, 2, 3, 4]


@pytest.mark.parametrize("data_format", FORMATS)
def test_masks_that_the_environment_reported_are_those_of_the_steps(tmp_path, capsys, data_format):
    """Minari records infos of the reset and of every step: one more than steps."""
    seen, space = np.zeros((4, 2), np.float32), spaces.Box(-np.inf, np.inf, (2,))
    masks = np.array([[1, 1], [0, 1], [1, 0], [0, 0]], np.int8)
    episodes = [buffer(seen, actions, infos={"action_mask": masks}) for actions in ([0, 1, 0], [1, 0, 0], [1, 1, 0])]
    folder = store(tmp_path / "a", space, spaces.Discrete(2), data_format, episodes)
    found = load_episodes(folder)
    assert found.spec.has_action_masks
    assert [one.action_masks.tolist() for one in found] == [masks[:3].astype(bool).tolist()] * 2
    assert ["illegal action" in item.reason for item in found.rejected] == [True]
    reader = open_reader(folder)
    told = [item for part in reader.parts() for item in reader.summaries(part)]
    assert [isinstance(item, RejectedEpisode) for item in told] == [False, True, False]
    assert main(["data", "info", str(folder), "--out", str(tmp_path / "info")]) == 0
    assert re.search(r"action masks +yes", capsys.readouterr().out)


@pytest.mark.parametrize("data_format", FORMATS)
def test_what_we_write_minari_reads(here, data_format):
    rng = np.random.default_rng(0)
    ours = [episode(rng, 5, frame=(40, 36)), episode(rng, 1, frame=(40, 36), end="truncated", final=False)]
    environment = dict(os.environ)
    assert (
        write_minari(ours, DatasetSpec((40, 36), 4, frame_stack=4, env="ALE/Qbert-v5"), here / "mine-v3", data_format)
        == 2
    )
    assert dict(os.environ) == environment
    assert names(here / "mine-v3") == ["data"]
    found = minari.load_dataset("mine-v3")
    assert (found.spec.dataset_id, found.total_steps) == ("mine-v3", 6)
    assert found.spec.env_spec.id == "ALE/Qbert-v5"
    assert found.spec.action_space == spaces.Discrete(4)
    for one, theirs in zip(ours, found.iterate_episodes(), strict=True):
        seen = one.observations if one.has_final else np.concatenate([one.observations, one.observations[-1:]])
        np.testing.assert_array_equal(theirs.observations, seen, "pictures are kept exactly")
        np.testing.assert_array_equal(theirs.actions, one.actions)
        np.testing.assert_array_equal(theirs.rewards, one.rewards)
        np.testing.assert_array_equal(theirs.terminations, one.terminated)
        np.testing.assert_array_equal(theirs.truncations, one.truncated)


@settings(max_examples=12)
@pytest.mark.parametrize("data_format", FORMATS)
@given(written=some_episodes())
def test_the_round_trip_loses_nothing(tmp_path_factory, data_format, written):
    folder = tmp_path_factory.mktemp("minari") / "out"
    spec = Dataset.from_episodes(written).spec
    spec = DatasetSpec(
        spec.obs_shape,
        4,
        frame_stack=2,
        env="CartPole-v1",
        has_action_probs=spec.has_action_probs,
        has_action_masks=spec.has_action_masks,
    )
    write_minari(iter(written), spec, folder, data_format)
    found = load_episodes(folder)
    assert found.spec == spec
    assert not found.rejected
    for one, other in zip(written, found, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("data_format", FORMATS)
def test_summaries_are_those_of_the_episodes(tmp_path, data_format):
    rng = np.random.default_rng(1)
    written = [episode(rng, 4, end=end, lives=True, probs=True) for end in ("terminated", "truncated", "abandoned")]
    write_minari(written, DatasetSpec((3,), 4, has_action_probs=True), tmp_path / "a", data_format)
    reader = pickle.loads(pickle.dumps(open_reader(tmp_path / "a")))
    for part, one in zip(reader.parts(), written, strict=True):
        [told] = reader.summaries(part)
        assert_same(told, one, but="observations")


def test_a_failed_export_leaves_nothing_and_a_dataset_is_not_written_over(tmp_path):
    rng = np.random.default_rng(0)
    spec = DatasetSpec((3,), 4)
    with pytest.raises(ValueError, match="observations of shape"):
        write_minari([episode(rng, 3), episode(rng, 3, frame=(2,))], spec, tmp_path / "a")
    assert not names(tmp_path)
    write_minari([episode(rng, 3)], spec, tmp_path / "a")
    with pytest.raises(ValueError, match="already exists"):
        write_minari([episode(rng, 3)], spec, tmp_path / "a")
    with pytest.raises(ValueError, match="env = 'no id'"):
        write_minari([episode(rng, 3)], DatasetSpec((3,), 4, env="no id"), tmp_path / "b")
    assert names(tmp_path) == ["a"]


def test_a_folder_that_is_there_keeps_what_else_is_in_it(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    write_minari([episode(np.random.default_rng(0), 3)], DatasetSpec((3,), 4), tmp_path)
    assert names(tmp_path) == ["config.json", "data"]


@pytest.mark.parametrize(
    ("folder", "expected"),
    [("mine", "mine-v0"), ("mine-v12", "mine-v12"), ("a b.c", "a-b-c-v0"), ("-v1", "-v1-v0")],
)
def test_ids_are_those_that_minari_takes(tmp_path, folder, expected):
    assert dataset_id(tmp_path / folder) == expected
    minari.dataset.minari_dataset.parse_dataset_id(expected)


@pytest.mark.parametrize("data_format", FORMATS)
@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(5, start=2),
        spaces.MultiBinary(3),
        spaces.Box(-1, 1, (2, 3), np.float64),
        spaces.Box(0, 255, (6,), np.uint8),
        spaces.Box(0, 1, (6, 7, 2), np.uint8),
        spaces.Dict({"b": spaces.Box(0, 1, (2,)), "a": spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, (1, 2))])}),
        spaces.MultiDiscrete([2, 4], start=[1, 0]),
    ],
    ids=lambda space: type(space).__name__,
)
def test_observations_become_the_vectors_that_gymnasium_flattens(tmp_path, data_format, space):
    space.seed(0)
    samples = [space.sample() for _ in range(4)]
    batch = gymnasium.vector.utils.concatenate(space, samples, gymnasium.vector.utils.create_empty_array(space, 4))
    expected = [spaces.flatten(space, sample) for sample in samples]
    np.testing.assert_allclose(flatten_observations(space, batch), expected, rtol=1e-7)
    folder = store(tmp_path / "a", space, spaces.Discrete(3, start=1), data_format, [buffer(batch, [1, 3, 2])])
    [found] = load_episodes(folder)
    np.testing.assert_allclose(found.observations, expected, rtol=1e-7)
    assert found.observations.dtype == np.float32
    np.testing.assert_array_equal(found.actions, [0, 2, 1])


def stacks(frames, count):
    """Frames as an environment stacks them: the first one is repeated."""
    padded = np.concatenate([frames[:1]] * (count - 1) + [frames])
    return np.stack([padded[t : t + count] for t in range(len(frames))])


@pytest.mark.parametrize(
    ("shape", "expected", "stack"),
    [
        ((40, 36), lambda x: x, 4),
        ((40, 36, 3), lambda x: x, 4),
        ((40, 36, 1), lambda x: x[..., 0], 4),
        ((1, 40, 36), lambda x: x[:, 0], 4),
        ((3, 40, 36), lambda x: x.transpose(0, 2, 3, 1), 4),
        ((5, 5, 20), lambda x: x, 4),
        ((2, 6, 7), lambda x: x.transpose(0, 2, 3, 1), 1),
        ((4, 9, 9), lambda x: x.transpose(0, 2, 3, 1), 1),
    ],
)
def test_images_become_frames_with_channels_last_and_no_plane_is_lost(tmp_path, shape, expected, stack):
    seen = np.random.default_rng(0).integers(0, 256, (3, *shape), dtype=np.uint8)
    space = spaces.Box(0, 255, shape, np.uint8)
    folder = store(tmp_path / "a", space, spaces.Discrete(2), "hdf5", [buffer(seen, [0, 1])], jpeg_encoding=False)
    found = load_episodes(folder)
    np.testing.assert_array_equal(found[0].observations, expected(seen))
    assert found.spec.frame_stack == stack


@pytest.mark.parametrize(("shape", "count"), [((40, 36), 4), ((9, 8), 2), ((9, 8, 3), 2)])
def test_planes_that_continue_those_of_the_step_before_are_a_stack_of_which_the_newest_is_kept(tmp_path, shape, count):
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 256, (steps + 1, *shape), dtype=np.uint8) for steps in (1, 3)]
    space = spaces.Box(0, 255, (count, *shape), np.uint8)
    buffers = [buffer(stacks(f, count), [0, 1, 1][: len(f) - 1]) for f in frames]
    found = load_episodes(store(tmp_path / "a", space, spaces.Discrete(2), "hdf5", buffers, jpeg_encoding=False))
    assert found.spec.frame_stack == 4
    for ours, expected in zip(found, frames, strict=True):
        np.testing.assert_array_equal(ours.observations, expected)


def test_an_episode_whose_planes_are_no_stack_as_the_first_ones_are_is_rejected(tmp_path):
    rng = np.random.default_rng(0)
    buffers = [buffer(stacks(rng.integers(0, 256, (3, 6, 7), np.uint8), 4), [0, 1]) for _ in range(9)]
    buffers.append(buffer(rng.integers(0, 256, (3, 4, 6, 7), np.uint8), [0, 1]))
    space = spaces.Box(0, 255, (4, 6, 7), np.uint8)
    found = load_episodes(store(tmp_path / "a", space, spaces.Discrete(2), "hdf5", buffers, jpeg_encoding=False))
    assert len(found) == 9
    assert "do not overlap like stacked frames" in found.rejected[0].reason


def test_jpeg_images_are_read_as_minari_decodes_them(tmp_path):
    seen = np.full((3, 40, 36), 128, np.uint8) + np.arange(36, dtype=np.uint8)
    space = spaces.Box(0, 255, (40, 36), np.uint8)
    folder = store(tmp_path / "a", space, spaces.Discrete(2), "hdf5", [buffer(seen, [0, 1])])
    [theirs] = minari.MinariDataset(folder / "data").iterate_episodes()
    [found] = load_episodes(folder)
    np.testing.assert_array_equal(found.observations, theirs.observations)
    assert np.abs(found.observations.astype(int) - seen).max() < 8


def test_bad_episodes_are_rejected_with_their_number_and_the_rest_is_read(tmp_path):
    space, off = spaces.Box(-np.inf, np.inf, (2,)), np.zeros(3, bool)
    seen = np.zeros((4, 2), np.float32)
    episodes = [
        buffer(seen, [0, 1, 0]),
        buffer(seen, [0, 1, 0], terminations=off),
        buffer(seen, [0, 5, 0]),
        buffer(seen, [0, 1, 0], terminations=~off),
        buffer(seen * np.nan, [0, 1, 0]),
        buffer(seen, [1, 1, 1], truncations=np.array([False, False, True])),
        buffer(seen, [0, 1, 0]),
    ]
    folder = store(tmp_path / "a", space, spaces.Discrete(2), "hdf5", episodes)
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        del file["episode_6"]["rewards"]
    found = load_episodes(folder)
    assert [e.line for e in found] == [1, 6]
    assert found[1].terminated[-1], "terminated counts before truncated"
    assert [p.line for p in found.rejected] == [2, 3, 4, 5, 7]
    assert {p.source for p in found.rejected} == {"data/main_data.hdf5"}
    for problem, reason in zip(
        found.rejected, ["without end", "action 5", "step 0 of 3", "nan", "rewards"], strict=True
    ):
        assert reason in problem.reason
    reader = open_reader(folder)
    told = [item for part in reader.parts() for item in reader.summaries(part)]
    assert [p.line for p in told if isinstance(p, RejectedEpisode)] == [2, 3, 4, 7], "one needs a look at observations"


def test_an_arrow_episode_that_minari_reads_only_in_part_is_rejected(tmp_path):
    steps = 140_000  # Arrow hands on batches of 131,072 rows, and Minari takes the first
    seen = np.zeros((steps + 1, 1), np.float32)
    whole = buffer(seen[:4], [0, 1, 0])
    long = buffer(seen, np.zeros(steps, np.int64))
    folder = store(tmp_path / "a", spaces.Box(-1, 1, (1,)), spaces.Discrete(2), "parquet", [whole, long])
    found = load_episodes(folder)
    assert [len(e) for e in found] == [3]
    assert [(p.source, p.line) for p in found.rejected] == [("data/1", 2)]
    assert "of 140000" in found.rejected[0].reason


MISSION = spaces.Dict(
    {"direction": spaces.Discrete(4), "image": spaces.Box(0, 255, (7, 7, 3), np.uint8), "mission": spaces.Text(20)}
)


def test_of_dict_observations_with_texts_a_part_is_chosen_and_info_and_import_agree(tmp_path, capsys):
    rng = np.random.default_rng(0)
    seen = {
        "direction": rng.integers(0, 4, 4), "image": rng.integers(0, 256, (4, 7, 7, 3), np.uint8),
        "mission": ["get a key", "get a key", "get a ball", "get a ball"],
    }  # fmt: skip
    folder = store(tmp_path / "a", MISSION, spaces.Discrete(3), episodes=[buffer(seen, [0, 1, 2])], jpeg_encoding=False)
    for command in ("info", "import"):
        assert main(["data", command, str(folder), "--out", str(tmp_path / command)]) == 2
        assert "choose a part with --obs-key: direction, image" in capsys.readouterr().err
        assert not (tmp_path / command).exists()
    found = load_episodes(folder, settings=FormatSettings(SpecOverrides(obs_key="image")))
    np.testing.assert_array_equal(found[0].observations, seen["image"])
    found = load_episodes(folder, settings=FormatSettings(SpecOverrides(obs_key="direction")))
    np.testing.assert_array_equal(found[0].observations, np.eye(4)[seen["direction"]])
    for key, told in (("mission", "cannot be numbers"), ("colour", "have direction, image, mission")):
        with pytest.raises(ValueError, match=told):
            load_episodes(folder, settings=FormatSettings(SpecOverrides(obs_key=key)))


def record(env, name):
    """One episode of random play in an environment."""
    collector = minari.DataCollector(env)
    collector.reset(seed=0)
    while not any(collector.step(0)[2:4]):
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collector.create_dataset(name)
        del collector
        gc.collect()


@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")
def test_arguments_time_limit_and_wrappers_of_the_environment_are_kept_and_used(here):
    made = gymnasium.make("FrozenLake-v1", is_slippery=False, max_episode_steps=7)
    record(gymnasium.wrappers.TimeAwareObservation(gymnasium.make("CartPole-v1", max_episode_steps=5)), "timed-v0")
    record(made, "lake-v0")
    record(gymnasium.make("CartPole-v1"), "plain-v0")
    assert open_reader(here / "plain-v0").spec.env == "CartPole-v1"
    lake = load_episodes(here / "lake-v0").spec
    assert parse_env(lake.env) == ("FrozenLake-v1", {"is_slippery": False, "max_episode_steps": 7})
    vector_env = envs.make(EnvConfig.of(lake.env), 1)
    assert vector_env.envs[0].spec.kwargs["is_slippery"] is False
    assert vector_env.envs[0].spec.max_episode_steps == 7
    timed = load_episodes(here / "timed-v0")
    assert envs.make(EnvConfig.of(timed.spec.env), 1).obs_shape == timed.spec.obs_shape == (5,)
    for name in ("lake", "timed"):
        write_minari(list(load_episodes(here / f"{name}-v0")), load_episodes(here / f"{name}-v0").spec, here / "again")
        again = minari.MinariDataset(here / "again" / "data").env_spec
        theirs = minari.load_dataset(f"{name}-v0").env_spec
        assert (again.id, again.kwargs, again.max_episode_steps) == (theirs.id, theirs.kwargs, theirs.max_episode_steps)
        assert [w.kwargs for w in again.additional_wrappers] == [w.kwargs for w in theirs.additional_wrappers]
        shutil.rmtree(here / "again")


def test_a_wrapper_of_another_package_is_made_only_where_the_user_names_it():
    text = recorded_env({"id": "CartPole-v1", "max_episode_steps": 500, "additional_wrappers": [
        {"name": "Own", "entry_point": "os.path:join", "kwargs": {}}]})  # fmt: skip
    with pytest.raises(ValueError, match="imports a module"):
        envs.id_from_file(text, "store.json")
    unknown = recorded_env({"id": "CartPole-v1", "max_episode_steps": 500, "additional_wrappers": [
        {"name": "TransformReward", "entry_point": "gymnasium.wrappers:TransformReward", "kwargs": None}]})  # fmt: skip
    with pytest.raises(ValueError, match="TransformReward are not known"):
        envs.make(EnvConfig.of(unknown), 1)


def test_what_the_user_says_counts(tmp_path):
    write_minari([episode(np.random.default_rng(0), 3)], DatasetSpec((3,), 4, env="CartPole-v1"), tmp_path / "a")
    overrides = FormatSettings(SpecOverrides(env="Taxi-v3", num_actions=9, frame_stack=3))
    assert open_reader(tmp_path / "a", settings=overrides).spec == DatasetSpec((3,), 9, frame_stack=3, env="Taxi-v3")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"action_space": '{"type": "Box", "dtype": "float32", "shape": [1], "low": [0], "high": [1]}'}, "Discrete"),
        ({"observation_space": None}, "lacks the observation_space"),
        ({"data_format": "tape"}, "tape"),
    ],
)
def test_a_dataset_that_cannot_be_used_is_refused_in_one_line(tmp_path, change, reason):
    write_minari([episode(np.random.default_rng(0), 3)], DatasetSpec((3,), 4), tmp_path / "a")
    file = tmp_path / "a" / "data" / "metadata.json"
    metadata = json.loads(file.read_text()) | change
    file.write_text(json.dumps({name: value for name, value in metadata.items() if value is not None}))
    with pytest.raises(ValueError, match=reason) as refused:
        open_reader(tmp_path / "a")
    assert str(tmp_path / "a") in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_link_to_nowhere_beside_the_data_is_ignored(tmp_path):
    observations = spaces.Box(-1, 1, (2,), np.float32)
    episodes = [buffer(np.zeros((3, 2), np.float32), [0, 1])]
    folder = store(tmp_path / "a", observations, spaces.Discrete(2), episodes=episodes)
    (folder / "data" / "notes").symlink_to(tmp_path / "nowhere")
    assert len(load_episodes(folder)) == 1


def test_other_folders_are_not_taken_for_minari(tmp_path):
    (tmp_path / "metadata.json").write_text("[1]")
    for path in (tmp_path, tmp_path / "metadata.json", tmp_path / "nothing"):
        with pytest.raises(ValueError, match=r"no known format|no such file"):
            recognise(path)


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_an_import_of_what_minari_recorded_goes_on_with_the_episodes_that_are_missing(here, data_format):
    recorded = collect("CartPole-v1", "cart/random-v0", data_format, episodes=6)
    arguments = ["data", "import", str(here / "cart" / "random-v0"), "--out", str(here / "s")]
    assert main(arguments) == 0
    index = here / "s" / "episodes.bin"
    index.write_bytes(index.read_bytes()[: 2 * len(index.read_bytes()) // 6])  # as a kill after two of six leaves it
    assert main([*arguments, "--resume"]) == 0
    found = Store(here / "s")
    assert [len(one) for one in found] == [len(one.rewards) for one in recorded.iterate_episodes()]
    for one, other in zip(found, recorded.iterate_episodes(), strict=True):
        np.testing.assert_array_equal(one.actions, other.actions)


def test_what_minari_loads_stands_for_its_folder_unless_episodes_are_left_out(here):
    collect("CartPole-v1", "mine-v0", "hdf5")
    loaded = minari.load_dataset("mine-v0")
    for found, stored in zip(load_episodes(loaded), load_episodes(here / "mine-v0"), strict=True):
        np.testing.assert_array_equal(found.observations, stored.observations)
        np.testing.assert_array_equal(found.actions, stored.actions)
    assert len(load_episodes(dataset_or_path(loaded))) == 4
    with pytest.raises(ValueError, match=r"^3 of the 4 episodes of a Minari dataset: load all of them"):
        load_episodes(loaded.filter_episodes(lambda episode: episode.id != 1))
