"""Docstrings as Markdown, for the API pages: doctests become code blocks, settings become a list."""

import re

import griffe


class Markdown(griffe.Extension):
    """The extension of griffe that mkdocs.yml names."""

    def on_object(self, *, obj, **_):
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(text):
    """The text of a docstring with its doctests in fences and lines such as `out: run folder ...` as a list.

    >>> print(markdown("Twice x.\\n\\n>>> twice(2)\\n4"))
    Twice x.
    <BLANKLINE>
    ```pycon
    >>> twice(2)
    4
    ```
    """
    return "\n\n".join(paragraph(part) for part in re.split(r"\n\s*\n", text))


def paragraph(part):
    if part.startswith(">>>"):
        return f"```pycon\n{re.sub(r' *# doctest:.*', '', part)}\n```"
    if not re.match(r"[a-z_, ]+: ", part):
        return part
    items = re.sub(r"^([a-z_, ]+): ", r"- `\1`: ", part, flags=re.MULTILINE)
    first = re.search(r"^(?![-\s])", items, flags=re.MULTILINE)  # a closing sentence is no item
    return items if first is None else f"{items[: first.start()]}\n{items[first.start() :]}"
