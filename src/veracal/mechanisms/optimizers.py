"""Values that change along the steps of a descent, all known beforehand.

How weights follow a noisy gradient.

Update rules see what is already private, so they cost nothing. Each is a record of settings;
what it remembers between steps is passed along.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, get_args, runtime_checkable

import numpy as np
from array_api_compat import array_namespace

from veracal import _checks
from veracal._types import Floats, Ints

MOST_LEVELS = 64


class Schedule(ABC):
    """A learning rate or a noise multiplier for each step, counted from 0."""

    @abstractmethod
    def at(self, step: int) -> float:
        """The value at one step."""

    def values(self, steps: int) -> Floats:
        """The values at the first ``steps`` steps."""
        return np.array([self.at(step) for step in range(steps)], dtype=np.float64)


@dataclass(frozen=True)
class Constant(Schedule):
    """The same value at every step."""

    value: float

    def __post_init__(self) -> None:
        _checks.positive(value=self.value)

    def at(self, step: int) -> float:
        """The value at one step."""
        return float(self.value)


@dataclass(frozen=True)
class Exponential(Schedule):
    r"""Decay by a constant factor: :math:`s \, e^{-r \lfloor t / k \rfloor}` at step t.

    Parameters
    ----------
    start : float > 0
        The value s at step 0.
    decay : float
        The rate r; negative lets the value grow.
    every : int
        The number k of steps between two changes: with the steps of an epoch, the value
        decays once an epoch.

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
        if self.decay != 0:
            _checks.positive(decay=abs(self.decay))

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
        The value b from step T on. A descent of T steps ends one step before it, so a
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
        if self.end != 0:
            _checks.positive(end=self.end)

    def at(self, step: int) -> float:
        """The value at one step."""
        done = min(1.0, step / self.steps)
        return float(self.start) * (1 - done) + float(self.end) * done


def value_at(value: float | Schedule, step: int) -> float:
    """The value at one step, of a number or of a schedule."""
    return value.at(step) if isinstance(value, Schedule) else float(value)


def values(value: float | Schedule, steps: int) -> Floats:
    """The values at the first steps, of a number or of a schedule."""
    if isinstance(value, Schedule):
        return value.values(steps)
    return np.full(steps, value, dtype=np.float64)


def levels(
    noise_multipliers: Iterable[float], most: int = MOST_LEVELS
) -> tuple[tuple[float, int], ...]:
    r"""Group the noise of every step into few levels, each as low as its lowest step.

    One step costs about :math:`1 / \sigma^2`. With :math:`n_i` steps at the i-th lowest
    multiplier, rounding adds least when every level holds the same share of
    :math:`\sum_i \sqrt{n_i (\sigma_{i-1}^{-2} - \sigma_i^{-2})}`, as in quantization at
    high resolution (Bennett 1948). Up to ``most`` distinct values stay as they are.

    Parameters
    ----------
    noise_multipliers : floats > 0
        One for each step.
    most : int
        Most levels.

    Returns
    -------
    tuple of (noise multiplier, number of steps)
        From the lowest noise to the highest.

    Guarantees
    ----------
    Every step is counted once, at a noise multiplier no higher than its own, so whatever
    grows as noise shrinks is never understated by the levels.

    Examples
    --------
    >>> levels([2.0, 1.0, 2.0, 1.5], most=2)
    ((1.0, 1), (1.5, 3))
    """
    _checks.whole(most=most)
    multipliers = np.asarray(list(noise_multipliers), dtype=np.float64)
    if not (multipliers.size and np.isfinite(multipliers).all() and (multipliers > 0).all()):
        raise ValueError(
            "Expected a finite noise multiplier > 0 for one step or more, "
            f"got {multipliers.tolist()[:5]!r}."
        )
    distinct, counts = np.unique(multipliers, return_counts=True)
    if len(distinct) > most:
        firsts = _first_of_each_level(distinct, counts, int(most))
        counts = np.add.reduceat(counts, firsts)
        distinct = distinct[firsts]
    return tuple((float(m), int(n)) for m, n in zip(distinct, counts, strict=True))


