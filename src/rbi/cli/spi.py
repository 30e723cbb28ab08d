"""`rbi spi`: the safe-policy-improvement study."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from rich.console import Console

from rbi import fileio, runs
from rbi.cli.command import Command, show
from rbi.config import Interval
from rbi.lab.spi import study
from rbi.progress import echo


@dataclass(frozen=True)
class Spi(Command):
    """Safe policy improvement with exact evaluation: mean, 1%-CVaR and violations of RBI, SPIBB and others."""

    EXAMPLE: ClassVar[str] = "rbi spi --worlds 'random(0.9)' --sizes 50 200 --repetitions 100"

    MAY_CHANGE_ON_RESUME: ClassVar[tuple[str, ...]] = (*Command.MAY_CHANGE_ON_RESUME, "engine", "address")

    worlds: tuple[str, ...] = study.DEFAULT_WORLDS
    """Worlds: random(ETA), grid(ETA), gathering(ETA), large(ETA) and two_goals(ETA), whose baselines have quality ETA
    between 0 (uniform) and 1 (optimal), and chicken(EPSILON), whose baseline takes random actions with probability
    EPSILON."""
    algorithms: tuple[str, ...] = ()
    """Algorithms: baseline, basic_rl, pi_b_spibb(N), pi_le_b_spibb(N), soft_spibb(EPSILON), exact_soft_spibb(EPSILON),
    adv_soft_spibb(EPSILON), lower_soft_spibb(EPSILON), ramdp(KAPPA), r_min(N), mbie(DELTA), duipi(XI), duipi_bayes(XI),
    hcpi(DELTA), rbi_monte_carlo(C_MIN,C_MAX), rbi_model(C_MIN,C_MAX), rbi_iterated(C_MIN,C_MAX), count_aware(TAU,Z),
    count_aware_draining(TAU), count_aware_pinned(TAU). By default the published ones and ours, with each world's usual
    and tuned parameters."""
    sizes: tuple[int, ...] = ()
    """Data sizes: trajectories, or steps for chicken. By default the published sizes of each world."""
    repetitions: Annotated[int, Interval(ge=2, le=10_000_000)] = 300
    """Number of worlds (random), baselines (grid) or datasets (chicken); the 1%-CVaR of 300 is the mean of three."""
    baseline: Literal["known", "estimated"] = "known"
    """known: algorithms get the true baseline; estimated: they all get the same estimate of it from their data."""
    compare: tuple[str, ...] = (study.COUNT_AWARE,)
    """Algorithms that always run and are compared with all others; the first is the thick line of the figures."""
    resamples: Annotated[int, Interval(ge=1, le=1_000_000)] = 2000
    """Bootstrap samples for the intervals."""
    workers: Annotated[int, Interval(ge=0, le=4096)] = 0
    """Number of processes (0: one per core). The results do not depend on it."""
    engine: Literal["local", "ray"] = "local"
    """local: processes of this machine; ray: tasks of a Ray cluster."""
    address: str = ""
    """Ray cluster to join; auto: the one that this machine is part of. By default a new one is started here."""
    resume: bool = False
    """Continue the interrupted study in --out; all settings must be the same."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "worlds", tuple(dict.fromkeys(str(study.parse_world(w)) for w in self.worlds)))
        object.__setattr__(self, "compare", study.canonical_algorithms(self.compare))
        object.__setattr__(self, "algorithms", study.canonical_algorithms(self.algorithms))
        object.__setattr__(self, "sizes", tuple(sorted(set(self.sizes))))
        if not (self.worlds and self.compare):
            raise ValueError("--worlds and --compare: give at least one of each")
        study.check_settings(self.algorithms, self.sizes, self.compare)
        if self.address and self.engine != "ray":
            raise ValueError(f"--address {self.address}: is for --engine ray")
        if self.resume and (self.out is None or self.overwrite):
            raise ValueError("--resume: name the stopped study with --out, without --overwrite")

    def run(self, argv: Sequence[str]) -> None:
        from rbi.report import spi as report

        with self.resume_run("spi") if self.resume else self.create_run("spi", argv) as run:
            finished = read_blocks(run.path)
            if self.resume:
                blocks = sum(len(study.split_blocks(study.parse_world(w), self.repetitions)) for w in self.worlds)
                echo(f"{len(finished)} of {blocks} blocks were finished before", stderr=True)
            result = study.spi_study(
                self.worlds,
                algorithms=self.algorithms,
                sizes=self.sizes,
                repetitions=self.repetitions,
                compare=self.compare,
                baseline=self.baseline,
                resamples=self.resamples,
                seed=self.seed,
                workers=self.workers,
                mapper=self.mapper(),
                finished=finished,
                callback=lambda metrics: run.log(**metrics),
            )
            run.result({"worlds": result.worlds})
            complete = runs.read(run.path)
            for part in complete.finished()["worlds"]:
                run.figure(part["name"], report.figure(part))
        console = Console()
        for table in report.tables(complete, console.width if console.is_terminal else None):
            show(table)
        echo(f"wrote {fileio.shown(run.path)} (figures/*.png)")

    def mapper(self) -> study.Mapper | None:
        """A parallel `map` over a Ray cluster; None for local processes."""
        if self.engine == "local":
            return None
        from rbi.online.ray.cluster import cluster_map

        return cluster_map(self.address)


def read_blocks(path: Path) -> dict[tuple[str, int], Any]:
    """Scores of the finished blocks in metrics.jsonl, by world and first repetition; invalid lines raise ValueError."""
    blocks = {}
    run = runs.read(path)
    for damaged in run.damaged:
        echo(f"rbi: {damaged}; its block is computed again", stderr=True)
    for line, metrics in enumerate(run.metrics, 1):
        scores = np.array(metrics.get("scores"), dtype=float)
        if not {"world", "first"} <= set(metrics) or scores.ndim != 3 or np.isnan(scores).any():
            raise ValueError(f"{path / 'metrics.jsonl'}, line {line}: is not a block of scores")
        blocks[metrics["world"], metrics["first"]] = metrics["scores"]
    return blocks
