"""Tables with one row per step: CSV, JSON lines, Parquet, Feather and data frames.

From a file to episodes: `table_files` cuts it into blocks of rows, `table_columns.Block`; `table_rows.Checker` turns a
block into validated arrays, and `TableReader` these into episodes. Before that, `table_layout` finds which column is
what, and `table_features` how observed columns are encoded.

The rows of an episode must stand together, in any order of their step column, and may continue at the beginning of the
next file. Columns are validated as arrays; a row that cannot be used rejects its episode, not the file.
"""

import ctypes
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from rbi import fileio
from rbi.data.dataset import Dataset, DatasetBuilder, assemble, concat_ranges
from rbi.data.episode import MAX_ACTIONS, Array, DatasetSpec, Episode, Feature, RejectedEpisode
from rbi.data.formats.episode_rows import EpisodeRowsReader, episode_columns
from rbi.data.formats.reader import SpecOverrides, find_files, name_in, require_package
from rbi.data.formats.rllib import PICKLED, UNPICKLED, without_repeats
from rbi.data.formats.table_columns import Block, ListShape, is_missing
from rbi.data.formats.table_features import FRAME, Scan, TableSchema, to_table
from rbi.data.formats.table_files import CsvFiles, FeatherFiles, FrameFiles, JsonFiles, ParquetFiles, TableFiles
from rbi.data.formats.table_layout import ROW_ROLES, STEP_COLUMNS, LayoutFinder, TableConfig
from rbi.data.formats.table_rows import MISSING_ID, Checker, Rows, number_ids
from rbi.data.store import CONFIG, is_store, read_config
from rbi.progress import echo
from rbi.steps import IMAGE_STACK

MAX_COLUMNS = 100_000
MAX_RETURNS = 10
"""Episodes that may go on after another one before the table is refused; each of them is rejected."""
SHOWN_RULES = 5  # columns with dates or missing values whose encoding is said
SHOWN_ACTIONS = 8  # actions whose names are said
POLICY_CONFIG = "policy.json"
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
FILES: dict[str, type[CsvFiles | ParquetFiles | FeatherFiles | JsonFiles]] = {
    "parquet": ParquetFiles,
    "feather": FeatherFiles,
    "jsonl": JsonFiles,
    "csv": CsvFiles,
}
"""The formats of tables."""


# Files


def table_formats(path: Path) -> list[str]:
    """The formats of the tables at a path."""
    found = find_files(path, *(suffix for kind in FILES.values() for suffix in kind.suffixes))
    return [name for name, kind in FILES.items() if any(file.name.lower().endswith(kind.suffixes) for file in found)]


def is_own_export(path: Path) -> bool:
    """Whether the data are Parquet files of ours, which say how they are encoded."""
    files = ParquetFiles()
    paths = [path] if path.is_file() else find_files(path, *files.suffixes)
    return bool(paths) and files.spec(paths[0]) is not None


def open_table(path: Path, settings: Any, name: str) -> "TableReader | EpisodeRowsReader":
    """The reader of a table with one row per step, or per episode."""
    files = FILES[name]()
    paths = [path] if path.is_file() else find_files(path, *files.suffixes)
    if paths and (columns := episode_columns(paths[0], files, settings.table)):
        return EpisodeRowsReader(path, paths, files, columns, settings.table.roles(), settings.overrides)
    return TableReader(path, files, settings.overrides, settings.table)


def read_frame(
    frame: Any, config: dict[str, Any], num_actions: int | None, env: str, like: DatasetSpec | Dataset | None
) -> Dataset:
    """The dataset of a pandas or polars DataFrame or a pyarrow Table; `like`: earlier rows, or their spec."""
    overrides = SpecOverrides(env, num_actions)
    rows = to_table(frame)
    schema = None if like is None else schema_of_data(like)
    table = TableConfig(**config)
    completed = table if schema is None else table.completed(schema.earlier.config, rows.column_names)
    of_episodes = {name for role in ("episode", "terminated", "truncated") for name in STEP_COLUMNS[role]}
    if not completed.roles().keys() & ROW_ROLES and of_episodes.isdisjoint(rows.column_names):
        table = replace(table, one_step=True)
    return TableReader(FRAME, FrameFiles(rows), overrides, table, schema).load()


