"""Worlds to act in, behind one seam."""

from rbi.envs.seam import Seen, VectorEnv, World

__all__ = ["Seen", "VectorEnv", "World", "make"]


def make(world: World, players: int, threads: int = 0) -> VectorEnv:
    """Environments side by side: Atari games in C++ threads, all others through Gymnasium."""
    if world.atari:
        from rbi.envs.atari import AtariVector

        return AtariVector(world, players, threads)
    from rbi.envs.gym import GymVector

    return GymVector(world, players)
