"""Tune the SPI algorithms, all with the same budget, on worlds that the published study does not use.

    python -m benchmarks.spi_tuning            three minutes on 16 cores

Eight parameters per algorithm, the same repetitions for all. The utility of a published algorithm is (mean + 1%-CVaR)/2
of its normalised scores, averaged over data sizes; it gets its best parameter for each family of worlds. Count-aware
reroute gets one parameter for all worlds, by its average lead over SPIBB variants (with published and with tuned
parameters), worlds and sizes: +1 if it leads in mean and CVaR, -1 if it trails in both.
"""

import argparse
import json
import os
from pathlib import Path

import numpy as np

from benchmarks.timing import machine
from rbi.lab.mdp import optimal_policy, performance
from rbi.lab.spi import study as spi
from rbi.lab.spi.worlds import wet_chicken
from rbi.parallel import parallel_map
from rbi.progress import track
from rbi.statistics import cvar

RESULTS = Path(__file__).parent / "results"
WORLDS = ("random(0.8)", "random(0.4)", "chicken(0.2)", "chicken(0.05)")
SEED = 1000
GRIDS = {
    "pi_b_spibb": (2, 3, 5, 7, 10, 15, 20, 30),
    "pi_le_b_spibb": (2, 3, 5, 7, 10, 15, 20, 30),
    "soft_spibb": (0.2, 0.5, 0.75, 1, 1.5, 2, 3, 5),
    "ramdp": (0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
    "hcpi": (0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3),
    "count_aware": (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5),
}
KAPPA_SCALE = {"random": 1, "chicken": 40}  # rewards of Wet Chicken are larger by about this factor
EQUAL = 1e-4  # scores that differ by less are equal


def settings(world):
    """All algorithms with all parameters."""
    scale = KAPPA_SCALE[world.family]
    return [f"{name}({x * scale if name == 'ramdp' else x:g})" for name, grid in GRIDS.items() for x in grid]


def statistics(world, scores):
    """Normalised mean and CVaR `[2, sizes, algorithms]`."""
    if not world.settings.normalised:
        river = wet_chicken(world.quality)
        base = performance(river.mdp, river.beta).item()
        best = performance(river.mdp, optimal_policy(river.mdp)).item()
        scores = (scores - base) / (best - base)
    flat = scores.reshape(len(scores), -1)
    return np.stack([scores.mean(0), cvar(flat).reshape(scores.shape[1:])])


def lead(ours, peer):
    """Share of sizes with a lead in both statistics minus the share with a deficit in both."""
    return float((ours > peer + EQUAL).all(0).mean() - (ours < peer - EQUAL).all(0).mean())


def measure(repetitions):
    """Mean and CVaR `[2, sizes]` by world and algorithm."""
    found = {}
    with parallel_map(os.cpu_count() or 1) as each:
        for text in WORLDS:
            world = spi.parse_world(text)
            blocks = spi.split_blocks(world, repetitions)
            tasks = [(world, settings(world), world.settings.sizes, SEED, block) for block in blocks]
            done = each(spi.score_repetitions, *zip(*tasks, strict=True))
            scores = np.concatenate(list(track(done, text, len(tasks))))
            both = statistics(world, scores)
            found[text] = {name: both[..., j] for j, name in enumerate(settings(world))}
    return found


def best_settings(found):
    """The best parameter of each algorithm in each family, by utility."""
    best = {}
    for family in ("random", "chicken"):
        own = [found[text] for text in WORLDS if text.startswith(family)]
        for name in GRIDS:
            utility = {s: np.mean([o[s].mean() for o in own]) for s in own[0] if s.split("(")[0] == name}
            best[f"{family} {name}"] = max(utility, key=utility.__getitem__)
    return best


def leads(found, best):
    """Average lead of count-aware reroute for each parameter."""
    ahead = {}
    for tau in GRIDS["count_aware"]:
        each = []
        for text in WORLDS:
            family = text.split("(")[0]
            n = spi.FAMILIES[family].n_wedge
            usual = {f"pi_b_spibb({n:g})", f"pi_le_b_spibb({n:g})", "soft_spibb(2)", "soft_spibb(1)"}
            tuned = {best[f"{family} {name}"] for name in ("pi_b_spibb", "pi_le_b_spibb", "soft_spibb")}
            each += [lead(found[text][f"count_aware({tau:g})"], found[text][peer]) for peer in usual | tuned]
        ahead[f"count_aware({tau:g})"] = float(np.mean(each))
    return ahead


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=RESULTS / "spi-tuning.json")
    arguments = parser.parse_args()
    found = measure(arguments.repetitions)
    best = best_settings(found)
    ahead = leads(found, best)
    written = {
        "command": "python -m benchmarks.spi_tuning",
        "machine": machine(),
        "seed": SEED,
        "repetitions": arguments.repetitions,
        "utility": {text: {s: round(float(x.mean()), 5) for s, x in own.items()} for text, own in found.items()},
        "best": best,
        "lead": {name: round(x, 5) for name, x in ahead.items()},
        "ours": max(ahead, key=ahead.__getitem__),
    }
    arguments.out.write_text(json.dumps(written, indent=1) + "\n")
    print(json.dumps({key: written[key] for key in ("best", "lead", "ours")}, indent=1))


if __name__ == "__main__":
    main()
