"""An episode as a film for people: what the game shows, not what the policy sees."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rbi import runs
from rbi.envs.types import EnvConfig
from rbi.evaluation.rollouts import Protocol, black, fits, stacked
from rbi.policy import Policy
from rbi.returns import TERMINATED, TRUNCATED

FRAMES_A_SECOND = 15  # an action lasts four frames of a 60 Hz game
LONGEST = 5 * 60 * FRAMES_A_SECOND
KINDS = (".gif", ".mp4")


def check(path: Path) -> None:
    """Refuse a film that could not be written, before any work starts."""
    if path.suffix not in KINDS:
        raise ValueError(f"--video {path}: films are written as {' or '.join(KINDS)}")
    if path.suffix == ".mp4" and shutil.which("ffmpeg") is None:
        raise ValueError(f"--video {path}: mp4 needs the program ffmpeg, which is not installed; .gif needs nothing")


def episode(policy: Policy, protocol: Protocol, env: str, seed: int) -> Iterator[np.ndarray[Any, Any]]:
    """The screens `[H, W, 3]` of one episode."""
    world = watched(protocol.world(env))
    fits(policy, world, env)
    rng, states = np.random.default_rng(seed), black(policy.obs_spec, 1)
    seen = world.reset(int(rng.integers(2**30)))
    for _ in range(LONGEST):
        yield world.screen()
        if seen.end[0] in (TERMINATED, TRUNCATED):
            break
        actions = policy.act(stacked(states, seen), rng)
        if rng.random() < protocol.epsilon:
            actions = rng.integers(policy.obs_spec.num_actions, size=1)
        world.send(actions)
        seen = world.recv()
    world.close()


def watched(world: EnvConfig) -> Any:
    """One environment that shows its screen."""
    if world.is_atari:
        from rbi.envs.atari import AtariScreen

        return AtariScreen(world)
    from rbi.envs.gym import GymVector

    return GymVector(world, 1, render=True)


def write(path: Path, screens: Iterator[np.ndarray[Any, Any]]) -> int:
    """Write a film, whole or not at all; how many screens it has."""
    check(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    taken = list(screens)
    runs.write_whole(path, lambda at: (as_gif if path.suffix == ".gif" else as_mp4)(at, taken))
    return len(taken)


def as_gif(path: Path, screens: list[np.ndarray[Any, Any]]) -> None:
    first, *others = [Image.fromarray(screen) for screen in screens]
    duration = 1000 // FRAMES_A_SECOND
    first.save(path, format="GIF", save_all=True, append_images=others, duration=duration, loop=0)


def as_mp4(path: Path, screens: list[np.ndarray[Any, Any]]) -> None:
    height, width = screens[0].shape[:2]
    given = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", str(FRAMES_A_SECOND), "-i", "-"]
    even = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p", "-f", "mp4"]
    command = ["ffmpeg", "-y", "-loglevel", "error", *given, *even, str(path)]
    done = subprocess.run(command, input=b"".join(s.tobytes() for s in screens), capture_output=True, check=False)
    if done.returncode:
        raise ValueError(f"{path}: ffmpeg failed ({done.stderr.decode(errors='replace').strip().splitlines()[-1]})")
