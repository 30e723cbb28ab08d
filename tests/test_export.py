"""Policies as ONNX files: onnxruntime computes what PyTorch computes, and a server logs what `rbi improve` reads."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

import rbi
from rbi import cli, export, runs
from rbi.data.episode import Feature, FeatureRange
from rbi.data.formats import FormatSettings, TableConfig
from rbi.data.visits import PseudoCounts, VisitCounts
from rbi.gpu import layers
from rbi.networks import NetworkConfig, make_networks, offline_network
from rbi.observations import ObservationSpec
from rbi.policy import Policy

onnxruntime = pytest.importorskip("onnxruntime")

COLUMNS = (Feature("age"), Feature("segment", ("", "new", "old")), Feature("income", fill=30.0, has_missing=True))
ACTIONS = ("bundle", "discount", "none")
SERVE = Path(__file__).parent.parent / "examples" / "serve.py"
RULES = [
    "reroute(0.5,1.5)",
    "reroute(0,inf)",
    "tv(0.25)",
    "ppo(0.2)",
    "forward_kl(0.5)",
    "greedy",
    "bcq(0.3)",
    "behavior",
]


def trained_like(networks):
    """The networks with batch-norm statistics other than those of the start."""
    generator = torch.Generator().manual_seed(1)
    for module in networks.modules():
        if isinstance(module, nn.BatchNorm1d):
            for buffer in (module.running_mean, module.running_var):
                buffer.add_(torch.rand(buffer.shape, generator=generator))
    return networks


def policy_of(obs_spec, rule="reroute(0.5,1.5)", config=None, **settings):
    networks = make_networks(obs_spec, config or offline_network(16, 0, 0), 1)
    return Policy(trained_like(networks), rbi.parse_rule(rule, counts=True), **settings)


def session_of(path):
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def table_policy():
    names = [name for column in COLUMNS for name in column.number_names]
    features = FeatureRange((18.0, 0, 0, 0, 10.0, 0), (80.0, 1, 1, 1, 90.0, 1), tuple(names))
    digests = np.arange(10, dtype=np.uint64).reshape(5, 2)
    return policy_of(
        ObservationSpec((6,), 1, 3),
        c_greedy=0.1,
        temperature=1.3,
        features=features,
        columns=COLUMNS,
        action_names=ACTIONS,
        training_digests=digests,
    )


@pytest.fixture(scope="module")
def exported(table_policy, tmp_path_factory):
    """A folder with policy.onnx, as `rbi export` writes it, and the saved policy."""
    folder = tmp_path_factory.mktemp("exported")
    table_policy.save(folder / "policy")
    assert cli.main(["export", str(folder / "policy"), "--out", str(folder / "run")]) == 0
    return folder / "run" / "policy.onnx"


@pytest.mark.parametrize("count", [1, 2, 500])
def test_probabilities_of_table_rows_are_those_of_pytorch(table_policy, exported, count):
    rng = np.random.default_rng(0)
    ages, segments = rng.uniform(18, 80, count).astype(np.float32), rng.choice(["new", "old", ""], count)
    incomes = np.where(rng.random(count) < 0.5, np.nan, rng.uniform(10, 90, count)).astype(np.float32)
    given = {"age": ages[:, None], "segment": segments.astype(object)[:, None], "income": incomes[:, None]}
    probs, beta = session_of(exported).run(["probs", "behavior_probs"], given)
    rows = pa.table({"segment": segments.tolist(), "age": ages, "income": incomes})
    assert probs == pytest.approx(table_policy.predict_proba(rows), abs=1e-5)
    assert beta == pytest.approx(table_policy.with_rule(rbi.Behavior()).predict_proba(rows), abs=1e-5)


def test_an_unknown_text_is_encoded_as_none_of_the_categories(table_policy, exported):
    (probs,) = session_of(exported).run(["probs"], {"age": [[30.0]], "segment": [["other"]], "income": [[50.0]]})
    with pytest.warns(UserWarning, match="segment"):
        wanted = table_policy.predict_proba(np.array([[30, 0, 0, 0, 50, 0]], np.float32))
    assert probs == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_inputs_that_are_not_finite_give_nan(exported, bad):
    given = {"age": [[30.0], [bad]], "segment": [["new"], ["new"]], "income": [[50.0], [50.0]]}
    (probs,) = session_of(exported).run(["probs"], given)
    assert np.isfinite(probs[0]).all()
    assert np.isnan(probs[1]).all()


def test_no_trunk_hides_an_infinity():
    policy = policy_of(ObservationSpec((4,), 1, 3), config=NetworkConfig(8))
    for network in (policy.networks.q, policy.networks.pi):
        network.trunk.layers[0].weight.abs_().neg_()  # ReLU gives 0
    probs, *_ = export.PolicyGraph(policy)(torch.tensor([[1.0, torch.inf, 1, 1], [1, 1, 1, 1]]))
    assert probs[0].isnan().all()
    assert probs[1].isfinite().all()


def test_the_file_says_what_a_server_has_to_know(table_policy, exported):
    about = session_of(exported).get_modelmeta().custom_metadata_map
    assert json.loads(about["actions"]) == list(ACTIONS)
    assert Feature.from_json(json.loads(about["columns"])) == COLUMNS
    assert (about["rule"], about["rbi_version"]) == ("reroute(0.5,1.5)", rbi.__version__)
    assert about["policy_digest"] == export.policy_digest(table_policy)
    assert about["policy_digest"] != export.policy_digest(table_policy.with_rule(rbi.Greedy()))
    assert len(about["training_digest"]) == 16
    assert json.loads((exported.parent / "result.json").read_text())["difference"] < 1e-5


def test_an_export_may_replace_an_earlier_one_if_asked_to(exported):
    assert runs.check_available(exported.parent, overwrite=True)
    with pytest.raises(ValueError, match="pass --overwrite"):
        runs.check_available(exported.parent, overwrite=False)


class AllRules(nn.Module):
    """Every rule, without and with a mask, on one policy's networks: to trace a graph takes seconds."""

    def __init__(self, policy, rules):
        super().__init__()
        self.inner, self.rules = export.PolicyGraph(policy), rules

    def forward(self, obs, legal):
        beta, q = self.inner.policy.beta_and_q(obs)
        policies = [self.inner.policy.with_rule(rule) for rule in self.rules]
        return tuple(policy.improve(beta, q, mask) for policy in policies for mask in (None, legal))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_actions", "rules"), [(5, RULES), (40, ["reroute(0.5,1.5)", "tv(0.25)", "ppo(0.2)"])], ids=["pairs", "sorting"]
)
def test_every_rule_in_closed_form_is_computed_alike(num_actions, rules):
    policy = policy_of(ObservationSpec((6,), 1, num_actions))
    inputs = export.example_inputs(policy, legal=True)
    rules = [rbi.parse_rule(text) for text in rules]
    names = [f"{rule} {mask}" for rule in rules for mask in ("all", "legal")]
    model = export.trace(AllRules(policy, rules).eval(), inputs, names, "all")
    found = export.run_session(session_of(model.SerializeToString()), inputs, ())
    for rule in rules:
        for mask, legal in (("all", None), ("legal", inputs["legal"])):
            wanted = policy.with_rule(rule).predict_proba(inputs["obs"], legal)
            assert found[f"{rule} {mask}"].numpy() == pytest.approx(wanted, abs=1e-5), (rule, mask)


