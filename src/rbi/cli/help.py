"""Help pages, made from the config dataclasses: the start page, a command's main options, and all of its options."""

import ast
import dataclasses
import functools
import inspect
import itertools
import re
import shutil
import textwrap
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.text import Text

from rbi import __version__
from rbi.progress import PlainConsole

if TYPE_CHECKING:
    from rbi.cli.command import Command

HELP = ("-h", "--help")
HELP_ALL = "--help-all"
SHARED = ("--out", "--seed", "--overwrite", "--json")
COMPLETION = "Print a script for tab completion in bash, zsh or fish."
MAX_WIDTH, INDENT, COMMAND_INDENT, EXAMPLE_WIDTH = 100, 26, 14, 80
START = (
    ("rbi improve logs.csv", "a better policy from logs, and whether to deploy it"),
    ("rbi train CartPole-v1", "RBI (or Ape-X) in a simulator, here or on Ray"),
    ("rbi bandit regret", "Figure 1 of the paper; the others have commands, too"),
)
SECTIONS = {
    "Learn from logs": ("improve", "offline", "certify", "monitor", "data"),
    "Learn in a simulator": ("train", "evaluate"),
    "The paper's studies": ("rules", "bandit", "spi"),
    "Results": ("report", "export", "completion"),
}
FOOTER = """Every command writes a run folder: configuration, metrics, results, figures.
`rbi report RUN` shows it as a page.

  rbi COMMAND --help        the main options; --help-all shows all of them
  rbi COMMAND --json        the result as one JSON object, for scripts
  rbi --version             the version"""


@dataclass(frozen=True)
class Option:
    """One option of a command, or one of its positional arguments."""

    name: str
    """As typed, such as --schedule.updates; a positional argument has no dashes."""
    metavar: str
    summary: str
    default: str
    """Empty if there is none, or if the summary states it."""
    group: str
    """Summary of the config that it belongs to; empty for the command's own."""
    choices: tuple[str, ...] = ()
    is_flag: bool = False
    repeats: bool = False

    @property
    def positional(self) -> bool:
        return not self.name.startswith("-")

    @property
    def negative(self) -> str:
        """The opposite of a flag: --no-resume."""
        prefix, dot, last = self.name.removeprefix("--").rpartition(".")
        return f"--{prefix}{dot}no-{last}"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, self.negative) if self.is_flag else (self.name,)

    @property
    def head(self) -> str:
        if self.positional:
            return self.metavar
        return f"{self.name}, {self.negative}" if self.default == "True" else f"{self.name} {self.metavar}".rstrip()

    @property
    def text(self) -> str:
        if self.is_flag:
            return self.summary + (" (default: on)" if self.default == "True" else "")
        return self.summary + (f" (default: {self.default})" if self.default else "")


def options(command: "type[Command]", default: "Command | None" = None) -> list[Option]:
    """All options of a command, with the defaults of an instance (by default those of the class)."""
    return list(_options(command, default, "--", ""))


def _options(config: type, default: Any, prefix: str, group: str) -> Iterator[Option]:
    hints = typing.get_type_hints(config, include_extras=True)
    nested: list[tuple[type, Any, str, str]] = []
    for field in dataclasses.fields(config):
        hint, extras = hints[field.name], list[Any]()
        if typing.get_origin(hint) is typing.Annotated:
            hint, *extras = typing.get_args(hint)
        value = getattr(default, field.name) if default is not None else default_of(field)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            hidden = any(getattr(extra, "name", None) == "" for extra in extras)
            inner = prefix if hidden else f"{prefix}{field.name.replace('_', '-')}."
            nested.append((hint, value, inner, "" if hidden and not group else first_paragraph(hint)))
            continue
        positional = any("Positional" in repr(extra) for extra in extras)
        name = field.name if positional else prefix + field.name.replace("_", "-")
        yield _option(name, hint, value, field_docs(config).get(field.name, ""), group, positional=positional)
    for part in nested:
        yield from _options(*part)


