"""RBI's and Ape-X's actors against loops over environments, steps and actions."""

import numpy as np
import pytest
import torch
from pytest import approx
from scipy import stats

import rbi
from rbi.networks import NetworkConfig, make_networks
from rbi.observations import ObservationSpec
from rbi.online.apex import ApexActor
from rbi.online.config import ActorConfig
from rbi.online.engine import split_epsilons
from rbi.online.rbi import RBIActor, explore
from rbi.optim import flatten_parameters
from rbi.returns import ReturnConfig, exploration_ladder
from rbi.steps import TERMINATED, TRUNCATED
from tests.reference import iterative, paper_loops
from tests.reference.histories import History
from tests.streams import RandomEnvs

VECTORS, IMAGES = ObservationSpec((2,), 3, 4), ObservationSpec((5, 6), 2, 3)
MASKED = ObservationSpec((2,), 3, 4, has_action_masks=True)
GAMMA, EPSILON = 0.9, 0.3


def make_large_networks(obs_spec, algo="rbi", seed=0):
    """Networks with large weights, so that policies are far from uniform and values from zero."""
    networks = make_networks(obs_spec, NetworkConfig(16), seed, with_policy=algo == "rbi")
    with torch.no_grad():
        for parameter in networks.parameters():
            parameter *= 3
    return networks


def make_actor(
    obs_spec=VECTORS,
    num_envs=4,
    *,
    algo="rbi",
    n_step=3,
    seed=0,
    draws=0,
    epsilon=None,
    advantage_baseline="pi",
    device="cpu",
    exploration_steps=0,
    **config,
):
    epsilon = torch.full((num_envs,), EPSILON) if epsilon is None else epsilon
    generator, returns = torch.Generator(device).manual_seed(draws), ReturnConfig(n_step, GAMMA)
    parts = ActorConfig(**config), returns, make_large_networks(obs_spec, algo, seed), epsilon, generator, torch.float32
    options = {"exploration_steps": exploration_steps}
    return RBIActor(*parts, advantage_baseline, **options) if algo == "rbi" else ApexActor(*parts, **options)


def ask(networks, state, advantage_baseline="pi", legal=()):
    """beta and Q of one state, arrays `[A]`; without a pi-net Q is centred by the mean. `legal`: its mask, if any."""
    step = networks.obs_spec.preprocess(torch.from_numpy(state)[None], torch.float32)
    with torch.no_grad():
        beta = pi = None
        if networks.pi is not None:
            beta = iterative.among_legal(legal, iterative.softmax, networks.pi(step)[0].double().numpy())
            pi = torch.from_numpy(beta[None]).float() if advantage_baseline == "pi" else None
        q = networks.q(step, pi)[0]
    return beta, q[0].double().numpy()


def act_for(actor, steps=30, seed=0):
    """The transitions of an actor over some steps, and the episodes of its environments, one history each."""
    spec = actor.obs_spec
    random_envs = RandomEnvs(len(actor.epsilon), spec.shape, np.random.default_rng(seed), mask_size=spec.mask_size)
    histories = [
        History(10**6, actor.obs_spec.stack, actor.memory.rewards.shape[1], GAMMA) for _ in range(random_envs.num_envs)
    ]
    done = []
    for _ in range(steps):
        shown = random_envs.step()
        transition = actor.act(*shown)
        done.append(transition)
        for i, history in enumerate(histories):
            history.add(*(column[i].numpy() for column in shown[:4]), *(column[i].numpy() for column in transition[4:]))
    return done, histories


def assert_policies(histories, networks, expected):
    """Compare the stored policies of all steps with `expected(beta, q)`."""
    for history in histories:
        for t, pi in enumerate(history.policies):
            assert pi == approx(expected(*ask(networks, history.state(t))), abs=1e-5)


@pytest.mark.parametrize("obs_spec", [VECTORS, IMAGES], ids=str)
def test_the_stored_policy_is_the_papers_without_exploration_in_every_state(obs_spec):
    _, histories = act_for(make_actor(obs_spec))
    assert_policies(
        histories, make_large_networks(obs_spec), lambda beta, q: iterative.actor_policy(beta, q, 0.1, 2, 0.1)
    )


