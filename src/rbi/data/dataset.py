"""A dataset: episodes stored as contiguous columns, with an index of where each episode lies."""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self, overload

import numpy as np

from rbi.data.episode import (
    Array,
    DatasetSpec,
    Episode,
    RejectedEpisode,
    as_array,
    bad_behavior_probs,
    booleans,
    differing_probs,
    end_codes,
    integer_actions,
)
from rbi.data.summary import DatasetSummary
from rbi.suggestions import Suggesting, with_suggestions

RECORD = np.dtype(
    [
        ("first_observation", "<i8"),
        ("first_step", "<i8"),
        ("observations", "<i4"),
        ("steps", "<i4"),
        ("player", "<i4"),  # index into texts
        ("source", "<i4"),  # index into texts
        ("line", "<i8"),
        ("score", "<f8"),
        ("abandoned", "<u4"),
        ("checksum", "<u4"),  # CRC-32 of its bytes in all columns, in their order; 0 in memory
        ("record_checksum", "<u4"),  # CRC-32 of the fields above; 0 in memory
    ]
)
"""The index entry of an episode."""
SEQUENTIAL_SUM = 8
"""NumPy adds fewer values than this one after the other, as `reduceat` does; longer sums are pairwise."""


def columns(spec: DatasetSpec) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """The columns of a dataset: name -> dtype and shape of one entry."""
    found: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
        "observations": (spec.dtype, spec.obs_shape),
        "actions": (np.dtype("<i4"), ()),
        "rewards": (np.dtype("<f4"), ()),
        "terminated": (np.dtype(bool), ()),
        "truncated": (np.dtype(bool), ()),
        "life_lost": (np.dtype(bool), ()),
    }
    if spec.has_action_probs:
        found["action_probs"] = (np.dtype("<f4"), ())
    if spec.has_action_masks:
        found["action_masks"] = (np.dtype(bool), (spec.num_actions,))
    if spec.has_behavior_probs:
        found["behavior_probs"] = (np.dtype("<f4"), (spec.num_actions,))
    return found


