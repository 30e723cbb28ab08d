"""rbi: better policies from logged experience, without making things worse.

What programs need is an attribute of this package. A name's module is imported when the name is first used, so that
`import rbi` and `rbi --help` do not wait for PyTorch.
"""

import importlib
import os

TYPE_CHECKING = False  # as in typing, whose import takes longer than everything else here

__version__ = "0.1.0"

# On ARM CPUs PyTorch comes with mimalloc, which returns memory to the system after 10 ms. A network update takes longer
# than that, so each one would fault its memory in again: a tenth to a sixth of its time (measured on two Neoverse-N1
# cores with DQN's network). PyTorch reads this variable once, when it is imported.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "1000")

if TYPE_CHECKING:
    from rbi import measures, runs
    from rbi.certification.decision import CertifyConfig, Decision, certify
    from rbi.certification.monitor import MonitorResult, monitor
    from rbi.data.dataset import Dataset
    from rbi.data.episode import Episode
    from rbi.data.formats import load_episodes
    from rbi.data.importing import export_dataset, import_dataset
    from rbi.envs.types import EnvConfig
    from rbi.evaluation.recording import Perturbation, record
    from rbi.evaluation.rollouts import EvaluationResult, Protocol, evaluate
    from rbi.lab.bandit import compare_rules, learning_study, regret_study
    from rbi.lab.spi.study import spi_study
    from rbi.networks import NetworkConfig
    from rbi.observations import ObservationSpec
    from rbi.offline_rl.experiment import OfflineResult, offline
    from rbi.offline_rl.improve import ImproveConfig, ImproveResult, improve
    from rbi.online.config import ActorConfig, LearnerConfig, Schedule, TrainConfig
    from rbi.online.run_logger import TrainResult
    from rbi.online.sweep import SweepResult, sweep
    from rbi.online.train import train
    from rbi.policy import Policy, load_policy
    from rbi.replay import ReplayConfig
    from rbi.report.html import write_report
    from rbi.returns import ReturnConfig
    from rbi.rules.counts import count_bounds
    from rbi.rules.kl import backward_kl, forward_kl
    from rbi.rules.linear import bcq, floor, greedy, max_ppo, max_reroute, max_tv, mix
    from rbi.rules.types import (
        BCQ,
        PPO,
        BackwardKL,
        Behavior,
        CountAware,
        ForwardKL,
        Greedy,
        Reroute,
        Rule,
        TotalVariation,
        parse_rule,
        register_rule,
    )

_MODULES = {
    "rbi.certification.decision": ("CertifyConfig", "Decision", "certify"),
    "rbi.certification.monitor": ("MonitorResult", "monitor"),
    "rbi.data.dataset": ("Dataset",),
    "rbi.data.episode": ("Episode",),
    "rbi.data.formats": ("load_episodes",),
    "rbi.data.importing": ("export_dataset", "import_dataset"),
    "rbi.envs.types": ("EnvConfig",),
    "rbi.evaluation.recording": ("Perturbation", "record"),
    "rbi.evaluation.rollouts": ("EvaluationResult", "Protocol", "evaluate"),
    "rbi.lab.bandit": ("compare_rules", "learning_study", "regret_study"),
    "rbi.lab.spi.study": ("spi_study",),
    "rbi.networks": ("NetworkConfig",),
    "rbi.observations": ("ObservationSpec",),
    "rbi.offline_rl.experiment": ("OfflineResult", "offline"),
    "rbi.offline_rl.improve": ("ImproveConfig", "ImproveResult", "improve"),
    "rbi.online.config": ("ActorConfig", "LearnerConfig", "Schedule", "TrainConfig"),
    "rbi.online.run_logger": ("TrainResult",),
    "rbi.online.sweep": ("SweepResult", "sweep"),
    "rbi.online.train": ("train",),
    "rbi.policy": ("Policy", "load_policy"),
    "rbi.replay": ("ReplayConfig",),
    "rbi.report.html": ("write_report",),
    "rbi.returns": ("ReturnConfig",),
    "rbi.rules.counts": ("count_bounds",),
    "rbi.rules.kl": ("backward_kl", "forward_kl"),
    "rbi.rules.linear": ("bcq", "floor", "greedy", "max_ppo", "max_reroute", "max_tv", "mix"),
    "rbi.rules.types": (
        "BCQ",
        "PPO",
        "BackwardKL",
        "Behavior",
        "CountAware",
        "ForwardKL",
        "Greedy",
        "Reroute",
        "Rule",
        "TotalVariation",
        "parse_rule",
        "register_rule",
    ),
}
_SUBMODULES = ("measures", "runs")
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "BCQ",
    "PPO",
    "ActorConfig",
    "BackwardKL",
    "Behavior",
    "CertifyConfig",
    "CountAware",
    "Dataset",
    "Decision",
    "EnvConfig",
    "Episode",
    "EvaluationResult",
    "ForwardKL",
    "Greedy",
    "ImproveConfig",
    "ImproveResult",
    "LearnerConfig",
    "MonitorResult",
    "NetworkConfig",
    "ObservationSpec",
    "OfflineResult",
    "Perturbation",
    "Policy",
    "Protocol",
    "ReplayConfig",
    "Reroute",
    "ReturnConfig",
    "Rule",
    "Schedule",
    "SweepResult",
    "TotalVariation",
    "TrainConfig",
    "TrainResult",
    "__version__",
    "backward_kl",
    "bcq",
    "certify",
    "compare_rules",
    "count_bounds",
    "evaluate",
    "export_dataset",
    "floor",
    "forward_kl",
    "greedy",
    "import_dataset",
    "improve",
    "learning_study",
    "load_episodes",
    "load_policy",
    "max_ppo",
    "max_reroute",
    "max_tv",
    "measures",
    "mix",
    "monitor",
    "offline",
    "parse_rule",
    "record",
    "register_rule",
    "regret_study",
    "runs",
    "spi_study",
    "sweep",
    "train",
    "write_report",
]


def __getattr__(name: str) -> object:
    if name in _SUBMODULES:
        return importlib.import_module(f"rbi.{name}")
    if name not in _MODULE_OF:
        suggestions = importlib.import_module("rbi.suggestions")
        meant = suggestions.name_here(name, __all__)  # Python adds the nearest of our names
        raise AttributeError(f"module 'rbi' has no attribute {name!r}{meant}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value  # found directly from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
