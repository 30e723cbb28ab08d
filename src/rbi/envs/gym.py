"""Gymnasium environments with discrete actions. Images stay images, with channels last and without stacked frames; all
other observations, also bytes that never reach 255, become vectors by `gymnasium.spaces.flatten`: discrete ones
one-hot, the parts of Tuple and Dict observations one after the other. Masks of legal actions come from
`info["action_mask"]`."""

import contextlib
import re
import sysconfig
import traceback
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import find_highest_version, load_env_creator
from gymnasium.wrappers import FrameStackObservation

from rbi.config import parse_env
from rbi.envs.types import EnvConfig, TimeStep
from rbi.steps import COLOURS, CONTINUES, MASK, MAX_BYTE, TERMINATED, TRUNCATED, FrameLayout, are_channels_first

Array = np.ndarray[Any, Any]

SMALLEST_BOUND = 1e-6  # numbers that are confined to less are not stretched
GYMNASIUM_API = (
    "an environment must follow Gymnasium's API: reset(seed=None, options=None) returns (observation, info), and "
    "step(action) (observation, reward, terminated, truncated, info). Change these methods, or wrap an environment of "
    "the old gym API, as with shimmy.GymV21CompatibilityV0"
)
OLD_API = re.compile(  # what `returned` and wrappers of Gymnasium say of such an environment
    r"(reset|step) returned |values to unpack \(expected [25]\b|unexpected keyword argument 'seed'|not of the form"
)
LIBRARIES = tuple(  # folders of code that is not the user's, as are all of site-packages
    f"{path}/" for path in (Path(__file__).parents[1], Path(gymnasium.__file__).parent, sysconfig.get_path("stdlib"))
)
MAX_FLOAT32 = float(np.finfo(np.float32).max)
MAX_REPLAYED = 100_000  # steps of an episode that a resumed run takes again; after more it starts new episodes


