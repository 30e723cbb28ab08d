"""The safe-policy-improvement study: algorithms in worlds whose policies can be evaluated exactly.

    result = run(["random(0.9)"], repetitions=100)
    print(result.summary())

Every repetition is a world with its logged data (`random`), a baseline with its data (`grid`) or a dataset (`chicken`).
Scores are summarised by mean, 1%-CVaR and the share below the baseline, with paired bootstrap comparisons.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rbi.lab.mdp import Floats, optimal_policy, performance
from rbi.lab.spi import algorithms, peers, worlds
from rbi.lab.spi.algorithms import LogStatistics, with_estimated_baseline
from rbi.lab.spi.worlds import Task, collect_logs
from rbi.parallel import parallel_map
from rbi.progress import track
from rbi.rules.types import as_text
from rbi.statistics import bootstrap_weights, cvar, paired_lead, percentile_interval
from rbi.suggestions import nearest

COUNT_AWARE = "count_aware(0.25,1)"  # tuned on other worlds than the reported ones (docs/count-aware.md)
COUNT_AWARE_DRAINING = "count_aware_draining(0.25)"  # ablation: without prior, gate and lower bound
COUNT_AWARE_PINNED = "count_aware_pinned(0.25)"  # ablation: untried actions keep their probability, too
DEFAULT_WORLDS = ("random(0.9)", "random(0.5)", "chicken(0.1)", "grid(0.7)")
EPISODE_STEPS = 50
MAX_PARAMETER = 1e9
MAX_ALGORITHMS = 32
MAX_SIZE = 1_000_000  # a block with this many trajectories still fits into memory
TAIL = 0.01  # CVaR is the mean of the worst 1%
BELOW = 1e-9  # scores closer to the baseline than this are not below it
CALL = re.compile(r"(\w+)(?:\(([^()]*)\))?")

Mapper = contextlib.AbstractContextManager[Callable[..., Iterable[Any]]]

ALGORITHMS: dict[str, tuple[Callable[..., Floats], int]] = {  # name -> function and its number of parameters
    "baseline": (algorithms.baseline, 0),
    "basic_rl": (algorithms.basic_rl, 0),
    "pi_b_spibb": (algorithms.pi_b_spibb, 1),
    "pi_le_b_spibb": (algorithms.pi_le_b_spibb, 1),
    "soft_spibb": (peers.soft_spibb, 1),
    "exact_soft_spibb": (peers.exact_soft_spibb, 1),
    "adv_soft_spibb": (peers.adv_soft_spibb, 1),
    "lower_soft_spibb": (peers.lower_soft_spibb, 1),
    "ramdp": (peers.ramdp, 1),
    "r_min": (peers.r_min, 1),
    "mbie": (peers.mbie, 1),
    "duipi": (peers.duipi, 1),
    "duipi_bayes": (peers.duipi_bayes, 1),
    "hcpi": (peers.hcpi, 1),
    "rbi_monte_carlo": (algorithms.rbi_monte_carlo, 2),
    "rbi_model": (algorithms.rbi_model, 2),
    "rbi_iterated": (algorithms.rbi_iterated, 2),
    "count_aware": (algorithms.count_aware, 2),
    "count_aware_draining": (algorithms.count_aware_draining, 1),
    "count_aware_pinned": (algorithms.count_aware_pinned, 1),
}


# Worlds and algorithms by name


TRAJECTORIES = (10, 20, 50, 100, 200, 500, 1000)
# The best of eight settings on the tuning worlds (benchmarks/spi_tuning.py)
TUNED = (
    "pi_b_spibb(3)",
    "pi_le_b_spibb(5)",
    "soft_spibb(1)",
    "exact_soft_spibb(1)",
    "adv_soft_spibb(1.5)",
    "lower_soft_spibb(0.5)",
    "ramdp(1)",
    "r_min(1)",
    "mbie(0.99)",
    "duipi(0.2)",
    "duipi_bayes(0.2)",
    "hcpi(0.001)",
)
TUNED_CHICKEN = (
    "pi_b_spibb(3)",
    "pi_le_b_spibb(3)",
    "soft_spibb(1.5)",
    "exact_soft_spibb(1)",
    "adv_soft_spibb(1.5)",
    "lower_soft_spibb(0.75)",
    "ramdp(4)",
    "r_min(3)",
    "mbie(0.9)",
    "duipi(0.1)",
    "duipi_bayes(0.05)",
    "hcpi(0.001)",
)
TUNED_GRID = (
    "pi_b_spibb(2)",
    "pi_le_b_spibb(2)",
    "soft_spibb(1.5)",
    "exact_soft_spibb(0.75)",
    "adv_soft_spibb(1)",
    "lower_soft_spibb(0.75)",
    "ramdp(0.2)",
    "r_min(2)",
    "mbie(0.01)",
    "duipi(0.5)",
    "duipi_bayes(0.5)",
    "hcpi(0.3)",
)


@dataclass(frozen=True)
class WorldFamily:
    """Settings that worlds of one family share: data sizes, the algorithms' usual parameters, units of scores. The
    defaults are those of Random MDPs."""

    title: str
    quality_name: str = "eta"
    size_unit: str = "trajectories"
    sizes: tuple[int, ...] = TRAJECTORIES
    n_wedge: float = 10
    kappa: float = 0.05
    tuned: tuple[str, ...] = TUNED
    """Algorithms with the best parameters on the tuning worlds, where they differ from the published ones."""
    normalised: bool = True
    """Scores are 0 for the baseline and 1 for the optimal policy; otherwise they are values of the start state."""
    block_size: int = 25
    """Worlds or datasets that are computed together: as many as fit a CPU's cache."""
    min_quality: float = 0.001

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Published algorithms with their usual and their tuned parameters, then RBI and count-aware reroute."""
        names = (
            "basic_rl",
            f"pi_b_spibb({self.n_wedge:g})",
            f"pi_le_b_spibb({self.n_wedge:g})",
            f"ramdp({self.kappa:g})",
            "duipi_bayes(0.5)",
            *self.tuned,
            "rbi_monte_carlo(0,2)",
            "rbi_model(0,2)",
            "rbi_iterated(0,2)",
            COUNT_AWARE_PINNED,
            COUNT_AWARE_DRAINING,
            COUNT_AWARE,
        )
        return tuple(dict.fromkeys(names))


FAMILIES = {
    "random": WorldFamily("Random MDPs"),
    "chicken": WorldFamily(
        "Wet Chicken",
        quality_name="epsilon",
        size_unit="steps",
        sizes=(100, 200, 500, 1000, 2000, 5000, 10000),
        n_wedge=7,
        kappa=2,
        tuned=TUNED_CHICKEN,
        normalised=False,
        block_size=50,
    ),
    "grid": WorldFamily("5x5 gridworld", tuned=TUNED_GRID, min_quality=0.5),
    # Worlds that nothing was tuned on; their peers have the settings of Random MDPs
    "gathering": WorldFamily(
        "Resource Gathering", size_unit="steps", sizes=(500, 1000, 2000, 5000, 10000), block_size=10, min_quality=0.3
    ),
    "large": WorldFamily("Random MDPs, 100 states, 8 actions", sizes=(50, 200, 500, 2000), block_size=5),
    "two_goals": WorldFamily("Random MDPs, second goal"),
}


@dataclass(frozen=True)
class WorldSpec:
    """A family of worlds and the quality of its baselines: epsilon of `chicken`, eta of all others."""

    family: str
    quality: float

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(
                f"unknown world {self.family}: choose from {', '.join(FAMILIES)}{nearest(self.family, FAMILIES)}"
            )
        low = self.settings.min_quality
        if not low <= self.quality <= 0.999:
            raise ValueError(f"world {self}: {self.settings.quality_name} must be in [{low:g}, 0.999]")

    def __str__(self) -> str:
        return f"{self.family}({as_text(self.quality)})"

    @property
    def settings(self) -> WorldFamily:
        """Settings of the family."""
        return FAMILIES[self.family]


def parse_world(text: str) -> WorldSpec:
    """A world as the command line writes it.

    >>> parse_world("random(0.90)")
    WorldSpec(family='random', quality=0.9)
    """
    name, numbers = parse_call(text, "world", "random(0.9)")
    if len(numbers) != 1:
        raise ValueError(f"world {text}: write it with one number, like random(0.9)")
    return WorldSpec(name, numbers[0])


def parse_algorithm(text: str) -> tuple[str, Callable[[LogStatistics], Floats]]:
    """An algorithm's canonical spelling, and its function from logged data to policies."""
    name, numbers = parse_call(text, "algorithm", "pi_b_spibb(10)")
    if name not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {name}: choose from {', '.join(ALGORITHMS)}{nearest(name, ALGORITHMS)}")
    function, arity = ALGORITHMS[name]
    if len(numbers) != arity:
        raise ValueError(f"algorithm {text}: {name} takes {arity} number{'s' * (arity != 1)}, not {len(numbers)}")
    if any(not 0 <= x <= MAX_PARAMETER for x in numbers):
        raise ValueError(f"algorithm {text}: numbers must be in [0, {MAX_PARAMETER:g}]")
    if name.startswith("rbi") and not numbers[0] <= 1 <= numbers[1]:
        raise ValueError(f"algorithm {text}: bounds must be c_min <= 1 <= c_max")
    if name == "hcpi" and not 1e-9 <= numbers[0] <= 0.999:
        raise ValueError(f"algorithm {text}: the level of its test must be in [1e-09, 0.999]")
    spelling = f"{name}({','.join(as_text(x) for x in numbers)})" if numbers else name
    return spelling, lambda data: function(data, *numbers)


