"""Minari datasets of version 0.5 and older, read and written.

    PATH/data/metadata.json     spaces, environment, and our `DatasetSpec` under "rbi"
    PATH/data/main_data.hdf5    one group per episode, in Minari's layout (or Arrow, or Parquet files)

uint8 observations of two or three dimensions are images if their space goes up to 255 (Minari may have stored them as
lossy JPEG); everything else becomes a vector in the order of `gymnasium.spaces.flatten`. Actions must be discrete.

Minari wants one more observation than steps: if the final one is missing, `write_minari` repeats the last one, and the
episode's metadata says so (`has_final`). Logged probabilities, action masks and lost lives go to the infos, entry t for
step t with one more at the end; player, source, line and abandoned go to the episode's metadata, as JSON under "rbi".
The reader restores all of this. Images are written as plain bytes, not as JPEG.
"""

import contextlib
import copy
import inspect
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec, WrapperSpec
from PIL import Image

from rbi import fileio
from rbi.config import env_text, parse_env
from rbi.data.episode import Array, DatasetSpec, Episode, RejectedEpisode
from rbi.data.formats.convert import (
    LAYOUT_EPISODES,
    flatten_observations,
    frame_layout,
    is_image_space,
    observed_part,
    observed_shape,
    observed_space,
)
from rbi.data.formats.hdf5 import check_inside, dataset, has, member, open_hdf5
from rbi.data.formats.reader import (
    FAULTS,
    SpecOverrides,
    one_line,
    placeholder_observations,
    require_package,
)
from rbi.steps import MASK, FrameLayout

METADATA, HDF5_FILE = "metadata.json", "main_data.hdf5"
OURS = "rbi"
"""Key of our additions to the metadata of a dataset (its `DatasetSpec`) and of an episode (JSON)."""
ADDED = {name: f"{OURS}_{name}" for name in ("life_lost", "action_probs", "action_masks", "behavior_probs")}
"""Our columns, and their names in an episode's infos. Masks may also be those of the environment, `MASK`."""
MINARI_FAULTS = (*FAULTS, Image.DecompressionBombError)
MISSING = object()
PARALLEL_BYTES = 64 * 2**20  # below it, starting processes takes longer than reading


def recognises(path: Path) -> bool:
    try:
        metadata = json.loads((folder(path) / METADATA).read_text())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(metadata, dict) and {"data_format", "total_episodes"} <= metadata.keys()


def open_reader(path: Path, settings: Any) -> "MinariReader":
    return MinariReader(path, settings.overrides)


def folder(path: Path) -> Path:
    """The folder of the data: the path itself, or `data` in it."""
    return path / "data" if (path / "data" / METADATA).is_file() else path


