"""A private affine map of the logits."""

from typing import Literal, Self

import numpy as np

from veracal import _checks
from veracal._types import Floats
from veracal.calibration.maps import Platt
from veracal.calibration.private.asking import afford, price
from veracal.calibration.private.base import PrivateFitter
from veracal.calibration.private.descent import DescentPlan, descend
from veracal.calibration.queries import PlattGradient
from veracal.privacy import Event, Item, Relation, Source, Unit
from veracal.privacy.costs.pure import MICRO

Form = Literal["scalar", "vector", "matrix"]
FORMS: tuple[Form, ...] = ("scalar", "vector", "matrix")
_LARGEST = 1e6  # of a parameter, whatever the noise did
_MOST_CLASSES = 200  # of a matrix, whose gradients take the square of them for each record
COVERS = "the Platt map, and every gradient that led to it"


class PrivatePlatt(PrivateFitter):
    r"""A Platt map fitted by noisy gradients from whoever holds the records.

    Noisy full-batch descent on the log likelihood of :math:`W z + b`, from W = 1 and b = 0, as
    Zhang et al. 2022 (https://arxiv.org/abs/2210.08248) describe for one temperature; for
    Platt scaling they give no settings, so those of the temperature are used, with weights and
    bias clipped together. The noise grows with the number of parameters: a matrix is for few
    classes.

    Parameters
    ----------
    form : {"scalar", "vector", "matrix"}
        What W is.
    epsilon, micro_epsilon : float or int
        What one unit of the records pays for the fit; one of the two.
    delta : float
    classes : int
        Public number of classes.
    size : int
        *Declared* number of records, never the real one.
    clip, steps, learning_rate
    reads : "logits", "probabilities" or None
        Kind of scores that the sources hold, which the map then insists on.

    Attributes
    ----------
    map_ : Platt
    noise_std_ : float
        Standard deviation that the noise gives each parameter, at most.
    releases_, private_, statement_
        As of :class:`PrivateTemperature`.

    Guarantees
    ----------
    As of :class:`PrivateTemperature` by descent. The clip bounds the L2 norm of a record's
    whole gradient, weights and bias together.
    """

    def __init__(
        self,
        form: Form = "vector",
        *,
        epsilon: float | None = None,
        micro_epsilon: int | None = None,
        delta: float | None = None,
        classes: int | None = None,
        size: int | None = None,
        clip: float = 10.0,
        steps: int = 100,
        learning_rate: float = 0.1,
        reads: Literal["logits", "probabilities"] | None = None,
    ) -> None:
        self.form = form
        self.epsilon = epsilon
        self.micro_epsilon = micro_epsilon
        self.delta = delta
        self.classes = classes
        self.size = size
        self.clip = clip
        self.steps = steps
        self.learning_rate = learning_rate
        self.reads = reads

    def event(self, relation: Relation = "add-remove", unit: Unit | None = None) -> Event:
        """Cost of one fit, known before any record is read."""
        return self._plan().event(self._query(self._start(), 0), relation, unit)

    def items(
        self,
        relation: Relation = "add-remove",
        unit: Unit | None = None,
        part: str | None = None,
    ) -> list[Item]:
        """Lines of a plan, for a ledger that is opened for this fit."""
        return self._plan().items(self._query(self._start(), 0), relation, unit, part)

    def fit(self, source: Source, *, request: str | None = None) -> Self:
        """Ask a source for a gradient at every step.

        Parameters
        ----------
        source : GaussianSource
        request : str, optional
            As of :meth:`PrivateTemperature.fit`.
        """
        afford(source, self.items, request)
        made = descend(self._plan(), source, self._start(), self._query, request=request)
        self.noise_std_ = made.std
        map_ = self._map(made.parameters)
        assert self.delta is not None
        return self._keep(map_, made.releases, source, covers=COVERS, delta=self.delta)

    def _plan(self) -> DescentPlan:
        """The steps."""
        if self.delta is None or self.size is None:
            raise ValueError(
                f"Expected a delta and a declared size, got delta={self.delta!r}, "
                f"size={self.size!r}."
            )
        epsilon = price(self.epsilon, self.micro_epsilon) / MICRO
        return DescentPlan(epsilon, self.delta, self.size, self.steps, self.learning_rate)

    def _query(self, parameters: Floats, step: int) -> PlattGradient:
        """The question of one step."""
        return PlattGradient(self._map(parameters), self.clip, step)

    def _start(self) -> Floats:
        """The map that changes nothing, as a vector: weights, then bias."""
        _checks.one_of(FORMS, form=self.form)
        if self.classes is None:
            raise ValueError(
                "Expected the number of classes, which must be public, got classes=None. "
                "Declare classes=..."
            )
        _checks.whole(classes=self.classes, least=2)
        k = int(self.classes)
        if self.form == "matrix" and k > _MOST_CLASSES:
            raise ValueError(
                f"Expected at most {_MOST_CLASSES} classes for a matrix, got {k}. Use 'vector'."
            )
        weights = {"scalar": np.ones(1), "vector": np.ones(k)}.get(self.form)
        return np.concatenate([np.eye(k).ravel() if weights is None else weights, np.zeros(k)])

    def _map(self, parameters: Floats) -> Platt:
        """The map of a vector of parameters."""
        assert self.classes is not None
        k = int(self.classes)
        bounded = np.clip(parameters, -_LARGEST, _LARGEST)
        weights, bias = bounded[:-k], bounded[-k:]
        shape: tuple[int, ...] = {"scalar": (), "vector": (k,)}.get(self.form, (k, k))
        return Platt(weights.reshape(shape), bias, self.reads)
