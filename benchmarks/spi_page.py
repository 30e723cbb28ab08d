"""The safe-improvement studies in docs/results.md, and their summary on one page, from raw results."""

from statistics import fmean

from rbi.lab.spi import study as spi
from rbi.report import spi as report

HEAD = """
## Safe policy improvement

`rbi spi`: policies learned from logs of a baseline, evaluated exactly. `count_aware` is
[count-aware reroute](count-aware.md), with one setting for all worlds; peers have their published settings and the best
of eight for each family of worlds, found with the same budget on other worlds and seeds. The form of ours was chosen
on those tuning worlds too, which is more than any peer got. [One page](safe-improvement.md) says what was compared and
what won where.
"""

FAILURES = """
**Where ours fails**: peers that are better than ours in both mean and 1%-CVaR, by their point estimates and beyond
paired 95% bootstrap intervals. The CVaR of 100 repetitions or fewer is the smallest score: differences of tails are
then rarely beyond an interval, and a dash in the last column is weak evidence.
"""

PEERS = """
How often ours is better (or worse) in both, of all cells (a world and a data size), by point estimates and beyond
intervals. *0.00 missed*: cells in which no policy of the peer is below the baseline, but one of ours is.
"""

SIGNS = """
Mean / 1%-CVaR / share below the baseline; Random MDPs, the gridworld and Resource Gathering are normalised to 0 for the
baseline and 1 for the optimal policy, Wet Chicken shows the value of the start state. The last column compares ours
with the algorithm, one sign for every size: `+` leads in mean and CVaR beyond paired 95% intervals, `-` trails in both,
`.` neither.
"""

STUDIES = {
    "spi.json": "known baseline",
    "spi-held-out.json": "held-out worlds, known baseline",
    "spi-estimated.json": "estimated baseline",
    "spi-tuning-worlds.json": "tuning worlds",
}

SUMMARY = """# Safe policy improvement: the study on one page

Drawn by `make results` from the raw JSON in [benchmarks/results](../benchmarks/results); do not edit by hand.

**Question.** Logs of a baseline beta are all there is. Which algorithm returns the best policy on average and in the
worst 1% of cases, without falling below beta?

**Compared.** `{ours}`, which is [count-aware reroute](count-aware.md), and {peers} published algorithms: the
optimum of the estimated MDP (Basic RL), Pi_b- and Pi_<=b-SPIBB (Laroche et al. 2019), Approx- and Exact-Soft-SPIBB
(Nadjahi et al. 2019), Adv- and Lower-Approx-Soft-SPIBB, R-MIN and MDP-MBIE (as in Scholl et al. 2022), RaMDP (Petrik et
al. 2016), DUIPI with relative frequencies and with a Dirichlet prior (Hans and Udluft 2009), and HCPI (Thomas et al.
2015). Tests compare SPIBB, Soft-SPIBB, R-MIN, MDP-MBIE and DUIPI with loops written as their papers write them, and
Exact-Soft-SPIBB with a solver.

**Worlds.** Random MDPs, Wet Chicken and a 5x5 gridworld with several baselines, and three families that nothing was
tuned on. Policies are evaluated exactly. All algorithms get the same logs, smaller logs are parts of larger ones, and
differences have paired 95% bootstrap intervals. With an *estimated baseline* all get relative frequencies in place of
beta.

**Tuned.** Every algorithm had eight settings on other worlds, with another seed, {tuning:,} repetitions and the study's
data sizes. A peer has its published setting and its best one in each family of worlds; ours has one setting for all.
The form of ours was chosen on the tuning worlds by hand, a budget that no peer had. The reported seed and the quality
of the held-out baselines are new. The families of worlds are not: earlier forms of ours were reported on them with
other seeds, and one was rejected for what it lost there ([decision 024](decisions/024-a-variance-for-each-state.md)).

**What won where.** Averages over the data sizes, mean / 1%-CVaR. *Best peer*: the one with the largest sum of the two
on these very data, so it is chosen in hindsight. *Leads*: data sizes in which ours has the best mean of all, and the
best CVaR of all. *Peers ahead*: data sizes in which some peer is better in both, by estimate, and beyond intervals.
*Below*: the largest share of our policies below the baseline at any size.
"""

VERDICT = """
**Not reached.** No peer was to be better in both anywhere: beyond intervals it happens in {known} with a known
baseline, in {held_out} in held-out worlds, and in {estimated} with an estimated baseline. And ours was never to
be below the baseline where a peer never is. It is in some cells, mostly with few steps in Wet Chicken, where some peers
return the baseline itself. No bound is proved for the method beyond `loss_bound`, which is weak on logs of this size
([what is proved](count-aware.md#what-is-proved-and-what-is-not)).

**Again**: `python -m benchmarks.spi_tuning --repetitions {tuning}`, then `python -m benchmarks.spi`. Every table is in
the [results](results.md#safe-policy-improvement); decisions 019, 021 and 023 to
[025](decisions/025-the-gate-stays.md) say how the method became what it is.
"""


