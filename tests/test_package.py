"""The package as others see it: its public names, the README's example, and links that lead somewhere."""

import ast
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

import rbi
from rbi.data.dataset import Dataset
from rbi.data.formats.tables import schema_of
from rbi.data.store import Store
from rbi.networks import make_networks
from tests.online.small_runs import TINY

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def test_every_public_name_resolves():
    assert len(set(rbi.__all__)) == len(rbi.__all__)
    for name in rbi.__all__:
        assert getattr(rbi, name) is not None
    assert set(rbi.__all__) <= set(dir(rbi))


def test_type_checkers_see_the_names_that_exist_at_run_time():
    """The imports under TYPE_CHECKING, the table of lazy names and __all__ list the same names."""
    (block,) = (node for node in ast.parse(Path(rbi.__file__).read_text()).body if isinstance(node, ast.If))
    imported = {(node.module, alias.name) for node in block.body for alias in node.names}
    lazy = {(module, name) for module, names in rbi._MODULES.items() for name in names}
    assert imported == lazy | {("rbi", name) for name in rbi._SUBMODULES}
    assert {name for _, name in imported} | {"__version__"} == set(rbi.__all__)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("evaluate_policy", "; did you mean evaluate?"),
        ("load", "; did you mean load_policy?"),
        ("MDPDataset", "; did you mean Dataset.from_arrays?"),
        ("CQL", "; did you mean offline, with baselines=['cql']?"),
        ("zzz", ""),
    ],
)
def test_an_unknown_name_is_an_attribute_error_with_the_name_that_is_meant(name, meant):
    with pytest.raises(AttributeError, match=rf"^module 'rbi' has no attribute '{name}'{re.escape(meant)}$"):
        getattr(rbi, name)


def python(code, **environment):
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return ran.stdout.strip()


def test_importing_the_package_imports_no_heavy_library():
    heavy = "{'torch', 'scipy', 'matplotlib', 'pyarrow', 'gymnasium', 'ray', 'tensorboard', 'pandas', 'tyro', 'rich'}"
    assert python(f"import sys, rbi; print({heavy} & set(sys.modules))", **os.environ) == "set()"


READING = """
import sys
import rbi, rbi.cli.data, rbi.data
rbi.load_episodes(sys.argv[1])
print("torch" in sys.modules, all(getattr(rbi.data, name) for name in rbi.data.__all__))
"""


def test_reading_a_table_imports_no_pytorch(tmp_path):
    (tmp_path / "logs.csv").write_text("episode_id,obs_0,action,reward,terminated\n1,0.5,0,1,1\n2,0.25,1,0,1\n")
    ran = subprocess.run([sys.executable, "-c", READING, tmp_path / "logs.csv"], capture_output=True, text=True)
    assert ran.stdout.split() == ["False", "True"], ran.stderr


IMPORT_HOOK = """
import os, sys

class Hook:
    def find_spec(self, name, *_):
        if name == "torch":
            print(os.environ.get("MIMALLOC_PURGE_DELAY"), flush=True)
            os._exit(0)

sys.meta_path.insert(0, Hook())
import rbi.policy
"""


@pytest.mark.parametrize(("given", "expected"), [({}, "1000"), ({"MIMALLOC_PURGE_DELAY": "5"}, "5")])
def test_the_allocators_purge_delay_is_set_before_torch_is_imported_unless_the_user_sets_it(given, expected):
    others = {name: value for name, value in os.environ.items() if name != "MIMALLOC_PURGE_DELAY"}
    assert python(IMPORT_HOOK, **(others | given)).split()[0] == expected


