"""What must be known of a table before its first episode: how many actions there are, what texts a column holds."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from rbi.data.dataset import RejectedEpisode
from rbi.data.episode import MOST_ACTIONS, Array, DatasetSpec
from rbi.data.formats.seam import SpecOverrides
from rbi.data.formats.table_files import Block, Files
from rbi.data.formats.table_layout import Layout
from rbi.data.formats.table_rows import Checker, is_number

MOST_CATEGORIES = 10_000
PICTURE_STACK = 4


class Scan:
    """What is known of a table after one look through some of its columns."""

    def __init__(self, layout: Layout, *, need_actions: bool) -> None:
        self.layout, self.need_actions = layout, need_actions
        self.observed = layout.observations if layout.texts else ()
        self.columns = tuple(dict.fromkeys([
            *([layout.action] if need_actions else []), *([layout.step] if layout.step else []), *self.observed,
        ]))  # fmt: skip
        self.largest_action = -1
        self.first_step = 1
        self.found = {name: Counted() for name in self.observed}

    def look(self, blocks: Iterable[Block | RejectedEpisode]) -> None:
        for block in blocks:
            if not isinstance(block, RejectedEpisode):  # told when it is read
                self.add(block)

    def add(self, block: Block) -> None:
        if self.need_actions:
            actions = block.numbers(self.layout.action)
            possible = actions[(actions >= 0) & (actions < MOST_ACTIONS) & (actions == np.floor(actions))]
            self.largest_action = int(possible.max(initial=self.largest_action))
        if self.layout.step and self.first_step and (block.numbers(self.layout.step) == 0).any():
            self.first_step = 0
        for name, counted in self.found.items():
            if block.holds_text(name):
                counted.add(block.texts(name))
            else:
                counted.numbers += len(block.lines)

    def categories(self, path: Path) -> dict[str, dict[str, int]]:
        """The texts of each column that holds more texts than numbers, numbered in their order."""
        found = {}
        for name, counted in self.found.items():
            if counted.words > counted.numbers:
                if len(counted.texts) > MOST_CATEGORIES:
                    raise ValueError(
                        f"{path}: column {name!r} holds more than {MOST_CATEGORIES:,} different texts; name the "
                        "columns to observe with --table.observations"
                    )
                found[name] = {text: number for number, text in enumerate(sorted(counted.texts))}
        return found


@dataclass
class Counted:
    """How many values of a column are numbers, how many are not, and which there are."""

    numbers: int = 0
    words: int = 0
    texts: set[str] = field(default_factory=set)

    def add(self, texts: Array) -> None:
        for text, count in Counter(texts.tolist()).items():
            if text is None:
                continue
            if is_number(text):
                self.numbers += count
            else:
                self.words += count
            if len(self.texts) <= MOST_CATEGORIES:
                self.texts.add(text)


def make_checker(path: Path, files: Files, overrides: SpecOverrides, own: DatasetSpec | None, scan: Scan) -> Checker:
    """What the rows of a table must be like. `path`: its first file. `own`: what our writer left there."""
    layout, categories = scan.layout, scan.categories(path)
    lists = files.lists(path, layout.observations[0]) if len(layout.observations) == 1 else None
    masks = files.lists(path, layout.action_mask[0]) if len(layout.action_mask) == 1 else None
    width = masks.shape[0] if masks else len(layout.action_mask)
    actions = overrides.num_actions or (own.num_actions if own else width or scan.largest_action + 1)
    if actions < 1:
        raise ValueError(f"{path}: no row has a whole number as its {layout.action}: actions are numbered from 0")
    if width and width != actions:
        raise ValueError(f"{path}: {layout.action_mask[0]} is of {width} actions, not of {actions}")
    frame: tuple[int, ...] = (sum(len(categories.get(name, "1")) for name in layout.observations),)
    if lists:
        frame = lists.shape if lists.bytes and len(lists.shape) in (2, 3) else (int(np.prod(lists.shape)),)
    spec = own or DatasetSpec(
        obs_shape=frame,
        num_actions=actions,
        frame_stack=PICTURE_STACK if len(frame) > 1 else 1,
        has_action_probs=layout.action_prob is not None,
        has_action_masks=bool(layout.action_mask),
    )
    spec = replace(
        spec, num_actions=actions, frame_stack=overrides.frame_stack or spec.frame_stack, env=overrides.env or spec.env
    )
    shape = spec.obs_shape if own else lists.shape if lists else None
    return Checker(layout, spec, categories, shape, mask_lists=masks is not None)