class Dataset(Suggesting, Sequence[Episode]):
    """Episodes with a common spec. `dataset[i]` is an `Episode` of views, `dataset[i:j]` a `Dataset`.

    `arrays["observations"]` is `[F, *obs_shape]`, every other column `[S, ...]`; `records` `[E]` holds `RECORD`s, whose
    episodes lie one after the other and fill the columns.
    `rejected` lists the episodes of the source that could not be used, with file, line and reason. `num_lost` counts
    those that a store has lost.
    """

    num_lost = 0

    def __init__(
        self,
        spec: DatasetSpec,
        arrays: dict[str, Array],
        records: Array,
        texts: Sequence[str],
        rejected: Sequence[RejectedEpisode] = (),
    ) -> None:
        if not isinstance(spec, DatasetSpec):
            raise TypeError(f"spec is of type {type(spec).__name__}; rbi.Dataset.from_arrays makes a dataset of arrays")
        self.spec, self.arrays, self.records, self.texts, self.rejected = spec, arrays, records, texts, list(rejected)
        self.table_roles: dict[str, Any] = {}  # how the columns of its table were named (`TableConfig.roles`)

    @classmethod
    def from_episodes(
        cls, episodes: Iterable[Episode], spec: DatasetSpec | None = None, rejected: Sequence[RejectedEpisode] = ()
    ) -> Self:
        """A dataset in memory. Without a spec, it is inferred from the episodes."""
        episodes = list(episodes)
        spec = spec or infer_spec(episodes)
        texts: dict[str, int] = {}
        records = np.zeros(len(episodes), RECORD)
        frames = steps = 0
        for record, episode in zip(records, episodes, strict=True):
            episode.check_fits(spec)
            fill_record(record, episode, frames, steps, texts)
            frames, steps = frames + len(episode.observations), steps + len(episode)
        arrays = {
            name: np.concatenate([np.zeros((0, *shape), dtype), *(getattr(episode, name) for episode in episodes)])
            for name, (dtype, shape) in columns(spec).items()
        }
        return cls(spec, read_only(arrays), records, list(texts), rejected)

    @classmethod
    @with_suggestions
    def from_arrays(
        cls,
        observations: Any,
        actions: Any,
        rewards: Any,
        terminations: Any,
        truncations: Any = None,
        *,
        action_probs: Any = None,
        action_masks: Any = None,
        behavior_probs: Any = None,
        life_losses: Any = None,
        num_actions: int | None = None,
        frame_stack: int | None = None,
        env: str = "",
        strict: bool = True,
    ) -> Self:
        """A dataset from arrays of steps, episodes one after the other.

        `observations` `[S, size]` (converted to float32) or images `[S, H, W]` / `[S, H, W, C]` of uint8; all others
        `[S]`, but `action_masks` and `behavior_probs` (of all actions) `[S, A]`; all are copied. An episode ends at
        each termination or truncation. A policy sees the last `frame_stack` images, by default four as in environments.
        An invalid episode raises a ValueError; with `strict=False` it goes to `.rejected` instead.

        >>> import numpy as np
        >>> Dataset.from_arrays(np.zeros((3, 2)), [0, 1, 1], [0, 0, 1], [False, False, True])
        Dataset(1 episode, 3 steps; observations (2,), 2 actions; mean score 1)
        """
        given = {"action_probs": action_probs, "action_masks": action_masks, "behavior_probs": behavior_probs}
        columns_ = step_columns(observations, actions, rewards, terminations, truncations, life_losses, given)
        observed, taken, steps = columns_["observations"], columns_["actions"], len(columns_["observations"])
        widths = {columns_[name].shape[1] for name in ("action_masks", "behavior_probs") if name in columns_}
        if len(widths | {num_actions} - {None}) > 1:
            raise ValueError(
                f"action_masks and behavior_probs of {sorted(widths)} actions, num_actions = {num_actions}"
            )
        num_actions = num_actions or next(iter(widths), None)
        spec = DatasetSpec(
            observed.shape[1:],
            num_actions or max(1, int(taken.max()) + 1),
            frame_stack or (4 if observed.ndim > 2 else 1),
            env,
            has_action_probs=action_probs is not None,
            has_action_masks=action_masks is not None,
            has_behavior_probs=behavior_probs is not None,
        )
        ends = np.flatnonzero(columns_["terminated"] | columns_["truncated"]) + 1
        starts = np.concatenate([[0], ends[ends < steps]]).astype(np.int64)
        found, rejected = assemble(
            cls,
            spec,
            columns_,
            starts,
            names=["", "arrays"],
            sources=1,
            lines=starts + 1,
            where=lambda e: ("arrays", int(starts[e]) + 1),
        )
        found.rejected = [item for _, item in rejected]
        if strict and rejected:
            raise ValueError(str(rejected[0][1]))
        return found

    @classmethod
    @with_suggestions
    def from_frame(
        cls,
        frame: Any,
        *,
        action: str | None = None,
        reward: str | None = None,
        observations: Sequence[str] = (),
        episode: str | None = None,
        step: str | None = None,
        terminated: str | None = None,
        truncated: str | None = None,
        action_prob: str | None = None,
        action_mask: str | None = None,
        behavior_probs: str | None = None,
        player: str | None = None,
        num_actions: int | None = None,
        env: str = "",
        like: "DatasetSpec | Dataset | None" = None,
        strict: bool = False,
    ) -> "Dataset":
        """A dataset from a pandas or polars DataFrame, or a pyarrow Table, with one row per step.

        Arguments are column names. Columns with the usual names (`episode_id`, `t`, `obs_0`, ...) are found without
        them. Without a column of episodes, rows in the order of time are cut after each end; without ends either, every
        row is an episode of one step, as in the log of a bandit.
        Observed columns of text become one-hot vectors, dates days since 1970-01-01, missing numbers the median with a
        further feature that says so; `like`, an earlier dataset or its spec, encodes them with its categories and
        medians, and actions with its names. The other columns of an earlier dataset are found without arguments, too.
        Rows are validated like those of a CSV file: episodes with invalid rows go to `.rejected` (row numbers from 1);
        with `strict` the first one raises a ValueError.
        """
        from rbi.data.formats.tables import read_frame

        config = {
            "action": action, "reward": reward, "episode": episode, "step": step,
            "observations": observations if isinstance(observations, str) else tuple(observations),
            "terminated": terminated, "truncated": truncated, "action_prob": action_prob, "action_mask": action_mask,
            "behavior_probs": behavior_probs, "player": player,
        }  # fmt: skip
        found = read_frame(frame, config, num_actions, env, like)
        if strict and found.rejected:
            raise ValueError(str(found.rejected[0]))
        return found

    @property
    def feature_names(self) -> list[str]:
        """Names of the numbers of a vector observation, where they come from the columns of a table."""
        return [name for feature in self.spec.features for name in feature.number_names]

    @property
    def steps(self) -> int:
        """Number of steps."""
        return int(self.records["steps"].sum())

    @property
    def frames(self) -> int:
        """Number of observations."""
        return int(self.records["observations"].sum())

    @property
    def scores(self) -> Array:
        """The sum of each episode's rewards."""
        return self.records["score"]

    @property
    def players(self) -> list[str]:
        """Who played each episode."""
        return [self.texts[number] for number in self.records["player"]]

    def step_observations(self) -> Array:
        """`[S, *obs_shape]`: the observation of every step, without final ones; not copied if there are none."""
        observations = self.arrays["observations"]
        if len(observations) == len(self.arrays["actions"]):
            return observations
        return observations[concat_ranges(self.records["first_observation"], self.records["steps"])]

    def ends(self, *, lives: bool = True) -> Array:
        """`[S]` uint8: end codes of `rbi.steps`; without `lives`, lost lives are ignored."""
        lost = self.arrays["life_lost"] if lives else np.zeros(1, bool)
        return end_codes(self.arrays["terminated"], self.arrays["truncated"], lost)

    def save(self, path: Path | str) -> None:
        """Write the episodes into a new folder, a store, which `rbi.load_episodes` and the command line read.

        `rejected` is written, too. Raises ValueError if the folder is not empty.
        """
        from rbi.data.store import StoreWriter

        with StoreWriter.create(path, self.spec, self.table_roles) as writer:
            writer.extend(self)
            for item in self.rejected:
                writer.reject(item)

    def summary(self) -> DatasetSummary:
        """Counts, scores, lengths, actions and rejected episodes."""
        return DatasetSummary.of_dataset(self)

    def __repr__(self) -> str:
        count, steps = len(self), self.steps
        words = [
            f"{count:,} episode{'s' * (count != 1)}, {steps:,} step{'s' * (steps != 1)}",
            f"observations {self.spec.obs_shape}, {self.spec.num_actions} actions",
        ]
        words += [f"mean score {self.scores.mean():.4g}"] if count else []
        words += [f"{len(self.rejected):,} rejected"] if self.rejected else []
        words += [f"{self.num_lost:,} lost"] if self.num_lost else []
        return f"{type(self).__name__}({'; '.join(words)})"

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, i: int) -> Episode: ...
    @overload
    def __getitem__(self, i: slice) -> "Dataset": ...
    def __getitem__(self, i: int | slice) -> "Episode | Dataset":
        if isinstance(i, slice):
            return self.select(np.arange(len(self))[i])
        if not isinstance(i, int | np.integer):
            raise TypeError(f"an index of type {type(i).__name__}: must be an integer or a slice; select takes several")
        record = self.records[i]
        return Episode(
            **{name: self.part(name, record) for name in self.arrays},
            abandoned=bool(record["abandoned"]),
            player=self.texts[record["player"]],
            source=self.texts[record["source"]],
            line=int(record["line"]),
        )

    def select(self, indices: Sequence[int] | Array) -> "Dataset":
        """Some episodes: those of these indices, in this order, or where booleans `[E]` are true, as in
        `dataset.select(dataset.scores > 0)`. A contiguous range is not copied. `rejected` and `num_lost` stay."""
        chosen = np.asarray(indices)
        if chosen.dtype == bool:
            if chosen.shape != (len(self),):
                raise ValueError(f"booleans of shape {chosen.shape} for {len(self):,} episodes")
            chosen = np.flatnonzero(chosen)
        chosen = chosen.astype(np.int64)
        records = self.records[chosen].copy()
        contiguous = len(chosen) and bool((np.diff(chosen) == 1).all())
        arrays = {}
        for name, array in self.arrays.items():
            first, count = part_fields(name)
            starts, counts = records[first], records[count].astype(np.int64)
            if contiguous:
                arrays[name] = array[starts[0] : starts[0] + counts.sum()]
            else:
                arrays[name] = array[concat_ranges(starts, counts)]
        place_episodes(records)
        found = Dataset(self.spec, read_only(arrays), records, self.texts, self.rejected)
        found.table_roles, found.num_lost = self.table_roles, self.num_lost
        return found

    def ranges(self, max_bytes: int) -> list[slice]:
        """Ranges of consecutive episodes of at most this size, or of one episode."""
        entry = {name: dtype.itemsize * math.prod(shape) for name, (dtype, shape) in columns(self.spec).items()}
        frame, step = entry.pop("observations"), sum(entry.values())
        ends = np.cumsum(self.records["observations"] * float(frame) + self.records["steps"] * float(step))
        found, start = [], 0
        while start < len(ends):
            before = ends[start - 1] if start else 0.0
            stop = max(start + 1, int(np.searchsorted(ends, before + max_bytes, side="right")))
            found.append(slice(start, stop))
            start = stop
        return found

    def part(self, name: str, record: Any) -> Array:
        """The part of a column that belongs to one episode."""
        first, count = part_fields(name)
        return self.arrays[name][int(record[first]) : int(record[first]) + int(record[count])]


