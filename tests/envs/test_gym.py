"""Gymnasium environments side by side, beside the same environments stepped by hand."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rbi.envs import make
from rbi.envs.gym import GymVector
from rbi.envs.types import EnvConfig
from rbi.returns import CONTINUES, TERMINATED, TRUNCATED

PLAYERS = 3


class Odd(gymnasium.Env):
    """Pictures, actions counted from -1, and in each step the reward is the action; over when it is 1."""

    observation_space = spaces.Box(0, 255, (6, 5, 3), np.uint8)
    action_space = spaces.Discrete(3, start=-1)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.seen = np.zeros((6, 5, 3), dtype=np.uint8)
        return self.seen, {}

    def step(self, action):
        self.seen = self.seen + 1
        return self.seen, float(action), bool(action == 1), False, {}


class Numbered(Odd):
    """States counted from 5, and something inside that cannot be copied."""

    observation_space = spaces.Discrete(4, start=5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.uncopied = lambda: None
        return np.int64(7), {}


class Flat(Odd):
    """A matrix of floats is no picture."""

    observation_space = spaces.Box(-1, 1, (2, 3), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        return np.linspace(-1, 1, 6).reshape(2, 3), {}


for kind in (Odd, Numbered, Flat):
    gymnasium.register(f"RbiTests/{kind.__name__}-v0", kind, max_episode_steps=4)


@pytest.fixture
def worlds():
    """Makes environments and gives them back at the end."""
    made = []

    def world(id_, players=PLAYERS):
        made.append(GymVector(EnvConfig(id_), players))
        return made[-1]

    yield world
    for each in made:
        each.close()


def by_hand(id_, player, seed, actions):
    """What one player sees, as plain Gymnasium tells it: (observation, first, reward, end) a moment."""
    env = gymnasium.make(id_)
    seen = [(env.reset(seed=seed + player)[0], True, 0.0, CONTINUES)]
    for action in actions:
        if seen[-1][3] != CONTINUES:
            seen.append((env.reset()[0], True, 0.0, CONTINUES))  # the action is not taken
            continue
        observation, reward, terminated, truncated, _ = env.step(action)
        seen.append((observation, False, reward, TERMINATED if terminated else TRUNCATED if truncated else CONTINUES))
    env.close()
    return seen


def played(world, seed, actions):
    """All moments that a world shows for actions `[T, N]`."""
    shown = [world.reset(seed)]
    for row in actions:
        world.send(row)
        shown.append(world.recv())
    return shown


def drawn_actions(world, steps, seed=0):
    return np.random.default_rng(seed).integers(world.num_actions, size=(steps, world.num_envs))


def alike(one, other):
    return all(np.array_equal(x, y) for a, b in zip(one, other, strict=True) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("id_", ["CartPole-v1", "FrozenLake-v1", "MountainCar-v0"])
def test_players_see_what_their_environments_show_and_final_frames_come_before_first_ones(worlds, id_):
    world = worlds(id_)
    actions = drawn_actions(world, 250)
    shown = played(world, 11, actions)
    for player in range(PLAYERS):
        for moment, (observation, first, reward, end) in zip(
            shown, by_hand(id_, player, 11, actions[:, player]), strict=True
        ):
            frame = np.eye(16)[observation] if id_ == "FrozenLake-v1" else observation
            assert np.array_equal(moment.obs[player], frame)
            assert (moment.is_first[player], moment.reward[player], moment.end[player]) == (first, reward, end)
    assert sum(moment.end.any() for moment in shown) >= 1


def test_what_is_seen_has_the_types_of_the_seam(worlds):
    for moment in played(worlds("CartPole-v1"), 0, np.zeros((12, PLAYERS), dtype=np.int64)):
        assert [array.dtype for array in moment] == [np.float32, bool, np.float32, np.uint8]
        assert moment.obs.shape == (PLAYERS, 4)


def test_a_fallen_pole_ends_the_game_where_a_time_limit_cuts_it_off(worlds):
    fallen = played(worlds("CartPole-v1", 1), 0, np.zeros((15, 1), dtype=np.int64))
    assert TERMINATED in [moment.end[0] for moment in fallen]
    late = played(worlds("MountainCar-v0", 1), 0, np.ones((201, 1), dtype=np.int64))
    assert [moment.end[0] for moment in late[1:200]] == [CONTINUES] * 199
    assert (late[200].end[0], late[200].reward[0], late[200].is_first[0]) == (TRUNCATED, -1, False)
    assert (late[201].end[0], late[201].reward[0], late[201].is_first[0]) == (CONTINUES, 0, True)


def test_a_seed_gives_the_same_lives_again(worlds):
    world = worlds("CartPole-v1")
    actions = drawn_actions(world, 60)
    first = played(world, 5, actions)
    assert alike(first, played(world, 5, actions))
    assert alike(first, played(worlds("CartPole-v1"), 5, actions))
    assert not alike(first, played(world, 6, actions))


@pytest.mark.parametrize("id_", ["CartPole-v1", "FrozenLake-v1"])
def test_restored_environments_between_send_and_recv_goes_on_as_if_nothing_had_happened(worlds, id_):
    world, restored = worlds(id_), worlds(id_)
    actions = drawn_actions(world, 80)
    played(world, 1, actions[:30])
    restored.reset(99)
    world.send(actions[30])
    saved = world.state()
    assert isinstance(saved, bytes)
    restored.restore(saved)
    assert restored.pending
    rest = [[each.recv()] for each in (world, restored)]
    for row in actions[31:]:
        for each, shown in zip((world, restored), rest, strict=True):
            each.send(row)
            shown.append(each.recv())
    assert alike(*rest)
    assert any(moment.is_first.any() for moment in rest[0])


def test_a_world_moves_between_send_and_recv(worlds):
    world = worlds("CartPole-v1")
    world.reset(0)
    assert not world.pending
    world.send(np.zeros(PLAYERS, dtype=np.int64))
    assert world.pending
    world.recv()
    assert not world.pending


def test_numbered_states_are_seen_as_zeros_and_a_one(worlds):
    lake = worlds("FrozenLake-v1")
    assert (lake.obs_shape, lake.frame_stack, lake.num_actions) == ((16,), 1, 4)
    assert np.array_equal(lake.reset(0).obs, np.eye(16, dtype=np.float32)[[0] * PLAYERS])
    assert worlds("RbiTests/Numbered-v0").reset(0).obs[0].tolist() == [0, 0, 1, 0]  # the third of 5, 6, 7, 8


def test_pictures_stay_bytes_and_four_make_a_state(worlds):
    world = worlds("RbiTests/Odd-v0")
    assert (world.obs_shape, world.frame_stack, world.num_actions) == ((6, 5, 3), 4, 3)
    shown = played(world, 0, np.ones((3, PLAYERS), dtype=np.int64))
    assert shown[0].obs.dtype == np.uint8
    assert [moment.obs.max() for moment in shown] == [0, 1, 2, 3]


def test_actions_are_counted_from_zero_wherever_the_environment_starts(worlds):
    shown = played(worlds("RbiTests/Odd-v0"), 0, np.array([[0, 1, 2]]))
    assert shown[1].reward.tolist() == [-1, 0, 1]
    assert shown[1].end.tolist() == [CONTINUES, CONTINUES, TERMINATED]


def test_matrices_of_floats_are_seen_as_vectors(worlds):
    world = worlds("RbiTests/Flat-v0")
    assert (world.obs_shape, world.frame_stack) == ((6,), 1)
    assert np.array_equal(world.reset(0).obs[0], np.linspace(-1, 1, 6, dtype=np.float32))


def test_a_world_that_cannot_be_copied_says_so(worlds):
    world = worlds("RbiTests/Numbered-v0")
    world.reset(0)
    assert world.state() is None


@pytest.mark.parametrize(
    ("id_", "why"),
    [
        ("Pendulum-v1", "only Discrete"),
        ("Blackjack-v1", "only Box"),
        ("NoSuchWorld-v0", "NoSuchWorld"),
        ("CartPole-v99", "v99"),
        ("no_such_module:EnvConfig-v0", "no_such_module"),
        ("not an id", "not an id"),
    ],
)
def test_what_cannot_be_learned_is_refused_by_its_id(id_, why):
    with pytest.raises(ValueError, match=rf"^--env {id_}: .*{why}"):
        GymVector(EnvConfig(id_), 1)


def test_worlds_that_are_no_atari_games_come_from_gymnasium():
    world = make(EnvConfig("CartPole-v1"), 2)
    assert isinstance(world, GymVector)
    assert world.num_envs == 2
    world.close()


@pytest.mark.parametrize(
    "bad",
    [dict(max_frames=0), dict(repeat_action_probability=-0.1), dict(repeat_action_probability=1.5), dict(noop_max=-1)],
    ids=str,
)
def test_worlds_that_make_no_sense_are_refused_by_name(bad):
    ((name, value),) = bad.items()
    with pytest.raises(ValueError, match=f"^{name} = {value}"):
        EnvConfig("CartPole-v1", **bad)
