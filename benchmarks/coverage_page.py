"""The deploy decision in docs/results.md, from raw results."""

HEAD = """
## The deploy decision

Lower bounds of the gain of a policy at 95%, in worlds with a known truth ([guide](guide.md#can-i-deploy-it),
[decision 015](decisions/015-certify.md)). Cells are *missed* / *deploy*: the share of repetitions in which the bound
exceeds the true gain, which must be at most 5%, and in which it exceeds 0: power where there is a gain, an unsafe
"deploy" where there is none. Bold: missed more often than 5% allows (binomial test, p < 0.001). Betting is proved where
probabilities are logged; a dash: the world has no floor, or for empirical Bernstein no ceiling. Without logged
probabilities nothing is proved, and `rbi.certify` says at most "test live": with a hidden cause of actions and rewards
estimated weights are wrong. Every cell has 1,000 repetitions; BCa is left out where it is slow. Worlds share their
random numbers, so that cells of one size are not independent.
"""

WIDTHS = """
Proved bounds side by side at 95%: mean distance below the sample mean, as a multiple of Student's, which is not proved.
*Plug-in* is the betting of Waudby-Smith and Ramdas with a fixed sample size, *Anderson* the bound by the inequality of
Dvoretzky, Kiefer and Wolfowitz.
"""
BOUNDS = {"betting": "betting", "empirical_bernstein": "empirical Bernstein", "student": "Student", "bca": "BCa"}
LEAST_REPETITIONS = 500
PEERS = ("betting, ours", "betting, plug-in", "empirical Bernstein", "Anderson", "Hoeffding")


def coverage(result, measured_on):
    """Missed and deploy of every world, number of episodes and bound."""
    found = {(r["world"], r["episodes"], r["bound"]): r for r in result["rows"] if r["confidence"] == 0.95}
    lines = [f"| world | gain | episodes | {' | '.join(BOUNDS.values())} |", "|---|--:|--:|" + "--:|" * len(BOUNDS)]
    for world in dict.fromkeys(world for world, _, _ in found):
        for n in sorted({size for name, size, _ in found if name == world}):
            rows = [found.get((world, n, bound)) for bound in BOUNDS]
            gain = next(row["truth"] for row in rows if row)
            cells = [cell(row) for row in rows]
            lines.append(f"| {world} | {gain:+.3g} | {n:,} | {' | '.join(cells)} |")
    held = [row for row in result["rows"] if row["must_hold"]]
    broken = sum(not row["holds"] for row in held)
    total = f"Proved bounds hold in {len(held) - broken} of {len(held)} cells (at 90% and 95%)."
    return [HEAD, *lines, "", total, "", measured_on(result)]


def cell(row):
    if row is None or row["repetitions"] < LEAST_REPETITIONS:
        return "-"
    text = f"{row['missed']:.3f} / {row['deploy']:.3f}"
    return text if row["holds"] else f"**{text}**"


def widths(result, measured_on):
    """Widths of proved bounds as multiples of Student's."""
    lines = [f"| world | episodes | {' | '.join(PEERS)} |", "|---|--:|" + "--:|" * len(PEERS)]
    for row in result["rows"]:
        unit = row["student (asymptotic)"]
        cells = [f"{row[name] / unit:.2f}" if name in row else "-" for name in PEERS]
        lines.append(f"| {row['world']} | {row['episodes']:,} | {' | '.join(cells)} |")
    return [WIDTHS, *lines, "", measured_on(result)]


def coverage_part(load, measured_on):
    """Both tables, as far as they were measured."""
    parts = [(coverage, load("coverage.json")), (widths, load("coverage-widths.json"))]
    return ["\n".join(make(result, measured_on)) for make, result in parts if result]
