"""Episodes that RLlib recorded with `config.offline_data(output=FOLDER)`, read without RLlib.

    FOLDER/<env>/run-*/*.parquet    one row per episode, encoded by msgpack in a column `item` (the default)
    FOLDER/*.json                   one sample batch per line (the old API)

RLlib stops sampling in the middle of an episode and writes it in fragments, which are joined by their id. Rows of
single steps (`output_write_episodes=False`) are read as a table (`tables`). Compressed columns are pickles, which could
run code when they are read: they are refused, with the settings that help.
"""

import base64
import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

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
from rbi.data.formats.reader import (
    FAULTS,
    SpecOverrides,
    end_flags,
    find_files,
    max_action,
    name_in,
    one_line,
    require_package,
)
from rbi.steps import FrameLayout

ITEM = "item"
ROWS = 64
"""Episodes in memory at once."""
MAX_BYTES = 1 << 30
"""Size of a space's arrays, which are compressed."""
RUN_FOLDER = re.compile(r"run-\d+-\d+")
PICKLED = ("BCJNG", "b'BCJNG")
"""How a base64 text of LZ4 frames begins."""
UNPICKLED = (
    "is compressed by RLlib, which pickles it, and pickles are not read since they can run code; record with "
    "output_write_episodes=True, or with output_compress_columns=[]"
)


def recognises(path: Path) -> bool:
    return any(is_item_file(file) for file in find_files(path, ".parquet")[:1]) or any(
        is_batch_file(file) for file in find_files(path, ".json")[:1]
    )


def is_item_file(path: Path) -> bool:
    """Whether the only column is `item`, of bytes."""
    pa, parquet = require_package("pyarrow"), require_package("pyarrow.parquet")
    try:
        schema = parquet.read_schema(path)
    except (pa.ArrowException, OSError):
        return False
    return list(schema.names) == [ITEM] and pa.types.is_binary(schema.types[0])


def is_batch_file(path: Path) -> bool:
    """Whether the first line is a sample batch."""
    try:
        with path.open("rb") as file:
            return b'"type": "SampleBatch"' in (start := file.read(4096)) or b'"type": "MultiAgentBatch"' in start
    except OSError:
        return False


def open_reader(path: Path, settings: Any) -> "RllibReader":
    return RllibReader(path, settings.overrides)


def without_repeats(files: list[Path]) -> list[Path]:
    """Files without those of `run-W-N` folders that the next run of worker W repeats.

    Unless `output_max_rows_per_file` is set, RLlib writes all that it recorded again after each round of sampling.
    """
    folders: dict[Path, list[Path]] = {}
    for file in files:
        folders.setdefault(file.parent, []).append(file)
    runs = [folder for folder in folders if RUN_FOLDER.fullmatch(folder.name)]
    for folder, later in pairwise(runs):
        worker = folder.name.split("-")[1]
        same_worker = folder.parent == later.parent and later.name.split("-")[1] == worker
        if same_worker and first_row(folders[folder][0]) == first_row(folders[later][0]) is not None:
            del folders[folder]
    return [file for kept in folders.values() for file in kept]


def first_row(path: Path) -> Any:
    """The first row of a Parquet file; None if it cannot be read."""
    pa, parquet = require_package("pyarrow"), require_package("pyarrow.parquet")
    try:
        with parquet.ParquetFile(path) as file:
            rows = next(file.iter_batches(batch_size=1), None)
            return None if rows is None else repr(rows.to_pydict())
    except (pa.ArrowException, OSError):
        return None


class Fragment(NamedTuple):
    """Consecutive steps of an episode."""

    id: str
    start: int
    """Number of its first step in the episode."""
    observations: Any
    """As recorded, one more than steps, or as many if nothing says what followed the last one."""
    actions: Array
    rewards: Array
    action_probs: Array | None
    terminated: bool
    truncated: bool
    source: str
    line: int
    observation_space: Any = None
    action_space: Any = None