class MinariReader:
    """Episodes of a Minari dataset; a part is an episode's number."""

    knows_lives = True

    def __init__(self, path: Path, overrides: SpecOverrides) -> None:
        self.path, self.folder = path, folder(path)
        files = filter(Path.is_file, self.folder.rglob("*"))  # not links to nowhere, as in an archive's clone
        self.parallel = sum(file.stat().st_size for file in files) >= PARALLEL_BYTES
        require_package("minari")
        storage = require_package("minari.dataset.minari_storage").MinariStorage
        try:
            self.metadata = fileio.parse(self.folder / METADATA, fileio.read_text(self.folder / METADATA), 1)
            for name in ("observation_space", "action_space"):  # Minari would build the environment to find them
                if name not in self.metadata:
                    raise ValueError(f"{METADATA} lacks the {name}")
            require_package("h5py" if self.metadata["data_format"] == "hdf5" else "pyarrow")
            self.storage = storage.read(self.folder)
            self.episodes = int(self.metadata["total_episodes"])
            held = self.count_held()
            if not 0 <= self.episodes <= held:
                raise ValueError(f"{METADATA} promises {self.episodes:,} episodes, and {held:,} are there")
            self.key = overrides.obs_key
            self.space = observed_space(self.storage.observation_space, self.key)
            self.frames = self.frame_layout()
            self.spec = spec_of(
                self.metadata, self.storage, self.space, self.frames, overrides, has_masks=self.recorded_masks()
            )
        except MINARI_FAULTS as error:
            raise ValueError(f"{path}: cannot be read as a Minari dataset: {one_line(error)}") from None

    def frame_layout(self) -> FrameLayout:
        """How images are laid out, from the first episodes; the default for vectors and for what we wrote."""
        if OURS in self.metadata or not is_image_space(self.space):
            return FrameLayout()
        first = range(min(LAYOUT_EPISODES, self.episodes))
        return frame_layout(self.space.shape or (), filter(len, map(self.images, first)), channels_first=False)

    def images(self, part: int) -> Array:
        """The images of an episode, `[0]` if it is damaged."""
        try:
            self.check_inside(part)
            [found] = self.storage.get_episodes([part])
            return np.asarray(observed_part(found["observations"], self.key))
        except MINARI_FAULTS:
            return np.zeros(0)

    def recorded_masks(self) -> bool:
        """Whether the environment's masks of legal actions were recorded (`DataCollector(record_infos=True)`), as in
        the first episode that can be read."""
        for part in range(0 if OURS in self.metadata else min(LAYOUT_EPISODES, self.episodes)):
            with contextlib.suppress(*MINARI_FAULTS):  # this episode will be rejected
                self.check_inside(part)
                [found] = self.storage.get_episodes([part])
                return MASK in (found["infos"] or {})
        return False

    def count_held(self) -> int:
        """Number of episodes at most: groups of the HDF5 file, or folders."""
        if self.storage.FORMAT != "hdf5":
            return sum(1 for entry in os.scandir(self.folder) if entry.is_dir())
        with open_hdf5(self.folder / HDF5_FILE) as file:
            return len(file)

    def parts(self) -> Sequence[int]:
        return range(self.episodes)

    def read(self, part: int) -> Iterator[Episode | RejectedEpisode]:
        try:
            self.check_inside(part)
            [found] = self.storage.get_episodes([part])
            obs = self.observations(found["observations"])
            episode = self.episode(part, found, obs)
            episode.check_fits(self.spec)
            yield episode
        except MINARI_FAULTS as error:
            yield RejectedEpisode(self.source(part), part + 1, one_line(error))

    def observations(self, values: Any) -> Array:
        """The observations of an episode; those written by us are unchanged."""
        if OURS in self.metadata:
            return np.asarray(values)
        values, image = observed_part(values, self.key), is_image_space(self.space)
        return self.frames.single_frames(values) if image else flatten_observations(self.space, values)

    def check_inside(self, part: int) -> None:
        """Raise ValueError if an episode refers to anything outside its HDF5 file; Minari would follow it."""
        if self.storage.FORMAT == "hdf5":
            with open_hdf5(self.folder / HDF5_FILE) as file:
                check_inside(file, f"episode_{part}")

    def summaries(self, part: int) -> Iterator[Episode | RejectedEpisode]:
        if self.storage.FORMAT != "hdf5":
            yield from self.read(part)
            return
        try:
            with open_hdf5(self.folder / HDF5_FILE) as file:
                group = member(file, f"episode_{part}")
                found = {n: dataset(group, n)[()] for n in ("actions", "rewards", "terminations", "truncations")}
                infos = member(group, "infos") if has(group, "infos") else {}
                found["infos"] = {name: dataset(infos, name)[()] for name in (*ADDED.values(), MASK) if name in infos}
            episode = self.episode(part, found, placeholder_observations(len(found["actions"]) + 1))
            episode.check_fits(replace(self.spec, obs_shape=(1,)))
            yield episode
        except MINARI_FAULTS as error:
            yield RejectedEpisode(self.source(part), part + 1, one_line(error))

    def episode(self, part: int, found: Mapping[str, Any], obs: Array) -> Episode:
        """An episode from Minari's data."""
        [metadata] = self.storage.get_episode_metadata([part])
        steps = len(found["rewards"])
        if "total_steps" in metadata and steps != metadata["total_steps"]:  # Minari reads only the first Arrow batch
            raise ValueError(f"{steps} steps can be read, of {metadata['total_steps']}")
        ours = {"source": self.source(part), "line": part + 1, "has_final": True} | json.loads(metadata.get(OURS, "{}"))
        infos, shape = found["infos"] or {}, {"action_masks": (steps, -1), "behavior_probs": (steps, -1)}
        added: dict[str, Any] = {
            name: np.asarray(infos[key])[:steps].reshape(shape.get(name, steps))
            for name, key in (("action_masks", MASK), *ADDED.items())
            if key in infos
        }
        terminated = np.asarray(found["terminations"]).astype(bool)
        return Episode(
            observations=obs if ours.pop("has_final") else obs[:-1],
            actions=np.asarray(found["actions"]).reshape(steps) - int(self.storage.action_space.start),
            rewards=found["rewards"],
            terminated=terminated,
            truncated=np.asarray(found["truncations"]).astype(bool) & ~terminated,  # both may be true in Gymnasium
            **added,
            **ours,
        )

    def source(self, part: int) -> str:
        """The file of an episode, relative to the dataset's folder."""
        name = HDF5_FILE if self.storage.FORMAT == "hdf5" else str(part)
        return str(self.folder.relative_to(self.path) / name)


