"""A policy that acts: networks, the improvement step on top of them, and one folder that holds both.

policy.json           what it sees, among how many actions it chooses, its rule, where it comes from
weights.safetensors   the networks; loading it runs no code
"""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from safetensors.torch import load_file, save_file

from rbi import runs
from rbi.networks import Networks, TrunkFactory
from rbi.observations import ObservationSpec
from rbi.rules.linear import greedy, mix
from rbi.rules.types import Rule, parse_rule

FORMAT = 1
CONFIG, WEIGHTS = "policy.json", "weights.safetensors"


class Policy:
    """pi = (1 - c_greedy) rule(beta, Q) + c_greedy greedy(Q), where beta is the pi-net's policy at a temperature.

    Without a pi-net beta is uniform, and with the greedy rule pi is Q-learning's policy. States are arrays
    `[B, stack, *frame]` (or `[B, *frame]` where one frame is a state). A reroute policy is stochastic: its guarantees
    speak of draws from `predict_proba`, as `act` makes them. `mode` leaves the set that the rule allows.
    """

    def __init__(
        self,
        networks: Networks,
        rule: Rule,
        c_greedy: float = 0.0,
        *,
        temperature: float = 1.0,
        env: str = "",
        about: dict[str, Any] | None = None,
    ) -> None:
        self.networks = networks.eval().requires_grad_(False)
        self.rule, self.c_greedy, self.env, self.about = rule, c_greedy, env, dict(about or {})
        self.obs_spec, self.temperature = networks.obs_spec, temperature
        self._example = next(networks.parameters())

    def __repr__(self) -> str:
        return f"Policy({self.rule}, {self.obs_spec.num_actions} actions, states {(self.obs_spec.stack, *self.obs_spec.shape)})"

    @property
    def device(self) -> torch.device:
        """Where the networks are."""
        return self._example.device

    def predict_proba(self, states: Any, legal: Any = None) -> np.ndarray[Any, Any]:
        """Probabilities of all actions, `[B, A]`; with `legal`, booleans `[B, A]`, of those that can be taken."""
        masks = None if legal is None else self.masks(legal, len(states))
        array: np.ndarray[Any, Any] = self.probs(self.tensor(states), masks).cpu().numpy()
        return array

    def act(self, states: Any, rng: np.random.Generator, legal: Any = None) -> np.ndarray[Any, Any]:
        """Actions `[B]`, drawn from the policy."""
        probs = self.predict_proba(states, legal)
        draw = rng.random((len(probs), 1))
        return np.minimum((draw >= probs.cumsum(1)).sum(1), probs.shape[1] - 1)

    def mode(self, states: Any, legal: Any = None) -> np.ndarray[Any, Any]:
        """The most probable actions `[B]`. Not the policy that the rule speaks of: its ratio to beta is unbounded."""
        best: np.ndarray[Any, Any] = self.predict_proba(states, legal).argmax(1)
        return best

    def probs(self, states: torch.Tensor, legal: torch.Tensor | None = None) -> torch.Tensor:
        """`predict_proba` for tensors on the policy's device."""
        return self.step(*self.believed(states), legal)

    def believed(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the networks say: beta and Q, `[B, A]` each, Q up to a number a state, which no rule looks at. Policies
        that share networks differ in `step` alone."""
        with torch.no_grad():
            seen = self.obs_spec.preprocess(states, self._example.dtype)
            if self.networks.pi is None:
                q, _ = self.networks.q(seen)
                return torch.full_like(q, 1 / self.obs_spec.num_actions), q
            beta = torch.softmax(self.networks.pi(seen) / self.temperature, 1)
            return beta, self.networks.q(seen, beta)[0]

    def step(self, beta: torch.Tensor, q: torch.Tensor, legal: torch.Tensor | None = None) -> torch.Tensor:
        """The improvement step, `[B, A]`: pi from beta and Q."""
        pi = self.rule(beta, q, legal=legal, check=False)
        if not self.c_greedy:
            return pi
        return mix(pi, greedy(beta, q, legal=legal, check=False), self.c_greedy, check=False)

    def masks(self, legal: Any, count: int) -> torch.Tensor:
        """Legal actions as the rules take them; a state without any is refused."""
        given = np.require(legal, requirements="W")  # PyTorch knows no arrays that cannot be written to
        if given.shape != (count, self.obs_spec.num_actions) or given.dtype != bool:
            raise ValueError(
                f"legal of shape {given.shape}, {given.dtype}: must be booleans {count, self.obs_spec.num_actions}"
            )
        if not given.any(1).all():
            raise ValueError(f"state {int(given.any(1).argmin())}: no action is legal")
        return torch.from_numpy(given).to(self._example.device)

    def tensor(self, states: Any) -> torch.Tensor:
        """States as the networks take them; another shape is refused."""
        given = torch.as_tensor(np.require(states, requirements="W"))
        wanted = (self.obs_spec.stack, *self.obs_spec.shape)
        if self.obs_spec.stack == 1 and given.shape[1:] == self.obs_spec.shape:
            given = given[:, None]
        if given.shape[1:] != wanted:
            shown = ("B", *self.obs_spec.shape) if self.obs_spec.stack == 1 else ("B", *wanted)
            raise ValueError(f"states of shape {tuple(np.shape(states))}: this policy sees {shown}")
        if not self.obs_spec.is_image and not bool(torch.isfinite(given).all()):
            row = int((~torch.isfinite(given.flatten(1)).all(1)).nonzero()[0])
            raise ValueError(f"state {row}: holds a number that is not finite")
        return given.to(self._example.device, torch.uint8 if self.obs_spec.is_image else torch.float32)

    def to(self, device: torch.device | str) -> "Policy":
        """Move the networks."""
        self.networks.to(device)
        return self

    def save(self, path: Path | str) -> None:
        """Write the folder; a policy that was there stays whole until the new one is."""
        path = Path(path)
        config = {
            "format": FORMAT,
            "obs_spec": asdict(self.obs_spec),
            "networks": self.networks.describe(),
            "rule": str(self.rule),
            "c_greedy": self.c_greedy,
            "temperature": self.temperature,
            "env": self.env,
            "about": self.about,
        }
        weights = {k: to_save(v) for k, v in self.networks.state_dict().items()}
        with runs.whole_folder(path) as growing:
            save_file(weights, growing / WEIGHTS)
            runs.write_json(growing / CONFIG, config)


def to_save(tensor: torch.Tensor) -> torch.Tensor:
    found = tensor.detach().cpu().contiguous()
    return found.float() if found.is_floating_point() else found


def load_policy(path: Path | str, *, trunk: TrunkFactory | None = None) -> Policy:
    """The policy of a folder that `Policy.save` wrote, or the best one of a training run.

    `trunk`: the function that made the trunk, for a policy with a custom one (its code is not saved).
    """
    path = Path(path)
    if not (path / CONFIG).is_file():
        inside = [path / "policies" / name for name in ("best", "last")]
        path = next((p for p in inside if (p / CONFIG).is_file()), path)
    if not (path / CONFIG).is_file():
        raise ValueError(f"{path}: holds no policy (it has no {CONFIG})")
    config = runs.parse(path / CONFIG, runs.read_text(path / CONFIG), 1)
    if config.get("format") != FORMAT:
        raise ValueError(f"{path / CONFIG}: is of format {config.get('format')}; this version reads {FORMAT}")
    try:
        obs_spec = ObservationSpec(
            tuple(config["obs_spec"]["shape"]), config["obs_spec"]["stack"], config["obs_spec"]["num_actions"]
        )
        networks = Networks.from_description(obs_spec, config["networks"], trunk)
        rule, c_greedy, temperature = (
            parse_rule(config["rule"]),
            float(config["c_greedy"]),
            config.get("temperature", 1.0),
        )
        if not 0 < float(temperature) < math.inf:
            raise ValueError(f"temperature = {temperature}: must be positive")
        if not 0 <= c_greedy <= 1:
            raise ValueError(f"c_greedy = {c_greedy}: must lie in [0, 1]")
        env, about = config.get("env", ""), config.get("about", {})
        if not isinstance(env, str) or not isinstance(about, dict):
            raise ValueError("env must be a name and about a table")
    except KeyError as error:
        raise ValueError(f"{path / CONFIG}: lacks {error}") from None
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path / CONFIG}: {str(error).splitlines()[0]}") from None
    try:
        networks.load_state_dict(load_file(path / WEIGHTS))
    except (safetensors.SafetensorError, RuntimeError, OSError) as error:
        raise ValueError(f"{path / WEIGHTS}: cannot be read ({str(error).splitlines()[0]})") from None
    return Policy(networks, rule, c_greedy, temperature=temperature, env=env, about=about)