class GymVector:
    """Gymnasium environments, stepped one after the other in `recv`."""

    def __init__(self, config: EnvConfig, num_envs: int, *, render: bool = False) -> None:
        """`render`: the first environment can be asked for its `screen`."""
        self.config, self.num_envs = config, num_envs
        self.envs: list[gymnasium.Env[Any, Any]] = []
        with contextlib.ExitStack() as refused:  # environments may hold processes or ports
            refused.callback(self.close)
            for number in range(num_envs):
                self.envs.append(make_one(config, render=render and number == 0))
            self.read_spaces()
            refused.pop_all()
        self.legal = np.ones((num_envs, self.num_actions if self.has_action_masks else 0), dtype=bool)
        self.over, self.stopped = (np.zeros(num_envs, dtype=bool) for _ in range(2))
        self.pending = False
        self.actions = np.zeros(num_envs, dtype=np.int64)
        self.starts: list[Any] = [None] * num_envs  # of the running episodes: a seed, or the state of np_random
        self.taken: list[list[int]] = [[] for _ in range(num_envs)]  # their actions
        self.obs: list[Array] = []

    def read_spaces(self) -> None:
        """Observations, actions and masks of the environments. Raises ValueError for those that are not supported."""
        name = f"--env {self.config.id}"
        if len({id(env.unwrapped) for env in self.envs}) < self.num_envs:
            raise ValueError(f"{name}: the function returned one environment twice; make a new one each time")
        with self.errors_named():
            action_space, obs_space = self.envs[0].action_space, self.envs[0].observation_space
        for which, space in {"action_space": action_space, "observation_space": obs_space}.items():
            if not isinstance(space, spaces.Space):
                kind = f"{type(space).__module__}.{type(space).__name__}"
                raise ValueError(f"{name}: its {which} is a {kind}; take one of gymnasium.spaces")
        if not isinstance(action_space, spaces.Discrete):
            raise ValueError(f"{name}: its actions are {action_space}; only Discrete is supported")
        self.num_actions, self.lowest_action = int(action_space.n), int(action_space.start)
        self.obs_space: spaces.Space[Any] = obs_space
        self.layout = image_layout(self.envs[0])
        self.obs_shape, self.frame_stack = shape_and_stack(self.config.id, obs_space, self.layout)
        self.frame_shape = self.obs_shape
        self.obs_scale = scale_by_bounds(obs_space) if len(self.obs_shape) == 1 else ()
        with self.errors_named():
            self.has_action_masks = MASK in returned("reset", 2, self.envs[0].reset(seed=0))[1]

    def reset(self, seed: int | None) -> TimeStep:
        self.over[:], self.stopped[:], self.pending = False, False, False
        with self.errors_named():
            self.obs = [self.start(i, None if seed is None else seed + i) for i in range(self.num_envs)]
        reward, end = np.zeros(self.num_envs, dtype=np.float32), np.full(self.num_envs, CONTINUES, dtype=np.uint8)
        return self.time_step(np.ones(self.num_envs, dtype=bool), reward, end)

    def start(self, i: int, start: Any) -> Array:
        """The first observation of a new episode; `start`: a seed, a state of np_random, or None to go on as it is."""
        env, random = self.envs[i].unwrapped, random_state(self.envs[i])
        if isinstance(start, dict):
            env.np_random = np.random.default_rng(0)
            env.np_random.bit_generator.state = start
        self.starts[i], self.taken[i] = random if start is None else start, []
        seed = start if isinstance(start, int) else None
        observation, info = returned("reset", 2, self.envs[i].reset(seed=seed))
        self.read_mask(i, info, terminated=False)
        return self.read(observation)

    def send(self, actions: Array) -> None:
        self.pending = True
        self.actions[:] = actions

    def recv(self) -> TimeStep:
        self.pending = False
        is_first, rewards = self.over.copy(), [0.0] * self.num_envs
        end = np.full(self.num_envs, CONTINUES, dtype=np.uint8)
        columns = self.actions, self.actions.tolist(), is_first.tolist(), self.stopped.tolist()
        with self.errors_named():
            for i, (action, number, begins, stopped) in enumerate(zip(*columns, strict=True)):
                if stopped:
                    continue
                if begins:
                    self.obs[i] = self.start(i, None)
                    continue
                stepped = self.envs[i].step(action + self.lowest_action)
                observation, r, terminated, truncated, info = returned("step", 5, stepped)
                rewards[i] = np.asarray(r).item()  # some environments return an array of one number
                end[i] = TERMINATED if terminated else TRUNCATED if truncated else CONTINUES
                self.obs[i] = self.read(observation)
                self.read_mask(i, info, terminated=bool(terminated))
                if len(self.taken[i]) <= MAX_REPLAYED:  # episodes may never end
                    self.taken[i].append(number)
        self.over = end != CONTINUES
        return self.time_step(is_first, self.as_rewards(rewards), end)

    def stop(self, env_index: int) -> None:
        self.stopped[env_index] = True

    def time_step(self, is_first: Array, reward: Array, end: Array) -> TimeStep:
        """The newest observations; raises ValueError if one of them is not finite in float32."""
        obs = np.array(self.obs)
        if not (obs.dtype == np.uint8 or np.isfinite(obs).all()):
            raise ValueError(f"--env {self.config.id}: gave an observation with numbers that are not finite in float32")
        return TimeStep(obs, is_first, reward, end, self.legal.copy())

    def as_rewards(self, given: list[Any]) -> Array:
        """Rewards as float32 `[N]`; raises ValueError for one that is no number, or is not finite in float32."""
        try:
            fits = min(given) >= -MAX_FLOAT32 and max(given) <= MAX_FLOAT32
        except TypeError:  # None, texts
            fits = False
        if fits and np.isfinite(rewards := np.array(given, dtype=np.float32)).all():  # min and max may miss NaN
            return rewards
        fitting = (hasattr(reward, "__float__") and -MAX_FLOAT32 <= reward <= MAX_FLOAT32 for reward in given)
        reward = given[list(fitting).index(False)]
        wanted = "finite in float32" if hasattr(reward, "__float__") else "a number"
        raise ValueError(f"--env {self.config.id}: reward = {reward!r}: must be {wanted}")

    @contextlib.contextmanager
    def errors_named(self) -> Iterator[None]:
        """Turn an exception inside an environment into a ValueError of one line with the environment's id."""
        try:
            yield
        except Exception as error:
            message = " ".join(str(error).split())
            advice = f"; {GYMNASIUM_API}" if OLD_API.search(message) else ""
            failed = f"failed with {type(error).__name__}: {message}{place_in_user_code(error)}{advice}"
            raise ValueError(f"--env {self.config.id}: {failed}") from error

    def read(self, observation: Any) -> Array:
        """One frame: an image with channels last, anything else as a flat float32 vector."""
        if self.layout is not None:
            obs = self.layout.single_frames(as_bytes(observation)[None])[0]
        elif isinstance(self.obs_space, spaces.Box):  # as `flatten`, which would also cast to the space's own dtype
            obs = as_float32(observation).reshape(-1)
        else:
            obs = as_float32(spaces.flatten(self.obs_space, observation))
        if obs.shape != self.obs_shape:
            raise ValueError(f"returned an observation of shape {obs.shape} where its space says {self.obs_shape}")
        return obs

    def read_mask(self, i: int, info: dict[str, Any], *, terminated: bool) -> None:
        """Take the legal actions from an environment's info. A terminated episode needs none; after a time limit the
        learner bootstraps from the legal actions of the last state."""
        mask = info.get(MASK)
        if (mask is not None) != self.has_action_masks and not terminated:
            raise ValueError(f"info has {MASK!r} in some steps and not in others; only a terminated episode needs none")
        if not self.has_action_masks:
            return
        given = np.ones(self.num_actions) if mask is None else np.asarray(mask)
        legal = given.astype(bool)
        if legal.shape != (self.num_actions,):
            raise ValueError(f"info[{MASK!r}] has shape {legal.shape} for {self.num_actions} actions")
        if not np.array_equal(legal, given):
            raise ValueError(f"info[{MASK!r}] = {given.tolist()}: must be booleans or zeros and ones")
        if not legal.any() and not terminated:
            raise ValueError(f"info[{MASK!r}] has no legal action, and the episode has not terminated")
        self.legal[i] = legal if legal.any() else True

    def snapshot(self) -> "Snapshot":
        """What `state` needs, at little cost, to be written later."""
        taken = [(actions, len(actions)) for actions in self.taken]
        random = [random_state(env) for env in self.envs]
        return Snapshot(list(self.starts), taken, random, list(self.obs), self.over.copy(), self.actions.copy())

    def state(self) -> dict[str, Any] | None:
        return self.snapshot().state()

    def restore(self, state: Any) -> bool:
        """Takes the actions of the running episodes again, which is exact if all randomness is np_random's."""
        try:
            self.obs = [self.replay(i, state) for i in range(self.num_envs)]
            same = [random_state(env) for env in self.envs] == state["random"]
            for obs, checksum, over in zip(self.obs, state["obs"], state["over"], strict=True):
                same &= over or zlib.crc32(obs.tobytes()) == checksum
            if same:
                self.over[:], self.actions[:] = state["over"], state["actions"]
        except Exception:  # whatever the environments raise, or an odd state makes NumPy raise
            same = False
        self.pending = same
        return same

    def replay(self, i: int, state: Any) -> Array:
        """The observation after a saved episode's actions; an episode that is over needs its random state only."""
        over = state["over"][i]
        obs = self.start(i, state["random"][i] if over else state["starts"][i])
        if over:
            self.envs[i].unwrapped.np_random.bit_generator.state = state["random"][i]
            return obs
        for action in state["taken"][i]:
            obs = self.read(self.envs[i].step(action + self.lowest_action)[0])
            self.taken[i].append(action)
        return obs

    def screen(self) -> Array:
        """The first environment's screen, uint8 `[H, W, 3]`."""
        try:
            image: Any = self.envs[0].render()
        except Exception as error:  # whatever the environment raises
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"--env {self.config.id}: cannot be rendered; {reason}") from error
        if not isinstance(image, np.ndarray) or image.ndim != 3 or image.shape[2] != COLOURS:
            found = f"an array {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
            raise ValueError(f"--env {self.config.id}: cannot be rendered; gave {found}, not an image [H, W, 3]")
        return image.astype(np.uint8)

    def close(self) -> None:
        for env in self.envs:
            env.close()


