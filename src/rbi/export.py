"""Policies as ONNX files: preprocessing, both networks and the improvement rule in one graph.

    inputs    obs               [B, *shape] float32, or uint8 images [B, stack, height, width, ...]
              (columns)         [B, 1] in place of obs if the policy has columns of a table: strings for texts, float32
                                for numbers (NaN where one is missing) and dates (days since 1970-01-01)
              behavior_probs    [B, A] float32, if the policy takes the running system's probabilities
              legal             [B, A] bool, if asked for
    outputs   probs             [B, A] what `Policy.predict_proba` gives; NaN where an input is not finite
              q                 [B, A]
              behavior_probs    [B, A] the cloned beta, unless it is an input

The graph comes from PyTorch's own exporter, `torch.onnx.export`, which traces the policy: no network or rule is written
a second time. Before a file is written, onnxruntime computes it and the results are compared with PyTorch's.
"""

import contextlib
import copy
import hashlib
import importlib
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rbi import __version__, fileio
from rbi.data.episode import Feature, feature_slices
from rbi.data.visits import VisitCounts
from rbi.networks import Layer
from rbi.rules.types import uses_counts

if TYPE_CHECKING:
    from rbi.policy import Policy

OPSET, ML_OPSET = 18, 3  # the lowest that PyTorch's exporter writes; onnxruntime reads it from 1.14 on
TOLERANCE = 1e-5
CHECKED_STATES = 64
PACKAGES = ("onnx", "onnxscript", "onnxruntime")


class PolicyGraph(nn.Module):
    """A policy as a module from tensors to tensors, with batch norm folded into the layers before it."""

    def __init__(self, policy: "Policy") -> None:
        super().__init__()
        self.policy = on_cpu(policy, torch.float64)
        self.networks = self.policy.networks
        for layer in self.networks.modules():
            if isinstance(layer, Layer):
                layer.fold_batch_norm()
        self.networks.float()

    def forward(self, obs: Tensor, behavior_probs: Tensor | None = None, legal: Tensor | None = None) -> Any:
        """probs, q, and beta if it is not given."""
        spec = self.policy.obs_spec
        states = obs[:, None] if spec.stack == 1 and spec.is_image else obs
        beta, q = self.policy.beta_and_q(states, behavior_probs, legal)
        probs = self.policy.improve(beta, q, legal, self.policy.counts(states))
        if not spec.is_image:
            probs = probs + 0 * obs.flatten(1).sum(1, keepdim=True)  # ReLU would hide an infinity
        return (probs, q, beta) if behavior_probs is None else (probs, q)


def on_cpu(policy: "Policy", dtype: torch.dtype) -> "Policy":
    """A copy of a policy on the CPU, in another precision."""
    return policy.with_networks(copy.deepcopy(policy.networks).to("cpu", dtype))


class OnnxModel(NamedTuple):
    """A policy as ONNX."""

    content: bytes
    """What the file holds."""
    difference: float
    """Largest difference between the probabilities of onnxruntime and of PyTorch."""

    def write(self, path: Path | str) -> None:
        """Write the file, whole or not at all; an earlier one is replaced."""
        fileio.atomic_write(fileio.as_path(path), lambda at: at.write_bytes(self.content))


