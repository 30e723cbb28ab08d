"""Figures and tables of `rbi spi`: mean and CVaR of every algorithm by data size."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from rbi.report import DARK, GREY, LINES, label_lines, styled_figure, titled_table
from rbi.runs import Run

CELL_WIDTH, NAME_WIDTH = 18, 28  # terminal columns of a cell and of an algorithm's name
MARKERS = "osv^D*PX"


def tables(run: Run, width: int | None) -> list[Table]:
    """Tables of each world: scores, and leads of the compared algorithms. `width` limits the number of data sizes."""
    found = []
    for part in run.finished()["worlds"]:
        found += [score_table(part, width), *(lead_table(part, name) for name in part["compared"])]
    return found


def score_table(part: dict[str, Any], width: int | None) -> Table:
    """One row per algorithm, one column per data size: mean / CVaR / share below the baseline."""
    shown = fitting(part["sizes"], width)
    omitted = "" if len(shown) == len(part["sizes"]) else "; result.json has all sizes"
    table = titled_table(f"{heading(part)}\nmean / 1%-CVaR / share below the baseline, by {part['size_unit']}{omitted}")
    table.add_column("algorithm", no_wrap=True)
    for i in shown:
        table.add_column(f"{part['sizes'][i]:,}", justify="right", no_wrap=True)
    for j, name in enumerate(part["algorithms"]):
        table.add_row(name, *(cell(part, i, j) for i in shown), style="bold" if name == part["compared"][0] else "")
    return table


def lead_table(part: dict[str, Any], ours: str) -> Table:
    """Sign per data size against each algorithm: + leads in mean and CVaR, - trails in both, . neither."""
    table = titled_table(
        f"{ours} against each algorithm, one sign per data size"
        "\n+ leads in mean and CVaR, - trails in both, . neither, or within the interval"
    )
    for name in ("algorithm", "by paired 95% intervals", "by estimates"):
        table.add_column(name, no_wrap=True)
    for j, name in enumerate(part["algorithms"]):
        if name != ours:
            table.add_row(name, signs(part, ours, j, beyond=True), signs(part, ours, j, beyond=False))
    return table


def signs(part: dict[str, Any], ours: str, column: int, *, beyond: bool) -> str:
    """One sign per data size, against one algorithm."""
    text, which = "", part["compared"].index(ours)
    for i in range(len(part["sizes"])):
        leads = [[part["summary"][key][which][k][i][column] for k in range(3)] for key in ("mean_lead", "cvar_lead")]
        lows = [low if beyond else at for at, low, _ in leads]
        highs = [high if beyond else at for at, _, high in leads]
        text += "+" if min(lows) > 0 else "-" if max(highs) < 0 else "."
    return text


def cell(part: dict[str, Any], size: int, column: int) -> str:
    """mean/CVaR/share below the baseline, two decimals each."""
    s = part["summary"]
    mean, cvar, below = (s[key][size][column] for key in ("mean", "cvar", "below"))
    return "/".join(f"{round(x, 2) + 0.0:.2f}" for x in (mean, cvar, below))  # never -0.00


def fitting(sizes: Sequence[int], width: int | None) -> list[int]:
    """Indices of as many data sizes as fit, spread evenly."""
    most = len(sizes) if width is None else max(1, min(len(sizes), (width - NAME_WIDTH) // CELL_WIDTH))
    if most == 1:
        return [len(sizes) // 2]
    return sorted({round(k * (len(sizes) - 1) / (most - 1)) for k in range(most)})


def figure(part: dict[str, Any]) -> Any:
    """Mean and CVaR by data size: at most eight algorithms in colour, the others in grey."""
    with styled_figure(8.4, 3.8) as figure:
        panels = figure.subplots(1, 2, sharex=True, sharey=True)
        styles = {name: line_style(n) for n, name in enumerate(highlighted(part))}
        for panel, key, title in zip(panels, ("mean", "cvar"), ("mean", "1%-CVaR (mean of the worst 1%)"), strict=True):
            for name in sorted(part["algorithms"], key=lambda name: name in styles):  # grey ones below
                j = part["algorithms"].index(name)
                style = styles.get(name, {"color": GREY, "linewidth": 0.7, "zorder": 1, "label": "_"})
                panel.plot(part["sizes"], [row[j] for row in part["summary"][key]], **{"label": name, **style})
            panel.axhline(part["baseline"], color=DARK, linewidth=0.6)
            panel.set(xscale="log", title=title, xlabel=f"data size ({part['size_unit']})")
            panel.set_xticks(part["sizes"], [short(n) for n in part["sizes"]])
            panel.minorticks_off()
        panels[0].set(ylabel=part["score_label"], ylim=limits(part))
        for panel in panels:
            label_lines(panel)
        rest = len(part["algorithms"]) - len(styles)
        grey = f" Grey: {rest} others (result.json)." if rest else ""
        cut = " Lower values are cut off." if leaves(part) else ""
        figure.suptitle(f"{heading(part)} Thin horizontal line: baseline.{grey}{cut}", x=0.01, ha="left", fontsize=7.5)
    return figure


def highlighted(part: dict[str, Any]) -> list[str]:
    """The algorithms with colours: those compared, and of the other families in turn the one with the best CVaR and the
    one with the best mean over all data sizes, each with its best parameters."""
    names = part["algorithms"]
    totals = {key: [sum(row[j] for row in part["summary"][key]) for j in range(len(names))] for key in ("cvar", "mean")}
    ranked = [[names[j] for j in sorted(range(len(names)), key=lambda j: -total[j])] for total in totals.values()]
    found = [name for name in part["compared"] if name in names][: len(LINES)]
    for name in (name for pair in zip(*ranked, strict=True) for name in pair):
        if len(found) < len(LINES) and family(name) not in map(family, found):
            found.append(name)
    return found


def family(algorithm: str) -> str:
    """The name of an algorithm without its parameters."""
    return algorithm.partition("(")[0]


def line_style(n: int) -> dict[str, Any]:
    """Line style of the n-th coloured algorithm; the first is thick and on top."""
    return {**LINES[n], "marker": MARKERS[n], "markersize": 4.5 if n == 0 else 3} | (
        {"linewidth": 2.4, "zorder": 3} if n == 0 else {"zorder": 2}
    )


def short(size: int) -> str:
    """A data size as a short label: 2000 is 2k."""
    return f"{size / 1000:g}k" if size >= 1000 else str(size)


def limits(part: dict[str, Any]) -> tuple[float, float]:
    """Limits of the y-axis: values far below the baseline would compress everything else."""
    top = max(max(row) for row in part["summary"]["mean"])
    room = max(top - part["baseline"], 1e-9)
    return part["baseline"] - 0.7 * room, top + 0.05 * room


def leaves(part: dict[str, Any]) -> bool:
    """Whether a line falls below the y-axis."""
    return min(min(row) for row in part["summary"]["cvar"]) < limits(part)[0]


def heading(part: dict[str, Any]) -> str:
    """World, quality of its baselines, number of repetitions."""
    return f"{part['title']}, {part['quality_name']} = {part['quality']:g}, {part['repetitions']:,} repetitions."
