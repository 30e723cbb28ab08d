"""Tables with one row per episode, whose columns hold lists: Hugging Face datasets, imitation, D4RL as Parquet.

obs, observations            `[T]` or `[T + 1]` lists; nested lists of uint8 are images
acts, actions                `[T]` integers
rews, rewards                `[T]`
terminal, dones, ...         one value for the episode, or `[T]`; an episode that is not terminated is truncated
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from rbi.data.episode import Array, Episode, RejectedEpisode
from rbi.data.formats.convert import LAYOUT_EPISODES, frame_layout, is_image, spec_of_episode, vectors
from rbi.data.formats.reader import FAULTS, SpecOverrides, end_flags, max_action, name_in, one_line
from rbi.data.formats.table_columns import Block, is_list
from rbi.data.formats.table_files import FrameFiles, TableFiles
from rbi.data.formats.table_layout import STEP_COLUMNS, TableConfig
from rbi.steps import FrameLayout

NAMES = {
    "observations": ("obs", "observations", "observation"),
    "action": ("acts", "actions", "action"),
    "reward": ("rews", "rewards", "reward"),
    "terminated": STEP_COLUMNS["terminated"],
    "truncated": STEP_COLUMNS["truncated"],
}


def episode_columns(path: Path, files: TableFiles, config: TableConfig) -> dict[str, str] | None:
    """The columns of a table with one row per episode by their meaning; None if it has one row per step."""
    if isinstance(files, FrameFiles) or config.one_step or config.features_of:
        return None
    present, found = files.names(path), dict[str, str]()
    for role, usual in NAMES.items():
        given = config.observations[:1] if role == "observations" else (getattr(config, role),)
        named = [name for name in (*given, *usual) if name in present]
        if named:
            found[role] = named[0]
    needed = ("observations", "action", "reward")
    if any(role not in found or files.list_shape(path, found[role]) is None for role in needed):
        return None
    return found


class EpisodeRowsReader:
    """Episodes of a table with one row each; a part is a file."""

    parallel = False

    def __init__(
        self,
        path: Path,
        paths: list[Path],
        files: TableFiles,
        columns: dict[str, str],
        table_roles: dict[str, Any],
        overrides: SpecOverrides,
    ) -> None:
        self.path, self.paths, self.files, self.columns, self.table_roles = path, paths, files, columns, table_roles
        if not {"terminated", "truncated"} & columns.keys():
            raise ValueError(
                f"{paths[0]}: nothing says how episodes end: it needs a column terminated or truncated; its columns "
                f"are {', '.join(files.names(paths[0])[:30])}"
            )
        first = next(self.observed(), None)
        if first is None:
            raise ValueError(f"{path}: no row has observations")
        self.frames = FrameLayout()
        if is_image(first):
            some = islice((x for x in self.observed() if x.shape[1:] == first.shape[1:]), LAYOUT_EPISODES)
            self.frames = frame_layout(first.shape[1:], some, channels_first=False)
        self.spec = spec_of_episode(first, self.frames, overrides.num_actions or self.largest_action() + 1, overrides)

    def rows(self, paths: list[Path], roles: Sequence[str]) -> Iterator[tuple[str, int, Any]]:
        """Source and line of each row, and its columns; a text in their place if the file is damaged there."""
        wanted = [self.columns[role] for role in roles if role in self.columns]
        for path in paths:
            source = name_in(self.path, path)
            for block in self.files.blocks(path, wanted):
                if not isinstance(block, Block):
                    yield source, block.line, block.reason
                    continue
                columns = {role: block.table.column(self.columns[role]) for role in roles if role in self.columns}
                for row, line in enumerate(block.lines.tolist()):
                    cells = {role: column[row] for role, column in columns.items()}
                    yield source, line, block.faults.get(row) or cells

    def observed(self) -> Iterator[Array]:
        """The observations of all episodes that have any."""
        for _, _, row in self.rows(self.paths, ("observations",)):
            if not isinstance(row, str):
                try:
                    yield array_of(row["observations"])
                except FAULTS:
                    continue

    def largest_action(self) -> int:
        found = 0
        for _, _, row in self.rows(self.paths, ("action",)):
            if not isinstance(row, str):
                try:
                    found = max(found, max_action(array_of(row["action"])))
                except FAULTS:
                    continue
        return found

    def parts(self) -> Sequence[Path]:
        return self.paths

    def read(self, part: Path) -> Iterator[Episode | RejectedEpisode]:
        for source, line, row in self.rows([part], tuple(NAMES)):
            try:
                if isinstance(row, str):
                    raise ValueError(row)
                episode = self.episode(row, source, line)
                episode.check_fits(self.spec)
                yield episode
            except FAULTS as error:
                yield RejectedEpisode(source, line, one_line(error))

    def episode(self, row: dict[str, Any], source: str, line: int) -> Episode:
        obs, actions, rewards = (array_of(row[name]) for name in ("observations", "action", "reward"))
        steps = len(actions)
        terminated = is_set(row["terminated"], steps) if "terminated" in row else not is_set(row["truncated"], steps)
        return Episode(
            observations=self.frames.single_frames(obs) if self.spec.is_image else vectors(obs),
            actions=np.ravel(actions),
            rewards=np.ravel(vectors(rewards)),
            **end_flags(steps, terminated=terminated),
            source=source,
            line=line,
        )


def array_of(value: Any) -> Array:
    """The nested lists of a cell as an array; raises ValueError if they have different lengths or holes."""
    if not value.is_valid:
        raise ValueError("a column is empty")
    inner, shape = value.values, [len(value.values)]
    while is_list(inner.type):
        sizes = inner.value_lengths() if hasattr(inner, "value_lengths") else None
        size = inner.type.list_size if sizes is None else (sizes[0].as_py() or 0)
        if inner.null_count or (sizes is not None and len(sizes.unique()) > 1):
            raise ValueError("its lists have different lengths")
        inner = inner.flatten()
        shape.append(size)
    if inner.null_count:
        raise ValueError("its lists hold a number that is missing")
    return np.asarray(inner.to_numpy(zero_copy_only=False)).reshape(shape)


def is_set(value: Any, steps: int) -> bool:
    """Whether a flag of an episode, or that of its last step, is set; no earlier one may be."""
    if not value.is_valid:
        return False
    if not is_list(value.type):
        return bool(value.as_py())
    flags = array_of(value).astype(bool)
    if len(flags) != steps or flags[:-1].any():
        raise ValueError(f"{len(flags)} flags of ends for {steps} steps, or an end before the last step")
    return bool(flags[-1])
