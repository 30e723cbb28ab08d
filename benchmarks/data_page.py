"""Data tools in docs/results.md, from raw results."""

from benchmarks.tables import load, measured_on, table_row

SAMPLER_HEAD = """
## Speed of the sampler

Transitions of four stacked 84 x 84 frames of Breakout and the next state, samples/s; rbi reads the store on disk,
d3rlpy its buffer in memory, alternating in one run.
"""

LARGER_NOTE = """
In a fresh process glibc maps and unmaps the memory of every batch; after one larger batch it keeps freed memory. The
rows with "no" are programs that draw batches of one size only, those with "yes" have also drawn a larger batch.
"""

REPAIRS_HEAD = """
## Repairs of the human data

The paper's human data cannot be downloaded here. Games were recorded in its format with every known defect injected and
the ground truth kept (tests/fixtures): rewards and actions delayed by 0 to 4 frames instead of 2, blanked life icons,
the other simulator's palette, screens that drift from the text, wrong final scores, duplicates, truncated files. What
the importer recovers, compared with the console's RAM:
"""

REPAIRS_NOTES = """
A lost life cannot be seen while the icons are blanked on purpose, nor in Qbert when the player leaves before they
reappear (60 frames). An offset counts as recovered if the imported rewards or actions equal the truth; an episode that
shows too little gets the default of 2 frames, which is wrong here and right in the human data. Qbert's actions are the
weak spot: 0 to 5 frames lie between a press and a hop, and a player who presses at random rarely hops. The players are
programs, and the reader's constants were tuned on other recordings of the same programs.
"""

FIGURES = {
    "episodes": "episodes",
    "rows": "frames (60 a second)",
    "ends_of_life": "lost lives (without Qbert's last)",
    "life_recall": "found within 2 frames",
    "life_recall_shown": "of those visible in the icons",
    "life_precision": "precision",
    "reward_offsets_injected": "changed reward offsets",
    "reward_offsets_recovered": "recovered",
    "action_offsets_injected": "changed action offsets",
    "action_offsets_recovered": "recovered",
    "defective": "defective episodes",
    "defective_found": "found",
    "false_alarms": "valid episodes rejected",
    "rows_per_second": "frames imported/s",
    "peak_gigabytes": "peak memory, GB",
}
SHARES = (
    "life_recall",
    "life_recall_shown",
    "life_precision",
    "reward_offsets_recovered",
    "action_offsets_recovered",
    "defective_found",
)
NAMES = {"spaceinvaders": "SpaceInvaders", "qbert": "Qbert", "mspacman": "MsPacman", "revenge": "Montezuma's Revenge"}


def sampler(result):
    version = result["rows"][0]["d3rlpy_version"]
    both = any("larger_before" in row for row in result["rows"])
    lines = [
        f"| batch |{' after a larger batch |' * both} rbi | d3rlpy {version} | ratio |",
        "|--:|" + "--:|" * (3 + both),
    ]
    for row in result["rows"]:
        before = ["yes" if row.get("larger_before") else "no"] if both else []
        cells = [str(row["batch"]), *before, f"{row['ours']:,.0f}", f"{row['d3rlpy']:,.0f}", f"{row['times']:.1f}"]
        lines.append(table_row(cells))
    lines += [LARGER_NOTE] * both
    m, megabyte = result["memory"], 2**20
    memory = (
        f"\nMemory: {m['batches']:,} batches of 32 from a store of {m['store_bytes'] / megabyte:,.0f} MiB with a limit "
        f"of {m['allowed_bytes'] / megabyte:,.0f} MiB; peak use in each tenth of the run "
        f"{min(m['taken_bytes']) / megabyte:,.0f} to {max(m['taken_bytes']) / megabyte:,.0f} MiB. "
    )
    return "\n".join([SAMPLER_HEAD, *lines, memory + measured_on(result)])


def repairs(result):
    games = result["games"]
    lines = ["| | " + " | ".join(NAMES[game] for game in games) + " | aim |", "|---|" + "--:|" * (len(games) + 1)]
    for name, label in FIGURES.items():
        aim = result["aims"].get(name)
        sign = "at most" if name in ("false_alarms", "peak_gigabytes") else "at least"
        cells = [number(name, found[name]) for found in games.values()]
        lines.append(table_row([label, *cells, "" if aim is None else f"{sign} {number(name, aim)}"]))
    return "\n".join([REPAIRS_HEAD, *lines, REPAIRS_NOTES, measured_on(result)])


def number(name, value):
    if value is None:
        return "-"
    if name in SHARES or name == "false_alarms":
        return f"{100 * value:.4g}%"
    return f"{value:.2f}" if name == "peak_gigabytes" else f"{value:,.0f}"


def data_part():
    """The sections that were measured."""
    parts = []
    if found := load("data.json"):
        parts.append(sampler(found))
    if found := load("agc.json"):
        parts.append(repairs(found))
    return parts
