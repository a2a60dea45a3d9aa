"""Every declared question, tried once on the records before anybody may ask it.

What comes out is thrown away. It is only seen that each question can be answered at all, and
how long the slowest takes: whether a question fails, or how long it takes, must not be an
answer that nobody paid for.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from veracal.calibration.maps.platt import Form
from veracal.calibration.queries.parameters import weight_shape
from veracal.data import Scores
from veracal.errors import DataError
from veracal.federation.protocol.envelopes import MOST_REQUEST
from veracal.federation.protocol.maps import ACCURACY_BITS, inverse_units
from veracal.federation.protocol.questions import KINDS, SCALE_BITS, built
from veracal.federation.protocol.replies import MOST_ENTRIES
from veracal.federation.protocol.terms import Terms
from veracal.privacy.answers.holder import evaluated
from veracal.privacy.answers.noise import add_discrete_laplace
from veracal.privacy.ledger.chain import canonical

FACTOR = 4  # the deadline is at least so many times what the slowest question took
_NOISE = 1_000.0
_ROOM = 1_000  # bytes of a request that are no argument
_FORMS: tuple[Form, ...] = ("scalar", "vector", "matrix")


def rehearse(scores: Scores, terms: Terms) -> float:
    """Try every declared question, and return the seconds that the slowest took.

    Raises
    ------
    DataError
        If one cannot be answered; the words say which, and nothing about the records.
    """
    return max(
        _seconds(scores, terms, kind, argument)
        for kind in terms.kinds
        for argument in examples(kind, terms)
    )


def check_deadline(seconds: float, terms: Terms, where: str | Path) -> None:
    """Refuse a deadline that answers could miss.

    Raises
    ------
    DataError
        Which names one that will do.
    """
    least = FACTOR * seconds
    if terms.deadline < least:
        raise DataError(
            str(where),
            f"a deadline of at least {FACTOR} times what the slowest question takes here",
            f"{terms.deadline:g} seconds, with a question that takes {seconds:.2g}",
            f"Declare a deadline of {_roomy(least):g} seconds.",
        )


def examples(kind: str, terms: Terms) -> Iterator[dict[str, Any]]:
    """Arguments of a kind, the largest that fit a request among them."""
    if kind in ("counts", "bins", "bins-paper"):
        yield {}
    elif kind == "platt-counts":
        yield from ({"reads": known} for known in (False, True))
    elif kind == "platt-equations":
        whole = 1 << SCALE_BITS
        for map_ in _affine_maps(terms):
            yield {"center": 0, "map": map_, "spread": whole, "step": 0}
    elif kind.startswith("map-"):
        yield from ({"map": map_} for map_ in (*_other_maps(terms), *_affine_maps(terms)))
    else:
        yield {"inverse": _inverse(terms)}


def _seconds(scores: Scores, terms: Terms, kind: str, argument: dict[str, Any]) -> float:
    """Ask one question, forget the answer."""
    query = built(kind, argument, terms)
    start = time.perf_counter()
    try:
        exact = evaluated(query, scores)
        add_discrete_laplace(exact, _NOISE)
    except Exception as cause:  # whatever it says may be about a record
        raise _unanswerable(scores, kind) from cause
    if query.entries > MOST_ENTRIES:
        raise _unanswerable(scores, kind)
    return time.perf_counter() - start


def _unanswerable(scores: Scores, kind: str) -> DataError:
    """Error for a question that these records cannot be asked."""
    return DataError(
        scores.name,
        f"records that can be asked for {KINDS[kind].words}",
        f"some that cannot ({kind!r})",
        "Leave this kind of question out.",
    )


def _inverse(terms: Terms) -> int:
    """A temperature of the declared range: the lowest, at which numbers are largest."""
    grid = terms.temperatures
    return inverse_units(float(grid.inverses([grid.low])[0]), grid)


def _other_maps(terms: Terms) -> Iterator[dict[str, Any]]:
    """Maps that are not affine."""
    yield {"inverse": _inverse(terms)}
    yield {"doubt": 1, "inverse": _inverse(terms)}
    yield from _sendable({"accuracies": [1 << (ACCURACY_BITS - 1)] * terms.bins})


def _affine_maps(terms: Terms) -> Iterator[dict[str, Any]]:
    """Affine maps of every form that fits into a request."""
    k, grid = terms.classes, terms.parameters
    for form in _FORMS:
        many = 1
        for side in weight_shape(form, k):
            many *= side
        if many + k <= MOST_REQUEST:
            units = [grid.most_weight << grid.bits] * many + [0] * k
            yield from _sendable({"form": form, "reads": True, "units": units})


def _sendable(map_: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A map, if a request could carry it."""
    if len(canonical(map_)) <= MOST_REQUEST - _ROOM:
        yield map_


def _roomy(seconds: float) -> float:
    """A round number of seconds with room to spare."""
    steps = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_800, 3_600)
    return next((step for step in steps if step >= 1.5 * seconds), 86_400.0)