def schema_of_data(data: DatasetSpec | Dataset) -> TableSchema:
    """The columns and categories of a dataset in memory, or of its spec, which does not know the roles of others."""
    if not isinstance(data, DatasetSpec | Dataset):
        raise TypeError(f"like is of type {type(data).__name__}: must be an earlier rbi.Dataset, or its spec")
    spec, roles = (data.spec, data.table_roles) if isinstance(data, Dataset) else (data, {})
    return TableSchema(spec.features, spec.action_names, spec.has_action_masks, TableConfig.from_roles(roles))


def schema_of(path: Path | str) -> TableSchema:
    """The columns and categories of a store, or those that a policy was trained with."""
    path, name = fileio.as_path(path), str(path)
    fileio.check_exists(path)
    if is_store(path):
        spec, roles = read_config(path)
        with fileio.naming(path / CONFIG):
            table = TableConfig.from_roles(roles)
        found = TableSchema(spec.features, spec.action_names, spec.has_action_masks, table, name)
    else:
        places = (path, path / "policies" / "best", path / "policies" / "last")
        config = next((place / POLICY_CONFIG for place in places if (place / POLICY_CONFIG).is_file()), None)
        if config is None:
            raise ValueError(f"{path}: is neither a store ({CONFIG}) nor a policy ({POLICY_CONFIG})")
        try:
            written = fileio.parse(config, fileio.read_text(config), 1)
            names = tuple(str(name) for name in written.get("action_names", []))
            has_masks = bool(written.get("obs_spec", {}).get("has_action_masks"))
            table = TableConfig.from_roles(written.get("metadata", {}).get("table", {}))
            found = TableSchema(Feature.from_json(written.get("columns", [])), names, has_masks, table, name)
        except (TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{config}: {error}") from None
    if not found.features and found.config == TableConfig():
        raise ValueError(f"{path}: holds no columns of a table")
    return found


# Episodes


class TableReader:
    """Episodes of a table or a folder of tables; all of it is one part, since episodes may span files.

    `load` parses each file once and keeps it in memory. `read` streams: if the number of actions, the first step or the
    texts of a column have to be found first, it parses the columns for that an additional time.
    """

    parallel = False

    def __init__(
        self,
        path: Path,
        files: TableFiles,
        overrides: SpecOverrides,
        config: TableConfig,
        schema: TableSchema | None = None,
    ) -> None:
        self.path, self.files, self.overrides, self.accept_unknown = path, files, overrides, config.accept_unknown
        self.schema = schema or (schema_of(config.features_of) if config.features_of else TableSchema())
        in_memory = isinstance(files, FrameFiles)
        self.paths = [path] if in_memory or path.is_file() else find_files(path, *files.suffixes)
        if isinstance(files, ParquetFiles):
            self.paths = without_repeats(self.paths)
        if not self.paths:
            raise ValueError(f"{path}: holds no {' or '.join(files.suffixes)} files")
        self.partitions = [partition(file.relative_to(path)) if file != path else {} for file in self.paths]
        self.sources = [name_in(path, file) for file in self.paths]
        self.own_spec = files.spec(self.paths[0]) if isinstance(files, ParquetFiles) and not config.roles() else None
        if self.own_spec:  # its observations and actions are encoded already
            self.check_encoding(self.own_spec, config.features_of)
            self.schema = TableSchema()
        own, names = self.own_spec is not None, self.column_names(self.paths[0])
        finder = LayoutFinder(self.paths[0], names, config, self.schema.earlier, own=own, frame=in_memory)
        self.layout, self.table_roles, self.option = finder.layout(), finder.roles, finder.option
        if said := finder.said():
            echo(f"{path}: {said}", stderr=True)
        # without masks a policy may choose what is not possible
        if self.schema.has_action_masks and not self.layout.action_mask:
            echo(f"{path}: no column of action masks (--table.action-mask), which the earlier data has", stderr=True)
        for other in self.paths[1:]:
            present = set(self.column_names(other))
            missing = [name for name in self.layout.columns if name not in present]
            if missing:
                raise ValueError(f"{other}: no column {missing[0]!r}, which {self.paths[0].name} has")
            shared = tuple(name for name in self.layout.unused_ids if name in present)
            self.layout = replace(self.layout, unused_ids=shared)

    def check_encoding(self, own: DatasetSpec, earlier: str | None) -> None:
        """Raise ValueError if a file of ours is not encoded as the earlier data."""
        for what, found, wanted in (
            ("columns, or their categories,", used(own.features), used(self.schema.features)),
            ("actions", own.action_names, self.schema.action_names),
        ):
            if self.schema.features and found != wanted:
                advice = f"import its table again with --table.features-of {earlier}, and export that"
                raise ValueError(f"{self.paths[0]}: its {what} are not those of {earlier}: {advice}")

    def column_names(self, path: Path) -> list[str]:
        names = self.files.names(path)
        names += [name for name in self.partitions[self.paths.index(path)] if name not in names]
        if len(names) > MAX_COLUMNS:
            raise ValueError(f"{path}: has {len(names):,} columns; up to {MAX_COLUMNS:,} are supported")
        twice = [name for name, count in Counter(names).items() if count > 1 and name]
        if twice:
            raise ValueError(f"{path}: has more than one column {twice[0]!r}")
        return names

    @property
    def spec(self) -> DatasetSpec:
        return self.checker.spec

    @property
    def is_image(self) -> bool:
        """Whether observations are images, which the first of them tells; `spec` may need all rows."""
        if self.own_spec is not None:
            return self.own_spec.is_image
        return self.observed_lists is not None and self.observed_lists.is_image

    @cached_property
    def observed_lists(self) -> ListShape | None:
        names = self.layout.observations
        return self.list_shape(self.paths[0], names[0]) if len(names) == 1 else None

    @cached_property
    def checker(self) -> Checker:
        """Validates rows; made from an additional pass over some columns where necessary."""
        scan = self.new_scan()
        return self.make_checker(scan, self.blocks(scan.columns) if scan.columns else ())

    def new_scan(self) -> Scan:
        known = self.overrides.num_actions is not None or self.own_spec is not None
        need_actions = not known and not self.schema.action_names and not self.layout.action_labels
        need_texts = not self.schema.features and self.observed_lists is None  # a list has no texts to encode
        need_order = self.own_spec is None
        return Scan(self.layout, need_actions=need_actions, need_texts=need_texts, need_order=need_order)

    def make_checker(self, scan: Scan, blocks: Iterable[tuple[int, Block | RejectedEpisode]]) -> Checker:
        """What validates the rows, from a scan of these blocks."""
        for file, block in blocks:
            if isinstance(block, Block):
                scan.add(block, file)
        self.check_order(scan)
        if scan.ends:
            echo(f"{self.path}: {scan.ends.rule_text(self.option)}", stderr=True)
        elif scan.steps_are != "counts" and not scan.scattered:
            order = "which are the order of the steps of an episode"
            echo(f"{self.path}: column {self.layout.step!r} holds times, {order}", stderr=True)
        names, lists = self.action_names(scan), self.observed_lists
        if lists is None and self.layout.observations == ("obs",):
            self.refuse_pickles("obs")
        spec = self.find_spec(scan, names)
        list_shape = spec.obs_shape if self.own_spec else lists.shape if lists else None
        numbered = bool(names) and all(name.isdecimal() for name in names)
        ids = np.array([int(name) for name in names]) if numbered else None
        return Checker(
            layout=self.layout,
            spec=spec,
            action_ids=ids,
            action_texts=() if numbered else names,
            list_shape=list_shape,
            accept_unknown=self.accept_unknown,
            first_step=scan.first_step,
            steps_are=scan.steps_are,
            scattered=bool(scan.scattered and (self.layout.step or scan.ends)),
        )

    def find_spec(self, scan: Scan, names: tuple[str, ...]) -> DatasetSpec:
        """The spec: that of our own files, or what columns and rows hold; with what the user overrides."""
        layout, own, lists = self.layout, self.own_spec, self.observed_lists
        actions, features = self.num_actions(scan, names), self.features(scan)
        shape: tuple[int, ...] = (sum(feature.size for feature in features),)
        if lists:
            features = ()
            shape = lists.shape if lists.is_image else (int(np.prod(lists.shape)),)
        spec = own or DatasetSpec(
            obs_shape=shape,
            num_actions=actions,
            frame_stack=IMAGE_STACK if len(shape) > 1 else 1,
            has_action_probs=layout.action_prob is not None,
            has_action_masks=bool(layout.action_mask),
            has_behavior_probs=bool(layout.behavior_probs),
            features=features,
            action_names=names if len(names) == actions else (),
        )
        spec = self.overrides.applied_to(spec)
        logged = (layout.action_prob is not None, bool(layout.action_mask), bool(layout.behavior_probs))
        if own and (spec.has_action_probs, spec.has_action_masks, spec.has_behavior_probs) != logged:
            raise ValueError(
                f"{self.paths[0]}: the spec in its schema and its columns disagree about probabilities or masks"
            )
        return spec

    def num_actions(self, scan: Scan, names: tuple[str, ...]) -> int:
        """The number of actions. Raises ValueError where columns of one action each disagree with it."""
        path, layout, width = self.paths[0], self.layout, 0
        for wide in (layout.action_mask, layout.behavior_probs):
            listed = self.list_shape(path, wide[0]) if len(wide) == 1 else None
            found = listed.shape[0] if listed else len(wide)
            if wide and width and width != found:
                raise ValueError(f"{path}: {wide[0]} is of {found} actions, {layout.action_mask[0]} of {width}")
            width = found or width
        counted = width or len(names) or min(scan.largest_action + 1, MAX_ACTIONS)
        if not (width or names or self.overrides.num_actions or self.overrides.env) and (said := scan.gaps_text()):
            echo(f"{path}: {said}", stderr=True)
        actions = self.overrides.num_actions or (self.own_spec.num_actions if self.own_spec else counted)
        if actions < 1:
            if not scan.rows:
                raise ValueError(f"{path}: holds no rows")
            usual = "actions are names, or numbers from 0 that are below 2^53"
            raise ValueError(f"{path}: no row has a whole number as its {layout.action}: {usual}")
        if width and width != actions:
            wide = layout.action_mask or layout.behavior_probs
            raise ValueError(f"{path}: {wide[0]} is of {width} actions, not of {actions}")
        return actions

    def check_order(self, scan: Scan) -> None:
        """Raise ValueError if rows would have to be sorted and cannot be."""
        if scan.ends:
            scan.ends.check(self.paths[0], scan.steps_are, scan.first_step, self.option)
        elif not self.layout.step and scan.scattered > MAX_RETURNS:
            raise ValueError(
                f"{self.paths[0]}: the rows of its episodes do not stand together ({scan.scattered:,} times one goes "
                f"on after another): sort it by {self.layout.episode} and time, or name the column of steps or times"
            )

    def action_names(self, scan: Scan) -> tuple[str, ...]:
        """Names of actions that are texts or sparse numbers, which is said; else empty."""
        path, layout = self.paths[0], self.layout
        given = self.schema.action_names or layout.action_labels
        sparse = () if layout.action_mask or layout.behavior_probs else scan.sparse_actions()
        names = given or tuple(map(str, sparse)) or scan.action_names(path)
        if layout.action_labels and names != layout.action_labels:
            raise ValueError(f"{path}: its columns are of the actions {layout.action_labels}, earlier data has {names}")
        if names and not given and self.overrides.env:
            raise ValueError(
                f"{path}: its actions are called {', '.join(names[:SHOWN_ACTIONS])}, and those of --env "
                f"{self.overrides.env} are numbers; number them as the environment does"
            )
        if names and not given:
            some = names if len(names) <= SHOWN_ACTIONS else (*names[: SHOWN_ACTIONS - 1], "...", names[-1])
            numbers = f"numbered from 0 to {len(names) - 1:,}"
            echo(f"{path}: its actions ({', '.join(some)}) are {numbers}; spec.action_names has them", stderr=True)
            alike: dict[str, str] = {}
            for name in names:
                if (other := alike.setdefault(name.strip().casefold(), name)) != name:
                    differ = "differ only in upper case or spaces, and are two actions"
                    echo(f"{path}: the actions {other!r} and {name!r} {differ}", stderr=True)
                    break
            for name in names:
                if is_missing(name) and name.strip().casefold() != "none":
                    rule = "leave the cell empty where no action was taken"
                    echo(f"{path}: {name!r} is an action like the others: {rule}", stderr=True)
        return names

    def features(self, scan: Scan) -> tuple[Feature, ...]:
        """The observed columns with their categories: those of earlier data, or what the table holds."""
        path, names = self.paths[0], self.layout.observations
        features = self.schema.features or scan.features(path)
        if not self.schema.features and (said := scan.rule_texts(features)):
            echo(f"{path}: {'; '.join(said[:SHOWN_RULES])}", stderr=True)
        if tuple(feature.name for feature in features) != names:
            known = [feature.name for feature in features]
            raise ValueError(f"{path}: the columns to observe are not those of the earlier data, {known}")
        return features

    def refuse_pickles(self, name: str) -> None:
        """Raise ValueError if a column holds what RLlib pickled and compressed."""
        block = next((block for _, block in self.blocks([name]) if isinstance(block, Block)), None)
        if block is not None and block.holds_text(name) and str(block.texts(name)[0]).startswith(PICKLED):
            raise ValueError(f"{block.path}: its column {name!r} {UNPICKLED}")

    def list_shape(self, path: Path, name: str) -> ListShape | None:
        return None if name in self.partitions[0] else self.files.list_shape(path, name)

    def blocks(self, columns: Sequence[str]) -> Iterator[tuple[int, Block | RejectedEpisode]]:
        for number, (path, values) in enumerate(zip(self.paths, self.partitions, strict=True)):
            stored = [name for name in columns if name not in values] or [self.layout.action]
            for block in self.files.blocks(path, stored):
                yield number, block.with_constants(values) if values and isinstance(block, Block) else block

    def parts(self) -> Sequence[Path]:
        return [self.path]

    def read(self, part: Path) -> Iterator[Episode | RejectedEpisode]:
        assert part == self.path  # there is no other
        for chunk in self.chunks(self.blocks(self.layout.columns)):
            yield from chunk.items()

    def datasets(self, part: Path) -> Iterator[tuple[Dataset, list[RejectedEpisode]]]:
        assert part == self.path  # there is no other
        for chunk in self.chunks(self.blocks(self.layout.columns)):
            yield chunk.dataset, [item for _, item in chunk.rejected]

    def load(self) -> Dataset:
        """All episodes in memory; every file is parsed once."""
        names = (self.layout.episode, self.layout.player, self.layout.source)
        scan = self.new_scan()
        columns = tuple(dict.fromkeys((*self.layout.columns, *scan.columns)))
        blocks = [
            (file, block.compact(names) if isinstance(block, Block) else block)
            for file, block in trimming(self.blocks(columns))
        ]
        self.checker = self.make_checker(scan, blocks)
        if scan.lost_texts and self.files.is_text:  # text that looks like numbers for thousands of lines
            blocks = list(self.blocks(columns))
            self.checker = self.make_checker(self.new_scan(), blocks)
        blocks.reverse()
        builder = DatasetBuilder(self.spec, sum(len(block) for _, block in blocks if isinstance(block, Block)))
        for chunk in self.chunks(trimming(blocks.pop() for _ in range(len(blocks)))):
            builder.append(chunk.dataset)
            builder.rejected += [item for _, item in chunk.rejected]
        found = builder.finish()
        found.table_roles = self.table_roles
        return found

    def chunks(self, blocks: Iterable[tuple[int, Block | RejectedEpisode]]) -> Iterator["Chunk"]:
        """The episodes of blocks, in order, as datasets."""
        ids: dict[Any, int] = {}
        seen: set[int] = set()
        held: list[Rows] = []  # the episode that may continue in the next block
        last, earlier = MISSING_ID, -1
        if self.checker.scattered:
            yield from self.sorted_chunks(blocks, ids)
            return
        for file, block in blocks:
            if isinstance(block, RejectedEpisode):  # the rest of the file is lost
                if held and (complete := self.split(held)):
                    yield self.episodes(complete, seen, ids)
                lost = [self.at(held[0], 0, "its file is damaged further on")] if held else []
                yield Chunk(self.empty(), [(0, item) for item in (block, *lost)])
                held.clear()
                seen.add(last)
                continue
            rows = self.checker.rows(block, file, ids)
            if file != earlier and (self.own_spec or (held and self.is_complete(held[-1]))):  # ids belong to their file
                if held:
                    yield self.episodes(Rows.join(held), seen, ids)
                last = MISSING_ID
                seen.clear()
            rows = self.with_ids(rows, held, last, seen if file != earlier else None)
            earlier, last = file, last if rows.ids is None else int(rows.ids[-1])
            held.append(rows)
            if complete := self.split(held):
                yield self.episodes(complete, seen, ids)
        if held:
            yield self.episodes(Rows.join(held), seen, ids)

    def sorted_chunks(
        self, blocks: Iterable[tuple[int, Block | RejectedEpisode]], ids: dict[Any, int]
    ) -> Iterator["Chunk"]:
        """The episodes of blocks in which their rows do not stand together; all rows are in memory at once."""
        cut = self.layout.cut_at_ends
        by = self.layout.player if cut else f"{self.layout.episode} and {self.layout.step}"
        echo(f"{self.path}: the rows of its episodes do not stand together; they are sorted by {by}", stderr=True)
        held: list[Rows] = []
        for file, block in blocks:
            if isinstance(block, RejectedEpisode):
                yield Chunk(self.empty(), [(0, block)])
            else:
                rows = self.checker.rows(block, file, ids)
                held.append(rows if rows.ids is None else replace(rows, ids=filled(rows.ids, MISSING_ID)))
        if held:
            rows = Rows.join(held)
            if rows.ids is not None:
                rows = rows.sorted(rows.ids, rows.numbers)
            elif rows.player is not None:
                rows = self.with_ids(rows.sorted(number_ids(rows.player, {})), [], 0, None)
            yield self.episodes(rows, set(), ids)

    def with_ids(self, rows: Rows, held: list[Rows], last: int, doubtful: set[int] | None) -> Rows:
        """Rows with the ids of their episodes: where these are missing those of the row before, and where the table has
        none numbers, by the flags of ends. One-step episodes have no ids.

        `held`: rows that the first episode may continue, `last`: their id. By the flags nothing may tell whether it
        does at the beginning of a file, where `doubtful` is given; its number joins them then.
        """
        if not self.layout.cut_at_ends:
            return rows if rows.ids is None else replace(rows, ids=filled(rows.ids, last))
        first_step = self.checker.first_step if self.checker.steps_are == "counts" else None
        begins = np.append(True, rows.begins(first_step))
        if held:
            before = replace(held[-1], ids=None)
            edge = Rows.join([before.take(len(before) - 1, len(before)), rows.take(0, 1)])
            begins[0] = edge.begins(first_step)[0]
        says_so = rows.player is not None or (rows.numbers is not None and first_step is not None)
        if doubtful is not None and not begins[0] and not says_so:
            begins[0] = True
            doubtful.add(last + 1)
        return replace(rows, ids=last + np.cumsum(begins))

    def split(self, held: list[Rows]) -> Rows | None:
        """Take the complete episodes out of the rows that are held; the last one may continue."""
        joined = Rows.join(held)
        if joined.ids is None:
            return joined
        other = np.flatnonzero(joined.ids != joined.ids[-1])
        start = int(other[-1]) + 1 if len(other) else 0
        held.append(joined.take(start, len(joined)))
        return joined.take(0, start) if start else None

    def is_complete(self, rows: Rows) -> bool:
        """Whether the rows are a whole episode, which the next file cannot continue."""
        over = rows.steps["terminated"] | rows.steps["truncated"]
        if rows.numbers is None:
            return bool(over[-1])
        last = int(rows.numbers.argmax())
        if self.checker.steps_are != "counts":
            return bool(over[last])
        return bool(over[last]) and int(rows.numbers[last]) - self.checker.first_step + 1 == len(rows)

    def episodes(self, rows: Rows, seen: set[int], ids: dict[Any, int]) -> "Chunk":
        """Rows with the same id, one after the other, are an episode; an id that returns later is rejected."""
        if rows.ids is None:
            return self.assemble(rows, np.arange(len(rows)))
        starts = np.concatenate([[0], np.flatnonzero(np.diff(rows.ids)) + 1])
        repeated = {}
        for e, name in enumerate(rows.ids[starts].tolist()):
            if name in seen:
                repeated[e] = name
            seen.add(name)
        reasons: dict[int, tuple[int, str]] = {}
        texts = {number: text for text, number in ids.items()} if repeated else {}
        for e, name in repeated.items():
            again = f"{self.layout.episode} {texts.get(name, name)!r} comes back after other episodes"
            rule = "the rows of an episode must stand together, and no two episodes may share an id"
            rest = "may be the rest of the last episode of the file before, which has no end there"
            reasons[e] = int(starts[e]), rest if self.layout.cut_at_ends else f"{again}: {rule}"
        return self.assemble(rows, starts, reasons)

    def assemble(self, rows: Rows, starts: Array, reasons: dict[int, tuple[int, str]] | None = None) -> "Chunk":
        """The valid episodes of rows in which episode e begins at `starts[e]`. `reasons`: row and reason by episode."""
        reasons = reasons or {}
        for row in sorted(rows.faults):
            reasons.setdefault(int(np.searchsorted(starts, row, "right")) - 1, (row, rows.faults[row]))
        sizes = np.diff(np.append(starts, len(rows)))
        order = self.ordered(rows, starts, sizes, reasons)
        if rows.player is not None and not self.layout.one_step:
            changes = np.flatnonzero(rows.player[1:] != rows.player[:-1]) + 1
            for e in np.unique(np.searchsorted(starts, np.setdiff1d(changes, starts), "right") - 1).tolist():
                reasons.setdefault(e, (int(starts[e]), "more than one player in an episode"))
        rejected = [(e, self.at(rows, row, reason)) for e, (row, reason) in reasons.items()]
        good = np.ones(len(starts), bool)
        good[list(reasons)] = False
        firsts = starts[good]
        if reasons or order is not None:
            order = np.arange(len(rows)) if order is None else order
            chosen = order[np.repeat(good, sizes)]
            steps = {name: column[chosen] for name, column in rows.steps.items()}
            starts, sizes = np.cumsum(sizes[good]) - sizes[good], sizes[good]
            heads, tails = chosen[starts], chosen[starts + sizes - 1]
        else:
            steps, heads, tails = rows.steps, starts, starts + sizes - 1
        names = ["", *self.sources]
        names, players = coded(names, None if rows.player is None else rows.player[heads])
        names, sources = coded(names, None if rows.source is None else rows.source[heads])
        dataset, invalid = assemble(
            Dataset,
            self.spec,
            steps,
            starts,
            names=names,
            lines=rows.lines[firsts] if rows.line is None else rows.line[heads].astype(np.int64),
            where=lambda e: (self.sources[rows.files[firsts[e]]], int(rows.lines[firsts[e]])),
            players=0 if players is None else players,
            sources=sources if sources is not None else 1 if len(self.paths) == 1 else rows.files[firsts] + 1,
            abandoned=None if rows.abandoned is None else rows.abandoned[tails],
            final=None if rows.final is None else rows.final[tails],
            has_final=None if rows.has_final is None else rows.has_final[tails],
        )
        numbers = np.flatnonzero(good)
        rejected += [(int(numbers[e]), item) for e, item in invalid]
        return Chunk(dataset, sorted(rejected, key=lambda pair: pair[0]))

    def ordered(self, rows: Rows, starts: Array, sizes: Array, reasons: dict[int, tuple[int, str]]) -> Array | None:
        """The rows in the order of their step numbers, or None if they are in order. Gaps and repeats are noted."""
        if rows.numbers is None:
            return None
        if self.checker.steps_are != "counts":
            return self.ordered_by_time(rows, rows.numbers, sizes, reasons)
        wanted = concat_ranges(self.checker.first_step, sizes)
        moved = np.flatnonzero(rows.numbers != wanted)
        if not len(moved):
            return None
        order = np.arange(len(rows))
        for e in np.unique(np.searchsorted(starts, moved, "right") - 1).tolist():
            start, stop = int(starts[e]), int(starts[e] + sizes[e])
            order[start:stop] = start + np.argsort(rows.numbers[start:stop], kind="stable")
            steps, expected = rows.numbers[order[start:stop]], wanted[start:stop]
            wrong = np.flatnonzero(steps != expected)
            if len(wrong):
                at = int(wrong[0])
                twice = at > 0 and steps[at] == steps[at - 1]
                missing = f"step {expected[at]} is missing before this, as {self.layout.step} counts steps"
                reason = f"step {steps[at]} comes twice" if twice else missing
                reasons.setdefault(e, (int(order[start + at]), reason))
        return order

    def ordered_by_time(self, rows: Rows, times: Array, sizes: Array, reasons: dict[int, tuple[int, str]]) -> Array:
        """The rows in the order of their times; those at the same time keep their order. Noted: rows that are there
        twice, as systems write them that deliver at least once."""
        episode = np.repeat(np.arange(len(sizes)), sizes)
        order = np.lexsort((times, episode))
        one, next_ = order[:-1], order[1:]
        twice = (times[one] == times[next_]) & (episode[one] == episode[next_])
        one, next_ = one[twice], next_[twice]
        for name in ("actions", "rewards", "observations"):
            column = rows.steps[name].reshape(len(rows), -1)
            same = (column[one] == column[next_]).all(1)
            one, next_ = one[same], next_[same]
        for row in next_.tolist():
            reason = "a row comes twice: with the time, action, reward and observation of another one"
            reasons.setdefault(int(episode[row]), (row, reason))
        return order

    def at(self, rows: Rows, row: int, reason: str) -> RejectedEpisode:
        return RejectedEpisode(self.sources[rows.files[row]], int(rows.lines[row]), reason)

    def empty(self) -> Dataset:
        return Dataset.from_episodes([], self.spec)


def used(features: tuple[Feature, ...]) -> tuple[Feature, ...]:
    """The features without the medians of columns in which no number was missing."""
    return tuple(feature if feature.has_missing else replace(feature, fill=None) for feature in features)


@dataclass(frozen=True)
class Chunk:
    """Consecutive episodes: the valid ones, and the rejected ones with their positions among all of them."""

    dataset: Dataset
    rejected: list[tuple[int, RejectedEpisode]]

    def items(self) -> Iterator[Episode | RejectedEpisode]:
        """All of them, in order."""
        used = 0
        for before, (position, item) in enumerate(self.rejected):
            while used + before < position:
                yield self.dataset[used]
                used += 1
            yield item
        for number in range(used, len(self.dataset)):
            yield self.dataset[number]


def partition(path: Path) -> dict[str, str | None]:
    """The columns that the folders of a file stand for, as Hive, Spark and DuckDB write them.

    >>> partition(Path("year=2026/episode_id=7/part-0.parquet"))
    {'year': '2026', 'episode_id': '7'}
    """
    pairs = (folder.partition("=") for folder in path.parts[:-1])
    return {unquote(name): None if value == HIVE_NULL else unquote(value) for name, is_pair, value in pairs if is_pair}


def trimming(blocks: Iterable[Any]) -> Iterator[Any]:
    """The blocks; after each, freed memory goes back to the system, if the C library can do that (glibc).

    Without it, holes between the compacted columns cost 60 MB for a million rows.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    for block in blocks:
        if trim:
            require_package("pyarrow").default_memory_pool().release_unused()
            trim(0)
        yield block


def filled(ids: Array, last: int) -> Array:
    """Ids in which a missing one is that of the row before; `last`: the id before the first row."""
    if not (ids == MISSING_ID).any():
        return ids
    given = np.append(np.int64(last), ids)
    return given[np.maximum.accumulate(np.where(given == MISSING_ID, 0, np.arange(len(given))))][1:]


def coded(names: list[str], texts: Array | None) -> tuple[list[str], Array | None]:
    """Texts as indices into the names, which grow."""
    if texts is None:
        return names, None
    known = {name: number for number, name in enumerate(names)}
    found = [known.setdefault("" if text is None else str(text), len(known)) for text in texts.tolist()]
    return list(known), np.array(found, np.int64)
