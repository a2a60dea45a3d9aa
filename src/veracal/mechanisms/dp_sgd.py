"""DP-SGD: the training loop that private estimators and private recalibration share.

Noise for later steps is drawn on a second thread while the current step is computed, and
optimizer steps on very many weights can be taken in place, in chunks.
"""

import math
import operator
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from veracal import _checks, _random
from veracal._types import Array, Floats, Ints
from veracal.accounting import RELATIONS, Composed, Event, Relation, Repeated
from veracal.mechanisms.clipping import ClippedSum, ClipRule, GlobalAdapt
from veracal.mechanisms.optimizers import (
    ElementwiseOptimizer,
    Langevin,
    Optimizer,
    Schedule,
    group_noise_levels,
    values,
)
from veracal.mechanisms.sampling import Sampler

_MIN_THREADED = 4_096  # entries per step below which a second thread costs more than it saves
_ENTRIES_PER_DRAW = 1 << 20  # drawn in one call, since waking a thread is expensive
_STEPS_PER_DRAW = 64  # maximum number of steps per call
_CHUNK = 1 << 18  # entries per call, if one step has more than _ENTRIES_PER_DRAW
_PREFETCHED_CHUNKS = 9  # drawn ahead; those of a whole step take too much memory
_PREFETCHED_DRAWS = 2  # the same for draws of whole steps