def parse_call(text: str, what: str, example: str) -> tuple[str, tuple[float, ...]]:
    """Name and numbers of `name(1,2)`."""
    match = CALL.fullmatch(text.replace(" ", ""))
    if not match:
        raise ValueError(f"{what} {text!r}: write it like {example}")
    words = match[2].split(",") if match[2] else []
    try:
        return match[1], tuple(float(word) for word in words)
    except ValueError:
        raise ValueError(f"{what} {text!r}: write it like {example}") from None


# Scores of one block of repetitions


def make_task(world: WorldSpec, rngs: Sequence[np.random.Generator], size: int) -> tuple[Task, Floats]:
    """Worlds and baselines, and the uniform numbers `[T, W, D, N]` that sample the largest dataset of each."""
    if world.family == "chicken":
        uniforms = np.stack([rng.random(size, dtype=np.float32) for rng in rngs], 1)
        return worlds.wet_chicken(world.quality), uniforms[:, None, :, None]
    if world.family == "gathering":
        task = worlds.resource_gatherings(world.quality, rngs)
        return task, np.stack([rng.random(size, dtype=np.float32) for rng in rngs], 1)[:, :, None, None]
    if world.family == "grid":
        task = worlds.gridworlds(world.quality, rngs)
    elif world.family == "large":
        task = worlds.random_mdps(world.quality, rngs, states=100, actions=8)
    else:
        task = worlds.random_mdps(world.quality, rngs)
    if world.family == "two_goals":
        task = worlds.with_second_goal(task, rngs)
    uniforms = np.stack([rng.random((size, EPISODE_STEPS), dtype=np.float32).T for rng in rngs], 1)
    return task, uniforms[:, :, None]