@pytest.mark.slow
def test_a_policy_that_learned_with_masks_never_lets_illegal_logits_matter(tmp_path):
    policy = policy_of(ObservationSpec((4,), 1, 3, has_action_masks=True))
    policy.networks.pi.logits.bias[2] = 1e4  # beta without a mask would be 0 on the other actions
    policy.export_onnx(tmp_path / "policy.onnx", legal=True)
    inputs = {name: tensor.numpy() for name, tensor in export.example_inputs(policy, legal=True).items()}
    probs, q, beta = session_of(tmp_path / "policy.onnx").run(["probs", "q", "behavior_probs"], inputs)
    assert probs == pytest.approx(policy.predict_proba(inputs["obs"], inputs["legal"]), abs=1e-5)
    assert (probs * q).sum(1) == pytest.approx(policy.predict_value(inputs["obs"], inputs["legal"]), abs=1e-4)
    assert beta.sum(1, where=inputs["legal"]) == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("obs_spec", "config"),
    [
        (ObservationSpec((40, 44), 4, 3), offline_network(16, 0, 0)),
        (ObservationSpec((3,), 2, 3, (1.0, 20.0, 0.5)), NetworkConfig(16, "layer")),
    ],
    ids=["images", "vectors"],
)
def test_preprocessing_is_part_of_the_graph(obs_spec, config, tmp_path, monkeypatch):
    monkeypatch.setattr(layers, "PATCHES_ON_CPU", True)  # as on ARM, whose convolutions are written differently
    policy = policy_of(obs_spec, config=config)
    assert policy.export_onnx(tmp_path / "policy.onnx") < 1e-5
    obs = export.example_inputs(policy, legal=False)["obs"].numpy()[:3]
    (probs,) = session_of(tmp_path / "policy.onnx").run(["probs"], {"obs": obs})
    assert probs == pytest.approx(policy.predict_proba(obs), abs=1e-5)