class RllibReader:
    """Episodes of a recording; all of it is one part, since episodes may span files."""

    parallel = False

    def __init__(self, path: Path, overrides: SpecOverrides) -> None:
        self.path = path
        self.files = without_repeats([file for file in find_files(path, ".parquet") if is_item_file(file)])
        self.files += [file for file in find_files(path, ".json") if is_batch_file(file)]
        if not self.files:
            raise ValueError(f"{path}: holds no recording of RLlib")
        fragments = (item for item in self.fragments() if isinstance(item, Fragment))
        if (first := next(fragments, None)) is None:
            rejected = next((item for item in self.fragments() if isinstance(item, RejectedEpisode)), None)
            raise ValueError(f"{path}: holds no episodes of RLlib" + (f" ({rejected})" if rejected else ""))
        try:
            self.key = overrides.obs_key
            space = space_of(first.observation_space) or inferred_space(first.observations)
            self.space = observed_space(space, self.key)
            self.frames = self.frame_layout()
            self.spec = self.find_spec(first, overrides)
        except FAULTS as error:
            raise ValueError(f"{path}: cannot be read as a recording of RLlib: {one_line(error)}") from None

    def frame_layout(self) -> FrameLayout:
        if not is_image_space(self.space):
            return FrameLayout()
        some = (f for f in self.fragments() if isinstance(f, Fragment) and len(f.actions))
        images = (np.asarray(observed_part(f.observations, self.key)) for f in some)
        usable = (obs for obs in images if obs.shape[1:] == self.space.shape)
        return frame_layout(self.space.shape, islice(usable, LAYOUT_EPISODES), channels_first=False)

    def find_spec(self, first: Fragment, overrides: SpecOverrides) -> DatasetSpec:
        actions = space_of(first.action_space)
        if actions is not None and not isinstance(actions, spaces.Discrete):
            raise ValueError(f"its actions are {actions}; only Discrete actions are supported")
        self.lowest_action = int(actions.start) if actions is not None else 0
        count = overrides.num_actions or (int(actions.n) if actions is not None else self.largest_action() + 1)
        shape, stack = observed_shape(self.space, self.frames)
        return DatasetSpec(
            shape,
            count,
            frame_stack=overrides.frame_stack or stack,
            env=overrides.env,
            has_action_probs=first.action_probs is not None,
        )

    def largest_action(self) -> int:
        return max(max_action(item.actions) for item in self.fragments() if isinstance(item, Fragment))

    def parts(self) -> Sequence[Path]:
        return [self.path]

    def read(self, part: Path) -> Iterator[Episode | RejectedEpisode]:
        assert part == self.path  # there is no other
        waiting: dict[str, list[Fragment]] = {}
        for item in self.fragments():
            if isinstance(item, RejectedEpisode):
                yield item
                continue
            pieces = waiting.setdefault(item.id, [])
            pieces.append(item)
            pieces.sort(key=lambda piece: piece.start)
            if gap(pieces) is None:
                yield self.episode(waiting.pop(item.id))
        for pieces in waiting.values():
            first = pieces[0]
            yield RejectedEpisode(first.source, first.line, f"episode {first.id!r}: {gap(pieces)}")

    def episode(self, pieces: list[Fragment]) -> Episode | RejectedEpisode:
        """An episode from its fragments, or why it is rejected."""
        first, last = pieces[0], pieces[-1]
        try:
            obs = [self.observations(piece) for piece in pieces]
            steps = sum(len(piece.actions) for piece in pieces)
            probs = [piece.action_probs for piece in pieces if piece.action_probs is not None]
            has_probs = self.spec.has_action_probs and len(probs) == len(pieces)
            shown = [part[: len(piece.actions)] for part, piece in zip(obs, pieces, strict=True)]
            episode = Episode(
                observations=np.concatenate([*shown, obs[-1][len(last.actions) :]]),
                actions=np.concatenate([piece.actions for piece in pieces]) - self.lowest_action,
                rewards=np.concatenate([piece.rewards for piece in pieces]),
                **end_flags(steps, terminated=last.terminated),  # else it is truncated: see `gap`
                action_probs=np.concatenate(probs) if has_probs else None,
                source=first.source,
                line=first.line,
            )
            episode.check_fits(self.spec)
            return episode
        except FAULTS as error:
            return RejectedEpisode(first.source, first.line, f"episode {first.id!r}: {one_line(error)}")

    def observations(self, piece: Fragment) -> Array:
        values = observed_part(piece.observations, self.key)
        if is_image_space(self.space):
            return self.frames.single_frames(np.asarray(values, np.uint8))
        return flatten_observations(self.space, values)

    def fragments(self) -> Iterator[Fragment | RejectedEpisode]:
        """Everything that was recorded, file by file."""
        for path in self.files:
            yield from (batch_fragments if path.suffix == ".json" else item_fragments)(path, name_in(self.path, path))


