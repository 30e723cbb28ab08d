"""Minari data sets, of version 0.5 and before: `<id>/data/metadata.json` and the episodes beside it.

Bytes of two or three dimensions are pictures (Minari may have kept them as JPEG, which is not exact), everything else
becomes a vector, in the order of `gymnasium.spaces.flatten`. Actions must be numbered. What `write_minari` added for
us is read back: logging probabilities, legal actions, lost lives, who played, and whether the last observation is real.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from rbi.data.dataset import RejectedEpisode
from rbi.data.episode import Array, DatasetSpec, Episode
from rbi.data.formats.observations import flattened, single_frames, unseen
from rbi.data.formats.seam import EpisodeSummary, SpecOverrides, needs, summaries, summarize

METADATA = "metadata.json"
OURS = "rbi"
"""What we add to the metadata of a data set (its `DatasetSpec`) and of an episode (JSON) stands under this name."""
ADDED = {name: f"{OURS}_{name}" for name in ("life_lost", "action_probs", "action_masks")}
"""Columns of ours, and what they are called among an episode's infos."""
FAULTS = (ValueError, LookupError, OSError, TypeError, AssertionError, NotImplementedError)
"""What Minari, h5py, pyarrow and Pillow raise when they meet an episode that is damaged."""


def recognises(path: Path) -> bool:
    try:
        metadata = json.loads((folder(path) / METADATA).read_text())
    except (OSError, ValueError):
        return False
    return isinstance(metadata, dict) and {"data_format", "total_episodes"} <= metadata.keys()


def open_reader(path: Path, settings: Any) -> "MinariReader":
    return MinariReader(path, settings.overrides)


def folder(path: Path) -> Path:
    """Where the data lies: the folder that the path names, or `data` in it."""
    return path / "data" if (path / "data" / METADATA).is_file() else path


class MinariReader:
    """Episodes of a Minari data set; a part is an episode's number."""

    parallel = True

    def __init__(self, path: Path, overrides: SpecOverrides) -> None:
        self.path, self.folder = path, folder(path)
        needs("minari")
        storage = needs("minari.dataset.minari_storage").MinariStorage
        try:
            self.metadata = storage.read_raw_metadata(self.folder)
            for name in ("observation_space", "action_space"):  # Minari would build the environment to find them
                if name not in self.metadata:
                    raise ValueError(f"{METADATA} says nothing of the {name}")
            needs("h5py" if self.metadata["data_format"] == "hdf5" else "pyarrow")
            self.storage = storage.read(self.folder)
            self.episodes = int(self.metadata["total_episodes"])
            self.spec = spec_of(self.metadata, self.storage, overrides)
        except FAULTS as error:
            raise ValueError(f"{path}: cannot be read as a Minari data set: {told(error)}") from None

    def parts(self) -> Sequence[int]:
        return range(self.episodes)

    def read(self, part: int) -> Iterator[Episode | RejectedEpisode]:
        try:
            [found] = self.storage.get_episodes([part])
            seen = observations(
                self.storage.observation_space, found["observations"], as_they_are=OURS in self.metadata
            )
            episode = self.episode(part, found, seen)
            episode.fits(self.spec)
            yield episode
        except FAULTS as error:
            yield RejectedEpisode(self.source(part), part + 1, told(error))

    def summaries(self, part: int) -> Iterator[EpisodeSummary | RejectedEpisode]:
        if self.storage.FORMAT != "hdf5":
            yield from summaries(self.read(part))
            return
        try:
            with needs("h5py").File(self.folder / "main_data.hdf5") as file:
                group = file[f"episode_{part}"]
                found = {name: group[name][()] for name in ("actions", "rewards", "terminations", "truncations")}
                infos = group.get("infos", {})
                found["infos"] = {name: infos[name][()] for name in ADDED.values() if name in infos}
            episode = self.episode(part, found, unseen(len(found["actions"]) + 1))
            episode.fits(replace(self.spec, obs_shape=(1,)))
            yield summarize(episode)
        except FAULTS as error:
            yield RejectedEpisode(self.source(part), part + 1, told(error))

    def episode(self, part: int, found: Mapping[str, Any], seen: Array) -> Episode:
        """An episode from what Minari says of it."""
        [metadata] = self.storage.get_episode_metadata([part])
        steps = len(found["rewards"])
        if "total_steps" in metadata and steps != metadata["total_steps"]:  # Minari reads only the first Arrow batch
            raise ValueError(f"{steps} steps can be read, of {metadata['total_steps']}")
        ours = {"source": self.source(part), "line": part + 1, "has_final": True} | json.loads(metadata.get(OURS, "{}"))
        infos, shape = found["infos"] or {}, {"action_masks": (steps, -1)}
        added: dict[str, Any] = {
            name: np.asarray(infos[key])[:steps].reshape(shape.get(name, steps))
            for name, key in ADDED.items()
            if key in infos
        }
        with np.errstate(over="ignore"):
            rewards = np.asarray(found["rewards"]).astype(np.float32)
        terminated = np.asarray(found["terminations"]).astype(bool)
        return Episode(
            observations=seen if ours.pop("has_final") else seen[:-1],
            actions=np.asarray(found["actions"]).reshape(steps) - int(self.storage.action_space.start),
            rewards=rewards,
            terminated=terminated,
            truncated=np.asarray(found["truncations"]).astype(bool) & ~terminated,  # Gymnasium lets both be true
            **added,
            **ours,
        )

    def source(self, part: int) -> str:
        """The file of an episode, seen from the data set's folder."""
        name = "main_data.hdf5" if self.storage.FORMAT == "hdf5" else str(part)
        return str(self.folder.relative_to(self.path) / name)


def spec_of(metadata: Mapping[str, Any], storage: Any, overrides: SpecOverrides) -> DatasetSpec:
    """What the episodes share, as the metadata says it."""
    actions = storage.action_space
    if not isinstance(actions, spaces.Discrete):
        raise ValueError(f"its actions are {actions}; only numbered actions, Discrete, can be used")
    if OURS in metadata:
        spec = DatasetSpec(**metadata[OURS])
    else:
        frame, pictures = frame_of(storage.observation_space)
        env = json.loads(metadata.get("env_spec") or "{}").get("id", "")
        spec = DatasetSpec(frame, int(actions.n), frame_stack=4 if pictures else 1, env=env)
    return replace(
        spec,
        env=overrides.env or spec.env,
        num_actions=overrides.num_actions or spec.num_actions,
        frame_stack=overrides.frame_stack or spec.frame_stack,
    )


def shows_pictures(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3, 4)


def frame_of(space: spaces.Space[Any]) -> tuple[tuple[int, ...], bool]:
    """The shape of an observation of ours, and whether it is a picture."""
    if shows_pictures(space) and space.shape is not None:
        return single_frames(np.zeros((1, *space.shape), np.uint8), channels_first=False).shape[1:], True
    return (spaces.flatdim(space),), False


def observations(space: spaces.Space[Any], values: Any, *, as_they_are: bool) -> Array:
    """All observations of an episode; those that we wrote ourselves stay as they are."""
    if as_they_are:
        return np.asarray(values)
    return single_frames(values, channels_first=False) if shows_pictures(space) else flattened(space, values)


def told(error: Exception) -> str:
    """An error in one line."""
    return " ".join(str(error).split()) or type(error).__name__