def spi_part(load, measured_on):
    """The section of docs/results.md."""
    studies = {name: load(name) for name in STUDIES if load(name)}
    parts, speed = [], load("spi-speed.json")
    if studies:
        reported = {name: result for name, result in studies.items() if name != "spi-tuning-worlds.json"}
        parts += [HEAD, failure_counts(reported), FAILURES, failure_table(studies), PEERS, peers_table(reported)]
        parts += [SIGNS, *(measured_on(result) + "\n" for result in studies.values())]
        shown = [name for name in ("spi.json", "spi-held-out.json") if name in studies]
        parts += [world_table(part, STUDIES[name]) for name in shown for part in studies[name]["worlds"]]
    return [*parts, speed_table(speed, measured_on)] if speed else parts


def draw(result, folder):
    """Figures of the worlds that `rbi spi` has by default."""
    for part in result["worlds"]:
        if part["world"] in spi.DEFAULT_WORLDS:
            report.figure(part).savefig(folder / f"spi-{part['name']}.png", dpi=130)


def summary_page(load, measured_on):
    """docs/safe-improvement.md."""
    studies = {name: load(name) for name in STUDIES if name != "spi-tuning-worlds.json"}
    found = {name: [sum(x) for x in zip(*map(count_ahead, of["worlds"]), strict=True)] for name, of in studies.items()}
    tuning = load("spi-tuning.json")["repetitions"]
    lines = [SUMMARY.format(ours=spi.COUNT_AWARE, peers=len(peer_names(studies)), tuning=tuning)]
    lines += ["| world | repetitions | ours | best peer | | leads | peers ahead | below |"]
    lines += ["|---|--:|--:|---|--:|--:|--:|--:|"]
    for name in studies:
        if name == "spi-estimated.json":
            lines.append("| *estimated baseline* | | | | | | | |")
        lines += [summary_row(part) for part in studies[name]["worlds"]]
    known, held_out, estimated = (f"{beyond} of {cells} cells" for cells, _, beyond in found.values())
    lines.append(VERDICT.format(known=known, held_out=held_out, estimated=estimated, tuning=tuning))
    return "\n".join([*lines, measured_on(studies["spi.json"])]) + "\n"


def summary_row(part):
    """One world: ours beside the best peer, and where each of them leads."""
    means, cvars, below = (part["summary"][name] for name in ("mean", "cvar", "below"))
    own = part["algorithms"].index(part["compared"][0])
    peers = [j for j, name in enumerate(part["algorithms"]) if is_peer(name)]
    best = max(peers, key=lambda j: fmean(column(means, j)) + fmean(column(cvars, j)))
    leads = [sum(row[own] > max(row[j] for j in peers) for row in rows) for rows in (means, cvars)]
    cells, *ahead = count_ahead(part)
    digits = 3 if spi.parse_world(part["world"]).settings.normalised else 2
    ours, theirs = (" / ".join(f"{fmean(column(rows, j)):.{digits}f}" for rows in (means, cvars)) for j in (own, best))
    return (
        f"| {part['world']} | {part['repetitions']:,} | {ours} | `{part['algorithms'][best]}` | {theirs} | "
        f"{leads[0]}, {leads[1]} of {cells} | {ahead[0]}, {ahead[1]} | {max(column(below, own)):.3f} |"
    )


def count_ahead(part):
    """Data sizes of a world, and those in which some peer is better in both by estimate and beyond intervals."""
    peers = [j for j, name in enumerate(part["algorithms"]) if is_peer(name)]
    by_estimate, beyond = (
        sum(
            "-" in at for at in zip(*(report.signs(part, part["compared"][0], j, beyond=b) for j in peers), strict=True)
        )
        for b in (False, True)
    )
    return len(part["sizes"]), by_estimate, beyond


def failure_counts(studies):
    """In how many cells of each study some peer is better in both."""
    lines = [
        "**The aim is missed**: that no peer is better in both mean and CVaR in any cell (a world and a data size)."
    ]
    for name, result in studies.items():
        cells, by_estimate, beyond = (sum(x) for x in zip(*map(count_ahead, result["worlds"]), strict=True))
        lines.append(
            f"Study *{STUDIES[name]}*: some peer is better in both in {by_estimate} of {cells} cells by point\n"
            f"estimates, and in {beyond} beyond paired intervals."
        )
    shares = [
        (f"{part['world']} at {part['sizes'][at]:,} ({share:.2f})", share)
        for name, result in studies.items()
        if name == "spi.json"
        for part in result["worlds"]
        for at, share in enumerate(column(part["summary"]["below"], part["algorithms"].index(part["compared"][0])))
    ]
    below, few = [text for text, share in shares if share >= 0.005], sum(0 < share < 0.005 for _, share in shares)
    listed = "; ".join(below) or "none"
    lines.append(f"Shares of our policies below a known baseline: {listed}; below 0.005 in {few} more.")
    return "\n".join(lines)


