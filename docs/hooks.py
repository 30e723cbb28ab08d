"""Pages that mkdocs makes from the code when it builds the site: commands, examples, the notebook, the changelog.

Links from a page to a file outside docs/ lead to the page that is made of it; where there is none they become text.
"""

import importlib
import inspect
import json
import posixpath
import re
from fnmatch import fnmatch
from pathlib import Path

from mkdocs.structure.files import File

from rbi import cli
from rbi.cli import command as commands
from rbi.cli import completion
from rbi.cli import help as help_pages

ROOT = Path(__file__).resolve().parent.parent
LANGUAGES = {".py": "python", ".yaml": "yaml"}


def on_config(config):
    """Nav entries such as decisions/*.md stand for all pages that match, in order."""
    written = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))
    config.nav = expand(config.nav, [*written, *made()])
    return config


def expand(nav, pages):
    entries = []
    for entry in nav:
        if isinstance(entry, str):
            entries += [page for page in pages if fnmatch(page, entry)] if "*" in entry else [entry]
        else:
            ((title, inside),) = entry.items()
            inside = [inside] if isinstance(inside, str) and "*" in inside else inside
            entries.append({title: expand(inside, pages) if isinstance(inside, list) else inside})
    return entries


def on_files(files, config):
    for uri, make in made().items():
        files.append(File.generated(config, uri, content=make()))
    return files


def on_page_markdown(markdown, page, **_):
    """Lead links to files outside docs/ to the pages made of them; rank pages that explain above those that record."""
    origin = page.file.src_uri
    page.meta |= {"index.md": {"hide": ["navigation"]}, "paper-map.md": {"hide": ["toc"]}}.get(origin, {})
    if origin.startswith(("tutorials/", "concepts/", "howto/")):
        page.meta.setdefault("search", {"boost": 4})
    elif origin.startswith(("decisions/", "results", "breakout", "changelog", "paper-map")):
        page.meta.setdefault("search", {"boost": 0.25})

    def target(link):
        text, path, anchor = link[1], link[2], link[3] or ""
        folder = posixpath.dirname(SOURCES.get(origin, f"docs/{origin}"))
        file = posixpath.normpath(posixpath.join(folder, path))
        if not (ROOT / file).exists() and file not in {f"docs/{uri}" for uri in made()}:
            return link[0]  # mkdocs says that it is broken
        uri = file.removeprefix("docs/") if file.startswith("docs/") else PAGES.get(file)
        return f"[{text}]({posixpath.relpath(uri, posixpath.dirname(origin) or '.')}{anchor})" if uri else text

    return re.sub(r"(?<!!)\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)", target, markdown)


def on_page_content(html, **_):
    """Let long names of functions in tables break after :: and _, so that the paper map fits the page."""

    def breakable(code):
        return code[0] if "::" not in code[0] else re.sub(r"(::|_)(?=\w)", r"\1<wbr>", code[0])

    return re.sub(r"<code>[^<]*</code>", breakable, html)


def made():
    """How to make each page, by its address."""
    pages = {"commands/index.md": commands_page}
    pages |= {f"commands/{name.replace(' ', '-')}.md": (lambda name=name: command_page(name)) for name in cli.COMMANDS}
    pages |= {uri: (lambda path=path: file_page(ROOT / path)) for uri, path in SOURCES.items()}
    return pages


def sources():
    """Files of the repository that are pages of the site: address -> path."""
    listed = {"changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md"}
    listed["tutorials/notebook.md"] = "examples/tutorial.ipynb"
    for path in sorted(ROOT.glob("examples/*.py")):
        listed[f"examples/{path.stem}.md"] = f"examples/{path.name}"
    for path in sorted(ROOT.glob("deploy/*.yaml")):
        listed[f"files/{path.stem}.md"] = f"deploy/{path.name}"
    return listed


SOURCES = sources()
PAGES = {path: uri for uri, path in SOURCES.items()}


