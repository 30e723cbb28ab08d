"""Atari games through ale-py's C++ vector environment; only this module and its worker processes import ale_py."""

import difflib
import functools
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rbi import gpu
from rbi.envs.atari_workers import SKIP, EmulatorProcesses, SeparateEmulators, num_workers
from rbi.envs.types import EnvConfig, TimeStep
from rbi.steps import CONTINUES, LIFE_LOST, TERMINATED, TRUNCATED

STACK = 4
FRAME, SCREEN = (84, 84), (210, 160)
INSTALL = "Atari games need ale-py: pip install 'rbi[atari]'"


def game_of(id_: str) -> str:
    """The emulator's name of a game, from its Gymnasium id.

    >>> game_of("ALE/SpaceInvaders-v5")
    'space_invaders'
    """
    camel = id_.removeprefix("ALE/").rsplit("-v", 1)[0]
    return "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(camel))


def check(id_: str) -> str:
    """The emulator's name of a game; raises ValueError for one that it does not have."""
    try:
        from ale_py import roms
    except ImportError:
        raise ValueError(INSTALL) from None
    game, known = game_of(id_), sorted(roms.get_all_rom_ids())
    if game not in known:
        near = difflib.get_close_matches(game, known, n=3, cutoff=0.4)
        raise ValueError(f"--env {id_}: no such Atari game" + (f"; did you mean {', '.join(near)}?" if near else ""))
    return game


def id_like(name: str) -> str:
    """The id of the game that has this name elsewhere, such as PongNoFrameskip-v4; empty for no game, or without
    ale-py. It is not imported: its own environments would be registered, with names like this one."""
    found = importlib.util.find_spec("ale_py")
    places = [Path(place) for place in found.submodule_search_locations or ()] if found else []
    games = [file.stem.title().replace("_", "") for place in places for file in place.glob("roms/*.bin")]
    asked = re.sub(r"(NoFrameskip|Deterministic)?(-v\d+)?$", "", name).lower()
    return next((f"ALE/{game}-v5" for game in games if game.lower() == asked), "")


def settings_of(config: EnvConfig) -> dict[str, Any]:
    """Settings of ale-py's vector environment: raw rewards, one frame at a time, whole games."""
    return {
        "max_num_frames_per_episode": config.max_frames,
        "repeat_action_probability": config.repeat_action_probability,
        "noop_max": config.noop_max,
        "stack_num": 1,  # frames are stacked by the agent, so only the newest one is copied
        "reward_clipping": False,
        "episodic_life": False,  # it would reset the whole game at each lost life
    }


def emulators(config: EnvConfig, num_envs: int, threads: int = 0, **changes: Any) -> Any:
    """ale-py's vector environment in this process."""
    game = check(config.id)
    import ale_py
    from ale_py.vector_env import AtariVectorEnv

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    return AtariVectorEnv(game, num_envs, num_threads=threads, **(settings_of(config) | changes))


def count_actions(config: EnvConfig) -> int:
    """The number of actions of a game."""
    return int(emulators(config, 1, 1).single_action_space.n)


@functools.cache
def action_names(id_: str) -> tuple[str, ...]:
    """Names of a game's actions, in order: NOOP, FIRE, RIGHT, LEFT for Breakout."""
    return tuple(action.name for action in console(id_).getMinimalActionSet())


@functools.cache
def screen_shape(id_: str) -> tuple[int, ...]:
    """Height and width of a game's screen: 210 x 160 pixels but for a few games."""
    return tuple(console(id_).getScreenDims())


def console(id_: str) -> Any:
    """An emulator with a game."""
    game = check(id_)
    import ale_py
    from ale_py import roms

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    emulator = ale_py.ALEInterface()
    rom = roms.get_rom_path(game)
    assert rom is not None
    emulator.loadROM(rom)
    return emulator


