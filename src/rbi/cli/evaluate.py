"""`rbi evaluate`: scores of a saved policy under a stated protocol."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro

from rbi import fileio, runs
from rbi.cli.command import Command, show
from rbi.config import Device, Interval, choose_device
from rbi.envs import id_from_file
from rbi.evaluation import video as videos
from rbi.evaluation.rollouts import MAX_EPISODES, Protocol, ProtocolName, evaluate
from rbi.policy import load_policy
from rbi.progress import echo, track


@dataclass(frozen=True)
class Evaluate(Command):
    """Evaluate a saved policy: scores of complete episodes, with a confidence interval."""

    EXAMPLE: ClassVar[str] = "rbi evaluate runs/cart --episodes 100 --video cart.gif"

    path: Annotated[Path, tyro.conf.Positional] = Path()
    """A run of rbi train (its best policy), or a folder that policy.save wrote."""
    env: str = ""
    """The environment (default: the one that the policy was trained in)."""
    episodes: Annotated[int, Interval(ge=1, le=MAX_EPISODES)] = 100
    """Number of episodes, run in parallel. Four times as many halve the interval of the mean."""
    protocol: ProtocolName = "paper"
    """Atari games only. paper: up to 30 no-ops at the start, no sticky actions; modern: sticky actions with probability
    0.25, no no-ops. Both truncate episodes after 108,000 frames."""
    epsilon: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Probability of a random action instead of the policy's."""
    deterministic: bool = False
    """Take the most probable action instead of sampling. This is a different policy, whose ratio to beta is unbounded:
    the safety of the sampled one does not carry over."""
    video: Path | None = None
    """Also write a video of one episode to this .gif or .mp4 file (default: no video)."""
    device: Device = "auto"
    """Where the networks run; auto is the GPU if there is one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        choose_device(self.device)
        if self.video is not None:
            videos.check_format(self.video)

    def run(self, argv: Sequence[str]) -> None:
        from rbi.report import train as report

        runs.check_apart(self.out, self.path)
        if self.out is not None:
            runs.check_available(self.out, overwrite=self.overwrite)
        policy = load_policy(self.path).to(choose_device(self.device))
        env = self.env or id_from_file(policy.env, self.path)
        if not env:
            raise ValueError(f"{self.path}: does not say in which environment it was trained; give --env")
        protocol = Protocol(self.protocol, self.epsilon, deterministic=self.deterministic)
        if self.video is not None:  # the first image now, so that what cannot be rendered is refused before any work
            rendered = videos.render_episode(policy, protocol, env, self.seed)
            images: Iterator[Any] = itertools.chain([next(rendered)], rendered)
        result = evaluate(policy, env, episodes=self.episodes, protocol=protocol, seed=self.seed, device=policy.device)
        with self.create_run("evaluate", argv) as writer:
            writer.result(result.to_dict() | {"policy": policy.metadata, "path": str(self.path)})
            run = runs.read(writer.path)
            writer.figure("scores", report.evaluation_figure(run))
            show(report.evaluation_table(run))
            if self.video is not None:
                count = videos.write_video(self.video, track(images, "rendering"))
                echo(f"video of one episode, {count} images: {self.video}")
            echo(f"scores of all episodes: {fileio.shown(writer.path)}")
