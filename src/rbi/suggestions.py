"""Suggestions at the end of error messages: ours for the name that another library gives to a thing, or the nearest."""

import dataclasses
import difflib
import functools
import inspect
import re
from abc import ABCMeta
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

NAMES_ELSEWHERE = {
    # training
    "n_step": "n_steps",
    "updates": "n_steps num_iterations iterations epochs n_epochs num_epochs",
    "updates, which counts batches, not environment steps": "total_timesteps timesteps n_timesteps num_timesteps "
    "total_steps max_steps num_steps steps frames n",
    "env": "environment env_name env_id",
    "env, as in CartPole-v1(max_episode_steps=100)": "env_kwargs max_episode_steps",
    "num_envs": "n_envs num_env_runners",
    "env_processes": "num_workers",
    "algo": "algorithm",
    "baselines": "algo algos algorithms",
    "apex": "dqn",
    "capacity": "buffer_size replay_size replay_buffer_size",
    "batch_size": "minibatch_size train_batch_size train_batch_size_per_learner",
    "learning_rate": "lr",
    "final_lr_fraction": "anneal_lr",
    "gamma": "discount discount_factor",
    "states_per_update": "train_freq train_frequency gradient_steps",
    "target_update_interval": "tau target_network_update_freq target_network_frequency",
    "epsilon_base": "epsilon exploration_final_eps end_e",
    "exploration_fraction": "exploration_initial_eps start_e",
    "priority_exponent": "alpha prioritized_replay_alpha",
    "importance_exponent": "prioritized_replay_beta",
    "rule, as in reroute(0.5,1.5)": "c_min c_max",
    "hidden_size": "hidden_sizes net_arch",
    "trunk": "network policy policy_kwargs",
    "callback": "reward_threshold early_stopping",
    "holdout_fraction": "test_size",
    "to": "cuda",
    "device": "cuda no_cuda gpu gpus num_gpus",
    "cuda": "gpu",
    "reward_scale": "reward_scaler scale_rewards normalize_reward norm_reward",
    "progress": "verbose quiet",
    "out": "o f log_dir logdir tensorboard_log save_path save_dir output_dir exp_name run_name onnx",
    "out, whose tensorboard folder has the curves": "track wandb use_wandb",
    "out, where policies are saved": "save_model",
    "checkpoint_minutes": "save_freq",
    "report_interval": "log_interval",
    "report_interval, of scores while training": "eval_freq",
    "eval_episodes": "n_eval_episodes episodes",
    "overwrite": "force",
    "resume": "restore resume_from load",
    "": "max_grad_norm",  # nothing here, although a name of ours resembles it
    # evaluation and certification
    "policy": "model agent checkpoint",
    "data": "dataset",
    "path": "data dataset policy model agent checkpoint",
    "episodes": "n_eval_episodes n_episodes num_episodes n_trials n n_timesteps total_timesteps dataset",
    "video": "render render_mode capture_video",
    "confidence, which is 1 - alpha": "alpha",
    "confidence, which is 1 - delta": "delta",
    "return_range": "reward_range",
    "old_value": "baseline",
    "mean": "mean_reward mean_score",
    "evaluation.mean": "mean_reward mean_score",
    "scores": "score",
    "scores, as in numpy.std(result.scores)": "std std_reward",
    "lower": "lower_bound ci confidence_interval",
    # data
    "observations": "obs states",
    "observations: the next ones are those of the next step": "next_obs next_observations",
    "terminations": "terminals terminated dones done",
    "truncations": "timeouts truncated",
    "terminated": "terminals terminations dones done",
    "truncated": "timeouts truncations",
    "num_actions": "n_actions action_size",
    "action_probs": "pscore propensity",
    "action_prob": "pscore propensity",
    "behavior": "behavior_policy",
    "behavior_probs": "behavior_policy",
    "action_masks": "mask masks",
    "legal": "mask masks action_masks",
    "step_observations()": "observations",
    "arrays['actions']": "actions",
    "arrays['rewards']": "rewards",
    "steps": "num_steps total_steps transition_count",
    "spec": "dataset_info",
    "spec.num_actions": "num_actions n_actions action_size action_space",
    "spec.obs_shape": "observation_shape observation_space",
    "__iter__, as in: for episode in dataset": "episodes iterate_episodes",
    "__len__, as in len(dataset)": "n_episodes num_episodes total_episodes size length",
    "select, as in dataset.select(dataset.scores > 0)": "filter filter_episodes",
    "save": "dump",
    "from_arrays, or rbi.load_episodes": "load",
    # policies
    "best_policy": "best_model",
    "policy.save": "save",
    "act, or mode for the most probable action": "predict",
    "act": "sample sample_action get_action select_action compute_single_action",
    "policy.act": "predict",
    "predict_proba": "forward get_distribution action_probability",
    "predict_value": "q_values",
    "obs_spec.num_actions": "num_actions n_actions action_size action_space",
    "obs_spec.shape": "observation_shape observation_space",
    "export_onnx": "to_onnx",
    "metrics": "history",
    # names of the package
    "train": "learn run RBI",
    "train, with algo='apex'": "DQN",
    "improve, for logs, or train, for an environment": "fit",
    "offline, with baselines=['cql']": "CQL DiscreteCQL",
    "evaluate": "evaluate_policy enjoy test play",
    "record": "collect rollout DataCollector RecordEpisode",
    "load_policy": "load load_model load_learnable",
    "load_episodes": "load_dataset load_csv read_csv",
    "Dataset.from_arrays": "MDPDataset ReplayBuffer",
    "max_reroute, or Reroute": "reroute",
    "max_tv, or TotalVariation": "tv",
    "TotalVariation": "TV",
    "ForwardKL, or BackwardKL": "KL",
    "rbi.Dataset.from_arrays": "observations actions rewards",
    "Policy.act": "predict",
    "rbi.Policy.mode, which takes the most probable action": "deterministic",
    "rbi.load_policy": "load",
    # commands
    "report": "plot show",
    "import": "load",
    "export": "convert",
    "info": "describe summary",
}  # fmt: skip
"""Ours, perhaps with some words about it: what other libraries call it, or what serves the same end there. One of their
names may stand for several of ours; the first that exists where it was written is meant."""


