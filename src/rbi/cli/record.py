"""`rbi data record`: what players do, kept as episodes."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
import tyro

from rbi import envs, runs
from rbi.cli.command import Command, overlaps, show
from rbi.data.episode import DatasetSpec
from rbi.data.formats import agc as agc_reader
from rbi.data.formats.seam import summarize
from rbi.data.store import Store, StoreWriter
from rbi.data.summary import DatasetSummary
from rbi.envs.types import VectorEnv
from rbi.evaluation import agc, console_players
from rbi.evaluation.console import AtConsole
from rbi.evaluation.recording import Perturbation, PerturbedPolicy, Recorder
from rbi.evaluation.rollouts import Protocol, ProtocolName, check_compatible
from rbi.evaluation.scripted import SCRIPTED, ActionModel
from rbi.policy import Policy, load_policy
from rbi.progress import echo, track
from rbi.report import data as pages

MOST_ENVIRONMENTS = 64
MOST_FRAMES = 108_000
STEPS_EACH = 1000  # fewer would be mostly beginnings
AT_CONSOLE: dict[str, Callable[[str], Callable[[], console_players.Player]]] = {
    "restless": lambda _: console_players.Restless,
    "skilled": lambda env: console_players.SKILLED.get(env, console_players.Restless),
}


@dataclass(frozen=True)
class Record(Command):
    """Let players act in many environments at once and keep their episodes in a store.

    A recording that was finished goes on with --resume and a larger number of episodes or steps.
    """

    MAY_CHANGE_ON_RESUME: ClassVar[tuple[str, ...]] = ("resume", "device", "episodes", "steps", "environments")

    minds: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Who plays: runs of rbi train or policy folders, random, follow (follows the ball of Breakout or Pong), cross
    (crosses Freeway's road) or climb (to the first key of Montezuma's Revenge); for AGC also restless (presses anything
    for a while) and skilled (knows its game)."""
    to: Literal["store", "agc"] = "store"
    """store: ours; agc: the files of the Atari Grand Challenge, frame by frame, with the truth beside them."""
    env: str = ""
    """The environment; the one that the first policy was learned in if not given."""
    episodes: int = 0
    """Record so many whole episodes."""
    steps: int = 0
    """Or at least so many steps; the episodes that are going on then are cut off."""
    epsilon: float = 0.0
    """Probability of a random action; a crowd has its own."""
    crowd: int = 0
    """A crowd of so many players of mixed skill, each with one of the minds (of a training run all that it kept with
    --ages) and a manner of its own."""
    manners: Perturbation = field(default_factory=Perturbation)
    environments: int = 0
    """Environments side by side; 0: one an episode, or for every 1,000 steps, 64 at most, and one a player at least."""
    protocol: ProtocolName = "paper"
    """paper: up to 30 no-ops at the start, no sticky actions; modern: sticky actions with probability 0.25."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where policies run; auto takes the GPU if there is one."""
    resume: bool = False
    """Go on with the recording in --out that was stopped."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.minds:
            raise ValueError("name who plays: a run of rbi train, a policy's folder, random, follow, cross or climb")
        if (self.episodes > 0) == (self.steps > 0) or min(self.episodes, self.steps) < 0:
            raise ValueError("give either --episodes or --steps, at least 1")
        if not 0 <= self.epsilon <= 1:
            raise ValueError(f"--epsilon {self.epsilon}: must lie in [0, 1]")
        for name in ("crowd", "environments"):
            if getattr(self, name) < 0:
                raise ValueError(f"--{name} {getattr(self, name)}: must be at least 0")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("--device cuda: PyTorch finds no GPU here")
        if self.resume and (self.out is None or self.overwrite):
            raise ValueError("--resume: name the stopped recording with --out, without --overwrite")
        if self.to == "agc" and self.steps:
            raise ValueError("--to agc: records whole episodes; give --episodes")

    def run(self, argv: Sequence[str]) -> None:
        known = (*SCRIPTED, *AT_CONSOLE) if self.to == "agc" else SCRIPTED
        policies = {name: self.policies(Path(name)) for name in self.minds if name not in known}
        learned = [policy.env for found in policies.values() for _, policy in found if policy.env]
        env = self.env or next(iter(learned), "")
        if not env:
            raise ValueError("--env: name the environment to record in")
        for name in policies:
            if self.out is not None and overlaps(self.out, Path(name)):
                raise ValueError(f"--out {self.out}: belongs to {name}, which plays; choose another folder")
        world = Protocol(self.protocol).env_config(env)
        envs.check(world)
        if self.out is not None and not self.resume:
            runs.check_available(self.out.resolve(), overwrite=self.overwrite)
        if self.to == "agc":
            self.record_agc(argv, env, policies)
            return
        wanted = self.episodes or self.steps // STEPS_EACH
        count = self.environments or max(1, self.crowd, len(self.minds), min(wanted, MOST_ENVIRONMENTS))
        worlds = envs.make(world, count)
        minds = self.all_minds(policies, env, worlds)
        players = self.players(minds, count)
        spec = DatasetSpec(worlds.obs_shape, worlds.num_actions, worlds.frame_stack, env, has_action_probs=True)
        with self.resume_run("data-record") if self.resume else self.create_run("data-record", argv) as run:
            there = (run.path / "store.json").exists()
            with (
                StoreWriter.append_to(run.path, repair=True) if there else StoreWriter.create(run.path, spec) as writer
            ):
                self.record(writer, worlds, players, spec)
            store, about = Store(run.path), DatasetSummary(spec.num_actions)
            for episode in store:
                about.add(summarize(episode))
            told = about.told() | {"path": str(run.path), "format": "store", "spec": asdict(spec)}
            run.result(told | {"observations_seen": None, "protocol": Protocol(self.protocol).describe(env)})
            found = runs.read(run.path).finished()
            run.figure("data", pages.info_figure(found))
        worlds.close()
        show(pages.info_table(found))
        echo(f"{len(store):,} episodes, {store.steps:,} steps: {run.path}")

    def record(self, writer: StoreWriter, worlds: VectorEnv, players: list[PerturbedPolicy], spec: DatasetSpec) -> None:
        """Append what is missing to the number that is asked for."""
        rng = np.random.default_rng([self.seed, writer.episodes])  # a recording that goes on plays other episodes
        recorder = Recorder(worlds, players, spec, source_of(self.minds), rng)
        recorder.recorded = writer.episodes
        episodes = max(0, self.episodes - writer.episodes) if self.episodes else None
        steps = self.steps - writer.steps if self.steps else None
        if episodes == 0 or (steps is not None and steps <= 0):
            return
        for episode in track(recorder.episodes(episodes, steps), "recording", episodes):
            writer.append(episode)

    def record_agc(self, argv: Sequence[str], env: str, policies: dict[str, list[tuple[str, Policy]]]) -> None:
        """Episodes in the format of the Atari Grand Challenge, one after the other."""
        games = {of: game for game, of in agc_reader.ENVS.items()}
        if env not in games:
            raise ValueError(f"--env {env}: the Atari Grand Challenge has {', '.join(games)}")
        worlds = envs.make(envs.EnvConfig(env), 1)
        minds = self.all_minds(policies, env, worlds)
        worlds.close()
        players = self.players(minds, max(len(minds), self.crowd)) if minds else []
        console = [(name, AT_CONSOLE[name](env)) for name in self.minds if name in AT_CONSOLE]
        recording = agc.Recording(games[env], self.seed, MOST_FRAMES, quits=0.0)
        with self.resume_run("data-record") if self.resume else self.create_run("data-record", argv) as run:
            frames = scored = 0
            for index in track(range(self.episodes), "recording"):
                who = index % (len(players) + len(console))
                plays = at_console(players[who]) if who < len(players) else console[who - len(players)]
                truth = agc.recorded(run.path, recording, index, (plays[0], plays[1]()))
                frames, scored = frames + truth.frames, scored + truth.score
                run.log(episode=truth.number, player=truth.player, frames=truth.frames, score=truth.score)
            run.result({"episodes": self.episodes, "frames": frames, "mean_score": scored / self.episodes, "env": env})
        echo(f"{self.episodes:,} episodes, {frames:,} frames, mean score {scored / self.episodes:,.1f}: {run.path}")

    def policies(self, path: Path) -> list[tuple[str, Policy]]:
        """The policy of a folder; for a crowd all those that a training run kept."""
        kept = sorted(file.parent for file in (path / "policies").glob("*/policy.json"))
        chosen = [at for at in kept if at.name.startswith("updates-")] or kept
        where = torch.device("cuda" if torch.cuda.is_available() and self.device != "cpu" else "cpu")
        if self.crowd and chosen:
            return [(f"{path.name}/{at.name}", load_policy(at).to(where)) for at in chosen]
        return [(path.name, load_policy(path).to(where))]

    def all_minds(
        self, policies: dict[str, list[tuple[str, Policy]]], env: str, worlds: VectorEnv
    ) -> list[tuple[str, ActionModel]]:
        """Everyone who decides, with a name, once it is known to fit the environment."""
        found: list[tuple[str, ActionModel]] = []
        for name in self.minds:
            if name in SCRIPTED:
                found.append((name, SCRIPTED[name](env, worlds.num_actions)))
            for told, policy in policies.get(name, []):
                check_compatible(policy, worlds, env)
                found.append((told, policy))
        return found

    def players(self, minds: list[tuple[str, ActionModel]], count: int) -> list[PerturbedPolicy]:
        """A player for every environment."""
        chosen = self.manners.population(self.crowd, minds, np.random.default_rng([self.seed, 1])) if self.crowd else []
        chosen = chosen or [PerturbedPolicy(name, mind, self.epsilon) for name, mind in minds]
        if len(chosen) > count:
            raise ValueError(f"--environments {count}: fewer than the {len(chosen)} players")
        return [chosen[i % len(chosen)] for i in range(count)]


def at_console(player: PerturbedPolicy) -> tuple[str, Callable[[], console_players.Player]]:
    return player.name, lambda: AtConsole(player)


def source_of(minds: tuple[str, ...]) -> str:
    return "recorded: " + ", ".join(minds)