def column(rows, at):
    return [row[at] for row in rows]


def failure_table(studies):
    """One line a world: the peers that lead."""
    lines = [
        "| study | world | repetitions | peers better in both, by estimate | beyond intervals |",
        "|---|---|--:|---|---|",
    ]
    for name, result in studies.items():
        for part in result["worlds"]:
            ahead = " | ".join(peers_ahead(part, part["compared"][0], beyond=beyond) for beyond in (False, True))
            lines.append(f"| {STUDIES[name]} | {part['world']} | {part['repetitions']:,} | {ahead} |")
    return "\n".join(lines)


def peers_ahead(part, ours, *, beyond):
    """Peers that are better than ours in both mean and CVaR, and at which sizes."""
    found = []
    for j, name in enumerate(part["algorithms"]):
        signs = report.signs(part, ours, j, beyond=beyond)
        at = [f"{size:,}" for size, sign in zip(part["sizes"], signs, strict=True) if sign == "-"]
        if at and is_peer(name):
            found.append(f"`{name}` at {', '.join(at)}")
    return "; ".join(found) or "-"


def peers_table(studies):
    """One line a peer, all its settings together: in how many cells ours is better or worse in both."""
    lines = [
        "| peer | cells | better, by estimate | beyond | worse, by estimate | beyond | 0.00 missed |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name in peer_names(studies):
        counts = dict.fromkeys(("cells", "+e", "+b", "-e", "-b", "missed"), 0)
        for result in studies.values():
            for part in result["worlds"]:
                add_cells(part, name, counts)
        cells = counts.pop("cells")
        lines.append(f"| `{name}` | {cells} | " + " | ".join(str(x) for x in counts.values()) + " |")
    return "\n".join(lines)


def peer_names(studies):
    worlds = [part for result in studies.values() for part in result["worlds"]]
    return dict.fromkeys(name.split("(")[0] for part in worlds for name in part["algorithms"] if is_peer(name))


def add_cells(part, peer, counts):
    """Count the cells of one world against every setting of a peer."""
    ours, below = part["compared"][0], part["summary"]["below"]
    own = part["algorithms"].index(ours)
    for j, name in enumerate(part["algorithms"]):
        if name.split("(")[0] == peer:
            counts["cells"] += len(part["sizes"])
            for beyond, key in ((False, "e"), (True, "b")):
                signs = report.signs(part, ours, j, beyond=beyond)
                counts["+" + key] += signs.count("+")
                counts["-" + key] += signs.count("-")
            counts["missed"] += sum(row[j] == 0 and row[own] > 0 for row in below)


def is_peer(name):
    return not name.startswith(("rbi", "count_aware"))


def world_table(part, title):
    """Scores of one world, and the signs of ours against each algorithm."""
    heads, ours = [f"{n:,}" for n in part["sizes"]], part["compared"][0]
    lines = [f"\n### {report.heading(part).rstrip('.')} ({title})\n"]
    if part["world"] in spi.DEFAULT_WORLDS and title != STUDIES["spi-held-out.json"]:
        lines += [f"![mean and CVaR against data size](figures/spi-{part['name']}.png)\n"]
    lines += [
        f"| algorithm, by {part['size_unit']} | " + " | ".join(heads) + " | |",
        "|---|" + "--:|" * len(heads) + "---|",
    ]
    for j, name in enumerate(part["algorithms"]):
        cells = [report.cell(part, i, j) for i in range(len(heads))]
        signs = f"`{report.signs(part, ours, j, beyond=True)}`" if name != ours else ""
        lines.append(f"| `{name}` | " + " | ".join(cells) + f" | {signs} |")
    return "\n".join(lines)


def speed_table(result, measured_on):
    lines = ["\n### Speed\n", "| study | aim, seconds | reached | CPU seconds |", "|---|--:|--:|--:|"]
    lines += [f"| {r['study']} | {r['aim']} | {r['seconds']:.0f} | {r['cpu_seconds']:.0f} |" for r in result["rows"]]
    return "\n".join([*lines, f"\nLoad of the machine at the start: {result['load']:.1f}. {measured_on(result)}"])
