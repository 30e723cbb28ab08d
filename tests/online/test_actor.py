"""The actor beside loops over players, moments and actions."""

import numpy as np
import pytest
import torch
from pytest import approx
from scipy import stats

import rbi
from rbi.networks import NetworkConfig, make_networks
from rbi.observations import ObservationSpec
from rbi.online.rbi import Actor, ActorConfig, ladders
from rbi.optim import flatten_parameters
from rbi.returns import ReturnConfig, exploration_ladder
from tests.reference import iterative, paper_loops
from tests.reference.histories import History
from tests.streams import RandomEnvs

VECTORS, PICTURES = ObservationSpec((2,), 3, 4), ObservationSpec((5, 6), 2, 3)
GAMMA, EPSILON = 0.9, 0.3


def networks_of(obs_spec, with_policy=True, seed=0):
    """Networks with large weights, so that policies are far from uniform and values from zero."""
    networks = make_networks(obs_spec, NetworkConfig(16), seed, with_policy=with_policy)
    with torch.no_grad():
        for parameter in networks.parameters():
            parameter *= 3
    return networks


def actor_of(
    obs_spec=VECTORS, players=4, *, with_policy=True, steps=3, seed=0, draws=0, epsilon=None, advantage_baseline="pi", device="cpu",
    **config,
):  # fmt: skip
    epsilon = torch.full((players,), EPSILON) if epsilon is None else epsilon
    generator, horizon = torch.Generator(device).manual_seed(draws), ReturnConfig(steps, GAMMA)
    networks = networks_of(obs_spec, with_policy, seed)
    return Actor(ActorConfig(**config), networks, epsilon, horizon, generator, torch.float32, advantage_baseline)


def ask(networks, state, advantage_baseline="pi"):
    """The pi-net's policy and Q of one state, centred by that policy: arrays `[A]`; without a pi-net by the mean."""
    seen = networks.obs_spec.preprocess(torch.from_numpy(state)[None], torch.float32)
    with torch.no_grad():
        pi = None if networks.pi is None else torch.softmax(networks.pi(seen), 1)
        q = networks.q(seen, pi if advantage_baseline == "pi" else None)[0]
    return None if pi is None else pi[0].double().numpy(), q[0].double().numpy()


def lived(actor, moments=30, seed=0):
    """What an actor does over some moments, and the lives of its players, one lane each."""
    players = RandomEnvs(len(actor.epsilon), actor.obs_spec.shape, np.random.default_rng(seed))
    lanes = [History(10**6, actor.obs_spec.stack, actor.returns.n_step, GAMMA) for _ in range(players.num_envs)]
    done = []
    for _ in range(moments):
        shown = players.step()
        moment = actor.act(*shown)
        done.append(moment)
        for i, lane in enumerate(lanes):
            lane.add(*(column[i].numpy() for column in shown), *(column[i].numpy() for column in moment[4:]))
    return done, lanes


def followed(lanes, networks, expected):
    """Compare the stored policies of all moments of all players with `expected(pi_hat, q)`."""
    for lane in lanes:
        for t, pi in enumerate(lane.policies):
            assert pi == approx(expected(*ask(networks, lane.state(t))), abs=1e-5)


@pytest.mark.parametrize("obs_spec", [VECTORS, PICTURES], ids=str)
def test_the_stored_policy_is_the_papers_without_exploration_in_every_state(obs_spec):
    _, lanes = lived(actor_of(obs_spec))
    followed(lanes, networks_of(obs_spec), lambda pi, q: iterative.actor_policy(pi, q, 0.1, 2, 0.1))