class PrefetchedNoise:
    r"""Standard normal noise for successive steps, drawn ahead on a second thread.

    Normals are rounded to multiples of :math:`2^{-m}` and stored as integers, which are added
    to sums in units of :math:`2^{-m}` standard deviations.

    Drawing secret normals takes as long as computing the gradient of a linear model, and numpy
    releases the interpreter lock while it draws. The numbers are those that the generator would
    give without prefetching, in the same order.

    Parameters
    ----------
    shape : tuple of int
        Shape of the noise of one step.
    steps : int
        Number of steps; no more noise is drawn.
    rng : Generator
        Must not be used elsewhere.
    digits : int
        Binary digits m of a normal after the point.
    overwrite : bool
        Whether noise is added to sums in place.

    Guarantees
    ----------
    No number is returned twice, also not in a forked child, and noise drawn for steps that are
    not taken is discarded. A noisy sum is a function of an integer, the rounded sum plus the
    rounded noise, so its low-order bits reveal no more than that integer.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        steps: int,
        rng: np.random.Generator,
        *,
        digits: int = 30,
        overwrite: bool = False,
    ) -> None:
        self._shape, self._steps, self._rng = shape, steps, rng
        self._scale, self._overwrite = 2.0**digits, overwrite
        self._process = os.getpid()
        entries = math.prod(shape)
        self._threaded = entries >= _MIN_THREADED and steps > 1
        # Chunks of the noise of each step; a single one if there are few entries.
        size = _CHUNK if entries > _ENTRIES_PER_DRAW else max(1, entries)
        starts = range(0, max(1, entries), size)
        self._chunks = [slice(start, min(start + size, entries)) for start in starts]
        self._shapes = self._plan_draws()
        self._drawn: Iterator[Array] = iter(())  # one array of several steps
        self._pool: ThreadPoolExecutor | None = None
        self._pending: deque[Future[Array]] = deque()

    def _plan_draws(self) -> Iterator[tuple[int, ...]]:
        """Yield the shapes of all draws.

        With a second thread the number of steps per draw starts at one and doubles, so that the
        first step waits for its own noise only.
        """
        if len(self._chunks) > 1:
            for _ in range(self._steps):
                yield from ((1, chunk.stop - chunk.start) for chunk in self._chunks)
            return
        most = max(1, _ENTRIES_PER_DRAW // max(1, math.prod(self._shape)))
        most, remaining = min(_STEPS_PER_DRAW, most), self._steps
        count = 1 if self._threaded else most
        while remaining > 0:
            count = min(remaining, count, most)
            yield count, *self._shape
            remaining, count = remaining - count, 2 * count

    @contextmanager
    def drawing(self) -> Iterator["PrefetchedNoise"]:
        """Draw on a second thread for the duration of the block."""
        if not self._threaded:
            yield self
            return
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="noise")
        try:
            self._prefetch()
            yield self
        finally:
            self._pool.shutdown(cancel_futures=True)

    def _prefetch(self) -> None:
        """Have the other thread draw the noise of later steps."""
        assert self._pool is not None, "noise is drawn ahead in a drawing() block only"
        most = _PREFETCHED_DRAWS if len(self._chunks) == 1 else _PREFETCHED_CHUNKS
        while len(self._pending) <= most and (shape := next(self._shapes, None)) is not None:
            self._pending.append(self._pool.submit(self._draw, shape))

    def units(self) -> Array:
        """Noise of the next step, in units of 2^-digits standard deviations."""
        if len(self._chunks) == 1:
            return self._take().copy()  # its base holds the noise of later steps
        noise = np.empty(self._shape)
        flat = noise.reshape(-1)
        for chunk in self._chunks:
            flat[chunk] = self._take()
        return noise

    def add_to(self, total: Array, std: float) -> Array:
        """Add the noise of the next step to a sum, in place if ``overwrite`` was set."""
        step = std / self._scale
        if not (self._overwrite and total.flags.c_contiguous and total.flags.writeable):
            noisy: Array = np.asarray(total * (1 / step))
            np.rint(noisy, out=noisy)
            noisy += self._take() if len(self._chunks) == 1 else self.units()
            noisy *= step
            return noisy
        assert total.shape == self._shape, "noise was planned for another shape"
        flat = total.reshape(-1)
        for chunk in self._chunks:
            view = flat[chunk]
            view *= 1 / step
            np.rint(view, out=view)
            view += self._take().reshape(-1)
            view *= step
        return total

    def _take(self) -> Array:
        """Rounded normals of the next step, or of its next chunk."""
        if os.getpid() != self._process:
            # The parent process uses the noise that has been drawn.
            raise RuntimeError("Expected no fork within a step; noise is not shared.")
        noise = next(self._drawn, None)
        if noise is None:
            self._drawn = iter(self._next())
            noise = next(self._drawn)
        return noise

    def _next(self) -> Array:
        """The next array of normals, with one row per step or a single row for a chunk."""
        if not self._threaded:
            return self._draw(next(self._shapes, (1, *self._shape)))
        self._prefetch()
        return self._pending.popleft().result()

    def _draw(self, shape: tuple[int, ...]) -> Array:
        """Draw rounded normals."""
        noise: Array = self._rng.standard_normal(shape)
        noise *= self._scale
        return np.rint(noise, out=noise)


_STEP_CHUNK = 1 << 16  # weights per chunk of an in-place step; temporaries then fit the cache


def step_in_place(
    optimizer: Optimizer,
    weights: Floats,
    noisy_sum: Floats,
    gradient: Callable[[Floats, Floats], Floats],
    state: Any,
    t: int,
) -> Any:
    """Take an optimizer step, overwrite the weights and return the new state.

    The numbers are those of ``optimizer.step``. An :class:`ElementwiseOptimizer` processes the
    weights in chunks, so that no temporary array has the size of all weights, and its state is
    overwritten, too; its arrays must be writable and share no memory.

    Parameters
    ----------
    weights, noisy_sum : arrays of shape (n,)
    gradient : callable
        Computes the gradient from some entries of the sum and their weights.
    """
    if not isinstance(optimizer, ElementwiseOptimizer):  # its state may have any form
        whole = gradient(noisy_sum, weights)
        new_weights, state = optimizer.step(weights.copy(), whole, state, t)
        weights[...] = new_weights
        return state
    for start in range(0, len(weights), _STEP_CHUNK):
        chunk = slice(start, min(start + _STEP_CHUNK, len(weights)))
        old_state = _map_arrays(operator.itemgetter(chunk), state)
        new_weights, new_state = optimizer.part(chunk.start, chunk.stop).step(
            weights[chunk], gradient(noisy_sum[chunk], weights[chunk]), old_state, t
        )
        targets = (weights[chunk], *_state_arrays(old_state))
        # An optimizer may return its arguments, in any order: copy before overwriting.
        values = [
            np.array(one) if any(np.may_share_memory(one, to) for to in targets) else one
            for one in (new_weights, *_state_arrays(new_state))
        ]
        for target, value in zip(targets, values, strict=True):
            target[...] = value
    return state


def _state_arrays(state: Any) -> tuple[Any, ...]:
    """The arrays of an optimizer's state."""
    if state is None:
        return ()
    return tuple(state) if isinstance(state, tuple) else (state,)


