"""Datasets of d3rlpy: one HDF5 file, of version 2 (arrays per episode) or 1 (all steps concatenated).

    version 2    columns, num_episodes, version; observations_<i>, actions_<i>, rewards_<i>, terminated_<i>
    version 1    observations, actions, rewards, terminals, optionally episode_terminals; D4RL's timeouts are read too
    before 1.1   the same with discrete_action and without version: a row's reward is that of the step that led to it

Only files from before d3rlpy 1.1 have a final observation, the last row of an episode. An episode that is not
terminated is truncated. Images come channels first. Those of version 1 may be stacked, `(4, 84, 84)`: where consecutive
stacks overlap, only the newest frame of each is kept. Observations of several parts become one vector.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rbi.data.episode import MAX_ACTIONS, Array, DatasetSpec, Episode, RejectedEpisode
from rbi.data.formats.convert import LAYOUT_EPISODES, frame_layout, is_image, vectors
from rbi.data.formats.hdf5 import SIGNATURE, dataset, has, open_hdf5
from rbi.data.formats.reader import (
    FAULTS,
    SpecOverrides,
    end_flags,
    max_action,
    placeholder_observations,
    require_package,
)
from rbi.steps import FrameLayout

FLAT = ("observations", "actions", "rewards", "terminals")


def recognises(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            if file.read(len(SIGNATURE)) != SIGNATURE:
                return False
    except OSError:
        return False
    try:
        h5py = require_package("h5py")
    except ValueError:
        return True  # opening it says what to install
    try:
        with h5py.File(path, "r") as file:
            return all(has(file, name) for name in ("columns", "num_episodes")) or all(has(file, name) for name in FLAT)
    except (OSError, RuntimeError):
        return path.suffix in (".h5", ".hdf5")  # damaged: reported on opening


def open_reader(path: Path, settings: Any) -> "D3rlpyReader":
    return D3rlpyReader(path, settings.overrides)


class Steps(NamedTuple):
    """The steps of an episode as stored; several arrays if observations have several parts."""

    observations: list[Array] | None
    actions: Array
    rewards: Array
    terminated: bool


@dataclass(frozen=True)
class Numbered:
    """Version 2: array names end with the episode's number."""

    episodes: int

    def count(self) -> int:
        return self.episodes

    def line(self, part: int) -> int:
        """The episode's number, from 1."""
        return part + 1

    def steps(self, file: Any, part: int, *, with_observations: bool) -> Steps:
        observed = None
        if with_observations:
            observed = [dataset(file, name)[()] for name in part_names(file, f"observations_{part}")]
        names = (f"{name}_{part}" for name in ("actions", "rewards", "terminated"))
        actions, rewards, terminated = (dataset(file, name)[()] for name in names)
        return Steps(observed, actions, rewards, bool(terminated))

    def max_action(self, file: Any) -> int:
        names = (f"actions_{part}" for part in range(self.episodes))
        return max((max_action(dataset(file, name)[()]) for name in names if has(file, name)), default=0)


@dataclass(frozen=True)
class Flat:
    """Version 1: all rows concatenated; episode i begins at `starts[i]`."""

    starts: tuple[int, ...]
    rows: int
    unfinished: bool
    """Whether the last episode has no end."""
    rewards_of_arrival: bool
    """Whether a row has the reward of the step before it, so that the last row is a final observation."""

    def count(self) -> int:
        return len(self.starts)

    def line(self, part: int) -> int:
        """The row at which an episode begins, from 1."""
        return self.starts[part] + 1

    def steps(self, file: Any, part: int, *, with_observations: bool) -> Steps:
        last = part == len(self.starts) - 1
        if last and self.unfinished:
            raise ValueError("an episode without end: no later row is terminal")
        rows = slice(self.starts[part], self.rows if last else self.starts[part + 1])
        observed = [dataset(file, "observations")[rows]] if with_observations else None
        actions, rewards, terminals = (np.asarray(dataset(file, name)[rows]) for name in FLAT[1:])
        if self.rewards_of_arrival:
            actions, rewards = actions[:-1], rewards[1:]
        return Steps(observed, actions, rewards, bool(terminals.reshape(-1)[-1]))

    def max_action(self, file: Any) -> int:
        return max_action(dataset(file, "actions")[()])


Layout = Numbered | Flat


