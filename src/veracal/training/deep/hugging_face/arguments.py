"""What a private fine-tuning promises, beside what ``TrainingArguments`` say."""

from dataclasses import dataclass

import numpy as np

from veracal import _checks, _random
from veracal.privacy import Clip, Relation, Schedule, Unit
from veracal.privacy.budget import RELATIONS
from veracal.training.deep.gradients.choosing import WAYS, Way


@dataclass(frozen=True)
class PrivacyArguments:
    """Settings of a :class:`PrivateTrainer` that ``TrainingArguments`` have no word for.

    Parameters
    ----------
    epsilon : float > 0, optional
        Most that the training may cost; the noise is found from it.
    noise_multiplier : float > 0 or Schedule, optional
        The noise on a clipped sum, divided by the clip bound, in place of ``epsilon``.
    delta : float in (0, 1)
        Below 1 / ``size``.
    size : int, optional
        Declared number of records. Left out, it is read off the records: the training is then
        *not private* under add-remove, and ``not_private_because_`` says so. With a ledger
        that is refused: the real number would be charged as a sampling rate.
    clip : float > 0 or Clip, optional
        Bound on the gradient of each example; a number c stands for ``Flat(c)``. By default
        ``TrainingArguments.max_grad_norm``, which is not applied to whole batches here.
    sampling_rate : float in (0, 1], optional
        Probability that a record enters a batch. By default the expected batch,
        ``per_device_train_batch_size * gradient_accumulation_steps``, divided by the size.
    max_length : int, optional
        Tokens to which every text is padded, and after which it is cut. Needed unless the
        records were tokenized to a declared length (``tokenized``).
    relation : {"add-remove", "replace-one"}
    unit : Unit, optional
        Whom the guarantee protects; by default one record. That nobody has more rows than
        ``unit.at_most`` is taken on trust, and ``statement_`` says so, unless ``unit_column``
        is given.
    unit_column : str, optional
        Name under which every row says whose it is. Of every unit the first ``unit.at_most``
        rows are then used, and the others contribute nothing. Arrays have no such column:
        give rows.
    gradients : {"ghost", "functional", "hooks"}, optional
        How gradients of examples are taken. By default by what each layer has seen
        ("ghost") where that is right for the model, and side by side ("functional")
        elsewhere. The two are tried in this order and not timed.
    random_state : int or Generator, optional
        Makes a run repeatable for tests, and therefore *not private*. None is fresh secret
        entropy, the only choice under which the guarantee holds.

    Examples
    --------
    >>> PrivacyArguments(epsilon=8.0, delta=1e-6, size=67_349, max_length=64).relation
    'add-remove'
    """

    epsilon: float | None = None
    noise_multiplier: float | Schedule | None = None
    delta: float = 1e-5
    size: int | None = None
    clip: float | Clip | None = None
    sampling_rate: float | None = None
    max_length: int | None = None
    relation: Relation = "add-remove"
    unit: Unit | None = None
    unit_column: str | None = None
    gradients: Way | None = None
    random_state: int | np.random.Generator | None = None

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError(
                "Expected either epsilon or noise_multiplier, got "
                f"epsilon={self.epsilon!r} and noise_multiplier={self.noise_multiplier!r}: the "
                "number of steps is fixed by TrainingArguments, so one follows from the other."
            )
        if self.epsilon is not None:
            _checks.positive(epsilon=self.epsilon)
        _checks.positive(delta=self.delta)
        _checks.fraction(delta=self.delta)
        for name in ("size", "max_length"):
            if getattr(self, name) is not None:
                _checks.whole(**{name: getattr(self, name)})
        if self.sampling_rate is not None:
            _checks.positive(sampling_rate=self.sampling_rate)
            _checks.fraction(sampling_rate=self.sampling_rate)
        _checks.positive_or("a clip rule, such as Flat(1.0)", Clip | None, clip=self.clip)
        noise = self.noise_multiplier
        _checks.positive_or("a Schedule", Schedule | None, noise_multiplier=noise)
        _checks.one_of(RELATIONS, relation=self.relation)
        if not isinstance(self.unit, Unit | None):
            raise ValueError(f"Expected unit to be a Unit or None, got {self.unit!r}.")
        self._check_column()
        if self.gradients is not None:
            _checks.one_of(WAYS, gradients=self.gradients)
        _random.check_state(self.random_state)

    def _check_column(self) -> None:
        """Refuse a column of ids that is none, or that nobody said the meaning of."""
        column = self.unit_column
        if column is None:
            return
        if not (isinstance(column, str) and column):
            raise ValueError(f"Expected unit_column to be a name or None, got {column!r}.")
        if self.unit is None or self.unit.name == "record":
            raise ValueError(
                f"Expected a unit that the ids in unit_column={column!r} are of, got "
                f"unit={self.unit!r}. Give unit=Unit('patient', at_most=...), or leave out the "
                "column if rows are really what is to be protected."
            )