def onnx_model(policy: "Policy", *, columns: bool = True, legal: bool = False) -> OnnxModel:
    """The ONNX model of a policy, compared with PyTorch (see `Policy.export_onnx`)."""
    if not getattr(policy.rule, "is_closed_form", True):  # a function may take the place of a rule
        raise ValueError(f"rule {policy.rule}: cannot be exported, because it solves an equation in every state")
    if policy.obs_spec.has_action_masks and not legal:
        raise ValueError("legal (--legal): this policy learned with action masks, which are an input of the file then")
    if uses_counts(policy.rule) and isinstance(policy.visits, VisitCounts):
        raise ValueError(f"rule {policy.rule}: cannot be exported, because it looks up visits of the training states")
    onnx, *_ = [require(package) for package in PACKAGES]
    features = policy.columns if columns and policy.obs_spec.stack == 1 else ()
    inputs = example_inputs(policy, legal=legal)
    outputs = ["probs", "q"] + ["behavior_probs"] * (policy.behavior == "cloned")
    model = trace(PolicyGraph(policy).eval(), inputs, outputs, str(policy.rule))
    if features:
        add_columns(onnx, model, features)
    metadata = describe(policy, features)
    onnx.helper.set_model_props(model, {name: as_text(value) for name, value in metadata.items()})
    model.producer_name, model.producer_version = "rbi", __version__
    content = model.SerializeToString()
    return OnnxModel(content, compare(content, policy, inputs, features))


def check_file(path: Path | str) -> None:
    """Raise OSError, before any work, if no file can be written at a path."""
    path = fileio.as_path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path}: is a folder; name a file")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {path.parent}")


