"""Tune the SPI algorithms, all with the same budget, on worlds that the published study does not use.

    python -m benchmarks.spi_tuning            resumes if it was interrupted
    python -m benchmarks.spi_tuning --ours     only ours again, after a change, beside the best settings of its peers

Eight settings per algorithm, the same repetitions for all, the data sizes of the study. The utility of a setting is
(mean + 5%-CVaR)/2 of its normalised scores, averaged over data sizes and worlds. A peer gets its best setting in each
family of worlds, ours has one setting for all worlds.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.spi import rounded
from benchmarks.timing import machine
from rbi import fileio
from rbi.lab.mdp import optimal_policy, performance
from rbi.lab.spi import study as spi
from rbi.lab.spi.worlds import wet_chicken
from rbi.parallel import parallel_map
from rbi.statistics import cvar

RESULTS = Path(__file__).parent / "results"
FAMILIES = ("random", "grid", "chicken")
WORLDS = ("random(0.8)", "random(0.4)", "chicken(0.3)", "chicken(0.05)", "grid(0.6)")
SEED = 1000
TAIL = 0.05  # a smoother estimate than the study's 1% with few repetitions
COUNTS = (1, 2, 3, 5, 7, 10, 15, 20)
ERRORS = (0.2, 0.5, 0.75, 1, 1.5, 2, 3, 5)
LEVELS = (0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
DEVIATIONS = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 3)
GRIDS = {
    "pi_b_spibb": COUNTS,
    "pi_le_b_spibb": COUNTS,
    "soft_spibb": ERRORS,
    "exact_soft_spibb": ERRORS,
    "adv_soft_spibb": ERRORS,
    "lower_soft_spibb": (0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2),
    "ramdp": (0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
    "r_min": COUNTS,
    "mbie": (0.01, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99),
    "duipi": DEVIATIONS,
    "duipi_bayes": DEVIATIONS,
    "hcpi": LEVELS,
    "count_aware": (0.25, 0.4, 0.5, 0.6, 0.75, 1, 1.5, 2),  # z; tau is 1/4
}
OURS = "count_aware"
KAPPA_SCALE = {"random": 1, "grid": 1, "chicken": 40}  # rewards of Wet Chicken are larger by about this factor


def settings(family, best=None):
    """All algorithms with all parameters, or ours with all and its peers with their best."""
    found = [] if best is None else [best[f"{family} {name}"] for name in GRIDS if name != OURS]
    for name, grid in GRIDS.items() if best is None else [(OURS, GRIDS[OURS])]:
        scale = KAPPA_SCALE[family] if name == "ramdp" else 1
        found += [f"{name}({'0.25,' if name == OURS else ''}{x * scale:g})" for x in grid]
    return found


def statistics(world, scores):
    """Normalised mean and CVaR `[2, sizes, algorithms]`."""
    if not world.settings.normalised:
        river = wet_chicken(world.quality)
        base = performance(river.mdp, river.beta).item()
        best = performance(river.mdp, optimal_policy(river.mdp)).item()
        scores = (scores - base) / (best - base)
    flat = scores.reshape(len(scores), -1)
    return np.stack([scores.mean(0), cvar(flat, TAIL).reshape(scores.shape[1:])])


def measure(repetitions, folder, best):
    """Scores `[repetitions, sizes, settings]` by world."""
    folder.mkdir(parents=True, exist_ok=True)
    blocks = [(text, block) for text in WORLDS for block in spi.split_blocks(spi.parse_world(text), repetitions)]
    paths = [folder / f"{text}-{block.start}-{block.stop}.npy" for text, block in blocks]
    left = [(*task, path, best) for task, path in zip(blocks, paths, strict=True) if not path.exists()]
    with parallel_map(os.cpu_count() or 1) as each:
        for done in each(save_block, left):
            print(done.name, flush=True)
    return {
        text: np.concatenate([np.load(p) for (of, _), p in zip(blocks, paths, strict=True) if of == text])
        for text in WORLDS
    }


def save_block(task):
    """Scores of one block in a file, which is there as a whole or not at all."""
    text, block, path, best = task
    world = spi.parse_world(text)
    with path.with_suffix(".tmp").open("wb") as file:
        names = settings(world.family, best)
        np.save(file, spi.score_repetitions(world, names, world.settings.sizes, SEED, block))
    return path.with_suffix(".tmp").replace(path)


def utilities(scores, best):
    """Utility by world and setting."""
    found = {}
    for text, measured in scores.items():
        world = spi.parse_world(text)
        utility = statistics(world, measured).mean((0, 1))
        found[text] = dict(zip(settings(world.family, best), utility.tolist(), strict=True))
    return found


def compared(scores, best, ours, measured_settings):
    """Ours against the best setting of every peer, on the worlds that chose both."""
    parts = []
    for text, measured in scores.items():
        world = spi.parse_world(text)
        names = [*(best[f"{world.family} {name}"] for name in GRIDS if name != OURS), ours]
        columns = [measured_settings[world.family].index(name) for name in names]
        rng = np.random.default_rng([SEED, len(measured)])
        sizes = world.settings.sizes
        parts.append(spi.world_result(world, tuple(names), sizes, (ours,), measured[..., columns], rng, 2000))
    return parts


def best_settings(found):
    """The best setting of each peer in each family, and of ours in all worlds together, by utility."""
    best = {}
    for family in FAMILIES:
        own = [utility for text, utility in found.items() if text.startswith(family)]
        for name in GRIDS:
            mine = [s for s in settings(family) if s.split("(")[0] == name]
            if name != OURS:
                best[f"{family} {name}"] = max(mine, key=lambda s: np.mean([o[s] for o in own]))
    ours = {s: float(np.mean([o[s] for o in found.values()])) for s in settings("grid") if s.startswith(OURS)}
    return best, ours


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--ours", action="store_true", help="take the utilities of peers from --out")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "rbi-spi-tuning")
    parser.add_argument("--out", type=Path, default=RESULTS / "spi-tuning.json")
    args = parser.parse_args()
    known = json.loads(args.out.read_text()) if args.ours else {"best": None, "repetitions": None}
    if args.ours and known["repetitions"] != args.repetitions:
        parser.error(f"{args.out}: has {known['repetitions']} repetitions, not {args.repetitions}")
    scores = measure(args.repetitions, args.folder, known["best"])
    found = utilities(scores, known["best"])
    if args.ours:
        again = {text: {s: x for s, x in own.items() if s.startswith(OURS)} for text, own in found.items()}
        found = {text: known["utility"][text] | own for text, own in again.items()}
    best, ours = best_settings(found)
    source = {
        "command": f"python -m benchmarks.spi_tuning --repetitions {args.repetitions}" + " --ours" * args.ours,
        "machine": machine(),
        "seed": SEED,
    }
    written = {
        **source,
        "repetitions": args.repetitions,
        "sizes": {family: spi.FAMILIES[family].sizes for family in FAMILIES},
        "utility": {text: {s: round(x, 5) for s, x in own.items()} for text, own in found.items()},
        "best": best,
        "ours": max(ours, key=ours.__getitem__),
        "ours_utility": {s: round(x, 5) for s, x in ours.items()},
    }
    args.out.write_text(json.dumps(written, indent=1) + "\n")
    in_scores = {family: settings(family, known["best"]) for family in FAMILIES}
    worlds = json.loads(fileio.to_json({**source, "worlds": compared(scores, best, written["ours"], in_scores)}))
    (args.out.parent / "spi-tuning-worlds.json").write_text(fileio.to_json(rounded(worlds)) + "\n")
    print(json.dumps({key: written[key] for key in ("best", "ours", "ours_utility")}, indent=1))


if __name__ == "__main__":
    main()
