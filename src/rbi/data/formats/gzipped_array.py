"""An array that `np.save` wrote into a gzip file, read row by row: it may be far larger than memory."""

import zlib
from pathlib import Path
from typing import Any, Self

import numpy as np

from rbi.data.episode import Array

CHUNK = 1 << 18
SKIPPED = 1 << 24
GZIP = 31  # zlib's word for a window of 32 KB and a gzip header


class GzippedArray:
    """Rows from first to last. What a file that was cut off still holds is read, and then `fault` says what is wrong.

    Python's own gzip module loses what it had decompressed when a file ends too early.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.fault, self.taken = path, "", 0
        self._file = path.open("rb")
        self._inflate = zlib.decompressobj(GZIP)
        try:
            version = np.lib.format.read_magic(self)  # type: ignore[arg-type]  # it asks for read, no more
            header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            if version not in header:
                raise ValueError(f"version {version} of the array format")
            self.shape, fortran, self.dtype = header[version](self)  # type: ignore[arg-type]
            if fortran or self.dtype.hasobject:
                raise ValueError(f"an array of {self.dtype}{' in Fortran order' if fortran else ''}")
        except ValueError as error:
            self._file.close()
            raise ValueError(f"{path}: is not a gzipped array: {self.fault or error}") from None

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 1

    def rows(self, count: int) -> Array:
        """The next rows, as many as there are."""
        found = np.empty((count, *self.shape[1:]), self.dtype)
        got = self._fill(found.reshape(-1).view(np.uint8).data) // max(1, self._row_bytes) if found.size else 0
        self.taken += got
        return found[:got]

    def skip(self, count: int) -> None:
        """Pass over the next rows."""
        block = max(1, SKIPPED // max(1, self._row_bytes))
        while count > 0 and not self.fault:
            count -= len(self.rows(min(block, count)))

    def read(self, size: int) -> bytes:
        """The next bytes, as files give them: for NumPy, which reads the header."""
        found = bytearray(size)
        return bytes(found[: self._fill(memoryview(found))])

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _row_bytes(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))

    def _fill(self, view: Any) -> int:
        filled = 0
        while filled < len(view) and not self.fault:
            piece = self._more(len(view) - filled)
            view[filled : filled + len(piece)] = piece
            filled += len(piece)
        return filled

    def _more(self, most: int) -> bytes:
        """Some bytes, at most so many; where there are no more, `fault` is set."""
        data = self._inflate.unconsumed_tail
        if self._inflate.eof:  # several gzip files may follow each other in one
            data, self._inflate = self._inflate.unused_data, zlib.decompressobj(GZIP)
        data = data or self._file.read(CHUNK)
        try:
            piece = self._inflate.decompress(data, most)
        except zlib.error as error:
            self.fault = f"is damaged ({error})"
            return b""
        if not data and not piece:
            self.fault = "is cut off"
        return piece