def part_fields(name: str) -> tuple[str, str]:
    """The fields of `RECORD` with the start and length of an episode in a column."""
    return ("first_observation", "observations") if name == "observations" else ("first_step", "steps")


def concat_ranges(starts: Array | int, counts: Array) -> Array:
    """Ranges of consecutive numbers, one after the other.

    >>> concat_ranges(np.array([5, 0]), np.array([2, 3]))
    array([5, 6, 0, 1, 2])
    """
    return np.arange(counts.sum()) + np.repeat(starts - np.cumsum(counts) + counts, counts)


def read_only(arrays: dict[str, Array]) -> dict[str, Array]:
    """Read-only views, so that episodes need no copies."""
    found = {name: array[:] for name, array in arrays.items()}  # the base stays writable: PyTorch requires it
    for array in found.values():
        array.flags.writeable = False
    return found


def owned(array: Array) -> Array:
    """The array itself if its memory is ours and writable, else a copy: PyTorch cannot wrap read-only memory."""
    return array if array.flags.writeable else array.copy()


def infer_spec(episodes: Sequence[Episode]) -> DatasetSpec:
    """What the episodes share."""
    if not episodes:
        raise ValueError("no episodes, and no spec given")
    masks = [episode.action_masks for episode in episodes if episode.action_masks is not None]
    betas = [episode.behavior_probs for episode in episodes if episode.behavior_probs is not None]
    has_masks, has_beta = len(masks) == len(episodes), len(betas) == len(episodes)
    if has_masks or has_beta:
        num_actions = (masks if has_masks else betas)[0].shape[1]
    else:
        num_actions = max(int(episode.actions.max()) for episode in episodes) + 1
    return DatasetSpec(
        obs_shape=episodes[0].observations.shape[1:],
        num_actions=num_actions,
        has_action_probs=all(episode.action_probs is not None for episode in episodes),
        has_action_masks=has_masks,
        has_behavior_probs=has_beta,
    )


