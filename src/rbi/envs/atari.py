"""Atari games through ale-py's C++ vector environment: the only importer of ale_py."""

import difflib
from typing import Any

import numpy as np

from rbi.envs.types import EnvConfig, TimeStep
from rbi.returns import CONTINUES, LIFE_LOST, TERMINATED, TRUNCATED

STACK = 4
INSTALL = "Atari games need ale-py: pip install 'rbi[atari]'"


def game_of(id_: str) -> str:
    """The emulator's name of a game.

    >>> game_of("ALE/SpaceInvaders-v5")
    'space_invaders'
    """
    camel = id_.removeprefix("ALE/").rsplit("-v", 1)[0]
    return "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(camel))


def check(id_: str) -> str:
    """The emulator's name of a game that it has."""
    try:
        from ale_py import roms
    except ImportError:
        raise ValueError(INSTALL) from None
    game, known = game_of(id_), sorted(roms.get_all_rom_ids())
    if game not in known:
        near = difflib.get_close_matches(game, known, n=3, cutoff=0.4)
        raise ValueError(f"--env {id_}: no such Atari game" + (f"; did you mean {', '.join(near)}?" if near else ""))
    return game


def emulators(world: EnvConfig, players: int, threads: int = 0, **changes: Any) -> Any:
    """ale-py's vector environment: raw rewards, one frame at a time, whole games."""
    game = check(world.id)
    import ale_py
    from ale_py.vector_env import AtariVectorEnv

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    settings = {
        "num_threads": threads,
        "max_num_frames_per_episode": world.max_frames,
        "repeat_action_probability": world.sticky,
        "noop_max": world.no_ops,
        "stack_num": 1,  # we stack ourselves, so only the newest frame travels
        "reward_clipping": False,
        "episodic_life": False,  # it would reset the whole game at each lost life
    }
    return AtariVectorEnv(game, players, **(settings | changes))


class AtariVector:
    """Grey 84 x 84 frames, one for each four of the emulator's (the larger of the last two), raw rewards."""

    frame: tuple[int, ...] = (84, 84)
    stack = STACK

    def __init__(self, world: EnvConfig, players: int, threads: int = 0, *, at_once: bool = False) -> None:
        """With `at_once` games have moved when `send` returns: beside a learner on the same cores both are slower."""
        self.world, self.players, self.at_once = world, players, at_once
        self.envs = emulators(world, players, threads)
        self.received: Any = None
        self.actions = int(self.envs.single_action_space.n)
        self.lives = np.zeros(players, dtype=np.int64)
        self.over = np.zeros(players, dtype=bool)
        self.moving = False

    def reset(self, seed: int | None) -> TimeStep:
        frames, info = self.envs.reset(seed=seed)
        self.lives, self.over = info["lives"], np.zeros(self.players, dtype=bool)
        none = np.zeros(self.players)
        return TimeStep(frames[:, 0], np.ones(self.players, dtype=bool), none.astype(np.float32), none.astype(np.uint8))

    def send(self, actions: np.ndarray[Any, Any]) -> None:
        self.moving = True
        self.envs.send(actions)
        if self.at_once:
            self.received = self.envs.recv()

    def recv(self) -> TimeStep:
        self.moving = False
        frames, rewards, terminated, truncated, info = self.received if self.at_once else self.envs.recv()
        first, lives = self.over, info["lives"]
        fewer = (lives < self.lives) & ~first
        end = np.where(terminated, TERMINATED, np.where(truncated, TRUNCATED, np.where(fewer, LIFE_LOST, CONTINUES)))
        self.lives, self.over = lives, terminated | truncated
        return TimeStep(frames[:, 0], first, rewards.astype(np.float32), end.astype(np.uint8))

    def state(self) -> bytes | None:
        return None  # the vector environment shows no state of its emulators

    def restore(self, _state: bytes) -> None:
        raise ValueError(f"{self.world.id}: an Atari run goes on at the start of new episodes, not within them")

    def close(self) -> None:
        self.envs.close()


class AtariScreen:
    """One game, and beside it the same game in colour: same seed, same actions, so the same moments."""

    def __init__(self, world: EnvConfig) -> None:
        self.grey = AtariVector(world, 1)
        self.coloured = emulators(world, 1, img_height=210, img_width=160, grayscale=False)
        self.frame, self.stack, self.actions = self.grey.frame, self.grey.stack, self.grey.actions
        self.picture = np.zeros((210, 160, 3), dtype=np.uint8)

    def reset(self, seed: int | None) -> TimeStep:
        self.picture = self.coloured.reset(seed=seed)[0][0, 0]
        return self.grey.reset(seed)

    def send(self, actions: np.ndarray[Any, Any]) -> None:
        self.coloured.send(actions)
        self.grey.send(actions)

    def recv(self) -> TimeStep:
        self.picture = self.coloured.recv()[0][0, 0]
        return self.grey.recv()

    def screen(self) -> np.ndarray[Any, Any]:
        """The screen `[210, 160, 3]`."""
        return self.picture

    def close(self) -> None:
        self.coloured.close()
        self.grey.close()


class FrameByFrame:
    """One game as the console runs it: 60 frames a second, all 18 actions, none of them repeated by itself.

    Same game, same seed, same actions: the same frames again.
    """

    actions = 18

    def __init__(self, id_: str, seed: int) -> None:
        game = check(id_)
        import ale_py
        from ale_py import roms

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.id, self.seed = id_, seed
        self.emulator = ale_py.ALEInterface()
        self.emulator.setInt("random_seed", seed)
        self.emulator.setInt("frame_skip", 1)
        self.emulator.setFloat("repeat_action_probability", 0.0)
        self.emulator.setInt("max_num_frames_per_episode", 0)  # whoever plays says when it is enough
        rom: Any = roms.get_rom_path(game)  # there is one: it was checked
        self.emulator.loadROM(rom)
        self.emulator.reset_game()

    def act(self, action: int) -> int:
        """Hold the joystick for one frame; the points it brought. Nothing moves once the game is over."""
        if not 0 <= action < self.actions:
            raise ValueError(f"action = {action}: {self.id} has actions from 0 to {self.actions - 1}")
        return int(self.emulator.act(action))

    def screen(self) -> np.ndarray[Any, Any]:
        """`[210, 160, 3]` bytes, in the emulator's own colours."""
        picture: np.ndarray[Any, Any] = self.emulator.getScreenRGB()
        return picture

    def grey(self) -> np.ndarray[Any, Any]:
        """`[210, 160]` bytes: how bright each pixel is."""
        picture: np.ndarray[Any, Any] = self.emulator.getScreenGrayscale()
        return picture

    def needed(self) -> list[int]:
        """The actions that the game knows apart, in the order in which the vector environment numbers them."""
        return [int(action.value) for action in self.emulator.getMinimalActionSet()]

    def colours(self) -> np.ndarray[Any, Any]:
        """`[210, 160]` bytes: which of the console's 128 colours each pixel has."""
        numbers: np.ndarray[Any, Any] = self.emulator.getScreen() >> 1  # the console counts them in twos
        return numbers

    def memory(self) -> np.ndarray[Any, Any]:
        """`[128]` bytes: the console's memory."""
        found: np.ndarray[Any, Any] = self.emulator.getRAM()
        return found

    @property
    def lives(self) -> int:
        return int(self.emulator.lives())

    @property
    def over(self) -> bool:
        return bool(self.emulator.game_over())
