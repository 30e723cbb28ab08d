"""Many policies at play: each by its own rule, on its own players, in games that are made once."""

from collections import Counter
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from rbi import envs
from rbi.envs.types import EnvConfig, TimeStep
from rbi.evaluation.rollouts import Protocol, VectorEvaluator
from rbi.networks import NetworkConfig, make_networks
from rbi.observations import ObservationSpec
from rbi.policy import Policy
from rbi.returns import CONTINUES, TERMINATED, TRUNCATED
from rbi.rules.types import BCQ, Behavior, Greedy, Reroute

ACTIONS = 5
SIGHT = ObservationSpec((3,), 1, ACTIONS)


class Corridors:
    """Player i's episodes last i + 1 steps and pay 1 a step; its frames are numbers drawn anew at each step."""

    num_actions, obs_shape, frame_stack = ACTIONS, (3,), 1

    def __init__(self, _world, players):
        self.num_envs, self.lasts = players, np.arange(players) + 1
        self.resets, self.shown, self.taken, self.closed, self.pending = 0, [], [], False, False

    def seen(self, first, end):
        self.shown.append(self.rng.normal(size=(self.num_envs, 3)).astype(np.float32))
        return TimeStep(self.shown[-1], first, (~first).astype(np.float32), end.astype(np.uint8))

    def reset(self, seed):
        assert not self.pending
        self.resets, self.rng = self.resets + 1, np.random.default_rng(seed)
        self.shown, self.taken = [], []
        self.steps, self.over = np.zeros(self.num_envs, int), np.zeros(self.num_envs, bool)
        return self.seen(np.ones(self.num_envs, bool), np.zeros(self.num_envs))

    def send(self, actions):
        assert actions.shape == (self.num_envs,)
        assert not self.pending
        self.taken.append(actions.copy())
        self.pending = True

    def recv(self):
        assert self.pending
        first, self.pending = self.over, False
        self.steps = np.where(first, 0, self.steps + 1)
        self.over = self.steps == self.lasts
        return self.seen(first, np.where(self.over, TERMINATED, CONTINUES))

    def close(self):
        self.closed = True


def nets(seed, with_policy=True, obs_spec=SIGHT):
    return make_networks(obs_spec, NetworkConfig(16), seed, with_policy=with_policy)


def arena(players, epsilon=0.0, tables=1):
    return VectorEvaluator(Protocol("paper", epsilon), "Corridors-v0", players, Corridors, num_groups=tables)


def generator(seed=0):
    return np.random.default_rng(seed)


def sharing():
    """Five policies that choose one action: three on one pair of networks, two more on others; two by the same rule."""
    shared = nets(0)
    others = [Policy(nets(1), Greedy()), Policy(nets(2, with_policy=False), Greedy())]
    return [Policy(shared, Greedy()), others[0], Policy(shared, BCQ(1.0)), others[1], Policy(shared, Greedy())]


def asked_sizes(networks):
    """The sizes of all batches that a Q-net sees from now on."""
    sizes = []
    networks.q.register_forward_hook(lambda _module, given, _result: sizes.append(len(given[0])))
    return sizes


def at_work(games, player, episodes, table=0):
    """The states that a player showed while it played so many episodes, and the actions taken there.

    An action is chosen at each of its steps, and at each last frame but the very last.
    """
    decisions = episodes * (player + 1) + episodes - 1
    world = games.vector_envs[table]
    assert decisions <= len(world.taken)
    return tuple(np.stack(rows)[:decisions, player] for rows in (world.shown, world.taken))


def begun_by(players, episodes, at_a_table=1000):
    """How many episodes each of a policy's players begins, if whoever is free takes the next: moment by moment."""
    begun = dict.fromkeys(players, 0)
    free_at = dict.fromkeys(players, 0)
    for moment in range(1000):
        for player in players:
            if free_at[player] == moment and sum(begun.values()) < episodes:
                begun[player] += 1
                lasts = player % at_a_table + 1
                free_at[player] = moment + lasts + (begun[player] > 1)  # the last frame is looked at once more
    return {player: count for player, count in begun.items() if count}


def episodes_of(played):
    """How many episodes each player has played."""
    return Counter(outcome.env_index for _, outcome in played)


@pytest.mark.parametrize("players", [1, 2, 5, 8, 12, 23])
@pytest.mark.parametrize("episodes", [1, 4, 7])
def test_every_policy_plays_exactly_the_asked_episodes_whoever_is_free_beginning_the_next(players, episodes):
    played = list(arena(players).evaluate(sharing(), episodes, generator()))
    assert Counter(number for number, _ in played) == dict.fromkeys(range(5), episodes)
    assert all(outcome.score == outcome.steps == outcome.env_index + 1 for _, outcome in played)
    for number in range(5):
        shares = Counter(outcome.env_index for n, outcome in played if n == number)
        place = number % players  # later turns begin at the first player again
        each = players // min(players, 5 - (number - place))
        first = place * each
        assert dict(shares) == begun_by(range(first, first + each), episodes)


