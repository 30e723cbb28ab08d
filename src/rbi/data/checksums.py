"""CRC-32 of episodes and of their index entries, many at a time."""

import zlib
from collections.abc import Iterable

import numpy as np

from rbi.data.dataset import RECORD, Dataset, part_fields
from rbi.data.episode import Array

SHORT_BYTES = 512
"""Episodes up to this size are checksummed together, if many have the same length."""
FEW_RECORDS = 64
CRC_TABLE = np.arange(256, dtype=np.uint32)
for _ in range(8):
    CRC_TABLE = np.where(CRC_TABLE & 1, np.uint32(0xEDB88320), np.uint32(0)) ^ (CRC_TABLE >> 1)


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
        entries = np.ascontiguousarray(array).view(np.uint8).reshape(len(array), -1)
        for at in range(int(records[count][0])):
            for byte in entries[records[first] + at].T:
                crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return ~crc


def record_checksums(records: Array) -> Array:
    """CRC-32 of the fields of each record before its `record_checksum`."""
    fields = (
        np.ascontiguousarray(records).view(np.uint8).reshape(len(records), -1)[:, : -RECORD["record_checksum"].itemsize]
    )
    if len(records) < FEW_RECORDS:
        return np.array([zlib.crc32(fields[number].tobytes()) for number in range(len(records))], np.uint32)
    crc = np.full(len(records), 0xFFFFFFFF, np.uint32)
    for byte in fields.T:
        crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return ~crc
