"""An affine map of the logits."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from veracal import _checks
from veracal._types import Floats
from veracal.calibration.maps.base import LEAST, Map, check_width, from_logits, parameters
from veracal.data.score_values import Kind
from veracal.data.scores import Scores
from veracal.errors import DataError

Form = Literal["scalar", "vector", "matrix"]
_CELLS = 2**15  # numbers that are worked on at once
_FAR = 1e200  # logits beyond are read as that: their products and sums stay finite
_FORMS: tuple[Form, ...] = ("scalar", "vector", "matrix")


@dataclass(frozen=True, eq=False)
class Platt(Map):
    r"""Logits :math:`W z + b`, with W a number, a diagonal or a matrix.

    Guo et al. 2017 (https://arxiv.org/abs/1706.04599), Section 4.2, after Platt 1999. Logits
    stay logits and probabilities stay probabilities, of which the logarithm is mapped. A
    probability below :math:`2^{-52}`, 0 among them, is read as that, since a logit of -inf
    cannot be multiplied by 0 or added to another. The prediction may change.

    With a vector or a matrix, logits that differ by one constant a row are not the same to
    this map, although they are the same probabilities: use it on the kind of scores it was
    fitted on, and say in ``reads`` which that is.

    Parameters
    ----------
    weights : float, or array of shape (k,) or (k, k)
        The number, diagonal or matrix W.
    bias : array of shape (k,)
        The vector b.
    reads : 'logits', 'probabilities' or None
        The only kind of scores that is accepted; None accepts both.

    Examples
    --------
    >>> map_ = Platt(2.0, [0.0, 0.0, 1.0])
    >>> map_.form
    'scalar'
    >>> map_.transform(Scores.from_logits([[1.0, 0.0, 0.0]])).values
    array([[2., 0., 1.]])
    """

    weights: Floats | float
    bias: Floats
    reads: Kind | None = None

    kind: ClassVar[str] = "platt"

    def __post_init__(self) -> None:
        weights = parameters(self.weights, 0, 1, 2, name="weights")
        bias = parameters(self.bias, 1, name="bias")
        k = len(bias)
        if weights.shape != (k,) * weights.ndim or k < 2:
            raise ValueError(
                "Expected weights of shape (), (k,) or (k, k) and a bias of shape (k,) with "
                f"k >= 2, got {weights.shape} and {bias.shape}."
            )
        if self.reads is not None:
            _checks.one_of(("logits", "probabilities"), reads=self.reads)
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "bias", bias)

    @property
    def form(self) -> Form:
        """What W is: 'scalar', 'vector' or 'matrix'."""
        return _FORMS[np.ndim(self.weights)]

    def check(self, scores: Scores) -> None:
        """Refuse scores of another width or kind than this map is for."""
        check_width(scores, len(self.bias), self.kind)
        if self.reads not in (None, scores.kind):
            raise DataError(
                scores.name,
                f"{self.reads}, which this map was fitted on",
                scores.kind,
                f"Pass {self.reads}, or fit another map.",
            )

    def _mapped(self, scores: Scores) -> Scores:
        """Scores of the same kind."""
        self.check(scores)
        z = readable_logits(scores)
        return from_logits(scores, weighted(z, self.weights) + self.bias)


def weighted(z: Floats, weights: Floats | float) -> Floats:
    r"""Rows times weights: :math:`wz`, :math:`w \circ z` or :math:`Wz`.

    Parameters
    ----------
    z : array of shape (n, k)
    weights : array of shape (), (k,) or (k, k)

    Guarantees
    ----------
    The result for a row is a function of that row and the weights, bit for bit. A matrix
    product by BLAS is not: which of its kernels computes a row depends on where the row stands
    and on the number of threads, so that one record more shifts the last bits of others, and
    across the edge of a bin that is a whole record. Here products are added column by column,
    each rounded by itself.
    """
    matrix = np.asarray(weights)
    if matrix.ndim < 2:
        return np.asarray(z * matrix)
    result = np.empty((len(z), len(matrix)))
    rows = max(1, _CELLS // len(matrix))  # few enough to stay in a cache
    for start in range(0, len(z), rows):
        part, total = z[start : start + rows], result[start : start + rows]
        term = np.empty_like(total)
        np.multiply(part[:, :1], matrix[:, 0], out=total)
        for j in range(1, matrix.shape[1]):
            np.multiply(part[:, j : j + 1], matrix[:, j], out=term)
            np.add(total, term, out=total)
    return result


def readable_logits(scores: Scores) -> Floats:
    r"""Logits that can be multiplied and added: finite, and none beyond 1e200.

    Those of probabilities are at least :math:`\log 2^{-52}`.
    """
    if scores.kind == "logits":
        result: Floats = np.clip(scores.values.astype(np.float64), -_FAR, _FAR)
        return result
    return np.log(np.maximum(scores.values.astype(np.float64), LEAST))
