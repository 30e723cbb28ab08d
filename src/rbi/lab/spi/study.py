"""The safe-policy-improvement study: which worlds, which algorithms, and one block of it, exactly scored."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rbi.lab.mdp import Floats, optimal_policy, performance
from rbi.lab.spi import algorithms as improvers
from rbi.lab.spi import worlds
from rbi.lab.spi.algorithms import Evidence, hcpi
from rbi.lab.spi.worlds import Problem, record
from rbi.statistics import bootstrap_weights, cvar, paired_lead, percentile_interval

OURS = "count_aware(0.25)"  # its one parameter was tuned on other worlds than the reported (docs/count-aware.md)
OTHER = "count_aware_draining(0.25)"  # what it costs that never-tried actions keep their probability
EPISODE_STEPS = 50
MOST = 1e9  # for parameters of algorithms
SPELLING = re.compile(r"(\w+)(?:\(([^()]*)\))?")

ALGORITHMS: dict[str, tuple[Callable[..., Floats], int]] = {  # by name: the function, and how many numbers it takes
    "baseline": (improvers.baseline, 0),
    "basic_rl": (improvers.basic_rl, 0),
    "pi_b_spibb": (improvers.pi_b_spibb, 1),
    "pi_le_b_spibb": (improvers.pi_le_b_spibb, 1),
    "soft_spibb": (improvers.soft_spibb, 1),
    "ramdp": (improvers.ramdp, 1),
    "hcpi": (hcpi, 1),
    "rbi_monte_carlo": (improvers.rbi_monte_carlo, 2),
    "rbi_model": (improvers.rbi_model, 2),
    "rbi_iterated": (improvers.rbi_iterated, 2),
    "count_aware": (improvers.count_aware, 1),
    "count_aware_draining": (improvers.count_aware_draining, 1),
}


@dataclass(frozen=True)
class World:
    """A family of worlds with baselines of one quality: `random` and `grid` by eta, `chicken` by epsilon."""

    family: str
    quality: float

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"unknown world {self.family}: there are {', '.join(FAMILIES)}")
        if not self.traits.least <= self.quality <= 0.999:
            raise ValueError(f"world {self}: {self.traits.level} must be in [{self.traits.least:g}, 0.999]")

    def __str__(self) -> str:
        return f"{self.family}({exact(self.quality)})"

    @property
    def traits(self) -> "Family":
        return FAMILIES[self.family]


@dataclass(frozen=True)
class Family:
    """What the worlds of one name share: data sizes, the algorithms' usual settings, and how results are told."""

    title: str
    level: str  # what its number means
    unit: str  # what data sizes count
    sizes: tuple[int, ...]
    n_wedge: float
    kappa: float
    tuned: tuple[str, ...]  # the peers' best settings on the tuning worlds, where they differ from the protocol's
    normalised: bool  # scores run from 0 (baseline) to 1 (optimal); else they are values at the start
    at_once: int  # worlds or datasets in a block: as many as a processor's cache likes
    least: float = 0.001  # quality

    @property
    def algorithms(self) -> tuple[str, ...]:
        """The peers as the field sets them and as tuning does, then ours."""
        return (
            "basic_rl",
            f"pi_b_spibb({self.n_wedge:g})",
            f"pi_le_b_spibb({self.n_wedge:g})",
            "soft_spibb(2)",
            "soft_spibb(1)",
            f"ramdp({self.kappa:g})",
            "hcpi(0.05)",
            *self.tuned,
            "rbi_monte_carlo(0,2)",
            "rbi_model(0,2)",
            "rbi_iterated(0,2)",
            OTHER,
            OURS,
        )


TRAJECTORIES = (10, 20, 50, 100, 200, 500, 1000, 2000)
TUNED = ("pi_b_spibb(5)", "pi_le_b_spibb(5)", "ramdp(1)", "hcpi(0.001)")  # soft_spibb(1) is the best of its kind
FAMILIES = {
    "random": Family("Random MDPs", "eta", "trajectories", TRAJECTORIES, 10, 0.05, TUNED, True, 25),
    "chicken": Family(
        title="Wet Chicken",
        level="epsilon",
        unit="steps",
        sizes=(100, 200, 500, 1000, 2000, 5000, 10000),
        n_wedge=7,
        kappa=2,
        tuned=("ramdp(4)", "hcpi(0.001)"),
        normalised=False,
        at_once=50,
    ),
    "grid": Family("5x5 gridworld", "eta", "trajectories", TRAJECTORIES, 10, 0.05, TUNED, True, 25, least=0.5),
}


def parse_world(text: str) -> World:
    """`random(0.9)` and the like."""
    name, numbers = spelled(text, "world", "random(0.9)")
    if len(numbers) != 1:
        raise ValueError(f"world {text}: write it with one number, like random(0.9)")
    return World(name, numbers[0])


