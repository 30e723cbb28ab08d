"""What the HTML report shows, as plain data: the page draws these panels and knows nothing about runs.

`Report` is the one JSON object inside the page; `/data.json` of a live report is the same object. Numbers have six
significant digits, NaN is null, and infinity is 1e999, as in run folders.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from rich.table import Table as RichTable

from rbi.data.episode import Array

MAX_POINTS = 300  # of a line: more than a chart has pixels to show
MAX_LINES = 8  # visible in a chart at a time


@dataclass(frozen=True)
class Line:
    """A line of a chart, with a band if `low` and `high` are given."""

    label: str
    x: list[float]
    y: list[float | None]
    low: list[float | None] | None = None
    high: list[float | None] | None = None
    thin: bool = False
    """Drawn dotted and without a label, such as the training curve below a validation curve."""


@dataclass(frozen=True)
class Axis:
    """The lines of a chart over one choice of x-axis."""

    name: str
    """What the user selects."""
    label: str
    """Text below the axis, with the unit."""
    lines: list[Line]
    log: bool = False


@dataclass(frozen=True)
class Reference:
    """A horizontal line of a chart."""

    value: float
    label: str


@dataclass(frozen=True)
class Lines:
    """A chart of lines over a selectable x-axis. At most `MAX_LINES` of them are visible at a time."""

    kind: ClassVar[str] = "lines"
    title: str
    y_label: str
    axes: list[Axis]
    note: str = ""
    references: list[Reference] = field(default_factory=list)
    y_range: tuple[float, float] | None = None
    """Limits of the y-axis, where extreme values would compress everything else."""


@dataclass(frozen=True)
class IntervalRow:
    """An estimate with its interval. `tone`: good, bad, strong or plain."""

    label: str
    value: float
    low: float
    high: float
    tone: str = "plain"
    text: str = ""
    """Shown after the numbers, such as a verdict."""


@dataclass(frozen=True)
class Intervals:
    """Estimates with their intervals, one below the other, against a vertical reference line."""

    kind: ClassVar[str] = "intervals"
    title: str
    x_label: str
    rows: list[IntervalRow]
    reference: float | None = None
    reference_label: str = ""
    note: str = ""


@dataclass(frozen=True)
class PairRow:
    """Probabilities of one action under beta and pi."""

    label: str
    beta: float
    pi: float


@dataclass(frozen=True)
class Pairs:
    """Bars of beta and pi for each action."""

    kind: ClassVar[str] = "pairs"
    title: str
    rows: list[PairRow]
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A table. Cells are texts; columns of numbers are aligned to the right."""

    kind: ClassVar[str] = "table"
    title: str
    columns: list[str]
    rows: list[list[str]]
    numeric: list[bool] = field(default_factory=list)
    note: str = ""
    folded: bool = False
    """Shown after a click only."""

    @classmethod
    def of(cls, table: RichTable, *, folded: bool = False) -> "Table":
        """The table of the terminal."""
        columns = table.columns
        cells = [[plain_text(cell) for cell in column.cells] for column in columns]
        return cls(
            title=sentence(plain_text(table.title)),
            columns=[plain_text(column.header) for column in columns],
            rows=[list(row) for row in zip(*cells, strict=True)],
            numeric=[column.justify == "right" for column in columns],
            note=sentence(plain_text(table.caption)),
            folded=folded,
        )


@dataclass(frozen=True)
class Verdict:
    """The deploy decision: a sentence, and why."""

    kind: ClassVar[str] = "verdict"
    verdict: str
    """deploy, keep or test live."""
    headline: str
    reasons: list[str]
    assumptions: list[str]


@dataclass(frozen=True)
class Notes:
    """Sentences."""

    kind: ClassVar[str] = "notes"
    title: str
    lines: list[str]


Panel = Lines | Intervals | Pairs | Table | Verdict | Notes


@dataclass(frozen=True)
class RunSection:
    """One run: its panels, and everything needed to run it again."""

    name: str
    path: str
    command: str
    """The command that made it, such as `train`."""
    command_line: str
    """To run it again; empty where it was started from Python."""
    complete: bool
    seed: int | None
    started: str
    summary: list[list[str]]
    """The main numbers: pairs of a name and a text."""
    panels: list[Panel]
    settings: list[list[str]]
    versions: list[list[str]]
    warnings: list[str]
    """What could not be read."""
    viewer: Any = None
    """Episodes or decisions to look at (`rbi.report.episodes`), if there are any."""


@dataclass(frozen=True)
class Report:
    """Everything that the page shows."""

    title: str
    version: str
    """Of rbi."""
    made: str
    comparison: list[Panel]
    """Panels of several runs together."""
    runs: list[RunSection]
    live: bool = False
    """Whether the page asks the server for new data."""
    format: int = 1

    def to_dict(self) -> dict[str, Any]:
        """JSON types; a panel has its `kind`."""
        return page_values(self)


def page_values(value: Any) -> Any:
    """Dataclasses as dictionaries, panels with their kind, floats rounded to six significant digits."""
    if hasattr(value, "__dataclass_fields__"):
        fields = {name: page_values(getattr(value, name)) for name in value.__dataclass_fields__}
        return ({"kind": value.kind} if hasattr(value, "kind") else {}) | fields
    if isinstance(value, dict):
        return {str(key): page_values(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [page_values(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return value


def plain_text(value: Any) -> str:
    """The text of a title, header or cell of a rich table."""
    return "" if value is None else str(value)


def sentence(text: str) -> str:
    """The text with a capital letter, unless it begins with a name, such as a path or `reroute(0.5,1.5)`."""
    first = text.split(" ")[0]
    return text[:1].upper() + text[1:] if first.rstrip(":,").isalpha() and first not in ("beta", "pi") else text


def thinned(count: int) -> Array:
    """Indices of at most `MAX_POINTS` of `count` points, evenly spread, with the first and the last."""
    if not count:
        return np.zeros(0, int)
    return np.unique(np.linspace(0, count - 1, min(count, MAX_POINTS)).round().astype(int))


def finite(value: float | None) -> float | None:
    """None in place of what a chart cannot show."""
    return None if value is None or not math.isfinite(value) else float(value)


def line_of(label: str, x: Sequence[float], y: Sequence[Any], *bands: Sequence[Any], thin: bool = False) -> Line:
    """A line of at most `MAX_POINTS` points; `bands` are low and high."""
    some = thinned(len(x))
    values, *edges = ([finite(each[i]) for i in some] for each in (y, *bands))
    low, high = edges or (None, None)
    return Line(label, [float(x[i]) for i in some], values, low, high, thin)