def _map_arrays(function: Callable[[Any], Any], state: Any) -> Any:
    """Apply a function to every array of an optimizer's state."""
    if isinstance(state, tuple):
        arrays = [function(one) for one in state]
        return tuple(arrays) if type(state) is tuple else type(state)(*arrays)
    return function(state) if isinstance(state, np.ndarray) else state


ClippedSumOf = Callable[[Any, Ints, ClipRule], ClippedSum]
_ROUNDING_DIGITS = 22  # binary digits of the clip bound to which sums are rounded
_MIN_DIGITS, _MAX_DIGITS = 24, 48  # of the noise after the point, so that integers are exact


@dataclass(frozen=True, eq=False)
class Step:
    """The release of one training step, covered by the event of the training.

    ``weights``, ``clip`` and ``state`` (the optimizer's) are those of the next step.
    """

    number: int  # from 0
    noisy_sum: Any  # the clipped sum with its noise, in float64
    weights: Any
    clip: ClipRule
    state: Any = None

    @property
    def training_state(self) -> "TrainingState":
        """The state from which training can resume after this step."""
        return TrainingState(self.number + 1, self.weights, self.state, self.clip)


@dataclass(frozen=True, eq=False)
class TrainingState:
    """The state of training between two steps, from which it can resume.

    It contains no generator: resumed training draws new batches and new noise.
    """

    steps: int  # taken so far
    weights: Any
    state: Any  # the optimizer's
    clip: ClipRule  # of the next step


@dataclass(frozen=True, eq=False)
class TrainingResult:
    """The result of training.

    Attributes
    ----------
    event : Event
        The cost, as announced.
    steps : int
        Number of steps taken: all that were planned, unless ``on_step`` stopped the training.
    private : bool
        Whether the random draws are secret. False after a run with a generator that the caller
        passed, whose seed may be known: the event then guarantees nothing.
    """

    weights: Any
    event: Event
    steps: int
    private: bool