def test_the_readmes_ten_lines_print_what_their_comments_say(tmp_path, capsys):
    block, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "example.py").write_text(block)
    runpy.run_path(str(tmp_path / "example.py"))
    printed = capsys.readouterr().out.splitlines()
    assert printed == [line.split("# ", 1)[1] for line in block.splitlines() if line.startswith("print")]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_in_pages_lead_to_files(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_paper_map_names_code_and_tests_that_exist():
    """Every `path` in backticks is a file, every `path::name` a definition in it."""
    rows = re.findall(
        r"`((?:src|tests|docs|benchmarks)/[\w/.-]+)(?:::(\w+))?`", (ROOT / "docs/paper-map.md").read_text()
    )
    assert len(rows) > 20
    for path, name in rows:
        text = (ROOT / path).read_text()
        assert not name or re.search(rf"^\s*(?:def|class) {name}\b", text, re.MULTILINE), f"{path} has no {name}"


NOWHERE = Path("nowhere")
MISSING = {
    "load_episodes": lambda: rbi.load_episodes(NOWHERE),
    "format": lambda: rbi.load_episodes(NOWHERE, "csv"),
    "load_policy": lambda: rbi.load_policy(NOWHERE),
    "improve": lambda: rbi.improve(NOWHERE),
    "resume": lambda: rbi.improve(NOWHERE, out=NOWHERE, resume=True, progress=False),
    "monitor": lambda: rbi.monitor(NOWHERE, old_value=0.5, return_range=(0, 1)),
    "runs.read": lambda: rbi.runs.read(NOWHERE),
    "Store": lambda: Store(NOWHERE),
    "features_of": lambda: schema_of(NOWHERE),
}


@pytest.mark.parametrize("name", MISSING)
def test_a_path_that_does_not_exist_is_not_found_for_python_as_well(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for kind in (FileNotFoundError, ValueError):
        with pytest.raises(kind, match=r"nowhere: no such (file or )?folder$"):
            MISSING[name]()
    assert not NOWHERE.exists()


def pushes(episodes=30, seed=0):
    """Episodes of three random pushes, each with its logged probability and a reward of a third at most."""
    rng, steps = np.random.default_rng(seed), 3 * episodes
    actions, ends = rng.integers(2, size=steps), np.arange(steps) % 3 == 2
    states, rewards = rng.normal(size=(steps, 4)), rng.random(steps) / 3 * actions
    probs = {"action_probs": np.full(steps, 0.5), "env": "CartPole-v1"}
    return Dataset.from_arrays(states, actions, rewards, ends, **probs)


QUIET = {"progress": False}
IMPROVE = {"updates": 4, "batch_size": 8, "hidden_size": 4, **QUIET}
OFFLINE = {"updates": 4, "rules": ["greedy"], "baselines": [], "episodes": 2, "evaluations": 1, "num_envs": 4, **QUIET}


def test_a_tilde_in_a_path_is_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    pushes().save("~/logs")
    assert len(rbi.load_episodes("~/logs")) == len(rbi.load_episodes(Path("~/logs"))) == 30
    result = rbi.improve("~/logs", out="~/improved", **IMPROVE)
    rbi.improve("~/logs", out="~/improved", resume=True, **IMPROVE)
    result.policy.save("~/policy")
    assert rbi.load_policy("~/policy").rule == result.policy.rule
    pushes(seed=1).save("~/later")
    rbi.certify("~/policy", "~/later", return_range=(0, 1), out="~/certified", **QUIET)
    rbi.monitor("~/later", old_value=0.3, return_range=(0, 1), out="~/monitored", policy="~/policy")
    rbi.offline("~/logs", out="~/offline", **OFFLINE)
    rbi.train("CartPole-v1", out="~/cart", eval_episodes=0, **TINY, **QUIET)
    rbi.train(out="~/cart", resume=True, **QUIET)
    rbi.evaluate("~/cart", episodes=2, out="~/evaluated", **QUIET)
    rbi.record("~/cart", episodes=2, out="~/recorded", **QUIET)
    rbi.write_report(["~/improved", "~/cart"], "~/report.html", **QUIET)
    assert rbi.runs.read("~/cart").result
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    expected = "cart certified evaluated improved later logs monitored offline policy recorded report.html"
    assert sorted(path.name for path in (tmp_path / "home").glob("[!.]*")) == expected.split()


@pytest.mark.parametrize(
    ("path", "error", "why"),
    [
        (3, TypeError, "the path is of type int: must be a text or a pathlib.Path$"),
        (b"runs", TypeError, "the path is of type bytes"),
        ("", ValueError, "^path = '': must name a file or a folder$"),
        ("s3://bucket/run", ValueError, "^s3://bucket/run: is a URL; name a"),
    ],
)
def test_what_is_no_path_of_this_machine_is_refused(path, error, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for use in (
        rbi.load_episodes,
        pushes().save,
        untrained().save,
        lambda out: rbi.improve(pushes(), out=out, **IMPROVE),
        lambda out: rbi.train("CartPole-v1", out=out, **TINY, **QUIET),
        lambda out: rbi.certify(untrained(), pushes(), out=out, **QUIET),
    ):
        with pytest.raises(error, match=why):
            use(path)
    assert [*tmp_path.iterdir()] == []


def test_a_result_in_place_of_its_folder_is_refused_with_what_to_give(tmp_path):
    result = rbi.improve(pushes(), out=tmp_path / "run", **IMPROVE)
    for paths in (result, [result]):
        with pytest.raises(TypeError, match=r"of type ImproveResult: .*; give its \.out$"):
            rbi.write_report(paths)


def test_a_tilde_of_no_user_is_part_of_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pushes().save("~nobody-of-this-name")
    assert (tmp_path / "~nobody-of-this-name").is_dir()


SEEDED = {
    "train": lambda seed: rbi.train("CartPole-v1", seed=seed, eval_episodes=0, **TINY, **QUIET),
    "evaluate": lambda seed: rbi.evaluate(untrained(), "CartPole-v1", episodes=2, seed=seed, **QUIET),
    "improve": lambda seed: rbi.improve(pushes(), seed=seed, **IMPROVE),
    "offline": lambda seed: rbi.offline(pushes(), seed=seed, **OFFLINE),
    "record": lambda seed: rbi.record("random", "CartPole-v1", episodes=2, seed=seed, **QUIET),
}


def untrained():
    return rbi.Policy(
        make_networks(rbi.ObservationSpec((4,), 1, 2), rbi.NetworkConfig(4), 0), rbi.Reroute(0.5, 1.5), 0.0
    )


@pytest.mark.parametrize("name", SEEDED)
def test_a_seed_that_is_no_natural_number_is_refused_by_name_and_those_of_numpy_are_accepted(name):
    for seed in (-1, 1.5, "x", True, np.int64(-1), 2**63, [1]):
        with pytest.raises(ValueError, match=rf"^seed = {re.escape(repr(seed))}: must be an integer, at least 0"):
            SEEDED[name](seed)
    SEEDED[name](np.int32(3))
    SEEDED[name](2**63 - 1)


RANGED = {
    "improve": lambda given: rbi.improve(pushes(), return_range=given, **IMPROVE).numbers["decision"]["headline"],
    "certify": lambda given: repr(rbi.certify(untrained(), pushes(), return_range=given, **QUIET)),
    "monitor": lambda given: repr(rbi.monitor(pushes(), old_value=0.3, return_range=given)),
}


@pytest.mark.parametrize("name", RANGED)
def test_a_range_of_returns_is_any_two_numbers(name):
    pair = RANGED[name]((0, 1))
    assert pair == RANGED[name]([0, 1]) == RANGED[name](np.array([0.0, 1.0])) == RANGED[name](torch.tensor([0, 1]))


@pytest.mark.parametrize("name", RANGED)
@pytest.mark.parametrize(
    "given", [1, (1,), "01", np.array([0, 1, 2]), np.zeros((2, 2)), (0, None), (1, 0), (0, np.inf)]
)
def test_what_is_no_range_of_returns_is_refused_by_name_and_value(name, given):
    with pytest.raises(ValueError, match=r"^return_range = .+: must be "):
        RANGED[name](given)


PLAYED = {"episodes": 2, **QUIET}
MISTAKES = {
    "seeds = 1.5: must be an integer": lambda: rbi.offline(pushes(), **{**OFFLINE, "seeds": 1.5}),
    "checkpoint_minutes = '5': must be a number": lambda: rbi.offline(pushes(), checkpoint_minutes="5", **OFFLINE),
    "episodes = 2.0: must be an integer": lambda: rbi.evaluate(untrained(), "CartPole-v1", episodes=2.0),
    "episodes = '2': must be an integer": lambda: rbi.record("random", "CartPole-v1", episodes="2", out="run"),
    "episodes = -1: must be at least 0": lambda: rbi.write_report("run", episodes=-1),
    "protocol = 'papr': must be one of paper, modern; did": lambda: rbi.evaluate(untrained(), protocol="papr"),
    "protocol = 'old': must be one of paper, modern": lambda: rbi.record("random", protocol="old", **PLAYED),
    "device = None: must be one of auto, cpu, cuda": lambda: rbi.improve(pushes(), device=None),
    "rng = -1: must be a NumPy generator or a seed": lambda: untrained().act(np.zeros((1, 4)), -1),
    "num_actions = 2.0: must be an integer": lambda: Dataset.from_arrays([[0.0]], [0], [0], [True], num_actions=2.0),
    "env is of type int: must be an id": lambda: Dataset.from_arrays([[0.0]], [0], [0], [True], env=3),
}
WRONG_TYPES = {
    "config is of type dict: must be a .*TrainConfig": lambda: rbi.train(config={}),
    "config is of type dict: must be a .*OfflineConfig": lambda: rbi.offline(pushes(), config={}),
    "options is of type dict: must be a .*RunOptions": lambda: rbi.train("CartPole-v1", options={}),
    "settings is of type dict: must be a .*FormatSettings": lambda: rbi.load_episodes(".", "csv", settings={}),
    "perturbation is of type dict: must": lambda: rbi.record("random", "CartPole-v1", perturbation={}, **PLAYED),
    "like is of type int: must be an earlier": lambda: Dataset.from_frame(pa.table({"x": [1.0]}), like=3),
    "callback is of type int: must be a function": lambda: rbi.train("CartPole-v1", callback=3, out="run"),
    "callback is of type str: must be a function": lambda: rbi.improve(pushes(), callback="log", out="run"),
    "callback is of type list: must be a function": lambda: rbi.evaluate(untrained(), "CartPole-v1", callback=[]),
}


@pytest.mark.parametrize("message", [*MISTAKES, *WRONG_TYPES])
def test_a_mistake_is_refused_by_argument_and_value_before_a_folder_is_made(message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mistake, error = (MISTAKES[message], ValueError) if message in MISTAKES else (WRONG_TYPES[message], TypeError)
    with pytest.raises(error, match=f"^{message}"):
        mistake()
    assert [*tmp_path.iterdir()] == []


def test_numbers_of_numpy_are_settings():
    settings = {"updates": np.int64(4), "gamma": np.float32(0.5), "clip_rewards": np.bool_(True)}
    assert rbi.improve(pushes(), **{**IMPROVE, **settings}).numbers["updates"] == 4


def test_tensors_with_a_gradient_are_arrays():
    states = torch.zeros(3, 2, requires_grad=True)
    data = Dataset.from_arrays(states, torch.tensor([0, 1, 0]), states[:, 0] + 1, torch.tensor([False, False, True]))
    assert data.scores.tolist() == [3.0]


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(tmp_path, monkeypatch):
    (tmp_path / "locked").mkdir()
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "locked" and allowed(path, mode))
    lines = []
    for out in (tmp_path / "locked" / "run", tmp_path / "locked" / "new" / "run"):
        with pytest.raises(PermissionError, match=r"Permission denied: .*locked"):
            rbi.evaluate(untrained(), "CartPole-v1", callback=lines.append, out=out, **PLAYED)
    assert not lines
