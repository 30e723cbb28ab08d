"""RLDS datasets on disk, read through tensorflow_datasets where it is installed (it is no dependency).

    FOLDER/dataset_info.json, features.json, *.tfrecord-*     episodes, each with its steps

In step t, `action` was taken at `observation` and gave `reward`; `is_last` marks a step that only shows the final
observation, `is_terminal` says that the environment terminated there. Otherwise the episode was truncated.
"""

import importlib.util
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from rbi.data.episode import Array, DatasetSpec, Episode, RejectedEpisode
from rbi.data.formats.convert import LAYOUT_EPISODES, frame_layout, is_image, spec_of_episode, vectors
from rbi.data.formats.reader import FAULTS, SpecOverrides, end_flags, max_action, natural
from rbi.steps import FrameLayout

PACKAGE = "tensorflow_datasets"


def recognises(path: Path) -> bool:
    return folder(path) is not None


def folder(path: Path) -> Path | None:
    """The folder of the newest version: the path itself, or one in it."""
    inner = [place for place in path.iterdir() if place.is_dir()] if path.is_dir() else []
    places = [path, *sorted(inner, key=lambda place: natural(place.name), reverse=True)]
    needed = ("dataset_info.json", "features.json")
    return next((place for place in places if all((place / name).is_file() for name in needed)), None)


def open_reader(path: Path, settings: Any) -> "RldsReader":
    return RldsReader(path, settings.overrides)


class RldsReader:
    """Episodes of all splits of a dataset; a part is a split."""

    parallel = False

    def __init__(self, path: Path, overrides: SpecOverrides) -> None:
        if importlib.util.find_spec(PACKAGE) is None:
            raise ValueError(f"{path}: RLDS needs {PACKAGE}: pip install tensorflow {PACKAGE}")
        self.path, self.key = path, overrides.obs_key
        try:
            builder = importlib.import_module(PACKAGE).builder_from_directory(str(folder(path)))
            self.splits: dict[str, int] = {name: info.num_examples for name, info in builder.info.splits.items()}
            self.spec = self.find_spec(overrides)
        except Exception as error:  # whatever TensorFlow raises for damaged files
            raise ValueError(f"{path}: cannot be read as RLDS: {reason(error)}") from None

    def find_spec(self, overrides: SpecOverrides) -> DatasetSpec:
        some = (steps for split in self.splits for steps in islice(self.steps(split), LAYOUT_EPISODES))
        episodes = list(filter(len, some))
        if not episodes:
            raise ValueError("it holds no episodes")
        first = self.observations(episodes[0])
        self.frames = FrameLayout()
        if is_image(first):
            self.frames = frame_layout(first.shape[1:], map(self.observations, episodes), channels_first=False)
        return spec_of_episode(first, self.frames, overrides.num_actions or self.largest_action() + 1, overrides)

    def steps(self, split: str) -> Iterator[list[dict[str, Any]]]:
        """The steps of each episode of a split."""
        tfds = importlib.import_module(PACKAGE)
        builder = tfds.builder_from_directory(str(folder(self.path)))
        for episode in tfds.as_numpy(builder.as_dataset(split=split, shuffle_files=False)):
            if "steps" not in episode:
                raise ValueError(f"its examples are not episodes with steps; they have {', '.join(episode)}")
            yield list(episode["steps"])

    def observations(self, steps: list[dict[str, Any]]) -> Array:
        """The observations of an episode; those of several parts become one vector."""
        observed = [step["observation"] for step in steps]
        if not isinstance(observed[0], dict):
            return np.stack([np.asarray(value) for value in observed])
        if self.key:
            if self.key not in observed[0]:
                raise ValueError(f"--obs-key {self.key}: its observations have {', '.join(observed[0])}")
            return np.stack([np.asarray(value[self.key]) for value in observed])
        parts = [[np.asarray(value[name]) for value in observed] for name in sorted(observed[0])]
        if any(part[0].dtype.kind not in "biuf" for part in parts):
            raise ValueError(f"choose a part of its observations with --obs-key: {', '.join(observed[0])}")
        return np.concatenate([vectors(part) for part in parts], axis=1)

    def largest_action(self) -> int:
        found = [
            np.asarray(step["action"]) for split in self.splits for steps in self.steps(split) for step in steps[:-1]
        ]
        actions = np.array([action for action in found if action.ndim == 0 and action.dtype.kind in "iu"], np.int64)
        if len(actions) < len(found):
            raise ValueError("its actions are not discrete; only integers are supported")
        return max_action(actions)

    def parts(self) -> Sequence[str]:
        return list(self.splits)

    def read(self, part: str) -> Iterator[Episode | RejectedEpisode]:
        line, episodes = 0, self.steps(part)
        while True:
            line += 1
            try:
                if (steps := next(episodes, None)) is None:
                    return
            except Exception as error:  # whatever TensorFlow raises for damaged files
                yield RejectedEpisode(part, line, f"the split is damaged from here on ({reason(error)})")
                return
            try:
                episode = self.episode(steps, part, line)
                episode.check_fits(self.spec)
                yield episode
            except FAULTS as error:
                yield RejectedEpisode(part, line, reason(error))

    def episode(self, steps: list[dict[str, Any]], source: str, line: int) -> Episode:
        if not steps:
            raise ValueError("an episode without steps")
        last = steps[-1]
        if not last["is_last"]:
            raise ValueError("an episode without end: no step is the last one")
        obs, taken = self.observations(steps), steps[:-1]
        return Episode(
            observations=self.frames.single_frames(obs) if self.spec.is_image else vectors(obs),
            actions=np.array([step["action"] for step in taken]),
            rewards=np.array([step["reward"] for step in taken], np.float32),
            **end_flags(len(taken), terminated=bool(last["is_terminal"])),
            source=source,
            line=line,
        )


def reason(error: Exception) -> str:
    """An error message in one line."""
    text = " ".join(str(error).split())[:200] or type(error).__name__
    return f"a step lacks {text}" if isinstance(error, KeyError) else text
