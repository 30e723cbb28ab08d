"""Worlds to act in, behind one seam."""

from rbi.envs.types import EnvConfig, TimeStep, VectorEnv

__all__ = ["TimeStep", "VectorEnv", "EnvConfig", "check", "make"]


def make(world: EnvConfig, players: int, threads: int = 0, *, at_once: bool = False) -> VectorEnv:
    """Environments side by side: Atari games in C++ threads, all others through Gymnasium.

    `threads`: of the emulator, 0 for one a core. `at_once`: games do not move while other work is done.
    """
    if world.atari:
        from rbi.envs.atari import AtariVector

        return AtariVector(world, players, threads, at_once=at_once)
    from rbi.envs.gym import GymVector

    return GymVector(world, players)


def check(world: EnvConfig) -> None:
    """Refuse an environment that does not exist or cannot be learned, without making many of them."""
    if world.atari:
        from rbi.envs import atari

        atari.check(world.id)
    else:
        make(world, 1).close()