def spec_of(
    metadata: Mapping[str, Any],
    storage: Any,
    space: Any,
    frames: FrameLayout,
    overrides: SpecOverrides,
    *,
    has_masks: bool,
) -> DatasetSpec:
    """The spec of the dataset, from its metadata."""
    actions = storage.action_space
    if not isinstance(actions, spaces.Discrete):
        raise ValueError(f"its actions are {actions}; only Discrete actions are supported")
    if OURS in metadata:
        spec = DatasetSpec(**metadata[OURS])
    else:
        shape, stack = observed_shape(space, frames)
        env = recorded_env(json.loads(metadata.get("env_spec") or "{}"))
        spec = DatasetSpec(shape, int(actions.n), frame_stack=stack, env=env, has_action_masks=has_masks)
    return overrides.applied_to(spec)


def write_minari(episodes: Iterable[Episode], spec: DatasetSpec, path: Path | str, data_format: str = "hdf5") -> int:
    """Write episodes as the Minari dataset `PATH/data`, atomically; returns their number.

    Its id is the folder's name, with -v0 if it has no version: `minari.load_dataset` finds it if MINARI_DATASETS_PATH
    is the parent folder, `minari.MinariDataset(PATH / "data")` always. Formats are Minari's hdf5, arrow and parquet;
    the last two are slow for many episodes.
    """
    path = fileio.as_path(path).absolute()  # Minari joins relative paths twice
    if (path / "data").exists():
        raise ValueError(f"{path / 'data'}: already exists; name a new folder")
    growing = fileio.temporary_name(path / "data")
    new = not path.exists()
    growing.mkdir(parents=True)
    try:
        count = fill(new_storage(growing, spec, data_format), episodes, spec, dataset_id(path))
        growing.rename(path / "data")
    except BaseException:
        shutil.rmtree(path if new else growing)
        raise
    return count


def new_storage(folder: Path, spec: DatasetSpec, data_format: str) -> Any:
    """An empty dataset in a folder."""
    storage = require_package("minari.dataset.minari_storage").MinariStorage
    require_package("h5py" if data_format == "hdf5" else "pyarrow")
    exact = {"jpeg_encoding": False} if spec.is_image else {}
    if exact and "jpeg_encoding" not in inspect.signature(storage.new).parameters:
        raise ValueError("this version of Minari stores images as lossy JPEG only: pip install 'minari>=0.5.4'")
    low, high = (0, 255) if spec.is_image else (-np.inf, np.inf)
    return storage.new(
        folder,
        observation_space=spaces.Box(low, high, spec.obs_shape, spec.dtype.type),
        action_space=spaces.Discrete(spec.num_actions),
        env_spec=env_spec(spec.env),
        data_format=data_format,
        **exact,
    )


