r"""How much a source's answer can be believed: no more than the records it says it has.

A source may declare at most so many records, and says by its first counts about how many there
are. From then on nothing it sends may weigh more than that, up to what noise can do.
"""

import math

from scipy import stats

from veracal.calibration.queries import CorrectTotal, CorrectWrong
from veracal.calibration.queries.mapped import OfMapped
from veracal.privacy import Query, Release
from veracal.privacy.answers.judging import Wanted
from veracal.privacy.answers.sums import BinnedSum
from veracal.privacy.events import DiscreteGaussian, DiscreteLaplace

_RARE = 2.0**-40  # an honest answer is farther out with this probability at most


def too_large(wanted: Wanted, release: Release, records: float) -> bool:
    r"""Whether an answer is larger than so many records and the noise can make it.

    One record adds at most :math:`\Delta` to the L1 norm of a sum, so n of them no more than
    :math:`n \Delta`, and

    .. math:: \sum_j |k_j| \le n \Delta + r,

    where noise in all entries together exceeds r with probability :math:`2^{-40}` at most.
    """
    reach = wanted.query.sensitivity("add-remove")
    return sum(map(abs, release.units)) > records * reach + _noise(release)


def claimed(query: Query, release: Release) -> float | None:
    """How many records a source says it has, at most; None if the answer does not tell."""
    asked = query.query if isinstance(query, OfMapped) else query
    if isinstance(asked, CorrectTotal):
        told = release.units[1::2]
    elif isinstance(asked, CorrectWrong) or _counts(asked):
        told = release.units
    else:
        return None
    return max(sum(told) + _noise(release), 0.0)


def _counts(query: Query) -> bool:
    """Whether it counts records, each in one of two cells."""
    return isinstance(query, BinnedSum) and (query.low, query.high, query.bits) == (0, 1, 0)


def _noise(release: Release) -> float:
    """What noise adds to the L1 norm of an answer, all but never more."""
    assert isinstance(release.event, DiscreteLaplace | DiscreteGaussian)
    return noise_reach(release.event, len(release.units))


def noise_reach(
    event: DiscreteLaplace | DiscreteGaussian, entries: int, *, rare: float = _RARE
) -> float:
    r"""What noise in all entries adds up to, exceeded with a small probability at most.

    Discrete Laplace noise is at most 1 plus an exponential of the same scale s, in the order
    of distributions (:math:`P(|k| \ge j) = 2q^j / (1 + q) \le q^{j-1}` with
    :math:`q = e^{-1/s}`), and a sum of m exponentials has a Gamma law. For Gaussian noise it
    is m times what one entry exceeds with an m-th of the probability.
    """
    if isinstance(event, DiscreteLaplace):
        return entries + event.noise * float(stats.gamma.isf(rare, entries))
    return entries * event.noise * math.sqrt(2 * math.log(2 * entries / rare))
