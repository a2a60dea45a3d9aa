"""Many simulated sources in one process, to study queries to thousands of them."""

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from veracal import _checks, _random
from veracal._types import Array, Ints
from veracal.accounting import Relation, Unit
from veracal.accounting import micro_epsilon as micro_epsilon_of
from veracal.calibration.prepaid_source import add_noise
from veracal.data import Scores
from veracal.errors import AnswerError, BudgetError, ConflictError, DataError, DropoutError
from veracal.queries import (
    MultiSource,
    NonAdditive,
    Path,
    PooledRelease,
    ProtectionOnly,
    Query,
    QueryRequest,
    Release,
    SkippedSource,
    canonical_request,
    check_additive,
    combine_answers,
    noise_std,
)
from veracal.queries.query import RecordSum, apply_in_blocks

Tampering = Callable[[Release], object]


class SimulatedSources(MultiSource):
    r"""Scores divided among many simulated sources with their own noise.

    They answer like a :class:`~veracal.queries.Pool` of curators, with the same noise, but are
    evaluated together and charged to an account in memory: 10,000 sources answer in a fraction
    of a second.

    Parameters
    ----------
    scores : Scores
    index : array of ints of shape (n,)
        Source of each record, from 0.
    sources : int, optional
        Number of sources, possibly without records; by default the largest index + 1.
    micro_epsilon : int
        Budget of each source, in millionths of epsilon.
    relation, unit
        Neighboring relation and privacy unit.
    min_sources, max_records
        As in a pool.
    dropouts : iterable of int, or mapping of int to int
        Sources that never answer, or the number of answers before each drops out.
    tampering : mapping of int to callable
        Sources that send the result of the callable instead of their release.
    rng : Generator
        A secret generator gives exact noise from the system's entropy. The releases of a seeded
        one are marked as not private.

    Guarantees
    ----------
    With a secret generator the noise of every source is drawn exactly and independently. The
    cost is deducted before a record is read and is not restored after a failure. The same
    query or the same request id gets the same answer.
    """

    def __init__(
        self,
        scores: Scores,
        index: ArrayLike,
        *,
        micro_epsilon: int,
        sources: int | None = None,
        relation: Relation = "add-remove",
        unit: Unit | None = None,
        min_sources: int | None = None,
        max_records: int | None = None,
        dropouts: Iterable[int] | Mapping[int, int] = (),
        tampering: Mapping[int, Tampering] | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        places = np.asarray(index)
        if places.shape != (len(scores),) or (
            len(scores) and (places.dtype.kind not in "iu" or places.min() < 0)
        ):
            raise DataError(
                "index",
                f"an int from 0 for each of {len(scores)} records",
                f"{places.dtype} of shape {places.shape}",
                "Pass the index of every record's source.",
            )
        self._scores, self._index = scores, places.astype(np.int64)
        least_sources = max(int(self._index.max(initial=-1)) + 1, 1)
        self.sources = least_sources if sources is None else int(sources)
        if self.sources < least_sources:
            raise ValueError(f"Expected sources >= {least_sources}, got sources={sources!r}.")
        _checks.whole(micro_epsilon=micro_epsilon)
        self._remaining, self.relation, self.unit = micro_epsilon, relation, unit or Unit()
        self.min_sources, self.max_records = min_sources, max_records
        self._dropouts = (
            dropouts if isinstance(dropouts, Mapping) else dict.fromkeys(dropouts, 0)
        )
        self._tampering = dict(tampering or {})
        self._rng = _random.secret_generator() if rng is None else rng
        # By request: its content, its number and the noisy sums; None where they failed.
        self._answers = dict[str, tuple[bytes, int, Array | None]]()
        self._lock = threading.Lock()

    def round(
        self,
        query_request: QueryRequest,
        *,
        request: str | None = None,
        dropped: Mapping[Path, str] | None = None,
    ) -> PooledRelease:
        """Query all sources except those that dropped out before, as in a pool."""
        dropped = dropped or {}
        check_additive(query_request.query)
        number, units = self._noisy_sums(query_request, request)
        event = query_request.event(self.relation, self.unit)
        name, grid, _ = query_request.form
        std, private = noise_std(event) * grid.step, _random.is_secret(self._rng)
        responses: list[object] = []
        for i, row in enumerate(units.tolist()):
            if (i,) in dropped:
                responses.append(SkippedSource(dropped[i,]))
            elif number >= self._dropouts.get(i, number + 1):
                responses.append(DropoutError("The simulated source dropped out."))
            else:
                cost = query_request.micro_epsilon
                release = Release(name, tuple(row), grid, std, cost, event, private=private)
                tamper = self._tampering.get(i)
                responses.append(release if tamper is None else tamper(release))
        return combine_answers(
            query_request,
            responses,
            [ProtectionOnly(self.relation, self.unit)] * self.sources,
            min_sources=self.min_sources,
            max_records=self.max_records,
            dropped=dropped,
        )

    def paths(self) -> list[Path]:
        """Path of each single source."""
        return [(i,) for i in range(self.sources)]

    def _noisy_sums(
        self, query_request: QueryRequest, request: str | None
    ) -> tuple[int, Array]:
        """Number of a query, and each source's noisy sums; earlier ones for the same request."""
        query, event = query_request.query, query_request.event(self.relation, self.unit)
        body = canonical_request(query, event, self._scores, None, "")
        key = body.decode() if request is None else request
        failure = AnswerError(f"{query.name!r} could not be answered.")
        with self._lock:
            if key in self._answers:
                earlier, number, units = self._answers[key]
                if earlier != body:
                    raise ConflictError(
                        f"This request id was used for another query than {query.name!r}."
                    )
                if units is None:
                    raise failure
                return number, units
            cost = micro_epsilon_of(event, self.unit)
            if cost > self._remaining:
                raise BudgetError(
                    f"{query.name!r} exceeds the remaining budget of each source; no record was "
                    "read. Lower the cost of the query or raise the budget."
                )
            self._remaining -= cost
            number = len(self._answers)
            self._answers[key] = body, number, None
            try:
                exact = sums_by_source(query, self._scores, self._index, self.sources)
            except Exception as error:
                raise failure from error
            noisy = add_noise(exact.ravel(), event, rng=self._rng).reshape(exact.shape)
            self._answers[key] = body, number, noisy
        return number, noisy


def sums_by_source(query: Query, records: Scores, source_index: Ints, sources: int) -> Ints:
    """Evaluate a query on the records of each source.

    Parameters
    ----------
    records : Scores
        The records of all sources.
    source_index : array of ints in [0, sources), of shape (n,)
        The source of each record.

    Returns
    -------
    array of int64 of shape (sources, entries)

    Guarantees
    ----------
    Row i is ``query.evaluate`` of the records of source i, to the last bit: the values of a
    record are computed in blocks of one shape, independently of the other records.
    """
    shape = sources, query.entries
    if not isinstance(query, RecordSum) or isinstance(query, NonAdditive):
        rows = [
            query.evaluate(records.take(np.flatnonzero(source_index == i)))
            for i in range(sources)
        ]
        return np.array(rows, dtype=np.int64).reshape(shape)
    if len(records) > 2**22:  # fewer, of at most 2^40 units each, cannot overflow 64 bits
        raise ValueError(f"Expected at most {2**22} records at once, got {len(records)}.")

    def block(part: Any, real: int) -> tuple[Ints, Ints | None]:
        units, cells = query.contributions(part)
        return units[:real], None if cells is None else cells[:real]

    blocks = list(apply_in_blocks(records, block, width=query._width))
    units = np.concatenate([units for units, _ in blocks])
    sums = np.zeros(shape, dtype=np.int64)
    if blocks[0][1] is None:
        np.add.at(sums, source_index, units)
    else:
        cells = np.concatenate([cells for _, cells in blocks if cells is not None])
        inside = cells >= 0
        np.add.at(sums, (source_index[inside], cells[inside]), units[inside, 0])
    return sums
