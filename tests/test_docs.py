"""The code of README and docs: Python blocks run, commands parse, and the API pages have every public name.

The blocks of a page run one after the other in one folder, after the commands that stand before them, with few updates.
Where a `print` has a comment, it prints that.
"""

import functools
import io
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest

import rbi
from rbi import cli

ROOT = Path(__file__).parent.parent
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
LANGUAGES = {"python", "console", "text"}  # text: not run
SLOW = {
    "README.md",
    "docs/tutorials/environment.md",
    "docs/tutorials/logged-decisions.md",
    "docs/howto/certify.md",
    "docs/howto/improve.md",
    "docs/howto/offline.md",
    "docs/howto/train.md",
}


def blocks(page, language):
    """The code blocks of a page in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def console_commands(page):
    """The lines of a page's console blocks that start with a dollar sign, joined with their continuations."""
    lines = [line for block in blocks(page, "console") for line in block.replace("\\\n> ", "").splitlines()]
    return [line[2:] for line in lines if line.startswith("$ ")]


# What pages start from


def shop_logs(folder):
    """The logs of README and tutorial, a tenth as long."""
    shop = runpy.run_path(str(ROOT / "examples" / "logged_decisions.py"))
    shop["log"](str(folder / "decisions.csv"), 2000, 0)
    shop["log"](str(folder / "later.csv"), 2000, 1)


def image_store(folder):
    images = np.zeros((30, 84, 84), np.uint8)
    ends = np.arange(30) % 3 == 2
    import_store(folder / "store", rbi.Dataset.from_arrays(images, np.arange(30) % 2, np.ones(30), ends))


def import_store(path, data):
    from rbi.data.store import StoreWriter

    with StoreWriter.create(path, data.spec) as writer:
        for episode in data:
            writer.append(episode)


PREPARE = {"README.md": shop_logs, "docs/tutorials/logged-decisions.md": shop_logs, "docs/store.md": image_store}
"""What the Python code of other pages starts from is made by the commands before it."""


def commands_before_code(page):
    """The commands that stand before the first Python code of a page."""
    before = page.partition("```python\n")[0]
    return console_commands(before)


def run_command(words):
    """Run the words of a command; its exit status."""
    if words[0] == "rbi":
        return cli.main(words[1:])
    return subprocess.run([{"python": sys.executable}.get(words[0], words[0]), *words[1:]], check=True).returncode


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in SLOW else ())
        for name, page in PAGES.items()
        if blocks(page, "python")
    ],
)
@pytest.mark.usefixtures("undrawn")
def test_python_blocks_run_and_print_what_their_comments_say(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for command in () if name in PREPARE else commands_before_code(PAGES[name]):
        few = ["--updates", "50"] if command.startswith("rbi improve") else []
        assert run_command([*shlex.split(command, comments=True), *few]) == 0
    PREPARE.get(name, lambda _: None)(tmp_path)
    code = "\n".join(blocks(PAGES[name], "python"))
    code = re.sub(r"updates=\d+", "updates=100", code)
    (tmp_path / "page.py").write_text(code)
    monkeypatch.setattr(rbi, "improve", functools.partial(rbi.improve, updates=100))
    capsys.readouterr()
    runpy.run_path(str(tmp_path / "page.py"))
    printed = capsys.readouterr().out.splitlines()
    for said in re.findall(r"^ *print\(.*\)  # (.*)$", code, re.MULTILINE):
        assert said in printed


@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if console_commands(page)])
def test_commands_have_valid_options(name):
    for command in console_commands(PAGES[name]):
        words = shlex.split(command, comments=True)
        if words[0] == "rbi":
            cli.parse(words[1:])


def test_commands_of_the_paper_map_have_valid_options():
    commands = re.findall(r"`rbi ([^`]+)`", PAGES["docs/paper-map.md"])
    assert len(commands) > 20
    for command in commands:
        cli.parse([word for word in shlex.split(command) if word != "--help-all"])


@pytest.mark.parametrize("name", PAGES)
def test_code_is_in_fences_with_a_language(name):
    """So that no block escapes the tests above; indented blocks have no language."""
    fences = re.findall(r"^```(\w*)$", PAGES[name], re.MULTILINE)
    assert set(fences[::2]) <= LANGUAGES
    assert set(fences[1::2]) <= {""}
    outside = re.sub(r"^```.*?^```$", "", PAGES[name], flags=re.DOTALL | re.MULTILINE)
    assert not re.search(r"\n\n {4}(?! *[-*|\d])(?=\S)(?!options:)", outside)


def test_the_api_pages_have_every_public_name_once():
    listed = re.findall(r"^::: rbi\.(\w+)$", "\n".join(PAGES[name] for name in PAGES if "/api/" in name), re.MULTILINE)
    assert sorted([*listed, "__version__"]) == sorted(rbi.__all__)


def test_every_kind_of_page_is_found():
    assert sum(bool(blocks(page, "python")) for page in PAGES.values()) > 5
    assert len([command for page in PAGES.values() for command in console_commands(page)]) > 40


FIGURES = runpy.run_path(str(ROOT / "docs" / "figures.py"))


@pytest.mark.parametrize("name", FIGURES["FIGURES"])
def test_committed_figures_are_what_the_package_draws(name):
    """Numbers within 0.1 points."""
    committed = (ROOT / "docs" / "figures" / f"{name}.svg").read_text()
    if f"Matplotlib v{matplotlib.__version__}," not in committed:
        pytest.skip(f"drawn by another version than Matplotlib {matplotlib.__version__}")
    drawn = io.StringIO()
    FIGURES["draw"](name, drawn)
    parts, coordinates = zip(*(svg_parts(text) for text in (committed, drawn.getvalue())), strict=True)
    assert parts[0] == parts[1]
    np.testing.assert_allclose(*coordinates, atol=0.1)


def svg_parts(text):
    """An SVG without its numbers, and the numbers; ids are left out, since they are digests of rounded numbers."""
    text = re.sub(r'\bid="[^"]*"|url\(#[^)]*\)|href="#[^"]*"', "", text)
    number = r"-?\d+\.?\d*(?:e-?\d+)?"
    return re.sub(number, "", text), np.array(re.findall(number, text), float)
