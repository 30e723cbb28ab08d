"""From any format into the store: what can be used is appended, what cannot is set aside with its reason."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rbi.data.dataset import RejectedEpisode
from rbi.data.episode import Episode
from rbi.data.formats.seam import OneEach, Reader
from rbi.data.store import Store, StoreWriter

Map = Callable[..., Iterable[Any]]
TOLD_EVERY = 200  # episodes


@dataclass
class Tally:
    """What an import has done so far."""

    parts: int = 0
    episodes: int = 0
    steps: int = 0
    set_aside: int = 0
    before: int = 0
    """Episodes that an earlier, interrupted import had seen to."""
    reasons: dict[str, RejectedEpisode] = field(default_factory=dict)
    """The first problem of each kind."""

    def add(self, problem: RejectedEpisode) -> None:
        self.set_aside += 1
        self.reasons.setdefault(kind(problem), problem)


def kind(problem: RejectedEpisode) -> str:
    """A reason without its numbers, so that equal ones count together.

    >>> kind(RejectedEpisode("a.csv", 7, "step 3: action 19 is not possible"))
    'step #: action # is not possible'
    """
    words = ["#" if any(c.isdigit() for c in word) else word for word in problem.reason.replace(":", " :").split()]
    return " ".join(words).replace(" :", ":")


def bring_in(reader: Reader, writer: StoreWriter, mapped: Map, *, strict: bool = False) -> Iterator[Tally]:
    """Append every episode of the reader; what there is to tell comes now and then, and after each part.

    Goes on where an earlier import into the same store stopped: sources and lines that it has seen to are passed over.
    `mapped` reads parts that may be read side by side.
    """
    tally, done = Tally(), seen_to(writer)
    parts = reader.parts()
    if isinstance(reader, OneEach):  # what is there already need not be read again
        sources = {source for source, _ in done}
        parts = [part for part in parts if reader.file_of(part) not in sources]
        tally.before = len(reader.parts()) - len(parts)
    found = mapped(Whole(reader), parts) if reader.parallel else (reader.read(part) for part in parts)
    for items in found:
        for number, item in enumerate(items, 1):
            if done[item.source, item.line]:
                done[item.source, item.line] -= 1
                tally.before += 1
            elif problem := taken(item, writer, tally):
                if strict:
                    raise ValueError(f"{problem} (without --strict it would be set aside)")
                tally.add(problem)
                writer.reject(problem)
            if number % TOLD_EVERY == 0:
                yield tally
        tally.parts += 1
        yield tally


def taken(item: Episode | RejectedEpisode, writer: StoreWriter, tally: Tally) -> RejectedEpisode | None:
    """Append an episode; a problem instead, if it is one or does not fit the others."""
    if isinstance(item, RejectedEpisode):
        return item
    try:
        writer.append(item)
    except ValueError as error:
        return RejectedEpisode(item.source, item.line, str(error))
    tally.episodes += 1
    tally.steps += len(item)
    return None


def seen_to(writer: StoreWriter) -> Counter[tuple[str, int]]:
    """The sources and lines that the store has, taken or set aside, and how often: not all data tells them apart."""
    store = Store(writer.path)
    sources = ((store.texts[r["source"]], int(r["line"])) for r in store.records)
    return Counter([*sources, *((problem.source, problem.line) for problem in store.rejected)])


class Whole:
    """Reads a part whole, for a `map` over processes."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def __call__(self, part: Any) -> list[Episode | RejectedEpisode]:
        return list(self.reader.read(part))
