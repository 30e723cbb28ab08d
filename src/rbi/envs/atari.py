"""Atari games through ale-py's C++ vector environment: the only importer of ale_py."""

from typing import Any

import numpy as np

from rbi.envs.seam import Seen, World
from rbi.returns import GOES_ON, LIFE_LOST, TERMINATED, TRUNCATED

STACK = 4
INSTALL = "Atari games need ale-py: pip install 'rbi[atari]'"


def game_of(id_: str) -> str:
    """The emulator's name of a game.

    >>> game_of("ALE/SpaceInvaders-v5")
    'space_invaders'
    """
    camel = id_.removeprefix("ALE/").rsplit("-v", 1)[0]
    return "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(camel))


class AtariVector:
    """Grey 84 x 84 frames, one for each four of the emulator's (the larger of the last two), raw rewards."""

    frame = (84, 84)
    stack = STACK

    def __init__(self, world: World, players: int, threads: int = 0) -> None:
        try:
            import ale_py
            from ale_py import roms
            from ale_py.vector_env import AtariVectorEnv
        except ImportError:
            raise ValueError(INSTALL) from None
        game = game_of(world.id)
        if game not in set(roms.get_all_rom_ids()):
            known = ", ".join(sorted(roms.get_all_rom_ids()))
            raise ValueError(f"--env {world.id}: no such Atari game; ale-py has {known}")
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.world, self.players = world, players
        self.envs = AtariVectorEnv(
            game,
            players,
            num_threads=threads,
            max_num_frames_per_episode=world.max_frames,
            repeat_action_probability=world.sticky,
            noop_max=world.no_ops,
            stack_num=1,  # we stack ourselves, so only the newest frame travels
            reward_clipping=False,
            episodic_life=False,  # it would reset the whole game at each lost life
        )
        self.actions = int(self.envs.single_action_space.n)
        self.lives = np.zeros(players, dtype=np.int64)
        self.over = np.zeros(players, dtype=bool)
        self.moving = False

    def reset(self, seed: int) -> Seen:
        frames, info = self.envs.reset(seed=seed)
        self.lives, self.over = info["lives"], np.zeros(self.players, dtype=bool)
        none = np.zeros(self.players)
        return Seen(frames[:, 0], np.ones(self.players, dtype=bool), none.astype(np.float32), none.astype(np.uint8))

    def send(self, actions: np.ndarray[Any, Any]) -> None:
        self.moving = True
        self.envs.send(actions)

    def recv(self) -> Seen:
        self.moving = False
        frames, rewards, terminated, truncated, info = self.envs.recv()
        first, lives = self.over, info["lives"]
        fewer = (lives < self.lives) & ~first
        end = np.where(terminated, TERMINATED, np.where(truncated, TRUNCATED, np.where(fewer, LIFE_LOST, GOES_ON)))
        self.lives, self.over = lives, terminated | truncated
        return Seen(frames[:, 0], first, rewards.astype(np.float32), end.astype(np.uint8))

    def state(self) -> bytes | None:
        return None  # the vector environment shows no state of its emulators

    def restore(self, state: bytes) -> None:
        raise ValueError(f"{self.world.id}: an Atari run goes on at the start of new episodes, not within them")

    def screen(self) -> np.ndarray[Any, Any]:
        raise NotImplementedError("watch an Atari game through AtariScreen")

    def close(self) -> None:
        self.envs.close()
