"""The deploy decision in docs/results.md, from raw results."""

from benchmarks.tables import load, measured_on

HEAD = """
## The deploy decision

Lower bounds of the gain of a policy at 95%, in worlds with a known truth ([how to](howto/certify.md),
[decision 015](decisions/015-certify.md)). Cells are *missed* / *deploy*: the share of repetitions in which the bound
exceeds the true gain, which must be at most 5%, and in which it exceeds 0: power where there is a gain, an unsafe
"deploy" where there is none. Bold: missed more often than 5% allows (binomial test, p < 0.001). Betting is proved where
probabilities are logged; a dash: the world has no floor, or for empirical Bernstein no ceiling. Without logged
probabilities nothing is proved, and `rbi.certify` says at most "test live": with a hidden cause of actions and rewards
estimated weights are wrong. Cells have 1,000 repetitions unless the number stands beside the episodes; BCa is left out
where it is slow. Worlds share their random numbers, so that cells of one size are not independent.
"""

WIDTHS = """
Proved bounds side by side at 95%: mean distance below the sample mean, as a multiple of Student's, which is not proved.
*Plug-in* is the betting of Waudby-Smith and Ramdas with a fixed sample size, *Anderson* the bound by the inequality of
Dvoretzky, Kiefer and Wolfowitz.
"""
BESIDE = """
Peers on the same logs: 95% lower bounds of the value V(pi) of one-step episodes whose taken actions have logged
probabilities ([script](../benchmarks/coverage_peers.py)). The value is bounded, and not the gain, because peers have
no bound of the gain. Cells are *width* / *missed*: the mean distance below the estimate as a multiple of Student's, and
the share of repetitions in which the bound exceeds the truth; in brackets, the width at equal measured coverage, which
is the width after all widths of a bound are scaled by one factor, so that it misses in exactly 5%. *Limited weights*:
ours with the largest possible weight stated, as in `rbi.certify` where all probabilities were logged; its terms are
W (r - 1/2) + 1/2. Proved: the rows of betting, empirical Bernstein (without a name in brackets), HCOPE and Anderson.
HCOPE is the bound of Thomas et al. (2015), Theorem 1, the threshold chosen on a twentieth of the values. SCOPE-RL's
empirical Bernstein takes the largest observed value for the largest possible one, so it is not proved; its Hoeffding
interval multiplies by the number of episodes where the inequality divides.
"""
BOUNDS = {"betting": "betting", "empirical_bernstein": "empirical Bernstein", "student": "Student", "bca": "BCa"}
LEAST_REPETITIONS, USUAL_REPETITIONS = 100, 1000
PEERS = ("betting, ours", "betting, plug-in", "empirical Bernstein", "Anderson", "Hoeffding")


def coverage(result):
    """Missed and deploy of every world, number of episodes and bound."""
    found = {(r["world"], r["episodes"], r["bound"]): r for r in result["rows"] if r["confidence"] == 0.95}
    lines = [f"| world | gain | episodes | {' | '.join(BOUNDS.values())} |", "|---|--:|--:|" + "--:|" * len(BOUNDS)]
    for world in dict.fromkeys(world for world, _, _ in found):
        for n in sorted({size for name, size, _ in found if name == world}):
            rows = [found.get((world, n, bound)) for bound in BOUNDS]
            gain = next(row["truth"] for row in rows if row)
            repetitions = max(row["repetitions"] for row in rows if row)
            fewer = f" ({repetitions} repetitions)" if repetitions < USUAL_REPETITIONS else ""
            cells = [cell(row, repetitions) for row in rows]
            lines.append(f"| {world} | {gain:+.3g} | {n:,}{fewer} | {' | '.join(cells)} |")
    held = [row for row in result["rows"] if row["must_hold"]]
    broken = sum(not row["holds"] for row in held)
    total = f"Proved bounds hold in {len(held) - broken} of {len(held)} cells (at 90% and 95%)."
    return [HEAD, *lines, "", total, "", measured_on(result)]


