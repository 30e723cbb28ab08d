"""A policy: networks, an improvement rule on top of them, and one folder on disk that holds both.

policy.json           observation spec, columns of a table, architecture, rule, environment, metadata, checksums
weights.safetensors   the networks' weights; loading them runs no code
training.safetensors  digests of the training episodes: `rbi.certify` refuses to test on them; visits of their states
"""

import contextlib
import copy
import inspect
import itertools
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors
import torch
from safetensors.numpy import load_file as load_arrays
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import save_file

from rbi import export, fileio
from rbi.checkpoint import fingerprint
from rbi.data.episode import Array, Feature, FeatureRange
from rbi.data.formats.table_features import encode_rows, is_frame
from rbi.data.visits import PseudoCounts, VisitCounts, visits_from
from rbi.losses import mask_illegal
from rbi.networks import AdvantageBaseline, Networks, TrunkFactory
from rbi.observations import ObservationSpec
from rbi.rules.counts import significant_counts
from rbi.rules.linear import greedy, mix
from rbi.rules.types import Rule, parse_rule, uses_counts
from rbi.suggestions import Suggesting, with_suggestions
from rbi.torch_settings import with_own_settings, with_own_thread

PACKAGE = str(Path(__file__).parent) + os.sep
FORMAT = 3
OLD_HASHES = {"episodes", "states"}
"""Names that digests of episodes and keys of states had when one-hot rows and small integers could have equal ones."""
VECTORS_AT_ONCE, IMAGES_AT_ONCE = 1 << 14, 1 << 10
BETA_TOLERANCE = 1e-3  # of the sum of given probabilities
CONFIG, WEIGHTS, TRAINING = "policy.json", "weights.safetensors", "training.safetensors"

BehaviorSource = Literal["cloned", "logged"]


def check_replaceable(path: Path) -> None:
    """Raise ValueError if a path has something else than a policy, which saving there would remove."""
    is_free = not any(path.iterdir()) or (path / CONFIG).is_file() if path.is_dir() else not path.exists()
    if not is_free:
        raise ValueError(f"{path}: is not empty and not a policy; save the policy to a new folder")


