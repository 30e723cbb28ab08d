"""Draws docs/results.md from the JSON in benchmarks/results/: no figure on that page is typed by hand."""

import json
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "results.md"
RESULTS = Path(__file__).parent / "results"

HEAD = """# Results

Drawn by `make results` from the raw JSON in [benchmarks/results](../benchmarks/results); do not edit by hand.
"""

RULES_HEAD = """
## Speed of Max-Reroute

States a second, float32, c = (0.5, 1.5). *rbi* is `rbi.max_reroute(..., check=False)` in PyTorch, *checked* the same
with validation of values, *compiled* under `torch.compile`. *Sorting*, *columns* and *pairs* are the plain rule with
one way of handing out mass ([decision 002](decisions/002-fill.md)). *Paper's loop* is Algorithm Max-Reroute in Python,
*LP solver* is HiGHS, both a state at a time. *Copy* moves as many bytes as the rule must read and write: the physical
limit. A dash: not run, too large.
"""


def load(name):
    path = RESULTS / name
    return json.loads(path.read_text()) if path.exists() else None


def measured_on(result):
    m = result["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in m["versions"].items())
    place = f"one {m['gpu']}, {m['cores']} cores" if m["gpu"] else f"{m['cores']} cores ({m['processor']})"
    return f"`{result['command']}`, commit {m['commit']}, {place}; {versions}."


def states_a_second(result):
    return {(r["method"], r["actions"], r["batch"]): r["batch"] / r["seconds"] for r in result["rows"]}


def short(number):
    """Three digits and a unit: 2.87 M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"


def rules_table(result):
    found = states_a_second(result)
    methods = list(dict.fromkeys(r["method"] for r in result["rows"]))
    sizes = sorted({(r["actions"], r["batch"]) for r in result["rows"]})
    lines = ["| actions | batch | " + " | ".join(methods) + " |", "|" + "--:|" * (len(methods) + 2)]
    for actions, batch in sizes:
        cells = [short(found[m, actions, batch]) if (m, actions, batch) in found else "-" for m in methods]
        lines.append(f"| {actions} | {batch:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def rules_highlights(cpu, cuda):
    """What the rules should reach, and what they do."""
    lines = ["| aim | reached |", "|---|---|"]
    if cpu:
        found = states_a_second(cpu)
        eager, lp = found["rbi", 18, 2**20], found["LP solver", 18, 2**20]
        lines.append(f"| 2 cores, 18 actions, PyTorch eager: 1 M states a second | {short(eager)} |")
        lines.append(f"| 2 cores, 18 actions: 2,000 times the LP solver | {eager / lp:,.0f} times |")
        single = 1e6 / found["rbi, NumPy", 18, 1]
        lines.append(f"| one state of 18 actions in NumPy: 50 microseconds | {single:.0f} microseconds |")
    if cuda:
        found = states_a_second(cuda)
        ratio = found["copy", 18, 2**20] / found["rbi", 18, 2**20]
        lines.append(f"| {cuda['machine']['gpu']}, 18 actions, 2^20 states: 2 times a copy | {ratio:.2f} times |")
    return "\n".join(lines)


def page():
    cpu, cuda = load("rules-cpu.json"), load("rules-cuda.json")
    parts = [HEAD.rstrip(), RULES_HEAD, rules_highlights(cpu, cuda)]
    for result in (cpu, cuda):
        if result:
            parts += [f"\n{measured_on(result)}\n", rules_table(result)]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"wrote {PAGE.relative_to(ROOT)}")