def name_here(name: str, known: Collection[str], shown: Mapping[str, str] | None = None) -> str:
    """The suggestion of a known name, if another library has this name for it; empty if none has.

    `shown`: what is shown of known names, if not they themselves.

    >>> name_here("n_eval_episodes", ["env", "episodes"])
    '; did you mean episodes?'
    """
    for ours, theirs in NAMES_ELSEWHERE.items():
        word, words = re.findall(r"(\w*)(.*)", ours)[0]
        if word in known and name in theirs.split():
            return f"; did you mean {shown[word] if shown else word}{words}?"
    return ""


def nearest(name: str, known: Collection[str], shown: Mapping[str, str] | None = None) -> str:
    """The suggestion of a known name: by `name_here`, or else the one that is most alike; empty if none is.

    >>> nearest("rerout", ["reroute", "greedy"])
    '; did you mean reroute?'
    """
    if found := name_here(name, known, shown):
        return found
    elsewhere = any(name in theirs.split() for theirs in NAMES_ELSEWHERE.values())  # then it is no typing error
    alike = difflib.get_close_matches(name, known, n=1, cutoff=0.8 if elsewhere else 0.6)
    return f"; did you mean {shown[alike[0]] if shown else alike[0]}?" if alike else ""


def with_suggestions(function: Callable[P, R]) -> Callable[P, R]:
    """The function; its TypeError for a keyword argument that it does not take says which one is meant."""

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        check_names(function, options, [*_parameters(function), "rbi"])
        return function(*args, **options)

    return call


def check_names(function: Callable[..., Any], options: Collection[str], known: Collection[str]) -> None:
    """Raise TypeError for a keyword argument that a function does not take, with the one of `known` that is meant."""
    parameters = _parameters(function)
    if "**" in parameters:  # as of a subclass that passes them on
        return
    if unknown := next((name for name in options if name not in parameters), ""):
        advice = nearest(unknown, known)
        raise TypeError(f"{function.__qualname__}() got an unexpected keyword argument {unknown!r}{advice}")


@functools.cache
def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a function's arguments, and ** for **options."""
    found = inspect.signature(function).parameters.values()
    return tuple("**" if each.kind is each.VAR_KEYWORD else each.name for each in found)


def _with_package(names: Sequence[str], cls: type) -> list[str]:
    """Names that a class knows, and the package's, except for dataclasses: they have nothing but their fields."""
    return [*names] if dataclasses.is_dataclass(cls) else [*names, "rbi"]


class SuggestingClass(ABCMeta):
    """Metaclass of `Suggesting`: class attributes, such as constructors, get suggestions like those of objects."""

    if not TYPE_CHECKING:  # type checkers would accept any name

        def __getattr__(cls, name: str) -> Any:
            advice = "" if name.startswith("_") else name_here(name, _with_package(dir(cls), cls))
            message = f"type object {cls.__name__!r} has no attribute {name!r}{advice}"
            raise AttributeError(message, name=name, obj=None if advice else cls)  # with obj, Python suggests another


class Suggesting(metaclass=SuggestingClass):
    """Base class; the error for what another library calls an attribute or an argument of the constructor says what it
    is called here."""

    if not TYPE_CHECKING:

        def __new__(cls, *_: Any, **options: Any) -> "Suggesting":
            if options:
                check_names(cls.__init__, options, _with_package(_parameters(cls.__init__), cls))
            return super().__new__(cls)

        def __getattr__(self, name: str) -> Any:
            if advice := name_here(name, _with_package(dir(self), type(self))):
                message = f"{type(self).__name__!r} object has no attribute {name!r}{advice}"
                raise AttributeError(message, name=name, obj=None)
            return super().__getattribute__(name)  # Python's own error, or that of a property
