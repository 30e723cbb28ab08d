"""`rbi offline`: from a crowd's data to policies, by every rule and baseline of the paper's section 4, and a table."""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro

from rbi import envs, runs
from rbi.commands.command import Command, progress, related, say, show, stopping_between_ticks, value_of, watched
from rbi.data import Episodes
from rbi.data.readers import load_episodes
from rbi.engines import saved_learners
from rbi.engines.together import Lane, advance, lane
from rbi.evaluation import Arena, Protocol, comparison, summary
from rbi.evaluation.rollout import Name
from rbi.offline.one_seed import OneSeed
from rbi.offline.plan import BEHAVIOR, PEERS, PRESETS, RULES, OfflineConfig, Peer, Preset, rows
from rbi.offline.ppo import PpoAscent
from rbi.policy import Policy
from rbi.report import offline as pages
from rbi.rules import parse_rule

LOOKS = 5  # at held-out steps, between two evaluations
PLAYERS = {"cpu": 64, "cuda": 312}
SHARE_OF_GPU = 0.6  # of its memory that frames may take
SAVED = "reroute(0.5,1.5)"


@dataclass(frozen=True)
class Offline(Command):
    """Learn from a fixed data set of many players: behaviour, its Q-values, every improvement step, DQfD, BCQ, CQL.

    All of them are played beside each other, and the table says which did not fall below the behaviour. Every setting
    has the preset's value unless given.
    """

    MAY_CHANGE = ("resume", "checkpoint_minutes", "device", "players")

    data: Annotated[Path, tyro.conf.Positional] = Path()
    """The data: a store, or any format that rbi data import reads."""
    env: str = ""
    """The environment to play in; the one that the data was recorded in if not given."""
    preset: Preset | None = None
    """paper: every number of the paper; fast: one GPU and minutes; small: a processor and a minute, for vectors.
    Without it, fast for pictures and small for vectors."""
    rules: tuple[str, ...] = RULES
    """Improvement steps on top of beta and Q; any of rbi rules."""
    peers: tuple[Peer, ...] = PEERS
    """What is learned beside them: PPO by gradient ascent, DQfD, discrete BCQ and CQL; none after a bare --peers."""
    seeds: int = 1
    """Learn so many times, side by side, with seeds from --seed on."""
    episodes: int = 100
    """Episodes that every policy of every seed plays at the end."""
    points: int = 4
    """Evaluations in all, evenly spread: the learning curve."""
    curve_episodes: int = 12
    """Episodes that every policy plays at each of the others."""
    margin: float = 0.05
    """A policy is called not below the behaviour if, with 95% confidence, it loses less than this share of a score."""
    protocol: Name = "paper"
    """paper: up to 30 no-ops at the start, no sticky actions; modern: sticky actions with probability 0.25."""
    players: int = 0
    """Games that are played at once; 0: 64 on a processor, 312 beside a GPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the networks learn; auto takes the GPU if there is one."""
    resume: bool = False
    """Go on with the run in --out."""
    checkpoint_minutes: float = 5.0
    """Minutes between checkpoints, beside those at every evaluation."""
    learning: Annotated[OfflineConfig, tyro.conf.arg(name="")] = field(default_factory=lambda: PRESETS["fast"])

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("seeds", "episodes", "points", "curve_episodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name.replace('_', '-')} = {getattr(self, name)}: must be at least 1")
        if self.points > self.learning.updates:
            raise ValueError(f"--points = {self.points}: more than the {self.learning.updates} updates")
        if self.players < 0:
            raise ValueError(f"--players = {self.players}: must be at least 0")
        if not 0 < self.margin < 1:
            raise ValueError(f"--margin = {self.margin}: must lie between 0 and 1")
        if not self.checkpoint_minutes > 0:
            raise ValueError(f"--checkpoint-minutes = {self.checkpoint_minutes}: must be positive")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("--device cuda: PyTorch finds no GPU here")
        object.__setattr__(self, "rules", tuple(dict.fromkeys(str(parse_rule(text)) for text in self.rules)))
        object.__setattr__(self, "peers", tuple(dict.fromkeys(self.peers)))

    def run(self, argv: Sequence[str]) -> None:
        if self.out is not None and related(self.out, self.data):
            raise ValueError(f"--out {self.out}: is the data that is read, holds it or lies in it")
        if self.resume:
            self.refuse_other_run("offline")
            if runs.read(self.out or Path()).result is not None:
                self.finished(self.out or Path())
                say(f"nothing left to do: {self.out} is complete")
                return
        elif self.out is not None:
            runs.refuse_occupied(self.out.resolve(), overwrite=self.overwrite)
        data = load_episodes(self.data)
        env = checked(data, self.env, self.data)
        with Study(self, data, env) as study:
            before = saved_learners.restore(self.out or Path(), study.learners()) if self.resume else None
            about = before or {"lines": 0, "seconds": 0.0, "point": 0}
            with (
                runs.Writer.reopen(self.out or Path(), lines=about["lines"])
                if self.resume
                else self.new_run("offline", argv) as writer
            ):
                study.go(writer, about)
                self.finished(writer.path)

    def finished(self, path: Path) -> None:
        """Show the result once more."""
        run = runs.read(path)
        for table in pages.tables(run):
            show(table)
        for line in pages.verdicts(run):
            say(line)
        say(f"policies, scores of all episodes and figures: {path}")

    def on(self) -> torch.device:
        found = "cuda" if torch.cuda.is_available() else "cpu"
        return torch.device(found if self.device == "auto" else self.device)


