"""How fast is Max-Reroute? Against an LP solver a state, the paper's loop, sorting and comparing pairs, and a copy.

    python -m benchmarks.rules                 this machine's CPU, and its GPU if it has one; about five minutes
    python -m benchmarks.rules --quick         a small grid, to see that it runs

States a second, float32, c = (0.5, 1.5). "copy" is a plain copy that reads and writes as many bytes as the rule
must: beta and advantage in, pi out. It is the physical limit.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import rbi
from benchmarks.tables import load, measured_on
from benchmarks.timing import machine, seconds_a_call
from rbi.rules import arrays
from rbi.rules.arrays import State
from tests.reference import linear_programs, paper_loops

C_MIN, C_MAX = 0.5, 1.5
ACTIONS, BATCHES = (2, 6, 18, 256), (1, 32, 1024, 32_768, 2**20)
MOST_NUMBERS = 2**26  # beyond that an array alone takes a quarter gigabyte, and the pairs far more
RESULTS = Path(__file__).parent / "results"


def states(batch, actions, device):
    rng = np.random.default_rng(0)
    beta = rng.dirichlet(np.ones(actions), size=min(batch, 4096)).astype(np.float32)
    beta = np.resize(beta, (batch, actions))
    advantage = rng.standard_normal((batch, actions), dtype=np.float32)
    return torch.from_numpy(beta).to(device), torch.from_numpy(advantage).to(device)


def plain(fill):
    """Max-Reroute written with one way of handing out mass, whatever the library would choose itself."""

    def rule(beta, advantage):
        s = State.of(beta, advantage)
        low = C_MIN * s.beta
        return low + fill(s.xp, 1 - s.sum(low), C_MAX * s.beta - low, s.advantage)

    return rule


def one_by_one(solve, most):
    """A method that takes one state at a time, on the first states of a batch; seconds are scaled to all of it."""

    def rule(beta, advantage):
        for b, a in zip(beta[:most].double().numpy(), advantage[:most].double().numpy(), strict=True):
            solve(b / b.sum(), a, C_MIN, C_MAX)

    rule.most = most
    return rule


def in_numpy(beta, advantage):
    """The same states as NumPy arrays; a batch of one becomes a single state `[A]`."""
    return tuple(x.numpy().squeeze(0) if len(x) == 1 else x.numpy() for x in (beta, advantage))


def unchecked(beta, advantage):
    return rbi.max_reroute(beta, advantage, C_MIN, C_MAX, check=False)


def methods(device, quick):
    """Name -> (rule, the most pairs it may hold in memory)."""
    unlimited, fitting = float("inf"), 2**28 if device == "cpu" else 2**32
    rows = {
        "rbi": (unchecked, unlimited),
        "rbi, checked": (lambda b, a: rbi.max_reroute(b, a, C_MIN, C_MAX), unlimited),
        "rbi, compiled": (torch.compile(unchecked, fullgraph=True, dynamic=False), unlimited),
        "sorting": (plain(arrays.fill_by_sorting), unlimited),
        "columns": (plain(arrays.fill_by_columns), unlimited),
        "pairs": (plain(arrays.fill_by_pairs), fitting),
    }
    if device == "cpu":
        rows["rbi, NumPy"] = (unchecked, unlimited)
        rows["paper's loop"] = (one_by_one(paper_loops.max_reroute, 20 if quick else 300), unlimited)
        rows["LP solver"] = (one_by_one(linear_programs.max_reroute, 5 if quick else 60), unlimited)
    if quick:
        del rows["rbi, compiled"]
    return rows


def measure(device, quick):
    grid = [(a, b) for a in ACTIONS for b in BATCHES if a * b <= MOST_NUMBERS]
    if quick:
        grid = [(18, 1), (18, 1024)]
    budget = 0.05 if quick else 0.3
    console = Console(stderr=True)
    for actions, batch in track(grid, f"max_reroute on {device}", console=console, auto_refresh=False):  # no thread
        beta, advantage = states(batch, actions, device)
        torch.compiler.reset()
        for name, (rule, most_pairs) in methods(device, quick).items():
            if batch * actions * actions > most_pairs or (name == "columns" and actions > 18):
                continue
            share = min(1, getattr(rule, "most", batch) / batch)
            given = in_numpy(beta, advantage) if name == "rbi, NumPy" else (beta, advantage)
            seconds = seconds_a_call(lambda r=rule, g=given: r(*g), device, budget) / share
            yield {"device": device, "method": name, "actions": actions, "batch": batch, "seconds": seconds}
        source = torch.randn(batch * actions * 3 // 2, device=device)
        target = torch.empty_like(source)
        seconds = seconds_a_call(lambda t=target, s=source: t.copy_(s), device, budget)
        yield {"device": device, "method": "copy", "actions": actions, "batch": batch, "seconds": seconds}


def table(rows, device):
    """States a second: one row a method, one column a size."""
    sizes = sorted({(r["actions"], r["batch"]) for r in rows if r["device"] == device})
    found = {(r["method"], r["actions"], r["batch"]): r["batch"] / r["seconds"] for r in rows if r["device"] == device}
    shown = Table(title=f"max_reroute on {device}: states a second", title_justify="left")
    shown.add_column("actions x batch")
    names = list(dict.fromkeys(r["method"] for r in rows if r["device"] == device))
    for name in names:
        shown.add_column(name, justify="right")
    for actions, batch in sizes:
        cells = [found.get((name, actions, batch)) for name in names]
        shown.add_row(f"{actions} x {batch}", *("-" if c is None else f"{c:,.0f}" for c in cells))
    return shown


def check_agreement(device):
    """All methods answer the same before any is timed."""
    beta, advantage = states(200, 18, device)
    expected = torch.stack(
        [
            torch.tensor(paper_loops.max_reroute(b / b.sum(), a, C_MIN, C_MAX))
            for b, a in zip(beta.cpu().double().numpy(), advantage.cpu().double().numpy(), strict=True)
        ]
    )
    ways = (arrays.fill_by_sorting, arrays.fill_by_columns, arrays.fill_by_pairs)
    for rule in (unchecked, *(plain(fill) for fill in ways)):
        found = rule(beta, advantage)
        torch.testing.assert_close(found.cpu().double(), expected, atol=2e-6, rtol=0)


# The section of docs/results.md

PAGE_HEAD = """
## Speed of Max-Reroute

