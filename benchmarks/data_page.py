"""The part of docs/results.md on experience on disk, from whatever results are there."""

SAMPLER_HEAD = """
## Speed of the sampler

Transitions of four stacked 84 x 84 frames of Breakout and the state one step ahead, samples a second; ours read from
the store on disk, d3rlpy's from memory, in turns in one run.
"""

REPAIRS_HEAD = """
## Repairs of the human data

The paper's human data cannot be had here, so games were recorded in its format with every known defect put in on
purpose and the truth kept beside (`rbi.evaluation.agc`, `rbi.evaluation.defects`): rewards and actions that come late
by 0 to 4 frames instead of 2, icons that are blanked, the other simulator's colours, screens that drift away from the
text, wrong final scores, duplicates, torn files. What the importer makes of them, against the truth in the console's
memory:
"""

REPAIRS_TELL = """
Icons cannot show an end of life while they are blanked on purpose, nor in Qbert to who leaves before they come back (60
frames are taken for that). An offset is recovered if the imported rewards or actions are those of the truth; where an
episode shows too little, the usual 2 frames are taken, which is wrong here and right in the human data. Actions of
Qbert are the weak spot: between a press and a hop lie 0 to 5 frames, and a player who presses anything hops too
seldom to tell. The players are programs, and the reader's constants were set on other recordings of the same programs.
"""

FIGURES = {
    "episodes": "episodes",
    "rows": "frames (60 a second)",
    "ends_of_life": "ends of life (without Qbert's last)",
    "life_recall": "found within 2 frames",
    "life_recall_shown": "of those that icons can show",
    "life_precision": "of those reported, true",
    "reward_offsets_injected": "changed reward offsets",
    "reward_offsets_recovered": "recovered",
    "action_offsets_injected": "changed action offsets",
    "action_offsets_recovered": "recovered",
    "defective": "defective episodes",
    "defective_found": "found",
    "false_alarms": "good episodes set aside",
    "rows_per_second": "frames imported a second",
    "peak_gigabytes": "most memory, GB",
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


def sampler(result, measured_on):
    version = result["rows"][0]["d3rlpy_version"]
    lines = [f"| batch | rbi | d3rlpy {version} | times |", "|--:|--:|--:|--:|"]
    for row in result["rows"]:
        cells = [str(row["batch"]), f"{row['ours']:,.0f}", f"{row['d3rlpy']:,.0f}", f"{row['times']:.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    m, megabyte = result["memory"], 2**20
    told = (
        f"\nMemory: {m['batches']:,} batches of 32 from a store of {m['store_bytes'] / megabyte:,.0f} MiB with "
        f"{m['allowed_bytes'] / megabyte:,.0f} MiB allowed took {min(m['taken_bytes']) / megabyte:,.0f} to "
        f"{max(m['taken_bytes']) / megabyte:,.0f} MiB at most in each tenth of the run. "
    )
    return "\n".join([SAMPLER_HEAD, *lines, told + measured_on(result)])


def repairs(result, measured_on):
    games = result["games"]
    lines = ["| | " + " | ".join(NAMES[game] for game in games) + " | aim |", "|---|" + "--:|" * (len(games) + 1)]
    for name, told in FIGURES.items():
        aim = result["aims"].get(name)
        sign = "at most" if name in ("false_alarms", "peak_gigabytes") else "at least"
        cells = [number(name, found[name]) for found in games.values()]
        lines.append("| " + " | ".join([told, *cells, "" if aim is None else f"{sign} {number(name, aim)}"]) + " |")
    return "\n".join([REPAIRS_HEAD, *lines, REPAIRS_TELL, measured_on(result)])


def number(name, value):
    if value is None:
        return "-"
    if name in SHARES or name == "false_alarms":
        return f"{100 * value:.4g}%"
    return f"{value:.2f}" if name == "peak_gigabytes" else f"{value:,.0f}"


def data_part(load, measured_on):
    """Markdown of everything that has been measured."""
    parts = []
    if found := load("data.json"):
        parts.append(sampler(found, measured_on))
    if found := load("agc.json"):
        parts.append(repairs(found, measured_on))
    return parts
