"""Many policies at once, each in its own environments: one call per time step, on a GPU one CUDA graph."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from rbi.data.visits import VisitCounts
from rbi.envs.types import TimeStep
from rbi.gpu import SideStream, capture_graph
from rbi.observations import roll_stacks
from rbi.policy import Policy
from rbi.rules.types import uses_counts
from rbi.statistics import Array
from rbi.steps import legal_or_none

INVALID_ACTION = -1  # of a policy whose probabilities are NaN


class PolicyGroups(NamedTuple):
    """Environments that share work: each pair is a policy and the environments `[n]` that it computes for."""

    forward: list[tuple[Policy, Array]]
    """One forward pass each: their policies have the same networks and temperature."""
    improve: list[tuple[Policy, Array]]
    """One improvement step each: their policies have the same rule, whatever their networks."""


def group_policies(policies: Sequence[Policy] | Mapping[int, Policy], policy_of: Array, active: Array) -> PolicyGroups:
    """Group active environments by what their policies have in common; `policy_of` `[N]`: each environment's policy."""
    forward: dict[Any, list[int]] = {}
    improve: dict[Any, list[int]] = {}
    for number in np.unique(policy_of[active]).tolist():
        policy = policies[number]
        counts = number if uses_counts(policy.rule) else None  # counts belong to one policy
        forward.setdefault((id(policy.networks), policy.temperature), []).append(number)
        improve.setdefault((id(policy.rule), policy.c_greedy, counts), []).append(number)
    return PolicyGroups(
        *(
            [(policies[numbers[0]], np.flatnonzero(active & np.isin(policy_of, numbers))) for numbers in alike.values()]
            for alike in (forward, improve)
        )
    )