def parse_algorithm(text: str) -> tuple[str, Callable[[Evidence], Floats]]:
    """The algorithm's one spelling, and the function that makes policies of evidence."""
    name, numbers = spelled(text, "algorithm", "pi_b_spibb(10)")
    if name not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {name}: there are {', '.join(ALGORITHMS)}")
    function, arity = ALGORITHMS[name]
    if len(numbers) != arity:
        raise ValueError(f"algorithm {text}: {name} takes {arity} number{'s' * (arity != 1)}, not {len(numbers)}")
    if any(not 0 <= x <= MOST for x in numbers):
        raise ValueError(f"algorithm {text}: numbers must be in [0, {MOST:g}]")
    if name.startswith("rbi") and not numbers[0] <= 1 <= numbers[1]:
        raise ValueError(f"algorithm {text}: bounds must be c_min <= 1 <= c_max")
    if name == "hcpi" and not 1e-9 <= numbers[0] <= 0.999:
        raise ValueError(f"algorithm {text}: the level of its test must be in [1e-09, 0.999]")
    spelling = f"{name}({','.join(exact(x) for x in numbers)})" if numbers else name
    return spelling, lambda seen: function(seen, *numbers)


def exact(number: float) -> str:
    """The shortest text that gives the number back."""
    return f"{number:g}" if float(f"{number:g}") == number else repr(number)


def spelled(text: str, what: str, example: str) -> tuple[str, tuple[float, ...]]:
    """Name and numbers of `name(1,2)`."""
    match = SPELLING.fullmatch(text.replace(" ", ""))
    if not match:
        raise ValueError(f"{what} {text!r}: write it like {example}")
    words = match[2].split(",") if match[2] else []
    try:
        return match[1], tuple(float(word) for word in words)
    except ValueError:
        raise ValueError(f"{what} {text!r}: write it like {example}") from None


def problem_of(world: World, rngs: Sequence[np.random.Generator], size: int) -> tuple[Problem, Floats]:
    """Worlds and baselines, and the uniform numbers `[T, W, D, N]` that draw the largest dataset of each."""
    if world.family == "chicken":
        drawn = np.stack([rng.random(size, dtype=np.float32) for rng in rngs], 1)
        return worlds.wet_chicken(world.quality), drawn[:, None, :, None]
    make = worlds.random_mdps if world.family == "random" else worlds.gridworlds
    problem = make(world.quality, rngs)
    drawn = np.stack([rng.random((size, EPISODE_STEPS), dtype=np.float32).T for rng in rngs], 1)  # as many as asked for
    return problem, drawn[:, :, None]


def block(world: World, algorithms: Sequence[str], sizes: Sequence[int], rngs: Sequence[np.random.Generator]) -> Floats:
    """Scores `[repetitions, sizes, algorithms]`, one repetition a generator; smaller datasets lie inside larger."""
    problem, uniforms = problem_of(world, rngs, max(sizes))
    logs = record(problem, uniforms)
    found = np.empty((len(rngs), len(sizes), len(algorithms)))
    chosen = [parse_algorithm(text)[1] for text in algorithms]
    for i, size in enumerate(sizes):
        seen = Evidence(problem, logs.first(size))
        for j, improve in enumerate(chosen):
            found[:, i, j] = performance(problem.mdp, improve(seen)).reshape(-1)
    return normalised(problem, found) if world.traits.normalised else found


def normalised(problem: Problem, values: Floats) -> Floats:
    """(rho - rho_b)/(rho* - rho_b) of values `[W, sizes, algorithms]`: 0 for the baseline, 1 for the optimal policy."""
    base, best = performance(problem.mdp, problem.beta), performance(problem.mdp, optimal_policy(problem.mdp))
    return (values - base[..., None]) / (best - base)[..., None]


def baseline_score(world: World) -> float:
    """What the baseline scores: 0 where scores are normalised."""
    if world.traits.normalised:
        return 0.0
    problem = worlds.wet_chicken(world.quality)
    return float(performance(problem.mdp, problem.beta).item())


def blocks(world: World, repetitions: int) -> list[range]:
    """The repetitions in parts that are computed together; a part does not depend on how many there are in all."""
    step = world.traits.at_once
    return [range(first, min(first + step, repetitions)) for first in range(0, repetitions, step)]


def numbered_block(world: World, algorithms: Sequence[str], sizes: Sequence[int], seed: int, which: range) -> Floats:
    """`block` for the repetitions of these numbers, each with the generator of its own number."""
    rngs = [np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,))) for number in which]
    return block(world, algorithms, sizes, rngs)


# ---- from rbi.lab.summary: What many repetitions say: mean, tail and violations, with intervals, and paired comparisons of algorithms.

TAIL = 0.01  # CVaR is the mean of this share of the worst
QUANTILES = ((1 - 0.95) / 2, (1 + 0.95) / 2)  # of 95% intervals
BELOW = 1e-9  # how far below the baseline a score must be to count as below: rounding is not


@dataclass(frozen=True)
class Summary:
    """Of scores `[repetitions, sizes, algorithms]`: statistics `[sizes, algorithms]` and their intervals `[2, ...]`.

    `mean_lead` and `cvar_lead` `[compared, 3, sizes, algorithms]` are what each compared algorithm is ahead of the
    others: the estimate and its paired interval.
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
    """Statistics with percentile intervals of the bootstrap; all algorithms share the resampled repetitions."""
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
    mean_interval, cvar_interval, below_interval = (percentile_interval(samples, QUANTILES) for samples in resampled)
    mean_lead, cvar_lead = (
        np.stack([paired_lead(estimate, samples, one, QUANTILES) for one in compared])
        for estimate, samples in zip(estimates[:2], resampled[:2], strict=True)
    )
    return Summary(mean, tail, share_below, mean_interval, cvar_interval, below_interval, mean_lead, cvar_lead)