class Snapshot(NamedTuple):
    """The running episodes of a `GymVector` at one time."""

    starts: list[Any]
    taken: list[tuple[list[int], int]]
    """The actions of each, to which later steps append, and their number at that time."""
    random: list[dict[str, Any] | None]
    obs: list[Array]
    over: Array
    actions: Array

    def state(self) -> dict[str, Any] | None:
        """What `GymVector.restore` takes, as JSON can hold it; None if an episode is too long, or its random numbers
        are not NumPy's."""
        if None in self.random or None in self.starts or max(count for _, count in self.taken) > MAX_REPLAYED:
            return None
        return {
            "starts": self.starts,
            "taken": [actions[:count] for actions, count in self.taken],
            "random": self.random,
            "obs": [zlib.crc32(obs.tobytes()) for obs in self.obs],
            "over": self.over.tolist(),
            "actions": self.actions.tolist(),
        }


def place_in_user_code(error: Exception) -> str:
    """The innermost line of an error's traceback that is not a library's, such as " (mymod.py:9)"; empty if all are."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(("<", *LIBRARIES)) and "site-packages" not in frame.filename:
            return f" ({Path(frame.filename).name}:{frame.lineno})"
    return ""


def random_state(env: gymnasium.Env[Any, Any]) -> dict[str, Any] | None:
    """The state of an environment's random numbers, as JSON can hold it; None if they are not NumPy's."""
    generator = getattr(env.unwrapped.np_random, "bit_generator", None)
    return None if generator is None or generator.state["bit_generator"] != "PCG64" else generator.state


def make_one(config: EnvConfig, *, render: bool = False) -> gymnasium.Env[Any, Any]:
    """One Gymnasium environment, by its id or from the config's factory."""
    settings: dict[str, Any] = {"render_mode": "rgb_array"} if render else {}
    try:
        env = config.factory(**settings) if config.factory else make_by_id(config.id, settings)
    except Exception as error:  # whatever its constructor raises
        message = " ".join(str(error).split())
        from rbi.envs import atari

        missing = isinstance(error, gymnasium.error.NameNotFound)
        if missing and (game := atari.id_like(config.id)):
            message += f" Did you mean {game}?"
        elif config.factory is None and (config.id.isidentifier() or config.id == "<lambda>"):
            message += " If a function of this name makes it, pass the function (Python: env=)"
        elif missing and ":" not in config.id:
            message += f" If a module of yours registers it, name the module, too: my_module:{config.id}"
        elif isinstance(error, ModuleNotFoundError) and ":" in config.id:  # the command does not look into its folder
            message += " Its folder has to be in PYTHONPATH, as in PYTHONPATH=. rbi ..."
        raise ValueError(f"--env {config.id}: {message}") from None
    if not isinstance(env, gymnasium.Env):
        is_vector, is_like = isinstance(env, gymnasium.vector.VectorEnv), hasattr(env, "reset") and hasattr(env, "step")
        advice = "; make a single one: they are stepped together here" if is_vector else f"; {GYMNASIUM_API}" * is_like
        raise ValueError(f"--env {config.id}: the function made {type(env).__name__}, not a gymnasium.Env{advice}")
    return env


