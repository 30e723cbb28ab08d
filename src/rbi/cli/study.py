"""A run of `rbi offline`: learners and players side by side, what is kept on the way, and what comes of it."""

import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from rbi import checkpoint, runs
from rbi.data.dataset import Dataset
from rbi.evaluation import comparison
from rbi.evaluation.rollouts import Protocol as Evaluation
from rbi.evaluation.rollouts import ProtocolName, VectorEvaluator
from rbi.offline_rl.experiment import BEHAVIOR, OfflineConfig, OneSeed, Peer, rows
from rbi.offline_rl.parallel_learners import Lane, advance, lane
from rbi.offline_rl.ppo import PpoAscent
from rbi.policy import Policy
from rbi.progress import echo, graceful_stop, track, track_updates
from rbi.statistics import describe

LONG = 20  # seconds of learning that are worth a checkpoint before games are played
LOOKS = 5  # at held-out steps, between two evaluations
PLAYERS = {"cpu": 64, "cuda": 312}
SHARE_OF_GPU = 0.6  # of its memory that frames may take
FRAMES_A_STEP, USUAL_FRAMES = 4, 108_000
SAVED = "reroute(0.5,1.5)"


class Asked(Protocol):
    """The settings of `rbi offline` that a run goes by."""

    @property
    def seed(self) -> int: ...
    @property
    def seeds(self) -> int: ...
    @property
    def learning(self) -> OfflineConfig: ...
    @property
    def rules(self) -> tuple[str, ...]: ...
    @property
    def peers(self) -> tuple[Peer, ...]: ...
    @property
    def episodes(self) -> int: ...
    @property
    def points(self) -> int: ...
    @property
    def curve_episodes(self) -> int: ...
    @property
    def players(self) -> int: ...
    @property
    def protocol(self) -> ProtocolName: ...
    @property
    def max_frames(self) -> int: ...
    @property
    def margin(self) -> float: ...
    @property
    def checkpoint_minutes(self) -> float: ...


