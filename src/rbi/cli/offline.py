"""`rbi offline`: from a crowd's data to policies, by every rule and baseline of the paper's section 4, and a table."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro

from rbi import checkpoint, envs, runs
from rbi.cli.command import Command, overlaps, show_run
from rbi.cli.data import fingerprint
from rbi.cli.study import Study
from rbi.data.dataset import Dataset
from rbi.data.formats import load_episodes
from rbi.evaluation.rollouts import ProtocolName
from rbi.offline_rl.experiment import PEERS, PRESETS, RULES, OfflineConfig, Peer, Preset
from rbi.progress import echo
from rbi.report import offline as pages
from rbi.rules.types import parse_rule

LARGEST_REWARD = 1e9  # sums of squares must stay numbers


@dataclass(frozen=True)
class Offline(Command):
    """Learn from a fixed data set of many players: behaviour, its Q-values, every improvement step, DQfD, BCQ, CQL.

    All of them are played beside each other, and the table says which did not fall below the behaviour. Every setting
    has the preset's value unless given.
    """

    MAY_CHANGE_ON_RESUME = ("resume", "checkpoint_minutes", "device", "players")

    data: Annotated[Path | None, tyro.conf.Positional] = None
    """The data: a store, or any format that rbi data import reads."""
    env: str = ""
    """The environment to play in; the one that the data was recorded in if not given."""
    preset: Preset | None = None
    """paper: every number of the paper; fast: one GPU and minutes; quick: a processor and minutes, for pictures; small:
    a processor and a minute, for vectors. Without it, fast for pictures and small for vectors."""
    rules: tuple[str, ...] = RULES
    """Improvement steps on top of beta and Q; any of rbi rules."""
    peers: tuple[Peer, ...] = PEERS
    """What is learned beside them: PPO by gradient ascent, DQfD, discrete BCQ and CQL; none after a bare --peers."""
    seeds: int = 1
    """Learn so many times, side by side, with seeds from --seed on."""
    episodes: int = 100
    """Dataset that every policy of every seed plays at the end."""
    points: int = 4
    """Evaluations in all, evenly spread: the learning curve."""
    curve_episodes: int = 12
    """Dataset that every policy plays at each of the others."""
    margin: float = 0.05
    """A policy is called not below the behaviour if, with 95% confidence, it loses less than this share of a score."""
    protocol: ProtocolName = "paper"
    """paper: up to 30 no-ops at the start, no sticky actions; modern: sticky actions with probability 0.25."""
    max_frames: int = 108_000
    """Emulator frames after which an Atari episode is cut off; a policy that never serves the ball plays that long."""
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
        if self.max_frames < 1:
            raise ValueError(f"--max-frames = {self.max_frames}: must be at least 1")
        if self.players < 0:
            raise ValueError(f"--players = {self.players}: must be at least 0")
        if not 0 < self.margin < 1:
            raise ValueError(f"--margin = {self.margin}: must lie between 0 and 1")
        if not self.checkpoint_minutes > 0:
            raise ValueError(f"--checkpoint-minutes = {self.checkpoint_minutes}: must be positive")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("--device cuda: PyTorch finds no GPU here")
        if self.resume and (self.out is None or self.overwrite):
            raise ValueError("--resume: name the stopped run with --out, without --overwrite")
        object.__setattr__(self, "rules", tuple(dict.fromkeys(str(parse_rule(text)) for text in self.rules)))
        object.__setattr__(self, "peers", tuple(dict.fromkeys(self.peers)))

    @classmethod
    def defaults(cls, given: Any) -> "Offline":
        """The preset's values, so that --help shows them and any can be changed."""
        return cls(learning=PRESETS[given.preset or ("fast" if shows_images(given.data) else "small")])

    @property
    def place(self) -> Path:
        """Where the data is."""
        if self.data is None:
            raise ValueError("name the data: a store, or any format that rbi data import reads")
        return self.data

    def run(self, argv: Sequence[str]) -> None:
        if self.out is not None and overlaps(self.out, self.place):
            raise ValueError(f"--out {self.out}: is the data that is read, holds it or lies in it")
        if self.resume:
            self.check_resume("offline")
            if runs.read(self.out or Path()).result is not None:
                self.finished(self.out or Path())
                echo(f"nothing left to do: {self.out} is complete")
                return
        elif self.out is not None:
            runs.check_available(self.out.resolve(), overwrite=self.overwrite)
        data = load_episodes(self.place)
        env = checked(data, self.env, self.place)
        with Study(self, data, env, self.on()) as study:
            about: dict[str, Any] = {
                "lines": 0,
                "seconds": 0.0,
                "point": 0,
                "looked": 0,
                "data": fingerprint(self.place),
            }
            about = self.go_on(study, about) if self.resume else about
            with (
                runs.Writer.reopen(self.out or Path(), lines=about["lines"])
                if self.resume
                else self.create_run("offline", argv) as writer
            ):
                study.go(writer, about)
                self.finished(writer.path)

    def go_on(self, study: Study, about: dict[str, Any]) -> dict[str, Any]:
        """Put the learners where the last checkpoint was, if there is one and the data is still what it was."""
        assert self.out is not None
        before = checkpoint.restore_learners(self.out, study.learners())
        if before is None:
            echo(f"{self.out}: has no checkpoint yet, so it begins again", stderr=True)
            return about
        if before["data"] != about["data"]:
            raise ValueError(f"{self.data}: has changed since the run in {self.out} began; begin a new one")
        return before

    def finished(self, path: Path) -> None:
        show_run(path, pages)
        kept = runs.read(path).finished()["kept"]
        echo(f"scores of all episodes, figures and the policy of {kept}: {path}")
        echo(f"in Python: rbi.load_policy({str(path)!r})")

    def on(self) -> torch.device:
        found = "cuda" if torch.cuda.is_available() else "cpu"
        return torch.device(found if self.device == "auto" else self.device)