def require(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise ValueError(f"exporting to ONNX needs {package}: pip install 'rbi[export]'") from None


def example_inputs(policy: "Policy", *, legal: bool) -> dict[str, Tensor]:
    """Inputs by name: random states, within the range of the training data where it is known."""
    spec, rng = policy.obs_spec, np.random.default_rng(0)
    shape = (CHECKED_STATES, *(() if spec.stack == 1 else (spec.stack,)), *spec.shape)
    if spec.is_image:
        obs = rng.integers(0, 256, shape, dtype=np.uint8)
    elif policy.features is not None:
        obs = rng.uniform(policy.features.low, policy.features.high, shape).astype(np.float32)
    else:
        obs = rng.normal(size=shape).astype(np.float32)
    for feature, place in feature_slices(policy.columns):
        part = obs[..., place]
        if feature.categories:
            part[:] = np.eye(feature.size, dtype=np.float32)[rng.integers(feature.size, size=shape[:-1])]
        elif feature.has_missing:
            part[..., 1] = rng.random(shape[:-1]) < 0.3
            part[..., 0] = np.where(part[..., 1], feature.fill or 0.0, part[..., 0])
    found = {"obs": torch.from_numpy(obs)}
    if policy.behavior == "logged":
        beta = rng.dirichlet(np.ones(spec.num_actions), CHECKED_STATES).astype(np.float32)
        found["behavior_probs"] = torch.from_numpy(beta)
    if legal:
        masks = rng.random((CHECKED_STATES, spec.num_actions)) < 0.7
        masks[np.arange(CHECKED_STATES), rng.integers(spec.num_actions, size=CHECKED_STATES)] = True
        found["legal"] = torch.from_numpy(masks)
    return found


def trace(graph: nn.Module, inputs: dict[str, Tensor], outputs: Sequence[str], rule: str) -> Any:
    """The ONNX model of a module, with any number of states."""
    few = {name: tensor[:2] for name, tensor in inputs.items()}
    batch = torch.export.Dim("batch", max=2**31)  # PyTorch 2.6 needs a limit
    with quiet():
        try:
            program = torch.onnx.export(
                graph, kwargs=few, output_names=list(outputs), opset_version=OPSET, dynamo=True,
                dynamic_shapes={name: {0: batch} for name in few}, external_data=False, optimize=True,
                verbose=False,
            )  # fmt: skip
        except torch.onnx.OnnxExporterError as error:
            reason = str(error.__cause__ or error).splitlines()[0]
            raise ValueError(f"PyTorch cannot export these networks with the rule {rule} ({reason})") from error
        assert program is not None
        return program.model_proto


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the exporter's own deprecation warnings, and its hints about packages that are not needed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def add_columns(onnx: Any, model: Any, features: Sequence[Feature]) -> None:
    """Replace the input `obs` by one input per column of a table: numbers `[B, 1]`, or texts that become one-hot."""
    helper, graph = onnx.helper, model.graph
    batch = graph.input[0].type.tensor_type.shape.dim[0].dim_param
    others = [value for value in graph.input if value.name != "obs"]
    names = [feature.name for feature in features] + [value.name for value in others]
    taken = {value.name for value in graph.output} | {""}
    for name in names:
        if name in taken:
            raise ValueError(f"column {name!r}: cannot name an input of the graph; export with columns=False")
        taken.add(name)
    rename_inner(graph)
    inputs, nodes, parts = [], [], []
    for number, feature in enumerate(features):
        kind = onnx.TensorProto.STRING if feature.categories else onnx.TensorProto.FLOAT
        inputs.append(helper.make_tensor_value_info(feature.name, kind, [batch, 1]))
        encoder = encode_text if feature.categories else encode_number
        made, constants, encoded = encoder(onnx, feature, f"columns/{number}/")
        nodes += made
        graph.initializer.extend(constants)
        parts += encoded
    nodes.append(helper.make_node("Concat", parts, ["policy/obs"], axis=1))
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", ML_OPSET))
    replace(graph.input, [*inputs, *others])
    replace(graph.node, [*nodes, *graph.node])


class Encoding(NamedTuple):
    """How a column becomes numbers: nodes, constants, and the names of their outputs."""

    nodes: list[Any]
    constants: list[Any]
    outputs: list[str]


def encode_text(onnx: Any, feature: Feature, prefix: str) -> Encoding:
    """One-hot; zeros for a text that is no category."""
    code, places, is_here, one_hot = (prefix + name for name in ("code", "places", "is_here", "one_hot"))
    nodes = [
        onnx.helper.make_node(
            "LabelEncoder", [feature.name], [code], domain="ai.onnx.ml", keys_strings=feature.categories,
            values_int64s=range(feature.size), default_int64=-1,
        ),
        onnx.helper.make_node("Equal", [code, places], [is_here]),
        onnx.helper.make_node("Cast", [is_here], [one_hot], to=onnx.TensorProto.FLOAT),
    ]  # fmt: skip
    constant = onnx.helper.make_tensor(places, onnx.TensorProto.INT64, [1, feature.size], range(feature.size))
    return Encoding(nodes, [constant], [one_hot])


def encode_number(onnx: Any, feature: Feature, prefix: str) -> Encoding:
    """The number itself; a missing one (NaN) is filled, and marked where the training data has missing ones."""
    if feature.fill is None:
        return Encoding([], [], [feature.name])
    is_missing, fill, number, mark = (prefix + name for name in ("is_missing", "fill", "number", "mark"))
    nodes = [
        onnx.helper.make_node("IsNaN", [feature.name], [is_missing]),
        onnx.helper.make_node("Where", [is_missing, fill, feature.name], [number]),
    ]
    if feature.has_missing:
        nodes.append(onnx.helper.make_node("Cast", [is_missing], [mark], to=onnx.TensorProto.FLOAT))
    constant = onnx.helper.make_tensor(fill, onnx.TensorProto.FLOAT, [1, 1], [feature.fill])
    return Encoding(nodes, [constant], [number, mark] if feature.has_missing else [number])


def rename_inner(graph: Any) -> None:
    """Prefix the names of all values but inputs and outputs, so that no name of a column is taken."""
    kept = {value.name for value in (*graph.input, *graph.output)} - {"obs"} | {""}
    for node in graph.node:
        replace(node.input, [name if name in kept else f"policy/{name}" for name in node.input])
        replace(node.output, [name if name in kept else f"policy/{name}" for name in node.output])
    for value in (*graph.initializer, *graph.value_info):
        value.name = value.name if value.name in kept else f"policy/{value.name}"


def replace(field: Any, values: Sequence[Any]) -> None:
    values = list(values)
    del field[:]
    field.extend(values)


def describe(policy: "Policy", features: Sequence[Feature]) -> dict[str, Any]:
    """The file's metadata: what a server has to know about the policy."""
    names = policy.action_names or [str(action) for action in range(policy.obs_spec.num_actions)]
    digests = policy.training_digests
    known = policy.features
    return {
        "rbi_version": __version__,
        "rule": str(policy.rule),
        "c_greedy": policy.c_greedy,
        "temperature": policy.temperature,
        "behavior": policy.behavior,
        "actions": list(names),
        "inputs": "columns" if features else "obs",
        "columns": [asdict(column) for column in policy.columns],
        "features": None if known is None else {"names": known.names, "low": known.low, "high": known.high},
        "env": policy.env,
        "policy_digest": policy_digest(policy),
        "training_digest": None if digests is None else hashlib.sha256(np.sort(digests, 0).tobytes()).hexdigest()[:16],
    }


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def policy_digest(policy: "Policy") -> str:
    """16 hexadecimal digits of the SHA-256 of weights, rule and numbers: equal policies have equal digests."""
    found = hashlib.sha256(f"{policy.rule} {policy.c_greedy!r} {policy.temperature!r} {policy.behavior}".encode())
    for name, tensor in policy.networks.state_dict().items():
        found.update(name.encode())
        found.update(tensor.detach().cpu().float().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def compare(content: bytes, policy: "Policy", inputs: dict[str, Tensor], features: Sequence[Feature]) -> float:
    """The largest difference of probabilities between onnxruntime and PyTorch. Raises ValueError if it is too large.

    beta and Q may be off by 1e-5, or by four times what float32 itself costs. The rule is compared on the graph's own
    beta and Q: otherwise a tie that rounding breaks may move much probability.
    """
    session = require("onnxruntime").InferenceSession(content, providers=["CPUExecutionProvider"])
    found = run_session(session, inputs, features)
    single = run_session(session, {name: tensor[:1] for name, tensor in inputs.items()}, features)
    check_difference("a single state", single["q"], found["q"][:1], TOLERANCE * max(1.0, float(found["q"].abs().max())))
    obs = inputs["obs"][:, None] if policy.obs_spec.stack == 1 else inputs["obs"]
    given, legal = inputs.get("behavior_probs"), inputs.get("legal")
    wanted, exact = (on_cpu(policy, dtype).beta_and_q(obs, given, legal) for dtype in (torch.float32, torch.float64))
    for name, value, best in zip(("behavior_probs", "q"), wanted, exact, strict=True):
        allowed = max(TOLERANCE * max(1.0, float(value.abs().max())), 4 * float((value - best).abs().max()))
        check_difference(name, found.get(name, value), value, allowed)
    beta, counts = found.get("behavior_probs", wanted[0]), on_cpu(policy, torch.float32).counts(obs)
    check_difference(f"rule {policy.rule}", found["probs"], policy.improve(beta, found["q"], legal, counts), TOLERANCE)
    return float((found["probs"] - policy.improve(*wanted, legal, counts)).abs().max())


def check_difference(name: str, found: Tensor, wanted: Tensor, allowed: float) -> None:
    difference = float((found - wanted).abs().max())
    if not difference <= allowed:
        raise ValueError(f"{name}: in ONNX it differs from PyTorch by {difference:.2g}, so nothing was written")


def run_session(session: Any, inputs: dict[str, Tensor], features: Sequence[Feature]) -> dict[str, Tensor]:
    """The outputs of an onnxruntime session by name; observations are given as columns if the graph takes those."""
    given = {name: tensor.numpy() for name, tensor in inputs.items()}
    if features:
        obs = given.pop("obs")
        for feature, place in feature_slices(features):
            part = obs[..., place]
            if feature.categories:
                given[feature.name] = np.array(feature.categories, dtype=object)[part.argmax(1)][:, None]
            else:
                missing = part[:, 1:] if feature.has_missing else np.zeros_like(part)
                given[feature.name] = np.where(missing, np.float32(np.nan), part[:, :1])
    names = [output.name for output in session.get_outputs()]
    return {name: torch.from_numpy(value) for name, value in zip(names, session.run(names, given), strict=True)}