def fill_record(record: Any, episode: Episode, frames: int, steps: int, texts: dict[str, int]) -> None:
    """Fill the index entry of an episode that begins at this observation and step; new texts get the next number."""
    record["first_observation"], record["first_step"] = frames, steps
    record["observations"], record["steps"] = len(episode.observations), len(episode)
    record["player"] = texts.setdefault(episode.player, len(texts))
    record["source"] = texts.setdefault(episode.source, len(texts))
    record["line"], record["score"], record["abandoned"] = episode.line, episode.score, episode.abandoned


# Datasets from columns of steps: validation and index without a Python object per episode.


def assemble(
    cls: type[Any],
    spec: DatasetSpec,
    steps: dict[str, Array],
    starts: Array,
    *,
    names: Sequence[str],
    lines: Array,
    where: Callable[[int], tuple[str, int]],
    players: Array | int = 0,
    sources: Array | int = 0,
    abandoned: Array | None = None,
    final: Array | None = None,
    has_final: Array | None = None,
) -> tuple[Any, list[tuple[int, RejectedEpisode]]]:
    """A dataset from columns `[S, ...]` in which episode e begins at `starts[e]`, and the episodes that are invalid.

    `players` and `sources` `[E]` index `names`. `final` `[E, *obs_shape]` are the observations after the last step,
    used where `has_final` `[E]`. `where(e)` gives source and line of an invalid episode. Types are those of `columns`.
    """
    sizes = np.diff(np.append(starts, len(steps["actions"])))
    quits = np.zeros(len(starts), bool) if abandoned is None else abandoned
    records = np.zeros(len(starts), RECORD)
    records["steps"], records["observations"] = sizes, sizes if has_final is None else sizes + has_final
    records["line"], records["abandoned"] = lines, quits
    records["player"], records["source"] = players, sources
    rejected = rejected_episodes(spec, steps, starts, sizes, quits, where)
    if rejected:
        good = np.ones(len(starts), bool)
        good[[e for e, _ in rejected]] = False
        rows = np.repeat(good, sizes)
        steps = {name: column[rows] for name, column in steps.items()}
        records, final = records[good], None if final is None else final[good]
    place_episodes(records)
    records["score"] = episode_sums(steps["rewards"], records["first_step"], records["steps"])
    texts, records["player"], records["source"] = number_texts(names, records["player"], records["source"])
    arrays = {name: owned(steps[name]) for name in columns(spec)}
    if final is not None and (records["observations"] > records["steps"]).any():
        arrays["observations"] = with_finals(steps["observations"], final, records)
    return cls(spec, read_only(arrays), records, texts), rejected