@pytest.mark.parametrize("c_greedy", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("bounds", [(0.5, 1.5), (0, 3)])
def test_bounds_and_c_greedy_are_settings(bounds, c_greedy):
    rule = str(rbi.Reroute(*bounds))
    _, histories = act_for(make_actor(rule=rule, c_greedy=c_greedy), steps=5)
    assert_policies(
        histories, make_large_networks(VECTORS), lambda beta, q: iterative.actor_policy(beta, q, *bounds, c_greedy)
    )


@pytest.mark.parametrize(
    ("rule", "twin"),
    [
        ("tv(0.25)", lambda beta, q: paper_loops.max_tv(beta, q, 0.25)),
        ("ppo(0.5)", lambda beta, q: paper_loops.max_ppo(beta, q, 0.5)),
        ("behavior", lambda beta, _: beta),
        ("greedy", lambda _, q: np.eye(len(q))[q.argmax()]),
    ],
)
def test_any_rule_can_take_the_place_of_reroute(rule, twin):
    _, histories = act_for(make_actor(rule=rule, c_greedy=0.0), steps=5)
    assert_policies(histories, make_large_networks(VECTORS), twin)


def test_with_improvement_in_the_learner_the_actor_follows_the_pi_net():
    _, histories = act_for(make_actor(improve_in="learner"), steps=5)
    assert_policies(histories, make_large_networks(VECTORS), lambda beta, _: beta)


@pytest.mark.parametrize("obs_spec", [VECTORS, IMAGES], ids=str)
def test_apex_is_greedy_for_the_mean_centred_q(obs_spec):
    _, histories = act_for(make_actor(obs_spec, algo="apex"))
    assert_policies(histories, make_large_networks(obs_spec, algo="apex"), lambda _, q: np.eye(len(q))[q.argmax()])
    assert {float(p) for history in histories for pi in history.policies for p in pi} == {0.0, 1.0}


@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_the_policy_is_uniform_while_the_flag_is_set(algo):
    actor = make_actor(algo=algo)
    actor.uniform.fill_(True)
    _, histories = act_for(actor, steps=5)
    assert_policies(histories, make_large_networks(VECTORS, algo), lambda *_: np.full(4, 0.25))
    actor.uniform.fill_(False)
    (transition,), _ = act_for(actor, steps=1)
    assert transition.pi.max() > 0.3


@pytest.mark.parametrize(
    ("options", "twin"),
    [
        (dict(), lambda beta, q: iterative.actor_policy(beta, q, 0.1, 2, 0.1)),
        (dict(improve_in="learner"), lambda beta, _: beta),
        (dict(algo="apex"), lambda _, q: np.eye(len(q))[q.argmax()]),
    ],
)
def test_with_masks_the_policy_is_that_of_a_state_with_the_legal_actions_alone(options, twin):
    _, histories = act_for(make_actor(MASKED, **options))
    networks = make_large_networks(MASKED, options.get("algo", "rbi"))
    for history in histories:
        for t, pi in enumerate(history.policies):
            beta, q = ask(networks, history.state(t), legal=history.masks[t])
            legal = np.flatnonzero(history.masks[t])
            assert pi[legal] == approx(twin(q if beta is None else beta[legal], q[legal]), abs=1e-5)
            assert pi.sum() == approx(1)


SETTINGS_WITH_MASKS = [
    dict(), dict(rule="greedy"), dict(rule="tv(0.5)"), dict(max_repeat=20), dict(improve_in="learner"),
]  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS_WITH_MASKS, ids=str)
@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_illegal_actions_are_never_taken_not_even_to_explore(algo, settings):
    for uniform in (False, True):
        actor = make_actor(MASKED, 50, algo=algo, epsilon=torch.linspace(0, 1, 50), **settings)
        actor.uniform.fill_(uniform)
        _, histories = act_for(actor, steps=60)
        taken = [history.masks[t][action] for history in histories for t, action in enumerate(history.actions)]
        assert all(taken)


