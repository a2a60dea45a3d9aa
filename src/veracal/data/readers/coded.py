"""Texts that a file writes once and repeats by a number."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from veracal._types import Ints
from veracal.data.limits import Limits
from veracal.data.readers.archives import check_expansion

_AT_A_TIME = 2**24  # bytes of text written out at a time
_HARMLESS = 2**28  # bytes in all: two long category names pack well, and are no bomb


class Texts:
    """What the coded texts of one file come to, batch after batch.

    A code of a few bits may stand for a long text as often as it likes, so a file of a few
    kilobytes can hold gigabytes. They are counted before they are written out.
    """

    def __init__(self, path: Path, limits: Limits) -> None:
        self._path, self._limits = path, limits
        self._written, self._packed = 0, path.stat().st_size

    def pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Cut a batch into pieces whose texts take little room, or raise a LimitError."""
        sizes = self._sizes(batch)
        self._written += int(sizes.sum())
        check_expansion(
            self._packed, self._written, self._path, self._limits, harmless=_HARMLESS
        )
        numbers = np.cumsum(sizes) // _AT_A_TIME
        starts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
        for start, stop in itertools.pairwise([*starts, batch.num_rows]):
            yield batch.slice(start, stop - start)

    def _sizes(self, batch: pa.RecordBatch) -> Ints:
        """Bytes of coded text in each record."""
        sizes = np.zeros(batch.num_rows, dtype=np.int64)
        for name in batch.schema.names:
            column = batch.column(name)
            if pa.types.is_dictionary(column.type) and len(column.dictionary):
                texts = column.dictionary.cast(pa.large_string())
                lengths = pc.fill_null(pc.binary_length(texts), 0).to_numpy()
                where = f"{self._path}: column {name!r}"
                self._limits.check("field_bytes", int(lengths.max()), where)
                codes = pc.fill_null(column.indices, 0).to_numpy(zero_copy_only=False)
                sizes += lengths[codes]
        return sizes