@pytest.mark.parametrize("c_greedy", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("bounds", [(0.5, 1.5), (0, 3)])
def test_bounds_and_the_greedy_share_are_settings(bounds, c_greedy):
    rule = str(rbi.Reroute(*bounds))
    _, lanes = lived(actor_of(rule=rule, c_greedy=c_greedy), moments=5)
    followed(lanes, networks_of(VECTORS), lambda pi, q: iterative.actor_policy(pi, q, *bounds, c_greedy))


@pytest.mark.parametrize(
    ("rule", "twin"),
    [
        ("tv(0.25)", lambda pi, q: paper_loops.max_tv(pi, q, 0.25)),
        ("ppo(0.5)", lambda pi, q: paper_loops.max_ppo(pi, q, 0.5)),
        ("behavior", lambda pi, _: pi),
        ("greedy", lambda _, q: np.eye(len(q))[q.argmax()]),
    ],
)
def test_any_rule_can_take_the_place_of_reroute(rule, twin):
    _, lanes = lived(actor_of(rule=rule, c_greedy=0.0), moments=5)
    followed(lanes, networks_of(VECTORS), twin)


def test_where_the_learner_improves_the_actor_follows_the_pi_net():
    _, lanes = lived(actor_of(improve_in="learner"), moments=5)
    followed(lanes, networks_of(VECTORS), lambda pi, _: pi)


@pytest.mark.parametrize("obs_spec", [VECTORS, PICTURES], ids=str)
def test_ape_x_is_greedy_for_the_mean_centred_q(obs_spec):
    _, lanes = lived(actor_of(obs_spec, with_policy=False))
    followed(lanes, networks_of(obs_spec, with_policy=False), lambda _, q: np.eye(len(q))[q.argmax()])
    assert {float(p) for lane in lanes for pi in lane.policies for p in pi} == {0.0, 1.0}


@pytest.mark.parametrize("with_policy", [True, False])
def test_the_policy_is_uniform_while_the_flag_is_up(with_policy):
    actor = actor_of(with_policy=with_policy)
    actor.uniform.fill_(True)
    _, lanes = lived(actor, moments=5)
    followed(lanes, networks_of(VECTORS, with_policy), lambda *_: np.full(4, 0.25))
    actor.uniform.fill_(False)
    (moment,), _ = lived(actor, moments=1)
    assert moment.pi.max() > 0.3


def crowd(players, epsilon, **options):
    """One moment of many players who all see the same."""
    actor = actor_of(players=players, epsilon=epsilon, **options)
    nothing = torch.zeros(players)
    frame = torch.tensor([0.5, -1.0]).expand(players, 2).contiguous()
    return actor.act(frame, torch.ones(players, dtype=torch.bool), nothing, nothing.to(torch.uint8))


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("rule", ["reroute(0.1,2)", "behavior"])
def test_actions_are_drawn_from_the_policy_mixed_with_a_uniform_one(epsilon, rule):
    players = 20_000
    moment = crowd(players, torch.full((players,), epsilon), rule=rule)
    explored = (1 - epsilon) * moment.pi[0].double().numpy() + epsilon / 4
    counts = np.bincount(moment.action, minlength=4)
    possible = explored > 1e-9
    assert counts[~possible].sum() == 0
    expected = explored[possible] / explored[possible].sum() * players
    assert stats.chisquare(counts[possible], expected).pvalue > 1e-3


def test_each_player_explores_at_its_own_rate():
    players = 20_000
    epsilon = torch.tensor([0.0, 0.5]).repeat(players // 2)
    moment = crowd(players, epsilon, with_policy=False)
    best = int(moment.pi[0].argmax())
    assert (moment.action[::2] == best).all()
    assert (moment.action[1::2] == best).double().mean().item() == approx(0.5 + 0.5 / 4, abs=0.015)


def test_the_generator_alone_decides_what_is_drawn():
    (first, again, other) = (lived(actor_of(draws=draws), moments=20)[0] for draws in (1, 1, 2))
    assert all(torch.equal(a.action, b.action) for a, b in zip(first, again, strict=True))
    assert any(not torch.equal(a.action, b.action) for a, b in zip(first, other, strict=True))


SURPRISES = [
    dict(), dict(priority_baseline="v"), dict(clip_rewards=False), dict(steps=1), dict(steps=5), dict(with_policy=False),
    dict(with_policy=False, priority_baseline="v"), dict(improve_in="learner", priority_baseline="v"),
    dict(advantage_baseline="mean"), dict(advantage_baseline="mean", priority_baseline="v"),
]  # fmt: skip


@pytest.mark.parametrize("options", SURPRISES, ids=str)
def test_the_error_told_n_moments_later_is_that_of_the_n_step_return(options):
    actor = actor_of(**options)
    _, lanes = lived(actor, moments=60)
    networks = networks_of(VECTORS, options.get("with_policy", True))
    clipped = options.get("clip_rewards", True)
    for lane in lanes:
        q = [ask(networks, lane.state(t), options.get("advantage_baseline", "pi"))[1] for t in range(60)]
        values = [sum(pi * of_actions) for pi, of_actions in zip(lane.policies, q, strict=True)]
        by_v = options.get("priority_baseline") == "v"
        for t in lane.drawable():
            coming = slice(t + 1, t + 1 + lane.steps)
            rewards = [min(1, max(-1, float(r))) if clipped else float(r) for r in lane.rewards[coming]]
            began = values[t] if by_v else q[t][lane.actions[t]]
            expected = iterative.td_error(rewards, lane.ends[coming], values[coming], began, GAMMA)
            assert lane.error(t) == approx(expected, abs=1e-4)


def test_rewards_are_clipped_for_learning_and_nothing_else_is_changed():
    shown = RandomEnvs(4, (2,), np.random.default_rng(3))
    shown.step()
    seen = shown.step()._replace(reward=torch.tensor([-7.0, -0.5, 0.25, 400.0]))
    assert actor_of().act(*seen).reward.tolist() == [-1, -0.5, 0.25, 1]
    moment = actor_of(clip_rewards=False).act(*seen)
    assert all(torch.equal(stored, given) for stored, given in zip(moment[:4], seen, strict=True))


@pytest.mark.parametrize("with_policy", [True, False])
def test_an_actor_that_loads_weights_acts_as_one_that_had_them(with_policy):
    newer = actor_of(with_policy=with_policy, seed=5)
    loaded = actor_of(with_policy=with_policy)
    loaded.load(flatten_parameters(networks_of(VECTORS, with_policy, seed=5)))
    for a, b in zip(lived(newer)[0], lived(loaded)[0], strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_an_actor_goes_on_from_its_saved_state_as_if_nothing_had_happened():
    actor, restored = actor_of(draws=1), actor_of(seed=3, draws=2)
    lived(actor, moments=10)
    restored.restore({name: tensor.clone() for name, tensor in actor.state().items()})
    restored.generator.set_state(actor.generator.get_state())
    for a, b in zip(lived(actor, 10, seed=1)[0], lived(restored, 10, seed=1)[0], strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert actor.metrics() == restored.metrics()


def test_a_forgetful_actor_acts_as_a_new_one():
    actor, fresh = actor_of(), actor_of()
    lived(actor, moments=10)
    actor.forget()
    actor.generator.set_state(fresh.generator.get_state())
    for a, b in zip(lived(actor, 10, seed=1)[0], lived(fresh, 10, seed=1)[0], strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_metrics_are_means_over_the_states_since_the_last_look():
    actor = actor_of()
    assert actor.metrics() == {}
    _, lanes = lived(actor, moments=10)
    told = {"pi_entropy": [], "q_acted": [], "moved_mass": [], "at_c_min": [], "at_c_max": []}
    for lane in lanes:
        for t, pi in enumerate(lane.policies):
            base, q = ask(networks_of(VECTORS), lane.state(t))
            stepped = paper_loops.max_reroute(base, q, 0.1, 2)
            told["pi_entropy"].append(-sum(p * np.log(p) for p in pi if p > 0))
            told["q_acted"].append(sum(pi * q))
            told["moved_mass"].append(sum(abs(stepped - base)) / 2)
            told["at_c_min"].append(np.mean(stepped / base < 0.1 + 1e-3))
            told["at_c_max"].append(np.mean(stepped / base > 2 - 1e-3))
    assert actor.metrics() == approx({name: np.mean(values) for name, values in told.items()}, abs=1e-5)
    assert actor.metrics() == {}


def test_ape_x_tells_of_its_values_only():
    actor = actor_of(with_policy=False)
    lived(actor, moments=3)
    assert set(actor.metrics()) == {"q_acted"}


@pytest.mark.parametrize(("players", "groups"), [(256, 2), (8, 2), (6, 3), (4, 1)])
def test_the_ladders_of_the_groups_hold_every_player_once_and_all_kinds_in_each(players, groups):
    whole = exploration_ladder(players)
    parts = ladders(whole, groups)
    assert sorted(torch.cat(parts).tolist()) == sorted(whole.tolist())
    assert {len(part) for part in parts} == {players // groups}
    for part in parts:
        assert part.max() >= whole[groups - 1]
        assert part.min() <= whole[-groups]


BAD = [
    dict(c_greedy=-0.1), dict(c_greedy=1.5), dict(epsilon_base=-1.0), dict(epsilon_base=2.0),
    dict(epsilon_exponent=-1.0),
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_settings_that_make_no_sense_are_refused_by_name(bad):
    ((name, value),) = bad.items()
    with pytest.raises(ValueError, match=f"^{name} = {value}"):
        ActorConfig(**bad)


def test_a_rule_that_does_not_exist_is_refused_when_it_is_named():
    with pytest.raises(ValueError, match="rerute"):
        ActorConfig(rule="rerute(0.1,2)")
