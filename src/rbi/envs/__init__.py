"""Vectorised environments: Atari through ale-py's C++ threads, all others through Gymnasium."""

from rbi.envs.types import EnvConfig, EnvFactory, TimeStep, VectorEnv, id_from_file

__all__ = [
    "EnvConfig",
    "EnvFactory",
    "TimeStep",
    "VectorEnv",
    "action_names",
    "check",
    "has_numbered_states",
    "id_from_file",
    "make",
]


def make(
    config: EnvConfig,
    num_envs: int,
    threads: int = 0,
    *,
    processes: int = 0,
    synchronous: bool = False,
    separate: bool = False,
    for_gpu: bool = False,
) -> VectorEnv:
    """Make `num_envs` environments.

    `threads`: emulator threads of Atari games (0: one per core). `synchronous`: Atari games step inside `send` instead
    of in the background; faster where agent and games share the cores. `separate`: Atari games that are stopped take no
    time, as in other environments; others are stepped all the same. `for_gpu`: Atari games give whole screens
    (`VectorEnv.frame_shape`), which a GPU shrinks in less time than the emulators' cores. `processes`: that step other
    environments in the background (0: they step in `recv`).
    """
    if config.is_atari:
        from rbi.envs.atari import AtariVector

        return AtariVector(config, num_envs, threads, synchronous=synchronous, separate=separate, for_gpu=for_gpu)
    if processes:
        from rbi.envs.gym_workers import GymWorkers

        return GymWorkers(config, num_envs, min(processes, num_envs))
    from rbi.envs.gym import GymVector

    return GymVector(config, num_envs)


def has_numbered_states(config: EnvConfig) -> bool:
    """Whether observations are the numbers of states (`gymnasium.spaces.Discrete`); False if there is no such
    environment or it has no observation space, which `check` explains."""
    if config.is_atari:
        return False
    from rbi.envs.gym import has_numbered_states

    return has_numbered_states(config)


def action_names(env: str, count: int) -> tuple[str, ...]:
    """Names of the actions of an Atari game, such as FIRE and LEFT; empty for other environments, or without ale-py."""
    if not env.startswith("ALE/"):
        return ()
    from rbi.envs import atari

    try:
        names = atari.action_names(env)
    except ValueError:  # no such game here
        return ()
    return names if len(names) == count else ()


def check(config: EnvConfig) -> None:
    """Raise ValueError for an environment that does not exist or that is not supported, at little cost."""
    if config.is_atari:
        from rbi.envs import atari

        atari.check(config.id)
    else:
        make(config, 1).close()