class Policy(Suggesting):
    """A stochastic policy: the improvement rule applied to the networks' beta and Q in every state.

        pi = (1 - c_greedy) rule(beta, Q) + c_greedy greedy(Q)

    beta is the softmax of the policy network's logits divided by `temperature`; without a policy network it is uniform,
    and with the greedy rule pi is then the policy of Q-learning. If `behavior` is "logged", beta is given with every
    call instead: the probabilities of the running system, which the rule then bounds exactly.

    Observations are batches, NumPy arrays or PyTorch tensors, of shape `[B, stack, *shape]`, or `[B, *shape]` if one
    frame is a state. Results are NumPy arrays. A policy with the reroute rule is stochastic: its guarantees hold for
    actions drawn by `act`, not for those of `mode`.

    Args:
        networks: The Q-network and the policy network; they are put into evaluation mode.
        rule: The improvement rule, such as `rbi.Reroute(0.5, 1.5)`.
        c_greedy: Weight of the greedy policy in the mix, in [0, 1].
        temperature: Softmax temperature of beta, from calibration on validation data.
        env: Id of the environment that the policy was trained for.
        metadata: Anything else to store with the policy, as JSON.
        features: Range of the training data's vector observations. The first state that is far outside it causes a
            warning, since the networks only extrapolate there; `outside_range` counts all of them.
        behavior: Where beta comes from: "cloned" (the policy network) or "logged" (the caller).
        advantage_baseline: What the Q-network was trained to subtract from advantages: their mean under a policy, here
            beta, or their plain mean ("mean"). It changes values, not probabilities.
        columns: Columns of the table that the training data came from, with the categories of its texts. With them the
            rows of a DataFrame may be passed as observations.
        action_names: What each action is called in the training data, where that is not its number.
        training_digests: Digests `[E, 2]` of the episodes that trained or selected it (`rbi.data.digests`), uint64.
        visits: How often each action was taken in each training state, or pseudo-counts, for the rule count_aware.
    """

    def __init__(
        self,
        networks: Networks,
        rule: Rule,
        c_greedy: float = 0.0,
        *,
        temperature: float = 1.0,
        env: str = "",
        metadata: dict[str, Any] | None = None,
        features: FeatureRange | None = None,
        behavior: BehaviorSource = "cloned",
        advantage_baseline: AdvantageBaseline = "pi",
        columns: Sequence[Feature] = (),
        action_names: Sequence[str] = (),
        training_digests: Array | None = None,
        visits: VisitCounts | PseudoCounts | None = None,
    ) -> None:
        if behavior not in ("cloned", "logged"):
            raise ValueError(f"behavior = {behavior!r}: must be 'cloned' or 'logged'")
        if advantage_baseline not in ("pi", "mean"):
            raise ValueError(f"advantage_baseline = {advantage_baseline!r}: must be 'pi' or 'mean'")
        if not 0 <= c_greedy <= 1:
            raise ValueError(f"c_greedy = {c_greedy}: must be in [0, 1]")
        if not 0 < temperature < math.inf:
            raise ValueError(f"temperature = {temperature}: must be positive")
        if uses_counts(rule) and visits is None:
            raise ValueError(f"rule {rule}: takes visits, the counts of the training states")
        self.networks, self.visits = networks.eval().requires_grad_(False), visits
        self.rule, self.c_greedy, self.temperature = rule, c_greedy, temperature
        self.behavior: BehaviorSource = behavior
        self.advantage_baseline: AdvantageBaseline = advantage_baseline
        self.env, self.metadata, self.training_digests = env, dict(metadata or {}), training_digests
        self.obs_spec, self.features = networks.obs_spec, features
        if features is not None and (self.obs_spec.is_image or len(features.low) != self.obs_spec.shape[0]):
            raise ValueError(f"features: {len(features.low)} of them for observations of shape {self.obs_spec.shape}")
        self.columns, self.action_names = tuple(columns), tuple(action_names)
        if columns and (sum(column.size for column in columns),) != self.obs_spec.shape:
            raise ValueError(f"columns: they do not have the numbers of observations of shape {self.obs_spec.shape}")
        if action_names and len(action_names) != self.obs_spec.num_actions:
            raise ValueError(f"action_names: {len(action_names)} for {self.obs_spec.num_actions} actions")
        self.states = self.outside_range = 0
        """States that `check_range` has seen, and those of them that are far outside the training range."""
        self._example = next(networks.parameters())

    def __repr__(self) -> str:
        shape = self.obs_spec.shape if self.obs_spec.stack == 1 else (self.obs_spec.stack, *self.obs_spec.shape)
        parts = [str(self.rule), f"obs_shape={shape}", f"num_actions={self.obs_spec.num_actions}"]
        parts += [f"c_greedy={self.c_greedy:g}"] if self.c_greedy else []
        parts += [f"temperature={self.temperature:.3g}"] if self.temperature != 1 else []
        parts += [f"env={self.env!r}"] if self.env else []
        parts += ["behavior='logged'"] if self.behavior == "logged" else []
        return f"Policy({', '.join(parts)}, device={str(self.device)!r})"

    @property
    def device(self) -> torch.device:
        """The device of the networks."""
        return self._example.device

    @with_suggestions
    @with_own_thread
    def predict_proba(self, obs: Any, legal: Any = None, beta: Any = None) -> Array:
        """Action probabilities `[B, A]`. `legal`, booleans or zeros and ones `[B, A]`, restricts the policy to some
        actions, which are in the order of `action_names`.

        `beta`: the running system's probabilities `[B, A]`, which a policy with `behavior="logged"` takes.
        """
        states = self.obs_tensor(obs)
        given = self.beta_tensor(beta, len(states))
        probs = self.in_blocks(self.probs, states, self.legal_tensor(legal, len(states)), given)
        if np.isnan(probs).any():
            row = int(np.isnan(probs).any(1).argmax())
            raise ValueError(
                f"obs[{row}]: the networks' outputs are not finite; is it far from what they learned from?"
            )
        return probs

    @with_suggestions
    @with_own_thread
    def predict_value(self, obs: Any, legal: Any = None, beta: Any = None) -> Array:
        """The estimated value of the policy `[B]`: V(s) = sum_a pi(a|s) Q(s, a), in units of discounted return."""
        states = self.obs_tensor(obs)
        given = self.beta_tensor(beta, len(states))
        return self.in_blocks(self.values, states, self.legal_tensor(legal, len(states)), given)

    @with_suggestions
    def act(self, obs: Any, rng: np.random.Generator | int | None = None, legal: Any = None, beta: Any = None) -> Array:
        """Actions `[B]` drawn from the policy: their names if the training data has names, else their numbers.

        `rng` is a NumPy generator or a seed; without it, draws cannot be repeated. In a loop pass a generator: the same
        seed gives the same draws in every call.
        """
        return self.named(self.draw(self.predict_proba(obs, legal, beta), rng))

    def draw(self, probs: Array, rng: np.random.Generator | int | None) -> Array:
        """The numbers `[B]` of actions drawn from probabilities `[B, A]`."""
        try:
            generator = np.random.default_rng(rng)
        except TypeError:
            raise TypeError(f"rng is of type {type(rng).__name__}: must be a NumPy generator or a seed") from None
        except ValueError:
            raise ValueError(f"rng = {rng!r}: must be a NumPy generator or a seed, at least 0") from None
        return draw_actions(probs, generator.random((len(probs), 1)))

    def named(self, actions: Array) -> Array:
        """Actions by name where there are names."""
        return np.array(self.action_names)[actions] if self.action_names else actions

    @with_suggestions
    def mode(self, obs: Any, legal: Any = None, beta: Any = None) -> Array:
        """The most probable actions `[B]`, by name where there are names. This argmax leaves the reroute set: its ratio
        to beta is unbounded."""
        return self.named(self.predict_proba(obs, legal, beta).argmax(1))

    def probs(
        self, obs: torch.Tensor, legal: torch.Tensor | None = None, beta: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`predict_proba` without conversions: tensors `[B, stack, *shape]` and `[B, A]` on the policy's device."""
        return self.improve(*self.beta_and_q(obs, beta, legal), legal, self.counts(obs))

    def values(
        self, obs: torch.Tensor, legal: torch.Tensor | None = None, beta: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`predict_value` without conversions."""
        beta, q = self.beta_and_q(obs, beta, legal)
        return (self.improve(beta, q, legal, self.counts(obs)) * q).sum(1)

    def in_blocks(self, compute: Callable[..., torch.Tensor], *given: torch.Tensor | None) -> Array:
        """The result for tensors of states, computed in blocks of them: the hidden layers of a million states take
        gigabytes, and more time, since they do not fit into a CPU's caches."""
        size = IMAGES_AT_ONCE if self.obs_spec.is_image else VECTORS_AT_ONCE
        columns = (itertools.repeat(None) if part is None else torch.split(part, size) for part in given)
        blocks = zip(*columns, strict=False)  # what is missing is missing in every block
        return np.concatenate([compute(*block).cpu().numpy() for block in blocks])

    def counts(self, obs: torch.Tensor) -> torch.Tensor | None:
        """Visits `[B, A]` of the states `[B, stack, *shape]`, if the rule takes them."""
        return self.visit_counts(obs) if uses_counts(self.rule) else None

    def visit_counts(self, obs: torch.Tensor) -> torch.Tensor | None:
        """Visits `[B, A]` of the states `[B, stack, *shape]` in the training data, if the policy knows them."""
        if isinstance(self.visits, PseudoCounts):
            with torch.no_grad():
                return self.visits.of(self.networks.q.features(self.obs_spec.preprocess(obs, self._example.dtype)))
        if self.visits is None:
            return None
        return torch.as_tensor(self.visits.of(obs[:, -1].cpu().numpy())).to(obs.device)

    def beta_and_q(
        self, obs: torch.Tensor, beta: torch.Tensor | None = None, legal: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """beta (the clone's, or the given one) and Q, `[B, A]` each. Policies that share networks differ in `improve`
        only. `legal` restricts the clone of a policy that learned with action masks, whose Q is relative to it."""
        if beta is None and self.behavior == "logged":
            raise ValueError("beta is missing: this policy changes the running system's probabilities, so pass them")
        with torch.no_grad():
            x = self.obs_spec.preprocess(obs, self._example.dtype)
            if beta is None:
                if self.networks.pi is None:
                    q, _ = self.networks.q(x)
                    return torch.full_like(q, 1 / self.obs_spec.num_actions), q
                legal = legal if self.obs_spec.has_action_masks else None
                beta = torch.softmax(mask_illegal(self.networks.pi(x) / self.temperature, legal), 1)
            return beta, self.networks.q(x, beta if self.advantage_baseline == "pi" else None)[0]

    def improve(
        self,
        beta: torch.Tensor,
        q: torch.Tensor,
        legal: torch.Tensor | None = None,
        counts: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The improvement step from beta and Q to pi, `[B, A]` each; NaN where beta or Q is not finite.

        `counts`: visits `[B, A]`, for a rule that takes them; they count where an action is clearly better than beta.
        """
        more: dict[str, Any] = {}
        if uses_counts(self.rule):
            sigma = self.visits.sigma if self.visits is not None else 0.0
            more["counts"] = counts if counts is None else significant_counts(beta, q, counts, sigma)
        pi = self.rule(beta, q, legal=legal, check=False, **more)
        if self.c_greedy:
            pi = mix(pi, greedy(beta, q, legal=legal, check=False), self.c_greedy, check=False)
        return pi + 0 * (beta + q)  # comparisons inside the rules would hide a NaN

    def encode(self, frame: Any) -> Array:
        """Observations `[B, size]` from the rows of a DataFrame, with the columns and categories of the training data.

        Texts that the training data does not have cause a warning, as do missing numbers of columns that never miss one
        there (the training median is used); `check_range` counts rows with unknown texts.
        """
        if not self.columns:
            raise ValueError("this policy was not trained on a table with named columns: pass arrays of observations")
        found = encode_rows(frame, self.columns)
        for name, texts in found.unknown.items():
            shown = ", ".join(repr(text[:40]) for text in list(texts)[:3])
            rows = sum(texts.values())
            warn(f"column {name!r}: {rows:,} rows have unknown texts ({shown}, ...)")
        for name, rows in found.blanks.items():
            warn(f"column {name!r}: is missing in {rows:,} rows, and never in the training data")
        return found.observations

    def obs_tensor(self, obs: Any) -> torch.Tensor:
        """Observations as a tensor `[B, stack, *shape]` on the policy's device; rows of a DataFrame are encoded.

        Raises ValueError for other shapes, for vectors that are not finite in float32 and for images that are not
        whole numbers from 0 to 255.
        """
        if is_frame(obs):
            obs = self.encode(obs)
        try:
            given = as_tensor(obs)
        except (TypeError, ValueError) as error:
            raise ValueError(self.unreadable(obs, error)) from None
        if given.is_complex():
            raise ValueError(f"obs holds {given.dtype}: must be real numbers")
        expected = (self.obs_spec.stack, *self.obs_spec.shape)
        if self.obs_spec.stack == 1 and given.shape[1:] == self.obs_spec.shape:
            given = given[:, None]
        if given.shape[1:] != expected:
            one = self.obs_spec.shape if self.obs_spec.stack == 1 else expected
            advice = "; for a single observation give obs[None]" if given.shape == one else ""
            shown = f"[B, {', '.join(map(str, one))}]"
            raise ValueError(f"obs has shape {list(given.shape)}: this policy takes batches of shape {shown}{advice}")
        if self.obs_spec.is_image:
            possible = given == given.clamp(0, 255).floor() if given.dtype != torch.uint8 else None
            reason = "holds a value that is not a byte: images are whole numbers from 0 to 255"
        else:
            given = given.to(torch.float32)  # what float32 cannot hold becomes infinite
            possible, reason = torch.isfinite(given), "holds a value that is not finite in float32"
        if possible is not None and not bool(possible.all()):
            raise ValueError(f"obs[{int((~possible.flatten(1).all(1)).nonzero()[0])}] {reason}")
        if self.features is not None:
            self.check_range(given[:, -1].cpu().numpy())
        return given.to(self._example.device, self.obs_spec.dtype)

    def unreadable(self, obs: Any, error: Exception) -> str:
        """Why observations are no numbers, and what to pass."""
        if self.columns:
            names = ", ".join(column.name for column in self.columns)
            return (
                f"obs cannot be read as numbers: pass rows as a DataFrame or pyarrow Table with the columns {names}; "
                "of dicts, pyarrow.Table.from_pylist(rows)"
            )
        if isinstance(obs, (dict, tuple)):
            return (
                f"obs is a {type(obs).__name__}: flatten Dict and Tuple observations as in training, by "
                "gymnasium.spaces.flatten, to [B, D]"
            )
        return f"obs cannot be read as numbers ({str(error).splitlines()[0]})"

    def check_range(self, obs: Array) -> None:
        """Count the observations `[B, D]` that are far outside the training range; the first one causes a warning."""
        if self.features is None:
            return
        outside = self.features.outside(obs, self.columns)
        rows = outside.any(1)
        if rows.any() and not self.outside_range:
            row = int(rows.argmax())
            number = int(outside[row].argmax())
            reason = self.features.describe(number, float(obs[row, number]), self.columns)
            warn(f"obs[{row}] {reason}; networks extrapolate there (warned once)")
        self.states += len(obs)
        self.outside_range += int(rows.sum())

    def legal_tensor(self, legal: Any, count: int) -> torch.Tensor | None:
        """Legal actions, booleans or zeros and ones, as a boolean tensor `[B, A]`.

        Raises ValueError if a state has no legal action, and if they are missing though the policy learned with action
        masks.
        """
        if legal is None:
            if self.obs_spec.has_action_masks:
                raise ValueError("legal is missing: this policy learned with action masks, so pass those of the states")
            return None
        try:
            given = None if is_frame(legal) else as_tensor(legal)  # a table's columns may be in any order
        except (TypeError, ValueError):
            given = None
        if given is None:
            found = "a table" if is_frame(legal) else "no array of booleans"
            names = ", ".join(map(str, self.action_names)) or "their numbers"
            raise ValueError(f"legal is {found}: pass an array [B, A], with actions in the policy's order ({names})")
        expected = (count, self.obs_spec.num_actions)
        if given.dtype != torch.bool and bool(((given == 0) | (given == 1)).all()):  # as Gymnasium's masks are
            given = given.bool()
        if given.shape != expected or given.dtype != torch.bool:
            raise ValueError(
                f"legal has shape {tuple(given.shape)}, {given.dtype}: must be booleans, or zeros and ones, {expected}"
            )
        if not bool(given.any(1).all()):
            raise ValueError(f"legal[{int(given.any(1).byte().argmin())}]: no action is legal")
        return given.to(self._example.device)

    def beta_tensor(self, beta: Any, count: int) -> torch.Tensor | None:
        """The given beta as a tensor `[B, A]`. Raises ValueError unless it is given where `behavior` asks for it."""
        if beta is None:
            return None
        if self.behavior == "cloned":
            raise ValueError("beta was given, but this policy has cloned it")
        expected = (count, self.obs_spec.num_actions)
        try:
            given = as_tensor(beta, np.float32).to(torch.float32)
        except (TypeError, ValueError):
            raise ValueError(f"beta is no array of numbers: must be probabilities {expected}") from None
        if given.shape != expected:
            raise ValueError(f"beta has shape {tuple(given.shape)}: must be probabilities {expected}")
        good = (given >= 0).all(1) & ((given.sum(1) - 1).abs() <= BETA_TOLERANCE)
        if not bool(good.all()):
            row = int((~good).byte().argmax())
            raise ValueError(f"beta[{row}] = {given[row].tolist()}: must be probabilities that sum to 1")
        return (given / given.sum(1, keepdim=True)).to(self._example.device)

    def with_rule(self, rule: Rule) -> "Policy":
        """The policy of another rule on the same networks, without the greedy mix."""
        found = copy.copy(self)
        found.rule, found.c_greedy, found.states, found.outside_range = rule, 0.0, 0, 0
        return found

    def with_networks(self, networks: Networks) -> "Policy":
        """The same policy with other networks of the same architecture."""
        found = copy.copy(self)
        found.networks, found._example, found.states, found.outside_range = networks, next(networks.parameters()), 0, 0
        return found

    def to(self, device: torch.device | str) -> "Policy":
        """Move the networks and pseudo-counts to a device."""
        self.networks.to(device)
        if isinstance(self.visits, PseudoCounts):
            self.visits = self.visits.to(device)
        return self

    def save(self, path: Path | str) -> None:
        """Write the policy into a folder, which replaces that of an earlier policy only once it is complete.

        Raises ValueError, and writes nothing, if the path has something else than a policy, for weights that are not
        finite (training diverged), and if `load_policy` could not restore the rule: register a rule of your own with
        `rbi.register_rule`.
        """
        path = fileio.resolve(path)  # a link stays a link
        check_replaceable(path)
        check_restorable(self.rule)
        config = {
            "format": FORMAT,
            "obs_spec": asdict(self.obs_spec),
            "networks": self.networks.describe(),
            "rule": str(self.rule),
            "c_greedy": self.c_greedy,
            "temperature": self.temperature,
            "env": self.env,
            "behavior": self.behavior,
            "advantage_baseline": self.advantage_baseline,
            "metadata": self.metadata,
            "features": None if self.features is None else asdict(self.features),
            "columns": [asdict(column) for column in self.columns],
            "action_names": list(self.action_names),
        }
        weights = {name: for_file(tensor) for name, tensor in self.networks.state_dict().items()}
        check_finite(weights, "the policy cannot be saved")
        with fileio.atomic_folder(path) as folder:
            save_file(weights, folder / WEIGHTS)
            checksums = {"weights": fingerprint(folder / WEIGHTS)}
            training = {} if self.training_digests is None else {"digests": self.training_digests}
            training |= {} if self.visits is None else self.visits.arrays()
            if training:
                save_arrays({name: np.ascontiguousarray(part) for name, part in training.items()}, folder / TRAINING)
                checksums["training"] = fingerprint(folder / TRAINING)
            fileio.write_json(folder / CONFIG, config | checksums)

    @with_own_settings
    def export_onnx(self, path: Path | str, *, columns: bool = True, legal: bool = False) -> float:
        """Write the policy to one ONNX file: preprocessing, both networks and the rule, for any number of states.

        The file's inputs are `obs`, or for a policy with columns of a table one input per column (`[B, 1]`, texts as
        strings); `legal` adds an input for legal actions. Outputs: `probs`, `q` and `behavior_probs`. Its metadata has
        the names of actions and columns, the rule, digests and the version of this package (`rbi.export`).

        onnxruntime computes the graph before the file appears, whole or not at all; an earlier file is replaced.
        Returns the largest difference between its probabilities and those of PyTorch. Raises ValueError for a rule
        without a closed form (`forward_kl(radius=...)`, `backward_kl`). Needs `pip install 'rbi[export]'`.
        """
        export.check_file(path)
        model = export.onnx_model(self, columns=columns, legal=legal)
        model.write(path)
        return model.difference


def as_tensor(values: Any, dtype: Any = None) -> torch.Tensor:
    """A tensor of an array of any strides, or of nested lists, converted to a dtype; tensors keep their own."""
    if isinstance(values, torch.Tensor):
        return values.detach()
    return torch.as_tensor(np.require(values, dtype, ["C", "W"]))


def warn(message: str) -> None:
    """A warning that points at the line of the program that called this package."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def draw_actions(probs: Array, uniform: Array) -> Array:
    """The numbers `[B]` of actions drawn from probabilities `[B, A]`, with uniform numbers from [0, 1) `[B, 1]`.

    Probabilities of float32 may add up to less than 1, so that the uniform numbers are scaled: an action of probability
    0 is never drawn.
    """
    cumulative = probs.cumsum(1, dtype=np.float64)
    return (uniform * cumulative[:, -1:] >= cumulative).sum(1)


def check_restorable(rule: Any) -> None:
    """Raise ValueError unless the rule's text parses back to an equal rule."""
    try:
        restorable = isinstance(rule, Rule) and parse_rule(str(rule), counts=True) == rule
    except ValueError:
        restorable = False
    if not restorable:
        raise ValueError(
            f"rule {rule!r} cannot be saved, since load_policy could not restore it: "
            "derive its class from rbi.Rule and register it with rbi.register_rule"
        )


def for_file(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the CPU; floating-point weights in float32."""
    found = tensor.detach().cpu().contiguous()
    return found.float() if found.is_floating_point() else found


def check_finite(weights: Mapping[str, torch.Tensor], where: str) -> None:
    """Raise ValueError for weights that are NaN or infinite: such a policy would always take the first action."""
    for name, tensor in weights.items():
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{where}: {name} holds values that are not finite")


@with_own_settings
def load_policy(path: Path | str, *, trunk: TrunkFactory | None = None) -> Policy:
    """Load a policy from a folder that `Policy.save` wrote, or the best policy of a training run.

    Everything is checked first: settings, sizes of the weights in the file, that they are finite, the file's checksum.

    `trunk`: the function that made the trunk, for a policy with a custom one (its code is not saved). A custom rule has
    to be registered first, with `rbi.register_rule`.
    """
    path = find_policy(path)
    config = fileio.parse(path / CONFIG, fileio.read_text(path / CONFIG), 1)
    if config.get("format") != FORMAT:
        raise ValueError(f"{path / CONFIG}: is of format {config.get('format')!r}; this version reads {FORMAT}")
    with errors_named(path / CONFIG):
        spec = config["obs_spec"]
        scale = tuple(spec.get("scale", ()))
        has_masks = spec.get("has_action_masks", False)
        obs_spec = ObservationSpec(tuple(spec["shape"]), spec["stack"], spec["num_actions"], scale, has_masks)
        rule = parse_rule(config["rule"], counts=True)
        numbers = {name: config[name] for name in ("c_greedy", "temperature")}
        env, metadata = config["env"], config["metadata"]
        if not isinstance(env, str) or not isinstance(metadata, dict):
            raise ValueError("env must be a string and metadata an object")
        if any(type(value) not in (int, float) for value in numbers.values()):
            raise ValueError("c_greedy and temperature must be numbers")
        features = config.get("features")
        if features is not None:
            features = FeatureRange(**{name: tuple(values) for name, values in features.items()})
        with torch.device("meta") if trunk is None else contextlib.nullcontext():  # sizes only, no memory
            networks = Networks.from_description(obs_spec, config["networks"], trunk)
    load_weights(networks, path / WEIGHTS)
    if fingerprint(path / WEIGHTS) != config.get("weights"):
        raise ValueError(f"{path / WEIGHTS}: is damaged (size or checksum is not the one in {CONFIG})")
    training = load_training(path / TRAINING, config["training"]) if "training" in config else {}
    with errors_named(path / CONFIG):
        return Policy(
            networks,
            rule,
            env=env,
            metadata=metadata,
            features=features,
            behavior=config.get("behavior", "cloned"),
            advantage_baseline=config.get("advantage_baseline", "pi"),
            columns=Feature.from_json(config.get("columns", [])),
            action_names=[str(name) for name in config.get("action_names", [])],
            training_digests=training.get("digests"),
            visits=visits_from(training),
            **numbers,
        )


def find_policy(path: Path | str) -> Path:
    """The folder of a policy, or that of the best or last policy in a run folder."""
    if not isinstance(path, str | os.PathLike):
        inner = "; give its .policy" if isinstance(getattr(path, "policy", None), Policy) else ""
        raise TypeError(
            f"the policy is of type {type(path).__name__}: must be a Policy or the path of its folder{inner}"
        )
    path = fileio.as_path(path)
    fileio.check_exists(path)
    places = (path, path / "policies" / "best", path / "policies" / "last")
    found = next((place for place in places if (place / CONFIG).is_file()), None)
    if found is None:
        raise ValueError(f"{path}: holds no policy (it has no {CONFIG})")
    return found


def load_training(path: Path, checksum: Any) -> dict[str, Array]:
    """What a policy keeps of its training episodes. Raises ValueError unless the file is the one that was saved."""
    if not path.is_file() or fingerprint(path) != checksum:
        raise ValueError(f"{path}: is missing or damaged (size or checksum is not the one in {CONFIG})")
    found = load_arrays(path)
    if not OLD_HASHES.isdisjoint(found):
        raise ValueError(f"{path}: an earlier version wrote it, which mixed up some states and episodes; train again")
    return found


@contextlib.contextmanager
def errors_named(path: Path) -> Iterator[None]:
    """Turn what an odd config raises into a ValueError of one line that names the file."""
    try:
        yield
    except KeyError as error:
        raise ValueError(f"{path}: lacks {error}") from None
    except (TypeError, ValueError, RuntimeError, ArithmeticError, AttributeError) as error:
        raise ValueError(f"{path}: {(str(error) or type(error).__name__).splitlines()[0]}") from None


def load_weights(networks: Networks, path: Path) -> None:
    """Replace the networks' weights by those of a file. Raises ValueError unless names, sizes and values fit."""
    wanted = networks.state_dict()
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is not a dictionary
                if name not in wanted:
                    raise ValueError(f"{path}: holds {name!r}, which the networks of {CONFIG} do not have")
            for name, tensor in wanted.items():
                shape = tuple(file.get_slice(name).get_shape())
                if shape != tuple(tensor.shape):
                    raise ValueError(f"{path}: {name} has shape {shape}, but {CONFIG} asks for {tuple(tensor.shape)}")
            weights = {name: file.get_tensor(name).to(tensor.dtype, copy=True) for name, tensor in wanted.items()}
    except (safetensors.SafetensorError, RuntimeError, OSError) as error:
        raise ValueError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from None
    check_finite(weights, str(path))
    networks.load_state_dict(weights, assign=True)
