"""How far probabilities and values that were learned can be trusted, on episodes that were held out."""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import optimize
from torch import Tensor

from rbi import measures
from rbi.data.dataset import Dataset
from rbi.data.sampler import Batch, Sampler, SamplerConfig, returns_of
from rbi.networks import Networks
from rbi.offline_rl.behavior_q import Fit, Looks, frozen
from rbi.offline_rl.scaling import Scaling, unscaled
from rbi.rules.types import Reroute, Rule

Array = np.ndarray[Any, Any]
COLDEST, HOTTEST = 0.05, 20.0


def log_probs(logits: Array, temperature: float = 1.0) -> Array:
    """log softmax(logits / temperature) `[N, A]`."""
    cooled = logits.astype(np.float64) / temperature
    return cooled - np.logaddexp.reduce(cooled, axis=1, keepdims=True)


def likelihood(logits: Array, actions: Array, temperature: float = 1.0) -> float:
    """The mean log-probability of actions `[N]`."""
    return float(log_probs(logits, temperature)[np.arange(len(actions)), actions].mean())


def best_temperature(logits: Array, actions: Array) -> float:
    """The temperature under which the actions are most likely.

    The likelihood is concave in 1 / temperature, so there is one best; it is looked for between 0.05 and 20.
    """
    found = optimize.minimize_scalar(
        lambda cold: -likelihood(logits, actions, 1 / cold), bounds=(1 / HOTTEST, 1 / COLDEST), method="bounded"
    )
    return float(1 / found.x)


class Reliability(NamedTuple):
    """Values against returns, in bins of as many steps each: `[bins]` means of both, and how many steps."""

    predicted: Array
    seen: Array
    steps: Array


def reliability(values: Array, returns: Array, bins: int = 10) -> Reliability:
    """What was predicted and what came, from the lowest prediction to the highest."""
    parts = [part for part in np.array_split(np.argsort(values, kind="stable"), bins) if len(part)]
    means = np.array([(values[part].mean(), returns[part].mean(), len(part)) for part in parts])
    return Reliability(means[:, 0], means[:, 1], means[:, 2].astype(int))


# ---- from rbi.offline_rl.held_out: What the networks say about episodes that they did not learn from, and what that tells.

ASKED_AT_ONCE = 1024  # steps


class Answers(NamedTuple):
    """For N steps: beta's logits and Q `[N, A]`, and what was done and came of it, `[N]`.

    Logits of actions that were not legal are -inf. `legal`: `[N, A]` where it was logged.
    """

    logits: Array
    q: Array
    actions: Array
    returns: Array
    legal: Array | None = None


def split(episodes: int, share: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Numbers of the episodes to learn from, and of those to hold out: at least one of each.

    Whole episodes, since neighbouring steps are nearly the same.
    """
    if episodes < 2:
        raise ValueError(f"{episodes} episodes: to hold one out takes at least 2")
    if not 0 < share < 1:
        raise ValueError(f"share = {share}: must lie between 0 and 1")
    count = min(episodes - 1, max(1, round(share * episodes)))
    order = rng.permutation(episodes)
    return np.sort(order[count:]), np.sort(order[:count])


def answers(networks: Networks, sampler: Sampler, most: int | None = None) -> Answers:
    """Ask about the usable steps of a sampler, each once; about no more than `most`, drawn at random, where given."""
    networks.eval()
    parts = []
    with torch.no_grad():
        for batch in sampler.epoch():
            parts.append(told(networks, batch))
            if most is not None and sum(len(part[0]) for part in parts) >= most:
                break
    return Answers(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def answers_about(networks: Networks, sampler: Sampler, steps: Array) -> Answers:
    """Ask about these steps of a sampler's data, in this order."""
    networks.eval()
    parts = torch.split(torch.as_tensor(steps, device=sampler.candidates.device), ASKED_AT_ONCE)
    with torch.no_grad():
        columns = zip(*(told(networks, sampler.batch(part)) for part in parts), strict=True)
        return Answers(*(np.concatenate(column) for column in columns))


def told(networks: Networks, batch: Batch) -> list[Array]:
    """The answers about a batch."""
    assert networks.pi is not None
    seen = networks.obs_spec.preprocess(batch.states, torch.float32)
    logits = networks.pi(seen)
    found = [logits, networks.q(seen)[0], batch.actions, batch.returns]
    if batch.action_masks is not None:
        found = [logits.masked_fill(~batch.action_masks, -torch.inf), *found[1:], batch.action_masks]
    return [tensor.cpu().numpy() for tensor in found]


def diagnosis(held: Answers) -> dict[str, Any]:
    """How well beta and Q do on these steps; the temperature is the one under which they are most likely."""
    chosen = held.q[np.arange(len(held.actions)), held.actions].astype(np.float64)
    warm = best_temperature(held.logits, held.actions)
    error, spread = chosen - held.returns, float(np.var(held.returns))
    counts = np.bincount(held.actions, minlength=held.logits.shape[1])
    with np.errstate(divide="ignore"):
        shares = np.broadcast_to(np.log(counts / counts.sum()), held.logits.shape)
    shares = shares if held.legal is None else np.where(held.legal, shares, -np.inf)
    binned = reliability(chosen, held.returns)
    return {
        "steps": len(held.actions),
        "temperature": warm,
        "likelihood": likelihood(held.logits, held.actions),
        "likelihood_calibrated": likelihood(held.logits, held.actions, warm),
        "likelihood_of_frequencies": likelihood(shares, held.actions),
        "accuracy": float((held.logits.argmax(1) == held.actions).mean()),
        "accuracy_of_the_commonest": float(counts.max() / counts.sum()),
        "q_error": float(np.sqrt(np.square(error).mean())),
        "q_bias": float(error.mean()),
        "q_explained": 1 - float(np.square(error).mean()) / spread if spread else None,
        "reliability": binned._asdict(),
    }


def step_taken(held: Answers, rule: Rule, temperature: float) -> dict[str, float]:
    """How far a rule goes from beta in these steps, how often reroute's bounds hold it, and what Q expects of it."""
    beta = np.exp(log_probs(held.logits, temperature))
    pi = rule(beta, held.q.astype(np.float64), legal=held.legal)
    found = {
        "moved": float(measures.total_variation(pi, beta).mean()),
        "expected_step": float(((pi - beta) * held.q).sum(1).mean()),
    }
    if isinstance(rule, Reroute):
        hits = measures.bound_hits(pi, beta, rule.c_min, rule.c_max)
        found["at_c_min"], found["at_c_max"] = float(hits.at_c_min.mean()), float(hits.at_c_max.mean())
    return found


# ---- from rbi.offline_rl.moments: A fit that is looked at now and then on episodes that it does not learn from; of each network the best moment stays.
#
# beta is judged by how likely it makes what was done, Q by its root mean squared error against what came of it. Networks
# that go on learning the data by heart get worse on both, each at its own time.

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
        whole = 1 - self.fit.sampler.excluded_fraction  # the others count as errors of 0
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

    def networks(self) -> Networks:
        """The best ones, for numbers as they are."""
        for name, best in self.best.items():
            if not math.isfinite(best["loss"]):
                raise ValueError(f"{name} learned nothing but nonsense: give a smaller --learning-rate")
        return unscaled(self.kept, self.scaling)

    def temperature(self, networks: Networks) -> float:
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


def to_hold_out(data: Dataset, config: SamplerConfig, share: float, rng: np.random.Generator) -> HeldOut:
    """Dataset to hold out among those whose returns are known; the same ones for both where it is only one. Returns
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
