"""`rbi evaluate`: what a saved policy scores, under a protocol that the output states."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

from rbi import runs
from rbi.cli.command import Command, overlaps, show
from rbi.evaluation import video as films
from rbi.evaluation.comparison import human_normalised, summary
from rbi.evaluation.rollouts import Name, Protocol, play
from rbi.policy import Policy, load_policy
from rbi.progress import echo, track
from rbi.report import train as pages

MOST_EPISODES = 1_000_000


@dataclass(frozen=True)
class Evaluate(Command):
    """Play episodes with a saved policy and say what they scored."""

    path: Annotated[Path, tyro.conf.Positional] = Path()
    """A run of rbi train (its best policy plays), or a folder that policy.save wrote."""
    env: str = ""
    """The environment; the one that the policy was learned in if not given."""
    episodes: int = 100
    """Episodes to play, side by side."""
    protocol: Name = "paper"
    """paper: up to 30 no-ops at the start, no sticky actions; modern: sticky actions with probability 0.25, no no-ops.
    Both cut an Atari episode off after 108,000 frames."""
    epsilon: float = 0.0
    """Probability of a random action instead of the policy's."""
    video: Path | None = None
    """Also film one episode, into this .gif or .mp4."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the networks run; auto takes the GPU if there is one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.episodes <= MOST_EPISODES:
            raise ValueError(f"--episodes = {self.episodes}: must be at least 1 and at most {MOST_EPISODES:,}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("--device cuda: PyTorch finds no GPU here")
        if self.video is not None:
            films.check(self.video)

    def run(self, argv: Sequence[str]) -> None:
        if self.out is not None and overlaps(self.out, self.path):
            raise ValueError(f"--out {self.out}: belongs to the run that is evaluated; choose another folder")
        policy = load_policy(self.path)
        env = self.env or policy.env
        if not env:
            raise ValueError(f"{self.path}: does not say in which environment it was learned; give --env")
        found = "cuda" if torch.cuda.is_available() else "cpu"
        policy.to(found if self.device == "auto" else self.device)
        protocol = Protocol(self.protocol, self.epsilon)
        if self.video is not None:  # its first screen now, so that what cannot be filmed is refused before any work
            filmed = films.episode(policy, protocol, env, self.seed)
            screens: Iterator[Any] = itertools.chain([next(filmed)], filmed)
        result = evaluated(policy, protocol, env, self.episodes, self.seed)
        with self.create_run("evaluate", argv) as writer:
            writer.result(result | {"policy": policy.about, "path": str(self.path)})
            run = runs.read(writer.path)
            writer.figure("scores", pages.score_figure(run))
            show(pages.evaluate_score_table(run))
            if self.video is not None:
                count = films.write(self.video, track(screens, "filming"))
                echo(f"film of one episode, {count} screens: {self.video}")
            echo(f"scores of all episodes: {writer.path}")


def evaluated(policy: Policy, protocol: Protocol, env: str, episodes: int, seed: int) -> dict[str, Any]:
    """Scores of a policy and what they say, as result.json keeps them."""
    played = list(track(play(policy, protocol, env, episodes, seed), "playing", episodes))
    scores = [episode.score for episode in played]
    found = summary(scores, seed)
    return {
        "env": env,
        "protocol": protocol.name,
        "told": protocol.told(env),
        **found,
        "human_normalised": human_normalised(env, found["mean"]),
        "cut_off": sum(episode.cut_off for episode in played),
        "scores": scores,
        "steps": [episode.steps for episode in played],
    }