def rejected_episodes(
    spec: DatasetSpec,
    steps: dict[str, Array],
    starts: Array,
    sizes: Array,
    abandoned: Array,
    where: Callable[[int], tuple[str, int]],
) -> list[tuple[int, RejectedEpisode]]:
    """The numbers of the episodes that are invalid, and why: the messages are those of `Episode`."""
    found = []
    for e in np.flatnonzero(invalid_episodes(spec, steps, starts, sizes, abandoned)).tolist():
        part: dict[str, Any] = {name: column[starts[e] : starts[e] + sizes[e]] for name, column in steps.items()}
        try:
            Episode(**part, abandoned=bool(abandoned[e])).check_fits(spec)
        except ValueError as error:
            found.append((e, RejectedEpisode(*where(e), str(error))))
    return found


def place_episodes(records: Array) -> None:
    """Set where episodes begin: they lie one after the other."""
    for first, count in (part_fields("observations"), part_fields("actions")):
        records[first] = np.cumsum(records[count], dtype=np.int64) - records[count]


def step_columns(
    observations: Any,
    actions: Any,
    rewards: Any,
    terminations: Any,
    truncations: Any,
    life_losses: Any,
    optional: dict[str, Any],
) -> dict[str, Array]:
    """Columns `[S, ...]` of a dataset from the arrays of a user; raises ValueError where their shapes do not fit."""
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and rejects its episode
        observed = observation_column(observations)
        steps = len(observed)
        found: dict[str, Array] = {
            "observations": observed,
            "actions": integer_actions(actions),
            "rewards": own_floats("rewards", rewards),
            "terminated": own_copy(booleans("terminations", terminations)),
            "truncated": own_copy(booleans("truncations", np.zeros(steps) if truncations is None else truncations)),
            "life_lost": own_copy(booleans("life_losses", np.zeros(steps) if life_losses is None else life_losses)),
        }
        for name, given in optional.items():
            if given is not None:
                found[name] = own_copy(booleans(name, given)) if name == "action_masks" else own_floats(name, given)
    dims = {"observations": observed.ndim, "action_masks": 2, "behavior_probs": 2}
    for name, column in found.items():
        if column.ndim != dims.get(name, 1) or len(column) != steps:
            shape = f"[{steps}, actions]" if name in dims else f"[{steps}]"
            raise ValueError(f"{name} of shape {column.shape} for {steps} steps: must be {shape}")
    return found