@pytest.mark.parametrize("tables", [2, 3])
@pytest.mark.parametrize("episodes", [1, 3, 4, 9, 30])
def test_at_several_tables_policies_play_from_one_pile_of_episodes_each(tables, episodes):
    games = arena(10 * tables, tables=tables)
    played = list(games.evaluate(sharing(), episodes, generator()))
    assert Counter(number for number, _ in played) == dict.fromkeys(range(5), episodes)
    for number in range(5):
        own = [10 * table + 2 * number + i for table in range(tables) for i in range(2)]
        shares = Counter(outcome.env_index for n, outcome in played if n == number)
        assert dict(shares) == begun_by(own, episodes, at_a_table=10)


def test_at_a_table_that_everybody_has_left_nobody_moves():
    games = arena(20, tables=2)
    list(games.evaluate(sharing(), 2, generator()))  # the first table's players begin them all
    assert [len(world.taken) for world in games.vector_envs] == [10, 0]
    list(games.evaluate(sharing(), 3, generator()))  # now each policy's first player of the second table plays one too
    assert [len(world.taken) for world in games.vector_envs] == [10, 9]


def chooses_alone_what_it_chose_at_two_tables(device):
    policies, games = sharing(), arena(20, tables=2)
    for policy in policies:
        policy.to(device)
    count = episodes_of(games.evaluate(policies, 5, generator()))
    assert len(count) > 10
    for player, episodes in count.items():
        table, place = divmod(player, 10)
        states, taken = at_work(games, place, episodes, table)
        assert np.array_equal(taken, policies[place // 2].mode(states))


def test_policies_at_two_tables_choose_what_they_would_choose_alone():
    chooses_alone_what_it_chose_at_two_tables("cpu")


@pytest.mark.gpu
def test_policies_on_a_gpu_choose_at_two_tables_what_they_would_choose_alone():
    chooses_alone_what_it_chose_at_two_tables("cuda")


def test_an_episode_that_was_begun_is_counted_however_long_it_lasts():
    played = list(arena(20).evaluate([Policy(nets(0), Greedy())], 21, generator()))
    assert sorted(outcome.env_index for _, outcome in played) == [0, *range(20)]


def test_more_policies_than_players_take_turns_in_new_games():
    games = arena(2)
    played = list(games.evaluate(sharing(), 3, generator()))
    assert games.vector_envs[0].resets == 3
    turns = [number // 2 for number, _ in played]
    assert turns == sorted(turns)


def test_each_policy_chooses_for_its_own_players_what_it_would_choose_alone():
    policies, games = sharing(), arena(11)
    count = episodes_of(games.evaluate(policies, 5, generator()))
    for player in range(10):
        states, taken = at_work(games, player, count[player])
        assert np.array_equal(taken, policies[player // 2].mode(states))


def test_networks_that_policies_share_are_asked_once_a_step_for_the_players_still_at_work():
    policies = sharing()
    shared, alone = asked_sizes(policies[0].networks), asked_sizes(policies[1].networks)
    games = arena(10)
    list(games.evaluate(policies, 2, generator()))
    players_of = {0: [0, 1, 4, 5, 8, 9], 1: [2, 3]}  # an episode for each, of as many steps as player i's, i + 1
    for sizes, players in ((shared, players_of[0]), (alone, players_of[1])):
        assert sizes == [sum(player + 1 > t for player in players) for t in range(max(players) + 1)]
    assert len(games.vector_envs[0].taken) == 10


def test_policies_of_one_network_at_two_temperatures_are_told_different_betas():
    shared, games = nets(3), arena(20)
    cold, hot = Policy(shared, Behavior(), temperature=1e-4), Policy(shared, Behavior(), temperature=100.0)
    count = episodes_of(games.evaluate([cold, hot], 400, generator()))
    for policy, player, least, most in ((cold, 9, 0.95, 1.0), (hot, 19, 0.0, 0.4)):
        states, taken = at_work(games, player, count[player])
        assert least <= np.mean(taken == policy.mode(states)) <= most


def test_actions_are_drawn_as_often_as_the_policy_says():
    policies, games = [Policy(nets(4), Behavior()), Policy(nets(4), Reroute(0.5, 1.5), 0.1)], arena(40)
    count = episodes_of(games.evaluate(policies, 800, generator()))
    for policy, player in ((policies[0], 19), (policies[1], 39)):
        states, taken = at_work(games, player, count[player])
        probs = policy.predict_proba(states)
        excess = np.eye(ACTIONS)[taken] - probs  # nothing on average, also where an action is probable
        assert (np.abs(excess.sum(0)) < 4 * np.sqrt((probs * (1 - probs)).sum(0))).all()
        assert (np.abs((excess * probs).sum(0)) < 4 * np.sqrt((probs**3 * (1 - probs)).sum(0))).all()


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.0])
def test_the_protocols_share_of_actions_is_random(epsilon):
    policy, games = Policy(nets(5), Greedy()), arena(20, epsilon)
    count = episodes_of(games.evaluate([policy], 2000, generator()))
    states, taken = at_work(games, 19, count[19])
    share = 1 - epsilon + epsilon / ACTIONS
    error = np.sqrt(share * (1 - share) / len(taken))
    assert np.mean(taken == policy.mode(states)) == pytest.approx(share, abs=4 * error + 1e-9)


def test_players_who_are_done_act_at_random():
    games = arena(20)
    list(games.evaluate([Policy(nets(5), Greedy())], 21, generator()))  # the first has two episodes, all others one
    idle = np.concatenate([np.stack(games.vector_envs[0].taken)[player + 1 :, player] for player in range(1, 20)])
    counts = np.bincount(idle, minlength=ACTIONS)
    assert np.abs(counts - len(idle) / ACTIONS).max() < 4 * np.sqrt(len(idle) / ACTIONS)


def test_the_same_generator_gives_the_same_episodes_and_another_gives_others():
    def played(seed):
        with VectorEvaluator(Protocol("paper"), "CartPole-v1", 6) as games:
            obs_spec = ObservationSpec((4,), 1, 2)
            policies = [Policy(nets(s, obs_spec=obs_spec), Behavior()) for s in range(3)]
            return list(games.evaluate(policies, 4, generator(seed)))

    assert played(1) == played(1)
    assert played(1) != played(2)


def short(world, players):
    """Games of 160 frames, 40 steps."""
    return envs.make(replace(world, max_frames=160), players)


@pytest.mark.parametrize(
    ("env", "obs_spec"),
    [
        ("CartPole-v1", ObservationSpec((4,), 1, 2)),
        ("ALE/Breakout-v5", ObservationSpec((84, 84), 4, 4)),
    ],
)
@pytest.mark.parametrize("tables", [1, 2])
def test_an_arena_that_was_left_before_the_end_plays_as_a_new_one(env, obs_spec, tables):
    shared = nets(0, obs_spec=obs_spec)
    policies = [Policy(shared, Greedy(), 0.5), Policy(shared, Behavior())]

    def games():
        return VectorEvaluator(Protocol("paper"), env, 2 * tables, short, num_groups=tables)

    with games() as used, games() as new:
        assert len(list(islice(used.evaluate(policies, 3, generator(1)), 1))) == 1
        again = list(used.evaluate(policies, 3, generator(2)))
        assert again == list(new.evaluate(policies, 3, generator(2)))
    assert Counter(number for number, _ in again) == {0: 3, 1: 3}
    assert all(0 < outcome.steps <= (500 if env == "CartPole-v1" else 40) for _, outcome in again)


@pytest.mark.parametrize(
    ("world", "stop"),
    [
        (EnvConfig("CartPole-v1"), 33),
        (EnvConfig("ALE/Breakout-v5", 200), 33),
        (EnvConfig("ALE/Breakout-v5", 200, repeat_action_probability=0.25), 50),
    ],
)
def test_a_reset_restarts_every_game_wherever_it_stood(world, stop):
    """After 33 steps Atari games are in mid-episode; after 50 they are cut off and would begin anew by themselves."""
    games = envs.make(world, 2)
    actions = generator().integers(games.num_actions, size=(stop, 2))
    lives = []
    for _ in range(2):
        seen = [games.reset(7)]
        for row in actions:
            games.send(row)
            seen.append(TimeStep(*(array.copy() for array in games.recv())))
        lives.append(seen)
    games.close()
    if world.is_atari:
        assert (lives[0][-1].end == TRUNCATED).all() == (stop == 50)
    for before, after in zip(*lives, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_an_arena_closes_its_world_and_refuses_what_it_cannot_play():
    with arena(2) as games:
        with pytest.raises(ValueError, match="episodes = 0: must be at least 1"):
            next(games.evaluate(sharing(), 0, generator()))
        with pytest.raises(ValueError, match="policies: give at least one"):
            next(games.evaluate([], 1, generator()))
        stranger = Policy(nets(0, obs_spec=ObservationSpec((4,), 1, 2)), Greedy(), env="CartPole-v1")
        with pytest.raises(
            ValueError, match=r"--env Corridors-v0: gives frames \(3,\) and 5 actions, but the policy \(Car"
        ):
            next(games.evaluate([*sharing(), stranger], 1, generator()))
        assert games.vector_envs[0].resets == 0
    assert games.vector_envs[0].closed
    with pytest.raises(ValueError, match="num_envs = 0: must be at least 1"):
        arena(0)