class Study:
    """A run: what learns, what is played, and where it stands."""

    def __init__(self, command: Asked, data: Dataset, env: str, device: torch.device) -> None:
        self.command, self.config, self.data, self.env = command, command.learning, data, env
        self.device = device
        self.rows = rows(command.rules, command.peers, self.config)
        self.resident = self.device.type == "cuda" and fits_on(self.device, data)
        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high")  # TF32: networks this small need no more
        elif not data.spec.is_image:
            torch.set_num_threads(1)  # vectors are too short to share
        self.seeds: list[OneSeed] = []
        for seed in range(command.seed, command.seed + command.seeds):
            beside = self.seeds[0] if self.seeds else None
            self.seeds.append(
                OneSeed(self.config, command.peers, data, seed, self.device, resident=self.resident, beside=beside)
            )
        self.fits = [self.lane(seed.fit) for seed in self.seeds]
        self.others = [self.lane(peer) for seed in self.seeds for peer in seed.peers.values()]
        self.protocol = Evaluation(command.protocol, max_frames=command.max_frames)
        policies = len(self.rows) * len(self.seeds)
        each = min(command.episodes, max(1, PLAYERS[self.device.type] // policies))
        wanted = command.players or policies * each
        groups = 2 if self.device.type == "cuda" and wanted >= 2 * policies else 1
        echo(f"making {wanted} games of {env}", stderr=True)
        self.evaluator = VectorEvaluator(self.protocol, env, wanted, num_groups=groups)

    def __enter__(self) -> "Study":
        return self

    def __exit__(self, *_: object) -> None:
        self.evaluator.close()

    def lane(self, learner: Any) -> Lane:
        return lane(learner, self.device, graphed=self.resident)

    def learners(self) -> dict[str, Any]:
        """Everything that learns, by name."""
        return {name: learner for seed in self.seeds for name, learner in seed.learners().items()}

    def goal(self, point: float) -> int:
        return round(self.config.updates * point / self.command.points)

    def go(self, writer: runs.Writer, about: dict[str, Any]) -> None:
        """Learn, look, play and keep, point after point, and write the result."""
        self.writer, self.about = writer, about
        self.began = time.monotonic() - about["seconds"]
        self.saved = time.monotonic()
        scores = self.last_scores() if about["point"] == self.command.points else {}
        for point in range(about["point"] + 1, self.command.points + 1):
            self.behaviour_until(point)
            ascents = self.peers_until(point)
            policies = [
                policy
                for seed, ascent in zip(self.seeds, ascents, strict=True)
                for policy in seed.policies(self.rows, ascent, self.env)
            ]
            scores = self.played(policies, point)
            self.line("played", point, scores=scores)
            self.about["point"] = point
            self.save()
        self.keep_policies()
        self.result(scores)

    def last_scores(self) -> dict[str, list[list[float]]]:
        """Those of a run that was stopped after its last games; its learners are looked at once more."""
        for seed in self.seeds:
            seed.diagnose()
        played = [line for line in runs.read(self.writer.path).metrics if line["kind"] == "played"]
        found: dict[str, list[list[float]]] = played[-1]["scores"]
        return found

    def behaviour_until(self, point: int) -> None:
        """Fit beta and Q, with looks at what is held out on the way."""
        for look in range(1, LOOKS + 1):
            goal = self.goal(point - 1 + look / LOOKS)
            if goal <= self.about["looked"]:  # before the run was stopped
                continue
            self.drive(self.fits, [goal] * len(self.fits), "beta and Q")
            for seed in self.seeds:
                learned = seed.fit.metrics()
                told = seed.diagnose()
                self.line("looked", point, seed=seed.seed, learned=learned, held_out=told)
            self.about["looked"] = goal
        for seed in self.seeds:
            if seed.answered is None:
                seed.diagnose()

    def peers_until(self, point: int) -> list[PpoAscent | None]:
        """What is learned beside them; PPO's ascents start anew from beta as it is now."""
        ascents = [seed.ascent(point) if "ppo" in self.command.peers else None for seed in self.seeds]
        climbing = [self.lane(ascent) for ascent in ascents if ascent is not None]
        goals = [self.goal(point)] * len(self.others) + [self.config.ppo.updates] * len(climbing)
        if goals:
            self.drive([*self.others, *climbing], goals, ", ".join(self.command.peers))
        if time.monotonic() - self.saved > LONG:
            self.save()  # a stop while games are played loses nothing that was learned
        learned = {name: learner.metrics() for name, learner in self.learners().items() if not name.endswith(".fit")}
        learned |= {
            f"seed{seed.seed}.ppo": ascent.metrics()
            for seed, ascent in zip(self.seeds, ascents, strict=True)
            if ascent is not None
        }
        self.line("learned", point, learned=learned)
        return ascents

    def drive(self, lanes: Sequence[Lane], goals: Sequence[int], told: str) -> None:
        """Advance learners, with progress, checkpoints now and then, and a stop where it is asked for."""
        start, begun = sum(one.learner.updates for one in lanes), time.monotonic()

        def text(done: int) -> str:
            return f"{done:,} of {sum(goals):,} updates, {(done - start) / max(1e-9, time.monotonic() - begun):,.0f}/s"

        with graceful_stop() as stopped:
            for _ in track_updates(advance(lanes, goals), told, sum(goals), lambda done: done, text):
                if stopped.is_set() or time.monotonic() - self.saved > 60 * self.command.checkpoint_minutes:
                    for one in lanes:
                        one.settle()
                    self.save()
                if stopped.is_set():
                    echo(f"rbi: stopped; go on with --resume --out {self.writer.path}", stderr=True)
                    raise KeyboardInterrupt

    def played(self, policies: Sequence[Policy], point: int) -> dict[str, list[list[float]]]:
        """The scores of every row, seed by seed."""
        last = point == self.command.points
        episodes = self.command.episodes if last else self.command.curve_episodes
        rng = np.random.default_rng([self.command.seed, point])
        found: list[list[float]] = [[] for _ in policies]
        told = f"playing, {point} of {self.command.points}"
        for number, outcome in track(self.evaluator.evaluate(policies, episodes, rng), told, episodes * len(policies)):
            found[number].append(outcome.score)
        return {row.name: found[number :: len(self.rows)] for number, row in enumerate(self.rows)}

    def line(self, kind: str, point: int, **values: Any) -> None:
        updates = self.seeds[0].fit.updates
        self.writer.log(kind=kind, point=point, updates=updates, seconds=round(self.seconds, 3), **values)
        self.about["lines"] += 1

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def save(self) -> None:
        self.about["seconds"] = self.seconds
        checkpoint.save_learners(self.writer.path, self.learners(), self.about)
        self.saved = time.monotonic()

    def keep_policies(self) -> None:
        """The safe step of every seed, or the first rule that was asked for; the first seed's is `best`."""
        row = next((row for row in self.rows if row.name == SAVED), self.rows[min(1, len(self.rows) - 1)])
        row = row if row.learner == "fit" else self.rows[0]
        for number, seed in enumerate(self.seeds):
            (policy,) = seed.policies([row], None, self.env)
            policy.save(self.writer.path / "policies" / ("best" if number == 0 else f"seed{seed.seed}"))
        self.kept = row.name

    def steps_at_most(self) -> int | None:
        """Steps after which an episode is cut off, where that is sooner than usual: the crowd is then cut off too."""
        world = self.protocol.env_config(self.env)
        return world.max_frames // FRAMES_A_STEP if world.is_atari and world.max_frames < USUAL_FRAMES else None

    def result(self, scores: dict[str, list[list[float]]]) -> None:
        """result.json."""
        behaviour = scores[BEHAVIOR]
        rng = np.random.default_rng(self.command.seed)
        found = [
            {"name": row.name, "learner": row.learner, "rule": str(row.rule), "scores": scores[row.name]}
            | comparison.compare(
                scores[row.name], None if row.name == BEHAVIOR else behaviour, rng, margin=self.command.margin
            )
            for row in self.rows
        ]
        self.writer.result(
            {
                "env": self.env,
                "told": self.protocol.describe(self.env),
                "device": str(self.device),
                "seconds": self.seconds,
                "updates": self.config.updates,
                "kept": self.kept,
                "set_aside": len(self.data.rejected),
                "margin": self.command.margin,
                "crowd": crowd(self.data, self.steps_at_most()) | {"cut_off_share": self.seeds[0].sampler.excluded_fraction},
                "rows": found,
                "held_out": [seed.told for seed in self.seeds],
                "steps": [seed.steps_taken(self.rows) for seed in self.seeds],
            }
        )


def crowd(data: Dataset, most: int | None = None) -> dict[str, Any]:
    """What the players of the data scored in at most so many steps, in episodes that they played to the end, or as far,
    where there are some."""
    steps, scores = data.records["steps"], data.scores
    whole = ~data.records["abandoned"].astype(bool)
    if most is not None:
        total = np.concatenate([[0.0], np.cumsum(data.arrays["rewards"], dtype=np.float64)])
        first = data.records["first_step"]
        scores, whole = total[first + np.minimum(steps, most)] - total[first], whole | (steps >= most)
    scores = scores[whole] if whole.any() else scores
    players = len({data.texts[number] for number in data.records["player"]})
    return describe(scores.tolist()) | {
        "cut_at": most,
        "all_episodes": len(data),
        "steps": data.steps,
        "players": players,
    }


def fits_on(device: torch.device, data: Dataset) -> bool:
    """Whether all frames fit into a GPU's memory, beside the networks."""
    free, _ = torch.cuda.mem_get_info(device)
    fits = data.arrays["observations"].nbytes < SHARE_OF_GPU * free
    if not fits:
        echo("the data does not fit on the GPU: batches travel there one by one, which is slower", stderr=True)
    return fits
