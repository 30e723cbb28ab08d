"""Validation of beta and Q on held-out episodes: train/validation/test split, calibration, best checkpoints."""

import itertools
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rbi import measures
from rbi.data.dataset import Dataset
from rbi.data.episode import Array
from rbi.data.sampler import Batch, Sampler, SamplerConfig, returns_of
from rbi.losses import mask_illegal
from rbi.networks import Networks
from rbi.offline_rl.behavior_q import BehaviorQ, Standardization, unstandardize
from rbi.offline_rl.learner import frozen_copy
from rbi.rules.types import Reroute, Rule

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 1000.0  # enough to make a clone that has memorised its data uniform
PREDICT_BATCH = 1024
VALIDATION_STEPS = 10_000  # at most, evenly spaced
MIN_CALIBRATION_STEPS = 100
MAX_VALIDATION = 100  # episodes, if that is more than a tenth of all
FINAL_LR_FRACTION = 0.05
VALIDATION_METRICS = (
    "log_likelihood", "log_likelihood_calibrated", "accuracy", "temperature", "q_rmse", "q_bias",
    "q_explained_variance",
)  # fmt: skip
OVERFITTED = 0.25  # share of what a network has learned that it loses; seeds' means lost 0.21 at most in healthy runs
MIN_LOST = {"beta": 0.01, "Q": 0.02}  # nats; share of the variance: less than that is noise
OVERCONFIDENT = 0.1  # nats below action frequencies without calibration; random actions cost 0.03