def cell(row, repetitions):
    if row is None or row["repetitions"] < max(LEAST_REPETITIONS, repetitions / 2):
        return "-"
    text = f"{row['missed']:.3f} / {row['deploy']:.3f}"
    return text if row["holds"] else f"**{text}**"


def widths(result):
    """Widths of proved bounds as multiples of Student's."""
    lines = [f"| world | episodes | {' | '.join(PEERS)} |", "|---|--:|" + "--:|" * len(PEERS)]
    for row in result["rows"]:
        unit = row["student (asymptotic)"]
        cells = [f"{row[name] / unit:.2f}" if name in row else "-" for name in PEERS]
        lines.append(f"| {row['world']} | {row['episodes']:,} | {' | '.join(cells)} |")
    return [WIDTHS, *lines, "", measured_on(result)]


def beside_peers(result):
    """Widths of ours and of peers' packages as multiples of Student's, with the share of misses."""
    found = {(r["world"], r["episodes"], r["bound"]): r for r in result["rows"]}
    cells = list(dict.fromkeys((world, n) for world, n, _ in found))
    names = list(dict.fromkeys(bound for _, _, bound in found))
    lines = []
    for world in dict.fromkeys(world for world, _ in cells):
        sizes = [n for name, n in cells if name == world]
        heads = [f"{n:,} ({found[world, n, names[0]]['repetitions']} repetitions)" for n in sizes]
        lines += ["", f"| {world} | {' | '.join(heads)} |", "|---|" + "--:|" * len(sizes)]
        for bound in names:
            if (world, sizes[0], bound) in found:
                units = [found[world, n, "Student (SCOPE-RL)"]["width"] for n in sizes]
                shown = [peer_cell(found[world, n, bound], unit) for n, unit in zip(sizes, units, strict=True)]
                lines.append(f"| {bound} | {' | '.join(shown)} |")
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return [BESIDE + peers_summary(result["rows"]), *lines, "", f"{measured_on(result)} Peers: {versions}."]


def peers_summary(rows):
    """In how many cells ours is the narrowest proved bound, and how it compares with asymptotic ones that cover."""
    cells = {}
    for row in rows:
        cells.setdefault((row["world"], row["episodes"]), {})[row["bound"]] = row
    texts = []
    for field, name in (("width", "By width"), ("adjusted", "At equal measured coverage")):
        proved, ratios = 0, []
        for found in cells.values():
            ours = found["betting, ours"][field]
            proved += ours <= min(row[field] for bound, row in found.items() if row["proved"] and "ours" not in bound)
            ratios.append(ours / min(row[field] for row in found.values() if not row["proved"] and row["holds"]))
        texts.append(
            f"{name}, ours without limited weights is the narrowest proved bound in {proved} of {len(cells)} cells, "
            f"and {min(ratios):.2f} to {max(ratios):.2f} times as wide as the best asymptotic one that covers."
        )
    return " ".join(texts)


def peer_cell(row, unit):
    text = f"{row['width'] / unit:.2f} / {row['missed']:.3f} ({row['adjusted'] / unit:.2f})"
    return text if row["holds"] else f"**{text}**"


def speed(result):
    """How long a decision about many rows takes."""
    text = (
        f"`rbi.certify` with {result['candidates']} rules on {result['rows']:,} one-step episodes takes "
        f"{result['seconds']:.0f} s ({result['cpu_seconds']:.0f} s of CPU time); the aim is 30 s."
    )
    return ["", text, "", measured_on(result)]


def coverage_part():
    """All tables, as far as they were measured."""
    parts = [
        (coverage, load("coverage.json")),
        (widths, load("coverage-widths.json")),
        (beside_peers, load("coverage-peers.json")),
        (speed, load("coverage-speed.json")),
    ]
    return ["\n".join(make(result)) for make, result in parts if result]
