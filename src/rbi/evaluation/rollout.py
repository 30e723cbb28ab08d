"""How episodes are played: the protocol, what players see of them, which policies can."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from rbi.envs import Seen, VectorEnv, World
from rbi.policy import Policy
from rbi.sight import Sight

Name = Literal["paper", "modern"]


@dataclass(frozen=True)
class Protocol:
    """How episodes are played. `str` says it in words, for every table."""

    name: Name
    epsilon: float = 0.0
    """Probability of a random action instead of the policy's."""
    max_frames: int = 108_000
    """Emulator frames after which an Atari episode is cut off."""

    def __post_init__(self) -> None:
        if self.max_frames < 1:
            raise ValueError(f"max_frames = {self.max_frames}: must be at least 1")
        if not 0 <= self.epsilon <= 1:
            raise ValueError(f"epsilon = {self.epsilon}: must lie in [0, 1]")

    def world(self, env: str) -> World:
        """The environment as the protocol wants it."""
        if self.name == "modern":
            return World(env, max_frames=self.max_frames, sticky=0.25, no_ops=0)
        return World(env, max_frames=self.max_frames, sticky=0.0, no_ops=30)

    def told(self, env: str) -> str:
        """One line for people."""
        draw = "actions drawn from the policy" + (f", random with probability {self.epsilon:g}" if self.epsilon else "")
        if not World(env).atari:
            return f"{draw}; the environment's own limits"
        world = self.world(env)
        start = f"up to {world.no_ops} no-ops at the start" if world.no_ops else "no no-ops"
        return f"{draw}; {start}, sticky actions {world.sticky:g}, {world.max_frames:,} frames at most, raw scores"


def black(sight: Sight, players: int) -> np.ndarray[Any, Any]:
    """States `[N, stack, *frame]` in which nothing is seen yet."""
    return np.zeros((players, sight.stack, *sight.frame), np.uint8 if sight.pictures else np.float32)


def stacked(states: np.ndarray[Any, Any], seen: Seen) -> np.ndarray[Any, Any]:
    """Move every player's stack of frames, `[N, stack, *frame]`, on by what was seen; new episodes begin in black."""
    states[:, :-1] = states[:, 1:]
    states[seen.first, :-1] = 0
    states[:, -1] = seen.frame
    return states


def fits(policy: Policy, world: VectorEnv, env: str) -> None:
    """Refuse a policy that was learned in another kind of world."""
    of_world = replace(policy.sight, frame=world.frame, stack=world.stack, actions=world.actions)
    if policy.sight != of_world:
        learned = f" ({policy.env})" if policy.env else ""
        raise ValueError(
            f"--env {env}: gives frames {world.frame} and {world.actions} actions, but the policy{learned} sees "
            f"{policy.sight.frame} and chooses among {policy.sight.actions}"
        )
