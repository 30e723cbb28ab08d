"""The package as others see it: its public names, the README's example, and links that lead somewhere."""

import ast
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import rbi
from rbi.data.formats.tables import schema_of
from rbi.data.store import Store

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