def returned(method: str, count: int, values: Any) -> Any:
    """What a method of an environment returned. Raises ValueError unless it has the parts that it has in Gymnasium."""
    if isinstance(values, tuple | list) and len(values) == count and isinstance(values[-1], Mapping):
        return values
    kinds = [type(each).__name__ for each in (values if isinstance(values, tuple | list) else [values])]
    raise ValueError(f"{method} returned {', '.join(kinds)}")


def make_by_id(text: str, settings: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """A registered environment with the arguments and wrappers that its text names."""
    id_, arguments = parse_env(text)
    if id_.isidentifier() and id_ not in gymnasium.registry:  # Gymnasium would take the newest version of this name
        newest = find_highest_version(None, id_)
        if newest is not None:
            raise ValueError(f"name the version, as in {id_}-v{newest}.")
    wrappers = arguments.pop("wrappers", [])
    env: gymnasium.Env[Any, Any] = gymnasium.make(id_, **(arguments | settings))
    for item in wrappers:
        name, keywords = (item, {}) if isinstance(item, str) else item
        if keywords is None:
            raise ValueError(f"the arguments of the wrapper {name} are not known; make the environment in Python")
        wrapper: Any = load_env_creator(name) if ":" in name else getattr(gymnasium.wrappers, name)
        env = wrapper(env, **keywords)
    return env


def as_bytes(image: Any) -> Array:
    """A copy of an image as uint8, since the environment may draw over it. Raises ValueError for other values."""
    given = np.asarray(image)
    with np.errstate(invalid="ignore"):  # NaN
        found = given.astype(np.uint8)
    if given.dtype != np.uint8 and not np.array_equal(found, given):
        raise ValueError(f"returned an image of {given.dtype} whose values are not those of uint8, as its space says")
    return found


def as_float32(values: Any) -> Array:
    given = np.asarray(values)
    if given.dtype == np.float32:
        return given.copy()
    with np.errstate(over="ignore"):  # infinite values are refused by `time_step`
        return given.astype(np.float32)


def image_layout(env: gymnasium.Env[Any, Any]) -> FrameLayout | None:
    """How observations become single images with channels last, as in data sets; None where they are no images."""
    space = env.observation_space
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) not in (2, 3, 4):
        return None
    if not (space.high == MAX_BYTE).any():  # a board of zeros and ones would be nearly black
        return None
    stacked = any(isinstance(layer, FrameStackObservation) for layer in wrappers_of(env))
    if len(space.shape) == 4:
        return FrameLayout(channels_first=True, stacked=True) if stacked else None
    channels_first = len(space.shape) == 3 and (stacked or are_channels_first(space.shape, if_unclear=False))
    return FrameLayout(channels_first, stacked and channels_first)


