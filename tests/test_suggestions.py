"""Names of other libraries, and what errors suggest in their place."""

import copy
import dataclasses
import importlib
import inspect
import pickle
import re

import numpy as np
import pytest

import rbi
from rbi import cli
from rbi.cli import help as pages
from rbi.data.formats import FormatSettings
from rbi.data.formats.tables import TableConfig
from rbi.networks import NetworkConfig, Networks
from rbi.observations import ObservationSpec
from rbi.online.config import setting_names
from rbi.online.run_logger import RunOptions
from rbi.suggestions import NAMES_ELSEWHERE, Suggesting, name_here, nearest, with_suggestions

DATA = rbi.Dataset.from_arrays(np.zeros((3, 2)), [0, 1, 1], [0, 0, 1], [False, True, True])
POLICY = rbi.Policy(Networks(ObservationSpec((2,), 1, 2), NetworkConfig(hidden_size=4)), rbi.Greedy())
RESULT = rbi.ImproveResult(POLICY, POLICY, {}, [])


def names_of_ours():
    """Every name that a user can write: of the package, its classes, their attributes, arguments, options, commands."""
    public = [getattr(rbi, name) for name in rbi.__all__]
    for each in public:
        members = inspect.getmembers(each) if inspect.isclass(each) else [("", each)]
        for name, function in members:
            if (inspect.isfunction(function) or inspect.ismethod(function)) and not name.startswith("_"):
                yield from inspect.signature(function).parameters
    for each in filter(inspect.isclass, public):
        yield from dir(each)
        yield from (field.name for field in dataclasses.fields(each)) if dataclasses.is_dataclass(each) else ()
    yield from (*rbi.__all__, "rbi", *setting_names(), *(option.name for option in dataclasses.fields(RunOptions)))
    yield from (*vars(DATA), *vars(POLICY))
    for command, (module, attribute, _) in cli.COMMANDS.items():
        yield from command.split()
        for option in pages.options(getattr(importlib.import_module(module), attribute)):
            yield from (option.name.rpartition(".")[2].lstrip("-").replace("-", "_"), *option.choices)


def test_every_suggested_name_exists():
    missing = {re.match(r"\w*", ours)[0] for ours in NAMES_ELSEWHERE} - {"", *names_of_ours()}
    assert not missing
    for ours in (name for name in NAMES_ELSEWHERE if name.startswith("rbi.")):
        where = rbi
        for part in ours.partition(",")[0].split(".")[1:]:
            where = getattr(where, part)


def test_the_first_of_several_meanings_that_is_known_is_suggested():
    assert name_here("n_steps", ["n_step", "updates"]) == "; did you mean n_step?"
    assert name_here("n_steps", ["updates"]) == "; did you mean updates?"
    assert name_here("n_steps", ["episodes"]) == ""
    assert name_here("alpha", ["confidence"]) == "; did you mean confidence, which is 1 - alpha?"
    assert nearest("n_eval_episodes", ["episodes"], {"episodes": "--episodes"}) == "; did you mean --episodes?"


def test_a_name_of_another_library_is_not_taken_for_one_that_resembles_it_a_little():
    assert nearest("max_grad_frame", ["max_frames"]) == "; did you mean max_frames?"
    assert nearest("max_grad_norm", ["max_frames"]) == ""
    assert nearest("actions", ["action"]) == "; did you mean action?"


def arrays(**others):
    return rbi.Dataset.from_arrays(np.zeros((3, 2)), [0, 1, 1], rewards=[0, 0, 1], **others)


