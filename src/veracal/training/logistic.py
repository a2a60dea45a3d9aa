"""Logistic and softmax regression by noisy gradient descent."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from veracal import _checks
from veracal._types import Floats
from veracal.mechanisms import ClipRule, Langevin, Optimizer, Schedule, Step
from veracal.training.base import (
    LinearClassifier,
    TrainingData,
    describe_initial_weights,
    record_trained_weights,
    row_norms,
)
from veracal.training.dp_sgd import Ablation, Average, DPSGDClassifier, StepCallback
from veracal.training.gradient_sums import GradientSums, plan_blocks

_BOUNDS = 1e-9, 1e9  # clip bounds for which single precision suffices
_MOST_INITIAL = 1e30
_TYPES = ("float32", "float64")
StepHook = Callable[["PrivateLogisticRegression", Step], bool | None]


@dataclass(eq=False, repr=False)
class PrivateLogisticRegression(DPSGDClassifier, LinearClassifier):
    r"""Logistic regression, or softmax regression for more classes, by DP-SGD.

    At every step each record enters the batch independently and in secret, the gradients of
    the batch are clipped and summed, Gaussian noise is added, and the optimizer updates the
    weights (Abadi et al. 2016, https://arxiv.org/abs/1607.00133). The gradient of one example
    has rank one, so the clipped sum is a matrix product
    (:mod:`veracal.training.gradient_sums`).

    Parameters
    ----------
    epsilon : float > 0 or None
        With ``noise_multiplier=None``, the noise is computed from it. With a noise multiplier,
        or an optimizer that sets the noise, the run ends when epsilon is spent. None: noise
        and length are given, and epsilon follows from them.
    delta : float in (0, 1)
        Well below one over the number of records.
    noise_multiplier : float > 0, Schedule or None
        Standard deviation of the noise on the clipped sum, divided by the clip bound.
    epochs, steps : float > 0, int > 0 or None
        Length of the run; by default 40 epochs. An epoch is 1 / sampling_rate steps.
    sampling_rate : float in (0, 1]
        Probability that a record is in a batch. At 1 all are in every batch.
    clip : float > 0 or ClipRule
        A number c means ``Flat(c)``.
    optimizer : float > 0, Optimizer or None
        A number r means ``SGD(r)``; None means ``SGD(1)``.
        :class:`~veracal.mechanisms.Langevin` gives DP-SGLD, and sets the noise itself.
    weight_decay : float >= 0
        Factor of half the squared norm of all weights in the mean loss.
    fit_intercept : bool
    average : float in [0, 1] or ExponentialAverage
        Share of the last steps whose weights are averaged: for DP-SGLD the posterior mean
        after a burn-in. 0 keeps the last weights. :class:`~veracal.training.ExponentialAverage`
        takes a moving average.
    initial : pair of arrays, optional
        Coefficients and intercept to start from, in the shapes of ``coef_`` and
        ``intercept_``, from *public* knowledge. By default zero.
    dtype : {"float32", "float64"}, optional
        Precision of the products; by default that of X. Sums, norms and noise are float64.
    not_private : {"clipping only", "noise only", "neither"}, optional
        Keep only this part of the protection, for an ablation. The model is then not private
        and says so.
    on_step : callable, optional
        ``on_step(model, step)`` is called after each step with the current model and a
        :class:`~veracal.mechanisms.Step`; True ends the run. Everything that a hook computes
        from records is *internal*, and a model whose run a hook has ended is not private.
        :class:`~veracal.mechanisms.StepProgress` receives step counts only, and never ends a
        run.
    classes : sequence of str or int, optional
        Declared classes. None: read from the labels, so not private.
    size : int, optional
        Declared number of records, which gives the expected batch size. None: counted, so not
        private under add-remove.
    relation : {"add-remove", "replace-one"}
    unit : Unit, optional
        The privacy unit that epsilon protects; by default one row.
    random_state : int, Generator or None
        Only None, fresh secret entropy, is private.

    Attributes
    ----------
    coef_ : array of shape (1, d) for two classes, else (k, d)
    intercept_ : array of shape (1,) or (k,)
    classes_ : array of shape (k,)
    n_iter_ : int
        Steps taken.
    noise_multipliers_ : array of shape (steps,)
    event_, private_, not_private_because_, statement_
        The cost, and what may be claimed.

    Guarantees
    ----------
    Releasing the weights of all steps costs :meth:`event`, which depends on the settings alone.
    One record changes the sum that the noise is added to by at most the clip bound, rounding
    included (:class:`veracal.training.gradient_sums.GradientSums` says what is assumed to be
    exact); a record whose gradient is not finite contributes zero. The real number of records
    is used for nothing but the Poisson draws. Sums and their noise are rounded to a public grid
    before they are added; the noise is drawn in floating point and treated as real numbers.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.repeat([[-1.0, 0.5], [1.0, 0.5]], 500, axis=0)
    >>> y = np.repeat(["well", "ill"], 500)
    >>> model = PrivateLogisticRegression(epsilon=1.0, classes=["ill", "well"], size=1000)
    >>> model.event().times
    400
    >>> model.fit(X, y).private_
    True
    >>> float(model.score(X, y)) > 0.9
    True
    """

    epsilon: float | None = 1.0
    delta: float = 1e-5
    _: KW_ONLY
    noise_multiplier: float | Schedule | None = None
    epochs: float | None = None
    steps: int | None = None
    sampling_rate: float = 0.1
    clip: float | ClipRule = 1.0
    optimizer: float | Optimizer | None = None
    weight_decay: float = 0.0
    fit_intercept: bool = True
    average: Average = 0.5
    initial: tuple[ArrayLike, ArrayLike] | None = None
    dtype: str | None = None
    not_private: Ablation | None = None
    on_step: StepHook | None = None

    _learning_rate = 1.0  # works well for rows of norm 1 to 7, at budgets of 1 and 3

    def _check_settings(self) -> None:
        if not isinstance(self.fit_intercept, bool | np.bool_):
            raise ValueError(
                f"Expected fit_intercept to be True or False, got {self.fit_intercept!r}."
            )
        if self.dtype is not None:
            _checks.one_of(_TYPES, dtype=self.dtype)
        super()._check_settings()

    def _learn(self, data: TrainingData, rng: np.random.Generator) -> tuple[str, ...]:
        run, reasons = self._resolve_run(data)
        dtype = self._dtype(data.X)
        norms, optimizer = row_norms(data.X), run.optimizer
        sums = GradientSums(
            data.X,
            data.codes,
            np.hypot(norms, 1.0) if self.fit_intercept else norms,
            plan_blocks(run.expected_batch, dtype),
            intercept=self.fit_intercept,
            pre_noise=optimizer.pre_noise if isinstance(optimizer, Langevin) else 0.0,
            rng=rng.spawn(1)[0],
        )
        callback = StepCallback(self, int(run.steps))
        with sums.two_threads():
            result = run.run(
                self._start(data, dtype), sums, len(data.X), rng=rng, on_step=callback
            )
        self._set_weights(callback.average.mean(result.weights))
        if self.initial is not None:
            self._initial_weights_note = describe_initial_weights(
                [np.asarray(part) for part in self.initial]
            )
        record_trained_weights(
            [self.coef_, *([self.intercept_] * self.fit_intercept)], self._records_name
        )
        return reasons + self._record_run(run, result)

    def _dtype(self, X: Any) -> Any:
        """Precision of the products."""
        narrow = X.dtype.itemsize < np.dtype(np.float64).itemsize
        if not _BOUNDS[0] <= self._spec().clip.bound <= _BOUNDS[1]:
            return np.dtype(np.float64)  # factors would lose their precision in float32
        return np.dtype(self.dtype or ("float32" if narrow else "float64"))

    def _start(self, data: TrainingData, dtype: Any) -> Floats:
        """Initial weights, with the intercept in the last column."""
        d = data.X.shape[1]
        weights = np.zeros((_outputs(data), d + self.fit_intercept), dtype=dtype)
        if self.initial is not None:
            coef, intercept = self.initial
            weights[:, :d] = coef
            if self.fit_intercept:
                weights[:, -1] = intercept
        return weights

    def _check_form(self, data: TrainingData) -> None:
        self._check_delta(data.size)
        if self.initial is None:
            return
        coef, intercept = (np.asarray(part, dtype=np.float64) for part in self.initial)
        outputs, d = _outputs(data), data.X.shape[1]
        if coef.shape != (outputs, d) or intercept.shape != (outputs,):
            raise ValueError(
                f"Expected initial coefficients of shape {(outputs, d)} and an intercept of "
                f"shape {(outputs,)}, got {coef.shape} and {intercept.shape}."
            )
        most = max(np.abs(coef).max(initial=0.0), np.abs(intercept).max(initial=0.0))
        if not most <= _MOST_INITIAL:
            raise ValueError(
                f"Expected finite initial weights of at most {_MOST_INITIAL:g}, got {most!r}."
            )

    def _set_weights(self, weights: Floats) -> None:
        self.coef_ = weights[:, : self.n_features_in_].copy()
        self.intercept_ = (
            weights[:, -1].copy() if self.fit_intercept else np.zeros(len(weights))
        )


def _outputs(data: TrainingData) -> int:
    """Number of rows of weights: two classes share one."""
    return 1 if len(data.classes) == 2 else len(data.classes)
