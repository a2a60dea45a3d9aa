"""Noise for coming steps, drawn while the present one is computed.

Steps of very many weights, a piece at a time and in their place.

Noisy gradient descent: the loop that training and recalibration share.
"""

import math
import operator
import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Protocol, runtime_checkable

import numpy as np
from array_api_compat import array_namespace

from veracal import _checks, _random
from veracal._types import Array, Floats, Ints
from veracal.accounting import RELATIONS, Composed, Event, Relation, Repeated
from veracal.mechanisms.clipping import Clipped, ClipRule, GlobalAdapt
from veracal.mechanisms.optimizers import Langevin, Schedule, Update, levels, values
from veracal.mechanisms.sampling import Sampler

_LEAST = 4_096  # entries of a step below which a second thread costs more than it saves
_DRAWN = 1 << 20  # entries that are drawn together: to wake a thread is dear
_MOST = 64  # steps that are drawn for together
_PIECE = 1 << 18  # entries of a piece, where one step has more than are drawn together
_STOCK = 8  # pieces that are kept in stock: those of a whole step would take much room
_WAIT = 0.5  # seconds between two looks at whether the other thread lives


class PrefetchedNoise:
    r"""The normals of one generator, step after step, drawn ahead on a second thread.

    They are rounded to multiples of :math:`2^{-m}` and kept as integers, which are added to
    sums in units of :math:`2^{-m}` standard deviations.

    Secret normals take as long to draw as the gradient of a linear model takes to compute,
    and numpy lets go of the interpreter while it draws. Whoever takes the noise gets what the
    generator would have given: number by number the same stream, however it is cut.

    Parameters
    ----------
    shape : tuple of int
        Of the noise of one step.
    steps : int
        How many steps there will be; no more is drawn.
    rng : Generator
        Nobody else may draw from it.
    digits : int
        Binary digits m that normals keep after the point.
    overwrite : bool
        Whether noise is added to sums in their place.

    Guarantees
    ----------
    No number is given out twice, not to a forked child either, and what was drawn for steps
    that do not come is forgotten. A noisy sum is a function of an integer, the sum of the
    rounded sum and the rounded noise: its low-order bits show no more than that integer does.
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
        self._scale = 2.0**digits
        self._shape, self._process = shape, os.getpid()
        entries = int(np.prod(shape, dtype=np.int64))
        self._together = min(_MOST, max(1, _DRAWN // max(1, entries)))
        self._rng = rng
        self._stock: Iterator[Array] = iter(())  # one array of several steps
        self._threaded = entries >= _LEAST and steps > 1
        # Pieces of the noise of each step; a single one if there are few entries.
        cut = _PIECE if entries > _DRAWN else max(1, entries)
        self._pieces = [slice(i, min(i + cut, entries)) for i in range(0, entries, cut)] or [
            slice(0, 0)
        ]
        self._plan = self._planned(steps)
        self._overwrite = overwrite
        stock = 1 if len(self._pieces) == 1 else _STOCK
        self._drawn: queue.Queue[Array | BaseException] = queue.Queue(maxsize=stock)
        self._over = threading.Event()
        self._worker = threading.Thread(target=self._work, name="noise", daemon=True)

    def units(self) -> Array:
        """Noise of the next step, in units of 2^-digits standard deviations."""
        if len(self._pieces) == 1:
            return self._taken().copy()  # a step must not show the next one's
        many = np.empty(self._shape)
        flat = many.reshape(-1)
        for piece in self._pieces:
            flat[piece] = self._taken()
        return many

    def onto(self, total: Array, std: float) -> Array:
        """A sum with the noise of the next step, in its place where that was announced."""
        step = std / self._scale
        if not (self._overwrite and total.flags.c_contiguous and total.flags.writeable):
            noisy: Array = np.asarray(total * (1 / step))
            np.rint(noisy, out=noisy)
            noisy += self._taken() if len(self._pieces) == 1 else self.units()
            noisy *= step
            return noisy
        assert total.shape == self._shape, "noise was announced for another shape"
        flat = total.reshape(-1)
        for piece in self._pieces:
            part = flat[piece]
            part *= 1 / step
            np.rint(part, out=part)
            part += self._taken().reshape(-1)
            part *= step
        return total

    def _taken(self) -> Array:
        """Rounded normals of the next step, or of the next piece of it."""
        if os.getpid() != self._process:
            # What is in stock would hide the steps of the parent, too.
            raise RuntimeError("Expected no fork within a step; noise is not shared.")
        noise = next(self._stock, None)
        if noise is None:
            self._stock = iter(self._next())
            noise = next(self._stock)
        return noise

    def _next(self) -> Array:
        """Normals of several steps, or of one piece, in an array of one row for each."""
        if not self._threaded:
            return self._draw(next(self._plan, (1, *self._shape)))
        while True:
            try:
                drawn = self._drawn.get(timeout=_WAIT)
            except queue.Empty:
                assert self._worker.is_alive(), "the thread that draws the noise is gone"
                continue
            if isinstance(drawn, BaseException):
                raise drawn
            return drawn

    def _draw(self, shape: tuple[int, ...]) -> Array:
        """Rounded normals."""
        drawn: Array = self._rng.standard_normal(shape)
        drawn *= self._scale
        return np.rint(drawn, out=drawn)

    def _planned(self, steps: int) -> Iterator[tuple[int, ...]]:
        """Shapes of what is drawn in one call, in which each waits for the other thread twice.

        The first step need not wait for many to be drawn.
        """
        if len(self._pieces) > 1:
            for piece in chain.from_iterable(repeat(self._pieces, steps)):
                yield 1, piece.stop - piece.start
        now = 1 if self._threaded else self._together
        while len(self._pieces) == 1 and steps > 0:
            now = min(steps, now, self._together)
            yield now, *self._shape
            steps, now = steps - now, 2 * now

    def _work(self) -> None:
        """Draw until all is drawn or nobody wants more."""
        try:
            for shape in self._plan:
                if self._over.is_set():
                    return
                self._give(self._draw(shape))
        except BaseException as problem:  # the other thread is the one to stop
            self._give(problem)

    def _give(self, drawn: Array | BaseException) -> None:
        """Hand over, unless nobody wants more."""
        while not self._over.is_set():
            try:
                return self._drawn.put(drawn, timeout=_WAIT)
            except queue.Full:
                continue

    @contextmanager
    def drawing(self) -> Iterator["PrefetchedNoise"]:
        """Draw for as long as the block runs."""
        if self._threaded:
            self._worker.start()
        try:
            yield self
        finally:
            self._over.set()
            if self._threaded:
                _emptied(self._drawn)  # so that the worker need not wait for room
                self._worker.join()


def _emptied(drawn: "queue.Queue[Array | BaseException]") -> None:
    """Take out what is left."""
    while True:
        try:
            drawn.get_nowait()
        except queue.Empty:
            return


_STEP_PIECE = (
    1 << 16
)  # weights of a piece: with all that a rule computes of them, they stay near


@runtime_checkable
class Entrywise(Update, Protocol):
    """An update rule under which every weight follows its own gradient alone.

    What it remembers is nothing, an array of the shape of the weights, or a tuple of such.
    """

    def part(self, start: int, end: int) -> Update:
        """The rule for some of the weights: those from ``start`` to before ``end``."""


def own(state: Any, weights: Floats) -> Any:
    """What a rule remembers, in arrays of its own: each may be written over by itself."""
    seen: list[Any] = [weights]

    def apart(one: Any) -> Any:
        kept = any(np.shares_memory(one, other) for other in seen)
        seen.append(one)
        return np.array(one) if kept or not one.flags.writeable else one

    return _mapped(apart, state)


def step_in_place(
    update: Update,
    weights: Floats,
    gradient: Callable[[slice], Floats],
    state: Any,
    t: int,
) -> Any:
    """Let weights follow their gradient, and write over them.

    The numbers are those of ``update.step``. An :class:`Entrywise` rule takes some weights at
    a time, so that nothing of the size of all of them is made beside; what it remembers is
    written over, too.

    Parameters
    ----------
    update : Update
    weights : array of shape (n,)
    gradient : callable
        Gives the gradient of some of the weights.
    state : object
        What the rule remembers, by :func:`own`.
    t : int
        The step.

    Returns
    -------
    object
        What the rule remembers now.
    """
    if not isinstance(update, Entrywise):  # of which nobody knows what it remembers
        moved, state = update.step(weights.copy(), gradient(slice(None)), state, t)
        weights[...] = moved
        return state
    for at in _spans(len(weights)):
        rule = update.part(at.start, at.stop)
        some = _mapped(operator.itemgetter(at), state)
        moved, after = rule.step(weights[at], gradient(at), some, t)
        old = (weights[at], *_leaves(some))
        new = [_apart(one, old) for one in (moved, *_leaves(after))]
        for place, changed in zip(old, new, strict=True):
            place[...] = changed
    return state


def _apart(array: Floats, others: tuple[Floats, ...]) -> Floats:
    """An array, copied if it lies where another is: a rule may give back what it was given."""
    shared = any(np.may_share_memory(array, other) for other in others)
    return np.array(array) if shared else array


def _spans(size: int) -> Iterator[slice]:
    """Pieces of a vector."""
    return (slice(i, min(i + _STEP_PIECE, size)) for i in range(0, size, _STEP_PIECE))


def _leaves(state: Any) -> tuple[Any, ...]:
    """The arrays of what a rule remembers."""
    if state is None:
        return ()
    return tuple(state) if isinstance(state, tuple) else (state,)


def _mapped(change: Callable[[Any], Any], state: Any) -> Any:
    """The same with every array changed."""
    if isinstance(state, tuple):
        made = [change(one) for one in state]
        return tuple(made) if type(state) is tuple else type(state)(*made)
    return change(state) if isinstance(state, np.ndarray) else state


ClippedSumOf = Callable[[Any, Ints, ClipRule], Clipped]
_FINE = 22  # binary digits of the bound to which sums are rounded
_LEAST_DIGITS, _MOST_DIGITS = 24, 48  # that normal noise keeps, so that integers are exact


@dataclass(frozen=True, eq=False)
class Step:
    """What one step released; all of it is covered by the event of the descent.

    Attributes
    ----------
    number : int
        The step, from 0.
    noisy_sum : array
        The clipped sum with its noise, in float64.
    weights : array
        The weights after the step.
    clip : Clip
        The rule of the next step.
    state : object
        What the update rule remembers.
    """

    number: int
    noisy_sum: Any
    weights: Any
    clip: ClipRule
    state: Any = None

    @property
    def standing(self) -> "TrainingState":
        """From where a descent can go on after this step."""
        return TrainingState(self.number + 1, self.weights, self.state, self.clip)


@dataclass(frozen=True, eq=False)
class TrainingState:
    """Where a descent stands between two steps: all that it takes to go on.

    No generator is among it: whoever goes on draws batches and noise anew.

    Attributes
    ----------
    steps : int
        Steps that were taken.
    weights : array
    state : object
        What the update rule remembers.
    clip : Clip
        The rule of the next step.
    """

    steps: int
    weights: Any
    state: Any
    clip: ClipRule


@dataclass(frozen=True, eq=False)
class TrainingResult:
    """Where a descent ended.

    Attributes
    ----------
    weights : array
    event : Event
        What it cost, as announced.
    steps : int
        How many steps were taken: all that were announced, unless ``on_step`` ended it.
    private : bool
        Whether nobody can repeat its random draws. False after a run with a generator of
        the caller's, whose seed somebody may know: the event then promises nothing.
    """

    weights: Any
    event: Event
    steps: int
    private: bool


@dataclass(frozen=True)
class DPSGD:
    r"""A noisy gradient descent, settled and priced before a record is read.

    At step t a batch is drawn, its gradients are clipped and summed, and the weights follow

    .. math:: \tilde g = \frac{1}{B} \left( \sum_{i \in \text{batch}} c_i g_i
        + \mathcal{N}(0, \sigma_t^2 C^2 I) \right)

    (Abadi et al. 2016, Algorithm 1, with Poisson batches). An empty batch steps too.

    Parameters
    ----------
    sampler : Poisson or FullBatch
    clip : Clip
        Its bound is C.
    update : Update
    noise_multiplier : float > 0, Schedule or None
        The multiplier :math:`\sigma_t`, the same under both relations. None where the update
        rule, :class:`Langevin`, sets it.
    steps : int
    expected_batch : float > 0
        The divisor B. It is declared: neither the size of a batch nor the number of records
        may be read here.
    relation : {"add-remove", "replace-one"}
        The relation the event is stated for.
    weight_decay : float >= 0
        The weights times this is added to what the update follows: the gradient of a
        penalty, which knows no record.

    Examples
    --------
    >>> from veracal.mechanisms.clipping import Flat, clipped_sum
    >>> from veracal.mechanisms.sampling import FullBatch
    >>> from veracal.mechanisms.optimizers import SGD
    >>> descent = DPSGD(FullBatch(), Flat(1.0), SGD(0.1), 5.0, steps=10, expected_batch=50)
    >>> descent.event()
    Repeated(event=Gaussian(noise=5.0, sensitivity=1.0, relation='add-remove'), times=10)
    """

    sampler: Sampler
    clip: ClipRule
    update: Update
    noise_multiplier: float | Schedule | None
    steps: int
    expected_batch: float
    relation: Relation = "add-remove"
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _checks.whole(steps=self.steps)
        _checks.positive(expected_batch=self.expected_batch)
        _checks.one_of(RELATIONS, relation=self.relation)
        _check_parts(self.sampler, self.clip, self.update)
        _checks.positive(bound=self.clip.bound)
        if self.weight_decay != 0:
            _checks.positive(weight_decay=self.weight_decay)
        if (self.noise_multiplier is None) != isinstance(self.update, Langevin):
            raise ValueError(
                "Expected noise_multiplier=None exactly where the update is Langevin, which "
                f"sets the noise itself, got noise_multiplier={self.noise_multiplier!r} with "
                f"{type(self.update).__name__}."
            )
        if self.noise_multiplier is not None and not isinstance(
            self.noise_multiplier, Schedule
        ):
            _checks.positive(noise_multiplier=self.noise_multiplier)
        # Once and for all: what is charged and what is drawn come from the same numbers.
        multipliers = self._evaluated()
        multipliers.setflags(write=False)
        _check_noise(multipliers)
        object.__setattr__(self, "_multipliers", multipliers)

    def noise_multipliers(self) -> Floats:
        """Noise on the clipped sum divided by the bound, for each step."""
        found: Floats = self.__dict__["_multipliers"]
        return found

    def _evaluated(self) -> Floats:
        """The multipliers as the schedule or the update rule gives them."""
        if self.noise_multiplier is not None:
            return values(self.noise_multiplier, int(self.steps))
        assert isinstance(self.update, Langevin)
        return self.update.noise_multipliers(
            int(self.steps), self.expected_batch, self.clip.bound
        )

    def event(self) -> Event:
        """Cost of one run, known before any record is read.

        Noise that changes from step to step is grouped into at most 64 levels, each
        charged as its least noisy step. An adaptive clip rule is charged together with the
        gradients, since its count is taken from the same batch.
        """
        events = tuple(
            Repeated(self._step_event(multiplier), times)
            for multiplier, times in levels(self.noise_multipliers())
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
        ask_empty: bool = False,
    ) -> TrainingResult:
        """Descend.

        Parameters
        ----------
        weights : array
            Where to start, from public knowledge or fresh randomness.
        clipped_sum_of : callable
            ``clipped_sum_of(weights, rows, clip)`` gives the :class:`Clipped` sum over the
            records whose numbers are in ``rows``, of the shape of the weights. It reads no
            other record, and is not called for an empty batch unless ``ask_empty`` says so. A
            sum that is not finite
            ends the run with an error, for no noise could hide it.
        records : int
            How many records there are. Only the sampler reads it.
        rng : Generator, optional
            Source of batches and noise; by default fresh secret entropy, the only choice
            under which the event promises anything.
        on_step : callable, optional
            Called after each step with a :class:`Step`. Where it returns True, the run ends;
            the event stays as announced.
        start : Standing, optional
            Where an earlier run was broken off, instead of ``weights``. Steps that it took
            beyond are lost, and taken anew with other batches and other noise: if nothing of
            them has left, both runs together cost what one does.
        in_place : bool
            Write over the weights (those of ``start``, too), what the update rule remembers,
            and the sums that ``clipped_sum_of`` gives, which must be new ones at each step.
            The numbers are the same; what a :class:`Step` shows is good until the next one.
            For a vector of very many weights.
        ask_empty : bool
            Whether ``clipped_sum_of`` is called for an empty batch, too: where it adds what was
            summed elsewhere.

        Guarantees
        ----------
        Given that ``clipped_sum_of`` keeps to ``clip.bound``, the noisy sums, and with them
        all weights, cost what :meth:`event` says, in real arithmetic. The float64 sum and its
        noise are both rounded to a public grid and then added as integers, so that the sums
        that can occur are the same for neighbors. The noise is a float64 normal, rounded, in
        place of a real one, rounded. Only what is noisy is rounded to the type of the weights.
        """
        _checks.whole(records=records, least=0)
        rng = _random.secret_generator() if rng is None else rng
        if not isinstance(rng, np.random.Generator):
            raise ValueError(f"Expected rng to be a numpy Generator or None, got {rng!r}.")
        # Streams of their own: what the batches consume does not shift the noise.
        coins, normals, counts = rng.spawn(3)
        if start is None:
            start = TrainingState(0, weights, self.update.start(weights), self.clip)
        weights, state, clip = start.weights, start.state, start.clip
        t, left = start.steps - 1, self.noise_multipliers()[start.steps :]
        if in_place:
            _check_vector(weights)
            state = own(state, weights)
        shape = tuple(weights.shape)
        digits = self._digits(math.prod(shape))
        ahead = PrefetchedNoise(shape, len(left), normals, digits=digits, overwrite=in_place)
        with ahead.drawing() as noise:
            for t, multiplier in enumerate(left, start.steps):
                rows = self.sampler.batch(records, coins)
                asked = clipped_sum_of if len(rows) or ask_empty else None
                clipped = self._clipped(weights, rows, clip, asked)
                noisy = self._perturbed(clipped.total, multiplier * clip.bound, noise)
                weights, state = self._moved(weights, noisy, state, t, in_place)
                clip = self._next_clip(clip, clipped.exceeding, counts)
                step = Step(t, noisy, weights, clip, state)
                if on_step is not None and _ended(on_step(step)):
                    break
                del clipped, noisy, step  # before the next sum: they may be large
        return TrainingResult(weights, self.event(), t + 1, _random.is_secret(rng))

    def _step_event(self, multiplier: float) -> Event:
        """Cost of one step."""
        bound = float(self.clip.bound)
        if isinstance(self.clip, GlobalAdapt):
            multiplier = self.clip.charged(multiplier)
        return self.sampler.event(multiplier * bound, bound, self.relation)

    def _clipped(
        self, weights: Any, rows: Ints, clip: ClipRule, clipped_sum_of: ClippedSumOf | None
    ) -> Clipped:
        """The clipped sum over a batch, in float64; zero where nobody is asked."""
        xp = array_namespace(weights)
        if clipped_sum_of is None:
            return Clipped(xp.zeros(tuple(weights.shape), dtype=xp.float64))
        clipped = clipped_sum_of(weights, rows, clip)
        total = xp.astype(xp.asarray(clipped.total), xp.float64, copy=False)
        if tuple(total.shape) != tuple(weights.shape) or not _finite(total):
            raise ValueError(
                f"Expected a finite clipped sum of shape {tuple(weights.shape)}, got one of "
                f"shape {tuple(total.shape)}, or one with NaN or infinity. Sum with "
                "veracal.mechanisms.clipped_sum, or leave out what selection(...) does not "
                "keep."
            )
        return Clipped(total, clipped.exceeding)

    def _perturbed(self, total: Any, noise_std: float, ahead: PrefetchedNoise) -> Any:
        """The sum with its noise, both rounded to the public grid."""
        if isinstance(total, np.ndarray):
            return ahead.onto(total, noise_std)
        xp = array_namespace(total)
        step = noise_std * 2.0 ** -self._digits(math.prod(total.shape))
        return (xp.round(total / step) + xp.asarray(ahead.units())) * step

    def _digits(self, entries: int) -> int:
        r"""Binary digits that normal noise keeps, for a sum of so many entries.

        With m digits the grid of the sum and of its noise has a step of
        :math:`2^{-m}\sigma C`. Rounding n entries moves two neighboring sums apart by at most
        :math:`\sqrt n` steps, and m is such that this is at most :math:`2^{-22} C` at the
        largest :math:`\sigma` of all steps: a quarter of the millionth of the bound that every
        clip rule leaves to rounding.
        """
        largest = float(self.noise_multipliers().max())
        digits = _FINE + math.frexp(largest * math.sqrt(max(1, entries)))[1]
        if digits > _MOST_DIGITS:
            raise ValueError(
                "Expected the largest noise multiplier times the square root of the number of "
                f"weights to be below {2.0 ** (_MOST_DIGITS - _FINE):.3g}, got {largest!r} "
                f"with {entries} weights: float64 has no finer grid for that much noise."
            )
        return max(_LEAST_DIGITS, digits)

    def _moved(
        self, weights: Any, noisy: Any, state: Any, t: int, in_place: bool
    ) -> tuple[Any, Any]:
        """Weights after a step, and what the update rule remembers."""
        if not in_place:
            return self.update.step(weights, self._gradient(noisy, weights), state, t)
        state = step_in_place(
            self.update, weights, lambda at: self._gradient(noisy[at], weights[at]), state, t
        )
        return weights, state

    def _gradient(self, noisy: Any, weights: Any) -> Any:
        """What the update follows: the noisy sum over the declared batch."""
        xp = array_namespace(weights)
        if isinstance(noisy, np.ndarray):  # in one pass, without a copy in float64
            gradient = np.empty(weights.shape, weights.dtype)
            np.multiply(noisy, 1 / self.expected_batch, out=gradient, casting="same_kind")
        else:
            gradient = xp.astype(noisy / self.expected_batch, weights.dtype, copy=False)
        return gradient + self.weight_decay * weights if self.weight_decay else gradient

    def _next_clip(self, clip: ClipRule, exceeding: int, rng: np.random.Generator) -> ClipRule:
        """The rule of the next step."""
        if not isinstance(clip, GlobalAdapt):
            return clip
        # The count is whole, and its noise is rounded to a grid that contains whole numbers.
        step = math.ldexp(1.0, min(0, math.frexp(clip.count_noise)[1] - _FINE))
        noise = float(np.rint(rng.normal(0.0, clip.count_noise) / step) * step)
        return clip.adapted((exceeding + noise) / self.expected_batch)


def _finite(total: Any) -> bool:
    """Whether all entries are, which their squares mostly tell."""
    # A sum of squares may overflow where no entry does, and is twice as fast to take.
    if isinstance(total, np.ndarray) and math.isfinite(np.vdot(total, total)):
        return True
    xp = array_namespace(total)
    return bool(xp.all(xp.isfinite(total)))


def _check_vector(weights: object) -> None:
    """Refuse weights that cannot be written over piece by piece."""
    if not isinstance(weights, np.ndarray) or weights.ndim != 1 or not weights.flags.writeable:
        raise ValueError(
            "Expected a vector of numpy that can be written over, for in_place=True, got "
            f"{type(weights).__name__} of shape {tuple(getattr(weights, 'shape', ()))}."
        )


def _ended(answer: object) -> bool:
    """Whether a hook said so: numpy's truth counts, what merely is not empty does not."""
    return isinstance(answer, bool | np.bool_) and bool(answer)


def _check_parts(sampler: object, clip: object, update: object) -> None:
    """Refuse parts that the event or the loop knows nothing about."""
    for name, part, kind in (("sampler", sampler, Sampler), ("clip", clip, ClipRule)):
        if not isinstance(part, kind):
            raise ValueError(
                f"Expected a {name} of veracal.mechanisms, whose cost is known, got {part!r}."
            )
    if not isinstance(update, Update):
        raise ValueError(f"Expected an update rule with start and step, got {update!r}.")


def _check_noise(multipliers: Floats) -> None:
    """Refuse a schedule that comes to a step without noise."""
    worst = float(np.min(multipliers))
    if not (math.isfinite(worst) and worst > 0 and np.isfinite(multipliers).all()):
        step = int(np.argmin(multipliers))
        raise ValueError(
            "Expected a finite noise multiplier > 0 at every step, got "
            f"{float(multipliers[step])!r} at step {step}."
        )