def with_preset(argv: Sequence[str]) -> type[Offline]:
    """The command with the preset's values as defaults, so that help shows them and any can be changed."""
    given = value_of(argv, "--preset")
    named: Preset = given if given in PRESETS else "fast" if shows_pictures(argv) else "small"  # type: ignore[assignment]
    learning = (
        "learning",
        Annotated[OfflineConfig, tyro.conf.arg(name="")],
        field(default_factory=lambda: PRESETS[named]),
    )
    return dataclasses.make_dataclass(
        "Offline", [learning], bases=(Offline,), frozen=True, namespace={"__doc__": Offline.__doc__}
    )


def shows_pictures(argv: Sequence[str]) -> bool:
    """Whether the data that is named is a store of pictures; other data has to be read before one can tell."""
    for word in argv[1:]:
        if (Path(word) / "store.json").is_file():
            with_store = runs.parse(Path(word) / "store.json", runs.read_text(Path(word) / "store.json"), 1)
            return len(with_store.get("frame", ())) > 1
    return False


def checked(data: Episodes, asked: str, path: Path) -> str:
    """The environment to play in, once it is known that the data can be learned from and belongs to it."""
    if not len(data):
        raise ValueError(f"{path}: holds no episodes")
    taken = np.unique(data.arrays["actions"])
    if len(taken) == 1:
        raise ValueError(f"{path}: action {taken[0]} is the only one ever taken; there is nothing to choose from")
    rewards = data.arrays["rewards"]
    if not np.any(rewards):
        raise ValueError(f"{path}: all rewards are 0; no action can be told to be better than another")
    env = asked or data.spec.env
    if not env:
        raise ValueError(f"{path}: does not say where it was recorded; give --env (rbi improve needs none)")
    if data.spec.env and data.spec.env != env:
        raise ValueError(f"--env {env}: the data is of {data.spec.env}")
    envs.check(envs.World(env))
    one = envs.make(envs.World(env), 1)
    try:
        if (one.frame, one.stack) != (data.spec.frame, data.spec.stack):
            raise ValueError(
                f"--env {env}: shows frames {one.frame}, {one.stack} to a state, and the data has {data.spec.frame}, "
                f"{data.spec.stack} to a state"
            )
        if data.spec.actions > one.actions:
            raise ValueError(f"--env {env}: has {one.actions} actions, and the data {data.spec.actions}")
        if data.spec.actions < one.actions:
            data.spec = dataclasses.replace(data.spec, actions=one.actions)
    finally:
        one.close()
    return env


