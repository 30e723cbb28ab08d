"""Figures and tables of finished runs, and the style of all figures: readable in greyscale and at print size."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table

GREY, DARK, ACCENT, WARNING = "#c8ccd2", "#2a2f36", "#0072b2", "#d55e00"

MAX_NAME = 30  # letters of a name beside an axis
TURNED_LETTER = 0.04  # inches of height
LABEL_SIZE = 6.5  # points, of the names of lines

LINES: tuple[dict[str, Any], ...] = (  # Okabe and Ito's palette, safe for colour-blind readers; dashes for greyscale
    {"color": "#0072b2", "linestyle": "-", "linewidth": 1.8},
    {"color": "#d55e00", "linestyle": "--", "linewidth": 1.3},
    {"color": "#009e73", "linestyle": "-.", "linewidth": 1.3},
    {"color": "#2a2f36", "linestyle": ":", "linewidth": 1.5},
    {"color": "#b0508a", "linestyle": (0, (6, 1.5, 1, 1.5, 1, 1.5)), "linewidth": 1.3},
    {"color": "#c28500", "linestyle": (0, (2, 1)), "linewidth": 1.1},
    {"color": "#808a94", "linestyle": "-", "linewidth": 0.9},
    {"color": "#4aa8dc", "linestyle": (0, (8, 3)), "linewidth": 1.1},
)
"""At most this many lines in one panel."""

LOOK: Any = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#6b7680",
    "axes.linewidth": 0.7,
    "xtick.color": "#3c464f",
    "ytick.color": "#3c464f",
    "legend.frameon": False,
    "pdf.fonttype": 42,  # embed fonts as TrueType, so that text stays editable
}


@contextlib.contextmanager
def styled_figure(width: float, height: float) -> Iterator[Any]:
    """A new figure of this size in inches, to be drawn in our style."""
    with mpl.rc_context(LOOK):
        yield Figure(figsize=(width, height), layout="constrained")


def facts_table(title: str, rows: Mapping[str, str], **options: Any) -> Table:
    """A table of names and texts, one of each in a row."""
    table = Table("", "", title=title, box=SIMPLE_HEAD, **options)
    for name, text in rows.items():
        table.add_row(name, text)
    return table


class FittingTable(Table):
    """A table that leaves out its `optional` columns, in this order, until the others fit the terminal."""

    optional: tuple[str, ...] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        every, unlimited = self.columns, options.update(max_width=10**6)
        for name in self.optional:
            if Measurement.get(console, unlimited, self).maximum > options.max_width:
                self.columns = [column for column in self.columns if column.header != name]
        try:
            yield from super().__rich_console__(console, options)
        finally:
            self.columns = every


def numbers_table(
    title: str | None, columns: Sequence[str], texts: Sequence[str] = (), optional: Sequence[str] = (), **options: Any
) -> Table:
    """An empty table with columns of numbers, which are aligned to the right, except for those that are `texts`.
    Narrow terminals leave out the `optional` columns and wrap cells, but cut nothing off."""
    table = FittingTable(title=title, box=SIMPLE_HEAD, collapse_padding=True, **options)
    table.optional = tuple(optional)
    for name in columns:
        table.add_column(name, justify="left" if name in texts else "right", overflow="fold")
    return table


def titled_table(title: str, **options: Any) -> Table:
    """An empty table without side margins, below a title of several lines."""
    return Table(
        title=title,
        title_justify="left",
        title_style="",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
        **options,
    )


def name_ticks(panel: Any, names: Sequence[str], max_letters: int) -> None:
    """Name bars at 0, 1, ... by texts from data: `$` begins no formula, and long names lose their middle. Names of more
    letters in all are turned, below a figure that becomes higher."""
    head, tail = MAX_NAME - 3 - MAX_NAME // 3, MAX_NAME // 3
    shown = [name if len(name) <= MAX_NAME else f"{name[:head]}...{name[-tail:]}" for name in names]
    crowded = sum(map(len, shown)) > max_letters
    if crowded:
        figure = panel.get_figure()
        figure.set_figheight(figure.get_figheight() + TURNED_LETTER * max(map(len, shown)))
    panel.set_xticks(range(len(shown)), shown, fontsize=6 if crowded else None, parse_math=False)
    panel.tick_params("x", rotation=90 if crowded else 0)


def label_lines(panel: Any) -> None:
    """Name each labelled line of a panel at its right end, in its colour, instead of in a legend.

    Call it when the limits of the axes are final: labels are moved apart where lines end close together.
    """
    low, high = panel.get_ylim()
    lines = [line for line in panel.get_lines() if not line.get_label().startswith("_") and len(line.get_ydata())]
    height = panel.get_position().height * panel.get_figure().get_figheight() * 72  # points
    gap = 1.25 * LABEL_SIZE / max(height, 1.0)
    ends = sorted((min(1.0, max(0.0, (line.get_ydata()[-1] - low) / (high - low))), n) for n, line in enumerate(lines))
    places = spread([at for at, _ in ends], gap)
    for (at, n), place in zip(ends, places, strict=True):
        line = lines[n]
        panel.annotate(
            line.get_label(), (1.0, at), (1.025, place), "axes fraction", "axes fraction", va="center",
            fontsize=LABEL_SIZE, color=line.get_color(), annotation_clip=False,
        )  # fmt: skip


def spread(places: list[float], gap: float) -> list[float]:
    """Ascending places between 0 and 1, moved apart by at least the gap where they fit.

    >>> spread([0.5, 0.5, 1.0], 0.25)
    [0.5, 0.75, 1.0]
    """
    found: list[float] = []
    for place in places:
        found.append(max(place, found[-1] + gap) if found else place)
    limit = 1.0
    for n in range(len(found) - 1, -1, -1):
        found[n] = min(found[n], limit)
        limit = found[n] - gap
    return found
