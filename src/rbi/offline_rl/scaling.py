"""Numbers of any size: networks learn from standardised ones, and are turned into networks for the numbers as they are.

    x' = (x - shift) / scale         what a network for vectors sees while it learns
    R' = (R - mean) / spread         what its Q learns

The first layer is W x' before its batch norm, so that W / scale takes x, and what batch norm has seen moves by
W shift / scale; the heads of Q are multiplied by the spread, and its value moves by the mean.
"""

from typing import NamedTuple

import numpy as np
import torch

from rbi.data.episode import Array
from rbi.data.sampler import Sampler
from rbi.networks import Layer, Networks, PolicyNetwork, QNetwork
from rbi.offline_rl.behavior_q import frozen


class Scaling(NamedTuple):
    """`shift`, `scale`: `[size]` of a vector, in float64; None for pictures, which stay as they are."""

    shift: Array | None
    scale: Array | None
    mean: float
    spread: float


def scaling_of(sampler: Sampler) -> Scaling:
    """Mean and standard deviation of what a sampler draws; what never changes keeps its size.

    Where a state is several vectors, those before the first are zeros, so that zero must stay zero: no shift then.
    """
    known = sampler.candidates if sampler.complete is None else sampler.candidates[sampler.complete[sampler.candidates]]
    returns = sampler.returns[known].double().cpu().numpy()
    mean, spread = float(returns.mean()), float(returns.std()) or 1.0
    if sampler.data.spec.is_image:
        return Scaling(None, None, mean, spread)
    seen = sampler.frames[sampler.frame_index[sampler.candidates]].double().cpu().numpy()
    shift = seen.mean(0) if sampler.stack == 1 else np.zeros(seen.shape[1])
    scale = np.sqrt(np.square(seen - shift).mean(0))
    smallest = 1e-6 * np.abs(seen).max(0)  # below that it is rounding
    return Scaling(shift, np.where(scale > smallest, scale, np.maximum(smallest * 1e6, 1.0)), mean, spread)


def scale(sampler: Sampler, by: Scaling) -> None:
    """Let a sampler draw standardised numbers from now on. Its vectors are copied; those on disk stay what they are."""
    sampler.returns.copy_((sampler.returns.double() - by.mean) / by.spread)
    if by.shift is not None and by.scale is not None:
        shift, size = (torch.from_numpy(part).to(sampler.frames.device) for part in (by.shift, by.scale))
        sampler.frames = ((sampler.frames.double() - shift) / size).float()


def unscaled(networks: Networks, by: Scaling) -> Networks:
    """Networks for numbers as they are, from networks that learned standardised ones: a copy."""
    found = frozen(networks)
    assert found.pi is not None
    for net in (found.pi, found.q):
        look_at_numbers_as_they_are(net, by, networks.obs_spec.stack)
    heads = found.q.heads
    with torch.no_grad():
        heads.weight.mul_(by.spread)
        heads.bias.mul_(by.spread)
        heads.bias[-1] += by.mean
    return found


def look_at_numbers_as_they_are(net: PolicyNetwork | QNetwork, by: Scaling, stack: int) -> None:
    """Change the first layer of a network for vectors."""
    if by.shift is None or by.scale is None:
        return
    layer, device = net.trunk.layers[0], net.hidden.weight.device
    assert isinstance(layer, Layer)
    assert layer.norm is not None
    assert layer.norm.running_mean is not None
    shift, size = (torch.from_numpy(np.tile(part, stack)).to(device) for part in (by.shift, by.scale))
    with torch.no_grad():
        weight = layer.weight.double() / size
        layer.weight.copy_(weight)
        layer.norm.running_mean.add_((weight @ shift).float())