class BatchedPolicies:
    """Frame stacks of all environments on a device; probabilities and actions of all policies in one call.

    On a GPU everything is one CUDA graph: policies of several seeds are hundreds of small kernels per step, which take
    longer to launch one by one than the environments take to step. Groups run on parallel streams, and only the newest
    frames are copied to the device. Visits of states are looked up on the CPU, which no graph can contain.
    """

    def __init__(
        self,
        groups: PolicyGroups,
        num_envs: int,
        device: torch.device,
        *,
        deterministic: bool = False,
        has_action_masks: bool = False,
    ) -> None:
        networks, obs_spec = (policy.networks for policy, _ in groups.forward), groups.forward[0][0].obs_spec
        dtype = torch.uint8 if obs_spec.is_image else torch.float32
        self.device, self.deterministic = device, deterministic
        self.set_groups(groups)
        self.states = torch.zeros((num_envs, obs_spec.stack, *obs_spec.shape), dtype=dtype, device=device)
        inputs = (
            torch.zeros((num_envs, *obs_spec.shape), dtype=dtype),
            torch.zeros(num_envs, dtype=torch.bool),
            torch.ones((num_envs, obs_spec.num_actions if has_action_masks else 0), dtype=torch.bool),
            torch.zeros((num_envs, 1), dtype=torch.float64),
        )
        on_gpu = device.type == "cuda"
        self.host = [tensor.pin_memory() if on_gpu else tensor for tensor in inputs]
        self.inputs = [tensor.to(device) if on_gpu else tensor for tensor in self.host]
        self.frame, self.first, masks, self.uniform = self.inputs
        self.legal: torch.Tensor | None = legal_or_none(masks)
        precision = functools.reduce(torch.promote_types, (next(net.parameters()).dtype for net in networks))
        shape = (num_envs, obs_spec.num_actions)
        self.beta, self.q = (torch.zeros(shape, dtype=precision, device=device) for _ in range(2))
        outputs = torch.zeros(shape, dtype=torch.float64), torch.zeros(num_envs, dtype=torch.int64)
        self.host_outputs = [tensor.pin_memory() if on_gpu else tensor for tensor in outputs]
        self.probs, self.actions = (tensor.to(device) for tensor in self.host_outputs)
        self.stream = torch.cuda.Stream(device) if on_gpu else None
        self.done = torch.cuda.Event(blocking=True) if on_gpu else None  # the environments need the core meanwhile
        self.streams = [SideStream(device) for _ in range(max(map(len, groups)))]
        looked_up = any(uses_counts(p.rule) and isinstance(p.visits, VisitCounts) for p, _ in groups.improve)
        self.graph: torch.cuda.CUDAGraph | None = None
        if self.stream is not None and not looked_up:
            self.graph = capture_graph(self.step, self.stream, [], [self.states, self.probs, self.actions])

    def restrict(self, groups: PolicyGroups) -> None:
        """Compute actions for these environments only. A captured graph keeps computing all of them."""
        if self.graph is None:
            self.set_groups(groups)

    def set_groups(self, groups: PolicyGroups) -> None:
        """Copy the indices of the groups' environments to the device."""
        self.forward, self.improve = (
            [(policy, torch.from_numpy(indices).to(self.device)) for policy, indices in of_kind] for of_kind in groups
        )

    def step(self) -> None:
        """Update the frame stacks and choose an action of every policy."""
        roll_stacks(self.states, self.frame, self.first)
        for stream, (policy, indices) in zip(self.streams, self.forward, strict=False):
            with stream.overlapping():
                beta, q = policy.beta_and_q(self.states.index_select(0, indices), legal=self.legal_in(indices))
                self.beta.index_copy_(0, indices, beta.to(self.beta.dtype))
                self.q.index_copy_(0, indices, q.to(self.q.dtype))
        self.join(len(self.forward))
        for stream, (policy, indices) in zip(self.streams, self.improve, strict=False):
            with stream.overlapping():
                counted = uses_counts(policy.rule)
                counts = policy.counts(self.states.index_select(0, indices)) if counted else None
                beta, q = self.beta.index_select(0, indices), self.q.index_select(0, indices)
                probs = policy.improve(beta, q, self.legal_in(indices), counts).double()
                chosen = probs.argmax(1) if self.deterministic else sample(probs, self.uniform.index_select(0, indices))
                chosen = torch.where(probs.isnan().any(1), INVALID_ACTION, chosen)
                self.probs.index_copy_(0, indices, probs)
                self.actions.index_copy_(0, indices, chosen)
        self.join(len(self.improve))

    def legal_in(self, indices: torch.Tensor) -> torch.Tensor | None:
        """The masks of some environments, where there are masks."""
        return None if self.legal is None else self.legal.index_select(0, indices)

    def join(self, used: int) -> None:
        """Wait for the streams that were used; a graph cannot wait for one that was not captured along."""
        for stream in self.streams[:used]:
            stream.join()

    def act(self, step: TimeStep, uniform: Array) -> Array:
        """Actions `[N]` after a time step, sampled with uniform numbers `[N, 1]`."""
        return self.outputs(step, uniform)[1]

    def predict_proba(self, step: TimeStep) -> Array:
        """Action probabilities `[N, A]` after a time step; 0 in environments without a policy."""
        return self.outputs(step, np.zeros((len(step.obs), 1)))[0]

    def outputs(self, step: TimeStep, uniform: Array) -> tuple[Array, Array]:
        """Probabilities `[N, A]` and actions `[N]` after a time step."""
        for buffer, array in zip(self.host, (step.obs, step.is_first, step.legal, uniform), strict=True):
            np.copyto(buffer.numpy(), array)
        if self.stream is None or self.done is None:
            self.step()
        else:
            with torch.cuda.stream(self.stream):
                for buffer, tensor in zip(self.host, self.inputs, strict=True):
                    tensor.copy_(buffer, non_blocking=True)
                if self.graph is None:
                    self.step()
                else:
                    self.graph.replay()
                for buffer, tensor in zip(self.host_outputs, (self.probs, self.actions), strict=True):
                    buffer.copy_(tensor, non_blocking=True)
                self.done.record()
            self.done.synchronize()
        probs, actions = (buffer.numpy().copy() for buffer in self.host_outputs)
        if (actions == INVALID_ACTION).any():
            raise ValueError("the outputs of a policy's networks are not finite: its actions have no meaning")
        return probs, actions


def random_actions(step: TimeStep, num_actions: int, rng: np.random.Generator) -> Array:
    """Uniformly random (legal) actions `[N]`."""
    if not step.legal.shape[1]:
        return rng.integers(num_actions, size=len(step.obs))
    rank = rng.integers(step.legal.sum(1))
    found: Array = (step.legal.cumsum(1) <= rank[:, None]).sum(1)
    return found


def sample(probs: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """`rbi.policy.draw_actions` of tensors in double precision."""
    cumulative = probs.cumsum(1)
    return (uniform * cumulative[:, -1:] >= cumulative).sum(1).clamp(max=probs.shape[1] - 1)