def score_block(
    world: WorldSpec,
    names: Sequence[str],
    sizes: Sequence[int],
    rngs: Sequence[np.random.Generator],
    baseline: str = "known",
) -> Floats:
    """Scores `[repetitions, sizes, algorithms]`, one repetition per generator; smaller datasets are parts of larger.

    With baseline "estimated" every algorithm gets the same estimate of beta from its data.
    """
    task, uniforms = make_task(world, rngs, max(sizes))
    logs = collect_logs(task, uniforms)
    scores = np.empty((len(rngs), len(sizes), len(names)))
    improvers = [parse_algorithm(text)[1] for text in names]
    for i, size in enumerate(sizes):
        data = LogStatistics(task, logs.first(size))
        if baseline == "estimated":
            data = with_estimated_baseline(data)
        for j, improve in enumerate(improvers):
            scores[:, i, j] = performance(task.mdp, improve(data)).reshape(-1)
    return normalise(task, scores) if world.settings.normalised else scores


def score_repetitions(
    world: WorldSpec,
    names: Sequence[str],
    sizes: Sequence[int],
    seed: int,
    repetitions: range,
    baseline: str = "known",
) -> Floats:
    """`score_block` of numbered repetitions; each number has its own generator."""
    rngs = [np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(i,))) for i in repetitions]
    return score_block(world, names, sizes, rngs, baseline)


def normalise(task: Task, values: Floats) -> Floats:
    """(J - J_beta)/(J* - J_beta) of values `[W, sizes, algorithms]`: 0 for the baseline, 1 for the optimal policy."""
    base, best = performance(task.mdp, task.beta), performance(task.mdp, optimal_policy(task.mdp))
    return (values - base[..., None]) / (best - base)[..., None]