def gap(pieces: list[Fragment]) -> str | None:
    """What an episode's fragments lack; None if they are complete."""
    expected = 0
    for piece in pieces:
        if piece.start > expected:
            return f"steps {expected} to {piece.start - 1} are missing"
        if piece.start < expected:
            return f"step {piece.start} comes twice"
        expected = piece.start + len(piece.actions)
    if not (pieces[-1].terminated or pieces[-1].truncated):
        return f"it has no end: recording stopped after {expected} steps"
    return None


# Episodes encoded by msgpack


def item_fragments(path: Path, name: str) -> Iterator[Fragment | RejectedEpisode]:
    """The rows of a Parquet file."""
    pa, parquet = require_package("pyarrow"), require_package("pyarrow.parquet")
    line = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=ROWS, columns=[ITEM]):
                for item in batch.column(0):
                    line += 1
                    yield decoded(item.as_py(), name, line)
    except (pa.ArrowException, OSError) as error:
        yield RejectedEpisode(name, line + 1, f"the file is damaged from here on ({one_line(error)})")


def decoded(item: bytes | None, name: str, line: int) -> Fragment | RejectedEpisode:
    msgpack = require_package("msgpack")
    try:
        state = msgpack.unpackb(item, object_hook=numpy_array, strict_map_key=False)
        steps = int(state["t"]) - int(state["t_started"])
        logs = (state.get("extra_model_outputs") or {}).get("action_logp")
        obs = joined(buffer(state["observations"]))
        if length(obs) != steps + 1:
            raise ValueError(f"{length(obs)} observations for {steps} steps")
        return Fragment(
            id=str(state["id_"]),
            start=int(state["t_started"]),
            observations=obs,
            actions=np.asarray(buffer(state["actions"])).reshape(steps),
            rewards=np.asarray(buffer(state["rewards"]), np.float64).reshape(steps),
            action_probs=None if logs is None else np.exp(np.asarray(buffer(logs), np.float64)).reshape(steps),
            terminated=bool(state["is_terminated"]),
            truncated=bool(state["is_truncated"]),
            source=name,
            line=line,
            observation_space=state.get("_observation_space") or state["observations"].get("space"),
            action_space=state.get("_action_space") or state["actions"].get("space"),
        )
    except (*FAULTS, msgpack.exceptions.UnpackException) as error:
        return RejectedEpisode(name, line, f"is not an RLlib episode ({one_line(error)})")


def numpy_array(value: dict[Any, Any]) -> Any:
    """Arrays and numbers as msgpack_numpy encodes them. Arrays of objects are pickles, which are left alone."""
    if b"nd" not in value:
        return value
    if value.get(b"kind") == b"O" or not isinstance(value[b"type"], str):
        return None
    dtype = np.dtype(value[b"type"])
    if dtype.kind not in "biuf":
        return None
    found = np.frombuffer(value[b"data"], dtype)
    return found.reshape(value[b"shape"]) if value[b"nd"] else found[0]


def buffer(state: Mapping[str, Any]) -> Any:
    """What a lookback buffer holds, without what it repeats of the fragment before."""
    data, lookback = state["data"], int(state["lookback"])
    if isinstance(data, Mapping):
        return {name: part[lookback:] for name, part in data.items()}
    return data[lookback:]


def joined(values: Any) -> Any:
    """Observations `[T, ...]` from a list of single ones; those of several parts become parts of arrays."""
    if not isinstance(values, list):
        return values
    if values and isinstance(values[0], Mapping):
        return {name: joined([value[name] for value in values]) for name in values[0]}
    if values and isinstance(values[0], list | tuple) and any(isinstance(part, np.ndarray) for part in values[0]):
        return tuple(joined(list(part)) for part in zip(*values, strict=True))
    return np.asarray(values)


def length(values: Any) -> int:
    """The number of observations in arrays or in parts of arrays."""
    while isinstance(values, Mapping | tuple):
        values = next(iter(values.values() if isinstance(values, Mapping) else values))
    return len(values)