def wrappers_of(env: gymnasium.Env[Any, Any]) -> Iterator[gymnasium.Env[Any, Any]]:
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env


def shape_and_stack(id_: str, space: spaces.Space[Any], layout: FrameLayout | None) -> tuple[tuple[int, ...], int]:
    """The shape of one frame, and the frames in one observation: 4 for images, 1 for anything else."""
    if layout is not None:
        assert space.shape is not None
        return layout.single_frames(np.empty((1, *space.shape), dtype=np.uint8)).shape[1:], layout.frame_stack(
            space.shape
        )
    if not space.is_np_flattenable:
        raise ValueError(f"--env {id_}: its observations are {space}, which have no fixed length as vectors")
    return (spaces.flatdim(space),), 1


def scale_by_bounds(space: spaces.Space[Any]) -> tuple[float, ...]:
    """Factors that stretch those numbers of a flattened space to [-1, 1] that its bounds confine to less; empty if all
    are 1.

    >>> low, high = np.float32([[-0.5, -2.0, -np.inf], [0.25, 2.0, np.inf]])
    >>> scale_by_bounds(spaces.Box(low, high))
    (2.0, 1.0, 1.0)
    """
    flat = spaces.flatten_space(space)
    assert isinstance(flat, spaces.Box)
    largest = np.maximum(np.abs(flat.low), np.abs(flat.high)).astype(np.float64).reshape(-1)
    scale = np.divide(1.0, largest, out=np.ones_like(largest), where=(largest > SMALLEST_BOUND) & (largest < 1))
    return () if (scale == 1).all() else tuple(scale.tolist())


def has_numbered_states(config: EnvConfig) -> bool:
    try:
        env = make_one(config)
    except ValueError:
        return False
    with contextlib.closing(env):
        try:
            return isinstance(env.observation_space, spaces.Discrete)
        except Exception:  # whatever a property of the environment raises; `GymVector.read_spaces` says it
            return False