def shows_images(path: Path | None) -> bool:
    """Whether the data is a store of images; data in other formats has to be read before one can tell."""
    try:
        return path is not None and len(json.loads((path / "store.json").read_bytes())["frame"]) > 1
    except (OSError, ValueError, TypeError, KeyError):
        return False  # no store, or one that the reader will refuse with its reason


def learnable(data: Dataset, path: Path) -> None:
    """Refuse data of which nothing can be learned."""
    if not len(data):
        why = f" that can be used; the first: {data.rejected[0]}" if data.rejected else ""
        raise ValueError(f"{path}: holds no episodes{why}")
    if data.rejected:
        echo(f"{len(data.rejected):,} episodes set aside; the first: {data.rejected[0]}", stderr=True)
    taken = np.unique(data.arrays["actions"])
    if len(taken) == 1:
        raise ValueError(f"{path}: action {taken[0]} is the only one ever taken; there is nothing to choose from")
    largest = float(np.abs(data.arrays["rewards"]).max())
    if not largest:
        raise ValueError(f"{path}: all rewards are 0; no action can be told to be better than another")
    if largest > LARGEST_REWARD:
        raise ValueError(f"{path}: rewards as large as {largest:g}; scale them to {LARGEST_REWARD:g} at most")


def checked(data: Dataset, asked: str, path: Path) -> str:
    """The environment to play in, once it is known that the data can be learned from and belongs to it."""
    learnable(data, path)
    env = asked or data.spec.env
    if not env:
        raise ValueError(f"{path}: does not say where it was recorded; give --env (rbi improve needs none)")
    if data.spec.env and data.spec.env != env:
        raise ValueError(f"--env {env}: the data is of {data.spec.env}")
    envs.check(envs.EnvConfig(env))
    one = envs.make(envs.EnvConfig(env), 1)
    try:
        if (one.obs_shape, one.frame_stack) != (data.spec.obs_shape, data.spec.frame_stack):
            raise ValueError(
                f"--env {env}: frames {one.obs_shape}, {one.frame_stack} to a state, and the data has {data.spec.obs_shape}, "
                f"{data.spec.frame_stack} to a state"
            )
        if data.spec.num_actions > one.num_actions:
            raise ValueError(f"--env {env}: has {one.num_actions} actions, and the data {data.spec.num_actions}")
        if data.spec.has_action_masks and data.spec.num_actions < one.num_actions:
            raise ValueError(
                f"--env {env}: has {one.num_actions} actions, and the data's masks are of {data.spec.num_actions}"
            )
        if data.spec.num_actions < one.num_actions:
            data.spec = dataclasses.replace(data.spec, num_actions=one.num_actions)
    finally:
        one.close()
    return env