class AtariVector:
    """Atari games: greyscale 84 x 84 frames, frame skip 4 with the maximum of the last two, raw rewards."""

    obs_shape: tuple[int, ...] = FRAME
    frame_stack = STACK
    obs_scale: tuple[float, ...] = ()
    has_action_masks = False

    def __init__(
        self,
        config: EnvConfig,
        num_envs: int,
        threads: int = 0,
        *,
        synchronous: bool = False,
        separate: bool = False,
        for_gpu: bool = False,
        workers: int | None = None,
    ) -> None:
        """`synchronous`: games step inside `send`; faster where they share cores with the agent.

        `separate`: games that are stopped are not stepped. `for_gpu`: frames are whole screens, which a GPU shrinks
        (`rbi.observations.shrink`) in less time than the emulators' cores, and lie in page-locked memory. `workers`:
        processes that run the emulators; 0 runs them in this process. By default there are as many as threads where
        games are many and threads are more than one. Frames then last until the second next step.
        """
        self.config, self.num_envs, self.synchronous, self.separate = config, num_envs, synchronous, separate
        if workers is None:
            workers = 0 if synchronous else num_workers(num_envs, threads)
        game, settings = check(config.id), settings_of(config)
        self.frame_shape = self.obs_shape
        self.unlock: Callable[[], Any] = lambda: None
        if for_gpu and screen_shape(config.id) == SCREEN:
            self.frame_shape = SCREEN
            settings |= {"img_height": SCREEN[0], "img_width": SCREEN[1]}
        if workers:
            shape = self.frame_shape
            self.envs: Any = EmulatorProcesses(game, num_envs, workers, settings, shape, separate=separate)
            if for_gpu:
                self.unlock = gpu.lock_pages(self, self.envs.shared.memory)
            self.num_actions = count_actions(config)
        elif separate:
            self.envs = SeparateEmulators(game, num_envs, settings)
            self.num_actions = count_actions(config)
        else:
            self.envs = emulators(config, num_envs, threads, **settings)
            self.num_actions = int(self.envs.single_action_space.n)
        self.no_masks = np.ones((num_envs, 0), dtype=bool)
        self.received: Any = None
        self.lives = np.zeros(num_envs, dtype=np.int64)
        self.over, self.stopped = (np.zeros(num_envs, dtype=bool) for _ in range(2))
        self.pending = False

    def reset(self, seed: int | None) -> TimeStep:
        if self.pending:
            self.recv()
        frames, info = self.envs.reset(seed=seed)
        self.lives, self.over = info["lives"], np.zeros(self.num_envs, dtype=bool)
        self.stopped[:] = False
        zeros = np.zeros(self.num_envs)
        is_first = np.ones(self.num_envs, dtype=bool)
        return TimeStep(frames[:, 0], is_first, zeros.astype(np.float32), zeros.astype(np.uint8), self.no_masks)

    def send(self, actions: np.ndarray[Any, Any]) -> None:
        self.pending = True
        self.envs.send(np.where(self.stopped, SKIP, actions) if self.separate else actions)
        if self.synchronous:
            self.received = self.envs.recv()

    def recv(self) -> TimeStep:
        self.pending = False
        frames, rewards, terminated, truncated, info = self.received if self.synchronous else self.envs.recv()
        is_first, lives = self.over, info["lives"]
        life_lost = (lives < self.lives) & ~is_first
        end = np.where(
            terminated, TERMINATED, np.where(truncated, TRUNCATED, np.where(life_lost, LIFE_LOST, CONTINUES))
        )
        self.lives, self.over = lives, terminated | truncated
        return TimeStep(frames[:, 0], is_first, rewards.astype(np.float32), end.astype(np.uint8), self.no_masks)

    def stop(self, env_index: int) -> None:
        self.stopped[env_index] = True

    def state(self) -> None:
        return None  # ale-py's vector environment does not expose its emulators' state

    def restore(self, _state: Any) -> bool:
        return False

    def close(self) -> None:
        self.unlock()
        self.envs.close()


class AtariScreen:
    """One Atari game for videos, stepped together with a copy of it in colour: same seed, same actions."""

    def __init__(self, config: EnvConfig) -> None:
        self.grey = AtariVector(config, 1)
        self.coloured = emulators(config, 1, img_height=210, img_width=160, grayscale=False)
        self.obs_shape, self.frame_stack = self.grey.obs_shape, self.grey.frame_stack
        self.num_actions = self.grey.num_actions
        self.image = np.zeros((210, 160, 3), dtype=np.uint8)

    def reset(self, seed: int | None) -> TimeStep:
        self.image = self.coloured.reset(seed=seed)[0][0, 0]
        return self.grey.reset(seed)

    def send(self, actions: np.ndarray[Any, Any]) -> None:
        self.coloured.send(actions)
        self.grey.send(actions)

    def recv(self) -> TimeStep:
        self.image = self.coloured.recv()[0][0, 0]
        return self.grey.recv()

    def screen(self) -> np.ndarray[Any, Any]:
        """The current screen, uint8 `[210, 160, 3]`."""
        return self.image

    def close(self) -> None:
        self.coloured.close()
        self.grey.close()
