"""What many policies do in the states of many players, as one graph on a GPU.

Ten policies of three seeds are some two thousand small kernels a step; launched one by one they take longer than the
games. Captured, they are one launch, in which groups are asked side by side, and only the newest frames travel.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from rbi.envs import Seen
from rbi.nets.beside import Beside
from rbi.nets.graphs import warmed
from rbi.policy import Policy

Array = np.ndarray[Any, Any]


class Group(NamedTuple):
    """Policies that share what their networks say, and the players who wait for them."""

    players: Array
    """Their numbers, one policy's after another's."""
    parts: list[tuple[Policy, slice]]
    """The policies, and which of `players` are whose."""

    def probs(self, states: torch.Tensor) -> torch.Tensor:
        """Probabilities `[players, A]` in states `[players, stack, *frame]`, on the networks' device."""
        beta, q = self.parts[0][0].believed(states)
        return torch.cat([policy.step(beta[part], q[part]) for policy, part in self.parts])


def groups(policies: Sequence[Policy], policy_of: Array, active: Array) -> list[Group]:
    """The active players, by who shares networks and temperature; `policy_of` says whose player each is, `[N]`."""
    alike: dict[tuple[int, float], list[int]] = {}
    for number in np.unique(policy_of[active]).tolist():
        policy = policies[number]
        alike.setdefault((id(policy.networks), policy.temperature), []).append(number)
    found = []
    for numbers in alike.values():
        players = [np.flatnonzero(active & (policy_of == number)) for number in numbers]
        ends = np.cumsum([len(own) for own in players]).tolist()
        parts = [
            (policies[number], slice(end - len(own), end))
            for number, own, end in zip(numbers, players, ends, strict=True)
        ]
        found.append(Group(np.concatenate(players), parts))
    return found


class OnDevice:
    """Every player's stack of frames on a device, and the draw of its action. On a GPU all of it is one graph."""

    def __init__(self, asked: Sequence[Group], players: int, device: torch.device) -> None:
        sight = asked[0].parts[0][0].sight
        dtype = torch.uint8 if sight.pictures else torch.float32
        self.device = device
        self.asked = [(group, torch.from_numpy(group.players).to(device)) for group in asked]
        self.states = torch.zeros((players, sight.stack, *sight.frame), dtype=dtype, device=device)
        inputs = (
            torch.zeros((players, *sight.frame), dtype=dtype),
            torch.zeros(players, dtype=torch.bool),
            torch.zeros((players, 1), dtype=torch.float64),
        )
        on_gpu = device.type == "cuda"
        self.host = [tensor.pin_memory() if on_gpu else tensor for tensor in inputs]
        self.frame, self.first, self.draw = (tensor.to(device) if on_gpu else tensor for tensor in self.host)
        self.chosen = torch.zeros(players, dtype=torch.int64, device=device)
        self.stream = torch.cuda.Stream(device) if on_gpu else None
        self.besides = [Beside(device) for _ in asked]
        self.graph = None if self.stream is None else warmed(self.decide, self.stream, [], [self.states, self.chosen])

    def only(self, asked: Sequence[Group]) -> None:
        """Ask no longer for players who are done. A graph goes on as it was captured."""
        if self.graph is None:
            self.asked = [(group, torch.from_numpy(group.players).to(self.device)) for group in asked]

    def decide(self) -> None:
        """Move the stacks on and draw from every policy."""
        mask = ~self.first.view(-1, *[1] * (self.states.dim() - 1))
        self.states[:, :-1] = self.states[:, 1:] * mask
        self.states[:, -1] = self.frame
        for beside, (group, players) in zip(self.besides, self.asked, strict=False):
            with beside.overlapping():
                probs = group.probs(self.states.index_select(0, players)).double()
                drawn = (self.draw.index_select(0, players) >= probs.cumsum(1)).sum(1)
                self.chosen.index_copy_(0, players, drawn.clamp(max=probs.shape[1] - 1))
        for beside in self.besides:
            beside.join()

    def actions(self, seen: Seen, draw: Array) -> Array:
        """Actions `[N]` in what is seen, by uniform draws `[N, 1]`."""
        for buffer, array in zip(self.host, (seen.frame, seen.first, draw), strict=True):
            np.copyto(buffer.numpy(), array)
        if self.stream is None or self.graph is None:
            self.decide()
        else:
            with torch.cuda.stream(self.stream):
                for buffer, given in zip(self.host, (self.frame, self.first, self.draw), strict=True):
                    given.copy_(buffer, non_blocking=True)
                self.graph.replay()
            self.stream.synchronize()
        found: Array = self.chosen.cpu().numpy()
        return found