def test_a_draw_beyond_the_sum_of_the_probabilities_takes_the_most_probable_action():
    """Sums may end below 1 by rounding; here they end far below."""
    pi, legal = torch.tensor([[0.2, 0.3, 0.0]]).expand(9999, 3), torch.tensor([[True, True, False]]).expand(9999, 3)
    action = explore(pi, torch.zeros(9999, 1), torch.Generator().manual_seed(0), legal)
    assert (torch.bincount(action, minlength=3) / 9999).tolist() == approx([0.2, 0.8, 0], abs=0.02)


@pytest.mark.parametrize("max_repeat", [1, 2])
def test_random_actions_are_uniform_among_the_legal_ones(max_repeat):
    num_envs = 20_000
    actor = make_actor(MASKED, num_envs, epsilon=torch.ones(num_envs), max_repeat=max_repeat)
    legal = torch.tensor([True, False, True, True]).expand(num_envs, 4)
    nothing = torch.zeros(num_envs)
    first = torch.ones(num_envs, dtype=torch.bool)
    action = actor.act(torch.zeros(num_envs, 2), first, nothing, nothing.to(torch.uint8), legal).action
    assert (torch.bincount(action, minlength=4) / num_envs).tolist() == approx([1 / 3, 0, 1 / 3, 1 / 3], abs=0.02)


def test_a_repeated_action_ends_when_it_becomes_illegal():
    actor = make_actor(MASKED, 4, epsilon=torch.zeros(4), max_repeat=1000)
    actor.memory.repeats.fill_(1000)
    actor.memory.repeated.fill_(3)
    shown = torch.zeros(4, 2), torch.zeros(4, dtype=torch.bool), torch.zeros(4), torch.zeros(4, dtype=torch.uint8)
    legal = torch.tensor([[True, False, True, n % 2 == 0] for n in range(4)])
    action = actor.act(*shown, legal).action
    assert action[::2].tolist() == [3, 3]
    assert set(action[1::2].tolist()) <= {0, 2}
    assert actor.memory.repeats.tolist() == [999, 0, 999, 0]


def test_exploration_goes_on_where_a_repeated_action_has_become_illegal():
    num_envs = 5_000
    actor = make_actor(MASKED, num_envs, epsilon=torch.ones(num_envs), max_repeat=1000, rule="greedy", c_greedy=1.0)
    actor.memory.repeats.fill_(1000)
    actor.memory.repeated.fill_(3)
    nothing = torch.zeros(num_envs)
    shown = torch.zeros(num_envs, 2), torch.zeros(num_envs, dtype=torch.bool), nothing, nothing.to(torch.uint8)
    action = actor.act(*shown, torch.tensor([True, False, True, False]).expand(num_envs, 4)).action
    assert (torch.bincount(action, minlength=4) / num_envs).tolist() == approx([0.5, 0, 0.5, 0], abs=0.05)


def one_step(num_envs, epsilon, **options):
    """One step of many environments with the same observation."""
    actor = make_actor(num_envs=num_envs, epsilon=epsilon, **options)
    nothing = torch.zeros(num_envs)
    frame = torch.tensor([0.5, -1.0]).expand(num_envs, 2).contiguous()
    return actor.act(frame, torch.ones(num_envs, dtype=torch.bool), nothing, nothing.to(torch.uint8))


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("rule", ["reroute(0.1,2)", "behavior"])
def test_actions_are_drawn_from_the_policy_mixed_with_a_uniform_one(epsilon, rule):
    num_envs = 20_000
    transition = one_step(num_envs, torch.full((num_envs,), epsilon), rule=rule)
    explored = (1 - epsilon) * transition.pi[0].double().numpy() + epsilon / 4
    counts = np.bincount(transition.action, minlength=4)
    possible = explored > 1e-9
    assert counts[~possible].sum() == 0
    expected = explored[possible] / explored[possible].sum() * num_envs
    assert stats.chisquare(counts[possible], expected).pvalue > 1e-3