@dataclass(frozen=True)
class DPSGD:
    r"""DP-SGD: settings of private training, whose cost is known before a record is read.

    At step t a batch is drawn, its gradients are clipped and summed, and the optimizer uses

    .. math:: \tilde g = \frac{1}{B} \left( \sum_{i \in \text{batch}} c_i g_i
        + \mathcal{N}(0, \sigma_t^2 C^2 I) \right)

    (Abadi et al. 2016, Algorithm 1, with Poisson batches). A step is taken for an empty batch,
    too.

    Parameters
    ----------
    sampler : Poisson or FullBatch
    clip : ClipRule
        Its bound is C.
    optimizer : Optimizer
    noise_multiplier : float > 0, Schedule or None
        The multiplier :math:`\sigma_t`, the same under both relations. None if the optimizer,
        :class:`Langevin`, sets it.
    steps : int
    expected_batch : float > 0
        The divisor B. It is declared: neither the size of a batch nor the number of records
        may be used here.
    relation : {"add-remove", "replace-one"}
    weight_decay : float >= 0
        This factor times the weights is added to the gradient. It is the gradient of a
        penalty, which depends on no record.

    Examples
    --------
    >>> from veracal.mechanisms.clipping import Flat, clipped_sum
    >>> from veracal.mechanisms.sampling import FullBatch
    >>> from veracal.mechanisms.optimizers import SGD
    >>> training = DPSGD(FullBatch(), Flat(1.0), SGD(0.1), 5.0, steps=10, expected_batch=50)
    >>> training.event()
    Repeated(event=Gaussian(noise=5.0, sensitivity=1.0, relation='add-remove'), times=10)
    """

    sampler: Sampler
    clip: ClipRule
    optimizer: Optimizer
    noise_multiplier: float | Schedule | None
    steps: int
    expected_batch: float
    relation: Relation = "add-remove"
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _checks.whole(steps=self.steps)
        _checks.positive(expected_batch=self.expected_batch)
        _checks.one_of(RELATIONS, relation=self.relation)
        for name, kind in (("sampler", Sampler), ("clip", ClipRule)):
            if not isinstance(part := getattr(self, name), kind):
                raise ValueError(
                    f"Expected a {name} of veracal.mechanisms, whose cost is known, got {part!r}."
                )
        if not isinstance(self.optimizer, Optimizer):
            raise ValueError(
                f"Expected an optimizer with start and step, got {self.optimizer!r}."
            )
        _checks.positive(bound=self.clip.bound)
        _checks.nonnegative(weight_decay=self.weight_decay)
        if (self.noise_multiplier is None) != isinstance(self.optimizer, Langevin):
            raise ValueError(
                "Expected noise_multiplier=None if and only if the optimizer is Langevin, "
                f"which sets the noise, got noise_multiplier={self.noise_multiplier!r} with "
                f"{type(self.optimizer).__name__}."
            )
        # Evaluated once, so that the charge and the noise are computed from the same numbers.
        if isinstance(self.optimizer, Langevin):
            multipliers = self.optimizer.noise_multipliers(
                int(self.steps), self.expected_batch, self.clip.bound
            )
        else:
            noise = self.noise_multiplier
            if not isinstance(noise, Schedule):
                _checks.positive(noise_multiplier=noise)  # type: ignore[arg-type]
            multipliers = values(noise, int(self.steps))  # type: ignore[arg-type]
        if not (np.isfinite(multipliers) & (multipliers > 0)).all():
            step = int(np.argmin(multipliers))
            raise ValueError(
                "Expected a finite noise multiplier > 0 at every step, got "
                f"{float(multipliers[step])!r} at step {step}."
            )
        multipliers.setflags(write=False)
        object.__setattr__(self, "_multipliers", multipliers)

    def noise_multipliers(self) -> Floats:
        """Noise on the clipped sum divided by the bound, for each step."""
        multipliers: Floats = self.__dict__["_multipliers"]
        return multipliers

    def event(self) -> Event:
        """Cost of one run, known before any record is read.

        Varying noise is grouped into at most 64 levels, each charged as its least noisy step.
        An adaptive clip rule is charged together with the gradients, since its count is taken
        over the same batch.
        """
        events = tuple(
            Repeated(self._step_event(multiplier), times)
            for multiplier, times in group_noise_levels(self.noise_multipliers())
        )
        return events[0] if len(events) == 1 else Composed(events)

    def run(
        self,
        weights: Any,
        clipped_sum_of: ClippedSumOf,
        records: int,
        *,
        rng: np.random.Generator | None = None,
        on_step: Callable[[Step], bool | None] | None = None,
        start: TrainingState | None = None,
        in_place: bool = False,
        call_if_empty: bool = False,
    ) -> TrainingResult:
        """Train.

        Parameters
        ----------
        weights : array
            Initial weights, from public knowledge or fresh randomness.
        clipped_sum_of : callable
            ``clipped_sum_of(weights, rows, clip)`` computes the :class:`ClippedSum` over the
            records whose indices are in ``rows``, in the shape of the weights. It reads no
            other record, and is not called for an empty batch unless ``call_if_empty`` is set.
            A sum that is not finite raises an error, since no noise could hide it.
        records : int
            Number of records, for the sampler alone.
        rng : Generator, optional
            Source of batches and noise; by default fresh secret entropy. With any other choice
            the event guarantees nothing.
        on_step : callable, optional
            Called after each step with a :class:`Step`. If it returns True, the run stops; the
            event is unchanged.
        start : TrainingState, optional
            State of an earlier, interrupted run, used instead of ``weights``. Later steps of
            that run are lost and taken again with new batches and new noise. If none of their
            results were released, both runs together cost as much as one.
        in_place : bool
            Overwrite the weights (also those of ``start``), the optimizer's state and the sums
            from ``clipped_sum_of``, which must be new arrays at each step. The numbers are the
            same; a :class:`Step` is valid until the next one. For very large weight vectors.
        call_if_empty : bool
            Whether ``clipped_sum_of`` is called for an empty batch, because it adds sums that
            were computed elsewhere.

        Guarantees
        ----------
        If the sums from ``clipped_sum_of`` respect ``clip.bound``, the noisy sums, and
        therefore all weights, cost at most :meth:`event`, in real arithmetic. The float64 sum
        and its noise are both rounded to a public grid and then added as integers, so that the
        set of possible sums is the same for neighbors. The noise is a rounded float64 normal in
        place of a rounded real one. Only noisy values are rounded to the type of the weights.
        """
        _checks.whole(records=records, least=0)
        rng = _random.secret_generator() if rng is None else rng
        if not isinstance(rng, np.random.Generator):
            raise ValueError(f"Expected rng to be a numpy Generator or None, got {rng!r}.")
        # Separate streams, so that the noise does not depend on the sizes of the batches.
        batch_rng, noise_rng, count_rng = rng.spawn(3)
        if start is None:
            start = TrainingState(0, weights, self.optimizer.start(weights), self.clip)
        weights, state, clip = start.weights, start.state, start.clip
        t, multipliers = start.steps - 1, self.noise_multipliers()[start.steps :]
        if in_place:
            vector = isinstance(weights, np.ndarray) and weights.ndim == 1
            if not vector or not weights.flags.writeable:
                raise ValueError(
                    "Expected a writable numpy vector for in_place=True, got "
                    f"{type(weights).__name__} of shape {tuple(getattr(weights, 'shape', ()))}."
                )
            seen: list[Any] = [weights]

            def copy_if_shared(array: Any) -> Any:
                shared = any(np.shares_memory(array, other) for other in seen)
                seen.append(array)
                return np.array(array) if shared or not array.flags.writeable else array

            state = _map_arrays(copy_if_shared, state)
        shape = tuple(weights.shape)
        digits = self._digits(math.prod(shape))
        prefetched = PrefetchedNoise(
            shape, len(multipliers), noise_rng, digits=digits, overwrite=in_place
        )
        with prefetched.drawing() as noise:
            for t, multiplier in enumerate(multipliers, start.steps):
                rows = self.sampler.batch(records, batch_rng)
                function = clipped_sum_of if len(rows) or call_if_empty else None
                clipped = self._clipped(weights, rows, clip, function)
                noisy = self._add_noise(clipped.total, multiplier * clip.bound, noise)
                if in_place:
                    state = step_in_place(
                        self.optimizer, weights, noisy, self._gradient, state, t
                    )
                else:
                    gradient = self._gradient(noisy, weights)
                    weights, state = self.optimizer.step(weights, gradient, state, t)
                clip = self._next_clip(clip, clipped.exceeding, count_rng)
                step = Step(t, noisy, weights, clip, state)
                # Only a bool ends the run; other truthy objects do not count.
                stop = None if on_step is None else on_step(step)
                if isinstance(stop, bool | np.bool_) and stop:
                    break
                del clipped, noisy, step  # free memory before the next sum
        return TrainingResult(weights, self.event(), t + 1, _random.is_secret(rng))

    def _step_event(self, multiplier: float) -> Event:
        """Cost of one step."""
        bound = float(self.clip.bound)
        if isinstance(self.clip, GlobalAdapt):
            multiplier = self.clip.combined_noise_multiplier(multiplier)
        return self.sampler.event(multiplier * bound, bound, self.relation)

    def _clipped(
        self, weights: Any, rows: Ints, clip: ClipRule, clipped_sum_of: ClippedSumOf | None
    ) -> ClippedSum:
        """The clipped sum over a batch, in float64; zero if there is no function."""
        xp = array_namespace(weights)
        if clipped_sum_of is None:
            return ClippedSum(xp.zeros(tuple(weights.shape), dtype=xp.float64))
        clipped = clipped_sum_of(weights, rows, clip)
        total = xp.astype(xp.asarray(clipped.total), xp.float64, copy=False)
        # The sum of squares is twice as fast, but may overflow although all is finite.
        finite = isinstance(total, np.ndarray) and math.isfinite(np.vdot(total, total))
        finite = finite or bool(xp.all(xp.isfinite(total)))
        if tuple(total.shape) != tuple(weights.shape) or not finite:
            raise ValueError(
                f"Expected a finite clipped sum of shape {tuple(weights.shape)}, got one of "
                f"shape {tuple(total.shape)}, or one with NaN or infinity. Sum with "
                "veracal.mechanisms.clipped_sum, or drop the examples that select_and_scale "
                "does not keep."
            )
        return ClippedSum(total, clipped.exceeding)

    def _add_noise(self, total: Any, noise_std: float, noise: PrefetchedNoise) -> Any:
        """Add noise to the sum, both rounded to the public grid."""
        if isinstance(total, np.ndarray):
            return noise.add_to(total, noise_std)
        xp = array_namespace(total)
        step = noise_std * 2.0 ** -self._digits(math.prod(total.shape))
        return (xp.round(total / step) + xp.asarray(noise.units())) * step

    def _digits(self, entries: int) -> int:
        r"""Binary digits of the noise after the point, for a sum of so many entries.

        With m digits the grid of the sum and of its noise has a step of
        :math:`2^{-m}\sigma C`. Rounding n entries increases the distance of two neighboring
        sums by at most :math:`\sqrt n` steps, and m is chosen so that this is at most
        :math:`2^{-22} C` at the largest :math:`\sigma` of all steps: a quarter of the margin of
        :math:`10^{-6} C` that every clip rule leaves for rounding.
        """
        largest = float(self.noise_multipliers().max())
        digits = _ROUNDING_DIGITS + math.frexp(largest * math.sqrt(max(1, entries)))[1]
        if digits > _MAX_DIGITS:
            raise ValueError(
                "Expected the largest noise multiplier times the square root of the number of "
                f"weights to be below {2.0 ** (_MAX_DIGITS - _ROUNDING_DIGITS):.3g}, got "
                f"{largest!r} with {entries} weights: float64 has no "
                "finer grid for that much noise."
            )
        return max(_MIN_DIGITS, digits)

    def _gradient(self, noisy: Any, weights: Any) -> Any:
        """The gradient for the optimizer: the noisy sum over the declared batch size."""
        xp = array_namespace(weights)
        if isinstance(noisy, np.ndarray):  # in one pass, without a copy in float64
            gradient = np.empty(weights.shape, weights.dtype)
            np.multiply(noisy, 1 / self.expected_batch, out=gradient, casting="same_kind")
        else:
            gradient = xp.astype(noisy / self.expected_batch, weights.dtype, copy=False)
        return gradient + self.weight_decay * weights if self.weight_decay else gradient

    def _next_clip(self, clip: ClipRule, exceeding: int, rng: np.random.Generator) -> ClipRule:
        """The clip rule of the next step."""
        if not isinstance(clip, GlobalAdapt):
            return clip
        # The count is an integer, and its noise is rounded to a grid that contains the
        # integers.
        step = math.ldexp(1.0, min(0, math.frexp(clip.count_noise)[1] - _ROUNDING_DIGITS))
        noise = float(np.rint(rng.normal(0.0, clip.count_noise) / step) * step)
        return clip.adapt((exceeding + noise) / self.expected_batch)
