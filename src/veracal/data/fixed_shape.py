"""Scores of rows in blocks of one shape, so that a row's score is its own.

Rounding follows the shape of a product and, inside it, the place: the same row, scored with
fewer others or after one more of them, may differ in its last bits. (OpenBLAS on some
processors rounds the last four of 256 rows differently in single precision, with ten classes,
and some hundred with a hundred.) So one person more or less would move the scores of others,
which no sensitivity allows for. Here every block has the same shape, and rows stand only at
places where a trial on made-up rows has found the bits of the first place.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np

from veracal._aligned import aligned
from veracal._types import Array, Floats, Ints
from veracal.data.rows import MappedRows

Score = Callable[[Array], Floats]
# Numbers that are compared at every place. One alone may have the same bits by chance: with ten
# float32 products, another order of additions gives the same sum in one of two cases.
_COMPARED = 40


def places_alike(forward: Score, made_up: Array, tried: int = 1) -> Ints:
    """Places of a block at which a row has the bits that it has at the first.

    Parameters
    ----------
    forward : function of an array of shape (c, ...) to an array of shape (c, d)
    made_up : array of shape (c, ...)
        One block of public rows; nothing about records is read.
    tried : int
        How many of them, the first ones, are tried at every place: alone with copies of
        themselves, and then side by side with each other and with the rest.

    Returns
    -------
    array of ints, ascending
        At least the first place, 0; and only that where others in the block change a row's
        bits.
    """
    rows = made_up[:tried]
    repeated = (np.repeat(row[None], len(made_up), axis=0) for row in rows)
    copies = [_bits(forward(aligned(one))) for one in repeated]
    same = np.all([(found == found[0]).all(axis=1) for found in copies], axis=0)
    company, turn = aligned(made_up.copy()), np.arange(len(made_up)) % (tried + 1)
    mine = turn < tried
    company[mine] = rows[turn[mine]]
    places, asked = np.flatnonzero(same), np.flatnonzero(same & mine)
    alone = np.stack([found[0] for found in copies])[turn[asked]]
    return places if (_bits(forward(company))[asked] == alone).all() else places[:1]


def at_places(
    forward: Score, rows: Array | MappedRows, places: Ints, block: Array
) -> Iterator[Floats]:
    """Score rows that stand at some places of a block; copies of one stand at the others.

    Parameters
    ----------
    forward : function of an array of shape (c, ...) to an array of shape (c, d)
    rows : array or MappedRows of shape (m, ...)
    places : array of ints
        As :func:`places_alike` gives them.
    block : array of shape (c, ...)
        Room for a block in the type that ``forward`` takes; what is in it is lost.

    Yields
    ------
    array of shape (at most as many as there are places, d)
        Scores of the next rows, in their order.

    Guarantees
    ----------
    If ``forward`` scores each row of a block in an order of additions that the shape of the
    block, the place in it and addresses up to multiples of 64 bytes decide, and not the values,
    then the score of a row is a function
    of that row alone, bit for bit: adding, removing, changing or reordering other rows leaves
    it as it was. With the first place alone, that holds of whatever ``forward`` does with a
    block, as all of it is copies of one row.
    """
    block = aligned(block)  # on some libraries, bits follow from addresses, too
    others = np.setdiff1d(np.arange(len(block)), places)
    for start in range(0, len(rows), len(places)):
        some = np.asarray(rows[start : start + len(places)])
        mine, free = places[: len(some)], places[len(some) :]
        block[mine] = some
        block[others] = block[free] = some[0]
        yield forward(block)[mine]


def all_places_alike(forward: Score, made_up: Array) -> bool:
    """Whether every place of a block gives a row the same bits, and others change nothing.

    Parameters
    ----------
    forward, made_up
        As of :func:`places_alike`. Rows should differ from each other.

    Guarantees
    ----------
    At every place at least 40 numbers are compared with those of the first place, however few
    a row has (fewer only if there are fewer rows), and each row with itself at other places.
    """
    block = aligned(made_up.copy())
    straight = _bits(forward(block))
    most = max(1, len(made_up) - 1)
    tried = min(most, math.ceil(_COMPARED / max(1, straight.shape[1])))
    if len(places_alike(forward, made_up, tried)) < len(made_up):
        return False
    shifts = (1 << i for i in range((len(made_up) - 1).bit_length()))
    return all(
        np.array_equal(
            _bits(forward(aligned(np.roll(block, shift, axis=0)))),
            np.roll(straight, shift, axis=0),
        )
        for shift in shifts
    )


def each_by_itself(forward: Score, made_up: Array, *alike: Score) -> Score:
    """Score any number of rows through a network that takes a batch at a time.

    Parameters
    ----------
    forward : function of an array of shape (c, ...) to an array of shape (c, d)
    made_up : array of shape (c, ...)
        One batch of public rows; the first should be as long as rows can be.
    *alike : functions like ``forward``
        The same network with other weights, to be tried as well: weights may be such that
        made-up rows hide an order of additions, and records do not.

    Returns
    -------
    function of an array of shape (m, ...) to an array of shape (m, d), for m ≥ 1

    Guarantees
    ----------
    Those of :func:`at_places`, where every place of a batch is like the first
    (:func:`all_places_alike`). Where one is not, rows are scored in batches of one, which is
    slower and needs no trial.
    """
    whole = all(all_places_alike(one, made_up) for one in (forward, *alike))
    batch = made_up if whole else made_up[:1]

    def score(rows: Array) -> Floats:
        parts = at_places(forward, rows, np.arange(len(batch)), np.empty_like(batch))
        return np.concatenate(list(parts))

    return score


def _bits(scores: Floats) -> Ints:
    """Scores as integers: a NaN would differ from itself, and −0 would equal 0."""
    flat = np.asarray(scores, dtype=np.float64).reshape(len(scores), -1)
    return np.ascontiguousarray(flat).view(np.int64)
