"""`rbi completion`: scripts with which bash, zsh and fish complete commands, options and their choices."""

import importlib
import shlex
from collections.abc import Callable, Iterable

from rbi.cli.help import HELP, HELP_ALL, Option, options

INSTALL = {
    "bash": "rbi completion bash > ~/.local/share/bash-completion/completions/rbi",
    "zsh": "rbi completion zsh > ~/.rbi-completion.zsh && echo 'source ~/.rbi-completion.zsh' >> ~/.zshrc",
    "fish": "rbi completion fish > ~/.config/fish/completions/rbi.fish",
}
USAGE = "\n".join(
    [
        f"usage: rbi completion {{{','.join(INSTALL)}}}",
        "",
        "Print a script that completes commands, options and their choices. To install it:",
        *(f"  {line}" for line in INSTALL.values()),
    ]
)

BASH = """# {install}
_rbi() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} name=${{COMP_WORDS[1]}} words="" first=2
  case "$name" in {groups}) name="$name ${{COMP_WORDS[2]}}"; first=3;; esac
  if [ "$COMP_CWORD" -lt "$first" ]; then
    case "$COMP_CWORD ${{COMP_WORDS[1]}}" in
{inner}
      *) words="{commands} --help --version";;
    esac
  else
    case "$name $prev" in
{values}
      *) case "$name" in
{options}
      esac;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _rbi rbi
"""


def script(shell: str, commands: dict[str, tuple[str, str, str]], groups: dict[str, str]) -> str:
    """The completion script of a shell."""
    found = {
        name: options(getattr(importlib.import_module(module), attribute))
        for name, (module, attribute, _) in commands.items()
    }
    if shell == "fish":
        summaries = {name: row[2] for name, row in commands.items()} | groups
        return "\n".join(fish_lines(found, summaries, groups)) + "\n"
    begin = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    return begin + bash_script(found, groups, INSTALL[shell])


def bash_script(found: dict[str, list[Option]], groups: Iterable[str], install: str) -> str:
    inner = {group: [name.split()[1] for name in found if name.startswith(f"{group} ")] for group in groups}
    values = {
        f"{name} {each.name}": " ".join(each.choices) for name, row in found.items() for each in row if each.choices
    }
    names = {
        name: " ".join([*(word for each in row if not each.positional for word in each.names), *HELP, HELP_ALL])
        for name, row in found.items()
    } | {"completion": " ".join(INSTALL)}

    def cases(words: dict[str, str], pattern: Callable[[str], str], indent: int) -> str:
        return "\n".join(f'{" " * indent}{pattern(key)}) words="{value}";;' for key, value in words.items())

    return BASH.format(
        install=install,
        groups="|".join(groups),
        commands=" ".join([*dict.fromkeys(name.split()[0] for name in found), "completion"]),
        inner=cases({group: " ".join(names) for group, names in inner.items()}, lambda group: f"'2 {group}'", 6),
        values=cases(values, shlex.quote, 6),
        options=cases(names, shlex.quote, 8),
    )


def fish_lines(found: dict[str, list[Option]], summaries: dict[str, str], groups: Iterable[str]) -> list[str]:
    lines = [f"# {INSTALL['fish']}"]
    for name in [*dict.fromkeys(name.split()[0] for name in found), "completion"]:
        about = summaries.get(name, "Shell completion.")
        lines.append(f"complete -c rbi -f -n __fish_use_subcommand -a {name} -d {shlex.quote(about)}")
    lines.append(f"complete -c rbi -f -n '__fish_seen_subcommand_from completion' -a '{' '.join(INSTALL)}'")
    not_in_group = "; and not __fish_seen_subcommand_from ".join(["", *groups])
    for name, row in found.items():
        group, _, last = name.rpartition(" ")
        seen = f"__fish_seen_subcommand_from {last}"
        seen += f"; and __fish_seen_subcommand_from {group}" if group else not_in_group
        if group:
            inner = f"__fish_seen_subcommand_from {group}; and not {seen.partition(';')[0]}"
            lines.append(f"complete -c rbi -f -n '{inner}' -a {last} -d {shlex.quote(summaries[name])}")
        for each in row:
            for word in each.names if not each.positional else ():
                takes = f" -x -a '{' '.join(each.choices)}'" if each.choices else " -r" if not each.is_flag else ""
                about = each.summary.partition(". ")[0]
                lines.append(f"complete -c rbi -n '{seen}' -l {word[2:]}{takes} -d {shlex.quote(about)}")
    return lines
