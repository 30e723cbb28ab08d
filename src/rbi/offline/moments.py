"""A fit that is looked at now and then on episodes that it does not learn from; of each network the best moment stays.

beta is judged by how likely it makes what was done, Q by its root mean squared error against what came of it. Networks
that go on learning the data by heart get worse on both, each at its own time.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rbi.data import Episodes, Sampler, SamplerConfig
from rbi.data.sampler import returns_of
from rbi.nets.from_logs import LogNetworks
from rbi.offline.calibration import Array, best_temperature
from rbi.offline.fit import Fit
from rbi.offline.held_out import answers_about, diagnosis, split
from rbi.offline.learning import Looks, frozen
from rbi.offline.scaling import Scaling, unscaled

ASKED = 10_000  # held-out steps that a look takes in, evenly spread
FEWEST_TO_CALIBRATE = 100
LAST_RATE = 0.05  # of the learning rate, at the end
HELD_OUT = ("likelihood", "likelihood_calibrated", "accuracy", "temperature", "q_error", "q_bias", "q_explained")


class BestMoments:
    """A learner like the fit inside it, with the best networks so far beside it, and as part of what is saved.

    `goal` is how many updates there will be, `held` has the episodes that choose.
    """

    steady: Looks | None = None

    def __init__(self, fit: Fit, goal: int, scaling: Scaling, held: Sampler) -> None:
        self.fit, self.goal, self.scaling, self.held = fit, goal, scaling, held
        fit.trained.adam.fall, fit.trained.adam.span = 1 - LAST_RATE, goal  # so that the last moments do not jitter
        count = min(ASKED, len(held.usable))
        self.asked = held.usable[np.linspace(0, len(held.usable) - 1, count).round().astype(int)]
        self.calibrates = len(held.usable) >= FEWEST_TO_CALIBRATE
        self.kept = frozen(fit.networks)
        self.best: dict[str, dict[str, float]] = {}

    @property
    def updates(self) -> int:
        return self.fit.updates

    @updates.setter
    def updates(self, done: int) -> None:
        self.fit.updates = done

    def update(self) -> None:
        self.fit.update()

    def passed(self) -> None:
        self.fit.passed()

    def metrics(self) -> dict[str, float]:
        """Means since the last call, on what is learned from, in the data's own units."""
        found = self.fit.metrics()
        whole = 1 - self.fit.sampler.left_out  # the others count as errors of 0
        error = self.scaling.spread * math.sqrt(found["q_loss"] / whole)
        return {
            "likelihood_learning": -found["beta_loss"],
            "accuracy_learning": found["beta_accuracy"],
            "q_error_learning": error,
        }

    def generators(self) -> list[torch.Generator]:
        return self.fit.generators()

    def state(self) -> dict[str, Tensor]:
        return self.fit.state() | {f"kept.{name}": tensor for name, tensor in self.kept.state_dict().items()}

    def look(self) -> dict[str, Any]:
        """How the networks do now; those that do better than ever are kept."""
        told = diagnosis(answers_about(unscaled(self.fit.networks, self.scaling), self.held, self.asked))
        likelihood = told["likelihood_calibrated" if self.calibrates else "likelihood"]
        for name, mine, kept, loss in (
            ("beta", self.fit.networks.pi, self.kept.pi, -likelihood),
            ("q", self.fit.networks.q, self.kept.q, told["q_error"]),
        ):
            assert mine is not None
            assert kept is not None
            if name not in self.best or loss < self.best[name]["loss"]:
                self.best[name] = {"updates": self.updates, "loss": loss}
                kept.load_state_dict(mine.state_dict())
        return {"updates": self.updates, **self.metrics(), **{name: told[name] for name in HELD_OUT}}

    def networks(self) -> LogNetworks:
        """The best ones, for numbers as they are."""
        for name, best in self.best.items():
            if not math.isfinite(best["loss"]):
                raise ValueError(f"{name} learned nothing but nonsense: give a smaller --learning-rate")
        return unscaled(self.kept, self.scaling)

    def temperature(self, networks: LogNetworks) -> float:
        """beta's, as far as there are steps enough to find it; 1 where there are not."""
        if not self.calibrates:
            return 1.0
        told = answers_about(networks, self.held, self.asked)
        return best_temperature(told.logits, told.actions)


class HeldOut(NamedTuple):
    """Numbers of episodes that nothing is learned from: some choose the best moments and the temperature, others tell
    how good those are. Numbers from those that chose could flatter."""

    choosing: Array
    telling: Array


def to_hold_out(data: Episodes, config: SamplerConfig, share: float, rng: np.random.Generator) -> HeldOut:
    """Episodes to hold out among those whose returns are known; the same ones for both where it is only one. Returns
    that teach nothing are refused."""
    found = returns_of(data, config)
    known = found.usable.numpy()
    if not known.any():
        raise ValueError(
            "every episode was cut off too early for its returns to be known; a smaller --gamma looks less far ahead, "
            "--unfinished 1 takes returns as they are"
        )
    returns = found.reward.numpy()[known]
    if not np.isfinite(returns).all():
        raise ValueError("rewards so large that their sums are not finite")
    if returns.min() == returns.max():
        raise ValueError(f"no return differs: all are {returns[0]:g}, so no action is known to be better than another")
    whole = np.unique(np.repeat(np.arange(len(data)), data.records["steps"])[known])
    if len(whole) < 2:
        raise ValueError("1 episode whose returns are known: to hold one out takes at least 2")
    _, out = split(len(whole), share, rng)
    if len(out) == 1:
        return HeldOut(whole[out], whole[out])
    choosing, telling = (np.sort(whole[part]) for part in np.array_split(rng.permutation(out), 2))
    return HeldOut(choosing, telling)