def file_page(path):
    text = path.read_text()
    if path.suffix == ".md":
        return text
    if path.suffix == ".ipynb":
        return notebook_page(json.loads(text), path)
    return f"# {path.name}\n\n`{path.relative_to(ROOT)}`\n\n```{LANGUAGES[path.suffix]}\n{text}```\n"


def notebook_page(notebook, path):
    cells = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        cells.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    cells.insert(1, f"This page is the notebook `{path.relative_to(ROOT)}`, without its outputs.")
    return "\n\n".join(cells) + "\n"


def on_post_build(config):
    """Fail if a page loads anything from elsewhere: the site works without a network."""
    for path in Path(config.site_dir).rglob("*.html"):
        loaded = re.search(r"""<(?:script|img|iframe)[^>]* src="https?:|<link[^>]* href="https?:""", path.read_text())
        if loaded:
            raise ValueError(f"{path} loads from elsewhere: {loaded[0]}")


# The command reference


def commands_page():
    rows = [f"| [`rbi {name}`]({name.replace(' ', '-')}.md) | {text} |" for name, (*_, text) in cli.COMMANDS.items()]
    return "\n".join(
        [
            "# Commands",
            "",
            help_pages.FOOTER.partition("\n\n")[0],
            "",
            "| command | what it does |",
            "|---|---|",
            *rows,
            "",
            "`rbi completion` prints a script with which a shell completes commands, options and their choices:",
            "",
            "```bash",
            *(f"{line}  # {shell}" for shell, line in completion.INSTALL.items()),
            "```",
            "",
        ]
    )


def command_page(name):
    """The options of a command as tables, one per config."""
    module, attribute, _ = cli.COMMANDS[name]
    command = getattr(importlib.import_module(module), attribute)
    of_presets = presets_of(command)
    options = sorted(zip(*of_presets.values(), strict=True), key=place)
    words = [first.metavar for first, *_ in options if first.positional]
    lines = [f"# rbi {name}", "", f"```text\n{' '.join(['rbi', name, *words, '[OPTIONS]'])}\n```", ""]
    lines += [inspect.getdoc(command), ""]
    if command.EXAMPLE:
        lines += ["```bash", command.EXAMPLE, "```", ""]
    for group in dict.fromkeys(first.group for first, *_ in options):
        rows = [each for each in options if each[0].group == group]
        title = rows[0][0].name.strip("-").partition(".")[0].capitalize() + " options" if group else "Options"
        lines += [f"## {title}", "", group, "", "| option | default | meaning |", "|---|---|---|"]
        lines += [*(row(each, list(of_presets)) for each in rows), ""]
    return "\n".join(lines)


def place(row):
    return not row[0].positional, row[0].name in help_pages.SHARED


def presets_of(command):
    """The options of a command with the defaults of each of its presets; a command without presets has one, unnamed."""
    options = help_pages.options(command)
    names = next((option.choices for option in options if option.name == "--preset"), ())
    given = {name: commands.parse_unchecked(command, ["--preset", name]) for name in names}
    found = {name: help_pages.options(command, command.defaults(each)) for name, each in given.items()}
    return found or {"": options}


def row(option, presets):
    """One row of a table: `--option TYPE`, its default, or those of the presets where they differ, and what it does."""
    defaults = [f"`{default(each)}`" if each.default else "" for each in option]
    if len(set(defaults)) > 1:
        defaults = ["<br>".join(f"{preset}&nbsp;{text}" for preset, text in zip(presets, defaults, strict=True))]
    head = max((each.head for each in option), key=len)  # a flag that is on is shown with its opposite
    head = re.sub(r",(?=\S)", ", ", head)  # choices may be broken into lines
    cells = f"`{head}`", defaults[0], option[0].summary.replace("<", "&lt;")
    return " ".join(f"| {cell}" for cell in (text.replace("|", r"\|") for text in cells)) + " |"


def default(option):
    return {"True": "on", "False": "off"}.get(option.default, option.default) if option.is_flag else option.default