@pytest.mark.parametrize(
    ("call", "function", "meant"),
    [
        (lambda: arrays(terminals=[0, 0, 1]), "Dataset.from_arrays", "terminations"),
        (lambda: arrays(terminations=[0, 0, 1], timeouts=[0, 0, 0]), "Dataset.from_arrays", "truncations"),
        (lambda: arrays(terminations=[0, 0, 1], action_size=2), "Dataset.from_arrays", "num_actions"),
        (lambda: rbi.Dataset(observations=[], actions=[]), "Dataset.__init__", "rbi.Dataset.from_arrays"),
        (lambda: rbi.ActorConfig(epsilon=0.1), "ActorConfig.__init__", "epsilon_base"),
        (lambda: rbi.LearnerConfig(lr=0.1), "LearnerConfig.__init__", "learning_rate"),
        (lambda: rbi.ReplayConfig(buffer_size=9), "ReplayConfig.__init__", "capacity"),
        (lambda: rbi.TrainConfig(environment="CartPole-v1"), "TrainConfig.__init__", "env"),
        (lambda: rbi.TrainConfig("CartPole-v1", lerner=None), "TrainConfig.__init__", "learner"),
        (lambda: rbi.EnvConfig("CartPole-v1", max_frame=9), "EnvConfig.__init__", "max_frames"),
        (lambda: rbi.CertifyConfig(alpha=0.05), "CertifyConfig.__init__", "confidence, which is 1 - alpha"),
        (lambda: FormatSettings(tables=None), "FormatSettings.__init__", "table"),
        (lambda: TableConfig(actions="offer"), "TableConfig.__init__", "action"),
        (lambda: rbi.Dataset.from_frame({}, pscore="p"), "Dataset.from_frame", "action_prob"),
        (lambda: rbi.evaluate(POLICY, n_eval_episodes=5), "evaluate", "episodes"),
        (lambda: rbi.improve(DATA, n_steps=5), "improve", "updates"),
        (lambda: rbi.improve(DATA, c_min=0.5), "improve", "rule, as in reroute(0.5,1.5)"),
        (lambda: rbi.improve(dataset=DATA), "improve", "data"),
        (lambda: rbi.offline(DATA, n_seeds=5), "offline", "seeds"),
        (lambda: rbi.certify(POLICY, DATA, alpha=0.05), "certify", "confidence, which is 1 - alpha"),
        (lambda: rbi.monitor(DATA, reward_range=(0, 1)), "monitor", "return_range"),
        (lambda: rbi.load_episodes("log.csv", setting=1), "load_episodes", "settings"),
        (lambda: POLICY.act([[0, 0]], action_masks=1), "Policy.act", "legal"),
        (
            lambda: POLICY.act([[0, 0]], deterministic=True),
            "Policy.act",
            "rbi.Policy.mode, which takes the most probable action",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_argument_of_another_library_is_a_type_error_with_ours(call, function, meant):
    name, advice = re.escape(function), re.escape(meant)
    with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword .* '\w+'; did you mean {advice}\?$"):
        call()


@pytest.mark.parametrize(
    ("value", "name", "meant"),
    [
        (POLICY, "predict", "act, or mode for the most probable action"),
        (POLICY, "load", "rbi.load_policy"),
        (POLICY, "action_space", "obs_spec.num_actions"),
        (DATA, "load", "from_arrays, or rbi.load_episodes"),
        (DATA, "episodes", "__iter__, as in: for episode in dataset"),
        (DATA, "size", "__len__, as in len(dataset)"),
        (DATA, "actions", "arrays['actions']"),
        (DATA, "total_steps", "steps"),
        (RESULT, "model", "policy"),
        (RESULT, "save", "policy.save"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_attribute_of_another_library_is_an_attribute_error_with_ours(value, name, meant):
    message = f"'{type(value).__name__}' object has no attribute '{name}'; did you mean {meant}?"
    with pytest.raises(AttributeError, match=f"^{re.escape(message)}$"):
        getattr(value, name)


@pytest.mark.parametrize(
    ("cls", "name", "meant"),
    [
        (rbi.Policy, "load", "; did you mean rbi.load_policy?"),
        (rbi.Policy, "sample", "; did you mean act?"),
        (rbi.Dataset, "load", "; did you mean from_arrays, or rbi.load_episodes?"),
        (rbi.LearnerConfig, "lr", "; did you mean learning_rate?"),
        (rbi.Policy, "nothing", ""),
        (rbi.Policy, "__array__", ""),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_class_has_suggestions_like_its_objects(cls, name, meant):
    message = f"type object '{cls.__name__}' has no attribute '{name}'{meant}"
    with pytest.raises(AttributeError, match=f"^{re.escape(message)}$"):
        getattr(cls, name)


def test_a_config_has_its_own_signature_and_can_be_copied():
    config = rbi.ActorConfig(c_greedy=0.2)
    assert next(iter(inspect.signature(rbi.ActorConfig).parameters)) == "rule"
    assert copy.deepcopy(config) == pickle.loads(pickle.dumps(config)) == dataclasses.replace(config)


def test_a_subclass_may_pass_options_on():
    class Half(rbi.ActorConfig):
        def __init__(self, **options):
            super().__init__(rule="reroute(0.5,1.5)", **options)

    assert Half(c_greedy=0.2).c_greedy == 0.2
    with pytest.raises(TypeError, match="c_greed"):
        Half(c_greed=0.2)


def test_other_missing_attributes_and_failing_properties_raise_pythons_own_error():
    class Odd(Suggesting):
        @property
        def model(self):
            return self.nothing

        policy = 0

    for name in ("nothing", "__array__"):
        with pytest.raises(AttributeError, match=f"^'Odd' object has no attribute '{name}'$"):
            getattr(Odd(), name)
    Odd.size = property(lambda self: self.absent)
    with pytest.raises(AttributeError, match=r"^'Odd' object has no attribute 'absent'$"):
        Odd().size  # noqa: B018


def test_a_function_with_suggestions_is_otherwise_itself():
    @with_suggestions
    def scale(x, *, by=2):
        """Multiply."""
        return x * by

    assert (scale(3), scale(x=3, by=4), scale.__doc__) == (6, 12, "Multiply.")
    assert str(inspect.signature(scale)) == "(x, *, by=2)"