def split_episodes(episodes: int, fraction: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Indices of the training episodes and of the held-out ones: at least one of each.

    Splits whole episodes, because neighbouring steps are nearly equal.
    """
    if episodes < 2:
        raise ValueError(f"{episodes} episodes: a held-out set takes at least 2")
    if not 0 < fraction < 1:
        raise ValueError(f"fraction = {fraction}: must lie between 0 and 1")
    count = min(episodes - 1, max(1, round(fraction * episodes)))
    order = rng.permutation(episodes)
    return np.sort(order[count:]), np.sort(order[:count])


@dataclass(frozen=True)
class Holdout:
    """Indices of held-out episodes: the validation set (early stopping, temperature) and an untouched test set."""

    validation: Array
    test: Array
    representative: bool
    """Whether the test set is a random part of all episodes. If not, those whose returns are not known are left out."""

    @property
    def checksum(self) -> int:
        """What shows that other episodes are held out."""
        return zlib.crc32(self.test.tobytes(), zlib.crc32(self.validation.tobytes()))

    @property
    def separate(self) -> bool:
        """Whether validation and test set are not the same single episode."""
        return not np.array_equal(self.validation, self.test)


def split_holdout(
    data: Dataset, config: SamplerConfig, fraction: float, rng: np.random.Generator, players: Array | None = None
) -> Holdout:
    """Hold out a fraction of the episodes: half of it for validation, the rest for testing.

    Validation takes at most a tenth of all episodes, or 100. If only one episode is held out, it serves for both. Data
    without any signal in its returns is refused. With `players` `[E]`, the number of each episode's player, that holds
    for players: all episodes of one are in the same part.

    Truncated episodes are held out as others are, though Q may have no use for their returns: where failures run into a
    time limit, a test set without them would be one of successes. Only if a part would have no known return at all is
    it taken from episodes with known returns.
    """
    found = returns_of(data, config)
    known = found.usable.numpy()
    if not known.any():
        raise ValueError(
            "every episode was truncated too early for its returns to be known; lower --gamma, or use returns as they "
            "are with --max-missing-return 1"
        )
    returns = found.reward.numpy()[known]
    if not np.isfinite(returns).all():
        raise ValueError("rewards so large that their sums are not finite")
    if returns.min() == returns.max():
        raise ValueError(f"all returns are {returns[0]:g}, so no action can be better than another")
    has_known = np.bincount(np.repeat(np.arange(len(data)), data.records["steps"])[known], minlength=len(data)) > 0
    units = np.arange(len(data)) if players is None else players
    with_known = np.unique(units[has_known])
    if len(with_known) < 2:
        unit = "episode" if players is None else "player"
        raise ValueError(f"only 1 {unit} has known returns: a held-out set takes at least 2")
    validation, test = split_in_three(units, np.unique(units), fraction, rng)
    train = np.delete(np.arange(len(data)), np.concatenate([validation, test]))
    if all(has_known[part].any() for part in (train, validation, test)):
        return Holdout(validation, test, representative=True)
    return Holdout(*split_in_three(units, with_known, fraction, rng), representative=False)


def split_in_three(units: Array, chosen: Array, fraction: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Indices of validation and test episodes, which are those of some of the `chosen` units; the rest is for training.

    `units` `[E]` says to which one an episode belongs.
    """
    _, out = split_episodes(len(chosen), fraction, rng)
    shuffled = rng.permutation(out) if len(out) > 1 else np.repeat(out, 2)
    validation = min(-(-len(out) // 2), max(MAX_VALIDATION, -(-len(chosen) // 10)))
    parts = chosen[shuffled[:validation]], chosen[shuffled[validation:]]
    return np.flatnonzero(np.isin(units, parts[0])), np.flatnonzero(np.isin(units, parts[1]))


class Predictions(NamedTuple):
    """Predictions for N steps: beta's logits and Q `[N, A]`, with the logged actions and returns `[N]`.

    Logits of illegal actions are -inf; without a policy network they are the logarithms of the logged probabilities.
    `action_masks`: `[N, A]` if they were logged.
    """

    logits: Array
    q: Array
    actions: Array
    returns: Array
    action_masks: Array | None = None


def predict(networks: Networks, sampler: Sampler, max_steps: int | None = None) -> Predictions:
    """Predictions for all usable steps of a sampler in random order, or for about `max_steps` of them."""
    networks.eval()
    parts = []
    with torch.no_grad():
        for batch in sampler.epoch():
            parts.append(predict_batch(networks, batch, sampler))
            if max_steps is not None and sum(len(part[0]) for part in parts) >= max_steps:
                break
    return Predictions(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def predict_steps(networks: Networks, sampler: Sampler, steps: Array) -> Predictions:
    """Predictions for these steps of a sampler's dataset, in this order."""
    networks.eval()
    parts = torch.split(torch.as_tensor(steps, device=sampler.candidates.device), PREDICT_BATCH)
    with torch.no_grad():
        columns = zip(*(predict_batch(networks, sampler.batch(part), sampler) for part in parts), strict=True)
        return Predictions(*(np.concatenate(column) for column in columns))


def features_and_actions(
    networks: Networks, sampler: Sampler, steps: Array, clusters: Array
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The Q-network's last features, the actions and the clusters of these steps, in batches of whole clusters."""
    networks.eval()
    order = np.argsort(clusters, kind="stable")
    steps, clusters = steps[order], clusters[order]
    starts = np.flatnonzero(np.diff(clusters, prepend=clusters[0] - 1))
    cuts = [0]
    for end in (*starts[1:], len(steps)):
        if end - cuts[-1] >= PREDICT_BATCH or end == len(steps):
            cuts.append(int(end))
    device = sampler.candidates.device
    with torch.no_grad():
        for start, end in itertools.pairwise(cuts):
            batch = sampler.batch(torch.as_tensor(steps[start:end], device=device))
            features = networks.q.features(networks.obs_spec.preprocess(batch.states, torch.float32))
            yield features, batch.actions, torch.as_tensor(clusters[start:end], device=device)


def predict_batch(networks: Networks, batch: Batch, sampler: Sampler) -> list[Array]:
    obs = networks.obs_spec.preprocess(batch.states, torch.float32)
    if networks.pi is None:
        logits = torch.from_numpy(sampler.data.arrays["behavior_probs"][batch.steps.cpu().numpy()]).log()
    else:
        logits = mask_illegal(networks.pi(obs), batch.action_masks)
    found = [logits, networks.q(obs)[0], batch.actions, batch.returns]
    found += [] if batch.action_masks is None else [batch.action_masks]
    return [tensor.cpu().numpy() for tensor in found]


def log_probs(logits: Array, temperature: float = 1.0) -> Array:
    """log softmax(logits / temperature) `[N, A]`."""
    found: Array = torch.log_softmax(torch.from_numpy(logits.astype(np.float64)) / temperature, 1).numpy()
    return found


def log_likelihood(logits: Array, actions: Array, temperature: float = 1.0) -> float:
    """Mean log-probability of actions `[N]`."""
    return float(taken_log_probs(logits, actions, temperature).mean())


def taken_log_probs(logits: Array, actions: Array, temperature: float = 1.0) -> Array:
    """log-probabilities of actions `[N]`, in blocks of rows."""
    parts = [slice(first, first + PREDICT_BATCH) for first in range(0, len(actions), PREDICT_BATCH)]
    taken = [np.take_along_axis(log_probs(logits[part], temperature), actions[part, None], 1) for part in parts]
    return np.concatenate(taken)[:, 0]


def fit_temperature(logits: Array, actions: Array) -> float:
    """Temperature scaling: the temperature in [0.05, 1000] with the largest likelihood of the actions.

    The likelihood is concave in 1 / temperature, so there is one maximum.
    """
    from scipy import optimize

    found = optimize.minimize_scalar(
        lambda inverse: -log_likelihood(logits, actions, 1 / inverse),
        bounds=(1 / MAX_TEMPERATURE, 1 / MIN_TEMPERATURE),
        method="bounded",
    )
    return float(1 / found.x)


class Reliability(NamedTuple):
    """A reliability diagram: mean prediction and mean return in bins of equal size, `[bins]`, and their steps."""

    predicted: Array
    observed: Array
    steps: Array


def reliability(values: Array, returns: Array, bins: int = 10) -> Reliability:
    """Predicted values against returns, in bins from the lowest prediction to the highest."""
    parts = [part for part in np.array_split(np.argsort(values, kind="stable"), bins) if len(part)]
    means = np.array([(values[part].mean(), returns[part].mean(), len(part)) for part in parts])
    return Reliability(means[:, 0], means[:, 1], means[:, 2].astype(int))


def action_frequencies(sampler: Sampler) -> Array:
    """The share of each action in the steps of a sampler, `[A]`. One is added to each count, so that none is 0."""
    counts = np.bincount(sampler.data.arrays["actions"][sampler.usable], minlength=sampler.data.spec.num_actions) + 1
    found: Array = counts / counts.sum()
    return found


def diagnostics(held: Predictions, frequencies: Array, temperature: float | None = None) -> dict[str, Any]:
    """How well beta predicts the actions and Q the returns. `frequencies`: `action_frequencies` of the training steps,
    which beta should beat. `temperature`: of beta; by default the best one for these steps."""
    predicted = held.q[np.arange(len(held.actions)), held.actions].astype(np.float64)
    if temperature is None:
        temperature = fit_temperature(held.logits, held.actions)
    error, variance = predicted - held.returns, float(np.var(held.returns, dtype=np.float64))
    frequent = np.broadcast_to(np.log(frequencies), held.logits.shape)
    frequent = frequent if held.action_masks is None else np.where(held.action_masks, frequent, -np.inf)
    return {
        "steps": len(held.actions),
        "temperature": temperature,
        "log_likelihood": log_likelihood(held.logits, held.actions),
        "log_likelihood_calibrated": log_likelihood(held.logits, held.actions, temperature),
        "log_likelihood_of_frequencies": log_likelihood(frequent, held.actions),
        "accuracy": float((held.logits.argmax(1) == held.actions).mean()),
        "majority_accuracy": float((held.actions == frequencies.argmax()).mean()),
        "q_rmse": float(np.sqrt(np.square(error).mean())),
        "q_bias": float(error.mean()),
        "q_explained_variance": 1 - float(np.square(error).mean()) / variance if variance else None,
        "reliability": reliability(predicted, held.returns)._asdict(),
    }


def rule_statistics(held: Predictions, rule: Rule, temperature: float) -> dict[str, float]:
    """How far a rule moves from beta on these steps, how often reroute's bounds are active, and the gain Q expects."""
    beta = np.exp(log_probs(held.logits, temperature))
    pi = rule(beta, held.q.astype(np.float64), legal=held.action_masks)
    found = {
        "total_variation": float(measures.total_variation(pi, beta).mean()),
        "expected_gain": float(((pi - beta) * held.q).sum(1).mean()),
    }
    if isinstance(rule, Reroute):
        shares = measures.bound_shares(pi, beta, rule.c_min, rule.c_max)
        found |= {name: float(share.mean()) for name, share in shares._asdict().items()}
    return found


class Overfitting(NamedTuple):
    """A network that was clearly better on the validation set at an earlier time, in means over seeds."""

    network: str
    """beta, judged by its calibrated log-likelihood, or Q, by the explained variance of returns."""
    best_updates: int
    best: float
    updates: int
    last: float
    baseline: float
    """What predicts without the state: the log-likelihood of action frequencies, or an explained variance of 0."""
    uncalibrated: float
    """The last log-likelihood at a temperature of 1; of Q, `last`."""
    seeds: int

    @property
    def advice(self) -> str:
        """What happened and what helps, in one line."""
        form = "{:.3f}" if self.network == "beta" else "{:.1%}"
        best, last = form.format(self.best), form.format(self.last)
        measure, beside = "explained variance", ""
        if self.network == "beta":
            measure = "calibrated log-likelihood"
            beside = f" ({self.uncalibrated:.3f} without calibration; action frequencies alone: {self.baseline:.3f})"
        seeds = f" (mean of {self.seeds} seeds)" if self.seeds > 1 else ""
        return (
            f"{self.network} overfits: its {measure} on held-out episodes{seeds} was {best} after "
            f"{self.best_updates:,} updates and is {last} after {self.updates:,}{beside}; use fewer updates "
            f"(--updates {self.best_updates}), more data, or rbi improve, which keeps the best networks"
        )


def overfitting(validated: Sequence[Mapping[str, Any]]) -> list[Overfitting]:
    """Which of beta and Q have lost much of what they had learned.

    validated: lines with `seed`, `updates` and the metrics in `validation`, all seeds at the same numbers of updates.
    """
    at: dict[int, list[Any]] = {}
    for line in validated:
        at.setdefault(line["updates"], []).append(line["validation"])
    if not at:
        return []

    def curve(key: str) -> Array:
        """Means over seeds; NaN where a network diverged, or where returns do not vary."""
        return np.array([np.mean(np.array([one[key] for one in seeds], dtype=np.float64)) for seeds in at.values()])

    updates, seeds, found = list(at), len({line["seed"] for line in validated}), []
    beta, frequencies = curve("log_likelihood_calibrated"), curve("log_likelihood_of_frequencies")
    uncalibrated, q = curve("log_likelihood"), curve("q_explained_variance")
    for network, values, raw, baseline in (("beta", beta, uncalibrated, frequencies), ("Q", q, q, np.zeros_like(q))):
        if not np.isfinite(values[-1]):
            continue
        best = int(np.nanargmax(values))
        learned = values[best] - baseline[best]
        has_lost = learned > 0 and values[best] - values[-1] > max(MIN_LOST[network], OVERFITTED * learned)
        # a beta that was past its best at the first validation has lost little since: only its temperature rises
        overconfident = network == "beta" and best < len(values) - 1 and raw[-1] < baseline[-1] - OVERCONFIDENT
        if has_lost or overconfident:
            then, now, without, hot = map(float, (values[best], values[-1], baseline[-1], raw[-1]))
            found.append(Overfitting(network, updates[best], then, updates[-1], now, without, hot, seeds))
    return found


class BestCheckpoint:
    """Trains beta and Q and keeps each network's best checkpoint on the validation set (early stopping).

    beta is judged by the log-likelihood of the logged actions, Q by its root mean squared error on the returns: each
    network overfits at its own time. Implements `OfflineLearner`; the best checkpoints are part of its state. `updates`
    of the whole run set the decay of the learning rate.
    """

    prefetcher = None

    def __init__(
        self, behavior_q: BehaviorQ, total_updates: int, standardization: Standardization, validation: Sampler
    ) -> None:
        self.behavior_q, self.total_updates = behavior_q, total_updates
        self.standardization, self.validation = standardization, validation
        self.frequencies = action_frequencies(behavior_q.sampler)
        adam = behavior_q.trained.adam
        # Departs from the paper, which trains for a fixed number of updates at a constant rate: the best checkpoints on
        # the validation set are used, and the learning rate decays so that the last ones do not fluctuate.
        adam.decay, adam.decay_steps = 1 - FINAL_LR_FRACTION, total_updates
        count = min(VALIDATION_STEPS, len(validation.usable))
        self.steps = validation.usable[np.linspace(0, len(validation.usable) - 1, count).round().astype(int)]
        learned = behavior_q.networks.pi is not None
        self.calibrates = learned and len(validation.usable) >= MIN_CALIBRATION_STEPS
        self.best_networks = frozen_copy(behavior_q.networks)
        self.best: dict[str, dict[str, float]] = {}

    @property
    def updates(self) -> int:
        return self.behavior_q.updates

    @updates.setter
    def updates(self, done: int) -> None:
        self.behavior_q.updates = done

    def update(self) -> None:
        self.behavior_q.update()

    def after_update(self) -> None:
        self.behavior_q.after_update()

    def metrics(self) -> dict[str, float]:
        """Means over the training batches since the last call, in the units of the data."""
        found = self.behavior_q.metrics()
        of_q = {"train_q_rmse": self.standardization.std * found["q_rmse"]}
        if self.behavior_q.networks.pi is None:
            return of_q
        return {"train_log_likelihood": -found["beta_loss"], "train_accuracy": found["beta_accuracy"], **of_q}

    def generators(self) -> list[torch.Generator]:
        return self.behavior_q.generators()

    def state(self) -> dict[str, Tensor]:
        best = {f"best.{name}": tensor for name, tensor in self.best_networks.state_dict().items()}
        return self.behavior_q.state() | best

    def validate(self) -> dict[str, Any]:
        """Evaluate on the validation set, keep the networks that improved, and return the metrics."""
        networks = self.behavior_q.networks
        held = predict_steps(unstandardize(networks, self.standardization), self.validation, self.steps)
        found = diagnostics(held, self.frequencies)
        likelihood = found["log_likelihood_calibrated" if self.calibrates else "log_likelihood"]
        for name, current, kept, loss in (
            ("beta", networks.pi, self.best_networks.pi, -likelihood),
            ("q", networks.q, self.best_networks.q, found["q_rmse"]),
        ):
            if current is None or kept is None:
                continue
            if name not in self.best or loss < self.best[name]["loss"]:
                self.best[name] = {"updates": self.updates, "loss": loss}
                kept.load_state_dict(current.state_dict())
        return {"updates": self.updates, **self.metrics(), **{name: found[name] for name in VALIDATION_METRICS}}

    def networks(self) -> Networks:
        """The best networks, for raw observations and returns."""
        for name, best in self.best.items():
            if not math.isfinite(best["loss"]):
                raise ValueError(f"training of {name} diverged: use a smaller learning rate")
        return unstandardize(self.best_networks, self.standardization)

    def q_error(self, networks: Networks) -> float:
        """The root mean squared error of Q on the validation set's returns."""
        held = predict_steps(networks, self.validation, self.steps)
        return float(diagnostics(held, self.frequencies, 1.0)["q_rmse"])

    def temperature(self, networks: Networks) -> float:
        """beta's temperature, fitted on the validation set; 1 if that is too small, or if beta was logged."""
        if not self.calibrates:
            return 1.0
        found = predict_steps(networks, self.validation, self.steps)
        return fit_temperature(found.logits, found.actions)