@pytest.mark.slow
def test_a_policy_that_takes_the_running_systems_probabilities_has_an_input_for_them(tmp_path):
    networks = make_networks(ObservationSpec((4,), 1, 3), NetworkConfig(16), 0, with_policy=False)  # nothing was cloned
    policy = rbi.Policy(networks, rbi.Reroute(0.5, 1.5), behavior="logged")
    policy.export_onnx(tmp_path / "policy.onnx", legal=True)
    obs, beta = np.ones((2, 4), np.float32), np.array([[0.2, 0.3, 0.5], [0.9, 0.1, 0]], np.float32)
    legal = np.array([[True, True, False], [True, True, True]])
    (probs,) = session_of(tmp_path / "policy.onnx").run(["probs"], {"obs": obs, "behavior_probs": beta, "legal": legal})
    assert probs == pytest.approx(policy.predict_proba(obs, legal, beta), abs=1e-5)


@pytest.mark.parametrize("rule", ["forward_kl(radius=0.1)", "backward_kl(0.1)", "count_aware(1)"])
def test_a_rule_without_a_closed_form_of_beta_and_q_is_refused_and_nothing_is_written(rule, tmp_path, capsys):
    visits = VisitCounts(np.zeros(1, np.uint64), np.ones((1, 3), np.int32))
    policy = policy_of(ObservationSpec((4,), 1, 3), rule, visits=visits)
    with pytest.raises(ValueError, match="cannot be exported"):
        policy.export_onnx(tmp_path / "policy.onnx")
    policy.save(tmp_path / "saved")
    assert cli.main(["export", str(tmp_path / "saved"), "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.startswith(f"rbi: rule {rule}: cannot be exported")
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


@pytest.mark.parametrize("sigma", [0.0, 0.02])
def test_the_count_aware_rule_with_pseudo_counts_is_exported(tmp_path, sigma):
    obs = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    plain = policy_of(ObservationSpec((4,), 1, 3), "reroute(0.5,1.5)")
    features = plain.networks.q.features(torch.from_numpy(obs))
    visits = PseudoCounts.fit(
        [(features, torch.arange(40) % 2, torch.arange(40))], 3
    )  # the third action was never taken
    policy = policy_of(ObservationSpec((4,), 1, 3), "count_aware(0.2)", visits=visits._replace(sigma=sigma))
    policy.export_onnx(tmp_path / "policy.onnx")
    (probs,) = session_of(tmp_path / "policy.onnx").run(["probs"], {"obs": obs})
    assert probs == pytest.approx(policy.predict_proba(obs), abs=1e-4)
    assert np.abs(probs - plain.predict_proba(obs)).max() > 0.01


def test_a_path_that_cannot_be_written_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "trace", lambda *_: pytest.fail("the graph was made"))
    policy = policy_of(ObservationSpec((4,), 1, 3))
    with pytest.raises(OSError, match="no folder"):
        policy.export_onnx(tmp_path / "missing" / "policy.onnx")
    with pytest.raises(OSError, match="is a folder"):
        policy.export_onnx(tmp_path)


def test_a_graph_that_computes_something_else_is_not_written(table_policy, exported, tmp_path, monkeypatch):
    import onnx

    monkeypatch.setattr(export, "trace", lambda *_: onnx.load(exported))
    monkeypatch.setattr(export, "add_columns", lambda *_: None)
    other = table_policy.with_networks(make_networks(table_policy.obs_spec, table_policy.networks.config, 2).eval())
    with pytest.raises(ValueError, match="differs from PyTorch by"):
        other.export_onnx(tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["probs", "q", ""])
def test_a_column_whose_name_is_taken_is_refused(name, exported):
    import onnx

    model = onnx.helper.make_model(onnx.load(exported).graph)
    with pytest.raises(ValueError, match="cannot name an input"):
        export.add_columns(onnx, model, [Feature(name)])


@contextlib.contextmanager
def serving(policy, log):
    """The address of examples/serve.py, run as a process on a free port."""
    pytest.importorskip("uvicorn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, SERVE, policy, log, str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        try:
            for line in process.stderr:
                if "running on" in line:
                    break
            else:
                pytest.fail("the server has not started")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def post(url, body):
    """Status and answer of a request."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_a_server_answers_with_the_policys_probabilities_and_its_log_is_data(table_policy, exported, tmp_path):
    customers = [
        {"age": 20 + i, "segment": ["new", None][i % 2], "income": [None, 40.0][i % 3 == 0]} for i in range(12)
    ]
    with serving(exported, tmp_path / "live.jsonl") as url:
        decisions = [post(f"{url}/decide", customer)[1] for customer in customers]
        for number, decision in enumerate(decisions[1:]):
            assert post(f"{url}/outcome", {"id": decision["id"], "reward": number % 2}) == (200, {"logged": True})
        assert post(f"{url}/outcome", {"id": decisions[1]["id"], "reward": 1})[0] == 400  # it is logged already
        assert post(f"{url}/outcome", {"id": decisions[0]["id"], "reward": "much"})[0] == 400
        ages = [{**customers[0], "age": age} for age in (None, "30", [30])]
        for wrong in ({"age": 30}, {**customers[0], "segment": "odd"}, *ages, [1], "text"):
            status, answer = post(f"{url}/decide", wrong)
            assert (status, list(answer)) == (400, ["error"])
    table = TableConfig(one_step=True, features_of=str(exported.parent.parent / "policy"))
    data = rbi.load_episodes(tmp_path / "live.jsonl", settings=FormatSettings(table=table))
    rows = pa.Table.from_pylist(customers[1:])
    probs = table_policy.predict_proba(rows)
    taken = [ACTIONS.index(decision["action"]) for decision in decisions[1:]]
    assert data.arrays["actions"].tolist() == taken
    assert data.arrays["rewards"].tolist() == [number % 2 for number in range(11)]
    assert data.arrays["action_probs"] == pytest.approx(probs[np.arange(11), taken], abs=1e-5)
    assert not data.rejected


def test_a_server_takes_dates_and_the_names_of_possible_actions_and_logs_masks(tmp_path):
    columns = (Feature("joined", is_date=True), Feature("age"))
    spec = ObservationSpec((2,), 1, 3, has_action_masks=True)
    policy = policy_of(spec, columns=columns, action_names=ACTIONS)
    policy.save(tmp_path / "policy")
    policy.export_onnx(tmp_path / "policy.onnx", legal=True)
    customer = {"joined": "2026-05-01", "age": 30}
    possible = [["none"], ["bundle", "none"], [*ACTIONS]]
    with serving(tmp_path / "policy.onnx", tmp_path / "live.jsonl") as url:
        decisions = [post(f"{url}/decide", customer | {"legal": legal})[1] for legal in possible]
        for decision in decisions:
            assert post(f"{url}/outcome", {"id": decision["id"], "reward": 1}) == (200, {"logged": True})
        for wrong in (customer, customer | {"legal": ["mail"]}, customer | {"legal": []}, customer | {"joined": "May"}):
            assert post(f"{url}/decide", wrong)[0] == 400
    assert decisions[0]["action_prob"] == pytest.approx(1)
    table = TableConfig(one_step=True, features_of=str(tmp_path / "policy"))
    data = rbi.load_episodes(tmp_path / "live.jsonl", settings=FormatSettings(table=table))
    assert data.arrays["action_masks"].tolist() == [[name in legal for name in ACTIONS] for legal in possible]
    taken = [ACTIONS.index(decision["action"]) for decision in decisions]
    probs = policy.predict_proba(pa.Table.from_pylist([customer] * 3), data.arrays["action_masks"])
    assert data.arrays["action_probs"] == pytest.approx(probs[np.arange(3), taken], abs=1e-5)


def test_the_digest_of_the_training_episodes_does_not_depend_on_their_order():
    policy = policy_of(ObservationSpec((4,), 1, 3))
    digests = []
    for episodes in ([[3, 7], [5, 1], [4, 4]], [[4, 4], [3, 7], [5, 1]], [[3, 7], [5, 1], [4, 5]]):
        policy.training_digests = np.array(episodes, np.uint64)
        digests.append(export.describe(policy, ())["training_digest"])
    assert digests[0] == digests[1] != digests[2]


def test_policies_that_differ_in_a_number_have_different_digests():
    numbers = [{}, {"temperature": 2.0}, {"c_greedy": 0.1}, {"behavior": "logged"}, {"rule": "reroute(0.5,2)"}]
    digests = [export.policy_digest(policy_of(ObservationSpec((4,), 1, 3), **each)) for each in numbers]
    assert len(set(digests)) == len(digests)
    assert digests[0] == export.policy_digest(policy_of(ObservationSpec((4,), 1, 3)))


@pytest.mark.parametrize("value", [1.2e-5, float("nan")])
def test_a_graph_that_differs_by_more_than_the_tolerance_is_refused(value):
    export.check_difference("q", torch.tensor([0.8e-5]), torch.zeros(1), 1e-5)
    with pytest.raises(ValueError, match="so nothing was written"):
        export.check_difference("q", torch.tensor([value]), torch.zeros(1), 1e-5)


def test_a_policy_that_learned_with_masks_has_them_as_an_input():
    networks = make_networks(ObservationSpec((3,), 1, 4, has_action_masks=True), NetworkConfig(4), 0)
    with pytest.raises(ValueError, match=r"legal \(--legal\): this policy learned with action masks"):
        export.onnx_model(Policy(networks, rbi.Reroute(0.5, 1.5)))
