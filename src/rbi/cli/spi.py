"""`rbi spi`: the safe-policy-improvement study."""

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from rich.console import Console

from rbi import runs
from rbi.cli.command import Command, show
from rbi.lab.spi import study as spi
from rbi.lab.spi.study import summarise
from rbi.parallel import parallel_map
from rbi.progress import echo, track
from rbi.report import spi as report

MOST_ALGORITHMS = 20
MOST_DATA = 1_000_000  # a block of so many trajectories still fits memory


@dataclass(frozen=True)
class Spi(Command):
    """Safe policy improvement where truth is known: mean, 1%-CVaR and violations beside SPIBB and friends."""

    MAY_CHANGE_ON_RESUME: ClassVar[tuple[str, ...]] = (*Command.MAY_CHANGE_ON_RESUME, "engine", "address")

    worlds: tuple[str, ...] = ("random(0.9)", "random(0.5)", "chicken(0.1)", "grid(0.7)")
    """Worlds: random(ETA) and grid(ETA), with baselines ETA of the way from random to optimal, and chicken(EPSILON),
    whose baseline acts at random with probability EPSILON."""
    algorithms: tuple[str, ...] = ()
    """Algorithms: baseline, basic_rl, pi_b_spibb(N), pi_le_b_spibb(N), soft_spibb(EPSILON), ramdp(KAPPA), hcpi(DELTA),
    rbi_monte_carlo(C_MIN,C_MAX), rbi_model(C_MIN,C_MAX), rbi_iterated(C_MIN,C_MAX), count_aware(TAU),
    count_aware_draining(TAU); if not given, the field's and ours with each world's usual settings."""
    sizes: tuple[int, ...] = ()
    """Data sizes: trajectories, or steps for chicken; if not given, those the field publishes for each world."""
    repetitions: int = 300
    """Worlds (random), baselines (grid) or datasets (chicken); the 1%-CVaR of 300 is the mean of three."""
    compare: tuple[str, ...] = (spi.OURS, spi.OTHER)
    """Algorithms that run in any case and are compared with each other one; the first is the figures' thick line."""
    resamples: int = 2000
    """Bootstrap samples behind the intervals."""
    workers: int = 0
    """Processes to use; 0 for one a core. The result does not depend on it."""
    engine: Literal["local", "ray"] = "local"
    """local: the processes of this machine; ray: the tasks of a Ray cluster."""
    address: str = ""
    """The Ray cluster to join; auto: the one that this machine is part of. Without it, one is started here."""
    resume: bool = False
    """Go on with the study in --out that was stopped; all settings must be the same."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "worlds", tuple(dict.fromkeys(str(spi.parse_world(w)) for w in self.worlds)))
        object.__setattr__(self, "compare", tuple(dict.fromkeys(spi.parse_algorithm(a)[0] for a in self.compare)))
        spelled = tuple(dict.fromkeys(spi.parse_algorithm(a)[0] for a in self.algorithms))
        object.__setattr__(self, "algorithms", spelled)
        object.__setattr__(self, "sizes", tuple(sorted(set(self.sizes))))
        if not (self.worlds and self.compare):
            raise ValueError("--worlds and --compare: give at least one of each")
        if len(spelled) > MOST_ALGORITHMS:
            raise ValueError(f"--algorithms: give at most {MOST_ALGORITHMS} of them, not {len(spelled)}")
        for name, value, least in (
            ("repetitions", self.repetitions, 2),
            ("resamples", self.resamples, 1),
            ("workers", self.workers, 0),
            ("sizes", min(self.sizes, default=1), 1),
        ):
            if value < least:
                raise ValueError(f"--{name} {value}: must be at least {least}")
        if max(self.sizes, default=1) > MOST_DATA:
            raise ValueError(f"--sizes {max(self.sizes)}: must be at most {MOST_DATA}")
        if self.address and self.engine != "ray":
            raise ValueError(f"--address {self.address}: is for --engine ray")
        if self.resume and (self.out is None or self.overwrite):
            raise ValueError("--resume: name the stopped study with --out, without --overwrite")

    def run(self, argv: Sequence[str]) -> None:
        parts = [self.part(spi.parse_world(text)) for text in self.worlds]
        with self.resume_run("spi") if self.resume else self.create_run("spi", argv) as run:
            done = {(m["world"], m["first"]): m["scores"] for m in self.finished_blocks(run.path)}
            tasks = [
                (world, algorithms, sizes, self.seed, which)
                for world, algorithms, sizes in parts
                for which in spi.blocks(world, self.repetitions)
            ]
            left = [task for task in tasks if (str(task[0]), task[-1].start) not in done]
            if self.resume:
                echo(f"{len(tasks) - len(left)} of {len(tasks)} blocks were done", stderr=True)
            with self.many(len(left)) as each:
                finished = each(spi.numbered_block, *zip(*left, strict=True)) if left else iter(())
                for task, scores in track(zip(left, finished, strict=True), "safe improvement", len(left)):
                    key = (str(task[0]), task[-1].start)
                    run.log(world=key[0], first=key[1], scores=scores)
                    done[key] = scores
            run.result({"worlds": [self.summary(*part, done) for part in parts]})
            complete = runs.read(run.path)
            for part in complete.finished()["worlds"]:
                run.figure(part["name"], report.figure(part))
        console = Console()
        for table in report.tables(complete, console.width if console.is_terminal else None):
            show(table)
        echo(f"wrote {run.path} (figures/*.png)")

    def many(self, blocks: int) -> contextlib.AbstractContextManager[Callable[..., Iterable[Any]]]:
        """A `map` over processes or over a cluster."""
        if self.engine == "ray":
            from rbi.online.ray.cluster import cluster_map

            return cluster_map(self.address)
        return parallel_map(min(self.workers or os.cpu_count() or 1, max(blocks, 1)))

    def finished_blocks(self, path: Path) -> list[dict[str, Any]]:
        """The blocks that metrics.jsonl holds; a line that is none is named."""
        found = runs.read(path).metrics
        for number, line in enumerate(found, 1):
            scores = np.array(line.get("scores"), dtype=float)
            if not {"world", "first"} <= set(line) or scores.ndim != 3 or np.isnan(scores).any():
                raise ValueError(f"{path / 'metrics.jsonl'}, line {number}: is no block of scores")
        return found

    def part(self, world: spi.World) -> tuple[spi.World, tuple[str, ...], tuple[int, ...]]:
        """A world, the algorithms that run in it (the compared ones among them), and its data sizes."""
        algorithms = self.algorithms or world.traits.algorithms
        return world, tuple(dict.fromkeys((*algorithms, *self.compare))), self.sizes or world.traits.sizes

    def summary(
        self, world: spi.World, algorithms: tuple[str, ...], sizes: tuple[int, ...], done: dict[tuple[str, int], Any]
    ) -> dict[str, Any]:
        """All that a table or figure of one world needs."""
        each = [np.asarray(done[str(world), which.start]) for which in spi.blocks(world, self.repetitions)]
        base = spi.baseline_score(world)
        rng = np.random.default_rng([self.seed, len(each)])
        traits = world.traits
        compared = [algorithms.index(name) for name in self.compare]
        return {
            "world": str(world),
            "name": f"{world.family}-{spi.exact(world.quality)}",
            "title": traits.title,
            "level": traits.level,
            "quality": world.quality,
            "unit": traits.unit,
            "score": "score (baseline 0, optimal 1)" if traits.normalised else "value at the start",
            "baseline": base,
            "repetitions": self.repetitions,
            "sizes": sizes,
            "algorithms": algorithms,
            "compared": self.compare,
            "summary": summarise(np.concatenate(each), base, compared, rng, self.resamples),
        }
