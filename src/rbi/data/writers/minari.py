"""Episodes as a Minari data set, for everyone who reads those; our own reader gets back all that it holds.

    PATH/data/metadata.json     spaces, environment, and our `Spec` under "rbi"
    PATH/data/main_data.hdf5    a group an episode, in Minari's layout

Minari wants one observation more than steps: where nobody kept the last one, the one before is repeated, and the
episode's metadata says so (`has_final`). Logging probabilities, legal actions and lost lives go to its infos, entry t
for step t, with one more at the end; who played, source, line and abandoned go to its metadata, as JSON under "rbi".
Minari would keep pictures as JPEG, which is not exact, so we ask for plain bytes.
"""

import inspect
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from rbi.data.episode import Array, DatasetSpec, Episode
from rbi.data.formats.minari import ADDED, OURS
from rbi.data.formats.seam import needs


def write_minari(episodes: Iterable[Episode], spec: DatasetSpec, path: Path | str, data_format: str = "hdf5") -> int:
    """Write episodes as the Minari data set `PATH/data`, which is there whole or not at all; how many there were.

    Its id is the folder's name, with -v0 if that has no version: `minari.load_dataset` finds it where
    MINARI_DATASETS_PATH is the folder around it, and `minari.MinariDataset(PATH / "data")` everywhere. Formats are
    Minari's: hdf5, arrow, parquet; the last two become slow for many episodes.
    """
    path = Path(path)
    if (path / "data").exists():
        raise ValueError(f"{path / 'data'}: is there already; name a new folder")
    growing = path / f".data.{os.getpid()}.tmp"
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
    """An empty data set in a folder."""
    storage = needs("minari.dataset.minari_storage").MinariStorage
    needs("h5py" if data_format == "hdf5" else "pyarrow")
    exact = {"jpeg_encoding": False} if spec.is_image else {}
    if exact and "jpeg_encoding" not in inspect.signature(storage.new).parameters:
        raise ValueError("this Minari can keep pictures only as JPEG, which is not exact: pip install 'minari>=0.5.4'")
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
    """Write the episodes one after the other, then what is said of each."""
    about: list[dict[str, str]] = []
    storage.update_metadata(
        {
            "dataset_id": name,
            "minari_version": needs("minari").__version__,
            "description": "Episodes exported by rbi",
            OURS: asdict(spec),
        }
    )
    storage.update_episodes(buffers(episodes, spec, about))
    storage.update_episode_metadata(about, range(len(about)))
    return len(about)


def buffers(episodes: Iterable[Episode], spec: DatasetSpec, about: list[dict[str, str]]) -> Iterator[Any]:
    """Episodes as Minari takes them; what it has no place for is added to `about`."""
    buffer = needs("minari.data_collector").EpisodeBuffer
    for episode in episodes:
        episode.fits(spec)
        said = {name: getattr(episode, name) for name in ("player", "source", "line", "abandoned", "has_final")}
        about.append({OURS: json.dumps(said)})
        seen = episode.observations
        columns = {key: getattr(episode, name) for name, key in ADDED.items()}
        yield buffer(
            observations=seen if episode.has_final else np.concatenate([seen, seen[-1:]]),
            actions=episode.actions.astype(np.int64),
            rewards=episode.rewards,
            terminations=episode.terminated,
            truncations=episode.truncated,
            infos={key: one_more(column) for key, column in columns.items() if column is not None},
        )


def one_more(column: Array) -> Array:
    """`[T + 1, n]`: infos are as many as observations, and Minari cannot read `[T + 1]` back from Arrow files."""
    return np.concatenate([column, column[-1:]]).reshape(len(column) + 1, -1)


def env_spec(env: str) -> EnvSpec | None:
    """What Gymnasium knows of an environment; of one that is not installed here, its id."""
    try:
        return gymnasium.spec(env) if env else None
    except gymnasium.error.UnregisteredEnv:
        return EnvSpec(env)
    except gymnasium.error.Error as error:
        raise ValueError(f"env = {env!r}: is not an id that Minari could keep ({error})") from None


def dataset_id(path: Path) -> str:
    """The folder's name as Minari takes it: letters, digits, - and _, with a version at the end."""
    name = re.sub(r"[^-\w]", "-", path.resolve().name)
    return name if re.search(r"[^-]-v\d+$", name) else f"{name}-v0"
