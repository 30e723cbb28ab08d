"""Pages that mkdocs makes from the code when it builds the site: commands, examples, the notebook, the changelog.

Links from a page to a file outside docs/ lead to the page that is made of it; where there is none they become text.
"""

import contextlib
import io
import json
import os
import posixpath
import re
from fnmatch import fnmatch
from pathlib import Path

from mkdocs.structure.files import File

from rbi import cli

ROOT = Path(__file__).resolve().parent.parent
LANGUAGES = {".py": "python", ".yaml": "yaml"}

def on_config(config):
    """Nav entries such as decisions/*.md stand for all pages that match, in order."""
    pages = sorted({path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")} | set(made()))
    config.nav = expand(config.nav, pages)
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
    """Lead links to files outside docs/ to the pages made of them."""
    origin = page.file.src_uri

    def target(link):
        text, path, anchor = link[1], link[2], link[3] or ""
        folder = posixpath.dirname(SOURCES.get(origin, f"docs/{origin}"))
        file = posixpath.normpath(posixpath.join(folder, path))
        if not (ROOT / file).exists() and file not in {f"docs/{uri}" for uri in made()}:
            return link[0]  # mkdocs says that it is broken
        uri = file.removeprefix("docs/") if file.startswith("docs/") else PAGES.get(file)
        return f"[{text}]({posixpath.relpath(uri, posixpath.dirname(origin) or '.')}{anchor})" if uri else text

    return re.sub(r"(?<!!)\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)", target, markdown)

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
    for path in [*ROOT.glob("examples/*.py")]:
        listed[f"examples/{path.stem}.md"] = f"examples/{path.name}"
    for path in ROOT.glob("deploy/*.yaml"):
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

# The command reference

def commands_page():
    rows = [f"| [`rbi {name}`]({name.replace(' ', '-')}.md) | {text} |" for name, (*_, text) in cli.COMMANDS.items()]
    return "\n".join(["# Commands", "", cli.DESCRIPTION, "", "| command | what it does |", "|---|---|", *rows, ""])

def command_page(name):
    """The help of a command as tables, one per group of options."""
    usage, description, boxes = help_of(name)
    lines = [f"# rbi {name}", "", f"```text\n{usage.replace('{None}|', '')}\n```", "", description, ""]
    for title, about, options in boxes:
        lines += [f"## {title}", "", about, "", "| option | default | meaning |", "|---|---|---|"]
        lines += [row(option, meaning) for option, meaning in options]
        lines.append("")
    return "\n".join(lines)

def help_of(name):
    """Usage, description and boxes of options `(title, about, [(option, meaning)])` of a command's help."""
    os.environ["COLUMNS"] = "80"  # one column of boxes
    shown = printed([*name.split(), "--help"])
    if "--help-all" in shown:
        shown = printed([*name.split(), "--help-all"])
    usage, _, rest = shown.partition("\n\n")
    description, _, framed = rest.partition("╭")
    boxes = []
    for line in framed.splitlines():
        inside = line.strip("│").rstrip()
        if title := re.match(r"╭?─ (.*?) ─", line):
            boxes.append([title[1].capitalize(), "", []])
        elif re.fullmatch(r" ─+", inside):  # what came so far describes the group
            boxes[-1][1:] = [boxes[-1][2][0][0], []]
        elif inside.startswith("   "):
            boxes[-1][2][-1][1] += " " + inside.strip()
        elif inside.strip(" ─╰╯"):
            option, *meaning = re.split(r" {2,}", inside.strip(), maxsplit=1)
            options = boxes[-1][2]
            if options and not options[-1][1]:  # a line break inside an option's choices
                options[-1][0] += ("" if options[-1][0].endswith(",") else " ") + option
            else:
                options.append([option, "".join(meaning)])
    if not any(option.startswith("--out") for _, _, options in boxes for option, _ in options):
        raise ValueError(f"rbi {name} --help is not as expected: no --out in {boxes}")
    return usage.removeprefix("usage: "), description.strip(), boxes

def printed(argv):
    """What a command line prints, as on a terminal without colours."""
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")  # tyro draws boxes where they can be encoded
    with contextlib.redirect_stdout(stdout), contextlib.suppress(SystemExit):
        cli.main(argv)
    stdout.seek(0)
    return re.sub(r"\x1b\[[\d;]*m", "", stdout.read())

def row(option, meaning):
    """One row of a table: `--option TYPE`, its default and what it does."""
    text, _, default = re.sub(r"(\d), (\d{3}\b)", r"\1,\2", meaning.strip()).rpartition("(default: ")
    text, default = (text, default.removesuffix(")")) if text else (meaning.strip(), "")
    text = text.replace("<", "&lt;").replace("|", "\\|")
    option = (
        option.replace("{None}|", "").replace("{None,", "{").replace("|", "\\|").replace(",", ", ").replace(",  ", ", ")
    )
    default = "" if default in ("None", "''") else default.replace("|", "\\|")
    return f"| `{option}` | {f'`{default}`' if default else ''} | {text.strip()} |"
