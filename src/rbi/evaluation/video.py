"""Videos of one episode as GIF (Pillow) or MP4 (ffmpeg): rendered images, not the policy's observations."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rbi import fileio
from rbi.envs.types import EnvConfig
from rbi.evaluation.batched_policies import random_actions
from rbi.evaluation.rollouts import Protocol, check_compatible
from rbi.observations import roll_stacks, zero_stacks
from rbi.statistics import Array
from rbi.steps import TERMINATED, TRUNCATED, legal_or_none

if TYPE_CHECKING:
    from rbi.policy import Policy

FPS = 15  # an action lasts four frames of a 60 Hz game
MAX_IMAGES = 5 * 60 * FPS
FORMATS = (".gif", ".mp4")


def check_format(path: Path) -> None:
    """Refuse a video file that could not be written, before any work starts."""
    if path.suffix not in FORMATS:
        raise ValueError(f"--video {path}: videos are written as {' or '.join(FORMATS)}")
    if path.suffix == ".mp4" and shutil.which("ffmpeg") is None:
        raise ValueError(f"--video {path}: mp4 needs the program ffmpeg, which is not installed; .gif needs nothing")


def render_episode(policy: "Policy", protocol: Protocol, env: str, seed: int) -> Iterator[Array]:
    """Images `[H, W, 3]` of one episode, at most five minutes of it."""
    vector_env = make_rendered(protocol.env_config(env))
    check_compatible(policy, vector_env, env)
    rng, states = np.random.default_rng(seed), zero_stacks(policy.obs_spec, 1)
    step = vector_env.reset(int(rng.integers(2**30)))
    for _ in range(MAX_IMAGES):
        yield vector_env.screen()
        if step.end[0] in (TERMINATED, TRUNCATED):
            break
        probs = policy.predict_proba(roll_stacks(states, step.obs, step.is_first), legal_or_none(step.legal))
        actions = probs.argmax(1) if protocol.deterministic else policy.draw(probs, rng)
        if rng.random() < protocol.epsilon:
            actions = random_actions(step, policy.obs_spec.num_actions, rng)
        vector_env.send(actions)
        step = vector_env.recv()
    vector_env.close()


def make_rendered(config: EnvConfig) -> Any:
    """One environment that renders images."""
    if config.is_atari:
        from rbi.envs.atari import AtariScreen

        return AtariScreen(config)
    from rbi.envs.gym import GymVector

    return GymVector(config, 1, render=True)


def write_video(path: Path, images: Iterator[Array]) -> int:
    """Write a video file atomically; returns its number of images."""
    check_format(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    taken = list(images)
    write = write_gif if path.suffix == ".gif" else write_mp4
    fileio.atomic_write(path, lambda at: write(at, taken))
    return len(taken)


def write_gif(path: Path, images: list[Array]) -> None:
    """Write a GIF that loops."""
    from PIL import Image

    first, *others = [Image.fromarray(image) for image in images]
    first.save(path, format="GIF", save_all=True, append_images=others, duration=1000 // FPS, loop=0)


def write_mp4(path: Path, images: list[Array]) -> None:
    """Write an H.264 video with ffmpeg; odd sizes are padded to even ones."""
    height, width = images[0].shape[:2]
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(FPS), "-i", "-"]
    target = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p", "-f", "mp4"]
    command = ["ffmpeg", "-y", "-loglevel", "error", *source, *target, str(path)]
    done = subprocess.run(command, input=b"".join(i.tobytes() for i in images), capture_output=True, check=False)
    if done.returncode:
        raise ValueError(f"{path}: ffmpeg failed ({done.stderr.decode(errors='replace').strip().splitlines()[-1]})")
