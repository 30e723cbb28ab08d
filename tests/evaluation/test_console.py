"""At the console a player sees and does what it would in the vector environment."""

import numpy as np

from rbi import envs
from rbi.envs.atari import FrameByFrame
from rbi.envs.types import EnvConfig
from rbi.evaluation.console import AtConsole
from rbi.evaluation.recording import PerturbedPolicy
from rbi.evaluation.scripted import FollowBallPolicy, RandomPolicy
from rbi.observations import roll_stacks

GAME = "ALE/Breakout-v5"


class Remembers:
    """Keeps what it is shown, and does as it was told."""

    def __init__(self, actions, told):
        self.actions, self.told, self.states = actions, list(told), []

    def predict_proba(self, states):
        self.states.append(states[0].copy())
        return np.eye(self.actions)[[self.told.pop(0)]]


def test_the_pictures_are_those_of_the_vector_environment():
    told = np.random.default_rng(0).integers(4, size=40).tolist()
    mind = Remembers(4, told)
    game, player, rng = FrameByFrame(GAME, 7), AtConsole(PerturbedPolicy("p", mind)), np.random.default_rng(0)
    for _ in range(4 * 40):
        game.act(player(game, rng))
    worlds = envs.make(EnvConfig(GAME, noop_max=0), 1)
    seen = worlds.reset(7)
    states = np.zeros((1, 4, 84, 84), np.uint8)
    for t in range(40):
        roll_stacks(states, seen.obs, seen.is_first)
        gap = np.abs(states[0, -1].astype(int) - mind.states[t][-1].astype(int))
        assert (gap > 2).mean() < 0.01  # the vector environment serves by itself at a reset, so the ball may differ
        worlds.send(np.array([told[t]]))
        seen = worlds.recv()
    worlds.close()


def test_actions_are_held_for_four_frames_and_come_late_by_the_delay():
    told = [2, 3, 2, 3, 2, 3]
    for delay in (0, 2):
        game, rng = FrameByFrame(GAME, 1), np.random.default_rng(0)
        player = AtConsole(PerturbedPolicy("p", Remembers(4, told), action_delay=delay))
        done = [player(game, rng) for _ in range(24)]
        needed = game.needed()
        expected = ([0] * delay + [needed[a] for a in told])[:6]
        assert done == [action for action in expected for _ in range(4)]


def test_who_leaves_says_so():
    game, rng = FrameByFrame(GAME, 1), np.random.default_rng(0)
    player = AtConsole(PerturbedPolicy("p", RandomPolicy(4), abandon_rate=1.0))
    assert [player(game, rng) is None for _ in range(5)] == [False] * 4 + [True]


def test_who_follows_the_ball_scores_at_the_console_too():
    game, rng = FrameByFrame(GAME, 3), np.random.default_rng(0)
    player = AtConsole(PerturbedPolicy("p", FollowBallPolicy(GAME, 4)))
    assert sum(game.act(player(game, rng)) for _ in range(1500)) >= 5
