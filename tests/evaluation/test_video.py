"""Videos: rendered episodes, written as GIF."""

import numpy as np
import pytest
import torch

from rbi.evaluation import video
from rbi.evaluation.rollouts import Protocol
from rbi.networks import NetworkConfig, make_networks
from rbi.observations import ObservationSpec
from rbi.policy import Policy
from rbi.rules.types import Behavior
from tests.streams import Doors


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
