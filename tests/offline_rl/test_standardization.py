"""Standardised training data, and networks converted back to raw observations and returns."""

import numpy as np
import pytest
import torch

from rbi.data.dataset import Dataset
from rbi.data.episode import DatasetSpec
from rbi.data.sampler import Sampler, SamplerConfig, flat_frames
from rbi.networks import make_networks, offline_network
from rbi.observations import ObservationSpec
from rbi.offline_rl import behavior_q
from rbi.offline_rl.behavior_q import BehaviorQ, BehaviorQConfig, fit_standardization, standardize, unstandardize
from tests.data.episodes import episode

NETS = offline_network(16, 0.0, 0.0)


def seeded():
    return torch.Generator().manual_seed(0)


def far_off(rng, frame, **more):
    """An episode with observations of very different scales and large rewards."""
    found = episode(rng, 9, frame=frame, **more)
    observations = found.observations
    if len(frame) == 1:
        observations = (observations * np.array([1e-3, 1, 1e4, 0]) + np.array([5, -300, 2e4, 7])).astype(np.float32)
    return type(found)(observations, found.actions, 1e3 * found.rewards + 400, found.terminated, found.truncated)


@pytest.mark.parametrize(("frame", "stack"), [((4,), 1), ((4,), 3), ((10, 10), 4)])
def test_unstandardized_networks_predict_the_same_from_raw_observations(frame, stack):
    rng = np.random.default_rng(0)
    data = Dataset.from_episodes([far_off(rng, frame) for _ in range(8)], DatasetSpec(frame, 4, stack))
    raw, scaled = (Sampler(data, SamplerConfig(batch_size=16, clip_rewards=False), seeded()) for _ in range(2))
    by = fit_standardization(scaled)
    standardize(scaled, by)
    fit = BehaviorQ(
        BehaviorQConfig(learning_rate=0.01, network=NETS),
        make_networks(ObservationSpec(frame, stack, 4), NETS, 0),
        scaled,
        seeded(),
    )
    for _ in range(30):
        fit.update()
    fit.networks.eval()
    plain = unstandardize(fit.networks, by)
    steps = torch.from_numpy(raw.usable)
    with torch.no_grad():
        inside, outside = (fit.obs_spec.preprocess(s.batch(steps).states, torch.float32) for s in (scaled, raw))
        torch.testing.assert_close(plain.pi(outside), fit.networks.pi(inside), rtol=1e-2, atol=1e-2)
        expected = by.mean + by.std * fit.networks.q(inside)[0]
        torch.testing.assert_close(plain.q(outside)[0], expected, rtol=1e-2, atol=0.01 * by.std)
    np.testing.assert_allclose(by.mean + by.std * scaled.returns.numpy(), raw.returns.numpy(), rtol=1e-4, atol=1e-2)
    assert data.arrays["observations"].flags.writeable is False


@pytest.mark.parametrize("stack", [1, 3])
def test_blocks_of_rows_do_not_change_the_standardization(stack, monkeypatch):
    rng = np.random.default_rng(0)
    data = Dataset.from_episodes([far_off(rng, (4,)) for _ in range(8)], DatasetSpec((4,), 4, stack))
    config = SamplerConfig(batch_size=16, clip_rewards=False)
    found = []
    for rows in (1 << 16, 7):
        monkeypatch.setattr(behavior_q, "BLOCK_ROWS", rows)
        sampler = Sampler(data, config, seeded(), episodes=[0, 2, 3, 6])
        by = fit_standardization(sampler)
        standardize(sampler, by)
        found.append((by, sampler.frames))
    (whole, frames), (parts, frames_of_parts) = found
    used = sampler.frame_index[sampler.candidates]
    seen = flat_frames(data)[used].double().numpy()
    np.testing.assert_allclose(whole.shift, seen.mean(0) if stack == 1 else np.zeros(4), rtol=1e-12)
    np.testing.assert_allclose(whole.scale[:3], np.sqrt(np.square(seen - whole.shift).mean(0))[:3], rtol=1e-12)
    np.testing.assert_allclose(parts.shift, whole.shift, rtol=1e-12)
    np.testing.assert_allclose(parts.scale, whole.scale, rtol=1e-12)
    torch.testing.assert_close(frames_of_parts, frames)


def test_standardized_data_has_mean_0_and_std_1_and_constants_stay_finite():
    rng = np.random.default_rng(0)
    data = Dataset.from_episodes([far_off(rng, (4,), final=False) for _ in range(50)], DatasetSpec((4,), 4))
    sampler = Sampler(data, SamplerConfig(), seeded())
    standardize(sampler, fit_standardization(sampler))
    frames = sampler.frames.double()
    torch.testing.assert_close(frames.mean(0), torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-3)
    torch.testing.assert_close(frames.std(0)[:3], torch.ones(3, dtype=torch.float64), rtol=1e-2, atol=0)
    assert frames[:, 3].abs().max() < 1e-6
    assert float(sampler.returns.mean()) == pytest.approx(0, abs=1e-5)
    assert float(sampler.returns.std()) == pytest.approx(1, abs=1e-2)


def test_incomplete_returns_do_not_affect_standardization():
    rng = np.random.default_rng(0)
    whole = [far_off(rng, (4,)) for _ in range(4)]
    cut = [far_off(rng, (4,), end="truncated") for _ in range(4)]
    config = SamplerConfig(keep_incomplete=True)
    both = fit_standardization(Sampler(Dataset.from_episodes(whole + cut, DatasetSpec((4,), 4)), config, seeded()))
    alone = fit_standardization(Sampler(Dataset.from_episodes(whole, DatasetSpec((4,), 4)), config, seeded()))
    assert (both.mean, both.std) == pytest.approx((alone.mean, alone.std))
