"""What tells episodes apart: CRC-32 checksums, which find damage in a store, and digests, which show whether two
datasets share episodes. Policies keep the digests of their training episodes."""

import functools
import zlib
from collections.abc import Iterable

import numpy as np

from rbi.data.dataset import RECORD, Dataset, concat_ranges, part_fields
from rbi.data.episode import Array

SHORT_BYTES = 512
"""Episodes up to this size are checksummed together, if many have the same length."""
FEW_RECORDS = 64
CRC_TABLE = np.arange(256, dtype=np.uint32)
for _ in range(8):
    CRC_TABLE = np.where(CRC_TABLE & 1, np.uint32(0xEDB88320), np.uint32(0)) ^ (CRC_TABLE >> 1)

CHUNK = 1 << 16  # words hashed at a time
MARGIN = 3.0  # times as many matches as chance explains, or standard deviations
MIN_COUNT = 10  # of a kind of episode in both datasets; rarer kinds are one kind
ALIKE = 1e-6  # probability with which independent datasets or episodes are as alike
MOST_COPIES = 10  # of an episode
MOST_COMPARED = 5_000  # episodes whose places are compared with those of their neighbours
SHIFTS = 200  # episodes up and down: more than the hours of a week
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


# Checksums


def checksum(parts: Iterable[Array]) -> int:
    """CRC-32 of the bytes of arrays, one after the other."""
    value = 0
    for part in parts:
        value = zlib.crc32(np.ascontiguousarray(part).data.cast("B"), value)
    return value


def checksums(data: Dataset) -> Array:
    """`checksum` of each episode. Short episodes of equal length are computed together, byte by byte."""
    records, found = data.records, np.zeros(len(data), np.uint32)
    size = sum(array.dtype.itemsize * int(np.prod(array.shape[1:])) for array in data.arrays.values())
    lengths, groups = np.unique(2 * records["steps"] + records["observations"], return_inverse=True)
    for group in range(len(lengths)):
        episodes = np.flatnonzero(groups == group)
        if len(episodes) > 1 and size * int(records["observations"][episodes[0]]) <= SHORT_BYTES:
            found[episodes] = checksums_of_equal_length(data, records[episodes])
        else:
            for number in episodes.tolist():
                found[number] = checksum(data.part(name, records[number]) for name in data.arrays)
    return found


def checksums_of_equal_length(data: Dataset, records: Array) -> Array:
    """`checksum` of episodes that have as many steps and observations each."""
    crc = np.full(len(records), 0xFFFFFFFF, np.uint32)
    for name, array in data.arrays.items():
        first, count = part_fields(name)
        entries = row_bytes(array)
        for at in range(int(records[count][0])):
            crc = extended(crc, entries[records[first] + at])
    return ~crc


def record_checksums(records: Array) -> Array:
    """CRC-32 of the fields of each record before its `record_checksum`."""
    fields = row_bytes(records)[:, : -RECORD["record_checksum"].itemsize]
    if len(records) < FEW_RECORDS:
        return np.array([zlib.crc32(row.tobytes()) for row in fields], np.uint32)
    return ~extended(np.full(len(records), 0xFFFFFFFF, np.uint32), fields)


def extended(crc: Array, rows: Array) -> Array:
    """The inverted CRC-32s `[N]` after one more row of bytes each, `[N, B]`."""
    for byte in rows.T:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc


def row_bytes(array: Array) -> Array:
    """`[N, B]`: the bytes of each row."""
    return np.ascontiguousarray(array).view(np.uint8).reshape(len(array), -1)


# Digests


def episode_digests(data: Dataset) -> Array:
    """`[E, 2]` uint64 per episode: of its observations (without the final one), actions and rewards; and of these with
    the line of the source at which it begins (0 where there is none).

    Of images only the first one counts, since all of them may be a hundred gigabytes. Names of players and files are
    no part of it, so a copy under another name has the same digest. Equal episodes have equal digests; different ones
    differ but for a chance of about 2^-64.
    """
    records = data.records
    steps, first = records["steps"].astype(np.int64), records["first_step"]
    position = concat_ranges(0, steps)
    if data.spec.is_image:
        observed = np.zeros(len(position), np.uint64)
        observed[first] = row_hashes(data.arrays["observations"][records["first_observation"]])
    else:
        observed = row_hashes(data.arrays["observations"])[concat_ranges(records["first_observation"], steps)]
    taken = row_hashes(np.stack([data.arrays["actions"], data.arrays["rewards"].view(np.int32)], 1))
    with np.errstate(over="ignore"):
        each = mix(observed + GOLDEN * taken + mix(position.astype(np.uint64) + np.uint64(1)))
        content = mix(np.add.reduceat(each, first) if len(first) else each)
    return np.stack([content, located_at(content, records["line"])], 1)