class D3rlpyReader:
    """Episodes of a d3rlpy file; a part is an episode's number."""

    parallel = False
    knows_lives = True

    def __init__(self, path: Path, overrides: SpecOverrides) -> None:
        self.path = path
        with open_hdf5(path) as file:
            try:
                self.layout = layout_of(file)
                self.frames = frames_of(file, self.layout)
                self.spec = spec_of(file, self.layout, self.frames, overrides)
            except FAULTS as error:
                raise ValueError(f"{path}: {one_line(error)}") from None

    def parts(self) -> Sequence[int]:
        return range(self.layout.count())

    def read(self, part: int) -> Iterator[Episode | RejectedEpisode]:
        yield self.episode(part, with_observations=True)

    def summaries(self, part: int) -> Iterator[Episode | RejectedEpisode]:
        yield self.episode(part, with_observations=False)

    def episode(self, part: int, *, with_observations: bool) -> Episode | RejectedEpisode:
        """An episode, or why it is rejected; optionally without observations."""
        line = self.layout.line(part)
        try:
            with open_hdf5(self.path) as file:
                found = self.layout.steps(file, part, with_observations=with_observations)
            steps = len(found.actions)
            episode = Episode(
                observations=placeholder_observations(steps)
                if found.observations is None
                else to_observations(found.observations, self.frames),
                actions=found.actions.reshape(steps),
                rewards=vectors(found.rewards).reshape(steps),
                **end_flags(steps, terminated=found.terminated),
                source=self.path.name,
                line=line,
            )
            episode.check_fits(self.spec if with_observations else replace(self.spec, obs_shape=(1,)))
            return episode
        except FAULTS as error:
            return RejectedEpisode(self.path.name, line, one_line(error))


def layout_of(file: Any) -> Layout:
    if has(file, "columns"):
        version = dataset(file, "version").asstr()[()] if has(file, "version") else "2.1"
        if version == "2.0":
            raise ValueError("has d3rlpy's format 2.0, which d3rlpy itself no longer reads; export it again")
        episodes = int(dataset(file, "num_episodes")[()])
        if episodes > len(file):
            raise ValueError(f"promises {episodes:,} episodes, and holds {len(file):,} arrays")
        found: Layout = Numbered(episodes)
    else:
        ended = np.zeros(len(dataset(file, "terminals")), bool)
        for name in ("terminals", "episode_terminals", "timeouts"):
            if has(file, name):
                ended |= np.asarray(dataset(file, name)[()]).reshape(-1) != 0
        stops = np.flatnonzero(ended) + 1
        starts = [0, *stops.tolist()]
        unfinished = starts[-1] < len(ended)
        before_1_1 = has(file, "discrete_action") and not has(file, "version")
        found = Flat(tuple(starts if unfinished else starts[:-1]), len(ended), unfinished, before_1_1)
    if not found.count():
        raise ValueError("holds no episodes")
    return found


def frames_of(file: Any, layout: Layout) -> FrameLayout:
    """How the images of a file are laid out, from its first episodes; the default for vectors."""
    version_1 = isinstance(layout, Flat)
    if not version_1 and not has(file, "observations_0"):
        return FrameLayout()
    first = dataset(file, "observations" if version_1 else "observations_0")
    if not is_image(first):
        return FrameLayout()
    some = (images_of(file, layout, part) for part in complete_parts(layout))
    usable = (images for images in some if images.shape[1:] == first.shape[1:])
    return frame_layout(first.shape[1:], usable, channels_first=True)


def images_of(file: Any, layout: Layout, part: int) -> Array:
    """The images of an episode; none if it is damaged, which is reported when it is read."""
    try:
        found = layout.steps(file, part, with_observations=True).observations
    except FAULTS:
        found = None
    return found[0] if found else np.zeros(0)


def complete_parts(layout: Layout) -> range:
    """The first episodes that have an end."""
    unfinished = isinstance(layout, Flat) and layout.unfinished
    return range(min(LAYOUT_EPISODES, layout.count() - unfinished))


def spec_of(file: Any, layout: Layout, frames: FrameLayout, overrides: SpecOverrides) -> DatasetSpec:
    """The spec of the dataset, from its first episode."""
    version_1 = isinstance(layout, Flat)
    actions = dataset(file, "actions" if version_1 else "actions_0")
    discrete = actions.shape[1:] in ((), (1,)) and all_integers(actions[:1000] if actions.shape else actions[()])
    if not discrete:
        raise ValueError(
            f"its actions have the shape {actions.shape[1:]} and type {actions.dtype}; "
            "only discrete actions are supported"
        )
    names = ["observations"] if version_1 else part_names(file, "observations_0")
    first = [dataset(file, name)[:1] for name in names]
    frame = to_observations(first, frames).shape[1:]
    return DatasetSpec(
        frame,
        num_actions=overrides.num_actions or min(layout.max_action(file) + 1, MAX_ACTIONS),
        frame_stack=overrides.frame_stack or (frames.frame_stack(first[0].shape[1:]) if len(frame) > 1 else 1),
        env=overrides.env,
    )


def part_names(file: Any, name: str) -> list[str]:
    """The array of this name, or the arrays of an observation with several parts."""
    if has(file, name):
        return [name]
    found: list[str] = []
    while has(file, f"{name}_{len(found)}"):
        found.append(f"{name}_{len(found)}")
    if not found:
        raise ValueError(f"has no {name}")
    return found


def to_observations(parts: list[Array], frames: FrameLayout) -> Array:
    """Observations as images or vectors."""
    if len(parts) == 1 and is_image(parts[0]):
        return frames.single_frames(parts[0])
    return np.concatenate([vectors(part) for part in parts], axis=1)


def one_line(error: Exception) -> str:
    """An error message without line breaks and without the quotes of a KeyError."""
    return " ".join(str(error).strip("\"'").split()) or type(error).__name__


def all_integers(values: Array) -> bool:
    return values.dtype.kind in "iub" or bool(np.all(values == np.floor(values)))