class Study:
    """A run: what learns, what is played, and where it stands."""

    def __init__(self, command: Offline, data: Episodes, env: str) -> None:
        self.command, self.config, self.data, self.env = command, command.learning, data, env
        self.device = command.on()
        self.rows = rows(command.rules, command.peers, self.config)
        self.resident = self.device.type == "cuda" and fits_on(self.device, data)
        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high")  # TF32: networks this small need no more
        self.seeds: list[OneSeed] = []
        for seed in range(command.seed, command.seed + command.seeds):
            beside = self.seeds[0] if self.seeds else None
            self.seeds.append(
                OneSeed(self.config, command.peers, data, seed, self.device, resident=self.resident, beside=beside)
            )
        self.fits = [self.lane(seed.fit) for seed in self.seeds]
        self.others = [self.lane(peer) for seed in self.seeds for peer in seed.peers.values()]
        self.protocol = Protocol(command.protocol)
        policies = len(self.rows) * len(self.seeds)
        wanted = command.players or min(PLAYERS[self.device.type], policies * command.episodes)
        say(f"making {wanted} games of {env}", stderr=True)
        self.arena = Arena(self.protocol, env, wanted)

    def __enter__(self) -> "Study":
        return self

    def __exit__(self, *_: object) -> None:
        self.arena.close()

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
        with stopping_between_ticks() as self.stopped:
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
        self.keep_policies(policies)
        self.result(scores)

    def behaviour_until(self, point: int) -> None:
        """Fit beta and Q, with looks at what is held out on the way."""
        for look in range(1, LOOKS + 1):
            goal = self.goal(point - 1 + look / LOOKS)
            if all(seed.fit.updates >= goal for seed in self.seeds) and look < LOOKS:
                continue
            self.drive(self.fits, [goal] * len(self.fits), "beta and Q")
            for seed in self.seeds:
                learned = seed.fit.metrics()
                told = seed.diagnose()
                self.line("looked", point, seed=seed.seed, learned=learned, held_out=told)

    def peers_until(self, point: int) -> list[PpoAscent | None]:
        """What is learned beside them; PPO's ascents start anew from beta as it is now."""
        ascents = [seed.ascent(point) if "ppo" in self.command.peers else None for seed in self.seeds]
        climbing = [self.lane(ascent) for ascent in ascents if ascent is not None]
        goals = [self.goal(point)] * len(self.others) + [self.config.ppo.updates] * len(climbing)
        if goals:
            self.drive([*self.others, *climbing], goals, "PPO, DQfD, BCQ, CQL")
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

        for _ in watched(advance(lanes, goals), told, sum(goals), lambda done: done, text):
            if self.stopped.is_set() or time.monotonic() - self.saved > 60 * self.command.checkpoint_minutes:
                for one in lanes:
                    one.settle()
                self.save()
            if self.stopped.is_set():
                say(f"rbi: stopped; go on with --resume --out {self.writer.path}", stderr=True)
                raise KeyboardInterrupt

    def played(self, policies: Sequence[Policy], point: int) -> dict[str, list[list[float]]]:
        """The scores of every row, seed by seed."""
        last = point == self.command.points
        episodes = self.command.episodes if last else self.command.curve_episodes
        rng = np.random.default_rng([self.command.seed, point])
        found: list[list[float]] = [[] for _ in policies]
        told = f"playing, {point} of {self.command.points}"
        for number, outcome in self.stoppable(
            progress(self.arena.play(policies, episodes, rng), told, episodes * len(policies))
        ):
            found[number].append(outcome.score)
        return {row.name: found[number :: len(self.rows)] for number, row in enumerate(self.rows)}

    def stoppable(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            if self.stopped.is_set():
                self.save()
                say(f"rbi: stopped; go on with --resume --out {self.writer.path}", stderr=True)
                raise KeyboardInterrupt
            yield item

    def line(self, kind: str, point: int, **values: Any) -> None:
        updates = self.seeds[0].fit.updates
        self.writer.metric(kind=kind, point=point, updates=updates, seconds=round(self.seconds, 3), **values)
        self.about["lines"] += 1

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def save(self) -> None:
        self.about["seconds"] = self.seconds
        saved_learners.save(self.writer.path, self.learners(), self.about)
        self.saved = time.monotonic()

    def keep_policies(self, policies: Sequence[Policy]) -> None:
        """The safe step of every seed, or behaviour itself where that rule was not asked for; the first is `best`."""
        names = [row.name for row in self.rows]
        which = names.index(SAVED) if SAVED in names else names.index(BEHAVIOR)
        for number, seed in enumerate(self.seeds):
            policy = policies[number * len(self.rows) + which]
            policy.save(self.writer.path / "policies" / ("best" if number == 0 else f"seed{seed.seed}"))

    def result(self, scores: dict[str, list[list[float]]]) -> None:
        """result.json and the figures."""
        behaviour = scores[BEHAVIOR]
        rng = np.random.default_rng(self.command.seed)
        found = [
            {"name": row.name, "learner": row.learner, "rule": str(row.rule), "scores": scores[row.name]}
            | comparison.row(
                scores[row.name], None if row.name == BEHAVIOR else behaviour, rng, margin=self.command.margin
            )
            for row in self.rows
        ]
        self.writer.result(
            {
                "env": self.env,
                "told": self.protocol.told(self.env),
                "device": str(self.device),
                "seconds": self.seconds,
                "updates": self.config.updates,
                "margin": self.command.margin,
                "crowd": crowd(self.data) | {"cut_off_share": self.seeds[0].sampler.left_out},
                "rows": found,
                "held_out": [seed.told for seed in self.seeds],
                "steps": [seed.steps_taken(self.rows) for seed in self.seeds],
            }
        )
        run = runs.read(self.writer.path)
        for name, figure in pages.figures(run).items():
            self.writer.figure(name, figure)


def crowd(data: Episodes) -> dict[str, Any]:
    """What the players of the data scored, in episodes that they played to the end where there are some."""
    whole = ~data.records["quit"].astype(bool)
    scores = data.scores[whole] if whole.any() else data.scores
    players = len({data.texts[number] for number in data.records["player"]})
    return summary(scores.tolist()) | {"all_episodes": len(data), "steps": data.steps, "players": players}


def fits_on(device: torch.device, data: Episodes) -> bool:
    """Whether all frames fit into a GPU's memory, beside the networks."""
    free, _ = torch.cuda.mem_get_info(device)
    fits = data.arrays["observations"].nbytes < SHARE_OF_GPU * free
    if not fits:
        say("the data does not fit on the GPU: batches travel there one by one, which is slower", stderr=True)
    return fits