def located_at(content: Array, lines: Array) -> Array:
    """Digests of contents with their lines, 0 where there is none."""
    numbers = lines.astype(np.uint64)
    with np.errstate(over="ignore"):
        return np.where(numbers > 0, mix(content + GOLDEN * numbers), np.uint64(0))


def row_hashes(array: Array) -> Array:
    """`[N]` uint64: a hash of the bytes of each row.

    Each word is mixed with its place before they are added. Factors would not do: of a word that ends in many zeros, as
    do the bits of 1.0, a product keeps a few bits of the factor alone, and many one-hot rows would be equal.
    """
    rows = np.ascontiguousarray(array).reshape(len(array), -1)
    width = rows.shape[1] * rows.dtype.itemsize
    kind = next(kind for kind in (np.uint64, np.uint32, np.uint8) if width % np.dtype(kind).itemsize == 0)
    words = rows.view(np.uint8).view(kind)
    places, size = numbers_of_places(words.shape[1]), max(1, CHUNK // max(1, words.shape[1]))
    chunks = [mix(words[n : n + size] ^ places).sum(1) for n in range(0, len(words), size)]
    return np.concatenate([np.zeros(0, np.uint64), *chunks])


@functools.cache
def numbers_of_places(width: int) -> Array:
    """`[width]` uint64: a random number for each place of a row."""
    return mix(np.arange(1, width + 1, dtype=np.uint64) * GOLDEN)


def mix(x: Array) -> Array:
    """SplitMix64's finaliser, in a new array: every bit of the result depends on every bit of x."""
    x = x ^ (x >> np.uint64(30))
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def shared_episodes(data: Dataset, training: Array) -> Array:
    """`[E]` booleans: the episodes that are part of the training episodes, by their digests `[N, 2]`.

    Episodes that equal one another (a few features, a reward of 0 or 1) may also equal a training episode by chance.
    What counts is therefore whether more of them match than chance explains: by their content, or else by content and
    line, since a copied file keeps its lines, or else by how often each kind occurs, since a reordered copy keeps that.
    A few matches explain nothing: independent logs of 1,000 episodes of a million kinds have one in common.
    """
    (content, located), (seen, seen_located) = episode_digests(data).T, training.reshape(-1, 2).T
    count = len(content)
    matching = contained(content, seen)
    # by chance an episode is among n others with probability sum_x p_x (1 - (1 - p_x)^n), as those of training are
    # among themselves; it grows at most in proportion to n
    by_chance = count * max(repeated(seen), repeated(content) * max(1.0, len(seen) / max(1, count)))
    if matching.sum() > min(count, beyond(by_chance)) and not rare_enough(int(matching.sum()), content, seen):
        return matching
    in_place = (located > 0) & contained(located, seen_located)
    if in_place.any() and more_in_place(content, data.records["line"], in_place, seen_located):
        return in_place
    return matching if too_alike(content, seen) else np.zeros(count, bool)


def beyond(by_chance: float) -> float:
    """More matches than this are not explained by an expected number, with the spread of rare events."""
    return MARGIN * (by_chance + by_chance**0.5)


def rare_enough(matches: int, content: Array, seen: Array) -> bool:
    """Whether equal episodes are so rare that a few matches may be chance, though hardly any of either set repeat.

    Every pair of independent episodes is equal with the same probability, whether it is one within a set or between
    them; so of all equal pairs those between them are a share that is known.
    """
    from scipy.special import bdtrc

    n, m = len(seen), len(content)
    between, within = n * m, (n * (n - 1) + m * (m - 1)) / 2
    equal = sum(len(part) - len(np.unique(part)) for part in (content, seen))
    return float(bdtrc(matches - 1, matches + equal, between / (between + within))) >= ALIKE


def more_in_place(content: Array, lines: Array, in_place: Array, seen_located: Array) -> bool:
    """Whether more episodes are where training has them than would be in the places of other episodes near them.

    In sorted files neighbours are alike, and where time is a feature so are the hours of all days: then many episodes
    of two independent logs are equal line by line.
    """
    from scipy.special import bdtrc

    count = len(content)
    rows = np.arange(0, count, -(-count // MOST_COMPARED))
    rows = rows[lines[rows] > 0]
    shifts = np.arange(-SHIFTS, SHIFTS + 1)
    shifts = shifts[(shifts != 0) & (np.abs(shifts) < count)]
    moved = located_at(content[(rows[:, None] + shifts) % count], lines[rows, None])
    near = contained(moved, seen_located).sum(0)
    found = int(in_place[rows].sum())
    if not len(near) or found <= beyond(int(near.max())):
        return False
    return float(bdtrc(found - 1, found + int(near.sum()), 1 / (1 + len(near)))) < ALIKE


def repeated(values: Array) -> float:
    """The share of the values that are there more than once."""
    counts = np.unique(values, return_counts=True)[1]
    return float(counts[counts > 1].sum()) / max(1, len(values))


def copied_episodes(data: Dataset, players: Array | None = None) -> Array:
    """`[E]` booleans: the episodes that are there several times, if chance does not explain how many there are.

    With the number of each episode's player, `players` `[E]`, equal episodes of a player count once: where the features
    of a customer stay the same, so do many of their decisions.

    In independent episodes the expected numbers n_k of kinds that are there k times obey n_k^2 k / (k + 1) <=
    n_(k-1) n_(k+1), whatever the probabilities of the kinds are (Cauchy-Schwarz for mixtures of Poisson distributions).
    A log of which a part was written twice has many pairs, and hardly three of a kind. A whole log that was written
    twice has an even number of every kind.
    """
    content = episode_digests(data)[:, 0]
    if players is not None:
        own = np.unique(np.stack([players.astype(content.dtype), content], 1), axis=0)[:, 1]
        return contained(content, own[copied(own)])
    return copied(content)


def copied(content: Array) -> Array:
    """`copied_episodes`, from the digests of their content."""
    from scipy.special import pdtr

    _, which, counts = np.unique(content, return_inverse=True, return_counts=True)
    if np.gcd.reduce(counts) > 1 and 2.0 ** -len(counts) < ALIKE:
        return np.ones(len(which), bool)
    kinds = np.bincount(counts, minlength=MOST_COPIES + 2).astype(np.float64)
    least, most = (np.maximum(kinds + sign * MARGIN * np.sqrt(kinds + 1), 0) for sign in (-1, 1))
    for k in range(2, MOST_COPIES + 1):
        if pdtr(kinds[k + 1], least[k] ** 2 * k / (k + 1) / most[k - 1]) < ALIKE:
            return (counts == k)[which]
    return np.zeros(len(which), bool)


def contained(values: Array, among: Array) -> Array:
    """`[N]` booleans: the values that are among others, as `np.isin`, which takes longer where most of them differ."""
    if not len(among):
        return np.zeros(len(values), bool)
    ordered = np.sort(among)
    return ordered.take(np.searchsorted(ordered, values), mode="clip") == values


def too_alike(content: Array, seen: Array) -> bool:
    """Whether two sets of digests have each kind of episode so equally often that chance does not explain it.

    Counts of independent datasets differ: the chi-squared statistic of homogeneity is about the number of kinds less
    one. Those of a dataset and a part f of it differ less, by (1 - f) / (1 + f), and not at all if f = 1. Counts are
    whole numbers, so that no difference is taken as smaller than a quarter.
    """
    from scipy.special import chdtr

    _, which = np.unique(np.concatenate([content, seen]), return_inverse=True)
    kinds = which.max() + 1
    own, theirs = (np.bincount(part, minlength=kinds) for part in np.split(which, [len(content)]))
    rare = own + theirs < MIN_COUNT
    a, b = (np.append(part[~rare], part[rare].sum()).astype(np.float64) for part in (own, theirs))
    a, b = a[a + b > 0], b[a + b > 0]
    share = (a + b) / (a.sum() + b.sum())
    difference = np.maximum(np.abs(a - a.sum() * share), 0.25)
    statistic = float((np.square(difference) / share).sum() * (1 / a.sum() + 1 / b.sum()))
    return len(a) > 1 and float(chdtr(len(a) - 1, statistic)) < ALIKE