def test_each_environment_has_its_own_epsilon():
    num_envs = 20_000
    epsilon = torch.tensor([0.0, 0.5]).repeat(num_envs // 2)
    transition = one_step(num_envs, epsilon, algo="apex")
    best = int(transition.pi[0].argmax())
    assert (transition.action[::2] == best).all()
    assert (transition.action[1::2] == best).double().mean().item() == approx(0.5 + 0.5 / 4, abs=0.015)


def test_actions_depend_on_the_generator_alone():
    (first, again, other) = (act_for(make_actor(draws=draws), steps=20)[0] for draws in (1, 1, 2))
    assert all(torch.equal(a.action, b.action) for a, b in zip(first, again, strict=True))
    assert any(not torch.equal(a.action, b.action) for a, b in zip(first, other, strict=True))


TD_ERROR_CASES = [
    dict(), dict(priority_baseline="v"), dict(clip_rewards=False), dict(n_step=1), dict(n_step=5), dict(algo="apex"),
    dict(algo="apex", priority_baseline="v"), dict(improve_in="learner", priority_baseline="v"),
    dict(advantage_baseline="mean"), dict(advantage_baseline="mean", priority_baseline="v"),
    dict(obs_spec=MASKED), dict(obs_spec=MASKED, algo="apex", priority_baseline="v"),
    dict(obs_spec=MASKED, improve_in="learner", priority_baseline="v"),
]  # fmt: skip


@pytest.mark.parametrize("options", TD_ERROR_CASES, ids=str)
def test_the_td_error_n_steps_later_is_that_of_the_n_step_return(options):
    actor = make_actor(**options)
    _, histories = act_for(actor, steps=60)
    networks = make_large_networks(actor.obs_spec, options.get("algo", "rbi"))
    baseline = options.get("advantage_baseline", "pi")
    clipped = options.get("clip_rewards", True)
    for history in histories:
        q = [ask(networks, history.state(t), baseline, history.masks[t])[1] for t in range(60)]
        values = [sum(pi * of_actions) for pi, of_actions in zip(history.policies, q, strict=True)]
        by_v = options.get("priority_baseline") == "v"
        for t in history.drawable():
            coming = slice(t + 1, t + 1 + history.steps)
            rewards = [min(1, max(-1, float(r))) if clipped else float(r) for r in history.rewards[coming]]
            began = values[t] if by_v else q[t][history.actions[t]]
            expected = iterative.td_error(rewards, history.ends[coming], values[coming], began, GAMMA)
            assert history.error(t) == approx(expected, abs=1e-4)


def test_rewards_are_clipped_for_learning_and_nothing_else_is_changed():
    shown = RandomEnvs(4, (2,), np.random.default_rng(3))
    shown.step()
    step = shown.step()._replace(reward=torch.tensor([-7.0, -0.5, 0.25, 400.0]))
    assert make_actor().act(*step).reward.tolist() == [-1, -0.5, 0.25, 1]
    transition = make_actor(clip_rewards=False).act(*step)
    assert all(torch.equal(stored, given) for stored, given in zip(transition[:4], step[:4], strict=True))


@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_rewards_are_divided_by_their_scale_before_they_are_clipped(algo):
    shown = RandomEnvs(4, (2,), np.random.default_rng(3))
    shown.step()
    step = shown.step()._replace(reward=torch.tensor([-700.0, -50, 25, 0]))
    assert make_actor(algo=algo, reward_scale=100).act(*step).reward.tolist() == [-1, -0.5, 0.25, 0]
    unclipped = make_actor(algo=algo, reward_scale=100, clip_rewards=False).act(*step)
    assert unclipped.reward.tolist() == [-7, -0.5, 0.25, 0]
    assert make_actor(algo=algo, reward_scale=0, clip_rewards=False).act(*step).reward.tolist() == [-700, -50, 25, 0]


def test_rules_see_q_of_the_environments_own_rewards():
    """A temperature of 100 for rewards in the hundreds moves as much as one of 1 for rewards of 1."""
    scaled = act_for(make_actor(rule="forward_kl(100)", reward_scale=100, clip_rewards=False), steps=1)[0]
    plain, cold = (act_for(make_actor(rule=f"forward_kl({t})", clip_rewards=False), steps=1)[0] for t in (1, 100))
    assert torch.allclose(scaled[0].pi, plain[0].pi, atol=1e-6)
    assert not torch.allclose(plain[0].pi, cold[0].pi, atol=1e-2)


@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_an_actor_that_loads_weights_acts_as_one_that_had_them(algo):
    newer = make_actor(algo=algo, seed=5)
    loaded = make_actor(algo=algo)
    loaded.load(flatten_parameters(make_large_networks(VECTORS, algo, seed=5)))
    for a, b in zip(act_for(newer)[0], act_for(loaded)[0], strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_a_restored_actor_continues_to_the_last_bit():
    actor, restored = make_actor(draws=1), make_actor(seed=3, draws=2)
    act_for(actor, steps=10)
    restored.restore({name: tensor.clone() for name, tensor in actor.state().items()})
    restored.generator.set_state(actor.generator.get_state())
    for a, b in zip(act_for(actor, 10, seed=1)[0], act_for(restored, 10, seed=1)[0], strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert actor.metrics() == restored.metrics()


def test_an_actor_whose_memory_is_reset_acts_as_a_new_one():
    actor, fresh = make_actor(), make_actor()
    act_for(actor, steps=10)
    actor.memory.reset()
    actor.generator.set_state(fresh.generator.get_state())
    for a, b in zip(act_for(actor, 10, seed=1)[0], act_for(fresh, 10, seed=1)[0], strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_exploration_does_not_begin_again_when_the_memory_is_reset():
    actor = make_actor(exploration_steps=10)
    actions_over_time(actor, 4, torch.full((4, 4), TERMINATED, dtype=torch.uint8))
    actor.memory.reset()
    assert int(actor.memory.steps) == 4
    assert int(actor.memory.terminated) == 16


def test_a_restored_actor_knows_how_many_episodes_have_terminated():
    """Otherwise random actions would be repeated again."""
    actor, restored = make_actor(), make_actor()
    actions_over_time(actor, 4, torch.full((4, 4), TERMINATED, dtype=torch.uint8))
    restored.restore(actor.state())
    assert int(restored.memory.terminated) == 16


def test_metrics_are_means_since_the_last_call():
    actor = make_actor()
    assert actor.metrics() == {}
    _, histories = act_for(actor, steps=10)
    expected = {"pi_entropy": [], "q_acted": [], "moved_mass": [], "at_c_min": [], "at_c_max": []}
    for history in histories:
        for t, pi in enumerate(history.policies):
            beta, q = ask(make_large_networks(VECTORS), history.state(t))
            improved = paper_loops.max_reroute(beta, q, 0.1, 2)
            expected["pi_entropy"].append(-sum(p * np.log(p) for p in pi if p > 0))
            expected["q_acted"].append(sum(pi * q))
            expected["moved_mass"].append(sum(abs(improved - beta)) / 2)
            expected["at_c_min"].append(sum(beta[improved / beta < 0.1 + 1e-3]))
            expected["at_c_max"].append(sum(beta[improved / beta > 2 - 1e-3]))
    assert actor.metrics() == approx({name: np.mean(values) for name, values in expected.items()}, abs=1e-5)
    assert actor.metrics() == {}


def test_a_rule_without_bounds_never_reaches_them():
    actor = make_actor(rule="tv(0.25)")
    act_for(actor, steps=10)
    metrics = actor.metrics()
    assert metrics["moved_mass"] > 0
    assert metrics["at_c_max"] == 0


def test_apex_has_metrics_of_its_values_only():
    actor = make_actor(algo="apex")
    act_for(actor, steps=3)
    assert set(actor.metrics()) == {"q_acted"}


@pytest.mark.parametrize(("num_envs", "groups"), [(256, 2), (8, 2), (6, 3), (4, 1)])
def test_every_group_gets_the_whole_range_of_epsilons(num_envs, groups):
    whole = exploration_ladder(num_envs)
    parts = split_epsilons(whole, groups)
    assert sorted(torch.cat(parts).tolist()) == sorted(whole.tolist())
    assert {len(part) for part in parts} == {num_envs // groups}
    for part in parts:
        assert part.max() >= whole[groups - 1]
        assert part.min() <= whole[-groups]


BAD = [
    dict(c_greedy=-0.1), dict(c_greedy=1.5), dict(epsilon_base=-1.0), dict(epsilon_base=2.0),
    dict(epsilon_exponent=-1.0),
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_invalid_actor_settings_are_refused_by_name(bad):
    ((name, value),) = bad.items()
    with pytest.raises(ValueError, match=f"^{name} = {value}"):
        ActorConfig(**bad)


def test_an_unknown_rule_is_refused():
    with pytest.raises(ValueError, match="rerute"):
        ActorConfig(rule="rerute(0.1,2)")


def actions_over_time(actor, steps, ends=None):
    """Actions `[steps, N]` for the same observation again and again; `ends` `[steps, N]`: how each step ended."""
    obs = torch.zeros((len(actor.epsilon), *actor.obs_spec.shape))
    first, zero = torch.zeros(len(obs), dtype=torch.bool), torch.zeros(len(obs))
    ends = torch.zeros((steps, len(obs)), dtype=torch.uint8) if ends is None else ends
    return torch.stack([actor.act(obs, first, zero, end).action.clone() for end in ends])


@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_random_actions_are_repeated_until_enough_episodes_have_terminated(algo):
    explores = {"epsilon": torch.ones(64), "num_envs": 64, "algo": algo}
    repeated = actions_over_time(make_actor(max_repeat=50, repeat_episodes=10**6, **explores), 60)
    single = actions_over_time(make_actor(**explores), 60)
    ends = torch.full((60, 64), TERMINATED, dtype=torch.uint8)
    over = actions_over_time(make_actor(max_repeat=50, repeat_episodes=1, **explores), 60, ends)[1:]
    same = [float((actions[1:] == actions[:-1]).double().mean()) for actions in (repeated, single, over)]
    assert same[0] > 0.45  # of 4 actions a quarter are equal by chance
    assert same[1] == approx(0.25, abs=0.05)
    assert same[2] == approx(0.25, abs=0.15)  # a repetition of the first step may still run
    assert {len(set(column.tolist())) for column in repeated.T} >= {4}


@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_episodes_that_reach_their_time_limit_do_not_end_the_repetition(algo):
    explores = {"epsilon": torch.ones(64), "num_envs": 64, "algo": algo}
    ends = torch.full((60, 64), TRUNCATED, dtype=torch.uint8)
    actions = actions_over_time(make_actor(max_repeat=50, repeat_episodes=1, **explores), 60, ends)
    assert float((actions[1:] == actions[:-1]).double().mean()) > 0.45  # of 4 actions a quarter are equal by chance


def test_an_action_is_repeated_k_times_with_a_probability_proportional_to_1_over_k():
    actor = make_actor(num_envs=20_000, epsilon=torch.ones(20_000), max_repeat=3)
    actions_over_time(actor, 1)
    more = torch.bincount(actor.memory.repeats) / 20_000
    assert more.tolist() == approx([6 / 11, 3 / 11, 2 / 11], abs=0.02)


def test_a_repeated_action_ends_with_its_episode():
    actor = make_actor(num_envs=200, epsilon=torch.ones(200), max_repeat=1000)
    actor.memory.repeats.fill_(1000)
    obs, zero = torch.zeros((200, *actor.obs_spec.shape)), torch.zeros(200)
    actions = actor.act(obs, torch.ones(200, dtype=torch.bool), zero, zero.byte()).action
    assert set(actions.tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("max_repeat", [1, 2])
@pytest.mark.parametrize("algo", ["rbi", "apex"])
def test_epsilon_falls_from_one_to_that_of_the_environment(algo, max_repeat):
    epsilon, options = torch.full((4000,), 0.2), {"rule": "greedy", "c_greedy": 1.0, "max_repeat": max_repeat}
    actor = make_actor(num_envs=4000, algo=algo, epsilon=epsilon, exploration_steps=4, repeat_episodes=1, **options)
    actor.memory.terminated.fill_(1)  # nothing is repeated any more
    actions = actions_over_time(actor, 6)
    other = (actions != actions[-1].mode().values).double().mean(1)  # than the greedy action: 3 of 4 random ones
    assert (other / 0.75).tolist() == approx([1, 0.8, 0.6, 0.4, 0.2, 0.2], abs=0.05)