def _first_of_each_level(distinct: Floats, counts: Ints, most: int) -> Ints:
    """Where each level starts among ascending multipliers; ``most`` levels at the most."""
    costs = (distinct[0] / distinct) ** 2  # falls from 1 towards 0
    shares = np.cumsum(np.sqrt(counts[1:] * -np.diff(costs)))
    level = np.minimum(shares // (shares[-1] / most), most - 1)
    # The lowest multiplier is in level 0, and opens it.
    return np.append(0, 1 + np.flatnonzero(np.diff(level, prepend=0.0)))


Mode = Literal["mean", "sum", "langevin"]
MODES: tuple[Mode, ...] = get_args(Mode)


@runtime_checkable
class Update(Protocol):
    """What an update rule is.

    A rule of your own takes part once :func:`veracal.testing.check_optimizer` passes it. It
    reads nothing but its arguments and changes none of them.
    """

    def start(self, weights: Any) -> Any:
        """What is remembered before the first step."""

    def step(self, weights: Any, gradient: Any, state: Any, t: int) -> tuple[Any, Any]:
        """New weights and what is remembered, from the noisy gradient of step t (from 0)."""


@dataclass(frozen=True)
class SGD:
    r"""Gradient descent: :math:`w \leftarrow w - \alpha_t g`.

    Parameters
    ----------
    rate : float > 0 or Schedule
    """

    rate: float | Schedule

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    def start(self, weights: Any) -> None:
        """Remember nothing."""

    def step(self, weights: Any, gradient: Any, state: None, t: int) -> tuple[Any, None]:
        """Go down the gradient."""
        # In this order numpy adds to the product in its place.
        return -value_at(self.rate, t) * gradient + weights, None

    def part(self, start: int, end: int) -> "SGD":
        """The same for every weight."""
        return self


@dataclass(frozen=True)
class Momentum:
    r"""Gradient descent with momentum.

    :math:`v \leftarrow \mu v + g`, then :math:`w \leftarrow w - \alpha_t v`; with Nesterov's
    look-ahead, :math:`w \leftarrow w - \alpha_t (g + \mu v)` (Sutskever et al. 2013, in the
    form deep-learning libraries use).

    Parameters
    ----------
    rate : float > 0 or Schedule
    momentum : float in [0, 1)
    nesterov : bool
    """

    rate: float | Schedule
    momentum: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        _check_below_one(momentum=self.momentum)

    def start(self, weights: Any) -> Any:
        """Stand still."""
        return array_namespace(weights).zeros_like(weights)

    def step(self, weights: Any, gradient: Any, state: Any, t: int) -> tuple[Any, Any]:
        """Go along the velocity."""
        velocity = self.momentum * state + gradient
        ahead = gradient + self.momentum * velocity if self.nesterov else velocity
        return weights - value_at(self.rate, t) * ahead, velocity

    def part(self, start: int, end: int) -> "Momentum":
        """The same for every weight."""
        return self


class Moments(NamedTuple):
    """Running means of the gradient and of its square."""

    first: Any
    second: Any


@dataclass(frozen=True)
class Adam:
    r"""Adam with decoupled weight decay.

    .. math::
        m \leftarrow \beta_1 m + (1 - \beta_1) g, \quad
        v \leftarrow \beta_2 v + (1 - \beta_2) g^2, \quad
        w \leftarrow w - \alpha_t \left( \frac{m / (1 - \beta_1^{t+1})}
        {\sqrt{v / (1 - \beta_2^{t+1})} + s} + \lambda w \right)

    (Kingma and Ba 2015, Algorithm 1; Loshchilov and Hutter 2019, Algorithm 2).

    Parameters
    ----------
    rate : float > 0 or Schedule
    betas : two floats in [0, 1)
    stability : float > 0
        The term s below the fraction.
    weight_decay : float >= 0
        The factor :math:`\lambda`.
    """

    rate: float | Schedule
    betas: tuple[float, float] = (0.9, 0.999)
    stability: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        _checks.positive(stability=self.stability)
        _check_below_one(first_beta=self.betas[0], second_beta=self.betas[1])
        if self.weight_decay != 0:
            _checks.positive(weight_decay=self.weight_decay)

    def start(self, weights: Any) -> Moments:
        """Both means are zero."""
        zeros_like = array_namespace(weights).zeros_like
        return Moments(zeros_like(weights), zeros_like(weights))

    def step(self, weights: Any, gradient: Any, state: Moments, t: int) -> tuple[Any, Moments]:
        """Go along the mean, shorter where the gradient varies."""
        slow, slower = self.betas
        first = slow * state.first + (1 - slow) * gradient
        second = slower * state.second + (1 - slower) * gradient * gradient
        spread = array_namespace(weights).sqrt(second / (1 - slower ** (t + 1)))
        direction = first / (1 - slow ** (t + 1)) / (spread + self.stability)
        moved = direction + self.weight_decay * weights
        return weights - value_at(self.rate, t) * moved, Moments(first, second)

    def part(self, start: int, end: int) -> "Adam":
        """The same for every weight."""
        return self


@dataclass(frozen=True)
class Langevin:
    r"""Gradient descent whose noise follows from the learning rate and a temperature.

    The noise that protects the records is also the noise of stochastic gradient Langevin
    dynamics (Knolle et al. 2021). With expected batch L and bound C, the noise multiplier on
    the clipped sum is, in the mode

    - ``"mean"``: :math:`L \sqrt{2 \alpha_t \tau}`, as their Algorithm 1 is printed (noise of
      standard deviation :math:`C \sqrt{2 \alpha_t \tau}` on the mean gradient);
    - ``"sum"``: :math:`\sqrt{2 \alpha_t \tau}`, the same noise on the sum;
    - ``"langevin"``: :math:`L \sqrt{2 \tau / \alpha_t} / C`, under which the weights move by
      :math:`\mathcal{N}(0, 2 \alpha_t \tau)` a step, as a sampler of the posterior tempered
      by :math:`\tau` needs. The energy is the mean loss or, with ``records`` = N declared,
      the total loss: then :math:`w \leftarrow w - \alpha_t N g` and the multiplier is
      :math:`L / N` times :math:`\sqrt{2 \tau / \alpha_t} / C`.

    Parameters
    ----------
    rate : float > 0 or Schedule
        The learning rate :math:`\alpha_t`.
    temperature : float > 0
        The temperature :math:`\tau`.
    mode : {"mean", "sum", "langevin"}
    pre_noise : float >= 0
        Standard deviation of noise on each gradient *before* it is clipped, which whoever
        computes the gradients adds (:func:`veracal.mechanisms.pre_noised`). It earns no
        privacy.
    records : int, optional
        Declared number of records, for the total loss in mode ``"langevin"``.

    Guarantees
    ----------
    The cost of a descent is computed from the noise multipliers that this record states, and
    the same numbers set the noise.
    """

    rate: float | Schedule
    temperature: float
    mode: Mode = "mean"
    pre_noise: float = 0.0
    records: int | None = None

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        _checks.positive(temperature=self.temperature)
        _checks.one_of(MODES, mode=self.mode)
        if self.pre_noise != 0:
            _checks.positive(pre_noise=self.pre_noise)
        if self.records is None:
            return
        _checks.whole(records=self.records)
        if self.mode != "langevin":
            raise ValueError(
                f"Expected records only in mode 'langevin', got mode={self.mode!r}."
            )

    def noise_multipliers(self, steps: int, expected_batch: float, bound: float) -> Floats:
        """Noise multiplier of each step: noise on the clipped sum, divided by the bound."""
        rates = values(self.rate, steps)
        if self.mode == "langevin":
            spread = np.sqrt(2 * self.temperature / rates) / bound
            factor = expected_batch / (self.records or 1)
        else:
            spread = np.sqrt(2 * self.temperature * rates)
            factor = expected_batch if self.mode == "mean" else 1.0
        return np.asarray(factor * spread)

    def start(self, weights: Any) -> None:
        """Remember nothing."""

    def step(self, weights: Any, gradient: Any, state: None, t: int) -> tuple[Any, None]:
        """Go down the gradient of the energy."""
        energy = (self.records or 1) * gradient
        return weights - value_at(self.rate, t) * energy, None

    def part(self, start: int, end: int) -> "Langevin":
        """The same for every weight."""
        return self


def _check_rate(rate: object) -> None:
    """Refuse a learning rate that is neither a positive number nor a schedule."""
    if not isinstance(rate, Schedule):
        _checks.positive(rate=rate)  # type: ignore[arg-type]


def _check_below_one(**numbers: float) -> None:
    """Raise unless every value is in [0, 1)."""
    _checks.fraction(**numbers)
    for name, number in numbers.items():
        if math.isclose(number, 1, rel_tol=0, abs_tol=0):
            raise ValueError(f"Expected {name} below 1, got {name}={number!r}.")
