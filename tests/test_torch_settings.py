"""PyTorch's global settings: those of the calling program change no result, and are the same afterwards."""

import contextlib
import threading

import gymnasium
import numpy as np
import pytest
import torch

import rbi
from rbi.networks import NetworkConfig, make_networks
from rbi.observations import ObservationSpec
from rbi.policy import Policy
from rbi.rules.types import parse_rule
from rbi.torch_settings import FLOAT32, TF32

SPEC = ObservationSpec((2,), 1, 3)
OBS = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
QUICK = dict(updates=4, learning_starts=16, num_envs=2, hidden_size=8, batch_size=4, capacity=100, eval_episodes=1)
RUN = dict(progress=False, device="cpu", seed=1)


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        assert torch.get_default_dtype() == dtype
        torch.set_default_dtype(before)


SETTINGS = {
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "another device": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu"),
}


def logs():
    """Episodes of three steps: the second action is as good as the first number is large."""
    rng = np.random.default_rng(0)
    obs, actions = rng.normal(size=(120, 2)).astype(np.float32), rng.integers(0, 3, 120)
    rewards = (actions == 1) * obs[:, 0]
    ends = np.arange(120) % 3 == 2
    return rbi.Dataset.from_arrays(obs, actions, rewards, ends, action_probs=np.full(120, 1 / 3))


def results(folder):
    """What each use case computes, as arrays."""
    policy, data = rbi.load_policy(folder), logs()
    improved = rbi.improve(data, updates=2, batch_size=8, hidden_size=8, **RUN)
    trained = rbi.train("CartPole-v1", **QUICK, **RUN)
    decision = rbi.certify(policy, data, compare=False)
    yield policy.predict_proba(OBS)
    yield policy.predict_value(OBS)
    yield improved.policy.predict_proba(OBS)
    yield np.array([decision.estimate, decision.lower])
    yield trained.policy.predict_proba(np.zeros((1, 4)))
    yield np.array(trained.scores + rbi.evaluate(trained.policy, episodes=1, **RUN).scores)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of a policy."""
    folder = tmp_path_factory.mktemp("saved") / "policy"
    Policy(make_networks(SPEC, NetworkConfig(8), 0), rbi.Reroute(0.5, 1.5)).save(folder)
    return folder


@pytest.fixture(scope="module")
def expected(saved):
    return list(results(saved))


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_the_calling_program_change_no_result(name, expected, saved):
    with SETTINGS[name]():
        found = list(results(saved))
    for a, b in zip(found, expected, strict=True):
        assert (a.dtype, a.tolist()) == (b.dtype, b.tolist())


@pytest.mark.parametrize("rule", ["reroute(0.5,1.5)", "tv(0.25)", "forward_kl(1.0)", "backward_kl(0.1)", "ppo(0.2)"])
def test_predictions_neither_need_nor_change_the_default_dtype_which_all_threads_share(rule):
    policy, seen = Policy(make_networks(SPEC, NetworkConfig(8), 0), parse_rule(rule), c_greedy=0.1), []
    expected = policy.predict_proba(OBS), policy.predict_value(OBS)
    policy.networks.q.register_forward_pre_hook(lambda *_: seen.append(torch.get_default_dtype()))
    with default_dtype(torch.float64):
        found = policy.predict_proba(OBS), policy.predict_value(OBS)
    assert seen == [torch.float64] * 2
    for a, b in zip(found, expected, strict=True):
        assert (a.dtype, a.tolist()) == (b.dtype, b.tolist())


def test_environments_of_an_evaluation_have_the_default_dtype_of_their_program():
    policy, seen = Policy(make_networks(ObservationSpec((4,), 1, 2), NetworkConfig(8), 0), rbi.Reroute(0.5, 1.5)), []

    def cart_pole():
        seen.append(torch.get_default_dtype())
        return gymnasium.make("CartPole-v1")

    with default_dtype(torch.float64):
        rbi.evaluate(policy, cart_pole, episodes=1, **RUN)
    assert set(seen) == {torch.float64}


def test_the_last_of_several_threads_restores_the_default_dtype():
    with default_dtype(torch.float64):
        with FLOAT32:
            first = threading.Thread(target=FLOAT32.__enter__)
            first.start()
            first.join()
        assert torch.get_default_dtype() == torch.float32
        FLOAT32.__exit__()


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="PyTorch before 2.9")
def test_tf32_that_a_program_has_turned_on_by_another_interface_is_no_error_and_stays_on():
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        with TF32:
            assert torch.get_float32_matmul_precision() == "high"
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.gpu
def test_networks_leave_a_gpus_generator_as_it_was():
    before = torch.cuda.get_rng_state()
    make_networks(SPEC, NetworkConfig(8), 0)
    assert torch.equal(torch.cuda.get_rng_state(), before)


def test_networks_made_in_several_threads_are_those_of_their_seeds():
    expected = [make_networks(SPEC, NetworkConfig(64), seed).state_dict() for seed in range(4)]
    found = {}

    def make(seed):
        for _ in range(20):
            found.setdefault(seed, []).append(make_networks(SPEC, NetworkConfig(64), seed).state_dict())

    torch.manual_seed(5)
    before = torch.get_rng_state()
    threads = [threading.Thread(target=make, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(torch.get_rng_state(), before)
    for seed, states in found.items():
        for state in states:
            assert all(torch.equal(state[name], tensor) for name, tensor in expected[seed].items())
