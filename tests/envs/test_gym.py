"""Vectors of Gymnasium environments against the same environments stepped by hand."""

import copy
import importlib.util
import json
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation, RecordEpisodeStatistics, TimeLimit, TransformObservation
from pytest import approx

from rbi.envs import make
from rbi.envs.gym import GymVector
from rbi.envs.types import EnvConfig
from rbi.steps import CONTINUES, TERMINATED, TRUNCATED
from tests.games import Doors

NUM_ENVS = 3


class Odd(gymnasium.Env):
    """Image observations; actions start at -1; the reward is the action, and action 1 terminates."""

    observation_space = spaces.Box(0, 255, (6, 5, 3), np.uint8)
    action_space = spaces.Discrete(3, start=-1)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.image = np.zeros((6, 5, 3), dtype=np.uint8)
        return self.image, {}

    def step(self, action):
        self.image = self.image + 1
        return self.image, float(action), bool(action == 1), False, {}


class Discrete(Odd):
    """Discrete observations that start at 5."""

    observation_space = spaces.Discrete(4, start=5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        return np.int64(7), {}


class Flat(Odd):
    """A matrix of floats, which is not an image."""

    observation_space = spaces.Box(-1, 1, (2, 3), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        return np.linspace(-1, 1, 6).reshape(2, 3), {}


class Sums(Odd):
    """The sum of a random number and all actions."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.total = self.np_random.random(1)
        return self.total, {}

    def step(self, action):
        self.total = self.total + action
        return self.total, *super().step(action)[1:]


class Unseeded(Flat):
    """Observations that no seed determines."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        return np.random.default_rng().random((2, 3)), {}


class Parts(Odd):
    """A Dict of everything that has a fixed length, with a Tuple inside."""

    observation_space = spaces.Dict(
        {
            "room": spaces.Discrete(3, start=1),
            "body": spaces.Tuple([spaces.Box(-1, 1, (2, 1)), spaces.MultiBinary(2)]),
            "gears": spaces.MultiDiscrete([2, 3]),
        }
    )
    observation = {  # noqa: RUF012 (never changed)
        "room": np.int64(3),
        "body": (np.array([[0.5], [-0.25]], np.float32), np.array([1, 0], np.int8)),
        "gears": np.array([0, 1]),
    }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        return copy.deepcopy(self.observation), {}

    def step(self, action):
        return copy.deepcopy(self.observation), *super().step(action)[1:]


class Endless(Parts):
    """Observations without a fixed length."""

    observation_space = spaces.Dict({"seen": spaces.Sequence(spaces.Discrete(2))})


for kind in (Odd, Discrete, Flat, Sums, Unseeded, Parts, Endless):
    gymnasium.register(f"RbiTests/{kind.__name__}-v0", kind, max_episode_steps=4)


@pytest.fixture
def make_envs():
    """Makes environments and closes them at the end."""
    made = []

    def make_env(id_, num_envs=NUM_ENVS):
        made.append(GymVector(EnvConfig(id_), num_envs))
        return made[-1]

    yield make_env
    for each in made:
        each.close()


def by_hand(id_, i, seed, actions):
    """One environment stepped by plain Gymnasium: (observation, is_first, reward, end) of every step."""
    env = gymnasium.make(id_)
    found = [(env.reset(seed=seed + i)[0], True, 0.0, CONTINUES)]
    for action in actions:
        if found[-1][3] != CONTINUES:
            found.append((env.reset()[0], True, 0.0, CONTINUES))  # the action is not taken
            continue
        observation, reward, terminated, truncated, _ = env.step(action)
        found.append((observation, False, reward, TERMINATED if terminated else TRUNCATED if truncated else CONTINUES))
    env.close()
    return found


def rollout(env, seed, actions):
    """All steps of an environment with actions `[T, N]`."""
    steps = [env.reset(seed)]
    for row in actions:
        env.send(row)
        steps.append(env.recv())
    return steps


def random_actions(env, steps, seed=0):
    return np.random.default_rng(seed).integers(env.num_actions, size=(steps, env.num_envs))


def equal(one, other):
    return all(np.array_equal(x, y) for a, b in zip(one, other, strict=True) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("id_", ["CartPole-v1", "FrozenLake-v1", "MountainCar-v0"])
def test_steps_are_those_of_the_environments_with_final_before_first_observations(make_envs, id_):
    env = make_envs(id_)
    actions = random_actions(env, 250)
    steps = rollout(env, 11, actions)
    for i in range(NUM_ENVS):
        for step, (observation, first, reward, end) in zip(steps, by_hand(id_, i, 11, actions[:, i]), strict=True):
            frame = np.eye(16)[observation] if id_ == "FrozenLake-v1" else observation
            assert np.array_equal(step.obs[i], frame)
            assert (step.is_first[i], step.reward[i], step.end[i]) == (first, reward, end)
    assert sum(step.end.any() for step in steps) >= 1


def test_a_stopped_environment_keeps_its_observation_until_the_next_reset_and_the_others_go_on(make_envs):
    env, expected = make_envs("CartPole-v1"), make_envs("CartPole-v1")
    actions = random_actions(env, 60)
    others = np.arange(NUM_ENVS) != 1
    for seed in (3, 4):
        steps = [env.reset(seed), expected.reset(seed)]
        env.stop(1)
        first = steps[0].obs[1].copy()
        for row in actions:
            for each in (env, expected):
                each.send(row)
            steps = [env.recv(), expected.recv()]
            assert all(np.array_equal(a[others], b[others]) for a, b in zip(*steps, strict=True))
            assert np.array_equal(steps[0].obs[1], first)
            assert (steps[0].reward[1], steps[0].end[1], steps[0].is_first[1]) == (0, CONTINUES, False)


def test_time_steps_have_the_documented_types(make_envs):
    for step in rollout(make_envs("CartPole-v1"), 0, np.zeros((12, NUM_ENVS), dtype=np.int64)):
        assert [array.dtype for array in step] == [np.float32, bool, np.float32, np.uint8, bool]
        assert step.obs.shape == (NUM_ENVS, 4)
        assert step.legal.shape == (NUM_ENVS, 0)


def test_termination_and_truncation_are_told_apart(make_envs):
    fallen = rollout(make_envs("CartPole-v1", 1), 0, np.zeros((15, 1), dtype=np.int64))
    assert TERMINATED in [step.end[0] for step in fallen]
    late = rollout(make_envs("MountainCar-v0", 1), 0, np.ones((201, 1), dtype=np.int64))
    assert [step.end[0] for step in late[1:200]] == [CONTINUES] * 199
    assert (late[200].end[0], late[200].reward[0], late[200].is_first[0]) == (TRUNCATED, -1, False)
    assert (late[201].end[0], late[201].reward[0], late[201].is_first[0]) == (CONTINUES, 0, True)


def test_an_episode_that_terminates_at_its_time_limit_is_terminated():
    """Its last state has no value to bootstrap from."""
    vector = GymVector(EnvConfig.of(lambda: TimeLimit(Odd(), 2)), 1)
    assert [step.end[0] for step in rollout(vector, 0, np.array([[1], [2], [1], [1], [1]]))] == [
        CONTINUES, CONTINUES, TERMINATED, CONTINUES, CONTINUES, TRUNCATED,
    ]  # fmt: skip


def test_a_seed_repeats_the_episodes(make_envs):
    env = make_envs("CartPole-v1")
    actions = random_actions(env, 60)
    first = rollout(env, 5, actions)
    assert equal(first, rollout(env, 5, actions))
    assert equal(first, rollout(make_envs("CartPole-v1"), 5, actions))
    assert not equal(first, rollout(env, 6, actions))


@pytest.mark.parametrize("id_", ["CartPole-v1", "FrozenLake-v1", "RbiTests/Sums-v0"])
def test_environments_restored_between_send_and_recv_continue_exactly(make_envs, id_):
    env, restored = make_envs(id_), make_envs(id_)
    actions = random_actions(env, 80)
    rollout(env, 1, actions[:30])
    restored.reset(99)
    env.send(actions[30])
    saved = env.state()
    assert restored.restore(json.loads(json.dumps(saved)))
    assert restored.pending
    assert make_envs(id_).restore(restored.state())  # once more
    rest = [[each.recv()] for each in (env, restored)]
    for row in actions[31:]:
        for each, steps in zip((env, restored), rest, strict=True):
            each.send(row)
            steps.append(each.recv())
    assert equal(*rest)
    assert any(step.is_first.any() for step in rest[0])


def test_a_snapshot_keeps_images_that_the_environment_draws_over():
    class Redrawn(Odd):
        def step(self, _action):
            self.image += 1
            return self.image, 0.0, False, False, {}

    env = GymVector(EnvConfig.of(Redrawn), 2)
    first, before = env.reset(0), env.snapshot()
    env.send(np.zeros(2, int))
    assert env.recv().obs.max() == 1
    assert np.array_equal(before.obs, first.obs)


def test_episodes_that_are_too_long_to_be_taken_again_are_not_restored(make_envs, monkeypatch):
    monkeypatch.setattr("rbi.envs.gym.MAX_REPLAYED", 5)
    env = make_envs("CartPole-v1")
    actions = random_actions(env, 7)
    rollout(env, 0, actions[:5])
    assert env.state() is not None
    rollout(env, 0, actions)
    assert env.state() is None
    assert max(map(len, env.taken)) == 6  # nor kept: an episode may never end


def test_a_reset_begins_new_episodes_whatever_was_before(make_envs):
    env = make_envs("RbiTests/Odd-v0")
    env.reset(0)
    env.stop(0)
    env.send(np.full(NUM_ENVS, 2))  # the action that terminates
    assert env.recv().end.tolist() == [CONTINUES, TERMINATED, TERMINATED]
    env.reset(1)
    env.send(np.zeros(NUM_ENVS, np.int64))
    step = env.recv()
    assert (step.is_first.tolist(), step.reward.tolist()) == ([False] * NUM_ENVS, [-1.0] * NUM_ENVS)


def test_a_step_is_pending_between_send_and_recv(make_envs):
    env = make_envs("CartPole-v1")
    env.reset(0)
    assert not env.pending
    env.send(np.zeros(NUM_ENVS, dtype=np.int64))
    assert env.pending
    env.recv()
    assert not env.pending


def test_discrete_observations_are_one_hot(make_envs):
    lake = make_envs("FrozenLake-v1")
    assert (lake.obs_shape, lake.frame_stack, lake.num_actions) == ((16,), 1, 4)
    assert np.array_equal(lake.reset(0).obs, np.eye(16, dtype=np.float32)[[0] * NUM_ENVS])
    assert make_envs("RbiTests/Discrete-v0").reset(0).obs[0].tolist() == [0, 0, 1, 0]  # the third of 5, 6, 7, 8


@pytest.mark.parametrize(("name", "states"), [("Taxi", 500), ("CliffWalking", 48)])
def test_numbered_states_are_one_hot(make_envs, name, states):
    id_ = max(id_ for id_ in gymnasium.registry if id_.startswith(f"{name}-v"))
    env = make_envs(id_)
    steps = rollout(env, 3, random_actions(env, 5))
    for i in range(NUM_ENVS):
        by_number = [observation for observation, *_ in by_hand(id_, i, 3, random_actions(env, 5)[:, i])]
        assert np.array_equal([step.obs[i] for step in steps], np.eye(states, dtype=np.float32)[by_number])


def test_tuple_and_dict_observations_become_vectors_as_gymnasium_flattens_them(make_envs):
    env = make_envs("RbiTests/Parts-v0")
    assert (env.obs_shape, env.frame_stack) == ((12,), 1)
    expected = spaces.flatten(env.envs[0].observation_space, Parts.observation).astype(np.float32)
    assert sorted(expected) == sorted([0, 0, 1, 0.5, -0.25, 1, 0, 1, 0, 0, 1, 0])
    for step in rollout(env, 0, np.zeros((2, NUM_ENVS), dtype=np.int64)):
        assert step.obs.dtype == np.float32
        assert np.array_equal(step.obs, [expected] * NUM_ENVS)


def board():
    return TransformObservation(Odd(), lambda image: np.minimum(image, 2), spaces.Box(0, 2, (6, 5, 3), np.uint8))


def test_bytes_that_never_reach_255_are_no_images():
    env = GymVector(EnvConfig.of(board), NUM_ENVS)
    assert (env.obs_shape, env.frame_stack) == ((90,), 1)
    steps = rollout(env, 0, np.ones((3, NUM_ENVS), dtype=np.int64))
    assert steps[0].obs.dtype == np.float32
    assert [step.obs.max() for step in steps] == [0, 1, 2, 2]


def test_images_stay_uint8_with_a_frame_stack_of_four(make_envs):
    env = make_envs("RbiTests/Odd-v0")
    assert (env.obs_shape, env.frame_stack, env.num_actions) == ((6, 5, 3), 4, 3)
    steps = rollout(env, 0, np.ones((3, NUM_ENVS), dtype=np.int64))
    assert steps[0].obs.dtype == np.uint8
    assert [step.obs.max() for step in steps] == [0, 1, 2, 3]


CHANNELS_FIRST = spaces.Box(0, 255, (3, 6, 5), np.uint8)


def channels_first():
    return TransformObservation(Odd(), lambda image: np.moveaxis(image, 2, 0), CHANNELS_FIRST)


def frames_stacked():
    return FrameStackObservation(Odd(), 4)


def grey():
    return TransformObservation(Odd(), lambda image: image[:, :, :1], spaces.Box(0, 255, (6, 5, 1), np.uint8))


def two_planes():
    planes = spaces.Box(0, 255, (2, 6, 5), np.uint8)
    return TransformObservation(Odd(), lambda image: np.moveaxis(image[:, :, :2], 2, 0), planes)


LAYOUTS = [
    (channels_first, (6, 5, 3), 4), (frames_stacked, (6, 5, 3), 4), (grey, (6, 5), 4), (two_planes, (6, 5, 2), 1),
]  # fmt: skip


@pytest.mark.parametrize(("factory", "shape", "stack"), LAYOUTS)
def test_images_become_single_frames_with_channels_last(factory, shape, stack):
    env = GymVector(EnvConfig.of(factory), NUM_ENVS)
    assert (env.obs_shape, env.frame_stack) == (shape, stack)
    steps = rollout(env, 0, np.ones((3, NUM_ENVS), dtype=np.int64))
    assert [step.obs.shape for step in steps] == [(NUM_ENVS, *shape)] * 4
    assert [step.obs.max() for step in steps] == [step.obs.min() for step in steps] == [0, 1, 2, 3]


def test_actions_start_at_zero_whatever_the_environments_first_is(make_envs):
    steps = rollout(make_envs("RbiTests/Odd-v0"), 0, np.array([[0, 1, 2]]))
    assert steps[1].reward.tolist() == [-1, 0, 1]
    assert steps[1].end.tolist() == [CONTINUES, CONTINUES, TERMINATED]


def test_matrices_of_floats_are_flattened(make_envs):
    env = make_envs("RbiTests/Flat-v0")
    assert (env.obs_shape, env.frame_stack) == ((6,), 1)
    assert np.array_equal(env.reset(0).obs[0], np.linspace(-1, 1, 6, dtype=np.float32))


def test_an_environment_that_another_source_of_randomness_drives_is_not_restored(make_envs):
    env, restored = make_envs("RbiTests/Unseeded-v0"), make_envs("RbiTests/Unseeded-v0")
    env.reset(0)
    env.send(np.zeros(NUM_ENVS, int))
    assert not restored.restore(env.state())
    assert not restored.pending
    assert restored.reset(1).is_first.all()


@pytest.mark.parametrize("damage", [{"taken": None}, {"taken": [[99]] * 3}, {"over": [True]}, {"random": [{}] * 3}])
def test_a_damaged_state_is_not_restored(damage, make_envs):
    env = make_envs("CartPole-v1")
    env.reset(0)
    env.send(np.zeros(NUM_ENVS, int))
    assert not make_envs("CartPole-v1").restore(env.state() | damage)


@pytest.mark.parametrize(
    ("id_", "why"),
    [
        ("Pendulum-v1", "only Discrete"),
        ("RbiTests/Endless-v0", "no fixed length"),
        ("NoSuchWorld-v0", "NoSuchWorld.* name the module, too: my_module:NoSuchWorld-v0"),
        ("CartPole-v99", "v99"),
        ("CartPole", r"name the version, as in CartPole-v1\. If a function of this name makes it, pass the function"),
        ("no_such_module:EnvConfig-v0", "no_such_module.* PYTHONPATH=. rbi"),
        ("not an id", "not an id"),
    ],
)
def test_unsupported_environments_are_refused_by_their_id(id_, why):
    with pytest.raises(ValueError, match=rf"^--env {id_}: .*{why}"):
        GymVector(EnvConfig(id_), 1)


@pytest.mark.skipif(importlib.util.find_spec("ale_py") is None, reason="needs ale-py")
def test_another_name_of_an_atari_game_is_refused_with_its_id():
    """In another process: here ale_py may have registered the names."""
    code = """
from rbi import envs
for name in ("PongNoFrameskip-v4", "Pong-v5", "pong"):
    try:
        envs.check(envs.EnvConfig(name))
    except ValueError as error:
        print(error)
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.endswith("doesn't exist. Did you mean ALE/Pong-v5?") for line in told] == [True] * 3, told


def test_an_environment_that_is_made_already_is_refused_with_what_to_give():
    with pytest.raises(ValueError, match=r"env is of type TimeLimit: several are made, so give a Gymnasium id or"):
        EnvConfig.of(gymnasium.make("CartPole-v1"))


def test_environments_other_than_atari_come_from_gymnasium():
    env = make(EnvConfig("CartPole-v1"), 2)
    assert isinstance(env, GymVector)
    assert env.num_envs == 2
    env.close()


@pytest.mark.parametrize(
    "bad",
    [dict(max_frames=0), dict(repeat_action_probability=-0.1), dict(repeat_action_probability=1.5), dict(noop_max=-1)],
    ids=str,
)
def test_invalid_environment_settings_are_refused_by_name(bad):
    ((name, value),) = bad.items()
    with pytest.raises(ValueError, match=f"^{name} = {value}"):
        EnvConfig("CartPole-v1", **bad)


def flat(render_mode=None):
    return Flat(render_mode)


def test_a_function_makes_the_environments():
    config = EnvConfig.of(flat)
    env = make(config, 2)
    assert (config.id, config.is_atari, env.obs_shape) == ("flat", False, (6,))
    assert np.array_equal(env.reset(0).obs[1], np.linspace(-1, 1, 6, dtype=np.float32))
    env.close()


@pytest.mark.parametrize(
    ("env", "why"), [(3, "env is of type int"), (lambda: 3, "not a gymnasium.Env"), (lambda: 1 / 0, "zero")]
)
def test_what_makes_no_environment_is_refused(env, why):
    with pytest.raises(ValueError, match=why):
        make(EnvConfig.of(env), 1)


def test_a_function_that_returns_one_environment_again_is_refused():
    one = Flat()
    make(EnvConfig.of(lambda: one), 1).close()
    for again in (lambda: one, lambda: TransformObservation(one, np.copy, one.observation_space)):
        with pytest.raises(ValueError, match="one environment twice; make a new one"):
            make(EnvConfig.of(again), 2)


@pytest.mark.parametrize("reward", [2, np.float64(2), np.array(2.0), np.array([2.0]), Decimal(2)], ids=repr)
def test_a_reward_may_be_any_number_or_an_array_of_one(reward):
    class Rewards(Flat):
        def step(self, action):
            return np.zeros((2, 3)), reward, *super().step(action)[2:]

    _, step = rollout(GymVector(EnvConfig.of(Rewards), 2), 0, np.zeros((1, 2), int))
    assert step.reward.tolist() == [2, 2]


class Rendered(Flat):
    """Renders what the class has as `screen`."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (never changed)
    screen = np.zeros((4, 5, 3), np.uint8)

    def render(self):
        if isinstance(self.screen, Exception):
            raise self.screen
        return self.screen


@pytest.mark.parametrize(
    ("screen", "why"),
    [
        (None, "gave NoneType, not an image"),
        ([Rendered.screen], "gave list, not an image"),
        (np.zeros((4, 5)), r"gave an array \(4, 5\), not an image"),
        (NotImplementedError(), "NotImplementedError"),
        (RuntimeError("no\ndisplay"), "no display"),
    ],
    ids=["nothing", "list", "grey", "not implemented", "error"],
)
def test_an_environment_that_renders_no_images_is_refused_by_its_id(screen, why, monkeypatch):
    env = GymVector(EnvConfig.of(Rendered), 1, render=True)
    env.reset(0)
    first = env.screen()
    assert (first.shape, first.dtype) == ((4, 5, 3), np.uint8)
    monkeypatch.setattr(Rendered, "screen", screen)
    with pytest.raises(ValueError, match=rf"--env Rendered: cannot be rendered; {why}"):
        env.screen()


@pytest.mark.parametrize(
    ("observed", "reward", "error"),
    [
        (np.nan, 0.0, "gave an observation with numbers that are not finite in float32"),
        (1e39, 0.0, "gave an observation with numbers that are not finite in float32"),
        (0.5, -np.inf, "reward = -inf: must be finite in float32"),
        (0.5, np.nan, "reward = nan: must be finite in float32"),
        (0.5, 1e39, "reward = 1e[+]39: must be finite in float32"),
        (0.5, 10**400, "reward = 10+: must be finite in float32"),
        (0.5, None, "reward = None: must be a number"),
        (0.5, "5", "reward = '5': must be a number"),
        (0.5, 1j, "reward = 1j: must be a number"),
    ],
)
def test_observations_and_rewards_that_are_not_finite_numbers_are_named_with_the_environments_id(
    observed, reward, error
):
    class Broken(Flat):
        def step(self, _action):
            return np.full((2, 3), observed), reward, False, False, {}

    env = GymVector(EnvConfig.of(Broken), 2)
    env.reset(0)
    env.send(np.zeros(2, int))
    with pytest.raises(ValueError, match=f"^--env Broken: {error}$"):
        env.recv()


def test_an_error_of_an_environment_has_its_innermost_place_outside_of_libraries():
    def parse(_):
        return Fraction("half")

    line = parse.__code__.co_firstlineno + 1
    for transform, place in ((parse, rf" \(test_gym.py:{line}\)"), (json.loads, "")):
        with pytest.raises(ValueError, match=rf"failed with \w+: .*[^)]{place}$"):
            GymVector(
                EnvConfig.of(lambda made=transform: TransformObservation(Flat(), made, Flat.observation_space)), 1
            )


class Painted(Odd):
    """Images of the bytes 0, 1, 2, ... as another type."""

    def __init__(self, dtype, scale=1):
        super().__init__()
        self.dtype, self.scale = dtype, scale

    def step(self, action):
        image, *rest = super().step(action)
        return (image * float(self.scale)).astype(self.dtype), *rest


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_images_of_another_type_are_bytes_if_they_have_their_values(dtype):
    _, step = rollout(GymVector(EnvConfig.of(lambda: Painted(dtype)), 2), 0, np.ones((1, 2), int))
    assert step.obs.dtype == np.uint8
    assert step.obs.max() == step.obs.min() == 1


@pytest.mark.parametrize(("dtype", "scale"), [(np.float32, 1 / 255), (np.int64, 256), (np.int16, -1), (float, np.nan)])
def test_images_whose_values_are_no_bytes_are_refused_and_not_cut(dtype, scale):
    env = GymVector(EnvConfig.of(lambda: Painted(dtype, scale)), 2)
    env.reset(0)
    env.send(np.ones(2, int))
    with pytest.raises(ValueError, match=f"returned an image of {np.dtype(dtype)} whose values are not those of uint8"):
        env.recv()


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ("CartPole-v1(sutton_barto_reward=__import__('os'))", "arguments such as"),
        ("CartPole-v1(3)", "arguments such as"),
        ("CartPole-v1(wrappers=['NoSuch'])", "NoSuch"),
        ("ALE/Pong-v5(mode=1)", "no arguments"),
    ],
)
def test_arguments_of_an_environment_are_literals_with_names(env, told):
    with pytest.raises(ValueError, match=told):
        make(EnvConfig(env), 1)


def test_numbers_that_the_space_confines_to_less_than_one_get_a_factor(make_envs):
    car = make_envs("MountainCar-v0")
    assert car.obs_scale == approx((1, 1 / 0.07))
    assert not make_envs("FrozenLake-v1").obs_scale
    assert not make_envs("Acrobot-v1").obs_scale


def test_masks_are_those_of_the_environments_and_allow_everything_when_an_episode_is_over():
    vector, rng = GymVector(EnvConfig.of(Doors), 3), np.random.default_rng(0)
    assert vector.has_action_masks
    step = vector.reset(0)
    for _ in range(30):
        open_doors = [env.open for env in vector.envs]
        running = step.end == CONTINUES
        assert np.array_equal(step.legal[running], np.array(open_doors, bool)[running])
        assert step.legal[~running].all()
        before = step.legal.copy()
        vector.send(np.array([rng.choice(np.flatnonzero(legal)) for legal in step.legal]))
        held, step = step.legal, vector.recv()
        assert np.array_equal(held, before)  # a time step stays as it was
        assert step.legal.shape == (3, 5)
        assert step.legal.dtype == bool


def test_after_a_time_limit_the_mask_is_that_of_the_last_state():
    vector = GymVector(EnvConfig.of(lambda: TimeLimit(Doors(), 3)), 20)
    step, ends = vector.reset(0), 0
    for _ in range(12):
        vector.send(step.legal.argmax(1))
        step = vector.recv()
        assert np.array_equal(step.legal, [env.unwrapped.open for env in vector.envs])
        ends += (step.end == TRUNCATED).sum()
    assert ends == 3 * 20


def test_restored_environments_have_the_masks_that_would_have_followed():
    vector, other = (GymVector(EnvConfig.of(Doors), 2) for _ in range(2))
    step = vector.reset(0)
    for _ in range(3):
        vector.send(step.legal.argmax(1))
        step = vector.recv()
    vector.send(step.legal.argmax(1))
    assert other.restore(json.loads(json.dumps(vector.state())))
    assert all(np.array_equal(a, b) for a, b in zip(other.recv(), vector.recv(), strict=True))


class WrongMask(Doors):
    """Doors whose masks are `masks`, of the first reset, of later resets and of steps; None leaves them out."""

    masks = [np.ones(5)] * 3
    terminated = truncated = False
    resets = 0

    def reset(self, **options):
        self.resets += 1
        return super().reset(**options)[0], self.info(min(self.resets, 2) - 1)

    def step(self, _action):
        return np.zeros(3, np.float32), 0.0, self.terminated, self.truncated, self.info(2)

    def info(self, which):
        return {} if self.masks[which] is None else {"action_mask": self.masks[which]}


@pytest.mark.parametrize(
    ("masks", "legal"),
    [([np.eye(5)[0]] * 2 + [None], [True] * 5), ([np.eye(5)[0]] * 2 + [np.zeros(5)], [True] * 5), ([None] * 3, [])],
)
def test_a_terminated_episode_needs_no_mask(masks, legal):
    vector = GymVector(EnvConfig.of(type("Ends", (WrongMask,), {"masks": masks, "terminated": True})), 1)
    vector.reset(0)
    vector.send(np.zeros(1, int))
    assert vector.recv().legal.tolist() == [legal]


def test_a_mask_of_a_terminated_episode_alone_is_ignored():
    ends = {"masks": [None, None, np.ones(5)], "terminated": True}
    vector = GymVector(EnvConfig.of(type("Ends", (WrongMask,), ends)), 1)
    vector.reset(0)
    vector.send(np.zeros(1, int))
    assert vector.recv().legal.shape == (1, 0)


@pytest.mark.parametrize(
    ("masks", "why"),
    [
        ([None, np.ones(5), np.ones(5)], "info has 'action_mask' in some steps and not in others; .*"),
        ([np.ones(5), None, None], "info has 'action_mask' in some steps and not in others; .*"),
        ([np.ones(5), None, np.ones(5)], "info has 'action_mask' in some steps and not in others; .*"),
        ([np.ones(5), np.ones(5), None], "info has 'action_mask' in some steps and not in others; .*"),
        ([np.ones(5), np.ones(5), np.ones(4)], r"info\['action_mask'\] has shape \(4,\) for 5 actions"),
        ([np.ones(5), [0, 0, 0, 0, -np.inf], np.ones(5)], ".* must be booleans or zeros and ones"),
        ([np.ones(5), np.ones(5), [1, 1, 1, 1, 2]], ".* must be booleans or zeros and ones"),
        ([np.ones(5), np.ones(5), [1, 1, 1, 1, np.nan]], ".* must be booleans or zeros and ones"),
        ([np.ones(5), np.zeros(5), np.ones(5)], r"info\['action_mask'\] has no legal action, .*"),
        ([np.ones(5), np.ones(5), np.zeros(5)], r"info\['action_mask'\] has no legal action, .*"),
    ],
)
@pytest.mark.parametrize("truncated", [False, True])
def test_a_mask_that_makes_no_sense_stops_with_the_environments_id(masks, why, truncated):
    """After a time limit, too: the learner bootstraps from the last state."""
    vector = GymVector(EnvConfig.of(type("Wrong", (WrongMask,), {"masks": masks, "truncated": truncated})), 1)
    with pytest.raises(ValueError, match=f"^--env Wrong: failed with ValueError: {why}$"):  # noqa: PT012
        vector.reset(0)
        vector.send(np.zeros(1, int))
        vector.recv()


class OldReset(Flat):
    """`reset` of the old gym API."""

    def reset(self, **given):
        return super().reset(**given)[0]


class OldStep(Flat):
    """`step` of the old gym API."""

    def step(self, action):
        observation, reward, done, _, info = super().step(action)
        return observation, reward, done, info


class OldSeed(Flat):
    """Seeded as in the old gym API."""

    def reset(self):
        return super().reset()[0]


class OldPair(OldReset):
    """An observation that could be taken for two values."""

    observation_space = spaces.Tuple([spaces.Discrete(3), spaces.Discrete(3)])

    def reset(self, **given):
        super().reset(**given)
        return 1, 2


@pytest.mark.parametrize("wrapper", [lambda env: env, RecordEpisodeStatistics], ids=["bare", "wrapped"])
@pytest.mark.parametrize("kind", [OldReset, OldStep, OldSeed, OldPair])
def test_an_environment_of_the_old_gym_api_is_refused_with_the_api_that_it_must_follow(kind, wrapper):
    def old_game():
        return wrapper(kind())

    with pytest.raises(ValueError, match=r"^--env old_game: .*must follow Gymnasium's API: .*\(observation, info\)"):
        rollout(make(EnvConfig.of(old_game), 1), 0, [[0]])


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of Gymnasium
def test_a_registered_environment_of_the_old_gym_api_is_refused_likewise():
    for kind in (OldReset, OldStep):
        gymnasium.register(f"RbiTests/{kind.__name__}-v0", kind, max_episode_steps=4)
        with pytest.raises(ValueError, match=f"^--env RbiTests/{kind.__name__}-v0: .*must follow Gymnasium's API"):
            rollout(make(EnvConfig(f"RbiTests/{kind.__name__}-v0"), 1), 0, [[0]])


class OldEnv:
    """What is no `gymnasium.Env`, as environments of the gym package."""

    reset = step = None


@pytest.mark.parametrize(
    ("factory", "why"),
    [
        (OldEnv, "made OldEnv, not a gymnasium.Env; an environment must follow Gymnasium's API"),
        (lambda: gymnasium.make_vec("CartPole-v1", 2), "made CartPoleVectorEnv, .*; make a single one"),
    ],
)
def test_what_is_nearly_an_environment_is_refused_with_what_to_do(factory, why):
    with pytest.raises(ValueError, match=why):
        make(EnvConfig.of(factory), 1)


def test_spaces_of_another_package_are_refused_with_its_name():
    class Spaces(Flat):
        action_space = OldEnv()

    with pytest.raises(ValueError, match=rf"^--env Spaces: its action_space is a {OldEnv.__module__}.OldEnv; take"):
        make(EnvConfig.of(Spaces), 1)
