"""Tables, one row a step: rows become episodes, whatever format they are in.

Files are read block by block. The rows of an episode stand together, in any order of their step column, and may go on
at the beginning of the next file. A row that cannot be used sets its episode aside.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rbi.data.dataset import RejectedEpisode
from rbi.data.episode import Array, Episode
from rbi.data.formats.seam import EpisodeSummary, SpecOverrides, summaries
from rbi.data.formats.table_files import Block, Files, table_files
from rbi.data.formats.table_layout import find_layout
from rbi.data.formats.table_rows import Rows, absent
from rbi.data.formats.table_scan import Scan, make_checker
from rbi.data.formats.table_settings import TableConfig


class TableReader:
    """Episodes of a table, or of a folder of tables; all of it is one part, since episodes go on from file to file."""

    parallel = False

    def __init__(self, path: Path, files: Files, settings: Any) -> None:
        overrides: SpecOverrides = settings.overrides
        config: TableConfig = settings.table
        self.path, self.files = path, files
        self.paths = table_files(path, files.suffix) or ([path] if path.is_file() else [])
        if not self.paths:
            raise ValueError(f"{path}: holds no {files.suffix} files")
        own = files.own_spec(self.paths[0]) if config == TableConfig() else None
        self.own = own is not None
        self.layout = find_layout(self.paths[0], self.column_names(self.paths[0]), config, own=self.own)
        self.refuse_other_columns()
        scan = Scan(
            self.layout, need_actions=overrides.num_actions is None and own is None and not self.layout.action_mask
        )
        scan.look(self.blocks(scan.columns) if scan.columns else ())
        self.first_step = scan.first_step
        self.checker = make_checker(self.paths[0], files, overrides, own, scan)
        self.spec = self.checker.spec

    @property
    def feature_names(self) -> list[str]:
        """Names of the numbers of an observation: a column, or one value of a text column."""
        texts, names = self.checker.categories, self.layout.observations
        return [f"{name} = {text}" if text else name for name in names for text in texts.get(name, ("",))]

    def parts(self) -> Sequence[Path]:
        return [self.path]

    def summaries(self, part: Path) -> Iterator[EpisodeSummary | RejectedEpisode]:
        return summaries(self.read(part))

    def read(self, part: Path) -> Iterator[Episode | RejectedEpisode]:
        assert part == self.path  # there is no other
        if self.layout.one_step:
            for rows in self.rows():
                if isinstance(rows, RejectedEpisode):
                    yield rows
                else:
                    yield from (self.episode([rows], slice(i, i + 1)) for i in range(len(rows)))
        else:
            yield from self.read_runs()

    def read_runs(self) -> Iterator[Episode | RejectedEpisode]:
        """Rows with the same id, one after the other, are an episode."""
        seen: set[Any] = set()
        pieces: list[Rows] = []  # the episode that may go on in the next block
        last: Any = None

        def finish() -> Iterator[Episode | RejectedEpisode]:
            if pieces:
                yield self.run(pieces, slice(None), last, seen)
                pieces.clear()

        for rows in self.rows():
            if isinstance(rows, RejectedEpisode):  # what was begun lacks its rest
                yield rows
                if pieces:
                    yield RejectedEpisode(pieces[0].source, int(pieces[0].lines[0]), "its file is damaged further on")
                    pieces.clear()
                seen.add(last)
                continue
            if self.own and rows.lines[0] == 1:  # our writer counts episodes from 0 in every file
                yield from finish()
                seen.clear()
                last = None
            ids = filled(rows.ids, last)
            starts = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist()]
            names = ids[starts].tolist()
            if names[0] != last:
                yield from finish()
            for start, stop, name in zip(starts[:-1], starts[1:], names[:-1], strict=True):
                if pieces:
                    pieces.append(rows.take(slice(start, stop)))
                    last = name
                    yield from finish()
                else:
                    yield self.run([rows], slice(start, stop), name, seen)
            pieces.append(rows.take(slice(starts[-1], len(rows))))
            last = names[-1]
        yield from finish()

    def run(self, pieces: Sequence[Rows], which: slice, name: Any, seen: set[Any]) -> Episode | RejectedEpisode:
        """The rows of one id, unless it had some before."""
        if name in seen:
            at = int(pieces[0].lines[which][0])
            told = f"{self.layout.episode} {name!r} comes back after other episodes: the rows of an episode must stand"
            return RejectedEpisode(pieces[0].source, at, f"{told} together, and no two episodes may share an id")
        seen.add(name)
        return self.episode(pieces, which)

    def episode(self, pieces: Sequence[Rows], which: slice) -> Episode | RejectedEpisode:
        """An episode of all these rows, or what is wrong with them."""
        for piece in pieces:
            if piece.faults:
                for line in piece.lines[which].tolist():
                    if line in piece.faults:
                        return RejectedEpisode(piece.source, line, piece.faults[line])
        rows = Rows.join(pieces)
        first = int(rows.lines[which][0])
        ordered = in_order(rows, which, self.first_step)
        if isinstance(ordered, Wrong):
            return RejectedEpisode(*place(pieces, ordered.row), ordered.reason)
        try:
            return to_episode(rows, ordered, first)
        except ValueError as error:
            return RejectedEpisode(rows.source, first, str(error))

    def rows(self) -> Iterator[Rows | RejectedEpisode]:
        """All rows, checked, block by block."""
        for block in self.blocks(self.layout.columns):
            yield block if isinstance(block, RejectedEpisode) else self.checker.rows(block)

    def blocks(self, columns: Sequence[str]) -> Iterator[Block | RejectedEpisode]:
        for path in self.paths:
            yield from self.files.blocks(path, path.name, columns)

    def column_names(self, path: Path) -> list[str]:
        names = self.files.names(path)
        twice = [name for name, count in Counter(names).items() if count > 1 and name]
        if twice:
            raise ValueError(f"{path}: has more than one column {twice[0]!r}")
        return names

    def refuse_other_columns(self) -> None:
        """All files must have the columns of the first."""
        for path in self.paths[1:]:
            names = set(self.column_names(path))
            missing = [name for name in self.layout.columns if name not in names]
            if missing:
                raise ValueError(f"{path}: no column {missing[0]!r}, which {self.paths[0].name} has")


class Wrong(NamedTuple):
    """A row that does not belong where it is."""

    row: int
    reason: str


def in_order(rows: Rows, which: slice, first: int) -> slice | Array | Wrong:
    """Where the rows of an episode are, in the order of their steps, which must follow each other."""
    if rows.steps is None:
        return which
    steps = rows.steps[which]
    wanted = np.arange(first, first + len(steps))
    if np.array_equal(steps, wanted):
        return which
    order = np.argsort(steps, kind="stable")
    steps, rows_in_order = steps[order], np.arange(len(rows))[which][order]
    wrong = np.flatnonzero(steps != wanted)
    if not len(wrong):
        return rows_in_order
    at = int(wrong[0])
    twice = at > 0 and steps[at] == steps[at - 1]
    return Wrong(
        int(rows_in_order[at]),
        f"step {steps[at]} comes twice" if twice else f"step {wanted[at]} is missing before this",
    )


def place(pieces: Sequence[Rows], row: int) -> tuple[str, int]:
    """The file and line of a row, counted over all pieces."""
    for piece in pieces:
        if row < len(piece):
            return piece.source, int(piece.lines[row])
        row -= len(piece)
    raise AssertionError("the row is not in these pieces")


def to_episode(rows: Rows, which: slice | Array, line: int) -> Episode:
    """The episode of these rows, which are in order. `line`: where the first of them is in its file."""
    observations = rows.observations[which]
    if rows.final is not None and rows.has_final is not None and rows.has_final[which][-1]:
        observations = np.concatenate([observations, rows.final[which][-1:]])
    player = ""
    if rows.player is not None:
        players = rows.player[which]
        if len(players) > 1 and (players != players[0]).any():
            raise ValueError("more than one player in an episode")
        player = "" if players[0] is None else str(players[0])
    return Episode(
        observations=observations,
        actions=rows.actions[which],
        rewards=rows.rewards[which],
        terminated=rows.terminated[which],
        truncated=rows.truncated[which],
        life_lost=rows.life_lost[which],
        action_probs=None if rows.action_probs is None else rows.action_probs[which],
        action_masks=None if rows.action_masks is None else rows.action_masks[which],
        abandoned=rows.abandoned is not None and bool(rows.abandoned[which][-1]),
        player=player,
        source=rows.source if rows.from_source is None else str(rows.from_source[which][0] or ""),
        line=line if rows.from_line is None else int(rows.from_line[which][0]),
    )


def filled(ids: Array | None, last: Any) -> Array:
    """Rows at the beginning of a block that lack their id count to the episode before."""
    assert ids is not None
    if ids.dtype != object or ids[0] is not None:
        return ids
    ids = ids.copy()
    ids[absent(ids)] = last
    return ids
