"""Tune the safe-improvement algorithms, all with the same budget, on worlds that the published study does not use.

    python -m benchmarks.spi_tuning

Eight settings each, the same repetitions for all. An algorithm's utility is the average over data sizes of (mean +
1%-CVaR)/2 of its normalised scores. Peers get the best setting of each family of worlds, ours has one for all of them.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from benchmarks.timing import machine
from rbi.commands.command import parallel_map, progress
from rbi.lab import spi
from rbi.lab.mdp import optimal_policy, performance
from rbi.lab.summary import weighted_cvar
from rbi.lab.worlds import wet_chicken

WORLDS = ("random(0.8)", "random(0.4)", "chicken(0.2)")
SEED = 1000
GRIDS = {
    "pi_b_spibb": (2, 3, 5, 7, 10, 15, 20, 30),
    "pi_le_b_spibb": (2, 3, 5, 7, 10, 15, 20, 30),
    "soft_spibb": (0.2, 0.5, 0.75, 1, 1.5, 2, 3, 5),
    "ramdp": (0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1),
    "hcpi": (0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3),
    "count_aware": (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.6),
}
KAPPA_SCALE = {"random": 1, "chicken": 40}  # rewards of the river are larger by about this


def settings(world: spi.World) -> list[str]:
    scale = KAPPA_SCALE[world.family]
    return [f"{name}({x * scale if name == 'ramdp' else x:g})" for name, grid in GRIDS.items() for x in grid]


def utilities(world: spi.World, scores: np.ndarray) -> np.ndarray:
    """The average over sizes of (mean + CVaR)/2, normalised, one an algorithm."""
    if not world.traits.normalised:
        river = wet_chicken(world.quality)
        base = float(performance(river.mdp, river.beta).item())
        best = float(performance(river.mdp, optimal_policy(river.mdp)).item())
        scores = (scores - base) / (best - base)
    flat = scores.reshape(len(scores), -1)
    cvar = weighted_cvar(flat, np.ones((1, len(flat)), dtype=int)).reshape(scores.shape[1:])
    return ((scores.mean(0) + cvar) / 2).mean(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/spi-tuning.json"))
    asked = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    with parallel_map(2) as each:
        for text in WORLDS:
            world = spi.parse_world(text)
            blocks = spi.blocks(world, asked.repetitions)
            tasks = [(world, settings(world), world.traits.sizes, SEED, b) for b in blocks]
            done = each(spi.numbered_block, *zip(*tasks, strict=True))
            scores = np.concatenate(list(progress(done, text, len(tasks))))
            found[text] = dict(zip(settings(world), utilities(world, scores).tolist(), strict=True))
    best = {}
    for family in ("random", "chicken"):
        own = [found[text] for text in WORLDS if text.startswith(family)]
        for name in GRIDS:
            average = {s: float(np.mean([o[s] for o in own])) for s in own[0] if s.rsplit("(", 1)[0] == name}
            best[f"{family} {name}"] = max(average, key=average.__getitem__)
    ours = {s: float(np.mean([found[t][s] for t in WORLDS])) for s in found[WORLDS[0]] if s.startswith("count_aware")}
    best["all worlds, count_aware"] = max(ours, key=ours.__getitem__)
    asked.out.write_text(
        json.dumps(
            {"machine": machine(), "seed": SEED, "repetitions": asked.repetitions, "utility": found, "best": best},
            indent=1,
        )
        + "\n"
    )
    print(json.dumps(best, indent=1))
    print(json.dumps(ours, indent=1))


if __name__ == "__main__":
    main()
