"""Contextual-bandit logs of Vowpal Wabbit and Azure Personalizer (dsjson): one decision, an episode, per line.

    {"_label_cost": -1, "_label_probability": 0.8, "_labelIndex": 2,
     "c": {"User": {"age": 31, "segment": "new"}, "_multi": [{"a": {"id": "mail"}}, ...]}}

The shared context is observed: numbers are numbers, texts one-hot, absent numbers 0; as in Vowpal Wabbit, properties
whose names begin with _ are no features. The action is the entry of `_multi` that was chosen; different entries are
different actions, and those of a line are its legal ones. The reward is minus the cost. Lines of another kind (outcomes
that came late, slates, decisions without an outcome: `_skipLearn`) are rejected. Logs that keep only a sample of the
decisions (`pdrop`) are refused: episodes have no weights.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rbi.data.episode import RejectedEpisode
from rbi.data.formats.reader import require_package
from rbi.data.formats.table_columns import Block
from rbi.data.formats.table_features import TableSchema
from rbi.data.formats.table_files import DAMAGED, HEAD_LINES, FrameFiles, line_chunks, open_binary, parse_object
from rbi.data.formats.table_layout import TableConfig
from rbi.data.formats.tables import TableReader

SUFFIXES = (".dsjson", ".json", ".jsonl", ".ndjson", ".log", ".gz")
MAX_ACTIONS = 1000
"""Different entries of `_multi`; more are features of each line's actions, not actions."""
ACTION, REWARD, PROBABILITY, MASK = "_action", "_reward", "_probability", "_mask"


def recognises(path: Path) -> bool:
    if not path.is_file() or not path.name.lower().endswith(SUFFIXES):
        return False
    try:
        with open_binary(path) as file:
            lines = (file.readline(1 << 20) for _ in range(HEAD_LINES))  # outcomes may come before the first decision
            return any(b'"_label_cost"' in line and b'"c"' in line for line in lines)
    except (ValueError, *DAMAGED):
        return False


def open_reader(path: Path, settings: Any) -> TableReader:
    events = Events(path)
    config = TableConfig(
        action=ACTION, reward=REWARD, observations=events.context, action_prob=PROBABILITY,
        action_mask=MASK if events.masked else None, one_step=True,
    )  # fmt: skip
    schema = TableSchema((), events.actions)
    return TableReader(path, events, settings.overrides, config, schema)


class Events(FrameFiles):
    """The decisions of a file as a table in memory; lines that are none are faults of their rows."""

    def __init__(self, path: Path) -> None:
        self.lines: list[int] = []
        self.faults: dict[int, str] = {}
        rows: list[dict[str, Any]] = []
        for number, event in enumerate(events_of(path), 1):
            if event is None:
                continue
            try:
                if isinstance(event, str):
                    raise ValueError(f"the line is not a JSON object ({event})")
                rows.append(decision(event))
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                self.faults[len(rows)] = str(error) or type(error).__name__
                rows.append({})
            self.lines.append(number)
            if rows[-1] and rows[-1]["dropped"]:
                dropped = f"{path}, line {number}: pdrop {rows[-1]['dropped']:g}"
                raise ValueError(f"{dropped}: the log is a sample of the decisions, whose weights are not supported")
        good = [row for row in rows if row]
        if not good:
            raise ValueError(f"{path}: holds no decisions of dsjson" + (f" (line 1: {self.faults[0]})" if rows else ""))
        self.actions = tuple(sorted({action for row in good for action in row["legal"]}))
        if len(self.actions) > MAX_ACTIONS:
            raise ValueError(
                f"{path}: its lines have {len(self.actions):,} different entries of _multi; at most {MAX_ACTIONS:,} "
                "can be actions: features of actions are not supported"
            )
        self.masked = any(len(row["legal"]) < len(self.actions) for row in good)
        self.context = tuple(dict.fromkeys(name for row in good for name in row["context"])) or ("constant",)
        super().__init__(self.as_table(rows))

    def as_table(self, rows: list[dict[str, Any]]) -> Any:
        pa = require_package("pyarrow")
        example = next(row for row in rows if row)
        filled = [row or example for row in rows]
        columns: dict[str, Any] = {ACTION: [row["action"] for row in filled], REWARD: [row["reward"] for row in filled]}
        columns[PROBABILITY] = [row["probability"] for row in filled]
        if self.masked:
            masks = np.array([[action in row["legal"] for action in self.actions] for row in filled])
            columns[MASK] = pa.FixedSizeListArray.from_arrays(pa.array(masks.reshape(-1)), len(self.actions))
        for name in self.context:
            values = [row["context"].get(name) for row in filled]
            texts = any(isinstance(value, str) for value in values)
            columns[name] = [("" if v is None else str(v)) if texts else float(v or 0) for v in values]
        return pa.table(columns)

    def blocks(self, path: Path, columns: Sequence[str]) -> Iterator[Block | RejectedEpisode]:
        first = 0
        for block in super().blocks(path, columns):
            assert isinstance(block, Block)
            rows = range(first, first + len(block))
            faults = {row - first: self.faults[row] for row in rows if row in self.faults}
            yield Block(path, block.table, [self.lines[row] for row in rows], faults)
            first += len(block)


def events_of(path: Path) -> Iterator[dict[str, Any] | str | None]:
    """The objects of all lines; a text says why a line is none, None stands for an empty line."""
    with open_binary(path) as file:
        for chunk in line_chunks(file):
            if isinstance(chunk, str):
                yield chunk
                return
            yield from (parse_object(line) if line.strip() else None for line in chunk.splitlines())


def decision(event: dict[str, Any]) -> dict[str, Any]:
    """Context, action, reward, probability and legal actions of a line."""
    if "_label_cost" not in event or "_multi" not in (event.get("c") or {}):
        raise ValueError("the line is not a decision among actions (_label_cost, c and _multi)")
    if event.get("_skipLearn"):
        raise ValueError("the decision has no outcome (_skipLearn)")
    legal = [sys.intern(json.dumps(entry, sort_keys=True)) for entry in event["c"]["_multi"]]  # lines share most
    chosen = event["_labelIndex"] if "_labelIndex" in event else event["_label_Action"] - 1
    if type(chosen) is not int or not 0 <= chosen < len(legal):
        raise ValueError(f"_labelIndex {chosen!r} is not one of {len(legal)} actions")
    if len(set(legal)) < len(legal):
        raise ValueError("two entries of _multi are equal, so that _label_probability is not that of an action")
    context: dict[str, Any] = {}
    add_features(context, "", event["c"])
    return {
        "context": context,
        "action": legal[chosen],
        "reward": -float(event["_label_cost"]),
        "probability": float(event["_label_probability"]),
        "legal": set(legal),
        "dropped": float(event.get("pdrop") or 0),
    }


def add_features(found: dict[str, Any], name: str, value: Any) -> None:
    """Nested features by their names with dots; entries of lists are numbered."""
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            if not str(key).startswith("_"):
                add_features(found, f"{name}.{key}" if name else str(key), part)
    elif isinstance(value, bool | int | float | str):
        found[name] = float(value) if isinstance(value, bool) else value