def space_of(state: Any) -> Any:
    """A Gymnasium space from RLlib's description of it; None if there is none."""
    match (state or {}).get("space"):
        case "discrete":
            return spaces.Discrete(int(state["n"]), start=int(state.get("start", 0)))
        case "box":
            low, high = (saved_array(state[name]) for name in ("low", "high"))
            return spaces.Box(low, high, tuple(state["shape"]), np.dtype(state["dtype"]).type)
        case "multi-binary":
            return spaces.MultiBinary(state["n"])
        case "multi-discrete":
            return spaces.MultiDiscrete(saved_array(state["nvec"]))
        case "tuple":
            return spaces.Tuple([space_of(part) for part in state["spaces"]])
        case "dict":
            return spaces.Dict({name: space_of(part) for name, part in state["spaces"].items()})
        case None:
            return None
        case "text":
            return spaces.Text(int(state["max_length"]))
        case other:
            raise ValueError(f"observations or actions of the space {other!r} are not supported")


def saved_array(text: str) -> Array:
    """An array that RLlib saved as compressed base64."""
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(base64.b64decode(text), MAX_BYTES)
    return np.load(io.BytesIO(data), allow_pickle=False)


def inferred_space(observations: Any) -> Any:
    """The space of observations that come without one: bytes of two or more dimensions are images."""
    values = np.asarray(observations)
    if values.dtype.kind not in "biuf":
        raise ValueError(f"observations of type {values.dtype} without a space")
    if values.ndim in (3, 4, 5) and values.dtype.kind in "iu" and values.min() >= 0 and values.max() <= 255:
        return spaces.Box(0, 255, values.shape[1:], np.uint8)
    return spaces.Box(-np.inf, np.inf, values.shape[1:], np.float32)


# Sample batches in JSON


def batch_fragments(path: Path, name: str) -> Iterator[Fragment | RejectedEpisode]:
    """The sample batches of a JSON file, split into episodes."""
    try:
        with path.open("rb") as file:
            for line, written in enumerate(file, 1):
                if written.strip():
                    try:
                        yield from split_batch(json.loads(written), name, line)
                    except FAULTS as error:
                        yield RejectedEpisode(name, line, f"is not an RLlib sample batch ({one_line(error)})")
    except OSError as error:
        yield RejectedEpisode(name, 0, f"cannot be read ({error.strerror})")


def split_batch(batch: dict[str, Any], name: str, line: int) -> Iterator[Fragment]:
    """The episodes of a batch, whose rows stand together."""
    if batch.get("type") == "MultiAgentBatch":
        if len(batch["policy_batches"]) != 1:
            raise ValueError("it has several policies; only one is supported")
        [batch] = batch["policy_batches"].values()
    for column, values in batch.items():
        if isinstance(values, str) and values.startswith(PICKLED):
            raise ValueError(f"its column {column!r} {UNPICKLED}")
    actions = np.asarray(batch["actions"])
    count = len(actions)
    rewards, ids = np.asarray(batch["rewards"], np.float64), np.asarray(batch["eps_id"])
    none = np.zeros(count, bool)
    over = np.asarray(batch.get("terminateds", batch.get("dones", none)), bool)
    cut = np.asarray(batch.get("truncateds", none), bool)
    obs, after = np.asarray(batch["obs"]), batch.get("new_obs")
    after = None if after is None else np.asarray(after)
    numbers = np.asarray(batch["t"]) if "t" in batch else None
    logs = batch.get("action_logp")
    probs = batch.get("action_prob") if logs is None else np.exp(np.asarray(logs, np.float64))
    columns = {"obs": obs, "new_obs": after, "rewards": rewards, "eps_id": ids, "t": numbers, "ends": over | cut}
    for column, values in columns.items():
        if values is not None and len(values) != count:
            raise ValueError(f"its column {column!r} has {len(values)} rows for {count} actions")
    parts = (ids[1:] != ids[:-1]) | over[:-1] | cut[:-1]
    if numbers is not None:  # agents of one policy share an id
        parts |= np.diff(numbers) != 1
    for start, stop in pairwise([0, *(np.flatnonzero(parts) + 1).tolist(), count]):
        rows = slice(start, stop)
        yield Fragment(
            id=str(ids[start]),
            start=0 if numbers is None else int(numbers[start]),
            observations=obs[rows] if after is None else np.concatenate([obs[rows], after[stop - 1 : stop]]),
            actions=actions[rows],
            rewards=rewards[rows],
            action_probs=None if probs is None else np.asarray(probs)[rows],
            terminated=bool(over[stop - 1]),
            truncated=bool(cut[stop - 1]),
            source=name,
            line=line,
        )
