"""Optimizers, and schedules of learning rates and noise.

An optimizer only sees noisy gradients, so it costs no privacy. It is an immutable record of
settings; its state is passed from step to step. A schedule fixes the values of all steps before
training.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, Self, get_args, runtime_checkable

import numpy as np
from array_api_compat import array_namespace

from veracal import _checks
from veracal._types import Floats

MAX_LEVELS = 64


class Schedule(ABC):
    """A learning rate or noise multiplier for each step, counted from 0."""

    @abstractmethod
    def at(self, step: int) -> float:
        """The value at one step."""

    def values(self, steps: int) -> Floats:
        """The values at the first ``steps`` steps."""
        return np.array([self.at(step) for step in range(steps)], dtype=np.float64)


@dataclass(frozen=True)
class Exponential(Schedule):
    r"""Decay by a constant factor: :math:`s \, e^{-r \lfloor t / k \rfloor}` at step t.

    Parameters
    ----------
    start : float > 0
        The value s at step 0.
    decay : float
        The rate r; if negative, the value grows.
    every : int
        The number k of steps between two changes, such as those of an epoch.

    Examples
    --------
    >>> Exponential(1.0, decay=math.log(2), every=2).values(4)
    array([1. , 1. , 0.5, 0.5])
    """

    start: float
    decay: float
    every: int = 1

    def __post_init__(self) -> None:
        _checks.positive(start=self.start)
        _checks.whole(every=self.every)
        _checks.nonnegative(decay=abs(self.decay))

    def at(self, step: int) -> float:
        """The value at one step."""
        return float(self.start) * math.exp(-self.decay * (step // int(self.every)))


@dataclass(frozen=True)
class Linear(Schedule):
    r"""A straight line: :math:`a + (b - a) \min(1, t / T)` at step t.

    Parameters
    ----------
    start : float > 0
        The value a at step 0.
    end : float >= 0
        The value b from step T on. Training of T steps ends one step before it, so a
        learning rate may fall to zero.
    steps : int
        The number T.

    Examples
    --------
    >>> Linear(1.0, 0.0, steps=4).values(4)
    array([1.  , 0.75, 0.5 , 0.25])
    """

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        _checks.positive(start=self.start)
        _checks.whole(steps=self.steps)
        _checks.nonnegative(end=self.end)

    def at(self, step: int) -> float:
        """The value at one step."""
        fraction = min(1.0, step / self.steps)
        return float(self.start) * (1 - fraction) + float(self.end) * fraction


def value_at(value: float | Schedule, step: int) -> float:
    """The value of a number or schedule at one step."""
    return value.at(step) if isinstance(value, Schedule) else float(value)


def values(value: float | Schedule, steps: int) -> Floats:
    """The values of a number or schedule at the first steps."""
    if isinstance(value, Schedule):
        return value.values(steps)
    return np.full(steps, value, dtype=np.float64)


def group_noise_levels(
    noise_multipliers: Iterable[float], most: int = MAX_LEVELS
) -> tuple[tuple[float, int], ...]:
    r"""Group the noise multipliers > 0 of all steps into few levels, rounding down.

    One step costs about :math:`1 / \sigma^2`. With :math:`n_i` steps at the i-th lowest
    multiplier, rounding adds the least cost if every level has the same share of
    :math:`\sum_i \sqrt{n_i (\sigma_{i-1}^{-2} - \sigma_i^{-2})}`, as in high-resolution
    quantization (Bennett 1948). Up to ``most`` distinct values are left unchanged.

    Returns
    -------
    tuple of (noise multiplier, number of steps)
        At most ``most`` levels, from the lowest noise to the highest.

    Guarantees
    ----------
    Every step is counted once, with a noise multiplier no higher than its own, so the levels
    never understate a cost that decreases with the noise.

    Examples
    --------
    >>> group_noise_levels([2.0, 1.0, 2.0, 1.5], most=2)
    ((1.0, 1), (1.5, 3))
    """
    _checks.whole(most=most)
    multipliers = np.asarray(list(noise_multipliers), dtype=np.float64)
    if not (multipliers.size and np.isfinite(multipliers).all() and (multipliers > 0).all()):
        raise ValueError(
            "Expected finite noise multipliers > 0 for at least one step, "
            f"got {multipliers.tolist()[:5]!r}."
        )
    distinct, counts = np.unique(multipliers, return_counts=True)
    if len(distinct) > most:
        costs = (distinct[0] / distinct) ** 2  # falls from 1 towards 0
        shares = np.cumsum(np.sqrt(counts[1:] * -np.diff(costs)))
        level = np.minimum(shares // (shares[-1] / int(most)), int(most) - 1)
        # Where each level starts; the lowest multiplier starts level 0.
        firsts = np.append(0, 1 + np.flatnonzero(np.diff(level, prepend=0.0)))
        counts, distinct = np.add.reduceat(counts, firsts), distinct[firsts]
    return tuple((float(m), int(n)) for m, n in zip(distinct, counts, strict=True))


Mode = Literal["mean", "sum", "langevin"]
MODES: tuple[Mode, ...] = get_args(Mode)


@runtime_checkable
class Optimizer(Protocol):
    """Protocol of optimizers.

    Test custom optimizers with :func:`veracal.testing.check_optimizer`. An optimizer reads only
    its arguments and modifies none of them.
    """

    def start(self, weights: Any) -> Any:
        """The state before the first step."""

    def step(self, weights: Any, gradient: Any, state: Any, t: int) -> tuple[Any, Any]:
        """New weights and state after the noisy gradient of step t (from 0)."""


@runtime_checkable
class ElementwiseOptimizer(Optimizer, Protocol):
    """An optimizer whose step of a weight depends on the gradient of that weight alone.

    Its state is None, an array of the shape of the weights, or a tuple of such arrays.
    """

    def part(self, start: int, end: int) -> Optimizer:
        """The optimizer for the weights from ``start`` to before ``end``."""


class UniformOptimizer:
    """An elementwise optimizer that is the same for every weight, by default without state."""

    learning_rate: float | Schedule

    def __post_init__(self) -> None:
        if not isinstance(self.learning_rate, Schedule):
            _checks.positive(learning_rate=self.learning_rate)

    def start(self, weights: Any) -> Any:
        """The state before the first step."""

    def part(self, start: int, end: int) -> Self:
        """The same optimizer for every weight."""
        return self


@dataclass(frozen=True)
class SGD(UniformOptimizer):
    r"""Gradient descent: :math:`w \leftarrow w - \alpha_t g`."""

    learning_rate: float | Schedule

    def step(self, weights: Any, gradient: Any, state: None, t: int) -> tuple[Any, None]:
        """New weights."""
        # In this order numpy adds to the product in place.
        return -value_at(self.learning_rate, t) * gradient + weights, None


@dataclass(frozen=True)
class Momentum(UniformOptimizer):
    r"""Gradient descent with momentum in [0, 1).

    :math:`v \leftarrow \mu v + g`, then :math:`w \leftarrow w - \alpha_t v`; with Nesterov
    momentum, :math:`w \leftarrow w - \alpha_t (g + \mu v)` (Sutskever et al. 2013, in the
    form that deep-learning libraries use).
    """

    learning_rate: float | Schedule
    momentum: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.below_one(momentum=self.momentum)

    def start(self, weights: Any) -> Any:
        """Zero velocity."""
        return array_namespace(weights).zeros_like(weights)

    def step(self, weights: Any, gradient: Any, state: Any, t: int) -> tuple[Any, Any]:
        """New weights and velocity."""
        velocity = self.momentum * state + gradient
        direction = gradient + self.momentum * velocity if self.nesterov else velocity
        return weights - value_at(self.learning_rate, t) * direction, velocity


class Moments(NamedTuple):
    """Running means of the gradient and of its square."""

    first: Any
    second: Any


@dataclass(frozen=True)
class Adam(UniformOptimizer):
    r"""Adam with decoupled weight decay.

    .. math::
        m \leftarrow \beta_1 m + (1 - \beta_1) g, \quad
        v \leftarrow \beta_2 v + (1 - \beta_2) g^2, \quad
        w \leftarrow w - \alpha_t \left( \frac{m / (1 - \beta_1^{t+1})}
        {\sqrt{v / (1 - \beta_2^{t+1})} + s} + \lambda w \right)

    (Kingma and Ba 2015, Algorithm 1; Loshchilov and Hutter 2019, Algorithm 2).

    Parameters
    ----------
    learning_rate : float > 0 or Schedule
    betas : two floats in [0, 1)
    stability : float > 0
        The term s in the denominator.
    weight_decay : float >= 0
        The factor :math:`\lambda`.
    """

    learning_rate: float | Schedule
    betas: tuple[float, float] = (0.9, 0.999)
    stability: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.positive(stability=self.stability)
        _checks.below_one(first_beta=self.betas[0], second_beta=self.betas[1])
        _checks.nonnegative(weight_decay=self.weight_decay)

    def start(self, weights: Any) -> Moments:
        """Both moments are zero."""
        zeros_like = array_namespace(weights).zeros_like
        return Moments(zeros_like(weights), zeros_like(weights))

    def step(self, weights: Any, gradient: Any, state: Moments, t: int) -> tuple[Any, Moments]:
        """New weights and moments."""
        beta1, beta2 = self.betas
        first = beta1 * state.first + (1 - beta1) * gradient
        second = beta2 * state.second + (1 - beta2) * gradient * gradient
        root = array_namespace(weights).sqrt(second / (1 - beta2 ** (t + 1)))
        direction = first / (1 - beta1 ** (t + 1)) / (root + self.stability)
        direction = direction + self.weight_decay * weights
        return weights - value_at(self.learning_rate, t) * direction, Moments(first, second)


@dataclass(frozen=True)
class Langevin(UniformOptimizer):
    r"""Stochastic gradient Langevin dynamics: noise set by learning rate and temperature.

    The noise that protects the records is also the noise of stochastic gradient Langevin
    dynamics (Knolle et al. 2021). With expected batch L and bound C, the noise multiplier on
    the clipped sum is, by mode,

    - ``"mean"``: :math:`L \sqrt{2 \alpha_t \tau}`, as printed in their Algorithm 1 (noise of
      standard deviation :math:`C \sqrt{2 \alpha_t \tau}` on the mean gradient);
    - ``"sum"``: :math:`\sqrt{2 \alpha_t \tau}`, the same noise on the sum;
    - ``"langevin"``: :math:`L \sqrt{2 \tau / \alpha_t} / C`. The noise on the weights is then
      :math:`\mathcal{N}(0, 2 \alpha_t \tau)` per step, which samples the posterior tempered
      by :math:`\tau`. The energy is the mean loss or, with ``records`` = N declared,
      the total loss: then :math:`w \leftarrow w - \alpha_t N g` and the multiplier is
      :math:`L / N` times :math:`\sqrt{2 \tau / \alpha_t} / C`.

    Parameters
    ----------
    learning_rate : float > 0 or Schedule
        The rate :math:`\alpha_t`.
    temperature : float > 0
        The temperature :math:`\tau`.
    mode : {"mean", "sum", "langevin"}
    pre_noise : float >= 0
        Standard deviation of noise on each gradient *before* it is clipped, added by the code
        that computes the gradients (:func:`veracal.mechanisms.add_gradient_noise`). It does
        not lower the privacy cost.
    records : int, optional
        Declared number of records, for the total loss in mode ``"langevin"``.

    Guarantees
    ----------
    The cost of training and the noise are both computed from :meth:`noise_multipliers`.
    """

    learning_rate: float | Schedule
    temperature: float
    mode: Mode = "mean"
    pre_noise: float = 0.0
    records: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.positive(temperature=self.temperature)
        _checks.one_of(MODES, mode=self.mode)
        _checks.nonnegative(pre_noise=self.pre_noise)
        if self.records is None:
            return
        _checks.whole(records=self.records)
        if self.mode != "langevin":
            raise ValueError(
                f"Expected records only in mode 'langevin', got mode={self.mode!r}."
            )

    def noise_multipliers(self, steps: int, expected_batch: float, bound: float) -> Floats:
        """Noise multiplier of each step: noise on the clipped sum, divided by the bound."""
        rates = values(self.learning_rate, steps)
        if self.mode == "langevin":
            scale = np.sqrt(2 * self.temperature / rates) / bound
            factor = expected_batch / (self.records or 1)
        else:
            scale = np.sqrt(2 * self.temperature * rates)
            factor = expected_batch if self.mode == "mean" else 1.0
        return np.asarray(factor * scale)

    def step(self, weights: Any, gradient: Any, state: None, t: int) -> tuple[Any, None]:
        """New weights, along the gradient of the energy."""
        energy = (self.records or 1) * gradient
        return weights - value_at(self.learning_rate, t) * energy, None