def fill(storage: Any, episodes: Iterable[Episode], spec: DatasetSpec, name: str) -> int:
    """Write the episodes, then their metadata."""
    metadata: list[dict[str, str]] = []
    storage.update_metadata(
        {
            "dataset_id": name,
            "minari_version": require_package("minari").__version__,
            "description": "Episodes exported by rbi",
            OURS: asdict(spec),
        }
    )
    storage.update_episodes(buffers(episodes, spec, metadata))
    storage.update_episode_metadata(metadata, range(len(metadata)))
    return len(metadata)


def buffers(episodes: Iterable[Episode], spec: DatasetSpec, metadata: list[dict[str, str]]) -> Iterator[Any]:
    """Episodes as Minari's buffers; what they cannot hold is appended to `metadata`."""
    buffer = require_package("minari.data_collector").EpisodeBuffer
    for episode in episodes:
        episode.check_fits(spec)
        extra = {name: getattr(episode, name) for name in ("player", "source", "line", "abandoned", "has_final")}
        metadata.append({OURS: json.dumps(extra)})
        obs = episode.observations
        columns = {key: getattr(episode, name) for name, key in ADDED.items()}
        yield buffer(
            observations=obs if episode.has_final else np.concatenate([obs, obs[-1:]]),
            actions=episode.actions.astype(np.int64),
            rewards=episode.rewards,
            terminations=episode.terminated,
            truncations=episode.truncated,
            infos={key: extended(column) for key, column in columns.items() if column is not None},
        )


def extended(column: Array) -> Array:
    """`[T + 1, n]`: as many infos as observations; Minari cannot read `[T + 1]` back from Arrow files."""
    return np.concatenate([column, column[-1:]]).reshape(len(column) + 1, -1)


def recorded_env(spec: Mapping[str, Any]) -> str:
    """Minari's environment as `rbi.config.parse_env` reads it: its id, and whatever differs from the registered one."""
    id_ = spec.get("id")
    if not isinstance(id_, str):
        return ""
    registered = gymnasium.registry.get(id_)
    usual = registered.kwargs if registered else {}
    arguments = {
        k: v for k, v in (spec.get("kwargs") or {}).items() if k != "render_mode" and usual.get(k, MISSING) != v
    }
    limit = spec.get("max_episode_steps")
    if limit != (registered.max_episode_steps if registered else None):
        arguments["max_episode_steps"] = -1 if limit is None else limit
    if wrappers := spec.get("additional_wrappers"):
        arguments["wrappers"] = [[wrapper_name(wrapper["entry_point"]), wrapper["kwargs"]] for wrapper in wrappers]
    return env_text(id_, arguments)


def wrapper_name(entry_point: str) -> str:
    """The name of one of Gymnasium's wrappers; the entry point of another one."""
    module, _, name = entry_point.partition(":")
    return name if module.startswith("gymnasium.wrappers") else entry_point


def env_spec(env: str) -> EnvSpec | None:
    """Gymnasium's spec of an environment; for one that is not registered, its id alone.

    Of `module:Id` only the id is kept: Gymnasium would import the module, and the name may come from a file.
    """
    if not env:
        return None
    id_, arguments = parse_env(env)
    id_ = id_.rpartition(":")[2]
    try:
        found = copy.deepcopy(gymnasium.spec(id_))
    except gymnasium.error.UnregisteredEnv:
        found = EnvSpec(id_)
    except gymnasium.error.Error as error:
        raise ValueError(f"env = {env!r}: is not an id that Minari accepts ({error})") from None
    wrappers = [(item, {}) if isinstance(item, str) else item for item in arguments.pop("wrappers", [])]
    limit = arguments.pop("max_episode_steps", found.max_episode_steps)
    found.max_episode_steps = None if limit == -1 else limit
    found.kwargs.update(arguments)
    found.additional_wrappers = tuple(
        WrapperSpec(name.rpartition(":")[2], name if ":" in name else f"gymnasium.wrappers:{name}", keywords)
        for name, keywords in wrappers
    )
    return found


def dataset_id(path: Path) -> str:
    """The folder's name as a Minari id: letters, digits, - and _, with a version at the end."""
    name = re.sub(r"[^-\w]", "-", fileio.resolve(path).name)
    return name if re.search(r"[^-]-v\d+$", name) else f"{name}-v0"
