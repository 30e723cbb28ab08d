"""Videos: rendered episodes, written as GIF."""

import gymnasium
import numpy as np
import pytest
import torch

from rbi.evaluation import video
from rbi.evaluation.rollouts import Protocol
from rbi.networks import NetworkConfig, make_networks
from rbi.observations import ObservationSpec
from rbi.policy import Policy
from rbi.rules.types import Behavior
from tests.games import Doors


def test_a_video_shows_an_episode_in_colour(tmp_path):
    policy = Policy(make_networks(ObservationSpec((84, 84), 4, 6), NetworkConfig(8), 0), Behavior(), env="ALE/Pong-v5")
    screens = video.render_episode(policy, Protocol("paper"), "ALE/Pong-v5", 0)
    few = [next(screens) for _ in range(30)]
    assert all(screen.shape == (210, 160, 3) for screen in few)
    assert len(np.unique(few[-1].reshape(-1, 3), axis=0)) >= 4  # background, walls, two paddles
    assert any((few[0] != screen).any() for screen in few)
    assert video.write_video(tmp_path / "video.gif", iter(few)) == 30
    assert (tmp_path / "video.gif").read_bytes()[:6] == b"GIF89a"
    with pytest.raises(ValueError, match=r"videos are written as .gif or .mp4"):
        video.check_format(tmp_path / "video.avi")


@pytest.mark.parametrize("protocol", [Protocol("paper"), Protocol("paper", 1.0), Protocol("paper", deterministic=True)])
def test_a_video_takes_legal_actions_only(protocol):
    """A closed door is an error."""
    policy = Policy(make_networks(ObservationSpec((3,), 1, 5), NetworkConfig(8), 0), Behavior())
    for seed in range(5):
        assert len(list(video.render_episode(policy, protocol, Doors, seed))) == 9


class Lamps(gymnasium.Env):
    """Shows the last of three actions. It never ends."""

    observation_space, action_space = gymnasium.spaces.Box(0, 1, (2,)), gymnasium.spaces.Discrete(3)
    last = 0

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        return np.ones(2, np.float32), {}

    def step(self, action):
        self.last = action
        return np.ones(2, np.float32), 0.0, False, False, {}

    def render(self):
        return np.full((2, 2, 3), self.last, np.uint8)


def lamps(render_mode=None):
    return gymnasium.wrappers.TimeLimit(Lamps(render_mode), 200)


@pytest.mark.parametrize(
    ("protocol", "least", "most"),
    [(Protocol("paper", deterministic=True), 1, 1), (Protocol("paper", 0.3, deterministic=True), 0.7, 0.9),
     (Protocol("paper"), 0.25, 0.5)],
)  # fmt: skip
def test_a_video_shows_the_actions_of_the_protocol_until_the_time_limit(protocol, least, most):
    policy = Policy(make_networks(ObservationSpec((2,), 1, 3), NetworkConfig(8), 0), Behavior())
    _, *images = video.render_episode(policy, protocol, lamps, 0)
    assert len(images) == 200
    share = np.mean([image[0, 0, 0] == policy.mode([[1.0, 1.0]])[0] for image in images])
    assert least <= share <= most


def test_rendered_images_agree_with_observations():
    from rbi.envs.atari import AtariScreen
    from rbi.envs.types import EnvConfig

    game = AtariScreen(EnvConfig("ALE/Pong-v5", repeat_action_probability=0.25))
    seen, rng = game.reset(5), np.random.default_rng(0)
    for _ in range(40):
        grey = game.screen().astype(np.float64) @ [0.299, 0.587, 0.114]
        small = torch.nn.functional.interpolate(torch.from_numpy(grey)[None, None], (84, 84), mode="area")[0, 0].numpy()
        assert np.abs(small - seen.obs[0]).mean() < 4
        game.send(rng.integers(6, size=1))
        seen = game.recv()