def own_copy(values: Any, dtype: Any = None) -> Array:
    """Contiguous memory of our own: a user may fill the same array again, with the next dataset."""
    return np.array(as_array(values), dtype, order="C")


def own_floats(name: str, values: Any) -> Array:
    """A copy in float32. Raises ValueError for complex numbers, which NumPy would cut off with a warning, and for dates
    and durations, which it would count in units of their own."""
    found = as_array(values)
    if found.dtype.kind in "cmM":
        raise ValueError(f"{name} of type {found.dtype}: must be real numbers")
    return own_copy(found, np.float32)


def observation_column(observations: Any) -> Array:
    """uint8 images as they are, all others as vectors `[S, size]` of float32."""
    try:
        found = as_array(observations)
        is_image = found.dtype == np.uint8 and found.ndim > 2
        found = own_copy(found) if is_image else own_floats("observations", found)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"observations cannot be read as numbers ({str(error).splitlines()[0]}): flatten those of Dict and Tuple "
            "spaces by gymnasium.spaces.flatten; rbi.Dataset.from_frame reads columns of text"
        ) from None
    if not found.size:
        raise ValueError("no steps" if not len(found) else "observations without numbers")
    return found if found.dtype == np.uint8 else found.reshape(len(found), -1)


def invalid_episodes(
    spec: DatasetSpec, steps: dict[str, Array], starts: Array, sizes: Array, abandoned: Array
) -> Array:
    """`[E]` booleans: the episodes that `Episode` or `Episode.check_fits` would refuse."""
    if not len(starts):
        return np.zeros(0, bool)
    actions, observed = steps["actions"], steps["observations"]
    bad = ~np.isfinite(steps["rewards"]) | (actions < 0) | (actions >= spec.num_actions)
    if observed.dtype != np.uint8:
        bad |= ~np.isfinite(observed).all(1)
    if "action_probs" in steps:
        bad |= ~((steps["action_probs"] > 0) & (steps["action_probs"] <= 1))
    if "action_masks" in steps:
        bad |= ~steps["action_masks"][np.arange(len(actions)), actions.clip(0, steps["action_masks"].shape[1] - 1)]
    if "behavior_probs" in steps:
        beta = steps["behavior_probs"]
        taken = beta[np.arange(len(actions)), actions.clip(0, beta.shape[1] - 1)]
        bad |= bad_behavior_probs(beta) | ~(taken > 0)
        if "action_probs" in steps:
            bad |= differing_probs(steps["action_probs"], taken)
    last = starts + sizes - 1
    over = steps["terminated"] | steps["truncated"]
    early = over.copy()
    early[last] = False
    found: Array = np.logical_or.reduceat(bad | early, starts)
    terminated = steps["terminated"][last]
    found |= ~over[last] | (steps["life_lost"][last] & terminated)
    found |= abandoned & (terminated | ~steps["truncated"][last])
    return found