States/s, float32, c = (0.5, 1.5). *rbi*: `rbi.max_reroute(..., check=False)` in PyTorch; *checked*: with validation of
values; *compiled*: under `torch.compile`. *Sorting*, *columns* and *pairs* are three implementations of the fill step
([decision 002](decisions/002-fill.md)). *Paper's loop* is Algorithm Max-Reroute in Python, *LP solver* is HiGHS, both
one state at a time. *Copy* moves the bytes that the rule must read and write: the physical limit. A dash: too large to
run.
"""


def states_a_second(result):
    return {(r["method"], r["actions"], r["batch"]): r["batch"] / r["seconds"] for r in result["rows"]}


def short(number):
    """Three digits and a unit: 2.87 M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"


def page_table(result):
    found = states_a_second(result)
    methods = list(dict.fromkeys(r["method"] for r in result["rows"]))
    sizes = sorted({(r["actions"], r["batch"]) for r in result["rows"]})
    lines = ["| actions | batch | " + " | ".join(methods) + " |", "|" + "--:|" * (len(methods) + 2)]
    for actions, batch in sizes:
        cells = [short(found[m, actions, batch]) if (m, actions, batch) in found else "-" for m in methods]
        lines.append(f"| {actions} | {batch:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def highlights(cpu, cuda):
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


def page_part():
    """The section, with what was measured."""
    cpu, cuda = load("rules-cpu.json"), load("rules-cuda.json")
    parts = [PAGE_HEAD, highlights(cpu, cuda)]
    for result in (cpu, cuda):
        if result:
            parts += [f"\n{measured_on(result)}\n", page_table(result)]
    return parts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small grid, nothing is written unless --out is given")
    parser.add_argument("--out", type=Path, help="JSON file (default: benchmarks/results/rules-DEVICE.json)")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="only this one (default: all there are)")
    parser.add_argument("--commit", help="the commit measured, where there is no git checkout to ask")
    args = parser.parse_args()
    present = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    for device in [args.device] if args.device else present:
        check_agreement(device)
        rows = list(measure(device, args.quick))
        console = Console(width=200)
        console.print(table(rows, device))
        out = args.out or (None if args.quick else RESULTS / f"rules-{device}.json")
        if out is not None:
            command = f"python -m benchmarks.rules --device {device}"
            result = {"benchmark": "rules", "command": command, "machine": machine(args.commit), "rows": rows}
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(result, indent=1) + "\n")
            console.print(f"wrote {out}")


if __name__ == "__main__":
    main()
