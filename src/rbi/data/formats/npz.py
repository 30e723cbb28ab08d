"""NumPy archives (.npz) of concatenated steps with D4RL's names: observations, actions, rewards, terminals, timeouts.

An episode ends at a terminal or a timeout; rows after the last end are rejected. Other usual names are known, too.
Arrays of objects are pickles and are not read.
"""

import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rbi.data.dataset import Dataset
from rbi.data.episode import Array, Episode, RejectedEpisode
from rbi.data.formats.convert import LAYOUT_EPISODES, frame_layout, is_image
from rbi.data.formats.hdf5 import MAX_COMPRESSION, SMALL_BYTES
from rbi.data.formats.reader import FAULTS, SpecOverrides, one_line
from rbi.steps import IMAGE_STACK

NAMES = {
    "observations": ("observations", "obs", "states"),
    "actions": ("actions", "action", "acts"),
    "rewards": ("rewards", "reward", "rews"),
    "terminations": ("terminals", "terminations", "terminated", "terminateds", "dones"),
    "truncations": ("timeouts", "truncations", "truncated", "truncateds"),
    "action_probs": ("action_probs", "action_prob", "propensities"),
    "action_masks": ("action_masks", "action_mask"),
    "behavior_probs": ("behavior_probs",),
}
PER_ACTION = ("action_masks", "behavior_probs")


def recognises(path: Path) -> bool:
    if path.suffix.lower() != ".npz" or not path.is_file():
        return False
    try:
        return {"observations", "actions", "rewards"} <= members(path).keys()
    except FAULTS:
        return zipfile.is_zipfile(path)


def members(path: Path) -> dict[str, str]:
    """The arrays of an archive by their meaning."""
    with zipfile.ZipFile(path) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
        present = {entry.filename.removesuffix(".npy") for entry in archive.infolist()}
    if size > max(SMALL_BYTES, MAX_COMPRESSION * path.stat().st_size):
        raise ValueError(f"promises {size:,} bytes in a file of {path.stat().st_size:,}")
    found = {role: next((name for name in usual if name in present), None) for role, usual in NAMES.items()}
    return {role: name for role, name in found.items() if name}


def open_reader(path: Path, settings: Any) -> "NpzReader":
    return NpzReader(path, settings.overrides)


class NpzReader:
    """Episodes of one archive, which is read at once; a part is the file."""

    parallel = False

    def __init__(self, path: Path, overrides: SpecOverrides) -> None:
        self.path = path
        try:
            self.dataset = self.load(overrides)
        except FAULTS as error:
            raise ValueError(f"{path}: {one_line(error)}") from None
        self.spec = self.dataset.spec

    def load(self, overrides: SpecOverrides) -> Dataset:
        names = members(self.path)
        for role in ("observations", "actions", "rewards"):
            if role not in names:
                raise ValueError(f"holds no {role} (usually {' or '.join(NAMES[role])})")
        if not {"terminations", "truncations"} & names.keys():
            raise ValueError("nothing says where episodes end: it needs terminals, timeouts, or both")
        with np.load(self.path, allow_pickle=False) as file:
            arrays = {role: np.asarray(file[name]) for role, name in names.items()}
        steps = len(arrays["actions"])
        for role, array in arrays.items():
            if role in ("observations", *PER_ACTION):
                continue
            if array.size != len(array):
                discrete = "; continuous actions are not supported" if role == "actions" else ""
                raise ValueError(f"{names[role]} of shape {array.shape}: must be one number a step{discrete}")
            arrays[role] = array.reshape(len(array))
        arrays.setdefault("terminations", np.zeros(steps, bool))
        observations, stack = single_images(arrays.pop("observations"), arrays)
        found = Dataset.from_arrays(
            observations,
            **arrays,
            num_actions=overrides.num_actions,
            frame_stack=overrides.frame_stack or stack,
            env=overrides.env,
            strict=False,
        )
        found.texts = [self.path.name if text == "arrays" else text for text in found.texts]
        found.rejected = [RejectedEpisode(self.path.name, item.line, item.reason) for item in found.rejected]
        return found

    def parts(self) -> Sequence[Path]:
        return [self.path]

    def datasets(self, _part: Path) -> Iterator[tuple[Dataset, list[RejectedEpisode]]]:
        yield self.dataset, self.dataset.rejected

    def read(self, _part: Path) -> Iterator[Episode | RejectedEpisode]:
        yield from self.dataset
        yield from self.dataset.rejected


def single_images(observations: Array, arrays: dict[str, Array]) -> tuple[Array, int | None]:
    """Observations with single images and channels last, and the frames of a state; vectors are unchanged."""
    if not is_image(observations):
        return observations, None
    ended = arrays["terminations"].astype(bool) | arrays.get("truncations", np.zeros(1)).astype(bool)
    parts = np.split(observations, np.flatnonzero(ended)[:LAYOUT_EPISODES] + 1)
    episodes = [part for part in parts[:LAYOUT_EPISODES] if len(part)]
    layout = frame_layout(observations.shape[1:], episodes, channels_first=True)
    if layout.stacked:  # each episode by itself: the stacks of two episodes do not overlap
        whole = [part for part in np.split(observations, np.flatnonzero(ended) + 1) if len(part)]
        return np.concatenate([layout.single_frames(part) for part in whole]), IMAGE_STACK
    return layout.single_frames(observations), layout.frame_stack(observations.shape[1:])