def episode_sums(rewards: Array, starts: Array, sizes: Array) -> Array:
    """The float64 sum of each episode's rewards, to the bit as `Episode.score` computes it."""
    if not len(starts):
        return np.zeros(0)
    found: Array = np.add.reduceat(rewards, starts, dtype=np.float64)
    for e in np.flatnonzero(sizes >= SEQUENTIAL_SUM).tolist():
        found[e] = rewards[starts[e] : starts[e] + sizes[e]].sum(dtype=np.float64)
    return found


def number_texts(names: Sequence[str], players: Array, sources: Array) -> tuple[list[str], Array, Array]:
    """Texts in the order in which episodes name them (player, then source), and the numbers of each episode's two."""
    texts: dict[str, int] = {}
    numbers = np.zeros(len(names), np.int32)
    pairs, firsts = np.unique(np.int64(len(names)) * players + sources, return_index=True)
    for pair in pairs[np.argsort(firsts)].tolist():
        for which in divmod(pair, len(names)):
            numbers[which] = texts.setdefault(names[which], len(texts))
    return list(texts), numbers[players], numbers[sources]


def with_finals(observations: Array, final: Array, records: Array) -> Array:
    """Observations with those after the last step put in place."""
    found = np.empty((int(records["observations"].sum()), *observations.shape[1:]), observations.dtype)
    found[concat_ranges(records["first_observation"], records["steps"])] = observations
    has = records["observations"] > records["steps"]
    found[(records["first_observation"] + records["steps"])[has]] = final[has]
    return found


class DatasetBuilder:
    """Appends datasets to one in memory. Space for all rows is reserved at once; only used pages take memory."""

    def __init__(self, spec: DatasetSpec, max_steps: int) -> None:
        self.spec, self.texts, self.steps, self.frames, self.episodes = spec, dict[str, int](), 0, 0, 0
        sizes = {name: max_steps * (2 if name == "observations" else 1) for name in columns(spec)}
        self.arrays = {name: np.empty((sizes[name], *shape), dtype) for name, (dtype, shape) in columns(spec).items()}
        self.records = np.empty(max_steps, RECORD)
        self.rejected: list[RejectedEpisode] = []

    def append(self, part: Dataset) -> None:
        records = continued(part, self.frames, self.steps, self.texts)
        self.records[self.episodes : self.episodes + len(records)] = records
        for name, column in part.arrays.items():
            start = self.frames if name == "observations" else self.steps
            self.arrays[name][start : start + len(column)] = column
        self.episodes += len(part)
        self.steps += len(part.arrays["actions"])
        self.frames += len(part.arrays["observations"])

    def finish(self) -> Dataset:
        used = {name: self.frames if name == "observations" else self.steps for name in self.arrays}
        arrays = {name: array[: used[name]] for name, array in self.arrays.items()}
        return Dataset(self.spec, read_only(arrays), self.records[: self.episodes], list(self.texts), self.rejected)


def continued(part: Dataset, frames: int, steps: int, texts: dict[str, int]) -> Array:
    """Records of a dataset appended after `frames` observations and `steps` steps; new texts get the next number."""
    records = part.records.copy()
    numbers = np.zeros(max(1, len(part.texts)), np.int64)
    for player, source in unique_pairs(records):
        numbers[player] = texts.setdefault(part.texts[player], len(texts))
        numbers[source] = texts.setdefault(part.texts[source], len(texts))
    for name in ("player", "source"):
        records[name] = numbers[records[name]]
    records["first_step"] += steps
    records["first_observation"] += frames
    return records


def unique_pairs(records: Array) -> list[tuple[int, int]]:
    """The different pairs of player and source, in the order in which they appear."""
    pairs = records["player"].astype(np.int64) << 32 | records["source"]
    values, firsts = np.unique(pairs, return_index=True)
    return [(int(pair) >> 32, int(pair) & 0xFFFFFFFF) for pair in values[np.argsort(firsts)]]
