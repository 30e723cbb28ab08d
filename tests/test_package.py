"""The package as others see it: its public names, the README's example, and links that lead somewhere."""

import re
import runpy
from pathlib import Path

import pytest

import rbi

ROOT = Path(__file__).parent.parent
PROMISED = {
    "PPO", "BackwardKL", "Behavior", "Episode",
    "ForwardKL", "Greedy", "Policy", "Reroute", "Rule", "TotalVariation",
    "__version__", "backward_kl", "count_bounds", "floor", "forward_kl", "greedy", "load_episodes",
    "load_policy", "max_ppo",
    "max_reroute", "max_tv", "measures", "mix", "parse_rule", "runs",
}  # fmt: skip
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def test_public_names_are_the_promised_ones():
    assert set(rbi.__all__) == PROMISED
    assert all(hasattr(rbi, name) for name in PROMISED)


def test_the_readmes_example_runs_and_says_what_it_says(tmp_path, capsys):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
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