def default_of(field: "dataclasses.Field[Any]") -> Any:
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default


def _option(name: str, hint: Any, value: Any, summary: str, group: str, *, positional: bool) -> Option:
    kind, repeats = _plain_type(hint), False
    if typing.get_origin(kind) is tuple:
        items = typing.get_args(kind)
        repeats = items[1:] == (Ellipsis,)
        kind = _plain_type(items[0])
        metavar = f"{_metavar(kind)} ..." if repeats else " ".join([_metavar(kind)] * len(items))
    else:
        metavar = "" if kind is bool else _metavar(kind)
    choices = tuple(map(str, typing.get_args(kind))) if typing.get_origin(kind) is Literal else ()
    is_flag = hint is bool
    if kind is bool and not is_flag:  # bool | None takes a value
        metavar, choices = "{True,False}", ("True", "False")
    if positional:
        plural = f"{name.upper()} ..."
        metavar = plural if repeats else name.upper()
    states_default = "default" in summary.lower() or value in (None, "", ()) or positional
    shown = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    default = "" if states_default and not is_flag else shown
    return Option(name, metavar, summary, default, group, choices, is_flag, repeats)


def _plain_type(hint: Any) -> Any:
    """A type without limits, and without None."""
    if typing.get_origin(hint) is typing.Annotated:
        return _plain_type(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(_plain_type(each) for each in typing.get_args(hint) if each is not type(None))
    return hint


def _metavar(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return f"{{{','.join(map(str, typing.get_args(kind)))}}}"
    return {Path: "PATH", int: "INT", float: "NUMBER"}.get(kind, "TEXT")


@functools.cache
def field_docs(config: type) -> dict[str, str]:
    """The strings under the fields of a dataclass and its base classes, each on one line."""
    found: dict[str, str] = {}
    for cls in reversed(config.__mro__[:-1]):
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0].body  # type: ignore[attr-defined]
        except (OSError, TypeError):
            continue
        for field, text in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
                found[field.target.id] = " ".join(str(text.value.value).split()) if is_text else ""
    return found


def first_paragraph(cls: type) -> str:
    """The first paragraph of a class's docstring, on one line."""
    return " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())


def command_page(command: "type[Command]", name: str, default: "Command | None", *, everything: bool) -> str:
    """Help of a command: usage, what it does, and its main options, or all of them."""
    order = [*(f"--{name}" for name in command.MAIN_OPTIONS), *SHARED]
    found = sorted(
        options(command, default),
        key=lambda each: (
            not each.positional,
            each.name in SHARED,
            order.index(each.name) if each.name in order else 0,
        ),
    )
    main = [each for each in found if everything or is_main(command, each)]
    words = [each.metavar for each in found if each.positional]
    words += [f"[{command.FIRST_WORD.removeprefix('--').upper()}]"] if command.FIRST_WORD else []
    usage = " ".join(["usage:", name, *words, "[OPTIONS]"])
    lines = [usage, "", *wrap(inspect.getdoc(command) or "")]
    if command.EXAMPLE:
        lines += ["", *example(command.EXAMPLE)]
    for group in dict.fromkeys(each.group for each in main) if everything else [None]:
        lines += ["", *wrap(group or ("Options:" if everything else "Main options:"))]
        for each in merged([each for each in main if group is None or each.group == group]):
            lines += entry(each.head, each.text)
    lines += entry("-h, --help", "Show the main options.") if everything else []
    if len(main) < len(found):
        lines += ["", f"{len(found) - len(main)} more options: {name} {HELP_ALL}"]
    return "\n".join(lines)


def merged(found: list[Option]) -> list[Option]:
    """Options that several parts of a group have, as one: --{bcq,cql}.learning-rate."""
    alike: dict[tuple[str, ...], list[Option]] = {}
    for each in found:
        part, _, name = each.name.partition(".")
        alike.setdefault((name or part, each.metavar, each.summary), []).append(each)
    return [_merged(name, same) if len(same) > 1 else same[0] for (name, *_), same in alike.items()]


def _merged(name: str, same: list[Option]) -> Option:
    parts = [each.name.partition(".")[0].removeprefix("--") for each in same]
    defaults = [each.default for each in same]
    if len(set(defaults)) > 1:
        defaults = [", ".join(f"{part}: {default}" for part, default in zip(parts, defaults, strict=True))]
    return dataclasses.replace(same[0], name=f"--{{{','.join(parts)}}}.{name}", default=defaults[0])


def example(line: str) -> list[str]:
    """An example, wrapped before options as for a shell: to 80 columns, or to a narrower terminal."""
    width, lines = min(EXAMPLE_WIDTH, shutil.get_terminal_size().columns), ["example:"]
    for part in re.split(r" (?=--|&&)", line):
        if len(f"{lines[-1]} {part} \\") > width:
            lines[-1:] = [f"{lines[-1]} \\", f"  {part}"]
        else:
            lines[-1] += f" {part}"
    return lines


def is_main(command: "type[Command]", option: Option) -> bool:
    """Whether --help shows an option; a command that names no main options shows all."""
    main = (*(f"--{name}" for name in command.MAIN_OPTIONS), *SHARED)
    return option.positional or not command.MAIN_OPTIONS or option.name in main


def start_page(commands: dict[str, Any], groups: dict[str, str]) -> str:
    """What `rbi` alone shows: where to start, and all commands."""
    lines = [f"rbi {__version__}: better policies from logged experience, without making things worse.", ""]
    lines += ["Start with one of these:"]
    for line, text in START:
        lines += entry(line, text)
    for title, names in SECTIONS.items():
        lines += ["", title]
        for name in names:
            lines += entry(
                name, COMPLETION if name == "completion" else groups.get(name) or commands[name][2], COMMAND_INDENT
            )
    return "\n".join([*lines, "", FOOTER])


def group_page(group: str, commands: dict[str, Any], groups: dict[str, str]) -> str:
    """The commands of a group, such as rbi data."""
    inner = {name.split()[1]: row[2] for name, row in commands.items() if name.startswith(f"{group} ")}
    lines = [f"usage: rbi {group} {{{','.join(inner)}}} [OPTIONS]", "", groups[group], ""]
    for name, summary in inner.items():
        lines += entry(name, summary, COMMAND_INDENT)
    return "\n".join([*lines, "", f"`rbi {group} {next(iter(inner))} --help` shows the options of one of them."])


def entry(head: str, text: str, indent: int = INDENT) -> list[str]:
    """An option or command and its text beside it, wrapped to the terminal."""
    lines = wrap(text, indent) or [""]
    if len(head) + 4 > indent:
        return [f"  {head}", *lines]
    return [f"  {head}".ljust(indent) + lines[0].lstrip(), *lines[1:]]


def wrap(text: str, indent: int = 0) -> list[str]:
    """Paragraphs wrapped to the terminal, at most 100 columns."""
    width = min(MAX_WIDTH, shutil.get_terminal_size().columns)
    wrapped: list[str] = []
    for paragraph in text.split("\n\n"):
        space = " " * indent
        lines = textwrap.wrap(
            " ".join(paragraph.split()), max(width, indent + 30), initial_indent=space, subsequent_indent=space,
            break_on_hyphens=False, break_long_words=False,
        )  # fmt: skip
        wrapped += ["", *lines] if wrapped else lines
    return wrapped


def show_page(page: str) -> None:
    """Print a page; on a terminal, options, commands and headings are bold."""
    text = Text(page)
    text.highlight_regex(r"(?m)^  (-\S+(, -\S+)?|rbi( [\w.-]+)+|[a-z]+)(?=\s)", "bold")
    text.highlight_regex(r"(?m)^[A-Z][^\n]*(\n\S[^\n]*)*$(?=\n  \S)", "bold")
    PlainConsole().print(text, highlight=False, soft_wrap=True)