def baseline_score(world: WorldSpec) -> float:
    """The baseline's score: 0 if scores are normalised."""
    if world.settings.normalised:
        return 0.0
    task = worlds.wet_chicken(world.quality)
    return float(performance(task.mdp, task.beta).item())


def split_blocks(world: WorldSpec, repetitions: int) -> list[range]:
    """Blocks of repetitions that are computed together; their scores do not depend on `repetitions`."""
    step = world.settings.block_size
    return [range(first, min(first + step, repetitions)) for first in range(0, repetitions, step)]


# Statistics


@dataclass(frozen=True)
class Summary:
    """Statistics `[sizes, algorithms]` of scores `[repetitions, sizes, algorithms]`, and their intervals `[2, ...]`.

    `mean_lead` and `cvar_lead` `[compared, 3, sizes, algorithms]` are the leads of each compared algorithm over every
    algorithm: estimate, and lower and upper bound of the paired interval.
    """

    mean: Floats
    cvar: Floats
    below: Floats
    mean_interval: Floats
    cvar_interval: Floats
    below_interval: Floats
    mean_lead: Floats
    cvar_lead: Floats


def summarise(
    scores: Floats, baseline: float, compared: Sequence[int], rng: np.random.Generator, resamples: int = 2000
) -> Summary:
    """Mean, CVaR and share below the baseline, with intervals; all algorithms share the resampled repetitions."""
    n = len(scores)
    flat = scores.reshape(n, -1)
    shape = scores.shape[1:]
    weights = bootstrap_weights(n, rng, resamples)
    below = (flat < baseline - BELOW).astype(float)
    estimates = [x.reshape(shape) for x in (flat.mean(0), cvar(flat, TAIL), below.mean(0))]
    resampled = [
        x.reshape(resamples, *shape) for x in (weights @ flat / n, cvar(flat, TAIL, weights), weights @ below / n)
    ]
    mean, tail, share_below = estimates
    mean_interval, cvar_interval, below_interval = (percentile_interval(samples) for samples in resampled)
    mean_lead, cvar_lead = (
        np.stack([paired_lead(estimate, samples, one) for one in compared])
        for estimate, samples in zip(estimates[:2], resampled[:2], strict=True)
    )
    return Summary(mean, tail, share_below, mean_interval, cvar_interval, below_interval, mean_lead, cvar_lead)


# The study


@dataclass(frozen=True, repr=False)
class WorldResult:
    """Scores of all algorithms in one world, by data size."""

    world: str
    name: str
    """For file names."""
    title: str
    quality_name: str
    quality: float
    size_unit: str
    score_label: str
    baseline: float
    repetitions: int
    sizes: tuple[int, ...]
    algorithms: tuple[str, ...]
    compared: tuple[str, ...]
    summary: Summary

    def __repr__(self) -> str:
        return f"WorldResult({self.world}, {len(self.algorithms)} algorithms, {self.repetitions:,} repetitions)"


@dataclass(frozen=True, repr=False)
class StudyResult:
    """Results of the study, one per world."""

    worlds: tuple[WorldResult, ...]

    def __repr__(self) -> str:
        return f"StudyResult({', '.join(part.world for part in self.worlds)})\n{self.summary()}"

    def summary(self) -> str:
        """Mean, CVaR and share below the baseline of every algorithm at the largest data size."""
        lines = []
        for part in self.worlds:
            heading = f"{part.world}, {part.sizes[-1]:,} {part.size_unit}"
            lines.append(f"{heading}: mean / 1%-CVaR / share below the baseline")
            for j, algorithm in enumerate(part.algorithms):
                statistics = (part.summary.mean, part.summary.cvar, part.summary.below)
                cells = " / ".join(f"{values[-1, j]:6.2f}" for values in statistics)
                lines.append(f"  {algorithm:28} {cells}")
        return "\n".join(lines)


def spi_study(
    worlds: Sequence[str] = DEFAULT_WORLDS,
    *,
    algorithms: Sequence[str] = (),
    sizes: Sequence[int] = (),
    repetitions: int = 300,
    compare: Sequence[str] = (COUNT_AWARE,),
    baseline: str = "known",
    resamples: int = 2000,
    seed: int = 0,
    workers: int = 0,
    mapper: Mapper | None = None,
    finished: Mapping[tuple[str, int], Any] | None = None,
    progress: bool = True,
    callback: Callable[[dict[str, Any]], Any] | None = None,
) -> StudyResult:
    """Run the study: improve logged baselines by every algorithm in every world and summarise the exact scores.

    Without `algorithms` and `sizes`, each world has its published ones. The algorithms of `compare` always run and are
    compared with all others. With `baseline` "estimated" no algorithm gets beta, but all the same estimate. `workers`
    is the number of processes (0: one per core); `mapper` replaces them by another parallel `map`, such as a cluster's.
    `callback` gets {"world", "first", "scores"} of every finished block; blocks in `finished`, by (world, first
    repetition), are not computed again. Scores depend on neither.
    """
    check_settings(algorithms, sizes, compare, baseline, repetitions=repetitions, resamples=resamples, workers=workers)
    compared = canonical_algorithms(compare)
    parts = [
        (
            world,
            canonical_algorithms((*(algorithms or world.settings.algorithms), *compared)),
            tuple(sorted(set(sizes))) or world.settings.sizes,
        )
        for world in dict.fromkeys(parse_world(text) for text in worlds)
    ]
    done = dict(finished or {})
    tasks = [
        (world, names, data_sizes, seed, block, baseline)
        for world, names, data_sizes in parts
        for block in split_blocks(world, repetitions)
    ]
    left = [task for task in tasks if (str(task[0]), task[4].start) not in done]
    with mapper or parallel_map(min(workers or os.cpu_count() or 1, max(len(left), 1))) as each:
        results = zip(left, each(score_repetitions, *zip(*left, strict=True)) if left else (), strict=True)
        for task, scores in track(results, "safe policy improvement", len(left)) if progress else results:
            key = (str(task[0]), task[4].start)
            done[key] = scores
            if callback is not None:
                callback({"world": key[0], "first": key[1], "scores": scores})
    results_by_world = []
    for world, names, data_sizes in parts:
        blocks = [np.asarray(done[str(world), block.start]) for block in split_blocks(world, repetitions)]
        results_by_world.append(
            world_result(
                world,
                names,
                data_sizes,
                compared,
                np.concatenate(blocks),
                np.random.default_rng([seed, len(blocks)]),
                resamples,
            )
        )
    return StudyResult(tuple(results_by_world))


def world_result(
    world: WorldSpec,
    names: tuple[str, ...],
    sizes: tuple[int, ...],
    compared: tuple[str, ...],
    scores: Floats,
    rng: np.random.Generator,
    resamples: int,
) -> WorldResult:
    """Summary of the scores `[repetitions, sizes, algorithms]` in one world."""
    family, base = world.settings, baseline_score(world)
    return WorldResult(
        world=str(world),
        name=f"{world.family}-{as_text(world.quality)}",
        title=family.title,
        quality_name=family.quality_name,
        quality=world.quality,
        size_unit=family.size_unit,
        score_label="score (baseline 0, optimal 1)" if family.normalised else "value of the start state",
        baseline=base,
        repetitions=len(scores),
        sizes=sizes,
        algorithms=names,
        compared=compared,
        summary=summarise(scores, base, [names.index(name) for name in compared], rng, resamples),
    )


def canonical_algorithms(names: Sequence[str]) -> tuple[str, ...]:
    """Algorithms in their canonical spelling, each once."""
    return tuple(dict.fromkeys(parse_algorithm(name)[0] for name in names))


def check_settings(
    algorithms: Sequence[str], sizes: Sequence[int], compare: Sequence[str], baseline: str = "known", **counts: int
) -> None:
    """Refuse settings out of range."""
    if len(canonical_algorithms(algorithms)) > MAX_ALGORITHMS:
        raise ValueError(f"algorithms: give at most {MAX_ALGORITHMS}, not {len(algorithms)}")
    if baseline not in ("known", "estimated"):
        raise ValueError(f"baseline {baseline}: must be known or estimated")
    if not compare:
        raise ValueError("compare: give at least one algorithm")
    minimum = {"repetitions": 2, "resamples": 1, "workers": 0}
    for name, value in counts.items():
        if value < minimum[name]:
            raise ValueError(f"{name} = {value}: must be at least {minimum[name]}")
    for size in sizes:
        if not 1 <= size <= MAX_SIZE:
            raise ValueError(f"sizes {size}: must be in [1, {MAX_SIZE}]")
